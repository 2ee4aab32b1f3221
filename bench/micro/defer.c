// A malloc with its free, or with its deferred free, so that what the two cost can be compared:
//   one      malloc(32), free, again
//   bulk     1000 objects of 16-512 bytes (fixed pseudo-random sizes), then freed in a fixed shuffled order
//   handed   objects of 64 bytes from one thread, freed by another
// Usage: defer one|bulk|handed free|defer COUNT. A reader is registered, and in no section. The process has had a second thread
// before, so that shared operations are what they are among threads. Called by: tests/golden/safepoints.py.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../include/lanemalloc/safepoint.h"
#include "../measure.h"

enum { kBulk = 1000 };

#define NOINLINE __attribute__((noinline))
#define HIDE(pointer) __asm__ volatile("" : "+r"(pointer)::"memory")

static int (*defer_free)(void* object);
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

// What is measured are the calls that these two make.
static NOINLINE void free_measured(void* object) { free(object); }
static NOINLINE void defer_measured(void* object) {
  if (defer_free(object) != 0) abort();
}

static void release(void* object, bool defer) {
  if (defer) {
    defer_measured(object);
  } else {
    free_measured(object);
  }
}

static void one(size_t count, bool defer) {
  for (size_t i = 0; i < count; i++) {
    void* object = malloc(32);
    HIDE(object);
    release(object, defer);
  }
}

static void bulk(size_t count, bool defer) {
  for (size_t round = 0; round < count / kBulk; round++) {
    for (int i = 0; i < kBulk; i++) objects[i] = malloc(sizes[i]);
    for (int i = 0; i < kBulk; i++) release(objects[order[i]], defer);
  }
}

static struct {
  void** objects;
  size_t count;
  bool defer;
} handed;

static void* release_handed(void* nothing) {
  free(malloc(64));
  for (size_t i = 0; i < handed.count; i++) release(handed.objects[i], handed.defer);
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
    fprintf(stderr, "usage: defer one|bulk|handed free|defer COUNT\n");
    return 2;
  }
  defer_free = (int (*)(void*))dlsym(RTLD_DEFAULT, "lane_safepoint_free");
  int (*add)(struct lane_reader*, const char*) =
      (int (*)(struct lane_reader*, const char*))dlsym(RTLD_DEFAULT, "lane_reader_register");
  static struct lane_reader reader;
  if (defer_free == NULL || add == NULL || add(&reader, NULL) != 0) {
    fprintf(stderr, "defer: this allocator has no deferred frees\n");
    return 1;
  }
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
  } else if (strcmp(argv[1], "bulk") == 0) {
    bulk(count, defer);
  } else {
    hand_over(count, defer);
  }
  printf("count=%zu thread_cpu_ns=%llu base=%p library=%s\n", count,
         (unsigned long long)(thread_cpu_ns() - cpu), base, file);
  return 0;
}
