// Stay: the time that a thread spends in a lane, from a miss until it leaves. The constructor
// enters, the end of the stay leaves. What a stay gives out is a Lane, so a function that takes a
// Lane can only be called within one (or by a thread that holds the lane from outside).
//
//   Inside      the thread is inside the allocator, in no lane that others might want
//   Stay        in a lane, whatever it takes
//   ShortStay   in the usual lane, if that is free just now
//
// Called by: engine. Locking: as entry/ says; a stay in a shared lane has the lane's lock.
#pragma once

#include "core/engine/threads.h"

namespace lanemalloc {

// Inside: the time from a miss to leaving, wherever the thread works. Its slot says busy already;
// `gate` is what was in the slot.
class Inside {
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
class Stay : public Inside {
 public:
  // of_kind: the lane must be one that other threads can take.
  Stay(World<P>& world, Slot& slot, Gate* gate, bool of_kind = false)
      : Inside(slot, gate), world_(world) {
    const bool may_own = LIKELY(!of_kind) || world.can_revoke.load(std::memory_order_relaxed);
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

  void enter(Gate* gate) {
    AnyLane<P>* lane = gate == &no_lane_gate ? nullptr : lane_named<P>(gate);
    const Entry entry = world_.lanes.entry();
    if (LIKELY(entry == Entry::kOwned) || P::single_threaded()) {
      lane_ = LIKELY(lane != nullptr && lane->how == Entry::kOwned)
                  ? enter_own(lane)
                  : Threads<P>(world_).adopt(slot_, gate_, visit_);
      return;
    }
    if (UNLIKELY(lane != nullptr && lane->how == Entry::kOwned)) {
      Threads<P>(world_).rest(*lane, visit_);
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

  void enter_shared(AnyLane<P>* lane) {
    LaneTable<P>& lanes = world_.lanes;
    if (lane == nullptr || lane->how != Entry::kShared || lane->number() >= lanes.orders().lanes())
      lane = lanes.shared(lanes.next_shared());
    if (lane == nullptr) return;
    lane_ = Shared<P>(world_, visit_).enter(*lane);
    if (lane_ == nullptr) return;
    gate_ = lane_;
    how_ = How::kLocked;
  }

  void enter_by_cpu() {
    world_.region.set_hits(!P::numbers_for_hits());
    if (UNLIKELY(world_.lanes.entry() != Entry::kPerCpu))
      world_.region.set_hits(true);  // the entry has just changed
    lane_ = Here<P>(world_, visit_).enter(gate_);
    if (lane_ == nullptr) return;
    gate_ = lane_;
    how_ = How::kByCpu;
  }

  NOINLINE void overflow(bool nested) {
    SharedCounters& counters = world_.counters;
    count<P>(counters.overflow_entries);
    if (nested) count<P>(counters.nested_entries);
    lane_ = world_.lanes.enter_overflow(visit_);
    if (lane_ != nullptr) how_ = How::kLocked;
  }

  World<P>& world_;
  Lane<P>* lane_ = nullptr;
  How how_ = How::kOwned;
};

// ShortStay: a stay in the shared lane that the slot names, if that lane is free, or in a lane of
// the CPU by Here::enter(). It looks for no other lane.
template <class P>
class ShortStay {
 public:
  FAST ShortStay(World<P>& world, Slot& slot, Gate* gate) : visit_(&slot, true) {
    if (is_busy(gate) || gate->how != world.lanes.entry() || world.settings.checked) return;
    AnyLane<P>* lane = lane_named<P>(gate);
    if (gate->how == Entry::kShared) {
      if (lane->number() < world.lanes.orders().lanes())
        lane_ = Shared<P>(world, visit_).try_enter(*lane);
    } else if (gate->how == Entry::kPerCpu) {
      // The usual lane first, without a look at the CPU's number.
      Here<P> lanes(world, visit_);
      if (lane->is_first_here) lane_ = lanes.enter(*lane);
      if (UNLIKELY(lane_ == nullptr)) lane_ = lanes.enter(gate);
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

}  // namespace lanemalloc
