// Descriptors: places for the heaps or pools of the process, of one size. They are never given back to malloc, so that a pointer to one
// that has been destroyed still leads to it; with checked=1 none is used twice.
// Called by: abi. Locking: the depot's; not for signal handlers.
#pragma once

#include "abi/process.h"

namespace lanemalloc {

template <Bytes kSize>
class Descriptors {
 public:
  // Null without memory.
  void* take() {
    Place* place = nullptr;
    process_engine.locked(thread_slot, [&] {
      place = list_;
      if (place != nullptr) list_ = place->next;
    });
    return place != nullptr ? place
                            : process_engine.allocate_aligned(sizeof(Place), alignof(Place), thread_slot);
  }
  // What lies there stays as it is.
  void give(void* object) {
    if (process_engine.is_checked()) return;
    Place* place = static_cast<Place*>(object);
    process_engine.locked(thread_slot, [&] {
      place->next = list_;
      list_ = place;
    });
  }

 private:
  struct Place {
    alignas(kNoSharing) std::byte object[kSize];
    Place* next;
  };

  Place* list_ = nullptr;
};

}  // namespace lanemalloc
