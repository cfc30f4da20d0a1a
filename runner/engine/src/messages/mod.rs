//! Scheduled messages: how a node takes them in, and sends what is due.
//!
//! # The story
//!
//! There is no leader. Each node checks for topics on which something is due ([`Drain`]: five times a second, and when
//! ingest on this node has brought something that is due now), and starts *drainers* for them. A drainer ([`drainer`])
//! claims a batch, lets the topic's script handle it, and records the outcomes in the same transaction that claims the
//! next batch. It holds only one batch at a time. So a node that dies leaves one batch behind for each of its drainers,
//! and another drainer takes it over with the same messages. The store decides what a drainer gets
//! (`heddle_store::message`): under the topic's lock, it decides about the number of batches, the rate, cancels and
//! leases.
//!
//! A batch for a queue becomes a run of a group that Heddle keeps for the topic ([`queue`]). The run's key is made of
//! the batch's id, so that a node that dies in between does not cause a second run. From then on the batch needs no
//! particular node: any node that sees the end of the run records what the worker reported.
//!
//! Ingest ([`ingest`]) reads lines, writes them by COPY, and commits after a number of rows or after a second,
//! whichever comes first. What it has answered is committed.
//!
//! [`Days`] maintains days: partitions ahead of time, drained days, and days older than their retention.

mod drainer;
mod host;
mod ingest;
mod outcome;
mod params;
mod queue;
mod tend;

pub use ingest::{IDS_MAX as INGEST_IDS_MAX, IngestError, IngestReport, Ingestion};
pub(crate) use tend::Days;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use chrono::{NaiveDate, TimeDelta};
use futures::future::BoxFuture;
use heddle_domain::Chain;
use heddle_domain::Time;
use heddle_domain::topic::{Topic, TopicSpec};
use heddle_sandbox::AttemptHandle;
use heddle_store::change::{Change, Noun};
use heddle_store::message::{AHEAD_MAX, WorkFrom};
use heddle_store::topic::TopicRow;
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

use crate::node::Node;
use crate::node::group_commit::Met;
use crate::node::part::Part;
use crate::node::service::{Every, Needs, Service};
use crate::node::signals::Signal;
use crate::{EngineError, Runs};

/// How often a node checks what is due.
const POLL_EVERY: Duration = Duration::from_millis(200);

/// How often it checks for batches that it holds by mistake, because the answer to a claim was lost.
const DISOWN_EVERY: TimeDelta = TimeDelta::seconds(2);

/// How many drainers a node has for one topic at most.
const DRAINERS_MAX: usize = 32;

/// How many transactions of ingest, and how many claiming ones, a node has open at once; the other connections are for
/// everything else.
const INGESTS_MAX: usize = 5;
const CLAIMS_MAX: usize = 5;

/// How many searches for the keys of past messages a node has open at once.
const LOOKS_MAX: usize = 2;

/// How many of the transactions that claim may belong to one topic.
const ASKING_MAX: usize = 2;

/// How many prepared days a node remembers. When there are more, it forgets those that it uses least.
const KNOWN_MAX: usize = 20_000;

/// Takes messages in, and sends what is due.
pub(crate) struct Messages {
    node: Arc<Node>,
    runs: Arc<Runs>,
    /// Drainers that send, by topic.
    drainers: Mutex<HashMap<i32, Drainers>>,
    /// Topics whose batches do not get into their queues.
    stuck: Mutex<HashMap<i32, queue::Stuck>>,
    unsettled: queue::Unsettled,
    ingests: AtOnce<INGESTS_MAX>,
    claims: AtOnce<CLAIMS_MAX>,
    looks: AtOnce<LOOKS_MAX>,
    /// Batches that drainers of this process have, or are claiming.
    held: Mutex<HashSet<Uuid>>,
    handles: Mutex<HashMap<Uuid, AttemptHandle>>,
    in_hand: AtomicUsize,
    /// Counts changes of topics and scripts: drainers compare it, and read their topic again.
    changes: AtomicU64,
    /// Days that are prepared, by topic.
    known: Cache<(i32, NaiveDate), ()>,
    /// The millisecond and sequence number of the last ids.
    ids: Mutex<(i64, u64)>,
    slices: AtomicI64,
    ingested: AtomicU64,
    sent: AtomicU64,
    failed: AtomicU64,
    batches: AtomicU64,
}

/// Drainers of a topic that may claim at a time: one is working, and one waits for the topic's lock, so that it can go
/// on at once. More would hold connections without use.
type Asking = AtOnce<ASKING_MAX>;

/// Permits for drainers of a topic to send, if only one of them may send at a time. A batch is claimed while the one
/// before it is being sent, but is sent only when that one is recorded. So the death of a node repeats one batch, not
/// two.
type Sending = AtOnce<1>;

/// A topic's drainers on this node.
#[derive(Default)]
struct Drainers {
    running: usize,
    asking: Arc<Asking>,
    sending: Arc<Sending>,
}

/// Permits for something that may happen at most `MOST` times at once.
struct AtOnce<const MOST: usize>(Arc<Semaphore>);

impl<const MOST: usize> Default for AtOnce<MOST> {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MOST)))
    }
}

impl<const MOST: usize> AtOnce<MOST> {
    /// Waits for a permit. `None` never comes: the semaphore is never closed.
    async fn enter(&self) -> Option<OwnedSemaphorePermit> {
        self.0.clone().acquire_owned().await.ok()
    }
}

/// What a node counts of messages, for metrics.
#[derive(Clone, Copy, Debug)]
pub struct MessageCounters {
    pub ingested: u64,
    pub sent: u64,
    /// Messages that were tried and failed.
    pub failed: u64,
    pub batches: u64,
    pub in_hand: usize,
}

impl Part for Messages {
    fn changed<'a>(&'a self, change: &'a Change) -> BoxFuture<'a, Result<(), EngineError>> {
        if matches!(change.noun, Some(Noun::Topic | Noun::Script)) {
            self.changes.fetch_add(1, Ordering::AcqRel);
            self.node.signals.raise(Signal::Messages);
        }
        // The change may have solved the problem.
        match change.noun {
            Some(Noun::Topic) => self.stuck.lock().clear(),
            Some(Noun::Group) => self.try_stuck_again(),
            _ => {}
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn forget(&self) {
        self.known.clear();
        self.stuck.lock().clear();
        self.changes.fetch_add(1, Ordering::AcqRel);
        self.node.signals.raise(Signal::Messages);
    }

    fn in_hand(&self) -> usize {
        self.in_hand.load(Ordering::Acquire)
    }

    fn stop_in_hand(&self) {
        for handle in self.handles.lock().values() {
            handle.cancel();
        }
    }
}

impl Messages {
    pub(crate) fn new(node: Arc<Node>, runs: Arc<Runs>) -> Self {
        Self {
            node,
            runs,
            drainers: Mutex::default(),
            stuck: Mutex::default(),
            unsettled: queue::Unsettled::default(),
            ingests: AtOnce::default(),
            claims: AtOnce::default(),
            looks: AtOnce::default(),
            held: Mutex::default(),
            handles: Mutex::default(),
            in_hand: AtomicUsize::new(0),
            changes: AtomicU64::new(0),
            known: Cache::new(KNOWN_MAX),
            ids: Mutex::default(),
            slices: AtomicI64::new(0),
            ingested: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            batches: AtomicU64::new(0),
        }
    }

    pub(crate) fn counters(&self) -> MessageCounters {
        MessageCounters {
            ingested: self.ingested.load(Ordering::Relaxed),
            sent: self.sent.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            batches: self.batches.load(Ordering::Relaxed),
            in_hand: self.in_hand(),
        }
    }

    /// The instant and the first of `count` sequence numbers for ids. On one node they only grow.
    fn sequence(&self, now: Time, bits: u128, count: u64) -> (Time, u64) {
        /// Starts in the lower half of 40 bits: the upper half is left for counting up.
        const START_MASK: u64 = (1 << 39) - 1;
        const LAST: u64 = (1 << 40) - 1;
        let mut ids = self.ids.lock();
        let now = now.timestamp_millis();
        if now > ids.0 || ids.1 + count > LAST {
            *ids = (now.max(ids.0 + i64::from(now <= ids.0)), bits as u64 & START_MASK);
        }
        let first = ids.1;
        ids.1 += count;
        let at = chrono::DateTime::from_timestamp_millis(ids.0).unwrap_or_default();
        (at, first)
    }

    /// A number for a slice: positive, and used by no other node.
    fn slice(&self, now: Time, bits: u128) -> i64 {
        let fresh = (now.timestamp_micros().max(1) << 11) | (bits as i64 & 0x7ff);
        let mut last = self.slices.load(Ordering::Relaxed);
        loop {
            let next = fresh.max(last + 1);
            match self
                .slices
                .compare_exchange_weak(last, next, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return next,
                Err(seen) => last = seen,
            }
        }
    }
}

/// A topic's row, ready for use.
pub(crate) fn compile(row: &TopicRow) -> Result<Topic, EngineError> {
    let topic = || format!("topic {}", row.name);
    let spec: TopicSpec =
        serde_json::from_value(row.spec.clone()).map_err(|error| EngineError::unreadable_in(topic(), error))?;
    Topic::compile(spec).map_err(|faults| EngineError::unreadable_in(topic(), faults))
}

impl Messages {
    /// Starts a drainer for a topic, if it may have one more here.
    fn start_drainer(self: &Arc<Self>, row: &TopicRow, topic: &Arc<Topic>) {
        if self.is_put_off(row.id) {
            return;
        }
        let most = topic
            .concurrency()
            .map_or(AHEAD_MAX as usize, |most| (most as usize).min(DRAINERS_MAX));
        let (asking, sending) = {
            let mut all = self.drainers.lock();
            let drainers = all.entry(row.id).or_default();
            if drainers.running >= most {
                return;
            }
            drainers.running += 1;
            (drainers.asking.clone(), drainers.sending.clone())
        };
        let drainer = drainer::Drainer::new(self.clone(), row.clone(), topic.clone(), asking, sending);
        self.node.tracker.spawn(drainer.run());
    }

    fn end_drainer(&self, topic: i32) {
        let mut all = self.drainers.lock();
        if let Some(drainers) = all.get_mut(&topic) {
            drainers.running = drainers.running.saturating_sub(1);
            if drainers.running == 0 {
                all.remove(&topic);
            }
        }
    }

    /// Starts drainers for what is due, then records what workers have done. `from`: where the look begins; afterwards,
    /// where the next one begins.
    async fn open_due_topics(self: &Arc<Self>, from: &mut WorkFrom) -> Result<(), EngineError> {
        let found = self.node.store.topics_with_work(*from).await?;
        *from = found.next;
        // Each topic of the second list costs a statement: what is due does not wait for that.
        for row in &found.due {
            if let Some(topic) = compiled(row) {
                self.start_drainer(row, &Arc::new(topic));
            }
        }
        for row in &found.runs {
            let Some(topic) = compiled(row) else { continue };
            if let Err(error) = self.settle_queue(row, &topic).await {
                // Without a database, the other topics would have to wait for the same error.
                if Met::of(&error) == Met::NoDatabase {
                    return Err(error);
                }
                queue::log_unsettled(row, &error);
            }
        }
        Ok(())
    }
}

/// A topic's row, ready for use; `None`: it is not valid, which is logged.
fn compiled(row: &TopicRow) -> Option<Topic> {
    compile(row)
        .inspect_err(
            |error| tracing::error!(error = %Chain(error), "the spec of a topic is not valid; it sends no messages"),
        )
        .ok()
}

/// Finds what is due.
pub(crate) struct Drain {
    messages: Arc<Messages>,
    disown: Every,
    from: WorkFrom,
}

impl Drain {
    pub(crate) fn of(messages: Arc<Messages>) -> Self {
        Self {
            disown: Every::later(DISOWN_EVERY, &messages.node.clock),
            messages,
            from: WorkFrom::default(),
        }
    }
}

impl Service for Drain {
    const FAILED: &'static str = "cannot look for messages that are due; trying again";
    const NEEDS: Needs = Needs::Active;
    const AGAIN_AFTER: Duration = POLL_EVERY;
    const WOKEN_BY: Option<Signal> = Some(Signal::Messages);

    fn node(&self) -> &Arc<Node> {
        &self.messages.node
    }

    fn first_after(&self) -> Duration {
        POLL_EVERY
    }

    async fn tick(&mut self, now: Time) -> Result<Duration, EngineError> {
        let looked = self.messages.open_due_topics(&mut self.from).await;
        if self.disown.is_due(now) {
            self.disown.done(now);
            self.messages.disown().await;
        }
        looked.map(|()| POLL_EVERY)
    }
}

impl Messages {
    /// Gives back batches that this node holds by mistake.
    async fn disown(&self) {
        // The statement may wait for a connection. Meanwhile, drainers take more batches.
        let held_at = self.node.now();
        let held: Vec<Uuid> = self.held.lock().iter().copied().collect();
        match self.node.store.disown_batches(self.node.lease(), &held, held_at).await {
            Ok(0) => {}
            Ok(batches) => tracing::warn!(batches, "released batches of messages whose claims got no answer"),
            Err(error) => tracing::warn!(error = %Chain(&error), "cannot look for batches of messages that no node \
                works on; trying again"),
        }
    }
}
