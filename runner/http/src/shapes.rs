//! What runs, tasks and nodes look like in the API. Fields may be added, never renamed.

use std::collections::BTreeMap;

use heddle_domain::state::{AttemptState, ErrorKind, RunState, Skip, TaskState, Trigger};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::moment::Moment;

/// One page of a list.
#[derive(Clone, Debug, Serialize)]
pub struct List<T> {
    /// At most `limit` things.
    pub items: Vec<T>,
    /// What `cursor` has to be for the next page; null on the last one.
    pub next_cursor: Option<String>,
}

/// The interval of data that a run is for: the previous instant to this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DataInterval {
    /// Inclusive.
    pub start: Moment,
    /// Exclusive.
    pub end: Moment,
}

/// Why a run, a task run or an attempt failed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Failure {
    /// Which kind.
    pub kind: ErrorKind,
    /// In a sentence.
    pub message: String,
    /// Where in the guest, for traps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// Of a run: which of its tasks failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// Of a run: which item of that task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<u32>,
}

/// A task run of a queue, as it waits or is held.
#[derive(Clone, Debug, Serialize)]
pub struct QueueTask {
    /// The run's id.
    pub run: Uuid,
    /// The run's group.
    pub group: String,
    /// The task's name.
    pub task: String,
    /// Which item of a mapped task, from 0.
    pub item: Option<u32>,
    /// Which attempt it is, or will be.
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
    /// Until when, unless that is extended.
    pub lease_expires_at: Option<Moment>,
}

/// A task run that a worker holds.
#[derive(Clone, Debug, Serialize)]
pub struct Claim {
    /// UUIDv7.
    pub id: Uuid,
    /// Proves that the claim is the worker's.
    pub token: String,
    /// The run's id.
    pub run: Uuid,
    /// The run's group.
    pub group: String,
    /// The task's name.
    pub task: String,
    /// Which item of a mapped task, from 0.
    pub item: Option<u32>,
    /// From 1.
    pub attempt: u32,
    /// What to do it with: an object.
    pub params: Box<RawValue>,
    /// What a script learns from `context`.
    pub context: Box<RawValue>,
    /// When the token becomes old.
    pub lease_expires_at: Moment,
}

/// A run.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// UUIDv7.
    pub id: Uuid,
    /// The group's name.
    pub group: String,
    /// The group's revision that it runs.
    pub revision: i32,
    /// What it is for.
    pub logical_time: Moment,
    /// The data it is for.
    pub data_interval: DataInterval,
    /// Why it was made.
    pub trigger: Trigger,
    /// How it stands.
    pub state: RunState,
    /// As they were submitted.
    pub params: Value,
    /// Params for single tasks, as they were submitted.
    pub task_params: Value,
    /// The caller's own, unique within the group.
    pub key: Option<String>,
    /// Higher goes first.
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
    /// What a waiting run waits for.
    pub waiting_for: Vec<Value>,
    /// The backfill, the run or the schedule that made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// What an operator set its state to, while that stands; left out of lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r#override: Option<Override>,
    /// The script versions that were resolved for it: `{task: name@version}`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub scripts: BTreeMap<String, String>,
    /// Its task runs; left out of lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks: Option<Vec<TaskRun>>,
}

/// A state that an operator set by hand.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Override {
    /// The state.
    pub state: TaskState,
    /// Why.
    pub reason: String,
    /// Who.
    pub actor: String,
    /// When.
    pub at: Moment,
}

/// A task run, or one item of a mapped task.
#[derive(Clone, Debug, Serialize)]
pub struct TaskRun {
    /// The task's name.
    pub task: String,
    /// Which item; null for a task that is not mapped, and for a mapped one as a whole.
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
    /// What it returned.
    pub output: Option<Value>,
    /// Why its last attempt failed.
    pub error: Option<Failure>,
    /// Where its last attempt ran.
    pub node: Option<String>,
    /// The worker that claimed its last attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// What an operator set its state to, while that stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r#override: Option<Override>,
    /// 0 to 1, as the script reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<f64>,
    /// What the script says of its progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// For a mapped task as a whole: items by state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items: Option<BTreeMap<String, u64>>,
}

/// What a ready task run waits for.
#[derive(Clone, Debug, Serialize)]
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
#[derive(Clone, Copy, Debug, Serialize)]
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

/// One try.
#[derive(Clone, Debug, Serialize)]
pub struct Attempt {
    /// From 1.
    pub attempt: u32,
    /// How it stands.
    pub state: AttemptState,
    /// The node that runs it.
    pub node: Option<String>,
    /// The worker that claimed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// Since when.
    pub started_at: Moment,
    /// Until when.
    pub finished_at: Option<Moment>,
    /// Why it failed.
    pub error: Option<Failure>,
    /// The most memory that the guest had.
    pub memory_bytes: Option<u64>,
    /// Time on a processor.
    pub cpu_ms: Option<u64>,
}

/// A task run with its attempts.
#[derive(Clone, Debug, Serialize)]
pub struct TaskDetail {
    /// How it stands.
    #[serde(flatten)]
    pub task: TaskRun,
    /// All of its attempts, oldest first.
    pub attempts: Vec<Attempt>,
}

/// A line of a task's log.
#[derive(Clone, Debug, Serialize)]
pub struct LogLine {
    /// Where it stands; what `cursor` continues behind.
    pub cursor: String,
    /// When it was written.
    pub at: Moment,
    /// The task.
    pub task: String,
    /// The item.
    pub item: Option<u32>,
    /// The attempt.
    pub attempt: u32,
    /// `trace`, `debug`, `info`, `warn` or `error`.
    pub level: String,
    /// What it says.
    pub message: String,
    /// What else it says.
    pub fields: Option<Value>,
}

/// Something that happened to a run.
#[derive(Clone, Debug, Serialize)]
pub struct RunEvent {
    /// What had been shown with it; the `id` of the server-sent event.
    pub cursor: String,
    /// `run.succeeded`, `task.running`, ...
    pub kind: String,
    /// When it happened; where nobody has written that down, when it was seen.
    pub at: Moment,
    /// What it is about.
    #[serde(flatten)]
    pub data: Value,
}

/// A backfill.
#[derive(Clone, Debug, Serialize)]
pub struct Backfill {
    /// UUIDv7; its runs carry it as `source`.
    pub id: Uuid,
    /// The group's name.
    pub group: String,
    /// `running`, `paused`, `succeeded`, `failed` or `cancelled`.
    pub state: String,
    /// The first instant, included.
    pub from: Moment,
    /// The last, included; null: up to now, with what comes due meanwhile.
    pub to: Option<Moment>,
    /// Between instants; null: by the group's schedules.
    pub step: Option<String>,
    /// `asc` or `desc`.
    pub order: &'static str,
    /// How many of its runs may be active at once.
    pub max_active: i32,
    /// `skip`, `failed` or `all`.
    pub on_existing: &'static str,
    /// Whether dependants follow.
    pub include_downstream: bool,
    /// `active` or `pinned`.
    pub scripts: &'static str,
    /// Of its runs.
    pub priority: i16,
    /// Of its runs.
    pub params: Value,
    /// How many runs it makes altogether, as far as that is known.
    pub total: i64,
    /// Its runs by state; `pending`: yet to be made.
    pub counts: BTreeMap<String, i64>,
    /// Instants that were left alone.
    pub skipped: i64,
    /// The instant that was decided last.
    pub position: Option<Moment>,
    /// Why it makes no runs although it could.
    pub note: Option<String>,
    /// When it was made.
    pub created_at: Moment,
    /// By whom.
    pub created_by: String,
    /// When it ended.
    pub finished_at: Option<Moment>,
}

/// A node.
#[derive(Clone, Debug, Serialize)]
pub struct Node {
    /// Its id.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// Where it listens.
    pub address: Option<String>,
    /// `active`, `draining`, `stopped` or `lost`.
    pub state: String,
    /// Its Heddle.
    pub version: String,
    /// Since when it is up.
    pub started_at: Moment,
    /// When it was last heard of.
    pub heartbeat_at: Moment,
    /// How far it has followed the log of changes.
    pub position: i64,
    /// The newest position of that log.
    pub position_newest: i64,
    /// How many attempts it may have under way.
    pub slots: i32,
    /// How many it has.
    pub running: i32,
}

/// What a script did without a run.
#[derive(Clone, Debug, Serialize)]
pub struct Invocation {
    /// How the attempt ended.
    pub state: AttemptState,
    /// What it returned.
    pub output: Option<Value>,
    /// Why it failed.
    pub error: Option<Failure>,
    /// What it logged.
    pub logs: Vec<InvocationLog>,
    /// How long it took.
    pub duration_ms: f64,
    /// The most memory that it had.
    pub memory_bytes: u64,
}

/// A line that an invocation logged.
#[derive(Clone, Debug, Serialize)]
pub struct InvocationLog {
    /// `trace`, `debug`, `info`, `warn` or `error`.
    pub level: String,
    /// What it says.
    pub message: String,
    /// What else it says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fields: Option<Value>,
}

/// What a bulk control did.
#[derive(Clone, Debug, Serialize)]
pub struct BulkReport {
    /// How many runs the filter matches.
    pub matched: u64,
    /// How many were changed; 0 in a dry run.
    pub changed: u64,
    /// The matching runs (the first [`BulkReport::IDS_MAX`]).
    pub ids: Vec<Uuid>,
    /// Those that could not be changed, or in a dry run could not be (as many at most), and why.
    pub refused: Vec<BulkRefusal>,
    /// Whether it was only asked what would happen.
    pub dry_run: bool,
}

impl BulkReport {
    /// How many runs are named.
    pub const IDS_MAX: usize = 1_000;
}

/// A run that a bulk control left as it is.
#[derive(Clone, Debug, Serialize)]
pub struct BulkRefusal {
    /// Which.
    pub id: Uuid,
    /// Why.
    pub detail: String,
}
