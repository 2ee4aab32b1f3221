// Counts the live objects of lanemalloc, and hides values from the compiler. Used by: the programs
// of tests/cpp.
#ifndef TESTS_CPP_MEMORY_H_
#define TESTS_CPP_MEMORY_H_

#include <malloc.h>

#include <cerrno>
#include <cstddef>

#include "check.h"

#if defined(LANEMALLOC_PREFIXED)
extern "C" struct mallinfo2 lane_mallinfo2();
inline struct mallinfo2 allocator_info() { return lane_mallinfo2(); }
#else
inline struct mallinfo2 allocator_info() { return mallinfo2(); }
#endif

inline std::size_t live_objects() {
  const struct mallinfo2 info = allocator_info();
  return info.ordblks + info.hblks;
}

// The first run may leave something behind for good, as locales do.
template <class Body>
void expect_no_leaks(Body body) {
  body();
  const std::size_t before = live_objects();
  body();
  const std::size_t after = live_objects();
  if (before != after) std::printf("%zu live objects before, %zu after\n", before, after);
  CHECK(before == after);
}

inline std::size_t hidden(std::size_t n) {
  __asm__ volatile("" : "+r"(n));
  return n;
}

#endif  // TESTS_CPP_MEMORY_H_
