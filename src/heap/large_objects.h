// LargeObjects: those objects of a heap that lie outside slabs, charged to its budget, in a list by which walks and the heap's end find
// them.
// Called by: Heap. Locking: the list under a lock (rank kPool), held for some steps, never with another.
//
// A handler that may not wait for the lock leaves on a stack what it wants, and whoever has the lock next does it:
//
//   list --> object <--> object <--> object       by their blocks
//   late --> object ---> object                   each with a wish: to be listed, or to be freed
//
// Who wishes something exchanges the object's wish: where there was none, it puts the object on the stack; else it is there, or about to
// be taken from there. Who has the lock takes the whole stack, reads an object's link, and only then exchanges its wish for none: from
// then on the object may be put there again. So each object lies there once at most, and its last wish is seen by one of the two
// exchanges. (Nobody but who frees it may wish anything of a listed object, nor anybody of one that its allocation has not returned.)
#pragma once

#include "engine/engine.h"

namespace lanemalloc {

template <class P>
class LargeObjects {
 public:
  LargeObjects(Engine<P>& engine, KindOwner& owner, Budget& budget)
      : engine_(engine), owner_(owner), budget_(budget) {}

  // Null: no memory, or beyond the budget.
  void* allocate(Bytes size, Bytes alignment, Slot& slot) {
    const Bytes bytes = bytes_of(blocks_for(size));
    if (bytes < size || budget_.take(bytes, 1) == 0) return nullptr;
    bool zeroed;
    void* p = engine_.allocate_large_of(owner_, size, alignment, slot, zeroed);
    if (p == nullptr) {
      budget_.give(bytes);
      return nullptr;
    }
    enter(p, slot);
    return p;
  }

  // In place, or moved by the kernel; null: neither, and nothing changed.
  void* reallocate(void* p, Bytes size, Slot& slot) {
    const Bytes before = bytes_at(p);
    const Bytes wanted =
        bytes_of(blocks_for(size)) + bytes_of(blocks_for(size)) / 8;  // as much as the engine may take
    if (wanted > before && budget_.take(wanted - before, 1) == 0) return nullptr;
    void* moved = nullptr;
    const bool was_listed = with_list(slot, [&] { unlink(engine_.block_of(p)); });
    if (was_listed) {
      moved = engine_.resize_large_of(p, size, slot);
      enter(moved != nullptr ? moved : p, slot);
    }
    const Bytes charged = wanted > before ? wanted : before;
    budget_.give(charged - bytes_at(moved != nullptr ? moved : p));
    return moved;
  }

  void free(void* p, Slot& slot) {
    if (with_list(slot, [&] { unlink(engine_.block_of(p)); })) return give_back(p, slot);
    wish(p, LargeState::kFreed);
  }

  // Does what handlers have left.
  void catch_up(Slot& slot) {
    if (late_.load(std::memory_order_relaxed) != kNone) with_list(slot, [] {});
  }

  // Returns how many there were.
  uint64_t free_all(Slot& slot) {
    catch_up(slot);
    uint64_t n = 0;
    for (; first_ != kNone; ++n) free(engine_.pointer_to(first_), slot);
    return n;
  }

  // Calls visit(p) until it returns other than 0, and returns that. Nobody uses the heap meanwhile.
  template <class Visitor>
  int walk(Slot& slot, Visitor visit) {
    catch_up(slot);
    for (BlockIndex at = first_; at != kNone; at = state(at).next)
      if (const int stop = visit(engine_.pointer_to(at)); stop != 0) return stop;
    return 0;
  }

  // How many bytes each has.
  template <class Visitor>
  void for_each_size(Slot& slot, Visitor visit) {
    with_list(slot, [&] {
      for (BlockIndex at = first_; at != kNone; at = state(at).next) visit(bytes_at(engine_.pointer_to(at)));
    });
  }

  // In a fork child. Another thread may have been changing the list: its forward links lead through all of it at any time.
  void forget_threads(const void* who) {
    if (lock_.holder() == who) return;
    lock_.forget_holder();
    BlockIndex previous = kNone;
    for (BlockIndex at = first_; at != kNone; previous = at, at = state(at).next)
      state(at).previous = previous;
  }

 private:
  static constexpr BlockIndex kNone = Region<P>::kNoBlock;

  LargeState& state(BlockIndex at) const { return engine_.large_state_at(at); }
  Bytes bytes_at(const void* p) const { return engine_.large_bytes(p); }

  void enter(void* p, Slot& slot) {
    LargeState& s = engine_.large_state_of(p);
    s.is_listed = false;
    s.wish.store(LargeState::kNone, std::memory_order_relaxed);
    if (!with_list(slot, [&] { link(engine_.block_of(p)); })) wish(p, LargeState::kListed);
  }

  // Runs with the list, after catching up. False: a handler, which may not wait for it.
  template <class Work>
  bool with_list(Slot& slot, Work work) {
    Gate* gate = Owned::enter(slot);
    Visit visit(&slot, !is_busy(gate));
    const bool held = lock_.acquire(visit);
    BlockIndex freed = kNone;
    if (held) {
      freed = take_late();
      work();
      lock_.release(visit);
    }
    Owned::leave(slot, gate);
    while (freed != kNone) {
      void* p = engine_.pointer_to(freed);
      freed = state(freed).next;
      give_back(p, slot);
    }
    return held;
  }

  void wish(void* p, uint8_t what) {
    const BlockIndex at = engine_.block_of(p);
    // acq_rel: see above; whoever takes the wish sees what was done to the object before. Pairs with [wish.take].
    if (state(at).wish.exchange(what, std::memory_order_acq_rel) != LargeState::kNone) return;
    BlockIndex first = late_.load(std::memory_order_relaxed);
    // release: publishes the link. Pairs with [late.take].
    do state(at).late = first;
    while (!late_.compare_exchange_weak(first, at, std::memory_order_release, std::memory_order_relaxed));
  }

  // Lists what is to be listed; returns what is to be freed, by `next`.
  BlockIndex take_late() {
    BlockIndex freed = kNone;
    if (LIKELY(late_.load(std::memory_order_relaxed) == kNone)) return freed;
    BlockIndex at = late_.exchange(kNone, std::memory_order_acquire);  // [late.take]
    while (at != kNone) {
      LargeState& s = state(at);
      const BlockIndex next = s.late;
      if (s.wish.exchange(LargeState::kNone, std::memory_order_acq_rel) ==
          LargeState::kListed) {  // [wish.take]
        link(at);
      } else {
        if (s.is_listed) unlink(at);
        s.next = freed;
        freed = at;
      }
      at = next;
    }
    return freed;
  }

  void link(BlockIndex at) {
    LargeState& s = state(at);
    s.previous = kNone;
    s.next = first_;
    s.is_listed = true;
    if (first_ != kNone) state(first_).previous = at;
    first_ = at;
  }
  void unlink(BlockIndex at) {
    LargeState& s = state(at);
    if (s.next != kNone) state(s.next).previous = s.previous;
    (s.previous != kNone ? state(s.previous).next : first_) = s.next;
    s.is_listed = false;
  }

  void give_back(void* p, Slot& slot) {
    budget_.give(bytes_at(p));
    engine_.free_large_of(p, slot);
  }

  Engine<P>& engine_;
  KindOwner& owner_;
  Budget& budget_;
  Lock<P> lock_{Rank::kPool};
  BlockIndex first_ = kNone;
  std::atomic<BlockIndex> late_{kNone};
};

}  // namespace lanemalloc
