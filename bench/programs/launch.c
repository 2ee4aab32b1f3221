// Runs one command and reports what it used:  launch REPORT [NAME=VALUE]... COMMAND [ARGUMENT]...
// The variables are set for the command alone, so that a preload does not reach this program.
// REPORT gets two lines:
//   pid=N      once the command is started
//   status=S wall_ns=N cpu_us=N peak_kib=N minor_faults=N major_faults=N
//              when it has ended (S as a shell reports it)
// The figures are wait4's: those of the command and of the processes that it waited for; the peak
// is that of its largest process. A small program does this because a child's peak starts at the
// resident memory of its parent.
// Nothing outlives this program: it adopts the processes that the command leaves behind, and kills
// them. When a signal tells this program to end (SIGTERM, SIGINT, SIGHUP), or when the process that
// started it dies, the command gets SIGINT and a while to end well.
// Called by: bench/programs/program.py.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../measure.h"

static void kill_children(void) {
  FILE* list = fopen("/proc/thread-self/children", "re");
  if (list == NULL) {
    perror("launch: /proc/thread-self/children");
    exit(125);
  }
  for (int pid; fscanf(list, "%d", &pid) == 1;) kill(pid, SIGKILL);
  fclose(list);
}

// Children of killed children become children of this program, so it repeats until there are none.
static void leave_nothing(void) {
  do {
    kill_children();
  } while (waitpid(-1, NULL, 0) > 0 || errno == EINTR);
}

static void run(char** variables, char** command, const sigset_t* mask) {
  sigprocmask(SIG_SETMASK, mask, NULL);
  signal(SIGINT, SIG_DFL);  // shells ignore it in background commands
  while (variables < command) putenv(*variables++);
  execvp(command[0], command);
  fprintf(stderr, "launch: %s: %s\n", command[0], strerror(errno));
  _exit(127);
}

// Waits for the command, and for the processes that it leaves meanwhile. Returns 0 if a signal
// tells this program to end, or when the time is over.
static int wait_for(pid_t command, const sigset_t* set, const struct timespec* limit, int* status,
                    struct rusage* usage) {
  for (;;) {
    int number = sigtimedwait(set, NULL, limit);
    if (number < 0 && errno == EINTR) continue;
    if (number != SIGCHLD) return 0;
    for (pid_t pid; (pid = wait4(-1, status, WNOHANG, usage)) > 0;) {
      if (pid == command) return 1;
    }
  }
}

static uint64_t microseconds(const struct timeval* t) {
  return (uint64_t)t->tv_sec * 1000000u + (uint64_t)t->tv_usec;
}

int main(int argc, char** argv) {
  char** words = argv + 2;
  while (words < argv + argc && strchr(*words, '=') != NULL) ++words;
  if (words >= argv + argc) {
    fputs("usage: launch REPORT [NAME=VALUE]... COMMAND [ARGUMENT]...\n", stderr);
    return 2;
  }
  pid_t parent = getppid();
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) return 125;  // the parent died before it could be watched
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  FILE* report = fopen(argv[1], "we");
  if (report == NULL) {
    fprintf(stderr, "launch: %s: %s\n", argv[1], strerror(errno));
    return 125;
  }
  sigset_t set, before;
  sigemptyset(&set);
  const int signals[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP};
  for (size_t i = 0; i < sizeof signals / sizeof *signals; ++i) sigaddset(&set, signals[i]);
  sigprocmask(SIG_BLOCK, &set, &before);

  uint64_t started = wall_ns();
  pid_t command = fork();
  if (command < 0) {
    perror("launch: fork");
    return 125;
  }
  if (command == 0) run(argv + 2, words, &before);
  fprintf(report, "pid=%d\n", command);
  fflush(report);

  int status = 0;
  struct rusage usage;
  int ended = wait_for(command, &set, NULL, &status, &usage);
  uint64_t wall = wall_ns() - started;
  if (!ended) {
    const struct timespec limit = {.tv_sec = 5};
    sigset_t child;  // a parent of several threads dies more than once
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    kill(command, SIGINT);
    wait_for(command, &child, &limit, &status, &usage);
  }
  leave_nothing();
  if (!ended) return 143;
  int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  uint64_t cpu = microseconds(&usage.ru_utime) + microseconds(&usage.ru_stime);
  fprintf(report,
          "status=%d wall_ns=%llu cpu_us=%llu peak_kib=%ld minor_faults=%ld major_faults=%ld\n",
          code, (unsigned long long)wall, (unsigned long long)cpu, usage.ru_maxrss, usage.ru_minflt,
          usage.ru_majflt);
  return fclose(report) == 0 ? 0 : 125;
}
