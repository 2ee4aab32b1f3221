//! `safepoint.h`: memory that is freed once nobody can be reading it any more.
//!
//! For every function here: `errno` stays as it is, errors are returned; any thread may call it; a reader belongs to one thread at a time.

use crate::{c_char, c_int, c_void, lane_heap, lane_pool};

/// What a reader and the threads that free agree on; the library's.
#[repr(C)]
pub struct lane_epoch {
    /// The epoch.
    pub now: u64,
    /// The system has no barrier: readers need fences of their own.
    pub fences: c_int,
}

/// A reader lies where the program wants it, at an address that stays; usually one a thread. All zero before it is registered. Its words are
/// the library's.
#[repr(C, align(128))]
pub struct lane_reader {
    /// What it may have seen; 0: nothing.
    pub epoch: u64,
    /// Of nested sections.
    pub depth: u32,
    /// In one long section.
    pub online: u32,
    /// Null: not registered.
    pub shared: *const lane_epoch,
    /// That was in it last.
    pub thread: *const c_void,
    /// In the list of all.
    pub next: *mut lane_reader,
    /// In which it was first seen to hold others up,
    pub stuck_epoch: u64,
    /// and when: nanoseconds.
    pub stuck_since: u64,
    /// For messages.
    pub name: [c_char; 24],
    /// Of the thread that has registered it, or that ended in a section.
    pub thread_id: u32,
}

/// Each figure is exact while no other thread defers or frees.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct lane_safepoint_statistics {
    /// So far.
    pub deferred: u64,
    /// So far.
    pub freed: u64,
    /// Of deferred frees: one shared operation each.
    pub batches: u64,
    /// Deferred frees that met a full share.
    pub helped: u64,
    /// By those, and in [`lane_safepoint_wait`].
    pub waited_ns: u64,
    /// Calls of [`lane_safepoint`].
    pub stops: u64,
    /// Registered now.
    pub readers: u64,
    /// The epoch.
    pub epoch: u64,
}

extern "C" {
    /// Frees an object of [`lane_malloc`](crate::lane_malloc) later. Null does nothing. The caller has made the object unreachable for new
    /// readers.
    ///
    /// A lane keeps so many that wait (option `deferred`): whoever would go beyond it helps: frees what may be freed, and else waits for the
    /// readers. 0; or `EBUSY`: the lane's share is full, and the caller may not wait, being in a read section itself, in a handler that
    /// interrupted the allocator, or in a program without readers. Then nothing has happened: the object is still the caller's.
    pub fn lane_safepoint_free(object: *mut c_void) -> c_int;

    /// `f(object)` is called later, by a thread of the program that defers a call, polls, waits or stops the world: it may call anything but
    /// [`lane_safepoint`], and it must return. There [`lane_safepoint_poll`] frees objects of malloc only, and [`lane_safepoint_wait`] is
    /// `EDEADLK`. The result is as above.
    pub fn lane_safepoint_call(
        f: Option<unsafe extern "C" fn(object: *mut c_void)>,
        object: *mut c_void,
    ) -> c_int;

    /// Frees an object of a heap later: a call of [`lane_heap_free`](crate::lane_heap_free), in the calls' share of the lane. Until then it is
    /// in use. A wrong object is reported when it is freed. [`lane_heap_destroy`](crate::lane_heap_destroy) makes the frees of its heap that
    /// wait. The result is as above.
    pub fn lane_safepoint_heap_free(heap: *mut lane_heap, object: *mut c_void) -> c_int;
    /// The same; a size that cannot be right is reported at the call.
    pub fn lane_safepoint_heap_free_sized(heap: *mut lane_heap, object: *mut c_void, size: usize) -> c_int;
    /// The same for an object of a pool, whose `dtor` is called then.
    pub fn lane_safepoint_pool_free(pool: *mut lane_pool, object: *mut c_void) -> c_int;

    /// The world is stopped: no thread holds on to deferred memory, be it in a read section or not. Frees what was deferred before; returns
    /// how much.
    pub fn lane_safepoint() -> usize;

    /// Frees what may be freed now, in every lane that nobody is inside of; returns how much.
    pub fn lane_safepoint_poll() -> usize;

    /// Waits until everything that was deferred before has been freed. `EDEADLK` in a read section of the calling thread, in a function that is
    /// being called by the allocator, or where no reader was ever registered; else 0.
    pub fn lane_safepoint_wait() -> c_int;

    /// Registers a reader, offline and in no section. `name`: for messages; copied, cut after 23 bytes; null: "reader". `EINVAL` if it is
    /// registered already; else 0. Takes time by the number of readers.
    pub fn lane_reader_register(reader: *mut lane_reader, name: *const c_char) -> c_int;

    /// 0, or `EBUSY`: it is in a section, or online; `EINVAL`: not registered.
    pub fn lane_reader_unregister(reader: *mut lane_reader) -> c_int;

    /// Begins a read section: what is reachable in it is not freed before its end. Sections nest. They may not wait for a free.
    #[link_name = "lane_inline_reader_enter"]
    pub fn lane_reader_enter(reader: *mut lane_reader);
    /// Ends a read section.
    #[link_name = "lane_inline_reader_exit"]
    pub fn lane_reader_exit(reader: *mut lane_reader);
    /// Tells of [`lane_reader_exit`] without a section, which calls it.
    pub fn lane_reader_exit_without_section(reader: *mut lane_reader);

    /// Begins one long section, for threads that read nearly always.
    #[link_name = "lane_inline_reader_online"]
    pub fn lane_reader_online(reader: *mut lane_reader);
    /// Ends it: before the thread sleeps or waits.
    #[link_name = "lane_inline_reader_offline"]
    pub fn lane_reader_offline(reader: *mut lane_reader);
    /// Says that nothing read before is held on to. In a nested section it does nothing.
    #[link_name = "lane_inline_reader_quiescent"]
    pub fn lane_reader_quiescent(reader: *mut lane_reader);

    /// `bytes`: the size of the statistics; use [`lane_safepoint_get_statistics`].
    pub fn lane_safepoint_get_statistics_into(statistics: *mut lane_safepoint_statistics, bytes: usize);
}

/// What was counted.
#[inline]
pub unsafe fn lane_safepoint_get_statistics(statistics: *mut lane_safepoint_statistics) {
    lane_safepoint_get_statistics_into(statistics, core::mem::size_of::<lane_safepoint_statistics>());
}
