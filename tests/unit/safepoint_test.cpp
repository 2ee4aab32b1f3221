// Deferred frees: the lane's ring, the epochs of readers, and what the engine does with both.
#include <thread>

#include "fixture.h"

namespace lanemalloc {
namespace {

// --- The ring.

// Bounds of the rings: one entry, no whole number of batches, batches of one entry, and batches of
// more entries than are added in a row.
constexpr uint32_t kBounds[] = {1, 2, 15, 17, 100, 4096, 5000, 40000};

TEST(RingTest, EverythingThatGoesInComesOutInOrderUnderTags) {
  for (const uint32_t bound : kBounds) {
    SCOPED_TRACE(bound);
    std::atomic<uint64_t*> next{nullptr};
    Ring<uint64_t> ring(next);
    std::vector<uint64_t> memory(bound + 1);
    ring.start(memory.data(), bound);
    Random random(bound);
    Epoch epoch = 1;
    const auto begin_epoch = [&] { return ++epoch; };
    uint64_t in = 0, out = 0;
    std::deque<Epoch> tag_of;  // the least tag of each entry that is cut and not out
    for (int step = 0; step < 20000 / kShorter; ++step) {
      switch (random.below(4)) {
        case 0:
        case 1:
          for (uint64_t n = random.below(300); n > 0; --n) {
            ring.cut_complete(begin_epoch);
            if (!ring.has_room()) break;
            ring.push(in++);
          }
          break;
        case 2:
          ring.cut(begin_epoch);
          break;
        default:
          const Epoch upto = random.one_in(3) ? epoch : epoch - epoch / 16;
          for (uint32_t n; (n = ring.ready(upto)) != 0;) {
            if (random.one_in(2)) n = static_cast<uint32_t>(random.between(1, n));
            for (uint32_t i = 0; i < n; ++i) ASSERT_EQ(ring.head()[i], out++);
            ring.drop(n);
          }
          if (upto == epoch) {
            ASSERT_EQ(ring.batches(), 0u) << "what is cut was not all ready";
          }
      }
      EXPECT_HOLDS(ring.check_invariants());
      uint64_t waits = out;
      ring.for_each([&](uint64_t entry) { EXPECT_EQ(entry, waits++); });
      ASSERT_EQ(waits, in);
      ASSERT_EQ(ring.added(), in);
      ASSERT_EQ(ring.taken(), out);
      ASSERT_LE(in - out, bound);
      ASSERT_EQ(ring.is_empty(), in == out);
    }
    EXPECT_GT(out, bound / 2);
  }
}

TEST(RingTest, HasRoomForItsBoundAndNotForMore) {
  for (const uint32_t bound : kBounds) {
    std::atomic<uint64_t*> next{nullptr};
    Ring<uint64_t> ring(next);
    std::vector<uint64_t> memory(bound + 1);
    ring.start(memory.data(), bound);
    Epoch epoch = 1;
    for (uint32_t i = 0; i < bound; ++i) {
      ASSERT_TRUE(ring.has_room()) << i << " of " << bound;
      ring.push(i);
      ring.cut_complete([&] { return ++epoch; });
    }
    EXPECT_FALSE(ring.has_room());
    EXPECT_LE(epoch - 1, 17u) << "batches of " << bound;
    const uint32_t n = ring.ready(epoch);
    ring.drop(n);
    EXPECT_TRUE(ring.has_room());
  }
}

// A batch that was cut before it was complete waits as long as what it joins, and no longer.
TEST(RingTest, ManyCutsMakeFewBatches) {
  std::atomic<uint64_t*> next{nullptr};
  Ring<uint64_t> ring(next);
  std::vector<uint64_t> memory(4097);
  ring.start(memory.data(), 4096);
  Epoch epoch = 1;
  for (uint64_t i = 0; i < 200; ++i) {
    ring.push(i);
    ring.cut([&] { return ++epoch; });
  }
  EXPECT_LE(ring.batches(), 9u);
  EXPECT_EQ(ring.ready(1), 0u);
  uint32_t out = 0;
  for (uint32_t n; (n = ring.ready(epoch)) != 0; out += n) ring.drop(n);
  EXPECT_EQ(out, 200u);
}

// --- Epochs.

class EpochsTest : public FakeTest {
 protected:
  Epochs<Fake> epochs_;
  Visit visit_{this, true};
  lane_reader readers_[3];

  void add(int i, const char* name = nullptr) {
    ASSERT_TRUE(epochs_.add(readers_[i], name, this, visit_));
  }
  bool may_free(Epoch tag) {
    epochs_.look(visit_, true);
    return tag <= epochs_.safe();
  }
};

TEST_ALL_CONFIGS(EpochsTest, WithoutAReaderNothingIsKnown) {
  EXPECT_FALSE(epochs_.can_tell());
  EXPECT_FALSE(may_free(epochs_.advance()));
  add(0);
  EXPECT_TRUE(epochs_.can_tell());
  EXPECT_TRUE(may_free(epochs_.advance()));
  EXPECT_EQ(epochs_.remove(readers_[0], visit_), Epochs<Fake>::Removed::kDone);
  EXPECT_TRUE(may_free(epochs_.advance()));
}

TEST_ALL_CONFIGS(EpochsTest, ASectionHoldsUpWhatIsUnlinkedInIt) {
  add(0);
  add(1);
  const Epoch before = epochs_.advance();
  lane_reader_enter(&readers_[0]);
  const Epoch in_it = epochs_.advance();
  EXPECT_TRUE(may_free(before));
  EXPECT_FALSE(may_free(in_it));
  lane_reader_enter(&readers_[1]);
  lane_reader_enter(&readers_[0]);
  lane_reader_exit(&readers_[0]);
  EXPECT_FALSE(may_free(in_it)) << "a nested section is not the end";
  lane_reader_exit(&readers_[0]);
  EXPECT_TRUE(may_free(in_it)) << "the other began later";
  EXPECT_FALSE(may_free(epochs_.advance()));
  lane_reader_exit(&readers_[1]);
  EXPECT_TRUE(may_free(epochs_.now()));
}

TEST_ALL_CONFIGS(EpochsTest, OnlineIsOneLongSectionUpToAQuiescentState) {
  add(0);
  lane_reader& reader = readers_[0];
  lane_reader_quiescent(&reader);
  EXPECT_EQ(reader.epoch, 0u) << "offline it says nothing";
  lane_reader_online(&reader);
  const Epoch first = epochs_.advance();
  EXPECT_FALSE(may_free(first));
  lane_reader_enter(&reader);
  lane_reader_quiescent(&reader);
  EXPECT_FALSE(may_free(first)) << "in a section it does nothing";
  lane_reader_exit(&reader);
  EXPECT_FALSE(may_free(first)) << "online goes on behind the section";
  lane_reader_quiescent(&reader);
  EXPECT_TRUE(may_free(first));
  EXPECT_FALSE(may_free(epochs_.advance()));
  lane_reader_enter(&reader);
  lane_reader_offline(&reader);
  EXPECT_FALSE(may_free(epochs_.now())) << "the section goes on";
  lane_reader_exit(&reader);
  EXPECT_TRUE(may_free(epochs_.now()));
}

// The reader was stopped between reading the epoch and announcing it. That delays others, and what
// was found safe stays safe.
TEST_ALL_CONFIGS(EpochsTest, SafeNeverFalls) {
  add(0);
  for (int i = 0; i < 10; ++i) epochs_.advance();
  EXPECT_TRUE(may_free(epochs_.now()));
  const Epoch safe = epochs_.safe();
  readers_[0].epoch = 3;
  EXPECT_FALSE(epochs_.look(visit_, true));
  EXPECT_EQ(epochs_.safe(), safe);
  EXPECT_FALSE(may_free(epochs_.advance()));
  readers_[0].epoch = 0;
}

TEST_ALL_CONFIGS(EpochsTest, ReadersAreRegisteredOnceAndUnregisteredOutsideOfSections) {
  using Removed = Epochs<Fake>::Removed;
  EXPECT_EQ(epochs_.remove(readers_[0], visit_), Removed::kNotThere);
  for (int i : {0, 1, 2}) add(i);
  EXPECT_FALSE(epochs_.add(readers_[1], nullptr, this, visit_));
  EXPECT_EQ(epochs_.readers(visit_), 3u);
  lane_reader_enter(&readers_[1]);
  EXPECT_EQ(epochs_.remove(readers_[1], visit_), Removed::kInSection);
  lane_reader_exit(&readers_[1]);
  for (int i : {1, 0, 2}) EXPECT_EQ(epochs_.remove(readers_[i], visit_), Removed::kDone);
  EXPECT_EQ(epochs_.remove(readers_[1], visit_), Removed::kNotThere);
  EXPECT_EQ(epochs_.readers(visit_), 0u);
  add(1, "a name that is longer than the field");
  EXPECT_STREQ(readers_[1].name, "a name that is longer t");
}

TEST_ALL_CONFIGS(EpochsTest, OnlyTheThreadInASectionIsInIt) {
  add(0);
  EXPECT_FALSE(epochs_.is_in_section(lane_reader_this_thread(), visit_));
  lane_reader_enter(&readers_[0]);
  EXPECT_TRUE(epochs_.is_in_section(lane_reader_this_thread(), visit_));
  EXPECT_FALSE(epochs_.is_in_section(this, visit_));
  lane_reader_exit(&readers_[0]);
  EXPECT_FALSE(epochs_.is_in_section(lane_reader_this_thread(), visit_));
}

TEST_ALL_CONFIGS(EpochsTest, AStuckReaderIsNamedAfterASecondAndOnceASecond) {
  constexpr uint64_t kMs = 1'000'000;
  uint64_t ms = 5000;
  const auto at = [&](uint64_t now) { Fake::ns = (ms = now) * kMs; };
  at(ms);
  add(0, "first");
  add(1, "second");
  lane_reader_enter(&readers_[0]);
  const Epoch tag = epochs_.advance();
  lane_reader_enter(&readers_[1]);
  const auto look_and_name = [&] {
    epochs_.look(visit_, true);
    epochs_.name_stuck(epochs_.now(), visit_);
    return std::exchange(Fake::said, "");
  };
  EXPECT_FALSE(may_free(tag));
  at(5999);
  EXPECT_EQ(look_and_name(), "");
  at(6500);
  const std::string line = look_and_name();
  EXPECT_NE(line.find("reader 'first' at 0x"), std::string::npos) << line;
  EXPECT_NE(line.find("has held up deferred frees for 1.5 s\n"), std::string::npos) << line;
  at(7499);
  EXPECT_EQ(look_and_name(), "");
  at(7500);
  EXPECT_NE(look_and_name().find("for 2.5 s"), std::string::npos);
  // Another section of the same reader is another delay.
  lane_reader_exit(&readers_[0]);
  lane_reader_enter(&readers_[0]);
  epochs_.advance();
  at(8600);
  EXPECT_EQ(look_and_name(), "") << "what it waits for now was seen a moment ago";
  at(9600);
  EXPECT_NE(look_and_name().find("for 1.0 s"), std::string::npos);
  for (lane_reader* r : {&readers_[0], &readers_[1]}) lane_reader_exit(r);
  at(20000);
  EXPECT_EQ(look_and_name(), "");
}

TEST_ALL_CONFIGS(EpochsTest, WithoutABarrierReadersHaveFences) {
  Fake::has_barrier = false;
  add(0);
  EXPECT_EQ(readers_[0].shared->fences, 1);
  lane_reader_enter(&readers_[0]);
  const Epoch tag = epochs_.advance();
  EXPECT_FALSE(may_free(tag));
  lane_reader_exit(&readers_[0]);
  EXPECT_TRUE(may_free(tag));
}

TEST_ALL_CONFIGS(EpochsTest, WithTheBarrierLostNothingIsKnownUntilAllReadersAreNew) {
  add(0);
  EXPECT_EQ(readers_[0].shared->fences, 0);
  Fake::has_barrier = false;
  const Epoch tag = epochs_.advance();
  EXPECT_FALSE(may_free(tag));
  EXPECT_FALSE(epochs_.can_tell());
  add(1);
  EXPECT_FALSE(may_free(tag)) << "the first reader still relies on the barrier";
  for (int i : {0, 1}) EXPECT_EQ(epochs_.remove(readers_[i], visit_), Epochs<Fake>::Removed::kDone);
  add(0);
  EXPECT_TRUE(may_free(tag));
}

// --- The engine.

class DeferTest : public EngineTest {
 protected:
  lane_reader reader_;
  lane_reader* registered_ = nullptr;

  void TearDown() override {
    if (engine_) {
      EXPECT_EQ(safepoint_statistics().deferred, safepoint_statistics().freed)
          << "something still waits";
    }
    EngineTest::TearDown();
  }
  void begin_with_bound(uint32_t bound) {
    Settings settings;
    settings.deferred = bound;
    begin(settings);
  }
  void add_reader(Slot& slot) {
    ASSERT_TRUE(engine().safepoints().add_reader(reader_, "the reader", slot));
  }
  lane_safepoint_statistics safepoint_statistics() {
    Slot& slot = slots_.empty() ? thread() : slots_.front();
    lane_safepoint_statistics s;
    engine().safepoints().statistics(s, slot);
    return s;
  }
  int defer(Slot& slot, void* p) {
    Fake::number = cpu_of(slot);
    return engine().defer(p, slot);
  }
  int defer_call(Slot& slot, void (*f)(void*, void**, size_t), void* context, void* object) {
    Fake::number = cpu_of(slot);
    return engine().safepoints().defer_call({f, context, object}, slot);
  }
  static void note(void* list, void** objects, size_t n) {
    auto& notes = *static_cast<std::vector<void*>*>(list);
    notes.insert(notes.end(), objects, objects + n);
  }
  uint64_t live() { return statistics().live_objects; }
};

TEST_ALL_CONFIGS(DeferTest, AStopFreesEverythingOfAllLanesWhateverReadersSay) {
  Slot &a = thread(), &b = thread();
  add_reader(a);
  std::vector<void*> called;
  for (int i = 0; i < 300; ++i)
    for (Slot* t : {&a, &b}) {
      EXPECT_EQ(defer(*t, take(*t, 48)), 0);
      EXPECT_EQ(defer_call(*t, note, &called, t), 0);
    }
  lane_reader_enter(&reader_);
  EXPECT_EQ(live(), 600u);
  EXPECT_EQ(engine().safepoints().free_at_stop(a), 1200u);
  EXPECT_EQ(live(), 0u);
  EXPECT_EQ(called.size(), 600u);
  EXPECT_EQ(engine().safepoints().free_at_stop(b), 0u);
  EXPECT_EQ(safepoint_statistics().stops, 2u);
  lane_reader_exit(&reader_);
}

TEST_ALL_CONFIGS(DeferTest, WithoutReadersTheShareFillsUpAndTheObjectStaysTheCallers) {
  begin_with_bound(20);
  Slot& a = thread();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(defer(a, take(a, 48)), 0);
  void* p = take(a, 48);
  EXPECT_EQ(defer(a, p), EBUSY);
  EXPECT_EQ(engine().safepoints().free_what_may_be_freed(a), 0u);
  EXPECT_EQ(engine().safepoints().wait_for_readers(a), EDEADLK);
  EXPECT_EQ(safepoint_statistics().helped, 1u);
  give(a, p);
  EXPECT_EQ(engine().safepoints().free_at_stop(a), 20u);
  EXPECT_EQ(defer(a, take(a, 48)), 0);
  EXPECT_EQ(engine().safepoints().free_at_stop(a), 1u);
}

TEST_ALL_CONFIGS(DeferTest, APollFreesWhatReadersAllow) {
  Slot &a = thread(), &b = thread();
  add_reader(a);
  void *before = take(a, 48), *in_it = take(b, 48);
  EXPECT_EQ(defer(a, before), 0);
  lane_reader_enter(&reader_);
  EXPECT_EQ(engine().safepoints().free_what_may_be_freed(a), 0u)
      << "deferred before, but tagged after the section began";
  EXPECT_EQ(defer(b, in_it), 0);
  lane_reader_exit(&reader_);
  lane_reader_enter(&reader_);
  EXPECT_EQ(engine().safepoints().free_what_may_be_freed(b), 1u)
      << "the second was not cut yet when the section began";
  lane_reader_exit(&reader_);
  EXPECT_EQ(engine().safepoints().free_what_may_be_freed(a), 1u);
  EXPECT_EQ(live(), 0u);
}

// Without a poll or a stop, the thread that defers also frees, and what waits stays below the
// share.
TEST_ALL_CONFIGS(DeferTest, WhoDefersFreesInTurns) {
  Slot& a = thread();
  add_reader(a);
  std::vector<void*> called;
  for (int i = 0; i < 50000 / kShorter; ++i) {
    ASSERT_EQ(defer(a, take(a, 16 + i % 500)), 0);
    if (i % 4 == 0) {
      ASSERT_EQ(defer_call(a, note, &called, &a), 0);
    }
    if (i % 100 == 0) lane_reader_enter(&reader_);
    if (i % 100 == 99) lane_reader_exit(&reader_);
  }
  const lane_safepoint_statistics s = safepoint_statistics();
  EXPECT_EQ(s.helped, 0u);
  EXPECT_LE(s.deferred - s.freed, 2 * 2048u);
  EXPECT_LE(s.batches, s.deferred / 256 + 1);
  if (reader_.depth > 0) lane_reader_exit(&reader_);
  EXPECT_EQ(engine().safepoints().wait_for_readers(a), 0);
  EXPECT_EQ(live(), 0u);
  EXPECT_EQ(called.size(), 50000u / kShorter / 4);
}

// Sizes of every class, large ones, other lanes' objects and null.
TEST_ALL_CONFIGS(DeferTest, EveryKindOfObjectIsFreed) {
  Slot &a = thread(), &b = thread(), &gone = thread();
  std::vector<void*> all;
  for (Bytes size : telling_sizes())
    for (Slot* t : {&a, &b, &gone}) all.push_back(take(*t, size));
  engine().exits().thread_exits(gone);
  engine().upkeep().trim(b);  // gives slabs to the depot
  for (void* p : all) EXPECT_EQ(defer(a, p), 0);
  EXPECT_EQ(defer(a, nullptr), 0);
  EXPECT_EQ(engine().safepoints().free_at_stop(a), all.size() + 1);
  EXPECT_EQ(live(), 0u);
}

TEST_ALL_CONFIGS(DeferTest, ABadPointerIsReportedWhenItIsFreedAndTheOthersGoOn) {
  Slot& a = thread();
  int foreign = 0;
  void* large = take(a, kSlabMax + 1);
  std::vector<void*> bad = {&foreign, static_cast<char*>(large) + 64, reinterpret_cast<void*>(1),
                            reinterpret_cast<void*>(~uintptr_t{0})};
  std::vector<void*> good;
  for (void* p : bad) {
    good.push_back(take(a, 48));
    EXPECT_EQ(defer(a, good.back()), 0);
    EXPECT_EQ(defer(a, p), 0);
  }
  EXPECT_EQ(engine().safepoints().free_at_stop(a), 2 * bad.size());
  ASSERT_EQ(reports.size(), bad.size());
  for (size_t i = 0; i < bad.size(); ++i) EXPECT_EQ(reports[i].pointer, bad[i]);
  EXPECT_EQ(reports[0].why, Verdict::kNotOurs);
  EXPECT_EQ(reports[1].why, Verdict::kNotAStart);
  reports.clear();
  give(a, large);
  EXPECT_EQ(live(), 0u);
}

TEST_ALL_CONFIGS(DeferTest, WithChecksADoubleFreeIsFoundAtTheObject) {
  begin_checked();
  Slot& a = thread();
  void* p = take(a, 48);
  EXPECT_EQ(defer(a, p), 0);
  EXPECT_EQ(defer(a, p), 0);
  engine().safepoints().free_at_stop(a);
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].why, Verdict::kFreedAlready);
  EXPECT_EQ(reports[0].pointer, p);
  reports.clear();
}

TEST_ALL_CONFIGS(DeferTest, InASectionOrAHandlerNobodyWaits) {
  begin_with_bound(8);
  Slot& a = thread();
  add_reader(a);
  lane_reader_enter(&reader_);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(defer(a, take(a, 48)), 0);
  void* p = take(a, 48);
  EXPECT_EQ(defer(a, p), EBUSY) << "in a section of its own";
  EXPECT_EQ(engine().safepoints().wait_for_readers(a), EDEADLK);
  reader_.thread = this;  // now it is another thread's section
  in_handler(a, [&] {
    for (int i = 0; i < 8; ++i)
      EXPECT_EQ(defer(a, take(a, 48)), 0) << "an overflow lane has a share of its own";
    EXPECT_EQ(defer(a, p), EBUSY);
  });
  lane_reader_exit(&reader_);
  EXPECT_EQ(defer(a, p), 0);
  EXPECT_EQ(engine().safepoints().wait_for_readers(a), 0);
  EXPECT_EQ(live(), 0u);
}

// The reader leaves its section while the thread waits. Until then the reader is named.
TEST_ALL_CONFIGS(DeferTest, AFullShareWaitsForTheReader) {
  begin_with_bound(8);
  Slot& a = thread();
  add_reader(a);
  lane_reader_enter(&reader_);
  reader_.thread = this;
  static lane_reader* reader;
  static int sleeps;
  reader = &reader_;
  sleeps = 0;
  Fake::ns = 1'000'000'000;
  Fake::on_sleep = [] {
    Fake::ns += 100'000'000;
    if (++sleeps == 25) lane_reader_exit(reader);
  };
  for (int i = 0; i < 8; ++i) EXPECT_EQ(defer(a, take(a, 48)), 0);
  EXPECT_EQ(defer(a, take(a, 48)), 0);
  EXPECT_EQ(sleeps, 25);
  const lane_safepoint_statistics s = safepoint_statistics();
  EXPECT_EQ(s.helped, 1u);
  EXPECT_GE(s.waited_ns, 2'400'000'000u);
  EXPECT_EQ(std::count(Fake::said.begin(), Fake::said.end(), '\n'), 2);
  EXPECT_NE(Fake::said.find("reader 'the reader'"), std::string::npos);
  Fake::on_sleep = nullptr;
  EXPECT_EQ(engine().safepoints().wait_for_readers(a), 0);
}

TEST_ALL_CONFIGS(DeferTest, WaitingIsForAllLanesAndWhatCameBefore) {
  Slot &a = thread(), &b = thread();
  add_reader(a);
  EXPECT_EQ(defer(a, take(a, 48)), 0);
  EXPECT_EQ(defer(b, take(b, 48)), 0);
  lane_reader_enter(&reader_);
  reader_.thread = this;
  static lane_reader* reader;
  static FakeEngine* engine_now;
  static Slot* other;
  static uint64_t naps;
  reader = &reader_;
  engine_now = &engine();
  other = &b;
  naps = 0;
  Fake::on_sleep = [] {
    if (++naps == 3) engine_now->defer(engine_now->allocate(48, *other), *other);  // comes later
    if (naps == 5) lane_reader_exit(reader);
  };
  EXPECT_EQ(engine().safepoints().wait_for_readers(a), 0);
  Fake::on_sleep = nullptr;
  EXPECT_GE(naps, 5u);
  EXPECT_LE(live(), 1u);
  EXPECT_EQ(engine().safepoints().wait_for_readers(a), 0);
  EXPECT_EQ(live(), 0u);
}

// A call may defer and allocate. None of the calls that it adds is made in the same stop.
TEST_ALL_CONFIGS(DeferTest, CallsMayDeferCalls) {
  Slot& a = thread();
  struct Chain {
    FakeEngine* engine;
    Slot* slot;
    int calls = 0;
    static void run(void* chain, void** objects, size_t n) {
      Chain& self = *static_cast<Chain*>(chain);
      EXPECT_FALSE(is_busy(self.slot->load())) << "a call inside the allocator";
      EXPECT_EQ(self.engine->free(self.engine->allocate(48, *self.slot), *self.slot),
                Verdict::kGood);
      for (size_t i = 0; i < n; ++i, ++self.calls) {
        if (objects[i] == nullptr) continue;
        EXPECT_EQ(self.engine->safepoints().defer_call({run, chain, nullptr}, *self.slot), 0);
      }
    }
  } chain{&engine(), &a};
  for (int i = 0; i < 100; ++i) EXPECT_EQ(defer_call(a, Chain::run, &chain, this), 0);
  EXPECT_EQ(engine().safepoints().free_at_stop(a), 100u);
  EXPECT_EQ(chain.calls, 100);
  EXPECT_EQ(engine().safepoints().free_at_stop(a), 100u);
  EXPECT_EQ(chain.calls, 200);
}

TEST_ALL_CONFIGS(DeferTest, ACallThatWouldHaveToWaitIsToldSo) {
  begin_with_bound(4);
  Slot& a = thread();
  add_reader(a);
  struct Full {
    FakeEngine* engine;
    Slot* slot;
    int result = 0;
    int wait = 0;
    static void run(void* full, void**, size_t) {
      Full& self = *static_cast<Full*>(full);
      self.wait = self.engine->safepoints().wait_for_readers(*self.slot);
      for (int i = 0; i < 5; ++i)
        self.result =
            self.engine->safepoints().defer_call({note, &self.notes, nullptr}, *self.slot);
    }
    std::vector<void*> notes;
  } full{&engine(), &a, 0, 0, {}};
  EXPECT_EQ(defer_call(a, Full::run, &full, nullptr), 0);
  lane_reader_enter(&reader_);
  reader_.thread = this;
  EXPECT_EQ(engine().safepoints().free_at_stop(a), 1u);
  EXPECT_EQ(full.result, EBUSY);
  EXPECT_EQ(full.wait, EDEADLK);
  lane_reader_exit(&reader_);
  EXPECT_EQ(engine().safepoints().wait_for_readers(a), 0);
  EXPECT_EQ(full.notes.size(), 3u) << "the one that is being called has its place until it returns";
}

// What threads that are gone have deferred is freed while other threads defer. Owned: the other
// entries' lanes have no thread.
TEST_OWNED(DeferTest, WhatExitedThreadsHaveDeferredIsFreedByOthers) {
  Slot &a = thread(), &gone = thread();
  add_reader(a);
  void* p = take(gone, 48);
  EXPECT_EQ(defer(gone, p), 0);
  EXPECT_EQ(defer(gone, take(gone, 300000)), 0);
  std::vector<void*> called;
  EXPECT_EQ(defer_call(gone, note, &called, p), 0);
  engine().exits().thread_exits(gone);
  for (int i = 0; i < 6000; ++i) EXPECT_EQ(defer(a, take(a, 48)), 0);
  EXPECT_EQ(statistics().large_live_objects, 0u);
  EXPECT_EQ(called.size(), 0u) << "who defers objects calls nothing";
  for (int i = 0; i < 6000; ++i) EXPECT_EQ(defer_call(a, note, &called, nullptr), 0);
  EXPECT_EQ(std::count(called.begin(), called.end(), p), 1);
  EXPECT_EQ(engine().safepoints().wait_for_readers(a), 0);
}

TEST_ALL_CONFIGS(DeferTest, AThreadInsideItsLaneIsLeftForTheNextTime) {
  Slot &a = thread(), &b = thread();
  EXPECT_EQ(defer(b, take(b, 48)), 0);
  take(a, 48);
  Stopped stopped(b);
  EXPECT_EQ(engine().safepoints().free_at_stop(a), 0u);
  stopped.leave();
  EXPECT_EQ(engine().safepoints().free_at_stop(a), 1u);
}

TEST_ALL_CONFIGS(DeferTest, TheChildOfAForkHasTheForkersReadersOnly) {
  Slot &a = thread(), &b = thread();
  lane_reader other, third;
  add_reader(a);
  ASSERT_TRUE(engine().safepoints().add_reader(other, "other", b));
  ASSERT_TRUE(engine().safepoints().add_reader(third, "third", b));
  lane_reader_enter(&reader_);
  lane_reader_enter(&other);
  other.thread = third.thread = &other;
  EXPECT_EQ(defer(a, take(a, 48)), 0);
  EXPECT_EQ(defer(b, take(b, 48)), 0);
  engine().fork().before(a);
  engine().fork().after_in_child(a);
  EXPECT_EQ(other.shared, nullptr);
  EXPECT_EQ(third.shared, nullptr);
  EXPECT_EQ(safepoint_statistics().readers, 1u);
  EXPECT_EQ(engine().safepoints().free_what_may_be_freed(a), 0u)
      << "the forker's own section goes on";
  lane_reader_exit(&reader_);
  EXPECT_EQ(engine().safepoints().wait_for_readers(a), 0);
  EXPECT_EQ(live(), 0u);
  ASSERT_TRUE(engine().safepoints().add_reader(other, "again", a));
  engine().safepoints().remove_reader(other, a);
}

TEST_ALL_CONFIGS(DeferTest, AForkWhileAnotherThreadHoldsTheReadersFindsTheListWhole) {
  Slot &a = thread(), &b = thread();
  add_reader(a);
  Visit visit(&b, true);
  // The fork comes in a handler, which may not wait.
  ASSERT_TRUE(engine().safepoints().epochs().lock().try_acquire(visit));
  in_handler(a, [&] {
    engine().fork().before(a);
    engine().fork().after_in_child(a);
  });
  EXPECT_FALSE(engine().safepoints().epochs().lock().is_held());
  EXPECT_EQ(safepoint_statistics().readers, 1u);
  EXPECT_EQ(defer(a, take(a, 48)), 0);
  EXPECT_EQ(engine().safepoints().wait_for_readers(a), 0);
}

// The lane is lost, with what waits in it. No thread waits for it.
TEST_ALL_CONFIGS(DeferTest, InTheChildALaneThatAThreadWasInsideOfIsLost) {
  Slot &a = thread(), &b = thread();
  add_reader(a);
  take(a, 48);
  EXPECT_EQ(defer(b, take(b, 48)), 0);
  if (lane_of(a) == lane_of(b)) return;
  Stopped stopped(b);
  engine().fork().before(a);
  engine().fork().after_in_child(a);
  EXPECT_EQ(engine().safepoints().wait_for_readers(a), 0);
  EXPECT_EQ(engine().safepoints().free_at_stop(a), 0u);
  begin({});
}

// Neither a lane nor a ring is available: the caller waits for its object's own epoch.
TEST_ALL_CONFIGS(DeferTest, WithoutMemoryForARingTheObjectIsFreedAtOnceOrNot) {
  Slot& a = thread();
  add_reader(a);
  void* p = take(a, kSlabMax + 1);
  void* q = take(a, kSlabMax + 1);
  Fake::fail(Fake::Call::kAnyMemory, 1);
  std::vector<void*> rest;
  while (void* more = engine().allocate(kSlabMax + 1, a)) rest.push_back(more);
  lane_reader_enter(&reader_);
  EXPECT_EQ(defer(a, p), EBUSY);
  lane_reader_exit(&reader_);
  EXPECT_EQ(defer(a, p), 0);
  EXPECT_EQ(safepoint_statistics().deferred, 0u);
  Fake::fail_never();
  EXPECT_EQ(defer(a, q), 0);
  for (void* more : rest) give(a, more);
  EXPECT_EQ(engine().safepoints().wait_for_readers(a), 0);
  EXPECT_EQ(live(), 0u);
}

// If other threads free in a lane, the hits of its owner meet the closed gate.
TEST_OWNED(DeferTest, OthersFreeInALaneWhileItsOwnerIsOutside) {
  Slot &a = thread(), &b = thread();
  add_reader(a);
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 100; ++i) EXPECT_EQ(defer(b, take(b, 48)), 0);
    take(a, 48);
    EXPECT_EQ(engine().safepoints().free_what_may_be_freed(a), 100u);
    EXPECT_EQ(lane_of(b)->is_closed(), !config().single || b.load() != a.load());
  }
}

// Readers follow pointers that writers replace. An object that is handed out again is overwritten
// at once. Meanwhile another thread polls, which takes lanes away from the writers.
TEST_ALL_CONFIGS(DeferTest, ReadersNeverSeeReuse) {
  start_threads();
  make_lanes();
  constexpr int kCells = 16, kWriters = 2;
  struct Node {
    std::atomic<uint64_t> words[6];  // all the same
  };
  static std::atomic<Node*> cells[kCells];
  static std::atomic<int> writing;
  for (auto& cell : cells) cell = nullptr;
  writing = kWriters;
  Slot& main = thread();
  const auto run = [&](int i, Slot& slot) {
    Fake::number = cpu_of(slot);
    Random random(static_cast<uint64_t>(i));
    lane_reader reader;
    if (i >= kWriters) {
      ASSERT_TRUE(engine().safepoints().add_reader(reader, nullptr, slot));
    }
    for (int round = 0; i < kWriters ? round < 200000 / kShorter : writing.load() > 0; ++round) {
      std::atomic<Node*>& cell = cells[random.below(kCells)];
      if (i < kWriters) {
        Node* node = static_cast<Node*>(engine().allocate(sizeof(Node), slot));
        const uint64_t value = random.below(~uint64_t{0});
        for (auto& word : node->words) word.store(value, std::memory_order_relaxed);
        Node* old = cell.exchange(node, std::memory_order_acq_rel);
        if (old != nullptr) {
          ASSERT_EQ(engine().defer(old, slot), 0);
        }
      } else {
        if (random.one_in(50)) engine().safepoints().free_what_may_be_freed(slot);
        lane_reader_enter(&reader);
        if (Node* node = cell.load(std::memory_order_acquire); node != nullptr) {
          const uint64_t value = node->words[0].load(std::memory_order_relaxed);
          for (int again = 0; again < 4; ++again)
            for (auto& word : node->words) ASSERT_EQ(word.load(std::memory_order_relaxed), value);
        }
        lane_reader_exit(&reader);
      }
    }
    if (i < kWriters) --writing;
    if (i >= kWriters) {
      ASSERT_EQ(engine().safepoints().remove_reader(reader, slot),
                Safepoints<Fake>::Removed::kDone);
    }
  };
  std::vector<std::thread> threads;
  ASSERT_TRUE(engine().safepoints().add_reader(reader_, nullptr, main));
  for (int i = 0; i < kWriters + 2; ++i) {
    Slot& slot = thread();
    threads.emplace_back([&, i] { run(i, slot); });
  }
  for (std::thread& t : threads) t.join();
  for (auto& cell : cells)
    if (Node* node = cell.load(); node != nullptr) give(main, node);
  EXPECT_EQ(engine().safepoints().wait_for_readers(main), 0);
  EXPECT_EQ(live(), 0u);
}

}  // namespace
}  // namespace lanemalloc
