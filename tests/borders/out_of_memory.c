// Threads at the limit of the address space: requests are refused, and a thread that waits for
// memory never waits for itself.
#include <sys/resource.h>

#include "check.h"
#include "child.h"
#include "run_threads.h"

enum { kThreads = 8, kRounds = 6, kHeld = 8000, kPlaces = 64 };

static unsigned refused;
static pthread_barrier_t start;
// Threads exchange objects here, so that they free objects of other threads.
static void* places[kPlaces];

static unsigned next(unsigned* seed) { return (*seed = *seed * 1664525 + 1013904223) >> 8; }

static void exchange(void* mine, unsigned i) {
  free(__atomic_exchange_n(&places[i % kPlaces], mine, __ATOMIC_ACQ_REL));
}

// Allocates until no memory is left, checks the objects, frees a random half of them, and so on.
static void* takes_all(void* argument) {
  unsigned seed = (unsigned)(uintptr_t)argument;
  static __thread struct {
    unsigned char* at;
    size_t size;
  } held[kHeld];
  pthread_barrier_wait(&start);
  for (int round = 0; round < kRounds; round++) {
    for (int i = 0; i < kHeld; i++) {
      if (held[i].at != NULL) continue;
      const unsigned bits = next(&seed) % 12 + 5;
      held[i].size = (size_t)1 << bits | (next(&seed) & ((1u << bits) - 1));
      held[i].at = malloc(held[i].size);
      if (held[i].at == NULL) {
        __atomic_fetch_add(&refused, 1, __ATOMIC_RELAXED);
        continue;
      }
      held[i].at[0] = held[i].at[held[i].size - 1] = (unsigned char)(i + 1);
      if (i % 16 == 0) exchange(malloc(held[i].size), next(&seed));
    }
    for (int i = 0; i < kHeld; i++) {
      if (held[i].at == NULL || (round + 1 < kRounds && next(&seed) % 2 == 0)) continue;
      CHECK(held[i].at[0] == (unsigned char)(i + 1) &&
            held[i].at[held[i].size - 1] == (unsigned char)(i + 1));
      free(held[i].at);
      held[i].at = NULL;
    }
  }
  return NULL;
}

CHILD(threads_take_all) {
  pthread_t threads[kThreads];
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 1 << 20);
  pthread_barrier_init(&start, NULL, kThreads);
  for (uintptr_t i = 0; i < kThreads; i++)
    REQUIRE(pthread_create(&threads[i], &attributes, takes_all, (void*)(i + 1)) == 0);
  join_threads(threads, kThreads);
  CHECK(refused != 0);
  for (unsigned i = 0; i < kPlaces; i++) exchange(NULL, i);
  // The freed memory is available again.
  void* more = malloc(1 << 20);
  CHECK(more != NULL);
  free(more);
}

CASE(threads_at_the_limit) {
  memset(&child, 0, offsetof(struct Child, out));
  child.options = getenv("LANEMALLOC_OPTIONS");
  child.resource = RLIMIT_AS;
  child.limit = (rlim_t)250000 << 10;
  for (int i = 0; i < 4; i++) {
    run_child("threads_take_all");
    CHECK_CHILD(child_succeeded());
  }
}
