// What the workloads build on: memory for their books outside of the allocator under test, threads that end with their
// work, come in generations or stay parked, and the figures of a run.
// Called by: every file of bench/workloads. Each workload is a function of a Run; main.cpp lists them and calls one.
#ifndef LANEMALLOC_BENCH_WORKLOADS_WORKLOADS_H_
#define LANEMALLOC_BENCH_WORKLOADS_WORKLOADS_H_

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
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
  // Each power of two from 2^low to 2^(high - 1) is as likely as the others; even between it and the next.
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

// An array of the workload's own, outside of the allocator under test, zeroed and present from the start. T needs no
// constructor and no destructor.
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

// What a thread has done. operations counts allocations, checksum the bytes asked for (or received, where one thread
// allocates and another frees).
struct Tally {
  uint64_t operations = 0;
  uint64_t checksum = 0;
};

// An object whose first and last byte are written, as a program would.
inline char* make(size_t bytes, Tally& tally) {
  char* object = static_cast<char*>(std::malloc(bytes));
  if (object == nullptr) broken("malloc returned null");
  object[0] = static_cast<char>(bytes);
  object[bytes - 1] = static_cast<char>(bytes);
  tally.operations++;
  tally.checksum += bytes;
  return object;
}

// The tail of the time of single calls, in nanoseconds; and how many calls are not in it (latency.cpp).
struct Tail {
  double p50 = 0, p99 = 0, p999 = 0, p9999 = 0, max = 0;
  uint64_t preempted = 0;
};

class Run {
 public:
  Run(int threads, double scale, double idle_seconds)
      : threads(threads), scale(scale), idle_seconds_(idle_seconds) {}

  const int threads;
  const double scale;
  Tail malloc_tail, free_tail;  // set by workloads that measure latency

  // The whole work, and what each of `workers` does of it.
  size_t units(double total) const { return std::max<size_t>(1, static_cast<size_t>(total * scale)); }
  size_t share(double total, int workers) const { return units(total / workers); }
  size_t share(double total) const { return share(total, threads); }

  void add(const Tally& tally) {
    operations_ += tally.operations;
    checksum_ += tally.checksum;
  }

  // body(number of the thread) in every thread at once: in the main thread if it is the only one.
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

  // As many chains as there are threads; in each, a thread runs body(chain, generation), starts the next and ends.
  template <class Body>
  void in_generations(size_t generations, Body body) {
    Book<pthread_t> handles(generations * static_cast<size_t>(threads));
    struct Chains {
      Body& body;
      Book<pthread_t>& handles;
      size_t generations;
      void start(int chain, size_t generation) {
        pthread_t& handle = handles[static_cast<size_t>(chain) * generations + generation];
        // The thread gets a copy, for the one that starts it may end before.
        handle = spawn([this, chain, generation] {
          body(chain, generation);
          if (generation + 1 < generations) start(chain, generation + 1);
        });
      }
    } chains{body, handles, generations};
    for (int i = 0; i < threads; i++) chains.start(i, 0);
    // A thread has stored its successor's handle when it ends.
    for (pthread_t handle : handles) pthread_join(handle, nullptr);
  }

  // Like in_new_threads, but the threads wait, without a call of the allocator, until the end has been measured.
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

  // A phase in which the program has nothing to do: its time is not part of the work. Called by one thread while the
  // others wait.
  void rest(double seconds);

  void start();  // the clocks
  void end();    // takes the figures, then idles if that was asked for; a second call does nothing
  void print() const;

 private:
  // Starts a thread whose closure lies in memory of malloc, as std::thread does, but gives a plain handle.
  template <class Closure>
  static pthread_t spawn(Closure closure) {
    pthread_t handle;
    auto entry = [](void* p) -> void* {
      Closure mine = *static_cast<Closure*>(p);
      delete static_cast<Closure*>(p);
      mine();
      return nullptr;
    };
    if (pthread_create(&handle, nullptr, entry, new Closure(closure)) != 0) broken("cannot start a thread");
    return handle;
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

// classic.cpp
void threadtest(Run&);
void cache_scratch(Run&);
void cache_thrash(Run&);
void linux_scalability(Run&);
void t_test1(Run&);
void alloc_test(Run&);
void glibc_simple(Run&);
void glibc_thread(Run&);
// smartheap.cpp
void sh6(Run&);
void sh8(Run&);
// servers.cpp
void larson(Run&);
void mstress(Run&);
void rptest(Run&);
void mleak(Run&);
// messages.cpp
void xmalloc(Run&);
void ring(Run&);
void fan_in(Run&);
void fan_out(Run&);
void asymmetric(Run&);
// growth.cpp
void realloc_growth(Run&);
void malloc_large(Run&);
void burst_idle(Run&);
void size_shift(Run&);
// latency.cpp
void server_latency(Run&);

}  // namespace workloads

#endif  // LANEMALLOC_BENCH_WORKLOADS_WORKLOADS_H_
