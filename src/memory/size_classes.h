// Size classes: what sizes slabs are cut into. Called by: slab, lane, engine. Holds no state; all of it is constant.
//
//   class   1 ..  64   sizes 16, 32, 48 .. 1024: the index is (size + 15) / 16, so that the hit path needs no table
//   class  65 .. 136   eight steps a doubling up to 512 KiB: at most 12.5 % of a request is added
//   larger             runs of whole blocks, which adds at most 12.5 % too
//
// Class 0 is nobody's: its bin is always empty, so a request of 0 bytes (and one so large that the sum wraps) misses.
#pragma once

#include <array>
#include <bit>

#include "base/units.h"

namespace lanemalloc {

enum class SizeClass : uint8_t {};

inline constexpr Bytes kGranule = 16;  // every object is aligned to it
inline constexpr Bytes kSmallMax = 1024;
inline constexpr unsigned kSmallClasses = kSmallMax / kGranule;  // 1 .. 64
inline constexpr unsigned kStepShift = 3;                        // 2^3 steps a doubling
inline constexpr Bytes kSlabMax = Bytes{512} << 10;
inline constexpr unsigned kClassCount = kSmallClasses + 1 + (9u << kStepShift);  // 137, with class 0

constexpr unsigned index_of(SizeClass c) { return static_cast<unsigned>(c); }

// The index of a small request's bin; beyond kSmallClasses: not small. 0 for 0 bytes and for a sum that wraps.
constexpr Bytes small_index(Bytes size) { return (size + kGranule - 1) / kGranule; }

// The class of 0 < size <= kSlabMax.
constexpr SizeClass class_of(Bytes size) {
  if (size <= kSmallMax) return static_cast<SizeClass>(small_index(size));
  const unsigned doubling = static_cast<unsigned>(std::bit_width(size - 1)) - 1;  // 2^doubling < size
  const unsigned step =
      static_cast<unsigned>((size - 1) >> (doubling - kStepShift)) & ((1u << kStepShift) - 1);
  return static_cast<SizeClass>(kSmallClasses + 1 + ((doubling - 10) << kStepShift) + step);
}

namespace size_class_tables {

constexpr Bytes size_of(unsigned index) {
  if (index <= kSmallClasses) return index * kGranule;
  const unsigned doubling = 10 + ((index - kSmallClasses - 1) >> kStepShift);
  const unsigned step = (index - kSmallClasses - 1) & ((1u << kStepShift) - 1);
  return (Bytes{1} << doubling) + (step + 1) * (Bytes{1} << (doubling - kStepShift));
}

// A slab is the shortest run of blocks that holds at least four objects, two of the largest sizes, and wastes at most a
// sixteenth at its end.
constexpr BlockCount slab_blocks(Bytes size) {
  const Bytes least = size > kBlockSize ? 2 : 4;
  for (BlockCount n = 1;; ++n) {
    const Bytes bytes = bytes_of(n);
    if (bytes / size >= least && bytes % size <= bytes / 16) return n;
  }
}

struct Row {
  uint32_t size;      // bytes of an object
  uint32_t capacity;  // objects in a slab
  uint32_t chunk;     // objects that are carved at a time: a page or two
  uint32_t blocks;    // blocks of a slab
};

constexpr std::array<Row, kClassCount> make() {
  std::array<Row, kClassCount> rows{};
  for (unsigned c = 1; c < kClassCount; ++c) {
    const Bytes size = size_of(c);
    const BlockCount blocks = slab_blocks(size);
    const Bytes chunk = size >= 4096 ? 1 : (size < 128 ? 4096 : 8192) / size;
    rows[c] = {static_cast<uint32_t>(size), static_cast<uint32_t>(bytes_of(blocks) / size),
               static_cast<uint32_t>(chunk), blocks};
  }
  return rows;
}

inline constexpr std::array<Row, kClassCount> kRows = make();

}  // namespace size_class_tables

constexpr Bytes size_of(SizeClass c) { return size_class_tables::kRows[index_of(c)].size; }
constexpr uint32_t capacity_of(SizeClass c) { return size_class_tables::kRows[index_of(c)].capacity; }
constexpr uint32_t chunk_of(SizeClass c) { return size_class_tables::kRows[index_of(c)].chunk; }
constexpr BlockCount slab_blocks_of(SizeClass c) { return size_class_tables::kRows[index_of(c)].blocks; }

// The smallest class whose objects all lie at multiples of `alignment` (a power of two of at most a block) and hold
// `size` bytes; class 0 if there is none.
constexpr SizeClass aligned_class_of(Bytes size, Bytes alignment) {
  const Bytes wanted = round_up(size == 0 ? 1 : size, alignment);
  if (wanted < size || wanted > kSlabMax) return SizeClass{0};
  for (unsigned c = index_of(class_of(wanted)); c < kClassCount; ++c)
    if (size_class_tables::kRows[c].size % alignment == 0) return static_cast<SizeClass>(c);
  return SizeClass{0};
}

static_assert(class_of(kSlabMax) == static_cast<SizeClass>(kClassCount - 1));
static_assert(size_of(class_of(kSlabMax)) == kSlabMax);
static_assert(kClassCount <= 256, "a class fits the page map's eight bits");

}  // namespace lanemalloc
