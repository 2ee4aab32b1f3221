//! What can go wrong.

use core::alloc::Layout;
use core::fmt;

/// There is no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("out of memory")
    }
}

/// As `Vec` does where there is no memory.
#[cold]
pub(crate) fn out_of_memory(layout: Layout) -> ! {
    alloc::alloc::handle_alloc_error(layout)
}
