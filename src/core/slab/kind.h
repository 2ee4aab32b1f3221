// Kind: a size class of the program's own, for the objects of a pool, or for those of one size of a
// heap. Its slabs are cut, owned, sent and kept as malloc's are, and lie apart from them.
// Budget: how many bytes kinds may cut from their slabs, and have cut. Bin: what a lane has of a
// kind.
// Called by: slab, lane, engine, heap, pool. Locking: what is not atomic is set before use, or
// under the depot's lock.
//
//   pool --> kind --> place in every lane's area:  [bin]
//   heap --> kinds -> place in every lane's area:  [table] --> [bin of class 1 | of class 2 | ..]
//   beside it the family's label, if it has a bin or table there (core/slab/handle.h)
//
// If a free object's contents must stay as they are (init and fini), its links lie behind them.
// Then an Object is the place `link` bytes into the memory that the program knows.
#pragma once

#include "core/base/contention.h"
#include "core/memory/region.h"
#include "core/slab/handle.h"
#include "core/slab/object.h"

namespace lanemalloc {

struct Slab;
struct Kind;

// Bytes cut from slabs, here and by the children. Every step is one compare-exchange that looks at
// the limit, so the limit holds at any time.
class Budget {
 public:
  static constexpr Bytes kNone = ~Bytes{0};

  void start(Budget* parent, Bytes limit, Bytes soft) {
    parent_ = parent;
    set_limits(limit, soft);
  }
  void set_limits(Bytes limit, Bytes soft) {
    limit_.store(limit, std::memory_order_relaxed);
    soft_.store(soft, std::memory_order_relaxed);
  }

  // Takes n <= most pieces of `size` bytes, as many as all limits allow, and returns n. Peaks and
  // soft limits count only what was taken.
  uint32_t take(Bytes size, uint32_t most) {
    for (uint32_t n = most; n > 0;) {
      const Bytes bytes = n * size;
      // Look first: what a parent refuses should not take room here from other threads, not even
      // for a moment.
      const Budget* refused = parent_ != nullptr ? refuser(bytes) : nullptr;
      if (refused == nullptr && (refused = charge(bytes)) == nullptr) return n;
      const Bytes used = refused->used(), limit = refused->limit();
      const uint64_t left = used < limit ? (limit - used) / size : 0;
      n = left < n - 1 ? static_cast<uint32_t>(left) : n - 1;
    }
    return 0;
  }
  void give(Bytes bytes) {
    for (Budget* b = this; b != nullptr; b = b->parent_) b->subtract(bytes);
  }
  bool may_take(Bytes bytes) const { return refuser(bytes) == nullptr; }

  Budget* parent() const { return parent_; }
  Bytes used() const { return used_.load(std::memory_order_relaxed); }
  Bytes limit() const { return limit_.load(std::memory_order_relaxed); }
  Bytes soft() const { return soft_.load(std::memory_order_relaxed); }
  Bytes peak() const { return peak_.load(std::memory_order_relaxed); }
  // True once after the soft limit was passed.
  bool take_passed() {
    return passed_.load(std::memory_order_relaxed) &&
           passed_.exchange(false, std::memory_order_relaxed);
  }

 private:
  SHOWN_BY_LAYOUT;

  static bool has_room(Bytes bytes, Bytes used, Bytes limit) {
    return bytes <= limit && used <= limit - bytes;
  }
  // The first budget without room among this one and its parents. Null: all have room.
  const Budget* refuser(Bytes bytes) const {
    for (const Budget* b = this; b != nullptr; b = b->parent_)
      if (!has_room(bytes, b->used(), b->limit())) return b;
    return nullptr;
  }
  // Adds the bytes here and to the parents, or nowhere: then returns the budget that has refused.
  const Budget* charge(Bytes bytes) {
    Bytes before;
    if (!add(bytes, before)) return this;
    if (const Budget* refused = parent_ != nullptr ? parent_->charge(bytes) : nullptr;
        refused != nullptr) {
      const Bytes now = used_.fetch_sub(bytes, std::memory_order_relaxed) - bytes;
      // Another thread has passed the soft limit meanwhile, but with these bytes counted it seemed
      // passed already.
      if (before <= soft() && now > soft()) passed_.store(true, std::memory_order_relaxed);
      return refused;
    }
    const Bytes after = before + bytes;
    Bytes peak = this->peak();
    while (peak < after && !peak_.compare_exchange_weak(peak, after, std::memory_order_relaxed))
      tries_.failed();
    if (before <= soft() && after > soft()) passed_.store(true, std::memory_order_relaxed);
    return nullptr;
  }
  bool add(Bytes bytes, Bytes& before) {
    before = used();
    do {
      if (!has_room(bytes, before, limit())) return false;
    } while (!used_.compare_exchange_weak(before, before + bytes, std::memory_order_relaxed) &&
             tries_.failed());
    tries_.done();
    return true;
  }
  void subtract(Bytes bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }

  Budget* parent_ = nullptr;
  std::atomic<Bytes> used_{0};
  std::atomic<Bytes> peak_{0};
  std::atomic<Bytes> limit_{kNone};
  std::atomic<Bytes> soft_{kNone};
  std::atomic<bool> passed_{false};
  Tries<> tries_;
};

// What a lane has of a kind. A hit reads the first three words (include/lanemalloc/pool.h).
struct Bin {
  BinHead hit;  // free objects of the current slab; its reach is the slab's first block
  SlabList partial;
  SlabList full;  // listed so that every slab can be found
  std::atomic<Kind*> kind;
  Bin* next;  // in the list of the lane's bins
  std::atomic<int64_t>
      in_flight;  // objects sent from here, minus those received; without slabs: how many are here

  // `begin`: of the new current slab, or 0 if there is none. No object waits in the bin.
  void set_slab(Address begin) {
    hit.end = begin != 0 ? begin + BinHead::kReach : 0;
    hit.end_link = begin != 0 ? Link::to(hit.end).bits : 0;
    hit.first = begin != 0 ? Link::none().bits : 0;
  }
  // The address of the current slab; 0 if there is none.
  Address begin() const { return hit.end != 0 ? hit.end - BinHead::kReach : 0; }
  bool is_empty() const { return hit.first == hit.end_link - hit.end; }
  Object* pop() {
    Object* object = pop_hit(hit);
    return LIKELY(object != nullptr) || is_empty() ? object : pop_beyond();
  }
  // Frees the object if it lies where a hit may free it.
  FAST bool push(Object* object) { return push_hit(hit, object); }
  // current: the slab at begin(), if there is one.
  template <class Visit>
  void for_each_slab(Slab* current, Visit visit) const {
    if (current != nullptr) visit(current);
    partial.for_each(visit);
    full.for_each(visit);
  }

 private:
  // The object lies beyond the slab's first block, or the list is damaged.
  inline Object* pop_beyond();
};
static_assert(sizeof(Bin) == Labels::kBinBytes && BinHead::kReach == kBlockSize);

// What kinds belong to: a heap or a pool.
struct Family {
  enum class Type : uint8_t { kHeap, kPool };

  Type type;
  char name[32];
  void* front = nullptr;                   // the heap or pool
  uint32_t offset = 0;                     // of its bins in lanes' areas
  Handle handle = 0;                       // what the program holds
  std::atomic<Handle> handles[2]{};        // by type: the same while the family is live; else 0
  std::atomic<Handle> label{0};            // what lanes have among their labels; 0: no hits
  std::atomic<Kind*> kinds{nullptr};       // linked by Kind::next; they are only added
  Family* next = nullptr;                  // in the list of all families
  const Contention* contention = nullptr;  // of a pool's lock
  // In a fork child: what other threads were doing with the family is over. who: the slot of the
  // thread that has forked.
  void (*forget_threads)(Family& family, const void* who) = nullptr;

  bool is_heap(Handle its) const {
    return handles[static_cast<size_t>(Type::kHeap)].load(std::memory_order_relaxed) == its;
  }
  bool is_live() const { return handles[index()].load(std::memory_order_relaxed) != 0; }
  std::atomic<Handle>& its_handle() { return handles[index()]; }
  size_t index() const { return static_cast<size_t>(type); }
  // acquire: the kind is whole. Pairs with [kinds.add].
  Kind* first_kind() const { return kinds.load(std::memory_order_acquire); }
};

// A heap's table has a bin for each 16 bytes up to 1 KiB, so that a hit finds it without a table of
// classes. Then it has one for each of malloc's classes. Bin 0 is always empty, so requests of 0
// bytes miss.
inline constexpr unsigned kFirstClassBeyond = index_of(class_of(kSmallMax)) + 1;
inline constexpr unsigned kTableBins = kSmallIndexes + 1 + kClassCount - kFirstClassBeyond;

// For 0 < size <= kSlabMax.
constexpr unsigned table_index(Bytes size) {
  if (size <= kSmallMax) return static_cast<unsigned>(small_index(size));
  return kSmallIndexes + 1 + index_of(class_of(size)) - kFirstClassBeyond;
}
constexpr Bytes table_size(unsigned index) {
  if (index <= kSmallIndexes) return index * kGranule;
  return size_of(static_cast<SizeClass>(index - kSmallIndexes - 1 + kFirstClassBeyond));
}
static_assert(table_size(table_index(kSmallMax + 1)) == size_of(class_of(kSmallMax + 1)));
static_assert(table_index(kSlabMax) == kTableBins - 1);

// What a program asks for by handle: the bin of its pool, or of a size of its heap. The value may
// be no handle at all.
struct PoolHit {
  Handle handle;
};
struct HeapHit {
  Handle handle;
  uint32_t index;  // in the table
};

// The place of a kind's bin in every lane's area.
struct BinPlace {
  static constexpr uint32_t kNoIndex = ~0u;

  uint32_t offset = 0;        // bytes into the area: the family's place
  uint32_t index = kNoIndex;  // in the table there; kNoIndex: the bin lies in the place itself
};

struct Kind : BinPlace {
  static constexpr uint32_t kFirstBatch = 32;
  static constexpr uint32_t kMostBatch = 256;

  uint32_t size = 0;  // from one object to the next
  // Objects in a slab. 0: the kind has no slabs, and its objects lie elsewhere
  uint32_t capacity = 0;
  Starts starts;
  uint32_t chunk = 0;   // objects carved at a time
  uint32_t blocks = 0;  // of a slab
  uint32_t link = 0;    // where in an object the links lie
  // A word behind the links tells whether the object has been initialized
  bool is_tagged = false;
  std::atomic<bool> keeps{false};  // only reclaim gives empty slabs back
  Budget* budget = nullptr;
  Family* family = nullptr;
  Kind* next = nullptr;  // in the family's list

  // How many objects of another lane a lane collects before it sends them. The number grows as
  // senders meet.
  std::atomic<uint32_t> batch{kFirstBatch};
  std::atomic<bool> strays{false};  // some objects may lie in lanes that have no bin of this kind

  // What lanes write. It lies apart from the above, which every operation reads.
  alignas(kNoSharing) std::atomic<uint64_t> contended{0};
  std::atomic<uint64_t> refills{0};
  // Objects sent by lanes that had no memory for a bin, minus those that the depot took in.
  std::atomic<int64_t> in_flight{0};

  std::atomic<uint32_t> slabs{0};  // how many there are

  // Slabs that no lane owns.
  SlabList depot;
  std::atomic<uint32_t> depot_count{0};

  // align: the alignment of every object, a power of two up to a block. bytes: the size of an
  // object with its links, at most kSlabMax.
  void set_size(Bytes bytes, Bytes align) {
    size = static_cast<uint32_t>(round_up(bytes, align));
    blocks = size_class_tables::slab_blocks(size);
    capacity = static_cast<uint32_t>(bytes_of(blocks) / size);
    starts = {static_cast<uint32_t>(size), capacity};
    chunk = size >= 4096 ? 1 : 8192 / size;
  }

  // For objects with tags: the word that says whether the object has been initialized.
  uint64_t& tag_of(Object* object) const { return *reinterpret_cast<uint64_t*>(object + 1); }

  void met_contention() {
    contended.fetch_add(1, std::memory_order_relaxed);
    const uint32_t now = batch.load(std::memory_order_relaxed);
    if (now < kMostBatch) batch.store(now * 2, std::memory_order_relaxed);
  }
};

inline Object* Bin::pop_beyond() {
  const Kind& its = *kind.load(std::memory_order_relaxed);
  Object* object = Extent{begin(), bytes_of(its.blocks)}.follow({hit.first});
  if (object == nullptr) return nullptr;
  hit.first = object->next.bits;
  return object->out();
}

// All heaps and pools, and their places in lanes' areas. Locking: the depot's lock. for_each() may
// also run in a fork child, where no thread holds that lock, since each step of a change is one
// store.
class KindTable {
 public:
  static constexpr uint32_t kPlaceBytes = sizeof(Bin);

  explicit constexpr KindTable(Bytes area)
      : places_(static_cast<uint32_t>((area - Labels::kBins) / kPlaceBytes)) {}

  // False: there are too many.
  bool add(Family& family) {
    for (uint32_t i = 1; i < places_; ++i) {
      uint64_t& word = taken_[i / 64];
      if ((word >> (i % 64) & 1) != 0) continue;
      word |= uint64_t{1} << (i % 64);
      family.offset = static_cast<uint32_t>(Labels::kBins + i * kPlaceBytes);
      family.handle = make_handle(i, ++generation_);
      family.its_handle().store(family.handle, std::memory_order_relaxed);
      family.next = first_;
      first_ = &family;
      // release: a thread that finds the family finds its handle. Pairs with [find].
      by_number_[i].store(&family, std::memory_order_release);
      return true;
    }
    return false;
  }
  void remove(Family& family) {
    Family** link = &first_;
    while (*link != nullptr && *link != &family) link = &(*link)->next;
    if (*link == nullptr) return;  // add() has refused it
    *link = family.next;
    const uint32_t i = number_of(family.handle);
    by_number_[i].store(nullptr, std::memory_order_relaxed);
    taken_[i / 64] &= ~(uint64_t{1} << (i % 64));
  }
  template <class Visitor>
  void for_each(Visitor visit) {
    for (Family* family = first_; family != nullptr; family = family->next) visit(*family);
  }

  // Whose handle this is. The handle may be any value. Null: no family of that type has it. Takes
  // no lock.
  Family* find(Handle handle, Family::Type type) const {
    Family* family = find_by_number(handle, type);
    return LIKELY(family != nullptr) ? family
                                     : at(number_of(handle) * sizeof(Handle), handle, type);
  }
  // The same for numbers with labels.
  FAST Family* find_by_number(Handle handle, Family::Type type) const {
    return at(Labels::place(handle) & ~(sizeof(Handle) - 1), handle, type);
  }

  Tries<> kind_tries;  // at lists of kinds

 private:
  SHOWN_BY_LAYOUT;

  static constexpr uint32_t kMost = 2 * Labels::kHits;

  // distance: from the start of by_number_ to the number's word, in bytes. This saves a
  // multiplication.
  FAST Family* at(Bytes distance, Handle handle, Family::Type type) const {
    using Word = std::atomic<Family*>;
    const auto* word =
        reinterpret_cast<const Word*>(reinterpret_cast<const std::byte*>(by_number_) + distance);
    Family* family = word->load(std::memory_order_acquire);  // [find]
    const auto index = static_cast<size_t>(type);
    return LIKELY(family != nullptr &&
                  family->handles[index].load(std::memory_order_relaxed) == handle)
               ? family
               : nullptr;
  }

  Family* first_ = nullptr;
  const uint32_t places_;
  uint64_t generation_ = 0;
  uint64_t taken_[kMost / 64]{};
  std::atomic<Family*> by_number_[kMost]{};
};

}  // namespace lanemalloc
