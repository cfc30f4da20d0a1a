//! The `heddle` command line: what it understands, its configuration, an embedded Postgres, and the wiring of a node.

mod arguments;
mod commands;
mod config;
mod demo;
mod document;
mod exit;
mod logging;
mod metrics;
pub mod node;
mod output;
pub mod postgres;
mod session;
mod terminal;
mod traces;

pub use arguments::Cli;
pub use config::NodeOptions;

use std::process::ExitCode;

use clap::Parser;

/// Runs the program; see [`Cli`] for what it understands and its help for the exit codes.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match commands::run(cli) {
        Ok(code) => code,
        Err(error) => exit::report(&error),
    }
}
