//! What is told of a run while it goes on: lines of logs, events.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Moment;

/// A line of a task's log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LogLine {
    /// Where it stands; what `cursor` continues behind.
    pub cursor: String,
    /// When it was written.
    pub at: Moment,
    /// The task's name.
    pub task: String,
    /// Which item of a mapped task, from 0.
    pub item: Option<u32>,
    /// The attempt's number, from 1.
    pub attempt: u32,
    /// `trace`, `debug`, `info`, `warn` or `error`.
    pub level: String,
    /// What it says.
    pub message: String,
    /// What else it says.
    pub fields: Option<Value>,
}

/// Something that happened to a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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
