//! The next batch: one transaction that records the last batch and claims the next.

use chrono::NaiveDate;
use heddle_domain::message::bucket_in;
use heddle_domain::topic::group_name;
use uuid::Uuid;

use super::batch::{
    AHEAD_MAX, BatchMessage, BatchTerms, Claimed, MessageBatch, Tried, by_ids, fitting, read_tried, write_tried,
};
use super::finish::{Finish, Finished, finish_in};
use super::lock::{Plans, day_number, lock_topic};
use super::retry::{claim_retries, set_aside};
use crate::database::PgSession;
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// How many slices one batch spans at most.
const SLICES_MAX: i64 = 64;

/// How many empty parts one claim passes before it lets other claims go first.
const EMPTY_MAX: u32 = 16;

/// How many nodes may die while they handle a batch before its messages count as failed.
const LOSSES_MAX: i32 = 5;

impl Store {
    /// Records the result of a batch, if one is given, and claims the next, if one is wanted.
    pub async fn next_batch(
        &self,
        topic: i32,
        finish: Option<&Finish>,
        terms: Option<&BatchTerms>,
    ) -> Result<(Finished, Claimed), StoreError> {
        transaction!(self, pool, "next_message_batch", once, |tx| {
            let Some(drain) = lock_topic(&mut tx, topic, Plans::Kept).await? else {
                return Ok((Finished::Lost, Claimed::Refused));
            };
            let finished = match finish {
                Some(finish) => finish_in(&mut tx, topic, finish).await?,
                None => Finished::Done,
            };
            if let Finished::Refused(_) = &finished {
                // Rolled back: the caller records failures instead.
                return Ok((finished, Claimed::Later(0)));
            }
            let claimed = match terms {
                Some(terms) => {
                    let allowed = terms
                        .rate
                        .map(|(count, per_ms)| (drain.allowance + drain.since_ms * count / per_ms).min(count));
                    let claimed = claim_in(&mut tx, terms, allowed, finish.is_none()).await?;
                    if let (Claimed::Batch(batch), Some(allowed)) = (&claimed, allowed) {
                        sqlx::query!(
                        "UPDATE heddle.topic_drains SET allowance = $2, allowed_at = clock_timestamp() WHERE topic = $1",
                        topic,
                        allowed - batch.messages.len() as f64
                    )
                    .execute(&mut *tx)
                    .await?;
                    }
                    if drain.problem.is_some() && matches!(claimed, Claimed::Batch(_)) {
                        sqlx::query!("UPDATE heddle.topic_drains SET problem = NULL WHERE topic = $1", topic)
                            .execute(&mut *tx)
                            .await?;
                    }
                    claimed
                }
                None => Claimed::Nothing,
            };
            tx.commit().await?;
            Ok((finished, claimed))
        })
    }
}

async fn claim_in(
    connection: &mut PgSession,
    terms: &BatchTerms,
    allowed: Option<f64>,
    only_claims: bool,
) -> Result<Claimed, StoreError> {
    let found = sqlx::query_file!("src/sql/message_work.sql", terms.topic, terms.lease, only_claims)
        .fetch_one(&mut *connection)
        .await?;
    if !found.alive {
        return Ok(Claimed::Refused);
    }
    if let Some(lost) = found.lost {
        if terms.concurrency.is_none() && found.mine > 0 {
            // A batch that a dead node left is handled alone: if it makes a node die, no other batch is affected.
            return Ok(Claimed::Full);
        }
        return take_over(connection, terms, lost).await;
    }
    let full = match terms.concurrency {
        // Each node has its maximum, so that none sends alone while others wait.
        Some(most) => {
            let nodes = found.nodes.max(1);
            let share = (i64::from(most) + nodes - 1) / nodes;
            found.in_hand >= i64::from(most) || !terms.queued && found.mine >= share
        }
        None => found.mine >= AHEAD_MAX,
    };
    if full {
        return Ok(Claimed::Full);
    }
    let limit = match allowed {
        Some(allowed) if allowed < 1.0 => {
            let (count, per_ms) = terms.rate.unwrap_or((1.0, 1.0));
            return Ok(Claimed::Later(((1.0 - allowed) * per_ms / count).ceil() as u64));
        }
        Some(allowed) => terms.messages_max.min(allowed as i64),
        None => terms.messages_max,
    };
    let head = match (found.day, found.slice, found.bucket, found.id, found.sealed) {
        (Some(day), Some(slice), Some(bucket), Some(id), Some(sealed)) => Some(Head {
            day,
            sealed,
            front: Front {
                slice,
                bucket,
                id,
                done: false,
            },
        }),
        _ => None,
    };
    match (found.retry_day, head) {
        (Some(day), None) => claim_retries(connection, terms, day, limit).await,
        (Some(day), Some(_)) if terms.retries_first => claim_retries(connection, terms, day, limit).await,
        (_, Some(head)) => claim_slices(connection, terms, head, limit).await,
        (None, None) => Ok(Claimed::Nothing),
    }
}

/// A batch that a node left behind, with the same messages, except those that were cancelled meanwhile. Messages that
/// do not fit any more are left out too: the topic went to a script when they were claimed, and goes to a queue now,
/// whose batches are smaller. They become due retries, because nobody could ever take such a batch.
///
/// If the node has put the batch into a queue before it died, the batch is its run's from now on: a worker may have sent it
/// already.
async fn take_over(connection: &mut PgSession, terms: &BatchTerms, lost: Uuid) -> Result<Claimed, StoreError> {
    if let Some(run) = run_of(connection, terms.topic, lost).await? {
        sqlx::query!(
            "UPDATE heddle.message_batches SET lease = 0, run = $2 WHERE id = $1 AND run IS NULL",
            lost,
            run
        )
        .execute(connection)
        .await?;
        return Ok(Claimed::Later(0));
    }
    let row = sqlx::query!(
        "UPDATE heddle.message_batches SET lease = $2, losses = losses + 1, claimed_at = clock_timestamp()
          WHERE id = $1 RETURNING day, ids, retries, losses",
        lost,
        terms.lease
    )
    .fetch_optional(&mut *connection)
    .await?;
    let Some(row) = row else {
        // Its former node has recorded it meanwhile.
        return Ok(Claimed::Later(0));
    };
    let mut tried: Vec<Tried> = read_tried(lost, row.retries)?;
    let found = by_ids(connection, terms.topic, row.day, &row.ids).await?;
    if !tried.is_empty() {
        let kept: std::collections::HashSet<Uuid> =
            found.iter().filter(|entry| !entry.1).map(|entry| entry.0.id).collect();
        let mut ids = row.ids.iter();
        tried.retain(|_| ids.next().is_some_and(|id| kept.contains(id)));
    }
    let (stopped, kept): (Vec<_>, Vec<_>) = found.into_iter().partition(|entry| entry.1);
    let mut messages: Vec<BatchMessage> = kept.into_iter().map(|entry| entry.0).collect();
    let rest = messages.split_off(fitting(&messages, terms));
    if !stopped.is_empty() || !rest.is_empty() || messages.is_empty() {
        let stopped: Vec<Uuid> = stopped.into_iter().map(|entry| entry.0.id).collect();
        super::cancel::record_in(connection, terms.topic, row.day, &stopped).await?;
        let tried_of_rest = tried.split_off(messages.len().min(tried.len()));
        set_aside(connection, terms.topic, row.day, &rest, &tried_of_rest).await?;
        let ids: Vec<Uuid> = messages.iter().map(|message| message.id).collect();
        let retries = write_tried(&tried)?;
        sqlx::query!(
            "UPDATE heddle.message_batches SET ids = $2, retries = $3 WHERE id = $1",
            lost,
            &ids,
            retries
        )
        .execute(&mut *connection)
        .await?;
    }
    if messages.is_empty() {
        sqlx::query!("DELETE FROM heddle.message_batches WHERE id = $1", lost)
            .execute(connection)
            .await?;
        return Ok(Claimed::Later(0));
    }
    Ok(Claimed::Batch(MessageBatch {
        id: lost,
        day: row.day,
        messages,
        tried,
        hopeless: row.losses > LOSSES_MAX,
    }))
}

/// The run that was created for a batch, whose id is its key in the topic's group.
async fn run_of(connection: &mut PgSession, topic: i32, batch: Uuid) -> Result<Option<Uuid>, StoreError> {
    Ok(sqlx::query_scalar!(
        "SELECT k.run FROM heddle.run_keys k
          WHERE k.group_id = (SELECT g.id FROM heddle.groups g WHERE g.name = $1 AND g.deleted_at IS NULL) AND k.key = $2",
        group_name(topic),
        batch.to_string()
    )
    .fetch_optional(connection)
    .await?)
}

/// How far a slice has been claimed.
struct Front {
    slice: i64,
    bucket: i16,
    id: Uuid,
    done: bool,
}

/// The first due slice.
struct Head {
    day: NaiveDate,
    sealed: bool,
    front: Front,
}

async fn claim_slices(
    connection: &mut PgSession,
    terms: &BatchTerms,
    mut head: Head,
    limit: i64,
) -> Result<Claimed, StoreError> {
    for _ in 0..EMPTY_MAX {
        let day = head.day;
        // A topic of days has one open slice; others have many sealed ones.
        let by_day = head.front.slice <= 0;
        if by_day && !head.sealed && !seal(connection, terms.topic, day, head.front.slice).await? {
            // Ingest that began before midnight has not committed yet.
            return Ok(Claimed::Later(20));
        }
        let mut fronts = match by_day {
            true => vec![head.front],
            false => due_slices(connection, terms.topic, day).await?,
        };
        let messages = match by_day {
            true => next_of_day(connection, terms, day, &mut fronts[0], limit).await?,
            false => next_of_slices(connection, terms, day, &mut fronts, limit).await?,
        };
        sqlx::query_file!(
            "src/sql/message_advance.sql",
            terms.topic,
            day,
            &fronts.iter().map(|front| front.slice).collect::<Vec<_>>(),
            &fronts.iter().map(|front| front.bucket).collect::<Vec<_>>(),
            &fronts.iter().map(|front| front.id).collect::<Vec<_>>(),
            &fronts.iter().map(|front| front.done).collect::<Vec<_>>(),
            terms.id,
            terms.lease,
            &messages.iter().map(|message| message.id).collect::<Vec<_>>()
        )
        .execute(&mut *connection)
        .await?;
        if !messages.is_empty() {
            return Ok(Claimed::Batch(MessageBatch {
                id: terms.id,
                day,
                messages,
                tried: Vec::new(),
                hopeless: false,
            }));
        }
        match first_slice(connection, terms.topic).await? {
            Some(next) => head = next,
            None => return Ok(Claimed::Nothing),
        }
    }
    Ok(Claimed::Later(0))
}

/// Closes a day for ingest; `false`: somebody is still writing to it.
///
/// Locking: tries the lock that ingest shares, under the topic's, and never waits: the day is claimed later.
async fn seal(connection: &mut PgSession, topic: i32, day: NaiveDate, slice: i64) -> Result<bool, StoreError> {
    let alone = sqlx::query_scalar!(
        r#"SELECT pg_try_advisory_xact_lock($1, $2) AS "alone!""#,
        topic,
        day_number(day)
    )
    .fetch_one(&mut *connection)
    .await?;
    if alone {
        sqlx::query!(
            "UPDATE heddle.message_slices SET sealed = true WHERE topic = $1 AND day = $2 AND slice = $3",
            topic,
            day,
            slice
        )
        .execute(connection)
        .await?;
    }
    Ok(alone)
}

/// The slices of a day that are due, in the order in which they are sent.
async fn due_slices(connection: &mut PgSession, topic: i32, day: NaiveDate) -> Result<Vec<Front>, StoreError> {
    let rows = sqlx::query!(
        "SELECT slice, bucket, id FROM heddle.message_slices
          WHERE topic = $1 AND day = $2 AND state = 0 AND due_at <= clock_timestamp()
          ORDER BY due_at, slice LIMIT $3",
        topic,
        day,
        SLICES_MAX
    )
    .fetch_all(connection)
    .await?;
    let fronts = rows.into_iter().map(|row| Front {
        slice: row.slice,
        bucket: row.bucket,
        id: row.id,
        done: false,
    });
    Ok(fronts.collect())
}

/// The first slice that is due and not sent completely.
async fn first_slice(connection: &mut PgSession, topic: i32) -> Result<Option<Head>, StoreError> {
    let row = sqlx::query!(
        "SELECT day, slice, bucket, id, sealed FROM heddle.message_slices
          WHERE topic = $1 AND state = 0 AND due_at <= clock_timestamp() ORDER BY due_at, slice LIMIT 1",
        topic
    )
    .fetch_optional(connection)
    .await?;
    Ok(row.map(|row| Head {
        day: row.day,
        sealed: row.sealed,
        front: Front {
            slice: row.slice,
            bucket: row.bucket,
            id: row.id,
            done: false,
        },
    }))
}

async fn next_of_day(
    connection: &mut PgSession,
    terms: &BatchTerms,
    day: NaiveDate,
    front: &mut Front,
    limit: i64,
) -> Result<Vec<BatchMessage>, StoreError> {
    let rows = sqlx::query_file!(
        "src/sql/messages_of_day.sql",
        terms.topic,
        day,
        front.slice,
        front.bucket,
        front.id,
        limit
    )
    .fetch_all(connection)
    .await?;
    let mut messages: Vec<BatchMessage> = rows
        .into_iter()
        .map(|row| BatchMessage {
            id: row.id,
            bucket: bucket_in(row.id),
            sender: row.sender,
            receiver: row.receiver,
            due_at: None,
            payload: row.payload,
        })
        .collect();
    let fit = fitting(&messages, terms);
    front.done = (messages.len() as i64) < limit && fit == messages.len();
    messages.truncate(fit);
    if let Some(last) = messages.last() {
        (front.bucket, front.id) = (last.bucket, last.id);
    }
    Ok(messages)
}

async fn next_of_slices(
    connection: &mut PgSession,
    terms: &BatchTerms,
    day: NaiveDate,
    fronts: &mut Vec<Front>,
    limit: i64,
) -> Result<Vec<BatchMessage>, StoreError> {
    let rows = sqlx::query_file!(
        "src/sql/messages_of_slices.sql",
        terms.topic,
        day,
        &fronts.iter().map(|front| front.slice).collect::<Vec<_>>(),
        &fronts.iter().map(|front| front.bucket).collect::<Vec<_>>(),
        &fronts.iter().map(|front| front.id).collect::<Vec<_>>(),
        limit
    )
    .fetch_all(connection)
    .await?;
    let full = rows.len() as i64 == limit;
    let mut messages = Vec::with_capacity(rows.len());
    let mut slices = Vec::with_capacity(rows.len());
    for row in rows {
        slices.push(row.slice);
        messages.push(BatchMessage {
            id: row.id,
            bucket: row.bucket,
            sender: row.sender,
            receiver: row.receiver,
            due_at: row.due_at,
            payload: row.payload,
        });
    }
    let fit = fitting(&messages, terms);
    let cut = full || fit < messages.len();
    messages.truncate(fit);
    // Slices before the last one that gave a message have reached their end; what follows a cut was not read.
    let last = slices[..fit].last().copied();
    let last_index = fronts.iter().position(|front| Some(front.slice) == last);
    for (index, front) in fronts.iter_mut().enumerate() {
        if let Some(found) = (0..fit).rev().find(|&index| slices[index] == front.slice) {
            (front.bucket, front.id) = (messages[found].bucket, messages[found].id);
        }
        front.done = !cut || last_index.is_some_and(|last| index < last);
    }
    if let (true, Some(last)) = (cut, last_index) {
        fronts.truncate(last + 1);
    }
    Ok(messages)
}
