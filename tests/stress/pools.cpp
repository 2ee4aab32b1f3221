// Pools at their limit. 32 threads wait in line or are refused, free each other's objects, exit,
// fork, and are interrupted by handlers that use the same pools. Meanwhile all levels of reclaim go
// on. Checked: at no time are more objects in use than the limit; contents, and what init has made;
// every thread that waits comes through; the exact counts of init, fini, ctor and dtor at the end.
// Run by: tests/stress/run.sh; also against the prefixed library under sanitizers. Two switches
// make it fail: LANEMALLOC_TEST_OVER_LIMIT=1 (a pool may have one object more than the test
// allows), LANEMALLOC_TEST_FREE_EARLY=1 (an object is used after it was freed).
#include <lanemalloc/pool.h>
#include <sys/time.h>

#include "stress.h"

namespace {
using namespace stress;

constexpr int kThreads = 32;
constexpr size_t kSize = 120;
constexpr unsigned kMade = 0x6D616465;

bool g_over_limit, g_free_early;

// What a pool did, by its own count and by the test's.
struct Subject {
  lane_pool* pool = nullptr;
  uint64_t limit = 0;
  bool has_functions = false, is_imported = false;
  std::atomic<uint64_t> in_use{0}, most{0};
  std::atomic<uint64_t> taken{0}, given{0}, refused{0};
  std::atomic<uint64_t> inits{0}, finis{0}, ctors{0}, dtors{0};

  // In an object of a pool with functions, the first word is what init has made, and the second is
  // 1 while the program has the object.
  static constexpr size_t kHead = 16;
  static uint64_t* words(void* object) { return static_cast<uint64_t*>(object); }
  static Subject& of(void* argument) { return *static_cast<Subject*>(argument); }
  static int init(void* object, size_t, void* argument) {
    words(object)[0] = kMade;
    words(object)[1] = 0;
    of(argument).inits.fetch_add(1, std::memory_order_relaxed);
    return 0;
  }
  static void fini(void* object, size_t, void* argument) {
    EXPECT(words(object)[0] == kMade && words(object)[1] == 0, "fini of %p: %llx, %llx", object,
           llu(words(object)[0]), llu(words(object)[1]));
    words(object)[0] = 0;
    of(argument).finis.fetch_add(1, std::memory_order_relaxed);
  }
  static int ctor(void* object, size_t, void* argument) {
    EXPECT(words(object)[0] == kMade && words(object)[1] == 0, "ctor of %p: %llx, %llx", object,
           llu(words(object)[0]), llu(words(object)[1]));
    words(object)[1] = 1;
    of(argument).ctors.fetch_add(1, std::memory_order_relaxed);
    return 0;
  }
  static void dtor(void* object, size_t, void* argument) {
    EXPECT(words(object)[0] == kMade && words(object)[1] == 1, "dtor of %p: %llx, %llx", object,
           llu(words(object)[0]), llu(words(object)[1]));
    words(object)[1] = 0;
    of(argument).dtors.fetch_add(1, std::memory_order_relaxed);
  }

  // A source of objects, each of which exists once. `inits` and `finis` count the objects that it
  // has given out and got back.
  static constexpr size_t kSource = 4096;
  static inline unsigned char* g_memory;
  static inline std::atomic<bool> g_given[kSource];
  static size_t import_objects(void* source, void** objects, size_t n) {
    size_t had = 0;
    for (size_t i = 0; i < kSource && had < n; i++)
      if (!g_given[i].load(std::memory_order_relaxed) && !g_given[i].exchange(true))
        objects[had++] = g_memory + i * kSize;
    of(source).inits.fetch_add(had);
    return had;
  }
  static void release_objects(void* source, void** objects, size_t n) {
    for (size_t i = 0; i < n; i++) {
      const size_t at =
          static_cast<size_t>(static_cast<unsigned char*>(objects[i]) - g_memory) / kSize;
      EXPECT(at < kSource && g_given[at].exchange(false), "%p was not the pool's to release",
             objects[i]);
    }
    of(source).finis.fetch_add(n);
  }

  void start(const char* name, uint64_t most_objects, uint64_t reserve) {
    limit = most_objects;
    lane_pool_options options{};
    options.name = name;
    options.object_size = kSize;
    options.limit = limit + (g_over_limit ? 1 : 0);
    options.reserve = reserve;
    options.argument = this;
    if (is_imported) {
      g_memory = static_cast<unsigned char*>(map_pages(kSource * kSize));
      options.import_objects = import_objects;
      options.release_objects = release_objects;
      options.source = this;
    }
    if (has_functions) {
      options.init = init;
      options.fini = fini;
      options.ctor = ctor;
      options.dtor = dtor;
    }
    pool = lane_pool_create(&options);
    EXPECT(pool != nullptr, "lane_pool_create: %s", strerror(errno));
  }

  // Counts and fills an object that has just been handed out.
  Owned own(void* object, uint64_t tag) {
    const uint64_t now = in_use.fetch_add(1) + 1;
    EXPECT(now <= limit, "%llu objects in use at a limit of %llu", llu(now), llu(limit));
    uint64_t before = most.load(std::memory_order_relaxed);
    while (before < now && !most.compare_exchange_weak(before, now)) {
    }
    taken.fetch_add(1, std::memory_order_relaxed);
    const size_t head = has_functions ? kHead : 0;
    Owned o{static_cast<unsigned char*>(object) + head, kSize - head, tag};
    fill(o);
    return o;
  }
  // Returns an empty Owned if the pool refuses.
  Owned take(int flags, uint64_t tag) {
    void* object = flags == 0 ? lane_pool_alloc(pool) : lane_pool_alloc_with(pool, flags);
    if (object != nullptr) return own(object, tag);
    EXPECT(errno == ENOMEM && (flags & LANE_POOL_WAIT) == 0, "flags %d: %s", flags,
           strerror(errno));
    refused.fetch_add(1, std::memory_order_relaxed);
    return {};
  }
  void* disown(Owned& o, const char* where) {
    void* object = o.address - (has_functions ? kHead : 0);
    if (g_free_early) lane_pool_free(pool, object);
    check(o, where);
    in_use.fetch_sub(1);
    given.fetch_add(1, std::memory_order_relaxed);
    o = {};
    return object;
  }
  void give(Owned& o, const char* where) {
    void* object = disown(o, where);
    if (!g_free_early) lane_pool_free(pool, object);
  }

  // Called when no thread has any object.
  void finish(const char* name) {
    lane_pool_statistics s;
    lane_pool_get_statistics(pool, &s);
    EXPECT(in_use == 0 && taken == given && s.live == 0, "%s: %llu live, %llu in use", name,
           llu(s.live), llu(in_use));
    EXPECT(lane_pool_destroy(pool) == 0, "%s: objects in use at the end", name);
    const bool used = !has_functions || (ctors == taken && dtors == given);
    EXPECT(inits == finis && used, "%s: init %llu, fini %llu, ctor %llu, dtor %llu of %llu", name,
           llu(inits), llu(finis), llu(ctors), llu(dtors), llu(taken));
  }
};

// Three pools: a plain one, one with functions, and one with a source of its own. Hits would serve
// the plain one in line if it had no limit, but here it has one.
enum { kPlain, kElaborate, kImported, kPools };
const char* const kNames[kPools] = {"plain", "elaborate", "imported"};
Subject g_subjects[kPools];

// Here threads leave objects for other threads, at most kSlots for each pool. The limit is higher.
// So a thread that waits with nothing in its hands waits for a thread that goes on.
constexpr size_t kSlots = 24;
SharedSlot g_slots[kPools][kSlots];

void start_pools(uint64_t limit, uint64_t reserve) {
  g_over_limit = getenv("LANEMALLOC_TEST_OVER_LIMIT") != nullptr;
  g_free_early = getenv("LANEMALLOC_TEST_FREE_EARLY") != nullptr;
  g_subjects[kElaborate].has_functions = true;
  g_subjects[kImported].is_imported = true;
  for (int i = 0; i < kPools; i++) g_subjects[i].start(kNames[i], limit, reserve);
}

void finish_pools() {
  uint64_t taken = 0, refused = 0, most = ~uint64_t{0};
  lane_pool_statistics s;
  uint64_t waits = 0, contended = 0;
  for (int i = 0; i < kPools; i++) {
    Subject& subject = g_subjects[i];
    for (SharedSlot& slot : g_slots[i])
      if (slot.object.address != nullptr) subject.give(slot.object, "left at the end");
    lane_pool_get_statistics(subject.pool, &s);
    waits += s.waits;
    contended += s.contended;
    subject.finish(kNames[i]);
    taken += subject.taken;
    refused += subject.refused;
    if (subject.most < most) most = subject.most;
  }
  NOTE("%llu taken, %llu refused, %llu waits, %llu times senders met, %llu of %llu in use at once",
       llu(taken), llu(refused), llu(waits), llu(contended), llu(most), llu(g_subjects[0].limit));
}

enum class Manner { kRefused, kWait, kMixed };

// What one thread does with a pool: it takes some objects, leaves or swaps some, and gives back the
// rest. A thread that waits has nothing in its hands.
void use(int which, Manner manner, Random& random, Tags& tags) {
  Subject& subject = g_subjects[which];
  Owned held[6];
  const bool waits = manner == Manner::kWait || (manner == Manner::kMixed && random.percent(50));
  held[0] = subject.take(waits ? LANE_POOL_WAIT : 0, tags.next());
  for (size_t i = 1; i < 1 + random.below(std::size(held)); i++)
    held[i] = subject.take(0, tags.next());
  if (random.percent(10)) sched_yield();
  if (random.percent(50))
    g_slots[which][random.below(kSlots)].swap(held[random.below(std::size(held))]);
  if (random.percent(10)) {
    void* objects[16];
    const size_t n = lane_pool_alloc_batch(subject.pool, objects, std::size(objects), 0);
    Owned batch[16];
    for (size_t i = 0; i < n; i++) batch[i] = subject.own(objects[i], tags.next());
    for (size_t i = 0; i < n; i++) objects[i] = subject.disown(batch[i], "batch");
    if (!g_free_early) lane_pool_free_batch(subject.pool, objects, n);
  }
  for (Owned& o : held)
    if (o.address != nullptr) subject.give(o, "free");
}

std::atomic<bool> g_reclaims{false};
void reclaim_all_the_time() {
  for (unsigned round = 0; g_reclaims.load(std::memory_order_relaxed); round++) {
    stage("reclaiming", round);
    for (Subject& subject : g_subjects)
      lane_pool_reclaim(subject.pool, static_cast<lane_reclaim>(round % 3));
    pause_for(200e-6);
  }
}

// The last of 33 threads reclaims.
void use_pools(Manner manner, uint64_t rounds, uint64_t stream) {
  g_reclaims = true;
  std::atomic<int> working{kThreads};
  run_threads(kThreads + 1, [&](int index) {
    if (index == kThreads) return reclaim_all_the_time();
    Random random(stream + static_cast<uint64_t>(index));
    Tags tags;
    for (uint64_t i = 0; i < rounds; i++) {
      stage("rounds", i);
      use(static_cast<int>(random.below(kPools)), manner, random, tags);
    }
    if (working.fetch_sub(1) == 1) g_reclaims = false;
  });
}

void at_the_limit(Manner manner, uint64_t limit) {
  start_pools(limit, 0);
  use_pools(manner, scaled(4000), 1);
  for (const Subject& subject : g_subjects)
    EXPECT(subject.most == limit, "only %llu objects were in use at once",
           llu(subject.most.load()));
  finish_pools();
}

// Waves of threads that live for a short time, leave objects to other threads, and free some after
// the allocator has already let the thread go.
pthread_key_t g_key;
thread_local Owned t_last[kPools];
void give_late(void*) {
  for (int i = 0; i < kPools; i++)
    if (t_last[i].address != nullptr) g_subjects[i].give(t_last[i], "destructor");
}
void exits() {
  start_pools(kSlots + kThreads + 8, 0);
  pthread_key_create(&g_key, give_late);
  const uint64_t waves = scaled(40) + 3;
  for (uint64_t wave = 0; wave < waves; wave++) {
    stage("waves", wave);
    run_threads(kThreads, [&](int index) {
      Random random(wave * kThreads + static_cast<uint64_t>(index));
      Tags tags;
      for (int i = 0; i < 10; i++)
        use(static_cast<int>(random.below(kPools)), Manner::kMixed, random, tags);
      const int which = index % kPools;
      t_last[which] = g_subjects[which].take(0, tags.next());
      pthread_setspecific(g_key, &g_key);
    });
    if (wave % 4 == 0)
      for (Subject& subject : g_subjects)
        lane_pool_reclaim(subject.pool, static_cast<lane_reclaim>(wave / 4 % 3));
  }
  finish_pools();
}

// A timer's handler takes and gives objects, from the reserve too, whatever code it has
// interrupted.
std::atomic<uint64_t> g_handled{0}, g_handler_takes{0};
void on_alarm(int) {
  static std::atomic<uint64_t> serial{uint64_t{1} << 60};
  const int saved = errno;
  const uint64_t number = g_handled.fetch_add(1, std::memory_order_relaxed);
  Subject& subject = g_subjects[number % kPools];
  Owned o = subject.take(number % 4 == 0 ? LANE_POOL_USE_RESERVE : 0, serial.fetch_add(1));
  if (o.address != nullptr) {
    subject.give(o, "handler");
    g_handler_takes.fetch_add(1, std::memory_order_relaxed);
  }
  errno = saved;
}
void handlers() {
#ifdef __SANITIZE_THREAD__
  SKIP("TSan keeps signals back until a thread sleeps");
#endif
  start_pools(kSlots + 12, 4);
  struct sigaction action = {};
  action.sa_handler = on_alarm;
  action.sa_flags = SA_RESTART;
  sigaction(SIGALRM, &action, nullptr);
  const itimerval often = {{0, 113}, {0, 113}}, never = {};
  setitimer(ITIMER_REAL, &often, nullptr);
  const uint64_t wanted = scaled(4000);
  for (uint64_t round = 0; g_handled < wanted; round++) use_pools(Manner::kMixed, 100, round * 100);
  setitimer(ITIMER_REAL, &never, nullptr);
  const uint64_t handled = g_handled, takes = g_handler_takes;
  finish_pools();
  EXPECT(takes > handled / 10, "%llu of %llu handlers had an object", llu(takes), llu(handled));
  const size_t length = strlen(g_note);
  snprintf(g_note + length, sizeof g_note - length, "; %llu handlers, %llu had an object",
           llu(handled), llu(takes));
}

// The child has one thread. It frees the objects that it had in the parent, takes that many again,
// waits for no thread, and destroys the pools that have no functions.
void child_body(uint64_t serial, Owned (&kept)[kPools][4]) {
  arm_watchdog(watchdog_seconds() / 2 + 1);
  t_stage = nullptr;
  for (Stage& s : g_stages) s.thread = 0;
  stage("child", serial);
  Tags tags;
  for (int i = 0; i < kPools; i++) {
    for (Owned& o : kept[i]) g_subjects[i].give(o, "child, of the parent");
    for (Owned& o : kept[i]) {
      o = g_subjects[i].take(serial % 2 == 0 ? LANE_POOL_WAIT : 0, tags.next());
      EXPECT(o.address != nullptr, "child %llu: what it has freed does not come back", llu(serial));
    }
    for (Owned& o : kept[i]) g_subjects[i].give(o, "child");
    lane_pool_reclaim(g_subjects[i].pool, LANE_DRAIN_ALL);
    if (!g_subjects[i].has_functions) lane_pool_destroy(g_subjects[i].pool);
  }
  Subject next;
  next.has_functions = true;
  next.start("the child's", 100, 2);
  run_threads(2, [&](int index) {
    Random random(serial + static_cast<uint64_t>(index));
    Tags own;
    for (int i = 0; i < 50; i++) {
      Owned o = next.take(LANE_POOL_WAIT, own.next());
      next.give(o, "child's thread");
    }
  });
  next.finish("the child's");
  _exit(0);
}
void forks() {
#ifdef LANEMALLOC_TEST_PREFIXED
  SKIP("sanitizers do not follow threads into forks");
#endif
  start_pools(kSlots + 12 + 4, 0);
  Tags tags;
  Owned kept[kPools][4];
  for (int i = 0; i < kPools; i++)
    for (Owned& o : kept[i]) o = g_subjects[i].take(LANE_POOL_WAIT, tags.next());
  std::atomic<bool> stop{false};
  const uint64_t children = scaled(60) + 5;
  run_threads(
      8,
      [&](int index) {
        Random random(static_cast<uint64_t>(index));
        Tags own;
        for (uint64_t i = 0; !stop.load(std::memory_order_relaxed); i++) {
          stage("working", i);
          use(static_cast<int>(random.below(kPools)), Manner::kMixed, random, own);
        }
      },
      [&] {
        for (uint64_t i = 0; i < children; i++) {
          stage("fork", i);
          const pid_t child = fork();
          if (child == 0) child_body(i, kept);
          expect_good_end(child, "child", i);
        }
        stop = true;
      });
  for (int i = 0; i < kPools; i++)
    for (Owned& o : kept[i]) g_subjects[i].give(o, "the parent's");
  finish_pools();
}
}  // namespace

int main(int argc, char** argv) {
  static const Case cases[] = {
      {"refused", [] { at_the_limit(Manner::kRefused, 40); }},
      {"waiting", [] { at_the_limit(Manner::kWait, kSlots + 3); }},
      {"mixed", [] { at_the_limit(Manner::kMixed, kSlots + 10); }},
      {"exits", exits},
      {"handlers", handlers},
      {"forks", forks},
  };
  return run_cases("pools", argc, argv, cases);
}
