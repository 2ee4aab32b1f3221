// Size classes: the sizes that slabs are cut into. Called by: slab, lane, engine. Holds no state;
// all of it is constant.
//
//   class   1 .. 16    sizes 16, 32, 48 .. 256
//   class  17 .. 104   eight steps per doubling up to 512 KiB: at most 12.5 % of a request is added
//   larger             runs of whole blocks, which adds at most 12.5 % too
//
// Up to 1 KiB the class is found by a table of (size + 15) / 16, beyond by the size's highest bits.
//
// No size has class 0. Its bin is always empty, so a request of 0 bytes misses, and so does one
// that is so large that the sum wraps.
#pragma once

#include <array>
#include <bit>

#include "core/base/units.h"

namespace lanemalloc {

enum class SizeClass : uint8_t {};

inline constexpr Bytes kGranule = 16;                            // every object is aligned to it
inline constexpr Bytes kSmallMax = 1024;                         // a hit serves up to here
inline constexpr unsigned kSmallIndexes = kSmallMax / kGranule;  // 1 .. 64
inline constexpr Bytes kExactMax = 256;
inline constexpr unsigned kExactClasses = kExactMax / kGranule;  // 1 .. 16
inline constexpr unsigned kExactShift = 8;                       // 2^8 = kExactMax
inline constexpr unsigned kStepShift = 3;                        // 2^3 steps per doubling
inline constexpr Bytes kSlabMax = Bytes{512} << 10;
// 105, with class 0
inline constexpr unsigned kClassCount = kExactClasses + 1 + (11u << kStepShift);

constexpr unsigned index_of(SizeClass c) { return static_cast<unsigned>(c); }

// The place of a small request's class in kSmallTable. If it is beyond kSmallIndexes, the request
// is not small. It is 0 for 0 bytes and for a sum that wraps.
constexpr Bytes small_index(Bytes size) { return (size + kGranule - 1) / kGranule; }

namespace size_class_tables {

// The class of 0 < size <= kSlabMax, by its highest bits.
constexpr unsigned compute(Bytes size) {
  if (size <= kExactMax) return static_cast<unsigned>(small_index(size));
  // 2^doubling < size
  const unsigned doubling = static_cast<unsigned>(std::bit_width(size - 1)) - 1;
  const unsigned step =
      static_cast<unsigned>((size - 1) >> (doubling - kStepShift)) & ((1u << kStepShift) - 1);
  return kExactClasses + 1 + ((doubling - kExactShift) << kStepShift) + step;
}

}  // namespace size_class_tables

using SmallTable = std::array<uint8_t, kSmallIndexes + 1>;
inline constexpr SmallTable kSmallTable = [] {
  SmallTable table{};
  for (unsigned i = 1; i <= kSmallIndexes; ++i)
    table[i] = static_cast<uint8_t>(size_class_tables::compute(i * kGranule));
  return table;
}();

// The class of 0 < size <= kSlabMax.
constexpr SizeClass class_of(Bytes size) {
  return static_cast<SizeClass>(size <= kSmallMax ? kSmallTable[small_index(size)]
                                                  : size_class_tables::compute(size));
}

namespace size_class_tables {

constexpr Bytes size_of(unsigned index) {
  if (index <= kExactClasses) return index * kGranule;
  const unsigned doubling = kExactShift + ((index - kExactClasses - 1) >> kStepShift);
  const unsigned step = (index - kExactClasses - 1) & ((1u << kStepShift) - 1);
  return (Bytes{1} << doubling) + (step + 1) * (Bytes{1} << (doubling - kStepShift));
}

// A slab is the shortest run of blocks that holds at least four objects and wastes at most a
// sixteenth at its end. For big objects it holds at least one, and wastes at most an eighth.
constexpr BlockCount slab_blocks(Bytes size) {
  const bool is_big = size >= kBlockSize;
  for (BlockCount n = 1;; ++n) {
    const Bytes bytes = bytes_of(n);
    if (bytes / size >= (is_big ? 1 : 4) && bytes % size <= bytes / (is_big ? 8 : 16)) return n;
  }
}

struct Row {
  uint32_t size;      // bytes of an object
  uint32_t capacity;  // objects in a slab
  // Objects that are carved at a time: two pages of them, or one page of memory that was never
  // touched
  uint32_t chunk;
  uint32_t blocks;  // blocks of a slab
};

constexpr std::array<Row, kClassCount> make() {
  std::array<Row, kClassCount> rows{};
  for (unsigned c = 1; c < kClassCount; ++c) {
    const Bytes size = size_of(c);
    const BlockCount blocks = slab_blocks(size);
    const Bytes chunk = size >= 4096 ? 1 : 8192 / size;
    rows[c] = {static_cast<uint32_t>(size), static_cast<uint32_t>(bytes_of(blocks) / size),
               static_cast<uint32_t>(chunk), blocks};
  }
  return rows;
}

inline constexpr std::array<Row, kClassCount> kRows = make();

// Bytes of a slab.
inline constexpr std::array<uint32_t, kClassCount> kSlabBytes = [] {
  std::array<uint32_t, kClassCount> bytes{};
  for (unsigned c = 0; c < kClassCount; ++c)
    bytes[c] = static_cast<uint32_t>(bytes_of(kRows[c].blocks));
  return bytes;
}();

}  // namespace size_class_tables

// Where a slab's objects begin, without a division. Modulo 2^32, the inverse of the size's odd
// factor turns the multiples of that factor into their quotients, and every other number into more
// than any quotient. A rotation does the same for the size's power of two.
// (Source: Granlund and Montgomery, "Division by invariant integers using multiplication", 9.)
class Starts {
 public:
  constexpr Starts() = default;  // nowhere
  constexpr Starts(uint32_t size, uint32_t objects)
      : inverse_(inverse_of(size >> std::countr_zero(size))),
        objects_(objects),
        twos_(std::countr_zero(size)) {}
  // into: bytes from the slab's first object.
  constexpr bool have(Bytes into) const {
    return std::rotr(static_cast<uint32_t>(into) * inverse_, twos_) < objects_;
  }

 private:
  static constexpr uint32_t inverse_of(uint32_t odd) {
    uint32_t inverse = odd;                                    // three bits of it are right
    for (int i = 0; i < 4; ++i) inverse *= 2 - odd * inverse;  // twice as many at each step
    return inverse;
  }
  uint32_t inverse_ = 0;
  uint32_t objects_ = 0;
  int twos_ = 0;
};

namespace size_class_tables {

inline constexpr std::array<Starts, kClassCount> kStarts = [] {
  std::array<Starts, kClassCount> starts{};
  for (unsigned c = 1; c < kClassCount; ++c) starts[c] = {kRows[c].size, kRows[c].capacity};
  return starts;
}();

}  // namespace size_class_tables

constexpr const Starts& starts_of(SizeClass c) { return size_class_tables::kStarts[index_of(c)]; }
constexpr Bytes size_of(SizeClass c) { return size_class_tables::kRows[index_of(c)].size; }
constexpr uint32_t capacity_of(SizeClass c) {
  return size_class_tables::kRows[index_of(c)].capacity;
}
constexpr uint32_t chunk_of(SizeClass c) { return size_class_tables::kRows[index_of(c)].chunk; }
constexpr BlockCount slab_blocks_of(SizeClass c) {
  return size_class_tables::kRows[index_of(c)].blocks;
}

// Big objects have the size of a block or more. Their slabs hold a few of them, most slabs one. No
// big object waits in a bin, and an empty slab is soon a free run.
inline constexpr SizeClass kFirstBig = class_of(kBlockSize);
constexpr bool is_big(SizeClass c) { return c >= kFirstBig; }
inline constexpr unsigned kBinCount = index_of(kFirstBig);  // bins, with that of class 0
inline constexpr Bytes kBinMax = size_of(static_cast<SizeClass>(kBinCount - 1));

// The smallest class whose objects all lie at multiples of `alignment` (a power of two of at most a
// block) and hold `size` bytes; class 0 if there is none.
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
