// Layout: tables, made by the compiler. They say where in the world, in a lane, in a block's state
// each figure lies that a reader outside the process may ask for, and where all cells of contention
// lie. Included by engine.h only. Called by: abi (the root), engine (the cells).
// Locking: none.
#pragma once

#include <cstddef>
#include <type_traits>

#include "core/engine/engine.h"
#include "seeing/root.h"

// The classes have no standard layout; all the same it is known where their members lie.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"

namespace lanemalloc {

template <class P>
struct Layout {
  using E = Engine<P>;
  using W = World<P>;
  using L = Lane<P>;

 private:
  template <class T>
  struct Element {
    using Type = T;
    static constexpr uint32_t kCount = 1;
  };
  template <class T>
  struct Element<std::atomic<T>> : Element<T> {};
  template <class T>
  struct Element<Relaxed<T>> : Element<T> {};
  template <class T, size_t kElements>
  struct Element<T[kElements]> : Element<T> {
    static constexpr uint32_t kCount = kElements;
  };

  template <class T, size_t kLength>
  static constexpr Field field(const char (&name)[kLength], size_t offset) {
    using Type = typename Element<std::remove_const_t<T>>::Type;
    Field f;
    name_into(f.name, name);
    f.offset = static_cast<uint32_t>(offset);
    f.count = Element<std::remove_const_t<T>>::kCount;
    f.bytes = sizeof(Type);
    f.type = std::is_same_v<Type, char> ? Field::Type::kText
             : std::is_pointer_v<Type>  ? Field::Type::kAddress
             : std::is_signed_v<Type>   ? Field::Type::kSigned
                                        : Field::Type::kUnsigned;
    return f;
  }
#define FIELD(name, base, Class, member) \
  field<decltype(Class::member)>(name, (base) + offsetof(Class, member))

  static constexpr size_t kWorld = offsetof(E, world_);
  static constexpr size_t kRegion = kWorld + offsetof(W, region);
  static constexpr size_t kRuns = kWorld + offsetof(W, runs);
  static constexpr size_t kDepot = kWorld + offsetof(W, depot);
  static constexpr size_t kLanes = kWorld + offsetof(W, lanes);
  static constexpr size_t kKinds = kWorld + offsetof(W, kinds);
  static constexpr size_t kEpochs = offsetof(E, safepoints_) + offsetof(Safepoints<P>, epochs_);
  static constexpr size_t kSettings = kWorld + offsetof(W, settings);
  static constexpr size_t kCounters = kWorld + offsetof(W, counters);
  static constexpr size_t kCountersOfLane = offsetof(L, counters_);
  static constexpr size_t kStacks = offsetof(Sampler<P>, stacks_);
  static constexpr size_t kOwnerPart = offsetof(BlockState, owner_part);

 public:
  static constexpr Field kFields[] = {
      FIELD("world.map_at", kRegion, Region<P>, map_),
      FIELD("world.states_at", kRegion, Region<P>, states_),
      FIELD("world.lanes_at", kRegion, Region<P>, lanes_),
      FIELD("world.base", kRegion, Region<P>, base_),
      FIELD("world.bytes", kRegion, Region<P>, bytes_),
      FIELD("world.block_count", kRegion, Region<P>, block_count_),
      FIELD("world.frontier", kRegion, Region<P>, frontier_),
      FIELD("world.opened", kRegion, Region<P>, opened_),
      FIELD("world.claimed_blocks", kRuns, Runs<P>, claimed_blocks_),
      FIELD("world.dirty_blocks", kRuns, Runs<P>, dirty_blocks_),
      FIELD("world.clean_blocks", kRuns, Runs<P>, clean_blocks_),
      FIELD("world.purged_blocks", kRuns, Runs<P>, purged_),
      FIELD("world.moved_blocks", kRuns, Runs<P>, moved_),
      FIELD("world.depot_freed", kDepot, Depot<P>, freed_),
      FIELD("world.depot_moved", kDepot, Depot<P>, moved_),
      FIELD("world.lane_count", kLanes, LaneTable<P>, count_),
      FIELD("world.owners", kLanes, LaneTable<P>, owners_),
      FIELD("world.rescues", kLanes, LaneTable<P>, rescues_),
      FIELD("world.entry", kLanes, LaneTable<P>, entry_),
      FIELD("world.scavenger", kWorld + offsetof(W, scavenger), Scavenger<P>, running_),
      FIELD("world.shared_lanes",
            kLanes + offsetof(LaneTable<P>, orders_) + offsetof(ProbeOrders, lanes_), Modulus, n_),
      FIELD("world.auto", kSettings, Settings, choose_entry),
      FIELD("world.decay_ms", kSettings, Settings, decay_ms),
      FIELD("world.checked", kSettings, Settings, checked),
      FIELD("world.link_secret", kWorld, W, link_secret),
      FIELD("world.first_family", kKinds, KindTable, first_),
      FIELD("world.overflow_entries", kCounters, SharedCounters, overflow_entries),
      FIELD("world.nested_entries", kCounters, SharedCounters, nested_entries),
      FIELD("world.revocations", kCounters, SharedCounters, revocations),
      FIELD("world.refused_revocations", kCounters, SharedCounters, refused_revocations),
      FIELD("world.large_allocations", kCounters, SharedCounters, large_allocations),
      FIELD("world.large_frees", kCounters, SharedCounters, large_frees),
      FIELD("world.large_bytes", kCounters, SharedCounters, large_bytes),
      FIELD("world.direct_frees", kCounters, SharedCounters, direct_frees),
      FIELD("world.sampled_allocations", kCounters, SharedCounters, sampled_allocations),
      FIELD("world.sampled_frees", kCounters, SharedCounters, sampled_frees),
      FIELD("world.sampled_large", kCounters, SharedCounters, sampled_large),
      FIELD("world.bad_pointers", kCounters, SharedCounters, bad_pointers),
      FIELD("world.probes", kCounters, SharedCounters, probes),
      FIELD("world.rebinds", kCounters, SharedCounters, rebinds),

      field<bool>("lane.made", sizeof(L)),
      field<uint64_t[kBinCount * sizeof(HitBin) / sizeof(uint64_t)]>("lane.bins",
                                                                     offsetof(L, bins)),
      FIELD("lane.how", 0, L, how),
      FIELD("lane.number", 0, L, number_),
      FIELD("lane.thread", 0, L, thread_),
      FIELD("lane.set_aside", 0, L, set_aside_),
      FIELD("lane.empty_blocks", 0, L, empty_blocks_),
      FIELD("lane.activity", 0, L, activity_),
      FIELD("lane.taken", kCountersOfLane, LaneCounters, taken),
      FIELD("lane.sent", kCountersOfLane, LaneCounters, sent),
      FIELD("lane.received", kCountersOfLane, LaneCounters, received),
      FIELD("lane.remote_batches", kCountersOfLane, LaneCounters, remote_batches),
      FIELD("lane.batches_to", kCountersOfLane, LaneCounters, batches_to),
      FIELD("lane.inbox_drains", kCountersOfLane, LaneCounters, inbox_drains),
      FIELD("lane.misses", kCountersOfLane, LaneCounters, misses),
      FIELD("lane.slabs_made", kCountersOfLane, LaneCounters, slabs_made),

      FIELD("state.carved", kOwnerPart, Slab, carved),
      FIELD("state.beyond", kOwnerPart, Slab, beyond),
      FIELD("state.countdown", kOwnerPart, Slab, countdown),
      FIELD("state.size_class", kOwnerPart, Slab, size_class),
      FIELD("state.place", kOwnerPart, Slab, place),
      FIELD("state.free_list", kOwnerPart, Slab, free_list),
      FIELD("state.kind", kOwnerPart, Slab, kind),
      FIELD("state.sample", kOwnerPart + offsetof(LargeState, sample), Sample, stack),
      FIELD("state.sample_class", kOwnerPart, LargeState, sample_class),
      FIELD("state.large_family", kOwnerPart, LargeState, family),
      FIELD("state.block_kind", 0, BlockState, kind),
      FIELD("state.length", 0, BlockState, length),

      FIELD("cell.count", 0, Contention, count),
      FIELD("cell.failures", 0, Contention, failures),
      FIELD("cell.waits", 0, Contention, waits),
      FIELD("cell.waited_ns", 0, Contention, waited_ns),
      FIELD("cell.waits_by_time", 0, Contention, histogram),
      FIELD("cell.sites", 0, Contention, sites),

      FIELD("family.type", 0, Family, type),
      FIELD("family.name", 0, Family, name),
      FIELD("family.kinds", 0, Family, kinds),
      FIELD("family.next", 0, Family, next),
      FIELD("family.contention", 0, Family, contention),
      FIELD("kind.size", 0, Kind, size),
      FIELD("kind.capacity", 0, Kind, capacity),
      FIELD("kind.blocks", 0, Kind, blocks),
      FIELD("kind.budget", 0, Kind, budget),
      FIELD("kind.next", 0, Kind, next),
      FIELD("kind.contended", 0, Kind, contended),
      FIELD("kind.refills", 0, Kind, refills),
      FIELD("kind.in_flight", 0, Kind, in_flight),
      FIELD("kind.slabs", 0, Kind, slabs),
      FIELD("kind.depot_count", 0, Kind, depot_count),
      FIELD("budget.parent", 0, Budget, parent_),
      FIELD("budget.used", 0, Budget, used_),
      FIELD("budget.peak", 0, Budget, peak_),
      FIELD("budget.limit", 0, Budget, limit_),
      FIELD("sampler.interval", 0, Sampler<P>, interval_),
      FIELD("sampler.contention_interval", 0, Sampler<P>, contention_interval_),
      FIELD("sampler.live", 0, Sampler<P>, live_),
      FIELD("sampler.peak", 0, Sampler<P>, peak_),
      FIELD("sampler.stacks_at", kStacks, Stacks<P>, records_),
      FIELD("sampler.stacks_bytes", kStacks, Stacks<P>, used_),
      field<uint32_t>("stack.bytes", offsetof(Stack, bytes_and_kind)),
      field<uint8_t>("stack.kind", offsetof(Stack, bytes_and_kind) + sizeof(uint32_t)),
      field<uint16_t>("stack.size", offsetof(Stack, bytes_and_kind) + 3 * sizeof(uint16_t)),
      field<uint32_t>("stack.depth", offsetof(Stack, depth_and_hash)),
      FIELD("stack.counters", 0, Stack, counters),
      field<uint64_t>("stack.frames", sizeof(Stack)),
      field<uint64_t>("budget.count", offsetof(Budget, tries_) + offsetof(Tries<>, count)),
      field<uint64_t>("budget.failures", offsetof(Budget, tries_) + offsetof(Tries<>, failures)),
  };
#undef FIELD

  template <size_t kLength>
  static constexpr CellPlace cell(const char (&name)[kLength], CellPlace::Where where,
                                  size_t offset, uint32_t flags = 0) {
    CellPlace place;
    name_into(place.name, name);
    place.where = static_cast<uint32_t>(where) | flags;
    place.offset = static_cast<uint32_t>(offset);
    return place;
  }
  static constexpr size_t kCell = offsetof(Lock<P>, contention_);
  static constexpr auto kOfWorld = CellPlace::Where::kWorld;

  static constexpr CellPlace kCells[] = {
      cell("lane", CellPlace::Where::kLane, offsetof(L, lock_) + kCell),
      cell("depot", kOfWorld, kDepot + offsetof(Depot<P>, lock_) + kCell),
      cell("growth", kOfWorld, kRuns + offsetof(Runs<P>, growth_) + kCell),
      cell("runs", kOfWorld, kRuns + offsetof(Runs<P>, lock_) + kCell),
      cell("readers", kOfWorld, kEpochs + offsetof(Epochs<P>, lock_) + kCell),
      cell("idle lanes", kOfWorld,
           kLanes + offsetof(LaneTable<P>, idle_) + offsetof(IdStack<>, tries_),
           CellPlace::kNeverWaits),
      cell("overflow lanes", kOfWorld, kLanes + offsetof(LaneTable<P>, overflow_tries_),
           CellPlace::kNeverWaits),
      cell("lane numbers", kOfWorld, kLanes + offsetof(LaneTable<P>, count_tries_),
           CellPlace::kNeverWaits),
      cell("fresh blocks", kOfWorld, kRegion + offsetof(Region<P>, frontier_tries_),
           CellPlace::kNeverWaits),
      cell("opened metadata", kOfWorld, kRegion + offsetof(Region<P>, opened_tries_),
           CellPlace::kNeverWaits),
      cell("used end", kOfWorld, kRuns + offsetof(Runs<P>, used_end_tries_),
           CellPlace::kNeverWaits),
      cell("runs put aside", kOfWorld, kRuns + offsetof(Runs<P>, deferred_tries_),
           CellPlace::kNeverWaits),
      cell("kinds", kOfWorld, kKinds + offsetof(KindTable, kind_tries), CellPlace::kNeverWaits),
  };
  static constexpr unsigned kCellCount = sizeof kCells / sizeof *kCells;

  // Reads all cells as they are now. The cells of all lanes are added up, and so are those of heaps
  // and pools.
  static void read_cells(E& engine, Statistics& s) {
    lane_contention_statistics* cell = s.contention;
    for (const CellPlace& place : kCells) {
      memcpy(cell->name, place.name, sizeof place.name);
      if (place.where == static_cast<uint32_t>(CellPlace::Where::kLane)) {
        engine.world_.lanes.for_each(
            [&](AnyLane<P>& lane) { add(*cell, at<Contention>(&lane, place.offset)); });
      } else if ((place.where & CellPlace::kNeverWaits) != 0) {
        add(*cell, at<Tries<>>(&engine, place.offset));
      } else {
        add(*cell, at<Contention>(&engine, place.offset));
      }
      ++cell;
    }
    read_families(engine.world_, cell[0], cell[1], s.families);
  }
  static_assert(kCellCount + 2 < LANE_STATS_CELLS);

  // What a reader needs to begin with. The rest of the root does not depend on the platform.
  static constexpr void describe(Root& root, const E& engine) {
    root.fields = kFields;
    root.field_count = sizeof kFields / sizeof *kFields;
    root.world = &engine;
    root.sampler = &engine.world_.sampler;
    root.class_sizes = kClassSizes.data();
    root.class_count = kClassCount;
    root.block_shift = kBlockShift;
    root.lane_bytes = static_cast<uint32_t>(LaneTable<P>::kStride);
    root.state_bytes = sizeof(BlockState);
    root.first_lane = static_cast<uint32_t>(Owner::kFirstLane);
    root.cells = kCells;
    root.cell_count = kCellCount;
  }

 private:
  template <class T>
  static const T& at(const void* base, uint32_t offset) {
    return *reinterpret_cast<const T*>(static_cast<const char*>(base) + offset);
  }
  static void add(lane_contention_statistics& sum, const Tries<>& tries) {
    sum.count += tries.count.load(std::memory_order_relaxed);
    sum.failures += tries.failures.load(std::memory_order_relaxed);
  }
  static void add(lane_contention_statistics& sum, const Contention& contention) {
    add(sum, static_cast<const Tries<>&>(contention));
    sum.waits += contention.waits.load(std::memory_order_relaxed);
    sum.waited_ns += contention.waited_ns.load(std::memory_order_relaxed);
    for (unsigned i = 0; i < Contention::kBuckets; ++i)
      sum.waits_by_time[i] += contention.histogram[i].load(std::memory_order_relaxed);
  }
  // If the thread cannot get the depot's lock, heaps and pools are left out.
  static void read_families(W& world, lane_contention_statistics& pools,
                            lane_contention_statistics& budgets, FamilyList& families) {
    memcpy(pools.name, "pools", sizeof "pools");
    memcpy(budgets.name, "budgets", sizeof "budgets");
    Visit visit(&world, true);
    int attempts = Collection<P>::kAttempts;
    while (!world.depot.lock().try_acquire(visit))
      if (--attempts == 0) return;
    world.kinds.for_each([&](Family& family) {
      if (family.contention != nullptr) add(pools, *family.contention);
      if (const Kind* kind = family.first_kind(); kind != nullptr && kind->budget != nullptr)
        add(budgets, kind->budget->tries_);
      if (families.count == FamilyList::kMost) {
        ++families.left_out;
      } else {
        read_family(family, families.at[families.count++]);
      }
    });
    world.depot.lock().release(visit);
  }
  static void read_family(const Family& family, FamilyFigures& f) {
    f = {};
    memcpy(f.name, family.name, sizeof f.name);
    f.type = family.type == Family::Type::kHeap ? "heap" : "pool";
    f.limit_bytes = FamilyFigures::kNoLimit;
    for (const Kind* kind = family.first_kind(); kind != nullptr; kind = kind->next) {
      if (const Budget* budget = kind->budget; budget != nullptr) {
        f.used_bytes = budget->used();
        f.peak_bytes = budget->peak();
        f.limit_bytes = budget->limit();
      }
      f.slab_bytes += bytes_of(kind->blocks) * kind->slabs.load(std::memory_order_relaxed);
      f.refills += kind->refills.load(std::memory_order_relaxed);
      f.contended += kind->contended.load(std::memory_order_relaxed);
      ++f.sizes;
    }
  }

  static constexpr std::array<uint32_t, kClassCount> kClassSizes = [] {
    std::array<uint32_t, kClassCount> sizes{};
    for (unsigned c = 1; c < kClassCount; ++c)
      sizes[c] = static_cast<uint32_t>(size_class_tables::size_of(c));
    return sizes;
  }();
};

}  // namespace lanemalloc

#pragma GCC diagnostic pop
