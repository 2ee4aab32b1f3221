// A bounded queue between threads. A thread that must wait blocks, since there may be many more
// threads than CPUs.
// The queue has hysteresis, so that threads do not wake each other for every item. Consumers that
// find it empty sleep until it is half full (at first: full, so that the live data of every run is
// the same) or the producers are done. Producers that find it full sleep until it is half empty.
// One sleeper is woken, and wakes the next if it leaves something to do.
// Called by: messages.cpp. Locking: one mutex per queue; items move in portions.
#ifndef LANEMALLOC_BENCH_WORKLOADS_QUEUE_H_
#define LANEMALLOC_BENCH_WORKLOADS_QUEUE_H_

#include <condition_variable>
#include <mutex>

#include "workloads.h"

namespace workloads {

class Queue {
 public:
  Queue(size_t capacity, int producers)
      : items_(std::max<size_t>(capacity, 2)), open_at_(items_.size()), producers_(producers) {}

  void push(void* const* items, size_t count) {
    std::unique_lock lock(mutex_);
    while (count > 0) {
      waiting_producers_++;
      has_room_.wait(lock, [&] { return !full_; });
      waiting_producers_--;
      for (; count > 0 && size_ < items_.size(); count--)
        items_[(first_ + size_++) % items_.size()] = *items++;
      full_ = size_ == items_.size();
      if (size_ >= open_at_) open();
    }
    if (!full_ && waiting_producers_ > 0) has_room_.notify_one();
  }
  void push(void* item) { push(&item, 1); }

  // Takes up to `most` items. Returns 0 if the producers are done and nothing is left.
  size_t pop(void** items, size_t most) {
    std::unique_lock lock(mutex_);
    waiting_consumers_++;
    has_items_.wait(lock, [&] { return open_ || producers_ == 0; });
    waiting_consumers_--;
    size_t count = take(items, most);
    if (open_ && waiting_consumers_ > 0) has_items_.notify_one();
    return count;
  }

  // Does not wait.
  size_t try_pop(void** items, size_t most) {
    std::unique_lock lock(mutex_);
    return take(items, most);
  }

  // Each producer calls it when it is done.
  void close() {
    std::lock_guard lock(mutex_);
    if (--producers_ == 0) has_items_.notify_all();
  }

 private:
  void open() {
    open_at_ = items_.size() / 2;
    if (open_) return;
    open_ = true;
    has_items_.notify_one();
  }

  size_t take(void** items, size_t most) {
    size_t count = std::min(most, size_);
    for (size_t i = 0; i < count; i++) items[i] = items_[(first_ + i) % items_.size()];
    first_ = (first_ + count) % items_.size();
    size_ -= count;
    if (size_ == 0) open_ = false;
    if (full_ && size_ <= items_.size() / 2) {
      full_ = false;
      has_room_.notify_one();
    }
    return count;
  }

  std::mutex mutex_;
  std::condition_variable has_items_, has_room_;
  Book<void*> items_;
  size_t first_ = 0, size_ = 0;
  size_t open_at_;
  int producers_;
  int waiting_producers_ = 0, waiting_consumers_ = 0;
  bool open_ = false;  // there are items, and consumers take them
  bool full_ = false;  // producers wait
};

}  // namespace workloads

#endif  // LANEMALLOC_BENCH_WORKLOADS_QUEUE_H_
