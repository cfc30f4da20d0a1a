//! A batch: the terms on which it is claimed, its messages, and what is known of them.

use chrono::NaiveDate;
use heddle_domain::Time;
use heddle_domain::message::queued_bytes;
use serde_json::Value;
use uuid::Uuid;

use crate::StoreError;
use crate::database::PgSession;

/// How many batches of a topic without `concurrency` a node holds: the one that it sends, and the next.
pub const AHEAD_MAX: i64 = 2;

/// The terms of a claim.
#[derive(Clone, Debug)]
pub struct BatchTerms {
    pub topic: i32,
    pub lease: i64,
    /// The new batch's id.
    pub id: Uuid,
    /// The maximum of messages, and of bytes: of payloads, or for a queue, of all that its run's params say of a
    /// message ([`heddle_domain::message::queued_bytes`]).
    pub messages_max: i64,
    pub bytes_max: usize,
    /// Batches at once in the cluster; `None`: [`AHEAD_MAX`] for each lease, which sends one at a time.
    pub concurrency: Option<u32>,
    /// The rate limit: so many messages in so many milliseconds.
    pub rate: Option<(f64, f64)>,
    /// The batch goes to a queue: it waits for a run, not for this node.
    pub queued: bool,
    /// If both are due: retries before messages that are due for the first time.
    pub retries_first: bool,
}

/// A message of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchMessage {
    pub id: Uuid,
    pub bucket: i16,
    pub sender: i64,
    pub receiver: i64,
    pub due_at: Option<Time>,
    pub payload: String,
}

/// What is known of a message that failed before.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Tried {
    /// The number of attempts so far.
    pub attempt: i32,
    /// The state of the retry policy.
    pub retry: Value,
}

/// A batch that a node has claimed.
#[derive(Clone, Debug, PartialEq)]
pub struct MessageBatch {
    pub id: Uuid,
    pub day: NaiveDate,
    pub messages: Vec<BatchMessage>,
    /// In a batch of retries: one for each message, in order. Otherwise empty.
    pub tried: Vec<Tried>,
    /// Too many nodes died while they handled it: it must not be tried again.
    pub hopeless: bool,
}

/// The result of a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum Claimed {
    /// This batch is now the node's.
    Batch(MessageBatch),
    /// There may be something after this many milliseconds.
    Later(u64),
    /// The maximum number of batches is claimed already.
    Full,
    /// Nothing is due at present.
    Nothing,
    /// The node's lease is not valid any more, or the topic is deleted.
    Refused,
}

/// Messages by their ids, in the order of the ids. (Limits in lateral joins make the planner use one look-up for each.
/// It does not know the size of a partition that has just grown, and might read all of it.)
pub(super) async fn by_ids(
    connection: &mut PgSession,
    topic: i32,
    day: NaiveDate,
    ids: &[Uuid],
) -> Result<Vec<(BatchMessage, bool)>, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT m.id AS "id!", m.bucket AS "bucket!", m.sender AS "sender!", m.receiver AS "receiver!", m.due_at,
                  m.payload AS "payload!", (m.state = 3 OR s.state = 2) AS "stopped!"
             FROM UNNEST($3::uuid[]) WITH ORDINALITY AS i (id, ordinal)
            CROSS JOIN LATERAL (SELECT m.* FROM heddle.messages m
                                 WHERE m.day = $2 AND m.topic = $1 AND m.bucket = heddle.message_bucket(i.id) AND m.id = i.id
                                 LIMIT 1) AS m
            CROSS JOIN LATERAL (SELECT s.state FROM heddle.message_slices s
                                 WHERE s.topic = $1 AND s.day = $2 AND s.slice = m.slice LIMIT 1) AS s
            ORDER BY i.ordinal"#,
        topic,
        day,
        ids
    )
    .fetch_all(connection)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| {
            let message = BatchMessage {
                id: row.id,
                bucket: row.bucket,
                sender: row.sender,
                receiver: row.receiver,
                due_at: row.due_at,
                payload: row.payload,
            };
            (message, row.stopped)
        })
        .collect())
}

/// How many of the messages fit into the maximum of bytes; at least one.
pub(super) fn fitting(messages: &[BatchMessage], terms: &BatchTerms) -> usize {
    let mut bytes = 0;
    let fit = messages.iter().take_while(|message| {
        bytes += match terms.queued {
            true => queued_bytes(&message.payload),
            false => message.payload.len(),
        };
        bytes <= terms.bytes_max
    });
    fit.count().max(1).min(messages.len())
}

pub(super) fn read_tried(batch: Uuid, value: Option<Value>) -> Result<Vec<Tried>, StoreError> {
    value
        .map_or(Ok(Vec::new()), serde_json::from_value)
        .map_err(|error| StoreError::unreadable("message_batches", "retries", batch, error))
}

/// What is kept of the messages of a batch that have been tried before; of others nothing is.
pub(super) fn write_tried(tried: &[Tried]) -> Result<Option<Value>, StoreError> {
    (!tried.is_empty())
        .then(|| StoreError::json_of(&tried, ("message_batches", "retries")))
        .transpose()
}

/// Writes the row of a claimed batch.
pub(super) async fn hold(
    connection: &mut PgSession,
    terms: &BatchTerms,
    day: NaiveDate,
    messages: Vec<BatchMessage>,
    tried: Vec<Tried>,
) -> Result<Claimed, StoreError> {
    if messages.is_empty() {
        return Ok(Claimed::Later(0));
    }
    let ids: Vec<Uuid> = messages.iter().map(|message| message.id).collect();
    let retries = write_tried(&tried)?;
    sqlx::query!(
        "INSERT INTO heddle.message_batches (id, topic, day, lease, ids, retries) VALUES ($1, $2, $3, $4, $5, $6)",
        terms.id,
        terms.topic,
        day,
        terms.lease,
        &ids,
        retries
    )
    .execute(connection)
    .await?;
    Ok(Claimed::Batch(MessageBatch {
        id: terms.id,
        day,
        messages,
        tried,
        hopeless: false,
    }))
}
