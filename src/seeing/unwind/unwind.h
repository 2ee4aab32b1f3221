// Where a thread is: the return addresses on its stack. Called by: Sampler, through a pointer to
// capture_stack; the abi layer, which prepares. Locking: none of its own; see unwind.cpp for the
// locks that the C library takes.
#pragma once

#include "core/base/units.h"

namespace lanemalloc {

enum class Unwinding : uint8_t {
  // By the tables that compilers write for exceptions. Every program has them, even an optimised
  // one.
  kTables,
  // By frame pointers. This is faster by far, but goes only as far as all functions keep them
  // (-fno-omit-frame-pointer).
  kFrames,
};

// Makes captures possible, in this way from now on, or by tables if the allocator itself was
// compiled without frame pointers. Returns which way it is. Only a thread that holds nothing of the
// allocator's may call it: with kTables the C library loads a library (libgcc_s), for which it
// allocates. Further calls are quick. A program that has no tables yet (linked with -static, in its
// first constructors) has no captures until this is called again.
Unwinding prepare_unwinding(Unwinding how);

// True if prepare_unwinding() may be called before the program's constructors have run. A static
// program has no header that leads to its tables: one of its first constructors registers them, and
// without them the C library's way ends the process.
bool may_prepare_early();

// Writes at most `most` return addresses, the innermost first, and returns how many. If the
// allocator is a library of its own, its functions are left out. If it is linked into a program,
// they are there, except this one. There are none before prepare_unwinding(). Async-signal-safe;
// keeps errno.
unsigned capture_stack(Address* frames, unsigned most);

}  // namespace lanemalloc
