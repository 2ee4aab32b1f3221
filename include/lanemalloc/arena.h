/** @file
 * Arenas: pieces that are given back together, at a reset. An allocation is eight instructions in
 * line. Blocks come from the calling thread's lane and go back to the lanes that they came from.
 * Link with liblanemalloc.so, .a or liblanemalloc_prefixed.a. C11 and C++17. docs/arenas.md has a
 * complete example.
 *
 * For every function here, where not said otherwise:
 * - sizes: in bytes; pieces are aligned to 16 bytes, and belong to the arena until reset, rewind or
 *   destroy
 * - errors: a null return, and errno = ENOMEM
 * - threads: an arena is used by one thread at a time; it may be handed on, and reset or destroyed
 *   by another
 * - signals: not in handlers that may interrupt a use of the same arena
 * - fork: the child may go on with every arena
 *
 * Source: Apache Traffic Server's arenas; obstacks. */
#ifndef LANEMALLOC_ARENA_H
#define LANEMALLOC_ARENA_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** An arena lies where the program wants it, on the stack too. All zero is an empty arena with
 * blocks of 8 KiB. Its words are the library's. */
struct lane_arena {
  char* next;                      /**< the next piece, aligned to 16 */
  char* end;                       /**< of the newest block, aligned to 16 */
  struct lane_arena_block* blocks; /**< newest first */
  struct lane_arena_large* large;  /**< pieces with memory of their own, newest first */
  struct lane_arena_end* ends;     /**< functions to call at the reset, newest first */
  size_t block_size;               /**< bytes, with their header; 0: 8 KiB */
  size_t block_count;              /**< blocks that the arena holds */
  size_t large_bytes;              /**< of the large pieces, with their headers */
  size_t large_made;               /**< large pieces so far */
};

/** Makes an arena empty. What it held before is forgotten, not given back.
 *
 * block_size: 256 bytes .. 512 KiB, with 16 for the block's header; rounded up to what malloc has
 * for it; 0: 8 KiB. Returns 0, or EINVAL, and then the arena is not touched. */
int lane_arena_init(struct lane_arena* arena, size_t block_size);

/** Gives everything back but one block, after the functions registered by lane_arena_at_reset(),
 * newest first.
 *
 * Operations on words that threads share, beyond what entering a lane takes (none, where lanes
 * belong to threads): none for blocks of the thread's own lane; for blocks of other lanes at most
 * one for each lane, however many blocks; for each large piece those of free(). With checked=1 what
 * is given back is filled with 0xFD. */
void lane_arena_reset(struct lane_arena* arena);

/** As lane_arena_reset(), and the last block; the arena is empty then, and may be used again. */
void lane_arena_destroy(struct lane_arena* arena);

/** A piece. What does not fit into the newest block begins another one, or, beyond a quarter of a
 * block, has memory of its own. Size 0 gives a pointer that is not null; it may be the next piece's
 * too. */
static inline void* lane_arena_alloc(struct lane_arena* arena, size_t size);

/** A zeroed piece of count * size bytes; an overflow is ENOMEM. */
void* lane_arena_alloc_zeroed(struct lane_arena* arena, size_t count, size_t size);

/** A piece with an alignment of its own, in bytes: a power of two, else EINVAL. */
void* lane_arena_alloc_aligned(struct lane_arena* arena, size_t alignment, size_t size);

/** Grows or shrinks the last piece in place, if it fits, and the newest that has memory of its own
 * as realloc() does; else copies what grows. Null: allocates. On failure the piece is as before.
 *
 * old_size: what the piece was last asked for with. The result is aligned to 16. */
void* lane_arena_realloc(struct lane_arena* arena, void* piece, size_t old_size, size_t size);

/** Takes the last piece back, of the size that it was asked for with, or the newest that has memory
 * of its own. 1 if it was that, else 0 and nothing changed. */
int lane_arena_rollback(struct lane_arena* arena, void* piece, size_t size);

/** A copy of the text. */
char* lane_arena_strdup(struct lane_arena* arena, const char* text);

/** A copy of the text's first bytes, at most so many, with a final zero behind them. */
char* lane_arena_strndup(struct lane_arena* arena, const char* text, size_t most);

/** A copy of so many bytes. */
void* lane_arena_memdup(struct lane_arena* arena, const void* bytes, size_t size);

/** All texts (const char*) up to a null pointer, one behind the other. */
char* lane_arena_concat(struct lane_arena* arena, ...) __attribute__((sentinel));

/** What printf() would print, as a text. Null, too, with its errno, where printf() fails. */
char* lane_arena_printf(struct lane_arena* arena, const char* format, ...)
    __attribute__((format(printf, 2, 3)));

/** As lane_arena_printf(), of a list of arguments, as vprintf(). */
char* lane_arena_vprintf(struct lane_arena* arena, const char* format, va_list arguments)
    __attribute__((format(printf, 2, 0)));

/** Has end(object) called before the memory goes: at a reset, a rewind to before this, or destroy.
 * It may use the arena. Returns 0 or ENOMEM. */
int lane_arena_at_reset(struct lane_arena* arena, void (*end)(void* object), void* object);

/** A place in an arena to come back to. Its words are the library's. */
struct lane_arena_checkpoint {
  struct lane_arena_block* block; /**< the newest then */
  char* next;                     /**< the next piece then */
  size_t large_made;              /**< large pieces then */
  struct lane_arena_end* ends;    /**< the newest function then */
};

/** The place where the arena is now. No errors. */
struct lane_arena_checkpoint lane_arena_mark(const struct lane_arena* arena);

/** Gives back everything since the checkpoint, after the functions that were registered since.
 * Checkpoints nest; a rewind makes later ones invalid, and so does a reset. One that is not in the
 * arena (its block, its place in the newest block, or its newest function) is one line on standard
 * error that names both, and abort(), or what the option bad_pointer says; then nothing has
 * changed. One of which all three are there again cannot be told from a good one. */
void lane_arena_rewind(struct lane_arena* arena, struct lane_arena_checkpoint checkpoint);

/** Bytes that the arena holds, in blocks and large pieces. */
static inline size_t lane_arena_bytes(const struct lane_arena* arena) {
  return arena->block_count * arena->block_size + arena->large_bytes;
}

/** All that a hit of lane_arena_alloc() does not do. For languages that do not read this file. */
void* lane_arena_alloc_out_of_line(struct lane_arena* arena, size_t size);

/* --- How a hit works. */

static inline void* lane_arena_alloc(struct lane_arena* arena, size_t size) {
  char* piece = arena->next;
  /* Not where the piece would end with the block either: then one test is enough for an arena that
   * has none. */
  if (__builtin_expect(size >= (size_t)(arena->end - piece), 0))
    return lane_arena_alloc_out_of_line(arena, size);
  arena->next = (char*)(((uintptr_t)piece + size + 15) & ~(uintptr_t)15);
  return piece;
}

#ifdef __cplusplus
}
#endif

#endif
