// What the engine does for kinds: the objects of pools and heaps. Included by engine.h only; see
// there.
#pragma once

#include "core/engine/engine.h"

namespace lanemalloc {

template <class P>
bool Engine<P>::add_owner(KindOwner& owner, Slot& slot) {
  if (!P::barrier()) world_.can_revoke.store(false, std::memory_order_relaxed);
  bool added = false;
  locked(slot, [&] { added = world_.kinds.add(owner); });
  return added;
}

template <class P>
void Engine<P>::relabel(KindOwner& owner, Handle label) {
  owner.label.store(label, std::memory_order_relaxed);
  P::barrier();  // as Area::give_label() says
  world_.lanes.for_each([&](AnyLane<P>& lane) { lane.relabel(owner); });
}

template <class P>
void Engine<P>::add_kind(KindOwner& owner, Kind& kind) {
  Kind* first = owner.kinds.load(std::memory_order_relaxed);
  // release: a thread that follows the list sees the kind whole [kinds.add]. All kinds go at once,
  // with the owner.
  do kind.next = first;
  while (!owner.kinds.compare_exchange_weak(first, &kind, std::memory_order_release,
                                            std::memory_order_relaxed) &&
         world_.kinds.kind_tries.failed());
  world_.kinds.kind_tries.done();
}

// --- Allocating and freeing.

template <class P>
template <class Place>
FAST Object* Engine<P>::take_from_bin_of(const Place& place, Slot& slot) {
  Gate* gate = Owned::enter(slot);
  const Address area = Owned::area(gate);
  Bin* bin;
  void* object = nullptr;
  if (LIKELY(area != 0)) {
    if (LIKELY(Area::find_bin(area, place, bin))) object = bin->pop();
  } else if (const Address here = PerCpu::area(gate);
             here != 0 && Area::find_bin(here, place, bin)) {
    if (!PerCpu::pop_off<P>(gate, bin->head, object)) object = nullptr;
  }
  object != nullptr ? Owned::leave(slot, gate) : Owned::leave_as_found(slot, gate);
  return static_cast<Object*>(object);
}

template <class P>
Object* Engine<P>::take_in_short_stay_of(const Kind& kind, Slot& slot) {
  Gate* gate = Owned::enter(slot);
  ShortStay<P> stay(world_, slot, gate);
  if (stay.lane() == nullptr) return Owned::leave_as_found(slot, gate), nullptr;
  Bin* bin = stay.lane()->bin_of(kind);
  Object* object = LIKELY(bin != nullptr) ? bin->pop() : nullptr;
  stay.end(slot, true);
  return object;
}

template <class P>
bool Engine<P>::free_in_short_stay_of(const Kind& kind, Object* object, Slot& slot) {
  Gate* gate = Owned::enter(slot);
  bool done = false;
  if (Owned::area(gate) != 0) {
    if (LIKELY(kind_at(object) == &kind))
      done = lane_behind<P>(gate)->send_to_open_batch(object, world_.region.word_of(object), kind);
    done ? Owned::leave(slot, gate) : Owned::leave_as_found(slot, gate);
    return done;
  }
  ShortStay<P> stay(world_, slot, gate);
  if (stay.lane() == nullptr) return Owned::leave_as_found(slot, gate), false;
  Bin* bin = stay.lane()->bin_of(kind);
  done = LIKELY(bin != nullptr) && bin->push(object);
  if (!done && (done = kind_at(object) == &kind))
    stay.lane()->free_of_kind(object, world_.region.word_of(object), stay.visit());
  stay.end(slot, true);
  return done;
}

template <class P>
Object* Engine<P>::allocate_of(Kind& kind, Slot& slot) {
  if (Object* object = take_from_bin_of(kind, slot); LIKELY(object != nullptr)) return object;
  if (entry() != Entry::kOwned)
    if (Object* object = take_in_short_stay_of(kind, slot); LIKELY(object != nullptr))
      return object;
  for (int attempt = 0;; ++attempt) {
    {
      Stay<P> stay(world_, slot, Owned::enter(slot), true);
      if (stay.lane() == nullptr) return nullptr;
      stay.visit().insists = attempt == 1 ? Visit::kPatience : 0;
      if (Object* object = stay.lane()->allocate(kind, stay.visit())) return object;
    }
    if (attempt == 1) return nullptr;
    // At the limit, what other lanes have cut and do not use will do. Otherwise there is no memory,
    // or another thread has just given some back.
    if (!kind.budget->may_take(kind.size)) {
      gather(*kind.owner, slot, true);
    } else {
      searches_.collect(slot);
    }
  }
}

// The bin is tried first, as in a hit, so that the next allocation has the object. Then the page
// map tells, as in malloc's free.
template <class P>
template <class Place, class Look>
FAST bool Engine<P>::free_to_slab_or_batch(const Place& place, Object* object, Slot& slot,
                                           Look look, Bin*& bin) {
  Gate* gate = Owned::enter(slot);
  const Address area = Owned::area(gate);
  const auto free_and = [&](auto leave) __attribute__((always_inline)) {
    if (UNLIKELY(!bin->push(object))) {
      const MapWord word = world_.region.word_for(object);
      Slab* slab = static_cast<Slab*>(word.state());
      const bool is_here = word.owner() == private_of(lane_behind<P>(gate)->id());
      if (UNLIKELY(!is_here || slab->bin != bin))
        return leave(), Owned::leave_as_found(slot, gate), false;
      if (UNLIKELY(slab->push(object))) return look(gate, slab), true;
    }
    leave();
    return Owned::leave(slot, gate), true;
  };
  if (LIKELY(area != 0)) {
    if (LIKELY(Area::find_bin(area, place, bin))) return free_and([] {});
  } else if (const Address here = PerCpu::area(gate);
             here != 0 && Area::find_bin(here, place, bin)) {
    uint64_t seen;
    uint32_t free;
    if (LIKELY(PerCpu::enter_for<P>(gate, PerCpu::area_here(gate), seen, free)))
      return free_and([=] { PerCpu::leave(gate, free); });
  }
  return Owned::leave_as_found(slot, gate), false;
}

template <class P>
void Engine<P>::free_of(Kind& kind, Object* object, Slot& slot) {
  if (free_in_short_stay_of(kind, object, slot)) return;
  Stay<P> stay(world_, slot, Owned::enter(slot), true);
  // Read inside: before that, the slab may have gone to the depot or come from it.
  const MapWord word = world_.region.word_of(object);
  if (LIKELY(stay.lane() != nullptr)) return stay.lane()->free_of_kind(object, word, stay.visit());
  // There is no memory for a lane. A batch of one object goes straight to the owner, or to some
  // lane, which sends it on.
  kind.in_flight.fetch_add(1, std::memory_order_relaxed);
  kind.strays.store(true, std::memory_order_relaxed);
  object->next = nullptr;
  std::atomic_thread_fence(std::memory_order_acquire);  // as in Lane::flush
  const Owner owner = public_of(word.owner());
  world_.lanes.at(is_lane(owner) ? owner : Owner::kFirstLane).inbox().give(object);
}

// Many objects in one stay, but so few that a thread that wants the lane need not wait long.
template <class P>
size_t Engine<P>::allocate_batch_of(Kind& kind, void** objects, size_t n, Slot& slot) {
  constexpr size_t kMost = 256;
  for (size_t had = 0; had < n;) {
    Stay<P> stay(world_, slot, Owned::enter(slot), true);
    if (stay.lane() == nullptr) return had;
    for (const size_t end = n - had < kMost ? n : had + kMost; had < end; ++had)
      if ((objects[had] = stay.lane()->allocate(kind, stay.visit())) == nullptr) return had;
  }
  return n;
}

template <class P>
size_t Engine<P>::free_batch_of(const KindOwner& owner, void** objects, size_t n, Slot& slot) {
  constexpr size_t kMost = 256;
  for (size_t freed = 0; freed < n;) {
    Stay<P> stay(world_, slot, Owned::enter(slot), true);
    if (stay.lane() == nullptr) return freed;
    Lane<P>& lane = *stay.lane();
    for (const size_t end = n - freed < kMost ? n : freed + kMost; freed < end; ++freed) {
      Object* object = static_cast<Object*>(objects[freed]);
      const MapWord word = world_.region.word_for(object);
      Slab* slab = static_cast<Slab*>(word.state());
      const bool is_here = word.owner() == private_of(lane.id());
      const bool is_of_kind = LIKELY(is_here) || kind_at(object) != nullptr;
      if (UNLIKELY(!is_of_kind || slab->its_kind().owner != &owner)) return freed;
      is_here ? lane.free_own(object, slab, stay.visit())
              : lane.free_of_kind(object, word, stay.visit());
    }
  }
  return n;
}

template <class P>
FAST Kind* Engine<P>::kind_at(const void* p) const {
  const MapWord word = world_.region.word_for(p);
  if (!is_private(word.owner()) || !is_slab(public_of(word.owner()))) return nullptr;
  return static_cast<const Slab*>(word.state())->kind.load(std::memory_order_relaxed);
}

template <class P>
const KindOwner* Engine<P>::owner_of(const void* p) const {
  const MapWord word = world_.region.word_for(p);
  if (!is_private(word.owner())) return nullptr;
  if (public_of(word.owner()) == Owner::kLarge)
    return __atomic_load_n(&static_cast<const LargeState*>(word.state())->owner, __ATOMIC_RELAXED);
  return static_cast<const Slab*>(word.state())->its_kind().owner;
}

template <class P>
void* Engine<P>::allocate_large_of(KindOwner& owner, Bytes size, Bytes alignment, Slot& slot,
                                   bool& zeroed) {
  void* p = large().allocate(size, alignment, slot, Owned::enter(slot), zeroed);
  if (p != nullptr) large().give_to(&owner, p);
  return p;
}

template <class P>
void* Engine<P>::resize_large_of(void* p, Bytes size, Budget& budget, Slot& slot) {
  if (size <= kSlabMax || size >= world_.region.most_bytes()) return nullptr;
  Inside inside(slot, Owned::enter(slot));
  if (!inside.visit().may_block) return nullptr;  // what is charged in vain must go back at once
  const Bytes before = large().bytes(p);
  KindOwner* const owner = large_state(world_.region, world_.region.block_of(p)).owner;
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
  large().give_to(owner, moved != nullptr ? moved : p);
  return moved;
}

template <class P>
void Engine<P>::free_large_of(void* p, Slot& slot) {
  large().give_to(nullptr, p);
  Inside inside(slot, Owned::enter(slot));
  large().free(p, inside.visit());
}

// Visits every object that is there all the time, and some of the others. Calls visit(p) until it
// returns true.
template <class P>
template <class Visitor>
void Engine<P>::for_each_large(const KindOwner& owner, Visitor visit) {
  const Region<P>& region = world_.region;
  for (BlockIndex at = 0; at < world_.runs.used_end(); ++at)
    if (region.word(at).owner() == private_of(Owner::kLarge) &&
        owner_of(region.pointer_to(at)) == &owner)
      if (visit(region.pointer_to(at))) return;
}

template <class P>
bool Engine<P>::is_start_of(const Kind& kind, const void* p) const {
  const Bytes distance = world_.region.distance(p);
  const MapWord word = world_.region.word_at(distance);
  const Bytes into = distance - bytes_of(world_.region.block_of_state(word.state()));
  return into % kind.size == 0 && into / kind.size < kind.capacity;
}

// --- All lanes.

template <class P>
bool Engine<P>::may_have_any(const AnyLane<P>& lane, const KindOwner& owner) const {
  for (const Kind* kind = owner.first_kind(); kind != nullptr; kind = kind->next)
    if (lane.bin_of(*kind) != nullptr || kind->strays.load(std::memory_order_relaxed)) return true;
  return false;
}

template <class P>
template <class Work>
bool Engine<P>::in_own_lane(Slot& slot, Work work) {
  Stay<P> stay(world_, slot, Owned::enter(slot), true);
  if (stay.lane() != nullptr) work(*stay.lane(), stay.visit());
  return stay.lane() != nullptr;
}

template <class P>
template <class Take, class Put>
bool Engine<P>::in_each_lane(KindOwner& owner, Slot& slot, bool wait, Take take, Put put) {
  typename Searches<P>::Turn turn(searches_, slot);
  bool all = true;
  world_.lanes.for_each([&](AnyLane<P>& lane) {
    if (!may_have_any(lane, owner)) return;
    Object* found = nullptr;
    all &= searches_.in_lane(lane, slot, wait,
                             [&](Lane<P>& held, Visit& visit) { found = take(held, visit); });
    put(found);
  });
  return all;
}

// At least two rounds: the second takes in what the first has sent, or what other threads have sent
// meanwhile. Further rounds while anything has been sent: an object whose slab has moved on is sent
// after it.
template <class P>
bool Engine<P>::gather(KindOwner& owner, Slot& slot, bool wait) {
  constexpr int kMostRounds = 8;
  typename Searches<P>::Turn turn(searches_, slot);
  bool all = true, moved = true;
  for (int round = 0; round < 2 || (moved && round < kMostRounds); ++round) {
    moved = false;
    world_.lanes.for_each([&](AnyLane<P>& lane) {
      if (!may_have_any(lane, owner)) return;
      all &= searches_.in_lane(lane, slot, wait, [&](Lane<P>& held, Visit& visit) {
        moved |= held.drain_inbox(visit);
        moved |= held.flush_all(visit);
        for (Kind* kind = owner.first_kind(); kind != nullptr; kind = kind->next)
          if (Bin* bin = held.bin_of(*kind)) {
            held.offer_full(*bin);
            held.clean_kind(*bin, visit);
          }
      });
    });
  }
  return all;
}

// With checked=1: removes the marks of a slab that goes with objects in use.
template <class P>
void Engine<P>::unmark(const Slab* slab) {
  if (!world_.settings.checked) return;
  for (Address at = begin_of(slab); at < begin_of(slab) + bytes_of(slab->blocks()); at += kGranule)
    pointers().mark_free(reinterpret_cast<void*>(at));
}

template <class P>
void Engine<P>::tidy(KindOwner& owner, Slot& slot) {
  Stay<P> stay(world_, slot, Owned::enter(slot), true);
  Lane<P>* lane = stay.lane();
  if (lane == nullptr || !may_have_any(*lane, owner)) return;
  lane->drain_inbox(stay.visit());
  for (Kind* kind = owner.first_kind(); kind != nullptr; kind = kind->next)
    if (Bin* bin = lane->bin_of(*kind)) lane->clean_kind(*bin, stay.visit());
  lane->give_back_empties(lane->empty_blocks(), stay.visit());
}

template <class P>
typename Engine<P>::KindCount Engine<P>::count_kind(Kind& kind, Slot& slot) {
  KindCount count{};
  typename Searches<P>::Turn turn(searches_, slot);
  const auto add = [&](const Slab* slab) {
    ++count.slabs;
    count.used += slab->used();
  };
  world_.lanes.for_each([&](AnyLane<P>& lane) {
    if (lane.bin_of(kind) == nullptr) return;
    searches_.in_lane(lane, slot, true, [&](Lane<P>& held, Visit&) {
      const Bin& bin = *held.bin_of(kind);
      bin.for_each_slab(add);
      for (const Object* object = bin.head; object != nullptr; object = object->next)
        ++count.waiting;
      count.in_flight += bin.in_flight.load(std::memory_order_relaxed);
    });
  });
  locked(slot, [&] { kind.depot.for_each(add); });
  count.in_flight += kind.in_flight.load(std::memory_order_relaxed);
  return count;
}

// The slabs stay while they are visited: no thread uses the kind, and no slab is empty. False if
// there is no memory for notes.
template <class P>
template <class Visitor>
bool Engine<P>::for_each_slab(Kind& kind, Slot& slot, Visitor visit) {
  const uint32_t most = kind.slabs.load(std::memory_order_relaxed);
  auto** notes = static_cast<const Slab**>(allocate(most * sizeof(Slab*), slot));
  if (notes == nullptr) return false;
  uint32_t n = 0;
  const auto note = [&](const Slab* slab) {
    for (; slab != nullptr && n < most; slab = slab->next) notes[n++] = slab;
  };
  world_.lanes.for_each([&](AnyLane<P>& lane) {
    if (lane.bin_of(kind) == nullptr) return;
    searches_.in_lane(lane, slot, true, [&](Lane<P>& held, Visit&) {
      note(held.bin_of(kind)->partial.first());
      note(held.bin_of(kind)->full.first());
    });
  });
  locked(slot, [&] { note(kind.depot.first()); });
  for (uint32_t i = 0; i < n; ++i) visit(notes[i]);
  free(notes, slot);
  return true;
}

template <class P>
template <class Visitor>
int Engine<P>::for_each_live(const Kind& kind, const Slab* slab, Visitor visit) const {
  constexpr uint32_t kMost = kBlockSize / kGranule;
  static_assert(kMost >= kBlockSize / sizeof(Object));
  uint64_t is_free[kMost / 64]{};
  const Address begin = begin_of(slab);
  for (const Object* object = slab->free_list; object != nullptr; object = object->next) {
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

template <class P>
template <class Each>
bool Engine<P>::dissolve(KindOwner& owner, Slot& slot, Each each) {
  bool all = gather(owner, slot, true);
  SlabList slabs;
  {
    typename Searches<P>::Turn turn(searches_, slot);
    world_.lanes.for_each([&](AnyLane<P>& lane) {
      if (!may_have_any(lane, owner)) return;
      if (lane.is_set_aside()) all = false;
      all &= searches_.in_lane(lane, slot, true, [&](Lane<P>& held, Visit& visit) {
        for (Kind* kind = owner.first_kind(); kind != nullptr; kind = kind->next)
          if (Bin* bin = held.bin_of(*kind)) held.forget_kind(*bin, slabs, visit);
        held.forget_table(owner, visit);
      });
    });
  }
  {
    Inside inside(slot, Owned::enter(slot));
    inside.visit().insists = Visit::kPatience;
    for (Kind* kind = owner.first_kind(); kind != nullptr; kind = kind->next)
      world_.depot.take_out(*kind, true, 0, slabs, inside.visit());
  }
  while (Slab* slab = slabs.pop()) {
    each(slab->its_kind(), slab);
    unmark(slab);
    Inside inside(slot, Owned::enter(slot));
    world_.slabs().destroy(slab, inside.visit());
  }
  // A bin that could not be reached keeps its place in the lane.
  if (all) locked(slot, [&] { world_.kinds.remove(owner); });
  return all;
}

template <class P>
template <class Each>
Bytes Engine<P>::give_back_empties_of(Kind& kind, uint64_t least_free, Slot& slot, Each each) {
  SlabList empties;
  {
    Inside inside(slot, Owned::enter(slot));
    world_.depot.take_out(kind, false, least_free, empties, inside.visit());
  }
  Bytes given = 0;
  while (Slab* slab = empties.pop()) {
    each(slab);
    given += bytes_of(slab->blocks());
    Inside inside(slot, Owned::enter(slot));
    world_.slabs().destroy(slab, inside.visit());
  }
  return given;
}

// Each slab is in one place, and what is cut is what the budget says. Lanes that a fork child has
// set aside are not looked into. So then there may be more than is found; the same holds after a
// thread was torn off.
template <class P>
void Engine<P>::check_kinds() {
  world_.kinds.for_each([&](KindOwner& owner) {
    for (Kind* kind = owner.first_kind(); kind != nullptr; kind = kind->next) {
      uint64_t slabs = 0, carved = 0, in_depot = 0;
      const auto add = [&](const Slab* slab) {
        CHECK(slab->is_of_kind() && &slab->its_kind() == kind);
        ++slabs;
        carved += slab->carved;
      };
      bool all = !world_.was_torn.load(std::memory_order_relaxed);
      world_.lanes.for_each([&](AnyLane<P>& lane) {
        all &= !lane.is_set_aside();
        const Bin* bin = lane.bin_of(*kind);
        if (bin != nullptr && !lane.is_set_aside()) bin->for_each_slab(add);
      });
      kind->depot.for_each([&](const Slab* slab) {
        add(slab);
        ++in_depot;
        CHECK(slab->place == Slab::Place::kPartial && slab->bin == nullptr && slab->has_room());
        CHECK(world_.region.word(world_.region.block_of_state(slab)).owner() ==
              private_of(Owner::kDepot));
      });
      CHECK(in_depot == kind->depot_count.load(std::memory_order_relaxed));
      const uint64_t known = kind->slabs.load(std::memory_order_relaxed);
      CHECK(all ? slabs == known : slabs <= known);
      const Bytes cut = carved * kind->size, used = kind->budget->used();
      const bool is_all = all && owner.type == KindOwner::Type::kPool && kind->capacity != 0;
      CHECK(is_all ? cut == used : cut <= used);
      CHECK(kind->budget->peak() >= used);
    }
  });
}

}  // namespace lanemalloc
