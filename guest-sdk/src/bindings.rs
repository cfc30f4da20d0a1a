//! Bindings generated from `wit/task.wit` (`tests/bindings.rs` says how, and why not by a macro). The worlds `task` and
//! `consumer` share the bindings of what they import.

#![allow(missing_docs, reason = "generated; the WIT is the documentation")]
#![allow(clippy::all, reason = "generated")]

#[rustfmt::skip]
#[path = "bindings/imports.rs"]
mod shared;

pub use shared::heddle::task as imports;

/// Bindings of the world `task`: the script runs once for each attempt.
#[rustfmt::skip]
pub mod task;

/// Bindings of the world `consumer`: the script gets batches of messages.
#[rustfmt::skip]
pub mod consumer;
