// Explorer: runs a small concurrent program under every schedule up to a number of preemptions.
// Called by: scenarios.cpp (the programs), platform.h (what the threads ask of the system). How it
// works: explorer.cpp.
//
// A scenario is a struct. Its constructor sets up, thread(i) is what thread i does, and check()
// looks at the result. The struct lies in memory that is put back before every schedule, so it may
// hold nothing that points elsewhere (no std::string, no vector).
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

namespace explorer {

inline constexpr int kMostThreads = 4;

struct Bounds {
  int threads;
  int preemptions;  // how often at most a thread is stopped that could go on
  int signals = 0;  // how often at most S::handler(0) interrupts thread 0
  // Between plain accesses, not only before atomic ones, handlers also come and threads are stopped
  bool at_plain = false;
  const char* cpus = "0123";  // thread i runs on the CPU with the number cpus[i]
  int moves = 0;              // how often at most thread 0 is moved to the next CPU
};

struct Scenario {
  const char* name;
  const char* what;
  Bounds bounds;
  size_t size;
  void (*construct)(void* place);
  void (*thread)(void* scenario, int thread);
  void (*handler)(void* scenario, int thread);
  void (*check)(void* scenario);
};

template <class S>
Scenario scenario(const char* name, const char* what, Bounds bounds) {
  void (*handler)(void*, int) = nullptr;
  if constexpr (requires(S& s) { s.handler(0); })
    handler = [](void* s, int i) { static_cast<S*>(s)->handler(i); };
  return {name,
          what,
          bounds,
          sizeof(S),
          [](void* place) { new (place) S; },
          [](void* s, int i) { static_cast<S*>(s)->thread(i); },
          handler,
          [](void* s) { static_cast<S*>(s)->check(); }};
}

// Defined in scenarios.cpp.
extern const Scenario kScenarios[];
extern const size_t kScenarioCount;

// --- For scenarios.
// Fails this schedule.
void check(bool good, const char* what);
int current_thread();
// Moves the thread to this CPU. In a constructor or in check(): says on which CPU the code that
// follows runs.
void run_on(int cpu);
// Stands for fork. In one branch everything goes on as before; in the other (true) all other
// threads are gone. If they did something without a release that the child acquires, it races with
// what the child does: the child may find it half done.
bool fork_here();
// Such a child calls it before it puts together what other threads may have left half done. From
// then on nothing that they did is a race. The child finds their stores in their order, up to any
// one of them.
void take_memory_as_it_is();

// --- For the platform.
inline constexpr size_t kArenaSize = size_t{24} << 20;
extern std::byte arena[kArenaSize];  // put back before every schedule
void touched(void* from, size_t bytes);
void barrier();
// Restartable sequences. A sequence ends by one store. It starts again (kInterrupted) if its thread
// was taken off its CPU, moved or interrupted by a signal before that, or if any thread called
// restart().
enum class Step { kDone, kElsewhere, kEmpty, kInterrupted, kLast };
int cpu();
// The word must hold the CPU's number above the lower 16 bits of `seen`. With `who`, `seen` is read
// there, after the word.
Step take_here(void* word, const void* who, uint64_t& seen, uint32_t mark, uint32_t& before);
Step pop_here(const void* word, uintptr_t* bin, uintptr_t reach, void*& object);
// list: the distance in bytes from the address in the upper 48 bits of *who.
Step push_here(const void* word, const void* who, size_t list, void* object, uintptr_t link);
void restart();
// A read by the kernel, with acquire order. A thread that is gone may have taken this memory with
// it, so the read is never in a race.
bool reads_as(const void* at, uint64_t value);
void wait(const void* word, uint32_t value);
void wake(const void* word, int count);
void pause();
void sleep();

}  // namespace explorer
