//! Writes decisions about locked runs.

use heddle_domain::id::RunId;
use heddle_domain::run::{AttemptKey, TaskKey};
use uuid::Uuid;

use super::keys::Keys;
use super::pools::{insert_pooled_of_writes, interrupt_pooled, withdraw_pooled};
use super::queue::{QueueRow, put_in};
use super::timers::{NewTimer, TimerKind, claim_timers, drop_timers, drop_timers_of, put_timers};
use super::{Completion, Interrupted, ReadyRow, RunWrite};
use crate::StoreError;
use crate::database::column;
use crate::notice::NewNotices;

/// The result of writing.
#[derive(Clone, Debug, Default)]
pub struct Written {
    /// Attempts that were stopped; their nodes must be notified.
    pub interrupted: Vec<Interrupted>,
    /// Whether this node got the rows that were meant for it.
    pub handed: bool,
    /// Whether a sub-run ended.
    pub parents_notified: bool,
    /// Whether a run succeeded whose group others follow.
    pub followed: bool,
}

impl Completion {
    /// Writes decisions about locked runs: progress, ready rows, timers, interrupts, ends.
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
            written.handed = self.make_ready(&rows).await?;
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
            // A waiting or paused run keeps its `waiting_for`, and neither `started_at` nor `reopened_at` is set: it
            // does not begin now.
            sqlx::query!(
                "WITH moved AS (
                     UPDATE heddle.runs_live l
                        SET state = w.state, progress = w.progress,
                            started_at = CASE WHEN w.state IN (0, 2) THEN l.started_at
                                              ELSE coalesce(l.started_at, $4) END,
                            reopened_at = CASE WHEN l.reopened_at IS NOT NULL AND l.waiting_for IS NOT NULL
                                               AND w.state NOT IN (0, 2) THEN $4 ELSE l.reopened_at END,
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
        (written.parents_notified, written.followed) = self.finish(writes).await?;
        let notices: Vec<NewNotices> = writes
            .iter()
            .filter_map(|write| write.notices.as_deref().cloned())
            .collect();
        self.insert_notices(&notices).await?;
        Ok(written)
    }

    /// Makes attempts ready; returns whether this node got those that were meant for it.
    async fn make_ready(&mut self, rows: &[(&RunWrite, &ReadyRow)]) -> Result<bool, StoreError> {
        let by = Keys::of(rows, |(write, row)| (write.run, row.at));
        Ok(sqlx::query_file_scalar!(
            "src/sql/make_ready.sql",
            &by.runs,
            &by.tasks,
            &by.items,
            &by.attempts,
            &column(rows, |(write, _)| write.priority),
            &column(rows, |(_, row)| row.position),
            &column(rows, |(_, row)| row.handed),
            self.lease,
            self.now
        )
        .fetch_one(&mut *self.tx)
        .await?)
    }

    async fn finish(&mut self, writes: &[RunWrite]) -> Result<(bool, bool), StoreError> {
        let mut ended: Vec<&RunWrite> = writes.iter().filter(|write| write.state.is_final()).collect();
        if ended.is_empty() {
            return Ok((false, false));
        }
        ended.sort_unstable_by_key(|write| write.run);
        let timed: Vec<Uuid> = ended
            .iter()
            .filter(|write| write.timed)
            .map(|write| write.run.0)
            .collect();
        drop_timers_of(&mut self.tx, &timed).await?;
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
        self.finish_runs(&ended).await
    }

    async fn write_timers(&mut self, writes: &[RunWrite]) -> Result<(), StoreError> {
        let dropped: Vec<(RunId, TaskKey, TimerKind)> = writes
            .iter()
            .flat_map(|write| {
                write
                    .drop_timers
                    .iter()
                    .map(move |&key| (write.run, key, TimerKind::Retry))
            })
            .collect();
        drop_timers(&mut self.tx, &dropped).await?;
        let ready = writes
            .iter()
            .flat_map(|write| write.ready.iter().map(move |row| (write.run, row)));
        let mut timers: Vec<NewTimer> = writes
            .iter()
            .flat_map(|write| write.timers.iter().map(move |&(due, at)| (write.run, due, at)))
            .map(|(run, due, at)| NewTimer {
                run,
                at,
                kind: TimerKind::Retry,
                due,
            })
            .collect();
        timers.extend(claim_timers(ready, self.now));
        put_timers(&mut self.tx, &timers).await
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
        // Waits for claims in progress; the next statement sees where they have put the rows.
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
        self.dated([]);
        let rows = sqlx::query_file!("src/sql/interrupt.sql", &runs, &tasks, &items, self.now)
            .fetch_all(&mut *self.tx)
            .await?;
        self.dated(rows.iter().map(|row| row.finished_at));
        Ok(rows
            .into_iter()
            .map(|row| Interrupted {
                run: RunId(row.run),
                at: AttemptKey::from_numbers(row.task, row.item, row.attempt),
                lease: row.lease,
                started_at: row.started_at,
                finished_at: row.finished_at,
                node: row.node,
            })
            .collect())
    }

    /// Takes back all ready rows of one run.
    pub async fn withdraw_of(&mut self, run: RunId) -> Result<Vec<TaskKey>, StoreError> {
        let withdrawn = self.withdraw(&[run]).await?;
        Ok(withdrawn.into_iter().map(|(_, key)| key).collect())
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
        self.dated([]);
        Ok(withdrawn)
    }
}
