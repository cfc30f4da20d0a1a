//! What has been decided about a locked run.

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::run::{AttemptKey, TaskKey};
use heddle_domain::state::{RunState, Skip};

use super::ReadyRow;
use super::queue::QueueRow;
use crate::notice::NewNotices;

/// What to write of one run.
#[derive(Clone, Debug)]
pub struct RunWrite {
    pub run: RunId,
    pub state: RunState,
    /// Its progress as bytes.
    pub progress: Vec<u8>,
    /// Its priority, for its ready rows.
    pub priority: i16,
    pub ready: Vec<ReadyRow>,
    /// Task runs that workers may claim from now on.
    pub queued: Vec<QueueRow>,
    /// Retries that are not due yet.
    pub timers: Vec<(Time, AttemptKey)>,
    /// Timers to be deleted.
    pub drop_timers: Vec<TaskKey>,
    /// Attempts to be stopped and ready rows to be taken back.
    pub interrupt: Vec<TaskKey>,
    /// Arrays of mapped tasks that were expanded.
    pub maps: Vec<(i16, String)>,
    /// Its error, if it has ended with one.
    pub error: Option<String>,
    /// If it never began: why.
    pub skipped: Option<Skip>,
    /// Whether it had ended in the same state before, and has done nothing since: its end is in the feed already.
    pub told: bool,
    /// Whether its end may let other runs of its group begin.
    pub gated: bool,
    /// Whether it may have timers.
    pub timed: bool,
    /// The notices about it.
    pub notices: Option<Box<NewNotices>>,
}
