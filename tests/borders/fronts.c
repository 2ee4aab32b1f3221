// What the headers promise of heaps and pools if requests are odd or refused.
// Linked with the library.
#include <lanemalloc/arena.h>
#include <lanemalloc/heap.h>
#include <lanemalloc/pool.h>
#include <lanemalloc/safepoint.h>
#include <sys/syscall.h>

#include "check.h"
#include "child.h"
#include "run_threads.h"

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
    CHECK_MSG(all_bytes(zero, usable, 0), "lane_heap_alloc_zeroed(1, %zu), %zu usable", size,
              usable);
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

// There is no memory for requests of these sizes, be it for a new object or to let a small or large
// one grow.
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
    CHECK_MSG(lane_heap_realloc(heap, small, size) == NULL && errno == ENOMEM,
              "realloc(small, 2^%d)", shift);
    CHECK_MSG(lane_heap_realloc(heap, large, size) == NULL, "realloc(large, 2^%d)", shift);
  }
  CHECK(lane_heap_alloc(heap, hide_size(SIZE_MAX)) == NULL);
  CHECK_MSG(peak_of(heap) == peak, "%zu, %zu before", (size_t)peak_of(heap), (size_t)peak);
  CHECK_MSG(soft_calls == 0, "%d calls", soft_calls);
  CHECK(all_bytes(large, 3u << 20, 7));
  CHECK(lane_heap_destroy(heap) == 2);
}

// A request that the parent's limit refuses does not count as handed out by the child either.
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
  while (!__atomic_load_n(&is_done, __ATOMIC_RELAXED))
    CHECK(lane_heap_alloc(heap, (size_t)1 << 41) == NULL);
  return NULL;
}

// Half of the limit is free all the time, so no other thread is refused.
CASE(lanemalloc_refused_request_takes_no_room_from_other_threads) {
  const struct lane_heap_options options = {.name = "h", .limit = (size_t)3 << 40};
  lane_heap* heap = lane_heap_create(&options);
  REQUIRE(heap != NULL);
  pthread_t threads[3];
  for (int i = 0; i < 3; i++)
    REQUIRE(pthread_create(&threads[i], NULL, ask_for_too_much, heap) == 0);
  for (int i = 0; i < 20000; i++) {
    void* object = lane_heap_alloc(heap, 1u << 20);
    CHECK(object != NULL);
    lane_heap_free(heap, object);
  }
  __atomic_store_n(&is_done, 1, __ATOMIC_RELAXED);
  join_threads(threads, 3);
  struct lane_heap_statistics statistics;
  lane_heap_get_statistics(heap, &statistics);
  CHECK_MSG(statistics.peak_bytes < 1u << 30, "%zu", (size_t)statistics.peak_bytes);
  CHECK(lane_heap_destroy(heap) == 0);
}

// --- Messages.

static void free_by_another(lane_heap* mine, lane_heap* other) {
  lane_heap_free(mine, lane_heap_alloc(other, 40));
}
CHILD(frees_in_the_wrong_one_of_two) {
  const struct lane_heap_options options = {.name = "a"};
  lane_heap* mine = lane_heap_create(&options);
  lane_heap* other = lane_heap_create(&options);
  say("%p %p\n", (void*)mine, (void*)other);
  free_by_another(mine, other);
}
CASE(lanemalloc_two_heaps_of_one_name_are_told_apart) {
  run_child_with("frees_in_the_wrong_one_of_two", "bad_pointer=report");
  void *mine = NULL, *other = NULL;
  char wanted[200];
  CHECK_CHILD(child_succeeded() && sscanf(child.out, "%p %p", &mine, &other) == 2);
  snprintf(wanted, sizeof wanted, "an object of heap \"a\" at %p, not of heap \"a\" at %p", other,
           mine);
  CHECK_CHILD(lines_with("lanemalloc: lane_heap_free(", wanted) == 1);
}

// The double free is found when the list is used.
CHILD(frees_an_object_of_a_pool_twice) {
  const struct lane_pool_options options = {.name = "p", .object_size = 48};
  lane_pool* pool = lane_pool_create(&options);
  enum { kMany = 4000 };
  static void* objects[kMany];
  for (int round = 0; round < 4; round++) {
    for (int i = 0; i < kMany; i++) objects[i] = lane_pool_alloc(pool);
    for (int i = 0; i < kMany; i++) lane_pool_free(pool, objects[i]);
    for (int i = 0; i < kMany; i += 7) lane_pool_free(pool, hide(objects[i]));
  }
}
CASE(lanemalloc_double_free_of_a_pool_names_the_pool) {
  char options[100];
  const char* lanes = getenv("LANEMALLOC_OPTIONS");
  snprintf(options, sizeof options, "%s%sbad_pointer=report", lanes ? lanes : "", lanes ? "," : "");
  run_child_with("frees_an_object_of_a_pool_twice", options);
  CHECK_CHILD(line_count() > 0 &&
              lines_with("lanemalloc: lane_pool_free(", "given to pool \"p\"") == line_count());
}

// --- Arenas.

CHILD(rewinds_to_what_is_gone) {
  struct lane_arena arena;
  REQUIRE(lane_arena_init(&arena, 4096) == 0);
  // The checkpoint is from before a reset.
  lane_arena_alloc(&arena, 1000);
  struct lane_arena_checkpoint stale = lane_arena_mark(&arena);
  lane_arena_reset(&arena);
  char* piece = lane_arena_alloc(&arena, 100);
  memset(piece, 7, 100);
  lane_arena_rewind(&arena, stale);
  CHECK(all_bytes(piece, 100, 7) && (char*)lane_arena_alloc(&arena, 16) == piece + 112);
  // The checkpoint lies behind an earlier one that the arena was rewound to, and its functions are
  // gone.
  lane_arena_reset(&arena);
  struct lane_arena_checkpoint early = lane_arena_mark(&arena);
  lane_arena_at_reset(&arena, free, malloc(10));
  stale = lane_arena_mark(&arena);
  lane_arena_rewind(&arena, early);
  for (int i = 0; i < 20; i++) memset(lane_arena_alloc(&arena, 100), 7, 100);
  lane_arena_rewind(&arena, stale);
  for (int i = 0; i < 20; i++) CHECK(lane_arena_alloc(&arena, 100) != NULL);
  // A good checkpoint still works.
  struct lane_arena_checkpoint good = lane_arena_mark(&arena);
  for (int i = 0; i < 200; i++) memset(lane_arena_alloc(&arena, 100), 8, 100);
  lane_arena_rewind(&arena, good);
  lane_arena_destroy(&arena);
}
CASE(lanemalloc_stale_checkpoint_is_told) {
  char options[100];
  const char* lanes = getenv("LANEMALLOC_OPTIONS");
  snprintf(options, sizeof options, "%s%sbad_pointer=report", lanes ? lanes : "", lanes ? "," : "");
  run_child_with("rewinds_to_what_is_gone", options);
  CHECK_CHILD(child_succeeded());
  CHECK_CHILD(line_count() == 2 &&
              lines_with("lanemalloc: lane_arena_rewind(", "is not in the arena") == 2);
}

// --- Readers.

static struct lane_reader reader;
static uint64_t freed(void) {
  struct lane_safepoint_statistics statistics;
  lane_safepoint_get_statistics(&statistics);
  return statistics.freed;
}

CHILD(leaves_a_section_that_it_is_not_in) {
  REQUIRE(lane_reader_register(&reader, "r") == 0);
  lane_reader_exit(&reader);
  // The next read section protects all the same.
  lane_reader_enter(&reader);
  CHECK(lane_safepoint_free(malloc(100)) == 0);
  lane_safepoint_poll();
  CHECK_MSG(freed() == 0, "%d", (int)freed());
  lane_reader_exit(&reader);
  lane_safepoint_poll();
  CHECK_MSG(freed() == 1, "%d", (int)freed());
  // The same with nested sections, while the reader is online.
  lane_reader_online(&reader);
  lane_reader_enter(&reader);
  lane_reader_enter(&reader);
  for (int i = 0; i < 3; i++) lane_reader_exit(&reader);
  CHECK(lane_safepoint_free(malloc(100)) == 0);
  lane_safepoint_poll();
  CHECK_MSG(freed() == 1, "%d", (int)freed());
  lane_reader_offline(&reader);
  lane_safepoint_poll();
  CHECK_MSG(freed() == 2, "%d", (int)freed());
  CHECK(lane_reader_unregister(&reader) == 0);
}
CASE(lanemalloc_leaving_no_section_is_told) {
  run_child_with("leaves_a_section_that_it_is_not_in", "bad_pointer=report");
  CHECK_CHILD(child_succeeded());
  CHECK_CHILD(line_count() == 2 &&
              lines_with("lanemalloc: lane_reader_exit(", "in no read section") == 2);
}

static void* ends_in_a_section(void* nothing) {
  REQUIRE(lane_reader_register(&reader, "gone") == 0);
  lane_reader_enter(&reader);
  lane_reader_enter(&reader);
  return nothing;
}
static void* ends_online(void* nothing) {
  REQUIRE(lane_reader_register(&reader, "gone") == 0);
  lane_reader_online(&reader);
  pthread_exit(nothing);
}
// test_argument: how the reader's thread ends.
CHILD(outlives_a_reader) {
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, test_argument[0] == 'o' ? ends_online : ends_in_a_section,
                         NULL) == 0);
  pthread_join(thread, NULL);
  static struct lane_reader own;
  REQUIRE(lane_reader_register(&own, "main") == 0);
  for (int i = 0; i < 100; i++) CHECK(lane_safepoint_free(malloc(100)) == 0);
  CHECK(lane_safepoint_wait() == 0);
  CHECK(freed() == 100);
  // Another thread may use the reader now.
  CHECK(lane_reader_unregister(&reader) == 0);
  CHECK(lane_reader_register(&reader, "again") == 0);
  lane_reader_enter(&reader);
  CHECK(lane_safepoint_wait() == EDEADLK);
  CHECK(lane_safepoint_free(malloc(100)) == 0);
  lane_safepoint_poll();
  CHECK(freed() == 100);
  lane_reader_exit(&reader);
}
CASE(lanemalloc_reader_whose_thread_is_gone_holds_nothing_up) {
  static const char* const kWays[] = {"section", "online"};
  for (int i = 0; i < 2; i++) {
    memset(&child, 0, offsetof(struct Child, out));
    child.options = getenv("LANEMALLOC_OPTIONS");
    child.argument = kWays[i];
    run_child("outlives_a_reader");
    CHECK_CHILD(child_succeeded());
    CHECK_CHILD(line_count() == 1 &&
                lines_with("lanemalloc: reader 'gone' at 0x", "has ended") == 1);
  }
}

// Destructors of the thread's keys may still read, in any round.
static pthread_key_t late_key;
static void reads_late(void* rounds) {
  if ((size_t)rounds == 4) lane_reader_exit(&reader);
  lane_reader_enter(&reader);
  lane_safepoint_poll();
  if ((size_t)rounds == 1) lane_reader_exit(&reader);
  lane_reader_exit(&reader);
  if ((size_t)rounds == 4) lane_reader_enter(&reader);
  if ((size_t)rounds > 1) pthread_setspecific(late_key, (void*)((size_t)rounds - 1));
}
static void* ends_late(void* nothing) {
  REQUIRE(lane_reader_register(&reader, "late") == 0);
  REQUIRE(pthread_key_create(&late_key, reads_late) == 0);
  pthread_setspecific(late_key, (void*)4);
  lane_reader_enter(&reader);
  CHECK(lane_safepoint_free(malloc(100)) == 0);
  return nothing;
}
CASE(lanemalloc_sections_of_late_destructors_last) {
  run_thread(ends_late, NULL);
  CHECK(lane_reader_unregister(&reader) == 0);
}

// The library does not notice a thread that ends by the system call alone, but its line on standard
// error says that the thread is gone.
static void* ends_bare(void* nothing) {
  REQUIRE(lane_reader_register(&reader, "bare") == 0);
  lane_reader_enter(&reader);
  syscall(SYS_exit, 0);
  return nothing;
}
static void* leave_for_it(void* nothing) {
  usleep(1500000);
  lane_reader_exit(&reader);
  return nothing;
}
CHILD(outlives_a_bare_end) {
  pthread_t thread;
  run_thread(ends_bare, NULL);
  for (int i = 0; i < 100; i++) CHECK(lane_safepoint_free(malloc(100)) == 0);
  REQUIRE(pthread_create(&thread, NULL, leave_for_it, NULL) == 0);
  CHECK(lane_safepoint_wait() == 0);
}
CASE(lanemalloc_held_up_by_a_thread_that_is_gone_says_so) {
  run_child_with("outlives_a_bare_end", getenv("LANEMALLOC_OPTIONS"));
  CHECK_CHILD(child_succeeded());
  CHECK_CHILD(line_count() >= 1 && lines_with("has held up deferred frees",
                                              "which registered it, is gone") == line_count());
}

// In a child of fork, threads have other numbers.
CASE(lanemalloc_section_lasts_across_a_fork) {
  REQUIRE(lane_reader_register(&reader, "main") == 0);
  lane_reader_enter(&reader);
  CHECK(lane_safepoint_free(malloc(100)) == 0);
  const pid_t pid = fork();
  if (pid == 0) {
    lane_safepoint_poll();
    _exit(freed() != 0);
  }
  CHECK(status_of(pid) == 0);
  lane_reader_exit(&reader);
}

// --- Deferred frees of a heap that is destroyed.

CASE(lanemalloc_deferred_frees_of_a_destroyed_heap_count_at_once) {
  lane_heap* heap = lane_heap_create(NULL);
  REQUIRE(lane_reader_register(&reader, NULL) == 0);
  for (int i = 0; i < 100; i++)
    CHECK(lane_safepoint_heap_free(heap, lane_heap_alloc(heap, 100)) == 0);
  CHECK(freed() == 0);
  CHECK_MSG(lane_heap_destroy(heap) == 0, "they were freed before");
  CHECK_MSG(freed() == 100, "%d", (int)freed());
  CHECK(lane_safepoint_poll() == 0);
  CHECK_MSG(freed() == 100, "%d", (int)freed());
  CHECK(lane_safepoint_free(malloc(100)) == 0);
  CHECK(lane_safepoint_wait() == 0);
  CHECK_MSG(freed() == 101, "%d", (int)freed());
}
