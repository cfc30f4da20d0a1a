//! Tasks of the executor `queue`. If the params of a task run have to be computed first, a node claims it like any
//! other, computes them, and puts it into its queue. Other task runs enter their queue in the transaction that makes
//! them ready ([`target_at_once`](crate::runs::waiters::queued::target_at_once)).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use heddle_domain::id::RunId;
use heddle_domain::run::AttemptKey;
use heddle_domain::state::RunState;
use heddle_store::live::{EndedAttempt, QueueRow, QueueTarget};

use super::Attempts;
use crate::node::Node;
use crate::node::group_commit::{Commits, Committed, Policy};
use crate::runs::change::into_queues::Put;
use crate::runs::change::transition::progress_of;
use crate::runs::ending::{End, Ending, applied};
use crate::runs::waiters::queued::{FilledQueues, target_of};
use crate::{EngineError, RunContext};

/// The pause before a failed transaction is tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(20);

/// How many task runs may wait for the transaction that puts them into queues; further ones wait for a slot.
const WAITING_MAX: usize = 5_000;

/// A task run that is to be put into a queue.
pub(crate) struct Enqueue {
    run: RunId,
    at: AttemptKey,
    priority: i16,
    target: QueueTarget,
    params: String,
}

/// Puts task runs into queues. Tries again until it succeeds, or until the node has lost them.
pub(crate) struct Enqueues(pub(crate) Arc<Attempts>);

impl Commits for Enqueues {
    type Request = Enqueue;
    type Answer = ();
    type Then = ();
    const POLICY: Policy = Policy {
        what: "task runs for queues",
        queue_max: WAITING_MAX,
        batch_max: 1_000,
        workers: 1,
        tries_max: None,
        again_after: AGAIN_AFTER,
        // A second try finds that the row is no longer this node's, and does nothing.
        repeatable: true,
    };

    fn node(&self) -> &Node {
        &self.0.node
    }

    async fn commit(&self, batch: &mut [Enqueue]) -> Committed<Self> {
        self.0.hand_to_queues(batch).await?;
        Ok((vec![(); batch.len()], ()))
    }
}

impl Attempts {
    /// Puts a task run with rendered params into its queue. This node reports no outcome for it.
    pub(crate) async fn enqueue_queued(&self, context: &RunContext, at: AttemptKey, params: String) -> End {
        let Some(target) = context.revision.plan.task(at.key.task).and_then(target_of) else {
            return End::Dropped;
        };
        let enqueue = Enqueue {
            run: context.facts.id,
            at,
            priority: context.facts.priority,
            target,
            params,
        };
        let Ok(answered) = self.enqueues.send_patiently(enqueue).await else {
            return End::Dropped;
        };
        match answered.await {
            Ok(Err(error)) => End::plain(Ending::ours("queue the task run", &error)),
            // The queue holds the attempt now, or somebody has taken it away.
            Ok(Ok(())) | Err(_) => End::Dropped,
        }
    }

    /// Puts the task runs that nodes have prepared into queues. Task runs of paused or stopping runs go back instead.
    async fn hand_to_queues(self: &Arc<Self>, batch: &[Enqueue]) -> Result<(), EngineError> {
        let lease = self.node.lease();
        let contexts = self.runs.contexts.of_all(batch.iter().map(|entry| entry.run)).await?;
        let keys: Vec<EndedAttempt> = batch
            .iter()
            .map(|entry| EndedAttempt {
                run: entry.run,
                at: entry.at,
                lease,
            })
            .collect();
        let mut completion = self.node.completion("hand_to_queues").await?;
        let locked = completion.lock(&keys).await?;
        let timed: Vec<(RunId, AttemptKey)> = batch
            .iter()
            .filter(|entry| entry.target.queue_timeout_ms.is_some())
            .map(|entry| (entry.run, entry.at))
            .filter(|key| locked.owned.contains_key(key))
            .collect();
        let due = completion.take_claim_timers(&timed).await?;
        let (mut rows, mut back, mut filled) = (Vec::new(), Vec::new(), FilledQueues::default());
        let mut ordinals: HashMap<RunId, usize> = HashMap::new();
        for entry in batch {
            let (true, Some(found)) = (
                locked.owned.contains_key(&(entry.run, entry.at)),
                locked.runs.get(&entry.run),
            ) else {
                continue;
            };
            let progress = progress_of(entry.run, &found.progress)?;
            if found.state != RunState::Running || progress.is_stopping() {
                back.push(applied(entry.run, entry.at, lease, &Ending::Released));
                continue;
            }
            let ordinal = ordinals.entry(entry.run).or_default();
            filled.add(&entry.target);
            let row =
                self.runs
                    .waiters
                    .queues
                    .row(entry.at, *ordinal, entry.target.clone(), Some(entry.params.clone()));
            // The task run's queue timeout began when it became ready: the wait for slots of pools and for this node
            // counts too.
            let within = entry.target.queue_timeout_ms.map(TimeDelta::milliseconds);
            let ready_at = due
                .get(&(entry.run, entry.at))
                .zip(within)
                .map(|(&due, time)| due - time);
            rows.push((entry.run, entry.priority, QueueRow { ready_at, ..row }));
            *ordinal += 1;
        }
        let put = Put { rows, back, filled };
        self.runs.put_into_queues(completion, &contexts, locked, put).await
    }
}
