// Where a thread is: the return addresses on its stack. Called by: Sampler, through a pointer to
// capture_stack; the abi layer, which prepares. Locking: none of its own; see unwind.cpp for what
// the C library takes.
#pragma once

#include "base/units.h"

namespace lanemalloc {

enum class Unwinding : uint8_t {
  // By the tables that compilers write for exceptions: every program has them, also where it is
  // optimised
  kTables,
  // By frame pointers: faster by far, but only as far as all functions keep them
  // (-fno-omit-frame-pointer)
  kFrames,
};

// Makes captures possible, in this way from now on, or by tables where the allocator itself was
// compiled without frame pointers; returns which it is. To be called by a thread that holds nothing
// of the allocator's: with kTables the C library loads a library (libgcc_s), for which it
// allocates. Again is quick. A program without tables as yet (linked with -static, in its first
// constructors) has no captures until this is called again.
Unwinding prepare_unwinding(Unwinding how);

// Whether that may be done before the program's constructors have run. A static program has no
// header that leads to its tables: one of its first constructors registers them, and without them
// the C library's way ends the process.
bool may_prepare_early();

// Writes at most `most` return addresses, the innermost first, and returns how many. The
// allocator's own functions are left out, where it is a library of its own; where it is linked into
// a program they are there, but for this one. None before prepare_unwinding(). Async-signal-safe;
// keeps errno.
unsigned capture_stack(Address* frames, unsigned most);

}  // namespace lanemalloc
