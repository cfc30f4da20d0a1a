//! Where people are told, and what they have been told.

use heddle_domain::Time;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{Client, List, More, Result};

/// A channel, without what is secret of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Channel {
    /// Its name.
    pub name: String,
    /// `email`, `webhook`, `slack`, `feishu`, `dingtalk` or `wecom`.
    pub kind: String,
    /// The rest.
    #[serde(flatten)]
    pub more: More,
}

/// One thing told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Notification {
    /// Its id; receivers know a repeat by it.
    pub id: String,
    /// The channel, or the URL that was called back.
    pub channel: String,
    /// `failed`, `recovered`, `callback`, ...
    pub event: String,
    /// One line.
    pub subject: String,
    /// `pending`, `sent` or `failed`.
    pub state: String,
    /// Tries so far.
    pub attempts: u32,
    /// Why the last one failed.
    #[serde(default)]
    pub last_error: Option<String>,
    /// When it was made.
    pub created_at: Time,
    /// When it arrived.
    #[serde(default)]
    pub sent_at: Option<Time>,
    /// The rest.
    #[serde(flatten)]
    pub more: More,
}

/// Which notifications; `None` means any.
#[derive(Clone, Debug, Default)]
pub struct NotificationFilter {
    /// Of this channel.
    pub channel: Option<String>,
    /// Of this event; several with commas.
    pub event: Option<String>,
    /// In this state; several with commas.
    pub state: Option<String>,
    /// About this group.
    pub group: Option<String>,
    /// About this run.
    pub run: Option<String>,
}

impl Client {
    /// Creates or changes a channel; what is secret of it and left out stays as it is.
    pub async fn put_channel(&self, name: &str, spec: &Value) -> Result<Channel> {
        self.put(&["v1", "channels", name]).json(spec).send().await
    }

    /// Sends a test message through a channel; the answer says what came of it.
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
