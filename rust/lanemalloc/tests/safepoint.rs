//! Deferred values: nothing is dropped while it is read, everything is dropped once, and a full share is an error.

mod common;

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::thread;

use lanemalloc::safepoint::{self, Busy};
use lanemalloc::{Deferred, Heap, Pool, PoolBox, Reader};

/// Counts its drops, and is spoilt by them.
struct Watched {
    whole: u64,
    drops: Arc<AtomicUsize>,
}

const WHOLE: u64 = 0x7a6e_6d61_6c6c_6f63;

impl Watched {
    fn new(drops: &Arc<AtomicUsize>) -> Self {
        Watched { whole: WHOLE, drops: drops.clone() }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        assert_eq!(self.whole, WHOLE);
        self.whole = 0;
        self.drops.fetch_add(1, SeqCst);
    }
}

#[test]
fn nothing_is_dropped_while_it_is_read_and_all_is_dropped_once() {
    const VALUES: usize = 30_000;
    let drops = Arc::new(AtomicUsize::new(0));
    let value = Deferred::new(Watched::new(&drops));
    let over = AtomicBool::new(false);
    let all_read = Barrier::new(5); // two writers, and the readers after their first round
    thread::scope(|scope| {
        for n in 0..3 {
            let (value, over, all_read) = (&value, &over, &all_read);
            scope.spawn(move || {
                let mut reader = Reader::register("tester").unwrap();
                let (mut reads, mut rounds) = (0, 0);
                while !over.load(SeqCst) {
                    if n == 0 {
                        let mut online = reader.online();
                        for _ in 0..100 {
                            reads += usize::from(value.load(&online.enter()).whole == WHOLE);
                            online.quiescent();
                        }
                    } else {
                        for _ in 0..100 {
                            let guard = reader.enter();
                            let seen = value.load(&guard);
                            let nested = reader.enter();
                            reads += usize::from(value.load(&nested).whole == WHOLE && seen.whole == WHOLE);
                            drop(nested);
                            assert_eq!(seen.whole, WHOLE);
                        }
                    }
                    rounds += 1;
                    if rounds == 1 {
                        all_read.wait();
                    }
                }
                assert_eq!(reads, rounds * 100);
            });
        }
        let (value, drops, all_read) = (&value, &drops, &all_read);
        let writers = [0, 1].map(|_| {
            scope.spawn(move || {
                all_read.wait();
                for _ in 0..VALUES / 2 {
                    value.replace(Watched::new(drops)).unwrap();
                }
            })
        });
        for writer in writers {
            writer.join().unwrap();
        }
        over.store(true, SeqCst);
    });
    safepoint::wait().unwrap();
    assert_eq!(drops.load(SeqCst), VALUES);
    drop(value);
    assert_eq!(drops.load(SeqCst), VALUES + 1);
}

#[test]
fn a_guard_keeps_its_value_and_wait_waits_for_it() {
    let drops = Arc::new(AtomicUsize::new(0));
    let value = Deferred::new(Watched::new(&drops));
    let entered = Barrier::new(2);
    let replaced = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            let reader = Reader::register("holder").unwrap();
            let guard = reader.enter();
            let seen = value.load(&guard);
            entered.wait();
            replaced.wait();
            for _ in 0..100 {
                safepoint::poll();
            }
            assert_eq!((seen.whole, drops.load(SeqCst)), (WHOLE, 0));
            assert_eq!(safepoint::wait(), Err(Busy));
        });
        entered.wait();
        value.replace(Watched::new(&drops)).unwrap();
        replaced.wait();
        safepoint::wait().unwrap();
        assert_eq!(drops.load(SeqCst), 1);
    });
}

#[test]
fn updates_are_not_lost() {
    let sum = Deferred::new(vec![0_u64]);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let reader = Reader::register("adder").unwrap();
                for _ in 0..1000 {
                    sum.update(&reader, |now| vec![now[0] + 1]).unwrap();
                }
            });
        }
    });
    assert_eq!(sum.into_inner(), [4000]);
}

#[test]
fn values_without_drop_and_without_size_work() {
    let mut number = Deferred::new(1_u8);
    let nothing = Deferred::new(());
    let reader = Reader::register("reader").unwrap();
    for n in 0..10_000_u32 {
        number.replace(n as u8).unwrap();
        nothing.replace(()).unwrap();
        assert_eq!(*number.load(&reader.enter()), n as u8);
    }
    *number.get_mut() += 1;
    assert_eq!(number.into_inner(), 16);
}

#[test]
fn a_full_share_in_a_section_is_an_error_and_nothing_is_lost() {
    // Alone: the drops of other tests must not find the share full.
    if !common::is_inner() {
        let output = common::run_inner("a_full_share_in_a_section_is_an_error_and_nothing_is_lost", "");
        assert!(output.status.success(), "{:?}", output);
        return;
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let value = Deferred::new(Watched::new(&drops));
    let reader = Reader::register("writer").unwrap();
    let guard = reader.enter();
    let mut made = 0;
    let retired = loop {
        made += 1;
        if let Err(retired) = value.replace(Watched::new(&drops)) {
            break retired;
        }
        assert!(made < 1_000_000);
    };
    assert!(retired.to_string().starts_with("too much is deferred"));
    let retired = retired.retry().unwrap_err();
    assert_eq!(drops.load(SeqCst), 0);
    drop(guard);
    retired.retry().unwrap();
    safepoint::wait().unwrap();
    assert_eq!(drops.load(SeqCst), made);
}

#[test]
fn boxes_are_dropped_later() {
    let drops = Arc::new(AtomicUsize::new(0));
    let reader = Reader::register("reader").unwrap();
    let guard = reader.enter();
    let object = Box::into_raw(Box::new(Watched::new(&drops)));
    unsafe { safepoint::defer_drop(NonNull::new(object).unwrap()).unwrap() };
    safepoint::poll();
    assert_eq!(unsafe { (*object).whole }, WHOLE);
    drop(guard);
    safepoint::wait().unwrap();
    assert_eq!(drops.load(SeqCst), 1);
}

// Of the library's rules none is there to be kept by safe code: drops may defer, poll and wait.
#[test]
fn drops_may_use_everything() {
    struct Curious(Arc<AtomicUsize>, &'static Deferred<u32>);
    impl Drop for Curious {
        fn drop(&mut self) {
            self.1.replace(7).unwrap();
            safepoint::poll();
            assert_eq!(safepoint::wait(), Err(Busy));
            self.0.fetch_add(1, SeqCst);
        }
    }
    let other: &'static Deferred<u32> = Box::leak(Box::new(Deferred::new(0)));
    let drops = Arc::new(AtomicUsize::new(0));
    let value = Deferred::new(Curious(drops.clone(), other));
    for _ in 0..1000 {
        value.replace(Curious(drops.clone(), other)).unwrap();
    }
    safepoint::wait().unwrap();
    assert_eq!(drops.load(SeqCst), 1000);
    std::mem::forget(value);
}

#[test]
fn a_forgotten_guard_is_safe() {
    if !common::is_inner() {
        let output = common::run_inner("a_forgotten_guard_is_safe", "deferred=64");
        assert!(output.status.success(), "{:?}", output);
        return;
    }
    let value = Deferred::new(String::from("kept"));
    let reader = Reader::register("leaky").unwrap();
    let seen = {
        let guard = Box::leak(Box::new(reader.enter()));
        value.load(guard)
    };
    value.replace(String::from("next")).unwrap();
    safepoint::poll();
    assert_eq!(seen, "kept");
    drop(reader); // is in a section for good, and stays registered
    while value.replace(String::from("more")).map_err(std::mem::forget).is_ok() {}
    assert!(safepoint::statistics().readers >= 1);
}

#[test]
fn a_stop_frees_what_was_deferred() {
    if !common::is_inner() {
        let output = common::run_inner("a_stop_frees_what_was_deferred", "");
        assert!(output.status.success(), "{:?}", output);
        return;
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let value = Deferred::new(Watched::new(&drops));
    let reader = Reader::register("reader").unwrap();
    let _guard = reader.enter();
    for _ in 0..10 {
        value.replace(Watched::new(&drops)).unwrap();
    }
    assert_eq!(safepoint::poll(), 0);
    let before = safepoint::statistics();
    // SAFETY: nothing is held on to.
    assert_eq!(unsafe { safepoint::stop() }, 10);
    assert_eq!(drops.load(SeqCst), 10);
    assert_eq!(safepoint::statistics().freed, before.freed + 10);
}

#[test]
fn objects_of_heaps_and_pools_are_in_use_until_nobody_reads_them() {
    let reader = Reader::register("heaps and pools").unwrap();
    let (heap, pool) = (Heap::new().unwrap(), Pool::<[u64; 7]>::new().unwrap());
    let layouts =
        [(40, 8), (100_000, 16), (64, 64)].map(|(size, align)| Layout::from_size_align(size, align).unwrap());
    let guard = reader.enter();
    for layout in layouts {
        unsafe { heap.free_later(heap.alloc(layout).unwrap(), layout).unwrap() };
    }
    let value = PoolBox::into_raw(pool.alloc([5; 7]).unwrap());
    unsafe { pool.free_later(value).unwrap() };
    safepoint::poll();
    assert_eq!((heap.statistics().live_objects, pool.statistics().live), (3, 1));
    assert_eq!(unsafe { value.as_ref() }, &[5; 7]);
    drop(guard);
    safepoint::wait().unwrap();
    assert_eq!((heap.statistics().live_objects, pool.statistics().live), (0, 0));
    // What waits when its owner goes is freed before.
    unsafe { pool.free_later(PoolBox::into_raw(pool.alloc([6; 7]).unwrap())).unwrap() };
}
