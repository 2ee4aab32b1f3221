// LaneTable: all lanes, by number. Idle lanes are adopted with their contents; some other lanes are
// for every thread.
// Called by: engine, scavenger, lanes that send. Locking: none.
//
//   owned     belongs to a thread: the thread's slot holds the lane's gate
//   idle      on the stack: its thread has exited; the next new thread adopts it
//   shared    one of N, entered by try-lock by any thread (entry/shared.h); made when it is first
//             asked for
//   here      some for each CPU, entered by a thread that runs there (entry/percpu.h); made in the
//             same way
//   overflow  in a list that only grows: entered by try-lock, by a thread that finds its own lane
//             busy (in a signal handler), revoked, or given back (late thread exit). If all are
//             taken, one more is made: a rescue lane.
#pragma once

#include <new>

#include "core/lane/lane.h"
#include "core/lane/probe_orders.h"

namespace lanemalloc {

template <class P>
class LaneTable {
 public:
  static constexpr Bytes kStride = 9216;
  static constexpr uint32_t kMostLanes = 32256;
  static_assert(is_lane(static_cast<Owner>(static_cast<uint32_t>(Owner::kFirstLane) + kMostLanes -
                                           1)));
  static constexpr uint32_t kMostShared = ProbeOrders::kMostLanes;
  // The number of lanes for each CPU. A thread that is stopped inside one leaves the others to the
  // CPU's other threads.
  static constexpr uint32_t kLanesHere = 8;

  explicit constexpr LaneTable(World<P>& world) : world_(world) {}

  void start() {
    lanes_ = world_.region.lanes();
    most_ = static_cast<uint32_t>(world_.region.lane_bytes() / kStride);
  }

  // For a lane that has been made; a thread that knows its number sees that it is made. acquire:
  // for a checker that does not follow fences.
  AnyLane<P>& at(Owner id) {
    DCHECK(made(number(id)).load(std::memory_order_acquire));
    return *reinterpret_cast<AnyLane<P>*>(lanes_ + number(id) * kStride);
  }

  // Calls visit(lane) for every lane that exists.
  template <class Visitor>
  void for_each(Visitor visit) {
    const uint32_t n = count_.load(std::memory_order_acquire);
    for (uint32_t i = 0; i < n && i < most_; ++i) {
      // acquire: sees the lane whole. A lane that is just being made is not ready to be visited.
      if (made(i).load(std::memory_order_acquire))
        visit(at(static_cast<Owner>(i + static_cast<uint32_t>(Owner::kFirstLane))));
    }
  }

  // Returns an idle lane, or a new one; no other thread has it. Null if there is no memory, or no
  // number.
  AnyLane<P>* pop_idle_or_make() {
    const uint32_t link =
        idle_.pop([this](uint32_t n) -> auto& { return at(owner(n)).idle_link(); });
    return link != IdStack<>::kNone ? &at(owner(link)) : make(nullptr, Entry::kOwned, kNoNumber);
  }
  void push_idle(AnyLane<P>& lane) {
    idle_.push(static_cast<uint32_t>(lane.id()),
               [this](uint32_t n) -> auto& { return at(owner(n)).idle_link(); });
  }

  // Sets how threads enter lanes from now on. One caller at a time; a thread follows at its next
  // miss. shared_lanes: how many lanes threads share; 0: the same number as before.
  void set_entry(Entry entry, uint32_t shared_lanes) {
    if (entry_.load(std::memory_order_relaxed) != entry)
      has_changed_.store(true, std::memory_order_relaxed);
    set_orders(shared_lanes);
    entry_.store(entry, std::memory_order_relaxed);
  }
  // The same with as many shared lanes as before, unless the entry is no longer `from`. It may run
  // beside a caller of set_entry().
  bool change_entry(Entry from, Entry to) {
    has_changed_.store(true, std::memory_order_relaxed);
    return entry_.compare_exchange_strong(from, to, std::memory_order_relaxed);
  }
  Entry entry() const { return entry_.load(std::memory_order_relaxed); }
  // True if the entry was another one once: a thread may have a lane that its slot does not name.
  bool has_changed() const { return has_changed_.load(std::memory_order_relaxed); }
  const ProbeOrders& orders() const { return orders_; }

  // Null if there is no memory, or if another thread is just making the lane.
  AnyLane<P>* shared(uint32_t i) {
    return i < orders_.lanes() ? numbered(shared_[i], Entry::kShared, i) : nullptr;
  }
  // which: the number among the CPU's lanes.
  AnyLane<P>* here(uint32_t i, uint32_t which = 0) {
    if (UNLIKELY(i >= kMostNumbers)) return nullptr;
    std::atomic<uint16_t>& place = here_[i][which];
    if (UNLIKELY(place.load(std::memory_order_relaxed) == 0)) see_number(i);
    return numbered(place, Entry::kPerCpu, i, which == 0);
  }
  // The number of the lane for the next thread that comes.
  uint32_t next_shared() { return orders_.start(turn_.fetch_add(1, std::memory_order_relaxed)); }

  // In a fork child: the lane keeps what it has; its number goes to a new lane.
  void forget_number(const AnyLane<P>& lane) {
    if (std::atomic<uint16_t>* place = place_of(lane)) place->store(0, std::memory_order_relaxed);
  }
  bool is_forgotten(const AnyLane<P>& lane) {
    return lane.how == Entry::kPerCpu && place_of(lane) == nullptr;
  }
  // In a fork child: a thread that was making a lane is not here.
  void forget_makers() {
    auto forget = [](std::atomic<uint16_t>& place) {
      if (place.load(std::memory_order_relaxed) == kBeingMade)
        place.store(0, std::memory_order_relaxed);
    };
    for (auto& place : shared_) forget(place);
    for (uint32_t i = 0; i < numbers_end_.load(std::memory_order_relaxed); ++i)
      for (auto& place : here_[i]) forget(place);
  }

  // The number of threads that have a lane of their own.
  std::atomic<uint32_t>& owners() { return owners_; }

  // Enters an overflow lane without waiting; its lock is held on return. Null only if there is no
  // memory.
  Lane<P>* enter_overflow(Visit& visit) {
    for (uint32_t n = overflow_.load(std::memory_order_acquire); n != 0;) {
      AnyLane<P>& lane = at(owner(n));
      if (lane.try_lock(visit)) return &lane.entered();
      n = lane.overflow_link().load(std::memory_order_relaxed);
    }
    AnyLane<P>* lane = make(&visit, Entry::kShared, kNoNumber);
    if (lane == nullptr) return nullptr;
    rescues_.fetch_add(1, std::memory_order_relaxed);
    // The list only grows, so a compare-exchange cannot be fooled. release: publishes the lane to
    // the acquire above.
    uint32_t first = overflow_.load(std::memory_order_relaxed);
    do lane->overflow_link().store(first, std::memory_order_relaxed);
    while (!overflow_.compare_exchange_weak(first, static_cast<uint32_t>(lane->id()),
                                            std::memory_order_release, std::memory_order_relaxed) &&
           overflow_tries_.failed());
    overflow_tries_.done();
    return &lane->entered();
  }

  const Tries<>& idle_tries() const { return idle_.tries(); }
  uint64_t rescues() const { return rescues_.load(std::memory_order_relaxed); }

 private:
  SHOWN_BY_LAYOUT;

  void set_orders(uint32_t shared_lanes) {
    if (shared_lanes != 0 && shared_lanes != orders_.lanes()) orders_.set(shared_lanes);
  }

  static Owner owner(uint32_t n) { return static_cast<Owner>(n); }
  static uint32_t number(Owner id) {
    return static_cast<uint32_t>(id) - static_cast<uint32_t>(Owner::kFirstLane);
  }

  // Whether lane i has been made. This flag lies behind the lane, so that making the lane does not
  // write the flag: any thread may be looking at it. If no lane has been made there, it reads as
  // false.
  std::atomic<bool>& made(uint32_t i) {
    return *reinterpret_cast<std::atomic<bool>*>(lanes_ + i * kStride + sizeof(Lane<P>));
  }
  static_assert(sizeof(Lane<P>) + sizeof(std::atomic<bool>) <= kStride);

  // Where the lane's number leads to the lane; null if it does not.
  std::atomic<uint16_t>* place_of(const AnyLane<P>& lane) {
    if (lane.number() == kNoNumber) return nullptr;
    const auto is_its = [&](const std::atomic<uint16_t>& place) {
      return place.load(std::memory_order_relaxed) == static_cast<uint16_t>(lane.id());
    };
    if (lane.how != Entry::kPerCpu)
      return is_its(shared_[lane.number()]) ? &shared_[lane.number()] : nullptr;
    for (auto& place : here_[lane.number()])
      if (is_its(place)) return &place;
    return nullptr;
  }
  NOINLINE void see_number(uint32_t i) {
    uint32_t end = numbers_end_.load(std::memory_order_relaxed);
    while (end <= i && !numbers_end_.compare_exchange_weak(end, i + 1, std::memory_order_relaxed)) {
    }
  }

  AnyLane<P>* numbered(std::atomic<uint16_t>& place, Entry how, uint32_t number,
                       bool is_first_here = false) {
    // acquire: sees the lane made. Pairs with the release below.
    uint16_t id = place.load(std::memory_order_acquire);
    if (LIKELY(id != 0)) return id != kBeingMade ? &at(owner(id)) : nullptr;
    // With signals blocked, no thread is torn off that would leave the lane half made.
    const uint64_t mask = P::block_signals();
    AnyLane<P>* lane = nullptr;
    if (place.compare_exchange_strong(id, kBeingMade, std::memory_order_relaxed)) {
      lane = make(nullptr, how, number);
      if (lane != nullptr) lane->is_first_here = is_first_here;
      place.store(lane != nullptr ? static_cast<uint16_t>(lane->id()) : 0,
                  std::memory_order_release);
    }
    P::restore_signals(mask);
    return lane;
  }

  // With a visit: the visit holds the lane's lock before any other thread can see the lane.
  AnyLane<P>* make(Visit* visit, Entry how, uint32_t lane_number) {
    uint32_t i = count_.load(std::memory_order_relaxed);
    Address place;
    do {
      if (i >= most_) return nullptr;
      place = lanes_ + i * kStride;
      if (!world_.region.open_lanes((i + 1) * kStride)) return nullptr;
    } while (!count_.compare_exchange_weak(i, i + 1, std::memory_order_acq_rel,
                                           std::memory_order_relaxed) &&
             count_tries_.failed());
    count_tries_.done();
    AnyLane<P>* lane = new (reinterpret_cast<void*>(place))
        Lane<P>(owner(i + static_cast<uint32_t>(Owner::kFirstLane)), world_, how, lane_number);
    if (visit != nullptr) lane->try_lock(*visit);
    // release: a thread that sees the lane ready sees it whole. Pairs with the acquire in
    // for_each().
    made(i).store(true, std::memory_order_release);
    return lane;
  }

  static constexpr uint16_t kBeingMade = 0xFFFF;

  World<P>& world_;
  Address lanes_ = 0;
  uint32_t most_ = 0;
  std::atomic<Entry> entry_{Entry::kOwned};
  std::atomic<bool> has_changed_{false};
  ProbeOrders orders_;
  std::atomic<uint16_t> shared_[kMostShared]{};
  std::atomic<uint16_t> here_[kMostNumbers][kLanesHere]{};
  std::atomic<uint32_t> numbers_end_{0};  // above all numbers that here() was asked for
  alignas(kNoSharing) std::atomic<uint32_t> count_{0};
  std::atomic<uint32_t> owners_{0};
  std::atomic<uint32_t> turn_{0};
  alignas(kNoSharing) IdStack<> idle_;
  alignas(kNoSharing) std::atomic<uint32_t> overflow_{0};
  std::atomic<uint64_t> rescues_{0};
  Tries<> count_tries_;
  Tries<> overflow_tries_;
};

}  // namespace lanemalloc
