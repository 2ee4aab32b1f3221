//! lanemalloc: a memory allocator for programs with many threads. Threads do not meet on the way to memory, and where they must, it is
//! counted.
//!
//! ```
//! #[global_allocator]
//! static GLOBAL: lanemalloc::Lanemalloc = lanemalloc::Lanemalloc;
//! # fn main() {}
//! ```
//!
//! - [`Lanemalloc`]: the global allocator.
//! - [`Arena`]: values that are given back together.
//! - [`Pool`]: values of one type; [`Recycler`]: values that stay made.
//! - [`Heap`]: memory that is counted and limited.
//! - [`Deferred`], [`Reader`] and [`safepoint`]: values that are dropped when nobody can read them any more.
//!
//! The crate brings the allocator's C++ sources and compiles them (a C++20 compiler is needed, CMake is not); C code in the same
//! program keeps the C library's `malloc`. Linux on x86-64 and aarch64; Rust 1.63 or later; no `std`.
//!
//! Features: `allocator-api2` implements that crate's `Allocator`; `checked` finds every double free and every pointer into the middle
//! of an object, at the call, and is slower.
#![no_std]
#![deny(missing_docs, unsafe_op_in_unsafe_fn)]

extern crate alloc;

mod abort;
#[cfg(feature = "allocator-api2")]
mod allocator;
mod arena;
mod control;
mod error;
mod global;
mod heap;
mod pool;
mod raw;
pub mod safepoint;

pub use arena::Arena;
pub use control::{
    lanes, print_statistics, set_lanes, trim, usable_size, CompiledOptions, Lanes, LanesError,
};
pub use error::{CreateError, InvalidLimit, OutOfMemory};
pub use global::Lanemalloc;
pub use heap::{Heap, HeapBuilder, HeapStatistics};
pub use pool::{Padding, Pool, PoolBox, PoolBuilder, PoolStatistics, Reclaim, Recycled, Recycler};
pub use safepoint::{Deferred, Guard, Reader};
