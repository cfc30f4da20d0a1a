//! The filter of a list of runs.

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::state::{RunState, Trigger};
use uuid::Uuid;

/// Which runs to list; empty and `None` mean any.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunFilter {
    pub groups: Vec<String>,
    /// In one of these states.
    pub states: Vec<RunState>,
    /// By one of these triggers.
    pub triggers: Vec<Trigger>,
    /// With these labels, all of them; `None`: whatever the value.
    pub labels: Vec<(String, Option<String>)>,
    /// Created from here, inclusive.
    pub from: Option<Time>,
    /// Created to here, inclusive.
    pub to: Option<Time>,
    /// With a logical time from here, inclusive.
    pub logical_from: Option<Time>,
    /// With a logical time to here, inclusive.
    pub logical_to: Option<Time>,
    /// Created before this run (the cursor).
    pub before: Option<RunId>,
    /// The runs with these ids.
    pub ids: Vec<Uuid>,
    /// With ids between these, inclusive.
    pub id_range: Option<(Uuid, Uuid)>,
    /// Of revisions with a task for one of these queues.
    pub queues: Vec<String>,
    /// Of revisions with a task for one of these scripts, `name` or `name@version`.
    pub scripts: Vec<String>,
    /// By this backfill, or reruns of this run.
    pub source: Option<Uuid>,
    pub key: Option<String>,
    /// Ended ones only if they ended since then.
    pub ended_since: Option<Time>,
}
