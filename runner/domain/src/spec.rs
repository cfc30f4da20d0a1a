//! What people write: the spec of a group. Serde shapes are the contract; [`crate::plan`] is what runs.

mod describe;
mod gather;
mod plain;
mod read;
mod strict;
pub mod unread;
pub mod validate;
pub(crate) mod yaml;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::retention::GroupRetention;
use crate::state::TaskState;
use crate::{Name, Span, Time};

pub use gather::Gathered;
pub(crate) use read::script;
pub use read::{gather_group, parse_group, parse_submission, read};
pub use strict::{NESTING_MAX, StrictError, parse_json_strict};
pub use yaml::{YamlError, parse_yaml_strict};

/// A group: a DAG of tasks, with schedules and links to other groups.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GroupSpec {
    /// What it is for, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The category it is listed under; connections and secrets may be granted to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub category: Option<Name>,
    /// IANA zone for `daily` retries, templates and schedules that name none; default UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// Whether backfills are allowed.
    pub history: bool,
    /// Upstream groups.
    pub depends_on: Vec<GroupDependency>,
    /// What a new run by schedule or upstream does while an earlier one is active; default `queue`.
    pub overlap: Overlap,
    /// A bound on active runs by people and tasks; default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_active_runs: Option<u32>,
    /// How many runs of its schedules and upstreams wait for their turn at once, 1 to 10,000; default 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_waiting: Option<u32>,
    /// What a failed task does to the others; default `continue`.
    pub on_failure: OnFailure,
    /// Per run, from its creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Span>,
    /// What passing the deadline does; default `alert`.
    pub deadline_action: DeadlineAction,
    /// Higher goes first; scheduled and manual runs default to 0, backfills to -10. -1000 to 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i16>,
    /// When runs are made.
    pub schedules: BTreeMap<Name, ScheduleSpec>,
    /// Params for all tasks; strings may be templates.
    pub params: Map<String, Value>,
    /// A named template (JSON Schema) that run params must satisfy as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<Name>,
    /// Labels of its runs.
    pub labels: BTreeMap<String, String>,
    /// How long its ended runs are kept, where that differs from the cluster's retention.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<GroupRetention>,
    /// Who is told of what about its runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notify: Option<NotifyRules>,
    /// The tasks.
    pub tasks: BTreeMap<Name, TaskSpec>,
}

/// How many runs of a group's schedules and upstreams wait for their turn at once, where the group does not say.
pub const MAX_WAITING_DEFAULT: u32 = 100;
/// The most that a group may say.
pub const MAX_WAITING_MAX: u32 = 10_000;

impl GroupSpec {
    /// How many runs of its schedules and upstreams wait for their turn at once.
    pub fn max_waiting(&self) -> u32 {
        self.max_waiting.unwrap_or(MAX_WAITING_DEFAULT)
    }
}

/// A group that another follows: `name`, or `{group, need}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum GroupDependency {
    /// Its name alone: the latest instant is needed.
    Name(Name),
    /// Its name and what is needed of it.
    Need {
        /// Its name.
        group: Name,
        /// Which of its instants.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// The last at or before the logical time.
    #[default]
    Latest,
    /// All in the data interval.
    Interval,
}

/// What a schedule's or upstream's new run does while an earlier one of those is still active.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// Waits for its turn.
    #[default]
    Queue,
    /// Is recorded as skipped.
    Skip,
    /// Runs beside it.
    Allow,
    /// Cancels the earlier one.
    CancelPrevious,
}

/// What a failed task does to those that have not started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// Nothing; those that can run do.
    #[default]
    Continue,
    /// Cancels them.
    Stop,
}

/// What passing the deadline does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeadlineAction {
    /// Tells people.
    #[default]
    Alert,
    /// Tells people and cancels the run.
    Cancel,
}

/// A schedule; exactly one of `cron`, `every`, `after`, `once`, `daily`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Schedule")]
pub struct ScheduleSpec {
    /// A cron expression of 5, 6 (seconds first) or 7 (year last) fields.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// Whose cron it is, where the meaning differs; default `unix`.
    #[serde(skip_serializing_if = "CronDialect::is_default")]
    pub cron_dialect: CronDialect,
    /// A fixed rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<Span>,
    /// `every`: an instant to count from; default the creation. Written like `starts_at`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anchor: Option<String>,
    /// A fixed delay after the previous run ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Span>,
    /// One instant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub once: Option<OnceSpec>,
    /// Every n days at a time of day.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub daily: Option<DailySpec>,
    /// IANA zone; default the group's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// Nothing is due until so long after the creation; for `every` and `after`, the first is due then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial_delay: Option<Span>,
    /// A date (midnight in the zone), a local date-time (in the zone) or an RFC 3339 instant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<String>,
    /// The end of the window, not included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<String>,
    /// What becomes of instants that were missed; default `once`.
    pub misfire: Misfire,
    /// How late an instant may be before it counts as missed; default 60 s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace: Option<Span>,
    /// Whether it makes runs; default true.
    #[serde(skip_serializing_if = "is_true")]
    pub enabled: Enabled,
}

/// How a cron expression is read where schedulers differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CronDialect {
    /// Weekdays are 0 to 7, both ends Sunday; `?` stands for `*`.
    #[default]
    Unix,
    /// Weekdays are 1 to 7 from Sunday; seconds are there, and one of the two day fields is `?`.
    Quartz,
}

impl CronDialect {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// `true` unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct Enabled(pub bool);

impl Default for Enabled {
    fn default() -> Self {
        Self(true)
    }
}

fn is_true(enabled: &Enabled) -> bool {
    enabled.0
}

/// One instant: `at`, or `delay` from the moment the schedule is created.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OnceSpec {
    /// The instant, written like `starts_at`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// How long after the creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<Span>,
}

/// Every n days at a local time of day, `HH:MM` or `HH:MM:SS`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DailySpec {
    /// 1: every day.
    #[serde(default = "one")]
    pub every_days: u32,
    /// The time of day.
    pub at: String,
}

fn one() -> u32 {
    1
}

/// What becomes of instants more than `grace` late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Misfire {
    /// One run for them, of the latest.
    #[default]
    Once,
    /// None.
    Skip,
    /// One run each.
    All,
}

/// Who is told of what.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NotifyRules {
    /// The events.
    pub on: Vec<NotifyEvent>,
    /// Channels by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<Name>,
    /// E-mail addresses, told through the default email channel.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<String>,
}

/// What people may be told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NotifyEvent {
    /// It started.
    Started,
    /// It succeeded.
    Succeeded,
    /// It failed.
    Failed,
    /// An attempt failed and will be tried again.
    Retrying,
    /// It succeeded after a failure.
    Recovered,
    /// A run passed its deadline.
    DeadlineMissed,
    /// An instant was missed.
    ScheduleMissed,
    /// Nobody claims what waits in a queue.
    QueueStalled,
    /// A run that was due was skipped: an earlier one was active, or too many waited.
    Skipped,
}

/// How many tags a task asks for, or a worker carries, at most.
pub const TAGS_MAX: usize = 64;
/// How many characters a tag has at most.
pub const TAG_CHARS_MAX: usize = 100;

/// Whether a worker may carry this as a tag; a task that asked for anything else would wait for ever.
pub fn is_tag(text: &str) -> bool {
    !text.is_empty() && text.chars().count() <= TAG_CHARS_MAX && !text.chars().any(char::is_control)
}

/// A task: exactly one executor, `script`, `queue`, `http`, `audience`, `group` or `query`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Task")]
pub struct TaskSpec {
    /// What it is for, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// `name` or `name@version`; the name in NFC, as all names.
    #[serde(deserialize_with = "read::script", skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    /// A queue that workers claim from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<Name>,
    /// Worker tags that a claim on the queue must carry, all of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// An HTTP request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpSpec>,
    /// An offer to a user or a user group; the audience alone stands for one with all defaults.
    #[serde(deserialize_with = "read::audience", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "describe::audience")]
    pub audience: Option<AudienceSpec>,
    /// A sub-run of another group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<Name>,
    /// One SQL statement on a named connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query: Option<QuerySpec>,
    /// Tasks that it waits for.
    pub depends_on: Vec<Name>,
    /// What of them it waits for; default `all_success`.
    pub trigger_rule: TriggerRule,
    /// A minijinja expression over params, upstream, logical_time.
    #[serde(deserialize_with = "read::condition", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "describe::condition")]
    pub when: Option<String>,
    /// Its params; strings may be templates.
    pub params: Map<String, Value>,
    /// How failed attempts are tried again; default not at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetrySpec>,
    /// Attempts that may be lost with their nodes before the task fails; default 5.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_lost: Option<u32>,
    /// Per attempt, from its start; default 1h for `script`, `http` and `query`, else none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<TimeoutSpec>,
    /// From ready to claimed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_timeout: Option<Span>,
    /// Whether its failure counts as settled success.
    pub allow_failure: bool,
    /// One task run for each of these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub for_each: Option<ForEach>,
    /// So many task runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shards: Option<Shards>,
    /// Items of a mapped task under way at once; default all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// Whether a failed item cancels the rest.
    pub fail_fast: bool,
    /// Slots of named pools that an attempt takes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub pools: BTreeMap<Name, u32>,
    /// The most memory; default 128 MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    /// The largest output; default 256 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output: Option<ByteSize>,
    /// The longest log; default 1 MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_log: Option<ByteSize>,
    /// Hosts that the script may call: exact, or `*.example.com`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_hosts: Vec<String>,
    /// Named SQL connections that the script may use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sql: Vec<Name>,
    /// Secrets that the script may read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<Name>,
    /// Who is told of what about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notify: Option<NotifyRules>,
}

/// A number of bytes: an integer, or text such as `128MiB`, `64 KiB`, `1GB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct ByteSize(pub u64);

/// A duration, or `"never"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeoutSpec {
    /// No timeout.
    Never,
    /// So long.
    After(Span),
}

/// What a mapped task maps over: an array, or a template that gives one.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum ForEach {
    /// These items; strings in them may be templates.
    Items(Vec<Value>),
    /// A template that gives an array.
    Template(String),
}

/// A number of items, or one for each worker connected to the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum Shards {
    /// So many.
    Count(u32),
    /// One for each worker.
    Workers(WorkersWord),
}

/// The word `workers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum WorkersWord {
    /// The word itself.
    Workers,
}

/// What a task waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TriggerRule {
    /// All dependencies succeeded.
    #[default]
    AllSuccess,
    /// All dependencies are settled.
    AllDone,
    /// One dependency succeeded.
    AnySuccess,
    /// One dependency failed.
    AnyFailed,
    /// No dependency failed: each succeeded or was skipped.
    NoneFailed,
    /// All dependencies failed.
    AllFailed,
    /// No dependency failed, and at least one succeeded.
    NoneFailedMinOneSuccess,
    /// All dependencies were skipped.
    AllSkipped,
    /// At once, whatever the dependencies do.
    Always,
}

/// An HTTP request; strings are templates. The body defaults to the task's context as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpSpec {
    /// The method; default POST.
    #[serde(default = "post")]
    pub method: String,
    /// Where to.
    pub url: String,
    /// Headers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The body, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
}

fn post() -> String {
    "POST".into()
}

/// One SQL statement on a named connection that the group was granted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QuerySpec {
    /// The connection's name.
    pub connection: Name,
    /// The statement, the same at each attempt: what varies stands in `params`.
    pub sql: String,
    /// What `$1`, `$2` and so on stand for; strings may be templates. They are bound, never text of the statement.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub params: Vec<Value>,
    /// What the output is.
    #[serde(default)]
    pub mode: QueryMode,
}

/// What the output of a `query` is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum QueryMode {
    /// Its rows: `[{column: value}]`.
    #[default]
    Rows,
    /// How many rows it changed: `{rows_affected}`.
    Execute,
}

/// An offer to a user (`uid_x`) or a user group (`gid_x`), done when its stock is completed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AudienceSpec {
    /// `uid_...` or `gid_...`.
    pub audience: String,
    /// How often it is given out: a number, or `each`; default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::dispatch::stock")]
    pub dispatch_times: Option<Value>,
    /// `single` (default) or `repeat`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// A named template that the params must satisfy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<Name>,
    /// How long a user may hold it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_hold: Option<Span>,
}

/// How the intervals between retries grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RetryStrategy {
    /// The interval each time.
    Fixed,
    /// Doubling each time, up to `max_interval`.
    Exponential,
    /// First the interval, then doubling.
    FixedThenExponential,
    /// The interval each time (doubling up to `max_interval`, if there is one), without end.
    Forever,
    /// So many retries a day, for some days.
    Daily,
}

/// How a failed attempt is tried again; `docs/retries.md` explains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Retry")]
pub struct RetrySpec {
    /// How the intervals grow.
    pub strategy: RetryStrategy,
    /// How many retries; n retries are n + 1 attempts. Not for `forever` and `daily`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// Between a failure and the next attempt; default 10s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Span>,
    /// The longest that doubling leads to; default 1d.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_interval: Option<Span>,
    /// `fixed_then_exponential`: how many retries at the interval before it doubles; default 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed: Option<u32>,
    /// `daily`: retries a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_day: Option<u32>,
    /// `daily`: for how many days; default 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub days: Option<u32>,
    /// `daily`: when the next day's first retry is due, `HH:MM`; default 00:00.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_day_at: Option<String>,
    /// A share of the interval, 0 to 1, or a duration, added at random.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Value>,
}

/// The state an operator may set a task run to.
pub fn may_override_to(state: TaskState) -> bool {
    matches!(state, TaskState::Succeeded | TaskState::Failed | TaskState::Skipped)
}

/// A run as it is asked for: the body of `POST /v1/groups/{name}/runs`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Submission")]
pub struct SubmissionSpec {
    /// Params for all tasks; data, never rendered.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub params: Map<String, Value>,
    /// Params for one task each, over those for all.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub task_params: BTreeMap<Name, Map<String, Value>>,
    /// The instant that the run is for: RFC 3339, or a date, which is midnight in the group's timezone. Default now.
    #[serde(deserialize_with = "read::instant", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub logical_time: Option<Time>,
    /// The caller's own, unique in the group for as long as the run is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Whether another run with the same params is in the way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dedupe: Option<Dedupe>,
    /// Higher goes first, -1000 to 1000; default the group's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i16>,
    /// What the run can be found by.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// A channel's name or a URL that is told when the run has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub callback: Option<String>,
    /// Start although the group is disabled.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// Which other runs with the same group and params are in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Dedupe {
    /// Unfinished ones.
    Params,
    /// All that are kept.
    ParamsKept,
}
