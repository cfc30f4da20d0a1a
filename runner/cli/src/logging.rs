//! Logs: text for people, JSON for machines, always on stderr.

use std::io::IsTerminal;

use clap::ValueEnum;
use serde::Deserialize;
use tracing_subscriber::EnvFilter;

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// Lines for people, in colour on a terminal.
    Text,
    /// One JSON object per line.
    Json,
}

/// The default of the log level. Three libraries would log too much at `info` or `warn`. The two Postgres drivers log every
/// notice of a server; most are harmless, and one comes with each batch of messages. The pool of the scripts' connections
/// warns whenever a server closes one, for example when `dev` stops its own server. A task that needs such a connection
/// reports the error itself.
const LEVEL: &str = "info,tokio_postgres=warn,sqlx::postgres::notice=warn,deadpool.postgres=error";

/// Starts logging. `level` is a level or a list of directives (`info,heddle_engine=debug`); RUST_LOG wins over it.
pub(crate) fn start(format: Option<LogFormat>, level: Option<&str>) -> anyhow::Result<()> {
    let directives = std::env::var("RUST_LOG")
        .ok()
        // As with all variables, an empty one counts as not set; as a filter, it would log nothing at all.
        .filter(|directives| !directives.is_empty())
        .or_else(|| level.map(str::to_owned))
        .unwrap_or_else(|| LEVEL.into());
    let filter = EnvFilter::try_new(&directives)
        .map_err(|error| crate::exit::usage(format!("`{directives}` is not a valid log level: {error}")))?;
    let on_terminal = std::io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // A line that cannot be written (a closed pipe, a full disk) is lost. Its error would be written there, too, by
        // `eprintln!`, which panics.
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    let started = match format.unwrap_or(LogFormat::Text) {
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        LogFormat::Text => builder.with_ansi(on_terminal).with_target(!on_terminal).try_init(),
    };
    // A second start in one process (tests) keeps the first.
    let _ = started;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_logged_can_be_read() {
        let filter = EnvFilter::try_new(LEVEL).unwrap().to_string();
        assert!(filter.contains("deadpool.postgres=error"), "{filter}");
    }
}
