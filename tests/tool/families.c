// Pools with odd names, and many with one name: 70 in all. Prints "ready" and stays until SIGTERM.
#define _GNU_SOURCE
#include <lanemalloc/pool.h>
#include <signal.h>
#include <stdio.h>

static void make(const char* name) {
  struct lane_pool_options options = {.name = name, .object_size = 100};
  if (lane_pool_alloc(lane_pool_create(&options)) == NULL) perror("lane_pool_alloc");
}

int main(void) {
  static const char* kNames[] = {"tab\t",
                                 "b\\s",
                                 "gr\xC3\xB6\xC3\x9F"
                                 "e",
                                 "cut\xC3",
                                 "sur\xED\xA0\x80",
                                 "\xC0\xAF",
                                 ""};
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigprocmask(SIG_BLOCK, &set, NULL);
  for (int i = 0; i < 63; ++i) make("same");
  for (unsigned i = 0; i < sizeof kNames / sizeof *kNames; ++i) make(kNames[i]);
  puts("ready");
  fflush(stdout);
  int which;
  sigwait(&set, &which);
  return 0;
}
