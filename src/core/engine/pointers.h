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
    const bool is_large = word.owner() == Owner::kLarge;
    if (!is_large && LIKELY(!world_.settings.checked)) return Verdict::kGood;
    if (!is_start(p, word)) return Verdict::kNotAStart;
    return is_large || mark_free(p) ? Verdict::kGood : Verdict::kFreedAlready;
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
    const SizeClass c = world_.region.size_class_at(distance);
    const auto into =
        static_cast<uint32_t>(distance - bytes_of(world_.region.block_of_state(word.state())));
    const auto size = static_cast<uint32_t>(size_of(c));
    return into % size == 0 && into / size < capacity_of(c);
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

  // For objects of heaps and pools. Without checked=1 nothing is marked, and nothing found wrong.
  void check_out(const void* p) {
    if (world_.settings.checked) mark_in_use(p);
  }
  bool is_out(const void* p) const { return !world_.settings.checked || is_in_use(p); }
  // False: it is in already.
  bool check_in(const void* p) { return !world_.settings.checked || mark_free(p); }

  void mark_in_use(const void* p) {
    const Bytes distance = world_.region.distance(p);
    const uint64_t bit = uint64_t{1} << (distance / kGranule % 64);
    const uint64_t before =
        world_.region.object_bits(distance).fetch_or(bit, std::memory_order_relaxed);
    CHECK((before & bit) == 0);
  }

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
  const World<P>& world_;
};

}  // namespace lanemalloc
