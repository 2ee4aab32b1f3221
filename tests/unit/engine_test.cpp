// Engine: malloc and free of every size, and giving memory back.
#include "fixture.h"

namespace lanemalloc {
namespace {

TEST_ALL_CONFIGS(EngineTest, ObjectsOfEverySizeAreAlignedApartAndWhole) {
  Slot& t = thread();
  struct Kept {
    void* p;
    Bytes size;
  };
  std::vector<Kept> kept;
  for (int round = 0; round < 3; ++round) {
    for (Bytes size : telling_sizes()) {
      void* p = take(t, size);
      EXPECT_EQ(reinterpret_cast<Address>(p) % kGranule, 0u);
      const Found found = engine().pointers().find(p);
      ASSERT_EQ(found.verdict, Verdict::kGood);
      EXPECT_GE(engine().pointers().usable_size(p, found.word), size);
      fill(p, engine().pointers().usable_size(p, found.word), kept.size());
      kept.push_back({p, engine().pointers().usable_size(p, found.word)});
    }
  }
  for (size_t i = 0; i < kept.size(); ++i)
    EXPECT_TRUE(is_whole(kept[i].p, kept[i].size, i)) << kept[i].size;
  for (const Kept& k : kept) give(t, k.p);
  EXPECT_EQ(statistics().live_objects, 0u);
  EXPECT_EQ(statistics().live_bytes, 0u);
}

TEST_ALL_CONFIGS(EngineTest, AFreedObjectIsUsedAgainBeforeFreshMemoryIs) {
  Slot& t = thread();
  for (Bytes size : {Bytes{32}, Bytes{4000}, Bytes{100000}, Bytes{1} << 20}) {
    for (int i = 0; i < 2000; ++i) give(t, take(t, size));
    EXPECT_LE(statistics().runs.claimed, Bytes{16} << 20) << size;
  }
}

TEST_ALL_CONFIGS(EngineTest, NullIsFreedInPeace) {
  Slot& t = thread();
  give(t, nullptr);
  EXPECT_EQ(t.load(), &no_lane_gate);
  give(t, take(t, 8));
  give(t, nullptr);
  EXPECT_EQ(statistics().live_objects, 0u);
}

TEST_ALL_CONFIGS(EngineTest, SizesBeyondTheRegionAreRefused) {
  Slot& t = thread();
  for (Bytes size :
       {world().region.most_bytes(), world().region.most_bytes() + 1, ~Bytes{0} / 2, ~Bytes{0}})
    EXPECT_EQ(engine().allocate(size, t), nullptr) << size;
  for (Bytes alignment = Bytes{1} << 40; alignment != 0; alignment *= 2)
    EXPECT_EQ(engine().allocate_aligned(64, alignment, t), nullptr) << alignment;
  give(t, take(t, 100));
}

TEST_ALL_CONFIGS(EngineTest, AlignedObjectsAreAligned) {
  Slot& t = thread();
  std::vector<void*> all;
  for (Bytes alignment = 1; alignment <= (Bytes{16} << 20); alignment *= 2) {
    for (Bytes size : {Bytes{0}, Bytes{1}, Bytes{24}, Bytes{100}, Bytes{1025}, Bytes{5000},
                       Bytes{70000}, Bytes{300000}}) {
      void* p = engine().allocate_aligned(size, alignment, t);
      ASSERT_NE(p, nullptr) << size << " at " << alignment;
      EXPECT_EQ(reinterpret_cast<Address>(p) % alignment, 0u) << size;
      EXPECT_GE(engine().pointers().usable_size(p, engine().pointers().find(p).word), size);
      fill(p, size, alignment + size);
      EXPECT_TRUE(is_whole(p, size, alignment + size));
      all.push_back(p);
    }
  }
  for (void* p : all) give(t, p);
  EXPECT_EQ(statistics().live_objects, 0u);
}

TEST_ALL_CONFIGS(EngineTest, ZeroedObjectsAreZero) {
  Slot& t = thread();
  for (Bytes size : telling_sizes()) {
    for (int round = 0; round < 2; ++round) {  // the second time, the memory was used before
      auto* p = static_cast<unsigned char*>(engine().allocate_zeroed(size, t));
      ASSERT_NE(p, nullptr);
      EXPECT_TRUE(size == 0 || (p[0] == 0 && memcmp(p, p + 1, size - 1) == 0)) << size;
      memset(p, 0xFF, size);
      give(t, p);
    }
  }
}

// --- Giving back.

TEST_ALL_CONFIGS(EngineTest, TrimGivesBackEverythingThatIsFree) {
  Slot& t = thread();
  std::vector<void*> all;
  for (Bytes size : telling_sizes())
    for (int i = 0; i < 10; ++i) fill(all.emplace_back(take(t, size)), size, 1);
  for (void* p : all) give(t, p);
  engine().upkeep().trim(t);
  const Statistics s = statistics();
  EXPECT_EQ(s.slab_bytes, 0u);
  EXPECT_EQ(s.runs.dirty, 0u);
  EXPECT_EQ(s.runs.claimed, s.runs.clean);
  EXPECT_FALSE(engine().upkeep().trim(t)) << "there is nothing more";
}

TEST_ALL_CONFIGS(EngineTest, TrimReachesIdleThreadsAndLanesOfNobody) {
  Slot &a = thread(), &b = thread(), &c = thread();
  std::vector<void*> all;
  for (Slot* t : {&a, &b})
    for (int i = 0; i < 3000; ++i) all.push_back(take(*t, 100));
  for (size_t i = 0; i < all.size(); ++i) give(i < 3000 ? a : b, all[i]);
  engine().exits().thread_exits(b);
  EXPECT_TRUE(engine().upkeep().trim(c));
  EXPECT_EQ(statistics().slab_bytes, 0u);
  EXPECT_EQ(statistics().runs.dirty, 0u);
  give(a, take(a, 100));
}

TEST_ALL_CONFIGS(EngineTest, TrimGivesBackWhatThreadsHaveCollectedForEachOther) {
  Slot &a = thread(), &b = thread(), &c = thread();
  void* pa = take(a, 100);
  void* pb = take(b, 100);
  give(b, pa);
  give(a, pb);
  engine().upkeep().trim(c);
  EXPECT_EQ(statistics().in_flight_objects, 0u);
  EXPECT_EQ(statistics().slab_bytes, 0u)
      << "one round of cleaning leaves what the later lanes sent to the earlier ones";
}

TEST_ALL_CONFIGS(EngineTest, ACleanedLanesSlabsFeedOtherLanes) {
  Slot &a = thread(), &b = thread();
  void* kept = take(a, 100);
  engine().upkeep().trim(a);
  EXPECT_EQ(owner_of(kept), Owner::kDepot);
  const uint64_t made = statistics().slabs_made;
  void* p = take(b, 100);
  EXPECT_EQ(owner_of(p), lane_of(b)->id());
  EXPECT_EQ(owner_of(kept), lane_of(b)->id());
  EXPECT_EQ(statistics().slabs_made, made);
  give(a, kept);
  give(b, p);
  EXPECT_EQ(statistics().live_objects, 0u);
}

TEST_ALL_CONFIGS(EngineTest, ObjectsOfTheDepotAreFreedByAnybody) {
  Slot &a = thread(), &b = thread();
  std::vector<void*> all;
  for (int i = 0; i < 1000; ++i) all.push_back(take(a, 100));
  for (int i = 0; i < 1000; i += 7) give(a, all[static_cast<size_t>(i)]);
  engine().upkeep().trim(a);
  for (int i = 0; i < 1000; ++i)
    if (i % 7 != 0) give(i % 2 == 0 ? a : b, all[static_cast<size_t>(i)]);
  EXPECT_EQ(statistics().live_objects, 0u);
  engine().upkeep().trim(a);
  engine().upkeep().trim(b);
  EXPECT_EQ(statistics().slab_bytes, 0u);
}

}  // namespace
}  // namespace lanemalloc
