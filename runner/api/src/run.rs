//! Runs, their task runs, and the attempts of those.

use std::collections::BTreeMap;

use heddle_domain::state::{AttemptState, ErrorKind, RunState, Skip, TaskState, Trigger};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::Moment;

/// The interval of data that a run is for: the previous instant to this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DataInterval {
    /// Inclusive.
    pub start: Moment,
    /// Exclusive: the logical time.
    pub end: Moment,
}

/// Why a run, a task run or an attempt failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// What kind of failure.
    pub kind: ErrorKind,
    /// In a sentence.
    pub message: String,
    /// Where in the guest, for traps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// Of a run: which of its tasks failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// Of a run: which item of that task, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<u32>,
}

/// One execution of a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    /// UUIDv7: sorts by creation.
    pub id: Uuid,
    /// The group's name.
    pub group: String,
    /// The group's revision that it runs, whatever the group has become since.
    pub revision: i32,
    /// The instant that it is for.
    pub logical_time: Moment,
    /// The data that it is for.
    pub data_interval: DataInterval,
    /// Why it was made.
    pub trigger: Trigger,
    /// How it stands.
    pub state: RunState,
    /// Params for all tasks, as they were submitted: an object.
    #[schemars(with = "BTreeMap<String, Value>")]
    pub params: Value,
    /// Params for single tasks, as they were submitted: an object by task.
    #[schemars(with = "BTreeMap<String, Value>")]
    pub task_params: Value,
    /// The caller's own, unique within the group.
    pub key: Option<String>,
    /// Higher goes first, -1000 to 1000.
    pub priority: i16,
    /// When it was accepted.
    pub created_at: Moment,
    /// When it left `waiting`.
    pub started_at: Option<Moment>,
    /// When it ended.
    pub finished_at: Option<Moment>,
    /// Why it failed.
    pub error: Option<Failure>,
    /// Why it was never begun, if it was due and is `cancelled` for that.
    pub skipped: Option<Skip>,
    /// The caller's own.
    pub labels: BTreeMap<String, String>,
    /// What a `waiting` run waits for.
    pub waiting_for: Vec<Value>,
    /// The id of the backfill, the run or the schedule that made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// What an operator set its state to, while that stands; left out of lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r#override: Option<Override>,
    /// The script versions that were resolved for it: `{task: name@version}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub scripts: BTreeMap<String, String>,
    /// Its task runs in the order of the graph, a mapped task as a whole before its items; left out of lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks: Option<Vec<TaskRun>>,
}

/// A state that an operator set by hand.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Override {
    /// The state.
    pub state: TaskState,
    /// Why, in the operator's words.
    pub reason: String,
    /// Who: the token's name.
    pub actor: String,
    /// When.
    pub at: Moment,
}

/// A task run, or one item of a mapped task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskRun {
    /// The task's name.
    pub task: String,
    /// Which item, from 0; null for a task that is not mapped, and for a mapped one as a whole.
    pub item: Option<u32>,
    /// How it stands.
    pub state: TaskState,
    /// The number of its last attempt, from 1; 0 before the first.
    pub attempt: u32,
    /// While it is `retrying`: when it is tried again.
    pub next_attempt_at: Option<Moment>,
    /// While it is `ready`: what it waits for, if that is neither a node nor a moment.
    pub waiting_for: Option<TaskWait>,
    /// When its first attempt began.
    pub started_at: Option<Moment>,
    /// When it was settled.
    pub finished_at: Option<Moment>,
    /// What it returned: any JSON.
    pub output: Option<Value>,
    /// Why its last attempt failed.
    pub error: Option<Failure>,
    /// The id of the node where its last attempt ran.
    pub node: Option<String>,
    /// The worker that claimed its last attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// What an operator set its state to, while that stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r#override: Option<Override>,
    /// 0 to 1, as the script or the worker reports it while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<f64>,
    /// What the script or the worker says of its progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// For a mapped task as a whole: how many items are in which state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items: Option<BTreeMap<String, u64>>,
}

/// What a ready task run waits for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskWait {
    /// Which kind of thing.
    pub reason: TaskWaitReason,
    /// The pools whose slots it needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pools: Option<Vec<String>>,
    /// The queue whose worker it needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Not before then, where that is known: others may come first.
    pub until: Option<Moment>,
}

/// The kinds of things that ready task runs wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskWaitReason {
    /// Free slots of its pools.
    Pool,
    /// The next claim that its queue's rate limit allows.
    RateLimit,
    /// The end of its queue's pause.
    QueuePaused,
    /// A worker that claims it.
    Worker,
}

/// One try of a task run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Attempt {
    /// From 1.
    pub attempt: u32,
    /// How it stands.
    pub state: AttemptState,
    /// The id of the node that runs it.
    pub node: Option<String>,
    /// The worker that claimed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// When it began.
    pub started_at: Moment,
    /// When it ended.
    pub finished_at: Option<Moment>,
    /// Why it failed.
    pub error: Option<Failure>,
    /// The most memory that the guest had, in bytes.
    pub memory_bytes: Option<u64>,
    /// Time on a processor, in milliseconds, rounded up.
    pub cpu_ms: Option<u64>,
}

/// A task run with its attempts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskDetail {
    /// How it stands.
    #[serde(flatten)]
    pub task: TaskRun,
    /// All of its attempts, oldest first.
    pub attempts: Vec<Attempt>,
}
