// Scavenger: its passes, run by hand over a clock that the test moves.
#include "fixture.h"

namespace lanemalloc {
namespace {

class ScavengerTest : public EngineTest {
 protected:
  void SetUp() override {
    EngineTest::SetUp();
    start_threads();
  }
  // The thread allocates objects and frees them itself. It does nothing more.
  void use_and_free(Slot& t, int n, Bytes size) {
    std::vector<void*> all;
    for (int i = 0; i < n; ++i) all.push_back(take(t, size));
    for (void* p : all) give(t, p);
  }
};

TEST_ALL_CONFIGS(ScavengerTest, MemoryOfAnIdleThreadReturnsAndTheScavengerComesToRest) {
  Slot& t = thread();
  use_and_free(t, 20000, 200);
  EXPECT_GT(statistics().slab_bytes, 0u);
  all_passes();
  const Statistics s = statistics();
  EXPECT_EQ(s.slab_bytes, 0u);
  EXPECT_EQ(s.runs.dirty, 0u);
  if (is_owned()) {
    EXPECT_GT(s.revocations, 0u);
  }
  EXPECT_FALSE(is_scavenger_wanted()) << "it sleeps";
  give(t, take(t, 200));
  EXPECT_TRUE(is_scavenger_wanted()) << "new work wakes it";
}

TEST_ALL_CONFIGS(ScavengerTest, FreedMemoryIsKeptForTheDecayTimeAndNotMuchLonger) {
  Slot& t = thread();
  give(t, take(t, 10 << 20));
  const uint64_t before = Fake::clock;
  while (statistics().runs.dirty != 0 && passes(1)) {
  }
  EXPECT_GE(Fake::clock - before, 1000u);
  EXPECT_LE(Fake::clock - before, 2000u);
  EXPECT_EQ(statistics().runs.dirty, 0u);
}

TEST_ALL_CONFIGS(ScavengerTest, ADecayTimeThatIsSetLaterReturnsWhatWasKept) {
  Settings settings = world().settings;
  settings.decay_ms = -1;
  engine().adjust(settings);
  Slot& t = thread();
  give(t, take(t, 10 << 20));
  EXPECT_FALSE(passes(1)) << "there is no pass";
  EXPECT_GT(statistics().runs.dirty, 0u);
  settings.decay_ms = 100;
  engine().adjust(settings);
  ASSERT_TRUE(is_scavenger_wanted()) << "though no thread calls any more";
  all_passes();
  EXPECT_EQ(statistics().runs.dirty, 0u);
}

TEST_ALL_CONFIGS(ScavengerTest, AShorterDecayTimeIsFollowedWhileItSleeps) {
  Settings settings = world().settings;
  settings.decay_ms = 1000 * 3600;
  engine().adjust(settings);
  Slot& t = thread();
  give(t, take(t, 10 << 20));
  ASSERT_TRUE(passes(1));
  settings.decay_ms = 100;
  engine().adjust(settings);
  const uint64_t before = Fake::clock;
  all_passes();
  EXPECT_EQ(statistics().runs.dirty, 0u);
  EXPECT_LE(Fake::clock - before, 2000u);
}

TEST_ALL_CONFIGS(ScavengerTest, ABusyLaneIsLeftAloneAndLaterCleaned) {
  Slot& t = thread();
  use_and_free(t, 2000, 200);
  in_handler(t, [&] {
    passes(10);
    EXPECT_GT(statistics().slab_bytes, 0u);
    EXPECT_GT(statistics().refused_revocations, 0u);
  });
  all_passes();
  EXPECT_EQ(statistics().slab_bytes, 0u);
}

TEST_ALL_CONFIGS(ScavengerTest, AThreadThatWorksKeepsItsMemory) {
  Slot& t = thread();
  void* p = take(t, 200);
  use_and_free(t, 1000, 200);
  for (int i = 0; i < 20; ++i) {
    use_and_free(t, 500, 200);
    passes(1);
    EXPECT_EQ(owner_of(p), lane_of(t)->id());
  }
  EXPECT_EQ(statistics().revocations, 0u);
  give(t, p);
}

TEST_ALL_CONFIGS(ScavengerTest, ALaneOfAnExitedThreadIsCleanedToo) {
  Slot& t = thread();
  use_and_free(t, 5000, 200);
  engine().exits().thread_exits(t);
  all_passes();
  EXPECT_EQ(statistics().slab_bytes, 0u);
}

TEST_OWNED(ScavengerTest, ALaneWhoseThreadIsGoneComesBackAndNoOther) {
  Slot &gone = thread(), &lives = thread();
  Fake::id = 77;
  void* p = take(gone, 200);
  Fake::id = 78;
  take(lives, 200);
  Lane<Fake>*lane = lane_of(gone), *other = lane_of(lives);
  Fake::gone = {77};
  // A number means nothing in another process: a child without fork handlers has its parent's
  // numbers.
  Fake::process = 2;
  all_passes();
  EXPECT_EQ(lane->owner_slot(), &gone);
  give(lives, take(lives, 300));
  Fake::process = 1;
  all_passes();
  EXPECT_EQ(lane->owner_slot(), nullptr);
  EXPECT_EQ(other->owner_slot(), &lives);
  Slot& next = thread();
  take(next, 200);
  EXPECT_EQ(lane_of(next), lane) << "the next thread adopts it";
  give(next, p);
  engine().check_invariants();
}

TEST_ALL_CONFIGS(ScavengerTest, MailToACleanedLaneIsTakenIn) {
  Slot &a = thread(), &b = thread();
  std::vector<void*> all;
  for (int i = 0; i < 640; ++i) all.push_back(take(a, 100));
  all_passes();
  take(b, 100);  // b has a lane, and a slab
  std::vector<void*> of_a;
  for (void* p : all)
    if (owner_of(p) != lane_of(b)->id()) of_a.push_back(p);
  for (void* p : all) give(b, p);
  all_passes();
  EXPECT_EQ(statistics().in_flight_objects, 0u);
  EXPECT_EQ(statistics().live_objects, 1u);
  EXPECT_EQ(statistics().slab_bytes, bytes_of(slab_blocks_of(class_of(100))));
}

TEST_ALL_CONFIGS(ScavengerTest, AThreadThatOnlyFreesHoldsNothingBack) {
  Slot &a = thread(), &b = thread();
  std::vector<void*> all;
  for (int i = 0; i < 30; ++i) all.push_back(take(a, 100));
  for (void* p : all) give(b, p);
  EXPECT_EQ(statistics().in_flight_objects, 30u);
  all_passes();
  EXPECT_EQ(statistics().in_flight_objects, 0u);
  EXPECT_EQ(statistics().slab_bytes, 0u);
}

TEST_ALL_CONFIGS(ScavengerTest, WhatAStoppedGiverHidIsTakenInWhenItHasGoneOn) {
  Slot &a = thread(), &b = thread();
  void* p = take(a, 100);
  give(b, p);
  engine().exits().thread_exits(b);  // sends it
  auto* batch = static_cast<Object*>(p);
  const Address linked = batch->earlier.load();
  // As if the giver had not written its link yet.
  batch->earlier.store(1);
  passes(8);
  EXPECT_EQ(statistics().in_flight_objects, 1u);
  if (batch->earlier.load() == 1) batch->earlier.store(linked);  // else it was sent just now
  give(thread(), take(thread(), kSlabMax + 1));
  all_passes();
  EXPECT_EQ(statistics().in_flight_objects, 0u) << "nobody looks at the rest of an inbox again";
  EXPECT_EQ(statistics().slab_bytes, 0u);
}

TEST_ALL_CONFIGS(ScavengerTest, AnObjectWhoseSlabMovedOnWhileItWaitedIsSentAllTheWay) {
  // The third lane collects objects of the depot; meanwhile another lane takes their slab.
  for (unsigned taker = 0; taker < 10; ++taker) {
    begin({});
    start_threads();
    std::vector<Slot*> threads;
    for (int i = 0; i < 10; ++i) threads.push_back(&thread());
    for (Slot* t : threads) give(*t, take(*t, 16));
    const unsigned freer = taker == 3 ? 4 : 3;
    void* p = take(*threads[0], 4000);
    void* kept = take(*threads[0], 4000);
    for (int i = 0; i < 5; ++i) engine().upkeep().trim(*threads[0]);
    ASSERT_EQ(owner_of(p), Owner::kDepot);
    give(*threads[freer], p);
    void* q = take(*threads[taker], 4000);
    ASSERT_EQ(owner_of(kept), lane_of(*threads[taker])->id());
    give(*threads[taker], q);
    give(*threads[taker], kept);
    all_passes();
    EXPECT_EQ(statistics().in_flight_objects, 0u) << "taken by lane " << taker;
    EXPECT_EQ(statistics().slab_bytes, 0u) << "taken by lane " << taker;
  }
}

TEST_ALL_CONFIGS(ScavengerTest, WhereMemoryIsNeverGivenBackThereIsNoPass) {
  Settings never;
  never.decay_ms = -1;
  begin(never);
  Slot& t = thread();
  use_and_free(t, 20000, 200);
  give(t, take(t, 10 << 20));
  EXPECT_FALSE(is_scavenger_wanted());
  EXPECT_FALSE(passes(1));
  EXPECT_GT(statistics().runs.dirty, 0u);
}

// Owned: other lanes are entered without a barrier.
TEST_OWNED(ScavengerTest, WithoutABarrierOwnersAreAskedAndItStillComesToRest) {
  Fake::has_barrier = false;
  Slot& t = thread();
  use_and_free(t, 5000, 200);
  all_passes();
  EXPECT_GT(statistics().slab_bytes, 0u);
  EXPECT_EQ(statistics().revocations, 0u);
  give(t, take(t, 9000));
  EXPECT_EQ(statistics().classes[index_of(class_of(200))].slabs, 0u);
}

TEST_ALL_CONFIGS(ScavengerTest, MemoryThatCannotBeEmptiedIsUnmapped) {
  Slot& t = thread();
  give(t, take(t, 10 << 20));
  Fake::fail(Fake::Call::kEmpty, 1);
  all_passes();
  EXPECT_EQ(statistics().runs.dirty, 0u);
}

TEST_ALL_CONFIGS(ScavengerTest, ItRestsWhereTheSystemTakesNothingBack) {
  Slot& t = thread();
  give(t, take(t, 10 << 20));
  Fake::fail(Fake::Call::kEmpty, 1);
  Fake::fail(Fake::Call::kRelease, 1);
  all_passes();
  EXPECT_GT(statistics().runs.dirty, 0u);
  Fake::fail_never();
  give(t, take(t, 10 << 20));  // a poke
  all_passes();
  EXPECT_EQ(statistics().runs.dirty, 0u);
}

}  // namespace
}  // namespace lanemalloc
