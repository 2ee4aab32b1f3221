// Region: the frontier, addresses that another mapping has taken, metadata that opens as it grows.
#include "core/memory/region.h"

#include "fixture.h"

namespace lanemalloc {
namespace {

using FakeRegion = Region<Fake>;

class RegionTest : public FakeTest {
 protected:
  FakeRegion region_;
};

TEST_ALL_CONFIGS(RegionTest, EveryAddressThatMayBeLookedUpIsNobodysBeforeItIsUsed) {
  ASSERT_TRUE(region_.start(1 << 20, true));
  EXPECT_EQ(region_.bytes(), bytes_of(region_.opened()));
  EXPECT_GT(region_.opened(), 0u);
  for (Bytes d = 0; d < region_.bytes(); d += kBlockSize / 2)
    EXPECT_EQ(region_.word_at(d).owner(), Owner::kNobody);
  for (Bytes d = 0; d < region_.most_bytes(); d += region_.most_bytes() / 4096)
    EXPECT_EQ(region_.word_for(reinterpret_cast<void*>(region_.base() + d)).owner(),
              Owner::kNobody);
  EXPECT_EQ(region_.frontier(), 0u);
  EXPECT_EQ(Fake::claimed_blocks(), 0u);
}

TEST_ALL_CONFIGS(RegionTest, AddressesOutsideAreFarAway) {
  ASSERT_TRUE(region_.start(1 << 20, false));
  auto far = [&](Address a) {
    return region_.distance(reinterpret_cast<void*>(a)) >= region_.most_bytes();
  };
  EXPECT_TRUE(far(0));
  EXPECT_TRUE(far(region_.base() - 1));
  EXPECT_FALSE(far(region_.base()));
  EXPECT_FALSE(far(region_.base() + region_.most_bytes() - 1));
  EXPECT_TRUE(far(region_.base() + region_.most_bytes()));
  EXPECT_TRUE(far(~Address{0}));
}

TEST_ALL_CONFIGS(RegionTest, HitsReachWhatIsOpened) {
  Fake::limit = bytes_of(static_cast<BlockCount>(Fake::page)) * 6;  // a step is a page of blocks
  ASSERT_TRUE(region_.start(1 << 20, true));
  const BlockCount step = region_.opened();
  EXPECT_EQ(region_.hit_bytes(), region_.bytes());
  ASSERT_EQ(region_.take_fresh(step), 0u);
  EXPECT_EQ(region_.opened(), step);
  ASSERT_EQ(region_.take_fresh(1), step);
  EXPECT_EQ(region_.opened(), step * 2);
  EXPECT_EQ(region_.hit_bytes(), region_.bytes());
  region_.set_hits(false);
  ASSERT_EQ(region_.take_fresh(step), step + 1);
  EXPECT_EQ(region_.opened(), step * 3);
  EXPECT_EQ(region_.hit_bytes(), 0u) << "they are off";
  region_.set_hits(true);
  EXPECT_EQ(region_.hit_bytes(), bytes_of(step * 3));
}

TEST_ALL_CONFIGS(RegionTest, WhereMetadataCannotGrowTheBodyEndsAndNothingIsLost) {
  Fake::limit = bytes_of(static_cast<BlockCount>(Fake::page)) * 6;  // a step is a page of blocks
  ASSERT_TRUE(region_.start(1 << 20, true));
  const BlockCount step = region_.opened();
  for (uint64_t array = 1; array <= 4; ++array) {
    Fake::ground_taken.arm(array);
    EXPECT_EQ(region_.take_fresh(step + 1), FakeRegion::kNoBlock);
    Fake::fail_never();
    EXPECT_EQ(region_.opened(), step);
    EXPECT_EQ(Fake::claimed_blocks(), 0u);
    EXPECT_EQ(region_.frontier(), 0u);
  }
  EXPECT_EQ(region_.take_fresh(step), 0u) << "what is opened serves";
  EXPECT_EQ(region_.take_fresh(1), step) << "somebody else's mapping has gone";
}

// Otherwise the addresses of the request are lost, and after some such requests all addresses are.
TEST_ALL_CONFIGS(RegionTest, MuchThatIsRefusedTakesNoAddressesFromAThreadThatGrowsMeanwhile) {
  ASSERT_TRUE(region_.start(1 << 20, false));
  constexpr BlockCount kMuch = 5000;
  BlockIndex grown = FakeRegion::kNoBlock;
  Fake::on_claim = [&] {
    grown = region_.take_fresh(1);
    Fake::fail_once(Fake::Call::kClaim, 1);
  };
  EXPECT_EQ(region_.take_fresh(kMuch), FakeRegion::kNoBlock);
  EXPECT_EQ(grown, 0u);
  EXPECT_EQ(region_.frontier(), 1u);
  EXPECT_EQ(region_.take_fresh(kMuch), 1u) << "what is granted is taken where the others are";
  EXPECT_EQ(Fake::claimed_blocks(), kMuch + 1);
}

TEST_ALL_CONFIGS(RegionTest, LanesGrowByPieces) {
  ASSERT_TRUE(region_.start(1 << 20, false));
  EXPECT_EQ(region_.lane_bytes(), Bytes{1} << 20);
  for (Bytes end = 8192; end <= region_.lane_bytes(); end += 8192) {
    ASSERT_TRUE(region_.open_lanes(end));
    *reinterpret_cast<uint64_t*>(region_.lanes() + end - 8) = end;
  }
  for (Bytes end = 8192; end <= region_.lane_bytes(); end += 8192)
    EXPECT_EQ(*reinterpret_cast<uint64_t*>(region_.lanes() + end - 8), end);
  EXPECT_LE(Fake::calls(Fake::Call::kExtend), 3u + 8u);
}

// The thread that makes metadata grow is gone in the child, after each of its steps in turn.
TEST_ALL_CONFIGS(RegionTest, AForkChildTakesBackWhatAGrowerHadMapped) {
  Fake::limit = bytes_of(static_cast<BlockCount>(Fake::page)) * 6;  // a step is a page of blocks
  static jmp_buf stopped;
  static int left;
  for (int steps = 1; steps <= 5; ++steps) {
    Fake::release_all();
    FakeRegion region;
    ASSERT_TRUE(region.start(1 << 20, true));
    const BlockCount step = region.opened();
    left = steps == 5 ? 1 : steps;
    Fake::on_extend = [] {
      if (--left == 0) longjmp(stopped, 1);
    };
    const bool lanes = steps == 5;
    if (setjmp(stopped) == 0) {
      lanes ? region.open_lanes(8192) : region.take_fresh(step * 3) != FakeRegion::kNoBlock;
      ADD_FAILURE() << "it was not stopped";
    }
    Fake::on_extend = nullptr;
    Fake::is_child = true;
    region.forget_grower();
    Fake::is_child = false;
    ASSERT_NE(region.take_fresh(step), FakeRegion::kNoBlock);
    EXPECT_TRUE(region.open_lanes(8192));
    ASSERT_NE(region.take_fresh(step * 2), FakeRegion::kNoBlock);
    EXPECT_GT(region.opened(), step * 2);
  }
}

TEST_ALL_CONFIGS(RegionTest, FreshBlocksFollowEachOtherAndTheirStatesAreOpen) {
  ASSERT_TRUE(region_.start(1 << 20, true));
  BlockIndex expected = 0;
  for (BlockCount n : {1u, 5u, 1000u, 1u, 3000u}) {
    const BlockIndex at = region_.take_fresh(n);
    EXPECT_EQ(at, expected);
    for (BlockIndex b : {at, at + n - 1}) {
      region_.state(b).length = b;
      region_.set_words(b, 1, region_.make_word(Owner::kLarge, b));
      region_.set_size_class(b, 1, SizeClass{7});
      region_.object_bits(bytes_of(b)).store(1);
      *reinterpret_cast<int*>(region_.address_of(b)) = 1;
      EXPECT_EQ(region_.word(b).owner(), Owner::kLarge);
      EXPECT_EQ(region_.block_of_state(region_.word(b).state()), b);
      EXPECT_EQ(index_of(region_.size_class_at(bytes_of(b))), 7u);
    }
    expected += n;
  }
  EXPECT_EQ(region_.frontier(), expected);
  EXPECT_GE(region_.opened(), expected);
  EXPECT_EQ(Fake::claimed_blocks(), expected);
}

TEST_ALL_CONFIGS(RegionTest, TheObjectBitsOfTwoGranulesAreTwoBits) {
  ASSERT_TRUE(region_.start(1 << 20, true));
  ASSERT_EQ(region_.take_fresh(2), 0u);
  EXPECT_EQ(&region_.object_bits(0), &region_.object_bits(63 * kGranule));
  EXPECT_NE(&region_.object_bits(0), &region_.object_bits(64 * kGranule));
  EXPECT_EQ(reinterpret_cast<Address>(&region_.object_bits(kBlockSize)) -
                reinterpret_cast<Address>(&region_.object_bits(0)),
            FakeRegion::kBitsPerBlock);
}

TEST_ALL_CONFIGS(RegionTest, RangesThatSomebodyElseTookAreSkipped) {
  ASSERT_TRUE(region_.start(1 << 20, false));
  ASSERT_EQ(region_.take_fresh(4), 0u);
  Fake::take_away(region_.address_of(7), bytes_of(2));
  const BlockIndex at = region_.take_fresh(4);
  EXPECT_GE(at, 9u - 1);
  EXPECT_TRUE(at + 4 <= 7 || at > 8) << at;
  EXPECT_EQ(Fake::claimed_blocks(), 8u);
}

TEST_ALL_CONFIGS(RegionTest, ItGivesUpWhenEverythingIsTakenAndKeepsNothing) {
  ASSERT_TRUE(region_.start(1 << 20, false));
  Fake::taken.arm(1);
  EXPECT_EQ(region_.take_fresh(1), FakeRegion::kNoBlock);
  EXPECT_EQ(Fake::claimed_blocks(), 0u);
  Fake::fail_never();
  EXPECT_NE(region_.take_fresh(1), FakeRegion::kNoBlock);
}

TEST_ALL_CONFIGS(RegionTest, WithoutMemoryTheAddressesAreGivenBack) {
  ASSERT_TRUE(region_.start(1 << 20, true));
  for (Fake::Call call : {Fake::Call::kClaim, Fake::Call::kExtend}) {
    for (uint64_t nth = 1; nth <= 4; ++nth) {
      const BlockIndex before = region_.frontier();
      Fake::fail(call, nth);
      const BlockIndex at = region_.take_fresh(2000);
      Fake::fail_never();
      if (at == FakeRegion::kNoBlock) {
        EXPECT_EQ(region_.frontier(), before);
      }
    }
  }
  const BlockIndex frontier = region_.frontier();
  EXPECT_EQ(region_.take_fresh(3), frontier);
}

TEST_ALL_CONFIGS(RegionTest, MemoryThatIsRefusedOpensNoMetadata) {
  ASSERT_TRUE(region_.start(1 << 20, true));
  const BlockCount before = region_.opened();
  Fake::fail(Fake::Call::kClaim, 1);
  EXPECT_EQ(region_.take_fresh(1u << 20), FakeRegion::kNoBlock);
  Fake::fail_never();
  EXPECT_EQ(region_.opened(), before);
}

TEST_ALL_CONFIGS(RegionTest, ItEndsWhereItEnds) {
  ASSERT_TRUE(region_.start(1 << 20, false));
  const auto all = static_cast<BlockCount>(region_.most_bytes() >> kBlockShift);
  EXPECT_EQ(region_.take_fresh(all + 1), FakeRegion::kNoBlock);
  EXPECT_EQ(region_.frontier(), 0u);
  EXPECT_EQ(region_.take_fresh(all - 1), 0u);
  EXPECT_EQ(region_.take_fresh(2), FakeRegion::kNoBlock);
  EXPECT_EQ(region_.take_fresh(1), all - 1);
  EXPECT_EQ(region_.take_fresh(1), FakeRegion::kNoBlock);
  EXPECT_EQ(region_.frontier(), all);
}

TEST_ALL_CONFIGS(RegionTest, GroundThatSomebodyElseHasIsLeftForOther) {
  Fake::fail(Fake::Call::kGround, 1, 2);
  Fake::ground_taken.arm(2, 3);  // the second array of the second attempt
  ASSERT_TRUE(region_.start(1 << 20, true));
  EXPECT_EQ(region_.take_fresh(1), 0u);
}

TEST_ALL_CONFIGS(RegionTest, WithoutGroundItDoesNotStartAndMayBeAskedAgain) {
  Fake::fail(Fake::Call::kGround, 1);
  EXPECT_FALSE(region_.start(1 << 20, false));
  Fake::fail_never();
  Fake::fail(Fake::Call::kExtend, 1);
  EXPECT_FALSE(region_.start(1 << 20, false));
  Fake::fail_never();
  EXPECT_TRUE(region_.start(1 << 20, false));
  EXPECT_EQ(region_.take_fresh(1), 0u);
}

TEST_ALL_CONFIGS(RegionTest, AnyGroundGivesABodyOfWholeBlocks) {
  for (Bytes limit :
       {Bytes{64} << 20, (Bytes{100} << 20) + 12345, (Bytes{33} << 20) + 4096, Bytes{777} << 20}) {
    Fake::release_all();
    Fake::limit = limit;
    FakeRegion region;
    ASSERT_TRUE(region.start(1 << 20, true));
    EXPECT_EQ(region.most_bytes() % kBlockSize, 0u) << limit;
    EXPECT_GE(region.most_bytes(), limit);
    EXPECT_EQ(region.base() % kHugePage, 0u);
    EXPECT_EQ(region.word_at(region.bytes() - 1).owner(), Owner::kNobody);
  }
}

}  // namespace
}  // namespace lanemalloc
