//! The `heddle` command line: what it understands, its configuration, and the wiring of a node.

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

/// What the allocator is told: an arena for each core instead of four, which is 2.5 MB less of an idle node and no
/// slower. `_RJEM_MALLOC_CONF` in the environment goes before it (jemalloc(3), TUNING).
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
