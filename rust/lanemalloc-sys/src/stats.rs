//! `stats.h`: what the allocator has counted, and its options, read and set by name while the program runs.
//!
//! For every function here, where not said otherwise: any thread may call it, and signal handlers may; figures are exact while no other
//! thread is inside the allocator.

use crate::{c_char, c_int, c_long};

/// Of `lane_statistics::version`.
pub const LANE_STATS_VERSION: u32 = 1;
/// Rows of classes.
pub const LANE_STATS_CLASSES: usize = 105;
/// Rows of probes.
pub const LANE_STATS_PROBES: usize = 15;
/// Places of contention.
pub const LANE_STATS_CELLS: usize = 20;
/// Of waits by time.
pub const LANE_STATS_BUCKETS: usize = 16;

/// One size class. Row 0 is empty.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lane_class_statistics {
    /// Bytes of an object.
    pub size: u64,
    /// So far.
    pub allocations: u64,
    /// Objects that the program has.
    pub live: u64,
    /// Freed by another lane than the owner's, and not yet taken in there.
    pub in_flight: u64,
    /// There are now.
    pub slabs: u64,
}

/// One lock, or one loop around a compare-exchange. Of all lanes' locks together: "lane".
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lane_contention_statistics {
    /// Empty: there are no more.
    pub name: [c_char; 24],
    /// Entries, or loops that were done.
    pub count: u64,
    /// Tries that failed.
    pub failures: u64,
    /// Entries that had to wait; loops never wait.
    pub waits: u64,
    /// In those, once they were over.
    pub waited_ns: u64,
    /// \[i\]: shorter than 2^i microseconds, and not in a lower one; the last: all others.
    pub waits_by_time: [u32; LANE_STATS_BUCKETS],
}

/// What was counted.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lane_statistics {
    /// LANE_STATS_VERSION of the library.
    pub version: u32,
    /// Bytes that the library has filled in.
    pub size: u32,
    /// How threads enter lanes now: "owned", "shared:8", "percpu".
    pub entry: [c_char; 24],
    /// So far, large ones among them.
    pub allocations: u64,
    /// So far.
    pub frees: u64,
    /// That the program has.
    pub live_objects: u64,
    /// With what their size classes add.
    pub live_bytes: u64,
    /// Above 512 KiB, so far.
    pub large_allocations: u64,
    /// Of these.
    pub large_live_objects: u64,
    /// Of these, in blocks of 64 KiB.
    pub large_live_bytes: u64,
    /// Freed by another lane than the owner's, and not yet taken in there.
    pub in_flight_objects: u64,
    /// Requests that found their bin empty.
    pub misses: u64,
    /// Objects freed by another lane than the owner's.
    pub remote_frees: u64,
    /// Sent with one exchange each.
    pub remote_batches: u64,
    /// Times a lane took in what others had sent.
    pub inbox_drains: u64,
    /// Sent one by one, for want of memory for a lane.
    pub direct_frees: u64,
    /// There are.
    pub lanes: u64,
    /// Tries to enter a lane by its lock that failed.
    pub failed_entries: u64,
    /// Waits for a lane.
    pub lane_waits: u64,
    /// Microseconds in those.
    pub lane_waited_us: u64,
    /// Threads that went over to another lane.
    pub rebinds: u64,
    /// Restartable sequences that were.
    pub interruptions: u64,
    /// Entries of overflow lanes.
    pub overflow_entries: u64,
    /// Those of signal handlers.
    pub nested_entries: u64,
    /// Overflow lanes made because all were taken.
    pub rescue_entries: u64,
    /// Lanes taken from their owners for a while.
    pub revocations: u64,
    /// Tries at that which found the owner inside.
    pub refused_revocations: u64,
    /// Failed tries at the stack of idle lanes.
    pub idle_stack_failures: u64,
    /// From fresh or returned blocks.
    pub slabs_made: u64,
    /// By way of the depot.
    pub slabs_moved: u64,
    /// Failed tries at the depot's lock.
    pub depot_failures: u64,
    /// Waits for it.
    pub depot_waits: u64,
    /// Of both locks of the run allocator.
    pub runs_failures: u64,
    /// Waits for them.
    pub runs_waits: u64,
    /// Mapped for objects.
    pub claimed_bytes: u64,
    /// Claimed, less what was given back to the system.
    pub committed_bytes: u64,
    /// Free runs with memory behind them.
    pub cached_bytes: u64,
    /// Cut into malloc's objects.
    pub slab_bytes: u64,
    /// Of heaps and pools.
    pub kind_bytes: u64,
    /// Given back to the system so far.
    pub purged_bytes: u64,
    /// By the kernel, for realloc.
    pub moved_bytes: u64,
    /// Frees that wait or waited for a safepoint.
    pub deferred: u64,
    /// Of these, those that wait.
    pub deferred_waiting: u64,
    /// Objects sampled so far.
    pub samples: u64,
    /// Found so far.
    pub bad_pointers: u64,
    /// Searches of shared lanes: \[i\] tried i lanes up to 4, then up to 2^(i - 2).
    pub probes: [u64; LANE_STATS_PROBES],
    /// The first that are named.
    pub contention: [lane_contention_statistics; LANE_STATS_CELLS],
    /// By size; row 0 is empty.
    pub classes: [lane_class_statistics; LANE_STATS_CLASSES],
}

extern "C" {
    /// Fills in `*stats`, of which the caller has so many bytes. `EINVAL`: fewer than 8; `ENOMEM` before the allocator could start.
    pub fn lane_stats(stats: *mut lane_statistics, bytes: usize) -> c_int;

    /// Writes the same as JSON, at most `size` bytes with the final zero. Returns the length that the whole text has.
    pub fn lane_stats_json(text: *mut c_char, size: usize) -> usize;
    /// The same as OpenMetrics.
    pub fn lane_stats_openmetrics(text: *mut c_char, size: usize) -> usize;

    /// The names of everything that can be read. Null beyond the last.
    pub fn lane_name(index: usize) -> *const c_char;

    /// Writes the value of a name, at most `size` bytes with the final zero. Returns the length that the whole text has; -1: no such name.
    pub fn lane_get(name: *const c_char, value: *mut c_char, size: usize) -> c_long;

    /// Sets an option. `ENOENT`: no such name; `EINVAL`: no value for it; `EPERM`: it cannot be changed now; `ENOTSUP`: the system cannot do
    /// that. One caller at a time; not in signal handlers.
    pub fn lane_set(name: *const c_char, value: *const c_char) -> c_int;

    /// Writes what was sampled so far in pprof's format; `kind`: "heap" or "contention". `EINVAL`: no such kind; `ENOTSUP`: nothing was ever
    /// sampled; `ENOMEM`; or why the file could not be written. Not in signal handlers.
    pub fn lane_profile(kind: *const c_char, path: *const c_char) -> c_int;
}
