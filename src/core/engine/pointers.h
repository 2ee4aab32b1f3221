// Pointers: what the page map says of a pointer that a program hands in; and, with checked=1, a bit
// for each object: is it in use.
// Called by: engine, misses, safepoints, heap, pool, abi. Locking: none; every function may be
// called at any time.
#pragma once

#include "core/engine/sampling.h"

namespace lanemalloc {

// What malloc_usable_size, realloc and free need to know of a pointer.
struct Found {
  Verdict verdict;
  MapWord word;
};

template <class P>
class Pointers {
 public:
  explicit Pointers(const World<P>& world) : world_(world) {}

  Found find(const void* p) const {
    const MapWord word = world_.region.word_for(p);
    if (UNLIKELY(!is_of_malloc(word.owner())))
      return {is_private(word.owner()) ? Verdict::kOfKind : why_nobody(p), word};
    if (!is_start(p, word)) return {Verdict::kNotAStart, word};
    if (world_.settings.checked && word.owner() != Owner::kLarge && !is_in_use(p))
      return {Verdict::kFreedAlready, word};
    return {Verdict::kGood, word};
  }

  // Whether free() may have p. With checked=1 an object of a slab is not in use from here on.
  FAST Verdict take_back(const void* p, MapWord word) {
    if (UNLIKELY(!is_of_malloc(word.owner())))
      return is_private(word.owner()) ? Verdict::kOfKind : why_nobody(p);
    if (!is_start(p, word)) return Verdict::kNotAStart;
    const bool is_bad = world_.settings.checked && word.owner() != Owner::kLarge && !mark_free(p);
    return UNLIKELY(is_bad) ? Verdict::kFreedAlready : Verdict::kGood;
  }

  Bytes usable_size(const void* p, MapWord word) const {
    return LIKELY(word.owner() != Owner::kLarge) ? size_of(world_.region.size_class_of(p))
                                                 : large_size(p);
  }

  NOINLINE Bytes large_size(const void* p) const {
    const BlockIndex at = world_.region.block_of(p);
    const SizeClass c = large_state(world_.region, at).sample_class;
    return LIKELY(c == SizeClass{0}) ? bytes_of(world_.region.state(at).length) : size_of(c);
  }

  bool is_start(const void* p, MapWord word) const {
    const Bytes distance = world_.region.distance(p);
    if (word.owner() == Owner::kLarge) return distance % kBlockSize == 0;
    const Bytes begin = bytes_of(world_.region.block_of_state(word.state()));
    return starts_of(world_.region.size_class_at(distance)).have(distance - begin);
  }

  // Nobody owns the block. Is it outside, inside a large object, or free?
  Verdict why_nobody(const void* p) const {
    if (world_.region.distance(p) >= world_.region.most_bytes()) return Verdict::kNotOurs;
    const BlockIndex block = world_.region.block_of(p);
    if (block >= world_.runs.used_end()) return Verdict::kNotInUse;
    for (BlockIndex b = block; b-- > 0;) {
      const Owner owner = world_.region.word(b).owner();
      if (owner == Owner::kNobody) continue;
      if (public_of(owner) == Owner::kLarge && b + world_.region.state(b).length > block)
        return Verdict::kNotAStart;
      break;
    }
    return Verdict::kFreedAlready;
  }

  // Without checked=1 these mark nothing, and find nothing wrong.
  // p is to be handed out, as one of the objects of its slab. False: none begins there, or it is in
  // use. A program has written to a free object, and that has been reported.
  FAST bool check_out(const void* p, const Starts& starts) {
    return LIKELY(!world_.settings.checked) || mark_in_use(p, starts);
  }
  bool is_out(const void* p) const { return !world_.settings.checked || is_in_use(p); }
  // False: it is in already.
  bool check_in(const void* p) { return !world_.settings.checked || mark_free(p); }

  bool is_in_use(const void* p) const {
    const Bytes distance = world_.region.distance(p);
    const uint64_t bit = uint64_t{1} << (distance / kGranule % 64);
    return (world_.region.object_bits(distance).load(std::memory_order_relaxed) & bit) != 0;
  }

  bool mark_free(const void* p) {
    const Bytes distance = world_.region.distance(p);
    const uint64_t bit = uint64_t{1} << (distance / kGranule % 64);
    return (world_.region.object_bits(distance).fetch_and(~bit, std::memory_order_relaxed) & bit) !=
           0;
  }

 private:
  NOINLINE bool mark_in_use(const void* p, const Starts& starts) {
    const Bytes distance = world_.region.distance(p);
    const MapWord word = world_.region.word_at(distance);
    const uint64_t bit = uint64_t{1} << (distance / kGranule % 64);
    const auto is_marked = [&] {
      return (world_.region.object_bits(distance).fetch_or(bit, std::memory_order_relaxed) & bit) !=
             0;
    };
    if (LIKELY(starts.have(distance - bytes_of(world_.region.block_of_state(word.state()))) &&
               !is_marked()))
      return true;
    world_.report(Verdict::kListDamaged, p);
    return false;
  }

  const World<P>& world_;
};

}  // namespace lanemalloc
