//! Where people are told, and what they have been told. A channel is put as a [`crate::ChannelSpec`].

use heddle_domain::notify::channel::ChannelSpec;
use heddle_domain::notify::message::Entry;
use heddle_domain::state::NotificationState;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::Moment;

/// A channel, without its secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Channel {
    /// The name of the channel.
    pub name: String,
    /// The spec of the channel. Of the URL of a chat robot, only the host.
    #[serde(flatten)]
    pub shown: ChannelSpec,
    /// When it was created.
    pub created_at: Moment,
    /// When it was last changed.
    pub updated_at: Moment,
}

/// A notification: one message about one or more events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Notification {
    /// The id. A receiver can recognize a repeated delivery by it.
    pub id: Uuid,
    /// The name of the channel. Of the URL of a callback, only the host: `https://host/…`.
    pub channel: String,
    /// The event: `failed`, `recovered`, `callback`, ...
    pub event: String,
    /// The group that it is about.
    pub group: Option<String>,
    /// The run that it is about.
    pub run: Option<Uuid>,
    /// The task that it is about.
    pub task: Option<String>,
    /// The subject, one line.
    pub subject: String,
    /// For e-mail: the recipients.
    pub to: Vec<String>,
    /// The number of events that it is about.
    pub count: u64,
    /// Whether it waits, was sent or has failed.
    pub state: NotificationState,
    /// The number of tries to send it.
    pub attempts: i32,
    /// The error of the last try.
    pub last_error: Option<String>,
    /// When it was created.
    pub created_at: Moment,
    /// When it was sent.
    pub sent_at: Option<Moment>,
    /// In state `pending`: when the next try is due.
    pub next_attempt_at: Option<Moment>,
    /// The text. Missing in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// For a combined notification: the events that it is about. Missing in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<Entry>,
}
