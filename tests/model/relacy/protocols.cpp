// The lock, the scavenger's wake-up and the run allocator's stack of deferred frees in C++'s memory
// model.
// Called by: run.py, with the name of a test. Compiled with the copy of src/ in which std::atomic
// is model::atomic; deferred.inc is Runs::defer() and Runs::take_back_deferred(), cut out of
// core/memory/runs.h by run.py.
#include "checked_atomic.h"
// After Relacy.
#include "core/base/lock.h"
#include "core/memory/scavenger.h"

namespace {

using namespace lanemalloc;

using model::Platform;

// Three threads take the lock, one of them only by trying, and use what it guards.
struct LockTest : rl::test_suite<LockTest, 3> {
  Lock<Platform> lock{Rank::kRuns};
  model::Contents guarded;
  void thread(unsigned index) {
    Visit visit(&lock, index != 0);
    if (!lock.acquire(visit)) return;
    guarded.work();
    lock.release(visit);
  }
};

struct LaneLockTest;
LaneLockTest* lane_lock_test;

// Here a waiter sleeps on its futex until it is woken. If a wake-up is lost, Relacy finds a thread
// that waits for good.
struct Sleepers : Platform {
  static void wait(model::atomic<uint64_t>& word, uint32_t value, uint64_t);
  static void wake(model::atomic<uint64_t>& word, int count);
};

// A lane's lock. A thread gives it back by a plain store and then looks whether another thread
// sleeps.
struct LaneLockTest : rl::test_suite<LaneLockTest, 3> {
  Lock<Sleepers> lock{Rank::kLane};
  model::Contents guarded;
  rl::mutex kernel;
  rl::condition_variable asleep;

  void before() { lane_lock_test = this; }
  void thread(unsigned) {
    Visit visit(&lock, true);
    lock.acquire(visit);
    guarded.work();
    lock.release(visit);
  }
  void after() { RL_ASSERT(guarded.value() == 3); }
};

void Sleepers::wait(model::atomic<uint64_t>& word, uint32_t value, uint64_t) {
  LaneLockTest& test = *lane_lock_test;
  test.kernel.lock($);
  if (static_cast<uint32_t>(word.load(std::memory_order_relaxed)) == value)
    test.asleep.wait(test.kernel, $);
  test.kernel.unlock($);
}
void Sleepers::wake(model::atomic<uint64_t>&, int) {
  LaneLockTest& test = *lane_lock_test;
  test.kernel.lock($);
  test.asleep.notify_one($);
  test.kernel.unlock($);
}

struct ScavengerTest;
ScavengerTest* scavenger_test;

// Here there is a clock, and a futex on which the scavenger sleeps until it is woken.
struct ScavengerPlatform : Platform {
  static void wait(model::atomic<uint32_t>& word, uint32_t value, uint64_t most_ms = kForever);
  static void wake(model::atomic<uint32_t>& word, int count);
  static uint64_t now_ms();
};

// Two threads have work and poke; the third is the scavenger. When everything is at rest, no work
// may be left.
struct ScavengerTest : rl::test_suite<ScavengerTest, 3> {
  Scavenger<ScavengerPlatform> scavenger;
  model::atomic<uint32_t> work{0};
  uint64_t clock = 0;  // the scavenger's
  rl::mutex kernel;
  rl::condition_variable changed;
  rl::var<int> pokers, sleepers;

  void before() {
    scavenger_test = this;
    clock = 0;
    pokers($) = 2;
    sleepers($) = 0;
    scavenger.start([](void* test) { return static_cast<ScavengerTest*>(test)->pass(); }, this,
                    1000);
    scavenger.begin();
  }
  bool pass() {
    work.exchange(0, std::memory_order_acq_rel);
    return false;
  }
  void thread(unsigned index) {
    if (index == 2) return scavenger.run();
    work.fetch_add(1, std::memory_order_acq_rel);  // in the core: a lock is given back
    scavenger.poke();
    kernel.lock($);
    pokers($) = static_cast<int>(pokers($)) - 1;
    changed.notify_all($);
    kernel.unlock($);
  }
  // True if no thread will ever wake the scavenger.
  bool sleep(model::atomic<uint32_t>& word, uint32_t value) {
    bool for_good = false;
    kernel.lock($);
    if (word.load(std::memory_order_relaxed) == value) {
      sleepers($) = 1;
      while (static_cast<int>(sleepers($)) != 0 && static_cast<int>(pokers($)) != 0)
        changed.wait(kernel, $);
      for_good = static_cast<int>(sleepers($)) != 0;
      sleepers($) = 0;
    }
    kernel.unlock($);
    return for_good;
  }
  void wake() {
    kernel.lock($);
    sleepers($) = 0;
    changed.notify_all($);
    kernel.unlock($);
  }
  void after() { RL_ASSERT(work.load(std::memory_order_relaxed) == 0); }
};

void ScavengerPlatform::wait(model::atomic<uint32_t>& word, uint32_t value, uint64_t most_ms) {
  ScavengerTest& test = *scavenger_test;
  if (most_ms != kForever) {
    test.clock += most_ms;
    rl::yield(1, $);
  } else if (test.sleep(word, value)) {
    RL_ASSERT(test.work.fetch_add(0, std::memory_order_relaxed) == 0);
    test.scavenger.stop();
  }
}
void ScavengerPlatform::wake(model::atomic<uint32_t>&, int) { scavenger_test->wake(); }
uint64_t ScavengerPlatform::now_ms() { return scavenger_test->clock; }

// Deferred runs, which wait for the next holder of the lock. Two threads push them; a third takes
// them in twice, and the rest is taken in at the end.
struct DeferredTest : rl::test_suite<DeferredTest, 3> {
  struct RunState {
    BlockIndex next;
    uint32_t freed_at = 0;
    model::Contents contents;  // what the freer wrote into the block's state
    int put = 0;
  };
  struct Blocks {
    struct State {
      BlockCount length;
    };
    State states[3]{{1}, {1}, {1}};
    State& state(BlockIndex at) { return states[at]; }
  };
  Blocks region_;
  RunState runs_[3];
  model::atomic<BlockIndex> deferred_{0};
  BlockIndex taken_back_ = 0;
  struct {
    void failed() {}
    void done() {}
  } deferred_tries_;

  enum class BlockKind : uint8_t { kWaiting, kDirty };
  RunState& run(BlockIndex at) { return runs_[at]; }
  void set_ends(BlockIndex at, BlockCount, BlockKind) { run(at).contents.work(); }
  static void fence_of_walk() {}
  void raise_used_end(BlockIndex) {}
  void put(BlockIndex at, BlockCount, BlockKind) {
    run(at).contents.work();
    ++run(at).put;
  }
#include "deferred.inc"

  void thread(unsigned index) {
    if (index == 0) defer(0, 1, BlockKind::kDirty), defer(1, 1, BlockKind::kDirty);
    if (index == 1) defer(2, 1, BlockKind::kDirty);
    if (index == 2) take_back_deferred(), take_back_deferred();
  }
  void after() {
    take_back_deferred();
    for (RunState& run : runs_) RL_ASSERT(run.put == 1 && run.contents.value() == 2);
  }
};

}  // namespace

int main(int, char** arguments) {
  const std::string_view name = arguments[1];
  if (name == "lock") return model::run<LockTest>(3);
  if (name == "lane-lock") return model::run<LaneLockTest>(2);
  if (name == "scavenger") return model::run<ScavengerTest>(2);
  if (name == "deferred") return model::run<DeferredTest>(3);
  return 2;
}
