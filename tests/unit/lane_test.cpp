// Lanes: how threads enter them, lose them, send each other what they free, and leave them behind.
#include "fixture.h"

namespace lanemalloc {
namespace {

TEST_ALL_CONFIGS(EngineTest, EachThreadHasItsOwnLaneAndItsOwnSlabs) {
  Slot &a = thread(), &b = thread();
  void* pa = take(a, 64);
  void* pb = take(b, 64);
  EXPECT_NE(lane_of(a), lane_of(b));
  EXPECT_EQ(owner_of(pa), lane_of(a)->id());
  EXPECT_EQ(owner_of(pb), lane_of(b)->id());
  EXPECT_NE(reinterpret_cast<Address>(pa) / kBlockSize, reinterpret_cast<Address>(pb) / kBlockSize);
  give(a, pa);
  give(b, pb);
}

TEST_ALL_CONFIGS(EngineTest, AHandlerThatFindsItsThreadInsideWorksInAnOverflowLane) {
  Slot& t = thread();
  void* mine = take(t, 48);
  Lane<Fake>* lane = lane_of(t);
  in_handler(t, [&] {
    void* p = take(t, 48);
    EXPECT_NE(owner_of(p), lane->id());
    void* large = take(t, 1 << 20);
    give(t, p);
    give(t, large);
    give(t, mine);  // an object of the interrupted lane: it is sent there
  });
  EXPECT_EQ(lane_of(t), lane);
  const Statistics s = statistics();
  EXPECT_GE(s.nested_entries, 3u);
  EXPECT_EQ(s.rescue_entries, 1u);
  EXPECT_EQ(s.live_objects, 0u);
}

TEST_ALL_CONFIGS(EngineTest, AHandlerInAHandlerGetsALaneOfItsOwn) {
  Slot& t = thread();
  take(t, 48);
  const Owner mine = lane_of(t)->id();
  // The first handler is inside an overflow lane when the second one comes.
  Visit first(&t, false);
  Lane<Fake>* overflow = world().lanes.enter_overflow(first);
  ASSERT_NE(overflow, nullptr);
  in_handler(t, [&] {
    void* p = take(t, 48);
    EXPECT_NE(owner_of(p), overflow->id());
    EXPECT_NE(owner_of(p), mine);
    give(t, p);
  });
  overflow->unlock(first);
  EXPECT_EQ(statistics().rescue_entries, 2u);
}

TEST_ALL_CONFIGS(EngineTest, AHandlerNeverWaitsForALockThatItsThreadHolds) {
  Slot& t = thread();
  std::vector<void*> all;
  take(t, 48);
  Visit outside(&t, true);
  ASSERT_TRUE(world().depot.lock().acquire(outside));
  ASSERT_TRUE(world().runs.lock().acquire(outside));
  in_handler(t, [&] {
    for (Bytes size : telling_sizes()) all.push_back(take(t, size));
    for (void* p : all) give(t, p);
    engine().upkeep().trim(t);
  });
  world().runs.lock().release(outside);
  world().depot.lock().release(outside);
  engine().upkeep().trim(t);
  EXPECT_EQ(statistics().live_objects, 1u);
  EXPECT_EQ(statistics().runs_waits + statistics().depot_waits, 0u);
}

// The next four are owned: they are about the gate that an owner opens and a revoker closes.
TEST_OWNED(EngineTest, AnOwnerFindsItsHeldLaneClosedAndGoesElsewhere) {
  Slot &t = thread(), &other = thread();
  void* p = take(t, 64);
  Lane<Fake>* lane = lane_of(t);
  Visit visit(&other, true);
  ASSERT_TRUE(lane->try_hold(visit));
  void* q = take(t, 64);
  EXPECT_NE(owner_of(q), lane->id());
  give(t, p);
  EXPECT_EQ(lane_of(t), lane);
  lane->let_go(visit);
  void* r = take(t, 64);
  EXPECT_EQ(owner_of(r), lane->id());
  give(t, q);
  give(t, r);
  EXPECT_EQ(statistics().overflow_entries, 2u);
  EXPECT_EQ(statistics().live_objects, 0u);
}

TEST_OWNED(EngineTest, AnOwnerGivesAHolderTheCpuOnceAndGoesOnInItsLaneIfThatIsFreeThen) {
  Slot &t = thread(), &other = thread();
  void* p = take(t, 64);
  Lane<Fake>* lane = lane_of(t);
  Visit visit(&other, true);
  ASSERT_TRUE(lane->try_hold(visit));
  Fake::on_yield = [&] {
    EXPECT_FALSE(is_busy(t.load())) << "who comes next finds it inside";
    lane->let_go(visit);
  };
  void* q = take(t, 64);
  EXPECT_EQ(Fake::on_yield, nullptr);
  EXPECT_EQ(owner_of(q), lane->id());
  // A handler must not wait.
  ASSERT_TRUE(lane->try_hold(visit));
  Fake::on_yield = [&] { ADD_FAILURE() << "a handler gives up its CPU"; };
  in_handler(t, [&] { give(t, take(t, 64)); });
  // A holder that was torn off does not let go. The owner gives up the CPU once, and not at every
  // call.
  int yields = 0;
  for (int i = 0; i < 10; ++i) {
    Fake::on_yield = [&] { ++yields; };
    give(t, take(t, 64));
  }
  EXPECT_EQ(yields, 1);
  Fake::on_yield = nullptr;
  lane->let_go(visit);
  give(t, p);
  give(t, q);
  EXPECT_EQ(statistics().live_objects, 0u);
}

TEST_ALL_CONFIGS(EngineTest, ABusyLaneRefusesToBeHeldAndStaysOpenToItsOwner) {
  Slot &t = thread(), &other = thread();
  give(t, take(t, 64));
  Lane<Fake>* lane = lane_of(t);
  Visit visit(&other, true);
  in_handler(t, [&] { EXPECT_FALSE(lane->try_hold(visit)); });
  EXPECT_FALSE(lane->is_being_revoked());
  EXPECT_FALSE(lane->lock().is_held());
  void* p = take(t, 64);
  EXPECT_EQ(owner_of(p), lane->id());
  give(t, p);
}

TEST_OWNED(EngineTest, AnOwnerThatEntersDuringARevocationIsSeenOrSeesIt) {
  Slot &t = thread(), &other = thread();
  give(t, take(t, 64));
  Lane<Fake>* lane = lane_of(t);
  static Slot* owner;
  static Gate* gate;
  owner = &t;
  Fake::on_barrier = [] {  // between [close] and [peek]
    Fake::on_barrier = nullptr;
    gate = Owned::enter(*owner);
  };
  Visit visit(&other, true);
  EXPECT_FALSE(lane->try_hold(visit));
  Owned::leave(t, gate);
  EXPECT_TRUE(lane->try_hold(visit));
  // [look] comes after [close]: the gate is closed.
  Gate* seen = Owned::enter(t);
  EXPECT_FALSE(Owned::may_allocate(seen, 1));
  EXPECT_FALSE(Owned::may_free(seen, MapWord(lane->id(), 0)));
  Owned::leave(t, seen);
  lane->let_go(visit);
}

TEST_OWNED(EngineTest, AHeldLaneIsClosedEvenIfItsOwnerOpenedItDuringTheRevocation) {
  Slot &t = thread(), &other = thread();
  give(t, take(t, 64));
  static Lane<Fake>* lane;
  static Slot* owner;
  static Gate* gate;
  lane = lane_of(t);
  owner = &t;
  // The owner is inside and has just read revoking == false; it goes on after [close], and leaves
  // before [peek].
  gate = Owned::enter(t);
  ASSERT_FALSE(lane->is_being_revoked());
  Fake::on_barrier = [] {
    Fake::on_barrier = nullptr;
    lane->open_gate();
    Owned::leave(*owner, gate);
  };
  Visit visit(&other, true);
  const bool held = lane->try_hold(visit);
  EXPECT_FALSE(held && Owned::may_allocate(lane, 1)) << "owner and revoker are both inside";
  if (held) lane->let_go(visit);
  give(t, take(t, 64));
}

// A thread, perhaps the scavenger, was preempted while it held the lane. What waits in the lane's
// bins must still be subtracted.
TEST_ALL_CONFIGS(EngineTest, FiguresAreExactThoughALaneIsHeldForAWhile) {
  static Lane<Fake>* lane;
  static Visit* holder;
  Slot &t = thread(), &other = thread();
  give(t, take(t, 64));
  lane = lane_of(t);
  Visit visit(&other, true);
  ASSERT_TRUE(lane->try_hold(visit));
  holder = &visit;
  Fake::on_sleep = [] {
    Fake::on_sleep = nullptr;
    lane->let_go(*holder);
  };
  const Statistics s = statistics();
  EXPECT_EQ(s.allocations, 1u);
  EXPECT_EQ(s.live_objects, 0u);
}

// The owner is outside meanwhile. All its operations are slow until the revoker is done, so a
// revoker that looks at one instant would find it inside.
TEST_OWNED(EngineTest, AnOwnerGivesWayOnceToWhoIsTakingItsLane) {
  Slot &t = thread(), &other = thread();
  give(t, take(t, 64));
  Lane<Fake>* lane = lane_of(t);
  static int pauses;
  static const Slot* slot;
  static bool was_outside;
  pauses = 0, slot = &t, was_outside = true;
  bool has_run = false;
  Fake::on_barrier = [&] {
    if (std::exchange(has_run, true)) return;
    Fake::on_pause = [] {
      ++pauses;
      was_outside = was_outside && !is_busy(slot->load());
    };
    give(t, take(t, 64));
    const int first = std::exchange(pauses, 0);
    EXPECT_GT(first, 100);
    give(t, take(t, 64));
    EXPECT_EQ(pauses, 0) << "once for each that takes it";
    in_handler(t, [&] { give(t, take(t, 64)); });
    EXPECT_EQ(pauses, 0);
    Fake::on_pause = nullptr;
  };
  // The revoker may have been preempted.
  Fake::on_yield = [&] { EXPECT_FALSE(is_busy(t.load())); };
  Visit visit(&other, true);
  EXPECT_TRUE(lane->try_hold(visit));
  EXPECT_TRUE(has_run);
  EXPECT_TRUE(was_outside);
  EXPECT_EQ(Fake::on_yield, nullptr);
  lane->let_go(visit);
  // A handler that comes meanwhile finds the thread outside, and may change what the slot names.
  has_run = false;
  Fake::on_barrier = [&] {
    if (std::exchange(has_run, true)) return;
    Fake::on_pause = [] { const_cast<Slot*>(slot)->store(&exited_gate); };
    give(t, take(t, 64));
    Fake::on_pause = nullptr;
    EXPECT_EQ(t.load(), &exited_gate);
    t.store(lane);
  };
  EXPECT_TRUE(lane->try_hold(visit));
  EXPECT_TRUE(has_run);
  lane->let_go(visit);
  // The lane may be free again by then, and yet not be the thread's.
  Fake::on_barrier = nullptr;
  EXPECT_TRUE(lane->try_hold(visit));
  Fake::on_yield = [&] {
    Fake::on_yield = nullptr;
    lane->let_go(visit);
    t.store(&exited_gate);
  };
  void* object = take(t, 64);
  EXPECT_EQ(Fake::on_yield, nullptr);
  EXPECT_EQ(t.load(), &exited_gate);
  EXPECT_NE(world().region.word_for(object).owner(), lane->id());
  EXPECT_FALSE(Owned::may_allocate(lane, 0))
      << "nobody opens the gate of a lane that is not its own";
  t.store(lane);
  give(t, object);
  EXPECT_EQ(statistics().live_objects, 0u);
}

// The scavenger moves what waits in a bin to its slab, after the slabs were read and before the
// lane is read.
TEST_OWNED(EngineTest, FiguresAreExactThoughTheScavengerMovesObjectsWhileTheyAreRead) {
  static Scavenger<Fake>* moving;
  static int sleeps;
  moving = &world().scavenger;
  Slot &t = thread(), &scavenger = thread();
  give(t, take(t, 64));
  Lane<Fake>& lane = *lane_of(t);
  for (const bool ends_late : {false, true}) {
    bool has_moved = false;
    sleeps = 0;
    Fake::on_barrier = [&] {
      if (std::exchange(has_moved, true)) return;
      // The reader has just taken the lane. Here it plays the scavenger, which had the lane just
      // before.
      Visit visit(&scavenger, true);
      moving->begin_move();
      lane.clean(visit);
      if (!ends_late) moving->end_move();
    };
    Fake::on_sleep = [] {
      if (++sleeps == 2) moving->end_move();
    };
    const Statistics s = statistics();
    EXPECT_EQ(sleeps, ends_late ? 2 : 1) << "it reads again, and not before the move has ended";
    EXPECT_EQ(s.allocations, ends_late ? 2u : 1u);
    EXPECT_EQ(s.live_objects, 0u);
    Fake::on_sleep = nullptr;
    Fake::on_barrier = nullptr;
    give(t, take(t, 64));
  }
}

TEST_ALL_CONFIGS(EngineTest, AHandlerThatReadsFiguresWaitsForNobody) {
  Slot &t = thread(), &other = thread();
  give(t, take(t, 64));
  Visit visit(&other, true);
  ASSERT_TRUE(lane_of(t)->try_hold(visit));
  Fake::on_sleep = [] { ADD_FAILURE() << "it sleeps"; };
  Statistics s;
  engine().statistics(s, false);
  lane_of(t)->let_go(visit);
}

TEST_OWNED(EngineTest, WithoutABarrierTheOwnerIsAskedAndCleansItself) {
  Fake::has_barrier = false;
  Slot &t = thread(), &other = thread();
  std::vector<void*> all;
  for (int i = 0; i < 5000; ++i) all.push_back(take(t, 256));
  for (void* p : all) give(t, p);
  Visit visit(&other, true);
  EXPECT_FALSE(lane_of(t)->try_hold(visit));
  const unsigned c = index_of(class_of(256));
  EXPECT_GT(statistics().classes[c].slabs, 0u);
  give(t, take(t, 5000));  // a miss: the owner looks
  EXPECT_EQ(statistics().classes[c].slabs, 0u);
  EXPECT_FALSE(lane_of(t)->take_asked());
}

TEST_ALL_CONFIGS(EngineTest, FreesOfAnotherThreadArriveAndAreUsedAgain) {
  Slot &a = thread(), &b = thread();
  std::vector<void*> all;
  for (int i = 0; i < 3000; ++i) all.push_back(take(a, 64));
  const uint64_t claimed = statistics().runs.claimed;
  for (void* p : all) give(b, p);
  const Statistics s = statistics();
  EXPECT_EQ(s.remote_frees, 3000u);
  EXPECT_EQ(s.live_objects, 0u);
  EXPECT_GE(s.in_flight_objects, 1u);
  for (int i = 0; i < 2900; ++i) take(a, 64);
  EXPECT_EQ(statistics().runs.claimed, claimed);
  EXPECT_GT(statistics().inbox_drains, 0u);
}

TEST_OWNED(EngineTest, FreesOfAnotherThreadComeBackInTheirOrder) {
  Slot &a = thread(), &b = thread();
  std::vector<void*> all;
  for (int i = 0; i < 4000; ++i) all.push_back(take(a, 64));
  for (int round = 0; round < 10; ++round) {
    for (void*& p : all) {
      give(b, p);
      p = nullptr;
    }
    size_t neighbours = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      all[i] = take(a, 64);
      neighbours += i > 0 && static_cast<char*>(all[i]) == static_cast<char*>(all[i - 1]) + 64;
    }
    EXPECT_GE(neighbours, all.size() * 8 / 10) << round;
  }
}

TEST_ALL_CONFIGS(EngineTest, ABatchIsSentByItsCountOrByItsBytes) {
  // How many objects of a size are collected before the first batch is sent.
  const auto collected = [this](Bytes size) {
    begin({});
    Slot &a = thread(), &b = thread();
    std::vector<void*> all;
    for (int i = 0; i < 1000; ++i) all.push_back(take(a, size));
    take(b, 16);
    size_t n = 0;
    while (n < all.size() && !lane_of(a)->inbox().has_mail()) give(b, all[n++]);
    EXPECT_EQ(statistics().remote_batches, 1u);
    return n;
  };
  const size_t by_count = collected(16);
  EXPECT_GE(by_count, 32u);
  EXPECT_LE(by_count, 513u);
  EXPECT_EQ(collected(64), by_count);
  const size_t by_bytes = collected(16384);
  EXPECT_GE(by_bytes, 2u);
  EXPECT_LE(by_bytes, 17u);
}

TEST_ALL_CONFIGS(EngineTest, WhereFewBatchesComeFreshObjectsAreHandedOutBetween) {
  Slot &a = thread(), &b = thread();
  std::vector<void*> all;
  const auto miss = [&] {
    const uint64_t misses = statistics().misses;
    while (statistics().misses == misses) all.push_back(take(a, 16));
  };
  const auto send_a_batch = [&] {
    const uint64_t sent = statistics().remote_batches;
    while (statistics().remote_batches == sent) {
      ASSERT_FALSE(all.empty());
      give(b, all.back());
      all.pop_back();
    }
  };
  for (int i = 0; i < 5; ++i) miss();
  uint64_t drains = 0;
  for (int round = 0; round < 3; ++round) {
    send_a_batch();
    miss();
    EXPECT_EQ(statistics().inbox_drains, ++drains);
    send_a_batch();
    miss();
    EXPECT_EQ(statistics().inbox_drains, drains) << "few came, and there are fresh ones";
  }
  for (int i = 0; i < 3; ++i) send_a_batch();  // four, with the last batch from above
  miss();
  ++drains;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 4; ++i) send_a_batch();
    miss();
    EXPECT_EQ(statistics().inbox_drains, ++drains) << "many came";
  }
  for (void* p : all) give(a, p);
}

TEST_ALL_CONFIGS(EngineTest, ASleepingOwnerIsDrainedByWhoSends) {
  Slot &a = thread(), &b = thread();
  std::vector<void*> all;
  for (int i = 0; i < 40000; ++i) all.push_back(take(a, 128));
  const uint64_t slabs = statistics().slab_bytes;
  for (void* p : all) give(b, p);  // a does nothing all the while
  const Statistics s = statistics();
  if (is_owned()) {
    EXPECT_GT(s.revocations, 0u);
  }
  EXPECT_LT(s.slab_bytes, slabs / 4) << "what was freed is held back";
  EXPECT_LT(s.in_flight_objects, all.size() / 10);
  EXPECT_EQ(s.live_objects, 0u);
}

TEST_ALL_CONFIGS(EngineTest, ASleepingOwnerThatIsInsideIsNotTouched) {
  Slot &a = thread(), &b = thread();
  std::vector<void*> all;
  for (int i = 0; i < 10000; ++i) all.push_back(take(a, 128));
  in_handler(a, [&] {
    for (void* p : all) give(b, p);
    EXPECT_EQ(statistics().inbox_drains, 0u);
  });
  EXPECT_GT(statistics().refused_revocations, 0u);
  EXPECT_EQ(statistics().live_objects, 0u);
}

// --- Thread exit.

// Owned: it is about adoption.
TEST_OWNED(EngineTest, ALaneIsAdoptedWithItsContents) {
  Slot& a = thread();
  void* kept = take(a, 64);
  fill(kept, 64, 8);
  Lane<Fake>* lane = lane_of(a);
  for (int i = 0; i < 100; ++i) take(a, 64);
  const uint64_t claimed = statistics().runs.claimed;
  engine().exits().thread_exits(a);
  EXPECT_EQ(a.load(), &exited_gate);
  EXPECT_EQ(lane->owner_slot(), nullptr);
  Slot& b = thread();
  void* p = take(b, 64);
  EXPECT_EQ(lane_of(b), lane);
  EXPECT_EQ(owner_of(p), lane->id());
  EXPECT_EQ(statistics().runs.claimed, claimed);
  EXPECT_TRUE(is_whole(kept, 64, 8));
  give(b, kept);
  EXPECT_EQ(statistics().live_objects, 101u);
}

// Owned: only an owner has a lane to give back at its exit.
TEST_OWNED(EngineTest, FreesAndAllocationsAfterTheExitStillWork) {
  Slot& a = thread();
  void* p = take(a, 64);
  engine().exits().thread_exits(a);
  void* late = take(a, 64);
  EXPECT_EQ(a.load(), &exited_gate);
  give(a, p);
  give(a, late);
  engine().exits().thread_exits(a);  // twice does no harm
  EXPECT_EQ(a.load(), &exited_gate);
  EXPECT_EQ(statistics().live_objects, 0u);
}

// Owned: if other threads use the lane, they send what lies in it.
TEST_OWNED(EngineTest, AThreadThatExitsSendsWhatItHasCollected) {
  Slot &a = thread(), &b = thread();
  std::vector<void*> all;
  for (int i = 0; i < 10; ++i) all.push_back(take(a, 64));
  for (void* p : all) give(b, p);
  EXPECT_FALSE(lane_of(a)->inbox().has_mail());
  engine().exits().thread_exits(b);
  EXPECT_TRUE(lane_of(a)->inbox().has_mail());
}

TEST_ALL_CONFIGS(EngineTest, AThreadThatNeverAllocatedExitsWithoutALane) {
  Slot& a = thread();
  engine().exits().thread_exits(a);
  EXPECT_EQ(statistics().lanes, 0u);
  give(a, take(a, 64));  // its end would not be reported any more
  EXPECT_EQ(a.load(), &exited_gate);
  EXPECT_EQ(statistics().overflow_entries, 2u);
}

// Owned: the other entries need not be told of a thread's exit.
TEST_OWNED(EngineTest, WhereNobodyTellsOfAThreadsExitItWorksInOverflowLanes) {
  engine().set_exit_watch([](Slot&) { return false; });
  Slot &a = thread(), &b = thread();
  void* p = take(a, 64);
  EXPECT_EQ(a.load(), &exited_gate);
  void* q = take(b, 64);
  give(b, p);
  give(a, q);
  EXPECT_EQ(statistics().live_objects, 0u);
  EXPECT_LE(statistics().lanes, 2u);
}

TEST_ALL_CONFIGS(EngineTest, AThousandThreadsOneAfterTheOtherShareAFewLanes) {
  for (int i = 0; i < 1000; ++i) {
    Slot& t = thread();
    void* p = take(t, 200);
    fill(p, 200, 1);
    give(t, p);
    engine().exits().thread_exits(t);
  }
  EXPECT_EQ(statistics().lanes, is_owned() ? 1u : 2u);
  EXPECT_EQ(statistics().live_objects, 0u);
}

}  // namespace
}  // namespace lanemalloc
