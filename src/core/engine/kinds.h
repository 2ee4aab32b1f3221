// Kinds: what pools and heaps are made of: their families and kinds, and what takes all lanes: to
// allocate at a limit, to gather, to count, to visit, to give back. What a thread does in its own
// lane is in kind_objects.h.
// Called by: engine, heap, pool, abi. Locking: the depot's lock guards the lists of families. Lanes
// are entered one after the other (searches.h).
#pragma once

#include "core/engine/kind_objects.h"
#include "core/engine/searches.h"
#include "core/engine/statistics.h"

namespace lanemalloc {

// How much there is of a kind.
struct KindCount {
  uint64_t slabs, used, waiting;
  int64_t in_flight;
  uint64_t live() const { return not_negative(used - waiting - static_cast<uint64_t>(in_flight)); }
};

template <class P>
class Kinds {
 public:
  constexpr Kinds(World<P>& world, Searches<P>& searches) : world_(world), searches_(searches) {}

  // --- Owners.

  // Enters the family among all others, with a place in the lanes' areas. False if there are too
  // many families, or if the thread cannot get the depot's lock.
  NOINLINE bool add_family(Family& family, Slot& slot) {
    if (!P::barrier()) world_.can_revoke.store(false, std::memory_order_relaxed);
    bool added = false;
    locked(world_, slot, [&] { added = world_.kinds.add(family); });
    return added;
  }

  // Calls run() under the lock that guards these lists. False if the thread cannot get the lock.
  template <class Run>
  static bool locked(World<P>& world, Slot& slot, Run run) {
    Inside inside(slot, Owned::enter(slot));
    inside.visit().insists = Visit::kPatience;
    if (!world.depot.lock().acquire(inside.visit())) return false;
    run();
    world.depot.lock().release(inside.visit());
    return true;
  }

  // From now on lanes have this label for the family: its handle, its handle with kMissed, or 0.
  NOINLINE void relabel(Family& family, Handle label) {
    family.label.store(label, std::memory_order_relaxed);
    P::barrier();  // as Area::give_label() says
    world_.lanes.for_each([&](AnyLane<P>& lane) { lane.relabel(family); });
  }

  // Adds a kind that is whole: from now on all threads see it.
  void add_kind(Family& family, Kind& kind) {
    Kind* first = family.kinds.load(std::memory_order_relaxed);
    // release: a thread that follows the list sees the kind whole [kinds.add]. All kinds go at
    // once, with the family.
    do kind.next = first;
    while (!family.kinds.compare_exchange_weak(first, &kind, std::memory_order_release,
                                               std::memory_order_relaxed) &&
           world_.kinds.kind_tries.failed());
    world_.kinds.kind_tries.done();
  }

  // The family of an object that belongs to some kind.
  const Family* family_of(const void* p) const {
    const MapWord word = world_.region.word_for(p);
    if (!is_private(word.owner())) return nullptr;
    if (public_of(word.owner()) == Owner::kLarge)
      return __atomic_load_n(&static_cast<const LargeState*>(word.state())->family,
                             __ATOMIC_RELAXED);
    return static_cast<const Slab*>(word.state())->its_kind().family;
  }

  // Whether p is the start of one of the kind's objects.
  bool is_start_of(const Kind& kind, const void* p) const {
    const Bytes distance = world_.region.distance(p);
    const MapWord word = world_.region.word_at(distance);
    return kind.starts.have(distance - bytes_of(world_.region.block_of_state(word.state())));
  }

  Address begin_of(const Slab* slab) const {
    return world_.region.address_of(world_.region.block_of_state(slab));
  }

  // --- Objects.

  // Returns null if there is no memory, or if the budget still refuses after other lanes have given
  // what they do not use.
  FAST Object* allocate(Kind& kind, Slot& slot) {
    Object* object = KindObjects<P>::take_from_bin(kind, slot);
    if (LIKELY(object != nullptr)) return object;
    if (world_.lanes.entry() != Entry::kOwned)
      object = KindObjects<P>::take_in_short_stay(world_, kind, slot);
    return LIKELY(object != nullptr) ? object : allocate_in_stay(kind, slot);
  }
  NOINLINE Object* allocate_in_stay(Kind& kind, Slot& slot) {
    for (int attempt = 0;; ++attempt) {
      {
        Stay<P> stay(world_, slot, Owned::enter(slot), true);
        if (stay.lane() == nullptr) return nullptr;
        stay.visit().insists = attempt == 1 ? Visit::kPatience : 0;
        if (Object* object = stay.lane()->allocate(kind, stay.visit())) return object;
      }
      if (attempt == 1) return nullptr;
      // At the limit, what other lanes have cut and do not use will do. Otherwise there is no
      // memory, or another thread has just given some back.
      if (!kind.budget->may_take(kind.size)) {
        gather(*kind.family, slot, true);
      } else {
        searches_.collect(slot);
      }
    }
  }

  // Calls work(lane, visit) inside the thread's lane. False if there is no memory for a lane.
  template <class Work>
  bool in_own_lane(Slot& slot, Work work) {
    Stay<P> stay(world_, slot, Owned::enter(slot), true);
    if (stay.lane() != nullptr) work(*stay.lane(), stay.visit());
    return stay.lane() != nullptr;
  }

  // Gives back what lies empty in the thread's lane.
  NOINLINE void tidy(Family& family, Slot& slot) {
    in_own_lane(slot, [&](Lane<P>& lane, Visit& visit) {
      if (!may_have_any(lane, family)) return;
      lane.drain_inbox(visit);
      for (Kind* kind = family.first_kind(); kind != nullptr; kind = kind->next)
        if (Bin* bin = lane.bin_of(*kind)) lane.clean_kind(*bin, visit);
      lane.give_back_empties(lane.empty_blocks(), visit);
    });
  }

  // --- Large objects of heaps. Such an object is malloc's until the heap has it, and again before
  // it is freed.

  NOINLINE void* allocate_large(Family& family, Bytes size, Bytes alignment, Slot& slot,
                                bool& zeroed) {
    void* p = large().allocate(searches_, size, alignment, slot, Owned::enter(slot), zeroed);
    if (p != nullptr) large().give_to(&family, p);
    return p;
  }

  Bytes large_bytes(const void* p) { return large().bytes(p); }

  // In place, or moved by the kernel; else null. Growth is charged to the budget once the memory is
  // there; what the object gives back is taken off the charge.
  NOINLINE void* resize_large(void* p, Bytes size, Budget& budget, Slot& slot) {
    if (size <= kSlabMax || size >= world_.region.most_bytes()) return nullptr;
    Inside inside(slot, Owned::enter(slot));
    if (!inside.visit().may_block) return nullptr;  // what is charged in vain must go back at once
    const Bytes before = large().bytes(p);
    Family* const family = large_state(world_.region, world_.region.block_of(p)).family;
    large().give_to(nullptr, p);
    void* moved = nullptr;
    if (!large().resize(p, blocks_for(size), inside.visit())) {
      moved = large().move(p, size, inside.visit(), &budget);
    } else if (const Bytes after = large().bytes(p); after <= before) {
      budget.give(before - after);
      moved = p;
    } else if (budget.take(after - before, 1) != 0) {
      moved = p;
    } else {
      large().resize(p, blocks_for(before), inside.visit());
    }
    large().give_to(family, moved != nullptr ? moved : p);
    return moved;
  }

  NOINLINE void free_large(void* p, Slot& slot) {
    large().give_to(nullptr, p);
    Inside inside(slot, Owned::enter(slot));
    large().free(p, inside.visit());
  }

  // Visits every object that is there all the time, and some of the others. Calls visit(p) until it
  // returns true.
  template <class Visitor>
  void for_each_large(const Family& family, Visitor visit) {
    const Region<P>& region = world_.region;
    for (BlockIndex at = 0; at < world_.runs.used_end(); ++at)
      if (region.word(at).owner() == private_of(Owner::kLarge) &&
          family_of(region.pointer_to(at)) == &family)
        if (visit(region.pointer_to(at))) return;
  }

  // --- All lanes.

  // Calls work() while no other thread looks into all lanes, as gather() does. False if work() was
  // not called: a handler may not wait for that.
  template <class Work>
  bool one_at_a_time(Slot& slot, Work work) {
    typename Searches<P>::Turn turn(searches_, slot);
    if (turn.is_alone()) work();
    return turn.is_alone();
  }

  // Calls take(lane, visit) inside each lane that may have any, and then, outside, put(object) with
  // what take() has returned. Otherwise as gather().
  template <class Take, class Put>
  bool in_each_lane(Family& family, Slot& slot, bool wait, Take take, Put put) {
    typename Searches<P>::Turn turn(searches_, slot);
    bool all = true;
    world_.lanes.for_each([&](AnyLane<P>& lane) {
      if (!may_have_any(lane, family)) return;
      Object* found = nullptr;
      all &= searches_.in_lane(lane, slot, wait,
                               [&](Lane<P>& held, Visit& visit) { found = take(held, visit); });
      put(found);
    });
    return all;
  }

  // Makes lanes give away what they have of the family's kinds and do not use, to the depot or
  // back. wait: also lanes whose threads are inside just now, as far as the caller may wait. True
  // if all lanes could be reached.
  //
  // At least two rounds: the second takes in what the first has sent, or what other threads have
  // sent meanwhile. Further rounds while anything has been sent: an object whose slab has moved on
  // is sent after it.
  NOINLINE bool gather(Family& family, Slot& slot, bool wait) {
    constexpr int kMostRounds = 8;
    typename Searches<P>::Turn turn(searches_, slot);
    bool all = true, moved = true;
    for (int round = 0; round < 2 || (moved && round < kMostRounds); ++round) {
      moved = false;
      world_.lanes.for_each([&](AnyLane<P>& lane) {
        if (!may_have_any(lane, family)) return;
        all &= searches_.in_lane(lane, slot, wait, [&](Lane<P>& held, Visit& visit) {
          moved |= held.drain_inbox(visit);
          moved |= held.flush_all(visit);
          for (Kind* kind = family.first_kind(); kind != nullptr; kind = kind->next)
            if (Bin* bin = held.bin_of(*kind)) {
              held.offer_full(*bin);
              held.clean_kind(*bin, visit);
            }
        });
      });
    }
    return all;
  }

  NOINLINE KindCount count(Kind& kind, Slot& slot) {
    KindCount count{};
    typename Searches<P>::Turn turn(searches_, slot);
    const auto add = [&](const Slab* slab) {
      ++count.slabs;
      count.used += slab->used();
    };
    in_each_bin(kind, slot, [&](const Lane<P>& lane, const Bin& bin) {
      lane.for_each_slab(bin, add);
      count.waiting +=
          kind.capacity != 0 ? lane.bin_length(bin) : bin.in_flight.load(std::memory_order_relaxed);
      count.in_flight += bin.in_flight.load(std::memory_order_relaxed);
    });
    locked(world_, slot, [&] { kind.depot.for_each(add); });
    count.in_flight += kind.in_flight.load(std::memory_order_relaxed);
    return count;
  }

  // Calls visit(slab) for each slab of a kind that no thread uses meanwhile, after gather(): so the
  // slabs stay, and none is empty. False if there is no memory for notes.
  template <class Visitor>
  bool for_each_slab(Kind& kind, Slot& slot, Visitor visit) {
    const uint32_t most = kind.slabs.load(std::memory_order_relaxed);
    auto** notes = static_cast<const Slab**>(
        Misses<P>::allocate_in_stay(searches_, most * sizeof(Slab*), slot, Owned::enter(slot)));
    if (notes == nullptr) return false;
    uint32_t n = 0;
    const auto note = [&](const Slab* slab) {
      for (; slab != nullptr && n < most; slab = slab->next) notes[n++] = slab;
    };
    in_each_bin(kind, slot, [&](const Lane<P>&, const Bin& bin) {
      note(bin.partial.first());
      note(bin.full.first());
    });
    locked(world_, slot, [&] { note(kind.depot.first()); });
    for (uint32_t i = 0; i < n; ++i) visit(notes[i]);
    Misses<P>::free_in_stay(world_, notes, slot, Owned::enter(slot));
    return true;
  }

  // Calls visit(object) for each live object of such a slab until visit() returns another value
  // than 0, and returns that value.
  template <class Visitor>
  int for_each_live(const Kind& kind, const Slab* slab, Visitor visit) const {
    constexpr uint32_t kMost = kBlockSize / kGranule;
    static_assert(kMost >= kBlockSize / sizeof(Object));
    uint64_t is_free[kMost / 64]{};
    const Address begin = begin_of(slab);
    const Extent extent = world_.slabs().extent(slab);
    Link link = slab->free_list;
    for (uint32_t n = 0; n < slab->carved; ++n) {
      const Object* object = extent.follow(link);
      if (object == nullptr) break;
      link = object->next;
      const Bytes i = (reinterpret_cast<Address>(object) - begin) / kind.size;
      is_free[i / 64] |= uint64_t{1} << (i % 64);
    }
    for (uint32_t i = 0; i < slab->carved; ++i) {
      if ((is_free[i / 64] >> (i % 64) & 1) != 0) continue;
      if (const int stop = visit(reinterpret_cast<void*>(begin + Bytes{i} * kind.size)); stop != 0)
        return stop;
    }
    return 0;
  }

  // --- The end.

  // Takes the family and all its slabs out; `each(kind, slab)` sees each slab before its memory
  // goes. False: some lanes could not be reached. What they hold is lost, and so is the family's
  // place.
  template <class Each>
  bool dissolve(Family& family, Slot& slot, Each each) {
    bool all = gather(family, slot, true);
    SlabList slabs;
    {
      typename Searches<P>::Turn turn(searches_, slot);
      world_.lanes.for_each([&](AnyLane<P>& lane) {
        if (!may_have_any(lane, family)) return;
        if (lane.is_set_aside()) all = false;
        all &= searches_.in_lane(lane, slot, true, [&](Lane<P>& held, Visit& visit) {
          for (Kind* kind = family.first_kind(); kind != nullptr; kind = kind->next)
            if (Bin* bin = held.bin_of(*kind)) held.forget_kind(*bin, slabs, visit);
          held.forget_table(family, visit);
        });
      });
    }
    {
      Inside inside(slot, Owned::enter(slot));
      inside.visit().insists = Visit::kPatience;
      for (Kind* kind = family.first_kind(); kind != nullptr; kind = kind->next)
        world_.depot.take_out(*kind, true, 0, slabs, inside.visit());
    }
    destroy(slabs, slot, [&](const Slab* slab) {
      each(slab->its_kind(), slab);
      unmark(slab);
    });
    // A bin that could not be reached keeps its place in the lane.
    if (all) locked(world_, slot, [&] { world_.kinds.remove(family); });
    return all;
  }

  // Gives back empty slabs of the kind that lie between the lanes, while at least `least_free` free
  // objects stay there; `each(slab)` sees each slab before.
  template <class Each>
  void give_back_empties(Kind& kind, uint64_t least_free, Slot& slot, Each each) {
    SlabList empties;
    {
      Inside inside(slot, Owned::enter(slot));
      world_.depot.take_out(kind, false, least_free, empties, inside.visit());
    }
    destroy(empties, slot, each);
  }

  // Each slab is in one place, and what is cut is what the budget says. Lanes that a fork child has
  // set aside are not looked into. So then there may be more than is found; the same holds after a
  // thread was torn off.
  void check_invariants() {
    world_.kinds.for_each([&](Family& family) {
      for (Kind* kind = family.first_kind(); kind != nullptr; kind = kind->next)
        check_invariants(family, *kind);
    });
  }

 private:
  Large<P> large() { return Large<P>(world_); }

  bool may_have_any(const AnyLane<P>& lane, const Family& family) const {
    for (const Kind* kind = family.first_kind(); kind != nullptr; kind = kind->next)
      if (lane.bin_of(*kind) != nullptr || kind->strays.load(std::memory_order_relaxed))
        return true;
    return false;
  }

  // Calls work(lane, bin) inside each lane that has a bin of the kind.
  template <class Work>
  void in_each_bin(Kind& kind, Slot& slot, Work work) {
    world_.lanes.for_each([&](AnyLane<P>& lane) {
      if (lane.bin_of(kind) == nullptr) return;
      searches_.in_lane(lane, slot, true,
                        [&](Lane<P>& held, Visit&) { work(held, *held.bin_of(kind)); });
    });
  }

  template <class Each>
  void destroy(SlabList& slabs, Slot& slot, Each each) {
    while (Slab* slab = slabs.pop()) {
      each(slab);
      Inside inside(slot, Owned::enter(slot));
      world_.slabs().destroy(slab, inside.visit());
    }
  }

  // With checked=1: removes the marks of a slab that goes with objects in use.
  void unmark(const Slab* slab) {
    if (!world_.settings.checked) return;
    const Address end = begin_of(slab) + bytes_of(slab->blocks());
    for (Address at = begin_of(slab); at < end; at += kGranule)
      Pointers<P>(world_).mark_free(reinterpret_cast<void*>(at));
  }

  void check_invariants(const Family& family, Kind& kind) {
    uint64_t slabs = 0, carved = 0, in_depot = 0;
    const auto add = [&](const Slab* slab) {
      CHECK(slab->is_of_kind() && &slab->its_kind() == &kind);
      ++slabs;
      carved += slab->carved;
    };
    bool all = !world_.was_torn.load(std::memory_order_relaxed);
    world_.lanes.for_each([&](AnyLane<P>& lane) {
      all &= !lane.is_set_aside();
      const Bin* bin = lane.bin_of(kind);
      if (bin != nullptr && !lane.is_set_aside()) lane.at_rest().for_each_slab(*bin, add);
    });
    kind.depot.for_each([&](const Slab* slab) {
      add(slab);
      ++in_depot;
      CHECK(slab->place == Slab::Place::kPartial && slab->bin == nullptr && slab->has_room());
      CHECK(world_.region.word(world_.region.block_of_state(slab)).owner() ==
            private_of(Owner::kDepot));
    });
    CHECK(in_depot == kind.depot_count.load(std::memory_order_relaxed));
    const uint64_t known = kind.slabs.load(std::memory_order_relaxed);
    CHECK(all ? slabs == known : slabs <= known);
    const Bytes cut = carved * kind.size, used = kind.budget->used();
    const bool is_all = all && family.type == Family::Type::kPool && kind.capacity != 0;
    CHECK(is_all ? cut == used : cut <= used);
    CHECK(kind.budget->peak() >= used);
  }

  World<P>& world_;
  Searches<P>& searches_;
};

}  // namespace lanemalloc
