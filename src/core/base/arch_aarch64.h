// The only assembly for aarch64: system calls that leave errno and thread-local storage alone,
// counters. Called by: platform/linux.*, core/base/arch.h.
#pragma once

#include <sys/syscall.h>

#include <atomic>

#include "core/base/compiler.h"
#include "core/base/restartable.h"

// Defines a function `name` that does what vfork(2) does. Before the system call begins() returns a
// word. In the parent the function ends in ends(word, result of the system call). The child uses
// the parent's stack, so what is needed afterwards stays in registers, which the kernel keeps. The
// system call is clone(CLONE_VM | CLONE_VFORK | SIGCHLD).
#define LANEMALLOC_VFORK(name, begins, ends) \
  __asm__(                                   \
      ".pushsection .text\n"                 \
      ".balign 16\n"                         \
      ".globl " #name                        \
      "\n"                                   \
      ".type " #name ",%function\n" #name    \
      ":\n"                                  \
      ".cfi_startproc\n"                     \
      "hint #34\n"                           \
      "stp x29, x30, [sp, #-16]!\n"          \
      ".cfi_adjust_cfa_offset 16\n"          \
      ".cfi_rel_offset x29, 0\n"             \
      ".cfi_rel_offset x30, 8\n"             \
      "bl " #begins                          \
      "\n"                                   \
      "ldp x29, x30, [sp], #16\n"            \
      ".cfi_adjust_cfa_offset -16\n"         \
      ".cfi_restore x29\n"                   \
      ".cfi_restore x30\n"                   \
      "mov x9, x0\n"                         \
      "mov x0, #0x4111\n"                    \
      "mov x1, #0\n"                         \
      "mov x2, #0\n"                         \
      "mov x3, #0\n"                         \
      "mov x4, #0\n"                         \
      "mov x8, #220\n"                       \
      "svc #0\n"                             \
      "cbz x0, 1f\n"                         \
      "mov x1, x0\n"                         \
      "mov x0, x9\n"                         \
      "b " #ends                             \
      "\n"                                   \
      "1: ret\n"                             \
      ".cfi_endproc\n"                       \
      ".size " #name ", . - " #name          \
      "\n"                                   \
      ".popsection\n")

namespace lanemalloc::arch {

// Returns the kernel's answer: -errno on failure.
inline long system_call(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0,
                        long f = 0) {
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = e;
  register long x5 __asm__("x5") = f;
  __asm__ volatile("svc #0"
                   : "+r"(x0)
                   : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                   : "memory", "cc");
  return x0;
}

// Returns the value unchanged. The compiler keeps it, and does not compute it again.
template <class T>
FAST T kept(T value) {
  __asm__("" : "+r"(value));
  return value;
}

// counter += by, not locked: for counters with one writer.
template <class T>
inline void add_unlocked(std::atomic<T>& counter, T by) {
  counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}

// count -= some. True if nothing is left.
inline bool take_and_test(int& count, int some) { return (count -= some) <= 0; }

FAST uintptr_t pop(BinHead& bin) { return bin.pop(); }

inline void pause() { __asm__ volatile("yield"); }

}  // namespace lanemalloc::arch
