// Fork: closes what guards memory between lanes while the process forks, and sorts out in the child
// what the missing threads have left. Also a slot that a child works with, by vfork.
// Called by: engine, process. Locking: before a fork the locks are closed (core/base/lock.h); in
// the child there is one thread. docs/design/0005-fork.md has the reasons.
#pragma once

#include "core/engine/exits.h"
#include "core/engine/safepoints.h"
#include "core/engine/upkeep.h"

namespace lanemalloc {

template <class P>
class Fork {
 public:
  Fork(World<P>& world, Searches<P>& searches, Safepoints<P>& safepoints, Exits<P>& exits,
       Upkeep<P>& upkeep)
      : world_(world),
        searches_(searches),
        safepoints_(safepoints),
        exits_(exits),
        upkeep_(upkeep) {}

  // Closes what guards memory between lanes, so that the child finds it whole. The thread stays
  // outside: the thread, and the handlers of other libraries that it runs, allocate and free as
  // ever, and no thread has to wait for it. A fork in a signal handler that has interrupted the
  // allocator does not wait for holders.
  void before(Slot& slot) {
    const bool is_nested = is_busy(slot.load(std::memory_order_relaxed));
    if (!is_nested && !P::single_threaded()) step_aside(slot);
    Visit visit(&slot, !is_nested);
    world_.depot.lock().close(visit);
    world_.runs.growth_lock().close(visit);
    world_.runs.lock().close(visit);
  }

  void after_in_parent() {
    world_.runs.lock().open();
    world_.runs.growth_lock().open();
    world_.depot.lock().open();
  }

  // Called after that; the child does it by itself.
  void step_back(Slot& slot) {
    Gate* fork = &forking_gate;
    slot.compare_exchange_strong(fork, &no_lane_gate, std::memory_order_relaxed);
  }

  // The child has one thread. A lane that no thread was inside is whole; if it was another
  // thread's, it becomes an idle one. A lane that a missing thread was inside is salvaged first. A
  // handler that has interrupted the allocator cannot do that: there the lane is set aside for
  // good. (This relies on the child seeing the other threads' stores in their order. x86-64, and
  // the page-table lock that fork takes on each page, give that; see docs/design/0005-fork.md.)
  void after_in_child(Slot& slot) {
    Gate* gate = Owned::enter(slot);
    upkeep_.is_gone();
    world_.region.forget_grower();
    safepoints_.forget_all_but(slot);
    // The blocks that another thread had just taken are nobody's.
    world_.runs.growth_lock().open_in_child(&slot);
    const bool runs_are_whole = world_.runs.lock().open_in_child(&slot);
    if (!runs_are_whole || (!world_.runs.is_whole() && !is_busy(gate)))
      world_.runs.salvage(is_busy(gate));
    if (!world_.depot.lock().open_in_child(&slot)) {
      world_.depot.abandon();
      world_.kinds.for_each([](Family& family) { Depot<P>::forget_slabs_of(family); });
    }
    const auto is_object = [&](const void* p) { return world_.slabs().may_hold(p); };
    world_.lanes.for_each([&](AnyLane<P>& lane) { lane.inbox().forget_givers(is_object); });
    world_.lanes.for_each([&](AnyLane<P>& lane) { sort_out_lane(lane, slot, gate); });
    world_.lanes.forget_makers();
    searches_.forget_all_but(slot);
    world_.kinds.for_each([&](Family& family) {
      if (family.forget_threads != nullptr) family.forget_threads(family, &slot);
    });
    Owned::leave(slot, gate == &forking_gate ? &no_lane_gate : gate);
  }

  // Around a child that works with this thread's slot, while the thread is stopped (vfork) or
  // beside it. In between there are no hits, and the thread has no lane of its own. Returns what
  // open_slot() is to put back.
  //
  // The kernel knows nothing of the child's restartable sequences, and the CPU number that the
  // slot's neighbour shows is the parent's. With this gate, every thread that uses the slot works
  // in overflow lanes, under their locks. A thread that owns a lane gives it back: nobody could
  // take the lane away from a slot that does not show it. If the thread is inside (in a handler),
  // its slot gives no hits anyway.
  Gate* close_slot(Slot& slot) {
    Gate* gate = slot.load(std::memory_order_relaxed);
    if (is_busy(gate)) return gate;
    exits_.thread_exits(slot);
    return gate == &exited_gate || gate == &forking_gate || gate->how != Entry::kOwned
               ? gate
               : &no_lane_gate;
  }
  void open_slot(Slot& slot, Gate* gate) { Owned::leave(slot, gate); }

 private:
  // In the child, handlers of other libraries may come before ours, and allocate. The locks of
  // lanes are not closed: a thread that holds one is not there, and the child would wait for it. So
  // from here on the thread works in overflow lanes, for which it never waits. It keeps a lane of
  // its own, and enters that without a lock.
  void step_aside(Slot& slot) {
    Gate* gate = Owned::current(slot, Owned::enter(slot));
    if (names_lane(gate) && gate->how == Entry::kOwned) {
      if (world_.lanes.entry() == Entry::kOwned) return Owned::leave(slot, gate);
      Visit visit(&slot, true);
      Threads<P>(world_).rest(*lane_named<P>(gate), visit);
    }
    Owned::leave(slot, gate == &exited_gate ? gate : &forking_gate);
  }

  void sort_out_lane(AnyLane<P>& lane, Slot& slot, Gate* gate) {
    if (lane.is_set_aside()) return;
    const Slot* owner = lane.owner_slot();
    const bool is_orphan = owner != nullptr && owner != &slot;
    if (owner == &slot) lane.set_owner(&slot);  // the thread has another number here
    if (is_orphan && !lane.rests()) world_.lanes.owners().fetch_sub(1, std::memory_order_relaxed);
    // A thread that is not here worked in the lane, or was about to; or this thread had only just
    // got the lock.
    const bool held_by_other = lane.lock().is_held() && lane.lock().holder() != &slot;
    const bool left_inside = is_orphan && !lane.rests() && !lane.is_named_by(owner);
    const bool taken = lane.is_taken_here();
    if (is_busy(gate)) {
      // A thread is inside by the CPU. If it was this thread, further down its stack, it will
      // finish and leave.
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

  World<P>& world_;
  Searches<P>& searches_;
  Safepoints<P>& safepoints_;
  Exits<P>& exits_;
  Upkeep<P>& upkeep_;
};

}  // namespace lanemalloc
