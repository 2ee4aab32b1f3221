// The only assembly for x86-64: system calls that leave errno and thread-local storage alone, counters. Called by: platform/linux.*, base/arch.h.
#pragma once

#include <sys/syscall.h>

#include <atomic>

#include "base/compiler.h"

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

// The same value, which the compiler is to keep rather than compute again.
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

// Takes some off and tells whether nothing is left, in one instruction that the compiler does not find by itself.
inline bool take_and_test(int& count, int some) {
  bool none_left;
  __asm__("subl %[some], %[count]" : [count] "+m"(count), "=@ccle"(none_left) : [some] "ri"(some));
  return none_left;
}

inline void pause() { __asm__ volatile("pause"); }

}  // namespace lanemalloc::arch
