// Empty slabs: a lane keeps them for itself. It gives them up before any thread takes fresh memory,
// and later in any case.
#include "fixture.h"

namespace lanemalloc {
namespace {

class EmptySlabsTest : public EngineTest {
 protected:
  static constexpr Bytes kSize = 1024;   // in slabs of one block
  static constexpr Bytes kOther = 768;   // the same
  static constexpr Bytes kLong = 14336;  // in slabs of two blocks

  std::vector<void*> take_slabs(Slot& t, uint32_t slabs, Bytes size = kSize) {
    std::vector<void*> all;
    for (uint32_t i = slabs * capacity_of(class_of(size)); i > 0; --i) all.push_back(take(t, size));
    return all;
  }
  void give_all(Slot& t, const std::vector<void*>& all) {
    for (void* p : all) give(t, p);
  }
  // Leaves `slabs` empty slabs in the thread's lane.
  void leave_empty(Slot& t, uint32_t slabs, Bytes size = kSize) {
    give_all(t, take_slabs(t, slabs + 1, size));  // the bin's own slab is not one of them
    ASSERT_EQ(lane_of(t)->empty_blocks(), slabs);
  }
  // Bytes that are in use, lie in a lane, or are free and were not given back. All of them have
  // been fresh once.
  Bytes touched() {
    const RunStatistics runs = statistics().runs;
    return runs.claimed - runs.clean;
  }
};

TEST_ALL_CONFIGS(EmptySlabsTest, TheSameClassTakesThemUpAgain) {
  Slot& t = thread();
  leave_empty(t, 40);
  const Bytes before = touched();
  const uint64_t made = statistics().slabs_made;
  for (int round = 0; round < 3; ++round) {
    const std::vector<void*> all = take_slabs(t, 41);
    EXPECT_EQ(lane_of(t)->empty_blocks(), 0u);
    give_all(t, all);
  }
  EXPECT_EQ(statistics().slabs_made, made);
  EXPECT_EQ(touched(), before);
  EXPECT_EQ(statistics().runs.dirty, 0u);
}

TEST_ALL_CONFIGS(EmptySlabsTest, TheirObjectsComeInTheOrderOfTheirAddresses) {
  Slot& t = thread();
  Random random(1);
  for (Bytes size : {Bytes{16}, Bytes{208}, Bytes{1024}}) {
    std::vector<void*> all = take_slabs(t, 9, size);
    for (int round = 0; round < 3; ++round) {
      for (size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[random.below(i)]);
      give_all(t, all);
      all = take_slabs(t, 9, size);
      size_t neighbours = 0;
      for (size_t i = 1; i < all.size(); ++i)
        neighbours += static_cast<char*>(all[i]) == static_cast<char*>(all[i - 1]) + size;
      EXPECT_GE(neighbours, all.size() / 2) << size;  // except in the slab that the bin kept
    }
    give_all(t, all);
  }
}

TEST_ALL_CONFIGS(EmptySlabsTest, AnotherClassOfTheLaneTakesThemBeforeFreshMemory) {
  Slot& t = thread();
  leave_empty(t, 40);
  const Bytes before = touched();
  const std::vector<void*> all = take_slabs(t, 40, kOther);
  EXPECT_EQ(lane_of(t)->empty_blocks(), 0u);
  EXPECT_EQ(touched(), before);
  give_all(t, all);
}

TEST_ALL_CONFIGS(EmptySlabsTest, ALongerSlabIsMadeOfThem) {
  Slot& t = thread();
  leave_empty(t, 40);
  const Bytes before = touched();
  const std::vector<void*> all = take_slabs(t, 19, kLong);
  EXPECT_EQ(touched(), before);
  give_all(t, all);
  // One slab of several blocks is kept, and so is what was not needed of the forty.
  EXPECT_LE(lane_of(t)->empty_blocks(), 40 - 18 * slab_blocks_of(class_of(kLong)));
}

TEST_ALL_CONFIGS(EmptySlabsTest, AnotherLanesAreCollectedBeforeFreshMemoryIsTaken) {
  Slot &a = thread(), &b = thread();
  leave_empty(a, 40);
  const Bytes before = touched();
  const std::vector<void*> all = take_slabs(b, 40);
  EXPECT_NE(lane_of(a), lane_of(b));
  EXPECT_EQ(lane_of(a)->empty_blocks(), 0u);
  EXPECT_EQ(touched(), before);
  give_all(b, all);
}

// Each thread takes what the thread before it has left, whatever the sizes were.
TEST_ALL_CONFIGS(EmptySlabsTest, MemoryGoesFromThreadToThreadAndDoesNotGrow) {
  Slot &a = thread(), &b = thread();
  give_all(a, take_slabs(a, 41));
  give_all(b, take_slabs(b, 41));
  give_all(a, take_slabs(a, 41, kOther));
  give_all(b, take_slabs(b, 41, kOther));
  const Bytes before = touched();
  for (int round = 0; round < 5; ++round) {
    give_all(a, take_slabs(a, 40));
    give_all(b, take_slabs(b, 40));
    give_all(a, take_slabs(a, 40, kOther));
    give_all(b, take_slabs(b, 40, kOther));
  }
  EXPECT_LE(touched(), before);
}

TEST_ALL_CONFIGS(EmptySlabsTest, AFewOfAnotherLaneStay) {
  Slot &a = thread(), &b = thread();
  leave_empty(a, Lane<Fake>::kMuch - 1);
  give_all(b, take_slabs(b, 40));
  EXPECT_EQ(lane_of(a)->empty_blocks(), Lane<Fake>::kMuch - 1);
}

// That includes what lies free in bins and in partly used slabs, as long as no thread has adopted
// the lane. After that, the memory is that thread's.
TEST_OWNED(EmptySlabsTest, OfALaneWhoseThreadHasExitedEverythingFreeIsCollected) {
  Slot &a = thread(), &b = thread();
  give(b, take(b, kSize));  // so that b has a lane, and does not adopt the other
  const std::vector<void*> kept = take_slabs(a, 1, kOther);
  give_all(a, take_slabs(a, Lane<Fake>::kMuch / 2, kOther));
  Lane<Fake>* left = lane_of(a);
  engine().exits().thread_exits(a);
  EXPECT_TRUE(left->was_left_full());
  std::vector<void*> all = take_slabs(b, Lane<Fake>::kMuch);  // after this b looks around
  EXPECT_TRUE(left->was_left_full());
  const Bytes before = touched();
  for (void* p : take_slabs(b, Lane<Fake>::kMuch / 2)) all.push_back(p);
  EXPECT_FALSE(left->was_left_full());
  EXPECT_EQ(touched(), before);
  give_all(b, kept);
  give_all(b, all);
  Slot& c = thread();
  give(c, take(c, kSize));
  EXPECT_EQ(lane_of(c), left);
  engine().exits().thread_exits(c);
  Slot& d = thread();
  give(d, take(d, kSize));
  EXPECT_EQ(lane_of(d), left);
  EXPECT_FALSE(left->was_left_full());
}

TEST_OWNED(EmptySlabsTest, OfExitedThreadsOneLaneIsEmptiedAtATimeAndAllWithoutMemory) {
  std::vector<Lane<Fake>*> left;
  std::vector<void*> kept;
  for (int i = 0; i < 4; ++i) {
    Slot& t = thread();
    for (void* p : take_slabs(t, 1)) kept.push_back(p);
    give(t, take(t, kOther));  // the bin's slab: no objects, but not an empty slab
    left.push_back(lane_of(t));
  }
  for (Lane<Fake>* lane : left) engine().exits().thread_exits(*lane->owner_slot());
  const auto full = [&] {
    return std::count_if(left.begin(), left.end(),
                         [](Lane<Fake>* lane) { return lane->was_left_full(); });
  };
  Visit visit(this, true);
  EXPECT_TRUE(world().collect_empties(Need::kSome, nullptr, visit));
  EXPECT_EQ(full(), 3);
  EXPECT_TRUE(world().collect_empties(Need::kAll, nullptr, visit));
  EXPECT_EQ(full(), 0);
  EXPECT_FALSE(world().collect_empties(Need::kAll, nullptr, visit));
  for (Lane<Fake>* lane : left) lane->leave_full(true);
  EXPECT_FALSE(world().collect_empties(Need::kAll, nullptr, visit))
      << "there was nothing to give back";
  give_all(thread(), kept);
}

// Two threads are out of memory. One of them holds the lane that keeps some.
TEST_ALL_CONFIGS(EmptySlabsTest, WithoutMemoryWhoGivesBackIsWaitedFor) {
  constexpr Bytes kLarge = 600000;
  Slot &a = thread(), &b = thread(), &c = thread();
  leave_empty(a, 40);
  Lane<Fake>* lane = lane_of(a);
  Visit other(&b, true);
  ASSERT_TRUE(lane->try_hold(other));
  EXPECT_FALSE(world().collect_empties(Need::kAll, nullptr, other))
      << "who is in a lane does not wait";
  Fake::fail(Fake::Call::kClaim, 1);
  std::vector<void*> all;
  in_handler(c, [&] {
    while (void* p = engine().allocate(kLarge, c)) all.push_back(p);  // nor does a handler wait
  });
  Fake::on_pause = [&] {
    Fake::on_pause = nullptr;
    lane->give_back_empties(lane->empty_blocks(), other);
    lane->let_go(other);
  };
  void* p = engine().allocate(kLarge, c);
  EXPECT_NE(p, nullptr);
  EXPECT_EQ(Fake::on_pause, nullptr);
  Fake::fail_never();
  give(c, p);
  give_all(c, all);
}

TEST_ALL_CONFIGS(EmptySlabsTest, ThoseOfABusyLaneStay) {
  Slot &a = thread(), &b = thread();
  leave_empty(a, 40);
  Lane<Fake>* lane = lane_of(a);
  in_handler(a, [&] {
    const std::vector<void*> all = take_slabs(b, 30);
    EXPECT_EQ(lane->empty_blocks(), 40u);
    give_all(b, all);
  });
}

TEST_ALL_CONFIGS(EmptySlabsTest, TheyAgeAwayInALaneThatWorks) {
  Slot& t = thread();
  leave_empty(t, 40);
  const uint32_t begin = world().runs.epoch();
  std::vector<void*> all;
  while (lane_of(t)->empty_blocks() != 0 && world().runs.epoch() < begin + 10) {
    world().runs.advance_epoch();
    const uint64_t misses = statistics().misses;
    while (statistics().misses == misses) all.push_back(take(t, 2048));
    if (world().runs.epoch() < begin + 4) {
      EXPECT_GE(lane_of(t)->empty_blocks(), 35u);
    }
  }
  EXPECT_EQ(world().runs.epoch(), begin + 4);
  EXPECT_GE(statistics().runs.dirty, bytes_of(35));
  give_all(t, all);
}

TEST_ALL_CONFIGS(EmptySlabsTest, AYoungOneOutlivesTheOldOnes) {
  Slot& t = thread();
  leave_empty(t, 40);
  for (int i = 0; i < 3; ++i) world().runs.advance_epoch();
  give_all(t, take_slabs(t, 11));  // ten of the newest are used again
  world().runs.advance_epoch();
  void* p = take(t, 64);  // from one of the ten
  EXPECT_EQ(lane_of(t)->empty_blocks(), 9u);
  EXPECT_EQ(statistics().runs.dirty, bytes_of(30));
  give(t, p);
}

TEST_ALL_CONFIGS(EmptySlabsTest, ALargeAllocationCollectsThem) {
  for (Bytes size : {kSlabMax + 1, Bytes{2} << 20}) {
    for (bool another : {false, true}) {
      begin({});
      Slot &a = thread(), &b = thread();
      leave_empty(a, 64);
      const Bytes before = touched();
      give(a, take(a, kSize));  // opens the lane again: it was held for the figures
      void* p = take(another ? b : a, size);
      EXPECT_EQ(lane_of(a)->empty_blocks(), 0u) << size;
      EXPECT_EQ(touched(), before) << size;
      give(a, p);
    }
  }
}

TEST_ALL_CONFIGS(EmptySlabsTest, ALargeAllocationCollectsThemThoughThereAreFreePieces) {
  Slot &a = thread(), &b = thread();
  const std::vector<void*> slabs = take_slabs(a, 65);
  std::vector<void*> pieces;
  for (int i = 0; i < 20; ++i) pieces.push_back(take(b, kSlabMax + 1));
  for (size_t i = 1; i < pieces.size(); i += 2) give(b, pieces[i]);
  give_all(a, slabs);
  const Bytes before = touched();
  void* p = take(b, Bytes{3} << 20);
  if (config().single) {
    EXPECT_LE(touched(), before) << "a process with one thread also gives back what would not do";
  } else {
    EXPECT_EQ(touched(), before);
  }
  give(b, p);
  for (size_t i = 0; i < pieces.size(); i += 2) give(b, pieces[i]);
}

TEST_ALL_CONFIGS(EmptySlabsTest, WhereThereIsNoMemoryEvenAFewAreGivenBack) {
  for (Bytes size : {kOther, kLong}) {
    begin({});
    Slot &a = thread(), &b = thread();
    give(b, take(b, size));
    leave_empty(a, 10);
    Fake::fail(Fake::Call::kClaim, 1);
    std::vector<void*> all;
    for (void* p; (p = engine().allocate(size, b)) != nullptr;) all.push_back(p);
    Fake::fail_never();
    EXPECT_EQ(lane_of(a)->empty_blocks(), 0u);
    EXPECT_LT(statistics().runs.dirty + statistics().runs.clean,
              bytes_of(slab_blocks_of(class_of(size))));
    give_all(b, all);
  }
}

TEST_ALL_CONFIGS(EmptySlabsTest, WhereThereIsNoMemoryAThreadInsideItsLaneIsWaitedFor) {
  if (config().single) return;  // there is no other thread
  for (Bytes size : {kOther, kLong}) {
    begin({});
    Slot &a = thread(), &b = thread();
    give(b, take(b, size));
    leave_empty(a, 10);
    Fake::fail(Fake::Call::kClaim, 1);
    Stopped inside(a);
    int pauses = 0;
    Fake::on_pause = [&] {
      if (++pauses == 3) inside.leave();
    };
    std::vector<void*> all;
    for (void* p; (p = engine().allocate(size, b)) != nullptr;) all.push_back(p);
    Fake::on_pause = nullptr;
    Fake::fail_never();
    EXPECT_GE(pauses, 3);
    EXPECT_EQ(lane_of(a)->empty_blocks(), 0u);
    give_all(b, all);
  }
}

// Such a process has no scavenger that would give slabs back.
TEST_ALL_CONFIGS(EmptySlabsTest, AProcessWithOneThreadKeepsSome) {
  Slot& t = thread();
  give_all(t, take_slabs(t, 701));
  if (config().single) {
    EXPECT_GE(lane_of(t)->empty_blocks(), 50u);
    EXPECT_LE(lane_of(t)->empty_blocks(), 701u / 4);
  } else {
    EXPECT_EQ(lane_of(t)->empty_blocks(), 700u);
  }
}

TEST_ALL_CONFIGS(EmptySlabsTest, TheyGoBackWhenTheLaneRestsAndWhenItIsTrimmed) {
  Slot& t = thread();
  leave_empty(t, 40);
  engine().upkeep().trim(t);
  EXPECT_EQ(lane_of(t)->empty_blocks(), 0u);
  EXPECT_EQ(statistics().slab_bytes, 0u);
  start_threads();
  leave_empty(t, 40);
  all_passes();
  EXPECT_EQ(statistics().slab_bytes, 0u);
}

}  // namespace
}  // namespace lanemalloc
