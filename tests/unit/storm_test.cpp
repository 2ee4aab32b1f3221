// Engine: random operations of several threads, with figures that must add up all the way.
#include "fixture.h"

namespace lanemalloc {
namespace {

class StormTest : public EngineTest {
 protected:
  struct Object {
    void* p;
    Bytes size;
    uint64_t seed;
  };

  void storm(uint64_t seed, int threads, int steps) {
    Random random(seed);
    for (int i = 0; i < threads; ++i) alive_.push_back(&thread());
    for (int i = 0; i < steps / kShorter; ++i) {
      Slot*& t = alive_[random.below(alive_.size())];
      switch (random.below(40)) {
        case 0:
          engine().exits().thread_exits(*t);
          t = &thread();
          break;
        case 1:
          if (random.one_in(4)) engine().upkeep().trim(*t);
          break;
        case 2:
          if (!objects_.empty()) in_handler(*t, [&] { free_any(random, *t); });
          break;
        case 3:
          in_handler(*t, [&] { allocate(random, *t); });
          break;
        case 4:
          if (is_scavenger_wanted()) passes(1);
          break;
        case 5:
          if (!objects_.empty()) resize(random, *t);
          break;
        case 6:
          if (change_entry_) change_entry(random);
          break;
        default:
          if (objects_.size() < 3000 && random.below(100) < 52) {
            allocate(random, *t);
          } else if (!objects_.empty()) {
            free_any(random, *t);
          }
      }
      if (i % 500 == 0) account();
      if (HasFatalFailure()) FAIL() << "seed " << seed << ", step " << i;
    }
    while (!objects_.empty()) free_any(random, *alive_[random.below(alive_.size())]);
    account();
    for (int i = 0; i < 4; ++i)
      for (Slot* t : alive_) engine().upkeep().trim(*t);
    account();
    EXPECT_EQ(statistics().slab_bytes, 0u);
    EXPECT_EQ(statistics().runs.dirty, 0u);
  }

  void change_entry(Random& random) {
    Settings settings;
    settings.entry = static_cast<Entry>(random.below(3));
    settings.shared_lanes = static_cast<uint32_t>(random.between(1, 5));
    ASSERT_TRUE(engine().choose_entry(settings));
  }
  void allocate(Random& random, Slot& t) {
    const Bytes size = random.one_in(50)  ? random.between(1, 1 << 20)
                       : random.one_in(5) ? random.between(1, 40000)
                                          : random.between(0, 1200);
    void* p = random.one_in(9)   ? engine().allocate_aligned(size, Bytes{16} << random.below(9), t)
              : random.one_in(9) ? engine().allocate_zeroed(size, t)
                                 : engine().allocate(size, t);
    ASSERT_NE(p, nullptr);
    fill(p, size, ++seeds_);
    objects_.push_back({p, size, seeds_});
    live_bytes_ += engine().pointers().usable_size(p, engine().pointers().find(p).word);
    ++allocations_;
  }
  void free_any(Random& random, Slot& t) {
    Object& o = objects_[random.below(objects_.size())];
    EXPECT_TRUE(is_whole(o.p, o.size, o.seed))
        << "an object of " << o.size << " bytes was written to";
    const Found found = engine().pointers().find(o.p);
    ASSERT_EQ(found.verdict, Verdict::kGood);
    live_bytes_ -= engine().pointers().usable_size(o.p, found.word);
    give(t, o.p);
    o = objects_.back();
    objects_.pop_back();
  }
  void resize(Random& random, Slot& t) {
    Object& o = objects_[random.below(objects_.size())];
    const Found found = engine().pointers().find(o.p);
    ASSERT_EQ(found.verdict, Verdict::kGood);
    EXPECT_TRUE(is_whole(o.p, o.size, o.seed));
    live_bytes_ -= engine().pointers().usable_size(o.p, found.word);
    const Bytes size = random.between(1, random.one_in(10) ? 2 << 20 : 3000);
    void* p = engine().reallocate(o.p, found.word, size, t);
    ASSERT_NE(p, nullptr);
    o = {p, size, ++seeds_};
    fill(p, size, seeds_);
    live_bytes_ += engine().pointers().usable_size(p, engine().pointers().find(p).word);
  }

  void account() {
    engine().check_invariants();
    const Statistics s = statistics();
    EXPECT_EQ(s.allocations - s.frees, s.live_objects);
    if (Fake::has_barrier) {
      EXPECT_EQ(s.live_objects, objects_.size());
      EXPECT_EQ(s.live_bytes, live_bytes_);
    } else {  // what waits in bins counts as live
      EXPECT_GE(s.live_objects, objects_.size());
      EXPECT_GE(s.live_bytes, live_bytes_);
    }
    EXPECT_GE(s.allocations, allocations_);
    EXPECT_EQ(s.runs.claimed, Fake::claimed_blocks() * kBlockSize);
    EXPECT_EQ(s.bad_pointers, 0u);
    std::vector<uint64_t> by_class(kClassCount);
    for (const Object& o : objects_) {
      if (owner_of(o.p) != Owner::kLarge) ++by_class[index_of(class_at(o.p))];
    }
    for (unsigned c = 1; c < kClassCount; ++c) {
      ASSERT_GE(s.classes[c].live, by_class[c]) << "class " << c;
      if (Fake::has_barrier) {
        ASSERT_EQ(s.classes[c].live, by_class[c]) << "class " << c;
      }
    }
  }

  bool change_entry_ = false;
  std::vector<Slot*> alive_;
  std::vector<Object> objects_;
  uint64_t seeds_ = 0, live_bytes_ = 0, allocations_ = 0;
};

TEST_ALL_CONFIGS(StormTest, OneThreadsFiguresAddUp) { storm(11, 1, 15000); }
TEST_ALL_CONFIGS(StormTest, SeveralThreadsFiguresAddUp) { storm(12, 7, 20000); }
TEST_ALL_CONFIGS(StormTest, ManyThreadsFiguresAddUp) { storm(13, 40, 20000); }
TEST_ALL_CONFIGS(StormTest, FiguresAddUpWhileTheEntryChanges) {
  change_entry_ = true;
  storm(18, 7, 8000);
}
TEST_ALL_CONFIGS(StormTest, FiguresAddUpWithoutABarrier) {
  Fake::has_barrier = false;
  Random random(14);
  Slot &a = thread(), &b = thread();
  alive_ = {&a, &b};
  for (int i = 0; i < 8000; ++i) {
    Slot& t = *alive_[random.below(2)];
    if (random.below(100) < 52) {
      allocate(random, t);
    } else if (!objects_.empty()) {
      free_any(random, t);
    }
    if (i % 500 == 0) account();
  }
  while (!objects_.empty()) free_any(random, *alive_[random.below(2)]);
  account();
}
TEST_ALL_CONFIGS(StormTest, FiguresAddUpWhenChecked) {
  begin_checked();
  storm(15, 5, 10000);
}
TEST_ALL_CONFIGS(StormTest, FiguresAddUpWhereMapsAreCharged) {
  Fake::maps_are_charged = true;
  begin({});
  storm(16, 5, 10000);
}
TEST_ALL_CONFIGS(StormTest, FiguresAddUpWithoutDecay) {
  Settings at_once;
  at_once.decay_ms = 0;
  begin(at_once);
  storm(17, 5, 10000);
}

}  // namespace
}  // namespace lanemalloc
