// Contention: each case makes one kind of it until it is seen, and looks which other cells have
// seen any.
#include "work.h"

static atomic_int stop;

static void* lane_fight(void* nothing) {
  while (!stop) {
    void* p[20];
    for (int i = 0; i < 20; i++) p[i] = hide(malloc(64));
    for (int i = 0; i < 20; i++) free(p[i]);
  }
  return nothing;
}
static void* depot_fight(void* nothing) {
  void* p[400] = {0};
  while (!stop) {
    for (int i = 0; i < 400; i++) p[i] = hide(malloc(2048));
    for (int i = 0; i < 400; i++)
      if (i % 8 != 0) free(p[i]);
    malloc_trim(0);
    for (int i = 0; i < 400; i += 8) free(p[i]);
  }
  return nothing;
}
static void* runs_fight(void* nothing) {
  while (!stop) free(hide(malloc(700 << 10)));
  return nothing;
}
// Pieces larger than what is taken in advance; no thread touches them, and they are kept.
static void* growth_fight(void* nothing) {
  for (int i = 0; i < 100; i++) CHECK(hide(malloc((size_t)192 << 20)) != NULL);
  return nothing;
}
static lane_pool* pool;
static void* pool_fight(void* nothing) {
  while (!stop) {
    void* p = lane_pool_alloc_with(pool, LANE_POOL_WAIT);
    if (p != NULL) lane_pool_free(pool, p);
  }
  return nothing;
}
static void* one_pair(void* nothing) {
  free(hide(malloc(50)));
  return nothing;
}
static void* lives_short(void* nothing) {
  while (!stop) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) REQUIRE(pthread_create(&threads[i], NULL, one_pair, NULL) == 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
  }
  return nothing;
}
// Runs until `wanted` waits were counted at the cell `name`. The cells in `spared` may have at most
// a twentieth of these waits: threads that begin may meet there.
static void fight(void* (*fighter)(void*), int n, const char* name, uint64_t wanted,
                  const char* spared) {
  pthread_t threads[16];
  look(&before);
  stop = 0;
  for (int i = 0; i < n; i++) REQUIRE(pthread_create(&threads[i], NULL, fighter, NULL) == 0);
  const double end = seconds() + 60;
  do usleep(20000), look(&now);
  while (cell(&now, name)->waits < cell(&before, name)->waits + wanted && seconds() < end);
  stop = 1;
  for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
  look(&now);
  check_cells(&now);
  const Cell *a = cell(&before, name), *b = cell(&now, name);
  const uint64_t waits = b->waits - a->waits, failures = b->failures - a->failures;
  CHECK_MSG(waits >= wanted && failures >= waits, "%s: %lu waits, %lu failures", name, waits,
            failures);
  CHECK(b->count > a->count && b->waited_ns > a->waited_ns);
  char list[200];
  strcpy(list, spared);
  for (const char* each = strtok(list, ","); each != NULL; each = strtok(NULL, ",")) {
    const uint64_t others = cell(&now, each)->waits - cell(&before, each)->waits;
    CHECK_MSG(others <= waits / 20, "%lu waits at %s, %lu at %s", others, each, waits, name);
  }
}
CASE(one_thread_meets_nobody) {
  for (int round = 0; round < 3; round++) {
    work((void*)(size_t)5000);
    malloc_trim(0);
  }
  look(&now);
  for (int i = 0; i < LANE_STATS_CELLS && now.contention[i].name[0] != '\0'; i++) {
    const Cell* c = &now.contention[i];
    CHECK_MSG(c->failures == 0 && c->waits == 0 && c->waited_ns == 0, "%s: %lu failures", c->name,
              c->failures);
  }
  CHECK_MSG(now.rebinds == 0 && now.failed_entries == 0 && now.interruptions == 0, "%lu rebinds",
            now.rebinds);
}
CASE(a_shared_lane_is_waited_for) {
  CHECK(lane_set("decay_ms", "-1") == 0 && lane_set("lanes", "shared:1") == 0);
  fight(lane_fight, kThreads, "lane", 100, "depot,growth,runs,readers,pools,budgets");
  CHECK(now.lane_waits >= 20 && now.failed_entries >= 20);
}
CASE(the_depot_is_waited_for) {
  CHECK(lane_set("decay_ms", "-1") == 0 && lane_set("lanes", "owned") == 0);
  fight(depot_fight, 6, "depot", 5, "readers,pools,budgets");
}
CASE(the_run_allocator_is_waited_for) {
  CHECK(lane_set("decay_ms", "-1") == 0 && lane_set("lanes", "owned") == 0);
  fight(runs_fight, kThreads, "runs", 100, "depot,readers,pools,budgets");
}
// A thread that finds the lock taken takes fresh addresses without it. So there are failures, but
// no waits while there is memory. A process has addresses for one round, so each round has its own
// process, until threads have met in one.
CASE(growth_is_contended_and_nobody_waits) {
  enum { kNobodyMet = 77 };
  CHECK(lane_set("decay_ms", "-1") == 0 && lane_set("lanes", "owned") == 0);
  look(&before);
  int status;
  const double end = seconds() + 60;
  do {
    const pid_t child = fork();
    if (child == 0) {
      in_threads(kThreads, growth_fight, NULL), look(&now);
      CHECK(cell(&now, "growth")->waits == 0);
      CHECK(cell(&now, "growth")->count > cell(&before, "growth")->count + 5);
      check_cells(&now);
      if (test_failures == 0 && cell(&now, "growth")->failures == 0) _exit(kNobodyMet);
      CHECK(cell(&now, "fresh blocks")->count > cell(&before, "fresh blocks")->count + 5);
      _exit(test_failures != 0);
    }
    status = status_of(child);
  } while (status == kNobodyMet && seconds() < end);
  CHECK_MSG(status == 0, "status %d", status);
}
CASE(a_pool_at_its_limit_is_waited_for) {
  CHECK(lane_set("decay_ms", "-1") == 0);
  const struct lane_pool_options options = {.name = "tight", .object_size = 64, .limit = 2};
  REQUIRE((pool = lane_pool_create(&options)) != NULL);
  fight(pool_fight, 6, "pools", 100, "growth,readers");
  // What a lane cannot keep goes to the depot and comes back, so some threads meet there.
  CHECK(cell(&now, "depot")->waits < cell(&now, "pools")->waits / 2);
  CHECK(lane_pool_destroy(pool) == 0);
}
CASE(idle_lanes_are_counted_as_threads_come_and_go) {
  CHECK(lane_set("lanes", "owned") == 0);
  look(&before);
  pthread_t threads[4];
  stop = 0;
  for (int i = 0; i < 4; i++) REQUIRE(pthread_create(&threads[i], NULL, lives_short, NULL) == 0);
  usleep(500000);
  stop = 1;
  for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
  look(&now);
  check_cells(&now);
  CHECK(cell(&now, "idle lanes")->count > cell(&before, "idle lanes")->count + 50);
  CHECK(cell(&now, "idle lanes")->waits == 0 && cell(&now, "fresh blocks")->waits == 0);
  CHECK(cell(&now, "pools")->count == 0 && cell(&now, "budgets")->count == 0);
}
