//! The rounds in which nodes advance a backfill.

use std::collections::BTreeMap;

use heddle_domain::id::RunId;
use heddle_domain::state::RunState;
use heddle_domain::{Clock, Time};
use uuid::Uuid;

use super::BackfillRow;
use crate::live::{Created, NewRun, closed_groups, create_in};
use crate::transaction::Open;
use crate::{Store, StoreError};

/// A round: a backfill's row, locked. If it is dropped without [`BackfillRound::commit`], nothing changes.
pub struct BackfillRound {
    pub(super) tx: Open,
    pub row: BackfillRow,
    /// How many of its own runs are active, if the statement that locked the row could see the last round.
    active: Option<i64>,
}

/// How far a round has advanced a backfill.
#[derive(Clone, Debug, Default)]
pub struct Moved {
    /// The instant that was decided last.
    pub position: Option<Time>,
    /// A descending backfill without an end: it has reached `from`, and now handles, in ascending order, what has come
    /// due since.
    pub catching_up: bool,
    /// Instants that this round skipped.
    pub skipped: i64,
    /// Why it creates no runs although there is room for them.
    pub note: Option<String>,
    /// The state in which it has ended, if it has.
    pub ended: Option<i16>,
}

impl Moved {
    pub fn of(row: &BackfillRow) -> Self {
        Self {
            position: row.position,
            catching_up: row.catching_up,
            note: row.note.clone(),
            ..Self::default()
        }
    }
}

impl Store {
    /// Locks a backfill for a round; `None` if another node has it, or there is nothing to do.
    ///
    /// Locking: the backfill's row, skipped if somebody has it; before instants and runs.
    pub async fn backfill_round(&self, id: Uuid) -> Result<Option<BackfillRound>, StoreError> {
        let mut tx = self.open("backfill_turn").await?;
        // The row is read as of its lock; the count is as of the statement's begin. If another round ended in between,
        // the row does not match `seen`, and the count is not used.
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
                WHERE b.id = $1 AND b.finished_at IS NULL AND (b.state <> 2 OR g.deleted_at IS NOT NULL)
                  FOR NO KEY UPDATE OF b SKIP LOCKED"#,
            id
        )
        .fetch_optional(&mut *tx)
        .await?;
        Ok(found.map(|found| BackfillRound {
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

    /// A round in one statement; see `sql/step_backfill.sql`. `row` is the backfill after the last round, `run` the run
    /// for the next instant, [plain](NewRun::is_plain). `None`: something is not as expected, and nothing was done.
    /// Otherwise: whether this node got the attempts that were meant for it, and when the run was created.
    pub async fn step_backfill(
        &self,
        row: &BackfillRow,
        run: &NewRun,
        lease: i64,
    ) -> Result<Option<(bool, Time)>, StoreError> {
        let tasks: Vec<i16> = run.ready.iter().map(|row| row.at.key.task as i16).collect();
        let items: Vec<i32> = run.ready.iter().map(|row| row.at.key.item_number()).collect();
        let attempts: Vec<i32> = run.ready.iter().map(|row| row.at.attempt as i32).collect();
        let positions: Vec<i64> = run.ready.iter().map(|row| row.position).collect();
        let handed: Vec<bool> = run.ready.iter().map(|row| row.is_handed()).collect();
        let made = sqlx::query_file!(
            "src/sql/step_backfill.sql",
            row.id,
            row.made,
            row.position,
            row.catching_up,
            row.group_id,
            run.terms.logical_time,
            run.id.0,
            run.revision_id,
            run.resolution_id,
            run.terms.trigger.number(),
            run.terms.priority,
            run.terms.interval.0,
            run.terms.interval.1,
            run.terms.params,
            run.terms.labels,
            run.created_at,
            run.progress,
            &tasks,
            &items,
            &attempts,
            &positions,
            &handed,
            lease,
            row.force
        )
        .fetch_optional(&self.pool)
        .await?;
        Ok(made.map(|made| (made.fit, made.at)))
    }
}

impl BackfillRound {
    /// How many of its own runs are active. All runs of the last round are counted.
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

    /// Whether the group takes no runs of this backfill: it has been deleted, or it is disabled and the backfill not forced.
    /// Otherwise, it takes them until the end of the round: whoever deletes or stops it waits, and then finds the runs that
    /// the round has created.
    ///
    /// Locking: the group (advisory, shared), after the backfill's row, before instants and runs (`heddle.closed_groups`).
    pub async fn is_closed(&mut self) -> Result<bool, StoreError> {
        let closed = closed_groups(&mut self.tx, &[self.row.group_id], None).await?;
        Ok(closed.values().any(|deleted| *deleted || !self.row.force))
    }

    /// Registers instants for runs: `(instant, run, the run that was registered when it was read)`. Returns the runs
    /// that are registered now; another transaction has registered runs for the other instants. Writes the progress of
    /// the round: all of `moved`, and the number of created runs, which it counts itself.
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

    /// Ends a round whose runs are [registered](Self::register) and created.
    pub async fn commit_made(self) -> Result<(), StoreError> {
        self.tx.commit().await?;
        Ok(())
    }

    pub async fn create(&mut self, runs: &[NewRun], lease: i64, clock: &dyn Clock) -> Result<Vec<Created>, StoreError> {
        create_in(&mut self.tx, &runs.iter().collect::<Vec<_>>(), lease, clock).await
    }

    /// The numbers of its runs by state.
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

    /// Writes the progress of the round, without new runs, and ends it.
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
