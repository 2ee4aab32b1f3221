// Region: the address range that all memory comes from, cut into blocks of 64 KiB, and what is known of each block.
// Called by: everything above. Locking: none; fresh blocks are taken by one atomic step, so a signal handler can always
// have some.
//
//   metadata (reserved, opened as the frontier grows)                    body (claimed block by block)
//   +----------+----------------+-----------+-----------------------+    +---------------------------+---------- - - -
//   | page map | block states   | lanes     | object bits (checked) |    | blocks in use or free     | never touched
//   +----------+----------------+-----------+-----------------------+    +---------------------------+---------- - - -
//     8 + 1 B    128 B a block                512 B a block                                       frontier
//     a block
//
// The page map is read by every thread that frees and written only when a block changes hands; a block's state belongs
// to its owner alone. Both lie outside the memory that programs write to. Any address of the body may be looked up:
// blocks that were never used read as "nobody's".
//
// The body is not reserved: its addresses are claimed when they are first used, at a place where nobody else maps
// anything (docs/design/0002-claimed-not-reserved.md).
#pragma once

#include <atomic>

#include "base/atomics.h"
#include "base/check.h"
#include "base/contention.h"
#include "memory/size_classes.h"
#include "platform/platform.h"

namespace lanemalloc {

// What the page map says of one block, in eight bytes: bits 0-15 the owner, 16-63 the address of the state of the slab's
// first block. (The size class lies in a byte array beside it; a hit does not need it.)
class MapEntry {
 public:
  constexpr MapEntry() = default;
  constexpr explicit MapEntry(uint64_t bits) : bits_(bits) {}
  constexpr MapEntry(Owner owner, Address state)
      : bits_(static_cast<uint64_t>(owner) | uint64_t{state} << 16) {}

  Owner owner() const { return static_cast<Owner>(static_cast<uint16_t>(bits_)); }
  FAST void* state() const { return reinterpret_cast<void*>(bits_ >> 16); }
  uint64_t bits() const { return bits_; }
  bool is_owned_by(uint16_t owner) const { return static_cast<uint16_t>(bits_) == owner; }

 private:
  uint64_t bits_ = 0;
};

// A block's state: what it is used for decides what its first part holds (RunState, Slab).
enum class BlockKind : uint8_t {
  kUnknown,  // never used, or inside a run
  kUsed,     // first or last block of a run in use
  kDirty,    // first or last block of a free run: holds old data
  kClean,    // the same: reads as zeros, costs no memory
  kAbsent,   // the same: not claimed
};

// Neighbours may be two lanes', so they do not share a pair of lines.
struct alignas(kNoSharing) BlockState {
  static constexpr size_t kOwnerPart = 112;
  std::byte owner_part[kOwnerPart];
  std::atomic<BlockKind> kind;
  uint8_t unused[3];
  uint32_t length;  // blocks of the run; in its first and last block
};
static_assert(sizeof(BlockState) % kNoSharing == 0);

template <class P>
class Region {
 public:
  static constexpr BlockIndex kNoBlock = ~BlockIndex{0};
  static constexpr Bytes kBitsPerBlock = kBlockSize / kGranule / 8;  // bytes of object bits a block

  // Reserves the metadata. False without address space; may be called again.
  bool start(Bytes lanes, bool object_bits) {
    const Bytes limit = P::address_limit();
    Bytes body = std::bit_ceil(P::physical_memory()) * 4;
    if (body < kSmallestBody) body = kSmallestBody;
    if (limit < body / 2) body = round_up(limit * 2, kHugePage);
    if (body > kLargestBody) body = kLargestBody;
    for (; body >= kHugePage; body = round_down(body / 2, kBlockSize)) {
      const BlockCount blocks = static_cast<BlockCount>(body >> kBlockShift);
      const Bytes map = round_up(blocks * sizeof(uint64_t), kBlockSize);
      const Bytes classes = round_up(blocks * sizeof(SizeClass), kBlockSize);
      const Bytes states = round_up(blocks * sizeof(BlockState), kBlockSize);
      const Bytes bits = object_bits ? blocks * kBitsPerBlock : 0;
      const Bytes meta = round_up(map + classes + states + lanes + bits + kColours, kHugePage);
      const Address at = P::reserve(meta, body);
      if (at == 0) continue;
      if (!P::make_readable(at, map + classes)) {
        P::release(at, meta);
        continue;
      }
      map_ = at;
      classes_ = at + map;
      states_ = classes_ + classes + kStatesColour;
      lanes_ = states_ + states + kLanesColour;
      bits_ = object_bits ? lanes_ + lanes : 0;
      block_count_ = blocks;
      base_ = at + meta;
      map_from_0_ = map_ - (base_ >> kBlockShift) * sizeof(uint64_t);
      classes_from_0_ = classes_ - (base_ >> kBlockShift) * sizeof(SizeClass);
      bytes_ = body;
      set_hits(true);
      return true;
    }
    return false;
  }

  // The body.
  Address base() const { return base_; }
  Bytes bytes() const { return bytes_; }
  // bytes(), as a hit of free() asks for it; 0 while lanes are entered by the CPU's number, so that hits go there.
  FAST Bytes hit_bytes() const { return hit_load(hit_bytes_); }
  void set_hits(bool on) {
    const Bytes bytes = on ? bytes_ : 0;
    if (hit_bytes_.load(std::memory_order_relaxed) != bytes)
      hit_bytes_.store(bytes, std::memory_order_relaxed);
  }
  // Distance of an address from the base; at least bytes() for addresses that are not of the body.
  FAST Bytes distance(const void* p) const { return reinterpret_cast<Address>(p) - base_; }
  // Of any address: nobody owns what lies outside the body.
  FAST MapEntry entry_for(const void* p) const {
    return LIKELY(distance(p) < bytes_) ? entry_at(distance(p)) : MapEntry();
  }
  BlockIndex block_of(const void* p) const { return static_cast<BlockIndex>(distance(p) >> kBlockShift); }
  Address address_of(BlockIndex block) const { return base_ + bytes_of(block); }
  void* pointer_to(BlockIndex block) const { return reinterpret_cast<void*>(address_of(block)); }

  // The page map.
  // relaxed: an object's owner changes only in ways that the freeing side copes with; see lane/lane.h.
  FAST MapEntry entry_at(Bytes distance) const {
    return MapEntry(map()[distance >> kBlockShift].load(std::memory_order_relaxed));
  }
  FAST const std::atomic<uint64_t>& map_word(Bytes distance) const { return map()[distance >> kBlockShift]; }
  MapEntry entry(BlockIndex block) const { return entry_at(bytes_of(block)); }
  void set_entries(BlockIndex first, BlockCount count, MapEntry entry) {
    // release: whoever reads an owner here may go to its lane [entries.release].
    for (BlockIndex b = first; b < first + count; ++b)
      map()[b].store(entry.bits(), std::memory_order_release);
  }
  MapEntry make_entry(Owner owner, BlockIndex first) const {
    return {owner, reinterpret_cast<Address>(&state(first))};
  }
  // Of an object that is known to lie in the body: one subtraction less.
  FAST MapEntry entry_of(const void* p) const {
    const Address at = map_from_0_ + (reinterpret_cast<Address>(p) >> kBlockShift) * sizeof(uint64_t);
    return MapEntry(reinterpret_cast<const std::atomic<uint64_t>*>(at)->load(std::memory_order_relaxed));
  }
  FAST SizeClass size_class_of(const void* p) const {
    const Address at = classes_from_0_ + (reinterpret_cast<Address>(p) >> kBlockShift) * sizeof(SizeClass);
    return reinterpret_cast<const std::atomic<SizeClass>*>(at)->load(std::memory_order_relaxed);
  }
  // relaxed, both: fixed while the slab has objects.
  SizeClass size_class_at(Bytes distance) const {
    return classes()[distance >> kBlockShift].load(std::memory_order_relaxed);
  }
  void set_size_class(BlockIndex first, BlockCount count, SizeClass c) {
    for (BlockIndex b = first; b < first + count; ++b) classes()[b].store(c, std::memory_order_relaxed);
  }

  // Block states. Only of blocks below opened().
  BlockState& state(BlockIndex block) const { return reinterpret_cast<BlockState*>(states_)[block]; }
  BlockIndex block_of_state(const void* state) const {
    return static_cast<BlockIndex>((reinterpret_cast<Address>(state) - states_) / sizeof(BlockState));
  }
  BlockCount opened() const { return opened_.load(std::memory_order_acquire); }
  BlockCount frontier() const { return frontier_.load(std::memory_order_relaxed); }

  Address lanes() const { return lanes_; }
  // The word of object bits that holds the granule at this distance from the base.
  std::atomic<uint64_t>& object_bits(Bytes distance) const {
    return reinterpret_cast<std::atomic<uint64_t>*>(bits_)[distance / kGranule / 64];
  }

  // Takes n blocks that nobody has ever used: one atomic step, then a system call. Async-signal-safe. kNoBlock without
  // memory or addresses.
  BlockIndex take_fresh(BlockCount n) {
    for (int attempt = 0; attempt < kClaimAttempts; ++attempt) {
      BlockIndex at = frontier();
      do {
        // Looked at first: who overstepped and then could not step back would leave no addresses to anybody.
        if (n > block_count_ - at) return kNoBlock;
      } while (!frontier_.compare_exchange_weak(at, at + n, std::memory_order_relaxed) &&
               frontier_tries_.failed());
      frontier_tries_.done();
      Claim claim = P::claim(address_of(at), bytes_of(n));
      if (claim == Claim::kDone) {
        PROBE2(map, address_of(at), bytes_of(n));
        if (LIKELY(open_metadata(at + n))) return at;
        P::release(address_of(at), bytes_of(n));
        claim = Claim::kNoMemory;
      }
      if (claim == Claim::kNoMemory) {
        // Put the addresses back, unless another thread went on from there: then these are lost, and no memory.
        BlockIndex end = at + n;
        frontier_.compare_exchange_strong(end, at, std::memory_order_relaxed);
        return kNoBlock;
      }
      // kTaken: somebody mapped something into our range. Go past it.
    }
    return kNoBlock;
  }

 private:
  SHOWN_BY_LAYOUT;

  static constexpr Bytes kSmallestBody = Bytes{256} << 30;
  static constexpr Bytes kLargestBody = Bytes{16} << 40;
  static constexpr BlockCount kOpenStep = 1024;
  // The parts begin at addresses that differ in more than their high bits: a lane, the state of its first slab and that
  // slab's first page would else look the same to the way predictor of the data cache, at four times the time of a hit.
  static constexpr Bytes kStatesColour = 9 << 12;
  static constexpr Bytes kLanesColour = 37 << 12;
  static constexpr Bytes kColours = kBlockSize * 4;
  static constexpr int kClaimAttempts = 64;

  std::atomic<uint64_t>* map() const { return reinterpret_cast<std::atomic<uint64_t>*>(map_); }
  std::atomic<SizeClass>* classes() const { return reinterpret_cast<std::atomic<SizeClass>*>(classes_); }

  bool open_metadata(BlockCount end) {
    const BlockCount before = opened_.load(std::memory_order_relaxed);
    if (end <= before) return true;
    BlockCount after = static_cast<BlockCount>(round_up(end, kOpenStep));
    if (after > block_count_) after = block_count_;
    if (!open_array<uint64_t>(map_, before, after)) return false;
    if (!open_array<SizeClass>(classes_, before, after)) return false;
    if (!open_array<BlockState>(states_, before, after)) return false;
    if (bits_ != 0 && !open_array<std::byte[kBitsPerBlock]>(bits_, before, after)) return false;
    BlockCount seen = before;
    // release: whoever reads opened() may touch the states below it. Pairs with the acquire there.
    while (seen < after && !opened_.compare_exchange_weak(seen, after, std::memory_order_release))
      opened_tries_.failed();
    opened_tries_.done();
    return true;
  }

  template <class T>
  bool open_array(Address array, BlockCount from, BlockCount to) {
    const Bytes page = P::page_size();
    const Address begin = round_down(array + from * sizeof(T), page);
    const Address end = round_up(array + to * sizeof(T), page);
    return P::open(begin, end - begin);
  }

  Address base_ = 0;
  std::atomic<Bytes> hit_bytes_{0};
  Bytes bytes_ = 0;
  Address map_ = 0;
  Address classes_ = 0;
  // Where both would begin if the body began at address 0.
  Address map_from_0_ = 0;
  Address classes_from_0_ = 0;
  Address states_ = 0;
  Address lanes_ = 0;
  Address bits_ = 0;
  BlockCount block_count_ = 0;
  alignas(kNoSharing) std::atomic<BlockCount> frontier_{0};
  std::atomic<BlockCount> opened_{0};
  Tries<> frontier_tries_;
  Tries<> opened_tries_;
};

}  // namespace lanemalloc
