// The order in which locks may be held together: a thread that holds one takes only locks below it
// in this list.
// fork closes those of the depot, of growth and of the runs in this order. In short: a lane may be
// held while the depot's lock is taken, either while the run allocator's two are.
#pragma once

#include <cstdint>

namespace lanemalloc {

enum class Rank : uint8_t {
  kLane,     // one lane, held from outside (revoked, or owned by nobody)
  kDepot,    // slabs between two lanes
  kGrowth,   // having the system add memory
  kRuns,     // runs of blocks
  kReaders,  // the list of readers; nothing is taken while it is held
  kPool,     // who waits in one pool, and its reserve; nothing is taken with it
  kLast = kPool,
};

}  // namespace lanemalloc
