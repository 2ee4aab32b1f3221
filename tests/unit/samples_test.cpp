// Samples: objects that the engine samples behave as all others do, and the profile says what is
// alive, exactly.
#include <cmath>

#include "fixture.h"
#include "links.h"

namespace lanemalloc {
namespace {

class SamplesTest : public EngineTest {
 protected:
  static inline Address frame_ = 4711;
  static unsigned one_frame(Address* frames, unsigned) {
    frames[0] = frame_;
    return 1;
  }
  void sample(Bytes interval) {
    ASSERT_TRUE(world().sampler.start(one_frame));
    world().sampler.set_interval(interval);
  }
  bool is_sampled(const void* p) {
    return owner_of(p) == Owner::kLarge &&
           large_state(world().region, world().region.block_of(p)).sample.stack != nullptr;
  }
  // Allocates until an object of this size is sampled. free_others() frees the others.
  void* take_sampled(Slot& t, Bytes size) {
    for (int i = 0; i < 100000; ++i) {
      void* p = take(t, size);
      if (is_sampled(p)) return p;
      others_.push_back(p);
    }
    ADD_FAILURE() << "nothing is sampled";
    return nullptr;
  }
  void free_others(Slot& t) {
    for (void* p : others_) give(t, p);
    others_.clear();
  }
  uint64_t sum_of(StackCounter counter) {
    uint64_t n = 0;
    world().sampler.stacks().for_each([&](const Stack& stack) { n += stack.count_of(counter); });
    return n;
  }
  uint64_t alive(StackCounter allocated, StackCounter freed) {
    return sum_of(allocated) - sum_of(freed);
  }
  uint64_t bytes_alive() { return alive(kAllocatedBytes, kFreedBytes); }
  uint64_t objects_alive() { return alive(kAllocatedObjects, kFreedObjects); }

  std::vector<void*> others_;
};

TEST_ALL_CONFIGS(SamplesTest, NothingIsSampledUntilItIsAskedFor) {
  Slot& t = thread();
  for (int i = 0; i < 20000; ++i) others_.push_back(take(t, 64));
  EXPECT_EQ(statistics().samples, 0u);
  free_others(t);
  EXPECT_EQ(statistics().live_objects, 0u);
}

TEST_ALL_CONFIGS(SamplesTest, TheScavengersWaitsAreNotWalked) {
  Slot& t = thread();
  sample(1);
  world().sampler.set_contention_interval(1);
  EXPECT_NE(engine_->contended(&t, 1000000), nullptr);
  EXPECT_EQ(engine_->contended(&world().scavenger, 1000000), nullptr);
}

TEST_ALL_CONFIGS(SamplesTest, LargeObjectsAreCountedAmongTheSamples) {
  Slot& t = thread();
  sample(1);
  for (int i = 0; i < 50; ++i) give(t, take(t, kSlabMax + 1));
  EXPECT_EQ(statistics().samples, 50u);
  EXPECT_EQ(statistics().large_allocations, 50u);
  EXPECT_EQ(statistics().live_objects, 0u);
}

TEST_ALL_CONFIGS(SamplesTest, ASampledObjectIsOneOfItsClass) {
  Slot& t = thread();
  sample(4096);
  for (Bytes size : {Bytes{1}, Bytes{32}, Bytes{1000}, Bytes{5000}, Bytes{100000}, kSlabMax}) {
    const Statistics before = statistics();
    void* p = take_sampled(t, size);
    const uint64_t c = index_of(class_of(size));
    const Bytes real = size_of(class_of(size));
    EXPECT_EQ(engine().pointers().usable_size(p, engine().pointers().find(p).word), real);
    const Statistics after = statistics();
    EXPECT_EQ(after.classes[c].live, before.classes[c].live + others_.size() + 1) << size;
    EXPECT_EQ(after.live_bytes, before.live_bytes + (others_.size() + 1) * real) << size;
    EXPECT_EQ(after.large_live_objects, before.large_live_objects);
    EXPECT_GE(after.samples, before.samples + 1);
    fill(p, real, size);
    EXPECT_TRUE(is_whole(p, real, size));
    give(t, p);
    free_others(t);
    EXPECT_EQ(statistics().live_objects, before.live_objects) << size;
    EXPECT_EQ(statistics().frees, statistics().allocations - before.live_objects);
    EXPECT_EQ(bytes_alive(), 0u) << size;
    EXPECT_EQ(objects_alive(), 0u) << size;
  }
}

// An object is temporary if its thread allocates nothing between its allocation and its free,
// whether or not that other object is sampled. Frees between do not matter.
TEST_OWNED(SamplesTest, TemporaryObjectsAreTold) {
  Slot& t = thread();
  const auto temporary = [&] { return sum_of(kTemporaryObjects); };
  const auto is_told = [&](void* p) {
    const uint64_t before = temporary();
    give(t, p);
    return temporary() != before;
  };
  const Bytes large = kSlabMax + 1;
  for (const Bytes interval : {Bytes{1}, Bytes{4096}}) {
    sample(interval);
    for (const Bytes size : {Bytes{64}, Bytes{5000}, kSlabMax, large}) {
      EXPECT_TRUE(is_told(take_sampled(t, size))) << size;
      for (const Bytes other : {Bytes{64}, Bytes{100}, kSlabMax, large}) {
        void* p = take_sampled(t, size);
        void* between = take(t, other);
        EXPECT_FALSE(is_told(p)) << size << " and then " << other << " at " << interval;
        give(t, between);
        p = take_sampled(t, size);
        give(t, take(t, other));
        EXPECT_FALSE(is_told(p)) << size << " and then " << other << " at " << interval;
      }
      void* before = take(t, size);
      void* p = take_sampled(t, size);
      give(t, before);
      EXPECT_TRUE(is_told(p)) << size;
    }
    free_others(t);
  }
  // Another thread's free.
  Slot& u = thread();
  give(u, take(u, 64));
  void* p = take_sampled(t, 64);
  const uint64_t before = temporary();
  give(u, p);
  EXPECT_EQ(temporary(), before);
  free_others(t);
}

TEST_ALL_CONFIGS(SamplesTest, SamplesStandForAllBytesWhateverTheirSize) {
  Slot& t = thread();
  constexpr Bytes kInterval = 2048;
  sample(kInterval);
  for (Bytes size : {Bytes{16}, Bytes{240}, Bytes{2048}, Bytes{20480}}) {
    const uint64_t before = bytes_alive();
    const int n = size > 4096 ? 400 : static_cast<int>((Bytes{4} << 20) / size / kShorter);
    for (int i = 0; i < n; ++i) others_.push_back(take(t, size));
    const auto real = static_cast<double>(static_cast<uint64_t>(n) * size_of(class_of(size)));
    const auto estimate = static_cast<double>(bytes_alive() - before);
    // There are about real / kInterval points: allows five standard deviations.
    const double allowed = 5 * std::sqrt(real * static_cast<double>(kInterval + size));
    EXPECT_NEAR(estimate, real, allowed) << size;
  }
  free_others(t);
  EXPECT_EQ(bytes_alive(), 0u);
}

// Each class has its share, whichever class misses next: objects of several sizes come in random
// order and live for a random time.
TEST_ALL_CONFIGS(SamplesTest, AMixtureIsSampledWithoutFavourForAnySize) {
  constexpr Bytes kSizes[] = {32, 128, 512, 2048, 8192};
  constexpr Bytes kInterval = 16384;
  Slot& t = thread();
  sample(kInterval);
  Random random(11);
  std::vector<void*> live(500);
  double real[std::size(kSizes)]{};
  for (int i = 0; i < 400000 / kShorter; ++i) {
    void*& place = live[random.below(live.size())];
    if (place != nullptr) give(t, place);
    const auto site = random.below(std::size(kSizes));
    frame_ = 1 + site;
    place = take(t, kSizes[site]);
    real[site] += static_cast<double>(size_of(class_of(kSizes[site])));
  }
  for (void* p : live)
    if (p != nullptr) give(t, p);
  for (size_t site = 0; site < std::size(kSizes); ++site) {
    double estimate = 0;
    world().sampler.stacks().for_each([&](const Stack& stack) {
      if (stack.frame(0) == 1 + site)
        estimate += static_cast<double>(stack.count_of(kAllocatedBytes));
    });
    const auto size = static_cast<double>(size_of(class_of(kSizes[site])));
    const double chance = -std::expm1(-size / static_cast<double>(kInterval));
    const double deviation = std::sqrt(real[site] * size * (1 / chance - 1 + 0.25 * chance));
    EXPECT_NEAR(estimate, real[site], 5 * deviation) << kSizes[site];
  }
}

// Two sorts of request take turns, and each has its share: what is sampled does not depend on where
// a bin begins.
TEST_ALL_CONFIGS(SamplesTest, EachObjectOfABinMayBeTheOneThatIsSampled) {
  Slot& t = thread();
  sample(4096);
  unsigned even = 0, odd = 0;
  for (int i = 0; i < 40000; ++i) {
    void* p = take(t, 64);
    if (is_sampled(p)) ++(i % 2 == 0 ? even : odd);
    others_.push_back(p);
  }
  EXPECT_GT(even, 200u);
  EXPECT_NEAR(even, odd, 5 * std::sqrt(even + odd));
  free_others(t);
}

TEST_ALL_CONFIGS(SamplesTest, ItMayBeResizedZeroedAlignedAndFreedByAnyThread) {
  Slot& t = thread();
  sample(256);
  void* p = take_sampled(t, 100);
  memset(p, 0x5A, 100);
  for (Bytes size : {Bytes{3000}, Bytes{2} << 20, Bytes{8} << 20, Bytes{1} << 20, Bytes{100}}) {
    p = engine().reallocate(p, engine().pointers().find(p).word, size, t);
    ASSERT_NE(p, nullptr);
    for (int i = 0; i < 100; ++i) ASSERT_EQ(static_cast<char*>(p)[i], 0x5A) << size;
  }
  give(t, p);
  free_others(t);
  for (int i = 0; i < 1000; ++i) {
    char* zeroed = static_cast<char*>(engine().allocate_zeroed(333, t));
    for (int at = 0; at < 333; ++at) ASSERT_EQ(zeroed[at], 0);
    fill(zeroed, 333, 7);
    void* aligned = engine().allocate_aligned(100, 4096, t);
    EXPECT_EQ(reinterpret_cast<Address>(aligned) % 4096, 0u);
    others_.push_back(zeroed);
    others_.push_back(aligned);
  }
  start_threads();
  free_others(thread());
  engine().upkeep().trim(t);
  EXPECT_EQ(statistics().live_objects, 0u);
  EXPECT_EQ(bytes_alive(), 0u);
}

TEST_ALL_CONFIGS(SamplesTest, ItStandsInAChainOfFreesLikeAnyOther) {
  Slot& t = thread();
  sample(512);
  for (int round = 0; round < 50; ++round) {
    std::vector<void*> chain;
    for (int i = 0; i < 64; ++i) chain.push_back(take(t, 64));
    const void* bad = nullptr;
    EXPECT_EQ(engine().free_chain(chain_of(chain), chain.size(), t, bad), Verdict::kGood);
  }
  engine().upkeep().trim(t);
  EXPECT_EQ(statistics().live_objects, 0u);
  EXPECT_EQ(bytes_alive(), 0u);
  EXPECT_GT(statistics().samples, 100u);
}

TEST_ALL_CONFIGS(SamplesTest, ABadPointerIntoASampledObjectIsTold) {
  Slot& t = thread();
  sample(256);
  char* p = static_cast<char*>(take_sampled(t, 200));
  EXPECT_EQ(engine().free(p + 16, t), Verdict::kNotAStart);
  give(t, p);
  EXPECT_NE(engine().free(p, t), Verdict::kGood);
  free_others(t);
}

TEST_ALL_CONFIGS(SamplesTest, ItCanBeTurnedOffAndOnAgain) {
  Slot& t = thread();
  sample(256);
  void* p = take_sampled(t, 48);
  world().sampler.set_interval(0);
  for (int i = 0; i < 2000; ++i) others_.push_back(take(t, 48));  // what is still due is sampled
  const uint64_t before = statistics().samples;
  for (int i = 0; i < 2000; ++i) others_.push_back(take(t, 48));
  EXPECT_EQ(statistics().samples, before);
  give(t, p);
  free_others(t);
  EXPECT_EQ(bytes_alive(), 0u);
  world().sampler.set_interval(256);
  for (int i = 0; i < 200; ++i) {  // within 16 MiB of a lane
    void* large = take(t, Bytes{100} << 10);
    give(t, large);
  }
  give(t, take_sampled(t, 48));
  free_others(t);
}

TEST_ALL_CONFIGS(SamplesTest, WithoutMemoryForARunOfItsOwnTheObjectIsAPlainOne) {
  Slot& t = thread();
  others_.push_back(take(t, 64));
  sample(64);
  Fake::fail(Fake::Call::kClaim, 1);
  for (int i = 0; i < 60; ++i) {
    void* p = engine().allocate(64, t);
    if (p != nullptr) others_.push_back(p);
  }
  EXPECT_GT(others_.size(), 1u);
  Fake::fail_never();
  free_others(t);
  EXPECT_EQ(statistics().live_objects, 0u);
}

}  // namespace
}  // namespace lanemalloc
