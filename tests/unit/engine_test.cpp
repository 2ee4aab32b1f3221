// Engine: malloc and free of every size, alone and among several threads that are played by slots.
#include "fixture.h"

namespace lanemalloc {
namespace {

std::vector<Bytes> telling_sizes() {
  std::vector<Bytes> sizes = {0, 1};
  for (unsigned c = 1; c < kClassCount; ++c)
    for (Bytes s : {size_of(static_cast<SizeClass>(c)) - 1, size_of(static_cast<SizeClass>(c))}) sizes.push_back(s);
  for (Bytes s : {kSlabMax + 1, Bytes{300000}, Bytes{1} << 20, (Bytes{3} << 20) + 17}) sizes.push_back(s);
  return sizes;
}

TEST_ALL_CONFIGS(EngineTest, ObjectsOfEverySizeAreAlignedApartAndWhole) {
  Slot& t = thread();
  struct Kept {
    void* p;
    Bytes size;
  };
  std::vector<Kept> kept;
  for (int round = 0; round < 3; ++round) {
    for (Bytes size : telling_sizes()) {
      void* p = take(t, size);
      EXPECT_EQ(reinterpret_cast<Address>(p) % kGranule, 0u);
      const Found found = engine().find(p);
      ASSERT_EQ(found.verdict, Verdict::kGood);
      EXPECT_GE(engine().usable_size(p, found.entry), size);
      fill(p, engine().usable_size(p, found.entry), kept.size());
      kept.push_back({p, engine().usable_size(p, found.entry)});
    }
  }
  for (size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(is_whole(kept[i].p, kept[i].size, i)) << kept[i].size;
  for (const Kept& k : kept) give(t, k.p);
  EXPECT_EQ(statistics().live_objects, 0u);
  EXPECT_EQ(statistics().live_bytes, 0u);
}

TEST_ALL_CONFIGS(EngineTest, AFreedObjectIsUsedAgainBeforeFreshMemoryIs) {
  Slot& t = thread();
  for (Bytes size : {Bytes{32}, Bytes{4000}, Bytes{100000}, Bytes{1} << 20}) {
    for (int i = 0; i < 2000; ++i) give(t, take(t, size));
    EXPECT_LE(statistics().runs.claimed, Bytes{16} << 20) << size;
  }
}

TEST_ALL_CONFIGS(EngineTest, NullIsFreedInPeace) {
  Slot& t = thread();
  give(t, nullptr);
  EXPECT_EQ(t.load(), &no_lane_gate);
  give(t, take(t, 8));
  give(t, nullptr);
  EXPECT_EQ(statistics().live_objects, 0u);
}

TEST_ALL_CONFIGS(EngineTest, SizesBeyondTheRegionAreRefused) {
  Slot& t = thread();
  for (Bytes size : {world().region.bytes(), world().region.bytes() + 1, ~Bytes{0} / 2, ~Bytes{0}})
    EXPECT_EQ(engine().allocate(size, t), nullptr) << size;
  for (Bytes alignment = Bytes{1} << 40; alignment != 0; alignment *= 2)
    EXPECT_EQ(engine().allocate_aligned(64, alignment, t), nullptr) << alignment;
  give(t, take(t, 100));
}

TEST_ALL_CONFIGS(EngineTest, AlignedObjectsAreAligned) {
  Slot& t = thread();
  std::vector<void*> all;
  for (Bytes alignment = 1; alignment <= (Bytes{16} << 20); alignment *= 2) {
    for (Bytes size : {Bytes{0}, Bytes{1}, Bytes{24}, Bytes{100}, Bytes{1025}, Bytes{5000}, Bytes{70000}, Bytes{300000}}) {
      void* p = engine().allocate_aligned(size, alignment, t);
      ASSERT_NE(p, nullptr) << size << " at " << alignment;
      EXPECT_EQ(reinterpret_cast<Address>(p) % alignment, 0u) << size;
      EXPECT_GE(engine().usable_size(p, engine().find(p).entry), size);
      fill(p, size, alignment + size);
      EXPECT_TRUE(is_whole(p, size, alignment + size));
      all.push_back(p);
    }
  }
  for (void* p : all) give(t, p);
  EXPECT_EQ(statistics().live_objects, 0u);
}

TEST_ALL_CONFIGS(EngineTest, ZeroedObjectsAreZero) {
  Slot& t = thread();
  for (Bytes size : telling_sizes()) {
    for (int round = 0; round < 2; ++round) {  // the second time the memory was used
      auto* p = static_cast<unsigned char*>(engine().allocate_zeroed(size, t));
      ASSERT_NE(p, nullptr);
      Bytes bad = 0;
      for (Bytes i = 0; i < size; ++i) bad += p[i] != 0;
      EXPECT_EQ(bad, 0u) << size;
      memset(p, 0xFF, size);
      give(t, p);
    }
  }
}

// --- Resizing.

class ReallocTest : public EngineTest {
 protected:
  void* resize(Slot& t, void* p, Bytes size) {
    const Found found = engine().find(p);
    EXPECT_EQ(found.verdict, Verdict::kGood);
    return engine().reallocate(p, found.entry, size, t);
  }
  Bytes usable(void* p) { return engine().usable_size(p, engine().find(p).entry); }
};

TEST_ALL_CONFIGS(ReallocTest, KeepsContentsWhateverTheWay) {
  Slot& t = thread();
  Random random(7);
  Bytes size = 100;
  void* p = take(t, size);
  fill(p, size, 1);
  for (uint64_t i = 2; i < 400; ++i) {
    const Bytes next = random.one_in(2) ? random.between(1, 3000) : random.between(1, 6 << 20);
    // A pattern that depends on the place only, so that any prefix is known.
    auto* bytes = static_cast<unsigned char*>(p);
    for (Bytes at = 0; at < size; at += 509) bytes[at] = static_cast<unsigned char>(at * 31 + i);
    p = resize(t, p, next);
    ASSERT_NE(p, nullptr);
    EXPECT_GE(usable(p), next);
    bytes = static_cast<unsigned char*>(p);
    for (Bytes at = 0; at < std::min(size, next); at += 509)
      ASSERT_EQ(bytes[at], static_cast<unsigned char>(at * 31 + i)) << "from " << size << " to " << next;
    size = next;
  }
  give(t, p);
  EXPECT_EQ(statistics().live_objects, 0u);
  EXPECT_EQ(statistics().live_bytes, 0u);
}

TEST_ALL_CONFIGS(ReallocTest, StaysInPlaceWhereItFits) {
  Slot& t = thread();
  void* p = take(t, 1000);
  EXPECT_EQ(resize(t, p, usable(p)), p);
  EXPECT_EQ(resize(t, p, usable(p) / 2), p);
  void* smaller = resize(t, p, usable(p) / 2 - 1);
  EXPECT_NE(smaller, p);
  give(t, smaller);
  void* tiny = take(t, 16);
  EXPECT_EQ(resize(t, tiny, 1), tiny);
  give(t, tiny);
}

TEST_ALL_CONFIGS(ReallocTest, ALargeObjectGrowsIntoWhatIsFreeBehindItAndShrinksInPlace) {
  Slot& t = thread();
  void* p = take(t, 8 << 20);
  fill(p, 1 << 20, 4);
  EXPECT_EQ(resize(t, p, 1 << 20), p);
  EXPECT_EQ(statistics().large_live_bytes, Bytes{1} << 20);
  EXPECT_EQ(resize(t, p, 2 << 20), p);
  EXPECT_EQ(resize(t, p, 5 << 20), p);
  EXPECT_EQ(statistics().large_live_bytes, Bytes{5} << 20);
  EXPECT_TRUE(is_whole(p, 1 << 20, 4));
  EXPECT_EQ(resize(t, p, kSlabMax + 1), p);
  EXPECT_EQ(statistics().large_live_bytes, kSlabMax + kBlockSize);
  EXPECT_EQ(Fake::calls(Fake::Call::kMove), 0u);
  give(t, p);
}

TEST_ALL_CONFIGS(ReallocTest, ALargeObjectThatCannotGrowIsMovedByTheKernelAndNotCopied) {
  Slot& t = thread();
  void* p = take(t, 2 << 20);
  fill(p, 2 << 20, 5);
  take(t, 1 << 20);
  void* moved = resize(t, p, 20 << 20);
  ASSERT_NE(moved, nullptr);
  EXPECT_NE(moved, p);
  EXPECT_EQ(Fake::calls(Fake::Call::kMove), 1u);
  EXPECT_TRUE(is_whole(moved, 2 << 20, 5));
  EXPECT_EQ(engine().find(p).verdict, Verdict::kFreedAlready);
  // An eighth was added, so the next step moves nothing.
  EXPECT_EQ(resize(t, moved, 22 << 20), moved);
  EXPECT_EQ(Fake::calls(Fake::Call::kMove), 1u);
  give(t, moved);
  EXPECT_EQ(statistics().large_live_bytes, Bytes{1} << 20);
  EXPECT_EQ(statistics().runs.claimed, Fake::claimed_blocks() * kBlockSize);
}

TEST_ALL_CONFIGS(ReallocTest, WhereTheKernelRefusesToMoveItIsCopied) {
  Slot& t = thread();
  void* p = take(t, 2 << 20);
  fill(p, 2 << 20, 5);
  take(t, 1 << 20);
  Fake::fail(Fake::Call::kMove, 1);
  void* copied = resize(t, p, 20 << 20);
  ASSERT_NE(copied, nullptr);
  EXPECT_TRUE(is_whole(copied, 2 << 20, 5));
  give(t, copied);
  EXPECT_EQ(statistics().large_live_bytes, Bytes{1} << 20);
}

TEST_ALL_CONFIGS(ReallocTest, WithoutMemoryTheOldObjectStays) {
  Slot& t = thread();
  for (Bytes size : {Bytes{100}, Bytes{200000}, Bytes{2} << 20}) {
    void* p = take(t, size);
    fill(p, size, 3);
    Fake::fail(Fake::Call::kClaim, 1);
    EXPECT_EQ(resize(t, p, Bytes{200} << 20), nullptr);
    Fake::fail_never();
    EXPECT_TRUE(is_whole(p, size, 3));
    give(t, p);
  }
  EXPECT_EQ(statistics().live_objects, 0u);
}

TEST_ALL_CONFIGS(ReallocTest, GrowingStepByStepCostsFewMoves) {
  Slot& t = thread();
  Bytes size = 1 << 20;
  void* p = take(t, size);
  for (int i = 0; i < 300; ++i) {
    take(t, 1 << 19);  // something comes to lie behind it
    p = resize(t, p, size += 1 << 16);
    ASSERT_NE(p, nullptr);
  }
  EXPECT_LE(Fake::calls(Fake::Call::kMove), 40u);
}

// --- Several threads.

TEST_ALL_CONFIGS(EngineTest, EachThreadHasItsOwnLaneAndItsOwnSlabs) {
  Slot &a = thread(), &b = thread();
  void* pa = take(a, 64);
  void* pb = take(b, 64);
  EXPECT_NE(lane_of(a), lane_of(b));
  EXPECT_EQ(owner_of(pa), lane_of(a)->id());
  EXPECT_EQ(owner_of(pb), lane_of(b)->id());
  EXPECT_NE(reinterpret_cast<Address>(pa) / kBlockSize, reinterpret_cast<Address>(pb) / kBlockSize);
  give(a, pa);
  give(b, pb);
}

TEST_ALL_CONFIGS(EngineTest, AHandlerThatFindsItsThreadInsideWorksInAnOverflowLane) {
  Slot& t = thread();
  void* mine = take(t, 48);
  Lane<Fake>* lane = lane_of(t);
  in_handler(t, [&] {
    void* p = take(t, 48);
    EXPECT_NE(owner_of(p), lane->id());
    void* large = take(t, 1 << 20);
    give(t, p);
    give(t, large);
    give(t, mine);  // of the lane that was interrupted: sent there
  });
  EXPECT_EQ(lane_of(t), lane);
  const Statistics s = statistics();
  EXPECT_GE(s.nested_entries, 3u);
  EXPECT_EQ(s.rescue_entries, 1u);
  EXPECT_EQ(s.live_objects, 0u);
}

TEST_ALL_CONFIGS(EngineTest, AHandlerInAHandlerGetsALaneOfItsOwn) {
  Slot& t = thread();
  take(t, 48);
  const Owner mine = lane_of(t)->id();
  // The first handler is inside an overflow lane when the second one comes.
  Visit first(&t, false);
  Lane<Fake>* overflow = world().lanes.enter_overflow(first);
  ASSERT_NE(overflow, nullptr);
  in_handler(t, [&] {
    void* p = take(t, 48);
    EXPECT_NE(owner_of(p), overflow->id());
    EXPECT_NE(owner_of(p), mine);
    give(t, p);
  });
  overflow->lock().release(first);
  EXPECT_EQ(statistics().rescue_entries, 2u);
}

TEST_ALL_CONFIGS(EngineTest, AHandlerNeverWaitsForALockThatItsThreadHolds) {
  Slot& t = thread();
  std::vector<void*> all;
  take(t, 48);
  Visit outside(&t, true);
  ASSERT_TRUE(world().depot.lock().acquire(outside));
  ASSERT_TRUE(world().runs.lock().acquire(outside));
  in_handler(t, [&] {
    for (Bytes size : telling_sizes()) all.push_back(take(t, size));
    for (void* p : all) give(t, p);
    engine().trim(t);
  });
  world().runs.lock().release(outside);
  world().depot.lock().release(outside);
  engine().trim(t);
  EXPECT_EQ(statistics().live_objects, 1u);
  EXPECT_EQ(statistics().runs_waits + statistics().depot_waits, 0u);
}

TEST_ALL_CONFIGS(EngineTest, AnOwnerFindsItsHeldLaneClosedAndGoesElsewhere) {
  Slot &t = thread(), &other = thread();
  void* p = take(t, 64);
  Lane<Fake>* lane = lane_of(t);
  Visit visit(&other, true);
  ASSERT_TRUE(lane->try_hold(visit));
  void* q = take(t, 64);
  EXPECT_NE(owner_of(q), lane->id());
  give(t, p);
  EXPECT_EQ(lane_of(t), lane);
  lane->let_go(visit);
  void* r = take(t, 64);
  EXPECT_EQ(owner_of(r), lane->id());
  give(t, q);
  give(t, r);
  EXPECT_EQ(statistics().overflow_entries, 2u);
  EXPECT_EQ(statistics().live_objects, 0u);
}

TEST_ALL_CONFIGS(EngineTest, ABusyLaneRefusesToBeHeldAndStaysOpenToItsOwner) {
  Slot &t = thread(), &other = thread();
  give(t, take(t, 64));
  Lane<Fake>* lane = lane_of(t);
  Visit visit(&other, true);
  in_handler(t, [&] { EXPECT_FALSE(lane->try_hold(visit)); });
  EXPECT_FALSE(lane->is_being_revoked());
  EXPECT_FALSE(lane->lock().is_held());
  void* p = take(t, 64);
  EXPECT_EQ(owner_of(p), lane->id());
  give(t, p);
}

TEST_ALL_CONFIGS(EngineTest, AnOwnerThatEntersDuringARevocationIsSeenOrSeesIt) {
  Slot &t = thread(), &other = thread();
  give(t, take(t, 64));
  Lane<Fake>* lane = lane_of(t);
  static Slot* owner;
  static Gate* gate;
  owner = &t;
  Fake::on_barrier = [] { gate = Owned::enter(*owner); };  // between [close] and [peek]
  Visit visit(&other, true);
  EXPECT_FALSE(lane->try_hold(visit));
  Fake::on_barrier = nullptr;
  Owned::leave(t, gate);
  EXPECT_TRUE(lane->try_hold(visit));
  // [look] comes after [close]: the gate is closed.
  Gate* seen = Owned::enter(t);
  EXPECT_FALSE(Owned::may_allocate(seen, 1));
  EXPECT_FALSE(Owned::may_free(seen, MapEntry(lane->id(), 0)));
  Owned::leave(t, seen);
  lane->let_go(visit);
}

TEST_ALL_CONFIGS(EngineTest, AHeldLaneIsClosedEvenIfItsOwnerOpenedItDuringTheRevocation) {
  Slot &t = thread(), &other = thread();
  give(t, take(t, 64));
  static Lane<Fake>* lane;
  static Slot* owner;
  static Gate* gate;
  lane = lane_of(t);
  owner = &t;
  // The owner is inside and has just read revoking == false; it goes on after [close], and leaves before [peek].
  gate = Owned::enter(t);
  ASSERT_FALSE(lane->is_being_revoked());
  Fake::on_barrier = [] {
    lane->open_gate();
    Owned::leave(*owner, gate);
  };
  Visit visit(&other, true);
  const bool held = lane->try_hold(visit);
  Fake::on_barrier = nullptr;
  EXPECT_FALSE(held && Owned::may_allocate(lane, 1)) << "owner and revoker are both inside";
  if (held) lane->let_go(visit);
  give(t, take(t, 64));
}

TEST_ALL_CONFIGS(EngineTest, WithoutABarrierTheOwnerIsAskedAndCleansItself) {
  Fake::has_barrier = false;
  Slot &t = thread(), &other = thread();
  std::vector<void*> all;
  for (int i = 0; i < 5000; ++i) all.push_back(take(t, 256));
  for (void* p : all) give(t, p);
  Visit visit(&other, true);
  EXPECT_FALSE(lane_of(t)->try_hold(visit));
  const unsigned c = index_of(class_of(256));
  EXPECT_GT(statistics().classes[c].slabs, 0u);
  give(t, take(t, 5000));  // a miss: it looks
  EXPECT_EQ(statistics().classes[c].slabs, 0u);
  EXPECT_FALSE(lane_of(t)->take_asked());
}

TEST_ALL_CONFIGS(EngineTest, FreesOfAnotherThreadArriveAndAreUsedAgain) {
  Slot &a = thread(), &b = thread();
  std::vector<void*> all;
  for (int i = 0; i < 3000; ++i) all.push_back(take(a, 64));
  const uint64_t claimed = statistics().runs.claimed;
  for (void* p : all) give(b, p);
  const Statistics s = statistics();
  EXPECT_EQ(s.remote_frees, 3000u);
  EXPECT_EQ(s.live_objects, 0u);
  EXPECT_GE(s.in_flight_objects, 1u);
  for (int i = 0; i < 2900; ++i) take(a, 64);
  EXPECT_EQ(statistics().runs.claimed, claimed);
  EXPECT_GT(statistics().inbox_drains, 0u);
}

TEST_ALL_CONFIGS(EngineTest, ABatchIsSentAfter64ObjectsOr32KiB) {
  Slot &a = thread(), &b = thread();
  std::vector<void*> small, big;
  for (int i = 0; i < 200; ++i) small.push_back(take(a, 16));
  for (int i = 0; i < 20; ++i) big.push_back(take(a, 16384));
  take(b, 16);
  Inbox<>& inbox = lane_of(a)->inbox();
  for (int i = 0; i < 64; ++i) {
    EXPECT_FALSE(inbox.has_mail()) << i;
    give(b, small[static_cast<size_t>(i)]);
  }
  give(b, small[64]);  // at the latest
  EXPECT_TRUE(inbox.has_mail());
  EXPECT_EQ(statistics().remote_batches, 1u);
  give(b, big[0]);
  EXPECT_EQ(statistics().remote_batches, 1u);
  give(b, big[1]);
  give(b, big[2]);
  EXPECT_EQ(statistics().remote_batches, 2u);
}

TEST_ALL_CONFIGS(EngineTest, ASleepingOwnerIsDrainedByWhoSends) {
  Slot &a = thread(), &b = thread();
  std::vector<void*> all;
  for (int i = 0; i < 40000; ++i) all.push_back(take(a, 128));
  const uint64_t slabs = statistics().slab_bytes;
  for (void* p : all) give(b, p);  // a does nothing all the while
  const Statistics s = statistics();
  EXPECT_GT(s.revocations, 0u);
  EXPECT_LT(s.slab_bytes, slabs / 4) << "what was freed is held back";
  EXPECT_LT(s.in_flight_objects, 64u * 20);
  EXPECT_EQ(s.live_objects, 0u);
}

TEST_ALL_CONFIGS(EngineTest, ASleepingOwnerThatIsInsideIsNotTouched) {
  Slot &a = thread(), &b = thread();
  std::vector<void*> all;
  for (int i = 0; i < 10000; ++i) all.push_back(take(a, 128));
  in_handler(a, [&] {
    for (void* p : all) give(b, p);
    EXPECT_EQ(statistics().inbox_drains, 0u);
  });
  EXPECT_GT(statistics().refused_revocations, 0u);
  EXPECT_EQ(statistics().live_objects, 0u);
}

// --- Thread exit.

TEST_ALL_CONFIGS(EngineTest, ALaneIsAdoptedWithItsContents) {
  Slot& a = thread();
  void* kept = take(a, 64);
  fill(kept, 64, 8);
  Lane<Fake>* lane = lane_of(a);
  for (int i = 0; i < 100; ++i) take(a, 64);
  const uint64_t claimed = statistics().runs.claimed;
  engine().thread_exits(a);
  EXPECT_EQ(a.load(), &exited_gate);
  EXPECT_EQ(lane->owner_slot(), nullptr);
  Slot& b = thread();
  void* p = take(b, 64);
  EXPECT_EQ(lane_of(b), lane);
  EXPECT_EQ(owner_of(p), lane->id());
  EXPECT_EQ(statistics().runs.claimed, claimed);
  EXPECT_TRUE(is_whole(kept, 64, 8));
  give(b, kept);
  EXPECT_EQ(statistics().live_objects, 101u);
}

TEST_ALL_CONFIGS(EngineTest, FreesAndAllocationsAfterTheExitStillWork) {
  Slot& a = thread();
  void* p = take(a, 64);
  engine().thread_exits(a);
  void* late = take(a, 64);
  EXPECT_EQ(a.load(), &exited_gate);
  give(a, p);
  give(a, late);
  engine().thread_exits(a);  // twice does no harm
  EXPECT_EQ(a.load(), &exited_gate);
  EXPECT_EQ(statistics().live_objects, 0u);
}

TEST_ALL_CONFIGS(EngineTest, AThreadThatExitsSendsWhatItHasCollected) {
  Slot &a = thread(), &b = thread();
  std::vector<void*> all;
  for (int i = 0; i < 10; ++i) all.push_back(take(a, 64));
  for (void* p : all) give(b, p);
  EXPECT_FALSE(lane_of(a)->inbox().has_mail());
  engine().thread_exits(b);
  EXPECT_TRUE(lane_of(a)->inbox().has_mail());
}

TEST_ALL_CONFIGS(EngineTest, AThreadThatNeverAllocatedExitsWithoutALane) {
  Slot& a = thread();
  engine().thread_exits(a);
  EXPECT_EQ(a.load(), &no_lane_gate);
  EXPECT_EQ(statistics().lanes, 0u);
}

TEST_ALL_CONFIGS(EngineTest, WhereNobodyTellsOfAThreadsExitItWorksInOverflowLanes) {
  engine().set_exit_watch([](Slot&) { return false; });
  Slot &a = thread(), &b = thread();
  void* p = take(a, 64);
  EXPECT_EQ(a.load(), &exited_gate);
  void* q = take(b, 64);
  give(b, p);
  give(a, q);
  EXPECT_EQ(statistics().live_objects, 0u);
  EXPECT_LE(statistics().lanes, 2u);
}

TEST_ALL_CONFIGS(EngineTest, AThousandThreadsOneAfterTheOtherShareOneLane) {
  for (int i = 0; i < 1000; ++i) {
    Slot& t = thread();
    void* p = take(t, 200);
    fill(p, 200, 1);
    give(t, p);
    engine().thread_exits(t);
  }
  EXPECT_EQ(statistics().lanes, 1u);
  EXPECT_EQ(statistics().live_objects, 0u);
}

// --- Bad pointers.

class BadPointerTest : public EngineTest {
 protected:
  Verdict free(Slot& t, void* p) { return engine().free(p, t); }
  static void* beyond(void* p, Bytes n) { return static_cast<char*>(p) + n; }
};

TEST_ALL_CONFIGS(BadPointerTest, WhatIsNotOursIsToldAndChangesNothing) {
  Slot& t = thread();
  int local = 0;
  EXPECT_EQ(free(t, &local), Verdict::kNotOurs);
  EXPECT_EQ(t.load(), &no_lane_gate);
  take(t, 10);
  EXPECT_EQ(free(t, &local), Verdict::kNotOurs);
  EXPECT_EQ(free(t, reinterpret_cast<void*>(world().region.base() - 16)), Verdict::kNotOurs);
  EXPECT_EQ(free(t, reinterpret_cast<void*>(world().region.base() + world().region.bytes())), Verdict::kNotOurs);
  EXPECT_EQ(free(t, reinterpret_cast<void*>(world().region.base() + world().region.bytes() - 16)), Verdict::kNotInUse);
  EXPECT_EQ(free(t, reinterpret_cast<void*>(16)), Verdict::kNotOurs);
  EXPECT_EQ(statistics().bad_pointers, 6u);
  EXPECT_EQ(statistics().live_objects, 1u);
}

TEST_ALL_CONFIGS(BadPointerTest, InsideAndFreedLargeObjectsAreToldApart) {
  Slot& t = thread();
  void* p = take(t, 1 << 20);
  for (Bytes n : {Bytes{16}, Bytes{65536}, Bytes{(1 << 20) - 16}}) EXPECT_EQ(free(t, beyond(p, n)), Verdict::kNotAStart) << n;
  EXPECT_EQ(free(t, p), Verdict::kGood);
  EXPECT_EQ(free(t, p), Verdict::kFreedAlready);
  EXPECT_EQ(engine().find(p).verdict, Verdict::kFreedAlready);
  EXPECT_EQ(statistics().live_objects, 0u);
}

TEST_ALL_CONFIGS(BadPointerTest, CheckedTellsEveryDoubleFreeAndInteriorPointer) {
  Settings checked;
  checked.checked = true;
  begin(checked);
  Slot &t = thread(), &other = thread();
  for (Bytes size : telling_sizes()) {
    void* p = take(t, size);
    take(other, size);
    EXPECT_EQ(engine().find(p).verdict, Verdict::kGood);
    if (size > 8) {
      EXPECT_EQ(free(t, beyond(p, 8)), Verdict::kNotAStart) << size;
    }
    if (size > 16) {
      EXPECT_EQ(free(other, beyond(p, 16)), Verdict::kNotAStart) << size;
    }
    EXPECT_EQ(free(t, p), Verdict::kGood) << size;
    EXPECT_EQ(free(t, p), Verdict::kFreedAlready) << size;
    EXPECT_EQ(free(other, p), Verdict::kFreedAlready) << size;
    EXPECT_EQ(engine().find(p).verdict, Verdict::kFreedAlready) << size;
  }
  EXPECT_EQ(statistics().live_objects, telling_sizes().size());
}

TEST_ALL_CONFIGS(BadPointerTest, CheckedTellsADoubleFreeOfAnotherThreadsObject) {
  Settings checked;
  checked.checked = true;
  begin(checked);
  Slot &a = thread(), &b = thread();
  void* p = take(a, 64);
  take(b, 64);
  EXPECT_EQ(free(b, p), Verdict::kGood);
  EXPECT_EQ(free(b, p), Verdict::kFreedAlready);  // still on its way
  EXPECT_EQ(free(a, p), Verdict::kFreedAlready);
}

TEST_ALL_CONFIGS(BadPointerTest, CheckedServesAlignedZeroedAndResizedObjectsToo) {
  Settings checked;
  checked.checked = true;
  begin(checked);
  Slot& t = thread();
  void* p = engine().allocate_aligned(100, 256, t);
  EXPECT_EQ(free(t, p), Verdict::kGood);
  EXPECT_EQ(free(t, p), Verdict::kFreedAlready);
  void* z = engine().allocate_zeroed(40, t);
  void* r = engine().reallocate(z, engine().find(z).entry, 4000, t);
  EXPECT_EQ(free(t, z), Verdict::kFreedAlready);
  EXPECT_EQ(free(t, r), Verdict::kGood);
  EXPECT_EQ(statistics().live_objects, 0u);
}

TEST_ALL_CONFIGS(BadPointerTest, UncheckedADoubleFreeOnTheSlabsListIsToldBeforeAnythingIsHandedOutTwice) {
  Slot& t = thread();
  std::vector<void*> all;
  const unsigned n = capacity_of(class_of(64));
  for (unsigned i = 0; i < n; ++i) all.push_back(take(t, 64));
  take(t, 64);  // the next slab is current now
  for (int i = 0; i < 3; ++i) give(t, all[static_cast<size_t>(i)]);
  EXPECT_EQ(free(t, all[2]), Verdict::kGood);  // a hit looks at nothing
  std::vector<void*> got;
  for (unsigned i = 0; i < 4 * n && reports.empty(); ++i) {
    void* p = take(t, 64);
    EXPECT_EQ(std::count(got.begin(), got.end(), p), 0) << "handed out twice";
    got.push_back(p);
    give(t, all[3 + i % (n - 3)]);
    all[3 + i % (n - 3)] = p;
    got.erase(std::remove(got.begin(), got.end(), p), got.end());
  }
  ASSERT_FALSE(reports.empty());
  EXPECT_TRUE(reports[0].why == Verdict::kListDamaged || reports[0].why == Verdict::kFreedAlready);
  reports.clear();
}

TEST_ALL_CONFIGS(BadPointerTest, MoreFreesThanObjectsAreToldAndNothingIsHandedOutTwice) {
  Slot& t = thread();
  void* in_use = take(t, 64);
  void* p = take(t, 64);
  for (int i = 0; i < 100 && reports.empty(); ++i) (void)free(t, p);
  ASSERT_FALSE(reports.empty());
  EXPECT_EQ(reports[0].why, Verdict::kFreedAlready);
  std::vector<void*> got = {in_use};
  for (int i = 0; i < 300; ++i) got.push_back(take(t, 64));
  std::sort(got.begin(), got.end());
  EXPECT_EQ(std::unique(got.begin(), got.end()), got.end());
  reports.clear();
}

// Fills slabs of 4 KiB objects, and frees as many objects of the first one as it has, but one of them twice and one never.
class DamagedSlabTest : public BadPointerTest {
 protected:
  void damage(Slot& t, bool second_partial) {
    const unsigned n = capacity_of(class_of(4096));
    std::vector<void*> all;
    for (unsigned i = 0; i < 3 * n; ++i) all.push_back(take(t, 4096));
    for (unsigned i = n; second_partial && i < n + n / 2; ++i) give(t, all[i]);
    in_use_ = all[0];
    fill(in_use_, 4096, 9);
    for (unsigned i = 1; i < n; ++i) (void)free(t, all[i]);
    (void)free(t, all[1]);
  }
  void TearDown() override {
    reports.clear();
    BadPointerTest::TearDown();
  }
  void* in_use_ = nullptr;
};

TEST_ALL_CONFIGS(DamagedSlabTest, IsToldWhenItLooksEmptyAndTheLaneStaysWhole) {
  Slot& t = thread();
  damage(t, true);
  ASSERT_FALSE(reports.empty());
  EXPECT_EQ(reports[0].why, Verdict::kListDamaged);
  engine().check_invariants();
}

TEST_ALL_CONFIGS(DamagedSlabTest, IsNotGivenBackWithAnObjectInUse) {
  Slot& t = thread();
  damage(t, false);
  engine().trim(t);
  engine().check_invariants();
  ASSERT_EQ(engine().find(in_use_).verdict, Verdict::kGood) << "its memory was given back";
  EXPECT_TRUE(is_whole(in_use_, 4096, 9));
  EXPECT_FALSE(reports.empty());
}

// --- Giving back.

TEST_ALL_CONFIGS(EngineTest, TrimGivesBackEverythingThatIsFree) {
  Slot& t = thread();
  std::vector<void*> all;
  for (Bytes size : telling_sizes())
    for (int i = 0; i < 10; ++i) fill(all.emplace_back(take(t, size)), size, 1);
  for (void* p : all) give(t, p);
  engine().trim(t);
  const Statistics s = statistics();
  EXPECT_EQ(s.slab_bytes, 0u);
  EXPECT_EQ(s.runs.dirty, 0u);
  EXPECT_EQ(s.runs.claimed, s.runs.clean);
  EXPECT_FALSE(engine().trim(t)) << "there is nothing more";
}

TEST_ALL_CONFIGS(EngineTest, TrimReachesIdleThreadsAndLanesOfNobody) {
  Slot &a = thread(), &b = thread(), &c = thread();
  std::vector<void*> all;
  for (Slot* t : {&a, &b})
    for (int i = 0; i < 3000; ++i) all.push_back(take(*t, 100));
  for (size_t i = 0; i < all.size(); ++i) give(i < 3000 ? a : b, all[i]);
  engine().thread_exits(b);
  EXPECT_TRUE(engine().trim(c));
  EXPECT_EQ(statistics().slab_bytes, 0u);
  EXPECT_EQ(statistics().runs.dirty, 0u);
  give(a, take(a, 100));
}

TEST_ALL_CONFIGS(EngineTest, TrimGivesBackWhatThreadsHaveCollectedForEachOther) {
  Slot &a = thread(), &b = thread(), &c = thread();
  void* pa = take(a, 100);
  void* pb = take(b, 100);
  give(b, pa);
  give(a, pb);
  engine().trim(c);
  EXPECT_EQ(statistics().in_flight_objects, 0u);
  EXPECT_EQ(statistics().slab_bytes, 0u) << "one round of cleaning leaves what the later lanes sent to the earlier ones";
}

TEST_ALL_CONFIGS(EngineTest, ACleanedLanesSlabsFeedOtherLanes) {
  Slot &a = thread(), &b = thread();
  void* kept = take(a, 100);
  engine().trim(a);
  EXPECT_EQ(owner_of(kept), Owner::kDepot);
  const uint64_t made = statistics().slabs_made;
  void* p = take(b, 100);
  EXPECT_EQ(owner_of(p), lane_of(b)->id());
  EXPECT_EQ(owner_of(kept), lane_of(b)->id());
  EXPECT_EQ(statistics().slabs_made, made);
  give(a, kept);
  give(b, p);
  EXPECT_EQ(statistics().live_objects, 0u);
}

TEST_ALL_CONFIGS(EngineTest, ObjectsOfTheDepotAreFreedByAnybody) {
  Slot &a = thread(), &b = thread();
  std::vector<void*> all;
  for (int i = 0; i < 1000; ++i) all.push_back(take(a, 100));
  for (int i = 0; i < 1000; i += 7) give(a, all[static_cast<size_t>(i)]);
  engine().trim(a);
  for (int i = 0; i < 1000; ++i)
    if (i % 7 != 0) give(i % 2 == 0 ? a : b, all[static_cast<size_t>(i)]);
  EXPECT_EQ(statistics().live_objects, 0u);
  engine().trim(a);
  engine().trim(b);
  EXPECT_EQ(statistics().slab_bytes, 0u);
}

// --- Random operations of several threads, with figures that must add up at every step.

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
    for (int i = 0; i < steps; ++i) {
      Slot*& t = alive_[random.below(alive_.size())];
      switch (random.below(40)) {
        case 0:
          engine().thread_exits(*t);
          t = &thread();
          break;
        case 1:
          if (random.one_in(4)) engine().trim(*t);
          break;
        case 2:
          if (!objects_.empty()) in_handler(*t, [&] { free_any(random, *t); });
          break;
        case 3: in_handler(*t, [&] { allocate(random, *t); }); break;
        case 4:
          if (Fake::thread_run != nullptr) passes(1);
          break;
        case 5:
          if (!objects_.empty()) resize(random, *t);
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
      for (Slot* t : alive_) engine().trim(*t);
    account();
    EXPECT_EQ(statistics().slab_bytes, 0u);
    EXPECT_EQ(statistics().runs.dirty, 0u);
  }

  void allocate(Random& random, Slot& t) {
    const Bytes size = random.one_in(50)  ? random.between(1, 1 << 20)
                       : random.one_in(5) ? random.between(1, 40000)
                                          : random.between(0, 1200);
    void* p = random.one_in(9)    ? engine().allocate_aligned(size, Bytes{16} << random.below(9), t)
              : random.one_in(9)  ? engine().allocate_zeroed(size, t)
                                  : engine().allocate(size, t);
    ASSERT_NE(p, nullptr);
    fill(p, size, ++seeds_);
    objects_.push_back({p, size, seeds_});
    live_bytes_ += engine().usable_size(p, engine().find(p).entry);
    ++allocations_;
  }
  void free_any(Random& random, Slot& t) {
    Object& o = objects_[random.below(objects_.size())];
    EXPECT_TRUE(is_whole(o.p, o.size, o.seed)) << "an object of " << o.size << " bytes was written to";
    const Found found = engine().find(o.p);
    ASSERT_EQ(found.verdict, Verdict::kGood);
    live_bytes_ -= engine().usable_size(o.p, found.entry);
    give(t, o.p);
    o = objects_.back();
    objects_.pop_back();
  }
  void resize(Random& random, Slot& t) {
    Object& o = objects_[random.below(objects_.size())];
    const Found found = engine().find(o.p);
    ASSERT_EQ(found.verdict, Verdict::kGood);
    EXPECT_TRUE(is_whole(o.p, o.size, o.seed));
    live_bytes_ -= engine().usable_size(o.p, found.entry);
    const Bytes size = random.between(1, random.one_in(10) ? 2 << 20 : 3000);
    void* p = engine().reallocate(o.p, found.entry, size, t);
    ASSERT_NE(p, nullptr);
    o = {p, size, ++seeds_};
    fill(p, size, seeds_);
    live_bytes_ += engine().usable_size(p, engine().find(p).entry);
  }

  void account() {
    engine().check_invariants();
    const Statistics s = statistics();
    EXPECT_EQ(s.live_objects, objects_.size());
    EXPECT_EQ(s.live_bytes, live_bytes_);
    EXPECT_EQ(s.allocations - s.frees, objects_.size());
    EXPECT_GE(s.allocations, allocations_);
    EXPECT_EQ(s.runs.claimed, Fake::claimed_blocks() * kBlockSize);
    EXPECT_EQ(s.bad_pointers, 0u);
    std::vector<uint64_t> by_class(kClassCount);
    for (const Object& o : objects_) {
      if (owner_of(o.p) != Owner::kLarge) ++by_class[index_of(class_at(o.p))];
    }
    for (unsigned c = 1; c < kClassCount; ++c) ASSERT_EQ(s.classes[c].live, by_class[c]) << "class " << c;
  }

  std::vector<Slot*> alive_;
  std::vector<Object> objects_;
  uint64_t seeds_ = 0, live_bytes_ = 0, allocations_ = 0;
};

TEST_ALL_CONFIGS(StormTest, OneThreadsFiguresAddUp) { storm(11, 1, 15000); }
TEST_ALL_CONFIGS(StormTest, SeveralThreadsFiguresAddUp) { storm(12, 7, 20000); }
TEST_ALL_CONFIGS(StormTest, ManyThreadsFiguresAddUp) { storm(13, 40, 20000); }
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
  Settings checked;
  checked.checked = true;
  begin(checked);
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
