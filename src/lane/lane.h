// Lane: a complete little allocator, used by at most one thread at any instant, so everything
// inside is plain loads and stores. Called by: engine (its owner, or who has entered it), scavenger
// and other lanes (who hold it from outside).
// Locking: see entry/ for how a thread enters; the lock (rank kLane) is for entering from outside,
// and for lanes that many threads share.
//
//   slot --> [gate | bin heads]  one list of free objects a class, popped by a hit
//            [current slab a class]  where the bin's objects come from; local frees go to the
//                                    slab's own list
//            [partial slabs a class]  others with free objects; full slabs are in no list and come
//                                     back by themselves
//            [remote batches]  objects of other lanes, by owner, waiting to be sent together
//            ---- 128 bytes ----
//            [inbox]  batches that others have sent
//            [area]  elsewhere: bins of kinds, the same again for pools and heaps
//                    (lane/lane_kinds.h)
//            [lock, owner's slot, revoking]  for entering from outside
//
// Counting. `taken` counts objects that went into a bin, `sent` and `received` those on their way,
// slabs know what is in use. So a hit counts nothing, and at rest everything adds up exactly
// (engine/statistics.h).
#pragma once

#include <utility>

#include "lane/gate.h"
#include "lane/id_stack.h"
#include "lane/inbox.h"
#include "slab/depot.h"

namespace lanemalloc {

// What is to be said of a pointer that a program hands in.
enum class Verdict : uint8_t {
  kGood,
  kNotOurs,       // no address of ours
  kNotInUse,      // nothing lives there
  kNotAStart,     // inside an object
  kFreedAlready,  // the object is free
  kListDamaged,   // a free list has a circle or a stray link
  kOfKind,        // an object of a pool or a heap, where it is not to be
  kOfMalloc,      // one of malloc, the same
  kWrongSize,     // freed with a size that it does not have
  kOverrun,       // bytes behind it were written
};

template <class P>
struct World;
struct Deferred;  // reclaim/deferred.h

// Counted by the thread inside, read by anybody.
struct LaneCounters {
  std::atomic<uint64_t> taken[kClassCount]{};     // objects put into a bin
  std::atomic<uint64_t> sent[kClassCount]{};      // objects of others freed here
  std::atomic<uint64_t> received[kClassCount]{};  // own objects freed by others
  std::atomic<uint64_t> remote_batches{0};        // batches sent
  std::atomic<uint64_t> inbox_drains{0};          // times the inbox was emptied
  std::atomic<uint64_t> misses{0};                // requests that found their bin empty
  std::atomic<uint64_t> slabs_made{0};            // slabs taken from the run allocator
  static constexpr unsigned kOwners = 32;
  // Of remote_batches: by the owner's number modulo kOwners
  std::atomic<uint32_t> batches_to[kOwners]{};
};

template <class P>
class Lane : public Gate {
 public:
  static constexpr unsigned kIdleAfter = 64;  // batches that a sleeping owner may leave unanswered
  static constexpr BlockCount kMuch =
      16;  // empty blocks: they go back rather than that others take fresh ones

  // Objects of one other owner, on their way there.
  struct Remote : Batch {
    Owner owner = Owner::kClosed;  // never one of an object
    uint8_t unanswered = 0;        // batches that the owner has not taken in
    uint8_t seen = 0;              // the owner's misses at the last look
    int32_t room = 0;              // bytes; at most 0: to be flushed
  };
  static_assert(sizeof(Remote) == 40);

  // number: the lane's among those of its entry; kNoNumber if it has none.
  Lane(Owner id, World<P>& world, Entry entry, uint32_t number);
  Lane(const Lane&) = delete;

  Owner id() const { return id_; }
  uint32_t number() const { return number_; }

  // --- The hit paths. The caller is inside and has passed the gate.
  FAST Object* pop(Bytes index) {
    Object* object = heads[index];
    if (LIKELY(object != nullptr)) heads[index] = object->next;
    return object;
  }

  // --- Inside: the owner, or who holds the lane from outside.
  void* allocate(SizeClass c, Visit& visit) {
    Object* object = pop(index_of(c));
    return object != nullptr ? object : refill_plain(c, visit);
  }
  // Inside, after a request found no object: it is to be given one of this class that is sampled;
  // the bin was left as it is.
  SizeClass take_sample_due() { return std::exchange(sample_due_, SizeClass{0}); }
  // The bin is empty.
  FAST void* refill(SizeClass c, Visit& visit);
  // Refills the bin from its own slab's free list, the usual miss, and takes one object; null if
  // that does not do.
  FAST Object* refill_quickly(Bytes index);
  // Frees an object of another lane into a batch that is there; kNot: there is none. kFull: `full`
  // is to be flushed now.
  enum class Sent : uint8_t { kNot, kDone, kFull };
  template <class ClassOf>
  FAST Sent send_quickly(Object* object, MapEntry entry, ClassOf class_of_object, Remote*& full);
  // Sends the batch.
  NOINLINE void flush(Remote& remote, Visit& visit);
  // Frees an object whose page-map entry is `entry`.
  void free(Object* object, MapEntry entry, Visit& visit);
  // Frees objects of slabs, linked by their first words, in as few transfers as can be: at most one
  // for each other owner.
  void free_chain(Object* first, Visit& visit);
  // After Slab::push() said that somebody must look.
  void look_at(Slab* slab, Visit& visit);
  // Sends every waiting batch. True if there was any.
  bool flush_all(Visit& visit);
  // --- Kinds.
  // Of addresses; pages that no bin or label is in cost nothing.
  static constexpr BlockCount kAreaBlocks = 18;
  // Null: no memory, or beyond the kind's budget.
  Object* allocate(Kind& kind, Visit& visit);
  void free_of_kind(Object* object, MapEntry entry, Visit& visit);
  // An object of another lane, into a batch that is there and has room. False: nothing changed.
  FAST bool send_quickly(Object* object, MapEntry entry, const Kind& kind);
  // In a slab of this lane.
  FAST void free_here(Object* object, Slab* slab, Visit& visit) {
    if (!slab->bin->push(object) && UNLIKELY(slab->push(object))) look_at(slab, visit);
  }
  // The kind's bin, made if need be; null without memory.
  Bin* bin_for(Kind& kind, Visit& visit);
  // The kind's bin here, or null.
  FAST Bin* bin_of(const Kind& kind) const;
  // The same in an area.
  FAST static Bin* bin_in(Address area, const BinPlace& place);
  // What a hit asks for, in an area that is there; false: not there, not for hits, or no handle.
  FAST static bool find_bin(Address area, const BinPlace& place, Bin*& bin) {
    if (LIKELY(place.index == BinPlace::kNoIndex))
      return bin = reinterpret_cast<Bin*>(area + place.slot), true;
    return (bin = bin_in(area, place)) != nullptr;
  }
  FAST static bool find_bin(Address area, const PoolHit& hit, Bin*& bin);
  FAST static bool find_bin(Address area, const HeapHit& hit, Bin*& bin);
  // Has the owner's label here be what it is now, if it has one here. Any thread, also while the
  // lane's is inside.
  void relabel(const KindOwner& owner);
  // Puts full slabs of which some objects are free where they are found.
  void offer_full(Bin& bin);
  // Has the depot hold everything that lies here of the kind and is not in use; what is empty goes
  // back. True if any did.
  bool clean_kind(Bin& bin, Visit& visit);
  // Takes all slabs of the kind out of the lane, to be given back; and its bin.
  void forget_kind(Bin& bin, SlabList& slabs, Visit& visit);
  void forget_table(const KindOwner& owner, Visit& visit);

  // Takes in what others have sent, or so many batches of it. True if there was any that could be
  // reached.
  bool drain_inbox(Visit& visit, unsigned most = ~0u);
  // Gives away everything that is not in use: the scavenger does it to lanes at rest, trim to all.
  // True if a slab went back.
  bool clean(Visit& visit);

  // Gives back the empty slab of a big object, if the lane keeps one: a request that it does not
  // serve can then have its memory.
  void give_back_big(Visit& visit) {
    if (UNLIKELY(empty_big_ != nullptr)) give_back(empty_big_, visit);
  }
  // Gives back the slabs that have been empty longest, at least so many blocks. True if any.
  bool give_back_empties(BlockCount enough, Visit& visit);

  // Puts an object where deferred frees wait; false where there is no room.
  bool defer_quickly(void* object) {
    void** next = deferred_next.load(std::memory_order_relaxed);
    if (reinterpret_cast<Address>(next) >= deferred_limit_) return false;
    *next = object;
    deferred_next.store(next + 1, std::memory_order_relaxed);
    return true;
  }
  // How far deferred frees may go on by themselves. The owner's gate says it, where that is open.
  void set_deferred_limit(void** limit) {
    deferred_limit_ = reinterpret_cast<Address>(limit);
    if (!is_closed()) deferred_end.store(deferred_limit_, std::memory_order_relaxed);
  }
  // What waits for a safepoint; null: nothing ever did.
  std::atomic<Deferred*> deferred{nullptr};

  // --- From outside.
  // Its thread has exited, and nobody has cleaned it since.
  bool was_left_full() const { return left_full_.load(std::memory_order_relaxed); }
  void leave_full(bool yes) { left_full_.store(yes, std::memory_order_relaxed); }
  // How many blocks of slabs lie here empty.
  BlockCount empty_blocks() const { return empty_blocks_.load(std::memory_order_relaxed); }
  // Takes the lane away from its owner or its CPU, if nobody is inside. Never waits. ask: an owner
  // who cannot be shut out, for want of a barrier, is to clean the lane itself.
  bool try_hold(Visit& visit, bool ask = true);
  void let_go(Visit& visit);
  Inbox<>& inbox() { return inbox_; }

  // --- Entered by the CPU (entry/percpu.h).
  // The thread that took the lane, on whichever CPU it runs now.
  void leave_here() {
    taker_.store(nullptr, std::memory_order_relaxed);
    // release: what was done inside is visible to who takes the lane next. Pairs with [take.here].
    here.store(free_here(), std::memory_order_release);
  }
  // Inside: has hits free what lies in blocks that are new since the last time.
  void see_growth() {
    const Bytes bytes = world_.region.bytes();
    if (here_bins != 0 && here_bytes.load(std::memory_order_relaxed) != bytes)
      here_bytes.store(bytes, std::memory_order_relaxed);
  }
  uint32_t free_here() const { return number_ << 16 | static_cast<uint32_t>(id_); }
  // Of the lanes of its CPU it is the first.
  bool is_first_here = false;
  bool is_free_here() const { return here.load(std::memory_order_relaxed) == free_here(); }
  // Somebody is inside: not the one who holds the lane from outside.
  bool is_taken_here() const { return here.load(std::memory_order_relaxed) == kTakenHere; }
  // Inside, in a miss: if the thread is torn off it knows that it was here, from now until it
  // leaves.
  void taken_by(const void* who) { taker_.store(who, std::memory_order_relaxed); }

  // --- Entered by its lock (entry/shared.h).
  // When an entry first failed since the last that did not: nanoseconds; 0 for none.
  std::atomic<uint64_t>& precedence() { return precedence_; }

  // --- The owner's side of the entry (entry/owned.h).
  bool adopt_by(Slot& slot, Visit& visit);  // false: it was set aside
  void disown(Visit& visit);
  void forget_owner();  // the same, while the lock is held
  // The owner changes over to another entry: the lane is closed, and nobody else's while the thread
  // lives. The lock is held.
  void rest_closed();
  bool rests() const { return rests_; }
  // Whether the slot, whose thread may be gone and its memory too, holds this lane: its thread is
  // outside.
  bool is_named_by(const Slot* slot) const;
  // The owner's number with the system; 0 if there is none.
  uint32_t owner_thread() const { return thread_.load(std::memory_order_relaxed); }
  uint32_t owner_process() const { return process_; }
  // Of a thread that was torn off: it is inside by the CPU, in a miss.
  bool is_taken_by(const void* who) const { return taker_.load(std::memory_order_relaxed) == who; }
  // It has the lock, which goes over to the visit.
  bool take_over(Visit& visit) { return lock_.take_over(visit); }
  // It has the lock, and was perhaps about to take the lane from outside, or had it. True: nobody
  // else is inside now, as after try_hold().
  bool take_again();
  // Whoever was inside is gone, and stopped at some instruction: puts everything together again,
  // from what the page map says. What was just between two places is lost. Whoever calls has the
  // lane to itself.
  void salvage(Visit& visit);
  // acquire: sees what the revoker did before it let go. Pairs with [revoking.release].
  bool is_being_revoked() const { return revoking_.load(std::memory_order_acquire); }
  void open_gate();
  void close_gate();
  bool is_closed() const;
  // The owner's, inside: whether the lock's holder is another one than at the last call.
  bool is_new_holder() {
    const uint64_t stay = lock_.contention().count.load(std::memory_order_relaxed);
    return std::exchange(holder_seen_, stay) != stay;
  }
  bool is_asked() const { return asked_.load(std::memory_order_relaxed); }
  bool take_asked() { return is_asked() && asked_.exchange(false, std::memory_order_relaxed); }

  // The lock. False without it, also if the lane was set aside meanwhile: a handler that
  // interrupted this thread has forked.
  FAST bool try_lock(Visit& visit) { return lock_.try_acquire(visit) && was_not_set_aside(visit); }
  bool lock_or_wait(Visit& visit) { return lock_.acquire(visit) && was_not_set_aside(visit); }
  void unlock(Visit& visit) { lock_.release(visit); }
  const Lock<P>& lock() const { return lock_; }  // to be looked at
  Slot* owner_slot() const { return owner_slot_.load(std::memory_order_relaxed); }
  void set_owner(Slot* slot) {
    owner_slot_.store(slot, std::memory_order_relaxed);
    process_ = slot != nullptr ? P::process_id() : 0;
    thread_.store(slot != nullptr ? P::thread_id() : 0, std::memory_order_relaxed);
  }
  // In a fork child, after salvage(): the thread that was inside, or had the lock, is not here. An
  // owner that is here goes on in the lane.
  void begin_in_child() {
    revoking_.store(false, std::memory_order_relaxed);
    lock_.forget_holder();
    if (how == Entry::kPerCpu) leave_here();
  }
  // In a fork child of a handler, or after give_back_torn(): nobody will ever enter this lane
  // again; its owner, if it is there, works elsewhere.
  void set_aside();
  bool is_set_aside() const { return set_aside_; }
  // The same of a lane that perhaps this thread is inside, further down its stack: nobody may count
  // on its coming free.
  void doubt() { is_doubtful_ = true; }
  bool is_doubtful() const { return is_doubtful_; }
  IdStack<>::Link& idle_link() { return idle_link_; }
  std::atomic<uint32_t>& overflow_link() { return overflow_link_; }

  // Changes whenever the lane leaves its hit paths; the scavenger compares.
  uint64_t activity() const {
    return activity_.load(std::memory_order_relaxed) +
           counters_.misses.load(std::memory_order_relaxed);
  }
  struct Rest {
    uint64_t activity = 0;
    uint32_t passes = 0;  // of the scavenger, since the activity last changed
    bool cleaned = false;
  };
  Rest& rest() { return rest_; }  // the scavenger's notes

  // Objects that its bins were given so far, but for those that went back.
  uint64_t objects_taken() const {
    uint64_t n = 0;
    for (const auto& taken : counters_.taken) n += taken.load(std::memory_order_relaxed);
    return n;
  }
  LaneCounters& counters() { return counters_; }
  const LaneCounters& counters() const { return counters_; }
  // Inside, or from outside while the lane is held.
  uint64_t bin_length(unsigned c) const {
    uint64_t n = 0;
    for (const Object* object = heads[c]; object != nullptr; object = object->next) ++n;
    return n;
  }
  void check_invariants() const;

 private:
  SHOWN_BY_LAYOUT;

  static constexpr unsigned kRemotes = 32;
  static constexpr unsigned kRemotesOfKinds = 8;
  static constexpr unsigned kSomeBatches = 4;
  static constexpr uint32_t kBatchBytes = 16 << 10;
  static constexpr uint32_t kBatchObjects = 64;
  static constexpr BlockCount kMostAlone = 512;  // empty blocks, while no scavenger runs
  static constexpr uint32_t kPassesToKeep = 4;   // passes of the scavenger that a slab stays empty

  // Of an object in a batch. It takes its size, and at least its share of the count, out of the
  // batch's room: one subtraction for both.
  struct Charge {
    uint32_t room;
    uint32_t places;
  };
  struct Charges {
    Charge of[kClassCount];
  };
  static constexpr Charges kCharges = [] {
    Charges charges{};
    for (unsigned c = 1; c < kClassCount; ++c) {
      const Bytes size = size_class_tables::size_of(c);
      const Bytes room = size > kBatchBytes / kBatchObjects ? size : kBatchBytes / kBatchObjects;
      charges.of[c] = {static_cast<uint32_t>(room), Batch::places_in(size)};
    }
    return charges;
  }();

  template <class AnyBin>
  FAST Object* serve(AnyBin bin, Object* list, uint64_t taken) {
    bin.count_taken(bin.cut(list, taken));
    bin.head() = list->next;
    return list;
  }
  struct SampledBin;
  NOINLINE void* refill_plain(SizeClass c, Visit& visit);
  void* refill_sampled(SizeClass c, Visit& visit);
  NOINLINE Object* take_big(SizeClass c, Visit& visit);
  bool is_sample_due(SizeClass c);
  bool takes_no_sample(Bytes index, const Slab* slab);
  uint64_t cut_list(SizeClass c, Object* list, uint64_t n);
  Kind* kind_of(const Object* object) const;
  BlockCount check_bin(const Bin& bin) const;
  unsigned index_at(const Object* object) const;
  struct ClassBin;
  struct KindBin;
  template <class AnyBin>
  Object* refill_from(AnyBin bin, Visit& visit);
  template <class AnyBin>
  void clear_bin(AnyBin bin);
  template <class AnyBin>
  bool clean_bin(AnyBin bin, Visit& visit);
  SlabList& partial_of(const Slab* slab) {
    return LIKELY(!slab->is_of_kind()) ? partial_[index_of(slab->size_class)] : slab->bin->partial;
  }
  const Slab* current_of(const Slab* slab) const {
    return LIKELY(!slab->is_of_kind()) ? current_[index_of(slab->size_class)] : slab->bin->current;
  }
  void wait_for_frees(Slab* slab);
  void sort(Slab* empty);
  Address open_area(Visit& visit);
  void open_area_to_hits();
  FAST static Handle label_at(Address area, Bytes labels, Handle handle) {
    using Anywhere [[gnu::aligned(1), gnu::may_alias]] = Handle;
    const auto* begin = reinterpret_cast<const std::byte*>(area);
    const auto* at = reinterpret_cast<const Anywhere*>(begin + labels + Labels::place(handle));
#if defined(__SANITIZE_THREAD__)
    return __atomic_load_n(at, __ATOMIC_RELAXED);
#else
    return *at;
#endif
  }
  static std::byte* slot_at(Address area, Handle handle) {
    constexpr Bytes kScale = Labels::kBinBytes / sizeof(Handle);
    return reinterpret_cast<std::byte*>(area) + Labels::kBins + Labels::place(handle) * kScale;
  }
  // Null: beyond those that have labels.
  static std::atomic<Handle>* label_of(const KindOwner& owner, Address area) {
    const Bytes labels = owner.type == KindOwner::Type::kHeap ? Labels::kHeaps : Labels::kPools;
    if (number_of(owner.handle) >= Labels::kHits) return nullptr;
    return reinterpret_cast<std::atomic<Handle>*>(area + labels + Labels::place(owner.handle));
  }
  static void give_label(const KindOwner& owner, Address area);
  static std::atomic<Bin*>& table_in(Address area, uint32_t slot) {
    return *reinterpret_cast<std::atomic<Bin*>*>(area + slot);
  }
  bool send_of_kind(Object* object, MapEntry entry, Visit& visit);
  NOINLINE void receive_other(Object* object, MapEntry entry, Visit& visit);
  Run blocks_for_slab(BlockCount n, Visit& visit);
  Slab* pop_partial(SlabList& partial);
  void take_partial(SlabList& partial, Slab* slab);
  void keep(Slab* slab, Visit& visit);
  void keep_limit(Visit& visit);
  void forget_empty(Slab* slab);
  bool take_away(Slab* slab);
  void give_back(Slab* slab, Visit& visit);
  NOINLINE void age(Visit& visit);
  void free_here(Object* object, MapEntry entry, Visit& visit);
  FAST Remote& remote_to(Owner owner) {
    return *arch::kept(&remotes_[static_cast<unsigned>(owner) % kRemotes]);
  }
  // Apart, so that a hit of malloc's free never finds a batch for an object that is not malloc's.
  Remote& remote_of_kinds_to(Owner owner) {
    return remotes_[kRemotes + static_cast<unsigned>(owner) % kRemotesOfKinds];
  }
  FAST bool add(Object* object, MapEntry entry, Remote& remote, size_t c);
  FAST static bool add(Object* object, MapEntry entry, Remote& remote, const Kind& kind);
  bool send(Object* object, MapEntry entry, Visit& visit);
  void claim(Remote& remote, Owner owner, Visit& visit);
  FAST void receive(Object* first, Object* last, uint32_t n, Visit& visit);
  NOINLINE void receive_others(Object* first, uint32_t n, Visit& visit);
  NOINLINE void send_after(Object* object, MapEntry entry, Visit& visit);
  bool was_not_set_aside(Visit& visit) {
    if (LIKELY(!set_aside_)) return true;
    lock_.release(visit);
    return false;
  }
  bool take_from_owner(bool ask);
  void give_to_owner();
  bool take_from_cpu();
  void salvage_slab(Slab* slab, SlabList& partial, SlabList* full, Object* chain);
  void drop_damaged_list(Slab* slab, Verdict why);
  void stir();
  Slabs<P> slabs() const;

  // The owner's words.
  Slab* current_[kClassCount]{};
  SlabList partial_[kClassCount];
  Remote remotes_[kRemotes + kRemotesOfKinds];
  const Object* last_given_[kRemotesOfKinds]{};  // batches
  uint64_t claimed_ = 0;                         // which remotes have ever had an owner
  EmptySlabs empties_;
  // The youngest empty slab of a big object. There are others only after frees in bulk.
  Slab* empty_big_ = nullptr;
  std::atomic<Address> bins_at_{0};  // the area; others may look into it
  Bin* bins_ = nullptr;
  std::atomic<uint32_t> empty_blocks_{0};  // of those; anybody reads it
  uint32_t epoch_ = 0;                     // when it last looked how old they are
  // Taken since it looked around for empty ones; kMuch: look at once
  uint32_t fresh_blocks_ = kMuch;
  bool few_came_ = false;  // at the last look into the inbox
  Address deferred_limit_ = 0;
  // Bytes of objects for bins until the next that is sampled (lane_samples.h)
  int64_t sample_left_ = 0;
  bool sample_started_ = false;
  SizeClass sample_due_{0};
  uint64_t sample_random_ = reinterpret_cast<uintptr_t>(this);
  LaneCounters counters_;
  const Owner id_;
  const uint32_t number_;
  World<P>& world_;
  std::atomic<uint64_t> activity_{1};
  std::atomic<uint32_t> overflow_link_{0};
  std::atomic<uint32_t> idle_link_{0};
  Rest rest_;

  // Others' words.
  alignas(kNoSharing) Inbox<> inbox_;
  alignas(kNoSharing) std::atomic<uint64_t> precedence_{0};
  std::atomic<Slot*> owner_slot_{nullptr};  // whose lane it is; under the lock
  std::atomic<bool> revoking_{false};
  bool set_aside_ = false;
  uint64_t holder_seen_ = 0;  // of the owner's: the lock's stays when it last gave way
  Relaxed<bool> is_doubtful_ = false;
  bool rests_ = false;                   // closed, though it has an owner; under the lock
  std::atomic<bool> mail_waits_{false};  // much of it
  std::atomic<bool> left_full_{false};
  // Where the system has no barrier: clean yourself when you can
  std::atomic<bool> asked_{false};
  // Last, for what is behind its first words is rarely written
  Lock<P> lock_{Rank::kLane};
  std::atomic<uint32_t> thread_{0};          // the owner's number with the system, for readers
  Relaxed<uint32_t> process_ = 0;            // in which it has that number
  std::atomic<const void*> taker_{nullptr};  // who is inside by the CPU, in a miss
};

}  // namespace lanemalloc
