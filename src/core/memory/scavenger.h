// Scavenger: returns memory while the program is idle. One thread of the C library's runs it
// (process/threads.cpp), while the process has other threads. The engine does the passes, one each
// quarter of the decay time. A pass purges what has decayed and cleans lanes at rest.
// Called by: lanes, at slow paths (poke); engine. Locking: none of its own.
//
//   kWanted   there may be work. Also while no thread runs it: then a poke costs one load.
//   kIdle     the thread sleeps until it is poked.
//   kChanged  as kWanted, and the decay time has changed.
//   kStopped  the thread must end.
//
// No wake-up is lost. poke() changes the very word that the thread sleeps on. So either the kernel
// finds the word changed and does not let the thread sleep, or the thread is woken. The thread sets
// kIdle before its pass, so a poke during the pass is kept. A poke that finds kWanted is cheaper
// and weaker: a pass that begins at this instant may miss that caller's last few stores. The next
// poke makes up for it.
#pragma once

#include "core/base/contention.h"
#include "core/base/lock.h"
#include "core/platform/platform.h"

namespace lanemalloc {

template <class P>
class Scavenger {
 public:
  // Does one pass; true if there may be more to do later.
  using Pass = bool (*)(void* context);

  static constexpr uint32_t kPassesToDecay = 4;

  void start(Pass pass, void* context, int64_t decay_ms) {
    pass_ = pass;
    context_ = context;
    set_decay(decay_ms);
  }
  // < 0: never. May also be called while it runs.
  void set_decay(int64_t decay_ms) {
    const uint64_t period = static_cast<uint64_t>(decay_ms) / kPassesToDecay;
    period_ms_ = decay_ms < 0 ? 0 : period < kShortestPeriod ? kShortestPeriod : period;
    uint32_t word = word_.load(std::memory_order_relaxed);
    while (running_ && word != kStopped &&
           !word_.compare_exchange_weak(word, kChanged, std::memory_order_relaxed)) {
    }
    P::wake(word_, 1);
  }
  // Milliseconds; 0: never.
  uint64_t period_ms() const { return period_ms_; }

  // There may be work. Cheap if that is known already; never waits. Async-signal-safe, and harmless
  // in a child by vfork, where it wakes the parent's thread.
  void poke() {
    if (LIKELY(word_.load(std::memory_order_relaxed) != kIdle)) return;
    uint32_t idle = kIdle;
    // release: the pass sees the work [poke.release]. Pairs with [pass.acquire].
    if (word_.compare_exchange_strong(idle, kWanted, std::memory_order_release,
                                      std::memory_order_relaxed))
      P::wake(word_, 1);
  }

  // A thread is about to run it (begin), or has ended (end). One caller at a time.
  void begin() {
    word_.store(kWanted, std::memory_order_relaxed);
    running_ = true;
  }
  void end() {
    running_ = false;
    if (moves_.load(std::memory_order_relaxed) % 2 != 0)
      moves_.fetch_add(1, std::memory_order_relaxed);  // in a fork child
    word_.store(kWanted, std::memory_order_relaxed);
  }
  bool is_running() const { return running_; }
  // There is memory to give back, and no thread does it while the program is idle.
  bool is_missed() const { return !running_ && period_ms_ != 0; }

  // The scavenger's thread moves objects from bins to slabs, from here to end_move().
  void begin_move() { moves_.fetch_add(1, std::memory_order_acq_rel); }
  void end_move() { moves_.fetch_add(1, std::memory_order_acq_rel); }
  // Odd during a move. acquire: a reader that finds the same even number before and after has read
  // nothing of a move in between.
  uint32_t moves() const { return moves_.load(std::memory_order_acquire); }

  // Makes run() return soon.
  void stop() {
    word_.store(kStopped, std::memory_order_relaxed);
    P::wake(word_, 1);
  }
  // There may be work, and no poke is needed.
  bool is_wanted() const { return word_.load(std::memory_order_relaxed) != kIdle; }
  // A long pass looks at this.
  bool must_stop() const { return word_.load(std::memory_order_relaxed) == kStopped; }

  // What the thread does until stop().
  void run() {
    for (;;) {
      uint32_t word = word_.load(std::memory_order_relaxed);
      if (word == kStopped) return;
      if (word == kIdle) {
        P::wait(word_, kIdle);
      } else if (word == kChanged) {
        word_.compare_exchange_strong(word, kWanted, std::memory_order_relaxed);
      } else if (const uint64_t period = period_ms_; period == 0) {
        P::wait(word_, kWanted);
      } else if (sleep(period)) {
        work();
      }
    }
  }

 private:
  SHOWN_BY_LAYOUT;

  static constexpr uint32_t kIdle = 0;
  static constexpr uint32_t kWanted = 1;
  static constexpr uint32_t kChanged = 2;
  static constexpr uint32_t kStopped = 3;
  static constexpr uint64_t kShortestPeriod = 10;

  // False: the word has changed meanwhile.
  bool sleep(uint64_t period) {
    const uint64_t since = P::now_ms();
    for (uint64_t slept = 0; slept < period; slept = P::now_ms() - since) {
      P::wait(word_, kWanted, period - slept);
      if (word_.load(std::memory_order_relaxed) != kWanted) return false;
    }
    return true;
  }

  void work() {
    uint32_t wanted = kWanted;
    // acquire: sees what it was poked for [pass.acquire]. Pairs with [poke.release].
    if (!word_.compare_exchange_strong(wanted, kIdle, std::memory_order_acquire,
                                       std::memory_order_relaxed))
      return;
    if (!pass_(context_)) return;
    uint32_t idle = kIdle;
    word_.compare_exchange_strong(idle, kWanted, std::memory_order_relaxed);
  }

  Pass pass_ = nullptr;
  void* context_ = nullptr;
  Relaxed<uint64_t> period_ms_ = 0;  // 0: never
  Relaxed<bool> running_ = false;
  std::atomic<uint32_t> moves_{0};
  alignas(kNoSharing) std::atomic<uint32_t> word_{kWanted};
};

}  // namespace lanemalloc
