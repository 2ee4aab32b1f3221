// Misses: what malloc and free do when a hit has failed. The usual cases of each entry come first,
// and what they leave is done in a stay.
// Called by: engine, kinds, safepoints, abi. Locking: none of its own.
//
// A miss begins inside: `gate` is what was in the thread's slot. Its functions are static and take
// the world, so that malloc and free can jump to them with what they have in registers.
#pragma once

#include <cstring>

#include "core/engine/large.h"
#include "core/engine/pointers.h"

namespace lanemalloc {

// With checked=1: in every byte of what an arena gave back.
inline constexpr unsigned char kFreedByte = 0xFD;

template <class P>
class Misses {
 public:
  // --- The usual misses of an owner: a bin of a larger class, or the free list of a bin's slab; an
  // object of another lane whose batch has room. Null or false: nothing has changed.
  FAST static void* allocate_from_bin(Bytes size, Slot& slot, Gate* gate) {
    if (size - 1 >= kBinMax || !Owned::may_allocate(gate, 0)) return nullptr;
    void* object = lane_behind<P>(gate)->take(index_of(class_of(size)));
    if (LIKELY(object != nullptr)) Owned::leave(slot, gate);
    return object;
  }
  using Remote = typename Lane<P>::Remote;
  // `full(gate, batch)`: the object is freed, and the batch must be sent (flush_in_stay).
  template <class Full>
  FAST static bool free_to_batch(World<P>& world, void* p, Slot& slot, Gate* gate, MapWord word,
                                 Full full) {
    if (!Owned::may_allocate(gate, 0)) return false;
    Remote* batch;
    const auto class_of_object = [&] { return world.region.size_class_of(p); };
    const Sent sent = lane_behind<P>(gate)->send_to_open_batch(static_cast<Object*>(p), word,
                                                               class_of_object, batch);
    if (sent == Sent::kNot) return false;
    if (UNLIKELY(sent == Sent::kFull)) return full(gate, batch), true;
    Owned::leave(slot, gate);
    return true;
  }

  // --- The next usual ones: the owner's bin is refilled from elsewhere, or the thread works in a
  // lane that no thread owns. Null or false: nothing has changed.
  FAST static void* allocate_by_refill(World<P>& world, Bytes size, Slot& slot, Gate* gate) {
    return LIKELY(Owned::may_allocate(gate, 0)) ? allocate_by_owner(world, size, slot, gate)
                                                : allocate_here(world, size, slot, gate);
  }

  // By CPU. An object of another lane of this CPU is pushed there, and that lane is not entered. An
  // object of another CPU's lane joins the batch for that lane, if the first lane of this CPU is
  // free and has a batch with room.
  NOINLINE static bool free_by_cpu(World<P>& world, void* p, Slot& slot, Gate* gate) {
    const Bytes distance = world.region.distance(p);
    if (UNLIKELY(!PerCpu::may_free(gate, distance))) return false;
    const std::atomic<uint64_t>& word = world.region.map_word(distance);
    const Owner owner = MapWord(word.load(std::memory_order_relaxed)).owner();
    if (UNLIKELY(!is_lane(owner))) return false;
    // acquire: a thread that has read the owner's number from the page map sees the owner's lane
    // made. Pairs with [entries.release].
    std::atomic_thread_fence(std::memory_order_acquire);
    AnyLane<P>& its = world.lanes.at(owner);
    AnyLane<P>& usual = *lane_named<P>(gate);
    if (UNLIKELY(static_cast<Object*>(p)->looks_free())) return false;
    if (P::pushes_here() && its.number() == usual.number() && &its != &usual &&
        its.here_bins != 0 && PerCpu::push<P>(&its, word, p))
      return Owned::leave(slot, gate), true;
    if (UNLIKELY(&its == &usual || !usual.is_first_here || world.lanes.entry() != Entry::kPerCpu))
      return false;
    Lane<P>* entered = PerCpu::enter<P>(&usual);
    if (UNLIKELY(entered == nullptr)) return false;
    Lane<P>& lane = *entered;
    lane.take_by(&slot);
    // Read again inside: before that, the slab may have gone to the depot or come from it.
    const MapWord now(word.load(std::memory_order_relaxed));
    Remote* batch;
    Sent sent = Sent::kNot;
    if (LIKELY(is_slab(now.owner()) && now.owner() != lane.id()))
      sent = lane.send_to_open_batch(
          static_cast<Object*>(p), now, [&] { return world.region.size_class_at(distance); },
          batch);
    if (UNLIKELY(sent == Sent::kFull)) {
      Visit visit(&slot, true);
      lane.flush(*batch, visit);
    }
    lane.leave_here();
    if (UNLIKELY(sent == Sent::kNot)) return false;
    return Owned::leave(slot, gate), true;
  }

  // --- In a stay: whatever it takes. Null: no memory.
  static void* allocate_in_stay(Searches<P>& searches, Bytes size, Slot& slot, Gate* gate) {
    World<P>& world = searches.world();
    if (size > kSlabMax) {
      bool zeroed;
      return Large<P>(world).allocate(searches, size, kGranule, slot, gate, zeroed);
    }
    const SizeClass c = class_of(size == 0 ? 1 : size);
    void* p = nullptr;
    SizeClass due{0};
    {
      Stay<P> stay(world, slot, gate);
      while (LIKELY(stay.lane() != nullptr)) {
        if (LIKELY(!is_big(c))) p = stay.lane()->pop(index_of(c));
        if (p == nullptr) {
          p = stay.lane()->refill(c, stay.visit());
          due = stay.lane()->take_sample_due();
        }
        if (LIKELY(p == nullptr || Pointers<P>(world).check_out(p, starts_of(c)))) break;
        p = nullptr;
      }
    }
    if (LIKELY(p != nullptr)) return p;
    return due != SizeClass{0} ? allocate_sampled_or_not(searches, due, slot)
                               : allocate_again(searches, c, slot);
  }

  // If the pointer is bad, returns why; then nothing has changed.
  static Verdict free_in_stay(World<P>& world, void* p, Slot& slot, Gate* gate) {
    if (p == nullptr) {
      Owned::leave_as_found(slot, gate);
      return Verdict::kGood;
    }
    const MapWord word = world.region.word_for(p);
    const Verdict verdict = Pointers<P>(world).take_back(p, word);
    if (UNLIKELY(verdict != Verdict::kGood)) {
      Owned::leave_as_found(slot, gate);
      count<P>(world.counters.bad_pointers);
    } else if (LIKELY(free_in_short_stay(world, p, slot, gate))) {
    } else if (word.owner() == Owner::kLarge) {
      Inside inside(slot, gate);
      Large<P>(world).free(p, inside.visit(), gate);
    } else {
      Object* object = static_cast<Object*>(p);
      Stay<P> stay(world, slot, gate);
      if (LIKELY(stay.lane() != nullptr)) {
        // Read again inside: before that, the slab may have gone to the depot or come from it.
        stay.lane()->free(object, world.region.word_of(p), stay.visit());
      } else {
        free_without_lane(world, object, word);
      }
    }
    return verdict;
  }

  // The object is freed already, and its slab must be looked at.
  FAST static void look_in_stay(Slab* slab, Slot& slot, Gate* gate) {
    Inside inside(slot, gate);
    Lane<P>* lane = lane_behind<P>(gate);
    if (LIKELY(lane->how != Entry::kPerCpu)) return lane->look_at(slab, inside.visit());
    lane->take_by(inside.visit().who);
    lane->look_at(slab, inside.visit());
    lane->leave_here();
  }
  static void flush_in_stay(Remote* batch, Slot& slot, Gate* gate) {
    Inside inside(slot, gate);
    lane_behind<P>(gate)->flush(*batch, inside.visit());
  }

  // Frees objects of slabs in one stay in the lane (Lane::free_chain). They are linked by their
  // first words; the last one's first word has no meaning. If an object is bad, returns why and
  // stores it in `bad`. That object, and those linked behind it, are left as they are.
  static Verdict free_chain(World<P>& world, Chained* first, size_t n, Slot& slot,
                            const void*& bad) {
    Verdict verdict = Verdict::kGood;
    Chained** link = &first;
    while (n > 0) {
      bad = *link;
      const Found found = Pointers<P>(world).find(bad);
      verdict = found.verdict;
      if (UNLIKELY(verdict == Verdict::kGood && found.word.owner() == Owner::kLarge)) {
        if (free_sampled_of(world, *link, slot)) {
          --n;
          continue;
        }
        verdict = Verdict::kNotAStart;
      }
      const bool is_checked = world.settings.checked;
      if (verdict == Verdict::kGood && is_checked && !Pointers<P>(world).mark_free(bad))
        verdict = Verdict::kFreedAlready;
      if (UNLIKELY(verdict != Verdict::kGood)) break;
      if (UNLIKELY(is_checked))
        memset(static_cast<void*>(*link + 1), kFreedByte,
               Pointers<P>(world).usable_size(bad, found.word) - sizeof(Chained));
      --n;
      link = &(*link)->next;
    }
    *link = nullptr;
    if (first != nullptr) {
      Stay<P> stay(world, slot, Owned::enter(slot));
      if (LIKELY(stay.lane() != nullptr)) {
        stay.lane()->free_chain(first, stay.visit());
      } else {
        for (Chained* next; first != nullptr; first = next) {
          next = first->next;
          free_without_lane(world, reinterpret_cast<Object*>(first), world.region.word_of(first));
        }
      }
    }
    if (UNLIKELY(verdict != Verdict::kGood)) count<P>(world.counters.bad_pointers);
    return verdict;
  }

  // There is no memory for a lane of our own. A batch of one object goes straight to the owner. An
  // object that lies in the depot goes to some lane, which sends it on.
  static void send_alone(World<P>& world, Object* object, Owner owner) {
    object->next = Link::none();
    std::atomic_thread_fence(std::memory_order_acquire);  // as in Lane::flush
    world.lanes.at(is_lane(owner) ? owner : Owner::kFirstLane).inbox().give(object);
  }

 private:
  using Sent = typename Lane<P>::Sent;

  // From an owner's bin. Null also if the owner must do something else first; a Stay sees to that.
  static void* allocate_by_owner(World<P>& world, Bytes size, Slot& slot, Gate* gate) {
    if (UNLIKELY(size - 1 >= kSlabMax)) return nullptr;
    Lane<P>* lane = lane_behind<P>(gate);
    if (UNLIKELY(lane->is_asked() ||
                 (world.lanes.entry() != Entry::kOwned && !P::single_threaded())))
      return nullptr;
    Visit visit(&slot, true);
    void* object = lane->refill(class_of(size), visit);
    if (LIKELY(object != nullptr)) {
      Owned::leave(slot, gate);
      return object;
    }
    const SizeClass due = lane->take_sample_due();
    return due != SizeClass{0} ? allocate_sampled(world, due, slot, gate) : nullptr;
  }

  // By CPU: a bin of a larger class has an object; or the first lane is free, and the slab that its
  // bin draws from has a list.
  NOINLINE static void* allocate_here(World<P>& world, Bytes size, Slot& slot, Gate* gate) {
    if (UNLIKELY(!PerCpu::may_allocate(gate, 0)))
      return is_busy(gate) || gate->how == Entry::kOwned
                 ? nullptr
                 : allocate_in_short_stay(world, size, slot, gate);
    if (UNLIKELY(size - 1 >= kBinMax)) return allocate_in_short_stay(world, size, slot, gate);
    AnyLane<P>* usual = lane_named<P>(gate);
    const SizeClass c = class_of(size);
    const bool is_by_cpu = LIKELY(world.lanes.entry() == Entry::kPerCpu);
    void* object;
    if (!PerCpu::may_allocate(gate, small_index(size)) && is_by_cpu &&
        PerCpu::pop_bin<P>(gate, usual->bins[index_of(c)].hit, object)) {
      Owned::leave(slot, gate);
      return object;
    }
    Lane<P>* lane = nullptr;
    if (LIKELY(usual->is_first_here && is_by_cpu && !world.sampler.on()))
      lane = PerCpu::enter<P>(usual);
    if (UNLIKELY(lane == nullptr)) return allocate_in_short_stay(world, size, slot, gate);
    lane->take_by(&slot);
    object = lane->take(c);
    lane->leave_here();
    if (UNLIKELY(object == nullptr)) return allocate_in_short_stay(world, size, slot, gate);
    Owned::leave(slot, gate);
    return object;
  }

  NOINLINE static void* allocate_in_short_stay(World<P>& world, Bytes size, Slot& slot,
                                               Gate* gate) {
    if (UNLIKELY(size - 1 >= kSlabMax)) return nullptr;
    ShortStay<P> stay(world, slot, gate);
    if (stay.lane() == nullptr) return nullptr;
    const SizeClass c = class_of(size);
    void* p = stay.lane()->take(c);
    if (UNLIKELY(p == nullptr)) p = stay.lane()->refill(c, stay.visit());
    const SizeClass due = UNLIKELY(p == nullptr) ? stay.lane()->take_sample_due() : SizeClass{0};
    stay.end(slot, p != nullptr);
    return UNLIKELY(due != SizeClass{0}) ? allocate_sampled(world, due, slot, gate) : p;
  }

  FAST static bool free_in_short_stay(World<P>& world, void* p, Slot& slot, Gate* gate) {
    if (!is_slab(world.region.word_for(p).owner())) return false;
    ShortStay<P> stay(world, slot, gate);
    if (stay.lane() == nullptr) return false;
    // Read again inside: before that, the slab may have gone to the depot or come from it.
    const MapWord word = world.region.word_of(p);
    if (LIKELY(is_slab(word.owner())))
      stay.lane()->free(static_cast<Object*>(p), word, stay.visit());
    return stay.end(slot, is_slab(word.owner()));
  }

  // Null: there is no memory for that, and the thread is inside again. The object will not be a
  // sampled one: the next point is further on by then.
  NOINLINE static void* allocate_sampled(World<P>& world, SizeClass c, Slot& slot, Gate* gate) {
    void* p = Large<P>(world).allocate_sampled(c, slot, gate);
    if (UNLIKELY(p == nullptr)) Owned::enter(slot);
    return p;
  }

  NOINLINE static void* allocate_sampled_or_not(Searches<P>& searches, SizeClass c, Slot& slot) {
    void* p = allocate_sampled(searches.world(), c, slot, Owned::enter(slot));
    return LIKELY(p != nullptr) ? p
                                : allocate_in_stay(searches, size_of(c), slot, Owned::enter(slot));
  }

  // Tries once more: there was no memory.
  NOINLINE static void* allocate_again(Searches<P>& searches, SizeClass c, Slot& slot) {
    if (!searches.collect(slot)) return nullptr;
    World<P>& world = searches.world();
    Stay<P> stay(world, slot, Owned::enter(slot));
    for (;;) {
      void* p = stay.lane() != nullptr ? stay.lane()->allocate(c, stay.visit()) : nullptr;
      if (LIKELY(p == nullptr || Pointers<P>(world).check_out(p, starts_of(c)))) return p;
    }
  }

  static void free_without_lane(World<P>& world, Object* object, MapWord word) {
    count<P>(world.counters.direct_frees[index_of(world.region.size_class_of(object))]);
    send_alone(world, object, word.owner());
  }

  // For a chain: frees a sampled object by itself, and takes it out of the chain. False: the object
  // is a large one, which is in no chain.
  static bool free_sampled_of(World<P>& world, Chained*& link, Slot& slot) {
    Chained* object = link;
    if (large_state(world.region, world.region.block_of(object)).sample_class == SizeClass{0})
      return false;
    link = object->next;
    free_in_stay(world, object, slot, Owned::enter(slot));
    return true;
  }
};

}  // namespace lanemalloc
