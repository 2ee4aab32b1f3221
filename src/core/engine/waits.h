// Waits: tells threads that mostly wait from threads that mostly run, for lanes=auto. Threads that
// do little between two waits are best served from what the last thread left warm. Threads that
// run, or wait only after much work, are faster with a lane each.
// Called by: engine, once per pass of the scavenger. Locking: none; one caller at a time.
#pragma once

#include "core/base/units.h"

namespace lanemalloc {

class Waits {
 public:
  enum class Say : uint8_t { kNothing, kTheyWait, kTheyRun };

  // Objects that a thread allocates between two waits. Threads of a server come to some 60. Threads
  // that hand messages over in portions come to 170 and more (docs/design/0010-auto.md).
  static constexpr uint64_t kFew = 128;
  static constexpr uint64_t kMany = 2048;
  // This number of waits, or this number times kMany objects, tells something.
  static constexpr uint64_t kSomeWaits = 64;
  static constexpr uint32_t kInARow = 3;  // passes; only those that tell something count

  // allocated: objects, less those that lanes at rest gave back; waited: times. Both count since
  // the process began. In a fork child `waited` has gone back, and counting begins anew.
  Say look(uint64_t allocated, uint64_t waited) {
    if (waited < waited_) {
      *this = Waits();
      allocated_ = allocated;
      waited_ = waited;
      return Say::kNothing;
    }
    const uint64_t objects = allocated > allocated_ ? allocated - allocated_ : 0,
                   waits = waited - waited_;
    if (waits < kSomeWaits && objects < kSomeWaits * kMany) return Say::kNothing;
    allocated_ = allocated;
    waited_ = waited;
    const Say now = objects < waits * kFew    ? Say::kTheyWait
                    : objects > waits * kMany ? Say::kTheyRun
                                              : Say::kNothing;
    in_a_row_ = now == last_ ? in_a_row_ + 1 : 1;
    last_ = now;
    return in_a_row_ >= kInARow ? now : Say::kNothing;
  }

 private:
  uint64_t allocated_ = 0;
  uint64_t waited_ = 0;
  Say last_ = Say::kNothing;
  uint32_t in_a_row_ = 0;
};

}  // namespace lanemalloc
