// What fixture.h declares. Called by: all tests.
#include "fixture.h"

namespace lanemalloc {

Guard::Guard() {
  struct sigaction action = {};
  action.sa_handler = [](int signal_number) {
    if (here_ != nullptr) siglongjmp(*here_, 1);
    signal(signal_number, SIG_DFL);
  };
  // __builtin_trap() is an illegal instruction on x86-64 and a breakpoint on aarch64.
  sigaction(SIGILL, &action, &old_ill_);
  sigaction(SIGTRAP, &action, &old_trap_);
}

Guard::~Guard() {
  sigaction(SIGILL, &old_ill_, nullptr);
  sigaction(SIGTRAP, &old_trap_, nullptr);
}

bool Guard::survives(const std::function<void()>& body) {
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

std::string Config::name() const {
  return std::to_string(page / 1024) + (single                    ? "KSingle"
                                        : entry == Entry::kOwned  ? "KOwned"
                                        : entry == Entry::kShared ? "KShared"
                                                                  : "KPerCpu");
}

std::vector<Config> configs_of(Entry entry) {
  std::vector<Config> configs;
  for (const Config& c : kConfigs)
    if (c.entry == entry) configs.push_back(c);
  return configs;
}

void FakeTest::SetUp() {
  Fake::reset();
  Fake::page = config().page;
  Fake::single = config().single;
}

void FakeTest::TearDown() {
  EXPECT_EQ(Fake::misuse(), "");
  Fake::reset();
}

void FakeTest::TestBody() {
  EXPECT_TRUE(Guard::survives([this] { body(); })) << "a CHECK failed";
}

bool register_test(const char* suite, std::span<const Config> configs, FakeTest* (*make)(),
                   const char* file, int line) {
  for (const Config& config : configs) {
    const std::string name = config.name();
    testing::RegisterTest(suite, ("InEveryConfiguration/" + name).c_str(), nullptr, name.c_str(),
                          file, line, [config, make] {
                            FakeTest::set_config(config);
                            return make();
                          });
  }
  return true;
}

void fill(void* p, size_t n, uint64_t seed) {
  auto* bytes = static_cast<unsigned char*>(p);
  const size_t step = n > 4096 ? n / 64 : 1;
  for (size_t i = 0; i < n; i += step) bytes[i] = static_cast<unsigned char>(seed + i / step);
  if (n > 0) bytes[n - 1] = static_cast<unsigned char>(seed ^ 0x5A);
}

bool is_whole(const void* p, size_t n, uint64_t seed) {
  const auto* bytes = static_cast<const unsigned char*>(p);
  const size_t step = n > 4096 ? n / 64 : 1;
  if (n > 0 && bytes[n - 1] != static_cast<unsigned char>(seed ^ 0x5A)) return false;
  for (size_t i = 0; i + 1 < n; i += step)
    if (bytes[i] != static_cast<unsigned char>(seed + i / step)) return false;
  return true;
}

std::vector<Bytes> telling_sizes() {
  std::vector<Bytes> sizes = {0, 1};
  for (unsigned c = 1; c < kClassCount; ++c)
    for (Bytes s : {size_of(static_cast<SizeClass>(c)) - 1, size_of(static_cast<SizeClass>(c))})
      sizes.push_back(s);
  for (Bytes s : {kSlabMax + 1, Bytes{300000}, Bytes{1} << 20, (Bytes{3} << 20) + 17})
    sizes.push_back(s);
  return sizes;
}

Stopped::Stopped(Slot& slot) : slot_(slot), visit_(&slot, true), gate_(Owned::enter(slot)) {
  if (is_busy(gate_) || gate_ == &no_lane_gate || gate_ == &exited_gate) return;
  Lane<Fake>* lane = static_cast<Lane<Fake>*>(gate_);
  uint32_t free = lane->word_if_free();
  const bool entered = lane->how == Entry::kShared ? lane->try_lock(visit_)
                       : lane->how == Entry::kPerCpu
                           ? lane->here.compare_exchange_strong(free, kTakenHere)
                           : false;
  if (entered) lane_ = lane;
}

void Stopped::leave() {
  if (lane_ != nullptr && lane_->how == Entry::kShared) lane_->unlock(visit_);
  if (lane_ != nullptr && lane_->how == Entry::kPerCpu) lane_->leave_here();
  Owned::leave(slot_, gate_);
}

void EngineTest::SetUp() {
  FakeTest::SetUp();
  reports.clear();
  begin({});
}

void EngineTest::TearDown() {
  if (engine_) {
    EXPECT_HOLDS(engine_->check_invariants());
  }
  EXPECT_TRUE(reports.empty()) << reports.size() << " late reports";
  engine_.reset();
  FakeTest::TearDown();
}

void EngineTest::begin(Settings settings) {
  settings.entry = config().entry;
  settings.shared_lanes = kSharedLanes;
  begin_with(settings);
}

void EngineTest::begin_with(const Settings& settings) {
  slots_.clear();
  engine_.reset();
  if (started_) Fake::release_all();
  engine_ = std::make_unique<FakeEngine>();
  started_ =
      engine_->start(settings, [](Verdict why, const void* p) { reports.push_back({why, p}); });
  if (!started_) return;
  engine_->set_exit_watch([](Slot&) { return true; });
  if (!Fake::single) engine_->upkeep().begins();
}

void EngineTest::start_threads() {
  FakeTest::start_threads();
  if (!engine_->world().scavenger.is_running()) engine_->upkeep().begins();
}

void EngineTest::make_lanes() {
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

Lane<Fake>* EngineTest::lane_of(const Slot& slot) {
  Gate* gate = slot.load();
  EXPECT_TRUE(gate != &no_lane_gate && !is_busy(gate) && gate != &exited_gate);
  return static_cast<Lane<Fake>*>(gate);
}

Owner EngineTest::owner_of(const void* p) { return engine_->pointers().find(p).word.owner(); }

SizeClass EngineTest::class_at(const void* p) {
  return world().region.size_class_at(world().region.distance(p));
}

Statistics EngineTest::statistics() {
  auto s = std::make_unique<Statistics>();
  engine_->statistics(*s);
  return *s;
}

void* EngineTest::take(Slot& slot, Bytes size) {
  Fake::number = cpu_of(slot);
  void* p = engine_->allocate(size, slot);
  EXPECT_NE(p, nullptr) << "no memory for " << size << " bytes";
  return p;
}

void EngineTest::give(Slot& slot, void* p) {
  Fake::number = cpu_of(slot);
  EXPECT_EQ(engine_->free(p, slot), Verdict::kGood);
}

bool EngineTest::is_scavenger_wanted() {
  const Scavenger<Fake>& scavenger = world().scavenger;
  return scavenger.is_running() && scavenger.period_ms() != 0 && scavenger.is_wanted();
}

bool EngineTest::passes(int n) {
  if (!world().scavenger.is_running()) return false;
  scavenger_ = &world().scavenger;
  passes_left_ = n;
  Fake::on_wait = wait_in_scavenger;
  const int why = setjmp(after_passes_);
  if (why == 0) engine().upkeep().scavenge();
  Fake::on_wait = nullptr;
  return why == kPassesDone;
}

void EngineTest::all_passes() {
  for (int i = 0; i < 200; ++i)
    if (!passes(1)) return;
  ADD_FAILURE() << "the scavenger does not come to rest";
}

bool EngineTest::wait_in_scavenger(const void* word, uint64_t most_ms) {
  const auto into = reinterpret_cast<Address>(word) - reinterpret_cast<Address>(scavenger_);
  if (into >= sizeof *scavenger_) return false;  // a lock
  if (most_ms == kForever) longjmp(after_passes_, kAtRest);
  if (passes_left_-- == 0) longjmp(after_passes_, kPassesDone);
  Fake::clock.fetch_add(most_ms, std::memory_order_relaxed);
  return true;
}

}  // namespace lanemalloc
