// Scavenger: the thread that returns memory while the program is idle. It exists only while there is something to return,
// and only in a process that already has threads. It has no thread-local storage, blocks all signals, and does one pass a
// quarter of the decay time; a pass is the engine's (purge what has decayed, clean lanes at rest).
// Called by: lanes, at slow paths (poke); engine (fork). Locking: none of its own.
//
// No wake-up is lost: poke() sets wanted_ and then looks at the state; the thread sets the state to idle and then looks at
// wanted_. Both are sequentially consistent, so at least one of them sees the other. A poke that finds wanted_ set already is
// cheaper and weaker: a pass that begins at this instant may miss that caller's last few stores; the next poke makes up for it.
#pragma once

#include "base/lock.h"
#include "platform/platform.h"

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
  // < 0: never. Also while it runs.
  void set_decay(int64_t decay_ms) {
    const uint64_t period = static_cast<uint64_t>(decay_ms) / kPassesToDecay;
    period_ms_ = decay_ms < 0 ? 0 : period < kShortestPeriod ? kShortestPeriod : period;
  }

  // There may be work. Cheap when it is known already.
  void poke(const Visit& visit) {
    if (LIKELY(wanted_.load(std::memory_order_relaxed)) || P::single_threaded() || !visit.may_block) return;
    wake();
  }

  // In a fork child: the thread stayed with the parent.
  void forget_thread() {
    thread_.alive.store(0, std::memory_order_relaxed);
    state_.store(State::kIdle, std::memory_order_relaxed);
    wanted_.store(false, std::memory_order_relaxed);
  }

  bool is_running() const { return state_.load(std::memory_order_relaxed) == State::kRunning; }
  uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  enum class State : uint32_t { kIdle, kRunning };
  static constexpr uint64_t kShortestPeriod = 10;
  static constexpr uint64_t kLongestSleep = 1000;  // until it looks whether the period has changed

  NOINLINE void wake() {
    if (period_ms_ == 0) return;
    wanted_.store(true, std::memory_order_seq_cst);
    State idle = State::kIdle;
    if (!state_.compare_exchange_strong(idle, State::kRunning, std::memory_order_seq_cst)) return;
    // The last one may still be on its way out, on the stack that the next one needs.
    while (thread_.alive.load(std::memory_order_acquire) != 0) P::pause();
    if (P::start_thread(thread_, &Scavenger::run, this)) return;
    refused_.fetch_add(1, std::memory_order_relaxed);
    state_.store(State::kIdle,
                 std::memory_order_relaxed);  // wanted_ stays: no new attempt at every slow path
  }

  static void run(void* argument) { static_cast<Scavenger*>(argument)->run(); }
  void run() {
    for (;;) {
      uint64_t period = period_ms_;
      for (uint64_t slept = 0; slept < period; slept += kLongestSleep, period = period_ms_)
        P::sleep_ms(period - slept < kLongestSleep ? period - slept : kLongestSleep);
      wanted_.store(false, std::memory_order_seq_cst);
      if (period != 0 && pass_(context_)) wanted_.store(true, std::memory_order_relaxed);
      if (wanted_.load(std::memory_order_relaxed)) continue;
      state_.store(State::kIdle, std::memory_order_seq_cst);
      if (!wanted_.load(std::memory_order_seq_cst)) return;
      State idle = State::kIdle;
      if (!state_.compare_exchange_strong(idle, State::kRunning, std::memory_order_seq_cst)) return;
    }
  }

  Pass pass_ = nullptr;
  void* context_ = nullptr;
  Relaxed<uint64_t> period_ms_ = 0;  // 0: never
  alignas(kNoSharing) std::atomic<bool> wanted_{false};
  alignas(kNoSharing) std::atomic<State> state_{State::kIdle};
  std::atomic<uint64_t> refused_{0};
  BareThread thread_;
};

}  // namespace lanemalloc
