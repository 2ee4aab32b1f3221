// Time as it is read around calls: the CPU's counter if it is the same on all CPUs, else the
// system's clock.
// Called by: trace.cpp, collect.cpp, replay.cpp.
#pragma once

#include <stdint.h>
#include <time.h>

namespace lanemalloc::trace {

inline uint64_t clock_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000U + static_cast<uint64_t>(now.tv_nsec);
}

#if defined(__x86_64__)
inline constexpr bool kHasCounter = true;
// Reads the counter only when the instructions before it are done: a malloc, or the load that
// brought the pointer which is freed now from another thread. The instructions after a free may
// begin early, but other threads see their effects only when all before them have retired, this one
// too.
inline uint64_t counter() {
  unsigned cpu;
  return __builtin_ia32_rdtscp(&cpu);
}
#elif defined(__aarch64__)
inline constexpr bool kHasCounter = true;
inline uint64_t counter() {
  uint64_t ticks;
  asm volatile("isb\n\tmrs %0, cntvct_el0" : "=r"(ticks)::"memory");
  return ticks;
}
#else
inline constexpr bool kHasCounter = false;
inline uint64_t counter() { return clock_ns(); }
#endif

}  // namespace lanemalloc::trace
