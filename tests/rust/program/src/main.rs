//! Allocates with lanemalloc, and says by its exit status whether it does.

use std::ptr::NonNull;

#[global_allocator]
static GLOBAL: lanemalloc::Lanemalloc = lanemalloc::Lanemalloc;

fn main() {
    let mut words: Vec<String> = (0..1000).map(|i| i.to_string()).collect();
    words.sort();
    let first = NonNull::new(words.as_mut_ptr().cast()).expect("a vector's memory");
    // SAFETY: the vector's memory is lanemalloc's.
    assert!(unsafe { lanemalloc::usable_size(first) } >= 1000 * std::mem::size_of::<String>());
}
