//! What the sandbox asks of the rest of the node on behalf of an attempt.

use crate::rehearsal::Rehearsal;
use heddle_domain::Time;
use std::time::Duration;

/// A boxed future.
pub type BoxFuture<'a, T> = futures::future::BoxFuture<'a, T>;

/// What host functions need and the sandbox does not have. The futures run on the node's runtime, never on guest
/// threads; errors are texts for the script's author.
///
/// An attempt that has something says so; what it does not say is refused ([`HostServices::refusal`]) or dropped. So a new
/// service is written here, and where there is such a thing.
pub trait HostServices: Send + Sync {
    /// Why a script is refused what this attempt does not have.
    fn refusal(&self, what: &str) -> String {
        format!("{what}: not available here")
    }
    /// The output of a task that this one depends on: `null` if it has none.
    fn upstream(&self, task: &str) -> BoxFuture<'_, Result<String, String>> {
        refused(self.refusal(&format!("upstream `{task}`")))
    }
    /// A key of the group's state with its version, as of now.
    fn state_get(&self, key: &str) -> BoxFuture<'_, Result<Option<(String, u64)>, String>> {
        refused(self.refusal(&format!("state `{key}`")))
    }
    /// A secret's value. That the task was granted it is checked before.
    fn secret(&self, name: &str) -> BoxFuture<'_, Result<String, String>> {
        refused(self.refusal(&format!("secret `{name}`")))
    }
    /// A named external database. That the task was granted it is checked before.
    fn connection(&self, name: &str) -> BoxFuture<'_, Result<ConnectionTarget, String>> {
        refused(self.refusal(&format!("sql connection `{name}`")))
    }
    /// A line of the attempt's log. Called on guest threads: must not block.
    fn log(&self, _line: LogLine) {}
    /// How far the attempt has come. Called on guest threads, some ten times a second at most: must not block.
    fn progress(&self, _fraction: f64, _note: String) {}
    /// What stands in for the time, for chance and for the world, if the attempt is tried out. A node's are not.
    fn rehearsal(&self) -> Option<Rehearsal> {
        None
    }
}

fn refused<T: Send + 'static>(why: String) -> BoxFuture<'static, Result<T, String>> {
    Box::pin(std::future::ready(Err(why)))
}

/// Where a named connection leads.
#[derive(Clone)]
pub struct ConnectionTarget {
    /// Changes whenever anything below does: connections are pooled by it.
    pub id: String,
    /// A `postgres://` address, with its password.
    pub url: String,
    /// How long one statement may take.
    pub statement_timeout: Duration,
    /// How many rows one query may give; never more than 10,000.
    pub max_rows: u32,
    /// How many connections a node opens at most.
    pub max_connections: u32,
    /// Whether statements may only read.
    pub read_only: bool,
}

impl std::fmt::Debug for ConnectionTarget {
    // The address holds a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectionTarget")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// How much a log line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// For following every step.
    Trace,
    /// For finding a fault.
    Debug,
    /// For knowing what happened.
    Info,
    /// Something odd.
    Warn,
    /// Something wrong.
    Error,
}

impl LogLevel {
    /// The word that API and docs use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Trace => "trace",
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

/// A line of an attempt's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// When it was written.
    pub at: Time,
    /// How much it matters.
    pub level: LogLevel,
    /// The text: one line or several, at most 64 KiB.
    pub message: String,
    /// A JSON object.
    pub fields: Option<String>,
}
