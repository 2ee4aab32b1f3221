// Handle: what a program holds for a heap or a pool. It is a number that no address can be. So the
// hits in programs (include/lanemalloc/hit.h) can tell whether a value is a handle without looking
// where it points.
// Labels: in these each lane says which handles its bins are for.
// Called by: kind, lane, engine, heap, pool, abi. No state.
//
//   handle   byte 7   6        5      4      3      2        1   0
//            F8       10000    .. generation, number >> 13 ..  (number & 8191) * 8
//            bits 2..0 of bytes 7 to 2 are zero
//
//   area --> [ labels of pools | labels of heaps | bins and tables, 64 bytes per number ]
//             ^ + lower half-word of a handle     ^ + lower half-word * 8
//
// A hit reads the eight bytes at the labels' start + the lower half-word of the value that it is
// given, and compares them with the whole value. All 65,536 places lie in the area, so no value
// faults. The two are equal only for a live handle:
// - At a multiple of 8 lies a label, or 0. A label is the handle itself, or has its kMissed bit,
//   which is zero in what is compared.
// - At 8k + d, 0 < d < 8, the value would have to be 8k + d in its lower half-word, so byte d of
//   the label there must end in the bits of d. In bytes 2 to 7 these bits are zero. In byte 1 they
//   can be 001. Then byte 1 of the value is byte 2 of the label, which ends in zeros, and would
//   have to be byte 1 of 8k + 1, which is the label's own byte 1. If there is no label, the value
//   would be 0 in its lower bytes.
// - 0 finds 0, and then an empty bin or no table: no heap or pool has number 0.
//
// A number beyond kHits has no label in any lane: calls for these heaps and pools go out of line.
#pragma once

#include <cstddef>

#include "core/base/units.h"

namespace lanemalloc {

using Handle = uintptr_t;

struct Labels {
  static constexpr Bytes kPools = 0;
  static constexpr Bytes kHeaps = 65536;
  static constexpr Bytes kBins = 131072;  // what lies behind the labels
  static constexpr Bytes kBinBytes = 64;
  static constexpr uint32_t kHits = 65536 / sizeof(Handle);  // numbers with a label

  // In a label: hits in programs must miss, the library's own may hit. No handle has this bit.
  static constexpr Handle kMissed = 1;

  static constexpr Bytes place(Handle handle) { return static_cast<uint16_t>(handle); }
};

// number: the place in lanes' areas, below 2 * kHits. generation: its lower 23 bits are kept.
constexpr Handle make_handle(uint32_t number, uint64_t generation) {
  uint64_t left = generation * 2 + number / Labels::kHits;
  Handle handle = (Handle{0xF880} << 48) | (number % Labels::kHits * sizeof(Handle));
  for (int byte = 2; byte < 7; ++byte, left >>= 5)
    handle |= Handle{left & (byte == 6 ? 0xF : 0x1F)} << (8 * byte + 3);
  return handle;
}
static_assert(make_handle(5, 0) == 0xF880000000000028 &&
              make_handle(8192 + 5, 1) == 0xF880000000180028);
static_assert((make_handle(16383, ~uint64_t{0}) & 0x0707070707070007) == 0);

// The number of any value, if it is a handle.
constexpr uint32_t number_of(Handle handle) {
  return static_cast<uint32_t>(Labels::place(handle) / sizeof(Handle) +
                               (handle >> 19 & 1) * Labels::kHits);
}
static_assert(number_of(make_handle(16383, 77)) == 16383 &&
              number_of(make_handle(1, 1u << 30)) == 1);

}  // namespace lanemalloc
