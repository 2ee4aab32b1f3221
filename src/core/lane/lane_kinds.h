// What a lane does for kinds (core/slab/kind.h). The objects of pools and heaps use slabs, batches
// and a depot in the same way as malloc's. Included by lane_work.h only. Locking: the caller is
// inside the lane, or holds it from outside.
//
// The page map and the remote batches name the owner with its private bit, so no hit of malloc's
// takes such an object for its own.
#pragma once

#include <cstring>

#include "core/lane/lane_work.h"

namespace lanemalloc {

template <class P>
struct Lane<P>::KindBin {
  Lane& lane;
  Bin& bin;
  Kind& kind;

  Address& head() const { return bin.hit.first; }
  bool is_empty() const { return bin.is_empty(); }
  Slab* current() const { return lane.current_of(bin); }
  void set_current(Slab* slab) const {
    bin.set_slab(slab != nullptr ? lane.slabs().begin(slab) : 0);
  }
  SlabList& partial() const { return bin.partial; }
  // At a limit, a slab may have nothing free and nothing that may be carved. Then it is no better
  // than the current one.
  Slab* pop_partial(bool current_is_uncarved) const {
    Slab* slab = bin.partial.first_with_free();
    if (slab == nullptr && !current_is_uncarved) slab = bin.partial.first();
    if (slab != nullptr) lane.take_partial(bin.partial, slab);
    return slab;
  }
  uint32_t capacity() const { return kind.capacity; }
  void count_taken(uint64_t) const {}
  void count_returned(uint64_t) const {}
  uint64_t cut(Object*, uint64_t n) const { return n; }
  uint32_t grant(const Slab* slab) const {
    return kind.budget->take(kind.size, slab->next_chunk(kind.chunk, kind.capacity));
  }
  Link carve(Slab* slab, uint32_t n) const {
    const Address at = lane.slabs().begin(slab) + kind.link;
    const Address first = at + slab->carved * Bytes{kind.size};
    const Link list = slab->carve(at, kind.size, n);
    // The objects are not initialized yet, whatever the memory held before.
    for (uint32_t i = 0; kind.is_tagged && i < n; ++i)
      kind.tag_of(reinterpret_cast<Object*>(first + i * Bytes{kind.size})) = 0;
    return list;
  }
  void put_full(Slab* slab) const {
    slab->wait_for_frees(kind.capacity);
    bin.full.push(slab);
  }
  bool may_grow() const { return kind.budget->may_take(kind.size); }
  Slab* from_depot(Visit& visit) const {
    return lane.world_.depot.take(kind, lane.id_, &bin, visit);
  }
  Slab* fresh_slab(Visit& visit) const {
    const Run run = lane.blocks_for_slab(kind.blocks, visit);
    if (run.at == Runs<P>::kNone) return nullptr;
    bump(lane.counters_.slabs_made);
    kind.slabs.fetch_add(1, std::memory_order_relaxed);
    Slab* slab = lane.slabs().make(run.at, Slab::kOfKind, lane.id_, run.zeroed, &kind);
    slab->bin = &bin;
    return slab;
  }
};

// --- Bins.

template <class P>
Bin* Lane<P>::bin_for(Kind& kind, Visit& visit) {
  if (Bin* bin = bin_of(kind); LIKELY(bin != nullptr)) return bin;
  Address at = bins_at_.load(std::memory_order_relaxed);
  if (at == 0 && (at = open_area(visit)) == 0) return nullptr;
  if (kind.index != Kind::kNoIndex && Area::bin(at, kind) == nullptr) {
    void* table = allocate(class_of(kTableBins * sizeof(Bin)), visit);
    if (table == nullptr) return nullptr;
    memset(table, 0, kTableBins * sizeof(Bin));
    // release: a thread that looks at this lane from elsewhere finds a table of empty bins. Pairs
    // with [table.acquire].
    Area::table_at(at, kind.offset).store(static_cast<Bin*>(table), std::memory_order_release);
    Area::give_label(*kind.family, at);
  }
  Bin* bin = Area::bin(at, kind);
  if (kind.capacity == 0) bin->hit.first = Link::none().bits;  // imported objects lie anywhere
  bin->next = bins_;
  bins_ = bin;
  compiler_fence();  // a bin that has a kind is always found here
  bin->kind.store(&kind, std::memory_order_relaxed);
  if (kind.index == Kind::kNoIndex) Area::give_label(*kind.family, at);
  return bin;
}

// Takes fresh addresses while there are any: they read as zeros, and pages without a bin cost
// nothing. Returns 0 if there is no memory.
template <class P>
Address Lane<P>::open_area(Visit& visit) {
  BlockIndex at = world_.runs.allocate_fresh(Area::kBlocks);
  if (UNLIKELY(at == Runs<P>::kNone)) {
    const Run run = world_.runs.allocate(Area::kBlocks, 1, visit);
    if (run.at == Runs<P>::kNone) return 0;
    at = run.at;
    if (!run.zeroed) memset(world_.region.pointer_to(at), 0, bytes_of(Area::kBlocks));
  }
  const Address begin = world_.region.address_of(at);
  bins_at_.store(begin, std::memory_order_release);
  // release: a hit by CPU that follows this address finds zeros. The hit has no fence; it relies on
  // the load's dependency on the address (PerCpu::area).
  if (here_bins != 0)
    area_here.store(begin | static_cast<uint64_t>(id_), std::memory_order_release);
  if (open_bins.load(std::memory_order_relaxed) != 0) open_area_to_hits();  // as open_gate() does
  return begin;
}

// --- Allocating and freeing.

template <class P>
Object* Lane<P>::allocate(Kind& kind, Visit& visit) {
  Bin* bin = bin_for(kind, visit);
  if (bin == nullptr) return nullptr;
  if (Object* object = bin->pop()) return object;
  kind.refills.fetch_add(1, std::memory_order_relaxed);
  return refill_from(KindBin{*this, *bin, kind}, visit);
}

template <class P>
Kind* Lane<P>::kind_of(const Object* object) const {
  return &slabs().at(world_.region.word_of(object))->its_kind();
}

template <class P>
void Lane<P>::free_of_kind(Object* object, MapWord word, Visit& visit) {
  Slab* slab = slabs().at(word);
  if (word.owner() == private_of(id_)) return free_own(object, slab, visit);
  Kind& kind = slab->its_kind();
  if (Bin* bin = bin_for(kind, visit)) {
    bump(bin->in_flight, int64_t{1});
    if (UNLIKELY(!send_of_kind(object, word, visit))) bump(bin->in_flight, int64_t{-1});
  } else {
    kind.in_flight.fetch_add(1, std::memory_order_relaxed);
    kind.strays.store(true, std::memory_order_relaxed);
    if (UNLIKELY(!send_of_kind(object, word, visit)))
      kind.in_flight.fetch_sub(1, std::memory_order_relaxed);
  }
}

// Returns false in the same case as send().
template <class P>
bool Lane<P>::send_of_kind(Object* object, MapWord word, Visit& visit) {
  Remote& remote = remote_of_kinds_to(word.owner());
  if (remote.owner != word.owner() || remote.room <= 0) claim(remote, word.owner(), visit);
  if (LIKELY(add(object, word, remote, slabs().at(word)->its_kind()))) return true;
  world_.report(Verdict::kFreedAlready, object);
  return false;
}

template <class P>
FAST bool Lane<P>::send_to_open_batch(Object* object, MapWord word, const Kind& kind) {
  Remote& remote = remote_of_kinds_to(word.owner());
  Bin* bin = bin_of(kind);
  if (UNLIKELY(remote.owner != word.owner() || remote.room <= 0 || bin == nullptr)) return false;
  bump(bin->in_flight, int64_t{1});
  if (LIKELY(add(object, word, remote, kind))) return true;
  bump(bin->in_flight, int64_t{-1});
  return false;
}

// The object takes its size, and at least its share of the count, out of the batch's room, as
// malloc's objects do (Charge).
template <class P>
FAST bool Lane<P>::add(Object* object, MapWord word, Remote& remote, const Kind& kind) {
  if (UNLIKELY(!remote.add(object, word,
                           [&] { return kind.link != 0 ? 0 : Batch::places_in(kind.size); })))
    return false;
  const uint32_t share = kBatchBytes / kind.batch.load(std::memory_order_relaxed);
  remote.room -= static_cast<int32_t>(kind.size > share ? kind.size : share);
  return true;
}

// Takes an object from the inbox that is not one of malloc's in this lane: a kind's, or one whose
// slab has moved on since.
template <class P>
void Lane<P>::receive_other(Object* object, MapWord word, Visit& visit) {
  if (word.owner() != private_of(id_)) return send_after(object, word, visit);
  Slab* slab = slabs().at(word);
  bump(slab->bin->in_flight, int64_t{-1});
  if (UNLIKELY(slab->push(object))) look_at(slab, visit);
}

// --- Giving back.

template <class P>
void Lane<P>::offer_full(Bin& bin) {
  bin.full.for_each([&](Slab* slab) {
    if (!slab->has_free()) return;
    bin.full.remove(slab);
    slab->settle(Slab::Place::kPartial);
    bin.partial.push(slab);
  });
}

template <class P>
bool Lane<P>::clean_kind(Bin& bin, Visit& visit) {
  return clean_bin(KindBin{*this, bin, *bin.kind.load(std::memory_order_relaxed)}, visit);
}

template <class P>
void Lane<P>::forget_kind(Bin& bin, SlabList& slabs, Visit&) {
  clear_bin(KindBin{*this, bin, *bin.kind.load(std::memory_order_relaxed)});
  while (Slab* slab = pop_partial(bin.partial)) slabs.push(slab);
  while (Slab* slab = bin.full.pop()) {
    slab->settle(Slab::Place::kPartial);
    slabs.push(slab);
  }
  bin.kind.store(nullptr, std::memory_order_relaxed);  // first: salvage() takes the bin out then
  compiler_fence();
  Bin** link = &bins_;
  while (*link != &bin) link = &(*link)->next;
  *link = bin.next;
  bin.hit = BinHead{};
  bin.in_flight.store(0, std::memory_order_relaxed);
}

// Called after forget_kind() for all kinds of a heap.
template <class P>
void Lane<P>::forget_table(const Family& family, Visit& visit) {
  const Address at = bins_at_.load(std::memory_order_relaxed);
  if (family.type != Family::Type::kHeap || at == 0) return;
  Bin* table = Area::table_at(at, family.offset).exchange(nullptr, std::memory_order_relaxed);
  if (table != nullptr) free(reinterpret_cast<Object*>(table), world_.region.word_of(table), visit);
}

template <class P>
BlockCount Lane<P>::check_bin(const Bin& bin) const {
  const Kind* kind = bin.kind.load(std::memory_order_relaxed);
  CHECK(kind != nullptr && (bin.is_empty() || bin.begin() != 0 || kind->capacity == 0));
  BlockCount empties = 0;
  for_each_slab(bin, [&](const Slab* slab) {
    CHECK(slab->is_of_kind() && &slab->its_kind() == kind && slab->bin == &bin &&
          slab->carved <= kind->capacity);
    CHECK(world_.region.word(world_.region.block_of_state(slab)).owner() == private_of(id_));
    CHECK(static_cast<int32_t>(slab->used()) >= 0 && slab->used() <= slab->carved);
    if (slab->place == Slab::Place::kEmpty) empties += slab->blocks();
  });
  bin.partial.for_each([](const Slab* slab) { CHECK(slab->has_room() && slab->beyond == 0); });
  bin.full.for_each([](const Slab* slab) { CHECK(slab->place == Slab::Place::kFull); });
  return empties;
}

}  // namespace lanemalloc
