// A debugger makes the process call malloc for the strings that the debugger's user types.
// Also linked with the static library.
#include <sys/ptrace.h>

#include "check.h"
#include "child.h"

__attribute__((noinline)) void stop_here(void) { __asm__ volatile(""); }
CHILD(stops) {
  char* text = malloc(100);
  stop_here();
  free(hide(text));
}

// Returns null if a process may be traced here, else the reason why not.
static const char* why_not_trace(void) {
  const pid_t pid = fork();
  if (pid == 0) _exit(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0 ? 0 : 1);
  int status;
  waitpid(pid, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return "ptrace is refused here";
  return access("/usr/bin/gdb", X_OK) == 0 ? NULL : "no gdb here";
}

CASE(gdb_calls_functions_with_strings) {
  if (why_not_trace() != NULL) SKIP("%s", why_not_trace());
  char program[PATH_MAX], command[PATH_MAX * 3], line[1024];
  const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
  REQUIRE(n > 0);
  program[n] = 0;
  const char* library = getenv("LD_PRELOAD");
  // The library is for the program, not for gdb.
  snprintf(
      command, sizeof command,
      "env -u LD_PRELOAD gdb -nx -batch -ex 'set debuginfod enabled off' -ex 'set "
      "startup-with-shell off' "
      "-ex 'set environment %s%s' -ex 'break stop_here' -ex run -ex 'print (int)strlen(\"abc\")' "
      "-ex 'print $_streq(\"abc\", \"abc\")' -ex 'print (int)strcmp(\"lane\", \"lane\")' "
      "-ex 'print malloc_usable_size(malloc(100)) >= 100' -ex kill --args %s stops 2>&1",
      library ? "LD_PRELOAD=" : "NOTHING=", library ? library : "", program);
  FILE* gdb = popen(command, "r");
  REQUIRE(gdb != NULL);
  int answers = 0;
  char all[8192] = "";
  while (fgets(line, sizeof line, gdb)) {
    if (strlen(all) + strlen(line) < sizeof all) strcat(all, line);
    answers += strcmp(line, "$1 = 3\n") == 0 || strcmp(line, "$3 = 0\n") == 0;
  }
  pclose(gdb);
  CHECK_MSG(answers == 2, "%.400s", strlen(all) > 400 ? all + strlen(all) - 400 : all);
}
