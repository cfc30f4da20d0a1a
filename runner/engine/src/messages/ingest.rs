//! Takes in messages.
//!
//! An [`Ingestion`] is the stream of one caller. Lines come in blocks, and are committed after a number of rows or
//! after a second. Its report counts only what is committed. If the stream breaks off, the committed part stays.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use chrono::NaiveDate;
use heddle_domain::message::{Incoming, bucket_of, message_id, read};
use heddle_domain::topic::{Granularity, Topic};
use heddle_domain::{Fault, Faults, Time};
use heddle_store::message::{DaySlice, LateKey, MessageIngest, NewMessage};
use heddle_store::topic::TopicRow;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use uuid::Uuid;

use super::{Messages, compile};
use crate::EngineError;
use crate::node::signals::Signal;

/// A transaction commits after this many messages, or after this time.
const ROWS_MAX: usize = 100_000;
const COMMIT_AFTER: Duration = Duration::from_secs(1);

/// How many rejected lines a report lists; further ones are only counted.
pub const REJECTED_MAX: usize = 1_000;

/// How many ids a report lists.
pub const IDS_MAX: usize = 1_000;

/// Instants are grouped into slices of this many microseconds. A message is sent at the end of its slice.
const SLICE_MICROS: i64 = 100_000;

/// How many days one transaction writes to. Each day is a partition with indexes; each of these needs a lock, and the
/// server has some ten thousand locks for all.
const DAYS_MAX: usize = 200;

/// On how many earlier days the key of a past message is looked for. Each is two partitions with indexes, as above, while
/// the look lasts.
const KEY_DAYS_MAX: i64 = 100;

/// How often a day is prepared again because somebody cancelled it in between.
const PREPARE_MAX: u32 = 5;

/// The result of a stream so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IngestReport {
    /// Messages that are committed.
    pub accepted: u64,
    /// Of these, repeats of a key: they were already stored.
    pub repeated: u64,
    /// Lines that were rejected, and why: the first `REJECTED_MAX`.
    pub rejected: Vec<(u64, Faults)>,
    /// The number of rejected lines.
    pub rejected_total: u64,
    /// Ids of the first [`IDS_MAX`] messages, in the order of their lines; the nil id for a repeat.
    pub ids: Vec<Uuid>,
}

impl IngestReport {
    /// Notes a rejected line.
    pub fn reject(&mut self, line: u64, faults: impl Into<Faults>) {
        self.rejected_total += 1;
        if self.rejected.len() < REJECTED_MAX {
            self.rejected.push((line, faults.into()));
        }
    }
}

/// Why a stream cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum IngestError {
    /// The topic does not exist, or was deleted.
    #[error("there is no topic `{0}`")]
    UnknownTopic(String),
    /// An error that the caller did not cause.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl From<heddle_store::StoreError> for IngestError {
    fn from(error: heddle_store::StoreError) -> Self {
        Self::Engine(error.into())
    }
}

/// The open transaction of a stream, and what it contains so far.
struct Open {
    tx: MessageIngest,
    since: Instant,
    rows: usize,
    repeated: u64,
    /// The days that it has written to.
    touched: HashSet<NaiveDate>,
    /// For each open day, the slice that the transaction holds; `None`: the day is closed.
    days: HashMap<NaiveDate, Option<i64>>,
    /// The slices that it creates, by day and end.
    slices: HashMap<(NaiveDate, i64), i64>,
    /// A message is due now.
    due: bool,
    /// The ids of messages, each with its line in the request.
    ids: Vec<(u64, Uuid)>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Open {
    /// The slice of a message that is due at an instant; created if needed. All messages that are already due share
    /// one.
    fn slice_of_instant(&mut self, messages: &Messages, message: &Incoming<'_>, now: Time) -> i64 {
        let micros = message.due_at.map_or(0, |at| at.timestamp_micros());
        let late = micros <= now.timestamp_micros();
        self.due |= late;
        let end = if late {
            0
        } else {
            (micros + SLICE_MICROS - 1) / SLICE_MICROS
        };
        if let Some(slice) = self.slices.get(&(message.day, end)) {
            return *slice;
        }
        let slice = messages.slice(now, messages.node.chance.bits());
        let due = match late {
            true => now,
            false => chrono::DateTime::from_timestamp_micros(end * SLICE_MICROS).unwrap_or(now),
        };
        self.tx.note_slice(message.day, slice, due);
        self.slices.insert((message.day, end), slice);
        slice
    }
}

/// Keeps some of the messages, with their lines.
fn keep(messages: &mut Vec<NewMessage>, lines: &mut Vec<u64>, is_kept: impl Fn(&NewMessage) -> bool) {
    let kept: Vec<bool> = messages.iter().map(&is_kept).collect();
    let mut kept = kept.into_iter();
    lines.retain(|_| kept.next().unwrap_or(true));
    messages.retain(is_kept);
}

/// One caller's stream of messages.
pub struct Ingestion {
    messages: Arc<Messages>,
    row: TopicRow,
    topic: Topic,
    report: IngestReport,
    /// The ids that the report lists, with their lines.
    ids: Vec<(u64, Uuid)>,
    open: Option<Open>,
}

impl Messages {
    /// Begins to take messages of a topic.
    pub(crate) async fn ingest(self: &Arc<Self>, topic: &str) -> Result<Ingestion, IngestError> {
        let row = self
            .node
            .store
            .topic(topic)
            .await?
            .ok_or_else(|| IngestError::UnknownTopic(topic.to_owned()))?;
        Ok(Ingestion {
            messages: self.clone(),
            topic: compile(&row)?,
            row,
            report: IngestReport::default(),
            ids: Vec::new(),
            open: None,
        })
    }
}

impl Ingestion {
    /// The longest line that can be a message.
    pub fn line_bytes_max(&self) -> usize {
        self.topic.spec.max_payload.0 as usize + heddle_domain::message::LINE_EXTRA_BYTES_MAX
    }

    /// The result so far.
    pub fn report(&mut self) -> &mut IngestReport {
        &mut self.report
    }

    /// Takes lines, each with its number.
    pub async fn push<'a>(&mut self, lines: impl Iterator<Item = (u64, &'a str)>) -> Result<(), IngestError> {
        let now = self.messages.node.now();
        let mut incoming = Vec::new();
        for (number, line) in lines {
            match read(&self.topic, line, now) {
                Ok(message) => incoming.push((number, message)),
                Err(faults) => self.report.reject(number, faults),
            }
        }
        self.leave_out_stored(&mut incoming).await?;
        let days: BTreeSet<NaiveDate> = incoming.iter().map(|(_, message)| message.day).collect();
        let days: Vec<NaiveDate> = days.into_iter().collect();
        if days.len() <= DAYS_MAX {
            return self.take(incoming, &days, now).await;
        }
        for days in days.chunks(DAYS_MAX) {
            let of_days = |entry: &&(u64, Incoming<'_>)| days.binary_search(&entry.1.day).is_ok();
            let part = incoming.iter().filter(of_days).cloned().collect();
            self.take(part, days, now).await?;
        }
        Ok(())
    }

    /// Leaves out those of the messages that are stored with an earlier day. A past message is stored with today, so at a
    /// repeat of it after midnight, today does not have its key. It is the same message if it was due on the same day: keys
    /// are unique within the day that was asked for. Messages without a key, and those that were not due on an earlier day,
    /// cost nothing here.
    async fn leave_out_stored(&mut self, incoming: &mut Vec<(u64, Incoming<'_>)>) -> Result<(), IngestError> {
        let (mut late, mut positions) = (Vec::new(), Vec::new());
        for (position, (_, message)) in incoming.iter().enumerate() {
            let (Some(key), Some(due_at)) = (&message.key, message.due_at) else {
                continue;
            };
            let (due_day, day) = (self.topic.today(due_at), message.day);
            if due_day < day {
                positions.push(position);
                late.push(LateKey {
                    key: key.clone(),
                    due_day,
                    day,
                });
            }
        }
        if late.is_empty() {
            return Ok(());
        }
        // Our own transaction is not open meanwhile: it would hold a second connection.
        self.flush().await?;
        let looking = self.messages.looks.enter().await;
        let store = &self.messages.node.store;
        let found = store
            .earlier_keys(self.row.id, &self.topic, &late, KEY_DAYS_MAX)
            .await?;
        drop(looking);
        // They are committed already.
        self.report.accepted += found.len() as u64;
        self.report.repeated += found.len() as u64;
        let stored: HashSet<usize> = found.into_iter().map(|index| positions[index]).collect();
        let mut position = 0..incoming.len();
        incoming.retain(|_| position.next().is_none_or(|position| !stored.contains(&position)));
        Ok(())
    }

    /// Takes messages for these days.
    async fn take(
        &mut self,
        incoming: Vec<(u64, Incoming<'_>)>,
        days: &[NaiveDate],
        now: Time,
    ) -> Result<(), IngestError> {
        if incoming.is_empty() {
            return Ok(());
        }
        self.open_days(days).await?;
        let by_day = self.topic.spec.granularity == Granularity::Day;
        let own = self.messages.clone();
        let Some(open) = self.open.as_mut() else {
            return Ok(());
        };
        let (at, first) = own.sequence(now, own.node.chance.bits(), incoming.len() as u64);
        let mut messages = Vec::with_capacity(incoming.len());
        let mut lines = Vec::with_capacity(incoming.len());
        let mut keyed = false;
        for (index, (number, message)) in incoming.into_iter().enumerate() {
            let slice = match by_day {
                true => open.days.get(&message.day).copied().flatten(),
                false => Some(open.slice_of_instant(&own, &message, now)),
            };
            let Some(slice) = slice else {
                let detail = format!("the messages of {} are already being sent", message.day);
                self.report.reject(number, Fault::at("", detail));
                continue;
            };
            let bucket = bucket_of(message.sender);
            keyed |= message.key.is_some();
            lines.push(number);
            messages.push(NewMessage {
                id: message_id(at, first + index as u64, message.day, bucket),
                sender: message.sender,
                receiver: message.receiver,
                day: message.day,
                bucket,
                slice,
                due_at: message.due_at,
                payload: message.payload.into(),
                key: message.key,
            });
        }
        if keyed {
            let all = messages.len();
            let fresh = open.tx.take_keys(&messages).await?;
            keep(&mut messages, &mut lines, |message| {
                message.key.is_none() || fresh.contains(&message.id)
            });
            open.repeated += (all - messages.len()) as u64;
        }
        open.tx.write(&messages).await?;
        open.rows += messages.len();
        let room = IDS_MAX.saturating_sub(self.ids.len() + open.ids.len());
        let ids = messages.iter().map(|message| message.id);
        open.ids.extend(lines.into_iter().zip(ids).take(room));
        // Others may wait for these keys, so they are committed at once.
        if keyed || open.rows >= ROWS_MAX || open.since.elapsed() > COMMIT_AFTER {
            self.flush().await?;
        }
        Ok(())
    }

    /// Commits the messages taken so far.
    pub async fn flush(&mut self) -> Result<(), IngestError> {
        let Some(open) = self.open.take() else { return Ok(()) };
        if !open.tx.commit().await? {
            return Err(IngestError::UnknownTopic(self.row.name.clone()));
        }
        self.report.accepted += open.rows as u64 + open.repeated;
        self.report.repeated += open.repeated;
        self.ids.extend(open.ids);
        let messages = &self.messages;
        messages.ingested.fetch_add(open.rows as u64, Ordering::Relaxed);
        if open.due {
            self.messages.node.signals.raise(Signal::Messages);
        }
        Ok(())
    }

    /// Commits the rest, and returns the result of the stream.
    pub async fn finish(mut self) -> Result<IngestReport, IngestError> {
        self.flush().await?;
        self.ids.sort_unstable_by_key(|entry| entry.0);
        self.report.ids = self.ids.into_iter().map(|entry| entry.1).collect();
        Ok(self.report)
    }

    /// Ensures an open transaction that may write to these days.
    async fn open_days(&mut self, days: &[NaiveDate]) -> Result<(), IngestError> {
        let by_day = self.topic.spec.granularity == Granularity::Day;
        if self.open.as_ref().is_some_and(|open| {
            let more = days.iter().filter(|day| !open.touched.contains(*day)).count();
            open.touched.len() + more > DAYS_MAX
        }) {
            self.flush().await?;
        }
        for round in 0..PREPARE_MAX {
            let unknown: Vec<NaiveDate> = days
                .iter()
                .copied()
                .filter(|day| self.messages.known.get(&(self.row.id, *day)).is_none())
                .collect();
            if !unknown.is_empty() {
                // Days are prepared in their own transactions. Ours is not open meanwhile: it would hold a connection.
                self.flush().await?;
                for day in unknown {
                    let due_at = by_day.then(|| self.topic.sent_from(day));
                    self.messages.node.store.prepare_day(self.row.id, day, due_at).await?;
                    self.messages.known.insert((self.row.id, day), ());
                }
            }
            if self.open.is_none() {
                let permit = self.messages.ingests.enter().await;
                self.open = Some(Open {
                    _permit: permit,
                    tx: self.messages.node.store.ingest(self.row.id).await?,
                    since: Instant::now(),
                    rows: 0,
                    repeated: 0,
                    touched: HashSet::new(),
                    days: HashMap::new(),
                    slices: HashMap::new(),
                    due: false,
                    ids: Vec::new(),
                });
            }
            let Some(open) = self.open.as_mut() else {
                return Ok(());
            };
            open.touched.extend(days);
            if !by_day {
                return Ok(());
            }
            let mut missing = Vec::new();
            for day in days {
                if open.days.contains_key(day) {
                    continue;
                }
                match open.tx.open_day(*day).await? {
                    DaySlice::Open(slice) => drop(open.days.insert(*day, Some(slice))),
                    DaySlice::Closed => drop(open.days.insert(*day, None)),
                    DaySlice::Missing => missing.push(*day),
                }
            }
            if missing.is_empty() {
                return Ok(());
            }
            for day in missing {
                self.messages.known.remove(&(self.row.id, day));
            }
            if round + 1 == PREPARE_MAX {
                break;
            }
        }
        Err(EngineError::unreadable(format!("cannot prepare a day of the topic {}", self.row.name)).into())
    }
}
