//! Panics must not leave functions that C calls.

/// Runs `f`; a panic ends the program.
pub(crate) fn abort_on_panic<R>(f: impl FnOnce() -> R) -> R {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            // A second panic while one unwinds aborts; without std there is no other way.
            panic!("a function that lanemalloc called has panicked");
        }
    }
    let bomb = Bomb;
    let result = f();
    core::mem::forget(bomb);
    result
}
