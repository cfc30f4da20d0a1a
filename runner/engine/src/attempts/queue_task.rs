//! Tasks of the executor `queue`: a task run whose params had to be found out first goes to its queue by way of a node, which
//! claims it like any other and hands it on. Others are in their queues from the transaction on that makes them ready
//! ([`crate::Runs::target_at_once`]).

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
use crate::runs::apply::{applied, progress_of};
use crate::runs::ending::{End, Ending};
use crate::runs::queued::{FilledQueues, Put, target_of};
use crate::{EngineError, RunContext};

/// How long to wait before a transaction that failed is tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(20);

/// How many task runs on their way to workers wait for a transaction before others wait for them.
const WAITING_MAX: usize = 5_000;

/// A task run on its way to workers.
pub(crate) struct Enqueue {
    run: RunId,
    at: AttemptKey,
    priority: i16,
    target: QueueTarget,
    params: String,
}

/// Hands task runs to workers, until it is done or the node has lost them.
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
        // The row that is handed on is this node's once.
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
    /// Hands a task run whose params are rendered to workers; what comes of it is nobody's report.
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
            // A worker's claim holds the attempt from now on, or somebody has taken it away.
            Ok(Ok(())) | Err(_) => End::Dropped,
        }
    }

    /// Hands what nodes have prepared to workers. Task runs of paused or stopping runs go back instead.
    async fn hand_to_queues(self: &Arc<Self>, batch: &[Enqueue]) -> Result<(), EngineError> {
        let lease = self.node.lease();
        let contexts = self.runs.contexts_for(batch.iter().map(|entry| entry.run)).await?;
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
            // It has waited since it became ready, for slots of pools and for this node.
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
