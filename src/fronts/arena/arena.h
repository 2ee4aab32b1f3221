// Arena: what the functions of include/lanemalloc/arena.h do beyond a hit. Called by:
// abi/arena.cpp. Locking: none; only one thread at a time uses an arena.
//
//   lane_arena --blocks--> [older | piece | piece | next .. end) --older--> [older | piece ..]
//              --> .. --> null
//              --large---> [older, its number | piece] --> ..     each with memory of its own
//              --ends----> [older, function, object] --> ..       pieces themselves
//
// An arena's blocks are objects like any others: lanes hand them out and take them back, and thread
// exit, fork and the scavenger treat them as such. They are linked as Misses::free_chain() needs
// them.
#pragma once

#include "core/engine/engine.h"
#include "lanemalloc/arena.h"

struct alignas(lanemalloc::kGranule) lane_arena_block : lanemalloc::Chained {};  // next: older

struct alignas(lanemalloc::kGranule) lane_arena_large {
  lane_arena_large* older;
  size_t number;  // how many large pieces the arena has made, up to this one
  char* piece;    // behind this struct, and aligned
  size_t bytes;   // with this struct
};

struct lane_arena_end {
  lane_arena_end* older;
  void (*end)(void* object);
  void* object;
};

namespace lanemalloc {

template <class P>
class Arena {
 public:
  static constexpr Bytes kDefaultBlock = Bytes{8} << 10;
  static constexpr Bytes kLeastBlock = 256;
  static constexpr Bytes kMostBlock = kSlabMax;

  Arena(lane_arena& arena, Engine<P>& engine, Slot& slot)
      : arena_(arena), engine_(engine), slot_(slot) {}

  // False: the block size is not allowed, and nothing has changed.
  static bool start(lane_arena& arena, Bytes block_size) {
    if (block_size == 0) block_size = kDefaultBlock;
    if (block_size < kLeastBlock || block_size > kMostBlock) return false;
    arena = lane_arena{};
    arena.block_size = size_of(class_of(block_size));
    return true;
  }

  // Null: there is no memory, and the arena is as before.
  void* allocate(Bytes size) { return allocate_aligned(kGranule, size); }
  // alignment: a power of two.
  void* allocate_aligned(Bytes alignment, Bytes size);
  void* reallocate(void* piece, Bytes old_size, Bytes size);
  bool rollback(void* piece, Bytes size);
  bool at_reset(void (*end)(void* object), void* object);

  lane_arena_checkpoint mark() const {
    return {arena_.blocks, arena_.next, arena_.large_made, arena_.ends};
  }
  // False: the arena does not know the checkpoint, and nothing has changed.
  bool rewind(const lane_arena_checkpoint& to);
  void reset();
  void destroy();

 private:
  static char* begin(lane_arena_block* block) { return reinterpret_cast<char*>(block + 1); }
  static char* aligned(char* p, Bytes alignment) {
    return reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(p), alignment));
  }
  static lane_arena_block* older(const lane_arena_block* block) {
    return static_cast<lane_arena_block*>(block->next);
  }
  Bytes room() const { return static_cast<Bytes>(arena_.end - arena_.next); }

  // The piece lies in the newest block, which has room for it.
  void* take(char* piece, Bytes size) {
    arena_.next = aligned(piece + size, kGranule);
    return piece;
  }
  bool is_last(const void* piece, Bytes size) const;
  bool add_block();
  void* allocate_large(Bytes size, Bytes alignment);
  void* resize_large(Bytes size);
  void free_large(lane_arena_large* large);
  void free_large_after(size_t number);
  void call_ends(const lane_arena_end* until);
  bool knows(const lane_arena_checkpoint& point) const;
  void free_after(lane_arena_block* block, char* next);
  void free_all_but_one();
  void free_blocks(lane_arena_block* newest, size_t n);
  void forget(void* from, const void* end) {
    if (UNLIKELY(engine_.world().settings.checked))
      memset(from, kFreedByte,
             static_cast<Bytes>(static_cast<const char*>(end) - static_cast<char*>(from)));
  }

  lane_arena& arena_;
  Engine<P>& engine_;
  Slot& slot_;
};

// --- Allocating.

template <class P>
void* Arena<P>::allocate_aligned(Bytes alignment, Bytes size) {
  if (arena_.block_size == 0) arena_.block_size = kDefaultBlock;
  if (alignment < kGranule) alignment = kGranule;
  char* piece = aligned(arena_.next, alignment);
  const auto padding = static_cast<Bytes>(piece - arena_.next);
  if (padding < room() && size <= room() - padding) return take(piece, size);
  Bytes most;
  if (__builtin_add_overflow(size, alignment - kGranule, &most)) return nullptr;
  if (most > arena_.block_size / 4) return allocate_large(size, alignment);
  return add_block() ? take(aligned(arena_.next, alignment), size) : nullptr;
}

template <class P>
bool Arena<P>::add_block() {
  auto* block = static_cast<lane_arena_block*>(engine_.allocate(arena_.block_size, slot_));
  if (UNLIKELY(block == nullptr)) return false;
  block->next = arena_.blocks;
  arena_.blocks = block;
  ++arena_.block_count;
  arena_.next = begin(block);
  arena_.end = reinterpret_cast<char*>(block) + arena_.block_size;
  return true;
}

template <class P>
void* Arena<P>::allocate_large(Bytes size, Bytes alignment) {
  Bytes bytes;
  if (__builtin_add_overflow(size, sizeof(lane_arena_large) + alignment - kGranule, &bytes))
    return nullptr;
  auto* large = static_cast<lane_arena_large*>(engine_.allocate(bytes, slot_));
  if (UNLIKELY(large == nullptr)) return nullptr;
  *large = {arena_.large, ++arena_.large_made,
            aligned(reinterpret_cast<char*>(large + 1), alignment), bytes};
  arena_.large = large;
  arena_.large_bytes += bytes;
  return large->piece;
}

template <class P>
bool Arena<P>::at_reset(void (*end)(void* object), void* object) {
  auto* node = static_cast<lane_arena_end*>(allocate(sizeof(lane_arena_end)));
  if (UNLIKELY(node == nullptr)) return false;
  *node = {arena_.ends, end, object};
  arena_.ends = node;
  return true;
}

// --- The last piece.

template <class P>
bool Arena<P>::is_last(const void* piece, Bytes size) const {
  if (arena_.blocks == nullptr) return false;
  const auto distance = static_cast<Bytes>(arena_.next - static_cast<const char*>(piece));
  const auto used = static_cast<Bytes>(arena_.next - begin(arena_.blocks));
  return distance <= used && size <= distance && round_up(size, kGranule) == distance;
}

template <class P>
bool Arena<P>::rollback(void* piece, Bytes size) {
  if (lane_arena_large* large = arena_.large; large != nullptr && large->piece == piece) {
    if (reinterpret_cast<char*>(large) + large->bytes - large->piece < static_cast<ptrdiff_t>(size))
      return false;
    free_large(large);
    return true;
  }
  if (!is_last(piece, size)) return false;
  forget(piece, arena_.next);
  arena_.next = static_cast<char*>(piece);
  return true;
}

template <class P>
void* Arena<P>::reallocate(void* piece, Bytes old_size, Bytes size) {
  if (piece == nullptr) return allocate(size);
  if (arena_.large != nullptr && arena_.large->piece == piece) return resize_large(size);
  if (is_last(piece, old_size) &&
      size <= static_cast<Bytes>(arena_.end - static_cast<char*>(piece)))
    return take(static_cast<char*>(piece), size);
  if (size <= round_up(old_size, kGranule)) return piece;
  void* copy = allocate(size);
  if (LIKELY(copy != nullptr)) memcpy(copy, piece, old_size);
  return copy;
}

// Resizes the newest large piece: in place, or moved by the kernel if that is possible.
template <class P>
void* Arena<P>::resize_large(Bytes size) {
  lane_arena_large* large = arena_.large;
  const auto offset = static_cast<Bytes>(large->piece - reinterpret_cast<char*>(large));
  Bytes bytes;
  if (__builtin_add_overflow(size, offset, &bytes)) return nullptr;
  const Found found = engine_.pointers().find(large);
  if (UNLIKELY(found.verdict != Verdict::kGood)) {
    engine_.world().report(found.verdict, large);
    return nullptr;
  }
  large = static_cast<lane_arena_large*>(engine_.reallocate(large, found.word, bytes, slot_));
  if (UNLIKELY(large == nullptr)) return nullptr;
  arena_.large = large;
  arena_.large_bytes += bytes - large->bytes;
  large->bytes = bytes;
  large->piece = reinterpret_cast<char*>(large) + offset;
  return large->piece;
}

// --- Giving back.

template <class P>
bool Arena<P>::rewind(const lane_arena_checkpoint& to) {
  if (!knows(to)) return false;
  call_ends(to.ends);
  free_large_after(to.large_made);
  if (to.block != nullptr) {
    free_after(to.block, to.next);
  } else {
    free_all_but_one();
  }
  return true;
}

template <class P>
void Arena<P>::reset() {
  call_ends(nullptr);
  free_large_after(0);
  free_all_but_one();
}

template <class P>
void Arena<P>::destroy() {
  call_ends(nullptr);
  free_large_after(0);
  free_blocks(arena_.blocks, arena_.block_count);
  arena_.blocks = nullptr;
  arena_.block_count = 0;
  arena_.next = arena_.end = nullptr;
}

template <class P>
bool Arena<P>::knows(const lane_arena_checkpoint& point) const {
  const lane_arena_end* end = arena_.ends;
  while (end != point.ends && end != nullptr) end = end->older;
  if (end != point.ends || point.large_made > arena_.large_made) return false;
  const lane_arena_block* block = arena_.blocks;
  while (block != point.block && block != nullptr) block = older(block);
  if (block == nullptr) return point.block == nullptr;
  // In the newest block nothing lies behind arena_.next: what lay there has been given back.
  const Bytes most = block == arena_.blocks ? static_cast<Bytes>(arena_.next - begin(arena_.blocks))
                                            : arena_.block_size - sizeof(lane_arena_block);
  const auto place = static_cast<Bytes>(point.next - begin(point.block));
  return place <= most && place % kGranule == 0;
}

// A function may use the arena, and may register other functions.
template <class P>
void Arena<P>::call_ends(const lane_arena_end* until) {
  while (arena_.ends != until && arena_.ends != nullptr) {
    const lane_arena_end* node = arena_.ends;
    arena_.ends = node->older;
    node->end(node->object);
  }
}

template <class P>
void Arena<P>::free_large_after(size_t number) {
  while (arena_.large != nullptr && arena_.large->number > number) free_large(arena_.large);
}

// large: the newest one.
template <class P>
void Arena<P>::free_large(lane_arena_large* large) {
  arena_.large = large->older;
  arena_.large_bytes -= large->bytes;
  forget(large, reinterpret_cast<char*>(large) + large->bytes);
  const Verdict verdict = engine_.free(large, slot_);
  if (UNLIKELY(verdict != Verdict::kGood)) engine_.world().report(verdict, large);
}

// Frees all blocks but the newest, and empties that one.
template <class P>
void Arena<P>::free_all_but_one() {
  if (arena_.blocks == nullptr) return;
  lane_arena_block* const rest = older(arena_.blocks);
  const size_t n = arena_.block_count - 1;
  arena_.blocks->next = nullptr;
  arena_.block_count = 1;
  forget(begin(arena_.blocks), arena_.next);
  arena_.next = begin(arena_.blocks);
  free_blocks(rest, n);
}

// Gives back what lies behind `next` in the block, and all newer blocks.
template <class P>
void Arena<P>::free_after(lane_arena_block* block, char* next) {
  lane_arena_block* const newest = arena_.blocks;
  size_t newer = 0;
  for (; arena_.blocks != block; arena_.blocks = older(arena_.blocks)) ++newer;
  char* const end = reinterpret_cast<char*>(block) + arena_.block_size;
  forget(next, newer == 0 ? arena_.next : end);
  arena_.next = next;
  arena_.end = end;
  arena_.block_count -= newer;
  free_blocks(newest, newer);
}

template <class P>
void Arena<P>::free_blocks(lane_arena_block* newest, size_t n) {
  if (n == 0) return;
  const void* bad;
  const Verdict verdict = engine_.free_chain(newest, n, slot_, bad);
  if (UNLIKELY(verdict != Verdict::kGood)) engine_.world().report(verdict, bad);
}

}  // namespace lanemalloc
