// ProbeOrders: the orders in which the lanes of a pool may be tried, without a division
// (entry/shared.h says what for).
// Called by: lane table (set), shared entry. Locking: one caller of set() at a time; readers may
// see the tables half done.
//
// start, start + step, start + 2 * step, .. modulo n visits every number below n once before it
// comes back, if n and step share no divisor: i * step == j * step modulo n means that n divides (i
// - j) * step, and so n divides i - j.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/base/contention.h"

namespace lanemalloc {

// r % n without a division, exact for every 32-bit r. Source: Lemire, Kaser, Kurz: Faster remainder
// by direct computation.
class Modulus {
 public:
  void set(uint32_t n) {
    n_.store(n, std::memory_order_relaxed);
    reciprocal_.store(~uint64_t{0} / n + 1, std::memory_order_relaxed);
  }
  uint32_t n() const { return n_.load(std::memory_order_relaxed); }
  uint32_t of(uint32_t r) const {
    const uint64_t fraction = reciprocal_.load(std::memory_order_relaxed) * r;
    return high_half(fraction, n());
  }

 private:
  SHOWN_BY_LAYOUT;

  // The part above the lowest 64 bits of a 64 by 32 bit product, which has 96.
  static uint32_t high_half(uint64_t a, uint32_t b) {
    const uint64_t low = (a & 0xFFFFFFFF) * b;
    return static_cast<uint32_t>(((a >> 32) * b + (low >> 32)) >> 32);
  }

  std::atomic<uint32_t> n_{1};
  std::atomic<uint64_t> reciprocal_{0};  // 2^64 / n, rounded up; 0 for n = 1
};

// The orders in which the lanes of a pool may be tried.
class ProbeOrders {
 public:
  static constexpr uint32_t kMostLanes = 4096;

  // 1 <= n <= kMostLanes. One caller at a time.
  void set(uint32_t n) {
    uint32_t count = 0;
    for (uint32_t step = 1; step <= n; ++step)
      if (greatest_common_divisor(step, n) == 1)
        steps_[count++].store(static_cast<uint16_t>(step % n), std::memory_order_relaxed);
    step_count_.set(count);
    lanes_.set(n);
  }
  uint32_t lanes() const { return lanes_.n(); }
  uint32_t step_count() const { return step_count_.n(); }
  uint32_t start(uint32_t r) const { return lanes_.of(r); }
  uint32_t step(uint32_t r) const {
    return steps_[step_count_.of(r)].load(std::memory_order_relaxed);
  }
  uint32_t next(uint32_t lane, uint32_t step) const {
    const uint32_t to = lane + step;
    return to >= lanes() ? to - lanes() : to;
  }

 private:
  SHOWN_BY_LAYOUT;

  static uint32_t greatest_common_divisor(uint32_t a, uint32_t b) {
    while (b != 0) {
      const uint32_t rest = a % b;
      a = b;
      b = rest;
    }
    return a;
  }

  Modulus lanes_;
  Modulus step_count_;
  std::atomic<uint16_t> steps_[kMostLanes]{};
};

}  // namespace lanemalloc
