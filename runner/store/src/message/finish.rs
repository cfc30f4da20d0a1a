//! How a batch ends.

use std::collections::HashSet;

use chrono::NaiveDate;
use heddle_domain::Time;
use serde_json::Value;
use uuid::Uuid;

use super::lock::set_state;
use crate::database::PgSession;
use crate::{Store, StoreError};

/// A message that failed.
#[derive(Clone, Debug, PartialEq)]
pub struct FailedMessage {
    pub id: Uuid,
    pub bucket: i16,
    /// The number of attempts so far.
    pub attempt: i32,
    /// The state of the retry policy.
    pub retry: Value,
    /// When it is retried; `None`: it is given up.
    pub due_at: Option<Time>,
    pub error: String,
}

/// What a script wants to be written together with its batch's outcomes.
#[derive(Clone, Debug, PartialEq)]
pub enum MessageEffect {
    /// A run of a group.
    Enqueue {
        group: String,
        params: Value,
        /// With it, a repeat creates no second run.
        key: Option<String>,
    },
    /// A notification, sent by the channel of this name.
    Notify {
        channel: String,
        subject: String,
        body: String,
    },
}

/// The result of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    pub batch: Uuid,
    pub day: NaiveDate,
    /// The lease of the node that holds the batch; 0: a run in a queue holds it.
    pub lease: i64,
    /// How many were sent, by bucket: each bucket once, in order.
    pub sent: Vec<(i16, i64)>,
    pub failed: Vec<FailedMessage>,
    pub effects: Vec<MessageEffect>,
}

/// Whether the outcome was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finished {
    Done,
    /// Somebody else has the batch: nothing was written.
    Lost,
    /// Its effects are impossible, for this reason: nothing was written.
    Refused(String),
}

impl Finish {
    /// Whether all messages were sent, and nothing else is to be written.
    pub fn is_plain(&self) -> bool {
        self.failed.is_empty() && self.effects.is_empty()
    }
}

impl Store {
    /// Records a batch that [is plain](Finish::is_plain), in one statement, while claims of the topic may go on.
    pub async fn finish_plain(&self, topic: i32, finish: &Finish) -> Result<Finished, StoreError> {
        debug_assert!(finish.is_plain());
        let mut connection = self.pool.acquire().await?;
        match count_sent(&mut connection, topic, finish).await? {
            true => Ok(Finished::Done),
            false => Ok(Finished::Lost),
        }
    }
}

/// Ends the batch and counts the sent messages; `false`: somebody else has it.
async fn count_sent(connection: &mut PgSession, topic: i32, finish: &Finish) -> Result<bool, StoreError> {
    Ok(sqlx::query_file_scalar!(
        "src/sql/message_finish.sql",
        finish.batch,
        topic,
        finish.lease,
        finish.day,
        &finish.sent.iter().map(|entry| entry.0).collect::<Vec<_>>(),
        &finish.sent.iter().map(|entry| entry.1).collect::<Vec<_>>()
    )
    .fetch_one(connection)
    .await?)
}

/// Records the result of a batch. The topic's lock is held.
pub(super) async fn finish_in(connection: &mut PgSession, topic: i32, finish: &Finish) -> Result<Finished, StoreError> {
    if !count_sent(connection, topic, finish).await? {
        return Ok(Finished::Lost);
    }
    for effect in &finish.effects {
        match apply(connection, finish.batch, effect).await {
            Ok(None) => {}
            Ok(Some(why)) => return Ok(Finished::Refused(why)),
            // A value that Postgres refuses now, it always refuses: trying again would block the topic for ever.
            Err(error) => match unkeepable(&error) {
                Some(why) => return Ok(Finished::Refused(why)),
                None => return Err(error),
            },
        }
    }
    if finish.failed.is_empty() {
        return Ok(Finished::Done);
    }
    // From here on, statements name the day.
    sqlx::query!(r#"SELECT set_config('plan_cache_mode', 'force_custom_plan', true) AS "planned!""#)
        .fetch_one(&mut *connection)
        .await?;
    let ids: Vec<Uuid> = finish.failed.iter().map(|failed| failed.id).collect();
    // Messages that were cancelled while a node or worker had them are not retried.
    let stopped = stopped_of(connection, topic, finish.day, &ids).await?;
    super::cancel::record_in(connection, topic, finish.day, &stopped).await?;
    let stopped: HashSet<Uuid> = stopped.into_iter().collect();
    let failed: Vec<&FailedMessage> = finish
        .failed
        .iter()
        .filter(|failed| !stopped.contains(&failed.id))
        .collect();
    sqlx::query!(
        "INSERT INTO heddle.message_retries (topic, day, bucket, id, attempt, retry, due_at, error)
         SELECT $1, $2, f.bucket, f.id, f.attempt, f.retry, f.due_at, f.error
           FROM UNNEST($3::smallint[], $4::uuid[], $5::integer[], $6::jsonb[], $7::timestamptz[], $8::text[])
                AS f (bucket, id, attempt, retry, due_at, error)",
        topic,
        finish.day,
        &failed.iter().map(|failed| failed.bucket).collect::<Vec<_>>(),
        &failed.iter().map(|failed| failed.id).collect::<Vec<_>>(),
        &failed.iter().map(|failed| failed.attempt).collect::<Vec<_>>(),
        &failed.iter().map(|failed| failed.retry.clone()).collect::<Vec<_>>(),
        &failed.iter().map(|failed| failed.due_at).collect::<Vec<_>>() as &[Option<Time>],
        &failed.iter().map(|failed| failed.error.clone()).collect::<Vec<_>>()
    )
    .execute(&mut *connection)
    .await?;
    let given_up: Vec<Uuid> = failed
        .iter()
        .filter(|failed| failed.due_at.is_none())
        .map(|failed| failed.id)
        .collect();
    if !given_up.is_empty() {
        set_state(connection, topic, finish.day, &given_up, 2).await?;
        sqlx::query!(
            "INSERT INTO heddle.message_outcomes AS o (topic, day, bucket, failed)
             SELECT $1, $2, heddle.message_bucket(i.id), count(*) FROM UNNEST($3::uuid[]) AS i (id)
              GROUP BY heddle.message_bucket(i.id) ORDER BY 3
             ON CONFLICT (topic, day, bucket) DO UPDATE
                SET failed = o.failed + excluded.failed, last_at = excluded.last_at",
            topic,
            finish.day,
            &given_up
        )
        .execute(&mut *connection)
        .await?;
    }
    Ok(Finished::Done)
}

/// Those of these messages that were cancelled.
async fn stopped_of(
    connection: &mut PgSession,
    topic: i32,
    day: NaiveDate,
    ids: &[Uuid],
) -> Result<Vec<Uuid>, StoreError> {
    Ok(sqlx::query_scalar!(
        r#"SELECT i.id AS "id!" FROM UNNEST($3::uuid[]) AS i (id)
            CROSS JOIN LATERAL (SELECT m.state, m.slice FROM heddle.messages m
                                 WHERE m.day = $2 AND m.topic = $1 AND m.bucket = heddle.message_bucket(i.id) AND m.id = i.id
                                 LIMIT 1) AS m
            CROSS JOIN LATERAL (SELECT s.state FROM heddle.message_slices s
                                 WHERE s.topic = $1 AND s.day = $2 AND s.slice = m.slice LIMIT 1) AS s
            WHERE m.state = 3 OR s.state = 2"#,
        topic,
        day,
        ids
    )
    .fetch_all(&mut *connection)
    .await?)
}

/// The server's error about values that it refuses: SQLSTATE classes 22 (data exceptions), 23 (constraints) and 54 (too
/// large for a column or an index).
fn unkeepable(error: &StoreError) -> Option<String> {
    let StoreError::Database(failed) = error else {
        return None;
    };
    let error = failed.database()?;
    let of_value = error
        .code()
        .is_some_and(|code| ["22", "23", "54"].contains(&&code[..2.min(code.len())]));
    of_value.then(|| format!("its writes cannot be stored: {}", error.message()))
}

/// Writes an effect; returns what is wrong with it.
async fn apply(connection: &mut PgSession, batch: Uuid, effect: &MessageEffect) -> Result<Option<String>, StoreError> {
    match effect {
        MessageEffect::Enqueue { group, params, key } => Ok(sqlx::query_scalar!(
            "SELECT heddle.enqueue_of_batch($1, $2, $3)",
            group,
            params,
            key.as_deref()
        )
        .fetch_one(connection)
        .await?
        .map(|why| format!("enqueue of `{group}`: {why}"))),
        MessageEffect::Notify { channel, subject, body } => {
            sqlx::query!(
                "INSERT INTO heddle.notices (run, task, channel, subject, body) VALUES ($1, 0, $2, $3, $4)",
                batch,
                channel,
                subject,
                body
            )
            .execute(connection)
            .await?;
            Ok(None)
        }
    }
}
