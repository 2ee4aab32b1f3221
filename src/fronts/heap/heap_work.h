// What a heap does. Included by heap.h only; see there.
#pragma once

#include <cstring>

#include "fronts/heap/heap.h"

namespace lanemalloc {

template <class P>
Heap<P>::Heap(Engine<P>& engine, KindSource source, const char* name, Heap* parent)
    : engine_(engine), source_(source), parent_(parent), is_checked_(engine.is_checked()) {
  family_.type = Family::Type::kHeap;
  family_.front = this;
  strncpy(family_.name, name, sizeof family_.name - 1);
  family_.name[sizeof family_.name - 1] = '\0';
}

template <class P>
bool Heap<P>::start(Bytes limit, Bytes soft, SoftLimit on_soft, void* argument, Slot& slot) {
  on_soft_ = on_soft;
  argument_ = argument;
  budget_.start(parent_ != nullptr ? &parent_->budget_ : nullptr,
                limit == 0 ? Budget::kNone : limit, soft == 0 ? Budget::kNone : soft);
  if (!join_parent(slot)) return false;
  if (!engine_.kinds().add_family(family_, slot)) return leave_parent(slot), false;
  family_.label.store(family_.handle, std::memory_order_relaxed);
  return true;
}

template <class P>
bool Heap<P>::join_parent(Slot& slot) {
  return parent_ == nullptr || engine_.kinds().one_at_a_time(slot, [&] {
    sibling_ = parent_->children_;
    parent_->children_ = this;
  });
}

template <class P>
void Heap<P>::leave_parent(Slot& slot) {
  if (parent_ == nullptr) return;
  engine_.kinds().one_at_a_time(slot, [&] {
    Heap** link = &parent_->children_;
    while (*link != this) link = &(*link)->sibling_;
    *link = sibling_;
  });
}

template <class P>
bool Heap<P>::set_limits(Bytes soft, Bytes hard) {
  if (soft != 0 && (on_soft_ == nullptr || (hard != 0 && soft > hard))) return false;
  budget_.set_limits(hard == 0 ? Budget::kNone : hard, soft == 0 ? Budget::kNone : soft);
  return true;
}

// --- Allocating.

// Null: there is no memory. Two threads may make the kind at once; the first one's is used.
template <class P>
Kind* Heap<P>::kind_for(unsigned index) {
  std::atomic<Kind*>& place = kinds_[index];
  // acquire [kinds.acquire]: sees the kind whole.
  Kind* kind = place.load(std::memory_order_acquire);
  if (LIKELY(kind != nullptr)) return kind;
  void* memory = source_.take();
  if (memory == nullptr) return nullptr;
  Kind* made = new (memory) Kind;
  made->set_size(table_size(index), kGranule);
  made->index = index;
  made->budget = &budget_;
  made->family = &family_;
  made->offset = family_.offset;
  // release: a thread that finds the kind sees it whole. Pairs with [kinds.acquire].
  if (!place.compare_exchange_strong(kind, made, std::memory_order_release,
                                     std::memory_order_acquire)) {
    source_.give(memory);
    return kind;
  }
  engine_.kinds().add_kind(family_, *made);
  return made;
}

template <class P>
void* Heap<P>::allocate(Bytes size, Bytes alignment, Slot& slot) {
  const Bytes whole = is_checked_ ? size + kTail : size == 0 ? 1 : size;
  if (UNLIKELY(whole < size)) return nullptr;
  void* p = allocate_once(whole, alignment, slot);
  if (p == nullptr) {
    if (Heap* heap = refuser(whole)) {
      heap->gather_tree(slot);
      p = allocate_once(whole, alignment, slot);
      if (p == nullptr) heap->limit_failures_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  tell_soft_limits();
  if (p == nullptr) return nullptr;
  if (UNLIKELY(is_checked_)) {
    if (!is_large(p) && !engine_.pointers().check_out(p, kind_at(p)->starts))
      return allocate(size, alignment, slot);
    sign(p, size);
  }
  return p;
}

template <class P>
void* Heap<P>::allocate_once(Bytes size, Bytes alignment, Slot& slot) {
  Bytes whole = size;
  if (alignment > kGranule) {
    // Up to 1 KiB each multiple of the alignment is a size of some kind. Beyond that, a class of
    // malloc's that fits may have to be found.
    whole = round_up(size, alignment);
    if (whole < size || alignment > kBlockSize) return allocate_large(size, alignment, slot);
    if (whole > kSmallMax) whole = size_of(aligned_class_of(size, alignment));
    if (whole == 0) return allocate_large(size, alignment, slot);
  }
  if (whole > kSlabMax) return allocate_large(size, alignment, slot);
  Kind* kind = kind_for(table_index(whole));
  return kind != nullptr ? engine_.kinds().allocate(*kind, slot) : nullptr;
}

// Returns the heap whose limit refuses an object of this size; null if no limit does.
template <class P>
Heap<P>* Heap<P>::refuser(Bytes size) {
  const Bytes real = size <= kSlabMax ? table_size(table_index(size)) : bytes_of(blocks_for(size));
  for (Heap* heap = this; heap != nullptr; heap = heap->parent_)
    if (heap->budget_.used() + real > heap->budget_.limit()) return heap;
  return nullptr;
}

// Gives back what this heap and its children keep and do not use, so that it is not charged any
// more. Runs in a turn, so that no child comes or goes meanwhile. A handler that may not wait for a
// turn leaves the children out.
template <class P>
void Heap<P>::gather_tree(Slot& slot) {
  const bool done = engine_.kinds().one_at_a_time(slot, [&] {
    for_each_in_tree([&](Heap& heap) { engine_.kinds().gather(heap.family_, slot, true); });
  });
  if (!done) engine_.kinds().gather(family_, slot, true);
}

template <class P>
void Heap<P>::tell_soft_limits() {
  for (Heap* heap = this; heap != nullptr; heap = heap->parent_) {
    if (!heap->budget_.take_passed() || heap->on_soft_ == nullptr) continue;
    heap->soft_calls_.fetch_add(1, std::memory_order_relaxed);
    heap->on_soft_(reinterpret_cast<lane_heap*>(heap->family_.handle), heap->budget_.used(),
                   heap->argument_);
  }
}

template <class P>
void* Heap<P>::allocate_zeroed(Bytes size, Slot& slot) {
  void* p = allocate(size, kGranule, slot);
  if (p != nullptr) memset(p, 0, usable_size(p));
  return p;
}

template <class P>
void* Heap<P>::reallocate(void* p, Bytes size, Slot& slot) {
  const Bytes old_size = usable_size(p);
  if (!is_checked_) {
    if (size <= old_size && (size >= old_size / 2 || old_size == kGranule)) return p;
    if (is_large(p) && size > kSlabMax) {
      void* moved = reallocate_large(p, size, slot);
      tell_soft_limits();
      if (moved != nullptr) return moved;
    }
  }
  void* copy = allocate(size, kGranule, slot);
  if (copy == nullptr) return nullptr;
  memcpy(copy, p, old_size < size ? old_size : size);
  free(p, kUnknown, slot);
  return copy;
}

// --- Freeing.

template <class P>
HeapFree Heap<P>::look_at(const void* p, Bytes size) const {
  if (is_surely_good(p, size)) return {Verdict::kGood};
  if (const Verdict verdict = find(p); verdict != Verdict::kGood) return {verdict};
  return size != kUnknown || is_checked_ ? check_signature(p, size) : HeapFree{Verdict::kGood};
}

template <class P>
HeapFree Heap<P>::free(void* p, Bytes size, Slot& slot) {
  if (const HeapFree wrong = look_at(p, size); wrong.verdict != Verdict::kGood) return wrong;
  Kind* kind = kind_at(p);
  if (kind != nullptr && !engine_.pointers().check_in(p)) return {Verdict::kFreedAlready};
  kind != nullptr ? Objects::free(engine_.world(), *kind, static_cast<Object*>(p), slot)
                  : free_large(p, slot);
  return {Verdict::kGood};
}

template <class P>
Verdict Heap<P>::find(const void* p) const {
  const Family* family = engine_.kinds().family_of(p);
  if (family == nullptr) {
    const Verdict verdict = engine_.pointers().find(p).verdict;
    return verdict == Verdict::kGood ? Verdict::kOfMalloc : verdict;
  }
  if (family != &family_) return Verdict::kOfKind;
  const Kind* kind = kind_at(p);
  if (kind == nullptr)
    return engine_.world().region.distance(p) % kBlockSize == 0 ? Verdict::kGood
                                                                : Verdict::kNotAStart;
  if (!engine_.kinds().is_start_of(*kind, p)) return Verdict::kNotAStart;
  return engine_.pointers().is_out(p) ? Verdict::kGood : Verdict::kFreedAlready;
}

template <class P>
Bytes Heap<P>::usable_size(const void* p) const {
  const Kind* kind = kind_at(p);
  const Bytes real = kind != nullptr ? kind->size : engine_.kinds().large_bytes(p);
  if (!is_checked_) return real;
  uint64_t size;
  memcpy(&size, static_cast<const std::byte*>(p) + real - kTail, kTail);
  return size <= real - kTail ? size : real - kTail;
}

// With checked=1: writes the size at the end of the object, and the pattern before it.
template <class P>
void Heap<P>::sign(void* p, Bytes size) {
  const Kind* kind = kind_at(p);
  const Bytes real = kind != nullptr ? kind->size : engine_.kinds().large_bytes(p);
  memset(static_cast<std::byte*>(p) + size, kPattern, real - kTail - size);
  const uint64_t word = size;
  memcpy(static_cast<std::byte*>(p) + real - kTail, &word, kTail);
}

template <class P>
HeapFree Heap<P>::check_signature(const void* p, Bytes size) const {
  const Kind* kind = kind_at(p);
  const Bytes real = kind != nullptr ? kind->size : engine_.kinds().large_bytes(p);
  if (!is_checked_)
    return size > real ? HeapFree{Verdict::kWrongSize, real} : HeapFree{Verdict::kGood};
  uint64_t word;
  memcpy(&word, static_cast<const std::byte*>(p) + real - kTail, kTail);
  if (word > real - kTail) return {Verdict::kOverrun};
  for (Bytes i = word; i < real - kTail; ++i)
    if (static_cast<const unsigned char*>(p)[i] != kPattern) return {Verdict::kOverrun};
  if (size != kUnknown && word != size) return {Verdict::kWrongSize, word};
  return {Verdict::kGood};
}

// --- Large objects.

template <class P>
void* Heap<P>::allocate_large(Bytes size, Bytes alignment, Slot& slot) {
  // The budget is charged once the memory is there. So memory that is not available raises no peak,
  // passes no soft limit, and takes no room from other threads.
  const Bytes bytes = bytes_of(blocks_for(size));
  if (bytes < size || !budget_.may_take(bytes)) return nullptr;
  larges_.fetch_add(1, std::memory_order_relaxed);
  bool zeroed;
  void* p = engine_.kinds().allocate_large(family_, size, alignment, slot, zeroed);
  if (p != nullptr && budget_.take(bytes, 1) == 0) {
    engine_.kinds().free_large(p, slot);
    p = nullptr;
  }
  if (p == nullptr) {
    larges_.fetch_sub(1, std::memory_order_relaxed);
    return nullptr;
  }
  large_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  return p;
}

template <class P>
void* Heap<P>::reallocate_large(void* p, Bytes size, Slot& slot) {
  const Bytes before = engine_.kinds().large_bytes(p);
  const Bytes wanted = bytes_of(blocks_for(size));
  if (wanted < size || (wanted > before && !budget_.may_take(wanted - before))) return nullptr;
  void* moved = engine_.kinds().resize_large(p, size, budget_, slot);
  const Bytes after = engine_.kinds().large_bytes(moved != nullptr ? moved : p);
  large_bytes_.fetch_add(after - before, std::memory_order_relaxed);
  return moved;
}

template <class P>
void Heap<P>::free_large(void* p, Slot& slot) {
  const Bytes bytes = engine_.kinds().large_bytes(p);
  budget_.give(bytes);
  large_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  engine_.kinds().free_large(p, slot);
  larges_.fetch_sub(1, std::memory_order_relaxed);
}

// Large objects are in no list. They are found in the page map, so neither a handler nor a fork
// meets a list that is half changed.
template <class P>
template <class Visitor>
void Heap<P>::for_each_large(Visitor visit) {
  uint64_t left = larges_.load(std::memory_order_relaxed);
  if (left != 0)
    engine_.kinds().for_each_large(family_, [&](void* p) { return visit(p) || --left == 0; });
}

// --- All of it.

template <class P>
template <class Visitor>
bool Heap<P>::walk(Slot& slot, Visitor visit) {
  engine_.kinds().gather(family_, slot, true);
  bool complete = true;
  int stop = 0;
  for_each_class([&](Kind& kind) {
    if (stop != 0 || !complete) return;
    complete = engine_.kinds().for_each_slab(kind, slot, [&](const Slab* slab) {
      if (stop == 0)
        stop = engine_.kinds().for_each_live(kind, slab,
                                             [&](void* p) { return visit(p, usable_size(p)); });
    });
  });
  if (stop == 0 && complete)
    for_each_large([&](void* p) { return (stop = visit(p, usable_size(p))) != 0; });
  return complete;
}

template <class P>
HeapCount Heap<P>::count(Slot& slot) {
  HeapCount all{};
  for_each_class([&](Kind& kind) {
    const auto count = engine_.kinds().count(kind, slot);
    all.objects += count.live();
    all.bytes += count.live() * kind.size;
    all.slab_bytes += bytes_of(static_cast<BlockCount>(count.slabs) * kind.blocks);
  });
  all.objects += larges_.load(std::memory_order_relaxed);
  all.bytes += large_bytes_.load(std::memory_order_relaxed);
  all.slab_bytes += large_bytes_.load(std::memory_order_relaxed);
  return all;
}

template <class P>
Bytes Heap<P>::trim(Slot& slot) {
  const auto slab_bytes = [&] {
    Bytes bytes = 0;
    for_each_class([&](const Kind& kind) {
      bytes += bytes_of(kind.slabs.load(std::memory_order_relaxed) * kind.blocks);
    });
    return bytes;
  };
  const Bytes before = slab_bytes();
  engine_.kinds().gather(family_, slot, false);
  const Bytes after = slab_bytes();
  return after < before ? before - after : 0;
}

template <class P>
template <class Gone>
uint64_t Heap<P>::end(Slot& slot, Gone gone) {
  uint64_t objects = 0;
  while (children_ != nullptr) objects += children_->end(slot, gone);
  engine_.safepoints().make_calls_of(reinterpret_cast<void*>(family_.handle), slot);
  family_.its_handle().store(0, std::memory_order_relaxed);
  engine_.kinds().relabel(family_, 0);  // the place may soon be another heap's
  leave_parent(slot);
  for_each_large([&](void* p) {
    ++objects;
    free_large(p, slot);
    return false;
  });
  const bool all = engine_.kinds().dissolve(
      family_, slot, [&](const Kind&, const Slab* slab) { objects += slab->used(); });
  if (!all) return objects;  // lanes that could not be reached still know the kinds
  for (auto& place : kinds_)
    if (Kind* kind = place.exchange(nullptr, std::memory_order_relaxed)) source_.give(kind);
  gone(*this);
  return objects;
}

}  // namespace lanemalloc
