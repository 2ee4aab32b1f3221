// The simulator. workloads.cpp and the sources of the core are compiled with -fsanitize=thread.
// This puts a call of a __tsan_* function before every access to memory and in place of every
// atomic operation. This file defines these functions.
// Called by: workloads.cpp.
//
//   core      a fiber with a clock. The core whose clock is lowest makes the next access, so a run
//             depends on its seed alone
//   access    takes 1, and kLocked more if it is a read-modify-write
//   transfer  takes kTransfer more. Transfers of one line come one after the other
//
// The times only decide which core comes next, and thereby how often compare-exchanges fail and
// locks are met. Memory is sequentially consistent.
#include "simulator.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <queue>
#include <random>
#include <vector>

#include "directory.h"

extern char __data_start, _end;  // the static storage, as the linker lays it out

namespace lanemalloc {
[[noreturn]] void check_failed(const char* expression, const char* file, int line);
}

namespace simulator {

std::byte* arena = [] {
  constexpr size_t kAlignment = 2 << 20;
  void* p = mmap(nullptr, kArenaSize + kAlignment, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    std::perror("mmap");
    std::exit(2);
  }
  const auto at = (reinterpret_cast<uintptr_t>(p) + kAlignment - 1) & ~(kAlignment - 1);
  return reinterpret_cast<std::byte*>(at);
}();

namespace {

constexpr uint64_t kTransfer = 60;
constexpr uint64_t kLocked = 4;
constexpr uint64_t kWake = 500;
constexpr size_t kStackSize = 64 << 10;

struct Core {
  uint64_t clock = 0;
  const void* waits_for = nullptr;  // the futex word
  std::vector<char> stack;
  ucontext_t start;
  jmp_buf place;
  bool fresh = true;
};

using Turn = std::pair<uint64_t, int>;  // clock, core

Core cores[kMostCores];
int current = -1;  // -1: outside run()
int core_total = 0;
int unfinished = 0;
bool in_step = false;
std::priority_queue<Turn, std::vector<Turn>, std::greater<>> ready;
jmp_buf main_place;
void (*running_body)(void*, int);
void* running_context;

Directory arena_directory(kArenaSize);
Directory static_directory(static_cast<size_t>(&_end - &__data_start) + Page::kSize);
Counts counted;
uintptr_t objects = ~uintptr_t{0};
std::mt19937_64 generator;

// Null if the address is not watched.
Page* page_of(uintptr_t a) {
  const uintptr_t in_arena = a - reinterpret_cast<uintptr_t>(arena);
  if (in_arena < kArenaSize) return &arena_directory.page(in_arena);
  // Counted from the beginning of the page, so that its lines are where they are in memory.
  const uintptr_t begin = reinterpret_cast<uintptr_t>(&__data_start) / Page::kSize * Page::kSize;
  if (a >= begin && a < reinterpret_cast<uintptr_t>(&_end))
    return &static_directory.page(a - begin);
  return nullptr;
}

[[noreturn]] void enter(int core) {
  current = core;
  Core& to = cores[core];
  if (to.fresh) {
    to.fresh = false;
    setcontext(&to.start);
  }
  _longjmp(to.place, 1);
}

// The current core stops here; the next in turn goes on.
void give_way() {
  if (ready.empty()) {
    std::fprintf(stderr, "simulator: every core waits\n");
    std::abort();
  }
  if (_setjmp(cores[current].place) != 0) return;
  const int next = ready.top().second;
  ready.pop();
  enter(next);
}

// Returns when it is this core's turn.
void take_turn() {
  const Turn mine{cores[current].clock, current};
  if (in_step || ready.empty() || mine < ready.top()) return;
  ready.push(mine);
  give_way();
}

void core_main(int core) {
  running_body(running_context, core);
  --unfinished;
  if (ready.empty()) {
    if (unfinished > 0) {
      std::fprintf(stderr, "simulator: %d cores wait for good\n", unfinished);
      std::abort();
    }
    _longjmp(main_place, 1);
  }
  const int next = ready.top().second;
  ready.pop();
  enter(next);
}

// Where an access stands in the program; null for an access of the program's own.
using Place = const void*;
std::map<Place, Blame> blamed;

template <size_t kLine>
bool count_access(Page::Lines<kLine>& lines, Transfers& t, uintptr_t a, bool is_write,
                  Place place) {
  const size_t i = a % Page::kSize / kLine;
  const bool transfer = lines.all[i].access(current, is_write);
  if (a < objects) {
    t.metadata += transfer;
    return transfer;
  }
  const bool program = place == nullptr && lines.program[i].access(current, is_write);
  t.program += program;
  t.links += transfer;
  t.links -= program;
  return transfer;
}

void access(uintptr_t a, bool is_write, bool is_locked, Place place) {
  if (current < 0) return;
  Page* watched = page_of(a);
  if (watched == nullptr) return;
  take_turn();
  Page& page = *watched;
  Core& core = cores[current];
  core.clock += 1 + (is_locked ? kLocked : 0);
  const bool pair = count_access(page.pairs, counted.pairs, a, is_write, place);
  const bool line = count_access(page.lines, counted.lines, a, is_write, place);
  if (line || pair) {
    Blame& blame = blamed[place];
    (a < objects ? blame.metadata_lines : blame.object_lines) += line;
    (a < objects ? blame.metadata_pairs : blame.object_pairs) += pair;
  }
  if (!line) return;
  uint64_t& busy_until = page.busy_until[a % Page::kSize / 64];
  busy_until = std::max(busy_until, core.clock) + kTransfer;
  core.clock = busy_until;
}

void access_range(const void* p, size_t bytes, bool is_write, Place place) {
  const auto a = reinterpret_cast<uintptr_t>(p);
  for (uintptr_t at = a; at < a + bytes; at = (at / 64 + 1) * 64)
    access(at, is_write, false, place);
}

template <class T>
T load(const volatile T* p, Place place) {
  access(reinterpret_cast<uintptr_t>(p), false, false, place);
  return *p;
}

template <class T>
void store(volatile T* p, T value, Place place) {
  access(reinterpret_cast<uintptr_t>(p), true, false, place);
  *p = value;
}

// A locked operation takes the line for writing, whether or not it changes it.
template <class T, class Change>
T modify(volatile T* p, Place place, Change change) {
  access(reinterpret_cast<uintptr_t>(p), true, true, place);
  const T before = *p;
  *p = static_cast<T>(change(before));
  return before;
}

}  // namespace

void objects_begin_at(const void* p) { objects = reinterpret_cast<uintptr_t>(p); }

void set_up(int n, uint64_t seed) {
  core_total = n;
  generator.seed(seed);
}

void run(void (*body)(void*, int), void* context) {
  running_body = body;
  running_context = context;
  unfinished = core_total;
  for (int i = 0; i < core_total; ++i) {
    Core& core = cores[i];
    core.stack.resize(kStackSize);
    getcontext(&core.start);
    core.start.uc_stack = {core.stack.data(), 0, kStackSize};
    core.start.uc_link = nullptr;
    makecontext(&core.start, reinterpret_cast<void (*)()>(core_main), 1, i);
    core.fresh = true;
    core.clock = cores[0].clock + random(kTransfer);
    ready.push({core.clock, i});
  }
  if (_setjmp(main_place) == 0) {
    const int first = ready.top().second;
    ready.pop();
    enter(first);
  }
  current = -1;
  for (Core& core : cores) cores[0].clock = std::max(cores[0].clock, core.clock);
}

int current_core() { return std::max(current, 0); }
int core_count() { return core_total; }
uint64_t now() { return cores[current_core()].clock; }

uint64_t random(uint64_t below) { return generator() % below; }

void idle(uint64_t time) {
  if (current < 0) return;
  cores[current].clock += time;
  take_turn();
}

Step::Step() {
  idle(0);
  in_step = true;
}
Step::~Step() { in_step = false; }

void wait(const void* word, uint32_t value) {
  uint32_t now;
  std::memcpy(&now, word, sizeof now);
  if (now != value) return;
  cores[current].waits_for = word;
  give_way();
}

void wake(const void* word, int count) {
  for (; count > 0; --count) {
    Core* first = nullptr;
    for (Core& core : cores)
      if (core.waits_for == word && (first == nullptr || core.clock < first->clock)) first = &core;
    if (first == nullptr) return;
    first->waits_for = nullptr;
    first->clock = std::max(first->clock, cores[current].clock) + kWake;
    ready.push({first->clock, static_cast<int>(first - cores)});
  }
}

void program_reads(const void* object, size_t bytes) {
  access_range(object, bytes, false, nullptr);
}
void program_writes(const void* object, size_t bytes) {
  access_range(object, bytes, true, nullptr);
}

Counts counts() { return counted; }
void reset_counts() {
  counted = {};
  blamed.clear();
}
void visit_blamed(void (*visit)(const void* place, Blame blame)) {
  for (const auto& [place, blame] : blamed) visit(place, blame);
}

}  // namespace simulator

void lanemalloc::check_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: CHECK(%s)\n", file, line, expression);
  std::abort();
}

// --- The __tsan_* interface.

#define PLACE __builtin_extract_return_addr(__builtin_return_address(0))

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_read_range(void* a, size_t n) { simulator::access_range(a, n, false, PLACE); }
void __tsan_write_range(void* a, size_t n) { simulator::access_range(a, n, true, PLACE); }

#define PLAIN(size)                                                                             \
  void __tsan_read##size(void* a) { simulator::access_range(a, size, false, PLACE); }           \
  void __tsan_write##size(void* a) { simulator::access_range(a, size, true, PLACE); }           \
  void __tsan_unaligned_read##size(void* a) { simulator::access_range(a, size, false, PLACE); } \
  void __tsan_unaligned_write##size(void* a) { simulator::access_range(a, size, true, PLACE); }
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)

#define FETCH(bits, name, expression)                                                              \
  uint##bits##_t __tsan_atomic##bits##_##name(volatile uint##bits##_t* a, uint##bits##_t v, int) { \
    return simulator::modify(a, PLACE, [v](uint##bits##_t before) {                                \
      (void)before;                                                                                \
      return expression;                                                                           \
    });                                                                                            \
  }
#define COMPARE(bits, name)                                                               \
  int __tsan_atomic##bits##_compare_exchange_##name(                                      \
      volatile uint##bits##_t* a, uint##bits##_t* expected, uint##bits##_t v, int, int) { \
    const uint##bits##_t wanted = *expected;                                              \
    *expected = simulator::modify(                                                        \
        a, PLACE, [=](uint##bits##_t before) { return before == wanted ? v : before; });  \
    return *expected == wanted;                                                           \
  }
#define ATOMIC(bits)                                                                     \
  uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t* a, int) {     \
    return simulator::load(a, PLACE);                                                    \
  }                                                                                      \
  void __tsan_atomic##bits##_store(volatile uint##bits##_t* a, uint##bits##_t v, int) {  \
    simulator::store(a, v, PLACE);                                                       \
  }                                                                                      \
  FETCH(bits, exchange, v)                                                               \
  FETCH(bits, fetch_add, before + v)                                                     \
  FETCH(bits, fetch_sub, before - v)                                                     \
  FETCH(bits, fetch_and, before& v)                                                      \
  FETCH(bits, fetch_or, before | v)                                                      \
  COMPARE(bits, weak)                                                                    \
  COMPARE(bits, strong)                                                                  \
  uint##bits##_t __tsan_atomic##bits##_compare_exchange_val(                             \
      volatile uint##bits##_t* a, uint##bits##_t expected, uint##bits##_t v, int, int) { \
    __tsan_atomic##bits##_compare_exchange_strong(a, &expected, v, 0, 0);                \
    return expected;                                                                     \
  }
ATOMIC(8)
ATOMIC(16)
ATOMIC(32)
ATOMIC(64)

void __tsan_atomic_thread_fence(int) {}
void __tsan_atomic_signal_fence(int) {}
}
