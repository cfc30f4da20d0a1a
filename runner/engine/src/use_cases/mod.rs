//! What the handle can do with runs and scripts, for the API and for the pages: the methods of [`crate::Engine`], by subject.
//!
//! Each of them calls one method of the runs or of the scripts, which do the work and know nothing of the handle. Who has the
//! handle reaches all services, so only `lib.rs`, `counters.rs` and this folder may name it: otherwise, a service could reach
//! another one through it (`node/mod.rs`). The methods about the other parts of a node are in `lib.rs`.

mod runs;
mod scripts;
