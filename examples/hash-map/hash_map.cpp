// Readers look values up all the time, and writers put and remove them, in one map. A reader checks
// that each value it finds is whole, and is one that its key has had. In the end the map must hold
// what the writers have put there, and nothing else.
//
// Usage: hash_map malloc|pool|rwlock|mutex READERS WRITERS SECONDS. malloc, pool: the map without
// locks, with nodes from malloc or from a pool. Prints one line of figures. Called by: run.sh.
#include <sched.h>
#include <sys/resource.h>
#include <time.h>

#include <chrono>
#include <string_view>
#include <thread>
#include <vector>

#include "locked_map.h"

namespace {

constexpr uint64_t kKeys = uint64_t{1} << 14;

uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 31)) * 0x7FB5D329728EA185;
  return x ^ (x >> 27);
}
// The version, and words that are computed from it and the key.
Value value_of(uint64_t key, uint64_t version) {
  return {{version, mixed(key + version), mixed(key ^ version), ~version}};
}
void check(uint64_t key, const Value& value) {
  const Value wanted = value_of(key, value.words[0]);
  for (int i = 0; i < 4; ++i)
    if (value.words[i] != wanted.words[i]) fail("a reader has found what its key never had");
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2 + 1) {}
  uint64_t below(uint64_t n) {
    state_ = state_ * 6364136223846793005 + 1442695040888963407;
    return (state_ >> 33) % n;
  }

 private:
  uint64_t state_;
};

struct Shared {
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> lookups{0}, hits{0}, updates{0};
  std::atomic<uint64_t> reading_ns{0}, writing_ns{0};  // of CPU time
  // The version of each key, 0 if the key is not there. Each key belongs to one writer.
  std::vector<uint64_t> versions = std::vector<uint64_t>(kKeys);
};

uint64_t cpu_ns() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

template <class AnyMap>
void look_up(AnyMap& map, Shared& shared, uint64_t seed) {
  lane::Reader reader("lookup");
  Random random(seed);
  uint64_t lookups = 0, hits = 0;
  for (; !shared.stop.load(std::memory_order_relaxed); ++lookups) {
    const uint64_t key = random.below(kKeys);
    hits += map.find(key, reader, [&](const Value& value) {
      check(key, value);
      if (lookups % 65536 != 0) return;
      sched_yield();  // the value stays whole while other threads work
      check(key, value);
    });
  }
  shared.lookups += lookups;
  shared.hits += hits;
  shared.reading_ns += cpu_ns();
}

template <class AnyMap>
void update(AnyMap& map, Shared& shared, uint64_t number, uint64_t writers) {
  lane::Reader reader("writer");
  Random random(1000 + number);
  uint64_t version = 0;
  for (; !shared.stop.load(std::memory_order_relaxed); ++version) {
    const uint64_t key = random.below(kKeys / writers) * writers + number;
    uint64_t& now = shared.versions[key];
    const bool was_there = now != 0;
    if (random.below(4) != 0) {
      now = version + 1;
      if (map.put(key, value_of(key, now), reader) == was_there)
        fail("a key is new that was there, or was not and is old");
    } else {
      now = 0;
      if (map.remove(key, reader) != was_there)
        fail("a key is removed that was not there, or was and is not");
    }
  }
  shared.updates += version;
  shared.writing_ns += cpu_ns();
}

template <class AnyMap>
void check_contents(AnyMap& map, const Shared& shared) {
  lane::Reader reader("check");
  size_t count = 0;
  for (uint64_t key = 0; key < kKeys; ++key) {
    uint64_t version = 0;
    map.find(key, reader, [&](const Value& value) {
      check(key, value);
      version = value.words[0];
    });
    if (version != shared.versions[key]) fail("the map does not hold what was put there last");
    count += version != 0;
  }
  if (count != map.count()) fail("the map counts what it does not hold");
}

template <class AnyMap>
void run(AnyMap& map, int readers, int writers, double seconds, uint64_t (*waits)(const AnyMap&)) {
  Shared shared;
  std::vector<std::thread> threads;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < readers; ++i)
    threads.emplace_back([&, i] { look_up(map, shared, static_cast<uint64_t>(i)); });
  for (int i = 0; i < writers; ++i)
    threads.emplace_back(
        [&, i] { update(map, shared, static_cast<uint64_t>(i), static_cast<uint64_t>(writers)); });
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  shared.stop = true;
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  check_contents(map, shared);
  lane_safepoint_statistics s;
  lane_safepoint_get_statistics(&s);
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  std::printf(
      "lookups=%llu hits=%llu updates=%llu reading_ns=%llu writing_ns=%llu seconds=%.3f "
      "buckets=%zu "
      "failed_changes=%llu lock_waits=%llu "
      "deferred=%llu "
      "batches=%llu helped=%llu waited_us=%llu peak_kib=%ld\n",
      static_cast<unsigned long long>(shared.lookups), static_cast<unsigned long long>(shared.hits),
      static_cast<unsigned long long>(shared.updates),
      static_cast<unsigned long long>(shared.reading_ns),
      static_cast<unsigned long long>(shared.writing_ns), took.count(), map.buckets(),
      static_cast<unsigned long long>(map.failed_changes()),
      static_cast<unsigned long long>(waits(map)), static_cast<unsigned long long>(s.deferred),
      static_cast<unsigned long long>(s.batches), static_cast<unsigned long long>(s.helped),
      static_cast<unsigned long long>(s.waited_ns / 1000), usage.ru_maxrss);
}

template <class Nodes>
void run_lock_free(int readers, int writers, double seconds) {
  Nodes nodes;
  lane::Reader first("main");  // so that there is a reader from the first deferred free on
  Map<Nodes> map(nodes);
  run<Map<Nodes>>(map, readers, writers, seconds, [](const Map<Nodes>&) -> uint64_t { return 0; });
  if (lane_safepoint_wait() != 0) fail("waiting is refused outside of sections");
  lane_safepoint_statistics s;
  lane_safepoint_get_statistics(&s);
  if (s.deferred != s.freed) fail("a deferred free is not done");
}

template <class Mutex>
void run_locked(int readers, int writers, double seconds) {
  LockedMap<Mutex> map;
  run<LockedMap<Mutex>>(map, readers, writers, seconds,
                        [](const LockedMap<Mutex>& m) { return m.waits(); });
}

}  // namespace

int main(int argc, char** argv) {
  const int readers = argc == 5 ? std::atoi(argv[2]) : 0,
            writers = argc == 5 ? std::atoi(argv[3]) : 0;
  const double seconds = argc == 5 ? std::atof(argv[4]) : 0;
  const std::string_view memory = argc == 5 ? argv[1] : "";
  if (readers < 1 || writers < 1 || seconds <= 0) {
    std::fputs("usage: hash_map malloc|pool|rwlock|mutex READERS WRITERS SECONDS\n", stderr);
    return 2;
  }
  if (memory == "malloc") {
    run_lock_free<MallocNodes>(readers, writers, seconds);
  } else if (memory == "pool") {
    run_lock_free<PoolNodes>(readers, writers, seconds);
  } else if (memory == "rwlock") {
    run_locked<std::shared_mutex>(readers, writers, seconds);
  } else if (memory == "mutex") {
    run_locked<std::mutex>(readers, writers, seconds);
  } else {
    std::fprintf(stderr, "hash_map: '%s' is none of malloc, pool, rwlock, mutex\n", argv[1]);
    return 2;
  }
  return 0;
}
