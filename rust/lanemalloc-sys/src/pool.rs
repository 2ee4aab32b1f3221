//! `pool.h`: objects of one exact size.
//!
//! For every function here: any thread may use any pool, and free what another thread allocated; an object of another pool, of a heap, of
//! malloc or of nobody is one line on standard error that names both owners, and `abort()`, or what the option `bad_pointer` says.

use core::mem::size_of;

use crate::{c_char, c_int, c_uint, c_void};

/// A pool.
#[repr(C)]
pub struct lane_pool {
    _private: [u8; 0],
}

/// How far objects lie apart.
pub type lane_padding = c_uint;
/// Objects lie as close as their alignment lets them.
pub const LANE_PACKED: lane_padding = 0;
/// No two in one cache line of 64 bytes.
pub const LANE_OWN_LINE: lane_padding = 1;
/// No two in one pair of lines, 128 bytes: what CPUs fetch together.
pub const LANE_OWN_PAIR: lane_padding = 2;

/// What a pool is to be.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lane_pool_options {
    /// For messages and statistics; copied, cut after 31 bytes. Null: "pool".
    pub name: *const c_char,
    /// Bytes, 1 to 512 KiB; rounded up to 8, at least 16.
    pub object_size: usize,
    /// Of every object: a power of two up to 64 KiB. 0: that of the largest power of two in the size, 8 to 16.
    pub alignment: usize,
    /// How far objects lie apart.
    pub padding: lane_padding,
    /// When memory enters the pool: what it has made of an object stays while the object is free. Returns 0, or else the allocation fails.
    pub init: Option<unsafe extern "C" fn(object: *mut c_void, size: usize, argument: *mut c_void) -> c_int>,
    /// When memory leaves: in reclaim and destroy.
    pub fini: Option<unsafe extern "C" fn(object: *mut c_void, size: usize, argument: *mut c_void)>,
    /// Before an object is handed out. Returns 0, or else the object goes back and the allocation fails.
    pub ctor: Option<unsafe extern "C" fn(object: *mut c_void, size: usize, argument: *mut c_void) -> c_int>,
    /// When an object is freed.
    pub dtor: Option<unsafe extern "C" fn(object: *mut c_void, size: usize, argument: *mut c_void)>,
    /// For the functions above.
    pub argument: *mut c_void,
    /// Objects that there may be, in use or cached; 0: no limit.
    pub limit: usize,
    /// Of these, how many are kept for [`LANE_POOL_USE_RESERVE`].
    pub reserve: usize,
    /// A source of the pool's own: takes up to `n` objects from it and returns how many.
    pub import_objects:
        Option<unsafe extern "C" fn(source: *mut c_void, objects: *mut *mut c_void, n: usize) -> usize>,
    /// Gives objects back to it.
    pub release_objects:
        Option<unsafe extern "C" fn(source: *mut c_void, objects: *mut *mut c_void, n: usize)>,
    /// For the two functions above.
    pub source: *mut c_void,
}

/// The object's bytes are zero; not with init.
pub const LANE_POOL_ZERO: c_int = 1;
/// At the limit: wait, first come, first served, until another thread frees an object.
pub const LANE_POOL_WAIT: c_int = 2;
/// Where there is none else: one of the reserve.
pub const LANE_POOL_USE_RESERVE: c_int = 4;

/// How much memory is given back.
pub type lane_reclaim = c_uint;
/// What no lane has in use: empty slabs between the lanes; what is cached beyond recent use.
pub const LANE_TRIM: lane_reclaim = 0;
/// And what rests in lanes whose threads are not inside.
pub const LANE_DRAIN: lane_reclaim = 1;
/// And in all others: waits for threads that are inside the allocator.
pub const LANE_DRAIN_ALL: lane_reclaim = 2;

/// What was counted.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct lane_pool_statistics {
    /// As in the options.
    pub name: [c_char; 32],
    /// As it lies in memory, with padding and links.
    pub object_size: u64,
    /// Objects in use; exact while no other thread is inside.
    pub live: u64,
    /// Free objects, ready to be handed out; the reserve's too.
    pub cached: u64,
    /// Memory that the pool holds.
    pub slab_bytes: u64,
    /// As set.
    pub limit: u64,
    /// As set.
    pub reserve: u64,
    /// Allocations refused at the limit.
    pub limit_failures: u64,
    /// Allocations that waited for a free.
    pub waits: u64,
    /// How long.
    pub waited_ns: u64,
    /// How many objects of others a lane collects before it sends them: grows when senders meet.
    pub batch_objects: u64,
    /// How often they met.
    pub contended: u64,
    /// Allocations that found their lane's cache empty.
    pub refills: u64,
}

extern "C" {
    /// `bytes`: the size of the options; use [`lane_pool_create`].
    pub fn lane_pool_create_from(options: *const lane_pool_options, bytes: usize) -> *mut lane_pool;

    /// Gives back all memory of the pool, after fini of each object; objects in use are not, and are gone too. No other thread may use the
    /// pool any more, or wait in it. Returns how many objects were in use.
    pub fn lane_pool_destroy(pool: *mut lane_pool) -> usize;

    /// An object, uninitialized but for init and ctor. At the limit: null, `ENOMEM`.
    #[link_name = "lane_inline_pool_alloc"]
    pub fn lane_pool_alloc(pool: *mut lane_pool) -> *mut c_void;
    /// The same, with flags.
    pub fn lane_pool_alloc_with(pool: *mut lane_pool, flags: c_int) -> *mut c_void;
    /// Null does nothing; `errno` stays.
    #[link_name = "lane_inline_pool_free"]
    pub fn lane_pool_free(pool: *mut lane_pool, object: *mut c_void);

    /// Many at once. Returns how many it could have, which are the first in `objects`.
    pub fn lane_pool_alloc_batch(
        pool: *mut lane_pool,
        objects: *mut *mut c_void,
        n: usize,
        flags: c_int,
    ) -> usize;
    /// Many at once.
    pub fn lane_pool_free_batch(pool: *mut lane_pool, objects: *mut *mut c_void, n: usize);

    /// Has memory for `n` objects at hand, besides those in use. 0, or `ENOMEM`.
    pub fn lane_pool_prealloc(pool: *mut lane_pool, n: usize) -> c_int;
    /// Objects that there may be; 0: no limit. 0, or `EINVAL` below the reserve.
    pub fn lane_pool_set_limit(pool: *mut lane_pool, limit: usize) -> c_int;
    /// Gives memory back, after fini; returns how many bytes went.
    pub fn lane_pool_reclaim(pool: *mut lane_pool, level: lane_reclaim) -> usize;
    /// `bytes`: the size of the statistics; use [`lane_pool_get_statistics`].
    pub fn lane_pool_get_statistics_into(
        pool: *mut lane_pool,
        statistics: *mut lane_pool_statistics,
        bytes: usize,
    );

    /// What a hit does not do; use [`lane_pool_alloc`].
    pub fn lane_pool_alloc_out_of_line(pool: *mut lane_pool) -> *mut c_void;
    /// What a hit does not do; use [`lane_pool_free`].
    pub fn lane_pool_free_out_of_line(pool: *mut lane_pool, object: *mut c_void);
}

/// Makes a pool. `EINVAL`: a size or alignment out of range, a reserve above the limit, import without release, or import together with
/// what it excludes.
#[inline]
pub unsafe fn lane_pool_create(options: *const lane_pool_options) -> *mut lane_pool {
    lane_pool_create_from(options, size_of::<lane_pool_options>())
}

/// What was counted.
#[inline]
pub unsafe fn lane_pool_get_statistics(pool: *mut lane_pool, statistics: *mut lane_pool_statistics) {
    lane_pool_get_statistics_into(pool, statistics, size_of::<lane_pool_statistics>());
}
