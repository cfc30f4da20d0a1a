//! Claims: what workers ask for, what they are given, what they say of it.

use heddle_domain::Span;
use heddle_domain::state::LogLevel;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::Moment;

/// The request of a worker to claim task runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimRequest {
    /// The name of the worker, 1 to 200 characters, no control characters.
    pub worker: String,
    /// The maximum number of task runs, 1 to 1,000. Default: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000))]
    pub max: Option<i64>,
    /// How long the claim lasts unless a heartbeat extends it, 100ms to 1d. Default: 30s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<Span>,
    /// How long to wait for the first task run, at most 60s. Default: do not wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Span>,
    /// The tags of the worker, at most 64, each 1 to 100 characters. The worker gets no task runs that need other tags.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
}

/// A claim: a task run that a worker holds. `J` is the type of params and context: values or raw text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Claim")]
pub struct Claim<J = Value> {
    /// The id of the claim, a UUIDv7.
    pub id: Uuid,
    /// The token, with which the worker proves that it holds the claim.
    pub token: String,
    /// The id of the run.
    pub run: Uuid,
    /// The group of the run.
    pub group: String,
    /// The name of the task.
    pub task: String,
    /// The item of a mapped task, counted from 0. null: the task is not mapped.
    pub item: Option<u32>,
    /// The number of the attempt, counted from 1.
    pub attempt: u32,
    /// The params of the task, an object.
    pub params: J,
    /// The context, an object with the same content as `context` of a script.
    pub context: J,
    /// When the claim expires, unless a heartbeat extends it.
    pub lease_expires_at: Moment,
}

/// The answer to a claim call. Fewer claims than requested, or none, is not an error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Claims")]
pub struct Claims<J = Value> {
    /// The claimed task runs.
    pub items: Vec<Claim<J>>,
}

/// A report about one of several claims.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "{T}OfClaim")]
pub struct OfClaim<T> {
    /// The id of the claim.
    pub id: Uuid,
    /// What the worker reports about this claim.
    #[serde(flatten)]
    pub word: T,
}

/// Reports about at most 1,000 claims.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "{T}Items")]
pub struct Items<T> {
    /// The reports. Each is processed separately.
    #[schemars(length(max = 1_000))]
    pub items: Vec<T>,
}

/// null means what a missing field means.
fn or_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// A heartbeat: the worker continues to work on the claim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Heartbeat {
    /// The token of the claim.
    pub token: String,
    /// How long the claim lasts from now on, 100ms to 1d. Default: the `lease` of the claim call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<Span>,
    /// The progress, 0 to 1, shown on the task run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub progress: Option<f64>,
    /// The progress in words, at most 1,000 characters, shown on the task run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Lines for the log of the attempt, at most 1,000 per call.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<ReportLine>,
}

/// A line for the log of an attempt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReportLine {
    /// The text, at most 64 KiB.
    pub message: String,
    /// The level. Default: `info`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<LogLevel>")]
    pub level: Option<String>,
    /// Additional fields, at most 64 KiB of JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fields: Option<Map<String, Value>>,
    /// When the line was written, RFC 3339. Default: now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
}

/// The report that a task run succeeded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimOutput {
    /// The token of the claim.
    pub token: String,
    /// The output of the task run: any JSON, at most the task's `max_output`.
    #[serde(default)]
    pub output: Value,
}

/// The report that a task run failed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ClaimError")]
pub struct ClaimFailure {
    /// The token of the claim.
    pub token: String,
    /// A message, or an object with a `message`. It is truncated after 8 KiB. Default: the worker gave no reason.
    #[serde(default)]
    #[schemars(extend("type" = ["string", "object", "null"]))]
    pub error: Value,
    /// Do not retry the task run. Default: false.
    #[serde(default, deserialize_with = "or_default")]
    pub fatal: bool,
    /// The duration before the next attempt, in place of the interval of the retry policy. Default: its interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<Span>,
}

/// The request to release a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimToken {
    /// The token of the claim.
    pub token: String,
}

/// The result of a report about a claim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimAnswer {
    /// The id of the claim.
    pub id: Uuid,
    /// In a call for several claims: the status of the call for this claim alone: 200, or 409 if the token is no longer
    /// valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The state of the attempt: `running`, `succeeded`, `failed` or `released`. Missing if the report was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// After a heartbeat: when the claim expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_expires_at: Option<Moment>,
    /// In a call for several claims: why this report was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// The results, one for each claim, in the order of the request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimAnswers {
    /// The results, one for each claim.
    pub items: Vec<ClaimAnswer>,
}
