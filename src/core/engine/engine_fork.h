// What the engine does when a thread ends or was torn off, and around a fork. Included by engine.h
// only; see there. docs/design/0005-fork.md has the reasons.
#pragma once

#include "core/engine/engine.h"

namespace lanemalloc {

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
    Threads<P>(world_).give_up(*lane, visit);
  }
  if (UNLIKELY(world_.lanes.has_changed())) {
    while (AnyLane<P>* other = Threads<P>(world_).find_own(slot))
      Threads<P>(world_).give_up(*other, visit);
  }
  Owned::leave(slot, &exited_gate);
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
  searches_.end_of(slot);
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
  for (uint64_t ms = 0; held == nullptr && lane.is_being_revoked() && P::barrier() && ms < kLateMs;
       ++ms) {
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

// Closes what guards memory between lanes, so that the child finds it whole (core/base/lock.h). The
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
    Threads<P>(world_).rest(*lane_named<P>(gate), visit);
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
  upkeep_.is_gone();
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
  searches_.forget_all_but(slot);
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

}  // namespace lanemalloc
