// Models of allocators whose threads meet at every operation, for comparison. Each has
// allocate(size) and free(p).
// Called by: workloads.cpp.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <new>

#include "platform.h"

namespace simulator {

// Memory behind the models' roots. It is handed out and never taken back.
inline std::byte* models_memory(size_t bytes) {
  static size_t taken = Simulated::kRootSize;
  std::byte* p = arena + taken;
  taken += bytes;
  return p;
}

// Sleeps on a futex, as glibc's low-level lock does.
class FutexLock {
 public:
  void acquire() {
    uint32_t expected = 0;
    if (word_.compare_exchange_strong(expected, 1, std::memory_order_acquire)) return;
    while (word_.exchange(2, std::memory_order_acquire) != 0) Simulated::wait(word_, 2);
  }
  void release() {
    if (word_.exchange(0, std::memory_order_release) == 2) Simulated::wake(word_, 1);
  }

 private:
  std::atomic<uint32_t> word_{0};
};

inline constexpr size_t kModelObject = 1024;

struct Node {
  Node* next;
};

// One list of objects of one size, under one lock.
class LockedList {
 public:
  void* allocate(size_t) {
    lock_.acquire();
    Node* node = head_;
    if (node != nullptr) head_ = node->next;
    lock_.release();
    return node != nullptr ? node : reinterpret_cast<void*>(models_memory(kModelObject));
  }
  void free(void* p) {
    Node* node = static_cast<Node*>(p);
    lock_.acquire();
    node->next = head_;
    head_ = node;
    lock_.release();
  }

 private:
  FutexLock lock_;
  Node* head_ = nullptr;
};

// One list of objects of one size, a stack by compare-exchange of a tagged head.
class TreiberStack {
 public:
  void* allocate(size_t) {
    uint64_t head = head_.load(std::memory_order_acquire);
    while (node(head) != nullptr) {
      const uint64_t below = node(head)->next.load(std::memory_order_relaxed);
      if (head_.compare_exchange_weak(head, tagged(below, head), std::memory_order_acquire))
        return node(head);
    }
    return models_memory(kModelObject);
  }
  void free(void* p) {
    const auto index = static_cast<uint64_t>((static_cast<std::byte*>(p) - arena) / kModelObject);
    uint64_t head = head_.load(std::memory_order_relaxed);
    do static_cast<Link*>(p)->next.store(head & kIndex, std::memory_order_relaxed);
    while (!head_.compare_exchange_weak(head, tagged(index, head), std::memory_order_release));
  }

 private:
  static constexpr uint64_t kIndex = 0xFFFFFFFF;
  struct Link {
    std::atomic<uint64_t> next;
  };
  static Link* node(uint64_t head) {
    const uint64_t index = head & kIndex;
    return index == 0 ? nullptr : reinterpret_cast<Link*>(arena + index * kModelObject);
  }
  static uint64_t tagged(uint64_t index, uint64_t head) { return ((head >> 32) + 1) << 32 | index; }

  std::atomic<uint64_t> head_{0};
};

// One arena under one lock: a list for each size class, a header that tells the class, and
// counters.
class OneLockArena {
 public:
  void* allocate(size_t size) {
    const unsigned c = class_of(size);
    lock_.acquire();
    Node* node = bins_[c];
    if (node != nullptr) {
      bins_[c] = node->next;
    } else {
      std::byte* chunk = models_memory(kHeader + kGranule * c);
      *reinterpret_cast<uint64_t*>(chunk) = c;
      node = reinterpret_cast<Node*>(chunk + kHeader);
    }
    in_use_ += c;
    lock_.release();
    return node;
  }
  void free(void* p) {
    Node* node = static_cast<Node*>(p);
    const uint64_t c = *reinterpret_cast<uint64_t*>(static_cast<std::byte*>(p) - kHeader);
    lock_.acquire();
    node->next = bins_[c];
    bins_[c] = node;
    in_use_ -= c;
    lock_.release();
  }

 private:
  static constexpr size_t kGranule = 16;
  static constexpr size_t kHeader = 16;
  static constexpr size_t kMost = 64 << 10;
  static unsigned class_of(size_t size) {
    if (size > 1024) size = std::bit_ceil(size);
    return static_cast<unsigned>((size + kGranule - 1) / kGranule);
  }

  FutexLock lock_;
  uint64_t in_use_ = 0;
  Node* bins_[kMost / kGranule + 1]{};
};

}  // namespace simulator
