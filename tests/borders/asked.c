// docs/system-calls.md lists the system calls of the library. A program that uses all of the
// library runs under a filter. The filter lets the calls of that page pass, and reports every other
// call to a supervisor. The instruction pointer tells whether the library made the call. This test
// does not see the calls that the C library makes for the library: for those,
// tests/docs/system_calls.py looks at the library's imports.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "child.h"
#include "run_threads.h"

static const struct Row {
  const char* name;
  long number;
} kRows[] = {
#define CALL(name) {#name, SYS_##name},
#define WITH(name, value)
#define NEEDED(name, when)
#include "system_calls.h"
};
enum { kRowCount = sizeof kRows / sizeof *kRows };

// --- The program.

static void* churn(void* rests) {
  enum { kObjects = 3000 };
  void** objects = (void**)calloc(kObjects, sizeof(void*));
  for (unsigned round = 0; round < 3; round++) {
    for (unsigned i = 0; i < kObjects; i++) objects[i] = malloc(1 + i * 37 % 3000);
    for (unsigned i = 0; i < kObjects; i++) free(objects[i]);
    void* large = malloc(3u << 20);
    large = realloc(large, 20u << 20);
    free(realloc(large, 40u << 20));
    if (rests) usleep(60000);
  }
  free(objects);
  return NULL;
}
static void* ends_without_a_word(void* unused) {
  (void)unused;
  free(hide(malloc(hide_size(100))));
  syscall(SYS_exit, 0);
  return NULL;
}
static int allocates(void* unused) {
  (void)unused;
  free(hide(malloc(hide_size(100))));
  return 0;
}
static void in_threads(void) {
  static int rests = 1;
  enum { kThreads = 3 };
  pthread_t threads[kThreads];
  for (int i = 0; i < kThreads; i++)
    REQUIRE(pthread_create(&threads[i], NULL, i == 0 ? ends_without_a_word : churn, &rests) == 0);
  churn(NULL);
  const pid_t pid = fork();
  if (pid == 0) {
    churn(NULL);
    _exit(0);
  }
  REQUIRE(waitpid(pid, NULL, 0) == pid);
  join_threads(threads, kThreads);
}
CHILD(uses_all_of_it) {
  int (*set)(const char*, const char*) =
      (int (*)(const char*, const char*))dlsym(RTLD_DEFAULT, "lane_set");
  int (*profile)(const char*, const char*) =
      (int (*)(const char*, const char*))dlsym(RTLD_DEFAULT, "lane_profile");
  REQUIRE(set && profile);
  churn(NULL);
  in_threads();
  pid_t pid = vfork();
  if (pid == 0) {
    allocates(NULL);
    _exit(0);
  }
  REQUIRE(waitpid(pid, NULL, 0) == pid);
  static char stack[64 << 10] __attribute__((aligned(16)));
  pid = clone(allocates, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
  REQUIRE(pid > 0 && waitpid(pid, NULL, 0) == pid);
  for (int i = 0; i < 3; i++) {
    static const char* const kLanes[] = {"percpu", "shared:2", "owned"};
    set("lanes", kLanes[i]);
    in_threads();
  }
  if (set("stats", "signal:USR2") == 0) raise(SIGUSR2);
  set("stats", "exit");
  profile("heap", "/dev/null");
  set("bad_pointer", "report");
  free((void*)(uintptr_t)hide_size(64));
}

// --- The supervisor.

// Returns the listener, or -1. `but` names a row that the filter leaves out; null: none.
static int listen_to_the_rest(const char* but) {
  struct sock_filter code[kRowCount + 3];
  unsigned n = 0;
  code[n++] =
      (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
  for (int i = 0; i < kRowCount; i++) {
    const int is_there = !but || strcmp(kRows[i].name, but) != 0;
    code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
                                             is_there ? (unsigned)kRows[i].number : ~0u,
                                             (unsigned char)(kRowCount - i), 0);
  }
  code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
  code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  struct sock_fprog program = {(unsigned short)n, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
  return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER,
                      &program);
}

// True if the code at this address of that process belongs to the library.
static int is_of_library(pid_t pid, uint64_t code) {
  char name[64], line[PATH_MAX + 128];
  snprintf(name, sizeof name, "/proc/%d/maps", pid);
  FILE* maps = fopen(name, "r");
  int is_it = 0;
  while (maps && fgets(line, sizeof line, maps)) {
    unsigned long begin, end;
    if (sscanf(line, "%lx-%lx", &begin, &end) == 2 && code >= begin && code < end)
      is_it = strstr(line, getenv("CHECK_LIBRARY")) != NULL;
  }
  if (maps) fclose(maps);
  return is_it;
}

// Runs the program, and returns how many calls the library made that have no row. `number` gets the
// number of the last such call.
static int calls_without_row(const char* but, int* number) {
  int ready[2];
  if (syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &(unsigned){SECCOMP_RET_USER_NOTIF}) != 0)
    SKIP("no seccomp filters with a supervisor here");
  REQUIRE(kRowCount > 20 && kRowCount < 250 && pipe2(ready, O_CLOEXEC) == 0);
  static char options[256];
  const char* lanes = getenv("LANEMALLOC_OPTIONS");
  snprintf(options, sizeof options,
           "%s%sdecay_ms=40,sample=64k,profile=exit,profile_file=%s/"
           "asked.%%p.%%k,stats=exit,stats_file=%s/asked",
           lanes ? lanes : "", lanes ? "," : "", getenv("CHECK_WORK"), getenv("CHECK_WORK"));
  // Up to the exec, parent and child share one table of descriptors.
  const pid_t pid = (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
  if (pid == 0) {
    const int listener = listen_to_the_rest(but);
    if (write(ready[1], &listener, sizeof listener) != sizeof listener || listener < 0) _exit(9);
    setenv("LANEMALLOC_OPTIONS", options, 1);
    execl("/proc/self/exe", "/proc/self/exe", "uses_all_of_it", NULL);
    _exit(9);
  }
  int listener;
  REQUIRE(pid > 0 && read(ready[0], &listener, sizeof listener) == sizeof listener &&
          listener >= 0);
  int found = 0, seen = 0, status = -1;
  for (pid_t ended = 0; ended == 0; ended = waitpid(pid, &status, WNOHANG)) {
    struct pollfd file = {listener, POLLIN, 0};
    struct seccomp_notif asked;
    memset(&asked, 0, sizeof asked);
    if (poll(&file, 1, 100) != 1 || !(file.revents & POLLIN) ||
        ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &asked) != 0)
      continue;
    ++seen;
    if (is_of_library((pid_t)asked.pid, asked.data.instruction_pointer)) {
      ++found;
      *number = asked.data.nr;
    }
    struct seccomp_notif_resp answer = {asked.id, 0, 0, SECCOMP_USER_NOTIF_FLAG_CONTINUE};
    ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
  }
  close(listener);
  REQUIRE(status == 0 && seen > 0);
  return found;
}

CASE(lanemalloc_asks_nothing_that_has_no_row) {
  int number = 0;
  const int found = calls_without_row(NULL, &number);
  CHECK_MSG(found == 0, "%d calls; the last was of number %d", found, number);
}
// Each call comes from a different part of the library, the first one from its start.
CASE(lanemalloc_a_call_that_has_no_row_is_found) {
  static const char* const kSome[] = {
      "getrandom",
      "membarrier",
      "mremap",
#ifdef SYS_vfork
      "vfork",
#endif
  };
  for (unsigned i = 0; i < sizeof kSome / sizeof *kSome; i++) {
    int number = 0;
    CHECK_MSG(calls_without_row(kSome[i], &number) > 0, "%s", kSome[i]);
    for (int row = 0; row < kRowCount; row++)
      if (strcmp(kRows[row].name, kSome[i]) == 0)
        CHECK_MSG(number == kRows[row].number, "%s", kSome[i]);
  }
}
