//! What can go wrong, and names for C.

use core::alloc::Layout;
use core::fmt;

use lanemalloc_sys::{c_char, c_int};

/// There is no memory, or a limit is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("out of memory")
    }
}

/// Why there is no such pool or heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CreateError {
    /// The type is too large or aligned to too much, or the limits contradict each other.
    Invalid,
    /// There is no memory.
    OutOfMemory,
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CreateError::Invalid => {
                "the size or alignment is out of range, or the limits contradict each other"
            }
            CreateError::OutOfMemory => "out of memory",
        })
    }
}

/// A limit that contradicts another: below the reserve of a pool, or a heap's soft limit above its hard one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidLimit;

impl fmt::Display for InvalidLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the limits contradict each other")
    }
}

/// What a function of C that makes something has left in errno.
pub(crate) fn last_error() -> CreateError {
    extern "C" {
        fn __errno_location() -> *mut c_int;
    }
    const EINVAL: c_int = 22;
    // SAFETY: the thread's own word.
    match unsafe { *__errno_location() } {
        EINVAL => CreateError::Invalid,
        _ => CreateError::OutOfMemory,
    }
}

/// As `Vec` does where there is no memory.
#[cold]
pub(crate) fn out_of_memory(layout: Layout) -> ! {
    alloc::alloc::handle_alloc_error(layout)
}

/// A name as C takes it: cut after 31 bytes, with a zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name([u8; 32]);

impl Name {
    pub(crate) fn new(name: &str) -> Self {
        let mut text = [0; 32];
        let length = name.len().min(text.len() - 1);
        text[..length].copy_from_slice(&name.as_bytes()[..length]);
        Name(text)
    }

    pub(crate) fn as_ptr(&self) -> *const c_char {
        self.0.as_ptr().cast()
    }
}
