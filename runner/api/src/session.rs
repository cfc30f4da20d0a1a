//! Who one is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Moment, Role};

/// Who a caller is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Session {
    /// The token's name.
    pub actor: String,
    /// What the caller may do.
    pub role: Role,
    /// A worker's queues; none: all.
    pub queues: Vec<String>,
    /// A worker's users; none: all.
    pub uids: Vec<String>,
    /// Until when that holds; null: for ever.
    pub expires_at: Option<Moment>,
}

/// How a browser signs in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignIn {
    /// A token that is in force.
    pub token: String,
}

/// Whether a node is well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    /// `ok`, or `ready`.
    pub status: String,
}
