// Engine: malloc and free, put together from the layers below; the one root object of a process.
// Called by: abi. Locking: none of its own. Every function may be called from a signal handler and
// in a fork child.
//
// The hit paths are here, in sight. They leave through a continuation (`miss`) that the caller
// tail-calls, so that the exported functions contain nothing but the hit. engine_slow.h has what
// happens then.
#pragma once

#include "core/engine/large.h"
#include "core/engine/options.h"
#include "core/engine/pointers.h"
#include "core/engine/searches.h"
#include "core/engine/statistics.h"
#include "core/engine/stay.h"
#include "core/engine/upkeep.h"
#include "core/reclaim/deferred.h"

namespace lanemalloc {

template <class P>
struct Layout;  // core/engine/layout.h

template <class P>
class Engine {
 public:
  constexpr Engine() = default;
  Engine(const Engine&) = delete;

  // Call it once, before use; again if it has returned false (no address space).
  bool start(const Settings& settings, void (*report)(Verdict, const void*));
  void set_exit_watch(bool (*watch)(Slot& slot)) { world_.watch_exit = watch; }

  // --- Hits. The owner of a lane comes first (entry/owned.h): it pays for nothing that only the
  // other entries need. Then hits by the CPU (entry/percpu.h). Shared lanes are entered in misses.
  template <class Miss>
  FAST void* allocate(Bytes size, Slot& slot, Miss miss) {
    Gate* gate = Owned::enter(slot);
    const Bytes index = small_index(size);
    if (UNLIKELY(!Owned::may_allocate(gate, index))) {
      void* object;
      if (UNLIKELY(!PerCpu::pop<P>(gate, index, object))) return miss(gate);
      Owned::leave(slot, gate);
      return object;
    }
    void* object = lane_behind<P>(gate)->pop(gate->classes[index]);
    if (UNLIKELY(object == nullptr)) return miss(gate);
    Owned::leave(slot, gate);
    return object;
  }

  // `look(gate, slab)`: the object is freed, and its slab must be looked at.
  template <class Miss, class Look>
  FAST void free(void* p, Slot& slot, Miss miss, Look look) {
    Gate* gate = Owned::enter(slot);
    const Bytes distance = world_.region.distance(p);
    if (UNLIKELY(distance >= world_.region.hit_bytes()))
      return free_hit_by_cpu(p, distance, slot, gate, miss, look);
    const MapWord word = world_.region.word_at(distance);
    if (UNLIKELY(!Owned::may_free(gate, word))) return miss(gate, word);
    Slab* slab = static_cast<Slab*>(word.state());
    if (UNLIKELY(slab->push(static_cast<Object*>(p)))) return look(gate, slab);
    Owned::leave(slot, gate);
  }

  // --- Misses: the thread is inside already; `gate` is what was in its slot.
  // The usual misses of an owner come first: a bin of a larger class, or the free list of a bin's
  // slab; an object of another lane whose batch has room. Null or false: nothing has changed.
  FAST void* allocate_from_bin(Bytes size, Slot& slot, Gate* gate) {
    if (!Owned::may_allocate(gate, 0) || size - 1 >= kSlabMax) return nullptr;
    Lane<P>* lane = lane_behind<P>(gate);
    const SizeClass c = class_of(size);
    void* object = lane->pop(index_of(c));
    if (object == nullptr) object = lane->refill_from_own_list(index_of(c));
    if (object != nullptr) Owned::leave(slot, gate);
    return object;
  }
  using Remote = typename Lane<P>::Remote;
  // `full(gate, batch)`: the object is freed, and the batch must be sent (flush_in_stay).
  template <class Full>
  FAST bool free_to_batch(void* p, Slot& slot, Gate* gate, MapWord word, Full full) {
    if (!Owned::may_allocate(gate, 0)) return false;
    using Sent = typename Lane<P>::Sent;
    Remote* batch;
    const auto class_of_object = [&] { return world_.region.size_class_of(p); };
    const Sent sent = lane_behind<P>(gate)->send_to_open_batch(static_cast<Object*>(p), word,
                                                               class_of_object, batch);
    if (sent == Sent::kNot) return false;
    if (UNLIKELY(sent == Sent::kFull)) return full(gate, batch), true;
    Owned::leave(slot, gate);
    return true;
  }
  // The next usual ones, by CPU. False: nothing has changed.
  bool free_by_cpu(void* p, Slot& slot, Gate* gate);
  // The next usual ones: the owner's bin is refilled from elsewhere, or the thread works in a lane
  // that no thread owns. Null: nothing has changed.
  FAST void* allocate_by_refill(Bytes size, Slot& slot, Gate* gate) {
    return LIKELY(Owned::may_allocate(gate, 0)) ? allocate_by_owner(size, slot, gate)
                                                : allocate_here(size, slot, gate);
  }
  void* allocate_in_stay(Bytes size, Slot& slot, Gate* gate);
  // If the pointer is bad, returns why; then nothing has changed.
  Verdict free_in_stay(void* p, Slot& slot, Gate* gate);
  FAST void look_in_stay(Slab* slab, Slot& slot, Gate* gate);
  void flush_in_stay(Remote* batch, Slot& slot, Gate* gate);

  // --- Whole operations, for everything but malloc(n) and free(p). Null: no memory.
  void* allocate(Bytes size, Slot& slot) {
    return allocate(size, slot, [&](Gate* gate) {
      void* p = allocate_from_bin(size, slot, gate);
      if (p == nullptr) p = allocate_by_refill(size, slot, gate);
      return LIKELY(p != nullptr) ? p : allocate_in_stay(size, slot, gate);
    });
  }
  void* allocate_zeroed(Bytes size, Slot& slot);
  // alignment: a power of two.
  void* allocate_aligned(Bytes size, Bytes alignment, Slot& slot);
  Verdict free(void* p, Slot& slot) {
    Verdict verdict = Verdict::kGood;
    free(
        p, slot,
        [&](Gate* gate, MapWord) {
          if (!free_by_cpu(p, slot, gate)) verdict = free_in_stay(p, slot, gate);
        },
        [&](Gate* gate, Slab* slab) { look_in_stay(slab, slot, gate); });
    return verdict;
  }
  // Frees objects of slabs in one stay in the lane (Lane::free_chain). They are linked by their
  // first words; the last one's first word has no meaning. If an object is bad, returns why and
  // stores it in `bad`. That object, and those linked behind it, are left as they are.
  Verdict free_chain(Object* first, size_t n, Slot& slot, const void*& bad);
  // p must be good (find). size > 0.
  void* reallocate(void* p, MapWord word, Bytes size, Slot& slot);
  Found find(const void* p) const { return pointers().find(p); }
  Bytes usable_size(const void* p, MapWord word) const { return pointers().usable_size(p, word); }

  // --- Kinds (engine_kinds.h): what heaps and pools are made of.
  // Enters the owner among all others, with a place in the lanes' areas. False if there are too
  // many owners, or if the thread cannot get the depot's lock.
  bool add_owner(KindOwner& owner, Slot& slot);
  // Calls run() under the lock that guards these lists. False if the thread cannot get the lock.
  template <class Run>
  bool locked(Slot& slot, Run run) {
    Inside inside(slot, Owned::enter(slot));
    inside.visit().insists = Visit::kPatience;
    if (!world_.depot.lock().acquire(inside.visit())) return false;
    run();
    world_.depot.lock().release(inside.visit());
    return true;
  }
  // Returns the owner with this handle; `handle` may be any value. Null if no owner of that type
  // has it.
  KindOwner* find_owner(const void* handle, KindOwner::Type type) const {
    return world_.kinds.find(reinterpret_cast<Handle>(handle), type);
  }
  FAST KindOwner* find_owner_by_number(const void* handle, KindOwner::Type type) const {
    return world_.kinds.find_by_number(reinterpret_cast<Handle>(handle), type);
  }
  // From now on lanes have this label for the owner: its handle, its handle with kMissed, or 0.
  void relabel(KindOwner& owner, Handle label);
  // Adds a kind that is whole: from now on all threads see it.
  void add_kind(KindOwner& owner, Kind& kind);
  // Returns null if there is no memory, or if the budget still refuses after other lanes have given
  // what they do not use.
  Object* allocate_of(Kind& kind, Slot& slot);
  // Takes an object that waits in the lane's bin. Null if there is none.
  template <class Place>
  FAST Object* take_from_bin_of(const Place& place, Slot& slot);
  // The object lies in a slab of the kind.
  void free_of(Kind& kind, Object* object, Slot& slot);
  // Frees an object of a slab that belongs to that bin. False: nothing has changed. `look(gate,
  // slab)` must call look_in_stay(), and nothing after it, so that the call can be a jump.
  template <class Place, class Look>
  FAST bool free_to_slab_or_batch(const Place& place, Object* object, Slot& slot, Look look,
                                  Bin*& bin);
  // The usual misses. A thread that owns no lane works in the lane that its slot names, if no
  // thread is inside it. An owner frees into a batch that is there. Null or false: nothing has
  // changed. Also false for an object that is not the kind's.
  Object* take_in_short_stay_of(const Kind& kind, Slot& slot);
  bool free_in_short_stay_of(const Kind& kind, Object* object, Slot& slot);
  // The kind whose slab p lies in; null if there is none.
  FAST Kind* kind_at(const void* p) const;
  // The owner of an object that belongs to some kind.
  const KindOwner* owner_of(const void* p) const;
  // Whether p is the start of one of the kind's objects.
  bool is_start_of(const Kind& kind, const void* p) const;
  // A large object of a heap is malloc's until the heap has it, and again before it is freed.
  // resize: in place, or moved by the kernel; else null. Growth is charged to the budget once the
  // memory is there; what the object gives back is taken off the charge.
  void* allocate_large_of(KindOwner& owner, Bytes size, Bytes alignment, Slot& slot, bool& zeroed);
  template <class Visitor>
  void for_each_large(const KindOwner& owner, Visitor visit);
  Bytes large_bytes(const void* p) { return large().bytes(p); }
  bool is_block_start(const void* p) const { return world_.region.distance(p) % kBlockSize == 0; }
  void* resize_large_of(void* p, Bytes size, Budget& budget, Slot& slot);
  void free_large_of(void* p, Slot& slot);
  // Makes lanes give away what they have of the owner's kinds and do not use, to the depot or back.
  // wait: also lanes whose threads are inside just now, as far as the caller may wait. True if all
  // lanes could be reached.
  bool gather(KindOwner& owner, Slot& slot, bool wait);
  // Allocates as many objects at once as the thread's lane can give, or frees as many as it takes.
  // The caller then tries the next one by itself. Only for kinds without links behind the contents,
  // whose objects are not marked.
  size_t allocate_batch_of(Kind& kind, void** objects, size_t n, Slot& slot);
  size_t free_batch_of(const KindOwner& owner, void** objects, size_t n, Slot& slot);
  // Calls work() while no other thread looks into all lanes, as gather() does. False if work() was
  // not called: a handler may not wait for that.
  template <class Work>
  bool one_at_a_time(Slot& slot, Work work) {
    typename Searches<P>::Turn turn(searches_, slot);
    if (turn.is_alone()) work();
    return turn.is_alone();
  }
  // Calls work(lane, visit) inside the thread's lane. False if there is no memory for a lane.
  template <class Work>
  bool in_own_lane(Slot& slot, Work work);
  // Calls take(lane, visit) inside each lane that may have any, and then, outside, put(object) with
  // what take() has returned. Otherwise as gather().
  template <class Take, class Put>
  bool in_each_lane(KindOwner& owner, Slot& slot, bool wait, Take take, Put put);
  // Gives back what lies empty in the calling thread's lane.
  void tidy(KindOwner& owner, Slot& slot);
  Address begin_of(const Slab* slab) const {
    return world_.region.address_of(world_.region.block_of_state(slab));
  }
  // Calls visit(slab) for each slab of a kind that no thread uses meanwhile, after gather(). False
  // if there is no memory.
  template <class Visitor>
  bool for_each_slab(Kind& kind, Slot& slot, Visitor visit);
  // Calls visit(object) for each live object of such a slab until visit() returns another value
  // than 0, and returns that value.
  template <class Visitor>
  int for_each_live(const Kind& kind, const Slab* slab, Visitor visit) const;
  // How much there is of a kind.
  struct KindCount {
    uint64_t slabs, used, waiting;
    int64_t in_flight;
    uint64_t live() const {
      return not_negative(used - waiting - static_cast<uint64_t>(in_flight));
    }
  };
  KindCount count_kind(Kind& kind, Slot& slot);
  // Takes the owner and all its slabs out; `each(kind, slab)` sees each slab before its memory
  // goes. False: some lanes could not be reached. What they hold is lost, and so is the owner's
  // place.
  template <class Each>
  bool dissolve(KindOwner& owner, Slot& slot, Each each);
  // Gives back empty slabs of the kind that lie between the lanes, while at least `least_free` free
  // objects stay there; `each(slab)` sees each slab before.
  template <class Each>
  Bytes give_back_empties_of(Kind& kind, uint64_t least_free, Slot& slot, Each each);
  bool is_checked() const { return world_.settings.checked; }
  // The marks that objects have with checked=1: check_out() sets one, is_marked() reads it,
  // check_in() removes it, and returns false if it was removed already.
  bool check_out(const void* p) {
    return !world_.settings.checked || (pointers().mark_in_use(p), true);
  }
  bool is_marked(const void* p) const {
    return !world_.settings.checked || pointers().is_in_use(p);
  }
  bool check_in(const void* p) { return !world_.settings.checked || pointers().mark_free(p); }

  // --- Frees that wait for a safepoint (engine_safepoint.h; lanemalloc/safepoint.h says what each
  // function does). `miss(gate)`: the object is still to be deferred (defer_in_stay).
  template <class Miss>
  FAST int defer(void* object, Slot& slot, Miss miss) {
    Gate* gate = Owned::enter(slot);
    void** next;
    if (UNLIKELY(!Owned::may_defer(gate, next))) return miss(gate);
    *next = object;
    Owned::has_deferred(gate);
    Owned::leave(slot, gate);
    return 0;
  }
  int defer(void* object, Slot& slot) {
    return defer(object, slot, [&](Gate* gate) { return defer_in_stay(object, slot, gate); });
  }
  int defer_in_stay(void* object, Slot& slot, Gate* gate);
  FAST int defer_call(const Call& call, Slot& slot);
  void make_calls_of(const void* context, Slot& slot);
  Epochs<P>& epochs() { return epochs_; }
  size_t free_at_stop(Slot& slot);
  size_t free_what_may_be_freed(Slot& slot);
  int wait_for_readers(Slot& slot);  // 0 or EDEADLK
  bool add_reader(lane_reader& reader, const char* name, Slot& slot) {
    Inside inside(slot, Owned::enter(slot));
    return epochs_.add(reader, name, lane_reader_this_thread(), inside.visit());
  }
  // The calling thread ends, and may have forgotten to leave a read section. False: it has no
  // reader whose section it could have forgotten.
  bool reader_ends(Slot& slot) {
    Inside inside(slot, Owned::enter(slot));
    return epochs_.thread_ends(lane_reader_this_thread(), inside.visit());
  }
  using Removed = typename Epochs<P>::Removed;
  Removed remove_reader(lane_reader& reader, Slot& slot) {
    Inside inside(slot, Owned::enter(slot));
    return epochs_.remove(reader, inside.visit());
  }
  void statistics(lane_safepoint_statistics& s, Slot& slot);

  // Sets how threads enter lanes from now on, as the settings say; a thread follows at its next
  // miss. False if the system cannot do that; then nothing has changed. One caller at a time.
  bool choose_entry(const Settings& settings) { return entry_choice_.choose(settings); }
  const Stack* contended(const void* who, uint64_t ns) {
    return Sampling<P>(world_).contended(who, ns);
  }
  // Takes over the settings that may change while the process runs, except the entry.
  void adjust(const Settings& settings);
  Entry entry() const { return world_.lanes.entry(); }
  // Gives back what can be given back now. True if anything was given back.
  bool trim(Slot& slot) { return upkeep_.trim(slot); }
  // The thread that returns memory while the program is idle (process/threads.cpp).
  // scavenger_begins: it is about to start. scavenge: what it does, until it is stopped.
  // scavenger_is_gone: it has ended. While there is no scavenger, frees give memory back, past a
  // limit.
  void scavenger_begins() { upkeep_.begins(); }
  void scavenge() { upkeep_.scavenge(); }
  void stop_scavenger() { world_.scavenger.stop(); }
  void scavenger_is_gone() { upkeep_.is_gone(); }
  bool has_scavenger() const { return world_.scavenger.is_running(); }
  void wake_scavenger() { world_.scavenger.poke(); }
  // Set once, before the scavenger starts: `watch` is called at the end of each of its passes.
  // True: another pass is wanted.
  void set_pass_watch(bool (*watch)()) { upkeep_.set_watch(watch); }
  // The time between two passes; 0: no pass is wanted.
  uint64_t scavenger_period_ms() const { return world_.scavenger.period_ms(); }
  // From now on the thread works in overflow lanes. It calls this itself; nothing of the thread
  // goes on below the caller.
  void thread_exits(Slot& slot);
  // Around a child that works with this thread's slot, while the thread is stopped (vfork) or
  // beside it. In between there are no hits, and the thread has no lane of its own. Returns what
  // open_slot() is to put back.
  Gate* close_slot(Slot& slot);
  void open_slot(Slot& slot, Gate* gate) { Owned::leave(slot, gate); }
  void before_fork(Slot& slot);
  void after_fork_in_parent();
  void step_back(Slot& slot);  // called after that; the child does it by itself
  void after_fork_in_child(Slot& slot);
  // may_wait: false in a handler that has interrupted the allocator in this thread.
  // Slabs and lanes are read one after the other. So while the scavenger moves objects between
  // them, the figures are read again.
  void statistics(Statistics& s, bool may_wait = true) {
    constexpr int kAttempts = 64;
    for (int attempt = may_wait ? 0 : kAttempts;; ++attempt) {
      const uint32_t moves = world_.scavenger.moves();
      const bool is_last = attempt >= kAttempts;
      if (moves % 2 == 0 || is_last) {
        Collection<P>(world_, s, may_wait);
        std::atomic_thread_fence(std::memory_order_acquire);
        if (world_.scavenger.moves() == moves || is_last) break;
      }
      P::sleep_ms(1);
    }
    Layout<P>::read_cells(*this, s);
  }
  // Stops the process if the structure is broken. May be called only at rest.
  void check_invariants();
  World<P>& world() { return world_; }

 private:
  SHOWN_BY_LAYOUT;

  Large<P> large() { return Large<P>(world_, searches_); }
  Pointers<P> pointers() const { return Pointers<P>(world_); }

  template <class Miss, class Look>
  FAST void free_hit_by_cpu(void* p, Bytes distance, Slot& slot, Gate* gate, Miss miss, Look look) {
    if (UNLIKELY(!PerCpu::may_free(gate, distance))) return miss(gate, MapWord());
    if (P::pushes_here()) {
      if (UNLIKELY(!PerCpu::push<P>(gate, world_.region.map_word(distance), p)))
        return miss(gate, MapWord());
      return Owned::leave(slot, gate);
    }
    uint64_t word;
    uint32_t free;
    if (UNLIKELY(!PerCpu::enter_for<P>(gate, world_.region.map_word(distance), word, free)))
      return miss(gate, MapWord());
    Slab* slab = static_cast<Slab*>(MapWord(word).state());
    if (UNLIKELY(slab->push(static_cast<Object*>(p)))) return look(gate, slab);
    PerCpu::leave(gate, free);
    Owned::leave(slot, gate);
  }
  void* allocate_by_owner(Bytes size, Slot& slot, Gate* gate);
  void* allocate_here(Bytes size, Slot& slot, Gate* gate);
  void* allocate_in_short_stay(Bytes size, Slot& slot, Gate* gate);
  FAST bool free_in_short_stay(void* p, Slot& slot, Gate* gate);
  void step_aside(Slot& slot);
  void give_back_torn(Slot& slot, AnyLane<P>* inside);
  void give_back_torn(AnyLane<P>& lane, Visit& visit);
  bool may_have_any(const AnyLane<P>& lane, const KindOwner& owner) const;
  void unmark(const Slab* slab);
  void check_kinds();

  NOINLINE void* allocate_again(SizeClass c, Slot& slot);
  NOINLINE void* allocate_sampled(SizeClass c, Slot& slot, Gate* gate);
  bool free_sampled_of(Object*& link, Slot& slot);
  void* copy_to_new(void* p, Bytes old_size, Bytes size, Slot& slot);
  NOINLINE void* copy_to_run(void* p, Bytes old_size, Bytes size, Slot& slot);
  void free_without_lane(Object* object, MapWord word);
  void sort_out_lane(AnyLane<P>& lane, Slot& slot, Gate* gate);

  // The rest of engine_safepoint.h.
  template <class Item>
  int defer(Ring<Item> Deferred::* kind, const Item& item, Slot& slot, Gate* gate);
  template <class Item>
  Deferred* deferred_of(Lane<P>& lane, Ring<Item> Deferred::* kind, Visit& visit);
  void* take_blocks(Bytes bytes, Visit& visit);
  template <class Item>
  bool tend(Lane<P>& lane, Deferred& deferred, Ring<Item>& ring, Calls& calls, Visit& visit);
  uint64_t free_deferred(Lane<P>& lane, Ring<void*>& ring, Epoch upto, uint64_t most, Visit& visit);
  void free_all(Lane<P>& lane, void** from, void** to, Visit& visit);
  void free_other(Lane<P>& lane, void* p, Visit& visit);
  void free_now(void* object, Slot& slot) {
    if (const Verdict verdict = free(object, slot); verdict != Verdict::kGood)
      world_.report(verdict, object);
  }
  void free_now(Call call, Slot&) { call.free(call.context, &call.object, 1); }
  static Deferred* deferred_in(const AnyLane<P>& lane);
  template <class Work>
  bool visit_lane(AnyLane<P>& lane, Slot& slot, Work work);
  size_t free_in_lane(AnyLane<P>& lane, Slot& slot, Epoch upto, int attempts, bool may_call = true);
  void cut(Deferred& deferred);
  void cut_and_look(Slot& slot);
  void help_idle(Slot& slot, bool may_call);
  bool is_calling(const Slot& slot);
  NOINLINE int defer_call_in_stay(Call call, Slot& slot, Gate* gate);
  bool is_lost(const AnyLane<P>& lane);
  void forget_callers(const Slot& slot);

  static constexpr Epoch kEverything = ~Epoch{0};
  static constexpr uint32_t kLookEvery = 4;  // complete batches that wait

  World<P> world_;
  EntryChoice<P> entry_choice_{world_};
  Upkeep<P> upkeep_{world_, entry_choice_};
  Epochs<P> epochs_;
  struct {
    std::atomic<uint64_t> helped{0}, waited_ns{0}, stops{0};
  } reclaim_counters_;
  Searches<P> searches_{world_};
};

}  // namespace lanemalloc

#include "core/engine/engine_fork.h"
#include "core/engine/engine_kinds.h"
#include "core/engine/engine_slow.h"
#include "core/engine/layout.h"
// After the files above.
#include "core/engine/engine_safepoint.h"
