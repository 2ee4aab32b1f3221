// Batch: freed objects on their way to the lane that owns them. The objects themselves are the
// list: some of them, the holders, name the others. A holder names as many as fit into one cache
// line. Each name stands for a row: objects of one slab that were freed one after the other.
// Called by: lane (send, receive), depot. Locking: none; one thread at a time has a batch.
//
//   first -> holder: [ next, and how many it names | earlier (inbox.h)      | name | name | .. ]
//                       |                                                     |
//                       |                     the last object of a row, and how many come before it
//                       v                                                     |
//                    holder -> .. -> null       last -> first -> second -> .. -> last
//                                               a ring, in the order in which they were freed
//
// The taker waits for cache lines that other cores have written: the line of each row's last
// object, and the line of each holder. An object that is a row of its own was neither read nor
// written on the way. The taker writes to it, but a store does not wait. The order stays: objects
// that were allocated one after the other lie beside each other the next time as well. Objects of
// 16 bytes are all holders.
#pragma once

#include "core/slab/slab.h"

namespace lanemalloc {

class Batch {
 public:
  static constexpr Bytes kHolderBytes = 64;

  // How many bytes of an object can hold names.
  static constexpr unsigned places_in(Bytes size) {
    return static_cast<unsigned>((size < kHolderBytes ? size : kHolderBytes) - sizeof(Object));
  }

  bool is_empty() const { return first_ == nullptr; }

  // Adds an object. slab: its word in the page map. places() returns places_in() of its size; it
  // is called if the object has to be a holder. False: the object is the one that was added last,
  // and nothing has changed.
  template <class Places>
  FAST bool add(Object* object, MapWord slab, Places places) {
    if (slab.bits() == slab_.bits()) return lengthen(object);
    if (LIKELY(place_ != end_)) {
      *place_ = name(object, 0);
      compiler_fence();  // mend() relies on both orders
      ++place_;
      slab_ = slab;
      return true;
    }
    close();
    object->next = Link::to(first_);
    compiler_fence();
    first_ = object;
    place_ = names_of(object);
    end_ = reinterpret_cast<uintptr_t*>(reinterpret_cast<std::byte*>(place_) + places());
    slab_ = MapWord();
    return true;
  }

  // Returns the batch's first object, to be sent. Then this batch is empty.
  Object* take() {
    close();
    place_ = end_ = nullptr;
    slab_ = MapWord();
    Object* first = first_;
    first_ = nullptr;
    return first;
  }
  // A thread was torn off while it added an object or took the batch. Leaves out what had not been
  // written down yet. places(first): places_in() of the first holder's size. If place_ does not lie
  // in the first holder, that holder names nothing yet, or it is closed.
  template <class Places>
  void mend(Places places) {
    if (first_ != nullptr) {
      const auto into =
          reinterpret_cast<uintptr_t>(place_) - reinterpret_cast<uintptr_t>(names_of(first_));
      if (into > places(first_)) {
        place_ = names_of(first_);
      } else if (into != 0) {
        mend_row(place_[-1]);
      }
    } else {
      place_ = nullptr;
    }
    end_ = place_;
    slab_ = MapWord();
  }
  // Puts back what take() returned.
  void put_back(Object* first) {
    first_ = first;
    place_ = end_ = names_of(first);
    slab_ = MapWord();
  }

  // Calls visit(first, last, n) for each row of a batch from take(): n objects of one slab, linked
  // from the first to the last. The last one's link is of no use. Rows come in the opposite order.
  // visit() may do anything with the objects. False: a program has written to an object, and the
  // rest of the batch is lost. is_object(address): whether an object may lie there. Only the last
  // object of a row is asked for: the links between lead into the slab or are found later.
  template <class IsObject, class Visit>
  static bool for_each_row(Object* holder, IsObject is_object, Visit visit) {
    // A circle of holders, after a double free, comes back to one of these.
    const Object* mark = nullptr;
    for (uint32_t i = 0; holder != nullptr; ++i) {
      // One that was freed twice may have been handed out since. Then it has no link any more.
      if (UNLIKELY(holder == mark || !is_object(holder) || !holder->looks_free())) return false;
      if ((i & (i + 1)) == 0) mark = holder;
      const Address next = holder->next.address();
      // The next holder is looked at after those that this one names.
      __builtin_prefetch(reinterpret_cast<void*>(next & ~kCountMask));
      uintptr_t* const names = names_of(holder);
      for (uintptr_t* place = names + (next & kCountMask); place != names;) {
        const uintptr_t row = *--place ^ link_secret;
        Object* last = last_of(row);
        if (UNLIKELY(!is_object(last))) return false;
        const uint32_t before = before_last(row);
        visit(before == 0 ? Link::to(last) : last->next, last, before + 1);
      }
      visit(Link::to(holder), holder, uint32_t{1});  // last, since it is gone then
      holder = reinterpret_cast<Object*>(next & ~kCountMask);
    }
    return true;
  }
  // The same with visit(object) for each object.
  template <class IsObject, class Visit>
  static bool for_each(Object* holder, IsObject is_object, Visit visit) {
    bool is_sound = true;
    const bool are_rows_sound =
        for_each_row(holder, is_object, [&](Link link, Object*, uint32_t n) {
          for (; n > 0 && is_sound; --n) {
            auto* object = reinterpret_cast<Object*>(link.address());
            if (!(is_sound = is_object(object))) return;
            link = object->next;
            visit(object);
          }
        });
    return is_sound && are_rows_sound;
  }

 private:
  // The lower bits of a name: how many objects come before the last one of the row. Above them is
  // the address of the last one. A name is written down together with the secret number of links.
  static constexpr unsigned kRowBits = 16;
  static constexpr uintptr_t kCountMask = 7;  // objects are aligned to eight at least
  static_assert((kHolderBytes - sizeof(Object)) / sizeof(uintptr_t) <= kCountMask);

  static uintptr_t bits(const Object* object) { return reinterpret_cast<uintptr_t>(object); }
  static uintptr_t* names_of(Object* holder) { return reinterpret_cast<uintptr_t*>(holder + 1); }
  static uintptr_t name(const Object* last, uintptr_t before) {
    return ((bits(last) << kRowBits) + before) ^ link_secret;
  }
  static Object* last_of(uintptr_t name) { return reinterpret_cast<Object*>(name >> kRowBits); }
  static uint16_t before_last(uintptr_t name) { return static_cast<uint16_t>(name); }

  // Adds the object to the row that was named last. A row of one is no ring yet.
  FAST bool lengthen(Object* object) {
    uintptr_t* const place = place_ - 1;
    const uintptr_t row = *place ^ link_secret;
    Object* last = last_of(row);
    if (UNLIKELY(object == last)) return false;
    const uint16_t before = before_last(row);
    object->next = before == 0 ? Link::to(last) : last->next;
    compiler_fence();  // mend_row() relies on both orders
    last->next = Link::to(object);
    compiler_fence();
    *place = name(object, before + 1U);
    return true;
  }
  // The last object of the ring may link to one that the name does not count yet, and that one to
  // the first. Then the row has one object more.
  static void mend_row(uintptr_t& place) {
    const uintptr_t row = place ^ link_secret;
    Object* last = last_of(row);
    const uint16_t before = before_last(row);
    if (before == 0) return;
    uintptr_t found = 0;
    for (Link link = last->next; link != Link::to(last) && found <= before; ++found)
      link = reinterpret_cast<const Object*>(link.address())->next;
    place = name(last, found);
  }

  // Writes down how many the first holder names. A thread that is torn off afterwards leaves a
  // holder that will be closed again.
  FAST void close() {
    if (first_ == nullptr) return;
    const auto named = static_cast<uintptr_t>(place_ - names_of(first_));
    first_->next = Link::to(first_->next.address() | named);
  }

  Object* first_ = nullptr;
  uintptr_t* place_ = nullptr;  // in the first holder, for the next object; at end_: no place
  uintptr_t* end_ = nullptr;
  MapWord slab_;  // of the row that was named last; empty: no object can join a row
};

}  // namespace lanemalloc
