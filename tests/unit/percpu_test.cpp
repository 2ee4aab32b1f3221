// By CPU: steps that are interrupted, moved, or meet a revoker; sparse numbers; fork. The tests
// play all CPUs on one thread. Fake::number says on which CPU it runs. Fake::on_step and
// Fake::on_restart say what other threads do in the middle of a step or a revocation.
#include <set>
#include <thread>

#include "fixture.h"

namespace lanemalloc {
namespace {

class PerCpuTest : public EngineTest {
 protected:
  void SetUp() override {
    EngineTest::SetUp();
    ASSERT_EQ(engine().entry(), Entry::kPerCpu);
  }
  NOINLINE void* take_on(uint32_t number, Slot& slot, Bytes size) {
    Fake::number = number;
    void* p = engine().allocate(size, slot);
    EXPECT_NE(p, nullptr);
    return p;
  }
  NOINLINE void give_on(uint32_t number, Slot& slot, void* p) {
    Fake::number = number;
    EXPECT_EQ(engine().free(p, slot), Verdict::kGood);
  }
  // The lane of a CPU that a thread has used.
  Lane<Fake>& lane(uint32_t number) { return world().lanes.here(number)->entered(); }
  // True if the operation is a hit.
  bool hits_allocate(Slot& slot, void*& p) {
    bool hit = true;
    p = engine().allocate(100, slot, [&](Gate* gate) {
      hit = false;
      return Misses<Fake>::allocate_in_stay(engine().searches(), 100, slot, gate);
    });
    return hit;
  }
  bool hits_free(Slot& slot, void* p) {
    bool hit = true;
    engine().free(
        p, slot,
        [&](Gate* gate, MapWord) {
          hit = false;
          if (!Misses<Fake>::free_by_cpu(world(), p, slot, gate)) {
            EXPECT_EQ(Misses<Fake>::free_in_stay(world(), p, slot, gate), Verdict::kGood);
          }
        },
        [&](Gate* gate, Slab* slab) { Misses<Fake>::look_in_stay(slab, slot, gate); });
    return hit;
  }
};

// --- Entering.

TEST_PER_CPU(PerCpuTest, WhereAFreeIsNoStepItEnters) {
  Fake::pushes = false;
  begin({});
  Slot& t = thread();
  void *p = take_on(0, t, 100), *q = take_on(0, t, 100);
  EXPECT_TRUE(hits_free(t, p));
  EXPECT_TRUE(hits_free(t, q));
  EXPECT_EQ(lane(0).here, lane(0).word_if_free());
  EXPECT_FALSE(is_busy(t.load()));
  EXPECT_EQ(statistics().live_objects, 0u);
}

TEST_PER_CPU(PerCpuTest, ThreadsOfOneCpuShareItsLaneAndHitInIt) {
  Slot &a = thread(), &b = thread();
  void* first = take_on(0, a, 100);
  void* second = take_on(0, b, 100);
  EXPECT_EQ(owner_of(first), lane(0).id());
  EXPECT_EQ(owner_of(second), lane(0).id());
  EXPECT_EQ(lane(0).here, lane(0).word_if_free()) << "they have left";
  for (Slot* t : {&a, &b}) {
    void* p;
    EXPECT_TRUE(hits_allocate(*t, p));
    EXPECT_EQ(owner_of(p), lane(0).id());
    EXPECT_TRUE(hits_free(*t, p));
    EXPECT_EQ(lane(0).here, lane(0).word_if_free());
    EXPECT_FALSE(is_busy(t->load()));
  }
  EXPECT_TRUE(hits_free(b, first)) << "whoever runs there may free";
  give_on(0, a, second);
  const Statistics s = statistics();
  EXPECT_EQ(s.lanes, 1u);
  EXPECT_EQ(s.live_objects, 0u);
  EXPECT_EQ(s.remote_frees + s.overflow_entries + s.rebinds + s.interruptions, 0u);
  EXPECT_EQ(s.entry, Entry::kPerCpu);
  print<Fake>(s);
  EXPECT_NE(Fake::said.find("lanemalloc: entry: percpu\n"), std::string::npos);
}

TEST_PER_CPU(PerCpuTest, WhereHitsHaveNoNumbersAllGoesThroughMisses) {
  Fake::number_hits = false;
  begin({});
  Slot& t = thread();
  void* p = take_on(0, t, 100);
  give_on(0, t, p);
  EXPECT_FALSE(hits_allocate(t, p));
  EXPECT_EQ(owner_of(p), lane(0).id());
  EXPECT_FALSE(hits_free(t, p));
  EXPECT_EQ(statistics().live_objects, 0u);
  EXPECT_EQ(statistics().overflow_entries, 0u);
}

TEST_PER_CPU(PerCpuTest, WhoFindsTheLaneTakenGoesToTheNextOfTheCpu) {
  Slot &a = thread(), &b = thread();
  void* mine = take_on(0, a, 100);
  give_on(0, b, take_on(0, b, 100));
  Stopped inside(a);
  EXPECT_EQ(lane(0).here, kTakenHere);
  void* p = take_on(0, b, 100);
  Lane<Fake>& second = world().lanes.here(0, 1)->entered();
  EXPECT_EQ(owner_of(p), second.id());
  EXPECT_EQ(second.here, second.word_if_free());
  EXPECT_EQ(lane_of(b), &second);
  void* q;
  EXPECT_TRUE(hits_allocate(b, q));
  EXPECT_EQ(owner_of(q), second.id());
  EXPECT_TRUE(hits_free(b, q));
  give_on(0, b, mine);
  EXPECT_EQ(statistics().remote_frees, 1u);
  give_on(0, b, p);
  EXPECT_EQ(lane(0).here, kTakenHere) << "it is still inside";
  inside.leave();
  p = take_on(0, b, 3000);
  EXPECT_EQ(owner_of(p), lane(0).id()) << "a miss goes to the first lane that is free";
  give_on(0, b, p);
  EXPECT_EQ(statistics().overflow_entries, 0u);
  EXPECT_EQ(statistics().rebinds, 0u);
  EXPECT_EQ(statistics().live_objects, 0u);
}

// So a thread that is stopped on the way holds nothing. Only a thread that enters goes to the first
// lane.
TEST_PER_CPU(PerCpuTest, AnObjectOfALargerClassThatTheBinHasIsTakenByAStep) {
  Slot &a = thread(), &b = thread();
  give_on(0, a, take_on(0, a, 100));
  give_on(0, b, take_on(0, b, 100));
  for (Bytes size : {Bytes{2000}, Bytes{5000}}) {
    Stopped inside(a);
    std::vector<void*> all;
    for (int i = 0; i < 8; ++i) all.push_back(take_on(0, b, size));
    Lane<Fake>& second = world().lanes.here(0, 1)->entered();
    for (void* p : all) EXPECT_EQ(owner_of(p), second.id());
    for (void* p : all) give_on(0, b, p);
    all = {take_on(0, b, size)};
    EXPECT_GT(second.bin_length(index_of(class_of(size))), 2u);
    inside.leave();
    for (int i = 0; i < 2; ++i) {
      all.push_back(take_on(0, b, size));
      EXPECT_EQ(owner_of(all.back()), second.id());
      EXPECT_FALSE(is_busy(b.load()));
    }
    for (void* p : all) give_on(0, b, p);
    EXPECT_EQ(owner_of(take_on(0, b, 100 * size)), lane(0).id());
  }
}

TEST_PER_CPU(PerCpuTest, WhoFindsAllLanesOfTheCpuTakenGoesToAnOverflowLane) {
  Slot& t = thread();
  void* mine = take_on(0, t, 100);
  std::set<Owner> owners;
  Fake::number = 0;
  for (uint32_t which = 0; which < LaneTable<Fake>::kLanesHere; ++which) {
    Lane<Fake>& one = world().lanes.here(0, which)->entered();
    owners.insert(one.id());
    one.here = kTakenHere;
  }
  EXPECT_EQ(owners.size(), LaneTable<Fake>::kLanesHere);
  void* p = take_on(0, t, 100);
  EXPECT_EQ(owners.count(owner_of(p)), 0u);
  give_on(0, t, mine);
  give_on(0, t, p);
  EXPECT_EQ(statistics().overflow_entries, 3u);
  EXPECT_EQ(statistics().nested_entries, 0u);
  for (uint32_t which = 0; which < LaneTable<Fake>::kLanesHere; ++which)
    world().lanes.here(0, which)->leave_here();
  EXPECT_EQ(owner_of(take_on(0, t, 100)), lane(0).id());
}

TEST_PER_CPU(PerCpuTest, AnObjectOfAnotherLaneOfTheCpuIsFreedWithoutEnteringThat) {
  for (const bool pushes : {true, false}) {
    Fake::pushes = pushes;
    begin({});
    Slot &a = thread(), &b = thread();
    void *first = take_on(0, a, 100), *kept = take_on(0, a, 100);
    Stopped inside(a);
    void* second = take_on(0, b, 100);
    ASSERT_NE(owner_of(first), owner_of(second));
    inside.leave();
    const uint32_t free = lane(0).word_if_free();
    Fake::number = 0;
    EXPECT_FALSE(hits_free(b, first));
    EXPECT_EQ(statistics().remote_frees, 0u);
    EXPECT_EQ(lane_of(b) == &lane(0), !pushes) << "else it comes back to the first lane";
    EXPECT_EQ(lane(0).here, free);
    give_on(0, b, kept);
    give_on(0, a, second);
    EXPECT_EQ(statistics().live_objects, 0u);
    EXPECT_EQ(statistics().overflow_entries, 0u);
  }
}

TEST_PER_CPU(PerCpuTest, AFreeAfterWhichSomebodyMustLookIsAMiss) {
  for (const bool pushes : {true, false}) {
    Fake::pushes = pushes;
    begin({});
    Slot& t = thread();
    std::vector<void*> all;
    for (int i = 0; i < 3000; ++i) all.push_back(take_on(0, t, 100));
    unsigned misses = 0;
    for (void* p : all) misses += hits_free(t, p) ? 0 : 1;
    if (pushes) {
      EXPECT_GT(misses, 3u);
    } else {
      EXPECT_EQ(misses, 0u);
    }
    EXPECT_LT(misses, 30u);
    EXPECT_EQ(statistics().live_objects, 0u);
    EXPECT_EQ(statistics().remote_frees, 0u);
    engine().upkeep().trim(t);
    engine().upkeep().trim(t);
    EXPECT_EQ(statistics().slab_bytes, 0u) << "what was pushed is counted";
  }
}

TEST_PER_CPU(PerCpuTest, InterruptedStepsAreCountedAndEndInAnOverflowLaneAfterAFew) {
  Slot& t = thread();
  give_on(0, t, take_on(0, t, 100));
  // If the interruptions are few, the thread starts over.
  Slot& fresh = thread();
  Fake::interrupt_next = 2;
  void* p = take_on(0, fresh, 100);
  EXPECT_EQ(Fake::interrupt_next, 0u);
  EXPECT_EQ(owner_of(p), lane(0).id());
  EXPECT_EQ(statistics().interruptions, 2u);
  EXPECT_EQ(statistics().overflow_entries, 0u);
  give_on(0, fresh, p);
  // Now they do not end.
  constexpr uint32_t kMany = 1000;
  Fake::interrupt_next = kMany;
  p = take_on(0, t, 100);
  const uint32_t needed = kMany - Fake::interrupt_next;
  EXPECT_GE(needed, 2u);
  EXPECT_LE(needed, 10u);
  EXPECT_NE(owner_of(p), lane(0).id());
  EXPECT_EQ(statistics().overflow_entries, 1u);
  EXPECT_GT(statistics().interruptions, 2u);
  EXPECT_EQ(lane(0).here, lane(0).word_if_free());
  give_on(0, t, p);
  EXPECT_EQ(statistics().overflow_entries, 2u);
  Fake::interrupt_next = 0;
  EXPECT_EQ(statistics().live_objects, 0u);
}

TEST_PER_CPU(PerCpuTest, AThreadThatHasMovedGoesToTheLaneOfItsNewCpu) {
  Slot& t = thread();
  void* p = take_on(0, t, 100);
  EXPECT_EQ(statistics().rebinds, 0u);
  void* q = take_on(1, t, 100);
  EXPECT_EQ(owner_of(q), lane(1).id());
  EXPECT_NE(owner_of(p), owner_of(q));
  EXPECT_EQ(lane_of(t), &lane(1));
  EXPECT_EQ(statistics().rebinds, 1u);
  give_on(1, t, p);
  EXPECT_EQ(statistics().remote_frees, 1u);
  give_on(0, t, q);
  EXPECT_EQ(lane_of(t), &lane(0));
  EXPECT_EQ(statistics().rebinds, 2u);
  EXPECT_EQ(statistics().live_objects, 0u);
}

TEST_PER_CPU(PerCpuTest, AThreadThatIsMovedJustBeforeItsStepTakesTheLaneOfItsNewCpu) {
  Slot& warm = thread();
  for (uint32_t n : {0u, 1u}) give_on(n, warm, take_on(n, warm, 100));
  for (Slot* t : {&warm, &thread()}) {
    Fake::on_step = [] { Fake::number = 1; };
    void* p = take_on(0, *t, 100);
    EXPECT_EQ(owner_of(p), lane(1).id());
    Fake::on_step = [] { Fake::number = 0; };
    give_on(1, *t, p);
    EXPECT_EQ(lane_of(*t), &lane(0));
    for (uint32_t n : {0u, 1u}) EXPECT_EQ(lane(n).here, lane(n).word_if_free());
  }
  EXPECT_EQ(statistics().overflow_entries, 0u);
  EXPECT_EQ(statistics().live_objects, 0u);
}

TEST_PER_CPU(PerCpuTest, NumbersMayHaveGapsAndBeLarge) {
  Slot& t = thread();
  std::set<Owner> owners;
  std::vector<void*> all;
  for (uint32_t number : {0u, 7u, 255u, 256u, 4096u, kMostNumbers - 1}) {
    void* p = all.emplace_back(take_on(number, t, 100));
    EXPECT_EQ(lane_of(t)->number(), number);
    EXPECT_EQ(lane(number).here >> 16, number);
    owners.insert(owner_of(p));
    EXPECT_TRUE(hits_allocate(t, p));
    EXPECT_TRUE(hits_free(t, p));
  }
  EXPECT_EQ(owners.size(), 6u);
  EXPECT_EQ(statistics().lanes, 6u);
  // If the number is too large, or there is none, overflow lanes serve.
  for (uint32_t number : {kMostNumbers, kMostNumbers + 1, 0xFFFFu, 0x10000u, kNoNumber}) {
    const uint64_t before = statistics().overflow_entries;
    void* p = take_on(number, t, 100);
    EXPECT_EQ(owners.count(owner_of(p)), 0u) << number;
    give_on(number, t, p);
    EXPECT_EQ(statistics().overflow_entries, before + 2) << number;
  }
  for (void* p : all) give_on(0, t, p);
  EXPECT_EQ(statistics().live_objects, 0u);
}

// --- Revocation.

TEST_PER_CPU(PerCpuTest, AFreeLaneCanBeHeldAndNobodyEntersItMeanwhile) {
  Slot &t = thread(), &other = thread();
  void* p = take_on(0, t, 100);
  Visit visit(&other, true);
  ASSERT_TRUE(lane(0).try_hold(visit));
  EXPECT_EQ(lane(0).here, kRevokedHere);
  void* q;
  Fake::number = 0;
  EXPECT_FALSE(hits_allocate(t, q));
  EXPECT_NE(owner_of(q), lane(0).id());
  EXPECT_FALSE(hits_free(t, p));
  give_on(0, t, q);
  Visit third(&other, false);
  EXPECT_FALSE(lane(0).try_hold(third));
  EXPECT_EQ(lane(0).here, kRevokedHere);
  lane(0).let_go(visit);
  EXPECT_EQ(lane(0).here, lane(0).word_if_free());
  EXPECT_TRUE(hits_allocate(t, q));
  EXPECT_TRUE(hits_free(t, q));
  EXPECT_EQ(statistics().live_objects, 0u);
  EXPECT_EQ(statistics().overflow_entries, 0u) << "the next lane of the CPU is free";
}

TEST_PER_CPU(PerCpuTest, ATakenLaneIsNotHeld) {
  Slot &t = thread(), &other = thread();
  give_on(0, t, take_on(0, t, 100));
  Stopped inside(t);
  Visit visit(&other, true);
  EXPECT_FALSE(lane(0).try_hold(visit));
  EXPECT_EQ(lane(0).here, kTakenHere);
  EXPECT_FALSE(lane(0).lock().is_held());
  inside.leave();
  EXPECT_TRUE(lane(0).try_hold(visit));
  lane(0).let_go(visit);
}

TEST_PER_CPU(PerCpuTest, WhoTakesTheLaneBetweenTheCompareExchangeAndTheRestartWins) {
  Slot &t = thread(), &other = thread();
  give_on(0, t, take_on(0, t, 100));
  Visit visit(&other, true);
  // The thread's [check] came before [revoke], and its store after it.
  Fake::on_restart = [&] { lane(0).here = kTakenHere; };
  EXPECT_FALSE(lane(0).try_hold(visit));
  EXPECT_EQ(lane(0).here, kTakenHere) << "the word belongs to who took it";
  EXPECT_FALSE(lane(0).lock().is_held());
  Fake::on_restart = nullptr;
  EXPECT_FALSE(lane(0).try_hold(visit));
  lane(0).leave_here();
  // The same, and the thread has left again.
  Fake::on_restart = [&] {
    lane(0).here = kTakenHere;
    lane(0).leave_here();
  };
  EXPECT_FALSE(lane(0).try_hold(visit));
  EXPECT_EQ(lane(0).here, lane(0).word_if_free());
  EXPECT_FALSE(lane(0).lock().is_held());
  Fake::on_restart = nullptr;
  EXPECT_TRUE(lane(0).try_hold(visit));
  lane(0).let_go(visit);
  void* p;
  Fake::number = 0;
  EXPECT_TRUE(hits_allocate(t, p));
  give_on(0, t, p);
}

TEST_PER_CPU(PerCpuTest, WhereTheRestartFailsTheLaneStaysFree) {
  Slot &t = thread(), &other = thread();
  give_on(0, t, take_on(0, t, 100));
  Fake::has_barrier = false;
  Visit visit(&other, true);
  EXPECT_FALSE(lane(0).try_hold(visit));
  EXPECT_EQ(lane(0).here, lane(0).word_if_free());
  EXPECT_FALSE(lane(0).lock().is_held());
}

TEST_PER_CPU(PerCpuTest, AFreeWhoseSlabMovesToAnotherLaneBeforeItsStepTouchesNoForeignSlab) {
  for (const int how : {0, 1, 2}) {
    const bool hits = how != 0;
    Fake::number_hits = hits;
    Fake::pushes = how == 2;
    begin({});
    Slot &a = thread(), &b = thread();
    give_on(1, b, take_on(1, b, 16));
    void* p = take_on(0, a, 100);
    void* kept = take_on(0, a, 100);
    ASSERT_EQ(owner_of(p), lane(0).id());
    Fake::number = 0;
    Fake::on_step = [&] {  // the page map has been read; the lane has not been entered
      Fake::number = 1;
      engine().upkeep().trim(b);
      void* q = engine().allocate(100, b);
      EXPECT_EQ(owner_of(q), lane(1).id());
      Fake::number = 0;
    };
    EXPECT_EQ(engine().free(p, a), Verdict::kGood);
    EXPECT_EQ(owner_of(kept), lane(1).id());
    EXPECT_EQ(statistics().remote_frees, 1u)
        << (hits ? "a hit" : "a miss") << " pushes onto a slab of another lane";
    EXPECT_EQ(lane(0).here, lane(0).word_if_free());
    EXPECT_EQ(statistics().live_objects, 2u);
  }
}

// --- Between CPUs; at the end.

TEST_PER_CPU(PerCpuTest, FreesOnAnotherCpuArriveAndAreUsedAgain) {
  Slot &a = thread(), &b = thread();
  std::vector<void*> all;
  for (int i = 0; i < 3000; ++i) all.push_back(take_on(0, a, 64));
  const uint64_t claimed = statistics().runs.claimed;
  for (void* p : all) give_on(1, b, p);
  EXPECT_EQ(statistics().remote_frees, 3000u);
  EXPECT_EQ(statistics().live_objects, 0u);
  EXPECT_GT(statistics().in_flight_objects, 0u);
  for (int i = 0; i < 2900; ++i) EXPECT_EQ(owner_of(take_on(0, a, 64)), lane(0).id());
  EXPECT_EQ(statistics().runs.claimed, claimed);
  EXPECT_GT(statistics().inbox_drains, 0u);
}

TEST_PER_CPU(PerCpuTest, AThreadThatExitsLeavesTheLaneToTheOthers) {
  Slot& kept = thread();
  void* p = take_on(0, kept, 64);
  for (int i = 0; i < 100; ++i) {
    Slot& t = thread();
    void* q = take_on(0, t, 64);
    EXPECT_EQ(owner_of(q), lane(0).id());
    engine().exits().thread_exits(t);
    give_on(0, t, q);  // after its exit
  }
  give_on(0, kept, p);
  for (int i = 0; i < 4; ++i) engine().upkeep().trim(kept);
  const Statistics s = statistics();
  EXPECT_EQ(s.lanes, 2u);  // and one for the frees after exits
  EXPECT_EQ(s.overflow_entries, 100u);
  EXPECT_EQ(s.live_objects, 0u);
}

TEST_PER_CPU(PerCpuTest, TrimAndTheScavengerCleanTheLanesOfOtherCpus) {
  Slot& t = thread();
  for (bool by_trim : {true, false}) {
    std::vector<void*> all;
    for (uint32_t number : {0u, 3u, 77u})
      for (int i = 0; i < 1000; ++i) all.push_back(take_on(number, t, 100));
    for (void* p : all) give_on(5, t, p);
    start_threads();
    if (by_trim) {
      Fake::number = 9;
      EXPECT_TRUE(engine().upkeep().trim(t));
    } else {
      all_passes();
    }
    EXPECT_EQ(statistics().slab_bytes, 0u);
    EXPECT_EQ(statistics().in_flight_objects, 0u);
    for (uint32_t number : {0u, 3u, 77u}) EXPECT_EQ(lane(number).here, lane(number).word_if_free());
  }
}

TEST_PER_CPU(PerCpuTest, ThreadsThatShareNumbersLoseNothing) {
  make_lanes();
  std::vector<std::thread> threads;
  std::atomic<void*> boxes[64] = {};
  for (uint32_t me = 0; me < 4; ++me) {
    threads.emplace_back([&, me] {
      Slot slot{&no_lane_gate};
      for (uint32_t i = 0; i < 4000; ++i) {
        if (i % 16 == 0) Fake::number = (me + i / 16) % 3;
        if (i % 50 == 0) Fake::interrupt_next = i / 50 % 4;
        void* p = engine().allocate(100, slot);
        fill(p, 100, 5);
        p = boxes[i * 7 % 64].exchange(p, std::memory_order_acq_rel);
        EXPECT_TRUE(p == nullptr || is_whole(p, 100, 5));
        EXPECT_EQ(engine().free(p, slot), Verdict::kGood);
        if (i % 500 == 0) engine().upkeep().trim(slot);
      }
      engine().exits().thread_exits(slot);
    });
  }
  for (std::thread& t : threads) t.join();
  Slot& last = thread();
  for (auto& box : boxes) give(last, box.exchange(nullptr));
  for (int i = 0; i < 4; ++i) engine().upkeep().trim(last);
  EXPECT_EQ(statistics().live_objects, 0u);
  EXPECT_EQ(statistics().slab_bytes, 0u);
}

// --- Fork.

TEST_PER_CPU(PerCpuTest, InAHandlersForkChildTheNumberOfALaneThatWasTakenGetsANewOne) {
  Slot &a = thread(), &other = thread();
  std::vector<void*> live;
  for (int i = 0; i < 100; ++i) live.push_back(take_on(1, other, 48));
  give_on(0, a, take_on(0, a, 48));
  Lane<Fake>* taken = &lane(1);
  Stopped inside(other);
  in_handler(a, [&] {
    engine().fork().before(a);
    engine().fork().after_in_child(a);
  });
  EXPECT_NE(&lane(1), taken);
  for (int i = 0; i < 300; ++i) {
    void* p = take_on(1, a, 48);
    EXPECT_EQ(owner_of(p), lane(1).id());
    live.push_back(p);
  }
  EXPECT_EQ(taken->here, kTakenHere);
  Visit visit(&a, true);
  EXPECT_FALSE(taken->try_hold(visit));
  std::sort(live.begin(), live.end());
  EXPECT_EQ(std::adjacent_find(live.begin(), live.end()), live.end());
  for (void* p : live) give_on(1, a, p);
  EXPECT_EQ(statistics().overflow_entries, 0u);
}

TEST_PER_CPU(PerCpuTest, InAHandlersForkChildTheNumberOfALaneThatWasHeldGetsANewOne) {
  Slot &a = thread(), &revoker = thread();
  void* p = take_on(0, a, 48);
  give_on(1, a, take_on(1, a, 48));
  Lane<Fake>* held = &lane(0);
  Visit visit(&revoker, true);
  ASSERT_TRUE(held->try_hold(visit));
  in_handler(a, [&] {
    engine().fork().before(a);
    engine().fork().after_in_child(a);
  });
  EXPECT_TRUE(held->is_set_aside());
  give_on(0, a, p);
  EXPECT_NE(owner_of(take_on(0, a, 48)), held->id());
  EXPECT_NE(&lane(0), held);
  EXPECT_EQ(held->here, kTakenHere);
  EXPECT_EQ(statistics().overflow_entries, 0u);
}

TEST_PER_CPU(PerCpuTest, InAForkChildTheForkingThreadGoesOnInTheLaneThatItsHandlerInterrupted) {
  Slot& a = thread();
  void* before = take_on(0, a, 48);
  Lane<Fake>* interrupted = &lane(0);
  in_handler(a, [&] {
    engine().fork().before(a);
    engine().fork().after_in_child(a);
    void* p = take_on(0, a, 48);
    EXPECT_NE(owner_of(p), interrupted->id());
    give_on(0, a, p);
    EXPECT_EQ(interrupted->here, kTakenHere) << "it is still inside";
  });
  EXPECT_FALSE(interrupted->is_set_aside());
  EXPECT_EQ(interrupted->here, interrupted->word_if_free());
  give_on(0, a, before);
  Slot& b = thread();
  std::vector<void*> all;
  for (int i = 0; i < 200; ++i) all.push_back(take_on(0, i % 2 == 0 ? a : b, 48));
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
  for (void* p : all) give_on(0, b, p);
  EXPECT_EQ(statistics().live_objects, 0u);
}

// The addresses that a hit of free() by CPU may look up grow with the metadata.
TEST_PER_CPU(EngineTest, ALaneOfACpuSeesWhatWasOpenedSinceTheLastTime) {
  Fake::release_all();
  Fake::limit = Fake::page * kBlockSize / 4 * 5;  // the first step, and room for another
  started_ = false;
  begin({});
  Slot& t = thread();
  give(t, take(t, 100));
  Lane<Fake>* lane = lane_of(t);
  const Bytes before = world().region.bytes();
  EXPECT_EQ(lane->here_bytes.load(), before);
  void* large = take(t, before);
  EXPECT_GT(world().region.bytes(), before);
  std::vector<void*> all;
  do all.push_back(take(t, 30000));
  while (world().region.distance(all.back()) < before);
  for (void* p : all) give(t, p);
  EXPECT_EQ(lane_of(t)->here_bytes.load(), world().region.bytes());
  give(t, large);
}

}  // namespace
}  // namespace lanemalloc
