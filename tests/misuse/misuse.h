// What the programs of tests/misuse share. A program has cases. Each makes one mistake, or one
// chain of them, in a process of its own, and then looks for the harm. It prints
//
//   mistake: WHAT              before the mistake; `access: WHAT` if it is a read or a write of the
//                              program's own, which a guard page may stop
//   made                       behind such an access
//   result: nothing seen       at its end, or: refused, absent (the C library lacks the function)
//   result: harm CLASS (WHY)   as soon as harm is seen
//
// The classes of harm:
//   chosen   malloc returned an address that the attacker chose, or the allocator wrote there
//   twice    memory that is in use was handed out again, or less than was asked for
//   changed  the allocator changed an object that is in use
//   stale    the program can read what was in an object before it was freed
//
// With MISUSE_WITHOUT set, every case leaves its mistake out; then it must see nothing. The harness
// itself never allocates.
#ifndef TESTS_MISUSE_MISUSE_H_
#define TESTS_MISUSE_MISUSE_H_

#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))

struct Case {
  const char* name;  // kind/what-size
  void (*run)(const struct Case* c);
  size_t size;
  long a, b;
};

// The sizes that most mistakes are made with.
enum {
  kSmall = 64,
  kMedium = 5000,
  kBig = 200000,
  kLarge = 3 << 20,
};
#define SMALL_AND_MEDIUM(name, run, ...) \
  {name "-small", run, kSmall, __VA_ARGS__}, { name "-medium", run, kMedium, __VA_ARGS__ }
#define EACH_SIZE(name, run, ...)                                                    \
  SMALL_AND_MEDIUM(name, run, __VA_ARGS__), {name "-big", run, kBig, __VA_ARGS__}, { \
    name "-large", run, kLarge, __VA_ARGS__                                          \
  }

__attribute__((format(printf, 1, 2))) static void say(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (length > (int)sizeof text - 1) length = (int)sizeof text - 1;
  const ssize_t written = write(STDOUT_FILENO, text, (size_t)length);
  (void)written;
}

// _exit: what the end of a process does with the heap is not the subject.
UNUSED __attribute__((noreturn)) static void result(const char* text) {
  say("result: %s\n", text);
  _exit(0);
}
UNUSED __attribute__((noreturn)) static void harm(const char* harm_class, const char* why) {
  say("result: harm %s (%s)\n", harm_class, why);
  _exit(0);
}
// The case cannot be made here.
UNUSED __attribute__((noreturn)) static void absent(const char* what) {
  say("result: absent (%s)\n", what);
  _exit(0);
}
// The case itself is wrong.
#define REQUIRE(expression)                                       \
  do {                                                            \
    if (!(expression)) {                                          \
      say("fault: %s:%d: %s\n", __FILE__, __LINE__, #expression); \
      _exit(3);                                                   \
    }                                                             \
  } while (0)

static int is_announced;
// Whether to make the mistake.
UNUSED static int announce(const char* what, const char* text) {
  say("%s: %s\n", what, text);
  is_announced = 1;
  return getenv("MISUSE_WITHOUT") == NULL;
}
UNUSED static int mistake(const char* text) { return announce("mistake", text); }
UNUSED static int access_mistake(const char* text) { return announce("access", text); }
UNUSED static void made(void) { say("made\n"); }

// The compiler must not see through this.
UNUSED static inline void* hide(const void* pointer) {
  __asm__ volatile("" : "+r"(pointer) : : "memory");
  return (void*)pointer;
}
UNUSED static inline size_t hide_size(size_t size) {
  __asm__ volatile("" : "+r"(size));
  return size;
}

// --- What the attacker aims at.

struct Target {
  const char* at;
  size_t size;
  const char* what;
};
static struct Target targets[16];
static unsigned target_count;

// What lies there has nothing to do with the allocator, which must not write there.
enum { kMostWatched = 256 };
static const void* watched;
static size_t watched_size;
static char watched_before[kMostWatched];

UNUSED static void watch(const void* at, size_t size) {
  if (size > kMostWatched) abort();
  memcpy(watched_before, watched = at, watched_size = size);
}
UNUSED static void aim(const void* at, size_t size, const char* what) {
  for (unsigned i = 0; i < target_count; i++)
    if (targets[i].at == at) return;
  targets[target_count++] = (struct Target){(const char*)at, size, what};
}

// --- Objects in use. Their first 64 bytes and their last 16 have a pattern.

enum { kMostLive = 20000, kHead = 64, kTail = 16 };
struct Live {
  unsigned char* at;
  size_t size;
  unsigned seed;
};
static struct Live live[kMostLive];
static unsigned live_count, seeds;
// A word in an object in use that the program has written, instead of the pattern.
static const unsigned char* own_word;

static unsigned char byte_of(unsigned seed, size_t i) {
  return (unsigned char)(seed * 7 + i * 31 + 1);
}
static size_t next_place(const struct Live* l, size_t i) {
  return i + 1 == kHead && l->size > kHead + kTail ? l->size - kTail : i + 1;
}
static int is_own(const unsigned char* at) {
  return (uintptr_t)at - (uintptr_t)own_word < sizeof(uintptr_t);
}
static void fill_live(struct Live* l) {
  for (size_t i = 0; i < l->size; i = next_place(l, i))
    if (!is_own(&l->at[i])) l->at[i] = byte_of(l->seed, i);
}
static int is_whole(const struct Live* l) {
  for (size_t i = 0; i < l->size; i = next_place(l, i))
    if (!is_own(&l->at[i]) && l->at[i] != byte_of(l->seed, i)) return 0;
  return 1;
}

static size_t alignment = 16;  // of what is handed out

// The allocator has handed this out: was it allowed to?
UNUSED static void judge(void* object, size_t size) {
  const char* const at = (const char*)object;
  char why[160];
  for (unsigned i = 0; i < target_count; i++) {
    if ((uintptr_t)at - (uintptr_t)targets[i].at >= targets[i].size) continue;
    snprintf(why, sizeof why, "malloc returned %s", targets[i].what);
    harm("chosen", why);
  }
  for (unsigned i = 0; i < live_count; i++) {
    if ((uintptr_t)at + size <= (uintptr_t)live[i].at ||
        (uintptr_t)live[i].at + live[i].size <= (uintptr_t)at)
      continue;
    harm("twice", (unsigned char*)at == live[i].at ? "an object in use was handed out again"
                                                   : "memory in use was handed out again");
  }
  if ((uintptr_t)at % (size < alignment ? 8 : alignment) != 0)
    harm("chosen", "malloc returned an unaligned address, which is no object's");
}
UNUSED static void keep(void* object, size_t size) {
  judge(object, size);
  REQUIRE(live_count < kMostLive);
  struct Live* l = &live[live_count++];
  *l = (struct Live){(unsigned char*)object, size, ++seeds};
  fill_live(l);
}
UNUSED static void forget(const void* object) {
  for (unsigned i = live_count; i-- > 0;) {
    if (live[i].at != object) continue;
    live[i] = live[--live_count];
    return;
  }
  REQUIRE(!"an object in use");
}
// Other ways to allocate and free: a case of a heap or of a pool sets them.
UNUSED static void* take_of_malloc(size_t size) { return malloc(size); }
UNUSED static void give_to_malloc(void* object, size_t size) {
  (void)size;
  free(object);
}
static void* (*allocate)(size_t size) = take_of_malloc;
static void (*release)(void* object, size_t size) = give_to_malloc;

UNUSED static void* take(size_t size) {
  void* object = allocate(hide_size(size));
  // Nothing is left to hand out: what a mistake may lead to.
  if (object == NULL && is_announced) result("nothing seen");
  REQUIRE(object != NULL);
  keep(object, size);
  return object;
}
UNUSED static void give(void* object) {
  size_t size = 0;
  for (unsigned i = live_count; i-- > 0 && size == 0;)
    if (live[i].at == object) size = live[i].size;
  forget(object);
  release(hide(object), size);
}
// After a mistake that writes into objects in use: the program's own damage is not counted.
UNUSED static void repair(void) {
  for (unsigned i = 0; i < live_count; i++) fill_live(&live[i]);
}
UNUSED static void look(void) {
  if (watched_size > 0 && memcmp(watched, watched_before, watched_size) != 0)
    harm("chosen", "the allocator wrote where the attacker wanted");
  for (unsigned i = 0; i < live_count; i++)
    if (!is_whole(&live[i])) harm("changed", "the allocator changed an object in use");
}

// Allocates more than any slab or cache holds, twice, and looks at all of it.
UNUSED static unsigned probes_for(size_t size) {
  const unsigned n = (unsigned)((96 << 10) / size) + 40;
  return n < 7000 ? n : 7000;
}
UNUSED static void probe(size_t size) {
  const unsigned before = live_count, n = size < kBig ? probes_for(size) : 12;
  for (int round = 0; round < 2; round++) {
    for (unsigned i = 0; i < n; i++) take(size);
    look();
    while (live_count > before) give(live[before + (live_count - before) / 2].at);
    look();
  }
}

// --- Where a mistake is made.

struct Task {
  void (*run)(void* argument);
  void* argument;
};
UNUSED static void* run_task(void* task) {
  ((struct Task*)task)->run(((struct Task*)task)->argument);
  return NULL;
}
UNUSED static void in_thread(void (*run)(void* argument), void* argument) {
  struct Task task = {run, argument};
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, run_task, &task) == 0);
  REQUIRE(pthread_join(thread, NULL) == 0);
}
UNUSED static void free_it(void* object) { free(hide(object)); }

// A thread that is there before the mistake begins, and has allocated.
static pthread_barrier_t helper_turn;
static struct Task helper_task;
UNUSED static void* help(void* unused) {
  free(hide(malloc(kSmall)));
  pthread_barrier_wait(&helper_turn);
  for (;;) {
    pthread_barrier_wait(&helper_turn);
    helper_task.run(helper_task.argument);
    pthread_barrier_wait(&helper_turn);
  }
  return unused;
}
UNUSED static void start_helper(void) {
  pthread_t thread;
  REQUIRE(pthread_barrier_init(&helper_turn, NULL, 2) == 0);
  REQUIRE(pthread_create(&thread, NULL, help, NULL) == 0);
  pthread_barrier_wait(&helper_turn);
}
UNUSED static void in_helper(void (*run)(void* argument), void* argument) {
  helper_task = (struct Task){run, argument};
  pthread_barrier_wait(&helper_turn);
  pthread_barrier_wait(&helper_turn);
}

// Goes on in a child, and ends as the child does.
UNUSED static void go_on_in_child(void) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) return;
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  if (WIFSIGNALED(status)) {
    signal(WTERMSIG(status), SIG_DFL);
    raise(WTERMSIG(status));
  }
  _exit(WEXITSTATUS(status));
}

// --- Reading and writing where nothing may be.

// The first word of an object that may be gone: then 0.
UNUSED static uintptr_t word_at(const void* object) {
  uintptr_t word = 0;
  const struct iovec here = {&word, sizeof word}, there = {(void*)object, sizeof word};
  return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == sizeof word ? word : 0;
}

// n words of the object, or as many as it has.
UNUSED static void write_words(void* object, size_t size, uintptr_t value, size_t n) {
  volatile uintptr_t* words = (volatile uintptr_t*)hide(object);
  for (size_t i = 0; i < n && i < size / sizeof(uintptr_t); i++) words[i] = value;
}

static int run_program(const struct Case* cases, size_t count, int argc, char** argv) {
  for (size_t i = 0; i < count; i++) {
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
      say("%s\n", cases[i].name);
    } else if (argc == 2 && strcmp(argv[1], cases[i].name) == 0) {
      cases[i].run(&cases[i]);
      look();
      result("nothing seen");
    }
  }
  return argc == 2 && strcmp(argv[1], "--list") == 0 ? 0 : 2;
}
#define PROGRAM(cases)                                                         \
  int main(int argc, char** argv) {                                            \
    return run_program(cases, sizeof(cases) / sizeof((cases)[0]), argc, argv); \
  }

#endif  // TESTS_MISUSE_MISUSE_H_
