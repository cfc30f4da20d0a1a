//! Types and decisions of Heddle: specs, the progress of runs, and when a retry or a schedule is due.
//!
//! Nothing here does I/O, waits, or reads a clock or a random generator: time and chance are arguments ([`Clock`],
//! [`Chance`]), so that a decision can be replayed.

#![cfg_attr(
    test,
    allow(clippy::too_many_lines, reason = "a test tells its story from begin to end")
)]

pub mod backfill;
pub mod bounded;
pub mod chain;
pub mod chance;
pub mod clock;
pub mod dispatch;
pub mod duration;
pub mod executor;
pub mod fault;
pub mod framed;
pub mod graph;
mod hex;
pub mod id;
pub mod link;
pub mod merge;
pub mod message;
pub mod name;
pub mod notify;
pub mod params;
mod plain;
pub mod plan;
pub mod pool;
pub mod retention;
pub mod retry;
pub mod run;
pub mod schedule;
pub mod schema;
mod shorten;
pub mod spec;
pub mod state;
mod storable;
pub mod template;
pub mod topic;
pub mod wait;

pub use chain::Chain;
pub use chance::Chance;
pub use clock::{Clock, Time};
pub use duration::Span;
pub use fault::{Fault, Faults};
pub use hex::hex;
pub use name::Name;
pub use shorten::shortened;
pub use storable::{ERROR_MESSAGE_BYTES_MAX, ERROR_TRACE_BYTES_MAX, has_nul, storable_text};
