//! allocator-api2's `Allocator`. A trait of our own says what a source of memory must have; zero sizes and copies are seen to here.

use core::alloc::Layout;
use core::ptr::{self, NonNull};

use allocator_api2::alloc::{AllocError, Allocator};

use crate::{raw, Arena, Heap, Lanemalloc};

/// A source of memory by layouts whose sizes are not zero.
///
/// # Safety
/// What `take` and `resize` return has the layout's size and alignment, and stays until it is given back.
pub(crate) unsafe trait Source {
    /// Null if there is no memory.
    fn take(&self, layout: Layout) -> *mut u8;
    /// The same, zeroed.
    fn take_zeroed(&self, layout: Layout) -> *mut u8;
    /// # Safety
    /// `object` was taken here with this layout.
    unsafe fn give_back(&self, object: *mut u8, layout: Layout);
    /// Null if there is no memory: then the object is as before.
    ///
    /// # Safety
    /// As for `give_back`; `size` and the layout's alignment are a layout.
    unsafe fn resize(&self, object: *mut u8, layout: Layout, size: usize) -> *mut u8;
}

// SAFETY: as GlobalAlloc.
unsafe impl Source for Lanemalloc {
    #[inline]
    fn take(&self, layout: Layout) -> *mut u8 {
        raw::allocate(layout)
    }
    #[inline]
    fn take_zeroed(&self, layout: Layout) -> *mut u8 {
        raw::allocate_zeroed(layout)
    }
    #[inline]
    unsafe fn give_back(&self, object: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { raw::free(object, layout) }
    }
    #[inline]
    unsafe fn resize(&self, object: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's.
        unsafe { raw::reallocate(object, layout, size) }
    }
}

fn slice(object: *mut u8, size: usize) -> Result<NonNull<[u8]>, AllocError> {
    NonNull::new(ptr::slice_from_raw_parts_mut(object, size)).ok_or(AllocError)
}

/// An object of no bytes, which nobody has to give back.
fn nothing(layout: Layout) -> *mut u8 {
    layout.align() as *mut u8
}

#[inline]
pub(crate) fn allocate(source: &impl Source, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
    slice(if layout.size() == 0 { nothing(layout) } else { source.take(layout) }, layout.size())
}

#[inline]
pub(crate) fn allocate_zeroed(source: &impl Source, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
    slice(if layout.size() == 0 { nothing(layout) } else { source.take_zeroed(layout) }, layout.size())
}

/// # Safety
/// As `Allocator::deallocate`.
#[inline]
pub(crate) unsafe fn deallocate(source: &impl Source, object: NonNull<u8>, layout: Layout) {
    if layout.size() != 0 {
        // SAFETY: it was taken from the same source, with the same layout.
        unsafe { source.give_back(object.as_ptr(), layout) }
    }
}

/// # Safety
/// As `Allocator::grow` and `Allocator::shrink`.
#[inline]
pub(crate) unsafe fn resize(
    source: &impl Source,
    object: NonNull<u8>,
    old: Layout,
    new: Layout,
) -> Result<NonNull<[u8]>, AllocError> {
    if old.size() != 0 && new.size() != 0 && old.align() == new.align() {
        // SAFETY: the object is of the old layout, and the new one is a layout.
        return slice(unsafe { source.resize(object.as_ptr(), old, new.size()) }, new.size());
    }
    let moved = allocate(source, new)?;
    // SAFETY: both have so many bytes; the object is of the old layout.
    unsafe {
        ptr::copy_nonoverlapping(object.as_ptr(), moved.as_ptr().cast(), old.size().min(new.size()));
        deallocate(source, object, old);
    }
    Ok(moved)
}

macro_rules! allocator {
    ($type:ty) => {
        // SAFETY: what a Source promises. Copies of the value stand for the same source.
        unsafe impl Allocator for $type {
            #[inline]
            fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
                allocate(self, layout)
            }
            #[inline]
            fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
                allocate_zeroed(self, layout)
            }
            #[inline]
            unsafe fn deallocate(&self, object: NonNull<u8>, layout: Layout) {
                // SAFETY: the caller's.
                unsafe { deallocate(self, object, layout) }
            }
            #[inline]
            unsafe fn grow(
                &self,
                object: NonNull<u8>,
                old: Layout,
                new: Layout,
            ) -> Result<NonNull<[u8]>, AllocError> {
                // SAFETY: the caller's.
                unsafe { resize(self, object, old, new) }
            }
            #[inline]
            unsafe fn grow_zeroed(
                &self,
                object: NonNull<u8>,
                old: Layout,
                new: Layout,
            ) -> Result<NonNull<[u8]>, AllocError> {
                // SAFETY: the caller's; what has been grown has the new size.
                unsafe {
                    let grown = resize(self, object, old, new)?;
                    let end = grown.as_ptr().cast::<u8>().add(old.size());
                    ptr::write_bytes(end, 0, new.size() - old.size());
                    Ok(grown)
                }
            }
            #[inline]
            unsafe fn shrink(
                &self,
                object: NonNull<u8>,
                old: Layout,
                new: Layout,
            ) -> Result<NonNull<[u8]>, AllocError> {
                // SAFETY: the caller's.
                unsafe { resize(self, object, old, new) }
            }
        }
    };
}

allocator!(Lanemalloc);
allocator!(&Arena);
allocator!(&Heap<'_>);
