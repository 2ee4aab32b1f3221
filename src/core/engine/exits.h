// Exits: the end of a thread, which leaves its lane to others; and a thread that was torn off: what
// it had taken is salvaged, and given back.
// Called by: engine, fork, process. Locking: a thread that was torn off waits for no lock, since
// other threads may wait for those that it has itself.
#pragma once

#include "core/engine/searches.h"
#include "core/reclaim/epochs.h"

namespace lanemalloc {

template <class P>
class Exits {
 public:
  constexpr Exits(World<P>& world, Searches<P>& searches, Epochs<P>& epochs)
      : world_(world), searches_(searches), epochs_(epochs) {}

  // From now on the thread works in overflow lanes. It calls this itself; nothing of the thread
  // goes on below the caller.
  void thread_exits(Slot& slot) {
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
      Threads<P>(world_).give_up(*lane, visit);
    }
    if (UNLIKELY(world_.lanes.has_changed())) {
      while (AnyLane<P>* other = Threads<P>(world_).find_own(slot))
        Threads<P>(world_).give_up(*other, visit);
    }
    Owned::leave(slot, &exited_gate);
  }

 private:
  // Gives back all that the thread has. inside: the lane that its slot names, or null.
  void give_back_torn(Slot& slot, AnyLane<P>* inside) {
    Visit visit(&slot, false);
    world_.was_torn.store(true, std::memory_order_relaxed);
    give_back_locks(visit);
    searches_.end_of(slot);
    if (inside != nullptr && inside->how == Entry::kOwned && inside->owner_slot() == &slot)
      give_back_own(*inside, visit);
    world_.lanes.for_each([&](AnyLane<P>& lane) {
      if (Lane<P>* taken = lane.taken_by(&slot)) {
        taken->salvage(visit);
        taken->leave_here();
      }
      if (lane.take_over(visit)) give_back_locked(lane, visit);
    });
    // The lane is still taken: by a hit of the thread, which leaves no word, or by another thread.
    // Threads that run on that CPU get another lane, and this one serves on if it comes back.
    if (inside != nullptr && inside->how == Entry::kPerCpu && inside->is_taken_here()) {
      inside->doubt();
      world_.lanes.forget_number(*inside);
    }
  }

  void give_back_locks(Visit& visit) {
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
  }

  // The thread's own lane. If a revoker has it now, the revoker gives it up at once, and the
  // scavenger takes it back when the thread is gone.
  void give_back_own(AnyLane<P>& lane, Visit& visit) {
    if (!lane.take_over(visit) && !lane.try_lock(visit)) return;
    lane.forget_owner().salvage(visit);
    lane.leave_full(true);
    lane.unlock(visit);
    world_.lanes.owners().fetch_sub(1, std::memory_order_relaxed);
    world_.lanes.push_idle(lane);
  }

  // The thread has had this lane's lock. If it had the lock to take the lane from its owner, or its
  // CPU, it may have been torn off before it had the lane, or after. So the lane is taken once
  // more; that has to wait while the owner is inside.
  void give_back_locked(AnyLane<P>& lane, Visit& visit) {
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

  World<P>& world_;
  Searches<P>& searches_;
  Epochs<P>& epochs_;
};

}  // namespace lanemalloc
