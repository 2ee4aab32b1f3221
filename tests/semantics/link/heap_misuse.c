// Bad heaps, objects and sizes given to the functions of lanemalloc/heap.h: what the library says
// and does, by bad_pointer= and checked=. What is no heap, or no more: tests/borders/handles.c.
// Linked with liblanemalloc.so, .a and _prefixed.a.
#include <lanemalloc/heap.h>
#include <lanemalloc/lanemalloc.h>
#include <lanemalloc/pool.h>

#include "../acts.h"
#include "../run_threads.h"

#ifdef PREFIXED
#define MALLOC lane_malloc
#define FREE lane_free
#define REALLOC lane_realloc
#define USABLE_SIZE lane_malloc_usable_size
#else
#define MALLOC malloc
#define FREE free
#define REALLOC realloc
#define USABLE_SIZE malloc_usable_size
#endif

// --- The child.

static lane_heap *left, *right;
static lane_pool* pond;

// Frees the object, or asks for its size, by the function that function_name names. The call must
// change nothing.
static void apply(void* object, size_t size) {
  errno = 4711;
  say("pointer %p\n", object);
  object = hide(object);
  if (is_function("lane_heap_free")) lane_heap_free(left, object);
  if (is_function("lane_heap_free_sized")) lane_heap_free_sized(left, object, size);
  if (is_function("lane_pool_free")) lane_pool_free(pond, object);
  if (is_function("free")) FREE(object);
  CHECK(errno == 4711);
  if (is_function("lane_heap_realloc")) CHECK(lane_heap_realloc(left, object, 5000) == NULL);
  if (is_function("lane_heap_usable_size")) CHECK(lane_heap_usable_size(left, object) == 0);
  if (is_function("realloc")) CHECK(REALLOC(object, 5000) == NULL);
  if (is_function("malloc_usable_size")) CHECK(USABLE_SIZE(object) == 0);
}

static void* take(lane_heap* heap, size_t size) {
  void* object = lane_heap_alloc(heap, size);
  REQUIRE(object);
  memset(object, 7, size);
  return object;
}
static void act_other_heaps(void) { apply(take(right, 100), 100); }
static void act_other_heaps_large(void) { apply(take(right, 700000), 700000); }
static void act_own(void) { apply(take(left, 100), 100); }
static void act_own_large(void) { apply(take(left, 700000), 700000); }
static void act_mallocs(void) { apply(MALLOC(100), 100); }
static void act_mallocs_large(void) { apply(MALLOC(700000), 700000); }
static void act_pools(void) { apply(lane_pool_alloc(pond), 100); }
static void act_stack(void) {
  char bytes[256];
  apply((char*)hide(bytes) + 64, 100);
}
static void act_interior(void) { apply((char*)take(left, 100) + 16, 84); }
static void act_interior_large(void) { apply((char*)take(left, 700000) + 65536, 600000); }
static void act_too_large(void) { apply(take(left, 100), 113); }
static void act_much_too_large(void) { apply(take(left, 100), 700000); }
static void act_too_large_for_large(void) { apply(take(left, 700000), 720897); }
static void act_wrong_by_one(void) { apply(take(left, 100), 99); }
static void act_wrong_for_large(void) { apply(take(left, 700000), 700001); }
static void act_overrun(void) {
  char* object = (char*)take(left, 100);
  ((char*)hide(object))[100] = 1;
  apply(object, 100);
}
static void act_overrun_large(void) {
  char* object = (char*)take(left, 700000);
  ((char*)hide(object))[700000] = 1;
  apply(object, 700000);
}
static void act_twice(void) {
  void* object = take(left, 100);
  lane_heap_free(left, object);
  apply(object, 100);
}
static void act_twice_large(void) {
  void* object = take(left, 700000);
  lane_heap_free(left, object);
  apply(object, 700000);
}
static void* free_in_thread(void* object) {
  lane_heap_free(left, object);
  return NULL;
}
static void act_twice_other_thread_first(void) {
  void* object = take(left, 100);
  run_thread(free_in_thread, object);
  apply(object, 100);
}
// The object is large: the run that it lay in belongs to no heap now. In the place of a small one,
// other objects may lie soon.
static void act_outlived(void) {
  void* object = take(right, 700000);
  lane_heap_destroy(right);
  apply(object, 700000);
}

static const struct Act kActs[] = {{"other_heaps", act_other_heaps},
                                   {"other_heaps_large", act_other_heaps_large},
                                   {"own", act_own},
                                   {"own_large", act_own_large},
                                   {"mallocs", act_mallocs},
                                   {"mallocs_large", act_mallocs_large},
                                   {"pools", act_pools},
                                   {"stack", act_stack},
                                   {"interior", act_interior},
                                   {"interior_large", act_interior_large},
                                   {"too_large", act_too_large},
                                   {"much_too_large", act_much_too_large},
                                   {"too_large_for_large", act_too_large_for_large},
                                   {"wrong_by_one", act_wrong_by_one},
                                   {"wrong_for_large", act_wrong_for_large},
                                   {"overrun", act_overrun},
                                   {"overrun_large", act_overrun_large},
                                   {"twice", act_twice},
                                   {"twice_large", act_twice_large},
                                   {"twice_other_thread_first", act_twice_other_thread_first},
                                   {"outlived", act_outlived}};

static void* take_left(size_t size) { return lane_heap_alloc(left, size); }
static void give_left(void* object, size_t size) {
  if (size % 2) lane_heap_free(left, object);
  if (size % 2 == 0) lane_heap_free_sized(left, object, size);
}
CHILD(bad_act) {
  const struct lane_heap_options left_options = {.name = "left"}, right_options = {.name = "right"};
  const struct lane_pool_options pond_options = {.name = "pond", .object_size = 100};
  left = lane_heap_create(&left_options);
  right = lane_heap_create(&right_options);
  pond = lane_pool_create(&pond_options);
  REQUIRE(left && right && pond);
  run_amid(kActs, sizeof kActs / sizeof kActs[0], take_left, give_left);
}

// --- The parent.

static const char* const kHeapFunctions[] = {"lane_heap_free", "lane_heap_free_sized",
                                             "lane_heap_realloc", "lane_heap_usable_size"};
static void check_heap_functions(const char* act, const char* why) {
  for (int i = 0; i < 4; i++) check_both(act, kHeapFunctions[i], why);
}
// Only checked=1 can see the fault.
static void check_checked(const char* act, int functions, const char* why) {
  for (int i = 0; i < functions; i++) check_act(act, kHeapFunctions[i], "checked=1", why);
}

CASE(objects_of_others_are_told) {
  const char* const of_heap = "): an object of heap \"right\", not of heap \"left\"";
  const char* const of_malloc = "): an object of malloc, not of heap \"left\"";
  check_heap_functions("other_heaps", of_heap);
  check_heap_functions("other_heaps_large", of_heap);
  check_heap_functions("mallocs", of_malloc);
  check_heap_functions("mallocs_large", of_malloc);
  check_heap_functions("pools", "): an object of pool \"pond\", not of heap \"left\"");
}
CASE(pools_and_malloc_tell_objects_of_a_heap) {
  const char* const functions[] = {"free", "realloc", "malloc_usable_size"};
  const char* const of_heap = "): an object of heap \"left\", not of malloc";
  for (int i = 0; i < 3; i++) {
    check_both("own", functions[i], of_heap);
    check_both("own_large", functions[i], of_heap);
  }
  check_both("own", "lane_pool_free", "): an object of heap \"left\", not of pool \"pond\"");
}
CASE(pointers_of_nobody_are_told) {
  check_heap_functions("stack", "): not a pointer of this allocator, not of heap \"left\"");
  check_heap_functions("outlived", "): freed already, given to heap \"left\"");
  check_heap_functions("twice_large", "): freed already, given to heap \"left\"");
}
CASE(pointers_into_objects_are_told) {
  const char* const why = "): not the start of an object, given to heap \"left\"";
  check_checked("interior", 4, why);
  check_heap_functions("interior_large", why);
}
CASE(impossible_sizes_are_told_with_both) {
  static const char* const told[][3] = {
      {"too_large", "", ", 113): the object of heap \"left\" has 112 bytes"},
      {"much_too_large", "", ", 700000): the object of heap \"left\" has 112 bytes"},
      {"too_large_for_large", "", ", 720897): the object of heap \"left\" has 720896 bytes"},
      {"wrong_by_one", "checked=1", ", 99): the object of heap \"left\" has 100 bytes"},
      {"too_large", "checked=1", ", 113): the object of heap \"left\" has 100 bytes"},
      {"wrong_for_large", "checked=1", ", 700001): the object of heap \"left\" has 700000 bytes"}};
  for (size_t i = 0; i < sizeof told / sizeof told[0]; i++)
    check_act(told[i][0], "lane_heap_free_sized", told[i][1], told[i][2]);
}
CASE(checked_overruns_are_told) {
  const char* const why = "): bytes behind the object were written, given to heap \"left\"";
  check_checked("overrun", 2, why);
  check_checked("overrun_large", 2, why);
}
CASE(checked_second_frees_are_told) {
  check_checked("twice", 4, "): freed already, given to heap \"left\"");
  check_checked("twice_other_thread_first", 4, "): freed already, given to heap \"left\"");
}
