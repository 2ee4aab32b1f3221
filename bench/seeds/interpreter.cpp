// An interpreter's use of memory: boxes, list cells and call frames of a few fixed sizes, in
// several threads that share nothing.
//   global   one free list per bin for all threads: pushed by a CAS, popped by a CAS under a spin
//            lock; pages are cut under a mutex
//   lists    first a free list for each thread and bin, with a limit; behind it the same as global
//   malloc   malloc and free
//   heap     a heap, and frees that know the size; compiled with FRONTS only
// A profiler (SIGPROF) samples whether the thread is in the allocator, which gives the allocator's
// share of the CPU time.
// Usage: interpreter MODE THREADS STEPS. Called by: bench/seeds/experiments.py.
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "../measure.h"

#ifdef FRONTS
#include "../../include/lanemalloc/heap.h"
#endif

namespace {

constexpr size_t kBinStep = 8, kBins = 96, kPageItems = 128;
constexpr unsigned kListLimit = 1024;
constexpr int kSpins = 1024;
constexpr size_t kRegisters = 32, kInstructions = 4096, kDeepest = 16, kLongestList = 12;
constexpr long kSampleMicroseconds = 1000;

thread_local volatile bool in_allocator;
std::atomic<uint64_t> samples, samples_inside;

void sample(int) {
  samples.fetch_add(1, std::memory_order_relaxed);
  if (in_allocator) samples_inside.fetch_add(1, std::memory_order_relaxed);
}

void start_profiler() {
  struct sigaction action = {};
  action.sa_handler = sample;
  action.sa_flags = SA_RESTART;
  sigaction(SIGPROF, &action, nullptr);
  struct itimerval every = {{0, kSampleMicroseconds}, {0, kSampleMicroseconds}};
  setitimer(ITIMER_PROF, &every, nullptr);
}

struct Item {
  std::atomic<Item*> next;
};

class GlobalBins {
 public:
  void* take(size_t bin) {
    Bin& b = bins_[bin];
    while (b.locked.exchange(true, std::memory_order_acquire)) {
      for (int i = 0; i < kSpins && b.locked.load(std::memory_order_relaxed); i++) cpu_pause();
      if (b.locked.load(std::memory_order_relaxed)) sched_yield();
    }
    Item* item = b.first.load(std::memory_order_acquire);
    while (item != nullptr &&
           !b.first.compare_exchange_weak(item, item->next.load(std::memory_order_relaxed))) {
    }
    b.locked.store(false, std::memory_order_release);
    return item != nullptr ? item : cut(b, (bin + 1) * kBinStep);
  }

  void give(size_t bin, void* object) {
    Item* item = static_cast<Item*>(object);
    Item* first = bins_[bin].first.load(std::memory_order_relaxed);
    do {
      item->next.store(first, std::memory_order_relaxed);
    } while (!bins_[bin].first.compare_exchange_weak(first, item));
  }

 private:
  struct alignas(128) Bin {
    std::atomic<Item*> first{nullptr};
    std::atomic<bool> locked{false};
    char* place = nullptr;
    char* end = nullptr;
  };

  void* cut(Bin& b, size_t bytes) {
    std::lock_guard lock(pages_);
    if (b.place == b.end) {
      b.place = static_cast<char*>(std::malloc(bytes * kPageItems));
      if (b.place == nullptr) std::abort();
      b.end = b.place + bytes * kPageItems;
    }
    void* item = b.place;
    b.place += bytes;
    return item;
  }

  Bin bins_[kBins];
  std::mutex pages_;
};

GlobalBins global_bins;

struct Global {
  static void* allocate(size_t bytes) { return global_bins.take((bytes - 1) / kBinStep); }
  static void release(void* object, size_t bytes) {
    global_bins.give((bytes - 1) / kBinStep, object);
  }
};

struct Lists {
  struct List {
    Item* first;
    unsigned length;
  };
  static thread_local List lists[kBins];

  static void* allocate(size_t bytes) {
    size_t bin = (bytes - 1) / kBinStep;
    List& list = lists[bin];
    if (list.first == nullptr) return global_bins.take(bin);
    Item* item = list.first;
    list.first = item->next.load(std::memory_order_relaxed);
    list.length--;
    return item;
  }
  static void release(void* object, size_t bytes) {
    size_t bin = (bytes - 1) / kBinStep;
    List& list = lists[bin];
    if (list.length == kListLimit) return global_bins.give(bin, object);
    static_cast<Item*>(object)->next.store(list.first, std::memory_order_relaxed);
    list.first = static_cast<Item*>(object);
    list.length++;
  }
};
thread_local Lists::List Lists::lists[kBins];

#ifdef FRONTS
lane_heap* heap = lane_heap_create(nullptr);

struct Heap {
  static void* allocate(size_t bytes) { return lane_heap_alloc(heap, bytes); }
  static void release(void* object, size_t bytes) { lane_heap_free_sized(heap, object, bytes); }
};
#endif

struct Malloc {
  static void* allocate(size_t bytes) { return std::malloc(bytes); }
  static void release(void* object, size_t) { std::free(object); }
};

enum class Operation : uint8_t { kArithmetic, kBox, kPush, kCall, kReturn };

struct Instruction {
  Operation operation;
  uint8_t a, b, c;
};

struct Box {
  uint64_t kind, value;
};
struct Cell {
  uint64_t kind, value;
  Cell* next;
};
struct Frame {
  uint64_t slots, kind;
  uint64_t slot[];
};

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
  return x ^ (x >> 29);
}

std::vector<Instruction> make_program() {
  std::vector<Instruction> program;
  for (uint64_t i = 0; i < kInstructions; i++) {
    uint64_t draw = mix(i + 99);
    // Out of 16 instructions, 6 are arithmetic, 4 box, 2 push, 2 call, 2 return.
    static constexpr Operation kMix[16] = {
        Operation::kArithmetic, Operation::kBox,    Operation::kArithmetic, Operation::kCall,
        Operation::kArithmetic, Operation::kBox,    Operation::kPush,       Operation::kReturn,
        Operation::kArithmetic, Operation::kBox,    Operation::kArithmetic, Operation::kCall,
        Operation::kArithmetic, Operation::kReturn, Operation::kBox,        Operation::kPush};
    program.push_back({kMix[draw % 16], static_cast<uint8_t>(draw >> 8 & (kRegisters - 1)),
                       static_cast<uint8_t>(draw >> 16 & (kRegisters - 1)),
                       static_cast<uint8_t>(draw >> 24 & (kRegisters - 1))});
  }
  return program;
}

template <class Allocator>
class Interpreter {
 public:
  uint64_t run(const std::vector<Instruction>& program, uint64_t steps) {
    for (Box*& box : boxes_) box = make<Box>(sizeof(Box), {1, 7});
    for (uint64_t i = 0; i < steps; i++) step(program[i % kInstructions]);
    uint64_t sum = accumulator_;
    for (Box* box : boxes_) sum += box->value;
    return sum;
  }

 private:
  void step(Instruction i) {
    switch (i.operation) {
      case Operation::kArithmetic:
        for (unsigned n = 0; n < 8; n++)
          accumulator_ = mix(accumulator_ + boxes_[(i.a + n) % kRegisters]->value);
        break;
      case Operation::kBox: {
        Box* box = make<Box>(sizeof(Box),
                             {1, mix(boxes_[i.b]->value + boxes_[i.c]->value + accumulator_)});
        release(boxes_[i.a], sizeof(Box));
        boxes_[i.a] = box;
        break;
      }
      case Operation::kPush:
        push(i.a, boxes_[i.b]->value);
        break;
      case Operation::kCall:
        if (depth_ < kDeepest) call(4 + i.c % 28);
        break;
      case Operation::kReturn:
        if (depth_ > 0) leave();
        break;
    }
  }

  void push(size_t list, uint64_t value) {
    lists_[list] = make<Cell>(sizeof(Cell), {2, value, lists_[list]});
    if (++lengths_[list] <= kLongestList) return;
    for (Cell* cell = lists_[list]; cell != nullptr;) {
      Cell* next = cell->next;
      accumulator_ += cell->value;
      release(cell, sizeof(Cell));
      cell = next;
    }
    lists_[list] = nullptr;
    lengths_[list] = 0;
  }

  void call(uint64_t slots) {
    Frame* frame = static_cast<Frame*>(allocate(sizeof(Frame) + slots * sizeof(uint64_t)));
    frame->slots = slots;
    frame->kind = 3;
    for (uint64_t n = 0; n < slots; n++)
      frame->slot[n] = boxes_[n % kRegisters]->value + accumulator_;
    frames_[depth_++] = frame;
  }

  void leave() {
    Frame* frame = frames_[--depth_];
    for (uint64_t n = 0; n < frame->slots; n++) accumulator_ += frame->slot[n];
    accumulator_ = mix(accumulator_);
    release(frame, sizeof(Frame) + frame->slots * sizeof(uint64_t));
  }

  template <class T>
  static T* make(size_t bytes, T value) {
    return new (allocate(bytes)) T(value);
  }
  static void* allocate(size_t bytes) {
    in_allocator = true;
    void* object = Allocator::allocate(bytes);
    in_allocator = false;
    return object;
  }
  static void release(void* object, size_t bytes) {
    in_allocator = true;
    Allocator::release(object, bytes);
    in_allocator = false;
  }

  Box* boxes_[kRegisters] = {};
  Cell* lists_[kRegisters] = {};
  size_t lengths_[kRegisters] = {};
  Frame* frames_[kDeepest] = {};
  size_t depth_ = 0;
  uint64_t accumulator_ = 0;
};

template <class Allocator>
uint64_t interpret(const std::vector<Instruction>& program, uint64_t steps) {
  return Interpreter<Allocator>().run(program, steps);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: interpreter global|lists|malloc|heap THREADS STEPS\n");
    return 2;
  }
  auto* entry = std::strcmp(argv[1], "global") == 0  ? interpret<Global>
                : std::strcmp(argv[1], "lists") == 0 ? interpret<Lists>
                                                     : interpret<Malloc>;
#ifdef FRONTS
  if (std::strcmp(argv[1], "heap") == 0) entry = interpret<Heap>;
#endif
  unsigned threads = static_cast<unsigned>(std::strtoul(argv[2], nullptr, 10));
  uint64_t steps = std::strtoull(argv[3], nullptr, 10);
  const std::vector<Instruction> program = make_program();
  pthread_barrier_t barrier;
  pthread_barrier_init(&barrier, nullptr, threads + 1);
  std::atomic<uint64_t> checksum{0};
  std::vector<std::thread> all;
  start_profiler();
  for (unsigned i = 0; i < threads; i++) {
    all.emplace_back([&] {
      pthread_barrier_wait(&barrier);
      checksum += entry(program, steps);
    });
  }
  uint64_t start = wall_ns();
  pthread_barrier_wait(&barrier);
  for (std::thread& thread : all) thread.join();
  double seconds = static_cast<double>(wall_ns() - start) / 1e9;
  std::printf("run_s=%.4f share=%.4f samples=%llu checksum=%016llx library=%s\n", seconds,
              static_cast<double>(samples_inside) / std::max(1.0, static_cast<double>(samples)),
              static_cast<unsigned long long>(samples), static_cast<unsigned long long>(checksum),
              malloc_file(nullptr));
  return 0;
}
