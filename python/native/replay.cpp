// lanemalloc-replay: makes the calls of a trace again, with its threads and in its order, and
// measures them.
//   lanemalloc-replay [--full] [--touch] [--pace] PLAN      PLAN: - is standard input
//   lanemalloc-replay --prepare PLAN <raw events
// Called by: python/lanemalloc/replays.py, with the allocator to measure preloaded. Prints a JSON
// object.
//
//   main: reads events, in the order of the trace ---> ring of kWindow events
//           |                                             ^    ^
//           +--> thread 0: indices of its events ---------+    |   each takes its own, in order;
//           +--> thread 1: indices of its events --------------+   a free waits for the object
//
// At most kWindow events are under way, so the threads cannot run apart by more; with --full each
// event waits until the one before it is done. A trace of one thread is replayed by main alone: the
// process stays single-threaded. The memory that the replay itself needs is mapped and touched
// before it begins, and is not counted; the replay calls no allocation function on its own account.
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <new>

#include "replay_plan.h"
#include "replay_prepare.h"
#include "ticks.h"

extern "C" {
void free_sized(void*, size_t) __attribute__((weak));
void free_aligned_sized(void*, size_t, size_t) __attribute__((weak));
}

using namespace lanemalloc::trace;

namespace {

struct Slot {
  std::atomic<void*> object;  // null until it is allocated
  size_t size;
};

// Stands for the object of a call that gave nothing, so that there is nothing to free later.
void* const kNothing = reinterpret_cast<void*>(1);

struct alignas(128) Worker {
  std::atomic<uint64_t> given;  // indices put into the queue
  uint64_t boundary[2];         // the value of `given` when a half of the window began
  alignas(128) std::atomic<uint64_t> done;
  std::atomic<uint32_t> asleep;
  uint64_t ticks, calls, failed;
  uint32_t* queue;
  pthread_t thread;
  bool runs;
};

struct Replay {
  bool full, touch, pace;
  PlanHeader header;
  Slot* slots;
  PlanEvent* ring;
  Worker* workers;
  std::atomic<uint64_t> read;               // events put into the ring so far
  alignas(128) std::atomic<uint64_t> turn;  // with --full: the event that is next
  uint64_t start_ns;
  uint64_t cost;  // of reading the time twice, in ticks
};
Replay replay;

[[noreturn]] void fail(const char* what) {
  dprintf(STDERR_FILENO, "lanemalloc-replay: %s%s%s\n", what, errno != 0 ? ": " : "",
          errno != 0 ? strerror(errno) : "");
  _exit(1);
}

// Maps memory for the replay itself; touches it at once if `now`.
template <class T>
T* own(size_t n, bool now = true) {
  const size_t bytes = (n * sizeof(T) + 4095) & ~size_t{4095};
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (now ? MAP_POPULATE : 0);
  void* p = mmap(nullptr, bytes == 0 ? 4096 : bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (p == MAP_FAILED) fail("no memory for the replay itself");
  return static_cast<T*>(p);
}

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

long futex(std::atomic<uint32_t>* word, int what, uint32_t value, const timespec* wait) {
  return syscall(SYS_futex, word, what, value, wait, nullptr, 0);
}

void wake(Worker& worker) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (worker.asleep.load(std::memory_order_relaxed) == 0) return;
  worker.asleep.store(0, std::memory_order_relaxed);
  futex(&worker.asleep, FUTEX_WAKE_PRIVATE, 1, nullptr);
}

// Looks for a while, then sleeps until it is woken or a millisecond has passed.
template <class Condition>
void wait_until(Worker& worker, Condition condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return;
    pause_cpu();
  }
  while (!condition()) {
    worker.asleep.store(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const timespec millisecond = {0, 1000000};
    if (!condition()) futex(&worker.asleep, FUTEX_WAIT_PRIVATE, 1, &millisecond);
    worker.asleep.store(0, std::memory_order_relaxed);
  }
}

// --- One call.

struct Timer {
  uint64_t* sum;
  uint64_t began;
  explicit Timer(Worker& worker) : sum(&worker.ticks), began(counter()) {}
  ~Timer() { *sum += counter() - began; }
};

void* allocate(Worker& worker, const PlanEvent& event) {
  const size_t size = event.size;
  const size_t alignment = event.alignment == 0 ? 0 : size_t{1} << (event.alignment - 1);
  const auto aligned = static_cast<std::align_val_t>(alignment);
  void* p = nullptr;
  const Timer timer(worker);
  switch (static_cast<Op>(event.op)) {
    case Op::kCalloc:
      return calloc(1, size);
    case Op::kMemalign:
      return memalign(alignment, size);
    case Op::kAlignedAlloc:
      return aligned_alloc(alignment, size);
    case Op::kPosixMemalign:
      return posix_memalign(&p, alignment, size) == 0 ? p : nullptr;
    case Op::kValloc:
      return valloc(size);
    case Op::kPvalloc:
      return pvalloc(size);
    case Op::kNew:
      return alignment == 0 ? operator new(size) : operator new(size, aligned);
    case Op::kNewArray:
      return alignment == 0 ? operator new[](size) : operator new[](size, aligned);
    case Op::kNewNothrow:
      return alignment == 0 ? operator new(size, std::nothrow)
                            : operator new(size, aligned, std::nothrow);
    case Op::kNewArrayNothrow:
      return alignment == 0 ? operator new[](size, std::nothrow)
                            : operator new[](size, aligned, std::nothrow);
    default:
      return malloc(size);
  }
}

void release(Worker& worker, const PlanEvent& event, void* p) {
  const size_t size = event.size;
  const size_t alignment = event.alignment == 0 ? 0 : size_t{1} << (event.alignment - 1);
  const auto aligned = static_cast<std::align_val_t>(alignment);
  const Timer timer(worker);
  switch (static_cast<Op>(event.op)) {
    case Op::kFreeSized:
      return free_sized != nullptr ? free_sized(p, size) : free(p);
    case Op::kFreeAlignedSized:
      return free_aligned_sized != nullptr ? free_aligned_sized(p, alignment, size) : free(p);
    case Op::kDelete:
      return alignment == 0 ? operator delete(p) : operator delete(p, aligned);
    case Op::kDeleteArray:
      return alignment == 0 ? operator delete[](p) : operator delete[](p, aligned);
    case Op::kDeleteSized:
      return alignment == 0 ? operator delete(p, size) : operator delete(p, size, aligned);
    case Op::kDeleteArraySized:
      return alignment == 0 ? operator delete[](p, size) : operator delete[](p, size, aligned);
    case Op::kDeleteNothrow:
      return alignment == 0 ? operator delete(p, std::nothrow)
                            : operator delete(p, aligned, std::nothrow);
    case Op::kDeleteArrayNothrow:
      return alignment == 0 ? operator delete[](p, std::nothrow)
                            : operator delete[](p, aligned, std::nothrow);
    default:
      return free(p);
  }
}

void* reallocate(Worker& worker, const PlanEvent& event, void* old) {
  const Timer timer(worker);
  if (static_cast<Op>(event.op) == Op::kReallocarray) return reallocarray(old, 1, event.size);
  return realloc(old, event.size);
}

// --- One event.

// Takes the object out of a slot; waits for the thread that allocates it.
void* take(uint32_t number) {
  Slot& slot = replay.slots[number];
  void* p = slot.object.load(std::memory_order_acquire);
  for (unsigned i = 0; p == nullptr; ++i) {
    if (i < 200) {
      pause_cpu();
    } else if (i < 1000) {
      sched_yield();
    } else {
      usleep(50);
    }
    p = slot.object.load(std::memory_order_acquire);
  }
  slot.object.store(nullptr, std::memory_order_relaxed);
  return p;
}

void put(const PlanEvent& event, void* p, size_t written) {
  Slot& slot = replay.slots[event.slot];
  if (replay.touch && p != kNothing && event.size > written)
    memset(static_cast<char*>(p) + written, 0x5a, event.size - written);
  slot.size = event.size;
  slot.object.store(p, std::memory_order_release);
}

void run_event(Worker& worker, const PlanEvent& event) {
  const auto op = static_cast<Op>(event.op);
  ++worker.calls;
  if (frees(op)) {
    void* p = (event.flags & kHasObject) != 0 ? take(event.slot) : nullptr;
    if (p != kNothing) release(worker, event, p);
    return;
  }
  void* p;
  size_t written = 0;
  if (op == Op::kRealloc || op == Op::kReallocarray) {
    void* old = nullptr;
    if ((event.flags & kHasOld) != 0) {
      old = take(event.old_slot);
      written = replay.slots[event.old_slot].size;
      if (old == kNothing) old = nullptr, written = 0;
    }
    p = reallocate(worker, event, old);
    if (p == nullptr && event.size != 0 && old != nullptr) free(old);
    if ((event.flags & kHasObject) == 0) return;
  } else {
    p = allocate(worker, event);
  }
  if (p == nullptr) {
    ++worker.failed;
    p = kNothing;
  }
  put(event, p, written);
}

void wait_for_time(const PlanEvent& event) {
  const uint64_t when = replay.start_ns + event.time;
  const uint64_t now = clock_ns();
  if (when <= now) return;
  const timespec until = {static_cast<time_t>(when / 1000000000),
                          static_cast<long>(when % 1000000000)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

void finish_turn(uint64_t index) {
  replay.turn.store(index + 1, std::memory_order_release);
  if (index + 1 < replay.read.load(std::memory_order_acquire))
    wake(replay.workers[replay.ring[(index + 1) % kWindow].thread]);
}

void* run_worker(void* argument) {
  Worker& worker = *static_cast<Worker*>(argument);
  for (uint64_t mine = 0;; ++mine) {
    wait_until(worker, [&] { return worker.given.load(std::memory_order_acquire) > mine; });
    const uint32_t position = worker.queue[mine % kWindow];
    const PlanEvent event = replay.ring[position];
    uint64_t index = 0;
    if (replay.full) {
      // The index that lies at `position` in the ring: less than a window from the one whose turn
      // it is.
      index = replay.turn.load(std::memory_order_acquire);
      index += (position - index) % kWindow;
      wait_until(worker, [&] { return replay.turn.load(std::memory_order_acquire) == index; });
    }
    if (replay.pace) wait_for_time(event);
    const bool last = event.op == kThreadEnds;
    if (!last) run_event(worker, event);
    if (replay.full) finish_turn(index);
    worker.done.store(mine + 1, std::memory_order_release);
    if (last) return nullptr;
  }
}

// --- Main.

void start_worker(Worker& worker) {
  if (worker.runs) return;
  worker.runs = true;
  errno = pthread_create(&worker.thread, nullptr, run_worker, &worker);
  if (errno != 0) fail("no more threads");
}

void wait_for_boundary(int half) {
  for (uint32_t t = 0; t < replay.header.threads; ++t) {
    Worker& worker = replay.workers[t];
    for (unsigned i = 0; worker.done.load(std::memory_order_acquire) < worker.boundary[half]; ++i) {
      if (i < 500) {
        pause_cpu();
      } else if (i < 600) {
        sched_yield();
      } else {
        usleep(50);
      }
    }
  }
}

// Hands the events out. Before a half of the ring is written again, all events in it are done.
void hand_out(int file) {
  static PlanEvent block[1024];
  constexpr uint32_t kHalf = kWindow / 2;
  uint64_t index = 0;
  size_t held = 0;
  for (;;) {
    const ssize_t n = read(file, reinterpret_cast<char*>(block) + held, sizeof block - held);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    held += static_cast<size_t>(n);
    const size_t whole = held / sizeof(PlanEvent);
    for (size_t i = 0; i < whole; ++i, ++index) {
      const PlanEvent& event = block[i];
      if (event.thread >= replay.header.threads) fail("the plan is damaged");
      if (index % kHalf == 0) {
        const int half = static_cast<int>(index / kHalf % 2);
        wait_for_boundary(half);
        for (uint32_t t = 0; t < replay.header.threads; ++t)
          replay.workers[t].boundary[1 - half] =
              replay.workers[t].given.load(std::memory_order_relaxed);
      }
      Worker& worker = replay.workers[event.thread];
      replay.ring[index % kWindow] = event;
      const uint64_t given = worker.given.load(std::memory_order_relaxed);
      worker.queue[given % kWindow] = static_cast<uint32_t>(index % kWindow);
      replay.read.store(index + 1, std::memory_order_release);
      worker.given.store(given + 1, std::memory_order_release);
      start_worker(worker);
      wake(worker);
    }
    held -= whole * sizeof(PlanEvent);
    memmove(block, block + whole, held);
  }
  if (index != replay.header.events) fail("the plan is cut off");
  for (uint32_t t = 0; t < replay.header.threads; ++t)
    if (replay.workers[t].runs) pthread_join(replay.workers[t].thread, nullptr);
}

void run_alone(int file) {
  static PlanEvent block[1024];
  size_t held = 0;
  uint64_t index = 0;
  Worker& worker = replay.workers[0];
  for (;;) {
    const ssize_t n = read(file, reinterpret_cast<char*>(block) + held, sizeof block - held);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    held += static_cast<size_t>(n);
    const size_t whole = held / sizeof(PlanEvent);
    for (size_t i = 0; i < whole; ++i, ++index) {
      if (replay.pace) wait_for_time(block[i]);
      if (block[i].op != kThreadEnds) run_event(worker, block[i]);
    }
    held -= whole * sizeof(PlanEvent);
    memmove(block, block + whole, held);
  }
  if (index != replay.header.events) fail("the plan is cut off");
}

// Returns the number behind a name in a file of /proc, in bytes.
uint64_t kilobytes(const char* path, const char* name) {
  static char text[8192];
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t n = read(file, text, sizeof text - 1);
  close(file);
  text[n > 0 ? n : 0] = '\0';
  const char* at = strstr(text, name);
  return at == nullptr ? 0 : strtoull(at + strlen(name), nullptr, 10) * 1024;
}
uint64_t resident() {
  const uint64_t exact = kilobytes("/proc/self/smaps_rollup", "\nRss:");
  return exact != 0 ? exact : kilobytes("/proc/self/status", "VmRSS:");
}
void forget_peak() {
  const int file = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  if (file < 0) return;
  if (write(file, "5", 1) != 1) errno = 0;
  close(file);
}

void find_cost() {
  uint64_t best = ~uint64_t{0};
  for (int i = 0; i < 50; ++i) {
    Worker worker = {};
    for (int j = 0; j < 1000; ++j) {
      const Timer timer(worker);
      asm volatile("" ::: "memory");
    }
    if (worker.ticks / 1000 < best) best = worker.ticks / 1000;
  }
  replay.cost = best;
}

void read_header(int file) {
  size_t held = 0;
  while (held < sizeof replay.header) {
    const ssize_t n =
        read(file, reinterpret_cast<char*>(&replay.header) + held, sizeof replay.header - held);
    if (n <= 0) break;
    held += static_cast<size_t>(n);
  }
  if (held < sizeof replay.header || replay.header.magic != kPlanMagic) {
    errno = 0;
    fail("not a plan");
  }
}

void report(uint64_t ticks, uint64_t ns, uint64_t before) {
  uint64_t in_calls = 0, calls = 0, failed = 0;
  for (uint32_t t = 0; t < replay.header.threads; ++t) {
    const Worker& worker = replay.workers[t];
    const uint64_t cost = worker.calls * replay.cost;
    in_calls += worker.ticks > cost ? worker.ticks - cost : 0;
    calls += worker.calls;
    failed += worker.failed;
  }
  const uint64_t end = resident(), most = kilobytes("/proc/self/status", "VmHWM:");
  const double ns_a_tick = static_cast<double>(ns) / static_cast<double>(ticks);
  dprintf(STDOUT_FILENO,
          "{\"seconds\": %.6f, \"seconds_in_calls\": %.6f, \"calls\": %llu, \"failed\": %llu, "
          "\"skipped\": "
          "%llu, \"threads\": %u, "
          "\"peak_rss\": %llu, \"end_rss\": %llu, \"own_bytes\": %llu, \"peak_live_bytes\": %llu, "
          "\"peak_live_objects\": %llu}\n",
          static_cast<double>(ns) / 1e9, static_cast<double>(in_calls) * ns_a_tick / 1e9,
          static_cast<unsigned long long>(calls), static_cast<unsigned long long>(failed),
          static_cast<unsigned long long>(replay.header.skipped), replay.header.threads,
          static_cast<unsigned long long>(most > before ? most - before : 0),
          static_cast<unsigned long long>(end > before ? end - before : 0),
          static_cast<unsigned long long>(before),
          static_cast<unsigned long long>(replay.header.peak_live_bytes),
          static_cast<unsigned long long>(replay.header.peak_live_objects));
}

}  // namespace

int main(int argc, char** argv) {
  const char* path = nullptr;
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--prepare") == 0 && i + 1 < argc) return prepare(argv[i + 1]);
    if (strcmp(argv[i], "--full") == 0) {
      replay.full = true;
    } else if (strcmp(argv[i], "--touch") == 0) {
      replay.touch = true;
    } else if (strcmp(argv[i], "--pace") == 0) {
      replay.pace = true;
    } else {
      path = argv[i];
    }
  }
  if (path == nullptr) {
    dprintf(STDERR_FILENO,
            "usage: lanemalloc-replay [--full] [--touch] [--pace] PLAN | --prepare PLAN\n");
    return 2;
  }
  const int file = strcmp(path, "-") == 0 ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) fail(path);
  read_header(file);
  const uint32_t threads = replay.header.threads;
  replay.slots = own<Slot>(replay.header.slots);
  replay.ring = own<PlanEvent>(kWindow);
  replay.workers = own<Worker>(threads);
  for (uint32_t t = 0; t < threads; ++t)
    replay.workers[t].queue = own<uint32_t>(threads == 1 ? 1 : kWindow, threads <= 256);
  find_cost();
  kilobytes("/proc/self/status", "VmHWM:");
  forget_peak();
  const uint64_t before = resident();
  replay.start_ns = clock_ns();
  const uint64_t start = counter();
  if (threads == 1) {
    run_alone(file);
  } else if (threads > 1) {
    hand_out(file);
  }
  const uint64_t ticks = counter() - start, ns = clock_ns() - replay.start_ns;
  report(ticks, ns, before);
  return 0;
}
