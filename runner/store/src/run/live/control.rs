//! The statements for controls of runs.

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::run::{AttemptKey, TaskKey};
use heddle_domain::state::{RunState, Skip, TaskState, Trigger};
use uuid::Uuid;

use super::complete::Completion;
use super::refuse::lock_number;
use crate::{Store, StoreError};

/// An attempt that was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted {
    pub run: RunId,
    pub at: AttemptKey,
    pub lease: i64,
    /// When it began, and when it was stopped.
    pub started_at: Time,
    pub finished_at: Time,
    /// The node that held it, if one did.
    pub node: Option<Uuid>,
}

/// A run that is locked for a control.
#[derive(Clone, Debug)]
pub struct LiveRun {
    pub group_id: i64,
    pub revision_id: i64,
    pub state: RunState,
    /// Its priority; higher ones go first.
    pub priority: i16,
    /// Why it was created.
    pub trigger: heddle_domain::state::Trigger,
    /// Its progress as bytes.
    pub progress: Vec<u8>,
    /// Whether it has begun at some time.
    pub begun: bool,
    /// Whether it waits, for upstreams or its turn, paused or not.
    pub waits: bool,
    /// For a run that had ended: the hash by which it was deduped, if it was.
    pub dedupe: Option<Vec<u8>>,
    /// For a run that had ended: its error.
    pub error: Option<String>,
    /// For a run that had ended without having begun: why.
    pub skipped: Option<Skip>,
}

/// The row of a run that is locked for a control, in either table.
struct LockedRow {
    group_id: i64,
    revision_id: i64,
    state: i16,
    priority: i16,
    trigger: i16,
    progress: Vec<u8>,
    begun: bool,
    waits: bool,
    dedupe: Option<Vec<u8>>,
    error: Option<String>,
    skipped: Option<i16>,
}

impl LockedRow {
    fn read(self, run: RunId, table: &'static str) -> Result<LiveRun, StoreError> {
        let known_skip = |skipped| StoreError::known(Skip::from_number, skipped, (table, "skipped"), run);
        Ok(LiveRun {
            group_id: self.group_id,
            revision_id: self.revision_id,
            state: StoreError::known(RunState::from_number, self.state, (table, "state"), run)?,
            priority: self.priority,
            trigger: StoreError::known(Trigger::from_number, self.trigger, (table, "trigger"), run)?,
            progress: self.progress,
            begun: self.begun,
            waits: self.waits,
            dedupe: self.dedupe,
            error: self.error,
            skipped: self.skipped.map(known_skip).transpose()?,
        })
    }
}

/// The state of a task run that an operator sets, and why.
#[derive(Clone, Debug)]
pub struct NewOverride<'a> {
    pub key: TaskKey,
    pub state: TaskState,
    /// The output of the task run from now on, as JSON text.
    pub output: Option<String>,
    pub reason: &'a str,
    pub actor: &'a str,
}

/// How often a run is searched for in both tables before the call fails with a conflict.
const TRIES_MAX: usize = 3;

impl Completion {
    /// Locks one run, whether it is live or has ended. `reopen`: a run that has ended becomes live again.
    /// `None`: there is no such run. [`StoreError::Conflict`]: others end and reopen it faster than it can be locked.
    ///
    /// Locking: the run's row, and nothing before it. A transaction that moves the run to the other table holds the lock
    /// of the row for which this one waits. When it has moved the run, the row is gone, and the run is searched for again.
    pub async fn lock_one(&mut self, run: RunId, reopen: bool) -> Result<Option<LiveRun>, StoreError> {
        for _ in 0..TRIES_MAX {
            let row = sqlx::query_as!(
                LockedRow,
                r#"SELECT group_id, revision_id, state, priority, trigger, progress,
                          started_at IS NOT NULL AS "begun!", waiting_for IS NOT NULL AS "waits!",
                          NULL::bytea AS dedupe, NULL::text AS error, NULL::smallint AS skipped
                   FROM heddle.runs_live WHERE id = $1 FOR NO KEY UPDATE"#,
                run.0
            )
            .fetch_optional(self.connection())
            .await?;
            self.dated([]);
            if let Some(row) = row {
                return row.read(run, "runs_live").map(Some);
            }
            let row = sqlx::query_as!(
                LockedRow,
                r#"SELECT group_id, revision_id, state, priority, trigger, progress,
                          started_at IS NOT NULL AS "begun!", false AS "waits!", dedupe, error, skipped
                   FROM heddle.runs_done WHERE id = $1 FOR UPDATE"#,
                run.0
            )
            .fetch_optional(self.connection())
            .await?;
            self.dated([]);
            if let Some(row) = row {
                if reopen {
                    self.reopen(run).await?;
                }
                return row.read(run, "runs_done").map(Some);
            }
            // It may have moved between the two statements, or during the wait for its lock: try again.
        }
        // One statement that reads both tables cannot miss it.
        let is_there = sqlx::query_scalar!(
            r#"SELECT EXISTS (SELECT FROM heddle.runs_live WHERE id = $1)
                   OR EXISTS (SELECT FROM heddle.runs_done WHERE id = $1) AS "is_there!""#,
            run.0
        )
        .fetch_one(self.connection())
        .await?;
        match is_there {
            true => Err(StoreError::contended()),
            false => Ok(None),
        }
    }

    /// Notes that a reopened run continues, and since when. A run that ends again at once gets the time of that end: it did
    /// no work.
    pub async fn goes_on(&mut self, run: RunId) -> Result<(), StoreError> {
        let now = self.now();
        sqlx::query!("UPDATE heddle.runs_live SET reopened_at = $2 WHERE id = $1", run.0, now)
            .execute(self.connection())
            .await?;
        Ok(())
    }

    /// A reopened run takes its params again, if it was submitted with `dedupe`; or this returns the other unfinished
    /// run of its group that has them.
    ///
    /// Locking: the params' hash, after the run: this transaction has itself reopened the caller's run, so no holder of
    /// such a lock waits for that run. As in the creation of a run, the holder is read under the lock.
    pub async fn take_params_again(
        &mut self,
        run: RunId,
        group_id: i64,
        hash: &[u8],
    ) -> Result<Option<RunId>, StoreError> {
        sqlx::query!("SELECT pg_advisory_xact_lock($1)", lock_number(hash))
            .fetch_one(self.connection())
            .await?;
        let other = sqlx::query_scalar!(
            "SELECT d.run FROM heddle.run_dedupes d
              CROSS JOIN LATERAL (SELECT FROM heddle.runs_live l WHERE l.id = d.run LIMIT 1) l
              WHERE d.group_id = $1 AND d.hash = $2 AND d.run <> $3",
            group_id,
            hash,
            run.0
        )
        .fetch_optional(self.connection())
        .await?;
        if other.is_none() {
            sqlx::query!(
                "INSERT INTO heddle.run_dedupes (group_id, hash, run) VALUES ($1, $2, $3)
                 ON CONFLICT (group_id, hash) DO UPDATE SET run = excluded.run",
                group_id,
                hash,
                run.0
            )
            .execute(self.connection())
            .await?;
        }
        Ok(other.map(RunId))
    }

    /// Notifies all listeners of a channel, with the commit.
    pub async fn notify(&mut self, channel: &str, payload: &str) -> Result<(), StoreError> {
        sqlx::query!("SELECT pg_notify($1, $2)", channel, payload)
            .execute(self.connection())
            .await?;
        Ok(())
    }

    /// Pins a run to other script versions.
    pub async fn set_resolution(&mut self, run: RunId, resolution_id: i64) -> Result<(), StoreError> {
        sqlx::query!(
            "UPDATE heddle.runs_live SET resolution_id = $2 WHERE id = $1",
            run.0,
            resolution_id
        )
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Records that task runs are to run again: an override to `pending`, so that their former output has no effect
    /// until there is a new one. As in [`Completion::insert_override`], it replaces the one before it.
    pub async fn insert_clears(
        &mut self,
        run: RunId,
        keys: &[TaskKey],
        reason: &str,
        actor: &str,
        at: Time,
    ) -> Result<(), StoreError> {
        sqlx::query!(
            "WITH former AS (
                 DELETE FROM heddle.overrides o USING UNNEST($2::smallint[], $3::integer[]) AS c (task, item)
                  WHERE o.run = $1 AND o.task = ANY (ARRAY[c.task]) AND o.item = ANY (ARRAY[c.item]) AND o.state = $5
             )
             INSERT INTO heddle.overrides (run, task, item, at, state, reason, actor, output)
             SELECT $1, task, item, $4, $5, $6, $7, NULL FROM UNNEST($2::smallint[], $3::integer[]) AS c (task, item)",
            run.0,
            &keys.iter().map(|key| key.task as i16).collect::<Vec<_>>(),
            &keys.iter().map(|key| key.item_number()).collect::<Vec<_>>(),
            at,
            TaskState::Pending.number(),
            reason,
            actor
        )
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// The size in bytes of the output of a succeeded task run (`null` without one).
    pub async fn output_bytes(&mut self, run: RunId, key: TaskKey) -> Result<u64, StoreError> {
        let bytes = sqlx::query_scalar!(
            r#"SELECT coalesce(octet_length(output), 4) AS "bytes!" FROM (
                   SELECT finished_at AS at, output FROM heddle.attempts
                    WHERE run = $1 AND task = $2 AND item = $3 AND state = 1
                   UNION ALL
                   SELECT at, output FROM heddle.overrides WHERE run = $1 AND task = $2 AND item = $3 AND state = 5) AS o
                ORDER BY at DESC LIMIT 1"#,
            run.0,
            key.task as i16,
            key.item_number()
        )
        .fetch_optional(self.connection())
        .await?;
        Ok(bytes.unwrap_or(4) as u64)
    }

    /// A run that was paused while it waited waits again: what it waits for is checked once more, because nobody did
    /// meanwhile.
    pub async fn wait_again(&mut self, run: RunId, group_id: i64) -> Result<(), StoreError> {
        sqlx::query!(
            "WITH waiting AS (
                 INSERT INTO heddle.waits (run, group_id) VALUES ($1, $2) ON CONFLICT DO NOTHING
             ),
             arrived AS (
                 INSERT INTO heddle.link_events (kind, group_id, run)
                 SELECT 1, $2, $1 WHERE EXISTS (SELECT FROM heddle.waits w WHERE w.run = $1 AND w.upstreams)
             )
             INSERT INTO heddle.turnstiles (group_id) VALUES ($2)",
            run.0,
            group_id
        )
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Records the state that an operator has set, in place of the last time that somebody set this state. Only the last
    /// override of each state can have an effect, so a task run has at most one for each. The audit has all of them.
    pub async fn insert_override(&mut self, run: RunId, set: &NewOverride<'_>, at: Time) -> Result<(), StoreError> {
        sqlx::query!(
            "WITH former AS (
                 DELETE FROM heddle.overrides WHERE run = $1 AND task = $2 AND item = $3 AND state = $5
             )
             INSERT INTO heddle.overrides (run, task, item, at, state, reason, actor, output)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
            run.0,
            set.key.task as i16,
            set.key.item_number(),
            at,
            set.state.number(),
            set.reason,
            set.actor,
            set.output.as_deref()
        )
        .execute(self.connection())
        .await?;
        Ok(())
    }
}

impl Store {
    /// Sub-runs whose parent's attempt is over, to be cancelled. Up to `limit`.
    pub async fn orphans(&self, limit: i64) -> Result<Vec<RunId>, StoreError> {
        let ids = sqlx::query_scalar!(
            "SELECT c.id FROM heddle.runs_live c
              WHERE c.parent_run IS NOT NULL
                AND NOT EXISTS (SELECT FROM heddle.running r
                                 WHERE r.run = c.parent_run AND r.task = c.parent_task AND r.item = c.parent_item
                                   AND r.attempt = c.parent_attempt OFFSET 0)
              LIMIT $1",
            limit
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(ids.into_iter().map(RunId).collect())
    }

    /// The attempts that the database has under this lease. A node must stop all others.
    pub async fn held(&self, lease: i64) -> Result<Vec<(RunId, AttemptKey)>, StoreError> {
        let rows = sqlx::query!(
            "SELECT run, task, item, attempt FROM heddle.running WHERE lease = $1",
            lease
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| {
                let key = TaskKey::from_numbers(row.task, row.item);
                (
                    RunId(row.run),
                    AttemptKey {
                        key,
                        attempt: row.attempt as u32,
                    },
                )
            })
            .collect())
    }
}
