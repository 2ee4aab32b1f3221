// A malloc+free pair in the patterns that decide an allocator's fast path:
//   pair32         malloc(32), free, again
//   bulk-order     1000 objects of 16-512 bytes (fixed pseudo-random sizes), then freed in the
//                  order of allocation
//   bulk-reverse   ... in reverse order
//   bulk-shuffle   ... in a fixed shuffled order
//   ring           one thread allocates 64 bytes and passes the object through a ring of 1024
//                  to another, which frees it
// Each also exists as NAME-empty: the same loop without the two calls, so that the loop's own cost
// can be subtracted. Nothing in the loops allocates. Usage: pairs WORKLOAD PAIRS. Prints pairs,
// time, and the file that malloc comes from. Called by: bench/micro/run.py,
// tests/golden/fast_path.py.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../measure.h"

enum { kBulk = 1000, kRing = 1024, kRingBytes = 64, kSpins = 64 };

#define NOINLINE __attribute__((noinline))
#define HIDE(pointer) __asm__ volatile("" : "+r"(pointer)::"memory")

static size_t sizes[kBulk];
static uint16_t orders[3][kBulk];
static void* objects[kBulk];
static char fake_object[64];

static uint32_t next_random(uint32_t* state) {
  *state = *state * 1664525u + 1013904223u;
  return *state >> 8;
}

static void prepare(void) {
  uint32_t seed = 42;
  for (int i = 0; i < kBulk; i++) {
    sizes[i] = 16 + next_random(&seed) % 497;
    orders[0][i] = orders[2][i] = (uint16_t)i;
    orders[1][i] = (uint16_t)(kBulk - 1 - i);
  }
  for (int i = kBulk - 1; i > 0; i--) {
    int j = (int)(next_random(&seed) % (uint32_t)(i + 1));
    uint16_t t = orders[2][i];
    orders[2][i] = orders[2][j];
    orders[2][j] = t;
  }
}

static NOINLINE void pair32(size_t pairs) {
  for (size_t i = 0; i < pairs; i++) {
    void* object = malloc(32);
    HIDE(object);
    free(object);
  }
}

static NOINLINE void pair32_empty(size_t pairs) {
  for (size_t i = 0; i < pairs; i++) {
    void* object = fake_object;
    HIDE(object);
  }
}

static NOINLINE void bulk(size_t rounds, const uint16_t* order) {
  for (size_t round = 0; round < rounds; round++) {
    for (int i = 0; i < kBulk; i++) objects[i] = malloc(sizes[i]);
    for (int i = 0; i < kBulk; i++) free(objects[order[i]]);
  }
}

static NOINLINE void bulk_empty(size_t rounds, const uint16_t* order) {
  for (size_t round = 0; round < rounds; round++) {
    for (int i = 0; i < kBulk; i++) {
      size_t size = sizes[i];
      HIDE(size);
      objects[i] = fake_object;
    }
    for (int i = 0; i < kBulk; i++) {
      void* object = objects[order[i]];
      HIDE(object);
    }
  }
}

// The ring: single producer, single consumer, each with a private copy of the other's position.
static struct {
  _Alignas(128) _Atomic size_t written;
  _Alignas(128) _Atomic size_t taken;
  _Alignas(128) void* slots[kRing];
  size_t pairs;
} ring;

// Waits until *position is no longer `old`. Out of line, so that a profile tells waiting from work.
static NOINLINE size_t ring_wait(_Atomic size_t* position, size_t old) {
  for (int spins = 0;; spins++) {
    size_t now = atomic_load_explicit(position, memory_order_acquire);
    if (now != old) return now;
    if (spins < kSpins) {
      cpu_pause();
    } else {
      sched_yield();
    }
  }
}

static inline __attribute__((always_inline)) void produce_with(bool empty) {
  size_t taken = 0;
  size_t pairs = ring.pairs;
  for (size_t i = 0; i < pairs; i++) {
    void* object = empty ? fake_object : malloc(kRingBytes);
    HIDE(object);
    if (i - taken == kRing) taken = ring_wait(&ring.taken, taken);
    ring.slots[i % kRing] = object;
    atomic_store_explicit(&ring.written, i + 1, memory_order_release);
  }
}

static inline __attribute__((always_inline)) void consume_with(bool empty) {
  size_t written = 0;
  size_t pairs = ring.pairs;
  for (size_t i = 0; i < pairs; i++) {
    if (i == written) written = ring_wait(&ring.written, written);
    void* object = ring.slots[i % kRing];
    atomic_store_explicit(&ring.taken, i + 1, memory_order_release);
    HIDE(object);
    if (!empty) free(object);
  }
}

static NOINLINE void produce(void) { produce_with(false); }
static NOINLINE void produce_empty(void) { produce_with(true); }
static NOINLINE void consume(void) { consume_with(false); }
static NOINLINE void consume_empty(void) { consume_with(true); }

static void* consumer(void* empty) {
  if (empty != NULL) {
    consume_empty();
  } else {
    consume();
  }
  return NULL;
}

static void run_ring(size_t pairs, bool empty) {
  pthread_t thread;
  ring.pairs = pairs;
  if (pthread_create(&thread, NULL, consumer, empty ? &ring : NULL) != 0) abort();
  if (empty) {
    produce_empty();
  } else {
    produce();
  }
  pthread_join(thread, NULL);
}

static void run(const char* name, size_t pairs) {
  bool empty = strstr(name, "-empty") != NULL;
  size_t length = strcspn(name, "-");
  if (strncmp(name, "pair32", length) == 0) {
    (empty ? pair32_empty : pair32)(pairs);
  } else if (strncmp(name, "ring", length) == 0) {
    run_ring(pairs, empty);
  } else if (strncmp(name, "bulk-", 5) == 0) {
    static const char* const kOrders[3] = {"order", "reverse", "shuffle"};
    for (int i = 0; i < 3; i++) {
      if (strncmp(name + 5, kOrders[i], strlen(kOrders[i])) == 0) {
        (empty ? bulk_empty : bulk)(pairs / kBulk, orders[i]);
        return;
      }
    }
    exit(2);
  } else {
    exit(2);
  }
}

static void* use_malloc(void* nothing) {
  void* object = malloc(32);
  HIDE(object);
  free(object);
  return nothing;
}

// If PAIRS_AFTER_THREAD is in the environment, the process has had a second thread before the
// measurement.
static void start_and_end_a_thread(void) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, use_malloc, NULL) != 0) abort();
  pthread_join(thread, NULL);
  use_malloc(NULL);
}

int main(int argc, char** argv) {
  if (getenv("PAIRS_AFTER_THREAD") != NULL) start_and_end_a_thread();
  if (argc != 3) {
    fprintf(stderr,
            "usage: pairs pair32|bulk-order|bulk-reverse|bulk-shuffle|ring[-empty] PAIRS\n");
    return 2;
  }
  prepare();
  size_t pairs = strtoull(argv[2], NULL, 10);
  void* base = NULL;
  const char* file = malloc_file(&base);
  uint64_t wall = wall_ns(), cpu = thread_cpu_ns(), start = ticks();
  run(argv[1], pairs);
  uint64_t end = ticks();
  cpu = thread_cpu_ns() - cpu;
  wall = wall_ns() - wall;
  printf("pairs=%zu ticks=%llu thread_cpu_ns=%llu wall_ns=%llu base=%p library=%s\n", pairs,
         (unsigned long long)(end - start), (unsigned long long)cpu, (unsigned long long)wall, base,
         file);
  return 0;
}
