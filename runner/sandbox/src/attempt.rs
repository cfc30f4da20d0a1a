//! One attempt: what goes in and what comes out.

use crate::batch::{Batch, MessageOutcome};
use crate::context::Context;
use crate::effects::Effect;
use crate::lanes::Task;
use crate::outbound::HostPattern;
use crate::services::HostServices;
use heddle_domain::state::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

/// What an attempt is started with.
pub struct AttemptRequest {
    /// Who is running, and for what.
    pub context: Context,
    /// The effective params, a JSON text. For a script of the world `consumer`: `{"topic": …, "messages": [{"id",
    /// "sender", "receiver", "due", "payload"}]}`, unless it is given a batch.
    pub params: String,
    /// What a script of the world `consumer` handles.
    pub batch: Option<Batch>,
    /// How much it may take.
    pub limits: Limits,
    /// What it may reach.
    pub grants: Grants,
    /// Who answers its host calls.
    pub host: Arc<dyn HostServices>,
}

/// How much an attempt may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Linear memory, all memories together.
    pub memory_bytes: u64,
    /// The output: more is an error.
    pub output_bytes: usize,
    /// The log: what is more is cut, and that is said in a last line.
    pub log_bytes: usize,
    /// Wall time from the start; `None` has no end.
    pub timeout: Option<Duration>,
    /// Processor time, which is the same on a busy node; `None` has no end. Seen when the guest next yields.
    pub cpu: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes: 128 << 20,
            output_bytes: 256 << 10,
            log_bytes: 1 << 20,
            timeout: Some(Duration::from_secs(3_600)),
            cpu: None,
        }
    }
}

/// What an attempt may reach.
#[derive(Clone, Debug, Default)]
pub struct Grants {
    /// Where its HTTP requests may go: exact or `*.example.com`, with an optional port.
    pub allow_hosts: Vec<HostPattern>,
    pub sql: Vec<String>,
    pub secrets: Vec<String>,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// With this output, a JSON text. Of a `consumer`: an array with, for each message in order, `{"state":
    /// "succeeded"}`, `{"state": "skipped", "message"}` or `{"state": "failed", "kind": "failed" | "fatal", "message",
    /// "retry_after_ms"?}`, unless it was given a batch: then `null`, and the result has the outcomes.
    Succeeded(String),
    /// There was nothing to do, for this reason.
    Skipped(String),
    Failed {
        /// What kind of failure; `lost` if it was not the script's fault, nor ran to its end.
        kind: ErrorKind,
        message: String,
        /// Where in the wasm, for a trap.
        trace: Option<String>,
        /// The script asks not to be retried earlier.
        retry_after: Option<Duration>,
    },
    /// It was cancelled through its handle.
    Cancelled,
}

impl Outcome {
    pub(crate) fn failed(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::Failed {
            kind,
            message: message.into(),
            trace: None,
            retry_after: None,
        }
    }
}

/// What an attempt leaves behind.
#[derive(Clone, Debug)]
pub struct AttemptResult {
    pub outcome: Outcome,
    /// Of a consumer that was given a batch and succeeded: what became of each message, in order.
    pub messages: Vec<MessageOutcome>,
    /// What it wants written, in order. Empty unless it succeeded.
    pub effects: Vec<Effect>,
    /// Its linear memory at its largest.
    pub memory_bytes: u64,
    /// Processor time it used.
    pub cpu: Duration,
    /// From its start to its end.
    pub duration: Duration,
    /// Whether its log was cut.
    pub log_truncated: bool,
}

/// Holds on to a started attempt. Dropping it does not cancel.
#[derive(Clone)]
pub struct AttemptHandle {
    pub(crate) task: Arc<Task>,
}

impl AttemptHandle {
    /// Stops the attempt, be it running, parked or not yet begun, within milliseconds. Its `done` is still called:
    /// with [`Outcome::Cancelled`], unless it had ended before.
    pub fn cancel(&self) {
        self.task.cancel();
    }
}
