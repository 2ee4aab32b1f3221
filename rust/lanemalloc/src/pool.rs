//! `Pool`: values of one type, dropped when they are given back. `Recycler`: values that stay made.

use core::alloc::Layout;
use core::fmt;
use core::marker::PhantomData;
use core::mem::{self, ManuallyDrop};
use core::ops::{Deref, DerefMut};
use core::ptr::{self, NonNull};

use alloc::boxed::Box;

use lanemalloc_sys::{
    c_int, c_void, lane_padding, lane_pool, lane_pool_alloc, lane_pool_alloc_with, lane_pool_create,
    lane_pool_destroy, lane_pool_free, lane_pool_get_statistics, lane_pool_options, lane_pool_prealloc,
    lane_pool_reclaim, lane_pool_set_limit, lane_pool_statistics, lane_reclaim, lane_safepoint_pool_free,
    LANE_DRAIN, LANE_DRAIN_ALL, LANE_OWN_LINE, LANE_OWN_PAIR, LANE_PACKED, LANE_POOL_USE_RESERVE,
    LANE_POOL_WAIT, LANE_TRIM,
};

use crate::abort::abort_on_panic;
use crate::error::{last_error, CreateError, InvalidLimit, Name, OutOfMemory};
use crate::safepoint::{self, Busy};

pub use lanemalloc_sys::lane_pool_statistics as PoolStatistics;

/// How far apart the values of a pool lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Padding {
    /// As close as their alignment lets them.
    #[default]
    Packed,
    /// No two in one cache line of 64 bytes.
    OwnLine,
    /// No two in one pair of lines, 128 bytes: what CPUs fetch together.
    OwnPair,
}

/// How much memory [`Pool::reclaim`] gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaim {
    /// What no lane has in use.
    Trim,
    /// And what rests in lanes whose threads are not inside the allocator.
    Drain,
    /// And in all others: waits for threads that are inside.
    DrainAll,
}

/// What a pool is to be; from [`Pool::builder`] and [`Recycler::builder`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct PoolBuilder<T> {
    name: Name,
    padding: Padding,
    limit: usize,
    reserve: usize,
    of: PhantomData<fn() -> T>,
}

impl<T> PoolBuilder<T> {
    fn new() -> Self {
        PoolBuilder {
            name: Name::new("pool"),
            padding: Padding::Packed,
            limit: 0,
            reserve: 0,
            of: PhantomData,
        }
    }

    /// For messages and statistics, cut after 31 bytes.
    pub fn name(mut self, name: &str) -> Self {
        self.name = Name::new(name);
        self
    }

    /// How far apart the values lie.
    pub fn padding(mut self, padding: Padding) -> Self {
        self.padding = padding;
        self
    }

    /// How many values there may be, in use or cached; 0: no limit.
    pub fn limit(mut self, values: usize) -> Self {
        self.limit = values;
        self
    }

    /// Of these, how many are kept for [`Pool::alloc_reserved`].
    pub fn reserve(mut self, values: usize) -> Self {
        self.reserve = values;
        self
    }

    /// The pool.
    pub fn build(self) -> Result<Pool<T>, CreateError> {
        Ok(Pool { raw: self.create(&self.options())?, of: PhantomData })
    }

    /// A recycler, whose values `make` makes. A panic in it ends the program.
    pub fn recycle<F: Fn() -> T + Send + Sync>(self, make: F) -> Result<Recycler<T, F>, CreateError>
    where
        T: Send,
    {
        unsafe extern "C" fn init<T, F: Fn() -> T>(
            object: *mut c_void,
            _: usize,
            make: *mut c_void,
        ) -> c_int {
            // SAFETY: the object has T's layout, and the function stays as long as the pool.
            abort_on_panic(|| unsafe { object.cast::<T>().write((*make.cast::<F>())()) });
            0
        }
        unsafe extern "C" fn fini<T>(object: *mut c_void, _: usize, _: *mut c_void) {
            // SAFETY: init has made it, and nobody uses it.
            abort_on_panic(|| unsafe { ptr::drop_in_place(object.cast::<T>()) });
        }

        // As a pointer, so that moving the recycler does not claim it anew.
        let make = Box::into_raw(Box::new(make));
        let options = lane_pool_options {
            init: Some(init::<T, F>),
            fini: Some(fini::<T>),
            argument: make.cast(),
            ..self.options()
        };
        match self.create(&options) {
            // SAFETY: a box's.
            Ok(raw) => Ok(Recycler { raw, make: unsafe { NonNull::new_unchecked(make) }, of: PhantomData }),
            Err(error) => {
                // SAFETY: no pool uses it.
                drop(unsafe { Box::from_raw(make) });
                Err(error)
            }
        }
    }

    fn options(&self) -> lane_pool_options {
        let layout = Layout::new::<T>();
        lane_pool_options {
            name: ptr::null(),
            object_size: layout.size().max(1),
            alignment: layout.align(),
            padding: match self.padding {
                Padding::Packed => LANE_PACKED,
                Padding::OwnLine => LANE_OWN_LINE,
                Padding::OwnPair => LANE_OWN_PAIR,
            } as lane_padding,
            init: None,
            fini: None,
            ctor: None,
            dtor: None,
            argument: ptr::null_mut(),
            limit: self.limit,
            reserve: self.reserve,
            import_objects: None,
            release_objects: None,
            source: ptr::null_mut(),
        }
    }

    fn create(&self, options: &lane_pool_options) -> Result<NonNull<lane_pool>, CreateError> {
        let options = lane_pool_options { name: self.name.as_ptr(), ..*options };
        // SAFETY: the name ends with a zero; it is copied.
        NonNull::new(unsafe { lane_pool_create(&options) }).ok_or_else(last_error)
    }
}

/// Values of one type. Each lane that uses the pool has slabs of its own for it, so threads do not meet in it; any thread may drop what
/// another allocated.
///
/// ```
/// use lanemalloc::Pool;
///
/// struct Request { path: String }
///
/// let pool = Pool::builder().name("requests").limit(1000).build().unwrap();
/// let mut request = pool.alloc(Request { path: "/".into() }).ok().unwrap();
/// request.path.push_str("index");
/// std::thread::scope(|scope| {
///     scope.spawn(move || assert_eq!(request.path, "/index")); // dropped there
/// });
/// assert_eq!(pool.statistics().live, 0);
/// ```
///
/// Values borrow the pool; what was forgotten or leaked is not dropped with the pool, only its memory goes.
pub struct Pool<T> {
    raw: NonNull<lane_pool>,
    of: PhantomData<fn() -> T>,
}

// SAFETY: any thread may use any pool. The pool has no values; those in use are owned by PoolBoxes.
unsafe impl<T> Send for Pool<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Pool<T> {}

impl<T> Pool<T> {
    /// What the pool is to be.
    pub fn builder() -> PoolBuilder<T> {
        PoolBuilder::new()
    }

    /// A pool without a limit.
    ///
    /// # Errors
    ///
    /// Where there is no memory, or values of this type are larger than about 450 KiB or aligned to more than 64 KiB.
    pub fn new() -> Result<Self, CreateError> {
        Self::builder().build()
    }

    fn own(&self, object: *mut c_void, value: T) -> Result<PoolBox<'_, T>, T> {
        match NonNull::new(object.cast::<T>()) {
            Some(object) => {
                // SAFETY: an object of the pool has T's layout.
                unsafe { object.as_ptr().write(value) };
                Ok(PoolBox { object, pool: self.raw, owns: PhantomData })
            }
            None => Err(value),
        }
    }

    /// Moves a value into the pool.
    ///
    /// # Errors
    ///
    /// At the limit, and where there is no memory, the value comes back.
    #[inline]
    pub fn alloc(&self, value: T) -> Result<PoolBox<'_, T>, T> {
        // SAFETY: the pool lives.
        self.own(unsafe { lane_pool_alloc(self.raw.as_ptr()) }, value)
    }

    /// The same, but waits at the limit, first come, first served, until another thread drops a value.
    ///
    /// # Errors
    ///
    /// Where there is no memory.
    pub fn alloc_waiting(&self, value: T) -> Result<PoolBox<'_, T>, T> {
        // SAFETY: as in alloc().
        self.own(unsafe { lane_pool_alloc_with(self.raw.as_ptr(), LANE_POOL_WAIT) }, value)
    }

    /// The same, but takes of the reserve where there is none else.
    ///
    /// # Errors
    ///
    /// As for [`alloc`](Pool::alloc), when the reserve is used up too.
    pub fn alloc_reserved(&self, value: T) -> Result<PoolBox<'_, T>, T> {
        // SAFETY: as in alloc().
        self.own(unsafe { lane_pool_alloc_with(self.raw.as_ptr(), LANE_POOL_USE_RESERVE) }, value)
    }

    /// What [`PoolBox::into_raw`] gave.
    ///
    /// # Safety
    ///
    /// The value is of this pool, live, and nobody else's.
    pub unsafe fn from_raw(&self, value: NonNull<T>) -> PoolBox<'_, T> {
        PoolBox { object: value, pool: self.raw, owns: PhantomData }
    }

    /// Frees what [`PoolBox::into_raw`] gave once nobody reads it any more: see [`safepoint`](crate::safepoint). Until then it is in use. For
    /// types that need no drop; with others this does not compile.
    ///
    /// ```
    /// use lanemalloc::{safepoint, Pool, PoolBox, Reader};
    ///
    /// let pool = Pool::new().unwrap();
    /// let reader = Reader::register("reader").unwrap();
    /// let node = PoolBox::into_raw(pool.alloc(17).unwrap());
    /// {
    ///     let _guard = reader.enter();
    ///     unsafe { pool.free_later(node).unwrap() }; // what the section has found it may go on reading
    ///     assert_eq!(unsafe { *node.as_ptr() }, 17);
    /// }
    /// safepoint::wait().unwrap();
    /// assert_eq!(pool.statistics().live, 0);
    /// ```
    ///
    /// # Errors
    ///
    /// With [`Busy`] nothing has happened, and the value is still the caller's.
    ///
    /// # Safety
    ///
    /// The value is of this pool, live, and nobody else frees it. Whoever can still reach it does so in a read section that began before this
    /// call, and that ends before the pool does.
    #[allow(clippy::let_unit_value)] // the oldest clippy does not see it on the statement
    pub unsafe fn free_later(&self, value: NonNull<T>) -> Result<(), Busy> {
        struct NeedsNoDrop<T>(PhantomData<T>);
        impl<T> NeedsNoDrop<T> {
            const CHECKED: () = assert!(!mem::needs_drop::<T>(), "the value's drop would have to run later");
        }
        let () = NeedsNoDrop::<T>::CHECKED;
        // SAFETY: the caller's.
        safepoint::result(unsafe { lane_safepoint_pool_free(self.raw.as_ptr(), value.as_ptr().cast()) })
    }

    /// Has memory for so many values at hand, besides those in use.
    pub fn prealloc(&self, values: usize) -> Result<(), OutOfMemory> {
        prealloc(self.raw, values)
    }

    /// How many values there may be; 0: no limit. One below what there are holds for what comes.
    pub fn set_limit(&self, values: usize) -> Result<(), InvalidLimit> {
        set_limit(self.raw, values)
    }

    /// Gives memory back; returns how many bytes went.
    pub fn reclaim(&self, level: Reclaim) -> usize {
        reclaim(self.raw, level)
    }

    /// What was counted.
    pub fn statistics(&self) -> PoolStatistics {
        statistics(self.raw)
    }
}

impl<T> Drop for Pool<T> {
    fn drop(&mut self) {
        // SAFETY: it lives, and nobody else uses it: values borrow it.
        unsafe { lane_pool_destroy(self.raw.as_ptr()) };
    }
}

fn prealloc(pool: NonNull<lane_pool>, n: usize) -> Result<(), OutOfMemory> {
    // SAFETY: the caller's pool lives, here and below.
    match unsafe { lane_pool_prealloc(pool.as_ptr(), n) } {
        0 => Ok(()),
        _ => Err(OutOfMemory),
    }
}

fn set_limit(pool: NonNull<lane_pool>, limit: usize) -> Result<(), InvalidLimit> {
    // SAFETY: as above.
    match unsafe { lane_pool_set_limit(pool.as_ptr(), limit) } {
        0 => Ok(()),
        _ => Err(InvalidLimit),
    }
}

fn reclaim(pool: NonNull<lane_pool>, level: Reclaim) -> usize {
    let level: lane_reclaim = match level {
        Reclaim::Trim => LANE_TRIM,
        Reclaim::Drain => LANE_DRAIN,
        Reclaim::DrainAll => LANE_DRAIN_ALL,
    };
    // SAFETY: as above.
    unsafe { lane_pool_reclaim(pool.as_ptr(), level) }
}

fn statistics(pool: NonNull<lane_pool>) -> PoolStatistics {
    let mut statistics = lane_pool_statistics::default();
    // SAFETY: as above; it is written whole.
    unsafe { lane_pool_get_statistics(pool.as_ptr(), &mut statistics) };
    statistics
}

impl<T> fmt::Debug for Pool<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("live", &self.statistics().live).finish_non_exhaustive()
    }
}

/// A value in a [`Pool`]: owns it, and gives its memory back to the pool when it is dropped.
pub struct PoolBox<'p, T> {
    object: NonNull<T>,
    pool: NonNull<lane_pool>,
    owns: PhantomData<(&'p Pool<T>, T)>,
}

// SAFETY: it owns a T, as Box does; any thread may free what another allocated.
unsafe impl<T: Send> Send for PoolBox<'_, T> {}
// SAFETY: a shared one gives shared references only.
unsafe impl<T: Sync> Sync for PoolBox<'_, T> {}

impl<'p, T> PoolBox<'p, T> {
    /// The value, moved out.
    pub fn into_inner(this: Self) -> T {
        let this = ManuallyDrop::new(this);
        // SAFETY: the value is owned, and moved out; its memory goes back.
        unsafe {
            let value = this.object.as_ptr().read();
            lane_pool_free(this.pool.as_ptr(), this.object.as_ptr().cast());
            value
        }
    }

    /// The value, to be given to [`Pool::from_raw`] some time.
    pub fn into_raw(this: Self) -> NonNull<T> {
        ManuallyDrop::new(this).object
    }

    /// A reference as long as the pool is borrowed. The value is never dropped.
    #[allow(clippy::should_implement_trait)]
    pub fn leak(this: Self) -> &'p mut T {
        // SAFETY: owned; its memory stays as long as the pool.
        unsafe { &mut *Self::into_raw(this).as_ptr() }
    }
}

impl<T> Deref for PoolBox<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: owned.
        unsafe { self.object.as_ref() }
    }
}

impl<T> DerefMut for PoolBox<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: owned.
        unsafe { self.object.as_mut() }
    }
}

impl<T> Drop for PoolBox<'_, T> {
    #[inline]
    fn drop(&mut self) {
        /// Frees, also where the value's drop panics.
        struct Memory<T>(NonNull<lane_pool>, NonNull<T>);
        impl<T> Drop for Memory<T> {
            #[inline]
            fn drop(&mut self) {
                // SAFETY: the pool's object, whose value is dropped.
                unsafe { lane_pool_free(self.0.as_ptr(), self.1.as_ptr().cast()) };
            }
        }
        let _memory = Memory(self.pool, self.object);
        if mem::needs_drop::<T>() {
            // SAFETY: owned.
            unsafe { ptr::drop_in_place(self.object.as_ptr()) };
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for PoolBox<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: fmt::Display> fmt::Display for PoolBox<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Values that stay made while nobody uses them: buffers that keep their room, connections, parsers.
///
/// ```
/// use lanemalloc::Recycler;
///
/// let buffers = Recycler::builder().limit(10).recycle(|| Vec::<u8>::with_capacity(65536)).unwrap();
/// for _ in 0..100 {
///     let mut buffer = buffers.get().unwrap();
///     buffer.clear(); // it is as its last user has left it
///     buffer.extend_from_slice(b"lane");
///     assert!(buffer.capacity() >= 65536);
/// }
/// ```
///
/// A value is made when memory enters the pool, maybe some at a time, and dropped when it leaves: in [`reclaim`](Recycler::reclaim), or with
/// the recycler. What was forgotten is not dropped.
pub struct Recycler<T, F> {
    raw: NonNull<lane_pool>,
    make: NonNull<F>,
    of: PhantomData<(T, F)>,
}

// SAFETY: any thread may use any pool; values are made and dropped by any of them, and `make` is called by any.
unsafe impl<T: Send, F: Send + Sync> Send for Recycler<T, F> {}
// SAFETY: as above; no two threads have the same value.
unsafe impl<T: Send, F: Send + Sync> Sync for Recycler<T, F> {}

impl<T> Recycler<T, fn() -> T> {
    /// What it is to be; [`PoolBuilder::recycle`] ends that.
    pub fn builder() -> PoolBuilder<T> {
        PoolBuilder::new()
    }
}

impl<T, F> Recycler<T, F> {
    fn own(&self, object: *mut c_void) -> Result<Recycled<'_, T>, OutOfMemory> {
        let object = NonNull::new(object.cast::<T>()).ok_or(OutOfMemory)?;
        Ok(Recycled { object, pool: self.raw, owns: PhantomData })
    }

    /// A value, as `make` or its last user has left it.
    ///
    /// # Errors
    ///
    /// At the limit, and where there is no memory.
    #[inline]
    pub fn get(&self) -> Result<Recycled<'_, T>, OutOfMemory> {
        // SAFETY: the pool lives.
        self.own(unsafe { lane_pool_alloc(self.raw.as_ptr()) })
    }

    /// The same, but waits at the limit, first come, first served, until another thread gives one back.
    ///
    /// # Errors
    ///
    /// Where there is no memory.
    pub fn get_waiting(&self) -> Result<Recycled<'_, T>, OutOfMemory> {
        // SAFETY: as in get().
        self.own(unsafe { lane_pool_alloc_with(self.raw.as_ptr(), LANE_POOL_WAIT) })
    }

    /// Has so many values made, besides those in use.
    pub fn prealloc(&self, values: usize) -> Result<(), OutOfMemory> {
        prealloc(self.raw, values)
    }

    /// As [`Pool::set_limit`].
    pub fn set_limit(&self, values: usize) -> Result<(), InvalidLimit> {
        set_limit(self.raw, values)
    }

    /// Drops what is not in use, and gives memory back; returns how many bytes went.
    pub fn reclaim(&self, level: Reclaim) -> usize {
        reclaim(self.raw, level)
    }

    /// What was counted.
    pub fn statistics(&self) -> PoolStatistics {
        statistics(self.raw)
    }
}

impl<T, F> Drop for Recycler<T, F> {
    fn drop(&mut self) {
        // SAFETY: it lives, and nobody else uses it: values borrow it. The function is a box's, and not called any more.
        unsafe {
            lane_pool_destroy(self.raw.as_ptr());
            drop(Box::from_raw(self.make.as_ptr()));
        }
    }
}

impl<T, F> fmt::Debug for Recycler<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recycler").field("live", &self.statistics().live).finish_non_exhaustive()
    }
}

/// A value of a [`Recycler`], given back when this is dropped.
pub struct Recycled<'p, T> {
    object: NonNull<T>,
    pool: NonNull<lane_pool>,
    owns: PhantomData<&'p mut T>,
}

// SAFETY: nobody else has the value; any thread may give back what another took.
unsafe impl<T: Send> Send for Recycled<'_, T> {}
// SAFETY: a shared one gives shared references only.
unsafe impl<T: Sync> Sync for Recycled<'_, T> {}

impl<T> Deref for Recycled<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: nobody else has it.
        unsafe { self.object.as_ref() }
    }
}

impl<T> DerefMut for Recycled<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: nobody else has it.
        unsafe { self.object.as_mut() }
    }
}

impl<T> Drop for Recycled<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the pool's object; it stays made.
        unsafe { lane_pool_free(self.pool.as_ptr(), self.object.as_ptr().cast()) };
    }
}

impl<T: fmt::Debug> fmt::Debug for Recycled<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
