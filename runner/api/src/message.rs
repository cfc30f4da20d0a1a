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

/// A topic: a stream of scheduled messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Topic {
    /// The name of the topic.
    pub name: String,
    /// The spec of the topic, with all defaults.
    #[serde(flatten)]
    pub spec: TopicSpec,
    /// Why the topic sends no messages, if there is a problem.
    pub problem: Option<String>,
    /// When it was created.
    pub created_at: Moment,
    /// When it was last changed.
    pub updated_at: Moment,
}

/// A message to schedule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// The id of a user, 0 to 9223372036854775807.
    #[schemars(range(min = 0))]
    pub sender: i64,
    /// The id of a user, 0 to 9223372036854775807.
    #[schemars(range(min = 0))]
    pub receiver: i64,
    /// When the message is due: a day such as 2026-11-21 for `granularity: day`, an RFC 3339 time for `granularity:
    /// instant`.
    pub due: String,
    /// The content: any JSON, at most the topic's `max_payload`. Default: null.
    #[serde(default)]
    pub payload: Value,
    /// Your own id, unique on its day, 1 to 512 bytes. A message with an existing key counts as accepted and changes
    /// nothing. The key of a message that was due on an earlier day is also looked for on up to 100 earlier days that are
    /// kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// One message, or an array of messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Messages {
    /// A single message. If it is refused, the answer is 422.
    One(Message),
    /// An array of messages.
    Many(Vec<Message>),
}

/// The result of scheduling messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MessagesAccepted {
    /// The number of messages that were committed.
    pub accepted: u64,
    /// How many of these already existed with the same key.
    pub repeated: u64,
    /// The first 1,000 lines that were rejected.
    pub rejected: Vec<Rejected>,
    /// The number of lines that were rejected.
    pub rejected_total: u64,
    /// The ids of the messages in order, for a single message or a short array.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<Uuid>>,
}

/// A line, or an item of an array, that was rejected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "RejectedMessage")]
pub struct Rejected {
    /// The number of the line, counted from 1.
    pub line: u64,
    /// Why it was rejected.
    pub detail: String,
}

/// A scheduled message with its state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MessageView {
    /// The id. It contains the day and the bucket.
    pub id: Uuid,
    /// The id of a user, from 0.
    pub sender: i64,
    /// The id of a user, from 0.
    pub receiver: i64,
    /// When the message is due: a day or a time, depending on the topic.
    pub due: String,
    /// The content, any JSON.
    pub payload: Value,
    /// The day on which it is due, in the topic's time zone.
    #[schemars(schema_with = "date")]
    pub day: NaiveDate,
    /// The bucket of the day: the sender modulo 10,000.
    pub bucket: i16,
    /// `scheduled` (not sent yet), `sending`, `retrying`, `sent`, `failed` or `cancelled`. For a bucket: `scheduled`,
    /// `draining` or `drained`.
    #[schemars(extend("enum" = ["scheduled", "sending", "retrying", "sent", "failed", "cancelled"]))]
    pub state: String,
    /// The number of attempts to send it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<i32>,
    /// In state `retrying`: when the next attempt is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Moment>,
    /// The error of the last attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A filter for messages. At least one field is required; the given ones must all match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MessageFilter {
    /// Messages that are due on this day, for example 2026-11-21.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date"))]
    pub day: Option<String>,
    /// Messages in this bucket, 0 to 9999: the sender modulo 10,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 9_999))]
    pub bucket: Option<i64>,
    /// Messages from this sender.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sender: Option<i64>,
    /// Messages to this receiver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receiver: Option<i64>,
}

/// The result of a cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Cancelled {
    /// The number of messages that were cancelled.
    pub cancelled: u64,
}

/// The progress of the messages of a day.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "MessageDay")]
pub struct Day {
    /// The day, in the topic's time zone.
    #[schemars(schema_with = "date")]
    pub day: NaiveDate,
    /// `scheduled`: no message was sent yet; `draining`: messages are being sent; `drained`: all messages have ended;
    /// `dropped`: removed after the topic's retention.
    #[schemars(extend("enum" = ["scheduled", "draining", "drained", "dropped"]))]
    pub state: String,
    /// The number of messages.
    pub total: i64,
    /// The number of messages that were sent.
    pub sent: i64,
    /// The number of messages that failed and are not retried.
    pub failed: i64,
    /// The number of messages that were cancelled.
    pub cancelled: i64,
    /// The number of messages that are being sent.
    pub in_hand: i64,
    /// The number of messages that failed and will be retried.
    pub retrying: i64,
    /// When the last message ended, in the states `drained` and `dropped`; else null.
    pub drained_at: Option<Moment>,
    /// When the messages were removed.
    pub dropped_at: Option<Moment>,
    /// The buckets that have or had messages. Missing in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buckets: Option<Vec<Bucket>>,
}

/// The progress of a bucket of a day.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "MessageBucket")]
pub struct Bucket {
    /// The number of the bucket, 0 to 9999.
    pub bucket: i16,
    /// The number of messages in the bucket.
    pub total: i64,
    /// The number of messages that were sent.
    pub sent: i64,
    /// The number of messages that failed and are not retried.
    pub failed: i64,
    /// The number of messages that were cancelled.
    pub cancelled: i64,
    /// `scheduled` (not sent yet), `sending`, `retrying`, `sent`, `failed` or `cancelled`. For a bucket: `scheduled`,
    /// `draining` or `drained`.
    #[schemars(extend("enum" = ["scheduled", "draining", "drained"]))]
    pub state: String,
}
