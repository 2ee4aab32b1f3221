// Programs that were compiled when the structs were shorter than in the library, or are longer now:
// options and statistics of pools, heaps and safepoints. Linked with liblanemalloc.so, .a and
// _prefixed.a.
#include <lanemalloc/heap.h>
#include <lanemalloc/pool.h>
#include <lanemalloc/safepoint.h>
#include <stddef.h>
#include <sys/mman.h>

#include "../child.h"

enum { kPage = 4096, kLater = 24, kCanary = 0xEE };

// Copies bytes to the end of a page that no readable one follows.
static void* at_the_end(const void* from, size_t size) {
  char* pages = mmap(NULL, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(pages != MAP_FAILED && mprotect(pages + kPage, kPage, PROT_NONE) == 0);
  return memcpy(pages + kPage - size, from, size);
}

static int refuse(void* object, size_t size, void* argument) {
  (void)object, (void)size, (void)argument;
  return 1;
}

static void pool_is_refused(const void* options, size_t bytes, int error) {
  errno = 0;
  CHECK_MSG(lane_pool_create_from(options, bytes) == NULL && errno == error, "%zu bytes: %d", bytes,
            errno);
}
static void heap_is_refused(const void* options, size_t bytes, int error) {
  errno = 0;
  CHECK_MSG(lane_heap_create_from(options, bytes) == NULL && errno == error, "%zu bytes: %d", bytes,
            errno);
}

CASE(a_field_that_an_older_program_lacks_has_its_default) {
  // With ctor, no allocation succeeds; with limit, the second one fails.
  const struct lane_pool_options all = {
      .name = "old", .object_size = 48, .alignment = 64, .ctor = refuse, .limit = 1};
  for (size_t bytes = 16; bytes <= sizeof all; bytes += 8) {
    lane_pool* pool = lane_pool_create_from(at_the_end(&all, bytes), bytes);
    REQUIRE(pool != NULL);
    void* object = lane_pool_alloc(pool);
    const int has_ctor = bytes > offsetof(struct lane_pool_options, ctor);
    CHECK_MSG((object == NULL) == has_ctor, "%zu bytes", bytes);
    struct lane_pool_statistics s;
    lane_pool_get_statistics(pool, &s);
    CHECK(strcmp(s.name, "old") == 0);
    const int has_alignment = bytes > offsetof(struct lane_pool_options, alignment);
    CHECK_MSG((s.object_size == 64) == has_alignment, "%zu bytes: %zu", bytes,
              (size_t)s.object_size);
    const int has_limit = bytes > offsetof(struct lane_pool_options, limit);
    CHECK_MSG(s.limit == (has_limit ? 1 : 0), "%zu bytes: %zu", bytes, (size_t)s.limit);
    if (object != NULL) lane_pool_free(pool, object);
    CHECK(lane_pool_destroy(pool) == 0);
  }
  lane_heap* parent = lane_heap_create(NULL);
  REQUIRE(parent != NULL);
  const struct lane_heap_options limited = {.name = "old", .parent = parent, .limit = 1 << 20};
  for (size_t bytes = 8; bytes <= sizeof limited; bytes += 8) {
    lane_heap* heap = lane_heap_create_from(at_the_end(&limited, bytes), bytes);
    REQUIRE(heap != NULL);
    void* object = lane_heap_alloc(heap, 2 << 20);
    const int has_limit = bytes > offsetof(struct lane_heap_options, limit);
    CHECK_MSG((object == NULL) == has_limit, "%zu bytes", bytes);
    struct lane_heap_statistics s;
    lane_heap_get_statistics(parent, &s);
    CHECK((s.used_bytes != 0) == (bytes == 16));
    CHECK(lane_heap_destroy(heap) == (object != NULL));
  }
  CHECK(lane_heap_destroy(parent) == 0);
}

CASE(a_length_that_no_program_has_is_refused) {
  const struct lane_pool_options pool = {.object_size = 48};
  const size_t of_pool[] = {0, 1, 8, 12, 15, 17, 20, sizeof pool - 1, sizeof pool + 1};
  for (size_t i = 0; i < sizeof of_pool / sizeof *of_pool; i++)
    pool_is_refused(&pool, of_pool[i], EINVAL);
  pool_is_refused(NULL, sizeof pool, EINVAL);
  const struct lane_heap_options heap = {.limit = 1 << 20};
  const size_t of_heap[] = {0, 1, 7, 9, 12, sizeof heap - 1, sizeof heap + 1};
  for (size_t i = 0; i < sizeof of_heap / sizeof *of_heap; i++)
    heap_is_refused(&heap, of_heap[i], EINVAL);
}

CASE(a_newer_program_may_leave_its_new_options_out) {
  struct {
    struct lane_pool_options known;
    char later[kLater];
  } pool_options = {.known = {.object_size = 48, .limit = 1}};
  lane_pool* pool =
      lane_pool_create_from(at_the_end(&pool_options, sizeof pool_options), sizeof pool_options);
  REQUIRE(pool != NULL);
  CHECK(lane_pool_alloc(pool) != NULL && lane_pool_alloc(pool) == NULL);
  CHECK(lane_pool_destroy(pool) == 1);
  struct {
    struct lane_heap_options known;
    char later[kLater];
  } heap_options = {.known = {.limit = 1 << 20}};
  lane_heap* heap =
      lane_heap_create_from(at_the_end(&heap_options, sizeof heap_options), sizeof heap_options);
  REQUIRE(heap != NULL);
  CHECK(lane_heap_alloc(heap, 2 << 20) == NULL);
  CHECK(lane_heap_destroy(heap) == 0);

  // Any byte of what the library does not know.
  for (size_t i = 0; i < kLater; i++) {
    pool_options.later[i] = heap_options.later[i] = 1;
    pool_is_refused(&pool_options, sizeof pool_options, E2BIG);
    heap_is_refused(&heap_options, sizeof heap_options, E2BIG);
    pool_options.later[i] = heap_options.later[i] = 0;
  }
}

// Whether `written` bytes are as in the whole statistics, then zeros follow up to `bytes`, and then
// nothing was touched.
static int is_filled(const char* got, const void* whole, size_t written, size_t bytes,
                     size_t size) {
  if (memcmp(got, whole, written) != 0) return 0;
  return all_bytes(got + written, bytes - written, 0) &&
         all_bytes(got + bytes, size - bytes, kCanary);
}

#define CHECK_FILLED(type, whole, call)                                                   \
  do {                                                                                    \
    char got[sizeof(type) + 2 * kLater];                                                  \
    for (size_t bytes = 0; bytes <= sizeof(type) + kLater; bytes++) {                     \
      memset(got, kCanary, sizeof got);                                                   \
      type* const into = (type*)(void*)got;                                               \
      call;                                                                               \
      const size_t written = bytes < sizeof(type) ? bytes : sizeof(type);                 \
      CHECK_MSG(is_filled(got, whole, written, bytes, sizeof got), #type ", %zu", bytes); \
    }                                                                                     \
  } while (0)

CASE(statistics_are_written_as_far_as_the_program_knows_them) {
  const struct lane_pool_options options = {.name = "counted", .object_size = 48, .limit = 9};
  lane_pool* pool = lane_pool_create(&options);
  REQUIRE(pool != NULL && lane_pool_alloc(pool) != NULL);
  struct lane_pool_statistics of_pool;
  lane_pool_get_statistics(pool, &of_pool);
  CHECK(of_pool.live == 1 && of_pool.limit == 9 && of_pool.refills != 0);
  CHECK_FILLED(struct lane_pool_statistics, &of_pool,
               lane_pool_get_statistics_into(pool, into, bytes));
  CHECK(lane_pool_destroy(pool) == 1);

  lane_heap* heap = lane_heap_create(NULL);
  REQUIRE(heap != NULL && lane_heap_alloc(heap, 100) != NULL);
  struct lane_heap_statistics of_heap;
  lane_heap_get_statistics(heap, &of_heap);
  CHECK(of_heap.live_objects == 1);
  CHECK_FILLED(struct lane_heap_statistics, &of_heap,
               lane_heap_get_statistics_into(heap, into, bytes));
  CHECK(lane_heap_destroy(heap) == 1);

  struct lane_safepoint_statistics of_all;
  lane_safepoint();
  lane_safepoint_get_statistics(&of_all);
  CHECK(of_all.stops == 1);
  CHECK_FILLED(struct lane_safepoint_statistics, &of_all,
               lane_safepoint_get_statistics_into(into, bytes));
}
