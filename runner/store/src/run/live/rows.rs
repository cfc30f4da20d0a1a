//! Rows that the data plane writes: of *ready*, of the history of attempts, and of their logs.

use std::sync::Arc;

use chrono::TimeDelta;
use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::pool::PoolNeed;
use heddle_domain::run::AttemptKey;
use heddle_domain::state::{AttemptState, ErrorKind, LogLevel};
use uuid::Uuid;

/// A row for *ready*, or for *running* if this node gets it.
#[derive(Clone, Debug)]
pub struct ReadyRow {
    pub at: AttemptKey,
    /// Its position in the queue among rows of its priority: the column `turn`.
    pub position: i64,
    /// Whether this node takes it at once, as far as a [`super::Grant`] allows.
    pub(super) handed: bool,
    /// The slots for which it waits before it is ready.
    pub pools: Option<Arc<PoolNeed>>,
    /// How soon it must be claimed.
    pub claim_within: Option<TimeDelta>,
}

impl ReadyRow {
    /// A row for *ready*.
    pub fn new(at: AttemptKey, position: i64, pools: Option<Arc<PoolNeed>>) -> Self {
        Self {
            at,
            position,
            handed: false,
            pools,
            claim_within: None,
        }
    }

    /// It fails unless it is claimed within this time.
    #[must_use]
    pub fn within(mut self, time: Option<TimeDelta>) -> Self {
        self.claim_within = time;
        self
    }
}

/// A row of the attempts' history.
#[derive(Clone, Debug)]
pub struct AttemptRow {
    pub run: RunId,
    pub at: AttemptKey,
    pub state: AttemptState,
    /// Whether it reported that there was nothing to do.
    pub skipped: bool,
    pub started_at: Time,
    pub finished_at: Time,
    pub node: Option<Uuid>,
    /// The worker that had claimed it.
    pub worker: Option<String>,
    /// The value as JSON text.
    pub output: Option<String>,
    pub error: Option<(ErrorKind, String, Option<String>)>,
    /// Peak of linear memory.
    pub memory_bytes: Option<i64>,
    /// Time on a processor.
    pub cpu_micros: Option<i64>,
}

/// A line of an attempt's log.
#[derive(Clone, Debug)]
pub struct LogRow {
    pub run: RunId,
    pub at: AttemptKey,
    /// The first one is 0.
    pub line: i32,
    pub time: Time,
    pub level: LogLevel,
    pub message: String,
    /// A JSON object as text.
    pub fields: Option<String>,
}
