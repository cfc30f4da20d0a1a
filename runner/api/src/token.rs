//! Tokens, and what they let one do.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::Moment;

/// What a token lets one do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads.
    #[default]
    Viewer,
    /// Reads; groups, runs, offers, topics.
    Operator,
    /// Reads; scripts.
    Author,
    /// Claims from its queues, polls for its users; nothing else.
    Worker,
    /// Everything.
    Admin,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Viewer, Self::Operator, Self::Author, Self::Worker, Self::Admin];

    /// The word in the API and in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Author => "author",
            Self::Worker => "worker",
            Self::Admin => "admin",
        }
    }

    /// From the word.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == text)
    }
}

/// A token as it is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "TokenSpec")]
pub struct NewToken {
    /// What it is for: a name.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// A worker's queues, up to 1,000. Of a worker that names neither queues nor uids these are all, so a list that is
    /// given is not empty unless the other names something.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queues: Option<Vec<String>>,
    /// A worker's users, up to 1,000. Of a worker that names neither queues nor uids these are all, so a list that is
    /// given is not empty unless the other names something.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uids: Option<Vec<String>>,
    /// Until when it is in force, RFC 3339; default for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub expires_at: Option<String>,
}

/// A token, without its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Token {
    /// UUIDv7.
    pub id: Uuid,
    /// What it is for: a name.
    pub name: String,
    /// What it may do.
    #[schemars(with = "Role")]
    pub role: String,
    /// A worker's queues.
    pub queues: Vec<String>,
    /// A worker's users.
    pub uids: Vec<String>,
    /// Until when it is in force; null: for ever.
    pub expires_at: Option<Moment>,
    /// When it was made.
    pub created_at: Moment,
    /// When it was last used, give or take a minute.
    pub last_used_at: Option<Moment>,
}

/// A token that was just made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "NewToken")]
pub struct MadeToken {
    /// What it is.
    #[serde(flatten)]
    pub made: Token,
    /// Its text, shown this once.
    pub token: String,
}
