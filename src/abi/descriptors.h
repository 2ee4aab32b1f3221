// Descriptors: places for the heaps or pools of the process, of one size, and the way from a handle
// to one. A place is never given back to malloc, so a thread that looks up a handle while another
// one destroys the pool still reads a descriptor.
// Called by: abi. Locking: the depot's for places, not for signal handlers; none to look up.
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
    return place != nullptr
               ? place
               : process_engine.allocate_aligned(sizeof(Place), alignof(Place), thread_slot);
  }
  // What lies there stays as it is.
  void give(void* object) {
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

// The heap or pool that has this handle, which may be any value; null if none of that type has it,
// and then that has been reported.
template <class Front, KindOwner::Type kType>
NOINLINE Front* live_slowly(const void* handle, const char* function) {
  const KindOwner* owner = process_engine.find_owner(handle, kType);
  if (owner != nullptr) return static_cast<Front*>(owner->front);
  report_dead_owner(function, handle, kType);
  return nullptr;
}
template <class Front, KindOwner::Type kType>
FAST Front* live_front(const void* handle, const char* function) {
  const KindOwner* owner = process_engine.find_owner_quickly(handle, kType);
  if (UNLIKELY(owner == nullptr)) return live_slowly<Front, kType>(handle, function);
  auto* found = static_cast<Front*>(owner->front);
  if (found == nullptr) __builtin_unreachable();
  return found;
}

}  // namespace lanemalloc
