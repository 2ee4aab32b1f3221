// What pools refuse. Bad options and flags get EINVAL. A wrong pointer or pool gets a line that
// names both owners; then the library does what bad_pointer= says, and nothing is lost. Linked with
// liblanemalloc.so, .a and _prefixed.a.
#include "../acts.h"
#include "pools.h"

// --- Arguments.

static int never(void* object, size_t size, void* argument) {
  (void)object, (void)size, (void)argument;
  abort();
}
static void never_either(void* object, size_t size, void* argument) {
  never(object, size, argument);
}
static size_t no_import(void* source, void** objects, size_t n) {
  (void)source, (void)objects, (void)n;
  return 0;
}
static void no_release(void* source, void** objects, size_t n) { no_import(source, objects, n); }

#define REFUSED(...)                                                                               \
  do {                                                                                             \
    const struct lane_pool_options options_ = {__VA_ARGS__};                                       \
    errno = 0;                                                                                     \
    CHECK_MSG(lane_pool_create(&options_) == NULL && errno == EINVAL, "%s, line %d", #__VA_ARGS__, \
              __LINE__);                                                                           \
  } while (0)
#define FROM_SOURCE .import_objects = no_import, .release_objects = no_release

CASE(every_bad_option_is_refused) {
  errno = 0;
  CHECK(lane_pool_create(NULL) == NULL && errno == EINVAL);
  REFUSED(.object_size = 0);
  REFUSED(.object_size = 524289);
  REFUSED(.object_size = SIZE_MAX);
  REFUSED(.object_size = 16, .alignment = 3);
  REFUSED(.object_size = 16, .alignment = 24);
  REFUSED(.object_size = 16, .alignment = 131072);
  REFUSED(.object_size = 16, .alignment = SIZE_MAX);
  REFUSED(.object_size = 16, .padding = (enum lane_padding)3);
  REFUSED(.object_size = 16, .padding = (enum lane_padding) - 1);
  REFUSED(.object_size = 16, .limit = 5, .reserve = 6);
  REFUSED(.object_size = 16, .limit = SIZE_MAX);
  REFUSED(.object_size = 16, .reserve = (size_t)1 << 32);
  REFUSED(.object_size = 64, .import_objects = no_import);
  REFUSED(.object_size = 64, .release_objects = no_release);
  REFUSED(.object_size = 64, FROM_SOURCE, .init = never);
  REFUSED(.object_size = 64, FROM_SOURCE, .fini = never_either);
  REFUSED(.object_size = 64, FROM_SOURCE, .alignment = 64);
  REFUSED(.object_size = 64, FROM_SOURCE, .padding = LANE_OWN_LINE);
  REFUSED(.object_size = 15, FROM_SOURCE);
  const struct lane_pool_options good = {
      .object_size = 524288, .alignment = 65536, .limit = 5, .reserve = 5};
  lane_pool* pool = made(&good);
  CHECK(lane_pool_destroy(pool) == 0);
}

CASE(bad_flags_and_limits_are_refused) {
  void* object = &object;
  struct lane_pool_options options = {.object_size = 16, .limit = 10, .reserve = 2};
  lane_pool* pool = made(&options);
  const int bad[] = {8, -1, 1 << 30, LANE_POOL_WAIT | 16};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    errno = 0;
    CHECK(lane_pool_alloc_with(pool, bad[i]) == NULL && errno == EINVAL);
    errno = 0;
    CHECK(lane_pool_alloc_batch(pool, &object, 1, bad[i]) == 0 && errno == EINVAL &&
          object == &object);
  }
  CHECK(lane_pool_set_limit(pool, 1) == EINVAL && lane_pool_set_limit(pool, SIZE_MAX) == EINVAL);
  CHECK(figures(pool).limit == 10 && figures(pool).live == 0);
  errno = 0;
  CHECK(lane_pool_reclaim(pool, (enum lane_reclaim)3) == 0 && errno == EINVAL);
  CHECK(lane_pool_destroy(pool) == 0);

  // Zeroing the memory would destroy what init has made.
  options = (struct lane_pool_options){.object_size = 16, .init = never};
  pool = made(&options);
  errno = 0;
  CHECK(lane_pool_alloc_with(pool, LANE_POOL_ZERO) == NULL && errno == EINVAL);
  CHECK(lane_pool_destroy(pool) == 0);
}

// --- Acts, each in a child. The child prints the line that the library should write, does the
// wrong thing, checks that all is there, and prints "went on".

static lane_pool *mine, *other;
static lane_heap* heap;
static char expected[200];
enum { kSize = 64 };

static void expect(const char* function, const void* pointer, const char* what) {
  snprintf(expected, sizeof expected, "lanemalloc: %s(%p): %s\n", function, pointer, what);
}
// Afterwards the stranger is as it was, and so is the pool.
static void free_stranger(void* stranger, const char* whose) {
  char what[100];
  snprintf(what, sizeof what, "%s, not of pool \"mine\"", whose);
  expect("lane_pool_free", stranger, what);
  say("%s", expected);
  const struct lane_pool_statistics before = figures(mine);
  errno = 4711;
  lane_pool_free(mine, hide(stranger));
  CHECK(errno == 4711);
  const struct lane_pool_statistics after = figures(mine);
  CHECK(before.live == after.live && before.cached == after.cached);
  for (int i = 0; i < 2000; i++) CHECK(lane_pool_alloc(mine) != stranger);
}

static void act_another_pools(void) {
  char* object = lane_pool_alloc(other);
  fill(object, kSize, 1);
  free_stranger(object, "an object of pool \"other\"");
  CHECK(filled(object, kSize, 1) && figures(other).live == 1);
  lane_pool_free(other, object);
  CHECK(figures(other).live == 0);
}
// A stranger in one batch with the pool's own objects.
static void act_in_a_batch(void) {
  void* objects[300];
  REQUIRE(lane_pool_alloc_batch(mine, objects, 300, 0) == 300);
  void* own = objects[200];
  objects[200] = lane_pool_alloc(other);
  fill(objects[200], kSize, 2);
  expect("lane_pool_free", objects[200], "an object of pool \"other\", not of pool \"mine\"");
  say("%s", expected);
  const uint64_t live = figures(mine).live;
  lane_pool_free_batch(mine, objects, 300);
  CHECK(figures(mine).live == live - 299 && figures(other).live == 1 &&
        filled(objects[200], kSize, 2));
  lane_pool_free(mine, own);
  lane_pool_free(other, objects[200]);
}
static void act_mallocs(void) {
  char* object = API(malloc)(kSize);
  fill(object, kSize, 3);
  free_stranger(object, "an object of malloc");
  CHECK(filled(object, kSize, 3));
  API(free)(object);
}
static void act_mallocs_large(void) {
  char* object = API(malloc)(1 << 21);
  fill(object, 1 << 21, 3);
  free_stranger(object, "an object of malloc");
  CHECK(filled(object, 1 << 21, 3));
  API(free)(object);
}
static void act_heaps(void) {
  char* object = lane_heap_alloc(heap, kSize);
  fill(object, kSize, 4);
  free_stranger(object, "an object of heap \"heap\"");
  CHECK(filled(object, kSize, 4));
  lane_heap_free_sized(heap, object, kSize);
}
static void act_heaps_large(void) {
  char* object = lane_heap_alloc(heap, 1 << 21);
  fill(object, 1 << 21, 4);
  free_stranger(object, "an object of heap \"heap\"");
  CHECK(filled(object, 1 << 21, 4));
  lane_heap_free(heap, object);
}
static void act_stack(void) {
  char bytes[kSize];
  fill(hide(bytes), kSize, 5);
  free_stranger(bytes, "not a pointer of this allocator");
  CHECK(filled(hide(bytes), kSize, 5));
}
static void act_global(void) { free_stranger(expected, "not a pointer of this allocator"); }

// An object of the pool "mine" is given to malloc or to a heap.
static char* own_object(const char* function, const char* whose) {
  static char what[100];
  char* object = lane_pool_alloc(mine);
  snprintf(what, sizeof what, "an object of pool \"mine\", not of %s", whose);
  fill(object, kSize, 6);
  expect(function, object, what);
  say("%s", expected);
  return object;
}
static void return_own(char* object) {
  CHECK(filled(object, kSize, 6));
  const uint64_t live = figures(mine).live;
  lane_pool_free(mine, object);
  CHECK(figures(mine).live == live - 1);
}
static void act_free(void) {
  char* object = own_object("free", "malloc");
  API(free)(hide(object));
  return_own(object);
}
static void act_realloc(void) {
  char* object = own_object("realloc", "malloc");
  CHECK(API(realloc)(hide(object), hide_size(kSize * 2)) == NULL);
  return_own(object);
}
static void act_heap_free(void) {
  char* object = own_object("lane_heap_free", "heap \"heap\"");
  lane_heap_free(heap, object);
  return_own(object);
}
static void act_heap_free_sized(void) {
  char* object = own_object("lane_heap_free_sized", "heap \"heap\"");
  lane_heap_free_sized(heap, object, kSize);
  return_own(object);
}

static void free_badly(void* pointer, const char* why) {
  char what[100];
  snprintf(what, sizeof what, "%s, given to pool \"mine\"", why);
  expect("lane_pool_free", pointer, what);
  say("%s", expected);
  lane_pool_free(mine, hide(pointer));
}
static void act_twice(void) {
  void* object = lane_pool_alloc(mine);
  lane_pool_free(mine, object);
  free_badly(object, "freed already");
}
static void act_twice_in_a_batch(void) {
  void* objects[3];
  lane_pool_alloc_batch(mine, objects, 3, 0);
  objects[2] = objects[0];
  expect("lane_pool_free", objects[0], "freed already, given to pool \"mine\"");
  say("%s", expected);
  lane_pool_free_batch(mine, objects, 3);
}
static void act_inside(void) {
  free_badly((char*)lane_pool_alloc(mine) + 8, "not the start of an object");
}

enum Where { kAlways, kChecked };
static const struct {
  const char* name;
  void (*run)(void);
  enum Where where;
} kActs[] = {{"another_pools", act_another_pools, kAlways},
             {"in_a_batch", act_in_a_batch, kAlways},
             {"mallocs", act_mallocs, kAlways},
             {"mallocs_large", act_mallocs_large, kAlways},
             {"heaps", act_heaps, kAlways},
             {"heaps_large", act_heaps_large, kAlways},
             {"stack", act_stack, kAlways},
             {"global", act_global, kAlways},
             {"free", act_free, kAlways},
             {"realloc", act_realloc, kAlways},
             {"heap_free", act_heap_free, kAlways},
             {"heap_free_sized", act_heap_free_sized, kAlways},
             {"twice", act_twice, kChecked},
             {"twice_in_a_batch", act_twice_in_a_batch, kChecked},
             {"inside", act_inside, kChecked}};
enum { kActCount = sizeof kActs / sizeof kActs[0] };

// "plain ACT" has pools without functions, which are hit in line; "elaborate ACT" has pools with
// functions.
static int never_fails(void* object, size_t size, void* argument) {
  (void)object, (void)size, (void)argument;
  return 0;
}
static void does_nothing(void* object, size_t size, void* argument) {
  never_fails(object, size, argument);
}
CHILD(bad_act) {
  struct lane_pool_options options = {.object_size = kSize};
  if (strncmp(test_argument, "elaborate ", 10) == 0) {
    options.ctor = never_fails;
    options.dtor = does_nothing;
    options.limit = 100000;
    options.reserve = 3;
  }
  options.name = "mine";
  mine = made(&options);
  options.name = "other";
  other = made(&options);
  const struct lane_heap_options of_heap = {.name = "heap"};
  heap = lane_heap_create(&of_heap);
  for (int i = 0; i < 10; i++) REQUIRE(lane_pool_alloc(mine) != NULL);
  for (int i = 0; i < kActCount; i++)
    if (strcmp(strchr(test_argument, ' ') + 1, kActs[i].name) == 0) kActs[i].run();
  say("went on\n");
}

// True if stderr has one line, and the act has said that line.
static int told(void) {
  const size_t length = strlen(child.err);
  return length > 0 && strncmp(child.out, child.err, length) == 0 && line_count() == 1;
}
static void judge(const char* how, const char* name, const char* more) {
  run_act(how, name, "bad_pointer=abort", more);
  CHECK_CHILD(child_aborted() && told());
  run_act(how, name, "bad_pointer=report", more);
  CHECK_CHILD(went_on() && told());
  run_act(how, name, "bad_pointer=ignore", more);
  CHECK_CHILD(went_on() && child.err[0] == 0);
  if (test_failures) say("  act '%s %s'\n", how, name);
}
CASE(lanemalloc_misuse_is_reported_and_nothing_is_lost) {
  for (int i = 0; i < kActCount; i++)
    if (kActs[i].where == kAlways) judge("plain", kActs[i].name, "");
}
CASE(lanemalloc_misuse_of_pools_with_functions_is_reported_and_nothing_is_lost) {
  for (int i = 0; i < kActCount; i++)
    if (kActs[i].where == kAlways) judge("elaborate", kActs[i].name, "");
}
CASE(lanemalloc_checked_pools_report_every_misuse) {
  for (int i = 0; i < kActCount; i++) {
    judge("plain", kActs[i].name, "checked=1");
    judge("elaborate", kActs[i].name, "checked=1");
  }
}
