// What a lane does off the hit path: refill a bin, look at a slab, send, receive, clean. See lane.h for the picture.
// Called by: lane, engine, scavenger. Locking: the caller is inside the lane, or holds it from outside.
#pragma once

#include "lane/entry/owned.h"
#include "lane/entry/percpu.h"
#include "lane/entry/shared.h"

namespace lanemalloc {

template <class P>
Lane<P>::Lane(Owner id, World<P>& world, Entry entry, uint32_t number)
    : id_(id), number_(number), world_(world) {
  how = entry;
  if (how != Entry::kPerCpu) return;
  if (!world.settings.checked && P::numbers_for_hits()) {
    here_bins = kSmallClasses + 1;
    here_bytes = world.region.bytes();
  }
  here.store(free_here(), std::memory_order_relaxed);
}

template <class P>
bool Lane<P>::try_hold(Visit& visit) {
  if (!try_lock(visit)) return false;
  if (how == Entry::kPerCpu ? take_from_cpu() : take_from_owner()) return true;
  unlock(visit);
  return false;
}

template <class P>
void Lane<P>::let_go(Visit& visit) {
  if (how == Entry::kPerCpu) {
    leave_here();
  } else {
    give_to_owner();
  }
  unlock(visit);
}

// Nobody gets the lock from now on, and who waits for it stops waiting; a thread that still has the lane in its slot finds it
// revoked, or taken, for good.
template <class P>
void Lane<P>::set_aside() {
  set_aside_ = true;
  lock_.forget_holder();
  if (how == Entry::kPerCpu) {
    here.store(kTakenHere, std::memory_order_relaxed);
    return;
  }
  revoking_.store(true, std::memory_order_relaxed);
  close_gate();
  forget_owner();
}

template <class P>
Slabs<P> Lane<P>::slabs() const {
  return world_.slabs();
}

template <class P>
unsigned Lane<P>::index_at(const Object* object) const {
  return index_of(world_.region.size_class_at(world_.region.distance(object)));
}

template <class P>
void Lane<P>::stir(Visit& visit) {
  bump(activity_);
  world_.scavenger.poke(visit);
}

// --- Allocating.

template <class P>
FAST Object* Lane<P>::refill_quickly(Bytes index) {
  Slab* slab = current_[index];
  if (slab == nullptr || slab->free_list == nullptr) return nullptr;
  if (UNLIKELY(!slab->free_list_looks_sound())) return nullptr;
  uint64_t taken = 0;
  Object* list = slab->take_free_list(taken);
  bump(counters_.misses);
  bump(counters_.taken[index], taken);
  heads[index] = list->next;
  return list;
}

// The bin is empty: its slab's own free list, fresh objects of that slab, another slab of the lane, what others have sent
// back, a slab from the depot, a fresh slab; in this order. Null without memory.
template <class P>
void* Lane<P>::refill(SizeClass c, Visit& visit) {
  stir(visit);
  bump(counters_.misses);
  bump(refills_);
  // Not only when it is short of this class: what others send must not pile up.
  if (UNLIKELY(mail_waits_.load(std::memory_order_relaxed))) drain_inbox(visit);
  const unsigned i = index_of(c);
  for (;;) {
    Slab* slab = current_[i];
    if (slab != nullptr) {
      const Address begin = slabs().begin(slab);
      uint64_t taken = 0;
      if (slab->free_list != nullptr) {
        if (LIKELY(slab->free_list_looks_sound())) {
          Object* list = slab->take_free_list(taken);
          return serve(c, list, taken);
        }
        drop_damaged_list(slab, Verdict::kListDamaged);
      }
      if (slab->carved < capacity_of(c)) {
        Object* list = slab->carve(begin, taken);
        return serve(c, list, taken);
      }
      slab->wait_for_frees();
      current_[i] = nullptr;
    }
    slab = partial_[i].pop();
    if (slab == nullptr && drain_inbox(visit)) slab = partial_[i].pop();
    if (slab == nullptr) slab = world_.depot.take(c, id_, visit);
    if (slab == nullptr) slab = fresh_slab(c, visit);
    if (slab == nullptr) return nullptr;
    slab->place = Slab::Place::kCurrent;
    current_[i] = slab;
  }
}

template <class P>
Slab* Lane<P>::fresh_slab(SizeClass c, Visit& visit) {
  const BlockCount blocks = slab_blocks_of(c);
  const BlockIndex at =
      blocks == 1 && spare_count_ > 0 ? spares_[--spare_count_] : world_.runs.allocate(blocks, 1, visit).at;
  if (at == Runs<P>::kNone) return nullptr;
  bump(counters_.slabs_made);
  return slabs().make(at, c, id_);
}

// After a double free: tells, and goes on without the list.
template <class P>
void Lane<P>::drop_damaged_list(Slab* slab, Verdict why) {
  const void* object = slab->free_list;
  slab->give_up_free_list();
  if (slab->place == Slab::Place::kPartial && !slab->has_room()) {
    partial_[index_of(slab->size_class)].remove(slab);
    slab->wait_for_frees();
  }
  world_.report(why, object);
}

// --- Freeing.

template <class P>
void Lane<P>::free_here(Object* object, MapEntry entry, Visit& visit) {
  Slab* slab = slabs().at(entry);
  if (UNLIKELY(slab->push(object))) look_at(slab, visit);
}

template <class P>
void Lane<P>::look_at(Slab* slab, Visit& visit) {
  stir(visit);
  if (UNLIKELY(slab->countdown < 0)) return drop_damaged_list(slab, Verdict::kFreedAlready);
  SlabList& partial = partial_[index_of(slab->size_class)];
  if (slab->place == Slab::Place::kFull) {
    slab->settle(Slab::Place::kPartial);
    partial.push(slab);
    if (slab->countdown > 0) return;
  }
  // All its objects are free. The bin's own slab stays, and so does the only one that has room; so a thread at the edge of
  // a slab does not make and destroy it at every step.
  if (slab->place == Slab::Place::kCurrent) return;
  const Slab* current = current_[index_of(slab->size_class)];
  const bool only_one = partial.first() == slab && slab->next == nullptr;
  if (only_one && (current == nullptr || !current->has_room())) return;
  if (UNLIKELY(!slab->free_list_is_whole(slabs().begin(slab))))
    return drop_damaged_list(slab, Verdict::kListDamaged);
  partial.remove(slab);
  retire(slab, visit);
}

template <class P>
void Lane<P>::retire(Slab* slab, Visit& visit) {
  if (slab_blocks_of(slab->size_class) > 1 || spare_count_ == kSpares) return slabs().destroy(slab, visit);
  slabs().give_to(slab, Owner::kNobody);
  spares_[spare_count_++] = world_.region.block_of_state(slab);
}

// --- Sending and receiving.

template <class P>
void Lane<P>::free(Object* object, MapEntry entry, Visit& visit) {
  if (entry.owner() == id_) return free_here(object, entry, visit);
  bump(counters_.sent[index_at(object)]);
  send(object, entry, visit);
}

// An owner that is nobody has no batch with room: so the object is one of ours when its class is asked for.
template <class P>
template <class ClassOf>
FAST bool Lane<P>::send_quickly(Object* object, MapEntry entry, ClassOf class_of_object) {
  Remote& remote = remotes_[static_cast<unsigned>(entry.owner()) % kRemotes];
  if (UNLIKELY(remote.owner != entry.owner() || remote.room <= 0)) return false;
  const unsigned c = index_of(class_of_object());
  bump(counters_.sent[c]);
  object->next = remote.first;
  remote.first = object;
  remote.room -= static_cast<int32_t>(kCharges.of[c]);
  return true;
}

template <class P>
void Lane<P>::send(Object* object, MapEntry entry, Visit& visit) {
  Remote& remote = remotes_[static_cast<unsigned>(entry.owner()) % kRemotes];
  if (remote.owner != entry.owner() || remote.room <= 0) {
    if (remote.first != nullptr) flush(remote, visit);
    // A depot that could not be entered keeps its batch; what is added is sorted out there.
    if (remote.first == nullptr) {
      remote.owner = entry.owner();
      remote.room = kBatchBytes;
      stir(visit);
    }
  }
  object->next = remote.first;
  remote.first = object;
  remote.room -= static_cast<int32_t>(kCharges.of[index_at(object)]);
}

template <class P>
void Lane<P>::flush(Remote& remote, Visit& visit) {
  Object* batch = remote.first;
  remote.first = nullptr;
  remote.room = 0;
  bump(counters_.remote_batches);
  stir(visit);
  if (remote.owner == Owner::kDepot) {
    const bool done = world_.depot.free(
        batch, visit, [&](Object* object) { receive(object, visit); },
        [&](Object* object) { world_.report(Verdict::kListDamaged, object); });
    if (!done) remote.first = batch;
    return;
  }
  // acquire: whoever read the owner's number from the page map sees its lane made. Pairs with [entries.release].
  std::atomic_thread_fence(std::memory_order_acquire);
  Lane& owner = world_.lanes.at(remote.owner);
  uint8_t& unanswered = unanswered_[static_cast<unsigned>(remote.owner) % sizeof unanswered_];
  if (!owner.inbox_.give(batch)) {
    unanswered = 0;
    return;
  }
  if (++unanswered < kIdleAfter || !visit.may_drain) return;
  // The owner has not looked for a while. If it refills its bins, tell it. Else, if it is not inside, take in for it what lies
  // there.
  unanswered = 0;
  uint8_t& seen = seen_[static_cast<unsigned>(remote.owner) % sizeof seen_];
  const auto refills = static_cast<uint8_t>(owner.refills_.load(std::memory_order_relaxed));
  if (seen != refills) {
    seen = refills;
    owner.mail_waits_.store(true, std::memory_order_relaxed);
    return;
  }
  visit.may_drain = false;
  world_.with_idle_lane(owner, visit, [&](Lane& lane) { lane.drain_inbox(visit); });
  visit.may_drain = true;
}

// An object that was sent here. Its slab may have moved on since: then it is sent after it.
template <class P>
FAST void Lane<P>::receive(Object* object, Visit& visit) {
  const MapEntry entry = world_.region.entry_at(world_.region.distance(object));
  if (UNLIKELY(entry.owner() != id_)) return send_after(object, entry, visit);
  Slab* slab = slabs().at(entry);
  bump(counters_.received[index_of(slab->size_class)]);
  if (UNLIKELY(slab->push(object))) look_at(slab, visit);
}

template <class P>
void Lane<P>::send_after(Object* object, MapEntry entry, Visit& visit) {
  if (is_lane(entry.owner()) || entry.owner() == Owner::kDepot) {
    send(object, entry, visit);
  } else {
    world_.report(Verdict::kFreedAlready, object);
  }
}

template <class P>
bool Lane<P>::drain_inbox(Visit& visit) {
  if (mail_waits_.load(std::memory_order_relaxed)) mail_waits_.store(false, std::memory_order_relaxed);
  if (inbox_.is_empty()) return false;
  bump(counters_.inbox_drains);
  inbox_.take([&](Object* batch) {
    while (batch != nullptr) {
      Object* object = batch;
      batch = batch->next;
      receive(object, visit);
    }
  });
  return true;
}

// Some rounds, since what the depot no longer has is sent on, into a batch that may have been flushed already.
template <class P>
void Lane<P>::flush_all(Visit& visit) {
  bool any = true;
  for (int round = 0; any && round < 4; ++round) {
    any = false;
    for (Remote& remote : remotes_) {
      if (remote.first == nullptr) continue;
      flush(remote, visit);
      any = true;
    }
  }
}

// --- Cleaning.

template <class P>
void Lane<P>::clean(Visit& visit) {
  drain_inbox(visit);
  for (unsigned c = 1; c < kClassCount; ++c) clean_class(c, visit);
  while (spare_count_ > 0) world_.runs.free(spares_[--spare_count_], 1, visit);
  flush_all(visit);
}

template <class P>
void Lane<P>::clean_class(unsigned c, Visit& visit) {
  if (Slab* slab = current_[c]; slab != nullptr) {
    uint64_t returned = 0;
    for (; heads[c] != nullptr; ++returned) {
      Object* object = heads[c];
      heads[c] = object->next;
      slab->push(object);
    }
    bump(counters_.taken[c], -returned);
    current_[c] = nullptr;
    if (slab->has_room()) {
      slab->settle(Slab::Place::kPartial);
      partial_[c].push(slab);
    } else {
      slab->wait_for_frees();
    }
  }
  while (Slab* slab = partial_[c].pop()) {
    if (slab->used() == 0 && !slab->free_list_is_whole(slabs().begin(slab))) {
      partial_[c].push(slab);
      drop_damaged_list(slab, Verdict::kListDamaged);
    } else if (slab->used() == 0) {
      slabs().destroy(slab, visit);
    } else if (!world_.depot.give(slab, visit)) {
      partial_[c].push(slab);
      return;
    }
  }
}

template <class P>
void Lane<P>::check_invariants() const {
  for (unsigned c = 1; c < kClassCount; ++c) {
    const Slab* current = current_[c];
    CHECK(heads[c] == nullptr || current != nullptr);
    if (current != nullptr) {
      CHECK(current->place == Slab::Place::kCurrent && index_of(current->size_class) == c);
      CHECK(bin_length(c) <= current->used());
    }
    for (const Slab* slab = partial_[c].first(); slab != nullptr; slab = slab->next) {
      CHECK(slab->place == Slab::Place::kPartial && index_of(slab->size_class) == c && slab->has_room());
      CHECK(slab->beyond == 0 && slab->used() <= slab->carved &&
            slab->carved <= capacity_of(slab->size_class));
      CHECK(world_.region.entry(world_.region.block_of_state(slab)).owner() == id_);
    }
  }
  CHECK(spare_count_ <= kSpares);
}

}  // namespace lanemalloc
