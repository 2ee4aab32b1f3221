// Processes and threads that begin in unusual ways: children without fork handlers, daemons,
// spawned programs, name spaces, threads of other libraries; and what they do with their stacks,
// their limits and their tracers.
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <threads.h>
#include <ucontext.h>

#include "child.h"
#include "tasks.h"

int plugin_created(void);
int plugin_helpers(void);
void plugin_wants_a_helper(void);
void plugin_calls_in_child(void (*call)(void));

enum { kObjects = 64 };

// Takes objects of one size. No other thread gets them while they are in use.
static void turn_over(unsigned seed, int rounds) {
  unsigned* objects[kObjects];
  for (int round = 0; round < rounds; round++) {
    for (unsigned i = 0; i < kObjects; i++) {
      REQUIRE(objects[i] = malloc(64));
      *objects[i] = seed * 1000 + i;
    }
    for (unsigned i = 0; i < kObjects; i++) {
      CHECK(*objects[i] == seed * 1000 + i);
      free(objects[i]);
    }
  }
}
static void use_memory(void) {
  turn_over(1, 10);
  void* large = malloc(700000);
  REQUIRE(large != NULL);
  fill(large, 700000, 3);
  CHECK(filled(large, 700000, 3));
  free(large);
}

static int stop;
static void* works(void* seed) {
  while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) turn_over((unsigned)(uintptr_t)seed, 100);
  return NULL;
}
static void* idles(void* unused) {
  use_memory();
  while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) usleep(1000);
  return unused;
}
static void* ends(void* unused) {
  use_memory();
  return unused;
}
static pthread_t start(void* (*run)(void*), uintptr_t argument) {
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, run, (void*)argument) == 0);
  return thread;
}
static void join(pthread_t thread) { REQUIRE(pthread_join(thread, NULL) == 0); }

static int comes_to_be_alone(void) {
  for (int i = 0; i < 2000 && threads() != 1; i++) usleep(1000);
  return threads() == 1;
}

static void wait_for(pid_t pid) {
  const int status = status_of(pid);
  CHECK_MSG(status == 0, "status 0x%x", status);
}

static void fork_and_use(void) {
  const pid_t pid = fork();
  if (pid == 0) {
    use_memory();
    _exit(test_failures != 0);
  }
  wait_for(pid);
}

// --- Children for which no fork handlers run. Their one thread has a new number.

static unsigned char stack[1 << 18] __attribute__((aligned(64)));

// The thread is idle for long, as the main thread of a server is, while the scavenger looks after
// its lane. Then it is busy beside other threads.
static int starts_threads(void* for_long) {
  pthread_t idler = start(idles, 0), workers[2];
  usleep(for_long ? 4000000 : 100000);
  for (unsigned i = 0; i < 2; i++) workers[i] = start(works, i + 2);
  turn_over(1, 3000);
  __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
  join(idler);
  for (int i = 0; i < 2; i++) join(workers[i]);
  CHECK(comes_to_be_alone());
  return test_failures != 0;
}
CASE(a_child_by_clone_starts_threads) {
  use_memory();
  wait_for(clone(starts_threads, stack + sizeof stack, SIGCHLD, &stop));
}
CASE(a_child_by_clone_in_a_pid_name_space_starts_threads) {
  use_memory();
  const pid_t pid = clone(starts_threads, stack + sizeof stack, CLONE_NEWPID | SIGCHLD, NULL);
  if (pid < 0 && (errno == EPERM || errno == EINVAL)) SKIP("no pid name spaces here");
  wait_for(pid);
}
CASE(a_child_by_underscore_fork_starts_threads) {
  use_memory();
  const pid_t pid = _Fork();
  if (pid == 0) _exit(starts_threads(NULL));
  wait_for(pid);
}
static void* leaves_by_clone(void* unused) {
  use_memory();
  const pid_t pid = _Fork();
  if (pid == 0) pthread_exit(unused);  // the last thread of its process
  wait_for(pid);
  return unused;
}
CASE(a_child_by_underscore_fork_of_a_thread_ends_by_pthread_exit) {
  join(start(leaves_by_clone, 0));
}

CASE(fork_into_a_pid_name_space) {
  pthread_t idler = start(idles, 0);
  if (unshare(CLONE_NEWPID) != 0) SKIP("no pid name spaces here");
  for (int i = 0; i < 2; i++) {
    const pid_t pid = fork();
    if (pid == 0) {
      if (i == 0) _exit(starts_threads(NULL));
      use_memory();
      _exit(test_failures != 0);
    }
    if (pid < 0 && i == 1) break;  // the name space ended with its first process
    wait_for(pid);
  }
  __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
  join(idler);
}

// --- No thread waits for threads that end without notice.

static void* ends_by_system_call(void* late) {
  use_memory();
  if (late) usleep(300000);
  syscall(SYS_exit, 0);
  return NULL;
}
CHILD(main_leaves_after_such_a_thread) {
  alarm(30);
  join(start(ends_by_system_call, 0));
  pthread_exit(NULL);
}
CHILD(main_leaves_before_such_a_thread) {
  alarm(30);
  start(ends_by_system_call, 1);
  pthread_exit(NULL);
}
CASE(main_leaves_and_the_last_thread_ends_by_the_system_call) {
  run_child_with("main_leaves_after_such_a_thread", getenv("LANEMALLOC_OPTIONS"));
  CHECK_CHILD(child_succeeded());
  run_child_with("main_leaves_before_such_a_thread", getenv("LANEMALLOC_OPTIONS"));
  CHECK_CHILD(child_succeeded());
}
CASE(alone_again_after_a_thread_by_the_system_call) {
  join(start(ends_by_system_call, 0));
  for (int i = 0; i < 40 && threads() != 1; i++) {
    use_memory();
    usleep(100000);
  }
  CHECK_MSG(threads() == 1, "%d threads", threads());
  join(start(ends, 0));
  CHECK(comes_to_be_alone());
}

// --- Several threads at once, again and again, which soon end.

// Starts n threads, and returns how many threads the process has while all of them live.
static int threads_in_a_burst(int n) {
  pthread_t some[8];
  REQUIRE(n <= 8);
  __atomic_store_n(&stop, 0, __ATOMIC_RELEASE);
  for (int i = 0; i < n; i++) some[i] = start(idles, 0);
  const int there = threads();
  __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
  for (int i = 0; i < n; i++) join(some[i]);
  return there;
}
CASE(lanemalloc_short_bursts_of_threads_get_none_of_ours_each_time) {
  enum { kBursts = 400, kAtOnceHere = 3 };
  int with_ours = 0;
  for (int i = 0; i < kBursts; i++) with_ours += threads_in_a_burst(kAtOnceHere) > 1 + kAtOnceHere;
  CHECK_MSG(with_ours > 0, "none: is what returns memory there at all?");
  CHECK_MSG(with_ours < kBursts / 2, "in %d of %d bursts", with_ours, kBursts);
  CHECK_MSG(threads_in_a_burst(kAtOnceHere + 1) == 1 + kAtOnceHere + 1 + 1,
            "more at once are not looked after");
  // Threads that stay get a scavenger when the next thread starts or ends.
  for (int i = 0; i < kBursts; i++) threads_in_a_burst(kAtOnceHere);
  __atomic_store_n(&stop, 0, __ATOMIC_RELEASE);
  pthread_t some[kAtOnceHere];
  for (int i = 0; i < kAtOnceHere; i++) some[i] = start(idles, 0);
  usleep(1000000);
  join(start(ends, 0));
  CHECK_MSG(threads() == 1 + kAtOnceHere + 1, "%d threads", threads());
  __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
  for (int i = 0; i < kAtOnceHere; i++) join(some[i]);
  CHECK(comes_to_be_alone());
}

// --- As many threads as the limit allows.

CASE(as_many_threads_as_there_may_be) {
  const unsigned user = 600000 + (unsigned)getpid();  // a user with no other process
  if (geteuid() != 0) SKIP("setuid needs root");
  REQUIRE(setgid(user) == 0 && setuid(user) == 0);
  struct rlimit limit = {4, 4};
  REQUIRE(setrlimit(RLIMIT_NPROC, &limit) == 0);
  for (int round = 0; round < 3; round++) {
    stop = 0;
    pthread_t some[3], more;
    for (int i = 0; i < 3; i++) some[i] = start(idles, 0);
    CHECK(pthread_create(&more, NULL, idles, NULL) == EAGAIN);
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < 3; i++) join(some[i]);
    CHECK(comes_to_be_alone());
  }
}

// --- The pthread_create and the fork handlers of another library.

static void starts_a_helper(void) {
  const int before = plugin_helpers(), created = plugin_created();
  plugin_wants_a_helper();
  join(start(ends, 0));
  CHECK(plugin_helpers() == before + 1);
  CHECK(plugin_created() >= created + 2);
  join(start(ends, 0));
  CHECK(comes_to_be_alone());
}
CASE(another_librarys_pthread_create_starts_a_helper) { starts_a_helper(); }
CHILD(starts_a_helper_there) { starts_a_helper(); }
CASE(another_librarys_pthread_create_comes_first) {
  const char* ours = getenv("LD_PRELOAD");
  char both[2 * PATH_MAX];
  Dl_info info;
  REQUIRE(dladdr((void*)plugin_created, &info));
  snprintf(both, sizeof both, "%s %s", info.dli_fname, ours ? ours : "");
  setenv("LD_PRELOAD", both, 1);
  run_child_with("starts_a_helper_there", getenv("LANEMALLOC_OPTIONS"));
  CHECK_CHILD(child_succeeded());
}

static pthread_t begun_in_child;
static void begin_in_child(void) {
  begun_in_child = start(ends, 0);
  use_memory();
}
static void* starts_and_joins(void* unused) {
  while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) join(start(ends, 0));
  return unused;
}
CASE(a_fork_handler_starts_a_thread_while_others_start_and_end) {
  plugin_calls_in_child(begin_in_child);
  pthread_t other = start(starts_and_joins, 0);
  for (int i = 0; i < 25; i++) {
    const pid_t pid = fork();
    if (pid == 0) {
      alarm(30);
      join(begun_in_child);
      use_memory();
      CHECK(comes_to_be_alone());
      join(start(ends, 0));
      CHECK(comes_to_be_alone());
      _exit(test_failures != 0);
    }
    wait_for(pid);
  }
  __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
  join(other);
}

// A thread that was inside a lane does not exist in the child, so the child must not wait for it.
// With one lane for all, a thread is nearly always inside.
static void use_memory_in_child(void) { turn_over(7, 3); }
static void fork_beside_workers(void) {
  plugin_calls_in_child(use_memory_in_child);
  pthread_t workers[3];
  for (unsigned i = 0; i < 3; i++) workers[i] = start(works, i + 1);
  for (int i = 0; i < 60; i++) {
    fork_and_use();
  }
  __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
  for (int i = 0; i < 3; i++) join(workers[i]);
}
CHILD(forks_with_one_lane) { fork_beside_workers(); }
CASE(a_fork_handler_allocates_where_others_were_inside) {
  run_child_with("forks_with_one_lane", "lanes=shared:1");
  CHECK_CHILD(child_succeeded());
  fork_beside_workers();
}

// --- Spawned programs, and daemons.

static void* spawns(void* unused) {
  for (int i = 0; i < 8; i++) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    sigemptyset(&none);
    REQUIRE(posix_spawn_file_actions_init(&actions) == 0 && posix_spawnattr_init(&attributes) == 0);
    REQUIRE(posix_spawn_file_actions_addopen(&actions, 7, "/dev/null", O_RDWR, 0) == 0);
    REQUIRE(posix_spawn_file_actions_adddup2(&actions, 7, STDOUT_FILENO) == 0);
    REQUIRE(posix_spawn_file_actions_addclose(&actions, 7) == 0);
    REQUIRE(posix_spawnattr_setsigmask(&attributes, &none) == 0);
    REQUIRE(posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP) ==
            0);
    char* arguments[] = {"true", NULL};
    pid_t pid;
    REQUIRE(posix_spawn(&pid, "/bin/true", &actions, &attributes, arguments, environ) == 0);
    wait_for(pid);
    CHECK(posix_spawnp(&pid, "no-such-program-anywhere", &actions, &attributes, arguments,
                       environ) == ENOENT);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  return unused;
}
CASE(threads_spawn_while_others_fork_and_allocate) {
  pthread_t spawners[2], worker = start(works, 5);
  for (int i = 0; i < 2; i++) spawners[i] = start(spawns, 0);
  for (int i = 0; i < 20; i++) {
    fork_and_use();
  }
  for (int i = 0; i < 2; i++) join(spawners[i]);
  __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
  join(worker);
}

CASE(a_daemon_of_a_threaded_process_starts_threads) {
  pthread_t worker = start(works, 5);
  int told[2];
  REQUIRE(pipe(told) == 0);
  const pid_t pid = fork();
  if (pid == 0) {
    if (daemon(1, 1) != 0) _exit(9);
    use_memory();
    for (int i = 0; i < 3; i++) join(start(ends, 0));
    char result = (char)(comes_to_be_alone() && test_failures == 0);
    REQUIRE(write(told[1], &result, 1) == 1);
    _exit(0);
  }
  wait_for(pid);
  close(told[1]);
  char result = 0;
  CHECK(read(told[0], &result, 1) == 1 && result == 1);
  __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
  join(worker);
}

// --- Threads that pthread_create does not start, and one that starts before main.

static int runs_c11(void* unused) {
  (void)unused;
  use_memory();
  return 7;
}
static int timer_calls;
static void on_timer(union sigval unused) {
  (void)unused;
  use_memory();
  __atomic_fetch_add(&timer_calls, 1, __ATOMIC_SEQ_CST);
}
CASE(threads_of_the_c_librarys_own) {
  thrd_t thread;
  int result = 0;
  REQUIRE(thrd_create(&thread, runs_c11, NULL) == thrd_success);
  REQUIRE(thrd_join(thread, &result) == thrd_success && result == 7);
  struct sigevent event = {.sigev_notify = SIGEV_THREAD};
  event.sigev_notify_function = on_timer;
  timer_t timer;
  REQUIRE(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
  const struct itimerspec often = {{0, 5000000}, {0, 5000000}};
  REQUIRE(timer_settime(timer, 0, &often, NULL) == 0);
  while (__atomic_load_n(&timer_calls, __ATOMIC_SEQ_CST) < 10) turn_over(3, 10);
  timer_delete(timer);
  join(start(ends, 0));
}

static pthread_t before_main;
static int wants_thread_before_main;
__attribute__((constructor(200))) static void start_before_main(int count, char** arguments) {
  wants_thread_before_main = count > 1 && strcmp(arguments[1], "a_thread_from_before_main") == 0;
  if (wants_thread_before_main) before_main = start(works, 4);
}
CASE(a_thread_from_before_main) {
  REQUIRE(wants_thread_before_main);
  turn_over(1, 1000);
  fork_and_use();
  __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
  join(before_main);
  CHECK(comes_to_be_alone());
}

CASE(threads_with_the_smallest_stack) {
  pthread_attr_t small;
  REQUIRE(pthread_attr_init(&small) == 0);
  REQUIRE(pthread_attr_setstacksize(&small, (size_t)sysconf(_SC_THREAD_STACK_MIN)) == 0);
  for (int i = 0; i < 20; i++) {
    pthread_t thread;
    REQUIRE(pthread_create(&thread, &small, ends, NULL) == 0);
    join(thread);
  }
}

// --- Stacks that change under a thread.

static ucontext_t scheduler, coroutines[8];
static void* coroutine_stacks[8];
static void coroutine(int number) {
  for (int i = 0; i < 50; i++) {
    unsigned char* object = malloc((size_t)(number * 50 + i + 1));
    REQUIRE(object != NULL);
    fill(object, (size_t)(number * 50 + i + 1), (unsigned)number);
    swapcontext(&coroutines[number], &scheduler);
    CHECK(filled(object, (size_t)(number * 50 + i + 1), (unsigned)number));
    free(object);
  }
}
static void* resumes_all(void* unused) {
  for (int i = 0; i < 8; i++)
    if (coroutine_stacks[i]) swapcontext(&scheduler, &coroutines[i]);
  return unused;
}
CASE(coroutines_allocate_on_stacks_of_their_own_in_several_threads) {
  for (int i = 0; i < 8; i++) {
    REQUIRE(coroutine_stacks[i] = malloc(65536));
    REQUIRE(getcontext(&coroutines[i]) == 0);
    coroutines[i].uc_stack.ss_sp = coroutine_stacks[i];
    coroutines[i].uc_stack.ss_size = 65536;
    coroutines[i].uc_link = &scheduler;
    makecontext(&coroutines[i], (void (*)(void))coroutine, 1, i);
  }
  // Each coroutine goes on in another thread than before: 50 times, and once more to its end.
  for (int i = 0; i < 51; i++) {
    if (i % 2)
      join(start(resumes_all, 0));
    else
      resumes_all(NULL);
  }
  for (int i = 0; i < 8; i++) free(coroutine_stacks[i]);
}

static int signals_seen;
static void on_signal(int number) {
  (void)number;
  turn_over(9, 1);
  free(malloc(300000));
  __atomic_fetch_add(&signals_seen, 1, __ATOMIC_SEQ_CST);
}
static void* works_with_a_signal_stack(void* seed) {
  stack_t other = {.ss_sp = malloc((size_t)SIGSTKSZ), .ss_size = (size_t)SIGSTKSZ};
  REQUIRE(other.ss_sp && sigaltstack(&other, NULL) == 0);
  works(seed);
  other.ss_flags = SS_DISABLE;
  REQUIRE(sigaltstack(&other, NULL) == 0);
  free(other.ss_sp);
  return NULL;
}
CASE(lanemalloc_handlers_on_a_stack_of_their_own_allocate) {
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK | SA_RESTART};
  REQUIRE(sigaction(SIGUSR1, &action, NULL) == 0);

  pthread_t workers[2];
  for (unsigned i = 0; i < 2; i++) workers[i] = start(works_with_a_signal_stack, i + 1);
  for (int i = 0; i < 200; i++) {
    usleep(500);
    REQUIRE(pthread_kill(workers[i % 2], SIGUSR1) == 0);
  }
  __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
  for (int i = 0; i < 2; i++) join(workers[i]);
  CHECK(signals_seen > 0);
}

// Another thread may end this one at any instruction. At most what the thread had is lost.
static void* may_end_anywhere(void* unused) {
  pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
  for (;;) free(malloc(100));
  return unused;
}
CASE(lanemalloc_asynchronous_cancellation_in_malloc) {
  for (int i = 0; i < 40; i++) {
    pthread_t thread = start(may_end_anywhere, 0);
    usleep((unsigned)(100 + i * 37 % 300));
    REQUIRE(pthread_cancel(thread) == 0);
    join(thread);
  }
  join(start(ends, 0));
  use_memory();
}

// --- Limits, and a process that may make hardly any system call.

static void on_cpu_time(int number) {
  (void)number;
  __atomic_fetch_add(&signals_seen, 1, __ATOMIC_SEQ_CST);
}
CASE(limits_of_files_and_of_time) {
  const struct rlimit none = {0, 0};
  struct rlimit second = {1, 60};
  REQUIRE(signal(SIGXCPU, on_cpu_time) != SIG_ERR && signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
  REQUIRE(setrlimit(RLIMIT_FSIZE, &none) == 0);
  REQUIRE(setrlimit(RLIMIT_CPU, &second) == 0);
  pthread_t worker = start(works, 2);
  const int file = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  REQUIRE(file >= 0);
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  while (!__atomic_load_n(&signals_seen, __ATOMIC_SEQ_CST)) turn_over(1, 100);
  join(start(ends, 0));
  __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
  join(worker);
  CHECK(open("/dev/null", O_RDONLY) < 0);
}

// README, Limits.
CASE(lanemalloc_takes_two_keys) {
  free(hide(malloc(100)));
  pthread_key_t key;
  int n = 0;
  while (pthread_key_create(&key, NULL) == 0) n++;
  CHECK_MSG(n == PTHREAD_KEYS_MAX - 2, "%d keys of %d are left", n, PTHREAD_KEYS_MAX);
}

// Settings that a process may make for itself. If the process runs as nobody, PR_SET_DUMPABLE
// takes from it its own files in /proc.
CASE(what_prctl_sets_changes_nothing) {
  const unsigned long settings[][2] = {{PR_SET_NO_NEW_PRIVS, 1},    {PR_SET_DUMPABLE, 0},
                                       {PR_SET_THP_DISABLE, 1},     {PR_SET_TIMERSLACK, 1},
                                       {PR_SET_TSC, PR_TSC_ENABLE}, {PR_SET_CHILD_SUBREAPER, 1}};
  for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
    if (prctl((int)settings[i][0], settings[i][1], 0, 0, 0) != 0)
      CHECK_MSG(errno == EINVAL, "setting %zu", i);
    turn_over((unsigned)i, 100);
    join(start(ends, 0));
    fork_and_use();
  }
  REQUIRE(setgid(65534) == 0 && setuid(65534) == 0);
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  join(start(ends, 0));
  fork_and_use();
}

CASE(a_thread_in_strict_seccomp_uses_what_is_there) {
  const pid_t pid = fork();
  if (pid == 0) {
    turn_over(1, 100);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0) _exit(kStatusSkipped);
    turn_over(2, 100);
    syscall(SYS_exit, test_failures != 0);
  }
  const int status = status_of(pid);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kStatusSkipped) SKIP("no strict seccomp here");
  CHECK_MSG(status == 0, "status 0x%x", status);
}

static void* changes_cpus(void* unused) {
  cpu_set_t all, one;
  REQUIRE(sched_getaffinity(0, sizeof all, &all) == 0);
  while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
      if (!CPU_ISSET(cpu, &all)) continue;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
      turn_over(6, 20);
    }
  }
  return unused;
}
CASE(threads_are_moved_from_cpu_to_cpu) {
  pthread_t threads[3];
  for (int i = 0; i < 3; i++) threads[i] = start(changes_cpus, 0);
  for (int i = 0; i < 20; i++) turn_over(1, 100);
  __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
  for (int i = 0; i < 3; i++) join(threads[i]);
}

// --- A tracer.

// step_through stops a thread, makes it go on instruction by instruction for a while, and lets it
// go. The thread must make progress meanwhile.
static int* progress;
static void* counts(void* seed) {
  for (;;) {
    turn_over((unsigned)(uintptr_t)seed, 1);
    __atomic_fetch_add(&progress[(uintptr_t)seed], 1, __ATOMIC_RELAXED);
  }
  return NULL;
}
static void step_through(pid_t thread, int* counter) {
  int status;
  if (ptrace(PTRACE_ATTACH, thread, NULL, NULL) != 0) SKIP("no ptrace here: %s", strerror(errno));
  REQUIRE(waitpid(thread, &status, __WALL) == thread && WIFSTOPPED(status));
  const int before = __atomic_load_n(counter, __ATOMIC_RELAXED);
  long steps = 0;
  while (__atomic_load_n(counter, __ATOMIC_RELAXED) < before + 2 && ++steps < 300000) {
    REQUIRE(ptrace(PTRACE_SINGLESTEP, thread, NULL, NULL) == 0);
    REQUIRE(waitpid(thread, &status, __WALL) == thread && WIFSTOPPED(status));
  }
  CHECK_MSG(steps < 300000, "it did not get on in %ld instructions", steps);
  REQUIRE(ptrace(PTRACE_DETACH, thread, NULL, NULL) == 0);
}
CASE(a_tracer_steps_through_malloc) {
  progress = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(progress != MAP_FAILED);
  int told[2];
  REQUIRE(pipe(told) == 0);
  const pid_t pid = fork();
  if (pid == 0) {
    start(counts, 1);
    REQUIRE(write(told[1], "x", 1) == 1);
    counts((void*)0);
  }
  char x;
  REQUIRE(pid > 0 && read(told[0], &x, 1) == 1);
  while (progress[0] == 0 || progress[1] == 0) usleep(1000);
  step_through(pid, &progress[0]);
  const int after[2] = {progress[0], progress[1]};
  for (int i = 0; i < 10000 && (progress[0] < after[0] + 5 || progress[1] < after[1] + 5); i++)
    usleep(1000);
  CHECK(progress[0] >= after[0] + 5 && progress[1] >= after[1] + 5);
  REQUIRE(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
}
