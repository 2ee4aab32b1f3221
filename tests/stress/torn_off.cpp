// A handler leaves malloc, calloc, realloc, free or malloc_trim by a long jump, at each of their
// instructions: the trap flag makes the processor raise SIGTRAP after each one. Afterwards the
// thread ends, or first goes on allocating. Checked: a later call, in this thread or another one,
// gets an object that no other code has, and is served soon; the objects that other threads had
// before are as those threads left them. The call that a thread was torn out of may be lost, with
// the object that it was about; tests/borders/threads_end.c checks that no more is lost.
// Run by: tests/stress/run.sh. x86-64 only; skipped elsewhere.
#include <semaphore.h>
#include <setjmp.h>

#include <algorithm>
#include <utility>

#include "stepping.h"
#include "stress.h"

namespace {
using namespace stress;

#if defined(__x86_64__)
Random g_random(91);
Tags g_tags;
constexpr size_t kSizes[] = {24, 100, 300, 2000, 9000, 40000, 70000, 600000};
Owned g_kept[160];    // of the main thread; they live through many jumps
Owned g_warm[40];     // of the thread that is torn off
Owned g_foreign[80];  // of the main thread, freed by the other thread

sigjmp_buf g_out;
uint64_t g_leave_at = 0;  // at this step of the operation
uint64_t g_left = 0;      // jumps

// While the library has all signals blocked, no handler can come.
void leaving_handler(greg_t*) {
  if (g_operation < g_leave_at || g_blocked) return;
  g_left++;
  siglongjmp(g_out, 1);
}

size_t any_size() { return kSizes[g_random.below(std::size(kSizes))] - g_random.below(8); }

void exchange(Owned& o, const char* where) {
  if (o.address != nullptr) give(o, where);
  o = take(any_size(), g_tags.next());
}

// ---- what is left half done
// -------------------------------------------------------------------------------------------------
// prepare() runs in the thread before the thread is stepped, and foreign() in the main thread
// before prepare().
struct Operation {
  const char* name;
  void (*foreign)();
  void (*prepare)();
  void (*run)();
};
void nothing() {}
void* g_result = nullptr;  // keeps the compiler from seeing through
void warm_up() {
  for (Owned& o : g_warm) o = take(any_size(), g_tags.next());
}
template <size_t kSize>
void foreign_objects() {
  for (Owned& o : g_foreign) o = take(kSize, g_tags.next());
}
// All but four of the objects are on their way already; the next frees send the batch.
void free_most_foreign() {
  warm_up();
  for (size_t i = 4; i < 66; i++) give(g_foreign[i], "foreign");
}
template <size_t kSize>
void allocate() {
  g_result = api::malloc(kSize);
}
// From now on the test does not have the object any more, whether it is freed or not.
void* take_out(Owned& o) { return std::exchange(o, Owned{}).address; }
template <size_t kSize>
void prepare_one() {
  warm_up();
  give(g_warm[0], "warm");
  g_warm[0] = take(kSize, g_tags.next());
}
void free_one() { api::free(take_out(g_warm[0])); }
void free_four_foreign() {
  for (size_t i = 0; i < 4; i++) api::free(take_out(g_foreign[i]));
}
template <size_t kSize>
void resize() {
  g_result = api::realloc(take_out(g_warm[0]), kSize);
}
void slabs_into_the_depot() {
  static Owned objects[600];
  for (Owned& o : objects) o = take(300, g_tags.next());
  for (size_t i = 0; i < std::size(objects); i++)
    if (i % 5 != 0) give(objects[i], "for the depot");
  malloc_trim(0);
  for (size_t i = 0; i < std::size(objects); i += 5) {
    if (g_foreign[i / 5 % std::size(g_foreign)].address != nullptr)
      give(g_foreign[i / 5 % std::size(g_foreign)], "for the depot");
    g_foreign[i / 5 % std::size(g_foreign)] = objects[i];
    objects[i] = {};
  }
}

constexpr Operation kOperations[] = {
    {"the first malloc", nothing, nothing, allocate<100>},
    {"malloc(100)", nothing, warm_up, allocate<100>},
    {"malloc of a class that has no slab", nothing, warm_up, allocate<5000>},
    {"malloc from the depot", slabs_into_the_depot, warm_up, allocate<300>},
    {"free", nothing, prepare_one<300>, free_one},
    {"free of others' objects", foreign_objects<256>, free_most_foreign, free_four_foreign},
    {"free of the depot's objects", slabs_into_the_depot, free_most_foreign, free_four_foreign},
    {"malloc(600000)", nothing, warm_up, allocate<600000>},
    {"malloc(3 MB)", nothing, warm_up, allocate<3000000>},
    {"free of 700000", nothing, prepare_one<700000>, free_one},
    {"realloc of 100", nothing, prepare_one<100>, resize<3000>},
    {"realloc of 600000", nothing, prepare_one<600000>, resize<700000>},
    {"realloc of 2 MB", nothing, prepare_one<2000000>, resize<4000000>},
    {"realloc that shrinks", nothing, prepare_one<900000>, resize<600000>},
    {"calloc", nothing, warm_up, [] { g_result = api::calloc(1, 2500); }},
    {"memalign", nothing, warm_up, [] { g_result = api::memalign(65536, 600000); }},
    {"malloc_trim", nothing, warm_up, [] { malloc_trim(0); }},
};

// ---- jumps
// -------------------------------------------------------------------------------------------------
sem_t g_has_left, g_may_end;

void wait(sem_t& semaphore) {
  while (sem_wait(&semaphore) != 0) {
  }
}

// Runs the operation in a thread of its own, which leaves it at step `at`. Returns true if the
// operation ended before that step.
bool tear_off(const Operation& operation, uint64_t at, bool goes_on, bool meanwhile) {
  static volatile bool ended;
  ended = false;
  g_leave_at = at;
  operation.foreign();
  const auto use = [](int n, const char* where) {
    for (int i = 0; i < n; i++) exchange(g_kept[g_random.below(std::size(g_kept))], where);
  };
  run_threads(
      1,
      [&](int) {
        operation.prepare();
        g_operation = 0;
        if (sigsetjmp(g_out, 1) == 0) {
          STEP_BEGIN();
          operation.run();
          STEP_END();
          ended = true;
        }
        remove_breakpoint();
        g_blocked = false;
        if (ended) api::free(g_result);
        for (int i = 0; goes_on && i < 20; i++)
          exchange(g_warm[g_random.below(std::size(g_warm))], "goes on");
        if (!meanwhile) return;
        sem_post(&g_has_left);
        wait(g_may_end);
      },
      [&] {
        if (!meanwhile) return;
        wait(g_has_left);
        use(20, "meanwhile");
        sem_post(&g_may_end);
      });
  g_result = nullptr;
  use(20, "afterwards");
  for (Owned& o : g_warm)
    if (o.address != nullptr) give(o, "of the thread that was torn off");
  for (Owned& o : g_foreign)
    if (o.address != nullptr) give(o, "not freed by it");
  return ended;
}

// Jumps at `most` steps of each operation, spread evenly. A long operation (malloc_trim) has fewer
// jumps, since it is stepped from its start up to each of them.
constexpr uint64_t kStepsOfAJump = 10'000;  // on average, at most
void tear_off_everywhere(uint64_t most, bool goes_on, bool meanwhile) {
  sem_init(&g_has_left, 0, 0);
  sem_init(&g_may_end, 0, 0);
  for (Owned& o : g_kept) o = take(any_size(), g_tags.next());
  start(leaving_handler);
  uint64_t in_all = 0;
  for (const Operation& operation : kOperations) {
    stage(operation.name);
    EXPECT(tear_off(operation, kMostSteps, false, false), "%s does not end", operation.name);
    const uint64_t steps = g_operation;
    in_all += steps;
    const uint64_t jumps =
        std::max<uint64_t>(1, std::min(most, most * kStepsOfAJump / (steps / 2 + 1)));
    const uint64_t every = std::max<uint64_t>(1, steps / jumps);
    for (uint64_t at = 1 + g_random.below(every); at <= steps; at += every) {
      stage(operation.name, at);
      tear_off(operation, at, goes_on, meanwhile);
    }
  }
  for (Owned& o : g_kept) give(o, "at the end");
  EXPECT(g_left > std::size(kOperations) / 2, "only %llu jumps", llu(g_left));
  NOTE("%llu jumps out of %zu operations of %llu steps", llu(g_left), std::size(kOperations),
       llu(in_all));
}
#endif
}  // namespace

int main(int argc, char** argv) {
#if defined(__x86_64__)
  static const Case cases[] = {
      {"ends", [] { tear_off_everywhere(scaled(80), false, false); }},
      {"goes-on", [] { tear_off_everywhere(scaled(60), true, false); }},
      // If the thread holds a lock, other threads wait a second for it, once.
      {"goes-on-beside-others", [] { tear_off_everywhere(scaled(8), true, true); }},
  };
#else
  static const Case cases[] = {{"all", [] { SKIP("the trap flag is x86-64's"); }}};
#endif
  return run_cases("torn_off", argc, argv, cases);
}
