// Sampled objects. Each has a run of blocks of its own, as large objects have. So its free is a
// miss, and finds there what to take away from the profile. Sampled objects count as objects of
// their class. Included by engine.h only. lane/lane_samples.h says which objects are sampled.
#pragma once

#include "engine/engine.h"

namespace lanemalloc {

// A state for random numbers that only this caller has.
template <class P>
uint64_t Engine<P>::sample_seed() {
  constexpr uint64_t kApart = 0xD1B54A32D192ED03;
  return world_.counters.sample_seed.fetch_add(kApart, std::memory_order_relaxed);
}

template <class P>
const Stack* Engine<P>::contended(const void* who, uint64_t ns) {
  if (who == &world_.scavenger) return nullptr;
  uint64_t random = sample_seed();
  return world_.sampler.contended(ns, random);
}

template <class P>
LargeState& large_state(const Region<P>& region, BlockIndex at) {
  return *reinterpret_cast<LargeState*>(region.state(at).owner_part);
}

// The thread is inside, but in no lane that other threads might want, since capturing the stack
// takes its time.
template <class P>
NOINLINE void* Engine<P>::allocate_sampled(SizeClass c, Slot& slot, Gate* gate) {
  {
    Inside inside(slot, gate);
    const Run run = take_run(blocks_for(size_of(c)), 1, gate, inside.visit());
    if (LIKELY(run.at != Runs<P>::kNone)) {
      publish_large(run.at, false);
      LargeState& state = large_state(world_.region, run.at);
      state.sample_class = c;
      uint64_t random = sample_seed();
      state.sample = world_.sampler.sample_allocation(size_of(c), random);
      count<P>(world_.counters.sampled_allocations[index_of(c)]);
      return world_.region.pointer_to(run.at);
    }
  }
  // Not sampled: the next point is further on by now.
  return allocate_in_stay(size_of(c), slot, Owned::enter(slot));
}

template <class P>
void Engine<P>::sample_large(BlockIndex at, Bytes size) {
  uint64_t random = sample_seed();
  if (world_.sampler.next_interval(random) > static_cast<int64_t>(size)) return;
  large_state(world_.region, at).sample = world_.sampler.sample_allocation(size, random);
  count<P>(world_.counters.sampled_large);
}

// The object has another size now.
template <class P>
void Engine<P>::resample_large(Sample before, BlockIndex at, Bytes size) {
  if (UNLIKELY(before.stack != nullptr)) world_.sampler.freed(before);
  large_state(world_.region, at).sample = {};
  if (UNLIKELY(world_.sampler.on())) sample_large(at, size);
}

template <class P>
void Engine<P>::forget_sample(LargeState& state) {
  world_.sampler.freed(state.sample);
  state.sample = {};
}

// For a chain (free_chain): frees a sampled object by itself, and takes it out of the chain. False:
// the object is a large one, which is in no chain.
template <class P>
bool Engine<P>::free_sampled_of(Object*& link, Slot& slot) {
  Object* object = link;
  if (large_state(world_.region, world_.region.block_of(object)).sample_class == SizeClass{0})
    return false;
  link = object->next;
  free(object, slot);
  return true;
}

}  // namespace lanemalloc
