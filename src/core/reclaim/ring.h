// Ring: what one lane has deferred, oldest first, cut into batches that carry the epoch in which
// they were complete.
// Called by: safepoints, inside the lane. Locking: none, except for what is_empty() and the
// counters read.
//
//   begin_                                                           end_
//     | free |  batch, tag 7  |  batch, tag 9  |  open batch  |  free | 1 |
//            ^ head_                           ^ open_        ^ next_
//
// A batch does not wrap around; an open one that reaches the end is cut there. A deferred free
// stores its object at next_ while next_ is below limit(), and asks nothing else. At limit() the
// open batch is complete, the ring is full, or it is time to free some. One entry behind the end is
// for the thread that frees: it marks the end of what that thread frees (Safepoints::free_all).
#pragma once

#include "core/base/atomics.h"
#include "core/base/check.h"
#include "core/reclaim/epochs.h"

namespace lanemalloc {

template <class Item>
class Ring {
 public:
  static constexpr uint32_t kBatchesARing = 16;  // complete batches
  // Entries that are added in a row while nothing else is done
  static constexpr uint32_t kStep = 256;

  // next: the word that holds the next free place.
  explicit Ring(std::atomic<Item*>& next) : next_(next) {}

  // bound: how many entries may wait; the memory has room for one more.
  void start(void* memory, uint32_t bound) {
    begin_ = head_ = static_cast<Item*>(memory);
    end_ = begin_ + bound;
    batch_ = (bound + kBatchesARing - 1) / kBatchesARing;
    go_to(begin_);
  }
  bool is_started() const { return begin_ != nullptr; }

  // --- Adding.
  Item* limit() const {
    Item* const open = open_.load(std::memory_order_relaxed);
    const auto left = static_cast<uint32_t>(end_ - open);
    Item* limit = open + (batch_ < left ? batch_ : left);
    if (limit - next() > kStep) limit = next() + kStep;
    return waits() && head_ >= open && head_ < limit ? head_ : limit;
  }
  bool has_room() const { return next() < limit(); }
  void push(const Item& entry) {
    *next() = entry;
    next_.store(next() + 1, std::memory_order_relaxed);
  }

  // --- Cutting. begin_epoch() gives the tag, after what is cut was added.
  // Cuts the open batch, if it is complete. True if it was.
  template <class BeginEpoch>
  bool cut_complete(BeginEpoch begin_epoch) {
    if (open_entries() < batch_ && next() != end_) return false;
    add_batch(begin_epoch());
    return true;
  }
  // Cuts the open batch, however long it is. If there are too many batches, it joins the batch
  // before, which then waits as long.
  template <class BeginEpoch>
  void cut(BeginEpoch begin_epoch) {
    if (open_entries() == 0) return;
    if (count_ >= kBatchesARing / 2 && last().end == open_.load(std::memory_order_relaxed)) {
      last().tag = begin_epoch();
      lengthen_last();
    } else {
      add_batch(begin_epoch());
    }
  }

  // --- Taking out.
  // How many entries from head() on may be freed: what is left of the oldest batch, if its tag is
  // not above `upto`.
  uint32_t ready(Epoch upto) const {
    if (count_ == 0 || batches_[first_].tag > upto) return 0;
    return static_cast<uint32_t>(batches_[first_].end - head_);
  }
  Item* head() { return head_; }
  void drop(uint32_t n) {
    head_ += n;
    bump(taken_, uint64_t{n});
    if (head_ != batches_[first_].end) return;
    first_ = (first_ + 1) % kMostBatches;
    --count_;
    if (head_ == end_) head_ = begin_;
    // The ring is empty: back to where the memory has been touched.
    if (count_ == 0 && open_entries() == 0) go_to(head_ = begin_);
  }

  template <class Visitor>
  void for_each(Visitor visit) const {
    Item* at = head_;
    for (uint64_t n = added() - taken(); n > 0; --n, at = at + 1 == end_ ? begin_ : at + 1)
      visit(*at);
  }

  // --- Figures. From outside the lane they are hints.
  bool is_empty() const { return !waits() && next() == open_.load(std::memory_order_relaxed); }
  uint32_t batches() const { return count_; }
  Epoch last_tag() const { return batches_[(first_ + count_ - 1) % kMostBatches].tag; }
  uint64_t added() const { return cut_.load(std::memory_order_relaxed) + open_entries(); }
  uint64_t taken() const { return taken_.load(std::memory_order_relaxed); }
  uint64_t tags() const { return tags_.load(std::memory_order_relaxed); }

  void check_invariants() const {
    CHECK(count_ <= kMostBatches && begin_ <= head_ && head_ <= end_);
    uint64_t entries = 0;
    const Item* at = head_;
    for (uint32_t i = 0; i < count_; ++i) {
      const Batch& batch = batches_[(first_ + i) % kMostBatches];
      CHECK(batch.end > at && batch.end <= end_);
      CHECK(i == 0 || batch.tag > batches_[(first_ + i - 1) % kMostBatches].tag);
      entries += static_cast<uint64_t>(batch.end - at);
      at = batch.end == end_ ? begin_ : batch.end;
    }
    CHECK(at == open_.load(std::memory_order_relaxed) && at <= next() && next() <= end_);
    CHECK(entries == cut_.load(std::memory_order_relaxed) - taken());
    CHECK(entries + open_entries() <= static_cast<uint64_t>(end_ - begin_));
  }

 private:
  // Complete batches, those that were cut before they were complete, and one that ends at the end
  // of the ring.
  static constexpr uint32_t kMostBatches = 32;

  struct Batch {
    Item* end;
    Epoch tag;
  };

  Item* next() const { return next_.load(std::memory_order_relaxed); }
  uint64_t open_entries() const {
    return static_cast<uint64_t>(next() - open_.load(std::memory_order_relaxed));
  }
  bool waits() const {
    return cut_.load(std::memory_order_relaxed) != taken_.load(std::memory_order_relaxed);
  }
  Batch& last() { return batches_[(first_ + count_ - 1) % kMostBatches]; }
  void go_to(Item* place) {
    open_.store(place, std::memory_order_relaxed);
    next_.store(place, std::memory_order_relaxed);
  }
  void add_batch(Epoch tag) {
    CHECK(count_ < kMostBatches);
    ++count_;
    last().tag = tag;
    lengthen_last();
  }
  void lengthen_last() {
    last().end = next();
    bump(cut_, open_entries());
    bump(tags_);
    go_to(next() == end_ ? begin_ : next());
  }

  std::atomic<Item*>& next_;
  Item* begin_ = nullptr;
  Item* end_ = nullptr;
  Item* head_ = nullptr;
  std::atomic<Item*> open_{nullptr};
  uint32_t batch_ = 0;  // entries of a complete batch
  uint32_t first_ = 0;
  uint32_t count_ = 0;
  std::atomic<uint64_t> cut_{0};    // entries
  std::atomic<uint64_t> taken_{0};  // entries
  std::atomic<uint64_t> tags_{0};   // batches
  Batch batches_[kMostBatches];
};

}  // namespace lanemalloc
