// PerCpu: the entry of lanes that belong to a CPU, or to a concurrency id, which no two running
// threads share. Whoever runs there enters; a thread that was stopped inside is met as a lane that
// is taken, and the next goes elsewhere.
// Called by: engine (whoever runs there), lane and scavenger (other side). Locking: the other side
// holds the lane's lock.
//
//   here == number     free; who runs on the CPU with this number may enter (beside it, in the
//                      lower half: the lane's id, so that one look tells a hit of free() that the
//                      object is the lane's too)
//   kTakenHere         a thread is inside, running or stopped, on this CPU or moved to another
//   kRevokedHere       somebody holds the lane from outside
//
//   who runs there                                  revoker, anywhere
//   --------------                                  -----------------
//   one step {                                      lock the lane
//     here == number of this CPU?      [check]      here: number -> kRevokedHere           [revoke]
//     here = kTakenHere                [take]         by compare-exchange; else give up
//   }                                               restart: every thread between [check] and
//                                                   [take] starts over
//   work, as in any other lane                      look at here                           [look]
//   here = number, a plain store       [leave]        kRevokedHere: work, here = number, unlock
//                                                     anything else: give up
//
//   Hits of malloc and free do not enter:
//     one step { [check]; first = head; next = first->next; head = next  [pop] }
//     one step { [check]; owner and slab by the page map: the lane is the owner; countdown > 1;
//                object->next = head; head, countdown = object, countdown - 1  [push] }
//   [push] is one store of 16 bytes. Who must look at the slab afterwards enters. A thread that
//   works in another of the CPU's lanes pushes in the same way. Where an architecture has no such
//   store (P::pushes_here()), and for kinds, a free takes the lane and leaves.
//
// A step is a restartable sequence: the kernel starts it again if the thread is stopped, moved or
// interrupted before its last instruction, the only store. So of the threads with one number, at
// most one is in a step, and its [check] holds until its store: nobody else with that number has
// run. No locked instruction, no fence.
//
// Two threads inside: both must have stored kTakenHere after a [check]. They had the same number,
// so the steps came one after the other, and the second [check] saw the first one's kTakenHere
// unless it had left.
//
// A revoker and a thread inside: [revoke] is a compare-exchange, so it fails when somebody is
// inside already. A step that had its [check] before [revoke] and its store after it is possible,
// since both run at once on two CPUs. After the restart no such step is under way: if it was
// [take], the word is kTakenHere, or the number once the thread has left, or was taken again, and
// the revoker's [look] sees that it has lost: nothing puts kRevokedHere back. If it was [pop] or
// [push], it is done, and the restart, which is a barrier too, shows it to the revoker. Steps that
// begin later see kRevokedHere.
//
// Who has lost must leave the word alone: it belongs to the thread that came in between.
//
// [check] reads the lane's word before the step reads the page map. If it says free, then whoever
// takes the lane from now on restarts the step before the slab can go to another lane. In the other
// order the step could read the map while a thread has the lane, and the word when that thread has
// left.
//
// A thread that was stopped inside keeps the lane until it runs again. So a CPU has some lanes
// (LaneTable::kLanesHere), and who misses takes the first one that is free (Engine::take_here);
// hits and pushes do so in the lane that the slot names while that is free.
//
// [push] writes to the object before its last instruction. If the step starts again, or never ends,
// that is of no consequence: until then the object is the caller's.
//
// Re-entrance. As with the other entries the slot says busy from before the step until the thread
// has left: a handler works in an overflow lane.
//
// Fork. In the child a lane that is taken stays so; if it was the forking thread itself that was
// inside, further down its stack, it goes on there and leaves, and the lane serves on, unnumbered.
//
// Source: UMA's caches a CPU (docs/seeds.md); rseq(2).
#pragma once

#include "lane/world.h"

namespace lanemalloc {

struct PerCpu {
  FAST static bool may_allocate(Gate* gate, Bytes index) {
    return index < *word<size_t, offsetof(Gate, here_bins)>(gate);
  }
  // Takes the first object of a bin; false where that does not do, for whatever reason.
  template <class P>
  FAST static bool pop(Gate* gate, Bytes index, void*& object) {
    if (!may_allocate(gate, index)) return false;
    const SmallTable& classes = *word<const SmallTable, offsetof(Gate, classes)>(gate);
    return pop_bin<P>(gate, classes[index], object);
  }
  // The same of a gate that allows it, by the bin's place.
  template <class P>
  FAST static bool pop_bin(Gate* gate, Bytes bin, void*& object) {
    void** head = word<void*, offsetof(Gate, heads)>(gate) + bin;
    return P::hit_pop_here(here(gate), head, object) == Restartable::kDone;
  }
  // Where the bins of kinds lie; 0 where nobody may touch them.
  FAST static Address area(Gate* gate) { return round_down(area_here(gate), kBlockSize); }
  FAST static const std::atomic<uint64_t>& area_here(Gate* gate) {
    return *word<const std::atomic<uint64_t>, offsetof(Gate, area_here)>(gate);
  }
  // The same as pop() of a bin there.
  template <class P>
  FAST static bool pop_off(Gate* gate, Object*& head, void*& object) {
    return P::hit_pop_here(here(gate), reinterpret_cast<void**>(&head), object) ==
           Restartable::kDone;
  }
  FAST static bool may_free(Gate* gate, Bytes distance) {
    // relaxed: what is missed beyond it is freed another way.
    return distance < hit_load(*word<const std::atomic<Bytes>, offsetof(Gate, here_bytes)>(gate));
  }
  // Frees an object by one step, where P::pushes_here(); false where that does not do: then nothing
  // happened. `word` is the object's in the page map. It is read in the same step: read before, it
  // could be older than a revocation, and the slab another lane's.
  template <class P>
  FAST static bool push(Gate* gate, const std::atomic<uint64_t>& word, void* object) {
    return P::template hit_push_here<offsetof(Slab, free_list)>(here(gate), word, object) ==
           Restartable::kDone;
  }
  // Inside on return, if the lane that the word names is that of this CPU and nobody is there;
  // `free` is for leave(). The word, of the page map or area_here(), is read in the same step: read
  // before, it could be older than a revocation, and the slab another lane's.
  template <class P>
  FAST static bool enter_for(Gate* gate, const std::atomic<uint64_t>& word, uint64_t& seen,
                             uint32_t& free) {
    return P::hit_take_here(here(gate), word, kTakenHere, free, seen) == Restartable::kDone;
  }
  // Inside on return, if it is a lane of this CPU and nobody is there; the gate is not busy, and
  // its lane for hits.
  template <class P>
  FAST static bool enter(Lane<P>* lane) {
    uint32_t before;
    return P::hit_take_here(lane->here, static_cast<uint16_t>(lane->id()), kTakenHere, before) ==
           Restartable::kDone;
  }
  FAST static void leave(Gate* gate, uint32_t free) {
    // release: as Lane::leave_here().
    here(gate).store(free, std::memory_order_release);
  }

 private:
  // A gate's word, by its distance: a busy gate is no whole Gate, its address is eight bytes off.
  template <class T, size_t kDistance>
  FAST static T* word(Gate* gate) {
    return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(gate) + kDistance);
  }
  FAST static std::atomic<uint32_t>& here(Gate* gate) {
    return *word<std::atomic<uint32_t>, offsetof(Gate, here)>(gate);
  }
};

// The lock is held.
template <class P>
bool Lane<P>::take_from_cpu() {
  uint32_t free = free_here();
  // acquire [take.here]: sees what the last one inside did. Pairs with Lane::leave_here().
  if (!here.compare_exchange_strong(free, kRevokedHere, std::memory_order_acquire,
                                    std::memory_order_relaxed))
    return false;
  if (!P::restart_here()) {
    // A filter may have forbidden it since the entry was chosen. Give up without a look.
    free = kRevokedHere;
    here.compare_exchange_strong(free, free_here(), std::memory_order_relaxed);
    return false;
  }
  return here.load(std::memory_order_acquire) == kRevokedHere;
}

}  // namespace lanemalloc
