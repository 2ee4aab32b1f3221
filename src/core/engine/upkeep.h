// Upkeep: gives back what lies idle: at the scavenger's passes, when a program asks, and when the
// process is about to have one thread.
// Called by: engine, scavenger's thread. Locking: lanes are held from outside, one after the other.
#pragma once

#include "core/engine/entry_choice.h"
#include "core/engine/stay.h"

namespace lanemalloc {

template <class P>
class Upkeep {
 public:
  constexpr Upkeep(World<P>& world, EntryChoice<P>& entry) : world_(world), entry_(entry) {}

  void start(int64_t decay_ms) { world_.scavenger.start(&Upkeep::pass, this, decay_ms); }
  // Called at the end of each pass. True: another pass is wanted. Set once, before the scavenger
  // starts.
  void set_watch(bool (*watch)()) { watch_ = watch; }

  // The scavenger's thread is about to start; does its work, until it is stopped; has ended.
  void begins() {
    world_.runs.set_scavenged(true);
    world_.scavenger.begin();
  }

  void scavenge() {
    world_.scavenger.run();
    Visit visit(&world_.scavenger, true);
    world_.runs.set_scavenged(false);
    sweep(visit);
  }

  void is_gone() {
    world_.runs.set_scavenged(false);
    world_.scavenger.end();
  }

  // Gives back what can be given back now. True if anything was given back.
  bool trim(Slot& slot) {
    Stay<P> stay(world_, slot, Owned::enter(slot));
    Visit& visit = stay.visit();
    const uint64_t before = world_.runs.statistics().purged;
    for (int round = 0; round < 2; ++round) {  // the second takes in what the first has sent
      if (stay.lane() != nullptr) stay.lane()->clean(visit);
      world_.lanes.for_each([&](AnyLane<P>& lane) {
        if (&lane != stay.lane())
          world_.with_idle_lane(lane, visit, [&](Lane<P>& held) { held.clean(visit); });
      });
    }
    world_.runs.purge(Runs<P>::kAll, visit);
    return world_.runs.statistics().purged != before;
  }

 private:
  static bool pass(void* upkeep) { return static_cast<Upkeep*>(upkeep)->pass(); }
  // The scavenger's pass: what has decayed goes back to the system, and lanes at rest give away
  // what they do not need.
  bool pass() {
    constexpr BlockCount kPiece = 256;  // blocks between two looks whether to stop
    Visit visit(&world_.scavenger, true);
    world_.runs.advance_epoch();
    bool more = false;
    const bool may_follow = entry_.may_follow();
    uint64_t allocated = 0;
    world_.scavenger.begin_move();
    world_.lanes.for_each([&](AnyLane<P>& lane) {
      if (world_.scavenger.must_stop()) return;
      if (may_follow) allocated += lane.objects_taken();
      more |= tend(lane, visit);
    });
    world_.scavenger.end_move();
    if (may_follow && !world_.scavenger.must_stop()) entry_.follow_waits(allocated);
    const uint32_t now = world_.runs.epoch();
    if (now > Scavenger<P>::kPassesToDecay) {
      const uint32_t before = now - Scavenger<P>::kPassesToDecay;
      while (world_.runs.purge(before, visit, kPiece) >= bytes_of(kPiece) &&
             !world_.scavenger.must_stop()) {
      }
    }
    if (watch_ != nullptr) more |= watch_();
    return more || world_.runs.has_more_to_give();
  }

  // True if the lane must be looked at again.
  bool tend(AnyLane<P>& lane, Visit& visit) {
    // After these the lane's thread is taken to have left us by a long jump.
    constexpr uint32_t kAttempts = 32;
    auto& rest = lane.rest();
    const uint64_t activity = lane.activity();
    if (rest.activity != activity) {
      rest = {activity, 0, false};
      return true;
    }
    if (rest.cleaned && !lane.inbox().has_mail())
      return Threads<P>(world_).reclaim(lane, visit);  // its thread may have ended since
    if (++rest.passes < Scavenger<P>::kPassesToDecay) return true;
    if (Threads<P>(world_).reclaim(lane, visit)) return true;
    bool whole = false;
    const bool held = world_.with_idle_lane(lane, visit, [&](Lane<P>& l) {
      l.clean(visit);
      whole = l.inbox().is_empty();  // else a sender has stopped half-way
    });
    if (!held) return rest.passes < Scavenger<P>::kPassesToDecay + kAttempts;
    rest = {lane.activity(), 0, whole};
    return true;
  }

  // The process is about to have one thread: what would have decayed goes back now. A program that
  // starts one thread after another does not pay for that each time: within the decay time only
  // what is beyond the limit goes.
  void sweep(Visit& visit) {
    const uint64_t period = world_.scavenger.period_ms();
    if (period == 0) return;
    const uint64_t now = P::now_ms();
    if (now - swept_at_ms_ < period * Scavenger<P>::kPassesToDecay)
      return world_.runs.keep_limit(visit);
    swept_at_ms_ = now;
    world_.scavenger.begin_move();
    world_.lanes.for_each([&](AnyLane<P>& lane) {
      Threads<P>(world_).reclaim(lane, visit);
      world_.with_idle_lane(lane, visit, [&](Lane<P>& held) { held.clean(visit); });
    });
    world_.scavenger.end_move();
    world_.runs.purge(Runs<P>::kAll, visit);
  }

  World<P>& world_;
  EntryChoice<P>& entry_;
  bool (*watch_)() = nullptr;
  uint64_t swept_at_ms_ = 0;
};

}  // namespace lanemalloc
