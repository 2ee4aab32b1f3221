// Arena blocks: THREADS threads take ITEMS blocks of 1 KiB each and give them all back, TIMES
// times. All of this is done SAMPLES times.
//   global   one free list for all threads, popped and pushed by a 128-bit CAS of head and version,
//            in a loop
//   lists    a list of each thread before the global one, which has no bound: the original's own
//            answer
//   malloc   malloc and free, so that the blocks come from the lane of the thread
//   arena    pieces of an arena of the thread's own, given back by a reset
// A sample lasts from the first thread's first call to the last thread's last call; the threads
// start together. One more sample comes first and is not counted.
// Usage: arena MODE THREADS ITEMS TIMES SAMPLES. Prints each sample's nanoseconds and failed CAS,
// for all TIMES.
// Called by: bench/seeds/experiments.py.
#include "../../include/lanemalloc/arena.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "../measure.h"

// The library is preloaded if it is the one to be measured.
template <class Function>
Function* of_library(const char* name) {
  auto* function = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
  if (function == nullptr) std::abort();
  return function;
}
extern "C" void* lane_arena_alloc_out_of_line(lane_arena* arena, size_t size) {
  static auto* const function =
      of_library<decltype(lane_arena_alloc_out_of_line)>("lane_arena_alloc_out_of_line");
  return function(arena, size);
}

namespace {

constexpr size_t kBlock = 1024;
constexpr size_t kChunk = 64;  // blocks that are made at once when the global list is empty

struct Block {
  std::atomic<Block*> next;
  char* water_level;
  char* end;
};

class GlobalList {
 public:
  Block* take(uint64_t& failed) {
    for (;;) {
      Head seen = look();
      if (seen.first == nullptr) {
        make(failed);
        continue;
      }
      // The block may be in use by now; then the version has changed and the exchange fails.
      Head wanted = {seen.first->next.load(std::memory_order_relaxed), seen.version + 1};
      if (exchange(seen, wanted)) return seen.first;
      failed++;
    }
  }

  void give(Block* block, uint64_t& failed) {
    for (;;) {
      Head seen = look();
      block->next.store(seen.first, std::memory_order_relaxed);
      Head wanted = {block, seen.version + 1};
      if (exchange(seen, wanted)) return;
      failed++;
    }
  }

 private:
  struct alignas(16) Head {
    Block* first;
    uint64_t version;
  };

  // The two halves may come from two moments; the exchange then fails.
  Head look() const {
    uint64_t version = __atomic_load_n(&head_.version, __ATOMIC_ACQUIRE);
    return {__atomic_load_n(&head_.first, __ATOMIC_ACQUIRE), version};
  }

  bool exchange(Head seen, Head wanted) {
    return __atomic_compare_exchange(&head_, &seen, &wanted, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED);
  }

  void make(uint64_t& failed) {
    char* chunk = static_cast<char*>(std::malloc(kBlock * kChunk));
    if (chunk == nullptr) std::abort();
    for (size_t i = 0; i < kChunk; i++) give(reinterpret_cast<Block*>(chunk + i * kBlock), failed);
  }

  alignas(128) Head head_ = {nullptr, 0};
  char padding_[112];
};

GlobalList global_list;
enum class From { kGlobal, kLists, kMalloc, kArena } from;
size_t items, times;
pthread_barrier_t barrier;

struct Result {
  uint64_t start, end, failed;
};

void write_header(Block* block) {
  block->water_level = reinterpret_cast<char*>(block + 1);
  block->end = reinterpret_cast<char*>(block) + kBlock;
}

void use_global_list(std::vector<Block*>& held, uint64_t& failed) {
  for (Block*& block : held) write_header(block = global_list.take(failed));
  for (Block* block : held) global_list.give(block, failed);
}

// Blocks that come from the global list stay with the thread until it ends.
struct ThreadList {
  Block* first = nullptr;

  Block* take(uint64_t& failed) {
    Block* block = first;
    if (block == nullptr) return global_list.take(failed);
    first = block->next.load(std::memory_order_relaxed);
    return block;
  }
  void give(Block* block) {
    block->next.store(first, std::memory_order_relaxed);
    first = block;
  }
  void give_all_back(uint64_t& failed) {
    while (first != nullptr) {
      Block* block = first;
      first = block->next.load(std::memory_order_relaxed);
      global_list.give(block, failed);
    }
  }
};
thread_local ThreadList thread_list;

void use_lists(std::vector<Block*>& held, uint64_t& failed) {
  for (Block*& block : held) write_header(block = thread_list.take(failed));
  for (Block* block : held) thread_list.give(block);
}

void use_malloc(std::vector<Block*>& held) {
  for (Block*& block : held) write_header(block = static_cast<Block*>(std::malloc(kBlock)));
  for (Block* block : held) std::free(block);
}

void use_arena(std::vector<Block*>& held, lane_arena& arena) {
  static auto* const reset = of_library<decltype(lane_arena_reset)>("lane_arena_reset");
  for (Block*& block : held)
    write_header(block = static_cast<Block*>(lane_arena_alloc(&arena, kBlock)));
  reset(&arena);
}

void run(Result& result) {
  std::vector<Block*> held(items);
  lane_arena arena = {};
  pthread_barrier_wait(&barrier);
  uint64_t failed = 0;
  result.start = wall_ns();
  for (size_t i = 0; i < times; i++) {
    switch (from) {
      case From::kGlobal:
        use_global_list(held, failed);
        break;
      case From::kLists:
        use_lists(held, failed);
        break;
      case From::kMalloc:
        use_malloc(held);
        break;
      case From::kArena:
        use_arena(held, arena);
    }
  }
  result.end = wall_ns();
  result.failed = failed;
  thread_list.give_all_back(failed);  // for the next sample; what fails there is not counted
  if (from == From::kArena) of_library<decltype(lane_arena_destroy)>("lane_arena_destroy")(&arena);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: arena global|lists|malloc|arena THREADS ITEMS TIMES SAMPLES\n");
    return 2;
  }
  from = std::strcmp(argv[1], "malloc") == 0  ? From::kMalloc
         : std::strcmp(argv[1], "lists") == 0 ? From::kLists
         : std::strcmp(argv[1], "arena") == 0 ? From::kArena
                                              : From::kGlobal;
  unsigned threads = static_cast<unsigned>(std::strtoul(argv[2], nullptr, 10));
  items = std::strtoul(argv[3], nullptr, 10);
  times = std::strtoul(argv[4], nullptr, 10);
  size_t samples = std::strtoul(argv[5], nullptr, 10);
  pthread_barrier_init(&barrier, nullptr, threads);
  std::printf("library=%s samples=", malloc_file(nullptr));
  for (size_t s = 0; s < samples + 1; s++) {
    std::vector<Result> results(threads);
    std::vector<std::thread> all;
    for (Result& result : results) all.emplace_back([&result] { run(result); });
    for (std::thread& thread : all) thread.join();
    uint64_t start = UINT64_MAX, end = 0, failed = 0;
    for (const Result& result : results) {
      start = std::min(start, result.start);
      end = std::max(end, result.end);
      failed += result.failed;
    }
    if (s == 0) continue;
    std::printf("%s%llu:%llu", s == 1 ? "" : ",", static_cast<unsigned long long>(end - start),
                static_cast<unsigned long long>(failed));
  }
  std::printf("\n");
  return 0;
}
