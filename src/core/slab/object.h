// A free object, whose first words hold links, and a list of slabs. Called by: slab, lane, depot,
// kinds.
#pragma once

#include "core/base/atomics.h"
#include "core/memory/size_classes.h"

namespace lanemalloc {

template <class Atomics = Hardware>
struct BasicObject {
  using Link = typename Atomics::template atomic<BasicObject*>;
  BasicObject* next;  // in a free list, or in a batch (core/slab/batch.h)
  Link earlier;       // in a batch's first object: the batch given before it (core/lane/inbox.h)
};
using Object = BasicObject<>;
static_assert(sizeof(Object) <= kGranule);

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
