// Pools with a source of their own, and many objects at once.
#include <mutex>

#include "pools.h"

namespace lanemalloc {
namespace {

// Gives out objects of an array. It counts, and finds an object that is given back twice.
struct Source {
  static constexpr size_t kObjects = 4000, kBytes = 48;
  alignas(16) std::byte memory[kObjects][kBytes];
  std::mutex lock;
  std::vector<void*> free;
  std::set<void*> out;
  size_t imports = 0, releases = 0, most = 0;

  Source() {
    for (auto& object : memory) free.push_back(object);
  }
  PoolSource functions() { return {&import, &release, this}; }
  static size_t import(void* source, void** objects, size_t n) {
    Source& s = *static_cast<Source*>(source);
    std::lock_guard held(s.lock);
    ++s.imports;
    s.most = std::max(s.most, n);
    size_t had = 0;
    for (; had < n && !s.free.empty(); ++had) {
      objects[had] = s.free.back();
      s.free.pop_back();
      EXPECT_TRUE(s.out.insert(objects[had]).second);
    }
    return had;
  }
  static void release(void* source, void** objects, size_t n) {
    Source& s = *static_cast<Source*>(source);
    std::lock_guard held(s.lock);
    ++s.releases;
    s.most = std::max(s.most, n);
    for (size_t i = 0; i < n; ++i) {
      EXPECT_EQ(s.out.erase(objects[i]), 1u) << "given back twice";
      s.free.push_back(objects[i]);
    }
  }
};

class PoolImportsTest : public PoolTest {
 protected:
  FakePool& make_imported(Slot& t, uint64_t limit = 0, uint32_t reserve = 0,
                          const PoolFunctions& functions = {}) {
    FakePool& pool = *pools_.emplace_back(std::make_unique<FakePool>(
        engine(), "birds", Source::kBytes, 8, functions, source_->functions()));
    EXPECT_TRUE(pool.start(limit, reserve, t));
    return pool;
  }
  uint64_t end_all(FakePool& pool, Slot& t) {
    bool lost = true;
    const uint64_t used = pool.end(t, lost);
    EXPECT_FALSE(lost);
    EXPECT_EQ(source_->out.size(), used) << "all went back but what is in use";
    EXPECT_LE(source_->most, 64u);
    return used;
  }
  std::unique_ptr<Source> source_ = std::make_unique<Source>();
};

TEST_ALL_CONFIGS(PoolImportsTest, ObjectsComeInBatchesAreCachedAndGoBack) {
  Slot &a = thread(), &b = thread();
  PoolCalls calls;
  FakePool& pool = make_imported(a, 0, 0, calls.uses_only());
  std::vector<void*> all = take_many(pool, a, 1000);
  EXPECT_LE(source_->imports, 1000 / Kind::kFirstBatch + 2);
  EXPECT_EQ(live(pool, a), 1000u);
  EXPECT_EQ(pool.kind().slabs, 0u);
  for (void* p : all) memset(p, 0xEE, Source::kBytes);
  const size_t imports = source_->imports;
  for (int i = 0; i < 500; ++i) give(pool, a, take(pool, a));
  EXPECT_LE(source_->imports, imports + 1) << "cached";
  for (size_t i = 0; i < all.size(); ++i) give(pool, i % 2 == 0 ? a : b, all[i]);
  EXPECT_EQ(live(pool, a), 0u);
  EXPECT_GT(source_->releases, 0u) << "many are cached";
  EXPECT_LE(source_->out.size(), Kind::kFirstBatch * (FakePool::kShelfBatches + 6));
  EXPECT_EQ(cut(pool), source_->out.size());
  EXPECT_EQ(calls.ctors, calls.dtors);
  const size_t cached = source_->out.size();
  EXPECT_EQ(reclaim(pool, a), cached * pool.kind().size);
  EXPECT_TRUE(source_->out.empty());
  take_many(pool, b, 3);
  EXPECT_EQ(end_all(pool, a), 3u);
}

TEST_ALL_CONFIGS(PoolImportsTest, TheLimitIsReachedExactlyWhoeverHasThem) {
  Slot &a = thread(), &b = thread(), &c = thread();
  FakePool& pool = make_imported(a, 301, 1);
  std::vector<void*> all = take_all(pool, a);
  EXPECT_EQ(all.size(), 300u);
  for (int round = 0; round < 4; ++round) {
    for (size_t i = 0; i < all.size(); ++i) give(pool, i % 3 == 0 ? a : i % 3 == 1 ? b : c, all[i]);
    if (round == 2) engine().exits().thread_exits(c);
    all = take_all(pool, round % 2 == 0 ? b : a);
    EXPECT_EQ(all.size(), 300u);
    EXPECT_EQ(std::set<void*>(all.begin(), all.end()).size(), 300u);
    EXPECT_EQ(live(pool, a), 300u);
  }
  all.push_back(take(pool, a, kUseReserve));
  EXPECT_EQ(try_take(pool, a, kUseReserve), nullptr);
  EXPECT_EQ(source_->out.size(), 301u);
  give_all(pool, b, all);
  EXPECT_EQ(pool.reserved(), 1u);
  EXPECT_EQ(end_all(pool, b), 0u);
}

TEST_ALL_CONFIGS(PoolImportsTest, ASourceThatHasNoneIsNoMemory) {
  Slot &a = thread(), &b = thread();
  FakePool& pool = make_imported(a);
  std::vector<void*> all = take_all(pool, a);
  EXPECT_EQ(all.size(), Source::kObjects);
  EXPECT_EQ(try_take(pool, b, kWait), nullptr);
  EXPECT_EQ(cut(pool), Source::kObjects);
  give(pool, a, all[0]);
  EXPECT_EQ(take(pool, b), all[0]) << "what another lane has";
  EXPECT_EQ(pool.counters().limit_failures, 0u);
  EXPECT_EQ(end_all(pool, a), Source::kObjects);
}

TEST_ALL_CONFIGS(PoolImportsTest, WhatIsPreallocatedStays) {
  Slot &a = thread(), &b = thread();
  FakePool& pool = make_imported(a);
  ASSERT_TRUE(pool.preallocate(1500, a));
  reclaim(pool, b);
  EXPECT_EQ(source_->out.size(), 1500u);
  const size_t imports = source_->imports;
  std::vector<void*> all = take_many(pool, b, 1500);
  EXPECT_EQ(source_->imports, imports);
  give_all(pool, b, all);
  EXPECT_GE(source_->out.size(), 1500u);
  EXPECT_EQ(end_all(pool, a), 0u);
}

TEST_ALL_CONFIGS(PoolImportsTest, AHandlerAndThreadsUseThemAtOnce) {
  start_threads();
  begin({});
  make_lanes();
  Slot& a = thread();
  FakePool& pool = make_imported(a, 200);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      Slot slot{&no_lane_gate};
      Fake::number = i % Fake::cpu_count;
      std::vector<void*> mine;
      Random random(i);
      for (int n = 0; n < 4000 / kShorter; ++n) {
        if (random.one_in(2) && mine.size() < 90) {
          if (void* p = pool.allocate(mine.empty() ? kWait : 0, slot)) {
            memset(p, static_cast<int>(i), Source::kBytes);
            mine.push_back(p);
          }
        } else if (!mine.empty()) {
          EXPECT_EQ(static_cast<unsigned char*>(mine.back())[40], i) << "two have the same object";
          pool.free(mine.back(), slot);
          mine.pop_back();
        }
        if (n % 1000 == 999) pool.reclaim(Reclaim::kDrain, slot);
      }
      for (void* p : mine) pool.free(p, slot);
      engine().exits().thread_exits(slot);
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(live(pool, a), 0u);
  EXPECT_EQ(cut(pool), source_->out.size());
  in_handler(a, [&] { give_all(pool, a, take_all(pool, a)); });
  EXPECT_EQ(take_all(pool, a).size(), 200u);
  EXPECT_EQ(end_all(pool, a), 200u);
}

// --- Many at once.

TEST_ALL_CONFIGS(PoolImportsTest, BatchesComeAndGoWholeInOneStay) {
  Slot &a = thread(), &b = thread();
  PoolCalls calls;
  for (const PoolFunctions& functions : {PoolFunctions{}, calls.all()})
    for (uint64_t limit : {0u, 700u}) {
      FakePool& pool = make(a, 40, limit, 0, functions);
      std::vector<void*> all(1000);
      Fake::number = cpu_of(a);
      const size_t had = pool.allocate_batch(all.data(), all.size(), 0, a);
      EXPECT_EQ(had, limit != 0 ? limit : 1000u);
      EXPECT_EQ(std::set<void*>(all.begin(), all.begin() + static_cast<ptrdiff_t>(had)).size(),
                had);
      EXPECT_EQ(live(pool, a), had);
      for (size_t from = 0; from < had;) {
        Slot& t = from % 2 == 0 ? a : b;
        Fake::number = cpu_of(t);
        const size_t n = std::min<size_t>(had - from, 301);
        const size_t freed = pool.free_batch(all.data() + from, n, t);
        EXPECT_EQ(freed, functions.init == nullptr ? n : 0) << "functions are called one by one";
        for (size_t i = freed; i < n; ++i) give(pool, t, all[from + i]);
        from += n;
      }
      EXPECT_EQ(live(pool, a), 0u);
    }
  EXPECT_EQ(calls.ctors, calls.dtors);
}

TEST_ALL_CONFIGS(PoolImportsTest, ABatchStopsBeforeWhatIsNotThePools) {
  Slot& t = thread();
  FakePool &pool = make(t, 40), &other = make(t, 40);
  std::vector<void*> all = take_many(pool, t, 3);
  void* theirs = take(other, t);
  void* batch[] = {all[0], all[1], nullptr, theirs, all[2]};
  EXPECT_EQ(pool.free_batch(batch, 5, t), 2u);
  EXPECT_EQ(pool.free_batch(batch + 3, 2, t), 0u);
  EXPECT_EQ(pool.free_batch(batch + 4, 1, t), 1u);
  EXPECT_EQ(live(pool, t) + live(other, t), 1u);
}

}  // namespace
}  // namespace lanemalloc
