// Lane: a complete small allocator. At most one thread uses it at any instant, so everything inside
// is plain loads and stores. A thread that has a Lane is inside: it got the lane by entering
// (entry/), or holds it from outside (AnyLane::try_hold). To all others it is an AnyLane.
// Called by: engine (its owner, or a thread that has entered it), scavenger and other lanes (which
// hold it from outside).
//
//   slot --> [gate | bins]       for each class: the current slab, where local frees go to the
//                                slab's own list, and a list of its free objects, popped by a hit
//            [counters]          written inside, read by any thread
//            ---- 128 bytes ---- what other threads write (core/lane/any_lane.h):
//            [inbox]  batches that other lanes have sent
//            [lock, owner's slot, revoking]  for entering from outside
//            ---- 128 bytes ---- what only the thread inside touches:
//            [partial slabs of each class]  others with free objects; full slabs are in no list and
//                                           come back by themselves
//            [remote batches]  objects of other lanes, by owner, waiting to be sent together
//            [area]  elsewhere: bins of kinds, the same again for pools and heaps
//                    (core/lane/lane_kinds.h)
//
// Counting. `taken` counts objects that went into a bin; `sent` and `received` count those on their
// way; slabs know what is in use. So a hit counts nothing, and at rest everything adds up exactly
// (core/engine/statistics.h).
#pragma once

#include "core/lane/any_lane.h"

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
class Lane : public AnyLane<P> {
 public:
  using AnyLane<P>::bin_of, AnyLane<P>::empty_blocks, AnyLane<P>::is_closed, AnyLane<P>::leave_full,
      AnyLane<P>::leave_here, AnyLane<P>::unlock;
  using Gate::area, Gate::area_here, Gate::area_of_hits, Gate::deferred_end, Gate::deferred_next;
  using LaneGate::bins, Gate::here, Gate::here_bins, Gate::here_bytes, Gate::how, Gate::open_bins,
      Gate::open_owner;
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

  Lane(Owner id, World<P>& world, Entry word, uint32_t number);

  // --- Off the hit path.
  // Takes an object that waits in the bin of the class, which is not one of big objects; null if
  // there is none.
  FAST Object* pop(unsigned c) { return pop_hit(bins[c].hit, size_class_tables::kSlabBytes[c]); }
  // From the bin, or from the free list of its slab.
  FAST Object* take(unsigned c) {
    Object* object = pop(c);
    return object != nullptr ? object : refill_from_own_list(c);
  }
  // Null also for big objects.
  FAST Object* take(SizeClass c) { return LIKELY(!is_big(c)) ? take(index_of(c)) : nullptr; }
  void* allocate(SizeClass c, Visit& visit) {
    Object* object = LIKELY(!is_big(c)) ? pop(index_of(c)) : nullptr;
    return object != nullptr ? object : refill_plain(c, visit);
  }
  // After a request found no object. A class says that the request gets a sampled object of this
  // class; the bin was left as it is.
  SizeClass take_sample_due() { return std::exchange(sample_due_, SizeClass{0}); }
  // The bin is empty.
  FAST void* refill(SizeClass c, Visit& visit);
  // The usual miss: refills the bin from the free list of its slab, and takes one object. Null if
  // that does not work.
  FAST Object* refill_from_own_list(unsigned c);
  // Frees an object of another lane into a batch that exists. kNot: there is none. kFull: `full` is
  // to be flushed now.
  enum class Sent : uint8_t { kNot, kDone, kFull };
  template <class ClassOf>
  FAST Sent send_to_open_batch(Object* object, MapWord word, ClassOf class_of_object,
                               Remote*& full);
  // Sends the batch.
  NOINLINE void flush(Remote& remote, Visit& visit);
  // Frees an object whose page-map word is `word`.
  void free(Object* object, MapWord word, Visit& visit);
  // Frees objects of slabs, linked by their first words, in as few transfers as possible: at most
  // one for each other owner.
  void free_chain(Chained* first, Visit& visit);
  // Called after Slab::push() said that the slab must be looked at.
  void look_at(Slab* slab, Visit& visit);
  // Sends every waiting batch. True if there was any.
  bool flush_all(Visit& visit);

  // --- Kinds.
  // Null if there is no memory, or if the kind's budget refuses.
  Object* allocate(Kind& kind, Visit& visit);
  void free_of_kind(Object* object, MapWord word, Visit& visit);
  // Frees an object of another lane into a batch that exists and has room. False: nothing changed.
  FAST bool send_to_open_batch(Object* object, MapWord word, const Kind& kind);
  // Frees an object of a slab of this lane.
  FAST void free_own(Object* object, Slab* slab, Visit& visit) {
    if (LIKELY(slab->bin->push(object))) return;
    if (UNLIKELY(object->looks_free()) && is_listed(object, slab))
      return tell_second_free(object, slab);
    if (UNLIKELY(slab->push(object))) look_at(slab, visit);
  }
  // The kind's bin, made if necessary; null if there is no memory.
  Bin* bin_for(Kind& kind, Visit& visit);
  // Moves full slabs that have free objects to the list where they are found.
  void offer_full(Bin& bin);
  // Gives the depot everything of the kind that lies here and is not in use. Empty slabs go back.
  // True if any did.
  bool clean_kind(Bin& bin, Visit& visit);
  // Takes all slabs of the kind out of the lane, to be given back, and its bin too.
  void forget_kind(Bin& bin, SlabList& slabs, Visit& visit);
  void forget_table(const Family& family, Visit& visit);

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

  // --- Entries.
  // Only the owner calls it, while the lane is not being revoked.
  void open_gate();
  // Only the owner calls it. True if the lock has another holder than at the last call.
  bool is_new_holder() {
    const uint64_t stay = lock_.contention().count.load(std::memory_order_relaxed);
    return std::exchange(holder_seen_, stay) != stay;
  }
  // In a miss by CPU: a thread that is torn off from now on, before it leaves, knows that it was
  // here.
  void take_by(const void* who) { taker_.store(who, std::memory_order_relaxed); }
  // Lets hits by CPU free what lies in blocks that are new since the last time.
  void see_growth() {
    const Bytes bytes = world_.region.bytes();
    if (here_bins != 0 && here_bytes.load(std::memory_order_relaxed) != bytes)
      here_bytes.store(bytes, std::memory_order_relaxed);
  }
  // The thread that was inside is gone, and stopped at some instruction. Puts everything together
  // again, from what the page map says. What was just between two places is lost.
  void salvage(Visit& visit);

  // Changes with each object that the lane hands out: a hit takes the first of a bin, and links
  // come back only by a miss. What takes nothing of a bin says so.
  uint64_t mark() const {
    uint64_t mark = (counters_.misses.load(std::memory_order_relaxed) << 32 | apart_) + 1;
    for (const HitBin& bin : bins)
      mark = (mark ^ bin.hit.first) * 0x9E3779B97F4A7C15, mark ^= mark >> 32;
    return mark | 1;
  }
  void count_apart() { ++apart_; }

  uint64_t bin_length(unsigned c) const {
    const Slab* slab = c < kBinCount ? bins[c].current : nullptr;
    return slab != nullptr ? length({bins[c].hit.first}, slab) : 0;
  }
  Slabs<P> slabs() const;
  // How many objects wait in a bin of a kind that has slabs.
  uint64_t bin_length(const Bin& bin) const {
    const Slab* slab = current_of(bin);
    return slab != nullptr ? length({bin.hit.first}, slab) : 0;
  }
  // The slab that the bin's objects lie in; null if there is none.
  Slab* current_of(const Bin& bin) const {
    const void* begin = reinterpret_cast<const void*>(bin.begin());
    return begin != nullptr ? slabs().at(world_.region.word_of(begin)) : nullptr;
  }
  template <class Visitor>
  void for_each_slab(const Bin& bin, Visitor visit) const {
    bin.for_each_slab(current_of(bin), visit);
  }
  void check_invariants() const;

 private:
  SHOWN_BY_LAYOUT;

  using AnyLane<P>::activity_, AnyLane<P>::bins_at_, AnyLane<P>::counters_,
      AnyLane<P>::empty_blocks_, AnyLane<P>::id_, AnyLane<P>::inbox_, AnyLane<P>::lock_,
      AnyLane<P>::mail_waits_, AnyLane<P>::taker_, AnyLane<P>::world_;

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

  // The list's first link leads into the current slab.
  template <class AnyBin>
  FAST Object* serve(AnyBin bin, Link list, uint64_t taken) {
    Object* object = reinterpret_cast<Object*>(list.address());
    bin.count_taken(bin.cut(object, taken));
    bin.head() = object->next.bits;
    return object->out();
  }
  // A damaged list may be a circle, and has no more objects than its slab.
  uint64_t length(Link link, const Slab* slab) const {
    const Extent extent = slabs().extent(slab);
    uint64_t n = 0;
    while (n < slab->carved) {
      const Object* object = extent.follow(link);
      if (object == nullptr) break;
      link = object->next;
      ++n;
    }
    return n;
  }
  struct SampledBin;
  NOINLINE void* refill_plain(SizeClass c, Visit& visit);
  void* refill_sampled(SizeClass c, Visit& visit);
  NOINLINE Object* take_big(SizeClass c, Visit& visit);
  bool is_sample_due(SizeClass c);
  void draw_point();
  bool takes_no_sample(Bytes index, const Slab* slab);
  uint64_t cut_list(SizeClass c, Object* first, uint64_t n);
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
    if (UNLIKELY(slab->is_of_kind())) return current_of(*slab->bin);
    return LIKELY(!is_big(slab->size_class)) ? bins[index_of(slab->size_class)].current : nullptr;
  }
  void wait_for_frees(Slab* slab);
  void sort(Slab* empty);
  Address open_area(Visit& visit);
  void open_area_to_hits();
  bool send_of_kind(Object* object, MapWord word, Visit& visit);
  NOINLINE void receive_other(Object* object, MapWord word, Visit& visit);
  Run blocks_for_slab(BlockCount n, Visit& visit);
  Slab* pop_partial(SlabList& partial);
  void take_partial(SlabList& partial, Slab* slab);
  void keep(Slab* slab, Visit& visit);
  void keep_limit(Visit& visit);
  void forget_empty(Slab* slab);
  bool take_away(Slab* slab);
  void give_back(Slab* slab, Visit& visit);
  NOINLINE void age(Visit& visit);
  void free_own(Object* object, MapWord word, Visit& visit);
  FAST Remote& remote_to(Owner owner) {
    return *arch::kept(&remotes_[static_cast<unsigned>(owner) % kRemotes]);
  }
  // These are apart, so that a hit of malloc's free never finds a batch for an object that is not
  // malloc's.
  Remote& remote_of_kinds_to(Owner owner) {
    return remotes_[kRemotes + static_cast<unsigned>(owner) % kRemotesOfKinds];
  }
  FAST bool add(Object* object, MapWord word, Remote& remote, size_t c);
  FAST static bool add(Object* object, MapWord word, Remote& remote, const Kind& kind);
  bool send(Object* object, MapWord word, Visit& visit);
  void claim(Remote& remote, Owner owner, Visit& visit);
  FAST void receive(Link first, Object* last, uint32_t n, Visit& visit);
  NOINLINE void receive_others(Link first, const Object* near, uint32_t n, Visit& visit);
  NOINLINE void send_after(Object* object, MapWord word, Visit& visit);
  void salvage_slab(Slab* slab, SlabList& partial, SlabList* full, Link chain);
  void drop_damaged_list(Slab* slab, Verdict why);
  bool is_listed(const Object* object, const Slab* slab) const;
  void tell_second_free(const Object* object, const Slab* slab);
  template <class AnyBin>
  void drop_damaged_bin(AnyBin bin);
  void report_damaged_batch(const Object* near);
  void stir();

  // Only the thread inside touches these.
  alignas(kNoSharing) SlabList partial_[kClassCount];
  Remote remotes_[kRemotes + kRemotesOfKinds];
  const Object* last_given_[kRemotesOfKinds]{};  // batches
  uint64_t claimed_ = 0;                         // which remotes have ever had an owner
  EmptySlabs empties_;
  // The youngest empty slab of a big object. There are others only after frees in bulk.
  Slab* empty_big_ = nullptr;
  Bin* bins_ = nullptr;
  uint32_t epoch_ = 0;  // when the lane last looked how old its empty slabs are
  // Taken since the lane last looked around for empty ones; kMuch: look at once
  uint32_t fresh_blocks_ = kMuch;
  bool few_came_ = false;  // few batches, at the last look into the inbox
  Address deferred_limit_ = 0;
  // The next point lies in that byte of what goes into bins, counted from 1; 0: none was drawn yet
  // (lane_work.h)
  uint64_t sample_in_ = 0;
  bool sample_waits_[kClassCount]{};  // the class's bin was filled up to a point
  SizeClass sample_due_{0};
  uint32_t apart_ = 0;  // while sampling is on: large and sampled objects that it was asked for
  uint64_t sample_random_ = reinterpret_cast<uintptr_t>(this);
  uint64_t holder_seen_ = 0;  // the lock's stays when the owner last gave way
};

}  // namespace lanemalloc
