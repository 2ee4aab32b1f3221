// A lock that knows its holder and its place in the lock order, sleeps on a futex, and counts its waits.
// While the process has one thread it is taken and given back by plain stores.
//
// A lane's lock is given back by a plain store always, so that a shared lane costs one locked instruction an entry:
//
//   holder                                    waiter
//   state = free, a plain store  [give]       sleepers + 1                    [announce]
//   sleepers?                    [look]       membarrier: a full barrier on every thread
//     some: wake one                          while the lock is not to be had: sleep while state is held   [sleep]
//
// No sleeper is forgotten (Dekker's argument, as in lane/entry/owned.h): if the barrier falls before the holder's [look], that
// sees [announce]. If it falls after, [give] came before it, and the waiter sees the lock free. Later holders all look after
// the barrier. Where there is no barrier, waiters look again every millisecond.
//
// A lock is only ever taken by code that has marked its thread's lane slot busy, so a signal handler that interrupts
// a holder knows that it is nested and only tries (Visit::may_block is false): it can never wait for its own thread.
#pragma once

#include <atomic>

#include "base/arch_probes.h"
#include "base/atomics.h"
#include "base/check.h"
#include "base/contention.h"
#include "base/lock_ranks.h"

namespace lanemalloc {

// One stay of a thread inside the allocator: who it is, whether it may wait, and which locks it holds.
struct Visit {
  const void* who;  // address of the thread's slot; never null
  bool may_block;
  bool may_drain = true;  // other lanes' inboxes; not while draining one
  bool in_bulk =
      false;  // many objects are being freed: their slabs are kept, for each would take a lock to give back
  uint8_t ranks_held = 0;

  Visit(const void* thread, bool block) : who(thread), may_block(block) {}
};

template <class P>
class Lock {
 public:
  explicit constexpr Lock(Rank rank) : rank_(rank) {}

  bool try_acquire(Visit& visit) {
    if (P::single_threaded()) {
      // Plain: a handler that interrupts between the load and the store has given the lock back before it returns.
      if (state_.load(std::memory_order_relaxed) != kFree) return false;
      state_.store(kHeld, std::memory_order_relaxed);
    } else {
      uint32_t expected = kFree;
      // acquire: sees what the last holder wrote. Pairs with [unlock.release].
      if (!state_.compare_exchange_strong(expected, kHeld, std::memory_order_acquire,
                                          std::memory_order_relaxed)) {
        contention_.failed();
        return false;
      }
    }
    entered(visit);
    return true;
  }

  // Waits only where the visit may; else like try_acquire.
  bool acquire(Visit& visit) {
    if (LIKELY(try_acquire(visit))) return true;
    if (!visit.may_block) return false;
    DCHECK((visit.ranks_held >> static_cast<unsigned>(rank_)) == 0);
    wait(visit);
    return true;
  }

  void release(Visit& visit) {
    visit.ranks_held &= static_cast<uint8_t>(~(1u << static_cast<unsigned>(rank_)));
    holder_.store(nullptr, std::memory_order_relaxed);
    if (P::single_threaded()) {
      state_.store(kFree, std::memory_order_relaxed);
      return;
    }
    // release, both: publishes the holder's writes [unlock.release].
    if (rank_ == Rank::kLane) {
      state_.store(kFree, std::memory_order_release);  // [give]
      compiler_fence();
      if (UNLIKELY(sleepers_.load(std::memory_order_relaxed) != 0)) P::wake(state_, 1);  // [look]
    } else if (state_.exchange(kFree, std::memory_order_release) == kHeldAndAwaited) {
      P::wake(state_, 1);
    }
  }

  const void* holder() const { return holder_.load(std::memory_order_relaxed); }
  bool is_held() const { return state_.load(std::memory_order_relaxed) != kFree; }

  // In a fork child: the holder does not exist here.
  void forget_holder() {
    holder_.store(nullptr, std::memory_order_relaxed);
    state_.store(kFree, std::memory_order_relaxed);
  }

  const Contention& contention() const { return contention_; }

 private:
  static constexpr uint32_t kFree = 0;
  static constexpr uint32_t kHeld = 1;
  static constexpr uint32_t kHeldAndAwaited = 2;
  static constexpr int kSpins = 64;

  void entered(Visit& visit) {
    holder_.store(visit.who, std::memory_order_relaxed);
    visit.ranks_held |= static_cast<uint8_t>(1u << static_cast<unsigned>(rank_));
    bump(contention_.count);
  }

  NOINLINE void wait(Visit& visit) {
    contention_.waits.fetch_add(1, std::memory_order_relaxed);
    const uint64_t since = P::now_ns();
    take_turn(visit);
    const uint64_t ns = P::now_ns() - since;
    const ContentionWitness witness = contention_witness.load(std::memory_order_relaxed);
    PROBE3(wait, rank_, reinterpret_cast<uintptr_t>(this), ns);
    contention_.waited(ns, UNLIKELY(witness != nullptr) ? witness(visit.who, ns) : nullptr);
  }

  void take_turn(Visit& visit) {
    for (int spin = 0; spin < kSpins; ++spin) {
      P::pause();
      if (state_.load(std::memory_order_relaxed) == kFree && try_acquire(visit)) return;
    }
    if (rank_ == Rank::kLane) return sleep_for_lane(visit);
    // acquire: as in try_acquire. Whoever slept takes the lock as awaited, since others may still sleep.
    while (state_.exchange(kHeldAndAwaited, std::memory_order_acquire) != kFree)
      P::wait(state_, kHeldAndAwaited);
    entered(visit);
  }

  void sleep_for_lane(Visit& visit) {
    sleepers_.fetch_add(1, std::memory_order_relaxed);  // [announce]
    const bool will_be_woken = P::barrier();
    while (!try_acquire(visit)) {
      if (will_be_woken) {
        P::wait(state_, kHeld);  // [sleep]
      } else {
        P::sleep_ms(1);
      }
    }
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }

  SHOWN_BY_LAYOUT;

  std::atomic<uint32_t> state_{kFree};
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<const void*> holder_{nullptr};
  const Rank rank_;
  Contention contention_;  // what every holder writes lies in the same line as the above
};

}  // namespace lanemalloc
