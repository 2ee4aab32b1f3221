// Out of memory at every point where memory is asked for: a script runs again and again, and each
// time another call of the platform fails, once or from there on.
#include "fixture.h"

namespace lanemalloc {
namespace {

class OutOfMemoryTest : public EngineTest {
 protected:
  struct Object {
    void* p;
    Bytes size;
    uint64_t seed;
  };

  void try_allocate(Slot& t, Bytes size, Bytes alignment = 1) {
    void* p =
        alignment > 1 ? engine().allocate_aligned(size, alignment, t) : engine().allocate(size, t);
    if (p == nullptr) {
      ++refused_;
      return;
    }
    fill(p, size, ++seeds_);
    live_.push_back({p, size, seeds_});
  }
  void try_resize(Slot& t, size_t i, Bytes size) {
    if (i >= live_.size()) return;
    Object& o = live_[i];
    const Found found = engine().pointers().find(o.p);
    ASSERT_EQ(found.verdict, Verdict::kGood);
    void* p = engine().reallocate(o.p, found.word, size, t);
    if (p == nullptr) {
      ++refused_;
      return;  // the old object stays
    }
    fill(p, size, o.seed);
    o = {p, size, o.seed};
  }
  void drop(Slot& t, size_t i) {
    if (i >= live_.size()) return;
    Object& o = live_[i];
    EXPECT_TRUE(is_whole(o.p, o.size, o.seed)) << o.size;
    give(t, o.p);
    o = live_.back();
    live_.pop_back();
  }

  // Touches every point where memory is asked for: lanes, overflow lanes, slabs, metadata, large
  // objects, moves, purges.
  void script() {
    Slot &a = thread(), &b = thread();
    for (Bytes size : {Bytes{16}, Bytes{300}, Bytes{5000}, Bytes{100000}}) {
      try_allocate(a, size);
      try_allocate(b, size);
    }
    for (int i = 0; i < 30; ++i) try_allocate(a, 4096);
    try_allocate(a, 1 << 20);
    try_allocate(b, 2 << 20, 4 << 20);
    try_allocate(b, 700, 1024);
    in_handler(a, [&] {
      try_allocate(a, 64);
      try_allocate(a, kSlabMax + 1);
      drop(a, 1);
    });
    for (size_t i = 0; i < 10; ++i) drop(b, i);
    for (size_t i = 0; i < live_.size(); ++i)
      if (live_[i].size >= 1 << 20) {
        try_resize(a, i, 5 << 20);
        try_resize(b, i, 9 << 20);
        try_resize(b, i, kSlabMax + 1);
      }
    try_allocate(a, Bytes{70} << 20);
    for (size_t i = 0; i < live_.size(); i += 2) drop(a, i);
    engine().upkeep().trim(b);
    for (int i = 0; i < 20; ++i) try_allocate(b, 1000 * static_cast<Bytes>(i));
    engine().exits().thread_exits(a);
    try_allocate(a, 64);
    drop(a, 0);
    Slot& c = thread();
    try_allocate(c, 48);
    try_resize(c, 0, 30000);
    if (is_scavenger_wanted()) passes(3);
    for (size_t i = 0; i < 5; ++i) drop(c, i);
  }

  void expect_all_is_well(const char* when) {
    for (const Object& o : live_) EXPECT_TRUE(is_whole(o.p, o.size, o.seed)) << when;
    engine().check_invariants();
    const Statistics s = statistics();
    EXPECT_EQ(s.live_objects, live_.size()) << when;
    EXPECT_EQ(s.runs.claimed, Fake::claimed_blocks() * kBlockSize) << when;
    EXPECT_EQ(Fake::misuse(), "") << when;
  }

  void fail_everywhere(Fake::Call call, bool for_ever, const Settings& settings) {
    begin(settings);
    live_.clear();
    const uint64_t before = Fake::calls(call);
    script();
    const uint64_t calls = Fake::calls(call) - before;
    ASSERT_GT(calls, 0u) << "the script never gets there";
    EXPECT_EQ(refused_, 0u);
    uint64_t refused = 0;
    const uint64_t step = config().page == 4096 ? 1 : 3;  // to save time
    for (uint64_t nth = 1; nth <= calls; nth += step) {
      Fake::single = config().single;
      begin(settings);
      live_.clear();
      refused_ = 0;
      SCOPED_TRACE("call " + std::to_string(nth) + " of " + std::to_string(calls) +
                   (for_ever ? " and all later" : "") + " fails");
      for_ever ? Fake::fail(call, nth) : Fake::fail_once(call, nth);
      script();
      expect_all_is_well("while it fails");
      Fake::fail_never();
      refused += refused_;
      refused_ = 0;
      Slot& t = thread();
      for (Bytes size : {Bytes{16}, Bytes{5000}, Bytes{200000}, Bytes{3} << 20, Bytes{80} << 20})
        try_allocate(t, size);
      EXPECT_EQ(refused_, 0u) << "memory is there again, and yet";
      expect_all_is_well("afterwards");
      while (!live_.empty()) drop(t, 0);
      for (int i = 0; i < 4; ++i) engine().upkeep().trim(t);
      const Statistics s = statistics();
      EXPECT_EQ(s.live_objects, 0u);
      EXPECT_EQ(s.live_bytes, 0u);
      EXPECT_EQ(s.slab_bytes, 0u) << "something is held back for good";
      EXPECT_TRUE(reports.empty());
      if (HasFailure()) return;
    }
    if (for_ever && call == Fake::Call::kClaim) {
      EXPECT_GT(refused, 0u);
    }
  }

  std::vector<Object> live_;
  uint64_t seeds_ = 0;
  uint64_t refused_ = 0;
};

TEST_ALL_CONFIGS(OutOfMemoryTest, AnyCallFailsOnce) {
  fail_everywhere(Fake::Call::kAnyMemory, false, {});
}
TEST_ALL_CONFIGS(OutOfMemoryTest, AnyCallAndAllLaterOnesFail) {
  fail_everywhere(Fake::Call::kAnyMemory, true, {});
}
TEST_ALL_CONFIGS(OutOfMemoryTest, AnyClaimAndAllLaterOnesFail) {
  fail_everywhere(Fake::Call::kClaim, true, {});
}
TEST_ALL_CONFIGS(OutOfMemoryTest, AnyOpeningOfMetadataAndAllLaterOnesFail) {
  fail_everywhere(Fake::Call::kExtend, true, {});
}
TEST_ALL_CONFIGS(OutOfMemoryTest, AnyCallFailsOnceWhenChecked) {
  Settings checked;
  checked.checked = true;
  fail_everywhere(Fake::Call::kAnyMemory, false, checked);
}
TEST_ALL_CONFIGS(OutOfMemoryTest, AnyCallAndAllLaterOnesFailWhereMapsAreCharged) {
  Fake::maps_are_charged = true;
  fail_everywhere(Fake::Call::kAnyMemory, true, {});
}

// Owned: a thread that shares finds a lane that another thread has made.
TEST_OWNED(OutOfMemoryTest, WithoutALaneOfItsOwnAThreadsFreesGoStraightToTheOwnerAndAreCounted) {
  Slot &a = thread(), &b = thread();
  for (int i = 0; i < 20; ++i) try_allocate(a, 100);
  Fake::fail(Fake::Call::kExtend, 1);
  while (world().lanes.pop_idle_or_make() != nullptr) {
  }
  while (live_.size() > 5) drop(b, 0);
  EXPECT_EQ(b.load(), &no_lane_gate);
  EXPECT_EQ(statistics().direct_frees, 15u);
  EXPECT_EQ(statistics().live_objects, 5u) << "on their way";
  Fake::fail_never();
  while (!live_.empty()) drop(a, 0);
  engine().upkeep().trim(a);
  EXPECT_EQ(statistics().live_objects, 0u) << "arrived";
  EXPECT_EQ(statistics().slab_bytes, 0u);
}

TEST_ALL_CONFIGS(OutOfMemoryTest, TheEngineStartsLaterWhereThereWereNoAddresses) {
  Fake::release_all();
  Fake::fail(Fake::Call::kGround, 1);
  engine_ = std::make_unique<FakeEngine>();
  auto report = [](Verdict why, const void* p) { reports.push_back({why, p}); };
  EXPECT_FALSE(engine_->start({}, report));
  Fake::fail_never();
  ASSERT_TRUE(engine_->start({}, report));
  engine_->set_exit_watch([](Slot&) { return true; });
  Slot& t = thread();
  give(t, take(t, 100));
}

TEST_ALL_CONFIGS(OutOfMemoryTest, ASmallAddressSpaceIsUsedUpAndServesAgain) {
  Fake::release_all();
  Fake::limit = Bytes{64} << 20;
  Fake::maps_are_charged = true;
  started_ = false;
  begin({});
  Slot& t = thread();
  for (int round = 0; round < 3; ++round) {
    refused_ = 0;
    for (int i = 0; i < 100000 && refused_ == 0; ++i) try_allocate(t, i % 10 == 0 ? 100000 : 500);
    EXPECT_GT(refused_, 0u);
    while (!live_.empty()) drop(t, 0);
  }
  engine().upkeep().trim(t);
  EXPECT_EQ(statistics().live_objects, 0u);
}

}  // namespace
}  // namespace lanemalloc
