//! Heaps: layouts, limits, children, walks, threads.

use std::alloc::Layout;
use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

use lanemalloc::{CreateError, Heap, InvalidLimit, OutOfMemory};

fn layout(size: usize, alignment: usize) -> Layout {
    Layout::from_size_align(size, alignment).unwrap()
}

#[test]
fn every_layout_is_kept_through_a_realloc() {
    let heap = Heap::new().unwrap();
    for (size, alignment) in
        [(0, 1), (1, 1), (100, 16), (100, 64), (5000, 4096), (700_000, 16), (700_000, 65_536)]
    {
        for new_size in [1, 100, 3000, 1_000_000] {
            let old = layout(size, alignment);
            unsafe {
                let object = heap.alloc_zeroed(old).unwrap();
                assert!((0..size).all(|i| *object.as_ptr().add(i) == 0));
                (0..size).for_each(|i| *object.as_ptr().add(i) = i as u8);
                let moved = heap.realloc(object, old, new_size).unwrap();
                assert_eq!(moved.as_ptr() as usize % alignment, 0);
                assert!((0..size.min(new_size)).all(|i| *moved.as_ptr().add(i) == i as u8));
                assert!(heap.usable_size(moved) >= new_size);
                heap.free(moved, layout(new_size, alignment));
            }
        }
    }
    assert_eq!(heap.statistics().live_objects, 0);
}

#[test]
fn limits_hold_and_the_soft_one_is_told() {
    let (calls, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let heap = Heap::builder()
        .name("limited")
        .limit(4 << 20)
        .soft_limit(1 << 20, |used| {
            calls.fetch_add(1, SeqCst);
            most.fetch_max(used, SeqCst);
        })
        .build()
        .unwrap();
    let mut objects = Vec::new();
    while let Ok(object) = heap.alloc(layout(1000, 8)) {
        objects.push(object);
        assert!(objects.len() <= (4 << 20) / 1000);
    }
    assert!(objects.len() > (3 << 20) / 1000);
    assert_eq!(calls.load(SeqCst), 1);
    assert!(most.load(SeqCst) > 1 << 20);
    let statistics = heap.statistics();
    assert!(statistics.used_bytes <= 4 << 20 && statistics.limit_failures >= 1);
    objects.into_iter().for_each(|object| unsafe { heap.free(object, layout(1000, 8)) });
    assert!(heap.alloc(layout(1000, 8)).is_ok());
    assert_eq!(heap.set_limits(2, 1), Err(InvalidLimit));
    assert_eq!(heap.set_limits(0, 0), Ok(()));
    assert!(heap.alloc(layout(8 << 20, 8)).is_ok());
}

#[test]
fn contradictions_are_refused() {
    assert_eq!(Heap::builder().limit(1).soft_limit(2, |_| ()).build().err(), Some(CreateError::Invalid));
    assert_eq!(Heap::new().unwrap().set_limits(1, 2), Err(InvalidLimit));
}

#[test]
fn children_are_charged_to_their_parents() {
    let parent = Heap::builder().limit(1 << 20).build().unwrap();
    let child = parent.child().name("child").build().unwrap();
    let grandchild = child.child().build().unwrap();
    assert_eq!(grandchild.alloc(layout(2 << 20, 8)), Err(OutOfMemory));
    grandchild.alloc(layout(500_000, 8)).unwrap();
    assert!(parent.statistics().used_bytes >= 500_000);
    assert_eq!(child.alloc(layout(900_000, 8)), Err(OutOfMemory));
    drop(grandchild); // with its object
    assert!(child.alloc(layout(900_000, 8)).is_ok());
}

#[test]
fn a_walk_sees_what_lives() {
    let heap = Heap::new().unwrap();
    let allocate = |n: usize| (heap.alloc(layout(n * 50, 8)).unwrap(), layout(n * 50, 8));
    let (kept, freed): (Vec<_>, Vec<_>) =
        (1..200).map(allocate).partition(|(_, layout)| layout.size() % 100 == 0);
    freed.into_iter().for_each(|(object, layout)| unsafe { heap.free(object, layout) });
    let mut seen = BTreeSet::new();
    let visit = |object: NonNull<u8>, size: usize| size > 0 && seen.insert(object);
    unsafe { heap.walk(visit).unwrap() };
    assert_eq!(seen, kept.iter().map(|(object, _)| *object).collect());
    let mut visits = 0;
    unsafe { heap.walk(|_, _| (visits += 1, visits < 3).1).unwrap() };
    assert_eq!(visits, 3);
}

#[test]
fn threads_free_what_others_allocated() {
    let heap = Heap::new().unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for n in 1..500 {
                    let object = heap.alloc(layout(n, 8)).unwrap().as_ptr() as usize;
                    let heap = &heap;
                    let free =
                        move || unsafe { heap.free(NonNull::new(object as *mut u8).unwrap(), layout(n, 8)) };
                    if n % 50 == 0 {
                        scope.spawn(free);
                    } else {
                        free();
                    }
                }
            });
        }
    });
    assert_eq!(heap.statistics().live_objects, 0);
    assert!(heap.trim() > 0);
}

#[cfg(feature = "allocator-api2")]
#[test]
fn collections_lie_in_a_heap() {
    use allocator_api2::boxed::Box;
    use allocator_api2::vec::Vec;
    let heap = Heap::builder().limit(1 << 20).build().unwrap();
    let mut numbers = Vec::new_in(&heap);
    numbers.extend(0..10_000_u32);
    let boxed = Box::new_in([7_u8; 100], &heap);
    assert_eq!(heap.statistics().live_objects, 2);
    assert!(numbers.try_reserve(1 << 20).is_err());
    assert_eq!((numbers.iter().sum::<u32>(), boxed[99]), (49_995_000, 7));
}
