// Fork: what the child finds. The test plays it on one thread: before_fork(), then
// after_fork_in_child() with the other threads' slots, lanes and locks as they would be copied.
#include "fixture.h"

namespace lanemalloc {
namespace {

class ForkTest : public EngineTest {
 protected:
  // In the child no object that lives is handed out, and none is handed out twice.
  void expect_nothing_is_handed_out_twice(Slot& child, std::vector<void*> live) {
    const size_t before = live.size();
    for (size_t i = 0; i < before; ++i) fill(live[i], 48, i);
    for (int i = 0; i < 3000; ++i) live.push_back(take(child, i % 5 == 0 ? 3000 : 48));
    Slot& second = thread();  // the child may start threads of its own, which adopt lanes
    for (int i = 0; i < 3000; ++i) live.push_back(take(second, 48));
    for (size_t i = before; i < live.size(); ++i) memset(live[i], 0xAA, 48);
    for (size_t i = 0; i < before; ++i)
      EXPECT_TRUE(is_whole(live[i], 48, i)) << "an object of the parent was written to";
    std::sort(live.begin(), live.end());
    EXPECT_EQ(std::adjacent_find(live.begin(), live.end()), live.end());
  }
  void fork_in_child(Slot& slot) {
    engine().fork().before(slot);
    engine().fork().after_in_child(slot);
  }
};

TEST_ALL_CONFIGS(ForkTest, TheParentGoesOnAsBefore) {
  Slot &a = thread(), &b = thread();
  void* p = take(a, 48);
  take(b, 48);
  const Owner id = lane_of(a)->id();
  engine().fork().before(a);
  for (const Lock<Fake>* lock :
       {&world().depot.lock(), &world().runs.lock(), &world().runs.growth_lock()}) {
    EXPECT_FALSE(lock->is_held());
    EXPECT_EQ(lock->is_closed(), !config().single);
  }
  void* large = take(b, 900000);  // no thread waits for a fork
  give(a, take(b, 5000));
  give(a, large);
  engine().fork().after_in_parent();
  engine().fork().step_back(a);
  EXPECT_FALSE(world().depot.lock().is_closed());
  EXPECT_FALSE(world().runs.lock().is_closed());
  EXPECT_FALSE(world().runs.growth_lock().is_closed());
  EXPECT_EQ(owner_of(p), id);
  give(a, p);
  EXPECT_EQ(statistics().live_objects, 1u);
}

TEST_ALL_CONFIGS(ForkTest, SeveralThreadsForkAtOnceAndOneInAHandlerOfItsOwnFork) {
  Slot &a = thread(), &b = thread();
  start_threads();
  for (Slot* t : {&a, &b, &a}) engine().fork().before(*t);
  for (int forks = 3; forks > 0; --forks) {
    EXPECT_TRUE(world().runs.lock().is_closed());
    give(a, take(b, 900000));
    engine().fork().after_in_parent();
  }
  EXPECT_FALSE(world().runs.lock().is_closed());
  // In the child of the inner fork the outer fork goes on, and ends.
  engine().fork().before(a);
  fork_in_child(a);
  EXPECT_FALSE(world().runs.lock().is_closed());
  engine().fork().after_in_parent();
  EXPECT_FALSE(world().runs.lock().is_closed());
  give(a, take(b, 900000));
  engine().check_invariants();
}

TEST_ALL_CONFIGS(ForkTest, WhatIsFreedDuringAForkIsUsedAgainAtOnceAndNothingIsLost) {
  Slot& a = thread();
  start_threads();
  give(a, take(a, 900000));
  engine().fork().before(a);
  give(a, take(a, 900000));
  const uint64_t claimed = world().runs.statistics().claimed;
  for (int i = 0; i < 100; ++i) give(a, take(a, 900000));
  EXPECT_EQ(world().runs.statistics().claimed, claimed);
  engine().fork().after_in_parent();
  give(a, take(a, 900000));
  engine().upkeep().trim(a);
  EXPECT_EQ(world().runs.statistics().dirty, 0u);
  engine().check_invariants();
}

TEST_ALL_CONFIGS(ForkTest, WhoFindsNoOtherMemoryTakesWhatAForkHasClosed) {
  Slot& a = thread();
  start_threads();
  void* p = take(a, 900000);
  give(a, p);
  engine().fork().before(a);
  Fake::fail(Fake::Call::kClaim, 1);
  p = engine().allocate(900000, a);
  EXPECT_NE(p, nullptr);
  Fake::fail_never();
  engine().fork().after_in_parent();
  give(a, p);
  engine().check_invariants();
}

TEST_ALL_CONFIGS(ForkTest, TheForkingThreadKeepsALaneOfItsOwn) {
  Slot& a = thread();
  void* p = take(a, 48);
  Lane<Fake>* lane = lane_of(a);
  fork_in_child(a);
  if (lane->how != Entry::kOwned) {  // the thread gets a lane again when it allocates
    EXPECT_EQ(a.load(), &no_lane_gate);
    give(a, p);
    EXPECT_NE(take(a, 48), nullptr);
    return;
  }
  EXPECT_EQ(lane_of(a), lane);
  give(a, p);
  EXPECT_EQ(owner_of(take(a, 48)), lane->id());
  EXPECT_EQ(statistics().lanes, 1u);
}

// Owned: it is about adoption. Taken lanes of the other entries: shared_test.cpp, percpu_test.cpp.
TEST_OWNED(ForkTest, InAHandlersChildIdleLanesAreAdoptedAndBusyOnesAreSetAsideForGood) {
  Slot &a = thread(), &idle = thread(), &busy = thread(), &held = thread(), &gone = thread(),
       &revoker = thread();
  std::vector<void*> live;
  for (Slot* t : {&a, &idle, &busy, &held, &gone})
    for (int i = 0; i < 40; ++i) live.push_back(take(*t, 48));
  Lane<Fake>*lane_a = lane_of(a), *lane_idle = lane_of(idle), *lane_busy = lane_of(busy),
  *lane_held = lane_of(held), *lane_gone = lane_of(gone);
  engine().exits().thread_exits(gone);
  Owned::enter(busy);
  Visit visit(&revoker, true);
  ASSERT_TRUE(lane_held->try_hold(visit));
  in_handler(a, [&] { fork_in_child(a); });
  EXPECT_EQ(lane_of(a), lane_a);
  EXPECT_TRUE(lane_busy->is_set_aside());
  EXPECT_TRUE(lane_held->is_set_aside());
  EXPECT_FALSE(lane_idle->is_set_aside());
  // New threads adopt the lane that has no owner and the one of the idle thread, and then new
  // lanes.
  std::vector<Lane<Fake>*> adopted;
  for (int i = 0; i < 4; ++i) {
    Slot& t = thread();
    live.push_back(take(t, 48));
    adopted.push_back(lane_of(t));
  }
  for (Lane<Fake>* lane : {lane_idle, lane_gone})
    EXPECT_EQ(std::count(adopted.begin(), adopted.end(), lane), 1);
  for (Lane<Fake>* lane : {lane_a, lane_busy, lane_held})
    EXPECT_EQ(std::count(adopted.begin(), adopted.end(), lane), 0);
  expect_nothing_is_handed_out_twice(a, live);
}

// The thread that was taking the lane is not in the child, so the lane never becomes free.
TEST_OWNED(ForkTest, InAHandlersChildAThreadDoesNotGiveWayInALaneThatIsSetAside) {
  Slot &a = thread(), &revoker = thread();
  take(a, 48);
  Lane<Fake>* lane = lane_of(a);
  Visit visit(&revoker, true);
  ASSERT_TRUE(lane->try_hold(visit));
  in_handler(a, [&] { fork_in_child(a); });
  ASSERT_TRUE(lane->is_set_aside());
  static int waits;
  waits = 0;
  Fake::on_pause = [] { ++waits; };
  Fake::on_yield = [] { ++waits; };
  for (int i = 0; i < 10; ++i) give(a, take(a, 48));
  Fake::on_pause = nullptr;
  Fake::on_yield = nullptr;
  EXPECT_EQ(waits, 0);
}

TEST_ALL_CONFIGS(ForkTest, InAHandlersChildObjectsOfLanesThatAreSetAsideCanBeFreed) {
  Slot &a = thread(), &busy = thread();
  std::vector<void*> all;
  for (int i = 0; i < 3000; ++i) all.push_back(take(busy, 48));
  take(a, 48);
  Stopped in_its_lane(busy);
  in_handler(a, [&] { fork_in_child(a); });
  for (void* p : all) give(a, p);
  engine().upkeep().trim(a);
  expect_nothing_is_handed_out_twice(a, {});
}

TEST_ALL_CONFIGS(ForkTest, WhatAThreadWasInsideIsWholeInTheChildAndNothingOfItIsLost) {
  Slot &a = thread(), &busy = thread(), &held = thread(), &revoker = thread();
  std::vector<void*> all;
  for (Slot* t : {&busy, &held})
    for (int i = 0; i < 3000; ++i) all.push_back(take(*t, 48));
  all.push_back(take(a, 48));
  for (int i = 0; i < 20; ++i) give(busy, take(busy, 48));
  Stopped in_its_lane(busy);
  Visit visit(&revoker, true);
  Lane<Fake>* lane = lane_of(held);
  if (lane != nullptr && lane->how != Entry::kShared) lane->try_hold(visit);
  fork_in_child(a);
  EXPECT_EQ(statistics().live_objects, all.size());
  EXPECT_EQ(statistics().allocations, all.size() + 20);
  world().lanes.for_each([](AnyLane<Fake>& each) { EXPECT_FALSE(each.is_set_aside()); });
  for (void* p : all) give(a, p);
  Slot &b = thread(), &c = thread();  // these adopt the others' lanes
  for (Slot* t : {&b, &c}) give(*t, take(*t, 48));
  for (int i = 0; i < 4; ++i)
    for (Slot* t : {&a, &b, &c}) engine().upkeep().trim(*t);
  EXPECT_EQ(statistics().live_objects, 0u);
  EXPECT_EQ(statistics().slab_bytes, 0u);
  engine().check_invariants();
}

TEST_ALL_CONFIGS(ForkTest, TheChildOfAThreadWhoseLaneWasBeingTakenMayGoOnInIt) {
  Slot &a = thread(), &revoker = thread();
  std::vector<void*> live;
  for (int i = 0; i < 40; ++i) live.push_back(take(a, 48));
  Lane<Fake>* lane = lane_of(a);
  Visit visit(&revoker, true);
  ASSERT_TRUE(lane->try_hold(visit));
  fork_in_child(a);
  live.push_back(take(a, 48));
  EXPECT_FALSE(lane->is_set_aside());
  if (lane->how != Entry::kShared) {  // else the thread takes the next lane
    EXPECT_EQ(lane_of(a), lane);
  }
  EXPECT_EQ(statistics().live_objects, live.size());
  EXPECT_EQ(statistics().allocations, live.size());
  expect_nothing_is_handed_out_twice(a, live);
  engine().exits().thread_exits(a);
  if (is_owned()) {
    EXPECT_EQ(a.load(), &exited_gate);
  }
}

TEST_ALL_CONFIGS(ForkTest, AChildDoesNotWaitForAScavengerThatWasMovingObjects) {
  Slot& a = thread();
  give(a, take(a, 48));
  world().scavenger.begin_move();
  fork_in_child(a);
  Fake::on_sleep = [] { ADD_FAILURE() << "it waits"; };
  EXPECT_EQ(statistics().live_objects, 0u);
  Fake::on_sleep = nullptr;
}

TEST_ALL_CONFIGS(ForkTest, AThreadWithoutALaneForksToo) {
  Slot &a = thread(), &b = thread();
  void* p = take(b, 48);
  fork_in_child(a);
  give(a, p);
  EXPECT_EQ(statistics().live_objects, 0u);
  Slot& exited = thread();
  take(exited, 48);
  engine().exits().thread_exits(exited);
  fork_in_child(exited);
  give(exited, take(exited, 48));
  if (is_owned()) {
    EXPECT_EQ(exited.load(), &exited_gate);
  }
}

TEST_ALL_CONFIGS(ForkTest, AHandlerThatForksInsideItsLaneFindsItAgainInTheChild) {
  Slot& a = thread();
  std::vector<void*> live;
  for (int i = 0; i < 40; ++i) live.push_back(take(a, 48));
  Lane<Fake>* lane = lane_of(a);
  in_handler(a, [&] {
    fork_in_child(a);
    live.push_back(take(a, 48));
  });
  EXPECT_EQ(lane_of(a), lane);
  expect_nothing_is_handed_out_twice(a, live);
}

TEST_ALL_CONFIGS(ForkTest,
                 AHandlerThatForksInsideALockFindsItHeldInTheChildAndItsThreadReleasesIt) {
  Slot& a = thread();
  take(a, 48);
  Gate* gate = Owned::enter(a);
  Visit outer(&a, true);
  ASSERT_TRUE(world().depot.lock().acquire(outer));
  ASSERT_TRUE(world().runs.growth_lock().acquire(outer));
  ASSERT_TRUE(world().runs.lock().acquire(outer));
  fork_in_child(a);
  EXPECT_EQ(world().runs.lock().holder(), &a);
  EXPECT_EQ(world().runs.growth_lock().holder(), &a);
  EXPECT_EQ(world().depot.lock().holder(), &a);
  world().runs.lock().release(outer);
  world().runs.growth_lock().release(outer);
  world().depot.lock().release(outer);
  Owned::leave(a, gate);
  expect_nothing_is_handed_out_twice(a, {});
}

TEST_ALL_CONFIGS(ForkTest, WhenAnotherThreadHeldTheRunsOnlyWhatTheyGuardIsGivenUp) {
  Slot &a = thread(), &other = thread();
  std::vector<void*> large, live;
  for (int i = 0; i < 30; ++i) large.push_back(take(a, 500000));
  for (int i = 0; i < 40; ++i) live.push_back(take(a, 48));
  for (int i = 0; i < 30; i += 2) give(a, large[static_cast<size_t>(i)]);
  Visit holder(&other, true);
  ASSERT_TRUE(world().runs.lock().acquire(holder));
  in_handler(a, [&] { fork_in_child(a); });
  EXPECT_FALSE(world().runs.lock().is_held());
  // These lie between runs that are given up.
  for (int i = 1; i < 30; i += 2) give(a, large[static_cast<size_t>(i)]);
  engine().check_invariants();
  for (int i = 0; i < 40; ++i) live.push_back(take(a, 300000 + 10000 * i));
  expect_nothing_is_handed_out_twice(a, live);
}

TEST_ALL_CONFIGS(ForkTest, WhenAnotherThreadWasAddingMemoryTheChildAddsItsOwn) {
  Slot &a = thread(), &other = thread();
  Visit holder(&other, true);
  ASSERT_TRUE(world().runs.growth_lock().acquire(holder));
  ASSERT_NE(world().region.take_fresh(32), Region<Fake>::kNoBlock);  // no thread's in the child
  in_handler(a, [&] { fork_in_child(a); });
  EXPECT_FALSE(world().runs.growth_lock().is_held());
  std::vector<void*> live;
  for (int i = 0; i < 40; ++i) live.push_back(take(a, 600000));
  EXPECT_FALSE(world().runs.growth_lock().is_held());
  expect_nothing_is_handed_out_twice(a, live);
}

TEST_ALL_CONFIGS(ForkTest, WhenAnotherThreadHeldTheDepotOnlyWhatItGuardsIsGivenUp) {
  Slot &a = thread(), &other = thread();
  std::vector<void*> all;
  for (int i = 0; i < 500; ++i) all.push_back(take(a, 2000));
  for (size_t i = 0; i < all.size(); i += 2) give(a, all[i]);
  engine().upkeep().trim(a);
  ASSERT_EQ(owner_of(all[1]), Owner::kDepot);
  give(a, take(a, 48));
  Visit holder(&other, true);
  ASSERT_TRUE(world().depot.lock().acquire(holder));
  in_handler(a, [&] { fork_in_child(a); });
  EXPECT_FALSE(world().depot.lock().is_held());
  for (size_t i = 1; i < all.size(); i += 2) give(a, all[i]);
  engine().upkeep().trim(a);
  engine().check_invariants();
  expect_nothing_is_handed_out_twice(a, {});
}

TEST_ALL_CONFIGS(ForkTest, ABatchWhoseGiverIsGoneIsTakenInTheChild) {
  Slot &a = thread(), &b = thread();
  void* p = take(a, 100);
  give(b, p);
  engine().exits().thread_exits(b);  // sends it
  // The giver stops before it has written its link.
  static_cast<Object*>(p)->earlier.store(1);
  fork_in_child(a);
  engine().upkeep().trim(a);
  EXPECT_EQ(statistics().in_flight_objects, 0u);
  EXPECT_EQ(statistics().slab_bytes, 0u);
}

TEST_ALL_CONFIGS(ForkTest, TheChildHasNoScavengerUntilItStartsAThread) {
  start_threads();
  Slot& a = thread();
  all_passes();
  fork_in_child(a);
  EXPECT_FALSE(engine().world().scavenger.is_running());
  constexpr Bytes kPastTheLimit = Bytes{300} << 20;
  give(a, take(a, kPastTheLimit));
  EXPECT_LT(statistics().runs.dirty, kPastTheLimit) << "frees give memory back while it has none";
  start_threads();
  EXPECT_TRUE(engine().world().scavenger.is_running());
  give(a, take(a, 10 << 20));
  all_passes();
  EXPECT_EQ(statistics().runs.dirty, 0u);
}

TEST_ALL_CONFIGS(ForkTest, AChildForksAgainAndAgain) {
  Slot& a = thread();
  std::vector<void*> live;
  for (int i = 0; i < 50; ++i) {
    live.push_back(take(a, 48));
    Slot& other = thread();
    live.push_back(take(other, 48));
    if (i % 3 == 0) Stopped in_its_lane(other);
    fork_in_child(a);
  }
  expect_nothing_is_handed_out_twice(a, live);
}

}  // namespace
}  // namespace lanemalloc
