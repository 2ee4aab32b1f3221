// Heaps by their C functions: linked with liblanemalloc.so, .a and _prefixed.a. heap_misuse.c is
// about bad pointers; tests/stress has threads, forks and handlers.
#include <lanemalloc/heap.h>
#include <lanemalloc/lanemalloc.h>

#include "../child.h"
#include "../run_threads.h"

static const size_t kSizes[] = {0,     1,     15,     16,     17,      100,    1008,
                                1024,  1025,  2000,   4096,   5000,    8192,   30000,
                                65536, 65537, 200000, 524288, 1 << 20, 5 << 20};
enum { kSizeCount = sizeof kSizes / sizeof kSizes[0] };

static lane_heap* make(const char* name, lane_heap* parent, size_t limit) {
  struct lane_heap_options options = {.name = name, .parent = parent, .limit = limit};
  lane_heap* heap = lane_heap_create(&options);
  REQUIRE(heap);
  return heap;
}
static struct lane_heap_statistics figures(lane_heap* heap) {
  struct lane_heap_statistics s;
  memset(&s, 0xEE, sizeof s);
  lane_heap_get_statistics(heap, &s);
  return s;
}
// Allocates an object and fills it with a pattern.
static char* take(lane_heap* heap, size_t size, unsigned seed) {
  char* object = (char*)lane_heap_alloc(heap, size);
  REQUIRE(object);
  fill(object, size, seed);
  return object;
}

static int stop_at_fifth(void* object, size_t usable, void* argument) {
  (void)object, (void)usable;
  return ++*(int*)argument == 5 ? 42 : 0;
}
CASE(objects_of_every_size_are_apart_and_whole) {
  lane_heap* heap = lane_heap_create(NULL);
  REQUIRE(heap);
  enum { kEach = 20 };
  static char* objects[kSizeCount][kEach];
  size_t bytes = 0;
  for (size_t i = 0; i < kSizeCount; i++)
    for (unsigned j = 0; j < kEach; j++) {
      char* object = objects[i][j] = (char*)lane_heap_alloc(heap, kSizes[i]);
      REQUIRE(object);
      const size_t usable = lane_heap_usable_size(heap, object);
      CHECK_MSG((uintptr_t)object % 16 == 0 && usable >= kSizes[i], "%zu has %zu", kSizes[i],
                usable);
      fill(object, usable, (unsigned)i * kEach + j);
      bytes += usable;
    }
  struct lane_heap_statistics s = figures(heap);
  CHECK(s.live_objects == kSizeCount * kEach && s.live_bytes == bytes);
  CHECK(s.used_bytes >= bytes && s.peak_bytes >= s.used_bytes && s.slab_bytes >= s.used_bytes);
  CHECK(s.limit_failures == 0 && s.soft_calls == 0);
  int visits = 0;
  CHECK(lane_heap_walk(heap, stop_at_fifth, &visits) == 42 && visits == 5);
  for (size_t i = 0; i < kSizeCount; i++)
    for (unsigned j = 0; j < kEach; j++) {
      char* object = objects[i][j];
      CHECK(filled(object, lane_heap_usable_size(heap, object), (unsigned)i * kEach + j));
      if (j % 3 == 0) lane_heap_free(heap, object);
      if (j % 3 == 1) lane_heap_free_sized(heap, object, kSizes[i]);
      if (j % 3 == 2) lane_heap_free_sized_out_of_line(heap, object, kSizes[i]);
    }
  s = figures(heap);
  CHECK(s.live_objects == 0 && s.live_bytes == 0);
  CHECK(lane_heap_usable_size(heap, NULL) == 0);
  CHECK(lane_heap_destroy(heap) == 0);
}

CASE(size_zero_gives_an_object_of_its_own) {
  lane_heap* heap = make("zero", NULL, 0);
  void* one = lane_heap_alloc(heap, 0);
  void* two = lane_heap_alloc_out_of_line(heap, 0);
  void* three = lane_heap_alloc_zeroed(heap, 0, 8);
  CHECK(one && two && three && one != two && two != three && one != three);
  lane_heap_free_sized(heap, one, 0);
  CHECK(lane_heap_destroy(heap) == 2);
}

#define FAILS_WITH(error, expression)                      \
  do {                                                     \
    errno = 0;                                             \
    CHECK((expression) == NULL);                           \
    CHECK_MSG(errno == (error), "errno is not %d", error); \
  } while (0)

CASE(errors_are_as_declared) {
  lane_heap* heap = make("errors", NULL, 0);
  const size_t beyond[] = {SIZE_MAX, SIZE_MAX - 100, SIZE_MAX / 2 + 1, (size_t)1 << 50};
  for (size_t i = 0; i < 4; i++) {
    FAILS_WITH(ENOMEM, lane_heap_alloc(heap, hide_size(beyond[i])));
    FAILS_WITH(ENOMEM, lane_heap_alloc_out_of_line(heap, hide_size(beyond[i])));
    FAILS_WITH(ENOMEM, lane_heap_alloc_zeroed(heap, 1, hide_size(beyond[i])));
    FAILS_WITH(ENOMEM, lane_heap_alloc_aligned(heap, 4096, hide_size(beyond[i])));
    FAILS_WITH(ENOMEM, lane_heap_realloc(heap, NULL, hide_size(beyond[i])));
    char* object = take(heap, 100, 7);
    FAILS_WITH(ENOMEM, lane_heap_realloc(heap, object, hide_size(beyond[i])));
    CHECK(filled(object, 100, 7));
    object = take(heap, 300000, 7);
    FAILS_WITH(ENOMEM, lane_heap_realloc(heap, object, hide_size(beyond[i])));
    CHECK(filled(object, 300000, 7));
  }
  CHECK(figures(heap).limit_failures == 0);
  FAILS_WITH(ENOMEM, lane_heap_alloc_zeroed(heap, hide_size((size_t)1 << 33), (size_t)1 << 33));
  FAILS_WITH(ENOMEM, lane_heap_alloc_zeroed(heap, hide_size(SIZE_MAX / 16 + 2), 16));
  const size_t crooked[] = {0, 3, 24, 4097, SIZE_MAX};
  for (size_t i = 0; i < 5; i++)
    FAILS_WITH(EINVAL, lane_heap_alloc_aligned(heap, hide_size(crooked[i]), 8));
  FAILS_WITH(ENOMEM, lane_heap_alloc_aligned(heap, hide_size((size_t)1 << 63), 8));
  CHECK(lane_heap_destroy(heap) == 8);
}

static void note_soft(lane_heap* heap, size_t used, void* argument);
CASE(limits_that_make_no_sense_are_refused) {
  struct lane_heap_options options = {
      .limit = 1000, .soft_limit = 1001, .on_soft_limit = note_soft};
  FAILS_WITH(EINVAL, lane_heap_create(&options));
  options.soft_limit = 1000;
  options.on_soft_limit = NULL;
  FAILS_WITH(EINVAL, lane_heap_create(&options));
  options.on_soft_limit = note_soft;
  lane_heap* heap = lane_heap_create(&options);
  CHECK(heap != NULL);
  CHECK(lane_heap_set_limits(heap, 11, 10) == EINVAL && lane_heap_set_limits(heap, 10, 10) == 0);
  CHECK(lane_heap_set_limits(heap, 0, 0) == 0 && lane_heap_set_limits(heap, 10, 0) == 0);
  lane_heap* deaf = make("deaf", NULL, 0);
  CHECK(lane_heap_set_limits(deaf, 1, 0) == EINVAL && lane_heap_set_limits(deaf, 0, 1) == 0);
  lane_heap_destroy(deaf);
  lane_heap_destroy(heap);
}

CASE(realloc_keeps_contents_from_every_size_to_every_size) {
  lane_heap* heap = make("realloc", NULL, 0);
  for (size_t from = 0; from < kSizeCount; from++)
    for (size_t to = 1; to < kSizeCount; to++) {
      char* object = (char*)lane_heap_realloc(heap, NULL, kSizes[from]);
      REQUIRE(object);
      fill(object, kSizes[from], (unsigned)from);
      object = (char*)lane_heap_realloc(heap, object, kSizes[to]);
      REQUIRE(object);
      CHECK(filled(object, kSizes[from] < kSizes[to] ? kSizes[from] : kSizes[to], (unsigned)from));
      CHECK(lane_heap_usable_size(heap, object) >= kSizes[to]);
      CHECK(figures(heap).live_objects == 1);
      CHECK(lane_heap_realloc(heap, object, 0) == NULL);
    }
  CHECK(figures(heap).live_objects == 0);
  CHECK(lane_heap_destroy(heap) == 0);
}

CASE(frees_keep_errno) {
  lane_heap* heap = make("errno", NULL, 0);
  static char* objects[20000];
  for (int i = 0; i < 20000; i++) objects[i] = (char*)lane_heap_alloc(heap, i % 100 ? 200 : 600000);
  errno = 77;
  lane_heap_free(heap, NULL);
  lane_heap_free_sized(heap, NULL, 8);
  lane_heap_free_sized(heap, NULL, 100000);
  for (int i = 0; i < 20000; i++) {
    if (i % 2) lane_heap_free(heap, objects[i]);
    if (i % 2 == 0) lane_heap_free_sized(heap, objects[i], i % 100 ? 200 : 600000);
  }
  CHECK(errno == 77);
  lane_heap_trim(heap);
  CHECK(lane_heap_destroy(heap) == 0);
}

// --- Limits.

CASE(hard_limit_is_null_and_enomem) {
  enum { kLimit = 1 << 20, kMost = kLimit / 16 };
  static char* objects[kMost];
  lane_heap* heap = make("hard", NULL, kLimit);
  for (size_t i = 0; i < kSizeCount && kSizes[i] <= kLimit; i++) {
    size_t n = 0, bytes = 0;
    errno = 0;
    while ((objects[n] = (char*)lane_heap_alloc(heap, kSizes[i])) != NULL) {
      bytes += lane_heap_usable_size(heap, objects[n++]);
      REQUIRE(bytes <= kLimit);
    }
    CHECK(errno == ENOMEM);
    struct lane_heap_statistics s = figures(heap);
    CHECK(s.live_objects == n && s.live_bytes == bytes && s.used_bytes <= kLimit &&
          s.peak_bytes <= kLimit);
    CHECK_MSG(bytes + 2 * (kSizes[i] + 65536) > kLimit, "%zu objects of %zu", n, kSizes[i]);
    CHECK(s.limit_failures > 0);
    FAILS_WITH(ENOMEM, lane_heap_alloc_zeroed(heap, 1, kSizes[i]));
    FAILS_WITH(ENOMEM, lane_heap_alloc_aligned(heap, 4096, kSizes[i] + 4096));
    CHECK(figures(heap).limit_failures == s.limit_failures + 2);
    if (n > 0 && kSizes[i] > 0) {
      fill(objects[0], kSizes[i], 3);
      FAILS_WITH(ENOMEM, lane_heap_realloc(heap, objects[0], 2 * kLimit));
      CHECK(filled(objects[0], kSizes[i], 3));
    }
    while (n > 0) lane_heap_free(heap, objects[--n]);
  }
  FAILS_WITH(ENOMEM, lane_heap_alloc(heap, kLimit + 1));
  CHECK(lane_heap_set_limits(heap, 0, 3 * kLimit) == 0);
  void* large = lane_heap_alloc(heap, 2 * kLimit);
  CHECK(large != NULL);
  // A limit below what is handed out already holds for later requests.
  CHECK(lane_heap_set_limits(heap, 0, kLimit) == 0);
  FAILS_WITH(ENOMEM, lane_heap_alloc(heap, 100000));
  lane_heap_free(heap, large);
  CHECK(lane_heap_alloc(heap, 100000) != NULL);
  CHECK(lane_heap_destroy(heap) == 1);
}

static struct {
  int calls;
  size_t used;
  lane_heap* heap;
} soft;
static void note_soft(lane_heap* heap, size_t used, void* argument) {
  soft.calls++;
  soft.used = used;
  CHECK(argument == &soft);
  soft.heap = heap;
  void* object = lane_heap_alloc(heap, 40);
  CHECK(object);
  lane_heap_free_sized(heap, object, 40);
}
static lane_heap* make_soft(size_t limit) {
  struct lane_heap_options options = {
      .name = "soft", .soft_limit = limit, .on_soft_limit = note_soft, .argument = &soft};
  lane_heap* heap = lane_heap_create(&options);
  REQUIRE(heap);
  memset(&soft, 0, sizeof soft);
  return heap;
}

CASE(soft_limit_is_passed_by_large_objects_and_by_realloc) {
  lane_heap* heap = make_soft(4 << 20);
  char* object = take(heap, 2 << 20, 3);
  CHECK(soft.calls == 0);
  object = (char*)lane_heap_realloc(heap, object, 3 << 20);
  CHECK(object && soft.calls == 0);
  object = (char*)lane_heap_realloc(heap, object, 6 << 20);
  CHECK(object && soft.calls == 1 && filled(object, 2 << 20, 3));
  object = (char*)lane_heap_realloc(heap, object, 1 << 20);
  CHECK(soft.calls == 1 && figures(heap).used_bytes < 2 << 20);
  void* large = lane_heap_alloc_aligned(heap, 1 << 20, 4 << 20);
  CHECK(large && soft.calls == 2);
  lane_heap_free(heap, large);
  large = lane_heap_alloc_zeroed(heap, 5, 1 << 20);
  CHECK(large && soft.calls == 3 && soft.used >= 6 << 20);
  CHECK(lane_heap_destroy(heap) == 2);
}

CASE(soft_limit_of_a_parent_is_passed_by_its_children) {
  lane_heap* parent = make_soft(1 << 20);
  lane_heap* child = make("child", parent, 0);
  lane_heap* grandchild = make("grandchild", child, 0);
  void* half = lane_heap_alloc(child, 600000);
  CHECK(half && soft.calls == 0);
  CHECK(lane_heap_alloc(grandchild, 600000) && soft.calls == 1 && soft.heap == parent);
  CHECK(figures(parent).soft_calls == 1 && figures(child).soft_calls == 0);
  lane_heap_free(child, half);
  CHECK(lane_heap_alloc(parent, 600000) && soft.calls == 2);
  CHECK(lane_heap_destroy(parent) == 2);
}

static lane_heap* shared_heap;
static pthread_barrier_t barrier;
static int counted_calls;
static void count_soft(lane_heap* heap, size_t used, void* argument) {
  (void)heap, (void)used, (void)argument;
  __atomic_fetch_add(&counted_calls, 1, __ATOMIC_RELAXED);
}
static void* take_many(void* argument) {
  pthread_barrier_wait(&barrier);
  for (int i = 0; i < 2000; i++) take(shared_heap, 500, 1);
  return argument;
}
CASE(soft_limit_is_passed_once_by_many_threads) {
  pthread_t threads[8];
  for (int round = 0; round < 20; round++) {
    struct lane_heap_options options = {.soft_limit = 4 << 20, .on_soft_limit = count_soft};
    shared_heap = lane_heap_create(&options);
    counted_calls = 0;
    pthread_barrier_init(&barrier, NULL, 8);
    start_threads(threads, 8, take_many);
    join_threads(threads, 8);
    CHECK_MSG(counted_calls == 1, "%d calls", counted_calls);
    CHECK(lane_heap_destroy(shared_heap) == 16000);
  }
}

CASE(many_heaps_and_then_no_more) {
  enum { kMost = 20000 };
  static lane_heap* heaps[kMost];
  int n = 0;
  errno = 0;
  while (n < kMost && (heaps[n] = lane_heap_create(NULL)) != NULL) n++;
  CHECK_MSG(n > 1000 && n < 16384 && errno == ENOMEM, "%d heaps", n);
  for (int i = 0; i < n; i += 100) fill(lane_heap_alloc(heaps[i], 100), 100, (unsigned)i);
  while (n > 0) {
    n--;
    CHECK(lane_heap_destroy(heaps[n]) == (n % 100 == 0));
  }
  lane_heap* heap = lane_heap_create(NULL);
  CHECK(heap && lane_heap_alloc(heap, 100));
  lane_heap_destroy(heap);
}

CASE(trim_gives_back_what_is_cached) {
  enum { kObjects = 20000 };
  static void* objects[kObjects];
  lane_heap* heap = make("trimmed", NULL, 0);
  for (int i = 0; i < kObjects; i++) objects[i] = take(heap, 1000, 1);
  CHECK(lane_heap_trim(heap) < 1 << 20);
  for (int i = 0; i < kObjects; i++) lane_heap_free(heap, objects[i]);
  const size_t before = figures(heap).slab_bytes;
  const size_t went = lane_heap_trim(heap);
  const struct lane_heap_statistics s = figures(heap);
  CHECK_MSG(before - s.slab_bytes == went && s.slab_bytes < 1 << 20, "%zu, then %zu went", before,
            went);
  CHECK(s.used_bytes <= s.slab_bytes && s.live_objects == 0 && s.peak_bytes >= kObjects * 1000);
  CHECK(lane_heap_destroy(heap) == 0);
}

CASE(destroying_gives_memory_back) {
  for (int i = 0; i < 60; i++) {
    lane_heap* heap = make("large", NULL, 0);
    for (int j = 0; j < 16; j++) memset(lane_heap_alloc(heap, 1 << 20), 1, 1 << 20);
    for (int j = 0; j < 16000; j++) memset(lane_heap_alloc(heap, 1000), 1, 1000);
    CHECK(lane_heap_destroy(heap) == 16016);
  }
  CHECK_MSG(status_bytes("VmHWM:") < 200u << 20, "%zu", status_bytes("VmHWM:"));
}
