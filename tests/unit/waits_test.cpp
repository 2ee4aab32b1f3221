// Waits: when threads are said to wait, and when to run.
#include "core/engine/waits.h"

#include "fixture.h"

namespace lanemalloc {
namespace {

class WaitsTest : public testing::Test {
 protected:
  using Say = Waits::Say;
  // Makes n passes. Each sees `objects` and `waits` more. Returns what the last one said.
  Say passes(int n, uint64_t objects, uint64_t waits) {
    Say say = Say::kNothing;
    for (int i = 0; i < n; ++i) say = waits_.look(allocated_ += objects, waited_ += waits);
    return say;
  }
  Waits waits_;
  uint64_t allocated_ = 0, waited_ = 0;
};

TEST_F(WaitsTest, SaysWhatIsSoForSomePassesInARow) {
  EXPECT_EQ(passes(1, 0, 0), Say::kNothing);
  EXPECT_EQ(passes(2, 50 * 1000, 1000), Say::kNothing);
  EXPECT_EQ(passes(1, 50 * 1000, 1000), Say::kTheyWait);
  EXPECT_EQ(passes(5, 50 * 1000, 1000), Say::kTheyWait);
  EXPECT_EQ(passes(2, 5000 * 1000, 1000), Say::kNothing);
  EXPECT_EQ(passes(1, 5000 * 1000, 1000), Say::kTheyRun);
}

TEST_F(WaitsTest, OnePassThatIsOtherwiseBeginsTheRowAnew) {
  passes(3, 50 * 1000, 1000);
  passes(1, 5000 * 1000, 1000);
  EXPECT_EQ(passes(2, 50 * 1000, 1000), Say::kNothing);
  EXPECT_EQ(passes(1, 50 * 1000, 1000), Say::kTheyWait);
}

TEST_F(WaitsTest, BetweenFewAndManyItSaysNothing) {
  for (uint64_t objects : {Waits::kFew, uint64_t{500}, Waits::kMany})
    EXPECT_EQ(passes(10, objects * 1000, 1000), Say::kNothing) << objects;
  EXPECT_EQ(passes(3, (Waits::kFew - 1) * 1000, 1000), Say::kTheyWait);
  EXPECT_EQ(passes(3, (Waits::kMany + 1) * 1000, 1000), Say::kTheyRun);
}

TEST_F(WaitsTest, ThreadsThatNeverWaitRun) { EXPECT_EQ(passes(4, 1'000'000, 0), Say::kTheyRun); }

// One pass of a quiet process tells nothing; several together tell something.
TEST_F(WaitsTest, LittleIsCountedOn) {
  passes(1, 0, 0);
  EXPECT_EQ(passes(3, 100, Waits::kSomeWaits / 2), Say::kNothing);
  EXPECT_EQ(passes(3, 100, Waits::kSomeWaits / 2), Say::kTheyWait);
}

// A fork child's threads have waited less often than its parent's.
TEST_F(WaitsTest, WhereWaitsGoBackCountingBeginsAnew) {
  passes(3, 50 * 1000, 1000);
  waited_ = 0;
  EXPECT_EQ(passes(1, 50 * 1000, 1000), Say::kNothing);
  EXPECT_EQ(passes(2, 50 * 1000, 1000), Say::kNothing);
  EXPECT_EQ(passes(1, 50 * 1000, 1000), Say::kTheyWait);
}

// Lanes at rest give back more than a quiet process allocates meanwhile.
TEST_F(WaitsTest, WhereObjectsGoBackNoneWereAllocated) {
  passes(2, 50 * 1000, 1000);
  allocated_ -= 500;
  EXPECT_EQ(passes(1, 0, 1000), Say::kTheyWait);
  EXPECT_EQ(passes(1, 50 * 1000, 1000), Say::kTheyWait);
}

}  // namespace
}  // namespace lanemalloc
