// What a lane does off the hit path: refill a bin, look at a slab, send, receive, clean. lane.h has
// the picture.
// Called by: lane, engine, scavenger. Locking: the caller is inside the lane, or holds it from
// outside.
#pragma once

#include "core/lane/entry/owned.h"
#include "core/lane/entry/percpu.h"
#include "core/lane/entry/shared.h"

namespace lanemalloc {

template <class P>
Lane<P>::Lane(Owner id, World<P>& world, Entry word, uint32_t number)
    : AnyLane<P>(id, world, word, number) {
  if (how != Entry::kPerCpu) return;
  if (!world.settings.checked && P::numbers_for_hits()) {
    here_bins = kSmallIndexes + 1;
    see_growth();
  }
  here.store(this->word_if_free(), std::memory_order_relaxed);
}

template <class P>
Lane<P>* AnyLane<P>::try_hold(Visit& visit, bool ask) {
  if (!try_lock(visit)) return nullptr;
  if (how == Entry::kPerCpu ? take_from_cpu() : take_from_owner(ask)) return &entered();
  unlock(visit);
  return nullptr;
}

template <class P>
void AnyLane<P>::let_go(Visit& visit) {
  if (how == Entry::kPerCpu) {
    leave_here();
  } else {
    give_to_owner();
  }
  unlock(visit);
}

// No thread gets the lock from now on, and a thread that waits for it stops waiting. A thread that
// still has the lane in its slot finds the lane revoked, or taken, for good.
template <class P>
void AnyLane<P>::set_aside() {
  set_aside_ = true;
  lock_.forget_holder();
  if (how == Entry::kPerCpu) {
    here.store(kTakenHere, std::memory_order_relaxed);
    return;
  }
  revoking_.store(true, std::memory_order_relaxed);
  close_gate();
  set_owner(nullptr);
}

template <class P>
Slabs<P> Lane<P>::slabs() const {
  return world_.slabs();
}

template <class P>
unsigned Lane<P>::index_at(const Object* object) const {
  return index_of(world_.region.size_class_of(object));
}

template <class P>
void Lane<P>::stir() {
  bump(activity_);
  world_.scavenger.poke();
}

// --- Allocating.

template <class P>
FAST Object* Lane<P>::refill_from_own_list(unsigned c) {
  HitBin& bin = bins[c];
  Slab* slab = bin.current;
  if (slab == nullptr || UNLIKELY(!bin.is_empty())) return nullptr;
  const Extent extent = Extent::of(bin.hit, size_class_tables::kSlabBytes[c]);
  if (!slab->free_list_begins_well(extent)) return nullptr;
  if (UNLIKELY(world_.sampler.on()) && !takes_no_sample(c, slab)) return nullptr;
  uint64_t taken = 0;
  Object* object = extent.at(slab->take_free_list(taken));
  bump(counters_.misses);
  bump(counters_.taken[c], taken);
  bin.hit.first = object->next.bits;
  return object->out();
}

// A bin of malloc's, as the functions below use it. lane_kinds.h has the same for a kind.
template <class P>
struct Lane<P>::ClassBin {
  Lane& lane;
  SizeClass c;

  HitBin& bin() const { return lane.bins[index_of(c)]; }
  Address& head() const { return bin().hit.first; }
  bool is_empty() const { return bin().is_empty(); }
  Slab* current() const { return LIKELY(!is_big(c)) ? bin().current : nullptr; }
  void set_current(Slab* slab) const {
    bin().set_slab(slab, slab != nullptr ? lane.slabs().extent(slab) : Extent{});
  }
  SlabList& partial() const { return lane.partial_[index_of(c)]; }
  Slab* pop_partial(bool) const { return lane.pop_partial(partial()); }
  uint32_t capacity() const { return capacity_of(c); }
  void count_taken(uint64_t n) const {
    PROBE3(refill, lane.id_, index_of(c), n);
    bump(lane.counters_.taken[index_of(c)], n);
  }
  void count_returned(uint64_t n) const {
    bump(lane.counters_.taken[index_of(c)], uint64_t{0} - n);
    lane.sample_waits_[index_of(c)] = false;
  }
  uint64_t cut(Object*, uint64_t n) const { return n; }
  // How many objects may be carved now; carve() carves them.
  uint32_t grant(const Slab* slab) const { return slab->next_chunk(chunk_of(c), capacity_of(c)); }
  Link carve(Slab* slab, uint32_t n) const {
    return slab->carve(lane.slabs().begin(slab), size_of(c), n);
  }
  void put_full(Slab* slab) const { slab->wait_for_frees(capacity_of(c)); }
  bool may_grow() const { return true; }
  FAST Slab* from_depot(Visit& visit) const { return lane.world_.depot.take(c, lane.id_, visit); }
  FAST Slab* fresh_slab(Visit& visit) const {
    const Run run = lane.blocks_for_slab(slab_blocks_of(c), visit);
    if (run.at == Runs<P>::kNone) return nullptr;
    bump(lane.counters_.slabs_made);
    return lane.slabs().make(run.at, c, lane.id_, run.zeroed);
  }
};

template <class P>
FAST void* Lane<P>::refill(SizeClass c, Visit& visit) {
  return LIKELY(!world_.sampler.on()) ? refill_plain(c, visit) : refill_sampled(c, visit);
}
template <class P>
void* Lane<P>::refill_plain(SizeClass c, Visit& visit) {
  if (UNLIKELY(is_big(c))) return take_big(c, visit);
  return refill_from(ClassBin{*this, c}, visit);
}

// The bin is empty. Tries, in this order: its slab's own free list, another slab of the lane, what
// other lanes have sent back, fresh objects, a slab from the depot, a fresh slab. So memory that
// was touched already comes first. Null if there is no memory.
template <class P>
template <class AnyBin>
FAST Object* Lane<P>::refill_from(AnyBin bin, Visit& visit) {
  world_.scavenger.poke();
  bump(counters_.misses);
  if (UNLIKELY(empty_blocks() != 0 && epoch_ != world_.runs.epoch())) age(visit);
  // The lane does this not only when it is short of this class: what other lanes send must not pile
  // up.
  if (UNLIKELY(mail_waits_.load(std::memory_order_relaxed))) drain_inbox(visit, kSomeBatches);
  if (UNLIKELY(!bin.is_empty()) && bin.current() != nullptr) drop_damaged_bin(bin);
  for (;;) {
    Slab* slab = bin.current();
    if (slab != nullptr && slab->has_free()) {
      if (LIKELY(slab->free_list_looks_sound(slabs().extent(slab)))) {
        uint64_t taken = 0;
        const Link list = slab->take_free_list(taken);
        return serve(bin, list, taken);
      }
      drop_damaged_list(slab, Verdict::kListDamaged);
    }
    const bool uncarved = slab != nullptr && slab->carved < bin.capacity();
    Slab* other = bin.pop_partial(uncarved);
    // Some batches at a time, so that no request pays for all that other threads have freed. If
    // there were few the last time, some more objects are handed out first: each look costs two
    // transfers of the inbox's line, and then there are more batches per look.
    while (other == nullptr && !(uncarved && few_came_) && drain_inbox(visit, kSomeBatches)) {
      if (slab != nullptr && slab->has_free()) break;
      other = bin.pop_partial(uncarved);
    }
    if (other == nullptr && slab != nullptr && slab->has_free()) continue;
    if (slab != nullptr) {
      if (uncarved && other == nullptr) {
        few_came_ = false;
        if (const uint32_t n = bin.grant(slab); LIKELY(n > 0)) {
          const Link list = bin.carve(slab, n);
          return serve(bin, list, n);
        }
        other = bin.from_depot(visit);  // at a limit: objects that are cut already may be available
        if (other == nullptr) return nullptr;
      }
      bin.set_current(nullptr);
      if (uncarved) {
        slab->settle(Slab::Place::kPartial);
        bin.partial().push(slab);
      } else {
        bin.put_full(slab);
      }
    }
    if (other == nullptr) other = bin.from_depot(visit);
    if (other == nullptr && bin.may_grow()) other = bin.fresh_slab(visit);
    if (other == nullptr) return nullptr;
    other->place = Slab::Place::kCurrent;
    bin.set_current(other);
    // This is done at once: in the next turn the slab would give way to another one, if it has no
    // list then.
    if (other->used() == 0 && !other->is_of_kind()) sort(other);
    if (other->has_free()) continue;
    if (const uint32_t n = bin.grant(other); LIKELY(n > 0)) {
      const Link list = bin.carve(other, n);
      return serve(bin, list, n);
    }
  }
}

// The same for a big object. No bin holds a slab of big objects, so each of these slabs is looked
// at as soon as it is empty.
template <class P>
Object* Lane<P>::take_big(SizeClass c, Visit& visit) {
  world_.scavenger.poke();
  bump(counters_.misses);
  if (UNLIKELY(empty_blocks() != 0 && epoch_ != world_.runs.epoch())) age(visit);
  SlabList& partial = partial_[index_of(c)];
  for (;;) {
    Slab* slab = partial.first();
    while (slab == nullptr && drain_inbox(visit, kSomeBatches)) slab = partial.first();
    if (slab == nullptr) {
      slab = world_.depot.take(c, id_, visit);
      if (slab == nullptr) slab = ClassBin{*this, c}.fresh_slab(visit);
      if (slab == nullptr) return nullptr;
      slab->place = Slab::Place::kPartial;
      partial.push(slab);
    }
    if (slab->place == Slab::Place::kEmpty) forget_empty(slab);
    const Extent extent = slabs().extent(slab);
    if (slab->has_free() && UNLIKELY(!slab->free_list_looks_sound(extent))) {
      drop_damaged_list(slab, Verdict::kListDamaged);
      continue;
    }
    Object* object = slab->has_free() ? slab->take_one(extent)
                                      : extent.at(slab->carve(extent.begin, size_of(c), 1))->out();
    if (!slab->has_room()) {
      partial.remove(slab);
      wait_for_frees(slab);
    }
    ClassBin{*this, c}.count_taken(1);
    return object;
  }
}

template <class P>
void Lane<P>::wait_for_frees(Slab* slab) {
  slab->wait_for_frees(slab->capacity());
  if (UNLIKELY(slab->is_of_kind())) slab->bin->full.push(slab);
}

// Memory that was used before comes first: the lane's own empty slabs of other classes, then free
// runs, then other lanes' empty slabs.
template <class P>
Run Lane<P>::blocks_for_slab(BlockCount n, Visit& visit) {
  if (n > 1) give_back_big(visit);
  if (Slab* slab = empties_.oldest(); slab != nullptr && slab->blocks() == n && take_away(slab)) {
    if (slab->is_of_kind())
      slabs().give_to(slab, Owner::kNobody);  // first: salvage() must not find it again
    slabs().uncharge(slab);
    return {world_.region.block_of_state(slab), false};
  }
  BlockIndex at = world_.runs.reuse(n, 1, visit);
  // A few at a time: slabs that became empty one after the other are often neighbours.
  while (at == Runs<P>::kNone && give_back_empties(n, visit)) at = world_.runs.reuse(n, 1, visit);
  if (at == Runs<P>::kNone && fresh_blocks_ >= kMuch) {
    fresh_blocks_ = 0;
    if (world_.collect_empties(Need::kSome, this, visit)) at = world_.runs.reuse(n, 1, visit);
  }
  if (at != Runs<P>::kNone) return {at, false};
  fresh_blocks_ += n;
  const Run run = world_.runs.allocate(n, 1, visit);
  if (run.at != Runs<P>::kNone || !world_.collect_empties(Need::kAll, this, visit)) return run;
  return world_.runs.allocate(n, 1, visit);
}

// After a double free, or a write to a free object: reports it, and goes on without the list.
template <class P>
void Lane<P>::drop_damaged_list(Slab* slab, Verdict why) {
  const Extent extent = slabs().extent(slab);
  const void* object = extent.follow(slab->free_list);
  if (object == nullptr) object = reinterpret_cast<const void*>(extent.begin);
  slab->give_up_free_list();
  if (slab->place == Slab::Place::kPartial && !slab->has_room()) {
    partial_of(slab).remove(slab);
    wait_for_frees(slab);
  }
  world_.report(why, object);
}

// The bin is not empty, but its first link leads out of the slab. What waited in the bin is lost.
template <class P>
template <class AnyBin>
NOINLINE void Lane<P>::drop_damaged_bin(AnyBin bin) {
  bin.head() = Link::none().bits;
  world_.report(Verdict::kListDamaged, reinterpret_cast<const void*>(slabs().begin(bin.current())));
}

// --- Freeing.

template <class P>
void Lane<P>::free_own(Object* object, MapWord word, Visit& visit) {
  Slab* slab = slabs().at(word);
  if (UNLIKELY(object->looks_free()) && is_listed(object, slab))
    return tell_second_free(object, slab);
  if (UNLIKELY(slab->push(object))) look_at(slab, visit);
}

// Whether the object waits in the slab's list or in its bin. A first word that looks like a link is
// not enough: a program may copy memory that it has never written, with a link of old.
template <class P>
NOINLINE bool Lane<P>::is_listed(const Object* object, const Slab* slab) const {
  const Extent extent = slabs().extent(slab);
  if (slab->leads_to(object, slab->free_list, extent)) return true;
  if (current_of(slab) != slab) return false;
  const BinHead& bin = slab->is_of_kind() ? slab->bin->hit : bins[index_of(slab->size_class)].hit;
  return slab->leads_to(object, {bin.first}, extent);
}
template <class P>
NOINLINE void Lane<P>::tell_second_free(const Object* object, const Slab* slab) {
  count<P>(world_.counters.bad_pointers);
  const Bytes link = slab->is_of_kind() ? slab->its_kind().link : 0;
  world_.report(Verdict::kFreedAlready, reinterpret_cast<const std::byte*>(object) - link);
}

template <class P>
void Lane<P>::look_at(Slab* slab, Visit& visit) {
  stir();
  if (UNLIKELY(slab->has_too_many_frees())) {
    if (slab->place == Slab::Place::kEmpty) forget_empty(slab);
    return drop_damaged_list(slab, Verdict::kFreedAlready);
  }
  if (slab->place == Slab::Place::kFull) {
    if (UNLIKELY(slab->is_of_kind())) slab->bin->full.remove(slab);
    slab->settle(Slab::Place::kPartial);
    partial_of(slab).push(slab);
    if (slab->countdown > 0) return;
  }
  // All its objects are free.
  if (slab->place == Slab::Place::kPartial && !slab->is_kept()) keep(slab, visit);
}

// --- Empty slabs. A lane keeps them, cut as they are, since it is likely to need them again.
// Otherwise a program that frees and allocates in turns would make and destroy them at every turn.
// They go back when the lane wants blocks for another class, when another lane would have to take
// fresh memory, when they have not been used for a while, and when the lane rests.

template <class P>
void Lane<P>::keep(Slab* slab, Visit& visit) {
  const bool is_big_one = is_big(slab->size_class);
  if (is_big_one && !visit.in_bulk) give_back_big(visit);
  const BlockCount blocks = slab->blocks();
  slab->place = Slab::Place::kEmpty;
  slab->emptied_at = world_.runs.epoch();
  empties_.push(slab);
  bump(empty_blocks_, blocks);
  fresh_blocks_ = kMuch;
  if (is_big_one) {
    empty_big_ = slab;
    return;
  }
  // No other class could use a slab of several blocks. One is enough, and only if the bin's own
  // slab has no room.
  const Slab* current = current_of(slab);
  const bool only_one = slab->next == nullptr && slab->previous == nullptr;
  const bool is_needed = only_one && (current == nullptr || !current->has_room());
  if (blocks > 1 && !is_needed && !visit.in_bulk && take_away(slab))
    return slabs().destroy(slab, visit);
  if (P::single_threaded() || world_.scavenger.is_missed()) keep_limit(visit);
}

// No other thread looks after the lane while it rests.
template <class P>
void Lane<P>::keep_limit(Visit& visit) {
  const uint64_t most = world_.settings.decay_ms > 0 ? world_.runs.most_at_rest() : kMostAlone;
  const BlockCount limit = most < kMostAlone ? static_cast<BlockCount>(most) : kMostAlone;
  if (empty_blocks() > limit) give_back_empties(limit / 2, visit);
}

template <class P>
void Lane<P>::forget_empty(Slab* slab) {
  if (slab == empty_big_) empty_big_ = nullptr;
  empties_.remove(slab);
  bump(empty_blocks_, uint32_t{0} - slab->blocks());
  slab->place = Slab::Place::kPartial;
}

// For an empty slab of many objects that were freed in any order. A thread that gets them in the
// order of their addresses finds most of them in the CPU's caches before it comes to them. A list
// that is in order stays, since its first objects were used last. A slab in which an object was
// freed twice may only seem to be empty.
template <class P>
void Lane<P>::sort(Slab* empty) {
  constexpr uint32_t kMany = 64, kWalked = 16;
  if (empty->carved < kMany || empty->free_list_is_in_order(slabs().extent(empty))) return;
  if (UNLIKELY(!empty->free_list_looks_whole(slabs().begin(empty), kWalked)))
    return drop_damaged_list(empty, Verdict::kListDamaged);
  empty->start_over();
}

template <class P>
Slab* Lane<P>::pop_partial(SlabList& partial) {
  Slab* slab = partial.first();
  if (slab != nullptr) take_partial(partial, slab);
  return slab;
}

template <class P>
FAST void Lane<P>::take_partial(SlabList& partial, Slab* slab) {
  partial.remove(slab);
  if (slab->place == Slab::Place::kEmpty) forget_empty(slab);
}

// Takes an empty slab out of both lists; then it is nothing but blocks. False: its free list is
// damaged, and the slab stays as one in use.
template <class P>
bool Lane<P>::take_away(Slab* slab) {
  forget_empty(slab);
  if (UNLIKELY(!slab->free_list_looks_whole(slabs().begin(slab)))) {
    drop_damaged_list(slab, Verdict::kListDamaged);
    return false;
  }
  partial_of(slab).remove(slab);
  return true;
}

template <class P>
void Lane<P>::give_back(Slab* empty, Visit& visit) {
  if (take_away(empty)) slabs().destroy(empty, visit);
}

template <class P>
bool Lane<P>::give_back_empties(BlockCount enough, Visit& visit) {
  BlockCount given = 0;
  while (given < enough && empties_.oldest() != nullptr) {
    Slab* slab = empties_.oldest();
    if (!take_away(slab)) continue;
    given += slab->blocks();
    slabs().destroy(slab, visit);
  }
  return given > 0;
}

template <class P>
void Lane<P>::age(Visit& visit) {
  const uint32_t now = epoch_ = world_.runs.epoch();
  for (Slab* slab;
       (slab = empties_.oldest()) != nullptr && now - slab->emptied_at >= kPassesToKeep;)
    give_back_empties(1, visit);
}

// --- Sending and receiving.

template <class P>
void Lane<P>::free(Object* object, MapWord word, Visit& visit) {
  if (word.owner() == id_) return free_own(object, word, visit);
  std::atomic<uint64_t>& sent = counters_.sent[index_at(object)];
  bump(sent);
  if (UNLIKELY(!send(object, word, visit))) bump(sent, ~uint64_t{0});
}

// Adds an object of the class to the batch, and counts it as sent. False: the object is the one
// that was added last, and nothing has changed.
template <class P>
FAST bool Lane<P>::add(Object* object, MapWord word, Remote& remote, size_t c) {
  bump(counters_.sent[c]);
  if (LIKELY(remote.add(object, word, [&] { return kCharges.of[c].places; }))) return true;
  bump(arch::kept(&counters_)->sent[c], ~uint64_t{0});
  return false;
}

// An object that has no owner has no batch. So when the class is asked for, the object's owner is a
// lane or the depot.
template <class P>
template <class ClassOf>
FAST typename Lane<P>::Sent Lane<P>::send_to_open_batch(Object* object, MapWord word,
                                                        ClassOf class_of_object, Remote*& full) {
  Remote& remote = remote_to(word.owner());
  if (UNLIKELY(remote.owner != word.owner())) return Sent::kNot;
  const size_t c = index_of(class_of_object());
  if (UNLIKELY(!add(object, word, remote, c))) return Sent::kNot;
  full = &remote;
  const bool is_full = arch::take_and_test(remote.room, static_cast<int32_t>(kCharges.of[c].room));
  return LIKELY(!is_full) ? Sent::kDone : Sent::kFull;
}

// False: the object was freed twice, and that has been reported.
template <class P>
bool Lane<P>::send(Object* object, MapWord word, Visit& visit) {
  Remote& remote = remote_to(word.owner());
  const Charge charge = kCharges.of[index_at(object)];
  if (remote.owner != word.owner() || remote.room <= 0) claim(remote, word.owner(), visit);
  if (UNLIKELY(!remote.add(object, word, [&] { return charge.places; }))) {
    world_.report(Verdict::kFreedAlready, object);
    return false;
  }
  remote.room -= static_cast<int32_t>(charge.room);
  return true;
}

// Makes the batch an empty one for the owner.
template <class P>
void Lane<P>::claim(Remote& remote, Owner owner, Visit& visit) {
  if (!remote.is_empty()) flush(remote, visit);
  // If the depot could not be entered, its batch stays; what is added to the batch is sorted out
  // there.
  if (!remote.is_empty()) return;
  if (remote.owner != owner) remote.unanswered = 0;
  remote.owner = owner;
  claimed_ |= uint64_t{1} << (&remote - remotes_);
  remote.room = kBatchBytes;
  stir();
}

// Owners whose batches have the same place take turns. Each owner has one turn, with all of its
// objects, however many. A batch that is not full waits for more, as any freed object does.
template <class P>
void Lane<P>::free_chain(Chained* first, Visit& visit) {
  visit.in_bulk = true;
  while (first != nullptr) {
    Chained* later = nullptr;
    uint32_t turns = 0;
    static_assert(kRemotes == 32, "a bit each");
    for (Chained* next; first != nullptr; first = next) {
      next = first->next;
      const MapWord word = world_.region.word_of(first);
      auto* object = reinterpret_cast<Object*>(first);
      if (word.owner() == id_) {
        free_own(object, word, visit);
        continue;
      }
      Remote& remote = remote_to(word.owner());
      const uint32_t turn = uint32_t{1} << (&remote - remotes_);
      if (remote.owner != word.owner()) {
        if ((turns & turn) != 0) {
          first->next = later;
          later = first;
          continue;
        }
        claim(remote, word.owner(), visit);
      }
      turns |= turn;
      const unsigned c = index_at(object);
      if (UNLIKELY(!add(object, word, remote, c))) {
        world_.report(Verdict::kFreedAlready, object);
        continue;
      }
      if (remote.room > 0) remote.room -= static_cast<int32_t>(kCharges.of[c].room);
    }
    first = later;
  }
  for (Remote& remote : remotes_)
    if (!remote.is_empty() && remote.room <= 0) flush(remote, visit);
  visit.in_bulk = false;
}

template <class P>
void Lane<P>::flush(Remote& remote, Visit& visit) {
  Object* batch = remote.take();
  remote.room = kBatchBytes;
  PROBE2(flush, id_, public_of(remote.owner));
  bump(counters_.remote_batches);
  bump(
      counters_.batches_to[static_cast<unsigned>(public_of(remote.owner)) % LaneCounters::kOwners]);
  stir();
  Kind* const kind = is_private(remote.owner) ? kind_of(batch) : nullptr;
  if (public_of(remote.owner) == Owner::kDepot) {
    const bool done = world_.depot.free(
        batch, visit, [&](Object* object) { receive(Link::to(object), object, 1, visit); },
        [&](const Object* object) { world_.report(Verdict::kListDamaged, object); });
    if (!done) {
      remote.put_back(batch);
      remote.room = 0;
      if (kind != nullptr) kind->met_contention();
    }
    return;
  }
  // acquire: a thread that has read the owner's number from the page map sees the owner's lane
  // made. Pairs with [entries.release].
  std::atomic_thread_fence(std::memory_order_acquire);
  AnyLane<P>& owner = world_.lanes.at(public_of(remote.owner));
  const Object* earlier = owner.inbox().give(batch);
  if (kind != nullptr) {
    // Another lane has sent something since. With more objects per batch the two would meet less
    // often.
    const Object*& last = last_given_[&remote - remotes_ - kRemotes];
    if (earlier != nullptr && earlier != last) kind->met_contention();
    last = batch;
  }
  if (earlier == nullptr) {
    remote.unanswered = 0;
    return;
  }
  if (++remote.unanswered < kIdleAfter || !visit.may_drain) return;
  // The owner has not looked for a while. If it refills its bins, tell it. Otherwise, if it is not
  // inside, drain its inbox on its behalf.
  remote.unanswered = 0;
  const auto misses = static_cast<uint8_t>(owner.counters().misses.load(std::memory_order_relaxed));
  if (remote.seen != misses) {
    remote.seen = misses;
    owner.mail_waits();
    return;
  }
  visit.may_drain = false;
  world_.with_idle_lane(owner, visit, [&](Lane& lane) {
    lane.drain_inbox(visit);
    lane.give_back_empties(lane.empty_blocks(), visit);
  });
  visit.may_drain = true;
}

// Takes in objects of one slab that were sent here. If the slab has moved on since, they are sent
// after it.
template <class P>
FAST void Lane<P>::receive(Link first, Object* last, uint32_t n, Visit& visit) {
  const MapWord word = world_.region.word_of(last);
  if (UNLIKELY(word.owner() != id_)) return receive_others(first, last, n, visit);
  Slab* slab = slabs().at(word);
  bump(counters_.received[index_of(slab->size_class)], uint64_t{n});
  if (UNLIKELY(slab->push(first, last, n))) look_at(slab, visit);
}
template <class P>
void Lane<P>::receive_others(Link first, const Object* near, uint32_t n, Visit& visit) {
  for (; n > 0; --n) {
    auto* object = reinterpret_cast<Object*>(first.address());
    if (UNLIKELY(!slabs().may_hold(object))) return report_damaged_batch(near);
    first = object->next;
    receive_other(object, world_.region.word_of(object), visit);
  }
}

// A program has written to an object that waited in a batch, or the object was freed again and has
// been handed out since. The rest of the batch is lost. near: an object of the batch, if one is
// known.
template <class P>
NOINLINE void Lane<P>::report_damaged_batch(const Object* near) {
  world_.report(Verdict::kListDamaged, near);
}

template <class P>
void Lane<P>::send_after(Object* object, MapWord word, Visit& visit) {
  if (is_slab(word.owner())) {
    send(object, word, visit);
  } else if (is_private(word.owner()) && is_slab(public_of(word.owner()))) {
    send_of_kind(object, word, visit);
  } else {
    world_.report(Verdict::kFreedAlready, object);
  }
}

template <class P>
bool Lane<P>::drain_inbox(Visit& visit, unsigned most) {
  unsigned came = 0;
  const auto is_object = [&](const void* p) { return slabs().may_hold(p); };
  const bool is_sound = inbox_.take(
      [&](Object* batch) {
        ++came;
        if (UNLIKELY(!Batch::for_each_row(
                batch, is_object,
                [&](Link first, Object* last, uint32_t n) { receive(first, last, n, visit); })))
          report_damaged_batch(batch);
      },
      is_object, most);
  if (UNLIKELY(!is_sound)) report_damaged_batch(nullptr);
  if (came > 0) {
    bump(counters_.inbox_drains);
    few_came_ = came < kSomeBatches;
  }
  if (mail_waits_.load(std::memory_order_relaxed) && inbox_.is_empty())
    mail_waits_.store(false, std::memory_order_relaxed);
  return came > 0;
}

// Some rounds, since objects that the depot no longer has are sent on, into a batch that may have
// been flushed already.
template <class P>
bool Lane<P>::flush_all(Visit& visit) {
  bool any = false, more = true;
  for (int round = 0; more && round < 4; ++round) {
    more = false;
    for (uint64_t left = claimed_; left != 0; left &= left - 1) {
      Remote& remote = remotes_[__builtin_ctzll(left)];
      if (remote.is_empty()) continue;
      flush(remote, visit);
      any = more = true;
    }
  }
  return any;
}

// --- Cleaning.

template <class P>
bool Lane<P>::clean(Visit& visit) {
  leave_full(false);
  drain_inbox(visit);
  bool any = false;
  for (unsigned c = 1; c < kClassCount; ++c)
    any |= clean_bin(ClassBin{*this, static_cast<SizeClass>(c)}, visit);
  for (Bin* bin = bins_; bin != nullptr; bin = bin->next) any |= clean_kind(*bin, visit);
  flush_all(visit);
  return any;
}

// What waits in the bin goes back to its slab, and the slab goes to the others.
template <class P>
template <class AnyBin>
FAST void Lane<P>::clear_bin(AnyBin bin) {
  Slab* slab = bin.current();
  if (slab == nullptr) return;
  Link head{bin.head()};
  bin.count_returned(slab->put_back(head, slabs().extent(slab)));
  if (UNLIKELY(!head.is_none())) {
    slab->free_list = head;  // which is reported
    drop_damaged_list(slab, Verdict::kListDamaged);
  }
  bin.set_current(nullptr);
  if (slab->has_room()) {
    slab->settle(Slab::Place::kPartial);
    bin.partial().push(slab);
  } else {
    bin.put_full(slab);
  }
}

template <class P>
template <class AnyBin>
FAST bool Lane<P>::clean_bin(AnyBin bin, Visit& visit) {
  clear_bin(bin);
  bool any = false;
  while (Slab* slab = pop_partial(bin.partial())) {
    if (slab->used() == 0 && !slab->free_list_looks_whole(slabs().begin(slab))) {
      bin.partial().push(slab);
      drop_damaged_list(slab, Verdict::kListDamaged);
    } else if (slab->used() == 0 && !slab->is_kept()) {
      slabs().destroy(slab, visit);
      any = true;
    } else if (!world_.depot.give(slab, visit)) {
      bin.partial().push(slab);
      break;
    }
  }
  return any;
}

// --- Sampling.
// Which objects are sampled. In the sequence of all bytes that go into bins, points lie at random
// distances (seeing/sampler.h), and the object that a point lies in is sampled. A bin is filled
// only up to such an object, and its class waits: the first object of the class's next miss is the
// sampled one. So a hit asks nothing. The next point is drawn at once, for whatever goes into bins
// next.
//
//   bin  [o o o o o o o]                            the point lies in the next object: the class
//        \_ before the point _/  o o o o o          waits, and the rest goes back to the slab
//
// Why no size is favoured. The distances have no memory, so the points are a Poisson process, and
// each object that goes into a bin has the chance of its own size, whatever comes before it and in
// whichever class. The class of the object gets the sample. If the next miss of any class got it,
// classes that miss often would be sampled for others. What a bin gives back was not allocated. It
// gets another chance when it goes into a bin again, and a class that waits for an object there
// waits no longer. That is as good, since nothing is given back because of a point.

// True if no object of the slab's free list is to be sampled. Then the list counts as taken.
template <class P>
FAST bool Lane<P>::takes_no_sample(Bytes index, const Slab* slab) {
  const Bytes bytes = slab->free_objects() * size_of(static_cast<SizeClass>(index));
  if (bytes >= sample_in_ || sample_waits_[index]) return false;
  sample_in_ -= bytes;
  return true;
}

template <class P>
void Lane<P>::draw_point() {
  sample_in_ = static_cast<uint64_t>(world_.sampler.next_interval(sample_random_));
}

// True if the next object of the class is to be sampled.
template <class P>
bool Lane<P>::is_sample_due(SizeClass c) {
  if (sample_in_ == 0) draw_point();
  if (sample_waits_[index_of(c)]) {
    sample_waits_[index_of(c)] = false;
  } else if (sample_in_ > size_of(c)) {
    return false;
  } else {
    draw_point();
  }
  sample_due_ = c;
  return true;
}

// The list has just been taken off the free list of the current slab, or carved there. Its first
// object is not to be sampled.
template <class P>
uint64_t Lane<P>::cut_list(SizeClass c, Object* first, uint64_t n) {
  const Bytes size = size_of(c);
  const uint64_t before = (sample_in_ - 1) / size;
  if (before >= n) return sample_in_ -= n * size, n;
  sample_waits_[index_of(c)] = true;
  draw_point();
  Slab* slab = bins[index_of(c)].current;
  const Extent extent = slabs().extent(slab);
  Object* last = first;
  for (uint64_t i = 1; i < before; ++i) {
    Object* next = extent.follow(last->next);
    if (UNLIKELY(next == nullptr)) return before;  // the list is damaged; the bin will find it
    last = next;
  }
  DCHECK(!slab->has_free());
  slab->free_list = last->next;
  slab->countdown -= static_cast<int32_t>(n - before);
  last->next = Link::none();
  return before;
}

// A bin that is filled up to the next sampled object.
template <class P>
struct Lane<P>::SampledBin : ClassBin {
  uint64_t cut(Object* first, uint64_t n) const { return this->lane.cut_list(this->c, first, n); }
};

template <class P>
NOINLINE void* Lane<P>::refill_sampled(SizeClass c, Visit& visit) {
  if (is_sample_due(c)) return nullptr;
  if (LIKELY(!is_big(c))) return refill_from(SampledBin{{*this, c}}, visit);
  Object* object = take_big(c, visit);
  if (object != nullptr) sample_in_ -= size_of(c);
  return object;
}

// --- Salvage.
// What is saved from a lane whose thread was torn off inside it: by a long jump out of a signal
// handler, or by an end without a word. The thread may have stopped at any instruction, so no list
// of the lane is trusted. What a register held is lost: at most what that one call was about.
//
//   the page map          says which slabs are the lane's
//   a slab's free list    is kept as far as it leads through objects of the slab, each once; so is
//                         what its bin holds
//   the rest of the slab  counts as in use
//   batches, inbox        objects of other lanes, and those that other lanes have sent, go on
//                         their way

// The owner is kept out all the time: what lies here may be half done.
template <class P>
Lane<P>* AnyLane<P>::hold_again() {
  const auto is_held = [&] {
    if (how == Entry::kPerCpu)
      return here.load(std::memory_order_relaxed) == kRevokedHere && P::restart_here() &&
             here.load(std::memory_order_acquire) == kRevokedHere;  // as in take_from_cpu()
    Slot* slot = owner_slot();
    if (slot == nullptr || rests_) return true;
    if (!is_being_revoked()) return false;
    close_gate();
    return P::barrier() && is_named_by(slot) && is_closed();  // as in take_from_owner()
  };
  return is_held() ? &entered() : nullptr;
}

// chain: what the bin of the slab's class or kind held. It may lie in another slab.
template <class P>
void Lane<P>::salvage_slab(Slab* slab, SlabList& partial, SlabList* full, Link chain) {
  slabs().give_to(slab, id_);  // if it has several blocks, perhaps only some were written
  const uint32_t of_chain = salvage_objects(slab, slabs().begin(slab), chain);
  if (!slab->is_of_kind()) ClassBin{*this, slab->size_class}.count_returned(of_chain);
  if (slab->has_room()) return partial.push(slab);
  slab->wait_for_frees(slab->capacity());
  if (full != nullptr) full->push(slab);
}

template <class P>
void Lane<P>::salvage(Visit& visit) {
  Link chains[kClassCount]{};
  for (unsigned c = 0; c < kBinCount; ++c) {
    chains[c] = {bins[c].hit.first};
    bins[c] = HitBin{};
  }
  for (SlabList& partial : partial_) partial = SlabList();
  for (Bin** link = &bins_; *link != nullptr;) {
    Bin& bin = **link;
    if (bin.kind.load(std::memory_order_relaxed) ==
        nullptr) {  // the bin was just being entered, or taken out
      *link = bin.next;
      continue;
    }
    bin.partial = bin.full = SlabList();
    bin.hit.end = bin.hit.end_link = 0;  // its chain is still wanted
    link = &bin.next;
  }
  empties_ = EmptySlabs();
  empty_big_ = nullptr;
  empty_blocks_.store(0, std::memory_order_relaxed);
  for (Remote& remote : remotes_) {
    remote.mend([&](Object* object) -> Bytes {
      const MapWord word = world_.region.word_of(object);
      if (!is_private(word.owner()))
        return Batch::places_in(size_of(world_.region.size_class_of(object)));
      const Kind& kind = slabs().at(word)->its_kind();
      return kind.link != 0 ? 0 : Batch::places_in(kind.size);
    });
    if (!remote.is_empty()) claimed_ |= uint64_t{1} << (&remote - remotes_);
  }

  const BlockIndex end = world_.region.opened();
  for (BlockIndex b = 0; b < end; ++b) {
    const MapWord word = world_.region.word(b);
    if (public_of(word.owner()) != id_ || word.state() != &world_.region.state(b)) continue;
    Slab* slab = slabs().at(word);
    if (!slab->is_of_kind()) {
      salvage_slab(slab, partial_[index_of(slab->size_class)], nullptr,
                   chains[index_of(slab->size_class)]);
    } else if (Bin* bin = bin_of(slab->its_kind()); bin != nullptr) {
      slab->bin = bin;
      salvage_slab(slab, bin->partial, &bin->full, {bin->hit.first});
    }
  }
  for (Bin* bin = bins_; bin != nullptr; bin = bin->next)
    if (bin->kind.load(std::memory_order_relaxed)->capacity != 0) bin->set_slab(0);
  clean(visit);
}

template <class P>
void Lane<P>::check_invariants() const {
  BlockCount empties = 0;
  for (unsigned c = 1; c < kClassCount; ++c) {
    const Slab* current = c < kBinCount ? bins[c].current : nullptr;
    CHECK(c >= kBinCount || bins[c].is_empty() || current != nullptr);
    if (current != nullptr) {
      CHECK(current->place == Slab::Place::kCurrent && index_of(current->size_class) == c);
      CHECK(bin_length(c) <= current->used());
    }
    for (const Slab* slab = partial_[c].first(); slab != nullptr; slab = slab->next) {
      CHECK(index_of(slab->size_class) == c && slab->has_room());
      if (slab->place == Slab::Place::kEmpty) {
        CHECK(slab->used() == 0);
        empties += slab->blocks();
      } else {
        CHECK(slab->place == Slab::Place::kPartial);
      }
      CHECK(slab->beyond == 0 && slab->used() <= slab->carved &&
            slab->carved <= capacity_of(slab->size_class));
      CHECK(world_.region.word(world_.region.block_of_state(slab)).owner() == id_);
    }
  }
  for (const Bin* bin = bins_; bin != nullptr; bin = bin->next) empties += check_bin(*bin);
  CHECK(empties == empty_blocks());
}

}  // namespace lanemalloc

#include "core/lane/lane_kinds.h"
