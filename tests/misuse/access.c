// Reads and writes where nothing may be read or written: past the end and before the start (past),
// after free (after), and of what was there before (read).
#include "misuse.h"

enum { kNear = 60 };
static void* objects[kNear];

// Among objects of one size: the object that lies next behind another, or next before it.
static void* neighbor_of(const char* object, unsigned n, int behind) {
  char* found = NULL;
  for (unsigned i = 0; i < n; i++) {
    char* at = (char*)objects[i];
    if (at == object || (at > object) != behind) continue;
    if (found == NULL || (behind ? at < found : at > found)) found = at;
  }
  return found;
}
static void take_near(size_t size, unsigned n) {
  for (unsigned i = 0; i < n; i++) objects[i] = take(size);
}
// After the mistake every object goes back, and others come.
static void give_near(const struct Case* c, unsigned n, const void* gone) {
  for (unsigned i = 0; i < n; i++)
    if (objects[i] != gone) give(objects[i]);
  probe(c->size);
}

enum { kFreeNeighbor = 1, kThread = 2, kZeros = 4, kAddress = 8 };
static uintptr_t target[64] __attribute__((aligned(4096)));

static void write_range(char* at, size_t size, long how) {
  const uintptr_t value = (uintptr_t)target;
  for (size_t i = 0; i < size; i++)
    ((volatile char*)hide(at))[i] = how & kZeros     ? 0
                                    : how & kAddress ? (char)(value >> (i % 8 * 8))
                                                     : 0x41;
}

// a: how many bytes past the end; below 0: before the start. b: what of the above.
static void past(const struct Case* c) {
  const unsigned n = c->size >= kBig ? 8 : kNear;
  take_near(c->size, n);
  char* object = (char*)objects[n / 2];
  void* neighbor = neighbor_of(object, n, c->a > 0);
  if (c->b & kFreeNeighbor) {
    if (neighbor == NULL) absent("no neighbor");
    if (c->b & kThread) {
      forget(neighbor);
      in_thread(free_it, neighbor);
    } else {
      give(neighbor);
    }
  }
  aim(target, sizeof target, "a global");
  const size_t bytes = (size_t)(c->a > 0 ? c->a : -c->a);
  if (access_mistake("bytes beyond an object are overwritten"))
    write_range(c->a > 0 ? object + c->size : object - bytes, bytes, c->b);
  made();
  repair();
  give_near(c, n, c->b & kFreeNeighbor ? neighbor : NULL);
}
// The object is resized afterwards.
static void past_then_realloc(const struct Case* c) {
  const unsigned n = c->size >= kBig ? 8 : kNear;
  take_near(c->size, n);
  char* object = (char*)objects[n / 2];
  if (access_mistake("bytes beyond an object are overwritten"))
    write_range(object + c->size, (size_t)c->a, c->b);
  made();
  repair();
  forget(object);
  char* moved = (char*)realloc(hide(object), c->size * 3);
  REQUIRE(moved != NULL);
  keep(moved, c->size * 3);
  give_near(c, n, object);
  give(moved);
}
// A whole row of objects is overrun, as by a long string.
static void past_far(const struct Case* c) {
  take_near(c->size, kNear);
  for (int i = 0; i < kNear; i += 2) give(objects[i]);
  char* object = (char*)objects[1];
  if (access_mistake("many objects behind one are overwritten"))
    write_range(object + c->size, (size_t)c->a, c->b);
  made();
  repair();
  probe(c->size);
}

// --- after: no address is aimed at.

enum { kFirstWord, kSecondWord, kThirdWord, kLastWord, kAll, kFirstByte, kHalf };
static void write_part(char* object, size_t size, long part, unsigned char value) {
  size_t from = 0, bytes = 8;
  if (part == kSecondWord) from = 8;
  if (part == kThirdWord) from = 16;
  if (part == kLastWord) from = size - 8;
  if (part == kAll) bytes = size;
  if (part == kFirstByte) bytes = 1;
  if (part == kHalf) from = size / 2, bytes = size / 2;
  for (size_t i = 0; i < bytes; i++) ((volatile unsigned char*)hide(object))[from + i] = value;
}
// a: the part. b: by which value; above it, what happened before.
enum { kOtherThread = 0x100, kTrimmed = 0x200, kInChild = 0x400 };
static void after(const struct Case* c) {
  const unsigned n = c->size >= kBig ? 8 : kNear;
  take_near(c->size, n);
  char* object = (char*)objects[n / 2];
  forget(object);
  if (c->b & kOtherThread) {
    in_thread(free_it, object);
  } else {
    free(hide(object));
  }
  if (c->b & kTrimmed) malloc_trim(0);
  if (c->b & kInChild) go_on_in_child();
  if (access_mistake("an object is written to after it was freed"))
    write_part(object, c->size, c->a, (unsigned char)c->b);
  made();
  give_near(c, n, object);
}

// --- read.

static const char kSecret[16] = "a secret of 16 b";

static void put_secret(char* object, size_t size) {
  for (size_t i = 0; i + 16 <= size; i += 16) memcpy(object + i, kSecret, 16);
}
static int has_secret(const char* object, size_t size) {
  for (size_t i = 0; i + 16 <= size && i < 64 << 10; i += 16)
    if (memcmp((const char*)hide(object) + i, kSecret, 16) == 0) return 1;
  return 0;
}
static void read_after_free(const struct Case* c) {
  char* object = (char*)malloc(c->size);
  take(c->size);
  REQUIRE(object != NULL);
  put_secret(object, c->size);
  if (c->b) {
    in_thread(free_it, object);
  } else {
    free(hide(object));
  }
  if (c->a) malloc_trim(0);
  if (access_mistake("an object is read after it was freed") && has_secret(object, c->size))
    harm("stale", "what was in the object can be read after it was freed");
  made();
}
static void read_new_object(const struct Case* c) {
  static char* before[40];
  const unsigned n = c->size >= kBig ? 4 : 40;
  for (unsigned i = 0; i < n; i++) {
    before[i] = (char*)malloc(c->size);
    REQUIRE(before[i] != NULL);
    put_secret(before[i], c->size);
  }
  for (unsigned i = 0; i < n; i++) free(hide(before[i]));
  const int makes = access_mistake("a new object is read before it was written to");
  for (unsigned i = 0; i < n && makes; i++)
    if (has_secret((char*)malloc((size_t)c->a), (size_t)c->a))
      harm("stale", "a new object has what was in an old one");
  made();
}
static void read_grown(const struct Case* c) {
  char* before = (char*)malloc(c->size);
  REQUIRE(before != NULL);
  put_secret(before, c->size);
  free(hide(before));
  char* object = (char*)malloc(16);
  const int makes = access_mistake("what realloc has added is read before it was written to");
  object = (char*)realloc(object, c->size);
  if (makes && has_secret(object + 16, c->size - 16))
    harm("stale", "a grown object has what was in an old one");
  made();
}
static void read_past(const struct Case* c) {
  take_near(c->size, kNear);
  for (int i = 0; i < kNear; i++) put_secret((char*)objects[i], c->size);
  const int makes = access_mistake("a neighbor is read, past the end");
  if (makes && has_secret((char*)objects[kNear / 2] + c->size, 64))
    harm("stale", "what is in a neighbor can be read");
  made();
  repair();
}

static const struct Case kCases[] = {
    SMALL_AND_MEDIUM("past/by-1", past, 1, 0),
    SMALL_AND_MEDIUM("past/by-1-zero", past, 1, kZeros),
    SMALL_AND_MEDIUM("past/by-8", past, 8, 0),
    SMALL_AND_MEDIUM("past/by-16", past, 16, 0),
    SMALL_AND_MEDIUM("past/by-64", past, 64, 0),
    SMALL_AND_MEDIUM("past/by-a-page", past, 4096, 0),
    {"past/by-1-1024", past, 1024, 1, 0},
    {"past/by-8-1024", past, 1024, 8, 0},
    {"past/by-8-4096", past, 4096, 8, 0},
    {"past/by-1-big", past, kBig, 1, 0},
    {"past/by-64-big", past, kBig, 64, 0},
    {"past/by-32-pages-big", past, kBig, 32 * 4096, 0},
    {"past/by-1-large", past, kLarge, 1, 0},
    {"past/by-64-large", past, kLarge, 64, 0},
    {"past/by-a-page-large", past, kLarge, 4096, 0},
    {"past/by-17-pages-large", past, kLarge, 17 * 4096, 0},
    SMALL_AND_MEDIUM("past/before-1", past, -1, 0),
    SMALL_AND_MEDIUM("past/before-8", past, -8, 0),
    SMALL_AND_MEDIUM("past/before-16", past, -16, 0),
    SMALL_AND_MEDIUM("past/before-64", past, -64, 0),
    {"past/before-16-big", past, kBig, -16, 0},
    {"past/before-16-large", past, kLarge, -16, 0},
    {"past/before-a-page-large", past, kLarge, -4096, 0},
    SMALL_AND_MEDIUM("past/by-1-into-free", past, 1, kFreeNeighbor),
    SMALL_AND_MEDIUM("past/by-1-zero-into-free", past, 1, kFreeNeighbor | kZeros),
    SMALL_AND_MEDIUM("past/by-64-into-free", past, 64, kFreeNeighbor),
    {"past/address-into-free-1024", past, 1024, 16, kFreeNeighbor | kAddress},
    SMALL_AND_MEDIUM("past/address-into-free", past, 64, kFreeNeighbor | kAddress),
    SMALL_AND_MEDIUM("past/address-into-freed-by-thread", past, 64,
                     kFreeNeighbor | kAddress | kThread),
    SMALL_AND_MEDIUM("past/before-16-into-free", past, -16, kFreeNeighbor),
    SMALL_AND_MEDIUM("past/before-whole-into-free", past, -64, kFreeNeighbor | kAddress),
    SMALL_AND_MEDIUM("past/by-8-then-realloc", past_then_realloc, 8, 0),
    {"past/by-8-then-realloc-large", past_then_realloc, kLarge, 8, 0},
    {"past/by-2000-small", past_far, kSmall, 2000, 0},
    {"past/by-70000-small", past_far, kSmall, 70000, 0},
    {"past/by-70000-zeros-small", past_far, kSmall, 70000, kZeros},
    {"past/by-2000-zeros-small", past_far, kSmall, 2000, kZeros},
    {"past/by-2000-address-small", past_far, kSmall, 2000, kAddress},
    {"past/by-40000-medium", past_far, kMedium, 40000, 0},
    {"past/by-40000-address-medium", past_far, kMedium, 40000, kAddress},

    SMALL_AND_MEDIUM("after/first-word", after, kFirstWord, 0x41),
    SMALL_AND_MEDIUM("after/first-word-zero", after, kFirstWord, 0),
    SMALL_AND_MEDIUM("after/first-word-ones", after, kFirstWord, 0xff),
    SMALL_AND_MEDIUM("after/first-byte", after, kFirstByte, 0x41),
    SMALL_AND_MEDIUM("after/second-word", after, kSecondWord, 0x41),
    SMALL_AND_MEDIUM("after/third-word", after, kThirdWord, 0x41),
    SMALL_AND_MEDIUM("after/last-word", after, kLastWord, 0x41),
    SMALL_AND_MEDIUM("after/second-half", after, kHalf, 0x41),
    EACH_SIZE("after/all", after, kAll, 0x41),
    EACH_SIZE("after/all-zero", after, kAll, 0),
    SMALL_AND_MEDIUM("after/first-word-thread", after, kFirstWord, 0x41 | kOtherThread),
    EACH_SIZE("after/all-thread", after, kAll, 0x41 | kOtherThread),
    EACH_SIZE("after/all-trimmed", after, kAll, 0x41 | kTrimmed),
    SMALL_AND_MEDIUM("after/all-in-child", after, kAll, 0x41 | kInChild),

    EACH_SIZE("read/freed", read_after_free, 0, 0),
    EACH_SIZE("read/freed-by-thread", read_after_free, 0, 1),
    EACH_SIZE("read/freed-and-trimmed", read_after_free, 1, 0),
    {"read/new-small", read_new_object, kSmall, kSmall, 0},
    {"read/new-medium", read_new_object, kMedium, kMedium, 0},
    {"read/new-big", read_new_object, kBig, kBig, 0},
    {"read/new-large", read_new_object, kLarge, kLarge, 0},
    {"read/new-small-of-large", read_new_object, kLarge, kSmall, 0},
    {"read/grown-medium", read_grown, kMedium, 0, 0},
    {"read/grown-large", read_grown, kLarge, 0, 0},
    SMALL_AND_MEDIUM("read/past", read_past, 0, 0),
};
PROGRAM(kCases)
