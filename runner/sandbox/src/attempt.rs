//! One attempt: its input and its result.

use crate::batch::{Batch, MessageOutcome};
use crate::context::Context;
use crate::effects::Effect;
use crate::outbound::HostPattern;
use crate::services::HostServices;
use heddle_domain::state::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

/// The input of an attempt.
pub struct AttemptRequest {
    /// The context that the attempt can read.
    pub context: Context,
    /// The effective params, a JSON text. For a script of the world `consumer`: `{"topic": …, "messages": [{"id",
    /// "sender", "receiver", "due", "payload"}]}`, unless it is given a batch.
    pub params: String,
    /// The messages for a script of the world `consumer`.
    pub batch: Option<Batch>,
    /// Bounds on its memory, time, output and log.
    pub limits: Limits,
    /// What it may reach.
    pub grants: Grants,
    /// Answers its host calls.
    pub host: Arc<dyn HostServices>,
}

/// The limits of an attempt.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// All linear memories together; and, apart from them, what the node holds for the script's calls: what a source script
    /// sends and receives until it has read the answer, what a component writes of bodies until it was sent, and the
    /// effects of both.
    pub memory_bytes: u64,
    /// The output: a larger one is an error.
    pub output_bytes: usize,
    /// The log: a longer one is cut, and a last line says so.
    pub log_bytes: usize,
    /// Wall time from the start; `None`: no limit.
    pub timeout: Option<Duration>,
    /// Processor time, which is the same on a busy node; `None`: no limit. Checked when the guest next yields.
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
    /// The targets of its HTTP requests: exact or `*.example.com`, with an optional port.
    pub allow_hosts: Vec<HostPattern>,
    pub sql: Vec<String>,
    pub secrets: Vec<String>,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// With this output, a JSON text. For a `consumer`: an array with, for each message in order, `{"state":
    /// "succeeded"}`, `{"state": "skipped", "message"}` or `{"state": "failed", "kind": "failed" | "fatal", "message",
    /// "retry_after_ms"?}`, unless it got a batch: then `null`, and the outcomes are in the result.
    Succeeded(String),
    /// There was nothing to do, for this reason.
    Skipped(String),
    Failed {
        /// The kind of failure; `lost` if the script did not cause it, and did not run to its end.
        kind: ErrorKind,
        message: String,
        /// For a trap: where in the wasm code.
        trace: Option<String>,
        /// The script asks for no earlier retry.
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

/// The result of an attempt.
#[derive(Clone, Debug)]
pub struct AttemptResult {
    pub outcome: Outcome,
    /// For a consumer that got a batch and succeeded: the outcome of each message, in order.
    pub messages: Vec<MessageOutcome>,
    /// What it wants to be written, in order. Empty unless it succeeded.
    pub effects: Vec<Effect>,
    /// The largest size of its linear memory.
    pub memory_bytes: u64,
    /// Processor time it used.
    pub cpu: Duration,
    /// From its start to its end.
    pub duration: Duration,
    /// Whether its log was cut.
    pub log_truncated: bool,
}
