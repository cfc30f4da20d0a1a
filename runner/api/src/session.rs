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

/// Somebody who is signed in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SignedIn {
    /// A token's name, or a person: `person:` and their address or id at the provider.
    pub actor: String,
    /// What they may do.
    #[schemars(with = "Role")]
    pub role: String,
    /// The provider that vouches for a person; null: it is a token.
    pub issuer: Option<String>,
    /// The person's id there.
    pub subject: Option<String>,
    /// How many sessions they have: one for each sign-in that has not ended.
    pub sessions: i64,
    /// When the newest of them began.
    pub signed_in_at: Moment,
    /// When the last of them ends.
    pub expires_at: Moment,
}

/// Sessions that were ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionsEnded {
    /// How many there were.
    pub ended: u64,
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
