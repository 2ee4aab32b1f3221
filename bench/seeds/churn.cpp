// t-test1's workload: threads that only allocate and free, replaced as they exit.
//
// Each thread half-fills its bins, then alternates runs of 0-29 frees of random bins and 0-29
// allocations into random bins (the object that a bin holds is freed first), of 1..LARGEST bytes.
// Out of 1024 allocations, 4 are memalign, 16 calloc, 80 realloc, the rest malloc. Only runs of
// calls are timed; objects are written and checked between them.
// Usage: churn TOTAL_THREADS CONCURRENT ACTIONS LARGEST BINS. Prints the seconds that the threads
// spent in allocation functions, by wall-clock time (waiting counts) and by their CPU time, summed
// over threads.
// Called by: bench/seeds/experiments.py.
#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <semaphore>
#include <vector>

#include "../measure.h"

namespace {

constexpr uint64_t kRun = 30;
constexpr size_t kTouch = 2048;

struct Arguments {
  uint64_t total, concurrent, actions, largest, bins;
};

struct Bin {
  unsigned char* object = nullptr;
  size_t size = 0;
};

Arguments arguments;
std::counting_semaphore<> places(0);
std::atomic<uint64_t> wall_total, cpu_total, calls_total, damaged;

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  uint64_t below(uint64_t n) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return (state_ >> 16) % n;
  }

 private:
  uint64_t state_;
};

unsigned char stamp(size_t size) { return static_cast<unsigned char>(size * 31 + 7); }

void fill(const Bin& bin) {
  for (size_t i = 0; i < bin.size; i += kTouch) bin.object[i] = stamp(bin.size);
}

void check(const Bin& bin) {
  if (bin.object != nullptr && bin.object[0] != stamp(bin.size)) damaged++;
}

void allocate(Bin& bin, uint64_t kind, size_t size, size_t alignment) {
  void* object = nullptr;
  if (kind >= 20 && kind < 100) {
    object = realloc(bin.object, size);
  } else {
    free(bin.object);
    if (kind < 4) {
      object = aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    } else {
      object = kind < 20 ? calloc(size, 1) : malloc(size);
    }
  }
  if (object == nullptr) abort();
  bin = {static_cast<unsigned char*>(object), size};
}

class Worker {
 public:
  explicit Worker(uint64_t seed) : random_(seed), bins_(arguments.bins) {}

  void work() {
    for (size_t i = 0; i < bins_.size(); i += 2) allocate_run(&i, 1);
    for (uint64_t done = 0; done < arguments.actions;) {
      done += free_some();
      done += allocate_some();
    }
    size_t all[kRun];
    for (size_t first = 0; first < bins_.size(); first += kRun) {
      size_t n = 0;
      for (; n < kRun && first + n < bins_.size(); n++) all[n] = first + n;
      free_run(all, n);
    }
    wall_total += wall_;
    cpu_total += cpu_;
    calls_total += calls_;
  }

 private:
  size_t choose(size_t* chosen) {
    size_t n = random_.below(kRun);
    for (size_t i = 0; i < n; i++) chosen[i] = random_.below(bins_.size());
    return n;
  }

  uint64_t free_some() {
    size_t chosen[kRun], n = choose(chosen);
    free_run(chosen, n);
    return n;
  }

  uint64_t allocate_some() {
    size_t chosen[kRun], n = choose(chosen);
    allocate_run(chosen, n);
    return n;
  }

  void free_run(const size_t* chosen, size_t n) {
    for (size_t i = 0; i < n; i++) check(bins_[chosen[i]]);
    start();
    for (size_t i = 0; i < n; i++) {
      free(bins_[chosen[i]].object);
      bins_[chosen[i]] = {};
    }
    stop(n);
  }

  void allocate_run(const size_t* chosen, size_t n) {
    uint64_t kinds[kRun];
    size_t sizes[kRun], alignments[kRun];
    for (size_t i = 0; i < n; i++) {
      kinds[i] = random_.below(1024);
      sizes[i] = 1 + random_.below(arguments.largest);
      alignments[i] = size_t{16} << random_.below(6);
      check(bins_[chosen[i]]);
    }
    start();
    for (size_t i = 0; i < n; i++) {
      allocate(bins_[chosen[i]], kinds[i], sizes[i], alignments[i]);
      // realloc copies the old contents; the stamp must be that of the new size before the bin is
      // used again.
      bins_[chosen[i]].object[0] = stamp(sizes[i]);
    }
    stop(n);
    for (size_t i = 0; i < n; i++) fill(bins_[chosen[i]]);
  }

  void start() {
    cpu_start_ = thread_cpu_ns();
    wall_start_ = wall_ns();
  }
  void stop(size_t calls) {
    wall_ += wall_ns() - wall_start_;
    cpu_ += thread_cpu_ns() - cpu_start_;
    calls_ += calls;
  }

  Random random_;
  std::vector<Bin> bins_;
  uint64_t wall_start_ = 0, cpu_start_ = 0, wall_ = 0, cpu_ = 0, calls_ = 0;
};

void* run(void* seed) {
  Worker(reinterpret_cast<uintptr_t>(seed)).work();
  places.release();
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: churn TOTAL_THREADS CONCURRENT ACTIONS LARGEST BINS\n");
    return 2;
  }
  uint64_t values[5];
  for (int i = 0; i < 5; i++) values[i] = std::strtoull(argv[i + 1], nullptr, 10);
  arguments = {values[0], values[1], values[2], values[3], values[4]};
  pthread_attr_t detached;
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  places.release(static_cast<ptrdiff_t>(arguments.concurrent));
  uint64_t elapsed = wall_ns();
  for (uint64_t i = 0; i < arguments.total; i++) {
    places.acquire();
    pthread_t thread;
    if (pthread_create(&thread, &detached, run, reinterpret_cast<void*>(i + 1)) != 0) abort();
  }
  for (uint64_t i = 0; i < arguments.concurrent; i++) places.acquire();
  elapsed = wall_ns() - elapsed;
  std::printf(
      "in_allocator_s=%.4f in_allocator_cpu_s=%.4f elapsed_s=%.4f calls=%llu peak_kib=%lu "
      "library=%s\n",
      static_cast<double>(wall_total.load()) / 1e9, static_cast<double>(cpu_total.load()) / 1e9,
      static_cast<double>(elapsed) / 1e9, static_cast<unsigned long long>(calls_total.load()),
      peak_rss_kib(), malloc_file(nullptr));
  if (damaged != 0)
    std::fprintf(stderr, "churn: %llu objects were damaged\n",
                 static_cast<unsigned long long>(damaged.load()));
  return damaged == 0 ? 0 : 1;
}
