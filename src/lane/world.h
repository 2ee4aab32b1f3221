// World: what all lanes share, in one place. The engine owns the only one of a process; a test may have several.
// Called by: lane, engine. Locking: each part has its own.
//
//   lanes --> depot --> runs --> region --> platform          (who takes memory from whom)
//        ^                 ^
//        +-- scavenger ----+                                  (who gives it back)
#pragma once

#include "lane/lane_table.h"
#include "memory/scavenger.h"

namespace lanemalloc {

struct Settings {
  bool checked = false;     // a bit an object tells whether it is in use; nothing hits
  int64_t decay_ms = 1000;  // how long freed memory is kept; < 0: for good
};

// What happened outside any lane, or to a lane from outside. Anybody adds.
struct SharedCounters {
  std::atomic<uint64_t> overflow_entries{0};
  std::atomic<uint64_t> nested_entries{0};  // those of signal handlers and other re-entrance
  std::atomic<uint64_t> revocations{0};     // lanes taken from their owner
  std::atomic<uint64_t> refused_revocations{0};
  std::atomic<uint64_t> large_allocations{0};
  std::atomic<uint64_t> large_frees{0};
  std::atomic<uint64_t> large_bytes{0};  // live
  std::atomic<uint64_t>
      direct_frees[kClassCount]{};  // objects sent straight to their owner, for want of a lane
  std::atomic<uint64_t> bad_pointers{0};
};

template <class P>
struct World {
  Region<P> region;
  Runs<P> runs{region};
  Depot<P> depot{Slabs<P>{region, runs}};
  LaneTable<P> lanes{*this};
  Scavenger<P> scavenger;
  Settings settings;
  alignas(kNoSharing) SharedCounters counters;
  // Tells the user of a bad pointer that was found late; may abort, or return.
  void (*report)(Verdict why, const void* pointer) = nullptr;

  Slabs<P> slabs() { return {region, runs}; }

  // Takes the lane from its owner, works in it and gives it back. False if it is busy.
  template <class Work>
  bool with_idle_lane(Lane<P>& lane, Visit& visit, Work work) {
    if (!lane.try_hold(visit)) {
      counters.refused_revocations.fetch_add(1, std::memory_order_relaxed);
      return false;
    }
    if (lane.owner_slot() != nullptr) counters.revocations.fetch_add(1, std::memory_order_relaxed);
    work(lane);
    lane.let_go(visit);
    return true;
  }
};

}  // namespace lanemalloc
