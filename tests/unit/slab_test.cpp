// Slab and depot: counts of a slab in every place it may be, damaged lists, slabs between two
// lanes.
#include "core/slab/slab.h"

#include "core/slab/depot.h"
#include "fixture.h"
#include "links.h"

namespace lanemalloc {
namespace {

class SlabTest : public FakeTest {
 protected:
  void SetUp() override {
    FakeTest::SetUp();
    ASSERT_TRUE(region_.start(1 << 20, false));
    runs_.start(false, -1);
  }
  void TearDown() override {
    EXPECT_HOLDS(runs_.check_invariants());
    EXPECT_HOLDS(depot_.check_invariants());
    FakeTest::TearDown();
  }

  Slab* make(SizeClass c, Owner owner = kMe) {
    const lanemalloc::Run run = runs_.allocate(slab_blocks_of(c), 1, visit_);
    EXPECT_NE(run.at, Runs<Fake>::kNone);
    return slabs_.make(run.at, c, owner);
  }
  // Hands out objects until the slab has handed out each of them once.
  std::vector<Object*> carve_all(Slab* slab) {
    std::vector<Object*> all;
    while (slab->carved < capacity_of(slab->size_class)) {
      const SizeClass c = slab->size_class;
      const uint32_t chunk = slab->next_chunk(chunk_of(c), capacity_of(c));
      size_t n = 0;
      for_each_linked(slab->carve(slabs_.begin(slab), size_of(c), chunk),
                      [&](Object* o) { all.push_back(o), ++n; });
      EXPECT_EQ(n, chunk);
    }
    return all;
  }
  static uint32_t list_length(const Slab* slab) {
    uint32_t n = 0;
    for_each_linked(slab->free_list, [&](const Object*) { ++n; });
    return n;
  }

  static constexpr Owner kMe = Owner::kFirstLane;
  static constexpr Owner kOther = static_cast<Owner>(4);
  Region<Fake> region_;
  Runs<Fake> runs_{region_};
  Slabs<Fake> slabs_{region_, runs_};
  Depot<Fake> depot_{slabs_};
  int me_ = 0, other_ = 0;
  Visit visit_{&me_, true};
  Visit handler_{&me_, false};
  Visit holder_{&other_, true};
};

TEST_ALL_CONFIGS(SlabTest, CarvesEveryObjectOnceInAddressOrderAndInside) {
  for (unsigned c = 1; c < kClassCount; ++c) {
    const auto size_class = static_cast<SizeClass>(c);
    Slab* slab = make(size_class);
    EXPECT_TRUE(slab->has_room());
    const std::vector<Object*> all = carve_all(slab);
    ASSERT_EQ(all.size(), capacity_of(size_class));
    for (size_t i = 0; i < all.size(); ++i)
      ASSERT_EQ(reinterpret_cast<Address>(all[i]), slabs_.begin(slab) + i * size_of(size_class));
    EXPECT_FALSE(slab->has_room());
    EXPECT_EQ(slab->used(), all.size());
    EXPECT_EQ(slab->free_objects(), 0u);
    slabs_.destroy(slab, visit_);
  }
}

TEST_ALL_CONFIGS(SlabTest, PushSaysWhenTheLastObjectIsFree) {
  Slab* slab = make(class_of(1024));
  const std::vector<Object*> all = carve_all(slab);
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(slab->push(all[i]), i + 1 == all.size());
    EXPECT_EQ(slab->used(), all.size() - i - 1);
    EXPECT_EQ(list_length(slab), i + 1);
  }
  EXPECT_TRUE(slab->push(all[0])) << "one free too many is told too";
}

TEST_ALL_CONFIGS(SlabTest, TakingTheFreeListCountsItsObjectsAsInUse) {
  Slab* slab = make(class_of(256));
  const std::vector<Object*> all = carve_all(slab);
  for (size_t i = 0; i < 10; ++i) slab->push(all[i]);
  uint64_t taken = 0;
  EXPECT_EQ(object_at(slab->take_free_list(taken)), all[9]);
  EXPECT_EQ(taken, 10u);
  EXPECT_EQ(slab->used(), all.size());
  EXPECT_TRUE(slab->free_list.is_none());
}

TEST_ALL_CONFIGS(SlabTest, OfABinsSlabNobodyNeedLookUntilOneIsFreedTooMany) {
  Slab* slab = make(class_of(1024));
  const std::vector<Object*> all = carve_all(slab);
  for (Object* o : all) slab->push(o);
  uint64_t taken = 0;
  slab->take_free_list(taken);
  EXPECT_EQ(taken, all.size());
  for (Object* o : all) {
    EXPECT_FALSE(slab->push(o));
    EXPECT_FALSE(slab->has_too_many_frees());
  }
  EXPECT_EQ(slab->used(), 0u);
  EXPECT_TRUE(slab->push(all[0]));
  EXPECT_TRUE(slab->has_too_many_frees());
}

TEST_ALL_CONFIGS(SlabTest, AFullSlabWaitsForSomeFreesAndLosesNoCount) {
  for (Bytes size : {Bytes{16}, Bytes{1024}, Bytes{20000}, kSlabMax}) {
    Slab* slab = make(class_of(size));
    const std::vector<Object*> all = carve_all(slab);
    slab->wait_for_frees(capacity_of(slab->size_class));
    EXPECT_EQ(slab->place, Slab::Place::kFull);
    EXPECT_EQ(slab->used(), all.size());
    const size_t some = capacity_of(slab->size_class) / 16 + 1;
    for (size_t i = 0; i < some; ++i) {
      EXPECT_EQ(slab->push(all[i]), i + 1 == some) << size << ' ' << i;
      EXPECT_EQ(slab->used(), all.size() - i - 1);
    }
    slab->settle(Slab::Place::kPartial);
    EXPECT_EQ(slab->beyond, 0u);
    EXPECT_EQ(slab->used(), all.size() - some);
    for (size_t i = some; i < all.size(); ++i) EXPECT_EQ(slab->push(all[i]), i + 1 == all.size());
  }
}

TEST_ALL_CONFIGS(SlabTest, TheFirstObjectOfAListIsFreeAndOfTheSlab) {
  Slab* slab = make(class_of(64));
  const std::vector<Object*> all = carve_all(slab);
  const Extent extent = slabs_.extent(slab);
  EXPECT_FALSE(slab->free_list_begins_well(extent)) << "there is none";
  slab->push(all[0]);
  EXPECT_TRUE(slab->free_list_begins_well(extent));
  slab->push(all[1]);
  EXPECT_TRUE(slab->free_list_begins_well(extent));
  slab->push(all[1]);
  EXPECT_FALSE(slab->free_list_begins_well(extent)) << "freed twice";
  slab->give_up_free_list();
  slab->push(all[2]);
  all[2]->out();
  EXPECT_FALSE(slab->free_list_begins_well(extent)) << "in use";
  alignas(16) Object stray = {Link::none(), {}};
  slab->free_list = Link::to(&stray);
  EXPECT_FALSE(slab->free_list_begins_well(extent)) << "elsewhere";
}

TEST_ALL_CONFIGS(SlabTest, AnObjectFreedTwiceAmongTheFirstIsSeenAtAMiss) {
  Slab* slab = make(class_of(64));
  const std::vector<Object*> all = carve_all(slab);
  const Extent extent = slabs_.extent(slab);
  for (size_t i = 0; i < 4; ++i)
    EXPECT_TRUE((slab->push(all[i]), slab->free_list_looks_sound(extent)));
  for (size_t again = 0; again < 4; ++again) {
    slab->give_up_free_list();
    for (size_t i = 0; i < 4; ++i) slab->push(all[i]);
    slab->push(all[again]);
    EXPECT_FALSE(slab->free_list_looks_sound(extent)) << again;
  }
}

TEST_ALL_CONFIGS(SlabTest, AWholeListHoldsEveryObjectOnceAndNothingElse) {
  Slab* slab = make(class_of(4096));
  const Address begin = slabs_.begin(slab);
  const std::vector<Object*> all = carve_all(slab);
  const auto free_all = [&] {
    slab->give_up_free_list();
    for (size_t i = all.size(); i-- > 0;) slab->push(all[i]);
  };
  free_all();
  EXPECT_TRUE(slab->free_list_looks_whole(begin));
  EXPECT_EQ(slab->used(), 0u);
  EXPECT_EQ(list_length(slab), all.size());
  all[3]->next = Link::to(all[2]);  // a circle
  EXPECT_FALSE(slab->free_list_looks_whole(begin));
  free_all();
  all[5]->next = Link::none();  // too short
  EXPECT_FALSE(slab->free_list_looks_whole(begin));
  free_all();
  alignas(16) Object stray = {};
  all[5]->next = Link::to(&stray);  // out of the slab
  stray.next = Link::to(all[7]);
  EXPECT_FALSE(slab->free_list_looks_whole(begin));
  free_all();
  all[all.size() - 1]->next = Link::to(all[0]);  // never ends
  EXPECT_FALSE(slab->free_list_looks_whole(begin));
}

TEST_ALL_CONFIGS(SlabTest, AListThatIsAsLongAsItShouldBeButHoldsOneObjectTwiceIsNotWhole) {
  Slab* slab = make(class_of(4096));
  const std::vector<Object*> all = carve_all(slab);
  // all[0] is in use; all[1] comes twice, so the list is a circle that never reaches its end.
  for (size_t i = 1; i < all.size(); ++i) slab->push(all[i]);
  slab->push(all[1]);
  EXPECT_EQ(slab->countdown, 0);
  EXPECT_FALSE(slab->free_list_looks_whole(slabs_.begin(slab)));
}

TEST_ALL_CONFIGS(SlabTest, OfALongListTheLatestFreesAreWalked) {
  Slab* slab = make(class_of(64));
  const std::vector<Object*> all = carve_all(slab);
  const auto free_all = [&](size_t left_out) {
    slab->give_up_free_list();
    for (size_t i = left_out; i < all.size(); ++i) slab->push(all[i]);
  };
  free_all(0);
  EXPECT_TRUE(slab->free_list_looks_whole(slabs_.begin(slab)));
  for (size_t apart : {size_t{0}, size_t{1}, size_t{20}, size_t{31}}) {
    free_all(1);
    slab->push(all[all.size() - 1 - apart]);  // again, after `apart` frees of others
    EXPECT_EQ(slab->countdown, 0);
    EXPECT_FALSE(slab->free_list_looks_whole(slabs_.begin(slab))) << apart;
  }
  free_all(0);
  all[all.size() - 10]->next = Link::none();  // too short
  EXPECT_FALSE(slab->free_list_looks_whole(slabs_.begin(slab)));
}

TEST_ALL_CONFIGS(SlabTest, EveryBlockOfASlabNamesItsOwnerAndItsState) {
  for (Bytes size : {Bytes{16}, Bytes{40000}, kSlabMax}) {
    Slab* slab = make(class_of(size));
    const BlockIndex first = region_.block_of_state(slab);
    for (Owner owner : {kMe, kOther, Owner::kDepot}) {
      slabs_.give_to(slab, owner);
      for (BlockIndex b = first; b < first + slab_blocks_of(slab->size_class); ++b) {
        EXPECT_EQ(region_.word(b).owner(), owner);
        EXPECT_EQ(slabs_.at(region_.word(b)), slab);
        EXPECT_EQ(region_.size_class_at(bytes_of(b)), slab->size_class);
      }
    }
    const BlockCount blocks = slab_blocks_of(slab->size_class);
    slabs_.destroy(slab, visit_);
    for (BlockIndex b = first; b < first + blocks; ++b)
      EXPECT_EQ(region_.word(b).owner(), Owner::kNobody);
  }
}

TEST_ALL_CONFIGS(SlabTest, AListOfSlabsIsNewestFirstAndForgetsWhatIsRemoved) {
  SlabList list;
  Slab slabs[3];
  for (Slab& s : slabs) s.start(class_of(16), false), list.push(&s);
  EXPECT_EQ(list.first(), &slabs[2]);
  list.remove(&slabs[1]);
  EXPECT_EQ(list.pop(), &slabs[2]);
  EXPECT_EQ(list.first(), &slabs[0]);
  list.remove(&slabs[0]);
  EXPECT_TRUE(list.is_empty());
  EXPECT_EQ(list.pop(), nullptr);
}

// --- Depot.

TEST_ALL_CONFIGS(SlabTest, TheDepotGivesWhatItGotToWhoAsks) {
  Slab* slab = make(class_of(256));
  const std::vector<Object*> all = carve_all(slab);
  slab->wait_for_frees(capacity_of(slab->size_class));
  slab->push(all[0]);
  EXPECT_EQ(depot_.take(slab->size_class, kOther, visit_), nullptr);
  ASSERT_TRUE(depot_.give(slab, visit_));
  EXPECT_EQ(region_.word(region_.block_of_state(slab)).owner(), Owner::kDepot);
  EXPECT_EQ(slab->used(), all.size() - 1);
  depot_.check_invariants();
  EXPECT_EQ(depot_.take(class_of(512), kOther, visit_), nullptr);
  EXPECT_EQ(depot_.take(class_of(256), kOther, visit_), slab);
  EXPECT_EQ(region_.word(region_.block_of_state(slab)).owner(), kOther);
  EXPECT_EQ(depot_.take(class_of(256), kOther, visit_), nullptr);
  EXPECT_EQ(depot_.moved(), 2u);
}

TEST_ALL_CONFIGS(SlabTest, WhoCannotHaveTheDepotsLockChangesNothing) {
  Slab* slab = make(class_of(256));
  Slab* second = make(class_of(256));
  const std::vector<Object*> all = carve_all(slab), more = carve_all(second);
  slab->push(all[0]);
  second->push(more[0]);
  ASSERT_TRUE(depot_.give(slab, visit_));
  ASSERT_TRUE(depot_.lock().try_acquire(holder_));
  EXPECT_EQ(depot_.take(class_of(256), kOther, handler_), nullptr);
  EXPECT_FALSE(depot_.give(second, handler_));
  all[1]->next = Link::none();
  EXPECT_FALSE(depot_.free(all[1], handler_, [](Object*) { ADD_FAILURE(); }, [](const Object*) {}));
  depot_.lock().release(holder_);
  EXPECT_EQ(region_.word(region_.block_of_state(second)).owner(), kMe);
  EXPECT_EQ(slab->used(), all.size() - 1);
  depot_.check_invariants();
}

TEST_ALL_CONFIGS(SlabTest, TheDepotSendsOnWhatHasMovedAndDestroysWhatIsEmpty) {
  Slab* slab = make(class_of(8192));
  Slab* moved = make(class_of(8192), kOther);
  const std::vector<Object*> all = carve_all(slab), more = carve_all(moved);
  slab->push(all[0]);
  ASSERT_TRUE(depot_.give(slab, visit_));
  Object* batch = nullptr;
  for (size_t i = 1; i < all.size(); ++i) all[i]->next = Link::to(batch), batch = all[i];
  for (Object* o : {more[0], more[1]}) o->next = Link::to(batch), batch = o;
  std::vector<Object*> sent_on;
  const uint64_t dirty = runs_.statistics().dirty;
  ASSERT_TRUE(depot_.free(
      batch, visit_, [&](Object* o) { sent_on.push_back(o); },
      [](const Object*) { ADD_FAILURE(); }));
  std::sort(sent_on.begin(), sent_on.end());
  EXPECT_EQ(sent_on, (std::vector<Object*>{more[0], more[1]}));
  EXPECT_EQ(depot_.freed(index_of(class_of(8192))), all.size() - 1);
  EXPECT_EQ(runs_.statistics().dirty, dirty + bytes_of(slab_blocks_of(class_of(8192))));
  EXPECT_EQ(depot_.take(class_of(8192), kMe, visit_), nullptr);
}

TEST_ALL_CONFIGS(SlabTest, WhatLayInAnAbandonedDepotIsLeftAlone) {
  Slab* slab = make(class_of(8192));
  Slab* second = make(class_of(8192));
  const std::vector<Object*> all = carve_all(slab), more = carve_all(second);
  slab->push(all[0]);
  second->push(more[0]);
  ASSERT_TRUE(depot_.give(second, visit_));
  ASSERT_TRUE(depot_.give(slab, visit_));
  ASSERT_TRUE(depot_.lock().try_acquire(holder_));  // and its thread is gone after the fork
  EXPECT_FALSE(depot_.lock().open_in_child(&visit_));
  depot_.abandon();
  Object* batch = nullptr;
  for (size_t i = 1; i < all.size(); ++i) all[i]->next = Link::to(batch), batch = all[i];
  EXPECT_TRUE(depot_.free(batch, visit_, [](Object*) {}, [](const Object*) { ADD_FAILURE(); }));
  EXPECT_EQ(depot_.take(class_of(8192), kMe, visit_), nullptr) << "what was given up is handed out";
  depot_.check_invariants();
}

TEST_ALL_CONFIGS(SlabTest, ADamagedSlabInTheDepotIsToldOnceAndLeftAloneAfterwards) {
  Slab* slab = make(class_of(8192));
  Slab* sound = make(class_of(8192));
  const std::vector<Object*> all = carve_all(slab), more = carve_all(sound);
  slab->push(all[0]);
  sound->push(more[0]);
  ASSERT_TRUE(depot_.give(sound, visit_));
  ASSERT_TRUE(depot_.give(slab, visit_));
  unsigned told = 0;
  const auto free_one = [&](Object* o) {
    o->next = Link::none();
    EXPECT_TRUE(
        depot_.free(o, visit_, [](Object*) { ADD_FAILURE(); }, [&](const Object*) { ++told; }));
  };
  for (size_t i = 2; i < all.size(); ++i) free_one(all[i]);
  free_one(all[2]);  // instead of all[1], which is in use
  EXPECT_EQ(told, 1u);
  EXPECT_EQ(depot_.take(class_of(8192), kMe, visit_), sound);
  free_one(all[1]);
  EXPECT_EQ(told, 1u);
  depot_.check_invariants();
  EXPECT_EQ(depot_.take(class_of(8192), kMe, visit_), nullptr);
}

}  // namespace
}  // namespace lanemalloc
