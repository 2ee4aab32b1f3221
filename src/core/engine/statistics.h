// Statistics: adds up what lanes, slabs, runs and locks have counted. Exact when no other thread is
// inside the allocator; otherwise each figure was true at some moment while they were read. If a
// lane's thread stays inside all the while, or cannot be shut out because there is no barrier, then
// what waits in the lane's bins counts as live.
// Called by: abi. Locking: each lane is held while its bins are walked.
//
// A hit counts nothing, so objects are counted where they rest: for each class
//   live        = in use by the slabs - waiting in bins - on their way to another lane + sampled
//                 objects
//   allocations = put into bins - waiting in bins;  frees = allocations - live
#pragma once

#include "core/engine/options.h"
#include "core/lane/lane_work.h"
#include "core/reclaim/deferred.h"
#include "seeing/writers.h"

namespace lanemalloc {

// With figures that only tests ask for.
struct Statistics : lane_statistics {
  Entry entry;
  uint32_t shared_lanes;
  RunStatistics runs;
  FamilyList families;
};

// A difference of figures that were read one after the other, while threads went on; at least 0.
inline uint64_t not_negative(uint64_t difference) {
  return static_cast<int64_t>(difference) < 0 ? 0 : difference;
}

template <class P>
class Collection {
 public:
  // At most this number of tries for each lane, and for the depot's lock: its holder may be this
  // very thread, further down its stack.
  static constexpr int kAttempts = 64;

  Collection(World<P>& world, Statistics& s, bool may_wait)
      : world_(world), s_(s), visit_(&s, may_wait) {
    s_ = Statistics{};
    s_.version = LANE_STATS_VERSION;
    s_.size = sizeof(lane_statistics);
    look_at_slabs();
    world_.lanes.for_each([this](AnyLane<P>& lane) { look_at(lane); });
    look_at_world();
    add_up();
  }

 private:
  template <class T>
  static uint64_t read(const std::atomic<T>& counter) {
    return static_cast<uint64_t>(counter.load(std::memory_order_relaxed));
  }

  // What the slabs have handed out.
  void look_at_slabs() {
    const BlockCount frontier = world_.region.frontier(), opened = world_.region.opened();
    const BlockCount known = frontier < opened ? frontier : opened;
    for (BlockIndex b = 0; b < known; ++b) {
      const MapWord word = world_.region.word(b);
      if (is_private(word.owner())) {
        const bool is_large = public_of(word.owner()) == Owner::kLarge;
        s_.kind_bytes += bytes_of(is_large ? world_.region.state(b).length : 1);
      }
      if (!is_slab(word.owner())) continue;
      const Slab* slab = world_.slabs().at(word);
      if (world_.region.block_of_state(slab) != b) continue;
      const unsigned c = index_of(slab->size_class);
      used_[c] += slab->used();
      ++s_.classes[c].slabs;
      s_.slab_bytes += bytes_of(slab_blocks_of(slab->size_class));
    }
  }

  // What waits in the lane, and what it has counted.
  void look_at(AnyLane<P>& lane) {
    uint64_t waiting[kClassCount]{};
    for (int attempt = 0; attempt < kAttempts; ++attempt) {  // a thread is rarely inside for long
      Lane<P>* held = lane.try_hold(visit_, false);
      if (held == nullptr) {
        // Another thread, perhaps the scavenger or one that ends, may have been preempted inside.
        if (visit_.may_block && attempt >= kAttempts / 2 && patience_ms_ > 0)
          P::sleep_ms(1), --patience_ms_;
        continue;
      }
      for (unsigned c = 1; c < kClassCount; ++c) waiting[c] = held->bin_length(c);
      if (const Deferred* deferred = lane.deferred.load(std::memory_order_relaxed);
          deferred != nullptr) {
        s_.deferred += deferred->added();
        s_.deferred_waiting += deferred->added() - deferred->freed();
      }
      held->let_go(visit_);
      break;
    }
    const LaneCounters& counters = lane.counters();
    for (unsigned c = 1; c < kClassCount; ++c) {
      s_.classes[c].allocations += read(counters.taken[c]) - waiting[c];
      s_.classes[c].in_flight += read(counters.sent[c]) - read(counters.received[c]);
      s_.remote_frees += read(counters.sent[c]);
      used_[c] -= waiting[c];
    }
    s_.misses += read(counters.misses);
    s_.remote_batches += read(counters.remote_batches);
    s_.inbox_drains += read(counters.inbox_drains);
    s_.slabs_made += read(counters.slabs_made);
    const Contention& contention = lane.lock().contention();
    s_.failed_entries += read(contention.failures);
    s_.lane_waits += read(contention.waits);
    s_.lane_waited_us += read(contention.waited_ns) / 1000;
    ++s_.lanes;
  }

  void look_at_world() {
    const SharedCounters& shared = world_.counters;
    s_.large_allocations = read(shared.large_allocations);
    s_.large_live_bytes = read(shared.large_bytes);
    s_.large_live_objects = s_.large_allocations - read(shared.large_frees);
    s_.samples = read(shared.sampled_large);
    s_.overflow_entries = read(shared.overflow_entries);
    s_.nested_entries = read(shared.nested_entries);
    s_.rebinds = read(shared.rebinds);
    s_.interruptions = P::interruptions();
    for (unsigned row = 0; row < kProbesRows; ++row) s_.probes[row] = read(shared.probes[row]);
    s_.entry = world_.lanes.entry();
    s_.shared_lanes = world_.lanes.orders().lanes();
    Text entry;
    OptionReader::write_entry(entry, s_.entry, s_.shared_lanes);
    for (size_t i = 0; i < entry.size(); ++i) s_.lane_statistics::entry[i] = entry.data()[i];
    s_.rescue_entries = world_.lanes.rescues();
    s_.revocations = read(shared.revocations);
    s_.refused_revocations = read(shared.refused_revocations);
    s_.bad_pointers = read(shared.bad_pointers);
    s_.slabs_moved = world_.depot.moved();
    s_.idle_stack_failures = read(world_.lanes.idle_tries().failures);
    const Contention &depot = world_.depot.lock().contention(),
                     &runs = world_.runs.lock().contention(),
                     &growth = world_.runs.growth_lock().contention();
    s_.depot_failures = read(depot.failures);
    s_.depot_waits = read(depot.waits);
    s_.runs_failures = read(runs.failures) + read(growth.failures);
    s_.runs_waits = read(runs.waits) + read(growth.waits);
    s_.runs = world_.runs.statistics();
    s_.claimed_bytes = s_.runs.claimed;
    s_.committed_bytes = s_.runs.claimed - s_.runs.clean;
    s_.cached_bytes = s_.runs.dirty;
    s_.purged_bytes = s_.runs.purged;
    s_.moved_bytes = s_.runs.moved;
  }

  void add_up() {
    s_.allocations = s_.large_allocations;
    s_.live_objects = s_.large_live_objects;
    s_.live_bytes = s_.large_live_bytes;
    for (unsigned c = 1; c < kClassCount; ++c) {
      lane_class_statistics& row = s_.classes[c];
      row.size = size_of(static_cast<SizeClass>(c));
      const uint64_t direct = read(world_.counters.direct_frees[c]);
      s_.direct_frees += direct;
      row.in_flight += direct - world_.depot.freed(c);
      const uint64_t sampled = read(world_.counters.sampled_allocations[c]);
      s_.samples += sampled;
      row.allocations += sampled;
      row.live =
          not_negative(used_[c] + sampled - read(world_.counters.sampled_frees[c]) - row.in_flight);
      row.in_flight = not_negative(row.in_flight);
      s_.allocations += row.allocations;
      s_.live_objects += row.live;
      s_.live_bytes += row.live * row.size;
      s_.in_flight_objects += row.in_flight;
    }
    s_.frees = s_.allocations - s_.live_objects;
  }

  World<P>& world_;
  Statistics& s_;
  Visit visit_;
  int patience_ms_ = 100;  // for all lanes together
  uint64_t used_[kClassCount]{};
};

// One line per figure: "lanemalloc: name: value".
template <class P>
void print(const lane_statistics& s) {
  write_lines(s, {[](void*, const char* text, size_t n) { P::say(text, n); }, nullptr});
}

}  // namespace lanemalloc
