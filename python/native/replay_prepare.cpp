// lanemalloc-replay --prepare FILE: makes a plan (replay_plan.h) from raw events on standard input.
// Input: uint32 number of threads; for each thread uint64 number of its events; then RawEvents.
// Called by: python/lanemalloc/replays.py.
#include "replay_prepare.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <deque>
#include <unordered_map>
#include <vector>

#include "replay_plan.h"

namespace lanemalloc::trace {
namespace {

bool read_all(void* data, size_t n) { return fread_unlocked(data, 1, n, stdin) == n; }

struct Object {
  uint32_t slot;
  uint64_t size;
};

class Plan {
 public:
  explicit Plan(FILE* out) : out_(out) { put(&header_, sizeof header_); }

  bool read_threads() {
    uint32_t threads;
    if (!read_all(&threads, sizeof threads)) return false;
    left_.resize(threads);
    header_.threads = threads;
    return threads == 0 || read_all(left_.data(), threads * sizeof left_[0]);
  }

  void add(const RawEvent& raw) {
    if (first_ < 0) first_ = raw.time;
    PlanEvent event = {};
    event.time = static_cast<uint64_t>(raw.time - first_);
    event.size = raw.size;
    event.thread = raw.thread;
    event.op = raw.op;
    event.alignment = raw.alignment;
    if (frees(static_cast<Op>(raw.op)) ? plan_free(raw, event) : plan_allocation(raw, event)) {
      write(event);
    } else {
      ++header_.skipped;
    }
    if (raw.thread < left_.size() && --left_[raw.thread] == 0) {
      PlanEvent end = {};
      end.time = event.time;
      end.thread = raw.thread;
      end.op = kThreadEnds;
      write(end);
    }
  }

  bool finish() {
    header_.magic = kPlanMagic;
    return fflush(out_) == 0 &&
           pwrite(fileno(out_), &header_, sizeof header_, 0) == sizeof header_ && !failed_;
  }

 private:
  bool plan_free(const RawEvent& raw, PlanEvent& event) {
    if ((raw.flags & kHasObject) == 0) return true;  // free(NULL)
    event.flags = kHasObject;
    return release(raw.object, event.slot);
  }

  bool plan_allocation(const RawEvent& raw, PlanEvent& event) {
    const bool is_realloc = raw.op == static_cast<uint8_t>(Op::kRealloc) ||
                            raw.op == static_cast<uint8_t>(Op::kReallocarray);
    if (is_realloc && (raw.flags & kHasOld) != 0 && release(raw.old_object, event.old_slot))
      event.flags |= kHasOld;
    if ((raw.flags & kHasObject) == 0) return event.flags != 0 && raw.size == 0;
    event.flags |= kHasObject;
    event.slot = fresh_slot();
    live_[raw.object] = {event.slot, raw.size};
    if (live_.size() > header_.peak_live_objects) header_.peak_live_objects = live_.size();
    if ((live_bytes_ += raw.size) > header_.peak_live_bytes) header_.peak_live_bytes = live_bytes_;
    return true;
  }

  bool release(uint64_t object, uint32_t& slot) {
    const auto found = live_.find(object);
    if (found == live_.end()) return false;
    slot = found->second.slot;
    live_bytes_ -= found->second.size;
    live_.erase(found);
    freed_.push_back({header_.events, slot});
    return true;
  }

  uint32_t fresh_slot() {
    if (!freed_.empty() && freed_.front().at + 2 * kWindow < header_.events) {
      const uint32_t slot = freed_.front().slot;
      freed_.pop_front();
      return slot;
    }
    return header_.slots++;
  }

  void write(const PlanEvent& event) {
    put(&event, sizeof event);
    ++header_.events;
  }
  void put(const void* data, size_t n) {
    if (fwrite_unlocked(data, 1, n, out_) != n) failed_ = true;
  }

  struct Freed {
    uint64_t at;
    uint32_t slot;
  };
  FILE* out_;
  PlanHeader header_ = {};
  std::vector<uint64_t> left_;
  std::unordered_map<uint64_t, Object> live_;
  std::deque<Freed> freed_;
  uint64_t live_bytes_ = 0;
  int64_t first_ = -1;
  bool failed_ = false;
};

}  // namespace

int prepare(const char* path) {
  FILE* out = fopen(path, "we");
  if (out == nullptr) {
    fprintf(stderr, "lanemalloc-replay: %s: %s\n", path, strerror(errno));
    return 1;
  }
  Plan plan(out);
  if (!plan.read_threads()) return 1;
  RawEvent raw;
  while (read_all(&raw, sizeof raw)) plan.add(raw);
  if (!plan.finish()) {
    fprintf(stderr, "lanemalloc-replay: %s: %s\n", path, strerror(errno));
    return 1;
  }
  return 0;
}

}  // namespace lanemalloc::trace
