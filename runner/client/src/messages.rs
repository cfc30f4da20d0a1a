//! Calls for topics and their scheduled messages.

use std::time::Duration;

use heddle_api::{Cancelled, Day, List, MessageFilter, MessageView, MessagesAccepted, Topic};
use serde::Serialize;
use serde_json::Value;

use crate::{Client, Result};

/// A batch of a hundred thousand lines takes its time.
const INGEST_TIMEOUT: Duration = Duration::from_secs(600);

impl Client {
    /// Makes or changes a topic.
    pub async fn put_topic(&self, name: &str, topic: &Value) -> Result<Topic> {
        self.put(&["v1", "topics", name]).json(topic).send().await
    }

    /// One page of topics.
    pub async fn topics(&self, cursor: Option<&str>) -> Result<List<Topic>> {
        self.get(&["v1", "topics"]).query_if("cursor", cursor).send().await
    }

    pub async fn topic(&self, name: &str) -> Result<Topic> {
        self.get(&["v1", "topics", name]).send().await
    }

    /// Deletes a topic with all its messages.
    pub async fn delete_topic(&self, name: &str) -> Result<()> {
        self.delete(&["v1", "topics", name]).send_for_nothing().await
    }

    /// Schedules messages that are lines of JSON, made while they are sent: as many as there are.
    pub async fn send_message_stream<S>(&self, topic: &str, lines: S) -> Result<MessagesAccepted>
    where
        S: futures::Stream<Item = std::io::Result<bytes::Bytes>> + Send + 'static,
    {
        self.post(&["v1", "topics", topic, "messages"])
            .send_streaming("application/x-ndjson", lines)
            .await
    }

    /// One page of messages that a filter finds.
    pub async fn messages(
        &self,
        topic: &str,
        filter: &MessageFilter,
        cursor: Option<&str>,
    ) -> Result<List<MessageView>> {
        self.get(&["v1", "topics", topic, "messages"])
            .query_if("day", filter.day.as_deref())
            .query_if("bucket", filter.bucket)
            .query_if("sender", filter.sender)
            .query_if("receiver", filter.receiver)
            .query_if("cursor", cursor)
            .send()
            .await
    }

    pub async fn message(&self, topic: &str, id: &str) -> Result<MessageView> {
        self.get(&["v1", "topics", topic, "messages", id]).send().await
    }

    pub async fn cancel_message(&self, topic: &str, id: &str) -> Result<()> {
        self.delete(&["v1", "topics", topic, "messages", id])
            .send_for_nothing()
            .await
    }

    /// One page of a topic's days.
    pub async fn topic_days(&self, topic: &str, cursor: Option<&str>) -> Result<List<Day>> {
        self.get(&["v1", "topics", topic, "days"])
            .query_if("cursor", cursor)
            .send()
            .await
    }

    pub async fn send_messages(&self, topic: &str, messages: &[impl Serialize]) -> Result<MessagesAccepted> {
        let request = self.post(&["v1", "topics", topic, "messages"]).json(messages);
        request.timeout(INGEST_TIMEOUT).send().await
    }

    /// Cancels what a filter finds.
    pub async fn cancel_messages(&self, topic: &str, filter: &MessageFilter) -> Result<Cancelled> {
        self.post(&["v1", "topics", topic, "cancel"])
            .json(filter)
            .timeout(INGEST_TIMEOUT)
            .send()
            .await
    }

    /// How far a day has come.
    pub async fn topic_day(&self, topic: &str, day: &str) -> Result<Day> {
        self.get(&["v1", "topics", topic, "days", day]).send().await
    }
}
