// Region: the address range that all memory comes from, cut into blocks of 64 KiB, and the metadata
// of these blocks.
// Called by: everything above. Locking: fresh blocks are taken by one atomic step, so a signal
// handler can always take some. Metadata grows under a lock of its own. A thread holds that lock
// for no longer than a few system calls, with all signals blocked.
//
//   metadata (mapped as the frontier grows)                 body (claimed block by block)
//   +----------+--------+-------+-----------------------+   +-----------------------+---------- - -
//   | page map | states | lanes | object bits (checked) |   | blocks in use or free | never used
//   +----------+--------+-------+-----------------------+   +-----------------------+---------- - -
//     8 + 1 B    128 B            512 B per block                           frontier         opened
//     per block  per block
//
// Every thread that frees reads the page map. It is written only when a block changes hands. A
// block's state belongs to its owner alone. Both lie outside the memory that programs write to. The
// metadata reaches up to the block opened(), which is bytes() in addresses. A pointer beyond has no
// owner. Below, any address may be looked up: blocks that were never used read as "nobody's".
//
// Nothing is reserved, neither the body nor the metadata. All of it lies at a place where no other
// code maps anything, and addresses are claimed when they are first used
// (docs/design/0002-claimed-not-reserved.md,
// docs/design/0014-metadata-grows-with-the-heap.md).
#pragma once

#include <atomic>

#include "core/base/arch_probes.h"
#include "core/base/atomics.h"
#include "core/base/check.h"
#include "core/base/contention.h"
#include "core/memory/size_classes.h"
#include "core/platform/platform.h"

namespace lanemalloc {

// What the page map says of one block, in eight bytes: bits 0-15 hold the owner, bits 16-63 the
// address of the state of the slab's first block. (The size class lies in a byte array beside the
// map, since a hit does not need it.)
class MapWord {
 public:
  constexpr MapWord() = default;
  constexpr explicit MapWord(uint64_t bits) : bits_(bits) {}
  constexpr MapWord(Owner owner, Address state)
      : bits_(static_cast<uint64_t>(owner) | uint64_t{state} << 16) {}

  Owner owner() const { return static_cast<Owner>(static_cast<uint16_t>(bits_)); }
  FAST void* state() const { return reinterpret_cast<void*>(bits_ >> 16); }
  uint64_t bits() const { return bits_; }
  bool is_owned_by(uint16_t owner) const { return static_cast<uint16_t>(bits_) == owner; }

 private:
  uint64_t bits_ = 0;
};

// What a block is used for. This decides what the first part of its state holds (RunState, Slab).
enum class BlockKind : uint8_t {
  kUnknown,  // never used, or inside a run
  kUsed,     // first or last block of a run in use
  // The same for a deferred run: it is freed, and waits for the next holder of the lock to take it
  // in
  kWaiting,
  kDirty,   // first or last block of a free run: holds old data
  kClean,   // the same: reads as zeros, costs no memory
  kAbsent,  // the same: not claimed
};

// What the first or the last block of a run says about the run.
struct RunEnd {
  BlockKind kind;
  bool is_first;    // first block of a run; else its last one, or what the block once was
  uint32_t length;  // blocks of the run

  static RunEnd from(uint64_t word) {
    return {static_cast<BlockKind>(word & 0xFF), (word >> 8 & 1) != 0,
            static_cast<uint32_t>(word >> 32)};
  }
  uint64_t word() const {
    return uint64_t{length} << 32 | uint64_t{is_first} << 8 |
           static_cast<uint64_t>(static_cast<uint8_t>(kind));
  }
};

// Neighbours may belong to two lanes, so their states do not share a pair of cache lines.
struct alignas(kNoSharing) BlockState {
  static constexpr size_t kOwnerPart = 112;
  std::byte owner_part[kOwnerPart];
  std::atomic<BlockKind> kind;
  bool is_first;
  uint8_t unused[2];
  uint32_t length;

  // Writes all of it in one step: a thread that is torn off before or behind that step leaves a run
  // that is whole (Runs::salvage).
  void set_end(RunEnd to) { __atomic_store_n(end_word(), to.word(), __ATOMIC_RELAXED); }
  // Reads the same. acquire: sees what was marked before. Pairs with [walk.release].
  RunEnd end() const {
    return RunEnd::from(
        __atomic_load_n(const_cast<BlockState*>(this)->end_word(), __ATOMIC_ACQUIRE));
  }
  // Writes it if it still says what was seen.
  void replace_end(RunEnd seen, RunEnd to) {
    uint64_t word = seen.word();
    __atomic_compare_exchange_n(end_word(), &word, to.word(), false, __ATOMIC_RELAXED,
                                __ATOMIC_RELAXED);
  }

 private:
  using Word [[gnu::may_alias]] = uint64_t;
  Word* end_word() { return reinterpret_cast<Word*>(&kind); }
};
static_assert(offsetof(BlockState, kind) % sizeof(uint64_t) == 0);
static_assert(offsetof(BlockState, is_first) == offsetof(BlockState, kind) + 1);
static_assert(offsetof(BlockState, length) == offsetof(BlockState, kind) + 4);
static_assert(sizeof(BlockState) % kNoSharing == 0);

template <class P>
class Region {
 public:
  static constexpr BlockIndex kNoBlock = ~BlockIndex{0};
  static constexpr Bytes kBitsPerBlock = kBlockSize / kGranule / 8;  // for its object bits

  // Finds ground and maps the first metadata. `lanes`: the most bytes that lanes may take. Returns
  // false if there is no memory or no address space; may be called again.
  bool start(Bytes lanes, bool object_bits) {
    for (unsigned attempt = 0;; ++attempt) {
      const Ground ground = P::ground(attempt);
      if (ground.bytes == 0) return false;
      if (ground.at == 0) continue;
      lay_out(ground, lanes, object_bits);
      if (open_metadata(1)) break;
    }
    set_hits(true);
    return true;
  }

  // The body.
  Address base() const { return base_; }
  FAST Bytes bytes() const { return hit_load(bytes_); }
  // How large the body may become.
  Bytes most_bytes() const { return bytes_of(block_count_); }
  // bytes(), as a hit of free() compares with it. It is 0 while lanes are entered by the CPU's
  // number, so that these frees go the way of that entry.
  FAST Bytes hit_bytes() const { return hit_load(hit_bytes_); }
  void set_hits(bool on) {
    Bytes bytes;
    do {
      bytes = on ? bytes_.load(std::memory_order_relaxed) : 0;
      if (hit_bytes_.load(std::memory_order_relaxed) == bytes) return;
      // seq_cst, both: at least one of this thread and a thread that grows sees what the other has
      // stored [hits.store].
      hit_bytes_.store(bytes, std::memory_order_seq_cst);
    } while (on && bytes_.load(std::memory_order_seq_cst) != bytes);
  }
  // Distance of an address from the base. It is at least bytes() for an address outside the body.
  FAST Bytes distance(const void* p) const { return reinterpret_cast<Address>(p) - base_; }
  // For any address. What lies outside the body has no owner.
  FAST MapWord word_for(const void* p) const {
    return LIKELY(distance(p) < bytes()) ? word_at(distance(p)) : MapWord();
  }
  BlockIndex block_of(const void* p) const {
    return static_cast<BlockIndex>(distance(p) >> kBlockShift);
  }
  Address address_of(BlockIndex block) const { return base_ + bytes_of(block); }
  void* pointer_to(BlockIndex block) const { return reinterpret_cast<void*>(address_of(block)); }

  // The page map.
  // relaxed: an object's owner changes only in ways that the freeing side copes with; see
  // core/lane/lane.h.
  FAST MapWord word_at(Bytes distance) const {
    return MapWord(map()[distance >> kBlockShift].load(std::memory_order_relaxed));
  }
  FAST const std::atomic<uint64_t>& map_word(Bytes distance) const {
    return map()[distance >> kBlockShift];
  }
  MapWord word(BlockIndex block) const { return word_at(bytes_of(block)); }
  void set_words(BlockIndex first, BlockCount count, MapWord word) {
    // release: a thread that reads an owner here may go to its lane [entries.release].
    for (BlockIndex b = first; b < first + count; ++b)
      map()[b].store(word.bits(), std::memory_order_release);
  }
  MapWord make_word(Owner owner, BlockIndex first) const {
    return {owner, reinterpret_cast<Address>(&state(first))};
  }
  // For an object that is known to lie in the body: saves one subtraction.
  FAST MapWord word_of(const void* p) const {
    const Address at =
        map_from_0_ + (reinterpret_cast<Address>(p) >> kBlockShift) * sizeof(uint64_t);
    return MapWord(
        reinterpret_cast<const std::atomic<uint64_t>*>(at)->load(std::memory_order_relaxed));
  }
  FAST SizeClass size_class_of(const void* p) const {
    const Address at =
        classes_from_0_ + (reinterpret_cast<Address>(p) >> kBlockShift) * sizeof(SizeClass);
    return reinterpret_cast<const std::atomic<SizeClass>*>(at)->load(std::memory_order_relaxed);
  }
  // relaxed, both: the class is fixed while the slab has objects.
  SizeClass size_class_at(Bytes distance) const {
    return classes()[distance >> kBlockShift].load(std::memory_order_relaxed);
  }
  void set_size_class(BlockIndex first, BlockCount count, SizeClass c) {
    for (BlockIndex b = first; b < first + count; ++b)
      classes()[b].store(c, std::memory_order_relaxed);
  }

  // Block states, only for blocks below opened().
  BlockState& state(BlockIndex block) const {
    return reinterpret_cast<BlockState*>(states_)[block];
  }
  BlockIndex block_of_state(const void* state) const {
    return static_cast<BlockIndex>((reinterpret_cast<Address>(state) - states_) /
                                   sizeof(BlockState));
  }
  BlockCount opened() const { return opened_.load(std::memory_order_acquire); }
  BlockCount frontier() const { return frontier_.load(std::memory_order_relaxed); }

  Address lanes() const { return lanes_; }
  Bytes lane_bytes() const { return lane_bytes_; }
  static constexpr Bytes kLanesStep = kBlockSize * 2;
  // How many steps of lanes are mapped; never fewer than before.
  uint64_t lane_steps() const { return lanes_opened_.load(std::memory_order_relaxed) / kLanesStep; }
  // Maps the lanes' part up to `end`. Returns false if there is no memory.
  bool open_lanes(Bytes end) {
    // acquire: a thread that sees it opened may write there. Pairs with [lanes.opened].
    if (LIKELY(end <= lanes_opened_.load(std::memory_order_acquire))) return true;
    const Growth growth(*this);
    const Bytes before = lanes_opened_.load(std::memory_order_relaxed);
    if (end <= before) return true;
    Bytes after = round_up(end, kLanesStep);
    if (after > lane_bytes_) after = lane_bytes_;
    lanes_growing_to_ = after;
    const Address begin = edge(lanes_, before);
    if (P::extend(begin, edge(lanes_, after) - begin) != Claim::kDone) return false;
    lanes_opened_.store(after, std::memory_order_release);  // [lanes.opened]
    return true;
  }
  // The word of object bits that holds the granule at this distance from the base.
  std::atomic<uint64_t>& object_bits(Bytes distance) const {
    return reinterpret_cast<std::atomic<uint64_t>*>(bits_)[distance / kGranule / 64];
  }

  // In a fork child: a thread that was growing the metadata does not exist here. What it had mapped
  // was not in use yet.
  void forget_grower() {
    if (growing_.load(std::memory_order_relaxed) == kFree) return;
    const BlockCount before = opened_.load(std::memory_order_relaxed);
    if (growing_to_ > before)
      for_each_array(before, growing_to_,
                     [](Address a, Bytes n) { return P::release(a, n), true; });
    const Bytes lanes = lanes_opened_.load(std::memory_order_relaxed);
    const Address begin = edge(lanes_, lanes);
    if (lanes_growing_to_ > lanes) P::release(begin, edge(lanes_, lanes_growing_to_) - begin);
    growing_.store(kFree, std::memory_order_relaxed);
  }

  // Takes n blocks that were never used: one atomic step, then a system call. Async-signal-safe.
  // Returns kNoBlock if there is no memory, or if there are no addresses.
  BlockIndex take_fresh(BlockCount n) {
    if (UNLIKELY(n > kMuch) && !would_get(n)) return kNoBlock;
    for (int attempt = 0; attempt < kClaimAttempts; ++attempt) {
      BlockIndex at = frontier();
      do {
        // Look first: a thread that stepped too far, and then could not step back, would leave no
        // addresses for any thread.
        if (n > block_count_ - at) return kNoBlock;
      } while (!frontier_.compare_exchange_weak(at, at + n, std::memory_order_relaxed) &&
               frontier_tries_.failed());
      frontier_tries_.done();
      Claim claim = P::claim(address_of(at), bytes_of(n));
      if (claim == Claim::kDone) {
        PROBE2(map, address_of(at), bytes_of(n));
        if (LIKELY(open_metadata(at + n))) return at;
        // If the system does not take them back, they stay beyond the frontier, and the next claim
        // goes past them.
        P::release(address_of(at), bytes_of(n));
        claim = Claim::kNoMemory;
      }
      if (claim == Claim::kNoMemory) {
        // Put the addresses back, unless another thread went on from there. Then addresses are
        // lost, but no memory.
        BlockIndex end = at + n;
        frontier_.compare_exchange_strong(end, at, std::memory_order_relaxed);
        return kNoBlock;
      }
      // kTaken: other code has mapped something into our range. Go past it.
    }
    return kNoBlock;
  }

 private:
  SHOWN_BY_LAYOUT;

  // The parts begin at addresses that differ in more than their high bits. Otherwise a lane, the
  // state of its first slab and that slab's first page would look the same to the way predictor of
  // the data cache, and a hit would take four times as long.
  static constexpr Bytes kStatesColour = 9 << 12;
  static constexpr Bytes kLanesColour = 37 << 12;
  static constexpr int kClaimAttempts = 64;
  static constexpr BlockCount kMuch = (Bytes{256} << 20) >> kBlockShift;

  // Whether the system grants n blocks. Tries it at the end of the addresses, where no thread is.
  // If the system refuses blocks behind the frontier, their addresses may be lost, since another
  // thread may go on from there. A few lost blocks do no harm, but some refused requests for
  // terabytes would use up all addresses.
  bool would_get(BlockCount n) {
    if (n > block_count_ - frontier()) return false;
    const Address end = address_of(block_count_ - n);
    const Claim claim = P::claim(end, bytes_of(n));
    if (claim == Claim::kDone) P::release(end, bytes_of(n));
    return claim != Claim::kNoMemory;
  }

  std::atomic<uint64_t>* map() const { return reinterpret_cast<std::atomic<uint64_t>*>(map_); }
  std::atomic<SizeClass>* classes() const {
    return reinterpret_cast<std::atomic<SizeClass>*>(classes_);
  }

  // Decides what begins where. The body takes the largest power of two.
  void lay_out(const Ground& ground, Bytes lanes, bool object_bits) {
    const Bytes most = round_down(ground.bytes / 16, kLanesStep);
    Bytes body = std::bit_floor(ground.bytes), meta;
    for (;; body /= 2) {
      block_count_ = static_cast<BlockCount>(body >> kBlockShift);
      const Bytes map = round_up(block_count_ * sizeof(uint64_t), kBlockSize);
      const Bytes classes = round_up(block_count_ * sizeof(SizeClass), kBlockSize);
      const Bytes states = round_up(block_count_ * sizeof(BlockState), kBlockSize);
      map_ = ground.at;
      classes_ = map_ + map;
      states_ = classes_ + classes + kStatesColour;
      lanes_ = states_ + states + kLanesColour;
      lane_bytes_ = lanes < most ? lanes : most;
      bits_ = object_bits ? round_up(lanes_ + lane_bytes_, kBlockSize) : 0;
      const Bytes end = object_bits ? bits_ + block_count_ * kBitsPerBlock : lanes_ + lane_bytes_;
      meta = round_up(end - ground.at, kHugePage);
      if (meta + body <= ground.bytes) break;
    }
    base_ = ground.at + meta;
    map_from_0_ = map_ - (base_ >> kBlockShift) * sizeof(uint64_t);
    classes_from_0_ = classes_ - (base_ >> kBlockShift) * sizeof(SizeClass);
  }

  // The lock under which metadata grows. Its holder cannot be interrupted. So a handler that waits
  // for it waits for another thread, for a few system calls. (These calls wait for each other in
  // the kernel anyway.)
  class Growth {
   public:
    explicit Growth(Region& region) : lock_(region.growing_), mask_(P::block_signals()) {
      uint32_t seen = kFree;
      // acquire, both: sees what the last holder has opened. Pairs with the release below.
      if (lock_.compare_exchange_strong(seen, kHeld, std::memory_order_acquire,
                                        std::memory_order_relaxed))
        return;
      region.opened_tries_.failed();
      while (lock_.exchange(kAwaited, std::memory_order_acquire) != kFree) P::wait(lock_, kAwaited);
    }
    ~Growth() {
      // release: pairs with the acquires above.
      if (lock_.exchange(kFree, std::memory_order_release) == kAwaited) P::wake(lock_, 1);
      P::restore_signals(mask_);
    }
    Growth(const Growth&) = delete;

   private:
    std::atomic<uint32_t>& lock_;
    uint64_t mask_;
  };
  enum : uint32_t { kFree, kHeld, kAwaited };

  // Maps the metadata of the blocks up to `end`, and of some more. Returns false if there is no
  // memory, or if other code has mapped something there: then the body ends here.
  bool open_metadata(BlockCount end) {
    if (LIKELY(end <= opened())) return true;
    const Growth growth(*this);
    const BlockCount before = opened_.load(std::memory_order_relaxed);
    if (end <= before) return true;
    // Whole pages, even of the smallest array.
    BlockCount after = static_cast<BlockCount>(round_up(end, P::page_size()));
    if (after > block_count_) after = block_count_;
    growing_to_ = after;
    if (!for_each_array(before, after,
                        [](Address a, Bytes n) { return P::extend(a, n) == Claim::kDone; }))
      return false;
    // seq_cst: see set_hits(). [hits.store]
    bytes_.store(bytes_of(after), std::memory_order_seq_cst);
    Bytes hits = hit_bytes_.load(std::memory_order_seq_cst);
    while (hits != 0 && hits < bytes_of(after) &&
           !hit_bytes_.compare_exchange_weak(hits, bytes_of(after), std::memory_order_relaxed)) {
    }
    // release: a thread that reads opened() may touch the states below it, and frees by hits what
    // lies there. Pairs with the acquire in opened().
    opened_.store(after, std::memory_order_release);
    opened_tries_.done();
    return true;
  }

  // Where the pages end that hold the first `bytes` of an array; for 0 bytes, where its first page
  // begins.
  static Address edge(Address array, Bytes bytes) {
    const Bytes page = P::page_size();
    return bytes == 0 ? round_down(array, page) : round_up(array + bytes, page);
  }

  // Calls extend(address, bytes) for the part of each array that describes these blocks. If one
  // call returns false, releases the parts before it.
  template <class Extend>
  bool for_each_array(BlockCount from, BlockCount to, Extend extend) {
    const struct {
      Address at;
      Bytes element;
    } arrays[] = {{map_, sizeof(uint64_t)},
                  {classes_, sizeof(SizeClass)},
                  {states_, sizeof(BlockState)},
                  {bits_, kBitsPerBlock}};
    for (const auto& array : arrays) {
      if (array.at == 0) continue;
      const auto begin_of = [&](const auto& a) { return edge(a.at, from * a.element); };
      const auto end_of = [&](const auto& a) { return edge(a.at, to * a.element); };
      if (extend(begin_of(array), end_of(array) - begin_of(array))) continue;
      for (const auto* done = arrays; done != &array; ++done)
        P::release(begin_of(*done), end_of(*done) - begin_of(*done));
      return false;
    }
    return true;
  }

  Address base_ = 0;
  std::atomic<Bytes> hit_bytes_{0};
  std::atomic<Bytes> bytes_{0};  // this and hit_bytes_ grow with opened_
  Address map_ = 0;
  Address classes_ = 0;
  // Where both would begin if the body began at address 0.
  Address map_from_0_ = 0;
  Address classes_from_0_ = 0;
  Address states_ = 0;
  Address lanes_ = 0;
  Address bits_ = 0;
  Bytes lane_bytes_ = 0;
  BlockCount block_count_ = 0;
  std::atomic<Bytes> lanes_opened_{0};
  // The lock under which metadata grows, and what its holder is about to reach.
  std::atomic<uint32_t> growing_{kFree};
  BlockCount growing_to_ = 0;
  Bytes lanes_growing_to_ = 0;
  alignas(kNoSharing) std::atomic<BlockCount> frontier_{0};
  std::atomic<BlockCount> opened_{0};
  Tries<> frontier_tries_;
  Tries<> opened_tries_;
};

}  // namespace lanemalloc
