// Choosing how lanes are entered: at the start, while threads work, by itself.
#include <thread>

#include "fixture.h"

namespace lanemalloc {
namespace {

constexpr Entry kEntries[] = {Entry::kOwned, Entry::kShared, Entry::kPerCpu};

class ChooseEntryTest : public EngineTest {
 protected:
  static Settings settings_of(Entry entry, uint32_t shared_lanes = 3) {
    Settings settings;
    settings.entry = entry;
    settings.shared_lanes = entry == Entry::kShared ? shared_lanes : 0;
    return settings;
  }
};

// In a process with one thread lanes are owned, whatever entry was chosen.
TEST_ALL_CONFIGS(ChooseEntryTest, EveryThreadFollowsAtItsNextMissAndKeepsItsObjects) {
  for (Entry to : kEntries) {
    begin({});
    std::vector<Slot*> threads;
    std::vector<void*> all;
    for (uint64_t i = 0; i < 6; ++i) {
      threads.push_back(&thread());
      for (int n = 0; n < 200; ++n) fill(all.emplace_back(take(*threads[i], 100)), 100, i);
    }
    ASSERT_TRUE(engine().choose_entry(settings_of(to)));
    EXPECT_EQ(engine().entry(), to);
    EXPECT_EQ(statistics().entry, to);
    for (Slot* t : threads) {
      give(*t, take(*t, 5000));
      EXPECT_EQ(lane_of(*t)->how, config().single ? Entry::kOwned : to);
    }
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_TRUE(is_whole(all[i], 100, i / 200));
      give(*threads[i % 6], all[i]);
    }
    EXPECT_EQ(statistics().live_objects, 0u);
    for (Slot* t : threads) engine().exits().thread_exits(*t);
    EXPECT_EQ(world().lanes.owners(), 0u);
    engine().check_invariants();
    Slot& last = thread();
    for (int i = 0; i < 4; ++i) engine().upkeep().trim(last);
    EXPECT_EQ(statistics().slab_bytes, 0u);
    EXPECT_EQ(statistics().in_flight_objects, 0u);
  }
}

// Hits of free() ask the region first, and only an owner's hit may find the object there.
TEST_ALL_CONFIGS(ChooseEntryTest, HitsGoOnAfterEveryChange) {
  for (Entry to : {Entry::kPerCpu, Entry::kOwned, Entry::kShared, Entry::kOwned, Entry::kPerCpu}) {
    ASSERT_TRUE(engine().choose_entry(settings_of(to)));
    Slot& t = thread();
    give(t, take(t, 100));
    give(t, take(t, 5000));
    const bool can_hit = config().single || to != Entry::kShared;
    bool hit = true;
    void* p = engine().allocate(100, t, [&](Gate* gate) {
      hit = false;
      return Misses<Fake>::allocate_in_stay(engine().searches(), 100, t, gate);
    });
    EXPECT_EQ(hit, can_hit);
    hit = true;
    engine().free(
        p, t,
        [&](Gate* gate, MapWord) {
          hit = false;
          EXPECT_EQ(Misses<Fake>::free_in_stay(world(), p, t, gate), Verdict::kGood);
        },
        [&](Gate* gate, Slab* slab) { Misses<Fake>::look_in_stay(slab, t, gate); });
    EXPECT_EQ(hit, can_hit);
    engine().exits().thread_exits(t);
  }
}

TEST_ALL_CONFIGS(ChooseEntryTest, AThreadKeepsItsOwnLaneUntilThereAreOthers) {
  Fake::single = true;
  for (Entry entry : kEntries) {
    begin_with(settings_of(entry));
    Slot& t = thread();
    void* p = take(t, 100);
    EXPECT_EQ(lane_of(t)->how, Entry::kOwned);
    EXPECT_EQ(engine().entry(), entry);
    start_threads();
    give(t, p);
    give(t, take(t, 5000));
    EXPECT_EQ(lane_of(t)->how, entry);
    EXPECT_EQ(statistics().live_objects, 0u);
    Fake::single = true;
  }
}

// There is one thread, so no other thread changes anything meanwhile.
TEST_ALL_CONFIGS(ChooseEntryTest, AHandlerMayComeBetweenTwoEntries) {
  start_threads();
  Slot& t = thread();
  void* p = take(t, 100);
  size_t missed = 2000;  // a size of which no bin has an object yet
  for (Entry to : {Entry::kShared, Entry::kPerCpu, Entry::kOwned, Entry::kPerCpu, Entry::kShared,
                   Entry::kOwned}) {
    in_handler(t, [&] {
      ASSERT_TRUE(engine().choose_entry(settings_of(to)));
      void* q = take(t, 100);
      give(t, p);
      p = q;
    });
    give(t, take(t, missed *= 2));
    EXPECT_EQ(lane_of(t)->how, to);
  }
  give(t, p);
  EXPECT_EQ(statistics().live_objects, 0u);
}

TEST_ALL_CONFIGS(ChooseEntryTest, NothingIsLostWhileTheEntryChangesUnderThreadsThatWork) {
  start_threads();
  ASSERT_TRUE(engine().choose_entry(settings_of(Entry::kShared, 5)));
  make_lanes();
  std::atomic<int> running{3};
  std::atomic<void*> boxes[64] = {};
  std::vector<std::thread> threads;
  for (uint32_t me = 0; me < 3; ++me) {
    threads.emplace_back([&, me] {
      for (int life = 0; life < 3; ++life) {
        Slot slot{&no_lane_gate};
        for (uint32_t i = 0; i < 1500; ++i) {
          Fake::number = (me + i / 32) % 3;
          void* p = engine().allocate(i % 20 == 0 ? 5000 : 100, slot);
          fill(p, 100, 5);
          p = boxes[i * 7 % 64].exchange(p, std::memory_order_acq_rel);
          EXPECT_TRUE(p == nullptr || is_whole(p, 100, 5));
          EXPECT_EQ(engine().free(p, slot), Verdict::kGood);
        }
        engine().exits().thread_exits(slot);
      }
      --running;
    });
  }
  Slot& trimmer = thread();
  for (uint32_t i = 0; running > 0; ++i) {
    EXPECT_TRUE(engine().choose_entry(settings_of(kEntries[i * 2 % 3], 1 + i % 5)));
    engine().upkeep().trim(trimmer);
    std::this_thread::yield();
  }
  for (std::thread& t : threads) t.join();
  for (auto& box : boxes) give(trimmer, box.exchange(nullptr));
  for (int i = 0; i < 4; ++i) engine().upkeep().trim(trimmer);
  EXPECT_EQ(statistics().live_objects, 0u);
  EXPECT_EQ(statistics().slab_bytes, 0u);
}

// --- Entries that are not available.

TEST_ALL_CONFIGS(ChooseEntryTest,
                 WithoutNumbersOrRestartTheStartFallsBackToAsManySharedLanesAsCpus) {
  Fake::cpu_count = 5;
  for (const bool numbers : {false, true}) {
    Fake::number = numbers ? 0 : kNoNumber;
    Fake::has_barrier = !numbers;
    begin_with(settings_of(Entry::kPerCpu));
    EXPECT_EQ(engine().entry(), Entry::kShared);
    EXPECT_EQ(statistics().shared_lanes, 5u);
    Slot& t = thread();
    give(t, take(t, 100));
  }
  Fake::has_barrier = true;
  for (uint32_t number : {kMostNumbers, kMostNumbers - 1}) {
    Fake::number = number;
    begin_with(settings_of(Entry::kPerCpu));
    EXPECT_EQ(engine().entry(), number < kMostNumbers ? Entry::kPerCpu : Entry::kShared);
  }
}

TEST_ALL_CONFIGS(ChooseEntryTest, WhatCannotBeHadLaterChangesNothing) {
  for (Entry from : {Entry::kOwned, Entry::kShared}) {
    begin_with(settings_of(from));
    Slot& t = thread();
    give(t, take(t, 100));
    Fake::has_barrier = false;
    EXPECT_FALSE(engine().choose_entry(settings_of(Entry::kPerCpu)));
    Fake::has_barrier = true;
    Fake::number = kNoNumber;
    EXPECT_FALSE(engine().choose_entry(settings_of(Entry::kPerCpu)));
    Fake::number = 0;
    EXPECT_EQ(engine().entry(), from);
    if (from == Entry::kShared) {
      EXPECT_EQ(statistics().shared_lanes, 3u);
    }
    give(t, take(t, 5000));
    EXPECT_EQ(lane_of(t)->how, config().single ? Entry::kOwned : from);
  }
}

TEST_ALL_CONFIGS(ChooseEntryTest, AsManySharedLanesAsCpusUnlessTheSettingsSayHowMany) {
  Fake::cpu_count = 6;
  Settings settings;
  settings.entry = Entry::kShared;
  begin_with(settings);
  EXPECT_EQ(statistics().shared_lanes, 6u);
  settings.shared_lanes = ProbeOrders::kMostLanes;
  ASSERT_TRUE(engine().choose_entry(settings));
  EXPECT_EQ(statistics().shared_lanes, ProbeOrders::kMostLanes);
}

// To count CPUs takes a dozen system calls, and the process may live only for a moment.
TEST_ALL_CONFIGS(ChooseEntryTest, CpusAreCountedOnlyWhereTheirNumberMatters) {
  const auto asked = [&](const Settings& settings) {
    const uint32_t before = Fake::cpus_asked;
    begin_with(settings);
    return Fake::cpus_asked - before;
  };
  EXPECT_EQ(asked(settings_of(Entry::kOwned)), 0u);
  EXPECT_EQ(asked(settings_of(Entry::kPerCpu)), 0u);
  EXPECT_EQ(asked(settings_of(Entry::kShared, 3)), 0u);
  EXPECT_EQ(asked(settings_of(Entry::kShared, 0)), 1u);
  Settings automatic;
  automatic.choose_entry = true;
  EXPECT_EQ(asked(automatic), 1u);
}

// --- Automatically.

class AutomaticTest : public ChooseEntryTest {
 protected:
  void begin_automatically() {
    Settings settings;
    settings.choose_entry = true;
    begin_with(settings);
    start_threads();
  }
  Slot& next() {
    Slot& t = thread();
    give(t, take(t, 100));
    return t;
  }
  // Runs n passes of the scavenger. Before each of them t allocates `objects` objects, and all
  // threads together wait `waits` times.
  void pass(Slot& t, int objects, uint64_t waits, int n = Waits::kInARow + 1) {
    for (int i = 0; i < n; ++i) {
      std::vector<void*> all;
      for (int k = 0; k < objects; ++k) all.push_back(take(t, 600));
      for (void* p : all) give(t, p);
      Fake::waited += waits;
      passes(1);
    }
  }
  void let_them_wait(Slot& t) { pass(t, 100, 1000); }
};

TEST_ALL_CONFIGS(AutomaticTest, LanesAreEnteredByCpuWhereMoreThanFourOwnersACpuBesideTheFirstWait) {
  for (uint32_t cpus : {1u, 2u, 3u}) {
    Fake::cpu_count = cpus;
    begin_automatically();
    Slot& first = next();
    for (uint32_t i = 1; i <= 4 * cpus; ++i) next();
    let_them_wait(first);
    EXPECT_EQ(engine().entry(), Entry::kOwned) << 4 * cpus + 1 << " owners, " << cpus << " CPUs";
    EXPECT_EQ(lane_of(next())->how, Entry::kOwned);
    let_them_wait(first);
    EXPECT_EQ(engine().entry(), Entry::kPerCpu);
    EXPECT_EQ(lane_of(next())->how, Entry::kPerCpu);
    give(first, take(first, 5000));
    EXPECT_EQ(lane_of(first)->how, Entry::kPerCpu);
  }
}

TEST_ALL_CONFIGS(AutomaticTest, ManyThreadsThatRunKeepTheirOwn) {
  begin_automatically();
  Slot& first = next();
  for (int i = 0; i < 40; ++i) next();
  pass(first, 20000, 1);
  EXPECT_EQ(engine().entry(), Entry::kOwned);
  pass(first, 20000, 40);
  EXPECT_EQ(engine().entry(), Entry::kOwned);
}

TEST_ALL_CONFIGS(AutomaticTest, LanesAreOwnedAgainWhenThreadsRun) {
  begin_automatically();
  Slot& first = next();
  for (int i = 0; i < 12; ++i) next();
  for (int round = 0; round < 2; ++round) {
    let_them_wait(first);
    EXPECT_EQ(engine().entry(), Entry::kPerCpu);
    pass(first, 20000, 40);
    EXPECT_EQ(engine().entry(), Entry::kPerCpu) << "neither";
    pass(first, 70000, 30, 10);
    EXPECT_EQ(engine().entry(), Entry::kOwned);
    for (Slot& t : slots_) give(t, take(t, 5000 + 3000 * static_cast<Bytes>(round)));
    EXPECT_EQ(lane_of(first)->how, Entry::kOwned);
  }
}

TEST_ALL_CONFIGS(AutomaticTest, LanesAreSharedWhereTheyCannotBeEnteredByCpu) {
  begin_automatically();
  const uint32_t asked = Fake::cpus_asked;
  Fake::has_barrier = false;
  Slot& first = next();
  for (int i = 0; i < 10; ++i) next();
  let_them_wait(first);
  EXPECT_EQ(engine().entry(), Entry::kShared);
  EXPECT_EQ(statistics().shared_lanes,
            Fake::cpu_count);  // counted at the start: a thread that works may be forbidden to ask
  EXPECT_EQ(Fake::cpus_asked, asked);
  EXPECT_EQ(lane_of(next())->how, Entry::kShared);
}

TEST_ALL_CONFIGS(AutomaticTest, SharedLanesChosenWhileAPassDecidesAreAsManyAsWereAskedFor) {
  begin_automatically();
  Fake::has_barrier = false;
  Slot& first = next();
  for (int i = 0; i < 10; ++i) next();
  bool chosen = false;
  Fake::on_restart = [&] {  // the pass asks for the last time whether lanes can be entered by CPU
    if (std::exchange(chosen, true)) return;
    EXPECT_TRUE(engine().choose_entry(settings_of(Entry::kShared, 3)));
  };
  let_them_wait(first);
  Fake::on_restart = nullptr;
  EXPECT_TRUE(chosen);
  EXPECT_EQ(engine().entry(), Entry::kShared);
  EXPECT_EQ(statistics().shared_lanes, 3u);
}

TEST_ALL_CONFIGS(AutomaticTest, ThreadsThatHaveGoneAreNotCounted) {
  begin_automatically();
  for (int i = 0; i < 100; ++i) engine().exits().thread_exits(next());
  Slot& first = next();
  for (int i = 0; i < 8; ++i) next();
  let_them_wait(first);
  EXPECT_EQ(engine().entry(), Entry::kOwned);
  next();
  let_them_wait(first);
  EXPECT_EQ(engine().entry(), Entry::kPerCpu);
}

TEST_ALL_CONFIGS(AutomaticTest, AForkChildCountsItsOwnThreadOnly) {
  begin_automatically();
  Slot& a = next();
  for (int i = 0; i < 5; ++i) next();
  Stopped inside(next());
  engine().fork().before(a);
  engine().fork().after_in_child(a);
  EXPECT_EQ(world().lanes.owners(), 1u);
  start_threads();
  for (int i = 0; i < 8; ++i) next();
  let_them_wait(a);
  EXPECT_EQ(engine().entry(), Entry::kOwned);
  next();
  let_them_wait(a);
  EXPECT_EQ(engine().entry(), Entry::kPerCpu);
}

TEST_ALL_CONFIGS(AutomaticTest, WhatWasChosenStays) {
  begin_automatically();
  Slot& first = next();
  for (int i = 0; i < 12; ++i) next();
  for (Entry entry : {Entry::kOwned, Entry::kShared, Entry::kPerCpu}) {
    ASSERT_TRUE(engine().choose_entry(settings_of(entry)));
    let_them_wait(first);
    pass(first, 40000, 1);
    EXPECT_EQ(engine().entry(), entry);
  }
}

TEST_ALL_CONFIGS(AutomaticTest, WithoutItManyOwnersChangeNothing) {
  begin_with({});
  start_threads();
  Slot& first = next();
  for (int i = 0; i < 40; ++i) next();
  let_them_wait(first);
  EXPECT_EQ(engine().entry(), Entry::kOwned);
}

}  // namespace
}  // namespace lanemalloc
