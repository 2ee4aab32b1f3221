// PoolTest: pools over the fake platform. Called by: pool_test.cpp, pool_limit_test.cpp,
// pool_threads_test.cpp, kinds_test.cpp.
#pragma once

#include <set>
#include <thread>

#include "fixture.h"
#include "fronts/pool/pool.h"

namespace lanemalloc {

using FakePool = Pool<Fake>;

// What a pool's functions were asked to do.
struct PoolCalls {
  std::atomic<int> inits{0}, finis{0}, ctors{0}, dtors{0};
  std::atomic<int> inits_until_failure{1 << 30}, ctors_until_failure{1 << 30};

  PoolFunctions all() { return {&init, &fini, &ctor, &dtor, this}; }
  PoolFunctions memory_only() { return {&init, &fini, nullptr, nullptr, this}; }
  PoolFunctions uses_only() { return {nullptr, nullptr, &ctor, &dtor, this}; }

  static PoolCalls& of(void* argument) { return *static_cast<PoolCalls*>(argument); }
  static int init(void* object, size_t size, void* argument) {
    if (of(argument).inits_until_failure.fetch_sub(1) <= 0) return 1;
    memset(object, 0xAB, size);
    ++of(argument).inits;
    return 0;
  }
  static void fini(void* object, size_t size, void* argument) {
    EXPECT_TRUE(is_made(object, size)) << "what init has made is not there any more";
    ++of(argument).finis;
  }
  static int ctor(void*, size_t, void* argument) {
    if (of(argument).ctors_until_failure.fetch_sub(1) <= 0) return 1;
    ++of(argument).ctors;
    return 0;
  }
  static void dtor(void*, size_t, void* argument) { ++of(argument).dtors; }
  static bool is_made(const void* object, size_t size) {
    const auto* bytes = static_cast<const unsigned char*>(object);
    return std::all_of(bytes, bytes + size, [](unsigned char byte) { return byte == 0xAB; });
  }
};

class PoolTest : public EngineTest {
 protected:
  static constexpr uint32_t kWait = FakePool::kWait, kUseReserve = FakePool::kUseReserve;

  NOINLINE FakePool& make(Slot& t, Bytes bytes, uint64_t limit = 0, uint32_t reserve = 0,
                          const PoolFunctions& functions = {}, Bytes alignment = 8) {
    Fake::number = cpu_of(t);
    FakePool& pool = *pools_.emplace_back(
        std::make_unique<FakePool>(engine(), "fish", bytes, alignment, functions));
    EXPECT_TRUE(pool.start(limit, reserve, t));
    return pool;
  }
  // Null if there is none.
  NOINLINE void* try_take(FakePool& pool, Slot& t, uint32_t flags = 0) {
    Fake::number = cpu_of(t);
    return pool.allocate(flags, t);
  }
  using EngineTest::give;
  using EngineTest::take;
  NOINLINE void* take(FakePool& pool, Slot& t, uint32_t flags = 0) {
    void* p = try_take(pool, t, flags);
    EXPECT_NE(p, nullptr);
    return p;
  }
  NOINLINE void give(FakePool& pool, Slot& t, void* p) {
    Fake::number = cpu_of(t);
    EXPECT_EQ(pool.free(p, t), Verdict::kGood);
  }
  std::vector<void*> take_many(FakePool& pool, Slot& t, size_t n) {
    std::vector<void*> all;
    for (size_t i = 0; i < n; ++i) all.push_back(take(pool, t));
    return all;
  }
  // Takes all objects that are available, up to `most`.
  std::vector<void*> take_all(FakePool& pool, Slot& t, size_t most = 1 << 20) {
    std::vector<void*> all;
    for (void* p; all.size() < most && (p = try_take(pool, t)) != nullptr;) all.push_back(p);
    return all;
  }
  void give_all(FakePool& pool, Slot& t, const std::vector<void*>& all) {
    for (void* p : all) give(pool, t, p);
  }
  Bytes reclaim(FakePool& pool, Slot& t, Reclaim level = Reclaim::kDrainAll) {
    Fake::number = cpu_of(t);
    return pool.reclaim(level, t);
  }
  uint64_t end(FakePool& pool, Slot& t) {
    bool lost = true;
    const uint64_t used = pool.end(t, lost);
    EXPECT_FALSE(lost);
    EXPECT_EQ(pool.kind().slabs, 0u);
    EXPECT_EQ(pool.kind().budget->used(), 0u);
    return used;
  }
  // The figures that lane_pool_get_statistics() reports.
  uint64_t live(FakePool& pool, Slot& t) { return pool.live(t); }
  static uint64_t cut(const FakePool& pool) {
    return pool.kind().budget->used() / pool.kind().size;
  }

  std::deque<std::unique_ptr<FakePool>> pools_;
};

}  // namespace lanemalloc
