//! Backfills. What is asked for is a [`crate::BackfillRequest`].

use std::collections::BTreeMap;

use heddle_domain::backfill::{OnExisting, Order, Scripts};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::Moment;

/// Runs for instants of the past, made a few at a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Backfill {
    /// UUIDv7; its runs carry it as `source`.
    pub id: Uuid,
    /// The group's name.
    pub group: String,
    /// `running`, `paused`, `succeeded`, `failed` or `cancelled`.
    #[schemars(extend("enum" = ["running", "paused", "succeeded", "failed", "cancelled"]))]
    pub state: String,
    /// The first instant, included.
    pub from: Moment,
    /// The last, included; null: up to now, with what comes due meanwhile.
    pub to: Option<Moment>,
    /// A duration between instants; null: by the group's schedules.
    pub step: Option<String>,
    /// In which order instants are worked off.
    pub order: Order,
    /// How many of its runs may be active at once.
    pub max_active: i32,
    /// What becomes of instants that have a run.
    pub on_existing: OnExisting,
    /// Whether dependants follow, instant by instant.
    pub include_downstream: bool,
    /// Which script versions its runs take.
    pub scripts: Scripts,
    /// Of its runs: higher goes first.
    pub priority: i16,
    /// Params of each run: an object.
    #[schemars(with = "BTreeMap<String, Value>")]
    pub params: Value,
    /// How many runs it makes altogether, as far as that is known.
    pub total: i64,
    /// Its runs by state; `pending`: yet to be made.
    pub counts: BTreeMap<String, i64>,
    /// How many instants were left alone.
    pub skipped: i64,
    /// The instant that was decided last.
    pub position: Option<Moment>,
    /// Why it makes no runs although it could.
    pub note: Option<String>,
    /// When it was made.
    pub created_at: Moment,
    /// Who made it: the token's name.
    pub created_by: String,
    /// When it ended.
    pub finished_at: Option<Moment>,
}

impl Backfill {
    /// Whether it has ended: what is not under way.
    pub fn is_final(&self) -> bool {
        !matches!(self.state.as_str(), "running" | "paused")
    }

    /// How many of its runs have ended.
    pub fn done(&self) -> i64 {
        ["succeeded", "failed", "cancelled"]
            .iter()
            .filter_map(|state| self.counts.get(*state))
            .sum()
    }
}

/// What a dry run answers: the instants that would get a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackfillPlan {
    /// How many there are.
    pub total: usize,
    /// All of them, in order.
    pub instants: Vec<Moment>,
}

/// What comes of asking for a backfill: a plan with `dry_run`, else a backfill.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum BackfillStarted {
    /// Nothing is stored.
    Planned(BackfillPlan),
    /// It goes on.
    Made(Box<Backfill>),
}
