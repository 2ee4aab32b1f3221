// Sampled objects in the engine: they are counted, found and freed as others are.
#include "fixture.h"

namespace lanemalloc {
namespace {

class EngineSamplesTest : public EngineTest {
 protected:
  void sample_every(Bytes interval) {
    ASSERT_TRUE(world().sampler.start(nullptr));
    world().sampler.set_interval(interval);
  }
  // Nearly everything from here on is sampled.
  void sample_all(Slot& t) {
    sample_every(1);
    for (int i = 0; i < 100000 && statistics().samples == 0; ++i) give(t, take(t, 4000));
    ASSERT_GT(statistics().samples, 0u);
  }
};

TEST_ALL_CONFIGS(EngineSamplesTest, SampledObjectsOfEveryClassAreOrdinaryOnes) {
  Slot& t = thread();
  sample_all(t);
  const Statistics before = statistics();
  std::vector<void*> all;
  for (unsigned c = 1; c < kClassCount; ++c) {
    const Bytes size = size_of(static_cast<SizeClass>(c));
    void* p = take(t, size);
    EXPECT_EQ(engine().usable_size(p, engine().find(p).entry), size);
    fill(p, size, c);
    all.push_back(p);
  }
  const Statistics s = statistics();
  EXPECT_EQ(s.samples, before.samples + all.size());
  EXPECT_EQ(s.live_objects, before.live_objects + all.size());
  EXPECT_EQ(s.large_live_objects, before.large_live_objects);
  for (unsigned c = 1; c < kClassCount; ++c) {
    EXPECT_EQ(s.classes[c].live, before.classes[c].live + 1);
    EXPECT_TRUE(is_whole(all[c - 1], size_of(static_cast<SizeClass>(c)), c));
    EXPECT_EQ(engine().find(static_cast<char*>(all[c - 1]) + 16).verdict, Verdict::kNotAStart);
    give(t, all[c - 1]);
    EXPECT_NE(engine().find(all[c - 1]).verdict, Verdict::kGood);
  }
  EXPECT_EQ(statistics().live_objects, before.live_objects);
  EXPECT_EQ(statistics().live_bytes, before.live_bytes);
}

TEST_ALL_CONFIGS(EngineSamplesTest, LargeObjectsAreCountedAmongTheSamples) {
  Slot& t = thread();
  sample_every(1);
  const uint64_t before = statistics().samples;
  for (int i = 0; i < 50; ++i) give(t, take(t, kSlabMax + 1));
  EXPECT_EQ(statistics().samples, before + 50);
  EXPECT_EQ(statistics().large_allocations, 50u);
  EXPECT_EQ(statistics().live_objects, 0u);
}

TEST_ALL_CONFIGS(EngineSamplesTest, WithoutSamplingNothingIs) {
  Slot& t = thread();
  for (int i = 0; i < 1000; ++i) give(t, take(t, 40000));
  give(t, take(t, kSlabMax + 1));
  EXPECT_EQ(statistics().samples, 0u);
}

}  // namespace
}  // namespace lanemalloc
