//! Records outcomes.

use std::collections::HashMap;
use std::sync::Arc;

use heddle_domain::id::RunId;
use heddle_domain::run::AttemptKey;
use heddle_domain::state::RunState;
use heddle_domain::{Clock, Time};
use uuid::Uuid;

use super::keys::Keys;
use super::{AttemptRow, LogRow};
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
                let begun = true;
                self.runs.insert(run, LockedRun { state, progress, begun });
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

/// A run of one task run whose outcome ends it; see `sql/complete_single_task.sql`.
#[derive(Clone, Debug)]
pub struct SingleTaskEnd {
    /// The attempt; `started_at` is not used.
    pub attempt: AttemptRow,
    /// The final state of the run.
    pub state: RunState,
    /// Its progress as bytes.
    pub progress: Vec<u8>,
    pub error: Option<String>,
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

    /// Ends runs of one task run, under this node's lease; returns which of them it has ended, and whether a run
    /// succeeded whose group others follow. `lines` are their log lines.
    pub async fn complete_single_task(
        &self,
        rows: &[&SingleTaskEnd],
        lines: &[LogRow],
        lease: i64,
        node: Uuid,
    ) -> Result<(Vec<RunId>, bool), StoreError> {
        let owned = sqlx::query_file!(
            "src/sql/complete_single_task.sql",
            &column(rows, |row| row.attempt.run.0),
            &column(rows, |row| row.attempt.at.attempt as i32),
            &column(rows, |row| row.state.number()),
            &column(rows, |row| row.progress.as_slice()) as &[&[u8]],
            &column(rows, |row| row.error.as_deref()) as &[Option<&str>],
            &column(rows, |row| row.attempt.state.number()),
            &column(rows, |row| row.attempt.skipped),
            &column(rows, |row| row.attempt.finished_at),
            &column(rows, |row| row.attempt.output.as_deref()) as &[Option<&str>],
            &column(rows, |row| row.attempt.error.as_ref().map(|error| error.0.number())) as &[Option<i16>],
            &column(rows, |row| row.attempt.error.as_ref().map(|error| error.1.as_str())) as &[Option<&str>],
            &column(rows, |row| row
                .attempt
                .error
                .as_ref()
                .and_then(|error| error.2.as_deref())) as &[Option<&str>],
            &column(rows, |row| row.attempt.memory_bytes) as &[Option<i64>],
            &column(rows, |row| row.attempt.cpu_micros) as &[Option<i64>],
            lease,
            node,
            &column(lines, |line| line.run.0),
            &column(lines, |line| line.at.attempt as i32),
            &column(lines, |line| line.line),
            &column(lines, |line| line.time),
            &column(lines, |line| line.level),
            &column(lines, |line| line.message.as_str()) as &[&str],
            &column(lines, |line| line.fields.as_deref()) as &[Option<&str>]
        )
        .fetch_all(&self.pool)
        .await?;
        let followed = owned.iter().any(|row| row.followed);
        Ok((owned.into_iter().map(|row| RunId(row.run)).collect(), followed))
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
            r#"SELECT id, state, progress, started_at IS NOT NULL AS "begun!"
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

#[cfg(test)]
mod tests {
    //! Two statements end runs: one for all runs, and one for runs with a single task run. Both must write the same columns
    //! and have the same effects. If one of them lacks a column, the runs that it ends lack it, too. In the same way, two
    //! statements create runs, and a third one makes an ended run live again.

    const GENERAL: &str = include_str!("../../sql/finish_runs.sql");
    const SINGLE_TASK: &str = include_str!("../../sql/complete_single_task.sql");
    const CREATE: &str = include_str!("../../sql/create_runs.sql");
    const STEP: &str = include_str!("../../sql/step_backfill.sql");
    const REOPEN: &str = include_str!("control.rs");
    const MISSED: &str = include_str!("../../schedule/mod.rs");

    /// The part of a statement from here on.
    fn from<'s>(statement: &'s str, mark: &str) -> &'s str {
        &statement[statement.find(mark).expect("a part of this name")..]
    }

    /// The parts of a statement between these two.
    fn between<'s>(statement: &'s str, begin: &str, end: &str) -> Vec<&'s str> {
        let part = from(statement, begin);
        let part = &part[..part.find(end).expect("an end of the part")];
        part.split_whitespace().collect()
    }

    #[test]
    fn no_run_ends_before_it_began() {
        // Its row, its event, and the delays that count from its end have one instant, whatever the clocks say.
        for (statement, ended) in [(GENERAL, "$5"), (SINGLE_TASK, "f.ended_at")] {
            let gone = between(statement, "gone AS (", "\n)").join(" ");
            let dated = format!("greatest({ended}, l.created_at, l.started_at, l.reopened_at) AS ended_at");
            assert!(gone.contains(&dated), "{gone}");
            let rest = from(statement, "gone AS (")
                .split_once("\n)")
                .expect("what comes after")
                .1;
            assert!(!rest.contains("finished_at +") && !rest.contains("$5"), "{rest}");
            let event = between(statement, "INSERT INTO heddle.events", "\n)").join(" ");
            assert!(
                event.contains("max(x.ended_at)") && event.contains("'at', heddle.moment(x.ended_at)"),
                "{event}"
            );
        }
    }

    #[test]
    fn runs_in_general_end_as_those_of_one_task() {
        // Every column of a run's row goes into history; `skipped` is for runs that never began.
        let columns = |statement| between(statement, "INSERT INTO heddle.runs_done", "\n    SELECT").join(" ");
        assert_eq!(columns(GENERAL).replace(", skipped)", ")"), columns(SINGLE_TASK));
        let values = |statement| between(statement, "    SELECT id, group_id", "ended_at,").join(" ");
        assert_eq!(values(GENERAL), values(SINGLE_TASK));
        // The events for followers, and the delays that are counted from the end, have the instant of the run's row.
        for begin in ["followed AS (", "awaiting AS MATERIALIZED (", "counted AS ("] {
            assert_eq!(between(GENERAL, begin, "\n)"), between(SINGLE_TASK, begin, "\n)"));
        }
        // The statement for ends that were missed counts a delay by the same rule.
        let due = |statement, end| {
            let rule = between(statement, "WHEN s.live AND greatest(", "END").join(" ");
            assert!(rule.contains(end), "{rule}");
            rule.replace(end, "END OF THE RUN")
        };
        assert_eq!(due(GENERAL, "a.ended_at"), due(MISSED, "e.at"));
    }

    /// The columns of a run's row that a statement writes.
    fn columns(statement: &str, table: &str) -> String {
        let columns = between(statement, &format!("INSERT INTO heddle.{table} ("), ")").join(" ");
        columns.split_once('(').expect("a list").1.to_owned()
    }

    #[test]
    fn who_comes_back_has_all_that_went() {
        let made = columns(CREATE, "runs_live");
        let live = made.replace(" waiting_for,", " reopened_at,");
        assert_ne!(live, made, "what waits");
        assert_eq!(
            columns(REOPEN, "runs_live"),
            live,
            "it does not wait, and is dated when it came back"
        );
        assert_eq!(
            columns(GENERAL, "runs_done"),
            format!("{live}, finished_at, error, skipped")
        );
    }

    #[test]
    fn the_feed_tells_the_same_of_runs_whoever_writes_it() {
        let event_of = |statement| {
            let insert = from(statement, "INSERT INTO heddle.events");
            between(insert, "jsonb_agg(jsonb_build_object(", "\n      FROM").join(" ")
        };
        // Only the general statement reports why a run never began.
        let general = event_of(GENERAL);
        let (general, skipped) = general.split_once(" || CASE WHEN x.skipped").expect("an addition");
        assert!(skipped.contains("'skipped'"), "{skipped}");
        let single = event_of(SINGLE_TASK).replace("run_error", "end_error");
        assert_eq!(format!("{general})"), single);
        assert_eq!(event_of(CREATE), event_of(STEP));
        let common = event_of(CREATE);
        let common = common.trim_end_matches(')');
        assert!(
            single.starts_with(common),
            "an end says of a run what its beginning said"
        );
    }
}
