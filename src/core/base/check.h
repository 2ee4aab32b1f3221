// CHECK stops the process with one line of text if an invariant is broken; DCHECK does so in
// development builds only. Both are async-signal-safe: they format on the stack and call write(2).
#pragma once

#include "core/base/compiler.h"

namespace lanemalloc {
[[noreturn]] SLOW void check_failed(const char* expression, const char* file, int line);
}

#define CHECK(x) (LIKELY(x) ? (void)0 : ::lanemalloc::check_failed(#x, __FILE_NAME__, __LINE__))
#if defined(LANEMALLOC_DCHECK)
#define DCHECK(x) CHECK(x)
#else
#define DCHECK(x) ((void)sizeof(!(x)))
#endif
