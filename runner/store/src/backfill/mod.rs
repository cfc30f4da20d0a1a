//! Backfills: the object, and the rounds in which any node advances it.
//!
//! # The story
//!
//! A backfill belongs to no node. When one of its runs ends, the node that recorded the end does a *round*. It locks
//! the backfill's row (and skips it if another node has the lock: that node, or the next tick, sees the end as well),
//! counts its live runs, computes the next instants from the row's `position`, checks which of them have runs already,
//! registers the others in *run_instants*, creates their runs and advances the position: all in one transaction. A node
//! that dies in between leaves the row unchanged, and the next node does the same round again.
//!
//! If runs come one at a time (`max_active` 1), most of the cost of a round, besides the run, is round trips. A node
//! that knows from its last round which instants are next, and that they are free, does a [step](Store::step_backfill):
//! the same round as one statement, which does nothing unless all is as the node expects.
//!
//! # Invariants
//!
//! * Its live runs are counted, and new ones created, under the lock of its row: never more than `max_active` at once.
//! * An instant's row in *run_instants* is written together with the run, and only the first writer succeeds: a
//!   schedule and a backfill, or two backfills, never create two runs for it. A row is taken over only if it still
//!   names the run that was read.
//! * The states of its runs are counted from the runs.

mod occupancy;
mod round;

use std::collections::BTreeMap;

use heddle_domain::Time;
use heddle_domain::backfill::OnExisting;
use heddle_domain::id::RunId;
use heddle_domain::state::RunState;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::change::{By, Noun, Page};
use crate::database::PgSession;
use crate::transaction::transaction;
use crate::{Store, StoreError, audit};

pub use occupancy::Occupancy;
pub use round::{BackfillRound, Moved};

/// The state `cancelling`: its active runs are still to be cancelled.
pub const CANCELLING: i16 = 6;

#[derive(Clone, Debug, PartialEq)]
pub struct BackfillRow {
    /// Its id: a UUIDv7 of its creation.
    pub id: Uuid,
    pub group_id: i64,
    pub group_name: String,
    /// Whether the group has been deleted.
    pub group_deleted: bool,
    /// The revision whose schedules define its instants.
    pub calendar_revision_id: i64,
    /// A run state's number (1 to 5), or [`CANCELLING`].
    pub state: i16,
    /// The first instant, inclusive.
    pub from_at: Time,
    /// The last instant, inclusive; `None`: up to now.
    pub to_at: Option<Time>,
    /// Microseconds between instants; `None`: by schedules.
    pub step_micros: Option<i64>,
    /// Whether the newest instant comes first.
    pub descending: bool,
    /// How many of its runs may be active at once.
    pub max_active: i32,
    /// What happens with instants that have a run; see [`BackfillRow::on_existing`].
    pub on_existing: i16,
    pub include_downstream: bool,
    /// Whether runs use the script versions of those that they replace.
    pub pinned: bool,
    /// Whether it continues while the group is disabled.
    pub force: bool,
    /// The priority of its runs.
    pub priority: i16,
    /// A JSON object as text.
    pub params: String,
    /// The instant that was decided last.
    pub position: Option<Time>,
    /// A descending backfill without an end: it has reached `from`, and now handles, in ascending order, what has come
    /// due since.
    pub catching_up: bool,
    /// The upper end at its creation.
    pub started_to: Time,
    /// How many runs were expected when it was created.
    pub expected: i64,
    /// How many runs it has created.
    pub made: i64,
    /// How many instants it has skipped.
    pub skipped: i64,
    /// Why it creates no runs although it could.
    pub note: Option<String>,
    /// When it was created.
    pub created_at: Time,
    pub created_by: String,
    pub finished_at: Option<Time>,
}

impl BackfillRow {
    /// What happens with instants that have a run.
    pub fn on_existing(&self) -> Result<OnExisting, StoreError> {
        let column = ("backfills", "on_existing");
        StoreError::known(OnExisting::from_number, self.on_existing, column, self.id)
    }

    /// The name of its state.
    pub fn state_word(&self) -> Result<&'static str, StoreError> {
        state_word(self.id, self.state)
    }
}

fn state_word(id: Uuid, state: i16) -> Result<&'static str, StoreError> {
    let state = match state {
        CANCELLING => RunState::Cancelled,
        state => StoreError::known(RunState::from_number, state, ("backfills", "state"), id)?,
    };
    Ok(state.as_str())
}

macro_rules! backfill_rows {
    ($tail:literal, $($argument:expr),*) => {
        sqlx::query_as!(
            BackfillRow,
            r#"SELECT b.id, b.group_id, g.name AS group_name, g.deleted_at IS NOT NULL AS "group_deleted!",
                      b.calendar_revision_id, b.state, b.from_at, b.to_at, b.step_micros, b.descending, b.max_active,
                      b.on_existing, b.include_downstream, b.pinned, b.force, b.priority, b.params, b.position,
                      b.catching_up, b.started_to, b.expected, b.made, b.skipped, b.note, b.created_at, b.created_by,
                      b.finished_at
                 FROM heddle.backfills b JOIN heddle.groups g ON g.id = b.group_id "#
                + $tail,
            $($argument),*
        )
    };
}

/// A backfill to be created.
#[derive(Clone, Debug)]
pub struct NewBackfill {
    pub id: Uuid,
    pub group_id: i64,
    /// The revision whose schedules define its instants.
    pub calendar_revision_id: i64,
    pub from: Time,
    /// The last instant; `None`: up to now.
    pub to: Option<Time>,
    pub step_micros: Option<i64>,
    /// Whether the newest instant comes first.
    pub descending: bool,
    /// How many of its runs may be active at once.
    pub max_active: i32,
    /// What happens with instants that have a run; see [`BackfillRow::on_existing`].
    pub on_existing: i16,
    pub include_downstream: bool,
    /// Whether runs use the script versions of those that they replace.
    pub pinned: bool,
    /// Whether it continues while the group is disabled.
    pub force: bool,
    /// The priority of its runs.
    pub priority: i16,
    /// The priority of its dependants' runs, if it was given one.
    pub dependants_priority: Option<i16>,
    /// A JSON object as text.
    pub params: String,
    /// The upper end now.
    pub started_to: Time,
    /// How many runs are expected.
    pub expected: i64,
}

/// The controls of a backfill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackfillAction {
    /// Creates no more runs.
    Pause,
    /// Continues what was paused.
    Resume,
    /// Creates no more runs; its active ones are cancelled.
    Cancel,
}

impl BackfillAction {
    /// The name in the API and in the audit.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Cancel => "cancel",
        }
    }

    /// The state after it in this state; `None`: it is not allowed there.
    fn next(self, state: i16) -> Option<i16> {
        match (self, state) {
            (Self::Pause, 1) => Some(2),
            (Self::Resume, 2) => Some(1),
            (Self::Cancel, 1 | 2) => Some(CANCELLING),
            _ => None,
        }
    }
}

/// The result of a control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackfillChange {
    /// There is no such backfill.
    Missing,
    /// The backfill's state, this one, does not allow it.
    Refused(&'static str),
    Done,
}

/// A backfill, and how many of its own runs are in each state. (Runs of dependants that followed are not counted.)
pub type CountedBackfill = (BackfillRow, BTreeMap<RunState, i64>);

/// Runs may move between tables during the count: one snapshot counts each of them exactly once.
const ONE_SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

async fn counted(connection: &mut PgSession, rows: Vec<BackfillRow>) -> Result<Vec<CountedBackfill>, StoreError> {
    let ids: Vec<Uuid> = rows.iter().map(|row| row.id).collect();
    let groups: Vec<i64> = rows.iter().map(|row| row.group_id).collect();
    let found = sqlx::query!(
        r#"SELECT source AS "source!", state AS "state!", count(*) AS "count!"
             FROM (SELECT b.id AS source, live.state
                     FROM UNNEST($1::uuid[], $2::bigint[]) AS b (id, group_id),
                          LATERAL (SELECT l.state FROM heddle.runs_live l
                                    WHERE l.source = b.id AND l.group_id = b.group_id OFFSET 0) AS live
                   UNION ALL
                   SELECT d.source, d.state FROM heddle.runs_done d
                     JOIN UNNEST($1::uuid[], $2::bigint[]) AS b (id, group_id)
                       ON d.source = b.id AND d.group_id = b.group_id) AS runs
            GROUP BY source, state"#,
        &ids,
        &groups
    )
    .fetch_all(connection)
    .await?;
    let mut counts: BTreeMap<Uuid, BTreeMap<RunState, i64>> = BTreeMap::new();
    for row in found {
        let of = format!("of backfill {}", row.source);
        let state = StoreError::known(RunState::from_number, row.state, ("runs", "state"), of)?;
        *counts.entry(row.source).or_default().entry(state).or_default() += row.count;
    }
    let of = |row: BackfillRow| {
        let counts = counts.remove(&row.id).unwrap_or_default();
        (row, counts)
    };
    Ok(rows.into_iter().map(of).collect())
}

impl Store {
    pub async fn insert_backfill(&self, by: By<'_>, new: &NewBackfill, asked: &Value) -> Result<(), StoreError> {
        transaction!(self, pool, "insert_backfill", |tx| {
            sqlx::query!(
                "INSERT INTO heddle.backfills (id, group_id, calendar_revision_id, state, from_at, to_at, step_micros,
                 descending, max_active, on_existing, include_downstream, pinned, force, priority, params, started_to,
                 expected, created_at, created_by)
             VALUES ($1, $2, $3, 1, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)",
                new.id,
                new.group_id,
                new.calendar_revision_id,
                new.from,
                new.to,
                new.step_micros,
                new.descending,
                new.max_active,
                new.on_existing,
                new.include_downstream,
                new.pinned,
                new.force,
                new.priority,
                new.params,
                new.started_to,
                new.expected,
                by.at,
                by.actor,
            )
            .execute(&mut *tx)
            .await?;
            if new.include_downstream {
                sqlx::query!(
                    "INSERT INTO heddle.cascades (source, priority) VALUES ($1, $2)",
                    new.id,
                    new.dependants_priority
                )
                .execute(&mut *tx)
                .await?;
            }
            let (about, name) = (Noun::Backfill.quiet(), new.id.to_string());
            audit::record(&mut tx, by, "create", about, &name, None, Some(asked)).await?;
            tx.commit().await?;
            Ok(())
        })
    }

    pub async fn backfill(&self, id: Uuid) -> Result<Option<BackfillRow>, StoreError> {
        Ok(backfill_rows!("WHERE b.id = $1", id).fetch_optional(&self.pool).await?)
    }

    /// A backfill and how many of its runs are in each state, as of one moment.
    pub async fn backfill_counted(&self, id: Uuid) -> Result<Option<CountedBackfill>, StoreError> {
        transaction!(self, pool, "backfill_counted", once(ONE_SNAPSHOT), |tx| {
            let row = backfill_rows!("WHERE b.id = $1", id).fetch_optional(&mut *tx).await?;
            Ok(counted(&mut tx, row.into_iter().collect()).await?.pop())
        })
    }

    /// Backfills, newest first, after `cursor`, with the same counts.
    pub async fn backfills_counted(
        &self,
        groups: &[String],
        cursor: Option<Uuid>,
        limit: i64,
    ) -> Result<Page<CountedBackfill>, StoreError> {
        transaction!(self, pool, "backfills_counted", once(ONE_SNAPSHOT), |tx| {
            let rows = backfill_rows!(
                "WHERE (cardinality($1::text[]) = 0 OR g.name = ANY ($1)) AND ($2::uuid IS NULL OR b.id < $2)
             ORDER BY b.id DESC LIMIT $3",
                groups,
                cursor,
                limit + 1
            )
            .fetch_all(&mut *tx)
            .await?;
            let page = Page::of(rows, limit, |row| row.id.to_string());
            Ok(Page {
                items: counted(&mut tx, page.items).await?,
                next: page.next,
            })
        })
    }

    /// Pauses, resumes or begins to cancel a backfill; `note` says why, for people.
    ///
    /// Locking: the backfill's row, and no other. This waits for a round that is under way. No round misses the change:
    /// the next one skips the locked row, or reads it as changed. A cancel takes the backfill (advisory) before, and so
    /// waits for transactions that create runs of its dependants (`take_link_events`): after it, none of them creates any
    /// more, and those that they have created are found.
    pub async fn change_backfill(
        &self,
        by: By<'_>,
        id: Uuid,
        action: BackfillAction,
        note: Option<&str>,
    ) -> Result<BackfillChange, StoreError> {
        transaction!(self, pool, "change_backfill", |tx| {
            if action == BackfillAction::Cancel {
                sqlx::query!(
                    "SELECT pg_advisory_xact_lock(hashtextextended('heddle/backfill/' || $1::uuid::text, 0))",
                    id
                )
                .execute(&mut *tx)
                .await?;
            }
            let state = sqlx::query_scalar!("SELECT state FROM heddle.backfills WHERE id = $1 FOR NO KEY UPDATE", id)
                .fetch_optional(&mut *tx)
                .await?;
            let Some(state) = state else {
                return Ok(BackfillChange::Missing);
            };
            let Some(next) = action.next(state) else {
                return Ok(BackfillChange::Refused(state_word(id, state)?));
            };
            sqlx::query!(
                "UPDATE heddle.backfills SET state = $2, note = $3 WHERE id = $1",
                id,
                next,
                note
            )
            .execute(&mut *tx)
            .await?;
            let (about, name) = (Noun::Backfill.quiet(), id.to_string());
            let (before, after) = (
                json!({"state": state_word(id, state)?}),
                json!({"state": state_word(id, next)?}),
            );
            audit::record(&mut tx, by, action.as_str(), about, &name, Some(&before), Some(&after)).await?;
            tx.commit().await?;
            Ok(BackfillChange::Done)
        })
    }

    /// Backfills that have something to do, oldest first. One that is paused has to be ended when its group was deleted.
    pub async fn open_backfills(&self, limit: i64) -> Result<Vec<Uuid>, StoreError> {
        Ok(sqlx::query_scalar!(
            "SELECT b.id FROM heddle.backfills b
              WHERE b.finished_at IS NULL
                AND (b.state <> 2 OR (SELECT g.deleted_at IS NOT NULL FROM heddle.groups g WHERE g.id = b.group_id))
              ORDER BY b.id LIMIT $1",
            limit
        )
        .fetch_all(&self.pool)
        .await?)
    }

    /// Live runs that a backfill has created, or caused in dependants.
    pub async fn live_runs_of_source(&self, source: Uuid, limit: i64) -> Result<Vec<RunId>, StoreError> {
        let ids = sqlx::query_scalar!(
            "SELECT id FROM heddle.runs_live WHERE source = $1 ORDER BY id LIMIT $2",
            source,
            limit
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(ids.into_iter().map(RunId).collect())
    }

    /// Ends a cancelled backfill whose runs are all cancelled.
    pub async fn end_cancelled_backfill(&self, id: Uuid, at: Time) -> Result<(), StoreError> {
        sqlx::query!(
            "UPDATE heddle.backfills SET state = 5, finished_at = greatest($2, created_at) WHERE id = $1 AND state = $3",
            id,
            at,
            CANCELLING
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }
}
