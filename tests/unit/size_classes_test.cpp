// Size classes against a naive model: every size, every alignment.
#include "core/memory/size_classes.h"

#include <gtest/gtest.h>

#include <vector>

namespace lanemalloc {
namespace {

// The sizes that the head comment of size_classes.h describes, made in another way.
std::vector<Bytes> sizes_of_the_model() {
  std::vector<Bytes> sizes;
  for (Bytes s = 16; s <= 256; s += 16) sizes.push_back(s);
  for (Bytes doubling = 256; doubling < kSlabMax; doubling *= 2)
    for (Bytes step = 1; step <= 8; ++step) sizes.push_back(doubling + step * doubling / 8);
  return sizes;
}

TEST(SizeClasses, HaveTheSizesOfTheModel) {
  const std::vector<Bytes> model = sizes_of_the_model();
  ASSERT_EQ(model.size() + 1, kClassCount);
  EXPECT_EQ(size_of(SizeClass{0}), 0u);
  for (unsigned c = 1; c < kClassCount; ++c)
    EXPECT_EQ(size_of(static_cast<SizeClass>(c)), model[c - 1]) << c;
}

TEST(SizeClasses, EverySizeGetsTheSmallestClassThatFits) {
  const std::vector<Bytes> model = sizes_of_the_model();
  size_t expected = 0;
  for (Bytes size = 1; size <= kSlabMax; ++size) {
    if (model[expected] < size) ++expected;
    ASSERT_EQ(index_of(class_of(size)), expected + 1) << size;
  }
}

TEST(SizeClasses, AddAtMostAnEighthAbove128Bytes) {
  for (Bytes size = 1; size <= kSlabMax; ++size) {
    const Bytes waste = size_of(class_of(size)) - size;
    if (size > 128) {
      ASSERT_LE(waste * 8, size) << size;
    }
    ASSERT_LT(waste, size <= kExactMax ? kGranule : size) << size;
  }
}

TEST(SizeClasses, AreAlignedToTheGranule) {
  for (unsigned c = 1; c < kClassCount; ++c)
    EXPECT_EQ(size_of(static_cast<SizeClass>(c)) % kGranule, 0u) << c;
}

TEST(SizeClasses, TheIndexOfASmallSizeLeadsToItsClassAndNothingElsePasses) {
  EXPECT_EQ(small_index(0), 0u);
  EXPECT_EQ(kSmallTable[0], 0u);
  for (Bytes size = 1; size <= kSmallMax; ++size)
    ASSERT_EQ(kSmallTable[small_index(size)], index_of(class_of(size))) << size;
  for (Bytes size : {kSmallMax + 1, Bytes{1} << 40, Bytes{1} << 63, ~Bytes{0} - 15})
    EXPECT_GT(small_index(size), kSmallIndexes) << size;
  // The sum wraps and gives class 0, whose bin is always empty.
  for (Bytes below = 0; below < 15; ++below) EXPECT_EQ(small_index(~Bytes{0} - below), 0u) << below;
}

TEST(SizeClasses, SlabsHoldFourObjectsAndWasteASixteenthOrOneBigOneAndWasteAnEighth) {
  for (unsigned c = 1; c < kClassCount; ++c) {
    const auto size_class = static_cast<SizeClass>(c);
    const Bytes bytes = bytes_of(slab_blocks_of(size_class));
    const Bytes least = is_big(size_class) ? 1 : 4;
    const Bytes part = is_big(size_class) ? 8 : 16;
    EXPECT_EQ(is_big(size_class), size_of(size_class) >= kBlockSize);
    EXPECT_GE(capacity_of(size_class), least) << c;
    EXPECT_LE(capacity_of(size_class) * size_of(size_class), bytes) << c;
    EXPECT_LE(bytes - capacity_of(size_class) * size_of(size_class), bytes / part) << c;
    EXPECT_GE(chunk_of(size_class), 1u) << c;
    EXPECT_LE(chunk_of(size_class) * size_of(size_class),
              std::max<Bytes>(8192, size_of(size_class)))
        << c;
    // No shorter run serves.
    for (BlockCount n = 1; n < slab_blocks_of(size_class); ++n) {
      const Bytes shorter = bytes_of(n);
      const bool serves =
          shorter / size_of(size_class) >= least && shorter % size_of(size_class) <= shorter / part;
      EXPECT_FALSE(serves) << c << ' ' << n;
    }
  }
}

// All bytes of a slab, and as many before and behind it.
TEST(SizeClasses, ObjectsStartAtMultiplesOfTheirSize) {
  const auto check = [](const Starts& starts, uint32_t size, uint32_t objects, Bytes bytes) {
    for (Bytes into = 0; into < 2 * bytes; ++into)
      ASSERT_EQ(starts.have(into), into % size == 0 && into / size < objects)
          << size << ' ' << into;
    for (Bytes below = 1; below <= bytes; ++below)
      ASSERT_FALSE(starts.have(Bytes{0} - below)) << size << ' ' << below;
  };
  for (unsigned c = 1; c < kClassCount; ++c) {
    const auto of = static_cast<SizeClass>(c);
    check(starts_of(of), static_cast<uint32_t>(size_of(of)), capacity_of(of),
          bytes_of(slab_blocks_of(of)));
  }
  for (uint32_t size : {8u, 24u, 40u, 1000u, 4104u, 524280u})  // of kinds
    check({size, 65536 * 8 / size}, size, 65536 * 8 / size, 65536 * 8);
  EXPECT_FALSE(Starts().have(0));
}

TEST(SizeClasses, AnAlignedClassIsTheSmallestWhoseSizeIsAMultiple) {
  const std::vector<Bytes> model = sizes_of_the_model();
  for (Bytes alignment = 16; alignment <= kBlockSize; alignment *= 2) {
    for (Bytes size = 0; size <= kSlabMax; size += size < 5000 ? 1 : 97) {
      // Naive: the class holds the size, and every object of the slab is aligned. Rounding up first
      // costs at most one class.
      unsigned expected = 0;
      const Bytes wanted = round_up(size == 0 ? 1 : size, alignment);
      for (unsigned c = 1; c < kClassCount && expected == 0; ++c)
        if (model[c - 1] >= wanted && model[c - 1] % alignment == 0) expected = c;
      ASSERT_EQ(index_of(aligned_class_of(size, alignment)), expected)
          << size << " aligned to " << alignment;
    }
  }
}

TEST(SizeClasses, NoAlignedClassHoldsMoreThanTheLargestOrASumThatWraps) {
  EXPECT_EQ(index_of(aligned_class_of(kSlabMax + 1, 16)), 0u);
  EXPECT_EQ(index_of(aligned_class_of(~Bytes{0}, 4096)), 0u);
  EXPECT_EQ(index_of(aligned_class_of(~Bytes{0} - 4000, 64)), 0u);
  EXPECT_EQ(size_of(aligned_class_of(kSlabMax, kBlockSize)), kSlabMax);
}

TEST(Units, RoundAndCountBlocks) {
  EXPECT_EQ(blocks_for(1), 1u);
  EXPECT_EQ(blocks_for(kBlockSize), 1u);
  EXPECT_EQ(blocks_for(kBlockSize + 1), 2u);
  EXPECT_EQ(round_up(0, 16), 0u);
  EXPECT_EQ(round_up(17, 16), 32u);
  EXPECT_EQ(round_down(31, 16), 16u);
  EXPECT_FALSE(is_power_of_two(0));
  EXPECT_FALSE(is_power_of_two(24));
  EXPECT_TRUE(is_power_of_two(Bytes{1} << 63));
}

TEST(Units, OwnersBelowTheFirstLaneAndTheClosedOneAreNoLanes) {
  for (Owner o : {Owner::kNobody, Owner::kLarge, Owner::kDepot, Owner::kClosed})
    EXPECT_FALSE(is_lane(o));
  EXPECT_TRUE(is_lane(Owner::kFirstLane));
  EXPECT_TRUE(is_lane(static_cast<Owner>(0x7FFF)));
}

TEST(Units, WhatIsPrivateIsNoLanesOfMalloc) {
  for (Owner o : {Owner::kLarge, Owner::kDepot, Owner::kFirstLane, static_cast<Owner>(0x7FFE)}) {
    EXPECT_FALSE(is_private(o));
    EXPECT_TRUE(is_private(private_of(o)));
    EXPECT_FALSE(is_lane(private_of(o)) || is_slab(private_of(o)));
    EXPECT_EQ(public_of(private_of(o)), o);
  }
  EXPECT_FALSE(is_private(Owner::kClosed));
}

}  // namespace
}  // namespace lanemalloc
