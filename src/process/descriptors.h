// Descriptors: places of one size for the heaps or pools of the process, and the way from a handle
// to its heap or pool. A place is never given back to malloc. So a thread that looks up a handle
// while another thread destroys the pool still reads a descriptor.
// Called by: abi. Locking: places use the depot's lock, and are not for signal handlers; a look-up
// uses none.
#pragma once

#include "process/process.h"

namespace lanemalloc {

template <Bytes kSize>
class Descriptors {
 public:
  // Null: there is no memory.
  void* take() {
    Place* place = nullptr;
    Kinds<Linux>::locked(process_engine.world(), thread_slot, [&] {
      place = list_;
      if (place != nullptr) list_ = place->next;
    });
    return place != nullptr
               ? place
               : process_engine.allocate_aligned(sizeof(Place), alignof(Place), thread_slot);
  }
  // The contents of the place stay as they are.
  void give(void* object) {
    Place* place = static_cast<Place*>(object);
    Kinds<Linux>::locked(process_engine.world(), thread_slot, [&] {
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

// The family of that type with this handle, which may be any value. Null if there is none.
inline const Family* find_family(const void* handle, Family::Type type) {
  return process_engine.world().kinds.find(reinterpret_cast<Handle>(handle), type);
}

// Returns the heap or pool that has this handle. If none of that type has it, reports that and
// returns null.
template <class Front, Family::Type kType>
NOINLINE Front* find_or_report(const void* handle, const char* function) {
  const Family* family = find_family(handle, kType);
  if (family != nullptr) return static_cast<Front*>(family->front);
  report_dead_family(function, handle, kType);
  return nullptr;
}
template <class Front, Family::Type kType>
FAST Front* live_front(const void* handle, const char* function) {
  const Family* family =
      process_engine.world().kinds.find_by_number(reinterpret_cast<Handle>(handle), kType);
  if (UNLIKELY(family == nullptr)) return find_or_report<Front, kType>(handle, function);
  auto* found = static_cast<Front*>(family->front);
  if (found == nullptr) __builtin_unreachable();
  return found;
}

}  // namespace lanemalloc
