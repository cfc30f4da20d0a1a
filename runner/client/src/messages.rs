//! Scheduled messages.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Client, Result};

/// A batch of a hundred thousand lines takes its time.
const INGEST_TIMEOUT: Duration = Duration::from_secs(600);

/// What became of messages that were sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Accepted {
    /// How many are committed.
    pub accepted: u64,
    /// Which are not, and why.
    #[serde(default)]
    pub rejected: Vec<Rejected>,
}

/// A line that was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejected {
    /// From 1.
    pub line: u64,
    /// Why.
    pub detail: String,
}

impl Client {
    /// Makes or changes a topic.
    pub async fn put_topic(&self, name: &str, topic: &Value) -> Result<Value> {
        self.put(&["v1", "topics", name]).json(topic).send().await
    }

    /// Schedules messages.
    pub async fn send_messages(&self, topic: &str, messages: &[Value]) -> Result<Accepted> {
        let request = self.post(&["v1", "topics", topic, "messages"]).json(messages);
        request.timeout(INGEST_TIMEOUT).send().await
    }

    /// Schedules messages that are lines of JSON already.
    pub async fn send_message_lines(&self, topic: &str, lines: impl Into<bytes::Bytes>) -> Result<Accepted> {
        let request = self
            .post(&["v1", "topics", topic, "messages"])
            .bytes("application/x-ndjson", lines);
        request.timeout(INGEST_TIMEOUT).send().await
    }

    /// Cancels what a filter (`day`, `bucket`, `sender`, `receiver`) finds.
    pub async fn cancel_messages(&self, topic: &str, filter: &Value) -> Result<Value> {
        self.post(&["v1", "topics", topic, "cancel"]).json(filter).send().await
    }

    /// How far a day has come.
    pub async fn topic_day(&self, topic: &str, day: &str) -> Result<Value> {
        self.get(&["v1", "topics", topic, "days", day]).send().await
    }
}
