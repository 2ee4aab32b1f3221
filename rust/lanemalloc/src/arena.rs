//! `Arena`: values that are given back together.

use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::fmt::{self, Write};
use core::marker::PhantomData;
use core::mem;
use core::ptr::{self, NonNull};
use core::slice;
use core::str;

use lanemalloc_sys::{
    c_void, lane_arena, lane_arena_alloc, lane_arena_alloc_aligned, lane_arena_alloc_zeroed,
    lane_arena_at_reset, lane_arena_bytes, lane_arena_destroy, lane_arena_init, lane_arena_realloc,
    lane_arena_reset,
};

use crate::abort::abort_on_panic;
use crate::error::{out_of_memory, OutOfMemory};
use crate::raw::ALIGNMENT;

/// Values that are given back together, at a [`reset`](Arena::reset) or when the arena is dropped. Allocating is a few instructions.
///
/// ```
/// use lanemalloc::Arena;
///
/// struct Node<'a> {
///     name: &'a str,
///     children: &'a [&'a Node<'a>],
/// }
///
/// let mut arena = Arena::new();
/// for request in 0..3 {
///     let name = arena.format(format_args!("leaf of {}", request));
///     let leaf: &Node = arena.alloc(Node { name, children: &[] });
///     let root = arena.alloc(Node { name: "root", children: arena.alloc_slice(&[leaf, leaf]) });
///     assert_eq!(root.children[1].name, format!("leaf of {}", request));
///     arena.reset(); // the memory is used again; nothing that lies in it can be reached any more
/// }
/// ```
///
/// An arena may be sent to another thread, but is used by one at a time. Its blocks come from the calling thread's lane, so that arenas
/// on different threads do not meet.
///
/// Where there is no memory, the functions whose names begin with `try` say so, and the others end the program as `Vec` does.
pub struct Arena {
    raw: UnsafeCell<lane_arena>,
}

// SAFETY: nothing in the arena belongs to a thread. References into it borrow it, so there are none when it is sent; the values that are
// still to be dropped are Send.
unsafe impl Send for Arena {}

struct NoDrop<T>(PhantomData<T>);

impl<T> NoDrop<T> {
    const CHECK: () = assert!(!mem::needs_drop::<T>(), "this type needs drop: use Arena::alloc_with_drop");
}

/// Fails when the program is compiled.
fn refuse_drop<T>() {
    NoDrop::<T>::CHECK
}

impl Arena {
    /// An empty arena with blocks of 8 KiB. Allocates nothing.
    pub const fn new() -> Self {
        Arena {
            raw: UnsafeCell::new(lane_arena {
                next: ptr::null_mut(),
                end: ptr::null_mut(),
                blocks: ptr::null_mut(),
                large: ptr::null_mut(),
                ends: ptr::null_mut(),
                block_size: 0,
                block_count: 0,
                large_bytes: 0,
                large_made: 0,
            }),
        }
    }

    /// An empty arena with blocks of so many bytes, 256 to 512 KiB. Larger values than a quarter of a block have memory of their own.
    ///
    /// # Panics
    ///
    /// With another size.
    pub fn with_block_size(bytes: usize) -> Self {
        let arena = Arena::new();
        // SAFETY: it holds nothing yet. Zero, for which C takes a default, is no size here.
        let good = bytes != 0 && unsafe { lane_arena_init(arena.raw.get(), bytes) } == 0;
        assert!(good, "blocks of an arena have 256 bytes to 512 KiB, not {}", bytes);
        arena
    }

    /// Memory for a value of this layout, not initialized, until the next reset. For a size of 0 it may be that of the next value, too.
    #[inline]
    pub fn try_alloc_layout(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        // SAFETY: the arena is used by one thread, since it is not Sync, and by one call, since none calls back.
        let piece = unsafe {
            if layout.align() <= ALIGNMENT {
                lane_arena_alloc(self.raw.get(), layout.size())
            } else {
                lane_arena_alloc_aligned(self.raw.get(), layout.align(), layout.size())
            }
        };
        NonNull::new(piece.cast()).ok_or(OutOfMemory)
    }

    #[inline]
    fn take(&self, layout: Layout) -> NonNull<u8> {
        self.try_alloc_layout(layout).unwrap_or_else(|_| out_of_memory(layout))
    }

    fn layout_of<T>(n: usize) -> Layout {
        // A slice or a Vec of so many could not be either.
        Layout::array::<T>(n).unwrap_or_else(|_| panic!("{} values are more than an arena can hold", n))
    }

    /// Moves a value that needs no drop into the arena. One that does is refused when the program is compiled:
    ///
    /// ```compile_fail
    /// lanemalloc::Arena::new().alloc(String::from("it has memory of its own: use alloc_with_drop or alloc_str"));
    /// ```
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub fn alloc<T>(&self, value: T) -> &mut T {
        refuse_drop::<T>();
        let place = self.take(Layout::new::<T>()).as_ptr().cast::<T>();
        // SAFETY: the place has the type's layout and is nobody else's, while the arena is borrowed.
        unsafe {
            place.write(value);
            &mut *place
        }
    }

    /// As [`alloc`](Arena::alloc); the value comes back where there is no memory.
    #[allow(clippy::mut_from_ref)]
    pub fn try_alloc<T>(&self, value: T) -> Result<&mut T, T> {
        refuse_drop::<T>();
        match self.try_alloc_layout(Layout::new::<T>()) {
            Ok(place) => {
                let place = place.as_ptr().cast::<T>();
                // SAFETY: as in alloc().
                Ok(unsafe {
                    place.write(value);
                    &mut *place
                })
            }
            Err(OutOfMemory) => Err(value),
        }
    }

    /// Moves a value into the arena, which drops it at the reset, newest first. What it borrows could be gone by then, and the arena on another
    /// thread: therefore `'static` and `Send`.
    ///
    /// ```
    /// let arena = lanemalloc::Arena::new();
    /// let names = arena.alloc_with_drop(vec![String::from("lane")]);
    /// names.push(String::from("slab"));
    /// assert_eq!(names.len(), 2);
    /// ```
    #[allow(clippy::mut_from_ref)]
    pub fn alloc_with_drop<T: Send + 'static>(&self, value: T) -> &mut T {
        unsafe extern "C" fn end<T>(value: *mut c_void) {
            // SAFETY: the value is live until now, and nobody can reach it any more.
            abort_on_panic(|| unsafe { ptr::drop_in_place(value.cast::<T>()) });
        }

        let place = self.take(Layout::new::<T>()).as_ptr().cast::<T>();
        // SAFETY: as in alloc(). The value is written before a reset can come: that needs &mut self.
        unsafe {
            if mem::needs_drop::<T>()
                && lane_arena_at_reset(self.raw.get(), Some(end::<T>), place.cast()) != 0
            {
                out_of_memory(Layout::new::<T>());
            }
            place.write(value);
            &mut *place
        }
    }

    /// A copy of the text.
    ///
    /// ```
    /// let arena = lanemalloc::Arena::new();
    /// let text = arena.alloc_str("lane");
    /// text.make_ascii_uppercase();
    /// assert_eq!(text, "LANE");
    /// ```
    #[allow(clippy::mut_from_ref)]
    pub fn alloc_str(&self, text: &str) -> &mut str {
        // SAFETY: a copy of UTF-8.
        unsafe { str::from_utf8_unchecked_mut(self.alloc_slice(text.as_bytes())) }
    }

    /// A copy of the values.
    #[allow(clippy::mut_from_ref)]
    pub fn alloc_slice<T: Copy>(&self, values: &[T]) -> &mut [T] {
        let place = self.take(Layout::for_value(values)).as_ptr().cast::<T>();
        // SAFETY: the place has room for so many, and is apart from what is copied.
        unsafe {
            ptr::copy_nonoverlapping(values.as_ptr(), place, values.len());
            slice::from_raw_parts_mut(place, values.len())
        }
    }

    /// So many values that need no drop, each made from its place in the slice. What `make` has allocated stays, also when it panics.
    ///
    /// ```
    /// let arena = lanemalloc::Arena::new();
    /// assert_eq!(arena.alloc_slice_with(4, |i| i * i), [0, 1, 4, 9]);
    /// ```
    #[allow(clippy::mut_from_ref)]
    pub fn alloc_slice_with<T>(&self, n: usize, mut make: impl FnMut(usize) -> T) -> &mut [T] {
        refuse_drop::<T>();
        let place = self.take(Self::layout_of::<T>(n)).as_ptr().cast::<T>();
        // SAFETY: the place has room for so many; all are written.
        unsafe {
            (0..n).for_each(|i| place.add(i).write(make(i)));
            slice::from_raw_parts_mut(place, n)
        }
    }

    /// So many bytes, zero.
    #[allow(clippy::mut_from_ref)]
    pub fn alloc_zeroed(&self, bytes: usize) -> &mut [u8] {
        // SAFETY: as in try_alloc_layout(); the piece has so many bytes, all initialized.
        unsafe {
            let piece = NonNull::new(lane_arena_alloc_zeroed(self.raw.get(), 1, bytes).cast::<u8>());
            let piece = piece.unwrap_or_else(|| out_of_memory(Self::layout_of::<u8>(bytes)));
            slice::from_raw_parts_mut(piece.as_ptr(), bytes)
        }
    }

    /// The text that the arguments give, as `format!` does.
    ///
    /// ```
    /// let arena = lanemalloc::Arena::new();
    /// assert_eq!(arena.format(format_args!("{} of {}", 3, 4)), "3 of 4");
    /// ```
    ///
    /// # Panics
    ///
    /// Where a formatting trait returns an error.
    #[allow(clippy::mut_from_ref)]
    pub fn format(&self, arguments: fmt::Arguments<'_>) -> &mut str {
        let mut text = Text { arena: self, bytes: NonNull::dangling(), length: 0, room: 0 };
        text.write_fmt(arguments).expect("a formatting trait returned an error");
        let Text { bytes, length, room, .. } = text;
        // SAFETY: so many bytes have been written, whole texts. What is too much goes back, if it is the last piece.
        unsafe {
            let place = if room == 0 { bytes } else { self.resize(bytes, room, length) };
            str::from_utf8_unchecked_mut(slice::from_raw_parts_mut(place.as_ptr(), length))
        }
    }

    /// # Safety
    /// The piece is of this arena and has `old_size` bytes; nothing refers to it.
    unsafe fn resize(&self, piece: NonNull<u8>, old_size: usize, size: usize) -> NonNull<u8> {
        // SAFETY: the caller's.
        let piece = unsafe { lane_arena_realloc(self.raw.get(), piece.as_ptr().cast(), old_size, size) };
        NonNull::new(piece.cast()).unwrap_or_else(|| out_of_memory(Self::layout_of::<u8>(size)))
    }

    /// Drops what was allocated with drop, newest first, and gives everything back but one block.
    pub fn reset(&mut self) {
        // SAFETY: nobody refers to anything in it, since it is borrowed mutably.
        unsafe { lane_arena_reset(self.raw.get()) }
    }

    /// Bytes that the arena holds, in blocks and values with memory of their own.
    pub fn bytes(&self) -> usize {
        // SAFETY: as in try_alloc_layout().
        unsafe { lane_arena_bytes(self.raw.get()) }
    }

    /// The arena as the C functions see it, for code in C. It is empty where they leave it empty.
    pub fn as_raw(&self) -> *mut lane_arena {
        self.raw.get()
    }
}

impl Default for Arena {
    fn default() -> Self {
        Arena::new()
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: as in reset().
        unsafe { lane_arena_destroy(self.raw.get()) }
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

/// A text that grows at the end of an arena. What is formatted may use the arena too.
struct Text<'a> {
    arena: &'a Arena,
    bytes: NonNull<u8>,
    length: usize,
    room: usize,
}

impl fmt::Write for Text<'_> {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        if more.len() > self.room - self.length {
            let room = (self.length + more.len()).max(2 * self.room).max(64);
            // SAFETY: bytes is null's stand-in while there is no room, else a piece with that room.
            self.bytes = unsafe {
                if self.room == 0 {
                    self.arena.take(Arena::layout_of::<u8>(room))
                } else {
                    self.arena.resize(self.bytes, self.room, room)
                }
            };
            self.room = room;
        }
        // SAFETY: there is room behind what was written, in a piece that nobody else has.
        unsafe { ptr::copy_nonoverlapping(more.as_ptr(), self.bytes.as_ptr().add(self.length), more.len()) };
        self.length += more.len();
        Ok(())
    }
}

#[cfg(feature = "allocator-api2")]
mod allocator {
    use lanemalloc_sys::lane_arena_rollback;

    use super::*;
    use crate::allocator::Source;

    // SAFETY: pieces stay until a reset, for which the arena may not be borrowed, as it is here.
    unsafe impl Source for &Arena {
        #[inline]
        fn take(&self, layout: Layout) -> *mut u8 {
            self.try_alloc_layout(layout).map_or(ptr::null_mut(), NonNull::as_ptr)
        }
        fn take_zeroed(&self, layout: Layout) -> *mut u8 {
            let piece = Source::take(self, layout);
            if !piece.is_null() {
                // SAFETY: the piece has so many bytes.
                unsafe { ptr::write_bytes(piece, 0, layout.size()) };
            }
            piece
        }
        #[inline]
        unsafe fn give_back(&self, piece: *mut u8, layout: Layout) {
            // SAFETY: the caller's. Only the last piece goes back now, the others at the reset.
            unsafe { lane_arena_rollback(self.raw.get(), piece.cast(), layout.size()) };
        }
        unsafe fn resize(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
            if layout.align() <= ALIGNMENT {
                // SAFETY: the caller's.
                return unsafe {
                    lane_arena_realloc(self.raw.get(), piece.cast(), layout.size(), size).cast()
                };
            }
            if size <= layout.size() {
                return piece;
            }
            // SAFETY: the caller's, as to the layout. The new piece has more bytes than are copied.
            unsafe {
                let moved = Source::take(self, Layout::from_size_align_unchecked(size, layout.align()));
                if !moved.is_null() {
                    ptr::copy_nonoverlapping(piece, moved, layout.size());
                }
                moved
            }
        }
    }
}
