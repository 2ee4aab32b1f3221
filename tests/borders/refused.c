// Each system call that the allocator makes is refused, one at a time: by EPERM, as filters do, and by ENOSYS, as old kernels do; from
// before the program starts, and while it runs. It answers as the C library would: null at the worst, and never a crash, a hang or an
// object that is damaged. docs/system-calls.md says what each is for.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "child.h"

static const struct Call {
  const char* name;
  int number;
  int from_the_start;  // the dynamic loader and the C library can do without
} kCalls[] = {
#define CALL(name, from_the_start) {#name, SYS_##name, from_the_start}
    CALL(mmap, 0),
    CALL(munmap, 0),
    CALL(mprotect, 0),
    CALL(mremap, 1),
    CALL(madvise, 1),
    CALL(membarrier, 1),
    CALL(getrandom, 1),
    CALL(sysinfo, 1),
    CALL(prlimit64, 1),
    CALL(sched_getaffinity, 1),
    CALL(sched_setaffinity, 1),
    CALL(sched_setscheduler, 1),
    CALL(sched_yield, 1),
    CALL(tgkill, 1),
    CALL(gettid, 1),
    CALL(getpid, 1),
    CALL(openat, 0),
    CALL(clock_gettime, 1),
#undef CALL
};
enum { kCallCount = sizeof kCalls / sizeof *kCalls };

static int refuse(int number, int error) {
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ((unsigned)error & SECCOMP_RET_DATA)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof code / sizeof *code, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
  return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
}

// Objects of all sizes, checked and exchanged; of large ones the ends. Null is an answer.
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
        REQUIRE(
            filled(moved, objects[place].size < kEnds ? objects[place].size : kEnds, objects[place].seed));
        mark(objects[place].at = moved, objects[place].size = size, objects[place].seed);
        continue;
      }
      free(objects[place].at);
    }
    objects[place].size = random % 37 == 0 ? 3u << 20 : random % 31 == 0 ? 300000 : random % 900 + 1;
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
  for (unsigned i = 0; i < 3; i++) work_once(*(unsigned*)seed + i * 1000);
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
  for (int i = 0; i < started; i++) REQUIRE(pthread_join(threads[i], NULL) == 0);
}
static void work_all(void) {
  work_in_threads();
  const pid_t pid = fork();
  if (pid == 0) {
    unsigned seed = 99;
    work(&seed);
    _exit(0);
  }
  if (pid > 0) {
    int status = -1;
    REQUIRE(waitpid(pid, &status, 0) == pid && status == 0);
  }
  work_in_threads();
}

static int later_number, later_error;
static void parse(const char* argument) {
  REQUIRE(sscanf(argument, "%d:%d", &later_number, &later_error) == 2);
}

CHILD(works_while_it_is_refused) {
  work_all();
  // Others work on while the filter comes.
  pthread_t thread;
  unsigned seed = 3;
  REQUIRE(pthread_create(&thread, NULL, work, &seed) == 0);
  parse(test_argument);
  REQUIRE(refuse(later_number, later_error) == 0);
  pthread_join(thread, NULL);
  work_all();
  // What waits to be given back, and what the scavenger does about it.
  usleep(50000);
  work_all();
}
CHILD(works) { work_all(); }
CHILD(refuses_and_runs) {
  parse(test_argument);
  REQUIRE(refuse(later_number, later_error) == 0);
  extern char** environ;
  char* arguments[] = {(char*)"/proc/self/exe", (char*)"works", NULL};
  execve(arguments[0], arguments, environ);
  _exit(9);
}

static void each(const char* name, int from_the_start) {
  static char argument[64];
  struct rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none);
  if (syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &(unsigned){SECCOMP_RET_ERRNO}) != 0)
    SKIP("no seccomp filters here");
  for (int i = 0; i < kCallCount; i++) {
    if (from_the_start && !kCalls[i].from_the_start) continue;
    const int errors[] = {EPERM, ENOSYS};
    for (int e = 0; e < 2; e++) {
      snprintf(argument, sizeof argument, "%d:%d", kCalls[i].number, errors[e]);
      memset(&child, 0, offsetof(struct Child, out));
      child.options = getenv("LANEMALLOC_OPTIONS");
      child.argument = argument;
      run_child(name);
      if (!child_succeeded()) {
        CHECK_MSG(0, "%s refused by %s", kCalls[i].name, strerror(errors[e]));
        SHOW_CHILD();
      }
    }
  }
}
CASE(each_system_call_from_the_start) { each("refuses_and_runs", 1); }
CASE(each_system_call_while_it_works) { each("works_while_it_is_refused", 0); }
