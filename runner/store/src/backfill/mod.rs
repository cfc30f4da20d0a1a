//! Backfills: the object, and the turns in which any node moves it on.
//!
//! # The story
//!
//! A backfill belongs to nobody. Whenever one of its runs ends, the node that recorded the end takes a *turn*: it locks
//! the backfill's row (skipping it if another node is at it; that one, or the next look, sees the end as well), counts
//! its live runs, reckons the next instants from the row's `position`, sees which of them have runs already, registers
//! the rest in *run_instants*, creates their runs and moves the position: all in one transaction. A node that dies in
//! the middle leaves nothing behind but the row as it was, and the next node's turn is the same turn again.
//!
//! Where one run follows the other (`max_active` 1), what a turn costs beside the run itself is round trips. A node that
//! knows from its last turn which instants come next and that nothing stands there takes a [step](Store::step_backfill):
//! the same turn as one statement, which does nothing unless all is as the node believes.
//!
//! # Invariants
//!
//! * Its live runs are counted, and new ones made, under its row's lock: never more than `max_active` at once.
//! * An instant's row in *run_instants* is taken with the run, by whoever comes first: a schedule and a backfill, or two
//!   backfills, never make two runs for it. A row is taken over only if it still names the run that was seen.
//! * How its runs stand is counted from the runs.

use std::collections::BTreeMap;

use heddle_domain::Time;
use heddle_domain::backfill::OnExisting;
use heddle_domain::id::RunId;
use heddle_domain::state::RunState;
use serde_json::Value;
use uuid::Uuid;

use crate::change::{By, Noun, Page};
use crate::database::PgSession;
use crate::live::{Created, NewRun, create_in};
use crate::transaction::Open;
use crate::transaction::transaction;
use crate::{Store, StoreError, audit};

/// How a backfill stands; `cancelling` says that its active runs are yet to be cancelled.
pub const CANCELLING: i16 = 6;

/// A backfill.
#[derive(Clone, Debug, PartialEq)]
pub struct BackfillRow {
    /// Its id: a UUIDv7 of its creation.
    pub id: Uuid,
    /// Of which group.
    pub group_id: i64,
    /// The group's name.
    pub group_name: String,
    /// Whether the group has been deleted.
    pub group_deleted: bool,
    /// The revision whose schedules tell its instants.
    pub calendar_revision_id: i64,
    /// A run state's number (1 to 5), or [`CANCELLING`].
    pub state: i16,
    /// The first instant, included.
    pub from_at: Time,
    /// The last, included; none: up to now.
    pub to_at: Option<Time>,
    /// Between instants; none: by schedules.
    pub step_micros: Option<i64>,
    /// Newest first.
    pub descending: bool,
    /// How many of its runs may be active at once.
    pub max_active: i32,
    /// See [`BackfillRow::on_existing`].
    pub on_existing: i16,
    /// Whether dependants follow.
    pub include_downstream: bool,
    /// Whether runs take the script versions of those that they replace.
    pub pinned: bool,
    /// Whether it goes on while the group is disabled.
    pub force: bool,
    /// Of its runs.
    pub priority: i16,
    /// JSON object.
    pub params: String,
    /// The instant that was decided last.
    pub position: Option<Time>,
    /// See the migration.
    pub catching_up: bool,
    /// The upper end at its creation.
    pub started_to: Time,
    /// How many runs were to be made when it was created.
    pub expected: i64,
    /// How many it has made.
    pub made: i64,
    /// How many instants it has left alone.
    pub skipped: i64,
    /// Why it makes no runs although it could.
    pub note: Option<String>,
    /// When it was made.
    pub created_at: Time,
    /// By whom.
    pub created_by: String,
    /// When it ended.
    pub finished_at: Option<Time>,
}

impl BackfillRow {
    /// What becomes of instants that have a run.
    pub fn on_existing(&self) -> Result<OnExisting, StoreError> {
        let place = ("backfills", "on_existing");
        StoreError::known(OnExisting::from_number, self.on_existing, place, self.id)
    }

    /// The word of its state.
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

/// A backfill to be made.
#[derive(Clone, Debug)]
pub struct NewBackfill {
    /// Its id.
    pub id: Uuid,
    /// Of which group.
    pub group_id: i64,
    /// The revision whose schedules tell its instants.
    pub calendar_revision_id: i64,
    /// The first instant.
    pub from: Time,
    /// The last; none: up to now.
    pub to: Option<Time>,
    /// Between instants.
    pub step_micros: Option<i64>,
    /// Newest first.
    pub descending: bool,
    /// How many of its runs may be active at once.
    pub max_active: i32,
    /// See [`BackfillRow::on_existing`].
    pub on_existing: i16,
    /// Whether dependants follow.
    pub include_downstream: bool,
    /// Whether runs take the script versions of those that they replace.
    pub pinned: bool,
    /// Whether it goes on while the group is disabled.
    pub force: bool,
    /// Of its runs.
    pub priority: i16,
    /// JSON object.
    pub params: String,
    /// The upper end now.
    pub started_to: Time,
    /// How many runs are to be made.
    pub expected: i64,
}

/// What stands at an instant.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// The instant.
    pub at: Time,
    /// The last run that was made for it, with its state and script versions.
    pub last: Option<(RunId, RunState, Option<i64>)>,
    /// The run that it is registered to (which may be gone), and whether the group's overlap left it out.
    pub registered: Option<(Uuid, bool)>,
}

/// What people do to a backfill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackfillAction {
    /// Makes no more runs.
    Pause,
    /// Goes on.
    Resume,
    /// Makes no more runs; its active ones are cancelled.
    Cancel,
}

impl BackfillAction {
    /// The word in the API and in the audit.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Cancel => "cancel",
        }
    }

    /// The state that it leads to from a state; `None`: it does not go with that.
    fn next(self, state: i16) -> Option<i16> {
        match (self, state) {
            (Self::Pause, 1) => Some(2),
            (Self::Resume, 2) => Some(1),
            (Self::Cancel, 1 | 2) => Some(CANCELLING),
            _ => None,
        }
    }
}

/// What came of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackfillChange {
    /// There is no such backfill.
    Missing,
    /// It does not go with the state: this one.
    Refused(&'static str),
    /// Done.
    Done,
}

/// A turn: a backfill's row, locked. Dropped without [`BackfillTurn::commit`] it changes nothing.
pub struct BackfillTurn {
    tx: Open,
    /// The row.
    pub row: BackfillRow,
    /// How many of its own runs are active, if the statement that locked the row could see the last turn.
    active: Option<i64>,
}

/// How far a turn has moved a backfill.
#[derive(Clone, Debug, Default)]
pub struct Moved {
    /// The instant that was decided last.
    pub position: Option<Time>,
    /// See the migration.
    pub catching_up: bool,
    /// Instants left alone in this turn.
    pub skipped: i64,
    /// Why it makes no runs although it could.
    pub note: Option<String>,
    /// How it has ended, if it has.
    pub ended: Option<i16>,
}

/// A backfill, and how many of its own runs are in which state. (Runs of dependants that followed are not counted.)
pub type CountedBackfill = (BackfillRow, BTreeMap<RunState, i64>);

/// Of runs that move from table to table while they are counted none is seen twice, or not at all.
const ONE_LOOK: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

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
    /// Makes a backfill.
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
                sqlx::query!("INSERT INTO heddle.cascades (source) VALUES ($1)", new.id)
                    .execute(&mut *tx)
                    .await?;
            }
            audit::write(
                &mut tx,
                by,
                "create",
                Noun::Backfill,
                &new.id.to_string(),
                None,
                Some(asked),
            )
            .await?;
            tx.commit().await?;
            Ok(())
        })
    }

    /// A backfill and how many of its runs are in which state, as of one moment.
    pub async fn backfill_counted(&self, id: Uuid) -> Result<Option<CountedBackfill>, StoreError> {
        transaction!(self, pool, "backfill_counted", once(ONE_LOOK), |tx| {
            let row = backfill_rows!("WHERE b.id = $1", id).fetch_optional(&mut *tx).await?;
            Ok(counted(&mut tx, row.into_iter().collect()).await?.pop())
        })
    }

    /// Backfills, newest first, behind `cursor`, counted like one.
    pub async fn backfills_counted(
        &self,
        groups: &[String],
        cursor: Option<Uuid>,
        limit: i64,
    ) -> Result<Page<CountedBackfill>, StoreError> {
        transaction!(self, pool, "backfills_counted", once(ONE_LOOK), |tx| {
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

    /// Pauses, resumes or begins to cancel a backfill.
    pub async fn change_backfill(
        &self,
        by: By<'_>,
        id: Uuid,
        action: BackfillAction,
    ) -> Result<BackfillChange, StoreError> {
        transaction!(self, pool, "change_backfill", |tx| {
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
                "UPDATE heddle.backfills SET state = $2, note = NULL WHERE id = $1",
                id,
                next
            )
            .execute(&mut *tx)
            .await?;
            audit::write(
                &mut tx,
                by,
                action.as_str(),
                Noun::Backfill,
                &id.to_string(),
                None,
                None,
            )
            .await?;
            tx.commit().await?;
            Ok(BackfillChange::Done)
        })
    }

    /// Backfills that have something to do, oldest first.
    pub async fn open_backfills(&self, limit: i64) -> Result<Vec<Uuid>, StoreError> {
        Ok(sqlx::query_scalar!(
            "SELECT id FROM heddle.backfills WHERE finished_at IS NULL AND state <> 2 ORDER BY id LIMIT $1",
            limit
        )
        .fetch_all(&self.pool)
        .await?)
    }

    /// Live runs that a backfill has made, or brought along.
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

    /// A cancelled backfill whose runs are all cancelled has ended.
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

    /// What stands at the instants of a group between two: those at which nothing stands are left out.
    pub async fn standings_between(&self, group_id: i64, from: Time, to: Time) -> Result<Vec<Standing>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT coalesce(r.logical_time, i.logical_time) AS "at!", r.id AS "id?", r.state AS "state?",
                      r.resolution_id AS "resolution_id?", i.run AS "registered?", i.skipped AS "skipped?"
                 FROM (SELECT DISTINCT ON (logical_time) logical_time, id, state, resolution_id
                         FROM (SELECT logical_time, id, state, resolution_id FROM heddle.runs_live
                                WHERE group_id = $1 AND logical_time BETWEEN $2 AND $3
                                  AND logical_time <> created_at AND trigger <> 4
                               UNION ALL
                               SELECT logical_time, id, state, resolution_id FROM heddle.runs_done
                                WHERE group_id = $1 AND logical_time BETWEEN $2 AND $3
                                  AND logical_time <> created_at AND trigger <> 4) AS runs
                        ORDER BY logical_time, id DESC) AS r
                 FULL JOIN (SELECT logical_time, run, skipped FROM heddle.run_instants
                             WHERE group_id = $1 AND logical_time BETWEEN $2 AND $3) AS i
                   ON i.logical_time = r.logical_time"#,
            group_id,
            from,
            to
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| {
                standing(
                    row.at,
                    row.id,
                    row.state,
                    row.resolution_id,
                    row.registered,
                    row.skipped,
                )
            })
            .collect())
    }

    /// Takes a backfill's turn; `None` if another node has it, or there is nothing to do.
    pub async fn backfill_turn(&self, id: Uuid) -> Result<Option<BackfillTurn>, StoreError> {
        let mut tx = self.open("backfill_turn").await?;
        // The row is read as it is once it is locked; what is counted beside it, as it was when the statement began. A
        // turn that ended in between has changed the row, which `seen` then does not know.
        let found = sqlx::query!(
            r#"SELECT b.id, b.group_id, g.name AS group_name, g.deleted_at IS NOT NULL AS "group_deleted!",
                      b.calendar_revision_id, b.state, b.from_at, b.to_at, b.step_micros, b.descending, b.max_active,
                      b.on_existing, b.include_downstream, b.pinned, b.force, b.priority, b.params, b.position,
                      b.catching_up, b.started_to, b.expected, b.made, b.skipped, b.note, b.created_at, b.created_by,
                      b.finished_at,
                      (SELECT s.made FROM heddle.backfills s WHERE s.id = $1) AS "seen!",
                      (SELECT count(*) FROM heddle.runs_live l
                        WHERE l.source = $1 AND l.group_id = b.group_id) AS "active!"
                 FROM heddle.backfills b JOIN heddle.groups g ON g.id = b.group_id
                WHERE b.id = $1 AND b.finished_at IS NULL AND b.state <> 2 FOR NO KEY UPDATE OF b SKIP LOCKED"#,
            id
        )
        .fetch_optional(&mut *tx)
        .await?;
        Ok(found.map(|found| BackfillTurn {
            tx,
            active: (found.seen == found.made).then_some(found.active),
            row: BackfillRow {
                id: found.id,
                group_id: found.group_id,
                group_name: found.group_name,
                group_deleted: found.group_deleted,
                calendar_revision_id: found.calendar_revision_id,
                state: found.state,
                from_at: found.from_at,
                to_at: found.to_at,
                step_micros: found.step_micros,
                descending: found.descending,
                max_active: found.max_active,
                on_existing: found.on_existing,
                include_downstream: found.include_downstream,
                pinned: found.pinned,
                force: found.force,
                priority: found.priority,
                params: found.params,
                position: found.position,
                catching_up: found.catching_up,
                started_to: found.started_to,
                expected: found.expected,
                made: found.made,
                skipped: found.skipped,
                note: found.note,
                created_at: found.created_at,
                created_by: found.created_by,
                finished_at: found.finished_at,
            },
        }))
    }
}

impl Store {
    /// A turn in one statement; see `sql/step_backfill.sql`. `row` is how the last turn left the backfill, `run` the
    /// one for the next instant, [plain](NewRun::is_plain). `None`: something is not as believed, and nothing was done;
    /// else whether what was meant for this node came to it.
    pub async fn step_backfill(
        &self,
        row: &BackfillRow,
        run: &NewRun,
        lease: i64,
        now: Time,
    ) -> Result<Option<bool>, StoreError> {
        let tasks: Vec<i16> = run.ready.iter().map(|row| row.at.key.task as i16).collect();
        let items: Vec<i32> = run.ready.iter().map(|row| row.at.key.item_number()).collect();
        let attempts: Vec<i32> = run.ready.iter().map(|row| row.at.attempt as i32).collect();
        let turns: Vec<i64> = run.ready.iter().map(|row| row.turn).collect();
        let handed: Vec<bool> = run.ready.iter().map(|row| row.is_handed()).collect();
        Ok(sqlx::query_file_scalar!(
            "src/sql/step_backfill.sql",
            row.id,
            row.made,
            row.position,
            row.catching_up,
            row.group_id,
            run.logical_time,
            run.id.0,
            run.revision_id,
            run.resolution_id,
            run.trigger.number(),
            run.priority,
            run.interval.0,
            run.interval.1,
            run.params,
            run.labels,
            now,
            run.progress,
            &tasks,
            &items,
            &attempts,
            &turns,
            &handed,
            lease
        )
        .fetch_optional(&self.pool)
        .await?)
    }
}

fn standing(
    at: Time,
    run: Option<Uuid>,
    state: Option<i16>,
    resolution: Option<i64>,
    registered: Option<Uuid>,
    skipped: Option<bool>,
) -> Standing {
    let registered = registered.map(|run| (run, skipped.unwrap_or(false)));
    let last = run.map(|run| {
        (
            RunId(run),
            state.and_then(RunState::from_number).unwrap_or(RunState::Running),
            resolution,
        )
    });
    // What the overlap left out has no run, whatever stands there to say so.
    let last = last.filter(|last| registered != Some((last.0.0, true)));
    Standing { at, last, registered }
}

impl BackfillTurn {
    /// How many of its own runs are active: at least all that the last turn made.
    pub async fn active(&mut self) -> Result<i64, StoreError> {
        if let Some(active) = self.active {
            return Ok(active);
        }
        Ok(sqlx::query_scalar!(
            r#"SELECT count(*) AS "count!" FROM heddle.runs_live WHERE source = $1 AND group_id = $2"#,
            self.row.id,
            self.row.group_id
        )
        .fetch_one(&mut *self.tx)
        .await?)
    }

    /// What stands at these instants, one for each, in their order.
    pub async fn standings(&mut self, instants: &[Time]) -> Result<Vec<Standing>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT w.at AS "at!", r.id AS "id?", r.state AS "state?", r.resolution_id AS "resolution_id?",
                      i.run AS "registered?", i.skipped AS "skipped?"
                 FROM UNNEST($2::timestamptz[]) WITH ORDINALITY AS w (at, place)
                 LEFT JOIN heddle.run_instants i ON i.group_id = $1 AND i.logical_time = w.at
                 LEFT JOIN LATERAL (
                      SELECT id, state, resolution_id
                        FROM (SELECT id, state, resolution_id FROM heddle.runs_live
                               WHERE group_id = $1 AND logical_time = w.at
                                 AND logical_time <> created_at AND trigger <> 4
                              UNION ALL
                              SELECT id, state, resolution_id FROM heddle.runs_done
                               WHERE group_id = $1 AND logical_time = w.at
                                 AND logical_time <> created_at AND trigger <> 4) AS runs
                       ORDER BY id DESC LIMIT 1) AS r ON true
                ORDER BY w.place"#,
            self.row.group_id,
            instants
        )
        .fetch_all(&mut *self.tx)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| {
                standing(
                    row.at,
                    row.id,
                    row.state,
                    row.resolution_id,
                    row.registered,
                    row.skipped,
                )
            })
            .collect())
    }

    /// Registers instants to runs: `(instant, run, the run that it was seen registered to)`. Answers the runs that
    /// got theirs; at the other instants somebody was faster. Writes how far the turn has come, all of `moved` but how
    /// many runs were made, which it counts itself.
    pub async fn register(
        &mut self,
        instants: &[(Time, RunId, Option<Uuid>)],
        moved: &Moved,
    ) -> Result<Vec<RunId>, StoreError> {
        let times: Vec<Time> = instants.iter().map(|one| one.0).collect();
        let runs: Vec<Uuid> = instants.iter().map(|one| one.1.0).collect();
        let seen: Vec<Option<Uuid>> = instants.iter().map(|one| one.2).collect();
        let got = sqlx::query_file_scalar!(
            "src/sql/register_instants.sql",
            self.row.group_id,
            &times,
            &runs,
            &seen as &[Option<Uuid>],
            self.row.id,
            moved.position,
            moved.catching_up,
            moved.skipped
        )
        .fetch_all(&mut *self.tx)
        .await?;
        Ok(got.into_iter().map(RunId).collect())
    }

    /// Ends a turn whose runs are [registered](Self::register) and made.
    pub async fn commit_made(self) -> Result<(), StoreError> {
        self.tx.commit().await?;
        Ok(())
    }

    /// Creates runs.
    pub async fn create(&mut self, runs: &[NewRun], lease: i64, now: Time) -> Result<Vec<Created>, StoreError> {
        create_in(&mut self.tx, &runs.iter().collect::<Vec<_>>(), lease, now).await
    }

    /// How its runs stand.
    pub async fn counts(&mut self) -> Result<BTreeMap<RunState, i64>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT state AS "state!", count(*) AS "count!"
                 FROM (SELECT state FROM heddle.runs_live WHERE source = $1 AND group_id = $2
                       UNION ALL
                       SELECT state FROM heddle.runs_done WHERE source = $1 AND group_id = $2) AS runs
                GROUP BY state"#,
            self.row.id,
            self.row.group_id
        )
        .fetch_all(&mut *self.tx)
        .await?;
        let of = format!("of backfill {}", self.row.id);
        rows.into_iter()
            .map(|row| {
                let state = StoreError::known(RunState::from_number, row.state, ("runs", "state"), &of)?;
                Ok((state, row.count))
            })
            .collect()
    }

    /// Writes how far it has come without making runs, and ends the turn.
    pub async fn commit(mut self, moved: &Moved, now: Time) -> Result<(), StoreError> {
        sqlx::query!(
            "UPDATE heddle.backfills
                SET position = $2, catching_up = $3, skipped = skipped + $4, note = $5, state = coalesce($6, state),
                    finished_at = CASE WHEN $6::smallint IS NOT NULL THEN greatest($7, created_at) END
              WHERE id = $1",
            self.row.id,
            moved.position,
            moved.catching_up,
            moved.skipped,
            moved.note,
            moved.ended,
            now
        )
        .execute(&mut *self.tx)
        .await?;
        self.tx.commit().await?;
        Ok(())
    }
}
