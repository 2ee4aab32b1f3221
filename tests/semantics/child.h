// Runs a CHILD case of the same program as a process of its own, with options and limits, and keeps
// what it prints. Uses no memory of malloc itself. Included after check.h.
#ifndef TESTS_SEMANTICS_CHILD_H_
#define TESTS_SEMANTICS_CHILD_H_

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include "check.h"

extern char** environ;

enum { kChildText = 1 << 20, kChildOptions = 1 << 17, kChildSeconds = 90 };

struct Child {
  // What the child gets:
  const char* options;     // value of LANEMALLOC_OPTIONS; null: not set
  const char* argument;    // test_argument in the child
  const char* executable;  // null: this program
  int resource;            // limited to `limit`, unless that is 0
  rlim_t limit;
  int close_stderr;
  unsigned user;  // user and group; 0: those of this process
  // What the child has given:
  int status;  // as from waitpid; -1: killed after kChildSeconds
  char out[kChildText];
  char err[kChildText];
};
static struct Child child;

static double seconds_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void become_child(const char* name, int out, int err) {
  static char options[kChildOptions];
  static char* environment[1024];
  int count = 0;
  for (char** entry = environ; *entry && count < 1000; entry++)
    if (strncmp(*entry, "LANEMALLOC_OPTIONS=", 19) != 0) environment[count++] = *entry;
  if (child.options) {
    snprintf(options, sizeof options, "LANEMALLOC_OPTIONS=%s", child.options);
    environment[count++] = options;
  }
  const char* path = child.executable ? child.executable : "/proc/self/exe";
  char* arguments[] = {(char*)path, (char*)name, (char*)child.argument, NULL};
  struct rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none);
  dup2(out, STDOUT_FILENO);
  if (child.close_stderr) {
    close(STDERR_FILENO);
  } else {
    dup2(err, STDERR_FILENO);
  }
  if (child.user && (setgid(child.user) || setuid(child.user))) _exit(126);
  struct rlimit limit = {child.limit, child.limit};
  if (child.limit && setrlimit((__typeof__(RLIMIT_AS))child.resource, &limit)) _exit(126);
  execve(path, arguments, environment);
  _exit(127);
}

// Runs case `name` with the upper fields of `child`; returns when it and its output have ended.
UNUSED static void run_child(const char* name) {
  int out[2], err[2];
  child.out[0] = child.err[0] = 0;
  if (pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC)) abort();
  pid_t pid = fork();
  if (pid == 0) become_child(name, out[1], err[1]);
  if (pid < 0) abort();
  close(out[1]);
  close(err[1]);
  struct pollfd files[2] = {{out[0], POLLIN, 0}, {err[0], POLLIN, 0}};
  char* text[2] = {child.out, child.err};
  size_t used[2] = {0, 0};
  int timed_out = 0;
  double deadline = seconds_now() + kChildSeconds;
  while ((files[0].fd >= 0 || files[1].fd >= 0) && !timed_out) {
    timed_out = poll(files, 2, 1000) >= 0 && seconds_now() > deadline;
    for (int i = 0; i < 2; i++) {
      if (files[i].fd < 0 || !files[i].revents) continue;
      char spill[4096];
      size_t space = kChildText - 1 - used[i];
      ssize_t got = space ? read(files[i].fd, text[i] + used[i], space)
                          : read(files[i].fd, spill, sizeof spill);
      if (got <= 0) files[i].fd = -1;
      if (got > 0 && space) used[i] += (size_t)got;
    }
  }
  child.out[used[0]] = child.err[used[1]] = 0;
  if (timed_out) kill(pid, SIGKILL);
  waitpid(pid, &child.status, 0);
  if (timed_out) child.status = -1;
  close(out[0]);
  close(err[0]);
}

// Waits for a child by fork or clone; returns its status, as from waitpid.
UNUSED static int status_of(pid_t pid) {
  int status = -1;
  REQUIRE(pid > 0 && waitpid(pid, &status, __WALL) == pid);
  return status;
}

// Runs `name` with these options and nothing else.
UNUSED static void run_child_with(const char* name, const char* options) {
  memset(&child, 0, offsetof(struct Child, out));
  child.options = options;
  run_child(name);
}

UNUSED static int child_aborted(void) {
  return WIFSIGNALED(child.status) && WTERMSIG(child.status) == SIGABRT;
}
UNUSED static int child_succeeded(void) {
  return WIFEXITED(child.status) && WEXITSTATUS(child.status) == 0;
}

#define SHOW_CHILD()                                                                       \
  say("  child status 0x%x, stdout '%.900s', stderr '%.2000s'\n", child.status, child.out, \
      child.err)
#define CHECK_CHILD(expression)                                        \
  do {                                                                 \
    if (!(expression)) {                                               \
      CHECK_MSG(0 && #expression, "%s; options '%.200s'", #expression, \
                child.options ? child.options : "");                   \
      SHOW_CHILD();                                                    \
    }                                                                  \
  } while (0)

// Lines of the child's stderr that contain both texts.
UNUSED static int lines_with(const char* first, const char* second) {
  int count = 0;
  for (const char* line = child.err; *line;) {
    const char* end = strchr(line, '\n');
    size_t length = end ? (size_t)(end - line) : strlen(line);
    count +=
        memmem(line, length, first, strlen(first)) && memmem(line, length, second, strlen(second));
    line += length + (end != NULL);
  }
  return count;
}
UNUSED static int line_count(void) { return lines_with("", ""); }

// The value of `lanemalloc: NAME: VALUE` in the child's stderr; LLONG_MIN if there is no such line.
UNUSED static long long child_stat(const char* name) {
  char prefix[128];
  snprintf(prefix, sizeof prefix, "lanemalloc: %s: ", name);
  const char* line = strstr(child.err, prefix);
  return line ? strtoll(line + strlen(prefix), NULL, 10) : LLONG_MIN;
}

#endif  // TESTS_SEMANTICS_CHILD_H_
