//! Backfills: runs for instants of the past.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{Client, More, Result};

/// What to make runs for. Times are RFC 3339, or dates and local times in the group's zone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BackfillRequest {
    /// The first instant.
    pub from: String,
    /// The last instant; default now, with whatever comes due meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Between instants, for a group without suitable schedules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// `asc` or `desc`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<String>,
    /// Runs under way at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_active: Option<u32>,
    /// `skip`, `failed` or `all`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_existing: Option<String>,
    /// Dependants follow, instant by instant.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub include_downstream: bool,
    /// `active` or `pinned`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scripts: Option<String>,
    /// Default below that of scheduled runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i16>,
    /// Params of each run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub params: Option<Value>,
    /// Also while the group is disabled.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
    /// Lists the instants and makes nothing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// A backfill as it stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Backfill {
    /// Its id.
    pub id: Uuid,
    /// Its group.
    pub group: String,
    /// `running`, `paused`, `succeeded`, `failed`, `cancelled`.
    pub state: String,
    /// How many runs it is to make.
    #[serde(default)]
    pub total: i64,
    /// How many of them are in which state.
    #[serde(default)]
    pub counts: BTreeMap<String, i64>,
    /// The rest of what it was asked for.
    #[serde(flatten)]
    pub more: More,
}

impl Backfill {
    /// Whether it has ended: what is not under way.
    pub fn is_final(&self) -> bool {
        !matches!(self.state.as_str(), "pending" | "waiting" | "running" | "paused")
    }

    /// How many of its runs have ended.
    pub fn done(&self) -> i64 {
        ["succeeded", "failed", "cancelled", "skipped"]
            .iter()
            .filter_map(|state| self.counts.get(*state))
            .sum()
    }
}

impl Client {
    /// Starts a backfill; with `dry_run` the answer holds `instants` and nothing is made.
    pub async fn backfill_group(&self, group: &str, request: &BackfillRequest) -> Result<Value> {
        self.post(&["v1", "groups", group, "backfills"])
            .json(request)
            .send()
            .await
    }

    /// A backfill.
    pub async fn backfill(&self, id: Uuid) -> Result<Backfill> {
        self.get(&["v1", "backfills", &id.to_string()]).send().await
    }

    /// `cancel`, `pause` or `resume`.
    pub async fn control_backfill(&self, id: Uuid, action: &str) -> Result<Backfill> {
        self.post(&["v1", "backfills", &id.to_string(), action])
            .json(&json!({}))
            .send()
            .await
    }
}
