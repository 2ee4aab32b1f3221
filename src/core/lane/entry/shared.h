// Shared: the entry of lanes that many threads use in turn, from a pool of N. A thread tries the
// lock of the lane in its slot. If that lock is taken, the thread tries a number of other lanes, in
// an order that differs from thread to thread. Then it waits.
// Called by: engine. Locking: entering is taking the lane's lock (rank kLane). A refused try never
// waits.
//
//   probes     start = R mod N. step = one of the numbers that share no divisor with N: the one at
//              R mod their count. start, start + step, start + 2 * step, .. visits every lane once
//              before it comes back (N steps of a generator of Z/N). R is the lane's precedence, or
//              the time: different for each thread.
//   precedence when a lane's entry first failed since the lane was last entered; 0 after every
//              success. A thread that must wait waits at the lane with the lowest precedence of
//              those it has seen: that lane is contended longest, so it is free soonest.
//
// No division: r mod n is two multiplications by a number made when N was set
// (core/lane/probe_orders.h).
// N may change at any time. A thread that reads the tables meanwhile may see numbers of the old N
// beside those of the new one. Then a step may visit a lane twice, or name one that does not exist,
// which is passed over.
//
// Source: scudo's shared pool of caches (docs/seeds.md), with its variants as options.
#pragma once

#include "core/lane/world.h"

namespace lanemalloc {

template <class P>
class Shared {
 public:
  Shared(World<P>& world, Visit& visit) : world_(world), visit_(visit) {}

  // Enters a lane of the pool, `current` if possible; waits as the last resort. Null in a fork
  // child, if the lane that it waited for is no more. Not for signal handlers.
  Lane<P>* enter(AnyLane<P>& current) {
    if (Lane<P>* lane = try_enter(current); LIKELY(lane != nullptr)) return lane;
    last_ = longest_ = &current;
    if (Lane<P>* lane = settings().scan_from_first ? scan() : probe(current)) return lane;
    return wait(settings().wait_on_random && longest_ == &current ? *last_ : *longest_);
  }

  // Never waits; null if the lane is taken.
  FAST Lane<P>* try_enter(AnyLane<P>& lane) {
    const bool entered = lane.try_lock(visit_);
    const bool contended = lane.precedence().load(std::memory_order_relaxed) != 0;
    if (UNLIKELY(contended == entered))
      lane.precedence().store(entered ? 0 : P::now_ns(), std::memory_order_relaxed);
    return entered ? &lane.entered() : nullptr;
  }

 private:
  const SharedSettings& settings() const { return world_.settings.shared; }

  uint32_t most_probes() const {
    const uint32_t n = world_.lanes.orders().lanes();
    const uint32_t probes = settings().probes;
    return probes < n ? probes : n;
  }

  // As scudo did first: in order, beginning with the first.
  Lane<P>* scan() {
    const uint32_t n = most_probes();
    for (uint32_t i = 0; i < n; ++i) {
      AnyLane<P>* lane = world_.lanes.shared(i);
      if (lane == nullptr) continue;
      last_ = lane;
      if (Lane<P>* entered = try_enter(*lane)) return found(entered, i + 1);
      note(*lane);
    }
    return found(nullptr, n);
  }

  Lane<P>* probe(AnyLane<P>& current) {
    const ProbeOrders& orders = world_.lanes.orders();
    const uint64_t precedence =
        settings().use_precedence ? current.precedence().load(std::memory_order_relaxed) : 0;
    const auto r = static_cast<uint32_t>(precedence != 0 ? precedence : P::now_ns());
    const uint32_t step = orders.step(r);
    const uint32_t n = most_probes();
    uint32_t index = orders.start(r);
    for (uint32_t i = 0; i < n; ++i, index = orders.next(index, step)) {
      AnyLane<P>* lane = world_.lanes.shared(index);
      if (lane == nullptr) continue;
      last_ = lane;
      Lane<P>* entered = lane != &current ? try_enter(*lane) : nullptr;
      if (entered != nullptr) return found(entered, i + 1);
      note(*lane);
    }
    return found(nullptr, n);
  }

  // The lane was tried and is taken.
  void note(AnyLane<P>& lane) {
    const uint64_t since = lane.precedence().load(std::memory_order_relaxed);
    if (!settings().use_precedence || since == 0 || since >= lowest_) return;
    lowest_ = since;
    longest_ = &lane;
  }

  Lane<P>* found(Lane<P>* lane, uint32_t probes) {
    count<P>(world_.counters.probes[probes_row(probes)]);
    if (lane != nullptr) count<P>(world_.counters.rebinds);
    return lane;
  }

  Lane<P>* wait(AnyLane<P>& lane) {
    if (!lane.lock_or_wait(visit_)) return nullptr;
    lane.precedence().store(0, std::memory_order_relaxed);
    return &lane.entered();
  }

  World<P>& world_;
  Visit& visit_;
  AnyLane<P>* last_ = nullptr;  // the lane that was tried last
  // Of the lanes tried, contended longest; the thread's own if none was
  AnyLane<P>* longest_ = nullptr;
  uint64_t lowest_ = ~uint64_t{0};  // its precedence
};

}  // namespace lanemalloc
