// Inbox and id stack: what a single thread can see of them. (Their interleavings: tests/model.)
#include "core/lane/inbox.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

#include "core/lane/id_stack.h"
#include "links.h"

namespace lanemalloc {
namespace {

// An atomic whose stores to one address can be held back. So a giver can stop between its two
// steps.
template <class T>
class Stoppable {
 public:
  Stoppable() = default;
  Stoppable(T value) : value_(value) {}  // NOLINT: as std::atomic
  T load(std::memory_order) const { return value_; }
  void store(T value, std::memory_order order) {
    if (stopped() && order == std::memory_order_release) {
      pending().push_back({this, value});
    } else {
      value_ = value;
    }
  }
  T exchange(T value, std::memory_order) { return std::exchange(value_, value); }

  static bool& stopped() {
    static bool flag = false;
    return flag;
  }
  struct Store {
    Stoppable* where;
    T value;
  };
  static std::vector<Store>& pending() {
    static std::vector<Store> stores;
    return stores;
  }
  static void finish(size_t which) {
    pending()[which].where->value_ = pending()[which].value;
    pending().erase(pending().begin() + static_cast<long>(which));
  }

 private:
  T value_{};
};

struct StoppableAtomics {
  template <class T>
  using atomic = Stoppable<T>;
};

class InboxTest : public testing::Test {
 protected:
  using Box = Inbox<StoppableAtomics>;
  using Batch = Box::Batch;
  using Word = Stoppable<Address>;  // `earlier`

  void SetUp() override {
    Word::stopped() = false;
    Word::pending().clear();
  }
  // The numbers of the batches that can be taken now.
  std::vector<long> take() {
    std::vector<long> got;
    EXPECT_TRUE(inbox_.take([&](Batch* b) { got.push_back(b - batches_); }, any_object));
    return got;
  }
  void give_and_stop(int i) {
    Word::stopped() = true;
    inbox_.give(&batches_[i]);
    Word::stopped() = false;
  }

  Box inbox_;
  Batch batches_[10] = {};
};

TEST_F(InboxTest, GivesBackWhatItWasGivenNewestFirstAndOnce) {
  EXPECT_TRUE(inbox_.is_empty());
  EXPECT_FALSE(inbox_.has_mail());
  EXPECT_FALSE(inbox_.give(&batches_[0]));
  EXPECT_TRUE(inbox_.give(&batches_[1]));
  EXPECT_TRUE(inbox_.give(&batches_[2]));
  EXPECT_TRUE(inbox_.has_mail());
  EXPECT_EQ(take(), (std::vector<long>{2, 1, 0}));
  EXPECT_TRUE(inbox_.is_empty());
  EXPECT_EQ(take(), std::vector<long>());
  EXPECT_FALSE(inbox_.give(&batches_[1]));
  EXPECT_EQ(take(), std::vector<long>{1});
}

TEST_F(InboxTest, ABatchMayBeGivenAgainWhileItIsVisited) {
  inbox_.give(&batches_[0]);
  inbox_.give(&batches_[1]);
  int visits = 0;
  EXPECT_TRUE(inbox_.take(
      [&](Batch* b) {
        if (++visits <= 2) inbox_.give(b);
      },
      any_object));
  EXPECT_EQ(visits, 2);
  EXPECT_EQ(take().size(), 2u);
}

TEST_F(InboxTest, AStoppedGiverHidesOnlyWhatLiesBehindItAndOnlyUntilItGoesOn) {
  inbox_.give(&batches_[0]);
  give_and_stop(1);
  inbox_.give(&batches_[2]);
  EXPECT_EQ(take(), std::vector<long>{2});
  EXPECT_FALSE(inbox_.is_empty());
  EXPECT_EQ(take(), std::vector<long>());
  inbox_.give(&batches_[3]);  // this one waits until the rest is whole
  EXPECT_EQ(take(), std::vector<long>());
  Word::finish(0);
  EXPECT_EQ(take(), (std::vector<long>{1, 0}));
  EXPECT_EQ(take(), std::vector<long>{3});
  EXPECT_TRUE(inbox_.is_empty());
}

TEST_F(InboxTest, TwoStoppedGiversLoseNothingInEitherOrder) {
  for (size_t first : {size_t{0}, size_t{1}}) {
    inbox_.give(&batches_[0]);
    give_and_stop(1);
    inbox_.give(&batches_[2]);
    give_and_stop(3);
    inbox_.give(&batches_[4]);
    std::vector<long> all = take();
    Word::finish(first);
    for (long i : take()) all.push_back(i);
    Word::finish(0);
    for (long i : take()) all.push_back(i);
    EXPECT_EQ(std::set<long>(all.begin(), all.end()).size(), 5u);
    EXPECT_EQ(all.size(), 5u);
    EXPECT_TRUE(inbox_.is_empty());
  }
}

TEST_F(InboxTest, InAForkChildWhereNoGiverIsLeftWhatCanBeReachedIsTaken) {
  inbox_.give(&batches_[0]);
  give_and_stop(1);
  inbox_.give(&batches_[2]);
  EXPECT_EQ(take(), std::vector<long>{2});  // the rest begins with a batch that is not linked
  inbox_.give(&batches_[3]);
  give_and_stop(4);
  inbox_.give(&batches_[5]);
  inbox_.forget_givers(any_object);
  std::vector<long> all = take();
  for (long i : take()) all.push_back(i);
  EXPECT_EQ(all, (std::vector<long>{1, 5, 4}));
  EXPECT_TRUE(inbox_.is_empty());
}

// --- Id stack.

class IdStackTest : public testing::Test {
 protected:
  void push(uint32_t id) {
    stack_.push(id, [this](uint32_t n) -> auto& { return links_[n]; });
  }
  uint32_t pop() {
    return stack_.pop([this](uint32_t n) -> auto& { return links_[n]; });
  }
  IdStack<> stack_;
  IdStack<>::Link links_[64] = {};
};

TEST_F(IdStackTest, LastInIsFirstOut) {
  EXPECT_EQ(pop(), IdStack<>::kNone);
  for (uint32_t i : {3u, 1u, 2u}) push(i);
  EXPECT_EQ(pop(), 2u);
  push(5);
  EXPECT_EQ(pop(), 5u);
  EXPECT_EQ(pop(), 1u);
  EXPECT_EQ(pop(), 3u);
  EXPECT_EQ(pop(), IdStack<>::kNone);
  EXPECT_EQ(stack_.tries().failures, 0u);
}

TEST_F(IdStackTest, NobodyIsPoppedTwiceWhenThreadsCompete) {
  for (uint32_t i = 1; i < 64; ++i) push(i);
  std::atomic<int> owners[64] = {};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 3000; ++i) {
        const uint32_t id = pop();
        if (id == IdStack<>::kNone) continue;
        EXPECT_EQ(owners[id].fetch_add(1), 0);
        owners[id].fetch_sub(1);
        push(id);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  std::set<uint32_t> rest;
  for (uint32_t id = pop(); id != IdStack<>::kNone; id = pop()) rest.insert(id);
  EXPECT_EQ(rest.size(), 63u);
}

}  // namespace
}  // namespace lanemalloc
