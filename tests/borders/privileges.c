// The scavenger is a thread of the program like the other threads: it follows setuid, it is gone
// when the last of them is, and it does not exist when the kernel must see one thread. A system
// call that is refused for a while does not end it.
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "child.h"
#include "run_threads.h"
#include "tasks.h"

enum { kNobody = 65534, kPieces = 200, kPiece = 1 << 20, kMiB = 1 << 20 };

static int stop_idling;
static int idling;
static void* idle(void* unused) {
  free(malloc(1000));
  __atomic_fetch_add(&idling, 1, __ATOMIC_SEQ_CST);
  while (!__atomic_load_n(&stop_idling, __ATOMIC_ACQUIRE)) usleep(1000);
  return unused;
}
static pthread_t start_idle(void) {
  const int before = idling;
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, idle, NULL) == 0);
  while (__atomic_load_n(&idling, __ATOMIC_SEQ_CST) == before) usleep(100);
  return thread;
}
static void end_idle(pthread_t thread) {
  __atomic_store_n(&stop_idling, 1, __ATOMIC_RELEASE);
  REQUIRE(pthread_join(thread, NULL) == 0);
  stop_idling = 0;
}

static void burst(void) {
  static void* pieces[kPieces];
  for (int i = 0; i < kPieces; i++) REQUIRE(pieces[i] = memset(malloc(kPiece), 1, kPiece));
  for (int i = 0; i < kPieces; i++) free(pieces[i]);
}
// True if resident memory falls to this many bytes. The time limit is no bound on speed.
static int comes_down_to(size_t bytes) {
  for (int i = 0; i < 100; i++) {
    if (status_bytes("VmRSS:") <= bytes) return 1;
    usleep(100000);
  }
  return 0;
}

// Calls look with the status file of each thread. for_each_thread returns the sum of the results.
static int look_at_status(pid_t task, const void* look) {
  char path[64];
  snprintf(path, sizeof path, "/proc/self/task/%d/status", task);
  FILE* status = fopen(path, "r");
  if (!status) return 0;
  const int found = (*(int (*const*)(FILE*))look)(status);
  fclose(status);
  return found;
}
static int for_each_thread(int (*look)(FILE* status)) {
  return for_each_task(look_at_status, &look);
}
// True if the thread has a user or group from before, or a capability.
static int is_privileged(FILE* status) {
  char line[512];
  int found = 0;
  while (fgets(line, sizeof line, status)) {
    unsigned a, b, c, d;
    if (sscanf(line, "Uid: %u %u %u %u", &a, &b, &c, &d) == 4 ||
        sscanf(line, "Gid: %u %u %u %u", &a, &b, &c, &d) == 4)
      found |= a != kNobody || b != kNobody || c != kNobody || d != kNobody;
    unsigned long long effective;
    if (sscanf(line, "CapEff: %llx", &effective) == 1 ||
        sscanf(line, "CapPrm: %llx", &effective) == 1)
      found |= effective != 0;
  }
  return found;
}

static void need_root(void) {
  if (geteuid() != 0) SKIP("setuid needs root");
}

CASE(no_thread_keeps_privileges_after_setuid) {
  need_root();
  pthread_t other = start_idle();
  burst();
  REQUIRE(setgroups(0, NULL) == 0);
  REQUIRE(setresgid(kNobody, kNobody, kNobody) == 0);
  REQUIRE(setuid(kNobody) == 0);
  CHECK(for_each_thread(is_privileged) == 0);
  burst();
  usleep(600000);
  CHECK(for_each_thread(is_privileged) == 0);
  end_idle(other);
  CHECK(for_each_thread(is_privileged) == 0);
}

CASE(nor_once_the_process_is_alone_and_gives_them_up_by_itself) {
  need_root();
  pthread_t other = start_idle();
  burst();
  end_idle(other);
  burst();
  // The raw system call, which a program with one thread may use: it changes the calling thread
  // only.
  REQUIRE(syscall(SYS_setresgid, kNobody, kNobody, kNobody) == 0);
  REQUIRE(syscall(SYS_setresuid, kNobody, kNobody, kNobody) == 0);
  CHECK(for_each_thread(is_privileged) == 0);
  burst();
  usleep(600000);
  CHECK(for_each_thread(is_privileged) == 0);
}

// The C library's join returns just before the kernel is done with the thread.
static int until_alone(int (*run)(void)) {
  for (int i = 0; i < 1000; i++) {
    if (run() == 0) return 0;
    if (errno != EINVAL) return -1;
    usleep(1000);
  }
  return -1;
}
static int unshare_user(void) { return unshare(CLONE_NEWUSER); }
static int unshare_threads(void) { return unshare(CLONE_VM); }
static void unshare_or_skip(void) {
  if (until_alone(unshare_threads) != 0)
    CHECK_MSG(0, "the kernel counts more than one thread: %d", threads());
  if (until_alone(unshare_user) != 0) {
    if (errno == EPERM || errno == ENOSPC) SKIP("no user name spaces here");
    CHECK_MSG(0, "unshare(CLONE_NEWUSER): %s", strerror(errno));
  }
}

CASE(unshare_once_all_threads_are_joined) {
  pthread_t others[3];
  for (int i = 0; i < 3; i++) others[i] = start_idle();
  burst();
  for (int i = 0; i < 3; i++) end_idle(others[i]);
  unshare_or_skip();
}
CASE(unshare_in_a_child_of_a_threaded_process) {
  pthread_t other = start_idle();
  burst();
  pid_t pid = fork();
  if (pid == 0) {
    burst();
    usleep(600000);
    CHECK(threads() == 1);
    unshare_or_skip();
    _exit(test_failures != 0);
  }
  const int status = status_of(pid);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kStatusSkipped) SKIP("no user name spaces here");
  CHECK(status == 0);
  end_idle(other);
}
CASE(setns_once_all_threads_are_joined) {
  pthread_t other = start_idle();
  burst();
  end_idle(other);
  // Moves into the name space of a child, which is one level below.
  int told[2], go[2];
  REQUIRE(pipe(told) == 0 && pipe(go) == 0);
  pid_t pid = fork();
  if (pid == 0) {
    char result = (char)(unshare(CLONE_NEWUSER) == 0);
    REQUIRE(write(told[1], &result, 1) == 1);
    close(go[1]);
    _exit((int)read(go[0], &result, 1));
  }
  char result = 0;
  REQUIRE(pid > 0 && read(told[0], &result, 1) == 1);
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/ns/user", (int)pid);
  const int space = open(path, O_RDONLY | O_CLOEXEC);
  const int moved = result ? setns(space, CLONE_NEWUSER) : 0;
  const int error = errno;
  close(go[1]);
  REQUIRE(waitpid(pid, NULL, 0) == pid);
  if (!result) SKIP("no user name spaces here");
  CHECK_MSG(moved == 0, "setns: %s", strerror(error));
}

CASE(a_process_with_one_thread_has_one) {
  burst();
  usleep(600000);
  CHECK(threads() == 1);
  for (int i = 0; i < 3; i++) end_idle(start_idle());
  burst();
  for (int i = 0; i < 1000 && threads() != 1; i++) usleep(1000);
  CHECK(threads() == 1);
  usleep(600000);
  CHECK(threads() == 1);
}

CASE(memory_comes_back_after_vfork_and_exec) {
  pthread_t other = start_idle();
  pid_t pid = vfork();
  if (pid == 0) {
    for (int i = 0; i < 100; i++) free(malloc(100000));
    execl("/bin/true", "true", (char*)NULL);
    _exit(9);
  }
  CHECK(status_of(pid) == 0);
  burst();
  CHECK_MSG(comes_down_to(20 * kMiB), "%zu bytes stay", status_bytes("VmRSS:"));
  end_idle(other);
}

// Becomes the user nobody, since limits do not hold for root.
static void become_nobody(void) {
  need_root();
  REQUIRE(setgid(kNobody) == 0 && setuid(kNobody) == 0);
}
CASE(memory_comes_back_after_threads_were_refused_for_a_moment) {
  become_nobody();
  pthread_t other = start_idle();
  struct rlimit limit, none = {1, 1};
  REQUIRE(getrlimit(RLIMIT_NPROC, &limit) == 0);
  none.rlim_max = limit.rlim_max;
  burst();
  REQUIRE(setrlimit(RLIMIT_NPROC, &none) == 0);
  pthread_t refused;
  burst();
  usleep(700000);
  CHECK(pthread_create(&refused, NULL, idle, NULL) == EAGAIN);
  REQUIRE(setrlimit(RLIMIT_NPROC, &limit) == 0);
  burst();
  CHECK_MSG(comes_down_to(20 * kMiB), "%zu bytes stay", status_bytes("VmRSS:"));
  end_idle(other);
}
// Threads are refused from before the first one starts.
CASE(memory_comes_back_where_the_first_thread_was_refused) {
  become_nobody();
  struct rlimit limit, none = {1, 1};
  REQUIRE(getrlimit(RLIMIT_NPROC, &limit) == 0);
  none.rlim_max = limit.rlim_max;
  REQUIRE(setrlimit(RLIMIT_NPROC, &none) == 0);
  pthread_t refused;
  CHECK(pthread_create(&refused, NULL, idle, NULL) == EAGAIN);
  REQUIRE(setrlimit(RLIMIT_NPROC, &limit) == 0);
  pthread_t other = start_idle();
  burst();
  CHECK_MSG(comes_down_to(20 * kMiB), "%zu bytes stay", status_bytes("VmRSS:"));
  end_idle(other);
}

// The scavenger may run on every CPU that the process may use, as an ordinary thread. It inherits
// neither the CPUs nor the policy of the thread that happened to start it.
static int is_bound(FILE* status) {
  char line[512];
  while (fgets(line, sizeof line, status))
    if (strncmp(line, "Cpus_allowed_list:", 18) == 0)
      return strchr(line, '-') == NULL && strchr(line, ',') == NULL;
  return 0;
}
static void* bind_and_start(void* thread) {
  cpu_set_t first;
  CPU_ZERO(&first);
  CPU_SET(sched_getcpu(), &first);
  REQUIRE(pthread_setaffinity_np(pthread_self(), sizeof first, &first) == 0);
  struct sched_param parameter = {.sched_priority = 1};
  if (pthread_setschedparam(pthread_self(), SCHED_FIFO, &parameter) != 0)
    say("no SCHED_FIFO here\n");
  *(pthread_t*)thread = start_idle();
  return NULL;
}
CASE(lanemalloc_affinity_and_policy_are_not_those_of_whoever_started_it) {
  if (sysconf(_SC_NPROCESSORS_ONLN) < 2) SKIP("one CPU");
  pthread_t other;
  run_thread(bind_and_start, &other);
  burst();
  // The idle thread inherits both; the scavenger does not.
  CHECK(for_each_thread(is_bound) == 1);
  CHECK(threads_with_policy(SCHED_FIFO) <= 1);
  end_idle(other);
}

// The main thread has a policy of its own, and starts the first other thread. The scavenger starts
// just before that, and has the ordinary policy.
CASE(lanemalloc_policy_is_not_that_of_the_main_thread) {
  REQUIRE(sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0}) == 0);
  const pthread_t other = start_idle();
  burst();
  CHECK(threads_with_policy(SCHED_BATCH) == 2);
  CHECK(threads_with_policy(SCHED_OTHER) == 1);
  end_idle(other);
}

// Like a filter that knows only the calls that the C library makes for a program by itself.
static void forbid_what_the_c_library_does_not_call(void) {
#define FORBID(name)                                     \
  BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), \
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      FORBID(nanosleep),
      FORBID(clone),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
#undef FORBID
  struct sock_fprog program = {sizeof code / sizeof *code, code};
  REQUIRE(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0)
    SKIP("no seccomp filters here: %s", strerror(errno));
}
CASE(filters_for_all_threads_that_forbid_what_the_c_library_does_not_call) {
  pthread_t other = start_idle();
  burst();
  forbid_what_the_c_library_does_not_call();
  burst();
  CHECK_MSG(comes_down_to(20 * kMiB), "%zu bytes stay", status_bytes("VmRSS:"));
  end_idle(other);
  end_idle(start_idle());
}
