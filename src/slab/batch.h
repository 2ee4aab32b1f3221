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

  // How many others an object of the size can name.
  static constexpr unsigned places_in(Bytes size) {
    return static_cast<unsigned>(((size < kHolderBytes ? size : kHolderBytes) - sizeof(Object)) / sizeof(Object*));
  }

  bool is_empty() const { return first_ == nullptr; }

  // Adds an object of which `places` are the places that it has.
  FAST void add(Object* object, unsigned places) {
    if (LIKELY(named_ < places_)) {
      others(first_)[named_++] = object;
      return;
    }
    close();
    object->next = first_;
    first_ = object;
    places_ = static_cast<uint8_t>(places);
  }

  // The batch's first object, for the way; this one is empty then.
  Object* take() {
    close();
    places_ = 0;
    Object* first = first_;
    first_ = nullptr;
    return first;
  }
  // What take() returned.
  void put_back(Object* first) { first_ = first; }

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
  static constexpr uintptr_t kCountMask = kGranule - 1;  // objects are aligned
  static_assert((kHolderBytes - sizeof(Object)) / sizeof(Object*) <= kCountMask);

  static uintptr_t bits(const Object* object) { return reinterpret_cast<uintptr_t>(object); }
  static Object** others(Object* holder) { return reinterpret_cast<Object**>(holder + 1); }

  // Writes down how many the first holder names.
  FAST void close() {
    if (named_ == 0) return;
    first_->next = reinterpret_cast<Object*>(bits(first_->next) | named_);
    named_ = 0;
  }

  Object* first_ = nullptr;
  uint8_t named_ = 0;   // by the first holder
  uint8_t places_ = 0;  // it could name
};

}  // namespace lanemalloc
