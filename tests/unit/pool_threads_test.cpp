// Pools under real threads: which threads wait at the limit, in which order, and that no thread
// waits for an object that is free; handlers and forks in the middle; storms. The platform is the
// fake one, with lanes of every entry.
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "pools.h"

namespace lanemalloc {
namespace {

class PoolThreadsTest : public PoolTest {
 protected:
  void SetUp() override {
    PoolTest::SetUp();
    start_threads();
    begin({});
    make_lanes();
  }

  // A thread that waits for an object, and keeps it until the test asks for it.
  struct Waiter {
    Slot slot{&no_lane_gate};
    std::atomic<void*> object{nullptr};
    std::atomic<bool> is_done{false};
    std::thread thread;
  };
  Waiter& start_waiter(FakePool& pool, uint32_t number, uint32_t flags = kWait) {
    Waiter& w = waiters_.emplace_back();
    const uint64_t waits = pool.counters().waits;
    w.thread = std::thread([this, &pool, &w, number, flags] {
      Fake::number = number;
      w.object = pool.allocate(flags, w.slot);
      w.is_done = true;
      engine().exits().thread_exits(w.slot);
    });
    // Now the thread stands in the line, or has what it wants.
    while (pool.counters().waits == waits && !w.is_done) std::this_thread::yield();
    return w;
  }
  static void join(Waiter& w) {
    w.thread.join();
    EXPECT_NE(w.object.load(), nullptr);
  }
  // True if w is served within a number of short sleeps.
  static bool is_served_soon(const Waiter& w) {
    for (int i = 0; i < 20000 && !w.is_done; ++i)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    return w.is_done;
  }

  std::deque<Waiter> waiters_;
};

TEST_ALL_CONFIGS(PoolThreadsTest, WhoWaitsIsServedByTheNextFreeFirstComeFirstServed) {
  start_threads();
  Slot& a = thread();
  PoolCalls calls;
  for (const PoolFunctions& functions : {PoolFunctions{}, calls.all()}) {
    FakePool& pool = make(a, 100, 10, 2, functions);
    std::vector<void*> all = take_all(pool, a);
    ASSERT_EQ(all.size(), 8u);
    std::vector<Waiter*> line;
    for (uint32_t i = 0; i < 5; ++i) line.push_back(&start_waiter(pool, i % 2));
    EXPECT_EQ(pool.counters().waits, 5u);
    EXPECT_EQ(try_take(pool, a), nullptr) << "null without the flag";
    for (size_t i = 0; i < line.size(); ++i) {
      for (size_t j = i; j < line.size(); ++j) EXPECT_FALSE(line[j]->is_done);
      give(pool, a, all[i]);
      join(*line[i]);
    }
    EXPECT_GT(pool.counters().waited_ns, 0u);
    for (Waiter* w : line) give(pool, a, w->object);
    for (size_t i = line.size(); i < all.size(); ++i) give(pool, a, all[i]);
    EXPECT_EQ(live(pool, a), 0u);
    EXPECT_EQ(end(pool, a), 0u);
  }
  EXPECT_EQ(calls.ctors, calls.dtors);
  EXPECT_EQ(calls.inits, calls.finis);
}

TEST_ALL_CONFIGS(PoolThreadsTest, NobodyWaitsForWhatIsFreeInAnyLane) {
  start_threads();
  Slot &a = thread(), &b = thread();
  FakePool& pool = make(a, 100, 100);
  std::vector<void*> all = take_all(pool, a);
  give(pool, b, all[0]);  // on its way
  give(pool, a, all[1]);
  for (uint32_t i = 0; i < 2; ++i) {
    Waiter& w = start_waiter(pool, i);
    join(w);
  }
  EXPECT_EQ(pool.counters().waits, 0u);
}

TEST_ALL_CONFIGS(PoolThreadsTest, RoomThatReclaimAndHigherLimitsMakeServesThoseWhoWait) {
  start_threads();
  Slot& a = thread();
  FakePool& pool = make(a, 100, 4);
  std::vector<void*> all = take_all(pool, a);
  Waiter& first = start_waiter(pool, 0);
  Waiter& second = start_waiter(pool, 1);
  ASSERT_TRUE(pool.set_limit(5, a));
  join(first);
  EXPECT_FALSE(second.is_done);
  ASSERT_TRUE(pool.set_limit(0, a));
  join(second);
}

TEST_ALL_CONFIGS(PoolThreadsTest, TheReserveComesBeforeThoseWhoWait) {
  start_threads();
  Slot& a = thread();
  FakePool& pool = make(a, 100, 4, 1);
  std::vector<void*> all = take_all(pool, a);
  ASSERT_EQ(all.size(), 3u);
  all.push_back(take(pool, a, kUseReserve));
  Waiter& w = start_waiter(pool, 0);
  give(pool, a, all[0]);
  EXPECT_EQ(pool.reserved(), 1u);
  EXPECT_FALSE(w.is_done);
  Waiter& urgent = start_waiter(pool, 1, kWait | kUseReserve);
  join(urgent);
  give(pool, a, all[1]);
  give(pool, a, all[2]);
  join(w);
  EXPECT_EQ(pool.reserved(), 1u);
}

TEST_ALL_CONFIGS(PoolThreadsTest, WhereInitFailsWhoWaitsIsTold) {
  start_threads();
  Slot& a = thread();
  PoolCalls calls;
  FakePool& pool = make(a, 100, 4, 0, calls.all());
  std::vector<void*> all = take_many(pool, a, 3);
  calls.inits_until_failure = 0;
  Waiter& first = start_waiter(pool, 0);
  first.thread.join();
  EXPECT_EQ(first.object.load(), nullptr);
  all.push_back(nullptr);
  calls.inits_until_failure = 1 << 30;
  all[3] = take(pool, a);
  Waiter& second = start_waiter(pool, 1);
  calls.ctors_until_failure = 0;
  give(pool, a, all[0]);
  second.thread.join();
  EXPECT_EQ(second.object.load(), nullptr) << "ctor";
}

// A handler that frees while its thread holds the line's lock finds it taken, and leaves word.
TEST_ALL_CONFIGS(PoolThreadsTest, WhatAHandlerFreesWhileItsThreadServesServesTheNext) {
  start_threads();
  Slot& a = thread();
  PoolCalls calls;
  for (const PoolFunctions& functions : {PoolFunctions{}, calls.memory_only()}) {
    FakePool& pool = make(a, 100, 10, 0, functions);
    std::vector<void*> all = take_all(pool, a);
    Waiter& first = start_waiter(pool, 0);
    Waiter& second = start_waiter(pool, 1);
    Fake::on_wake = [&] {
      EXPECT_TRUE(is_busy(a.load()));
      EXPECT_EQ(pool.free(all[1], a), Verdict::kGood);
    };
    give(pool, a, all[0]);
    join(first);
    EXPECT_TRUE(is_served_soon(second));
    join(second);
  }
}

TEST_ALL_CONFIGS(PoolThreadsTest, WithoutABarrierLimitsHoldAndThoseWhoWaitAreServed) {
  Fake::has_barrier = false;
  begin_with([] {
    Settings settings;
    settings.entry = config().entry == Entry::kPerCpu ? Entry::kShared : config().entry;
    settings.shared_lanes = kSharedLanes;
    return settings;
  }());
  start_threads();
  Slot &a = thread(), &b = thread();
  give(a, take(a, 64));
  FakePool& pool = make(a, 100, 50);
  EXPECT_FALSE(world().can_revoke);
  std::vector<void*> all = take_all(pool, a);
  EXPECT_EQ(all.size(), 50u);
  give_all(pool, b, all);
  all = take_all(pool, b);
  EXPECT_EQ(all.size(), 50u);
  Waiter& w = start_waiter(pool, 0);
  give(pool, a, all[0]);
  EXPECT_TRUE(is_served_soon(w));
  join(w);
  all[0] = w.object;
  give_all(pool, a, all);
  EXPECT_EQ(end(pool, a), 0u);
}

// --- Fork.

class PoolForkTest : public PoolThreadsTest {
 protected:
  // Runs `child` in a child process that `t` forks. True if `child` returned true.
  bool in_child(Slot& t, const std::function<bool()>& child) {
    engine().fork().before(t);
    const pid_t pid = fork();
    if (pid == 0) {
      engine().fork().after_in_child(t);
      _exit(child() && !HasFailure() ? 0 : 1);
    }
    engine().fork().after_in_parent();
    int status = -1;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
};

TEST_ALL_CONFIGS(PoolForkTest, ThoseWhoWaitAreNotInTheChild) {
  Slot& a = thread();
  FakePool& pool = make(a, 100, 6, 2);
  std::vector<void*> all = take_all(pool, a);
  Waiter& w = start_waiter(pool, 0);
  while (Fake::sleepers == 0)
    std::this_thread::yield();  // before, it is in lanes, which the child would have to salvage
  EXPECT_TRUE(in_child(a, [&] {
    give(pool, a, all[0]);
    void* p = try_take(pool, a);
    const bool own = p != nullptr && try_take(pool, a) == nullptr;
    give(pool, a, p);
    p = try_take(pool, a, kUseReserve);
    return own && p != nullptr && take_all(pool, a).empty() && pool.reserved() == 2 && !w.is_done;
  }));
  EXPECT_TRUE(in_child(a, [&] { return end(pool, a) == 4; }));
  give(pool, a, all[0]);
  join(w);
}

// The thread goes on in the child where it was, and then sees that the waiters are gone.
TEST_ALL_CONFIGS(PoolForkTest, AHandlerMayForkWhileItsThreadServes) {
  Slot& a = thread();
  FakePool& pool = make(a, 100, 4, 1);
  std::vector<void*> all = take_all(pool, a);
  Waiter& first = start_waiter(pool, 0);
  Waiter& second = start_waiter(pool, 1);
  pid_t pid = -1;
  Fake::on_wake = [&] {
    engine().fork().before(a);
    pid = fork();
    if (pid == 0) return engine().fork().after_in_child(a);
    engine().fork().after_in_parent();
  };
  give(pool, a, all[0]);
  if (pid == 0) {
    // The first waiter got its object, for what that is worth. The second one is not there.
    give(pool, a, all[1]);
    const bool good = take_all(pool, a).size() == 1 && pool.reserved() == 1 && live(pool, a) == 3;
    _exit(good && !HasFailure() ? 0 : 1);
  }
  int status = -1;
  waitpid(pid, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  join(first);
  EXPECT_FALSE(second.is_done);
  give(pool, a, all[1]);
  join(second);
}

TEST_ALL_CONFIGS(PoolForkTest,
                 WhatLanesHoldWhoseThreadsAreNotInTheChildCanBeHadAndNothingIsHandedOutTwice) {
  Slot &a = thread(), &busy = thread();
  FakePool& pool = make(a, 100, 500);
  std::vector<void*> all = take_many(pool, busy, 100);
  for (void* p : take_many(pool, a, 50)) all.push_back(p);
  Fake::number = cpu_of(busy);
  Stopped inside(busy);
  Fake::number = cpu_of(a);
  EXPECT_TRUE(in_child(a, [&] {
    std::vector<void*> more = take_all(pool, a);
    if (more.size() != 500 - all.size()) return false;
    for (void* p : all) give(pool, a, p);
    const std::vector<void*> again = take_all(pool, a);
    // What was freed comes back, wherever its slab is.
    if (again.size() != all.size()) return false;
    more.insert(more.end(), again.begin(), again.end());
    std::set<void*> unlike(more.begin(), more.end());
    engine().check_invariants();
    bool lost = false;
    pool.end(a, lost);
    return unlike.size() == 500 && cut(pool) <= 500 && !lost && !pool.is_live();
  }));
  inside.leave();
  for (void* p : all) give(pool, a, p);
}

// --- Storms.

TEST_ALL_CONFIGS(PoolThreadsTest, AtALimitWithWaitersAllComeThroughAndNothingIsExceeded) {
  start_threads();
  Slot& a = thread();
  PoolCalls calls;
  FakePool& pool = make(a, 100, 5, 1, calls.all());
  std::atomic<int> in_use{0}, most{0};
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 6; ++i)
    threads.emplace_back([&, i] {
      Slot slot{&no_lane_gate};
      Fake::number = i % Fake::cpu_count;
      for (int n = 0; n < 1500 / kShorter; ++n) {
        void* p = pool.allocate(n % 7 == 3 ? kUseReserve : n % 7 == 5 ? 0 : kWait, slot);
        if (p == nullptr) {
          EXPECT_TRUE(n % 7 == 3 || n % 7 == 5);
          continue;
        }
        const int now = in_use.fetch_add(1) + 1;
        for (int before = most; before < now && !most.compare_exchange_weak(before, now);) {
        }
        if (n % 50 == 0) std::this_thread::yield();
        in_use.fetch_sub(1);
        EXPECT_EQ(pool.free(p, slot), Verdict::kGood);
      }
      engine().exits().thread_exits(slot);
    });
  for (std::thread& t : threads) t.join();
  EXPECT_LE(most, 5);
  EXPECT_EQ(live(pool, a), 0u);
  EXPECT_LE(cut(pool), 5u);
  EXPECT_LE(calls.inits, 5);
  EXPECT_EQ(calls.ctors, calls.dtors);
  EXPECT_EQ(pool.reserved(), 1u);
  EXPECT_EQ(end(pool, a), 0u);
}

TEST_ALL_CONFIGS(PoolThreadsTest, ObjectsHandedFromThreadToThreadAddUp) {
  start_threads();
  Slot& a = thread();
  FakePool &plain = make(a, 40), &limited = make(a, 40, 3000);
  constexpr int kThreads = 4;
  std::atomic<void*> hands[64]{};
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      Slot slot{&no_lane_gate};
      Fake::number = i % Fake::cpu_count;
      Random random(i);
      for (int n = 0; n < 30000 / kShorter; ++n) {
        FakePool& pool = n % 2 == 0 ? plain : limited;
        void* p = pool.allocate(0, slot);
        ASSERT_NE(p, nullptr);
        memset(p, static_cast<int>(i), 40);
        p = hands[random.below(32) * 2 + static_cast<size_t>(n % 2)].exchange(p);
        if (p != nullptr) {
          EXPECT_EQ(pool.free(p, slot), Verdict::kGood);
        }
        if (n % 5000 == 4999) pool.reclaim(Reclaim::kDrain, slot);
      }
      engine().exits().thread_exits(slot);
    });
  for (std::thread& t : threads) t.join();
  uint64_t left[2] = {0, 0};
  for (size_t i = 0; i < 64; ++i) left[i % 2] += hands[i] != nullptr;
  EXPECT_EQ(live(plain, a), left[0]);
  EXPECT_EQ(live(limited, a), left[1]);
  engine().check_invariants();
  for (size_t i = 0; i < 64; ++i)
    if (hands[i] != nullptr) give(i % 2 == 0 ? plain : limited, a, hands[i]);
  EXPECT_EQ(end(plain, a), 0u);
  EXPECT_EQ(end(limited, a), 0u);
}

}  // namespace
}  // namespace lanemalloc
