// Keep: how much freed memory may stay dirty, whatever its age. It learns that from what keeping
// less has cost.
// Called by: Runs. Locking: under the lock of the runs; the limits may be read without it.
//
//   little is kept, pieces go back at once
//                               --> the program soon wants them again, and each page faults: regret
//   regret takes more than a share of the time
//                               --> that much more is kept, up to kMostRegret or half of what lives
//   nothing is regretted any more -->  half of that is given up in some seconds
//
// So a program that recycles large blocks settles at keeping them, and one that has come down from
// a peak keeps little. Neither has to say which it is. Memory that is kept also goes back by age
// (Runs::purge); that causes no regret.
#pragma once

#include "core/base/atomics.h"
#include "core/base/units.h"

namespace lanemalloc {

class Keep {
 public:
  // How many blocks may be dirty: while the program takes others, which get memory only now; and at
  // other times, if no scavenger gives memory back by age while the program sleeps. live: blocks in
  // use.
  uint64_t while_growing(uint64_t live) const {
    return regret(live) + at_least(kLittle, live / 16);
  }
  uint64_t at_rest(uint64_t live) const { return regret(live) + at_least(kSome, live / 4); }

  // That many milliseconds have passed.
  void pass(uint64_t ms, uint64_t decay_ms) {
    credit_us_ += ms >= kMostCredit ? kMostCredit : ms * kShare;
    if (credit_us_ > kMostCredit) credit_us_ = kMostCredit;
    if ((since_given_ms_ += ms) >= decay_ms) given_ = 0;
    for (since_forgotten_ms_ += ms; since_forgotten_ms_ >= kForgetMs && regret_ != 0;
         since_forgotten_ms_ -= kForgetMs)
      regret_ = regret_ - (regret_ + kForgotten - 1) / kForgotten;
    since_forgotten_ms_ %= kForgetMs;
  }
  // Blocks were given back although they were young.
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
  static constexpr uint64_t kShare = 10;    // microseconds per millisecond that this may take
  static constexpr uint64_t kMostCredit =
      4000;  // microseconds: what a process has that begins, or has slept
  static constexpr uint64_t kForgetMs = 250;
  static constexpr uint64_t kForgotten = 32;  // one part of this many goes each time

  Relaxed<uint64_t> regret_ = 0;  // blocks that are kept in addition
  uint64_t given_ = 0;            // blocks given back, and not taken since
  uint64_t credit_us_ = kMostCredit;
  uint64_t since_given_ms_ = 0;
  uint64_t since_forgotten_ms_ = 0;
};

}  // namespace lanemalloc
