// Sampling: what a sampled object has with it, and what a sampled wait leaves. A sampled object has
// a run of blocks of its own, as a large object has (Large::allocate_sampled). So its free is a
// miss, and finds there what to take away from the profile. It counts as an object of its class.
// core/lane/lane_work.h says which objects are sampled.
// Called by: engine, large. Locking: none.
#pragma once

#include "core/lane/lane_work.h"

namespace lanemalloc {

// What is known of a large allocation. It lies in the state of the allocation's first block.
struct LargeState {
  Family* family;          // if the object is a heap's
  Sample sample;           // if the object is sampled; else it has no stack
  SizeClass sample_class;  // the class that it counts as; 0: large
  bool moved;              // the kernel has moved its pages here
};
static_assert(sizeof(LargeState) <= BlockState::kOwnerPart);

template <class P>
LargeState& large_state(const Region<P>& region, BlockIndex at) {
  return *reinterpret_cast<LargeState*>(region.state(at).owner_part);
}

template <class P>
class Sampling {
 public:
  explicit Sampling(World<P>& world) : world_(world) {}

  // A state for random numbers that only this caller has.
  uint64_t seed() {
    constexpr uint64_t kApart = 0xD1B54A32D192ED03;
    return world_.counters.sample_seed.fetch_add(kApart, std::memory_order_relaxed);
  }

  // Counts a wait for a lock to the caller's stack, if that wait is sampled. Returns that stack, or
  // null. Leaves out the scavenger's waits: a walk would not know where its stack ends.
  const Stack* contended(const void* who, uint64_t ns) {
    if (who == &world_.scavenger) return nullptr;
    uint64_t random = seed();
    return world_.sampler.contended(ns, random);
  }

  // What the lane has handed out that the thread is inside by `gate`; 0: it is inside of none. Only
  // a thread's own lane tells which objects are temporary: others serve several threads.
  static uint64_t mark_of(Gate* gate) {
    return gate != nullptr && Owned::may_allocate(gate, 0) ? lane_behind<P>(gate)->mark() : 0;
  }
  static void count_apart(Gate* gate) {
    if (gate != nullptr && Owned::may_allocate(gate, 0)) lane_behind<P>(gate)->count_apart();
  }

  // A large object of this size has come. The thread is inside by `gate`; null: in a way that does
  // not tell what is temporary.
  void sample_large(BlockIndex at, Bytes size, Gate* gate = nullptr) {
    count_apart(gate);
    uint64_t random = seed();
    if (world_.sampler.next_interval(random) > static_cast<int64_t>(size)) return;
    Sample sample = world_.sampler.sample_allocation(size, random);
    sample.mark = mark_of(gate);
    large_state(world_.region, at).sample = sample;
    count<P>(world_.counters.sampled_large);
  }
  // The object has another size now.
  void resample_large(Sample before, BlockIndex at, Bytes size) {
    if (UNLIKELY(before.stack != nullptr)) world_.sampler.freed(before);
    large_state(world_.region, at).sample = {};
    if (UNLIKELY(world_.sampler.on())) sample_large(at, size);
  }
  void forget(LargeState& state, Gate* gate) {
    world_.sampler.freed(state.sample, mark_of(gate));
    state.sample = {};
  }

 private:
  World<P>& world_;
};

}  // namespace lanemalloc
