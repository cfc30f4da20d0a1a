//! The template for new scripts in Rust compiles, and its own tests pass.

#[path = "../templates/rust/src/lib.rs"]
mod template;
