// Pool: objects of one exact size, from a kind of the pool's own (core/slab/kind.h). A pool adds to
// that: functions at each use and when memory comes or goes, a limit at which threads wait in line,
// a reserve, and levels of reclaim.
// Called by: abi/pools.cpp, on the thread's slot. Locking: allocate and free have none but the
// lanes'. One lock (rank kPool) guards the line of waiters and the reserve. It is held for a few
// steps, and never with another lock.
//
//   hit, in the caller's code (include/lanemalloc/pool.h)  only for a pool without functions and
//                                                          without a limit: other pools have
//      |                                                   no label in any lane, or one that
//      |                                                   these hits miss (core/slab/handle.h)
//      v
//   allocate: the lane's bin, slabs, the depot; at the limit, what other lanes do not use; then the
//   reserve, or the line, or null
//   free:     the reserve or a waiter, if one wants the object; otherwise the lane
//
// No thread waits while an object is free. A waiter announces itself (attention), has every thread
// pass a barrier, and then looks into every lane, then at the depot and the limit. A bringer is a
// thread that brings a free object to a lane, by a free or by a refill of the lane's bin, or that
// brings room under the limit. A bringer leaves the lane, and then looks whether a waiter has
// announced itself.
//   waiter                                          bringer
//   attention + 1             [announce]            into the lane, leave the lane     [bring]
//   barrier on every thread                         (compiler fence)
//   look into every lane      [search]              look at attention                 [notice]
// If the barrier falls before [notice], [notice] sees [announce], and the bringer serves. If it
// falls after, [bring] came before it, and [search] finds the object, since [search] waits for
// lanes that are busy. [search] looks at the depot and the limit last, so it also finds what has
// only gone from lanes to the depot, or back under the limit. It finds an object that a batch takes
// from lane to lane in a second round. Both sides serve the first waiter in the line, one after the
// other, until nothing is left. So it does not matter which side finds an object.
// If the system has no barrier, a waiter looks again every millisecond.
//
// Source: FreeBSD's UMA (docs/seeds.md).
#pragma once

#include "core/engine/engine.h"

namespace lanemalloc {

struct PoolFunctions {
  int (*init)(void* object, size_t size, void* argument) = nullptr;
  void (*fini)(void* object, size_t size, void* argument) = nullptr;
  int (*ctor)(void* object, size_t size, void* argument) = nullptr;
  void (*dtor)(void* object, size_t size, void* argument) = nullptr;
  void* argument = nullptr;
};

// Where objects come from if not from slabs (fronts/pool/imports.h). The members are as in
// include/lanemalloc/pool.h. Null: objects come from slabs.
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

// The kind lies first in a pool, so a kind leads to its pool.
struct OfOneKind {
  Kind kind_;
};

template <class P>
class Pool : OfOneKind {
 public:
  static constexpr uint64_t kShelfBatches = 8;
  static constexpr uint32_t kZero = 1, kWait = 2, kUseReserve = 4;

  // bytes: the size of an object as the program requested it. The constructor adds link and tag if
  // contents must stay.
  Pool(Engine<P>& engine, const char* name, Bytes bytes, Bytes alignment,
       const PoolFunctions& functions, const PoolSource& source = {});
  // False: there is no memory, or there are too many pools.
  bool start(uint64_t limit, uint32_t reserve, Slot& slot);
  // Makes the frees that wait for a safepoint, and then gives everything back. Returns how many
  // objects were in use. lost: whether some memory could not be reached.
  uint64_t end(Slot& slot, bool& lost);

  bool may_have(uint32_t flags) const {
    return (flags & ~(kZero | kWait | kUseReserve)) == 0 &&
           ((flags & kZero) == 0 || functions_.init == nullptr);
  }
  // For a pool without functions, and for the owner of a lane or by CPU. Null or false: nothing has
  // changed.
  void* allocate_from_bin(Slot& slot) { return allocate_from_bin(family_.handle, slot); }
  bool free_to_batch(void* p, Slot& slot) {
    return free_to_batch(engine_, family_.handle, p, slot);
  }
  // The same. `handle` may be any value.
  FAST static void* allocate_from_bin(Handle handle, Slot& slot) {
    return Objects::take_from_bin(PoolHit{handle}, slot);
  }
  FAST static bool free_to_batch(Engine<P>& engine, Handle handle, void* p, Slot& slot) {
    bool is_over = false;
    const auto look = [&](Gate* gate, Slab* slab) {
      of(slab->its_kind()).look_in_stay(slab, slot, gate), is_over = true;
    };
    Bin* bin;
    if (UNLIKELY(!Objects::free_to_slab_or_batch(engine.world(), PoolHit{handle},
                                                 static_cast<Object*>(p), slot, look, bin)))
      return false;
    if (LIKELY(!is_over)) of(*hit_load(bin->kind)).look_after_leaving(slot);
    return true;
  }
  // The usual misses (KindObjects::take_in_short_stay).
  FAST void* allocate_in_short_stay(Slot& slot) {
    return !is_elaborate_ && engine_.entry() != Entry::kOwned
               ? Objects::take_in_short_stay(engine_.world(), kind_, slot)
               : nullptr;
  }
  FAST bool free_in_short_stay(void* p, Slot& slot) {
    if (is_elaborate_ || was_forked_ ||
        !Objects::free_in_short_stay(engine_.world(), kind_, static_cast<Object*>(p), slot))
      return false;
    look_after_leaving(slot);
    return true;
  }
  void* allocate(uint32_t flags, Slot& slot);
  Verdict free(void* p, Slot& slot);
  // What free() would find: kGood, or what is wrong with p.
  Verdict find(const void* p) const;
  size_t allocate_batch(void** objects, size_t n, uint32_t flags, Slot& slot);
  // Frees the first objects, up to one that is not good. Returns how many it freed. The caller
  // frees the next one, if there is one, by itself.
  size_t free_batch(void** objects, size_t n, Slot& slot);

  bool preallocate(size_t n, Slot& slot);
  bool set_limit(uint64_t limit, Slot& slot);
  Bytes reclaim(Reclaim level, Slot& slot);

  bool is_live() const { return family_.is_live(); }
  // True if a use does more than take an object or put it back.
  bool is_elaborate() const { return is_elaborate_; }
  // True if hits in programs may serve this pool.
  bool is_hit() const {
    const Handle label = family_.label.load(std::memory_order_relaxed);
    return label != 0 && label == family_.handle;
  }
  const Family& family() const { return family_; }
  const Kind& kind() const { return kind_; }
  const PoolCounters& counters() const { return counters_; }
  // How many objects are in use.
  uint64_t live(Slot& slot);
  uint64_t limit() const {
    return budget_.limit() == Budget::kNone ? 0 : budget_.limit() / kind_.size;
  }
  uint32_t reserved() const { return reserved_.load(std::memory_order_relaxed); }
  uint32_t reserve() const { return reserve_; }

 private:
  using Objects = KindObjects<P>;

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

  // The pool that the kind leads to.
  static Pool& of(Kind& kind) { return static_cast<Pool&>(reinterpret_cast<OfOneKind&>(kind)); }
  // See the head of this file.
  FAST void look_after_leaving(Slot& slot) {
    compiler_fence();
    if (UNLIKELY(hit_load(attention_) != 0)) serve(slot);
  }
  NOINLINE void look_in_stay(Slab* slab, Slot& slot, Gate* gate) {
    Misses<P>::look_in_stay(slab, slot, gate);
    look_after_leaving(slot);
  }
  void* allocate_in_full(uint32_t flags, Slot& slot);
  bool initialize(Object* object);
  void* allocate_another(uint32_t flags, Slot& slot);
  void* hand_out(Object* object, uint32_t flags, Slot& slot);
  bool is_initialized(Object* object) const {
    return !kind_.is_tagged || kind_.tag_of(object) != 0;
  }
  void put_back(Object* object, Slot& slot);
  void put_into_lane(Object* object, Slot& slot);
  NOINLINE bool keep_beside(Object* object, Slot& slot);
  bool is_imported() const { return source_.import_objects != nullptr; }
  // Returns a free object from wherever there is one. Null: there is none, or no memory.
  Object* obtain(Slot& slot);
  void keep_imported(Object* object, Slot& slot);
  static Object* take_off(Address& list, uint64_t n);
  Object* after(const Object* object) const;
  Object* take_out(Object* object) const;
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
  static void forget_threads(Family& family, const void* who);

  Engine<P>& engine_;
  Family family_;
  alignas(kNoSharing) Budget budget_;
  alignas(kNoSharing) const PoolFunctions functions_;
  const PoolSource source_;
  const Bytes bytes_;
  const bool is_elaborate_;              // a use calls functions, or makes marks
  std::atomic<uint64_t> least_free_{0};  // objects that reclaim leaves between the lanes
  // How many waiters there are, and how many objects the reserve lacks. If it is not 0, the next
  // object that is freed is wanted. Written under the lock; any thread reads it.
  std::atomic<uint32_t> attention_{0};

  alignas(kNoSharing) Lock<P> lock_{Rank::kPool};
  std::atomic<uint32_t> waiters_{0};
  // A thread could not get the lock, and has left it to the holder to serve
  std::atomic<bool> missed_{false};
  bool is_in_child_ = false;  // the holder has forked, and must forget the line
  bool was_forked_ = false;   // here or in a parent: some lanes may be set aside
  Waiter* first_ = nullptr;
  Waiter* last_ = nullptr;
  Object* reserve_list_ = nullptr;
  uint32_t reserve_ = 0;
  std::atomic<uint32_t> reserved_{0};
  // Imported objects between the lanes. In a fork child: objects whose lane is set aside
  Object* shelf_ = nullptr;
  std::atomic<uint64_t> shelf_count_{0};
  PoolCounters counters_;
};

}  // namespace lanemalloc

#include "fronts/pool/pool_work.h"
