// Threads are torn off at any instruction of what they do, as by a long jump out of a signal
// handler, and then end. What they held comes back, nothing is handed out twice, and no more is
// lost than what they were working on.
// The trap flag interrupts after each instruction, so this is x86-64 only. The sanitizers' own code
// cannot be left in that way.
#include "core/slab/batch.h"
#include "core/slab/slab_salvage.h"
#include "fronts/heap/heap.h"
#include "links.h"
#include "pools.h"

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)

namespace lanemalloc {
namespace {

// Runs a thread's operation up to one of its instructions.
class Torn {
 public:
  // Returns how many instructions ran. n: the instruction to tear at. If the platform has blocked
  // signals there, it is the next one where they are not blocked.
  template <class Operation>
  static uint64_t run(uint64_t n, const Operation& operation) {
    struct sigaction action = {}, before;
    action.sa_handler = on_trap;
    sigaction(SIGTRAP, &action, &before);
    steps_ = 0;
    last_ = n;
    if (sigsetjmp(out_, 1) == 0) {
      asm volatile(
          "lea -128(%%rsp), %%rsp\n pushfq\n orq $0x100, (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp" ::
              : "memory", "cc");
      operation();
      asm volatile(
          "lea -128(%%rsp), %%rsp\n pushfq\n andq $~0x100, (%%rsp)\n popfq\n lea 128(%%rsp), "
          "%%rsp" ::
              : "memory", "cc");
    }
    Fake::signals_are_blocked = false;
    sigaction(SIGTRAP, &before, nullptr);
    return steps_;
  }

 private:
  static void on_trap(int) {
    if (++steps_ >= last_ && !Fake::signals_are_blocked) siglongjmp(out_, 1);
  }
  static inline uint64_t steps_, last_;
  static inline sigjmp_buf out_;
};

class TornTest : public PoolTest {
 public:
  void SetUp() override {
    PoolTest::SetUp();
    Fake::release_all();
    Fake::limit = Bytes{64} << 20;  // every life makes memory anew
  }
  struct Kept {
    void* p;
    Bytes size;
    uint64_t seed;
  };
  // What the thread that is torn off does, with what it has.
  struct Operation {
    const char* name;
    void (*run)(TornTest& test);
  };

  // One life: everything is made anew, and the thread runs its operation up to the n-th instruction
  // and ends.
  uint64_t live_until(uint64_t n, const Operation& operation) {
    pools_.clear();
    begin({});
    if (!config().single) start_threads();
    torn_ = &thread();
    other_ = &thread();
    pool_ = &make(*other_, 200);
    heap_ = std::make_unique<FakeHeap>(engine(), kSource, "heap", nullptr);
    EXPECT_TRUE(heap_->start(0, 0, nullptr, nullptr, *other_));
    of_heap_ = heap_->allocate(100, kGranule, *other_);
    prepare();
    Fake::number = cpu_of(*torn_);
    const uint64_t steps = Torn::run(n, [&] { operation.run(*this); });
    Fake::number = cpu_of(*torn_);
    engine().exits().thread_exits(*torn_);
    return steps;
  }
  // Makes objects of both threads, by malloc and from the pool. Some of the other thread's objects
  // are in batches of the first.
  void prepare() {
    mine_.clear();
    others_.clear();
    others_of_pool_.clear();
    mine_of_pool_.clear();
    for (size_t i = 0; i < 90; ++i) {
      others_.push_back(make_object(*other_, 300));
      others_of_pool_.push_back(take(*pool_, *other_));
    }
    for (size_t i = 0; i < 60; ++i) {
      mine_.push_back(make_object(*torn_, i % 2 == 0 ? 300 : 3000));
      mine_of_pool_.push_back(take(*pool_, *torn_));
    }
    for (size_t i = 0; i < 10; ++i) {
      drop(others_, *torn_);
      give(*pool_, *torn_, others_of_pool_.back());
      others_of_pool_.pop_back();
      drop(mine_, *torn_);
      give(*pool_, *torn_, mine_of_pool_.back());
      mine_of_pool_.pop_back();
    }
  }
  Kept make_object(Slot& slot, Bytes size) {
    Kept kept{take(slot, size), size, ++seed_};
    fill(kept.p, size, kept.seed);
    return kept;
  }
  void drop(std::vector<Kept>& all, Slot& slot) {
    EXPECT_TRUE(is_whole(all.back().p, all.back().size, all.back().seed));
    give(slot, all.back().p);
    all.pop_back();
  }
  // The next thread gets no object that is in use, and all but what was lost is free at the end.
  void expect_the_rest_is_whole(const char* name, uint64_t n) {
    SCOPED_TRACE(testing::Message() << name << ", torn off at instruction " << n);
    EXPECT_HOLDS(engine().check_invariants());
    std::set<void*> in_use;
    for (auto* all : {&mine_, &others_})
      for (const Kept& kept : *all) in_use.insert(kept.p);
    for (auto* all : {&mine_of_pool_, &others_of_pool_})
      for (void* p : *all) in_use.insert(p);
    Slot& next = thread();
    std::vector<Kept> more;
    std::vector<void*> more_of_pool;
    for (size_t i = 0; i < 150; ++i) {
      more.push_back(make_object(next, i % 3 == 0 ? 3000 : 300));
      EXPECT_TRUE(in_use.insert(more.back().p).second) << "an object is handed out twice";
      more_of_pool.push_back(take(*pool_, next));
      EXPECT_TRUE(in_use.insert(more_of_pool.back()).second)
          << "an object of the pool is handed out twice";
    }
    more.push_back(make_object(next, kSlabMax + 1));
    while (!more.empty()) drop(more, next);
    while (!mine_.empty()) drop(mine_, next);
    while (!others_.empty()) drop(others_, *other_);
    for (auto* all : {&more_of_pool, &mine_of_pool_}) give_all(*pool_, next, *all);
    give_all(*pool_, *other_, others_of_pool_);
    for (int i = 0; i < 4; ++i) engine().upkeep().trim(*other_);
    EXPECT_HOLDS(engine().check_invariants());
    // What the operation was about is lost: an object, a batch, or what a bin was being given.
    EXPECT_LE(statistics().live_objects, 600u);
    EXPECT_LE(live(*pool_, *other_), pool_->kind().capacity);
    bool lost = true;
    pool_->end(*other_, lost);
    // A hit by CPU leaves no mark of the thread that was inside.
    EXPECT_TRUE(!lost || config().entry == Entry::kPerCpu) << "a lane could not be reached";
    EXPECT_EQ(heap_->free(of_heap_, FakeHeap::kUnknown, next).verdict, Verdict::kGood);
    heap_->end(*other_, [](FakeHeap&) {});
    heap_.reset();
    EXPECT_HOLDS(engine().check_invariants());
  }
  // An object that is being freed is no thread's from then on.
  template <class T>
  static T take_out(std::vector<T>& all) {
    const T last = all.back();
    all.pop_back();
    return last;
  }
  void allocate(Bytes size, int n) {
    for (int i = 0; i < n; ++i) made_ = engine().allocate(size, *torn_);
  }
  void free_of(std::vector<Kept>& all, int n) {
    for (int i = 0; i < n; ++i) engine().free(take_out(all).p, *torn_);
  }
  void allocate_of_pool(int n) {
    for (int i = 0; i < n; ++i) made_ = pool_->allocate(0, *torn_);
  }
  void free_of_pool(std::vector<void*>& all, int n) {
    for (int i = 0; i < n; ++i) pool_->free(take_out(all), *torn_);
  }
  void trim() { engine().upkeep().trim(*torn_); }
  void allocate_of_heap() { made_ = heap_->allocate(100, kGranule, *torn_); }
  void tear_at_many_instructions(const Operation& operation) {
    constexpr uint64_t kMost = 4;
    const uint64_t steps = live_until(~uint64_t{0}, operation);
    expect_the_rest_is_whole(operation.name, 0);
    const uint64_t every = steps < kMost ? 1 : steps / kMost;
    for (uint64_t n = 1 + seed_ % every; n <= steps && !HasFailure(); n += every) {
      live_until(n, operation);
      expect_the_rest_is_whole(operation.name, n);
    }
  }

  Slot* torn_ = nullptr;
  Slot* other_ = nullptr;
  FakePool* pool_ = nullptr;
  std::unique_ptr<FakeHeap> heap_;
  void* of_heap_ = nullptr;
  std::vector<Kept> mine_, others_;
  std::vector<void*> mine_of_pool_, others_of_pool_;
  uint64_t seed_ = 0;
  static inline void* made_;
};

inline std::vector<Config> configs_to_tear() {
  return {
      {4096, false}, {4096, false, Entry::kShared}, {4096, false, Entry::kPerCpu}, {4096, true}};
}

#define TORN_OPERATION(Name, body)                                         \
  TEST_CONFIGS(TornTest, Name, configs_to_tear()) {                        \
    tear_at_many_instructions({#Name, [](TornTest& test) { test.body; }}); \
  }

TORN_OPERATION(Malloc, allocate(300, 1))
TORN_OPERATION(MallocThatRefills, allocate(300, 40))
TORN_OPERATION(MallocOfANewClass, allocate(5000, 1))
TORN_OPERATION(MallocOfALargeObject, allocate(kSlabMax + 1, 1))
TORN_OPERATION(Free, free_of(test.mine_, 1))
TORN_OPERATION(FreeOfOthersObjects, free_of(test.others_, 70))
TORN_OPERATION(Trim, trim())
TORN_OPERATION(PoolAllocation, allocate_of_pool(80))
TORN_OPERATION(PoolFree, free_of_pool(test.mine_of_pool_, 40))
TORN_OPERATION(PoolFreeOfOthersObjects, free_of_pool(test.others_of_pool_, 75))
TORN_OPERATION(HeapAllocation, allocate_of_heap())

// Each test tears one structure, at every instruction.
class TornAnywhereTest : public testing::Test {
 protected:
  static constexpr Bytes kSize = 64;
  static constexpr size_t kObjects = 40;
  struct alignas(kSize) Memory {
    std::byte bytes[kSize];
  };
  Object* object(size_t i) { return reinterpret_cast<Object*>(&memory_[i]); }
  // The first n objects, linked as a slab's list is.
  Link linked(size_t n) {
    for (size_t i = 0; i < n; ++i) object(i)->next = Link::to(i + 1 < n ? object(i + 1) : nullptr);
    return Link::to(object(0));
  }
  // Every five objects are one object of a slab and four of another slab.
  static MapWord slab_of(size_t i) { return MapWord(i % 5 == 0 ? 1 : 2 + i / 5 % 2); }

  Memory memory_[kObjects];
};

// The tear comes at each object in turn: in a new row, in a row that is there, in a new holder.
// Some operations take the batch away and put it back instead. Then the batch may be lost on the
// way.
TEST_F(TornAnywhereTest, ABatchKeepsWhatWasAdded) {
  constexpr auto places = [] { return Batch::places_in(kSize); };
  static volatile bool is_away;
  Batch batch;
  const auto run_until = [&](uint64_t n, size_t before) {
    memset(static_cast<void*>(memory_), 0xEE, sizeof memory_);
    batch = Batch();
    is_away = false;
    for (size_t i = 0; i < before; ++i) batch.add(object(i), slab_of(i), places);
    return Torn::run(n, [&] {
      if (before % 8 != 7) {
        batch.add(object(before), slab_of(before), places);
        return;
      }
      is_away = true;
      batch.put_back(batch.take());
      is_away = false;
    });
  };
  for (size_t before = 0; before < kObjects; ++before) {
    const uint64_t steps = run_until(~uint64_t{0}, before);
    for (uint64_t n = 1; n <= steps && !HasFailure(); ++n) {
      SCOPED_TRACE(testing::Message()
                   << "torn off at instruction " << n << " after " << before << " objects");
      run_until(n, before);
      batch.mend([](const Object*) { return Batch::places_in(kSize); });
      std::set<Object*> found;
      Batch::for_each(batch.take(), any_object, [&](Object* o) {
        EXPECT_TRUE(found.insert(o).second) << "an object comes twice";
        EXPECT_GE(o, object(0));
        EXPECT_LE(o, object(before)) << "an object comes that was not added";
      });
      if (is_away) continue;
      for (size_t i = 0; i < before; ++i) EXPECT_EQ(found.count(object(i)), 1u) << i;
    }
  }
}

// Some of the slab's objects wait in a bin, others are on its list, and the last ones were never
// handed out.
TEST_F(TornAnywhereTest, ABinThatIsPutBackLosesNothing) {
  constexpr size_t kInBin = 12, kCarved = 30;
  const SizeClass c = class_of(kSize);
  const Extent extent{reinterpret_cast<Address>(object(0)), sizeof memory_};
  Slab slab{};
  Link bin = Link::none();
  static volatile bool is_done;
  const auto run_until = [&](uint64_t n) {
    slab.start(c, false);
    slab.carved = kCarved;
    slab.countdown = static_cast<int32_t>(kInBin);
    bin = linked(kCarved);
    object(kInBin - 1)->next = Link::none();
    slab.free_list = Link::to(object(kInBin));
    is_done = false;
    return Torn::run(n, [&] {
      slab.put_back(bin, extent);
      is_done = true;
    });
  };
  const uint64_t steps = run_until(~uint64_t{0});
  EXPECT_TRUE(is_done);
  EXPECT_TRUE(bin.is_none());
  EXPECT_EQ(slab.used(), 0u);
  for (uint64_t n = 1; n <= steps && !HasFailure(); ++n) {
    SCOPED_TRACE(testing::Message() << "torn off at instruction " << n);
    run_until(n);
    salvage_objects(&slab, reinterpret_cast<Address>(object(0)), bin);
    EXPECT_EQ(slab.used(), 0u);
    EXPECT_EQ(slab.free_objects(), kCarved);
  }
}

TEST_F(TornAnywhereTest, ASlabThatStartsOverIsFreeAsAWhole) {
  const SizeClass c = class_of(kSize);
  Slab slab{};
  const auto run_until = [&](uint64_t n) {
    slab.start(c, false);
    slab.carved = kObjects;
    slab.free_list = linked(kObjects);
    return Torn::run(n, [&] { slab.start_over(); });
  };
  const uint64_t steps = run_until(~uint64_t{0});
  for (uint64_t n = 1; n <= steps && !HasFailure(); ++n) {
    SCOPED_TRACE(testing::Message() << "torn off at instruction " << n);
    run_until(n);
    salvage_objects(&slab, reinterpret_cast<Address>(object(0)), Link::none());
    EXPECT_EQ(slab.used(), 0u);
    EXPECT_EQ(slab.free_objects(), slab.carved);
  }
}

}  // namespace
}  // namespace lanemalloc

#endif
