// Whether memory may be read that nothing has promised. Called by: unwind.cpp, unwind_rules.cpp.
// Locking: none. Async-signal-safe; keeps errno.
#pragma once

#include <errno.h>
#include <sys/syscall.h>

#include "core/base/arch.h"
#include "core/base/units.h"

namespace lanemalloc {

// True if the 8-byte word at an aligned address may be read. The kernel reads the signals to be
// blocked before it finds that this is no way to block them. Of all calls that look at memory, this
// is the one that no sandbox forbids; if one does, nothing is readable. (Source: Abseil.)
inline bool is_readable(Address word) {
  constexpr long kNoWay = ~0L;
  constexpr long kSignalSetSize = 8;
  return arch::system_call(SYS_rt_sigprocmask, kNoWay, static_cast<long>(word), 0,
                           kSignalSetSize) == -EINVAL;
}

}  // namespace lanemalloc
