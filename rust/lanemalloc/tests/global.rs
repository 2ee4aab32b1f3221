//! A program all of whose memory is lanemalloc's.
#![deny(unsafe_op_in_unsafe_fn)]

mod common;

use std::alloc::{alloc, alloc_zeroed, dealloc, realloc, Layout};
use std::collections::{BTreeMap, HashMap};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::{mpsc, Once};
use std::thread;

use lanemalloc::{lanes, set_lanes, trim, usable_size, Lanemalloc, Lanes, LanesError};

#[global_allocator]
static GLOBAL: Lanemalloc = Lanemalloc;

const SIZES: [usize; 12] = [1, 7, 16, 24, 100, 1000, 4096, 5000, 70_000, 600_000, 1 << 20, MOST];
const MOST: usize = 3 << 20;
const ALIGNMENTS: [usize; 9] = [1, 8, 16, 32, 64, 256, 4096, 65_536, 1 << 21];

fn layouts() -> impl Iterator<Item = Layout> {
    SIZES.iter().flat_map(|&size| ALIGNMENTS.iter().map(move |&a| Layout::from_size_align(size, a).unwrap()))
}

/// No page of it is like another.
fn pattern() -> &'static [u8] {
    static ONCE: Once = Once::new();
    static mut PATTERN: *const Vec<u8> = ptr::null();
    ONCE.call_once(|| {
        let bytes = (0..MOST as u32).map(|i| (i * 7 + i / 4096) as u8).collect();
        // SAFETY: nobody reads it before.
        unsafe { PATTERN = Box::leak(Box::new(bytes)) };
    });
    // SAFETY: set above, and never again.
    unsafe { &*PATTERN }
}

unsafe fn fill(object: *mut u8, size: usize) {
    unsafe { object.copy_from_nonoverlapping(pattern().as_ptr(), size) }
}

unsafe fn holds_pattern(object: *mut u8, size: usize) -> bool {
    unsafe { slice::from_raw_parts(object, size) == &pattern()[..size] }
}

unsafe fn is_zero(object: *mut u8, size: usize) -> bool {
    unsafe { slice::from_raw_parts(object, size).chunks(4096).all(|page| page == &[0; 4096][..page.len()]) }
}

#[test]
fn every_layout_is_kept() {
    for layout in layouts() {
        unsafe {
            let object = alloc(layout);
            assert!(!object.is_null() && object as usize % layout.align() == 0, "{:?}", layout);
            fill(object, layout.size());
            assert!(holds_pattern(object, layout.size()));
            dealloc(object, layout);
        }
    }
}

#[test]
fn zeroed_memory_is_zero_where_others_wrote_before() {
    for layout in layouts() {
        unsafe {
            let dirty = alloc(layout);
            fill(dirty, layout.size());
            dealloc(dirty, layout);
            let clean = alloc_zeroed(layout);
            assert!(!clean.is_null() && clean as usize % layout.align() == 0, "{:?}", layout);
            assert!(is_zero(clean, layout.size()), "{:?}", layout);
            dealloc(clean, layout);
        }
    }
}

#[test]
fn realloc_keeps_contents_and_alignment() {
    for layout in layouts() {
        for size in SIZES {
            unsafe {
                let object = alloc(layout);
                fill(object, layout.size());
                let moved = realloc(object, layout, size);
                assert!(!moved.is_null() && moved as usize % layout.align() == 0, "{:?} to {}", layout, size);
                assert!(holds_pattern(moved, size.min(layout.size())), "{:?} to {}", layout, size);
                assert!(usable_size(NonNull::new(moved).unwrap()) >= size);
                dealloc(moved, Layout::from_size_align(size, layout.align()).unwrap());
            }
        }
    }
}

// A fresh gibibyte of zeros takes no memory until it is written, also where it is aligned to a page.
#[test]
fn large_zeroed_memory_is_not_touched() {
    if !common::is_inner() {
        let output = common::run_inner("large_zeroed_memory_is_not_touched", "");
        assert!(output.status.success(), "{:?}", output);
        return;
    }
    fn resident_bytes() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    }
    let layout = Layout::from_size_align(1 << 30, 4096).unwrap();
    let before = resident_bytes();
    unsafe {
        let object = alloc_zeroed(layout);
        assert!(!object.is_null());
        assert!(resident_bytes() < before + (64 << 20), "{} to {} bytes", before, resident_bytes());
        dealloc(object, layout);
    }
}

#[test]
fn what_cannot_be_had_is_null() {
    for alignment in [1, 16, 32, 4096] {
        let layout = Layout::from_size_align(isize::MAX as usize - 4095, alignment).unwrap();
        let small = Layout::from_size_align(1000, alignment).unwrap();
        unsafe {
            assert!(alloc(layout).is_null());
            assert!(alloc_zeroed(layout).is_null());
            let object = alloc(small);
            fill(object, 1000);
            assert!(realloc(object, small, layout.size()).is_null());
            assert!(holds_pattern(object, 1000));
            dealloc(object, small);
        }
    }
    assert!(Vec::<u8>::new().try_reserve_exact(isize::MAX as usize).is_err());
}

#[test]
fn threads_free_what_others_allocated() {
    let (sender, receiver) = mpsc::channel::<(usize, Vec<String>)>();
    let readers = thread::spawn(move || {
        receiver
            .iter()
            .map(|(n, words)| {
                assert!(words.iter().enumerate().all(|(i, word)| *word == format!("{}/{}", n, i)));
                words.len()
            })
            .sum::<usize>()
    });
    for _ in 0..8 {
        let sender = sender.clone();
        thread::spawn(move || {
            for n in 0..200 {
                sender.send((n, (0..n).map(|i| format!("{}/{}", n, i)).collect())).unwrap();
            }
        });
    }
    drop(sender);
    assert_eq!(readers.join().unwrap(), 8 * (199 * 200 / 2));
}

#[test]
fn collections_work() {
    let counts = "a b a c b a".split(' ').fold(HashMap::new(), |mut counts: HashMap<String, u32>, word| {
        *counts.entry(word.into()).or_default() += 1;
        counts
    });
    let sorted: BTreeMap<_, _> = counts.into_iter().collect();
    assert_eq!(format!("{:?}", sorted), r#"{"a": 3, "b": 2, "c": 1}"#);
}

#[test]
fn lanes_can_be_set_and_bad_ones_are_refused() {
    if !common::is_inner() {
        let output = common::run_inner("lanes_can_be_set_and_bad_ones_are_refused", "lanes=shared:3");
        assert!(output.status.success(), "{:?}", output);
        return;
    }
    assert_eq!(lanes(), Lanes::Shared(3));
    assert_eq!(set_lanes(Lanes::Owned), Ok(()));
    assert_eq!(lanes(), Lanes::Owned);
    assert_eq!(set_lanes(Lanes::Shared(0)), Err(LanesError::Invalid));
    assert_eq!(set_lanes(Lanes::Shared(4097)), Err(LanesError::Invalid));
    assert_eq!(lanes(), Lanes::Owned);
    assert_eq!(LanesError::Invalid.to_string(), "the number of shared lanes is not 1 to 4096");
    match set_lanes(Lanes::PerCpu) {
        Ok(()) => assert_eq!(lanes(), Lanes::PerCpu),
        Err(error) => assert_eq!(error, LanesError::Unsupported),
    }
}

#[test]
fn freed_memory_goes_back_when_asked() {
    drop((0..1000).map(|_| vec![1u8; 100_000]).collect::<Vec<_>>());
    assert!(trim());
}

#[test]
fn a_double_free_ends_the_process_and_says_so() {
    if common::is_inner() {
        let layout = Layout::new::<[u64; 100]>();
        unsafe {
            let object = alloc(layout);
            dealloc(object, layout);
            dealloc(object, layout);
        }
        return;
    }
    let output = common::run_inner("a_double_free_ends_the_process_and_says_so", "checked=1");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(told.contains("lanemalloc: free(0x") && told.contains("): freed already"), "{}", told);
}
