//! Topics, their messages, and the days of those. A topic is put as a [`crate::TopicSpec`].

use chrono::NaiveDate;
use heddle_domain::topic::TopicSpec;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::Moment;

/// A day, without a time.
fn date(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "date"})
}

/// A stream of scheduled messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Topic {
    /// Its name.
    pub name: String,
    /// What it is, with all defaults.
    #[serde(flatten)]
    pub spec: TopicSpec,
    /// Why nothing is sent, if something is wrong.
    pub problem: Option<String>,
    /// When it was made.
    pub created_at: Moment,
    /// When it was last changed.
    pub updated_at: Moment,
}

/// A message to be scheduled.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// The id of a user, from 0.
    #[schemars(range(min = 0))]
    pub sender: i64,
    /// The id of a user, from 0.
    #[schemars(range(min = 0))]
    pub receiver: i64,
    /// A day such as 2026-11-21, or an instant, as the topic counts.
    pub due: String,
    /// What is sent: any JSON, up to the topic's `max_payload`.
    #[serde(default)]
    pub payload: Value,
    /// Unique within its day: a repeat counts as accepted, and changes nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// One message, or an array of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Messages {
    /// One.
    One(Message),
    /// Many.
    Many(Vec<Message>),
}

/// What became of messages that were to be scheduled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MessagesAccepted {
    /// How many are committed.
    pub accepted: u64,
    /// Of these, repeats of a key, which were there before.
    pub repeated: u64,
    /// The lines that were not accepted, the first 1,000.
    pub rejected: Vec<Rejected>,
    /// How many lines were not accepted.
    pub rejected_total: u64,
    /// The ids of an object's or a short array's messages, in their order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<Uuid>>,
}

/// A line, or an item of an array, that was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "RejectedMessage")]
pub struct Rejected {
    /// Its number, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub detail: String,
}

/// A scheduled message as it stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MessageView {
    /// Tells its day and bucket.
    pub id: Uuid,
    /// The id of a user.
    pub sender: i64,
    /// The id of a user.
    pub receiver: i64,
    /// A day, or an instant, as its topic counts.
    pub due: String,
    /// What is sent: any JSON.
    pub payload: Value,
    /// The day that it belongs to, in its topic's zone.
    #[schemars(schema_with = "date")]
    pub day: NaiveDate,
    /// The part of the day that it belongs to: the sender modulo 10,000.
    pub bucket: i16,
    /// How it stands.
    #[schemars(extend("enum" = ["scheduled", "sending", "retrying", "sent", "failed", "cancelled"]))]
    pub state: String,
    /// How often it was tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<i32>,
    /// While it is `retrying`: when it is tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Moment>,
    /// Why it failed last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Which messages are meant; at least one of these is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MessageFilter {
    /// Due on this day.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date"))]
    pub day: Option<String>,
    /// Of this bucket, from 0 to 9999: the sender modulo 10,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bucket: Option<i64>,
    /// From this user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sender: Option<i64>,
    /// To this user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receiver: Option<i64>,
}

/// How much was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Cancelled {
    /// How many messages.
    pub cancelled: u64,
}

/// How far a day's messages have come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "MessageDay")]
pub struct Day {
    /// The day, in its topic's zone.
    #[schemars(schema_with = "date")]
    pub day: NaiveDate,
    /// `scheduled`: none was sent; `draining`; `drained`: all have ended; `dropped`: removed with its retention.
    #[schemars(extend("enum" = ["scheduled", "draining", "drained", "dropped"]))]
    pub state: String,
    /// How many there are, or were.
    pub total: i64,
    /// How many were sent.
    pub sent: i64,
    /// How many have failed for good.
    pub failed: i64,
    /// How many were cancelled.
    pub cancelled: i64,
    /// How many are in a batch at the moment.
    pub in_hand: i64,
    /// How many have failed and are tried again.
    pub retrying: i64,
    /// When the last of them ended.
    pub drained_at: Option<Moment>,
    /// When they were removed.
    pub dropped_at: Option<Moment>,
    /// Those of its parts that have, or had, messages; left out of lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buckets: Option<Vec<Bucket>>,
}

/// How far a part of a day has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "MessageBucket")]
pub struct Bucket {
    /// Its number, from 0.
    pub bucket: i16,
    /// How many messages there are, or were.
    pub total: i64,
    /// How many were sent.
    pub sent: i64,
    /// How many have failed for good.
    pub failed: i64,
    /// How many were cancelled.
    pub cancelled: i64,
    /// How it stands.
    #[schemars(extend("enum" = ["scheduled", "draining", "drained"]))]
    pub state: String,
}
