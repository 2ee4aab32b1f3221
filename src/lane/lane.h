// Lane: a complete small allocator. At most one thread uses it at any instant, so everything inside
// is plain loads and stores.
// Called by: engine (its owner, or a thread that has entered it), scavenger and other lanes (which
// hold it from outside).
// Locking: entry/ says how a thread enters. The lock (rank kLane) is for entering from outside, and
// for lanes that many threads share.
//
//   slot --> [gate | bin heads]  one list of free objects for each class, popped by a hit
//            [current slab of each class]  where the bin's objects come from; local frees go to the
//                                          slab's own list
//            [partial slabs of each class]  others with free objects; full slabs are in no list and
//                                           come back by themselves
//            [remote batches]  objects of other lanes, by owner, waiting to be sent together
//            ---- 128 bytes ----
//            [inbox]  batches that other lanes have sent
//            [area]  elsewhere: bins of kinds, the same again for pools and heaps
//                    (lane/lane_kinds.h)
//            [lock, owner's slot, revoking]  for entering from outside
//
// Counting. `taken` counts objects that went into a bin; `sent` and `received` count those on their
// way; slabs know what is in use. So a hit counts nothing, and at rest everything adds up exactly
// (engine/statistics.h).
#pragma once

#include <utility>

#include "lane/gate.h"
#include "lane/id_stack.h"
#include "lane/inbox.h"
#include "slab/depot.h"

namespace lanemalloc {

// What to report about a pointer that a program hands in.
enum class Verdict : uint8_t {
  kGood,
  kNotOurs,       // not one of our addresses
  kNotInUse,      // nothing lives there
  kNotAStart,     // inside an object
  kFreedAlready,  // the object is free
  kListDamaged,   // a free list has a circle or a stray link
  kOfKind,        // an object of a pool or a heap, in a call that takes none
  kOfMalloc,      // malloc's, in a call that takes none of malloc's objects
  kWrongSize,     // freed with a size that is not the object's
  kOverrun,       // bytes behind the object were written
};

template <class P>
struct World;
struct Deferred;  // reclaim/deferred.h

// The thread inside counts; any thread may read.
struct LaneCounters {
  std::atomic<uint64_t> taken[kClassCount]{};     // objects put into a bin
  std::atomic<uint64_t> sent[kClassCount]{};      // other lanes' objects freed here
  std::atomic<uint64_t> received[kClassCount]{};  // own objects freed by other lanes
  std::atomic<uint64_t> remote_batches{0};        // batches sent
  std::atomic<uint64_t> inbox_drains{0};          // times the inbox was drained
  std::atomic<uint64_t> misses{0};                // requests that found their bin empty
  std::atomic<uint64_t> slabs_made{0};            // slabs taken from the run allocator
  static constexpr unsigned kOwners = 32;
  // The part of remote_batches for each owner, by the owner's number modulo kOwners
  std::atomic<uint32_t> batches_to[kOwners]{};
};

template <class P>
class Lane : public Gate {
 public:
  static constexpr unsigned kIdleAfter = 64;  // batches that a sleeping owner may leave unanswered
  // Empty blocks. A lane that has this many gives them back before another lane takes fresh ones.
  static constexpr BlockCount kMuch = 16;

  // Objects of one other owner, on their way to it.
  struct Remote : Batch {
    Owner owner = Owner::kClosed;  // kClosed is never the owner of an object
    uint8_t unanswered = 0;        // batches that the owner has not taken in
    uint8_t seen = 0;              // the owner's misses at the last look
    int32_t room = 0;              // bytes; at 0 or below the batch is to be flushed
  };
  static_assert(sizeof(Remote) == 40);

  // number: the lane's number among the lanes of its entry; kNoNumber if it has none.
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

  // --- Inside: the owner, or a thread that holds the lane from outside.
  void* allocate(SizeClass c, Visit& visit) {
    Object* object = pop(index_of(c));
    return object != nullptr ? object : refill_plain(c, visit);
  }
  // Inside, after a request found no object. A class says that the request gets a sampled object of
  // this class; the bin was left as it is.
  SizeClass take_sample_due() { return std::exchange(sample_due_, SizeClass{0}); }
  // The bin is empty.
  FAST void* refill(SizeClass c, Visit& visit);
  // The usual miss: refills the bin from the free list of its slab, and takes one object. Null if
  // that does not work.
  FAST Object* refill_from_own_list(Bytes index);
  // Frees an object of another lane into a batch that exists. kNot: there is none. kFull: `full` is
  // to be flushed now.
  enum class Sent : uint8_t { kNot, kDone, kFull };
  template <class ClassOf>
  FAST Sent send_to_open_batch(Object* object, MapEntry entry, ClassOf class_of_object,
                               Remote*& full);
  // Sends the batch.
  NOINLINE void flush(Remote& remote, Visit& visit);
  // Frees an object whose page-map entry is `entry`.
  void free(Object* object, MapEntry entry, Visit& visit);
  // Frees objects of slabs, linked by their first words, in as few transfers as possible: at most
  // one for each other owner.
  void free_chain(Object* first, Visit& visit);
  // Called after Slab::push() said that the slab must be looked at.
  void look_at(Slab* slab, Visit& visit);
  // Sends every waiting batch. True if there was any.
  bool flush_all(Visit& visit);
  // --- Kinds.
  // The blocks of an area. They are addresses: pages that hold no bin or label cost nothing.
  static constexpr BlockCount kAreaBlocks = 18;
  // Null if there is no memory, or if the kind's budget refuses.
  Object* allocate(Kind& kind, Visit& visit);
  void free_of_kind(Object* object, MapEntry entry, Visit& visit);
  // Frees an object of another lane into a batch that exists and has room. False: nothing changed.
  FAST bool send_to_open_batch(Object* object, MapEntry entry, const Kind& kind);
  // Frees an object of a slab of this lane.
  FAST void free_own(Object* object, Slab* slab, Visit& visit) {
    if (!slab->bin->push(object) && UNLIKELY(slab->push(object))) look_at(slab, visit);
  }
  // The kind's bin, made if necessary; null if there is no memory.
  Bin* bin_for(Kind& kind, Visit& visit);
  // The kind's bin here, or null.
  FAST Bin* bin_of(const Kind& kind) const;
  // The same in an area.
  FAST static Bin* bin_in(Address area, const BinPlace& place);
  // Finds what a hit asks for, in an area that exists. False: it is not there, is not for hits, or
  // the number is no handle.
  FAST static bool find_bin(Address area, const BinPlace& place, Bin*& bin) {
    if (LIKELY(place.index == BinPlace::kNoIndex))
      return bin = reinterpret_cast<Bin*>(area + place.slot), true;
    return (bin = bin_in(area, place)) != nullptr;
  }
  FAST static bool find_bin(Address area, const PoolHit& hit, Bin*& bin);
  FAST static bool find_bin(Address area, const HeapHit& hit, Bin*& bin);
  // Makes the owner's label here what it is now, if it has one here. Any thread may call it, also
  // while the lane's own thread is inside.
  void relabel(const KindOwner& owner);
  // Moves full slabs that have free objects to the list where they are found.
  void offer_full(Bin& bin);
  // Gives the depot everything of the kind that lies here and is not in use. Empty slabs go back.
  // True if any did.
  bool clean_kind(Bin& bin, Visit& visit);
  // Takes all slabs of the kind out of the lane, to be given back, and its bin too.
  void forget_kind(Bin& bin, SlabList& slabs, Visit& visit);
  void forget_table(const KindOwner& owner, Visit& visit);

  // Drains the inbox, or takes in `most` batches of it. True if there was any batch that could be
  // reached.
  bool drain_inbox(Visit& visit, unsigned most = ~0u);
  // Gives away everything that is not in use. The scavenger calls it for lanes at rest, trim for
  // all lanes. True if a slab went back.
  bool clean(Visit& visit);

  // Gives back the empty slab of a big object, if the lane keeps one. A request that the slab does
  // not serve can then have its memory.
  void give_back_big(Visit& visit) {
    if (UNLIKELY(empty_big_ != nullptr)) give_back(empty_big_, visit);
  }
  // Gives back the slabs that have been empty longest, at least `enough` blocks. True if it gave
  // any.
  bool give_back_empties(BlockCount enough, Visit& visit);

  // Puts an object where deferred frees wait; false if there is no room.
  bool defer_to_open_ring(void* object) {
    void** next = deferred_next.load(std::memory_order_relaxed);
    if (reinterpret_cast<Address>(next) >= deferred_limit_) return false;
    *next = object;
    deferred_next.store(next + 1, std::memory_order_relaxed);
    return true;
  }
  // Sets how far deferred frees may go on by themselves. The owner's gate says it too while it is
  // open.
  void set_deferred_limit(void** limit) {
    deferred_limit_ = reinterpret_cast<Address>(limit);
    if (!is_closed()) deferred_end.store(deferred_limit_, std::memory_order_relaxed);
  }
  // What waits for a safepoint; null if nothing ever did.
  std::atomic<Deferred*> deferred{nullptr};

  // --- From outside.
  // True if the lane's thread has exited, and no thread has cleaned the lane since.
  bool was_left_full() const { return left_full_.load(std::memory_order_relaxed); }
  void leave_full(bool yes) { left_full_.store(yes, std::memory_order_relaxed); }
  // The number of blocks in slabs that lie here empty.
  BlockCount empty_blocks() const { return empty_blocks_.load(std::memory_order_relaxed); }
  // Takes the lane away from its owner or its CPU, if no thread is inside. Never waits. ask: an
  // owner that cannot be shut out, because there is no barrier, is asked to clean the lane itself.
  bool try_hold(Visit& visit, bool ask = true);
  void let_go(Visit& visit);
  Inbox<>& inbox() { return inbox_; }

  // --- Entered by the CPU (entry/percpu.h).
  // For the thread that took the lane, on whichever CPU it runs now.
  void leave_here() {
    taker_.store(nullptr, std::memory_order_relaxed);
    // release: the next thread that takes the lane sees what was done inside. Pairs with
    // [take.here].
    here.store(word_if_free(), std::memory_order_release);
  }
  // Inside: lets hits free what lies in blocks that are new since the last time.
  void see_growth() {
    const Bytes bytes = world_.region.bytes();
    if (here_bins != 0 && here_bytes.load(std::memory_order_relaxed) != bytes)
      here_bytes.store(bytes, std::memory_order_relaxed);
  }
  uint32_t word_if_free() const { return number_ << 16 | static_cast<uint32_t>(id_); }
  // It is the first lane of its CPU.
  bool is_first_here = false;
  bool is_free_here() const { return here.load(std::memory_order_relaxed) == word_if_free(); }
  // True if a thread is inside. A thread that holds the lane from outside does not count.
  bool is_taken_here() const { return here.load(std::memory_order_relaxed) == kTakenHere; }
  // Inside, in a miss: a thread that is torn off from now on, before it leaves, knows that it was
  // here.
  void taken_by(const void* who) { taker_.store(who, std::memory_order_relaxed); }

  // --- Entered by its lock (entry/shared.h).
  // When an entry first failed since the last one that succeeded, in nanoseconds; 0 if none failed.
  std::atomic<uint64_t>& precedence() { return precedence_; }

  // --- The owner's side of the entry (entry/owned.h).
  bool adopt_by(Slot& slot, Visit& visit);  // false: the lane was set aside
  void disown(Visit& visit);
  void forget_owner();  // the same, while the lock is held
  // The owner changes over to another entry. The lane is closed, and belongs to no other thread
  // while its owner lives. The lock is held.
  void rest_closed();
  bool rests() const { return rests_; }
  // True if the slot names this lane: then its thread is outside. The thread may be gone, and the
  // slot's memory with it.
  bool is_named_by(const Slot* slot) const;
  // The owner's number in the system; 0 if there is no owner.
  uint32_t owner_thread() const { return thread_.load(std::memory_order_relaxed); }
  uint32_t owner_process() const { return process_; }
  // About a thread that was torn off: it is inside by the CPU, in a miss.
  bool is_taken_by(const void* who) const { return taker_.load(std::memory_order_relaxed) == who; }
  // The same thread has the lock, which goes over to the visit.
  bool take_over(Visit& visit) { return lock_.take_over(visit); }
  // The same thread has the lock, and was perhaps about to take the lane from outside, or had taken
  // it. True: no other thread is inside now, as after try_hold().
  bool take_again();
  // The thread that was inside is gone, and stopped at some instruction. Puts everything together
  // again, from what the page map says. What was just between two places is lost. The caller has
  // the lane to itself.
  void salvage(Visit& visit);
  // acquire: sees what the revoker did before it let go. Pairs with [revoking.release].
  bool is_being_revoked() const { return revoking_.load(std::memory_order_acquire); }
  void open_gate();
  void close_gate();
  bool is_closed() const;
  // Only the owner calls it, inside its lane. True if the lock has another holder than at the last
  // call.
  bool is_new_holder() {
    const uint64_t stay = lock_.contention().count.load(std::memory_order_relaxed);
    return std::exchange(holder_seen_, stay) != stay;
  }
  bool is_asked() const { return asked_.load(std::memory_order_relaxed); }
  bool take_asked() { return is_asked() && asked_.exchange(false, std::memory_order_relaxed); }

  // Takes the lock. False if it cannot, and also if the lane was set aside meanwhile: a handler
  // that interrupted this thread has forked.
  FAST bool try_lock(Visit& visit) { return lock_.try_acquire(visit) && was_not_set_aside(visit); }
  bool lock_or_wait(Visit& visit) { return lock_.acquire(visit) && was_not_set_aside(visit); }
  void unlock(Visit& visit) { lock_.release(visit); }
  const Lock<P>& lock() const { return lock_; }  // only to look at
  Slot* owner_slot() const { return owner_slot_.load(std::memory_order_relaxed); }
  void set_owner(Slot* slot) {
    owner_slot_.store(slot, std::memory_order_relaxed);
    process_ = slot != nullptr ? P::process_id() : 0;
    thread_.store(slot != nullptr ? P::thread_id() : 0, std::memory_order_relaxed);
  }
  // In a fork child, after salvage(): the thread that was inside, or had the lock, is not here. If
  // the owner is here, it goes on in the lane.
  void begin_in_child() {
    revoking_.store(false, std::memory_order_relaxed);
    lock_.forget_holder();
    if (how == Entry::kPerCpu) leave_here();
  }
  // In a child that a handler has forked, or after give_back_torn(): no thread will ever enter this
  // lane again. Its owner, if it is here, works elsewhere.
  void set_aside();
  bool is_set_aside() const { return set_aside_; }
  // The same for a lane that this thread is perhaps inside, further down its stack: no thread may
  // rely on the lane becoming free.
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
    uint32_t passes = 0;  // the scavenger's, since the activity last changed
    bool cleaned = false;
  };
  Rest& rest() { return rest_; }  // the scavenger's notes

  // Objects that were put into its bins so far, without those that went back.
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
  static constexpr BlockCount kMostAlone = 512;  // most empty blocks while no scavenger runs
  static constexpr uint32_t kPassesToKeep =
      4;  // passes of the scavenger: then an empty slab goes back

  // What an object takes out of its batch's room: its size, and at least its share of the count. So
  // one subtraction limits both.
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
  // Null if the owner's number is beyond those that have labels.
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
  void free_own(Object* object, MapEntry entry, Visit& visit);
  FAST Remote& remote_to(Owner owner) {
    return *arch::kept(&remotes_[static_cast<unsigned>(owner) % kRemotes]);
  }
  // These are apart, so that a hit of malloc's free never finds a batch for an object that is not
  // malloc's.
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

  // What the owner writes.
  Slab* current_[kClassCount]{};
  SlabList partial_[kClassCount];
  Remote remotes_[kRemotes + kRemotesOfKinds];
  const Object* last_given_[kRemotesOfKinds]{};  // batches
  uint64_t claimed_ = 0;                         // which remotes have ever had an owner
  EmptySlabs empties_;
  // The youngest empty slab of a big object. There are others only after frees in bulk.
  Slab* empty_big_ = nullptr;
  std::atomic<Address> bins_at_{0};  // the area; other threads may look into it
  Bin* bins_ = nullptr;
  std::atomic<uint32_t> empty_blocks_{0};  // of those slabs; any thread reads it
  uint32_t epoch_ = 0;                     // when the lane last looked how old they are
  // Taken since the lane last looked around for empty ones; kMuch: look at once
  uint32_t fresh_blocks_ = kMuch;
  bool few_came_ = false;  // few batches, at the last look into the inbox
  Address deferred_limit_ = 0;
  // Bytes of objects that go into bins before the next sampled one (lane_samples.h)
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

  // What other threads write.
  alignas(kNoSharing) Inbox<> inbox_;
  alignas(kNoSharing) std::atomic<uint64_t> precedence_{0};
  std::atomic<Slot*> owner_slot_{nullptr};  // the owner's; under the lock
  std::atomic<bool> revoking_{false};
  bool set_aside_ = false;
  uint64_t holder_seen_ = 0;  // the owner's: the lock's stays when it last gave way
  Relaxed<bool> is_doubtful_ = false;
  bool rests_ = false;                   // closed, though it has an owner; under the lock
  std::atomic<bool> mail_waits_{false};  // there is much mail
  std::atomic<bool> left_full_{false};
  // If the system has no barrier: the owner is to clean the lane when it can
  std::atomic<bool> asked_{false};
  // The lock is last, since what lies behind its first words is rarely written
  Lock<P> lock_{Rank::kLane};
  std::atomic<uint32_t> thread_{0};          // the owner's number in the system, for readers
  Relaxed<uint32_t> process_ = 0;            // the process in which it has that number
  std::atomic<const void*> taker_{nullptr};  // the thread that is inside by the CPU, in a miss
};

}  // namespace lanemalloc
