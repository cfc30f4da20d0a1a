//! Sessions: who the caller is, who is signed in, how one signs in. Also the health of a node.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Moment, Role};

/// The caller: who you are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Session {
    /// The name of the token, or `person:` and an e-mail address.
    pub actor: String,
    /// The role of the caller.
    pub role: Role,
    /// For the role `worker`: its queues. Empty: all.
    pub queues: Vec<String>,
    /// For the role `worker`: its users. Empty: all.
    pub uids: Vec<String>,
    /// When the token or session expires. null: never.
    pub expires_at: Option<Moment>,
}

/// A person or token that is signed in. A person is an id at a provider: several people can have one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SignedIn {
    /// The name of a token, or `person:` and the e-mail address or id at the provider, as at the newest sign-in.
    pub actor: String,
    /// The role, which says what is allowed.
    #[schemars(with = "Role")]
    pub role: String,
    /// For a person: the provider. null: it is a token.
    pub issuer: Option<String>,
    /// For a person: the id at the provider.
    pub subject: Option<String>,
    /// The number of sessions, one for each sign-in that has not ended.
    pub sessions: i64,
    /// When the newest session began.
    pub signed_in_at: Moment,
    /// When the last session expires.
    pub expires_at: Moment,
}

/// The result of ending sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionsEnded {
    /// The number of sessions that were ended.
    pub ended: u64,
}

/// The request to sign in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignIn {
    /// The value of a token that is not expired or revoked.
    pub token: String,
}

/// The health of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    /// `ok` (alive) or `ready` (ready for work).
    pub status: String,
}
