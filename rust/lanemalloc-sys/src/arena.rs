//! `arena.h`: pieces that are given back together, at a reset.
//!
//! For every function here: an arena is used by one thread at a time, and may be handed on; not in handlers that may interrupt a use of
//! the same arena; pieces are aligned to 16 bytes, and belong to the arena until reset, rewind or destroy.

use crate::{c_char, c_int, c_void};

/// A block of an arena; the library's.
#[repr(C)]
pub struct lane_arena_block {
    _private: [u8; 0],
}

/// A piece with memory of its own; the library's.
#[repr(C)]
pub struct lane_arena_large {
    _private: [u8; 0],
}

/// A function to call at the reset; the library's.
#[repr(C)]
pub struct lane_arena_end {
    _private: [u8; 0],
}

/// An arena lies where the program wants it, and may be moved while nobody uses it. All zero is an empty arena with blocks of 8 KiB.
#[repr(C)]
pub struct lane_arena {
    /// The next piece, aligned to 16.
    pub next: *mut c_char,
    /// Of the newest block, aligned to 16.
    pub end: *mut c_char,
    /// Newest first.
    pub blocks: *mut lane_arena_block,
    /// Pieces with memory of their own, newest first.
    pub large: *mut lane_arena_large,
    /// Functions to call at the reset, newest first.
    pub ends: *mut lane_arena_end,
    /// Bytes, with their header; 0: 8 KiB.
    pub block_size: usize,
    /// How many there are.
    pub block_count: usize,
    /// Of pieces with memory of their own.
    pub large_bytes: usize,
    /// Pieces of that kind so far.
    pub large_made: usize,
}

/// A place to come back to.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lane_arena_checkpoint {
    /// The newest block.
    pub block: *mut lane_arena_block,
    /// The next piece in it.
    pub next: *mut c_char,
    /// Pieces with memory of their own, so far.
    pub large_made: usize,
    /// The newest function.
    pub ends: *mut lane_arena_end,
}

extern "C" {
    /// `block_size`: 256 bytes to 512 KiB; 0: 8 KiB. 0, or `EINVAL`, and the arena is not touched. What an arena held before is forgotten,
    /// not given back.
    pub fn lane_arena_init(arena: *mut lane_arena, block_size: usize) -> c_int;

    /// Gives everything back but one block, after the functions registered by [`lane_arena_at_reset`], newest first.
    pub fn lane_arena_reset(arena: *mut lane_arena);

    /// The same, and the last block; the arena is empty then, and may be used again.
    pub fn lane_arena_destroy(arena: *mut lane_arena);

    /// Zeroed; an overflow of `count * size` is `ENOMEM`.
    pub fn lane_arena_alloc_zeroed(arena: *mut lane_arena, count: usize, size: usize) -> *mut c_void;

    /// `alignment`: a power of two, else `EINVAL`.
    pub fn lane_arena_alloc_aligned(arena: *mut lane_arena, alignment: usize, size: usize) -> *mut c_void;

    /// Grows or shrinks the last piece in place, if it fits, and the newest that has memory of its own as realloc does; else copies what
    /// grows. `old_size`: what the piece was last asked for with. Null piece: allocates.
    pub fn lane_arena_realloc(
        arena: *mut lane_arena,
        piece: *mut c_void,
        old_size: usize,
        size: usize,
    ) -> *mut c_void;

    /// Takes the last piece back, of the size that it was asked for with, or the newest that has memory of its own. 1 if it was that,
    /// else 0 and nothing changed.
    pub fn lane_arena_rollback(arena: *mut lane_arena, piece: *mut c_void, size: usize) -> c_int;

    /// A copy of the text.
    pub fn lane_arena_strdup(arena: *mut lane_arena, text: *const c_char) -> *mut c_char;
    /// A copy of at most so many bytes of the text, and a zero.
    pub fn lane_arena_strndup(arena: *mut lane_arena, text: *const c_char, most: usize) -> *mut c_char;
    /// A copy of the bytes.
    pub fn lane_arena_memdup(arena: *mut lane_arena, bytes: *const c_void, size: usize) -> *mut c_void;
    /// All texts up to a null pointer, one behind the other.
    pub fn lane_arena_concat(arena: *mut lane_arena, ...) -> *mut c_char;
    /// As printf.
    pub fn lane_arena_printf(arena: *mut lane_arena, format: *const c_char, ...) -> *mut c_char;

    /// Has `end(object)` called before the memory goes: at a reset, a rewind to before this, or destroy. It may use the arena. 0, or
    /// `ENOMEM`.
    pub fn lane_arena_at_reset(
        arena: *mut lane_arena,
        end: Option<unsafe extern "C" fn(object: *mut c_void)>,
        object: *mut c_void,
    ) -> c_int;

    /// A place to come back to.
    pub fn lane_arena_mark(arena: *const lane_arena) -> lane_arena_checkpoint;
    /// Everything since is given back, and its functions called. Makes later checkpoints invalid.
    pub fn lane_arena_rewind(arena: *mut lane_arena, checkpoint: lane_arena_checkpoint);

    /// What a hit does not do; use [`lane_arena_alloc`].
    pub fn lane_arena_alloc_out_of_line(arena: *mut lane_arena, size: usize) -> *mut c_void;
}

/// A piece. What does not fit into the newest block begins another one, or, beyond a quarter of a block, has memory of its own. Size 0
/// gives a pointer that is not null; it may be the next piece's too.
///
/// # Safety
/// The arena is initialized, and no other thread uses it.
#[inline]
pub unsafe fn lane_arena_alloc(arena: *mut lane_arena, size: usize) -> *mut c_void {
    let piece = (*arena).next;
    // As in arena.h.
    if size >= (*arena).end as usize - piece as usize {
        return lane_arena_alloc_out_of_line(arena, size);
    }
    (*arena).next = piece.add((size + 15) & !15);
    piece.cast()
}

/// Bytes that the arena holds, in blocks and large pieces.
///
/// # Safety
/// The arena is initialized, and no other thread uses it.
#[inline]
pub unsafe fn lane_arena_bytes(arena: *const lane_arena) -> usize {
    (*arena).block_count * (*arena).block_size + (*arena).large_bytes
}
