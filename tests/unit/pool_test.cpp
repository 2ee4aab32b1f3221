// Pools: sizes, contents, functions, reserve, memory in advance and back, bad pointers. At a limit:
// pool_limit_test.cpp.
#include "pools.h"

namespace lanemalloc {
namespace {

// --- Sizes.

TEST_ALL_CONFIGS(PoolTest, SizesAreExactToEightBytesAndSixteenAtLeast) {
  Slot& t = thread();
  for (Bytes bytes :
       {1u, 8u, 9u, 16u, 17u, 24u, 40u, 56u, 72u, 104u, 1000u, 4104u, 70000u, 512u << 10}) {
    FakePool& pool = make(t, bytes);
    EXPECT_EQ(pool.kind().size, std::max(Bytes{16}, round_up(bytes, 8))) << bytes;
    const size_t n = bytes > 4096 ? 20 : 700;
    std::vector<void*> all = take_many(pool, t, n);
    for (size_t i = 0; i < n; ++i) fill(all[i], bytes, i);
    for (size_t i = 0; i < n; ++i) EXPECT_TRUE(is_whole(all[i], bytes, i)) << bytes;
    EXPECT_EQ(live(pool, t), n);
    EXPECT_GE(bytes_of(pool.kind().slabs * pool.kind().blocks), n * bytes);
    give_all(pool, t, all);
    EXPECT_EQ(end(pool, t), 0u);
  }
}

TEST_ALL_CONFIGS(PoolTest, ObjectsLieAtTheirAlignment) {
  Slot& t = thread();
  for (Bytes alignment = 8; alignment <= kBlockSize; alignment *= 2) {
    for (Bytes bytes : {24u, 200u, 512u << 10}) {
      PoolCalls calls;
      for (const PoolFunctions& functions : {PoolFunctions{}, calls.memory_only()}) {
        FakePool& pool = make(t, bytes, 0, 0, functions, alignment);
        for (void* p : take_many(pool, t, 5))
          EXPECT_EQ(reinterpret_cast<Address>(p) % alignment, 0u);
        EXPECT_EQ(end(pool, t), 5u);
      }
      EXPECT_EQ(calls.inits, calls.finis);
    }
  }
}

TEST_ALL_CONFIGS(PoolTest, WhatWasFreedComesNextAndIsTheSameSlab) {
  Slot& t = thread();
  FakePool& pool = make(t, 24);
  void* p = take(pool, t);
  give(pool, t, p);
  EXPECT_EQ(take(pool, t), p);
  give(pool, t, p);
  for (int i = 0; i < 10000; ++i) give(pool, t, take(pool, t));
  EXPECT_EQ(pool.kind().slabs, 1u);
}

TEST_ALL_CONFIGS(PoolTest, ZeroedObjectsAreZero) {
  Slot& t = thread();
  FakePool& pool = make(t, 40);
  for (int i = 0; i < 100; ++i) {
    auto* p = static_cast<unsigned char*>(take(pool, t, FakePool::kZero));
    EXPECT_TRUE(std::all_of(p, p + 40, [](unsigned char byte) { return byte == 0; }));
    memset(p, 0xCC, 40);
    give(pool, t, p);
  }
  PoolCalls calls;
  EXPECT_TRUE(pool.may_have(FakePool::kZero | kWait | kUseReserve));
  EXPECT_FALSE(pool.may_have(8));
  EXPECT_FALSE(make(t, 40, 0, 0, calls.all()).may_have(FakePool::kZero));
  EXPECT_TRUE(make(t, 40, 0, 0, calls.uses_only()).may_have(FakePool::kZero));
}

// --- Functions.

TEST_ALL_CONFIGS(PoolTest, FunctionsAreCalledExactlyOnceAtEachUseAndForEachObject) {
  Slot &a = thread(), &b = thread();
  PoolCalls calls;
  FakePool& pool = make(a, 100, 0, 0, calls.all());
  std::vector<void*> all = take_many(pool, a, 1000);
  EXPECT_EQ(calls.inits, 1000);
  EXPECT_EQ(calls.ctors, 1000);
  EXPECT_EQ(calls.dtors + calls.finis, 0);
  for (size_t i = 0; i < all.size(); ++i) give(pool, i % 2 == 0 ? a : b, all[i]);
  EXPECT_EQ(calls.dtors, 1000);
  all = take_many(pool, b, 300);
  EXPECT_LE(calls.inits, 1300);
  EXPECT_EQ(calls.ctors, 1300);
  EXPECT_EQ(calls.finis, 0);
  engine().upkeep().trim(a);
  if (is_scavenger_wanted()) all_passes();
  EXPECT_EQ(calls.finis, 0) << "memory leaves in reclaim and at the end only";
  EXPECT_GT(reclaim(pool, a), 0u);
  EXPECT_GT(calls.finis, 0);
  EXPECT_EQ(live(pool, a), 300u);
  for (void* p : all) EXPECT_TRUE(PoolCalls::is_made(p, 100));
  give_all(pool, a, all);
  reclaim(pool, b);
  EXPECT_EQ(calls.inits, calls.finis);
  EXPECT_EQ(pool.kind().slabs, 0u);
  take_many(pool, a, 7);
  EXPECT_EQ(end(pool, b), 7u);
  EXPECT_EQ(calls.inits, calls.finis);
  EXPECT_EQ(calls.ctors, 1307);
  EXPECT_EQ(calls.dtors, 1300);
}

TEST_ALL_CONFIGS(PoolTest, WhatInitHasMadeStaysWhileAnObjectIsFreeOrOnItsWay) {
  Slot &a = thread(), &b = thread();
  PoolCalls calls;
  FakePool& pool = make(a, 56, 0, 0, calls.memory_only());
  for (int round = 0; round < 5; ++round) {
    std::vector<void*> all = take_many(pool, round % 2 == 0 ? a : b, 800);
    for (void* p : all) EXPECT_TRUE(PoolCalls::is_made(p, 56));
    give_all(pool, round % 3 == 0 ? a : b, all);
    if (round == 3) engine().upkeep().trim(a);
  }
  EXPECT_EQ(end(pool, a), 0u);
  EXPECT_EQ(calls.inits, calls.finis);
}

TEST_ALL_CONFIGS(PoolTest, WhereInitFailsTheObjectIsTriedAgainAndNeverFinished) {
  Slot& t = thread();
  PoolCalls calls;
  FakePool& pool = make(t, 64, 0, 0, calls.all());
  calls.inits_until_failure = 5;
  std::vector<void*> all = take_all(pool, t);
  EXPECT_EQ(all.size(), 5u);
  EXPECT_EQ(try_take(pool, t), nullptr);
  EXPECT_EQ(calls.ctors, 5);
  EXPECT_EQ(live(pool, t), 5u);
  calls.inits_until_failure = 1 << 30;
  all.push_back(take(pool, t));
  EXPECT_EQ(calls.inits, 6);
  give_all(pool, t, all);
  EXPECT_EQ(end(pool, t), 0u);
  EXPECT_EQ(calls.finis, 6);
}

TEST_ALL_CONFIGS(PoolTest, WhereCtorFailsTheObjectGoesBackInitialized) {
  Slot& t = thread();
  PoolCalls calls;
  FakePool& pool = make(t, 64, 3, 0, calls.all());
  calls.ctors_until_failure = 1;
  void* p = take(pool, t);
  EXPECT_EQ(try_take(pool, t), nullptr);
  EXPECT_EQ(try_take(pool, t), nullptr);
  EXPECT_EQ(calls.dtors, 0) << "of what was never made";
  EXPECT_LE(calls.inits, 3);
  EXPECT_EQ(live(pool, t), 1u);
  EXPECT_EQ(pool.counters().limit_failures, 0u);
  calls.ctors_until_failure = 1 << 30;
  EXPECT_EQ(take_all(pool, t).size(), 2u);
  EXPECT_EQ(calls.inits, 3);
  give(pool, t, p);
  EXPECT_EQ(end(pool, t), 2u);
  EXPECT_EQ(calls.finis, 3);
}

TEST_ALL_CONFIGS(PoolTest, FunctionsMayUseTheirPoolAndOthers) {
  Slot& t = thread();
  static FakePool *outer, *inner;
  static Slot* slot;
  slot = &t;
  inner = &make(t, 32);
  PoolFunctions functions;
  functions.init = [](void* object, size_t, void*) {
    return (*static_cast<void**>(object) = inner->allocate(0, *slot)) == nullptr ? 1 : 0;
  };
  functions.fini = [](void* object, size_t, void*) {
    inner->free(*static_cast<void**>(object), *slot);
  };
  functions.ctor = [](void* object, size_t, void*) {
    static_cast<void**>(object)[1] = nullptr;
    static int depth = 0;
    if (depth == 2) return 0;
    ++depth;
    static_cast<void**>(object)[1] = outer->allocate(0, *slot);
    --depth;
    return 0;
  };
  functions.dtor = [](void* object, size_t, void*) {
    if (static_cast<void**>(object)[1] != nullptr)
      outer->free(static_cast<void**>(object)[1], *slot);
  };
  outer = &make(t, 16, 0, 0, functions);
  std::vector<void*> all = take_many(*outer, t, 100);
  EXPECT_EQ(live(*outer, t), 300u);
  give_all(*outer, t, all);
  EXPECT_EQ(live(*outer, t), 0u);
  EXPECT_EQ(live(*inner, t), 300u);
  reclaim(*outer, t);
  EXPECT_EQ(live(*inner, t), 0u);
}

// --- Reserve and memory in advance.

TEST_ALL_CONFIGS(PoolTest, TheReserveIsMadeAtOnceServesOnlyWhoAsksForItAndIsRefilledFirst) {
  Slot &a = thread(), &b = thread();
  PoolCalls calls;
  FakePool& pool = make(a, 100, 10, 4, calls.all());
  EXPECT_EQ(pool.reserved(), 4u);
  EXPECT_EQ(calls.inits, 4);
  EXPECT_EQ(live(pool, a), 0u);
  std::vector<void*> all = take_all(pool, a);
  EXPECT_EQ(all.size(), 6u);
  EXPECT_EQ(pool.counters().limit_failures, 1u);
  for (int i = 0; i < 4; ++i) all.push_back(take(pool, i % 2 == 0 ? a : b, kUseReserve));
  EXPECT_EQ(try_take(pool, a, kUseReserve), nullptr);
  EXPECT_EQ(pool.reserved(), 0u);
  EXPECT_EQ(calls.ctors, 10);
  EXPECT_EQ(calls.inits, 10);
  for (uint32_t i = 0; i < 4; ++i) {
    give(pool, i % 2 == 0 ? b : a, all[i]);
    EXPECT_EQ(pool.reserved(), i + 1);
    EXPECT_EQ(try_take(pool, a), nullptr) << "the reserve comes first";
  }
  give(pool, b, all[4]);
  EXPECT_EQ(pool.reserved(), 4u);
  all[4] = take(pool, a);
  for (size_t i = 4; i < 10; ++i) give(pool, a, all[i]);
  EXPECT_EQ(calls.dtors, calls.ctors);
  EXPECT_EQ(end(pool, a), 0u);
  EXPECT_EQ(calls.finis, 10);
}

TEST_ALL_CONFIGS(PoolTest, WithFreeObjectsNobodyDrawsOnTheReserveAndReclaimLeavesIt) {
  Slot& t = thread();
  FakePool& pool = make(t, 100, 0, 50);
  std::vector<void*> all = take_many(pool, t, 200);
  all.push_back(take(pool, t, kUseReserve));
  EXPECT_EQ(pool.reserved(), 50u);
  give_all(pool, t, all);
  reclaim(pool, t);
  EXPECT_EQ(pool.reserved(), 50u);
  EXPECT_GE(cut(pool), 50u);
  EXPECT_EQ(live(pool, t), 0u);
  EXPECT_EQ(end(pool, t), 0u);
}

TEST_ALL_CONFIGS(PoolTest, APoolWhoseReserveCannotBeMadeEndsWhole) {
  Slot& t = thread();
  PoolCalls calls;
  calls.inits_until_failure = 7;
  FakePool& pool =
      *pools_.emplace_back(std::make_unique<FakePool>(engine(), "fish", 40, 8, calls.all()));
  EXPECT_FALSE(pool.start(0, 10, t));
  EXPECT_EQ(end(pool, t), 0u);
  EXPECT_EQ(calls.inits, 7);
  EXPECT_EQ(calls.finis, 7);
}

TEST_ALL_CONFIGS(PoolTest, PreallocatedObjectsAreInitializedServeAnyThreadAndStay) {
  Slot &a = thread(), &b = thread();
  PoolCalls calls;
  FakePool& pool = make(a, 100, 0, 0, calls.all());
  std::vector<void*> used = take_many(pool, a, 30);
  ASSERT_TRUE(pool.preallocate(2000, a));
  EXPECT_GE(calls.inits, 2030);
  EXPECT_EQ(calls.ctors, 30);
  const uint32_t slabs = pool.kind().slabs;
  const int inits = calls.inits;
  reclaim(pool, b);
  EXPECT_GE(cut(pool) - live(pool, b), 2000u);
  engine().upkeep().trim(b);
  if (is_scavenger_wanted()) all_passes();
  std::vector<void*> all = take_many(pool, b, 2000);
  EXPECT_LE(calls.inits, inits + 100) << "they were ready, but for what was cut with them";
  EXPECT_EQ(pool.kind().slabs, slabs);
  give_all(pool, b, all);
  give_all(pool, a, used);
  take_all(pool, a, 5000);
  EXPECT_EQ(end(pool, a), 5000u);
  EXPECT_EQ(calls.inits, calls.finis);
}

TEST_ALL_CONFIGS(PoolTest, MoreThanTheLimitCannotBePreallocatedAndNothingIsLost) {
  Slot& t = thread();
  FakePool& pool = make(t, 100, 20);
  EXPECT_FALSE(pool.preallocate(21, t));
  EXPECT_EQ(live(pool, t), 0u);
  EXPECT_TRUE(pool.preallocate(20, t));
  EXPECT_EQ(take_all(pool, t).size(), 20u);
}

// --- Memory goes back.

TEST_ALL_CONFIGS(PoolTest, TrimGivesBackWhatNoLaneUsesAndDrainWhatRestsInLanes) {
  Slot &a = thread(), &b = thread();
  FakePool& pool = make(a, 500);
  give_all(pool, b, take_many(pool, b, 1000));
  give_all(pool, a, take_many(pool, a, 1000));
  const Bytes own = reclaim(pool, a, Reclaim::kTrim);
  EXPECT_GT(own, 0u) << "what the caller's lane does not use";
  if (is_owned() && !config().single) {
    EXPECT_GT(pool.kind().slabs, 0u) << "what another lane has is left there";
  }
  reclaim(pool, a, Reclaim::kDrain);
  EXPECT_EQ(pool.kind().slabs, 0u);
  EXPECT_EQ(cut(pool), 0u);
  EXPECT_EQ(reclaim(pool, a, Reclaim::kDrainAll), 0u);
}

TEST_ALL_CONFIGS(PoolTest, DrainLeavesLanesAloneWhoseThreadsAreInsideAndDrainAllWaitsForThem) {
  Slot &a = thread(), &b = thread();
  FakePool& pool = make(a, 500);
  give_all(pool, b, take_many(pool, b, 100));
  Fake::number = cpu_of(b);
  Stopped inside(b);
  reclaim(pool, a, Reclaim::kDrain);
  EXPECT_GT(pool.kind().slabs, 0u);
  static std::function<void()> leave;
  int sleeps = 0;
  leave = [&] {
    if (++sleeps == 3) inside.leave();
  };
  Fake::on_sleep = [] { leave(); };
  reclaim(pool, a, Reclaim::kDrainAll);
  Fake::on_sleep = nullptr;
  EXPECT_EQ(sleeps, 3) << "it waited";
  EXPECT_EQ(pool.kind().slabs, 0u);
}

// --- Bad pointers.

TEST_ALL_CONFIGS(PoolTest, WhatIsNotThePoolsIsRefused) {
  Slot& t = thread();
  PoolCalls calls;
  for (const PoolFunctions& functions : {PoolFunctions{}, calls.all()}) {
    FakePool &pool = make(t, 64, 0, 0, functions), &other = make(t, 64, 0, 0, functions);
    void *p = take(pool, t), *q = take(other, t), *m = take(t, 64), *large = take(t, 1 << 20);
    EXPECT_EQ(pool.free(q, t), Verdict::kOfKind);
    EXPECT_EQ(engine().kinds().family_of(q), &other.family());
    EXPECT_EQ(pool.free(m, t), Verdict::kOfMalloc);
    EXPECT_EQ(pool.free(large, t), Verdict::kOfMalloc);
    EXPECT_EQ(pool.free(&pool, t), Verdict::kNotOurs);
    EXPECT_EQ(pool.free(static_cast<std::byte*>(large) + 4096, t), Verdict::kNotAStart);
    EXPECT_EQ(engine().free(p, t), Verdict::kOfKind);
    EXPECT_EQ(engine().pointers().find(p).verdict, Verdict::kOfKind);
    EXPECT_EQ(live(pool, t) + live(other, t), 2u) << "nothing has happened";
    give(pool, t, p);
    give(other, t, q);
    give(t, m);
    give(t, large);
  }
  EXPECT_EQ(calls.dtors, 2);
}

TEST_ALL_CONFIGS(PoolTest, CheckedPoolsFindDoubleFreesAndPointersIntoObjects) {
  begin_checked();
  Slot &a = thread(), &b = thread();
  PoolCalls calls;
  for (const PoolFunctions& functions : {PoolFunctions{}, calls.all()}) {
    FakePool& pool = make(a, 24, 0, 3, functions);
    std::vector<void*> all = take_many(pool, a, 5000);
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(pool.free(static_cast<std::byte*>(all[i]) + 8, b), Verdict::kNotAStart);
      give(pool, i % 2 == 0 ? a : b, all[i]);
      EXPECT_EQ(pool.free(all[i], i % 3 == 0 ? a : b), Verdict::kFreedAlready);
    }
    EXPECT_EQ(live(pool, a), 0u);
    EXPECT_EQ(end(pool, a), 0u);
  }
  EXPECT_EQ(calls.dtors, 5000);
}

// --- The end.

TEST_ALL_CONFIGS(PoolTest, TheEndGivesBackEverythingWhereverItLies) {
  Slot &a = thread(), &b = thread(), &gone = thread();
  const Bytes before = statistics().slab_bytes;
  FakePool& pool = make(a, 200);
  std::vector<void*> all = take_many(pool, a, 1000);
  for (size_t i = 0; i < 300; ++i) give(pool, b, all[i]);
  for (size_t i = 300; i < 500; ++i) give(pool, gone, all[i]);
  engine().exits().thread_exits(gone);
  for (size_t i = 500; i < 600; ++i) in_handler(a, [&] { give(pool, a, all[i]); });
  EXPECT_TRUE(pool.is_live());
  EXPECT_EQ(live(pool, b), 400u);
  EXPECT_EQ(end(pool, b), 400u);
  EXPECT_FALSE(pool.is_live());
  EXPECT_FALSE(pool.is_hit());
  for (int i = 0; i < 4; ++i) engine().upkeep().trim(a);
  EXPECT_EQ(statistics().slab_bytes, before);
  // Another pool has its place in the lanes now.
  FakePool& next = make(b, 200);
  EXPECT_EQ(next.family().offset, pool.family().offset);
  std::set<void*> unlike;
  for (Slot* t : {&a, &b})
    for (int i = 0; i < 500; ++i) EXPECT_TRUE(unlike.insert(take(next, *t)).second);
}

TEST_ALL_CONFIGS(PoolTest, ManyPoolsLiveBesideEachOtherAndOneTooManyIsRefused) {
  Slot &a = thread(), &b = thread();
  constexpr size_t kMost = 16383;
  for (size_t i = 0; i < kMost; ++i) make(a, 16 + i % 100);
  FakePool& last =
      *pools_.emplace_back(std::make_unique<FakePool>(engine(), "x", 16, 8, PoolFunctions{}));
  EXPECT_FALSE(last.start(0, 0, a));
  EXPECT_EQ(end(last, a), 0u);
  for (size_t i = 0; i < kMost; i += 97) give(*pools_[i], b, take(*pools_[i], a));
  for (size_t i = 0; i < kMost; i += 97) EXPECT_EQ(end(*pools_[i], a), 0u);
  make(b, 16);
}

}  // namespace
}  // namespace lanemalloc
