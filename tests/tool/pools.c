// A heap that is nearly full, and a pool. Prints "ready" and stays until SIGTERM. With the argument
// "unused": allocates nothing.
#define _GNU_SOURCE
#include <lanemalloc/heap.h>
#include <lanemalloc/pool.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char** argv) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigprocmask(SIG_BLOCK, &set, NULL);
  if (argc > 1 && strcmp(argv[1], "unused") == 0) {
    if (write(1, "ready\n", 6) != 6) return 1;
  } else {
    struct lane_heap_options heap_options = {.name = "tenant \"one\"\n", .limit = 10 << 20};
    lane_heap* heap = lane_heap_create(&heap_options);
    for (int i = 0; i < 9800; ++i) memset(lane_heap_alloc(heap, 1000), 1, 1000);
    struct lane_pool_options pool_options = {.name = "sessions", .object_size = 200};
    lane_pool* pool = lane_pool_create(&pool_options);
    for (int i = 0; i < 500; ++i) memset(lane_pool_alloc(pool), 1, 200);
    puts("ready");
    fflush(stdout);
  }
  int which;
  sigwait(&set, &which);
  return 0;
}
