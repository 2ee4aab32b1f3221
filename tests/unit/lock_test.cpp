// Lock: try, wait, holder, counts; plain stores while the process has one thread.
#include "core/base/lock.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "fixture.h"

namespace lanemalloc {
namespace {

class LockTest : public FakeTest {
 protected:
  Lock<Fake> lock_{Rank::kRuns};
  int a_ = 0, b_ = 0;
  Visit mine_{&a_, true};
  Visit handler_{&a_, false};
  Visit other_{&b_, true};
};

TEST_ALL_CONFIGS(LockTest, KnowsItsHolder) {
  EXPECT_FALSE(lock_.is_held());
  EXPECT_EQ(lock_.holder(), nullptr);
  ASSERT_TRUE(lock_.acquire(mine_));
  EXPECT_TRUE(lock_.is_held());
  EXPECT_EQ(lock_.holder(), &a_);
  EXPECT_NE(mine_.locks_held, 0);
  lock_.release(mine_);
  EXPECT_FALSE(lock_.is_held());
  EXPECT_EQ(lock_.holder(), nullptr);
  EXPECT_EQ(mine_.locks_held, 0);
}

TEST_ALL_CONFIGS(LockTest, WhoMayNotWaitOnlyTries) {
  ASSERT_TRUE(lock_.acquire(mine_));
  EXPECT_FALSE(lock_.try_acquire(other_));
  EXPECT_FALSE(lock_.acquire(handler_));
  EXPECT_EQ(lock_.holder(), &a_);
  EXPECT_EQ(handler_.locks_held, 0);
  lock_.release(mine_);
  EXPECT_TRUE(lock_.acquire(handler_));
  lock_.release(handler_);
  EXPECT_EQ(lock_.contention().waits, 0u);
  EXPECT_EQ(lock_.contention().failures, config().single ? 0u : 2u);
}

TEST_ALL_CONFIGS(LockTest, CountsWhatAVisitHoldsAndNeverWaitsForIt) {
  Lock<Fake> one{Rank::kLane}, two{Rank::kLane}, three{Rank::kLane};
  for (Lock<Fake>* lock : {&one, &two, &three}) ASSERT_TRUE(lock->try_acquire(mine_));
  two.release(mine_);
  three.release(mine_);
  EXPECT_TRUE(mine_.holds_from(Rank::kLane));
  EXPECT_FALSE(mine_.holds_from(Rank::kDepot));
  EXPECT_FALSE(one.acquire(mine_));
  ASSERT_TRUE(two.try_acquire(other_));
  EXPECT_FALSE(two.acquire(mine_));  // the holder of `two` might wait for `one`
  two.release(other_);
  one.release(mine_);
  EXPECT_FALSE(mine_.holds_from(Rank::kLane));
}

TEST_ALL_CONFIGS(LockTest, NobodyWaitsForAFork) {
  start_threads();
  lock_.close(mine_);
  EXPECT_FALSE(lock_.is_held());
  EXPECT_FALSE(lock_.acquire(other_));
  EXPECT_FALSE(lock_.acquire(handler_));
  EXPECT_EQ(lock_.contention().waits, 0u);
  lock_.close(other_);
  lock_.open();
  EXPECT_FALSE(lock_.acquire(other_));
  lock_.open();
  EXPECT_TRUE(lock_.acquire(other_));
  lock_.open();  // ends a fork that this process knows nothing of
  EXPECT_TRUE(lock_.is_held());
  lock_.release(other_);
  EXPECT_TRUE(lock_.acquire(mine_));
  lock_.release(mine_);
}

TEST_ALL_CONFIGS(LockTest, PatienceWithAForkIsSpentOnce) {
  start_threads();
  static int slept;
  Fake::on_sleep = [] { ++slept; };
  for (int fork = 0; fork < 2; ++fork) {
    lock_.close(mine_);
    for (int visits = 0; visits < 3; ++visits) {
      slept = 0;
      other_.insists = Visit::kPatience;
      EXPECT_TRUE(lock_.acquire(other_));
      EXPECT_EQ(slept, visits == 0 ? Visit::kPatience - 1 : 0);
      lock_.release(other_);
    }
    lock_.open();
  }
  // If a fork is over in time, no thread takes anything from it: a thread that waited has the lock
  // like any other.
  lock_.close(mine_);
  slept = 0;
  static Lock<Fake>* opens;
  opens = &lock_;
  Fake::on_sleep = [] {
    if (++slept == 5) opens->open();
  };
  other_.insists = Visit::kPatience;
  EXPECT_TRUE(lock_.acquire(other_));
  EXPECT_EQ(slept, 5);
  lock_.release(other_);
  Fake::on_sleep = nullptr;
}

TEST_ALL_CONFIGS(LockTest, AChildKnowsWhetherAnotherThreadWasInside) {
  start_threads();
  lock_.close(mine_);
  EXPECT_TRUE(lock_.open_in_child(&a_));
  EXPECT_FALSE(lock_.is_closed());
  lock_.close(mine_);
  other_.insists = 1;
  EXPECT_TRUE(lock_.acquire(other_));
  EXPECT_FALSE(lock_.open_in_child(&a_));
  EXPECT_FALSE(lock_.is_held());
  ASSERT_TRUE(lock_.acquire(mine_));
  lock_.close(handler_);  // a fork in a handler, further up the holder's stack
  EXPECT_TRUE(lock_.open_in_child(&a_));
  EXPECT_EQ(lock_.holder(), &a_);
  lock_.release(mine_);
  EXPECT_FALSE(lock_.is_held());
}

TEST_ALL_CONFIGS(LockTest, WhatATornThreadHasHeldItGivesBack) {
  for (Rank rank : {Rank::kLane, Rank::kRuns}) {
    Lock<Fake> lock{rank};
    Visit torn(&a_, true);
    ASSERT_TRUE(lock.acquire(torn));
    EXPECT_EQ(lock.holder(), &a_);  // from the instruction that takes the lock: it is one word
    EXPECT_FALSE(lock.take_over(other_));
    Visit later(&a_, false);
    ASSERT_TRUE(lock.take_over(later));
    lock.release(later);
    EXPECT_EQ(later.locks_held, 0);
    EXPECT_FALSE(lock.is_held());
    EXPECT_FALSE(lock.take_over(later));
  }
}

TEST_ALL_CONFIGS(LockTest, ALockTakenWithOneThreadIsGivenBackWithMany) {
  ASSERT_TRUE(lock_.acquire(mine_));
  start_threads();
  EXPECT_FALSE(lock_.try_acquire(other_));
  lock_.release(mine_);
  EXPECT_TRUE(lock_.try_acquire(other_));
  lock_.release(other_);
}

TEST_ALL_CONFIGS(LockTest, AChildForgetsAHolderThatIsGone) {
  ASSERT_TRUE(lock_.acquire(other_));
  lock_.forget_holder();
  EXPECT_FALSE(lock_.is_held());
  EXPECT_TRUE(lock_.try_acquire(mine_));
  lock_.release(mine_);
}

// A lane's lock is given back in another way than the rest. If there is no barrier, threads wait
// for it in a third way.
class LockWaitTest : public LockTest {
 protected:
  void SetUp() override {
    LockTest::SetUp();
    start_threads();
  }
  void expect_only_one_is_inside(Lock<Fake>& lock) {
    constexpr int kThreads = 3, kRounds = 2000;
    Fake::ns = 1;          // no holder is late, however busy the machine is
    uint64_t counter = 0;  // plain: the lock guards it
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        int me = 0;
        for (int n = 0; n < kRounds; ++n) {
          Visit visit(&me, true);
          EXPECT_TRUE(lock.acquire(visit));
          EXPECT_EQ(lock.holder(), &me);
          ++counter;
          if (n % 64 == 0) std::this_thread::yield();
          lock.release(visit);
        }
      });
    }
    for (std::thread& t : threads) t.join();
    Fake::ns = 0;
    EXPECT_EQ(counter, uint64_t{kThreads} * kRounds);
    EXPECT_FALSE(lock.is_held());
  }
  void expect_waiters_sleep_until_the_holder_leaves(Lock<Fake>& lock) {
    for (int waiters : {1, 3}) {
      Fake::ns = 1;  // no holder is late, however busy the machine is
      ASSERT_TRUE(lock.acquire(mine_));
      const uint64_t before = lock.contention().waits;
      std::atomic<int> inside{0};
      std::vector<std::thread> threads;
      for (int i = 0; i < waiters; ++i) {
        threads.emplace_back([&] {
          int me = 0;
          Visit visit(&me, true);
          EXPECT_TRUE(lock.acquire(visit));
          ++inside;
          lock.release(visit);
        });
      }
      while (lock.contention().waits != before + static_cast<uint64_t>(waiters))
        std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));  // most of them sleep by now
      EXPECT_EQ(inside, 0);
      Fake::ns = 1000;
      lock.release(mine_);
      for (std::thread& t : threads) t.join();
      Fake::ns = 0;
      EXPECT_EQ(inside, waiters);
      EXPECT_FALSE(lock.is_held());
    }
    EXPECT_GT(lock.contention().waited_ns, 0u);
  }
  Lock<Fake> lane_{Rank::kLane};
};

TEST_ALL_CONFIGS(LockWaitTest, OnlyOneThreadIsInsideAndNobodySleepsForEver) {
  expect_only_one_is_inside(lock_);
  expect_only_one_is_inside(lane_);
}
TEST_ALL_CONFIGS(LockWaitTest, WaitersSleepUntilTheHolderLeaves) {
  expect_waiters_sleep_until_the_holder_leaves(lock_);
  expect_waiters_sleep_until_the_holder_leaves(lane_);
}
TEST_ALL_CONFIGS(LockWaitTest, AForkWaitsForTheHolderAndWhoSleepsGoesAway) {
  ASSERT_TRUE(lock_.acquire(mine_));
  std::atomic<int> gone{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&] {
      int me = 0;
      Visit visit(&me, true);
      EXPECT_FALSE(lock_.acquire(visit));
      ++gone;
    });
  while (lock_.contention().waits != 2) std::this_thread::yield();
  std::atomic<bool> closed{false};
  threads.emplace_back([&] {
    int me = 0;
    Visit visit(&me, true);
    lock_.close(visit);
    closed = true;
  });
  while (gone != 2) std::this_thread::yield();
  EXPECT_FALSE(closed);
  lock_.release(mine_);
  for (std::thread& t : threads) t.join();
  EXPECT_FALSE(lock_.acquire(mine_));
  lock_.open();
  EXPECT_TRUE(lock_.acquire(mine_));
  lock_.release(mine_);
}
TEST_ALL_CONFIGS(LockWaitTest, NobodyWaitsLongForAHolderThatDoesNotLeave) {
  for (Lock<Fake>* lock : {&lock_, &lane_}) {
    ASSERT_TRUE(lock->acquire(mine_));
    Fake::ns = 1;
    Fake::on_wait = [](const void*, uint64_t ms) {
      Fake::ns += ms * 1'000'000;
      return true;
    };
    EXPECT_FALSE(lock->acquire(other_));
    EXPECT_EQ(lock->contention().waits, 1u);
    EXPECT_FALSE(lock->acquire(other_));
    EXPECT_EQ(lock->contention().waits, 1u) << "the next one waits too";
    EXPECT_EQ(other_.locks_held, 0);
    if (lock == &lock_) {
      lock->close(other_);  // nor does a fork wait
      lock->open();
    }
    Fake::on_wait = nullptr;
    Fake::ns = 0;
    lock->release(mine_);
    ASSERT_TRUE(lock->acquire(other_));
    lock->release(other_);
    expect_waiters_sleep_until_the_holder_leaves(*lock);
  }
}
TEST_ALL_CONFIGS(LockWaitTest, WhoIsNotWokenLooksAgain) {
  for (Lock<Fake>* lock : {&lock_, &lane_}) {
    ASSERT_TRUE(lock->acquire(mine_));
    static Lock<Fake>* held;
    held = lock;
    // The holder is torn off between giving back and waking.
    Fake::on_wait = [](const void*, uint64_t) {
      held->forget_holder();
      return true;
    };
    EXPECT_TRUE(lock->acquire(other_));
    Fake::on_wait = nullptr;
    lock->release(other_);
    mine_.locks_held = 0;
  }
}
TEST_ALL_CONFIGS(LockWaitTest, AWitnessIsToldWhoWaitsAndTheLatestStacksAreKept) {
  static std::atomic<const void*> told;
  static std::atomic<const void*> stack;
  contention_witness = [](const void* who, uint64_t) -> const void* {
    return told = who, stack.load();
  };
  const int stacks[3] = {};
  // The second wait is not sampled.
  const void* const sampled[] = {&stacks[0], nullptr, &stacks[1], &stacks[2]};
  unsigned waits = 0;
  for (const void* each : sampled) {
    stack = each;
    ASSERT_TRUE(lock_.acquire(mine_));
    int me = 0;
    std::thread waiter([&] {
      Visit visit(&me, true);
      EXPECT_TRUE(lock_.acquire(visit));
      lock_.release(visit);
    });
    ++waits;
    while (lock_.contention().waits != waits) std::this_thread::yield();
    lock_.release(mine_);
    waiter.join();
    EXPECT_EQ(told, &me);
    if (waits == 2) {
      EXPECT_EQ(lock_.contention().sites[0], &stacks[0]);
      EXPECT_EQ(lock_.contention().sites[1], nullptr);
    }
  }
  EXPECT_EQ(lock_.contention().sites[0], &stacks[2]);
  EXPECT_EQ(lock_.contention().sites[1], &stacks[1]);
  contention_witness = nullptr;
}
TEST_ALL_CONFIGS(LockWaitTest, WithoutABarrierWaitersLookAgain) {
  Fake::has_barrier = false;
  expect_only_one_is_inside(lane_);
  expect_waiters_sleep_until_the_holder_leaves(lane_);
}

}  // namespace
}  // namespace lanemalloc
