// Interpreter threads over one heap, or over malloc: each runs programs and checks their results.
// After every run a thread replaces the code of a function, as a compiler would that has learnt
// something. Other threads may still be running the old code; it is freed at a safepoint, once each
// of them has come to the end of a run.
//
// Usage: interpreter heap|malloc THREADS RUNS. RUNS is the number for each thread. Prints one line
// of figures and, to standard error, the allocator's statistics. Called by: run.sh,
// tests/golden/heaps.py.
#include <lanemalloc/safepoint.h>
#include <malloc.h>
#include <sched.h>
#include <sys/resource.h>

#include <cerrno>
#include <chrono>
#include <string_view>
#include <thread>
#include <vector>

#include "machine.h"
#include "memory.h"
#include "programs.h"

namespace {

constexpr int64_t kQueens = 6, kSolutions = 4;
constexpr int64_t kKeys = 200;

// The result that the dictionary's program must have.
int64_t sum_of_keys() {
  std::vector<bool> has(1009);
  int64_t key = 1, sum = 0;
  for (int64_t i = 0; i < kKeys; ++i, key = (key * 137 + 71) % 1009) {
    if (!has[static_cast<size_t>(key)]) sum += 3 * key;
    has[static_cast<size_t>(key)] = true;
  }
  return sum;
}

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "interpreter: %s\n", what);
  std::exit(1);
}

// A deferred call gets one argument, the code.
template <class Memory>
Program<Memory>* the_program = nullptr;
template <class Memory>
void give_code(void* code) {
  the_program<Memory>->give(static_cast<Code*>(code));
}

// Two threads may replace the same code at once; both versions are right.
template <class Memory>
void replace_code(Function& function, lane_reader& reader) {
  Program<Memory>& program = *the_program<Memory>;
  Code* fresh = program.rewritten(*function.code.load(std::memory_order_acquire));
  if (fresh == nullptr) fail("no memory");
  Code* old = function.code.exchange(fresh, std::memory_order_acq_rel);
  while (lane_safepoint_call(give_code<Memory>, old) == EBUSY) {
    // There is no room until other threads have come to the end of their runs, too.
    lane_reader_quiescent(&reader);
    lane_safepoint_poll();
    sched_yield();
  }
}

template <class Memory>
void interpret(Memory& memory, int self, int runs, uint64_t& allocations) {
  Program<Memory>& program = *the_program<Memory>;
  Machine<Memory> machine(program, memory);
  lane_reader reader;
  if (lane_reader_register(&reader, "interpreter") != 0) fail("a reader is not registered");
  lane_reader_online(&reader);
  const int64_t sum = sum_of_keys();
  for (int run = 0; run < runs; ++run) {
    if (machine.run(program.named("queens"), {kQueens}) != kSolutions) fail("the queens are wrong");
    if (machine.run(program.named("dictionary"), {kKeys}) != sum) fail("the dictionary is wrong");
    replace_code<Memory>(program.at(static_cast<size_t>(self + run) % program.size()), reader);
    lane_reader_quiescent(&reader);
  }
  lane_reader_offline(&reader);
  if (lane_reader_unregister(&reader) != 0) fail("a reader is not unregistered");
  allocations = machine.allocations();
}

template <class Memory>
int run(int threads, int runs) {
  static lane_reader first;  // so that there is a reader from the first deferred free on
  if (lane_reader_register(&first, "main") != 0) fail("a reader is not registered");
  Memory memory;
  Program<Memory> program(kPrograms, memory);
  the_program<Memory> = &program;
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> machines;
  std::vector<uint64_t> counts(static_cast<size_t>(threads));
  for (int i = 0; i < threads; ++i)
    machines.emplace_back(interpret<Memory>, std::ref(memory), i, runs,
                          std::ref(counts[static_cast<size_t>(i)]));
  for (std::thread& machine : machines) machine.join();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  if (lane_safepoint_wait() != 0) fail("deferred frees wait for nobody");
  uint64_t allocations = 0;
  for (uint64_t count : counts) allocations += count;
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  // Every frame, environment and object has been given back, and every code but the newest.
  const long left = memory.left();
  if (left >= 0 && left != static_cast<long>(program.size())) fail("objects have been lost");
  std::printf("runs=%ld seconds=%.3f allocations=%llu peak_kib=%ld left=%ld\n",
              long{threads} * runs, seconds.count(), static_cast<unsigned long long>(allocations),
              usage.ru_maxrss, left);
  malloc_stats();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view memory = argc > 1 ? argv[1] : "";
  const int threads = argc > 2 ? std::atoi(argv[2]) : 0, runs = argc > 3 ? std::atoi(argv[3]) : 0;
  if (argc != 4 || (memory != "heap" && memory != "malloc") || threads < 1 || threads > 1000 ||
      runs < 1) {
    std::fprintf(stderr, "usage: interpreter heap|malloc THREADS RUNS\n");
    return 2;
  }
  return memory == "heap" ? run<HeapMemory>(threads, runs) : run<MallocMemory>(threads, runs);
}
