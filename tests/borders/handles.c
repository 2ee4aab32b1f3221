// Every function that takes a heap or a pool gets values that are no handles. Each such call prints
// one line on standard error, returns as its header says, and changes nothing. The calls come
// before the thread has a lane, and after hits, which are compiled in here.
// Each child prints what the library should print, and the parent compares the two.
// Linked with the library.
// Also linked with the static library.
#include <lanemalloc/heap.h>
#include <lanemalloc/lanemalloc.h>
#include <lanemalloc/pool.h>
#include <lanemalloc/safepoint.h>
#include <sys/mman.h>

#include "check.h"
#include "child.h"
#include "run_threads.h"

enum { kSize = 48, kObjects = 40 };

// The heap and the pool of the child, and the objects that its frees get.
static lane_heap* heap;
static lane_pool* pool;
static void* heap_object;
static void* pool_object;

// Each function is called with a value that is not a handle for it. errno is 4711 before the call.
static void pool_alloc(void* bad) {
  CHECK(lane_pool_alloc((lane_pool*)bad) == NULL && errno == ENOMEM);
}
static void pool_alloc_out_of_line(void* bad) {
  CHECK(lane_pool_alloc_out_of_line((lane_pool*)bad) == NULL && errno == ENOMEM);
}
static void pool_alloc_with(void* bad) {
  CHECK(lane_pool_alloc_with((lane_pool*)bad, 0) == NULL && errno == ENOMEM);
}
static void pool_alloc_batch(void* bad) {
  void* objects[3];
  CHECK(lane_pool_alloc_batch((lane_pool*)bad, objects, 3, 0) == 0 && errno == ENOMEM);
}
static void pool_free(void* bad) {
  lane_pool_free((lane_pool*)bad, pool_object);
  CHECK(errno == 4711);
}
static void pool_free_out_of_line(void* bad) {
  lane_pool_free_out_of_line((lane_pool*)bad, pool_object);
  CHECK(errno == 4711);
}
static void pool_free_batch(void* bad) {
  void* objects[2] = {pool_object, NULL};
  lane_pool_free_batch((lane_pool*)bad, objects, 2);
  CHECK(errno == 4711);
}
static void pool_free_deferred(void* bad) {
  CHECK(lane_safepoint_pool_free((lane_pool*)bad, pool_object) == 0);
}
static void pool_prealloc(void* bad) { CHECK(lane_pool_prealloc((lane_pool*)bad, 5) == ENOMEM); }
static void pool_set_limit(void* bad) { CHECK(lane_pool_set_limit((lane_pool*)bad, 5) == EINVAL); }
static void pool_reclaim(void* bad) {
  CHECK(lane_pool_reclaim((lane_pool*)bad, LANE_DRAIN_ALL) == 0);
}
static void pool_statistics(void* bad) {
  struct lane_pool_statistics s = {.live = 1, .object_size = 1};
  lane_pool_get_statistics((lane_pool*)bad, &s);
  CHECK(s.live == 0 && s.object_size == 0);
}
static void pool_destroy(void* bad) { CHECK(lane_pool_destroy((lane_pool*)bad) == 0); }

static void heap_alloc(void* bad) {
  CHECK(lane_heap_alloc((lane_heap*)bad, kSize) == NULL && errno == ENOMEM);
}
static void heap_alloc_nothing(void* bad) {
  CHECK(lane_heap_alloc((lane_heap*)bad, 0) == NULL && errno == ENOMEM);
}
static void heap_alloc_large(void* bad) {
  CHECK(lane_heap_alloc((lane_heap*)bad, 700000) == NULL && errno == ENOMEM);
}
static void heap_alloc_out_of_line(void* bad) {
  CHECK(lane_heap_alloc_out_of_line((lane_heap*)bad, kSize) == NULL && errno == ENOMEM);
}
static void heap_alloc_zeroed(void* bad) {
  CHECK(lane_heap_alloc_zeroed((lane_heap*)bad, 3, kSize) == NULL && errno == ENOMEM);
}
static void heap_alloc_aligned(void* bad) {
  CHECK(lane_heap_alloc_aligned((lane_heap*)bad, 64, kSize) == NULL && errno == ENOMEM);
}
static void heap_realloc(void* bad) {
  CHECK(lane_heap_realloc((lane_heap*)bad, heap_object, 5000) == NULL && errno == ENOMEM);
}
static void heap_realloc_to_nothing(void* bad) {
  CHECK(lane_heap_realloc((lane_heap*)bad, heap_object, 0) == NULL);
}
static void heap_free(void* bad) {
  lane_heap_free((lane_heap*)bad, heap_object);
  CHECK(errno == 4711);
}
static void heap_free_sized(void* bad) {
  lane_heap_free_sized((lane_heap*)bad, heap_object, kSize);
  CHECK(errno == 4711);
}
static void heap_free_sized_out_of_line(void* bad) {
  lane_heap_free_sized_out_of_line((lane_heap*)bad, heap_object, kSize);
  CHECK(errno == 4711);
}
static void heap_free_deferred(void* bad) {
  CHECK(lane_safepoint_heap_free((lane_heap*)bad, heap_object) == 0);
}
static void heap_free_sized_deferred(void* bad) {
  CHECK(lane_safepoint_heap_free_sized((lane_heap*)bad, heap_object, kSize) == 0);
}
static void heap_usable_size(void* bad) {
  CHECK(lane_heap_usable_size((lane_heap*)bad, heap_object) == 0);
}
static void heap_set_limits(void* bad) {
  CHECK(lane_heap_set_limits((lane_heap*)bad, 0, 1) == EINVAL);
}
static int visited;
static int visit(void* object, size_t size, void* argument) {
  (void)object, (void)size, (void)argument;
  return ++visited;
}
static void heap_walk(void* bad) {
  CHECK(lane_heap_walk((lane_heap*)bad, visit, NULL) == 0 && visited == 0);
}
static void heap_statistics(void* bad) {
  struct lane_heap_statistics s = {.live_objects = 1};
  lane_heap_get_statistics((lane_heap*)bad, &s);
  CHECK(s.live_objects == 0 && s.used_bytes == 0);
}
static void heap_trim(void* bad) { CHECK(lane_heap_trim((lane_heap*)bad) == 0); }
static void heap_destroy(void* bad) { CHECK(lane_heap_destroy((lane_heap*)bad) == 0); }
// Null means no parent, and is no mistake.
static void heap_parent(void* bad) {
  const struct lane_heap_options options = {.parent = (lane_heap*)bad};
  CHECK(lane_heap_create(&options) == NULL && errno == EINVAL);
}

static const struct {
  const char* name;  // as the library prints it
  void (*run)(void* bad);
} kFunctions[] = {
    {"lane_pool_alloc", pool_alloc},
    {"lane_pool_alloc", pool_alloc_out_of_line},
    {"lane_pool_alloc_with", pool_alloc_with},
    {"lane_pool_alloc_batch", pool_alloc_batch},
    {"lane_pool_free", pool_free},
    {"lane_pool_free", pool_free_out_of_line},
    {"lane_pool_free_batch", pool_free_batch},
    {"lane_safepoint_pool_free", pool_free_deferred},
    {"lane_pool_prealloc", pool_prealloc},
    {"lane_pool_set_limit", pool_set_limit},
    {"lane_pool_reclaim", pool_reclaim},
    {"lane_pool_get_statistics", pool_statistics},
    {"lane_pool_destroy", pool_destroy},
    {"lane_heap_alloc", heap_alloc},
    {"lane_heap_alloc", heap_alloc_nothing},
    {"lane_heap_alloc", heap_alloc_large},
    {"lane_heap_alloc", heap_alloc_out_of_line},
    {"lane_heap_alloc_zeroed", heap_alloc_zeroed},
    {"lane_heap_alloc_aligned", heap_alloc_aligned},
    {"lane_heap_realloc", heap_realloc},
    {"lane_heap_realloc", heap_realloc_to_nothing},
    {"lane_heap_free", heap_free},
    {"lane_heap_free_sized", heap_free_sized},
    {"lane_heap_free_sized", heap_free_sized_out_of_line},
    {"lane_safepoint_heap_free", heap_free_deferred},
    {"lane_safepoint_heap_free_sized", heap_free_sized_deferred},
    {"lane_heap_usable_size", heap_usable_size},
    {"lane_heap_set_limits", heap_set_limits},
    {"lane_heap_walk", heap_walk},
    {"lane_heap_get_statistics", heap_statistics},
    {"lane_heap_trim", heap_trim},
    {"lane_heap_destroy", heap_destroy},
    {"lane_heap_create: parent", heap_parent},
};
enum { kFunctionCount = sizeof kFunctions / sizeof kFunctions[0] };

static int is_of_pools(int f) { return strstr(kFunctions[f].name, "_pool_") != NULL; }

static void call(int f, void* bad) {
  if (bad == NULL && kFunctions[f].run == heap_parent) return;
  char pointer[32] = "0x0";
  if (bad != NULL) snprintf(pointer, sizeof pointer, "%p", bad);
  say("lanemalloc: %s(%s): not a %s, or destroyed already\n", kFunctions[f].name, pointer,
      is_of_pools(f) ? "pool" : "heap");
  errno = 4711;
  kFunctions[f].run(hide(bad));
}

// --- Values that are no handles.

enum { kMostBad = 96 };
static void* bad_values[kMostBad];
static int bad_count;
static void* not_a_pool[2];
static void* not_a_heap[2];
enum { kMoreBad = 2 };

static void add(void* bad) { bad_values[bad_count++] = bad; }
// Adds the values that differ from base, which is a handle, in one bit.
static void add_near(void* base) {
  for (uintptr_t bit = 1; bit != 0; bit <<= 3) add((void*)((uintptr_t)base ^ bit));
}

static lane_pool* new_pool(const char* name) {
  const struct lane_pool_options options = {.name = name, .object_size = kSize};
  return lane_pool_create(&options);
}
static lane_heap* new_heap(const char* name) {
  const struct lane_heap_options options = {.name = name};
  return lane_heap_create(&options);
}
// Makes hits. If the thread has a lane, the lane then has bins and labels of the pool and the heap.
static void use(void) {
  void* objects[kObjects];
  for (int i = 0; i < kObjects; i++) objects[i] = lane_pool_alloc(pool);
  for (int i = 0; i < kObjects; i++) lane_pool_free(pool, objects[i]);
  for (int i = 0; i < kObjects; i++) objects[i] = lane_heap_alloc(heap, kSize);
  for (int i = 0; i < kObjects; i++) lane_heap_free_sized(heap, objects[i], kSize);
}

static void make_bad_values(void) {
  static char data[64];
  char on_stack[64];
  static const char kText[64] = "text";
  add(NULL);
  add(hide(on_stack));
  add(data);
  add(data + 1);
  add((void*)kText);
  add((void*)(uintptr_t)make_bad_values);
  add(malloc(100));
  add(malloc(700000));
  add(pool_object);
  add((char*)pool_object + 1);
  add(heap_object);
  char* page = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  add(page);
  munmap(page + 4096, 4096);
  add(page + 4096);  // one past
  add((void*)-1);
  add((void*)INTPTR_MIN);
  for (uintptr_t small = 1; small < 1u << 20; small *= 32) add((void*)small);
  add_near(pool);
  add_near(heap);

  // Handles of the other sort; and handles of destroyed pools and heaps, with new ones at their
  // places and without.
  lane_pool *gone_pool = new_pool("gone"), *next_pool;
  lane_heap *gone_heap = new_heap("gone"), *next_heap;
  lane_pool_free(gone_pool, lane_pool_alloc(gone_pool));
  lane_heap_free_sized(gone_heap, lane_heap_alloc(gone_heap, kSize), kSize);
  CHECK(lane_pool_destroy(gone_pool) == 0 && lane_heap_destroy(gone_heap) == 0);
  add(gone_pool);
  add(gone_heap);
  next_pool = new_pool("next");
  next_heap = new_heap("next");
  REQUIRE(next_pool != NULL && next_heap != NULL);
  not_a_pool[0] = heap, not_a_pool[1] = next_heap;
  not_a_heap[0] = pool, not_a_heap[1] = next_pool;
  lane_pool* last_pool = new_pool("last");
  lane_heap* last_heap = new_heap("last");
  CHECK(lane_pool_destroy(last_pool) == 0 && lane_heap_destroy(last_heap) == 0);
  add(last_pool);
  add(last_heap);
  use();
  for (int i = 0; i < 3; i++) {
    lane_pool_free(next_pool, lane_pool_alloc(next_pool));
    lane_heap_free_sized(next_heap, lane_heap_alloc(next_heap, kSize), kSize);
  }
  REQUIRE(bad_count <= kMostBad);
}

static void call_with_all(int f) {
  for (int i = 0; i < bad_count; i++) call(f, bad_values[i]);
  for (int i = 0; i < kMoreBad; i++) call(f, is_of_pools(f) ? not_a_pool[i] : not_a_heap[i]);
}

// --- The children.

static struct lane_pool_statistics pool_before;
static struct lane_heap_statistics heap_before;

static void start(void) {
  heap = new_heap("heap");
  pool = new_pool("pool");
  REQUIRE(heap != NULL && pool != NULL);
  heap_object = lane_heap_alloc(heap, kSize);
  pool_object = lane_pool_alloc(pool);
  REQUIRE(heap_object != NULL && pool_object != NULL);
  memset(heap_object, 0x5A, kSize);
  memset(pool_object, 0x5A, kSize);
  use();
  make_bad_values();
  lane_pool_get_statistics(pool, &pool_before);
  lane_heap_get_statistics(heap, &heap_before);
}
static void check_nothing_has_changed(void) {
  struct lane_pool_statistics p;
  struct lane_heap_statistics h;
  lane_safepoint_poll();
  lane_pool_get_statistics(pool, &p);
  lane_heap_get_statistics(heap, &h);
  CHECK(memcmp(&p, &pool_before, sizeof p) == 0 && memcmp(&h, &heap_before, sizeof h) == 0);
  for (int i = 0; i < kSize; i++)
    CHECK(((char*)heap_object)[i] == 0x5A && ((char*)pool_object)[i] == 0x5A);
  use();
  lane_heap_free(heap, heap_object);
  lane_pool_free(pool, pool_object);
  CHECK(lane_heap_destroy(heap) == 0 && lane_pool_destroy(pool) == 0);
}

CHILD(all_after_hits) {
  start();
  for (int f = 0; f < kFunctionCount; f++) call_with_all(f);
  check_nothing_has_changed();
}

static void* call_first(void* f) {
  call((int)(intptr_t)f, bad_values[0]);
  call_with_all((int)(intptr_t)f);
  return NULL;
}
// A new thread, which has done nothing before, calls each function.
CHILD(all_without_a_lane) {
  start();
  for (int f = 0; f < kFunctionCount; f++) {
    run_thread(call_first, (void*)(intptr_t)f);
  }
  check_nothing_has_changed();
}

// The argument is "FUNCTION" or "FUNCTION late". Calls the FUNCTION-th function with one of the bad
// values, another one for each function; late: after hits.
static void* call_one(void* unused) {
  (void)unused;
  const int f = atoi(test_argument), i = f % (bad_count + kMoreBad);
  void* own = is_of_pools(f) ? not_a_pool[i % kMoreBad] : not_a_heap[i % kMoreBad];
  if (strstr(test_argument, "late") != NULL) use();
  call(f, i < bad_count && (bad_values[i] != NULL || kFunctions[f].run != heap_parent)
              ? bad_values[i]
              : own);
  return NULL;
}
CHILD(one) {
  start();
  run_thread(call_one, NULL);
  say("went on\n");
}

// Every place that a value can lead a hit to. No value here is a handle. Prints nothing.
CHILD(all_places) {
  start();
  for (uintptr_t value = 0; value < 65536; value++) {
    void* bad = hide((void*)value);
    CHECK(lane_pool_alloc((lane_pool*)bad) == NULL &&
          lane_heap_alloc((lane_heap*)bad, kSize) == NULL);
    lane_pool_free((lane_pool*)bad, pool_object);
    lane_heap_free_sized((lane_heap*)bad, heap_object, kSize);
    bad = hide((void*)((uintptr_t)pool_object << 16 | value));
    CHECK(lane_pool_alloc((lane_pool*)bad) == NULL &&
          lane_heap_alloc((lane_heap*)bad, kSize) == NULL);
    // Like the pool's handle, but with another place.
    const uintptr_t like = ((uintptr_t)pool & ~(uintptr_t)0xFFFF) | value;
    if (like == (uintptr_t)pool) continue;
    bad = hide((void*)like);
    CHECK(lane_pool_alloc((lane_pool*)bad) == NULL &&
          lane_heap_alloc((lane_heap*)bad, kSize) == NULL);
    lane_pool_free((lane_pool*)bad, pool_object);
  }
  check_nothing_has_changed();
}

// --- The parent.

static const char* with(const char* option) {
  static char all[200];
  const char* lanes = getenv("LANEMALLOC_OPTIONS");
  snprintf(all, sizeof all, "%s%s%s", option, lanes != NULL ? "," : "", lanes != NULL ? lanes : "");
  return all;
}
static void run(const char* name, const char* option, const char* argument) {
  memset(&child, 0, offsetof(struct Child, out));
  child.options = with(option);
  child.argument = argument;
  run_child(name);
}

static void check_all(const char* name) {
  run(name, "bad_pointer=report", NULL);
  CHECK_CHILD(child_succeeded() && line_count() > 1000 && strcmp(child.out, child.err) == 0);
  run(name, "bad_pointer=ignore", NULL);
  CHECK_CHILD(child_succeeded() && child.err[0] == 0);
}
CASE(lanemalloc_no_handle_is_told_after_hits) { check_all("all_after_hits"); }
CASE(lanemalloc_no_handle_is_told_before_the_thread_has_a_lane) { check_all("all_without_a_lane"); }

CASE(lanemalloc_no_handle_ends_in_a_message_and_abort) {
  for (int f = 0; f < kFunctionCount; f++)
    for (int late = 0; late < 2; late++) {
      char argument[32];
      snprintf(argument, sizeof argument, "%d%s", f, late ? " late" : "");
      run("one", "bad_pointer=abort", argument);
      CHECK_CHILD(child_aborted() && line_count() == 1 && strcmp(child.out, child.err) == 0);
    }
}

CASE(lanemalloc_no_place_has_a_handle_by_chance) {
  run("all_places", "bad_pointer=ignore", NULL);
  CHECK_CHILD(child_succeeded() && child.err[0] == 0);
}

// A place is used again and again. The handle of its first user never passes for that of a later
// one.
CASE(lanemalloc_stale_handles_are_told_apart_from_their_heirs) {
  run("heirs", "bad_pointer=ignore", NULL);
  CHECK_CHILD(child_succeeded() && child.err[0] == 0);
}
CHILD(many_heirs) {
  size_t before = 0;
  for (int i = 0; i < 20000; i++) {
    if (i == 1000) before = status_bytes("VmRSS:");
    lane_pool* pool = new_pool("one of many");
    lane_heap* heap = new_heap("one of many");
    REQUIRE(lane_pool_destroy(pool) == 0 && lane_heap_destroy(heap) == 0);
  }
  const size_t after = status_bytes("VmRSS:");
  CHECK_MSG(after < before + ((size_t)2 << 20), "%zu KiB, then %zu", before >> 10, after >> 10);
}
// The places of destroyed pools and heaps are used again, with every option.
CASE(lanemalloc_pools_and_heaps_that_come_and_go_take_no_memory) {
  run("many_heirs", "bad_pointer=report", NULL);
  CHECK_CHILD(child_succeeded());
}
CHILD(heirs) {
  lane_pool* first_pool = new_pool("first");
  lane_heap* first_heap = new_heap("first");
  lane_pool_destroy(first_pool);
  lane_heap_destroy(first_heap);
  for (int i = 0; i < 2000; i++) {
    lane_pool* heir = new_pool("heir");
    lane_heap* other = new_heap("heir");
    void *object = lane_pool_alloc(heir), *of_heap = lane_heap_alloc(other, kSize);
    CHECK(object != NULL && of_heap != NULL);
    lane_pool_free(heir, object);
    lane_heap_free_sized(other, of_heap, kSize);
    CHECK(lane_pool_alloc((lane_pool*)hide(first_pool)) == NULL);
    CHECK(lane_heap_alloc((lane_heap*)hide(first_heap), kSize) == NULL);
    CHECK(lane_pool_destroy(heir) == 0 && lane_heap_destroy(other) == 0);
  }
}
