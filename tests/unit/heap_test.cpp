// Heaps: sizes, frees with and without a size, limits along the parents, walks, and a heap's end
// with everything in it.
#include "fronts/heap/heap.h"

#include <map>

#include "fixture.h"

namespace lanemalloc {
namespace {

class HeapTest : public EngineTest {
 protected:
  // Thread i, about to do something.
  Slot& t(size_t i = 0) {
    while (threads_.size() <= i) threads_.push_back(&thread());
    if (i > 0) start_threads();
    Fake::number = cpu_of(*threads_[i]);
    return *threads_[i];
  }
  // A heap without a name of its own. It ends with the test, unless the test ends it before.
  FakeHeap& make(Bytes limit = 0, FakeHeap* parent = nullptr, Bytes soft = 0) {
    heaps_.push_back(std::make_unique<FakeHeap>(engine(), kSource, "test", parent));
    EXPECT_TRUE(
        heaps_.back()->start(limit, soft, soft != 0 ? &HeapTest::on_soft : nullptr, this, t()));
    return *heaps_.back();
  }
  uint64_t end(FakeHeap& heap) {
    return heap.end(t(), [this](FakeHeap& gone) { ended_.push_back(&gone); });
  }
  void* take(FakeHeap& heap, Slot& slot, Bytes size) {
    void* p = heap.allocate(size, kGranule, slot);
    EXPECT_NE(p, nullptr) << size;
    return p;
  }
  Verdict give(FakeHeap& heap, Slot& slot, void* p, Bytes size = FakeHeap::kUnknown) {
    return heap.free(p, size, slot).verdict;
  }
  static void on_soft(lane_heap*, Bytes used, void* test) {
    static_cast<HeapTest*>(test)->passed_.push_back(used);
  }
  void TearDown() override {
    for (auto& heap : heaps_)
      if (heap->is_live()) end(*heap);  // parents come first, and take their children with them
    EngineTest::TearDown();
  }

  std::vector<Slot*> threads_;
  std::vector<std::unique_ptr<FakeHeap>> heaps_;
  std::vector<FakeHeap*> ended_;
  std::vector<Bytes> passed_;
};

TEST_ALL_CONFIGS(HeapTest, ObjectsOfEverySizeAreAlignedApartAndWhole) {
  FakeHeap& heap = make();
  struct Kept {
    void* p;
    Bytes asked, real;
  };
  std::vector<Kept> kept;
  for (int round = 0; round < 3; ++round) {
    for (Bytes size : telling_sizes()) {
      void* p = take(heap, t(), size);
      EXPECT_EQ(reinterpret_cast<Address>(p) % kGranule, 0u);
      EXPECT_EQ(heap.find(p), Verdict::kGood);
      const Bytes real = heap.usable_size(p);
      EXPECT_GE(real, size);
      if (size > 0 && size <= kSmallMax) {
        EXPECT_EQ(real, round_up(size, kGranule));
      }
      fill(p, real, kept.size());
      kept.push_back({p, size, real});
    }
  }
  const HeapCount count = heap.count(t());
  EXPECT_EQ(count.objects, kept.size());
  Bytes bytes = 0;
  for (size_t i = 0; i < kept.size(); ++i) {
    bytes += kept[i].real;
    EXPECT_TRUE(is_whole(kept[i].p, kept[i].real, i)) << kept[i].asked;
  }
  EXPECT_EQ(count.bytes, bytes);
  EXPECT_LE(bytes, heap.budget().used());
  for (size_t i = 0; i < kept.size(); ++i)
    EXPECT_EQ(give(heap, t(), kept[i].p, i % 2 == 0 ? FakeHeap::kUnknown : kept[i].asked),
              Verdict::kGood);
  EXPECT_EQ(heap.count(t()).objects, 0u);
  EXPECT_EQ(end(heap), 0u);
  EXPECT_EQ(statistics().live_objects, 0u);
}

TEST_ALL_CONFIGS(HeapTest, AlignedObjectsAreAligned) {
  FakeHeap& heap = make();
  for (Bytes alignment = 1; alignment <= (Bytes{4} << 20); alignment *= 2) {
    for (Bytes size :
         {Bytes{0}, Bytes{1}, Bytes{24}, Bytes{1000}, Bytes{1025}, Bytes{70000}, Bytes{600000}}) {
      void* p = heap.allocate(size, alignment, t());
      ASSERT_NE(p, nullptr) << size << " at " << alignment;
      EXPECT_EQ(reinterpret_cast<Address>(p) % alignment, 0u) << size;
      EXPECT_GE(heap.usable_size(p), size);
      fill(p, size, 1);
    }
  }
  EXPECT_EQ(heap.allocate(~Bytes{0}, 16, t()), nullptr);
  EXPECT_EQ(heap.allocate(~Bytes{0} - 100, 4096, t()), nullptr);
}

TEST_ALL_CONFIGS(HeapTest, EndingItGivesBackEverythingAndCountsIt) {
  const Bytes before = statistics().runs.claimed;
  for (int round = 0; round < 5; ++round) {
    FakeHeap& heap = make();
    Random random(round);
    uint64_t objects = 0;
    for (int i = 0; i < 3000; ++i) {
      Slot& slot = t(i % 3);
      void* p = take(heap, slot, random.below(3000));
      if (random.one_in(3)) {
        EXPECT_EQ(give(heap, t(random.below(3)), p), Verdict::kGood);
      } else {
        ++objects;
      }
    }
    for (Bytes size : {kSlabMax + 1, Bytes{5} << 20}) {
      take(heap, t(), size);
      ++objects;
    }
    EXPECT_EQ(end(heap), objects);
    EXPECT_EQ(ended_.back(), &heap);
    EXPECT_FALSE(heap.is_live());
    EXPECT_HOLDS(engine().check_invariants());
  }
  EXPECT_LE(statistics().runs.claimed, before + (Bytes{64} << 20));
  EXPECT_EQ(statistics().live_objects, 0u);
}

TEST_ALL_CONFIGS(HeapTest, ReallocKeepsWhatWasThere) {
  FakeHeap& heap = make();
  Random random(7);
  Bytes size = 100;
  void* p = take(heap, t(), size);
  fill(p, size, 1);
  for (int i = 0; i < 300; ++i) {
    const Bytes next =
        random.one_in(10) ? random.between(1, Bytes{6} << 20) : random.between(1, 5000);
    std::vector<std::byte> copy(static_cast<std::byte*>(p),
                                static_cast<std::byte*>(p) + std::min(size, next));
    p = heap.reallocate(p, next, t(i % 2));
    ASSERT_NE(p, nullptr);
    EXPECT_EQ(memcmp(p, copy.data(), copy.size()), 0);
    EXPECT_GE(heap.usable_size(p), next);
    memset(p, i, next);
    size = next;
  }
  EXPECT_EQ(heap.count(t()).objects, 1u);
  EXPECT_EQ(heap.budget().used() >= heap.usable_size(p), true);
}

TEST_ALL_CONFIGS(HeapTest, TheLimitHoldsAndWhatOtherLanesDoNotUseIsFound) {
  constexpr Bytes kLimit = Bytes{1} << 20;
  FakeHeap& heap = make(kLimit);
  std::vector<void*> all;
  for (int i = 0;; ++i) {
    void* p = heap.allocate(1000, kGranule, t(i % 3));
    EXPECT_LE(heap.budget().used(), kLimit);
    if (p == nullptr) break;
    all.push_back(p);
  }
  EXPECT_GE(all.size() * 1008, kLimit - 1008);
  EXPECT_EQ(heap.limit_failures(), 1u);
  // One thread frees all of it, and another one wants other sizes.
  for (void* p : all) EXPECT_EQ(give(heap, t(1), p), Verdict::kGood);
  size_t bytes = 0;
  for (;;) {
    void* p = heap.allocate(3000, kGranule, t(2));
    if (p == nullptr) break;
    bytes += heap.usable_size(p);
    EXPECT_LE(heap.budget().used(), kLimit);
  }
  EXPECT_GE(bytes, kLimit - 3072);
  EXPECT_EQ(heap.allocate(kLimit, kGranule, t()), nullptr);
  EXPECT_TRUE(heap.set_limits(0, 4 * kLimit));
  EXPECT_NE(heap.allocate(kLimit, kGranule, t()), nullptr);
}

TEST_ALL_CONFIGS(HeapTest, ChildrenAreChargedToTheirParentsAndEndWithThem) {
  constexpr Bytes kLimit = Bytes{2} << 20;
  FakeHeap& parent = make(kLimit);
  FakeHeap& child = make(0, &parent);
  FakeHeap& other = make(kLimit / 2, &parent);
  FakeHeap& grandchild = make(0, &child);
  uint64_t in_other = 0, in_grandchild = 0;
  while (other.allocate(4000, kGranule, t(0)) != nullptr) ++in_other;
  EXPECT_LE(parent.budget().used(), kLimit / 2);
  EXPECT_EQ(other.limit_failures(), 1u);
  while (grandchild.allocate(50000, kGranule, t(1)) != nullptr) ++in_grandchild;
  EXPECT_EQ(parent.limit_failures(), 1u);
  EXPECT_EQ(child.limit_failures(), 0u);
  EXPECT_EQ(parent.budget().used(), other.budget().used() + child.budget().used());
  EXPECT_EQ(child.budget().used(), grandchild.budget().used());
  EXPECT_LE(parent.budget().used(), kLimit);
  EXPECT_EQ(end(grandchild), in_grandchild);
  EXPECT_EQ(child.budget().used(), 0u);
  EXPECT_NE(child.allocate(50000, kGranule, t(2)), nullptr);
  EXPECT_EQ(end(parent), in_other + 1);
  EXPECT_EQ(ended_.size(), 4u);
  EXPECT_EQ(parent.budget().used(), 0u);
}

TEST_ALL_CONFIGS(HeapTest, WhatAChildCachesIsFoundAtTheParentsLimit) {
  constexpr Bytes kLimit = Bytes{1} << 20;
  FakeHeap& parent = make(kLimit);
  FakeHeap& child = make(0, &parent);
  std::vector<void*> all;
  while (void* p = child.allocate(1000, kGranule, t(0))) all.push_back(p);
  for (void* p : all) give(child, t(0), p);
  size_t n = 0;
  while (parent.allocate(2000, kGranule, t(1)) != nullptr) ++n;
  EXPECT_GE(n * 2048, kLimit - 2048);
}

TEST_ALL_CONFIGS(HeapTest, TheSoftLimitIsToldOnceEachTimeItIsPassed) {
  FakeHeap& heap = make(0, nullptr, 100000);
  std::vector<void*> all;
  for (int i = 0; i < 300; ++i) all.push_back(take(heap, t(), 1000));
  ASSERT_EQ(passed_.size(), 1u);
  EXPECT_GT(passed_[0], 100000u);
  EXPECT_LE(passed_[0], 100000u + 16384);
  for (void* p : all) give(heap, t(), p);
  engine().upkeep().trim(t());
  EXPECT_LE(heap.budget().used(), 100000u);
  for (int i = 0; i < 300; ++i) take(heap, t(), 1000);
  EXPECT_EQ(passed_.size(), 2u);
  EXPECT_FALSE(heap.set_limits(10, 5));
  EXPECT_TRUE(heap.set_limits(0, 0));
}

TEST_ALL_CONFIGS(HeapTest, AWalkSeesEachLiveObjectOnce) {
  FakeHeap& heap = make();
  Random random(3);
  std::map<void*, Bytes> live;
  for (int i = 0; i < 6000; ++i) {
    Slot& slot = t(random.below(3));
    if (!live.empty() && random.one_in(2)) {
      auto it = live.begin();
      std::advance(it, random.below(live.size()));
      give(heap, slot, it->first);
      live.erase(it);
    } else {
      void* p = take(
          heap, slot,
          random.one_in(200) ? random.between(kSlabMax, Bytes{2} << 20) : random.between(1, 9000));
      live[p] = heap.usable_size(p);
    }
  }
  std::map<void*, Bytes> seen;
  EXPECT_TRUE(heap.walk(t(), [&](void* p, Bytes size) {
    EXPECT_TRUE(seen.emplace(p, size).second);
    return 0;
  }));
  EXPECT_EQ(seen, live);
  int visits = 0;
  EXPECT_TRUE(heap.walk(t(), [&](void*, Bytes) { return ++visits == 5 ? 1 : 0; }));
  EXPECT_EQ(visits, 5);
  for (const auto& [p, size] : live) EXPECT_EQ(give(heap, t(), p, size), Verdict::kGood);
  EXPECT_EQ(heap.count(t()).objects, 0u);
}

TEST_ALL_CONFIGS(HeapTest, StrangersAreTold) {
  FakeHeap& heap = make();
  FakeHeap& other = make();
  void* mine = take(heap, t(), 100);
  void* theirs = take(other, t(), 100);
  void* large = take(other, t(), Bytes{1} << 20);
  void* malloced = engine().allocate(100, t());
  void* malloced_large = engine().allocate(Bytes{1} << 20, t());
  int outside = 0;
  EXPECT_EQ(give(heap, t(), theirs), Verdict::kOfKind);
  EXPECT_EQ(give(heap, t(), large), Verdict::kOfKind);
  EXPECT_EQ(give(heap, t(), malloced), Verdict::kOfMalloc);
  EXPECT_EQ(give(heap, t(), malloced_large), Verdict::kOfMalloc);
  EXPECT_EQ(give(heap, t(), &outside), Verdict::kNotOurs);
  EXPECT_EQ(give(heap, t(), mine, 113), Verdict::kWrongSize);
  EXPECT_EQ(other.find(static_cast<char*>(large) + kBlockSize), Verdict::kNotAStart);
  EXPECT_EQ(heap.find(static_cast<char*>(mine) + 8), Verdict::kNotAStart);
  EXPECT_EQ(engine().pointers().find(mine).verdict, Verdict::kOfKind);
  EXPECT_EQ(engine().pointers().find(large).verdict, Verdict::kOfKind);
  EXPECT_EQ(engine().free(mine, t()), Verdict::kOfKind);
  EXPECT_EQ(engine().free(large, t()), Verdict::kOfKind);
  EXPECT_STREQ(engine().kinds().family_of(large)->name, "test");
  EXPECT_EQ(engine().kinds().family_of(malloced), nullptr);
  EXPECT_EQ(give(heap, t(), mine, 112), Verdict::kGood);
  engine().free(malloced, t());
  engine().free(malloced_large, t());
}

TEST_ALL_CONFIGS(HeapTest, WithoutABarrierItWorksInLanesThatCanBeTaken) {
  Fake::has_barrier = false;
  FakeHeap& heap = make(Bytes{1} << 20);
  std::vector<void*> all;
  for (int i = 0;; ++i) {
    void* p = heap.allocate(500, kGranule, t(i % 3));
    if (p == nullptr) break;
    all.push_back(p);
  }
  EXPECT_GE(all.size() * 512, (size_t{1} << 20) - 512);
  for (void* p : all) EXPECT_EQ(give(heap, t(1), p), Verdict::kGood);
  EXPECT_NE(heap.allocate(500000, kGranule, t(2)), nullptr);
  EXPECT_EQ(end(heap), 1u);
  Fake::has_barrier = true;
}

TEST_ALL_CONFIGS(HeapTest, ThreadsThatEndLeaveTheirObjects) {
  FakeHeap& heap = make();
  std::vector<void*> all;
  for (int i = 0; i < 5; ++i) {
    for (int j = 0; j < 500; ++j) {
      all.push_back(take(heap, t(i), 100 + j % 50));
      fill(all.back(), 100, all.size());
    }
    engine().exits().thread_exits(t(i));
  }
  for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(is_whole(all[i], 100, i + 1));
  for (void* p : all) EXPECT_EQ(give(heap, t(7), p), Verdict::kGood);
  EXPECT_EQ(heap.count(t(7)).objects, 0u);
}

TEST_ALL_CONFIGS(HeapTest, OutOfMemoryAtAnyStepIsNull) {
  for (int step = 0; step < 40; ++step) {
    FakeHeap& heap = make();
    Fake::fail(step % 2 == 0 ? Fake::Call::kClaim : Fake::Call::kExtend,
               static_cast<uint64_t>(step / 2 + 1));
    for (int i = 0; i < 50; ++i) {
      void* p = heap.allocate(Bytes{1} << (4 + i % 18), kGranule, t(i % 2));
      if (p != nullptr) fill(p, 16, 1);
    }
    Fake::fail_never();
    EXPECT_NE(heap.allocate(100, kGranule, t()), nullptr);
    end(heap);
    EXPECT_HOLDS(engine().check_invariants());
  }
}

TEST_ALL_CONFIGS(HeapTest, ChildrenComeAndGoUnderAParentAtItsLimit) {
  constexpr Bytes kLimit = Bytes{1} << 20;
  FakeHeap& parent = make(kLimit);
  for (int round = 0; round < 20; ++round) {
    FakeHeap& child = make(0, &parent);
    FakeHeap& other = make(0, &child);
    while (other.allocate(3000, kGranule, t(1)) != nullptr) {
    }
    EXPECT_EQ(parent.allocate(70000, kGranule, t(2)), nullptr);
    end(round % 2 == 0 ? child : other);
    void* p = parent.allocate(70000, kGranule, t(2));
    EXPECT_NE(p, nullptr);
    give(parent, t(), p);
    if (child.is_live()) end(child);
  }
  EXPECT_EQ(end(parent), 0u);
}

TEST_ALL_CONFIGS(HeapTest, ReallocTellsOfTheSoftLimitItself) {
  FakeHeap& heap = make(0, nullptr, 1 << 20);
  EngineTest::give(t(), EngineTest::take(t(), 4 << 20));  // room to grow in place
  void* p = take(heap, t(), 600000);
  p = heap.reallocate(p, 700000, t());
  EXPECT_EQ(passed_.size(), 0u);
  p = heap.reallocate(p, 1200000, t());
  EXPECT_EQ(passed_.size(), 1u);
  EXPECT_NE(p, nullptr);
}

TEST_ALL_CONFIGS(HeapTest, AHeapThatIsNoMoreHasNoPlaceInLanes) {
  FakeHeap& heap = make();
  take(heap, t(), 100);
  const Handle handle = heap.family().handle;
  EXPECT_EQ(heap.family().label.load(), handle);
  EXPECT_NE(world().kinds.find(handle, Family::Type::kHeap), nullptr);
  EXPECT_EQ(world().kinds.find(handle, Family::Type::kPool), nullptr);
  end(heap);
  EXPECT_EQ(heap.family().label.load(), 0u);
  EXPECT_EQ(world().kinds.find(handle, Family::Type::kHeap), nullptr);
  EXPECT_EQ((FakeHeap::allocate_from_bin(handle, 100, t())), nullptr);
}

class CheckedHeapTest : public HeapTest {
 protected:
  void SetUp() override {
    HeapTest::SetUp();
    begin_checked();
  }
};

TEST_ALL_CONFIGS(CheckedHeapTest, EveryWrongSizeAndEveryByteBehindIsSeen) {
  FakeHeap& heap = make();
  for (Bytes size : {Bytes{0}, Bytes{1}, Bytes{24}, Bytes{1000}, Bytes{5000}, Bytes{700000}}) {
    auto* p = static_cast<unsigned char*>(take(heap, t(), size));
    memset(p, 0, size);
    EXPECT_EQ(heap.usable_size(p), size);
    const HeapFree wrong = heap.free(p, size + 1, t());
    EXPECT_EQ(wrong.verdict, Verdict::kWrongSize);
    EXPECT_EQ(wrong.asked, size);
    const unsigned char behind = p[size];
    p[size] = static_cast<unsigned char>(~behind);
    EXPECT_EQ(give(heap, t(), p, size), Verdict::kOverrun) << size;
    p[size] = behind;
    EXPECT_EQ(give(heap, t(), p, size), Verdict::kGood) << size;
    if (size < kSlabMax) {
      EXPECT_EQ(give(heap, t(), p), Verdict::kFreedAlready);
    }
  }
  take(heap, t(), 100);
  EXPECT_EQ(end(heap), 1u);
  // The marks of the objects that went with the heap are gone.
  for (int i = 0; i < 3000; ++i) engine().allocate(100, t());
}

}  // namespace
}  // namespace lanemalloc
