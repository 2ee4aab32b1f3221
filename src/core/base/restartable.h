// The outcome of a restartable sequence: a few instructions, the last of them a single store, that
// are one step for all threads of a CPU; and the lists that such a step may change. Called by:
// base/arch_*_rseq.h, platform, slab.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/base/compiler.h"

namespace lanemalloc {

enum class Restartable : uint8_t {
  kDone,
  kElsewhere,    // the word was not the number of this CPU
  kEmpty,        // the list was empty, or led out of its slab
  kInterrupted,  // it was interrupted before the store: nothing happened
  kLast,         // the countdown would have come to its end
};

// A list of a slab's free objects, linked through their first words. All of them lie before `end`.
// A link is an address less a secret number (core/slab/object.h), so `first` less `end_link` is how
// far before `end` the first object begins. All zero: there is no slab, and nothing is in reach.
// The upper 16 bits of every link are kLinkTag.
inline constexpr uintptr_t kLinkTag = 0xF5C1;
struct BinHead {
  // How far before `end` a hit looks for its object: the bytes of a block.
  static constexpr uintptr_t kReach = 65536;

  uintptr_t end;
  uintptr_t end_link;  // what a link to `end` would be
  uintptr_t first;     // link to the first object

  // Takes the first object, and clears its first word. 0 if it lies out of reach.
  FAST uintptr_t pop() {
    using Word [[gnu::may_alias]] = uintptr_t;
    const uintptr_t before_end = first - end_link;
    if (before_end < 0 - kReach) return 0;
    const uintptr_t object = end + before_end;
    first = *reinterpret_cast<Word*>(object);
    *reinterpret_cast<Word*>(object) = 0;
    return object;
  }
};

// A list that is linked through its objects' first words, and a count that goes down. A step may
// write both: they are one aligned unit that one instruction stores.
struct alignas(16) CountedList {
  uintptr_t first;  // link to the first object
  int32_t countdown;
  uint32_t unused;
};

}  // namespace lanemalloc

// How often the kernel has interrupted a sequence. The assembly adds to it.
extern "C" std::atomic<uint64_t> lanemalloc_restarts;
