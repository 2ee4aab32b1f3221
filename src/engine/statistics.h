// Statistics: adds up what lanes, slabs, runs and locks have counted. Exact when no other thread is inside the allocator;
// otherwise each figure was true at some moment while they were read. Of a lane whose thread stays inside all the while, or cannot
// be shut out for want of a barrier, what waits in its bins counts as live.
// Called by: abi (stats=exit, malloc_stats, malloc_info, mallinfo). Locking: each lane is held while its bins are walked.
//
// A hit counts nothing, so objects are counted where they rest: for each class
//   live        = in use by the slabs - waiting in bins - on their way to another lane
//   allocations = put into bins - waiting in bins;  frees = allocations - live
#pragma once

#include "base/text.h"
#include "engine/options.h"
#include "lane/lane_work.h"
#include "reclaim/deferred.h"

namespace lanemalloc {

struct ClassStatistics {
  uint64_t size, allocations, live, in_flight, slabs;
};

struct Statistics {
  ClassStatistics classes[kClassCount];
  uint64_t allocations, frees, live_objects, live_bytes, in_flight_objects;
  uint64_t large_allocations, large_live_objects, large_live_bytes;
  uint64_t slab_bytes;
  uint64_t misses, remote_frees, remote_batches, inbox_drains, slabs_made, slabs_moved;
  uint64_t failed_entries, overflow_entries, nested_entries, rescue_entries;
  uint64_t revocations, refused_revocations, direct_frees, idle_stack_failures;
  uint64_t depot_failures, depot_waits, runs_failures, runs_waits;
  uint64_t lane_waits, lane_waited_us, rebinds, interruptions;
  uint64_t probes[kProbesRows];
  uint64_t lanes, bad_pointers;
  uint64_t deferred, deferred_waiting;  // frees and calls that wait for a safepoint
  Entry entry;
  uint32_t shared_lanes;
  RunStatistics runs;
};

// A difference of figures that were read one after the other, while threads went on.
inline uint64_t not_negative(uint64_t difference) {
  return static_cast<int64_t>(difference) < 0 ? 0 : difference;
}

template <class P>
void collect(World<P>& world, Statistics& s) {
  s = Statistics{};
  for (unsigned c = 1; c < kClassCount; ++c) {
    s.classes[c].size = size_of(static_cast<SizeClass>(c));
    s.classes[c].in_flight = uint64_t{0} - world.depot.freed(c);
  }
  // What the slabs have handed out.
  uint64_t used[kClassCount]{};
  const BlockCount known =
      world.region.frontier() < world.region.opened() ? world.region.frontier() : world.region.opened();
  for (BlockIndex b = 0; b < known; ++b) {
    const MapEntry entry = world.region.entry(b);
    if (!is_lane(entry.owner()) && entry.owner() != Owner::kDepot) continue;
    const Slab* slab = world.slabs().at(entry);
    if (world.region.block_of_state(slab) != b) continue;
    const unsigned c = index_of(slab->size_class);
    used[c] += slab->used();
    ++s.classes[c].slabs;
    s.slab_bytes += bytes_of(slab_blocks_of(slab->size_class));
  }
  // What waits in the lanes.
  Visit visit(&s, true);
  world.lanes.for_each([&](Lane<P>& lane) {
    uint64_t waiting[kClassCount]{};
    constexpr int kAttempts = 64;  // a thread is rarely inside for long
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      if (!lane.try_hold(visit, false)) continue;
      for (unsigned c = 1; c < kClassCount; ++c) waiting[c] = lane.bin_length(c);
      if (const Deferred* deferred = lane.deferred.load(std::memory_order_relaxed); deferred != nullptr) {
        s.deferred += deferred->added();
        s.deferred_waiting += deferred->added() - deferred->freed();
      }
      lane.let_go(visit);
      break;
    }
    const LaneCounters& counters = lane.counters();
    auto read = [](const auto& counter) {
      return static_cast<uint64_t>(counter.load(std::memory_order_relaxed));
    };
    for (unsigned c = 1; c < kClassCount; ++c) {
      s.classes[c].allocations += read(counters.taken[c]) - waiting[c];
      s.classes[c].in_flight += read(counters.sent[c]) - read(counters.received[c]);
      s.remote_frees += read(counters.sent[c]);
      used[c] -= waiting[c];
    }
    s.misses += read(counters.misses);
    s.remote_batches += read(counters.remote_batches);
    s.inbox_drains += read(counters.inbox_drains);
    s.slabs_made += read(counters.slabs_made);
    s.failed_entries += lane.lock().failures();
    s.lane_waits += lane.lock().waits();
    s.lane_waited_us += lane.lock().waited_ns() / 1000;
    ++s.lanes;
  });
  const SharedCounters& shared = world.counters;
  s.large_allocations = shared.large_allocations.load(std::memory_order_relaxed);
  s.large_live_bytes = shared.large_bytes.load(std::memory_order_relaxed);
  s.large_live_objects = s.large_allocations - shared.large_frees.load(std::memory_order_relaxed);
  s.allocations = s.large_allocations;
  s.live_objects = s.large_live_objects;
  s.live_bytes = s.large_live_bytes;
  for (unsigned c = 1; c < kClassCount; ++c) {
    const uint64_t direct = shared.direct_frees[c].load(std::memory_order_relaxed);
    s.direct_frees += direct;
    s.classes[c].in_flight += direct;
    s.classes[c].live = not_negative(used[c] - s.classes[c].in_flight);
    s.classes[c].in_flight = not_negative(s.classes[c].in_flight);
    s.allocations += s.classes[c].allocations;
    s.live_objects += s.classes[c].live;
    s.live_bytes += s.classes[c].live * s.classes[c].size;
    s.in_flight_objects += s.classes[c].in_flight;
  }
  s.frees = s.allocations - s.live_objects;
  s.overflow_entries = shared.overflow_entries.load(std::memory_order_relaxed);
  s.nested_entries = shared.nested_entries.load(std::memory_order_relaxed);
  s.rebinds = shared.rebinds.load(std::memory_order_relaxed);
  s.interruptions = P::interruptions();
  for (unsigned row = 0; row < kProbesRows; ++row)
    s.probes[row] = shared.probes[row].load(std::memory_order_relaxed);
  s.entry = world.lanes.entry();
  s.shared_lanes = world.lanes.orders().lanes();
  s.rescue_entries = world.lanes.rescues();
  s.revocations = shared.revocations.load(std::memory_order_relaxed);
  s.refused_revocations = shared.refused_revocations.load(std::memory_order_relaxed);
  s.bad_pointers = shared.bad_pointers.load(std::memory_order_relaxed);
  s.idle_stack_failures = world.lanes.idle_failures();
  s.slabs_moved = world.depot.moved();
  s.depot_failures = world.depot.lock().failures();
  s.depot_waits = world.depot.lock().waits();
  s.runs_failures = world.runs.lock().failures() + world.runs.growth_lock().failures();
  s.runs_waits = world.runs.lock().waits() + world.runs.growth_lock().waits();
  s.runs = world.runs.statistics();
}

// One line a figure: "lanemalloc: name: value".
template <class P>
void print(const Statistics& s) {
  Text entry;
  entry << "lanemalloc: entry: ";
  OptionReader::write_entry(entry, s.entry, s.shared_lanes);
  entry.end();
  P::say(entry.data(), entry.size());
  struct Line {
    const char* name;
    uint64_t value;
  };
  const Line lines[] = {
      {"allocations", s.allocations},
      {"frees", s.frees},
      {"live objects", s.live_objects},
      {"live bytes", s.live_bytes},
      {"large allocations", s.large_allocations},
      {"objects on their way", s.in_flight_objects},
      {"misses", s.misses},
      {"remote frees", s.remote_frees},
      {"remote batches", s.remote_batches},
      {"inbox drains", s.inbox_drains},
      {"lanes", s.lanes},
      {"failed lane entries", s.failed_entries},
      {"waits for a lane", s.lane_waits},
      {"microseconds waited for lanes", s.lane_waited_us},
      {"rebinds to another lane", s.rebinds},
      {"restarted sequences", s.interruptions},
      {"overflow entries", s.overflow_entries},
      {"nested entries", s.nested_entries},
      {"rescue entries", s.rescue_entries},
      {"revocations", s.revocations},
      {"refused revocations", s.refused_revocations},
      {"failed idle-stack swaps", s.idle_stack_failures},
      {"slabs made", s.slabs_made},
      {"slabs moved by the depot", s.slabs_moved},
      {"depot lock failures", s.depot_failures},
      {"depot lock waits", s.depot_waits},
      {"region lock failures", s.runs_failures},
      {"region lock waits", s.runs_waits},
      {"bytes committed", s.runs.claimed - s.runs.clean},
      {"bytes claimed", s.runs.claimed},
      {"bytes cached", s.runs.dirty},
      {"bytes purged", s.runs.purged},
      {"bytes moved by the kernel", s.runs.moved},
      {"deferred frees", s.deferred},
      {"deferred frees that wait", s.deferred_waiting},
      {"bad pointers", s.bad_pointers},
  };
  for (const Line& line : lines) {
    Text text;
    text << "lanemalloc: " << line.name << ": " << line.value;
    text.end();
    P::say(text.data(), text.size());
  }
  for (unsigned row = 1; row < kProbesRows; ++row) {
    if (s.probes[row] == 0) continue;
    Text text;
    text << "lanemalloc: searches of " << (row <= 4 ? "" : "up to ") << uint64_t{most_probes_of(row)}
         << (row == 1 ? " lane: " : " lanes: ") << s.probes[row];
    text.end();
    P::say(text.data(), text.size());
  }
}

}  // namespace lanemalloc
