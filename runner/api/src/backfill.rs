//! Backfills. What is asked for is a [`crate::BackfillRequest`].

use std::collections::BTreeMap;

use heddle_domain::backfill::{OnExisting, Order, Scripts};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::Moment;

/// A backfill: runs for instants in the past, a limited number at the same time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Backfill {
    /// The id, a UUIDv7. It is the `source` of its runs.
    pub id: Uuid,
    /// The name of the group.
    pub group: String,
    /// The state: `running`, `paused`, `succeeded`, `failed` or `cancelled`. One that has ended is `succeeded` if all of its
    /// runs are, otherwise `failed`: also while a restarted run of it goes on.
    #[schemars(extend("enum" = ["running", "paused", "succeeded", "failed", "cancelled"]))]
    pub state: String,
    /// The first instant, included.
    pub from: Moment,
    /// The last instant, included. null: up to now, plus instants that become due in the meantime.
    pub to: Option<Moment>,
    /// The duration between two instants. null: the instants of the group's schedules.
    pub step: Option<String>,
    /// The order of the runs.
    pub order: Order,
    /// The maximum number of its runs that are active at the same time, 1 to 10,000.
    pub max_active: i32,
    /// What happens with instants that already have a run.
    pub on_existing: OnExisting,
    /// Whether the groups that depend on this group also run, for each instant.
    pub include_downstream: bool,
    /// The script versions of repeated runs.
    pub scripts: Scripts,
    /// The priority of its runs, -1000 to 1000; higher starts first.
    pub priority: i16,
    /// The params of each run, an object.
    #[schemars(with = "BTreeMap<String, Value>")]
    pub params: Value,
    /// The total number of runs, as far as it is known.
    pub total: i64,
    /// The number of its runs by state; `pending`: not created yet.
    pub counts: BTreeMap<String, i64>,
    /// The number of instants that were skipped, because they already had a run.
    pub skipped: i64,
    /// The last instant that was processed.
    pub position: Option<Moment>,
    /// Why it creates no runs at the moment, for example because the group is disabled.
    pub note: Option<String>,
    /// When it was created.
    pub created_at: Moment,
    /// Who created it: the name of a token or a person.
    pub created_by: String,
    /// When it ended. null: it has not ended.
    pub finished_at: Option<Moment>,
}

impl Backfill {
    /// Whether it has ended.
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

/// The answer to a dry run: the instants that would get a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackfillPlan {
    /// The number of instants.
    pub total: usize,
    /// All instants, in the order of the backfill.
    pub instants: Vec<Moment>,
}

/// The answer to the start of a backfill: with `dry_run` a plan, otherwise a backfill.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum BackfillStarted {
    /// With `dry_run`: nothing is stored.
    Planned(BackfillPlan),
    /// The backfill that was started.
    Made(Box<Backfill>),
}
