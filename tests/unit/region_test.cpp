// Region: the frontier, addresses that somebody else has taken, metadata that opens as it grows.
#include "memory/region.h"

#include "fixture.h"

namespace lanemalloc {
namespace {

using FakeRegion = Region<Fake>;

class RegionTest : public FakeTest {
 protected:
  FakeRegion region_;
};

TEST_ALL_CONFIGS(RegionTest, EveryAddressOfTheBodyMayBeLookedUpBeforeItIsUsed) {
  ASSERT_TRUE(region_.start(1 << 20, true));
  for (Bytes d = 0; d < region_.bytes(); d += region_.bytes() / 4096) {
    EXPECT_EQ(region_.entry_at(d).owner(), Owner::kNobody);
  }
  EXPECT_EQ(region_.entry_at(region_.bytes() - 1).owner(), Owner::kNobody);
  EXPECT_EQ(region_.opened(), 0u);
  EXPECT_EQ(Fake::claimed_blocks(), 0u);
}

TEST_ALL_CONFIGS(RegionTest, AddressesOutsideAreFarAway) {
  ASSERT_TRUE(region_.start(1 << 20, false));
  auto far = [&](Address a) { return region_.distance(reinterpret_cast<void*>(a)) >= region_.bytes(); };
  EXPECT_TRUE(far(0));
  EXPECT_TRUE(far(region_.base() - 1));
  EXPECT_FALSE(far(region_.base()));
  EXPECT_FALSE(far(region_.base() + region_.bytes() - 1));
  EXPECT_TRUE(far(region_.base() + region_.bytes()));
  EXPECT_TRUE(far(~Address{0}));
}

TEST_ALL_CONFIGS(RegionTest, FreshBlocksFollowEachOtherAndTheirStatesAreOpen) {
  ASSERT_TRUE(region_.start(1 << 20, true));
  BlockIndex expected = 0;
  for (BlockCount n : {1u, 5u, 1000u, 1u, 3000u}) {
    const BlockIndex at = region_.take_fresh(n);
    EXPECT_EQ(at, expected);
    for (BlockIndex b : {at, at + n - 1}) {
      region_.state(b).length = b;
      region_.set_entries(b, 1, region_.make_entry(Owner::kLarge, b));
      region_.set_size_class(b, 1, SizeClass{7});
      region_.object_bits(bytes_of(b)).store(1);
      *reinterpret_cast<int*>(region_.address_of(b)) = 1;
      EXPECT_EQ(region_.entry(b).owner(), Owner::kLarge);
      EXPECT_EQ(region_.block_of_state(region_.entry(b).state()), b);
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
  for (Fake::Call call : {Fake::Call::kClaim, Fake::Call::kOpen}) {
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
  const auto all = static_cast<BlockCount>(region_.bytes() >> kBlockShift);
  EXPECT_EQ(region_.take_fresh(all + 1), FakeRegion::kNoBlock);
  EXPECT_EQ(region_.frontier(), 0u);
  EXPECT_EQ(region_.take_fresh(all - 1), 0u);
  EXPECT_EQ(region_.take_fresh(2), FakeRegion::kNoBlock);
  EXPECT_EQ(region_.take_fresh(1), all - 1);
  EXPECT_EQ(region_.take_fresh(1), FakeRegion::kNoBlock);
  EXPECT_EQ(region_.frontier(), all);
}

TEST_ALL_CONFIGS(RegionTest, WhereAddressesAreScarceASmallerOneIsTaken) {
  Fake::limit = Bytes{16} << 40;
  Fake::memory = Bytes{1} << 30;
  Fake::fail(Fake::Call::kReserve, 1, 8);  // the first seven are too large
  ASSERT_TRUE(region_.start(1 << 20, false));
  EXPECT_EQ(region_.bytes(), Bytes{2} << 30);
  EXPECT_EQ(region_.take_fresh(1), 0u);
}

TEST_ALL_CONFIGS(RegionTest, WithoutAddressesItDoesNotStartAndMayBeAskedAgain) {
  Fake::fail(Fake::Call::kReserve, 1);
  EXPECT_FALSE(region_.start(1 << 20, false));
  Fake::fail(Fake::Call::kMakeReadable, 1);
  EXPECT_FALSE(region_.start(1 << 20, false));
  Fake::fail_never();
  EXPECT_TRUE(region_.start(1 << 20, false));
  EXPECT_EQ(region_.take_fresh(1), 0u);
}

TEST_ALL_CONFIGS(RegionTest, AnyAddressLimitGivesABodyOfWholeBlocks) {
  for (Bytes limit :
       {Bytes{64} << 20, (Bytes{100} << 20) + 12345, (Bytes{33} << 20) + 4096, Bytes{777} << 20}) {
    for (uint64_t failures = 0; failures < 5; ++failures) {
      Fake::release_all();
      Fake::limit = limit;
      Fake::fail(Fake::Call::kReserve, 1, 1 + failures);
      FakeRegion region;
      if (!region.start(1 << 20, true)) continue;
      EXPECT_EQ(region.bytes() % kBlockSize, 0u) << limit << " after " << failures;
      EXPECT_EQ(region.base() % kHugePage, 0u);
      EXPECT_EQ(region.entry_at(region.bytes() - 1).owner(), Owner::kNobody);
    }
  }
}

}  // namespace
}  // namespace lanemalloc
