//! Scheduled messages.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Client, List, Result};

/// A batch of a hundred thousand lines takes its time.
const INGEST_TIMEOUT: Duration = Duration::from_secs(600);

/// What became of messages that were sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Accepted {
    /// How many are committed.
    pub accepted: u64,
    /// Of these, repeats of a key, which were there before.
    #[serde(default)]
    pub repeated: u64,
    /// Which are not, and why.
    #[serde(default)]
    pub rejected: Vec<Rejected>,
    /// How many are not; `rejected` names the first 1,000.
    #[serde(default)]
    pub rejected_total: u64,
    /// The ids of an object's or a short array's messages.
    #[serde(default)]
    pub ids: Vec<String>,
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

    /// One page of topics.
    pub async fn topics(&self, cursor: Option<&str>) -> Result<List<Value>> {
        self.get(&["v1", "topics"]).query_if("cursor", cursor).send().await
    }

    /// A topic.
    pub async fn topic(&self, name: &str) -> Result<Value> {
        self.get(&["v1", "topics", name]).send().await
    }

    /// Deletes a topic with all its messages.
    pub async fn delete_topic(&self, name: &str) -> Result<()> {
        self.delete(&["v1", "topics", name]).send_for_nothing().await
    }

    /// Schedules messages that are lines of JSON, made while they are sent: as many as there are.
    pub async fn send_message_stream<S>(&self, topic: &str, lines: S) -> Result<Accepted>
    where
        S: futures::Stream<Item = std::io::Result<bytes::Bytes>> + Send + 'static,
    {
        self.post(&["v1", "topics", topic, "messages"])
            .send_streaming("application/x-ndjson", lines)
            .await
    }

    /// One page of messages that a filter (`day`, `bucket`, `sender`, `receiver`) finds.
    pub async fn messages(&self, topic: &str, filter: &[(&str, String)], cursor: Option<&str>) -> Result<List<Value>> {
        let mut request = self.get(&["v1", "topics", topic, "messages"]);
        for (name, value) in filter {
            request = request.query(name, value);
        }
        request.query_if("cursor", cursor).send().await
    }

    /// A message.
    pub async fn message(&self, topic: &str, id: &str) -> Result<Value> {
        self.get(&["v1", "topics", topic, "messages", id]).send().await
    }

    /// Cancels a message.
    pub async fn cancel_message(&self, topic: &str, id: &str) -> Result<()> {
        self.delete(&["v1", "topics", topic, "messages", id])
            .send_for_nothing()
            .await
    }

    /// One page of a topic's days.
    pub async fn topic_days(&self, topic: &str, cursor: Option<&str>) -> Result<List<Value>> {
        self.get(&["v1", "topics", topic, "days"])
            .query_if("cursor", cursor)
            .send()
            .await
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
        self.post(&["v1", "topics", topic, "cancel"])
            .json(filter)
            .timeout(INGEST_TIMEOUT)
            .send()
            .await
    }

    /// How far a day has come.
    pub async fn topic_day(&self, topic: &str, day: &str) -> Result<Value> {
        self.get(&["v1", "topics", topic, "days", day]).send().await
    }
}
