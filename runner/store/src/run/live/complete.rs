//! Recording outcomes.

use std::collections::HashMap;

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::run::{AttemptKey, TaskKey};
use heddle_domain::state::{AttemptState, ErrorKind, RunState, Skip};
use uuid::Uuid;

use super::create::create_in;
use super::pools::{insert_pooled_of_writes, interrupt_pooled, withdraw_pooled};
use super::queue::{QueueRow, put_in};
use super::{Created, Interrupted, NewRun, ReadyRow};
use crate::notice::NewNotices;
use crate::transaction::Open;
use crate::{Store, StoreError};

/// An attempt that ended, as its holder knows it.
#[derive(Clone, Copy, Debug)]
pub struct EndedAttempt {
    /// Of which run.
    pub run: RunId,
    /// Which.
    pub at: AttemptKey,
    /// The lease that it was held under.
    pub lease: i64,
}

/// A locked run.
#[derive(Clone, Debug)]
pub struct LockedRun {
    /// Waiting, running or paused.
    pub state: RunState,
    /// Its progress as bytes.
    pub progress: Vec<u8>,
}

/// What [`Completion::lock`] found.
#[derive(Clone, Debug, Default)]
pub struct Locked {
    /// Runs that are live.
    pub runs: HashMap<RunId, LockedRun>,
    /// Attempts that were the caller's to end, with the time at which they began. All others are zombies.
    pub owned: HashMap<(RunId, AttemptKey), Time>,
    /// The workers that had claimed those of them that were claimed.
    pub workers: HashMap<(RunId, AttemptKey), String>,
}

/// A row of the attempts' history.
#[derive(Clone, Debug)]
pub struct AttemptRow {
    /// Of which run.
    pub run: RunId,
    /// Which.
    pub at: AttemptKey,
    /// How it ended.
    pub state: AttemptState,
    /// Whether it said that there was nothing to do.
    pub skipped: bool,
    /// From.
    pub started_at: Time,
    /// To.
    pub finished_at: Time,
    /// Where.
    pub node: Option<Uuid>,
    /// The worker that had claimed it.
    pub worker: Option<String>,
    /// JSON text.
    pub output: Option<String>,
    /// What went wrong.
    pub error: Option<(ErrorKind, String, Option<String>)>,
    /// Peak of linear memory.
    pub memory_bytes: Option<i64>,
    /// Time on a processor.
    pub cpu_micros: Option<i64>,
}

/// A run of one task run whose outcome ends it; see `sql/complete_sole.sql`.
#[derive(Clone, Debug)]
pub struct SoleRow {
    /// The attempt; `started_at` is not looked at.
    pub attempt: AttemptRow,
    /// How the run ends.
    pub state: RunState,
    /// Its progress as bytes.
    pub progress: Vec<u8>,
    /// Its error.
    pub error: Option<String>,
}

/// What is to be written of one run.
#[derive(Clone, Debug)]
pub struct RunWrite {
    /// Which.
    pub run: RunId,
    /// Its state now.
    pub state: RunState,
    /// Its progress as bytes.
    pub progress: Vec<u8>,
    /// Its priority, for its ready rows.
    pub priority: i16,
    /// What became ready.
    pub ready: Vec<ReadyRow>,
    /// What workers may claim from now on.
    pub queued: Vec<QueueRow>,
    /// Retries due later.
    pub timers: Vec<(Time, AttemptKey)>,
    /// Timers to be forgotten.
    pub drop_timers: Vec<TaskKey>,
    /// Attempts and ready rows to be taken back.
    pub interrupt: Vec<TaskKey>,
    /// Arrays of mapped tasks that were expanded.
    pub maps: Vec<(i16, String)>,
    /// Its error, if it has ended with one.
    pub error: Option<String>,
    /// It was never begun, and why.
    pub skipped: Option<Skip>,
    /// Whether its end may let others of its group begin.
    pub gated: bool,
    /// Whether it may have timers.
    pub timed: bool,
    /// What somebody wants to hear of it.
    pub notices: Option<Box<NewNotices>>,
}

/// What came of writing.
#[derive(Clone, Debug, Default)]
pub struct Written {
    /// Attempts that were stopped; nodes that run them have to be told.
    pub interrupted: Vec<Interrupted>,
    /// Whether the rows meant for this node came to it.
    pub handed: bool,
    /// Whether a run ended that is a sub-run.
    pub parents_told: bool,
    /// Whether a run succeeded whose group others follow.
    pub followed: bool,
}

/// A line of an attempt's log.
#[derive(Clone, Debug)]
pub struct LogRow {
    /// Of which run.
    pub run: RunId,
    /// Which attempt.
    pub at: AttemptKey,
    /// From 0.
    pub line: i32,
    /// When.
    pub time: Time,
    /// 0 trace to 4 error.
    pub level: i16,
    /// The text.
    pub message: String,
    /// A JSON object.
    pub fields: Option<String>,
}

/// What a script did that is committed with its outcome.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Sets a key whatever stands there.
    Set {
        /// The key.
        key: String,
        /// JSON text.
        value: String,
    },
    /// Sets a key if it has a version still; `None`: if it is not there.
    CompareAndSet {
        /// The key.
        key: String,
        /// The version seen.
        expected: Option<u64>,
        /// JSON text.
        value: String,
    },
    /// Removes a key.
    Delete {
        /// The key.
        key: String,
    },
    /// Tells people.
    Notify {
        /// The channel's name.
        channel: String,
        /// One line.
        subject: String,
        /// Text.
        body: String,
    },
}

/// A transaction that records outcomes. Dropped without [`Completion::commit`] it changes nothing.
pub struct Completion {
    tx: Open,
    lease: i64,
    now: Time,
}

impl Store {
    /// Begins to record outcomes.
    pub async fn completion(&self, lease: i64, now: Time) -> Result<Completion, StoreError> {
        Ok(Completion {
            tx: self.open("completion").await?,
            lease,
            now,
        })
    }

    /// Ends runs of one task run, under this node's lease; answers which were its to end, and whether a run succeeded
    /// whose group others follow. `lines` are what they logged.
    pub async fn complete_sole(
        &self,
        rows: &[SoleRow],
        lines: &[LogRow],
        lease: i64,
        node: Uuid,
    ) -> Result<(Vec<RunId>, bool), StoreError> {
        macro_rules! column {
            ($row:ident => $value:expr) => {
                rows.iter().map(|$row| $value).collect::<Vec<_>>()
            };
        }
        macro_rules! line_column {
            ($line:ident => $value:expr) => {
                lines.iter().map(|$line| $value).collect::<Vec<_>>()
            };
        }
        let owned = sqlx::query_file!(
            "src/sql/complete_sole.sql",
            &column!(row => row.attempt.run.0),
            &column!(row => row.attempt.at.attempt as i32),
            &column!(row => row.state.number()),
            &column!(row => row.progress.clone()),
            &column!(row => row.error.clone()) as &[Option<String>],
            &column!(row => row.attempt.state.number()),
            &column!(row => row.attempt.skipped),
            &column!(row => row.attempt.finished_at),
            &column!(row => row.attempt.output.clone()) as &[Option<String>],
            &column!(row => row.attempt.error.as_ref().map(|error| error.0.number())) as &[Option<i16>],
            &column!(row => row.attempt.error.as_ref().map(|error| error.1.clone())) as &[Option<String>],
            &column!(row => row.attempt.error.as_ref().and_then(|error| error.2.clone())) as &[Option<String>],
            &column!(row => row.attempt.memory_bytes) as &[Option<i64>],
            &column!(row => row.attempt.cpu_micros) as &[Option<i64>],
            lease,
            node,
            &line_column!(line => line.run.0),
            &line_column!(line => line.at.attempt as i32),
            &line_column!(line => line.line),
            &line_column!(line => line.time),
            &line_column!(line => line.level),
            &line_column!(line => line.message.clone()),
            &line_column!(line => line.fields.clone()) as &[Option<String>]
        )
        .fetch_all(&self.pool)
        .await?;
        let followed = owned.iter().any(|row| row.followed);
        Ok((owned.into_iter().map(|row| RunId(row.run)).collect(), followed))
    }
}

/// The state of a run that lives.
pub(super) fn state_of(run: RunId, state: i16) -> Result<RunState, StoreError> {
    StoreError::known(RunState::from_number, state, ("runs_live", "state"), run)
}

impl Completion {
    /// Locks the runs of attempts that ended, and takes the attempts; see `sql/lock_ended.sql`.
    pub async fn lock(&mut self, ended: &[EndedAttempt]) -> Result<Locked, StoreError> {
        let runs: Vec<Uuid> = ended.iter().map(|ended| ended.run.0).collect();
        let tasks: Vec<i16> = ended.iter().map(|ended| ended.at.key.task as i16).collect();
        let items: Vec<i32> = ended.iter().map(|ended| ended.at.key.item_number()).collect();
        let attempts: Vec<i32> = ended.iter().map(|ended| ended.at.attempt as i32).collect();
        let leases: Vec<i64> = ended.iter().map(|ended| ended.lease).collect();
        let rows = sqlx::query_file!("src/sql/lock_ended.sql", &runs, &tasks, &items, &attempts, &leases)
            .fetch_all(&mut *self.tx)
            .await?;
        let mut locked = Locked::default();
        for row in rows {
            let run = RunId(row.run);
            match (row.state, row.progress, row.task, row.item, row.attempt, row.started_at) {
                (Some(state), Some(progress), ..) => {
                    let state = state_of(run, state)?;
                    locked.runs.insert(run, LockedRun { state, progress });
                }
                (_, _, Some(task), Some(item), Some(attempt), Some(started_at)) => {
                    let at = AttemptKey {
                        key: TaskKey::from_numbers(task, item),
                        attempt: attempt as u32,
                    };
                    locked.owned.insert((run, at), started_at);
                }
                _ => {}
            }
        }
        Ok(locked)
    }

    /// Locks runs, in id order, without any attempt.
    pub async fn lock_runs(&mut self, runs: &[RunId]) -> Result<HashMap<RunId, LockedRun>, StoreError> {
        let ids: Vec<Uuid> = runs.iter().map(|run| run.0).collect();
        let rows = sqlx::query!(
            "SELECT id, state, progress FROM heddle.runs_live WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE",
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
                },
            );
        }
        Ok(locked)
    }

    /// Applies what a script did; `false` if a compare-and-set was lost: then nothing of it is applied.
    pub async fn apply_effects(
        &mut self,
        run: RunId,
        task: u16,
        group_id: i64,
        effects: &[Effect],
    ) -> Result<bool, StoreError> {
        sqlx::query!("SAVEPOINT effects").execute(&mut *self.tx).await?;
        for effect in effects {
            if !self.apply_effect(run, task, group_id, effect).await? {
                sqlx::query!("ROLLBACK TO SAVEPOINT effects")
                    .execute(&mut *self.tx)
                    .await?;
                return Ok(false);
            }
        }
        sqlx::query!("RELEASE SAVEPOINT effects").execute(&mut *self.tx).await?;
        Ok(true)
    }

    async fn apply_effect(&mut self, run: RunId, task: u16, group: i64, effect: &Effect) -> Result<bool, StoreError> {
        let done = match effect {
            Effect::Set { key, value } => {
                sqlx::query!(
                    "INSERT INTO heddle.script_state (group_id, key, value, version) VALUES ($1, $2, $3, 1)
                     ON CONFLICT (group_id, key) DO UPDATE
                        SET value = excluded.value, version = script_state.version + 1, updated_at = now()",
                    group,
                    key,
                    value
                )
                .execute(&mut *self.tx)
                .await?
            }
            Effect::CompareAndSet {
                key,
                expected: None,
                value,
            } => {
                sqlx::query!(
                    "INSERT INTO heddle.script_state (group_id, key, value, version) VALUES ($1, $2, $3, 1)
                     ON CONFLICT (group_id, key) DO NOTHING",
                    group,
                    key,
                    value
                )
                .execute(&mut *self.tx)
                .await?
            }
            Effect::CompareAndSet {
                key,
                expected: Some(expected),
                value,
            } => {
                sqlx::query!(
                    "UPDATE heddle.script_state SET value = $4, version = version + 1, updated_at = now()
                      WHERE group_id = $1 AND key = $2 AND version = $3",
                    group,
                    key,
                    *expected as i64,
                    value
                )
                .execute(&mut *self.tx)
                .await?
            }
            Effect::Delete { key } => {
                sqlx::query!(
                    "DELETE FROM heddle.script_state WHERE group_id = $1 AND key = $2",
                    group,
                    key
                )
                .execute(&mut *self.tx)
                .await?;
                return Ok(true);
            }
            Effect::Notify { channel, subject, body } => {
                sqlx::query!(
                    "INSERT INTO heddle.notices (run, task, channel, subject, body, group_id) VALUES ($1, $2, $3, $4, $5, $6)",
                    run.0,
                    task as i16,
                    channel,
                    subject,
                    body,
                    group
                )
                .execute(&mut *self.tx)
                .await?
            }
        };
        Ok(done.rows_affected() == 1)
    }

    /// Creates runs with the outcome (a script's `enqueue`).
    pub async fn create(&mut self, runs: &[NewRun]) -> Result<Vec<Created>, StoreError> {
        create_in(&mut self.tx, &runs.iter().collect::<Vec<_>>(), self.lease, self.now).await
    }

    /// Inserts history.
    pub async fn insert_attempts(&mut self, rows: &[AttemptRow]) -> Result<(), StoreError> {
        if rows.is_empty() {
            return Ok(());
        }
        macro_rules! column {
            ($row:ident => $value:expr) => {
                rows.iter().map(|$row| $value).collect::<Vec<_>>()
            };
        }
        sqlx::query!(
            "INSERT INTO heddle.attempts (run, task, item, attempt, state, skipped, started_at, finished_at, node,
                 output, error_kind, error_message, error_trace, memory_bytes, cpu_micros, worker)
             SELECT run, task, item, attempt, state, skipped, started_at, greatest(finished_at, started_at), node,
                    output, error_kind, error_message, error_trace, memory_bytes, cpu_micros, worker
               FROM UNNEST($1::uuid[], $2::smallint[], $3::integer[], $4::integer[], $5::smallint[], $6::boolean[],
                           $7::timestamptz[], $8::timestamptz[], $9::uuid[], $10::text[], $11::smallint[],
                           $12::text[], $13::text[], $14::bigint[], $15::bigint[], $16::text[])
                 AS a (run, task, item, attempt, state, skipped, started_at, finished_at, node, output, error_kind,
                       error_message, error_trace, memory_bytes, cpu_micros, worker)",
            &column!(row => row.run.0),
            &column!(row => row.at.key.task as i16),
            &column!(row => row.at.key.item_number()),
            &column!(row => row.at.attempt as i32),
            &column!(row => row.state.number()),
            &column!(row => row.skipped),
            &column!(row => row.started_at),
            &column!(row => row.finished_at),
            &column!(row => row.node) as &[Option<Uuid>],
            &column!(row => row.output.clone()) as &[Option<String>],
            &column!(row => row.error.as_ref().map(|error| error.0.number())) as &[Option<i16>],
            &column!(row => row.error.as_ref().map(|error| error.1.clone())) as &[Option<String>],
            &column!(row => row.error.as_ref().and_then(|error| error.2.clone())) as &[Option<String>],
            &column!(row => row.memory_bytes) as &[Option<i64>],
            &column!(row => row.cpu_micros) as &[Option<i64>],
            &column!(row => row.worker.clone()) as &[Option<String>],
        )
        .execute(&mut *self.tx)
        .await?;
        Ok(())
    }

    /// Inserts log lines.
    pub async fn insert_logs(&mut self, rows: &[LogRow]) -> Result<(), StoreError> {
        if rows.is_empty() {
            Ok(())
        } else {
            insert_logs_in(&mut self.tx, rows).await
        }
    }

    /// Writes what was decided of locked runs: progress, ready rows, timers, interrupts, ends.
    pub async fn write(&mut self, writes: &[RunWrite]) -> Result<Written, StoreError> {
        let mut written = Written {
            handed: true,
            ..Written::default()
        };
        self.write_timers(writes).await?;
        written.interrupted = self.interrupt(writes).await?;
        self.write_maps(writes).await?;
        let rows: Vec<(&RunWrite, &ReadyRow)> = writes
            .iter()
            .flat_map(|write| write.ready.iter().map(move |row| (write, row)))
            .collect();
        let (pooled, rows): (Vec<_>, Vec<_>) = rows.into_iter().partition(|(_, row)| row.pools.is_some());
        if !pooled.is_empty() {
            insert_pooled_of_writes(&mut self.tx, writes).await?;
        }
        if !rows.is_empty() {
            let runs: Vec<Uuid> = rows.iter().map(|(write, _)| write.run.0).collect();
            let tasks: Vec<i16> = rows.iter().map(|(_, row)| row.at.key.task as i16).collect();
            let items: Vec<i32> = rows.iter().map(|(_, row)| row.at.key.item_number()).collect();
            let attempts: Vec<i32> = rows.iter().map(|(_, row)| row.at.attempt as i32).collect();
            let priorities: Vec<i16> = rows.iter().map(|(write, _)| write.priority).collect();
            let turns: Vec<i64> = rows.iter().map(|(_, row)| row.turn).collect();
            let handed: Vec<bool> = rows.iter().map(|(_, row)| row.handed).collect();
            written.handed = sqlx::query_file_scalar!(
                "src/sql/make_ready.sql",
                &runs,
                &tasks,
                &items,
                &attempts,
                &priorities,
                &turns,
                &handed,
                self.lease,
                self.now
            )
            .fetch_one(&mut *self.tx)
            .await?;
        }
        let queued: Vec<(RunId, i16, &QueueRow)> = writes
            .iter()
            .flat_map(|write| write.queued.iter().map(move |row| (write.run, write.priority, row)))
            .collect();
        put_in(&mut self.tx, &queued).await?;
        let going: Vec<&RunWrite> = writes.iter().filter(|write| !write.state.is_final()).collect();
        if !going.is_empty() {
            let ids: Vec<Uuid> = going.iter().map(|write| write.run.0).collect();
            let states: Vec<i16> = going.iter().map(|write| write.state.number()).collect();
            let progress: Vec<Vec<u8>> = going.iter().map(|write| write.progress.clone()).collect();
            // What waits, paused or not, keeps what it waits for, and has not begun for it.
            sqlx::query!(
                "WITH moved AS (
                     UPDATE heddle.runs_live l
                        SET state = w.state, progress = w.progress,
                            started_at = CASE WHEN w.state = 0 OR (w.state = 2 AND l.waiting_for IS NOT NULL)
                                THEN l.started_at ELSE coalesce(l.started_at, $4) END,
                            waiting_for = CASE WHEN w.state IN (0, 2) THEN l.waiting_for END
                       FROM UNNEST($1::uuid[], $2::smallint[], $3::bytea[]) AS w (id, state, progress)
                      WHERE l.id = ANY (ARRAY[w.id])
                     RETURNING l.id, l.group_id, l.trigger, l.logical_time, l.started_at)
                 INSERT INTO heddle.events (kind, at, data)
                 SELECT 'run.started', $4,
                        jsonb_agg(jsonb_build_object('run', x.id, 'group', g.name, 'trigger',
                            (ARRAY['manual', 'schedule', 'backfill', 'upstream', 'task', 'rerun'])[x.trigger + 1],
                            'logical_time', heddle.moment(x.logical_time)))
                   FROM moved x JOIN heddle.groups g ON g.id = x.group_id
                  WHERE x.started_at = $4 HAVING count(*) > 0",
                &ids,
                &states,
                &progress,
                self.now
            )
            .execute(&mut *self.tx)
            .await?;
        }
        (written.parents_told, written.followed) = self.finish(writes).await?;
        let notices: Vec<NewNotices> = writes
            .iter()
            .filter_map(|write| write.notices.as_deref().cloned())
            .collect();
        self.tell(&notices).await?;
        Ok(written)
    }

    async fn finish(&mut self, writes: &[RunWrite]) -> Result<(bool, bool), StoreError> {
        let ended: Vec<&RunWrite> = writes.iter().filter(|write| write.state.is_final()).collect();
        if ended.is_empty() {
            return Ok((false, false));
        }
        let timed: Vec<Uuid> = ended
            .iter()
            .filter(|write| write.timed)
            .map(|write| write.run.0)
            .collect();
        if !timed.is_empty() {
            sqlx::query!("DELETE FROM heddle.timers WHERE run = ANY ($1)", &timed)
                .execute(&mut *self.tx)
                .await?;
        }
        let gated: Vec<Uuid> = ended
            .iter()
            .filter(|write| write.gated)
            .map(|write| write.run.0)
            .collect();
        if !gated.is_empty() {
            sqlx::query!("DELETE FROM heddle.waits WHERE run = ANY ($1)", &gated)
                .execute(&mut *self.tx)
                .await?;
            sqlx::query!("DELETE FROM heddle.needs WHERE run = ANY ($1)", &gated)
                .execute(&mut *self.tx)
                .await?;
        }
        let ids: Vec<Uuid> = ended.iter().map(|write| write.run.0).collect();
        let states: Vec<i16> = ended.iter().map(|write| write.state.number()).collect();
        let progress: Vec<Vec<u8>> = ended.iter().map(|write| write.progress.clone()).collect();
        let errors: Vec<Option<String>> = ended.iter().map(|write| write.error.clone()).collect();
        let gates: Vec<bool> = ended.iter().map(|write| write.gated).collect();
        let skipped: Vec<Option<i16>> = ended.iter().map(|write| write.skipped.map(Skip::number)).collect();
        let rows = sqlx::query_file!(
            "src/sql/finish_runs.sql",
            &ids,
            &states,
            &progress,
            &errors as &[Option<String>],
            self.now,
            &gates,
            &skipped as &[Option<i16>]
        )
        .fetch_all(&mut *self.tx)
        .await?;
        Ok((
            rows.iter().any(|row| row.has_parent),
            rows.iter().any(|row| row.followed),
        ))
    }

    async fn write_timers(&mut self, writes: &[RunWrite]) -> Result<(), StoreError> {
        let dropped: Vec<(RunId, TaskKey)> = writes
            .iter()
            .flat_map(|write| write.drop_timers.iter().map(move |&key| (write.run, key)))
            .collect();
        if !dropped.is_empty() {
            let runs: Vec<Uuid> = dropped.iter().map(|(run, _)| run.0).collect();
            let tasks: Vec<i16> = dropped.iter().map(|(_, key)| key.task as i16).collect();
            let items: Vec<i32> = dropped.iter().map(|(_, key)| key.item_number()).collect();
            sqlx::query!(
                "DELETE FROM heddle.timers t USING UNNEST($1::uuid[], $2::smallint[], $3::integer[]) AS d (run, task, item)
                  WHERE t.run = ANY (ARRAY[d.run]) AND t.task = d.task AND t.item = d.item AND t.kind + 0 = 0",
                &runs,
                &tasks,
                &items
            )
            .execute(&mut *self.tx)
            .await?;
        }
        let timers: Vec<(RunId, Time, AttemptKey)> = writes
            .iter()
            .flat_map(|write| write.timers.iter().map(move |&(due, at)| (write.run, due, at)))
            .collect();
        if timers.is_empty() {
            return Ok(());
        }
        let runs: Vec<Uuid> = timers.iter().map(|timer| timer.0.0).collect();
        let tasks: Vec<i16> = timers.iter().map(|timer| timer.2.key.task as i16).collect();
        let items: Vec<i32> = timers.iter().map(|timer| timer.2.key.item_number()).collect();
        let attempts: Vec<i32> = timers.iter().map(|timer| timer.2.attempt as i32).collect();
        let due: Vec<Time> = timers.iter().map(|timer| timer.1).collect();
        sqlx::query!(
            "INSERT INTO heddle.timers (run, task, item, kind, attempt, due_at)
             SELECT run, task, item, 0, attempt, due
               FROM UNNEST($1::uuid[], $2::smallint[], $3::integer[], $4::integer[], $5::timestamptz[])
                 AS t (run, task, item, attempt, due)
             ON CONFLICT (run, task, item, kind) DO UPDATE SET attempt = excluded.attempt, due_at = excluded.due_at",
            &runs,
            &tasks,
            &items,
            &attempts,
            &due
        )
        .execute(&mut *self.tx)
        .await?;
        Ok(())
    }

    async fn write_maps(&mut self, writes: &[RunWrite]) -> Result<(), StoreError> {
        for write in writes {
            for (task, items) in &write.maps {
                sqlx::query!(
                    "INSERT INTO heddle.maps (run, task, items) VALUES ($1, $2, $3)
                     ON CONFLICT (run, task) DO UPDATE SET items = excluded.items",
                    write.run.0,
                    task,
                    items
                )
                .execute(&mut *self.tx)
                .await?;
            }
        }
        Ok(())
    }

    async fn interrupt(&mut self, writes: &[RunWrite]) -> Result<Vec<Interrupted>, StoreError> {
        let hit: Vec<(RunId, TaskKey)> = writes
            .iter()
            .flat_map(|write| write.interrupt.iter().map(move |&key| (write.run, key)))
            .collect();
        if hit.is_empty() {
            return Ok(Vec::new());
        }
        let runs: Vec<Uuid> = hit.iter().map(|(run, _)| run.0).collect();
        let tasks: Vec<i16> = hit.iter().map(|(_, key)| key.task as i16).collect();
        let items: Vec<i32> = hit.iter().map(|(_, key)| key.item_number()).collect();
        interrupt_pooled(&mut self.tx, &runs, &tasks, &items).await?;
        // What is being claimed at this moment is waited for; the next statement sees where it went.
        sqlx::query!(
            "WITH hit AS (
                 SELECT * FROM UNNEST($1::uuid[], $2::smallint[], $3::integer[]) AS h (run, task, item)
             ),
             unclaimed AS (
                 DELETE FROM heddle.ready r USING hit h
                  WHERE r.run = ANY (ARRAY[h.run]) AND r.task = h.task AND r.item = h.item
             )
             DELETE FROM heddle.queue_ready r USING hit h
              WHERE r.run = ANY (ARRAY[h.run]) AND r.task = h.task AND r.item = h.item",
            &runs,
            &tasks,
            &items
        )
        .execute(&mut *self.tx)
        .await?;
        let rows = sqlx::query_file!("src/sql/interrupt.sql", &runs, &tasks, &items, self.now)
            .fetch_all(&mut *self.tx)
            .await?;
        Ok(rows
            .into_iter()
            .map(|row| Interrupted {
                run: RunId(row.run),
                at: AttemptKey {
                    key: TaskKey::from_numbers(row.task, row.item),
                    attempt: row.attempt as u32,
                },
                lease: row.lease,
                started_at: row.started_at,
                finished_at: row.finished_at,
                node: row.node,
            })
            .collect())
    }

    /// Takes back all ready rows of runs.
    pub async fn withdraw(&mut self, runs: &[RunId]) -> Result<Vec<(RunId, TaskKey)>, StoreError> {
        let ids: Vec<Uuid> = runs.iter().map(|run| run.0).collect();
        let mut withdrawn = withdraw_pooled(&mut self.tx, &ids).await?;
        let rows = sqlx::query!(
            r#"WITH unclaimed AS (DELETE FROM heddle.ready WHERE run = ANY ($1) RETURNING run, task, item),
                    queued AS (DELETE FROM heddle.queue_ready WHERE run = ANY ($1) RETURNING run, task, item)
               SELECT run AS "run!", task AS "task!", item AS "item!" FROM unclaimed
               UNION ALL SELECT run, task, item FROM queued"#,
            &ids
        )
        .fetch_all(&mut *self.tx)
        .await?;
        withdrawn.extend(
            rows.into_iter()
                .map(|row| (RunId(row.run), TaskKey::from_numbers(row.task, row.item))),
        );
        Ok(withdrawn)
    }

    /// The instant of the transaction.
    pub(crate) fn now(&self) -> Time {
        self.now
    }

    /// The connection, for statements of other files of this crate.
    pub(crate) fn connection(&mut self) -> &mut crate::database::PgSession {
        &mut self.tx
    }

    /// Makes it so.
    pub async fn commit(self) -> Result<(), StoreError> {
        Ok(self.tx.commit().await?)
    }
}

pub(crate) async fn insert_logs_in(
    connection: &mut crate::database::PgSession,
    rows: &[LogRow],
) -> Result<(), StoreError> {
    macro_rules! column {
        ($row:ident => $value:expr) => {
            rows.iter().map(|$row| $value).collect::<Vec<_>>()
        };
    }
    sqlx::query!(
        "INSERT INTO heddle.logs (run, task, item, attempt, line, at, level, message, fields)
         SELECT * FROM UNNEST($1::uuid[], $2::smallint[], $3::integer[], $4::integer[], $5::integer[],
                              $6::timestamptz[], $7::smallint[], $8::text[], $9::text[])
         ON CONFLICT DO NOTHING",
        &column!(row => row.run.0),
        &column!(row => row.at.key.task as i16),
        &column!(row => row.at.key.item_number()),
        &column!(row => row.at.attempt as i32),
        &column!(row => row.line),
        &column!(row => row.time),
        &column!(row => row.level),
        &column!(row => row.message.clone()),
        &column!(row => row.fields.clone()) as &[Option<String>],
    )
    .execute(connection)
    .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    //! A run ends by three statements: one for runs in general, two for those of one task run. What an end means is the same
    //! in all of them, and has to stay so: a column or an effect that only two of them know is a bug of every third run.

    const GENERAL: &str = include_str!("../../sql/finish_runs.sql");
    const SOLE: &str = include_str!("../../sql/complete_sole.sql");
    const QUEUED: &str = include_str!("../../sql/queue_complete_sole.sql");

    /// What stands from here on.
    fn from<'s>(statement: &'s str, mark: &str) -> &'s str {
        &statement[statement.find(mark).expect("a part of this name")..]
    }

    /// What stands between these two.
    fn between<'s>(statement: &'s str, begin: &str, end: &str) -> Vec<&'s str> {
        let part = from(statement, begin);
        let part = &part[..part.find(end).expect("an end of the part")];
        part.split_whitespace().collect()
    }

    #[test]
    fn runs_of_one_task_end_alike() {
        assert_eq!(from(SOLE, "gone AS ("), from(QUEUED, "gone AS ("));
    }

    #[test]
    fn runs_in_general_end_as_those_of_one_task() {
        // Every column of a run's row goes into history; `skipped` are runs that were never begun.
        let columns = |statement| between(statement, "INSERT INTO heddle.runs_done", "\n    SELECT").join(" ");
        assert_eq!(columns(GENERAL).replace(", skipped)", ")"), columns(SOLE));
        let values = |statement| between(statement, "    SELECT id, group_id", "greatest(").join(" ");
        assert_eq!(values(GENERAL), values(SOLE));
        // Those who follow are told, and a delay that counts from the end is due: at the same instant, which the one has as a
        // parameter and the others in the row.
        let followed = |statement| between(statement, "followed AS (", "\n)");
        assert_eq!(followed(GENERAL), followed(SOLE));
        let counted = |statement: &str| {
            let part = between(statement, "counted AS (", "\n)").join(" ");
            part.replace("$5::timestamptz", "g.finished_at")
        };
        assert_eq!(counted(GENERAL), counted(SOLE));
    }
}
