//! Pools and recyclers: drops, limits, waiting, threads, alignment.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;
use std::thread;

use lanemalloc::{CreateError, InvalidLimit, OutOfMemory, Padding, Pool, PoolBox, Reclaim, Recycler};

#[test]
fn values_stay_apart_and_are_dropped_once() {
    struct Mark(u64, Rc<Cell<usize>>);
    impl Drop for Mark {
        fn drop(&mut self) {
            self.1.set(self.1.get() + 1);
        }
    }
    let drops = Rc::new(Cell::new(0));
    let pool = Pool::new().unwrap();
    let mut marks: Vec<_> = (0..10_000).map(|n| pool.alloc(Mark(n, drops.clone())).ok().unwrap()).collect();
    assert!(marks.iter().enumerate().all(|(n, mark)| mark.0 == n as u64));
    assert_eq!(pool.statistics().live, 10_000);
    marks.retain(|mark| mark.0 % 2 == 0);
    marks.iter_mut().for_each(|mark| mark.0 += 1);
    assert_eq!((drops.get(), pool.statistics().live), (5000, 5000));
    assert_eq!(PoolBox::into_inner(marks.pop().unwrap()).0, 9999);
    drop(marks);
    assert_eq!((drops.get(), pool.statistics().live), (10_000, 0));
}

#[test]
fn threads_drop_what_others_allocated() {
    let pool = Pool::builder().name("messages").build().unwrap();
    let (sender, receiver) = mpsc::channel::<PoolBox<String>>();
    thread::scope(|scope| {
        scope.spawn(|| receiver.into_iter().for_each(|text| assert_eq!(*text, "message")));
        for _ in 0..4 {
            let (sender, pool) = (sender.clone(), &pool);
            scope.spawn(move || {
                for _ in 0..10_000 {
                    sender.send(pool.alloc(String::from("message")).unwrap()).unwrap();
                }
            });
        }
        drop(sender);
    });
    assert_eq!(pool.statistics().live, 0);
}

#[test]
fn types_decide_the_layout() {
    #[derive(Debug)]
    #[repr(align(256))]
    struct Wide(u8);
    let wide = Pool::new().unwrap();
    let odd = Pool::new().unwrap();
    let nothing = Pool::new().unwrap();
    for n in 0..100 {
        let value = wide.alloc(Wide(n)).unwrap();
        assert_eq!((&*value as *const Wide as usize % 256, value.0), (0, n));
        assert_eq!(odd.alloc([n; 24]).unwrap()[23], n);
        nothing.alloc(()).unwrap();
    }
    assert_eq!(odd.statistics().object_size, 24);
    for (padding, bytes) in [(Padding::OwnLine, 64), (Padding::OwnPair, 128)] {
        let padded = Pool::builder().padding(padding).build().unwrap();
        let values: Vec<_> = (0..100_u8).map(|n| padded.alloc(n).unwrap()).collect();
        let mut lines: Vec<_> = values.iter().map(|value| &**value as *const u8 as usize / bytes).collect();
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), 100);
    }
}

#[test]
fn what_cannot_be_is_refused() {
    #[repr(align(131072))]
    struct TooWide(#[allow(dead_code)] u8);
    assert_eq!(Pool::<TooWide>::new().err(), Some(CreateError::Invalid));
    assert_eq!(Pool::<[u8; 1 << 20]>::new().err(), Some(CreateError::Invalid));
    assert_eq!(Pool::<u64>::builder().limit(5).reserve(6).build().err(), Some(CreateError::Invalid));
}

#[test]
fn a_limit_holds_and_the_reserve_is_kept() {
    let pool = Pool::builder().limit(10).reserve(2).build().unwrap();
    let mut values: Vec<_> = (0..).map_while(|n| pool.alloc(n).ok()).collect();
    assert_eq!(values.len(), 8);
    assert_eq!(pool.alloc(99).unwrap_err(), 99);
    values.push(pool.alloc_reserved(8).unwrap());
    values.push(pool.alloc_reserved(9).unwrap());
    assert_eq!(pool.alloc_reserved(10).unwrap_err(), 10);
    assert!(values.iter().enumerate().all(|(n, value)| **value == n));
    assert_eq!(pool.set_limit(1), Err(InvalidLimit));
    assert_eq!(pool.set_limit(20), Ok(()));
    values.push(pool.alloc(10).unwrap());
    assert!(pool.statistics().limit_failures >= 2);
}

#[test]
fn who_waits_gets_what_another_thread_drops() {
    let pool = Pool::builder().limit(1).build().unwrap();
    let first = pool.alloc(1).unwrap();
    thread::scope(|scope| {
        let second = scope.spawn(|| *pool.alloc_waiting(2).unwrap());
        while pool.statistics().waits == 0 {
            thread::yield_now();
        }
        drop(first);
        assert_eq!(second.join().unwrap(), 2);
    });
}

#[test]
fn raw_and_leaked_values_work() {
    let pool = Pool::new().unwrap();
    let raw = PoolBox::into_raw(pool.alloc(String::from("raw")).unwrap());
    assert_eq!(*unsafe { pool.from_raw(raw) }, "raw");
    let leaked = PoolBox::leak(pool.alloc(String::new()).unwrap());
    leaked.push('x');
    assert_eq!(pool.statistics().live, 1);
    std::mem::take(leaked);
}

#[test]
fn a_value_whose_drop_panics_is_freed() {
    struct Angry;
    impl Drop for Angry {
        fn drop(&mut self) {
            panic!("angry");
        }
    }
    let pool = Pool::new().unwrap();
    let value = pool.alloc(Angry).ok().unwrap();
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(value))).is_err());
    assert_eq!(pool.statistics().live, 0);
}

#[test]
fn recycled_values_stay_made_until_the_end() {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    static DROPPED: AtomicUsize = AtomicUsize::new(0);
    struct Kept(Vec<u32>);
    impl Drop for Kept {
        fn drop(&mut self) {
            DROPPED.fetch_add(1, SeqCst);
        }
    }
    let recycler = Recycler::builder()
        .recycle(|| {
            MADE.fetch_add(1, SeqCst);
            Kept(vec![7])
        })
        .unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for n in 0..1000 {
                    let mut value = recycler.get().unwrap();
                    assert_eq!(value.0[0], 7);
                    value.0.truncate(1);
                    value.0.push(n);
                }
            });
        }
    });
    let made = MADE.load(SeqCst);
    assert!((1..2000).contains(&made) && DROPPED.load(SeqCst) == 0);
    assert!(recycler.reclaim(Reclaim::DrainAll) > 0);
    assert!(DROPPED.load(SeqCst) > 0);
    drop(recycler);
    assert_eq!(DROPPED.load(SeqCst), MADE.load(SeqCst));
}

#[test]
fn recyclers_have_limits_and_make_ahead() {
    let recycler = Recycler::builder().limit(3).recycle(|| [0_u8; 100]).unwrap();
    recycler.prealloc(3).unwrap();
    assert_eq!(recycler.statistics().cached, 3);
    let mut values: Vec<_> = (0..3).map(|_| recycler.get().unwrap()).collect();
    assert_eq!(recycler.get().err(), Some(OutOfMemory));
    values.pop();
    assert!(recycler.get_waiting().is_ok());
}
