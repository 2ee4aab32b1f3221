// Tries, Contention: what a loop around a compare-exchange, or a lock, has cost so far. One for
// each; readers inside and outside the process find them by name (engine/layout.h). Called by:
// locks and lock-free loops. Locking: none.
//
// An entry costs the holder of a lock one unlocked addition, to a line that it has anyway. The rest
// is counted by those who fail.
#pragma once

#include <bit>

#include "base/atomics.h"

// In a class whose private words readers outside the process may see by their names
// (engine/layout.h).
#define SHOWN_BY_LAYOUT \
  template <class>      \
  friend struct Layout

namespace lanemalloc {

// Of a loop.
template <class Atomics = Hardware>
struct Tries {
  // Loops that were done, or entries of a lock
  typename Atomics::template atomic<uint64_t> count{0};
  typename Atomics::template atomic<uint64_t> failures{0};  // tries that failed

  // True: try again.
  bool failed() {
    failures.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  void done() { count.fetch_add(1, std::memory_order_relaxed); }
};

// Of a lock.
struct Contention : Tries<> {
  // Of waits: bucket i counts those shorter than 2^i microseconds, the last one all others.
  static constexpr unsigned kBuckets = 16;
  static constexpr unsigned kSites = 2;

  std::atomic<uint64_t> waits{0};  // that have begun
  std::atomic<uint64_t> waited_ns{0};
  std::atomic<uint32_t> histogram[kBuckets]{};
  std::atomic<const void*>
      sites[kSites]{};  // stacks of the latest waits, newest first, while they are sampled

  // By the holder, who has waited for it. site: null: not known.
  void waited(uint64_t ns, const void* site) {
    bump(waited_ns, ns);
    bump(histogram[bucket_of(ns)]);
    if (site == nullptr) return;
    sites[1].store(sites[0].load(std::memory_order_relaxed), std::memory_order_relaxed);
    sites[0].store(site, std::memory_order_relaxed);
  }

  static unsigned bucket_of(uint64_t ns) {
    const auto bucket = static_cast<unsigned>(std::bit_width(ns / 1000));
    return bucket < kBuckets ? bucket : kBuckets - 1;
  }
};

// Told of every wait for a lock, by who has it now (`who`: as Visit has it); returns the stack that
// the thread came by, or null. Null while nobody asks.
using ContentionWitness = const void* (*)(const void* who, uint64_t waited_ns);
inline constinit std::atomic<ContentionWitness> contention_witness{nullptr};

}  // namespace lanemalloc
