// EntryChoice: how threads enter lanes, as the options say; for lanes=auto as the process behaves
// (docs/design/0010-auto.md). A thread follows at its next miss.
// Called by: engine, upkeep. Locking: one caller of choose() at a time.
#pragma once

#include "core/engine/waits.h"
#include "core/lane/world.h"

namespace lanemalloc {

template <class P>
class EntryChoice {
 public:
  explicit constexpr EntryChoice(World<P>& world) : world_(world) {}

  // False: the system cannot do that; then nothing has changed.
  bool choose(const Settings& settings) {
    if (settings.entry == Entry::kPerCpu && !can_enter_by_cpu()) return false;
    // The number of CPUs is asked for now: later the program may be forbidden to ask.
    const uint32_t lanes = settings.choose_entry ? P::cpus() : uint32_t{settings.shared_lanes};
    many_threads_.store(settings.choose_entry ? kThreadsPerCpu * lanes + 1 : kChosen,
                        std::memory_order_relaxed);
    set(settings.entry, lanes);
    return true;
  }

  // For lanes=auto, at each pass of the scavenger. If many threads mostly wait, lanes of their own
  // would keep much, and would be cold each time.
  void follow_waits(uint64_t allocated) {
    const uint32_t few = many_threads_.load(std::memory_order_relaxed);
    const Waits::Say say = waits_.look(allocated, P::waits());
    const Entry from = world_.lanes.entry();
    Entry to = from;
    if (say == Waits::Say::kTheyRun) to = Entry::kOwned;
    if (say == Waits::Say::kTheyWait && from == Entry::kOwned &&
        world_.lanes.owners().load(std::memory_order_relaxed) > few)
      to = can_enter_by_cpu() ? Entry::kPerCpu : Entry::kShared;
    if (to == from || !change(from, to)) return;
    // Meanwhile the program may have chosen an entry, even the very one that was in use.
    if (many_threads_.load(std::memory_order_relaxed) == kChosen) change(to, from);
  }

  bool may_follow() const { return many_threads_.load(std::memory_order_relaxed) != kChosen; }

  void set(Entry entry, uint32_t shared_lanes) {
    // Only shared lanes need the number of CPUs: to ask for it takes a dozen system calls.
    if (entry == Entry::kShared && shared_lanes == 0) shared_lanes = P::cpus();
    world_.lanes.set_entry(entry, shared_lanes);
    if (entry != Entry::kPerCpu) world_.region.set_hits(true);
  }

 private:
  // If there are more threads than these for each CPU, and one that waits for them, lanes=auto asks
  // whether they wait.
  static constexpr uint32_t kThreadsPerCpu = 4;
  static constexpr uint32_t kChosen = ~uint32_t{0};

  bool can_enter_by_cpu() { return P::lane_number() < kMostNumbers && P::restart_here(); }

  // False: the entry is no longer `from`.
  bool change(Entry from, Entry to) {
    if (!world_.lanes.change_entry(from, to)) return false;
    if (to != Entry::kPerCpu) world_.region.set_hits(true);
    return true;
  }

  World<P>& world_;
  // For lanes=auto: up to this number, threads with a lane are few. kChosen: the entry is the
  // chosen one.
  std::atomic<uint32_t> many_threads_{kChosen};
  Waits waits_;  // the scavenger's
};

}  // namespace lanemalloc
