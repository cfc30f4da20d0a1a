//! Claims that are not part of any answer: they return to their queue as if they had never been made.
//!
//! The size of a claim is known only when its answer is written: a group's params and an item of a map are not in the
//! queue's row. So a task run that does not fit into the answer is already claimed. No worker has seen its token, so
//! the attempt has not begun: it keeps its number, its position in the queue and the time since which it waits, and the
//! history does not mention it. A run that was paused or cancelled meanwhile has withdrawn its rows; its claims are
//! given back like any other claim.

use std::sync::Arc;

use heddle_domain::state::RunState;
use heddle_store::live::{ClaimKey, QueueClaimed, QueueRow};

use super::Queues;
use crate::EngineError;
use crate::runs::change::into_queues::Put;
use crate::runs::change::transition::progress_of;
use crate::runs::ending::{Ending, applied};
use crate::runs::waiters::queued::{FilledQueues, target_of};

impl Queues {
    /// Takes back claims that were just made, in one transaction.
    pub(super) async fn unclaim(self: &Arc<Self>, queue: &str, claimed: Vec<QueueClaimed>) -> Result<(), EngineError> {
        let contexts = self
            .runs
            .contexts
            .of_all(claimed.iter().map(|claimed| claimed.claim.run))
            .await?;
        let keys: Vec<ClaimKey> = claimed.iter().map(|claimed| claimed.claim).collect();
        let mut completion = self.node.completion("unclaim").await?;
        let locked = completion.lock_claims(&keys, false).await?;
        let (mut rows, mut back, mut filled) = (Vec::new(), Vec::new(), FilledQueues::default());
        for claimed in claimed {
            let ClaimKey { run, at, lease, .. } = claimed.claim;
            let (true, Some(found)) = (locked.owned.contains_key(&(run, at)), locked.runs.get(&run)) else {
                continue;
            };
            let context = self.runs.contexts.known(&contexts, run).await?;
            let progress = progress_of(run, &found.progress)?;
            let target = context.revision.plan.task(at.key.task).and_then(target_of);
            let (RunState::Running, false, Some(target)) = (found.state, progress.is_stopping(), target) else {
                back.push(applied(run, at, lease, &Ending::Released));
                continue;
            };
            filled.add(&target);
            let row = QueueRow {
                at,
                ordinal: 0,
                floor: claimed.position,
                target,
                params: claimed.params,
                ready_at: Some(claimed.ready_at),
            };
            rows.push((run, context.facts.priority, row));
        }
        completion.refund_queue(queue, rows.len()).await?;
        let put = Put { rows, back, filled };
        self.runs.put_into_queues(completion, &contexts, locked, put).await
    }
}
