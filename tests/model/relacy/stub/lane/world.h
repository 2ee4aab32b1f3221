// Stands in for lane/world.h: of a lane only what entry/owned.h needs, so that the shipped owned.h can run under Relacy.
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
  bool try_hold(Visit& visit);
  void let_go(Visit& visit);
  void adopt_by(Slot& slot, Visit& visit);
  void disown(Visit& visit);
  void open_gate();
  void close_gate();
  void set_aside();
  void forget_owner() { owner_slot_.store(nullptr, std::memory_order_relaxed); }
  bool is_set_aside() const { return set_aside_; }
  bool is_closed() const;
  bool is_being_revoked() const { return revoking_.load(std::memory_order_acquire); }
  Slot* owner_slot() const { return owner_slot_.load(std::memory_order_relaxed); }

  model::Contents contents;  // everything else in a lane

 private:
  const Owner id_;
  World<P>& world_;
  Lock<P> lock_{Rank::kLane};
  model::atomic<Slot*> owner_slot_{nullptr};
  model::atomic<bool> revoking_{false};
  bool set_aside_ = false;
  model::atomic<bool> asked_{false};
};

}  // namespace lanemalloc
