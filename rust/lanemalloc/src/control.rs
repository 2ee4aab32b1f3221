//! What a program can ask of the allocator as a whole, and tell it.

use core::fmt;
use core::hint;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};

use lanemalloc_sys::{
    c_char, lane_entry, lane_malloc_stats, lane_malloc_trim, lane_malloc_usable_size, lane_set_entry,
};

/// How threads enter lanes: the option `lanes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lanes {
    /// Each thread has one: the shortest hit.
    Owned,
    /// Each CPU has one, entered by restartable sequences: the least memory with many threads.
    PerCpu,
    /// So many, entered by try-lock: 1 to 4096.
    Shared(u16),
    /// Owned; by CPU while many threads mostly wait. It is never what is in use, but what may be asked for.
    Auto,
}

/// Why [`set_lanes`] changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LanesError {
    /// A number of shared lanes that is not 1 to 4096.
    Invalid,
    /// The system has no restartable sequences, which [`Lanes::PerCpu`] needs.
    Unsupported,
    /// The allocator could not start: there is no memory.
    OutOfMemory,
}

impl fmt::Display for LanesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LanesError::Invalid => "the number of shared lanes is not 1 to 4096",
            LanesError::Unsupported => "the system has no restartable sequences",
            LanesError::OutOfMemory => "no memory to start the allocator",
        })
    }
}

/// A text of at most this size, with its final zero, holds every value of the option.
const MOST_TEXT: usize = 32;

struct Text {
    bytes: [u8; MOST_TEXT],
    length: usize,
}

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

impl fmt::Display for Lanes {
    /// As the option is written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lanes::Owned => f.write_str("owned"),
            Lanes::PerCpu => f.write_str("percpu"),
            Lanes::Shared(n) => write!(f, "shared:{}", n),
            Lanes::Auto => f.write_str("auto"),
        }
    }
}

/// How threads enter lanes now. Differs from what was asked for where the system has no restartable sequences.
///
/// ```
/// println!("lanes={}", lanemalloc::lanes());
/// ```
pub fn lanes() -> Lanes {
    let mut text = [0u8; MOST_TEXT];
    // SAFETY: writes at most that many bytes, with a final zero.
    let length = unsafe { lane_entry(text.as_mut_ptr().cast::<c_char>(), MOST_TEXT) };
    let number = || core::str::from_utf8(text.get(b"shared:".len()..length)?).ok()?.parse().ok();
    match text.get(..length) {
        Some(b"owned") => Lanes::Owned,
        Some(b"percpu") => Lanes::PerCpu,
        // One that has not started says nothing; it starts with owned lanes.
        _ => number().map_or(Lanes::Owned, Lanes::Shared),
    }
}

/// Sets how threads enter lanes from now on. Each thread follows at its next miss; what lanes that are left behind still hold is given
/// back by and by. Not in signal handlers: waits for another thread that is setting it.
///
/// ```
/// use lanemalloc::{lanes, set_lanes, Lanes};
///
/// set_lanes(Lanes::Shared(4)).unwrap();
/// assert_eq!(lanes(), Lanes::Shared(4));
/// ```
pub fn set_lanes(lanes: Lanes) -> Result<(), LanesError> {
    static BUSY: AtomicBool = AtomicBool::new(false);

    let mut text = Text { bytes: [0; MOST_TEXT], length: 0 };
    let written = fmt::write(&mut text, format_args!("{}\0", lanes));
    debug_assert!(written.is_ok());
    // acquire: sees what the thread before did. Pairs with the store below.
    while BUSY.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
        hint::spin_loop();
    }
    // SAFETY: the text ends with a zero byte, and there is one caller at a time.
    let error = unsafe { lane_set_entry(text.bytes.as_ptr().cast::<c_char>()) };
    BUSY.store(false, Ordering::Release);
    match error {
        0 => Ok(()),
        ENOMEM => Err(LanesError::OutOfMemory),
        ENOTSUP => Err(LanesError::Unsupported),
        _ => Err(LanesError::Invalid),
    }
}

const ENOMEM: i32 = 12;
const ENOTSUP: i32 = 95;

/// Gives back to the system what can be given back now, also from lanes of threads that are not inside. Whether anything was.
pub fn trim() -> bool {
    // SAFETY: nothing is asked of the caller.
    unsafe { lane_malloc_trim(0) != 0 }
}

/// Prints what was counted, a line a figure, on standard error.
pub fn print_statistics() {
    // SAFETY: nothing is asked of the caller.
    unsafe { lane_malloc_stats() }
}

/// How many bytes the object really has: at least what was asked for. Those beyond may be used with raw pointers only.
///
/// # Safety
///
/// `object` is live, and was allocated by [`Lanemalloc`](crate::Lanemalloc).
pub unsafe fn usable_size(object: NonNull<u8>) -> usize {
    // SAFETY: as the caller's.
    unsafe { lane_malloc_usable_size(object.as_ptr().cast()) }
}

/// A pointer to options that are compiled in; made by [`options!`](crate::options).
#[doc(hidden)]
#[repr(transparent)]
pub struct CompiledOptions(*const c_char);

// SAFETY: the text is never written.
unsafe impl Sync for CompiledOptions {}

impl CompiledOptions {
    /// `text` ends with a zero byte.
    pub const fn new(text: &'static str) -> Self {
        CompiledOptions(text.as_ptr().cast())
    }
}

/// Compiles options in, once in a program, in its main crate (in a library the linker does not look for it). The environment's
/// `LANEMALLOC_OPTIONS` wins over them.
///
/// ```
/// lanemalloc::options!("decay_ms=200,bad_pointer=report");
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! options {
    ($text:expr) => {
        #[doc(hidden)]
        #[no_mangle]
        #[allow(non_upper_case_globals)]
        pub static lane_lanemalloc_options: $crate::CompiledOptions =
            $crate::CompiledOptions::new(::core::concat!($text, "\0"));
    };
}
