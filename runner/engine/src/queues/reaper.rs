//! Claims whose leases have expired, and task runs in queues that nobody has claimed in time.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use heddle_domain::id::RunId;
use heddle_domain::run::AttemptKey;
use heddle_domain::state::ErrorKind;
use heddle_domain::{Chain, Time};
use heddle_store::live::ClaimKey;

use super::Queues;
use crate::EngineError;
use crate::node::Node;
use crate::node::service::{Every, Needs, Service};
use crate::node::signals::Signal;
use crate::runs::ending::{Ending, applied};

/// The reaper's longest and shortest period.
const REAP_EVERY: Duration = Duration::from_secs(1);
const REAP_PAUSE: TimeDelta = TimeDelta::milliseconds(50);

/// How often workers that are gone are forgotten, and how many at once.
const PRUNE_EVERY: TimeDelta = TimeDelta::minutes(10);
const PRUNE_MAX: i64 = 10_000;

/// Ends what no worker ends.
pub(crate) struct Reaper {
    queues: Arc<Queues>,
    reap: Every,
    prune: Every,
}

impl Reaper {
    pub(crate) fn of(queues: Arc<Queues>) -> Self {
        Self {
            prune: Every::later(PRUNE_EVERY, &queues.node.clock),
            reap: Every::at_once(REAP_PAUSE, &queues.node.clock),
            queues,
        }
    }
}

impl Service for Reaper {
    const FAILED: &'static str = "cannot take back expired claims; trying again";
    const NEEDS: Needs = Needs::Nothing;
    const AGAIN_AFTER: Duration = REAP_EVERY;
    const WOKEN_BY: Option<Signal> = Some(Signal::Claims);

    fn node(&self) -> &Arc<Node> {
        &self.queues.node
    }

    async fn tick(&mut self, now: Time) -> Result<Duration, EngineError> {
        // Each short lease that is given wakes it.
        let rest = self.reap.rest(now);
        if !rest.is_zero() {
            return Ok(rest);
        }
        self.reap.done(now);
        if self.prune.is_due(now) {
            self.prune.done(now);
            if let Err(error) = self.queues.node.store.prune_workers(PRUNE_MAX).await {
                tracing::warn!(error = %Chain(&error), "cannot remove records of workers that are gone; trying again");
            }
        }
        self.queues.reap().await
    }
}

impl Queues {
    /// Takes back expired claims, and fails task runs that nobody claimed in time; returns when to check again.
    async fn reap(self: &Arc<Self>) -> Result<Duration, EngineError> {
        let overdue = self.node.store.overdue().await?;
        if !overdue.claims.is_empty() {
            tracing::info!(
                claims = overdue.claims.len(),
                "taking back claims whose lease or timeout has passed"
            );
            let ends: Vec<(ClaimKey, Ending)> = overdue
                .claims
                .into_iter()
                .map(|expired| {
                    let ending = match expired.timed_out {
                        true => {
                            let message = format!(
                                "worker `{}` did not finish the task run within its timeout",
                                expired.worker
                            );
                            Ending::failed(ErrorKind::Timeout, message)
                        }
                        false => Ending::Lost,
                    };
                    (expired.claim, ending)
                })
                .collect();
            self.settle(&ends, true, None).await?;
        }
        if !overdue.waiting.is_empty() {
            let contexts = self
                .runs
                .contexts
                .of_all(overdue.waiting.iter().map(|waiting| waiting.0))
                .await?;
            let keys: Vec<(RunId, AttemptKey)> = overdue.waiting.iter().map(|waiting| (waiting.0, waiting.1)).collect();
            let outcomes = overdue
                .waiting
                .iter()
                .map(|(run, at, queue)| {
                    let message = format!("no worker of queue `{queue}` claimed the task run within its queue_timeout");
                    applied(*run, *at, 0, &Ending::failed(ErrorKind::Timeout, message))
                })
                .collect();
            let mut completion = self.node.completion("end_overdue").await?;
            let locked = completion.lock_overdue(&keys).await?;
            self.finish_claims(completion, &contexts, outcomes, locked).await?;
        }
        let next = overdue
            .next_ms
            .map_or(REAP_EVERY, |next| Duration::from_millis(next.max(0) as u64 + 1));
        let pause = REAP_PAUSE.to_std().unwrap_or_default();
        Ok(next.clamp(pause, REAP_EVERY))
    }
}
