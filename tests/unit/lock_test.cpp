// Lock: try, wait, holder, counts; plain stores while the process has one thread.
#include "base/lock.h"

#include <atomic>
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
  EXPECT_NE(mine_.ranks_held, 0);
  lock_.release(mine_);
  EXPECT_FALSE(lock_.is_held());
  EXPECT_EQ(lock_.holder(), nullptr);
  EXPECT_EQ(mine_.ranks_held, 0);
}

TEST_ALL_CONFIGS(LockTest, WhoMayNotWaitOnlyTries) {
  ASSERT_TRUE(lock_.acquire(mine_));
  EXPECT_FALSE(lock_.try_acquire(other_));
  EXPECT_FALSE(lock_.acquire(handler_));
  EXPECT_EQ(lock_.holder(), &a_);
  EXPECT_EQ(handler_.ranks_held, 0);
  lock_.release(mine_);
  EXPECT_TRUE(lock_.acquire(handler_));
  lock_.release(handler_);
  EXPECT_EQ(lock_.waits(), 0u);
  EXPECT_EQ(lock_.failures(), config().single ? 0u : 2u);
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

TEST_ALL_CONFIGS(LockTest, OnlyOneThreadIsInsideAndNobodySleepsForEver) {
  start_threads();
  constexpr int kThreads = 3, kRounds = 3000;
  uint64_t counter = 0;  // plain: the lock guards it
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([this, &counter] {
      int me = 0;
      for (int n = 0; n < kRounds; ++n) {
        Visit visit(&me, true);
        EXPECT_TRUE(lock_.acquire(visit));
        EXPECT_EQ(lock_.holder(), &me);
        ++counter;
        if (n % 64 == 0) std::this_thread::yield();
        lock_.release(visit);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(counter, uint64_t{kThreads} * kRounds);
  EXPECT_FALSE(lock_.is_held());
}

TEST_ALL_CONFIGS(LockTest, AWaiterSleepsUntilTheHolderLeaves) {
  start_threads();
  ASSERT_TRUE(lock_.acquire(mine_));
  std::atomic<bool> inside{false};
  std::thread waiter([&] {
    int me = 0;
    Visit visit(&me, true);
    EXPECT_TRUE(lock_.acquire(visit));
    inside = true;
    lock_.release(visit);
  });
  while (lock_.waits() == 0) std::this_thread::yield();
  EXPECT_FALSE(inside);
  lock_.release(mine_);
  waiter.join();
  EXPECT_TRUE(inside);
  EXPECT_EQ(lock_.waits(), 1u);
}

}  // namespace
}  // namespace lanemalloc
