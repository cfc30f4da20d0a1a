//! Queues: task runs that workers outside Heddle execute.
//!
//! # The story
//!
//! When a task run of a queue becomes ready, the same transaction puts it into *queue_ready*, if its params follow from
//! plan and run. If something has to be computed first (`when`, templates, the items of a map), or slots of pools are
//! needed, a node claims it from *ready* like any other, computes it, and puts it into the queue with rendered params
//! ([`crate::attempts::queue_task`]). It keeps its slots, in *queue_ready* as in *running*.
//!
//! A worker's claim ([`claim`]) moves rows to *running* under a random lease, which is part of its token. The lease
//! expires by the database's clock. After that it is never extended: the token is invalid, even if no other worker or
//! reaper has taken the attempt yet. Every end of a claim (an outcome, a release, the reaper) deletes its rows in
//! *queue_claims* and *running* under the run's lock, so only one of them does.
//!
//! Polls that find nothing wait for a wake-up of their queue. It comes from this node when it fills the queue, from
//! notifications of other nodes, and, because these may get lost, from a check of all queues with waiting polls every
//! [`POLL_EVERY`]. Waiting polls themselves do not ask the database.

mod claim;
mod minutes;
mod reaper;
mod settle;
mod unclaim;
mod unheld;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use heddle_domain::Time;
use heddle_store::change::{Change, Noun};
use quick_cache::sync::Cache;

use crate::node::Node;
use crate::node::group_commit::{Gathering, GroupCommit};
use crate::node::news::News;
use crate::node::part::Part;
use crate::node::service::{Needs, Service};
use crate::{EngineError, Runs};

pub use claim::{CLAIM_BYTES_MAX, ClaimRequest, QueueClaim};
pub(crate) use minutes::Minutes;
pub(crate) use reaper::Reaper;
use settle::Settlements;
pub use settle::{Beat, ClaimEnd, ClaimRefused};
use unheld::Unheld;

/// How often queues with waiting polls are checked without a wake-up.
const POLL_EVERY: Duration = Duration::from_millis(500);

/// How many waiting polls a check wakes when it finds something.
const WOKEN_AT_ONCE: usize = 16;

/// How many workers' polls a node remembers. When there are more, it forgets those that poll least.
const REMEMBERED_MAX: usize = 10_000;

/// How often it is noted that a worker polls.
const SEEN_EVERY: Duration = Duration::from_secs(15);

/// How many requests that end claims, each of up to 1,000, may wait for a transaction. If there are more, workers get
/// the error that the node is overloaded.
const ASKS_MAX: usize = 5_000;

/// When a worker was noted last (`NodeClock::elapsed`), and with which tags.
type Seen = (Duration, Arc<[String]>);

/// Gives task runs to workers, and takes their outcomes.
pub(crate) struct Queues {
    node: Arc<Node>,
    runs: Arc<Runs>,
    /// When a worker's poll was noted last, and with which tags, by queue and worker.
    seen: Cache<(String, String), Seen>,
    ends: GroupCommit<Settlements>,
    /// How many task runs workers have ended since the last recording, for the charts of queues.
    ended: minutes::Ends,
    /// Claims that may exist, and that nobody has got.
    unheld: Unheld,
}

/// The group commit that ends claims, before it is started.
pub(crate) struct GatheringClaims(Gathering<Settlements>);

impl GatheringClaims {
    pub(crate) fn start(self, queues: &Arc<Queues>) {
        self.0.start(Settlements(queues.clone()));
    }
}

impl Queues {
    pub(crate) fn new(node: Arc<Node>, runs: Arc<Runs>) -> (Arc<Self>, GatheringClaims) {
        let (ends, gathering) = GroupCommit::new();
        let queues = Self {
            node,
            runs,
            seen: Cache::new(REMEMBERED_MAX),
            ends,
            ended: minutes::Ends::default(),
            unheld: Unheld::default(),
        };
        (Arc::new(queues), GatheringClaims(gathering))
    }

    /// Whether it is time to note that a worker polls, or its tags have changed.
    fn is_news(&self, queue: &str, worker: &str, tags: &[String]) -> bool {
        let now = self.node.clock.elapsed();
        let key = (queue.to_owned(), worker.to_owned());
        let is_fresh = |(last, carried): Seen| now - last < SEEN_EVERY && *carried == *tags;
        if self.seen.get(&key).is_some_and(is_fresh) {
            return false;
        }
        self.seen.insert(key, (now, tags.into()));
        true
    }

    /// It could not be noted: the next poll tries again.
    fn forget(&self, queue: &str, worker: &str) {
        self.seen.remove(&(queue.to_owned(), worker.to_owned()));
    }
}

impl Part for Queues {
    fn changed<'a>(&'a self, change: &'a Change) -> BoxFuture<'a, Result<(), EngineError>> {
        if change.noun == Some(Noun::Queue) {
            self.runs.waiters.queues.wake_all(&change.name);
        }
        Box::pin(std::future::ready(Ok(())))
    }

    /// The next poll of each worker is noted again.
    fn forget(&self) {
        self.seen.clear();
    }

    fn heard(&self, news: &News) {
        if let News::Filled(queue) = news {
            self.runs.waiters.queues.wake(queue, WOKEN_AT_ONCE);
        }
    }

    fn leaves(&self) {
        self.runs.waiters.queues.close();
    }
}

/// Makes up for what was lost: wake-ups, and answers of claims.
pub(crate) struct LostWakeups(pub(crate) Arc<Queues>);

impl Service for LostWakeups {
    const FAILED: &'static str = "cannot read queues; trying again";
    const NEEDS: Needs = Needs::Nothing;
    const AGAIN_AFTER: Duration = POLL_EVERY;

    fn node(&self) -> &Arc<Node> {
        &self.0.node
    }

    fn first_after(&self) -> Duration {
        POLL_EVERY
    }

    async fn tick(&mut self, _now: Time) -> Result<Duration, EngineError> {
        let queued = &self.0.runs.waiters.queues;
        let names = queued.listened();
        if !names.is_empty() {
            let filled = self.0.node.store.queues_with_work(&names).await?;
            filled.iter().for_each(|name| queued.wake(name, WOKEN_AT_ONCE));
        }
        self.0.give_back_unheld().await?;
        Ok(POLL_EVERY)
    }
}
