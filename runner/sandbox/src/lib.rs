//! The sandbox: the only crate that knows wasmtime.
//!
//! A script arrives as bytes ([`Sandbox::compile`]): a child process that may be killed checks and compiles it, the
//! artefact is kept on disk, and `describe` returns the schema of its parameters. An attempt ([`Sandbox::start`]) gets
//! one fresh instance from a pool, on threads that only run guests; it can do only what the host functions here allow.
//! Writes to Heddle (state, sub-runs, notifications) are collected as [`Effect`]s, and the caller commits them together
//! with the outcome.
//!
//! A script that fails is data ([`Outcome`]); an error is our own fault.
//!
//! | module | noun |
//! |---|---|
//! | `bounds` | code that is refused before it is compiled |
//! | `compiler`, `artefact` | the compiling child process; the disk cache |
//! | `fair_slots` | slots of scarce resources, such as compiling |
//! | `bounded` | child processes that compute with input from strangers |
//! | `engine` | wasmtime's configuration, and the ticker that makes guests yield |
//! | `lanes`, `thread` | the threads that run guests; what a thread asks of the kernel |
//! | `script` | a linked script, and its world |
//! | `guest`, `bindings`, `imports`, `command` | a store's contents; the worlds of components; the host functions; WASI commands' streams |
//! | `memory` | what counts as memory of an attempt, inside and outside of wasm |
//! | `attempt`, `run`, `texts` | one attempt: its input and result; running it; the texts that it gives |
//! | `outbound`, `outgoing`, `web` | where HTTP requests may go; how many at the same time; `wasi:http` |
//! | `requests`, `unsent` | what a component may keep in requests before it sends them; their bodies |
//! | `sql` | named external databases |
//! | `rehearsal` | attempts that authors try out, with their own clock, chance and world |
//! | `source/` | text scripts |

// These macros panic if what they write cannot be written.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod artefact;
mod attempt;
mod batch;
mod bindings;
mod bounded;
mod bounds;
mod child;
mod clients;
mod command;
mod compiler;
mod config;
mod context;
mod describe;
mod effects;
mod engine;
mod fair_slots;
mod guest;
mod imports;
mod journal;
mod lanes;
mod loaded;
mod memory;
pub mod outbound;
mod outgoing;
mod query;
mod rehearsal;
mod requests;
mod run;
mod sandbox;
mod script;
mod services;
mod source;
mod sql;
mod texts;
mod thread;
mod unsent;
mod web;

pub use artefact::digest_of;
pub use attempt::{AttemptRequest, AttemptResult, Grants, Limits, Outcome};
pub use batch::{Batch, Message, MessageOutcome};
pub use bounded::{BLOCKED_THREADS_MAX, bound_by_children, bounded_child_main};
pub use compiler::compile_child_main;
pub use config::{CompilerCommand, SandboxConfig};
pub use context::{Context, Interval, MapItem};
pub use effects::Effect;
pub use fair_slots::{FairSlot, FairSlots};
pub use lanes::AttemptHandle;
pub use outbound::{HostPattern, OutboundPolicy, Refused};
pub use query::{QueryClass, QueryFailure, QueryReach, QueryRequest};
pub use rehearsal::{Exchanges, Rehearsal, SqlAnswer, SqlStatement, WebAnswer, WebRequest};
pub use sandbox::{CompileError, Compiled, Load, LoadError, Sandbox, SandboxError, Uploaded};
pub use script::{Script, World};
pub use services::{BoxFuture, ConnectionTarget, HostServices, LogLine};
pub use source::{
    Key, Language, MAX_SOURCE_BYTES, RuntimeBundle, RuntimeId, SourceFault, code_key, has_interface, log_of_file,
    needs_newer_program, own_runtime, split_key, trace_of_file,
};
pub use sql::{MAX_ROWS, check_connection_url};

/// The engine's configuration alone, for measurements (`examples/bare_loop.rs`).
#[doc(hidden)]
pub use engine::bare_engine;
