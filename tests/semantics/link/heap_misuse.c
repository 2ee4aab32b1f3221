// Bad heaps, objects and sizes given to the functions of lanemalloc/heap.h: what the library says
// and does, by bad_pointer= and checked=. Each bad act runs in a child, which prints the pointer
// that it uses, and "went on" if it survives. Linked with liblanemalloc.so, .a and _prefixed.a.
#include <lanemalloc/heap.h>
#include <lanemalloc/lanemalloc.h>
#include <lanemalloc/pool.h>
#include <pthread.h>

#include "../child.h"

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

// ---- The child: ACT FUNCTION, as one argument.

static lane_heap *left, *right;
static lane_pool* pond;
static const char* function_name;

static int is_function(const char* name) { return strcmp(function_name, name) == 0; }

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
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, free_in_thread, object) == 0);
  pthread_join(thread, NULL);
  apply(object, 100);
}
// The object is large: the run that it lay in belongs to no heap now. In the place of a small one,
// other objects may lie soon.
static void act_outlived(void) {
  void* object = take(right, 700000);
  lane_heap_destroy(right);
  apply(object, 700000);
}

static int visited;
static int visit(void* object, size_t size, void* argument) {
  (void)object, (void)size, (void)argument;
  return visited = 1;
}
// A destroyed heap is given to each function.
static void act_destroyed(void) {
  lane_heap* const dead = (lane_heap*)hide(right);
  void* object = take(left, 100);
  take(dead, 100);
  CHECK(lane_heap_destroy(dead) == 1);
  say("pointer %p\n", (void*)dead);
  errno = 0;
  if (is_function("lane_heap_destroy")) CHECK(lane_heap_destroy(dead) == 0);
  if (is_function("lane_heap_alloc")) CHECK(lane_heap_alloc(dead, 100) == NULL && errno == ENOMEM);
  if (is_function("lane_heap_alloc_zeroed"))
    CHECK(lane_heap_alloc_zeroed(dead, 1, 100) == NULL && errno == ENOMEM);
  if (is_function("lane_heap_alloc_aligned"))
    CHECK(lane_heap_alloc_aligned(dead, 64, 100) == NULL && errno == ENOMEM);
  if (is_function("lane_heap_realloc"))
    CHECK(lane_heap_realloc(dead, object, 100) == NULL && errno == ENOMEM);
  if (is_function("lane_heap_usable_size")) CHECK(lane_heap_usable_size(dead, object) == 0);
  if (is_function("lane_heap_set_limits")) CHECK(lane_heap_set_limits(dead, 0, 1) == EINVAL);
  if (is_function("lane_heap_trim")) CHECK(lane_heap_trim(dead) == 0);
  if (is_function("lane_heap_walk")) CHECK(lane_heap_walk(dead, visit, NULL) == 0 && !visited);
  if (is_function("lane_heap_create: parent")) {
    struct lane_heap_options options = {.parent = dead};
    CHECK(lane_heap_create(&options) == NULL && errno == EINVAL);
  }
  if (is_function("lane_heap_get_statistics")) {
    struct lane_heap_statistics s = {.live_objects = 1};
    lane_heap_get_statistics(dead, &s);
    CHECK(s.live_objects == 0 && s.used_bytes == 0);
  }
  errno = 4711;
  if (is_function("lane_heap_free")) lane_heap_free(dead, object);
  if (is_function("lane_heap_free_sized")) lane_heap_free_sized(dead, object, 100);
  CHECK(errno == 4711 || strncmp(function_name, "lane_heap_free", 14) != 0);
}
// Another heap and a pool have taken the place that the dead one had in lanes.
static void act_destroyed_and_replaced(void) {
  lane_heap* const dead = (lane_heap*)hide(right);
  struct lane_pool_options options = {.name = "heir", .object_size = 112};
  CHECK(lane_heap_destroy(dead) == 0);
  lane_pool* heir = lane_pool_create(&options);
  void* objects[100];
  for (int i = 0; i < 100; i++) objects[i] = lane_pool_alloc(heir);
  for (int i = 0; i < 100; i++) lane_pool_free(heir, objects[i]);
  say("pointer %p\n", (void*)dead);
  for (size_t size = 0; size <= 1024 && is_function("lane_heap_alloc"); size += 1024)
    CHECK(lane_heap_alloc(dead, size) == NULL);
  if (is_function("lane_heap_free_sized")) lane_heap_free_sized(dead, objects[0], 112);
}

static const struct {
  const char* name;
  void (*run)(void);
} kActs[] = {{"other_heaps", act_other_heaps},
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
             {"outlived", act_outlived},
             {"destroyed", act_destroyed},
             {"destroyed_and_replaced", act_destroyed_and_replaced}};

// After the act the heap must be whole: objects made before keep their contents, and no object is
// given out twice.
CHILD(bad_act) {
  static char name[64];
  static char* before[300];
  static char* after[3000];
  function_name = strchr(test_argument, ' ') + 1;
  snprintf(name, sizeof name, "%.*s", (int)(function_name - 1 - test_argument), test_argument);
  const struct lane_heap_options left_options = {.name = "left"}, right_options = {.name = "right"};
  const struct lane_pool_options pond_options = {.name = "pond", .object_size = 100};
  left = lane_heap_create(&left_options);
  right = lane_heap_create(&right_options);
  pond = lane_pool_create(&pond_options);
  REQUIRE(left && right && pond);
  for (unsigned i = 0; i < 300; i++)
    fill(before[i] = (char*)lane_heap_alloc(left, i * 11), i * 11, i);
  int found = 0;
  for (size_t i = 0; i < sizeof kActs / sizeof kActs[0]; i++)
    if (strcmp(kActs[i].name, name) == 0) kActs[i].run(), found = 1;
  REQUIRE(found);
  for (unsigned i = 0; i < 3000; i++)
    fill(after[i] = (char*)lane_heap_alloc(left, i % 300), i % 300, i);
  for (unsigned i = 0; i < 3000; i++) {
    CHECK_MSG(filled(after[i], i % 300, i), "object %u", i);
    lane_heap_free_sized(left, after[i], i % 300);
  }
  for (unsigned i = 0; i < 300; i++) {
    CHECK_MSG(filled(before[i], i * 11, i), "object %u", i);
    lane_heap_free(left, before[i]);
  }
  if (!test_failures) say("went on\n");
}

// ---- The parent.

static char lanes[100];

static void run_act(const char* act, const char* function, const char* options) {
  static char argument[128], all[300];
  snprintf(argument, sizeof argument, "%s %s", act, function);
  if (lanes[0] == 0 && getenv("LANEMALLOC_OPTIONS"))
    snprintf(lanes, sizeof lanes, "%s,", getenv("LANEMALLOC_OPTIONS"));
  snprintf(all, sizeof all, "%s%s", lanes, options);
  memset(&child, 0, offsetof(struct Child, out));
  child.options = all;
  child.argument = argument;
  run_child("bad_act");
}

static int went_on(void) { return child_succeeded() && strstr(child.out, "went on\n"); }

// True if stderr has `times` lines that name function and pointer and go on with `why`, and nothing
// else.
static int said(const char* function, const char* why, int times) {
  unsigned long pointer = 0;
  char line[400], all[1000] = "";
  const char* named = strstr(child.out, "pointer 0x");
  if (!named || sscanf(named, "pointer 0x%lx", &pointer) != 1) return 0;
  snprintf(line, sizeof line, "lanemalloc: %s(0x%lx%s\n", function, pointer, why);
  for (int i = 0; i < times; i++) strcat(all, line);
  return strcmp(child.err, all) == 0;
}

// One act by one function, under all three values of bad_pointer=.
static void check_act(const char* act, const char* function, const char* checked, const char* why,
                      int times) {
  char options[100];
  snprintf(options, sizeof options, "bad_pointer=abort%s", checked);
  run_act(act, function, options);
  CHECK_CHILD(child_aborted() && said(function, why, 1));
  snprintf(options, sizeof options, "bad_pointer=report%s", checked);
  run_act(act, function, options);
  CHECK_CHILD(went_on() && said(function, why, times));
  snprintf(options, sizeof options, "bad_pointer=ignore%s", checked);
  run_act(act, function, options);
  CHECK_CHILD(went_on() && child.err[0] == 0);
}
static const char* const kHeapFunctions[] = {"lane_heap_free", "lane_heap_free_sized",
                                             "lane_heap_realloc", "lane_heap_usable_size"};
// Runs the act with checked=1, and also without it, unless only checked=1 can see the fault.
static void check_heap_functions(const char* act, int only_checked, const char* why) {
  for (int i = 0; i < 4; i++) {
    if (!only_checked) check_act(act, kHeapFunctions[i], "", why, 1);
    check_act(act, kHeapFunctions[i], ",checked=1", why, 1);
  }
}
static void check_frees(const char* act, const char* checked, const char* why) {
  for (int i = 0; i < 2; i++) check_act(act, kHeapFunctions[i], checked, why, 1);
}

CASE(objects_of_another_heap_are_told) {
  check_heap_functions("other_heaps", 0, "): an object of heap \"right\", not of heap \"left\"");
  check_heap_functions("other_heaps_large", 0,
                       "): an object of heap \"right\", not of heap \"left\"");
}
CASE(objects_of_malloc_are_told) {
  check_heap_functions("mallocs", 0, "): an object of malloc, not of heap \"left\"");
  check_heap_functions("mallocs_large", 0, "): an object of malloc, not of heap \"left\"");
}
CASE(objects_of_a_pool_are_told) {
  check_heap_functions("pools", 0, "): an object of pool \"pond\", not of heap \"left\"");
  for (int checked = 0; checked < 2; checked++)
    check_act("own", "lane_pool_free", checked ? ",checked=1" : "",
              "): an object of heap \"left\", not of pool \"pond\"", 1);
}
CASE(malloc_tells_objects_of_a_heap) {
  const char* const functions[] = {"free", "realloc", "malloc_usable_size"};
  for (int i = 0; i < 3; i++)
    for (int checked = 0; checked < 2; checked++) {
      const char* option = checked ? ",checked=1" : "";
      check_act("own", functions[i], option, "): an object of heap \"left\", not of malloc", 1);
      check_act("own_large", functions[i], option, "): an object of heap \"left\", not of malloc",
                1);
    }
}
CASE(pointers_of_nobody_are_told) {
  check_heap_functions("stack", 0, "): not a pointer of this allocator, not of heap \"left\"");
  check_heap_functions("outlived", 0, "): freed already, given to heap \"left\"");
  check_heap_functions("twice_large", 0, "): freed already, given to heap \"left\"");
}
CASE(pointers_into_objects_are_told) {
  check_heap_functions("interior", 1, "): not the start of an object, given to heap \"left\"");
  check_heap_functions("interior_large", 0,
                       "): not the start of an object, given to heap \"left\"");
}
CASE(impossible_sizes_are_told_with_both) {
  check_act("too_large", "lane_heap_free_sized", "",
            ", 113): the object of heap \"left\" has 112 bytes", 1);
  check_act("much_too_large", "lane_heap_free_sized", "",
            ", 700000): the object of heap \"left\" has 112 bytes", 1);
  check_act("too_large_for_large", "lane_heap_free_sized", "",
            ", 720897): the object of heap \"left\" has 720896 bytes", 1);
}
CASE(checked_every_wrong_size_is_told_with_both) {
  const char* const checked = ",checked=1";
  check_act("wrong_by_one", "lane_heap_free_sized", checked,
            ", 99): the object of heap \"left\" has 100 bytes", 1);
  check_act("too_large", "lane_heap_free_sized", checked,
            ", 113): the object of heap \"left\" has 100 bytes", 1);
  check_act("wrong_for_large", "lane_heap_free_sized", checked,
            ", 700001): the object of heap \"left\" has 700000 bytes", 1);
}
CASE(checked_overruns_are_told) {
  const char* const why = "): bytes behind the object were written, given to heap \"left\"";
  check_frees("overrun", ",checked=1", why);
  check_frees("overrun_large", ",checked=1", why);
}
CASE(checked_second_frees_are_told) {
  check_heap_functions("twice", 1, "): freed already, given to heap \"left\"");
  check_heap_functions("twice_other_thread_first", 1, "): freed already, given to heap \"left\"");
}

static const char kDead[] = "): not a heap, or destroyed already";
CASE(a_heap_that_is_no_more_is_told) {
  const char* const functions[] = {
      "lane_heap_destroy",       "lane_heap_alloc",       "lane_heap_alloc_zeroed",
      "lane_heap_alloc_aligned", "lane_heap_realloc",     "lane_heap_free",
      "lane_heap_free_sized",    "lane_heap_usable_size", "lane_heap_set_limits",
      "lane_heap_walk",          "lane_heap_trim",        "lane_heap_get_statistics",
      "lane_heap_create: parent"};
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++)
    for (int checked = 0; checked < 2; checked++)
      check_act("destroyed", functions[i], checked ? ",checked=1" : "", kDead, 1);
}
CASE(a_heap_whose_place_is_taken_is_told) {
  for (int checked = 0; checked < 2; checked++) {
    check_act("destroyed_and_replaced", "lane_heap_alloc", checked ? ",checked=1" : "", kDead, 2);
    check_act("destroyed_and_replaced", "lane_heap_free_sized", checked ? ",checked=1" : "", kDead,
              1);
  }
}
