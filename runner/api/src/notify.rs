//! Where people are told, and what they have been told. A channel is put as a [`crate::ChannelSpec`].

use heddle_domain::notify::channel::ChannelSpec;
use heddle_domain::notify::message::Entry;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::Moment;

/// A channel, without what is secret of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Channel {
    /// Its name.
    pub name: String,
    /// What it is; of a chat robot's address the host.
    #[serde(flatten)]
    pub shown: ChannelSpec,
    /// When it was made.
    pub created_at: Moment,
    /// When it was last changed.
    pub updated_at: Moment,
}

/// One thing told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Notification {
    /// Receivers know a repeat by it.
    pub id: Uuid,
    /// The channel, or the URL that was called back.
    pub channel: String,
    /// `failed`, `recovered`, `callback`, ...
    pub event: String,
    /// The group that it is about.
    pub group: Option<String>,
    /// The run that it is about.
    pub run: Option<Uuid>,
    /// The task that it is about.
    pub task: Option<String>,
    /// It in a line.
    pub subject: String,
    /// Of mails: to whom.
    pub to: Vec<String>,
    /// How many events it stands for.
    pub count: u64,
    /// How it stands.
    pub state: NotificationState,
    /// How often it was tried.
    pub attempts: i32,
    /// Why the last try failed.
    pub last_error: Option<String>,
    /// When it was made.
    pub created_at: Moment,
    /// When it arrived.
    pub sent_at: Option<Moment>,
    /// While it is `pending`: when it is tried again.
    pub next_attempt_at: Option<Moment>,
    /// What it says; left out of lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Of a digest: the events that it stands for; left out of lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<Entry>,
}

/// How a notification stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NotificationState {
    /// It is yet to be sent, or is tried again.
    Pending,
    /// It has arrived.
    Sent,
    /// It is tried no more.
    Failed,
}

impl NotificationState {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Pending, Self::Sent, Self::Failed];

    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Sent => "sent",
            Self::Failed => "failed",
        }
    }
}
