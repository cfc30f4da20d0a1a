//! Tokens, and what they let one do.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::Moment;

/// The role of a token: what it allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads everything except secrets.
    #[default]
    Viewer,
    /// Reads, and changes groups, runs, offers and topics.
    Operator,
    /// Reads, and changes scripts.
    Author,
    /// Only claims from its queues and polls for its users.
    Worker,
    /// Reads and changes everything.
    Admin,
}

impl Role {
    pub const ALL: [Self; 5] = [Self::Viewer, Self::Operator, Self::Author, Self::Worker, Self::Admin];

    /// The word in the API and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Author => "author",
            Self::Worker => "worker",
            Self::Admin => "admin",
        }
    }

    /// Reads the word; `None` if it is not a role.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == text)
    }
}

/// The request to create a token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "TokenSpec")]
pub struct NewToken {
    /// The name of the token.
    pub name: String,
    /// The role, which says what the token allows.
    pub role: Role,
    /// For the role `worker`: the queues from which it may claim, at most 1,000. Without `queues` and `uids`, the
    /// worker may use all queues and users. An empty list is allowed only if `uids` is not empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queues: Option<Vec<String>>,
    /// For the role `worker`: the users for whom it may poll, at most 1,000. Without `queues` and `uids`, the worker
    /// may use all queues and users. An empty list is allowed only if `queues` is not empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uids: Option<Vec<String>>,
    /// When the token expires, RFC 3339. Default: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub expires_at: Option<String>,
}

/// A token, without its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Token {
    /// The id, a UUIDv7.
    pub id: Uuid,
    /// The name of the token.
    pub name: String,
    /// The role, which says what the token allows.
    #[schemars(with = "Role")]
    pub role: String,
    /// For the role `worker`: its queues. Empty: see `uids`; both empty means all.
    pub queues: Vec<String>,
    /// For the role `worker`: its users. Empty: see `queues`; both empty means all.
    pub uids: Vec<String>,
    /// When the token expires. null: never.
    pub expires_at: Option<Moment>,
    /// When it was created.
    pub created_at: Moment,
    /// When it was last used, within about a minute. null: never.
    pub last_used_at: Option<Moment>,
}

/// A token that was just created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "NewToken")]
pub struct MadeToken {
    /// The token without its value.
    #[serde(flatten)]
    pub made: Token,
    /// The value of the token. It is shown only once.
    pub token: String,
}
