// A program that allocates little: it makes a few objects of common sizes, reports on itself and
// exits.
// Prints when its first allocation was done (CLOCK_MONOTONIC), and its resident and private memory.
// Called by: bench/startup/run.py.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "../measure.h"

int main(void) {
  char* volatile first = malloc(100);
  unsigned long long done_ns = wall_ns();
  static const size_t kSizes[] = {16, 24, 32, 48, 64, 100, 128, 200, 256, 500, 1000, 2000, 4000};
  enum { kCount = sizeof kSizes / sizeof kSizes[0] };
  void* objects[kCount];
  for (size_t i = 0; i < kCount; i++) {
    objects[i] = malloc(kSizes[i]);
    memset(objects[i], 1, kSizes[i]);
  }
  const char* rollup = "/proc/self/smaps_rollup";
  unsigned long rss = proc_kib(rollup, "Rss:");
  unsigned long private_kib =
      proc_kib(rollup, "Private_Clean:") + proc_kib(rollup, "Private_Dirty:");
  char line[4096];
  int n = snprintf(line, sizeof line, "first_ns=%llu rss_kib=%lu private_kib=%lu library=%s\n",
                   done_ns, rss, private_kib, malloc_file(NULL));
  if (write(STDOUT_FILENO, line, (size_t)n) != n) return 1;
  for (size_t i = 0; i < kCount; i++) free(objects[i]);
  free(first);
  return 0;
}
