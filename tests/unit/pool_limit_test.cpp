// Pools at a limit, on one thread. The limit is never exceeded, and is reached exactly, whichever
// lane has the free objects; budgets. With threads that wait: pool_threads_test.cpp.
#include "pools.h"

namespace lanemalloc {
namespace {

class PoolLimitTest : public PoolTest {
 protected:
  // All objects but `held` are free, somewhere. `t` can take these, and no more.
  void expect_the_rest_for(Slot& t, FakePool& pool, uint64_t limit, uint64_t held) {
    const uint64_t failures = pool.counters().limit_failures;
    std::vector<void*> all = take_all(pool, t);
    EXPECT_EQ(all.size(), limit - held);
    EXPECT_EQ(pool.counters().limit_failures, failures + 1);
    EXPECT_EQ(cut(pool), limit);
    EXPECT_EQ(live(pool, t), limit);
    give_all(pool, t, all);
    EXPECT_EQ(live(pool, t), held);
    engine().check_invariants();
  }
};

TEST_ALL_CONFIGS(PoolLimitTest, TheLimitIsReachedExactly) {
  Slot& t = thread();
  for (Bytes bytes : {16u, 24u, 1000u, 5000u, 200000u})
    for (uint64_t limit : {1u, 2u, 7u, 63u, 300u}) {
      FakePool& pool = make(t, bytes, limit);
      EXPECT_EQ(pool.limit(), limit);
      for (int round = 0; round < 3; ++round) expect_the_rest_for(t, pool, limit, 0);
      std::vector<void*> all = take_all(pool, t);
      for (int i = 0; i < 20; ++i) {
        give(pool, t, all.back());
        all.back() = take(pool, t);
        EXPECT_EQ(try_take(pool, t), nullptr);
      }
      EXPECT_EQ(end(pool, t), limit);
    }
}

TEST_ALL_CONFIGS(PoolLimitTest, WhatAnotherLaneHasCutAndDoesNotUseWillDo) {
  Slot &a = thread(), &b = thread();
  FakePool& pool = make(a, 100, 3000);
  std::vector<void*> all = take_all(pool, a);
  give_all(pool, a, all);
  expect_the_rest_for(b, pool, 3000, 0);
  expect_the_rest_for(a, pool, 3000, 0);
}

TEST_ALL_CONFIGS(PoolLimitTest, WhatWasFreedElsewhereWillDo) {
  Slot &a = thread(), &b = thread(), &c = thread();
  FakePool& pool = make(a, 100, 3000);
  std::vector<void*> all = take_all(pool, a);
  give_all(pool, b, all);  // on their way
  expect_the_rest_for(c, pool, 3000, 0);
  all = take_all(pool, c);
  for (size_t i = 0; i < all.size(); ++i) give(pool, i % 3 == 0 ? a : i % 3 == 1 ? b : c, all[i]);
  expect_the_rest_for(b, pool, 3000, 0);
}

TEST_ALL_CONFIGS(PoolLimitTest, FewFreeObjectsOfFullSlabsWillDo) {
  Slot &a = thread(), &b = thread();
  FakePool& pool = make(a, 64, 5000);
  std::vector<void*> all = take_all(pool, a);
  ASSERT_EQ(all.size(), 5000u);
  for (size_t i = 0; i < all.size(); i += 500) give(pool, a, all[i]);
  EXPECT_EQ(take_all(pool, b).size(), 10u);
}

// A lane comes upon several slabs that have nothing free and may not be cut further.
TEST_ALL_CONFIGS(PoolLimitTest, SlabsThatMayNotBeCutFurtherAreNoHindrance) {
  std::vector<Slot*> threads;
  for (int i = 0; i < 6; ++i) threads.push_back(&thread());
  FakePool& pool = make(*threads[0], 64, 600);
  std::vector<void*> all;
  for (Slot* t : threads)
    for (int i = 0; i < 100; ++i)
      if (void* p = try_take(pool, *t)) all.push_back(p);
  Random random(5);
  for (int round = 0; round < 2000; ++round) {
    Slot& t = *threads[random.below(threads.size())];
    if (random.one_in(2)) {
      if (void* p = try_take(pool, t)) all.push_back(p);
    } else if (!all.empty()) {
      std::swap(all[random.below(all.size())], all.back());
      give(pool, t, all.back());
      all.pop_back();
    }
    ASSERT_LE(cut(pool), 600u);
    ASSERT_LE(all.size(), 600u);
    if (round % 100 == 0) engine().check_invariants();
  }
  for (Slot* t : threads) expect_the_rest_for(*t, pool, 600, all.size());
}

TEST_ALL_CONFIGS(PoolLimitTest, WhatExitedThreadsHaveLeftWillDo) {
  Slot &a = thread(), &b = thread();
  FakePool& pool = make(a, 100, 500);
  Slot& gone = thread();
  std::vector<void*> all = take_all(pool, gone);
  for (size_t i = 0; i < 200; ++i) give(pool, gone, all[i]);
  for (size_t i = 200; i < 400; ++i) give(pool, a, all[i]);
  engine().exits().thread_exits(gone);
  expect_the_rest_for(b, pool, 500, 100);
  Slot& adopter = thread();
  expect_the_rest_for(adopter, pool, 500, 100);
}

TEST_ALL_CONFIGS(PoolLimitTest, WhatAHandlerHasFreedWillDo) {
  Slot &a = thread(), &b = thread();
  FakePool& pool = make(a, 100, 500);
  std::vector<void*> all = take_all(pool, a);
  in_handler(a, [&] {
    EXPECT_EQ(try_take(pool, a), nullptr);
    give_all(pool, a, all);
    EXPECT_NE(all[0] = try_take(pool, a), nullptr);
  });
  expect_the_rest_for(b, pool, 500, 1);
}

TEST_ALL_CONFIGS(PoolLimitTest, LimitsOfPoolsWithFunctionsCountTheSame) {
  Slot &a = thread(), &b = thread();
  PoolCalls calls;
  FakePool& pool = make(a, 100, 777, 7, calls.all());
  std::vector<void*> all = take_all(pool, a);
  EXPECT_EQ(all.size(), 770u);
  for (size_t i = 0; i < all.size(); ++i) give(pool, i % 2 == 0 ? a : b, all[i]);
  EXPECT_EQ(take_all(pool, b).size(), 770u);
  EXPECT_EQ(calls.inits, 777);
  EXPECT_EQ(calls.finis, 0);
}

TEST_ALL_CONFIGS(PoolLimitTest, ALimitComesAndGoesWhilePoolsAreInUse) {
  Slot &a = thread(), &b = thread();
  FakePool& pool = make(a, 100, 0, 3);
  EXPECT_FALSE(pool.set_limit(2, a)) << "below the reserve";
  EXPECT_FALSE(pool.set_limit(Budget::kNone / 50, a));
  EXPECT_EQ(pool.limit(), 0u);
  std::vector<void*> all = take_many(pool, a, 1000);
  ASSERT_TRUE(pool.set_limit(500, a));
  EXPECT_EQ(pool.limit(), 500u);
  const uint64_t before = cut(pool);
  take_all(pool, b);
  EXPECT_EQ(cut(pool), before) << "one below what there are holds for what comes";
  give_all(pool, b, all);
  reclaim(pool, b);
  EXPECT_LE(cut(pool), before);
  ASSERT_TRUE(pool.set_limit(0, b));
  EXPECT_EQ(pool.limit(), 0u);
  take_many(pool, a, 2000);
}

TEST_ALL_CONFIGS(PoolLimitTest, HitsServeAPoolOnlyWithoutFunctionsLimitAndReserve) {
  Slot& t = thread();
  PoolCalls calls;
  EXPECT_TRUE(make(t, 32).is_hit());
  EXPECT_FALSE(make(t, 32, 100).is_hit());
  EXPECT_FALSE(make(t, 32, 0, 5).is_hit());
  EXPECT_FALSE(make(t, 32, 0, 0, calls.uses_only()).is_hit());
  EXPECT_FALSE(make(t, 32, 0, 0, calls.memory_only()).is_hit());
  FakePool& pool = make(t, 32, 100);
  ASSERT_TRUE(pool.set_limit(0, t));
  EXPECT_TRUE(pool.is_hit());
  ASSERT_TRUE(pool.set_limit(9, t));
  EXPECT_FALSE(pool.is_hit());
  begin_checked();
  EXPECT_FALSE(make(thread(), 32).is_hit());
}

// These ways are out of line and serve at a limit too, for a lane's owner and by CPU.
TEST_ALL_CONFIGS(PoolLimitTest, TheQuickWaysServeOwnersAndCpus) {
  Slot& t = thread();
  for (uint64_t limit : {0, 100}) {
    FakePool& pool = make(t, 32, limit);
    void* p = take(pool, t);
    give(pool, t, p);
    Gate* const gate = t.load();
    if (config().entry == Entry::kShared && !config().single) {
      EXPECT_EQ(pool.allocate_from_bin(t), nullptr);
      EXPECT_FALSE(pool.free_to_batch(take(pool, t), t));
      EXPECT_EQ(t.load(), gate);
      continue;
    }
    EXPECT_EQ(pool.allocate_from_bin(t), p);
    EXPECT_TRUE(pool.free_to_batch(p, t));
    EXPECT_EQ(pool.allocate_from_bin(t), p);
    int elsewhere;
    EXPECT_FALSE(pool.free_to_batch(&elsewhere, t));
    if (config().entry == Entry::kPerCpu && !config().single) {
      Fake::interrupt_next = 1;
      EXPECT_FALSE(pool.free_to_batch(p, t));
      Fake::interrupt_next = 1;
      EXPECT_EQ(pool.allocate_from_bin(t), nullptr);
      const uint32_t here = Fake::number;
      Fake::number = here + 1;  // the thread has been moved
      EXPECT_FALSE(pool.free_to_batch(p, t));
      EXPECT_EQ(pool.allocate_from_bin(t), nullptr);
      Fake::number = here;
    }
    EXPECT_EQ(t.load(), gate);
    give(pool, t, p);
    EXPECT_EQ(live(pool, t), 0u);
    EXPECT_EQ(end(pool, t), 0u);
    EXPECT_EQ(pool.allocate_from_bin(t), nullptr);
    EXPECT_FALSE(pool.free_to_batch(p, t));
  }
  PoolCalls calls;
  FakePool& pool = make(t, 32, 0, 0, calls.memory_only());
  give(pool, t, take(pool, t));
  EXPECT_EQ(pool.allocate_from_bin(t), nullptr);
}

// The object may lie in any slab of the lane, but only of the same pool.
TEST_ALL_CONFIGS(PoolLimitTest, TheQuickFreeServesEverySlabOfTheLaneAndThePool) {
  if (config().entry == Entry::kShared && !config().single) return;
  Slot &t = thread(), &elsewhere = thread();
  for (uint64_t limit : {0, 100}) {
    FakePool &pool = make(t, 16384, limit), &other = make(t, 16384, limit);
    std::vector<void*> all = take_many(pool, t, 20), others = take_many(other, t, 20);
    for (void* p : others) EXPECT_FALSE(pool.free_to_batch(p, t)) << "another pool's";
    EXPECT_EQ(live(pool, t), 20u);
    if (config().entry == Entry::kOwned && !config().single) {
      take(pool, elsewhere);
      EXPECT_FALSE(pool.free_to_batch(all[0], elsewhere)) << "another lane's";
      EXPECT_EQ(live(pool, t), 21u);
    }
    Fake::number = cpu_of(t);
    const Gate* gate = t.load();
    for (void* p : all) {
      EXPECT_TRUE(pool.free_to_batch(p, t));
      EXPECT_EQ(t.load(), gate);
    }
    give_all(other, t, others);
    engine().check_invariants();
    EXPECT_EQ(live(other, t), 0u);
  }
}

// If the batch for an owner has room, the object goes there at once.
TEST_OWNED(PoolLimitTest, AFreeElsewhereGoesIntoTheBatchThatIsThere) {
  Slot &a = thread(), &b = thread();
  FakePool &pool = make(a, 100), &other = make(a, 100);
  std::vector<void*> all = take_many(pool, a, 40), others = take_many(other, a, 2);
  EXPECT_FALSE(pool.free_in_short_stay(all[0], b)) << "no lane";
  take(pool, b);
  const Gate* gate = b.load();
  EXPECT_FALSE(pool.free_in_short_stay(all[0], b)) << "no batch";
  EXPECT_EQ(b.load(), gate);
  give(pool, b, all[0]);
  for (int i = 1; i < 32; ++i) EXPECT_TRUE(pool.free_in_short_stay(all[static_cast<size_t>(i)], b));
  EXPECT_FALSE(pool.free_in_short_stay(all[32], b)) << "it is full";
  give(pool, b, all[32]);
  EXPECT_TRUE(pool.free_in_short_stay(all[33], b));
  EXPECT_FALSE(other.free_in_short_stay(all[34], b)) << "another pool's";
  EXPECT_FALSE(other.free_in_short_stay(others[0], b)) << "a lane that has no bin of it";
  int stray;
  EXPECT_FALSE(pool.free_in_short_stay(&stray, b));
  EXPECT_FALSE(pool.free_in_short_stay(nullptr, b));
  EXPECT_EQ(live(pool, a), 7u);
  engine().check_invariants();
}

// --- Budgets.

TEST(BudgetTest, TakesAsManyAsEveryLimitAllows) {
  Budget all, one, two;
  all.start(nullptr, 1000, Budget::kNone);
  one.start(&all, 600, Budget::kNone);
  two.start(&all, Budget::kNone, 300);
  EXPECT_EQ(one.take(7, 50), 50u);
  EXPECT_EQ(one.take(7, 50), 35u);
  EXPECT_EQ(one.used(), 595u);
  EXPECT_FALSE(one.may_take(7));
  EXPECT_TRUE(one.may_take(5));
  EXPECT_EQ(two.take(100, 2), 2u);
  EXPECT_FALSE(two.take_passed());
  EXPECT_EQ(two.take(100, 50), 2u);
  EXPECT_TRUE(two.take_passed());
  EXPECT_FALSE(two.take_passed());
  EXPECT_EQ(all.used(), 995u);
  EXPECT_EQ(two.take(6, 1), 0u);
  EXPECT_EQ(two.used(), 400u) << "a refused step leaves nothing behind";
  EXPECT_EQ(one.used(), 595u);
  two.give(400);
  one.give(595);
  EXPECT_EQ(all.used(), 0u);
  EXPECT_EQ(all.peak(), 995u);
  one.set_limits(0, 0);
  EXPECT_EQ(one.take(1, 1), 0u);
  EXPECT_FALSE(one.may_take(1));
}

TEST(BudgetTest, HugeLimitsDoNotWrap) {
  Budget budget;
  budget.start(nullptr, Budget::kNone, Budget::kNone);
  EXPECT_EQ(budget.take(Bytes{1} << 40, 1000), 1000u);
  budget.give((Bytes{1000} << 40) - 8);
  budget.set_limits(10, Budget::kNone);
  EXPECT_FALSE(budget.may_take(Budget::kNone - 5)) << "a sum that wraps";
  EXPECT_EQ(budget.take(1, 5), 2u);
}

}  // namespace
}  // namespace lanemalloc
