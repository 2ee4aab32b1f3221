// A free object, whose first words hold links, and a list of slabs. Called by: slab, lane, depot,
// kinds.
//
// A link is the next object's address less a secret number of the process. A program that writes to
// an object that it has freed, or past the end of the object before, does not know the number. So
// what it writes leads to no object of its choice: the link is looked at before it is followed, and
// must lead into the slab whose objects are being taken. Heads of lists hold links too, so that a
// hit copies them as they are.
//
// The upper 16 bits of every link are kLinkTag, and an object that is handed out has no link in its
// first word any more. A free that finds the tag goes out of line and searches for the object in
// its slab's list and in the bin (Lane::is_listed), for a program's own data may have the tag too.
// So a second free is told, unless the program has written to that word since. Addresses below 2^47
// less the number have this tag, and no object lies higher.
#pragma once

#include "core/base/arch.h"
#include "core/base/atomics.h"
#include "core/memory/size_classes.h"

namespace lanemalloc {

// The secret number is this, with other bits below. It is set once, before the first object exists.
inline constexpr Address kNoSecret = (~kLinkTag << 48) | Address{1} << 47;
inline constinit Address link_secret __attribute__((visibility("hidden"))) = kNoSecret;

template <class Atomics>
struct BasicObject;
using Object = BasicObject<Hardware>;

struct Link {
  Address bits;

  FAST static Link to(const void* object) { return to(reinterpret_cast<Address>(object)); }
  FAST static Link to(Address a) { return {a - link_secret}; }
  FAST static Link none() { return to(Address{0}); }
  // What it leads to, which may be anything if a program has written to a free object.
  FAST Address address() const { return bits + link_secret; }
  FAST bool is_none() const { return address() == 0; }
  FAST bool operator==(const Link&) const = default;
};

template <class Atomics = Hardware>
struct BasicObject {
  using Earlier = typename Atomics::template atomic<Address>;
  Link next;        // in a free list, or in a batch (core/slab/batch.h)
  Earlier earlier;  // in a batch's first object: the batch given before it (core/lane/inbox.h)

  // Its first word looks like a link: it is free already, or its data look so by chance.
  FAST bool looks_free() const { return next.bits >> 48 == kLinkTag; }
  // Makes it one that a program may have.
  FAST BasicObject* out() {
    next = {0};
    return this;
  }

  // Where the link leads, which may be anywhere.
  BasicObject* follow_blindly() const { return reinterpret_cast<BasicObject*>(next.address()); }
};
static_assert(sizeof(Object) <= kGranule);

// Objects that the program still holds, linked through their first words so that they can be freed
// together. The links are plain: nothing was freed yet.
struct Chained {
  Chained* next;
};

// Where a slab's objects lie, and what their links may lead to.
struct Extent {
  Address begin;
  Bytes bytes;
  Link to_begin = Link::to(begin);

  // The part of a bin's slab that lies at most `bytes` before the bin's end.
  FAST static Extent of(const BinHead& bin, Bytes bytes) {
    return {bin.end - bytes, bytes, {bin.end_link - bytes}};
  }
  FAST bool holds(Link link) const { return link.bits - to_begin.bits < bytes; }
  // For a link that it holds.
  FAST Object* at(Link link) const {
    return reinterpret_cast<Object*>(begin + (link.bits - to_begin.bits));
  }
  FAST bool is_none(Link link) const { return begin + (link.bits - to_begin.bits) == 0; }
  // Null if the link leads out of the slab, and if it is none.
  FAST Object* follow(Link link) const { return LIKELY(holds(link)) ? at(link) : nullptr; }
};

// --- What a hit does to the list of a bin (BinHead).

// Takes the first object. Null if there is none in reach.
FAST Object* pop_hit(BinHead& bin) { return reinterpret_cast<Object*>(arch::pop(bin)); }
// The same off the hit path, where there is time to look whether the object is free.
FAST Object* pop_hit(BinHead& bin, Bytes reach) {
  const Address before_end = bin.first - bin.end_link;
  if (UNLIKELY(before_end < Bytes{0} - reach)) return nullptr;
  auto* object = reinterpret_cast<Object*>(bin.end + before_end);
  if (UNLIKELY(!object->looks_free())) return nullptr;
  bin.first = object->next.bits;
  return object->out();
}
// Frees the object if it lies in reach, and does not look free.
FAST bool push_hit(BinHead& bin, Object* object) {
  const Address before_end = reinterpret_cast<Address>(object) - bin.end;
  if (UNLIKELY(before_end < Bytes{0} - BinHead::kReach || object->looks_free())) return false;
  object->next = {bin.first};
  bin.first = bin.end_link + before_end;
  return true;
}

struct Slab;

// Slabs of one class, newest first.
class SlabList {
 public:
  Slab* first() const { return first_; }
  bool is_empty() const { return first_ == nullptr; }
  inline void push(Slab* slab);
  inline void remove(Slab* slab);
  inline Slab* pop();
  inline Slab* first_with_free() const;
  // visit() may take the slab out.
  template <class Visit>
  inline void for_each(Visit visit) const;

 private:
  Slab* first_ = nullptr;
};

}  // namespace lanemalloc
