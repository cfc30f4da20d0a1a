//! Queues, and what is in them.

use heddle_domain::Span;
use heddle_domain::state::TaskState;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use uuid::Uuid;

use crate::Moment;

/// A rate limit: `count` claims per duration `per` (a token bucket that fills evenly).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "QueueRate")]
pub struct Rate {
    /// The number of claims, 1 to 1,000,000.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub count: i64,
    /// The duration, 1ms to 1d.
    pub per: Span,
}

/// A change of a queue. Omitted fields do not change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QueueSpec {
    /// The name, the same as in the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether the queue is paused: workers get no task runs. Claimed task runs continue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// The rate limit of claims. null removes the limit.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub rate: Option<Option<Rate>>,
}

/// Tells null from what is left out.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<Rate>>, D::Error> {
    Option::<Rate>::deserialize(deserializer).map(Some)
}

/// A worker of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "QueueWorker")]
pub struct Worker {
    /// The name of the worker or queue.
    pub worker: String,
    /// The tags of the worker.
    pub tags: Vec<String>,
    /// When it last polled.
    pub seen_at: Option<Moment>,
    /// The number of task runs that it holds.
    pub claimed: i64,
}

/// A queue with its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Queue {
    /// The name of the worker or queue.
    pub name: String,
    /// The number of task runs that wait to be claimed.
    pub depth: i64,
    /// Whether `depth` is exact. Above 100,000 it is an estimate.
    pub depth_exact: bool,
    /// Since when the oldest of them waits. null: none waits.
    pub oldest: Option<Moment>,
    /// The number of task runs that workers hold.
    pub claimed: i64,
    /// The number of workers that polled in the last minute or hold a claim.
    pub workers: i64,
    /// Whether the queue is paused: workers get no task runs.
    pub paused: bool,
    /// The rate limit of claims. null: no limit.
    pub rate: Option<Rate>,
    /// The workers of the queue. Missing in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connected: Option<Vec<Worker>>,
}

/// The statistics of a queue for one minute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueMinute {
    /// When the minute began.
    pub at: Moment,
    /// The number of task runs that waited at one moment of the minute. null: not measured.
    pub depth: Option<i64>,
    /// The number of task runs that workers completed or failed in the minute, approximately.
    pub ended: i64,
}

/// A task run of a queue that waits or is claimed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueTask {
    /// The id of the run.
    pub run: Uuid,
    /// The group of the run.
    pub group: String,
    /// The name of the task.
    pub task: String,
    /// The item of a mapped task, counted from 0. null: the task is not mapped.
    pub item: Option<u32>,
    /// The number of its current or next attempt, counted from 1.
    pub attempt: u32,
    /// `running`: a worker has claimed it; `ready`: it waits.
    pub state: TaskState,
    /// The priority, -1000 to 1000; higher goes first.
    pub priority: i16,
    /// The tags that a worker needs to claim it.
    pub tags: Vec<String>,
    /// Since when it waits or is claimed.
    pub since: Moment,
    /// In state `ready`: when its `queue_timeout` ends.
    pub expires_at: Option<Moment>,
    /// In state `running`: the name of the worker.
    pub worker: Option<String>,
    /// In state `running`: when the claim expires unless it is extended.
    pub lease_expires_at: Option<Moment>,
}
