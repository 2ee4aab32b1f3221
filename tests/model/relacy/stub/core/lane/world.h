// Stands in for core/lane/world.h. It has only those parts of a lane that entry/owned.h needs, so
// that the shipped owned.h can run under Relacy.
// Called by: relacy/entry.cpp, through the copy of owned.h.
#pragma once

#include "core/base/lock.h"
#include "core/lane/gate.h"
#include "core/memory/region.h"

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
class AnyLane : public Gate {
 public:
  Lane<P>& entered() { return static_cast<Lane<P>&>(*this); }
  // As in core/lane/lane_work.h.
  Lane<P>* try_hold(Visit& visit) {
    if (!try_lock(visit)) return nullptr;
    if (take_from_owner(true)) return &entered();
    unlock(visit);
    return nullptr;
  }
  void let_go(Visit& visit) {
    give_to_owner();
    unlock(visit);
  }
  bool try_lock(Visit& visit) { return lock_.try_acquire(visit); }
  bool lock_or_wait(Visit& visit) { return lock_.acquire(visit); }
  void unlock(Visit& visit) { lock_.release(visit); }
  Lane<P>* adopt_by(Slot& slot, Visit& visit);
  void disown(Visit& visit);
  Lane<P>& forget_owner();
  Lane<P>& rest_closed();
  bool is_named_by(const Slot* slot) const;
  bool is_closed() const;
  bool is_being_revoked() const { return revoking_.load(std::memory_order_acquire); }
  void set_owner(Slot* slot) { owner_slot_.store(slot, std::memory_order_relaxed); }
  Slot* owner_slot() const { return owner_slot_.load(std::memory_order_relaxed); }

 protected:
  AnyLane(Owner id, World<P>& world) : id_(id), world_(world) {}
  void close_gate();
  bool take_from_owner(bool ask);
  void leave_full(bool) {}
  void give_to_owner();

  model::atomic<Address> bins_at_{4096};  // there are bins
  const Owner id_;
  World<P>& world_;
  Lock<P> lock_{Rank::kLane};
  model::atomic<Slot*> owner_slot_{nullptr};
  model::atomic<bool> revoking_{false};
  model::atomic<bool> asked_{false};
  bool rests_ = false;
};

template <class P>
class Lane : public AnyLane<P> {
 public:
  Lane(Owner id, World<P>& world) : AnyLane<P>(id, world) {}
  void open_gate();

  model::Contents contents;  // everything else in a lane

 private:
  using AnyLane<P>::bins_at_, AnyLane<P>::id_, AnyLane<P>::world_;
  using Gate::area, Gate::area_of_hits, Gate::deferred_end, Gate::open_bins, Gate::open_owner;

  void open_area_to_hits();

  Address deferred_limit_ = 4096;  // there is room
};

}  // namespace lanemalloc
