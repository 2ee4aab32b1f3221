//! `Lanemalloc`: the allocator of a whole program.

use core::alloc::{GlobalAlloc, Layout};

use crate::raw;

/// lanemalloc as the allocator of a program, or, with the feature `allocator-api2`, of single collections.
///
/// ```
/// #[global_allocator]
/// static GLOBAL: lanemalloc::Lanemalloc = lanemalloc::Lanemalloc;
///
/// fn main() {
///     let words: Vec<String> = "threads do not meet".split(' ').map(String::from).collect();
///     assert_eq!(words.join(" "), "threads do not meet");
/// }
/// ```
///
/// Everything is allocated by one allocator in the process, whatever value of this type asks. It may be called from signal handlers and
/// in the child of a `fork`, at any moment. Alignments up to 16 cost nothing; larger ones take the longer way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lanemalloc;

// SAFETY: the functions of raw.rs give live memory of the layout, or null, and never unwind. A layout's size is not zero here.
unsafe impl GlobalAlloc for Lanemalloc {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        raw::allocate(layout)
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        raw::allocate_zeroed(layout)
    }

    #[inline]
    unsafe fn dealloc(&self, object: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { raw::free(object, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, object: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's.
        unsafe { raw::reallocate(object, layout, size) }
    }
}
