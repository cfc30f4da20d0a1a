//! Attempts that nobody has claimed in time (`queue_timeout`), as their timers report: those that wait for slots of
//! pools, for a node or for an audience. The reaper of queues ends those that wait only for workers
//! (`queues/reaper.rs`).

use heddle_domain::Time;
use heddle_domain::executor::Executor;
use heddle_domain::id::RunId;
use heddle_domain::plan::PlanTask;
use heddle_domain::run::AttemptKey;
use heddle_domain::state::ErrorKind;
use heddle_store::live::{Completion, Grant, Unclaimed};

use crate::node::signals::Signal;
use crate::runs::change::apply::After;
use crate::runs::contexts::Contexts;
use crate::runs::ending::{Ending, applied};
use crate::{EngineError, Runs};

/// Why an offer that nobody has taken is closed.
const UNTAKEN: &str = "nobody took the offer within the task's queue_timeout";

/// The end of an attempt of this task that has waited for too long.
fn late(task: &PlanTask, run: RunId, at: AttemptKey, due: Time) -> Option<Unclaimed> {
    let expands = task.mapped && at.key.item.is_none();
    Some(Unclaimed {
        run,
        at,
        since: due - task.spec.queue_timeout?.chrono(),
        handed_on: !expands && matches!(task.executor, Executor::Queue(_) | Executor::Audience(_)),
    })
}

/// The error of the task run.
fn why(task: &PlanTask) -> String {
    match &task.executor {
        Executor::Queue(queue) => format!("no worker of queue `{queue}` claimed the task run within its queue_timeout"),
        Executor::Audience(_) => UNTAKEN.to_owned(),
        _ => "the task run did not start within its queue_timeout: it waited for a free slot of a node or of its pools"
            .to_owned(),
    }
}

impl Runs {
    /// Fails those of these attempts that still wait. Their timers are taken in the same transaction.
    pub(super) async fn end_unclaimed(
        &self,
        completion: &mut Completion,
        contexts: &Contexts,
        due: &[(RunId, AttemptKey, Time)],
        grant: &mut Grant,
    ) -> Result<After, EngineError> {
        let (mut found, mut outcomes) = (Vec::new(), Vec::new());
        for &(run, at, due) in due {
            let Some(task) = contexts
                .get(&run)
                .and_then(|context| context.revision.plan.task(at.key.task))
            else {
                continue;
            };
            let Some(one) = late(task, run, at, due) else { continue };
            found.push(one);
            outcomes.push(applied(run, at, 0, &Ending::failed(ErrorKind::Timeout, why(task))));
        }
        if found.is_empty() {
            return Ok(After::default());
        }
        let locked = completion.take_unclaimed(&found).await?;
        let mut after = self.apply_locked(completion, contexts, outcomes, locked, grant).await?;
        let closed = completion.close_untaken(&found, UNTAKEN).await?;
        after.signals.add_if(closed > 0, Signal::Holds);
        Ok(after)
    }
}
