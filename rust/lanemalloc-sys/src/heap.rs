//! `heap.h`: memory that is counted, limited and given back together.
//!
//! For every function here: any thread may use any heap, and free what another thread allocated; an object of another heap, of a pool, of
//! malloc or of nobody is one line on standard error that names both owners, and `abort()`, or what the option `bad_pointer` says.

use core::mem::size_of;

use crate::{c_char, c_int, c_void};

/// A heap.
#[repr(C)]
pub struct lane_heap {
    _private: [u8; 0],
}

/// What a heap is to be.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lane_heap_options {
    /// For messages and statistics; copied, cut after 31 bytes. Null: "heap".
    pub name: *const c_char,
    /// What this heap holds is charged to the parent, and to its parents, too. Null: none.
    pub parent: *mut lane_heap,
    /// Bytes that may be handed out, of objects' real sizes, here and in child heaps; 0: no limit.
    pub limit: usize,
    /// `on_soft_limit` is called before more than these are handed out; 0: none.
    pub soft_limit: usize,
    /// Called at most once each time the soft limit is passed, by the thread that passes it, before its allocation returns; it may use this
    /// heap and any other. `used` is what the heap will have handed out.
    pub on_soft_limit: Option<unsafe extern "C" fn(heap: *mut lane_heap, used: usize, argument: *mut c_void)>,
    /// For `on_soft_limit`.
    pub argument: *mut c_void,
}

/// What was counted.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct lane_heap_statistics {
    /// Exact while no other thread is using the heap.
    pub live_objects: u64,
    /// Of their real sizes.
    pub live_bytes: u64,
    /// What the limit is held against: handed out by slabs, here and in child heaps.
    pub used_bytes: u64,
    /// The most of it so far.
    pub peak_bytes: u64,
    /// Memory of the slabs and large objects of this heap.
    pub slab_bytes: u64,
    /// Allocations that a limit of this heap has refused.
    pub limit_failures: u64,
    /// Of `on_soft_limit`.
    pub soft_calls: u64,
}

extern "C" {
    /// `bytes`: the size of the options; use [`lane_heap_create`].
    pub fn lane_heap_create_from(options: *const lane_heap_options, bytes: usize) -> *mut lane_heap;

    /// Frees every object of the heap and of its child heaps, and the heaps. No other thread may use them any more. Returns how many objects
    /// there were.
    pub fn lane_heap_destroy(heap: *mut lane_heap) -> usize;

    /// As malloc: size 0 gives an object of its own. Beyond the heap's limit, or a parent's: `ENOMEM`.
    #[link_name = "lane_inline_heap_alloc"]
    pub fn lane_heap_alloc(heap: *mut lane_heap, size: usize) -> *mut c_void;
    /// Zeroed; an overflow of `count * size` is `ENOMEM`.
    pub fn lane_heap_alloc_zeroed(heap: *mut lane_heap, count: usize, size: usize) -> *mut c_void;
    /// `alignment`: a power of two, else `EINVAL`.
    pub fn lane_heap_alloc_aligned(heap: *mut lane_heap, alignment: usize, size: usize) -> *mut c_void;
    /// As realloc, within the heap: null allocates, size 0 frees and returns null; on failure the object is as before.
    pub fn lane_heap_realloc(heap: *mut lane_heap, object: *mut c_void, size: usize) -> *mut c_void;

    /// Null does nothing; `errno` stays.
    pub fn lane_heap_free(heap: *mut lane_heap, object: *mut c_void);
    /// The same; `size` is what the object was last asked for with, and makes this the quicker one.
    #[link_name = "lane_inline_heap_free_sized"]
    pub fn lane_heap_free_sized(heap: *mut lane_heap, object: *mut c_void, size: usize);

    /// How many bytes the object really has; all may be used. 0 for null.
    pub fn lane_heap_usable_size(heap: *mut lane_heap, object: *const c_void) -> usize;

    /// Sets the limits; 0: none. 0, or `EINVAL` where soft is above hard, or there is no function for it.
    pub fn lane_heap_set_limits(heap: *mut lane_heap, soft: usize, hard: usize) -> c_int;

    /// Calls `visit` for each live object of this heap until it returns other than 0, and returns that. Meanwhile no other thread may use the
    /// heap, and `visit` may not free or allocate in it. -1 and `errno` = `ENOMEM` without memory for notes.
    pub fn lane_heap_walk(
        heap: *mut lane_heap,
        visit: Option<
            unsafe extern "C" fn(object: *mut c_void, usable_size: usize, argument: *mut c_void) -> c_int,
        >,
        argument: *mut c_void,
    ) -> c_int;

    /// `bytes`: the size of the statistics; use [`lane_heap_get_statistics`].
    pub fn lane_heap_get_statistics_into(
        heap: *mut lane_heap,
        statistics: *mut lane_heap_statistics,
        bytes: usize,
    );

    /// Gives back what is cached for the heap in any lane; returns bytes that went.
    pub fn lane_heap_trim(heap: *mut lane_heap) -> usize;

    /// What a hit does not do; use [`lane_heap_alloc`].
    pub fn lane_heap_alloc_out_of_line(heap: *mut lane_heap, size: usize) -> *mut c_void;
    /// What a hit does not do; use [`lane_heap_free_sized`].
    pub fn lane_heap_free_sized_out_of_line(heap: *mut lane_heap, object: *mut c_void, size: usize);
}

/// Makes a heap. Null options are all zero. `EINVAL`: a soft limit above the limit, or one without a function.
#[inline]
pub unsafe fn lane_heap_create(options: *const lane_heap_options) -> *mut lane_heap {
    lane_heap_create_from(options, size_of::<lane_heap_options>())
}

/// What was counted.
#[inline]
pub unsafe fn lane_heap_get_statistics(heap: *mut lane_heap, statistics: *mut lane_heap_statistics) {
    lane_heap_get_statistics_into(heap, statistics, size_of::<lane_heap_statistics>());
}
