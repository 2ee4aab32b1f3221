// The programs that are simulated: an allocator under a workload. The shipped engine is compiled in
// here, with -fsanitize=thread.
// Called by: run.py and `lanemalloc sim`, as `simulator ALLOCATOR WORKLOAD CORES SEED [where]`. It
// prints one line of JSON, and with `where` a line for each place in the program that made
// transfers. Without arguments it lists the allocators.
//
// A workload runs twice. The first run touches memory for the first time and is not counted; the
// second one is.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string_view>
#include <vector>

#include "core/engine/engine.h"
#include "models.h"
#include "platform.h"

namespace simulator {
namespace {

using lanemalloc::Entry;
using lanemalloc::Gate;
using lanemalloc::MapWord;
using lanemalloc::Settings;
using lanemalloc::Slab;
using lanemalloc::Slot;
using lanemalloc::Statistics;
using lanemalloc::Verdict;

// The shipped engine, called as src/abi/malloc.cpp calls it.
class Lanes {
 public:
  explicit Lanes(const Settings& settings) {
    if (!engine_.start(settings, &bad_pointer)) std::abort();
  }

  void* allocate(size_t size) {
    return engine_.allocate(size, slot(), [&](Gate* gate) {
      void* p = Misses::allocate_from_bin(size, slot(), gate);
      if (p == nullptr) p = Misses::allocate_by_refill(engine_.world(), size, slot(), gate);
      return p != nullptr ? p : Misses::allocate_in_stay(engine_.searches(), size, slot(), gate);
    });
  }
  void free(void* p) {
    engine_.free(
        p, slot(),
        [&](Gate* gate, MapWord entry) {
          const auto full = [&](Gate* g, auto* batch) { Misses::flush_in_stay(batch, slot(), g); };
          if (Misses::free_to_batch(engine_.world(), p, slot(), gate, entry, full)) return;
          const Verdict verdict = Misses::free_in_stay(engine_.world(), p, slot(), gate);
          if (verdict != Verdict::kGood) bad_pointer(verdict, p);
        },
        [&](Gate* gate, Slab* slab) { Misses::look_in_stay(slab, slot(), gate); });
  }
  Statistics statistics() {
    engine_.check_invariants();
    Statistics s;
    engine_.statistics(s);
    return s;
  }

 private:
  using Misses = lanemalloc::Misses<Simulated>;

  // A thread's static storage. One word of it is the allocator's.
  struct alignas(4096) ThreadStorage {
    Slot slot{&lanemalloc::no_lane_gate};
  };

  static void bad_pointer(Verdict, const void* p) {
    std::fprintf(stderr, "bad pointer %p\n", p);
    std::abort();
  }
  Slot& slot() { return threads_[current_core()].slot; }

  lanemalloc::Engine<Simulated> engine_;
  ThreadStorage threads_[kMostCores];
};

constexpr size_t kLargest = 32 << 10;

size_t mixed_size() { return random(64) == 0 ? 1 + random(kLargest) : 1 + random(1024); }
size_t message_size() { return 64 * (1 + random(8)); }

// The program touches only the beginning of an object, since further lines would be the program's
// alone.
constexpr size_t kTouched = 128;
size_t touched(size_t size) { return size < kTouched ? size : kTouched; }

struct Object {
  void* p = nullptr;
  size_t size = 0;
};

struct Operations {
  uint64_t allocations = 0;
  uint64_t frees = 0;
};

template <class Allocator>
Object make(Allocator& allocator, size_t size, Operations& done) {
  Object object;
  object.size = size;
  object.p = allocator.allocate(object.size);
  if (object.p == nullptr) std::abort();
  program_writes(object.p, touched(object.size));
  ++done.allocations;
  idle(random(32));
  return object;
}

template <class Allocator>
void use_and_free(Allocator& allocator, Object& object, Operations& done) {
  program_reads(object.p, touched(object.size));
  allocator.free(object.p);
  object.p = nullptr;
  ++done.frees;
  idle(random(32));
}

// So that the first run does what a size needs when it is first asked for.
template <class Allocator>
void use_every_size(Allocator& allocator, Operations& done) {
  for (size_t size = 16; size <= kLargest; size += size < 1024 ? 16 : 128) {
    Object object{allocator.allocate(size), size};
    use_and_free(allocator, object, done);
  }
}

// Every core allocates and frees its own objects. Their number goes up and down.
template <class Allocator>
class Local {
 public:
  static constexpr const char* kName = "local";

  explicit Local(Allocator& allocator) : allocator_(allocator) {}

  void run(int core) {
    std::vector<Object>& mine = objects_[static_cast<size_t>(core)];
    mine.resize(kObjects);
    if (is_first_run) use_every_size(allocator_, done);
    for (int i = 0; i < kOperations; ++i) {
      // Waves: most of the objects live, then few.
      const uint64_t used = i / kWave % 2 == 0 ? kObjects : kObjects / 4;
      Object& object = mine[random(used)];
      if (object.p == nullptr) {
        object = make(allocator_, mixed_size(), done);
      } else {
        use_and_free(allocator_, object, done);
      }
      if (i % kWave == kWave - 1)
        for (Object& o : mine)
          if (o.p != nullptr && random(4) > 0) use_and_free(allocator_, o, done);
    }
  }

  Operations done;
  bool is_first_run = true;

 private:
  static constexpr size_t kObjects = 256;
  static constexpr int kOperations = 2000;
  static constexpr int kWave = 500;

  Allocator& allocator_;
  std::vector<Object> objects_[kMostCores];
};

// Core 2k allocates, core 2k + 1 reads and frees. The channel that takes the objects from one to
// the other is the program's, and is not counted.
template <class Allocator, bool kMixed>
class ProducerConsumer {
 public:
  static constexpr const char* kName = kMixed ? "producer-consumer-mixed" : "producer-consumer";

  explicit ProducerConsumer(Allocator& allocator) : allocator_(allocator) {}

  void run(int core) {
    std::deque<Object>& channel = channels_[static_cast<size_t>(core / 2)];
    if (is_first_run) use_every_size(allocator_, done);
    for (int i = 0; i < kObjects; ++i) {
      if (core % 2 == 0) {
        while (channel.size() >= kMostWaiting) idle(50);
        channel.push_back(make(allocator_, kMixed ? mixed_size() : message_size(), done));
      } else {
        while (channel.empty()) idle(50);
        Object object = channel.front();
        channel.pop_front();
        use_and_free(allocator_, object, done);
      }
    }
  }

  Operations done;
  bool is_first_run = true;

 private:
  static constexpr int kObjects = 3000;
  static constexpr size_t kMostWaiting = 256;

  Allocator& allocator_;
  std::deque<Object> channels_[kMostCores / 2];
};

void print(const char* name, const Transfers& t, uint64_t operations) {
  const auto n = static_cast<double>(operations);
  std::printf(", \"%s\": {\"metadata\": %.6f, \"links\": %.6f, \"program\": %.6f}", name,
              static_cast<double>(t.metadata) / n, static_cast<double>(t.links) / n,
              static_cast<double>(t.program) / n);
}

struct Plan {
  std::string_view allocator, workload;
  int cores;
  uint64_t seed;
  bool blame;  // tell where the transfers were made
};

template <class Workload, class Allocator>
bool simulate(const Plan& plan, Allocator& allocator) {
  if (plan.workload != Workload::kName) return false;
  Workload workload(allocator);
  auto run_once = [&] {
    workload.done = {};
    reset_counts();
    run([](void* context, int core) { static_cast<Workload*>(context)->run(core); }, &workload);
  };
  run_once();
  workload.is_first_run = false;
  [[maybe_unused]] Statistics before, after;
  if constexpr (requires { allocator.statistics(); }) before = allocator.statistics();
  run_once();
  const uint64_t operations = workload.done.allocations + workload.done.frees;
  std::printf(
      "{\"allocator\": \"%s\", \"workload\": \"%s\", \"cores\": %d, \"seed\": %llu, "
      "\"operations\": %llu",
      plan.allocator.data(), plan.workload.data(), plan.cores,
      static_cast<unsigned long long>(plan.seed), static_cast<unsigned long long>(operations));
  print("lines", counts().lines, operations);
  print("pairs", counts().pairs, operations);
  if constexpr (requires { allocator.statistics(); }) {
    after = allocator.statistics();
    const uint64_t batches = after.remote_batches - before.remote_batches;
    const uint64_t sent = after.remote_frees - before.remote_frees;
    if (batches > 0)
      std::printf(", \"batch\": %.3f", static_cast<double>(sent) / static_cast<double>(batches));
  }
  std::printf("}\n");
  if (plan.blame)
    visit_blamed([](const void* place, Blame blame) {
      std::printf("@%p %llu %llu %llu %llu\n", place,
                  static_cast<unsigned long long>(blame.metadata_lines),
                  static_cast<unsigned long long>(blame.metadata_pairs),
                  static_cast<unsigned long long>(blame.object_lines),
                  static_cast<unsigned long long>(blame.object_pairs));
    });
  return true;
}

// The allocator lies at the beginning of the arena, so that its lines are watched.
template <class Allocator, class... Arguments>
bool simulate_all(const Plan& plan, const Arguments&... arguments) {
  static_assert(sizeof(Allocator) <= Simulated::kRootSize);
  objects_begin_at(arena + Simulated::kRootSize);  // the region will say otherwise
  auto* allocator = new (arena) Allocator(arguments...);
  return simulate<Local<Allocator>>(plan, *allocator) ||
         simulate<ProducerConsumer<Allocator, false>>(plan, *allocator) ||
         simulate<ProducerConsumer<Allocator, true>>(plan, *allocator);
}

struct Name {
  const char* name;
  bool (*simulate)(const Plan& plan);
};

constexpr Name kAllocators[] = {
    {"owned", [](const Plan& plan) { return simulate_all<Lanes>(plan, Settings{}); }},
    {"shared",
     [](const Plan& plan) {
       return simulate_all<Lanes>(
           plan,
           Settings{.entry = Entry::kShared, .shared_lanes = static_cast<uint32_t>(plan.cores)});
     }},
    {"percpu",
     [](const Plan& plan) { return simulate_all<Lanes>(plan, Settings{.entry = Entry::kPerCpu}); }},
    {"locked-list", [](const Plan& plan) { return simulate_all<LockedList>(plan); }},
    {"treiber-stack", [](const Plan& plan) { return simulate_all<TreiberStack>(plan); }},
    {"one-lock-arena", [](const Plan& plan) { return simulate_all<OneLockArena>(plan); }},
};

}  // namespace
}  // namespace simulator

int main(int count, char** arguments) {
  using namespace simulator;
  if (count == 1) {
    for (const Name& name : kAllocators) std::printf("%s\n", name.name);
    return 0;
  }
  if (count < 5) return 2;
  const Plan plan{arguments[1], arguments[2], std::atoi(arguments[3]),
                  std::strtoull(arguments[4], nullptr, 10), count > 5};
  if (plan.cores < 2 || plan.cores > kMostCores || plan.cores % 2 != 0) return 2;
  set_up(plan.cores, plan.seed);
  for (const Name& name : kAllocators)
    if (plan.allocator == name.name) return name.simulate(plan) ? 0 : 2;
  return 2;
}
