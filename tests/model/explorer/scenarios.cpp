// What the explorer runs: the real lists, locks, lanes and engine over the Model platform.
// Called by: explorer.cpp. Each scenario says what must hold; run.py says which mutants must break
// it.
#include <setjmp.h>

#include <utility>

#include "core/engine/engine.h"
#include "fronts/pool/pool.h"
#include "platform.h"

namespace {

using namespace lanemalloc;
using explorer::check;
using explorer::Model;

// Plain memory. If two threads touch it in no order, the explorer stops.
struct Plain {
  int value = 0;
  void work() { ++value; }
  // A read that the compiler does not remove.
  int read() { return *const_cast<volatile int*>(&value); }
};

// --- The lists.

struct InboxScenario {
  struct Batch : Object {
    Plain links;
    int taken = 0;
  };
  Inbox<> inbox;
  Batch batches[4];

  void give(Batch& batch) {
    batch.links.work();
    inbox.give(&batch);
  }
  void take() {
    const auto is_object = [this](const void* p) { return p >= batches && p < batches + 4; };
    const bool is_sound = inbox.take(
        [](Object* object) {
          Batch& batch = *static_cast<Batch*>(object);
          batch.links.work();
          ++batch.taken;
        },
        is_object);
    explorer::check(is_sound, "a link leads to no batch");
  }
  void thread(int i) {
    if (i == 0) return take(), take();
    give(batches[2 * i - 2]);
    give(batches[2 * i - 1]);
  }
  void check() {
    take();
    if (!inbox.is_empty()) take();
    explorer::check(inbox.is_empty(), "something stays in the inbox");
    for (Batch& batch : batches) {
      const bool given = batch.links.value != 0;
      explorer::check(batch.taken == (given ? 1 : 0), "a batch is lost, or comes twice");
    }
  }
};

// Batches of several objects, in which holders name the other objects. A giver fills one batch and
// then another. The owner takes them in and writes to every object, as a lane does.
struct BatchScenario {
  struct Small {  // an object of 32 bytes: it can name two
    Object object;
    Object* names[2];
  };
  static constexpr int kFirst = 7, kSecond = 2, kEach = kFirst + kSecond;
  // The first batch: a holder, a row of three, a row of one; a holder, a row of one. Then a batch
  // of two, of which the first is of the last row's slab.
  static constexpr uint64_t kSlabs[kEach] = {1, 1, 1, 1, 2, 3, 3, 3, 1};
  Inbox<> inbox;
  Small objects[2 * kEach];
  int taken[2 * kEach] = {};
  bool given[2] = {};

  void give(Batch& batch, Small* from, const uint64_t* slabs, int n) {
    for (int i = 0; i < n; ++i)
      batch.add(&from[i].object, MapWord(slabs[i]), [] { return Batch::places_in(sizeof(Small)); });
    inbox.give(batch.take());
  }
  void take() {
    const auto is_object = [&](const void* p) { return p >= objects && p < objects + 2 * kEach; };
    bool are_sound = true;
    const bool is_sound = inbox.take(
        [&](Object* batch) {
          are_sound &= Batch::for_each(batch, is_object, [&](Object* object) {
            Small* small = reinterpret_cast<Small*>(object);
            ++taken[small - objects];
            object->next = Link::none();
            small->names[0] = small->names[1] = nullptr;
          });
        },
        is_object);
    explorer::check(is_sound && are_sound, "no object that was given");
  }
  void thread(int i) {
    if (i == 0) return take(), take();
    Batch batch;
    give(batch, &objects[(i - 1) * kEach], kSlabs, kFirst);
    give(batch, &objects[(i - 1) * kEach + kFirst], kSlabs + kFirst, kSecond);
    given[i - 1] = true;
  }
  void check() {
    take();
    if (!inbox.is_empty()) take();
    explorer::check(inbox.is_empty(), "something stays in the inbox");
    for (int i = 0; i < 2 * kEach; ++i)
      explorer::check(taken[i] == (given[i / kEach] ? 1 : 0), "an object is lost, or comes twice");
  }
};

struct StackScenario {
  static constexpr uint32_t kMembers = 3;
  IdStack<> stack;
  IdStack<>::Link links[kMembers + 1]{};
  Plain lanes[kMembers + 1];
  bool held[kMembers + 1]{};

  auto link() {
    return [this](uint32_t n) -> auto& { return links[n]; };
  }
  StackScenario() {
    for (uint32_t n = kMembers; n > 0; --n) stack.push(n, link());
  }
  uint32_t pop() {
    const uint32_t n = stack.pop(link());
    if (n == 0) return n;
    explorer::check(n <= kMembers && !held[n], "two hold the same lane");
    held[n] = true;
    lanes[n].work();
    return n;
  }
  void push(uint32_t n) {
    if (n == 0) return;
    held[n] = false;
    stack.push(n, link());
  }
  void thread(int i) {
    if (i != 1) return push(pop());
    const uint32_t first = pop(), second = pop();
    push(first);
    push(second);
  }
  void check() {
    for (uint32_t n = 0; n < kMembers; ++n) explorer::check(pop() != 0, "a lane is lost");
    explorer::check(pop() == 0, "a lane comes twice");
  }
};

// --- Waiting and waking.

struct LockScenario {
  Lock<Model> lock{Rank::kRuns};
  Plain guarded;
  void thread(int) {
    Visit visit(this, true);
    lock.acquire(visit);
    guarded.work();
    lock.release(visit);
  }
  void check() {
    explorer::check(!lock.is_held(), "the lock stays held");
    explorer::check(guarded.value >= 2, "somebody did not come in");
  }
};

// Two threads have work and poke; the third is the scavenger, and perhaps asleep. The last poker
// waits until the work is done, and stops the scavenger; the other one may poke after that.
struct ScavengerScenario {
  static constexpr int kPokers = 2;
  Scavenger<Model> scavenger;
  std::atomic<uint32_t> work{0};
  std::atomic<int> done{0};
  ScavengerScenario() {
    scavenger.start([](void* s) { return static_cast<ScavengerScenario*>(s)->pass(); }, this, 1000);
    scavenger.begin();
  }
  bool pass() {
    work.exchange(0, std::memory_order_acquire);
    return false;
  }
  void thread(int i) {
    if (i == kPokers) return scavenger.run();
    work.fetch_add(1, std::memory_order_release);  // in the core: a lock is given back
    const bool is_last = done.fetch_add(1, std::memory_order_relaxed) + 1 == kPokers;
    scavenger.poke();
    if (!is_last) return;
    while (work.load(std::memory_order_relaxed) != 0) Model::pause();
    scavenger.stop();
  }
  void check() { explorer::check(work.load() == 0, "work is left and nobody will come"); }
};

// Runs, with threads that may not wait (signal handlers). Their frees are deferred if the lock is
// held.
struct RunsScenario {
  Region<Model> region;
  Runs<Model> runs{region};
  BlockIndex mine[explorer::kMostThreads];
  bool is_free[explorer::kMostThreads]{};
  RunsScenario() {
    check_that(region.start(kBlockSize, false));
    runs.start(false, 1000);
    Visit visit(this, true);
    for (BlockIndex& at : mine) at = runs.allocate(1, 1, visit).at;
  }
  static void check_that(bool good) {
    if (!good) __builtin_trap();
  }
  void thread(int i) {
    Visit visit(&mine[i], i == 0);
    runs.free(mine[i], 1, visit);
    is_free[i] = i != 0;
    if (i == 0) mine[0] = runs.allocate(1, 1, visit).at;
  }
  void check() {
    Visit visit(this, true);
    const BlockIndex more = runs.allocate(1, 1, visit).at;  // takes the deferred runs in
    runs.check_invariants();
    explorer::check(more != mine[0], "a block comes twice");
    runs.free(more, 1, visit);
    Bytes in_use = 0;
    for (bool free : is_free) in_use += free ? 0 : kBlockSize;
    const RunStatistics s = runs.statistics();
    explorer::check(s.claimed == s.dirty + s.clean + in_use, "a deferred block is lost");
  }
};

// The same, but the threads need memory again at once.
struct RunsAgainScenario : RunsScenario {
  void thread(int i) {
    Visit visit(&mine[i], i == 0);
    runs.free(mine[i], 1, visit);
    mine[i] = runs.allocate(1, 1, visit).at;
    // All other memory is in the hands of the thread that may wait
    is_free[i] = mine[i] == Runs<Model>::kNone;
    explorer::check(i != 0 || !is_free[i], "no memory for the one who may wait");
  }
  void check() {
    for (int i = 1; i < explorer::kMostThreads; ++i)
      for (int j = 0; j < i; ++j)
        explorer::check(is_free[i] || mine[i] != mine[j], "a block comes twice");
    RunsScenario::check();
  }
};

// A library's lock. The library's fork handler takes it after the allocator has closed its own
// locks and before it opens them. Another thread that frees and allocates may hold it then.
struct ForkLockScenario {
  Region<Model> region;
  Runs<Model> runs{region};
  Lock<Model> foreign{Rank::kPool};
  BlockIndex mine[explorer::kMostThreads];
  ForkLockScenario() {
    RunsScenario::check_that(region.start(kBlockSize, false));
    runs.start(false, 1000);
    for (BlockIndex& at : mine) at = runs.allocate_fresh(1);  // and there is more
  }
  void use(int i, Visit& visit) {
    runs.free(mine[i], 1, visit);
    mine[i] = runs.allocate(1, 1, visit).at;
    explorer::check(mine[i] != Runs<Model>::kNone, "no memory");
  }
  void close(Visit& visit) {
    runs.growth_lock().close(visit);
    runs.lock().close(visit);
  }
  void open() {
    runs.lock().open();
    runs.growth_lock().open();
  }
  void thread(int i) {
    Visit visit(&mine[i], true);
    if (i == 0) close(visit);
    Visit other(&mine[i], true);
    foreign.acquire(other);
    use(i, visit);
    foreign.release(other);
    if (i == 0) open();
  }
  void check() {
    explorer::check(!runs.lock().is_closed() && !runs.lock().is_held(), "a lock stays closed");
    Visit visit(this, true);
    for (BlockIndex at : mine) runs.free(at, 1, visit);
    runs.check_invariants();
    const RunStatistics s = runs.statistics();
    explorer::check(s.claimed == s.dirty + s.clean, "blocks are lost");
  }
};

// Threads sleep in a lock when a fork closes it.
struct ForkSleepScenario {
  Lock<Model> lock{Rank::kRuns};
  Lock<Model> foreign{Rank::kPool};
  Plain guarded;
  void thread(int i) {
    Visit visit(&lock, true);
    if (i == 0) {
      lock.close(visit);
      Visit other(&lock, true);
      foreign.acquire(other);
      foreign.release(other);
      lock.open();
      return;
    }
    Visit other(&lock, true);
    if (i == 1) foreign.acquire(other);
    if (lock.acquire(visit)) {
      guarded.work();
      lock.release(visit);
    }
    if (i == 1) foreign.release(other);
  }
  void check() {
    explorer::check(!lock.is_held() && !lock.is_closed(), "the lock stays held or closed");
  }
};

// What the child of a fork finds, while another thread allocates and frees. kInsists: that thread
// takes the lock that the fork has closed.
template <bool kInsists>
struct ForkRunsScenario : ForkLockScenario {
  bool in_child = false;
  ForkRunsScenario() {
    Visit visit(this, true);
    // So that there is a run to cut, and no thread grows
    runs.free(runs.allocate(8, 1, visit).at, 8, visit);
  }
  void thread(int i) {
    Visit visit(&mine[i], true);
    visit.insists = kInsists && i != 0 ? 1 : 0;
    if (i != 0) return use(i, visit);
    close(visit);
    in_child = explorer::fork_here();
    if (!in_child) return open();
    runs.growth_lock().open_in_child(&mine[i]);
    const bool whole = runs.lock().open_in_child(&mine[i]);
    explorer::check(whole || kInsists, "the child finds a lock held");
    if (!whole || !runs.is_whole()) {
      explorer::take_memory_as_it_is();
      runs.salvage(false);
    }
    runs.check_invariants();
    // In use are the blocks that the threads have, and perhaps one that the other thread had in
    // hand.
    const RunStatistics s = runs.statistics();
    explorer::check(
        bytes_of(region.frontier()) - s.dirty - s.clean <= bytes_of(explorer::kMostThreads + 1),
        "the child has lost what was free");
    use(0, visit);
    runs.check_invariants();
    explorer::check(mine[0] != mine[2] && mine[0] != mine[3], "a block comes twice");
  }
  void check() {
    if (!in_child) ForkLockScenario::check();
  }
};

// A handler tears the first thread off by a long jump, and that thread then ends. At its end it
// makes anew what it was changing, while another thread goes on without waiting for it.
struct TornRunsScenario : ForkLockScenario {
  jmp_buf out;
  bool may_be_torn = false;
  bool is_torn = false;
  BlockIndex& its = mine[2];
  BlockIndex& others = mine[3];  // lies behind it
  BlockIndex longer;             // also the other thread's
  TornRunsScenario() : longer(runs.allocate_fresh(3)) {
    Visit visit(this, true);
    // So that there is a run to cut, and no thread grows
    runs.free(runs.allocate(8, 1, visit).at, 8, visit);
  }
  void handler(int) {
    if (may_be_torn) _longjmp(out, 1);
  }
  void thread(int i) {
    if (i != 0) {
      Visit visit(&others, false);
      runs.shrink(longer, 3, 1, visit);
      runs.free(others, 1, visit);
      others = runs.allocate(1, 1, visit).at;
      return;
    }
    if (_setjmp(out) == 0) {
      may_be_torn = true;
      Visit visit(&its, true);
      runs.free(its, 1, visit);
      its = runs.allocate(2, 1, visit).at;
    } else {
      is_torn = true;
      Visit visit(&its, false);
      if (runs.lock().take_over(visit)) {
        runs.salvage(true);
        runs.lock().release(visit);
      }
    }
    may_be_torn = false;
  }
  void check() {
    explorer::check(!runs.lock().is_held(), "the lock stays held");
    explorer::check(runs.is_whole(), "somebody takes for good");
    Visit visit(this, true);
    runs.free(runs.allocate(1, 1, visit).at, 1, visit);  // takes in the deferred runs
    runs.check_invariants();
    explorer::check(others != longer && (is_torn || its != others), "a block comes twice");
    if (!is_torn) runs.free(its, 2, visit);
    for (BlockIndex at : {mine[0], mine[1], others, longer}) runs.free(at, 1, visit);
    runs.check_invariants();
    // At most this is lost: what the thread was giving back or was to get, and the other thread's
    // deferred runs that it had just taken.
    const RunStatistics s = runs.statistics();
    explorer::check(s.claimed - s.dirty - s.clean <= bytes_of(is_torn ? 2 + 3 : 0),
                    "blocks are lost");
  }
};

// Two threads need memory at once, and there is just enough for one of them to grow by a step. That
// step is enough for both. kHandler: one of them may not wait, so it may get no memory.
template <bool kHandler>
struct GrowthScenario {
  Region<Model> region;
  Runs<Model> runs{region};
  BlockIndex got[explorer::kMostThreads];
  GrowthScenario() {
    if (!region.start(kBlockSize, false)) __builtin_trap();
    runs.start(false, 1000);
    if (region.take_fresh(kAll - kStep) != 0) __builtin_trap();
  }
  void thread(int i) {
    Visit visit(&got[i], !kHandler || i == 0);
    got[i] = runs.allocate(1, 1, visit).at;
  }
  void check() {
    runs.check_invariants();
    explorer::check(got[0] != Runs<Model>::kNone, "no memory for the one who may wait");
    explorer::check(got[0] != got[1], "a block comes twice");
    const bool both = got[1] != Runs<Model>::kNone;
    explorer::check(both || kHandler, "no memory for one, and too much for the other");
    // What is left of a step that both live on; or of half a step, if the other thread had taken a
    // block of the whole step before.
    const Bytes left = runs.statistics().clean;
    explorer::check(left == bytes_of(kStep - 2) || left == bytes_of(kStep / 2 - 1) || kHandler,
                    "what was left over is not there");
    Visit visit(this, true);
    for (int i = 0; i <= both; ++i) runs.free(got[i], 1, visit);
    const RunStatistics s = runs.statistics();
    explorer::check(s.claimed == s.clean + s.dirty, "blocks are lost");
  }

 private:
  static constexpr BlockCount kAll = (8 << 20) >> kBlockShift;  // as Model's ground allows
  // Less than the first step that a thread asks for
  static constexpr BlockCount kStep = kHugePage / 4 >> kBlockShift;
};

// Two threads need memory at once, and there is plenty: one step is enough for both. A thread that
// has found the other one growing takes a block of its own.
struct GrowthOnceScenario {
  Region<Model> region;
  Runs<Model> runs{region};
  GrowthOnceScenario() {
    RunsScenario::check_that(region.start(kBlockSize, false));
    runs.start(false, 1000);
  }
  void thread(int i) {
    Visit visit(&region, true);
    explorer::check(runs.allocate(1, 1, visit).at != Runs<Model>::kNone,
                    i == 0 ? "no memory" : "none for the other");
  }
  void check() {
    constexpr BlockCount kStep = kHugePage / 2 >> kBlockShift;
    explorer::check(runs.statistics().claimed <= bytes_of(kStep + 1), "both have grown");
  }
};

// --- Lanes.

// An engine in which some threads have a lane already, with a few objects in each.
struct Threads {
  Engine<Model> engine;
  Slot slots[explorer::kMostThreads]{&no_lane_gate, &no_lane_gate, &no_lane_gate, &no_lane_gate};
  void* object[explorer::kMostThreads]{};
  static inline Verdict expected;  // what may be reported
  static inline unsigned reports;

  static Settings by(Entry entry, uint32_t shared_lanes = 0) {
    Settings settings;
    settings.entry = entry;
    settings.shared_lanes = shared_lanes;
    return settings;
  }
  // Thread i, if it gets a lane here, is set up on the CPU with the number cpus[i].
  explicit Threads(int with_lane, const Settings& settings = {}, const char* cpus = "0000") {
    expected = Verdict::kGood;
    reports = 0;
    if (!engine.start(settings, [](Verdict why, const void*) {
          check(why == expected, "an object was reported as bad");
          ++reports;
        }))
      __builtin_trap();
    engine.set_exit_watch([](Slot&) { return true; });
    // An overflow lane, so that the threads need not make one.
    Slot without_lane{&exited_gate};
    engine.free(engine.allocate(16, without_lane), without_lane);
    for (int i = 0; i < with_lane; ++i) {
      explorer::run_on(cpus[i] - '0');
      object[i] = engine.allocate(16, slots[i]);
      void* other = engine.allocate(16, slots[i]);
      engine.free(other, slots[i]);
    }
  }
  Lane<Model>& lane(int i) {
    return *static_cast<Lane<Model>*>(slots[i].load(std::memory_order_relaxed));
  }
  // Writes to the object, since it belongs to one thread at a time.
  void* allocate(int i) {
    void* p = engine.allocate(16, slots[i]);
    check(p != nullptr, "no memory");
    check(!static_cast<Object*>(p)->looks_free(), "what is handed out looks free");
    *static_cast<int*>(p) = i;
    return p;
  }
  void free(void* p, int i) {
    check(engine.free(p, slots[i]) == Verdict::kGood, "a good pointer is refused");
  }
  // Uses an object that no other thread has meanwhile.
  void use(int i) {
    void* p = allocate(i);
    explorer::check(*static_cast<int*>(p) == i, "an object was given away twice");
    free(p, i);
  }
  // Revokes a lane and cleans it, as trim and the scavenger do.
  void revoke(AnyLane<Model>& lane, int i) {
    Visit visit(&slots[i], true);
    engine.world().with_idle_lane(lane, visit, [&](Lane<Model>& held) { held.clean(visit); });
  }
  void check_all() {
    engine.check_invariants();
    Statistics s;
    engine.statistics(s);
  }
};

// The program frees an object twice, and writes to one that waits in a bin.
struct LinksScenario : Threads {
  static constexpr Bytes kSize = 2048;
  LinksScenario() : Threads(1) {}
  void thread(int) {
    void* p = allocate(0);
    free(p, 0);
    expected = Verdict::kFreedAlready;
    engine.free(p, slots[0]);
    explorer::check(reports == 1, "a double free is not told");

    auto* first = static_cast<std::byte*>(engine.allocate(kSize, slots[0]));
    static Object stray;
    stray.next = Link::none();  // it looks free
    reinterpret_cast<Object*>(first + kSize)->next = Link::to(&stray);
    expected = Verdict::kListDamaged;
    for (int n = 0; n < 3; ++n) {
      auto* object = static_cast<Object*>(engine.allocate(kSize, slots[0]));
      explorer::check(object != &stray, "what is no object is handed out");
      explorer::check(!object->looks_free(), "what is handed out looks free");
    }
  }
  void check() { check_all(); }
};

// The owner hits, and another thread revokes the lane. They never meet inside.
struct EntryScenario : Threads {
  Lane<Model>* target;
  EntryScenario() : Threads(1), target(&lane(0)) {}
  void thread(int i) {
    if (i != 0) return revoke(*target, i);
    void* p = allocate(0);
    free(p, 0);
  }
  void check() { check_all(); }
};

// The owner first frees by a hit, and then misses.
struct MissScenario : Threads {
  Lane<Model>* target;
  MissScenario() : Threads(1), target(&lane(0)) {}
  void thread(int i) {
    if (i != 0) return revoke(*target, i);
    free(object[0], 0);
    object[0] = engine.allocate(48, slots[0]);  // a class that has no slab yet
    free(object[0], 0);
  }
  void check() { check_all(); }
};

// A handler that allocates and frees interrupts a thread anywhere: in hits, in misses, and when the
// thread ends.
struct HandlerScenario : Threads {
  void* kept = nullptr;  // by the handler
  HandlerScenario() : Threads(1) {}
  void thread(int) {
    void* p = allocate(0);
    free(object[0], 0);
    explorer::check(p != kept && *static_cast<int*>(p) == 0, "an object was given away twice");
    object[0] = engine.allocate(48, slots[0]);  // a class that has no slab yet
    free(object[0], 0);
    engine.exits().thread_exits(slots[0]);
    free(p, 0);
  }
  void handler(int) {
    engine.free(engine.allocate(kSlabMax + 1, slots[0]), slots[0]);
    void* p = engine.allocate(16, slots[0]);
    *static_cast<int*>(p) = 77;
    if (kept != nullptr) free(kept, 0);
    kept = p;
  }
  void check() { check_all(); }
};

// The same, while another thread revokes the lane.
struct HandlerAndRevokerScenario : HandlerScenario {
  Lane<Model>* target = &lane(0);
  void thread(int i) {
    if (i != 0) return revoke(*target, i);
    void* p = allocate(0);
    free(p, 0);
  }
};

// A thread ends and gives its lane back; a new thread takes a lane; a third thread revokes lanes.
// The first thread's slot lies in its own memory, which is gone afterwards, so only the kernel may
// look there.
struct ExitScenario : Threads {
  Lane<Model>* target;
  ExitScenario() : Threads(1), target(&lane(0)) {}
  void thread(int i) {
    if (i == 0) {
      free(object[0], 0);
      engine.exits().thread_exits(slots[0]);
      *reinterpret_cast<uint64_t*>(&slots[0]) = 0;  // unmapped
    } else if (i == 1) {
      object[1] = allocate(1);
    } else {
      revoke(*target, i);
    }
  }
  void check() {
    free(object[1], 1);
    check_all();
  }
};

// A thread ends without notice, and its memory goes with it, while another thread revokes its lane.
struct SilentExitScenario : Threads {
  Lane<Model>* target;
  SilentExitScenario() : Threads(1), target(&lane(0)) {}
  void thread(int i) {
    if (i == 1) return revoke(*target, i);
    free(object[0], 0);
    *reinterpret_cast<uint64_t*>(&slots[0]) = 0;  // unmapped
  }
  void check() { engine.check_invariants(); }
};

// One thread frees what another one has allocated, and ends, so that its batch is sent. The owner
// drains its inbox.
struct RemoteScenario : Threads {
  RemoteScenario() : Threads(2) {}
  void thread(int i) {
    if (i == 1) {
      free(object[0], 1);
      engine.exits().thread_exits(slots[1]);
      return;
    }
    Visit visit(&slots[0], true);
    Gate* gate = Owned::enter(slots[0]);
    Lane<Model>* lane = static_cast<Lane<Model>*>(gate);
    lane->drain_inbox(visit);
    lane->drain_inbox(visit);
    Owned::leave(slots[0], gate);
    object[2] = allocate(0);
  }
  void check() { check_all(); }
};

// The same with one object more than two holders can name.
template <Bytes kSize, Bytes kOtherSize>
struct RemoteBatchScenario : Threads {
  static constexpr int kObjects = 8;
  void* objects[kObjects];
  RemoteBatchScenario() : Threads(2) {
    for (int i = 0; i < kObjects; ++i)
      objects[i] = engine.allocate(i % 2 == 0 ? kSize : kOtherSize, slots[0]);
  }
  void thread(int i) {
    if (i == 1) {
      for (void* p : objects) free(p, 1);
      engine.exits().thread_exits(slots[1]);
      return;
    }
    Visit visit(&slots[0], true);
    Gate* gate = Owned::enter(slots[0]);
    static_cast<Lane<Model>*>(gate)->drain_inbox(visit);
    Owned::leave(slots[0], gate);
    engine.free(engine.allocate(32, slots[0]), slots[0]);
  }
  void check() {
    Visit visit(&slots[0], true);
    lane(0).drain_inbox(visit);
    check_all();
    Statistics s;
    engine.statistics(s);
    explorer::check(s.in_flight_objects == 0, "an object is lost on its way");
    explorer::check(lane(0).clean(visit), "a slab whose objects are all free does not go back");
  }
};

// A thread frees a chain of its own objects and another thread's. That other thread takes in what
// has come.
struct ChainScenario : Threads {
  static constexpr size_t kObjects = 7;
  Chained* first = nullptr;
  ChainScenario() : Threads(2) {
    for (size_t i = 0; i < kObjects; ++i) {
      auto* object = static_cast<Chained*>(engine.allocate(4096, slots[i % 3 == 1 ? 1 : 0]));
      object->next = first;
      first = object;
    }
  }
  void thread(int i) {
    if (i == 1) {
      const void* bad;
      if (engine.free_chain(first, kObjects, slots[1], bad) != Verdict::kGood) __builtin_trap();
      return;
    }
    Visit visit(&slots[0], true);
    Gate* gate = Owned::enter(slots[0]);
    static_cast<Lane<Model>*>(gate)->drain_inbox(visit);
    Owned::leave(slots[0], gate);
    engine.free(engine.allocate(4096, slots[0]), slots[0]);
  }
  void check() {
    Visit visit(&slots[0], true);
    lane(0).drain_inbox(visit);
    check_all();
    Statistics s;
    engine.statistics(s);
    explorer::check(s.in_flight_objects == 0, "an object is lost on its way");
    explorer::check(s.remote_batches == 1, "not one batch");
    explorer::check(s.remote_frees == 5, "an object goes another way");
  }
};

// A process forks while another thread works and a third thread revokes that one's lane. The child
// goes on with what is whole.
struct ForkScenario : Threads {
  bool in_child = false;
  void* kept;
  Lane<Model>* target = &lane(0);
  ForkScenario() : Threads(2) {
    kept = object[1];
    *static_cast<int*>(kept) = 1234;
  }
  void thread(int i) {
    if (i == 0) {
      void* p = allocate(0);
      free(p, 0);
      free(object[0], 0);
      return;
    }
    if (i == 2) return revoke(*target, 2);
    engine.fork().before(slots[1]);
    in_child = explorer::fork_here();
    if (!in_child) return engine.fork().after_in_parent();
    engine.fork().after_in_child(slots[1]);
    void* p = allocate(1);
    void* q = allocate(3);  // a new thread's, which adopts what is whole
    explorer::check(p != q && p != kept && q != kept, "an object was given away twice");
    explorer::check(*static_cast<int*>(kept) == 1234, "an object of the parent's is overwritten");
    free(p, 1);
    free(q, 3);
    free(kept, 1);
  }
  void check() {
    if (!in_child) check_all();
  }
};

// --- Lanes that are entered by the CPU.

struct ByCpu : Threads {
  Lane<Model>* target;  // CPU 0's lane
  // pushes: frees are steps; otherwise a thread that frees enters the lane.
  explicit ByCpu(int with_lane, const char* cpus = "0000", bool pushes = true)
      : Threads((Model::pushes = pushes, with_lane), by(Entry::kPerCpu), cpus), target(&lane(0)) {
    if (target->how != Entry::kPerCpu) __builtin_trap();
    for (int i = 0; i < with_lane; ++i)
      engine.world().lanes.here(static_cast<uint32_t>(cpus[i] - '0'), 1);
  }
  void check() {
    check_all();
    // What is counted as free lies on the slab's list.
    const auto& region = engine.world().region;
    for (BlockIndex b = 0; b < region.frontier(); ++b) {
      const MapWord entry = region.word(b);
      if (!is_slab(entry.owner()) || region.block_of_state(entry.state()) != b) continue;
      const Slab* slab = static_cast<const Slab*>(entry.state());
      const Extent extent = engine.world().slabs().extent(slab);
      uint32_t n = 0;
      Link link = slab->free_list;
      for (; extent.holds(link) && n <= slab->carved; link = extent.at(link)->next) ++n;
      explorer::check(n == slab->free_objects(), "an object that was freed is lost");
    }
  }
};

// Threads of one CPU hit.
template <bool kPushes>
struct CpuHitScenario : ByCpu {
  CpuHitScenario() : ByCpu(2, "0000", kPushes) {}
  void thread(int i) { use(i); }
};

// The last thread revokes the lane of the other threads' CPU.
template <int kUsers>
struct CpuRevokeScenario : ByCpu {
  CpuRevokeScenario() : ByCpu(kUsers, kUsers == 1 ? "0" : "00") {}
  void thread(int i) {
    if (i == kUsers) return revoke(*target, i);
    use(i);
  }
};

// A free that hits: the object's slab may leave the lane as long as the thread is not inside.
template <bool kPushes>
struct CpuFreeScenario : ByCpu {
  CpuFreeScenario() : ByCpu(1, "0000", kPushes) {}
  void thread(int i) {
    if (i == 0) return free(object[0], 0);
    revoke(*target, i);
    revoke(*target, i);  // the first one may have failed
  }
};

struct CpuMissScenario : ByCpu {
  CpuMissScenario() : ByCpu(1) {}
  void thread(int i) {
    if (i == 0) {
      object[0] = engine.allocate(48, slots[0]);  // a class that has no slab yet
      return free(object[0], 0);
    }
    revoke(*target, i);
    revoke(*target, i);  // the first one may have failed
  }
};

// The same, but the slab may be another CPU's by then.
struct CpuLeftScenario : ByCpu {
  CpuLeftScenario() : ByCpu(1) {
    // CPU 1 has a lane; it has no slab of the class.
    explorer::run_on(1);
    engine.free(engine.allocate(48, slots[1]), slots[1]);
  }
  void thread(int i) {
    if (i == 0) return free(object[0], 0);
    revoke(*target, i);
    object[1] = allocate(1);
  }
};

// Two threads of one CPU miss, so that one of them works in the second lane. They free objects of
// the first lane.
struct CpuSecondScenario : ByCpu {
  CpuSecondScenario() : ByCpu(2) {}
  void thread(int i) {
    void* p = engine.allocate(48, slots[i]);  // a class that has no slab yet
    free(object[i], i);
    object[i] = p;
  }
  void check() {
    for (int i = 0; i < 2; ++i) free(object[i], i);
    ByCpu::check();
    Statistics s;
    engine.statistics(s);
    explorer::check(s.live_objects == 0, "what waits in a bin is lost");
    explorer::check(s.overflow_entries == 2, "a lane of the CPU was free, and was not entered");
  }
};

// Thread 0 works in the second lane and frees objects of the first lane, while another thread
// revokes the first lane.
struct CpuOffScenario : ByCpu {
  void* second;
  CpuOffScenario() : ByCpu(1) {
    target->here.store(kTakenHere, std::memory_order_relaxed);
    second = engine.allocate(48, slots[0]);
    target->leave_here();
    if (engine.pointers().find(second).word.owner() == target->id() ||
        static_cast<Gate*>(target) == slots[0].load())
      __builtin_trap();
  }
  void thread(int i) {
    if (i == 0) return free(object[0], 0);
    revoke(*target, i);
    revoke(*target, i);  // the first one may have failed
  }
};

// Thread 0 is moved to another CPU at any point, also inside the lane. Another thread uses the lane
// that thread 0 came from.
template <bool kPushes>
struct CpuMoveScenario : ByCpu {
  CpuMoveScenario() : ByCpu(2, "0000", kPushes) {}
  void thread(int i) {
    free(object[i], i);
    use(i);
  }
};

struct CpuMoveMissScenario : ByCpu {
  CpuMoveMissScenario() : ByCpu(2) {}
  void thread(int i) { object[i] = engine.allocate(48, slots[i]); }  // a class that has no slab yet
};

// A handler that allocates and frees interrupts hits and misses anywhere.
template <bool kRevoked>
struct CpuHandlerScenario : ByCpu {
  void* kept = nullptr;  // by the handler
  CpuHandlerScenario() : ByCpu(1) {}
  void thread(int i) {
    if (i != 0) return revoke(*target, i);
    void* p = allocate(0);
    if (!kRevoked) {
      free(object[0], 0);
      object[0] = engine.allocate(48, slots[0]);  // a class that has no slab yet
      free(object[0], 0);
    }
    explorer::check(p != kept && *static_cast<int*>(p) == 0, "an object was given away twice");
    free(p, 0);
  }
  void handler(int) {
    void* p = engine.allocate(16, slots[0]);
    *static_cast<int*>(p) = 77;
    if (kept != nullptr) free(kept, 0);
    kept = p;
  }
};

// A process forks while another thread works on another CPU and a third thread revokes that CPU's
// lane.
template <bool kPushes>
struct CpuForkScenario : ByCpu {
  bool in_child = false;
  void* kept;
  CpuForkScenario() : ByCpu(2, "01", kPushes) {
    kept = object[1];
    *static_cast<int*>(kept) = 1234;
  }
  void thread(int i) {
    if (i == 0) return use(0);
    if (i == 2) return revoke(*target, 2);
    engine.fork().before(slots[1]);
    in_child = explorer::fork_here();
    if (!in_child) return engine.fork().after_in_parent();
    engine.fork().after_in_child(slots[1]);
    void* p = allocate(1);
    explorer::run_on(0);  // its lane may have been taken
    void* q = allocate(3);
    explorer::check(p != q && p != kept && q != kept, "an object was given away twice");
    explorer::check(*static_cast<int*>(kept) == 1234, "an object of the parent's is overwritten");
    free(p, 1);
    free(q, 3);
    free(kept, 1);
  }
  void check() {
    if (!in_child) check_all();
  }
};

// The threads of one CPU free what those of another have allocated. Both lanes are cleaned, which
// sends batches and takes them in.
struct CpuRemoteScenario : ByCpu {
  Lane<Model>* other = &lane(1);
  CpuRemoteScenario() : ByCpu(2, "01") {
    // So that a batch is there.
    explorer::run_on(0);
    void* p = engine.allocate(16, slots[0]);
    explorer::run_on(1);
    engine.free(p, slots[1]);
  }
  void thread(int i) {
    if (i == 1) {
      free(object[0], 1);
      return revoke(*other, 1);
    }
    revoke(*target, 0);
    use(0);
  }
};

// A free of another CPU's object goes into a batch that is there. Another thread revokes the lane
// that the free works in.
struct CpuSendScenario : CpuRemoteScenario {
  void thread(int i) {
    if (i == 1) return free(object[0], 1);
    revoke(*other, 0);
  }
};

// The entry changes and changes back, while threads have objects of the old entry's lanes.
struct SwitchScenario : Threads {
  SwitchScenario() : Threads(2, {}, "01") {}
  void thread(int i) {
    if (i == 1) {
      engine.choose_entry(by(Entry::kPerCpu));
      free(object[1], 1);
      engine.choose_entry(by(Entry::kOwned));
      return;
    }
    object[2] = engine.allocate(48, slots[0]);  // a miss: follows the change
    free(object[0], 0);
  }
  void check() {
    free(object[2], 0);
    use(0);
    use(1);
    check_all();
  }
};

// The same in a handler, which may also come between the two steps of entering. The thread then
// goes on with the gate of the lane that it had. Another thread adopts a lane meanwhile.
struct SwitchInHandlerScenario : Threads {
  SwitchInHandlerScenario() : Threads(1, {}, "01") {}
  void thread(int i) { use(i); }
  void handler(int) {
    engine.choose_entry(by(Entry::kPerCpu));
    void* p = engine.allocate(48, slots[0]);  // a miss: follows if the thread is not inside
    engine.free(p, slots[0]);
    engine.choose_entry(by(Entry::kOwned));
  }
  void check() {
    use(0);
    use(1);
    check_all();
  }
};

// A handler gives the thread its first lane, perhaps between the two steps of entering. Afterwards
// the lane is the thread's.
struct FirstLaneScenario : Threads {
  void* large;
  void* kept = nullptr;  // by the handler
  FirstLaneScenario() : Threads(0) {
    Slot without_lane{&exited_gate};
    large = engine.allocate(kSlabMax + 1, without_lane);
  }
  void thread(int) {
    free(large, 0);
    int foreign;
    explorer::check(engine.free(&foreign, slots[0]) == Verdict::kNotOurs,
                    "a foreign pointer is taken");
  }
  void handler(int) { kept = engine.allocate(16, slots[0]); }
  void check() {
    engine.world().lanes.for_each([&](AnyLane<Model>& lane) {
      explorer::check(lane.owner_slot() == nullptr || lane.owner_slot()->load() == &lane,
                      "a thread has a lane that it does not know of");
    });
    if (kept != nullptr) free(kept, 0);
    check_all();
  }
};

// --- Lanes that are entered by their lock.

template <int kLanes, int kThreads>
struct SharedScenario : Threads {
  SharedScenario() : Threads(kThreads, by(Entry::kShared, kLanes)) {}
  void thread(int i) { use(i); }
  void check() {
    check_all();
    engine.world().lanes.for_each([](AnyLane<Model>& lane) {
      explorer::check(!lane.lock().is_held(), "a lane stays taken");
    });
  }
};

struct SharedHandlerScenario : SharedScenario<1, 2> {
  void handler(int) { engine.free(engine.allocate(16, slots[0]), slots[0]); }
};

// --- Between lanes.

// A slab lies in the depot. One thread takes it, another frees an object of it, and a third gives
// back to the system what it can.
struct DepotScenario : Threads {
  Lane<Model>* target = &lane(0);
  DepotScenario() : Threads(3) {
    revoke(*target, 3);
    if (engine.pointers().find(object[0]).word.owner() != Owner::kDepot) __builtin_trap();
  }
  void thread(int i) {
    if (i == 0) return use(0);
    if (i == 1) {
      free(object[0], 1);
      engine.exits().thread_exits(slots[1]);  // sends it
      return;
    }
    revoke(*target, 2);
    Visit visit(&slots[2], true);
    engine.world().runs.purge(Runs<Model>::kAll, visit);
  }
  void check() { check_all(); }
};

// --- Safepoints.

// If the system has no barrier, readers use fences.
struct NoBarrier : Model {
  static bool barrier() noexcept { return false; }
};

// The first thread replaces an object, and writes to the old one as soon as that may be freed. If
// that is too early, its write and a reader's read are in no order. The other threads read.
template <class P, bool kOnline>
struct EpochsScenario {
  Epochs<P> epochs;
  lane_reader readers[explorer::kMostThreads];
  Plain objects[3];
  std::atomic<Plain*> link{&objects[0]};

  EpochsScenario() {
    Visit visit(this, true);
    for (lane_reader& reader : readers) epochs.add(reader, "", this, visit);
  }
  void read() {
    Plain* object = link.load(std::memory_order_acquire);
    const int before = object->read();
    explorer::check(object->read() == before, "an object is written to in a section");
  }
  void replace(int i) {
    Visit visit(&link, true);
    link.store(&objects[i + 1], std::memory_order_release);
    const Epoch tag = epochs.advance();
    epochs.look(visit, true);
    if (tag <= epochs.safe()) objects[i].work();
  }
  void thread(int i) {
    if (i == 0) return replace(0), replace(1);
    lane_reader* reader = &readers[i];
    if (kOnline) {
      lane_reader_online(reader);
      read();
      lane_reader_quiescent(reader);
      read();
      return lane_reader_offline(reader);
    }
    for (int round = 0; round < 2; ++round) {
      lane_reader_enter(reader);
      read();
      lane_reader_exit(reader);
    }
  }
  void check() {
    Visit visit(this, true);
    epochs.look(visit, true);
    explorer::check(epochs.safe() == epochs.now(), "nobody reads, and something may not be freed");
  }
};

// Two threads look, and one of them has unlinked something. What that thread has found safe, the
// other one may free.
struct EpochsFoundScenario {
  Epochs<Model> epochs;
  lane_reader reader;
  Plain object;
  std::atomic<bool> linked{true};
  std::atomic<Epoch> tag{0};
  EpochsFoundScenario() {
    Visit visit(this, true);
    epochs.add(reader, "", this, visit);
  }
  void thread(int i) {
    Visit visit(&i, true);
    if (i == 0) {
      lane_reader_enter(&reader);
      if (linked.load(std::memory_order_acquire)) object.read();
      return lane_reader_exit(&reader);
    }
    if (i == 1) {
      linked.store(false, std::memory_order_release);
      tag.store(epochs.advance(), std::memory_order_release);
      epochs.look(visit, true);
      return;
    }
    epochs.look(visit, true);
    const Epoch unlinked = tag.load(std::memory_order_acquire);
    if (unlinked != 0 && unlinked <= epochs.safe()) object.work();
  }
  void check() {}
};

// The other threads take an object out of a cell, put a new one in its place, and defer the old one
// by a hit. Thread 0 reads, and polls if kPoll says so.
template <bool kPoll>
struct DeferScenario : Threads {
  struct Node {
    uint64_t link, mark;
  };
  lane_reader reader;
  std::atomic<Node*> cell{nullptr};

  static Settings with_room_for_two() {
    Settings settings;
    settings.deferred = 2;
    return settings;
  }
  DeferScenario() : Threads(2, with_room_for_two()) {
    engine.safepoints().add_reader(reader, "", slots[0]);
    // So that thread 1's ring is there, and its gate is open.
    engine.defer(object[1], slots[1]);
    engine.safepoints().free_at_stop(slots[1]);
    cell.store(make(1), std::memory_order_relaxed);
    engine.free(engine.allocate(16, slots[1]), slots[1]);
  }
  Node* make(int i) {
    Node* node = static_cast<Node*>(allocate(i));
    node->mark = 1234;
    return node;
  }
  void thread(int i) {
    if (i == 0) {
      lane_reader_enter(&reader);
      const volatile Node* node = cell.load(std::memory_order_acquire);
      static_cast<void>(node->link);  // a free object's link is there
      explorer::check(node->mark == 1234, "an object is used again in a section");
      lane_reader_exit(&reader);
      if (kPoll) engine.safepoints().free_what_may_be_freed(slots[0]);
      return;
    }
    for (int round = 0; round < 2; ++round) {
      Node* old = cell.exchange(make(i), std::memory_order_acq_rel);
      explorer::check(engine.defer(old, slots[i]) == 0, "the share is full");
      if (!kPoll) engine.safepoints().free_what_may_be_freed(slots[i]);
      Node* other = make(i);
      other->mark = 5;
      free(other, i);
    }
  }
  void check() {
    free(cell.load(std::memory_order_relaxed), 1);
    engine.safepoints().free_at_stop(slots[0]);
    check_all();
    lane_safepoint_statistics s;
    engine.safepoints().statistics(s, slots[0]);
    explorer::check(s.deferred == s.freed && s.deferred == 3,
                    "a deferred object is lost, or came twice");
  }
};

// Two threads make the deferred calls of one lane: one at a time, and each call once.
struct CallsScenario : Threads {
  Plain guarded;
  static Settings in_batches_of_one() {
    Settings settings;
    settings.deferred = 2;
    return settings;
  }
  CallsScenario() : Threads(2, in_batches_of_one()) {
    const auto call = [](void* scenario, void**, size_t n) {
      while (n-- > 0) static_cast<CallsScenario*>(scenario)->guarded.work();
    };
    for (int i = 0; i < 2; ++i) engine.safepoints().defer_call({call, this, nullptr}, slots[0]);
  }
  void thread(int i) { engine.safepoints().free_at_stop(slots[i]); }
  void check() {
    engine.safepoints().free_at_stop(slots[0]);
    explorer::check(guarded.value == 2, "a call is lost, or made twice");
  }
};

// --- Pools.

// Threads 0 .. with_lane - 1 have lanes; the first one made the pool's objects.
struct Pools : Threads {
  Pool<Model> pool;
  void* held[explorer::kMostThreads]{};

  Pools(int with_lane, uint64_t limit, Bytes bytes = 48)
      : Threads(with_lane), pool(engine, "pool", bytes, 8, {}) {
    start(limit);
  }
  Pools(const char* cpus, int with_lane, Bytes bytes = 48)
      : Threads(with_lane, by(Entry::kPerCpu), cpus), pool(engine, "pool", bytes, 8, {}) {
    start(0);
  }
  void start(uint64_t limit) {
    if (!pool.start(limit, 0, slots[0])) __builtin_trap();
  }
  // Writes to the object, since it belongs to one thread at a time.
  void* take(int i, uint32_t flags = 0) {
    void* p = pool.allocate(flags, slots[i]);
    if (p != nullptr) ++*static_cast<int*>(p);
    return p;
  }
  void give(void* p, int i) {
    explorer::check(pool.free(p, slots[i]) == Verdict::kGood, "a good pointer is refused");
  }
  void wait_for_one(int i) {
    held[i] = take(i, Pool<Model>::kWait);
    explorer::check(held[i] != nullptr, "who may wait gets nothing");
  }
  void check_pool(uint64_t limit) {
    check_all();
    explorer::check(limit == 0 || pool.kind().budget->used() <= limit * pool.kind().size,
                    "the limit is exceeded");
    for (int i = 0; i < explorer::kMostThreads; ++i)
      for (int j = 0; j < i; ++j)
        explorer::check(held[i] == nullptr || held[i] != held[j], "two have the same object");
  }
};

// The owner of a bin hits, and another thread revokes its lane.
struct PoolHitScenario : Pools {
  Lane<Model>* target;
  PoolHitScenario() : Pools(1, 0), target(&lane(0)) {
    void* p = take(0);
    give(p, 0);
  }
  void thread(int i) {
    if (i != 0) return revoke(*target, i);
    void* p = take(0);
    give(p, 0);
  }
  void check() { check_pool(0); }
};

// Threads of one CPU hit the bin of its lane, and one more thread revokes the lane.
template <int kUsers>
struct PoolCpuScenario : Pools {
  Lane<Model>* target;
  PoolCpuScenario() : Pools(kUsers == 1 ? "0" : "00", kUsers), target(&lane(0)) {
    void* p = take(0);
    give(p, 0);
  }
  void thread(int i) {
    if (i == kUsers) return revoke(*target, i);
    held[i] = take(i);
    void* p = take(i);
    give(p, i);
  }
  void check() { check_pool(0); }
};

// The bin has left a slab, and two objects of that slab are freed: by its owner, or by the CPU.
// Another thread revokes the lane, and takes the slab with it, which has a free object then.
template <bool kByCpu>
struct PoolSlabScenario : Pools {
  static constexpr Bytes kBytes = 16384;
  Lane<Model>* target;
  void* old[2];
  PoolSlabScenario()
    requires kByCpu
      : Pools("0", 1, kBytes), target(&lane(0)) {
    leave_slab();
  }
  PoolSlabScenario()
    requires(!kByCpu)
      : Pools(1, 0, kBytes), target(&lane(0)) {
    leave_slab();
  }
  void leave_slab() {
    for (void*& p : old) p = take(0);
    for (uint32_t i = 2; i <= pool.kind().capacity; ++i) take(0);
  }
  void thread(int i) {
    if (i != 0) return revoke(*target, i);
    for (void* p : old) give(p, 0);
  }
  void check() {
    check_pool(0);
    explorer::check(pool.live(slots[0]) == pool.kind().capacity - 1, "an object is lost");
  }
};

// There is one object. Thread 0 frees it; the other threads wait for it and free it in turn.
template <int kWaiters>
struct PoolWaitScenario : Pools {
  PoolWaitScenario() : Pools(1 + kWaiters, 1) { held[0] = take(0); }
  void thread(int i) {
    if (i != 0) wait_for_one(i);
    ++*static_cast<int*>(held[i]);
    give(std::exchange(held[i], nullptr), i);
  }
  void check() {
    check_pool(1);
    explorer::check(pool.live(slots[0]) == 0, "an object is lost");
  }
};

// The same, but a thread frees it whose lane has no bin of the pool yet.
struct PoolSendScenario : Pools {
  PoolSendScenario() : Pools(3, 1) { held[2] = take(2); }
  void thread(int i) {
    if (i == 0) return give(std::exchange(held[2], nullptr), 0);
    wait_for_one(1);
  }
  void check() { check_pool(1); }
};

// Two threads wait, and room for two objects comes at once.
struct PoolRoomScenario : Pools {
  PoolRoomScenario() : Pools(3, 1) { held[0] = take(0); }
  void thread(int i) {
    if (i != 0) return wait_for_one(i);
    explorer::check(pool.set_limit(3, slots[0]), "a good limit is refused");
  }
  void check() { check_pool(3); }
};

// The one object is on its way to lane 0 when the thread that has freed it ends, so that its batch
// is sent.
template <bool kWait>
struct PoolExitScenario : Pools {
  PoolExitScenario() : Pools(3, 1) {
    held[0] = take(0);
    give(std::exchange(held[0], nullptr), 1);
  }
  void thread(int i) {
    if (i != 0) return engine.exits().thread_exits(slots[1]);
    if (kWait) return wait_for_one(2);
    held[2] = take(2);
    explorer::check(held[2] != nullptr, "an object is free, and the limit is said to be reached");
  }
  void check() { check_pool(1); }
};

// Two threads wait, and two objects come back at once. kHandler: a handler frees one of them,
// anywhere in what its thread does.
template <bool kHandler>
struct PoolTwoScenario : Pools {
  void* spare = nullptr;  // the handler's
  PoolTwoScenario() : Pools(3, 2) {
    held[0] = take(0);
    spare = take(0);
  }
  void thread(int i) {
    if (i != 0) return wait_for_one(i);
    give(std::exchange(held[0], nullptr), 0);
    if (spare != nullptr) give(std::exchange(spare, nullptr), 0);
  }
  void handler(int)
    requires kHandler
  {
    if (spare != nullptr) give(std::exchange(spare, nullptr), 0);
  }
  void check() { check_pool(2); }
};

}  // namespace

namespace explorer {

const Scenario kScenarios[] = {
    scenario<InboxScenario>("inbox", "Inbox: no batch is lost or comes twice", {2, 6}),
    scenario<InboxScenario>("inbox-3", "Inbox: the same with two givers", {3, 4}),
    scenario<BatchScenario>(
        "batch", "Batch: of several objects in an inbox none is lost or comes twice", {2, 4}),
    scenario<BatchScenario>("batch-3", "Batch: the same with two givers", {3, 3}),
    scenario<StackScenario>("stack", "IdStack: no lane is lost or held by two", {2, 5}),
    scenario<StackScenario>("stack-3", "IdStack: the same with three threads", {3, 3}),
    scenario<LockScenario>("lock", "Lock: one holder at a time, and no sleeper is forgotten",
                           {2, 6}),
    scenario<LockScenario>("lock-3", "Lock: the same with three threads", {3, 3}),
    scenario<ScavengerScenario>("scavenger", "Scavenger: no wake-up is lost", {3, 4}),
    scenario<RunsScenario>("runs", "Runs: what could not be freed at once comes back once", {2, 3}),
    scenario<RunsScenario>("runs-3", "Runs: the same with two deferring threads", {3, 2}),
    scenario<RunsAgainScenario>("runs-again", "Runs: what could not be freed at once is used again",
                                {2, 3}),
    scenario<RunsAgainScenario>("runs-again-3", "Runs: the same with two deferring threads",
                                {3, 2}),
    scenario<ForkLockScenario>("fork-lock",
                               "fork: who holds a lock that its handlers want gets memory", {2, 4}),
    scenario<ForkLockScenario>("fork-lock-3", "fork: the same with three threads", {3, 2}),
    scenario<ForkSleepScenario>("fork-lock-sleep",
                                "fork: nobody sleeps on in a lock that it has closed", {3, 3}),
    scenario<ForkSleepScenario>("fork-lock-sleep-4", "fork: the same with two who sleep", {4, 2}),
    scenario<TornRunsScenario>("torn-runs", "Runs: a thread is torn off while another goes on",
                               {2, 2, 1}),
    scenario<TornRunsScenario>("torn-runs-plain", "the same, also between plain accesses",
                               {2, 1, 1, true}),
    scenario<ForkRunsScenario<false>>("fork-runs", "fork: the child finds the runs whole", {2, 4}),
    scenario<ForkRunsScenario<true>>("fork-insists",
                                     "fork: the same where there is no other memory", {2, 4}),
    scenario<ForkRunsScenario<true>>("fork-insists-plain",
                                     "fork: the same, and threads stop between plain stores too",
                                     {.threads = 2, .preemptions = 2, .at_plain = true}),
    scenario<GrowthScenario<false>>(
        "growth", "Runs: two that need more memory take no more than they need", {2, 3}),
    scenario<GrowthOnceScenario>("growth-once", "Runs: two that need more memory at once grow once",
                                 {2, 3}),
    scenario<GrowthScenario<true>>("growth-handler", "Runs: the same where one may not wait",
                                   {2, 3}),
    scenario<LinksScenario>("links",
                            "links: a double free is told, and a damaged link leads nowhere",
                            {.threads = 1, .preemptions = 0}),
    scenario<EntryScenario>("entry", "Owned: an owner that hits and a revoker never meet", {2, 3}),
    scenario<MissScenario>("miss", "Owned: an owner that misses and a revoker never meet", {2, 2}),
    scenario<EntryScenario>("entry-3", "Owned: an owner and two revokers never meet", {3, 2}),
    scenario<HandlerScenario>(
        "handler", "re-entrance: a handler between any two accesses to memory", {1, 0, 2, true}),
    scenario<HandlerAndRevokerScenario>(
        "handler-2", "re-entrance: a handler anywhere, and a revoker", {2, 1, 1}),
    scenario<RemoteScenario>("remote", "remote frees: a batch is sent and received, whole", {2, 2}),
    scenario<RemoteBatchScenario<32, 48>>(
        "remote-batch", "remote frees: a batch of eight objects, in three holders", {2, 1}),
    scenario<RemoteBatchScenario<32, 32>>(
        "remote-row", "remote frees: a batch of a holder and a row of seven", {2, 1}),
    scenario<ChainScenario>("chain", "remote frees: a chain of objects of two lanes", {2, 2}),
    scenario<SilentExitScenario>(
        "exit-silent", "a thread ends without a word while its lane is taken away", {2, 3}),
    scenario<ExitScenario>("exit", "thread exit: a lane is given back, revoked and adopted",
                           {3, 1}),
    scenario<ForkScenario>("fork", "fork: the child finds no lane half done", {2, 3}),
    scenario<ForkScenario>("fork-3", "fork: the same while the other's lane is taken away", {3, 1}),
    scenario<DepotScenario>("depot", "Depot: a slab is given, taken, freed into and given back",
                            {3, 1}),
    scenario<CpuHitScenario<true>>(
        "cpu-hit", "PerCpu: two threads that hit on one CPU never meet",
        {.threads = 2, .preemptions = 3, .at_plain = true, .cpus = "00"}),
    scenario<CpuHitScenario<false>>(
        "cpu-hit-enter", "PerCpu: the same where a free enters",
        {.threads = 2, .preemptions = 3, .at_plain = true, .cpus = "00"}),
    scenario<CpuRevokeScenario<1>>("cpu-revoke",
                                   "PerCpu: a thread that hits and a revoker never meet",
                                   {.threads = 2, .preemptions = 3}),
    scenario<CpuRevokeScenario<2>>("cpu-revoke-3",
                                   "PerCpu: two threads of a CPU and a revoker never meet",
                                   {.threads = 3, .preemptions = 2, .cpus = "001"}),
    scenario<CpuFreeScenario<true>>("cpu-free", "PerCpu: a hit of free and a revoker never meet",
                                    {.threads = 2, .preemptions = 3}),
    scenario<CpuFreeScenario<false>>("cpu-free-enter", "PerCpu: the same where a free enters",
                                     {.threads = 2, .preemptions = 3}),
    scenario<CpuLeftScenario>("cpu-left",
                              "PerCpu: a hit of free and who has the slab meanwhile never meet",
                              {.threads = 2, .preemptions = 2}),
    scenario<CpuMissScenario>("cpu-miss", "PerCpu: a thread that misses and a revoker never meet",
                              {.threads = 2, .preemptions = 2}),
    scenario<CpuMoveScenario<true>>("cpu-move",
                                    "PerCpu: a thread is moved to another CPU, also inside",
                                    {.threads = 2, .preemptions = 1, .cpus = "00", .moves = 1}),
    scenario<CpuMoveScenario<false>>(
        "cpu-move-enter", "PerCpu: the same where a free enters",
        {.threads = 2, .preemptions = 1, .at_plain = true, .cpus = "00", .moves = 1}),
    scenario<CpuSecondScenario>("cpu-second", "PerCpu: two threads of a CPU that miss never meet",
                                {.threads = 2, .preemptions = 2, .cpus = "00"}),
    scenario<CpuOffScenario>(
        "cpu-off", "PerCpu: a free into another of the CPU's lanes and a revoker never meet",
        {.threads = 2, .preemptions = 3}),
    scenario<CpuMoveMissScenario>("cpu-move-miss", "PerCpu: the same with misses",
                                  {.threads = 2, .preemptions = 1, .cpus = "00", .moves = 1}),
    scenario<CpuHandlerScenario<false>>(
        "cpu-handler", "PerCpu: a handler between any two accesses to memory",
        {.threads = 1, .preemptions = 0, .signals = 2, .at_plain = true}),
    scenario<CpuHandlerScenario<true>>("cpu-handler-2", "PerCpu: a handler anywhere, and a revoker",
                                       {.threads = 2, .preemptions = 1, .signals = 1}),
    scenario<CpuForkScenario<true>>("cpu-fork", "PerCpu, fork: the child finds no lane half done",
                                    {.threads = 2, .preemptions = 3}),
    scenario<CpuForkScenario<false>>("cpu-fork-enter", "PerCpu, fork: the same where a free enters",
                                     {.threads = 2, .preemptions = 3}),
    scenario<CpuForkScenario<true>>("cpu-fork-3",
                                    "PerCpu, fork: the same while the other's lane is taken away",
                                    {.threads = 3, .preemptions = 2}),
    scenario<CpuRemoteScenario>("cpu-remote", "PerCpu: frees go from one CPU's lane to another's",
                                {.threads = 2, .preemptions = 2}),
    scenario<CpuSendScenario>("cpu-send", "PerCpu: a free into a batch and a revoker never meet",
                              {.threads = 2, .preemptions = 3}),
    scenario<SwitchScenario>("switch", "the entry changes to PerCpu and back under live objects",
                             {.threads = 2, .preemptions = 2}),
    scenario<SwitchInHandlerScenario>(
        "switch-handler",
        "the same in a handler between any two steps, while another adopts a lane",
        {.threads = 2, .preemptions = 1, .signals = 1}),
    scenario<FirstLaneScenario>("first-lane",
                                "re-entrance: a lane that a handler gives the thread is not lost",
                                {.threads = 1, .preemptions = 0, .signals = 1, .at_plain = true}),
    scenario<SharedScenario<1, 2>>("shared", "Shared: one at a time, and no sleeper is forgotten",
                                   {2, 2}),
    scenario<SharedScenario<1, 3>>("shared-3", "Shared: the same with three threads", {3, 2}),
    scenario<SharedScenario<2, 3>>("shared-2-3", "Shared: three threads in two lanes", {3, 1}),
    scenario<EpochsScenario<Model, false>>("epochs", "Epochs: nobody reads what is freed", {2, 3}),
    scenario<EpochsScenario<Model, false>>("epochs-3", "Epochs: the same with two readers", {3, 2}),
    scenario<EpochsScenario<Model, true>>("epochs-online", "Epochs: the same with quiescent states",
                                          {2, 3}),
    scenario<EpochsScenario<NoBarrier, false>>("epochs-fences",
                                               "Epochs: the same without a barrier", {2, 3}),
    scenario<EpochsFoundScenario>("epochs-found",
                                  "Epochs: what one has found safe another may free", {3, 3}),
    scenario<DeferScenario<false>>("defer", "deferred frees: nobody reads what is used again",
                                   {2, 2}),
    scenario<DeferScenario<true>>("defer-poll", "deferred frees: a hit and who polls never meet",
                                  {2, 2}),
    scenario<CallsScenario>("calls", "deferred calls: one at a time, each once", {2, 1}),
    scenario<PoolHitScenario>("pool-hit",
                              "Pool: an owner that hits its bin and a revoker never meet", {2, 2}),
    scenario<PoolCpuScenario<1>>("pool-cpu", "Pool: who hits a CPU's bin and a revoker never meet",
                                 {2, 2}),
    scenario<PoolCpuScenario<2>>("pool-cpu-2",
                                 "Pool: two threads that hit one CPU's bin never meet",
                                 {.threads = 2, .preemptions = 2, .at_plain = true, .cpus = "00"}),
    scenario<PoolSlabScenario<false>>(
        "pool-slab", "Pool: an owner that frees into any slab and a revoker never meet", {2, 2}),
    scenario<PoolSlabScenario<true>>(
        "pool-slab-cpu", "Pool: who frees into a slab by the CPU and a revoker never meet", {2, 2}),
    scenario<PoolWaitScenario<1>>("pool-wait", "Pool: who waits at the limit is served", {2, 1}),
    scenario<PoolWaitScenario<2>>("pool-wait-3", "Pool: two who wait are served", {3, 1}),
    scenario<PoolSendScenario>("pool-send", "Pool: the same, freed in a lane that had no bin",
                               {2, 1}),
    scenario<PoolRoomScenario>("pool-room", "Pool: room for two serves two who wait", {3, 1}),
    scenario<PoolExitScenario<true>>("pool-exit",
                                     "Pool: nobody waits for what an exiting thread sends", {2, 1}),
    scenario<PoolExitScenario<false>>(
        "pool-sent", "Pool: what an exiting thread sends is found at the limit", {2, 1}),
    scenario<PoolTwoScenario<false>>("pool-two", "Pool: two who wait get two objects", {3, 1}),
    scenario<PoolTwoScenario<true>>("pool-handler",
                                    "Pool: the same, one of them freed by a handler", {3, 0, 1}),
    scenario<SharedHandlerScenario>("shared-handler", "Shared: a handler never waits", {2, 1, 1}),
};
const size_t kScenarioCount = sizeof kScenarios / sizeof *kScenarios;

}  // namespace explorer
