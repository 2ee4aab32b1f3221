// Each system call that the allocator makes is refused, one at a time: with EPERM, as by filters,
// and with ENOSYS, as by old kernels; from before the program starts, and while the program runs,
// works and sleeps. The allocator answers as the C library would: with null at worst, and never
// with a crash, a hang or a damaged object.
// The calls are those of docs/system-calls.md; run.sh makes system_calls.h from that page. So each
// row there is tested here.
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "child.h"
#include "run_threads.h"

// CALL(mmap): every such call. WITH(futex, FUTEX_WAKE_PRIVATE): only if an argument has this value.
// NEEDED(mprotect, start): no program survives this refusal from its start, with any malloc;
// `later`: nor while it runs.
struct Call {
  const char* name;
  long number;
  const char* value_name;
  unsigned value;
};
static const struct Call kCalls[] = {
#define CALL(name) {#name, SYS_##name, NULL, 0},
#define WITH(name, value) {#name, SYS_##name, #value, (unsigned)(value)},
#define NEEDED(name, when)
#include "system_calls.h"
#undef CALL
#undef WITH
#undef NEEDED
};
static const struct Needed {
  const char* name;
  const char* when;
} kNeeded[] = {
#define CALL(name)
#define WITH(name, value)
#define NEEDED(name, when) {#name, #when},
#include "system_calls.h"
#undef CALL
#undef WITH
#undef NEEDED
};
enum {
  kCallCount = sizeof kCalls / sizeof *kCalls,
  kNeededCount = sizeof kNeeded / sizeof *kNeeded
};

static int is_needed(const struct Call* call, const char* when) {
  for (int i = 0; i < kNeededCount; i++)
    if (!call->value_name && strcmp(kNeeded[i].name, call->name) == 0 &&
        strcmp(kNeeded[i].when, when) == 0)
      return 1;
  return 0;
}

// The number of the argument that the value belongs to.
static int place_of(const char* value_name) {
  static const struct {
    const char* prefix;
    int place;
  } kPlaces[] = {{"FUTEX_", 1}, {"MEMBARRIER_", 0}, {"MADV_", 2}, {"PROT_", 2}};
  for (unsigned i = 0; i < sizeof kPlaces / sizeof *kPlaces; i++)
    if (strncmp(value_name, kPlaces[i].prefix, strlen(kPlaces[i].prefix)) == 0)
      return kPlaces[i].place;
  say("%s: which argument is that?\n", value_name);
  _exit(kStatusFailed);
}

static int refuse(const struct Call* call, int error) {
  const unsigned place = call->value_name ? (unsigned)place_of(call->value_name) : 0;
  const struct sock_filter look =
      call->value_name ? (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call->value, 0, 1)
                       : (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JA, 0, 0, 0);
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call->number, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)offsetof(struct seccomp_data, args) + 8 * place),
      look,
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ((unsigned)error & SECCOMP_RET_DATA)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof code / sizeof *code, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
  return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
}

// Objects of all sizes are checked and replaced; of large objects only the ends are checked. Null
// is a valid answer.
enum { kObjects = 64, kEnds = 2000 };
static void mark(unsigned char* object, size_t size, unsigned seed) {
  const size_t some = size < kEnds ? size : kEnds;
  fill(object, some, seed);
  if (size > some) object[size - 1] = (unsigned char)seed;
}
static int is_marked(const unsigned char* object, size_t size, unsigned seed) {
  const size_t some = size < kEnds ? size : kEnds;
  return filled(object, some, seed) && (size == some || object[size - 1] == (unsigned char)seed);
}
static void work_once(unsigned seed) {
  static __thread struct {
    unsigned char* at;
    size_t size;
    unsigned seed;
  } objects[kObjects];
  for (unsigned i = 0; i < 4 * kObjects; i++) {
    const unsigned random = (seed + i) * 2654435761u;
    const unsigned place = (random >> 8) % kObjects;
    if (objects[place].at) {
      REQUIRE(is_marked(objects[place].at, objects[place].size, objects[place].seed));
      const size_t size = objects[place].size * 3 / 2 + 1;
      if (random % 5 == 0 && size < (8u << 20)) {
        unsigned char* moved = (unsigned char*)realloc(objects[place].at, size);
        if (!moved) continue;
        REQUIRE(filled(moved, objects[place].size < kEnds ? objects[place].size : kEnds,
                       objects[place].seed));
        mark(objects[place].at = moved, objects[place].size = size, objects[place].seed);
        continue;
      }
      free(objects[place].at);
    }
    objects[place].size = random % 37 == 0   ? 3u << 20
                          : random % 31 == 0 ? 300000
                                             : random % 900 + 1;
    objects[place].seed = random;
    objects[place].at =
        (unsigned char*)(random % 3 ? malloc(objects[place].size) : calloc(1, objects[place].size));
    if (objects[place].at) mark(objects[place].at, objects[place].size, random);
  }
  for (unsigned i = 0; i < kObjects; i++) {
    if (objects[i].at) REQUIRE(is_marked(objects[i].at, objects[i].size, objects[i].seed));
    free(objects[i].at);
    objects[i].at = NULL;
  }
}
static void* work(void* seed) {
  for (unsigned i = 0; i < 2; i++) work_once(*(unsigned*)seed + i * 1000);
  return NULL;
}
static void work_in_threads(void) {
  enum { kThreads = 3 };
  pthread_t threads[kThreads];
  unsigned seeds[kThreads];
  int started = 0;
  for (; started < kThreads; started++) {
    seeds[started] = (unsigned)started * 77777;
    if (pthread_create(&threads[started], NULL, work, &seeds[started]) != 0) break;
  }
  unsigned mine = 5;
  work(&mine);
  join_threads(threads, started);
}
// Works, leaves memory to the scavenger, sleeps while the scavenger makes a pass, and works again.
static void* work_and_rest(void* seed) {
  work(seed);
  usleep(100000);
  return work(seed);
}
static void work_all(void) {
  work_in_threads();
  pthread_t thread;
  unsigned seed = 17;
  const int rests = pthread_create(&thread, NULL, work_and_rest, &seed) == 0;
  const pid_t pid = fork();
  if (pid == 0) {
    seed = 99;
    work(&seed);
    _exit(0);
  }
  if (pid > 0) {
    int status = -1;
    REQUIRE(waitpid(pid, &status, 0) == pid && status == 0);
  }
  const pid_t vfork_pid = vfork();
  if (vfork_pid == 0) {
    free(hide(malloc(hide_size(100))));
    _exit(0);
  }
  if (vfork_pid > 0) REQUIRE(waitpid(vfork_pid, NULL, 0) == vfork_pid);
  if (rests) REQUIRE(pthread_join(thread, NULL) == 0);
  work_in_threads();
}
// Asks the library for messages and files. Their text may be lost, but the request must not end the
// program. Another malloc than ours has no such functions.
static void ask_all(void) {
  int (*set)(const char*, const char*) =
      (int (*)(const char*, const char*))dlsym(RTLD_DEFAULT, "lane_set");
  int (*profile)(const char*, const char*) =
      (int (*)(const char*, const char*))dlsym(RTLD_DEFAULT, "lane_profile");
  if (!set || !profile) return;
  if (set("stats", "signal:USR2") == 0)
    pthread_kill(pthread_self(), SIGUSR2);  // if getpid() is refused, kill() hits all processes
  set("stats", "none");
  set("lanes", "percpu");
  work_in_threads();
  set("sample", "4k");
  work_in_threads();
  profile("heap", "/dev/null");
  set("bad_pointer", "report");
  free((void*)(uintptr_t)hide_size(64));
}

static struct Call later_call;
static int later_error;
static void parse(const char* argument) {
  int index;
  REQUIRE(sscanf(argument, "%d:%d", &index, &later_error) == 2 && index >= 0 && index < kCallCount);
  later_call = kCalls[index];
}

// Null is a valid answer only if memory cannot be mapped.
static void require_memory(void) {
  for (unsigned size = 16; size < (32u << 20); size *= 8) {
    void* object = hide(malloc(hide_size(size)));
    REQUIRE(object);
    free(object);
  }
}

CHILD(works_while_it_is_refused) {
  work_in_threads();
  // Another thread works on while the filter comes into force.
  pthread_t thread;
  unsigned seed = 3;
  REQUIRE(pthread_create(&thread, NULL, work_and_rest, &seed) == 0);
  parse(test_argument);
  REQUIRE(refuse(&later_call, later_error) == 0);
  work_all();
  pthread_join(thread, NULL);
  ask_all();
  if (strcmp(later_call.name, "mmap") != 0) require_memory();
}
CHILD(works) {
  require_memory();
  work_all();
  ask_all();
}
CHILD(refuses_and_runs) {
  parse(test_argument);
  REQUIRE(refuse(&later_call, later_error) == 0);
  extern char** environ;
  char* arguments[] = {(char*)"/proc/self/exe", (char*)"works", NULL};
  execve(arguments[0], arguments, environ);
  _exit(9);
}

static void run_refused(const char* name, int index, int error) {
  static char argument[64], options[256];
  const char* lanes = getenv("LANEMALLOC_OPTIONS");
  // The scavenger makes passes often.
  snprintf(options, sizeof options, "%s%sdecay_ms=40,stats=exit,stats_file=%s/figures.%%p",
           lanes ? lanes : "", lanes ? "," : "", getenv("CHECK_WORK"));
  snprintf(argument, sizeof argument, "%d:%d", index, error);
  memset(&child, 0, offsetof(struct Child, out));
  child.options = options;
  child.argument = argument;
  run_child(name);
}
static void each(const char* name, const char* when, int error) {
  if (syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &(unsigned){SECCOMP_RET_ERRNO}) != 0)
    SKIP("no seccomp filters here");
  REQUIRE(kCallCount > 20);
  for (int i = 0; i < kCallCount; i++) {
    if (is_needed(&kCalls[i], when)) continue;
    run_refused(name, i, error);
    if (child_succeeded()) continue;
    CHECK_MSG(0, "%s %s refused by %s", kCalls[i].name,
              kCalls[i].value_name ? kCalls[i].value_name : "", strerror(error));
    SHOW_CHILD();
  }
}
CASE(each_system_call_from_the_start) { each("refuses_and_runs", "start", EPERM); }
CASE(each_system_call_from_the_start_as_by_an_old_kernel) {
  each("refuses_and_runs", "start", ENOSYS);
}
CASE(each_system_call_while_it_works) { each("works_while_it_is_refused", "later", EPERM); }
CASE(each_system_call_while_it_works_as_by_an_old_kernel) {
  each("works_while_it_is_refused", "later", ENOSYS);
}

// A thread frees memory and then sleeps. The memory goes back to the system all the same.
static size_t resident(int statm) {
  char text[128];
  const ssize_t n = pread(statm, text, sizeof text - 1, 0);
  REQUIRE(n > 0);
  text[n] = '\0';
  return strtoull(strchr(text, ' '), NULL, 10) * (size_t)sysconf(_SC_PAGESIZE);
}
static int bursts;
static void* burst_and_sleep(void* unused) {
  (void)unused;
  enum { kEach = 2000, kMany = 16000 };
  void** objects = (void**)calloc(kMany, sizeof(void*));
  for (int i = 0; i < kMany; i++) memset(objects[i] = malloc(kEach), 1, kEach);
  for (int i = 0; i < kMany; i++) free(objects[i]);
  free(objects);
  __atomic_add_fetch(&bursts, 1, __ATOMIC_SEQ_CST);
  for (;;) pause();
  return NULL;
}
CHILD(gives_back) {
  enum { kThreads = 2 };
  const int statm = open("/proc/self/statm", O_RDONLY);
  parse(test_argument);
  REQUIRE(refuse(&later_call, later_error) == 0);
  const size_t before = resident(statm);
  pthread_t thread;
  for (int i = 0; i < kThreads; i++)
    REQUIRE(pthread_create(&thread, NULL, burst_and_sleep, NULL) == 0);
  for (int i = 0; i < 20000 && (bursts < kThreads || resident(statm) > before + (8u << 20)); i++)
    usleep(1000);
  REQUIRE(bursts == kThreads);
  const size_t now = resident(statm);
  CHECK_MSG(now <= before + (8u << 20), "%zu MiB stay", (now - before) >> 20);
  _exit(test_failures != 0);
}
CASE(lanemalloc_memory_comes_back_all_the_same) {
  static const char* const kSome[] = {"munmap",
                                      "mremap",
                                      "madvise",
                                      "prlimit64",
                                      "getrandom",
                                      "sched_getaffinity",
                                      "sched_setaffinity",
                                      "sched_setscheduler",
                                      "gettid",
                                      "getpid",
                                      "tgkill",
                                      "clock_gettime",
                                      "FUTEX_CMP_REQUEUE_PRIVATE"};
  enum { kSomeCount = sizeof kSome / sizeof *kSome };
  if (syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &(unsigned){SECCOMP_RET_ERRNO}) != 0)
    SKIP("no seccomp filters here");
  int found = 0;
  for (int i = 0; i < kCallCount; i++) {
    const char* name = kCalls[i].value_name ? kCalls[i].value_name : kCalls[i].name;
    for (int n = 0; n < kSomeCount; n++) {
      if (strcmp(kSome[n], name) != 0) continue;
      ++found;
      run_refused("gives_back", i, EPERM);
      CHECK_MSG(child_succeeded(), "%s", name);
      if (!child_succeeded()) SHOW_CHILD();
    }
  }
  REQUIRE(found == kSomeCount);
}

// The calls that are left out above are left out for good reason: the program fails without them
// under the C library's own malloc too.
CASE(what_nobody_can_be_refused) {
  if (syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &(unsigned){SECCOMP_RET_ERRNO}) != 0)
    SKIP("no seccomp filters here");
  unsetenv("LD_PRELOAD");
  for (int n = 0; n < kNeededCount; n++) {
    const int from_the_start = strcmp(kNeeded[n].when, "start") == 0;
    int i = 0;
    while (i < kCallCount && strcmp(kCalls[i].name, kNeeded[n].name) != 0) i++;
    REQUIRE(i < kCallCount);
    run_refused(from_the_start ? "refuses_and_runs" : "works_while_it_is_refused", i, EPERM);
    CHECK_MSG(!child_succeeded(), "%s can be refused (%s)", kNeeded[n].name, kNeeded[n].when);
  }
}
