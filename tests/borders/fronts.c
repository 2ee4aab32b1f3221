// What the headers promise of heaps and pools, where requests are odd or refused.
// Linked with the library.
#include <lanemalloc/heap.h>
#include <pthread.h>

#include "check.h"
#include "child.h"

CASE(lanemalloc_heap_calloc_is_zero_to_the_last_usable_byte) {
  lane_heap* heap = lane_heap_create(NULL);
  for (size_t size = 0; size < (4u << 20); size += size < 3000 ? 1 : size / 7) {
    unsigned char* dirty = lane_heap_alloc(heap, size);
    REQUIRE(dirty != NULL);
    memset(dirty, 0xA5, lane_heap_usable_size(heap, dirty));
    lane_heap_free(heap, dirty);
    unsigned char* zero = lane_heap_alloc_zeroed(heap, 1, size);
    REQUIRE(zero != NULL);
    const size_t usable = lane_heap_usable_size(heap, zero);
    CHECK_MSG(all_bytes(zero, usable, 0), "lane_heap_alloc_zeroed(1, %zu), %zu usable", size, usable);
    lane_heap_free(heap, zero);
  }
  CHECK(lane_heap_destroy(heap) == 0);
}

// --- Requests that a heap refuses.

static int soft_calls;
static void on_soft_limit(lane_heap* heap, size_t used, void* argument) {
  (void)heap, (void)argument;
  soft_calls++;
  CHECK_MSG(used < ((size_t)1 << 40), "used %zu", used);
}

static lane_heap* heap_with_soft_limit(void) {
  const struct lane_heap_options options = {
      .name = "h", .soft_limit = 64u << 20, .on_soft_limit = on_soft_limit};
  lane_heap* heap = lane_heap_create(&options);
  REQUIRE(heap != NULL);
  return heap;
}

static uint64_t peak_of(lane_heap* heap) {
  struct lane_heap_statistics statistics;
  lane_heap_get_statistics(heap, &statistics);
  return statistics.peak_bytes;
}

// Of no size that there is memory for, small or large before.
CASE(lanemalloc_refused_request_leaves_peak_and_soft_limit_alone) {
  lane_heap* heap = heap_with_soft_limit();
  void* small = lane_heap_alloc(heap, 100);
  void* large = lane_heap_alloc(heap, 3u << 20);
  REQUIRE(small != NULL && large != NULL);
  memset(large, 7, 3u << 20);
  const uint64_t peak = peak_of(heap);
  for (int shift = 40; shift < 64; shift++) {
    const size_t size = hide_size((size_t)1 << shift);
    errno = 0;
    CHECK_MSG(lane_heap_alloc(heap, size) == NULL && errno == ENOMEM, "alloc(2^%d)", shift);
    CHECK_MSG(lane_heap_alloc_zeroed(heap, 1, size) == NULL, "alloc_zeroed(2^%d)", shift);
    CHECK_MSG(lane_heap_alloc_aligned(heap, 4096, size) == NULL, "alloc_aligned(2^%d)", shift);
    errno = 0;
    CHECK_MSG(lane_heap_realloc(heap, small, size) == NULL && errno == ENOMEM, "realloc(small, 2^%d)", shift);
    CHECK_MSG(lane_heap_realloc(heap, large, size) == NULL, "realloc(large, 2^%d)", shift);
  }
  CHECK(lane_heap_alloc(heap, hide_size(SIZE_MAX)) == NULL);
  CHECK_MSG(peak_of(heap) == peak, "%zu, %zu before", (size_t)peak_of(heap), (size_t)peak);
  CHECK_MSG(soft_calls == 0, "%d calls", soft_calls);
  CHECK(all_bytes(large, 3u << 20, 7));
  CHECK(lane_heap_destroy(heap) == 2);
}

// What a parent's limit refuses was never handed out in the child either.
CASE(lanemalloc_refusal_by_a_parent_leaves_the_child_alone) {
  const struct lane_heap_options of_parent = {.name = "parent", .limit = 8u << 20};
  lane_heap* parent = lane_heap_create(&of_parent);
  const struct lane_heap_options of_child = {
      .name = "child", .parent = parent, .soft_limit = 1u << 20, .on_soft_limit = on_soft_limit};
  lane_heap* heap = lane_heap_create(&of_child);
  REQUIRE(parent != NULL && heap != NULL);
  CHECK(lane_heap_alloc(heap, 64u << 20) == NULL);
  CHECK(lane_heap_alloc(heap, 16u << 20) == NULL);
  CHECK_MSG(peak_of(heap) == 0, "%zu", (size_t)peak_of(heap));
  CHECK_MSG(soft_calls == 0, "%d calls", soft_calls);
  CHECK(lane_heap_alloc(heap, 2u << 20) != NULL);
  CHECK(soft_calls == 1 && peak_of(heap) >= 2u << 20 && peak_of(parent) >= 2u << 20);
  CHECK(lane_heap_destroy(parent) == 1);
}

static int is_done;
static void* ask_for_too_much(void* heap) {
  while (!__atomic_load_n(&is_done, __ATOMIC_RELAXED)) CHECK(lane_heap_alloc(heap, (size_t)1 << 41) == NULL);
  return NULL;
}

// Half of the limit is free all the time, so nobody else is refused.
CASE(lanemalloc_refused_request_takes_no_room_from_other_threads) {
  const struct lane_heap_options options = {.name = "h", .limit = (size_t)3 << 40};
  lane_heap* heap = lane_heap_create(&options);
  REQUIRE(heap != NULL);
  pthread_t threads[3];
  for (int i = 0; i < 3; i++) REQUIRE(pthread_create(&threads[i], NULL, ask_for_too_much, heap) == 0);
  for (int i = 0; i < 20000; i++) {
    void* object = lane_heap_alloc(heap, 1u << 20);
    CHECK(object != NULL);
    lane_heap_free(heap, object);
  }
  __atomic_store_n(&is_done, 1, __ATOMIC_RELAXED);
  for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
  struct lane_heap_statistics statistics;
  lane_heap_get_statistics(heap, &statistics);
  CHECK_MSG(statistics.peak_bytes < 1u << 30, "%zu", (size_t)statistics.peak_bytes);
  CHECK(lane_heap_destroy(heap) == 0);
}
