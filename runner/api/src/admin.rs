//! The audit, and what is removed in time. How long things are kept is a [`Retention`], and what was removed is
//! [`Pruned`].

use heddle_domain::retention::{Pruned, Retention};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::Moment;

/// An entry of the audit: one change that somebody made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Audit")]
pub struct AuditEntry {
    /// The id of the entry, a UUIDv7.
    pub id: Uuid,
    /// When the change was made.
    pub at: Moment,
    /// Who made the change: the name of a token, or `person:` and an e-mail address.
    pub actor: String,
    /// What was done: `create`, `update`, `delete`, `cancel`, ...
    pub action: String,
    /// The kind of object: `group`, `script`, `secret`, ...
    pub kind: String,
    /// The name or the id of the object.
    pub name: String,
    /// The object before the change, without secret values; of a control, its state. null: it did not exist, or `after`
    /// has only the difference: members of an audience, cancelled messages of a topic.
    pub before: Option<Value>,
    /// The object after the change, without secret values; of a control, its state. For each value that is never shown,
    /// an update says whether it changed: `value_changed` of a secret, `url_changed` of a connection; `url_changed`,
    /// `secret_changed` and `password_changed` of a channel, as far as its kind has them. null: it was deleted.
    pub after: Option<Value>,
}

/// The request to remove expired data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Prune {
    /// Remove nothing, and answer what would be removed. Default: false.
    pub dry_run: bool,
}

/// How long data is kept from now on; with `dry_run`, what would be removed now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum RetentionOrPruned {
    /// With `dry_run`: what would be removed.
    Pruned(Pruned),
    /// How long data is kept from now on.
    Retention(Retention),
}
