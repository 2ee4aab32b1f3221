// How much of the freed runs is kept: by amount, by what giving back has cost, and by age.
#include "core/memory/keep.h"

#include <set>

#include "fixture.h"

namespace lanemalloc {
namespace {

constexpr uint64_t kMiB = (1 << 20) >> kBlockShift;  // in blocks

TEST(Keep, IsLittleWhereLittleLivesAndAShareOfMuch) {
  const Keep keep;
  EXPECT_EQ(keep.while_growing(0), kMiB);
  EXPECT_EQ(keep.while_growing(1600 * kMiB), 100 * kMiB);
  EXPECT_GE(keep.at_rest(0), keep.while_growing(0));
  EXPECT_EQ(keep.at_rest(1600 * kMiB), 400 * kMiB);
}

TEST(Keep, RisesByWhatIsTakenAgainSoonerThanTimePays) {
  Keep keep;
  const uint64_t before = keep.while_growing(0);
  for (int i = 0; i < 100; ++i) keep.gave(10 * kMiB), keep.took(10 * kMiB, 0);
  EXPECT_GT(keep.while_growing(0), before + 100 * kMiB);
  for (int i = 0; i < 1000; ++i) keep.gave(10 * kMiB), keep.took(10 * kMiB, 0);
  EXPECT_EQ(keep.while_growing(0), before + 256 * kMiB);
  EXPECT_EQ(keep.while_growing(64 * kMiB), 4 * kMiB + 256 * kMiB);
}

TEST(Keep, MayRiseToHalfOfWhatLives) {
  Keep keep;
  for (int i = 0; i < 1000; ++i) keep.gave(10 * kMiB), keep.took(10 * kMiB, 3200 * kMiB);
  EXPECT_EQ(keep.while_growing(3200 * kMiB), 200 * kMiB + 1600 * kMiB);
  EXPECT_EQ(keep.while_growing(0), kMiB + 256 * kMiB);
}

TEST(Keep, StaysWhereMemoryIsOnlyGivenBackOrOnlyTaken) {
  Keep keep;
  for (int i = 0; i < 1000; ++i) keep.took(kMiB, 0);
  EXPECT_EQ(keep.while_growing(0), kMiB);
  for (int i = 0; i < 1000; ++i) keep.gave(kMiB);
  EXPECT_EQ(keep.while_growing(0), kMiB);
}

TEST(Keep, StaysWhereItCostsASmallShareOfTheTime) {
  Keep keep;
  for (int i = 0; i < 1000; ++i) {
    keep.pass(100, 1000);
    keep.gave(3 * kMiB);
    keep.took(3 * kMiB, 0);
  }
  EXPECT_EQ(keep.while_growing(0), kMiB);
}

TEST(Keep, WhatIsTakenMuchLaterIsNoRegret) {
  Keep keep;
  for (int i = 0; i < 100; ++i) {
    keep.gave(100 * kMiB);
    keep.pass(1000, 1000);
    keep.took(100 * kMiB, 0);
  }
  EXPECT_EQ(keep.while_growing(0), kMiB);
}

TEST(Keep, IsForgottenInTime) {
  Keep keep;
  for (int i = 0; i < 100; ++i) keep.gave(10 * kMiB), keep.took(10 * kMiB, 0);
  const uint64_t much = keep.while_growing(0);
  keep.pass(1000, 1000);
  EXPECT_GT(keep.while_growing(0), much / 5 * 4);
  keep.pass(10000, 1000);
  EXPECT_LT(keep.while_growing(0), much / 2);
  keep.pass(1000000, 1000);
  EXPECT_EQ(keep.while_growing(0), kMiB);
}

class KeptRunsTest : public FakeTest {
 protected:
  void SetUp() override {
    FakeTest::SetUp();
    Fake::limit = Bytes{2} << 30;
    ASSERT_TRUE(region_.start(1 << 20, false));
    runs_.start(false, kDecay);
    runs_.set_scavenged(!config().single);
  }
  void TearDown() override {
    EXPECT_HOLDS(runs_.check_invariants());
    FakeTest::TearDown();
  }
  BlockIndex take(BlockCount n) {
    const BlockIndex at = runs_.reuse(n, 1, visit_);
    return at != Runs<Fake>::kNone ? at : runs_.allocate(n, 1, visit_).at;
  }
  void give(BlockIndex at, BlockCount n) { runs_.free(at, n, visit_); }
  uint64_t purged() const { return runs_.statistics().purged >> kBlockShift; }
  uint64_t dirty() const { return runs_.statistics().dirty >> kBlockShift; }
  uint64_t resident() const {
    return (runs_.statistics().claimed - runs_.statistics().clean) >> kBlockShift;
  }

  static constexpr int64_t kDecay = 1000;
  Region<Fake> region_;
  Runs<Fake> runs_{region_};
  int me_ = 0;
  Visit visit_{&me_, true};
};

// With one thread and with several: runs that a request cannot use do not let memory grow.
TEST_ALL_CONFIGS(KeptRunsTest, PiecesThatDoNotFitGoBackWhereMemoryGrows) {
  std::vector<BlockIndex> pieces;
  for (int i = 0; i < 100; ++i) pieces.push_back(take(4)), take(1);
  for (BlockIndex at : pieces) give(at, 4);
  const uint64_t before = resident();
  for (int i = 0; i < 10; ++i) take(8);
  EXPECT_LE(resident(), before + 8);
}

TEST_ALL_CONFIGS(KeptRunsTest, ADirtyRunIsTakenWithTheCleanOneBehindIt) {
  const BlockIndex a = take(10);
  give(a, 10);
  const uint64_t before = resident();
  const lanemalloc::Run both = runs_.allocate(14, 1, visit_);
  EXPECT_EQ(both.at, a);
  EXPECT_FALSE(both.zeroed);
  EXPECT_EQ(resident(), before + 4);
  give(a, 14);
  EXPECT_EQ(take(14), a);
}

TEST_ALL_CONFIGS(KeptRunsTest, ADirtyRunIsTakenWithTheCleanOneBeforeIt) {
  const BlockIndex a = take(10), b = take(10);
  take(1);
  give(a, 10);
  runs_.purge(Runs<Fake>::kAll, visit_);
  give(b, 10);
  const uint64_t before = resident();
  EXPECT_EQ(take(14), b - 4);
  EXPECT_EQ(resident(), before + 4);
  runs_.check_invariants();
  EXPECT_EQ(take(6), a);  // what was left of the clean run
}

TEST_ALL_CONFIGS(KeptRunsTest, AShortDirtyRunIsLeftForWhomItFits) {
  const BlockIndex a = take(4);
  give(a, 4);
  EXPECT_NE(take(10), a);
  EXPECT_EQ(take(4), a);
}

TEST_ALL_CONFIGS(KeptRunsTest, LargeBlocksThatAreReplacedAreSoonKept) {
  Random random(5);
  std::vector<std::pair<BlockIndex, BlockCount>> live;
  uint64_t half = 0;
  for (int i = 0; i < 3000; ++i) {
    if (i % 20 == 0) Fake::clock += 4;
    const auto n = static_cast<BlockCount>(random.between(40, 200));
    const BlockIndex at = take(n);
    if (live.size() == 20) {
      const size_t old = random.below(20);
      give(live[old].first, live[old].second);
      live[old] = {at, n};
    } else {
      live.emplace_back(at, n);
    }
    if (i == 1500) half = purged();
  }
  EXPECT_LE(purged() - half, 1500u * 120 / 50);  // a fiftieth of what was taken meanwhile
}

// A process with one thread has no scavenger that would do it.
TEST_ALL_CONFIGS(KeptRunsTest, WhatIsFreeForLongGoesBackAtTheNextFree) {
  if (!config().single) return;
  const BlockIndex a = take(50), used = take(1), later = take(1);
  take(1);
  give(a, 50);
  Fake::clock += kDecay / 2;
  give(later, 1);
  EXPECT_EQ(dirty(), 51u);
  Fake::clock += kDecay;
  give(used, 1);  // merges with both: the rest has gone back by then
  EXPECT_GE(purged(), 50u);
  EXPECT_LE(dirty(), 2u);
}

TEST_ALL_CONFIGS(KeptRunsTest, MuchGoesBackInPartsWithinAShareOfTheTime) {
  if (!config().single) return;
  const BlockIndex much = take(8000);
  std::vector<BlockIndex> little;
  for (int i = 0; i < 40; ++i) little.push_back(take(1)), take(1);
  for (int i = 0; i < 4; ++i) take(8000);  // so that a quarter of what lives is kept
  give(much, 8000);
  Fake::clock += 2 * kDecay;
  give(little[0], 1);
  const uint64_t once = purged();
  EXPECT_GT(once, 0u);
  EXPECT_LE(once, 1100u);
  give(little[1], 1);
  EXPECT_EQ(purged(), once) << "no time has passed";
  for (int i = 2; i < 40; ++i) Fake::clock += kDecay / 4, give(little[static_cast<size_t>(i)], 1);
  EXPECT_GE(purged(), 8000u);
}

TEST_ALL_CONFIGS(KeptRunsTest, WithoutDecayNothingGoesBackByAgeOrForGrowth) {
  runs_.start(false, -1);
  std::vector<BlockIndex> pieces;
  for (int i = 0; i < 1000; ++i) pieces.push_back(take(4)), take(1);
  for (BlockIndex at : pieces) give(at, 4);
  Fake::clock += 100 * kDecay;
  give(take(1), 1);
  for (int i = 0; i < 40; ++i) take(8);
  EXPECT_EQ(purged(), 0u);
}

class BigSlabsTest : public EngineTest {
 protected:
  Bytes touched() {
    const RunStatistics runs = statistics().runs;
    return runs.claimed - runs.clean;
  }
};

TEST_ALL_CONFIGS(BigSlabsTest, OneOfManySizesTakesNoMoreThanTheLargestAndAMiB) {
  Slot& t = thread();
  give(t, take(t, 1));
  const Bytes before = touched();
  for (int round = 0; round < 3; ++round)
    for (Bytes size = 64 << 10; size <= 2 * kSlabMax; size += 50000) give(t, take(t, size));
  EXPECT_LE(touched(), before + 2 * kSlabMax + (1 << 20));
}

TEST_ALL_CONFIGS(BigSlabsTest, TheLastEmptyOneServesItsClassAgainWithoutTheRuns) {
  Slot& t = thread();
  give(t, take(t, 128 << 10));
  const uint64_t made = statistics().slabs_made;
  void* p = take(t, 128 << 10);
  give(t, p);
  EXPECT_EQ(lane_of(t)->empty_blocks(), 2u);
  EXPECT_EQ(take(t, 128 << 10), p);
  EXPECT_EQ(statistics().slabs_made, made);
  give(t, p);
  // Another size takes that slab's memory. (A thread that owns no lane enters none for a large
  // object.)
  void* other = take(t, 100 << 10);
  EXPECT_EQ(lane_of(t)->empty_blocks(), 0u);
  give(t, other);
  EXPECT_EQ(lane_of(t)->empty_blocks(), slab_blocks_of(class_of(100 << 10)));
  void* large = take(t, kSlabMax + 1);
  if (is_owned()) {
    EXPECT_EQ(lane_of(t)->empty_blocks(), 0u);
  }
  give(t, large);
}

TEST_ALL_CONFIGS(BigSlabsTest, HaveTheirObjectsOutOfNoBin) {
  Slot& t = thread();
  constexpr Bytes kSize = 72 << 10;
  const uint32_t n = capacity_of(class_of(kSize));
  ASSERT_GT(n, 1u);
  std::vector<void*> all;
  for (uint32_t i = 0; i < 2 * n; ++i) all.push_back(take(t, kSize));
  for (void* p : all) give(t, p);
  EXPECT_EQ(lane_of(t)->empty_blocks(), slab_blocks_of(class_of(kSize)));
  EXPECT_EQ(statistics().live_objects, 0u);
  const std::set<void*> before(all.begin(), all.end());
  EXPECT_EQ(before.count(take(t, kSize)), 1u);
}

TEST_ALL_CONFIGS(BigSlabsTest, ABlockThatGrowsStaysWhereItIs) {
  Slot& t = thread();
  give(t, take(t, 8 << 20));
  void* p = take(t, 40000);
  int moves = 0;
  for (Bytes size = 50000; size < 3 << 20; size += 30000) {
    const Found found = engine().pointers().find(p);
    void* q = engine().reallocate(p, found.word, size, t);
    ASSERT_NE(q, nullptr);
    moves += q != p;
    p = q;
  }
  EXPECT_LE(moves, 2);
  give(t, p);
}

}  // namespace
}  // namespace lanemalloc
