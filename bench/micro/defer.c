// A malloc with its free or with its deferred free, so that the costs of the two can be compared:
//   one      malloc(32), free, again
//   bulk     1000 objects of 16-512 bytes (fixed pseudo-random sizes), then freed in a fixed
//            shuffled order
//   handed   objects of 64 bytes from one thread, freed by another
//   heap     the objects of bulk, from a heap, freed without their sizes; sized: with them
//   pool     1000 objects of 48 bytes, from a pool
// Usage: defer WORKLOAD free|defer COUNT. A reader is registered and is in no section. The process
// has had a second thread before, so that shared operations are the same as in a process with
// threads. Called by: tests/golden/safepoints.py.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../include/lanemalloc/heap.h"
#include "../../include/lanemalloc/pool.h"
#include "../../include/lanemalloc/safepoint.h"
#include "../measure.h"

enum { kBulk = 1000 };

#define NOINLINE __attribute__((noinline))
#define HIDE(pointer) __asm__ volatile("" : "+r"(pointer)::"memory")

enum front { kMalloc, kHeap, kSized, kPool };
static enum front front;
static lane_heap* heap;
static lane_pool* pool;
static size_t sizes[kBulk];
static uint16_t order[kBulk];
static void* objects[kBulk];

static uint32_t next_random(uint32_t* state) {
  *state = *state * 1664525u + 1013904223u;
  return *state >> 8;
}

static void prepare(void) {
  uint32_t seed = 42;
  for (int i = 0; i < kBulk; i++) {
    sizes[i] = 16 + next_random(&seed) % 497;
    order[i] = (uint16_t)i;
  }
  for (int i = kBulk - 1; i > 0; i--) {
    int j = (int)(next_random(&seed) % (uint32_t)(i + 1));
    uint16_t t = order[i];
    order[i] = order[j];
    order[j] = t;
  }
}

static void* take(size_t size) {
  if (front == kPool) return lane_pool_alloc(pool);
  return front == kMalloc ? malloc(size) : lane_heap_alloc(heap, size);
}

// A free that is compiled into the program is put into a function, and so is its deferred form:
// both are then calls.
static NOINLINE void free_sized(void* object, size_t size) {
  lane_heap_free_sized(heap, object, size);
}
static NOINLINE int defer_sized(void* object, size_t size) {
  return lane_safepoint_heap_free_sized(heap, object, size);
}
static NOINLINE void free_in_pool(void* object) { lane_pool_free(pool, object); }
static NOINLINE int defer_in_pool(void* object) { return lane_safepoint_pool_free(pool, object); }

// The calls that these two functions make are measured.
static NOINLINE void free_measured(void* object, size_t size) {
  switch (front) {
    case kMalloc:
      free(object);
      break;
    case kHeap:
      lane_heap_free(heap, object);
      break;
    case kSized:
      free_sized(object, size);
      break;
    case kPool:
      free_in_pool(object);
      break;
  }
}
static NOINLINE void defer_measured(void* object, size_t size) {
  int result = 0;
  switch (front) {
    case kMalloc:
      result = lane_safepoint_free(object);
      break;
    case kHeap:
      result = lane_safepoint_heap_free(heap, object);
      break;
    case kSized:
      result = defer_sized(object, size);
      break;
    case kPool:
      result = defer_in_pool(object);
      break;
  }
  if (result != 0) abort();
}

static void release(void* object, size_t size, bool defer) {
  if (defer) {
    defer_measured(object, size);
  } else {
    free_measured(object, size);
  }
}

static void one(size_t count, bool defer) {
  for (size_t i = 0; i < count; i++) {
    void* object = malloc(32);
    HIDE(object);
    release(object, 32, defer);
  }
}

static void bulk(size_t count, bool defer) {
  for (size_t round = 0; round < count / kBulk; round++) {
    for (int i = 0; i < kBulk; i++) objects[i] = take(sizes[i]);
    for (int i = 0; i < kBulk; i++) release(objects[order[i]], sizes[order[i]], defer);
  }
}

static struct {
  void** objects;
  size_t count;
  bool defer;
} handed;

static void* release_handed(void* nothing) {
  free(malloc(64));
  for (size_t i = 0; i < handed.count; i++) release(handed.objects[i], 64, handed.defer);
  return nothing;
}

static void hand_over(size_t count, bool defer) {
  pthread_t thread;
  handed.objects = malloc(count * sizeof(void*));
  handed.count = count;
  handed.defer = defer;
  for (size_t i = 0; i < count; i++) handed.objects[i] = malloc(64);
  if (pthread_create(&thread, NULL, release_handed, NULL) != 0) abort();
  pthread_join(thread, NULL);
}

static void* use_malloc(void* nothing) {
  void* object = malloc(32);
  HIDE(object);
  free(object);
  return nothing;
}

int main(int argc, char** argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: defer one|bulk|handed|heap|sized|pool free|defer COUNT\n");
    return 2;
  }
  static struct lane_reader reader;
  const struct lane_pool_options options = {.object_size = 48};
  heap = lane_heap_create(NULL);
  pool = lane_pool_create(&options);
  if (heap == NULL || pool == NULL || lane_reader_register(&reader, NULL) != 0) abort();
  if (strcmp(argv[1], "heap") == 0) front = kHeap;
  if (strcmp(argv[1], "sized") == 0) front = kSized;
  if (strcmp(argv[1], "pool") == 0) front = kPool;
  pthread_t thread;
  if (pthread_create(&thread, NULL, use_malloc, NULL) != 0) abort();
  pthread_join(thread, NULL);
  use_malloc(NULL);
  prepare();
  size_t count = strtoull(argv[3], NULL, 10);
  bool defer = strcmp(argv[2], "defer") == 0;
  void* base = NULL;
  const char* file = malloc_file(&base);
  uint64_t cpu = thread_cpu_ns();
  if (strcmp(argv[1], "one") == 0) {
    one(count, defer);
  } else if (strcmp(argv[1], "handed") == 0) {
    hand_over(count, defer);
  } else {
    bulk(count, defer);
  }
  printf("count=%zu thread_cpu_ns=%llu base=%p library=%s\n", count,
         (unsigned long long)(thread_cpu_ns() - cpu), base, file);
  return 0;
}
