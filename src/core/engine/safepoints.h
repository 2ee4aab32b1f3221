// Safepoints: deferred frees. They are kept in the lane, freed when no thread can be reading them
// any more, and readers are waited for. core/reclaim/epochs.h explains how it is known that no
// thread reads; lanemalloc/safepoint.h says what each public function does.
// Called by: engine, fork, heap, pool, abi. Locking: what is deferred belongs to the thread that is
// inside the lane; the list of readers has a lock of its own.
#pragma once

#include <errno.h>

#include <type_traits>

#include "core/engine/misses.h"
#include "core/engine/searches.h"
#include "core/reclaim/deferred.h"

namespace lanemalloc {

// Waits in turns with the caller's attempts: spins first, then sleeps.
template <class P>
class Patience {
 public:
  void wait() {
    constexpr int kSpins = 64;
    if (rounds_ == 0) since_ = P::now_ns();
    if (++rounds_ <= kSpins) {
      P::pause();
    } else {
      P::sleep_ms(1);
    }
  }
  bool has_waited() const { return rounds_ != 0; }
  uint64_t waited_ns() const { return has_waited() ? P::now_ns() - since_ : 0; }

 private:
  uint64_t since_ = 0;
  int rounds_ = 0;
};

template <class P>
class Safepoints {
 public:
  constexpr Safepoints(World<P>& world, Searches<P>& searches)
      : world_(world), searches_(searches) {}

  // --- Deferring. 0, or EBUSY: the lane's share is full, and the thread may not wait.

  // The miss of a deferred free. `gate` is what was in the slot.
  int defer_in_stay(void* object, Slot& slot, Gate* gate) {
    {
      ShortStay<P> stay(world_, slot, gate);
      if (stay.lane() != nullptr && stay.end(slot, stay.lane()->defer_to_open_ring(object)))
        return 0;
    }
    return defer(&Deferred::objects, object, slot, gate);
  }

  // Defers a call: in the owner's lane as a hit does, or in the lane that the thread came by last,
  // or as above.
  FAST int defer_call(const Call& call, Slot& slot) {
    Gate* gate = Owned::enter(slot);
    if (LIKELY(Owned::may_allocate(gate, 0))) {
      Deferred* deferred = lane_behind<P>(gate)->deferred.load(std::memory_order_relaxed);
      if (LIKELY(deferred != nullptr && deferred->push_if_room(call)))
        return Owned::leave(slot, gate), 0;
    }
    return defer_call_in_stay(call, slot, gate);
  }

  // --- Freeing.

  size_t free_at_stop(Slot& slot) {
    // The scavenger may be inside: a stop of the program does not stop it.
    constexpr int kAttempts = 80;
    count<P>(stops_);
    size_t freed = 0;
    world_.lanes.for_each([&](AnyLane<P>& lane) {
      if (!is_lost(lane)) freed += free_in_lane(lane, slot, kEverything, kAttempts);
    });
    return freed;
  }

  size_t free_what_may_be_freed(Slot& slot) {
    constexpr int kAttempts = 4;
    if (!epochs_.can_tell()) return 0;
    cut_and_look(slot);
    size_t freed = 0;
    world_.lanes.for_each(
        [&](AnyLane<P>& lane) { freed += free_in_lane(lane, slot, epochs_.safe(), kAttempts); });
    return freed;
  }

  // Waits until everything has been freed that had been deferred by the first visit of each lane. 0
  // or EDEADLK.
  int wait_for_readers(Slot& slot) {
    if (!may_wait(slot)) return EDEADLK;
    cut_and_look(slot);
    Patience<P> patience;
    world_.lanes.for_each([&](AnyLane<P>& lane) {
      if (deferred_in(lane) != nullptr) wait_for_lane(lane, slot, patience);
    });
    count_wait(patience);
    return epochs_.can_tell() ? 0 : EDEADLK;
  }

  // Makes the calls that wait with this context now, since no thread reads their objects any more.
  // Waits for calls that another thread is just making, which may be among them. Outside any lane.
  void make_calls_of(const void* context, Slot& slot) {
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

  // --- Readers.

  constexpr Epochs<P>& epochs() { return epochs_; }

  bool add_reader(lane_reader& reader, const char* name, Slot& slot) {
    Inside inside(slot, Owned::enter(slot));
    return epochs_.add(reader, name, lane_reader_this_thread(), inside.visit());
  }
  // The calling thread ends, and may have forgotten to leave a read section. False: it has no
  // reader whose section it could have forgotten.
  bool reader_ends(Slot& slot) {
    Inside inside(slot, Owned::enter(slot));
    return epochs_.thread_ends(lane_reader_this_thread(), inside.visit());
  }
  using Removed = typename Epochs<P>::Removed;
  Removed remove_reader(lane_reader& reader, Slot& slot) {
    Inside inside(slot, Owned::enter(slot));
    return epochs_.remove(reader, inside.visit());
  }

  // In a fork child: the readers of other threads, and the calls that they were making, are lost.
  void forget_all_but(const Slot& slot) {
    epochs_.lock().open_in_child(&slot);  // the list of readers is whole at every instant
    epochs_.keep_readers_of(lane_reader_this_thread());
    world_.lanes.for_each([&](AnyLane<P>& lane) {
      Deferred* deferred = lane.deferred.load(std::memory_order_relaxed);
      if (deferred != nullptr) deferred->forget_callers_but(&slot);
    });
  }

  void statistics(lane_safepoint_statistics& s, Slot& slot) {
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
    s.helped = helped_.load(std::memory_order_relaxed);
    s.waited_ns = waited_ns_.load(std::memory_order_relaxed);
    s.stops = stops_.load(std::memory_order_relaxed);
    s.readers = epochs_.readers(inside.visit());
    s.epoch = epochs_.now();
  }

  void check_invariants() {
    world_.lanes.for_each([](AnyLane<P>& lane) {
      const Deferred* deferred = lane.deferred.load(std::memory_order_relaxed);
      if (deferred != nullptr) deferred->check_invariants();
    });
  }

 private:
  SHOWN_BY_LAYOUT;

  static constexpr Epoch kEverything = ~Epoch{0};
  static constexpr uint32_t kLookEvery = 4;  // complete batches that wait

  // --- Deferring.

  NOINLINE int defer_call_in_stay(Call call, Slot& slot, Gate* gate) {
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

  // In rounds:
  //
  //   kDone    the item lies in the ring
  //   kAgain   there is room now
  //   kFull    the thread waits for readers, if it may, and empties the ring as far as it may
  //   kNoRing  there is no memory for a ring: the thread waits with the item alone, if it may
  enum class Round : uint8_t { kDone, kAgain, kFull, kNoRing };

  template <class Item>
  int defer(Ring<Item> Deferred::* kind, const Item& item, Slot& slot, Gate* gate) {
    Patience<P> patience;
    for (Round round; (round = defer_once(kind, item, slot, gate)) != Round::kDone;
         gate = Owned::enter(slot)) {
      if (round == Round::kAgain) continue;
      if (!patience.has_waited()) count<P>(helped_);
      const bool waits = patience.has_waited() ? epochs_.can_tell() : may_wait(slot);
      if (waits && round == Round::kFull) {
        wait(patience, slot);
        continue;
      }
      const bool is_freed = waits && wait_to_free(item, slot, patience);
      count_wait(patience);
      return is_freed ? 0 : EBUSY;
    }
    count_wait(patience);
    return 0;
  }

  template <class Item>
  FAST Round defer_once(Ring<Item> Deferred::* kind, const Item& item, Slot& slot, Gate* gate) {
    constexpr bool kIsCall = std::is_same_v<Item, Call>;
    Round round = Round::kNoRing;
    Calls calls;
    bool looked = false;
    {
      // Calls go where make_calls_of() can reach them.
      Stay<P> stay(world_, slot, gate, kIsCall);
      Deferred* deferred =
          stay.lane() != nullptr ? deferred_of(*stay.lane(), kind, stay.visit()) : nullptr;
      if (LIKELY(deferred != nullptr)) {
        Ring<Item>& ring = deferred->*kind;
        looked = tend(*stay.lane(), *deferred, ring, calls, stay.visit());
        round = ring.has_room() ? Round::kDone : Round::kFull;
        if (round == Round::kDone) ring.push(item);
        set_limit<Item>(*stay.lane(), *deferred);
      }
    }
    size_t freed = 0;
    if (calls.make(freed) != 0 && round == Round::kFull) return Round::kAgain;
    if (looked) help_idle(slot, kIsCall);
    return round;
  }

  // Frees the item once no thread reads it. False: readers cannot tell that any more.
  template <class Item>
  bool wait_to_free(const Item& item, Slot& slot, Patience<P>& patience) {
    const Epoch tag = epochs_.advance();
    for (look(slot); epochs_.safe() < tag; look(slot)) {
      if (!epochs_.can_tell()) return false;
      wait(patience, slot);
    }
    free_now(item, slot);
    return true;
  }

  // Says how far the quick path may go.
  template <class Item>
  static void set_limit(Lane<P>& lane, Deferred& deferred) {
    if constexpr (std::is_same_v<Item, Call>) {
      deferred.call_limit = deferred.calls.limit();
    } else {
      lane.set_deferred_limit(deferred.objects.limit());
    }
  }

  // Returns what the lane has deferred, with a ring of that kind; makes both if need be. Null: no
  // memory.
  template <class Item>
  Deferred* deferred_of(Lane<P>& lane, Ring<Item> Deferred::* kind, Visit& visit) {
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

  void* take_blocks(Bytes bytes, Visit& visit) {
    BlockIndex at = world_.runs.reuse(blocks_for(bytes), 1, visit);
    if (at == Runs<P>::kNone) at = world_.runs.allocate(blocks_for(bytes), 1, visit).at;
    return at != Runs<P>::kNone ? world_.region.pointer_to(at) : nullptr;
  }

  // Inside: cuts complete batches, looks at the readers if that is due, and frees some of what may
  // be freed. True if more may be freed than before.
  template <class Item>
  bool tend(Lane<P>& lane, Deferred& deferred, Ring<Item>& ring, Calls& calls, Visit& visit) {
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
  uint64_t free_deferred(Lane<P>& lane, Ring<void*>& ring, Epoch upto, uint64_t most,
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
  // the loop. That, the four steps in a row, and the base with its sign turned save four of
  // eighteen instructions per object.
  NOINLINE void free_all(Lane<P>& lane, void** from, void** to, Visit& visit) {
    const Region<P>& region = world_.region;
    const Bytes bytes = world_.settings.checked ? 0 : region.bytes();
    const Address minus_base = arch::kept(uintptr_t{0} - region.base());
    const std::atomic<uint64_t>* const map = &region.map_word(0);
    const auto owner = static_cast<uint16_t>(lane.id());
    // False: this object takes more work.
    const auto free_one = [&](void* p) __attribute__((always_inline)) {
      const Bytes distance = reinterpret_cast<Address>(p) + minus_base;
      if (UNLIKELY(distance >= bytes)) return false;
      const MapWord word(map[distance >> kBlockShift].load(std::memory_order_relaxed));
      if (UNLIKELY(!word.is_owned_by(owner))) return false;
      Slab* slab = static_cast<Slab*>(word.state());
      auto* object = static_cast<Object*>(p);
      if (UNLIKELY(object->looks_free())) return false;
      if (UNLIKELY(slab->push(object))) lane.look_at(slab, visit);
      return true;
    };
    // For an object of another lane. An object without an owner, a large one and a bad one have no
    // batch.
    const auto send_one = [&](void* p) __attribute__((always_inline)) {
      const Bytes distance = reinterpret_cast<Address>(p) + minus_base;
      if (distance >= bytes) return false;
      const MapWord word(map[distance >> kBlockShift].load(std::memory_order_relaxed));
      typename Lane<P>::Remote* batch;
      const auto class_of_object = [&] { return region.size_class_of(p); };
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
  void free_other(Lane<P>& lane, void* p, Visit& visit) {
    if (p == nullptr) return;
    const MapWord word = world_.region.word_for(p);
    const Verdict verdict = Pointers<P>(world_).take_back(p, word);
    if (UNLIKELY(verdict != Verdict::kGood)) {
      count<P>(world_.counters.bad_pointers);
      world_.report(verdict, p);
    } else if (word.owner() == Owner::kLarge) {
      Large<P>(world_).free(p, visit);
    } else {
      lane.free(static_cast<Object*>(p), word, visit);
    }
  }

  // Outside any lane.
  void free_now(void* object, Slot& slot) {
    const Verdict verdict = Misses<P>::free_in_stay(world_, object, slot, Owned::enter(slot));
    if (verdict != Verdict::kGood) world_.report(verdict, object);
  }
  void free_now(Call call, Slot&) { call.free(call.context, &call.object, 1); }

  // --- In all lanes.

  // What the lane has deferred; null if there is nothing.
  static Deferred* deferred_in(const AnyLane<P>& lane) {
    Deferred* deferred = lane.deferred.load(std::memory_order_acquire);
    return deferred != nullptr && !deferred->is_empty() ? deferred : nullptr;
  }

  // Calls work(lane, deferred, visit) inside a lane that has deferred something: the thread's own
  // lane, or one that no thread is inside. False if a thread is inside.
  template <class Work>
  bool visit_lane(AnyLane<P>& lane, Slot& slot, Work work) {
    Gate* gate = Owned::enter(slot);
    const auto visit_here = [&](Lane<P>& here, Visit& visit) {
      Deferred* deferred = here.deferred.load(std::memory_order_relaxed);
      work(here, *deferred, visit);
      set_limit<void*>(here, *deferred);
      set_limit<Call>(here, *deferred);
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
  size_t free_in_lane(AnyLane<P>& lane, Slot& slot, Epoch upto, int attempts,
                      bool may_call = true) {
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

  void cut(Deferred& deferred) {
    const auto begin_epoch = [&] { return epochs_.advance(); };
    deferred.objects.cut(begin_epoch);
    deferred.calls.cut(begin_epoch);
  }

  // Cuts everything that waits, so that one look at the readers does for all.
  void cut_and_look(Slot& slot) {
    world_.lanes.for_each([&](AnyLane<P>& lane) {
      if (deferred_in(lane) != nullptr) cut_in_lane(lane, slot);
    });
    look(slot);
  }
  void cut_in_lane(AnyLane<P>& lane, Slot& slot) {
    visit_lane(lane, slot, [&](Lane<P>&, Deferred& deferred, Visit&) { cut(deferred); });
  }

  // Frees for one lane that no thread may come by again: its thread is gone, or it served for a
  // moment.
  void help_idle(Slot& slot, bool may_call) {
    AnyLane<P>* idle = nullptr;
    world_.lanes.for_each([&](AnyLane<P>& lane) {
      if (idle == nullptr && lane.number() == kNoNumber && lane.owner_slot() == nullptr &&
          deferred_in(lane) != nullptr)
        idle = &lane;
    });
    if (idle == nullptr) return;
    cut_in_lane(*idle, slot);
    free_in_lane(*idle, slot, epochs_.safe(), 1, may_call);
  }

  // --- Waiting for readers.

  // Whether the thread may: it has not interrupted the allocator, is in no function that was
  // deferred and in no section, and readers can tell when they have read.
  bool may_wait(Slot& slot) {
    Inside inside(slot, Owned::enter(slot));
    return inside.visit().may_block && !is_calling(slot) && epochs_.can_tell() &&
           !epochs_.is_in_section(lane_reader_this_thread(), inside.visit());
  }

  // Waits a moment, and names the reader that keeps the thread waiting.
  void wait(Patience<P>& patience, Slot& slot) {
    patience.wait();
    Inside inside(slot, Owned::enter(slot));
    epochs_.name_stuck(epochs_.now(), inside.visit());
  }
  void count_wait(const Patience<P>& patience) {
    if (patience.has_waited()) count<P>(waited_ns_, patience.waited_ns());
  }

  void look(Slot& slot) {
    Inside inside(slot, Owned::enter(slot));
    epochs_.look(inside.visit(), true);
  }

  // Waits until the lane has freed what it has deferred by the first visit.
  void wait_for_lane(AnyLane<P>& lane, Slot& slot, Patience<P>& patience) {
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
      wait(patience, slot);
      look(slot);
    }
  }

  // Whether the thread is in a function that was deferred.
  bool is_calling(const Slot& slot) {
    bool any = false;
    world_.lanes.for_each([&](AnyLane<P>& lane) {
      const Deferred* deferred = lane.deferred.load(std::memory_order_acquire);
      any |= deferred != nullptr && deferred->caller.load(std::memory_order_relaxed) == &slot;
    });
    return any;
  }

  // In a fork child: whether a thread that is not there was inside the lane.
  bool is_lost(const AnyLane<P>& lane) {
    return lane.is_set_aside() || (lane.is_taken_here() && world_.lanes.is_forgotten(lane));
  }

  World<P>& world_;
  Searches<P>& searches_;
  Epochs<P> epochs_;
  std::atomic<uint64_t> helped_{0}, waited_ns_{0}, stops_{0};
};

}  // namespace lanemalloc
