//! The row of a run, live or ended, and what a statement selects for it.

use std::sync::LazyLock;

use heddle_domain::Time;
use heddle_domain::state::{RunState, Skip, Trigger};
use heddle_domain::wait::RunWait;
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::RunTerms;
use super::kept::KEPT;
use crate::StoreError;

/// A run, live or ended.
#[derive(Clone, Debug)]
pub struct RunRow {
    pub id: Uuid,
    pub group_id: i64,
    pub group_name: String,
    /// The number of its revision.
    pub revision: i32,
    /// The id of its revision.
    pub revision_id: i64,
    pub resolution_id: Option<i64>,
    pub state: RunState,
    pub terms: RunTerms,
    /// When it was created.
    pub created_at: Time,
    pub started_at: Option<Time>,
    /// When it must have ended.
    pub deadline_at: Option<Time>,
    /// The run of which it is a sub-run.
    pub parent_run: Option<Uuid>,
    /// When somebody last continued it after it had ended.
    pub reopened_at: Option<Time>,
    /// What it waits for before it begins.
    pub waiting_for: Vec<RunWait>,
    /// Its progress as bytes.
    pub progress: Vec<u8>,
    pub finished_at: Option<Time>,
    pub error: Option<String>,
    /// If it never began: why.
    pub skipped: Option<Skip>,
}

impl RunRow {
    /// Reads what [`LIVE`] or [`DONE`] give, and [`NAMES`].
    pub(super) fn read(row: &PgRow) -> Result<Self, StoreError> {
        let id: Uuid = row.try_get("id")?;
        let state = row.try_get("state")?;
        let trigger = row.try_get("trigger")?;
        let skipped: Option<i16> = row.try_get("skipped")?;
        let skipped =
            skipped.map(|skipped| StoreError::known(Skip::from_number, skipped, ("runs_done", "skipped"), id));
        Ok(Self {
            id,
            group_id: row.try_get("group_id")?,
            group_name: row.try_get("group_name")?,
            revision: row.try_get("revision")?,
            revision_id: row.try_get("revision_id")?,
            resolution_id: row.try_get("resolution_id")?,
            state: StoreError::known(RunState::from_number, state, ("runs", "state"), id)?,
            terms: RunTerms {
                trigger: StoreError::known(Trigger::from_number, trigger, ("runs", "trigger"), id)?,
                priority: row.try_get("priority")?,
                logical_time: row.try_get("logical_time")?,
                interval: (row.try_get("interval_start")?, row.try_get("interval_end")?),
                params: row.try_get("params")?,
                task_params: row.try_get("task_params")?,
                labels: row.try_get("labels")?,
                key: row.try_get("key")?,
                callback: row.try_get("callback")?,
                source: row.try_get("source")?,
                created_by: row.try_get("created_by")?,
            },
            created_at: row.try_get("created_at")?,
            started_at: row.try_get("started_at")?,
            deadline_at: row.try_get("deadline_at")?,
            parent_run: row.try_get("parent_run")?,
            reopened_at: row.try_get("reopened_at")?,
            waiting_for: RunWait::from_stored(row.try_get("waiting_for")?),
            progress: row.try_get("progress")?,
            finished_at: row.try_get("finished_at")?,
            error: row.try_get("error")?,
            skipped: skipped.transpose()?,
        })
    }
}

/// The columns of a run's row `l` that [`RunRow::read`] reads: those that both tables have, and `own` of one table.
fn columns_and(own: &str) -> String {
    let kept = KEPT.split(", ");
    let both = kept.chain(["state", "deadline_at", "parent_run", "reopened_at", "progress"]);
    both.fold(String::new(), |columns, column| columns + "l." + column + ", ") + own
}

pub(super) static LIVE: LazyLock<String> = LazyLock::new(|| {
    columns_and("l.waiting_for, NULL::timestamptz AS finished_at, NULL::text AS error, NULL::smallint AS skipped")
});

pub(super) static DONE: LazyLock<String> =
    LazyLock::new(|| columns_and("NULL::jsonb AS waiting_for, l.finished_at, l.error, l.skipped"));

/// Further columns that it reads, from the tables in [`JOINS`].
pub(super) const NAMES: &str = ", g.name AS group_name, r.revision";

pub(super) const JOINS: &str =
    " JOIN heddle.groups g ON g.id = l.group_id JOIN heddle.revisions r ON r.id = l.revision_id ";
