//! `lanemalloc.h`: malloc under names of its own.

use crate::{c_char, c_int, c_void};

extern "C" {
    /// As malloc: size 0 gives an object of its own.
    pub fn lane_malloc(size: usize) -> *mut c_void;

    /// As free; null does nothing.
    pub fn lane_free(object: *mut c_void);

    /// As calloc: zeroed; an overflow of `count * size` is `ENOMEM`.
    pub fn lane_calloc(count: usize, size: usize) -> *mut c_void;

    /// As glibc's realloc: null allocates, size 0 frees and returns null. On failure the object is as before. Large objects are
    /// resized in place, or moved by the kernel, where that is possible.
    pub fn lane_realloc(object: *mut c_void, size: usize) -> *mut c_void;

    /// As [`lane_realloc`]; an overflow of `count * size` is `ENOMEM`.
    pub fn lane_reallocarray(object: *mut c_void, count: usize, size: usize) -> *mut c_void;

    /// As C23's: `size` is what the object was asked for with.
    pub fn lane_free_sized(object: *mut c_void, size: usize);

    /// As C23's: `alignment` and `size` are those that the object was asked for with.
    pub fn lane_free_aligned_sized(object: *mut c_void, alignment: usize, size: usize);

    /// Returns 0, `EINVAL` (an alignment that is no power of two, or no multiple of a pointer's size) or `ENOMEM`; `errno` stays.
    pub fn lane_posix_memalign(result: *mut *mut c_void, alignment: usize, size: usize) -> c_int;

    /// As glibc's: an alignment that is no power of two is rounded up to one; one beyond half the address space is `EINVAL`.
    pub fn lane_aligned_alloc(alignment: usize, size: usize) -> *mut c_void;

    /// The same as [`lane_aligned_alloc`].
    pub fn lane_memalign(alignment: usize, size: usize) -> *mut c_void;

    /// Aligned to a page.
    pub fn lane_valloc(size: usize) -> *mut c_void;

    /// Aligned to a page, and of whole pages.
    pub fn lane_pvalloc(size: usize) -> *mut c_void;

    /// How many bytes the object really has: at least what was asked for; all of them may be used. 0 for null.
    pub fn lane_malloc_usable_size(object: *mut c_void) -> usize;

    /// Gives back to the system what can be given back now, also from lanes of threads that are not inside. 1 if anything was given
    /// back, else 0. `pad` is ignored.
    pub fn lane_malloc_trim(pad: usize) -> c_int;

    /// Prints what was counted, a line a figure, on standard error.
    pub fn lane_malloc_stats();

    /// How threads enter lanes: "owned", "shared:N" or "percpu". Writes what is in use now as text of at most `size` bytes with its
    /// final zero. Returns the length that the whole text has. No errors.
    pub fn lane_entry(text: *mut c_char, size: usize) -> usize;

    /// Sets how threads enter lanes from now on: the value of the option `lanes`. Returns 0; `EINVAL` if the text is no such value;
    /// `ENOTSUP` where "percpu" cannot be had: then nothing has changed; `ENOMEM` before the allocator could start. One caller at a
    /// time; not in signal handlers.
    pub fn lane_set_entry(lanes: *const c_char) -> c_int;

    /// The options that are compiled in; null unless the program defines this symbol. The environment wins over them.
    pub static lane_lanemalloc_options: *const c_char;
}
