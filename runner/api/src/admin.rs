//! The audit, and what is removed in time. How long things are kept is a [`crate::Retention`].

use std::collections::BTreeMap;

use chrono::NaiveDate;
use heddle_domain::retention::{EndState, Retention};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::Moment;

/// One change that somebody made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Audit")]
pub struct AuditEntry {
    /// UUIDv7.
    pub id: Uuid,
    /// When.
    pub at: Moment,
    /// Who: a token's name.
    pub actor: String,
    /// `create`, `update`, `delete`, ...
    pub action: String,
    /// `group`, `script`, `secret`, ...
    pub kind: String,
    /// The name or id of the thing.
    pub name: String,
    /// How it was, without what is secret.
    pub before: Option<Value>,
    /// How it is since, without what is secret.
    pub after: Option<Value>,
}

/// What to remove.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Prune {
    /// Only says what would be removed.
    pub dry_run: bool,
}

/// Days, without times.
fn dates(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "items": {"type": "string", "format": "date"}})
}

/// What was removed, or would be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pruned {
    /// Whether it was only asked what would be.
    pub dry_run: bool,
    /// How many runs.
    pub runs: u64,
    /// How many runs of each state.
    pub by_state: BTreeMap<EndState, u64>,
    /// Days of runs that went as a whole.
    #[schemars(schema_with = "dates")]
    pub days: Vec<NaiveDate>,
    /// Days of logs that went as a whole.
    #[schemars(schema_with = "dates")]
    pub log_days: Vec<NaiveDate>,
    /// How many runs lost their logs before they went themselves.
    pub logs: u64,
    /// How many entries of the audit.
    pub audit: u64,
    /// How many events.
    pub events: u64,
    /// How many assignments.
    pub assignments: u64,
    /// How many notifications.
    pub notifications: u64,
    /// How many occurrences of offers.
    pub occurrences: u64,
    /// How many offers.
    pub offers: u64,
    /// How many backfills.
    pub backfills: u64,
    /// How many tokens that are in force no more.
    pub tokens: u64,
    /// There is more to do.
    pub more: bool,
}

/// How long things are kept from now on; with `dry_run`, what would be removed now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum RetentionOrPruned {
    /// What would be removed.
    Pruned(Pruned),
    /// What is kept.
    Retention(Retention),
}
