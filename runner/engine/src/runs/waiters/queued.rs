//! What every transaction that puts task runs into queues needs: which of them go there at once, in which order, and
//! which polls to wake.
//!
//! Polls that find nothing wait for a wake-up of their queue. It comes from this node when it fills the queue, from
//! notifications of other nodes, and from periodic checks, because notifications may get lost.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use heddle_domain::executor::Executor;
use heddle_domain::plan::PlanTask;
use heddle_domain::run::AttemptKey;
use heddle_store::live::{QueueRow, QueueTarget};
use parking_lot::Mutex;
use quick_cache::sync::{Cache, EntryAction, EntryResult};
use tokio::sync::Notify;

use super::Waiters;
use crate::node::Node;
use crate::node::catalog::Revision;
use crate::node::news::News;
use crate::node::short_ways::ShortWay;

/// For how many queues a node remembers the last claimed position. When there are more, it forgets those that it uses least.
const REMEMBERED_MAX: usize = 10_000;

/// What a node knows of queues.
pub(crate) struct Queued {
    wakeups: Mutex<HashMap<String, Arc<Wakeup>>>,
    /// The highest position that was claimed through this node, by queue. It counts only if nothing waits: otherwise, new rows
    /// stand behind the first one that waits, which all nodes see.
    last_claimed: Cache<String, i64>,
}

impl Default for Queued {
    fn default() -> Self {
        Self {
            wakeups: Mutex::default(),
            last_claimed: Cache::new(REMEMBERED_MAX),
        }
    }
}

/// The wake-up to which waiting polls of one queue listen.
#[derive(Default)]
pub(crate) struct Wakeup {
    pub(crate) notify: Notify,
    listening: AtomicUsize,
}

/// New rows of queues, whose polls are woken after the commit.
#[derive(Default)]
pub(crate) struct FilledQueues(BTreeMap<String, Filled>);

#[derive(Clone, Copy, Default)]
struct Filled {
    rows: usize,
    /// Some rows need a worker with tags.
    tagged: bool,
}

impl FilledQueues {
    pub(crate) fn add(&mut self, target: &QueueTarget) {
        let tagged = !target.tags.is_empty();
        match self.0.get_mut(&target.queue) {
            Some(filled) => {
                filled.rows += 1;
                filled.tagged |= tagged;
            }
            None => {
                self.0.insert(target.queue.clone(), Filled { rows: 1, tagged });
            }
        }
    }
}

/// A waiting poll that listens to its queue.
pub(crate) struct Listening<'a> {
    queued: &'a Queued,
    queue: &'a str,
    pub(crate) wakeup: Arc<Wakeup>,
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        let mut wakeups = self.queued.wakeups.lock();
        if self.wakeup.listening.fetch_sub(1, Ordering::AcqRel) == 1 {
            wakeups.remove(self.queue);
        }
    }
}

impl Queued {
    /// Begins to listen to a queue. To be called before the first claim, so that no wake-up is missed.
    pub(crate) fn listen<'a>(&'a self, queue: &'a str) -> Listening<'a> {
        let mut wakeups = self.wakeups.lock();
        let wakeup = match wakeups.get(queue) {
            Some(wakeup) => wakeup.clone(),
            None => wakeups.entry(queue.to_owned()).or_default().clone(),
        };
        wakeup.listening.fetch_add(1, Ordering::AcqRel);
        Listening {
            queued: self,
            queue,
            wakeup,
        }
    }

    /// Wakes as many waiting polls as there is work for.
    fn wake_polls(&self, queue: &str, filled: Filled) {
        let Some(wakeup) = self.wakeups.lock().get(queue).cloned() else {
            return;
        };
        if filled.tagged {
            wakeup.notify.notify_waiters();
            return;
        }
        for _ in 0..filled.rows.min(wakeup.listening.load(Ordering::Acquire)) {
            wakeup.notify.notify_one();
        }
    }

    /// There may be this many rows to claim in a queue.
    pub(crate) fn wake(&self, queue: &str, rows: usize) {
        self.wake_polls(queue, Filled { rows, tagged: false });
    }

    /// A queue may have changed: all waiting polls look again.
    pub(crate) fn wake_all(&self, queue: &str) {
        self.wake_polls(queue, Filled { rows: 0, tagged: true });
    }

    /// The node stops: all waiting polls end.
    pub(crate) fn close(&self) {
        for wakeup in self.wakeups.lock().values() {
            wakeup.notify.notify_waiters();
        }
    }

    /// Which queues are listened to.
    pub(crate) fn listened(&self) -> Vec<String> {
        self.wakeups.lock().keys().cloned().collect()
    }

    /// A row at this position was claimed.
    pub(crate) fn claimed(&self, queue: &str, position: i64) {
        let known = self.last_claimed.entry(queue, None, |_, last| {
            *last = position.max(*last);
            EntryAction::Retain(())
        });
        if let EntryResult::Vacant(entry) = known {
            // It fails if the queue was forgotten meanwhile.
            let _ = entry.insert(position);
        }
    }

    /// A row for a task run; `ordinal` counts the task runs of its run that become ready with it.
    pub(crate) fn row(&self, at: AttemptKey, ordinal: usize, target: QueueTarget, params: Option<String>) -> QueueRow {
        let floor = self.last_claimed.get(&target.queue).unwrap_or(0);
        QueueRow {
            at,
            ordinal: ordinal as i64 + 1,
            floor,
            target,
            params,
            ready_at: None,
        }
    }
}

/// The queue of a task run that goes there at once; `None`: it has another executor, or something must be computed
/// first.
fn target(revision: &Revision, at: AttemptKey) -> Option<QueueTarget> {
    let task = revision.plan.task(at.key.task)?;
    let asks = at.key.item.is_none() && (task.mapped || task.spec.when.is_some());
    if asks || revision.templated[at.key.task as usize] {
        return None;
    }
    // A task run that needs slots of pools waits for these first, and comes to its queue from *ready*.
    if revision.need_of(at).is_some() {
        return None;
    }
    target_of(task)
}

/// The queue that a task's runs go to; `None`: the task has another executor.
pub(crate) fn target_of(task: &PlanTask) -> Option<QueueTarget> {
    let Executor::Queue(queue) = &task.executor else {
        return None;
    };
    Some(QueueTarget {
        queue: queue.as_str().to_owned(),
        tags: task.spec.tags.clone(),
        timeout_ms: task.timeout.map(millis),
        queue_timeout_ms: task.spec.queue_timeout.map(|span| millis(span.std())),
    })
}

/// Whole milliseconds, at least one.
pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX).max(1)
}

/// The queue of a task run that goes there with the transition that makes it ready; `None`: a node begins it.
pub(crate) fn target_at_once(node: &Node, revision: &Revision, at: AttemptKey) -> Option<QueueTarget> {
    if !node.short_ways.take(ShortWay::QueuedAtOnce) {
        return None;
    }
    let target = target(revision, at)?;
    node.short_ways.took(ShortWay::QueuedAtOnce);
    Some(target)
}

impl Waiters {
    /// Wakes polls for new rows, here and on other nodes.
    pub(crate) fn wake_claimers(&self, filled: &FilledQueues) {
        for (queue, rows) in &filled.0 {
            self.queues.wake_polls(queue, *rows);
            self.node.outbox.tell(News::Filled(queue.clone()));
        }
    }
}
