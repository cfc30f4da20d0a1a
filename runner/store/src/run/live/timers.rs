//! Timers: what is due later.
//!
//! A timer is a wake-up. Whether there is something to do is decided under its run's lock, from the run's progress: if
//! a task has been retried by an operator meanwhile, or the run has ended, the timer has no effect.
//!
//! # Order of locks
//!
//! All other transactions lock a run first and then its timers. The inbox does the opposite: it takes due timers, and
//! then locks the runs. If one of the two waited for a timer, Postgres would have to abort one of them as a deadlock.
//! So nobody waits for a timer:
//!
//! * The inbox skips locked timers.
//! * A transaction that holds a run and deletes its timers skips those that the inbox has locked. Such a timer is due.
//!   It is deleted with the inbox's transaction, which finds nothing to do for it. If that transaction is rolled back,
//!   the timer is unchanged, and the next tick takes it. So no timer stays for ever.
//! * A transaction that sets a timer while the inbox has locked an old one is rolled back and repeated: this releases
//!   the locks for which the inbox may be waiting.

use std::collections::{HashMap, HashSet};

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::run::{AttemptKey, TaskKey};
use uuid::Uuid;

use super::complete::Completion;
use super::inbox::{Take, Taken};
use super::{BATCH_MAX, ReadyRow};
use crate::StoreError;
use crate::database::{PgSession, column};

/// What a due timer calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// The next attempt of a task run that is `retrying`.
    Retry(RunId, AttemptKey),
    /// The instant by which the run must have ended.
    Deadline(RunId),
    /// The timeout of an attempt that a sub-run holds.
    Timeout(RunId, AttemptKey),
    /// The `queue_timeout` of an attempt, and when it passed; the attempt may have been claimed since.
    Unclaimed(RunId, AttemptKey, Time),
}

/// The kind of a timer; the number in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimerKind {
    Retry = 0,
    Timeout = 2,
    Claim = 3,
}

/// A timer to be set.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewTimer {
    pub run: RunId,
    pub at: AttemptKey,
    pub kind: TimerKind,
    pub due: Time,
}

/// Sets timers; each replaces an older one of its task run and kind.
pub(super) async fn put_timers(tx: &mut PgSession, timers: &[NewTimer]) -> Result<(), StoreError> {
    if timers.is_empty() {
        return Ok(());
    }
    let runs: Vec<Uuid> = timers.iter().map(|timer| timer.run.0).collect();
    let tasks: Vec<i16> = timers.iter().map(|timer| timer.at.key.task as i16).collect();
    let items: Vec<i32> = timers.iter().map(|timer| timer.at.key.item_number()).collect();
    let kinds: Vec<i16> = timers.iter().map(|timer| timer.kind as i16).collect();
    let attempts: Vec<i32> = timers.iter().map(|timer| timer.at.attempt as i32).collect();
    let due: Vec<Time> = timers.iter().map(|timer| timer.due).collect();
    let old: Vec<(RunId, TaskKey, TimerKind)> = timers.iter().map(|it| (it.run, it.at.key, it.kind)).collect();
    for is_first in [true, false] {
        let put = sqlx::query_file_scalar!("src/sql/put_timers.sql", &runs, &tasks, &items, &kinds, &attempts, &due)
            .fetch_one(&mut *tx)
            .await?;
        if usize::try_from(put) == Ok(timers.len()) {
            return Ok(());
        }
        if is_first {
            // There are older ones. They are deleted, with the new ones that were inserted, and all new ones are
            // inserted again.
            drop_timers(tx, &old).await?;
        }
    }
    Err(StoreError::contended())
}

/// The timers of those rows that must be claimed within a time from `ready_at` on.
pub(super) fn claim_timers<'a>(
    rows: impl Iterator<Item = (RunId, &'a ReadyRow)>,
    ready_at: Time,
) -> impl Iterator<Item = NewTimer> {
    rows.filter_map(move |(run, row)| {
        Some(NewTimer {
            run,
            at: row.at,
            kind: TimerKind::Claim,
            due: ready_at + row.claim_within?,
        })
    })
}

/// Deletes the timers of these task runs, except those that the inbox is taking.
pub(super) async fn drop_timers(tx: &mut PgSession, timers: &[(RunId, TaskKey, TimerKind)]) -> Result<(), StoreError> {
    if timers.is_empty() {
        return Ok(());
    }
    let runs: Vec<Uuid> = timers.iter().map(|(run, ..)| run.0).collect();
    let tasks: Vec<i16> = timers.iter().map(|(_, key, _)| key.task as i16).collect();
    let items: Vec<i32> = timers.iter().map(|(_, key, _)| key.item_number()).collect();
    let kinds: Vec<i16> = timers.iter().map(|(.., kind)| *kind as i16).collect();
    sqlx::query_file!("src/sql/drop_timers.sql", &runs, &tasks, &items, &kinds)
        .execute(tx)
        .await?;
    Ok(())
}

/// Deletes all timers of runs that end, except those that the inbox is taking.
///
/// Locking: the runs are locked. Timers that are locked are skipped, so nobody is waited for.
pub(super) async fn drop_timers_of(tx: &mut PgSession, runs: &[Uuid]) -> Result<(), StoreError> {
    if runs.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        "DELETE FROM heddle.timers t
          WHERE t.ctid = ANY (ARRAY(SELECT ctid FROM heddle.timers WHERE run = ANY ($1) FOR UPDATE SKIP LOCKED))",
        runs
    )
    .execute(tx)
    .await?;
    Ok(())
}

impl Completion {
    /// Takes due timers, by the database's clock.
    pub async fn take_due(&mut self, take: Take<'_>) -> Result<Vec<Taken<Due>>, StoreError> {
        let (runs, among) = take.parameters();
        let rows = sqlx::query_file!("src/sql/take_timers.sql", BATCH_MAX as i64, &runs, among)
            .fetch_all(self.connection())
            .await?;
        Ok(rows
            .into_iter()
            .map(|row| {
                let at = AttemptKey {
                    key: TaskKey::from_numbers(row.task, row.item),
                    attempt: row.attempt as u32,
                };
                let run = RunId(row.run);
                let due = match row.kind {
                    0 => Ok(Due::Retry(run, at)),
                    1 => Ok(Due::Deadline(run)),
                    2 => Ok(Due::Timeout(run, at)),
                    3 => Ok(Due::Unclaimed(run, at, row.due_at)),
                    kind => Err(StoreError::unreadable("timers", "kind", run, kind)),
                };
                (run, due)
            })
            .collect())
    }

    /// The live sub-runs of these runs, by the attempts that they belong to.
    pub async fn sub_runs_of(&mut self, parents: &[RunId]) -> Result<HashMap<(RunId, AttemptKey), RunId>, StoreError> {
        if parents.is_empty() {
            return Ok(HashMap::new());
        }
        let rows = sqlx::query!(
            r#"SELECT id, parent_run AS "run!", parent_task AS "task!", parent_item AS "item!", parent_attempt AS "attempt!"
                 FROM heddle.runs_live WHERE parent_run = ANY ($1)"#,
            &column(parents, |run| run.0)
        )
        .fetch_all(self.connection())
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| {
                let at = AttemptKey::from_numbers(row.task, row.item, row.attempt);
                ((RunId(row.run), at), RunId(row.id))
            })
            .collect())
    }

    /// Those of these locked runs that have a deadline. A run that ended and was reopened while the caller held its
    /// deadline's timer has none any more: the deadline has passed, and the operator who reopened the run knows that.
    pub async fn with_deadline(&mut self, runs: &[RunId]) -> Result<HashSet<RunId>, StoreError> {
        let ids: Vec<Uuid> = runs.iter().map(|run| run.0).collect();
        Ok(sqlx::query_scalar!(
            "SELECT id FROM heddle.runs_live WHERE id = ANY ($1) AND deadline_at IS NOT NULL",
            &ids
        )
        .fetch_all(self.connection())
        .await?
        .into_iter()
        .map(RunId)
        .collect())
    }
}
