//! Queues: task runs that workers outside Heddle do.
//!
//! # The story
//!
//! A task run of a queue that became ready is put into *queue_ready* by the very transaction that made it so, if plan
//! and run tell its params. If something has to be found out first (`when`, templates, the items of a map), or slots of
//! pools have to be had, a node claims it through *ready* like any other, finds it out, and hands it on with its params
//! rendered ([`settle`]). Its slots it keeps, in *queue_ready* as in *running*.
//!
//! A worker's claim ([`claim`]) moves rows to *running* under a random lease of its own, which its token carries. The
//! lease runs out by the database's clock, and once it has it is never extended: the token is old, whether anybody has
//! taken the attempt away yet or not. What ends a claim (an outcome, a release, the reaper) deletes the row in
//! *queue_claims* and the one in *running* under the run's lock, and so only one of them does.
//!
//! Polls that find nothing hang on a bell of their queue. It is rung by whatever fills the queue on this node, by other
//! nodes' notifications, and, because these may get lost, by a look at all queues that are listened to every
//! [`LOOK_EVERY`]; hanging polls themselves do not ask the database.

mod claim;
mod reaper;
mod settle;
mod unclaim;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use heddle_domain::Chain;
use heddle_domain::plan::{Executor, PlanTask};
use heddle_domain::run::AttemptKey;
use heddle_store::live::{QueuePlace, QueueRow};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::Inner;
use crate::group_commit::{Gathering, GroupCommit};
use crate::node::catalog::Revision;
use crate::node::news::News;

pub use claim::{CLAIM_BYTES_MAX, ClaimRequest, QueueClaim};
pub(crate) use reaper::reap;
pub use settle::{Beat, ClaimEnd, ClaimRefused};
use settle::{Enqueues, Settlements};

/// How often queues that are listened to are looked at without a wake-up.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How many hanging polls a look that found something wakes.
const WOKEN_BY_LOOK: usize = 16;

/// How many queues' turns, and how many workers' polls, a node remembers; beyond that it forgets all of them.
const REMEMBERED_MAX: usize = 10_000;

/// How often it is noted that a worker polls.
const SEEN_EVERY: Duration = Duration::from_secs(15);

/// Requests that end claims, each of up to 1,000, and task runs on their way to workers, that may wait for a transaction
/// before workers are told that the node is overloaded.
const ASKS_MAX: usize = 5_000;

/// When a worker was noted last, and with which tags.
type Seen = (Instant, Vec<String>);

/// What a node knows of queues.
pub(crate) struct Queues {
    bells: Mutex<HashMap<String, Arc<Bell>>>,
    /// The turn that was claimed last, by queue.
    turns: Mutex<HashMap<String, i64>>,
    /// When a worker's poll was noted last, and with which tags, by queue and worker.
    seen: Mutex<HashMap<(String, String), Seen>>,
    ends: GroupCommit<Settlements>,
    enqueues: GroupCommit<Enqueues>,
}

/// What ends claims, and what hands task runs on: not started yet.
pub(crate) struct GatheringClaims(Gathering<Settlements>, Gathering<Enqueues>);

impl GatheringClaims {
    pub(crate) fn start(self, inner: &Arc<Inner>) {
        self.0.start(Settlements(inner.clone()));
        self.1.start(Enqueues(inner.clone()));
    }
}

/// What hanging polls of one queue listen to.
#[derive(Default)]
pub(crate) struct Bell {
    notify: Notify,
    listening: AtomicUsize,
}

/// New rows of queues, to be told after the commit.
#[derive(Default)]
pub(crate) struct Rings(BTreeMap<String, Ring>);

#[derive(Clone, Copy, Default)]
struct Ring {
    rows: usize,
    /// Not everybody may claim all of them.
    tagged: bool,
}

impl Rings {
    pub(crate) fn add(&mut self, place: &QueuePlace) {
        let tagged = !place.tags.is_empty();
        match self.0.get_mut(&place.queue) {
            Some(ring) => {
                ring.rows += 1;
                ring.tagged |= tagged;
            }
            None => {
                self.0.insert(place.queue.clone(), Ring { rows: 1, tagged });
            }
        }
    }
}

/// A hanging poll's ear.
struct Listening<'a> {
    queues: &'a Queues,
    queue: &'a str,
    bell: Arc<Bell>,
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        let mut bells = self.queues.bells.lock();
        if self.bell.listening.fetch_sub(1, Ordering::AcqRel) == 1 {
            bells.remove(self.queue);
        }
    }
}

impl Queues {
    pub(crate) fn new() -> (Self, GatheringClaims) {
        let (ends, gathering_ends) = GroupCommit::new();
        let (enqueues, gathering_enqueues) = GroupCommit::new();
        let queues = Self {
            bells: Mutex::default(),
            turns: Mutex::default(),
            seen: Mutex::default(),
            ends,
            enqueues,
        };
        (queues, GatheringClaims(gathering_ends, gathering_enqueues))
    }

    fn listen<'a>(&'a self, queue: &'a str) -> Listening<'a> {
        let mut bells = self.bells.lock();
        let bell = match bells.get(queue) {
            Some(bell) => bell.clone(),
            None => bells.entry(queue.to_owned()).or_default().clone(),
        };
        bell.listening.fetch_add(1, Ordering::AcqRel);
        Listening {
            queues: self,
            queue,
            bell,
        }
    }

    /// Wakes as many hanging polls as there is work for.
    fn ring(&self, queue: &str, ring: Ring) {
        let Some(bell) = self.bells.lock().get(queue).cloned() else {
            return;
        };
        if ring.tagged {
            bell.notify.notify_waiters();
            return;
        }
        for _ in 0..ring.rows.min(bell.listening.load(Ordering::Acquire)) {
            bell.notify.notify_one();
        }
    }

    /// A queue may be another than it was: every hanging poll looks again.
    pub(crate) fn ring_all(&self, queue: &str) {
        self.ring(queue, Ring { rows: 0, tagged: true });
    }

    /// The node stops: every hanging poll ends.
    pub(crate) fn close(&self) {
        for bell in self.bells.lock().values() {
            bell.notify.notify_waiters();
        }
    }

    fn listened(&self) -> Vec<String> {
        self.bells.lock().keys().cloned().collect()
    }

    fn claimed(&self, queue: &str, turn: i64) {
        let mut turns = self.turns.lock();
        match turns.get_mut(queue) {
            Some(last) => *last = turn.max(*last),
            None => {
                if turns.len() >= REMEMBERED_MAX {
                    turns.clear();
                }
                turns.insert(queue.to_owned(), turn);
            }
        }
    }

    /// Whether it is time to note that a worker polls, or what it carries now.
    fn is_news(&self, queue: &str, worker: &str, tags: &[String]) -> bool {
        let now = Instant::now();
        let mut seen = self.seen.lock();
        let key = (queue.to_owned(), worker.to_owned());
        if seen
            .get(&key)
            .is_some_and(|(last, carried)| now - *last < SEEN_EVERY && carried == tags)
        {
            return false;
        }
        if seen.len() >= REMEMBERED_MAX {
            seen.clear();
        }
        seen.insert(key, (now, tags.to_owned()));
        true
    }

    /// What was news could not be noted.
    fn forget(&self, queue: &str, worker: &str) {
        self.seen.lock().remove(&(queue.to_owned(), worker.to_owned()));
    }

    /// A row for a task run; `ordinal` counts those of its run that become ready with it.
    pub(crate) fn row(&self, at: AttemptKey, ordinal: usize, place: QueuePlace, params: Option<String>) -> QueueRow {
        let floor = self.turns.lock().get(&place.queue).copied().unwrap_or(0);
        QueueRow {
            at,
            turn: ordinal as i64 + 1,
            floor,
            place,
            params,
            ready_at: None,
        }
    }
}

/// Where a task run goes at once; `None`: it is no queue's, or something has to be found out first.
pub(crate) fn place(revision: &Revision, at: AttemptKey) -> Option<QueuePlace> {
    let task = revision.plan.task(at.key.task)?;
    let asks = at.key.item.is_none() && (task.mapped || task.spec.when.is_some());
    if task.executor != Executor::Queue || asks || revision.templated[at.key.task as usize] {
        return None;
    }
    // What takes slots of pools waits for these first, and comes to its queue from *ready* when it has them.
    if revision.need_of(at).is_some() {
        return None;
    }
    Some(place_of(task))
}

/// Where a task's runs go.
pub(crate) fn place_of(task: &PlanTask) -> QueuePlace {
    QueuePlace {
        queue: task
            .spec
            .queue
            .as_ref()
            .map(|name| name.as_str().to_owned())
            .unwrap_or_default(),
        tags: task.spec.tags.clone(),
        timeout_ms: task.timeout.map(millis),
        queue_timeout_ms: task.spec.queue_timeout.map(|span| millis(span.std())),
    }
}

/// Whole milliseconds, at least one.
fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX).max(1)
}

impl Inner {
    /// Tells pollers of new rows, here and elsewhere.
    pub(crate) fn ring(&self, rings: &Rings) {
        for (queue, ring) in &rings.0 {
            self.queues.ring(queue, *ring);
            self.node.outbox.tell(News::Filled(queue.clone()));
        }
    }

    /// Another node has filled a queue.
    pub(crate) fn heard_of_queue(&self, queue: &str) {
        self.queues.ring(
            queue,
            Ring {
                rows: WOKEN_BY_LOOK,
                tagged: false,
            },
        );
    }
}

/// The loop that makes up for wake-ups that were lost.
pub(crate) async fn look(inner: Arc<Inner>) {
    loop {
        tokio::select! {
            () = inner.node.stop.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        let names = inner.queues.listened();
        if names.is_empty() {
            continue;
        }
        match inner.node.store.queues_with_work(&names).await {
            Ok(names) => names.iter().for_each(|name| inner.heard_of_queue(name)),
            Err(error) => tracing::warn!(error = %Chain(&error), "cannot look at queues"),
        }
    }
}
