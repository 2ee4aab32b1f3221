// Sampler: which allocations and lock waits are sampled, what each of them stands for, and where it
// came from.
// Called by: lanes' slow paths, and threads that have waited for a lock. The writers of profiles
// read the table of stacks.
// Locking: none. Async-signal-safe; a fork child goes on with a copy.
//
// Samples are the points of a Poisson process over the bytes that are allocated, one in `interval`
// bytes on average. (Source: tcmalloc's and jemalloc's sampling.) The distance from one point to
// the next is exponential, so it has no memory: a thread that has come to a point draws a new
// distance from the end of that allocation, and nothing has to be carried over. Whole bytes
// suffice: the allocation that brings the rest of the distance to 0 or below is sampled, and the
// distance is rounded up, so
//   P(sampled) = P(distance <= size) = 1 - exp(-size / interval)   exactly, for each size.
// A sampled object therefore stands for weight(size) = 1 / P objects of its size. That is about
// interval / size for small objects, and 1 for objects far above the interval. All sums of weights
// are unbiased, whatever the mix of sizes.
//
// A weight is not whole, but counters are. So it is rounded up or down by chance, up as often as
// its fraction says. That keeps the sums unbiased, costs less variance than sampling itself has,
// and lets every reader add up whole objects. The bytes are the rounded objects times the size, so
// a stack's bytes and objects always fit together. An object keeps what it has added to its stack,
// and its free adds the same to the other side. So allocated - freed is exactly what is alive, and
// 0 if nothing is.
//
// The peak. What was alive when the process had most is kept with each stack, by a copy of what is
// alive there. A copy is due when a sampled object is freed while more is alive than at the last
// copy, by a 32nd or more. So growth alone copies nothing, and each copy stands for a new
// high: 23 of them for a doubling, at most, each as long as the table. While more is alive than at
// the last copy, the peak is now (peak_is_now). So what is told as the peak lacks at most a 32nd.
// Threads go on meanwhile, and several may copy at once: what a stack has is then of a moment a
// little earlier or later. A copy counts once it is whole, so a thread that is stopped for good in
// the middle, as in a fork child, leaves the next copy to the next free.
//
// Temporary objects are freed before their thread allocates anything else. An object keeps a mark
// of what its lane had handed out just then; if the lane's mark is still the same at the free,
// nothing was allocated between (core/engine/sampling.h).
//
// Lock waits are sampled in the same way, with nanoseconds for bytes. They are rare, so each wait
// draws its own distance and counts if the distance is no longer than the wait. For a distribution
// without memory that is the same as drawing on from the last point.
//
// Logarithm and exponential are our own: the mathematical library is not the C library, and may set
// errno.
#pragma once

#include "seeing/stacks.h"

namespace lanemalloc {

// splitmix64. Any state will do to begin with, as long as no two callers begin with the same.
inline uint64_t next_random(uint64_t& state) {
  uint64_t z = state += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// Returns a number in [0, 1).
inline double random_fraction(uint64_t& state) {
  return static_cast<double>(next_random(state) >> 11) * 0x1p-53;
}

// -ln(bits / 2^64), for bits > 0. With m = bits / 2^n in [1/sqrt(2), sqrt(2)) and s = (m - 1) / (m
// + 1): ln m = 2 (s + s^3/3 + s^5/5 + s^7/7 + ...). |s| < 0.172, so the terms that are left out are
// below 3e-8.
inline double negative_logarithm(uint64_t bits) {
  const int zeros = __builtin_clzll(bits);
  double m = static_cast<double>(bits << zeros) * 0x1p-64;  // [1/2, 1]
  int power = zeros;
  if (m < 0.70710678118654752) {
    m *= 2;
    ++power;
  }
  const double s = (m - 1) / (m + 1), square = s * s;
  const double series = s * (2 + square * (2.0 / 3 + square * (2.0 / 5 + square * (2.0 / 7))));
  return power * 0.69314718055994531 - series;
}

// 1 / (1 - exp(-x)), for x > 0. Up to 1 it is 1/x + 1/2 + x/12 - x^3/720 + x^5/30240, wrong by less
// than 1e-6. Above 1, x is halved until it is there, and exp(-x) is squared as often.
inline double inverse_chance(double x) {
  if (x > 64) return 1;
  int halvings = 0;
  for (; x > 1; x /= 2) ++halvings;
  const double square = x * x;
  const double inverse =
      1 / x + 0.5 + x * (1.0 / 12 - square * (1.0 / 720 - square * (1.0 / 30240)));
  if (halvings == 0) return inverse;
  double exponential = 1 - 1 / inverse;
  for (; halvings > 0; --halvings) exponential *= exponential;
  return 1 / (1 - exponential);
}

// What a sampled object has added to its stack. It is kept with the object, for its free.
struct Sample {
  Stack* stack = nullptr;  // null: nothing was added
  uint64_t objects = 0;
  uint64_t bytes = 0;
  uint64_t mark = 0;  // what its lane had handed out; 0: not known
};
static_assert(sizeof(Sample) <= 32);

template <class P>
class Sampler {
 public:
  // Writes return addresses, the innermost first, and returns how many. Async-signal-safe.
  // (seeing/unwind/unwind.h)
  using Unwind = unsigned (*)(Address* frames, unsigned most);

  static constexpr Bytes kMostInterval = Bytes{1} << 40;
  static constexpr int64_t kNever = INT64_MAX;

  // Takes the memory for stacks. One caller at a time. Once it has succeeded, further calls do
  // nothing. False if there is no memory.
  bool start(Unwind unwind) {
    unwind_.store(unwind, std::memory_order_relaxed);
    return stacks_.start();
  }

  // Mean distances between samples; 0: off. May be called at any time after start(). A caller that
  // counts down an older distance, also that of "off", follows with its next one.
  void set_interval(Bytes bytes) {
    interval_.store(within_bounds(bytes), std::memory_order_relaxed);
  }
  void set_contention_interval(uint64_t ns) {
    contention_interval_.store(within_bounds(ns), std::memory_order_relaxed);
  }
  Bytes interval() const { return interval_.load(std::memory_order_relaxed); }
  uint64_t contention_interval() const {
    return contention_interval_.load(std::memory_order_relaxed);
  }
  bool on() const { return interval() != 0; }

  // Bytes up to the next sample, at least 1. The allocation that brings what is left to 0 or below
  // is to be sampled. kNever if off.
  int64_t next_interval(uint64_t& random) const { return distance(interval(), random); }

  // How many objects of this size a sampled one stands for.
  double weight(Bytes size) const { return weight(size, interval()); }

  // Counts the caller as the allocator of an object of that size.
  NOINLINE Sample sample_allocation(Bytes size, uint64_t& random) {
    const Bytes interval_now = interval();
    if (interval_now == 0) return {};
    const Bytes counted = size != 0 ? size : 1;
    const uint64_t objects = rounded(weight(counted, interval_now), random);
    Sample sample{find_stack(StackKind::kAllocation, size_code(counted)), objects,
                  objects * counted, 0};
    if (sample.stack == nullptr) return {};
    add(*sample.stack, kAllocatedObjects, sample.objects);
    add(*sample.stack, kAllocatedBytes, sample.bytes);
    count<P>(live_, sample.bytes);
    return sample;
  }

  // `mark`: what the lane of the caller has handed out by now; 0: not known.
  void freed(const Sample& sample, uint64_t mark = 0) {
    if (sample.stack == nullptr) return;
    keep_peak();
    add(*sample.stack, kFreedObjects, sample.objects);
    add(*sample.stack, kFreedBytes, sample.bytes);
    count<P>(live_, uint64_t{0} - sample.bytes);
    if (mark == 0 || mark != sample.mark) return;
    add(*sample.stack, kTemporaryObjects, sample.objects);
    add(*sample.stack, kTemporaryBytes, sample.bytes);
  }

  // Whether more is alive than at the last copy. Else stacks know what was alive at the peak.
  bool peak_is_now() const {
    return live_.load(std::memory_order_relaxed) > peak_.load(std::memory_order_relaxed);
  }

  // The caller has waited that long for a lock. Returns the stack for which the wait was counted,
  // or null if it was not sampled.
  NOINLINE Stack* contended(uint64_t ns, uint64_t& random) {
    const uint64_t interval_now = contention_interval();
    if (ns == 0 || interval_now == 0) return nullptr;
    if (static_cast<uint64_t>(distance(interval_now, random)) > ns) return nullptr;
    Stack* stack = find_stack(StackKind::kContention, 0);
    if (stack == nullptr) return nullptr;
    const uint64_t waits = rounded(weight(ns, interval_now), random);
    add(*stack, kContentions, waits);
    add(*stack, kDelay, waits * ns);
    return stack;
  }

  Stacks<P>& stacks() { return stacks_; }
  const Stacks<P>& stacks() const { return stacks_; }

 private:
  SHOWN_BY_LAYOUT;

  static uint64_t within_bounds(uint64_t interval) {
    return interval < kMostInterval ? interval : uint64_t{kMostInterval};
  }

  // Rounded up, so that the distance is at most n if its exact value is at most n, and only then.
  static int64_t distance(uint64_t mean, uint64_t& random) {
    if (mean == 0) return kNever;
    // The number is odd, so never 0.
    return static_cast<int64_t>(static_cast<double>(mean) *
                                negative_logarithm(next_random(random) | 1)) +
           1;
  }
  static double weight(uint64_t size, uint64_t mean) {
    return mean == 0 ? 1 : inverse_chance(static_cast<double>(size) / static_cast<double>(mean));
  }
  static uint64_t rounded(double weight, uint64_t& random) {
    return static_cast<uint64_t>(weight + random_fraction(random));
  }
  static void add(Stack& stack, StackCounter which, uint64_t n) {
    count<P>(stack.counters[which], n);
  }

  void keep_peak() {
    const uint64_t live = live_.load(std::memory_order_relaxed);
    const uint64_t peak = peak_.load(std::memory_order_relaxed);
    if (UNLIKELY(live > peak + peak / 32)) copy_live(live);
  }
  NOINLINE void copy_live(uint64_t live) {
    stacks_.for_each([](Stack& stack) {
      if (stack.kind() != StackKind::kAllocation) return;
      copy_difference(stack, kAllocatedObjects, kFreedObjects, kPeakObjects);
      copy_difference(stack, kAllocatedBytes, kFreedBytes, kPeakBytes);
    });
    peak_.store(live, std::memory_order_relaxed);
  }
  // What was freed is read first, since it was allocated before.
  static void copy_difference(Stack& stack, StackCounter allocated, StackCounter freed,
                              StackCounter to) {
    const uint64_t gone = stack.count_of(freed);
    stack.counters[to].store(stack.count_of(allocated) - gone, std::memory_order_relaxed);
  }

  // Has no frame of its own, since each frame costs time in the walk.
  FAST Stack* find_stack(StackKind kind, uint16_t size) {
    Address frames[Stacks<P>::kMostFrames];
    const Unwind unwind = unwind_.load(std::memory_order_relaxed);
    const unsigned depth = unwind != nullptr ? unwind(frames, Stacks<P>::kMostFrames) : 0;
    return stacks_.find_or_make(kind, frames, depth, size);
  }

  std::atomic<Bytes> interval_{0};
  std::atomic<uint64_t> contention_interval_{0};
  std::atomic<Unwind> unwind_{nullptr};
  std::atomic<uint64_t> live_{0};  // estimated bytes
  std::atomic<uint64_t> peak_{0};  // the same at the last copy
  Stacks<P> stacks_;
};

}  // namespace lanemalloc
