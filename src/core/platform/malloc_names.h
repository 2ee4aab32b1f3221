// What the C library's malloc.h has beside malloc: glibc has mallopt, mallinfo, and other names for
// its functions (__libc_malloc). musl has none of these.
// Called by: abi/malloc.cpp, abi/stats.cpp.
#pragma once

#include <malloc.h>

#if defined(__GLIBC__)
#define LANEMALLOC_HAS_GLIBC_NAMES 1

namespace lanemalloc {

#if __GLIBC_PREREQ(2, 33)
using WideInfo = struct mallinfo2;
#else
struct WideInfo {
  size_t arena, ordblks, smblks, hblks, hblkhd, usmblks, fsmblks, uordblks, fordblks, keepcost;
};
#endif

}  // namespace lanemalloc
#endif
