// Which objects are sampled. In the sequence of all bytes that go into bins, points lie at random
// distances (telemetry/sampler.h); the object that a point lies in is sampled. A bin is filled only
// up to the next such object, so that object is the first of the next miss: a hit asks nothing.
// Included by lane_work.h only. Locking: the caller is inside the lane.
//
//   bin  [o o o o o o o]                            left: 40 bytes; then this miss is the sample's
//        \_ fits into what is left _/  o o o o o    back to the slab
//
// It does not matter which size class comes next, since the distance to the next point has no
// memory. What a bin gives back is credited.
#pragma once

#include "lane/lane_work.h"

namespace lanemalloc {

// True if no object of the slab's free list is to be sampled. Then the list counts as taken.
template <class P>
FAST bool Lane<P>::takes_no_sample(Bytes index, const Slab* slab) {
  const auto bytes =
      static_cast<int64_t>(slab->free_objects() * size_of(static_cast<SizeClass>(index)));
  if (bytes > sample_left_) return false;
  sample_left_ -= bytes;
  return true;
}

// True if the bytes that are left end in the next object.
template <class P>
bool Lane<P>::is_sample_due(SizeClass c) {
  const bool is_first = !sample_started_;
  if (!is_first && sample_left_ >= static_cast<int64_t>(size_of(c))) return false;
  sample_started_ = true;
  sample_left_ = world_.sampler.next_interval(sample_random_) - 1;
  if (!is_first) sample_due_ = c;
  return !is_first;
}

// The list has just been taken off the free list of the current slab, or carved there.
template <class P>
uint64_t Lane<P>::cut_list(SizeClass c, Object* list, uint64_t n) {
  const Bytes size = size_of(c);
  uint64_t kept = sample_left_ > 0 ? static_cast<uint64_t>(sample_left_) / size : 0;
  if (kept == 0 || kept > n) kept = n;  // 0: this request could not have been sampled
  sample_left_ -= static_cast<int64_t>(kept * size);
  if (kept == n) return n;
  for (uint64_t i = 1; i < kept; ++i) list = list->next;
  Slab* slab = current_[index_of(c)];
  DCHECK(slab->free_list == nullptr);
  slab->free_list = list->next;
  slab->countdown -= static_cast<int32_t>(n - kept);
  list->next = nullptr;
  return kept;
}

// A bin that is filled up to the next sampled object.
template <class P>
struct Lane<P>::SampledBin : ClassBin {
  uint64_t cut(Object* list, uint64_t n) const { return this->lane.cut_list(this->c, list, n); }
};

template <class P>
NOINLINE void* Lane<P>::refill_sampled(SizeClass c, Visit& visit) {
  if (is_sample_due(c)) return nullptr;
  if (LIKELY(!is_big(c))) return refill_from(SampledBin{{*this, c}}, visit);
  Object* object = take_big(c, visit);
  if (object != nullptr) sample_left_ -= static_cast<int64_t>(size_of(c));
  return object;
}

}  // namespace lanemalloc
