// Strong and plain units of the allocator. Block 0 is the first of the region.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lanemalloc {

using Bytes = size_t;
using Address = uintptr_t;  // of the region or its metadata; 0 is "none"

using BlockIndex = uint32_t;
using BlockCount = uint32_t;

inline constexpr unsigned kBlockShift = 16;
inline constexpr Bytes kBlockSize = Bytes{1} << kBlockShift;  // 64 KiB

constexpr BlockCount blocks_for(Bytes bytes) {
  return static_cast<BlockCount>((bytes + kBlockSize - 1) >> kBlockShift);
}
constexpr Bytes bytes_of(BlockCount blocks) { return Bytes{blocks} << kBlockShift; }

constexpr Bytes round_up(Bytes n, Bytes to) { return (n + to - 1) & ~(to - 1); }
constexpr Bytes round_down(Bytes n, Bytes to) { return n & ~(to - 1); }
constexpr bool is_power_of_two(Bytes n) { return n != 0 && (n & (n - 1)) == 0; }

// The owner of a block: what the page map's owner field holds.
enum class Owner : uint16_t {
  kNobody = 0,     // free, or never committed
  kLarge = 1,      // a large allocation starts here
  kDepot = 2,      // a slab between two lanes
  kFirstLane = 3,  // lanes: 3 .. 0x7FFF
  // Beside any of these: memory of a program's own kind (core/slab/kind.h), which malloc's free
  // does not know.
  kPrivate = 0x8000,
  kClosed = 0xFFFF  // a gate's id while it is closed; owns nothing
};

constexpr bool is_of_malloc(Owner owner) {
  return owner >= Owner::kLarge && owner < Owner::kPrivate;
}
constexpr bool is_private(Owner owner) {
  return owner >= Owner::kPrivate && owner != Owner::kClosed;
}
constexpr Owner private_of(Owner owner) {
  return static_cast<Owner>(static_cast<uint16_t>(owner) | static_cast<uint16_t>(Owner::kPrivate));
}
// The same owner, for memory of malloc.
constexpr Owner public_of(Owner owner) {
  return static_cast<Owner>(static_cast<uint16_t>(owner) & ~static_cast<uint16_t>(Owner::kPrivate));
}
constexpr bool is_lane(Owner owner) {
  return owner >= Owner::kFirstLane && owner < Owner::kPrivate;
}
constexpr bool is_slab(Owner owner) { return is_lane(owner) || owner == Owner::kDepot; }

}  // namespace lanemalloc
