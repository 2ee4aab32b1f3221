//! Memory by its layout, for everything in this crate that allocates for Rust. Sizes and alignments are a `Layout`'s: the size may not
//! be zero.

use core::alloc::Layout;
use core::ptr;

use lanemalloc_sys::{
    lane_calloc, lane_free, lane_free_aligned_sized, lane_free_sized, lane_malloc, lane_malloc_usable_size,
    lane_memalign, lane_realloc,
};

/// What every object is aligned to, without being asked.
pub(crate) const ALIGNMENT: usize = 16;

/// From here on an object has whole blocks of its own, fresh ones are zero, and their beginnings are aligned to far more than 16.
const LARGE: usize = 512 * 1024;

#[inline]
pub(crate) fn allocate(layout: Layout) -> *mut u8 {
    // SAFETY: a size and an alignment that is a power of two are all that these ask for.
    unsafe {
        if layout.align() <= ALIGNMENT {
            lane_malloc(layout.size()).cast()
        } else {
            lane_memalign(layout.align(), layout.size()).cast()
        }
    }
}

#[inline]
pub(crate) fn allocate_zeroed(layout: Layout) -> *mut u8 {
    if layout.align() <= ALIGNMENT {
        // SAFETY: takes any size.
        unsafe { lane_calloc(1, layout.size()).cast() }
    } else {
        allocate_zeroed_aligned(layout)
    }
}

#[cold]
fn allocate_zeroed_aligned(layout: Layout) -> *mut u8 {
    if layout.size() >= LARGE {
        // SAFETY: takes any size.
        let object: *mut u8 = unsafe { lane_calloc(1, layout.size()).cast() };
        if object as usize % layout.align() == 0 {
            return object; // null too
        }
        // SAFETY: it has just been allocated.
        unsafe { lane_free(object.cast()) };
    }
    let object = allocate(layout);
    if !object.is_null() {
        // SAFETY: the object has that many bytes.
        unsafe { ptr::write_bytes(object, 0, layout.size()) };
    }
    object
}

/// # Safety
/// `object` is live, and was allocated here with this layout.
#[inline]
pub(crate) unsafe fn free(object: *mut u8, layout: Layout) {
    // SAFETY: the caller's.
    unsafe {
        if layout.align() <= ALIGNMENT {
            lane_free_sized(object.cast(), layout.size());
        } else {
            lane_free_aligned_sized(object.cast(), layout.align(), layout.size());
        }
    }
}

/// Null if there is no memory: then the object is as before.
///
/// # Safety
/// As for [`free`]. `size` is not zero, and with the layout's alignment a layout.
#[inline]
pub(crate) unsafe fn reallocate(object: *mut u8, layout: Layout, size: usize) -> *mut u8 {
    // SAFETY: the caller's.
    unsafe {
        if layout.align() <= ALIGNMENT {
            lane_realloc(object.cast(), size).cast()
        } else {
            reallocate_aligned(object, layout, size)
        }
    }
}

/// # Safety
/// As for [`reallocate`].
#[cold]
unsafe fn reallocate_aligned(object: *mut u8, layout: Layout, size: usize) -> *mut u8 {
    // SAFETY: the object is live, the caller says.
    let usable = unsafe { lane_malloc_usable_size(object.cast()) };
    if size <= usable && size >= usable / 2 {
        return object;
    }
    // SAFETY: that it is a layout, and that the object is live and of the other one, is the caller's word.
    let moved = allocate(unsafe { Layout::from_size_align_unchecked(size, layout.align()) });
    if !moved.is_null() {
        unsafe {
            ptr::copy_nonoverlapping(object, moved, size.min(layout.size()));
            free(object, layout);
        }
    }
    moved
}
