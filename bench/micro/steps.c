// Runs a single-threaded program step by step (ptrace) and counts its user instructions.
// For allocators that do not start under valgrind. Prints "steps=N" on standard error; a system
// call counts as one.
// Called by: bench/micro/run.py.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  pid_t child = fork();
  if (child < 0) return 1;
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) _exit(126);
    execv(argv[1], argv + 1);
    _exit(127);
  }
  unsigned long long steps = 0;
  int status;
  while (waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
    int received = WSTOPSIG(status);
    if (steps == 0) ptrace(PTRACE_SETOPTIONS, child, NULL, PTRACE_O_EXITKILL);
    steps++;
    ptrace(PTRACE_SINGLESTEP, child, NULL, received == SIGTRAP ? 0L : (long)received);
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    fprintf(stderr, "steps: the program failed (status %x)\n", (unsigned)status);
    return 1;
  }
  fprintf(stderr, "steps=%llu\n", steps);
  return 0;
}
