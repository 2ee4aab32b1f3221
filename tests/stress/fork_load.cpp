// Forks while other threads allocate all the time. Each child allocates, frees objects of other
// threads, creates threads, forks again and exits; the parent checks every status. Also: fork from
// several threads, atfork handlers that allocate (one registered before any library could register
// its own), vfork and posix_spawn.
// Run by: tests/stress/run.sh.
#include "stress.h"

extern char** environ;

namespace {
using namespace stress;

constexpr int kWorkers = 3;
constexpr size_t kLargest = 256 * kKiB;
SharedSlot g_shared[256];
std::atomic<bool> g_stop{false};
std::atomic<uint64_t> g_operations{0};

void work(Random& random, Tags& tags, Owned* slots, size_t count, int operations) {
  for (int i = 0; i < operations; i++) {
    Owned& o = slots[random.below(count)];
    if (o.address == nullptr)
      o = take(random_size(random, kLargest), tags.next());
    else if (random.percent(30))
      g_shared[random.below(std::size(g_shared))].swap(o);
    else if (random.percent(60))
      give(o, "work");
    else {
      check(o, "realloc, before");
      size_t size = random_size(random, kLargest);
      o.address = static_cast<unsigned char*>(api::realloc(o.address, size));
      EXPECT(o.address != nullptr, "realloc(%zu): no memory", size);
      check_prefix(o, size < o.size ? size : o.size, "realloc, after");
      o.size = size;
      fill(o);
    }
  }
}
void drop(Owned* slots, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (slots[i].address != nullptr) give(slots[i], "drop");
}

void worker(int index) {
  Random random(static_cast<uint64_t>(index) + 100);
  Tags tags;
  Owned slots[48];
  while (!g_stop.load(std::memory_order_relaxed)) {
    work(random, tags, slots, std::size(slots), 200);
    stage("working", g_operations.fetch_add(200, std::memory_order_relaxed));
  }
  drop(slots, std::size(slots));
}

// Runs in the child, which has one thread. If the child hangs, the watchdog ends it and prints the
// line of stages.
void child_body(uint64_t serial, int depth) {
  arm_watchdog(watchdog_seconds() / (depth == 0 ? 2 : 4) + 1);
  t_stage = nullptr;
  for (Stage& s : g_stages) s.thread = 0;
  stage(depth == 0 ? "child" : "grandchild", serial);
  Random random(1000 + serial);
  Tags tags;
  Owned slots[32];
  work(random, tags, slots, std::size(slots), 300);
  // These are objects of the parent's threads. A slot that was busy at the fork stays busy.
  for (SharedSlot& slot : g_shared) {
    if (!slot.try_lock()) continue;
    if (slot.object.address != nullptr) give(slot.object, "free in a child");
    slot.unlock();
  }
  if (serial % 3 == 0) {
    stage("child: threads", serial);
    run_threads(2, [&](int index) {
      Random other(2000 + serial * 4 + static_cast<uint64_t>(index));
      Tags other_tags;
      Owned others[16];
      work(other, other_tags, others, std::size(others), 200);
      drop(others, std::size(others));
    });
  }
  if (depth == 0 && serial % 2 == 0) {
    stage("child: forks", serial);
    pid_t grandchild = fork();
    if (grandchild == 0) {
      child_body(serial, 1);
      _exit(0);
    }
    expect_good_end(grandchild, "grandchild", serial);
  }
  stage("child: frees its own", serial);
  drop(slots, std::size(slots));
}

void fork_once(uint64_t serial) {
  pid_t child = fork();
  if (child == 0) {
    child_body(serial, 0);
    if (serial % 4 == 1) exit(0);  // with atexit handlers
    _exit(0);
  }
  expect_good_end(child, "child", serial);
}

// Between two forks it waits until a worker has done something, so work goes on all the while.
void fork_many(uint64_t forks, uint64_t first) {
  Random random(5000 + first);
  Tags tags;
  Owned slots[32];
  for (uint64_t i = 0; i < forks; i++) {
    stage("forking", i);
    work(random, tags, slots, std::size(slots), 20);
    uint64_t before = g_operations.load();
    fork_once(first + i);
    while (g_operations.load() == before) sched_yield();
  }
  drop(slots, std::size(slots));
}

void finish() {
  for (SharedSlot& slot : g_shared)
    if (slot.object.address != nullptr) give(slot.object, "at the end");
  NOTE("%llu operations meanwhile", llu(g_operations));
}

void from_main() {
  run_threads(kWorkers, worker, [] {
    fork_many(scaled(150), 0);
    g_stop = true;
  });
  finish();
}

void from_threads() {
  constexpr int kForkers = 3;
  std::atomic<int> left{kForkers};
  run_threads(kWorkers + kForkers, [&](int index) {
    if (index < kWorkers) return worker(index);
    fork_many(scaled(50), static_cast<uint64_t>(index) << 32);
    if (left.fetch_sub(1) == 1) g_stop = true;
  });
  finish();
}

// ---- atfork handlers
// -------------------------------------------------------------------------------------------------
// They run while the thread is between "about to fork" and "forked". glibc runs prepare handlers
// newest first. So a handler registered before the allocator's own handler runs when the allocator
// has already prepared.
bool g_handlers_work = false;
Owned g_atfork_object[2][3];
void atfork_step(int who, int step, size_t size) {
  if (!g_handlers_work) return;
  if (g_atfork_object[who][step].address != nullptr)
    give(g_atfork_object[who][step], "atfork handler");
  g_atfork_object[who][step] = take(size, 0x77 + size);
  Owned medium = take(20000 + size, 0x78);
  give(medium, "atfork handler, at once");
}
template <int kWho>
void register_handlers() {
  pthread_atfork([] { atfork_step(kWho, 0, 40); }, [] { atfork_step(kWho, 1, 500); },
                 [] { atfork_step(kWho, 2, 3000); });
}
// Runs before the constructors of all libraries.
[[gnu::used,
  gnu::section(".preinit_array")]] void (*const g_before_libraries)() = register_handlers<0>;

void atfork_handlers() {
  register_handlers<1>();
  g_handlers_work = true;
  from_main();
}

// ---- spawn
// -------------------------------------------------------------------------------------------------
pid_t vfork_noop(char** arguments) {
  pid_t child = vfork();
  if (child == 0) {
    execve("/proc/self/exe", arguments, environ);
    _exit(127);
  }
  return child;
}

void spawn() {
  uint64_t rounds = scaled(100);
  run_threads(kWorkers, worker, [&] {
    for (uint64_t i = 0; i < rounds; i++) {
      stage("spawning", i);
      char* arguments[] = {const_cast<char*>("fork_load"), const_cast<char*>("noop"), nullptr};
      pid_t child = -1;
      if (i % 2 == 0) {
        int error = posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments, environ);
        EXPECT(error == 0, "posix_spawn: %s", strerror(error));
      } else {
        child = vfork_noop(arguments);
      }
      expect_good_end(child, "spawned child", i);
    }
    g_stop = true;
  });
  finish();
}

// A chain: each generation starts threads and forks while they allocate, and the child is the next
// generation. A child cannot use the lanes that were busy at the fork. That loss must stay small.
void generation(int number, int last, size_t at_start) {
  g_stop = false;
  t_stage = nullptr;
  for (Stage& s : g_stages) s.thread = 0;
  for (SharedSlot& slot : g_shared) {
    slot.busy = false;
    slot.object = {};  // leaked on purpose: it may be half-way between two threads
  }
  stage("generation", static_cast<uint64_t>(number));
  if (number == 2) at_start = resident();
  run_threads(3, worker, [&] {
    uint64_t before = g_operations.load();
    while (g_operations.load() < before + 3000) sched_yield();
    if (number < last) {
      pid_t child = fork();
      if (child == 0) {
        arm_watchdog();
        generation(number + 1, last, at_start);
        _exit(0);
      }
      g_stop = true;  // here, so that the next generation has the processors
      expect_good_end(child, "generation", static_cast<uint64_t>(number) + 1);
    }
    g_stop = true;
  });
  // Each generation leaks about 2 MiB by itself (objects of three workers, shared slots); the rest
  // of the limit is for three lanes.
  size_t end = resident(), limit = at_start + static_cast<size_t>(last) * 16 * kMiB;
  if (number == last) {
    EXPECT(end < limit, "%zu KiB resident in generation 2, %zu KiB in generation %d",
           at_start / kKiB, end / kKiB, number);
    print(1, "  %zu KiB resident in generation 2, %zu KiB in generation %d\n", at_start / kKiB,
          end / kKiB, number);
  }
}
void generations() {
  int last = static_cast<int>(scaled(20)) + 3;
  generation(0, last, 0);
  NOTE("%d generations", last);
}
}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], "noop") == 0) {
    Owned o = take(100, 1);
    give(o, "spawned");
    return 0;
  }
  static const Case cases[] = {
      {"from-main", from_main},
      {"from-threads", from_threads},
      {"atfork-handlers", atfork_handlers},
      {"spawn", spawn},
      {"generations", generations},
  };
  return run_cases("fork_load", argc, argv, cases);
}
