//! Messages come in.
//!
//! An [`Ingestion`] is one caller's stream: lines go in by the block, and are committed every so many rows or every
//! second. Its report counts what is committed and nothing else; what breaks off in the middle leaves the committed part.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use chrono::NaiveDate;
use heddle_domain::message::{Incoming, bucket_of, message_id, read};
use heddle_domain::topic::{Granularity, Topic};
use heddle_domain::{Fault, Time};
use heddle_store::message::{DaySlice, MessageIngest, NewMessage};
use heddle_store::topic::TopicRow;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use uuid::Uuid;

use super::{Messages, compile};
use crate::EngineError;
use crate::node::signals::Signal;

/// After so many messages, or so long, a transaction commits.
const ROWS_MAX: usize = 100_000;
const COMMIT_AFTER: Duration = Duration::from_secs(1);

/// How many rejected lines a report names; the others are counted.
pub const REJECTED_MAX: usize = 1_000;

/// How many ids a report names.
pub const IDS_MAX: usize = 1_000;

/// Instants are gathered in slices of so many microseconds; a message is sent at the end of its slice.
const SLICE_MICROS: i64 = 100_000;

/// How many days one transaction writes to: each is a partition with its indexes, and each of these a lock, of which the
/// server has some ten thousand for all.
const DAYS_MAX: usize = 200;

/// How often a day is prepared anew because somebody cancelled it in between.
const PREPARE_MAX: u32 = 5;

/// What has become of a stream so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IngestReport {
    /// Messages that are committed.
    pub accepted: u64,
    /// Of these, repeats of a key: they were in already.
    pub repeated: u64,
    /// Lines that were not taken, and why: the first `REJECTED_MAX`.
    pub rejected: Vec<(u64, Fault)>,
    /// How many there were.
    pub rejected_total: u64,
    /// Ids of the first [`IDS_MAX`] messages, in the order of their lines; of a repeat the id of none.
    pub ids: Vec<Uuid>,
}

impl IngestReport {
    /// Notes a line that is not taken.
    pub fn reject(&mut self, line: u64, fault: Fault) {
        self.rejected_total += 1;
        if self.rejected.len() < REJECTED_MAX {
            self.rejected.push((line, fault));
        }
    }
}

/// Why a stream cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum IngestError {
    /// There is no such topic, or not any more.
    #[error("there is no topic `{0}`")]
    UnknownTopic(String),
    /// Not the caller's fault.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl From<heddle_store::StoreError> for IngestError {
    fn from(error: heddle_store::StoreError) -> Self {
        Self::Engine(error.into())
    }
}

/// A transaction under way.
struct Open {
    tx: MessageIngest,
    since: Instant,
    rows: usize,
    repeated: u64,
    /// The days that it writes to.
    touched: HashSet<NaiveDate>,
    /// The slices of days that it holds open; none: the day is closed.
    days: HashMap<NaiveDate, Option<i64>>,
    /// Slices that it makes, by day and end.
    slices: HashMap<(NaiveDate, i64), i64>,
    /// Something is due now.
    due: bool,
    /// The ids of messages, each with its line in the request.
    ids: Vec<(u64, Uuid)>,
    _place: Option<OwnedSemaphorePermit>,
}

impl Open {
    /// The slice of a message that is due at an instant, made if there is none yet. All that is due already is in one.
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

/// One caller's stream of messages.
pub struct Ingestion {
    messages: Arc<Messages>,
    row: TopicRow,
    topic: Topic,
    report: IngestReport,
    /// What the report names, with the lines.
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

    /// What has become of it so far.
    pub fn report(&mut self) -> &mut IngestReport {
        &mut self.report
    }

    /// Takes lines with their numbers.
    pub async fn push<'a>(&mut self, lines: impl Iterator<Item = (u64, &'a str)>) -> Result<(), IngestError> {
        let now = self.messages.node.now();
        let mut incoming = Vec::new();
        for (number, line) in lines {
            match read(&self.topic, line, now) {
                Ok(message) => incoming.push((number, message)),
                Err(fault) => self.report.reject(number, fault),
            }
        }
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
        for (place, (number, message)) in incoming.into_iter().enumerate() {
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
                id: message_id(at, first + place as u64, message.day, bucket),
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
            let fresh = open.tx.take_keys(&messages).await?;
            let all = messages.len();
            let is_new = |message: &NewMessage| message.key.is_none() || fresh.contains(&message.id);
            let mut kept = messages.iter().map(is_new);
            lines.retain(|_| kept.next().unwrap_or(true));
            messages.retain(is_new);
            open.repeated += (all - messages.len()) as u64;
        }
        open.tx.write(&messages).await?;
        open.rows += messages.len();
        let room = IDS_MAX.saturating_sub(self.ids.len() + open.ids.len());
        let ids = messages.iter().map(|message| message.id);
        open.ids.extend(lines.into_iter().zip(ids).take(room));
        // Keys are waited for: nothing is held longer than needed while others may want them.
        if keyed || open.rows >= ROWS_MAX || open.since.elapsed() > COMMIT_AFTER {
            self.flush().await?;
        }
        Ok(())
    }

    /// Commits what has come.
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

    /// Commits the rest and tells what became of all.
    pub async fn finish(mut self) -> Result<IngestReport, IngestError> {
        self.flush().await?;
        self.ids.sort_unstable_by_key(|entry| entry.0);
        self.report.ids = self.ids.into_iter().map(|entry| entry.1).collect();
        Ok(self.report)
    }

    /// Makes sure that there is a transaction which may write to these days.
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
                .filter(|day| !self.messages.knows(self.row.id, *day))
                .collect();
            if !unknown.is_empty() {
                // In transactions of their own, and none of ours is open meanwhile: it would hold a connection.
                self.flush().await?;
                for day in unknown {
                    let due_at = by_day.then(|| self.topic.sent_from(day));
                    self.messages.node.store.prepare_day(self.row.id, day, due_at).await?;
                    self.messages.learn(self.row.id, day);
                }
            }
            if self.open.is_none() {
                let place = self.messages.ingests.enter().await;
                self.open = Some(Open {
                    _place: place,
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
            let mut known = self.messages.known.lock();
            for day in missing {
                known.remove(&(self.row.id, day));
            }
            if round + 1 == PREPARE_MAX {
                break;
            }
        }
        Err(EngineError::Unreadable(format!("cannot prepare a day of the topic {}", self.row.name)).into())
    }
}
