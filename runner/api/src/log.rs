//! What a run reports while it goes on: lines of logs, events.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Moment;

/// A line of the log of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LogLine {
    /// The position of the line. Send it as `cursor` to continue after this line.
    pub cursor: String,
    /// When it was written.
    pub at: Moment,
    /// The name of the task.
    pub task: String,
    /// The item of a mapped task, counted from 0. null: the task is not mapped.
    pub item: Option<u32>,
    /// The number of the attempt, counted from 1.
    pub attempt: u32,
    /// The level: `trace`, `debug`, `info`, `warn` or `error`.
    pub level: String,
    /// The text of the line.
    pub message: String,
    /// Additional fields: an object, or its text if a masked secret was a number in it.
    pub fields: Option<Value>,
}

/// An event of a run: its new state or that of one of its task runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunEvent {
    /// The `id` of the server-sent event, for `Last-Event-ID`.
    pub cursor: String,
    /// The kind: `run.succeeded`, `task.running`, ...
    pub kind: String,
    /// The time of the change; if Heddle does not record it, the time when the server saw it.
    pub at: Moment,
    /// The whole run or task run.
    #[serde(flatten)]
    pub data: Value,
}
