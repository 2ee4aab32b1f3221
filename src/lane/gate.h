// Gate: what a thread's slot points at, and all that a hit of malloc or free asks of a lane before it may touch it.
// Slot: the one thread-local word. Called by: engine (hits), lane, entry.
#pragma once

#include <atomic>

#include "memory/size_classes.h"

namespace lanemalloc {

struct Gate {
  // Bins below this index may be hit. 0 while nobody may.
  std::atomic<size_t> open_bins{0};
  // The page-map owner whose objects may be freed by a hit. kClosed while nobody may.
  std::atomic<uint16_t> open_owner{static_cast<uint16_t>(Owner::kClosed)};
};

// A thread's word: its lane's gate while the thread is outside, or one of the gates below, which nobody passes.
using Slot = std::atomic<Gate*>;

inline constinit Gate no_lane_gate;  // the thread has no lane yet
inline constinit Gate busy_gate;     // the thread is inside the allocator, or a handler has interrupted it there
inline constinit Gate exited_gate;   // the thread has given its lane back

}  // namespace lanemalloc
