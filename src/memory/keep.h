// Keep: how much freed memory may stay dirty whatever its age. Learned from what it has cost to
// keep less.
// Called by: Runs. Locking: that of the runs; the limits may be read without it.
//
//   little is kept, pieces go back at once
//                               --> they are wanted again soon, and each page faults: regret
//   regret is more than a share of the time
//                               --> so much more is kept, up to kMostRegret or half of what lives
//   nobody regrets anything                 -->  half of that is given up in some seconds
//
// So a program that recycles large blocks settles at keeping them, one that has come down from a
// peak keeps little, and neither says which it is. What is kept is also given back by age
// (Runs::purge); that is no matter of regret.
#pragma once

#include "base/atomics.h"
#include "base/units.h"

namespace lanemalloc {

class Keep {
 public:
  // Blocks that may be dirty while others are taken that get memory only now; and without that,
  // where nobody gives back by age while the program sleeps. live: blocks in use.
  uint64_t while_growing(uint64_t live) const {
    return regret(live) + at_least(kLittle, live / 16);
  }
  uint64_t at_rest(uint64_t live) const { return regret(live) + at_least(kSome, live / 4); }

  // So many milliseconds have passed.
  void pass(uint64_t ms, uint64_t decay_ms) {
    credit_us_ += ms >= kMostCredit ? kMostCredit : ms * kShare;
    if (credit_us_ > kMostCredit) credit_us_ = kMostCredit;
    if ((since_given_ms_ += ms) >= decay_ms) given_ = 0;
    for (since_forgotten_ms_ += ms; since_forgotten_ms_ >= kForgetMs && regret_ != 0;
         since_forgotten_ms_ -= kForgetMs)
      regret_ = regret_ - (regret_ + kForgotten - 1) / kForgotten;
    since_forgotten_ms_ %= kForgetMs;
  }
  // Blocks were given back though they were young.
  void gave(uint64_t blocks) {
    given_ += blocks;
    since_given_ms_ = 0;
  }
  // Blocks without memory were taken.
  void took(uint64_t blocks, uint64_t live) {
    const uint64_t again = blocks < given_ ? blocks : given_;
    given_ -= again;
    const uint64_t paid = credit_us_ / kFaultUs < again ? credit_us_ / kFaultUs : again;
    credit_us_ -= paid * kFaultUs;
    if (paid == again) return;
    const uint64_t sum = regret_ + again - paid;
    const uint64_t most = at_least(kMostRegret, live / 2);
    regret_ = sum < most ? sum : most;
  }

 private:
  static constexpr uint64_t at_least(uint64_t least, uint64_t n) { return n < least ? least : n; }
  uint64_t regret(uint64_t live) const {
    const uint64_t most = at_least(kMostRegret, live / 2);
    const uint64_t regret = regret_;
    return regret < most ? regret : most;
  }

  static constexpr uint64_t kMiB = (1 << 20) >> kBlockShift;  // in blocks
  static constexpr uint64_t kLittle = kMiB;
  static constexpr uint64_t kSome = 8 * kMiB;
  static constexpr uint64_t kMostRegret = 256 * kMiB;
  static constexpr uint64_t kFaultUs = 16;  // to give a block back, and to fault it in again
  static constexpr uint64_t kShare = 10;    // microseconds a millisecond that this may take
  static constexpr uint64_t kMostCredit =
      4000;  // microseconds: of a process that begins, and of one that has slept
  static constexpr uint64_t kForgetMs = 250;
  static constexpr uint64_t kForgotten = 32;  // of so many parts one each time

  Relaxed<uint64_t> regret_ = 0;  // blocks that are kept besides
  uint64_t given_ = 0;            // back, and not taken since
  uint64_t credit_us_ = kMostCredit;
  uint64_t since_given_ms_ = 0;
  uint64_t since_forgotten_ms_ = 0;
};

}  // namespace lanemalloc
