// What a pool with a source of its own does: it only caches the objects that it imports. Included
// by pool_work.h only.
// Locking: a lane's list belongs to the thread that is inside the lane, the shelf to the thread
// that has the pool's lock. The program's two functions are called outside both.
//
//   source <-- batches --> shelf <-- batches --> a list in each lane's bin, and how many it holds
//
// An object lies in one of these or in the reserve, or it is in use; the budget counts all of them.
// A waiter searches for them as in other pools (pool.h): in every lane, whose list goes to the
// shelf, then at the shelf and the limit.
//
// Source: UMA's caches over other zones' items (uma_zcache_create); its buckets.
#pragma once

#include "fronts/pool/pool.h"

namespace lanemalloc {

template <class P>
Object* Pool<P>::obtain(Slot& slot) {
  Object* object = nullptr;
  if (LIKELY(!is_imported())) {
    object = engine_.kinds().allocate(kind_, slot);
    if (LIKELY(object != nullptr)) return object;
    object = take_from_shelf(1, slot);
    return object != nullptr ? object->out() : nullptr;
  }
  engine_.kinds().in_own_lane(slot, [&](Lane<P>& lane, Visit& visit) {
    Bin* bin = lane.bin_for(kind_, visit);
    if (bin == nullptr || Link{bin->hit.first}.is_none()) return;
    object = take_off(bin->hit.first, 1)->out();
    bump(bin->in_flight, int64_t{-1});
  });
  if (object != nullptr) return object;
  kind_.refills.fetch_add(1, std::memory_order_relaxed);
  if ((object = refill_from_shelf(slot)) != nullptr) return object;
  if ((object = import_some(slot)) != nullptr) return object;
  bring_to_shelf(slot, true);
  return refill_from_shelf(slot);
}

// Puts the object into the lane's list. From a list of more than two batches, one batch goes to the
// shelf. From a shelf of more than kShelfBatches batches beyond least_free_, objects go to the
// source.
template <class P>
void Pool<P>::keep_imported(Object* object, Slot& slot) {
  const auto batch = static_cast<int64_t>(kind_.batch.load(std::memory_order_relaxed));
  object->next = Link::none();
  Object* rest = object;
  engine_.kinds().in_own_lane(slot, [&](Lane<P>& lane, Visit& visit) {
    Bin* bin = lane.bin_for(kind_, visit);
    if (bin == nullptr) return;
    object->next = {bin->hit.first};
    bin->hit.first = Link::to(object).bits;
    rest = nullptr;
    bump(bin->in_flight, int64_t{1});
    if (bin->in_flight.load(std::memory_order_relaxed) <= 2 * batch) return;
    rest = take_off(bin->hit.first, static_cast<uint64_t>(batch));
    bump(bin->in_flight, -batch);
  });
  if (LIKELY(rest == nullptr)) return;
  if (put_on_shelf(rest, slot)) {
    const auto some = static_cast<uint64_t>(batch) * kShelfBatches;
    const uint64_t least = least_free_.load(std::memory_order_relaxed);
    if (UNLIKELY(shelf_count_.load(std::memory_order_relaxed) > least + some))
      release_from_shelf(least + some / 2, slot);
  }
}

// Takes the first n objects off a list, by its first link, that has at least n.
template <class P>
Object* Pool<P>::take_off(Address& list, uint64_t n) {
  auto* const first = reinterpret_cast<Object*>(Link{list}.address());
  Object* last = first;
  while (--n > 0) last = last->follow_blindly();
  list = last->next.bits;
  last->next = Link::none();
  return first;
}

// Each step leaves the shelf whole, for a child that is forked meanwhile. False: a handler could
// not get the lock, and the objects lie in an overflow lane.
template <class P>
bool Pool<P>::put_on_shelf(Object* list, Slot& slot) {
  if (lock_.is_held()) kind_.met_contention();
  {
    Locked locked(*this, slot);
    if (locked.is_held()) {
      while (list != nullptr) {
        Object* object = list;
        list = after(object);
        object->next = Link::to(shelf_);
        shelf_ = object;
        bump(shelf_count_, uint64_t{1});
      }
      return true;
    }
  }
  engine_.kinds().in_own_lane(slot, [&](Lane<P>& lane, Visit& visit) {
    Bin* bin = lane.bin_for(kind_, visit);
    while (bin != nullptr && list != nullptr) {
      Object* object = list;
      list = after(object);
      object->next = {bin->hit.first};
      bin->hit.first = Link::to(object).bits;
      bump(bin->in_flight, int64_t{1});
    }
  });
  if (list != nullptr) release(list);
  return false;
}

// Takes `most` objects off the shelf, or all if there are fewer.
template <class P>
Object* Pool<P>::take_from_shelf(uint64_t most, Slot& slot) {
  if (shelf_count_.load(std::memory_order_relaxed) == 0) return nullptr;
  Locked locked(*this, slot);
  if (!locked.is_held()) return nullptr;
  Object* list = nullptr;
  for (uint64_t n = 0; n < most && shelf_ != nullptr; ++n) {
    Object* object = shelf_;
    shelf_ = after(object);
    bump(shelf_count_, ~uint64_t{0});
    object->next = Link::to(list);
    list = object;
  }
  return list;
}

template <class P>
Object* Pool<P>::refill_from_shelf(Slot& slot) {
  if (lock_.is_held()) kind_.met_contention();
  Object* list = take_from_shelf(kind_.batch.load(std::memory_order_relaxed), slot);
  if (list == nullptr) return nullptr;
  Object* object = list;
  for (list = after(list); list != nullptr;) {
    Object* next = after(list);
    keep_imported(list, slot);
    list = next;
  }
  return object->out();
}

// Imports a batch from the source, as far as the limit allows.
template <class P>
Object* Pool<P>::import_some(Slot& slot) {
  constexpr uint32_t kMost = 64;
  void* objects[kMost];
  const uint32_t batch = kind_.batch.load(std::memory_order_relaxed);
  const uint32_t asked = budget_.take(kind_.size, batch < kMost ? batch : kMost);
  if (asked == 0) return nullptr;
  const size_t had = source_.import_objects(source_.source, objects, asked);
  CHECK(had <= asked);
  if (had < asked) budget_.give((asked - had) * kind_.size);
  for (size_t i = 1; i < had; ++i) keep_imported(static_cast<Object*>(objects[i]), slot);
  return had > 0 ? static_cast<Object*>(objects[0]) : nullptr;
}

template <class P>
uint64_t Pool<P>::release(Object* list) {
  constexpr size_t kMost = 64;
  void* objects[kMost];
  uint64_t released = 0;
  while (list != nullptr) {
    size_t n = 0;
    for (; n < kMost && list != nullptr; list = take_out(static_cast<Object*>(objects[n++])))
      objects[n] = list;
    source_.release_objects(source_.source, objects, n);
    budget_.give(n * kind_.size);
    released += n;
  }
  return released;
}

template <class P>
uint64_t Pool<P>::release_from_shelf(uint64_t leave, Slot& slot) {
  const uint64_t now = shelf_count_.load(std::memory_order_relaxed);
  return now > leave ? release(take_from_shelf(now - leave, slot)) : 0;
}

// Puts on the shelf what all lanes have. wait: as in gather().
template <class P>
bool Pool<P>::bring_to_shelf(Slot& slot, bool wait) {
  return engine_.kinds().in_each_lane(
      family_, slot, wait,
      [&](Lane<P>& lane, Visit&) {
        Bin* bin = lane.bin_of(kind_);
        if (bin == nullptr || Link{bin->hit.first}.is_none()) return static_cast<Object*>(nullptr);
        bin->in_flight.store(0, std::memory_order_relaxed);
        const Link list{std::exchange(bin->hit.first, Link::none().bits)};
        return reinterpret_cast<Object*>(list.address());
      },
      [&](Object* list) {
        if (list != nullptr) put_on_shelf(list, slot);
      });
}

}  // namespace lanemalloc
