// vfork, and clone if the child has the parent's memory and thread-local storage. While such a
// child may allocate, the slot that both have is closed (docs/design/0005-fork.md). This file is an
// object of its own: a program that is linked statically and never asks for these functions has the
// C library's.
// Locking: none.
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/types.h>

#include "core/base/arch.h"
#include "core/platform/c_library.h"
#include "process/process.h"

namespace lanemalloc {

extern "C" {

[[gnu::used, gnu::visibility("hidden")]] Gate* lanemalloc_vfork_begins() {
  return process_engine.fork().close_slot(thread_slot);
}
// Runs in the parent, once the child has ended or executed a program.
[[gnu::used, gnu::visibility("hidden")]] pid_t lanemalloc_vfork_ends(Gate* gate, ssize_t result) {
  process_engine.fork().open_slot(thread_slot, gate);
  if (result >= 0) return static_cast<pid_t>(result);
  errno = static_cast<int>(-result);
  return -1;
}

LANEMALLOC_VFORK(vfork, lanemalloc_vfork_begins, lanemalloc_vfork_ends);

// If the parent goes on at once, the slot stays closed for good, since nothing tells when the child
// is over. The thread works in overflow lanes from then on.
EXPORT int clone(int (*run)(void*), void* stack, int flags, void* argument, ...) {
  va_list more;
  va_start(more, argument);
  auto* const parent_tid = va_arg(more, void*);
  auto* const tls = va_arg(more, void*);
  auto* const child_tid = va_arg(more, void*);
  va_end(more);
  if ((flags & (CLONE_VM | CLONE_SETTLS)) != CLONE_VM)
    return next_clone()(run, stack, flags, argument, parent_tid, tls, child_tid);
  Gate* const gate = process_engine.fork().close_slot(thread_slot);
  const int result = next_clone()(run, stack, flags, argument, parent_tid, tls, child_tid);
  if (result < 0 || (flags & CLONE_VFORK) != 0) process_engine.fork().open_slot(thread_slot, gate);
  return result;
}

}  // extern "C"

}  // namespace lanemalloc
