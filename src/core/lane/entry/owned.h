// Owned: the entry of a lane that belongs to one thread. The owner enters by a plain store and a
// plain look. Any other thread may take the lane away while the owner is outside, at no cost to the
// owner.
// Called by: engine (owner's side), lane and scavenger (other side). Locking: the other side holds
// the lane's lock.
//
//   owner                                     revoker
//   -----                                     -------
//   lane = slot                               lock the lane
//   slot = busy             [enter]           revoking = true, close the gate      [close]
//   (compiler fence)                          membarrier: a full barrier on every thread
//   look at the gate        [look]            look at the slot                     [peek]
//     open: work, slot = lane                   busy: give up
//     closed, revoking: go elsewhere            the lane, gate open: once more from [close]
//                                               the lane, gate closed: work
//     closed: open it, work, slot = lane        revoking = false, unlock
//
// Why they never both work (Dekker's argument, with the owner's fence run by membarrier on its
// behalf). The barrier falls somewhere in the owner's program order. If it falls after [enter], the
// store is visible to [peek]: the revoker sees busy and gives up. If it falls before [enter], then
// [look] comes after the barrier, and [close] before it: the owner sees the gate closed. There is
// nothing in between.
// Why once more from [close]: an owner that was inside when the revoker began, and had read
// revoking == false before, may open its gate after [close] and leave before [peek]. The revoker
// then finds the gate open. The owner cannot do that twice, since from now on it reads revoking ==
// true.
// Only the owner opens its gate again. It does so inside, once it has read revoking == false
// (acquire, with the revoker's release). So an owner that finds the gate open has seen all that
// earlier revokers did. What it read of the page map just before it looked at the gate is right
// too, in whatever order the CPU did the two loads.
//
// Re-entrance. A signal handler that interrupts the owner between [enter] and the last store finds
// the busy gate in the slot, cannot pass it, and goes to the overflow lanes. At no instruction does
// it find a lane in the slot whose contents are half done.
//
// If the system has no such barrier, a lane with an owner cannot be taken. The owner is asked
// instead (AnyLane::asked_).
//
// Threads that are gone. The slot lies in its thread's memory, and a thread may end without a word:
// by the raw system call, or after its last key destructor. So only the thread itself reads a slot
// as memory. [peek] makes the kernel read it (P::reads_as), and no memory is an answer like any
// other. Memory that belongs to another thread by now cannot mislead: it reads as this lane only if
// that thread has adopted this lane. A slot that does not read as the lane looks busy for good. The
// scavenger asks whether the thread is gone, and reclaims the lane (Threads::reclaim).
//
// Lanes at rest. A thread that changes over to another entry keeps its lane, closed, until the
// thread ends. It may change over in a handler that has interrupted it between [enter]'s load and
// its store, with this very gate in a register. If the lane belonged to another thread by then, and
// were open, the first thread would work in it too. While the lane rests, the lock is enough to
// take it.
#pragma once

#include "core/lane/world.h"

namespace lanemalloc {

struct Owned {
  // Returns what was in the slot. The thread is inside until it calls leave() with that.
  FAST static Gate* enter(Slot& slot) {
    Gate* gate = slot.load(std::memory_order_relaxed);
    __atomic_store_n(reinterpret_cast<unsigned char*>(&slot), kBusyByte, __ATOMIC_RELAXED);
    compiler_fence();
    return gate;
  }
  // Off the hit path. Returns the gate that enter() has found, or what a handler has put into the
  // slot between enter()'s two steps: a thread's first lane, which would be lost otherwise. This
  // cannot affect a hit: if the slot has changed, its old gate is closed.
  FAST static Gate* current(const Slot& slot, Gate* gate) {
    return is_busy(gate) ? gate : reinterpret_cast<Gate*>(but_for_the_byte(slot));
  }
  FAST static void leave(Slot& slot, Gate* gate) {
    // release: the next thread that holds the lane sees what was done inside. Pairs with [peek].
    slot.store(gate, std::memory_order_release);
  }
  // Leaves without having done anything. What a handler has put into the slot between the two steps
  // of entering stays.
  FAST static void leave_as_found(Slot& slot, const Gate* gate) {
    // This stores the whole word. After a store of one byte, the next load of the word would have
    // to wait until that byte has reached the cache.
    const auto byte = static_cast<unsigned char>(reinterpret_cast<uintptr_t>(gate));
    slot.store(reinterpret_cast<Gate*>(but_for_the_byte(slot) | byte), std::memory_order_release);
  }
  // relaxed, both: they are written by the owner, or by a revoker that the barrier orders (above).
  FAST static bool may_allocate(const Gate* gate, Bytes index) {
    return index < hit_load(*word<size_t, offsetof(Gate, open_bins)>(gate));
  }
  FAST static bool may_free(const Gate* gate, MapWord entry) {
    return entry.is_owned_by(hit_load(*word<uint16_t, offsetof(Gate, open_owner)>(gate)));
  }
  // Where the bins of kinds lie; 0 while no hit may touch them.
  FAST static Address area(const Gate* gate) {
    return hit_load(*word<Address, offsetof(Gate, area)>(gate));
  }
  // True if a deferred free may put its object at `next`.
  FAST static bool may_defer(const Gate* gate, void**& next) {
    next = hit_load(*word<void**, offsetof(Gate, deferred_next)>(gate));
    return reinterpret_cast<Address>(next) <
           hit_load(*word<Address, offsetof(Gate, deferred_end)>(gate));
  }
  // For an open gate.
  FAST static void has_deferred(Gate* gate) { move_on(gate->deferred_next); }

 private:
  // The slot's word with a lowest byte of 0. It is read without that byte, which enter() has just
  // stored: a load of the whole word would have to wait.
  FAST static uintptr_t but_for_the_byte(const Slot& slot) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(&slot);
    // Two loads that overlap. The second is not aligned. It need not be atomic: only a handler of
    // this thread changes these bytes, and none does after enter()'s store.
    const uintptr_t upper =
        __atomic_load_n(reinterpret_cast<const uint32_t*>(bytes + 4), __ATOMIC_RELAXED);
    uint32_t lower;
    __builtin_memcpy(&lower, bytes + 1, sizeof lower);
    return upper << 32 | uintptr_t{lower} << 8;
  }
  // The word of a gate at this distance. A busy gate is not a whole Gate: its address is eight
  // bytes off.
  template <class T, size_t kDistance>
  FAST static const std::atomic<T>* word(const Gate* gate) {
    return reinterpret_cast<const std::atomic<T>*>(reinterpret_cast<uintptr_t>(gate) + kDistance);
  }
};

template <class P>
void AnyLane<P>::close_gate() {
  open_bins.store(0, std::memory_order_relaxed);
  open_owner.store(static_cast<uint16_t>(Owner::kClosed), std::memory_order_relaxed);
  area.store(0, std::memory_order_relaxed);
  area_of_hits.store(lanemalloc::no_area, std::memory_order_relaxed);
  deferred_end.store(0, std::memory_order_relaxed);
}

// A revoker that comes at the same time finds the slot busy and gives up.
template <class P>
void Lane<P>::open_gate() {
  if (world_.settings.checked) return;  // every operation then takes the slow path, which checks
  open_bins.store(kSmallIndexes + 1, std::memory_order_relaxed);
  open_owner.store(static_cast<uint16_t>(id_), std::memory_order_relaxed);
  open_area_to_hits();
  deferred_end.store(deferred_limit_, std::memory_order_relaxed);
}

// Does nothing if there is no area.
template <class P>
void Lane<P>::open_area_to_hits() {
  const Address begin = bins_at_.load(std::memory_order_relaxed);
  if (begin == 0) return;
  area.store(begin, std::memory_order_relaxed);
  area_of_hits.store(reinterpret_cast<const void*>(begin), std::memory_order_relaxed);
}

template <class P>
bool AnyLane<P>::is_closed() const {
  return open_bins.load(std::memory_order_relaxed) == 0 &&
         open_owner.load(std::memory_order_relaxed) == static_cast<uint16_t>(Owner::kClosed) &&
         area_of_hits.load(std::memory_order_relaxed) == lanemalloc::no_area &&
         area.load(std::memory_order_relaxed) == 0 &&
         deferred_end.load(std::memory_order_relaxed) == 0;
}

// --- From outside.

// The lock is held. If there is no owner, the lock is enough.
template <class P>
bool AnyLane<P>::take_from_owner(bool ask) {
  Slot* slot = owner_slot();
  if (slot == nullptr || rests_) return true;
  revoking_.store(true, std::memory_order_relaxed);
  for (int round = 0; round < 2; ++round) {
    close_gate();
    if (!P::barrier()) {
      if (ask) asked_.store(true, std::memory_order_relaxed);
      break;
    }
    // acquire at [peek]: sees what the owner did before it left.
    if (!is_named_by(slot)) break;
    if (is_closed()) return true;
    // The owner was inside when we began, had read revoking == false already, opened its gate and
    // left. It cannot do that again: close the gate once more.
  }
  give_to_owner();
  return false;
}

template <class P>
void AnyLane<P>::give_to_owner() {
  // release: the owner that reads this sees what was done to its lane [revoking.release].
  revoking_.store(false, std::memory_order_release);
}

// --- The owner's side.

template <class P>
Lane<P>* AnyLane<P>::adopt_by(Slot& slot, Visit& visit) {
  if (!lock_or_wait(visit)) return nullptr;
  leave_full(false);
  rests_ = false;
  set_owner(&slot);
  entered().open_gate();
  unlock(visit);
  return &entered();
}

template <class P>
void AnyLane<P>::disown(Visit& visit) {
  if (!lock_or_wait(visit)) return;  // waits for a revoker: afterwards nobody looks at the slot
  forget_owner();
  unlock(visit);
}

template <class P>
Lane<P>& AnyLane<P>::forget_owner() {
  rests_ = false;
  set_owner(nullptr);
  close_gate();
  return entered();
}

// --- For a thread that works elsewhere from now on, or is gone. The lock is held.

template <class P>
Lane<P>& AnyLane<P>::rest_closed() {
  close_gate();
  rests_ = true;
  return entered();
}

template <class P>
bool AnyLane<P>::is_named_by(const Slot* slot) const {
  return P::reads_as(slot, reinterpret_cast<Address>(static_cast<const Gate*>(this)));
}

}  // namespace lanemalloc
