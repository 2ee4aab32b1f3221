// Heaps by their C functions: linked with liblanemalloc.so, .a and _prefixed.a. heap_misuse.c is
// about bad pointers.
#include <lanemalloc/heap.h>
#include <lanemalloc/lanemalloc.h>
#include <pthread.h>
#include <sched.h>
#include <sys/time.h>

#include "../child.h"

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

CASE(zeroed_memory_is_zero_after_dirty_use) {
  lane_heap* heap = make("zeroed", NULL, 0);
  for (int round = 0; round < 3; round++)
    for (size_t i = 0; i < kSizeCount; i++) {
      char* objects[10];
      for (int j = 0; j < 10; j++) {
        objects[j] = (char*)lane_heap_alloc_zeroed(heap, kSizes[i], 1);
        REQUIRE(objects[j]);
        CHECK_MSG(all_bytes(objects[j], kSizes[i], 0), "%zu", kSizes[i]);
        memset(objects[j], 0xA5, lane_heap_usable_size(heap, objects[j]));
      }
      for (int j = 0; j < 10; j++) lane_heap_free(heap, objects[j]);
    }
  CHECK(lane_heap_destroy(heap) == 0);
}

CASE(aligned_objects_are_aligned) {
  lane_heap* heap = make("aligned", NULL, 0);
  for (size_t alignment = 1; alignment <= 4 << 20; alignment *= 2)
    for (size_t i = 0; i < kSizeCount; i++) {
      char* object = (char*)lane_heap_alloc_aligned(heap, alignment, kSizes[i]);
      CHECK_MSG(object && (uintptr_t)object % alignment == 0, "%zu at %zu", kSizes[i], alignment);
      fill(object, kSizes[i], (unsigned)i);
      if (i % 2) {
        char* moved = (char*)lane_heap_realloc(heap, object, kSizes[i] + 3000);
        CHECK(moved && filled(moved, kSizes[i], (unsigned)i));
        object = moved;
      }
      lane_heap_free(heap, object);
    }
  CHECK(lane_heap_destroy(heap) == 0);
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
  void* argument;
  lane_heap* heap;
} soft;
static void note_soft(lane_heap* heap, size_t used, void* argument) {
  soft.calls++;
  soft.used = used;
  soft.argument = argument;
  soft.heap = heap;
  void* object = lane_heap_alloc(heap, 40);
  CHECK(object);
  lane_heap_free_sized(heap, object, 40);
}
static lane_heap* make_soft(size_t limit, lane_heap* parent) {
  struct lane_heap_options options = {.name = "soft",
                                      .parent = parent,
                                      .soft_limit = limit,
                                      .on_soft_limit = note_soft,
                                      .argument = &options};
  lane_heap* heap = lane_heap_create(&options);
  REQUIRE(heap);
  memset(&soft, 0, sizeof soft);
  soft.argument = NULL;
  return heap;
}

// Never more bytes are handed out than are charged. While the charge is below the limit, the
// function is not called; once more than the limit is handed out, it has been called.
CASE(soft_limit_calls_once_a_crossing_before_the_allocation_returns) {
  enum { kSoft = 1 << 20, kObjects = 3 * kSoft / 2000 };
  static char* objects[kObjects];
  lane_heap* heap = make_soft(kSoft, NULL);
  for (int crossing = 1; crossing <= 5; crossing++) {
    size_t bytes = 0;
    for (int i = 0; i < kObjects; i++) {
      objects[i] = take(heap, 2000, 1);
      bytes += lane_heap_usable_size(heap, objects[i]);
      if (bytes > kSoft)
        CHECK_MSG(soft.calls == crossing, "%d calls with %zu bytes", soft.calls, bytes);
      if (bytes + 65536 < kSoft)
        CHECK_MSG(soft.calls == crossing - 1, "%d calls with %zu bytes", soft.calls, bytes);
    }
    CHECK(soft.heap == heap && soft.used > kSoft && soft.used <= kSoft + 65536 &&
          soft.argument != NULL);
    CHECK(figures(heap).soft_calls == (uint64_t)crossing);
    for (int i = 0; i < kObjects; i++) lane_heap_free(heap, objects[i]);
    lane_heap_trim(heap);
    CHECK(figures(heap).used_bytes < kSoft);
  }
  // Nothing is called if the soft limit is not passed, nor at another limit.
  CHECK(lane_heap_set_limits(heap, 0, 0) == 0);
  for (int i = 0; i < kObjects; i++) objects[i] = take(heap, 2000, 1);
  CHECK(soft.calls == 5);
  CHECK(lane_heap_destroy(heap) == kObjects);
}

CASE(soft_limit_is_passed_by_large_objects_and_by_realloc) {
  lane_heap* heap = make_soft(4 << 20, NULL);
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
  lane_heap* parent = make_soft(1 << 20, NULL);
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
    for (int i = 0; i < 8; i++) REQUIRE(pthread_create(&threads[i], NULL, take_many, NULL) == 0);
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    CHECK_MSG(counted_calls == 1, "%d calls", counted_calls);
    CHECK(lane_heap_destroy(shared_heap) == 16000);
  }
}

// --- Children.

CASE(children_are_charged_to_their_parents) {
  enum { kLimit = 4 << 20 };
  lane_heap* parent = make("parent", NULL, kLimit);
  lane_heap* child = make("child", parent, 0);
  lane_heap* narrow = make("narrow", parent, 1 << 20);
  lane_heap* grandchild = make("grandchild", child, 0);
  size_t in_narrow = 0, in_grandchild = 0;
  while (lane_heap_alloc(narrow, 3000)) in_narrow++;
  CHECK(errno == ENOMEM && figures(narrow).used_bytes <= 1 << 20);
  CHECK(figures(narrow).limit_failures == 1 && figures(parent).limit_failures == 0);
  while (lane_heap_alloc(grandchild, 3000)) in_grandchild++;
  CHECK(figures(parent).limit_failures == 1 && figures(grandchild).limit_failures == 0);
  struct lane_heap_statistics s = figures(parent);
  CHECK(s.used_bytes == figures(child).used_bytes + figures(narrow).used_bytes &&
        s.used_bytes <= kLimit);
  CHECK(figures(child).used_bytes == figures(grandchild).used_bytes);
  // Live objects are those of the heap itself.
  CHECK(s.live_objects == 0 && figures(child).live_objects == 0);
  CHECK(figures(grandchild).live_objects == in_grandchild);
  CHECK((in_narrow + in_grandchild) * 3072 > kLimit - 200000);
  FAILS_WITH(ENOMEM, lane_heap_alloc(parent, 500000));
  // The bytes charged to a destroyed child are free for its parent again.
  CHECK(lane_heap_destroy(child) == in_grandchild);
  CHECK(figures(parent).used_bytes == figures(narrow).used_bytes);
  CHECK(lane_heap_alloc(parent, 500000) != NULL);
  // Destroying the parent destroys its children too.
  CHECK(lane_heap_destroy(parent) == in_narrow + 1);
}

CASE(what_a_child_frees_is_found_at_the_parents_limit) {
  enum { kLimit = 2 << 20 };
  static char* objects[kLimit / 1000];
  lane_heap* parent = make("parent", NULL, kLimit);
  lane_heap* child = make("child", parent, 0);
  size_t n = 0, bytes = 0;
  while ((objects[n] = (char*)lane_heap_alloc(child, 1000)) != NULL) n++;
  for (size_t i = 0; i < n; i++) lane_heap_free_sized(child, objects[i], 1000);
  for (void* object; (object = lane_heap_alloc(parent, 5000)) != NULL;)
    bytes += lane_heap_usable_size(parent, object);
  CHECK_MSG(bytes > kLimit - 200000 && bytes <= kLimit, "%zu bytes", bytes);
  lane_heap_destroy(parent);
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

// --- Walks and figures.

enum { kMostLive = 4000 };
static struct {
  void* object;
  size_t usable;
  int seen;
} live[kMostLive];
static size_t live_count;
static void keep(lane_heap* heap, void* object) {
  REQUIRE(object && live_count < kMostLive);
  live[live_count].object = object;
  live[live_count].usable = lane_heap_usable_size(heap, object);
  live[live_count++].seen = 0;
}
static int mark_seen(void* object, size_t usable, void* argument) {
  (void)argument;
  for (size_t i = 0; i < live_count; i++)
    if (live[i].object == object) {
      live[i].seen++;
      CHECK(live[i].usable == usable);
      return 0;
    }
  CHECK_MSG(0, "%p of %zu bytes is not live", object, usable);
  return 0;
}
static void check_walk(lane_heap* heap) {
  size_t bytes = 0;
  CHECK(lane_heap_walk(heap, mark_seen, NULL) == 0);
  for (size_t i = 0; i < live_count; i++) {
    CHECK_MSG(live[i].seen == 1, "%p of %zu is seen %d times", live[i].object, live[i].usable,
              live[i].seen);
    live[i].seen = 0;
    bytes += live[i].usable;
  }
  struct lane_heap_statistics s = figures(heap);
  CHECK_MSG(s.live_objects == live_count && s.live_bytes == bytes, "%llu of %zu, %llu of %zu bytes",
            (unsigned long long)s.live_objects, live_count, (unsigned long long)s.live_bytes,
            bytes);
  CHECK(s.used_bytes >= bytes && s.slab_bytes >= bytes && s.peak_bytes >= s.used_bytes);
}
static void free_some(lane_heap* heap, unsigned modulus) {
  for (size_t i = live_count; i-- > 0;)
    if (i % modulus == 0) {
      lane_heap_free(heap, live[i].object);
      live[i] = live[--live_count];
    }
}
static void* use_elsewhere(void* heap) {
  free_some((lane_heap*)heap, 3);
  for (int i = 0; i < 500; i++)
    keep((lane_heap*)heap, lane_heap_alloc((lane_heap*)heap, (size_t)i * 13));
  return NULL;
}
static int stop_at_fifth(void* object, size_t usable, void* argument) {
  (void)object, (void)usable;
  return ++*(int*)argument == 5 ? 42 : 0;
}
CASE(walk_sees_exactly_the_live_objects) {
  lane_heap* heap = make("walked", NULL, 0);
  lane_heap* child = make("child", heap, 0);
  CHECK(lane_heap_alloc(child, 100) && lane_heap_alloc(child, 1 << 20));
  check_walk(heap);
  for (size_t i = 0; i < 1500; i++) keep(heap, lane_heap_alloc(heap, i % 100 ? i * 7 : i * 2000));
  check_walk(heap);
  free_some(heap, 2);
  check_walk(heap);
  pthread_t thread;
  for (int i = 0; i < 3; i++) {
    REQUIRE(pthread_create(&thread, NULL, use_elsewhere, heap) == 0);
    pthread_join(thread, NULL);
    check_walk(heap);
  }
  for (size_t i = 0; i < live_count; i += 7) {
    live[i].object = lane_heap_realloc(heap, live[i].object, 3 * live[i].usable);
    REQUIRE(live[i].object);
    live[i].usable = lane_heap_usable_size(heap, live[i].object);
  }
  check_walk(heap);
  int visits = 0;
  CHECK(lane_heap_walk(heap, stop_at_fifth, &visits) == 42 && visits == 5);
  free_some(heap, 1);
  CHECK(live_count == 0);
  check_walk(heap);
  CHECK(lane_heap_destroy(heap) == 2);
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

// --- Threads, forks, handlers.

enum { kThreads = 4, kRounds = 200, kHeld = 200 };
static char* handed[kThreads][kHeld];
static void* take_and_hand_on(void* argument) {
  const size_t self = (size_t)argument;
  for (size_t round = 0; round < kRounds; round++) {
    char** own = handed[self];
    for (size_t i = 0; i < kHeld; i++)
      own[i] = take(shared_heap, i * 11 % 3000, (unsigned)(self + i));
    pthread_barrier_wait(&barrier);
    const size_t other = (self + 1 + round % (kThreads - 1)) % kThreads;
    for (size_t i = 0; i < kHeld; i++) {
      CHECK(filled(handed[other][i], i * 11 % 3000, (unsigned)(other + i)));
      if (i % 2) lane_heap_free(shared_heap, handed[other][i]);
      if (i % 2 == 0) lane_heap_free_sized(shared_heap, handed[other][i], i * 11 % 3000);
    }
    pthread_barrier_wait(&barrier);
  }
  return NULL;
}
CASE(what_one_thread_takes_another_frees) {
  pthread_t threads[kThreads];
  shared_heap = make("handed", NULL, 0);
  pthread_barrier_init(&barrier, NULL, kThreads);
  for (size_t i = 0; i < kThreads; i++)
    REQUIRE(pthread_create(&threads[i], NULL, take_and_hand_on, (void*)i) == 0);
  for (size_t i = 0; i < kThreads; i++) pthread_join(threads[i], NULL);
  CHECK(figures(shared_heap).live_objects == 0);
  CHECK(lane_heap_destroy(shared_heap) == 0);
}

static void* take_and_exit(void* argument) {
  for (unsigned i = 0; i < 1000; i++) take(shared_heap, i, i);
  return argument;
}
static int count_visit(void* object, size_t usable, void* argument) {
  (void)object, (void)usable;
  ++*(size_t*)argument;
  return 0;
}
CASE(objects_stay_when_their_thread_exits) {
  pthread_t thread;
  shared_heap = make("left", NULL, 0);
  for (int i = 0; i < 20; i++) {
    REQUIRE(pthread_create(&thread, NULL, take_and_exit, NULL) == 0);
    pthread_join(thread, NULL);
  }
  size_t seen = 0;
  CHECK(lane_heap_walk(shared_heap, count_visit, &seen) == 0 && seen == 20000);
  CHECK(lane_heap_destroy(shared_heap) == 20000);
}

static int stop;
static void* use_until_stopped(void* heap) {
  void* own[100] = {NULL};
  for (size_t i = 0; !__atomic_load_n(&stop, __ATOMIC_ACQUIRE); i++) {
    lane_heap_free((lane_heap*)heap, own[i % 100]);
    own[i % 100] = lane_heap_alloc((lane_heap*)heap, i % 1500);
  }
  for (int i = 0; i < 100; i++) lane_heap_free((lane_heap*)heap, own[i]);
  return NULL;
}
// If another thread was inside a lane at the fork, the child loses that lane and what the heaps
// have in it, but no large objects.
CASE(a_child_process_goes_on_with_heaps) {
  pthread_t threads[2];
  lane_heap* heap = make("forked", NULL, 0);
  lane_heap* below = make("below", heap, 0);
  lane_heap* own = make("own", NULL, 1 << 20);
  for (int i = 0; i < 2; i++)
    REQUIRE(pthread_create(&threads[i], NULL, use_until_stopped, i ? heap : below) == 0);
  for (unsigned round = 0; round < 100; round++) {
    char* object = take(heap, 3000, round);
    char* other = take(own, 600000, round);
    pid_t pid = fork();
    if (pid == 0) {
      alarm(30);
      if (!filled(object, 3000, round) || !filled(other, 600000, round)) _exit(2);
      for (unsigned i = 0; i < 1000; i++) {
        char* mine = take(i % 2 ? heap : below, i * 5, i);
        if (!filled(mine, i * 5, i)) _exit(3);
        if (i % 3) lane_heap_free(i % 2 ? heap : below, mine);
      }
      lane_heap_free(heap, object);
      if (lane_heap_destroy(own) != 1) _exit(4);
      lane_heap_destroy(heap);
      lane_heap* fresh = make("fresh", NULL, 1 << 20);
      for (unsigned i = 0; i < 100; i++) take(fresh, i, i);
      if (lane_heap_destroy(fresh) != 100) _exit(5);
      _exit(0);
    }
    int status = -1;
    REQUIRE(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK_MSG(status == 0, "the child ended with 0x%x", status);
    CHECK(filled(object, 3000, round) && filled(other, 600000, round));
    lane_heap_free(heap, object);
    lane_heap_free_sized(own, other, 600000);
  }
  __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  CHECK(figures(heap).live_objects == 0 && figures(below).live_objects == 0 &&
        figures(own).live_objects == 0);
  CHECK(lane_heap_destroy(heap) == 0 && lane_heap_destroy(own) == 0);
}

static volatile sig_atomic_t handled;
static void on_alarm(int number) {
  static unsigned seed;
  const int saved = errno;
  (void)number;
  for (unsigned i = 0; i < 5; i++, seed++) {
    const size_t size = seed % 7 ? seed % 900 : seed % 3 * 100000;
    char* object = (char*)lane_heap_alloc(shared_heap, size);
    if (object == NULL) continue;
    fill(object, size, seed);
    char* grown = (char*)lane_heap_realloc(shared_heap, object, size + 400);
    if (grown != NULL) object = grown;
    CHECK(filled(object, size, seed));
    lane_heap_free(shared_heap, object);
  }
  handled++;
  errno = saved;
}
CASE(handlers_use_the_heap_that_they_interrupt) {
  shared_heap = make("interrupted", NULL, 2 << 20);
  struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
  sigaction(SIGALRM, &action, NULL);
  struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
  setitimer(ITIMER_REAL, &often, NULL);
  char* own[300] = {NULL};
  size_t sizes[300] = {0}, bytes = 0;
  for (size_t i = 0; handled < 1000; i++) {
    const size_t at = i * 7 % 300;
    if (own[at]) {
      CHECK(filled(own[at], sizes[at], (unsigned)at));
      bytes -= sizes[at];
      lane_heap_free_sized(shared_heap, own[at], sizes[at]);
    }
    sizes[at] = i % 500 ? i % 1200 : 70000;
    own[at] = (char*)lane_heap_alloc(shared_heap, sizes[at]);
    if (own[at]) {
      fill(own[at], sizes[at], (unsigned)at);
      bytes += sizes[at];
    }
    CHECK(bytes <= 2 << 20);
  }
  setitimer(ITIMER_REAL, &never, NULL);
  size_t kept = 0;
  for (int i = 0; i < 300; i++) kept += own[i] != NULL;
  CHECK_MSG(figures(shared_heap).live_objects == kept, "%zu are kept", kept);
  CHECK(lane_heap_destroy(shared_heap) == kept);
}
