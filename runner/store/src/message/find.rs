//! Look-ups of messages: by id, or by a filter of day, bucket, sender and receiver.

use chrono::NaiveDate;
use heddle_domain::Time;
use heddle_domain::message::{address_of, bucket_of};
use uuid::Uuid;

use super::lock::by_reading;
use crate::change::Page;
use crate::database::PgSession;
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// How long one look-up may read, in milliseconds: a look-up by receiver alone reads whole days.
const SEARCH_MS_MAX: &str = "20000";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageSearch {
    pub day: Option<NaiveDate>,
    pub bucket: Option<i16>,
    pub sender: Option<i64>,
    pub receiver: Option<i64>,
}

/// The state of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageState {
    /// It is not due yet, or has not been claimed yet.
    Scheduled,
    /// A node or worker is handling it.
    Sending,
    /// It failed, and will be retried.
    Retrying,
    /// Its script or worker has accepted it.
    Sent,
    /// It was given up.
    Failed,
    /// It will not be sent.
    Cancelled,
}

impl MessageState {
    /// Its name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Sending => "sending",
            Self::Retrying => "retrying",
            Self::Sent => "sent",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    fn of(row: &RawMessage) -> Self {
        match (row.state, row.in_batch, row.retries) {
            (1, ..) => Self::Cancelled,
            (2, ..) => Self::Failed,
            (_, true, _) => Self::Sending,
            (_, _, true) => Self::Retrying,
            _ if !row.waits => Self::Sent,
            _ if row.stopped => Self::Cancelled,
            _ => Self::Scheduled,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct MessageRow {
    pub id: Uuid,
    pub sender: i64,
    pub receiver: i64,
    pub day: NaiveDate,
    pub bucket: i16,
    pub due_at: Option<Time>,
    /// The value as JSON text.
    pub payload: String,
    pub state: MessageState,
    pub attempt: Option<i32>,
    pub retry_at: Option<Time>,
    pub error: Option<String>,
}

struct RawMessage {
    id: Uuid,
    sender: i64,
    receiver: i64,
    day: NaiveDate,
    bucket: i16,
    due_at: Option<Time>,
    payload: String,
    state: i16,
    stopped: bool,
    waits: bool,
    in_batch: bool,
    retries: bool,
    attempt: Option<i32>,
    retry_at: Option<Time>,
    error: Option<String>,
}

impl From<RawMessage> for MessageRow {
    fn from(row: RawMessage) -> Self {
        let state = MessageState::of(&row);
        Self {
            id: row.id,
            sender: row.sender,
            receiver: row.receiver,
            day: row.day,
            bucket: row.bucket,
            due_at: row.due_at,
            payload: row.payload,
            state,
            attempt: row.attempt,
            retry_at: row.retry_at,
            error: row.error,
        }
    }
}

impl Store {
    /// Messages by day, bucket and id, after `after`. `None`: it takes too long; the filter has to be narrower.
    pub async fn messages(
        &self,
        topic: i32,
        filter: MessageSearch,
        after: Option<Uuid>,
        limit: i64,
    ) -> Result<Option<Page<MessageRow>>, StoreError> {
        match self.find(topic, filter, after, limit).await {
            Err(error) if error.is_cancelled() => Ok(None),
            other => other.map(Some),
        }
    }

    async fn find(
        &self,
        topic: i32,
        filter: MessageSearch,
        after: Option<Uuid>,
        limit: i64,
    ) -> Result<Page<MessageRow>, StoreError> {
        let from = after.and_then(address_of);
        let bucket = match (filter.bucket, filter.sender.map(bucket_of)) {
            (Some(one), Some(other)) if one != other => return Ok(Page::of(Vec::new(), limit, |_| String::new())),
            (one, other) => one.or(other),
        };
        transaction!(self, pool, "messages", once, |tx| {
            plan_for_days(&mut tx).await?;
            let days = sqlx::query_scalar!(
            "SELECT day FROM heddle.message_days
              WHERE topic = $1 AND dropped_at IS NULL AND ($2::date IS NULL OR day = $2) AND ($3::date IS NULL OR day >= $3)
              ORDER BY day",
            topic,
            filter.day,
            from.map(|from| from.0)
        )
        .fetch_all(&mut *tx)
        .await?;
            let mut found: Vec<MessageRow> = Vec::new();
            for day in days {
                let left = limit + 1 - found.len() as i64;
                if left <= 0 {
                    break;
                }
                let behind = from.filter(|from| from.0 == day);
                let (past, past_id) = (behind.map_or(-1, |from| from.1), behind.and(after).unwrap_or_default());
                let rows = match (bucket, filter.receiver) {
                    (None, Some(receiver)) => find_to(&mut tx, topic, day, (past, past_id), receiver, left).await?,
                    _ => {
                        sqlx::query_file_as!(
                            RawMessage,
                            "src/sql/messages_search.sql",
                            topic,
                            day,
                            past,
                            past_id,
                            bucket,
                            filter.sender,
                            filter.receiver,
                            left
                        )
                        .fetch_all(&mut *tx)
                        .await?
                    }
                };
                found.extend(rows.into_iter().map(MessageRow::from));
            }
            Ok(Page::of(found, limit, |row| row.id.to_string()))
        })
    }

    pub async fn message(&self, topic: i32, id: Uuid) -> Result<Option<MessageRow>, StoreError> {
        let Some((day, bucket)) = address_of(id) else {
            return Ok(None);
        };
        let before = Uuid::from_u128(id.as_u128().saturating_sub(1));
        transaction!(self, pool, "message", once, |tx| {
            plan_for_days(&mut tx).await?;
            let rows = sqlx::query_file_as!(
                RawMessage,
                "src/sql/messages_search.sql",
                topic,
                day,
                bucket,
                before,
                Some(bucket) as Option<i16>,
                None as Option<i64>,
                None as Option<i64>,
                1
            )
            .fetch_all(&mut *tx)
            .await?;
            Ok(rows.into_iter().next().map(MessageRow::from).filter(|row| row.id == id))
        })
    }
}

/// Plans are made for the named day, use the order of indexes, and have a time limit.
async fn plan_for_days(connection: &mut PgSession) -> Result<(), StoreError> {
    sqlx::query!(
        r#"SELECT set_config('plan_cache_mode', 'force_custom_plan', true) AS "plan!",
                  set_config('enable_sort', 'off', true) AS "sort!",
                  set_config('enable_bitmapscan', 'off', true) AS "bitmap!",
                  set_config('statement_timeout', $1, true) AS "timeout!""#,
        SEARCH_MS_MAX
    )
    .fetch_one(connection)
    .await?;
    Ok(())
}

/// Messages of a day to a receiver: the day is read in its physical order, and the matches are sorted.
async fn find_to(
    connection: &mut PgSession,
    topic: i32,
    day: NaiveDate,
    (bucket, id): (i16, Uuid),
    receiver: i64,
    limit: i64,
) -> Result<Vec<RawMessage>, StoreError> {
    by_reading(connection, true).await?;
    let ids = sqlx::query_file_scalar!("src/sql/messages_to.sql", topic, day, bucket, id, receiver, limit)
        .fetch_all(&mut *connection)
        .await?;
    by_reading(connection, false).await?;
    // The matches are few: a page.
    sqlx::query!(r#"SELECT set_config('enable_sort', 'on', true) AS "sort!""#)
        .fetch_one(&mut *connection)
        .await?;
    Ok(
        sqlx::query_file_as!(RawMessage, "src/sql/messages_named.sql", topic, day, &ids)
            .fetch_all(connection)
            .await?,
    )
}
