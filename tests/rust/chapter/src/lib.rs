//! Holds no code: `cargo test --doc` compiles and runs the examples in the texts below.

#[doc = include_str!("../../../../docs/rust.md")]
mod chapter {}

#[doc = include_str!("../../../../rust/lanemalloc/README.md")]
mod readme {}
