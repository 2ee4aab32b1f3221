// AnyLane: a lane as every thread may see it, from outside. Lane (core/lane/lane.h) is the same
// lane for a thread that works in it: only what enters returns a Lane. So a function that takes a
// Lane can rely on it that no other thread is inside.
// Called by: lane table, engine, scavenger, lanes that send.
// Locking: none to look. The lock (rank kLane) is for entering from outside, and for lanes that
// many threads share. entry/ says how a thread enters.
#pragma once

#include <utility>

#include "core/lane/area.h"
#include "core/lane/gate.h"
#include "core/lane/id_stack.h"
#include "core/lane/inbox.h"
#include "core/slab/depot.h"

namespace lanemalloc {

template <class P>
struct World;
template <class P>
class Lane;
struct Deferred;  // core/reclaim/deferred.h

// The thread inside counts; any thread may read.
struct LaneCounters {
  std::atomic<uint64_t> taken[kClassCount]{};     // objects put into a bin
  std::atomic<uint64_t> sent[kClassCount]{};      // other lanes' objects freed here
  std::atomic<uint64_t> received[kClassCount]{};  // own objects freed by other lanes
  std::atomic<uint64_t> remote_batches{0};        // batches sent
  std::atomic<uint64_t> inbox_drains{0};          // times the inbox was drained
  std::atomic<uint64_t> misses{0};                // requests that found their bin empty
  std::atomic<uint64_t> slabs_made{0};            // slabs taken from the run allocator
  static constexpr unsigned kOwners = 32;
  // The part of remote_batches for each owner, by the owner's number modulo kOwners
  std::atomic<uint32_t> batches_to[kOwners]{};
};

template <class P>
class AnyLane : public LaneGate {
 public:
  AnyLane(const AnyLane&) = delete;

  Owner id() const { return id_; }
  // The lane's number among the lanes of its entry; kNoNumber if it has none.
  uint32_t number() const { return number_; }

  // Only for the code that enters, and for tests: the lane, for a thread that is inside from now
  // on.
  FAST Lane<P>& entered() { return static_cast<Lane<P>&>(*this); }
  // For checks, while no thread is inside.
  const Lane<P>& at_rest() const { return static_cast<const Lane<P>&>(*this); }

  // --- Taking the lane from outside.
  // Takes the lane away from its owner or its CPU, if no thread is inside. Null if one is. Never
  // waits. ask: an owner that cannot be shut out, because there is no barrier, is asked to clean
  // the lane itself.
  Lane<P>* try_hold(Visit& visit, bool ask = true);
  // The same for a thread that has the lock. It was perhaps about to take the lane from outside, or
  // had taken it, when it was torn off.
  Lane<P>* hold_again();
  void let_go(Visit& visit);  // ends both
  // In a fork child, which has one thread.
  Lane<P>& hold_in_child() { return entered(); }

  // Takes the lock. False if it cannot, and also if the lane was set aside meanwhile: a handler
  // that interrupted this thread has forked.
  FAST bool try_lock(Visit& visit) { return lock_.try_acquire(visit) && was_not_set_aside(visit); }
  bool lock_or_wait(Visit& visit) { return lock_.acquire(visit) && was_not_set_aside(visit); }
  // The same thread has the lock, which goes over to the visit.
  bool take_over(Visit& visit) { return lock_.take_over(visit); }
  void unlock(Visit& visit) { lock_.release(visit); }
  const Lock<P>& lock() const { return lock_; }  // only to look at

  // --- What any thread may ask or leave.
  // True if the lane's thread has exited, and no thread has cleaned the lane since.
  bool was_left_full() const { return left_full_.load(std::memory_order_relaxed); }
  void leave_full(bool yes) { left_full_.store(yes, std::memory_order_relaxed); }
  // The number of blocks in slabs that lie here empty.
  BlockCount empty_blocks() const { return empty_blocks_.load(std::memory_order_relaxed); }
  // Batches that other lanes have sent.
  Inbox<>& inbox() { return inbox_; }
  // There is much mail, and the owner is to look at it.
  void mail_waits() { mail_waits_.store(true, std::memory_order_relaxed); }
  // The kind's bin here, or null.
  FAST Bin* bin_of(const Kind& kind) const {
    Bin* bin = Area::bin(bins_at_.load(std::memory_order_acquire), kind);
    return bin != nullptr && bin->kind.load(std::memory_order_relaxed) == &kind ? bin : nullptr;
  }
  // Makes the family's label here what it is now, if it has one here. Any thread may call it, also
  // while the lane's own thread is inside.
  void relabel(const Family& family) {
    if (const Address at = bins_at_.load(std::memory_order_acquire); at != 0)
      Area::relabel(family, at);
  }
  // What waits for a safepoint; null if nothing ever did.
  std::atomic<Deferred*> deferred{nullptr};

  // --- Entered by the CPU (entry/percpu.h).
  uint32_t word_if_free() const { return number_ << 16 | static_cast<uint32_t>(id_); }
  // It is the first lane of its CPU.
  bool is_first_here = false;
  bool is_free_here() const { return here.load(std::memory_order_relaxed) == word_if_free(); }
  // True if a thread is inside. A thread that holds the lane from outside does not count.
  bool is_taken_here() const { return here.load(std::memory_order_relaxed) == kTakenHere; }
  // For a thread that was torn off: the lane, if the thread is inside by the CPU, in a miss.
  Lane<P>* taken_by(const void* who) {
    return taker_.load(std::memory_order_relaxed) == who ? &entered() : nullptr;
  }
  // Leaves the lane, for the thread that took it, on whichever CPU it runs now; or, in a fork
  // child, for a thread that is not there.
  void leave_here() {
    taker_.store(nullptr, std::memory_order_relaxed);
    // release: the next thread that takes the lane sees what was done inside. Pairs with
    // [take.here].
    here.store(word_if_free(), std::memory_order_release);
  }

  // --- Entered by its lock (entry/shared.h).
  // When an entry first failed since the last one that succeeded, in nanoseconds; 0 if none failed.
  std::atomic<uint64_t>& precedence() { return precedence_; }

  // --- The owner's side of the entry (entry/owned.h).
  Lane<P>* adopt_by(Slot& slot, Visit& visit);  // null: the lane was set aside
  void disown(Visit& visit);
  // The same while the lock is held. From now on the lock is enough, so the caller is inside.
  Lane<P>& forget_owner();
  // The same if the owner changes over to another entry. The lane is closed, and belongs to no
  // other thread while its owner lives.
  Lane<P>& rest_closed();
  bool rests() const { return rests_; }
  // True if the slot names this lane: then its thread is outside. The thread may be gone, and the
  // slot's memory with it.
  bool is_named_by(const Slot* slot) const;
  // The owner's number in the system; 0 if there is no owner.
  uint32_t owner_thread() const { return thread_.load(std::memory_order_relaxed); }
  uint32_t owner_process() const { return process_; }
  Slot* owner_slot() const { return owner_slot_.load(std::memory_order_relaxed); }
  void set_owner(Slot* slot) {
    owner_slot_.store(slot, std::memory_order_relaxed);
    process_ = slot != nullptr ? P::process_id() : 0;
    thread_.store(slot != nullptr ? P::thread_id() : 0, std::memory_order_relaxed);
  }
  // acquire: sees what the revoker did before it let go. Pairs with [revoking.release].
  bool is_being_revoked() const { return revoking_.load(std::memory_order_acquire); }
  bool is_closed() const;
  bool is_asked() const { return asked_.load(std::memory_order_relaxed); }
  bool take_asked() { return is_asked() && asked_.exchange(false, std::memory_order_relaxed); }

  // --- After a fork, or when a thread was torn off.
  // In a fork child, after salvage(): the thread that was inside, or had the lock, is not here. If
  // the owner is here, it goes on in the lane.
  void begin_in_child() {
    revoking_.store(false, std::memory_order_relaxed);
    lock_.forget_holder();
    if (how == Entry::kPerCpu) leave_here();
  }
  // In a child that a handler has forked, or if hold_again() fails: no thread will ever enter this
  // lane again. Its owner, if it is here, works elsewhere.
  void set_aside();
  bool is_set_aside() const { return set_aside_; }
  // The same for a lane that this thread is perhaps inside, further down its stack: no thread may
  // rely on the lane becoming free.
  void doubt() { is_doubtful_ = true; }
  bool is_doubtful() const { return is_doubtful_; }

  IdStack<>::Link& idle_link() { return idle_link_; }
  std::atomic<uint32_t>& overflow_link() { return overflow_link_; }

  // --- Figures.
  // Changes whenever the lane leaves its hit paths; the scavenger compares.
  uint64_t activity() const {
    return activity_.load(std::memory_order_relaxed) +
           counters_.misses.load(std::memory_order_relaxed);
  }
  struct Rest {
    uint64_t activity = 0;
    uint32_t passes = 0;  // the scavenger's, since the activity last changed
    bool cleaned = false;
  };
  Rest& rest() { return rest_; }  // the scavenger's notes
  // Objects that were put into its bins so far, without those that went back.
  uint64_t objects_taken() const {
    uint64_t n = 0;
    for (const auto& taken : counters_.taken) n += taken.load(std::memory_order_relaxed);
    return n;
  }
  LaneCounters& counters() { return counters_; }
  const LaneCounters& counters() const { return counters_; }

 protected:
  SHOWN_BY_LAYOUT;

  AnyLane(Owner id, World<P>& world, Entry entry, uint32_t number)
      : id_(id), number_(number), world_(world) {
    how = entry;
  }

  void close_gate();
  bool was_not_set_aside(Visit& visit) {
    if (LIKELY(!set_aside_)) return true;
    lock_.release(visit);
    return false;
  }
  bool take_from_owner(bool ask);
  void give_to_owner();
  bool take_from_cpu();

  // What the thread inside writes, and any thread may read.
  std::atomic<Address> bins_at_{0};        // the area; 0 if there is none
  std::atomic<uint32_t> empty_blocks_{0};  // of slabs that lie here empty
  LaneCounters counters_;
  const Owner id_;
  const uint32_t number_;
  World<P>& world_;
  std::atomic<uint64_t> activity_{1};
  std::atomic<uint32_t> overflow_link_{0};
  std::atomic<uint32_t> idle_link_{0};
  Rest rest_;

  // What other threads write.
  alignas(kNoSharing) Inbox<> inbox_;
  alignas(kNoSharing) std::atomic<uint64_t> precedence_{0};
  std::atomic<Slot*> owner_slot_{nullptr};  // the owner's; under the lock
  std::atomic<bool> revoking_{false};
  bool set_aside_ = false;
  Relaxed<bool> is_doubtful_ = false;
  bool rests_ = false;                   // closed, though it has an owner; under the lock
  std::atomic<bool> mail_waits_{false};  // there is much mail
  std::atomic<bool> left_full_{false};
  // If the system has no barrier: the owner is to clean the lane when it can
  std::atomic<bool> asked_{false};
  // The lock is last, since what lies behind its first words is rarely written
  Lock<P> lock_{Rank::kLane};
  std::atomic<uint32_t> thread_{0};          // the owner's number in the system, for readers
  Relaxed<uint32_t> process_ = 0;            // the process in which it has that number
  std::atomic<const void*> taker_{nullptr};  // the thread that is inside by the CPU, in a miss
};

// The lane that a thread's slot names (names_lane). The thread may be outside.
template <class P>
FAST AnyLane<P>* lane_named(Gate* gate) {
  return static_cast<AnyLane<P>*>(gate);
}
// The lane behind a gate that has let the thread in.
template <class P>
FAST Lane<P>* lane_behind(Gate* gate) {
  return &lane_named<P>(gate)->entered();
}

}  // namespace lanemalloc
