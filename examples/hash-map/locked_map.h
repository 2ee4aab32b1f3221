// LockedMap: the standard library's map behind a lock, for comparison. The lock is a
// std::shared_mutex, which lets readers in together, or a std::mutex.
// Called by: hash_map.cpp.
#pragma once

#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "map.h"

template <class Mutex>
class LockedMap {
 public:
  template <class See>
  bool find(uint64_t key, lane::Reader&, See see) {
    enter_to_read();
    const auto found = map_.find(key);
    const bool is_there = found != map_.end();
    if (is_there) see(found->second);
    leave_reading();
    return is_there;
  }
  bool put(uint64_t key, const Value& value, lane::Reader&) {
    enter();
    const bool is_new = map_.insert_or_assign(key, value).second;
    mutex_.unlock();
    return is_new;
  }
  bool remove(uint64_t key, lane::Reader&) {
    enter();
    const bool was_there = map_.erase(key) != 0;
    mutex_.unlock();
    return was_there;
  }
  size_t count() const { return map_.size(); }
  size_t buckets() const { return map_.bucket_count(); }
  uint64_t failed_changes() const { return 0; }
  uint64_t waits() const { return waits_.load(std::memory_order_relaxed); }

 private:
  static constexpr bool kIsShared = std::is_same_v<Mutex, std::shared_mutex>;

  void enter() {
    if (mutex_.try_lock()) return;
    waits_.fetch_add(1, std::memory_order_relaxed);
    mutex_.lock();
  }
  void enter_to_read() {
    if constexpr (kIsShared) {
      if (mutex_.try_lock_shared()) return;
      waits_.fetch_add(1, std::memory_order_relaxed);
      mutex_.lock_shared();
    } else {
      enter();
    }
  }
  void leave_reading() {
    if constexpr (kIsShared) {
      mutex_.unlock_shared();
    } else {
      mutex_.unlock();
    }
  }

  Mutex mutex_;
  std::unordered_map<uint64_t, Value> map_;
  std::atomic<uint64_t> waits_{0};
};
