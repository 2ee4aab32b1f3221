// The memory that the allocator itself costs, and the memory that stays when a program changes:
// small programs, threads with a few objects, forked children, sizes that shift from phase to
// phase, a limited address space.
// Run by: tests/bounds/run.sh.
#include <sys/resource.h>

#include <algorithm>

#include "bounds.h"

extern char** environ;

namespace {
using namespace bounds;

// --- A program that allocates little.
size_t little_program() {
  static Owned objects[1000];
  Random random(1);
  for (size_t i = 0; i < std::size(objects); i++) objects[i] = take(16 + random.below(240), i + 1);
  for (size_t i = 0; i < std::size(objects); i += 2) give(objects[i], "little");
  return resident();
}
// When a page of a library is touched, the kernel also maps the pages around it that it finds in
// memory: some 200 KiB more or less, by where they lie.
size_t median_of_little(char** environment) {
  size_t sizes[9];
  for (size_t& size : sizes) size = measure_in_new_process("measure", "little", environment);
  std::sort(std::begin(sizes), std::end(sizes));
  return sizes[std::size(sizes) / 2];
}
void little() {
  char* without[256];
  size_t n = 0;
  for (char** e = environ; *e != nullptr && n + 1 < std::size(without); e++)
    if (strncmp(*e, "LD_PRELOAD=", 11) != 0) without[n++] = *e;
  without[n] = nullptr;
  size_t with_c_library = median_of_little(without);
  size_t with = median_of_little(environ);
  EXPECT(with <= with_c_library + kMiB, "%zu KiB resident, with the C library's malloc %zu KiB",
         with / kKiB, with_c_library / kKiB);
  NOTE("%zu KiB resident, with the C library's malloc %zu KiB", with / kKiB, with_c_library / kKiB);
}

// --- Threads that hold a few small objects.
constexpr int kHolders = 60;
size_t holders_program(bool with_objects) {
  Barrier ready(kHolders + 1), end(kHolders + 1);
  size_t size = 0;
  run_threads(
      kHolders,
      [&](int index) {
        Owned objects[6];
        size_t sizes[] = {16, 48, 120, 300, 700, 1000};
        if (with_objects)
          for (size_t i = 0; i < 6; i++)
            objects[i] = take(sizes[i], static_cast<uint64_t>(index) * 8 + i + 1);
        ready.wait();
        end.wait();
        if (with_objects)
          for (Owned& o : objects) give(o, "holder");
      },
      [&] {
        ready.wait();
        size = resident();
        end.wait();
      });
  return size;
}
void holders() {
  size_t without = measure_in_new_process("measure", "holders-without", environ);
  size_t with = measure_in_new_process("measure", "holders-with", environ);
  size_t each = with > without ? (with - without) / kHolders : 0;
  EXPECT(each < 64 * kKiB, "a thread with six small objects costs %zu KiB resident", each / kKiB);
  NOTE("%zu bytes a thread", each);
}

// --- Forked children.

// The memory that a child adds to what it shares with its parent, and what becomes of the parent's
// objects that the child frees.
void fork_children() {
  Random random(1);
  static Burst kept, freed_in_child;
  kept.allocate(scaled(96) * kMiB, 16, 2048, random);
  freed_in_child.allocate(scaled(64) * kMiB, 16, 2048, random);
  Barrier ready(4), end(4);
  run_threads(
      3,
      [&](int) {
        Random mine(2);
        Burst some;
        some.allocate(kMiB, 16, 4096, mine);
        ready.wait();
        end.wait();
        some.free();
      },
      [&] {
        ready.wait();
        size_t parent = resident();
        for (int i = 0; i < 10; i++) {
          stage("child", static_cast<uint64_t>(i));
          pid_t child = fork();
          if (child == 0) {
            arm_watchdog(watchdog_seconds() / 2 + 1);
            Burst own;
            own.allocate(kMiB, 16, 4096, random);
            size_t added = rollup("\nPrivate_Dirty:");
            EXPECT(added < 12 * kMiB, "a child that allocates 1 MiB has %zu KiB of its own",
                   added / kKiB);
            EXPECT(resident() < parent + 12 * kMiB,
                   "a child has %zu KiB resident, its parent %zu KiB", resident() / kKiB,
                   parent / kKiB);
            if (i >= 8) {
              freed_in_child.free();
              own.allocate(scaled(48) * kMiB, 16, 2048, random);
              EXPECT(resident() < parent + parent / 10 + 12 * kMiB,
                     "a child that freed more than it allocates has %zu KiB resident, its parent "
                     "%zu KiB",
                     resident() / kKiB, parent / kKiB);
            }
            _exit(0);
          }
          expect_good_end(child, "child", static_cast<uint64_t>(i));
        }
        size_t after = resident();
        EXPECT(after < parent + 4 * kMiB,
               "the parent has %zu KiB resident after the forks, %zu KiB before", after / kKiB,
               parent / kKiB);
        NOTE("parent %zu KiB before and %zu KiB after ten children", parent / kKiB, after / kKiB);
        end.wait();
      });
}

// --- Phases.

// 32 threads take turns. Each fills the same amount of memory with objects of its own size, and
// frees them. All threads stay alive.
void phase_shift() {
  constexpr int kThreads = 32;
  size_t live = scaled(96) * kMiB;
  size_t before = resident(), most = 0, size_then = 0;
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
  int turn = 0;
  size_t sizes[] = {24,   48,    100,   200,   400,    800,    1600,    3200,
                    7000, 14000, 30000, 70000, 200000, 600000, 1500000, 64};
  run_threads(kThreads, [&](int index) {
    for (int round = 0; round < 2; round++) {
      pthread_mutex_lock(&mutex);
      while (turn != round * kThreads + index) pthread_cond_wait(&condition, &mutex);
      stage("phase", static_cast<uint64_t>(turn));
      size_t size = sizes[static_cast<size_t>(index + 7 * round) % std::size(sizes)];
      Random random(static_cast<uint64_t>(index));
      Burst burst;
      burst.allocate(live, size, size, random);
      if (size_t here = resident(); here > most) most = here, size_then = size;
      burst.free();
      turn++;
      pthread_cond_broadcast(&condition);
      pthread_mutex_unlock(&mutex);
    }
  });
  size_t limit = before + live + live / 2 + (lanes_by_cpu() ? live / 8 : 0);
  EXPECT(most < limit,
         "%zu MiB resident where at most %zu MiB were live at once, in objects of %zu bytes",
         (most - before) / kMiB, live / kMiB, size_then);
  NOTE("at most %zu MiB resident where %zu MiB were live at once, in objects of %zu bytes",
       (most - before) / kMiB, live / kMiB, size_then);
}

// --- A limited address space.

// As by `ulimit -v 600000`: a program starts, fails cleanly, recovers, and its threads work.
void limited_program() {
  Random random(1);
  for (int round = 0; round < 3; round++) {
    static void* large[4096];
    size_t count = 0;
    errno = 0;
    while (count < std::size(large) && (large[count] = api::malloc(kMiB)) != nullptr) {
      memset(large[count], 1, 4096);
      count++;
    }
    EXPECT(count < std::size(large), "no limit was met");
    EXPECT(errno == ENOMEM, "errno is %d, not ENOMEM, when there is no memory", errno);
    EXPECT(count >= 128, "only %zu MiB of 585 MiB could be had (round %d)", count, round);
    EXPECT(api::calloc(1, 700 * kMiB) == nullptr && api::realloc(large[0], 700 * kMiB) == nullptr &&
               errno == ENOMEM,
           "more than the limit was given");
    for (size_t i = 0; i < count; i++) api::free(large[i]);
    Burst small;
    small.allocate(128 * kMiB, 16, 2048, random);
    small.free();
  }
  run_threads(4, [&](int index) {
    Random mine(static_cast<uint64_t>(index) + 2);
    Burst some;
    some.allocate(16 * kMiB, 16, 4096, mine);
    some.free();
  });
}
void limited_address_space() {
  rlimit limit = {600000 * kKiB, 600000 * kKiB};
  setrlimit(RLIMIT_AS, &limit);
  measure_in_new_process("measure", "limited", environ);
  NOTE("600000 KiB");
}
}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && strcmp(argv[1], "measure") == 0) {
    g_program = "footprint";
    g_case = argv[2];
    size_t size = 0;
    if (strcmp(argv[2], "little") == 0) size = little_program();
    if (strcmp(argv[2], "holders-with") == 0) size = holders_program(true);
    if (strcmp(argv[2], "holders-without") == 0) size = holders_program(false);
    if (strcmp(argv[2], "limited") == 0) limited_program();
    print(1, "%zu\n", size);
    return 0;
  }
  static const Case cases[] = {
      {"little-program", little},
      {"threads-with-few-objects", holders},
      {"forked-children", fork_children},
      {"phase-shift", phase_shift},
      {"limited-address-space", limited_address_space},
  };
  return run_cases("footprint", argc, argv, cases);
}
