// Picks the one assembly file of this architecture.
#pragma once

#if defined(__x86_64__)
#include "core/base/arch_x86_64.h"       // IWYU pragma: export
#include "core/base/arch_x86_64_rseq.h"  // IWYU pragma: export
#elif defined(__aarch64__)
#include "core/base/arch_aarch64.h"       // IWYU pragma: export
#include "core/base/arch_aarch64_rseq.h"  // IWYU pragma: export
#else
#error "lanemalloc runs on x86-64 and aarch64; another architecture needs its own base/arch_*.h"
#endif
