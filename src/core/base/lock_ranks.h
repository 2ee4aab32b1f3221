// The order in which locks may be held together: a thread that holds one takes only locks that
// stand below it in this list. fork closes the locks of the depot, of growth and of the runs in
// this order. In short: a thread that holds a lane may take the depot's lock, and one that holds
// either of them may take the two locks of the run allocator.
#pragma once

#include <cstdint>

namespace lanemalloc {

enum class Rank : uint8_t {
  kLane,     // one lane, held from outside (revoked, or without an owner)
  kDepot,    // slabs between two lanes
  kGrowth,   // adding memory from the system
  kRuns,     // runs of blocks
  kReaders,  // the list of readers; no lock is taken while it is held
  kPool,     // the waiters of one pool, and its reserve; no lock is taken while it is held
  kLast = kPool,
};

}  // namespace lanemalloc
