//! allocator-api2's Allocator: collections with an allocator of their own, and the rules of its functions.
#![cfg(feature = "allocator-api2")]

use std::alloc::Layout;

use allocator_api2::alloc::Allocator;
use allocator_api2::boxed::Box;
use allocator_api2::vec::Vec;
use lanemalloc::Lanemalloc;

#[test]
fn collections_take_it() {
    let mut squares = Vec::new_in(Lanemalloc);
    squares.extend((0..1000u64).map(|i| i * i));
    squares.shrink_to_fit();
    let boxed = Box::new_in(squares, Lanemalloc);
    assert_eq!(boxed.iter().sum::<u64>(), 332_833_500);
}

// Calls every function with a zero size before or after, a changed alignment, and the usual.
#[test]
fn contents_survive_every_change_of_layout() {
    let layouts: std::vec::Vec<_> =
        [(0, 1), (0, 64), (24, 8), (100, 16), (100, 64), (5000, 4096), (700_000, 32)]
            .map(|(size, alignment)| Layout::from_size_align(size, alignment).unwrap())
            .into();
    for &old in &layouts {
        for &new in &layouts {
            let object = Lanemalloc.allocate(old).unwrap().cast::<u8>();
            assert_eq!(object.as_ptr() as usize % old.align(), 0);
            unsafe {
                (0..old.size()).for_each(|i| *object.as_ptr().add(i) = i as u8);
                let changed = if new.size() >= old.size() {
                    let grown = Lanemalloc.grow_zeroed(object, old, new).unwrap().cast::<u8>();
                    assert!((old.size()..new.size()).all(|i| *grown.as_ptr().add(i) == 0));
                    grown
                } else {
                    Lanemalloc.shrink(object, old, new).unwrap().cast::<u8>()
                };
                assert_eq!(changed.as_ptr() as usize % new.align(), 0);
                assert!((0..old.size().min(new.size())).all(|i| *changed.as_ptr().add(i) == i as u8));
                Lanemalloc.deallocate(changed, new);
            }
        }
    }
}

#[test]
fn zeroed_is_zero_and_too_much_is_an_error() {
    let layout = Layout::from_size_align(100, 64).unwrap();
    let object = Lanemalloc.allocate_zeroed(layout).unwrap();
    unsafe {
        assert!(object.as_ref().iter().all(|&byte| byte == 0));
        Lanemalloc.deallocate(object.cast(), layout);
    }
    assert!(Lanemalloc.allocate(Layout::from_size_align(isize::MAX as usize, 1).unwrap()).is_err());
    assert!(Vec::<u8, _>::new_in(Lanemalloc).try_reserve_exact(isize::MAX as usize).is_err());
}
