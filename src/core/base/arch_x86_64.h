// The only assembly for x86-64: system calls that leave errno and thread-local storage alone,
// counters. Called by: platform/linux.*, core/base/arch.h.
#pragma once

#include <sys/syscall.h>

#include <atomic>

#include "core/base/compiler.h"
#include "core/base/restartable.h"

// Defines a function `name` that does what vfork(2) does. Before the system call begins() returns a
// word. In the parent the function ends in ends(word, result of the system call). The child uses
// the parent's stack, so what is needed afterwards stays in registers, which the kernel keeps. The
// child goes back by a jump: a shadow stack keeps the entry for the parent's return.
#define LANEMALLOC_VFORK(name, begins, ends) \
  __asm__(                                   \
      ".pushsection .text\n"                 \
      ".balign 16\n"                         \
      ".globl " #name                        \
      "\n"                                   \
      ".type " #name ",@function\n" #name    \
      ":\n"                                  \
      ".cfi_startproc\n"                     \
      "endbr64\n"                            \
      "subq $8, %rsp\n"                      \
      ".cfi_adjust_cfa_offset 8\n"           \
      "call " #begins                        \
      "\n"                                   \
      "addq $8, %rsp\n"                      \
      ".cfi_adjust_cfa_offset -8\n"          \
      "movq %rax, %rsi\n"                    \
      "popq %rdi\n"                          \
      ".cfi_adjust_cfa_offset -8\n"          \
      ".cfi_register %rip, %rdi\n"           \
      "movl $58, %eax\n"                     \
      "syscall\n"                            \
      "testq %rax, %rax\n"                   \
      "jnz 1f\n"                             \
      "jmp *%rdi\n"                          \
      "1: pushq %rdi\n"                      \
      ".cfi_adjust_cfa_offset 8\n"           \
      ".cfi_offset %rip, -8\n"               \
      "movq %rsi, %rdi\n"                    \
      "movq %rax, %rsi\n"                    \
      "jmp " #ends                           \
      "\n"                                   \
      ".cfi_endproc\n"                       \
      ".size " #name ", . - " #name          \
      "\n"                                   \
      ".popsection\n")

namespace lanemalloc::arch {

// Returns the kernel's answer: -errno on failure.
inline long system_call(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0,
                        long f = 0) {
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

// Returns the value unchanged. The compiler keeps it, and does not compute it again.
template <class T>
FAST T kept(T value) {
  __asm__("" : "+r"(value));
  return value;
}

// counter += by, in one instruction, not locked: for counters with one writer.
template <class T>
inline void add_unlocked(std::atomic<T>& counter, T by) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  if constexpr (sizeof(T) == 4) {
    __asm__("addl %[by], %[counter]" : [counter] "+m"(counter) : [by] "re"(by) : "cc");
  } else {
    __asm__("addq %[by], %[counter]" : [counter] "+m"(counter) : [by] "re"(by) : "cc");
  }
}

// count -= some. True if nothing is left. This is one instruction, which the compiler does not find
// by itself.
inline bool take_and_test(int& count, int some) {
  bool none_left;
  __asm__("subl %[some], %[count]" : [count] "+m"(count), "=@ccle"(none_left) : [some] "ri"(some));
  return none_left;
}

// The compiler would spend one more instruction, for the address of the bin.
FAST uintptr_t pop(BinHead& bin) {
#if defined(__SANITIZE_THREAD__)  // it does not see what assembly reads and writes
  return bin.pop();
#else
  uintptr_t object, next;
  __asm__ goto(
      "movq %[first], %[object]\n\t"
      "subq %[end_link], %[object]\n\t"
      "cmpq %[reach], %[object]\n\t"
      "jb %l[out]\n\t"
      "addq %[end], %[object]\n\t"
      "movq (%[object]), %[next]\n\t"
      "movq %[next], %[first]\n\t"
      "movq $0, (%[object])"
      : [object] "=&r"(object), [next] "=&r"(next), [first] "+m"(bin.first)
      : [end_link] "m"(bin.end_link), [end] "m"(bin.end), [reach] "i"(-intptr_t{BinHead::kReach})
      : "cc", "memory"
      : out);
  if (object == 0) __builtin_unreachable();
  return object;
out:
  return 0;
#endif
}

inline void pause() { __asm__ volatile("pause"); }

}  // namespace lanemalloc::arch
