// What the programs here share: a look at the figures, what must hold of them whenever the process
// is at rest, and work of all kinds in threads. Each program is one translation unit, linked with
// the library (run.sh).
#ifndef TESTS_SEEING_WORK_H_
#define TESTS_SEEING_WORK_H_

#include <fcntl.h>
#include <lanemalloc/arena.h>
#include <lanemalloc/lanemalloc.h>
#include <lanemalloc/pool.h>
#include <lanemalloc/safepoint.h>
#include <lanemalloc/stats.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>

#include "../semantics/check.h"

enum { kSlabMax = 512 << 10, kThreads = 8 };
typedef struct lane_statistics Figures;
typedef struct lane_contention_statistics Cell;

// Static: they are large, and the figures must not count what they cost.
UNUSED static Figures before, now;

UNUSED static void look(Figures* figures) { REQUIRE(lane_stats(figures, sizeof *figures) == 0); }
UNUSED static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}
UNUSED static const Cell* cell(const Figures* figures, const char* name) {
  for (int i = 0; i < LANE_STATS_CELLS; i++)
    if (strcmp(figures->contention[i].name, name) == 0) return &figures->contention[i];
  say("no cell %s\n", name);
  _exit(kStatusFailed);
}
UNUSED static const char* get(const char* name) {
  static __thread char value[600];
  return lane_get(name, value, sizeof value) < 0 ? "(none)" : value;
}
#define SET(name, value)                                                           \
  do {                                                                             \
    int set_ = lane_set(name, value);                                              \
    CHECK_MSG(set_ == 0, "%s=%s: %s", name, value, strerror(set_));                \
    CHECK_MSG(strcmp(get(name), value) == 0, "%s=%s: %s", name, value, get(name)); \
  } while (0)

UNUSED static void* run_nothing(void* argument) { return argument; }
UNUSED static void in_threads(int n, void* (*run)(void*), void* argument) {
  pthread_t threads[64];
  for (int i = 0; i < n; i++) REQUIRE(pthread_create(&threads[i], NULL, run, argument) == 0);
  for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
}
UNUSED static int status_of(pid_t child) {
  int status;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// --- Work of all kinds, with a pattern that a wrong free would spoil.

enum { kShelf = 4096 };
static _Atomic(void*) shelf[kShelf];  // objects change hands here
static uint32_t next_random(uint32_t* state) {
  return (*state = *state * 1664525u + 1013904223u) >> 8;
}

static size_t some_size(uint32_t* random) {
  const uint32_t kind = next_random(random) % 100;
  if (kind < 70) return next_random(random) % 600;
  if (kind < 95) return next_random(random) % 20000;
  return kind < 99 ? next_random(random) % 300000 : next_random(random) % 3000000;
}
static void* some_object(uint32_t* random) {
  const size_t size = some_size(random);
  void* p = NULL;
  switch (next_random(random) % 8) {
    case 0:
      return calloc(1, size);
    case 1:
      return aligned_alloc((size_t)16 << next_random(random) % 9, size);
    case 2:
      return posix_memalign(&p, 64, size) == 0 ? p : NULL;
    case 3:
      return realloc(malloc(size / 3 + 1), size + 1);
    default:
      return malloc(size);
  }
}
UNUSED static void* work(void* rounds) {
  uint32_t random = (uint32_t)(uintptr_t)pthread_self() ^ (uint32_t)(uintptr_t)&random;
  random = random / 64 * 2654435761u;
  for (size_t i = 0; i < (size_t)rounds; i++) {
    void* p = some_object(&random);
    if (p == NULL) continue;
    if (next_random(&random) % 4 == 0) p = realloc(p, some_size(&random) + 1);
    memset(p, 1, 16 < malloc_usable_size(p) ? 16 : malloc_usable_size(p));
    p = atomic_exchange(&shelf[next_random(&random) % kShelf], p);
    if (next_random(&random) % 64 == 0) {
      if (lane_safepoint_free(p) != 0) free(p);  // too many wait
    } else {
      free(p);
    }
  }
  return NULL;
}
UNUSED static void clear_shelf(void) {
  for (int i = 0; i < kShelf; i++) free(atomic_exchange(&shelf[i], NULL));
  lane_safepoint();
}

// --- What must hold of figures.

UNUSED static void check_sums(const Figures* f) {
  uint64_t allocations = f->large_allocations, live = f->large_live_objects,
           bytes = f->large_live_bytes, in_flight = 0;
  for (int c = 1; c < LANE_STATS_CLASSES; c++) {
    const struct lane_class_statistics* row = &f->classes[c];
    allocations += row->allocations, live += row->live, bytes += row->live * row->size,
        in_flight += row->in_flight;
    CHECK_MSG(row->size > 0 && row->size % 16 == 0 && row->size > f->classes[c - 1].size,
              "class %d: %lu", c, row->size);
    CHECK_MSG(row->live <= row->allocations, "class %d", c);
  }
  CHECK(allocations == f->allocations && live == f->live_objects && bytes == f->live_bytes);
  CHECK(in_flight == f->in_flight_objects);
  CHECK(f->frees + f->live_objects == f->allocations);
  CHECK(f->committed_bytes <= f->claimed_bytes && f->slab_bytes <= f->claimed_bytes);
  CHECK(f->large_live_bytes + f->slab_bytes <= f->committed_bytes);
}
UNUSED static void check_cells(const Figures* f) {
  uint64_t failures = 0;
  for (int i = 0; i < LANE_STATS_CELLS && f->contention[i].name[0] != '\0'; i++) {
    const Cell* c = &f->contention[i];
    uint64_t sum = 0;
    for (int b = 0; b < LANE_STATS_BUCKETS; b++) sum += c->waits_by_time[b];
    CHECK_MSG(sum == c->waits, "%s: %lu in the histogram, %lu waits", c->name, sum, c->waits);
    CHECK_MSG(c->waits == 0 || c->waited_ns > 0, "%s", c->name);
    failures += c->failures;
  }
  CHECK(f->failed_entries == cell(f, "lane")->failures && f->lane_waits == cell(f, "lane")->waits);
  CHECK(f->depot_failures == cell(f, "depot")->failures &&
        f->depot_waits == cell(f, "depot")->waits);
  CHECK(f->runs_failures == cell(f, "runs")->failures + cell(f, "growth")->failures);
  CHECK(f->runs_waits == cell(f, "runs")->waits + cell(f, "growth")->waits);
  CHECK(f->idle_stack_failures == cell(f, "idle lanes")->failures);
}

#endif  // TESTS_SEEING_WORK_H_
