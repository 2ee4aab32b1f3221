// World: what all lanes share, in one place. The engine owns the only one of a process; a test may
// have several.
// Called by: lane, engine. Locking: each part has its own.
//
//   lanes --> depot --> runs --> region --> platform          (who takes memory from whom)
//        ^                 ^
//        +-- scavenger ----+                                  (who gives it back)
#pragma once

#include "core/lane/lane_table.h"
#include "core/memory/scavenger.h"
#include "seeing/sampler.h"

namespace lanemalloc {

// How threads share lanes (entry/shared.h).
struct SharedSettings {
  Relaxed<uint32_t> probes = 4;  // lanes tried before a thread waits; at most all
  // Threads try lanes in order, from the first lane, rather than each in an order of its own
  Relaxed<bool> scan_from_first = false;
  Relaxed<bool> use_precedence = true;  // wait at the lane that has been contended longest
  // If no lane has been contended: wait at the lane tried last, rather than at the thread's own
  Relaxed<bool> wait_on_random = false;
};

struct Settings {
  Relaxed<Entry> entry = Entry::kOwned;
  // The entry is chosen from what is seen while the process runs (core/engine/entry_choice.h)
  Relaxed<bool> choose_entry = false;
  Relaxed<uint32_t> shared_lanes = 0;  // 0: the number of CPUs
  SharedSettings shared;
  bool checked = false;                    // a bit for each object: is it in use; nothing hits
  Relaxed<int64_t> decay_ms = 1000;        // how long freed memory is kept; < 0: for good
  HugePages huge_pages = HugePages::kOff;  // at the start; only Runs learns of later changes
  uint32_t deferred = 4096;  // frees that may wait in a lane for a safepoint; the same for calls
};

// Rows by how many lanes were tried until one could be entered, or until none was left: one row for
// each number up to 4, then one for each doubling.
inline constexpr unsigned kProbesRows = 15;
inline unsigned probes_row(uint32_t probes) {
  return probes <= 4 ? probes : static_cast<unsigned>(std::bit_width(probes - 1)) + 2;
}

// What happened outside any lane, or to a lane from outside. Any thread adds.
struct SharedCounters {
  std::atomic<uint64_t> overflow_entries{0};
  std::atomic<uint64_t> nested_entries{0};  // by signal handlers and other re-entrance
  std::atomic<uint64_t> revocations{0};     // lanes taken from their owner
  std::atomic<uint64_t> refused_revocations{0};
  std::atomic<uint64_t> large_allocations{0};
  std::atomic<uint64_t> large_frees{0};
  std::atomic<uint64_t> large_bytes{0};  // live
  // Objects sent straight to their owner, because the thread had no lane.
  std::atomic<uint64_t> direct_frees[kClassCount]{};
  // For sampled objects, which have runs of their own (core/engine/large.h).
  std::atomic<uint64_t> sampled_allocations[kClassCount]{};
  std::atomic<uint64_t> sampled_frees[kClassCount]{};
  std::atomic<uint64_t> sampled_large{0};  // sampled large objects, also among large_allocations
  std::atomic<uint64_t> sample_seed{0};
  std::atomic<uint64_t> bad_pointers{0};
  std::atomic<uint64_t> probes[kProbesRows]{};
  std::atomic<uint64_t> rebinds{0};  // times that a thread went over to another lane
};

enum class Need : uint8_t { kSome, kAll };  // how much of what lanes keep

template <class P>
struct World {
  Region<P> region;
  Runs<P> runs{region};
  Depot<P> depot{Slabs<P>{region, runs}};
  LaneTable<P> lanes{*this};
  KindTable kinds{bytes_of(Area::kBlocks)};
  // A thread was torn off, perhaps while it made a slab of a kind or gave one back. That slab may
  // be counted, and charged, for good.
  std::atomic<bool> was_torn{false};
  // If false, only lanes with a lock hand out objects of kinds
  std::atomic<bool> can_revoke{true};
  Scavenger<P> scavenger;
  Sampler<P> sampler;
  Settings settings{};
  Address link_secret = 0;  // for readers: that of all links (core/slab/object.h)
  alignas(kNoSharing) SharedCounters counters;
  // Called when a thread adopts a lane. It must see to it that Exits::thread_exits() is called; it
  // returns false if it cannot.
  bool (*watch_exit)(Slot& slot) = nullptr;
  // Reports a bad pointer that was found late; may abort, or return.
  void (*report)(Verdict why, const void* pointer) = nullptr;

  Slabs<P> slabs() { return {region, runs}; }

  // Takes the lane from its owner, calls work(held lane) and gives it back. False if the lane is
  // busy.
  template <class Work>
  bool with_idle_lane(AnyLane<P>& lane, Visit& visit, Work work) {
    Lane<P>* held = lane.try_hold(visit);
    PROBE2(revoke, lane.id(), held != nullptr);
    if (held == nullptr) {
      counters.refused_revocations.fetch_add(1, std::memory_order_relaxed);
      return false;
    }
    if (lane.owner_slot() != nullptr || lane.how == Entry::kPerCpu)
      counters.revocations.fetch_add(1, std::memory_order_relaxed);
    work(*held);
    held->let_go(visit);
    return true;
  }

  // Makes all lanes but `except` give empty slabs back, and lanes whose threads have exited also
  // everything else that is not in use. kSome, before fresh memory is taken: only from lanes that
  // have many empty blocks, and from one lane of an exited thread, so that no caller pays for many.
  // kAll, when there is no memory: from all. True if any lane gave something back; cheap if none
  // does. Never waits for a lane, since the caller may be in one.
  bool collect_empties(Need need, const AnyLane<P>* except, Visit& visit) {
    if (!visit.may_drain) return false;
    const BlockCount least = need == Need::kSome ? Lane<P>::kMuch : 1;
    bool any = false;
    bool may_clean = true;
    lanes.for_each([&](AnyLane<P>& lane) {
      if (&lane == except || !((may_clean && lane.was_left_full()) || lane.empty_blocks() >= least))
        return;
      with_idle_lane(lane, visit, [&](Lane<P>& held) {
        if (may_clean && held.was_left_full()) {  // it may have been adopted meanwhile
          any |= held.clean(visit);
          may_clean = need == Need::kAll;
        } else {
          any |= held.give_back_empties(held.empty_blocks(), visit);
        }
      });
    });
    return any;
  }
};

}  // namespace lanemalloc
