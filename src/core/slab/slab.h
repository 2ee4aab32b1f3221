// Slab: a run of blocks cut into objects of one size class. Its state lies in the state of its
// first block, outside the memory that programs write to, and belongs to the slab's owner: one
// lane, or the depot under its lock.
// Called by: lane, depot. Locking: none.
//
//   object:  never handed out   | in use | free, in the bin of its lane | free, on the free list,
//            [carved, capacity)  \_________ counted as used ________/     linked by its first word
//
// Invariant: used + objects on free_list == carved; used == countdown + beyond.
#pragma once

#include "core/base/arch.h"
#include "core/base/restartable.h"
#include "core/memory/runs.h"
#include "core/slab/kind.h"

namespace lanemalloc {

struct Slab {
  enum class Place : uint8_t {
    kCurrent,  // its lane's bin takes objects from it
    kPartial,  // in a list: has free objects
    kEmpty,    // in that list, and in its lane's list of empty slabs: no object of it is in use
    kFull,     // in no list, or in a kind's list of full slabs: few or none of its objects are free
  };

  Slab* next;  // in a list
  Slab* previous;
  uint32_t carved;       // objects handed out at least once: the first ones
  uint32_t beyond;       // objects in use that the countdown leaves out; may wrap below 0
  SizeClass size_class;  // kOfKind: `kind` tells
  Place place;
  uint8_t depot_life;  // the depot's life_ when the slab was given there
  bool untouched;      // its memory is untouched: the first touch of a page costs a fault
  // What a hit writes: a CountedList. It lies 32 bytes from the start of a cache line, where no
  // gate has its words. For a store and a later load hold each other up if their addresses agree in
  // the lowest 12 bits.
  Link free_list;
  // Frees until a thread must look at the slab; below 0: more frees than objects
  int32_t countdown;
  // Only for an empty slab.
  uint32_t emptied_at;  // epoch
  Slab* newer;
  Slab* older;
  // In a line of their own, since threads that free into the slab from elsewhere read them.
  std::atomic<Kind*> kind;  // null: malloc's
  Bin* bin;                 // of the lane that owns it; null in the depot

  static constexpr SizeClass kOfKind{0};

  void start(SizeClass c, bool on_untouched, Kind* k = nullptr) {
    untouched = on_untouched;
    free_list = Link::none();
    countdown = 0;
    beyond = carved = 0;
    size_class = c;
    place = Place::kCurrent;
    next = previous = nullptr;
    kind.store(k, std::memory_order_relaxed);
    bin = nullptr;
  }

  bool is_of_kind() const { return size_class == kOfKind; }
  Kind& its_kind() const { return *kind.load(std::memory_order_relaxed); }
  Bytes size() const { return LIKELY(!is_of_kind()) ? size_of(size_class) : its_kind().size; }
  uint32_t capacity() const {
    return LIKELY(!is_of_kind()) ? capacity_of(size_class) : its_kind().capacity;
  }
  BlockCount blocks() const {
    return LIKELY(!is_of_kind()) ? slab_blocks_of(size_class) : its_kind().blocks;
  }
  // A thread that finds it empty may not give it back.
  bool is_kept() const { return is_of_kind() && its_kind().keeps.load(std::memory_order_relaxed); }

  uint32_t used() const { return static_cast<uint32_t>(countdown) + beyond; }
  bool has_too_many_frees() const { return static_cast<int32_t>(used()) < 0; }
  uint32_t free_objects() const { return carved - used(); }
  bool has_free() const { return !free_list.is_none(); }
  bool has_room() const { return has_free() || carved < capacity(); }

  // Frees an object. True if the slab must be looked at.
  FAST bool push(Object* object) {
    object->next = free_list;
    free_list = Link::to(object);
    return arch::take_and_test(countdown, 1);
  }

  // The same for n objects, linked from the first to the last.
  FAST bool push(Link first, Object* last, uint32_t n) {
    last->next = free_list;
    compiler_fence();  // put_back() relies on it
    free_list = first;
    return arch::take_and_test(countdown, static_cast<int32_t>(n));
  }

  // Frees all objects that wait in a bin at once. Returns how many; `head` is none then. A thread
  // that is torn off here, or that a fork leaves behind, leaves each object in the bin, on the
  // list, or in both (salvage_objects). If the bin leads to more objects than are in use, it makes
  // a circle, or one of its objects was freed again; if it leads out of the slab, an object was
  // written to. Then it stays as it is, and 0 is returned.
  uint32_t put_back(Link& head, const Extent& extent) {
    if (head.is_none()) return 0;
    const uint32_t most = used();
    Object* last = nullptr;
    uint32_t n = 0;
    Link link = head;
    for (; n < most && !link.is_none(); ++n, link = last->next)
      if (UNLIKELY((last = extent.follow(link)) == nullptr)) return 0;
    if (UNLIKELY(n == 0 || !link.is_none())) return 0;
    push(head, last, n);
    compiler_fence();
    head = Link::none();
    return n;
  }

  // Takes the whole free list, for a bin. Sets `taken` to its length. No thread need look when all
  // objects are free again, for the bin will ask. One more free must be looked at.
  Link take_free_list(uint64_t& taken) {
    const Link list = free_list;
    free_list = Link::none();
    taken = free_objects();
    countdown = static_cast<int32_t>(carved) + 1;
    beyond = ~0u;
    return list;
  }

  // Takes one object off the free list, which is sound and not empty, and counts it as used.
  Object* take_one(const Extent& extent) {
    Object* object = extent.follow(free_list);
    free_list = object->next;
    ++countdown;
    return object->out();
  }

  // How many objects to carve: a page or two of them. usual: how many at a time on touched memory;
  // all: how many objects the slab has.
  uint32_t next_chunk(uint32_t usual, uint32_t all) const {
    const uint32_t left = all - carved;
    const uint32_t chunk = usual >> (untouched && usual > 1);
    return chunk < left ? chunk : left;
  }
  // Hands out the next n > 0 objects for the first time, linked in address order. at: the address
  // of the slab's first object; step: the distance from one to the next.
  Link carve(Address at, Bytes step, uint32_t n) {
    const Address first = at + carved * step;
    const Link link = Link::to(first);
    Object* object = reinterpret_cast<Object*>(first);
    for (uint32_t i = 1; i < n; ++i) {
      object->next = {link.bits + i * step};
      object = reinterpret_cast<Object*>(first + i * step);
    }
    object->next = Link::none();
    carved += n;
    countdown += static_cast<int32_t>(n);
    return link;
  }

  // Whether the list's first objects are neighbours, in either order. They are if objects were
  // freed in the order in which they were allocated.
  bool free_list_is_in_order(const Extent& extent) const {
    constexpr int kLinks = 3;
    const Bytes step = size();
    Link link = free_list;
    for (int i = 0; i < kLinks; ++i) {
      const Object* object = extent.follow(link);
      if (object == nullptr || object->next.is_none()) return true;
      const Bytes up = object->next.bits - link.bits;
      if (up != step && Bytes{0} - up != step) return false;
      link = object->next;
    }
    return true;
  }
  // None of its objects is in use. They will be carved anew, in the order of their addresses. A
  // thread that is torn off here leaves a slab of which nothing was ever handed out, or the slab as
  // it was.
  void start_over() {
    carved = 0;
    compiler_fence();
    free_list = Link::none();
    countdown = 0;
    beyond = 0;
  }

  // No object is left to hand out. Waits for some frees before the slab is offered again, so that a
  // thread at the edge does not take it up and put it down at every step.
  void wait_for_frees(uint32_t all) {
    const uint32_t in_use = used();
    const uint32_t some = all / 16 + 1;
    place = Place::kFull;
    countdown = static_cast<int32_t>(some < in_use ? some : in_use);
    beyond = in_use - static_cast<uint32_t>(countdown);
  }

  // Whether the list that begins with this link leads to the object.
  bool leads_to(const Object* object, Link link, const Extent& extent) const {
    for (uint32_t n = 0; n < carved && extent.holds(link); ++n) {
      const Object* at = extent.at(link);
      if (at == object) return true;
      link = at->next;
    }
    return false;
  }

  // Counts every object in use again, as a slab in a list or in a bin does.
  void settle(Place where) {
    countdown = static_cast<int32_t>(used());
    beyond = 0;
    place = where;
  }

  // Whether the list has an object, which lies in the slab, is free, and does not lead to itself,
  // as it does if it was freed twice. What comes behind it is looked at when it is taken.
  FAST bool free_list_begins_well(const Extent& extent) const {
    if (!extent.holds(free_list)) return false;
    const Object* object = extent.at(free_list);
    return LIKELY(object->looks_free() && object->next != free_list);
  }
  // The same, and that the first links make no circle, where there is time to follow them.
  bool free_list_looks_sound(const Extent& extent) const {
    if (UNLIKELY(!free_list_begins_well(extent))) return false;
    // A circle of at most five objects that begins at the first comes back to the first, and one of
    // at most four that begins at the second comes back to the second.
    const Link second = extent.at(free_list)->next;
    Link link = second;
    for (int step = 0; step < 4; ++step) {
      if (!extent.holds(link)) return LIKELY(extent.is_none(link));
      link = extent.at(link)->next;
      if (UNLIKELY(link == second || link == free_list)) return false;
    }
    return true;
  }

  // For a slab without objects in use: whether its free list looks like every object that was
  // handed out, each once. Its first links must lead to objects of the slab, and it must end after
  // as many as there are. A list that is longer than `walked` is not walked to its end, since each
  // object is a cache miss: a quarter of the time of a program that frees what it has made.
  bool free_list_looks_whole(Address begin, uint32_t walked = 64) const {
    const Extent extent{begin, carved * size()};
    const uint32_t n = carved < walked ? carved : walked;
    const Object* mark = nullptr;
    Link link = free_list;
    for (uint32_t i = 0; i < n; ++i) {
      const Object* object = extent.follow(link);
      if (object == nullptr || object == mark) return false;
      if ((i & (i + 1)) == 0) mark = object;  // a circle comes back to one of these
      link = object->next;
    }
    return carved > walked || link.is_none();
  }

  // The list cannot be trusted. All objects that were handed out count as in use from now on: they
  // are lost, but never handed out twice.
  void give_up_free_list() {
    free_list = Link::none();
    countdown = static_cast<int32_t>(carved);
    beyond = 0;
  }
};
static_assert(sizeof(Slab) <= BlockState::kOwnerPart);
static_assert(offsetof(Slab, free_list) == 32);
static_assert(offsetof(Slab, free_list) % sizeof(CountedList) == 0 && sizeof(Slab::countdown) == 4);
static_assert(offsetof(Slab, countdown) - offsetof(Slab, free_list) ==
              offsetof(CountedList, countdown));
static_assert(sizeof(Link) == sizeof(CountedList::first));
static_assert(offsetof(Slab, newer) - offsetof(Slab, free_list) == sizeof(CountedList));

inline void SlabList::push(Slab* slab) {
  slab->previous = nullptr;
  slab->next = first_;
  if (first_ != nullptr) first_->previous = slab;
  first_ = slab;
}
inline void SlabList::remove(Slab* slab) {
  if (slab->next != nullptr) slab->next->previous = slab->previous;
  (slab->previous != nullptr ? slab->previous->next : first_) = slab->next;
}
inline Slab* SlabList::pop() {
  Slab* slab = first_;
  if (slab != nullptr) remove(slab);
  return slab;
}

inline Slab* SlabList::first_with_free() const {
  Slab* slab = first_;
  while (slab != nullptr && !slab->has_free()) slab = slab->next;
  return slab;
}
template <class Visit>
inline void SlabList::for_each(Visit visit) const {
  for (Slab *slab = first_, *next; slab != nullptr; slab = next) {
    next = slab->next;
    visit(slab);
  }
}

// A lane's empty slabs, by age.
class EmptySlabs {
 public:
  Slab* oldest() const { return oldest_; }
  void push(Slab* slab) {
    slab->newer = nullptr;
    slab->older = newest_;
    (newest_ != nullptr ? newest_->newer : oldest_) = slab;
    newest_ = slab;
  }
  void remove(Slab* slab) {
    (slab->newer != nullptr ? slab->newer->older : newest_) = slab->older;
    (slab->older != nullptr ? slab->older->newer : oldest_) = slab->newer;
  }

 private:
  Slab* newest_ = nullptr;
  Slab* oldest_ = nullptr;
};

// Makes slabs of runs and gives them back.
template <class P>
struct Slabs {
  Region<P>& region;
  Runs<P>& runs;

  Slab* at(MapWord word) const { return static_cast<Slab*>(word.state()); }
  Address begin(const Slab* slab) const { return region.address_of(region.block_of_state(slab)); }
  Extent extent(const Slab* slab) const { return {begin(slab), bytes_of(slab->blocks())}; }

  // Whether an object may lie there, for any address.
  bool may_hold(const void* p) const { return is_slab(public_of(region.word_for(p).owner())); }

  // Makes a slab without objects, on blocks in use that have no owner.
  Slab* make(BlockIndex first, SizeClass c, Owner owner, bool untouched = false,
             Kind* kind = nullptr) const {
    Slab* slab = reinterpret_cast<Slab*>(region.state(first).owner_part);
    slab->start(c, untouched, kind);
    region.set_size_class(first, slab->blocks(), c);
    give_to(slab, owner);
    return slab;
  }

  // owner: a lane, the depot or nobody. The page map's word tells a kind's slab from malloc's.
  void give_to(Slab* slab, Owner owner) const {
    const BlockIndex first = region.block_of_state(slab);
    if (slab->is_of_kind()) owner = private_of(owner);
    region.set_words(
        first, slab->blocks(),
        public_of(owner) == Owner::kNobody ? MapWord() : region.make_word(owner, first));
  }

  // Gives an empty slab's blocks back.
  FAST void destroy(Slab* slab, Visit& visit) const {
    const BlockCount blocks = slab->blocks();
    give_to(slab, Owner::kNobody);
    uncharge(slab);
    runs.free(region.block_of_state(slab), blocks, visit);
  }
  // Takes a slab out of the budget and the count of its kind.
  static void uncharge(Slab* slab) {
    if (!slab->is_of_kind()) return;
    Kind& kind = slab->its_kind();
    kind.budget->give(Bytes{slab->carved} * kind.size);
    kind.slabs.fetch_sub(1, std::memory_order_relaxed);
  }
};

}  // namespace lanemalloc
