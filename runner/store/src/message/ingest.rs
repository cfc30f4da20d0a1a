//! Takes in messages: COPY for the messages, one statement for the directory, one transaction for many messages.

use std::collections::{BTreeMap, HashSet};

use chrono::NaiveDate;
use heddle_domain::Time;
use uuid::Uuid;

use super::lock::day_number;
use crate::transaction::Open;
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// A message to be stored.
#[derive(Clone, Debug, PartialEq)]
pub struct NewMessage {
    pub id: Uuid,
    pub sender: i64,
    pub receiver: i64,
    pub day: NaiveDate,
    pub bucket: i16,
    /// The slice of its day; see the table `heddle.messages`.
    pub slice: i64,
    /// Only in topics of instants.
    pub due_at: Option<Time>,
    /// The value as JSON text.
    pub payload: Box<str>,
    pub key: Option<String>,
}

/// The slice of a day to which new messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaySlice {
    /// Open: messages are written to this slice.
    Open(i64),
    /// There is none yet, or it was cancelled: [`Store::prepare_day`] creates one.
    Missing,
    /// The day is being sent: nothing can be added any more.
    Closed,
}

/// A transaction of ingest. If it is dropped without [`MessageIngest::commit`], nothing is stored.
pub struct MessageIngest {
    tx: Open,
    topic: i32,
    counts: BTreeMap<(NaiveDate, i16), i64>,
    slices: BTreeMap<(NaiveDate, i64), Time>,
}

const COPY: &str = "COPY heddle.messages (sender, receiver, slice, due_at, day, topic, bucket, id, payload) \
                    FROM STDIN (FORMAT binary)";

/// The head of COPY's binary format: signature, flags, no extension.
const COPY_HEAD: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";

/// How Postgres counts: days and microseconds since 2000-01-01.
const EPOCH_DAYS: i32 = 10_957;
const EPOCH_MICROS: i64 = 946_684_800_000_000;

impl Store {
    /// Prepares a day for a topic's messages, in its own transaction: creates its partitions, and for a topic of days
    /// (`due_at`) the slice for the messages.
    ///
    /// Locking: partitions are made as [`Store::make_message_days`] says, before the transaction.
    pub async fn prepare_day(&self, topic: i32, day: NaiveDate, due_at: Option<Time>) -> Result<(), StoreError> {
        self.make_message_days(&[day]).await?;
        transaction!(self, pool, "prepare_message_day", |tx| {
            tx.patiently();
            sqlx::query!(
            "INSERT INTO heddle.message_days (topic, day) SELECT $1, $2 WHERE EXISTS (SELECT FROM heddle.topics WHERE id = $1)
             ON CONFLICT DO NOTHING",
            topic,
            day
        )
        .execute(&mut *tx)
        .await?;
            if let Some(due_at) = due_at {
                sqlx::query!(
                    "INSERT INTO heddle.message_slices (topic, day, slice, due_at, sealed)
                 SELECT $1, $2, coalesce(min(s.slice) - 1, 0), $3, false
                   FROM heddle.message_slices s WHERE s.topic = $1 AND s.day = $2
                 HAVING count(*) FILTER (WHERE s.state <> 2) = 0
                 ON CONFLICT DO NOTHING",
                    topic,
                    day,
                    due_at
                )
                .execute(&mut *tx)
                .await?;
            }
            tx.commit().await?;
            Ok(())
        })
    }

    /// Begins a transaction of ingest.
    pub async fn ingest(&self, topic: i32) -> Result<MessageIngest, StoreError> {
        let mut tx = self.open("message_ingest").await?;
        tx.patiently();
        Ok(MessageIngest {
            tx,
            topic,
            counts: BTreeMap::new(),
            slices: BTreeMap::new(),
        })
    }
}

impl MessageIngest {
    /// For a topic of days: keeps the day open until the commit, and returns the slice for its messages.
    ///
    /// Locking: the day, shared, before any key. Only a cancel waits for it exclusively, and that has one day.
    pub async fn open_day(&mut self, day: NaiveDate) -> Result<DaySlice, StoreError> {
        sqlx::query!(
            "SELECT pg_advisory_xact_lock_shared($1, $2)",
            self.topic,
            day_number(day)
        )
        .execute(&mut *self.tx)
        .await?;
        let newest = sqlx::query!(
            "SELECT slice, state, sealed FROM heddle.message_slices WHERE topic = $1 AND day = $2 ORDER BY slice LIMIT 1",
            self.topic,
            day
        )
        .fetch_optional(&mut *self.tx)
        .await?;
        Ok(match newest {
            Some(row) if row.sealed => DaySlice::Closed,
            Some(row) if row.state == 0 => DaySlice::Open(row.slice),
            Some(_) | None => DaySlice::Missing,
        })
    }

    /// Takes keys; returns the ids of messages with new keys. The others are stored already. It waits for others that
    /// have taken a key and not committed, so a transaction takes keys only once: [`crate::message`] has the order.
    pub async fn take_keys(&mut self, messages: &[NewMessage]) -> Result<HashSet<Uuid>, StoreError> {
        let keyed: Vec<&NewMessage> = messages.iter().filter(|message| message.key.is_some()).collect();
        let days: Vec<NaiveDate> = keyed.iter().map(|message| message.day).collect();
        let ids: Vec<Uuid> = keyed.iter().map(|message| message.id).collect();
        let keys: Vec<String> = keyed.iter().filter_map(|message| message.key.clone()).collect();
        let rows = sqlx::query_file_scalar!("src/sql/message_keys.sql", self.topic, &days, &keys, &ids)
            .fetch_all(&mut *self.tx)
            .await?;
        Ok(rows.into_iter().collect())
    }

    /// Writes messages. Their days must be prepared.
    pub async fn write(&mut self, messages: &[NewMessage]) -> Result<(), StoreError> {
        if messages.is_empty() {
            return Ok(());
        }
        let mut data = Vec::with_capacity(COPY_HEAD.len() + messages.iter().map(row_bytes).sum::<usize>() + 2);
        data.extend_from_slice(COPY_HEAD);
        for message in messages {
            self.encode(message, &mut data);
            *self.counts.entry((message.day, message.bucket)).or_default() += 1;
        }
        data.extend_from_slice(&(-1i16).to_be_bytes());
        let copied = self.tx.wait_for(|raw| async move {
            let mut copy = raw.copy_in_raw(COPY).await?;
            copy.send(data).await?;
            copy.finish().await
        });
        copied.await?;
        Ok(())
    }

    /// Notes a slice of an instant, which the commit creates.
    pub fn note_slice(&mut self, day: NaiveDate, slice: i64, due_at: Time) {
        self.slices.insert((day, slice), due_at);
    }

    fn encode(&self, message: &NewMessage, data: &mut Vec<u8>) {
        fn field<const N: usize>(data: &mut Vec<u8>, bytes: [u8; N]) {
            data.extend_from_slice(&(N as i32).to_be_bytes());
            data.extend_from_slice(&bytes);
        }
        data.extend_from_slice(&9i16.to_be_bytes());
        field(data, message.sender.to_be_bytes());
        field(data, message.receiver.to_be_bytes());
        field(data, message.slice.to_be_bytes());
        match message.due_at {
            Some(at) => field(data, (at.timestamp_micros() - EPOCH_MICROS).to_be_bytes()),
            None => data.extend_from_slice(&(-1i32).to_be_bytes()),
        }
        field(data, (day_number(message.day) - EPOCH_DAYS).to_be_bytes());
        field(data, self.topic.to_be_bytes());
        field(data, message.bucket.to_be_bytes());
        field(data, message.id.into_bytes());
        data.extend_from_slice(&(message.payload.len() as i32).to_be_bytes());
        data.extend_from_slice(message.payload.as_bytes());
    }

    /// Writes the directory and the slices, and commits. `false`: the topic was deleted meanwhile, and nothing was
    /// stored.
    ///
    /// Locking: the topic, KEY SHARE, after the keys and before the buckets. A deletion of the topic waits, or came first.
    pub async fn commit(mut self) -> Result<bool, StoreError> {
        let alive = sqlx::query_scalar!("SELECT id FROM heddle.topics WHERE id = $1 FOR KEY SHARE", self.topic)
            .fetch_optional(&mut *self.tx)
            .await?;
        if alive.is_none() {
            return Ok(false);
        }
        if !self.slices.is_empty() {
            let days: Vec<NaiveDate> = self.slices.keys().map(|key| key.0).collect();
            let slices: Vec<i64> = self.slices.keys().map(|key| key.1).collect();
            let dues: Vec<Time> = self.slices.values().copied().collect();
            sqlx::query!(
                "INSERT INTO heddle.message_slices (topic, day, slice, due_at, sealed)
                 SELECT $1, day, slice, due_at, true
                   FROM UNNEST($2::date[], $3::bigint[], $4::timestamptz[]) AS s (day, slice, due_at)",
                self.topic,
                &days,
                &slices,
                &dues
            )
            .execute(&mut *self.tx)
            .await?;
        }
        let days: Vec<NaiveDate> = self.counts.keys().map(|key| key.0).collect();
        let buckets: Vec<i16> = self.counts.keys().map(|key| key.1).collect();
        let counts: Vec<i64> = self.counts.values().copied().collect();
        sqlx::query_file!("src/sql/message_directory.sql", self.topic, &days, &buckets, &counts)
            .execute(&mut *self.tx)
            .await?;
        self.tx.commit().await?;
        Ok(true)
    }
}

/// The bytes of a row in COPY's format: 9 lengths, the count of fields, the fields.
fn row_bytes(message: &NewMessage) -> usize {
    2 + 9 * 4 + 4 * 8 + 4 + 4 + 2 + 16 + message.payload.len()
}
