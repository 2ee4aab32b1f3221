// Pools by their C functions: what they hand out and count, and their limits. Linked with
// liblanemalloc.so, .a and _prefixed.a. pools_misuse.c is about what pools refuse; tests/stress has
// threads that wait, handlers and forks.
#include "pools.h"

#include "../run_threads.h"

// --- Objects.

CASE(sizes_are_exact_and_alignments_kept) {
  const size_t sizes[] = {1,    8,    9,    16,    17,    24,     40,    100,
                          1000, 1024, 4104, 20000, 65536, 200000, 524288};
  const size_t alignments[] = {0, 1, 8, 16, 64, 4096, 65536};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
    for (size_t j = 0; j < sizeof alignments / sizeof alignments[0]; j++)
      for (int padding = LANE_PACKED; padding <= LANE_OWN_PAIR; padding++) {
        const size_t size = sizes[i];
        struct lane_pool_options options = {.object_size = size, .alignment = alignments[j]};
        options.padding = (enum lane_padding)padding;
        const size_t pad = padding == LANE_OWN_LINE ? 64 : padding == LANE_OWN_PAIR ? 128 : 1;
        size_t alignment = alignments[j] != 0 ? alignments[j] : size % 16 == 0 ? 16 : 8;
        if (alignment < 8) alignment = 8;
        if (alignment < pad) alignment = pad;
        lane_pool* pool = made(&options);
        char* objects[9];
        for (unsigned k = 0; k < 9; k++) {
          objects[k] = lane_pool_alloc(pool);
          REQUIRE(objects[k]);
          CHECK_MSG((uintptr_t)objects[k] % alignment == 0, "%p, size %zu", (void*)objects[k],
                    size);
          fill(objects[k], size, k);
        }
        for (unsigned k = 0; k < 9; k++) CHECK(filled(objects[k], size, k));
        const size_t least = size < 16 ? 16 : size, whole = (least + 7) / 8 * 8;
        CHECK_MSG(figures(pool).object_size == (whole + alignment - 1) / alignment * alignment,
                  "%zu: %zu", size, (size_t)figures(pool).object_size);
        for (unsigned k = 0; k < 9; k++) lane_pool_free(pool, objects[k]);
        CHECK(lane_pool_destroy(pool) == 0);
      }
}

CASE(names_are_cut_to_their_size) {
  struct lane_pool_options options = {.object_size = 32};
  lane_pool* nameless = made(&options);
  CHECK(strcmp(figures(nameless).name, "pool") == 0);
  char name[] = "a name of thirty-one bytes, it is, and what is more";
  options.name = name;
  lane_pool* pool = made(&options);
  memset(name, '-', sizeof name - 1);  // the pool has a copy
  CHECK(strcmp(figures(pool).name, "a name of thirty-one bytes, it ") == 0);
  options.name = "";
  lane_pool* empty = made(&options);
  CHECK(strcmp(figures(empty).name, "") == 0);
  lane_pool_destroy(nameless);
  lane_pool_destroy(pool);
  lane_pool_destroy(empty);
}

CASE(zeroed_objects_are_zero_and_errno_stays) {
  lane_pool* pool = pool_of(72, "zeros");
  for (int round = 0; round < 300; round++) {
    void* dirty = lane_pool_alloc(pool);
    memset(dirty, 0xEE, 72);
    errno = 77;
    lane_pool_free(pool, dirty);
    lane_pool_free(pool, NULL);
    char* object = lane_pool_alloc_with(pool, LANE_POOL_ZERO);
    CHECK(object && all_bytes(object, 72, 0) && errno == 77);
    if (round % 3) lane_pool_free(pool, object);
  }
  CHECK(lane_pool_destroy(pool) == 100);
}

CASE(batches_are_whole) {
  static void* objects[3000];
  lane_pool* pool = pool_of(48, "batches");
  for (int round = 0; round < 5; round++) {
    REQUIRE(lane_pool_alloc_batch(pool, objects, 3000, 0) == 3000);
    for (unsigned i = 0; i < 3000; i++) fill(objects[i], 48, i);
    for (unsigned i = 0; i < 3000; i++) CHECK(filled(objects[i], 48, i));
    CHECK(figures(pool).live == 3000);
    void* one = objects[1000];
    objects[1000] = NULL;  // null does nothing here too
    lane_pool_free_batch(pool, objects, 3000);
    CHECK(figures(pool).live == 1);
    lane_pool_free(pool, one);
  }
  CHECK(lane_pool_alloc_batch(pool, objects, 0, 0) == 0);
  lane_pool_free_batch(pool, objects, 0);
  CHECK(lane_pool_destroy(pool) == 0);
}

// --- Functions: an object knows its state, so a call too many, or in the wrong order, is noticed.

enum { kMade = 0x6D616465, kFree = 0x66726565, kUsed = 0x75736564 };
struct Thing {
  unsigned made, state;
  char text[40];
};
struct Calls {
  int inits, finis, ctors, dtors;
  int fail_init, fail_ctor;  // one call in that many fails; 0: none
};
static void count_up(int* counter) { __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED); }
static int fails(int* counter, int every) {
  return __atomic_add_fetch(counter, 1, __ATOMIC_RELAXED) % (every ? every : INT_MAX) == 0;
}
static int thing_init(void* object, size_t size, void* argument) {
  static int tries;
  struct Thing* thing = object;
  struct Calls* calls = argument;
  CHECK(size == sizeof *thing);
  if (fails(&tries, calls->fail_init)) return 1;
  thing->made = kMade;
  thing->state = kFree;
  memset(thing->text, 'i', sizeof thing->text);
  count_up(&calls->inits);
  return 0;
}
static void thing_fini(void* object, size_t size, void* argument) {
  struct Thing* thing = object;
  CHECK(size == sizeof *thing && thing->made == kMade &&
        all_bytes(thing->text, sizeof thing->text, 'i'));
  thing->made = 0;
  count_up(&((struct Calls*)argument)->finis);
}
static int thing_ctor(void* object, size_t size, void* argument) {
  static int tries;
  struct Thing* thing = object;
  struct Calls* calls = argument;
  CHECK(size == sizeof *thing && thing->made == kMade && thing->state == kFree);
  if (fails(&tries, calls->fail_ctor)) return 1;
  thing->state = kUsed;
  count_up(&calls->ctors);
  return 0;
}
static void thing_dtor(void* object, size_t size, void* argument) {
  struct Thing* thing = object;
  CHECK(size == sizeof *thing && thing->made == kMade && thing->state == kUsed);
  thing->state = kFree;
  count_up(&((struct Calls*)argument)->dtors);
}
static struct lane_pool_options of_things(struct Calls* calls) {
  struct lane_pool_options options = {
      .name = "things", .object_size = sizeof(struct Thing), .argument = calls};
  options.init = thing_init;
  options.fini = thing_fini;
  options.ctor = thing_ctor;
  options.dtor = thing_dtor;
  return options;
}

// Each thread frees what the one before it has taken.
enum { kThreads = 4, kEach = 500, kRounds = 20 };
static lane_pool* shared_pool;
static struct Thing* handed[kThreads][kEach];
static pthread_barrier_t barrier;
static int refused;
static void* take_and_free_anothers(void* argument) {
  const size_t self = (size_t)argument;
  for (int round = 0; round < kRounds; round++) {
    for (int i = 0; i < kEach; i++)
      while ((handed[self][i] = lane_pool_alloc(shared_pool)) == NULL) {
        CHECK(errno == ENOMEM);
        count_up(&refused);
      }
    pthread_barrier_wait(&barrier);
    const size_t other = (self + 1) % kThreads;
    for (int i = 0; i < kEach; i++) lane_pool_free(shared_pool, handed[other][i]);
    if (round % 5 == 0) lane_pool_reclaim(shared_pool, (enum lane_reclaim)(self % 3));
    pthread_barrier_wait(&barrier);
  }
  return NULL;
}
CASE(functions_that_fail_fail_the_allocation_and_lose_nothing) {
  struct Calls calls = {.fail_init = 7, .fail_ctor = 11};
  const struct lane_pool_options options = of_things(&calls);
  shared_pool = made(&options);
  pthread_barrier_init(&barrier, NULL, kThreads);
  pthread_t threads[kThreads];
  start_threads(threads, kThreads, take_and_free_anothers);
  join_threads(threads, kThreads);
  const int all = kThreads * kRounds * kEach;
  CHECK_MSG(calls.ctors == all && calls.dtors == all, "%d %d", calls.ctors, calls.dtors);
  CHECK(figures(shared_pool).live == 0);
  CHECK(lane_pool_destroy(shared_pool) == 0);
  CHECK_MSG(calls.inits == calls.finis && calls.inits >= kEach, "%d %d", calls.inits, calls.finis);
  CHECK(refused > 0);
}

// --- Limits.

CASE(the_limit_is_reached_exactly_and_told) {
  enum { kLimit = 100 };
  struct lane_pool_options options = {.object_size = 64, .limit = kLimit, .reserve = 10};
  lane_pool* pool = made(&options);
  void* objects[kLimit];
  int n = 0;
  errno = 0;
  while (n < kLimit && (objects[n] = lane_pool_alloc(pool)) != NULL) n++;
  CHECK(n == 90 && errno == ENOMEM && figures(pool).limit_failures == 1);
  errno = 0;
  CHECK(lane_pool_alloc_with(pool, 0) == NULL && errno == ENOMEM &&
        figures(pool).limit_failures == 2);
  void* more[20];
  errno = 0;
  CHECK(lane_pool_alloc_batch(pool, more, 20, 0) == 0 && errno == ENOMEM);
  for (; n < kLimit; n++)
    CHECK((objects[n] = lane_pool_alloc_with(pool, LANE_POOL_USE_RESERVE)) != NULL);
  errno = 0;
  CHECK(lane_pool_alloc_with(pool, LANE_POOL_USE_RESERVE) == NULL && errno == ENOMEM);
  CHECK(figures(pool).live == kLimit && figures(pool).limit == kLimit &&
        figures(pool).reserve == 10);
  for (int i = 0; i < 10; i++) lane_pool_free(pool, objects[--n]);
  CHECK(lane_pool_alloc(pool) == NULL);  // the reserve comes first
  lane_pool_free(pool, objects[--n]);
  errno = 0;
  CHECK(lane_pool_alloc_batch(pool, more, 20, 0) == 1 && errno == ENOMEM && more[0] == objects[n]);
  lane_pool_free(pool, more[0]);
  CHECK(lane_pool_prealloc(pool, 2) == ENOMEM && lane_pool_prealloc(pool, 1) == 0);
  CHECK(lane_pool_set_limit(pool, 50) == 0 && lane_pool_alloc(pool) != NULL &&
        lane_pool_alloc(pool) == NULL);
  CHECK(lane_pool_set_limit(pool, 0) == 0 && figures(pool).limit == 0);
  for (int i = 0; i < 200; i++) CHECK(lane_pool_alloc(pool) != NULL);
  CHECK(lane_pool_destroy(pool) == 290);
}

CASE(one_pool_too_many_is_refused_and_its_place_found_again) {
  enum { kMost = 16383 };
  static lane_pool* pools[kMost + 1];
  const struct lane_pool_options options = {.object_size = 16, .reserve = 0};
  int n = 0;
  errno = 0;
  while (n <= kMost && (pools[n] = lane_pool_create(&options)) != NULL) n++;
  CHECK_MSG(n == kMost && errno == ENOMEM, "%d pools", n);
  CHECK(lane_pool_destroy(pools[5]) == 0);
  REQUIRE((pools[5] = lane_pool_create(&options)) != NULL);
  CHECK(lane_pool_alloc(pools[5]) != NULL && lane_pool_alloc(pools[n - 1]) != NULL);
  CHECK(lane_pool_destroy(pools[5]) == 1 && lane_pool_destroy(pools[n - 1]) == 1);
}

// --- Fork.

CASE(a_child_of_one_thread_has_everything) {
  struct Calls calls = {0};
  struct lane_pool_options options = of_things(&calls);
  options.limit = 300;
  options.reserve = 3;
  lane_pool* pool = made(&options);
  struct Thing* things[200];
  for (int i = 0; i < 200; i++) REQUIRE((things[i] = lane_pool_alloc(pool)) != NULL);
  pid_t pid = fork();
  if (pid == 0) {
    alarm(30);
    for (int i = 0; i < 150; i++) lane_pool_free(pool, things[i]);
    CHECK(figures(pool).live == 50);
    for (int i = 0; i < 247; i++) CHECK(lane_pool_alloc(pool) != NULL);
    CHECK(lane_pool_alloc(pool) == NULL &&
          lane_pool_alloc_with(pool, LANE_POOL_USE_RESERVE) != NULL);
    CHECK(lane_pool_destroy(pool) == 298);
    CHECK(calls.inits == 300 && calls.finis == 300 && calls.ctors == 448 && calls.dtors == 150);
    lane_pool* next = pool_of(100, "the child's");
    CHECK(next != NULL && lane_pool_alloc(next) != NULL && lane_pool_destroy(next) == 1);
    _exit(test_failures != 0);
  }
  CHECK(status_of(pid) == 0);
  CHECK(figures(pool).live == 200 && calls.dtors == 0);
  for (int i = 0; i < 200; i++) lane_pool_free(pool, things[i]);
  CHECK(lane_pool_destroy(pool) == 0 && calls.inits == calls.finis);
}
