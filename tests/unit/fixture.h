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
#include <span>
#include <utility>
#include <vector>

#include "core.h"

namespace lanemalloc {

// Runs `body`. False if a CHECK stopped it, there or in what it calls. What `body` left behind must
// not be used again.
class Guard {
 public:
  static bool survives(const std::function<void()>& body);

 private:
  Guard();
  ~Guard();

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

  std::string name() const;
};

inline constexpr Config kConfigs[] = {{4096, false},
                                      {4096, false, Entry::kShared},
                                      {4096, false, Entry::kPerCpu},
                                      {4096, true},
                                      {16384, false},
                                      {16384, false, Entry::kShared},
                                      {16384, true},
                                      {65536, false},
                                      {65536, false, Entry::kPerCpu},
                                      {65536, true}};

std::vector<Config> configs_of(Entry entry);

class FakeTest : public testing::Test {
 public:
  static const Config& config() { return config_; }
  static bool is_owned() { return config().entry == Entry::kOwned; }
  // The test that is made next has this one.
  static void set_config(const Config& config) { config_ = config; }

 protected:
  void SetUp() override;
  void TearDown() override;
  virtual void body() = 0;
  // A second thread starts. There is no way back.
  static void start_threads() { Fake::single = false; }

 private:
  void TestBody() final;

  static inline Config config_{};
};

// Registers a test with each of these configurations. TEST_P would make the compiler instantiate
// templates for each test.
bool register_test(const char* suite, std::span<const Config> configs, FakeTest* (*make)(),
                   const char* file, int line);

// A test of a fixture that derives from FakeTest, over some configurations.
#define TEST_CONFIGS(Suite, Name, configs)                                               \
  class Suite##Name final : public Suite {                                               \
    NOINLINE void body() override;                                                       \
  };                                                                                     \
  [[maybe_unused]] const bool Suite##Name##_is_registered = ::lanemalloc::register_test( \
      "All/" #Suite "_of_" #Name, configs,                                               \
      []() -> ::lanemalloc::FakeTest* { return new Suite##Name; }, __FILE__, __LINE__);  \
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
void fill(void* p, size_t n, uint64_t seed);
bool is_whole(const void* p, size_t n, uint64_t seed);

// Both edges of every size class, and some large ones.
std::vector<Bytes> telling_sizes();

// A thread that is inside its lane until leave(). It enters by the configuration's entry.
class Stopped {
 public:
  explicit Stopped(Slot& slot);
  void leave();

 private:
  Slot& slot_;
  Visit visit_;
  Gate* gate_;
  Lane<Fake>* lane_ = nullptr;
};

class EngineTest : public FakeTest {
 protected:
  void SetUp() override;
  void TearDown() override;

  // Makes a fresh engine over a fresh platform of the same configuration. What the test has set in
  // the platform stays.
  void begin(Settings settings);
  void begin_with(const Settings& settings);
  void begin_checked() {
    Settings settings;
    settings.checked = true;
    begin(settings);
  }
  // A second thread starts, and with it the scavenger's thread. passes() runs the scavenger.
  void start_threads();

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
  void make_lanes();

  FakeEngine& engine() { return *engine_; }
  World<Fake>& world() { return engine_->world(); }
  static Lane<Fake>* lane_of(const Slot& slot);
  Owner owner_of(const void* p);
  SizeClass class_at(const void* p);
  Statistics statistics();
  void* take(Slot& slot, Bytes size);
  void give(Slot& slot, void* p);
  // Calls free(), which frees p. Returns what is told of p, by the call or by the lane that has it.
  template <class Free>
  static Verdict told(const void* p, Free free) {
    const Verdict verdict = free();
    if (reports.empty() || reports.back().why != Verdict::kFreedAlready ||
        reports.back().pointer != p)
      return verdict;
    EXPECT_EQ(verdict, Verdict::kGood) << "told twice";
    reports.pop_back();
    return Verdict::kFreedAlready;
  }

  // True if a scavenger runs and has something to do.
  bool is_scavenger_wanted();
  // Runs the scavenger's loop up to the end of `n` passes, as its thread would. False if the loop
  // came to rest or to its end before that.
  bool passes(int n);
  // Runs the scavenger until it goes to rest.
  void all_passes();

  bool started_ = false;
  std::unique_ptr<FakeEngine> engine_;
  std::deque<Slot> slots_;

 private:
  static constexpr int kPassesDone = 1;
  static constexpr int kAtRest = 2;

  // The scavenger sleeps between two passes while the clock moves on. At rest it sleeps until a
  // thread pokes it.
  static bool wait_in_scavenger(const void* word, uint64_t most_ms);

  static inline thread_local Scavenger<Fake>* scavenger_ = nullptr;
  static inline thread_local jmp_buf after_passes_;
  static inline thread_local int passes_left_ = 0;
};

}  // namespace lanemalloc
