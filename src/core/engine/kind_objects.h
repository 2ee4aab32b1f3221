// KindObjects: the objects of pools and heaps, in the lane that the thread works in. What takes
// other lanes, or the kind as a whole, is in kinds.h.
// Called by: kinds, heap, pool, abi. Locking: none of its own.
//
// As in misses.h, functions are static and take the world.
#pragma once

#include "core/engine/misses.h"

namespace lanemalloc {

template <class P>
class KindObjects {
 public:
  // The kind whose slab p lies in; null if there is none.
  FAST static Kind* kind_at(const World<P>& world, const void* p) {
    const MapWord word = world.region.word_for(p);
    if (!is_private(word.owner()) || !is_slab(public_of(word.owner()))) return nullptr;
    return static_cast<const Slab*>(word.state())->kind.load(std::memory_order_relaxed);
  }

  // Takes an object that waits in the lane's bin. Null if there is none.
  template <class Place>
  FAST static Object* take_from_bin(const Place& place, Slot& slot) {
    Gate* gate = Owned::enter(slot);
    const Address area = Owned::area(gate);
    Bin* bin;
    void* object = nullptr;
    if (LIKELY(area != 0)) {
      if (LIKELY(Area::find_bin(area, place, bin))) object = bin->pop();
    } else if (const Address here = PerCpu::area(gate);
               here != 0 && Area::find_bin(here, place, bin)) {
      if (!PerCpu::pop_bin<P>(gate, bin->hit, object)) object = nullptr;
    }
    object != nullptr ? Owned::leave(slot, gate) : Owned::leave_as_found(slot, gate);
    return static_cast<Object*>(object);
  }

  // Frees an object of a slab that belongs to that bin. The bin is tried first, as in a hit, so
  // that the next allocation has the object. Then the page map tells, as in malloc's free. False:
  // nothing has changed. `look(gate, slab)` must call Misses::look_in_stay(), and nothing after it,
  // so that the call can be a jump.
  template <class Place, class Look>
  FAST static bool free_to_slab_or_batch(const World<P>& world, const Place& place, Object* object,
                                         Slot& slot, Look look, Bin*& bin) {
    Gate* gate = Owned::enter(slot);
    const Address area = Owned::area(gate);
    const auto free_and = [&](auto leave) __attribute__((always_inline)) {
      if (UNLIKELY(!bin->push(object))) {
        const MapWord word = world.region.word_for(object);
        Slab* slab = static_cast<Slab*>(word.state());
        const bool is_here = word.owner() == private_of(lane_behind<P>(gate)->id());
        if (UNLIKELY(!is_here || slab->bin != bin || object->looks_free()))
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

  // --- The usual misses. A thread that owns no lane works in the lane that its slot names, if no
  // thread is inside it. An owner frees into a batch that is there. Null or false: nothing has
  // changed. Also false for an object that is not the kind's.
  static Object* take_in_short_stay(World<P>& world, const Kind& kind, Slot& slot) {
    Gate* gate = Owned::enter(slot);
    ShortStay<P> stay(world, slot, gate);
    if (stay.lane() == nullptr) return Owned::leave_as_found(slot, gate), nullptr;
    Bin* bin = stay.lane()->bin_of(kind);
    Object* object = LIKELY(bin != nullptr) ? bin->pop() : nullptr;
    stay.end(slot, true);
    return object;
  }
  static bool free_in_short_stay(World<P>& world, const Kind& kind, Object* object, Slot& slot) {
    Gate* gate = Owned::enter(slot);
    // Any address may come here, so the map is asked first.
    const auto may_free = [&] { return kind_at(world, object) == &kind && !object->looks_free(); };
    bool done = false;
    if (Owned::area(gate) != 0) {
      if (LIKELY(may_free()))
        done = lane_behind<P>(gate)->send_to_open_batch(object, world.region.word_of(object), kind);
      done ? Owned::leave(slot, gate) : Owned::leave_as_found(slot, gate);
      return done;
    }
    ShortStay<P> stay(world, slot, gate);
    if (stay.lane() == nullptr) return Owned::leave_as_found(slot, gate), false;
    Bin* bin = stay.lane()->bin_of(kind);
    done = LIKELY(bin != nullptr) && bin->push(object);
    if (!done && (done = may_free()))
      stay.lane()->free_of_kind(object, world.region.word_of(object), stay.visit());
    stay.end(slot, true);
    return done;
  }

  // The object lies in a slab of the kind.
  static void free(World<P>& world, Kind& kind, Object* object, Slot& slot) {
    if (free_in_short_stay(world, kind, object, slot)) return;
    Stay<P> stay(world, slot, Owned::enter(slot), true);
    // Read inside: before that, the slab may have gone to the depot or come from it.
    const MapWord word = world.region.word_of(object);
    if (LIKELY(stay.lane() != nullptr))
      return stay.lane()->free_of_kind(object, word, stay.visit());
    kind.in_flight.fetch_add(1, std::memory_order_relaxed);
    kind.strays.store(true, std::memory_order_relaxed);
    Misses<P>::send_alone(world, object, public_of(word.owner()));
  }

  // --- Allocates as many objects at once as the thread's lane can give, or frees as many as it
  // takes. The caller then tries the next one by itself. Only for kinds without links behind the
  // contents, whose objects are not marked. Many objects in one stay, but so few that a thread that
  // wants the lane need not wait long.
  static size_t allocate_batch(World<P>& world, Kind& kind, void** objects, size_t n, Slot& slot) {
    for (size_t had = 0; had < n;) {
      Stay<P> stay(world, slot, Owned::enter(slot), true);
      if (stay.lane() == nullptr) return had;
      for (const size_t end = n - had < kMostAtOnce ? n : had + kMostAtOnce; had < end; ++had)
        if ((objects[had] = stay.lane()->allocate(kind, stay.visit())) == nullptr) return had;
    }
    return n;
  }
  static size_t free_batch(World<P>& world, const Family& family, void** objects, size_t n,
                           Slot& slot) {
    for (size_t freed = 0; freed < n;) {
      Stay<P> stay(world, slot, Owned::enter(slot), true);
      if (stay.lane() == nullptr) return freed;
      Lane<P>& lane = *stay.lane();
      for (const size_t end = n - freed < kMostAtOnce ? n : freed + kMostAtOnce; freed < end;
           ++freed) {
        Object* object = static_cast<Object*>(objects[freed]);
        const MapWord word = world.region.word_for(object);
        Slab* slab = static_cast<Slab*>(word.state());
        const bool is_here = word.owner() == private_of(lane.id());
        const bool is_of_kind = LIKELY(is_here) || kind_at(world, object) != nullptr;
        if (UNLIKELY(!is_of_kind || slab->its_kind().family != &family || object->looks_free()))
          return freed;
        is_here ? lane.free_own(object, slab, stay.visit())
                : lane.free_of_kind(object, word, stay.visit());
      }
    }
    return n;
  }

 private:
  static constexpr size_t kMostAtOnce = 256;
};

}  // namespace lanemalloc
