//! How attempts end: results, errors of scripts, and faults of Heddle itself.

use std::time::Duration;

use heddle_domain::id::RunId;
use heddle_domain::run::AttemptKey;
use heddle_domain::state::ErrorKind;
use heddle_domain::{ERROR_MESSAGE_BYTES_MAX, ERROR_TRACE_BYTES_MAX, Time, storable_text};
use heddle_sandbox::Effect;
use heddle_store::live::EndedAttempt;

use crate::EngineError;

#[derive(Clone)]
pub(crate) enum End {
    Done(Done),
    /// A mapped task's items are known.
    Expanded {
        items: String,
        count: u32,
    },
    /// This node reports nothing: the attempt was cancelled, or a sub-run, an offer or a queue holds it now.
    Dropped,
}

#[derive(Clone)]
pub(crate) struct Done {
    pub(crate) result: Ending,
    pub(crate) effects: Vec<Effect>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) cpu: Option<Duration>,
}

/// The end of an attempt.
#[derive(Clone, Debug)]
pub(crate) enum Ending {
    Succeeded(String),
    Skipped(String),
    Failed {
        kind: ErrorKind,
        message: String,
        trace: Option<String>,
        retry_after: Option<Duration>,
        fatal: bool,
    },
    Lost,
    /// Its worker gave it back.
    Released,
    /// Heddle's own fault; see `patience.rs`.
    Ours {
        /// Shown to people; nothing is decided by it.
        message: String,
        /// Whether it counts as a loss.
        counted: bool,
    },
}

impl Ending {
    pub(crate) fn failed(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::Failed {
            kind,
            message: message_kept(&message.into()),
            trace: None,
            retry_after: None,
            fatal: false,
        }
    }

    pub(crate) fn fatal(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::Failed {
            kind,
            message: message_kept(&message.into()),
            trace: None,
            retry_after: None,
            fatal: true,
        }
    }
}

/// What is kept of an error message, whichever executor made it. It is asked for where outcomes become events and rows
/// (`change/apply.rs`), and earlier where a message may be long.
pub(crate) fn message_kept(message: &str) -> String {
    storable_text(message, ERROR_MESSAGE_BYTES_MAX)
}

/// What is kept of a trace.
pub(crate) fn trace_kept(trace: &str) -> String {
    storable_text(trace, ERROR_TRACE_BYTES_MAX)
}

impl Ending {
    /// What was asked for is invalid.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::fatal(ErrorKind::Invalid, message)
    }
}

impl End {
    pub(crate) fn plain(result: Ending) -> Self {
        Self::Done(Done {
            result,
            effects: Vec::new(),
            memory_bytes: None,
            cpu: None,
        })
    }
}

/// An outcome to be applied.
pub(crate) struct Applied {
    pub(crate) ended: EndedAttempt,
    pub(crate) end: End,
    /// When the attempt ended, if its holder knows that; otherwise the time at which its run is locked.
    pub(crate) finished_at: Option<Time>,
    /// Where the attempt ran.
    pub(crate) node: Option<uuid::Uuid>,
}

/// The outcome of an attempt that ends elsewhere.
pub(crate) fn applied(run: RunId, at: AttemptKey, lease: i64, ending: &Ending) -> Applied {
    Applied {
        ended: EndedAttempt { run, at, lease },
        end: End::plain(ending.clone()),
        finished_at: None,
        node: None,
    }
}

/// The result of one step of an attempt.
pub(crate) type Step<T> = Result<T, Stop>;

/// Why an attempt does not continue.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It ends like this.
    Ending(Ending),
    /// Heddle itself failed: the step is tried again, or fails as our own fault.
    Engine(EngineError),
}

impl From<Ending> for Stop {
    fn from(ending: Ending) -> Self {
        Self::Ending(ending)
    }
}

impl<E> From<E> for Stop
where
    EngineError: From<E>,
{
    fn from(error: E) -> Self {
        Self::Engine(error.into())
    }
}

/// For callers that handle endings themselves, and return errors of Heddle to their own callers.
pub(crate) fn apart<T>(step: Step<T>) -> Result<Result<T, Ending>, EngineError> {
    match step {
        Ok(value) => Ok(Ok(value)),
        Err(Stop::Ending(ending)) => Ok(Err(ending)),
        Err(Stop::Engine(error)) => Err(error),
    }
}
