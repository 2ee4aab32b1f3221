// Multi-thread workloads that allocators are usually compared with, written anew from their published
// descriptions:
//   larson      a server's table: threads replace random objects; now and then a table passes to another
//   thread xmalloc     half of the threads allocate in batches, the other half frees them threadtest  every
//   thread allocates many small objects, then frees them all, again and again scratch     objects allocated
//   side by side by one thread go to others, which free them, allocate and write:
//               false sharing, passive and active, shows as time
//   sh6         waves of mostly small sizes, freed in mixed order while some stay: fragmentation
//   realloc     many buffers that grow step by step, as strings and vectors do
//   large       buffers of 64 KiB to 8 MiB, their first pages written
// The total work is the same for any number of threads. Usage: workloads NAME THREADS [SCALE]
// Prints wall and CPU time, the process's peak resident memory, and a checksum that depends on the work
// alone. Called by: bench/suite.py.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>
#include <thread>

#include "measure.h"

namespace {

constexpr int kMaxThreads = 64;

struct Random {
  uint64_t state;
  explicit Random(uint64_t seed) : state(seed * 0x9e3779b97f4a7c15u + 1) {}
  uint32_t next() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state >> 33);
  }
  size_t between(size_t low, size_t high) { return low + next() % (high - low + 1); }
};

// Memory for the workload's own books, outside of the allocator under test.
template <class T>
T* book(size_t count) {
  void* p = mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) std::abort();
  return static_cast<T*>(p);
}

// An object whose first and last byte are written, as a program would.
char* make(size_t bytes) {
  char* object = static_cast<char*>(std::malloc(bytes));
  if (object == nullptr) std::abort();
  object[0] = static_cast<char>(bytes);
  object[bytes - 1] = static_cast<char>(bytes);
  return object;
}

struct Work {
  int threads;
  double scale;
  std::atomic<uint64_t> sum{0};

  size_t share(double total) const {
    return std::max<size_t>(1, static_cast<size_t>(total * scale / threads));
  }

  // body(thread number) in every thread at once.
  template <class Body>
  void in_threads(Body body) {
    std::thread pool[kMaxThreads];
    for (int i = 0; i < threads; i++) pool[i] = std::thread(body, i);
    for (int i = 0; i < threads; i++) pool[i].join();
  }
};

void larson(Work& work) {
  constexpr size_t kSlots = 2000;
  constexpr int kGenerations = 8;
  char** tables = book<char*>(kSlots * static_cast<size_t>(work.threads));
  size_t operations = work.share(12e6) / kGenerations;
  for (int generation = 0; generation < kGenerations; generation++) {
    work.in_threads([&](int me) {
      // A new thread takes over the table that another one left.
      char** table = tables + kSlots * static_cast<size_t>((me + generation) % work.threads);
      Random random(static_cast<uint64_t>(generation * kMaxThreads + me));
      for (size_t i = 0; i < operations; i++) {
        char*& slot = table[random.next() % kSlots];
        std::free(slot);
        slot = make(random.between(8, 1000));
      }
      work.sum += operations;
    });
  }
  for (size_t i = 0; i < kSlots * static_cast<size_t>(work.threads); i++) std::free(tables[i]);
}

void xmalloc(Work& work) {
  constexpr size_t kBatch = 120;
  constexpr size_t kQueue = 64;
  struct Batch {
    Batch* next;
    void* objects[kBatch];
  };
  std::mutex mutex;
  std::condition_variable changed;
  Batch* queue = nullptr;
  size_t queued = 0;
  int producers = std::max(1, work.threads / 2);
  int producing = producers;
  size_t batches = static_cast<size_t>(8e6 * work.scale) / kBatch / static_cast<size_t>(producers);

  auto consume = [](Batch* batch) {
    for (void* object : batch->objects) std::free(object);
    std::free(batch);
  };
  auto fill = [](Random& random) {
    Batch* batch = static_cast<Batch*>(std::malloc(sizeof(Batch)));
    for (void*& object : batch->objects)
      object = make(random.between(8, 256) + (random.next() % 64 == 0 ? 1000 : 0));
    return batch;
  };
  work.in_threads([&](int me) {
    Random random(static_cast<uint64_t>(me));
    if (work.threads == 1) {
      for (size_t i = 0; i < batches; i++) consume(fill(random));
      work.sum += batches;
    } else if (me < producers) {
      for (size_t i = 0; i < batches; i++) {
        Batch* batch = fill(random);
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return queued < kQueue; });
        batch->next = queue;
        queue = batch;
        queued++;
        changed.notify_all();
      }
      std::lock_guard lock(mutex);
      producing--;
      changed.notify_all();
      work.sum += batches;
    } else {
      for (;;) {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return queue != nullptr || producing == 0; });
        if (queue == nullptr) return;
        Batch* batch = queue;
        queue = batch->next;
        queued--;
        changed.notify_all();
        lock.unlock();
        consume(batch);
      }
    }
  });
}

void threadtest(Work& work) {
  constexpr size_t kTotalObjects = 100'000;
  size_t rounds = static_cast<size_t>(std::max(1.0, 120 * work.scale));
  work.in_threads([&](int) {
    size_t count = kTotalObjects / static_cast<size_t>(work.threads);
    char** objects = book<char*>(count);
    for (size_t round = 0; round < rounds; round++) {
      for (size_t i = 0; i < count; i++) objects[i] = make(64);
      for (size_t i = 0; i < count; i++) std::free(objects[i]);
    }
    work.sum += rounds;
  });
}

void scratch(Work& work) {
  constexpr size_t kBytes = 8;
  constexpr int kWrites = 1000;
  char* first[kMaxThreads];
  for (int i = 0; i < work.threads; i++) first[i] = make(kBytes);
  size_t rounds = work.share(2.5e5);
  work.in_threads([&](int me) {
    std::free(first[me]);
    for (size_t round = 0; round < rounds; round++) {
      volatile char* object = make(kBytes);
      for (int i = 0; i < kWrites; i++) object[i % kBytes] = static_cast<char>(object[i % kBytes] + 1);
      std::free(const_cast<char*>(object));
    }
    work.sum += rounds;
  });
}

void sh6(Work& work) {
  constexpr size_t kWave = 6000;
  size_t waves = work.share(1400);
  work.in_threads([&](int me) {
    Random random(static_cast<uint64_t>(me));
    char** objects = book<char*>(kWave);
    for (size_t wave = 0; wave < waves; wave++) {
      for (size_t i = 0; i < kWave; i++) {
        if (objects[i] != nullptr) continue;
        // Three of four are under 100 bytes, and the sizes drift from wave to wave.
        size_t top = random.next() % 4 != 0 ? 100 : 1000;
        objects[i] = make(random.between(8, top) + wave % 32 * 8);
      }
      // The middle third backwards, then every second of the rest: one third stays for the next wave.
      for (size_t i = 2 * kWave / 3; i-- > kWave / 3;) {
        std::free(objects[i]);
        objects[i] = nullptr;
      }
      for (size_t i = wave % 2; i < kWave; i += 2) {
        std::free(objects[i]);
        objects[i] = nullptr;
      }
    }
    for (size_t i = 0; i < kWave; i++) std::free(objects[i]);
    work.sum += waves;
  });
}

void grow(Work& work) {
  constexpr size_t kBuffers = 64;
  constexpr size_t kLimit = 96 * 1024;
  size_t rounds = work.share(130);
  work.in_threads([&](int me) {
    Random random(static_cast<uint64_t>(me));
    for (size_t round = 0; round < rounds; round++) {
      char* buffers[kBuffers] = {};
      size_t sizes[kBuffers] = {};
      for (size_t alive = kBuffers; alive > 0;) {
        size_t i = random.next() % kBuffers;
        if (sizes[i] >= kLimit) continue;
        size_t bytes = sizes[i] + std::max<size_t>(16, sizes[i] / (i % 2 == 0 ? 2 : 16));
        char* moved = static_cast<char*>(std::realloc(buffers[i], bytes));
        if (moved == nullptr || (sizes[i] != 0 && moved[sizes[i] - 1] != static_cast<char>(i))) std::abort();
        std::memset(moved + sizes[i], static_cast<int>(i), bytes - sizes[i]);
        buffers[i] = moved;
        sizes[i] = bytes;
        if (bytes >= kLimit) alive--;
      }
      for (char* buffer : buffers) std::free(buffer);
    }
    work.sum += rounds;
  });
}

void large(Work& work) {
  constexpr size_t kAlive = 16;
  size_t rounds = work.share(12000);
  work.in_threads([&](int me) {
    Random random(static_cast<uint64_t>(me));
    char* alive[kAlive] = {};
    for (size_t round = 0; round < rounds; round++) {
      char*& slot = alive[random.next() % kAlive];
      std::free(slot);
      size_t bytes = size_t{64 * 1024} << random.between(0, 6);
      bytes += random.next() % bytes;
      slot = make(bytes);
      for (size_t at = 0; at < std::min<size_t>(bytes, 128 * 1024); at += 4096) slot[at] = 1;
    }
    for (char* object : alive) std::free(object);
    work.sum += rounds;
  });
}

struct Entry {
  std::string_view name;
  void (*run)(Work&);
};
constexpr Entry kWorkloads[] = {{"larson", larson},   {"xmalloc", xmalloc}, {"threadtest", threadtest},
                                {"scratch", scratch}, {"sh6", sh6},         {"realloc", grow},
                                {"large", large}};

}  // namespace

int main(int argc, char** argv) {
  Work work{argc > 2 ? std::atoi(argv[2]) : 0, argc > 3 ? std::atof(argv[3]) : 1.0};
  if (work.threads < 1 || work.threads > kMaxThreads || work.scale <= 0) {
    std::fprintf(stderr, "usage: workloads NAME THREADS [SCALE]\n");
    return 2;
  }
  for (const Entry& entry : kWorkloads) {
    if (entry.name != argv[1]) continue;
    const char* library = malloc_file(nullptr);
    uint64_t wall = wall_ns(), cpu = process_cpu_ns();
    entry.run(work);
    wall = wall_ns() - wall;
    cpu = process_cpu_ns() - cpu;
    std::printf("wall_ns=%llu cpu_ns=%llu peak_kib=%lu checksum=%llu library=%s\n",
                static_cast<unsigned long long>(wall), static_cast<unsigned long long>(cpu), peak_rss_kib(),
                static_cast<unsigned long long>(work.sum.load()), library);
    return 0;
  }
  std::fprintf(stderr, "workloads: no workload '%s'\n", argv[1]);
  return 2;
}
