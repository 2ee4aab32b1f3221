// Engine: resizing in place, by moving pages, by copying.
#include "fixture.h"

namespace lanemalloc {
namespace {

class ReallocTest : public EngineTest {
 protected:
  void* resize(Slot& t, void* p, Bytes size) {
    const Found found = engine().pointers().find(p);
    EXPECT_EQ(found.verdict, Verdict::kGood);
    return engine().reallocate(p, found.word, size, t);
  }
  Bytes usable(void* p) {
    return engine().pointers().usable_size(p, engine().pointers().find(p).word);
  }
};

TEST_ALL_CONFIGS(ReallocTest, KeepsContentsWhateverTheWay) {
  Slot& t = thread();
  Random random(7);
  Bytes size = 100;
  void* p = take(t, size);
  fill(p, size, 1);
  for (uint64_t i = 2; i < 400; ++i) {
    const Bytes next = random.one_in(2) ? random.between(1, 3000) : random.between(1, 6 << 20);
    // A pattern that depends on the place only, so that any prefix is known.
    auto* bytes = static_cast<unsigned char*>(p);
    for (Bytes at = 0; at < size; at += 509) bytes[at] = static_cast<unsigned char>(at * 31 + i);
    p = resize(t, p, next);
    ASSERT_NE(p, nullptr);
    EXPECT_GE(usable(p), next);
    bytes = static_cast<unsigned char*>(p);
    for (Bytes at = 0; at < std::min(size, next); at += 509)
      ASSERT_EQ(bytes[at], static_cast<unsigned char>(at * 31 + i))
          << "from " << size << " to " << next;
    size = next;
  }
  give(t, p);
  EXPECT_EQ(statistics().live_objects, 0u);
  EXPECT_EQ(statistics().live_bytes, 0u);
}

TEST_ALL_CONFIGS(ReallocTest, StaysInPlaceWhereItFits) {
  Slot& t = thread();
  void* p = take(t, 1000);
  EXPECT_EQ(resize(t, p, usable(p)), p);
  EXPECT_EQ(resize(t, p, usable(p) / 2), p);
  void* smaller = resize(t, p, usable(p) / 2 - 1);
  EXPECT_NE(smaller, p);
  give(t, smaller);
  void* tiny = take(t, 16);
  EXPECT_EQ(resize(t, tiny, 1), tiny);
  give(t, tiny);
}

TEST_ALL_CONFIGS(ReallocTest, ALargeObjectGrowsIntoWhatIsFreeBehindItAndShrinksInPlace) {
  Slot& t = thread();
  void* p = take(t, 8 << 20);
  fill(p, 1 << 20, 4);
  EXPECT_EQ(resize(t, p, 1 << 20), p);
  EXPECT_EQ(statistics().large_live_bytes, Bytes{1} << 20);
  EXPECT_EQ(resize(t, p, 2 << 20), p);
  EXPECT_EQ(resize(t, p, 5 << 20), p);
  EXPECT_EQ(statistics().large_live_bytes, Bytes{5} << 20);
  EXPECT_TRUE(is_whole(p, 1 << 20, 4));
  EXPECT_EQ(resize(t, p, kSlabMax + 1), p);
  EXPECT_EQ(statistics().large_live_bytes, kSlabMax + kBlockSize);
  EXPECT_EQ(Fake::calls(Fake::Call::kMove), 0u);
  give(t, p);
}

TEST_ALL_CONFIGS(ReallocTest, ALargeObjectThatCannotGrowIsMovedByTheKernelAndNotCopied) {
  Slot& t = thread();
  void* p = take(t, 2 << 20);
  fill(p, 2 << 20, 5);
  take(t, 1 << 20);
  void* moved = resize(t, p, 20 << 20);
  ASSERT_NE(moved, nullptr);
  EXPECT_NE(moved, p);
  EXPECT_EQ(Fake::calls(Fake::Call::kMove), 1u);
  EXPECT_TRUE(is_whole(moved, 2 << 20, 5));
  EXPECT_EQ(engine().pointers().find(p).verdict, Verdict::kFreedAlready);
  // The move added an eighth, so the next step moves nothing.
  EXPECT_EQ(resize(t, moved, 22 << 20), moved);
  EXPECT_EQ(Fake::calls(Fake::Call::kMove), 1u);
  give(t, moved);
  EXPECT_EQ(statistics().large_live_bytes, Bytes{1} << 20);
  EXPECT_EQ(statistics().runs.claimed, Fake::claimed_blocks() * kBlockSize);
}

TEST_ALL_CONFIGS(ReallocTest, WhereTheKernelRefusesToMoveItIsCopied) {
  Slot& t = thread();
  void* p = take(t, 2 << 20);
  fill(p, 2 << 20, 5);
  take(t, 1 << 20);
  Fake::fail(Fake::Call::kMove, 1);
  void* copied = resize(t, p, 20 << 20);
  ASSERT_NE(copied, nullptr);
  EXPECT_TRUE(is_whole(copied, 2 << 20, 5));
  give(t, copied);
  EXPECT_EQ(statistics().large_live_bytes, Bytes{1} << 20);
}

TEST_ALL_CONFIGS(ReallocTest, WithoutMemoryTheOldObjectStays) {
  Slot& t = thread();
  for (Bytes size : {Bytes{100}, Bytes{200000}, Bytes{2} << 20}) {
    void* p = take(t, size);
    fill(p, size, 3);
    Fake::fail(Fake::Call::kClaim, 1);
    EXPECT_EQ(resize(t, p, Bytes{200} << 20), nullptr);
    Fake::fail_never();
    EXPECT_TRUE(is_whole(p, size, 3));
    give(t, p);
  }
  EXPECT_EQ(statistics().live_objects, 0u);
}

TEST_ALL_CONFIGS(ReallocTest, GrowingStepByStepCostsFewMoves) {
  Slot& t = thread();
  Bytes size = 1 << 20;
  void* p = take(t, size);
  for (int i = 0; i < 300; ++i) {
    take(t, 1 << 19);  // now something lies behind p
    p = resize(t, p, size += 1 << 16);
    ASSERT_NE(p, nullptr);
  }
  EXPECT_LE(Fake::calls(Fake::Call::kMove), 40u);
}

// The object grows by a sixteenth each time, up to a size of some blocks. What is copied is bounded
// by what the last object holds.
TEST_ALL_CONFIGS(ReallocTest, GrowingStepByStepCopiesLittle) {
  Slot& t = thread();
  for (Bytes first :
       {Bytes{500}, Bytes{3000}, Bytes{5000}, Bytes{9000}, Bytes{12000}, Bytes{28000}}) {
    SCOPED_TRACE(first);
    Bytes size = first, copied = 0;
    void* p = take(t, size);
    while (size < (96 << 10)) {
      void* moved = resize(t, p, size + size / 16);
      if (moved != p) copied += size;
      p = moved;
      size += size / 16;
    }
    EXPECT_LE(copied, size / 2 * 3);
    EXPECT_LE(usable(p), 2 * size);
    give(t, p);
  }
}

TEST_ALL_CONFIGS(ReallocTest, GrowingToTwiceTheSizeGetsNoMore) {
  Slot& t = thread();
  for (Bytes size = 16; size <= (64 << 10); size *= 2) {
    void* p = resize(t, take(t, size), 2 * size);
    EXPECT_EQ(usable(p), 2 * size);
    give(t, p);
  }
}

TEST_ALL_CONFIGS(ReallocTest, WhatIsCopiedHasRoomToGrow) {
  Slot& t = thread();
  for (Bytes size : {Bytes{16}, Bytes{1000}, Bytes{20000}, Bytes{40000}, Bytes{200000}, kSlabMax}) {
    void* p = take(t, size);
    void* behind = take(t, size);
    const Bytes old = usable(p);
    p = resize(t, p, old + 1);
    EXPECT_GE(usable(p), old < 32768 ? old / 8 * 11 : old * 2 - kBlockSize + 1) << size;
    EXPECT_LE(usable(p), old * 2 + kBlockSize) << size;
    const Bytes smaller = usable(p) / 2 - 1;
    p = resize(t, p, smaller);
    EXPECT_LE(usable(p), size <= 16 ? 16 : smaller / 4 * 5 + kBlockSize) << "shrinking leaves none";
    give(t, p);
    give(t, behind);
  }
}

}  // namespace
}  // namespace lanemalloc
