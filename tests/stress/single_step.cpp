// Runs a signal handler at every instruction of malloc, calloc, realloc and free: the trap flag
// makes the processor raise SIGTRAP after each instruction, and the handler allocates, frees, or
// forks. So the program meets every unsafe window between two instructions. Checked: contents of
// all objects, those of the code and those of the handlers; children's exit statuses; that each
// operation ends. Steps are counted and printed.
// Run by: tests/stress/run.sh. x86-64 only; skipped elsewhere.
#include <semaphore.h>

#include "stepping.h"
#include "stress.h"

namespace {
using namespace stress;

#if defined(__x86_64__)
// ---- handlers
// -------------------------------------------------------------------------------------------------
Random g_random(77);
Tags g_tags;  // of the code that is stepped
Tags g_handler_tags;
Owned g_held[64];     // held by the handler over many steps
Owned g_victims[64];  // made by the code, freed by the handler
size_t g_victim_count = 0;

void refill_victims() {
  while (g_victim_count < std::size(g_victims)) {
    size_t size = g_size < 4096 ? g_size : 16 + g_random.below(2000);
    g_victims[g_victim_count] = take(size, g_tags.next());
    g_victim_count++;
  }
}

void hold(size_t size, const char* where) {
  Owned& o = g_held[g_random.below(std::size(g_held))];
  if (o.address != nullptr)
    give(o, where);
  else
    o = take(size, g_handler_tags.next());
}

void allocating_handler(greg_t*) {
  hold(g_random.percent(98) ? 16 + g_random.below(600) : g_random.log_uniform(1024, 200000),
       "handler");
}
// Large objects cost much to fill, so they are taken at fewer steps; the phase changes from
// operation to operation.
bool turn_of_this_size() { return (g_steps + g_operations) % (1 + g_size / 16384) == 0; }
void same_class_handler(greg_t*) {
  if (turn_of_this_size()) hold(g_size, "handler, same class");
}
// Frees objects of the interrupted code, and sometimes takes an object of the same class
void freeing_handler(greg_t*) {
  if (g_victim_count > 0 && g_random.percent(70)) {
    give(g_victims[--g_victim_count], "handler, object of the interrupted code");
  } else if (turn_of_this_size()) {
    hold(g_size, "handler, same class");
  }
}
void mixed_handler(greg_t*) {  // calloc, realloc, memalign
  size_t size = 1 + g_random.below(900);
  auto* p = static_cast<unsigned char*>(api::calloc(1, size));
  EXPECT(p != nullptr, "calloc in the handler");
  check_zero(p, size, "handler, calloc");
  Owned o{p, size, g_handler_tags.next()};
  fill(o);
  size_t grown = size + g_random.below(900);
  o.address = static_cast<unsigned char*>(api::realloc(o.address, grown));
  EXPECT(o.address != nullptr, "realloc in the handler");
  check_prefix(o, size, "handler, realloc");
  api::free(o.address);
  void* aligned = api::memalign(256, size);
  EXPECT(aligned != nullptr && reinterpret_cast<uintptr_t>(aligned) % 256 == 0,
         "memalign in the handler");
  api::free(aligned);
}

void child_work() {
  for (size_t size : {size_t{24}, g_size, size_t{700}, size_t{5000}, size_t{200000}}) {
    Owned a = take(size, 1), b = take(size, 2);
    give(a, "child");
    give(b, "child");
  }
  for (int i = 0; i < 4 && g_victim_count > 0; i++)
    give(g_victims[--g_victim_count], "child, the parent's object");
  if (g_forks % 8 != 0) return;
  pid_t grandchild = fork();
  if (grandchild == 0) {
    Owned a = take(g_size, 3);
    give(a, "grandchild");
    _exit(0);
  }
  expect_good_end(grandchild, "the grandchild of fork", static_cast<uint64_t>(g_forks));
}
// ---- what is stepped
// -------------------------------------------------------------------------------------------------
constexpr size_t kSizes[] = {32, 200, 1000, 2000, 10000, 40000, 100000, 300000, 600000};
constexpr size_t kMostObjects = 2600;
Owned g_objects[kMostObjects];

void step_malloc(Owned& o, size_t size) {
  void* p = nullptr;
  stepped([&] { p = api::malloc(size); });
  EXPECT(p != nullptr, "malloc(%zu)", size);
  o = {static_cast<unsigned char*>(p), size, g_tags.next()};
  fill(o);
}
void step_calloc(Owned& o, size_t size) {
  void* p = nullptr;
  stepped([&] { p = api::calloc(1, size); });
  EXPECT(p != nullptr, "calloc(%zu)", size);
  o = {static_cast<unsigned char*>(p), size, g_tags.next()};
  check_zero(o.address, size, "calloc");
  fill(o);
}
void step_realloc(Owned& o, size_t size) {
  check(o, "realloc, before");
  void* p = nullptr;
  stepped([&] { p = api::realloc(o.address, size); });
  EXPECT(p != nullptr, "realloc(%zu)", size);
  o.address = static_cast<unsigned char*>(p);
  check_prefix(o, size < o.size ? size : o.size, "realloc, after");
  o.size = size;
  fill(o);
}
void step_free(Owned& o) {
  check(o, "free");
  stepped([&] { api::free(o.address); });
  o = {};
}

void free_all_in_disorder(size_t count) {
  for (size_t i = count; i > 1; i--) {
    size_t j = g_random.below(i);
    Owned swapped = g_objects[i - 1];
    g_objects[i - 1] = g_objects[j];
    g_objects[j] = swapped;
  }
  for (size_t i = 0; i < count; i++) {
    refill_victims();
    step_free(g_objects[i]);
  }
}

// For each size: enough allocations to use up the first slab or run, then frees that empty it, then
// hits.
void suite(double part) {
  for (size_t size : kSizes) {
    stage("size", size);
    g_size = size;
    size_t slab_full = static_cast<size_t>((70000.0 / static_cast<double>(size) + 6) * part);
    size_t count = slab_full < 3 ? 3 : slab_full > kMostObjects ? kMostObjects : slab_full;
    for (size_t i = 0; i < count; i++) {
      refill_victims();
      step_malloc(g_objects[i], size);
    }
    free_all_in_disorder(count);
    size_t few = count / 8 < 4 ? 4 : count / 8;
    if (few > count) few = count;
    if (size > 200000) few = 1;  // copies take a step for each 32 bytes
    for (size_t i = 0; i < few; i++) {
      refill_victims();
      step_calloc(g_objects[i], size);
    }
    for (size_t i = 0; i < few; i++) {
      step_realloc(g_objects[i], size + size / 2);      // grow, mostly move
      step_realloc(g_objects[i], size + size / 2 + 1);  // grow, mostly in place
      step_realloc(g_objects[i], size / 3 + 1);         // shrink
    }
    free_all_in_disorder(few);
    void* p = nullptr;
    stepped([&] { p = api::memalign(size < 4096 ? 256 : 65536, size); });
    EXPECT(p != nullptr, "memalign(%zu)", size);
    stepped([&] { api::free(p); });
  }
}

void drop_all() {
  for (Owned& o : g_held)
    if (o.address != nullptr) give(o, "end, held by the handler");
  while (g_victim_count > 0) give(g_victims[--g_victim_count], "end, victim");
}
void report() {
  drop_all();
  report_steps();
}

void run_suite(Handler handler) {
  double scale = number_from("LANEMALLOC_TEST_SCALE", 1);
  start(handler);
  suite(scale < 1 || handler != allocating_handler ? scale * 0.4 : 1);
  for (double n = 1; n < scale; n++) suite(1);
  report();
}

// Steps the first allocation of the process, so that all code that sets up the allocator once is
// interrupted everywhere.
void first(Handler handler) {
  g_size = 64;
  start(handler);
  Owned o, large;
  step_malloc(o, 64);
  step_malloc(large, 500000);
  step_free(o);
  step_free(large);
  report();
}

// The same in a child that has just been forked from a process that has had other threads.
void first_in_child() {
  run_threads(2, [](int) {
    Tags tags;
    for (int i = 0; i < 1000; i++) {
      Owned o = take(100, tags.next());
      give(o, "thread");
    }
  });
  for (int i = 0; i < 4; i++) {
    pid_t child = fork();
    if (child == 0) {
      arm_watchdog(watchdog_seconds() / 2 + 1);
      first(i % 2 == 0 ? allocating_handler : same_class_handler);
      print(2, "child: %s\n", g_note);
      _exit(0);
    }
    expect_good_end(child, "child", static_cast<uint64_t>(i));
  }
  NOTE("4 children");
}

// Forks at every instruction of hits (at every 7th for the largest size, in another phase each
// round), and in fork_at_all at each 211th of the suite.
void fork_at_hits() {
  g_fork_every = 1;
  for (size_t size : {size_t{32}, size_t{2000}, size_t{300000}}) {
    g_size = size;
    Owned o[8];
    for (Owned& each : o) each = take(size, g_tags.next());
    for (Owned& each : o) give(each, "warm up");
    refill_victims();
    start(forking_handler);
    uint64_t rounds = size == 32 ? scaled(6) : scaled(2);
    for (uint64_t i = 0; i < rounds; i++) {
      stage("fork at each step, size", size);
      g_fork_every = size == 300000 ? 7 : 1;
      g_fork_phase = i;
      step_malloc(o[0], size);
      step_free(o[0]);
    }
  }
  report();
}
void fork_at_all() {
  g_fork_every = static_cast<uint64_t>(211 / number_from("LANEMALLOC_TEST_SCALE", 1));
  if (g_fork_every < 1) g_fork_every = 1;
  start(forking_handler);
  suite(checked_mode() ? 0.05 : 0.2);
  report();
}
void fork_at_first() {
  g_fork_every = 3;
  first(forking_handler);
}

// ---- with a second thread
// -------------------------------------------------------------------------------------------------
// The main thread frees objects of another thread (they are collected and sent in batches), and the
// owner, which is stepped too, takes them back. Both threads have the handler; only one is stepped
// at a time, so they take turns by semaphores.
sem_t g_to_owner, g_to_main;
Owned g_remote[kMostObjects];
size_t g_remote_count = 0;

void remote_frees(Handler handler) {
  sem_init(&g_to_owner, 0, 0);
  sem_init(&g_to_main, 0, 0);
  g_size = 100;
  start(handler);
  auto wait = [](sem_t& semaphore) {
    while (sem_wait(&semaphore) != 0) {
    }
  };
  uint64_t rounds = scaled(1);
  run_threads(
      1,
      [&](int) {
        for (uint64_t round = 0; round < rounds; round++) {
          for (size_t size : {size_t{32}, size_t{1000}, size_t{20000}, size_t{400000}}) {
            stage("owner, size", size);
            g_size = size;
            g_remote_count = size < 200 ? 1000 : size < 2000 ? 200 : 12;
            for (size_t i = 0; i < g_remote_count; i++) {
              refill_victims();
              if (i % 4 == 0)
                step_malloc(g_remote[i], size);
              else
                g_remote[i] = take(size, g_tags.next());
            }
            sem_post(&g_to_main);
            wait(g_to_owner);
          }
        }
      },
      [&] {
        for (uint64_t turn = 0; turn < rounds * 4; turn++) {
          wait(g_to_main);
          stage("main frees, size", g_size);
          for (size_t i = 0; i < g_remote_count; i++) {
            refill_victims();
            step_free(g_remote[i]);
          }
          sem_post(&g_to_owner);
        }
      });
  report();
}

// Steps a thread's first allocation, and its end through the destructors of thread-specific data.
pthread_key_t g_end_key;
void thread_life() {
  start(allocating_handler);
  g_size = 48;
  // A key made now is higher than the allocator's own, so its destructor runs later and ends the
  // stepping.
  pthread_key_create(&g_end_key, [](void*) {
    STEP_END();
    g_operations++;
  });
  uint64_t rounds = scaled(40) + 5;
  for (uint64_t round = 0; round < rounds; round++) {
    stage("round", round);
    g_handler = round % 2 == 0 ? allocating_handler : same_class_handler;
    run_threads(1, [&](int) {
      Owned o[3];
      for (Owned& each : o) step_malloc(each, 48);
      step_free(o[0]);
      step_free(o[1]);
      give(o[2], "thread");
      pthread_setspecific(g_end_key, &g_end_key);
      g_operation = 0;
      stage_end();
      STEP_BEGIN();  // until the destructor
    });
  }
  report();
}
#endif
}  // namespace

// An entry other than `owned` is used only after the process has started a thread.
[[maybe_unused]] void become_threaded() {
  const char* options = getenv("LANEMALLOC_OPTIONS");
  if (options == nullptr || strstr(options, "lanes=") == nullptr) return;
  run_threads(1, [](int) { api::free(api::malloc(32)); });
}

int main(int argc, char** argv) {
#if defined(__x86_64__)
  become_threaded();
  g_child_work = child_work;
  static const Case cases[] = {
      {"first", [] { first(allocating_handler); }},
      {"first-same-class", [] { first(same_class_handler); }},
      {"first-fork", fork_at_first},
      {"first-in-child", first_in_child},
      {"allocating-handler", [] { run_suite(allocating_handler); }},
      {"same-class-handler", [] { run_suite(same_class_handler); }},
      {"freeing-handler", [] { run_suite(freeing_handler); }},
      {"mixed-handler", [] { run_suite(mixed_handler); }},
      {"fork-at-hits", fork_at_hits},
      {"fork-at-all", fork_at_all},
      {"remote-frees", [] { remote_frees(allocating_handler); }},
      {"remote-frees-freeing", [] { remote_frees(freeing_handler); }},
      {"thread-life", thread_life},
  };
#else
  static const Case cases[] = {{"all", [] { SKIP("the trap flag is x86-64's"); }}};
#endif
  return run_cases("single_step", argc, argv, cases);
}
