//! Each function of lanemalloc.h is called once, and does what it is for. That the declarations agree with the header is checked by
//! tests/rust/headers.py.

use std::ffi::CStr;
use std::ptr;

use lanemalloc_sys::*;

const EINVAL: i32 = 22;
const PAGE: usize = 4096;

fn is_aligned(object: *mut c_void, alignment: usize) -> bool {
    !object.is_null() && object as usize % alignment == 0
}

#[test]
fn what_is_allocated_is_aligned_and_can_be_freed() {
    unsafe {
        for (object, alignment) in [
            (lane_malloc(100), 16),
            (lane_calloc(10, 10), 16),
            (lane_realloc(ptr::null_mut(), 100), 16),
            (lane_reallocarray(ptr::null_mut(), 10, 10), 16),
            (lane_aligned_alloc(256, 100), 256),
            (lane_memalign(8192, 100), 8192),
            (lane_valloc(100), PAGE),
            (lane_pvalloc(100), PAGE),
        ] {
            assert!(is_aligned(object, alignment), "{:p} is not aligned to {}", object, alignment);
            assert!(lane_malloc_usable_size(object) >= 100);
            ptr::write_bytes(object.cast::<u8>(), 0xa5, 100);
            lane_free(object);
        }
    }
}

#[test]
fn sized_frees_take_what_was_asked_for() {
    unsafe {
        lane_free_sized(lane_malloc(100), 100);
        lane_free_aligned_sized(lane_memalign(128, 100), 128, 100);
        lane_free_sized(ptr::null_mut(), 0);
        lane_free(ptr::null_mut());
    }
}

#[test]
fn calloc_zeroes_what_was_used_before() {
    unsafe {
        let dirty = lane_malloc(200).cast::<u8>();
        ptr::write_bytes(dirty, 0xff, 200);
        lane_free(dirty.cast());
        let clean = lane_calloc(20, 10).cast::<u8>();
        assert!((0..200).all(|i| *clean.add(i) == 0));
        lane_free(clean.cast());
    }
}

#[test]
fn overflows_and_bad_alignments_are_refused() {
    unsafe {
        assert!(lane_calloc(usize::MAX / 2, 3).is_null());
        assert!(lane_reallocarray(ptr::null_mut(), usize::MAX / 2, 3).is_null());
        assert!(lane_malloc(isize::MAX as usize + 1).is_null());
        let mut object = ptr::null_mut();
        assert_eq!(lane_posix_memalign(&mut object, 24, 100), EINVAL);
        assert_eq!(lane_posix_memalign(&mut object, 64, 100), 0);
        assert!(is_aligned(object, 64));
        lane_free(object);
    }
}

#[test]
fn the_entry_can_be_asked_and_set() {
    unsafe {
        let mut text = [0 as c_char; 32];
        assert_eq!(lane_set_entry(b"shared:7\0".as_ptr().cast()), 0);
        assert_eq!(lane_entry(text.as_mut_ptr(), text.len()), 8);
        assert_eq!(CStr::from_ptr(text.as_ptr()).to_str(), Ok("shared:7"));
        assert_eq!(lane_set_entry(b"shared:many\0".as_ptr().cast()), EINVAL);
    }
}

#[test]
fn memory_is_given_back_and_figures_are_printed() {
    unsafe {
        let mut burst = [ptr::null_mut(); 1000];
        burst.fill_with(|| lane_malloc(100_000));
        for object in burst {
            lane_free(object);
        }
        assert_eq!(lane_malloc_trim(0), 1);
        lane_malloc_stats();
        assert!(lane_lanemalloc_options.is_null());
    }
}
