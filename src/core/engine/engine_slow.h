// What the engine does off the hit path. Included by engine.h only; see there.
#pragma once

#include <bit>
#include <cstring>

#include "core/engine/engine.h"

namespace lanemalloc {

// With checked=1: in every byte of what an arena gave back.
inline constexpr unsigned char kFreedByte = 0xFD;

// The usual misses by CPU: a bin of a larger class has an object; or the first lane is free, and
// the slab that its bin draws from has a list.
template <class P>
NOINLINE void* Engine<P>::allocate_here(Bytes size, Slot& slot, Gate* gate) {
  if (UNLIKELY(!PerCpu::may_allocate(gate, 0)))
    return is_busy(gate) || gate->how == Entry::kOwned ? nullptr
                                                       : allocate_in_short_stay(size, slot, gate);
  if (UNLIKELY(size - 1 >= kSlabMax)) return nullptr;
  AnyLane<P>* usual = lane_named<P>(gate);
  const Bytes bin = index_of(class_of(size));
  void* object;
  if (!PerCpu::may_allocate(gate, small_index(size)) && LIKELY(entry() == Entry::kPerCpu) &&
      PerCpu::pop_bin<P>(gate, bin, object)) {
    Owned::leave(slot, gate);
    return object;
  }
  Lane<P>* lane = nullptr;
  if (LIKELY(usual->is_first_here && entry() == Entry::kPerCpu && !world_.sampler.on()))
    lane = PerCpu::enter<P>(usual);
  if (UNLIKELY(lane == nullptr)) return allocate_in_short_stay(size, slot, gate);
  lane->take_by(&slot);
  object = lane->pop(bin);
  if (object == nullptr) object = lane->refill_from_own_list(bin);
  lane->leave_here();
  if (UNLIKELY(object == nullptr)) return allocate_in_short_stay(size, slot, gate);
  Owned::leave(slot, gate);
  return object;
}

template <class P>
NOINLINE void* Engine<P>::allocate_in_short_stay(Bytes size, Slot& slot, Gate* gate) {
  if (UNLIKELY(size - 1 >= kSlabMax)) return nullptr;
  ShortStay<P> stay(world_, slot, gate);
  if (stay.lane() == nullptr) return nullptr;
  const SizeClass c = class_of(size);
  void* p = stay.lane()->pop(index_of(c));
  if (p == nullptr) p = stay.lane()->refill_from_own_list(index_of(c));
  if (UNLIKELY(p == nullptr)) p = stay.lane()->refill(c, stay.visit());
  const SizeClass due = UNLIKELY(p == nullptr) ? stay.lane()->take_sample_due() : SizeClass{0};
  stay.end(slot, p != nullptr);
  return UNLIKELY(due != SizeClass{0}) ? allocate_sampled(due, slot, gate) : p;
}

// The two usual misses of free by CPU. An object of another lane of this CPU is pushed there, and
// that lane is not entered. An object of another CPU's lane joins the batch for that lane, if the
// first lane of this CPU is free and has a batch with room. False: nothing has changed.
template <class P>
NOINLINE bool Engine<P>::free_by_cpu(void* p, Slot& slot, Gate* gate) {
  const Bytes distance = world_.region.distance(p);
  if (UNLIKELY(!PerCpu::may_free(gate, distance))) return false;
  const std::atomic<uint64_t>& word = world_.region.map_word(distance);
  const Owner owner = MapWord(word.load(std::memory_order_relaxed)).owner();
  if (UNLIKELY(!is_lane(owner))) return false;
  // acquire: a thread that has read the owner's number from the page map sees the owner's lane
  // made. Pairs with [entries.release].
  std::atomic_thread_fence(std::memory_order_acquire);
  AnyLane<P>& its = world_.lanes.at(owner);
  AnyLane<P>& usual = *lane_named<P>(gate);
  if (P::pushes_here() && its.number() == usual.number() && &its != &usual && its.here_bins != 0 &&
      PerCpu::push<P>(&its, word, p))
    return Owned::leave(slot, gate), true;
  if (UNLIKELY(&its == &usual || !usual.is_first_here || entry() != Entry::kPerCpu)) return false;
  Lane<P>* entered = PerCpu::enter<P>(&usual);
  if (UNLIKELY(entered == nullptr)) return false;
  Lane<P>& lane = *entered;
  lane.take_by(&slot);
  // Read again inside: before that, the slab may have gone to the depot or come from it.
  const MapWord now(word.load(std::memory_order_relaxed));
  using Sent = typename Lane<P>::Sent;
  Remote* batch;
  Sent sent = Sent::kNot;
  if (LIKELY(is_slab(now.owner()) && now.owner() != lane.id()))
    sent = lane.send_to_open_batch(
        static_cast<Object*>(p), now, [&] { return world_.region.size_class_at(distance); }, batch);
  if (UNLIKELY(sent == Sent::kFull)) {
    Visit visit(&slot, true);
    lane.flush(*batch, visit);
  }
  lane.leave_here();
  if (UNLIKELY(sent == Sent::kNot)) return false;
  return Owned::leave(slot, gate), true;
}

template <class P>
FAST bool Engine<P>::free_in_short_stay(void* p, Slot& slot, Gate* gate) {
  if (!is_slab(world_.region.word_for(p).owner())) return false;
  ShortStay<P> stay(world_, slot, gate);
  if (stay.lane() == nullptr) return false;
  // Read again inside: before that, the slab may have gone to the depot or come from it.
  const MapWord word = world_.region.word_of(p);
  if (LIKELY(is_slab(word.owner()))) stay.lane()->free(static_cast<Object*>(p), word, stay.visit());
  return stay.end(slot, is_slab(word.owner()));
}

template <class P>
bool Engine<P>::start(const Settings& settings, void (*report)(Verdict, const void*)) {
  world_.settings = settings;
  world_.report = report;
  if (!world_.region.start(LaneTable<P>::kMostLanes * LaneTable<P>::kStride, settings.checked))
    return false;
  world_.lanes.start();
  world_.runs.start(P::charges_by_mapping(), settings.decay_ms);
  world_.runs.set_huge_pages(settings.huge_pages);
  upkeep_.start(settings.decay_ms);
  if (!entry_choice_.choose(settings)) entry_choice_.set(Entry::kShared, 0);
  return true;
}

template <class P>
void Engine<P>::adjust(const Settings& settings) {
  world_.settings.shared = settings.shared;
  world_.settings.decay_ms = settings.decay_ms;
  world_.runs.set_decay(settings.decay_ms);
  world_.runs.set_huge_pages(settings.huge_pages);
  world_.scavenger.set_decay(settings.decay_ms);
  world_.scavenger.poke();  // some may have been kept for good until now
}

// --- Allocating.

// Allocates from an owner's bin. Null also if the owner must do something else first; a Stay sees
// to that.
template <class P>
void* Engine<P>::allocate_by_owner(Bytes size, Slot& slot, Gate* gate) {
  if (UNLIKELY(size - 1 >= kSlabMax)) return nullptr;
  Lane<P>* lane = lane_behind<P>(gate);
  if (UNLIKELY(lane->is_asked() ||
               (world_.lanes.entry() != Entry::kOwned && !P::single_threaded())))
    return nullptr;
  Visit visit(&slot, true);
  void* object = lane->refill(class_of(size), visit);
  if (LIKELY(object != nullptr)) {
    Owned::leave(slot, gate);
    return object;
  }
  const SizeClass due = lane->take_sample_due();
  return due != SizeClass{0} ? allocate_sampled(due, slot, gate) : nullptr;
}

template <class P>
void* Engine<P>::allocate_in_stay(Bytes size, Slot& slot, Gate* gate) {
  if (size > kSlabMax) {
    bool zeroed;
    return large().allocate(size, kGranule, slot, gate, zeroed);
  }
  const SizeClass c = class_of(size == 0 ? 1 : size);
  void* p = nullptr;
  SizeClass due{0};
  {
    Stay<P> stay(world_, slot, gate);
    if (LIKELY(stay.lane() != nullptr)) p = stay.lane()->pop(index_of(c));
    if (p == nullptr && stay.lane() != nullptr) {
      p = stay.lane()->refill(c, stay.visit());
      due = stay.lane()->take_sample_due();
    }
    if (UNLIKELY(world_.settings.checked) && p != nullptr) pointers().mark_in_use(p);
  }
  if (LIKELY(p != nullptr)) return p;
  return due != SizeClass{0} ? allocate_sampled(due, slot, Owned::enter(slot))
                             : allocate_again(c, slot);
}

// Not sampled if there is no memory for that: the next point is further on by then.
template <class P>
NOINLINE void* Engine<P>::allocate_sampled(SizeClass c, Slot& slot, Gate* gate) {
  void* p = large().allocate_sampled(c, slot, gate);
  return LIKELY(p != nullptr) ? p : allocate_in_stay(size_of(c), slot, Owned::enter(slot));
}

// Tries once more: there was no memory.
template <class P>
void* Engine<P>::allocate_again(SizeClass c, Slot& slot) {
  if (!searches_.collect(slot)) return nullptr;
  Stay<P> stay(world_, slot, Owned::enter(slot));
  void* p = stay.lane() != nullptr ? stay.lane()->allocate(c, stay.visit()) : nullptr;
  if (world_.settings.checked && p != nullptr) pointers().mark_in_use(p);
  return p;
}

template <class P>
void* Engine<P>::allocate_zeroed(Bytes size, Slot& slot) {
  const auto rounded = [](Bytes n) {
    return n > kSlabMax ? bytes_of(blocks_for(n)) : size_of(class_of(n == 0 ? 1 : n));
  };
  bool zeroed = false;
  void* p = size > kSlabMax ? large().allocate(size, kGranule, slot, Owned::enter(slot), zeroed)
                            : allocate(size, slot);
  // Clears up to the size that malloc_usable_size() tells. What the system has just given is zero
  // anyway.
  if (p != nullptr && !zeroed) memset(p, 0, rounded(size));
  return p;
}

template <class P>
void* Engine<P>::allocate_aligned(Bytes size, Bytes alignment, Slot& slot) {
  if (alignment <= kGranule) return allocate(size, slot);
  Gate* gate = Owned::enter(slot);
  const SizeClass c = alignment <= kBlockSize ? aligned_class_of(size, alignment) : SizeClass{0};
  if (c == SizeClass{0}) {
    bool zeroed;
    return large().allocate(size == 0 ? 1 : size, alignment, slot, gate, zeroed);
  }
  return allocate_in_stay(size_of(c), slot, gate);
}

// --- Freeing.

template <class P>
Verdict Engine<P>::free_in_stay(void* p, Slot& slot, Gate* gate) {
  if (p == nullptr) {
    Owned::leave_as_found(slot, gate);
    return Verdict::kGood;
  }
  if (free_in_short_stay(p, slot, gate)) return Verdict::kGood;
  const MapWord word = world_.region.word_for(p);
  Verdict verdict = Verdict::kGood;
  if (UNLIKELY(!is_of_malloc(word.owner()))) {
    verdict = is_private(word.owner()) ? Verdict::kOfKind : pointers().why_nobody(p);
  } else if (word.owner() == Owner::kLarge) {
    if (LIKELY(pointers().is_start(p, word))) {
      Inside inside(slot, gate);
      large().free(p, inside.visit());
      return Verdict::kGood;
    }
    verdict = Verdict::kNotAStart;
  } else {
    if (UNLIKELY(world_.settings.checked)) {
      if (!pointers().is_start(p, word)) {
        verdict = Verdict::kNotAStart;
      } else if (!pointers().mark_free(p)) {
        verdict = Verdict::kFreedAlready;
      }
    }
    if (LIKELY(verdict == Verdict::kGood)) {
      Object* object = static_cast<Object*>(p);
      Stay<P> stay(world_, slot, gate);
      if (LIKELY(stay.lane() != nullptr)) {
        // Read again inside: before that, the slab may have gone to the depot or come from it.
        stay.lane()->free(object, world_.region.word_of(p), stay.visit());
      } else {
        free_without_lane(object, word);
      }
      return verdict;
    }
  }
  Owned::leave_as_found(slot, gate);
  count<P>(world_.counters.bad_pointers);
  return verdict;
}

template <class P>
Verdict Engine<P>::free_chain(Object* first, size_t n, Slot& slot, const void*& bad) {
  bad = first;
  if (n == 1 && !world_.settings.checked) return free(first, slot);
  Verdict verdict = Verdict::kGood;
  Object** link = &first;
  while (n > 0) {
    bad = *link;
    const Found found = find(bad);
    verdict = found.verdict;
    if (UNLIKELY(verdict == Verdict::kGood && found.word.owner() == Owner::kLarge)) {
      if (free_sampled_of(*link, slot)) {
        --n;
        continue;
      }
      verdict = Verdict::kNotAStart;
    }
    const bool is_checked = world_.settings.checked;
    if (verdict == Verdict::kGood && is_checked && !pointers().mark_free(bad))
      verdict = Verdict::kFreedAlready;
    if (UNLIKELY(verdict != Verdict::kGood)) break;
    if (UNLIKELY(is_checked))
      memset(static_cast<void*>(*link + 1), kFreedByte,
             usable_size(bad, found.word) - sizeof(Object));
    --n;
    link = &(*link)->next;
  }
  *link = nullptr;
  if (first != nullptr) {
    Stay<P> stay(world_, slot, Owned::enter(slot));
    if (LIKELY(stay.lane() != nullptr)) {
      stay.lane()->free_chain(first, stay.visit());
    } else {
      for (Object* next; first != nullptr; first = next) {
        next = first->next;
        free_without_lane(first, world_.region.word_of(first));
      }
    }
  }
  if (UNLIKELY(verdict != Verdict::kGood)) count<P>(world_.counters.bad_pointers);
  return verdict;
}

template <class P>
FAST void Engine<P>::look_in_stay(Slab* slab, Slot& slot, Gate* gate) {
  Inside inside(slot, gate);
  Lane<P>* lane = lane_behind<P>(gate);
  if (LIKELY(lane->how != Entry::kPerCpu)) return lane->look_at(slab, inside.visit());
  lane->take_by(inside.visit().who);
  lane->look_at(slab, inside.visit());
  lane->leave_here();
}

template <class P>
void Engine<P>::flush_in_stay(Remote* batch, Slot& slot, Gate* gate) {
  Inside inside(slot, gate);
  lane_behind<P>(gate)->flush(*batch, inside.visit());
}

// There is no memory for a lane of our own. A batch of one object goes straight to the owner. An
// object that lies in the depot goes to some lane, which sends it on.
template <class P>
void Engine<P>::free_without_lane(Object* object, MapWord word) {
  count<P>(world_.counters.direct_frees[index_of(world_.region.size_class_of(object))]);
  object->next = nullptr;
  std::atomic_thread_fence(std::memory_order_acquire);  // as in Lane::flush
  world_.lanes.at(is_lane(word.owner()) ? word.owner() : Owner::kFirstLane).inbox().give(object);
}

// For a chain (free_chain): frees a sampled object by itself, and takes it out of the chain. False:
// the object is a large one, which is in no chain.
template <class P>
bool Engine<P>::free_sampled_of(Object*& link, Slot& slot) {
  Object* object = link;
  if (large_state(world_.region, world_.region.block_of(object)).sample_class == SizeClass{0})
    return false;
  link = object->next;
  free(object, slot);
  return true;
}

// --- Resizing.

// The size that a growing object gets. It is more than is wanted, so that growing by little does
// not copy at every step. A large object gets up to twice what is wanted, since pages that nobody
// touches cost nothing. It gets a power of two if that leaves some room, for then few copies are
// left until it is a run, which grows in place. An object that grows by much gets what is wanted.
inline Bytes roomy_size(Bytes old_size, Bytes size) {
  constexpr Bytes kSomePages = 8 << 10, kManyPages = 32 << 10;
  const Bytes more = old_size + old_size / 8 * 3, twice = 2 * old_size;
  if (size >= (old_size < kManyPages ? more : twice)) return size;
  if (old_size < kSomePages) return more;
  const Bytes power = std::bit_floor(2 * size);
  return power >= size + size / 4 ? power : twice;
}

template <class P>
void* Engine<P>::reallocate(void* p, MapWord word, Bytes size, Slot& slot) {
  const Bytes old_size = usable_size(p, word);
  const bool is_run =
      word.owner() == Owner::kLarge &&
      large_state(world_.region, world_.region.block_of(p)).sample_class == SizeClass{0};
  // At most half of an object that is not large stays unused.
  const bool fits = size <= old_size && (size >= old_size / 2 || old_size == kGranule);
  if (is_run && size > kBlockSize && size < world_.region.most_bytes() &&
      (old_size > kSlabMax || !fits)) {
    const BlockCount blocks = blocks_for(size);
    Inside inside(slot, Owned::enter(slot));
    Visit& visit = inside.visit();
    if (large().resize(p, blocks, visit)) return p;
    if (void* moved = large().move(p, size, visit)) return moved;
  } else if (fits) {
    return p;
  }
  if (size <= old_size) return copy_to_new(p, size, size, slot);
  if (const Bytes roomy = roomy_size(old_size, size); roomy > size) {
    // As a run it may grow on in place. The run has at most twice the wanted size, or the next step
    // would take it for too large.
    const Bytes run = round_down(2 * size, kBlockSize);
    void* copy = run > kBlockSize && run >= roomy - kBlockSize
                     ? copy_to_run(p, old_size, run, slot)
                     : copy_to_new(p, old_size, roomy, slot);
    if (copy != nullptr) return copy;
  }
  return copy_to_new(p, old_size, size, slot);
}

template <class P>
void* Engine<P>::copy_to_new(void* p, Bytes bytes, Bytes size, Slot& slot) {
  void* copy = allocate(size, slot);
  if (copy == nullptr) return nullptr;
  memcpy(copy, p, bytes);
  free(p, slot);
  return copy;
}

template <class P>
void* Engine<P>::copy_to_run(void* p, Bytes bytes, Bytes size, Slot& slot) {
  bool zeroed;
  void* copy = large().allocate(size, kGranule, slot, Owned::enter(slot), zeroed);
  if (copy == nullptr) return nullptr;
  memcpy(copy, p, bytes);
  free(p, slot);
  return copy;
}

template <class P>
void Engine<P>::check_invariants() {
  world_.runs.check_invariants();
  world_.depot.check_invariants();
  world_.lanes.for_each([](AnyLane<P>& lane) {
    lane.at_rest().check_invariants();
    const Deferred* deferred = lane.deferred.load(std::memory_order_relaxed);
    if (deferred == nullptr) return;
    deferred->check_invariants();
  });
  check_kinds();
}

}  // namespace lanemalloc
