// Deferred frees of heaps' and pools' objects: include/lanemalloc/safepoint.h. Linked with
// liblanemalloc.so, .a and _prefixed.a.
#include <lanemalloc/heap.h>
#include <lanemalloc/lanemalloc.h>
#include <lanemalloc/pool.h>
#include <lanemalloc/safepoint.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "../child.h"
#include "../run_threads.h"

#ifdef PREFIXED
#define API(name) lane_##name
#else
#define API(name) name
#endif

static struct lane_reader reader;
static struct lane_safepoint_statistics figures(void) {
  struct lane_safepoint_statistics s;
  lane_safepoint_get_statistics(&s);
  return s;
}
static uint64_t waiting(void) {
  struct lane_safepoint_statistics s = figures();
  return s.deferred - s.freed;
}
static lane_heap* heap_named(const char* name) {
  const struct lane_heap_options options = {.name = name};
  lane_heap* heap = lane_heap_create(&options);
  REQUIRE(heap != NULL);
  return heap;
}
static atomic_int dtors;
static void count_dtor(void* object, size_t size, void* argument) {
  (void)object, (void)size, (void)argument;
  atomic_fetch_add(&dtors, 1);
}
static lane_pool* pool_named(const char* name, bool with_dtor) {
  const struct lane_pool_options options = {
      .name = name, .object_size = 100, .dtor = with_dtor ? count_dtor : NULL};
  lane_pool* pool = lane_pool_create(&options);
  REQUIRE(pool != NULL);
  return pool;
}
static void* of_heap(lane_heap* heap, size_t size) { return lane_heap_alloc(heap, size); }
static void* of_pool(lane_pool* pool) { return lane_pool_alloc(pool); }
static uint64_t live_in_heap(lane_heap* heap) {
  struct lane_heap_statistics s;
  lane_heap_get_statistics(heap, &s);
  return s.live_objects;
}
static uint64_t live_in_pool(lane_pool* pool) {
  struct lane_pool_statistics s;
  lane_pool_get_statistics(pool, &s);
  return s.live;
}

CASE(free_objects_of_heaps_and_pools) {
  enum { kMany = 3000 };
  CHECK(lane_reader_register(&reader, "main") == 0);
  lane_reader_enter(&reader);
  lane_heap* heap = heap_named("heap");
  lane_pool *plain = pool_named("plain", false), *pool = pool_named("with a dtor", true);
  errno = 77;
  for (size_t i = 0; i < kMany / 3; i++) {
    CHECK(lane_safepoint_heap_free(heap, of_heap(heap, i)) == 0);
    CHECK(lane_safepoint_heap_free_sized(heap, of_heap(heap, i * 50), i * 50) == 0);
    CHECK(lane_safepoint_pool_free(plain, of_pool(plain)) == 0);
    CHECK(lane_safepoint_pool_free(pool, of_pool(pool)) == 0);
    if (i != 900) continue;  // calls have a share of 4096
    CHECK(lane_safepoint_poll() == 0 && atomic_load(&dtors) == 0);
    CHECK(live_in_heap(heap) == 2 * 901 && live_in_pool(plain) == 901 && live_in_pool(pool) == 901);
    lane_reader_exit(&reader);
  }
  CHECK(lane_safepoint_heap_free(heap, NULL) == 0);
  CHECK(lane_safepoint_heap_free_sized(heap, NULL, 10) == 0);
  CHECK(lane_safepoint_pool_free(pool, NULL) == 0);
  CHECK(lane_safepoint_wait() == 0 && waiting() == 0);
  CHECK(errno == 77);
  CHECK(figures().deferred == 4 * (kMany / 3));
  CHECK(live_in_heap(heap) == 0 && live_in_pool(plain) == 0 && live_in_pool(pool) == 0);
  CHECK(atomic_load(&dtors) == kMany / 3);
  CHECK(lane_heap_destroy(heap) == 0);
  CHECK(lane_pool_destroy(plain) == 0 && lane_pool_destroy(pool) == 0);
}

static lane_pool* exiting_pool;
static void* defer_in_pool_and_exit(void* nothing) {
  for (int i = 0; i < 50; i++)
    CHECK(lane_safepoint_pool_free(exiting_pool, of_pool(exiting_pool)) == 0);
  return nothing;
}
// The child of a fork frees what another thread had deferred, unless that thread was in the middle
// of it.
CASE(free_objects_of_pools_in_fork_children) {
  CHECK(lane_reader_register(&reader, "main") == 0);
  exiting_pool = pool_named("pool", true);
  run_thread(defer_in_pool_and_exit, NULL);
  pid_t pid = fork();
  if (pid == 0) {
    alarm(60);
    if (lane_safepoint_wait() != 0 || atomic_load(&dtors) != 50) _exit(10);
    if (live_in_pool(exiting_pool) != 0) _exit(11);
    _exit(lane_pool_destroy(exiting_pool) == 0 ? 0 : 12);
  }
  const int status = status_of(pid);
  CHECK_MSG(status == 0, "status 0x%x", status);
  CHECK(lane_safepoint_wait() == 0 && atomic_load(&dtors) == 50);
}

CHILD(defer_of_front_badly) {
  lane_heap *heap = heap_named("mine"), *other = heap_named("its owner");
  lane_pool *pool = pool_named("mine", false), *other_pool = pool_named("its owner", false);
  void* wrong = of_heap(heap, 48);
  if (strcmp(test_argument, "heap") == 0) lane_safepoint_heap_free(heap, of_heap(other, 100));
  if (strcmp(test_argument, "size") == 0) lane_safepoint_heap_free_sized(heap, wrong, 100);
  if (strcmp(test_argument, "pool") == 0) lane_safepoint_pool_free(pool, of_pool(other_pool));
  if (strcmp(test_argument, "malloc") == 0) lane_safepoint_pool_free(pool, hide(API(malloc)(100)));
  if (strcmp(test_argument, "dead") == 0) {
    void* object = of_pool(pool);
    lane_pool_destroy(pool);
    lane_safepoint_pool_free(pool, object);
  }
  lane_safepoint();
}
CASE(objects_of_others_are_told_with_both_names) {
  static const char* const options[] = {NULL, "checked=1"};
  for (int i = 0; i < 2; i++) {
    const bool now = i == 1;
    memset(&child, 0, offsetof(struct Child, out));
    child.options = options[i];
    child.argument = "heap";
    run_child("defer_of_front_badly");
    CHECK_CHILD(child_aborted() &&
                lines_with(now ? "lane_safepoint_heap_free(" : "lane_heap_free(", "\"mine\"") ==
                    1 &&
                lines_with("\"its owner\"", "") == 1);
    child.argument = "pool";
    run_child("defer_of_front_badly");
    CHECK_CHILD(child_aborted() &&
                lines_with(now ? "lane_safepoint_pool_free(" : "lane_pool_free(", "\"mine\"") ==
                    1 &&
                lines_with("\"its owner\"", "") == 1);
    child.argument = "malloc";
    run_child("defer_of_front_badly");
    CHECK_CHILD(child_aborted() &&
                lines_with(now ? "lane_safepoint_pool_free(" : "lane_pool_free(", "\"mine\"") == 1);
    child.argument = "size";
    run_child("defer_of_front_badly");
    CHECK_CHILD(child_aborted() && lines_with("lane_safepoint_heap_free_sized(", "100") == 1 &&
                lines_with("48", "") == 1);
    child.argument = "dead";
    run_child("defer_of_front_badly");
    CHECK_CHILD(child_aborted() && lines_with("lane_safepoint_pool_free(", "") == 1);
  }
}
