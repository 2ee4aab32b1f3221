// Depot: the slabs that no lane owns. Lanes at rest give them, and lanes that need one take them.
// Called by: lane (miss, flush of frees), scavenger (cleaning). Locking: rank kDepot for everything
// but the hints. Invariant: every slab in it has free objects and some in use, and its page-map
// owner is kDepot.
#pragma once

#include "core/slab/batch.h"
#include "core/slab/slab_salvage.h"

namespace lanemalloc {

template <class P>
class Depot {
 public:
  explicit constexpr Depot(Slabs<P> slabs) : slabs_(slabs) {}

  // Takes a slab of the class for `owner`. Returns null if there is none, or if the thread cannot
  // get the lock.
  Slab* take(SizeClass c, Owner owner, Visit& visit) {
    return take({lists_[index_of(c)], counts_[index_of(c)]}, owner, nullptr, visit,
                [](SlabList& slabs) { return slabs.pop(); });
  }
  // The same for a kind, for a lane's bin. At a limit only a slab with free objects will do.
  Slab* take(Kind& kind, Owner owner, Bin* bin, Visit& visit) {
    return take({kind.depot, kind.depot_count}, owner, bin, visit, [&](SlabList& slabs) {
      Slab* slab = slabs.first_with_free();
      if (slab == nullptr && kind.budget->may_take(kind.size)) slab = slabs.first();
      if (slab != nullptr) slabs.remove(slab);
      return slab;
    });
  }

  // Gives the depot a slab that is in no list. False if the thread cannot get the lock; then
  // nothing has changed.
  bool give(Slab* slab, Visit& visit) {
    if (!lock_.acquire(visit)) return false;
    slab->settle(Slab::Place::kPartial);
    slab->depot_life = life_;
    slab->bin = nullptr;
    slabs_.give_to(slab, Owner::kDepot);
    const Shelf shelf = shelf_of(slab);
    shelf.slabs.push(slab);
    bump(shelf.count);
    bump(moved_);
    lock_.release(visit);
    return true;
  }

  // Takes a kind's slabs out, to be given back: all of them, or empty ones while the others have at
  // least `least_free` free objects. Then they are in `into` and belong to nobody. False if the
  // thread cannot get the lock.
  bool take_out(Kind& kind, bool all, uint64_t least_free, SlabList& into, Visit& visit) {
    if (!lock_.acquire(visit)) return false;
    uint64_t free = 0;
    kind.depot.for_each([&](const Slab* slab) { free += slab->free_objects(); });
    kind.depot.for_each([&](Slab* slab) {
      if (!all && (slab->used() != 0 || free < least_free + slab->carved)) return;
      free -= slab->free_objects();
      kind.depot.remove(slab);
      bump(kind.depot_count, ~uint32_t{0});
      into.push(slab);
    });
    lock_.release(visit);
    return true;
  }

  // Frees a batch of objects whose slabs are here, or were here when the objects were freed. Hands
  // objects whose slabs have moved on since to `moved_on(object)`. Calls `damaged(object)` after a
  // double free or a write to a free object; object is null if it is not known. False if the
  // thread cannot get the lock; then nothing has changed.
  template <class MovedOn, class Damaged>
  bool free(Object* batch, Visit& visit, MovedOn moved_on, Damaged damaged) {
    if (!lock_.acquire(visit)) return false;
    Chained* others = nullptr;
    const Object* bad = nullptr;
    const auto is_object = [&](const void* p) { return slabs_.may_hold(p); };
    const bool is_sound = Batch::for_each(batch, is_object, [&](Object* object) {
      const MapWord word = slabs_.region.word_of(object);
      if (public_of(word.owner()) != Owner::kDepot) {
        auto* other = reinterpret_cast<Chained*>(object);
        other->next = others;
        others = other;
        return;
      }
      Slab* slab = slabs_.at(word);
      if (UNLIKELY(slab->is_of_kind())) {
        slab->its_kind().in_flight.fetch_sub(1, std::memory_order_relaxed);
      } else {
        bump(freed_[index_of(slab->size_class)]);
      }
      if (slab->depot_life != life_ || !slab->push(object) || slab->is_kept()) return;
      const Shelf shelf = shelf_of(slab);
      shelf.slabs.remove(slab);
      bump(shelf.count, ~uint32_t{0});
      if (LIKELY(slab->free_list_looks_whole(slabs_.begin(slab)))) {
        slabs_.destroy(slab, visit);
      } else {
        bad = object;
        lose(slab);
      }
    });
    lock_.release(visit);
    if (UNLIKELY(bad != nullptr || !is_sound)) damaged(bad);
    while (others != nullptr) {
      auto* object = reinterpret_cast<Object*>(others);
      others = others->next;
      moved_on(object);
    }
    return true;
  }

  Lock<P>& lock() { return lock_; }
  const Lock<P>& lock() const { return lock_; }
  // In a fork child, if a thread that does not exist there was at work here: leaves all slabs here
  // alone for good.
  void abandon() {
    for (SlabList& list : lists_) list = SlabList();
    for (auto& count : counts_) count.store(0, std::memory_order_relaxed);
    ++life_;  // slabs of the life before are in no list: what is freed into them stays there
  }

  // A thread that was torn off holds the lock. Puts the depot together again from what the page map
  // says is here.
  NOINLINE void salvage(KindTable& kinds) {
    for (SlabList& list : lists_) list = SlabList();
    for (auto& count : counts_) count.store(0, std::memory_order_relaxed);
    kinds.for_each([](Family& family) { forget_slabs_of(family); });
    const Region<P>& region = slabs_.region;
    for (BlockIndex b = 0, end = region.opened(); b < end; ++b) {
      const MapWord word = region.word(b);
      if (public_of(word.owner()) != Owner::kDepot || word.state() != &region.state(b)) continue;
      Slab* slab = slabs_.at(word);
      if (slab->depot_life != life_) continue;  // lost before
      slabs_.give_to(slab, Owner::kDepot);      // perhaps only some of its blocks were written
      slab->bin = nullptr;
      salvage_objects(slab, slabs_.begin(slab), Link::none());
      if (!slab->has_room()) {
        lose(slab);
        continue;
      }
      const Shelf shelf = shelf_of(slab);
      shelf.slabs.push(slab);
      bump(shelf.count);
    }
  }
  // The family's slabs here are found anew, or are gone.
  static void forget_slabs_of(Family& family) {
    for (Kind* kind = family.first_kind(); kind != nullptr; kind = kind->next) {
      kind->depot = SlabList();
      kind->depot_count.store(0, std::memory_order_relaxed);
    }
  }

  // Objects of a class that were freed here; single writer under the lock.
  uint64_t freed(unsigned c) const { return freed_[c].load(std::memory_order_relaxed); }
  uint64_t moved() const { return moved_.load(std::memory_order_relaxed); }

  void check_invariants() const {
    for (unsigned c = 1; c < kClassCount; ++c) {
      uint32_t slabs = 0;
      for (const Slab* slab = lists_[c].first(); slab != nullptr; slab = slab->next, ++slabs) {
        CHECK(index_of(slab->size_class) == c && slab->place == Slab::Place::kPartial);
        CHECK(slab->used() > 0 && slab->has_room());
        CHECK(slabs_.region.word(slabs_.region.block_of_state(slab)).owner() == Owner::kDepot);
      }
      CHECK(slabs == counts_[c].load(std::memory_order_relaxed));
    }
  }

 private:
  // As after abandon(): the slab is in no list, and is never looked at.
  void lose(Slab* slab) { slab->depot_life = static_cast<uint8_t>(life_ - 1); }

  struct Shelf {
    SlabList& slabs;
    std::atomic<uint32_t>& count;
  };
  Shelf shelf_of(const Slab* slab) {
    if (UNLIKELY(slab->is_of_kind())) return {slab->its_kind().depot, slab->its_kind().depot_count};
    return {lists_[index_of(slab->size_class)], counts_[index_of(slab->size_class)]};
  }
  template <class Pick>
  FAST Slab* take(Shelf shelf, Owner owner, Bin* bin, Visit& visit, Pick pick) {
    // relaxed: a hint; a slab that is missed now is found at the next miss.
    if (shelf.count.load(std::memory_order_relaxed) == 0 || !lock_.acquire(visit)) return nullptr;
    Slab* slab = pick(shelf.slabs);
    if (slab != nullptr) {
      bump(shelf.count, ~uint32_t{0});
      bump(moved_);
      slab->bin = bin;
      slabs_.give_to(slab, owner);
    }
    lock_.release(visit);
    return slab;
  }
  SHOWN_BY_LAYOUT;

  Slabs<P> slabs_;
  alignas(kNoSharing) Lock<P> lock_{Rank::kDepot};
  SlabList lists_[kClassCount];
  uint8_t life_ = 0;
  std::atomic<uint64_t> freed_[kClassCount]{};
  std::atomic<uint64_t> moved_{0};
  // Every lane reads these at a miss. So they lie apart from what the holder of the lock writes.
  alignas(kNoSharing) std::atomic<uint32_t> counts_[kClassCount]{};
};

}  // namespace lanemalloc
