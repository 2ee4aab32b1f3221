// Batch: freed objects name each other on their way to their lane. (tests/model has the way through
// the inbox, and its interleavings.)
#include "core/slab/batch.h"

#include <cstring>

#include "fixture.h"
#include "links.h"

namespace lanemalloc {
namespace {

class BatchTest : public testing::Test {
 protected:
  Object* make(Bytes size) {
    memory_.emplace_back(size / sizeof(Object));
    Object* object = memory_.back().data();
    fill(object, size, 1);
    objects_.push_back({object, size});
    return object;
  }
  // Adds a fresh object that is alone in its slab. True if the object became a holder.
  bool add(Bytes size) {
    const bool holds = add(size, 1'000'000 + ++slabs_);
    if (!holds) named_.push_back(objects_.back());
    return holds;
  }
  bool add(Bytes size, uint64_t slab) {
    bool holds = false;
    EXPECT_TRUE(batch_.add(make(size), MapWord(slab), [&] {
      holds = true;
      return Batch::places_in(size);
    }));
    return holds;
  }
  struct Row {
    uint64_t n;
    std::vector<Object*> objects;  // in the order of their links
  };
  // The rows, in the order in which they were freed.
  static std::vector<Row> rows(Object* first) {
    std::vector<Row> rows;
    EXPECT_TRUE(Batch::for_each_row(first, any_object, [&](Link link, Object* last, uint32_t n) {
      rows.push_back({n, {object_at(link)}});
      for (Object* object = object_at(link); object != last;)
        rows.back().objects.push_back(object = object_at(object->next));
    }));
    std::reverse(rows.begin(), rows.end());
    return rows;
  }
  // The objects that a batch holds, in order of address. An object may be written to when it is
  // visited.
  static std::vector<Object*> visited(Object* first) {
    std::vector<Object*> seen;
    EXPECT_TRUE(Batch::for_each(first, any_object, [&](Object* object) {
      memset(static_cast<void*>(object), 0xEE, sizeof(Object));
      seen.push_back(object);
    }));
    std::sort(seen.begin(), seen.end());
    return seen;
  }
  std::vector<Object*> added() const {
    std::vector<Object*> all;
    for (const auto& o : objects_) all.push_back(o.first);
    std::sort(all.begin(), all.end());
    return all;
  }
  // The batch comes back whole, and the objects that a holder names were not touched on the way.
  void expect_whole(Object* first) {
    for (const auto& [object, size] : named_) EXPECT_TRUE(is_whole(object, size, 1)) << size;
    EXPECT_EQ(visited(first), added());
    memory_.clear();
    objects_.clear();
    named_.clear();
  }

  // The rows have all objects that were added, in the order in which they were freed.
  void expect_order(const std::vector<Row>& all) {
    std::vector<Object*> found, freed;
    for (const Row& row : all) {
      EXPECT_EQ(row.objects.size(), row.n);
      found.insert(found.end(), row.objects.begin(), row.objects.end());
    }
    for (const auto& [object, size] : objects_) freed.push_back(object);
    EXPECT_EQ(found, freed);
    memory_.clear();
    objects_.clear();
    named_.clear();
  }

  Batch batch_;
  uint64_t slabs_ = 0;
  std::deque<std::vector<Object>> memory_;
  std::vector<std::pair<Object*, Bytes>> objects_, named_;
};

TEST_F(BatchTest, EveryObjectOfEveryClassComesBackOnce) {
  for (unsigned c = 1; c < kClassCount; ++c) {
    const Bytes size = size_of(static_cast<SizeClass>(c));
    for (size_t n : {1, 2, 3, 4, 6, 7, 8, 9, 15, 64}) {
      SCOPED_TRACE(std::to_string(n) + " of " + std::to_string(size) + " bytes");
      size_t holders = 0;
      for (size_t i = 0; i < n; ++i) holders += add(size);
      const size_t group = 1 + Batch::places_in(size) / sizeof(Object*);
      EXPECT_EQ(holders, (n + group - 1) / group);
      EXPECT_FALSE(batch_.is_empty());
      Object* first = batch_.take();
      EXPECT_TRUE(batch_.is_empty());
      expect_whole(first);
    }
  }
}

TEST_F(BatchTest, AHolderNamesAsManyAsFitIntoItsFirstLine) {
  EXPECT_EQ(Batch::places_in(16), 0u);
  EXPECT_EQ(Batch::places_in(32), 2 * sizeof(Object*));
  EXPECT_EQ(Batch::places_in(48), 4 * sizeof(Object*));
  for (Bytes size : {Bytes{64}, Bytes{80}, kSlabMax})
    EXPECT_EQ(Batch::places_in(size), 6 * sizeof(Object*));
}

TEST_F(BatchTest, ObjectsOf16BytesAreHoldersAll) {
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(add(16));
  expect_whole(batch_.take());
}

TEST_F(BatchTest, MixedSizesComeBackOnce) {
  Random random(1);
  const std::vector<Bytes> sizes = {16, 32, 48, 64, 80, 1024, 5120};
  for (int round = 0; round < 2000; ++round) {
    for (uint64_t n = random.between(1, 70); n > 0; --n) add(sizes[random.below(sizes.size())]);
    expect_whole(batch_.take());
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
}

TEST_F(BatchTest, ObjectsOfOneSlabAreARow) {
  for (Bytes size : {Bytes{32}, Bytes{48}, Bytes{64}, Bytes{1024}}) {
    for (size_t n : {1, 2, 3, 4, 64, 1000}) {
      EXPECT_TRUE(add(size, 1));
      for (size_t i = 0; i < n; ++i) EXPECT_FALSE(add(size, 2)) << "no further holder is needed";
      const std::vector<Row> all = rows(batch_.take());
      ASSERT_EQ(all.size(), 2u);
      EXPECT_EQ(all[0].n, 1u);
      EXPECT_EQ(all[1].n, n);
      expect_order(all);
    }
  }
}

TEST_F(BatchTest, RowsOfAnyLengthComeBackInTheirOrder) {
  Random random(1);
  const std::vector<Bytes> sizes = {16, 32, 48, 64, 80, 1024};
  for (int round = 0; round < 2000; ++round) {
    for (uint64_t r = random.between(1, 20); r > 0; --r) {
      const uint64_t slab = random.between(1, 4);
      for (uint64_t n = random.between(1, 9); n > 0; --n) add(sizes[slab], slab);
      if (random.below(8) == 0) {
        Object* first = batch_.take();
        batch_.put_back(first);
      }
    }
    expect_order(rows(batch_.take()));
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
}

TEST_F(BatchTest, TheLastObjectDoesNotJoinItsRowTwice) {
  for (int before = 0; before < 3; ++before) {
    add(64, 1);
    for (int i = 0; i <= before; ++i) add(64, 2);
    EXPECT_FALSE(
        batch_.add(objects_.back().first, MapWord(2), [] { return Batch::places_in(64); }));
    EXPECT_EQ(visited(batch_.take()), added());
    memory_.clear();
    objects_.clear();
  }
}

// As if lengthen() had stopped before its last store, or before the store before that one.
TEST_F(BatchTest, MendTakesInWhatARowLinksTo) {
  for (const bool is_linked : {false, true}) {
    SCOPED_TRACE(is_linked);
    for (int i = 0; i < 4; ++i) add(64, i == 0 ? 1 : 2);
    Object* last = objects_.back().first;
    Object* one_more = make(64);
    one_more->next = last->next;
    if (is_linked) last->next = Link::to(one_more);
    batch_.mend([](Object*) { return Batch::places_in(64); });
    // The name still says that the object before the further one is the last. So the further one
    // counts as the first.
    if (!is_linked) objects_.pop_back();
    EXPECT_EQ(visited(batch_.take()), added());
    memory_.clear();
    objects_.clear();
  }
}

// As if the thread could not get the depot's lock.
TEST_F(BatchTest, WhatIsPutBackTakesFurtherObjects) {
  Random random(1);
  const std::vector<Bytes> sizes = {16, 32, 64, 256};
  for (int round = 0; round < 2000; ++round) {
    for (uint64_t times = random.between(1, 4); times > 0; --times) {
      for (uint64_t n = random.between(1, 20); n > 0; --n) add(sizes[random.below(sizes.size())]);
      Object* first = batch_.take();
      batch_.put_back(first);
      EXPECT_FALSE(batch_.is_empty());
      EXPECT_TRUE(add(64)) << "the first holder may be full";
    }
    expect_whole(batch_.take());
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
}

TEST_F(BatchTest, AnEmptyOneHasNothing) {
  EXPECT_TRUE(batch_.is_empty());
  EXPECT_EQ(batch_.take(), nullptr);
  EXPECT_EQ(batch_.take(), nullptr);
  EXPECT_TRUE(visited(nullptr).empty());
  add(64);
  expect_whole(batch_.take());
}

// After a double free, or a write to an object that waits.
TEST_F(BatchTest, ACircleOfHoldersEnds) {
  for (size_t n : {1, 2, 5, 40}) {
    for (size_t to = 0; to < n; ++to) {
      for (size_t i = 0; i < n; ++i) EXPECT_TRUE(add(16));
      Object* first = batch_.take();
      objects_.front().first->next = Link::to(objects_[to].first);  // the last holder
      size_t visits = 0;
      EXPECT_FALSE(Batch::for_each(first, any_object, [&](Object*) { ++visits; }));
      EXPECT_LE(visits, 4 * n);
      memory_.clear();
      objects_.clear();
    }
  }
}

// free_without_lane() sends such a batch.
TEST_F(BatchTest, OneObjectWithoutANextIsABatch) {
  Object* object = make(64);
  object->next = Link::none();
  expect_whole(object);
}

}  // namespace
}  // namespace lanemalloc
