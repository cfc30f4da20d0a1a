//! Timer tasks: what the calls of an older scheduler take and answer (`docs/compatibility.md`). The server reads them itself,
//! since a tree may be nested deeper than these types could be read, and since its numbers may be sent as text.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The number of a task, in a call about one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TimerTaskId {
    /// The number of the task.
    pub task_id: i64,
}

/// A task of a tree.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TimerTask {
    /// The number of an existing task. Missing: a new task is created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_id: Option<i64>,
    /// The name of the task. Names can occur several times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_name: Option<String>,
    /// The queue of the task. Default: that of the parent task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_service_name: Option<String>,
    /// Given to the worker as the param `apiServiceName`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_service_name: Option<String>,
    /// Given to the worker as the param `apiMethodName`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_method_name: Option<String>,
    /// The timeout in milliseconds, after which the task is retried. -1 or 0: no timeout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
    /// 1: enabled, -1: disabled. Default: 1 for a new task; an existing task keeps its state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<i64>,
    /// The child tasks, which start after this task has succeeded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sub_task_list: Vec<TimerTask>,
}

/// A tree of timer tasks. In the older shape, the fields of the root are on the top level, beside `taskScheduleConf`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TimerTaskSubmission {
    /// The root of the tree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_info_conf: Option<TimerTask>,
    /// The timers of the root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_schedule_conf: Option<Timers>,
    #[serde(flatten)]
    pub root: TimerTask,
}

/// The timers of a tree.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Timers {
    /// The timers; each starts the tree.
    #[serde(default)]
    pub timer_list: Vec<Timer>,
}

/// A timer: what starts the tree, and when.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Timer {
    /// 1: cron, 2: fixed rate, 3: fixed delay, 4: once after a delay.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = [1, 2, 3, 4]))]
    pub timer_type: Option<i64>,
    /// Another name of `timerType`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = [1, 2, 3, 4]))]
    pub kind: Option<i64>,
    /// For type 1: the cron expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// For types 2 and 3: the delay before the first run, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init_delay: Option<i64>,
    /// For type 2: the duration between two runs, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<i64>,
    /// For type 3: the delay after the previous run ended; for type 4: the delay before the run. In milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<i64>,
    /// The start of the window, in the time zone of `--compat-timezone`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_date_time: Option<String>,
    /// The end of the window, after its start, in the time zone of `--compat-timezone`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_date_time: Option<String>,
    /// 1: enabled (default), -1: disabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<i64>,
}

/// The answer of each of these calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CompatibilityAnswer {
    /// 200, or the HTTP status that the problem has below /v1.
    pub code: u16,
    /// Empty, or what the caller should know: the problem, or notes.
    pub msg: String,
    /// The result. null: there is a problem.
    pub data: Value,
}
