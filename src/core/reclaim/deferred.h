// Deferred: what a lane has deferred: objects of malloc in one ring, and calls in another. It lies
// in blocks of its own, which the lane takes at its first deferred free and keeps.
// Called by: safepoints, inside the lane. Locking: none, except for `caller` and `called`.
//
// Objects are freed inside the lane, so that a thread enters once for many of them. Calls are made
// outside any lane. One thread at a time makes the calls of a lane, so that they end in their
// order; neighbours that are alike are one call. A call stays in the ring until it has returned. A
// fork child still has to make the calls that it finds there, except those that had begun.
#pragma once

#include "core/reclaim/ring.h"

namespace lanemalloc {

// What a deferred call is made of; frees of heaps' and pools' objects are calls. free(context,
// objects, n) is called with this object and those of the next calls that are alike.
struct Call {
  static constexpr uint32_t kMostAtOnce = 32;

  void (*free)(void* context, void** objects, size_t n);
  void* context;
  void* object;
};

struct Deferred {
  // next_object: the gate's word, for the quick path.
  explicit Deferred(std::atomic<void**>& next_object) : objects(next_object) {}

  Ring<void*> objects;
  std::atomic<Call*> next_call{nullptr};
  Ring<Call> calls{next_call};
  Call* call_limit = nullptr;  // below it a call is added, and nothing else is done
  // The thread that is making calls of this lane, by its slot; null if there is none. Set inside
  // the lane.
  std::atomic<const void*> caller{nullptr};
  std::atomic<uint64_t> begun{0};   // calls that have begun
  std::atomic<uint64_t> called{0};  // calls that have returned

  bool has_calls() const { return calls.added() != called.load(std::memory_order_relaxed); }
  bool is_empty() const { return objects.is_empty() && !has_calls(); }
  uint64_t added() const { return objects.added() + calls.added(); }
  // Includes the calls that take_out() has taken from those that wait.
  uint64_t freed() const {
    const uint64_t returned = called.load(std::memory_order_relaxed);
    uint64_t at = calls.taken(), taken_out = 0;
    calls.for_each(
        [&](const Call& call) { taken_out += at++ >= returned && call.free == nothing ? 1 : 0; });
    return objects.taken() + returned + taken_out;
  }

  // --- Inside the lane.
  FAST bool push_if_room(const Call& call) {
    if (UNLIKELY(next_call.load(std::memory_order_relaxed) >= call_limit)) return false;
    calls.push(call);
    return true;
  }
  // Frees the places of calls that have returned.
  void drop_called() {
    // acquire: the thread that has made a call has read it before. Pairs with [returned].
    const uint64_t n = called.load(std::memory_order_acquire) - calls.taken();
    if (n != 0) calls.drop(static_cast<uint32_t>(n));
  }
  // Takes out some calls with this context, and leaves calls that do nothing in their places. True
  // if there may be more: there are too many, or another thread is just making some.
  bool take_out(const void* context, const void* who, Call* out, uint32_t& n) {
    const void* making = caller.load(std::memory_order_acquire);
    if (making != nullptr && making != who) return true;
    drop_called();
    calls.for_each([&](Call& call) {
      if (n == Call::kMostAtOnce || call.context != context) return;
      out[n++] = call;
      call = {nothing, nullptr, nullptr};
    });
    return n == Call::kMostAtOnce;
  }

  // Stands in the place of a call that was taken out.
  static void nothing(void*, void**, size_t) {}

  // In a fork child: the calls that another thread was just making are lost.
  void forget_callers_but(const void* who) {
    if (caller.load(std::memory_order_relaxed) == who) return;
    called.store(begun.load(std::memory_order_relaxed), std::memory_order_relaxed);
    caller.store(nullptr, std::memory_order_relaxed);
  }

  void check_invariants() const {
    objects.check_invariants();
    calls.check_invariants();
    const uint64_t returned = called.load(std::memory_order_relaxed);
    CHECK(calls.taken() <= returned && returned <= calls.added());
  }
};

// Calls that one thread is to make.
class Calls {
 public:
  Calls() = default;
  Calls(const Calls&) = delete;

  // Inside the lane: takes the calls of its oldest batch, if they may be made, but none beyond the
  // first `until` calls that the lane ever had. Takes none while a thread makes others.
  void take(Deferred& deferred, Epoch upto, uint64_t until, const void* who) {
    Ring<Call>& ring = deferred.calls;
    // acquire: the calls before have returned. Pairs with [done].
    if (deferred.caller.load(std::memory_order_acquire) != nullptr) return;
    deferred.drop_called();
    count_ = ring.ready(upto);
    if (count_ > until - ring.taken()) count_ = static_cast<uint32_t>(until - ring.taken());
    if (count_ == 0) return;
    from_ = &deferred;
    first_ = ring.head();
    deferred.caller.store(who, std::memory_order_relaxed);
  }
  bool is_empty() const { return count_ == 0; }

  // Outside any lane. Returns how many calls there were. Adds to `freed` those that had not been
  // taken out before.
  uint32_t make(size_t& freed) {
    if (count_ == 0) return 0;
    uint64_t begun = from_->begun.load(std::memory_order_relaxed);
    for (uint32_t i = 0; i < count_;) {
      const Call call = first_[i];
      void* objects[Call::kMostAtOnce];
      uint32_t n = 0;
      do objects[n++] = first_[i++].object;
      while (n < Call::kMostAtOnce && i < count_ && first_[i].free == call.free &&
             first_[i].context == call.context);
      from_->begun.store(begun += n, std::memory_order_relaxed);
      call.free(call.context, objects, n);
      if (call.free != Deferred::nothing) freed += n;
      // release: a thread that uses the places again, or waits for the calls, comes after them
      // [returned].
      from_->called.store(begun, std::memory_order_release);
    }
    from_->caller.store(nullptr, std::memory_order_release);  // [done]
    return count_;
  }

 private:
  uint32_t count_ = 0;
  Deferred* from_ = nullptr;
  Call* first_ = nullptr;
};

}  // namespace lanemalloc
