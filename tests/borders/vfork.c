// Children that share the parent's memory: by vfork, and by clone with CLONE_VM. Whatever they
// allocate and free, the parent's heap is whole afterwards.
// Also linked with the static library.
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "check.h"
#include "run_threads.h"

enum { kObjects = 400, kKept = 64 };

// Objects that children have left behind. They belong to the parent alone now.
static struct {
  unsigned char* at;
  size_t size;
  unsigned seed;
} kept[kKept];

static size_t size_of(unsigned i) { return i % 50 == 49 ? 300000 : (size_t)16 << i % 9; }

// Takes and gives back objects of one size, as other threads do at the same time. No other thread
// gets such an object meanwhile.
static int hit(int rounds) {
  uintptr_t* objects[8];
  for (int round = 0; round < rounds; round++) {
    for (int i = 0; i < 8; i++) {
      objects[i] = malloc(64);
      if (objects[i] == NULL) return 0;
      *(uintptr_t* volatile*)objects[i] = (uintptr_t*)&objects[i];
    }
    for (int i = 0; i < 8; i++)
      if (*(uintptr_t* volatile*)objects[i] != (uintptr_t*)&objects[i]) return 0;
    for (int i = 0; i < 8; i++) free(objects[i]);
  }
  return 1;
}

// Does what a child does that prepares an exec, and more of it.
static void work(unsigned seed) {
  unsigned char* objects[kObjects];
  if (!hit(1500)) _exit(14);
  for (unsigned i = 0; i < kObjects; i++) {
    objects[i] = malloc(size_of(i));
    if (objects[i] == NULL) _exit(9);
    fill(objects[i], size_of(i) < 2000 ? size_of(i) : 2000, seed + i);
  }
  for (unsigned i = 0; i < kObjects; i++) {
    if (!filled(objects[i], size_of(i) < 2000 ? size_of(i) : 2000, seed + i)) _exit(10);
    free(objects[i]);
  }
  const unsigned place = seed % kKept;
  if (kept[place].at != NULL && !filled(kept[place].at, kept[place].size, kept[place].seed))
    _exit(11);
  free(kept[place].at);
  kept[place].size = 100 + seed % 900;
  kept[place].seed = seed;
  kept[place].at = malloc(kept[place].size);
  fill(kept[place].at, kept[place].size, seed);
}

static void wait_for(pid_t pid) {
  int status = -1;
  REQUIRE(pid > 0 && waitpid(pid, &status, __WALL) == pid);
  CHECK_MSG(status == 0, "status 0x%x", status);
}

static volatile int stop;
static void* keeps_busy(void* unused) {
  while (!stop) CHECK(hit(100));
  return unused;
}

// Runs beside threads, so that parent and child are on different CPUs and lanes are entered by CPU.
static void beside_threads(void (*run)(unsigned)) {
  pthread_t threads[3];
  start_threads(threads, 3, keeps_busy);
  for (unsigned seed = 1; seed <= 40; seed++) {
    run(seed);
    work(seed * 7);
  }
  stop = 1;
  join_threads(threads, 3);
  for (int i = 0; i < kKept; i++) {
    CHECK(kept[i].at == NULL || filled(kept[i].at, kept[i].size, kept[i].seed));
    free(kept[i].at);
  }
}

static void by_vfork(unsigned seed) {
  const pid_t pid = vfork();
  if (pid == 0) {
    work(seed);
    _exit(0);
  }
  wait_for(pid);
}
CASE(a_child_by_vfork_allocates_and_frees) { beside_threads(by_vfork); }

// The child runs on another CPU than the parent did last.
static void by_vfork_elsewhere(unsigned seed) {
  cpu_set_t before, other;
  REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
  const int here = sched_getcpu();
  const pid_t pid = vfork();
  if (pid == 0) {
    other = before;
    CPU_CLR(here, &other);
    if (CPU_COUNT(&other) > 0) sched_setaffinity(0, sizeof other, &other);
    work(seed);
    _exit(0);
  }
  wait_for(pid);
}
CASE(a_child_by_vfork_on_another_cpu) { beside_threads(by_vfork_elsewhere); }

static void by_vfork_and_exec(unsigned seed) {
  const pid_t pid = vfork();
  if (pid == 0) {
    work(seed);
    execl("/nonexistent", "nonexistent", NULL);
    work(seed + 1);
    execl("/bin/true", "true", NULL);
    _exit(8);
  }
  wait_for(pid);
}
CASE(an_exec_that_fails_and_one_that_does_not) { beside_threads(by_vfork_and_exec); }

static void by_vfork_and_fork(unsigned seed) {
  const pid_t pid = vfork();
  if (pid == 0) {
    work(seed);
    const pid_t other = fork();
    if (other == 0) {
      work(seed + 1);
      _exit(0);
    }
    int status = -1;
    work(seed + 2);
    if (other < 0 || waitpid(other, &status, 0) != other || status != 0) _exit(12);
    const pid_t third = vfork();
    if (third == 0) {
      work(seed + 3);
      _exit(0);
    }
    if (third < 0 || waitpid(third, &status, 0) != third || status != 0) _exit(13);
    _exit(0);
  }
  wait_for(pid);
}
CASE(a_child_by_vfork_that_forks) { beside_threads(by_vfork_and_fork); }

static int run_clone(void* seed) {
  work((unsigned)(uintptr_t)seed);
  return 0;
}
static unsigned char stack[1 << 18] __attribute__((aligned(64)));
static void by_clone_that_waits(unsigned seed) {
  wait_for(clone(run_clone, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD,
                 (void*)(uintptr_t)seed));
}
static void by_clone(unsigned seed) {
  wait_for(clone(run_clone, stack + sizeof stack, CLONE_VM | SIGCHLD, (void*)(uintptr_t)seed));
}
CASE(a_child_by_clone_whose_parent_is_stopped) { beside_threads(by_clone_that_waits); }
CASE(a_child_by_clone_whose_parent_waits) { beside_threads(by_clone); }
static void by_plain_clone(unsigned seed) {
  wait_for(clone(run_clone, stack + sizeof stack, SIGCHLD, (void*)(uintptr_t)seed));
}
CASE(a_child_by_clone_with_memory_of_its_own) {
  for (unsigned seed = 1; seed < 50; seed++) by_plain_clone(seed);
}

// A handler in the parent, and one in the child.
static volatile sig_atomic_t signals;
static void on_signal(int number) {
  (void)number;
  free(malloc(100));
  free(malloc(700000));
  signals++;
}
static void by_vfork_with_signals(unsigned seed) {
  const pid_t pid = vfork();
  if (pid == 0) {
    kill(getpid(), SIGUSR1);
    kill(getppid(), SIGUSR1);  // reaches the parent when it goes on
    work(seed);
    _exit(0);
  }
  wait_for(pid);
}
CASE(signals_in_parent_and_child) {
  REQUIRE(signal(SIGUSR1, on_signal) != SIG_ERR);
  beside_threads(by_vfork_with_signals);
  CHECK(signals >= 40);
}

// Errors are reported as by the C library.
CASE(vfork_that_is_refused) {
  struct rlimit none = {0, 0};
  if (getuid() == 0 && setuid(65534) != 0) SKIP("cannot become nobody");
  REQUIRE(setrlimit(RLIMIT_NPROC, &none) == 0);
  errno = 0;
  const pid_t pid = vfork();
  if (pid == 0) _exit(0);
  CHECK(pid == -1 && errno == EAGAIN);
  work(1);
}
