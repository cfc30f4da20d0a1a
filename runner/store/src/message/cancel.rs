//! Cancels: only batches that are already claimed are still sent, and the counts stay right.

use std::collections::HashSet;

use chrono::NaiveDate;
use serde_json::{Value, json};
use uuid::Uuid;

use super::find::MessageState;
use super::lock::{Plans, by_reading, day_number, lock_topic, set_state};
use super::waiting::waiting_in;
use crate::change::{By, Noun};
use crate::database::PgSession;
use crate::transaction::transaction;
use crate::{Store, StoreError, audit};

/// Which messages to cancel; at least one field is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CancelFilter {
    pub day: Option<NaiveDate>,
    pub bucket: Option<i16>,
    pub sender: Option<i64>,
    pub receiver: Option<i64>,
}

impl CancelFilter {
    fn is_whole_day(&self) -> bool {
        self.bucket.is_none() && self.sender.is_none() && self.receiver.is_none()
    }
}

/// The result of cancelling one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// It will not be sent.
    Done,
    /// There is no such message.
    Missing,
    /// A node or worker is handling it: it is not retried if it fails.
    InHand,
    /// It has ended: sent, failed, or cancelled before.
    Ended,
}

/// The result of a cancel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CancelReport {
    /// How many messages it has cancelled.
    pub cancelled: u64,
    /// Runs whose batches have no messages left.
    pub emptied: Vec<Uuid>,
}

/// Marks messages as cancelled and counts them. The topic's lock is held; none of them is counted yet.
pub(super) async fn record_in(
    connection: &mut PgSession,
    topic: i32,
    day: NaiveDate,
    ids: &[Uuid],
) -> Result<(), StoreError> {
    if ids.is_empty() {
        return Ok(());
    }
    set_state(connection, topic, day, ids, 1).await?;
    count_in(connection, topic, day, ids).await
}

async fn count_in(connection: &mut PgSession, topic: i32, day: NaiveDate, ids: &[Uuid]) -> Result<(), StoreError> {
    sqlx::query!(
        "INSERT INTO heddle.message_outcomes AS o (topic, day, bucket, cancelled)
         SELECT $1, $2, heddle.message_bucket(i.id), count(*) FROM UNNEST($3::uuid[]) AS i (id)
          GROUP BY heddle.message_bucket(i.id) ORDER BY 3
         ON CONFLICT (topic, day, bucket) DO UPDATE
            SET cancelled = o.cancelled + excluded.cancelled, last_at = excluded.last_at",
        topic,
        day,
        ids
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// The cancel of a message that has not ended, for the audit: the message before and after.
fn audited(id: Uuid, in_batch: bool, retries: bool, done: Cancelled) -> (Value, Value) {
    let was = match (in_batch, retries) {
        (true, _) => MessageState::Sending,
        (false, true) => MessageState::Retrying,
        (false, false) => MessageState::Scheduled,
    };
    let after = match done {
        Cancelled::InHand => json!({"id": id, "state": was.as_str(), "retried": false}),
        _ => json!({"id": id, "state": MessageState::Cancelled.as_str()}),
    };
    (json!({"id": id, "state": was.as_str()}), after)
}

impl Store {
    /// Cancels the messages of a filter that are not sent and that no node or worker is handling; those that wait in a
    /// queue are cancelled too. The messages that are being handled are not retried. Each day is its own transaction,
    /// so that messages can be sent in between.
    pub async fn cancel_messages(
        &self,
        by: By<'_>,
        topic: i32,
        name: &str,
        filter: CancelFilter,
    ) -> Result<CancelReport, StoreError> {
        // Messages may have come to a day after it was noted as drained: see `release_days`.
        let days = sqlx::query_scalar!(
            "SELECT d.day FROM heddle.message_days d
              WHERE d.topic = $1 AND d.dropped_at IS NULL AND ($2::date IS NULL OR d.day = $2)
                AND (d.drained_at IS NULL
                  OR EXISTS (SELECT FROM heddle.message_slices s WHERE s.topic = $1 AND s.day = d.day AND s.state = 0)
                  OR EXISTS (SELECT FROM heddle.message_batches b WHERE b.topic = $1 AND b.day = d.day)
                  OR EXISTS (SELECT FROM heddle.message_retries r
                              WHERE r.topic = $1 AND r.day = d.day AND r.due_at IS NOT NULL))
              ORDER BY d.day",
            topic,
            filter.day
        )
        .fetch_all(&self.pool)
        .await?;
        let mut report = CancelReport::default();
        for day in days {
            let of_day = transaction!(self, pool, "cancel_messages", |tx| {
                tx.patiently();
                if lock_topic(&mut tx, topic, Plans::OfTheirDay).await?.is_none() {
                    return Ok(None);
                }
                let of_day = match filter.is_whole_day() {
                    true => cancel_day(&mut tx, topic, day).await?,
                    false => cancel_some(&mut tx, topic, day, filter).await?,
                };
                tx.commit().await?;
                Ok(Some(of_day))
            })?;
            let Some(of_day) = of_day else { break };
            report.cancelled += of_day.cancelled;
            report.emptied.extend(of_day.emptied);
        }
        transaction!(self, pool, "audit_cancel_messages", |tx| {
            tx.patiently();
            let said = json!({
                "cancelled": report.cancelled, "day": filter.day, "bucket": filter.bucket, "sender": filter.sender,
                "receiver": filter.receiver,
            });
            audit::record(&mut tx, by, "cancel", Noun::Topic.quiet(), name, None, Some(&said)).await?;
            Ok(tx.commit().await?)
        })?;
        Ok(report)
    }

    /// Cancels one message; also returns the run whose batch has no messages left.
    pub async fn cancel_message(
        &self,
        by: By<'_>,
        topic: i32,
        name: &str,
        (day, bucket): (NaiveDate, i16),
        id: Uuid,
    ) -> Result<(Cancelled, Option<Uuid>), StoreError> {
        transaction!(self, pool, "cancel_message", |tx| {
            tx.patiently();
            if lock_topic(&mut tx, topic, Plans::OfTheirDay).await?.is_none() {
                return Ok((Cancelled::Missing, None));
            }
            let row = sqlx::query!(
            r#"SELECT m.state, s.state = 2 AS "stopped!", (m.bucket, m.id) > (s.bucket, s.id) AS "waits!",
                      EXISTS (SELECT FROM heddle.message_retries r
                               WHERE r.topic = $1 AND r.day = $2 AND r.bucket = $3 AND r.id = $4 AND r.due_at IS NOT NULL)
                          AS "retries!",
                      EXISTS (SELECT FROM heddle.message_batches b WHERE b.topic = $1 AND b.day = $2 AND $4 = ANY (b.ids))
                          AS "in_batch!"
                 FROM heddle.messages m
                 JOIN heddle.message_slices s ON s.topic = $1 AND s.day = $2 AND s.slice = m.slice
                WHERE m.day = $2 AND m.topic = $1 AND m.bucket = $3 AND m.id = $4"#,
            topic,
            day,
            bucket,
            id
        )
        .fetch_optional(&mut *tx)
        .await?;
            let Some(row) = row else {
                return Ok((Cancelled::Missing, None));
            };
            let mut emptied = None;
            let waiting = match row.in_batch {
                true => waiting_in(&mut tx, topic, day).await?,
                false => Vec::new(),
            };
            let answer = if let Some(mut batch) = waiting.into_iter().find(|batch| batch.ids.contains(&id)) {
                batch.lose(&mut tx, &[id]).await?;
                record_in(&mut tx, topic, day, &[id]).await?;
                emptied = batch.ids.is_empty().then_some(batch.run);
                Cancelled::Done
            } else if row.in_batch {
                sqlx::query!(
                    "UPDATE heddle.messages SET state = 3 WHERE day = $2 AND topic = $1 AND bucket = $3 AND id = $4",
                    topic,
                    day,
                    bucket,
                    id
                )
                .execute(&mut *tx)
                .await?;
                Cancelled::InHand
            } else if row.retries || row.state == 0 && row.waits && !row.stopped {
                sqlx::query!(
                    "DELETE FROM heddle.message_retries WHERE topic = $1 AND day = $2 AND bucket = $3 AND id = $4",
                    topic,
                    day,
                    bucket,
                    id
                )
                .execute(&mut *tx)
                .await?;
                record_in(&mut tx, topic, day, &[id]).await?;
                Cancelled::Done
            } else {
                Cancelled::Ended
            };
            if answer != Cancelled::Ended {
                let (before, after) = audited(id, row.in_batch, row.retries, answer);
                let about = Noun::Topic.quiet();
                audit::record(&mut tx, by, "cancel", about, name, Some(&before), Some(&after)).await?;
            }
            tx.commit().await?;
            Ok((answer, emptied))
        })
    }
}

/// Cancels the messages of a day that wait in queues and satisfy a condition.
async fn cancel_waiting(
    connection: &mut PgSession,
    topic: i32,
    day: NaiveDate,
    chosen: impl Fn(&Uuid) -> bool,
) -> Result<CancelReport, StoreError> {
    let mut report = CancelReport::default();
    for mut batch in waiting_in(connection, topic, day).await? {
        let gone: Vec<Uuid> = batch.ids.iter().copied().filter(&chosen).collect();
        if gone.is_empty() {
            continue;
        }
        batch.lose(connection, &gone).await?;
        record_in(connection, topic, day, &gone).await?;
        report.cancelled += gone.len() as u64;
        if batch.ids.is_empty() {
            report.emptied.push(batch.run);
        }
    }
    Ok(report)
}

/// A whole day: its slices are marked, its messages are not written.
///
/// Locking: the day, after the topic. This waits for open ingest on a topic of days: a transaction of ingest comes before
/// this, or goes into the next slice. (A topic of instants needs no such lock: its slices and counts become visible
/// together.)
async fn cancel_day(connection: &mut PgSession, topic: i32, day: NaiveDate) -> Result<CancelReport, StoreError> {
    sqlx::query!("SELECT pg_advisory_xact_lock($1, $2)", topic, day_number(day))
        .execute(&mut *connection)
        .await?;
    // Before the rest is counted: messages that were removed from their batch have ended.
    let mut report = cancel_waiting(connection, topic, day, |_| true).await?;
    let cancelled = sqlx::query_file_scalar!("src/sql/message_cancel_day.sql", topic, day)
        .fetch_one(&mut *connection)
        .await?;
    sqlx::query!(
        "DELETE FROM heddle.message_retries WHERE topic = $1 AND day = $2 AND due_at IS NOT NULL",
        topic,
        day
    )
    .execute(connection)
    .await?;
    report.cancelled += cancelled.unsigned_abs();
    Ok(report)
}

/// Cancels the messages of a day that a filter names, if it names more than the day.
async fn cancel_some(
    connection: &mut PgSession,
    topic: i32,
    day: NaiveDate,
    filter: CancelFilter,
) -> Result<CancelReport, StoreError> {
    let bucket = match (filter.bucket, filter.sender) {
        (Some(bucket), Some(sender)) if heddle_domain::message::bucket_of(sender) != bucket => {
            return Ok(CancelReport::default());
        }
        (bucket, sender) => bucket.or(sender.map(heddle_domain::message::bucket_of)),
    };
    let filter = CancelFilter { bucket, ..filter };
    let cancelled = cancel_free(connection, topic, day, filter).await?;
    let in_batches = in_batches(connection, topic, day, filter).await?;
    let mut report = CancelReport::default();
    if !in_batches.is_empty() {
        // Messages that are being handled are not retried; all others are cancelled.
        let ids: Vec<Uuid> = in_batches.iter().copied().collect();
        set_state(connection, topic, day, &ids, 3).await?;
        report = cancel_waiting(connection, topic, day, |id| in_batches.contains(id)).await?;
    }
    report.cancelled += cancelled.unsigned_abs();
    Ok(report)
}

/// Cancels the messages that no batch has, and those that wait for a retry; returns how many. A filter's bucket is set if
/// it has a sender.
async fn cancel_free(
    connection: &mut PgSession,
    topic: i32,
    day: NaiveDate,
    filter: CancelFilter,
) -> Result<i64, StoreError> {
    let cancelled = match filter.bucket {
        Some(bucket) => {
            sqlx::query_file_scalar!(
                "src/sql/message_cancel_bucket.sql",
                topic,
                day,
                bucket,
                filter.sender,
                filter.receiver
            )
            .fetch_one(&mut *connection)
            .await?
        }
        // A sender determines the bucket, so the filter has a receiver.
        None => {
            by_reading(connection, true).await?;
            let receiver = filter.receiver;
            let cancelled = sqlx::query_file_scalar!("src/sql/message_cancel_reading.sql", topic, day, receiver)
                .fetch_one(&mut *connection)
                .await?;
            by_reading(connection, false).await?;
            cancelled
        }
    };
    let retries = sqlx::query_file_scalar!(
        "src/sql/message_cancel_retries.sql",
        topic,
        day,
        filter.bucket,
        filter.sender,
        filter.receiver
    )
    .fetch_one(connection)
    .await?;
    Ok(cancelled + retries)
}

/// The messages that are in a batch, whether somebody holds it or it waits in a queue.
async fn in_batches(
    connection: &mut PgSession,
    topic: i32,
    day: NaiveDate,
    filter: CancelFilter,
) -> Result<HashSet<Uuid>, StoreError> {
    let ids = sqlx::query_scalar!(
        r#"SELECT h.id AS "id!"
             FROM (SELECT UNNEST(b.ids) AS id FROM heddle.message_batches b WHERE b.topic = $1 AND b.day = $2) AS h
            WHERE (SELECT m.state IN (0, 3) AND ($3::smallint IS NULL OR m.bucket = $3)
                          AND ($4::bigint IS NULL OR m.sender = $4) AND ($5::bigint IS NULL OR m.receiver = $5)
                     FROM heddle.messages m
                    WHERE m.day = $2 AND m.topic = $1 AND m.bucket = heddle.message_bucket(h.id) AND m.id = h.id
                    LIMIT 1)"#,
        topic,
        day,
        filter.bucket,
        filter.sender,
        filter.receiver
    )
    .fetch_all(connection)
    .await?;
    Ok(ids.into_iter().collect())
}
