// What came of a restartable sequence: a few instructions, the last of them a single store, that are one step for all
// threads of a CPU. Called by: base/arch_*_rseq.h, platform.
#pragma once

#include <atomic>
#include <cstdint>

namespace lanemalloc {

enum class Restartable : uint8_t {
  kDone,
  kElsewhere,    // the word was not the number of this CPU
  kEmpty,        // the list was
  kInterrupted,  // before the store: nothing happened
};

}  // namespace lanemalloc

// How often the kernel has interrupted one: the assembly adds to it.
extern "C" std::atomic<uint64_t> lanemalloc_restarts;
