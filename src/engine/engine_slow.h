// What the engine does off the hit path. Included by engine.h only; see there.
#pragma once

#include <bit>
#include <cstring>

#include "engine/engine.h"

namespace lanemalloc {

// With checked=1: in every byte of what an arena gave back.
inline constexpr unsigned char kFreedByte = 0xFD;

// Inside: the time from a miss to leaving, wherever the thread works. Its slot says busy already;
// `gate` is what was in the slot.
template <class P>
class Engine<P>::Inside {
 public:
  Inside(Slot& slot, Gate* gate)
      : slot_(slot), gate_(Owned::current(slot, gate)), visit_(&slot, !is_busy(gate)) {}
  Inside(const Inside&) = delete;
  ~Inside() { Owned::leave(slot_, gate_); }

  Visit& visit() { return visit_; }

 protected:
  Slot& slot_;
  Gate* gate_;
  Visit visit_;
};

// Stay: the same, in a lane. What was in the slot and which entry is in use decide which lane it
// is. While the process has one thread, that thread has a lane of its own whatever the entry, by
// plain stores alone:
//
//   a busy gate    -> an overflow lane, and no waiting for any lock: this thread may hold the lock
//                  further down its stack
//   exited_gate, forking_gate  -> an overflow lane
//   owned          -> the thread's lane; if it has none, it adopts an idle one or a new one
//   shared         -> a lane of the pool, if possible the one in the thread's slot
//   by CPU         -> the first free lane of the CPU that the thread runs on
//   if all of these are revoked or taken, or there is no memory for one  -> an overflow lane
//
// A thread that comes with a lane of another entry leaves that lane: the entry in use has changed.
template <class P>
class Engine<P>::Stay : public Inside {
 public:
  // of_kind: the lane must be one that other threads can take.
  Stay(Engine& engine, Slot& slot, Gate* gate, bool of_kind = false)
      : Inside(slot, gate), engine_(engine) {
    const bool may_own = LIKELY(!of_kind) || world().can_revoke.load(std::memory_order_relaxed);
    if (!is_busy(gate) && gate_ != &exited_gate && gate_ != &forking_gate && may_own) enter(gate_);
    if (lane_ == nullptr) {
      overflow(is_busy(gate));
    } else if (UNLIKELY(lane_->take_asked())) {
      lane_->clean(visit_);
    }
  }
  ~Stay() {
    if (how_ == How::kLocked) lane_->unlock(visit_);
    if (how_ == How::kByCpu) lane_->leave_here();
  }

  Lane<P>* lane() const { return lane_; }  // null: no memory
  using Inside::visit;

 private:
  enum class How : uint8_t { kOwned, kLocked, kByCpu };
  using Inside::gate_, Inside::slot_, Inside::visit_;

  World<P>& world() { return engine_.world_; }

  void enter(Gate* gate) {
    AnyLane<P>* lane = gate == &no_lane_gate ? nullptr : lane_named<P>(gate);
    const Entry entry = world().lanes.entry();
    if (LIKELY(entry == Entry::kOwned) || P::single_threaded()) {
      lane_ = LIKELY(lane != nullptr && lane->how == Entry::kOwned) ? enter_own(lane) : adopt();
      return;
    }
    if (UNLIKELY(lane != nullptr && lane->how == Entry::kOwned)) {
      engine_.rest_lane(*lane, visit_);
      gate_ = &no_lane_gate;
    }
    if (entry == Entry::kShared) {
      enter_shared(lane);
    } else {
      enter_by_cpu();
    }
  }

  Lane<P>* enter_own(AnyLane<P>* lane) {
    if (UNLIKELY(lane->is_being_revoked())) {
      // Once for each revoker: the revoker may have been torn off, and then it never lets go.
      if (!lane->is_set_aside() && lane->entered().is_new_holder()) give_way(lane);
      // Meanwhile a handler may have come and changed the slot.
      if (gate_ != lane || lane->is_being_revoked()) return nullptr;
    }
    lane->entered().open_gate();
    return &lane->entered();
  }

  // The revoker must find the owner outside, and the revoker may have been preempted. So the owner
  // leaves for a moment. To the proof in entry/owned.h that is the end of one operation, which did
  // nothing, and the start of another.
  NOINLINE void give_way(AnyLane<P>* lane) {
    constexpr int kMoment = 512;
    Owned::leave(slot_, gate_);
    for (int i = 0; i < kMoment && lane->is_being_revoked(); ++i) P::pause();
    if (lane->is_being_revoked()) P::yield();
    gate_ = Owned::current(slot_, Owned::enter(slot_));
  }

  // With all signals blocked, once per thread: no thread is torn off while it has a lane in hand
  // that no other thread has.
  NOINLINE Lane<P>* adopt() {
    const uint64_t mask = P::block_signals();
    Lane<P>* lane = adopt_uninterrupted();
    P::restore_signals(mask);
    return lane;
  }
  Lane<P>* adopt_uninterrupted() {
    AnyLane<P>* lane =
        UNLIKELY(world().lanes.has_changed()) ? engine_.find_own_lane(slot_) : nullptr;
    if (lane == nullptr) lane = world().lanes.pop_idle_or_make();
    if (lane == nullptr || !lane->adopt_by(slot_, visit_)) return nullptr;
    gate_ = lane;
    if (engine_.watch_exit_ == nullptr || engine_.watch_exit_(slot_)) {
      world().lanes.owners().fetch_add(1, std::memory_order_relaxed);
      return &lane->entered();
    }
    // Nobody would tell us that the thread has gone. So it works in overflow lanes.
    lane->disown(visit_);
    world().lanes.push_idle(*lane);
    gate_ = &exited_gate;
    return nullptr;
  }

  void enter_shared(AnyLane<P>* lane) {
    LaneTable<P>& lanes = world().lanes;
    if (lane == nullptr || lane->how != Entry::kShared || lane->number() >= lanes.orders().lanes())
      lane = lanes.shared(lanes.next_shared());
    if (lane == nullptr) return;
    lane_ = Shared<P>(world(), visit_).enter(*lane);
    if (lane_ == nullptr) return;
    gate_ = lane_;
    how_ = How::kLocked;
  }

  void enter_by_cpu() {
    world().region.set_hits(!P::numbers_for_hits());
    if (UNLIKELY(world().lanes.entry() != Entry::kPerCpu))
      world().region.set_hits(true);  // the entry has just changed
    lane_ = engine_.take_here(gate_, visit_);
    if (lane_ == nullptr) return;
    gate_ = lane_;
    how_ = How::kByCpu;
  }

  NOINLINE void overflow(bool nested) {
    SharedCounters& counters = world().counters;
    count<P>(counters.overflow_entries);
    if (nested) count<P>(counters.nested_entries);
    lane_ = world().lanes.enter_overflow(visit_);
    if (lane_ != nullptr) how_ = How::kLocked;
  }

  Engine& engine_;
  Lane<P>* lane_ = nullptr;
  How how_ = How::kOwned;
};

// Enters the first free lane of the CPU that the thread runs on. Returns null if no lane is free,
// or if there is no memory for another one. It takes the first one, so that the threads of a CPU
// meet in one lane again after one of them was stopped inside. gate: what the thread's slot named
// before.
template <class P>
NOINLINE Lane<P>* Engine<P>::take_here(const Gate* gate, const Visit& visit) {
  constexpr int kAttempts = 3;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const uint32_t number = P::lane_number();
    for (uint32_t which = 0;; ++which) {
      if (which == LaneTable<P>::kLanesHere) return nullptr;
      AnyLane<P>* lane = world_.lanes.here(number, which);
      if (UNLIKELY(lane == nullptr)) return nullptr;
      if (UNLIKELY(!lane->is_free_here())) continue;
      uint32_t before;
      const Restartable result =
          P::take_here(lane->here, static_cast<uint16_t>(lane->id()), kTakenHere, before);
      if (LIKELY(result == Restartable::kDone)) {
        if (gate->how == Entry::kPerCpu && static_cast<const AnyLane<P>*>(gate)->number() != number)
          count<P>(world_.counters.rebinds);
        Lane<P>& entered = lane->entered();
        entered.take_by(visit.who);
        entered.see_growth();
        return &entered;
      }
      // If the step was interrupted, or the thread has moved to another CPU, it tries once more.
      // Otherwise the lane was taken or revoked just now.
      if (result == Restartable::kInterrupted || lane->is_free_here()) break;
    }
  }
  return nullptr;
}

// ShortStay: a stay in the shared lane that the slot names, if that lane is free, or in a lane of
// the CPU by take_here(). It looks for no other lane.
template <class P>
class Engine<P>::ShortStay {
 public:
  FAST ShortStay(Engine& engine, Slot& slot, Gate* gate) : visit_(&slot, true) {
    if (is_busy(gate) || gate->how != engine.entry() || engine.world_.settings.checked) return;
    AnyLane<P>* lane = lane_named<P>(gate);
    if (gate->how == Entry::kShared) {
      if (lane->number() < engine.world_.lanes.orders().lanes())
        lane_ = Shared<P>(engine.world_, visit_).try_enter(*lane);
    } else if (gate->how == Entry::kPerCpu) {
      // The usual lane first, without a look at the CPU's number.
      uint32_t before;
      if (LIKELY(lane->is_first_here && P::take_here(lane->here, static_cast<uint16_t>(lane->id()),
                                                     kTakenHere, before) == Restartable::kDone)) {
        lane_ = &lane->entered();
        lane_->take_by(visit_.who);
        lane_->see_growth();
      } else {
        lane_ = engine.take_here(gate, visit_);
      }
    }
  }
  ShortStay(const ShortStay&) = delete;

  Lane<P>* lane() const { return lane_; }  // null: no lane was free
  Visit& visit() { return visit_; }
  // Leaves the lane and, if all is done, the allocator.
  bool end(Slot& slot, bool done) {
    if (lane_->how == Entry::kShared) {
      lane_->unlock(visit_);
    } else {
      lane_->leave_here();
    }
    if (done) Owned::leave(slot, lane_);
    return done;
  }

 private:
  Visit visit_;
  Lane<P>* lane_ = nullptr;
};

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
  ShortStay stay(*this, slot, gate);
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
  const Owner owner = MapEntry(word.load(std::memory_order_relaxed)).owner();
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
  const MapEntry now(word.load(std::memory_order_relaxed));
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
  if (!is_slab(world_.region.entry_for(p).owner())) return false;
  ShortStay stay(*this, slot, gate);
  if (stay.lane() == nullptr) return false;
  // Read again inside: before that, the slab may have gone to the depot or come from it.
  const MapEntry entry = world_.region.entry_of(p);
  if (LIKELY(is_slab(entry.owner())))
    stay.lane()->free(static_cast<Object*>(p), entry, stay.visit());
  return stay.end(slot, is_slab(entry.owner()));
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
  world_.scavenger.start(&Engine::pass, this, settings.decay_ms);
  if (!choose_entry(settings)) set_entry(Entry::kShared, 0);
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

// --- Choosing how lanes are entered.

template <class P>
bool Engine<P>::choose_entry(const Settings& settings) {
  if (settings.entry == Entry::kPerCpu && !can_enter_by_cpu()) return false;
  many_threads_.store(settings.choose_entry ? kThreadsPerCpu * P::cpus() + 1 : kChosen,
                      std::memory_order_relaxed);
  set_entry(settings.entry, settings.shared_lanes);
  return true;
}

template <class P>
bool Engine<P>::can_enter_by_cpu() {
  return P::lane_number() < kMostNumbers && P::restart_here();
}

template <class P>
void Engine<P>::set_entry(Entry entry, uint32_t shared_lanes) {
  // Only shared lanes need the number of CPUs: to ask for it takes a dozen system calls.
  if (entry == Entry::kShared && shared_lanes == 0) shared_lanes = P::cpus();
  world_.lanes.set_entry(entry, shared_lanes);
  if (entry != Entry::kPerCpu) world_.region.set_hits(true);
}

// False: the entry is no longer `from`.
template <class P>
bool Engine<P>::change_entry(Entry from, Entry to, uint32_t shared_lanes) {
  if (!world_.lanes.change_entry(from, to, shared_lanes)) return false;
  if (to != Entry::kPerCpu) world_.region.set_hits(true);
  return true;
}

// For lanes=auto, at each pass of the scavenger. If many threads mostly wait, lanes of their own
// would keep much, and would be cold each time.
template <class P>
void Engine<P>::follow_waits(uint64_t allocated) {
  const uint32_t few = many_threads_.load(std::memory_order_relaxed);
  const Waits::Say say = waits_.look(allocated, P::waits());
  const Entry from = world_.lanes.entry();
  Entry to = from;
  if (say == Waits::Say::kTheyRun) to = Entry::kOwned;
  if (say == Waits::Say::kTheyWait && from == Entry::kOwned &&
      world_.lanes.owners().load(std::memory_order_relaxed) > few)
    to = can_enter_by_cpu() ? Entry::kPerCpu : Entry::kShared;
  // The number of CPUs is not asked for again: by now the program may be forbidden to ask.
  if (to == from || !change_entry(from, to, to == Entry::kShared ? few / kThreadsPerCpu : 0))
    return;
  // Meanwhile the program may have chosen an entry, even the very one that was in use.
  if (many_threads_.load(std::memory_order_relaxed) == kChosen) change_entry(to, from, 0);
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
    return allocate_large(size, kGranule, slot, gate, zeroed);
  }
  const SizeClass c = class_of(size == 0 ? 1 : size);
  void* p = nullptr;
  SizeClass due{0};
  {
    Stay stay(*this, slot, gate);
    if (LIKELY(stay.lane() != nullptr)) p = stay.lane()->pop(index_of(c));
    if (p == nullptr && stay.lane() != nullptr) {
      p = stay.lane()->refill(c, stay.visit());
      due = stay.lane()->take_sample_due();
    }
    if (UNLIKELY(world_.settings.checked) && p != nullptr) mark_in_use(p);
  }
  if (LIKELY(p != nullptr)) return p;
  return due != SizeClass{0} ? allocate_sampled(due, slot, Owned::enter(slot))
                             : allocate_again(c, slot);
}

// Tries once more: there was no memory.
template <class P>
void* Engine<P>::allocate_again(SizeClass c, Slot& slot) {
  if (!wait_for_holders(slot)) return nullptr;
  Stay stay(*this, slot, Owned::enter(slot));
  void* p = stay.lane() != nullptr ? stay.lane()->allocate(c, stay.visit()) : nullptr;
  if (world_.settings.checked && p != nullptr) mark_in_use(p);
  return p;
}

// There is no memory. A thread that holds a lane from outside may be giving back just what is
// wanted. The caller waits in no lane, so that no thread that waits likewise waits for it. True if
// there was such a holder.
template <class P>
bool Engine<P>::wait_for_holders(Slot& slot) {
  if (is_busy(slot.load(std::memory_order_relaxed))) return false;
  Inside inside(slot, Owned::enter(slot));
  bool any = false;
  world_.lanes.for_each([&](AnyLane<P>& lane) {
    if (!lane.lock().is_held() || !lane.lock_or_wait(inside.visit())) return;
    lane.unlock(inside.visit());
    any = true;
  });
  return any;
}

template <class P>
void* Engine<P>::allocate_zeroed(Bytes size, Slot& slot) {
  const auto rounded = [](Bytes n) {
    return n > kSlabMax ? bytes_of(blocks_for(n)) : size_of(class_of(n == 0 ? 1 : n));
  };
  bool zeroed = false;
  void* p = size > kSlabMax ? allocate_large(size, kGranule, slot, Owned::enter(slot), zeroed)
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
    return allocate_large(size == 0 ? 1 : size, alignment, slot, gate, zeroed);
  }
  return allocate_in_stay(size_of(c), slot, gate);
}

template <class P>
FAST void* Engine<P>::allocate_large_once(Bytes size, Bytes alignment, Slot& slot, Gate* gate,
                                          bool& zeroed) {
  Inside inside(slot, gate);
  void* p = nullptr;
  if (size < world_.region.most_bytes() && alignment < world_.region.most_bytes()) {
    const BlockCount blocks = blocks_for(size);
    const BlockCount align_blocks =
        alignment <= kBlockSize ? 1 : static_cast<BlockCount>(alignment >> kBlockShift);
    const Run run = take_run(blocks, align_blocks, gate, inside.visit());
    if (run.at != Runs<P>::kNone) {
      publish_large(run.at, false);
      count<P>(world_.counters.large_allocations);
      count<P>(world_.counters.large_bytes, bytes_of(blocks));
      if (UNLIKELY(world_.sampler.on())) sample_large(run.at, size);
      zeroed = run.zeroed;
      p = world_.region.pointer_to(run.at);
    }
  }
  return p;
}

template <class P>
FAST void* Engine<P>::allocate_large(Bytes size, Bytes alignment, Slot& slot, Gate* gate,
                                     bool& zeroed) {
  void* p = allocate_large_once(size, alignment, slot, gate, zeroed);
  return LIKELY(p != nullptr) ? p : allocate_large_again(size, alignment, slot, zeroed);
}

template <class P>
void* Engine<P>::allocate_large_again(Bytes size, Bytes alignment, Slot& slot, bool& zeroed) {
  if (size >= world_.region.most_bytes() || !wait_for_holders(slot)) return nullptr;
  return allocate_large_once(size, alignment, slot, Owned::enter(slot), zeroed);
}

template <class P>
Run Engine<P>::take_run(BlockCount blocks, BlockCount align_blocks, Gate* gate, Visit& visit) {
  if (Owned::may_allocate(gate, 0)) lane_behind<P>(gate)->give_back_big(visit);
  Run run = {world_.runs.reuse(blocks, align_blocks, visit), false};
  if (run.at == Runs<P>::kNone) {
    collect_empties(Need::kSome, gate, visit);
    run = world_.runs.allocate(blocks, align_blocks, visit);
  }
  if (run.at == Runs<P>::kNone && collect_empties(Need::kAll, gate, visit))
    run = world_.runs.allocate(blocks, align_blocks, visit);
  return run;
}

// As World's, but also for the lane that the thread is inside by `gate`.
template <class P>
bool Engine<P>::collect_empties(Need need, Gate* gate, Visit& visit) {
  const BlockCount least = need == Need::kSome ? Lane<P>::kMuch : 1;
  bool any = false;
  if (Owned::may_allocate(gate, 0)) {
    Lane<P>* lane = lane_behind<P>(gate);
    if (lane->empty_blocks() >= least) any = lane->give_back_empties(lane->empty_blocks(), visit);
  }
  return world_.collect_empties(need, nullptr, visit) || any;
}

template <class P>
void Engine<P>::publish_large(BlockIndex at, bool moved) {
  LargeState& state = large_state(world_.region, at);
  state.moved = moved;
  state.sample.stack = nullptr;
  state.sample_class = SizeClass{0};
  world_.region.set_entries(at, 1, world_.region.make_entry(Owner::kLarge, at));
}

// --- Freeing.

template <class P>
Verdict Engine<P>::free_in_stay(void* p, Slot& slot, Gate* gate) {
  if (p == nullptr) {
    Owned::leave_as_found(slot, gate);
    return Verdict::kGood;
  }
  if (free_in_short_stay(p, slot, gate)) return Verdict::kGood;
  const MapEntry entry = world_.region.entry_for(p);
  Verdict verdict = Verdict::kGood;
  if (UNLIKELY(!is_of_malloc(entry.owner()))) {
    verdict = is_private(entry.owner()) ? Verdict::kOfKind : why_nobody(p);
  } else if (entry.owner() == Owner::kLarge) {
    if (LIKELY(is_start(p, entry))) {
      Inside inside(slot, gate);
      free_large(p, inside.visit());
      return Verdict::kGood;
    }
    verdict = Verdict::kNotAStart;
  } else {
    if (UNLIKELY(world_.settings.checked)) {
      if (!is_start(p, entry)) {
        verdict = Verdict::kNotAStart;
      } else if (!mark_free(p)) {
        verdict = Verdict::kFreedAlready;
      }
    }
    if (LIKELY(verdict == Verdict::kGood)) {
      Object* object = static_cast<Object*>(p);
      Stay stay(*this, slot, gate);
      if (LIKELY(stay.lane() != nullptr)) {
        // Read again inside: before that, the slab may have gone to the depot or come from it.
        stay.lane()->free(object, world_.region.entry_of(p), stay.visit());
      } else {
        free_without_lane(object, entry);
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
    if (UNLIKELY(verdict == Verdict::kGood && found.entry.owner() == Owner::kLarge)) {
      if (free_sampled_of(*link, slot)) {
        --n;
        continue;
      }
      verdict = Verdict::kNotAStart;
    }
    const bool is_checked = world_.settings.checked;
    if (verdict == Verdict::kGood && is_checked && !mark_free(bad))
      verdict = Verdict::kFreedAlready;
    if (UNLIKELY(verdict != Verdict::kGood)) break;
    if (UNLIKELY(is_checked))
      memset(static_cast<void*>(*link + 1), kFreedByte,
             usable_size(bad, found.entry) - sizeof(Object));
    --n;
    link = &(*link)->next;
  }
  *link = nullptr;
  if (first != nullptr) {
    Stay stay(*this, slot, Owned::enter(slot));
    if (LIKELY(stay.lane() != nullptr)) {
      stay.lane()->free_chain(first, stay.visit());
    } else {
      for (Object* next; first != nullptr; first = next) {
        next = first->next;
        free_without_lane(first, world_.region.entry_of(first));
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
void Engine<P>::free_without_lane(Object* object, MapEntry entry) {
  count<P>(world_.counters.direct_frees[index_of(world_.region.size_class_of(object))]);
  object->next = nullptr;
  std::atomic_thread_fence(std::memory_order_acquire);  // as in Lane::flush
  world_.lanes.at(is_lane(entry.owner()) ? entry.owner() : Owner::kFirstLane).inbox().give(object);
}

template <class P>
void Engine<P>::free_large(void* p, Visit& visit) {
  const BlockIndex at = world_.region.block_of(p);
  const BlockCount blocks = world_.region.state(at).length;
  LargeState& state = large_state(world_.region, at);
  const bool moved = state.moved;
  world_.region.set_entries(at, 1, MapEntry());
  if (UNLIKELY(state.sample.stack != nullptr)) forget_sample(state);
  if (UNLIKELY(state.sample_class != SizeClass{0})) {
    count<P>(world_.counters.sampled_frees[index_of(state.sample_class)]);
  } else {
    count<P>(world_.counters.large_frees);
    count<P>(world_.counters.large_bytes, uint64_t{0} - bytes_of(blocks));
  }
  if (moved) {
    world_.runs.free_moved(at, blocks, visit);
  } else {
    world_.runs.free(at, blocks, visit);
  }
  world_.scavenger.poke();
}

// --- Pointers that come from outside.

template <class P>
Found Engine<P>::find(const void* p) const {
  const MapEntry entry = world_.region.entry_for(p);
  if (UNLIKELY(!is_of_malloc(entry.owner())))
    return {is_private(entry.owner()) ? Verdict::kOfKind : why_nobody(p), entry};
  if (!is_start(p, entry)) return {Verdict::kNotAStart, entry};
  if (world_.settings.checked && entry.owner() != Owner::kLarge && !is_in_use(p))
    return {Verdict::kFreedAlready, entry};
  return {Verdict::kGood, entry};
}

template <class P>
Bytes Engine<P>::usable_size(const void* p, MapEntry entry) const {
  return LIKELY(entry.owner() != Owner::kLarge) ? size_of(world_.region.size_class_of(p))
                                                : large_size(p);
}

template <class P>
NOINLINE Bytes Engine<P>::large_size(const void* p) const {
  const BlockIndex at = world_.region.block_of(p);
  const SizeClass c = large_state(world_.region, at).sample_class;
  return LIKELY(c == SizeClass{0}) ? bytes_of(world_.region.state(at).length) : size_of(c);
}

template <class P>
bool Engine<P>::is_start(const void* p, MapEntry entry) const {
  const Bytes distance = world_.region.distance(p);
  if (entry.owner() == Owner::kLarge) return distance % kBlockSize == 0;
  const SizeClass c = world_.region.size_class_at(distance);
  const auto into =
      static_cast<uint32_t>(distance - bytes_of(world_.region.block_of_state(entry.state())));
  const auto size = static_cast<uint32_t>(size_of(c));
  return into % size == 0 && into / size < capacity_of(c);
}

// Nobody owns the block. Is it outside, inside a large object, or free?
template <class P>
Verdict Engine<P>::why_nobody(const void* p) const {
  if (world_.region.distance(p) >= world_.region.most_bytes()) return Verdict::kNotOurs;
  const BlockIndex block = world_.region.block_of(p);
  if (block >= world_.runs.used_end()) return Verdict::kNotInUse;
  for (BlockIndex b = block; b-- > 0;) {
    const Owner owner = world_.region.entry(b).owner();
    if (owner == Owner::kNobody) continue;
    if (public_of(owner) == Owner::kLarge && b + world_.region.state(b).length > block)
      return Verdict::kNotAStart;
    break;
  }
  return Verdict::kFreedAlready;
}

template <class P>
void Engine<P>::mark_in_use(const void* p) {
  const Bytes distance = world_.region.distance(p);
  const uint64_t bit = uint64_t{1} << (distance / kGranule % 64);
  const uint64_t before =
      world_.region.object_bits(distance).fetch_or(bit, std::memory_order_relaxed);
  CHECK((before & bit) == 0);
}

template <class P>
bool Engine<P>::is_in_use(const void* p) const {
  const Bytes distance = world_.region.distance(p);
  const uint64_t bit = uint64_t{1} << (distance / kGranule % 64);
  return (world_.region.object_bits(distance).load(std::memory_order_relaxed) & bit) != 0;
}

template <class P>
bool Engine<P>::mark_free(const void* p) {
  const Bytes distance = world_.region.distance(p);
  const uint64_t bit = uint64_t{1} << (distance / kGranule % 64);
  return (world_.region.object_bits(distance).fetch_and(~bit, std::memory_order_relaxed) & bit) !=
         0;
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
void* Engine<P>::reallocate(void* p, MapEntry entry, Bytes size, Slot& slot) {
  const Bytes old_size = usable_size(p, entry);
  const bool is_run =
      entry.owner() == Owner::kLarge &&
      large_state(world_.region, world_.region.block_of(p)).sample_class == SizeClass{0};
  // At most half of an object that is not large stays unused.
  const bool fits = size <= old_size && (size >= old_size / 2 || old_size == kGranule);
  if (is_run && size > kBlockSize && size < world_.region.most_bytes() &&
      (old_size > kSlabMax || !fits)) {
    const BlockCount blocks = blocks_for(size);
    Inside inside(slot, Owned::enter(slot));
    Visit& visit = inside.visit();
    if (resize_large(p, blocks, visit)) return p;
    if (void* moved = move_large(p, size, visit)) return moved;
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
  void* copy = allocate_large(size, kGranule, slot, Owned::enter(slot), zeroed);
  if (copy == nullptr) return nullptr;
  memcpy(copy, p, bytes);
  free(p, slot);
  return copy;
}

template <class P>
bool Engine<P>::resize_large(void* p, BlockCount blocks, Visit& visit) {
  const BlockIndex at = world_.region.block_of(p);
  const BlockCount old_blocks = world_.region.state(at).length;
  if (blocks == old_blocks) return true;
  if (large_state(world_.region, at).moved) return false;  // its mapping is one whole
  if (blocks < old_blocks) {
    world_.runs.shrink(at, old_blocks, blocks, visit);
  } else if (!world_.runs.extend(at, old_blocks, blocks, visit)) {
    return false;
  }
  count<P>(world_.counters.large_bytes, bytes_of(blocks) - bytes_of(old_blocks));
  resample_large(large_state(world_.region, at).sample, at, bytes_of(blocks));
  world_.scavenger.poke();
  return true;
}

// Has the kernel move the pages to a longer run, with an eighth to spare, so that growing step by
// step does not move them at every step. Null: the caller must copy instead.
template <class P>
void* Engine<P>::move_large(void* p, Bytes size, Visit& visit, Budget* budget) {
  constexpr BlockCount kWorthwhile = 16;  // 1 MiB: below, copying is cheaper than two system calls
  const BlockIndex from = world_.region.block_of(p);
  const BlockCount old_blocks = world_.region.state(from).length;
  const BlockCount needed = blocks_for(size);
  if (old_blocks < kWorthwhile) return nullptr;
  const bool moved_before = large_state(world_.region, from).moved;
  if (needed <= old_blocks) return needed * 2 < old_blocks ? nullptr : p;
  BlockCount blocks = needed + needed / 8;
  Run to = world_.runs.allocate(blocks, 1, visit);
  if (to.at == Runs<P>::kNone) to = world_.runs.allocate(blocks = needed, 1, visit);
  if (to.at == Runs<P>::kNone) return nullptr;
  const Bytes growth = bytes_of(blocks - old_blocks);
  if (budget != nullptr && budget->take(growth, 1) == 0) {
    world_.runs.free(to.at, blocks, visit);
    return nullptr;
  }
  const Sample sample = large_state(world_.region, from).sample;
  world_.region.set_entries(from, 1, MapEntry());
  if (!world_.runs.move(from, old_blocks, to.at, blocks, moved_before, visit)) {
    publish_large(from, moved_before);
    large_state(world_.region, from).sample = sample;
    if (budget != nullptr) budget->give(growth);
    return nullptr;
  }
  publish_large(to.at, true);
  count<P>(world_.counters.large_bytes, bytes_of(blocks) - bytes_of(old_blocks));
  resample_large(sample, to.at, bytes_of(blocks));
  return world_.region.pointer_to(to.at);
}

// --- Giving back.

template <class P>
bool Engine<P>::trim(Slot& slot) {
  Stay stay(*this, slot, Owned::enter(slot));
  Visit& visit = stay.visit();
  const uint64_t before = world_.runs.statistics().purged;
  for (int round = 0; round < 2; ++round) {  // the second takes in what the first has sent
    if (stay.lane() != nullptr) stay.lane()->clean(visit);
    world_.lanes.for_each([&](AnyLane<P>& lane) {
      if (&lane != stay.lane())
        world_.with_idle_lane(lane, visit, [&](Lane<P>& held) { held.clean(visit); });
    });
  }
  world_.runs.purge(Runs<P>::kAll, visit);
  return world_.runs.statistics().purged != before;
}

template <class P>
bool Engine<P>::pass(void* engine) {
  return static_cast<Engine*>(engine)->pass();
}

// The scavenger's pass: what has decayed goes back to the system, and lanes at rest give away what
// they do not need.
template <class P>
bool Engine<P>::pass() {
  constexpr BlockCount kPiece = 256;  // blocks between two looks whether to stop
  Visit visit(&world_.scavenger, true);
  world_.runs.advance_epoch();
  bool more = false;
  const bool may_follow = many_threads_.load(std::memory_order_relaxed) != kChosen;
  uint64_t allocated = 0;
  world_.scavenger.begin_move();
  world_.lanes.for_each([&](AnyLane<P>& lane) {
    if (world_.scavenger.must_stop()) return;
    if (may_follow) allocated += lane.objects_taken();
    more |= tend(lane, visit);
  });
  world_.scavenger.end_move();
  if (may_follow && !world_.scavenger.must_stop()) follow_waits(allocated);
  const uint32_t now = world_.runs.epoch();
  if (now > Scavenger<P>::kPassesToDecay) {
    const uint32_t before = now - Scavenger<P>::kPassesToDecay;
    while (world_.runs.purge(before, visit, kPiece) >= bytes_of(kPiece) &&
           !world_.scavenger.must_stop()) {
    }
  }
  if (watch_pass_ != nullptr) more |= watch_pass_();
  return more || world_.runs.has_more_to_give();
}

// True if the lane must be looked at again.
template <class P>
bool Engine<P>::tend(AnyLane<P>& lane, Visit& visit) {
  // After these the lane's thread is taken to have left us by a long jump.
  constexpr uint32_t kAttempts = 32;
  auto& rest = lane.rest();
  const uint64_t activity = lane.activity();
  if (rest.activity != activity) {
    rest = {activity, 0, false};
    return true;
  }
  if (rest.cleaned && !lane.inbox().has_mail())
    return reclaim(lane, visit);  // its thread may have ended since
  if (++rest.passes < Scavenger<P>::kPassesToDecay) return true;
  if (reclaim(lane, visit)) return true;
  bool whole = false;
  const bool held = world_.with_idle_lane(lane, visit, [&](Lane<P>& l) {
    l.clean(visit);
    whole = l.inbox().is_empty();  // else a sender has stopped half-way
  });
  if (!held) return rest.passes < Scavenger<P>::kPassesToDecay + kAttempts;
  rest = {lane.activity(), 0, whole};
  return true;
}

template <class P>
void Engine<P>::scavenger_begins() {
  world_.runs.set_scavenged(true);
  world_.scavenger.begin();
}

template <class P>
void Engine<P>::scavenge() {
  world_.scavenger.run();
  Visit visit(&world_.scavenger, true);
  world_.runs.set_scavenged(false);
  sweep(visit);
}

template <class P>
void Engine<P>::scavenger_is_gone() {
  world_.runs.set_scavenged(false);
  world_.scavenger.end();
}

// The process is about to have one thread: what would have decayed goes back now. A program that
// starts one thread after another does not pay for that each time: within the decay time only what
// is beyond the limit goes.
template <class P>
void Engine<P>::sweep(Visit& visit) {
  const uint64_t period = world_.scavenger.period_ms();
  if (period == 0) return;
  const uint64_t now = P::now_ms();
  if (now - swept_at_ms_ < period * Scavenger<P>::kPassesToDecay)
    return world_.runs.keep_limit(visit);
  swept_at_ms_ = now;
  world_.scavenger.begin_move();
  world_.lanes.for_each([&](AnyLane<P>& lane) {
    reclaim(lane, visit);
    world_.with_idle_lane(lane, visit, [&](Lane<P>& held) { held.clean(visit); });
  });
  world_.scavenger.end_move();
  world_.runs.purge(Runs<P>::kAll, visit);
}

// --- Threads and processes that end and begin.

template <class P>
void Engine<P>::thread_exits(Slot& slot) {
  Gate* gate = Owned::enter(slot);
  // Busy: a handler has left us by a long jump, or ends the thread. What the handler interrupted
  // will never go on.
  const bool is_torn = is_busy(gate);
  gate = is_torn ? reinterpret_cast<Gate*>(reinterpret_cast<uintptr_t>(gate) - kBusyByte)
                 : Owned::current(slot, gate);
  AnyLane<P>* lane = names_lane(gate) ? lane_named<P>(gate) : nullptr;
  Visit visit(&slot, !is_torn);
  if (UNLIKELY(is_torn)) {
    give_back_torn(slot, lane);
  } else if (lane != nullptr && lane->how == Entry::kOwned) {
    give_up_lane(*lane, visit);
  }
  if (UNLIKELY(world_.lanes.has_changed())) {
    while (AnyLane<P>* other = find_own_lane(slot)) give_up_lane(*other, visit);
  }
  Owned::leave(slot, &exited_gate);
}

// The thread's own lane joins the idle ones, with its contents.
template <class P>
void Engine<P>::give_up_lane(AnyLane<P>& lane, Visit& visit) {
  const bool rested = lane.rests();
  // Waits for a revoker: afterwards nobody looks at the slot. False: set aside, after a fork.
  if (!lane.lock_or_wait(visit)) return;
  lane.forget_owner().flush_all(visit);
  lane.leave_full(true);
  lane.unlock(visit);
  if (!rested) world_.lanes.owners().fetch_sub(1, std::memory_order_relaxed);
  world_.lanes.push_idle(lane);
}

// The thread goes over to another entry. Its lane is no other thread's while it lives
// (entry/owned.h), but other threads may take what lies in the lane.
template <class P>
void Engine<P>::rest_lane(AnyLane<P>& lane, Visit& visit) {
  if (!lane.lock_or_wait(visit)) return;  // it was set aside, after a fork
  lane.rest_closed().flush_all(visit);
  lane.leave_full(true);
  lane.unlock(visit);
  world_.lanes.owners().fetch_sub(1, std::memory_order_relaxed);
}

// One that the thread has though its slot does not name it, or null.
template <class P>
AnyLane<P>* Engine<P>::find_own_lane(const Slot& slot) {
  AnyLane<P>* own = nullptr;
  world_.lanes.for_each([&](AnyLane<P>& lane) {
    if (lane.owner_slot() == &slot && lane.how == Entry::kOwned && !lane.is_set_aside())
      own = &lane;
  });
  return own;
}

// Takes back a lane whose thread has ended without a word. False: the lane has no owner, or one
// that lives, or that cannot be told.
template <class P>
bool Engine<P>::reclaim(AnyLane<P>& lane, Visit& visit) {
  const uint32_t thread = lane.owner_thread();
  if (thread == 0 || lane.how != Entry::kOwned || !P::thread_is_gone(thread)) return false;
  // A number of another process says nothing here: it is that of a child that shares our memory, or
  // our own from before a fork without handlers.
  if (lane.owner_process() != P::process_id() || !lane.try_lock(visit)) return false;
  const Slot* slot = lane.owner_slot();
  const bool is_its = slot != nullptr && lane.owner_thread() == thread;
  if (is_its) {
    const bool rested = lane.rests();
    // True if the thread was outside when it ended. If its slot does not tell that any more, the
    // thread may have been inside.
    const bool is_whole = rested || lane.is_named_by(slot);
    Lane<P>& its = lane.forget_owner();
    if (!is_whole) {
      world_.was_torn.store(true, std::memory_order_relaxed);
      its.salvage(visit);
    }
    its.flush_all(visit);
    lane.leave_full(true);
    if (!rested) world_.lanes.owners().fetch_sub(1, std::memory_order_relaxed);
  }
  lane.unlock(visit);
  if (is_its) world_.lanes.push_idle(lane);
  return is_its;
}

// Gives back what the thread was inside of when it was torn off. The thread must not wait for a
// lock here: other threads wait for those that it has itself.
template <class P>
void Engine<P>::give_back_torn(Slot& slot, AnyLane<P>* inside) {
  Visit visit(&slot, false);
  world_.was_torn.store(true, std::memory_order_relaxed);
  if (world_.runs.lock().take_over(visit)) {
    world_.runs.salvage(true);
    world_.runs.lock().release(visit);
  }
  if (world_.depot.lock().take_over(visit)) {
    world_.depot.salvage(world_.kinds);
    world_.depot.lock().release(visit);
  }
  // The list of readers is whole at every instant.
  if (epochs_.lock().take_over(visit)) epochs_.lock().release(visit);
  Slot* searcher = &slot;
  if (searcher_.compare_exchange_strong(searcher, nullptr, std::memory_order_release,
                                        std::memory_order_relaxed)) {
    searches_.fetch_add(1, std::memory_order_release);
    P::wake(searches_, 1);
  }
  if (inside != nullptr && inside->how == Entry::kOwned && inside->owner_slot() == &slot) {
    if (inside->take_over(visit) || inside->try_lock(visit)) {
      inside->forget_owner().salvage(visit);
      inside->leave_full(true);
      inside->unlock(visit);
      world_.lanes.owners().fetch_sub(1, std::memory_order_relaxed);
      world_.lanes.push_idle(*inside);
    }
    // Otherwise a revoker has the lane now, and gives it up at once. The scavenger takes the lane
    // back when the thread is gone.
  }
  world_.lanes.for_each([&](AnyLane<P>& lane) {
    if (Lane<P>* taken = lane.taken_by(&slot)) {
      taken->salvage(visit);
      taken->leave_here();
    }
    if (lane.take_over(visit)) give_back_torn(lane, visit);
  });
  // The lane is still taken: by a hit of the thread, which leaves no word, or by another thread.
  // Threads that run on that CPU get another lane, and this one serves on if it comes back.
  if (inside != nullptr && inside->how == Entry::kPerCpu && inside->is_taken_here()) {
    inside->doubt();
    world_.lanes.forget_number(*inside);
  }
}

// The thread has had this lane's lock. If it had the lock to take the lane from its owner, or its
// CPU, it may have been torn off before it had the lane, or after. So the lane is taken once more;
// that has to wait while the owner is inside.
template <class P>
void Engine<P>::give_back_torn(AnyLane<P>& lane, Visit& visit) {
  Lane<P>* held = lane.hold_again();
  for (uint64_t ms = 0;
       held == nullptr && lane.is_being_revoked() && P::barrier() && ms < kLateMs; ++ms) {
    P::sleep_ms(1);
    held = lane.hold_again();
  }
  if (held != nullptr) {
    held->salvage(visit);
    return held->let_go(visit);
  }
  if (!lane.is_being_revoked()) return lane.unlock(visit);
  P::barrier() ? lane.set_aside() : lane.let_go(visit);
}

// The kernel knows nothing of the child's restartable sequences, and the CPU number that the slot's
// neighbour shows is the parent's. With this gate, every thread that uses the slot works in
// overflow lanes, under their locks. A thread that owns a lane gives it back: nobody could take the
// lane away from a slot that does not show it. If the thread is inside (in a handler), its slot
// gives no hits anyway.
template <class P>
Gate* Engine<P>::close_slot(Slot& slot) {
  Gate* gate = slot.load(std::memory_order_relaxed);
  if (is_busy(gate)) return gate;
  thread_exits(slot);
  Owned::leave(slot, &exited_gate);
  return gate == &exited_gate || gate == &forking_gate || gate->how != Entry::kOwned
             ? gate
             : &no_lane_gate;
}

// Closes what guards memory between lanes, so that the child finds it whole (base/lock.h). The
// thread stays outside: the thread, and the handlers of other libraries that it runs, allocate and
// free as ever, and no thread has to wait for it. A fork in a signal handler that has interrupted
// the allocator does not wait for holders.
template <class P>
void Engine<P>::before_fork(Slot& slot) {
  const bool is_nested = is_busy(slot.load(std::memory_order_relaxed));
  if (!is_nested && !P::single_threaded()) step_aside(slot);
  Visit visit(&slot, !is_nested);
  world_.depot.lock().close(visit);
  world_.runs.growth_lock().close(visit);
  world_.runs.lock().close(visit);
}

// In the child, handlers of other libraries may come before ours, and allocate. The locks of lanes
// are not closed: a thread that holds one is not there, and the child would wait for it. So from
// here on the thread works in overflow lanes, for which it never waits. It keeps a lane of its own,
// and enters that without a lock.
template <class P>
void Engine<P>::step_aside(Slot& slot) {
  Gate* gate = Owned::current(slot, Owned::enter(slot));
  if (names_lane(gate) && gate->how == Entry::kOwned) {
    if (entry() == Entry::kOwned) return Owned::leave(slot, gate);
    Visit visit(&slot, true);
    rest_lane(*lane_named<P>(gate), visit);
  }
  Owned::leave(slot, gate == &exited_gate ? gate : &forking_gate);
}

template <class P>
void Engine<P>::step_back(Slot& slot) {
  Gate* fork = &forking_gate;
  slot.compare_exchange_strong(fork, &no_lane_gate, std::memory_order_relaxed);
}

template <class P>
void Engine<P>::after_fork_in_parent() {
  world_.runs.lock().open();
  world_.runs.growth_lock().open();
  world_.depot.lock().open();
}

// The child has one thread. A lane that no thread was inside is whole; if it was another thread's,
// it becomes an idle one. A lane that a missing thread was inside is salvaged first. A handler that
// has interrupted the allocator cannot do that: there the lane is set aside for good. (This relies
// on the child seeing the other threads' stores in their order. x86-64, and the page-table lock
// that fork takes on each page, give that; see docs/design/0005-fork.md.)
template <class P>
void Engine<P>::after_fork_in_child(Slot& slot) {
  Gate* gate = Owned::enter(slot);
  scavenger_is_gone();
  epochs_.lock().open_in_child(&slot);  // the list of readers is whole at every instant
  world_.region.forget_grower();
  epochs_.keep_readers_of(lane_reader_this_thread());
  forget_callers(slot);
  // The blocks that another thread had just taken are nobody's.
  world_.runs.growth_lock().open_in_child(&slot);
  const bool runs_are_whole = world_.runs.lock().open_in_child(&slot);
  if (!runs_are_whole || (!world_.runs.is_whole() && !is_busy(gate)))
    world_.runs.salvage(is_busy(gate));
  if (!world_.depot.lock().open_in_child(&slot)) {
    world_.depot.abandon();
    world_.kinds.for_each([](KindOwner& owner) { Depot<P>::forget_slabs_of(owner); });
  }
  world_.lanes.for_each([](AnyLane<P>& lane) { lane.inbox().forget_givers(); });
  world_.lanes.for_each([&](AnyLane<P>& lane) { sort_out_lane(lane, slot, gate); });
  world_.lanes.forget_makers();
  if (searcher_.load(std::memory_order_relaxed) != &slot)
    searcher_.store(nullptr, std::memory_order_relaxed);
  world_.kinds.for_each([&](KindOwner& owner) {
    if (owner.forget_threads != nullptr) owner.forget_threads(owner, &slot);
  });
  Owned::leave(slot, gate == &forking_gate ? &no_lane_gate : gate);
}

template <class P>
void Engine<P>::sort_out_lane(AnyLane<P>& lane, Slot& slot, Gate* gate) {
  if (lane.is_set_aside()) return;
  const Slot* owner = lane.owner_slot();
  const bool is_orphan = owner != nullptr && owner != &slot;
  if (owner == &slot) lane.set_owner(&slot);  // the thread has another number here
  if (is_orphan && !lane.rests()) world_.lanes.owners().fetch_sub(1, std::memory_order_relaxed);
  // A thread that is not here worked in the lane, or was about to; or this thread had only just got
  // the lock.
  const bool held_by_other = lane.lock().is_held() && lane.lock().holder() != &slot;
  const bool left_inside = is_orphan && !lane.rests() && !lane.is_named_by(owner);
  const bool taken = lane.is_taken_here();
  if (is_busy(gate)) {
    // A thread is inside by the CPU. If it was this thread, further down its stack, it will finish
    // and leave.
    if (held_by_other || taken) world_.lanes.forget_number(lane);
    if (held_by_other || left_inside) return lane.set_aside();
    if (taken) lane.doubt();
  } else if (held_by_other || left_inside || taken) {
    Visit visit(&slot, false);
    visit.may_drain = false;  // the other lanes may not be sorted out yet
    world_.was_torn.store(true, std::memory_order_relaxed);
    lane.hold_in_child().salvage(visit);
    lane.begin_in_child();
  }
  if (!is_orphan) return;
  lane.forget_owner();
  world_.lanes.push_idle(lane);
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
