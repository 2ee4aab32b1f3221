// Deferred: what a lane has deferred: objects of malloc in one ring, and calls in another. It lies in blocks of its own, which the lane
// takes at its first deferred free and keeps.
// Called by: engine, inside the lane. Locking: none, but for `caller`.
//
// Objects are freed inside the lane, so that who does it enters once for many. Calls are made outside any lane: a caller takes some
// out inside, leaves, and makes them; of each lane one thread at a time, so that they end in their order.
#pragma once

#include "reclaim/ring.h"

namespace lanemalloc {

// free(context, object) is called. What a deferred call is made of; frees of other kinds than malloc's are calls.
struct Call {
  void (*free)(void* context, void* object);
  void* context;
  void* object;
};

struct Deferred {
  // next_object: the gate's word, for the quick path.
  explicit Deferred(std::atomic<void**>& next_object) : objects(next_object) {}

  Ring<void*> objects;
  std::atomic<Call*> next_call{nullptr};
  Ring<Call> calls{next_call};
  // The thread that is making calls of this lane, by its slot; null: nobody.
  std::atomic<const void*> caller{nullptr};
  std::atomic<uint64_t> called{0};  // calls that have returned

  bool is_empty() const { return objects.is_empty() && calls.is_empty(); }
  uint64_t added() const { return objects.added() + calls.added(); }
  uint64_t freed() const { return objects.taken() + called.load(std::memory_order_relaxed); }
};

// Calls that were taken out of a lane, to be made by make().
class Calls {
 public:
  static constexpr uint32_t kMost = 32;

  Calls() = default;
  Calls(const Calls&) = delete;

  // Inside the lane: takes some of those that may be made, at most until so many have ever been taken. None while somebody makes others.
  void take(Deferred& deferred, Epoch upto, uint64_t until, const void* who) {
    Ring<Call>& ring = deferred.calls;
    // acquire: the calls before have returned. Pairs with the release in make().
    if (deferred.caller.load(std::memory_order_acquire) != nullptr) return;
    while (count_ < kMost && ring.taken() < until) {
      uint32_t n = ring.ready(upto);
      if (n == 0) break;
      if (n > kMost - count_) n = kMost - count_;
      if (n > until - ring.taken()) n = static_cast<uint32_t>(until - ring.taken());
      for (uint32_t i = 0; i < n; ++i) calls_[count_++] = ring.head()[i];
      ring.drop(n);
    }
    if (count_ == 0) return;
    from_ = &deferred;
    taken_ = ring.taken();
    deferred.caller.store(who, std::memory_order_relaxed);
  }

  // Outside. Returns how many there were.
  uint32_t make() {
    for (uint32_t i = 0; i < count_; ++i) calls_[i].free(calls_[i].context, calls_[i].object);
    if (count_ == 0) return 0;
    from_->called.store(taken_, std::memory_order_relaxed);
    from_->caller.store(nullptr, std::memory_order_release);
    return count_;
  }

 private:
  uint32_t count_ = 0;
  Deferred* from_ = nullptr;
  uint64_t taken_ = 0;
  Call calls_[kMost];
};

}  // namespace lanemalloc
