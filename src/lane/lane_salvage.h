// What is saved from a lane whose thread was torn off inside it: by a long jump out of a signal
// handler, or by an end without a word. The thread may have stopped at any instruction, so no list
// of the lane is trusted. What a register held is lost: at most what that one call was about.
// Included by lane_work.h only. Locking: the caller has the lane to itself.
//
//   the page map          says which slabs are the lane's
//   a slab's free list    is kept as far as it leads through objects of the slab, each once; so is
//                         what its bin holds
//   the rest of the slab  counts as in use
//   batches, inbox        objects of other lanes, and those that other lanes have sent, go on
//                         their way
#pragma once

#include "lane/lane_work.h"

namespace lanemalloc {

// The owner is kept out all the time: what lies here may be half done.
template <class P>
Lane<P>* AnyLane<P>::hold_again() {
  const auto is_held = [&] {
    if (how == Entry::kPerCpu)
      return here.load(std::memory_order_relaxed) == kRevokedHere && P::restart_here() &&
             here.load(std::memory_order_acquire) == kRevokedHere;  // as in take_from_cpu()
    Slot* slot = owner_slot();
    if (slot == nullptr || rests_) return true;
    if (!is_being_revoked()) return false;
    close_gate();
    return P::barrier() && is_named_by(slot) && is_closed();  // as in take_from_owner()
  };
  return is_held() ? &entered() : nullptr;
}

// chain: what the bin of the slab's class or kind held. It may lie in another slab.
template <class P>
void Lane<P>::salvage_slab(Slab* slab, SlabList& partial, SlabList* full, Object* chain) {
  slabs().give_to(slab, id_);  // if it has several blocks, perhaps only some were written
  const uint32_t of_chain = salvage_objects(slab, slabs().begin(slab), chain);
  if (!slab->is_of_kind()) ClassBin{*this, slab->size_class}.count_returned(of_chain);
  if (slab->has_room()) return partial.push(slab);
  slab->wait_for_frees(slab->capacity());
  if (full != nullptr) full->push(slab);
}

template <class P>
void Lane<P>::salvage(Visit& visit) {
  Object* chains[kClassCount];
  for (unsigned c = 0; c < kClassCount; ++c) {
    chains[c] = heads[c];
    heads[c] = nullptr;
    current_[c] = nullptr;
    partial_[c] = SlabList();
  }
  for (Bin** link = &bins_; *link != nullptr;) {
    Bin& bin = **link;
    if (bin.kind.load(std::memory_order_relaxed) ==
        nullptr) {  // the bin was just being entered, or taken out
      *link = bin.next;
      continue;
    }
    bin.partial = bin.full = SlabList();
    bin.current = nullptr;
    bin.end.store(0, std::memory_order_relaxed);
    link = &bin.next;
  }
  empties_ = EmptySlabs();
  empty_big_ = nullptr;
  empty_blocks_.store(0, std::memory_order_relaxed);
  for (Remote& remote : remotes_) {
    remote.mend([&](Object* object) -> Bytes {
      const MapWord word = world_.region.word_of(object);
      if (!is_private(word.owner()))
        return Batch::places_in(size_of(world_.region.size_class_of(object)));
      const Kind& kind = slabs().at(word)->its_kind();
      return kind.link != 0 ? 0 : Batch::places_in(kind.size);
    });
    if (!remote.is_empty()) claimed_ |= uint64_t{1} << (&remote - remotes_);
  }

  const BlockIndex end = world_.region.opened();
  for (BlockIndex b = 0; b < end; ++b) {
    const MapWord word = world_.region.word(b);
    if (public_of(word.owner()) != id_ || word.state() != &world_.region.state(b)) continue;
    Slab* slab = slabs().at(word);
    if (!slab->is_of_kind()) {
      salvage_slab(slab, partial_[index_of(slab->size_class)], nullptr,
                   chains[index_of(slab->size_class)]);
    } else if (Bin* bin = bin_of(slab->its_kind()); bin != nullptr) {
      slab->bin = bin;
      salvage_slab(slab, bin->partial, &bin->full, bin->head);
    }
  }
  for (Bin* bin = bins_; bin != nullptr; bin = bin->next)
    if (bin->kind.load(std::memory_order_relaxed)->capacity != 0) bin->head = nullptr;
  clean(visit);
}

}  // namespace lanemalloc
