// Deferred frees of pools' and heaps' objects. Each happens once, after the grace period, with what
// the pool calls, and before the end of the object's owner. They are calls, so what is tested here
// holds for calls.
#include <thread>

#include "fronts/heap/heap.h"
#include "pools.h"

namespace lanemalloc {
namespace {

class DeferKindsTest : public PoolTest {
 protected:
  lane_reader reader_;

  void SetUp() override {
    PoolTest::SetUp();
    frees_ = 0;
  }
  void TearDown() override {
    lane_safepoint_statistics s = safepoint_statistics();
    EXPECT_EQ(s.deferred, s.freed) << "something still waits";
    PoolTest::TearDown();
  }
  lane_safepoint_statistics safepoint_statistics() {
    lane_safepoint_statistics s;
    engine().safepoints().statistics(s, slots_.empty() ? thread() : slots_.front());
    return s;
  }
  void add_reader(Slot& slot) {
    ASSERT_TRUE(engine().safepoints().add_reader(reader_, "the reader", slot));
  }

  // As in the library: the function that is called knows its thread by itself, and is given a
  // handle.
  static inline const KindTable* kinds_here_ = nullptr;
  static void* handle_of(const Family& family) { return reinterpret_cast<void*>(family.handle); }
  static void* front_of(const void* handle, Family::Type type) {
    const Family* family = kinds_here_->find(reinterpret_cast<Handle>(handle), type);
    return family != nullptr ? family->front : nullptr;
  }
  static void free_of_pool(void* handle, void** objects, size_t n) {
    void* const pool = front_of(handle, Family::Type::kPool);
    ASSERT_NE(pool, nullptr);
    EXPECT_LE(n, Call::kMostAtOnce);
    frees_ += static_cast<int>(n);
    for (size_t i = 0; i < n; ++i)
      EXPECT_EQ(static_cast<FakePool*>(pool)->free(objects[i], here()), Verdict::kGood);
  }
  static Slot& here() { return *here_; }
  template <class Work>
  static auto as(Slot& slot, Work work) {
    Fake::number = cpu_of(slot);
    Slot* const outer = std::exchange(here_, &slot);
    const auto result = work();
    here_ = outer;
    return result;
  }
  int defer(FakePool& pool, Slot& slot, void* p) {
    kinds_here_ = &world().kinds;
    return as(slot, [&] {
      return engine().safepoints().defer_call({free_of_pool, handle_of(pool.family()), p}, slot);
    });
  }
  void defer_some(FakePool& pool, Slot& slot, int n) {
    for (int i = 0; i < n; ++i) ASSERT_EQ(defer(pool, slot, take(pool, slot)), 0);
  }
  size_t poll(Slot& slot) {
    return as(slot, [&] { return engine().safepoints().free_what_may_be_freed(slot); });
  }
  size_t stop(Slot& slot) {
    return as(slot, [&] { return engine().safepoints().free_at_stop(slot); });
  }
  uint64_t end(FakePool& pool, Slot& slot) {
    return as(slot, [&] { return PoolTest::end(pool, slot); });
  }

  static inline std::atomic<int> frees_{0};

 private:
  static inline thread_local Slot* here_ = nullptr;
};

TEST_ALL_CONFIGS(DeferKindsTest, APoolsObjectsAreInUseUntilTheGracePeriodIsOver) {
  Slot &a = thread(), &b = thread();
  add_reader(a);
  PoolCalls calls;
  FakePool& pool = make(a, 48, 300, 0, calls.all());
  lane_reader_enter(&reader_);
  defer_some(pool, a, 200);
  defer_some(pool, b, 100);
  EXPECT_EQ(poll(a), 0u);
  EXPECT_EQ(calls.dtors, 0);
  EXPECT_EQ(live(pool, a), 300u);
  EXPECT_EQ(try_take(pool, b), nullptr) << "they count against the limit";
  lane_reader_exit(&reader_);
  EXPECT_EQ(poll(b), 300u);
  EXPECT_EQ(calls.dtors, 300);
  EXPECT_EQ(live(pool, a), 0u);
  give(pool, b, take(pool, b));
  EXPECT_EQ(end(pool, a), 0u);
  EXPECT_EQ(calls.inits, calls.finis);
  EXPECT_EQ(calls.ctors, calls.dtors);
}

// A thread that defers makes the calls that may be made, a batch at a time, and never waits. What
// waits stays below the share.
TEST_ALL_CONFIGS(DeferKindsTest, WhoDefersCallsInTurns) {
  Settings settings;
  settings.deferred = 320;
  begin(settings);
  Slot& a = thread();
  add_reader(a);
  FakePool& pool = make(a, 48);
  for (int i = 0; i < 20000 / kShorter; ++i) {
    defer_some(pool, a, 1);
    if (i % 50 == 0) lane_reader_enter(&reader_);
    if (i % 50 == 20) lane_reader_exit(&reader_);
    ASSERT_LE(i + 1 - frees_, 320);
  }
  if (reader_.depth > 0) lane_reader_exit(&reader_);
  EXPECT_EQ(safepoint_statistics().helped, 0u);
  EXPECT_GT(frees_, 20000 / kShorter - 321);
  stop(a);
  EXPECT_EQ(live(pool, a), 0u);
  EXPECT_EQ(end(pool, a), 0u);
}

TEST_ALL_CONFIGS(DeferKindsTest, TheEndOfAPoolMakesItsFreesAndNoOthers) {
  Slot &a = thread(), &b = thread(), &gone = thread();
  add_reader(a);
  PoolCalls calls;
  FakePool &pool = make(a, 48, 0, 0, calls.uses_only()), &other = make(a, 48);
  lane_reader_enter(&reader_);
  for (int i = 0; i < 100; ++i)
    for (Slot* t : {&a, &b, &gone}) {
      defer_some(pool, *t, 1);
      defer_some(other, *t, 1);
    }
  engine().exits().thread_exits(gone);
  void* kept = take(pool, b);
  EXPECT_EQ(end(pool, b), 1u) << "whose frees wait is not in use, and what is in use is";
  static_cast<void>(kept);
  EXPECT_EQ(calls.dtors, 300);
  EXPECT_EQ(frees_, 300);
  EXPECT_EQ(live(other, a), 300u);
  lane_reader_exit(&reader_);
  stop(a);
  EXPECT_EQ(frees_, 600);
  EXPECT_EQ(live(other, a), 0u);
  EXPECT_EQ(end(other, a), 0u);
}

// Some of the pool's frees lie behind the call in the same batch.
TEST_ALL_CONFIGS(DeferKindsTest, APoolEndsInADeferredCall) {
  Slot& a = thread();
  PoolCalls calls;
  FakePool& pool = make(a, 48, 0, 0, calls.uses_only());
  const auto end_here = [](void*, void** ended, size_t) {
    bool lost;
    EXPECT_EQ(static_cast<FakePool*>(*ended)->end(here(), lost), 0u);
    EXPECT_EQ(frees_, 50);
  };
  defer_some(pool, a, 10);
  EXPECT_EQ(as(a, [&] { return engine().safepoints().defer_call({end_here, nullptr, &pool}, a); }),
            0);
  defer_some(pool, a, 40);
  EXPECT_EQ(stop(a), 11u) << "the other 40 were freed by the pool's end";
  EXPECT_EQ(safepoint_statistics().freed, 51u);
  EXPECT_EQ(frees_, 50);
  EXPECT_EQ(calls.dtors, 50);
}

// A pool's dtor that is being called may still free objects of the pool, so the pool's end waits
// for it.
TEST_ALL_CONFIGS(DeferKindsTest, TheEndWaitsForWhatAnotherThreadIsJustCalling) {
  start_threads();
  begin({});
  make_lanes();
  Slot& a = thread();
  FakePool& pool = make(a, 48);
  static std::atomic<int> stage;
  stage = 0;
  const auto linger = [](void*, void**, size_t) {
    stage = 1;
    while (stage < 2) std::this_thread::yield();
    stage = 3;
  };
  ASSERT_EQ(as(a, [&] { return engine().safepoints().defer_call({linger, nullptr, nullptr}, a); }),
            0);
  defer_some(pool, a, 3);
  Slot& b = thread();
  std::thread other([&] { stop(b); });
  while (stage < 1) std::this_thread::yield();
  const auto go_on = [] {
    int lingers = 1;
    stage.compare_exchange_strong(lingers, 2);
  };
  Fake::on_sleep = go_on;  // the end waits
  EXPECT_EQ(end(pool, a), 0u);
  EXPECT_EQ(stage, 3);
  go_on();
  other.join();
  Fake::on_sleep = nullptr;
  EXPECT_EQ(frees_, 3);
}

// A thread that waits at the limit is served by any thread that makes the frees.
TEST_ALL_CONFIGS(DeferKindsTest, WhoWaitsForAnObjectIsServedByAPoll) {
  start_threads();
  begin({});
  make_lanes();
  Slot &a = thread(), &w = thread();
  add_reader(a);
  FakePool& pool = make(a, 48, 4);
  lane_reader_enter(&reader_);
  defer_some(pool, a, 4);
  std::thread waiter([&] { give(pool, w, take(pool, w, kWait)); });
  while (pool.counters().waits == 0) std::this_thread::yield();
  lane_reader_exit(&reader_);
  while (frees_ < 4) poll(a);  // lanes that the waiter is just looking into are left out
  waiter.join();
  stop(a);
  EXPECT_EQ(live(pool, a), 0u);
  EXPECT_EQ(end(pool, a), 0u);
}

TEST_ALL_CONFIGS(DeferKindsTest, APollInACallFreesObjectsOnlyAndAWaitIsRefused) {
  Slot &a = thread(), &b = thread();
  add_reader(a);
  static FakeEngine* engine_now;
  static int depth, most_depth, waits;
  engine_now = &engine();
  depth = most_depth = waits = 0;
  const auto poll_and_wait = [](void*, void** objects, size_t n) {
    most_depth = std::max(most_depth, ++depth);
    for (size_t i = 0; i < n; ++i) {
      EXPECT_EQ(engine_now->defer(objects[i], here()), 0);
      EXPECT_EQ(engine_now->safepoints().free_what_may_be_freed(here()), 1u);
      waits += engine_now->safepoints().wait_for_readers(here()) == EDEADLK;
    }
    --depth;
  };
  for (Slot* t : {&a, &b})
    for (int i = 0; i < 20; ++i)
      EXPECT_EQ(as(*t,
                   [&] {
                     return engine().safepoints().defer_call({poll_and_wait, nullptr, take(*t, 48)},
                                                             *t);
                   }),
                0);
  EXPECT_EQ(poll(a), 40u);
  EXPECT_EQ(most_depth, 1);
  EXPECT_EQ(waits, 40);
  EXPECT_EQ(statistics().live_objects, 0u);
}

// In the child the call that another thread was making is lost. The child makes the calls behind it
// in its batch.
TEST_ALL_CONFIGS(DeferKindsTest, TheChildMakesTheRestOfWhatAnotherThreadWasCalling) {
  Slot &b = thread(), &a = thread();
  FakePool& pool = make(a, 48);
  give(b, take(b, 48));
  static FakeEngine* engine_now;
  static Slot* forker;
  engine_now = &engine();
  forker = &b;
  const auto fork_here = [](void*, void**, size_t) {
    if (frees_ != 10) return;
    engine_now->fork().before(*forker);
    engine_now->fork().after_in_child(*forker);
    as(*forker, [] { return engine_now->safepoints().free_at_stop(*forker); });
    EXPECT_EQ(frees_, 40) << "the child has made the others";
    __builtin_trap();  // there is no other thread in the child
  };
  defer_some(pool, a, 10);
  EXPECT_EQ(
      as(a, [&] { return engine().safepoints().defer_call({fork_here, nullptr, nullptr}, a); }), 0);
  defer_some(pool, a, 30);
  EXPECT_FALSE(Guard::survives([&] { stop(a); }));
  EXPECT_EQ(live(pool, b), 0u);
  EXPECT_EQ(end(pool, b), 0u);
}

class DeferHeapTest : public DeferKindsTest {
 protected:
  static void free_of_heap(void* handle, void** objects, size_t n) {
    void* const heap = front_of(handle, Family::Type::kHeap);
    ASSERT_NE(heap, nullptr);
    FakeHeap& its = *static_cast<FakeHeap*>(heap);
    for (size_t i = 0; i < n; ++i, ++frees_) {
      const size_t freed = its.free_batch(objects + i, n - i, here());
      i += freed, frees_ += static_cast<int>(freed);
      if (i == n) return;
      EXPECT_EQ(its.free(objects[i], FakeHeap::kUnknown, here()).verdict, Verdict::kGood);
    }
  }
  void defer_all(FakeHeap& heap, Slot& slot) {
    for (Bytes size : telling_sizes()) {
      void* p = heap.allocate(size, kGranule, slot);
      ASSERT_NE(p, nullptr);
      kinds_here_ = &world().kinds;
      const Call call{free_of_heap, handle_of(heap.family()), p};
      ASSERT_EQ(as(slot, [&] { return engine().safepoints().defer_call(call, slot); }), 0);
    }
  }
};

TEST_ALL_CONFIGS(DeferHeapTest, ObjectsOfEverySizeAreFreedOrGoWithTheirHeap) {
  Slot &a = thread(), &b = thread();
  add_reader(a);
  FakeHeap parent(engine(), kSource, "parent", nullptr), child(engine(), kSource, "child", &parent);
  ASSERT_TRUE(parent.start(0, 0, nullptr, nullptr, a));
  ASSERT_TRUE(child.start(0, 0, nullptr, nullptr, a));
  const int n = static_cast<int>(telling_sizes().size());
  defer_all(parent, a);
  lane_reader_enter(&reader_);
  EXPECT_EQ(poll(b), 0u);
  EXPECT_EQ(parent.count(a).objects, static_cast<uint64_t>(n));
  lane_reader_exit(&reader_);
  EXPECT_EQ(poll(b), static_cast<size_t>(n));
  EXPECT_EQ(parent.count(a).objects, 0u);
  defer_all(parent, b);
  defer_all(child, a);
  EXPECT_EQ(as(b, [&] { return parent.end(b, [](FakeHeap&) {}); }), 0u);
  EXPECT_EQ(frees_, 3 * n);
  stop(a);  // clears their places
}

}  // namespace
}  // namespace lanemalloc
