//! Timers: what is due later.
//!
//! A timer is a wake-up. Whether there is something to do when it comes is decided under its run's lock, from the run's
//! progress: a retry whose task has been tried by hand meanwhile, or a timer of a run that has ended, does nothing.
//!
//! # Order of locks
//!
//! Everybody else locks a run and then comes to its timers. The inbox comes from the other side: it takes what is due, and
//! then locks the runs. If one waited for a timer there, Postgres would have to end one of the two as a deadlock. So nobody
//! waits for a timer:
//!
//! * The inbox skips timers that somebody holds.
//! * Who holds a run and drops its timers skips those that the inbox has in its hand. Such a timer is due. It goes with the
//!   inbox's transaction, which finds nothing to do for it. If that transaction is given up, the timer stands there as it was,
//!   and the next look takes it. So no timer stays for ever.
//! * Who sets a timer where the inbox has an old one in its hand gives its transaction up, and repeats it: the locks that the
//!   inbox may be waiting for come free.

use std::collections::HashSet;

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::run::{AttemptKey, TaskKey};
use uuid::Uuid;

use super::complete::Completion;
use super::inbox::{Take, Taken};
use super::{BATCH_MAX, ReadyRow};
use crate::StoreError;
use crate::database::PgSession;

/// A timer that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// A retry.
    Retry(RunId, AttemptKey),
    /// A run's deadline.
    Deadline(RunId),
    /// The timeout of an attempt that a sub-run holds.
    Timeout(RunId, AttemptKey),
    /// The `queue_timeout` of an attempt, and when it struck; whether the attempt still waits is to be seen.
    Unclaimed(RunId, AttemptKey, Time),
}

/// What a timer is for; the number in the table.
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

/// Sets timers; each takes the place of an older one of its task run and kind.
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
            // Older ones stand there. The new ones that were put go with them, and are put once more.
            drop_timers(tx, &old).await?;
        }
    }
    Err(StoreError::contended())
}

/// The timers of those rows that are to be claimed within a time from `ready_at` on.
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

/// Deletes the timers of these task runs, but for those that are being taken.
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

/// Deletes all timers of runs that end, but for those that are being taken.
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
    /// Takes timers that are due, by the database's clock.
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

    /// Those of these runs, which are locked, that have a deadline. One that ended and came back while its deadline's timer was
    /// in the caller's hand has none any more: whoever brought it back knows that it has passed.
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
