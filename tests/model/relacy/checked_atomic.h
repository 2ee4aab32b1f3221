// Relacy behind the Atomics policy and behind the name std::atomic: model::atomic<T> has
// std::atomic's functions, and Relacy decides which value a load sees and which thread goes on.
// Called by: the tests here, and the copy of some headers in which run.py writes model::atomic in
// place of std::atomic.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <new>
#include <relacy/relacy.hpp>
#include <streambuf>
#include <string_view>
#include <type_traits>

// Relacy hides the orders, new and malloc behind macros; our headers use them plainly.
#undef memory_order_relaxed
#undef memory_order_consume
#undef memory_order_acquire
#undef memory_order_release
#undef memory_order_acq_rel
#undef memory_order_seq_cst
#undef new
#undef delete
#undef malloc
#undef calloc
#undef realloc
#undef free
#undef errno

namespace model {

// Where an operation stands, for Relacy's history.
struct Where {
  rl::debug_info info;
  static Where here(const char* function = __builtin_FUNCTION(),
                    const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
    return {rl::debug_info(function, file, line)};
  }
};

inline rl::memory_order order_of(std::memory_order order) {
  switch (order) {
    case std::memory_order_relaxed:
      return rl::mo_relaxed;
    case std::memory_order_consume:
      return rl::mo_consume;
    case std::memory_order_acquire:
      return rl::mo_acquire;
    case std::memory_order_release:
      return rl::mo_release;
    case std::memory_order_acq_rel:
      return rl::mo_acq_rel;
    default:
      return rl::mo_seq_cst;
  }
}

template <class T>
class atomic {
  // Relacy prints values, and cannot print every type.
  using Raw = std::conditional_t<sizeof(T) <= 2, uint16_t,
                                 std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;
  static Raw raw(T value) { return (Raw)value; }
  static T cooked(Raw value) { return (T)value; }
  using Order = std::memory_order;
  static constexpr Order kSeqCst = std::memory_order_seq_cst;

 public:
  atomic() = default;
  atomic(T value) : impl_(raw(value)) {}  // implicit, as in std

  T load(Order order = kSeqCst, Where at = Where::here()) const {
    return cooked(impl_.load(order_of(order), at.info));
  }
  void store(T value, Order order = kSeqCst, Where at = Where::here()) {
    impl_.store(raw(value), order_of(order), at.info);
  }
  T exchange(T value, Order order = kSeqCst, Where at = Where::here()) {
    return cooked(impl_.exchange(raw(value), order_of(order), at.info));
  }
  template <class Value>
  T fetch_add(Value value, Order order = kSeqCst, Where at = Where::here()) {
    return cooked(impl_.fetch_add(static_cast<Raw>(value), order_of(order), at.info));
  }
  template <class Value>
  T fetch_and(Value value, Order order = kSeqCst, Where at = Where::here()) {
    return cooked(impl_.fetch_and(static_cast<Raw>(value), order_of(order), at.info));
  }
  template <class Value>
  T fetch_sub(Value value, Order order = kSeqCst, Where at = Where::here()) {
    return cooked(impl_.fetch_sub(static_cast<Raw>(value), order_of(order), at.info));
  }
  bool compare_exchange_weak(T& expected, T value, Order order, Order failed,
                             Where at = Where::here()) {
    return compare_exchange<true>(expected, value, order, failed, at);
  }
  bool compare_exchange_strong(T& expected, T value, Order order, Order failed,
                               Where at = Where::here()) {
    return compare_exchange<false>(expected, value, order, failed, at);
  }
  bool compare_exchange_weak(T& expected, T value, Order order, Where at = Where::here()) {
    return compare_exchange<true>(expected, value, order, order, at);
  }
  bool compare_exchange_strong(T& expected, T value, Order order, Where at = Where::here()) {
    return compare_exchange<false>(expected, value, order, order, at);
  }

 private:
  template <bool kMayFail>
  bool compare_exchange(T& expected, T value, Order order, Order failed, const Where& at) {
    Raw seen = raw(expected);
    const bool done = impl_.compare_exchange(rl::bool_t<kMayFail>(), seen, raw(value),
                                             order_of(order), order_of(failed), at.info);
    expected = cooked(seen);
    return done;
  }

  rl::atomic<Raw> impl_;
};

// The core's other ways to write a relaxed load, and a relaxed load together with its store.
template <class T>
T hit_load(const atomic<T>& word) {
  return word.load(std::memory_order_relaxed);
}

template <class T>
void move_on(atomic<T*>& pointer) {
  pointer.store(pointer.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

// A compiler's fence on one side and a membarrier on the other are a pair of fences: one is free,
// the other is full (P1202's asymmetric fences). To each other they behave like two full fences,
// and that is how they are modelled.
inline void full_fence() { rl::atomic_thread_fence(rl::mo_seq_cst, $); }

// The Atomics policy of the core.
struct Relacy {
  template <class T>
  using atomic = model::atomic<T>;
};

// A plain variable. If two threads use it in no order, that is an error. It counts what was done to
// it.
class Contents {
 public:
  Contents() { value_($) = 0; }
  void work() { value_($) = static_cast<int>(value_($)) + 1; }
  int value() { return value_($); }

 private:
  rl::var<int> value_;
};

// Relacy puts its own allocator behind new and delete, and a stringstream does not survive that. So
// this text has a fixed place.
class Text : public std::streambuf {
 public:
  Text() { setp(text_, text_ + sizeof text_ - 1); }
  const char* c_str() {
    *pptr() = '\0';
    return text_;
  }

 private:
  char text_[1 << 16];
};

// Runs one test over all schedules with at most `bound` preemptions, or over `random` random ones.
// Returns the exit status: 0 good, 1 bad. Prints one line for run.py: how many schedules were
// tried.
template <class Test>
int run(unsigned bound, unsigned random = 0) {
  static Text text;
  std::ostream quiet(&text);
  rl::test_params params;
  params.search_type = random != 0 ? rl::sched_random : rl::sched_bound;
  params.context_bound = bound;
  params.iteration_count = random != 0 ? random : 100'000'000;
  params.execution_depth_limit = 20'000;
  params.output_stream = params.progress_stream = &quiet;
  const bool good = rl::simulate<Test>(params);
  std::printf("schedules: %llu\n", static_cast<unsigned long long>(params.stop_iteration));
  if (!good) std::printf("%s\n%s\n", rl::test_result_str(params.test_result), text.c_str());
  return good ? 0 : 1;
}

// What the tests' platforms have in common: a thread that waits lets the others go on.
struct Platform {
  static bool single_threaded() { return false; }
  static void pause() { rl::yield(1, $); }
  static bool barrier() {
    full_fence();
    return true;
  }
  // A lock's word has 64 bits, and waiters look at its lower half.
  template <class T>
  static void wait(atomic<T>&, uint32_t, uint64_t = ~uint64_t{0}) {
    rl::yield(1, $);
  }
  template <class T>
  static void wake(atomic<T>&, int) {}
  static void sleep_ms(uint64_t) { rl::yield(1, $); }
  static uint64_t now_ns() { return 1; }
};

}  // namespace model

namespace lanemalloc {
[[noreturn]] void check_failed(const char* expression, const char*, int) {
  std::fprintf(stderr, "CHECK %s\n", expression);
  std::abort();
}
}  // namespace lanemalloc
