// Heap: memory that is counted, limited and given back together. A heap has a kind
// (core/slab/kind.h) for each size that it uses, made when the size is first requested. Its large
// objects are found in the page map. What a child heap takes is charged to its parent, too.
// Called by: abi/heaps.cpp. Locking: none but the lanes'. The list of children is changed and read
// while no other thread does the same (Kinds::one_at_a_time).
//
// Hits are compiled into the program (include/lanemalloc/heap.h). What a hit does not do begins
// here.
//
//   parent <--- heap --- children
//                |---- kinds by size ----> bins in the lanes' tables
//                |---- large objects, by their blocks
//                '---- budget ---> the parent's budget
//
// With checked=1 the last word of an object holds the size that was requested, and a pattern fills
// the bytes between the requested ones and that word. So a wrong size, or a byte written behind the
// object, shows when the object is freed.
//
// Source: MoarVM's fixed-size allocator (docs/seeds.md).
#pragma once

#include "core/engine/engine.h"

struct lane_heap;  // what programs call a Heap

namespace lanemalloc {

struct HeapCount {
  uint64_t objects, bytes;  // live
  uint64_t slab_bytes;      // with large objects
};

// What free() finds wrong.
struct HeapFree {
  Verdict verdict;
  Bytes asked = 0;  // with kWrongSize: the size that was requested, or that the object has
};

template <class P>
class Heap {
 public:
  using SoftLimit = void (*)(lane_heap* heap, Bytes used, void* argument);
  // Takes a place for a kind, and gives it back.
  struct KindSource {
    void* (*take)();
    void (*give)(void* kind);
  };

  Heap(Engine<P>& engine, KindSource source, const char* name, Heap* parent);
  bool start(Bytes limit, Bytes soft, SoftLimit on_soft, void* argument, Slot& slot);
  // Makes the frees that wait for a safepoint. Then destroys everything in the heap, and its child
  // heaps. Calls gone(heap) for each heap that is no more. Returns how many objects there were.
  template <class Gone>
  uint64_t end(Slot& slot, Gone gone);

  // alignment: a power of two.
  void* allocate(Bytes size, Bytes alignment, Slot& slot);
  void* allocate_zeroed(Bytes size, Slot& slot);
  // p is a live object of this heap (find).
  void* reallocate(void* p, Bytes size, Slot& slot);

  // size: what was last requested for the object; kUnknown if the caller does not say.
  static constexpr Bytes kUnknown = ~Bytes{0};
  HeapFree free(void* p, Bytes size, Slot& slot);
  // For the owner of a lane, or by CPU; at most kSmallMax bytes. `handle` may be any value. Null or
  // false: nothing has changed.
  FAST static void* allocate_from_bin(Handle handle, Bytes size, Slot& slot) {
    return Objects::take_from_bin(HeapHit{handle, static_cast<uint32_t>(small_index(size))}, slot);
  }
  FAST static bool free_to_batch(Engine<P>& engine, Handle handle, void* p, Bytes size,
                                 Slot& slot) {
    return free_to_batch(engine, p, HeapHit{handle, static_cast<uint32_t>(small_index(size))},
                         slot);
  }
  // The usual case of a free without a size.
  FAST static bool free_to_batch(Engine<P>& engine, Handle handle, void* p, Slot& slot) {
    const Kind* kind = Objects::kind_at(engine.world(), p);
    return LIKELY(kind != nullptr && kind->family->is_heap(handle)) &&
           free_to_batch(engine, p, *kind, slot);
  }

  // Frees the first objects, up to one that is not good or not small. Returns how many it freed.
  // The caller frees the next one, if there is one, by itself.
  size_t free_batch(void** objects, size_t n, Slot& slot) {
    return is_checked_ ? 0 : Objects::free_batch(engine_.world(), family_, objects, n, slot);
  }
  // As in malloc's free, what lies in a slab of this heap is taken for an object.
  FAST bool is_surely_good(const void* p, Bytes size) const {
    const Kind* kind = kind_at(p);
    return !is_checked_ && kind != nullptr && kind->family == &family_ &&
           !static_cast<const Object*>(p)->looks_free() && (size == kUnknown || size <= kind->size);
  }
  // What free() would find wrong.
  HeapFree look_at(const void* p, Bytes size) const;
  // Whether p is a live object of this heap.
  Verdict find(const void* p) const;
  // p is a live object of this heap.
  Bytes usable_size(const void* p) const;

  bool set_limits(Bytes soft, Bytes hard);
  // Calls visit(object, usable size) for each live object, until a call returns a value other than
  // 0. False: there is no memory for notes.
  template <class Visitor>
  bool walk(Slot& slot, Visitor visit);
  HeapCount count(Slot& slot);
  Bytes trim(Slot& slot);

  bool is_live() const { return family_.is_live(); }
  const Family& family() const { return family_; }
  const Budget& budget() const { return budget_; }
  uint64_t limit_failures() const { return limit_failures_.load(std::memory_order_relaxed); }
  uint64_t soft_calls() const { return soft_calls_.load(std::memory_order_relaxed); }

 private:
  template <class Place>
  FAST static bool free_to_batch(Engine<P>& engine, void* p, const Place& place, Slot& slot) {
    const auto look = [&](Gate* gate, Slab* slab) { Misses<P>::look_in_stay(slab, slot, gate); };
    Bin* bin;
    return Objects::free_to_slab_or_batch(engine.world(), place, static_cast<Object*>(p), slot,
                                          look, bin);
  }
  using Objects = KindObjects<P>;

  static constexpr Bytes kTail = sizeof(uint64_t);
  static constexpr unsigned char kPattern = 0xFB;

  void* allocate_once(Bytes size, Bytes alignment, Slot& slot);
  void* allocate_large(Bytes size, Bytes alignment, Slot& slot);
  void* reallocate_large(void* p, Bytes size, Slot& slot);
  void free_large(void* p, Slot& slot);
  Kind* kind_for(unsigned index);
  bool join_parent(Slot& slot);
  void leave_parent(Slot& slot);
  Heap* refuser(Bytes size);
  NOINLINE void gather_tree(Slot& slot);
  void tell_soft_limits();
  void sign(void* p, Bytes size);
  HeapFree check_signature(const void* p, Bytes size) const;
  FAST Kind* kind_at(const void* p) const { return Objects::kind_at(engine_.world(), p); }
  bool is_large(const void* p) const { return kind_at(p) == nullptr; }
  template <class Visitor>
  void for_each_large(Visitor visit);
  template <class Visitor>
  void for_each_class(Visitor visit) {
    for (auto& kind : kinds_)
      if (Kind* k = kind.load(std::memory_order_acquire)) visit(*k);
  }
  template <class Visitor>
  void for_each_in_tree(Visitor visit) {
    visit(*this);
    for (Heap* child = children_; child != nullptr; child = child->sibling_)
      child->for_each_in_tree(visit);
  }

  Engine<P>& engine_;
  const KindSource source_;
  std::atomic<Kind*> kinds_[kTableBins]{};
  Family family_;
  Budget budget_;
  Heap* const parent_;
  SoftLimit on_soft_ = nullptr;
  void* argument_ = nullptr;
  const bool is_checked_;
  std::atomic<uint64_t> limit_failures_{0};
  std::atomic<uint64_t> soft_calls_{0};

  Heap* children_ = nullptr;
  Heap* sibling_ = nullptr;
  std::atomic<uint64_t> larges_{0};  // never fewer than there are
  std::atomic<Bytes> large_bytes_{0};
};

}  // namespace lanemalloc

#include "fronts/heap/heap_work.h"
