// What programs may do wrong with lanemalloc's own heaps, pools, arenas and deferred frees.
#include <lanemalloc/arena.h>
#include <lanemalloc/heap.h>
#include <lanemalloc/pool.h>
#include <lanemalloc/safepoint.h>

#include "misuse.h"

static uintptr_t target[64] __attribute__((aligned(4096)));
static void* kept[2000];

// --- Heaps and pools have most mistakes in common. `front` is what take() and give() use.

static lane_heap *heap, *other_heap;
static lane_pool *pool, *other_pool;

static void* take_of_heap(size_t size) { return lane_heap_alloc(heap, size); }
static void give_to_heap(void* object, size_t size) {
  if (size % 32 == 0) return lane_heap_free_sized(heap, object, size);
  lane_heap_free(heap, object);
}
static void* take_of_pool(size_t size) {
  (void)size;
  return lane_pool_alloc(pool);
}
static void give_to_pool(void* object, size_t size) {
  (void)size;
  lane_pool_free(pool, object);
}
enum Front { kHeap, kPool, kSizedHeap };
static void start(long front, size_t size) {
  const struct lane_heap_options of_heap = {.name = "mine"}, of_other_heap = {.name = "other"};
  const struct lane_pool_options of_pool = {.name = "mine", .object_size = size},
                                 of_other_pool = {.name = "other", .object_size = size};
  heap = lane_heap_create(&of_heap);
  other_heap = lane_heap_create(&of_other_heap);
  pool = size <= 512 << 10 ? lane_pool_create(&of_pool) : NULL;
  other_pool = size <= 512 << 10 ? lane_pool_create(&of_other_pool) : NULL;
  REQUIRE(heap && other_heap && (size > 512 << 10 || (pool && other_pool)));
  allocate = front == kPool ? take_of_pool : take_of_heap;
  release = front == kPool ? give_to_pool : give_to_heap;
  alignment = 8;
}
static void free_here(long front, void* object, size_t size) {
  if (front == kPool) return lane_pool_free(pool, hide(object));
  if (front == kSizedHeap) return lane_heap_free_sized(heap, hide(object), size);
  lane_heap_free(heap, hide(object));
}
struct Free {
  long front;
  void* object;
  size_t size;
};
static void free_there(void* argument) {
  const struct Free* what = (const struct Free*)argument;
  free_here(what->front, what->object, what->size);
}

// a: the front. b: how many others are freed between; below 0: another thread frees it again.
static void twice(const struct Case* c) {
  start(c->a, c->size);
  void* object = take(c->size);
  const long between = c->b < 0 ? 0 : c->b;
  for (long i = 0; i < between; i++) kept[i] = take(c->size);
  void* behind = take(c->size);
  give(object);
  for (long i = 0; i < between; i++) give(kept[i]);
  if (mistake("an object is freed that is free already")) {
    struct Free again = {c->a, object, c->size};
    if (c->b < 0) {
      in_thread(free_there, &again);
    } else {
      free_there(&again);
    }
  }
  probe(c->size);
  give(behind);
}
static void twice_first_by_thread(const struct Case* c) {
  start(c->a, c->size);
  void* object = take(c->size);
  take(c->size);
  forget(object);
  struct Free first = {c->a, object, c->size};
  in_thread(free_there, &first);
  if (mistake("an object is freed that another thread has freed")) free_there(&first);
  probe(c->size);
}
enum Stranger {
  kOfOther,
  kOfMalloc,
  kOfTheOtherFront,
  kInterior,
  kOffBy8,
  kStackBytes,
  kStaticBytes,
  kNever,
  kSmallNumber,
};
static void stranger(const struct Case* c) {
  char stack[512] __attribute__((aligned(64))) = {0};
  start(c->a, c->size);
  void* own = take(c->size);
  void* object = NULL;
  switch ((enum Stranger)c->b) {
    case kOfOther:
      object = c->a == kPool ? lane_pool_alloc(other_pool) : lane_heap_alloc(other_heap, c->size);
      break;
    case kOfMalloc:
      object = malloc(c->size);
      break;
    case kOfTheOtherFront:
      object = c->a == kPool ? lane_heap_alloc(heap, c->size) : lane_pool_alloc(pool);
      break;
    case kInterior:
      object = (char*)own + (c->size / 2 & ~(size_t)15);
      break;
    case kOffBy8:
      object = (char*)own + 8;
      break;
    case kStackBytes:
      aim(stack, sizeof stack, "an address on the stack");
      object = (char*)hide(stack) + 64;
      break;
    case kStaticBytes:
      aim(target, sizeof target, "a global");
      object = target;
      break;
    case kNever:
      object = (char*)own + 60 * c->size;
      break;
    case kSmallNumber:
      object = (void*)16;
      break;
  }
  if (c->b <= kOfTheOtherFront) keep(object, c->size);
  if (mistake("a pointer is freed that is none of its objects")) free_here(c->a, object, c->size);
  probe(c->size);
  allocate = take_of_malloc;
  release = give_to_malloc;
  probe(c->size);
}
// malloc's functions get one of its objects. b: which.
enum { kFree, kRealloc, kUsable };
static void to_malloc(const struct Case* c) {
  start(c->a, c->size);
  void* object = take(c->size);
  if (mistake("one of its objects is given to malloc's functions")) {
    if (c->b == kFree) free(hide(object));
    if (c->b == kRealloc && realloc(hide(object), c->size * 2) == NULL) result("refused");
    if (c->b == kUsable && malloc_usable_size(hide(object)) == 0) result("refused");
  }
  probe(c->size);
  allocate = take_of_malloc;
  release = give_to_malloc;
  probe(c->size);
}
// b: the aim, as in poison.c, by a plain write or by what is read there.
enum Aim { kGlobal, kOnStack, kLive, kMiddle, kNull, kOnes, kAddToGlobal, kAddToLive, kReplay };
static void poison(const struct Case* c) {
  uintptr_t stack[64] __attribute__((aligned(64))) = {0};
  start(c->a, c->size);
  for (int i = 0; i < 20; i++) kept[i] = take(c->size);
  char* in_use = (char*)kept[1];
  for (int i = 0; i < 6; i++) give(kept[4 + 2 * i]);
  volatile uintptr_t* top = (volatile uintptr_t*)hide(kept[14]);
  const uintptr_t end = *(uintptr_t*)hide(kept[4]), word = *top, next = (uintptr_t)kept[12];
  void* at = hide(stack);
  if (c->b == kGlobal || c->b == kAddToGlobal) at = target;
  if (c->b == kLive || c->b == kAddToLive) at = in_use;
  if (c->b == kMiddle) at = in_use + (c->size / 2 & ~(size_t)15);
  if (c->b == kReplay) {
    unsigned found = 0;
    for (unsigned i = 0; i < probes_for(c->size) && found < 2; i++) {
      void* object = take(c->size);
      found += object == kept[14] || object == kept[12];
    }
    if (found < 2) absent("the objects were not handed out again");
    give(kept[14]);
    at = kept[12];
  }
  if (c->b != kNull && c->b != kOnes) {
    aim(at, 16, "the attacker's address");
    *(volatile uintptr_t*)at = end;
    own_word = (unsigned char*)at;
  }
  if (access_mistake("a free object is overwritten")) {
    *top = c->b == kNull          ? 0
           : c->b == kOnes        ? UINTPTR_MAX
           : c->b == kReplay      ? word
           : c->b >= kAddToGlobal ? word + ((uintptr_t)at - next)
                                  : (uintptr_t)at;
  }
  made();
  probe(c->size);
}
// The bytes behind an object are overwritten. b: how many.
static void past(const struct Case* c) {
  start(c->a, c->size);
  for (int i = 0; i < 20; i++) kept[i] = take(c->size);
  if (access_mistake("bytes behind an object are overwritten"))
    memset(hide((char*)kept[10] + c->size), 0x41, (size_t)c->b);
  made();
  repair();
  for (int i = 0; i < 20; i++) {
    forget(kept[i]);
    free_here(c->a, kept[i], c->size);
  }
  probe(c->size);
}
static void after(const struct Case* c) {
  start(c->a, c->size);
  for (int i = 0; i < 20; i++) kept[i] = take(c->size);
  give(kept[10]);
  if (access_mistake("a free object is overwritten"))
    memset(hide((char*)kept[10] + c->b), 0x41, c->size - (size_t)c->b);
  made();
  probe(c->size);
}
// b: what is done with what was destroyed.
enum { kAllocate, kFreeOld, kDestroy, kStatistics, kAllocateMany, kReallocOld };
static void destroyed(const struct Case* c) {
  start(c->a, c->size);
  void* object = take(c->size);
  void* of_other = take(c->size);
  live_count = 0;
  if (c->a == kPool) {
    lane_pool_destroy(pool);
  } else {
    lane_heap_destroy(heap);
  }
  if (mistake("it is used after it was destroyed")) {
    if (c->a == kPool) {
      struct lane_pool_statistics statistics;
      if (c->b == kAllocate) kept[0] = lane_pool_alloc(pool);
      if (c->b == kAllocateMany) kept[0] = (void*)lane_pool_alloc_batch(pool, kept, 100, 0);
      if (c->b == kFreeOld) lane_pool_free(pool, hide(object));
      if (c->b == kDestroy) lane_pool_destroy(pool);
      if (c->b == kStatistics) lane_pool_get_statistics(pool, &statistics);
    } else {
      struct lane_heap_statistics statistics;
      if (c->b == kAllocate) kept[0] = lane_heap_alloc(heap, c->size);
      if (c->b == kFreeOld) lane_heap_free(heap, hide(object));
      if (c->b == kDestroy) lane_heap_destroy(heap);
      if (c->b == kStatistics) lane_heap_get_statistics(heap, &statistics);
      if (c->b == kReallocOld) kept[0] = lane_heap_realloc(heap, hide(object), c->size * 2);
    }
  }
  hide(of_other);
  start(c->a, c->size);
  probe(c->size);
}
// An object that has outlived its heap or pool is given to another.
static void outlived(const struct Case* c) {
  start(c->a, c->size);
  void* object = take(c->size);
  live_count = 0;
  if (c->a == kPool) {
    lane_pool_destroy(pool);
    pool = other_pool;
  } else {
    lane_heap_destroy(heap);
    heap = other_heap;
  }
  void* own = take(c->size);
  if (mistake("an object of what was destroyed is freed elsewhere"))
    free_here(c->a, object, c->size);
  probe(c->size);
  give(own);
}
// b: what is given in the place of a heap or pool.
enum { kNothing, kWrongFront, kNumber, kPointer };
static void no_front(const struct Case* c) {
  start(c->a, c->size);
  void* object = take(c->size);
  void* wrong = c->b == kNothing      ? NULL
                : c->b == kWrongFront ? (c->a == kPool ? (void*)heap : (void*)pool)
                : c->b == kNumber     ? (void*)0x123456789
                                      : (void*)target;
  if (mistake("what is no heap or pool is used as one")) {
    void* got;
    if (c->a == kPool) {
      lane_pool_free((lane_pool*)hide(wrong), object);
      got = lane_pool_alloc((lane_pool*)hide(wrong));
    } else {
      lane_heap_free((lane_heap*)hide(wrong), object);
      got = lane_heap_alloc((lane_heap*)hide(wrong), c->size);
    }
    if (got == NULL) result("refused");
  }
  probe(c->size);
}

// --- What only heaps have.

// b: the wrong size less the right one.
static void wrong_size(const struct Case* c) {
  start(kHeap, c->size);
  void* object = take(c->size);
  void* behind = take(c->size);
  forget(object);
  lane_heap_free_sized(
      heap, hide(object),
      mistake("an object is freed with a wrong size") ? c->size + (size_t)c->b : c->size);
  probe(c->size);
  if (c->b > 0 || (size_t)-c->b < c->size) probe(c->size + (size_t)c->b);
  give(behind);
}

// --- What only pools have.

static void free_batch_twice(const struct Case* c) {
  start(kPool, c->size);
  REQUIRE(lane_pool_alloc_batch(pool, kept, 100, 0) == 100);
  if (mistake("an object is in a batch of frees twice")) kept[c->a] = kept[c->b];
  lane_pool_free_batch(pool, kept, 100);
  probe(c->size);
}
static int initialize(void* object, size_t size, void* argument) {
  (void)argument;
  memset(object, 0x11, size);
  return 0;
}
// The links lie behind the contents, which stay. b: what is overwritten there.
static void initialized(const struct Case* c) {
  start(kPool, c->size);
  const struct lane_pool_options options = {
      .name = "initialized", .object_size = c->size, .init = initialize};
  pool = lane_pool_create(&options);
  REQUIRE(pool != NULL);
  for (int i = 0; i < 20; i++) kept[i] = take(c->size);
  for (int i = 0; i < 6; i++) give(kept[4 + 2 * i]);
  aim(target, sizeof target, "a global");
  if (access_mistake("the words behind a free object are overwritten")) {
    if (c->b == kGlobal) *(volatile uintptr_t*)hide((char*)kept[14] + c->size) = (uintptr_t)target;
    if (c->b == kOnes) memset(hide((char*)kept[14] + c->size), 0xff, 16);
  }
  made();
  probe(c->size);
}
static void initialized_twice(const struct Case* c) {
  start(kPool, c->size);
  const struct lane_pool_options options = {
      .name = "initialized", .object_size = c->size, .init = initialize};
  pool = lane_pool_create(&options);
  void* object = take(c->size);
  for (long i = 0; i < c->b; i++) kept[i] = take(c->size);
  give(object);
  for (long i = 0; i < c->b; i++) give(kept[i]);
  if (mistake("an object is freed that is free already")) lane_pool_free(pool, hide(object));
  probe(c->size);
}

// --- Arenas.

static void arena_rewind_other(const struct Case* c) {
  struct lane_arena one = {0}, two = {0};
  keep(lane_arena_alloc(&one, c->size), c->size);
  keep(lane_arena_alloc(&two, c->size), c->size);
  const struct lane_arena_checkpoint place = lane_arena_mark(&two);
  if (mistake("an arena is rewound to a place in another")) lane_arena_rewind(&one, place);
  keep(lane_arena_alloc(&one, c->size), c->size);
}
static void arena_rewind_stale(const struct Case* c) {
  struct lane_arena arena = {0};
  for (int i = 0; i < 40; i++) lane_arena_alloc(&arena, 1000);
  const struct lane_arena_checkpoint place = lane_arena_mark(&arena);
  lane_arena_reset(&arena);
  if (mistake("an arena is rewound to a place from before its reset"))
    lane_arena_rewind(&arena, place);
  for (int i = 0; i < 20; i++) keep(lane_arena_alloc(&arena, 1000), 1000);
  (void)c;
}
static void arena_rewind_forward(const struct Case* c) {
  struct lane_arena arena = {0};
  lane_arena_alloc(&arena, 100);
  const struct lane_arena_checkpoint early = lane_arena_mark(&arena);
  lane_arena_alloc(&arena, 100);
  const struct lane_arena_checkpoint later = lane_arena_mark(&arena);
  lane_arena_rewind(&arena, early);
  if (mistake("an arena is rewound to a later place, which a rewind has made invalid"))
    lane_arena_rewind(&arena, later);
  keep(lane_arena_alloc(&arena, 100), 100);
  (void)c;
}
// a: the difference of the size that is told.
static void arena_rollback(const struct Case* c) {
  struct lane_arena arena = {0};
  char* first = (char*)lane_arena_alloc(&arena, c->size);
  keep(first, c->size);
  char* last = (char*)lane_arena_alloc(&arena, c->size);
  if (mistake("a piece is rolled back with a wrong size") &&
      lane_arena_rollback(&arena, last, c->size + (size_t)c->a) == 0)
    result("refused");
  keep(lane_arena_alloc(&arena, c->size), c->size);
}
static void arena_rollback_other(const struct Case* c) {
  struct lane_arena arena = {0};
  char* first = (char*)lane_arena_alloc(&arena, c->size);
  keep(lane_arena_alloc(&arena, c->size), c->size);
  if (mistake("a piece is rolled back that is not the last one") &&
      lane_arena_rollback(&arena, first, c->size) == 0)
    result("refused");
  keep(lane_arena_alloc(&arena, c->size), c->size);
}
static void arena_realloc(const struct Case* c) {
  struct lane_arena arena = {0};
  char* piece = (char*)lane_arena_alloc(&arena, c->size);
  keep(lane_arena_alloc(&arena, c->size), c->size);
  if (mistake("a piece is resized with a wrong old size"))
    piece = (char*)lane_arena_realloc(&arena, piece, c->size + (size_t)c->a, c->size * 2);
  keep(piece, c->size);
}
static void arena_read_after_reset(const struct Case* c) {
  struct lane_arena arena = {0};
  char* piece = (char*)lane_arena_alloc(&arena, c->size);
  memcpy(piece + 32, "a secret of 16 b", 16);
  if (c->a) {
    lane_arena_destroy(&arena);
  } else {
    lane_arena_reset(&arena);
  }
  if (access_mistake("a piece is read after the reset") &&
      memcmp(hide(piece + 32), "a secret of 16 b", 16) == 0)
    harm("stale", "what was in the piece can be read after the reset");
  made();
}
// Before the first piece of a block lies the block's header, with a link to the block before it.
static void arena_underflow(const struct Case* c) {
  struct lane_arena arena = {0};
  char* piece = (char*)lane_arena_alloc(&arena, 100);
  for (int i = 0; i < 40; i++) lane_arena_alloc(&arena, 1000);
  char* newest = (char*)arena.next - 1008;
  while ((uintptr_t)newest % 16 != 0) newest--;
  const uintptr_t fake[2] = {(uintptr_t)target, (uintptr_t)target};
  aim(target, sizeof target, "a global");
  if (access_mistake("the words before the first piece are overwritten"))
    memcpy(hide(c->a ? piece - 16 : (char*)arena.blocks), fake, sizeof fake);
  made();
  lane_arena_reset(&arena);
  lane_arena_destroy(&arena);
  hide(newest);
  probe(64);
  probe(8192);
}
// The arena itself is overwritten, as by an overrun on the stack.
static void arena_smashed(const struct Case* c) {
  struct lane_arena arena = {0};
  lane_arena_alloc(&arena, 100);
  if (access_mistake("the arena's members are overwritten")) {
    if (c->a == 0) memset(hide(&arena), 0x41, sizeof arena);
    if (c->a == 1) arena.blocks = (struct lane_arena_block*)hide(target);
  }
  made();
  lane_arena_reset(&arena);
  probe(8192);
}
static void arena_past(const struct Case* c) {
  struct lane_arena arena = {0};
  for (int i = 0; i < 4; i++) kept[i] = lane_arena_alloc(&arena, 2000);
  char* neighbor = (char*)take(8192);
  if (access_mistake("bytes behind the last piece of a block are overwritten"))
    memset(hide((char*)kept[3] + 2000), 0x41, (size_t)c->a);
  made();
  repair();
  lane_arena_destroy(&arena);
  probe(8192);
  hide(neighbor);
}
static void arena_use_by_free(const struct Case* c) {
  struct lane_arena arena = {0};
  char* piece = (char*)lane_arena_alloc(&arena, c->size);
  keep(lane_arena_alloc(&arena, c->size), c->size);
  if (mistake("free of a piece of an arena")) free(hide(piece));
  probe(8192);
}
static void arena_block_freed(const struct Case* c) {
  struct lane_arena arena = {0};
  lane_arena_alloc(&arena, 100);
  if (mistake("an arena is destroyed, a copy of it too")) {
    struct lane_arena copy = arena;
    lane_arena_destroy(&copy);
  }
  lane_arena_destroy(&arena);
  probe(8192);
  (void)c;
}

// --- Deferred frees.

static void pass_safepoints(void) { REQUIRE(lane_safepoint() > 0); }
static void deferred_twice(const struct Case* c) {
  void* object = take(c->size);
  void* behind = take(c->size);
  forget(object);
  lane_safepoint_free(hide(object));
  if (c->a) pass_safepoints();
  if (mistake("an object is deferred twice")) {
    lane_safepoint_free(hide(object));
    pass_safepoints();
  }
  probe(c->size);
  give(behind);
}
static void deferred_and_freed(const struct Case* c) {
  void* object = take(c->size);
  void* behind = take(c->size);
  forget(object);
  if (c->a) {
    lane_safepoint_free(hide(object));
    if (mistake("an object is freed that was deferred")) free(hide(object));
    pass_safepoints();
  } else {
    free(hide(object));
    if (mistake("an object is deferred that was freed")) {
      lane_safepoint_free(hide(object));
      pass_safepoints();
    }
  }
  probe(c->size);
  give(behind);
}
static void deferred_stranger(const struct Case* c) {
  char stack[512] __attribute__((aligned(64))) = {0};
  void* own = take(c->size);
  aim(stack, sizeof stack, "an address on the stack");
  if (mistake("a pointer is deferred that is no object")) {
    lane_safepoint_free(c->a == 0 ? (char*)hide(stack) + 64 : (char*)own + 16);
    pass_safepoints();
  }
  probe(c->size);
}
// An object of a heap or of a pool.
static void deferred_of_front(const struct Case* c) {
  start(c->a, c->size);
  void* object = take(c->size);
  void* behind = take(c->size);
  forget(object);
  for (int times = mistake("an object of a heap or pool is deferred twice") ? 2 : 1; times > 0;
       times--) {
    if (c->a == kPool) {
      lane_safepoint_pool_free(pool, hide(object));
    } else {
      lane_safepoint_heap_free(heap, hide(object));
    }
  }
  pass_safepoints();
  probe(c->size);
  give(behind);
}

#define OF_FRONT(kind, front)                                                           \
  SMALL_AND_MEDIUM(kind "/twice", twice, front, 0),                                     \
      SMALL_AND_MEDIUM(kind "/twice-after-1", twice, front, 1),                         \
      SMALL_AND_MEDIUM(kind "/twice-after-7", twice, front, 7),                         \
      SMALL_AND_MEDIUM(kind "/twice-after-100", twice, front, 100),                     \
      SMALL_AND_MEDIUM(kind "/twice-by-thread", twice, front, -1),                      \
      SMALL_AND_MEDIUM(kind "/twice-first-by-thread", twice_first_by_thread, front, 0), \
      SMALL_AND_MEDIUM(kind "/of-another", stranger, front, kOfOther),                  \
      SMALL_AND_MEDIUM(kind "/of-malloc", stranger, front, kOfMalloc),                  \
      SMALL_AND_MEDIUM(kind "/of-the-other-front", stranger, front, kOfTheOtherFront),  \
      SMALL_AND_MEDIUM(kind "/middle", stranger, front, kInterior),                     \
      SMALL_AND_MEDIUM(kind "/off-by-8", stranger, front, kOffBy8),                     \
      SMALL_AND_MEDIUM(kind "/never-handed-out", stranger, front, kNever),              \
      {kind "/stack", stranger, kSmall, front, kStackBytes},                            \
      {kind "/static", stranger, kSmall, front, kStaticBytes},                          \
      {kind "/small-number", stranger, kSmall, front, kSmallNumber},                    \
      SMALL_AND_MEDIUM(kind "/to-free", to_malloc, front, kFree),                       \
      SMALL_AND_MEDIUM(kind "/to-realloc", to_malloc, front, kRealloc),                 \
      SMALL_AND_MEDIUM(kind "/to-usable-size", to_malloc, front, kUsable),              \
      SMALL_AND_MEDIUM(kind "/poison-global", poison, front, kGlobal),                  \
      SMALL_AND_MEDIUM(kind "/poison-stack", poison, front, kOnStack),                  \
      SMALL_AND_MEDIUM(kind "/poison-live", poison, front, kLive),                      \
      SMALL_AND_MEDIUM(kind "/poison-interior", poison, front, kMiddle),                \
      SMALL_AND_MEDIUM(kind "/poison-null", poison, front, kNull),                      \
      SMALL_AND_MEDIUM(kind "/poison-ones", poison, front, kOnes),                      \
      SMALL_AND_MEDIUM(kind "/forge-add-to-global", poison, front, kAddToGlobal),       \
      SMALL_AND_MEDIUM(kind "/forge-add-to-live", poison, front, kAddToLive),           \
      SMALL_AND_MEDIUM(kind "/forge-replay", poison, front, kReplay),                   \
      SMALL_AND_MEDIUM(kind "/past-by-1", past, front, 1),                              \
      SMALL_AND_MEDIUM(kind "/past-by-16", past, front, 16),                            \
      SMALL_AND_MEDIUM(kind "/after-all", after, front, 0),                             \
      SMALL_AND_MEDIUM(kind "/after-third-word", after, front, 16),                     \
      SMALL_AND_MEDIUM(kind "/destroyed-allocate", destroyed, front, kAllocate),        \
      SMALL_AND_MEDIUM(kind "/destroyed-free", destroyed, front, kFreeOld),             \
      SMALL_AND_MEDIUM(kind "/destroyed-twice", destroyed, front, kDestroy),            \
      SMALL_AND_MEDIUM(kind "/destroyed-statistics", destroyed, front, kStatistics),    \
      SMALL_AND_MEDIUM(kind "/outlived", outlived, front, 0),                           \
      {kind "/null", no_front, kSmall, front, kNothing},                                \
      {kind "/wrong-front", no_front, kSmall, front, kWrongFront},                      \
      {kind "/number", no_front, kSmall, front, kNumber}, {                             \
    kind "/pointer", no_front, kSmall, front, kPointer                                  \
  }

static const struct Case kCases[] = {
    OF_FRONT("heap", kHeap),
    OF_FRONT("pool", kPool),
    {"heap/twice-large", twice, kLarge, kHeap, 0},
    {"heap/twice-by-thread-large", twice, kLarge, kHeap, -1},
    {"heap/of-another-large", stranger, kLarge, kHeap, kOfOther},
    {"heap/outlived-large", outlived, kLarge, kHeap, 0},
    {"heap/to-free-large", to_malloc, kLarge, kHeap, kFree},
    {"heap/destroyed-free-large", destroyed, kLarge, kHeap, kFreeOld},
    SMALL_AND_MEDIUM("heap/destroyed-realloc", destroyed, kHeap, kReallocOld),
    SMALL_AND_MEDIUM("heap/sized-twice", twice, kSizedHeap, 0),
    SMALL_AND_MEDIUM("heap/sized-twice-after-7", twice, kSizedHeap, 7),
    SMALL_AND_MEDIUM("heap/sized-middle", stranger, kSizedHeap, kInterior),
    SMALL_AND_MEDIUM("heap/sized-of-another", stranger, kSizedHeap, kOfOther),
    SMALL_AND_MEDIUM("heap/sized-past-by-1", past, kSizedHeap, 1),
    EACH_SIZE("heap/size-more-by-16", wrong_size, kHeap, 16),
    EACH_SIZE("heap/size-less-by-1", wrong_size, kHeap, -1),
    SMALL_AND_MEDIUM("heap/size-less-by-16", wrong_size, kHeap, -16),
    EACH_SIZE("heap/size-more-by-4000", wrong_size, kHeap, 4000),
    SMALL_AND_MEDIUM("heap/size-0", wrong_size, kHeap, -(long)kSmall),
    SMALL_AND_MEDIUM("pool/batch-neighbors-twice", free_batch_twice, 50, 51),
    SMALL_AND_MEDIUM("pool/batch-far-twice", free_batch_twice, 5, 95),
    SMALL_AND_MEDIUM("pool/init-poison-global", initialized, 0, kGlobal),
    SMALL_AND_MEDIUM("pool/init-poison-ones", initialized, 0, kOnes),
    SMALL_AND_MEDIUM("pool/init-twice", initialized_twice, 0, 0),
    SMALL_AND_MEDIUM("pool/init-twice-after-7", initialized_twice, 0, 7),
    {"arena/rewind-to-another", arena_rewind_other, 100, 0, 0},
    {"arena/rewind-stale", arena_rewind_stale, 100, 0, 0},
    {"arena/rewind-forward", arena_rewind_forward, 100, 0, 0},
    {"arena/rollback-too-large", arena_rollback, 100, 2000, 0},
    {"arena/rollback-too-small", arena_rollback, 100, -50, 0},
    {"arena/rollback-both", arena_rollback, 112, 112, 0},
    {"arena/rollback-of-another", arena_rollback_other, 100, 0, 0},
    {"arena/rollback-of-another-large", arena_rollback_other, 9000, 0, 0},
    {"arena/realloc-too-large", arena_realloc, 100, 100, 0},
    {"arena/realloc-too-small", arena_realloc, 100, -50, 0},
    {"arena/read-after-reset", arena_read_after_reset, 100, 0, 0},
    {"arena/read-after-destroy", arena_read_after_reset, 100, 1, 0},
    {"arena/read-after-reset-large", arena_read_after_reset, 9000, 0, 0},
    {"arena/before-the-first", arena_underflow, 100, 1, 0},
    {"arena/before-the-newest", arena_underflow, 100, 0, 0},
    {"arena/smashed", arena_smashed, 100, 0, 0},
    {"arena/smashed-blocks", arena_smashed, 100, 1, 0},
    {"arena/past-by-64", arena_past, 100, 64, 0},
    {"arena/past-by-2000", arena_past, 100, 2000, 0},
    {"arena/free-of-a-piece", arena_use_by_free, 100, 0, 0},
    {"arena/destroyed-copy", arena_block_freed, 100, 0, 0},
    SMALL_AND_MEDIUM("safepoint/deferred-twice", deferred_twice, 0, 0),
    SMALL_AND_MEDIUM("safepoint/deferred-again-later", deferred_twice, 1, 0),
    SMALL_AND_MEDIUM("safepoint/deferred-then-freed", deferred_and_freed, 1, 0),
    SMALL_AND_MEDIUM("safepoint/freed-then-deferred", deferred_and_freed, 0, 0),
    SMALL_AND_MEDIUM("safepoint/heap-deferred-twice", deferred_of_front, kHeap, 0),
    SMALL_AND_MEDIUM("safepoint/pool-deferred-twice", deferred_of_front, kPool, 0),
    SMALL_AND_MEDIUM("safepoint/stack", deferred_stranger, 0, 0),
    SMALL_AND_MEDIUM("safepoint/interior", deferred_stranger, 1, 0),
};
PROGRAM(kCases)
