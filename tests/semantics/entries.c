// How threads enter lanes: lanes= at start, lane_entry() and lane_set_entry() while running, and
// what happens if percpu is not available.
#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "child.h"
#include "run_threads.h"

typedef size_t Entry(char* text, size_t size);
typedef int SetEntry(const char* lanes);

static const char* entry_now(void) {
  static char text[64];
  Entry* entry = (Entry*)dlsym(RTLD_DEFAULT, "lane_entry");
  REQUIRE(entry);
  size_t length = entry(text, sizeof text);
  CHECK_MSG(length == strlen(text), "%zu, not the length of '%s'", length, text);
  return text;
}
static int set_entry(const char* lanes) {
  SetEntry* set = (SetEntry*)dlsym(RTLD_DEFAULT, "lane_set_entry");
  REQUIRE(set);
  return set(lanes);
}

CHILD(tell_entry) { printf("%s", entry_now()); }

static bool tells(const char* options, const char* entry) {
  run_child_with("tell_entry", options);
  return child_succeeded() && strcmp(child.out, entry) == 0 && child.err[0] == 0;
}

CASE(lanemalloc_entry_in_use_is_told) {
  CHECK_CHILD(tells(NULL, "owned"));
  CHECK_CHILD(tells("lanes=owned", "owned"));
  CHECK_CHILD(tells("lanes=auto", "owned"));
  CHECK_CHILD(tells("lanes=shared:1", "shared:1"));
  CHECK_CHILD(tells("lanes=shared:4096", "shared:4096"));
  CHECK_CHILD(
      tells("lanes=shared:3,probes=all,scan=first,precedence=0,wait_on=random", "shared:3"));
  run_child_with("tell_entry", "lanes=shared");
  CHECK_CHILD(child_succeeded() && strncmp(child.out, "shared:", 7) == 0);
  run_child_with("tell_entry", "lanes=percpu");
  CHECK_CHILD(child_succeeded() && (strcmp(child.out, "percpu") == 0 ||
                                    lines_with("lanemalloc: ", "lanes=percpu: ") == 1));
}

CASE(lanemalloc_percpu_without_rseq_is_shared_and_told) {
  setenv("GLIBC_TUNABLES", "glibc.pthread.rseq=0", 1);
  run_child_with("tell_entry", "lanes=percpu");
  CHECK_CHILD(
      child_succeeded() && strncmp(child.out, "shared:", 7) == 0 && line_count() == 1 &&
      lines_with("lanemalloc: lanes=percpu: no restartable sequences here", "using shared:") == 1);
  unsetenv("GLIBC_TUNABLES");
}

CASE(lanemalloc_a_short_text_is_cut_and_its_length_told) {
  char text[4] = "xxx";
  Entry* entry = (Entry*)dlsym(RTLD_DEFAULT, "lane_entry");
  REQUIRE(entry);
  const size_t whole = entry(NULL, 0);
  CHECK(whole >= 5);
  CHECK(entry(text, sizeof text) == whole);
  CHECK(strlen(text) == 3);
}

CASE(lanemalloc_bad_entries_change_nothing) {
  char before[64];
  snprintf(before, sizeof before, "%s", entry_now());
  const char* const bad[] = {"",         "own",       "shared:",  "shared:0", "shared:4097",
                             "shared:x", "shared:-1", "percpu:2", "Owned"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    CHECK_MSG(set_entry(bad[i]) == EINVAL, "'%s'", bad[i]);
    CHECK_MSG(strcmp(entry_now(), before) == 0, "'%s'", bad[i]);
  }
}

// Threads allocate objects, hand them to each other and free them, while the entry changes under
// them.
enum { kThreads = 8, kObjects = 512 };
static _Atomic(unsigned char*) objects[kObjects];
static atomic_bool done;
static atomic_size_t exchanges;

static void* work(void* seed) {
  uint32_t random = (uint32_t)(uintptr_t)seed;
  while (!atomic_load_explicit(&done, memory_order_relaxed)) {
    random = random * 1664525 + 1013904223;
    size_t size = 16 + (random >> 8) % 1500;
    unsigned char* mine = malloc(size);
    REQUIRE(mine);
    memset(mine, (int)(size % 251), size);
    memcpy(mine, &size, sizeof size);
    unsigned char* theirs = atomic_exchange(&objects[(random >> 20) % kObjects], mine);
    atomic_fetch_add_explicit(&exchanges, 1, memory_order_relaxed);
    if (theirs == NULL) continue;
    memcpy(&size, theirs, sizeof size);
    REQUIRE(size >= 16 && size < 2000);
    for (size_t i = sizeof size; i < size; i++) REQUIRE(theirs[i] == size % 251);
    free(theirs);
  }
  return NULL;
}

CHILD(change_entries) {
  pthread_t threads[kThreads];
  for (uintptr_t i = 0; i < kThreads; i++)
    REQUIRE(pthread_create(&threads[i], NULL, work, (void*)(i + 1)) == 0);
  const char* const entries[] = {"shared:1",    "percpu", "shared:64", "owned",
                                 "shared:4096", "owned",  "percpu",    "shared:2"};
  for (size_t i = 0; i < 200; i++) {
    const char* entry = entries[i % (sizeof entries / sizeof entries[0])];
    const int result = set_entry(entry);
    CHECK_MSG(result == 0 || (result == ENOTSUP && strcmp(entry, "percpu") == 0), "%s: %d", entry,
              result);
    if (result == 0) CHECK_MSG(strcmp(entry_now(), entry) == 0, "%s, not %s", entry_now(), entry);
    const size_t from = atomic_load(&exchanges);
    while (atomic_load(&exchanges) < from + 2000) sched_yield();
  }
  atomic_store(&done, true);
  join_threads(threads, kThreads);
  for (size_t i = 0; i < kObjects; i++) free(objects[i]);
}
CASE(lanemalloc_entries_change_while_threads_work) {
  run_child_with("change_entries", NULL);
  CHECK_CHILD(child_succeeded());
  run_child_with("change_entries", "checked=1");
  CHECK_CHILD(child_succeeded());
}

// Some threads allocate a little and wait, in turns; others only allocate.
static int round_ended;
static int has_ended(void) { return __atomic_load_n(&round_ended, __ATOMIC_ACQUIRE); }
static void* waits(void* unused) {
  while (!has_ended()) {
    for (int i = 0; i < 10; i++) free(hide(malloc(100)));
    usleep(1000);
  }
  return unused;
}
static void* runs(void* unused) {
  while (!has_ended())
    for (int i = 0; i < 1000; i++) free(hide(malloc(100 + i % 8 * 100)));
  return unused;
}
// Waits until the entry is `wanted`, for at most `seconds`. Returns the entry then: "owned" or
// "other".
static const char* entry_comes_to_be(const char* wanted, int seconds) {
  for (int i = 0; i < seconds * 100 && strncmp(entry_now(), wanted, strlen(wanted)) != 0; i++)
    usleep(10000);
  return strncmp(entry_now(), "owned", 5) == 0 ? "owned" : "other";
}
CHILD(many_threads) {
  enum { kMost = 512 };
  static pthread_t threads[kMost];
  cpu_set_t cpus;
  REQUIRE(sched_getaffinity(0, sizeof cpus, &cpus) == 0);
  const unsigned many = 4 * (unsigned)CPU_COUNT(&cpus) + 4;
  REQUIRE(many <= kMost);
  const struct {
    unsigned count;
    void* (*run)(void*);
    const char* wanted;  // "-": the entry must stay as it is
    int seconds;
  } rounds[] = {{2, waits, "-", 2},
                {many, runs, "-", 2},
                {many, waits, "percpu", 20},
                {many, runs, "owned", 20},
                {many, waits, "percpu", 20}};
  const char* options = getenv("LANEMALLOC_OPTIONS");
  const bool is_auto = options != NULL && strstr(options, "auto") != NULL;
  for (int i = 0; i < (is_auto ? 5 : 3); i++) {
    __atomic_store_n(&round_ended, 0, __ATOMIC_RELEASE);
    for (unsigned n = 0; n < rounds[i].count; n++)
      REQUIRE(pthread_create(&threads[n], NULL, rounds[i].run, NULL) == 0);
    printf("%s ", entry_comes_to_be(rounds[i].wanted, is_auto ? rounds[i].seconds : 2));
    __atomic_store_n(&round_ended, 1, __ATOMIC_RELEASE);
    for (unsigned n = 0; n < rounds[i].count; n++) pthread_join(threads[n], NULL);
  }
}
CASE(lanemalloc_auto_leaves_owned_where_many_threads_wait_and_comes_back) {
  run_child_with("many_threads", "lanes=auto");
  if (set_entry("percpu") != 0) SKIP("lanes cannot be entered by CPU here");
  CHECK_CHILD(child_succeeded() && strcmp(child.out, "owned owned other owned other ") == 0);
  run_child_with("many_threads", NULL);
  CHECK_CHILD(child_succeeded() && strcmp(child.out, "owned owned owned ") == 0);
  run_child_with("many_threads", "lanes=owned");
  CHECK_CHILD(child_succeeded() && strcmp(child.out, "owned owned owned ") == 0);
}

// The system does not tell how often threads wait.
CHILD(threads_wait_and_it_is_not_told) {
  enum { kMany = 512 };
  static pthread_t threads[kMany];
  const unsigned count = 4 * (unsigned)sysconf(_SC_NPROCESSORS_CONF) + 4;
  REQUIRE(count <= kMany);
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getrusage, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const struct sock_fprog filter = {sizeof code / sizeof *code, code};
  REQUIRE(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  REQUIRE(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
  start_threads(threads, count, waits);
  printf("%s", entry_comes_to_be("percpu", 3));
  __atomic_store_n(&round_ended, 1, __ATOMIC_RELEASE);
  join_threads(threads, count);
}
CASE(lanemalloc_auto_without_getrusage_stays_owned) {
  if (syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &(unsigned){SECCOMP_RET_ERRNO}) != 0)
    SKIP("no seccomp filters here");
  run_child_with("threads_wait_and_it_is_not_told", "lanes=auto");
  CHECK_CHILD(child_succeeded() && strcmp(child.out, "owned") == 0 && child.err[0] == 0);
}

// In a control group whose quota pays for half a CPU, lanes=shared has one lane.
static bool write_text(const char* directory, const char* name, const char* text) {
  char path[200];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  int file = open(path, O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  bool good = write(file, text, strlen(text)) == (ssize_t)strlen(text);
  close(file);
  return good;
}
static bool tells_one_in(const char* root, const char* quota_file, const char* quota) {
  char group[100], pid[20];
  snprintf(pid, sizeof pid, "%d", (int)getpid());
  snprintf(group, sizeof group, "%s/lanemalloc-test-%s", root, pid);
  if (mkdir(group, 0755) != 0) return false;
  bool ready = write_text(group, quota_file, quota) && write_text(group, "cgroup.procs", pid);
  if (ready) {
    run_child_with("tell_entry", "lanes=shared");
    write_text(root, "cgroup.procs", pid);
  }
  rmdir(group);
  return ready;
}
CASE(lanemalloc_quota_of_the_control_group_bounds_the_cpus) {
  if (!tells_one_in("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "50000") &&
      !tells_one_in("/sys/fs/cgroup", "cpu.max", "50000 100000"))
    SKIP("no control group with a CPU quota can be made here");
  CHECK_CHILD(child_succeeded() && strcmp(child.out, "shared:1") == 0);
}
