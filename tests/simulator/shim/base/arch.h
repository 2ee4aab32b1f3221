// Stands before src/base/arch.h: what is assembly there is plain C++ here, so that the compiler reports its accesses too.
// Called by: base/atomics.h, slab/slab.h, by way of the include path (run.py).
#pragma once

#define add_unlocked add_unlocked_in_assembly
#define fetch_add_unlocked fetch_add_unlocked_in_assembly
#define take_and_test take_and_test_in_assembly
#include_next "base/arch.h"
#undef add_unlocked
#undef fetch_add_unlocked
#undef take_and_test

namespace lanemalloc::arch {

inline uint64_t fetch_add_unlocked(std::atomic<uint64_t>& counter, uint64_t by) {
  const uint64_t before = counter.load(std::memory_order_relaxed);
  counter.store(before + by, std::memory_order_relaxed);
  return before;
}

template <class T>
inline void add_unlocked(std::atomic<T>& counter, T by) {
  counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}

inline bool take_and_test(int& count, int some) { return (count -= some) <= 0; }

}  // namespace lanemalloc::arch
