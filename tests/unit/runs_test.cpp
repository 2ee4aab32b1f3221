// Runs: free runs of blocks against a model of intervals, over a fake platform that keeps books of
// its own.
#include "core/memory/runs.h"

#include <map>
#include <set>

#include "fixture.h"

namespace lanemalloc {
namespace {

using FakeRuns = Runs<Fake>;

// Two words of each block. They are enough to see which stamp lies where.
constexpr Bytes kSpots[] = {0, kBlockSize - sizeof(uint64_t)};

class RunsTest : public FakeTest {
 protected:
  void SetUp() override {
    FakeTest::SetUp();
    ASSERT_TRUE(region_.start(1 << 20, false));
  }
  void TearDown() override {
    EXPECT_HOLDS(check());
    FakeTest::TearDown();
  }

  void start(bool unmap, int64_t decay_ms) {
    Fake::maps_are_charged = unmap;
    runs_.start(unmap, decay_ms);
    runs_.set_scavenged(!config().single);
  }

  // The core's invariants, and those that a walk over all blocks shows: no two neighbours are free
  // in the same condition, and the two ends of every run agree.
  void check() {
    runs_.check_invariants();
    BlockKind before = BlockKind::kUnknown;
    for (BlockIndex b = 0; b < region_.frontier();) {
      const BlockState& state = region_.state(b);
      const BlockKind kind = state.kind;
      if (kind == BlockKind::kUnknown) {
        before = kind;
        ++b;
        continue;
      }
      ASSERT_GT(state.length, 0u);
      ASSERT_TRUE(state.is_first) << "run at " << b;  // so that salvage() finds it
      ASSERT_LE(b + state.length, region_.frontier());
      const BlockState& last = region_.state(b + state.length - 1);
      ASSERT_EQ(last.kind, kind) << "run at " << b;
      ASSERT_EQ(last.length, state.length) << "run at " << b;
      if (kind > BlockKind::kWaiting) {
        ASSERT_NE(kind, before) << "neighbours at " << b << " are not merged";
      }
      before = kind;
      b += state.length;
    }
  }

  uint64_t& word(BlockIndex block, Bytes spot) {
    return *reinterpret_cast<uint64_t*>(region_.address_of(block) + spot);
  }
  void stamp(BlockIndex at, BlockCount n, uint64_t mark) {
    for (BlockIndex b = at; b < at + n; ++b)
      for (Bytes spot : kSpots) word(b, spot) = mark;
  }
  bool is_stamped(BlockIndex at, BlockCount n, uint64_t mark) {
    for (BlockIndex b = at; b < at + n; ++b)
      for (Bytes spot : kSpots)
        if (word(b, spot) != mark) return false;
    return true;
  }
  RunStatistics blocks() {
    RunStatistics s = runs_.statistics();
    for (uint64_t* n : {&s.claimed, &s.dirty, &s.clean, &s.purged, &s.moved}) *n >>= kBlockShift;
    return s;
  }
  BlockIndex take(BlockCount n, BlockCount align = 1) {
    const lanemalloc::Run run = runs_.allocate(n, align, visit_);
    EXPECT_NE(run.at, FakeRuns::kNone);
    return run.at;
  }

  Region<Fake> region_;
  FakeRuns runs_{region_};
  int me_ = 0, other_ = 0;
  Visit visit_{&me_, true};
  Visit handler_{&me_, false};  // may not wait
  Visit holder_{&other_, true};
};

TEST_ALL_CONFIGS(RunsTest, GiveWhatFitsBestAndMergeNeighbours) {
  start(false, -1);
  const BlockIndex a = take(3), b = take(5), c = take(2), d = take(1);
  EXPECT_EQ(b, a + 3);
  EXPECT_EQ(c, b + 5);
  runs_.free(a, 3, visit_);
  runs_.free(c, 2, visit_);
  EXPECT_EQ(take(2), c);  // exact fit, though the longer one is free too
  runs_.free(c, 2, visit_);
  runs_.free(b, 5, visit_);
  EXPECT_EQ(take(10), a);  // all three are one run again
  EXPECT_EQ(blocks().dirty, 0u);
  EXPECT_EQ(d, a + 10);
}

TEST_ALL_CONFIGS(RunsTest, FreshRunsReadAsZerosAndUsedOnesSaySo) {
  start(false, -1);
  const lanemalloc::Run fresh = runs_.allocate(4, 1, visit_);
  EXPECT_TRUE(fresh.zeroed);
  EXPECT_TRUE(is_stamped(fresh.at, 4, 0));
  stamp(fresh.at, 4, 77);
  runs_.free(fresh.at, 4, visit_);
  const lanemalloc::Run again = runs_.allocate(4, 1, visit_);
  EXPECT_EQ(again.at, fresh.at);
  EXPECT_FALSE(again.zeroed);
  runs_.free(again.at, 4, visit_);
  EXPECT_EQ(runs_.purge(~0u, visit_), bytes_of(4));
  const lanemalloc::Run purged = runs_.allocate(4, 1, visit_);
  EXPECT_TRUE(purged.zeroed);
  EXPECT_TRUE(is_stamped(purged.at, 4, 0));
}

TEST_ALL_CONFIGS(RunsTest, AreAlignedToWhatIsAsked) {
  start(false, -1);
  for (BlockCount align = 1; align <= 1024; align *= 2) {
    const BlockIndex at = take(3, align);
    EXPECT_EQ(region_.address_of(at) % bytes_of(align), 0u) << align;
  }
}

TEST_ALL_CONFIGS(RunsTest, DecayReachesTheOldestFirstAndNothingYounger) {
  start(false, 1000);
  std::vector<BlockIndex> at;
  for (int i = 0; i < 6; ++i) at.push_back(take(2)), take(1);  // used ones between keep them apart
  std::vector<uint32_t> freed;
  for (BlockIndex a : at) {
    freed.push_back(runs_.epoch());
    runs_.free(a, 2, visit_);
    runs_.advance_epoch();
  }
  for (size_t i = 0; i < at.size(); ++i) {
    EXPECT_EQ(runs_.purge(freed[i] - 1, visit_), 0u);
    EXPECT_EQ(blocks().dirty, 2 * (at.size() - i));
    EXPECT_EQ(runs_.purge(freed[i], visit_), bytes_of(2));
    EXPECT_EQ(region_.state(at[i]).kind, BlockKind::kClean);
  }
  EXPECT_FALSE(runs_.has_dirty());
}

TEST_ALL_CONFIGS(RunsTest, AMergedRunIsAsOldAsItsOldestPart) {
  start(false, 1000);
  const BlockIndex a = take(2), b = take(2);
  take(1);
  const uint32_t old = runs_.epoch();
  runs_.free(a, 2, visit_);
  for (int i = 0; i < 5; ++i) runs_.advance_epoch();
  runs_.free(b, 2, visit_);
  EXPECT_EQ(runs_.purge(old, visit_), bytes_of(4));
}

TEST_ALL_CONFIGS(RunsTest, WhatExtendLeavesOfARunKeepsItsAge) {
  start(false, 1000);
  const BlockIndex a = take(2), b = take(8);
  take(1);
  const uint32_t old = runs_.epoch();
  runs_.free(b, 8, visit_);
  for (int i = 0; i < 5; ++i) runs_.advance_epoch();
  ASSERT_TRUE(runs_.extend(a, 2, 4, visit_));
  EXPECT_EQ(runs_.purge(old, visit_), bytes_of(6))
      << "growing step by step keeps what lies behind young for ever";
}

TEST_ALL_CONFIGS(RunsTest, WhatAllocateLeavesOfARunKeepsItsAge) {
  start(false, 1000);
  const BlockIndex a = take(8);
  take(1);
  const uint32_t old = runs_.epoch();
  runs_.free(a, 8, visit_);
  for (int i = 0; i < 5; ++i) runs_.advance_epoch();
  EXPECT_EQ(take(3), a);
  EXPECT_EQ(runs_.purge(old, visit_), bytes_of(5));
}

TEST_ALL_CONFIGS(RunsTest, WhatAHandlerUnmapsAndCannotPutBackIsNotHandedOutAsMemory) {
  start(true, 1000);
  runs_.free(take(4), 4, visit_);
  int other = 0;
  Visit holder(&other, true);
  Fake::on_release = [&] { ASSERT_TRUE(runs_.lock().try_acquire(holder)); };
  EXPECT_EQ(runs_.purge(~0u, handler_), bytes_of(4));
  runs_.lock().release(holder);
  const BlockIndex at = take(4);
  stamp(at, 4, 1);
  EXPECT_TRUE(is_stamped(at, 4, 1));
  EXPECT_EQ(Fake::claimed_blocks(), blocks().claimed);
}

TEST_ALL_CONFIGS(RunsTest, ALongRunIsPurgedInPiecesThatEndWithHugePages) {
  start(false, -1);  // purged when the test says so
  const BlockIndex a = take(300);
  runs_.free(a, 300, visit_);
  const uint64_t before = Fake::calls(Fake::Call::kEmpty);
  EXPECT_EQ(runs_.purge(~0u, visit_), bytes_of(300));
  EXPECT_GE(Fake::calls(Fake::Call::kEmpty) - before, 300u / 64);
  EXPECT_EQ(blocks().purged, 300u);
  EXPECT_EQ(take(300), a);  // merged again
}

TEST_ALL_CONFIGS(RunsTest, WhatCannotBeEmptiedIsUnmapped) {
  start(false, 1000);
  const BlockIndex a = take(10);
  runs_.free(a, 10, visit_);
  Fake::fail(Fake::Call::kEmpty, 1);
  EXPECT_EQ(runs_.purge(~0u, visit_), bytes_of(10));
  EXPECT_EQ(blocks().dirty, 0u);
  EXPECT_EQ(region_.state(a).kind, BlockKind::kAbsent);
  EXPECT_EQ(blocks().claimed, Fake::claimed_blocks());
}

TEST_ALL_CONFIGS(RunsTest, WhatTheSystemDoesNotTakeStaysDirtyAndKeepsNothingElse) {
  start(true, 1000);
  std::vector<BlockIndex> at;
  for (int i = 0; i < 5; ++i) at.push_back(take(10)), take(1);
  for (BlockIndex a : at) runs_.free(a, 10, visit_), runs_.advance_epoch();
  Fake::fail_once(Fake::Call::kRelease, 1);
  EXPECT_EQ(runs_.purge(runs_.epoch(), visit_), bytes_of(40)) << "the younger ones have their turn";
  EXPECT_EQ(blocks().dirty, 10u);
  EXPECT_TRUE(runs_.has_more_to_give());
  Fake::fail(Fake::Call::kRelease, 1);
  EXPECT_EQ(runs_.purge(~0u, visit_), 0u);
  EXPECT_FALSE(runs_.has_more_to_give()) << "nobody tries for ever";
  Fake::fail_never();
  runs_.free(take(1), 1, visit_);
  EXPECT_TRUE(runs_.has_more_to_give());
  runs_.advance_epoch();
  runs_.purge(~0u, visit_);
  EXPECT_EQ(blocks().dirty, 0u);
}

TEST_ALL_CONFIGS(RunsTest, OnceMemoryWasRefusedWhatIsGivenBackIsUnmapped) {
  start(false, 1000);
  const BlockIndex a = take(10);
  take(1);
  Fake::fail(Fake::Call::kClaim, 1);
  EXPECT_EQ(runs_.allocate(5000, 1, visit_).at, FakeRuns::kNone);
  Fake::fail_never();
  runs_.free(a, 10, visit_);
  EXPECT_EQ(runs_.purge(~0u, visit_), bytes_of(10));
  EXPECT_EQ(region_.state(a).kind, BlockKind::kAbsent);
}

TEST_ALL_CONFIGS(RunsTest, ASingleThreadGivesBackPastALimitByItself) {
  start(false, 1000);
  std::vector<BlockIndex> at;
  for (int i = 0; i < 60; ++i) at.push_back(take(16)), take(1);
  for (BlockIndex a : at) {
    runs_.free(a, 16, visit_);
    if (config().single) {
      EXPECT_LE(blocks().dirty, 60u * 17 / 4);
    }
  }
  if (config().single) {
    EXPECT_GT(blocks().purged, 0u);
    EXPECT_GE(blocks().dirty, 100u);  // it does not give back everything at every free
  } else {
    EXPECT_EQ(blocks().purged, 0u);
    EXPECT_EQ(blocks().dirty, 60u * 16);
  }
}

TEST_ALL_CONFIGS(RunsTest, WithoutDecayMemoryGoesAtOnceAndWithDecayNeverItStays) {
  start(false, 0);
  const BlockIndex a = take(20);
  runs_.free(a, 20, visit_);
  EXPECT_EQ(blocks().dirty, 0u);
  EXPECT_EQ(blocks().purged, 20u);
  start(false, -1);
  const BlockIndex b = take(2000);
  runs_.free(b, 2000, visit_);
  EXPECT_EQ(blocks().dirty, 2000u);
}

TEST_ALL_CONFIGS(RunsTest, WhoeverCannotHaveTheLockTakesFreshBlocksAndLeavesFreedOnesToTheNext) {
  start(false, -1);
  const BlockIndex a = take(4), b = take(4);
  runs_.free(a, 4, visit_);
  ASSERT_TRUE(runs_.lock().try_acquire(holder_));
  const BlockIndex frontier = region_.frontier();
  const lanemalloc::Run run = runs_.allocate(4, 8, handler_);
  EXPECT_GE(run.at, frontier);
  EXPECT_EQ(region_.address_of(run.at) % bytes_of(8), 0u);
  EXPECT_TRUE(run.zeroed);
  runs_.free(run.at, 4, handler_);
  runs_.free(b, 4, handler_);
  EXPECT_EQ(blocks().dirty, 4u);
  EXPECT_TRUE(runs_.has_dirty());
  EXPECT_FALSE(runs_.extend(a, 4, 5, handler_));
  EXPECT_EQ(runs_.purge(~0u, handler_), 0u);
  runs_.lock().release(holder_);
  take(1);  // from the free runs or the deferred ones
  EXPECT_EQ(blocks().dirty, 11u);
}

TEST_ALL_CONFIGS(RunsTest, WhoeverCannotWaitUntilAnotherHasGrownTakesNoMoreThanItNeeds) {
  start(false, -1);
  ASSERT_TRUE(runs_.growth_lock().try_acquire(holder_));
  const uint64_t before = Fake::claimed_blocks();
  const lanemalloc::Run run = runs_.allocate(4, 1, handler_);
  ASSERT_NE(run.at, FakeRuns::kNone);
  EXPECT_EQ(Fake::claimed_blocks() - before, 4u);
  runs_.growth_lock().release(holder_);
  take(4);
  EXPECT_GT(Fake::claimed_blocks() - before, 8u);  // more than is asked for, for the next request
}

TEST_ALL_CONFIGS(RunsTest, CountWhatIsClaimedWhenAMovedRunIsFreedWithoutTheLock) {
  start(false, -1);
  const BlockIndex from = take(20), to = take(24);
  ASSERT_TRUE(runs_.move(from, 20, to, 24, false, visit_));
  EXPECT_EQ(blocks().claimed, Fake::claimed_blocks());
  ASSERT_TRUE(runs_.lock().try_acquire(holder_));
  runs_.free_moved(to, 24, handler_);
  runs_.lock().release(holder_);
  EXPECT_EQ(blocks().claimed, Fake::claimed_blocks())
      << "the addresses are lost, the memory was given back";
}

TEST_ALL_CONFIGS(RunsTest, MoveTakesThePagesAlongAndItsSourceIsAbsent) {
  start(false, -1);
  const BlockIndex from = take(20), to = take(24);
  stamp(from, 20, 9);
  ASSERT_TRUE(runs_.move(from, 20, to, 24, false, visit_));
  EXPECT_TRUE(is_stamped(to, 20, 9));
  EXPECT_EQ(region_.state(from).kind, BlockKind::kAbsent);
  EXPECT_EQ(blocks().moved, 20u);
  runs_.free_moved(to, 24, visit_);
  EXPECT_EQ(blocks().claimed, Fake::claimed_blocks());
  const uint64_t claims = Fake::calls(Fake::Call::kClaim);
  while (take(1) != to) {  // sooner or later absent addresses are used again
    ASSERT_LT(Fake::calls(Fake::Call::kClaim), claims + 100);
  }
}

TEST_ALL_CONFIGS(RunsTest, AFailedMoveChangesNothing) {
  start(false, -1);
  const BlockIndex from = take(20), to = take(24);
  stamp(from, 20, 9);
  Fake::fail(Fake::Call::kMove, 1);
  EXPECT_FALSE(runs_.move(from, 20, to, 24, false, visit_));
  EXPECT_TRUE(is_stamped(from, 20, 9));
  EXPECT_EQ(blocks().moved, 0u);
  EXPECT_EQ(blocks().dirty, 24u);
  EXPECT_EQ(blocks().claimed, Fake::claimed_blocks());
}

TEST_ALL_CONFIGS(RunsTest, WhatAFailedMoveHasUnmappedIsAbsent) {
  start(false, -1);
  const BlockIndex from = take(20), to = take(24);
  stamp(from, 20, 9);
  Fake::fail(Fake::Call::kMove, 1);
  Fake::moves_leave_nothing = true;
  EXPECT_FALSE(runs_.move(from, 20, to, 24, false, visit_));
  EXPECT_TRUE(is_stamped(from, 20, 9));
  EXPECT_EQ(region_.state(to).kind, BlockKind::kAbsent);
  EXPECT_EQ(blocks().dirty, 4u);
  EXPECT_EQ(blocks().claimed, Fake::claimed_blocks());
}

TEST_ALL_CONFIGS(RunsTest, AddressesThatSomebodyElseTookAreForgottenAndTheirNeighboursStayWhole) {
  start(true, -1);
  const BlockIndex a = take(4), b = take(4), c = take(4);
  take(1);
  const BlockIndex d = take(4);
  take(1);
  // Two absent runs in one bin, b before d.
  runs_.free(d, 4, visit_);
  ASSERT_EQ(runs_.purge(~0u, visit_), bytes_of(4));
  runs_.free(b, 4, visit_);
  ASSERT_EQ(runs_.purge(~0u, visit_), bytes_of(4));
  while (blocks().clean > 0) take(1);
  Fake::take_away(region_.address_of(b), bytes_of(4));
  EXPECT_EQ(take(4), d);  // looks at b, and goes past it
  stamp(d, 4, 6);
  // Now b's neighbours become absent beside it.
  for (BlockIndex at : {a, c}) {
    runs_.free(at, 4, visit_);
    ASSERT_EQ(runs_.purge(~0u, visit_), bytes_of(4));
  }
  runs_.check_invariants();
  bool a_again = false, c_again = false;
  for (int i = 0; i < 12; ++i) {
    const BlockIndex at = take(4);
    EXPECT_NE(at, d) << "handed out twice";
    a_again |= at == a;
    c_again |= at == c;
  }
  EXPECT_TRUE(a_again && c_again) << "the neighbours are lost with what was taken";
  EXPECT_TRUE(is_stamped(d, 4, 6));
}

// Otherwise the child would hand out such a run again while it is in use, or would lose it.
TEST_ALL_CONFIGS(RunsTest, AChildFindsWhatWasFreeWhereverAnotherThreadStopped) {
  start(false, -1);
  const BlockIndex a = take(4), b = take(4), c = take(4), d = take(4), e = take(1);
  runs_.free(a, 4, visit_);
  runs_.free(c, 4, visit_);
  ASSERT_TRUE(runs_.lock().try_acquire(holder_));  // and its thread is gone after the fork
  runs_.free(d, 4, handler_);                      // deferred: it waits for the holder
  EXPECT_FALSE(runs_.lock().open_in_child(&visit_));
  runs_.salvage(false);
  check();
  EXPECT_EQ(blocks().dirty, 12u);
  std::set<BlockIndex> again;
  for (int i = 0; i < 12; ++i) again.insert(take(1));
  const std::set<BlockIndex> free_ones = {a,     a + 1, a + 2, a + 3, c,     c + 1,
                                          c + 2, c + 3, d,     d + 1, d + 2, d + 3};
  EXPECT_EQ(again, free_ones);
  runs_.free(b, 4, visit_);
  runs_.free(e, 1, visit_);
  check();
}

// The thread itself may have deferred runs, further down its stack.
TEST_ALL_CONFIGS(RunsTest, AChildOfAForkInAHandlerLeavesWhatWaits) {
  start(false, -1);
  const BlockIndex a = take(4), b = take(4);
  take(1);
  runs_.free(a, 4, visit_);
  ASSERT_TRUE(runs_.lock().try_acquire(holder_));
  runs_.free(b, 4, handler_);
  EXPECT_FALSE(runs_.lock().open_in_child(&visit_));
  runs_.salvage(true);
  EXPECT_EQ(blocks().dirty, 4u);
  take(1);  // the next holder takes them in
  EXPECT_EQ(blocks().dirty, 7u);
  check();
}

TEST_ALL_CONFIGS(RunsTest, WhatIsFreeIsFoundAgainFromTheBlocksAlone) {
  start(false, -1);
  BlockIndex at[12];
  for (BlockCount n = 1; n <= 12; ++n) stamp(at[n - 1] = take(n), n, n);
  for (BlockCount n : {2u, 3u, 7u}) runs_.free(at[n - 1], n, visit_);
  runs_.purge(FakeRuns::kAll, visit_);
  for (BlockCount n : {4u, 9u, 10u}) runs_.free(at[n - 1], n, visit_);
  runs_.shrink(at[10], 11, 5, visit_);
  const RunStatistics before = blocks();
  ASSERT_TRUE(runs_.lock().acquire(visit_));
  runs_.salvage(true);
  runs_.lock().release(visit_);
  EXPECT_EQ(blocks().dirty, before.dirty);
  EXPECT_EQ(blocks().clean, before.clean);
  EXPECT_EQ(before.dirty, 4u + 9 + 10 + 6);
  EXPECT_HOLDS(check());
  EXPECT_EQ(take(19), at[8]);  // merged, as before
  for (BlockCount n : {1u, 5u, 6u, 8u, 12u}) EXPECT_TRUE(is_stamped(at[n - 1], n, n));
  EXPECT_TRUE(is_stamped(at[10], 5, 11));
}

// The thread is torn off while it gives memory back and holds the lock. What the system has already
// is not taken for memory.
TEST_ALL_CONFIGS(RunsTest, WhatATornThreadWasGivingBackIsNobodys) {
  start(true, 0);
  runs_.set_scavenged(false);
  const BlockIndex kept = take(3), given = take(40), behind = take(2);
  stamp(kept, 3, 1);
  stamp(given, 40, 2);
  static jmp_buf out;
  Fake::on_release = [] { longjmp(out, 1); };
  if (setjmp(out) == 0) {
    runs_.free(given, 40, visit_);
    ADD_FAILURE() << "nothing was given back";
  }
  Visit later(&me_, false);
  ASSERT_TRUE(runs_.lock().take_over(later));
  runs_.salvage(true);
  runs_.lock().release(later);
  EXPECT_HOLDS(check());
  for (int i = 0; i < 30; ++i) {
    const BlockIndex at = take(static_cast<BlockCount>(1 + i % 40));
    stamp(at, static_cast<BlockCount>(1 + i % 40), 3);  // it is memory
  }
  EXPECT_TRUE(is_stamped(kept, 3, 1));
  runs_.free(behind, 2, visit_);
}

TEST_ALL_CONFIGS(RunsTest, WithoutMemoryEverythingFreeIsUnmappedBeforeGivingUp) {
  start(false, -1);
  const BlockIndex a = take(40);
  take(1);
  runs_.free(a, 40, visit_);
  const uint64_t before = Fake::claimed_blocks();
  Fake::fail(Fake::Call::kClaim, 1);
  EXPECT_EQ(runs_.allocate(1000, 1, visit_).at, FakeRuns::kNone);
  EXPECT_LE(Fake::claimed_blocks(), before - 40);
  EXPECT_EQ(blocks().claimed, Fake::claimed_blocks());
  EXPECT_EQ(blocks().dirty + blocks().clean, 0u);
  Fake::fail_never();
  take(1000);
}

TEST_ALL_CONFIGS(RunsTest, TakeFreshMemoryUpToTheEndOfTheRegionAndNoFurther) {
  start(false, -1);
  const BlockCount all = static_cast<BlockCount>(region_.most_bytes() >> kBlockShift);
  EXPECT_EQ(runs_.allocate(all + 1, 1, visit_).at, FakeRuns::kNone);
  const BlockIndex at = take(all);
  EXPECT_EQ(at, 0u);
  EXPECT_EQ(runs_.allocate(1, 1, visit_).at, FakeRuns::kNone);
  runs_.free(at, all, visit_);
  EXPECT_NE(runs_.allocate(1, 1, visit_).at, FakeRuns::kNone);
}

// --- Random operations against a model.

struct Piece {
  BlockCount length;
  uint64_t mark;
  bool moved;
};

// --- Huge pages. A heap of 256 MiB counts as much.

class HugePagesTest : public RunsTest {
 protected:
  static constexpr BlockCount kMuch = (Bytes{256} << 20) >> kBlockShift;

  void start_with(HugePages how, bool unmap = false) {
    start(unmap, 1000);
    runs_.set_huge_pages(how);
  }
  // Takes small runs, as slabs do.
  void grow_to(BlockCount n) {
    while (claimed() < n) take(1);
  }
  uint64_t claimed() { return blocks().claimed; }
  Address frontier() { return region_.address_of(region_.frontier()); }
};

TEST_OWNED(HugePagesTest, OffAsksForNothing) {
  start(false, 1000);
  grow_to(kMuch * 2);
  take(3000);
  EXPECT_EQ(Fake::huge_bytes, 0u);
}

// If the system's pages are larger, its huge pages are not 2 MiB.
TEST_OWNED(HugePagesTest, OnAsksForThemFromTheStartWherePagesAreOfFourKilobytes) {
  start_with(HugePages::kOn);
  take(1);
  EXPECT_EQ(Fake::huge_bytes, 0u);  // there is less than one
  take(70);
  grow_to(kMuch / 2);
  take(3000);
  if (Fake::page != 4096) {
    EXPECT_EQ(Fake::huge_bytes, 0u);
    return;
  }
  // Each is asked for once: the next one begins where the last one ended.
  EXPECT_EQ(Fake::huge_to, round_down(frontier(), kHugePage));
  EXPECT_EQ(Fake::huge_bytes, Fake::huge_to - region_.base());
}

TEST_OWNED(HugePagesTest, AutoAsksForThemAsAHeapGrowsThatHasMuch) {
  start_with(HugePages::kAuto);
  if (Fake::page != 4096) {
    grow_to(kMuch * 2);
    EXPECT_EQ(Fake::huge_bytes, 0u);
    return;
  }
  while (Fake::huge_bytes == 0) {
    ASSERT_LT(claimed(), kMuch * 2);
    take(1);
  }
  EXPECT_GE(claimed(), kMuch);
  EXPECT_LE(claimed(), kMuch + kMuch / 4);
  const Address from = Fake::huge_from;
  EXPECT_GE(from, region_.address_of(kMuch - kMuch / 4) - kHugePage);
  grow_to(kMuch * 2);
  EXPECT_EQ(Fake::huge_to, round_down(frontier(), kHugePage));
  EXPECT_EQ(Fake::huge_bytes, Fake::huge_to - from);
}

// A large run may never be filled.
TEST_OWNED(HugePagesTest, AutoDoesNotAskForALargeOneThatIsMuchBesideTheRest) {
  start_with(HugePages::kAuto);
  grow_to(kMuch * 3 / 4);
  take(kMuch);
  EXPECT_EQ(Fake::huge_bytes, 0u);
  take(kMuch / 2 + 1);
  EXPECT_EQ(Fake::huge_bytes != 0, Fake::page == 4096);
}

// All of a huge page counts, and each lane has a slab for each size class, which is carved little
// by little.
TEST_OWNED(HugePagesTest, AutoWantsMuchForEachStepOfLanes) {
  start_with(HugePages::kAuto);
  ASSERT_TRUE(region_.open_lanes(Region<Fake>::kLanesStep + 1));
  ASSERT_EQ(region_.lane_steps(), 2u);
  grow_to(kMuch + kMuch / 2);
  EXPECT_EQ(Fake::huge_bytes, 0u);
  grow_to(kMuch * 2 + kMuch / 2);
  EXPECT_EQ(Fake::huge_bytes != 0, Fake::page == 4096);
}

TEST_OWNED(HugePagesTest, WhatIsClaimedAgainIsAskedForAgain) {
  start_with(HugePages::kOn, true);
  const BlockIndex at = take(256);
  runs_.free(at, 256, visit_);
  runs_.purge(FakeRuns::kAll, visit_);  // unmapped
  Fake::huge_from = Fake::huge_to = 0;
  const BlockIndex again = take(128);
  EXPECT_TRUE(runs_.extend(again, 128, 256, visit_));
  if (Fake::page == 4096) {
    EXPECT_EQ(Fake::huge_to, round_down(region_.address_of(again + 256), kHugePage));
  }
  runs_.free(again, 256, visit_);
}

TEST_OWNED(EngineTest, HugePagesAreAskedForFromWhenTheSettingsSaySo) {
  Slot& t = thread();
  give(t, take(t, 8 << 20));
  EXPECT_EQ(Fake::huge_bytes, 0u);
  Settings settings = world().settings;
  settings.huge_pages = HugePages::kOn;
  engine().adjust(settings);
  give(t, take(t, 64 << 20));
  EXPECT_EQ(Fake::huge_bytes != 0, Fake::page == 4096);
}

class RunsPropertyTest : public RunsTest {
 protected:
  static constexpr uint64_t kMostBlocks = 1500;

  void play(uint64_t seed, bool unmap, int64_t decay_ms, bool faults, int steps) {
    start(unmap, decay_ms);
    Random random(seed);
    for (int i = 0; i < steps / kShorter; ++i) {
      if (faults && random.one_in(6)) {
        const Fake::Call kinds[] = {Fake::Call::kClaim, Fake::Call::kEmpty, Fake::Call::kMove,
                                    Fake::Call::kExtend};
        const uint64_t nth = random.between(1, 3);
        Fake::fail(kinds[random.below(4)], nth, random.one_in(2) ? nth + 1 : ~uint64_t{0});
      }
      step(random, faults);
      Fake::fail_never();
      ASSERT_FALSE(HasFatalFailure());
      check();
      account();
      if (HasFailure()) FAIL() << "seed " << seed << ", step " << i;
    }
    while (!used_.empty()) drop(used_.begin(), visit_);
    runs_.purge(~0u, visit_);
    account();
    EXPECT_EQ(blocks().dirty, 0u);
    EXPECT_EQ(blocks().claimed, blocks().clean + wasted_);
  }

 private:
  using Used = std::map<BlockIndex, Piece>;

  void step(Random& random, bool faults) {
    const bool no_lock = random.one_in(8);
    if (no_lock) {
      ASSERT_TRUE(runs_.lock().try_acquire(holder_));
    }
    Visit& visit = no_lock ? handler_ : visit_;
    switch (random.below(10)) {
      case 0:
      case 1:
      case 2:
        allocate(random, visit, no_lock, faults);
        break;
      case 3:
      case 4:
      case 5:
        if (!used_.empty()) drop(any(random), visit);
        break;
      case 6:
        extend(random, visit);
        break;
      case 7:
        shrink(random, visit);
        break;
      case 8:
        move(random, visit);
        break;
      case 9:
        runs_.advance_epoch();
        runs_.purge(random.one_in(4) ? ~0u : runs_.epoch() - 2, visit);
        break;
    }
    if (no_lock) runs_.lock().release(holder_);
    // The next holder takes in what was left.
    if (no_lock) runs_.purge(0, visit_);
  }

  Used::iterator any(Random& random) {
    auto it = used_.begin();
    std::advance(it, static_cast<long>(random.below(used_.size())));
    return it;
  }

  void allocate(Random& random, Visit& visit, bool no_lock, bool faults) {
    if (total_ > kMostBlocks) return;
    const auto n =
        static_cast<BlockCount>(random.one_in(4) ? random.between(1, 200) : random.between(1, 9));
    const BlockCount align = random.one_in(3) ? 1u << random.below(7) : 1;
    const lanemalloc::Run run = runs_.allocate(n, align, visit);
    if (run.at == FakeRuns::kNone) {
      EXPECT_TRUE(faults) << "no memory, though nothing was made to fail";
      return;
    }
    EXPECT_EQ(region_.address_of(run.at) % bytes_of(align), 0u);
    if (run.zeroed) {
      EXPECT_TRUE(is_stamped(run.at, n, 0)) << "not zero at " << run.at;
    }
    if (no_lock) wasted_ += align - 1;
    add(run.at, n, false);
  }

  void add(BlockIndex at, BlockCount n, bool moved) {
    const auto next = used_.lower_bound(at);
    if (next != used_.end()) {
      ASSERT_GE(next->first, at + n) << "overlap";
    }
    if (next != used_.begin()) {
      ASSERT_LE(std::prev(next)->first + std::prev(next)->second.length, at) << "overlap";
    }
    used_[at] = {n, ++marks_, moved};
    total_ += n;
    stamp(at, n, marks_);
  }

  void drop(Used::iterator it, Visit& visit) {
    const auto [at, piece] = *it;
    EXPECT_TRUE(is_stamped(at, piece.length, piece.mark)) << "written to by somebody else";
    used_.erase(it);
    total_ -= piece.length;
    if (piece.moved) {
      runs_.free_moved(at, piece.length, visit);
    } else {
      runs_.free(at, piece.length, visit);
    }
  }

  void extend(Random& random, Visit& visit) {
    if (used_.empty()) return;
    const auto it = any(random);
    if (it->second.moved) return;
    const auto wanted = static_cast<BlockCount>(it->second.length + random.between(1, 6));
    if (!runs_.extend(it->first, it->second.length, wanted, visit)) return;
    EXPECT_TRUE(is_stamped(it->first, it->second.length, it->second.mark));
    const BlockIndex at = it->first;
    total_ -= it->second.length;
    used_.erase(it);
    add(at, wanted, false);
  }

  void shrink(Random& random, Visit& visit) {
    if (used_.empty()) return;
    const auto it = any(random);
    if (it->second.length < 2 || it->second.moved) return;
    const auto wanted = static_cast<BlockCount>(random.between(1, it->second.length - 1));
    runs_.shrink(it->first, it->second.length, wanted, visit);
    total_ -= it->second.length - wanted;
    it->second.length = wanted;
    EXPECT_TRUE(is_stamped(it->first, wanted, it->second.mark));
  }

  void move(Random& random, Visit& visit) {
    if (used_.empty() || total_ > kMostBlocks) return;
    const auto it = any(random);
    const BlockIndex from = it->first;
    const Piece piece = it->second;
    const BlockCount longer = piece.length + static_cast<BlockCount>(random.below(10));
    const lanemalloc::Run to = runs_.allocate(longer, 1, visit);
    if (to.at == FakeRuns::kNone) return;
    Fake::moves_leave_nothing = random.one_in(2);
    if (!runs_.move(from, piece.length, to.at, longer, piece.moved, visit)) {
      EXPECT_TRUE(is_stamped(from, piece.length, piece.mark));
      return;
    }
    EXPECT_TRUE(is_stamped(to.at, piece.length, piece.mark));
    used_.erase(from);
    total_ -= piece.length;
    add(to.at, longer, true);
  }

  // Every claimed block is in use, dirty, clean, or was wasted by aligning without the lock.
  void account() {
    const RunStatistics s = blocks();
    EXPECT_EQ(s.claimed, Fake::claimed_blocks());
    EXPECT_EQ(s.claimed, total_ + s.dirty + s.clean + wasted_);
  }

  Used used_;
  uint64_t total_ = 0;
  uint64_t wasted_ = 0;
  uint64_t marks_ = 0;
};

// All five are owned: lanes play no part, and long walks take time.
TEST_OWNED(RunsPropertyTest, RandomOperationsKeepEveryPromise) {
  play(1, false, 1000, false, 3000);
}
TEST_OWNED(RunsPropertyTest, RandomOperationsKeepEveryPromiseWhereMapsAreCharged) {
  play(2, true, 1000, false, 3000);
}
TEST_OWNED(RunsPropertyTest, RandomOperationsKeepEveryPromiseWithoutDecay) {
  play(3, false, 0, false, 2000);
}
TEST_OWNED(RunsPropertyTest, RandomOperationsAndFailuresKeepEveryPromise) {
  play(4, false, 1000, true, 3000);
}
TEST_OWNED(RunsPropertyTest, RandomOperationsAndFailuresKeepEveryPromiseWhereMapsAreCharged) {
  play(5, true, 1000, true, 3000);
}

}  // namespace
}  // namespace lanemalloc
