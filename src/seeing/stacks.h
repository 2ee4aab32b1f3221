// Stacks: a table of call stacks with counters, which only grows, in memory of its own. Each stack
// stands in it once.
// Called by: Sampler, writers of profiles; readers outside the process (docs/stats-root.md).
// Locking: none.
//
//   area  | table: word per slot, tag and offset | lost | lost | stack | stack | .. | reserved, |
//                                                                               opened in pieces
//                                                records_                   records_ + used_
//   stack | bytes, kind, size | depth, hash | eight counters | frames, innermost first |
//
// A stack is made in three steps. A thread may be stopped between any two of them, in a fork child
// for good:
//   1. [claim]    a compare-exchange of its first word, from 0 to its size and kind, at the place
//                 that used_ names. Then used_ is moved past it by the first thread that comes: the
//                 maker, or the next maker, which finds the place taken.
//   2. [publish]  frames, then the depth.
//   3. [insert]   a compare-exchange of its slot in the table, from 0.
// Why it is right. used_ only grows, and only from a place whose first word is not 0 to the end of
// what that word says. So it is always the end of a stack. A first word that was once claimed is
// never 0 again, so a late claim fails. A reader that has used_ therefore finds a size in every
// first word below it, and steps from stack to stack. A stack that is claimed but not published has
// depth 0 and counters of 0: it adds nothing to any sum. A stack whose frames are not whole has
// depth 0 too, since the depth is written last. Two makers of the same stack meet in step 3. They
// look through the same slots in the same order, and slots never become empty. So the second maker
// finds the first one's stack and leaves its own unused, with counters of 0. A maker that is
// stopped leaves at most such a stack behind; no thread ever waits for it.
//
// If memory or table are full, or if no frames are known, everything goes to the lost stack of its
// kind: one of the first two, with depth 0.
#pragma once

#include "core/base/atomics.h"
#include "core/base/check.h"
#include "core/base/compiler.h"
#include "core/base/contention.h"
#include "core/platform/platform.h"

namespace lanemalloc {

enum class StackKind : uint8_t { kAllocation, kContention };

// What a stack counts.
enum StackCounter : unsigned {
  kAllocatedObjects,
  kAllocatedBytes,
  kFreedObjects,
  kFreedBytes,
  kPeakObjects,  // alive when the process had most (seeing/sampler.h)
  kPeakBytes,
  kTemporaryObjects,  // freed before the thread allocated anything else
  kTemporaryBytes,
  kStackCounters,
  kContentions = kAllocatedObjects,  // in stacks of the other kind
  kDelay = kAllocatedBytes,          // nanoseconds
};

// Sizes of objects, as stacks have them: eight steps for each doubling, so that the size of a class
// is exact, and others are rounded up. 0: not known.
inline uint16_t size_code(Bytes size) {
  if (size < 8) size = 8;
  unsigned shift = 60 - static_cast<unsigned>(__builtin_clzll(size));
  Bytes steps = (size + (Bytes{1} << shift) - 1) >> shift;  // 8 to 16
  if (steps == 16) steps = 8, ++shift;
  return static_cast<uint16_t>((shift << 3 | (steps - 8)) + 1);
}
inline Bytes size_of_code(uint16_t code) {
  return code == 0 ? 0 : (Bytes{8} + ((code - 1u) & 7)) << ((code - 1u) >> 3);
}

// All its words are atomics, since it is read while it is being made.
template <class Atomics = Hardware>
struct BasicStack {
  using Word = typename Atomics::template atomic<uint64_t>;

  Word bytes_and_kind;  // u32: of the stack with its frames; u8 kind; u8 unused; u16 size code
  Word depth_and_hash;  // u32 frames, 0: not known, or not yet; u32 hash
  Word counters[kStackCounters];

  Bytes bytes() const {
    return static_cast<uint32_t>(bytes_and_kind.load(std::memory_order_relaxed));
  }
  StackKind kind() const {
    return static_cast<StackKind>(
        static_cast<uint8_t>(bytes_and_kind.load(std::memory_order_relaxed) >> 32));
  }
  // Of the objects that it allocated; the same frames with another size are another stack.
  uint16_t size() const {
    return static_cast<uint16_t>(bytes_and_kind.load(std::memory_order_relaxed) >> 48);
  }
  // acquire: a thread that sees the depth sees the frames. Pairs with [publish.release].
  unsigned depth() const {
    return static_cast<uint32_t>(depth_and_hash.load(std::memory_order_acquire));
  }
  uint32_t hash() const {
    return static_cast<uint32_t>(depth_and_hash.load(std::memory_order_relaxed) >> 32);
  }
  uint64_t count_of(StackCounter which) const {
    return counters[which].load(std::memory_order_relaxed);
  }
  Address frame(unsigned i) const { return frames()[i].load(std::memory_order_relaxed); }

  Word* frames() { return reinterpret_cast<Word*>(this + 1); }
  const Word* frames() const { return reinterpret_cast<const Word*>(this + 1); }

  bool is(StackKind a_kind, uint16_t a_size, const Address* some, unsigned n) const {
    if (kind() != a_kind || size() != a_size || depth() != n) return false;
    for (unsigned i = 0; i < n; ++i)
      if (frame(i) != some[i]) return false;
    return true;
  }
};
using Stack = BasicStack<>;
static_assert(sizeof(Stack) == 80);

template <class P, class Atomics = Hardware>
class Stacks {
 public:
  using Record = BasicStack<Atomics>;
  static constexpr unsigned kMostFrames = 64;

  // Takes the memory. One caller at a time. Once it has succeeded, further calls do nothing. False
  // if there is no memory.
  bool start() {
    if (records_.load(std::memory_order_relaxed) != 0) return true;
    // A 64th of what the process may have.
    Bytes bytes = kMostBytes;
    while (bytes > kLeastBytes && bytes > P::address_limit() / 64) bytes /= 2;
    for (; bytes >= kLeastBytes; bytes /= 2) {
      const Address area = P::reserve(bytes);
      if (area == 0) continue;
      if (begin(area, bytes)) return true;
      P::release(area, bytes);
      return false;
    }
    return false;
  }

  // The stack of these frames and this size (size_code()). If there is none, it is made. At most
  // kMostFrames frames count. Null before start().
  Record* find_or_make(StackKind kind, const Address* frames, unsigned depth, uint16_t size = 0) {
    // acquire: sees what start() wrote. Pairs with [start.release].
    if (records_.load(std::memory_order_acquire) == 0) return nullptr;
    if (depth == 0) return &lost(kind);
    if (depth > kMostFrames) depth = kMostFrames;
    const uint32_t hash = hash_of(kind, size, frames, depth);
    Record* made = nullptr;
    for (uint32_t probe = 0; probe < kMostProbes; ++probe) {
      Word& slot = slot_at(hash + probe);
      // acquire: sees the stack whole. Pairs with [insert.release].
      uint64_t value = slot.load(std::memory_order_acquire);
      if (value == 0) {
        if (made == nullptr) made = make(kind, size, hash, frames, depth);
        if (made == nullptr) break;
        // release: publishes the stack to threads that look for it [insert.release]. acquire: sees
        // the stack of the thread that came first.
        if (slot.compare_exchange_strong(value, value_of(*made, hash), std::memory_order_acq_rel,
                                         std::memory_order_acquire))
          return made;
      }
      if (value >> 32 == hash && stack_in(value).is(kind, size, frames, depth))
        return &stack_in(value);
    }
    losses_.fetch_add(1, std::memory_order_relaxed);
    return &lost(kind);
  }

  // Calls visit(stack) for each stack, also for unused ones and for the two lost ones.
  template <class Visit>
  void for_each(Visit visit) const {
    if (records_.load(std::memory_order_acquire) == 0) return;  // pairs with [start.release]
    // acquire: sees the first words of all stacks below. Pairs with [claim.release].
    const Bytes used = used_.load(std::memory_order_acquire);
    for (Bytes at = 0; at < used; at += record(at).bytes())
      visit(const_cast<const Record&>(record(at)));
  }
  template <class Visit>
  void for_each(Visit visit) {
    const_cast<const Stacks*>(this)->for_each(
        [&](const Record& stack) { visit(const_cast<Record&>(stack)); });
  }

  // How often a stack was not kept because there was no room.
  uint64_t losses() const { return losses_.load(std::memory_order_relaxed); }
  Address at() const { return records_.load(std::memory_order_relaxed); }
  Bytes bytes() const { return used_.load(std::memory_order_relaxed); }

  // May be called only at rest.
  void check_invariants() const {
    if (records_.load(std::memory_order_acquire) == 0) return;
    const Bytes used = used_.load(std::memory_order_acquire);
    Bytes at = 0;
    while (at < used) {
      const Record& stack = record(at);
      CHECK(stack.bytes() >= sizeof(Record) && stack.bytes() % sizeof(Word) == 0);
      CHECK(stack.depth() == 0 || stack.bytes() == bytes_of_depth(stack.depth()));
      at += stack.bytes();
    }
    CHECK(at == used && used + table_bytes() <= opened_.load(std::memory_order_relaxed));
    for (uint32_t i = 0; i < slots_; ++i) {
      const uint64_t value = slot_at(i).load(std::memory_order_relaxed);
      if (value == 0) continue;
      CHECK(static_cast<uint32_t>(value) >= 2 * sizeof(Record) &&
            static_cast<uint32_t>(value) < used);
      CHECK(stack_in(value).depth() != 0 && stack_in(value).hash() == value >> 32);
      CHECK(((i - stack_in(value).hash()) & (slots_ - 1)) < kMostProbes);
    }
  }

 private:
  SHOWN_BY_LAYOUT;

  using Word = typename Record::Word;
  static constexpr Bytes kMostBytes = Bytes{64} << 20;
  static constexpr Bytes kLeastBytes = kHugePage;
  static constexpr Bytes kBytesPerSlot = 512;  // twice a stack of 20 frames
  static constexpr Bytes kPiece = Bytes{256} << 10;
  static constexpr uint32_t kMostProbes = 64;

  static Bytes bytes_of_depth(unsigned depth) { return sizeof(Record) + depth * sizeof(Word); }

  static uint32_t hash_of(StackKind kind, uint16_t size, const Address* frames, unsigned depth) {
    uint64_t hash = (static_cast<uint64_t>(kind) | uint64_t{size} << 8) + 1;
    for (unsigned i = 0; i < depth; ++i) {
      hash = (hash ^ frames[i]) * 0x9E3779B97F4A7C15;
      hash ^= hash >> 32;
    }
    return static_cast<uint32_t>(hash);
  }

  Record& record(Bytes at) const {
    return *reinterpret_cast<Record*>(records_.load(std::memory_order_relaxed) + at);
  }
  Record& lost(StackKind kind) { return record(static_cast<Bytes>(kind) * sizeof(Record)); }
  Record& stack_in(uint64_t slot_value) const { return record(static_cast<uint32_t>(slot_value)); }
  uint64_t value_of(const Record& stack, uint32_t hash) const {
    return (reinterpret_cast<Address>(&stack) - records_.load(std::memory_order_relaxed)) |
           uint64_t{hash} << 32;
  }
  Bytes table_bytes() const { return slots_ * sizeof(Word); }
  Word& slot_at(uint32_t number) const {
    return reinterpret_cast<Word*>(records_.load(std::memory_order_relaxed) -
                                   table_bytes())[number & (slots_ - 1)];
  }

  bool begin(Address area, Bytes bytes) {
    area_ = area;
    bytes_ = bytes;
    slots_ = static_cast<uint32_t>(bytes / kBytesPerSlot);
    opened_.store(0, std::memory_order_relaxed);
    if (!open_up_to(2 * sizeof(Record))) return false;
    const Address records = area + table_bytes();
    for (uint64_t kind : {0, 1})
      reinterpret_cast<Record*>(records)[kind].bytes_and_kind.store(sizeof(Record) | kind << 32,
                                                                    std::memory_order_relaxed);
    used_.store(2 * sizeof(Record), std::memory_order_relaxed);
    // release: publishes all of this [start.release].
    records_.store(records, std::memory_order_release);
    return true;
  }

  // Makes memory of the records up to that end. Two threads may open the same piece.
  bool open_up_to(Bytes end) {
    end += table_bytes();
    // acquire: a thread that sees it opened may write there. Pairs with the release below.
    Bytes opened = opened_.load(std::memory_order_acquire);
    while (opened < end) {
      if (end > bytes_) return false;
      Bytes next = round_up(end + kPiece, P::page_size());
      if (next > bytes_) next = bytes_;
      if (!P::open(area_ + opened, next - opened)) return false;
      if (opened_.compare_exchange_strong(opened, next, std::memory_order_release,
                                          std::memory_order_acquire))
        return true;
    }
    return true;
  }

  Record* make(StackKind kind, uint16_t size, uint32_t hash, const Address* frames,
               unsigned depth) {
    Record* stack = claim(bytes_of_depth(depth), kind, size);
    if (stack == nullptr) return nullptr;
    for (unsigned i = 0; i < depth; ++i)
      stack->frames()[i].store(frames[i], std::memory_order_relaxed);
    // release: the frames come before the depth. [publish.release]
    stack->depth_and_hash.store(depth | uint64_t{hash} << 32, std::memory_order_release);
    return stack;
  }

  Record* claim(Bytes bytes, StackKind kind, uint16_t size) {
    Bytes at = used_.load(std::memory_order_relaxed);
    for (;;) {
      if (!open_up_to(at + bytes)) return nullptr;
      Record& stack = record(at);
      uint64_t first = 0;
      const bool is_mine = stack.bytes_and_kind.compare_exchange_strong(
          first, bytes | static_cast<uint64_t>(kind) << 32 | uint64_t{size} << 48,
          std::memory_order_relaxed, std::memory_order_relaxed);
      const Bytes next = at + (is_mine ? bytes : static_cast<uint32_t>(first));
      // release: the first word, mine or the one just read, comes before it. [claim.release]
      if (used_.compare_exchange_strong(at, next, std::memory_order_release,
                                        std::memory_order_relaxed))
        at = next;
      if (is_mine) return &stack;
    }
  }

  typename Atomics::template atomic<Address> records_{0};
  typename Atomics::template atomic<Bytes> used_{0};    // of the records
  typename Atomics::template atomic<Bytes> opened_{0};  // of the area
  typename Atomics::template atomic<uint64_t> losses_{0};
  Address area_ = 0;
  Bytes bytes_ = 0;
  uint32_t slots_ = 0;
};

}  // namespace lanemalloc
