// The explorer. scenarios.cpp and the sources of the core are compiled with -fsanitize=thread. This
// puts a call of a __tsan_* function before every access to memory and in place of every atomic
// operation. This file defines these functions.
// Called by: run.py, as `explorer SCENARIO DEEPER [CHOICE...]`. DEEPER is the number of preemptions
// that are allowed beyond what the scenario says. Without arguments it lists the scenarios.
//
//   threads   are fibers. Before every atomic operation the explorer may stop one and go on with
//             another
//   schedule  is the list of choices made. The search is depth first, so the next schedule differs
//             in its last choice
//   memory    is x86's: a thread's stores wait in its buffer, in order, until a locked operation, a
//             barrier, or some later time. When the explorer stops a thread, it also chooses how
//             many of the newest stores stay in the thread's buffer
//   CPUs      have numbers. Threads of one CPU change places only when the kernel takes one of them
//             off the CPU. That is a full barrier, and it puts what that thread did before what the
//             next one does. Restartable sequences rely on that
//   races     are found by vector clocks, as ThreadSanitizer does. A race is two accesses to one
//             place, one of them plain and one of them a write, that no release and acquire put
//             into an order, whether or not they come close in time
//
// A failure is printed as its choices and, step by step, what was done. The same choices run it
// again.
#include "explorer.h"

#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace lanemalloc {
[[noreturn]] void check_failed(const char* expression, const char* file, int line);
}

namespace explorer {

alignas(2 << 20) std::byte arena[kArenaSize];

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kStateSize = 256 << 10;
constexpr size_t kStackSize = 256 << 10;
constexpr int kMostSteps = 20000;
constexpr int kKeptStores = 4;
constexpr int kPausesBeforeYield = 200;  // more than the core spins before it sleeps

alignas(kPage) std::byte state[kStateSize];  // the scenario

using Clock = std::array<uint32_t, kMostThreads>;

void join(Clock& into, const Clock& from) {
  for (int i = 0; i < kMostThreads; ++i) into[i] = std::max(into[i], from[i]);
}

struct Store {
  uintptr_t address;
  uint64_t value;
  uint8_t size;
  bool release;
  Clock clock;
};

enum class Condition { kReady, kWaiting, kPaused, kDone };

struct Thread {
  Condition condition;
  const void* waits_for;  // the futex word
  std::vector<Store> buffer;
  Clock clock;
  Clock loaded;  // what its relaxed loads could have acquired; an acquire fence does
  int pauses;    // in a row, without a write of another thread
  bool in_handler;
  int cpu;
  uint32_t restarts;  // counts what makes a restartable sequence start again
  Clock stepped;      // its clock when its last step changed a lane
  jmp_buf place;
  ucontext_t start;
  bool fresh = true;  // to be started at the top
  std::vector<char> stack;
};

struct Choice {
  uint8_t count;
  uint8_t taken;
};

// What the explorer knows of one place in memory during one schedule.
struct Cell {
  uintptr_t address = 0;
  uint32_t schedule = 0;
  int writer = -1;  // of the last plain write
  uint32_t written = 0;
  Clock reads{};  // plain
  Clock atomic_reads{};
  Clock atomic_writes{};
  Clock released{};
};

const Scenario* tested;  // the scenario
Thread threads[kMostThreads];
int current = -1;
int thread_count;
bool running = false;
jmp_buf main_place;

std::vector<Choice> choices;
size_t position;
int deeper = 0;
int preemptions_left, signals_left, moves_left, steps;
constexpr int kCpus = kMostThreads;
int on_cpu[kCpus];  // the thread that runs there, or -1 for none
Clock cpu_clocks[kCpus];
bool is_alone;        // in a fork child: what other threads have read no longer matters
int cpu_at_rest = 0;  // the CPU of the code before and after the threads
uint32_t schedule_number = 0;
uint64_t schedules = 0;
std::string failure;
bool tracing = false;

std::vector<uint32_t> touched_pages;
bool page_touched[kArenaSize / kPage];
std::vector<std::byte> state_image;
std::vector<std::pair<uint32_t, std::vector<std::byte>>> arena_image;
int32_t image_of_page[kArenaSize / kPage];

constexpr size_t kCells = 1 << 16;
std::vector<Cell> cells(kCells);

bool is_tracked(uintptr_t a) {
  return a - reinterpret_cast<uintptr_t>(state) < kStateSize ||
         a - reinterpret_cast<uintptr_t>(arena) < kArenaSize;
}

// True if the explorer knows what an atomic at this place publishes. It also knows this for a
// thread's stack, since other threads look there while that thread waits.
bool is_published(uintptr_t a) {
  for (int i = 0; i < thread_count; ++i)
    if (a - reinterpret_cast<uintptr_t>(threads[i].stack.data()) < threads[i].stack.size())
      return true;
  return is_tracked(a);
}

[[gnu::format(printf, 2, 3)]] void trace(const void* pc, const char* format, ...) {
  if (!tracing) return;
  std::printf("  T%d%s ", current, threads[current].in_handler ? " handler" : "");
  va_list arguments;
  va_start(arguments, format);
  std::vprintf(format, arguments);
  va_end(arguments);
  if (pc != nullptr) std::printf("  @%p", pc);
  std::printf("\n");
}

// A name for a place that is the same in every run.
std::string name_of(uintptr_t a) {
  char text[64];
  const uintptr_t in_state = a - reinterpret_cast<uintptr_t>(state);
  const uintptr_t in_arena = a - reinterpret_cast<uintptr_t>(arena);
  if (in_state < kStateSize) {
    std::snprintf(text, sizeof text, "state+%#zx", in_state);
  } else if (in_arena < kArenaSize) {
    std::snprintf(text, sizeof text, "arena+%#zx", in_arena);
  } else {
    std::snprintf(text, sizeof text, "%#zx", a);
  }
  return text;
}

[[noreturn]] void fail(std::string what) {
  failure = std::move(what);
  if (schedule_number == 0) {
    std::printf("the scenario's constructor fails: %s\n", failure.c_str());
    std::exit(2);
  }
  running = false;
  _longjmp(main_place, 2);
}

// Called when the core has followed a wild pointer.
void crash(int) {
  if (schedule_number == 0) std::abort();
  fail("crashes");
}

void watch_crashes() {
  static char stack[64 << 10];
  stack_t alternative{};
  alternative.ss_sp = stack;
  alternative.ss_size = sizeof stack;
  sigaltstack(&alternative, nullptr);
  struct sigaction action{};
  action.sa_handler = crash;
  action.sa_flags = SA_ONSTACK | SA_NODEFER;
  sigaction(SIGSEGV, &action, nullptr);
}

uint8_t choose(size_t count) {
  if (count <= 1) return 0;
  if (position == choices.size()) choices.push_back({static_cast<uint8_t>(count), 0});
  const Choice& c = choices[position++];
  if (c.taken >= count)
    fail("the choices do not fit: the scenario is not deterministic, or is another one");
  return c.taken;
}

// --- Threads.

void drain(Thread& thread, size_t keep = 0);

// The kernel takes a thread off its CPU.
void depart(int i) {
  Thread& thread = threads[i];
  drain(thread);
  ++thread.restarts;
  join(cpu_clocks[thread.cpu], thread.clock);
  ++thread.clock[i];
  on_cpu[thread.cpu] = -1;
}

void arrive(int i) {
  int& there = on_cpu[threads[i].cpu];
  if (there == i) return;
  if (there >= 0) depart(there);
  join(threads[i].clock, cpu_clocks[threads[i].cpu]);
  there = i;
}

void move(int to) {
  depart(current);
  threads[current].cpu = to;
  arrive(current);
}

void switch_to(int next) {
  Thread& from = threads[current];
  if (_setjmp(from.place) != 0) return;
  current = next;
  arrive(next);
  Thread& to = threads[next];
  if (to.fresh) {
    to.fresh = false;
    setcontext(&to.start);
  }
  _longjmp(to.place, 1);
}

void write(uintptr_t address, uint64_t value, unsigned size) {
  touched(reinterpret_cast<void*>(address), size);
  std::memcpy(reinterpret_cast<void*>(address), &value, size);
}

Cell& cell_of(uintptr_t address) {
  for (size_t i = (address * 0x9E3779B97F4A7C15) >> 48;; i = (i + 1) % kCells) {
    Cell& c = cells[i];
    if (c.schedule != schedule_number) {
      c = Cell{};
      c.schedule = schedule_number;
      c.address = address;
    }
    if (c.address == address) return c;
  }
}

// Other threads that spin may see something new now.
void wake_spinners() {
  for (int i = 0; i < thread_count; ++i) {
    if (i == current) continue;
    threads[i].pauses = 0;
    if (threads[i].condition == Condition::kPaused) threads[i].condition = Condition::kReady;
  }
}

// Writes all but the newest `keep` stores of the buffer to memory.
void drain(Thread& thread, size_t keep) {
  if (thread.buffer.size() <= keep) return;
  const size_t n = thread.buffer.size() - keep;
  for (size_t i = 0; i < n; ++i) {
    const Store& store = thread.buffer[i];
    write(store.address, store.value, store.size);
    if (is_published(store.address))
      cell_of(store.address).released = store.release ? store.clock : Clock{};
  }
  thread.buffer.erase(thread.buffer.begin(), thread.buffer.begin() + static_cast<ptrdiff_t>(n));
}

// The other threads that could go on.
int ready_others(int* list) {
  int n = 0;
  for (int i = 0; i < thread_count; ++i)
    if (i != current && threads[i].condition == Condition::kReady) list[n++] = i;
  return n;
}

// The current thread cannot go on, so another one must.
void give_way() {
  drain(threads[current]);
  int others[kMostThreads];
  const int n = ready_others(others);
  if (n > 0) return switch_to(others[choose(n)]);
  if (threads[current].condition == Condition::kReady) return;
  bool done = true;
  for (int i = 0; i < thread_count; ++i) done &= threads[i].condition == Condition::kDone;
  if (!done) fail("nobody can go on: a wake-up was lost, or threads wait for each other");
  if (_setjmp(threads[current].place) != 0) return;
  _longjmp(main_place, 1);
}

void maybe_signal() {
  if (signals_left == 0 || threads[current].in_handler || current != 0 || choose(2) == 0) return;
  --signals_left;
  trace(nullptr, "-- a signal comes");
  ++threads[current].restarts;
  threads[current].in_handler = true;
  tested->handler(state, current);
  threads[current].in_handler = false;
}

void maybe_move() {
  if (moves_left == 0 || current != 0 || choose(2) == 0) return;
  --moves_left;
  trace(nullptr, "-- is moved to another CPU");
  move((threads[0].cpu + 1) % 2);
}

// Called before every operation that other threads can see.
void point() {
  if (++steps > kMostSteps) fail("does not end");
  maybe_signal();
  maybe_move();
  if (preemptions_left == 0) return;
  int others[kMostThreads];
  const int n = ready_others(others);
  if (n == 0) return;
  const int taken = choose(static_cast<size_t>(n) + 1);
  if (taken == 0) return;
  --preemptions_left;
  Thread& me = threads[current];
  const bool goes_on = threads[others[taken - 1]].cpu != me.cpu;  // on its own CPU
  const size_t kept = goes_on ? choose(std::min<size_t>(me.buffer.size(), kKeptStores) + 1) : 0;
  if (kept > 0) trace(nullptr, "-- stopped, %zu stores still in its buffer", kept);
  drain(me, kept);
  switch_to(others[taken - 1]);
}

void thread_main(int i) {
  for (;;) {
    Thread& me = threads[i];
    tested->thread(state, i);
    if (!me.buffer.empty()) point();  // the last stores may reach memory late
    me.condition = Condition::kDone;
    trace(nullptr, "-- ends");
    drain(me);
    wake_spinners();
    give_way();
  }
}

void make_fiber(int i) {
  Thread& thread = threads[i];
  thread.stack.resize(kStackSize);
  getcontext(&thread.start);
  thread.start.uc_stack = {thread.stack.data(), 0, kStackSize};
  thread.start.uc_link = nullptr;
  makecontext(&thread.start, reinterpret_cast<void (*)()>(thread_main), 1, i);
  thread.fresh = true;
}

// --- Races.

[[noreturn]] void race(const void* pc, uintptr_t a, const char* what) {
  trace(pc, "%s at %s", what, name_of(a).c_str());
  fail(std::string("data race: ") + what + ", with nothing to put it in order");
}

bool is_before(const Clock& when, const Clock& now) {
  for (int i = 0; i < kMostThreads; ++i)
    if (when[i] > now[i]) return false;
  return true;
}

void plain_access(uintptr_t a, bool is_write, const void* pc) {
  if (!running || !is_tracked(a)) return;
  Cell& cell = cell_of(a);
  Clock& now = threads[current].clock;
  if (cell.writer >= 0 && cell.written > now[cell.writer])
    race(pc, a,
         is_write ? "a plain write after a plain write" : "a plain read after a plain write");
  if (!is_before(cell.atomic_writes, now))
    race(pc, a,
         is_write ? "a plain write after an atomic write" : "a plain read after an atomic write");
  if (!is_write) {
    cell.reads[current] = now[current];
    return;
  }
  if (!is_alone && !is_before(cell.reads, now)) race(pc, a, "a plain write after a plain read");
  if (!is_alone && !is_before(cell.atomic_reads, now))
    race(pc, a, "a plain write after an atomic read");
  cell.writer = current;
  cell.written = now[current];
}

void plain_range(uintptr_t a, size_t n, bool is_write, const void* pc) {
  if (is_write) touched(reinterpret_cast<void*>(a), n);
  if (!running || !is_tracked(a)) return;
  for (size_t i = 0; i < n; i += 8) {
    if (tested->bounds.at_plain) point();
    plain_access(a + i, is_write, pc);
  }
  // The access itself goes straight to memory. So if a store in the thread's buffer covers this
  // place, perhaps together with its neighbours, that store has to be there before.
  Thread& thread = threads[current];
  for (const Store& store : thread.buffer)
    if (store.address < a + n && a < store.address + store.size) return drain(thread);
}

void atomic_access(uintptr_t a, bool is_read, bool is_write, const void* pc) {
  if (!is_tracked(a)) return;
  Cell& cell = cell_of(a);
  Clock& now = threads[current].clock;
  if (cell.writer >= 0 && cell.written > now[cell.writer])
    race(pc, a, "an atomic access after a plain write");
  if (is_write && !is_alone && !is_before(cell.reads, now))
    race(pc, a, "an atomic write after a plain read");
  if (is_read) cell.atomic_reads[current] = now[current];
  if (is_write) cell.atomic_writes[current] = now[current];
}

// --- Atomic operations.

bool acquires(int order) { return order != __ATOMIC_RELAXED && order != __ATOMIC_RELEASE; }
bool releases(int order) { return order == __ATOMIC_RELEASE || order >= __ATOMIC_ACQ_REL; }

// What this thread sees: memory, and on top of it its own stores that are not there yet.
uint64_t peek(uintptr_t a, unsigned size) {
  std::array<uint8_t, 8> bytes{};
  std::memcpy(bytes.data(), reinterpret_cast<const void*>(a), size);
  for (const Store& store : threads[current].buffer)
    for (unsigned i = 0; i < store.size; ++i)
      if (store.address + i - a < size)
        bytes[store.address + i - a] = static_cast<uint8_t>(store.value >> (8 * i));
  uint64_t value = 0;
  std::memcpy(&value, bytes.data(), 8);
  return value;
}

uint64_t load(const volatile void* p, unsigned size, int order, const void* pc) {
  const auto a = reinterpret_cast<uintptr_t>(p);
  uint64_t value = 0;
  if (!running) {
    std::memcpy(&value, const_cast<const void*>(p), size);
    return value;
  }
  // A spinning thread that looks again, while no other thread has done anything, need not be
  // stopped here.
  if (threads[current].pauses <= 1) point();
  value = peek(a, size);
  atomic_access(a, true, false, pc);
  if (is_published(a))
    join(acquires(order) ? threads[current].clock : threads[current].loaded, cell_of(a).released);
  trace(pc, "load  %s: %#zx", name_of(a).c_str(), static_cast<size_t>(value));
  return value;
}

void store(volatile void* p, uint64_t value, unsigned size, int order, const void* pc) {
  const auto a = reinterpret_cast<uintptr_t>(p);
  if (!running) return write(a, value, size);
  point();
  Thread& me = threads[current];
  atomic_access(a, false, true, pc);
  me.buffer.push_back({a, value, static_cast<uint8_t>(size), releases(order), me.clock});
  if (releases(order)) ++me.clock[current];
  if (is_alone)
    // No other thread looks. And what asm adds to memory, which is not seen here, must come after
    drain(me);
  trace(pc, "store %s = %#zx", name_of(a).c_str(), static_cast<size_t>(value));
  if (order == __ATOMIC_SEQ_CST) drain(me);
  wake_spinners();
}

// Reads the word, and writes what change() makes of it if change() returns true.
template <class Change>
uint64_t modify(volatile void* p, unsigned size, int order, int failed_order, const void* pc,
                Change change) {
  const auto a = reinterpret_cast<uintptr_t>(p);
  uint64_t before = 0, after = 0;
  if (!running) {
    std::memcpy(&before, const_cast<const void*>(p), size);
    if (change(before, after)) write(a, after, size);
    return before;
  }
  point();
  Thread& me = threads[current];
  drain(me);
  std::memcpy(&before, const_cast<const void*>(p), size);
  const bool done = change(before, after);
  atomic_access(a, true, done, pc);
  if (is_published(a)) {
    Cell& cell = cell_of(a);
    if (acquires(done ? order : failed_order)) join(me.clock, cell.released);
    if (done && releases(order)) {
      join(cell.released, me.clock);  // a read-modify-write continues the release sequence
      ++me.clock[current];
    }
  }
  if (done) {
    write(a, after, size);
    wake_spinners();
    trace(pc, "swap  %s: %#zx -> %#zx", name_of(a).c_str(), static_cast<size_t>(before),
          static_cast<size_t>(after));
  } else {
    trace(pc, "swap  %s: %#zx, fails", name_of(a).c_str(), static_cast<size_t>(before));
  }
  return before;
}

// A release fence before relaxed stores is not modelled; the core has none.
void fence(int order) {
  if (!running) return;
  Thread& me = threads[current];
  if (acquires(order)) join(me.clock, me.loaded);
  if (order == __ATOMIC_SEQ_CST) {
    point();
    drain(me);
  }
}

// --- The search.

void take_image() {
  state_image.assign(state, state + tested->size);
  std::fill(std::begin(image_of_page), std::end(image_of_page), -1);
  for (uint32_t page : touched_pages) {
    const std::byte* from = arena + page * kPage;
    image_of_page[page] = static_cast<int32_t>(arena_image.size());
    arena_image.emplace_back(page, std::vector<std::byte>(from, from + kPage));
    page_touched[page] = false;
  }
  touched_pages.clear();
}

void put_back() {
  std::memcpy(state, state_image.data(), state_image.size());
  for (uint32_t page : touched_pages) {
    const int32_t image = image_of_page[page];
    if (image >= 0) {
      std::memcpy(arena + page * kPage, arena_image[static_cast<size_t>(image)].second.data(),
                  kPage);
    } else {
      std::memset(arena + page * kPage, 0, kPage);
    }
    page_touched[page] = false;
  }
  touched_pages.clear();
}

// Runs one schedule. Returns false if it failed.
bool run_once() {
  put_back();
  ++schedule_number;
  position = 0;
  steps = 0;
  preemptions_left = std::max(0, tested->bounds.preemptions + deeper);
  signals_left = tested->handler != nullptr ? tested->bounds.signals : 0;
  for (int i = 0; i < thread_count; ++i) {
    Thread& thread = threads[i];
    thread.condition = Condition::kReady;
    thread.buffer.clear();
    thread.clock = {};
    thread.clock[i] = 1;
    thread.loaded = {};
    thread.pauses = 0;
    thread.in_handler = false;
    thread.cpu = tested->bounds.cpus[i] - '0';
    thread.restarts = 0;
    thread.stepped = {};
  }
  moves_left = tested->bounds.moves;
  is_alone = false;
  for (int cpu = 0; cpu < kCpus; ++cpu) {
    on_cpu[cpu] = -1;
    cpu_clocks[cpu] = {};
  }
  cpu_at_rest = 0;
  const int how = _setjmp(main_place);
  if (how == 0) {
    current = choose(static_cast<size_t>(tested->bounds.threads));
    arrive(current);
    running = true;
    Thread& first = threads[current];
    if (first.fresh) {
      first.fresh = false;
      setcontext(&first.start);
    }
    _longjmp(first.place, 1);
  }
  running = false;
  if (how == 1) {
    // From here on a failed check comes back here, as 2.
    if (_setjmp(main_place) == 0) {
      current = 0;
      tested->check(state);
      return true;
    }
  }
  for (int i = 0; i < thread_count; ++i) make_fiber(i);  // they stopped in the middle
  return false;
}

// Goes to the next schedule: the last choice that has an alternative left takes it.
bool next_schedule() {
  while (!choices.empty() && choices.back().taken + 1 == choices.back().count) choices.pop_back();
  if (choices.empty()) return false;
  ++choices.back().taken;
  return true;
}

void print_failure() {
  std::printf("failed: %s\nchoices:", failure.c_str());
  for (size_t i = 0; i < position; ++i) std::printf(" %d", choices[i].taken);
  std::printf("\n");
  tracing = true;
  if (run_once()) std::printf("it did not fail again\n");
}

int explore(bool replay) {
  if (tested->size > kStateSize) {
    std::printf("the scenario is too large: %zu bytes\n", tested->size);
    return 2;
  }
  thread_count = tested->bounds.threads;
  for (int i = 0; i < thread_count; ++i) make_fiber(i);
  tested->construct(state);
  take_image();
  watch_crashes();
  if (replay) {
    tracing = true;
    const bool good = run_once();
    std::printf("%s\n", good ? "good" : failure.c_str());
    return good ? 0 : 1;
  }
  do {
    ++schedules;
    if (!run_once()) {
      std::printf("schedules: %llu\n", static_cast<unsigned long long>(schedules));
      print_failure();
      return 1;
    }
  } while (next_schedule());
  std::printf("schedules: %llu\n", static_cast<unsigned long long>(schedules));
  return 0;
}

}  // namespace

// --- What scenarios and the platform call.

void check(bool good, const char* what) {
  if (!good) fail(what);
}

int current_thread() { return current; }

bool fork_here() {
  point();
  if (choose(2) == 0) return false;
  trace(nullptr, "-- is alone now, in a child");
  is_alone = true;
  for (int i = 0; i < thread_count; ++i) {
    if (i == current) continue;
    threads[i].condition = Condition::kDone;
    on_cpu[threads[i].cpu] = -1;
    // The kernel flushes every CPU's TLB before the child's memory is final
    drain(threads[i]);
    // The child sees stores in their order. A step takes effect by one store, so the child never
    // sees it half done.
    join(threads[current].clock, threads[i].stepped);
    make_fiber(i);
  }
  return true;
}

void take_memory_as_it_is() {
  for (int i = 0; i < thread_count; ++i) join(threads[current].clock, threads[i].clock);
}

void touched(void* from, size_t bytes) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(from) - reinterpret_cast<uintptr_t>(arena);
  if (at >= kArenaSize) return;
  for (size_t page = at / kPage; page <= (at + bytes - 1) / kPage; ++page) {
    if (page_touched[page]) continue;
    page_touched[page] = true;
    touched_pages.push_back(static_cast<uint32_t>(page));
  }
}

void barrier() {
  if (!running) return;
  point();
  trace(__builtin_return_address(0), "barrier on all threads");
  for (int i = 0; i < thread_count; ++i) drain(threads[i]);
}

int cpu() { return running ? threads[current].cpu : cpu_at_rest; }

void run_on(int to) {
  if (!running) {
    cpu_at_rest = to;
  } else if (to != threads[current].cpu) {
    move(to);
  }
}

// A load in the middle of a restartable sequence.
static uint32_t load_in_step(const void* word, const void* pc) {
  const auto a = reinterpret_cast<uintptr_t>(word);
  if (!running) return *static_cast<const uint32_t*>(word);
  const auto value = static_cast<uint32_t>(peek(a, sizeof(uint32_t)));
  atomic_access(a, true, false, pc);
  join(threads[current].clock, cell_of(a).released);  // acquire
  trace(pc, "step: load %s: %#x", name_of(a).c_str(), value);
  return value;
}

// The same for a word of the page map, relaxed.
static uint64_t load_in_step_relaxed(const void* word, const void* pc) {
  const auto a = reinterpret_cast<uintptr_t>(word);
  if (!running) return *static_cast<const uint64_t*>(word);
  const uint64_t value = peek(a, sizeof value);
  atomic_access(a, true, false, pc);
  trace(pc, "step: load %s: %#lx", name_of(a).c_str(), static_cast<unsigned long>(value));
  return value;
}

// Called between two accesses of a restartable sequence. Returns false if the sequence must start
// again.
static bool goes_on(uint32_t begun, const void* pc) {
  if (!running) return true;
  point();
  if (threads[current].restarts == begun) return true;
  trace(pc, "step: interrupted");
  return false;
}

Step take_here(void* word, const void* who, uint64_t& seen, uint32_t mark, uint32_t& before) {
  const void* pc = __builtin_return_address(0);
  if (running) point();
  Thread& me = threads[running ? current : 0];
  const uint32_t begun = me.restarts;
  const uint32_t free = load_in_step(word, pc);
  if (who != nullptr) {
    if (!goes_on(begun, pc)) return Step::kInterrupted;
    seen = load_in_step_relaxed(who, pc);
  }
  before = static_cast<uint32_t>(cpu()) << 16 | static_cast<uint16_t>(seen);
  if (free != before) return Step::kElsewhere;
  if (!goes_on(begun, pc)) return Step::kInterrupted;
  const auto a = reinterpret_cast<uintptr_t>(word);
  if (!running) {
    write(a, mark, sizeof mark);
    return Step::kDone;
  }
  atomic_access(a, false, true, pc);
  me.buffer.push_back({a, mark, sizeof mark, false, me.clock});
  trace(pc, "step: store %s = %#x", name_of(a).c_str(), mark);
  wake_spinners();
  return Step::kDone;
}

Step pop_here(const void* word, uintptr_t* bin, uintptr_t reach, void*& object) {
  const void* pc = __builtin_return_address(0);
  if (running) point();
  Thread& me = threads[running ? current : 0];
  const uint32_t begun = me.restarts;
  if (load_in_step(word, pc) >> 16 != static_cast<uint32_t>(cpu())) return Step::kElsewhere;
  if (!goes_on(begun, pc)) return Step::kInterrupted;
  const auto a = reinterpret_cast<uintptr_t>(&bin[2]);
  for (int i = 0; i < 3; ++i) plain_access(reinterpret_cast<uintptr_t>(&bin[i]), false, pc);
  const uintptr_t before_end = bin[2] - bin[1];
  if (before_end < 0 - reach) return Step::kEmpty;
  auto* const first = reinterpret_cast<uintptr_t*>(bin[0] + before_end);
  if (!goes_on(begun, pc)) return Step::kInterrupted;
  plain_access(reinterpret_cast<uintptr_t>(first), false, pc);
  const uintptr_t next = *first;
  if (!goes_on(begun, pc)) return Step::kInterrupted;
  plain_access(a, true, pc);
  write(a, next, sizeof next);
  object = first;
  if (!running) return Step::kDone;
  trace(pc, "step: pop %s from %s", name_of(reinterpret_cast<uintptr_t>(first)).c_str(),
        name_of(a).c_str());
  me.stepped = me.clock;
  ++me.clock[current];
  return Step::kDone;
}

Step push_here(const void* word, const void* who, size_t list, void* object, uintptr_t link) {
  const void* pc = __builtin_return_address(0);
  if (running) point();
  Thread& me = threads[running ? current : 0];
  const uint32_t begun = me.restarts;
  const uint32_t free = load_in_step(word, pc);
  if (free >> 16 != static_cast<uint32_t>(cpu())) return Step::kElsewhere;
  if (!goes_on(begun, pc)) return Step::kInterrupted;
  const uint64_t seen = load_in_step_relaxed(who, pc);
  if (static_cast<uint16_t>(free) != static_cast<uint16_t>(seen)) return Step::kElsewhere;
  if (!goes_on(begun, pc)) return Step::kInterrupted;
  // One store writes both words.
  const uintptr_t head = (seen >> 16) + list, count = head + sizeof(void*);
  plain_access(count, false, pc);
  const auto left = static_cast<int32_t>(*reinterpret_cast<const uint32_t*>(count)) - 1;
  if (left <= 0) return Step::kLast;
  if (!goes_on(begun, pc)) return Step::kInterrupted;
  plain_access(head, false, pc);
  const uint64_t next = *reinterpret_cast<const uint64_t*>(head);
  if (!goes_on(begun, pc)) return Step::kInterrupted;
  const auto a = reinterpret_cast<uintptr_t>(object);
  plain_access(a, true, pc);
  write(a, next, sizeof next);
  if (!goes_on(begun, pc)) return Step::kInterrupted;
  plain_access(head, true, pc);
  plain_access(count, true, pc);
  write(head, link, sizeof link);
  write(count, static_cast<uint32_t>(left), sizeof left);
  if (!running) return Step::kDone;
  trace(pc, "step: push %s on %s, %d left", name_of(a).c_str(), name_of(head).c_str(), left);
  me.stepped = me.clock;
  ++me.clock[current];
  return Step::kDone;
}

// An interrupt on every CPU: what the CPU's thread did comes before it, what that thread does next
// comes after it.
void restart() {
  if (!running) return;
  point();
  trace(__builtin_return_address(0), "restart, and barrier, on all threads");
  Clock all{};
  for (int i = 0; i < thread_count; ++i) {
    drain(threads[i]);
    join(all, threads[i].clock);
  }
  for (int i = 0; i < thread_count; ++i) {
    threads[i].clock = all;
    ++threads[i].clock[i];
    if (i != current) ++threads[i].restarts;
  }
}

bool reads_as(const void* at, uint64_t value) {
  const auto a = reinterpret_cast<uintptr_t>(at);
  if (!running) return *static_cast<const uint64_t*>(at) == value;
  point();
  const bool same = peek(a, sizeof value) == value;
  if (same && is_published(a)) join(threads[current].clock, cell_of(a).released);
  trace(__builtin_return_address(0), "the kernel reads %s: %s", name_of(a).c_str(),
        same ? "so it is" : "no");
  return same;
}

void wait(const void* word, uint32_t value) {
  if (!running) std::abort();
  point();
  Thread& me = threads[current];
  drain(me);
  uint32_t now;
  std::memcpy(&now, word, sizeof now);
  trace(nullptr, "futex wait %s: %s", name_of(reinterpret_cast<uintptr_t>(word)).c_str(),
        now == value ? "sleeps" : "changed");
  if (now != value) return;
  me.condition = Condition::kWaiting;
  me.waits_for = word;
  give_way();
}

void wake(const void* word, int count) {
  if (!running) return;
  point();
  drain(threads[current]);
  for (; count > 0; --count) {
    int list[kMostThreads], n = 0;
    for (int i = 0; i < thread_count; ++i)
      if (threads[i].condition == Condition::kWaiting && threads[i].waits_for == word)
        list[n++] = i;
    if (n == 0) break;
    const int woken = list[choose(static_cast<size_t>(n))];
    trace(nullptr, "futex wakes T%d", woken);
    threads[woken].condition = Condition::kReady;
  }
}

void pause() {
  if (!running) return;
  Thread& me = threads[current];
  if (++me.pauses <= kPausesBeforeYield) return;
  me.condition = Condition::kPaused;
  me.pauses = 0;
  give_way();
}

void sleep() {
  if (!running) return;
  trace(nullptr, "sleeps");
  drain(threads[current]);
  int others[kMostThreads];
  const int n = ready_others(others);
  Thread& me = threads[current];
  // The thread sleeps once more, and no other thread has done anything. A thread that waits by
  // looking again and again lets other threads go on.
  me.pauses += kPausesBeforeYield / 2;
  if (me.pauses > kPausesBeforeYield && n > 0) {
    me.condition = Condition::kPaused;
    me.pauses = 0;
    return give_way();
  }
  const int taken = choose(static_cast<size_t>(n) + 1);
  if (taken > 0) switch_to(others[taken - 1]);
}

}  // namespace explorer

void lanemalloc::check_failed(const char* expression, const char* file, int line) {
  explorer::fail(std::string(file) + ":" + std::to_string(line) + ": CHECK(" + expression + ")");
}

int main(int count, char** arguments) {
  using namespace explorer;
  if (count < 2) {
    for (size_t i = 0; i < kScenarioCount; ++i) {
      const Bounds& b = kScenarios[i].bounds;
      std::printf("%s\t%s; %d threads, %d preemptions", kScenarios[i].name, kScenarios[i].what,
                  b.threads, b.preemptions);
      if (b.signals > 0) std::printf(", %d signal%s", b.signals, b.signals > 1 ? "s" : "");
      std::printf("\n");
    }
    return 0;
  }
  for (size_t i = 0; i < kScenarioCount; ++i)
    if (arguments[1] == std::string_view(kScenarios[i].name)) tested = &kScenarios[i];
  if (tested == nullptr) return 2;
  if (count > 2) deeper = std::atoi(arguments[2]);
  for (int i = 3; i < count; ++i)
    choices.push_back({255, static_cast<uint8_t>(std::atoi(arguments[i]))});
  return explore(count > 3);
}

// --- The __tsan_* interface. PC: the address of the operation.

#define PC __builtin_extract_return_addr(__builtin_return_address(0))

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_read_range(void* a, size_t n) {
  explorer::plain_range(reinterpret_cast<uintptr_t>(a), n, false, PC);
}
void __tsan_write_range(void* a, size_t n) {
  explorer::plain_range(reinterpret_cast<uintptr_t>(a), n, true, PC);
}

#define PLAIN(size)                                                         \
  void __tsan_read##size(void* a) {                                         \
    explorer::plain_range(reinterpret_cast<uintptr_t>(a), size, false, PC); \
  }                                                                         \
  void __tsan_write##size(void* a) {                                        \
    explorer::plain_range(reinterpret_cast<uintptr_t>(a), size, true, PC);  \
  }                                                                         \
  void __tsan_unaligned_read##size(void* a) {                               \
    explorer::plain_range(reinterpret_cast<uintptr_t>(a), size, false, PC); \
  }                                                                         \
  void __tsan_unaligned_write##size(void* a) {                              \
    explorer::plain_range(reinterpret_cast<uintptr_t>(a), size, true, PC);  \
  }
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)

#define FETCH(bits, name, expression)                                                           \
  uint##bits##_t __tsan_atomic##bits##_##name(volatile uint##bits##_t* a, uint##bits##_t v,     \
                                              int order) {                                      \
    return static_cast<uint##bits##_t>(                                                         \
        explorer::modify(a, bits / 8, order, order, PC, [v](uint64_t before, uint64_t& after) { \
          (void)before;                                                                         \
          after = static_cast<uint##bits##_t>(expression);                                      \
          return true;                                                                          \
        }));                                                                                    \
  }
#define COMPARE(bits, name)                                                                      \
  int __tsan_atomic##bits##_compare_exchange_##name(volatile uint##bits##_t* a,                  \
                                                    uint##bits##_t* expected, uint##bits##_t v,  \
                                                    int order, int failed) {                     \
    const uint##bits##_t wanted = *expected;                                                     \
    *expected = static_cast<uint##bits##_t>(                                                     \
        explorer::modify(a, bits / 8, order, failed, PC, [&](uint64_t before, uint64_t& after) { \
          after = v;                                                                             \
          return before == wanted;                                                               \
        }));                                                                                     \
    return *expected == wanted;                                                                  \
  }
#define ATOMIC(bits)                                                                          \
  uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t* a, int order) {    \
    return static_cast<uint##bits##_t>(explorer::load(a, bits / 8, order, PC));               \
  }                                                                                           \
  void __tsan_atomic##bits##_store(volatile uint##bits##_t* a, uint##bits##_t v, int order) { \
    explorer::store(a, v, bits / 8, order, PC);                                               \
  }                                                                                           \
  FETCH(bits, exchange, v)                                                                    \
  FETCH(bits, fetch_add, before + v)                                                          \
  FETCH(bits, fetch_sub, before - v)                                                          \
  FETCH(bits, fetch_and, before& v)                                                           \
  FETCH(bits, fetch_or, before | v)                                                           \
  COMPARE(bits, weak)                                                                         \
  COMPARE(bits, strong)                                                                       \
  uint##bits##_t __tsan_atomic##bits##_compare_exchange_val(                                  \
      volatile uint##bits##_t* a, uint##bits##_t expected, uint##bits##_t v, int order,       \
      int failed) {                                                                           \
    __tsan_atomic##bits##_compare_exchange_strong(a, &expected, v, order, failed);            \
    return expected;                                                                          \
  }
ATOMIC(8)
ATOMIC(16)
ATOMIC(32)
ATOMIC(64)

void __tsan_atomic_thread_fence(int order) { explorer::fence(order); }
void __tsan_atomic_signal_fence(int) {}
}
