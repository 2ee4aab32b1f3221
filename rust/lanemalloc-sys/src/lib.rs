//! The C functions of lanemalloc, as its headers declare them; the crate `lanemalloc` has the safe types.
//!
//! For every function here, where its module's header does not say otherwise:
//! - sizes are in bytes; memory is aligned to 16 bytes at least, and belongs to the caller until it frees it;
//! - an error is a null return and `errno` = `ENOMEM`, where not said otherwise; the functions that free keep `errno`;
//! - any thread may free what another allocated;
//! - all of them may be called from signal handlers, also while they are interrupted themselves;
//! - the child of a `fork` may go on with everything that was allocated, also the child of a process with many threads;
//! - a pointer that is not a live object is one line on standard error and `abort()`, or what the option `bad_pointer` says.
//!
//! # Safety
//!
//! A pointer that is passed in is null, where that is allowed, or that of a live object that one of these functions returned. Texts
//! end with a zero byte.
#![no_std]
#![deny(missing_docs)]
#![allow(non_camel_case_types, clippy::missing_safety_doc)]

mod arena;
mod heap;
mod malloc;
mod pool;
mod safepoint;
mod stats;

pub use core::ffi::c_void;

/// C's `int`.
pub type c_int = i32;
/// C's `long`.
pub type c_long = i64;
/// C's `unsigned int`, which enumerations are.
pub type c_uint = u32;
/// C's `char`; `core::ffi` has these types from Rust 1.64 on.
#[cfg(target_arch = "x86_64")]
pub type c_char = i8;
/// C's `char`.
#[cfg(target_arch = "aarch64")]
pub type c_char = u8;

pub use arena::*;
pub use heap::*;
pub use malloc::*;
pub use pool::*;
pub use safepoint::*;
pub use stats::*;
