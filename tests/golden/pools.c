// A pair of an allocation and its free, in one loop for all fronts, so that callgrind can count it.
// Used by: tests/golden/pools.py.
// Usage: pools FRONT one|bulk|slabs|handed COUNT [thread]. Fronts: empty (the loop alone), malloc,
// heap (with the size given), pool, limited, functions (ctor and dtor). one: the pair again and
// again; bulk: 1000 objects, then freed in a fixed shuffled order; slabs: the same with 20,000
// objects, of ten slabs; handed: 1000 objects that another thread frees. With `thread`, the process
// has had a second thread before.
#define _GNU_SOURCE
#include <lanemalloc/heap.h>
#include <lanemalloc/pool.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../bench/measure.h"

enum { kSize = 32, kBulk = 1000, kMany = 20000 };

#define HIDE(pointer) __asm__ volatile("" : "+r"(pointer)::"memory")
#define NOINLINE static __attribute__((noinline))

static uint16_t order[kMany];
static void* objects[kMany];
static char fake_object[kSize];
static lane_heap* heap;
static lane_pool* pool;
static pthread_barrier_t barrier;  // for handed: the objects are there; they are gone

static int begin(void* object, size_t size, void* argument) {
  (void)object, (void)size, (void)argument;
  return 0;
}
static void end(void* object, size_t size, void* argument) { begin(object, size, argument); }

#define ROUNDS(name, n, allocate, give_back)               \
  NOINLINE void name(size_t count) {                       \
    for (size_t round = 0; round < count / (n); round++) { \
      for (int i = 0; i < (n); i++) objects[i] = allocate; \
      for (int i = 0; i < (n); i++) {                      \
        void* object = objects[order[i]];                  \
        HIDE(object);                                      \
        give_back;                                         \
      }                                                    \
    }                                                      \
  }
#define FRONT(name, allocate, give_back)                                             \
  NOINLINE void name##_one(size_t count) {                                           \
    for (size_t i = 0; i < count; i++) {                                             \
      void* object = allocate;                                                       \
      HIDE(object);                                                                  \
      give_back;                                                                     \
    }                                                                                \
  }                                                                                  \
  ROUNDS(name##_bulk, kBulk, allocate, give_back)                                    \
  ROUNDS(name##_slabs, kMany, allocate, give_back)                                   \
  static void* name##_receive(void* count) {                                         \
    for (size_t round = 0; round < (size_t)count / kBulk; round++) {                 \
      pthread_barrier_wait(&barrier);                                                \
      for (int i = 0; i < kBulk; i++) {                                              \
        void* object = objects[order[i]];                                            \
        HIDE(object);                                                                \
        give_back;                                                                   \
      }                                                                              \
      pthread_barrier_wait(&barrier);                                                \
    }                                                                                \
    return NULL;                                                                     \
  }                                                                                  \
  NOINLINE void name##_handed(size_t count) {                                        \
    pthread_t receiver;                                                              \
    if (pthread_create(&receiver, NULL, name##_receive, (void*)count) != 0) abort(); \
    for (size_t round = 0; round < count / kBulk; round++) {                         \
      for (int i = 0; i < kBulk; i++) objects[i] = allocate;                         \
      pthread_barrier_wait(&barrier);                                                \
      pthread_barrier_wait(&barrier);                                                \
    }                                                                                \
    pthread_join(receiver, NULL);                                                    \
  }                                                                                  \
  static void name(const char* pattern, size_t count) {                              \
    switch (pattern[0]) {                                                            \
      case 'o':                                                                      \
        return name##_one(count);                                                    \
      case 'b':                                                                      \
        return name##_bulk(count);                                                   \
      case 's':                                                                      \
        return name##_slabs(count);                                                  \
      default:                                                                       \
        name##_handed(count);                                                        \
    }                                                                                \
  }
FRONT(of_nothing, fake_object, (void)object)
FRONT(of_malloc, malloc(kSize), free(object))
FRONT(of_heap, lane_heap_alloc(heap, kSize), lane_heap_free_sized(heap, object, kSize))
FRONT(of_pool, lane_pool_alloc(pool), lane_pool_free(pool, object))

static void* nothing(void* argument) { return argument; }

static void shuffle(int n) {
  uint32_t seed = 42;
  for (int i = 0; i < n; i++) order[i] = (uint16_t)i;
  for (int i = n - 1; i > 0; i--) {
    seed = seed * 1664525u + 1013904223u;
    const int j = (int)((seed >> 8) % (uint32_t)(i + 1));
    const uint16_t other = order[i];
    order[i] = order[j];
    order[j] = other;
  }
}

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const char* front = argv[1];
  if (argc > 4) {
    pthread_t thread;
    pthread_create(&thread, NULL, nothing, NULL);
    pthread_join(thread, NULL);
  }
  shuffle(argv[2][0] == 's' ? kMany : kBulk);
  pthread_barrier_init(&barrier, NULL, 2);
  struct lane_pool_options options = {.object_size = kSize};
  if (strcmp(front, "limited") == 0) options.limit = 2 * kMany;
  if (strcmp(front, "functions") == 0) options.ctor = begin, options.dtor = end;
  heap = lane_heap_create(NULL);
  pool = lane_pool_create(&options);
  if (heap == NULL || pool == NULL) return 1;
  const size_t count = strtoul(argv[3], NULL, 10);
  if (strcmp(front, "empty") == 0) {
    of_nothing(argv[2], count);
  } else if (strcmp(front, "malloc") == 0) {
    of_malloc(argv[2], count);
  } else if (strcmp(front, "heap") == 0) {
    of_heap(argv[2], count);
  } else {
    of_pool(argv[2], count);
  }
  void* base;
  const char* file = malloc_file(&base);
  printf("count=%zu base=%p library=%s\n", count, base, file);
  return 0;
}
