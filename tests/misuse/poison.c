// An attacker writes into free objects, so that malloc hands out an address of the attacker's
// choice. Allocators keep links in free objects: plain ones, or encoded ones. The cases know
// neither. The attacker knows addresses, and has put at the target what ends a list: the first word
// of an object that is the last of one. The attacker overwrites
//   poison   with an address, in whole or in part
//   forge    with what is read from free objects: copied, or changed by a difference
//   batch    objects that another thread has freed, before their owner takes them back
#include "misuse.h"

enum Aim {
  kGlobal,
  kStack,
  kLive,         // an object in use, of the same size
  kInterior,     // the middle of one
  kOtherSize,    // a free object of another size
  kOtherLive,    // an object in use of another size
  kSelf,         // the object itself
  kFreeAnother,  // an object that is free already, at the other end of the list
  kNull,
  kOnes,
  kUnaligned,  // one byte into a global
  kNowhere,    // an address that is none
  kAims
};

static uintptr_t global_target[64] __attribute__((aligned(4096)));

enum { kObjects = 40, kFree = 6 };
struct Scene {
  size_t size;
  void* objects[kObjects];
  void* freed[kFree];  // the last one was freed last
  void* live;          // near them
  void* other_free;
  void* other_live;
  uintptr_t* stack;
  uintptr_t end;  // what ends a list
};

static size_t other_size(size_t size) { return size == kSmall ? 256 : size + size / 2; }

// Frees some objects amid others in use.
static void set_up(struct Scene* scene, size_t size, uintptr_t* stack) {
  scene->size = size;
  scene->stack = stack;
  const unsigned n = size >= kBig ? 12 : kObjects;
  for (unsigned i = 0; i < n; i++) scene->objects[i] = take(size);
  void* other = take(other_size(size));
  scene->other_live = take(other_size(size));
  for (unsigned i = 0; i < 4; i++) take(other_size(size));
  give(other);
  scene->other_free = other;
  scene->live = scene->objects[3];
  for (unsigned i = 0; i < kFree; i++) {
    scene->freed[i] = scene->objects[i < 3 ? i : i + 3];
    give(scene->freed[i]);
  }
  scene->end = word_at(scene->freed[0]);
}
// The same with one object that nobody else has freed.
static void set_up_alone(struct Scene* scene, size_t size, uintptr_t* stack) {
  scene->size = size;
  scene->stack = stack;
  void* object = take(size);
  scene->live = take(size);
  scene->other_live = take(other_size(size));
  give(object);
  scene->freed[0] = object;
  scene->end = word_at(object);
}
static uintptr_t prepared(const struct Scene* scene, const void* at) {
  *(volatile uintptr_t*)hide(at) = scene->end;
  own_word = (const unsigned char*)at;
  return (uintptr_t)at;
}
// The address that the attacker writes.
static uintptr_t address_of(const struct Scene* scene, enum Aim to, const void* at) {
  switch (to) {
    case kGlobal:
      aim(global_target, sizeof global_target, "a global");
      return prepared(scene, global_target);
    case kStack:
      aim(scene->stack, 64 * sizeof *scene->stack, "an address on the stack");
      return prepared(scene, scene->stack);
    case kLive:
      aim(scene->live, scene->size, "an object in use");
      return prepared(scene, scene->live);
    case kInterior:
      aim(scene->live, scene->size, "the middle of an object in use");
      return prepared(scene, (char*)scene->live + (scene->size / 2 & ~(size_t)15));
    case kOtherSize:
      return (uintptr_t)scene->other_free;
    case kOtherLive:
      aim(scene->other_live, other_size(scene->size), "an object in use, of another size");
      return prepared(scene, scene->other_live);
    case kSelf:
      return (uintptr_t)at;
    case kFreeAnother:
      return (uintptr_t)scene->freed[at == scene->freed[0] ? kFree - 1 : 0];
    case kNull:
      return 0;
    case kOnes:
      aim((void*)(UINTPTR_MAX - 15), 16, "-1");
      return UINTPTR_MAX;
    case kUnaligned:
      aim((char*)global_target, sizeof global_target, "an unaligned address");
      return (uintptr_t)global_target + 1;
    default:
      aim((void*)0x414141414140, 16, "what was written");
      return 0x414141414140;
  }
}
static void probe_all(const struct Scene* scene) {
  probe(scene->size);
  probe(other_size(scene->size));
}

// --- poison.

enum { kFirst = 1, kWhole = 2, kSecond = 4, kChild = 8 };

// a: the aim. b: which of these.
static void overwrite(const struct Case* c) {
  static struct Scene scene;
  uintptr_t stack[64] __attribute__((aligned(16))) = {0};
  set_up(&scene, c->size, hide(stack));
  if (c->b & kChild) go_on_in_child();
  void* at = scene.freed[c->b & kSecond ? kFree - 2 : kFree - 1];
  if (access_mistake("a free object is overwritten with an address"))
    write_words(at, c->size, address_of(&scene, (enum Aim)c->a, at), c->b & kWhole ? 8 : 1);
  made();
  probe_all(&scene);
}
// Every object of that size that is free.
static void overwrite_all(const struct Case* c) {
  static struct Scene scene;
  uintptr_t stack[64] __attribute__((aligned(16))) = {0};
  set_up(&scene, c->size, hide(stack));
  if (access_mistake("all free objects are overwritten with an address"))
    for (int i = 0; i < kFree; i++)
      write_words(scene.freed[i], c->size, address_of(&scene, (enum Aim)c->a, scene.freed[i]), 8);
  made();
  probe_all(&scene);
}
// b bytes of the first word become those of an object in use, which lies near.
static void overwrite_in_part(const struct Case* c) {
  static struct Scene scene;
  set_up(&scene, c->size, NULL);
  if (access_mistake("the lowest bytes of a free object are overwritten")) {
    const uintptr_t address = address_of(&scene, (enum Aim)c->a, NULL);
    memcpy(hide(scene.freed[kFree - 1]), &address, (size_t)c->b);
  }
  made();
  probe_all(&scene);
}
// One byte becomes a.
static void overwrite_byte(const struct Case* c) {
  static struct Scene scene;
  set_up(&scene, c->size, NULL);
  aim(scene.live, c->size, "an object in use");
  if (access_mistake("one byte of a free object is overwritten"))
    ((volatile unsigned char*)hide(scene.freed[kFree - 1]))[c->b] = (unsigned char)c->a;
  made();
  probe_all(&scene);
}
// The object is the only free one.
static void overwrite_alone(const struct Case* c) {
  static struct Scene scene;
  uintptr_t stack[64] __attribute__((aligned(16))) = {0};
  set_up_alone(&scene, c->size, hide(stack));
  if (access_mistake("a free object is overwritten with an address"))
    write_words(scene.freed[0], c->size, address_of(&scene, (enum Aim)c->a, scene.freed[0]), 1);
  made();
  probe(c->size);
}
// A whole slab is free: some allocators give it back, or cut it anew.
static void overwrite_empty(const struct Case* c) {
  static void* objects[7000];
  static struct Scene scene;
  const unsigned n = probes_for(c->size);
  set_up_alone(&scene, c->size, NULL);
  for (unsigned i = 0; i < n; i++) objects[i] = take(c->size);
  for (unsigned i = 0; i < n; i++) give(objects[i]);
  if (access_mistake("an object of an empty slab is overwritten with an address"))
    write_words(objects[n - 1 - (unsigned)c->b], c->size,
                address_of(&scene, (enum Aim)c->a, objects[n - 1]), 1);
  made();
  probe(c->size);
}
// The free object waits in a cache that was filled before.
static void overwrite_cached(const struct Case* c) {
  static void* objects[7000];
  static struct Scene scene;
  const unsigned n = probes_for(c->size);
  set_up_alone(&scene, c->size, NULL);
  for (unsigned i = 0; i < n; i++) objects[i] = take(c->size);
  for (unsigned i = 0; i < n; i += 2) give(objects[i]);
  void* at = NULL;
  take(c->size);
  for (unsigned i = 0; i < n && at == NULL; i += 2) {
    at = objects[i];
    for (unsigned j = 0; j < live_count; j++)
      if (live[j].at == at) at = NULL;
  }
  if (at == NULL) absent("nothing is free");
  if (access_mistake("every free object is overwritten with an address")) {
    const uintptr_t address = address_of(&scene, (enum Aim)c->a, at);
    for (unsigned i = 0; i < n; i += 2) {
      int is_live = 0;
      for (unsigned j = 0; j < live_count; j++) is_live |= live[j].at == objects[i];
      if (!is_live) write_words(objects[i], c->size, address, 1);
    }
  }
  made();
  probe(c->size);
}

// --- forge.

enum { kAdd, kXor };

// The word of the object that was freed last leads to the one before, so the attacker adds how far
// the target lies from that. b: kAdd or kXor.
static void add_difference(const struct Case* c) {
  static struct Scene scene;
  uintptr_t stack[64] __attribute__((aligned(16))) = {0};
  set_up(&scene, c->size, hide(stack));
  volatile uintptr_t* word = (volatile uintptr_t*)hide(scene.freed[kFree - 1]);
  const uintptr_t next = (uintptr_t)scene.freed[kFree - 2];
  if (access_mistake("the first word of a free object is changed by a difference")) {
    const uintptr_t to = address_of(&scene, (enum Aim)c->a, (void*)word);
    *word = c->b == kXor ? *word ^ next ^ to : *word + (to - next);
  }
  made();
  probe_all(&scene);
}
// Two words are read whose objects lead to known addresses. If words grow as addresses do, by
// whatever factor, the word that leads to the target follows from them.
static void extrapolate(const struct Case* c) {
  static struct Scene scene;
  uintptr_t stack[64] __attribute__((aligned(16))) = {0};
  set_up(&scene, c->size, hide(stack));
  volatile uintptr_t* word = (volatile uintptr_t*)hide(scene.freed[kFree - 1]);
  const uintptr_t last = *word, before = *(uintptr_t*)hide(scene.freed[kFree - 2]);
  const intptr_t step = (char*)scene.freed[kFree - 2] - (char*)scene.freed[kFree - 3];
  if (access_mistake("the first word of a free object is worked out from two others")) {
    const uintptr_t to = address_of(&scene, (enum Aim)c->a, (void*)word);
    const intptr_t way = (intptr_t)(to - (uintptr_t)scene.freed[kFree - 2]);
    if (step == 0 || way % step != 0) absent("the target lies between two steps");
    *word = last + (uintptr_t)(way / step) * (last - before);
  }
  made();
  probe_all(&scene);
}
// Onto object a the first word of object b, of six.
static void copy_word(const struct Case* c) {
  static struct Scene scene;
  set_up(&scene, c->size, NULL);
  if (access_mistake("the first word of a free object is copied onto another"))
    *(volatile uintptr_t*)hide(scene.freed[c->a]) = *(uintptr_t*)hide(scene.freed[c->b]);
  made();
  probe_all(&scene);
}
// The list is long, so that a circle in it is, too.
static void copy_far(const struct Case* c) {
  static void* objects[400];
  for (int i = 0; i < 400; i++) objects[i] = take(c->size);
  for (int i = 0; i < 200; i++) give(objects[2 * i]);
  if (access_mistake("the first word of a free object is copied onto another"))
    *(volatile uintptr_t*)hide(objects[2 * c->a]) = *(uintptr_t*)hide(objects[2 * c->b]);
  made();
  probe(c->size);
}
static void copy_from_another_size(const struct Case* c) {
  static struct Scene scene;
  set_up(&scene, c->size, NULL);
  void* more[4];
  for (int i = 0; i < 4; i++) more[i] = take(other_size(c->size));
  for (int i = 0; i < 4; i++) give(more[i]);
  if (access_mistake("the first word of a free object of another size is copied onto one"))
    *(volatile uintptr_t*)hide(scene.freed[kFree - 1]) = *(uintptr_t*)hide(more[3]);
  made();
  probe_all(&scene);
}
// What the word was when the next object was free. That is in use by now.
static void replay(const struct Case* c) {
  static struct Scene scene;
  set_up(&scene, c->size, NULL);
  void* top = scene.freed[kFree - 1];
  void* next = scene.freed[kFree - 2];
  const uintptr_t word = *(uintptr_t*)hide(top);
  unsigned found = 0;
  for (unsigned i = 0; i < probes_for(c->size) && found < 2; i++) {
    void* object = take(c->size);
    found += object == top || object == next;
  }
  if (found < 2) absent("the objects were not handed out again");
  aim(next, c->size, "an object in use");
  give(top);
  prepared(&scene, next);
  if (access_mistake("a free object gets the first word that it had before"))
    *(volatile uintptr_t*)hide(top) = word;
  made();
  // `next` is live, so the second sight of it is the harm.
  probe_all(&scene);
}
// Two words change their places, and so do two pairs of lists.
static void swap_words(const struct Case* c) {
  static struct Scene scene;
  set_up(&scene, c->size, NULL);
  void* more[4];
  for (int i = 0; i < 4; i++) more[i] = take(other_size(c->size));
  for (int i = 0; i < 4; i++) give(more[i]);
  if (access_mistake("the first words of free objects of two sizes change places")) {
    volatile uintptr_t* one = (volatile uintptr_t*)hide(scene.freed[kFree - 1]);
    volatile uintptr_t* two = (volatile uintptr_t*)hide(more[3]);
    const uintptr_t word = *one;
    *one = *two;
    *two = word;
  }
  made();
  probe_all(&scene);
}

// --- batch.

enum { kMostSent = 300 };
struct Sent {
  void* objects[kMostSent];
  unsigned n;
  pthread_barrier_t barrier;
  int stays;
};
static void* send_them(void* argument) {
  struct Sent* sent = (struct Sent*)argument;
  for (unsigned i = 0; i < sent->n; i++) free(hide(sent->objects[i]));
  if (!sent->stays) return NULL;
  pthread_barrier_wait(&sent->barrier);
  for (;;) pause();
}
static void send_away(struct Sent* sent) {
  pthread_t thread;
  REQUIRE(pthread_barrier_init(&sent->barrier, NULL, 2) == 0);
  REQUIRE(pthread_create(&thread, NULL, send_them, sent) == 0);
  if (sent->stays) {
    pthread_barrier_wait(&sent->barrier);
  } else {
    REQUIRE(pthread_join(thread, NULL) == 0);
  }
}

// How the address is written: as it is, into eight words; or as a batch of lanemalloc's may name an
// object, with or without a count, into those behind the first two.
enum { kPlain, kShifted, kCounted, kSpread = 16 /* slab by slab */, kStays = 32 };
static void write_name(void* object, size_t size, uintptr_t address, long how) {
  if (how == kPlain) return write_words(object, size, address, 8);
  write_words((char*)object + 16, size - 16, how == kShifted ? address << 16 : address << 16 | 5,
              6);
}
// a: the aim. b: how, and more.
static void poison_sent(const struct Case* c) {
  static struct Sent sent;
  static struct Scene scene;
  uintptr_t stack[64] __attribute__((aligned(16))) = {0};
  set_up_alone(&scene, c->size, hide(stack));
  sent.n = 200;
  sent.stays = (c->b & kStays) != 0;
  for (unsigned i = 0; i < sent.n; i++) {
    sent.objects[i] = take(c->size);
    if (c->b & kSpread) take(c->size);
  }
  for (unsigned i = 0; i < sent.n; i++) forget(sent.objects[i]);
  send_away(&sent);
  if (access_mistake("objects that another thread has freed are overwritten"))
    for (unsigned i = 0; i < sent.n; i++)
      write_name(sent.objects[i], c->size, address_of(&scene, (enum Aim)c->a, sent.objects[i]),
                 c->b & 15);
  made();
  probe_all(&scene);
}
// The same for one of them alone: the a-th.
static void poison_one_sent(const struct Case* c) {
  static struct Sent sent;
  static struct Scene scene;
  set_up_alone(&scene, c->size, NULL);
  sent.n = 200;
  for (unsigned i = 0; i < sent.n; i++) sent.objects[i] = take(c->size);
  for (unsigned i = 0; i < sent.n; i++) forget(sent.objects[i]);
  send_away(&sent);
  if (access_mistake("an object that another thread has freed is overwritten"))
    write_name(sent.objects[c->a], c->size, address_of(&scene, kLive, NULL), c->b);
  made();
  probe(c->size);
}
// Copies all words of one onto another, which repeats a row or leaves one out.
static void copy_sent(const struct Case* c) {
  static struct Sent sent;
  sent.n = 200;
  for (unsigned i = 0; i < sent.n; i++) {
    sent.objects[i] = take(c->size);
    if (i % 3 == 0) take(c->size);
  }
  for (unsigned i = 0; i < sent.n; i++) forget(sent.objects[i]);
  send_away(&sent);
  if (access_mistake("an object that another thread has freed is copied onto others"))
    for (unsigned i = (unsigned)c->a; i < sent.n; i += (unsigned)c->b)
      memcpy(hide(sent.objects[i]), hide(sent.objects[0]), 64);
  made();
  probe(c->size);
}
// What came back lies in a list, and is overwritten there.
static void poison_received(const struct Case* c) {
  static struct Sent sent;
  static struct Scene scene;
  uintptr_t stack[64] __attribute__((aligned(16))) = {0};
  set_up_alone(&scene, c->size, hide(stack));
  sent.n = 200;
  for (unsigned i = 0; i < sent.n; i++) sent.objects[i] = take(c->size);
  for (unsigned i = 0; i < sent.n; i++) forget(sent.objects[i]);
  send_away(&sent);
  for (unsigned i = 0; i < probes_for(c->size) / 8; i++) take(c->size);
  if (access_mistake("objects that came back from another thread are overwritten")) {
    const uintptr_t address = address_of(&scene, (enum Aim)c->a, NULL);
    for (unsigned i = 0; i < sent.n; i++) {
      int is_live = 0;
      for (unsigned j = 0; j < live_count; j++) is_live |= live[j].at == sent.objects[i];
      if (!is_live) write_words(sent.objects[i], c->size, address, 1);
    }
  }
  made();
  probe(c->size);
}

#define EACH_AIM(kind, run, how)                                      \
  SMALL_AND_MEDIUM(kind "-global", run, kGlobal, how),                \
      SMALL_AND_MEDIUM(kind "-stack", run, kStack, how),              \
      SMALL_AND_MEDIUM(kind "-live", run, kLive, how),                \
      SMALL_AND_MEDIUM(kind "-interior", run, kInterior, how),        \
      SMALL_AND_MEDIUM(kind "-other-size", run, kOtherSize, how),     \
      SMALL_AND_MEDIUM(kind "-other-live", run, kOtherLive, how),     \
      SMALL_AND_MEDIUM(kind "-self", run, kSelf, how),                \
      SMALL_AND_MEDIUM(kind "-free-another", run, kFreeAnother, how), \
      SMALL_AND_MEDIUM(kind "-null", run, kNull, how),                \
      SMALL_AND_MEDIUM(kind "-ones", run, kOnes, how),                \
      SMALL_AND_MEDIUM(kind "-unaligned", run, kUnaligned, how),      \
      SMALL_AND_MEDIUM(kind "-nowhere", run, kNowhere, how)

static const struct Case kCases[] = {
    EACH_AIM("poison/first-word", overwrite, kFirst),
    SMALL_AND_MEDIUM("poison/second-object-global", overwrite, kGlobal, kSecond),
    SMALL_AND_MEDIUM("poison/second-object-live", overwrite, kLive, kSecond),
    SMALL_AND_MEDIUM("poison/second-object-interior", overwrite, kInterior, kSecond),
    SMALL_AND_MEDIUM("poison/eight-words-global", overwrite, kGlobal, kWhole),
    SMALL_AND_MEDIUM("poison/eight-words-stack", overwrite, kStack, kWhole),
    SMALL_AND_MEDIUM("poison/eight-words-live", overwrite, kLive, kWhole),
    SMALL_AND_MEDIUM("poison/eight-words-interior", overwrite, kInterior, kWhole),
    {"poison/eight-words-global-big", overwrite, kBig, kGlobal, kWhole},
    {"poison/eight-words-live-big", overwrite, kBig, kLive, kWhole},
    {"poison/eight-words-global-large", overwrite, kLarge, kGlobal, kWhole},
    {"poison/eight-words-live-large", overwrite, kLarge, kLive, kWhole},
    {"poison/first-word-global-16", overwrite, 16, kGlobal, kFirst},
    {"poison/first-word-live-16", overwrite, 16, kLive, kFirst},
    {"poison/first-word-global-1024", overwrite, 1024, kGlobal, kFirst},
    {"poison/first-word-live-1024", overwrite, 1024, kLive, kFirst},
    {"poison/first-word-global-60000", overwrite, 60000, kGlobal, kFirst},
    {"poison/first-word-live-60000", overwrite, 60000, kLive, kFirst},
    SMALL_AND_MEDIUM("poison/in-a-child-global", overwrite, kGlobal, kFirst | kChild),
    SMALL_AND_MEDIUM("poison/in-a-child-live", overwrite, kLive, kFirst | kChild),
    SMALL_AND_MEDIUM("poison/all-objects-global", overwrite_all, kGlobal, 0),
    SMALL_AND_MEDIUM("poison/all-objects-live", overwrite_all, kLive, 0),
    SMALL_AND_MEDIUM("poison/low-byte-live", overwrite_in_part, kLive, 1),
    SMALL_AND_MEDIUM("poison/low-2-bytes-live", overwrite_in_part, kLive, 2),
    SMALL_AND_MEDIUM("poison/low-3-bytes-live", overwrite_in_part, kLive, 3),
    SMALL_AND_MEDIUM("poison/low-2-bytes-interior", overwrite_in_part, kInterior, 2),
    SMALL_AND_MEDIUM("poison/low-6-bytes-global", overwrite_in_part, kGlobal, 6),
    SMALL_AND_MEDIUM("poison/byte-0-is-0", overwrite_byte, 0, 0),
    SMALL_AND_MEDIUM("poison/byte-0-is-8", overwrite_byte, 8, 0),
    SMALL_AND_MEDIUM("poison/byte-0-is-ff", overwrite_byte, 0xff, 0),
    SMALL_AND_MEDIUM("poison/byte-1-is-0", overwrite_byte, 0, 1),
    SMALL_AND_MEDIUM("poison/byte-2-is-ff", overwrite_byte, 0xff, 2),
    SMALL_AND_MEDIUM("poison/byte-7-is-80", overwrite_byte, 0x80, 7),
    SMALL_AND_MEDIUM("poison/alone-global", overwrite_alone, kGlobal, 0),
    SMALL_AND_MEDIUM("poison/alone-live", overwrite_alone, kLive, 0),
    SMALL_AND_MEDIUM("poison/empty-slab-global", overwrite_empty, kGlobal, 0),
    SMALL_AND_MEDIUM("poison/empty-slab-live", overwrite_empty, kLive, 0),
    SMALL_AND_MEDIUM("poison/empty-slab-deep-global", overwrite_empty, kGlobal, 20),
    SMALL_AND_MEDIUM("poison/cached-global", overwrite_cached, kGlobal, 0),
    SMALL_AND_MEDIUM("poison/cached-live", overwrite_cached, kLive, 0),
    SMALL_AND_MEDIUM("poison/cached-interior", overwrite_cached, kInterior, 0),

    SMALL_AND_MEDIUM("forge/add-to-global", add_difference, kGlobal, kAdd),
    SMALL_AND_MEDIUM("forge/add-to-stack", add_difference, kStack, kAdd),
    SMALL_AND_MEDIUM("forge/add-to-live", add_difference, kLive, kAdd),
    SMALL_AND_MEDIUM("forge/add-to-interior", add_difference, kInterior, kAdd),
    SMALL_AND_MEDIUM("forge/add-to-other-size", add_difference, kOtherSize, kAdd),
    SMALL_AND_MEDIUM("forge/add-to-other-live", add_difference, kOtherLive, kAdd),
    SMALL_AND_MEDIUM("forge/xor-to-global", add_difference, kGlobal, kXor),
    SMALL_AND_MEDIUM("forge/xor-to-live", add_difference, kLive, kXor),
    SMALL_AND_MEDIUM("forge/xor-to-interior", add_difference, kInterior, kXor),
    {"forge/extrapolate-to-global-small", extrapolate, kSmall, kGlobal, 0},
    SMALL_AND_MEDIUM("forge/extrapolate-to-live", extrapolate, kLive, 0),
    SMALL_AND_MEDIUM("forge/copy-top-to-bottom", copy_word, 0, 5),
    SMALL_AND_MEDIUM("forge/copy-top-to-second", copy_word, 4, 5),
    SMALL_AND_MEDIUM("forge/copy-bottom-to-top", copy_word, 5, 0),
    SMALL_AND_MEDIUM("forge/copy-second-to-top", copy_word, 5, 4),
    SMALL_AND_MEDIUM("forge/copy-third-to-top", copy_word, 5, 3),
    SMALL_AND_MEDIUM("forge/copy-far-back", copy_far, 100, 190),
    SMALL_AND_MEDIUM("forge/copy-far-to-bottom", copy_far, 0, 199),
    SMALL_AND_MEDIUM("forge/copy-far-skips", copy_far, 199, 100),
    SMALL_AND_MEDIUM("forge/copy-from-another-size", copy_from_another_size, 0, 0),
    SMALL_AND_MEDIUM("forge/replay", replay, 0, 0),
    SMALL_AND_MEDIUM("forge/swap-between-sizes", swap_words, 0, 0),

    SMALL_AND_MEDIUM("batch/global", poison_sent, kGlobal, kPlain),
    SMALL_AND_MEDIUM("batch/stack", poison_sent, kStack, kPlain),
    SMALL_AND_MEDIUM("batch/live", poison_sent, kLive, kPlain),
    SMALL_AND_MEDIUM("batch/interior", poison_sent, kInterior, kPlain),
    SMALL_AND_MEDIUM("batch/null", poison_sent, kNull, kPlain),
    SMALL_AND_MEDIUM("batch/ones", poison_sent, kOnes, kPlain),
    SMALL_AND_MEDIUM("batch/nowhere", poison_sent, kNowhere, kPlain),
    SMALL_AND_MEDIUM("batch/self", poison_sent, kSelf, kPlain),
    SMALL_AND_MEDIUM("batch/named-global", poison_sent, kGlobal, kShifted),
    SMALL_AND_MEDIUM("batch/named-stack", poison_sent, kStack, kShifted),
    SMALL_AND_MEDIUM("batch/named-live", poison_sent, kLive, kShifted),
    SMALL_AND_MEDIUM("batch/named-interior", poison_sent, kInterior, kShifted),
    SMALL_AND_MEDIUM("batch/named-other-live", poison_sent, kOtherLive, kShifted),
    SMALL_AND_MEDIUM("batch/counted-live", poison_sent, kLive, kCounted),
    SMALL_AND_MEDIUM("batch/counted-global", poison_sent, kGlobal, kCounted),
    SMALL_AND_MEDIUM("batch/global-spread", poison_sent, kGlobal, kPlain | kSpread),
    SMALL_AND_MEDIUM("batch/named-live-spread", poison_sent, kLive, kShifted | kSpread),
    SMALL_AND_MEDIUM("batch/global-thread-stays", poison_sent, kGlobal, kPlain | kStays),
    SMALL_AND_MEDIUM("batch/named-live-thread-stays", poison_sent, kLive, kShifted | kStays),
    SMALL_AND_MEDIUM("batch/first-alone", poison_one_sent, 0, kPlain),
    SMALL_AND_MEDIUM("batch/first-alone-named", poison_one_sent, 0, kShifted),
    SMALL_AND_MEDIUM("batch/second-alone", poison_one_sent, 1, kPlain),
    SMALL_AND_MEDIUM("batch/second-alone-named", poison_one_sent, 1, kShifted),
    SMALL_AND_MEDIUM("batch/last-alone", poison_one_sent, 199, kPlain),
    SMALL_AND_MEDIUM("batch/last-alone-named", poison_one_sent, 199, kShifted),
    SMALL_AND_MEDIUM("batch/copied-to-all", copy_sent, 1, 1),
    SMALL_AND_MEDIUM("batch/copied-to-some", copy_sent, 5, 10),
    SMALL_AND_MEDIUM("batch/received-global", poison_received, kGlobal, 0),
    SMALL_AND_MEDIUM("batch/received-live", poison_received, kLive, 0),
    SMALL_AND_MEDIUM("batch/received-interior", poison_received, kInterior, 0),
};
PROGRAM(kCases)
