// What the engine does with deferred frees: it keeps them in the lane, frees them when no thread
// can be reading them any more, and waits for readers. Included by engine.h only.
// core/reclaim/epochs.h explains how it is known that no thread reads.
#pragma once

#include <errno.h>

#include <optional>
#include <type_traits>

#include "core/engine/engine.h"

namespace lanemalloc {

// Waits for readers: spins first, then sleeps. Epochs::name_stuck() names the reader that keeps a
// thread waiting.
template <class P>
class Patience {
 public:
  Patience() : since_(P::now_ns()) {}
  void wait() {
    constexpr int kSpins = 64;
    if (++rounds_ <= kSpins) {
      P::pause();
    } else {
      P::sleep_ms(1);
    }
  }
  uint64_t waited_ns() const { return P::now_ns() - since_; }

 private:
  const uint64_t since_;
  int rounds_ = 0;
};

// --- Deferring.

// The miss of a deferred free. `gate` is what was in the slot.
template <class P>
int Engine<P>::defer_in_stay(void* object, Slot& slot, Gate* gate) {
  {
    ShortStay<P> stay(world_, slot, gate);
    if (stay.lane() != nullptr && stay.end(slot, stay.lane()->defer_to_open_ring(object))) return 0;
  }
  return defer(&Deferred::objects, object, slot, gate);
}

// Defers a call: in the owner's lane as a hit does, or in the lane that the thread came by last, or
// as below.
template <class P>
int Engine<P>::defer_call(const Call& call, Slot& slot) {
  Gate* gate = Owned::enter(slot);
  if (LIKELY(Owned::may_allocate(gate, 0))) {
    Deferred* deferred = lane_behind<P>(gate)->deferred.load(std::memory_order_relaxed);
    if (LIKELY(deferred != nullptr && deferred->push_if_room(call)))
      return Owned::leave(slot, gate), 0;
  }
  return defer_call_in_stay(call, slot, gate);
}

template <class P>
int Engine<P>::defer_call_in_stay(Call call, Slot& slot, Gate* gate) {
  {
    ShortStay<P> stay(world_, slot, gate);
    Deferred* deferred =
        stay.lane() != nullptr ? stay.lane()->deferred.load(std::memory_order_relaxed) : nullptr;
    if (stay.lane() != nullptr &&
        stay.end(slot, deferred != nullptr && deferred->push_if_room(call)))
      return 0;
  }
  return defer(&Deferred::calls, call, slot, gate);
}

// If the lane's share is full, the thread empties it as far as it may be emptied, in turns with
// waiting.
template <class P>
template <class Item>
int Engine<P>::defer(Ring<Item> Deferred::* kind, const Item& item, Slot& slot, Gate* gate) {
  bool may_wait = !is_busy(gate);
  std::optional<Patience<P>> patience;
  Epoch alone = 0;  // if there is no memory for a ring: the tag of this one item
  for (;; gate = Owned::enter(slot)) {
    Calls calls;
    bool done = false, looked = false;
    {
      // Calls go where make_calls_of() can reach them.
      Stay<P> stay(world_, slot, gate, std::is_same_v<Item, Call>);
      Deferred* deferred =
          stay.lane() != nullptr ? deferred_of(*stay.lane(), kind, stay.visit()) : nullptr;
      if (LIKELY(deferred != nullptr && alone == 0)) {
        looked = tend(*stay.lane(), *deferred, deferred->*kind, calls, stay.visit());
        done = (deferred->*kind).has_room();
        if (done) (deferred->*kind).push(item);
        // Says how far the quick paths may go.
        if constexpr (std::is_same_v<Item, Call>) {
          deferred->call_limit = deferred->calls.limit();
        } else {
          stay.lane()->set_deferred_limit(deferred->objects.limit());
        }
      }
      if (UNLIKELY(!done && calls.is_empty())) {
        if (!patience) {
          count<P>(reclaim_counters_.helped);
          may_wait = may_wait && !is_calling(slot) &&
                     !epochs_.is_in_section(lane_reader_this_thread(), stay.visit());
        }
        may_wait = may_wait && epochs_.can_tell();
        if (may_wait && deferred == nullptr && alone == 0) alone = epochs_.advance();
        if (alone != 0) epochs_.look(stay.visit(), true);
        if (patience) epochs_.name_stuck(epochs_.now(), stay.visit());
      }
    }
    size_t freed = 0;
    if (calls.make(freed) != 0 && !done) continue;  // there is room now
    if (looked) help_idle(slot, std::is_same_v<Item, Call>);
    if (alone != 0 && epochs_.safe() >= alone) {
      free_now(item, slot);
      done = true;
    }
    if (done || !may_wait) {
      if (patience) count<P>(reclaim_counters_.waited_ns, patience->waited_ns());
      return done ? 0 : EBUSY;
    }
    if (!patience) patience.emplace();
    patience->wait();
  }
}

// Returns what the lane has deferred, with a ring of that kind; makes both if need be. Null: no
// memory.
template <class P>
template <class Item>
Deferred* Engine<P>::deferred_of(Lane<P>& lane, Ring<Item> Deferred::* kind, Visit& visit) {
  const uint32_t bound = world_.settings.deferred;
  Deferred* deferred = lane.deferred.load(std::memory_order_relaxed);
  if (UNLIKELY(deferred == nullptr)) {
    void* memory = take_blocks(sizeof(Deferred) + (Bytes{bound} + 1) * sizeof(void*), visit);
    if (memory == nullptr) return nullptr;
    deferred = new (memory) Deferred(lane.deferred_next);
    deferred->objects.start(deferred + 1, bound);
    // release: a thread that looks from outside sees it whole. Pairs with the acquire in
    // deferred_in().
    lane.deferred.store(deferred, std::memory_order_release);
  }
  if constexpr (std::is_same_v<Item, Call>) deferred->drop_called();
  Ring<Item>& ring = deferred->*kind;
  if (UNLIKELY(!ring.is_started())) {
    void* memory = take_blocks((Bytes{bound} + 1) * sizeof(Item), visit);
    if (memory == nullptr) return nullptr;
    ring.start(memory, bound);
  }
  return deferred;
}

template <class P>
void* Engine<P>::take_blocks(Bytes bytes, Visit& visit) {
  BlockIndex at = world_.runs.reuse(blocks_for(bytes), 1, visit);
  if (at == Runs<P>::kNone) at = world_.runs.allocate(blocks_for(bytes), 1, visit).at;
  return at != Runs<P>::kNone ? world_.region.pointer_to(at) : nullptr;
}

// Inside: cuts complete batches, looks at the readers if that is due, and frees some of what may be
// freed. True if more may be freed than before.
template <class P>
template <class Item>
bool Engine<P>::tend(Lane<P>& lane, Deferred& deferred, Ring<Item>& ring, Calls& calls,
                     Visit& visit) {
  const bool cut = ring.cut_complete([&] { return epochs_.advance(); });
  const bool full = !ring.has_room();
  bool looked = false;
  if (ring.ready(epochs_.safe()) == 0 && (full || (cut && ring.batches() % kLookEvery == 0)))
    looked = epochs_.look(visit, full);
  if (ring.ready(epochs_.safe()) == 0) return looked;
  if constexpr (std::is_same_v<Item, Call>) {
    if (!is_calling(*static_cast<const Slot*>(visit.who)))
      calls.take(deferred, epochs_.safe(), ~uint64_t{0}, visit.who);
  } else {
    free_deferred(lane, ring, epochs_.safe(), 2 * Ring<Item>::kStep, visit);
  }
  return looked;
}

// --- Freeing.

// Inside: frees what may be freed, at most `most` objects. Returns how many.
template <class P>
uint64_t Engine<P>::free_deferred(Lane<P>& lane, Ring<void*>& ring, Epoch upto, uint64_t most,
                                  Visit& visit) {
  uint64_t freed = 0;
  for (uint32_t n; freed < most && (n = ring.ready(upto)) != 0; freed += n) {
    if (n > most - freed) n = static_cast<uint32_t>(most - freed);
    free_all(lane, ring.head(), ring.head() + n, visit);
    ring.drop(n);
  }
  return freed;
}

// Frees each object as free() does. A word behind the last one, which is no address of ours, ends
// the loop. That, the four steps in a row, and the base with its sign turned save four of eighteen
// instructions per object.
template <class P>
NOINLINE void Engine<P>::free_all(Lane<P>& lane, void** from, void** to, Visit& visit) {
  const Bytes bytes = world_.settings.checked ? 0 : world_.region.bytes();
  const Address minus_base = arch::kept(uintptr_t{0} - world_.region.base());
  const std::atomic<uint64_t>* const map = &world_.region.map_word(0);
  const auto owner = static_cast<uint16_t>(lane.id());
  // False: this object takes more work.
  const auto free_one = [&](void* p) __attribute__((always_inline)) {
    const Bytes distance = reinterpret_cast<Address>(p) + minus_base;
    if (UNLIKELY(distance >= bytes)) return false;
    const MapWord word(map[distance >> kBlockShift].load(std::memory_order_relaxed));
    if (UNLIKELY(!word.is_owned_by(owner))) return false;
    Slab* slab = static_cast<Slab*>(word.state());
    if (UNLIKELY(slab->push(static_cast<Object*>(p)))) lane.look_at(slab, visit);
    return true;
  };
  // For an object of another lane. An object without an owner, a large one and a bad one have no
  // batch.
  const auto send_one = [&](void* p) __attribute__((always_inline)) {
    const Bytes distance = reinterpret_cast<Address>(p) + minus_base;
    if (distance >= bytes) return false;
    const MapWord word(map[distance >> kBlockShift].load(std::memory_order_relaxed));
    Remote* batch;
    const auto class_of_object = [&] { return world_.region.size_class_of(p); };
    using Sent = typename Lane<P>::Sent;
    const Sent sent =
        lane.send_to_open_batch(static_cast<Object*>(p), word, class_of_object, batch);
    if (UNLIKELY(sent == Sent::kFull)) lane.flush(*batch, visit);
    return sent != Sent::kNot;
  };
  void* const kept = *to;
  *to = nullptr;
  for (void** at = from;; ++at) {
    ptrdiff_t done;
    do {
      done = !free_one(at[0])   ? 0
             : !free_one(at[1]) ? 1
             : !free_one(at[2]) ? 2
             : !free_one(at[3]) ? 3
                                : 4;
      at += done;
    } while (done == 4);
    if (at == to) break;
    if (UNLIKELY(!send_one(*at))) free_other(lane, *at, visit);
  }
  *to = kept;
}

// For an object that is large or bad, for every one with checked=1, and for the first one of
// another lane.
template <class P>
void Engine<P>::free_other(Lane<P>& lane, void* p, Visit& visit) {
  if (p == nullptr) return;
  const MapWord word = world_.region.word_for(p);
  Verdict verdict = word.owner() == Owner::kNobody ? pointers().why_nobody(p) : Verdict::kGood;
  const bool is_large = word.owner() == Owner::kLarge;
  if (verdict == Verdict::kGood && (is_large || world_.settings.checked) &&
      !pointers().is_start(p, word))
    verdict = Verdict::kNotAStart;
  if (verdict == Verdict::kGood && !is_large && world_.settings.checked && !pointers().mark_free(p))
    verdict = Verdict::kFreedAlready;
  if (UNLIKELY(verdict != Verdict::kGood)) {
    count<P>(world_.counters.bad_pointers);
    world_.report(verdict, p);
  } else if (is_large) {
    large().free(p, visit);
  } else {
    lane.free(static_cast<Object*>(p), word, visit);
  }
}

// --- In all lanes.

// What the lane has deferred; null if there is nothing.
template <class P>
Deferred* Engine<P>::deferred_in(const AnyLane<P>& lane) {
  Deferred* deferred = lane.deferred.load(std::memory_order_acquire);
  return deferred != nullptr && !deferred->is_empty() ? deferred : nullptr;
}

// Calls work(lane, deferred, visit) inside a lane that has deferred something: the thread's own
// lane, or one that no thread is inside. False if a thread is inside.
template <class P>
template <class Work>
bool Engine<P>::visit_lane(AnyLane<P>& lane, Slot& slot, Work work) {
  Gate* gate = Owned::enter(slot);
  const auto visit_here = [&](Lane<P>& here, Visit& visit) {
    Deferred* deferred = here.deferred.load(std::memory_order_relaxed);
    work(here, *deferred, visit);
    here.set_deferred_limit(deferred->objects.limit());
    deferred->call_limit = deferred->calls.limit();
  };
  if (gate == &lane && lane.how == Entry::kOwned) {
    Stay<P> stay(world_, slot, gate);
    if (stay.lane() != &lane) return false;
    visit_here(*stay.lane(), stay.visit());
    return true;
  }
  Inside inside(slot, gate);
  return world_.with_idle_lane(lane, inside.visit(),
                               [&](Lane<P>& held) { visit_here(held, inside.visit()); });
}

// Frees what has a tag up to `upto`. Makes no more calls than wait now, and none if the thread is
// in such a call. If another thread is inside the lane, tries `attempts` times.
template <class P>
size_t Engine<P>::free_in_lane(AnyLane<P>& lane, Slot& slot, Epoch upto, int attempts,
                               bool may_call) {
  size_t freed = 0;
  uint64_t until = 0;
  may_call = may_call && deferred_in(lane) != nullptr && !is_calling(slot);
  for (uint32_t made = 1; made != 0 && deferred_in(lane) != nullptr;) {
    Calls calls;
    const auto work = [&](Lane<P>& held, Deferred& deferred, Visit& visit) {
      if (until == 0) {
        if (upto == kEverything) cut(deferred);
        until = deferred.calls.added();
      }
      freed += free_deferred(held, deferred.objects, upto, ~uint64_t{0}, visit);
      if (may_call) calls.take(deferred, upto, until, &slot);
    };
    Patience<P> patience;
    while (!visit_lane(lane, slot, work) && --attempts > 0) patience.wait();
    made = calls.make(freed);
  }
  return freed;
}

template <class P>
void Engine<P>::cut(Deferred& deferred) {
  const auto begin_epoch = [&] { return epochs_.advance(); };
  deferred.objects.cut(begin_epoch);
  deferred.calls.cut(begin_epoch);
}

// Cuts everything that waits, so that one look at the readers does for all.
template <class P>
void Engine<P>::cut_and_look(Slot& slot) {
  world_.lanes.for_each([&](AnyLane<P>& lane) {
    if (deferred_in(lane) != nullptr)
      visit_lane(lane, slot, [&](Lane<P>&, Deferred& deferred, Visit&) { cut(deferred); });
  });
  Inside inside(slot, Owned::enter(slot));
  epochs_.look(inside.visit(), true);
}

template <class P>
size_t Engine<P>::free_at_stop(Slot& slot) {
  // The scavenger may be inside: a stop of the program does not stop it.
  constexpr int kAttempts = 80;
  count<P>(reclaim_counters_.stops);
  size_t freed = 0;
  world_.lanes.for_each([&](AnyLane<P>& lane) {
    if (!is_lost(lane)) freed += free_in_lane(lane, slot, kEverything, kAttempts);
  });
  return freed;
}

template <class P>
size_t Engine<P>::free_what_may_be_freed(Slot& slot) {
  constexpr int kAttempts = 4;
  if (!epochs_.can_tell()) return 0;
  cut_and_look(slot);
  size_t freed = 0;
  world_.lanes.for_each(
      [&](AnyLane<P>& lane) { freed += free_in_lane(lane, slot, epochs_.safe(), kAttempts); });
  return freed;
}

// Waits until everything has been freed that had been deferred by the first visit of each lane.
template <class P>
int Engine<P>::wait_for_readers(Slot& slot) {
  {
    Inside inside(slot, Owned::enter(slot));
    if (!inside.visit().may_block || is_calling(slot) ||
        epochs_.is_in_section(lane_reader_this_thread(), inside.visit()))
      return EDEADLK;
  }
  if (!epochs_.can_tell()) return EDEADLK;
  Patience<P> patience;
  cut_and_look(slot);
  bool waited = false;
  world_.lanes.for_each([&](AnyLane<P>& lane) {
    if (deferred_in(lane) == nullptr) return;
    uint64_t objects = 0, calls_until = 0;
    bool seen = false, done = false;
    const auto work = [&](Lane<P>&, Deferred& deferred, Visit&) {
      if (!seen) {
        cut(deferred);
        objects = deferred.objects.added();
        calls_until = deferred.calls.added();
        seen = true;
      }
      done = deferred.objects.taken() >= objects &&
             deferred.called.load(std::memory_order_acquire) >= calls_until;
    };
    while (!is_lost(lane) && epochs_.can_tell()) {
      free_in_lane(lane, slot, epochs_.safe(), 1);
      if (visit_lane(lane, slot, work) && done) break;
      waited = true;
      patience.wait();
      Inside inside(slot, Owned::enter(slot));
      epochs_.look(inside.visit(), true);
      epochs_.name_stuck(epochs_.now(), inside.visit());
    }
  });
  if (waited) count<P>(reclaim_counters_.waited_ns, patience.waited_ns());
  return epochs_.can_tell() ? 0 : EDEADLK;
}

// Makes the calls that wait with this context now, since no thread reads their objects any more.
// Waits for calls that another thread is just making, which may be among them. Outside any lane.
template <class P>
void Engine<P>::make_calls_of(const void* context, Slot& slot) {
  world_.lanes.for_each([&](AnyLane<P>& lane) {
    Deferred* deferred = lane.deferred.load(std::memory_order_acquire);
    Patience<P> patience;
    for (bool more = true; more && deferred != nullptr && deferred->has_calls();) {
      Call found[Call::kMostAtOnce];
      uint32_t n = 0;
      more = false;
      {
        typename Searches<P>::Turn turn(searches_, slot);
        searches_.in_lane(lane, slot, true, [&](Lane<P>&, Visit&) {
          more = deferred->take_out(context, &slot, found, n);
        });
      }
      for (uint32_t i = 0; i < n; ++i) free_now(found[i], slot);
      if (more && n == 0) patience.wait();
    }
  });
}

// Frees for one lane that no thread may come by again: its thread is gone, or it served for a
// moment.
template <class P>
void Engine<P>::help_idle(Slot& slot, bool may_call) {
  AnyLane<P>* idle = nullptr;
  world_.lanes.for_each([&](AnyLane<P>& lane) {
    if (idle == nullptr && lane.number() == kNoNumber && lane.owner_slot() == nullptr &&
        deferred_in(lane) != nullptr)
      idle = &lane;
  });
  if (idle == nullptr) return;
  visit_lane(*idle, slot, [&](Lane<P>&, Deferred& deferred, Visit&) { cut(deferred); });
  free_in_lane(*idle, slot, epochs_.safe(), 1, may_call);
}

// --- Which threads may wait, and for whom.

// Whether the thread is in a function that was deferred.
template <class P>
bool Engine<P>::is_calling(const Slot& slot) {
  bool any = false;
  world_.lanes.for_each([&](AnyLane<P>& lane) {
    const Deferred* deferred = lane.deferred.load(std::memory_order_acquire);
    any |= deferred != nullptr && deferred->caller.load(std::memory_order_relaxed) == &slot;
  });
  return any;
}

// In a fork child: whether a thread that is not there was inside the lane.
template <class P>
bool Engine<P>::is_lost(const AnyLane<P>& lane) {
  return lane.is_set_aside() || (lane.is_taken_here() && world_.lanes.is_forgotten(lane));
}

template <class P>
void Engine<P>::forget_callers(const Slot& slot) {
  world_.lanes.for_each([&](AnyLane<P>& lane) {
    Deferred* deferred = lane.deferred.load(std::memory_order_relaxed);
    if (deferred != nullptr) deferred->forget_callers_but(&slot);
  });
}

// --- Figures.

template <class P>
void Engine<P>::statistics(lane_safepoint_statistics& s, Slot& slot) {
  constexpr int kAttempts = 64;
  s = lane_safepoint_statistics{};
  world_.lanes.for_each([&](AnyLane<P>& lane) {
    const Deferred* deferred = lane.deferred.load(std::memory_order_acquire);
    if (deferred == nullptr) return;
    const auto read = [&](const Deferred& d) {
      s.deferred += d.added();
      s.freed += d.freed();
      s.batches += d.objects.tags() + d.calls.tags();
    };
    int attempts = is_lost(lane) ? 0 : kAttempts;
    const auto read_here = [&](Lane<P>&, const Deferred& d, Visit&) { read(d); };
    while (attempts > 0 && !visit_lane(lane, slot, read_here)) --attempts;
    if (attempts == 0) read(*deferred);  // as it is just now
  });
  Inside inside(slot, Owned::enter(slot));
  s.helped = reclaim_counters_.helped.load(std::memory_order_relaxed);
  s.waited_ns = reclaim_counters_.waited_ns.load(std::memory_order_relaxed);
  s.stops = reclaim_counters_.stops.load(std::memory_order_relaxed);
  s.readers = epochs_.readers(inside.visit());
  s.epoch = epochs_.now();
}

}  // namespace lanemalloc
