// A pair of an allocation and its free, in one loop for all fronts, for callgrind to count. Used by: tests/golden/pools.py.
// Usage: pools FRONT one|bulk COUNT [thread]. Fronts: empty (the loop alone), malloc, heap (with the size given), pool, limited,
// functions (ctor and dtor). one: the pair again and again; bulk: 1000 objects, then freed in a fixed shuffled order. With `thread` the
// process has had a thread before.
#define _GNU_SOURCE
#include <lanemalloc/heap.h>
#include <lanemalloc/pool.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../bench/measure.h"

enum { kSize = 32, kBulk = 1000 };

#define HIDE(pointer) __asm__ volatile("" : "+r"(pointer)::"memory")

static uint16_t order[kBulk];
static void* objects[kBulk];
static char fake_object[kSize];
static lane_heap* heap;
static lane_pool* pool;

static int begin(void* object, size_t size, void* argument) {
  (void)object, (void)size, (void)argument;
  return 0;
}
static void end(void* object, size_t size, void* argument) { begin(object, size, argument); }

#define FRONT(name, allocate, give_back)                            \
  static __attribute__((noinline)) void name##_one(size_t count) {  \
    for (size_t i = 0; i < count; i++) {                            \
      void* object = allocate;                                      \
      HIDE(object);                                                 \
      give_back;                                                    \
    }                                                               \
  }                                                                 \
  static __attribute__((noinline)) void name##_bulk(size_t count) { \
    for (size_t round = 0; round < count / kBulk; round++) {        \
      for (int i = 0; i < kBulk; i++) objects[i] = allocate;        \
      for (int i = 0; i < kBulk; i++) {                             \
        void* object = objects[order[i]];                           \
        HIDE(object);                                               \
        give_back;                                                  \
      }                                                             \
    }                                                               \
  }
FRONT(empty, fake_object, (void)object)
FRONT(malloc, malloc(kSize), free(object))
FRONT(heap, lane_heap_alloc(heap, kSize), lane_heap_free_sized(heap, object, kSize))
FRONT(pool, lane_pool_alloc(pool), lane_pool_free(pool, object))

static void* nothing(void* argument) { return argument; }

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const char* front = argv[1];
  const int bulk = strcmp(argv[2], "bulk") == 0;
  if (argc > 4) {
    pthread_t thread;
    pthread_create(&thread, NULL, nothing, NULL);
    pthread_join(thread, NULL);
  }
  uint32_t seed = 42;
  for (int i = 0; i < kBulk; i++) order[i] = (uint16_t)i;
  for (int i = kBulk - 1; i > 0; i--) {
    seed = seed * 1664525u + 1013904223u;
    const int j = (int)((seed >> 8) % (uint32_t)(i + 1));
    const uint16_t other = order[i];
    order[i] = order[j];
    order[j] = other;
  }
  struct lane_pool_options options = {.object_size = kSize};
  if (strcmp(front, "limited") == 0) options.limit = 2 * kBulk;
  if (strcmp(front, "functions") == 0) options.ctor = begin, options.dtor = end;
  heap = lane_heap_create(NULL);
  pool = lane_pool_create(&options);
  if (heap == NULL || pool == NULL) return 1;
  const size_t count = strtoul(argv[3], NULL, 10);
  if (strcmp(front, "empty") == 0) {
    (bulk ? empty_bulk : empty_one)(count);
  } else if (strcmp(front, "malloc") == 0) {
    (bulk ? malloc_bulk : malloc_one)(count);
  } else if (strcmp(front, "heap") == 0) {
    (bulk ? heap_bulk : heap_one)(count);
  } else {
    (bulk ? pool_bulk : pool_one)(count);
  }
  void* base;
  const char* file = malloc_file(&base);
  printf("count=%zu base=%p library=%s\n", count, base, file);
  return 0;
}
