//! Batches that wait in queues, or are held by workers: each is in the params of a run.
//!
//! # What is cancelled while it waits
//!
//! If no worker holds a batch, a cancel removes messages from it at once (`waiting.rs`), under a lock of the batch's
//! row. A worker that claims it meanwhile reads that row before it gets anything ([`Store::cut_queue_batch`]), under a
//! shared lock. So either the cancel sees the claim, which is committed by then, and leaves the batch to the worker; or
//! the worker gets the remaining messages. A cancel does not wait for a run that is just ending: it skips that run. It
//! delays the end of the other runs by shared locks on their rows.

use chrono::NaiveDate;
use heddle_domain::state::{ErrorKind, RunState};
use uuid::Uuid;

use super::batch::{Tried, by_ids, read_tried};
use super::lock::{Plans, lock_topic};
use super::waiting::QueuedBatch;
use crate::database::PgSession;
use crate::live::ClaimKey;
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// How many of a topic's batches one tick settles.
const ENDED_MAX: i64 = 100;

/// A batch that a queue's worker has finished.
#[derive(Clone, Debug, PartialEq)]
pub struct EndedQueueBatch {
    pub id: Uuid,
    pub day: NaiveDate,
    pub ids: Vec<Uuid>,
    pub tried: Vec<Tried>,
    /// The state in which its run has ended; `None`: the run was deleted.
    pub state: Option<RunState>,
    /// What the worker reported, as JSON text; it may name messages that failed.
    pub output: Option<String>,
    pub error: Option<String>,
    /// The worker reported that another try is useless.
    pub fatal: bool,
}

impl Store {
    /// A node has created a run for its batch, and the run has it from now on. `false`: somebody else has taken the
    /// batch.
    pub async fn hand_batch_to_run(&self, batch: Uuid, lease: i64, run: Uuid) -> Result<bool, StoreError> {
        let done = sqlx::query!(
            "UPDATE heddle.message_batches SET lease = 0, run = $3 WHERE id = $1 AND lease = $2",
            batch,
            lease,
            run
        )
        .execute(&self.pool)
        .await?;
        Ok(done.rows_affected() == 1)
    }

    /// The messages that a worker gets of a batch that waited in a queue: without those that were cancelled while it
    /// waited, which are removed from the batch. `None`: there is no such batch (any more).
    pub async fn cut_queue_batch(&self, topic: i32, batch: Uuid) -> Result<Option<Vec<Uuid>>, StoreError> {
        // Checked before taking the topic's lock, for which the claims of others wait: almost always there is nothing
        // to do.
        let looked: Option<(NaiveDate, Vec<Uuid>, bool)> =
            transaction!(self, pool, "look_at_queue_batch", once, |tx| {
                let Some((day, ids)) = ids_of(&mut tx, topic, batch).await? else {
                    return Ok(None);
                };
                plan_for_its_day(&mut tx).await?;
                let untouched = !by_ids(&mut tx, topic, day, &ids).await?.iter().any(|entry| entry.1);
                // This releases the shared lock on the batch's row.
                tx.rollback().await?;
                Ok(Some((day, ids, untouched)))
            })?;
        let day = match looked {
            None => return Ok(None),
            Some((_, ids, true)) => return Ok(Some(ids)),
            Some((day, _, false)) => day,
        };
        transaction!(self, pool, "cut_queue_batch", once, |tx| {
            if lock_topic(&mut tx, topic, Plans::OfTheirDay).await?.is_none() {
                return Ok(None);
            }
            let row = sqlx::query!(
                "SELECT ids, retries FROM heddle.message_batches WHERE id = $1 AND topic = $2",
                batch,
                topic
            )
            .fetch_optional(&mut *tx)
            .await?;
            let Some(row) = row else { return Ok(None) };
            let found = by_ids(&mut tx, topic, day, &row.ids).await?;
            let stopped: Vec<Uuid> = found.iter().filter(|entry| entry.1).map(|entry| entry.0.id).collect();
            super::cancel::record_in(&mut tx, topic, day, &stopped).await?;
            let mut batch_row = QueuedBatch {
                id: batch,
                run: Uuid::nil(),
                ids: row.ids,
                tried: read_tried(batch, row.retries)?,
            };
            batch_row.lose(&mut tx, &stopped).await?;
            tx.commit().await?;
            Ok(Some(batch_row.ids))
        })
    }

    /// The messages of a batch that a worker holds by this claim: those that it was given. `None`: it does not hold the
    /// batch (any more).
    pub async fn held_of_queue_batch(
        &self,
        topic: i32,
        batch: Uuid,
        claim: &ClaimKey,
    ) -> Result<Option<Vec<Uuid>>, StoreError> {
        Ok(sqlx::query_scalar!(
            "SELECT b.ids FROM heddle.message_batches b
              WHERE b.id = $1 AND b.topic = $2
                AND EXISTS (SELECT FROM heddle.running r WHERE r.run = $3 AND r.lease = $4)",
            batch,
            topic,
            claim.run.0,
            claim.lease
        )
        .fetch_optional(&self.pool)
        .await?)
    }

    /// Batches of a topic whose runs have ended, or were deleted: up to a hundred, except those that are passed over. Each
    /// has its id, also if the rest of it cannot be read.
    pub async fn ended_queue_batches(
        &self,
        topic: i32,
        passed_over: &[Uuid],
    ) -> Result<Vec<(Uuid, Result<EndedQueueBatch, StoreError>)>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT b.id, b.day, b.ids, b.retries, d.state AS "state?", d.error AS "error?",
                      (SELECT a.output FROM heddle.attempts a
                        WHERE a.run = b.run AND a.task = 0 AND a.item = -1 AND a.output IS NOT NULL
                        ORDER BY a.attempt DESC LIMIT 1) AS output,
                      coalesce((SELECT a.error_kind = $3 FROM heddle.attempts a
                                 WHERE a.run = b.run AND a.task = 0 AND a.item = -1
                                 ORDER BY a.attempt DESC LIMIT 1), false) AS "fatal!"
                 FROM heddle.message_batches b LEFT JOIN heddle.runs_done d ON d.id = b.run
                WHERE b.topic = $1 AND b.run IS NOT NULL AND b.id <> ALL ($4)
                  AND NOT EXISTS (SELECT FROM heddle.runs_live l WHERE l.id = b.run OFFSET 0)
                LIMIT $2"#,
            topic,
            ENDED_MAX,
            ErrorKind::Fatal.number(),
            passed_over
        )
        .fetch_all(&self.pool)
        .await?;
        let ended = rows.into_iter().map(|row| {
            let id = row.id;
            let state = |number| StoreError::known(RunState::from_number, number, ("runs_done", "state"), id);
            let read = || -> Result<EndedQueueBatch, StoreError> {
                Ok(EndedQueueBatch {
                    id,
                    day: row.day,
                    ids: row.ids,
                    tried: read_tried(id, row.retries)?,
                    state: row.state.map(state).transpose()?,
                    output: row.output,
                    error: row.error,
                    fatal: row.fatal,
                })
            };
            (id, read())
        });
        Ok(ended.collect())
    }
}

/// The day and the messages of a claimed batch.
///
/// Locking: the batch's row, shared, and no other; it is released before the topic's lock is taken.
async fn ids_of(
    connection: &mut PgSession,
    topic: i32,
    batch: Uuid,
) -> Result<Option<(NaiveDate, Vec<Uuid>)>, StoreError> {
    let row = sqlx::query!(
        "SELECT day, ids FROM heddle.message_batches WHERE id = $1 AND topic = $2 FOR SHARE",
        batch,
        topic
    )
    .fetch_optional(connection)
    .await?;
    Ok(row.map(|row| (row.day, row.ids)))
}

/// Later statements of the transaction name a day of messages, and are planned for that day, as in `message_lock`.
async fn plan_for_its_day(connection: &mut PgSession) -> Result<(), StoreError> {
    sqlx::query!(
        r#"SELECT set_config('plan_cache_mode', 'force_custom_plan', true) AS "plan!",
                  set_config('enable_sort', 'off', true) AS "sort!", set_config('enable_bitmapscan', 'off', true) AS "bitmap!""#
    )
    .fetch_one(connection)
    .await?;
    Ok(())
}
