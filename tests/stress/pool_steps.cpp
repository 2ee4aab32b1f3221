// Runs a signal handler at every instruction of a pool's allocation, free, batch and reclaim, in
// line and out of line. The handler allocates and frees in the same pool, frees objects of the
// interrupted code, or forks. Checked: contents, what init has made, limits, and that nothing is
// lost: at the end every object is free, and every function was called the right number of times.
// Run by: tests/stress/run.sh. x86-64 only; skipped elsewhere. With LANEMALLOC_TEST_FREE_TWICE=1
// the handler gives back an object that the code gives back too; then the program must fail.
#include <lanemalloc/pool.h>

#include "stepping.h"
#include "stress.h"

namespace {
using namespace stress;

#if defined(__x86_64__)
constexpr uint64_t kMade = 0x6D616465;
constexpr uint64_t kNone = ~uint64_t{0};

struct Subject {
  const char* name;
  size_t size;
  uint64_t limit, reserve;
  bool has_functions, is_imported;
  lane_pool* pool;
  uint64_t in_use, inits, finis, ctors, dtors;
};
Subject g_subjects[] = {
    {"plain", 32, 0, 0, false, false, nullptr, 0, 0, 0, 0, 0},
    {"large", 20000, 0, 0, false, false, nullptr, 0, 0, 0, 0, 0},
    {"functions", 200, 0, 0, true, false, nullptr, 0, 0, 0, 0, 0},
    {"tight", 64, 60, 0, false, false, nullptr, 0, 0, 0, 0, 0},
    {"all", 96, 80, 5, true, false, nullptr, 0, 0, 0, 0, 0},
    {"imported", 80, 90, 0, false, true, nullptr, 0, 0, 0, 0, 0},
};
Subject* g_subject;

// Only one thread runs at a time. But a handler may come between the load and the store of a
// counter, so counting is atomic.
void count(uint64_t& counter, uint64_t n = 1) { __atomic_fetch_add(&counter, n, __ATOMIC_RELAXED); }

int init(void* object, size_t, void* argument) {
  *static_cast<uint64_t*>(object) = kMade;
  count(static_cast<Subject*>(argument)->inits);
  return 0;
}
void check_made(void* object, const char* where) {
  EXPECT(*static_cast<uint64_t*>(object) == kMade, "%s of %p: what init has made is gone", where,
         object);
}
void fini(void* object, size_t, void* argument) {
  check_made(object, "fini");
  *static_cast<uint64_t*>(object) = 0;
  count(static_cast<Subject*>(argument)->finis);
}
int ctor(void* object, size_t, void* argument) {
  check_made(object, "ctor");
  count(static_cast<Subject*>(argument)->ctors);
  return 0;
}
void dtor(void* object, size_t, void* argument) {
  check_made(object, "dtor");
  count(static_cast<Subject*>(argument)->dtors);
}

// A source that only bumps a pointer; objects that come back are only counted.
unsigned char* g_source;
std::atomic<size_t> g_source_used{0};
size_t import_objects(void* argument, void** objects, size_t n) {
  for (size_t i = 0; i < n; i++) objects[i] = g_source + g_source_used.fetch_add(96);
  count(static_cast<Subject*>(argument)->inits, n);
  return n;
}
void release_objects(void* argument, void**, size_t n) {
  count(static_cast<Subject*>(argument)->finis, n);
}

void make_pools() {
  g_source = static_cast<unsigned char*>(map_pages(kGiB));
  for (Subject& s : g_subjects) {
    lane_pool_options options{};
    options.name = s.name;
    options.object_size = s.size;
    options.limit = s.limit;
    options.reserve = s.reserve;
    options.argument = options.source = &s;
    if (s.has_functions) {
      options.init = init;
      options.fini = fini;
      options.ctor = ctor;
      options.dtor = dtor;
    }
    if (s.is_imported) {
      options.import_objects = import_objects;
      options.release_objects = release_objects;
    }
    s.pool = lane_pool_create(&options);
    EXPECT(s.pool != nullptr, "lane_pool_create: %s", strerror(errno));
  }
  g_subject = &g_subjects[0];
}

// What init has made lies in the first word.
size_t head_of(const Subject& s) { return s.has_functions ? 8 : 0; }
// Counts and fills an object that the pool has just handed out. Null, which only a pool with a
// limit may return, becomes an empty Owned.
Owned own(void* object, uint64_t tag) {
  Subject& s = *g_subject;
  if (object == nullptr) {
    EXPECT(s.limit != 0, "no object of pool %s", s.name);
    return {};
  }
  const uint64_t in_use = __atomic_add_fetch(&s.in_use, 1, __ATOMIC_RELAXED);
  EXPECT(s.limit == 0 || in_use <= s.limit, "%llu objects in use of pool %s", llu(in_use), s.name);
  Owned o{static_cast<unsigned char*>(object) + head_of(s), s.size - head_of(s), tag};
  fill(o);
  return o;
}
void* disown(const Owned& o, const char* where) {
  check(o, where);
  count(g_subject->in_use, kNone);
  return o.address - head_of(*g_subject);
}
Owned pool_take(uint64_t tag) { return own(lane_pool_alloc(g_subject->pool), tag); }
void pool_give(Owned& o, const char* where) {
  void* object = disown(o, where);
  o = {};
  lane_pool_free(g_subject->pool, object);
}

// ---- handlers
// -------------------------------------------------------------------------------------------------
Random g_random(78);
Tags g_tags, g_handler_tags;
constexpr size_t kObjects = 400;
Owned g_objects[kObjects];
Owned g_held[24];     // held by the handler over many steps
Owned g_victims[24];  // made by the code, freed by the handler
size_t g_victim_count = 0;
const Owned* g_stepped = nullptr;  // the object that the code is giving back
bool g_free_twice = false;

void refill_victims() {
  while (g_victim_count < std::size(g_victims)) {
    const Owned o = pool_take(g_tags.next());
    if (o.address == nullptr) return;
    g_victims[g_victim_count++] = o;
  }
}
void hold() {
  Owned& o = g_held[g_random.below(std::size(g_held))];
  if (o.address != nullptr) {
    pool_give(o, "handler");
  } else {
    o = pool_take(g_handler_tags.next());
  }
}
// Large objects cost much to fill, and a thread at the limit looks into every lane. For such pools
// the handler acts only at some of the steps; the phase changes.
bool is_turn() {
  const uint64_t turns = 1 + g_subject->size / 2048 + (g_subject->limit != 0 ? 10 : 0);
  return (g_steps + g_operations) % turns == 0;
}
void same_pool_handler(greg_t*) {
  if (is_turn()) hold();
  if (g_free_twice && g_stepped != nullptr) {
    lane_pool_free(g_subject->pool, g_stepped->address - head_of(*g_subject));
    g_stepped = nullptr;
  }
}
void freeing_handler(greg_t*) {
  if (g_victim_count > 0 && g_random.percent(60)) {
    pool_give(g_victims[--g_victim_count], "handler, object of the interrupted code");
  } else if (is_turn()) {
    hold();
  }
}

void drop_all() {
  for (Owned& o : g_held)
    if (o.address != nullptr) pool_give(o, "end, held by the handler");
  while (g_victim_count > 0) pool_give(g_victims[--g_victim_count], "end, victim");
}

// The child has the pool's objects as they were. At a limit it may be refused: the handler cannot
// take what the interrupted code has in hand, and if the thread had only just got a lock, the child
// gives up that lock and what it guards.
void child_work() {
  Owned o = pool_take(1);
  if (o.address != nullptr) pool_give(o, "child");
  for (int i = 0; i < 3 && g_victim_count > 0; i++) {
    pool_give(g_victims[--g_victim_count], "child, the parent's object");
    // A freed object goes into the reserve first
    o = own(lane_pool_alloc_with(g_subject->pool, LANE_POOL_USE_RESERVE), 2);
    if (o.address != nullptr) pool_give(o, "child");
  }
}

// ---- what is stepped
// -------------------------------------------------------------------------------------------------
void step_alloc(Owned& o, int flags) {
  void* object = nullptr;
  if (flags == 0) {
    stepped([&] { object = lane_pool_alloc(g_subject->pool); });
  } else {
    stepped([&] { object = lane_pool_alloc_with(g_subject->pool, flags); });
  }
  o = own(object, g_tags.next());
}
void step_free(Owned& o) {
  // Its allocation was refused: the handler had just taken the object that was found for it
  if (o.address == nullptr) return;
  void* object = disown(o, "free");
  g_stepped = &o;
  stepped([&] { lane_pool_free(g_subject->pool, object); });
  g_stepped = nullptr;
  o = {};
}
void free_in_disorder(size_t n) {
  for (size_t i = n; i > 1; i--) {
    const size_t j = g_random.below(i);
    const Owned other = g_objects[i - 1];
    g_objects[i - 1] = g_objects[j];
    g_objects[j] = other;
  }
  for (size_t i = 0; i < n; i++) {
    refill_victims();
    step_free(g_objects[i]);
  }
}
void step_batch() {
  void* objects[20];
  Owned owned[20];
  size_t n = 0;
  stepped([&] { n = lane_pool_alloc_batch(g_subject->pool, objects, std::size(objects), 0); });
  for (size_t i = 0; i < n; i++) owned[i] = own(objects[i], g_tags.next());
  for (size_t i = 0; i < n; i++) objects[i] = disown(owned[i], "batch");
  stepped([&] { lane_pool_free_batch(g_subject->pool, objects, n); });
}
void suite(double part) {
  for (Subject& subject : g_subjects) {
    g_subject = &subject;
    g_size = subject.size;
    stage(subject.name);
    size_t n = static_cast<size_t>(part * (70000.0 / static_cast<double>(subject.size) + 6));
    const size_t most = subject.limit != 0 ? 100 : kObjects;
    n = n < 4 ? 4 : n > most ? most : n;
    for (size_t i = 0; i < n; i++) {
      refill_victims();
      step_alloc(g_objects[i], subject.reserve != 0 && i % 2 != 0 ? LANE_POOL_USE_RESERVE : 0);
    }
    free_in_disorder(n);
    for (size_t i = 0; i < 4; i++)
      step_alloc(g_objects[i], subject.has_functions ? 0 : LANE_POOL_ZERO);
    free_in_disorder(4);
    step_batch();
    const auto level =
        // Neighboring pools get different levels
        static_cast<lane_reclaim>((&subject - g_subjects) % 3);
    stepped([&] { lane_pool_reclaim(subject.pool, level); });
    drop_all();
  }
}

void finish() {
  drop_all();
  for (Subject& s : g_subjects) {
    lane_pool_statistics statistics;
    lane_pool_get_statistics(s.pool, &statistics);
    EXPECT(s.in_use == 0 && statistics.live == 0 && lane_pool_destroy(s.pool) == 0,
           "pool %s: %llu live", s.name, llu(statistics.live));
    EXPECT(s.inits == s.finis && s.ctors == s.dtors,
           "pool %s: init %llu, fini %llu, ctor %llu, dtor %llu", s.name, llu(s.inits),
           llu(s.finis), llu(s.ctors), llu(s.dtors));
  }
  report_steps();
}

void run_suite(Handler handler) {
  make_pools();
  start(handler);
  suite(number_from("LANEMALLOC_TEST_SCALE", 1) * 0.2);
  finish();
}

// Steps the first use of a pool in the process, and a thread's first use of a lane.
void first(Handler handler) {
  make_pools();
  start(handler);
  for (Subject& subject : g_subjects) {
    g_subject = &subject;
    g_size = subject.size;
    step_alloc(g_objects[0], 0);
    step_free(g_objects[0]);
    run_threads(1, [&](int) {
      step_alloc(g_objects[0], 0);
      step_alloc(g_objects[1], 0);
      step_free(g_objects[1]);
    });
    step_free(g_objects[0]);
    drop_all();
  }
  finish();
}

void fork_at_hits() {
  make_pools();
  for (Subject& subject : g_subjects) {
    stage(subject.name);
    g_subject = &subject;
    g_size = subject.size;
    Owned o[8];
    for (Owned& each : o) each = pool_take(g_tags.next());
    for (Owned& each : o) pool_give(each, "warm up");
    refill_victims();
    start(forking_handler);
    const uint64_t rounds = scaled(3);
    for (uint64_t i = 0; i < rounds; i++) {
      g_fork_every = subject.size > 1000 ? 5 : 1;
      g_fork_phase = i;
      step_alloc(o[0], 0);
      step_free(o[0]);
    }
    drop_all();
  }
  finish();
}
void fork_at_all() {
  make_pools();
  g_fork_every = static_cast<uint64_t>(307 / number_from("LANEMALLOC_TEST_SCALE", 1)) + 1;
  start(forking_handler);
  suite(0.1);
  finish();
}

// Frees objects that another thread has taken. The slabs still belong to that thread's lane.
void remote_frees() {
  make_pools();
  for (Subject& subject : g_subjects) {
    stage(subject.name);
    g_subject = &subject;
    g_size = subject.size;
    const size_t n = subject.size > 1000 ? 8 : subject.limit != 0 ? 50 : 300;
    run_threads(1, [&](int) {
      for (size_t i = 0; i < n; i++) g_objects[i] = pool_take(g_tags.next());
    });
    start(freeing_handler);
    free_in_disorder(n);
    for (size_t i = 0; i < n / 4; i++) step_alloc(g_objects[i], 0);
    free_in_disorder(n / 4);
    drop_all();
  }
  finish();
}
#endif
}  // namespace

int main(int argc, char** argv) {
#if defined(__x86_64__)
  g_child_work = child_work;
  g_free_twice = getenv("LANEMALLOC_TEST_FREE_TWICE") != nullptr;
  static const Case cases[] = {
      {"first", [] { first(same_pool_handler); }},
      {"same-pool-handler", [] { run_suite(same_pool_handler); }},
      {"freeing-handler", [] { run_suite(freeing_handler); }},
      {"fork-at-hits", fork_at_hits},
      {"fork-at-all", fork_at_all},
      {"remote-frees", remote_frees},
  };
#else
  static const Case cases[] = {{"all", [] { SKIP("the trap flag is x86-64's"); }}};
#endif
  return run_cases("pool_steps", argc, argv, cases);
}
