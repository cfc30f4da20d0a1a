//! Failed messages, claimed again.

use chrono::NaiveDate;
use uuid::Uuid;

use super::batch::{BatchMessage, BatchTerms, Claimed, Tried, by_ids, fitting, hold};
use crate::StoreError;
use crate::database::PgSession;

/// Claims due retries: as many as fit into a batch.
pub(super) async fn claim_retries(
    connection: &mut PgSession,
    terms: &BatchTerms,
    day: NaiveDate,
    limit: i64,
) -> Result<Claimed, StoreError> {
    // After many failures, batches are small: a message that makes the script trap affects fewer and fewer others.
    let rows = sqlx::query_file!("src/sql/message_retries.sql", terms.topic, day, limit)
        .fetch_all(&mut *connection)
        .await?;
    let mut ids: Vec<Uuid> = rows.iter().map(|row| row.id).collect();
    let mut tried: Vec<Tried> = rows
        .into_iter()
        .map(|row| Tried {
            attempt: row.attempt,
            retry: row.retry,
        })
        .collect();
    let mut messages: Vec<BatchMessage> = by_ids(connection, terms.topic, day, &ids)
        .await?
        .into_iter()
        .map(|entry| entry.0)
        .collect();
    if messages.len() != ids.len() {
        return Err(StoreError::unreadable(
            "message_retries",
            "id",
            format!("of topic {} and {day}", terms.topic),
            format!("that of {} messages which are missing", ids.len() - messages.len()),
        ));
    }
    // Each message was in a batch that was small enough. But these come from many batches, so together they may be too
    // large.
    let fit = fitting(&messages, terms);
    messages.truncate(fit);
    ids.truncate(fit);
    tried.truncate(fit);
    sqlx::query!(
        // One look-up for each, whatever the planner believes about their number; see `by_ids`.
        "DELETE FROM heddle.message_retries r
          WHERE r.ctid = ANY (ARRAY(
                SELECT f.ctid FROM UNNEST($3::uuid[]) AS i (id)
                 CROSS JOIN LATERAL (SELECT r.ctid FROM heddle.message_retries r
                                      WHERE r.topic = $1 AND r.day = $2 AND r.bucket = heddle.message_bucket(i.id)
                                        AND r.id = i.id LIMIT 1) AS f))",
        terms.topic,
        day,
        &ids
    )
    .execute(&mut *connection)
    .await?;
    hold(connection, terms, day, messages, tried).await
}

/// Makes messages of a claimed batch due again, with the data of their earlier attempts.
pub(super) async fn set_aside(
    connection: &mut PgSession,
    topic: i32,
    day: NaiveDate,
    messages: &[BatchMessage],
    tried: &[Tried],
) -> Result<(), StoreError> {
    if messages.is_empty() {
        return Ok(());
    }
    let of = |index: usize| tried.get(index).cloned().unwrap_or_default();
    sqlx::query!(
        "INSERT INTO heddle.message_retries (topic, day, bucket, id, attempt, retry, due_at, error)
         SELECT $1, $2, heddle.message_bucket(f.id), f.id, f.attempt, f.retry, clock_timestamp(), ''
           FROM UNNEST($3::uuid[], $4::integer[], $5::jsonb[]) AS f (id, attempt, retry)",
        topic,
        day,
        &messages.iter().map(|message| message.id).collect::<Vec<_>>(),
        &(0..messages.len()).map(|index| of(index).attempt).collect::<Vec<_>>(),
        &(0..messages.len()).map(|index| of(index).retry).collect::<Vec<_>>()
    )
    .execute(connection)
    .await?;
    Ok(())
}
