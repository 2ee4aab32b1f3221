// The only assembly for x86-64: system calls that leave errno and thread-local storage alone, and the start of a
// thread that has no thread-local storage of its own. Called by: platform/linux.*, base/arch.h.
#pragma once

#include <sys/syscall.h>

namespace lanemalloc::arch {

// Returns the kernel's answer: -errno on failure.
inline long system_call(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
  long result;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = f;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
}

// clone(2): the child starts on `stack` (top, 16-byte aligned), calls run(argument) and exits by exit(2).
// Returns the child's thread id or -errno in the parent.
inline long clone_thread(unsigned long flags, void* stack, int* tid, void (*run)(void*), void* argument) {
  long result;
  register int* r10 __asm__("r10") = tid;  // cleared and woken by the kernel when the thread is gone
  __asm__ volatile(
      "syscall\n\t"
      "test %%rax, %%rax\n\t"
      "jnz 1f\n\t"
      "xor %%ebp, %%ebp\n\t"
      "mov %[argument], %%rdi\n\t"
      "call *%[run]\n\t"
      "mov %[exit], %%eax\n\t"
      "xor %%edi, %%edi\n\t"
      "syscall\n\t"
      "hlt\n"
      "1:"
      : "=a"(result)
      : "a"(static_cast<long>(SYS_clone)), "D"(flags), "S"(stack), "d"(tid), "r"(r10), [run] "r"(run),
        [argument] "r"(argument), [exit] "i"(SYS_exit)
      : "rcx", "r11", "memory");
  return result;
}

inline void pause() { __asm__ volatile("pause"); }

}  // namespace lanemalloc::arch
