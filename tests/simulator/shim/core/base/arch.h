// Stands before src/core/base/arch.h: what is assembly there is plain C++ here, so that the
// compiler reports its accesses too.
// Called by: core/base/atomics.h, core/slab/slab.h, by way of the include path (run.py).
#pragma once

#define add_unlocked add_unlocked_in_assembly
#define take_and_test take_and_test_in_assembly
#include_next "core/base/arch.h"
#undef add_unlocked
#undef take_and_test

namespace lanemalloc::arch {

template <class T>
inline void add_unlocked(std::atomic<T>& counter, T by) {
  counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}

inline bool take_and_test(int& count, int some) { return (count -= some) <= 0; }

}  // namespace lanemalloc::arch
