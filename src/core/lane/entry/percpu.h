// PerCpu: the entry of lanes that belong to a CPU, or to a concurrency id, which no two running
// threads share. A thread that runs there enters. If a thread was stopped inside, the next thread
// finds the lane taken and goes elsewhere.
// Called by: engine (a thread that runs there), lane and scavenger (other side). Locking: the other
// side holds the lane's lock.
//
//   here == number     free; a thread that runs on the CPU with this number may enter (the lower
//                      half beside the number is the lane's id, so that one look also tells a hit
//                      of free() that the object is the lane's)
//   kTakenHere         a thread is inside, running or stopped, on this CPU or moved to another
//   kRevokedHere       a thread holds the lane from outside
//
//   a thread that runs there                        revoker, anywhere
//   ------------------------                        -----------------
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
//     one step { [check]; object: what the bin's first link leads to, in the bin's slab;
//                the bin's first link = object->next  [pop] }
//     one step { [check]; owner and slab by the page map: the lane is the owner; countdown > 1;
//                object->next = first; first, countdown = link to object, countdown - 1  [push] }
//   [push] is one store of 16 bytes. A thread that must look at the slab afterwards enters. A
//   thread that works in another of the CPU's lanes pushes in the same way. If an architecture has
//   no such store (P::pushes_here()), and for kinds, a free takes the lane and leaves.
//
// A step is a restartable sequence: the kernel starts it again if the thread is stopped, moved or
// interrupted before its last instruction, the only store. So at most one of the threads with the
// same number is in a step, and its [check] holds until its store, since no other thread with that
// number has run. There is no locked instruction and no fence.
//
// Two threads inside: both must have stored kTakenHere after a [check]. They had the same number,
// so the steps came one after the other, and the second [check] saw the first one's kTakenHere
// unless the first thread had left.
//
// A revoker and a thread inside: [revoke] is a compare-exchange, so it fails if a thread is inside
// already. A step that had its [check] before [revoke] and its store after it is possible, since
// both run at once on two CPUs. After the restart no such step is under way. If the step was
// [take], the word is kTakenHere; or it is the number, once the thread has left; or the lane was
// taken again. The revoker's [look] then sees that the revoker has lost, since nothing puts
// kRevokedHere back. If the step was [pop] or [push], it is done, and the restart, which is a
// barrier too, shows it to the revoker. Steps that begin later see kRevokedHere.
//
// A revoker that has lost must leave the word alone: it belongs to the thread that came in between.
//
// [check] reads the lane's word before the step reads the page map. If the word says free, then any
// thread that takes the lane from now on restarts the step before the slab can go to another lane.
// In the other order, the step could read the map while a thread has the lane, and the word after
// that thread has left.
//
// A thread that was stopped inside keeps the lane until it runs again. So each CPU has several
// lanes (LaneTable::kLanesHere), and a thread that misses takes the first free one
// (Here::enter). Hits and pushes use the lane that the slot names, while it is free.
//
// [push] writes to the object before its last instruction. If the step starts again, or never ends,
// that does no harm: until then the object is the caller's. It looks free from then on, so the free
// goes out of line, and is searched for there.
//
// Re-entrance. As with the other entries, the slot says busy from before the step until the thread
// has left. So a handler works in an overflow lane.
//
// Fork. In the child, a lane that is taken stays taken. If the forking thread itself was inside it,
// further down its stack, the thread goes on there and leaves, and the lane serves on, without a
// number.
//
// Source: UMA's per-CPU caches (docs/seeds.md); rseq(2).
#pragma once

#include "core/lane/world.h"

namespace lanemalloc {

struct PerCpu {
  FAST static bool may_allocate(Gate* gate, Bytes index) {
    return index < *word<size_t, offsetof(Gate, here_bins)>(gate);
  }
  // Takes the first object of a bin; false if that does not work, for whatever reason.
  template <class P>
  FAST static bool pop(Gate* gate, Bytes index, void*& object) {
    if (!may_allocate(gate, index)) return false;
    const SmallTable& places = *word<const SmallTable, offsetof(Gate, bin_of_small)>(gate);
    return pop_bin<P>(gate, LaneGate::hit_bin(gate, places[index]), object);
  }
  // The same for a bin of a gate that allows it.
  template <class P>
  FAST static bool pop_bin(Gate* gate, BinHead& bin, void*& object) {
    if (P::hit_pop_here(here(gate), bin, object) != Restartable::kDone) return false;
    static_cast<Object*>(object)->out();
    return true;
  }
  // Where the bins of kinds lie; 0 while no hit may touch them.
  FAST static Address area(Gate* gate) { return round_down(area_here(gate), kBlockSize); }
  FAST static const std::atomic<uint64_t>& area_here(Gate* gate) {
    return *word<const std::atomic<uint64_t>, offsetof(Gate, area_here)>(gate);
  }
  FAST static bool may_free(Gate* gate, Bytes distance) {
    // relaxed: an object beyond an old bound is freed another way.
    return distance < hit_load(*word<const std::atomic<Bytes>, offsetof(Gate, here_bytes)>(gate));
  }
  // Frees an object by one step, if P::pushes_here(). False if that does not work; then nothing
  // happened. `word` is the object's word in the page map. The step itself reads it: read before,
  // the word could be older than a revocation, and the slab could be another lane's.
  template <class P>
  FAST static bool push(Gate* gate, const std::atomic<uint64_t>& word, void* object) {
    return P::template hit_push_here<offsetof(Slab, free_list)>(
               here(gate), word, object, Link::to(object).bits) == Restartable::kDone;
  }
  // The thread is inside on return, if the word names the lane of this CPU and no thread is in that
  // lane. `free` is for leave(). The word is one of the page map, or area_here(). The step itself
  // reads it: read before, the word could be older than a revocation, and the slab could be another
  // lane's.
  template <class P>
  FAST static bool enter_for(Gate* gate, const std::atomic<uint64_t>& word, uint64_t& seen,
                             uint32_t& free) {
    return P::hit_take_here(here(gate), word, kTakenHere, free, seen) == Restartable::kDone;
  }
  // The thread is inside on return, if the lane is one of this CPU and no thread is in it; else
  // null. The gate is not busy, and its lane is one for hits.
  template <class P>
  FAST static Lane<P>* enter(AnyLane<P>* lane) {
    uint32_t before;
    const bool is_inside = P::hit_take_here(lane->here, static_cast<uint16_t>(lane->id()),
                                            kTakenHere, before) == Restartable::kDone;
    return is_inside ? &lane->entered() : nullptr;
  }
  FAST static void leave(Gate* gate, uint32_t free) {
    // release [leave]: as AnyLane::leave_here().
    here(gate).store(free, std::memory_order_release);
  }

 private:
  // The word of a gate at this distance. A busy gate is not a whole Gate: its address is eight
  // bytes off.
  template <class T, size_t kDistance>
  FAST static T* word(Gate* gate) {
    return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(gate) + kDistance);
  }
  FAST static std::atomic<uint32_t>& here(Gate* gate) {
    return *word<std::atomic<uint32_t>, offsetof(Gate, here)>(gate);
  }
};

// The lanes of the CPU that the thread runs on.
template <class P>
class Here {
 public:
  Here(World<P>& world, const Visit& visit) : world_(world), visit_(visit) {}

  // Enters the first free lane. Returns null if no lane is free, or if there is no memory for
  // another one. It takes the first one, so that the threads of a CPU meet in one lane again after
  // one of them was stopped inside. before: what the thread's slot named before.
  NOINLINE Lane<P>* enter(const Gate* before) {
    constexpr int kAttempts = 3;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      const uint32_t number = P::lane_number();
      for (uint32_t which = 0;; ++which) {
        if (which == LaneTable<P>::kLanesHere) return nullptr;
        AnyLane<P>* lane = world_.lanes.here(number, which);
        if (UNLIKELY(lane == nullptr)) return nullptr;
        if (UNLIKELY(!lane->is_free_here())) continue;
        Restartable result;
        if (Lane<P>* entered = enter(*lane, result); LIKELY(entered != nullptr)) {
          if (before->how == Entry::kPerCpu &&
              static_cast<const AnyLane<P>*>(before)->number() != number)
            count<P>(world_.counters.rebinds);
          return entered;
        }
        // If the step was interrupted, or the thread has moved to another CPU, it tries once more.
        // Otherwise the lane was taken or revoked just now.
        if (result == Restartable::kInterrupted || lane->is_free_here()) break;
      }
    }
    return nullptr;
  }
  // Enters this lane, if it is one of the CPU and free; else null.
  FAST Lane<P>* enter(AnyLane<P>& lane) {
    Restartable result;
    return enter(lane, result);
  }

 private:
  FAST Lane<P>* enter(AnyLane<P>& lane, Restartable& result) {
    uint32_t before;
    result = P::take_here(lane.here, static_cast<uint16_t>(lane.id()), kTakenHere, before);
    if (UNLIKELY(result != Restartable::kDone)) return nullptr;
    Lane<P>& entered = lane.entered();
    entered.take_by(visit_.who);
    entered.see_growth();
    return &entered;
  }

  World<P>& world_;
  const Visit& visit_;
};

// The lock is held.
template <class P>
bool AnyLane<P>::take_from_cpu() {
  uint32_t free = word_if_free();
  // acquire [take.here]: sees what the last thread inside did. Pairs with AnyLane::leave_here().
  if (!here.compare_exchange_strong(free, kRevokedHere, std::memory_order_acquire,
                                    std::memory_order_relaxed))
    return false;
  if (!P::restart_here()) {
    // A filter may have forbidden the restart since the entry was chosen. Give up without a look.
    free = kRevokedHere;
    here.compare_exchange_strong(free, word_if_free(), std::memory_order_relaxed);
    return false;
  }
  return here.load(std::memory_order_acquire) == kRevokedHere;  // [look]
}

}  // namespace lanemalloc
