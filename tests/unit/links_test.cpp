// Links: what a program writes to a free object leads to no object that is handed out. A double
// free is told at the call. What is handed out does not look free.
#include "links.h"

#include <cstring>

#include "pools.h"

namespace lanemalloc {
namespace {

alignas(kGranule) uint64_t some_global[8];

uint64_t& word_of(void* p, size_t i = 0) { return static_cast<uint64_t*>(p)[i]; }

class LinksTest : public PoolTest {
 protected:
  Verdict free(Slot& t, void* p) {
    Fake::number = cpu_of(t);
    return told(p, [&] { return engine().free(p, t); });
  }
  std::vector<void*> take_some(Slot& t, size_t n, Bytes size) {
    std::vector<void*> all;
    for (size_t i = 0; i < n; ++i) all.push_back(take(t, size));
    return all;
  }
  // Runs `test` with all that a program may have written over a word. The lower bytes of a link say
  // where in a slab it leads; the others are what keeps it there.
  template <class Test>
  void with_each_value(Test test) {
    for (int which = 0; which < 10; ++which) {
      SCOPED_TRACE(testing::Message() << "value " << which);
      pools_.clear();
      begin({});
      Slot &a = thread(), &b = thread();
      void* live = take(a, 64);  // in the same slab as most of what the tests damage
      void* elsewhere = take(a, 512);
      const auto damage = [&](uint64_t& word) {
        const uint64_t values[] = {reinterpret_cast<uint64_t>(some_global),
                                   reinterpret_cast<uint64_t>(live),
                                   reinterpret_cast<uint64_t>(elsewhere), 0, ~uint64_t{0}};
        if (which < 5) {
          word = values[which];
        } else {
          word ^= uint64_t{0x5A} << (which - 2) * 8;
        }
      };
      live_ = {live, elsewhere};
      test(a, b, damage);
      ASSERT_FALSE(reports.empty());
      for (const Report& report : reports) EXPECT_EQ(report.why, Verdict::kListDamaged);
      reports.clear();
      engine().check_invariants();
    }
  }
  // No object is handed out that is in use, or that is none.
  template <class Take>
  void expect_good(size_t n, Take take_one) {
    std::set<void*> seen(live_.begin(), live_.end());
    for (size_t i = 0; i < n; ++i) {
      void* p = take_one();
      ASSERT_NE(p, nullptr);
      EXPECT_TRUE(seen.insert(p).second) << "handed out twice";
      EXPECT_LT(world().region.distance(p), world().region.most_bytes());
    }
  }
  void expect_good(Slot& t, size_t n, Bytes size) {
    expect_good(n, [&] { return take(t, size); });
  }

  std::vector<void*> live_;
};

// --- Links that a program has written to.

TEST_ALL_CONFIGS(LinksTest, InABinADamagedLinkLeadsNowhere) {
  with_each_value([&](Slot& a, Slot&, auto damage) {
    void* p = take(a, 64);
    live_.push_back(p);
    damage(word_of(p, 64 / sizeof(uint64_t)));  // the next one waits in the bin
    expect_good(a, 3000, 64);
  });
}

TEST_ALL_CONFIGS(LinksTest, OnASlabsListADamagedLinkLeadsNowhere) {
  for (size_t at : {0, 1, 5, 19}) {
    with_each_value([&](Slot& a, Slot&, auto damage) {
      const std::vector<void*> all = take_some(a, 20, 64);
      for (void* p : all) give(a, p);
      damage(word_of(all[19 - at]));
      expect_good(a, 3000, 64);
    });
  }
}

TEST_ALL_CONFIGS(LinksTest, OfBigObjectsADamagedLinkLeadsNowhere) {
  ASSERT_TRUE(is_big(class_of(kBinMax + 1)));
  with_each_value([&](Slot& a, Slot&, auto damage) {
    const std::vector<void*> all = take_some(a, 4, kBinMax + 1);
    live_.insert(live_.end(), {all[0], all[3]});
    give(a, all[1]);
    give(a, all[2]);
    damage(word_of(all[2]));
    expect_good(a, 50, kBinMax + 1);
  });
}

TEST_ALL_CONFIGS(LinksTest, InAKindsBinADamagedLinkLeadsNowhere) {
  for (Bytes size : {Bytes{48}, Bytes{30000}}) {
    with_each_value([&](Slot& a, Slot&, auto damage) {
      FakePool& pool = make(a, size);
      const std::vector<void*> all = take_many(pool, a, 3);
      give(pool, a, all[0]);
      give(pool, a, all[1]);
      live_.push_back(all[2]);
      damage(word_of(all[1]));
      expect_good(300, [&] { return take(pool, a); });
    });
  }
}

// In a batch. Objects of other lanes are sent by owners only.
TEST_OWNED(LinksTest, InABatchADamagedLinkOrNameLeadsNowhere) {
  if (config().single) return;
  enum What { kHolder, kName, kRow, kEarlier };
  for (What what : {kHolder, kName, kRow, kEarlier}) {
    SCOPED_TRACE(what);
    with_each_value([&](Slot& a, Slot& b, auto damage) {
      const std::vector<void*> all = take_some(a, 8, 64), others = take_some(a, 8, 128);
      Slot& c = thread();
      for (void* p : others) give(c, p);
      engine().exits().thread_exits(c);
      for (void* p : all) give(b, p);
      // The first one is the holder, and names the row of the others.
      if (what == kRow) damage(word_of(all[7]));
      if (what == kName) damage(word_of(all[0], 2));
      engine().exits().thread_exits(b);
      if (what == kHolder) damage(word_of(all[0]));
      if (what == kEarlier) damage(word_of(all[0], 1));
      expect_good(a, 3000, 64);
      expect_good(a, 3000, 128);
    });
  }
}

// Whoever counts must come to an end: it is inside the lane meanwhile.
TEST_ALL_CONFIGS(LinksTest, AListThatIsACircleIsCountedNoFurtherThanItsSlab) {
  Slot& t = thread();
  FakePool& pool = make(t, 64);
  for (void* p : {take(t, 64), take(pool, t)}) {
    void* next = static_cast<std::byte*>(p) + 64;  // it waits in the bin
    word_of(next) = Link::to(next).bits;
  }
  EXPECT_LE(statistics().live_objects, 2u * capacity_of(class_of(64)));
  EXPECT_LE(live(pool, t), pool.kind().capacity);
  take(t, 64);
  take(pool, t);
  for (void* p : {take(t, 64), take(pool, t)}) EXPECT_NE(p, nullptr);
  for (const Report& report : reports) EXPECT_EQ(report.why, Verdict::kListDamaged);
  reports.clear();
}

// --- Double frees.

TEST_ALL_CONFIGS(LinksTest, ADoubleFreeIsToldAtTheCallHoweverManyFreesLieBetween) {
  Slot &t = thread(), &other = thread();
  FakePool &pool = make(t, 48), &elaborate = make(t, 48, 1000);
  PoolCalls calls;
  FakePool& made = make(t, 48, 0, 0, calls.memory_only());
  Fake::number = cpu_of(t);
  FakeHeap heap(engine(), kSource, "test", nullptr);
  ASSERT_TRUE(heap.start(0, 0, nullptr, nullptr, t));
  const auto check = [&](const char* of, size_t between, auto take_one, auto free_one) {
    SCOPED_TRACE(testing::Message() << of << " after " << between);
    std::vector<void*> all;
    for (size_t i = 0; i <= between + 1; ++i) all.push_back(take_one(t));
    for (size_t i = 0; i <= between; ++i) ASSERT_EQ(free_one(t, all[i]), Verdict::kGood);
    for (int again = 0; again < 2; ++again)
      EXPECT_EQ(told(all[0], [&] { return free_one(t, all[0]); }), Verdict::kFreedAlready);
    EXPECT_EQ(free_one(t, all.back()), Verdict::kGood);
  };
  take(other, 64);
  for (size_t between : {0, 1, 7, 100}) {
    for (Bytes size : {Bytes{16}, Bytes{64}, Bytes{1024}, Bytes{9000}})
      check(
          "malloc", between, [&](Slot& by) { return take(by, size); },
          [&](Slot& by, void* p) { return free(by, p); });
    for (Bytes size : {Bytes{16}, Bytes{64}, Bytes{3000}})
      check(
          "heap", between, [&](Slot& by) { return heap.allocate(size, kGranule, by); },
          [&](Slot& by, void* p) {
            if (FakeHeap::free_to_batch(engine(), heap.family().handle, p, by))
              return Verdict::kGood;
            return heap.free(p, FakeHeap::kUnknown, by).verdict;
          });
    for (FakePool* each : {&pool, &elaborate, &made})
      check(
          "pool", between, [&](Slot& by) { return take(*each, by); },
          [&](Slot& by, void* p) {
            if (each == &pool && (each->free_to_batch(p, by) || each->free_in_short_stay(p, by)))
              return Verdict::kGood;
            return each->free(p, by);
          });
  }
  EXPECT_EQ(statistics().live_objects, 1u + 1u) << "other's, and the table of bins of the heap";
  for (FakePool* each : {&pool, &elaborate, &made}) EXPECT_EQ(live(*each, t), 0u);
  EXPECT_EQ(heap.count(t).objects, 0u);
  heap.end(t, [](FakeHeap&) {});
  engine().check_invariants();
}

TEST_ALL_CONFIGS(LinksTest, ADoubleFreeAmongManyIsToldAtTheCall) {
  Slot& t = thread();
  FakePool& pool = make(t, 48);
  std::vector<void*> all = take_many(pool, t, 8);
  give(pool, t, all[3]);
  EXPECT_EQ(pool.free_batch(all.data(), all.size(), t), 3u) << "this one by itself, please";
  EXPECT_EQ(told(all[3], [&] { return pool.free(all[3], t); }), Verdict::kFreedAlready);
  EXPECT_EQ(live(pool, t), 4u);
}

// The other thread cannot see whether the owner's lists have the object. The object is handed out
// before the batch comes, so its word is no link any more. What the program writes there looks like
// a holder that names nothing.
TEST_OWNED(LinksTest, ADoubleFreeByAnotherThreadIsToldByTheOwner) {
  for (Bytes size : {Bytes{64}, kBinMax + 1}) {
    begin({});
    Slot &t = thread(), &other = thread();
    take(other, 64);
    void *p = take(t, size), *in_use = take(t, size);
    give(t, p);
    EXPECT_EQ(free(other, p), Verdict::kGood);
    engine().exits().thread_exits(other);
    std::set<void*> got{in_use};
    for (int n = 0; n < 300; ++n) {
      void* q = take(t, size);
      EXPECT_TRUE(got.insert(q).second) << n;
      if (q == p) word_of(p) = (Address{0} - link_secret) & 7;
    }
    ASSERT_EQ(reports.size(), 1u);
    EXPECT_EQ(reports[0].why, Verdict::kListDamaged);
    EXPECT_EQ(reports[0].pointer, p) << "it is the batch";
    reports.clear();
    engine().check_invariants();
  }
}

// The memory of a run that was moved is not there any more.
TEST_ALL_CONFIGS(LinksTest, AFreeOfWhatIsNotMappedIsTold) {
  Slot& t = thread();
  void* p = take(t, 2 << 20);
  take(t, 2 << 20);
  take_some(t, 2000, 64);  // the lane sees how far the region goes
  void* moved = engine().reallocate(p, engine().pointers().find(p).word, 8 << 20, t);
  ASSERT_NE(moved, p);
  EXPECT_NE(free(t, p), Verdict::kGood);
  FakePool& pool = make(t, 48);
  give(pool, t, take(pool, t));
  for (void* none : {p, static_cast<void*>(nullptr), reinterpret_cast<void*>(8)}) {
    EXPECT_FALSE(pool.free_to_batch(none, t));
    EXPECT_FALSE(pool.free_in_short_stay(none, t));
    EXPECT_EQ(pool.free_batch(&none, 1, t), 0u);
  }
}

// --- What the program's own data look like.

TEST_ALL_CONFIGS(LinksTest, DataWithTheTagAreFreedAsAnyOther) {
  Slot &t = thread(), &other = thread();
  FakePool& pool = make(t, 48);
  Fake::number = cpu_of(t);
  FakeHeap heap(engine(), kSource, "test", nullptr);
  ASSERT_TRUE(heap.start(0, 0, nullptr, nullptr, t));
  take(other, 64);
  for (uint64_t below : {0x0ull, 0xFFFFFFFFFFFFull, 0x7FFF12345678ull, 0x1000ull}) {
    const uint64_t data = kLinkTag << 48 | below;
    for (int i = 0; i < 100; ++i) {
      Slot& by = i % 3 == 0 ? other : t;
      Fake::number = cpu_of(by);
      void* p = take(t, 64);
      word_of(p) = data;
      EXPECT_EQ(engine().pointers().find(p).verdict, Verdict::kGood);
      EXPECT_EQ(free(by, p), Verdict::kGood);
      void* q = take(pool, t);
      word_of(q) = data;
      EXPECT_EQ(pool.find(q), Verdict::kGood);
      give(pool, by, q);
      Fake::number = cpu_of(t);
      void* r = heap.allocate(100, kGranule, t);
      word_of(r) = data;
      EXPECT_EQ(heap.free(r, FakeHeap::kUnknown, by).verdict, Verdict::kGood);
    }
  }
  EXPECT_EQ(live(pool, t), 0u);
  EXPECT_EQ(heap.count(t).objects, 0u);
  heap.end(t, [](FakeHeap&) {});
}

// --- What is handed out.

TEST_ALL_CONFIGS(LinksTest, AnObjectThatIsHandedOutHasNoLink) {
  Slot &t = thread(), &other = thread();
  take(other, 64);
  FakePool &pool = make(t, 48), &reserved = make(t, 48, 0, 20), &large = make(t, 30000);
  Fake::number = cpu_of(t);
  FakeHeap heap(engine(), kSource, "test", nullptr);
  ASSERT_TRUE(heap.start(0, 0, nullptr, nullptr, t));
  EXPECT_TRUE(reserved.preallocate(30, t));
  const auto check = [&](const char* of, auto take_one, auto free_one) {
    SCOPED_TRACE(of);
    for (int round = 0; round < 6; ++round) {
      std::vector<void*> all;
      for (int i = 0; i < 150; ++i) {
        Fake::number = cpu_of(t);
        all.push_back(take_one());
        EXPECT_EQ(word_of(all.back()), 0u) << round << ' ' << i;
        if (i % 3 == 0) word_of(all.back()) = ~uint64_t{0};
      }
      for (size_t i = 0; i < all.size(); ++i) free_one(round % 3 == 2 ? other : t, all[i]);
      if (round == 3) engine().upkeep().trim(t);
    }
  };
  for (Bytes size : {Bytes{16}, Bytes{64}, Bytes{1024}, Bytes{2000}, kBinMax + 1})
    check("malloc", [&] { return take(t, size); }, [&](Slot& by, void* p) { give(by, p); });
  for (Bytes size : {Bytes{16}, Bytes{64}, Bytes{3000}})
    check(
        "heap", [&] { return heap.allocate(size, kGranule, t); },
        [&](Slot& by, void* p) {
          Fake::number = cpu_of(by);
          EXPECT_EQ(heap.free(p, FakeHeap::kUnknown, by).verdict, Verdict::kGood);
        });
  for (FakePool* each : {&pool, &reserved, &large})
    check(
        "pool", [&] { return take(*each, t, kUseReserve); },
        [&](Slot& by, void* p) { give(*each, by, p); });
  void* batch[100];
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(pool.allocate_batch(batch, 100, 0, t), 100u);
    for (void* p : batch) EXPECT_EQ(word_of(p), 0u);
    EXPECT_EQ(pool.free_batch(batch, 100, t), 100u);
  }
  heap.end(t, [](FakeHeap&) {});
}

TEST_ALL_CONFIGS(LinksTest, WhatAReserveHasIsHandedOutWithoutALink) {
  Slot& t = thread();
  FakePool& pool = make(t, 48, 20, 10);
  for (int round = 0; round < 3; ++round) {
    std::vector<void*> all = take_all(pool, t);
    for (void* p; (p = try_take(pool, t, kUseReserve)) != nullptr;) all.push_back(p);
    EXPECT_EQ(all.size(), 20u);
    for (void* p : all) EXPECT_EQ(word_of(p), 0u);
    give_all(pool, t, all);
  }
}

// A source whose objects are malloc's. What goes back there is in use until the source frees it.
class ImportedLinksTest : public LinksTest {
 protected:
  static size_t import(void* test, void** objects, size_t n) {
    auto& t = *static_cast<ImportedLinksTest*>(test);
    for (size_t i = 0; i < n; ++i) objects[i] = t.take(*t.slot_, 48);
    return n;
  }
  static void release(void* test, void** objects, size_t n) {
    auto& t = *static_cast<ImportedLinksTest*>(test);
    for (size_t i = 0; i < n; ++i) EXPECT_EQ(t.free(*t.slot_, objects[i]), Verdict::kGood);
  }
  Slot* slot_ = nullptr;
};

TEST_ALL_CONFIGS(ImportedLinksTest, NeitherTheProgramNorTheSourceGetsALink) {
  slot_ = &thread();
  FakePool& pool = *pools_.emplace_back(std::make_unique<FakePool>(
      engine(), "birds", 48, 8, PoolFunctions{}, PoolSource{&import, &release, this}));
  ASSERT_TRUE(pool.start(0, 5, *slot_));
  for (int round = 0; round < 4; ++round) {
    const std::vector<void*> all = take_many(pool, *slot_, 500);
    for (void* p : all) EXPECT_FALSE(static_cast<Object*>(p)->looks_free());
    give_all(pool, *slot_, all);
    if (round % 2 == 1) reclaim(pool, *slot_);
  }
  bool lost;
  pool.end(*slot_, lost);
  EXPECT_EQ(statistics().live_objects, 0u);
}

}  // namespace
}  // namespace lanemalloc
