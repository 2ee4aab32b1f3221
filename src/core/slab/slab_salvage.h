// Finds out which objects of a slab are free, if its owner was torn off while it worked there.
// Called by: depot, lane. Locking: the caller has the slab to itself.
#pragma once

#include "core/slab/slab.h"

namespace lanemalloc {

// The objects of a slab that were found free.
class FreeObjects {
 public:
  static constexpr uint32_t kMost = 8192;

  // begin: the address of the slab's first object, as links lead there; step: the distance from one
  // to the next; n: how many there are.
  FreeObjects(Address begin, Bytes step, uint32_t n) : begin_(begin), step_(step), n_(n) {}

  // Takes each object once. True the first time. False for what is no object of the slab.
  bool add(Link link) {
    const Bytes into = link.address() - begin_;
    if (into >= n_ * step_ || into % step_ != 0) return false;
    const Bytes i = into / step_;
    if ((found_[i / 64] >> (i % 64) & 1) != 0) return false;
    found_[i / 64] |= uint64_t{1} << (i % 64);
    ++count_;
    return true;
  }
  uint32_t count() const { return count_; }

 private:
  const Address begin_;
  const Bytes step_;
  const uint32_t n_;
  uint32_t count_ = 0;
  uint64_t found_[kMost / 64]{};
};

// Counts the slab anew. What its free list leads to is free, each object once. So is what `chain`
// leads to, which may lie in another slab. The rest is in use. begin: the address of the slab's
// first object. Returns how many objects of the chain it has kept.
inline uint32_t salvage_objects(Slab* slab, Address begin, Link chain) {
  const uint32_t link = slab->is_of_kind() ? slab->its_kind().link : 0;
  const Link list = slab->free_list;
  uint32_t of_chain = 0;
  slab->give_up_free_list();
  if (LIKELY(slab->carved <= FreeObjects::kMost)) {
    FreeObjects found(begin + link, slab->size(), slab->carved);
    const auto keep = [&](Link at) {
      while (found.add(at)) {
        auto* object = reinterpret_cast<Object*>(at.address());
        const Link next = object->next;
        object->next = slab->free_list;
        slab->free_list = at;
        at = next;
      }
    };
    keep(list);
    of_chain = found.count();
    keep(chain);
    of_chain = found.count() - of_chain;
    slab->countdown -= static_cast<int32_t>(found.count());
  }
  slab->settle(Slab::Place::kPartial);
  return of_chain;
}

}  // namespace lanemalloc
