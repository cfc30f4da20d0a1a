//! Claims of ready task runs, and the facts that a node needs to work on their runs.

use heddle_domain::id::RunId;
use heddle_domain::run::AttemptKey;
use heddle_domain::state::Trigger;
use heddle_domain::{Clock, Time};
use uuid::Uuid;

use super::{NewRun, Room};
use crate::run::{RunRow, RunTerms};
use crate::{Store, StoreError};

/// A row that was moved from *ready* to *running*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimed {
    pub run: RunId,
    pub at: AttemptKey,
    /// Its position in the queue: the column `turn`.
    pub position: i64,
}

/// The facts of a run from its row in this table. Each statement has a type of its own for its rows, so this is a macro.
macro_rules! facts_of {
    ($row:expr, $table:expr) => {
        RunFacts {
            id: RunId($row.id),
            group_id: $row.group_id,
            revision_id: $row.revision_id,
            resolution_id: $row.resolution_id,
            trigger: StoreError::known(Trigger::from_number, $row.trigger, ($table, "trigger"), $row.id)?,
            priority: $row.priority,
            logical_time: $row.logical_time,
            interval: ($row.interval_start, $row.interval_end),
            params: $row.params,
            task_params: $row.task_params,
            key: $row.key,
            created_at: $row.created_at,
            deadline_at: $row.deadline_at,
            has_parent: $row.parent_run.is_some(),
            source: $row.source,
            callback: $row.callback,
        }
    };
}
pub(super) use facts_of;

/// The facts of a run, which never change. A node keeps them for every run that it works on: only what attempts need of
/// its terms, and whether it has a callback.
#[derive(Clone, Debug)]
pub struct RunFacts {
    pub id: RunId,
    pub group_id: i64,
    pub revision_id: i64,
    /// The script versions; `None`: not resolved yet.
    pub resolution_id: Option<i64>,
    /// Why it was created.
    pub trigger: Trigger,
    /// Its priority; higher ones go first.
    pub priority: i16,
    /// What time it is about.
    pub logical_time: Time,
    /// From the previous instant to this one.
    pub interval: (Time, Time),
    /// A JSON object as text.
    pub params: String,
    /// JSON object of objects.
    pub task_params: Option<String>,
    /// The key that the caller gave.
    pub key: Option<String>,
    /// When it was created.
    pub created_at: Time,
    /// When it must have ended.
    pub deadline_at: Option<Time>,
    /// Whether it is a sub-run.
    pub has_parent: bool,
    /// The backfill or run that created it.
    pub source: Option<Uuid>,
    /// Whether it has a callback.
    pub callback: bool,
}

impl RunFacts {
    /// The facts about a run that is about to be created.
    pub fn of(run: &NewRun) -> Self {
        let pinned = (run.group_id, run.revision_id, run.resolution_id);
        let times = (run.created_at, run.deadline_at);
        Self::of_terms(&run.terms, run.id, pinned, times, run.parent.is_some())
    }

    /// The facts about a run whose row has been read.
    pub fn of_row(row: &RunRow) -> Self {
        let pinned = (row.group_id, row.revision_id, row.resolution_id);
        let times = (row.created_at, row.deadline_at);
        Self::of_terms(&row.terms, RunId(row.id), pinned, times, row.parent_run.is_some())
    }

    fn of_terms(
        terms: &RunTerms,
        id: RunId,
        (group_id, revision_id, resolution_id): (i64, i64, Option<i64>),
        (created_at, deadline_at): (Time, Option<Time>),
        has_parent: bool,
    ) -> Self {
        Self {
            id,
            group_id,
            revision_id,
            resolution_id,
            trigger: terms.trigger,
            priority: terms.priority,
            logical_time: terms.logical_time,
            interval: terms.interval,
            params: terms.params.clone(),
            task_params: terms.task_params.clone(),
            key: terms.key.clone(),
            created_at,
            deadline_at,
            has_parent,
            source: terms.source,
            callback: terms.callback.is_some(),
        }
    }
}

impl Store {
    /// Moves rows from *ready* to *running*, as many as the node can take; see `sql/claim.sql`.
    pub async fn claim(&self, lease: i64, room: Room, clock: &dyn Clock) -> Result<Vec<Claimed>, StoreError> {
        let limit = room.claimable() as i64;
        let mut connection = self.pool.acquire().await?;
        let rows = sqlx::query_file!("src/sql/claim.sql", lease, limit, clock.now())
            .fetch_all(&mut *connection)
            .await?;
        drop(connection);
        Ok(rows
            .into_iter()
            .map(|row| Claimed {
                run: RunId(row.run),
                at: AttemptKey::from_numbers(row.task, row.item, row.attempt),
                position: row.turn,
            })
            .collect())
    }

    /// The position from which a starting node counts: how far nodes have come, as far as rows tell. Claims have come to the
    /// first row of *ready*. When the first waiting row of a run got its position, they had come to the one before. So rows that
    /// wait for slots are not overtaken by what becomes ready later, even if nothing else is left of what went before them.
    pub async fn first_position(&self) -> Result<i64, StoreError> {
        let position = sqlx::query_scalar!(
            "SELECT greatest(
                 (SELECT max(claimed_to) FROM heddle.nodes),
                 (SELECT min(turn) FROM heddle.ready),
                 (SELECT max(first) FROM (SELECT min(turn) AS first FROM heddle.ready_pooled GROUP BY run) AS runs))"
        )
        .fetch_one(&self.pool)
        .await?;
        Ok(position.unwrap_or(0))
    }

    /// The facts of live runs; ended ones are left out.
    pub async fn run_facts(&self, runs: &[RunId]) -> Result<Vec<RunFacts>, StoreError> {
        let ids: Vec<Uuid> = runs.iter().map(|run| run.0).collect();
        let rows = sqlx::query!(
            "SELECT id, group_id, revision_id, resolution_id, trigger, priority, logical_time, interval_start,
                    interval_end, params, task_params, key, created_at, deadline_at, parent_run, source,
                    callback IS NOT NULL AS \"callback!\"
               FROM heddle.runs_live WHERE id = ANY ($1)",
            &ids
        )
        .fetch_all(&self.pool)
        .await?;
        rows.into_iter().map(|row| Ok(facts_of!(row, "runs_live"))).collect()
    }
}
