//! Channels, and what people were told.

use heddle_api::{Channel, List, Notification};
use serde_json::{Value, json};

use crate::{Client, Result};

/// Which notifications; `None` means any.
#[derive(Clone, Debug, Default)]
pub struct NotificationFilter {
    pub channel: Option<String>,
    /// Of this event; several with commas.
    pub event: Option<String>,
    /// In this state; several with commas.
    pub state: Option<String>,
    pub group: Option<String>,
    pub run: Option<String>,
}

impl Client {
    /// Creates or changes a channel; secret parts that are left out do not change.
    pub async fn put_channel(&self, name: &str, spec: &Value) -> Result<Channel> {
        self.put(&["v1", "channels", name]).json(spec).send().await
    }

    /// Sends a test message through a channel; returns the result.
    pub async fn test_channel(&self, name: &str) -> Result<Notification> {
        self.post(&["v1", "channels", name, "test"])
            .json(&json!({}))
            .send()
            .await
    }

    /// The request for notifications, newest first; see [`crate::Request::send_for_all`].
    pub fn list_notifications(&self, filter: &NotificationFilter) -> crate::Request {
        self.get(&["v1", "notifications"])
            .query_if("channel", filter.channel.as_deref())
            .query_if("event", filter.event.as_deref())
            .query_if("state", filter.state.as_deref())
            .query_if("group", filter.group.as_deref())
            .query_if("run", filter.run.as_deref())
    }

    /// A page of notifications, newest first.
    pub async fn notifications(&self, filter: &NotificationFilter) -> Result<List<Notification>> {
        self.list_notifications(filter).send().await
    }

    /// Sends a notification again, to all its recipients.
    pub async fn resend_notification(&self, id: &str) -> Result<Notification> {
        self.post(&["v1", "notifications", id, "resend"])
            .json(&json!({}))
            .send()
            .await
    }
}
