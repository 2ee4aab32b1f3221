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
 * - threads: one thread at a time uses an arena; another may use it later, or reset or destroy it
 * - signals: not in handlers that may interrupt a use of the same arena
 * - fork: the child may use every arena
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

/** An arena. The program provides it, on the stack or anywhere else. All zero is an empty arena
 * with blocks of 8 KiB. Its members are the library's. */
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
 * block_size: 256 bytes to 512 KiB, of which 16 are the block's header; rounded up to a size class
 * of malloc. 0: 8 KiB. Returns 0, or EINVAL; then the arena is unchanged. */
int lane_arena_init(struct lane_arena* arena, size_t block_size);

/** Calls the functions that lane_arena_at_reset() has registered, newest first, and then gives
 * everything back but one block.
 *
 * Operations on words that threads share, beyond those of entering a lane (none if lanes belong to
 * threads): none for blocks of the thread's own lane; at most one for each other lane, for any
 * number of blocks; those of free() for each large piece. With checked=1, what is given back is
 * filled with 0xFD. */
void lane_arena_reset(struct lane_arena* arena);

/** As lane_arena_reset(), and gives back the last block too. The arena is empty then, and may be
 * used again. */
void lane_arena_destroy(struct lane_arena* arena);

/** Returns a piece. If it does not fit into the newest block, it begins another one; if it is
 * larger than a quarter of a block, it has memory of its own. Size 0 gives a pointer that is not
 * null, perhaps the same as the next piece. */
static inline void* lane_arena_alloc(struct lane_arena* arena, size_t size);

/** A zeroed piece of count * size bytes; an overflow is ENOMEM. */
void* lane_arena_alloc_zeroed(struct lane_arena* arena, size_t count, size_t size);

/** Returns a piece with an alignment in bytes: a power of two, else EINVAL. */
void* lane_arena_alloc_aligned(struct lane_arena* arena, size_t alignment, size_t size);

/** Resizes a piece. The last piece is resized in place if it fits, and the newest piece that has
 * memory of its own as realloc() does it. Any other piece is copied if it grows. Null allocates. If
 * it fails, the piece is unchanged.
 *
 * old_size: the size that was last asked for. The result is aligned to 16. */
void* lane_arena_realloc(struct lane_arena* arena, void* piece, size_t old_size, size_t size);

/** Takes back the last piece, or the newest one that has memory of its own. size is the size that
 * was asked for. Returns 1; or 0 if it is another piece, and then nothing has changed. */
int lane_arena_rollback(struct lane_arena* arena, void* piece, size_t size);

/** A copy of the text. */
char* lane_arena_strdup(struct lane_arena* arena, const char* text);

/** A copy of at most that many first bytes of the text, and a final zero. */
char* lane_arena_strndup(struct lane_arena* arena, const char* text, size_t most);

/** A copy of that many bytes. */
void* lane_arena_memdup(struct lane_arena* arena, const void* bytes, size_t size);

/** All texts (const char*) up to a null pointer, joined. */
char* lane_arena_concat(struct lane_arena* arena, ...) __attribute__((sentinel));

/** What printf() would print, as a text. Null, with printf()'s errno, if that fails. */
char* lane_arena_printf(struct lane_arena* arena, const char* format, ...)
    __attribute__((format(printf, 2, 3)));

/** As lane_arena_printf(), with a list of arguments, as vprintf(). */
char* lane_arena_vprintf(struct lane_arena* arena, const char* format, va_list arguments)
    __attribute__((format(printf, 2, 0)));

/** Registers a call of end(object) before the memory goes: at a reset, at a destroy, or at a rewind
 * to an earlier place. The function may use the arena. Returns 0 or ENOMEM. */
int lane_arena_at_reset(struct lane_arena* arena, void (*end)(void* object), void* object);

/** A place in an arena to return to. Its members are the library's. */
struct lane_arena_checkpoint {
  struct lane_arena_block* block; /**< the newest then */
  char* next;                     /**< the next piece then */
  size_t large_made;              /**< large pieces then */
  struct lane_arena_end* ends;    /**< the newest function then */
};

/** The place where the arena is now. Never fails. */
struct lane_arena_checkpoint lane_arena_mark(const struct lane_arena* arena);

/** Gives back everything since the checkpoint, after the functions that were registered since.
 * Checkpoints nest. A rewind makes later ones invalid, and so does a reset. A checkpoint whose
 * block, place or newest function is not in the arena gives one line on standard error that names
 * both, then abort(); the option bad_pointer changes that. If the program continues, nothing has
 * changed. An invalid checkpoint of which all three are in the arena again is not recognized. */
void lane_arena_rewind(struct lane_arena* arena, struct lane_arena_checkpoint checkpoint);

/** Bytes that the arena holds, in blocks and large pieces. */
static inline size_t lane_arena_bytes(const struct lane_arena* arena) {
  return arena->block_count * arena->block_size + arena->large_bytes;
}

/** What lane_arena_alloc() does if it is no hit. For languages that do not read this file. */
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
