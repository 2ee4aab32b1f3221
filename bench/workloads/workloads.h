// The base of the workloads: memory for their books outside of the allocator under test, the board
// where an observer reads how far they are, threads that end with their work, come in generations
// or stay parked, and the figures of a run.
// Called by: every file of bench/workloads. Each workload is a function of a Run; main.cpp lists
// them and calls one. Every thread of a workload is a Worker that does one batch after the other,
// until the observer says stop or a fixed amount of work is done. The code is the same in both
// cases.
#ifndef LANEMALLOC_BENCH_WORKLOADS_WORKLOADS_H_
#define LANEMALLOC_BENCH_WORKLOADS_WORKLOADS_H_

#include <pthread.h>
#include <semaphore.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace workloads {

constexpr int kMaxThreads = 64;

class Random {
 public:
  explicit Random(uint64_t seed) : state_((seed + 1) * 0x9e3779b97f4a7c15u) { next(); }
  uint32_t next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 32);
  }
  // 0 to count - 1
  size_t below(size_t count) { return static_cast<size_t>(uint64_t{next()} * count >> 32); }
  size_t between(size_t low, size_t high) { return low + below(high - low + 1); }
  // Each power of two from 2^low to 2^(high - 1) is as likely as the others; between it and the
  // next, all numbers are equally likely.
  size_t by_powers(unsigned low, unsigned high) {
    size_t base = size_t{1} << (low + below(high - low));
    return base + below(base);
  }
  bool one_in(size_t count) { return below(count) == 0; }

 private:
  uint64_t state_;
};

[[noreturn]] inline void broken(const char* what) {
  std::fprintf(stderr, "workloads: %s\n", what);
  std::abort();
}

// An array of the workload's own, outside of the allocator under test, zeroed and present from the
// start. T needs no constructor and no destructor.
template <class T>
class Book {
 public:
  explicit Book(size_t count) : count_(std::max<size_t>(count, 1)) {
    void* p = mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) broken("no memory for the workload's books");
    madvise(p, bytes(), MADV_NOHUGEPAGE);
    std::memset(p, 0, bytes());
    items_ = static_cast<T*>(p);
  }
  ~Book() { munmap(items_, bytes()); }
  Book(const Book&) = delete;
  Book& operator=(const Book&) = delete;

  T& operator[](size_t i) { return items_[i]; }
  T* data() { return items_; }
  T* begin() { return items_; }
  T* end() { return items_ + count_; }
  size_t size() const { return count_; }

 private:
  size_t bytes() const { return count_ * sizeof(T); }
  T* items_;
  size_t count_;
};

// The work that a thread has done. operations counts allocations, checksum the bytes asked for (or
// received, if one thread allocates and another frees).
struct Tally {
  uint64_t operations = 0;
  uint64_t checksum = 0;
};

// Makes an object and writes its first and last byte, as a program would.
inline char* make(size_t bytes, Tally& tally) {
  char* object = static_cast<char*>(std::malloc(bytes));
  if (object == nullptr) broken("malloc returned null");
  object[0] = static_cast<char>(bytes);
  object[bytes - 1] = static_cast<char>(bytes);
  tally.operations++;
  tally.checksum += bytes;
  return object;
}

// Set by the observer. Threads look at it between two batches, which take some microseconds to some
// milliseconds.
enum Phase : uint32_t { kWarming = 0, kMeasured = 1, kStop = 2 };

// The memory that the observer and the workload share: a file that both map. bench/suite/observe.py
// knows this layout.
struct Board {
  static constexpr uint64_t kMagic = 0x3164'7261'6f62'6c31;
  static constexpr size_t kLine = 128;  // the hardware fetches lines in pairs

  struct alignas(kLine) Counter {
    std::atomic<uint64_t> operations;  // stored by one thread at a time
  };

  uint64_t magic;             // written by the observer
  std::atomic<uint64_t> pid;  // of the workload, stored when its work begins
  alignas(kLine) std::atomic<uint32_t> phase;
  Counter counters[kMaxThreads];
};
static_assert(offsetof(Board, pid) == 8 && offsetof(Board, phase) == 128 &&
              offsetof(Board, counters) == 256);
static_assert(sizeof(Board) == 256 + kMaxThreads * 128);

// The tail of the time of single calls, in nanoseconds, and the number of calls that are not in it
// (latency.cpp).
struct Tail {
  double p50 = 0, p99 = 0, p999 = 0, p9999 = 0, max = 0;
  uint64_t preempted = 0;
};

class Run {
 public:
  // operations: 0, or the least number of operations of the whole work.
  Run(int threads, uint64_t operations, double idle_seconds, Board& board)
      : threads(threads), operations(operations), board(board), idle_seconds_(idle_seconds) {}

  const int threads;
  const uint64_t operations;
  Board& board;
  Tail malloc_tail, free_tail;  // set by workloads that measure latency

  // The operations of a worker whose part of the work is part / whole. Without --operations there
  // is no limit.
  uint64_t share(size_t part, size_t whole) const {
    return operations == 0 ? UINT64_MAX : std::max<uint64_t>(operations * part / whole, 1);
  }
  uint64_t share(int part, int whole) const {
    return share(static_cast<size_t>(part), static_cast<size_t>(whole));
  }

  // Not ordered with anything: a thread that sees the phase one batch later does one batch more.
  Phase phase() const { return static_cast<Phase>(board.phase.load(std::memory_order_relaxed)); }

  // For work that comes in phases of new threads: returns whether another phase is to follow.
  bool goes_on() const {
    uint64_t done = 0;
    for (const Board::Counter& counter : board.counters)
      done += counter.operations.load(std::memory_order_relaxed);
    return phase() != kStop && (operations == 0 || done < operations);
  }

  void add(const Tally& tally) {
    operations_ += tally.operations;
    checksum_ += tally.checksum;
  }

  // Runs body(number of the thread) in all threads at once; in the main thread if there is only
  // one.
  template <class Body>
  void in_threads(Body body) {
    if (threads == 1) {
      body(0);
    } else {
      in_new_threads(body);
    }
  }

  template <class Body>
  void in_new_threads(Body body) {
    std::array<std::thread, kMaxThreads> pool;
    for (int i = 0; i < threads; i++) pool[static_cast<size_t>(i)] = std::thread(body, i);
    for (int i = 0; i < threads; i++) pool[static_cast<size_t>(i)].join();
  }

  // Runs as many chains as there are threads. In each chain a thread runs body(chain, generation),
  // starts the next thread and ends. The next thread has begun by then, as a server's has. The
  // chain ends when the body returns false.
  template <class Body>
  void in_generations(Body body) {
    struct Chain {
      pthread_t last;
      sem_t ended;
    };
    struct Chains {
      Body& body;
      Book<Chain> all;
      static void join(pthread_t thread) {
        if (pthread_join(thread, nullptr) != 0) broken("cannot join a thread");
      }
      void start(int chain, size_t generation, pthread_t before) {
        // The thread gets a copy, because the thread that starts it may end before.
        spawn([this, chain, generation, before] {
          const bool goes_on = body(chain, generation);
          if (generation > 0) join(before);
          if (goes_on) return start(chain, generation + 1, pthread_self());
          all[static_cast<size_t>(chain)].last = pthread_self();
          sem_post(&all[static_cast<size_t>(chain)].ended);
        });
      }
    } chains{body, Book<Chain>(static_cast<size_t>(threads))};
    for (Chain& chain : chains.all) sem_init(&chain.ended, 0, 0);
    for (int i = 0; i < threads; i++) chains.start(i, 0, pthread_self());
    for (Chain& chain : chains.all) {
      while (sem_wait(&chain.ended) != 0) {
      }
      Chains::join(chain.last);
      sem_destroy(&chain.ended);
    }
  }

  // Like in_new_threads, but the threads wait, without a call of the allocator, until the end has
  // been measured.
  template <class Body>
  void in_parked_threads(Body body) {
    pthread_barrier_t parked, measured;
    pthread_barrier_init(&parked, nullptr, static_cast<unsigned>(threads) + 1);
    pthread_barrier_init(&measured, nullptr, static_cast<unsigned>(threads) + 1);
    std::array<std::thread, kMaxThreads> pool;
    for (int i = 0; i < threads; i++) {
      pool[static_cast<size_t>(i)] = std::thread([&, i] {
        body(i);
        pthread_barrier_wait(&parked);
        pthread_barrier_wait(&measured);
      });
    }
    pthread_barrier_wait(&parked);
    end();
    pthread_barrier_wait(&measured);
    for (int i = 0; i < threads; i++) pool[static_cast<size_t>(i)].join();
    pthread_barrier_destroy(&parked);
    pthread_barrier_destroy(&measured);
  }

  // A phase in which the program has nothing to do: its time is not part of the work. Called by one
  // thread while the others wait.
  void rest(double seconds);

  void start();  // starts the clocks
  void end();    // takes the figures, then idles if that was asked for; a second call does nothing
  void print() const;

 private:
  // Starts a thread whose closure lies in memory of malloc, as std::thread does.
  template <class Closure>
  static void spawn(Closure closure) {
    pthread_t handle;
    auto entry = [](void* p) -> void* {
      Closure mine = *static_cast<Closure*>(p);
      delete static_cast<Closure*>(p);
      mine();
      return nullptr;
    };
    if (pthread_create(&handle, nullptr, entry, new Closure(closure)) != 0)
      broken("cannot start a thread");
  }

  struct Clocks {
    uint64_t wall = 0, cpu = 0;  // ns
    long minor_faults = 0, major_faults = 0;
    static Clocks now();
  };

  const double idle_seconds_;
  Clocks begin_, spent_;
  bool ended_ = false;
  uint64_t rested_ns_ = 0;
  unsigned long peak_kib_ = 0, end_kib_ = 0, idle_kib_ = 0;
  std::atomic<uint64_t> operations_{0}, checksum_{0};
};

// One thread of the work, and its part of the work. A thread that takes another thread's place goes
// on with that thread's counter.
class Worker {
 public:
  Worker(Run& run, int number) : Worker(run, number, run.share(1, run.threads)) {}
  // share: its part of a fixed amount of work.
  Worker(Run& run, int number, uint64_t share)
      : run_(run),
        counter_(run.board.counters[number].operations),
        before_(counter_.load(std::memory_order_relaxed)),
        share_(share) {}
  ~Worker() {
    publish();
    run_.add(tally);
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  Tally tally;

  // Not ordered with anything: the observer adds up numbers that may be a batch old.
  void publish() { counter_.store(before_ + tally.operations, std::memory_order_relaxed); }

  // Called after each batch; returns whether another one is to follow.
  bool goes_on() {
    publish();
    return before_ + tally.operations < share_ && run_.phase() != kStop;
  }

  bool is_stopped() const { return run_.phase() == kStop; }
  bool is_measured() const { return run_.phase() == kMeasured; }

 private:
  Run& run_;
  std::atomic<uint64_t>& counter_;
  const uint64_t before_, share_;
};

// classic.cpp
void threadtest(Run&);
void cache_scratch(Run&);
void cache_thrash(Run&);
void t_test1(Run&);
void alloc_test(Run&);
void glibc_simple(Run&);
void glibc_thread(Run&);
// smartheap.cpp
void sh6(Run&);
void sh8(Run&);
// servers.cpp
void larson(Run&);
void replaced(Run&);
void mstress(Run&);
void rptest(Run&);
void mleak(Run&);
// messages.cpp
void xmalloc(Run&);
void ring(Run&);
void fan_in(Run&);
void fan_out(Run&);
void asymmetric(Run&);
// cache.cpp
void cache(Run&);
// growth.cpp
void realloc_growth(Run&);
void malloc_large(Run&);
void burst_idle(Run&);
void size_shift(Run&);
// latency.cpp
void server_latency(Run&);

}  // namespace workloads

#endif  // LANEMALLOC_BENCH_WORKLOADS_WORKLOADS_H_
