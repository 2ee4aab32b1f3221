// Stands in for lane/world.h. It has only those parts of a lane that entry/owned.h needs, so that
// the shipped owned.h can run under Relacy.
// Called by: relacy/entry.cpp, through the copy of owned.h.
#pragma once

#include "base/lock.h"
#include "lane/gate.h"
#include "memory/region.h"

namespace lanemalloc {

template <class P>
class Lane;

template <class P>
struct World {
  struct {
    bool checked = false;
  } settings;
};

template <class P>
class Lane : public Gate {
 public:
  Lane(Owner id, World<P>& world) : id_(id), world_(world) {}
  // As in lane/lane_work.h.
  bool try_hold(Visit& visit) {
    if (!try_lock(visit)) return false;
    if (take_from_owner(true)) return true;
    unlock(visit);
    return false;
  }
  void let_go(Visit& visit) {
    give_to_owner();
    unlock(visit);
  }
  bool try_lock(Visit& visit) { return lock_.try_acquire(visit); }
  bool lock_or_wait(Visit& visit) { return lock_.acquire(visit); }
  void unlock(Visit& visit) { lock_.release(visit); }
  bool adopt_by(Slot& slot, Visit& visit);
  void disown(Visit& visit);
  void forget_owner();
  void rest_closed();
  bool is_named_by(const Slot* slot) const;
  void open_gate();
  void open_area_to_hits();
  void close_gate();
  bool is_closed() const;
  bool is_being_revoked() const { return revoking_.load(std::memory_order_acquire); }
  void set_owner(Slot* slot) { owner_slot_.store(slot, std::memory_order_relaxed); }
  Slot* owner_slot() const { return owner_slot_.load(std::memory_order_relaxed); }

  model::Contents contents;  // everything else in a lane

 private:
  bool take_from_owner(bool ask);
  void leave_full(bool) {}
  void give_to_owner();

  Address deferred_limit_ = 4096;         // there is room
  model::atomic<Address> bins_at_{4096};  // there are bins
  const Owner id_;
  World<P>& world_;
  Lock<P> lock_{Rank::kLane};
  model::atomic<Slot*> owner_slot_{nullptr};
  model::atomic<bool> revoking_{false};
  model::atomic<bool> asked_{false};
  bool rests_ = false;
};

}  // namespace lanemalloc
