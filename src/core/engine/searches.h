// Searches: a thread looks into all lanes, one after the other (at a limit, to give memory back, to
// count, at the end of a heap or pool). It does so from outside any lane: for each other lane it
// enters its own, tries the other one, and leaves again. One thread at a time does so, since two
// would find each other busy.
// Called by: engine. Locking: a thread that waits for its turn is in no lane and has no lock.
#pragma once

#include "core/engine/stay.h"

namespace lanemalloc {

template <class P>
class Searches {
 public:
  explicit constexpr Searches(World<P>& world) : world_(world) {}
  World<P>& world() { return world_; }

  // A turn to look into all lanes. A handler that has interrupted the allocator does without a
  // turn, since it may not wait. So does a handler that has interrupted a search, and a thread that
  // has waited too long.
  class Turn {
   public:
    Turn(Searches& searches, Slot& slot) : searches_(searches) {
      if (is_busy(slot.load(std::memory_order_relaxed))) return;
      for (const uint64_t since = P::now_ns();;) {
        // acquire, both: what the last search has found is to be seen; and a thread that sees that
        // a search is over sees no searcher.
        const uint32_t over = searches_.over_.load(std::memory_order_acquire);
        Slot* searcher = nullptr;
        has_turn_ =
            searches_.searcher_.compare_exchange_strong(searcher, &slot, std::memory_order_acquire);
        is_alone_ = has_turn_ || searcher == &slot;
        if (is_alone_) return;
        P::wait(searches_.over_, over, kLateMs);
        // The searcher may have been torn off, by a long jump.
        if (UNLIKELY(P::now_ns() - since >= kLateMs * 1'000'000)) return;
      }
    }
    Turn(const Turn&) = delete;
    ~Turn() {
      if (!has_turn_) return;
      searches_.searcher_.store(nullptr, std::memory_order_release);
      searches_.is_over();
    }
    // True also within another search of the same thread.
    bool is_alone() const { return is_alone_; }

   private:
    Searches& searches_;
    bool has_turn_ = false;
    bool is_alone_ = false;
  };

  // Calls work(lane, visit) in the lane, as its owner or from outside. wait: waits for a thread
  // that is inside just now, as far as the caller may wait. False if the lane cannot be reached.
  template <class Work>
  bool in_lane(AnyLane<P>& lane, Slot& slot, bool wait, Work work) {
    Patience patience;
    for (;;) {
      if (lane.is_set_aside()) return true;  // what it has is lost already
      {
        Stay<P> stay(world_, slot, Owned::enter(slot), true);
        stay.visit().insists = wait ? Visit::kPatience : 0;
        if (stay.lane() == &lane) return work(*stay.lane(), stay.visit()), true;
        if (world_.with_idle_lane(lane, stay.visit(),
                                  [&](Lane<P>& held) { work(held, stay.visit()); }))
          return true;
        if (!wait || lane.is_doubtful() || !stay.visit().may_block || !P::barrier()) return false;
      }
      patience.wait();
    }
  }

  // There is no memory. Makes all lanes give back what lies empty there, and waits a while for
  // those that a thread is inside: that thread may be giving back just what is wanted. False if the
  // caller may not wait; else it should try once more.
  bool collect(Slot& slot) {
    constexpr uint64_t kMostNs = 100'000'000;
    if (is_busy(slot.load(std::memory_order_relaxed))) return false;
    Turn turn(*this, slot);
    Patience patience{P::now_ns() + kMostNs};
    world_.lanes.for_each([&](AnyLane<P>& lane) {
      const auto may_have_some = [&] {
        return lane.lock().is_held() || lane.was_left_full() || lane.empty_blocks() > 0;
      };
      while (may_have_some() && !collect_from(lane, slot) && turn.is_alone() && patience.wait()) {
      }
    });
    return true;
  }

  // The thread was torn off, and its turn is over.
  void end_of(Slot& slot) {
    Slot* searcher = &slot;
    if (searcher_.compare_exchange_strong(searcher, nullptr, std::memory_order_release,
                                          std::memory_order_relaxed))
      is_over();
  }
  // In a fork child: other threads are not here.
  void forget_all_but(const Slot& slot) {
    if (searcher_.load(std::memory_order_relaxed) != &slot)
      searcher_.store(nullptr, std::memory_order_relaxed);
  }

 private:
  // How a thread that is in no lane waits for one that others are inside.
  struct Patience {
    static constexpr int kSpins = 256;
    uint64_t until_ns = ~uint64_t{0};
    int spins = kSpins;
    bool wait() {
      if (spins > 0) return --spins, P::pause(), true;
      if (P::now_ns() >= until_ns) return false;
      return P::sleep_ms(1), true;
    }
  };

  // False if a thread is inside, which may leave.
  bool collect_from(AnyLane<P>& lane, Slot& slot) {
    if (lane.is_set_aside() || lane.is_doubtful()) return true;
    const auto give_back = [](Lane<P>& held, Visit& visit) {
      if (held.was_left_full()) {
        held.clean(visit);
      } else {
        held.give_back_empties(held.empty_blocks(), visit);
      }
    };
    Stay<P> stay(world_, slot, Owned::enter(slot), true);
    if (stay.lane() == &lane) return give_back(*stay.lane(), stay.visit()), true;
    // Without a barrier its owner cannot be shut out; it has been asked to clean the lane itself.
    return world_.with_idle_lane(lane, stay.visit(), [&](Lane<P>& held) {
      give_back(held, stay.visit());
    }) || !P::barrier();
  }

  void is_over() {
    over_.fetch_add(1, std::memory_order_release);
    P::wake(over_, 1);
  }

  World<P>& world_;
  alignas(kNoSharing) std::atomic<Slot*> searcher_{nullptr};
  std::atomic<uint32_t> over_{0};  // searches that are over
};

}  // namespace lanemalloc
