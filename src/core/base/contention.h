// Tries and Contention: what a loop around a compare-exchange, or a lock, has cost so far. Each
// loop and each lock has one. Readers inside and outside the process find them by name
// (core/engine/layout.h). Called by: locks and lock-free loops. Locking: none.
//
// An entry costs the holder of a lock one unlocked addition, to a line that it has anyway. Threads
// that fail count the rest.
#pragma once

#include <bit>

#include "core/base/atomics.h"

// For a class whose private words readers outside the process may see by their names
// (core/engine/layout.h).
#define SHOWN_BY_LAYOUT \
  template <class>      \
  friend struct Layout

namespace lanemalloc {

// For a loop.
template <class Atomics = Hardware>
struct Tries {
  // Loops that were finished, or entries of a lock.
  typename Atomics::template atomic<uint64_t> count{0};
  typename Atomics::template atomic<uint64_t> failures{0};  // tries that failed

  // Returns true, so that the caller tries again.
  bool failed() {
    failures.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  void done() { count.fetch_add(1, std::memory_order_relaxed); }
};

// For a lock.
struct Contention : Tries<> {
  // Bucket i counts the waits shorter than 2^i microseconds, the last one all other waits.
  static constexpr unsigned kBuckets = 16;
  static constexpr unsigned kSites = 2;

  std::atomic<uint64_t> waits{0};  // waits that have begun
  std::atomic<uint64_t> waited_ns{0};
  std::atomic<uint32_t> histogram[kBuckets]{};
  // Stacks of the latest waits, newest first, while waits are sampled.
  std::atomic<const void*> sites[kSites]{};

  // The holder calls it after it has waited for the lock. site: null: not known.
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

// Called after every wait for a lock by the thread that holds it now (`who`: as in Visit). Returns
// the stack of that thread, or null. contention_witness is null while nobody
// asks.
using ContentionWitness = const void* (*)(const void* who, uint64_t waited_ns);
inline constinit std::atomic<ContentionWitness> contention_witness{nullptr};

}  // namespace lanemalloc
