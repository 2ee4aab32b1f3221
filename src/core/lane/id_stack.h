// IdStack: a lock-free stack of small numbers, here of idle lanes. The caller keeps the links, one
// for each number.
// Called by: lane table. Locking: none.
//
// Why it is right. The head is a number and a tag in one 64-bit word; every successful push and pop
// raises the tag. A pop reads the head and then the link of its number. If between that and its
// compare-exchange the number was popped and pushed again (ABA), the tag has changed and the
// exchange fails. A pop is fooled only if the tag wraps: by 2^32 operations within that one pop.
// Links are never unmapped, so reading a stale one is harmless.
#pragma once

#include <cstdint>

#include "core/base/contention.h"

namespace lanemalloc {

template <class Atomics = Hardware>
class IdStack {
 public:
  using Link = typename Atomics::template atomic<uint32_t>;
  static constexpr uint32_t kNone = 0;  // no member has this number

  // link(id) returns the Link of a member.
  template <class LinkOf>
  void push(uint32_t id, LinkOf link) {
    uint64_t head = head_.load(std::memory_order_relaxed);
    for (;;) {
      link(id).store(number(head), std::memory_order_relaxed);
      // release: publishes the link, and what the pusher did to the lane, to [idle.pop].
      if (head_.compare_exchange_weak(head, next_tag(head) | id, std::memory_order_release,
                                      std::memory_order_relaxed))
        return tries_.done();
      tries_.failed();
    }
  }

  // Returns a member, or kNone.
  template <class LinkOf>
  uint32_t pop(LinkOf link) {
    // acquire: sees the link of the member at the head. Pairs with the release in push()
    // [idle.pop].
    uint64_t head = head_.load(std::memory_order_acquire);
    while (number(head) != kNone) {
      const uint32_t below = link(number(head)).load(std::memory_order_relaxed);
      if (head_.compare_exchange_weak(head, next_tag(head) | below, std::memory_order_acquire,
                                      std::memory_order_acquire)) {
        tries_.done();
        return number(head);
      }
      tries_.failed();
    }
    return kNone;
  }

  const Tries<Atomics>& tries() const { return tries_; }

 private:
  SHOWN_BY_LAYOUT;

  static uint32_t number(uint64_t head) { return static_cast<uint32_t>(head); }
  static uint64_t next_tag(uint64_t head) { return ((head >> 32) + 1) << 32; }

  typename Atomics::template atomic<uint64_t> head_{0};
  Tries<Atomics> tries_;
};

}  // namespace lanemalloc
