// Gate: what a thread's slot points to, and all that a hit of malloc or free asks of a lane before
// it may touch the lane. Slot: the one thread-local word. Called by: engine (hits), lane, entries.
//
//   address      0           8            16           24           32                     256
//             +-----------+------------+------------+------------+----------------------+------+
//             | open bins | none: 0    | open owner | none       | what hits by CPU ask | bins |
//             +-----------+------------+------------+------------+----------------------+------+
//   a gate:     ^ [0]                    ^ [16]
//   the same, busy:         ^ [0]                     ^ [16]
//
// Gates lie at multiples of kGateAlignment, so a thread marks its slot busy by storing one byte.
// From then on the slot points eight bytes into the gate, and a signal handler that goes through
// the slot finds the gate closed.
#pragma once

#include <atomic>

#include "core/slab/handle.h"
#include "core/slab/slab.h"

namespace lanemalloc {

// The area that hits in programs find while no hit is allowed. It holds no label, and number 0 has
// no bin.
inline constinit std::byte no_area[Labels::kBins + Labels::kBinBytes]{};

inline constexpr size_t kGateAlignment = 256;
inline constexpr uint8_t kBusyByte = 8;

enum class Entry : uint8_t { kOwned, kShared, kPerCpu };

// Gate::here holds one of these, or a CPU's number and the lane's id. See entry/percpu.h.
inline constexpr uint32_t kTakenHere = 0xFFFF0000;
inline constexpr uint32_t kRevokedHere = 0xFFFF0001;
inline constexpr uint32_t kNotHere = 0xFFFF0002;
static_assert(kMostNumbers < 0xFFFF);

// What a lane has of a class: the slab that the bin's objects lie in, and the bin.
struct HitBin {
  Slab* current;
  BinHead hit;

  // No object waits in the bin. extent: where the new current slab lies.
  void set_slab(Slab* slab, Extent extent) {
    current = slab;
    hit.end = slab != nullptr ? extent.begin + extent.bytes : 0;
    hit.end_link = slab != nullptr ? Link::to(hit.end).bits : 0;
    hit.first = slab != nullptr ? Link::none().bits : 0;
  }
  bool is_empty() const { return hit.first == hit.end_link - hit.end; }
};

// For each small_index(), the place of the bin of its class, in words from the first bin.
inline constexpr SmallTable kBinOfSmall = [] {
  SmallTable table{};
  for (size_t i = 0; i < table.size(); ++i)
    table[i] = static_cast<uint8_t>(kSmallTable[i] * (sizeof(HitBin) / sizeof(uint64_t)));
  return table;
}();
static_assert(kSmallTable.back() * (sizeof(HitBin) / sizeof(uint64_t)) <= 0xFF);

struct alignas(kGateAlignment) Gate {
  // A request whose small_index() is below this may be a hit. 0 while no hit is allowed.
  std::atomic<size_t> open_bins{0};
  const size_t no_bins = 0;
  // A hit may free the objects of this page-map owner. kClosed while no hit is allowed.
  alignas(8) std::atomic<uint16_t> open_owner{static_cast<uint16_t>(Owner::kClosed)};
  alignas(8) const uint16_t no_owner = static_cast<uint16_t>(Owner::kClosed);

  const SmallTable bin_of_small = kBinOfSmall;  // here, so that a hit has it at hand

  // What hits by CPU may serve (entry/percpu.h): requests below this index, and pointers below this
  // distance. 0 if no hit is allowed.
  size_t here_bins = 0;
  const size_t no_bins_here = 0;
  std::atomic<Bytes> here_bytes{0};
  const Bytes no_bytes_here = 0;
  // In a lane that is entered by its CPU, while the lane is free: the CPU's number << 16 | the
  // lane's id.
  std::atomic<uint32_t> here{kNotHere};
  Entry how = Entry::kOwned;  // how threads enter the lane
  // Where the lane's bins of kinds lie (core/slab/kind.h), for hits in programs. no_area while no
  // hit is allowed, and if there are no such bins.
  std::atomic<const void*> area_of_hits{lanemalloc::no_area};
  const void* const no_area_of_hits = lanemalloc::no_area;

  // A deferred free puts its object here, if this is below deferred_end. deferred_end is 0 while no
  // hit is allowed (core/reclaim/ring.h).
  std::atomic<void**> deferred_next{nullptr};
  std::atomic<Address> deferred_end{0};
  const Address no_deferred_end = 0;
  // What `area` is, for hits by CPU: the address and, in the bits below it, the lane's id. 0 if no
  // hit is allowed, and if there is no area.
  std::atomic<uint64_t> area_here{0};
  const uint64_t no_area_here = 0;
  // The same as area_of_hits, for the library's own hits; 0 instead of no_area.
  std::atomic<Address> area{0};
  const Address no_area = 0;
};
static_assert(sizeof(Gate) == kGateAlignment);
static_assert(offsetof(Gate, no_area_of_hits) == offsetof(Gate, area_of_hits) + kBusyByte);
static_assert(offsetof(Gate, no_area_here) == offsetof(Gate, area_here) + kBusyByte);
static_assert(offsetof(Gate, no_area) == offsetof(Gate, area) + kBusyByte);
static_assert(offsetof(Gate, no_deferred_end) == offsetof(Gate, deferred_end) + kBusyByte);
static_assert(offsetof(Gate, no_bins_here) == offsetof(Gate, here_bins) + kBusyByte);
static_assert(offsetof(Gate, no_bytes_here) == offsetof(Gate, here_bytes) + kBusyByte);
static_assert(offsetof(Gate, no_bins) == offsetof(Gate, open_bins) + kBusyByte);
static_assert(offsetof(Gate, no_owner) == offsetof(Gate, open_owner) + kBusyByte);
static_assert(std::endian::native == std::endian::little, "the busy byte is the address's lowest");

// The gate of a lane, with the bins that a hit finds behind it.
struct LaneGate : Gate {
  // Aligned so that no bin crosses a cache line, and none lies in the gate's own padding.
  alignas(2 * sizeof(HitBin)) HitBin bins[kBinCount]{};

  // The bin at this place (kBinOfSmall).
  FAST static BinHead& hit_bin(Gate* gate, Bytes place) {
    const Address bins = reinterpret_cast<Address>(gate) + sizeof(Gate);
    return reinterpret_cast<HitBin*>(bins + place * sizeof(Address))->hit;
  }
};

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
static_assert(offsetof(LaneGate, bins) == sizeof(Gate));
#pragma GCC diagnostic pop

// A thread's word. While the thread is outside, it points to the gate of the thread's lane. While
// the thread is inside, it points to the same gate marked busy. Or it points to one of the three
// gates below, which are never open.
using Slot = std::atomic<Gate*>;

inline constinit Gate no_lane_gate;  // the thread has no lane yet
inline constinit Gate exited_gate;   // the thread has given its lane back
// The thread forks. It does not wait for what it may not find in the child.
inline constinit Gate forking_gate;

// For a gate that is not busy.
inline bool names_lane(const Gate* gate) {
  return gate != &no_lane_gate && gate != &exited_gate && gate != &forking_gate;
}
inline bool is_busy(const Gate* gate) {
  return (reinterpret_cast<uintptr_t>(gate) & (kGateAlignment - 1)) == kBusyByte;
}

}  // namespace lanemalloc
