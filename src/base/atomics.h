// The atomics policy: lock-free algorithms take it as a template argument, so that the code that ships is the code
// that a model checker runs. Hardware is what ships.
#pragma once

#include <atomic>

namespace lanemalloc {

struct Hardware {
  template <class T>
  using atomic = std::atomic<T>;
};

// Adds to a counter that only one thread writes: a plain load and store, readable by others at any time.
template <class T>
inline void bump(std::atomic<T>& counter, T by = 1) {
  counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}

}  // namespace lanemalloc
