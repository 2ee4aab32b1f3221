// Batch: freed objects on their way to the lane that owns them. The objects themselves are the list: some of them, the
// holders, name the others, as many as fit into one cache line.
// Called by: lane (send, receive), depot. Locking: none; a batch has one thread at a time.
//
//   first -> holder: [ next, and how many it names | earlier (lane/inbox.h) | object | object | .. ]
//                       |                                                      freed, never read or written on the way
//                       v
//                    holder -> .. -> null
//
// So the taker waits for one cache line of another core's in seven objects, not for every one: it writes to the others, but a
// store waits for nobody. Objects of 16 bytes are holders all.
#pragma once

#include "slab/slab.h"

namespace lanemalloc {

class Batch {
 public:
  static constexpr Bytes kHolderBytes = 64;

  // The bytes of an object that it can hold names in.
  static constexpr unsigned places_in(Bytes size) {
    return static_cast<unsigned>((size < kHolderBytes ? size : kHolderBytes) - sizeof(Object));
  }

  bool is_empty() const { return first_ == nullptr; }

  // Adds an object; `places` says what places_in() its size is, if it has to be a holder.
  template <class Places>
  FAST void add(Object* object, Places places) {
    if (LIKELY(place_ != end_)) {
      *place_ = object;
      compiler_fence();  // mend() relies on both orders
      ++place_;
      return;
    }
    close();
    object->next = first_;
    compiler_fence();
    first_ = object;
    place_ = others(object);
    end_ = reinterpret_cast<Object**>(reinterpret_cast<std::byte*>(place_) + places());
  }

  // The batch's first object, for the way; this one is empty then.
  Object* take() {
    close();
    place_ = end_ = nullptr;
    Object* first = first_;
    first_ = nullptr;
    return first;
  }
  // Whoever was adding an object, or taking the batch, was torn off: what had not been written down yet is left out. places(first): what
  // places_in() the size of the first holder is. If it is not this one that place_ is in, nothing is named by it yet, or it is closed.
  template <class Places>
  void mend(Places places) {
    if (first_ != nullptr) {
      const auto into = reinterpret_cast<uintptr_t>(place_) - reinterpret_cast<uintptr_t>(others(first_));
      if (into > places(first_)) place_ = others(first_);
    } else {
      place_ = nullptr;
    }
    end_ = place_;
  }
  // What take() returned.
  void put_back(Object* first) {
    first_ = first;
    place_ = end_ = others(first);
  }

  // Calls visit(object) for each object of a batch from take(). visit() may do with it whatever it likes.
  template <class Visit>
  static void for_each(Object* holder, Visit visit) {
    while (holder != nullptr) {
      const uintptr_t next = bits(holder->next);
      Object** end = others(holder) + (next & kCountMask);
      for (Object** other = others(holder); other != end; ++other) visit(*other);
      visit(holder);  // last, since it is gone then
      holder = reinterpret_cast<Object*>(next & ~kCountMask);
    }
  }

 private:
  static constexpr uintptr_t kCountMask = 7;  // objects are aligned to eight at least
  static_assert((kHolderBytes - sizeof(Object)) / sizeof(Object*) <= kCountMask);

  static uintptr_t bits(const Object* object) { return reinterpret_cast<uintptr_t>(object); }
  static Object** others(Object* holder) { return reinterpret_cast<Object**>(holder + 1); }

  // Writes down how many the first holder names.
  FAST void close() {
    if (first_ == nullptr) return;
    const auto named = static_cast<uintptr_t>(place_ - others(first_));
    first_->next = reinterpret_cast<Object*>(bits(first_->next) | named);
  }

  Object* first_ = nullptr;
  Object** place_ = nullptr;  // in the first holder, for the next object; end_: none
  Object** end_ = nullptr;
};

}  // namespace lanemalloc
