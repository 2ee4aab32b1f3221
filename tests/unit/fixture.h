// What every unit test stands on. FakeTest has a fresh fake platform and runs a test over every
// configuration; a broken invariant fails the test, and does not end all tests. EngineTest has an
// engine whose threads are slots.
// Called by: *_test.cpp.
#pragma once

#include <gtest/gtest.h>
#include <setjmp.h>
#include <signal.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "platform/fake.h"

namespace lanemalloc {

// Runs `body`. False if a CHECK stopped it, there or in what it calls. What `body` left behind must
// not be used again.
class Guard {
 public:
  static bool survives(const std::function<void()>& body) {
    Guard guard;
    sigjmp_buf* const outer = here_;
    sigjmp_buf mine;
    bool done = false;
    if (sigsetjmp(mine, 1) == 0) {
      here_ = &mine;
      body();
      done = true;
    }
    here_ = outer;
    return done;
  }

 private:
  // __builtin_trap() is an illegal instruction on x86-64 and a breakpoint on aarch64.
  Guard() {
    struct sigaction action = {};
    action.sa_handler = [](int signal_number) {
      if (here_ != nullptr) siglongjmp(*here_, 1);
      signal(signal_number, SIG_DFL);
    };
    sigaction(SIGILL, &action, &old_ill_);
    sigaction(SIGTRAP, &action, &old_trap_);
  }
  ~Guard() {
    sigaction(SIGILL, &old_ill_, nullptr);
    sigaction(SIGTRAP, &old_trap_, nullptr);
  }

  struct sigaction old_ill_, old_trap_;
  static inline thread_local sigjmp_buf* here_ = nullptr;
};

#define EXPECT_HOLDS(statement)                                                       \
  EXPECT_TRUE(::lanemalloc::Guard::survives([&] { statement; })) << "a CHECK failed " \
                                                                    "in: " #statement

struct Config {
  Bytes page;
  bool single;
  Entry entry = Entry::kOwned;  // of no effect with one thread: lanes are owned then

  std::string name() const {
    return std::to_string(page / 1024) + (single                    ? "KSingle"
                                          : entry == Entry::kOwned  ? "KOwned"
                                          : entry == Entry::kShared ? "KShared"
                                                                    : "KPerCpu");
  }
};

inline void PrintTo(const Config& c, std::ostream* out) { *out << c.name(); }

inline const Config kConfigs[] = {{4096, false},
                                  {4096, false, Entry::kShared},
                                  {4096, false, Entry::kPerCpu},
                                  {4096, true},
                                  {16384, false},
                                  {16384, false, Entry::kShared},
                                  {16384, true},
                                  {65536, false},
                                  {65536, false, Entry::kPerCpu},
                                  {65536, true}};

inline std::vector<Config> configs_of(Entry entry) {
  std::vector<Config> configs;
  for (const Config& c : kConfigs)
    if (c.entry == entry) configs.push_back(c);
  return configs;
}

class FakeTest : public testing::TestWithParam<Config> {
 public:
  static Config config() { return GetParam(); }
  static bool is_owned() { return config().entry == Entry::kOwned; }

 protected:
  void SetUp() override {
    Fake::reset();
    Fake::page = config().page;
    Fake::single = config().single;
  }
  void TearDown() override {
    EXPECT_EQ(Fake::misuse(), "");
    Fake::reset();
  }
  // A second thread starts. There is no way back.
  static void start_threads() { Fake::single = false; }
};

// A test of a fixture that derives from FakeTest, over some configurations.
#define TEST_CONFIGS(Suite, Name, configs)                                              \
  class Suite##Name : public Suite {                                                    \
   public:                                                                              \
    NOINLINE void body();                                                               \
  };                                                                                    \
  using Suite##_of_##Name = Suite##Name;                                                \
  TEST_P(Suite##_of_##Name, InEveryConfiguration) {                                     \
    EXPECT_TRUE(::lanemalloc::Guard::survives([this] { body(); })) << "a CHECK failed"; \
  }                                                                                     \
  INSTANTIATE_TEST_SUITE_P(All, Suite##_of_##Name, testing::ValuesIn(configs),          \
                           [](const auto& test) { return test.param.name(); });         \
  void Suite##Name::body()

// TEST_ALL_CONFIGS is the rule. Each test of one entry says why it is one.
#define TEST_ALL_CONFIGS(Suite, Name) TEST_CONFIGS(Suite, Name, kConfigs)
#define TEST_OWNED(Suite, Name) TEST_CONFIGS(Suite, Name, configs_of(Entry::kOwned))
#define TEST_SHARED(Suite, Name) TEST_CONFIGS(Suite, Name, configs_of(Entry::kShared))
#define TEST_PER_CPU(Suite, Name) TEST_CONFIGS(Suite, Name, configs_of(Entry::kPerCpu))

// The sanitizers slow tests down several times, so long random walks are shorter by this factor.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr int kShorter = 4;
#else
inline constexpr int kShorter = 1;
#endif

// Random numbers that are the same in every run.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  uint64_t below(uint64_t n) { return engine_() % n; }
  uint64_t between(uint64_t least, uint64_t most) { return least + below(most - least + 1); }
  bool one_in(uint64_t n) { return below(n) == 0; }

 private:
  std::mt19937_64 engine_;
};

using FakeEngine = Engine<Fake>;

// What the core reports by itself, later than in a call's result.
struct Report {
  Verdict why;
  const void* pointer;
};
inline std::vector<Report> reports;

// Fills an object with a pattern of its own. is_whole() tells whether the pattern is still whole.
inline void fill(void* p, size_t n, uint64_t seed) {
  auto* bytes = static_cast<unsigned char*>(p);
  const size_t step = n > 4096 ? n / 64 : 1;
  for (size_t i = 0; i < n; i += step) bytes[i] = static_cast<unsigned char>(seed + i / step);
  if (n > 0) bytes[n - 1] = static_cast<unsigned char>(seed ^ 0x5A);
}
inline bool is_whole(const void* p, size_t n, uint64_t seed) {
  const auto* bytes = static_cast<const unsigned char*>(p);
  const size_t step = n > 4096 ? n / 64 : 1;
  if (n > 0 && bytes[n - 1] != static_cast<unsigned char>(seed ^ 0x5A)) return false;
  for (size_t i = 0; i + 1 < n; i += step)
    if (bytes[i] != static_cast<unsigned char>(seed + i / step)) return false;
  return true;
}

// Both edges of every size class, and some large ones.
inline std::vector<Bytes> telling_sizes() {
  std::vector<Bytes> sizes = {0, 1};
  for (unsigned c = 1; c < kClassCount; ++c)
    for (Bytes s : {size_of(static_cast<SizeClass>(c)) - 1, size_of(static_cast<SizeClass>(c))})
      sizes.push_back(s);
  for (Bytes s : {kSlabMax + 1, Bytes{300000}, Bytes{1} << 20, (Bytes{3} << 20) + 17})
    sizes.push_back(s);
  return sizes;
}

// A thread that is inside its lane until leave(). It enters by the configuration's entry.
class Stopped {
 public:
  explicit Stopped(Slot& slot) : slot_(slot), visit_(&slot, true), gate_(Owned::enter(slot)) {
    if (is_busy(gate_) || gate_ == &no_lane_gate || gate_ == &exited_gate) return;
    Lane<Fake>* lane = static_cast<Lane<Fake>*>(gate_);
    uint32_t free = lane->word_if_free();
    const bool entered = lane->how == Entry::kShared ? lane->try_lock(visit_)
                         : lane->how == Entry::kPerCpu
                             ? lane->here.compare_exchange_strong(free, kTakenHere)
                             : false;
    if (entered) lane_ = lane;
  }
  void leave() {
    if (lane_ != nullptr && lane_->how == Entry::kShared) lane_->unlock(visit_);
    if (lane_ != nullptr && lane_->how == Entry::kPerCpu) lane_->leave_here();
    Owned::leave(slot_, gate_);
  }

 private:
  Slot& slot_;
  Visit visit_;
  Gate* gate_;
  Lane<Fake>* lane_ = nullptr;
};

class EngineTest : public FakeTest {
 protected:
  void SetUp() override {
    FakeTest::SetUp();
    reports.clear();
    begin({});
  }
  void TearDown() override {
    if (engine_) {
      EXPECT_HOLDS(engine_->check_invariants());
    }
    EXPECT_TRUE(reports.empty()) << reports.size() << " late reports";
    engine_.reset();
    FakeTest::TearDown();
  }

  // Makes a fresh engine over a fresh platform of the same configuration. What the test has set in
  // the platform stays.
  void begin(Settings settings) {
    settings.entry = config().entry;
    settings.shared_lanes = kSharedLanes;
    begin_with(settings);
  }
  void begin_with(const Settings& settings) {
    slots_.clear();
    engine_.reset();
    if (started_) Fake::release_all();
    engine_ = std::make_unique<FakeEngine>();
    started_ =
        engine_->start(settings, [](Verdict why, const void* p) { reports.push_back({why, p}); });
    if (!started_) return;
    engine_->set_exit_watch([](Slot&) { return true; });
    if (!Fake::single) engine_->scavenger_begins();
  }
  // A second thread starts, and with it the scavenger's thread. passes() runs the scavenger.
  void start_threads() {
    FakeTest::start_threads();
    if (!engine_->has_scavenger()) engine_->scavenger_begins();
  }

  static constexpr uint32_t kSharedLanes = 2;

  // A thread. The tests play several threads on one. Two threads that were made one after the other
  // run on different CPUs.
  static uint32_t cpu_of(const Slot& slot) {
    return static_cast<uint32_t>(reinterpret_cast<Address>(&slot) / sizeof(Slot)) % Fake::cpu_count;
  }
  Slot& thread() { return slots_.emplace_back(&no_lane_gate); }
  // Runs `body` as a handler that has interrupted the thread inside the allocator.
  template <class Body>
  static void in_handler(Slot& slot, Body body) {
    Stopped thread(slot);
    body();
    EXPECT_TRUE(is_busy(slot.load()));
    thread.leave();
  }

  // Makes as many lanes as a few threads on a few CPUs need, for tests whose slabs change hands
  // while several threads work. Other threads learn by a fence that a lane has been made, and the
  // thread sanitizer does not follow fences.
  void make_lanes() {
    LaneTable<Fake>& lanes = world().lanes;
    for (uint32_t i = 0; i < 8; ++i) lanes.shared(i), lanes.here(i);
    std::vector<AnyLane<Fake>*> owned, overflow;
    std::deque<Visit> visits;
    for (int i = 0; i < 8; ++i) {
      owned.push_back(lanes.pop_idle_or_make());
      overflow.push_back(lanes.enter_overflow(visits.emplace_back(&visits, false)));
    }
    for (AnyLane<Fake>* lane : owned) lanes.push_idle(*lane);
    for (size_t i = 0; i < visits.size(); ++i) overflow[i]->unlock(visits[i]);
  }

  FakeEngine& engine() { return *engine_; }
  World<Fake>& world() { return engine_->world(); }
  static Lane<Fake>* lane_of(const Slot& slot) {
    Gate* gate = slot.load();
    EXPECT_TRUE(gate != &no_lane_gate && !is_busy(gate) && gate != &exited_gate);
    return static_cast<Lane<Fake>*>(gate);
  }
  Owner owner_of(const void* p) { return engine_->find(p).word.owner(); }
  SizeClass class_at(const void* p) {
    return world().region.size_class_at(world().region.distance(p));
  }
  NOINLINE Statistics statistics() {
    auto s = std::make_unique<Statistics>();
    engine_->statistics(*s);
    return *s;
  }
  NOINLINE void* take(Slot& slot, Bytes size) {
    Fake::number = cpu_of(slot);
    void* p = engine_->allocate(size, slot);
    EXPECT_NE(p, nullptr) << "no memory for " << size << " bytes";
    return p;
  }
  NOINLINE void give(Slot& slot, void* p) {
    Fake::number = cpu_of(slot);
    EXPECT_EQ(engine_->free(p, slot), Verdict::kGood);
  }

  // True if a scavenger runs and has something to do.
  bool is_scavenger_wanted() {
    const Scavenger<Fake>& scavenger = world().scavenger;
    return scavenger.is_running() && scavenger.period_ms() != 0 && scavenger.is_wanted();
  }
  // Runs the scavenger's loop up to the end of `n` passes, as its thread would. False if the loop
  // came to rest or to its end before that.
  bool passes(int n) {
    if (!world().scavenger.is_running()) return false;
    scavenger_ = &world().scavenger;
    passes_left_ = n;
    Fake::on_wait = wait_in_scavenger;
    const int why = setjmp(after_passes_);
    if (why == 0) engine().scavenge();
    Fake::on_wait = nullptr;
    return why == kPassesDone;
  }
  // Runs the scavenger until it goes to rest.
  void all_passes() {
    for (int i = 0; i < 200; ++i)
      if (!passes(1)) return;
    ADD_FAILURE() << "the scavenger does not come to rest";
  }

  bool started_ = false;
  std::unique_ptr<FakeEngine> engine_;
  std::deque<Slot> slots_;

 private:
  static constexpr int kPassesDone = 1;
  static constexpr int kAtRest = 2;

  // The scavenger sleeps between two passes while the clock moves on. At rest it sleeps until a
  // thread pokes it.
  static bool wait_in_scavenger(const void* word, uint64_t most_ms) {
    const auto into = reinterpret_cast<Address>(word) - reinterpret_cast<Address>(scavenger_);
    if (into >= sizeof *scavenger_) return false;  // a lock
    if (most_ms == kForever) longjmp(after_passes_, kAtRest);
    if (passes_left_-- == 0) longjmp(after_passes_, kPassesDone);
    Fake::clock.fetch_add(most_ms, std::memory_order_relaxed);
    return true;
  }

  static inline thread_local Scavenger<Fake>* scavenger_ = nullptr;
  static inline thread_local jmp_buf after_passes_;
  static inline thread_local int passes_left_ = 0;
};

}  // namespace lanemalloc
