// A walk by tables that remembers, for each return address, where the caller's frame lies. Called
// by: unwind.cpp.
// Locking: none. Async-signal-safe; keeps errno.
#pragma once

#include "base/units.h"

namespace lanemalloc {

// A return address, and what the registers are once that call has returned.
struct Caller {
  Address code;
  Address stack_pointer;
  Address frame_pointer;
};

// Writes at most `most` return addresses, `caller`'s first, and returns how many. 0 if there is a
// frame, before so many, that only a full interpreter of the tables could leave: a signal
// handler's, one of code without tables, one of unusual code.
unsigned walk_by_rules(Caller caller, Address* found, unsigned most);

}  // namespace lanemalloc
