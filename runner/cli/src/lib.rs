//! The `heddle` command line: what it understands, its configuration, and the wiring of a node.

// These macros panic if what they write cannot be written. What takes their place: `terminal::tell`, `output::print`.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod arguments;
mod commands;
mod completions;
mod config;
mod demo;
mod document;
mod exit;
mod logging;
mod metrics;
pub mod node;
mod output;
mod pages;
mod session;
mod terminal;
mod traces;

pub use arguments::Cli;
pub use config::NodeOptions;

use std::process::ExitCode;

/// The system's allocator (glibc's) lets threads wait for each other where one frees what another made, which is what a
/// server's threads do all day: docs/benchmarks.md, empty polls. It stands here and not in `main.rs` so that every
/// program made of this crate has it.
#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The options of the allocator: one arena for each core instead of four, which saves 2.5 MB of an idle node and is not
/// slower. The environment variable `_RJEM_MALLOC_CONF` overrides them (jemalloc(3), TUNING).
#[cfg(not(target_env = "msvc"))]
#[used]
#[unsafe(export_name = "_rjem_malloc_conf")]
static ALLOCATOR_OPTIONS: &[u8; 16] = b"narenas_ratio:1\0";

/// Runs the program; see [`Cli`] for what it understands and its help for the exit codes.
pub fn main() -> ExitCode {
    completions::answer();
    let cli = Cli::read(std::env::args_os()).unwrap_or_else(|error| error.exit());
    match commands::run(cli) {
        Ok(code) => code,
        Err(error) => exit::report(&error),
    }
}
