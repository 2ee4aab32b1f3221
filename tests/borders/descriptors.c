// Besides memory, the library uses a signal handler, descriptors and files of the process. It
// leaves alone those that the program uses itself.
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "check.h"
#include "child.h"

static int set_option(const char* name, const char* value) {
  int (*set)(const char*, const char*) =
      (int (*)(const char*, const char*))dlsym(RTLD_DEFAULT, "lane_set");
  REQUIRE(set != NULL);
  return set(name, value);
}

// Every write() of the process comes here, the library's too.
static int lowest_written = INT_MAX;  // the lowest descriptor that figures went to
ssize_t write(int fd, const void* bytes, size_t n) {
  if (fd < lowest_written && n > 0 && fd != STDOUT_FILENO) lowest_written = fd;
  return syscall(SYS_write, fd, bytes, n);
}

static char* path_of(const char* name) {
  static char paths[8][PATH_MAX];
  static int i;
  char* path = paths[i++ % 8];
  snprintf(path, PATH_MAX, "%s/%s.%d", getenv("CHECK_WORK"), name, getpid());
  return path;
}
static void put(const char* path, const char* text) {
  const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  REQUIRE(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
  close(fd);
}
static const char* content(const char* path) {
  static char text[1 << 16];
  const int fd = open(path, O_RDONLY | O_NOFOLLOW);
  const ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
  if (fd >= 0) close(fd);
  text[n > 0 ? n : 0] = 0;
  return text;
}
static int is_report(const char* text) {
  return strstr(text, "lanemalloc: ") != NULL && strlen(text) > 500;
}

// --- Signals.

CHILD(raises_hangup) {
  struct sigaction action;
  REQUIRE(sigaction(SIGHUP, NULL, &action) == 0);
  CHECK(action.sa_handler == SIG_IGN);
  raise(SIGHUP);
}
CASE(lanemalloc_ignored_signal_stays_ignored) {
  signal(SIGHUP, SIG_IGN);  // as nohup does
  run_child_with("raises_hangup", "stats=signal:HUP");
  CHECK_CHILD(child_succeeded());
  CHECK_CHILD(line_count() == 1 && lines_with("stats=signal:HUP", "ignored") == 1);
}

static volatile int own_calls;
static void own_handler(int number) {
  (void)number;
  own_calls = own_calls + 1;
}
CASE(lanemalloc_handler_of_the_program_stays) {
  signal(SIGUSR2, own_handler);
  CHECK(set_option("stats", "signal:USR2") == EBUSY);
  signal(SIGUSR1, SIG_IGN);
  CHECK(set_option("stats", "exit+signal:USR1") == EBUSY);
  raise(SIGUSR1);
  raise(SIGUSR2);
  CHECK(own_calls == 1);
  // A setting that is refused leaves the earlier one in force.
  CHECK(set_option("stats", "signal:WINCH") == 0);
  CHECK(set_option("stats", "signal:USR2") == EBUSY);
  struct sigaction action;
  sigaction(SIGWINCH, NULL, &action);
  CHECK(action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
  CHECK(set_option("stats", "none") == 0);
  sigaction(SIGWINCH, NULL, &action);
  CHECK(action.sa_handler == SIG_DFL);
  raise(SIGUSR2);
  CHECK(own_calls == 2);
}

// --- Descriptors.

CHILD(closes_standard_error_and_reports) {
  if (test_argument == NULL) close(STDERR_FILENO);
  raise(SIGUSR2);
  CHECK_MSG(lowest_written > STDERR_FILENO, "written to %d", lowest_written);
  CHECK(fcntl(STDERR_FILENO, F_GETFD) == -1);
}
CASE(lanemalloc_file_of_figures_has_no_standard_number) {
  for (int is_closed_before = 0; is_closed_before < 2; is_closed_before++) {
    char options[PATH_MAX + 100];
    const char* path = path_of("figures");
    snprintf(options, sizeof options, "stats=signal:USR2,stats_file=%s", path);
    memset(&child, 0, offsetof(struct Child, out));
    child.options = options;
    child.close_stderr = is_closed_before;
    child.argument = is_closed_before ? "closed" : NULL;
    run_child("closes_standard_error_and_reports");
    CHECK_CHILD(child_succeeded());
    CHECK_MSG(is_report(content(path)), "%.100s", content(path));
    unlink(path);
  }
}

// A file of the program gets the number 2. Standard error was closed before the program started, or
// the program closes it.
CHILD(has_a_file_with_number_two) {
  close(STDERR_FILENO);
  const int fd = open(test_argument, O_RDWR | O_CREAT | O_TRUNC, 0644);
  REQUIRE(fd == STDERR_FILENO);
  raise(SIGUSR2);
}
CASE(lanemalloc_figures_are_not_written_into_a_file_of_the_program) {
  for (int is_closed_before = 0; is_closed_before < 2; is_closed_before++) {
    for (int with_bad_file = 0; with_bad_file < 2; with_bad_file++) {
      const char* path = path_of("data");
      memset(&child, 0, offsetof(struct Child, out));
      child.options = with_bad_file
                          ? "stats=exit+signal:USR2,sample=64k,leaks=1,stats_file=/nowhere/at/all"
                          : "stats=exit+signal:USR2,sample=64k,leaks=1";
      child.close_stderr = is_closed_before;
      child.argument = path;
      run_child("has_a_file_with_number_two");
      CHECK_CHILD(child_succeeded());
      CHECK_MSG(strcmp(content(path), "") == 0, "%.100s", content(path));
      unlink(path);
    }
  }
}

// --- Files.

CHILD(ends) {}
CHILD(reports_by_signal) { raise(SIGUSR2); }
CHILD(reports_by_profile) {
  int (*profile)(const char*, const char*) =
      (int (*)(const char*, const char*))dlsym(RTLD_DEFAULT, "lane_profile");
  REQUIRE(profile != NULL);
  struct stat it;
  const int error = profile("heap", test_argument);
  CHECK_MSG(lstat(test_argument, &it) == 0 && error == (S_ISLNK(it.st_mode) ? ELOOP : ENXIO),
            "error %d", error);
}

static void run_with_file(const char* name, const char* more, const char* path) {
  static char options[PATH_MAX + 100];
  snprintf(options, sizeof options, "%s%s", more, path);
  memset(&child, 0, offsetof(struct Child, out));
  child.options = options;
  child.argument = path;
  run_child(name);
  CHECK_CHILD(child_succeeded());
}

CASE(lanemalloc_files_are_regular_ones) {
  const char* target = path_of("target");
  const char* link = path_of("link");
  const char* fifo = path_of("fifo");
  REQUIRE(symlink(target, link) == 0 && mkfifo(fifo, 0644) == 0);
  for (int has_target = 0; has_target < 2; has_target++) {
    if (has_target) put(target, "precious");
    run_with_file("reports_by_signal", "stats=signal:USR2,stats_file=", link);
    CHECK_CHILD(lines_with("stats_file=", "a symbolic link") == 1 && is_report(child.err));
    run_with_file("ends", "sample=64k,profile=exit,profile_file=", link);
    CHECK_CHILD(lines_with("profile_file=", "a symbolic link") == 2);
    run_with_file("reports_by_profile",
                  "sample=64k,decay_ms=5000,bad_pointer=abort,stats_file=", link);
    CHECK(strcmp(content(target), has_target ? "precious" : "") == 0);
    CHECK(has_target || access(target, F_OK) != 0);
  }
  const double since = seconds_now();
  // First without a reader of the pipe, then with one.
  for (int reader = -1; reader < 0; reader = open(fifo, O_RDONLY | O_NONBLOCK)) {
    run_with_file("reports_by_signal", "stats=signal:USR2,stats_file=", fifo);
    CHECK_CHILD(lines_with("stats_file=", "not a regular file") == 1 && is_report(child.err));
    run_with_file("ends", "sample=64k,profile=exit,profile_file=", fifo);
    CHECK_CHILD(lines_with("profile_file=", "not a regular file") == 2);
    run_with_file("reports_by_profile", "sample=64k,stats_file=", fifo);
  }
  run_with_file("reports_by_signal", "stats=signal:USR2,stats_file=", fifo);
  CHECK_CHILD(lines_with("stats_file=", "not a regular file") == 1);
  CHECK(seconds_now() - since < 30);
  unlink(target), unlink(link), unlink(fifo);
}

// As if another program had guessed the number in the file's name.
CHILD(finds_its_file_made_already) {
  char target[PATH_MAX], own[PATH_MAX];
  snprintf(target, sizeof target, "%s/target.%d", getenv("CHECK_WORK"), getpid());
  snprintf(own, sizeof own, "%s/made-up.%d", getenv("CHECK_WORK"), getpid());
  put(target, "precious");
  for (int is_hard = 0; is_hard < 2; is_hard++) {
    unlink(own);
    REQUIRE((is_hard ? link(target, own) : symlink(target, own)) == 0);
    raise(SIGUSR2);
    CHECK_MSG(strcmp(content(target), "precious") == 0, "%.100s", content(target));
    CHECK_MSG(is_report(content(own)), "%.100s", content(own));
    // Each report makes the file anew.
    raise(SIGUSR2);
    CHECK_MSG(is_report(content(own)), "%.100s", content(own));
  }
  unlink(target), unlink(own);
}
CASE(lanemalloc_file_with_a_made_up_name_is_new) {
  char options[PATH_MAX + 100];
  snprintf(options, sizeof options, "stats=signal:USR2,stats_file=%s/made-up.%%p",
           getenv("CHECK_WORK"));
  run_child_with("finds_its_file_made_already", options);
  CHECK_CHILD(child_succeeded());
}
