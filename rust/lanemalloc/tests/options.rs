//! Options that are compiled in.

mod common;

use lanemalloc::{lanes, Lanes};

lanemalloc::options!("lanes=shared:5");

#[test]
fn compiled_options_hold_unless_the_environment_says_otherwise() {
    let name = "compiled_options_hold_unless_the_environment_says_otherwise";
    if common::is_inner() {
        println!("now {}", lanes());
        return;
    }
    for (environment, expected) in [("", Lanes::Shared(5)), ("lanes=owned", Lanes::Owned)] {
        let output = common::run_inner(name, environment);
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(told.contains(&format!("now {}\n", expected)), "{}", told);
    }
}
