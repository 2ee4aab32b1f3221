// Chains that are known from attacks on other allocators, most of them on the C library's. Each has
// its usual name.
#include "misuse.h"

static uintptr_t target[32] __attribute__((aligned(4096)));
static void* kept[4000];

// Allocates without a look at what is in use: the attacker wants one address.
static void hunt(size_t size) {
  static uintptr_t seen[8000];
  const unsigned n = probes_for(size);
  for (unsigned i = 0; i < n; i++) {
    char* object = (char*)malloc(size);
    seen[i] = (uintptr_t)object;
    for (unsigned j = 0; j < target_count; j++)
      if ((uintptr_t)object - (uintptr_t)targets[j].at < targets[j].size)
        harm("chosen", "malloc returned the attacker's address");
    for (unsigned j = 0; j < i; j++)
      if (seen[j] == seen[i]) harm("twice", "an object in use was handed out again");
  }
}

enum { kByThread = 1 };
// One object is twice in a list. Its first user writes the link that its second user finds.
static void fastbin_dup(const struct Case* c) {
  aim(target, sizeof target, "a global");
  void* one = take(c->size);
  void* two = take(c->size);
  void* between[16];
  for (long i = 0; i < c->a; i++) between[i] = take(c->size);
  give(one);
  give(two);
  for (long i = 0; i < c->a; i++) give(between[i]);
  const int makes = mistake("an object is freed twice, and overwritten by its first new user");
  if (makes && c->b & kByThread) in_thread(free_it, one);
  if (makes && !(c->b & kByThread)) free(hide(one));
  for (unsigned i = 0; i < probes_for(c->size); i++) {
    void* object = malloc(c->size);
    if (object != one) continue;
    if (makes) write_words(object, c->size, (uintptr_t)target, 1);
    break;
  }
  hunt(c->size);
}
// The first free lies in a cache of small objects, which a large request clears.
static void dup_consolidate(const struct Case* c) {
  for (int i = 0; i < 10; i++) kept[i] = take(c->size);
  void* object = take(c->size);
  take(c->size);
  for (int i = 0; i < 8; i++) give(kept[i]);
  give(object);
  take(kBig);
  take(kLarge);
  if (mistake("an object is freed again after a large request")) free(hide(object));
  probe(c->size);
}
// Two neighbors are freed and joined, then the upper one is freed again into the cache.
static void botcake(const struct Case* c) {
  for (int i = 0; i < 8; i++) kept[i] = take(c->size);
  void* lower = take(c->size);
  void* upper = take(c->size);
  take(16);
  for (int i = 0; i < 7; i++) give(kept[i]);
  give(upper);
  give(lower);
  take(c->size);
  if (mistake("an object is freed again after it was joined to another")) free(hide(upper));
  for (int i = 0; i < 4; i++) take(c->size * 2);
  probe(c->size);
  probe(c->size * 2);
}
// The two words of a double link lead to a global, which changes if the object is taken out.
static void unlink_words(const struct Case* c) {
  for (int i = 0; i < 12; i++) kept[i] = take(c->size);
  memset(target, 0x5a, sizeof target);
  watch(target, sizeof target);
  for (int i = 0; i < 12; i += 2) give(kept[i]);
  if (access_mistake("two words of a free object are overwritten")) {
    volatile uintptr_t* words = (volatile uintptr_t*)hide(kept[4]);
    words[0] = (uintptr_t)&target[4] - (c->b ? 24 : 0);
    words[1] = (uintptr_t)&target[4] - (c->b ? 16 : 0);
  }
  made();
  for (int i = 1; i < 12; i += 2) give(kept[i]);
  look();
  take(c->size * 2);
  probe(c->size);
}
// A free object is made up inside of one in use, and the one behind is told that its neighbor is
// free.
static void unsafe_unlink(const struct Case* c) {
  static uintptr_t* pointer[8];
  char* object = (char*)take(c->size);
  char* behind = (char*)take(c->size);
  take(c->size);
  pointer[3] = (uintptr_t*)object;
  aim(object, c->size, "an object in use");
  if (access_mistake("a header is made up, and the next one overwritten")) {
    uintptr_t* words = (uintptr_t*)object;
    words[0] = 0;
    words[1] = c->size & ~(size_t)15;
    words[2] = (uintptr_t)&pointer[0];
    words[3] = (uintptr_t)&pointer[1];
    const uintptr_t header[2] = {c->size & ~(size_t)15, (c->size + 16) & ~(size_t)15};
    memcpy(hide(behind - 16), header, sizeof header);
  }
  made();
  forget(object);  // its words are the attacker's own
  watch(pointer, sizeof pointer);
  give(behind);
  look();
  hunt(c->size * 2);
}
// An object is made up inside of one in use, with headers that the C library believes.
static void spirit_in_object(const struct Case* c) {
  char* object = (char*)take(1024);
  take(1024);
  if (mistake("a made-up object inside of one in use is freed")) {
    uintptr_t* words = (uintptr_t*)object;
    words[1] = (c->size + 16) | 1;
    words[1 + (c->size + 16) / 8] = 64 | 1;
    forget(object);
    keep(object + 512, 512);  // the rest stays the attacker's
    aim(object, 256, "the middle of an object in use");
    free(hide(object + 16));
  }
  probe(c->size);
  probe(1024);
}
// The size before an object is overwritten with a larger one.
static void larger_header(const struct Case* c) {
  for (int i = 0; i < 12; i++) kept[i] = take(c->size);
  const size_t larger = (c->size + 16) * 2;
  if (access_mistake("the word before an object is overwritten with a larger size"))
    *(volatile uintptr_t*)hide((char*)kept[5] - 8) = (larger + 16) | (uintptr_t)c->a;
  made();
  repair();
  give(kept[5]);
  probe(larger);
  probe(c->size);
}
// The last object of all is overrun with -1, so that the rest seems endless. The next request leads
// to just before the target.
static void force(const struct Case* c) {
  aim(target, sizeof target, "a global");
  char* object = (char*)take(c->size);
  const size_t usable = malloc_usable_size(object);
  if (access_mistake("the words behind the last object are overwritten with -1"))
    memset(hide(object + usable), 0xff, 16);
  made();
  void* far = malloc((uintptr_t)target - (uintptr_t)object - usable - 64);
  hide(far);
  repair();
  hunt(c->size);
}
// An object in a sorted list leads back to one that is made up on the stack.
static void lore(const struct Case* c) {
  uintptr_t fake[64] __attribute__((aligned(16))) = {0};
  for (int i = 0; i < 20; i++) kept[i] = take(c->size);
  for (int i = 0; i < 9; i++) give(kept[2 * i]);
  take(kBig / 2);
  aim(fake, sizeof fake, "an address on the stack");
  uintptr_t* words = (uintptr_t*)hide(kept[16]);
  if (access_mistake("the second word of a free object leads to one that is made up")) {
    fake[2] = (uintptr_t)words - 16;
    fake[3] = (uintptr_t)&fake[8];
    fake[10] = (uintptr_t)fake;
    ((volatile uintptr_t*)words)[1] = (uintptr_t)fake;
  }
  made();
  hide(fake);
  hunt(c->size);
}
// One zero byte behind an object: in the C library, the lower half of the size of the next.
static void null_byte(const struct Case* c) {
  for (int i = 0; i < 20; i++) kept[i] = take(c->size);
  for (int i = 10; i < 17; i++) give(kept[i]);
  give(kept[5]);
  const size_t usable = malloc_usable_size(kept[6]);
  if (access_mistake("a zero behind an object, and a size before it"))  // of what is free
    *(volatile char*)hide((char*)kept[6] + usable) = 0,
                                           *(volatile uintptr_t*)hide((char*)kept[6] + usable - 8) =
                                               (usable + 8) * 2;
  made();
  repair();
  give(kept[7]);
  take(c->size * 2);
  take(c->size * 2);
  probe(c->size);
}
// A free object is overwritten, taken, and the address that it leads to is freed into its class.
static void poison_then_free(const struct Case* c) {
  uintptr_t stack[64] __attribute__((aligned(64))) = {0};
  aim(stack, sizeof stack, "an address on the stack");
  void* object = take(c->size);
  take(c->size);
  give(object);
  hide(stack);
  if (mistake("a free object is overwritten, and the address freed"))
    write_words(object, c->size, (uintptr_t)&stack[8], 2), free(hide(&stack[8]));
  probe(c->size);
}
// Every free object of a size is overwritten with addresses that end in the next global.
static void spray(const struct Case* c) {
  const unsigned n = probes_for(c->size);
  for (unsigned i = 0; i < n && i < 4000; i++) kept[i] = take(c->size);
  for (unsigned i = 0; i < n && i < 4000; i += 3) give(kept[i]);
  aim(target, sizeof target, "a global");
  if (access_mistake("every third object was freed, and is overwritten throughout"))
    for (unsigned i = 0; i < n && i < 4000; i += 3)
      write_words(kept[i], c->size, (uintptr_t)target, c->size / 8);
  made();
  probe(c->size);
}
// The attacker frees an object of a victim and takes it: the victim's pointer and his own are one.
static void hijack(const struct Case* c) {
  void* victim = take(c->size);
  take(c->size);
  if (mistake("an object is freed while it is in use")) free(hide(victim));
  probe(c->size);
}
static void* victim_of_thread;
static void take_all(void* argument) {
  const struct Case* c = (const struct Case*)argument;
  for (unsigned i = 0; i < probes_for(c->size); i++) take(c->size);
}
static void hijack_by_thread(const struct Case* c) {
  victim_of_thread = take(c->size);
  take(c->size);
  if (mistake("another thread frees an object that is in use"))
    in_thread(free_it, victim_of_thread);
  in_thread(take_all, (void*)(uintptr_t)c);
  probe(c->size);
}
// A free object of one size is overwritten with the address of a free one of another: the same
// memory in two lists.
static void two_lists(const struct Case* c) {
  const size_t other = (size_t)c->a;
  for (int i = 0; i < 20; i++) kept[i] = take(c->size);
  for (int i = 20; i < 40; i++) kept[i] = take(other);
  for (int i = 0; i < 40; i += 2) give(kept[i]);
  if (access_mistake("a free object leads to one of another size")) {
    write_words(kept[18], c->size, (uintptr_t)kept[30], 1);
  }
  made();
  const unsigned before = live_count;
  for (unsigned i = 0; i < probes_for(c->size); i++) take(c->size);
  for (unsigned i = 0; i < probes_for(other); i++) take(other);
  look();
  while (live_count > before) give(live[live_count - 1].at);
}

static const struct Case kCases[] = {
    SMALL_AND_MEDIUM("chain/fastbin-dup", fastbin_dup, 0, 0),
    SMALL_AND_MEDIUM("chain/fastbin-dup-after-7", fastbin_dup, 7, 0),
    SMALL_AND_MEDIUM("chain/fastbin-dup-thread", fastbin_dup, 7, kByThread),
    SMALL_AND_MEDIUM("chain/dup-consolidate", dup_consolidate, 0, 0),
    {"chain/botcake-256", botcake, 256, 0, 0},
    {"chain/botcake-medium", botcake, kMedium, 0, 0},
    SMALL_AND_MEDIUM("chain/unlink", unlink_words, 0, 0),
    SMALL_AND_MEDIUM("chain/unlink-with-offsets", unlink_words, 0, 1),
    {"chain/unlink-big", unlink_words, kBig, 0, 1},
    {"chain/unsafe-unlink-1064", unsafe_unlink, 1064, 0, 0},
    {"chain/spirit-in-object-small", spirit_in_object, kSmall, 0, 0},
    SMALL_AND_MEDIUM("chain/larger-header", larger_header, 1, 0),
    {"chain/larger-header-big", larger_header, kBig, 1, 0},
    {"chain/larger-header-large", larger_header, kLarge, 2, 0},
    SMALL_AND_MEDIUM("chain/force", force, 0, 0),
    {"chain/lore-256", lore, 256, 0, 0},
    {"chain/lore-medium", lore, kMedium, 0, 0},
    {"chain/null-byte-248", null_byte, 248, 0, 0},
    {"chain/null-byte-1528", null_byte, 1528, 0, 0},
    SMALL_AND_MEDIUM("chain/poison-then-free", poison_then_free, 0, 0),
    SMALL_AND_MEDIUM("chain/spray", spray, 0, 0),
    EACH_SIZE("chain/hijack", hijack, 0, 0),
    SMALL_AND_MEDIUM("chain/hijack-by-thread", hijack_by_thread, 0, 0),
    {"chain/two-lists-256-to-64", two_lists, 256, 64, 0},
    {"chain/two-lists-64-to-256", two_lists, 64, 256, 0},
    {"chain/two-lists-medium-to-small", two_lists, kMedium, 64, 0},
};
PROGRAM(kCases)
