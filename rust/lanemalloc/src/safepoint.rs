//! Memory that is freed once nobody can be reading it any more: readers, and what is deferred.
//!
//! [`Deferred`] and [`Reader`] are for programs in safe Rust. Who writes a lock-free structure defers the drop
//! of what was unlinked by [`defer_drop`].
//!
//! ```
//! use lanemalloc::{safepoint, Deferred, Reader};
//! use std::thread;
//!
//! let routes = Deferred::new(vec!["a", "b"]);
//! thread::scope(|scope| {
//!     for _ in 0..2 {
//!         scope.spawn(|| {
//!             let reader = Reader::register("router").unwrap();
//!             for _ in 0..1000 {
//!                 let guard = reader.enter();
//!                 let now: &Vec<&str> = routes.load(&guard); // stays until the guard is dropped
//!                 assert!(now.len() >= 2);
//!             }
//!         });
//!     }
//!     for _ in 0..10 {
//!         routes.replace(vec!["c", "d", "e"]).unwrap(); // the former vector is dropped when nobody reads it
//!     }
//! });
//! safepoint::wait().unwrap();
//! ```
//!
//! A deferred free stores a word in the lane; a batch of them takes one operation that threads share. A reader writes nothing but its own
//! words. Source: quiescent-state-based reclamation; the shape is crossbeam-epoch's.

use core::alloc::Layout;
use core::fmt;
use core::marker::PhantomData;
use core::mem::{self, ManuallyDrop};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use alloc::boxed::Box;

use lanemalloc_sys::{
    c_int, c_void, lane_reader, lane_reader_enter, lane_reader_exit, lane_reader_offline, lane_reader_online,
    lane_reader_quiescent, lane_reader_register, lane_reader_unregister, lane_safepoint, lane_safepoint_call,
    lane_safepoint_free, lane_safepoint_get_statistics, lane_safepoint_poll, lane_safepoint_statistics,
    lane_safepoint_wait,
};

use crate::abort::abort_on_panic;
use crate::error::{out_of_memory, Name, OutOfMemory};
use crate::raw;

pub use lanemalloc_sys::lane_safepoint_statistics as Statistics;

/// Somebody who reads memory that others defer; usually one a thread. It may be sent to another thread while it is in no section.
///
/// A reader that stays in a section keeps all that is deferred from being freed; after a second it is named on standard error.
pub struct Reader {
    raw: NonNull<lane_reader>,
}

// SAFETY: nothing of it belongs to a thread while no guard borrows it. A forgotten guard's section goes on, wherever the reader is.
unsafe impl Send for Reader {}

impl Reader {
    /// Registers a reader. `name` is for messages, cut after 23 bytes. Takes time by the number of readers.
    pub fn register(name: &str) -> Result<Reader, OutOfMemory> {
        let name = Name::new(name);
        let raw = NonNull::new(raw::allocate_zeroed(Layout::new::<lane_reader>()).cast::<lane_reader>());
        let raw = raw.ok_or(OutOfMemory)?;
        // SAFETY: its place stays until it is unregistered; the name ends with a zero, and is copied.
        if unsafe { lane_reader_register(raw.as_ptr(), name.as_ptr()) } != 0 {
            // SAFETY: allocated above.
            unsafe { raw::free(raw.as_ptr().cast(), Layout::new::<lane_reader>()) };
            return Err(OutOfMemory);
        }
        Ok(Reader { raw })
    }

    /// Begins a read section, which ends when the guard is dropped. Sections nest.
    #[inline]
    pub fn enter(&self) -> Guard<'_> {
        // SAFETY: it is registered, and, since it is not Sync, used by this thread only.
        unsafe { lane_reader_enter(self.raw.as_ptr()) };
        Guard { reader: self.raw, borrow: PhantomData }
    }

    /// For threads that read nearly always: one long section, in which [`Online::quiescent`] says that nothing is held on to.
    pub fn online(&mut self) -> Online<'_> {
        // SAFETY: as in enter().
        unsafe { lane_reader_online(self.raw.as_ptr()) };
        Online { reader: self }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // SAFETY: it is registered. One with a forgotten guard stays registered, and so does its memory.
        unsafe {
            if lane_reader_unregister(self.raw.as_ptr()) == 0 {
                raw::free(self.raw.as_ptr().cast(), Layout::new::<lane_reader>());
            }
        }
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}

/// A read section. What is reachable in it is not freed before it is dropped.
///
/// It stays on its thread:
///
/// ```compile_fail
/// let reader = lanemalloc::Reader::register("reader").unwrap();
/// let guard = reader.enter();
/// std::thread::scope(|scope| {
///     scope.spawn(|| drop(guard));
/// });
/// ```
#[must_use = "the section ends when this is dropped"]
pub struct Guard<'r> {
    reader: NonNull<lane_reader>,
    borrow: PhantomData<&'r Reader>,
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this section was entered, and the reader is still registered, since it is borrowed.
        unsafe { lane_reader_exit(self.reader.as_ptr()) };
    }
}

impl fmt::Debug for Guard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").finish_non_exhaustive()
    }
}

/// One long read section, from [`Reader::online`]; it ends when this is dropped. To be left before the thread sleeps or waits.
///
/// ```
/// use lanemalloc::{Deferred, Reader};
///
/// let value = Deferred::new(1);
/// let mut reader = Reader::register("busy").unwrap();
/// let mut online = reader.online();
/// for _ in 0..10 {
///     assert_eq!(*value.load(&online.enter()), 1);
///     online.quiescent(); // no reference is left: the borrow checker has seen to it
/// }
/// ```
#[derive(Debug)]
#[must_use = "the section ends when this is dropped"]
pub struct Online<'r> {
    reader: &'r mut Reader,
}

impl Online<'_> {
    /// A guard to read with; it costs less than one of a reader that is not online.
    #[inline]
    pub fn enter(&self) -> Guard<'_> {
        self.reader.enter()
    }

    /// Nothing that was read before is held on to.
    #[inline]
    pub fn quiescent(&mut self) {
        // SAFETY: it is registered and online; no guard is left, unless one was forgotten: then this does nothing.
        unsafe { lane_reader_quiescent(self.reader.raw.as_ptr()) };
    }
}

impl Drop for Online<'_> {
    fn drop(&mut self) {
        // SAFETY: it is registered and online.
        unsafe { lane_reader_offline(self.reader.raw.as_ptr()) };
    }
}

/// The lane's share of what waits is full, and the caller may not wait: it is in a read section itself, in a function that is being called by
/// the allocator, or the system has no way to tell when readers are done. Nothing has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("too much is deferred already, and this thread may not wait for its readers")
    }
}

pub(crate) fn result(error: c_int) -> Result<(), Busy> {
    if error == 0 {
        Ok(())
    } else {
        Err(Busy)
    }
}

/// Drops a boxed object later, when no reader can have it any more: for structures that unlink it by an atomic operation.
///
/// ```
/// use lanemalloc::{safepoint, Reader};
/// use std::ptr::NonNull;
/// use std::sync::atomic::{AtomicPtr, Ordering};
///
/// let newest = AtomicPtr::new(Box::into_raw(Box::new(String::from("first"))));
/// let reader = Reader::register("reader").unwrap();
/// {
///     let _guard = reader.enter();
///     let seen = unsafe { &*newest.load(Ordering::Acquire) }; // while the guard is there
///     assert_eq!(seen, "first");
/// }
/// let former = newest.swap(Box::into_raw(Box::new(String::from("second"))), Ordering::AcqRel);
/// unsafe { safepoint::defer_drop(NonNull::new(former).unwrap()).unwrap() };
/// # drop(unsafe { Box::from_raw(newest.into_inner()) });
/// ```
///
/// The drop is made by another thread maybe, outside the allocator; a panic in it ends the program.
///
/// # Errors
///
/// With [`Busy`] nothing has happened, and the object is still the caller's.
///
/// # Safety
///
/// The pointer comes from [`Box::into_raw`], and nobody else drops it. Whoever can still reach it does so in a read section that began before
/// this call.
pub unsafe fn defer_drop<T: Send + 'static>(object: NonNull<T>) -> Result<(), Busy> {
    unsafe extern "C" fn end<T>(object: *mut c_void) {
        // SAFETY: the pointer of a box, which is nobody else's any more.
        abort_on_panic(|| drop(unsafe { Box::from_raw(object.cast::<T>()) }));
    }
    // SAFETY: the function may be called by any thread, since T is Send.
    result(unsafe { lane_safepoint_call(Some(end::<T>), object.as_ptr().cast()) })
}

/// Frees what was deferred, as the runtime of a language does when it has stopped all its threads. Returns how much.
///
/// # Safety
///
/// No thread holds a reference that it got in a read section, also where the section lasts.
pub unsafe fn stop() -> usize {
    // SAFETY: the caller's.
    unsafe { lane_safepoint() }
}

/// Frees what may be freed now; returns how much. Drops that call this themselves free less.
pub fn poll() -> usize {
    // SAFETY: nothing is asked of the caller that would concern memory: what readers may have stays.
    unsafe { lane_safepoint_poll() }
}

/// Waits until everything that was deferred before has been freed.
///
/// # Errors
///
/// [`Busy`] in a read section of this thread, in a drop that was deferred, and in a program that never had a reader.
pub fn wait() -> Result<(), Busy> {
    // SAFETY: as in poll().
    result(unsafe { lane_safepoint_wait() })
}

/// What was counted.
pub fn statistics() -> Statistics {
    let mut statistics = lane_safepoint_statistics::default();
    // SAFETY: it is written whole.
    unsafe { lane_safepoint_get_statistics(&mut statistics) };
    statistics
}

/// A value that some threads read while others replace it. Reading writes nothing that threads share; a former value is dropped when nobody can
/// be reading it any more, maybe by another thread.
///
/// There is an example at the head of [this module](self).
pub struct Deferred<T: Send + Sync + 'static> {
    /// Never null; the value's memory is lanemalloc's.
    value: AtomicPtr<T>,
    owns: PhantomData<T>,
}

/// A former value that could not be deferred, see [`Busy`]. [`retry`](Retired::retry) it outside the read section. Dropping this tries once more;
/// where that fails, too, the value is never dropped.
#[must_use = "the former value is not deferred yet"]
pub struct Retired<T: Send + 'static> {
    object: NonNull<T>,
    owns: PhantomData<T>,
}

// SAFETY: it owns a T that others may be reading.
unsafe impl<T: Send + Sync + 'static> Send for Retired<T> {}

fn layout_of<T>() -> Layout {
    // One byte for what has no size: its place tells it apart.
    let layout = Layout::new::<T>();
    Layout::from_size_align(layout.size().max(1), layout.align()).unwrap_or(layout)
}

fn place<T>(value: T) -> NonNull<T> {
    let layout = layout_of::<T>();
    let object = NonNull::new(raw::allocate(layout).cast::<T>()).unwrap_or_else(|| out_of_memory(layout));
    // SAFETY: the memory has the type's layout.
    unsafe { object.as_ptr().write(value) };
    object
}

/// # Safety
/// The object comes from `place`, and nobody has it.
unsafe fn drop_now<T>(object: NonNull<T>) {
    // SAFETY: the caller's.
    unsafe {
        ptr::drop_in_place(object.as_ptr());
        raw::free(object.as_ptr().cast(), layout_of::<T>());
    }
}

/// # Safety
/// The object comes from `place`, and cannot be reached by new readers.
unsafe fn drop_later<T: Send + 'static>(object: NonNull<T>) -> Result<(), Busy> {
    unsafe extern "C" fn end<T>(object: *mut c_void) {
        // SAFETY: nobody reads it any more.
        abort_on_panic(|| unsafe { drop_now(NonNull::new_unchecked(object.cast::<T>())) });
    }
    let object = object.as_ptr().cast::<c_void>();
    // SAFETY: the caller's; T is Send.
    result(unsafe {
        if mem::needs_drop::<T>() {
            lane_safepoint_call(Some(end::<T>), object)
        } else {
            lane_safepoint_free(object)
        }
    })
}

/// The library frees by readers from the first one on; before that it waits for stops of the world, which a program in Rust hardly has.
fn begin_to_tell() {
    static TELLS: AtomicBool = AtomicBool::new(false);
    // relaxed: doing it twice does no harm.
    if !TELLS.load(Ordering::Relaxed) && Reader::register("first").is_ok() {
        TELLS.store(true, Ordering::Relaxed);
    }
}

impl<T: Send + Sync + 'static> Deferred<T> {
    /// Ends the program, as `Box` does, where there is no memory.
    pub fn new(value: T) -> Self {
        begin_to_tell();
        Deferred { value: AtomicPtr::new(place(value).as_ptr()), owns: PhantomData }
    }

    /// The value as it is now. It stays while the guard is there, whatever others do.
    #[inline]
    pub fn load<'g>(&'g self, _guard: &'g Guard<'_>) -> &'g T {
        // SAFETY: it was the value in the guard's section, so that it is not dropped before that ends. Dropping the whole takes a borrow that
        // there is not while self is borrowed.
        // acquire: sees the value whole. Pairs with the releases in swap() and update().
        unsafe { &*self.value.load(Ordering::Acquire) }
    }

    /// # Errors
    ///
    /// The value is replaced in any case. Where the former one cannot be deferred, it comes back: see [`Busy`].
    pub fn replace(&self, value: T) -> Result<(), Retired<T>> {
        // acquire: the value may be dropped here. release: readers see the new one whole.
        let former = self.value.swap(place(value).as_ptr(), Ordering::AcqRel);
        // SAFETY: never null, and from place(); only one swap gets it.
        unsafe { Retired { object: NonNull::new_unchecked(former), owns: PhantomData } }.retry()
    }

    /// Replaces the value by what `next` makes of it, again if another thread was quicker.
    ///
    /// ```
    /// use lanemalloc::{Deferred, Reader};
    ///
    /// let names = Deferred::new(vec!["a"]);
    /// let reader = Reader::register("writer").unwrap();
    /// names.update(&reader, |now| now.iter().copied().chain(["b"]).collect()).unwrap();
    /// assert_eq!(*names.load(&reader.enter()), ["a", "b"]);
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`replace`](Deferred::replace).
    pub fn update(&self, reader: &Reader, mut next: impl FnMut(&T) -> T) -> Result<(), Retired<T>> {
        loop {
            let guard = reader.enter();
            let seen = self.load(&guard);
            let value = place(next(seen));
            let seen = seen as *const T as *mut T;
            // The guard keeps what was seen from being another value at the same place.
            let swapped =
                self.value.compare_exchange(seen, value.as_ptr(), Ordering::AcqRel, Ordering::Relaxed);
            drop(guard);
            match swapped {
                // SAFETY: as in replace().
                Ok(former) => {
                    return unsafe { Retired { object: NonNull::new_unchecked(former), owns: PhantomData } }
                        .retry()
                }
                // SAFETY: nobody has seen it.
                Err(_) => unsafe { drop_now(value) },
            }
        }
    }

    /// The value, without a guard: nobody else has it.
    pub fn get_mut(&mut self) -> &mut T {
        // SAFETY: never null, and nobody else can reach it.
        unsafe { &mut **self.value.get_mut() }
    }

    /// The value.
    pub fn into_inner(self) -> T {
        let this = ManuallyDrop::new(self);
        let object = this.value.load(Ordering::Relaxed);
        // SAFETY: nobody else can reach it; what is freed is the memory, not the value.
        unsafe {
            let value = object.read();
            raw::free(object.cast(), layout_of::<T>());
            value
        }
    }
}

impl<T: Send + Sync + 'static> Drop for Deferred<T> {
    fn drop(&mut self) {
        // SAFETY: never null; whoever has loaded it borrows self, and there is no borrow any more.
        unsafe { drop_now(NonNull::new_unchecked(*self.value.get_mut())) };
    }
}

impl<T: Send + Sync + Default + 'static> Default for Deferred<T> {
    fn default() -> Self {
        Deferred::new(T::default())
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for Deferred<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deferred").finish_non_exhaustive()
    }
}

impl<T: Send + 'static> Retired<T> {
    /// Defers the drop of the value; in a read section of this thread that is refused as before.
    pub fn retry(self) -> Result<(), Retired<T>> {
        let this = ManuallyDrop::new(self);
        // SAFETY: it was unlinked from a Deferred, once.
        unsafe { drop_later(this.object) }.map_err(|Busy| ManuallyDrop::into_inner(this))
    }
}

impl<T: Send + 'static> Drop for Retired<T> {
    fn drop(&mut self) {
        // SAFETY: as in retry(). A value that is refused again is leaked, which the type says.
        let _ = unsafe { drop_later(self.object) };
    }
}

impl<T: Send + 'static> fmt::Debug for Retired<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retired").finish_non_exhaustive()
    }
}

impl<T: Send + 'static> fmt::Display for Retired<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Busy.fmt(f)
    }
}
