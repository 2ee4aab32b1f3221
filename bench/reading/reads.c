// Reads the allocator's figures by mallinfo2() again and again, while other threads allocate all
// the time. Called by: run.py.
// Usage: reads THREADS SECONDS. Prints nanoseconds per reading, and the threads' operations
// meanwhile.
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>

#include "../measure.h"

enum { kObjects = 512 };
static atomic_uint filled;

static _Alignas(128) atomic_ulong operations[256][16];

static void* replace_objects(void* argument) {
  atomic_ulong* done = argument;
  void* objects[kObjects];
  for (int i = 0; i < kObjects; i++) objects[i] = malloc(16);
  filled++;
  for (unsigned random = (unsigned)(uintptr_t)argument;;) {
    random = random * 1664525 + 1013904223;
    void** slot = &objects[random >> 16 & (kObjects - 1)];
    free(*slot);
    *slot = malloc(16 + (random >> 8) % 200);
    if (*slot == NULL) abort();
    memset(*slot, 1, 16);
    atomic_store_explicit(done, atomic_load_explicit(done, memory_order_relaxed) + 1,
                          memory_order_relaxed);
  }
  return NULL;
}

int main(int count, char** arguments) {
  if (count != 3) return fprintf(stderr, "usage: reads THREADS SECONDS\n"), 2;
  const unsigned threads = (unsigned)atoi(arguments[1]);
  if (threads > 256) return fprintf(stderr, "reads: %u threads: at most 256\n", threads), 2;
  for (unsigned i = 0; i < threads; i++) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, replace_objects, operations[i]) != 0) abort();
  }
  while (filled < threads) sched_yield();
  const uint64_t begin = wall_ns(), end = begin + (uint64_t)atoi(arguments[2]) * 1000000000;
  uint64_t now = begin, readings = 0, longest = 0;
  while (now < end) {
    const uint64_t before = now;
    if (mallinfo2().uordblks == 0) abort();
    now = wall_ns();
    readings++;
    if (now - before > longest) longest = now - before;
  }
  unsigned long done = 0;
  for (unsigned i = 0; i < threads; i++) done += operations[i][0];
  printf("mean_ns=%.0f longest_ns=%.0f operations=%lu\n", (double)(now - begin) / (double)readings,
         (double)longest, done);
  fflush(stdout);
  _Exit(0);
}
