// Explorer: runs a small concurrent program under every schedule with at most so many preemptions.
// Called by: scenarios.cpp (what is run), platform.h (what the threads ask of the system). How it
// works: explorer.cpp.
//
// A scenario is a struct: its constructor sets up, thread(i) is what thread i does, check() looks
// at the end. It lies in memory that is put back before every schedule, so it may hold nothing that
// points elsewhere (no std::string, no vector).
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

namespace explorer {

inline constexpr int kMostThreads = 4;

struct Bounds {
  int threads;
  int preemptions;  // a thread is stopped although it could go on, at most so often
  int signals = 0;  // S::handler(0) interrupts thread 0, at most so often
  bool at_plain =
      // Handlers also come, and threads are stopped, between plain accesses, not only before atomic
      // ones
      false;
  const char* cpus = "0123";  // thread i runs on the CPU with the number cpus[i]
  int moves = 0;              // thread 0 is moved to the next CPU, at most so often
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

// scenarios.cpp.
extern const Scenario kScenarios[];
extern const size_t kScenarioCount;

// --- For scenarios.
// Fails this schedule.
void check(bool good, const char* what);
int current_thread();
// Moves the thread. In a constructor or in check(): says where what follows runs.
void run_on(int cpu);
// Stands for fork: one branch goes on as before; in the other (true) all other threads are gone.
// What they did without a release that the child acquires is a race with what the child does: it
// may find it half done.
bool fork_here();
// In such a child, before it puts together what others may have left half done: from now on nothing
// that they did is a race. Their stores are there in their order, up to any one of them.
void take_memory_as_it_is();

// --- For the platform.
inline constexpr size_t kArenaSize = size_t{24} << 20;
extern std::byte arena[kArenaSize];  // put back before every schedule
void touched(void* from, size_t bytes);
void barrier();
// Restartable sequences: they end by one store, and start again (kInterrupted) if their thread was
// taken off its CPU, moved or interrupted by a signal before that, or if anybody called restart().
enum class Step { kDone, kElsewhere, kEmpty, kInterrupted, kLast };
int cpu();
// seen: its lower half is asked for; with `who` it is read there, after the word.
Step take_here(void* word, const void* who, uint64_t& seen, uint32_t mark, uint32_t& before);
Step pop_here(const void* word, void** head, void*& object);
// list: bytes into what the upper 48 bits of *who are the address of.
Step push_here(const void* word, const void* who, size_t list, void* object);
void restart();
// A look by the kernel, with acquire order: also at what its thread has taken with it, so it is
// never in a race.
bool reads_as(const void* at, uint64_t value);
void wait(const void* word, uint32_t value);
void wake(const void* word, int count);
void pause();
void sleep();

}  // namespace explorer
