// Kinds: what lanes and the engine do for them, seen through pools. Batches to other lanes, slabs
// that rest, exits, a lack of memory, figures.
#include <map>

#include "links.h"
#include "pools.h"

namespace lanemalloc {
namespace {

class KindsTest : public PoolTest {
 protected:
  uint64_t batches_sent() {
    uint64_t n = 0;
    world().lanes.for_each([&](AnyLane<Fake>& lane) { n += lane.counters().remote_batches; });
    return n;
  }
  Lane<Fake>& lane_with(const Slot& slot) { return *lane_of(slot); }
};

// --- Hits.

TEST_OWNED(KindsTest, AnOwnersPairTouchesNothingButItsBin) {
  Slot& t = thread();
  FakePool& pool = make(t, 48);
  give(pool, t, take(pool, t));
  const uint64_t refills = pool.kind().refills, activity = lane_of(t)->activity();
  const Bin* bin = lane_of(t)->bin_of(pool.kind());
  ASSERT_NE(bin, nullptr);
  for (int i = 0; i < 100; ++i) {
    Object* first = first_in(bin->hit);
    void* p = take(pool, t);
    EXPECT_EQ(p, first);
    give(pool, t, p);
    EXPECT_EQ(first_in(bin->hit), first);
  }
  EXPECT_EQ(pool.kind().refills, refills);
  EXPECT_EQ(lane_of(t)->activity(), activity);
}

TEST_OWNED(KindsTest, NullAndWhatLiesOutsideTheSlabIsNoHit) {
  Slot& t = thread();
  FakePool& pool = make(t, 48);
  Object* p = static_cast<Object*>(take(pool, t));
  Bin none{};
  EXPECT_FALSE(none.push(nullptr)) << "a bin that has nothing";
  EXPECT_FALSE(none.push(p));
  Bin& bin = *lane_of(t)->bin_of(pool.kind());
  const Address end = bin.hit.end;
  EXPECT_FALSE(bin.push(nullptr));
  EXPECT_FALSE(bin.push(reinterpret_cast<Object*>(end)));
  EXPECT_FALSE(bin.push(reinterpret_cast<Object*>(end - BinHead::kReach - 8)));
  EXPECT_TRUE(bin.push(p));
  EXPECT_EQ(first_in(bin.hit), p);
}

TEST_OWNED(KindsTest, ALaneThatWasTakenAwayIsHitAgainAfterItsOwnerHasMissed) {
  Slot& t = thread();
  FakePool& pool = make(t, 48);
  give(pool, t, take(pool, t));
  EXPECT_NE(Owned::area(t.load()), 0u);
  Visit visit(&world(), true);
  ASSERT_TRUE(lane_of(t)->try_hold(visit));
  EXPECT_EQ(Owned::area(t.load()), 0u);
  void* p = take(pool, t);  // in another lane
  lane_of(t)->let_go(visit);
  EXPECT_EQ(Owned::area(t.load()), 0u);
  give(pool, t, p);
  EXPECT_NE(Owned::area(t.load()), 0u);
  Gate* gate = Owned::enter(t);
  EXPECT_EQ(Owned::area(t.load()), 0u) << "busy";
  Owned::leave(t, gate);
}

// --- Handles.

// Checks what the head of core/slab/handle.h says, for each place: between two labels, or beside
// one, no value reads as one that would lead there.
TEST(HandleTest, OnlyAHandleFindsItselfAmongTheLabels) {
  uint64_t random = 1;
  for (uint32_t number = 0; number < Labels::kHits; ++number) {
    for (int round = 0; round < 8; ++round) {
      random = random * 6364136223846793005 + 1442695040888963407;
      const Handle handle = make_handle(number, random >> 20);
      ASSERT_EQ(Labels::place(handle), number * sizeof(Handle));
      ASSERT_EQ(number_of(handle), number);
      const Handle kinds[] = {0, handle, handle | Labels::kMissed};
      const Handle next =
          (round & 1) != 0 ? 0 : make_handle(number + 1, random >> 24) | (round >> 1 & 1);
      for (const Handle label : kinds) {
        const Handle both[] = {number == 0 ? 0 : label, next};
        for (Bytes into = 1; into < sizeof(Handle); ++into) {
          Handle value;
          memcpy(&value, reinterpret_cast<const std::byte*>(both) + into, sizeof value);
          const Bytes there = number * sizeof(Handle) + into;
          // The library also asks for the value that it is given with kMissed set.
          if (Labels::place(value) == there ||
              (value % 2 != 0 && Labels::place(value - 1) == there))
            FAIL() << std::hex << label << ' ' << next << ' ' << into;
        }
      }
    }
  }
}

TEST(HandleTest, BeyondThoseWithLabelsNumbersAreTheirOwn) {
  for (uint32_t number = Labels::kHits; number < 2 * Labels::kHits; ++number) {
    ASSERT_EQ(number_of(make_handle(number, number)), number);
    ASSERT_NE(make_handle(number, 7), make_handle(number - Labels::kHits, 7));
  }
}

TEST_OWNED(KindsTest, ALabelSaysWhoMayHit) {
  Slot &t = thread(), &other = thread();
  FakePool& pool = make(t, 48);
  const Handle handle = pool.family().handle;
  for (Slot* each : {&t, &other}) give(pool, *each, take(pool, *each));
  const std::map<Slot*, Address> areas = {{&t, Owned::area(t.load())},
                                          {&other, Owned::area(other.load())}};
  const auto label = [&](Slot& of) {
    Handle found;
    const Address at = areas.at(&of) + Labels::kPools + Labels::place(handle);
    memcpy(&found, reinterpret_cast<const void*>(at), sizeof found);
    return found;
  };
  const auto both_are = [&](Handle wanted) { return label(t) == wanted && label(other) == wanted; };
  EXPECT_TRUE(both_are(handle));
  ASSERT_TRUE(pool.set_limit(100, t));
  EXPECT_TRUE(both_are(handle | Labels::kMissed));
  ASSERT_TRUE(pool.set_limit(0, other));
  EXPECT_TRUE(both_are(handle));
  EXPECT_EQ(end(pool, t), 0u);
  EXPECT_TRUE(both_are(0));
  FakePool& next = make(t, 48);
  EXPECT_EQ(number_of(next.family().handle), number_of(handle));
  EXPECT_NE(next.family().handle, handle);
  give(next, t, take(next, t));
  EXPECT_EQ(label(t), next.family().handle);
  EXPECT_EQ(label(other), 0u) << "it has no bin there";
}

// A handler comes between the two steps of a thread's first entering. The lane that the handler has
// taken is the thread's.
TEST(KindsHitTest, WhoLeavesAsFoundKeepsTheLaneThatAHandlerHasPutThere) {
  alignas(kGateAlignment) Gate of_handler;
  Slot slot{&of_handler};
  __atomic_store_n(reinterpret_cast<unsigned char*>(&slot), kBusyByte, __ATOMIC_RELAXED);
  Owned::leave_as_found(slot, &no_lane_gate);
  EXPECT_EQ(slot.load(), &of_handler);
}

// --- Between lanes.

TEST_ALL_CONFIGS(KindsTest, FreesElsewhereGoInBatches) {
  Slot &a = thread(), &b = thread();
  PoolCalls calls;
  for (Bytes bytes : {16u, 24u, 64u, 200u})
    for (const PoolFunctions& functions : {PoolFunctions{}, calls.memory_only()}) {
      FakePool& pool = make(a, bytes, 0, 0, functions);
      constexpr uint64_t kObjects = 1000;
      std::vector<void*> all = take_many(pool, a, kObjects);
      give(pool, b, take(pool, b));
      const uint64_t before = batches_sent();
      give_all(pool, b, all);
      const uint64_t most = (kObjects + Kind::kFirstBatch - 1) / Kind::kFirstBatch;
      EXPECT_LE(batches_sent() - before, most) << bytes;
      EXPECT_EQ(live(pool, a), 0u);
      EXPECT_EQ(end(pool, a), 0u);
    }
}

TEST_OWNED(KindsTest, BatchesGrowAsSendersMeetAndShrinkInReclaim) {
  Slot& a = thread();
  FakePool& pool = make(a, 64);
  EXPECT_EQ(pool.kind().batch, Kind::kFirstBatch);
  std::vector<void*> all = take_many(pool, a, 6000);
  Slot &b = thread(), &c = thread();
  for (size_t i = 0; i < all.size(); ++i) give(pool, i % 2 == 0 ? b : c, all[i]);
  EXPECT_EQ(pool.kind().batch, Kind::kMostBatch) << "two send to one who does not look";
  EXPECT_GT(pool.kind().contended, 2u);
  reclaim(pool, a, Reclaim::kTrim);
  EXPECT_EQ(pool.kind().batch, Kind::kMostBatch);
  reclaim(pool, a, Reclaim::kDrain);
  EXPECT_EQ(pool.kind().batch, Kind::kFirstBatch);
  // One sender alone meets no other.
  const uint64_t contended = pool.kind().contended;
  all = take_many(pool, a, 300);
  give_all(pool, b, all);
  EXPECT_EQ(pool.kind().contended, contended);
}

TEST_ALL_CONFIGS(KindsTest, MallocsObjectsAndEveryKindsGoTheirOwnWays) {
  Slot &a = thread(), &b = thread();
  FakePool &one = make(a, 48), &two = make(a, 48);
  std::vector<void*> plain, ones, twos;
  for (int i = 0; i < 2000; ++i) {
    plain.push_back(take(a, 48));
    ones.push_back(take(one, a));
    twos.push_back(take(two, a));
  }
  for (size_t i = 0; i < 2000; ++i) {
    give(b, plain[i]);
    give(two, b, twos[i]);
    give(one, b, ones[i]);
  }
  EXPECT_EQ(statistics().live_objects, 0u);
  EXPECT_EQ(live(one, a) + live(two, a), 0u);
  std::set<void*> unlike;
  for (int i = 0; i < 2500; ++i) {
    EXPECT_TRUE(unlike.insert(take(one, a)).second);
    EXPECT_TRUE(unlike.insert(take(two, b)).second);
    EXPECT_TRUE(unlike.insert(take(b, 48)).second);
  }
}

TEST_ALL_CONFIGS(KindsTest, FiguresAreExactAtRestWhateverHasHappened) {
  std::vector<Slot*> threads;
  for (int i = 0; i < 5; ++i) threads.push_back(&thread());
  PoolCalls calls;
  FakePool &plain = make(*threads[0], 40), &made = make(*threads[1], 72, 900, 5, calls.all());
  std::vector<std::pair<FakePool*, void*>> all;
  Random random(77);
  for (int step = 0; step < 12000 / kShorter; ++step) {
    Slot*& t = threads[random.below(threads.size())];
    FakePool& pool = random.one_in(2) ? plain : made;
    switch (random.below(30)) {
      case 0:
        engine().exits().thread_exits(*t);
        t = &thread();
        break;
      case 1:
        if (random.one_in(3)) engine().upkeep().trim(*t);
        break;
      case 2:
        reclaim(pool, *t, static_cast<Reclaim>(random.below(3)));
        break;
      case 3:
        in_handler(*t, [&] {
          if (void* p = try_take(pool, *t)) all.emplace_back(&pool, p);
        });
        break;
      case 4:
        if (is_scavenger_wanted()) passes(1);
        break;
      default:
        if (all.size() < 1500 && random.below(100) < 53) {
          if (void* p = try_take(pool, *t, random.one_in(9) ? kUseReserve : 0))
            all.emplace_back(&pool, p);
        } else if (!all.empty()) {
          std::swap(all[random.below(all.size())], all.back());
          give(*all.back().first, *t, all.back().second);
          all.pop_back();
        }
    }
    if (step % 300 != 0) continue;
    uint64_t plains = 0;
    for (const auto& object : all) plains += object.first == &plain;
    EXPECT_EQ(live(plain, *t), plains);
    EXPECT_EQ(live(made, *t), all.size() - plains);
    EXPECT_EQ(calls.ctors - calls.dtors, static_cast<int>(all.size() - plains));
    EXPECT_LE(static_cast<uint64_t>(calls.inits - calls.finis), cut(made));
    EXPECT_LE(cut(made), 900u);
    engine().check_invariants();
    EXPECT_EQ(statistics().runs.claimed, Fake::claimed_blocks() * kBlockSize);
  }
  for (const auto& object : all) give(*object.first, *threads[0], object.second);
  EXPECT_EQ(end(plain, *threads[0]), 0u);
  EXPECT_EQ(end(made, *threads[0]), 0u);
  EXPECT_EQ(calls.inits, calls.finis);
}

// --- Lanes that rest.

TEST_ALL_CONFIGS(KindsTest, TheScavengerGivesRestingLanesSlabsBackOrToTheDepot) {
  Slot &a = thread(), &b = thread();
  start_threads();
  PoolCalls calls;
  FakePool &plain = make(a, 200), &made = make(a, 200, 0, 0, calls.all());
  std::vector<void*> kept = {take(plain, a), take(made, a)};
  give_all(plain, a, take_many(plain, a, 3000));
  give_all(made, a, take_many(made, a, 3000));
  give(b, take(b, kSlabMax + 1));
  all_passes();
  EXPECT_EQ(plain.kind().slabs, 1u) << "only what is in use";
  EXPECT_EQ(plain.kind().depot_count, 1u);
  EXPECT_EQ(made.kind().depot_count, made.kind().slabs) << "fini is for reclaim to call";
  EXPECT_GT(made.kind().slabs, 1u);
  EXPECT_EQ(calls.finis, 0);
  const uint32_t slabs = made.kind().slabs;
  give_all(made, b, take_many(made, b, 2000));
  EXPECT_EQ(made.kind().slabs, slabs) << "any lane may have them";
  give(plain, b, kept[0]);
  give(made, b, kept[1]);
}

TEST_OWNED(KindsTest, TheNextThreadAdoptsALaneWithItsBins) {
  Slot& gone = thread();
  FakePool& pool = make(gone, 48);
  give(pool, gone, take(pool, gone));
  const Bin* bin = lane_of(gone)->bin_of(pool.kind());
  Object* first = first_in(bin->hit);
  engine().exits().thread_exits(gone);
  EXPECT_EQ(gone.load(), &exited_gate);
  Slot& next = thread();
  EXPECT_EQ(take(pool, next), first);
  EXPECT_EQ(lane_of(next)->bin_of(pool.kind()), bin);
  give(pool, gone, take(pool, gone));  // in an overflow lane
}

// --- Without memory.

class KindsOutOfMemoryTest : public KindsTest {
 protected:
  void script() {
    Slot &a = thread(), &b = thread();
    Fake::number = cpu_of(a);
    FakePool& pool =
        *pools_.emplace_back(std::make_unique<FakePool>(engine(), "fish", 600, 8, calls_.all()));
    is_there_ = pool.start(3000, 5, a);
    if (!is_there_) return;
    std::vector<void*> all;
    for (int i = 0; i < 300; ++i)
      for (Slot* t : {&a, &b})
        if (void* p = try_take(pool, *t, i % 10 == 0 ? kUseReserve : 0)) all.push_back(p);
    in_handler(a, [&] {
      if (void* p = try_take(pool, a)) all.push_back(p);
    });
    pool.preallocate(200, b);
    std::swap(all, live_);
    Slot& c = thread();
    for (size_t i = 0; i < live_.size(); i += 2) give(pool, i % 4 == 0 ? b : c, live_[i]);
    for (size_t i = 0; i < live_.size(); i += 2) live_[i] = nullptr;
    reclaim(pool, c, Reclaim::kDrain);
    engine().exits().thread_exits(b);
    for (int i = 0; i < 50; ++i)
      if (void* p = try_take(pool, c)) live_.push_back(p);
  }
  void fail_everywhere(Fake::Call call, bool for_ever) {
    begin({});
    const uint64_t before = Fake::calls(call);
    script();
    const uint64_t calls = Fake::calls(call) - before;
    ASSERT_GT(calls, 0u);
    for (uint64_t nth = 1; nth <= calls; ++nth) {
      SCOPED_TRACE("call " + std::to_string(nth) + " of " + std::to_string(calls));
      begin({});
      pools_.clear();
      live_.clear();
      calls_.inits = calls_.finis = calls_.ctors = calls_.dtors = 0;
      for_ever ? Fake::fail(call, nth) : Fake::fail_once(call, nth);
      script();
      engine().check_invariants();
      FakePool& pool = *pools_.back();
      Slot& t = thread();
      uint64_t in_use = 0;
      for (void* p : live_) in_use += p != nullptr;
      Fake::fail_never();
      if (is_there_) {
        EXPECT_EQ(live(pool, t), in_use);
        for (void* p : live_)
          if (p != nullptr) give(pool, t, p);
        EXPECT_EQ(pool.reserved(), 5u);
        EXPECT_EQ(take_all(pool, t).size(), 2995u) << "memory is there again, and yet";
        EXPECT_EQ(end(pool, t), 2995u);
      } else {
        EXPECT_EQ(end(pool, t), 0u);
      }
      EXPECT_EQ(calls_.inits, calls_.finis);
      for (int i = 0; i < 4; ++i) engine().upkeep().trim(t);
      EXPECT_EQ(statistics().slab_bytes, 0u);
      EXPECT_EQ(statistics().runs.claimed, Fake::claimed_blocks() * kBlockSize);
      if (HasFailure()) return;
    }
  }
  PoolCalls calls_;
  bool is_there_ = false;
  std::vector<void*> live_;
};

TEST_ALL_CONFIGS(KindsOutOfMemoryTest, AnyCallFailsOnce) {
  fail_everywhere(Fake::Call::kAnyMemory, false);
}
TEST_ALL_CONFIGS(KindsOutOfMemoryTest, AnyCallAndAllLaterOnesFail) {
  fail_everywhere(Fake::Call::kAnyMemory, true);
}

// A lane without memory for a bin still sends what it frees. The end of the pool finds it there.
TEST_OWNED(KindsOutOfMemoryTest, WhatALaneWithoutABinHasFreedIsFoundAtTheEnd) {
  Slot &a = thread(), &b = thread();
  FakePool& pool = make(a, 100, 50);
  std::vector<void*> all = take_all(pool, a);
  give(b, take(b, 64));
  Fake::fail(Fake::Call::kClaim, 1);
  std::vector<void*> rest;
  for (void* p; (p = engine().allocate(kSlabMax + 1, a)) != nullptr;) rest.push_back(p);
  for (size_t i = 0; i < 10; ++i) give(pool, b, all[i]);
  EXPECT_EQ(lane_of(b)->bin_of(pool.kind()), nullptr);
  EXPECT_EQ(live(pool, a), 40u);
  Slot& c = thread();
  Fake::fail(Fake::Call::kExtend, 1);
  while (world().lanes.pop_idle_or_make() != nullptr) {
  }
  for (size_t i = 10; i < 20; ++i) give(pool, c, all[i]);  // without a lane
  Fake::fail_never();
  for (void* p : rest) give(a, p);
  EXPECT_EQ(live(pool, a), 30u);
  EXPECT_EQ(take_all(pool, a).size(), 20u);
  for (size_t i = 20; i < 30; ++i) give(pool, a, all[i]);
  EXPECT_EQ(end(pool, a), 40u);
  engine().upkeep().trim(b);
  engine().check_invariants();
}

}  // namespace
}  // namespace lanemalloc
