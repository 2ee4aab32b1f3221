// Threads: which lane a thread has of its own, from the first miss until the thread ends.
// Called by: stay, engine. Locking: the lane's lock, for a moment.
//
//   idle or new --adopt--> the thread's --give_up (its end)--> idle
//                               |  \---reclaim (an end without a word)--> idle
//                             rest (another entry is in use): closed, and still the thread's
#pragma once

#include "core/lane/lane_work.h"

namespace lanemalloc {

template <class P>
class Threads {
 public:
  explicit Threads(World<P>& world) : world_(world) {}

  // Gives the thread a lane, and sets `gate` to what its slot must hold when it leaves. Null: there
  // is no memory, and `gate` stays; or no destructor can be set that would say when the thread
  // ends, and `gate` is exited_gate, so the thread works in overflow lanes. All signals are blocked
  // meanwhile: no thread is torn off while it alone knows of a lane.
  NOINLINE Lane<P>* adopt(Slot& slot, Gate*& gate, Visit& visit) {
    const uint64_t mask = P::block_signals();
    Lane<P>* lane = adopt_uninterrupted(slot, gate, visit);
    P::restore_signals(mask);
    return lane;
  }

  // The thread's own lane joins the idle ones, with its contents.
  void give_up(AnyLane<P>& lane, Visit& visit) {
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
  void rest(AnyLane<P>& lane, Visit& visit) {
    if (!lane.lock_or_wait(visit)) return;  // it was set aside, after a fork
    lane.rest_closed().flush_all(visit);
    lane.leave_full(true);
    lane.unlock(visit);
    world_.lanes.owners().fetch_sub(1, std::memory_order_relaxed);
  }

  // A lane that the thread has though its slot does not name it, or null.
  AnyLane<P>* find_own(const Slot& slot) {
    AnyLane<P>* own = nullptr;
    world_.lanes.for_each([&](AnyLane<P>& lane) {
      if (lane.owner_slot() == &slot && lane.how == Entry::kOwned && !lane.is_set_aside())
        own = &lane;
    });
    return own;
  }

  // Takes back a lane whose thread has ended without a word. False: the lane has no owner, or one
  // that lives, or that cannot be told.
  bool reclaim(AnyLane<P>& lane, Visit& visit) {
    const uint32_t thread = lane.owner_thread();
    if (thread == 0 || lane.how != Entry::kOwned || !P::thread_is_gone(thread)) return false;
    // A number of another process says nothing here: it is that of a child that shares our memory,
    // or our own from before a fork without handlers.
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

 private:
  Lane<P>* adopt_uninterrupted(Slot& slot, Gate*& gate, Visit& visit) {
    AnyLane<P>* lane = UNLIKELY(world_.lanes.has_changed()) ? find_own(slot) : nullptr;
    if (lane == nullptr) lane = world_.lanes.pop_idle_or_make();
    Lane<P>* entered = lane != nullptr ? lane->adopt_by(slot, visit) : nullptr;
    if (entered == nullptr) return nullptr;
    gate = lane;
    if (world_.watch_exit == nullptr || world_.watch_exit(slot)) {
      world_.lanes.owners().fetch_add(1, std::memory_order_relaxed);
      return entered;
    }
    lane->disown(visit);
    world_.lanes.push_idle(*lane);
    gate = &exited_gate;
    return nullptr;
  }

  World<P>& world_;
};

}  // namespace lanemalloc
