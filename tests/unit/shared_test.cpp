// Shared entry: tries, probes, precedence, waits. The tests play all threads on one. A thread that
// waits spins, and its pauses do what the other threads do meanwhile (Fake::on_pause).
#include <set>
#include <thread>

#include "fixture.h"

namespace lanemalloc {
namespace {

class SharedTest : public EngineTest {
 protected:
  void begin(uint32_t lanes, const SharedSettings& shared = {}) {
    held_.clear();
    Settings settings;
    settings.entry = Entry::kShared;
    settings.shared_lanes = lanes;
    settings.shared = shared;
    begin_with(settings);
    for (uint32_t i = 0; i < lanes; ++i) ASSERT_NE(world().lanes.shared(i), nullptr);
  }
  void TearDown() override {
    Fake::on_pause = nullptr;
    EngineTest::TearDown();
  }

  Lane<Fake>& lane(uint32_t i) { return world().lanes.shared(i)->entered(); }
  // A thread whose lane is number `i`.
  Slot& thread_at(uint32_t i) {
    Slot& slot = thread();
    slot = &lane(i);
    return slot;
  }
  // Other threads are inside these lanes.
  void hold(uint32_t i) {
    Holder& holder = held_.emplace_back();
    holder.number = i;
    ASSERT_TRUE(lane(i).try_lock(holder.visit));
  }
  void hold_all() {
    for (uint32_t i = 0; i < world().lanes.orders().lanes(); ++i) hold(i);
  }
  void release(uint32_t i) {
    for (Holder& holder : held_)
      if (std::exchange(holder.number, holder.number == i ? kNoNumber : holder.number) == i)
        lane(i).unlock(holder.visit);
  }
  void release_all() {
    for (Holder& holder : held_)
      if (holder.number != kNoNumber) release(holder.number);
  }
  // The lane that a thread waits at if all lanes are taken. `meanwhile` runs while it waits.
  template <class Body>
  uint32_t waits_at(Slot& slot, Body meanwhile) {
    uint32_t at = kNoNumber;
    std::vector<uint64_t> before;
    for (uint32_t i = 0; i < world().lanes.orders().lanes(); ++i)
      before.push_back(lane(i).lock().contention().waits);
    Fake::on_pause = [&] {
      for (uint32_t i = 0; i < before.size(); ++i)
        if (lane(i).lock().contention().waits != before[i]) at = i;
      meanwhile();
      release_all();
      Fake::on_pause = nullptr;
    };
    give(slot, take(slot, 64));
    Fake::on_pause = nullptr;
    EXPECT_EQ(lane_of(slot)->number(), at);
    return at;
  }
  uint32_t waits_at(Slot& slot) {
    return waits_at(slot, [] {});
  }
  // The lanes in the order in which they are tried if R is r.
  std::vector<uint32_t> order(uint32_t r, uint32_t probes) {
    const ProbeOrders& orders = world().lanes.orders();
    std::vector<uint32_t> all;
    for (uint32_t i = orders.start(r); all.size() < probes; i = orders.next(i, orders.step(r)))
      all.push_back(i);
    return all;
  }
  uint64_t probes_counted() {
    const Statistics s = statistics();
    uint64_t sum = 0;
    for (uint64_t n : s.probes) sum += n;
    return sum;
  }

 private:
  struct Holder {
    uint32_t number = kNoNumber;
    Visit visit{&number, false};
  };
  std::deque<Holder> held_;
};

// --- Tries and probes.

TEST_SHARED(SharedTest, ThreadsGetTheLanesInTurnAndStay) {
  begin(4);
  std::vector<Slot*> threads;
  for (uint32_t i = 0; i < 10; ++i) {
    threads.push_back(&thread());
    void* p = take(*threads[i], 64);
    EXPECT_EQ(lane_of(*threads[i])->number(), i % 4);
    EXPECT_EQ(owner_of(p), lane_of(*threads[i])->id());
    give(*threads[i], p);
  }
  for (uint32_t i = 0; i < 10; ++i) {
    give(*threads[i], take(*threads[i], 2000));
    EXPECT_EQ(lane_of(*threads[i])->number(), i % 4);
  }
  const Statistics s = statistics();
  EXPECT_EQ(s.lanes, 4u);
  EXPECT_EQ(s.failed_entries + s.rebinds + s.overflow_entries + s.lane_waits, 0u);
  EXPECT_EQ(probes_counted(), 0u);
}

TEST_SHARED(SharedTest, ARefusedThreadGoesToTheFirstFreeLaneOfItsOrderAndNeverWaits) {
  for (uint32_t lanes : {2u, 3u, 8u}) {
    for (uint32_t r = 1; r < 60; r += lanes) {
      begin(lanes);
      Fake::on_pause = [] { ADD_FAILURE() << "a refused try waits"; };
      Fake::ns = r;
      const std::vector<uint32_t> tried = order(r, std::min(4u, lanes));
      // All lanes that it tries are taken, except the last one that is not its own.
      const uint32_t own = r / lanes % lanes;
      uint32_t free = tried.back() != own ? tried.back() : tried[tried.size() - 2];
      for (uint32_t i = 0; i < lanes; ++i)
        if (i != free) hold(i);
      Slot& t = thread_at(own);
      void* p = take(t, 64);
      EXPECT_EQ(lane_of(t)->number(), free) << lanes << " lanes, R = " << r;
      EXPECT_EQ(owner_of(p), lane(free).id());
      const Statistics s = statistics();
      EXPECT_EQ(s.rebinds, 1u);
      const auto steps =
          static_cast<uint32_t>(std::find(tried.begin(), tried.end(), free) - tried.begin()) + 1;
      EXPECT_EQ(s.probes[probes_row(steps)], 1u);
      EXPECT_EQ(probes_counted(), 1u);
      EXPECT_EQ(s.lane_waits, 0u);
      give(t, p);
      EXPECT_EQ(lane_of(t)->number(), free) << "it stays there";
      EXPECT_EQ(statistics().rebinds, 1u);
      release_all();
    }
  }
}

TEST_SHARED(SharedTest, AtMostFourLanesOrAsManyAsThereAreAreProbedBeforeAWait) {
  for (uint32_t lanes : {1u, 2u, 3u, 4u, 5u, 8u, 64u}) {
    for (uint32_t most : {1u, 4u, ProbeOrders::kMostLanes}) {
      SharedSettings shared;
      shared.probes = most;
      begin(lanes, shared);
      Fake::ns = 12345;
      hold_all();
      const uint32_t probes = std::min(most, lanes);
      const std::vector<uint32_t> tried = order(12345, probes);
      const uint32_t own = lanes / 2;
      Slot& t = thread_at(own);
      (void)waits_at(t, [&] {
        for (uint32_t i = 0; i < lanes; ++i) {
          // Its own lane has more failures: every miss looks there first.
          const bool is_tried = i != own && std::count(tried.begin(), tried.end(), i) > 0;
          if (i != own) {
            EXPECT_EQ(lane(i).lock().contention().failures >= 1, is_tried)
                << "lane " << i << " of " << lanes;
          }
        }
      });
      const Statistics s = statistics();
      EXPECT_EQ(s.probes[probes_row(probes)], 1u) << lanes << " lanes, " << probes << " probes";
      EXPECT_EQ(probes_counted(), 1u);
      EXPECT_EQ(s.lane_waits, 1u);
      EXPECT_LE(s.failed_entries, 3u + probes);
    }
  }
}

TEST_SHARED(SharedTest, ScanFirstTriesFromTheFirstLaneOn) {
  SharedSettings shared;
  shared.scan_from_first = true;
  begin(8, shared);
  hold(0);
  hold(5);
  Slot& t = thread_at(5);
  give(t, take(t, 64));
  EXPECT_EQ(lane_of(t)->number(), 1u);
  EXPECT_EQ(statistics().probes[probes_row(2)], 1u);
  EXPECT_EQ(statistics().rebinds, 1u);
  // It tries at most four. Then it waits at the one of these that has been contended longest.
  // Without precedence it waits at its own lane, or at the one that it tried last.
  for (const bool precedence : {true, false}) {
    for (const bool random : {false, true}) {
      shared.use_precedence = precedence;
      shared.wait_on_random = random;
      begin(8, shared);
      hold_all();
      lane(2).precedence() = 1;
      lane(5).precedence() = 0;  // it is not tried
      EXPECT_EQ(waits_at(thread_at(6)), precedence ? 2u : random ? 3u : 6u);
      EXPECT_EQ(statistics().probes[probes_row(4)], 1u);
    }
  }
}

// --- Precedence and waits.

TEST_SHARED(SharedTest, PrecedenceIsStampedAtTheFirstFailureOnlyAndClearedBySuccess) {
  begin(2);
  EXPECT_EQ(lane(0).precedence(), 0u);
  hold(0);
  Fake::ns = 1001;
  Slot& first = thread_at(0);
  give(first, take(first, 64));
  EXPECT_EQ(lane(0).precedence(), 1001u);
  EXPECT_EQ(lane(1).precedence(), 0u);
  Fake::ns = 2002;
  Slot& second = thread_at(0);
  give(second, take(second, 64));
  EXPECT_EQ(lane(0).precedence(), 1001u) << "stamped again";
  release(0);
  Slot& third = thread_at(0);
  give(third, take(third, 64));
  EXPECT_EQ(lane(0).precedence(), 0u);
  EXPECT_EQ(lane_of(third)->number(), 0u);
  // A wait that ended was a success too, and so was a probe.
  hold_all();
  EXPECT_EQ(waits_at(third), 0u);
  EXPECT_EQ(lane(0).precedence(), 0u);
  hold(0);
  lane(1).precedence() = 5;
  give(third, take(third, 64));
  EXPECT_EQ(lane_of(third)->number(), 1u);
  EXPECT_EQ(lane(1).precedence(), 0u);
}

TEST_SHARED(SharedTest, AWaiterGoesToTheLaneThatHasBeenContendedLongest) {
  for (uint32_t lowest = 0; lowest < 4; ++lowest) {
    for (uint32_t own = 0; own < 4; ++own) {
      begin(4);
      Fake::ns = 5000 + lowest;
      hold_all();
      for (uint32_t i = 0; i < 4; ++i) lane(i).precedence() = i == lowest ? 10 : 100 + i;
      EXPECT_EQ(waits_at(thread_at(own)), lowest) << "from lane " << own;
    }
  }
}

TEST_SHARED(SharedTest, ALaneThatWasEnteredMeanwhileIsNoneToWaitAt) {
  begin(3);
  Fake::ns = 7000;
  hold_all();
  lane(1).precedence() = 0;
  lane(2).precedence() = 50;
  EXPECT_EQ(waits_at(thread_at(0)), 2u);
}

TEST_SHARED(SharedTest, WithoutPrecedenceAThreadWaitsAtItsOwnLaneOrAtTheOneTriedLast) {
  for (bool random : {false, true}) {
    SharedSettings shared;
    shared.use_precedence = false;
    shared.wait_on_random = random;
    for (uint32_t r = 1; r < 40; r += 3) {
      begin(5, shared);
      Fake::ns = r;
      hold_all();
      for (uint32_t i = 0; i < 5; ++i) lane(i).precedence() = 10 + i;
      const uint32_t own = r % 5;
      EXPECT_EQ(waits_at(thread_at(own)), random ? order(r, 4).back() : own) << "R = " << r;
    }
  }
}

TEST_SHARED(SharedTest, ARefusedTryStampsAndOfEqualsTheFirstTriedIsWaitedAt) {
  for (bool random : {false, true}) {
    SharedSettings shared;
    shared.wait_on_random = random;  // matters only if no precedence is seen: not here
    begin(5, shared);
    Fake::ns = 4711;
    hold_all();
    const std::vector<uint32_t> tried = order(4711, 4);
    EXPECT_EQ(waits_at(thread_at(2)), tried[0]);
    for (uint32_t i = 1; i < 4; ++i) {
      if (tried[i] != 2) {
        EXPECT_EQ(lane(tried[i]).precedence(), 4711u) << i;
      }
    }
    // A lane that has been contended for longer goes first.
    begin(5, shared);
    hold_all();
    const uint32_t contended = tried[1] != 2 ? tried[1] : tried[2];
    lane(contended).precedence() = 3;
    EXPECT_EQ(waits_at(thread_at(2)), contended);
  }
}

TEST_SHARED(SharedTest, TheOrderComesFromThePrecedenceOfTheThreadsOwnLane) {
  for (bool use : {true, false}) {
    SharedSettings shared;
    shared.use_precedence = use;
    begin(7, shared);
    Fake::ns = 3;
    lane(0).precedence() = 25;
    const uint32_t r = use ? 25 : 3;
    ASSERT_NE(order(25, 4), order(3, 4));
    for (uint32_t i = 0; i < 7; ++i)
      if (i != order(r, 1)[0]) hold(i);
    ASSERT_NE(order(r, 1)[0], 0u);
    Slot& t = thread_at(0);
    give(t, take(t, 64));
    EXPECT_EQ(lane_of(t)->number(), order(r, 1)[0]);
    EXPECT_EQ(statistics().probes[1], 1u);
    release_all();
  }
}

TEST_SHARED(SharedTest, WaitsAndTheirTimeAreCountedAndPrinted) {
  begin(2);
  Fake::ns = 1'000'000;
  hold_all();
  (void)waits_at(thread_at(0), [] { Fake::ns = 6'000'000; });
  const Statistics s = statistics();
  EXPECT_EQ(s.lane_waits, 1u);
  EXPECT_EQ(s.lane_waited_us, 5000u);
  EXPECT_EQ(s.entry, Entry::kShared);
  EXPECT_EQ(s.shared_lanes, 2u);
  hold(0);
  Slot& t = thread_at(0);
  for (int i = 0; i < 3; ++i) {
    give(t, take(t, 64));
    t = &lane(0);
  }
  Fake::said.clear();
  print<Fake>(statistics());
  for (const char* line :
       {"lanemalloc: entry: shared:2\n", "lanemalloc: waits for a lane: 1\n",
        "lanemalloc: microseconds waited for lanes: 5000\n",
        "lanemalloc: rebinds to another lane: 3\n", "lanemalloc: restarted sequences: 0\n"})
    EXPECT_NE(Fake::said.find(line), std::string::npos) << line << Fake::said;
  EXPECT_NE(Fake::said.find("lanemalloc: searches of "), std::string::npos);
  EXPECT_EQ(probes_counted(), 4u);
  release_all();
}

TEST_SHARED(SharedTest, AHandlerNeverWaitsForALane) {
  begin(3);
  Slot& t = thread_at(1);
  void* mine = take(t, 64);
  hold(0);
  hold(2);
  Fake::on_pause = [] { ADD_FAILURE() << "a handler waits"; };
  in_handler(t, [&] {
    void* p = take(t, 64);
    EXPECT_NE(owner_of(p), lane(1).id());
    give(t, p);
    give(t, mine);
    give(t, take(t, 1 << 20));
    engine().upkeep().trim(t);
  });
  EXPECT_EQ(lane_of(t)->number(), 1u);
  const Statistics s = statistics();
  EXPECT_EQ(s.lane_waits, 0u);
  EXPECT_GE(s.nested_entries, 3u);
  EXPECT_EQ(s.live_objects, 0u);
  release_all();
}

// --- The pool.

TEST_SHARED(SharedTest, ThirtyTwoThreadsTouchNoMoreThanEightLanes) {
  begin(8);
  std::vector<std::thread> threads;
  for (int i = 0; i < 32; ++i) {
    threads.emplace_back([this] {
      Slot slot{&no_lane_gate};
      std::vector<void*> all;
      for (int n = 0; n < 60; ++n) all.push_back(engine().allocate(100, slot));
      std::set<Owner> owners;
      for (void* p : all) owners.insert(owner_of(p));
      for (Owner owner : owners) EXPECT_LT(world().lanes.at(owner).number(), 8u);
      for (void* p : all) EXPECT_EQ(engine().free(p, slot), Verdict::kGood);
      engine().exits().thread_exits(slot);
    });
  }
  for (std::thread& t : threads) t.join();
  const Statistics s = statistics();
  EXPECT_EQ(s.lanes, 8u);
  EXPECT_EQ(s.overflow_entries, 0u);
  EXPECT_EQ(s.live_objects, 0u);
}

TEST_SHARED(SharedTest, NoThreadEntersALaneThatIsNoLongerOfThePoolAfterItsNextMiss) {
  begin(8);
  std::vector<Slot*> threads;
  std::vector<void*> all;
  for (uint32_t i = 0; i < 8; ++i) {
    threads.push_back(&thread());
    for (int n = 0; n < 1000; ++n) fill(all.emplace_back(take(*threads[i], 100)), 100, i);
    ASSERT_EQ(lane_of(*threads[i])->number(), i);
  }
  Settings smaller;
  smaller.entry = Entry::kShared;
  smaller.shared_lanes = 3;
  ASSERT_TRUE(engine().choose_entry(smaller));
  for (Slot* t : threads) {
    give(*t, take(*t, 3000));
    EXPECT_LT(lane_of(*t)->number(), 3u);
  }
  // What lies in the lanes that are left behind is given back.
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_TRUE(is_whole(all[i], 100, i / 1000));
    give(*threads[i % 8], all[i]);
  }
  start_threads();
  all_passes();
  EXPECT_EQ(statistics().slab_bytes, 0u);
  EXPECT_EQ(statistics().in_flight_objects, 0u);
  // When their number is raised, the same lanes serve again, and no more are made.
  Settings larger = smaller;
  larger.shared_lanes = 8;
  ASSERT_TRUE(engine().choose_entry(larger));
  std::set<uint32_t> numbers;
  for (int i = 0; i < 16; ++i) {
    Slot& t = thread();
    give(t, take(t, 100));
    numbers.insert(lane_of(t)->number());
  }
  EXPECT_EQ(numbers.size(), 8u);
  EXPECT_EQ(statistics().lanes, 8u);
  EXPECT_EQ(statistics().shared_lanes, 8u);
}

TEST_SHARED(SharedTest, ThePoolIsEnlargedAndShrunkWhileThreadsWork) {
  begin(2);
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  std::deque<Slot> slots;
  for (int i = 0; i < 3; ++i) slots.emplace_back(&no_lane_gate);
  for (uint64_t i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      Slot& slot = slots[i];
      void* kept[50] = {};
      for (uint64_t n = 0; n < 1500 || !done; ++n) {
        void*& p = kept[n * 7 % 50];
        EXPECT_TRUE(p == nullptr || is_whole(p, 90, n * 7 % 50 + i));
        EXPECT_EQ(engine().free(p, slot), Verdict::kGood);
        fill(p = engine().allocate(90, slot), 90, n * 7 % 50 + i);
      }
      for (void* p : kept) EXPECT_EQ(engine().free(p, slot), Verdict::kGood);
    });
  }
  Settings settings;
  settings.entry = Entry::kShared;
  for (uint32_t i = 0; i < 60; ++i) {
    settings.shared_lanes = 1 + i * 5 % 13;
    EXPECT_TRUE(engine().choose_entry(settings));
    std::this_thread::yield();
  }
  settings.shared_lanes = 2;
  EXPECT_TRUE(engine().choose_entry(settings));
  done = true;
  for (std::thread& t : threads) t.join();
  for (Slot& slot : slots) {
    give(slot, take(slot, 90));
    EXPECT_LT(lane_of(slot)->number(), 2u);
  }
  for (int i = 0; i < 4; ++i) engine().upkeep().trim(slots[0]);
  EXPECT_EQ(statistics().live_objects, 0u);
  EXPECT_EQ(statistics().slab_bytes, 0u);
}

// --- Fork.

TEST_SHARED(SharedTest,
            InAHandlersForkChildALaneThatAnotherThreadWasInIsSetAsideAndItsNumberGetsANewOne) {
  begin(2);
  Slot &a = thread_at(0), &other = thread_at(1);
  std::vector<void*> live;
  for (int i = 0; i < 100; ++i) live.push_back(take(other, 48));
  give(a, take(a, 48));
  Lane<Fake>*mine = &lane(0), *taken = &lane(1);
  Stopped inside(other);
  in_handler(a, [&] {
    engine().fork().before(a);
    engine().fork().after_in_child(a);
  });
  EXPECT_TRUE(taken->is_set_aside());
  EXPECT_FALSE(mine->is_set_aside());
  EXPECT_EQ(&lane(0), mine);
  EXPECT_NE(&lane(1), taken);
  Slot& b = thread_at(1);
  void* p = take(b, 48);
  EXPECT_EQ(lane_of(b), &lane(1));
  EXPECT_EQ(owner_of(p), lane(1).id());
  EXPECT_EQ(std::count(live.begin(), live.end(), p), 0);
  for (void* q : live) give(b, q);
  Visit visit(&b, true);
  EXPECT_FALSE(taken->try_lock(visit)) << "somebody may enter what was set aside";
  EXPECT_FALSE(taken->lock_or_wait(visit));
}

TEST_SHARED(SharedTest, InAForkChildTheForkingThreadGoesOnInTheLaneThatItsHandlerInterrupted) {
  begin(2);
  Slot& a = thread_at(0);
  give(a, take(a, 48));
  Lane<Fake>* mine = &lane(0);
  in_handler(a, [&] {
    engine().fork().before(a);
    engine().fork().after_in_child(a);
    give(a, take(a, 48));
    EXPECT_TRUE(mine->lock().is_held());
  });
  EXPECT_FALSE(mine->lock().is_held());
  EXPECT_EQ(owner_of(take(a, 48)), mine->id());
  EXPECT_EQ(&lane(0), mine);
}

}  // namespace
}  // namespace lanemalloc
