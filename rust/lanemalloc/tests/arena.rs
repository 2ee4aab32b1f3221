//! Arenas: contents, drops, threads, growth, out of memory.

use std::alloc::Layout;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use lanemalloc::{Arena, OutOfMemory};

/// Says when it is dropped.
struct Mark(usize, Arc<Mutex<Vec<usize>>>);

impl Drop for Mark {
    fn drop(&mut self) {
        self.1.lock().unwrap().push(self.0);
    }
}

#[test]
fn values_stay_apart_and_as_they_were() {
    let arena = Arena::new();
    let numbers: Vec<&mut [u32]> =
        (0..500).map(|n| arena.alloc_slice_with(n as usize * 7, |i| n * 1000 + i as u32)).collect();
    let words: Vec<&mut str> = (0..500).map(|n| arena.alloc_str(&format!("word {}", n))).collect();
    for (n, slice) in numbers.iter().enumerate() {
        assert!(slice.iter().enumerate().all(|(i, value)| *value as usize == n * 1000 + i));
    }
    for (n, word) in words.iter().enumerate() {
        assert_eq!(**word, format!("word {}", n));
    }
}

#[test]
fn every_layout_is_kept() {
    #[repr(align(4096))]
    struct Page([u8; 100]);
    let arena = Arena::with_block_size(256);
    for n in 0..100 {
        let page = arena.alloc(Page([n; 100]));
        assert_eq!(page as *mut Page as usize % 4096, 0);
        assert!(page.0.iter().all(|&byte| byte == n));
        assert_eq!(arena.alloc(u64::from(n)) as *mut u64 as usize % 8, 0);
    }
    for (size, alignment) in [(0, 1), (0, 64), (1, 1), (100_000, 16), (1 << 20, 65_536)] {
        let piece = arena.try_alloc_layout(Layout::from_size_align(size, alignment).unwrap()).unwrap();
        assert_eq!(piece.as_ptr() as usize % alignment, 0);
    }
}

#[test]
fn what_needs_drop_is_dropped_once_newest_first() {
    let dropped = Arc::new(Mutex::new(Vec::new()));
    let mut arena = Arena::new();
    for n in 0..3 {
        assert_eq!(arena.alloc_with_drop(Mark(n, dropped.clone())).0, n);
    }
    arena.reset();
    assert_eq!(*dropped.lock().unwrap(), [2, 1, 0]);
    arena.reset();
    arena.alloc_with_drop(Mark(9, dropped.clone()));
    drop(arena);
    assert_eq!(*dropped.lock().unwrap(), [2, 1, 0, 9]);
    assert_eq!(Arc::strong_count(&dropped), 1);
}

#[test]
fn a_reset_gives_all_but_a_block_back() {
    let mut arena = Arena::with_block_size(4096);
    assert_eq!(arena.bytes(), 0);
    for _ in 0..1000 {
        arena.alloc([0u8; 1000]);
    }
    assert!(arena.bytes() > 1_000_000);
    arena.reset();
    assert!(arena.bytes() > 0 && arena.bytes() < 10_000);
}

// The same memory serves every round.
#[test]
fn a_reset_arena_does_not_grow() {
    let mut arena = Arena::new();
    let mut most = 0;
    for round in 0..100 {
        for n in 0..1000 {
            arena.alloc(n);
        }
        if round == 0 {
            most = arena.bytes();
        }
        assert_eq!(arena.bytes(), most);
        arena.reset();
    }
}

#[test]
fn arenas_are_handed_on() {
    let dropped = Arc::new(Mutex::new(Vec::new()));
    let arena = Arena::new();
    arena.alloc_with_drop(Mark(1, dropped.clone()));
    let arena = thread::spawn(move || {
        arena.alloc_with_drop(Mark(2, dropped.clone()));
        (arena, dropped)
    });
    let (arena, dropped) = arena.join().unwrap();
    drop(arena);
    assert_eq!(*dropped.lock().unwrap(), [2, 1]);
}

#[test]
fn texts_grow_while_what_is_formatted_allocates_too() {
    struct Greedy<'a>(&'a Arena);
    impl fmt::Display for Greedy<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            (0..200).try_for_each(|n| f.write_str(self.0.format(format_args!("<{}>", n))))
        }
    }
    let arena = Arena::with_block_size(256);
    let expected: String = (0..200).map(|n| format!("<{}>", n)).collect();
    let text = arena.format(format_args!("{}{}", Greedy(&arena), Greedy(&arena)));
    assert_eq!(*text, expected.repeat(2));
    assert_eq!(arena.format(format_args!("")), "");
}

#[test]
fn zeroed_is_zero_after_a_reset() {
    let mut arena = Arena::new();
    arena.alloc_slice(&[0xff_u8; 4000]);
    arena.reset();
    assert!(arena.alloc_zeroed(4000).iter().all(|&byte| byte == 0));
}

#[test]
fn what_cannot_be_had_is_an_error() {
    let arena = Arena::new();
    let layout = Layout::from_size_align(isize::MAX as usize - 15, 16).unwrap();
    assert_eq!(arena.try_alloc_layout(layout), Err(OutOfMemory));
    assert_eq!(arena.try_alloc(7).map(|n| *n), Ok(7));
}

#[test]
#[should_panic(expected = "blocks of an arena have 256 bytes to 512 KiB, not 0")]
fn a_block_size_of_zero_is_refused() {
    Arena::with_block_size(0);
}

#[test]
#[should_panic(expected = "blocks of an arena have 256 bytes to 512 KiB, not 1048576")]
fn a_large_block_size_is_refused() {
    Arena::with_block_size(1 << 20);
}

#[test]
fn values_of_no_size_are_dropped_too() {
    static DROPPED: AtomicUsize = AtomicUsize::new(0);
    struct Nothing;
    impl Drop for Nothing {
        fn drop(&mut self) {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }
    let arena = Arena::new();
    for _ in 0..10 {
        arena.alloc_with_drop(Nothing);
    }
    drop(arena);
    assert_eq!(DROPPED.load(Ordering::Relaxed), 10);
}

#[cfg(feature = "allocator-api2")]
#[test]
fn collections_lie_in_an_arena() {
    use allocator_api2::vec::Vec;
    let mut arena = Arena::new();
    {
        let mut one = Vec::new_in(&arena);
        let mut other = Vec::new_in(&arena);
        for n in 0..10_000_u64 {
            one.push(n);
            other.push(n as u8);
        }
        one.shrink_to_fit();
        assert!(one.iter().enumerate().all(|(i, n)| i as u64 == *n));
        assert!(other.iter().enumerate().all(|(i, n)| i as u8 == *n));
    }
    arena.reset();
}
