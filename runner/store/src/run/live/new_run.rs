//! A run to be created, and the result.

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::run::AttemptKey;
use heddle_domain::state::{RunState, Trigger};
use heddle_domain::wait::RunWait;
use serde_json::Value;

use super::ReadyRow;
use super::queue::QueueRow;
use crate::run::RunTerms;

/// What the group of a run must be when the run is created. What a node knows of a group may be some seconds old.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupNeed {
    /// Not asked: the creator holds a lock for which a deletion or a stop of the group waits (its schedule), or has asked
    /// before, and still holds the answer (a backfill, an upstream).
    #[default]
    NotAsked,
    /// It must not be deleted.
    Exists,
    /// It must be enabled, too.
    Enabled,
}

impl GroupNeed {
    /// Of a run that people want, also while the group is disabled if they `force` it.
    pub fn of(force: bool) -> Self {
        if force { Self::Exists } else { Self::Enabled }
    }
}

/// A run to be created.
#[derive(Clone, Debug)]
pub struct NewRun {
    pub id: RunId,
    pub group_id: i64,
    pub needs: GroupNeed,
    /// The revision that it pins.
    pub revision_id: i64,
    /// The script versions that it pins; `None`: resolved when it starts.
    pub resolution_id: Option<i64>,
    /// Either waiting or running.
    pub state: RunState,
    pub terms: RunTerms,
    /// The hash of what must be unique, and whether it must be unique as long as the run is kept (otherwise as long as
    /// it is unfinished).
    pub dedupe: Option<(Vec<u8>, bool)>,
    pub created_at: Time,
    /// When it must have ended.
    pub deadline_at: Option<Time>,
    /// The attempt of which it is a sub-run.
    pub parent: Option<(RunId, AttemptKey)>,
    /// When that attempt must have ended.
    pub parent_due: Option<Time>,
    /// What it waits for; `None`: it does not wait.
    pub waiting_for: Option<Vec<RunWait>>,
    pub progress: Vec<u8>,
    /// Its task runs that may start at once.
    pub ready: Vec<ReadyRow>,
    /// Its task runs that workers may claim at once.
    pub queued: Vec<QueueRow>,
    /// It waits at its group's gate.
    pub gated: bool,
    /// It waits for upstream groups first.
    pub follows: bool,
    /// Its group may have only this run for its logical time.
    pub instant: bool,
    /// A rule asks for a notification that it has started.
    pub announces_start: bool,
    /// The audit entry, if people create it otherwise than by a submission.
    pub audited: Option<Audited>,
}

/// The audit entry of a run that people create.
#[derive(Clone, Debug)]
pub struct Audited {
    pub action: &'static str,
    /// Its state after that.
    pub after: Value,
}

impl NewRun {
    /// A run by hand that begins at once, before it has any task run. Tests and benchmarks change what they need.
    pub fn plain(id: RunId, group_id: i64, at: Time) -> Self {
        Self {
            id,
            group_id,
            needs: GroupNeed::NotAsked,
            revision_id: 1,
            resolution_id: None,
            state: RunState::Running,
            terms: RunTerms::of_time(Trigger::Manual, at, (at, at)),
            dedupe: None,
            created_at: at,
            deadline_at: None,
            parent: None,
            parent_due: None,
            waiting_for: None,
            progress: Vec::new(),
            ready: Vec::new(),
            queued: Vec::new(),
            gated: false,
            follows: false,
            instant: false,
            announces_start: false,
            audited: None,
        }
    }

    /// Whether only its own row and its ready task runs have to be written, and nothing has to be checked.
    pub fn is_plain(&self) -> bool {
        self.terms.key.is_none()
            && self.dedupe.is_none()
            && self.parent.is_none()
            && !self.gated
            && !self.instant
            && !self.announces_start
            && self.audited.is_none()
            && self.deadline_at.is_none()
            && self.queued.is_empty()
            && self
                .ready
                .iter()
                .all(|row| row.pools.is_none() && row.claim_within.is_none())
    }

    pub(super) fn unpooled(&self) -> impl Iterator<Item = &ReadyRow> {
        self.ready.iter().filter(|row| row.pools.is_none())
    }
}

/// The result for a [`NewRun`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Created {
    /// The run was created.
    Made {
        /// Whether this node got the rows that were meant for it.
        handed: bool,
        /// When the task runs that start at once began.
        at: Time,
    },
    /// There is another one with this key, these params, or for this instant.
    Exists(RunId),
    /// The parent's attempt is not this node's any more: nothing was created.
    Fenced,
    /// Its group has been deleted.
    Deleted,
    /// Its group has been disabled.
    Disabled,
}
