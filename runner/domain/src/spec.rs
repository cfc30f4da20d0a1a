//! What people write: the spec of a group. Serde shapes are the contract; [`crate::plan`] is what runs.

pub mod bounds;
mod describe;
mod gather;
mod plain;
mod read;
mod schedule;
mod strict;
pub mod unread;
pub mod validate;
mod yaml;
mod yaml_bounded;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::retention::GroupRetention;
use crate::{Name, Span, Time};

pub use describe::stock;
pub use gather::Gathered;
pub(crate) use plain::{visit_whole, whole_of};
pub use plain::{whole_number, write_as_jsonb};
pub use read::{gather_group, parse_group, parse_submission, read};
pub(crate) use read::{optional, priority, script, whole};
pub use schedule::{CronDialect, DailySpec, Enabled, Misfire, OnceSpec, ScheduleSpec};
pub use strict::{EntriesMax, NESTING_MAX, StrictError, parse_json_strict};
pub use yaml::parse_yaml_documents;
pub(crate) use yaml::read_yaml;
pub use yaml_bounded::{YamlError, parse_yaml_strict};

/// The spec of a group: a graph (DAG) of tasks, with schedules and dependencies on other groups.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GroupSpec {
    /// A description of its purpose, at most 10,000 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The category under which the group is listed. Connections and secrets can be granted to the category.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub category: Option<Name>,
    /// The IANA time zone for `daily` retries, templates, and schedules without their own. Default: UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// Whether backfills are allowed. Default: false.
    pub history: bool,
    /// The upstream groups that this group depends on.
    pub depends_on: Vec<GroupDependency>,
    /// What happens with a new run by a schedule or upstream group while an earlier one is active. Default: `queue`.
    pub overlap: Overlap,
    /// The maximum number of active runs, at least 1; further runs wait. Backfills have their own limit. Default: no
    /// limit.
    #[serde(deserialize_with = "read::at_least_one", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_active_runs: Option<u32>,
    /// The maximum number of runs by schedules and upstream groups that wait for their turn, 0 to 10,000; the oldest
    /// further ones are skipped. Default: 100.
    #[serde(deserialize_with = "read::max_waiting", skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 10_000))]
    pub max_waiting: Option<u32>,
    /// What happens with the other tasks of a run when a task fails. Default: `continue`.
    pub on_failure: OnFailure,
    /// The deadline of each run, a duration from its creation. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Span>,
    /// What happens when a run passes its deadline. Default: `alert`.
    pub deadline_action: DeadlineAction,
    /// The priority of runs, -1000 to 1000; higher starts first. Backfilled runs are 10 below it. Default: 0.
    #[serde(deserialize_with = "read::priority", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1000, max = 1000))]
    pub priority: Option<i16>,
    /// The schedules, by name. At most 100.
    #[serde(deserialize_with = "read::by_name")]
    pub schedules: BTreeMap<Name, ScheduleSpec>,
    /// Params for all tasks. Strings can be templates.
    pub params: Map<String, Value>,
    /// The name of a template (JSON Schema) that the params of a run must also match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<Name>,
    /// Labels of the runs, at most 64. Keys have 1 to 256 characters, values at most 256; none are control characters.
    pub labels: BTreeMap<String, String>,
    /// How long ended runs of this group are kept. Default: the cluster's retention.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<GroupRetention>,
    /// The notification rules for runs of this group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notify: Option<NotifyRules>,
    /// The tasks, by name. 1 to 10,000.
    #[serde(deserialize_with = "read::by_name")]
    pub tasks: BTreeMap<Name, TaskSpec>,
}

/// The default of `max_waiting`: how many runs by schedules and upstream groups can wait for their turn.
pub const MAX_WAITING_DEFAULT: u32 = 100;
/// The maximum of `max_waiting`.
pub const MAX_WAITING_MAX: u32 = 10_000;

impl GroupSpec {
    /// How many runs by schedules and upstream groups can wait for their turn.
    pub fn max_waiting(&self) -> u32 {
        self.max_waiting.unwrap_or(MAX_WAITING_DEFAULT)
    }
}

/// An upstream group: its `name`, or `{group, need}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum GroupDependency {
    /// The name of the upstream group; `need` is `latest`.
    Name(Name),
    /// The upstream group and which of its instants are needed.
    Need {
        /// The name of the upstream group.
        group: Name,
        /// Which of its instants must have succeeded. Default: `latest`.
        #[schemars(default)]
        need: Need,
    },
}

impl GroupDependency {
    /// The upstream group's name.
    pub fn group(&self) -> &Name {
        match self {
            Self::Name(group) | Self::Need { group, .. } => group,
        }
    }

    /// Which of its instants must have succeeded.
    pub fn need(&self) -> Need {
        match self {
            Self::Name(_) => Need::Latest,
            Self::Need { need, .. } => *need,
        }
    }
}

/// Which of an upstream group's instants must have succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// The last instant at or before the logical time.
    #[default]
    Latest,
    /// All instants in the data interval.
    Interval,
}

/// What happens with a new run by a schedule or upstream group while an earlier one is still active.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// The new run waits for its turn.
    #[default]
    Queue,
    /// The new run is recorded as skipped.
    Skip,
    /// Both runs run at the same time.
    Allow,
    /// The earlier run is cancelled.
    CancelPrevious,
}

/// What happens with tasks that have not started when a task fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// Tasks that do not depend on the failed task continue.
    #[default]
    Continue,
    /// Tasks that have not started are cancelled.
    Stop,
}

/// What happens when a run passes its deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeadlineAction {
    /// A notification is sent.
    #[default]
    Alert,
    /// A notification is sent and the run is cancelled.
    Cancel,
}

/// Notification rules: who is notified about which events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NotifyRules {
    /// The events, at least one.
    pub on: Vec<NotifyEvent>,
    /// The names of channels. At least one channel or address is required, at most 100 together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<Name>,
    /// E-mail addresses. They are notified through an email channel.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<String>,
}

/// The events about which people can be notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NotifyEvent {
    /// The run or task run has started.
    Started,
    /// The run or task run has succeeded.
    Succeeded,
    /// The run or task run has failed.
    Failed,
    /// An attempt failed and will be retried.
    Retrying,
    /// The run or task run has succeeded after an earlier failure.
    Recovered,
    /// The run has passed its deadline.
    DeadlineMissed,
    /// An instant of a schedule was missed.
    ScheduleMissed,
    /// A task run waits in a queue and no worker claims it.
    QueueStalled,
    /// A run that was due was skipped, because an earlier run was active or too many runs waited.
    Skipped,
}

/// The maximum number of tags of a task or of a worker.
pub const TAGS_MAX: usize = 64;
/// The maximum number of characters of a tag.
pub const TAG_CHARS_MAX: usize = 100;

/// Whether a worker may carry this as a tag; a task that asked for anything else would wait for ever.
pub fn is_tag(text: &str) -> bool {
    !text.is_empty() && text.chars().count() <= TAG_CHARS_MAX && !text.chars().any(char::is_control)
}

/// A task. It has exactly one executor: `script`, `queue`, `http`, `audience`, `group` or `query`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Task")]
pub struct TaskSpec {
    /// A description of its purpose, at most 10,000 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The executor script: `name` (its active version when the run is created) or `name@version`.
    #[serde(deserialize_with = "read::script", skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    /// The executor queue: workers claim the task from this queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<Name>,
    /// Tags, for tasks with a `queue`: only workers with all of these tags can claim the task. At most 64, each 1 to
    /// 100 characters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The executor HTTP: an HTTP request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpSpec>,
    /// The executor audience: an offer to a user or a user group. The audience alone means an offer with all defaults.
    #[serde(deserialize_with = "read::audience", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "describe::audience")]
    pub audience: Option<AudienceSpec>,
    /// The executor group: a sub-run of the group with this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<Name>,
    /// The executor query: one SQL statement on a named connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query: Option<QuerySpec>,
    /// The tasks that this task depends on.
    pub depends_on: Vec<Name>,
    /// When the task starts, depending on the states of its dependencies. Default: `all_success`.
    pub trigger_rule: TriggerRule,
    /// A condition: a minijinja expression with params, upstream, logical_time. If it is false, the task is skipped.
    #[serde(deserialize_with = "read::condition", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "describe::condition")]
    pub when: Option<String>,
    /// Params of the task. Strings can be templates.
    pub params: Map<String, Value>,
    /// The retry policy. Default: no retries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetrySpec>,
    /// How many attempts may be lost with their node or worker before the task fails, at most 1,000. Default: 5.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_lost: Option<u32>,
    /// The timeout of each attempt, from its start (for a queue: from the claim), or `never`. Default: 1h for `script`,
    /// `http` and `query`, none for the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<TimeoutSpec>,
    /// How long the task may wait from `ready` until it is claimed: by a worker (`queue`), by a user of its audience
    /// (`audience`), else by a node. Waiting for slots of pools counts. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_timeout: Option<Span>,
    /// Whether a failure of this task counts as a success for dependent tasks and for the run. Default: false.
    pub allow_failure: bool,
    /// A mapped task: one task run for each of these items, at most 10,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub for_each: Option<ForEach>,
    /// A mapped task: this number of task runs, or one for each connected worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shards: Option<Shards>,
    /// The maximum number of items that run at the same time, at least 1. Default: all.
    #[serde(deserialize_with = "read::at_least_one", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub concurrency: Option<u32>,
    /// Whether a failed item cancels the remaining items. Default: false.
    pub fail_fast: bool,
    /// The slots of pools that an attempt needs: `{pool: number}`.
    #[serde(deserialize_with = "read::by_name", skip_serializing_if = "BTreeMap::is_empty")]
    pub pools: BTreeMap<Name, u32>,
    /// For `script`: the maximum memory, 64KiB to 1GiB. Default: 128MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    /// The maximum size of the output, up to 8MiB. Default: 256KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output: Option<ByteSize>,
    /// The maximum size of the log of an attempt, up to 64MiB. Default: 1MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_log: Option<ByteSize>,
    /// For `script`: hosts to which it may send HTTP requests, at most 100: `api.example.com` or `*.example.com`, with or
    /// without `:port`. Default: none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_hosts: Vec<String>,
    /// For `script`: the names of SQL connections that it may use. Default: none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sql: Vec<Name>,
    /// For `script`: the names of secrets that it may read. Default: none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<Name>,
    /// The notification rules for this task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notify: Option<NotifyRules>,
}

/// A number of bytes: an integer, or a string such as `128MiB`, `64 KiB`, `1GB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct ByteSize(pub u64);

/// A duration, or `never`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeoutSpec {
    /// The word `never`: no timeout.
    Never,
    /// A duration, longer than zero.
    After(Span),
}

/// The items of a mapped task: an array, or a template that gives an array.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum ForEach {
    /// The items. Strings in them can be templates.
    Items(Vec<Value>),
    /// A template that gives an array.
    Template(String),
}

/// The number of items, 1 to 10,000, or `workers`: one for each worker that is connected to the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum Shards {
    /// The number of items.
    Count(u32),
    /// One item for each connected worker.
    Workers(WorkersWord),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum WorkersWord {
    Workers,
}

/// When a task starts, depending on the states of its dependencies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TriggerRule {
    /// All dependencies have succeeded.
    #[default]
    AllSuccess,
    /// All dependencies have ended.
    AllDone,
    /// At least one dependency succeeded.
    AnySuccess,
    /// At least one dependency failed, was cancelled or is `upstream_failed`.
    AnyFailed,
    /// No dependency failed: all succeeded or were skipped.
    NoneFailed,
    /// All dependencies have failed.
    AllFailed,
    /// No dependency failed, and at least one succeeded.
    NoneFailedMinOneSuccess,
    /// All dependencies were skipped.
    AllSkipped,
    /// The task starts immediately, whatever the dependencies do.
    Always,
}

/// An HTTP request. Strings can be templates. A status of 2xx succeeds; 4xx except 408 and 429 is not retried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpSpec {
    /// The method. Default: POST.
    #[serde(default = "post")]
    pub method: String,
    /// The URL, http or https.
    pub url: String,
    /// The headers, at most 100. Those of the connection, such as `content-length`, cannot be set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The body, sent as JSON. A string is sent as it is if `headers` has a `content-type` that is not JSON. Default: the
    /// context of the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
}

fn post() -> String {
    "POST".into()
}

/// One SQL statement on a connection that is granted to the group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QuerySpec {
    /// The name of the connection.
    pub connection: Name,
    /// The statement. It is not a template; put variable values into `params`.
    pub sql: String,
    /// The values of `$1`, `$2` and so on. Strings can be templates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub params: Vec<Value>,
    /// What the output contains. Default: `rows`.
    #[serde(default)]
    pub mode: QueryMode,
}

/// What the output of a `query` task contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum QueryMode {
    /// The rows: `[{column: value}]`.
    #[default]
    Rows,
    /// The number of rows that were changed: `{rows_affected}`.
    Execute,
}

/// The most stock that one occurrence of an offer may have.
pub const STOCK_MAX: i32 = 1_000_000_000;

/// An offer to a user or a user group. The task ends when the whole stock is completed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AudienceSpec {
    /// The audience: `uid_x` for a user, `gid_x` for a user group.
    pub audience: String,
    /// The stock: a number of at least 1, or `each` (every member once). Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "stock")]
    pub dispatch_times: Option<Value>,
    /// `single`: a user can take it once; `repeat`: again and again. Default: `single`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The name of a template that the params must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<Name>,
    /// How long a user may hold an assignment. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_hold: Option<Span>,
}

/// How the interval between retries grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RetryStrategy {
    /// The same interval each time.
    Fixed,
    /// The interval doubles each time, up to `max_interval`.
    Exponential,
    /// First the same interval `fixed` times, then it doubles, up to `max_interval`.
    FixedThenExponential,
    /// Without a limit on retries: the same interval each time, or doubling up to `max_interval` if that is set.
    Forever,
    /// `per_day` retries on each of `days` days.
    Daily,
}

/// The retry policy: when a failed attempt is retried. `docs/retries.md` explains it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Retry")]
pub struct RetrySpec {
    /// How the interval between retries grows.
    pub strategy: RetryStrategy,
    /// The number of retries; n retries are n + 1 attempts. Not for `forever` and `daily`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// The interval between a failure and the next attempt. Default: 10s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Span>,
    /// The maximum interval when it doubles. Default: 1d.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_interval: Option<Span>,
    /// For `fixed_then_exponential`: the number of retries before the interval doubles. Default: 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed: Option<u32>,
    /// For `daily`: the number of retries per day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_day: Option<u32>,
    /// For `daily`: the number of days, at least 1. Default: 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub days: Option<u32>,
    /// For `daily`: the time of the first retry on the next day, `HH:MM`. Default: 00:00.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_day_at: Option<String>,
    /// A random delay that is added: a fraction of the interval, 0 to 1, or a duration. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Value>,
}

/// A submission: the body of `POST /v1/groups/{name}/runs`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Submission")]
pub struct SubmissionSpec {
    /// Params for all tasks, at most 256 KiB. They are data; templates in them are not rendered.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub params: Map<String, Value>,
    /// Params for single tasks: `{task: {...}}`, at most 256 KiB. They override `params`.
    #[serde(deserialize_with = "read::by_name", skip_serializing_if = "BTreeMap::is_empty")]
    pub task_params: BTreeMap<Name, Map<String, Value>>,
    /// The logical time: RFC 3339, or a date, which means midnight in the group's time zone. Default: now.
    #[serde(deserialize_with = "read::instant", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub logical_time: Option<Time>,
    /// Your own id for the run, unique in the group for as long as the run is kept, 1 to 512 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Whether the run is refused if a run with the same params exists. Default: no.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dedupe: Option<Dedupe>,
    /// The priority, -1000 to 1000; higher starts first. Default: the group's.
    #[serde(deserialize_with = "read::priority", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1000, max = 1000))]
    pub priority: Option<i16>,
    /// Labels of the run, added to those of the group. At most 64. Keys have 1 to 256 characters,
    /// values at most 256; none are control characters.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The name of a channel, or a URL of at most 2,048 bytes, to which the run is sent when it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub callback: Option<String>,
    /// Create the run even if the group is disabled. Default: false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// Which existing runs with the same group and params cause a refusal (409).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Dedupe {
    /// Runs that have not ended.
    Params,
    /// All runs that are kept.
    ParamsKept,
}
