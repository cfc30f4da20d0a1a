//! Queues, and what is in them.

use heddle_domain::Span;
use heddle_domain::state::TaskState;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use uuid::Uuid;

use crate::Moment;

/// A bucket of `count` claims that fills evenly in `per`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "QueueRate")]
pub struct Rate {
    /// 1 to 1,000,000 claims.
    pub count: i64,
    /// From 1ms to 1d.
    pub per: Span,
}

/// What of a queue is set; what is left out stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QueueSpec {
    /// The name in the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether nothing is handed out. What is claimed already goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// How fast it is handed out; null takes the limit away.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub rate: Option<Option<Rate>>,
}

/// Tells null from what is left out.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<Rate>>, D::Error> {
    Option::<Rate>::deserialize(deserializer).map(Some)
}

/// A worker, as its queue knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "QueueWorker")]
pub struct Worker {
    /// Its name.
    pub worker: String,
    /// What it said that it can do.
    pub tags: Vec<String>,
    /// When it last asked for work.
    pub seen_at: Option<Moment>,
    /// How many task runs it holds.
    pub claimed: i64,
}

/// A queue as it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// How many task runs may be claimed.
    pub depth: i64,
    /// The depth was counted; that of a queue of more than 100,000 is an estimate.
    pub depth_exact: bool,
    /// Since when the oldest of them waits.
    pub oldest: Option<Moment>,
    /// How many task runs workers hold.
    pub claimed: i64,
    /// How many workers have polled within the last minute, or hold a claim.
    pub workers: i64,
    /// Nothing is handed out.
    pub paused: bool,
    /// How fast it is handed out; null: as fast as workers ask.
    pub rate: Option<Rate>,
    /// Its workers; left out of lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connected: Option<Vec<Worker>>,
}

/// A minute of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueMinute {
    /// When it began.
    pub at: Moment,
    /// How many task runs waited at a moment of it; null: it was not looked at.
    pub depth: Option<i64>,
    /// How many task runs workers completed or failed in it.
    pub ended: i64,
}

/// A task run of a queue, as it waits or is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueTask {
    /// The run's id.
    pub run: Uuid,
    /// The run's group.
    pub group: String,
    /// The task's name.
    pub task: String,
    /// Which item of a mapped task, from 0.
    pub item: Option<u32>,
    /// The number that its attempt has, or will have, from 1.
    pub attempt: u32,
    /// `running`: a worker holds it; `ready`: it waits.
    pub state: TaskState,
    /// Higher goes first.
    pub priority: i16,
    /// Tags that a worker needs for it, while it waits.
    pub tags: Vec<String>,
    /// Since when it waits, or is held.
    pub since: Moment,
    /// When it fails unless it is claimed by then.
    pub expires_at: Option<Moment>,
    /// Who holds it.
    pub worker: Option<String>,
    /// Until when it is held, unless that is extended.
    pub lease_expires_at: Option<Moment>,
}
