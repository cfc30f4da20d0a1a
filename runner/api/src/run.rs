//! Runs, their task runs, and the attempts of those.

use std::collections::BTreeMap;

use heddle_domain::state::{AttemptState, ErrorKind, RunState, Skip, TaskState, Trigger};
use heddle_domain::wait::RunWait;
use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::{Json, Moment};

/// The data interval of a run: from the previous instant of its schedule to this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DataInterval {
    /// The start of the interval, included.
    pub start: Moment,
    /// The end, not included: the logical time.
    pub end: Moment,
}

/// Why a run, a task run or an attempt failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// The kind of failure.
    pub kind: ErrorKind,
    /// The error message, one sentence.
    pub message: String,
    /// The stack trace in the script's code, after a trap or a thrown error; else null. null also if it is too large for
    /// this answer: see `omitted`.
    pub trace: Option<String>,
    /// `true`: this answer leaves out the trace, or the message too, and then `message` says so. The errors of attempts in
    /// an answer have at most 16 MiB together. The task run itself, or the item, has its error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub omitted: Option<bool>,
    /// For a run: the name of the task that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// For a run: the item of that task, counted from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<u32>,
}

/// One execution of a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    /// The id, a UUIDv7. Ids are in the order of creation.
    pub id: Uuid,
    /// The name of the group.
    pub group: String,
    /// The revision of the group that the run uses. It does not change when the group changes.
    pub revision: i32,
    /// The logical time: the instant that the run is about.
    pub logical_time: Moment,
    /// The interval of data that the run is about.
    pub data_interval: DataInterval,
    /// Why the run was created.
    pub trigger: Trigger,
    /// The current state of the run.
    pub state: RunState,
    /// The params for all tasks, as submitted, an object.
    #[schemars(with = "BTreeMap<String, Value>")]
    pub params: Value,
    /// Why the params cannot be shown; `params` is `{}` then. It happens only if SQL has stored them past the API. Its tasks
    /// fail with kind `invalid`. Missing: they are shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub params_error: Option<String>,
    /// The params for single tasks, as submitted: `{task: {...}}`.
    #[schemars(with = "BTreeMap<String, Value>")]
    pub task_params: Value,
    /// The key of the caller, unique in the group.
    pub key: Option<String>,
    /// The priority, -1000 to 1000; higher starts first.
    pub priority: i16,
    /// When the run was created.
    pub created_at: Moment,
    /// When the run left the state `waiting`.
    pub started_at: Option<Moment>,
    /// When it ended. null: it has not ended.
    pub finished_at: Option<Moment>,
    /// The error, if it failed.
    pub error: Option<Failure>,
    /// Why the run was skipped. A skipped run has the state `cancelled`.
    pub skipped: Option<Skip>,
    /// The labels of the run.
    pub labels: BTreeMap<String, String>,
    /// In state `waiting`: what the run waits for. Empty: no node has looked at the upstream groups yet. A run whose turn it
    /// is says for a moment that it waits for its turn, until a node has looked.
    pub waiting_for: Vec<RunWait>,
    /// The id of the backfill, the run or the schedule that created the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Who submitted or repeated the run: the name of a token, `person:` and an address, `uid:` and a user, `dev`, or
    /// `database:` and the role that called `heddle.submit`. Missing: no person did, or the run is older than this field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_by: Option<String>,
    /// When the run last went on after it had ended (restart, override, retry, clear): it has been at work since then, not
    /// since `started_at`. While it waits for its turn: when somebody continued it. If it ended again without any work (its
    /// last task was set by hand): that end. Missing: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reopened_at: Option<Moment>,
    /// The state that somebody set by hand, while it is in effect. Missing in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r#override: Option<Override>,
    /// The script versions that the run uses: `{task: name@version}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub scripts: BTreeMap<String, String>,
    /// The task runs in the order of the graph; a mapped task comes before its items. Missing in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks: Option<Vec<TaskRun>>,
}

impl Run {
    /// Since when it has been at work: since its start, or since it went on after somebody had continued it. A run that
    /// waits is not at work, and one that was continued and ended without work has not been.
    pub fn at_work_since(&self) -> Option<Moment> {
        let idle =
            self.state == RunState::Waiting || (self.reopened_at.is_some() && self.reopened_at == self.finished_at);
        self.started_at.max(self.reopened_at).filter(|_| !idle)
    }

    /// Its task runs; none of a run in a list.
    pub fn task_runs(&self) -> &[TaskRun] {
        self.tasks.as_deref().unwrap_or_default()
    }

    /// Its tasks as wholes: without the items of those that are mapped.
    pub fn wholes(&self) -> impl Iterator<Item = &TaskRun> {
        self.task_runs().iter().filter(|task| task.item.is_none())
    }
}

/// A state that somebody set by hand.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Override {
    /// The state that was set.
    pub state: TaskState,
    /// The reason that the person gave.
    pub reason: String,
    /// Who set it: the name of a token or a person.
    pub actor: String,
    /// When it was set.
    pub at: Moment,
}

/// A task run, or one item of a mapped task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskRun {
    /// The name of the task.
    pub task: String,
    /// The item of a mapped task, counted from 0. null: the task is not mapped, or this is the mapped task as a whole.
    pub item: Option<u32>,
    /// The current state of the task run.
    pub state: TaskState,
    /// The number of its last attempt, counted from 1; 0 before the first.
    pub attempt: u32,
    /// In state `retrying`: when the next attempt starts.
    pub next_attempt_at: Option<Moment>,
    /// In state `ready`: what it waits for. null: it waits only for a node.
    pub waiting_for: Option<TaskWait>,
    /// When its first attempt started.
    pub started_at: Option<Moment>,
    /// When it reached its final state.
    pub finished_at: Option<Moment>,
    /// The output, any JSON. null also if it is too large for this answer: see `output_omitted`.
    pub output: Option<Json>,
    /// `true`: there is an output, but this answer leaves it out. An answer has outputs of at most 32 MiB, and those of
    /// the items of one mapped task only if they have at most 8 MiB together. The task run itself, or the item, has its
    /// output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_omitted: Option<bool>,
    /// The error of its last attempt.
    pub error: Option<Failure>,
    /// The id of the node of its last attempt.
    pub node: Option<String>,
    /// The worker that claimed its last attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// The state that somebody set by hand, while it is in effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r#override: Option<Override>,
    /// The progress, 0 to 1, as the script or the worker reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<f64>,
    /// The progress in words, as the script or the worker reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// For a mapped task as a whole: the number of items by state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items: Option<BTreeMap<String, u64>>,
}

/// What a ready task run waits for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskWait {
    /// The kind of wait.
    pub reason: TaskWaitReason,
    /// For `pool`: the pools whose slots it needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pools: Option<Vec<String>>,
    /// For `pool`: the number of slots that it needs of each pool, at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<BTreeMap<String, u32>>,
    /// For the other reasons: the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The earliest time at which the wait can end. null: unknown.
    pub until: Option<Moment>,
}

/// The kinds of waits of ready task runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskWaitReason {
    /// It waits for free slots of pools.
    Pool,
    /// It waits for the next claim that the rate limit of its queue allows.
    RateLimit,
    /// It waits until its queue is resumed.
    QueuePaused,
    /// It waits for a worker that claims it.
    Worker,
}

/// One try of a task run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Attempt {
    /// The number of the attempt, counted from 1.
    pub attempt: u32,
    /// The current state of the attempt.
    pub state: AttemptState,
    /// The id of the node that ran it.
    pub node: Option<String>,
    /// The worker that claimed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// When the attempt started.
    pub started_at: Moment,
    /// When it ended. null: it has not ended.
    pub finished_at: Option<Moment>,
    /// The error, if it failed.
    pub error: Option<Failure>,
    /// The maximum memory that the script used, in bytes.
    pub memory_bytes: Option<u64>,
    /// The processor time, in milliseconds, rounded up.
    pub cpu_ms: Option<u64>,
}

/// A task run with its attempts.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct TaskDetail {
    /// The task run as it is now.
    #[serde(flatten)]
    pub task: TaskRun,
    /// All attempts, oldest first.
    pub attempts: Vec<Attempt>,
}

/// By hand: an output cannot be read inside a flattened structure ([`Json`]).
impl<'de> Deserialize<'de> for TaskDetail {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut fields = Map::deserialize(deserializer)?;
        let attempts = fields.remove("attempts");
        let attempts = attempts.ok_or_else(|| D::Error::missing_field("attempts"))?;
        Ok(Self {
            task: serde_json::from_value(Value::Object(fields)).map_err(D::Error::custom)?,
            attempts: serde_json::from_value(attempts).map_err(D::Error::custom)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_with_its_attempts_is_read_as_it_is_written() {
        let task = TaskRun {
            task: "load".into(),
            item: Some(3),
            state: TaskState::Succeeded,
            attempt: 1,
            next_attempt_at: None,
            waiting_for: None,
            started_at: None,
            finished_at: None,
            output: Some(r#"{"rows": [1, {"a": null}]}"#.parse().unwrap()),
            output_omitted: None,
            error: None,
            node: None,
            worker: None,
            r#override: None,
            progress: None,
            note: None,
            items: None,
        };
        let detail = TaskDetail {
            task,
            attempts: Vec::new(),
        };
        let read: TaskDetail = serde_json::from_str(&serde_json::to_string(&detail).unwrap()).unwrap();
        assert_eq!(
            read.task.output.unwrap().value(),
            serde_json::json!({"rows": [1, {"a": null}]})
        );
        assert_eq!((read.task.item, read.attempts), (Some(3), Vec::new()));
        let error = serde_json::from_str::<TaskDetail>("{}").unwrap_err();
        assert!(error.to_string().contains("attempts"), "{error}");
    }
}
