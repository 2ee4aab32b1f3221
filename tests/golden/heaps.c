// Allocates objects of a heap, or of malloc, so that callgrind can count what they take. Used by:
// tests/golden/heaps.py.
//
//   destroyed   a heap is made, OBJECTS objects are allocated in it, and all go with it; with
//               malloc each object is freed
//   peak        OBJECTS objects are allocated, and stay; prints how much resident memory they take
//
// Usage: heaps heap|malloc destroyed|peak OBJECTS ROUNDS [SIZE]. With SIZE 0 the sizes are 16 to
// 512 bytes, fixed pseudo-random. The process has had a second thread before.
#include <lanemalloc/heap.h>
#include <pthread.h>
#include <stdio.h>

#include "../../bench/measure.h"

#define HIDE(pointer) __asm__ volatile("" : "+r"(pointer)::"memory")

static void* objects[1 << 20];
static size_t sizes[1024];

static void prepare(size_t size) {
  uint32_t seed = 42;
  for (int i = 0; i < 1024; i++) {
    seed = seed * 1664525u + 1013904223u;
    sizes[i] = size != 0 ? size : 16 + (seed >> 8) % 497;
  }
}

static void take(lane_heap* heap, size_t n) {
  for (size_t i = 0; i < n; i++) {
    void* object = heap != NULL ? lane_heap_alloc(heap, sizes[i % 1024]) : malloc(sizes[i % 1024]);
    if (object == NULL) abort();
    HIDE(object);
    objects[i] = object;
  }
}

static void touch(size_t n) {
  for (size_t i = 0; i < n; i++) memset(objects[i], 1, sizes[i % 1024]);
}

static void round_of(int with_heap, size_t n) {
  lane_heap* heap = with_heap ? lane_heap_create(NULL) : NULL;
  take(heap, n);
  if (with_heap) {
    if (lane_heap_destroy(heap) != n) abort();
  } else {
    for (size_t i = 0; i < n; i++) free(objects[i]);
  }
}

static void* use_malloc(void* nothing) {
  void* object = malloc(32);
  HIDE(object);
  free(object);
  return nothing;
}

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  const int with_heap = strcmp(argv[1], "heap") == 0;
  const size_t n = strtoul(argv[3], NULL, 10), rounds = strtoul(argv[4], NULL, 10);
  if (n > 1 << 20) return 2;
  prepare(argc > 5 ? strtoul(argv[5], NULL, 10) : 0);
  pthread_t thread;
  if (pthread_create(&thread, NULL, use_malloc, NULL) != 0) abort();
  pthread_join(thread, NULL);
  void* base = NULL;
  const char* file = malloc_file(&base);
  if (strcmp(argv[2], "peak") == 0) {
    memset(objects, 1, n * sizeof(void*));
    const unsigned long before = proc_kib("/proc/self/smaps_rollup", "Anonymous:");
    lane_heap* heap = with_heap ? lane_heap_create(NULL) : NULL;
    take(heap, n);
    touch(n);
    printf("kib=%lu ", proc_kib("/proc/self/smaps_rollup", "Anonymous:") - before);
  } else {
    const uint64_t before = thread_cpu_ns();
    for (size_t i = 0; i < rounds; i++) round_of(with_heap, n);
    printf("cpu_ns=%llu ", (unsigned long long)(thread_cpu_ns() - before));
  }
  printf("library=%s base=%p\n", file, base);
  return 0;
}
