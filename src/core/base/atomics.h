// The atomics policy. Lock-free algorithms take it as a template argument, so that the code that
// ships is the code that a model checker runs. Hardware is the policy that ships.
#pragma once

#include <atomic>

#include "core/base/arch.h"
#include "core/base/compiler.h"

namespace lanemalloc {

struct Hardware {
  template <class T>
  using atomic = std::atomic<T>;
};

// A setting that may change while other threads read it. Nothing else depends on when they see it.
template <class T>
class Relaxed {
 public:
  constexpr Relaxed(T value) : value_(value) {}
  constexpr Relaxed(const Relaxed& other) : value_(static_cast<T>(other)) {}
  constexpr Relaxed& operator=(const Relaxed& other) { return *this = static_cast<T>(other); }
  constexpr Relaxed& operator=(T value) {
    if (std::is_constant_evaluated()) {
      value_ = value;
    } else {
      __atomic_store(&value_, &value, __ATOMIC_RELAXED);
    }
    return *this;
  }
  constexpr operator T() const {
    if (std::is_constant_evaluated()) return value_;
    T value;
    __atomic_load(&value_, &value, __ATOMIC_RELAXED);
    return value;
  }

 private:
  T value_;
};

// Adds to a counter that only one thread writes, without a locked instruction. Other threads may
// read the counter at any time.
template <class T>
FAST void bump(std::atomic<T>& counter, T by = 1) {
  arch::add_unlocked(counter, by);
}

// Adds to a counter that any thread writes, without a locked instruction while the process has one
// thread.
template <class P, class T>
FAST void count(std::atomic<T>& counter, T by = 1) {
  if (P::single_threaded()) {
    arch::add_unlocked(counter, by);
  } else {
    counter.fetch_add(by, std::memory_order_relaxed);
  }
}

// A relaxed load that the compiler may fold into the instruction that uses it, which it does not do
// with atomics. For a checker that wants to see atomics it is one.
template <class T>
FAST T hit_load(const std::atomic<T>& word) {
#if defined(__SANITIZE_THREAD__)
  return word.load(std::memory_order_relaxed);
#else
  static_assert(sizeof(std::atomic<T>) == sizeof(T));
  return *reinterpret_cast<const T*>(&word);
#endif
}

// Moves a pointer on by one, in one instruction unless a checker wants to see it. Only one thread
// writes the pointer.
template <class T>
FAST void move_on(std::atomic<T*>& pointer) {
#if defined(__SANITIZE_THREAD__)
  pointer.store(pointer.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
#else
  arch::add_unlocked(reinterpret_cast<std::atomic<uintptr_t>&>(pointer), uintptr_t{sizeof(T)});
#endif
}

}  // namespace lanemalloc
