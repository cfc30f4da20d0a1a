//! The statements for controls of runs.

use std::collections::HashMap;

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::run::{AttemptKey, TaskKey};
use heddle_domain::state::{RunState, Skip, TaskState, Trigger};
use uuid::Uuid;

use super::RunFacts;
use super::claim::facts_of;
use super::complete::{Completion, LockedRun};
use super::refuse::{closed_groups, lock_number};
use crate::database::column;
use crate::dispatch::forgotten::forget_offers;
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
    pub state: RunState,
    /// Its progress as bytes.
    pub progress: Vec<u8>,
    /// Whether it has begun at some time.
    pub begun: bool,
    /// Whether it waits, for upstreams or its turn, paused or not.
    pub waits: bool,
    /// For a run that has ended: the hash by which it was deduped, if it was.
    pub dedupe: Option<Vec<u8>>,
    /// For a run that has ended: its error.
    pub error: Option<String>,
    /// For a run that has ended without having begun: why.
    pub skipped: Option<Skip>,
    /// For a run that has ended: whether its group has been deleted, if that was asked before the run was locked
    /// ([`Completion::hold_groups`]).
    pub group_deleted: bool,
}

impl From<LockedRun> for LiveRun {
    fn from(locked: LockedRun) -> Self {
        Self {
            state: locked.state,
            progress: locked.progress,
            begun: locked.begun,
            waits: locked.waits,
            dedupe: None,
            error: None,
            skipped: None,
            group_deleted: false,
        }
    }
}

/// The row of a run that is locked for a control, in either table.
struct LockedRow {
    state: i16,
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
            state: StoreError::known(RunState::from_number, self.state, (table, "state"), run)?,
            progress: self.progress,
            begun: self.begun,
            waits: self.waits,
            dedupe: self.dedupe,
            error: self.error,
            skipped: self.skipped.map(known_skip).transpose()?,
            group_deleted: false,
        })
    }
}

/// The state of a task run that an operator sets.
#[derive(Clone, Debug)]
pub struct NewOverride {
    pub key: TaskKey,
    /// `pending`: the task run is to run again, so that its former output has no effect until there is a new one.
    pub state: TaskState,
    /// The output of the task run from now on, as JSON text.
    pub output: Option<String>,
}

/// How often a run is searched for in both tables before the call fails with a conflict.
const TRIES_MAX: usize = 3;

impl Completion {
    /// The groups of those of the runs that have ended, and whether each has been deleted. Until the end of this
    /// transaction, none of the others is deleted: whoever deletes one waits, and then counts the runs that go on.
    ///
    /// Locking: the groups (advisory, shared), in the order of their ids, before all runs (`heddle.closed_groups`).
    pub async fn hold_groups(&mut self, runs: &[RunId]) -> Result<HashMap<i64, bool>, StoreError> {
        let groups = sqlx::query_scalar!(
            r#"SELECT DISTINCT group_id AS "group_id!" FROM heddle.runs_done WHERE id = ANY ($1)"#,
            &column(runs, |run| run.0)
        )
        .fetch_all(self.connection())
        .await?;
        if groups.is_empty() {
            return Ok(HashMap::new());
        }
        let closed = closed_groups(self.connection(), &groups, None).await?;
        self.dated([]);
        let deleted = |group: &i64| closed.get(group) == Some(&true);
        Ok(groups.into_iter().map(|group| (group, deleted(&group))).collect())
    }

    /// Locks one run, whether it is live or has ended. `None`: there is no such run. [`StoreError::Conflict`]: others end
    /// and reopen it faster than it can be locked.
    ///
    /// Locking: of a live run its row, and nothing before it. Of a run that has ended its group, and then its row, because
    /// a control may let it go on. A transaction that moves the run to the other table holds the lock of the row for which
    /// this one waits. When it has moved the run, the row is gone, and the run is searched for again.
    pub async fn lock_one(&mut self, run: RunId) -> Result<Option<LiveRun>, StoreError> {
        for _ in 0..TRIES_MAX {
            let row = sqlx::query_as!(
                LockedRow,
                r#"SELECT state, progress, started_at IS NOT NULL AS "begun!", waiting_for IS NOT NULL AS "waits!",
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
            let Some(group_deleted) = self.hold_groups(&[run]).await?.into_values().next() else {
                continue;
            };
            let row = sqlx::query_as!(
                LockedRow,
                r#"SELECT state, progress, started_at IS NOT NULL AS "begun!", false AS "waits!", dedupe, error, skipped
                   FROM heddle.runs_done WHERE id = $1 FOR UPDATE"#,
                run.0
            )
            .fetch_optional(self.connection())
            .await?;
            self.dated([]);
            if let Some(row) = row {
                return row
                    .read(run, "runs_done")
                    .map(|live| Some(LiveRun { group_deleted, ..live }));
            }
            // It may have moved between the statements, or during the wait for its lock: try again.
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

    /// Locks those of the runs that have ended; returns each with its facts, in the order of the ids.
    ///
    /// Locking: the runs' rows, in id order, after all live runs that the transaction locks. If a run is to go on, its
    /// group is held before ([`Completion::hold_groups`]). A run that another transaction reopens during the wait is left
    /// out: it must not be locked now, out of order.
    pub async fn lock_ended(&mut self, runs: &[RunId]) -> Result<Vec<(LiveRun, RunFacts)>, StoreError> {
        const TABLE: &str = "runs_done";
        let rows = sqlx::query!(
            r#"SELECT id, group_id, revision_id, resolution_id, state, trigger, priority, logical_time, interval_start,
                      interval_end, params, task_params, key, dedupe, callback IS NOT NULL AS "callback!", created_at,
                      started_at IS NOT NULL AS "begun!", deadline_at, parent_run, source, progress, error, skipped
                 FROM heddle.runs_done WHERE id = ANY ($1) ORDER BY id FOR UPDATE"#,
            &column(runs, |run| run.0)
        )
        .fetch_all(self.connection())
        .await?;
        self.dated([]);
        let mut locked = Vec::with_capacity(rows.len());
        for row in rows {
            let known_skip = |skipped| StoreError::known(Skip::from_number, skipped, (TABLE, "skipped"), row.id);
            let live = LiveRun {
                state: StoreError::known(RunState::from_number, row.state, (TABLE, "state"), row.id)?,
                progress: row.progress,
                begun: row.begun,
                waits: false,
                dedupe: row.dedupe,
                error: row.error,
                skipped: row.skipped.map(known_skip).transpose()?,
                group_deleted: false,
            };
            locked.push((live, facts_of!(row, TABLE)));
        }
        Ok(locked)
    }

    /// Ended runs that this transaction has locked, and that it is about to reopen, take their params again: each with
    /// its group and the hash by which it was deduped. Returns those that must not be reopened, each with the other
    /// unfinished run of its group that has its params. Of several of `runs` with the same params, the first gets them.
    ///
    /// Locking: the params' hashes, in their order, after the runs. This transaction has locked only ended runs before,
    /// and no holder of such a lock waits for one of these. As in the creation of runs, the holders are read under the
    /// locks.
    pub async fn take_params_again(
        &mut self,
        runs: &[(RunId, i64, &[u8])],
    ) -> Result<HashMap<RunId, RunId>, StoreError> {
        let mut hashes: Vec<&[u8]> = column(runs, |(_, _, hash)| *hash);
        if hashes.is_empty() {
            return Ok(HashMap::new());
        }
        hashes.sort_unstable();
        hashes.dedup();
        let locks = column(&hashes, |hash| lock_number(hash));
        sqlx::query!("SELECT pg_advisory_xact_lock(n) FROM UNNEST($1::bigint[]) AS n", &locks)
            .fetch_all(self.connection())
            .await?;
        let rows = sqlx::query!(
            "SELECT d.group_id, d.hash, d.run
               FROM UNNEST($1::bigint[], $2::bytea[]) AS g (group_id, hash)
               JOIN heddle.run_dedupes d ON d.group_id = ANY (ARRAY[g.group_id]) AND d.hash = ANY (ARRAY[g.hash])
              CROSS JOIN LATERAL (SELECT FROM heddle.runs_live l WHERE l.id = d.run LIMIT 1) l",
            &column(runs, |(_, group, _)| *group),
            &column(runs, |(_, _, hash)| *hash) as &[&[u8]]
        )
        .fetch_all(self.connection())
        .await?;
        let mut holders: HashMap<(i64, &[u8]), RunId> = rows
            .iter()
            .map(|row| ((row.group_id, row.hash.as_slice()), RunId(row.run)))
            .collect();
        let (mut taken, mut refused) = (Vec::with_capacity(runs.len()), HashMap::new());
        for &(run, group, hash) in runs {
            let holder = *holders.entry((group, hash)).or_insert(run);
            match holder == run {
                true => taken.push((group, hash, run)),
                false => drop(refused.insert(run, holder)),
            }
        }
        if !taken.is_empty() {
            sqlx::query!(
                "INSERT INTO heddle.run_dedupes (group_id, hash, run)
                 SELECT * FROM UNNEST($1::bigint[], $2::bytea[], $3::uuid[])
                 ON CONFLICT (group_id, hash) DO UPDATE SET run = excluded.run",
                &column(&taken, |(group, _, _)| *group),
                &column(&taken, |(_, hash, _)| *hash) as &[&[u8]],
                &column(&taken, |(_, _, run)| run.0)
            )
            .execute(self.connection())
            .await?;
        }
        Ok(refused)
    }

    /// Pins runs to other script versions, each to its own.
    pub async fn set_resolutions(&mut self, runs: &[(RunId, i64)]) -> Result<(), StoreError> {
        if runs.is_empty() {
            return Ok(());
        }
        sqlx::query!(
            "UPDATE heddle.runs_live l SET resolution_id = g.resolution_id
               FROM UNNEST($1::uuid[], $2::bigint[]) AS g (run, resolution_id) WHERE l.id = ANY (ARRAY[g.run])",
            &column(runs, |(run, _)| run.0),
            &column(runs, |(_, resolution)| *resolution)
        )
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// The sizes in bytes of the outputs of succeeded task runs (`null` without one), at most one of each run.
    pub async fn output_bytes(&mut self, keys: &[(RunId, TaskKey)]) -> Result<HashMap<RunId, u64>, StoreError> {
        const NULL: u64 = 4;
        if keys.is_empty() {
            return Ok(HashMap::new());
        }
        let rows = sqlx::query!(
            r#"SELECT k.run AS "run!", o.bytes AS "bytes!"
                 FROM UNNEST($1::uuid[], $2::smallint[], $3::integer[]) AS k (run, task, item)
                CROSS JOIN LATERAL (
                     SELECT coalesce(octet_length(output), 4) AS bytes FROM (
                            SELECT a.finished_at AS at, a.output FROM heddle.attempts a
                             WHERE a.run = ANY (ARRAY[k.run]) AND a.task = k.task AND a.item = k.item AND a.state = 1
                            UNION ALL
                            SELECT v.at, v.output FROM heddle.overrides v
                             WHERE v.run = ANY (ARRAY[k.run]) AND v.task = k.task AND v.item = k.item AND v.state = 5)
                         AS outputs
                      ORDER BY at DESC LIMIT 1) AS o"#,
            &column(keys, |(run, _)| run.0),
            &column(keys, |(_, key)| key.task as i16),
            &column(keys, |(_, key)| key.item_number())
        )
        .fetch_all(self.connection())
        .await?;
        let mut bytes: HashMap<RunId, u64> = keys.iter().map(|(run, _)| (*run, NULL)).collect();
        bytes.extend(rows.into_iter().map(|row| (RunId(row.run), row.bytes as u64)));
        Ok(bytes)
    }

    /// Runs that were paused while they waited wait again, each with its group: what they wait for is checked once more,
    /// because nobody did meanwhile.
    pub async fn wait_again(&mut self, runs: &[(RunId, i64)]) -> Result<(), StoreError> {
        if runs.is_empty() {
            return Ok(());
        }
        sqlx::query!(
            "WITH given AS MATERIALIZED (
                 SELECT * FROM UNNEST($1::uuid[], $2::bigint[]) AS g (run, group_id)
             ),
             waiting AS (
                 INSERT INTO heddle.waits (run, group_id) SELECT run, group_id FROM given ON CONFLICT DO NOTHING
             ),
             arrived AS (
                 INSERT INTO heddle.link_events (kind, group_id, run)
                 SELECT 1, g.group_id, g.run FROM given g
                  WHERE EXISTS (SELECT FROM heddle.waits w WHERE w.run = g.run AND w.upstreams OFFSET 0)
             )
             INSERT INTO heddle.turnstiles (group_id) SELECT DISTINCT group_id FROM given",
            &column(runs, |(run, _)| run.0),
            &column(runs, |(_, group)| *group)
        )
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Records the states of task runs that an operator has set, for one reason, each in place of the last time that
    /// somebody set this state of this task run. Only the last override of each state can have an effect, so a task run
    /// has at most one for each. The audit has all of them.
    pub async fn insert_overrides(
        &mut self,
        sets: &[(RunId, NewOverride)],
        reason: &str,
        actor: &str,
        at: Time,
    ) -> Result<(), StoreError> {
        if sets.is_empty() {
            return Ok(());
        }
        sqlx::query!(
            "WITH given AS MATERIALIZED (
                 SELECT * FROM UNNEST($1::uuid[], $2::smallint[], $3::integer[], $4::smallint[], $5::text[])
                     AS s (run, task, item, state, output)
             ),
             former AS (
                 DELETE FROM heddle.overrides o USING given g
                  WHERE o.run = ANY (ARRAY[g.run]) AND o.task = ANY (ARRAY[g.task]) AND o.item = ANY (ARRAY[g.item])
                    AND o.state = g.state
             )
             INSERT INTO heddle.overrides (run, task, item, at, state, reason, actor, output)
             SELECT run, task, item, $6, state, $7, $8, output FROM given",
            &column(sets, |(run, _)| run.0),
            &column(sets, |(_, set)| set.key.task as i16),
            &column(sets, |(_, set)| set.key.item_number()),
            &column(sets, |(_, set)| set.state.number()),
            &column(sets, |(_, set)| set.output.as_deref()) as &[Option<&str>],
            at,
            reason,
            actor
        )
        .execute(self.connection())
        .await?;
        let is_cleared = |(_, set): &&(RunId, NewOverride)| set.state == TaskState::Pending;
        let cleared: Vec<(RunId, TaskKey)> = sets
            .iter()
            .filter(is_cleared)
            .map(|(run, set)| (*run, set.key))
            .collect();
        if !cleared.is_empty() {
            forget_offers(self.connection(), &cleared).await?;
        }
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

    /// Live runs of groups that were deleted some time ago, to be cancelled, among `groups` groups after the group `after`; and
    /// the last of these groups, or `None` at the end. It goes from group to group by the index, however many runs are live
    /// in one.
    pub async fn left_behind(&self, after: i64, groups: i64) -> Result<(Vec<RunId>, Option<i64>), StoreError> {
        let found = sqlx::query!(
            r#"WITH RECURSIVE live AS (
                   (SELECT group_id FROM heddle.runs_live WHERE group_id > $1 ORDER BY group_id LIMIT 1)
                   UNION ALL
                   SELECT (SELECT l.group_id FROM heddle.runs_live l
                            WHERE l.group_id > live.group_id ORDER BY l.group_id LIMIT 1)
                     FROM live WHERE live.group_id IS NOT NULL),
               page AS MATERIALIZED (SELECT group_id FROM live WHERE group_id IS NOT NULL LIMIT $2)
               SELECT (SELECT max(group_id) FROM page) AS last, (SELECT count(*) FROM page) AS "count!",
                      ARRAY(SELECT run.id
                              FROM page JOIN heddle.groups g ON g.id = page.group_id,
                                   LATERAL (SELECT id FROM heddle.runs_live l
                                             WHERE l.group_id = g.id ORDER BY id LIMIT 500) AS run
                             WHERE g.deleted_at < clock_timestamp() - interval '10 seconds'
                             LIMIT 500) AS "runs!: Vec<Uuid>""#,
            after,
            groups
        )
        .fetch_one(&self.pool)
        .await?;
        let runs = found.runs.into_iter().map(RunId).collect();
        Ok((runs, found.last.filter(|_| found.count == groups)))
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
