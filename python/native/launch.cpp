// lanemalloc-launch REPORT PROGRAM ARGV0 ARGUMENTS...: starts PROGRAM as a child of this process'
// parent, and ends.
//
// The kernel counts a process' peak memory from what it was a copy of: getrusage's ru_maxrss is
// never below the memory of the process that forked it. Python is larger than many programs. So
// Python starts this, which has some tens of KiB and no C library, and the program starts as a copy
// of this. CLONE_PARENT: the program is Python's own child, as if Python had started it.
//
// On the pipe REPORT: two int32 for each thing that happened, in any order: kStarted and the
// program's number; kFailed and execve's error. At the pipe's end the program runs.
// Called by: python/lanemalloc/supervise.py.
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>

#include "core/base/arch.h"

namespace {

using lanemalloc::arch::system_call;

constexpr int32_t kStarted = 1, kFailed = 2;
constexpr int kCannotStart = 127;

void tell(int report, int32_t what, int32_t value) {
  const int32_t words[2] = {what, value};
  // A write this short to a pipe is whole.
  while (system_call(SYS_write, report, reinterpret_cast<long>(words), sizeof words) == -EINTR) {
  }
}

int number(const char* text) {
  int result = 0;
  for (; *text != '\0'; ++text) result = result * 10 + (*text - '0');
  return result;
}

}  // namespace

// The stack as the kernel makes it: argc, argv, a null, the environment, a null.
extern "C" [[noreturn, gnu::used]] void launch(long* stack) {
  const long argc = stack[0];
  char** const argv = reinterpret_cast<char**>(stack + 1);
  char** const environment = argv + argc + 1;
  if (argc < 4) system_call(SYS_exit_group, kCannotStart);
  const int report = number(argv[1]);
  system_call(SYS_fcntl, report, F_SETFD, FD_CLOEXEC);
  const long program = system_call(SYS_clone, CLONE_PARENT | SIGCHLD);
  if (program == 0) {
    const long error =
        system_call(SYS_execve, reinterpret_cast<long>(argv[2]), reinterpret_cast<long>(argv + 3),
                    reinterpret_cast<long>(environment));
    tell(report, kFailed, static_cast<int32_t>(-error));
    system_call(SYS_exit_group, kCannotStart);
  }
  if (program > 0) {
    tell(report, kStarted, static_cast<int32_t>(program));
  } else {
    tell(report, kFailed, static_cast<int32_t>(-program));
  }
  system_call(SYS_exit_group, 0);
  __builtin_unreachable();
}

#if defined(__x86_64__)
__asm__(".globl _start\n_start: xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call launch\n");
#elif defined(__aarch64__)
__asm__(".globl _start\n_start: mov x29, #0\n mov x30, #0\n mov x0, sp\n b launch\n");
#endif
