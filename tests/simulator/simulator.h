// Simulator: runs a program on up to 128 simulated cores, one thread on each, and counts the cache
// lines that go from one core to another. Called by: workloads.cpp (the programs), models.h,
// platform.h. How it works: simulator.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace simulator {

inline constexpr int kMostCores = 128;

// Transfers, by what the lines hold.
struct Transfers {
  uint64_t metadata = 0;  // made by the allocator, of lines outside the objects
  // Of lines of objects, because the allocator keeps its links there: all except `program`
  int64_t links = 0;
  // Of lines of objects: the program would make them if the allocator touched nothing
  uint64_t program = 0;
};

struct Counts {
  Transfers lines;  // of 64 bytes
  Transfers pairs;  // of 128 bytes
};

// --- Memory whose lines are watched: the arena, and the program's static storage. In the arena,
// objects lie behind the place that objects_begin_at() names.
inline constexpr size_t kArenaSize = size_t{5} << 30;
extern std::byte* arena;  // zeroed; a multiple of 2 MiB
void objects_begin_at(const void* p);

// --- Threads.
void set_up(int cores, uint64_t seed);
// Runs body(context, core) on all cores until each has returned. May be called again: the cores
// keep the lines that they hold.
void run(void (*body)(void* context, int core), void* context);
int current_core();  // 0 outside run()
int core_count();
uint64_t now();
uint64_t random(uint64_t below);
// Lets time pass, in units of one access that hits.
void idle(uint64_t time);
// While a Step exists, the other cores stand still: what is done meanwhile is one step for all.
class Step {
 public:
  Step();
  Step(const Step&) = delete;
  ~Step();
};
void wait(const void* word, uint32_t value);
void wake(const void* word, int count);

// --- The program's own accesses to an object.
void program_reads(const void* object, size_t bytes);
void program_writes(const void* object, size_t bytes);

Counts counts();
void reset_counts();
// Which instructions made the transfers.
struct Blame {
  uint64_t metadata_lines = 0;
  uint64_t metadata_pairs = 0;
  uint64_t object_lines = 0;
  uint64_t object_pairs = 0;
};
// place: the return address of the __tsan_* call that stands before the access; null for all
// accesses that the program made itself.
void visit_blamed(void (*visit)(const void* place, Blame blame));

}  // namespace simulator
