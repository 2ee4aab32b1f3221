// Arenas by their C functions: linked with liblanemalloc.so, .a and _prefixed.a.
#include <lanemalloc/arena.h>

#include "../child.h"
#include "../run_threads.h"

static void add_blocks(struct lane_arena* arena, size_t n) {
  for (size_t i = arena->block_count; i < n || arena->block_count < n; i++) {
    char* piece = (char*)lane_arena_alloc(arena, 1600);
    REQUIRE(piece);
    fill(piece, 1600, (unsigned)i);
  }
}

CASE(all_zero_is_an_empty_arena) {
  struct lane_arena arena = {0};
  CHECK(lane_arena_bytes(&arena) == 0);
  lane_arena_reset(&arena);
  struct lane_arena_checkpoint empty = lane_arena_mark(&arena);
  lane_arena_rewind(&arena, empty);
  CHECK(lane_arena_alloc(&arena, 0) != NULL);
  char* piece = (char*)lane_arena_alloc(&arena, 100);
  CHECK(piece && (uintptr_t)piece % 16 == 0);
  CHECK(lane_arena_bytes(&arena) == 8192);
  CHECK(lane_arena_rollback(&arena, piece, 100) == 1 &&
        lane_arena_rollback(&arena, piece + 16, 100) == 0);
  lane_arena_rewind(&arena, empty);
  CHECK(lane_arena_alloc(&arena, 100) == piece);
  lane_arena_destroy(&arena);
  CHECK(lane_arena_bytes(&arena) == 0);
  lane_arena_destroy(&arena);
}

static void count_call(void* calls) { ++*(int*)calls; }
CASE(texts_and_functions) {
  struct lane_arena arena = {0};
  char* text = lane_arena_strdup(&arena, "grows");
  CHECK(lane_arena_realloc(&arena, text, 6, 600) == text && strcmp(text, "grows") == 0);
  CHECK(strcmp(lane_arena_strndup(&arena, "one two", 3), "one") == 0);
  CHECK(strcmp(lane_arena_concat(&arena, "/", "usr", "/", "lib", (char*)NULL), "/usr/lib") == 0);
  CHECK(strcmp(lane_arena_printf(&arena, "%d of %s", 7, "ten"), "7 of ten") == 0);
  CHECK(memcmp(lane_arena_memdup(&arena, "a\0c", 4), "a\0c", 4) == 0);
  int calls = 0;
  CHECK(lane_arena_at_reset(&arena, count_call, &calls) == 0);
  lane_arena_destroy(&arena);
  CHECK(calls == 1);
}

CASE(sizes_and_errors_are_as_declared) {
  struct lane_arena arena;
  CHECK(lane_arena_init(&arena, 255) == EINVAL && lane_arena_init(&arena, 524289) == EINVAL);
  CHECK(lane_arena_init(&arena, 524288) == 0 && lane_arena_init(&arena, 256) == 0);
  errno = 0;
  CHECK(lane_arena_alloc(&arena, hide_size(SIZE_MAX)) == NULL && errno == ENOMEM);
  errno = 0;
  CHECK(lane_arena_alloc_zeroed(&arena, hide_size(SIZE_MAX), 2) == NULL && errno == ENOMEM);
  errno = 0;
  CHECK(lane_arena_alloc_aligned(&arena, 24, 8) == NULL && errno == EINVAL);
  errno = 0;
  CHECK(lane_arena_alloc_aligned(&arena, 0, 8) == NULL && errno == EINVAL);
  for (size_t alignment = 1; alignment <= 1 << 20; alignment *= 2)
    for (size_t size = 1; size < 100000; size *= 7) {
      char* piece = (char*)lane_arena_alloc_aligned(&arena, alignment, size);
      CHECK_MSG(piece && (uintptr_t)piece % (alignment < 16 ? 16 : alignment) == 0, "%zu %zu",
                alignment, size);
      memset(piece, 1, size);
      CHECK(all_bytes(lane_arena_alloc_zeroed(&arena, size, 1), size, 0));
    }
  lane_arena_destroy(&arena);
}

// Each thread fills an arena and hands it on to the next, which resets it.
enum { kThreads = 4, kRounds = 300 };
static struct lane_arena handed[kThreads];
static pthread_barrier_t barrier;
static void* fill_and_hand_on(void* argument) {
  size_t self = (size_t)argument;
  for (size_t round = 0; round < kRounds; round++) {
    struct lane_arena* arena = &handed[(self + round) % kThreads];
    if (round % 5 == 4) {
      lane_arena_destroy(arena);
    } else if (round % 2) {
      lane_arena_reset(arena);
    }
    char* first = (char*)lane_arena_alloc(arena, 1000);
    REQUIRE(first);
    fill(first, 1000, (unsigned)self);
    add_blocks(arena, round % 40 + 1);
    void* large = lane_arena_alloc(arena, 100000);
    REQUIRE(large);
    memset(large, 1, 100000);
    CHECK(filled(first, 1000, (unsigned)self));
    pthread_barrier_wait(&barrier);
  }
  return NULL;
}
CASE(arenas_are_handed_on_between_threads) {
  pthread_t threads[kThreads];
  pthread_barrier_init(&barrier, NULL, kThreads);
  start_threads(threads, kThreads, fill_and_hand_on);
  join_threads(threads, kThreads);
  for (size_t i = 0; i < kThreads; i++) lane_arena_destroy(&handed[i]);
}

static int stop;
static void* fill_until_stopped(void* argument) {
  struct lane_arena arena = {0};
  while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
    add_blocks(&arena, 20);
    lane_arena_reset(&arena);
  }
  lane_arena_destroy(&arena);
  return argument;
}
CASE(a_child_goes_on_with_arenas) {
  pthread_t threads[2];
  start_threads(threads, 2, fill_until_stopped);
  struct lane_arena arena = {0};
  for (int round = 0; round < 100; round++) {
    char* piece = (char*)lane_arena_alloc(&arena, 3000);
    REQUIRE(piece);
    fill(piece, 3000, (unsigned)round);
    add_blocks(&arena, 30);
    pid_t pid = fork();
    if (pid == 0) {
      alarm(30);
      if (!filled(piece, 3000, (unsigned)round)) _exit(2);
      add_blocks(&arena, 60);
      lane_arena_reset(&arena);
      add_blocks(&arena, 60);
      lane_arena_destroy(&arena);
      _exit(0);
    }
    const int status = status_of(pid);
    CHECK_MSG(status == 0, "the child ended with 0x%x", status);
    lane_arena_reset(&arena);
  }
  __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
  join_threads(threads, 2);
  lane_arena_destroy(&arena);
}

CHILD(read_after_reset) {
  struct lane_arena arena = {0};
  char* piece = lane_arena_strdup(&arena, "text");
  lane_arena_reset(&arena);
  printf("%02x", (unsigned char)*(char*)hide(piece));
}
CHILD(rewind_to_another_arenas_checkpoint) {
  struct lane_arena arena = {0}, other = {0};
  lane_arena_alloc(&arena, 10);
  lane_arena_alloc(&other, 10);
  lane_arena_rewind(&arena, lane_arena_mark(&other));
  printf("%zu", arena.block_count);
}
CASE(lanemalloc_misuse_shows) {
  run_child_with("read_after_reset", "checked=1");
  CHECK_CHILD(child_succeeded() && strcmp(child.out, "fd") == 0);
  run_child_with("rewind_to_another_arenas_checkpoint", NULL);
  CHECK_CHILD(child_aborted() && line_count() == 1 &&
              lines_with("lanemalloc: lane_arena_rewind(0x", "not in the arena") == 1);
  run_child_with("rewind_to_another_arenas_checkpoint", "bad_pointer=report");
  CHECK_CHILD(child_succeeded() && line_count() == 1 && strcmp(child.out, "1") == 0);
}
