// Compiler facts: how a function is placed, what the linker shows, how far apart shared words lie.
// Called by: everything. Holds no state.
#pragma once

#include <cstddef>
#include <cstdint>

// FAST: on the hit path, always inlined. SLOW: off the hit path, never inlined, kept away from the
// hot code.
#define FAST [[gnu::always_inline]] inline
#define SLOW [[gnu::noinline, gnu::cold]]
#define NOINLINE [[gnu::noinline]]
// AS_DECLARED: not inlined, and called with every argument that it declares, used or not.
#ifdef __clang__
#define AS_DECLARED [[gnu::noinline]]
#else
#define AS_DECLARED [[gnu::noipa]]
#endif
#define EXPORT [[gnu::visibility("default")]]
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

namespace lanemalloc {

// Words that different threads write lie at least this far apart. It is two cache lines, since CPUs
// fetch lines in pairs.
inline constexpr size_t kNoSharing = 128;

// Keeps the compiler from moving memory accesses across this place, and costs no instruction. It
// orders a thread with its own signal handlers and, together with membarrier on the other side,
// with a revoker.
FAST void compiler_fence() { __atomic_signal_fence(__ATOMIC_SEQ_CST); }

}  // namespace lanemalloc
