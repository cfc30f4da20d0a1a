//! Records outcomes of attempts: the transaction, and the locks that it takes first.

use std::collections::HashMap;
use std::sync::Arc;

use heddle_domain::id::RunId;
use heddle_domain::run::AttemptKey;
use heddle_domain::state::RunState;
use heddle_domain::{Clock, Time};
use uuid::Uuid;

use super::keys::Keys;
use crate::database::column;
use crate::transaction::Open;
use crate::{Store, StoreError};

/// An attempt that ended, as its holder knows it.
#[derive(Clone, Copy, Debug)]
pub struct EndedAttempt {
    pub run: RunId,
    pub at: AttemptKey,
    /// The lease under which it was held.
    pub lease: i64,
}

#[derive(Clone, Debug)]
pub struct LockedRun {
    /// Waiting, running or paused.
    pub state: RunState,
    /// Its progress as bytes.
    pub progress: Vec<u8>,
    /// Whether it has begun at some time.
    pub begun: bool,
    /// Whether it waits, for upstreams or its turn, paused or not.
    pub waits: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Locked {
    /// The runs that are live.
    pub runs: HashMap<RunId, LockedRun>,
    /// The attempts that the caller may end, with the time at which they began. It must not end any others.
    pub owned: HashMap<(RunId, AttemptKey), Time>,
    /// The workers that had claimed attempts, for those that were claimed.
    pub workers: HashMap<(RunId, AttemptKey), String>,
}

impl Locked {
    /// Adds a row of a locking statement: a run, or an attempt that was taken.
    pub(super) fn note(
        &mut self,
        run: RunId,
        (state, progress): (Option<i16>, Option<Vec<u8>>),
        (task, item, attempt): (Option<i16>, Option<i32>, Option<i32>),
        started_at: Option<Time>,
    ) -> Result<(), StoreError> {
        match (state, progress, task, item, attempt, started_at) {
            (Some(state), Some(progress), ..) => {
                let state = state_of(run, state)?;
                // It has attempts.
                let (begun, waits) = (true, false);
                let locked = LockedRun {
                    state,
                    progress,
                    begun,
                    waits,
                };
                self.runs.insert(run, locked);
            }
            (_, _, Some(task), Some(item), Some(attempt), Some(started_at)) => {
                let at = AttemptKey::from_numbers(task, item, attempt);
                self.owned.insert((run, at), started_at);
            }
            _ => {}
        }
        Ok(())
    }
}

/// A transaction that records outcomes. If it is dropped without [`Completion::commit`], nothing changes.
///
/// All that it writes is dated after the locks for which it has waited: by [`Completion::now`], which is read again
/// after each lock. An earlier time would be before the end of the run for whose lock it waited, and a run that
/// replaces another would have begun before that one ended.
pub struct Completion {
    pub(super) tx: Open,
    pub(super) lease: i64,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) now: Time,
}

impl Store {
    /// Begins to record outcomes, by this clock, in a transaction of this name.
    pub async fn completion(
        &self,
        name: &'static str,
        lease: i64,
        clock: Arc<dyn Clock>,
    ) -> Result<Completion, StoreError> {
        let tx = self.open(name).await?;
        let now = clock.now();
        Ok(Completion { tx, lease, clock, now })
    }
}

/// The state of a live run.
pub(super) fn state_of(run: RunId, state: i16) -> Result<RunState, StoreError> {
    StoreError::known(RunState::from_number, state, ("runs_live", "state"), run)
}

impl Completion {
    /// Locks the runs of attempts that ended, and takes the attempts; see `sql/lock_ended.sql`.
    pub async fn lock(&mut self, ended: &[EndedAttempt]) -> Result<Locked, StoreError> {
        let by = Keys::of(ended, |ended| (ended.run, ended.at));
        let leases = column(ended, |ended| ended.lease);
        let rows = sqlx::query_file!(
            "src/sql/lock_ended.sql",
            &by.runs,
            &by.tasks,
            &by.items,
            &by.attempts,
            &leases
        )
        .fetch_all(&mut *self.tx)
        .await?;
        let mut locked = Locked::default();
        for row in rows {
            let at = (row.task, row.item, row.attempt);
            locked.note(RunId(row.run), (row.state, row.progress), at, row.started_at)?;
        }
        self.dated(locked.owned.values().copied());
        Ok(locked)
    }

    /// Locks runs without any attempt.
    ///
    /// Locking: the runs, in id order.
    pub async fn lock_runs(&mut self, runs: &[RunId]) -> Result<HashMap<RunId, LockedRun>, StoreError> {
        let ids: Vec<Uuid> = runs.iter().map(|run| run.0).collect();
        let rows = sqlx::query!(
            r#"SELECT id, state, progress, started_at IS NOT NULL AS "begun!", waiting_for IS NOT NULL AS "waits!"
               FROM heddle.runs_live WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE"#,
            &ids
        )
        .fetch_all(&mut *self.tx)
        .await?;
        let mut locked = HashMap::with_capacity(rows.len());
        for row in rows {
            let state = state_of(RunId(row.id), row.state)?;
            locked.insert(
                RunId(row.id),
                LockedRun {
                    state,
                    progress: row.progress,
                    begun: row.begun,
                    waits: row.waits,
                },
            );
        }
        self.dated([]);
        Ok(locked)
    }

    /// The instant of what is written from now on.
    pub fn now(&self) -> Time {
        self.now
    }

    /// To be called after waiting for locks: reads the time again, which is never before `begun`. (Other nodes, or the
    /// database, may have dated these; an end must not be before its begin.)
    pub(super) fn dated(&mut self, begun: impl IntoIterator<Item = Time>) {
        self.now = begun.into_iter().fold(self.now.max(self.clock.now()), Time::max);
    }

    /// The connection, for statements of other files of this crate.
    pub(crate) fn connection(&mut self) -> &mut crate::database::PgSession {
        &mut self.tx
    }

    /// Commits what was written.
    pub async fn commit(self) -> Result<(), StoreError> {
        Ok(self.tx.commit().await?)
    }
}
