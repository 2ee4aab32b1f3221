// Large: objects beyond kSlabMax, and sampled ones: each is a run of whole blocks. The page map
// names the run's first block alone.
// Called by: engine. Locking: none of its own. A stay need not be in a lane: what is large belongs
// to no lane.
#pragma once

#include "core/engine/sampling.h"
#include "core/engine/searches.h"

namespace lanemalloc {

template <class P>
class Large {
 public:
  explicit Large(World<P>& world) : world_(world) {}

  // Enters by `gate`, and leaves. alignment: a power of two. Null: no memory. zeroed: the memory is
  // known to be zero.
  FAST void* allocate(Searches<P>& searches, Bytes size, Bytes alignment, Slot& slot, Gate* gate,
                      bool& zeroed) {
    void* p = allocate_once(size, alignment, slot, gate, zeroed);
    return LIKELY(p != nullptr) ? p : allocate_again(searches, size, alignment, slot, zeroed);
  }

  // An object that counts as one of class c, with its stack. Null: no memory. The thread is inside,
  // but in no lane that other threads might want, since capturing the stack takes its time.
  NOINLINE void* allocate_sampled(SizeClass c, Slot& slot, Gate* gate) {
    Inside inside(slot, gate);
    const Run run = take_run(blocks_for(size_of(c)), 1, gate, inside.visit());
    if (UNLIKELY(run.at == Runs<P>::kNone)) return nullptr;
    publish(run.at, false);
    LargeState& state = large_state(world_.region, run.at);
    state.sample_class = c;
    uint64_t random = Sampling<P>(world_).seed();
    state.sample = world_.sampler.sample_allocation(size_of(c), random);
    Sampling<P>::count_apart(gate);
    state.sample.mark = Sampling<P>::mark_of(gate);
    count<P>(world_.counters.sampled_allocations[index_of(c)]);
    return world_.region.pointer_to(run.at);
  }

  // --- Inside. `gate`: by which, if that may tell whether the object was temporary.
  void free(void* p, Visit& visit, Gate* gate = nullptr) {
    const BlockIndex at = world_.region.block_of(p);
    const BlockCount blocks = world_.region.state(at).length;
    LargeState& state = large_state(world_.region, at);
    const bool moved = state.moved;
    world_.region.set_words(at, 1, MapWord());
    if (UNLIKELY(state.sample.stack != nullptr)) Sampling<P>(world_).forget(state, gate);
    if (UNLIKELY(state.sample_class != SizeClass{0})) {
      count<P>(world_.counters.sampled_frees[index_of(state.sample_class)]);
    } else {
      count<P>(world_.counters.large_frees);
      count<P>(world_.counters.large_bytes, uint64_t{0} - bytes_of(blocks));
    }
    if (moved) {
      world_.runs.free_moved(at, blocks, visit);
    } else {
      world_.runs.free(at, blocks, visit);
    }
    world_.scavenger.poke();
  }

  // In place. False: that does not work, and nothing has changed.
  bool resize(void* p, BlockCount blocks, Visit& visit) {
    const BlockIndex at = world_.region.block_of(p);
    const BlockCount old_blocks = world_.region.state(at).length;
    if (blocks == old_blocks) return true;
    if (large_state(world_.region, at).moved) return false;  // its mapping is one whole
    if (blocks < old_blocks) {
      world_.runs.shrink(at, old_blocks, blocks, visit);
    } else if (!world_.runs.extend(at, old_blocks, blocks, visit)) {
      return false;
    }
    count<P>(world_.counters.large_bytes, bytes_of(blocks) - bytes_of(old_blocks));
    Sampling<P>(world_).resample_large(large_state(world_.region, at).sample, at, bytes_of(blocks));
    world_.scavenger.poke();
    return true;
  }

  // Has the kernel move the pages to a longer run, with an eighth to spare, so that growing step by
  // step does not move them at every step. Null: the caller must copy instead.
  void* move(void* p, Bytes size, Visit& visit, Budget* budget = nullptr) {
    constexpr BlockCount kWorthwhile =
        16;  // 1 MiB: below, copying is cheaper than two system calls
    const BlockIndex from = world_.region.block_of(p);
    const BlockCount old_blocks = world_.region.state(from).length;
    const BlockCount needed = blocks_for(size);
    if (old_blocks < kWorthwhile) return nullptr;
    const bool moved_before = large_state(world_.region, from).moved;
    if (needed <= old_blocks) return needed * 2 < old_blocks ? nullptr : p;
    BlockCount blocks = needed + needed / 8;
    Run to = world_.runs.allocate(blocks, 1, visit);
    if (to.at == Runs<P>::kNone) to = world_.runs.allocate(blocks = needed, 1, visit);
    if (to.at == Runs<P>::kNone) return nullptr;
    const Bytes growth = bytes_of(blocks - old_blocks);
    if (budget != nullptr && budget->take(growth, 1) == 0) {
      world_.runs.free(to.at, blocks, visit);
      return nullptr;
    }
    const Sample sample = large_state(world_.region, from).sample;
    world_.region.set_words(from, 1, MapWord());
    if (!world_.runs.move(from, old_blocks, to.at, blocks, moved_before, visit)) {
      publish(from, moved_before);
      large_state(world_.region, from).sample = sample;
      if (budget != nullptr) budget->give(growth);
      return nullptr;
    }
    publish(to.at, true);
    count<P>(world_.counters.large_bytes, bytes_of(blocks) - bytes_of(old_blocks));
    Sampling<P>(world_).resample_large(sample, to.at, bytes_of(blocks));
    return world_.region.pointer_to(to.at);
  }

  // The bytes of the object's run.
  Bytes bytes(const void* p) const {
    return bytes_of(world_.region.state(world_.region.block_of(p)).length);
  }

  // Gives the object from malloc to the family or, if `family` is null, back to malloc. Malloc's
  // figures count the one as a free, the other as an allocation.
  void give_to(Family* family, const void* p) {
    const BlockIndex at = world_.region.block_of(p);
    __atomic_store_n(&large_state(world_.region, at).family, family, __ATOMIC_RELAXED);
    const Owner word = family != nullptr ? private_of(Owner::kLarge) : Owner::kLarge;
    world_.region.set_words(at, 1, world_.region.make_word(word, at));
    count<P>(family != nullptr ? world_.counters.large_frees : world_.counters.large_allocations);
    count<P>(world_.counters.large_bytes, family != nullptr ? uint64_t{0} - bytes(p) : bytes(p));
  }

 private:
  FAST void* allocate_once(Bytes size, Bytes alignment, Slot& slot, Gate* gate, bool& zeroed) {
    Inside inside(slot, gate);
    void* p = nullptr;
    if (size < world_.region.most_bytes() && alignment < world_.region.most_bytes()) {
      const BlockCount blocks = blocks_for(size);
      const BlockCount align_blocks =
          alignment <= kBlockSize ? 1 : static_cast<BlockCount>(alignment >> kBlockShift);
      const Run run = take_run(blocks, align_blocks, gate, inside.visit());
      if (run.at != Runs<P>::kNone) {
        publish(run.at, false);
        count<P>(world_.counters.large_allocations);
        count<P>(world_.counters.large_bytes, bytes_of(blocks));
        if (UNLIKELY(world_.sampler.on())) Sampling<P>(world_).sample_large(run.at, size, gate);
        zeroed = run.zeroed;
        p = world_.region.pointer_to(run.at);
      }
    }
    return p;
  }

  NOINLINE void* allocate_again(Searches<P>& searches, Bytes size, Bytes alignment, Slot& slot,
                                bool& zeroed) {
    if (size >= world_.region.most_bytes() || !searches.collect(slot)) return nullptr;
    return allocate_once(size, alignment, slot, Owned::enter(slot), zeroed);
  }

  Run take_run(BlockCount blocks, BlockCount align_blocks, Gate* gate, Visit& visit) {
    if (Owned::may_allocate(gate, 0)) lane_behind<P>(gate)->give_back_big(visit);
    Run run = {world_.runs.reuse(blocks, align_blocks, visit), false};
    if (run.at == Runs<P>::kNone) {
      collect_empties(Need::kSome, gate, visit);
      run = world_.runs.allocate(blocks, align_blocks, visit);
    }
    if (run.at == Runs<P>::kNone && collect_empties(Need::kAll, gate, visit))
      run = world_.runs.allocate(blocks, align_blocks, visit);
    return run;
  }

  // As World's, but also for the lane that the thread is inside by `gate`.
  bool collect_empties(Need need, Gate* gate, Visit& visit) {
    const BlockCount least = need == Need::kSome ? Lane<P>::kMuch : 1;
    bool any = false;
    if (Owned::may_allocate(gate, 0)) {
      Lane<P>* lane = lane_behind<P>(gate);
      if (lane->empty_blocks() >= least) any = lane->give_back_empties(lane->empty_blocks(), visit);
    }
    return world_.collect_empties(need, nullptr, visit) || any;
  }

  void publish(BlockIndex at, bool moved) {
    LargeState& state = large_state(world_.region, at);
    state.moved = moved;
    state.sample.stack = nullptr;
    state.sample_class = SizeClass{0};
    world_.region.set_words(at, 1, world_.region.make_word(Owner::kLarge, at));
  }

  World<P>& world_;
};

}  // namespace lanemalloc
