// A walk by tables that remembers, for each return address, where the caller's frame lies. Called
// by: unwind.cpp.
// Locking: none. Async-signal-safe; keeps errno.
#pragma once

#include "core/base/units.h"

namespace lanemalloc {

// A return address, and the values of the registers once that call has returned.
struct Caller {
  Address code;
  Address stack_pointer;
  Address frame_pointer;
};

// Writes at most `most` return addresses, `caller`'s first, and returns how many. 0 if one of these
// frames needs a full interpreter of the tables: a signal handler's frame, or one of unusual code.
// Goes beyond code without tables as far as it can.
unsigned walk_by_rules(Caller caller, Address* found, unsigned most);

}  // namespace lanemalloc
