//! Claims: what workers ask for, what they are given, what they say of it.

use heddle_domain::Span;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::Moment;

/// What a worker asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimRequest {
    /// The worker's name: 1 to 200 characters, no control characters.
    pub worker: String,
    /// How many task runs at most, 1 to 1,000; default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<i64>,
    /// For how long, unless a heartbeat extends it: 100ms to 1d, default 30s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<Span>,
    /// How long to wait for the first, at most 60s; default not at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Span>,
    /// What the worker can do, up to 64 of them, each of 1 to 100 characters; task runs that ask for others are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
}

/// A task run that a worker holds. `J` is how params and context are held: as values, or as the text that they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Claim")]
pub struct Claim<J = Value> {
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
    /// The attempt's number, from 1.
    pub attempt: u32,
    /// What to do it with: an object.
    pub params: J,
    /// What a script learns from `context`: an object.
    pub context: J,
    /// When the token becomes old, unless a heartbeat extends the claim.
    pub lease_expires_at: Moment,
}

/// What a claim call answers: fewer than asked for, or none, is no error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Claims")]
pub struct Claims<J = Value> {
    /// The claimed task runs.
    pub items: Vec<Claim<J>>,
}

/// Something said of one claim of many.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "{T}OfClaim")]
pub struct OfClaim<T> {
    /// The claim's id.
    pub id: Uuid,
    /// What is said.
    #[serde(flatten)]
    pub word: T,
}

/// Up to 1,000 at once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "{T}Items")]
pub struct Items<T> {
    /// Each is judged by itself.
    #[schemars(length(max = 1_000))]
    pub items: Vec<T>,
}

/// The worker goes on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Heartbeat {
    /// The claim's.
    pub token: String,
    /// What to extend the claim by, 100ms to 1d; default what it was claimed for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<Span>,
    /// How far it has come, 0 to 1; shown with the task run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub progress: Option<f64>,
    /// The same in words, up to 1,000 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Lines for the attempt's log, up to 1,000 at a time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<ReportLine>,
}

/// A line for an attempt's log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReportLine {
    /// What it says, up to 64 KiB.
    pub message: String,
    /// How much it matters; default `info`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<LogLevel>")]
    pub level: Option<String>,
    /// What else it says, up to 64 KiB of JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fields: Option<Map<String, Value>>,
    /// When it was written, RFC 3339; default now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
}

/// How much a line of a log matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// Every step.
    Trace,
    /// For whoever looks for a fault.
    Debug,
    /// For everybody.
    Info,
    /// Something may be wrong.
    Warn,
    /// Something is wrong.
    Error,
}

/// The work is done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimOutput {
    /// The claim's.
    pub token: String,
    /// What the task run returns: any JSON, up to the task's `max_output`.
    #[serde(default)]
    pub output: Value,
}

/// The work failed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ClaimError")]
pub struct ClaimFailure {
    /// The claim's.
    pub token: String,
    /// A message, or an object with a `message`; more than 16,384 characters are cut.
    #[serde(default)]
    #[schemars(extend("type" = ["string", "object", "null"]))]
    pub error: Value,
    /// Never to be tried again.
    #[serde(default)]
    pub fatal: bool,
    /// Not to be tried again before this has passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<Span>,
}

/// The claim is given back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimToken {
    /// The claim's.
    pub token: String,
}

/// What became of what was said of a claim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimAnswer {
    /// The claim's id.
    pub id: Uuid,
    /// Of many: the status that the call about this claim alone would have: 200, or 409 for an old token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// What has become of the attempt: `running`, `succeeded`, `failed` or `released`; left out where it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// After a heartbeat: when the token becomes old.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_expires_at: Option<Moment>,
    /// Of many: why this one was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// One answer for each claim, in their order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimAnswers {
    /// The answers.
    pub items: Vec<ClaimAnswer>,
}
