// Threads allocate, resize and free their own objects and each other's, in a tree of heaps with
// limits. The program counts the bytes that it has in each heap: it adds them after an allocation
// and subtracts them before a free, so its count never exceeds what is handed out. Checked: the
// count never exceeds a limit, patterns are kept, a heap that is destroyed had the right number of
// objects, and statistics and walks agree. Meanwhile child heaps come and go, threads exit, the
// process forks, and handlers use the same heaps.
// Run by: tests/stress/run.sh; also against the prefixed library under sanitizers. With
// LANEMALLOC_TEST_NO_LIMITS=1 the heaps have no limits: then the program must fail.
#include <lanemalloc/heap.h>
#include <sys/time.h>

#include "stress.h"

namespace {
using namespace stress;

constexpr size_t kLargest = 700 * kKiB;
constexpr int kThreads = 6;
constexpr size_t kSlots = 40;

// At a limit the allocator looks into every lane, which takes long under a sanitizer.
uint64_t work_of(double count) {
#ifdef LANEMALLOC_TEST_PREFIXED
  count /= 20;
#endif
  return scaled(count);
}

// A heap, and the number of bytes that the program has in it and in its children.
struct Place {
  const char* name;
  Place* parent;
  size_t limit;
  size_t soft;
  lane_heap* heap = nullptr;
  std::atomic<size_t> held{0};
};
Place g_places[] = {
    {"root", nullptr, 1500 * kKiB, 700 * kKiB},
    {"left", &g_places[0], 500 * kKiB, 0},
    {"leaf", &g_places[1], 0, 100 * kKiB},
    {"right", &g_places[0], 0, 0},
    {"free", nullptr, 0, 0},
};
constexpr size_t kPlaces = std::size(g_places);
std::atomic<uint64_t> g_refused{0}, g_soft_calls{0};

// An object and the place that it belongs to.
struct Held {
  Owned object;
  Place* place = nullptr;
  size_t real = 0;
};
struct SharedHeld {
  std::atomic<bool> busy{false};
  Held held;
  bool swap(Held& mine) {
    if (busy.load(std::memory_order_relaxed) || busy.exchange(true, std::memory_order_acquire))
      return false;
    std::swap(held, mine);
    busy.store(false, std::memory_order_release);
    return true;
  }
};
SharedHeld g_shared[128];

void on_soft_limit(lane_heap* heap, size_t, void* place) {
  EXPECT(static_cast<Place*>(place)->heap == heap, "the callback is told another heap");
  g_soft_calls.fetch_add(1, std::memory_order_relaxed);
  lane_heap_free_sized(heap, lane_heap_alloc(heap, 64), 64);  // may be refused
}

void create(Place& place) {
  static const bool no_limits = getenv("LANEMALLOC_TEST_NO_LIMITS") != nullptr;
  lane_heap_options options = {};
  options.name = place.name;
  options.parent = place.parent != nullptr ? place.parent->heap : nullptr;
  options.limit = no_limits ? 0 : place.limit;
  options.soft_limit = place.soft;
  options.on_soft_limit = place.soft != 0 ? on_soft_limit : nullptr;
  options.argument = &place;
  place.heap = lane_heap_create(&options);
  EXPECT(place.heap != nullptr, "a heap is not created: %s", strerror(errno));
  place.held.store(0);
}
void create_all() {
  for (Place& place : g_places) create(place);
}

// Counts `bytes` more in the place and its parents, and checks their limits.
void hold(Place* place, size_t bytes) {
  for (Place* p = place; p != nullptr; p = p->parent) {
    const size_t now = p->held.fetch_add(bytes) + bytes;
    EXPECT(p->limit == 0 || now <= p->limit, "%zu bytes in %s, whose limit is %zu", now, p->name,
           p->limit);
  }
}
void let_go(Place* place, size_t bytes) {
  for (Place* p = place; p != nullptr; p = p->parent) p->held.fetch_sub(bytes);
}
bool may_refuse(const Place* place) {
  for (; place != nullptr; place = place->parent)
    if (place->limit != 0) return true;
  return false;
}

bool take(Held& held, Place& place, Random& random, Tags& tags) {
  const size_t size = random_size(random, kLargest);
  const uint64_t way = random.below(10);
  void* p;
  errno = 0;
  if (way < 6) {
    p = lane_heap_alloc(place.heap, size);
  } else if (way < 7) {
    p = lane_heap_alloc_out_of_line(place.heap, size);
  } else if (way < 8) {
    p = lane_heap_alloc_zeroed(place.heap, 1, size);
    if (p != nullptr) check_zero(static_cast<unsigned char*>(p), size, "zeroed");
  } else if (way < 9) {
    p = lane_heap_alloc_aligned(place.heap, size_t{32} << random.below(8), size);
  } else {
    p = lane_heap_realloc(place.heap, nullptr, size);
  }
  if (p == nullptr) {
    EXPECT(errno == ENOMEM && may_refuse(&place), "%zu bytes in %s: %s", size, place.name,
           strerror(errno));
    g_refused.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  held = {{static_cast<unsigned char*>(p), size, tags.next()},
          &place,
          lane_heap_usable_size(place.heap, p)};
  EXPECT(held.real >= size, "an object of %zu bytes has %zu", size, held.real);
  hold(&place, held.real);
  fill(held.object);
  return true;
}

void give(Held& held, Random& random, const char* where) {
  if (held.place == nullptr) return;
  check(held.object, where);
  let_go(held.place, held.real);
  errno = 4711;
  if (random.percent(60)) {
    lane_heap_free_sized(held.place->heap, held.object.address, held.object.size);
  } else {
    lane_heap_free(held.place->heap, held.object.address);
  }
  EXPECT(errno == 4711, "a free changed errno to %d", errno);
  held = {};
}

void resize(Held& held, Random& random, const char* where) {
  check(held.object, where);
  const size_t size = random_size(random, kLargest);
  let_go(held.place, held.real);
  void* p = lane_heap_realloc(held.place->heap, held.object.address, size);
  if (p == nullptr) {
    EXPECT(errno == ENOMEM && may_refuse(held.place), "%zu bytes in %s: %s", size, held.place->name,
           strerror(errno));
    g_refused.fetch_add(1, std::memory_order_relaxed);
    hold(held.place, held.real);
    return check(held.object, "realloc refused");
  }
  held.object.address = static_cast<unsigned char*>(p);
  held.real = lane_heap_usable_size(held.place->heap, p);
  hold(held.place, held.real);
  check_prefix(held.object, size < held.object.size ? size : held.object.size, where);
  held.object.size = size;
  fill(held.object);
}

void step(Held& held, Random& random, Tags& tags, const char* where) {
  if (held.place == nullptr) {
    take(held, g_places[random.below(kPlaces)], random, tags);
  } else if (random.percent(25)) {
    g_shared[random.below(std::size(g_shared))].swap(held);
  } else if (random.percent(25)) {
    resize(held, random, where);
  } else {
    give(held, random, where);
  }
}
void give_shared(Random& random) {
  for (SharedHeld& shared : g_shared) {
    Held held;
    if (shared.swap(held)) give(held, random, "left");
  }
}

lane_heap_statistics figures(const Place& place) {
  lane_heap_statistics s;
  lane_heap_get_statistics(place.heap, &s);
  EXPECT(place.limit == 0 || (s.used_bytes <= place.limit && s.peak_bytes <= place.limit),
         "%s has %llu, had %llu, and its limit is %zu", place.name, llu(s.used_bytes),
         llu(s.peak_bytes), place.limit);
  return s;
}

// No thread uses the heaps any more.
void end_empty() {
  for (Place& place : g_places) {
    EXPECT(place.held.load() == 0, "the program has lost count");
    const lane_heap_statistics s = figures(place);
    EXPECT(s.live_objects == 0 && s.live_bytes == 0, "%s has %llu objects of %llu bytes",
           place.name, llu(s.live_objects), llu(s.live_bytes));
  }
  NOTE("%llu refused, %llu calls at a soft limit", llu(g_refused), llu(g_soft_calls));
  EXPECT(lane_heap_destroy(g_places[0].heap) == 0, "the root was not empty");
  EXPECT(lane_heap_destroy(g_places[kPlaces - 1].heap) == 0,
         "the heap without a limit was not empty");
}

std::atomic<int> g_working{0};
void work(int index, uint64_t steps) {
  Random random(static_cast<uint64_t>(index));
  Tags tags;
  Held slots[kSlots];
  for (uint64_t i = 0; i < steps; i++) {
    if (i % 500 == 0) stage("working", i);
    step(slots[random.below(kSlots)], random, tags, "work");
  }
  for (Held& held : slots) give(held, random, "own");
  g_working.fetch_sub(1);
}

// The main thread reads statistics all the time, and trims heaps now and then.
void look_on() {
  Random random(99);
  while (g_working.load(std::memory_order_relaxed) > 0) {
    const Place& place = g_places[random.below(kPlaces)];
    figures(place);
    if (random.percent(20)) lane_heap_trim(place.heap);
    pause_for(0.0005);
  }
}

void limits() {
  create_all();
  const uint64_t steps = work_of(150000);
  g_working = kThreads;
  run_threads(kThreads, [&](int index) { work(index, steps); }, look_on);
  Random random(1);
  give_shared(random);
  EXPECT(g_refused.load() > 0, "no limit was met");
  EXPECT(g_soft_calls.load() > 0, "no soft limit was passed");
  end_empty();
}

// The thread makes a heap of its own below `root`, uses it, walks it, and destroys it with the
// objects that are left in it, while other threads use `root`.
void raise_and_fell(Random& random, Tags& tags) {
  Place own = {"own", &g_places[0], 1 * kMiB, 0};
  create(own);
  Place below = {"below", &own, 0, 0};
  create(below);
  Held slots[kSlots];
  for (int i = 0; i < 150; i++) {
    Held& held = slots[random.below(kSlots)];
    if (held.place == nullptr) {
      take(held, random.percent(50) ? own : below, random, tags);
    } else if (random.percent(30)) {
      resize(held, random, "own heap");
    } else {
      give(held, random, "own heap");
    }
  }
  struct Seen {
    Held* slots;
    size_t n;
  } seen = {slots, 0};
  size_t in_own = 0, in_both = 0, in_both_bytes = 0;
  for (const Held& held : slots) {
    in_own += held.place == &own;
    in_both += held.place != nullptr;
    in_both_bytes += held.real;
  }
  lane_heap_walk(
      own.heap,
      [](void* object, size_t usable, void* argument) {
        Seen& s = *static_cast<Seen*>(argument);
        for (size_t i = 0; i < kSlots; i++)
          if (s.slots[i].object.address == object && s.slots[i].real == usable) s.n++;
        return 0;
      },
      &seen);
  EXPECT(seen.n == in_own, "a walk saw %zu of %zu objects", seen.n, in_own);
  EXPECT(figures(own).live_objects == in_own, "the figures say %llu and not %zu objects",
         llu(figures(own).live_objects), in_own);
  for (const Held& held : slots)
    if (held.place != nullptr) check(held.object, "before the end");
  let_go(&g_places[0], in_both_bytes);
  const size_t gone = lane_heap_destroy(own.heap);
  EXPECT(gone == in_both, "%zu objects went with a heap that had %zu", gone, in_both);
}
void come_and_go() {
  create_all();
  const uint64_t rounds = work_of(500) + 3;
  g_working = kThreads;
  run_threads(
      kThreads,
      [&](int index) {
        Random random(static_cast<uint64_t>(index) + 50);
        Tags tags;
        if (index < kThreads / 2) return work(index, rounds * 300);
        for (uint64_t round = 0; round < rounds; round++) {
          stage("heaps", round);
          raise_and_fell(random, tags);
        }
        g_working.fetch_sub(1);
      },
      look_on);
  Random random(1);
  give_shared(random);
  end_empty();
}

// All threads stop; one of them counts all objects, walks all heaps, and destroys the heaps with
// what is in them.
void whole_trees() {
  static pthread_barrier_t barrier;
  static Held slots[kThreads][kSlots];
  pthread_barrier_init(&barrier, nullptr, kThreads);
  create_all();
  const uint64_t rounds = work_of(300) + 3;
  run_threads(kThreads, [&](int index) {
    Random random(static_cast<uint64_t>(index));
    Tags tags;
    for (uint64_t round = 0; round < rounds; round++) {
      stage("rounds", round);
      for (int i = 0; i < 500; i++) step(slots[index][random.below(kSlots)], random, tags, "round");
      pthread_barrier_wait(&barrier);
      if (index == 0) {
        size_t objects[kPlaces] = {}, bytes[kPlaces] = {};
        const auto count = [&](Held& held) {
          if (held.place == nullptr) return;
          check(held.object, "at the stop");
          objects[held.place - g_places]++;
          bytes[held.place - g_places] += held.real;
          held = {};
        };
        for (auto& own : slots)
          for (Held& held : own) count(held);
        for (SharedHeld& shared : g_shared) count(shared.held);
        size_t all = 0;
        for (size_t i = 0; i < kPlaces; i++) {
          const lane_heap_statistics s = figures(g_places[i]);
          size_t walked = 0;
          lane_heap_walk(
              g_places[i].heap,
              [](void*, size_t usable, void* n) { return *static_cast<size_t*>(n) += usable, 0; },
              &walked);
          // With checked=1 the end of an object is not the program's.
          EXPECT(s.live_objects == objects[i] && walked == bytes[i] &&
                     (checked_mode() ? s.live_bytes >= bytes[i] : s.live_bytes == bytes[i]),
                 "%s: %llu objects of %llu bytes, walked %zu; there are %zu of %zu",
                 g_places[i].name, llu(s.live_objects), llu(s.live_bytes), walked, objects[i],
                 bytes[i]);
          all += objects[i];
        }
        const size_t gone =
            lane_heap_destroy(g_places[0].heap) + lane_heap_destroy(g_places[kPlaces - 1].heap);
        EXPECT(gone == all, "%zu objects went with the heaps, which had %zu", gone, all);
        create_all();
      }
      pthread_barrier_wait(&barrier);
    }
    for (Held& held : slots[index]) give(held, random, "end");
  });
  end_empty();
}

// Threads come and go, and leave objects to other threads.
void exits() {
  create_all();
  const uint64_t waves = work_of(200) + 3;
  for (uint64_t wave = 0; wave < waves; wave++) {
    g_working = kThreads;
    run_threads(kThreads, [&](int index) { work(static_cast<int>(wave) * kThreads + index, 500); });
  }
  Random random(1);
  give_shared(random);
  end_empty();
}

// Runs in the child, which has one thread. The child does not know what other threads were just
// doing to objects and counts.
void use_in_child(uint64_t serial) {
  arm_watchdog(watchdog_seconds() / 2 + 1);
  Random random(3000 + serial);
  Tags tags;
  for (Place& place : g_places) {
    place.limit = 0;
    place.held = 0;
    lane_heap_set_limits(place.heap, 0, 0);
  }
  for (SharedHeld& shared : g_shared) {
    Held held;
    if (shared.swap(held)) give(held, random, "free in a child");
  }
  Held slots[kSlots];
  for (int i = 0; i < 300; i++) step(slots[random.below(kSlots)], random, tags, "child");
  for (Place& place : g_places) figures(place);
  if (serial % 2 == 0)
    for (Held& held : slots) give(held, random, "child, end");
  lane_heap_destroy(g_places[serial % 3 == 0 ? 1 : 0].heap);
  Place fresh = {"fresh", nullptr, 1 * kMiB, 0};
  create(fresh);
  Held own[kSlots];
  size_t kept = 0;
  for (Held& held : own) kept += take(held, fresh, random, tags);
  EXPECT(lane_heap_destroy(fresh.heap) == kept, "a child's own heap had another number of objects");
}
void forks() {
  create_all();
  const uint64_t forks = work_of(120) + 3;
  static std::atomic<bool> stop;
  stop = false;
  g_working = 3;
  run_threads(
      3,
      [&](int index) {
        for (uint64_t i = 0; !stop.load(std::memory_order_relaxed); i++) {
          g_working.fetch_add(1);
          work(static_cast<int>(i) * 3 + index, 300);
        }
      },
      [&] {
        for (uint64_t serial = 0; serial < forks; serial++) {
          stage("forking", serial);
          pid_t child = fork();
          if (child == 0) {
            use_in_child(serial);
            _exit(0);
          }
          expect_good_end(child, "child", serial);
        }
        stop = true;
      });
  Random random(1);
  give_shared(random);
  end_empty();
}

// Each thread has a timer of its own. Its handler uses the same heaps and takes objects from the
// same places.
struct Handled {
  Random random;
  Tags tags;
  Held slots[8];
  int timer = 0;
  uint64_t times = 0;
  // The next handler comes as long after this one as this one took, so that the thread has some
  // time left.
  void arm(double took) {
    const double seconds = took < 0.0004 ? 0.0004 : took < 0.5 ? took : 0.5;
    itimerspec soon = {{0, 0}, {0, static_cast<long>(seconds * 1e9)}};
    syscall(SYS_timer_settime, timer, 0, &soon, nullptr);
  }
};
thread_local Handled* t_handled = nullptr;
void on_timer(int) {
  Handled* mine = t_handled;
  if (mine == nullptr) return;
  const int saved = errno;
  const double begin = now();
  for (int i = 0; i < 3; i++)
    step(mine->slots[mine->random.below(8)], mine->random, mine->tags, "handler");
  mine->times++;
  mine->arm(now() - begin);
  errno = saved;
}
void signals() {
  create_all();
  struct sigaction action = {};
  action.sa_handler = on_timer;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
  static std::atomic<uint64_t> handled;
  handled = 0;
  const uint64_t steps = work_of(100000);
  g_working = kThreads;
  run_threads(
      kThreads,
      [&](int index) {
        Handled mine;
        t_handled = &mine;
        sigevent event = {};
        event.sigev_notify = SIGEV_THREAD_ID;
        event.sigev_signo = SIGUSR1;
        event._sigev_un._tid = thread_id();
        EXPECT(syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &mine.timer) == 0, "a timer: %s",
               strerror(errno));
        mine.arm(0);
        work(index, steps);
        syscall(SYS_timer_delete, mine.timer);
        t_handled = nullptr;
        Random random(7);
        for (Held& held : mine.slots) give(held, random, "of a handler");
        handled.fetch_add(mine.times);
      },
      look_on);
  EXPECT(handled.load() > 0, "no handler ran");
  Random random(1);
  give_shared(random);
  end_empty();
  NOTE("%llu handlers, %llu refused", llu(handled), llu(g_refused));
}
}  // namespace

int main(int argc, char** argv) {
  static const Case cases[] = {
      {"limits", limits},
      {"come-and-go", come_and_go},
      {"whole-trees", whole_trees},
      {"exits", exits},
      {"forks", forks},
      {"signals", signals},
  };
  return run_cases("heaps", argc, argv, cases);
}
