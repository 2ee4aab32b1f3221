// Inbox: batches of objects that other threads have freed, waiting for the lane that owns them.
// Called by: any lane (give); the owning lane, or a thread that holds it (take). Locking: none;
// give is one atomic exchange.
//
//   head -> newest batch's first object --earlier--> the batch before it --earlier--> .. -> null
//                |next                                     |next
//                v                                         v
//              object -> .. -> null                      object -> .. -> null
//
// Why it is right. give() swaps its batch in as the new head and only then writes the old head into
// the batch's `earlier` link. Until that write, `earlier` says kUnlinked. Batches are swapped in
// one after the other (exchange is atomic), so every batch but the oldest has exactly one
// predecessor, the one that its exchange returned: no batch is lost or linked twice. take() swaps
// the whole chain out, so a giver never sees a batch that is being read (no ABA: no step compares).
// The links lie in objects that a program may write to after it has freed them. So they are held as
// all links are (core/slab/object.h), and the taker looks where one leads before it follows it.
// A giver that stops between its two steps leaves kUnlinked behind. The taker then keeps the chain
// from there on in `rest_` and goes on the next time; it never waits. Until the rest is whole,
// nothing further is swapped out, so there is at most one rest.
#pragma once

#include "core/slab/slab.h"

namespace lanemalloc {

template <class Atomics = Hardware>
class Inbox {
 public:
  using Batch = BasicObject<Atomics>;

  // Gives a batch (core/slab/batch.h), by its first object. Returns the batch that was given before
  // it, if that one has not been taken yet. Only its address may be used.
  const Batch* give(Batch* batch) {
    batch->earlier.store(kUnlinked, std::memory_order_relaxed);
    // release: publishes the batch's links and kUnlinked to [inbox.take]. acquire is not needed:
    // what lies under the old head is not read here.
    Batch* earlier = head_.exchange(batch, std::memory_order_release);
    // release: pairs with the acquire at [inbox.follow]; the taker reads the earlier batch through
    // this link only.
    batch->earlier.store(Link::to(earlier).bits, std::memory_order_release);
    return earlier;
  }

  // True if something was given and has not been taken yet. Any thread may call it.
  bool has_mail() const { return head_.load(std::memory_order_relaxed) != nullptr; }
  // Only for the owner, or a thread that holds its lane.
  bool is_empty() const { return rest() == nullptr && !has_mail(); }

  // Calls visit(batch) for every batch that can be reached now, or for `most` of them; the others
  // stay. Only for the owner, or a thread that holds its lane. False: a link leads to no object,
  // and what lay behind it is lost. is_object(address): whether an object may lie there.
  template <class Visit, class IsObject>
  bool take(Visit visit, IsObject is_object, unsigned most = ~0u) {
    bool is_sound = true;
    Batch* batch = rest();
    // acquire: sees the links of the newest batch. Pairs with the release in give() [inbox.take].
    if (batch == nullptr) batch = head_.exchange(nullptr, std::memory_order_acquire);
    for (; batch != nullptr && most > 0; --most) {
      // acquire: pairs with give()'s second store [inbox.follow].
      const Address link = batch->earlier.load(std::memory_order_acquire);
      if (link == kUnlinked) break;
      auto* earlier = reinterpret_cast<Batch*>(Link{link}.address());
      if (UNLIKELY(earlier != nullptr && !is_object(earlier))) {
        is_sound = false;
        earlier = nullptr;
      }
      keep(earlier);  // a child forked meanwhile finds what is left, and nothing that was visited
      visit(batch);
      batch = earlier;
    }
    keep(batch);
    return is_sound;
  }

  // In a fork child, where no giver is left. What lies behind an unlinked batch cannot be reached
  // any more; the batch itself can.
  template <class IsObject>
  void forget_givers(IsObject is_object) {
    cut(rest(), is_object);
    cut(head_.load(std::memory_order_relaxed), is_object);
  }

 private:
  Batch* rest() const { return rest_.load(std::memory_order_relaxed); }
  void keep(Batch* batch) { rest_.store(batch, std::memory_order_relaxed); }

  static constexpr Address kUnlinked = 1;  // no link has this value

  // Batches that a program has damaged are left to take().
  template <class IsObject>
  static void cut(Batch* batch, IsObject is_object) {
    while (batch != nullptr && is_object(batch)) {
      const Address link = batch->earlier.load(std::memory_order_relaxed);
      if (link == kUnlinked)
        return batch->earlier.store(Link::none().bits, std::memory_order_relaxed);
      batch = reinterpret_cast<Batch*>(Link{link}.address());
    }
  }

  // The taker writes it at every batch, so it does not lie beside what the givers write. It is
  // atomic only for a child of a fork, whose taker is gone.
  typename Atomics::template atomic<Batch*> rest_{nullptr};
  alignas(kNoSharing) typename Atomics::template atomic<Batch*> head_{nullptr};
};

}  // namespace lanemalloc
