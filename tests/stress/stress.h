// What the stress and bounds programs share: the allocator under test, a seeded generator, objects
// that know what was written into them, a watchdog, memory readings, and the case runner.
// Used by: tests/stress/*.cpp, tests/bounds/*.cpp. No C++ library code is linked and nothing here
// allocates. So a program decides itself when its first allocation happens, and a signal handler
// may use everything here.
//
// A program is a table of cases: `program list` prints their names, `program NAME` runs one in a
// process of its own and prints one line, `ok …`, `skipped …` or `FAILED …`. After FAILED the
// process aborts, so a debugger stops there. Environment: LANEMALLOC_TEST_SCALE (work factor),
// LANEMALLOC_TEST_SEED, LANEMALLOC_TEST_WATCHDOG (seconds), LANEMALLOC_TEST_HANG=1 (stop for a
// debugger instead of aborting), LANEMALLOC_TEST_LIBRARY (path of the library that must serve
// malloc; set by run.sh), LANEMALLOC_TEST_CHECKED=1 (the library runs with checked=1).
#pragma once

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#ifdef LANEMALLOC_TEST_PREFIXED
#include <lanemalloc/lanemalloc.h>
#endif

namespace stress {

// ---- the allocator under test
// -------------------------------------------------------------------------------------------------
// Either the malloc symbols (drop-in, by LD_PRELOAD), or lane_* of the prefixed library under a
// sanitizer.
#ifdef LANEMALLOC_TEST_PREFIXED
#define LANEMALLOC_TEST_API(name) lane_##name
#else
#define LANEMALLOC_TEST_API(name) ::name
#endif
namespace api {
// noinline and the barrier keep the compiler from removing an allocation and its free if the object
// is not used.
[[gnu::noinline]] inline void* malloc(size_t n) {
  void* p = LANEMALLOC_TEST_API(malloc)(n);
  asm volatile("" : "+r"(p)::"memory");
  return p;
}
[[gnu::noinline]] inline void* calloc(size_t n, size_t size) {
  void* p = LANEMALLOC_TEST_API(calloc)(n, size);
  asm volatile("" : "+r"(p)::"memory");
  return p;
}
[[gnu::noinline]] inline void* realloc(void* old, size_t n) {
  void* p = LANEMALLOC_TEST_API(realloc)(old, n);
  asm volatile("" : "+r"(p)::"memory");
  return p;
}
[[gnu::noinline]] inline void free(void* p) {
  asm volatile("" : "+r"(p)::"memory");
  LANEMALLOC_TEST_API(free)(p);
}
inline void* memalign(size_t align, size_t n) { return LANEMALLOC_TEST_API(memalign)(align, n); }
inline void* aligned_alloc(size_t align, size_t n) {
  return LANEMALLOC_TEST_API(aligned_alloc)(align, n);
}
inline int posix_memalign(void** p, size_t align, size_t n) {
  return LANEMALLOC_TEST_API(posix_memalign)(p, align, n);
}
inline size_t usable_size(void* p) { return LANEMALLOC_TEST_API(malloc_usable_size)(p); }
}  // namespace api

// ---- output
// -------------------------------------------------------------------------------------------------
inline const char* g_program = "?";
inline const char* g_case = "?";
inline char g_note[512];

// For %llu.
inline unsigned long long llu(uint64_t n) { return n; }

inline void print(int fd, const char* format, ...) {
  char text[2048];
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (length > static_cast<int>(sizeof text) - 1) length = sizeof text - 1;
  // One write, so lines of several processes do not mix.
  if (length > 0 && write(fd, text, static_cast<size_t>(length)) < 0) _exit(99);
}

// What the `ok` line says after the name.
#define NOTE(...) snprintf(stress::g_note, sizeof stress::g_note, __VA_ARGS__)

[[noreturn]] inline void stop_here() {
  if (getenv("LANEMALLOC_TEST_HANG") != nullptr)
    for (;;) pause();
  signal(SIGABRT, SIG_DFL);
  abort();
}

#define FAIL(...)                                                                            \
  do {                                                                                       \
    char stress_text_[700];                                                                  \
    snprintf(stress_text_, sizeof stress_text_, __VA_ARGS__);                                \
    stress::print(1, "FAILED %s %s: %s\n", stress::g_program, stress::g_case, stress_text_); \
    stress::stop_here();                                                                     \
  } while (0)

#define EXPECT(condition, ...)           \
  do {                                   \
    if (!(condition)) FAIL(__VA_ARGS__); \
  } while (0)

#define SKIP(...)                                                                             \
  do {                                                                                        \
    char stress_text_[700];                                                                   \
    snprintf(stress_text_, sizeof stress_text_, __VA_ARGS__);                                 \
    stress::print(1, "skipped %s %s: %s\n", stress::g_program, stress::g_case, stress_text_); \
    _exit(0);                                                                                 \
  } while (0)

// ---- parameters
// -------------------------------------------------------------------------------------------------
inline double number_from(const char* name, double fallback) {
  const char* text = getenv(name);
  return text != nullptr && *text != 0 ? strtod(text, nullptr) : fallback;
}
inline uint64_t scaled(double count) {
  double n = count * number_from("LANEMALLOC_TEST_SCALE", 1);
  return n < 1 ? 1 : static_cast<uint64_t>(n);
}
inline uint64_t base_seed() {
  return static_cast<uint64_t>(number_from("LANEMALLOC_TEST_SEED", 20240607));
}
inline bool checked_mode() { return number_from("LANEMALLOC_TEST_CHECKED", 0) != 0; }

inline uint64_t mix(uint64_t x) {  // splitmix64's finalizer
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

class Random {
 public:
  explicit Random(uint64_t stream = 0) : state_(mix(base_seed() * 0x10001 + stream)) {}
  uint64_t next() { return mix(state_++); }
  uint64_t below(uint64_t n) { return next() % n; }
  bool percent(unsigned n) { return below(100) < n; }
  // Each power of two from low to high is about equally likely.
  size_t log_uniform(size_t low, size_t high) {
    unsigned first = 63 - static_cast<unsigned>(__builtin_clzll(low));
    unsigned last = 63 - static_cast<unsigned>(__builtin_clzll(high));
    size_t floor = size_t{1} << (first + below(last - first + 1));
    size_t n = floor + below(floor);
    return n < low ? low : n > high ? high : n;
  }

 private:
  uint64_t state_;
};

// Most sizes are small, some are of middle size, and one in a hundred is large.
inline size_t random_size(Random& random, size_t largest) {
  uint64_t r = random.below(1000);
  size_t n = r < 700   ? 1 + random.below(512)
             : r < 900 ? random.log_uniform(512, 8192)
             : r < 990 ? random.log_uniform(8192, 64 << 10)
                       : random.log_uniform(64 << 10, largest < (64 << 10) ? 64 << 10 : largest);
  return n < largest ? n : largest;
}

// ---- stages and watchdog
// -------------------------------------------------------------------------------------------------
struct Stage {
  std::atomic<int> thread{0};
  std::atomic<const char*> text{""};
  std::atomic<uint64_t> count{0};
};
inline Stage g_stages[4096];
inline thread_local Stage* t_stage = nullptr;
inline int thread_id() { return static_cast<int>(syscall(SYS_gettid)); }

// Says what this thread does now; the watchdog prints it.
inline void stage(const char* text, uint64_t count = 0) {
  if (t_stage == nullptr) {
    int self = thread_id();
    for (Stage& s : g_stages) {
      int nobody = 0;
      if (s.thread.load(std::memory_order_relaxed) == 0 &&
          s.thread.compare_exchange_strong(nobody, self)) {
        t_stage = &s;
        break;
      }
    }
    if (t_stage == nullptr) return;
  }
  t_stage->text.store(text, std::memory_order_relaxed);
  t_stage->count.store(count, std::memory_order_relaxed);
}
inline void stage_end() {
  if (t_stage != nullptr) t_stage->thread.store(0);
  t_stage = nullptr;
}

inline const int kWatchdogSignal = SIGRTMIN + 7;
inline int watchdog_seconds() {
  return static_cast<int>(number_from("LANEMALLOC_TEST_WATCHDOG", 120));
}

inline int g_watchdog_seconds = 0;

// The first stage is printed in the FAILED line itself, which is all that a summary shows.
inline void on_watchdog(int) {
  print(1, "FAILED %s %s: not done after %d s (process %d)", g_program, g_case, g_watchdog_seconds,
        static_cast<int>(getpid()));
  int printed = 0;
  for (Stage& s : g_stages)
    if (int thread = s.thread.load(); thread != 0 && printed++ < 40)
      print(1, "%sthread %d: %s %llu", printed == 1 ? ": " : "\n  ", thread, s.text.load(),
            llu(s.count.load()));
  print(1, "\n");
  stop_here();
}

// The watchdog is a timer and not a thread, so that a process with one thread keeps one. Call this
// again in a forked child, with fewer seconds, so that the child reports before its parent does.
inline void arm_watchdog(int seconds = watchdog_seconds()) {
  g_watchdog_seconds = seconds;
  struct sigaction action = {};
  action.sa_handler = on_watchdog;
  sigfillset(&action.sa_mask);
  sigaction(kWatchdogSignal, &action, nullptr);
  sigevent event = {};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = kWatchdogSignal;
  int timer = 0;  // the system call itself: a C library's wrapper may allocate
  itimerspec when = {{0, 0}, {seconds, 0}};
  if (syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &timer) != 0 ||
      syscall(SYS_timer_settime, timer, 0, &when, nullptr) != 0)
    FAIL("watchdog: %s", strerror(errno));
}

// ---- objects that know their contents
// -------------------------------------------------------------------------------------------------
// Each object has a tag of its own (owner and serial number). The pattern is a function of tag and
// offset. It covers the first and last 64 bytes and a word in each 512, so an overlap of any two
// objects breaks one of them, and a write that was lost shows. Call fill after allocating, and
// check before freeing.
struct Owned {
  unsigned char* address = nullptr;
  size_t size = 0;
  uint64_t tag = 0;
};

inline uint64_t pattern_word(uint64_t tag, size_t index) {
  return (tag ^ (index * 0x9e3779b97f4a7c15u)) * 0xd6e8feb86659fd93u + 0x5851f42d4c957f2du;
}
inline unsigned char pattern_byte(uint64_t tag, size_t i) {
  return static_cast<unsigned char>(pattern_word(tag, i / 8) >> (8 * (i % 8)));
}

// Calls f(begin, end) for each range of an object of `size` bytes that carries the pattern.
template <class F>
inline void for_pattern_ranges(size_t size, F f) {
  constexpr size_t kEdge = 64, kStride = 512;
  if (size <= 2 * kEdge) return f(size_t{0}, size);
  f(size_t{0}, kEdge);
  for (size_t i = kStride; i + 8 <= size - kEdge; i += kStride) f(i, i + 8);
  f(size - kEdge, size);
}

inline void fill(const Owned& o) {
  for_pattern_ranges(o.size, [&](size_t i, size_t end) {
    for (; i % 8 == 0 && i + 8 <= end; i += 8) {
      uint64_t word = pattern_word(o.tag, i / 8);
      memcpy(o.address + i, &word, 8);
    }
    for (; i < end; i++) o.address[i] = pattern_byte(o.tag, i);
  });
}

// Checks the part of the pattern below `valid` bytes.
inline void check_prefix(const Owned& o, size_t valid, const char* where) {
  for_pattern_ranges(o.size, [&](size_t i, size_t end) {
    if (end > valid) end = valid;
    for (; i % 8 == 0 && i + 8 <= end; i += 8) {
      uint64_t word;
      memcpy(&word, o.address + i, 8);
      if (word != pattern_word(o.tag, i / 8))
        FAIL("%s: object %p of %zu bytes (owner %llu, serial %llu) damaged at offset %zu: %016llx",
             where, static_cast<void*>(o.address), o.size, llu(o.tag >> 40),
             llu(o.tag & ((1ull << 40) - 1)), i, llu(word));
    }
    for (; i < end; i++)
      if (o.address[i] != pattern_byte(o.tag, i))
        FAIL("%s: object %p of %zu bytes (owner %llu) damaged at offset %zu: %02x", where,
             static_cast<void*>(o.address), o.size, llu(o.tag >> 40), i, o.address[i]);
  });
}
inline void check(const Owned& o, const char* where) { check_prefix(o, o.size, where); }

inline void check_zero(const unsigned char* p, size_t size, const char* where) {
  size_t i = 0;
  for (uint64_t word; i + 8 <= size; i += 8) {
    memcpy(&word, p + i, 8);
    if (word != 0)
      FAIL("%s: calloc'd object %p of %zu bytes is not zero at %zu: %016llx", where,
           static_cast<const void*>(p), size, i, llu(word));
  }
  for (; i < size; i++)
    if (p[i] != 0) FAIL("%s: calloc'd object of %zu bytes is not zero at %zu", where, size, i);
}

inline std::atomic<uint64_t> g_owners{0};
// Gives each thread (and each kind of handler in it) its own tags.
class Tags {
 public:
  Tags() : next_((g_owners.fetch_add(1) + 1) << 40) {}
  uint64_t next() { return next_++; }

 private:
  uint64_t next_;
};

inline Owned take(size_t size, uint64_t tag) {
  Owned o{static_cast<unsigned char*>(api::malloc(size)), size, tag};
  EXPECT(o.address != nullptr, "malloc(%zu): %s", size, strerror(errno));
  fill(o);
  return o;
}
inline void give(Owned& o, const char* where) {
  check(o, where);
  api::free(o.address);
  o = {};
}

// A place where objects change hands. Code that finds it busy goes elsewhere, so handlers may use
// it.
struct alignas(64) SharedSlot {
  std::atomic<bool> busy{false};
  Owned object;
  bool try_lock() {
    return !busy.load(std::memory_order_relaxed) && !busy.exchange(true, std::memory_order_acquire);
  }
  void unlock() { busy.store(false, std::memory_order_release); }
  bool swap(Owned& mine) {
    if (!try_lock()) return false;
    Owned theirs = object;
    object = mine;
    mine = theirs;
    unlock();
    return true;
  }
};

// Knows which addresses are handed out: it reserves a byte for each 8 bytes of address space, and
// touches a byte only when it is needed. If two callers get an address at once, that is seen at the
// second call, whichever of them writes into the object.
class OwnershipTable {
 public:
  bool reserve() {
    void* p = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return false;
    madvise(p, kBytes, MADV_DONTDUMP);
    madvise(p, kBytes, MADV_NOHUGEPAGE);
    table_ = static_cast<std::atomic<unsigned char>*>(p);
    return true;
  }
  void claim(void* p) { mark(p, 1, "handed out twice"); }
  void unclaim(void* p) { mark(p, 0, "freed but not handed out"); }

 private:
  static constexpr size_t kBytes = (size_t{1} << 47) / 8;
  void mark(void* p, unsigned char value, const char* complaint) {
    uintptr_t address = reinterpret_cast<uintptr_t>(p);
    if (table_ == nullptr || address >> 47 != 0) return;
    if (table_[address / 8].exchange(value, std::memory_order_relaxed) == value)
      FAIL("%p %s", p, complaint);
  }
  std::atomic<unsigned char>* table_ = nullptr;
};

// ---- threads
// -------------------------------------------------------------------------------------------------
template <class Body>
struct ThreadStart {
  const Body* body;
  int index;
  pthread_t thread;
  static void* enter(void* self) {
    auto* start = static_cast<ThreadStart*>(self);
    stage("started");
    (*start->body)(start->index);
    stage_end();
    return nullptr;
  }
};

// Runs body(0) … body(n - 1) in threads of their own, and `meanwhile` in this one; then joins them.
template <class Body, class Meanwhile>
void run_threads(int n, const Body& body, const Meanwhile& meanwhile) {
  constexpr int kMost = 64;
  ThreadStart<Body> starts[kMost];
  EXPECT(n <= kMost, "too many threads");
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 512 << 10);
  for (int i = 0; i < n; i++) {
    starts[i].body = &body;
    starts[i].index = i;
    int error =
        pthread_create(&starts[i].thread, &attributes, ThreadStart<Body>::enter, &starts[i]);
    EXPECT(error == 0, "pthread_create: %s", strerror(error));
  }
  pthread_attr_destroy(&attributes);
  meanwhile();
  stage("joining");
  for (int i = 0; i < n; i++) pthread_join(starts[i].thread, nullptr);
}
template <class Body>
void run_threads(int n, const Body& body) {
  run_threads(n, body, [] {});
}

inline double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}
inline void pause_for(double seconds) {
  timespec t = {
      static_cast<time_t>(seconds),
      static_cast<long>((seconds - static_cast<double>(static_cast<time_t>(seconds))) * 1e9)};
  nanosleep(&t, nullptr);
}

// ---- memory readings
// -------------------------------------------------------------------------------------------------
constexpr size_t kKiB = 1024, kMiB = 1024 * 1024, kGiB = 1024 * 1024 * 1024;

// The value of a line of /proc/self/smaps_rollup, in bytes. It is exact, while statm may lag
// behind.
inline size_t rollup(const char* key) {
  char text[4096];
  int fd = open("/proc/self/smaps_rollup", O_RDONLY | O_CLOEXEC);
  EXPECT(fd >= 0, "smaps_rollup: %s", strerror(errno));
  size_t length = 0;
  for (ssize_t n;
       length < sizeof text - 1 && (n = read(fd, text + length, sizeof text - 1 - length)) > 0;)
    length += static_cast<size_t>(n);
  close(fd);
  text[length] = 0;
  const char* line = strstr(text, key);
  EXPECT(line != nullptr, "no %s in smaps_rollup", key);
  return strtoull(line + strlen(key), nullptr, 10) * kKiB;
}
inline size_t resident() { return rollup("\nRss:"); }
// Under a sanitizer most of the resident memory is the sanitizer's own.
#ifdef LANEMALLOC_TEST_PREFIXED
constexpr bool kJudgeResident = false;
#else
constexpr bool kJudgeResident = true;
#endif

inline void* map_pages(size_t bytes) {  // memory for the test itself
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  EXPECT(p != MAP_FAILED, "mmap(%zu): %s", bytes, strerror(errno));
  return p;
}

inline bool wait_ok(int status) { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }
inline const char* describe(int status, char (&text)[64]) {
  if (WIFEXITED(status))
    snprintf(text, sizeof text, "exit status %d", WEXITSTATUS(status));
  else
    snprintf(text, sizeof text, "signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
  return text;
}

// The child of a fork must end with status 0.
inline void expect_good_end(pid_t child, const char* what, uint64_t number) {
  int status = 0;
  char why[64];
  EXPECT(child >= 0, "fork: %s", strerror(errno));
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  EXPECT(wait_ok(status), "%s %llu: %s", what, llu(number), describe(status, why));
}

// Runs this program again with the arguments `first` and `second` (and the environment given) and
// returns the number it prints.
inline size_t measure_in_new_process(const char* first, const char* second, char** environment) {
  int ends[2];
  EXPECT(pipe2(ends, O_CLOEXEC) == 0, "pipe: %s", strerror(errno));
  pid_t child = fork();
  EXPECT(child >= 0, "fork: %s", strerror(errno));
  if (child == 0) {
    dup2(ends[1], 1);
    char* arguments[] = {const_cast<char*>(g_program), const_cast<char*>(first),
                         const_cast<char*>(second), nullptr};
    execve("/proc/self/exe", arguments, environment);
    _exit(126);
  }
  close(ends[1]);
  char text[1024];
  size_t length = 0;
  for (ssize_t n; length < sizeof text - 1 &&
                  (n = read(ends[0], text + length, sizeof text - 1 - length)) != 0;)
    if (n > 0) length += static_cast<size_t>(n);
  close(ends[0]);
  text[length] = 0;
  int status = 0;
  waitpid(child, &status, 0);
  char why[64];
  EXPECT(wait_ok(status), "measuring '%s %s': %s: %.400s", first, second, describe(status, why),
         text);
  return strtoull(text, nullptr, 10);
}

// ---- cases
// -------------------------------------------------------------------------------------------------
struct Case {
  const char* name;
  void (*run)();
};

// The preload is useless if malloc comes from elsewhere: then nothing was tested.
inline void check_library() {
#ifndef LANEMALLOC_TEST_PREFIXED
  const char* wanted = getenv("LANEMALLOC_TEST_LIBRARY");
  if (wanted == nullptr || *wanted == 0) return;
  Dl_info info = {};
  void* symbol = dlsym(RTLD_DEFAULT, "malloc");
  EXPECT(symbol != nullptr && dladdr(symbol, &info) != 0, "who serves malloc is unknown");
  EXPECT(strcmp(info.dli_fname, wanted) == 0, "malloc comes from %s, not from %s", info.dli_fname,
         wanted);
#endif
}

template <size_t kCount>
int run_cases(const char* program, int argc, char** argv, const Case (&cases)[kCount]) {
  g_program = program;
  if (argc == 2 && strcmp(argv[1], "list") == 0) {
    for (const Case& c : cases) print(1, "%s\n", c.name);
    return 0;
  }
  for (const Case& c : cases)
    if (argc == 2 && strcmp(argv[1], c.name) == 0) {
      g_case = c.name;
      arm_watchdog();
      stage("main");
      c.run();
      check_library();  // after the run: dlsym may allocate
      print(1, "ok %s %s%s%s\n", g_program, g_case, *g_note != 0 ? ": " : "", g_note);
      return 0;
    }
  print(2, "usage: %s list | CASE\n", program);
  return 2;
}

}  // namespace stress
