// A lock that knows its holder and its place in the lock order, sleeps on a futex, and counts its
// waits. While the process has one thread, the lock is taken and given back by plain stores.
//
//   the lock's word:  [ the holder's slot | forks | awaited | held ]
//                           48 bits         14        1        1
//   A thread that waits sleeps on the lower half.
//
// The word names the holder, so there is no instant at which a lock is taken and its holder is
// unknown. A handler may leave by a long jump. Then what it has interrupted never goes on, and the
// locks held there stay held. When the thread ends, it finds each lock that names it, and gives it
// back (Exits::thread_exits). Until then no thread waits for one stay of a holder longer than
// kLateMs. After that acquire() fails, as when a fork has closed the lock, and for later callers it
// fails at once. A lock may also be given back without a wake-up, for the same reason. Its sleepers
// find that after the same time.
//
// A lane's lock is always given back by a plain store, so that a shared lane costs one locked
// instruction per entry:
//
//   holder                                    waiter
//   state = free, a plain store  [give]       sleepers + 1                    [announce]
//   sleepers?                    [look]       membarrier: a full barrier on every thread
//     some: wake one                          while the lock cannot be taken:
//                                               sleep while state is held       [sleep]
//
// No sleeper is forgotten (Dekker's argument, as in core/lane/entry/owned.h). If the barrier falls
// before the holder's [look], the look sees [announce]. If the barrier falls after the [look],
// [give] came before it, and the waiter sees the lock free. All later holders look after the
// barrier. If there is no barrier, waiters look again every millisecond.
//
// Only code that has marked its thread's slot busy takes a lock. So a signal handler that
// interrupts a holder knows that it is nested and only tries (Visit::may_block is false): it can
// never wait for its own thread. Nor can a thread wait for a lock that it holds itself: it waits
// for a lock only while it holds none of that rank or a later one.
//
// No thread waits for a fork. A fork does not hold a lock, it closes the lock: it adds itself to
// the forks that the lock counts, and waits for the holder, so that the child finds whole what the
// lock guards. While a lock is closed, acquire() fails at once, also for threads that slept in it,
// and the caller goes the way of a handler. So a fork waits for holders only, a holder never waits
// for a fork, and forks do not wait for each other. Whatever locks of other code a thread holds,
// and whatever handlers of other code run between the two ends of a fork, no circle of waiting goes
// through here.
//
// A thread that finds no memory otherwise insists: it gives the fork some milliseconds, and then
// takes the closed lock if that is free. The child may find the lock held by a thread that does not
// exist there. Then the child makes the lists of runs anew (Runs::salvage), and gives up the
// depot's slabs. A fork may itself be waiting for the thread that insists. So these milliseconds
// are waited once per fork, by whichever thread insists first, and later threads take the lock at
// once. So does a thread that would take fresh memory while the lists have some
// (Runs::take_beside).
#pragma once

#include <limits.h>

#include <atomic>
#include <bit>

#include "core/base/arch_probes.h"
#include "core/base/atomics.h"
#include "core/base/check.h"
#include "core/base/contention.h"
#include "core/base/lock_ranks.h"

namespace lanemalloc {

// One stay of a thread inside the allocator: which thread it is, whether it may wait, and which
// locks it holds.
struct Visit {
  const void* who;  // address of the thread's slot; never null
  bool may_block;
  bool may_drain = true;  // may drain other lanes' inboxes; false while it drains one
  // Many objects are being freed. Their slabs are kept, since each would take a lock to give back.
  bool in_bulk = false;
  // Whether it also takes locks that a fork has closed. 0: no; else 1 + the milliseconds that it
  // may sleep before that, in all.
  uint8_t insists = 0;
  static constexpr uint8_t kPatience = 1 + 50;  // most forks last less
  uint32_t locks_held = 0;                      // how many of each rank, kBitsOfRank bits each

  Visit(const void* thread, bool block) : who(thread), may_block(block) {}

  static constexpr unsigned kBitsOfRank = 5;
  static constexpr uint32_t one_of(Rank rank) {
    return 1u << (kBitsOfRank * static_cast<unsigned>(rank));
  }
  static_assert(kBitsOfRank * (static_cast<unsigned>(Rank::kLast) + 1) <= 32);
  // True if it holds a lock of this rank or a later one.
  bool holds_from(Rank rank) const { return locks_held >= one_of(rank); }
};

// A holder whose thread goes on never stays this long while others wait.
inline constexpr uint64_t kLateMs = 1000;

// The half on which threads sleep: its bits change when the lock is taken or given back.
inline std::atomic<uint32_t>& lower_half_of(std::atomic<uint64_t>& word) {
  static_assert(std::endian::native == std::endian::little);
  return *reinterpret_cast<std::atomic<uint32_t>*>(&word);
}

template <class P>
class Lock {
 public:
  explicit constexpr Lock(Rank rank) : one_(Visit::one_of(rank)) {}

  bool try_acquire(Visit& visit) {
    if (P::single_threaded()) {
      // Plain: a handler that interrupts between the load and the store gives the lock back before
      // it returns.
      if (state_.load(std::memory_order_relaxed) != kFree) return false;
      state_.store(held_by(visit.who), std::memory_order_relaxed);
    } else {
      uint64_t expected = kFree;
      // acquire: sees what the last holder wrote. Pairs with [unlock.release].
      if (!state_.compare_exchange_strong(expected, held_by(visit.who), std::memory_order_acquire,
                                          std::memory_order_relaxed)) {
        contention_.failed();
        return false;
      }
    }
    entered(visit);
    return true;
  }

  // Waits only if the visit may, and only for a holder that is not late, never for a fork; else it
  // is like try_acquire.
  bool acquire(Visit& visit) { return LIKELY(try_acquire(visit)) || acquire_contended(visit); }

  void release(Visit& visit) {
    visit.locks_held -= one_;
    if (P::single_threaded()) {
      state_.store(kFree, std::memory_order_relaxed);
      return;
    }
    // release, both: publishes the holder's writes [unlock.release].
    if (is_of_lane()) {
      state_.store(kFree, std::memory_order_release);  // [give]
      compiler_fence();
      const bool some = sleepers_.load(std::memory_order_relaxed) != 0;  // [look]
      if (UNLIKELY(some)) P::wake(lower_half(), 1);
    } else if (uint64_t held = held_by(visit.who); UNLIKELY(!state_.compare_exchange_strong(
                   held, kFree, std::memory_order_release, std::memory_order_relaxed))) {
      release_awaited();
    }
  }

  // If the visit's thread has held this lock since it was torn off, by a long jump or at its end,
  // the visit holds it from now on. False: the thread does not hold it.
  bool take_over(Visit& visit) {
    if (holder() != visit.who) return false;
    visit.locks_held += one_;
    return true;
  }

  // --- Fork. In a process with one thread there is nothing to do.
  // Closes the lock, and waits for its holder if the visit may wait.
  void close(Visit& visit) {
    if (P::single_threaded()) return;
    // acquire, both: the child finds what the last holder wrote. Pairs with [unlock.release].
    uint64_t seen = state_.fetch_add(kFork, std::memory_order_acquire) + kFork;
    if ((seen & kForks) == kFork) late_.store(0, std::memory_order_relaxed);
    // Wakes all sleepers: one that was woken just now finds the lock closed, and leaves without
    // waking the next.
    P::wake(lower_half(), kEverybody);
    if (!visit.may_block || !is_held(seen)) return;
    for (Patience patience(*this); is_held(seen) && !patience.is_over();) {
      P::wait(lower_half(), static_cast<uint32_t>(seen), kLateMs);
      seen = state_.load(std::memory_order_acquire);
    }
  }
  // Called in the parent. A lock that is not closed stays as it is: a child that was made by a
  // handler of the fork has opened it.
  void open() {
    uint64_t seen = state_.load(std::memory_order_relaxed);
    while (is_closed(seen) &&
           !state_.compare_exchange_weak(seen, seen - kFork, std::memory_order_relaxed)) {
    }
  }
  // Called in the child, whose only thread is `me`. False: another thread was inside, and what the
  // lock guards may be half done.
  bool open_in_child(const void* me) {
    // acquire: sees what a thread that insisted has left. Pairs with [unlock.release].
    const bool held = is_held(state_.load(std::memory_order_acquire));
    if (held && holder() == me) {
      // The visit that holds it goes on, further down the stack.
      state_.store(held_by(me), std::memory_order_relaxed);
      return true;
    }
    forget_holder();
    return !held;
  }

  // Null if no thread holds the lock.
  const void* holder() const { return holder_in(state_.load(std::memory_order_relaxed)); }
  bool is_held() const { return is_held(state_.load(std::memory_order_relaxed)); }
  bool is_closed() const { return is_closed(state_.load(std::memory_order_relaxed)); }

  // Called in a fork child, where the holder does not exist. release: the next holder sees what was
  // done to what the lock guards.
  void forget_holder() { state_.store(kFree, std::memory_order_release); }

  const Contention& contention() const { return contention_; }

 private:
  static constexpr uint64_t kFree = 0;
  static constexpr uint64_t kHeld = 1;
  static constexpr uint64_t kAwaited = 2;  // beside kHeld: a thread sleeps
  static constexpr uint64_t kFork = 4;     // one for each fork that has closed the lock
  static constexpr unsigned kHolderShift = 16;
  static constexpr uint64_t kForks = (uint64_t{1} << kHolderShift) - kFork;
  static constexpr uint64_t kTheFork = ~uint64_t{0};
  static constexpr int kEverybody = INT_MAX;
  static constexpr int kSpins = 64;

  bool is_of_lane() const { return one_ == Visit::one_of(Rank::kLane); }
  Rank rank() const {
    return static_cast<Rank>(std::countr_zero(one_) / static_cast<int>(Visit::kBitsOfRank));
  }
  static uint64_t held_by(const void* who) {
    return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(who)) << kHolderShift | kHeld;
  }
  static const void* holder_in(uint64_t state) {
    return reinterpret_cast<const void*>(static_cast<uintptr_t>(state >> kHolderShift));
  }
  static bool is_held(uint64_t state) { return (state & kHeld) != 0; }
  static bool is_closed(uint64_t state) { return (state & kForks) != 0; }
  // What sleepers sleep on. It is never 0 while the lock is held.
  auto& lower_half() { return lower_half_of(state_); }

  // How long a thread waits for one and the same stay of a holder.
  class Patience {
   public:
    explicit Patience(const Lock& lock) : lock_(lock), stay_(lock.stay()), since_(P::now_ns()) {}
    bool is_over() {
      const uint64_t now = P::now_ns();
      if (lock_.stay() != stay_) {
        stay_ = lock_.stay();
        since_ = now;
      }
      return UNLIKELY(now - since_ >= kLateMs * 1'000'000);
    }

   private:
    const Lock& lock_;
    uint64_t stay_;
    uint64_t since_;
  };
  // True if a thread has waited in vain for this stay of the holder.
  bool is_late() const { return late() == stay() + 1; }
  uint64_t late() const { return late_.load(std::memory_order_relaxed); }
  uint64_t stay() const { return contention_.count.load(std::memory_order_relaxed); }

  void entered(Visit& visit) {
    visit.locks_held += one_;
    bump(contention_.count);
  }

  // Called if a thread sleeps, or if a fork has closed the lock.
  NOINLINE void release_awaited() {
    // release: as in release().
    const uint64_t held = state_.fetch_and(kForks, std::memory_order_release);
    P::wake(lower_half(), is_closed(held) ? kEverybody : 1);  // forks wait for a closed lock too
  }

  NOINLINE bool acquire_contended(Visit& visit) {
    const bool may_wait = visit.may_block && visit.locks_held < one_;
    if (is_closed()) {
      if (visit.insists == 0) return false;
      while (may_wait && visit.insists > 1 && is_closed() && late() != kTheFork) {
        P::sleep_ms(1);
        if (--visit.insists == 1) late_.store(kTheFork, std::memory_order_relaxed);
      }
      if (is_closed() ? try_closed(visit) : try_acquire(visit)) return true;
    }
    if (!may_wait || is_late()) return false;
    contention_.waits.fetch_add(1, std::memory_order_relaxed);
    const uint64_t since = P::now_ns();
    if (!spin_or_sleep(visit)) return false;
    const uint64_t ns = P::now_ns() - since;
    const ContentionWitness witness = contention_witness.load(std::memory_order_relaxed);
    PROBE3(wait, rank(), reinterpret_cast<uintptr_t>(this), ns);
    contention_.waited(ns, UNLIKELY(witness != nullptr) ? witness(visit.who, ns) : nullptr);
    return true;
  }

  // For a visit that insists.
  bool try_closed(Visit& visit) {
    uint64_t seen = state_.load(std::memory_order_relaxed);
    // acquire: as in try_acquire().
    if (is_held(seen) ||
        !state_.compare_exchange_strong(seen, seen | held_by(visit.who), std::memory_order_acquire,
                                        std::memory_order_relaxed))
      return false;
    entered(visit);
    return true;
  }

  // False if a fork has closed the lock, or if its holder is late.
  bool spin_or_sleep(Visit& visit) {
    for (int spin = 0; spin < kSpins; ++spin) {
      P::pause();
      if (state_.load(std::memory_order_relaxed) == kFree && try_acquire(visit)) return true;
    }
    if (is_of_lane()) return sleep_for_lane(visit);
    Patience patience(*this);
    uint64_t seen = state_.load(std::memory_order_relaxed);
    for (;;) {
      if (is_closed(seen) && visit.insists == 0) return false;
      if (!is_held(seen)) {
        // acquire: as in try_acquire. A thread that slept takes the lock as awaited, since others
        // may still sleep.
        if (state_.compare_exchange_weak(seen, seen | held_by(visit.who) | kAwaited,
                                         std::memory_order_acquire, std::memory_order_relaxed))
          return entered(visit), true;
      } else if (patience.is_over()) {
        return give_up();
      } else if ((seen & kAwaited) != 0 ||
                 state_.compare_exchange_weak(seen, seen | kAwaited, std::memory_order_relaxed)) {
        P::wait(lower_half(), static_cast<uint32_t>(seen | kAwaited), kLateMs);
        seen = state_.load(std::memory_order_relaxed);
      }
    }
  }

  bool sleep_for_lane(Visit& visit) {
    Patience patience(*this);
    sleepers_.fetch_add(1, std::memory_order_relaxed);  // [announce]
    const bool will_be_woken = P::barrier();
    bool done;
    while (!(done = try_acquire(visit))) {
      const uint64_t seen = state_.load(std::memory_order_relaxed);
      if (!is_held(seen)) continue;
      if (patience.is_over()) {
        give_up();
        break;
      }
      if (will_be_woken) {
        P::wait(lower_half(), static_cast<uint32_t>(seen), kLateMs);  // [sleep]
      } else {
        P::sleep_ms(1);
      }
    }
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
    return done;
  }

  bool give_up() {
    late_.store(stay() + 1, std::memory_order_relaxed);
    return false;
  }

  SHOWN_BY_LAYOUT;

  std::atomic<uint64_t> state_{kFree};
  std::atomic<uint32_t> sleepers_{0};
  const uint32_t one_;  // what a holder's visit adds to its locks_held
  // What no thread waits for any longer: the stay of a holder, + 1, or kTheFork.
  std::atomic<uint64_t> late_{0};
  // The words of it that every holder writes lie in the same line as the above.
  Contention contention_;
};

}  // namespace lanemalloc
