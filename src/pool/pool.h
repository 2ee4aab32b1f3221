// Pool: objects of one exact size, by a kind of its own (slab/kind.h). What makes it more than
// that: functions at each use and at the memory's coming and going, a limit where threads wait in
// line, a reserve, levels of reclaim.
// Called by: abi/pools.cpp, on the thread's slot. Locking: allocate and free have none but the
// lanes'; the line of those who wait and the reserve have a lock (rank kPool), held for some steps,
// never with another.
//
//   hit, in the caller's code (include/lanemalloc/pool.h)  only for a pool without functions and
//                                                          without a limit: the others have
//      |                                                   no label in any lane, or one that is
//      |                                                   not for it (slab/handle.h)
//      v
//   allocate: the lane's bin, slabs, the depot; at the limit what others do not use; then the
//   reserve, or the line, or null
//   free:     whoever waits, or the reserve; else the lane
//
// Nobody waits for an object that is free. Who waits announces himself (attention), has every
// thread pass a barrier, and then looks into every lane, then at the depot and the limit; who
// brings a free object to a lane, by freeing it or by refilling the lane's bin, or room under the
// limit, leaves the lane and then looks whether somebody has announced himself.
//   waiter                                          who brings an object
//   attention + 1             [announce]            into the lane, leave the lane     [bring]
//   barrier on every thread                         (compiler fence)
//   look into every lane      [search]              look at attention                 [notice]
// If the barrier falls before [notice], that sees [announce], and serves. If it falls after,
// [bring] came before it, and [search] finds the object: it waits for lanes that are just busy.
// Objects that only go from lanes to the depot, or under the limit, are met there, since [search]
// looks there last; one that goes from lane to lane by mail is met in a second round. Both sides
// serve the first in the line, in turn, until nothing is left; so it does not matter who of them
// finds what.
// Where the system has no barrier, who waits looks again every millisecond.
//
// Source: FreeBSD's UMA (docs/seeds.md).
#pragma once

#include "engine/engine.h"

namespace lanemalloc {

struct PoolFunctions {
  int (*init)(void* object, size_t size, void* argument) = nullptr;
  void (*fini)(void* object, size_t size, void* argument) = nullptr;
  int (*ctor)(void* object, size_t size, void* argument) = nullptr;
  void (*dtor)(void* object, size_t size, void* argument) = nullptr;
  void* argument = nullptr;
};

// Where objects come from, if not from slabs (pool/imports.h). As in include/lanemalloc/pool.h;
// null: from slabs.
struct PoolSource {
  size_t (*import_objects)(void* source, void** objects, size_t n) = nullptr;
  void (*release_objects)(void* source, void** objects, size_t n) = nullptr;
  void* source = nullptr;
};

struct PoolCounters {
  std::atomic<uint64_t> limit_failures{0};
  std::atomic<uint64_t> waits{0};
  std::atomic<uint64_t> waited_ns{0};
};

enum class Reclaim : uint8_t { kTrim, kDrain, kDrainAll };

// The kind comes first: so it leads to its pool.
struct OfOneKind {
  Kind kind_;
};

template <class P>
class Pool : OfOneKind {
 public:
  static constexpr uint64_t kShelfBatches = 8;
  static constexpr uint32_t kZero = 1, kWait = 2, kUseReserve = 4;

  // bytes: of an object as the program asked for it. link and tag are added here where contents
  // must stay.
  Pool(Engine<P>& engine, const char* name, Bytes bytes, Bytes alignment,
       const PoolFunctions& functions, const PoolSource& source = {});
  // False: no memory, or too many pools.
  bool start(uint64_t limit, uint32_t reserve, Slot& slot);
  // Makes the frees that wait for a safepoint. How many objects were in use then. lost: set if
  // memory could not be reached.
  uint64_t end(Slot& slot, bool& lost);

  bool may_have(uint32_t flags) const {
    return (flags & ~(kZero | kWait | kUseReserve)) == 0 &&
           ((flags & kZero) == 0 || functions_.init == nullptr);
  }
  // Of a pool without functions: as the owner of a lane, or by the CPU. Null or false: nothing has
  // changed.
  void* allocate_quickly(Slot& slot) { return allocate_quickly(engine_, owner_.handle, slot); }
  bool free_quickly(void* p, Slot& slot) { return free_quickly(engine_, owner_.handle, p, slot); }
  // The same by what may be a handle.
  FAST static void* allocate_quickly(Engine<P>& engine, Handle handle, Slot& slot) {
    return engine.take_quickly_of(PoolHit{handle}, slot);
  }
  FAST static bool free_quickly(Engine<P>& engine, Handle handle, void* p, Slot& slot) {
    bool is_over = false;
    const auto look = [&](Gate* gate, Slab* slab) {
      of(slab->its_kind()).look_slow(slab, slot, gate), is_over = true;
    };
    Bin* bin;
    if (UNLIKELY(
            !engine.free_quickly_of(PoolHit{handle}, static_cast<Object*>(p), slot, look, bin)))
      return false;
    if (LIKELY(!is_over)) of(*hit_load(bin->kind)).look_after_leaving(slot);
    return true;
  }
  // The usual misses (Engine::take_in_turn_of).
  FAST void* allocate_in_turn(Slot& slot) {
    return !is_elaborate_ && engine_.entry() != Entry::kOwned ? engine_.take_in_turn_of(kind_, slot)
                                                              : nullptr;
  }
  FAST bool free_in_turn(void* p, Slot& slot) {
    if (is_elaborate_ || was_forked_ ||
        !engine_.free_in_turn_of(kind_, static_cast<Object*>(p), slot))
      return false;
    look_after_leaving(slot);
    return true;
  }
  void* allocate(uint32_t flags, Slot& slot);
  Verdict free(void* p, Slot& slot);
  // Whether free() would find p to be a good one.
  Verdict find(const void* p) const;
  size_t allocate_batch(void** objects, size_t n, uint32_t flags, Slot& slot);
  // As many of the first objects as are good; the next one, if there is any, is to be freed by
  // itself.
  size_t free_batch(void** objects, size_t n, Slot& slot);

  bool preallocate(size_t n, Slot& slot);
  bool set_limit(uint64_t limit, Slot& slot);
  Bytes reclaim(Reclaim level, Slot& slot);

  bool is_live() const { return owner_.is_live(); }
  // Whether each use is more than taking and putting back.
  bool is_elaborate() const { return is_elaborate_; }
  // Whether hits in programs may serve it.
  bool is_hit() const {
    const Handle label = owner_.label.load(std::memory_order_relaxed);
    return label != 0 && label == owner_.handle;
  }
  const KindOwner& owner() const { return owner_; }
  const Kind& kind() const { return kind_; }
  const PoolCounters& counters() const { return counters_; }
  // Objects in use.
  uint64_t live(Slot& slot);
  uint64_t limit() const {
    return budget_.limit() == Budget::kNone ? 0 : budget_.limit() / kind_.size;
  }
  uint32_t reserved() const { return reserved_.load(std::memory_order_relaxed); }
  uint32_t reserve() const { return reserve_; }

 private:
  struct Waiter {
    Waiter* next = nullptr;
    Object* object = nullptr;
    std::atomic<uint32_t> served{0};
  };
  class Locked;

  Object* object_at(void* p) const {
    return reinterpret_cast<Object*>(static_cast<std::byte*>(p) + kind_.link);
  }
  void* start_of(Object* object) const { return reinterpret_cast<std::byte*>(object) - kind_.link; }

  // Of a pool's.
  static Pool& of(Kind& kind) { return static_cast<Pool&>(reinterpret_cast<OfOneKind&>(kind)); }
  // See the head of this file.
  FAST void look_after_leaving(Slot& slot) {
    compiler_fence();
    if (UNLIKELY(hit_load(attention_) != 0)) serve(slot);
  }
  NOINLINE void look_slow(Slab* slab, Slot& slot, Gate* gate) {
    engine_.look_slow(slab, slot, gate);
    look_after_leaving(slot);
  }
  void* allocate_slowly(uint32_t flags, Slot& slot);
  bool initialize(Object* object);
  void* hand_out(Object* object, uint32_t flags, Slot& slot);
  bool is_initialized(Object* object) const {
    return !kind_.is_tagged || kind_.tag_of(object) != 0;
  }
  void put_back(Object* object, Slot& slot);
  void put_into_lane(Object* object, Slot& slot);
  NOINLINE bool keep_beside(Object* object, Slot& slot);
  bool is_imported() const { return source_.import_objects != nullptr; }
  // A free object from wherever there is one; null: none, or no memory.
  Object* obtain(Slot& slot);
  void keep_imported(Object* object, Slot& slot);
  static Object* take_off(Object*& list, uint64_t n);
  bool put_on_shelf(Object* list, Slot& slot);
  Object* take_from_shelf(uint64_t most, Slot& slot);
  Object* refill_from_shelf(Slot& slot);
  Object* import_some(Slot& slot);
  uint64_t release(Object* list);
  uint64_t release_from_shelf(uint64_t leave, Slot& slot);
  bool bring_to_shelf(Slot& slot, bool wait);
  enum class Taker : uint8_t { kSomebody, kNobody, kUnknown };
  Taker hand_over(Object* object, Slot& slot);
  NOINLINE void serve(Slot& slot);
  Object* wait(Slot& slot);
  bool withdraw(const Waiter& waiter, Slot& slot);
  void announce();
  void forget_line();
  void keep_in_reserve(Object* object);
  Object* take_reserved(Slot& slot);
  void finish(const Slab* slab);
  void publish();
  static void forget_threads(KindOwner& owner, const void* who);

  Engine<P>& engine_;
  KindOwner owner_;
  alignas(kNoSharing) Budget budget_;
  alignas(kNoSharing) const PoolFunctions functions_;
  const PoolSource source_;
  const Bytes bytes_;
  const bool is_elaborate_;              // functions are to be called, or marks made
  std::atomic<uint64_t> least_free_{0};  // objects that reclaim leaves between the lanes
  // Those who wait, and what the reserve lacks: somebody wants the next object that is freed. Under
  // the lock; anybody reads it.
  std::atomic<uint32_t> attention_{0};

  alignas(kNoSharing) Lock<P> lock_{Rank::kPool};
  std::atomic<uint32_t> waiters_{0};
  // Who could not have the lock has left it to the holder to serve
  std::atomic<bool> missed_{false};
  bool is_in_child_ = false;  // the holder has forked: the line is to be forgotten
  bool was_forked_ = false;   // here or in a parent: some lanes may be set aside
  Waiter* first_ = nullptr;
  Waiter* last_ = nullptr;
  Object* reserve_list_ = nullptr;
  uint32_t reserve_ = 0;
  std::atomic<uint32_t> reserved_{0};
  Object* shelf_ =
      nullptr;  // imported objects between the lanes; in a fork child those whose lane is set aside
  std::atomic<uint64_t> shelf_count_{0};
  PoolCounters counters_;
};

}  // namespace lanemalloc

#include "pool/pool_work.h"
