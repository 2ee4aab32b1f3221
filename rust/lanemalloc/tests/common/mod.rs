//! Shared by the tests: a test that runs itself again in a process of its own.

use std::env;
use std::process::{Command, Output};

const INNER: &str = "LANEMALLOC_TEST_INNER";

/// In the second process: the test's name was passed on.
pub fn is_inner() -> bool {
    env::var_os(INNER).is_some()
}

/// Runs the test `name` of this program alone, in a process of its own, with these options.
pub fn run_inner(name: &str, options: &str) -> Output {
    Command::new(env::current_exe().expect("this program"))
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(INNER, "1")
        .env("LANEMALLOC_OPTIONS", options)
        .output()
        .expect("the test program runs")
}
