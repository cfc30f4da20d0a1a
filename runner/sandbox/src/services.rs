//! What the sandbox asks of the rest of the node for an attempt.

use crate::rehearsal::Rehearsal;
use heddle_domain::Time;
use heddle_domain::state::LogLevel;
use std::time::Duration;

pub type BoxFuture<'a, T> = futures::future::BoxFuture<'a, T>;

/// What host functions need and the sandbox does not have. The futures run on the node's runtime, never on guest
/// threads; errors are texts for the script's author.
///
/// By default, everything is refused ([`HostServices::refusal`]) or dropped; an implementation overrides what its
/// attempts have. So a new service is added here, and only where attempts have it.
pub trait HostServices: Send + Sync {
    /// The error when a script asks for something that this attempt does not have.
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
    /// A secret's value. The task's grant is checked before.
    fn secret(&self, name: &str) -> BoxFuture<'_, Result<String, String>> {
        refused(self.refusal(&format!("secret `{name}`")))
    }
    /// A named external database. The task's grant is checked before.
    fn connection(&self, name: &str) -> BoxFuture<'_, Result<ConnectionTarget, String>> {
        refused(self.refusal(&format!("sql connection `{name}`")))
    }
    /// The beginning of a text that was cut, without the beginning of a secret at its end: nobody could recognise that
    /// later. It is called on guest threads: it must not block.
    fn cut(&self, beginning: String) -> String {
        beginning
    }
    /// A line of the attempt's log. It is called on guest threads: it must not block.
    fn log(&self, _line: LogLine) {}
    /// The progress of the attempt. It is called on guest threads, at most some ten times a second: it must not block.
    fn progress(&self, _fraction: f64, _note: String) {}
    /// The substitutes for time, chance and the world, if the attempt is a rehearsal. A node's attempts are not.
    fn rehearsal(&self) -> Option<Rehearsal> {
        None
    }
}

fn refused<T: Send + 'static>(why: String) -> BoxFuture<'static, Result<T, String>> {
    Box::pin(std::future::ready(Err(why)))
}

/// The target of a named connection.
#[derive(Clone)]
pub struct ConnectionTarget {
    /// It changes whenever anything below does: connections are pooled by it.
    pub id: String,
    /// A `postgres://` address, with its password. Its `options` are kept, except for those that the fields below set.
    pub url: String,
    /// How long one statement may take.
    pub statement_timeout: Duration,
    /// How many rows one query may return; never more than 10,000.
    pub max_rows: u32,
    /// How many connections a node opens at most.
    pub max_connections: u32,
    /// Whether statements may only read, whatever the address says.
    pub read_only: bool,
}

impl std::fmt::Debug for ConnectionTarget {
    // The address contains a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectionTarget")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// A line of an attempt's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// When it was written.
    pub at: Time,
    pub level: LogLevel,
    /// The text: one line or several, at most 64 KiB.
    pub message: String,
    /// A JSON object as text.
    pub fields: Option<String>,
}
