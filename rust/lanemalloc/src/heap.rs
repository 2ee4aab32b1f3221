//! `Heap`: memory that is counted, limited and given back together.

use core::alloc::Layout;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::{self, NonNull};

use alloc::boxed::Box;

use lanemalloc_sys::{
    c_int, c_void, lane_heap, lane_heap_alloc, lane_heap_alloc_aligned, lane_heap_alloc_zeroed,
    lane_heap_create, lane_heap_destroy, lane_heap_free, lane_heap_free_sized, lane_heap_get_statistics,
    lane_heap_options, lane_heap_realloc, lane_heap_set_limits, lane_heap_statistics, lane_heap_trim,
    lane_heap_usable_size, lane_heap_walk, lane_safepoint_heap_free, lane_safepoint_heap_free_sized,
};

use crate::abort::abort_on_panic;
use crate::error::{last_error, CreateError, InvalidLimit, Name, OutOfMemory};
use crate::raw::ALIGNMENT;
use crate::safepoint::{self, Busy};

pub use lanemalloc_sys::lane_heap_statistics as HeapStatistics;

type Notice<'h> = dyn Fn(usize) + Send + Sync + 'h;

/// Memory that is counted, limited and given back together. Each lane that uses the heap has slabs of its own for it, so threads do not meet
/// in it more than they do in malloc.
///
/// ```
/// use lanemalloc::Heap;
/// use std::alloc::Layout;
///
/// let heap = Heap::builder().name("cache").limit(1 << 20).build().unwrap();
/// let layout = Layout::from_size_align(1000, 8).unwrap();
/// let object = heap.alloc(layout).unwrap();
/// assert_eq!(heap.statistics().live_objects, 1);
/// unsafe { heap.free(object, layout) };
/// assert!(heap.alloc(Layout::from_size_align(2 << 20, 8).unwrap()).is_err());
/// ```
///
/// With the feature `allocator-api2`, `&Heap` is an `Allocator`: collections in the heap borrow it, so none is left when it goes.
///
#[cfg_attr(feature = "allocator-api2", doc = "```")]
#[cfg_attr(not(feature = "allocator-api2"), doc = "```ignore")]
/// use allocator_api2::vec::Vec;
/// use lanemalloc::Heap;
///
/// let heap = Heap::new().unwrap();
/// let mut numbers = Vec::new_in(&heap);
/// numbers.extend(0..1000);
/// assert!(heap.statistics().live_bytes >= 4000);
/// drop(numbers);
/// assert_eq!(heap.statistics().live_objects, 0);
/// ```
///
/// Dropping the heap frees what is left in it, without dropping values.
pub struct Heap<'h> {
    raw: NonNull<lane_heap>,
    /// What is called at the soft limit; owned.
    notice: Option<NonNull<Box<Notice<'h>>>>,
    parent: PhantomData<&'h Heap<'h>>,
}

// SAFETY: any thread may use any heap, and call what is called at the soft limit.
unsafe impl Send for Heap<'_> {}
// SAFETY: as above.
unsafe impl Sync for Heap<'_> {}

/// What a heap is to be; from [`Heap::builder`] and [`Heap::child`].
#[must_use]
pub struct HeapBuilder<'h> {
    name: Name,
    parent: *mut lane_heap,
    limit: usize,
    soft_limit: usize,
    notice: Option<Box<Notice<'h>>>,
    borrows: PhantomData<&'h Heap<'h>>,
}

impl<'h> HeapBuilder<'h> {
    fn new(parent: *mut lane_heap) -> Self {
        HeapBuilder {
            name: Name::new("heap"),
            parent,
            limit: 0,
            soft_limit: 0,
            notice: None,
            borrows: PhantomData,
        }
    }

    /// For messages and statistics, cut after 31 bytes.
    pub fn name(mut self, name: &str) -> Self {
        self.name = Name::new(name);
        self
    }

    /// How many bytes may be handed out, of objects' real sizes, here and in child heaps; 0: no limit.
    pub fn limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }

    /// `notice` is called before more than so many bytes are handed out, once each time that they are passed, by the thread that does so; it is
    /// told how many it will be. It may use the heap. A panic in it ends the program.
    pub fn soft_limit(mut self, bytes: usize, notice: impl Fn(usize) + Send + Sync + 'h) -> Self {
        self.soft_limit = bytes;
        self.notice = Some(Box::new(notice));
        self
    }

    /// The heap.
    pub fn build(self) -> Result<Heap<'h>, CreateError> {
        unsafe extern "C" fn pass_on(_: *mut lane_heap, used: usize, notice: *mut c_void) {
            // SAFETY: the heap's, which lives.
            abort_on_panic(|| unsafe { (*notice.cast::<Box<Notice<'_>>>())(used) });
        }

        // Boxed twice: C keeps one word.
        let notice = self.notice.map(|notice| NonNull::from(Box::leak(Box::new(notice))));
        let options = lane_heap_options {
            name: self.name.as_ptr(),
            parent: self.parent,
            limit: self.limit,
            soft_limit: self.soft_limit,
            on_soft_limit: if notice.is_some() { Some(pass_on) } else { None },
            argument: notice.map_or(ptr::null_mut(), |notice| notice.as_ptr().cast()),
        };
        // SAFETY: the name ends with a zero, and is copied; the parent lives.
        match NonNull::new(unsafe { lane_heap_create(&options) }) {
            Some(raw) => Ok(Heap { raw, notice, parent: PhantomData }),
            None => {
                let error = last_error();
                if let Some(notice) = notice {
                    // SAFETY: leaked above, and no heap uses it.
                    drop(unsafe { Box::from_raw(notice.as_ptr()) });
                }
                Err(error)
            }
        }
    }
}

impl fmt::Debug for HeapBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeapBuilder").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl<'h> Heap<'h> {
    /// What a heap is to be.
    pub fn builder() -> HeapBuilder<'h> {
        HeapBuilder::new(ptr::null_mut())
    }

    /// A heap without limits.
    pub fn new() -> Result<Self, CreateError> {
        Self::builder().build()
    }

    /// What a child of this heap is to be: what it holds is charged to this one, too.
    ///
    /// ```
    /// use lanemalloc::Heap;
    /// use std::alloc::Layout;
    ///
    /// let tenants = Heap::builder().limit(1 << 20).build().unwrap();
    /// let one = tenants.child().name("one").limit(1 << 19).build().unwrap();
    /// one.alloc(Layout::new::<[u8; 1000]>()).unwrap();
    /// assert!(tenants.statistics().used_bytes >= 1000);
    /// ```
    pub fn child(&'h self) -> HeapBuilder<'h> {
        HeapBuilder::new(self.raw.as_ptr())
    }

    /// Memory of this layout, not initialized; also for a size of 0.
    ///
    /// # Errors
    ///
    /// Beyond the heap's limit or a parent's, and where there is no memory.
    #[inline]
    pub fn alloc(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        // SAFETY: the heap lives, here and below.
        let object = unsafe {
            if layout.align() <= ALIGNMENT {
                lane_heap_alloc(self.raw.as_ptr(), layout.size())
            } else {
                lane_heap_alloc_aligned(self.raw.as_ptr(), layout.align(), layout.size())
            }
        };
        NonNull::new(object.cast()).ok_or(OutOfMemory)
    }

    /// The same, zeroed.
    ///
    /// # Errors
    ///
    /// As for [`alloc`](Heap::alloc).
    pub fn alloc_zeroed(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        if layout.align() <= ALIGNMENT {
            // SAFETY: as above.
            let object = unsafe { lane_heap_alloc_zeroed(self.raw.as_ptr(), 1, layout.size()) };
            return NonNull::new(object.cast()).ok_or(OutOfMemory);
        }
        let object = self.alloc(layout)?;
        // SAFETY: it has so many bytes.
        unsafe { ptr::write_bytes(object.as_ptr(), 0, layout.size()) };
        Ok(object)
    }

    /// Frees what was allocated here.
    ///
    /// # Safety
    ///
    /// `object` is live, of this heap, and was last asked for with this layout.
    #[inline]
    pub unsafe fn free(&self, object: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's. The size tells the class only of what was allocated without a larger alignment.
        unsafe {
            if layout.align() <= ALIGNMENT {
                lane_heap_free_sized(self.raw.as_ptr(), object.as_ptr().cast(), layout.size());
            } else {
                lane_heap_free(self.raw.as_ptr(), object.as_ptr().cast());
            }
        }
    }

    /// Frees it once nobody reads it any more: see [`safepoint`](crate::safepoint). Until then it is in use.
    ///
    /// # Errors
    ///
    /// With [`Busy`] nothing has happened, and the object is still the caller's.
    ///
    /// # Safety
    ///
    /// As for [`free`](Heap::free); but who can still reach the object in a read section that began before this call may read it up to the
    /// section's end. None of these sections outlives the heap.
    pub unsafe fn free_later(&self, object: NonNull<u8>, layout: Layout) -> Result<(), Busy> {
        let (heap, object) = (self.raw.as_ptr(), object.as_ptr().cast());
        // SAFETY: the caller's.
        safepoint::result(unsafe {
            if layout.align() <= ALIGNMENT {
                lane_safepoint_heap_free_sized(heap, object, layout.size())
            } else {
                lane_safepoint_heap_free(heap, object)
            }
        })
    }

    /// Changes the size, in place or elsewhere; the layout is the new size with the same alignment then.
    ///
    /// # Errors
    ///
    /// As for [`alloc`](Heap::alloc); then the object is as before.
    ///
    /// # Safety
    ///
    /// As for [`free`](Heap::free). `size` is not 0, and with the layout's alignment a layout.
    pub unsafe fn realloc(
        &self,
        object: NonNull<u8>,
        layout: Layout,
        size: usize,
    ) -> Result<NonNull<u8>, OutOfMemory> {
        // SAFETY: the caller's.
        unsafe {
            if layout.align() <= ALIGNMENT {
                let moved = lane_heap_realloc(self.raw.as_ptr(), object.as_ptr().cast(), size);
                return NonNull::new(moved.cast()).ok_or(OutOfMemory);
            }
            let usable = self.usable_size(object);
            if size <= usable && size >= usable / 2 {
                return Ok(object);
            }
            let moved = self.alloc(Layout::from_size_align_unchecked(size, layout.align()))?;
            ptr::copy_nonoverlapping(object.as_ptr(), moved.as_ptr(), size.min(layout.size()));
            self.free(object, layout);
            Ok(moved)
        }
    }

    /// How many bytes the object really has.
    ///
    /// # Safety
    ///
    /// `object` is live, and of this heap.
    pub unsafe fn usable_size(&self, object: NonNull<u8>) -> usize {
        // SAFETY: the caller's.
        unsafe { lane_heap_usable_size(self.raw.as_ptr(), object.as_ptr().cast()) }
    }

    /// Sets the limits; 0: none. A limit below what is handed out holds for what comes.
    ///
    /// # Errors
    ///
    /// Where soft is above hard, or the heap was made without a soft limit and so has nobody to tell.
    pub fn set_limits(&self, soft: usize, hard: usize) -> Result<(), InvalidLimit> {
        // SAFETY: as above.
        match unsafe { lane_heap_set_limits(self.raw.as_ptr(), soft, hard) } {
            0 => Ok(()),
            _ => Err(InvalidLimit),
        }
    }

    /// Calls `visit` with each live object of this heap, and its real size, until it returns false. A panic in it ends the program.
    ///
    /// # Errors
    ///
    /// Where there is no memory for notes: then nothing was visited.
    ///
    /// # Safety
    ///
    /// No other thread uses the heap meanwhile, and `visit` does not allocate or free in it.
    pub unsafe fn walk<F: FnMut(NonNull<u8>, usize) -> bool>(&self, mut visit: F) -> Result<(), OutOfMemory> {
        unsafe extern "C" fn pass_on<F: FnMut(NonNull<u8>, usize) -> bool>(
            object: *mut c_void,
            size: usize,
            visit: *mut c_void,
        ) -> c_int {
            // SAFETY: an object is not null; the function is the caller's, below.
            abort_on_panic(|| unsafe {
                c_int::from(!(*visit.cast::<F>())(NonNull::new_unchecked(object.cast()), size))
            })
        }
        let visit: *mut F = &mut visit;
        // SAFETY: the caller's.
        match unsafe { lane_heap_walk(self.raw.as_ptr(), Some(pass_on::<F>), visit.cast()) } {
            -1 => Err(OutOfMemory),
            _ => Ok(()),
        }
    }

    /// What was counted.
    pub fn statistics(&self) -> HeapStatistics {
        let mut statistics = lane_heap_statistics::default();
        // SAFETY: as above; it is written whole.
        unsafe { lane_heap_get_statistics(self.raw.as_ptr(), &mut statistics) };
        statistics
    }

    /// Gives back what is cached for the heap in any lane; returns how many bytes went.
    pub fn trim(&self) -> usize {
        // SAFETY: as above.
        unsafe { lane_heap_trim(self.raw.as_ptr()) }
    }
}

impl Drop for Heap<'_> {
    fn drop(&mut self) {
        // SAFETY: it lives, and nobody else uses it: collections, and child heaps, borrow it. The notice is its own.
        unsafe {
            lane_heap_destroy(self.raw.as_ptr());
            if let Some(notice) = self.notice {
                drop(Box::from_raw(notice.as_ptr()));
            }
        }
    }
}

impl fmt::Debug for Heap<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heap").field("used_bytes", &self.statistics().used_bytes).finish_non_exhaustive()
    }
}

#[cfg(feature = "allocator-api2")]
mod allocator {
    use super::*;
    use crate::allocator::Source;

    // SAFETY: objects stay until they are freed, or the heap is dropped, which is borrowed here.
    unsafe impl Source for &Heap<'_> {
        #[inline]
        fn take(&self, layout: Layout) -> *mut u8 {
            self.alloc(layout).map_or(ptr::null_mut(), NonNull::as_ptr)
        }
        fn take_zeroed(&self, layout: Layout) -> *mut u8 {
            self.alloc_zeroed(layout).map_or(ptr::null_mut(), NonNull::as_ptr)
        }
        #[inline]
        unsafe fn give_back(&self, object: *mut u8, layout: Layout) {
            // SAFETY: the caller's; what was taken is not null.
            unsafe { self.free(NonNull::new_unchecked(object), layout) }
        }
        unsafe fn resize(&self, object: *mut u8, layout: Layout, size: usize) -> *mut u8 {
            // SAFETY: as above.
            let moved = unsafe { self.realloc(NonNull::new_unchecked(object), layout, size) };
            moved.map_or(ptr::null_mut(), NonNull::as_ptr)
        }
    }
}
