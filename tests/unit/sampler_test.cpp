// Sampler: distances and weights against the mathematical library, sums against what was really
// allocated. Seeds are fixed: what passes once passes always.
#include "seeing/sampler.h"

#include <cmath>
#include <map>

#include "fixture.h"

namespace lanemalloc {
namespace {

// What a stack's counters say, as signed numbers.
struct Sums {
  double objects, bytes;
};

class SamplerTest : public FakeTest {
 protected:
  static unsigned one_frame(Address* frames, unsigned) {
    frames[0] = frame_;
    return 1;
  }
  void start(Bytes interval) {
    ASSERT_TRUE(sampler_.start(one_frame));
    sampler_.set_interval(interval);
  }
  // Sums over all stacks.
  Sums allocated() { return sums(kAllocatedObjects, kAllocatedBytes); }
  Sums freed() { return sums(kFreedObjects, kFreedBytes); }
  Sums sums(StackCounter objects, StackCounter bytes) {
    Sums all{};
    sampler_.stacks().for_each([&](const Stack& stack) {
      all.objects += static_cast<double>(stack.count_of(objects));
      all.bytes += static_cast<double>(stack.count_of(bytes));
    });
    return all;
  }

  static inline Address frame_ = 1;
  Sampler<Fake> sampler_;
  uint64_t random_ = 12345;
};

TEST(SamplerMathTest, TheLogarithmIsThatOfTheLibrary) {
  uint64_t random = 1;
  for (int i = 0; i < 100000; ++i) {
    const uint64_t bits = next_random(random) >> (i % 64) | 1;
    const double right = -std::log(static_cast<double>(bits) * 0x1p-64);
    ASSERT_NEAR(negative_logarithm(bits), right, 1e-7 + right * 1e-7) << bits;
  }
  EXPECT_NEAR(negative_logarithm(~uint64_t{0}), 0, 1e-9);
  EXPECT_GE(negative_logarithm(~uint64_t{0}), 0);
  EXPECT_NEAR(negative_logarithm(1), 64 * std::log(2), 1e-6);
}

TEST(SamplerMathTest, TheWeightIsThatOfTheLibraryForSmallAndLargeSizes) {
  for (double x = 1e-12; x < 1e6; x *= 1.01)
    ASSERT_NEAR(inverse_chance(x) * -std::expm1(-x), 1, 1e-6) << x;
  EXPECT_NEAR(inverse_chance(1e-9), 1e9 + 0.5, 1e-3);
  EXPECT_EQ(inverse_chance(50), 1);
  EXPECT_EQ(inverse_chance(1e9), 1);
}

TEST_OWNED(SamplerTest, IntervalsAreExponential) {
  for (const Bytes interval : {Bytes{1}, Bytes{4096}, Bytes{512} << 10, Bytes{1} << 40}) {
    start(interval);
    constexpr int kDraws = 200000;
    double sum = 0, squares = 0;
    int above_the_mean = 0;
    for (int i = 0; i < kDraws; ++i) {
      const int64_t n = sampler_.next_interval(random_);
      ASSERT_GT(n, 0);
      const auto drawn = static_cast<double>(n);
      sum += drawn;
      squares += drawn * drawn;
      above_the_mean += drawn > static_cast<double>(interval);
    }
    // Rounded up, the distribution is geometric.
    const double stop = -std::expm1(-1 / static_cast<double>(interval));
    const double mean = sum / kDraws, variance = squares / kDraws - mean * mean;
    EXPECT_NEAR(mean * stop, 1, 0.01) << interval;
    EXPECT_NEAR(variance * stop * stop / (1 - stop), 1, 0.03) << interval;
    EXPECT_NEAR(above_the_mean / double{kDraws}, std::exp(-1), 0.005) << interval;
  }
}

TEST_OWNED(SamplerTest, SumsAreUnbiasedForEverySizeAndInterval) {
  for (const Bytes interval : {Bytes{1}, Bytes{4096}, Bytes{512} << 10}) {
    for (Bytes size = 16; size <= Bytes{4} << 20; size *= 8) {
      start(interval);
      ++frame_;
      const Sums before = allocated();
      // Enough for 2,000 samples.
      const double chance = -std::expm1(-static_cast<double>(size) / static_cast<double>(interval));
      const auto allocations = static_cast<uint64_t>(2000 / chance);
      int64_t left = sampler_.next_interval(random_);
      for (uint64_t i = 0; i < allocations; ++i) {
        if ((left -= static_cast<int64_t>(size)) > 0) continue;
        const Sample sample = sampler_.sample_allocation(size, random_);
        EXPECT_EQ(sample.bytes, sample.objects * size);
        left = sampler_.next_interval(random_);
      }
      const Sums now = allocated();
      const auto all = static_cast<double>(allocations);
      // Each allocation counts 1 on average, with a variance of 1 / chance - 1, and less than 1/4
      // for the rounding.
      const double deviation = std::sqrt(all * (1 / chance - 1 + 0.25 * chance));
      EXPECT_NEAR(now.objects - before.objects, all, 4 * deviation + 1e-3)
          << size << " at " << interval;
      EXPECT_NEAR((now.bytes - before.bytes) / static_cast<double>(size), all,
                  4 * deviation + 1e-3);
    }
  }
}

TEST_OWNED(SamplerTest, LiveIsNothingWhenAllIsFreed) {
  start(1000);
  Random random(7);
  std::vector<Sample> live;
  for (int i = 0; i < 20000; ++i) {
    if (!live.empty() && random.one_in(2)) {
      std::swap(live[random.below(live.size())], live.back());
      sampler_.freed(live.back());
      live.pop_back();
    } else {
      frame_ = random.between(1, 50);
      live.push_back(sampler_.sample_allocation(random.below(10000), random_));
      EXPECT_NE(live.back().stack, nullptr);
      EXPECT_GT(live.back().objects, 0u);
    }
    // This changes no account.
    if (i % 1000 == 0) sampler_.set_interval(random.between(1, 100000));
  }
  double objects = 0, bytes = 0;
  for (const Sample& sample : live) {
    objects += static_cast<double>(sample.objects);
    bytes += static_cast<double>(sample.bytes);
  }
  EXPECT_EQ(allocated().objects - freed().objects, objects);
  EXPECT_EQ(allocated().bytes - freed().bytes, bytes);
  for (const Sample& sample : live) sampler_.freed(sample);
  sampler_.stacks().for_each([](const Stack& stack) {
    EXPECT_EQ(stack.count_of(kAllocatedObjects), stack.count_of(kFreedObjects));
    EXPECT_EQ(stack.count_of(kAllocatedBytes), stack.count_of(kFreedBytes));
  });
}

// Live objects go up and down; what is told as the peak is what was alive when most was.
TEST_OWNED(SamplerTest, ThePeakIsKeptByStack) {
  start(1);  // each object counts, and stands for itself
  Random random(11);
  std::vector<std::pair<Address, Sample>> live;
  std::map<Address, uint64_t> now, right;
  uint64_t most = 0, all = 0;
  const auto told = [&](Address frame) {
    uint64_t n = 0;
    sampler_.stacks().for_each([&](const Stack& stack) {
      if (stack.depth() != 1 || stack.frame(0) != frame) return;
      n += sampler_.peak_is_now() ? stack.count_of(kAllocatedBytes) - stack.count_of(kFreedBytes)
                                  : stack.count_of(kPeakBytes);
    });
    return n;
  };
  for (int i = 0; i < 40000; ++i) {
    // Three waves, the second one the highest.
    const bool grows = random.below(100) < (i % 10000 < 5000 ? (i / 10000 == 1 ? 80u : 60u) : 30u);
    if (grows || live.empty()) {
      frame_ = random.between(1, 20);
      const Sample sample = sampler_.sample_allocation(random.between(1, 3000), random_);
      live.emplace_back(frame_, sample);
      now[frame_] += sample.bytes;
      all += sample.bytes;
      if (all > most) most = all, right = now;
    } else {
      std::swap(live[random.below(live.size())], live.back());
      now[live.back().first] -= live.back().second.bytes;
      all -= live.back().second.bytes;
      sampler_.freed(live.back().second);
      live.pop_back();
    }
  }
  EXPECT_FALSE(sampler_.peak_is_now());
  EXPECT_LT(all, most / 2);
  uint64_t sum = 0;
  for (const auto& [frame, bytes] : right) {
    sum += told(frame);
    EXPECT_NEAR(static_cast<double>(told(frame)), static_cast<double>(bytes), 0.1 * bytes) << frame;
  }
  EXPECT_LE(sum, most);
  EXPECT_GE(sum, most - most / 32);
  // Higher than ever: the peak is now.
  frame_ = 1;
  sampler_.sample_allocation(most, random_);
  EXPECT_TRUE(sampler_.peak_is_now());
  EXPECT_EQ(told(1), now[1] + most);
}

TEST_OWNED(SamplerTest, ObjectsAreTemporaryIfNothingWasHandedOutMeanwhile) {
  start(1);
  Sample sample = sampler_.sample_allocation(100, random_);
  sample.mark = 7;
  sampler_.freed(sample, 7);
  EXPECT_EQ(sums(kTemporaryObjects, kTemporaryBytes).bytes, 100);
  sampler_.freed(sample, 8);
  sampler_.freed(sample, 0);
  sample.mark = 0;
  sampler_.freed(sample, 0);
  EXPECT_EQ(sums(kTemporaryObjects, kTemporaryBytes).objects, 1);
}

TEST_OWNED(SamplerTest, DelaysAreUnbiased) {
  ASSERT_TRUE(sampler_.start(one_frame));
  EXPECT_EQ(sampler_.contended(1000000, random_), nullptr);  // off
  constexpr uint64_t kInterval = 100000;
  sampler_.set_contention_interval(kInterval);
  EXPECT_EQ(sampler_.contention_interval(), kInterval);
  EXPECT_EQ(sampler_.contended(0, random_), nullptr);
  double waits = 0, ns = 0, variance = 0, variance_of_ns = 0;
  Random random(3);
  for (int i = 0; i < 200000; ++i) {
    const uint64_t wait = random.between(1, uint64_t{1} << random.between(10, 22));
    waits += 1;
    ns += static_cast<double>(wait);
    const double chance = -std::expm1(-static_cast<double>(wait) / kInterval);
    const double of_one = 1 / chance - 1 + 0.25 * chance;
    variance += of_one;
    variance_of_ns += static_cast<double>(wait) * static_cast<double>(wait) * of_one;
    const Stack* stack = sampler_.contended(wait, random_);
    EXPECT_TRUE(stack == nullptr || stack->kind() == StackKind::kContention);
  }
  const Sums counted = sums(kContentions, kDelay);
  EXPECT_NEAR(counted.bytes, ns, 4 * std::sqrt(variance_of_ns));
  EXPECT_NEAR(counted.objects, waits, 4 * std::sqrt(variance));
}

TEST_OWNED(SamplerTest, WhileItIsOffNothingIsSampled) {
  EXPECT_FALSE(sampler_.on());
  EXPECT_EQ(sampler_.next_interval(random_), Sampler<Fake>::kNever);
  EXPECT_EQ(sampler_.sample_allocation(100, random_).stack, nullptr);
  sampler_.freed(Sample{});
  sampler_.set_interval(1);  // without start(): no memory for stacks
  EXPECT_EQ(sampler_.sample_allocation(100, random_).stack, nullptr);
  ASSERT_TRUE(sampler_.start(nullptr));
  EXPECT_TRUE(sampler_.on());
  EXPECT_EQ(sampler_.sample_allocation(100, random_).stack->depth(), 0u);  // there is no unwinder
  EXPECT_EQ(sampler_.weight(100), 1);
  sampler_.set_interval(~Bytes{0});
  EXPECT_EQ(sampler_.interval(), Sampler<Fake>::kMostInterval);
  for (int i = 0; i < 1000; ++i) EXPECT_GT(sampler_.next_interval(random_), 0);
}

}  // namespace
}  // namespace lanemalloc
