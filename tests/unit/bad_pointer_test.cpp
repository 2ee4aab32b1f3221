// Engine: pointers that should not have been freed, and what is reported of them.
#include "fixture.h"

namespace lanemalloc {
namespace {

class BadPointerTest : public EngineTest {
 protected:
  Verdict free(Slot& t, void* p) {
    Fake::number = cpu_of(t);
    return told(p, [&] { return engine().free(p, t); });
  }
  // Frees an object that is free already. The program has written to its first word since, so the
  // free does not see that.
  void free_unseen(Slot& t, void* p) {
    EXPECT_EQ(free(t, p), Verdict::kFreedAlready);
    *static_cast<uint64_t*>(p) = 1;
    EXPECT_EQ(free(t, p), Verdict::kGood);
  }
  static void* beyond(void* p, Bytes n) { return static_cast<char*>(p) + n; }
};

TEST_ALL_CONFIGS(BadPointerTest, WhatIsNotOursIsToldAndChangesNothing) {
  Slot& t = thread();
  int local = 0;
  EXPECT_EQ(free(t, &local), Verdict::kNotOurs);
  EXPECT_EQ(t.load(), &no_lane_gate);
  take(t, 10);
  EXPECT_EQ(free(t, &local), Verdict::kNotOurs);
  EXPECT_EQ(free(t, reinterpret_cast<void*>(world().region.base() - 16)), Verdict::kNotOurs);
  EXPECT_EQ(free(t, reinterpret_cast<void*>(world().region.base() + world().region.most_bytes())),
            Verdict::kNotOurs);
  EXPECT_EQ(
      free(t, reinterpret_cast<void*>(world().region.base() + world().region.most_bytes() - 16)),
      Verdict::kNotInUse);
  EXPECT_EQ(free(t, reinterpret_cast<void*>(16)), Verdict::kNotOurs);
  EXPECT_EQ(statistics().bad_pointers, 6u);
  EXPECT_EQ(statistics().live_objects, 1u);
}

TEST_ALL_CONFIGS(BadPointerTest, InsideAndFreedLargeObjectsAreToldApart) {
  Slot& t = thread();
  void* p = take(t, 1 << 20);
  for (Bytes n : {Bytes{16}, Bytes{65536}, Bytes{(1 << 20) - 16}})
    EXPECT_EQ(free(t, beyond(p, n)), Verdict::kNotAStart) << n;
  EXPECT_EQ(free(t, p), Verdict::kGood);
  EXPECT_EQ(free(t, p), Verdict::kFreedAlready);
  EXPECT_EQ(engine().pointers().find(p).verdict, Verdict::kFreedAlready);
  EXPECT_EQ(statistics().live_objects, 0u);
}

TEST_ALL_CONFIGS(BadPointerTest, CheckedTellsEveryDoubleFreeAndInteriorPointer) {
  begin_checked();
  Slot &t = thread(), &other = thread();
  for (Bytes size : telling_sizes()) {
    void* p = take(t, size);
    take(other, size);
    EXPECT_EQ(engine().pointers().find(p).verdict, Verdict::kGood);
    if (size > 8) {
      EXPECT_EQ(free(t, beyond(p, 8)), Verdict::kNotAStart) << size;
    }
    if (size > 16) {
      EXPECT_EQ(free(other, beyond(p, 16)), Verdict::kNotAStart) << size;
    }
    EXPECT_EQ(free(t, p), Verdict::kGood) << size;
    EXPECT_EQ(free(t, p), Verdict::kFreedAlready) << size;
    EXPECT_EQ(free(other, p), Verdict::kFreedAlready) << size;
    EXPECT_EQ(engine().pointers().find(p).verdict, Verdict::kFreedAlready) << size;
  }
  EXPECT_EQ(statistics().live_objects, telling_sizes().size());
}

TEST_ALL_CONFIGS(BadPointerTest, CheckedTellsADoubleFreeOfAnotherThreadsObject) {
  begin_checked();
  Slot &a = thread(), &b = thread();
  void* p = take(a, 64);
  take(b, 64);
  EXPECT_EQ(free(b, p), Verdict::kGood);
  EXPECT_EQ(free(b, p), Verdict::kFreedAlready);  // still on its way
  EXPECT_EQ(free(a, p), Verdict::kFreedAlready);
}

TEST_ALL_CONFIGS(BadPointerTest, CheckedServesAlignedZeroedAndResizedObjectsToo) {
  begin_checked();
  Slot& t = thread();
  void* p = engine().allocate_aligned(100, 256, t);
  EXPECT_EQ(free(t, p), Verdict::kGood);
  EXPECT_EQ(free(t, p), Verdict::kFreedAlready);
  void* z = engine().allocate_zeroed(40, t);
  void* r = engine().reallocate(z, engine().pointers().find(z).word, 4000, t);
  EXPECT_EQ(free(t, z), Verdict::kFreedAlready);
  EXPECT_EQ(free(t, r), Verdict::kGood);
  EXPECT_EQ(statistics().live_objects, 0u);
}

TEST_ALL_CONFIGS(BadPointerTest,
                 UncheckedADoubleFreeOnTheSlabsListIsToldBeforeAnythingIsHandedOutTwice) {
  Slot& t = thread();
  std::vector<void*> all;
  const unsigned n = capacity_of(class_of(64));
  for (unsigned i = 0; i < n; ++i) all.push_back(take(t, 64));
  take(t, 64);  // the next slab is current now
  for (int i = 0; i < 3; ++i) give(t, all[static_cast<size_t>(i)]);
  free_unseen(t, all[2]);
  std::vector<void*> got;
  for (unsigned i = 0; i < 4 * n && reports.empty(); ++i) {
    void* p = take(t, 64);
    EXPECT_EQ(std::count(got.begin(), got.end(), p), 0) << "handed out twice";
    got.push_back(p);
    give(t, all[3 + i % (n - 3)]);
    all[3 + i % (n - 3)] = p;
    got.erase(std::remove(got.begin(), got.end(), p), got.end());
  }
  ASSERT_FALSE(reports.empty());
  EXPECT_TRUE(reports[0].why == Verdict::kListDamaged || reports[0].why == Verdict::kFreedAlready);
  reports.clear();
}

TEST_OWNED(BadPointerTest, UncheckedAnotherThreadsObjectThatIsFreedTwiceInARowIsToldAtOnce) {
  Slot &a = thread(), &b = thread();
  for (Bytes size : {Bytes{64}, Bytes{4096}}) {
    std::vector<void*> all;
    for (int i = 0; i < 3; ++i) all.push_back(take(a, size));
    give(b, all[0]);  // this object is the holder, which names the others
    for (int before = 1; before < 3; ++before) {
      give(b, all[static_cast<size_t>(before)]);
      EXPECT_TRUE(reports.empty());
      EXPECT_EQ(free(b, all[static_cast<size_t>(before)]), Verdict::kFreedAlready) << size;
    }
    EXPECT_EQ(statistics().live_objects, 0u);
  }
}

TEST_ALL_CONFIGS(BadPointerTest, MoreFreesThanObjectsAreToldAndNothingIsHandedOutTwice) {
  Slot& t = thread();
  void* in_use = take(t, 64);
  void* p = take(t, 64);
  give(t, p);
  for (int i = 0; i < 100 && reports.empty(); ++i) {
    *static_cast<uint64_t*>(p) = 1;  // so that the free does not see it
    (void)engine().free(p, t);
  }
  ASSERT_FALSE(reports.empty());
  EXPECT_EQ(reports[0].why, Verdict::kFreedAlready);
  std::vector<void*> got = {in_use};
  for (int i = 0; i < 300; ++i) got.push_back(take(t, 64));
  std::sort(got.begin(), got.end());
  EXPECT_EQ(std::unique(got.begin(), got.end()), got.end());
  reports.clear();
}

// The object is freed although it waits in the bin, so the bin leads into the slab's list. If the
// list is long, the bin leads to more objects than are in use. If the list is short, the bin leads
// in a circle once it is put back.
TEST_ALL_CONFIGS(BadPointerTest, AnObjectOfTheBinThatIsFreedAgainIsToldAfterTheBinIsPutBack) {
  for (const size_t listed : {1, 40}) {
    SCOPED_TRACE(listed);
    begin({});
    Slot& t = thread();
    void* in_use = take(t, 64);
    std::vector<void*> all;
    for (size_t i = 0; i < listed; ++i) all.push_back(take(t, 64));
    for (void* p : all) give(t, p);
    void* next = static_cast<std::byte*>(in_use) + 64 * (1 + listed);
    free_unseen(t, next);
    EXPECT_TRUE(reports.empty());
    engine().upkeep().trim(t);
    EXPECT_EQ(reports.empty(), listed == 1);
    std::vector<void*> got = {in_use};
    for (int i = 0; i < 300; ++i) got.push_back(take(t, 64));
    ASSERT_FALSE(reports.empty());
    EXPECT_EQ(reports[0].why, Verdict::kListDamaged);
    engine().check_invariants();
    std::sort(got.begin(), got.end());
    EXPECT_EQ(std::unique(got.begin(), got.end()), got.end());
    reports.clear();
  }
}

// The slab gets as many frees as it has objects. One of them is a double free, which makes a circle
// further down the slab's list than a refill looks.
TEST_ALL_CONFIGS(BadPointerTest, ASlabThatLooksEmptyByADoubleFreeIsNotCarvedAnew) {
  Slot& t = thread();
  const unsigned n = capacity_of(class_of(64));
  std::vector<void*> all;
  for (unsigned i = 0; i < n; ++i) all.push_back(take(t, 64));
  take(t, 64);  // the next slab is current now
  void* in_use = all[0];
  fill(in_use, 64, 9);
  for (unsigned first : {1, 2})
    for (unsigned i = first; i < n; i += 2) (void)free(t, all[i]);
  free_unseen(t, all[n - 2 * 8]);
  for (unsigned i = 0; i < 2 * n; ++i) EXPECT_NE(take(t, 64), in_use) << "handed out twice";
  EXPECT_TRUE(is_whole(in_use, 64, 9));
  ASSERT_FALSE(reports.empty());
  EXPECT_EQ(reports[0].why, Verdict::kListDamaged);
  reports.clear();
}

// Fills slabs of 4 KiB objects. Then it frees as many objects of the first slab as that has, but
// one of them twice and one never.
class DamagedSlabTest : public BadPointerTest {
 protected:
  void damage(Slot& t, bool second_partial) {
    const unsigned n = capacity_of(class_of(4096));
    std::vector<void*> all;
    for (unsigned i = 0; i < 3 * n; ++i) all.push_back(take(t, 4096));
    for (unsigned i = n; second_partial && i < n + n / 2; ++i) give(t, all[i]);
    in_use_ = all[0];
    fill(in_use_, 4096, 9);
    for (unsigned i = 1; i < n; ++i) (void)free(t, all[i]);
    free_unseen(t, all[1]);
  }
  void TearDown() override {
    reports.clear();
    BadPointerTest::TearDown();
  }
  void* in_use_ = nullptr;
};

TEST_ALL_CONFIGS(DamagedSlabTest, IsToldWhenItIsToGoBackAndTheLaneStaysWhole) {
  Slot& t = thread();
  damage(t, true);
  engine().check_invariants();
  engine().upkeep().trim(t);
  ASSERT_FALSE(reports.empty());
  EXPECT_EQ(reports[0].why, Verdict::kListDamaged);
  engine().check_invariants();
}

TEST_ALL_CONFIGS(DamagedSlabTest, IsToldWhenItLooksEmptyAndItsLastObjectIsFreed) {
  Slot& t = thread();
  damage(t, true);
  (void)engine().free(in_use_, t);
  ASSERT_FALSE(reports.empty());
  EXPECT_EQ(reports[0].why, Verdict::kFreedAlready);
  engine().check_invariants();
}

TEST_ALL_CONFIGS(DamagedSlabTest, IsNotGivenBackWithAnObjectInUse) {
  Slot& t = thread();
  damage(t, false);
  engine().upkeep().trim(t);
  engine().check_invariants();
  ASSERT_EQ(engine().pointers().find(in_use_).verdict, Verdict::kGood)
      << "its memory was given back";
  EXPECT_TRUE(is_whole(in_use_, 4096, 9));
  EXPECT_FALSE(reports.empty());
}

}  // namespace
}  // namespace lanemalloc
