// Area: where the bins of kinds lie in a lane (core/slab/kind.h). Called by: engine (hits), lane.
// Holds no state: an area is known by its address, 0 if the lane has none.
//
//   area --> [ labels | 0 | bin | bin | table of a heap --> [bin | bin | ..] | .. ]
//             each place has 64 bytes; place 0 is always empty
#pragma once

#include "core/slab/kind.h"

namespace lanemalloc {

struct Area {
  // The blocks of an area. They are addresses: pages that hold no bin or label cost nothing.
  static constexpr BlockCount kBlocks = 18;

  // The bin at that place. Null if the lane has no area, or no table of that heap.
  FAST static Bin* bin(Address area, const BinPlace& place) {
    if (area == 0) return nullptr;
    if (place.index == BinPlace::kNoIndex) return reinterpret_cast<Bin*>(area + place.offset);
    Bin* table = table_at(area, place.offset).load(std::memory_order_acquire);  // [table.acquire]
    return table != nullptr ? table + place.index : nullptr;
  }

  // Finds what a hit asks for, in an area that exists. False: it is not there, is not for hits, or
  // the number is no handle.
  FAST static bool find_bin(Address area, const BinPlace& place, Bin*& bin) {
    if (LIKELY(place.index == BinPlace::kNoIndex))
      return bin = reinterpret_cast<Bin*>(area + place.offset), true;
    return (bin = Area::bin(area, place)) != nullptr;
  }
  FAST static bool find_bin(Address area, const PoolHit& hit, Bin*& bin) {
    const Handle label = label_at(area, Labels::kPools, hit.handle);
    if (UNLIKELY(label != hit.handle) && label != (hit.handle | Labels::kMissed)) return false;
    bin = reinterpret_cast<Bin*>(place_at(area, hit.handle));
    return true;
  }
  FAST static bool find_bin(Address area, const HeapHit& hit, Bin*& bin) {
    if (UNLIKELY(label_at(area, Labels::kHeaps, hit.handle) != hit.handle)) return false;
    const auto& place = *reinterpret_cast<std::atomic<Bin*>*>(place_at(area, hit.handle));
    Bin* table = place.load(std::memory_order_acquire);  // [table.acquire]
    bin = table + hit.index;
    return table != nullptr;
  }

  static std::atomic<Bin*>& table_at(Address area, uint32_t offset) {
    return *reinterpret_cast<std::atomic<Bin*>*>(area + offset);
  }

  // Makes the family's label what it is now. The label may change meanwhile: Kinds::relabel stores
  // the new label, makes every thread pass a barrier, and then looks into each lane. If the barrier
  // falls before the second look here, that look sees the change. If it falls after the look, the
  // store here came before the barrier, and relabel() finds a label here.
  static void give_label(const Family& family, Address area) {
    std::atomic<Handle>* const place = label_of(family, area);
    if (place == nullptr) return;
    Handle label;
    do {
      label = family.label.load(std::memory_order_relaxed);
      place->store(label, std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_seq_cst);
    } while (family.label.load(std::memory_order_relaxed) != label);
  }
  // The same, if the family has a label there.
  static void relabel(const Family& family, Address area) {
    const std::atomic<Handle>* place = label_of(family, area);
    if (place != nullptr && place->load(std::memory_order_relaxed) != 0) give_label(family, area);
  }

 private:
  FAST static Handle label_at(Address area, Bytes labels, Handle handle) {
    using Anywhere [[gnu::aligned(1), gnu::may_alias]] = Handle;
    const auto* begin = reinterpret_cast<const std::byte*>(area);
    const auto* at = reinterpret_cast<const Anywhere*>(begin + labels + Labels::place(handle));
#if defined(__SANITIZE_THREAD__)
    return __atomic_load_n(at, __ATOMIC_RELAXED);
#else
    return *at;
#endif
  }
  FAST static std::byte* place_at(Address area, Handle handle) {
    constexpr Bytes kScale = Labels::kBinBytes / sizeof(Handle);
    return reinterpret_cast<std::byte*>(area) + Labels::kBins + Labels::place(handle) * kScale;
  }
  // Null if the family's number is beyond those that have labels.
  static std::atomic<Handle>* label_of(const Family& family, Address area) {
    const Bytes labels = family.type == Family::Type::kHeap ? Labels::kHeaps : Labels::kPools;
    if (number_of(family.handle) >= Labels::kHits) return nullptr;
    return reinterpret_cast<std::atomic<Handle>*>(area + labels + Labels::place(family.handle));
  }
};

}  // namespace lanemalloc
