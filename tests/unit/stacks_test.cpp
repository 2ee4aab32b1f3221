// Stacks: what a table of stacks keeps, and what becomes of those for which it has no room.
// (Interleavings: tests/model.)
#include "seeing/stacks.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <set>
#include <thread>

#include "fixture.h"

namespace lanemalloc {
namespace {

// No lane takes part, so one entry stands for all.
class StacksTest : public FakeTest {
 protected:
  using Frames = std::vector<Address>;

  void TearDown() override {
    stacks_.check_invariants();
    FakeTest::TearDown();
  }
  Stack* find(const Frames& frames, StackKind kind = StackKind::kAllocation) {
    return stacks_.find_or_make(kind, frames.data(), static_cast<unsigned>(frames.size()));
  }
  static Frames frames_of(uint64_t seed) {
    uint64_t random = seed * 0x9E3779B97F4A7C15;
    Frames frames(1 + (random >> 59));
    for (Address& frame : frames)
      frame = 0x400000 + ((random = random * 6364136223846793005 + seed + 1) >> 44);
    return frames;
  }
  // Frames of all stacks that count something. A stack that stands there twice is an error.
  std::map<Frames, uint64_t> counted() {
    std::map<Frames, uint64_t> all;
    stacks_.for_each([&](const Stack& stack) {
      const uint64_t objects = stack.count_of(kAllocatedObjects);
      if (objects == 0) return;
      Frames frames;
      for (unsigned i = 0; i < stack.depth(); ++i) frames.push_back(stack.frame(i));
      EXPECT_TRUE(all.emplace(frames, objects).second)
          << "a stack of " << frames.size() << " frames is there twice";
    });
    return all;
  }
  static void add(Stack* stack) {
    stack->counters[kAllocatedObjects].fetch_add(1, std::memory_order_relaxed);
  }

  Stacks<Fake> stacks_;
};

TEST(StackSizesTest, SizesOfClassesAreExactAndOthersAreRoundedUp) {
  for (unsigned c = 1; c < kClassCount; ++c) {
    const Bytes size = size_of(static_cast<SizeClass>(c));
    EXPECT_EQ(size_of_code(size_code(size)), size);
  }
  EXPECT_EQ(size_of_code(0), 0u);
  for (Bytes size = 8; size < Bytes{1} << 47; size += 1 + size / 37) {
    const Bytes told = size_of_code(size_code(size));
    EXPECT_GE(told, size);
    EXPECT_LT(told - size, size / 8 + 1) << size;
    EXPECT_LE(size_code(size - 1), size_code(size));
  }
}

TEST_OWNED(StacksTest, TheSameFramesWithAnotherSizeAreAnotherStack) {
  ASSERT_TRUE(stacks_.start());
  const Address frames[] = {1, 2};
  const auto of = [&](uint16_t size) {
    return stacks_.find_or_make(StackKind::kAllocation, frames, 2, size);
  };
  Stack* stack = of(5);
  EXPECT_EQ(stack->size(), 5);
  EXPECT_EQ(stack->kind(), StackKind::kAllocation);
  EXPECT_EQ(of(5), stack);
  EXPECT_NE(of(6), stack);
  EXPECT_NE(of(0), stack);
  EXPECT_EQ(of(0xFFFF)->size(), 0xFFFF);
}

TEST_OWNED(StacksTest, TheSameFramesAreOneStack) {
  EXPECT_EQ(find({1, 2, 3}), nullptr);  // not started
  ASSERT_TRUE(stacks_.start());
  ASSERT_TRUE(stacks_.start());
  Stack* first = find({1, 2, 3});
  EXPECT_EQ(first, find({1, 2, 3}));
  EXPECT_EQ(first->depth(), 3u);
  EXPECT_EQ(first->frame(0), 1u);
  EXPECT_EQ(first->frame(2), 3u);
  EXPECT_EQ(first->kind(), StackKind::kAllocation);
  std::set<Stack*> different = {
      first,           find({1, 2}),       find({1, 2, 4}),
      find({3, 2, 1}), find({1, 2, 3, 0}), find({1, 2, 3}, StackKind::kContention)};
  EXPECT_EQ(different.size(), 6u);
  EXPECT_EQ(find({1, 2, 3}, StackKind::kContention)->kind(), StackKind::kContention);
  EXPECT_EQ(stacks_.losses(), 0u);
}

TEST_OWNED(StacksTest, OfADeepStackTheInnermostFramesCount) {
  ASSERT_TRUE(stacks_.start());
  Frames deep(100);
  for (Address i = 0; i < 100; ++i) deep[i] = i + 1;
  Stack* stack = find(deep);
  EXPECT_EQ(stack->depth(), Stacks<Fake>::kMostFrames);
  EXPECT_EQ(stack->frame(63), 64u);
  deep[99] = 7;
  EXPECT_EQ(find(deep), stack);
}

TEST_OWNED(StacksTest, WithoutFramesItIsTheLostStackOfItsKind) {
  ASSERT_TRUE(stacks_.start());
  Stack* lost = find({});
  EXPECT_EQ(lost->depth(), 0u);
  EXPECT_EQ(lost->kind(), StackKind::kAllocation);
  EXPECT_EQ(find({}, StackKind::kContention)->kind(), StackKind::kContention);
  EXPECT_NE(find({}, StackKind::kContention), lost);
  EXPECT_EQ(stacks_.losses(), 0u);
}

TEST_OWNED(StacksTest, TenThousandDifferentStacksStayApart) {
  ASSERT_TRUE(stacks_.start());
  std::map<Frames, Stack*> made;
  for (uint64_t i = 0; made.size() < 10000; ++i) {
    Stack* stack = find(frames_of(i));
    made.emplace(frames_of(i), stack);
    add(stack);
  }
  for (const auto& [frames, stack] : made) EXPECT_EQ(find(frames), stack);
  EXPECT_EQ(stacks_.losses(), 0u);
  const std::map<Frames, uint64_t> all = counted();
  EXPECT_EQ(all.size(), made.size());
  for (const auto& [frames, objects] : all) EXPECT_EQ(made.count(frames), 1u);
}

TEST_OWNED(StacksTest, WhatTheFullTableHasNoRoomForIsCountedTogether) {
  Fake::limit = Bytes{128} << 20;  // 2 MiB for stacks
  ASSERT_TRUE(stacks_.start());
  std::map<Frames, Stack*> kept;
  uint64_t lost = 0;
  for (uint64_t i = 0; i < 20000; ++i) {
    const Frames frames = {i + 1, i + 2};
    Stack* stack = find(frames);
    add(stack);
    if (stack->depth() == 0) {
      ++lost;
    } else {
      kept[frames] = stack;
    }
  }
  EXPECT_GT(kept.size(), 3500u);  // of 4096 slots
  EXPECT_GT(lost, 10000u);
  EXPECT_EQ(stacks_.losses(), lost);
  EXPECT_EQ(find({})->count_of(kAllocatedObjects), lost);
  for (const auto& [frames, stack] : kept) EXPECT_EQ(find(frames), stack);
}

TEST_OWNED(StacksTest, WithoutMoreMemoryTheRestIsCountedTogether) {
  ASSERT_TRUE(stacks_.start());
  Stack* first = find({1});
  Fake::fail(Fake::Call::kOpen, 1);
  uint64_t lost = 0;
  for (uint64_t i = 0; i < 10000; ++i) lost += find(frames_of(i))->depth() == 0;
  EXPECT_GT(lost, 1000u);
  EXPECT_EQ(stacks_.losses(), lost);
  Fake::fail_never();
  EXPECT_GT(find(frames_of(9999))->depth(), 0u);
  EXPECT_EQ(find({1}), first);
}

TEST_OWNED(StacksTest, WithoutAddressesItTakesFewerOrDoesNotStart) {
  Fake::fail_once(Fake::Call::kReserve, 1);
  EXPECT_TRUE(stacks_.start());
  EXPECT_GT(find({1})->depth(), 0u);
  Stacks<Fake> none;
  Fake::fail(Fake::Call::kReserve, 1);
  EXPECT_FALSE(none.start());
  Fake::fail(Fake::Call::kOpen, 1);
  Fake::fail(Fake::Call::kReserve, 1, 1);
  EXPECT_FALSE(none.start());
  Fake::fail_never();
  none.for_each([](const Stack&) { ADD_FAILURE() << "a stack of a table that did not start"; });
  none.check_invariants();
  EXPECT_TRUE(none.start());
}

TEST_OWNED(StacksTest, ThreadsThatInsertTheSameStacksShareThem) {
  if (config().single) return;  // a process with one thread
  ASSERT_TRUE(stacks_.start());
  constexpr int kThreads = 4, kRounds = 4, kStacks = 1000 / kShorter;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < kRounds; ++round)
        for (int i = 0; i < kStacks; ++i)
          add(find(frames_of(static_cast<uint64_t>((i + t * 3) % kStacks))));
    });
  }
  std::atomic<bool> done{false};
  std::thread reader([&] {
    while (!done) {
      stacks_.for_each([](const Stack& stack) {
        for (unsigned i = 0; i < stack.depth(); ++i) EXPECT_GE(stack.frame(i), 0x400000u);
      });
    }
  });
  for (std::thread& t : threads) t.join();
  done = true;
  reader.join();
  const std::map<Frames, uint64_t> all = counted();
  EXPECT_EQ(all.size(), static_cast<size_t>(kStacks));
  for (const auto& [frames, objects] : all) EXPECT_EQ(objects, uint64_t{kThreads * kRounds});
}

// A maker that is not in the child has claimed a place, and gone no further.
TEST_OWNED(StacksTest, AStackThatWasClaimedAndNeverMadeIsPassedOver) {
  ASSERT_TRUE(stacks_.start());
  add(find({1, 2}));
  auto* next = reinterpret_cast<Stack*>(stacks_.at() + stacks_.bytes());
  next->bytes_and_kind = sizeof(Stack) + 5 * 8;  // used_ was not moved either
  Stack* after = find({5, 6});
  EXPECT_EQ(reinterpret_cast<Address>(after),
            reinterpret_cast<Address>(next) + sizeof(Stack) + 5 * 8);
  add(after);
  unsigned known = 0, unknown = 0;
  stacks_.for_each([&](const Stack& stack) { ++(stack.depth() > 0 ? known : unknown); });
  EXPECT_EQ(known, 2u);
  EXPECT_EQ(unknown, 3u);  // the lost ones too
  EXPECT_EQ(counted().size(), 2u);
}

TEST_OWNED(StacksTest, AForkChildGoesOnWithACopy) {
  ASSERT_TRUE(stacks_.start());
  std::atomic<bool> done{false};
  // Neither the thread nor the child allocates: the child of a process with threads must not, if
  // malloc is glibc's or a sanitizer's.
  const auto make = [this](uint64_t i) {
    const Address frames[] = {i, i + 1, i + 2};
    return stacks_.find_or_make(StackKind::kAllocation, frames, 3);
  };
  std::thread other([&] {  // busy, so that the child finds it in any state
    for (uint64_t i = 0; !done && i < 200000; ++i) make(i);
  });
  for (int i = 0; i < 10; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      signal(SIGILL, SIG_DFL);
      signal(SIGTRAP, SIG_DFL);
      bool good = true;
      for (uint64_t n = 0; n < 500; ++n) good = good && make(n << 32) == make(n << 32);
      stacks_.check_invariants();
      _exit(good ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  done = true;
  other.join();
}

}  // namespace
}  // namespace lanemalloc
