// The outcome of a restartable sequence: a few instructions, the last of them a single store, that
// are one step for all threads of a CPU. Called by: base/arch_*_rseq.h, platform, slab.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lanemalloc {

enum class Restartable : uint8_t {
  kDone,
  kElsewhere,    // the word was not the number of this CPU
  kEmpty,        // the list was empty
  kInterrupted,  // it was interrupted before the store: nothing happened
  kLast,         // the countdown would have come to its end
};

// A list that is linked through its objects' first words, and a count that goes down. A step may
// write both: they are one aligned unit that one instruction stores.
struct alignas(16) CountedList {
  void* head;
  int32_t countdown;
  uint32_t unused;
};

}  // namespace lanemalloc

// How often the kernel has interrupted a sequence. The assembly adds to it.
extern "C" std::atomic<uint64_t> lanemalloc_restarts;
