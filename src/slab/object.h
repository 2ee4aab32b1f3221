// A free object: its first words hold links. Called by: everything that has free objects in hand.
#pragma once

#include "base/atomics.h"
#include "memory/size_classes.h"

namespace lanemalloc {

template <class Atomics = Hardware>
struct BasicObject {
  using Link = typename Atomics::template atomic<BasicObject*>;
  BasicObject* next;  // in a free list, or in a batch (slab/batch.h)
  Link earlier;       // in a batch's first object: the batch given before it (lane/inbox.h)
};
using Object = BasicObject<>;
static_assert(sizeof(Object) <= kGranule);

}  // namespace lanemalloc
