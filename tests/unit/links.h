// What free objects link to, for tests that look into lists. Called by: *_test.cpp.
#pragma once

#include <vector>

#include "core/slab/object.h"

namespace lanemalloc {

inline Object* object_at(Link link) { return reinterpret_cast<Object*>(link.address()); }

// Calls visit(object) for each object of a list that is sound.
template <class Visit>
void for_each_linked(Link first, Visit visit) {
  for (Link link = first, next; !link.is_none(); link = next) {
    next = object_at(link)->next;
    visit(object_at(link));
  }
}

// The object that a bin gives next; null if there is none.
inline Object* first_in(const BinHead& bin) { return object_at(Link{bin.first}); }

// For Batch and Inbox: every address may be an object's.
inline constexpr auto any_object = [](const void*) { return true; };

// The addresses, linked from the first to the last, as a chain of objects that are still in use.
inline Chained* chain_of(const std::vector<void*>& all) {
  for (size_t i = 0; i < all.size(); ++i)
    static_cast<Chained*>(all[i])->next =
        i + 1 < all.size() ? static_cast<Chained*>(all[i + 1]) : nullptr;
  return all.empty() ? nullptr : static_cast<Chained*>(all[0]);
}

}  // namespace lanemalloc
