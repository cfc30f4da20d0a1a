//! Claims whose leases have expired, and task runs in queues that nobody has claimed in time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use heddle_domain::id::RunId;
use heddle_domain::run::AttemptKey;
use heddle_domain::state::ErrorKind;
use heddle_domain::{Chain, Time};
use heddle_store::live::{ClaimKey, EndedAttempt, ExpiredClaim};

use super::Queues;
use crate::EngineError;
use crate::node::Node;
use crate::node::group_commit::{Halves, is_passing};
use crate::node::service::{Every, Needs, Service};
use crate::node::signals::Signal;
use crate::runs::ending::{Ending, applied};
use crate::runs::inbox::aside::Kind;

/// The reaper's longest and shortest period.
const REAP_EVERY: Duration = Duration::from_secs(1);
const REAP_PAUSE: TimeDelta = TimeDelta::milliseconds(50);

/// How often workers that are gone are forgotten, and how many at once.
const PRUNE_EVERY: TimeDelta = TimeDelta::minutes(10);
const PRUNE_MAX: i64 = 10_000;

/// A task run that nobody has claimed in time, and its queue.
type Unclaimed = (RunId, AttemptKey, String);

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
    /// Takes back expired claims, and fails task runs that nobody claimed in time; returns when to check again. What
    /// this node cannot end is passed over: the others do not wait for it. That is known of claims and of waiting task runs
    /// separately: if the one of a run cannot be ended, the other perhaps can.
    async fn reap(self: &Arc<Self>) -> Result<Duration, EngineError> {
        let tried_again = self.time_out_again().await;
        let claims_aside = self.runs.reports.given_up.runs_aside();
        let waiting_aside = self.runs.pending.aside.of(Kind::Unclaimed).keys();
        let overdue = self.node.store.overdue(&claims_aside, &waiting_aside).await?;
        let taken_back = self.take_back(overdue.claims).await;
        // A failure of the one is no reason to leave the other undone.
        let timed_out = self.time_out(overdue.waiting).await;
        tried_again.and(taken_back).and(timed_out)?;
        let next = overdue
            .next_ms
            .map_or(REAP_EVERY, |next| Duration::from_millis(next.max(0) as u64 + 1));
        let pause = REAP_PAUSE.to_std().unwrap_or_default();
        Ok(next.clamp(pause, REAP_EVERY))
    }

    /// Ends expired claims. If the ends of a run are refused, those of the others are still made, and the run is given up,
    /// or left to newer nodes (`runs/record/given_up.rs`): one of its claims stands for all of them.
    async fn take_back(self: &Arc<Self>, expired: Vec<ExpiredClaim>) -> Result<(), EngineError> {
        if expired.is_empty() {
            return Ok(());
        }
        tracing::info!(
            claims = expired.len(),
            "taking back claims whose lease or timeout has passed"
        );
        let ends = expired.into_iter().map(|expired| {
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
            (expired.claim.run, (expired.claim, ending))
        });
        let mut halves = Halves::of(by_run(ends));
        while let Some(batch) = halves.take() {
            let ends: Vec<(ClaimKey, Ending)> = batch.iter().flat_map(|(_, ends)| ends.iter().cloned()).collect();
            let result = self.settle(&ends, true, None).await.map(drop);
            if let Some(((_, ends), error)) = halves.done(batch, result)?
                && let Some((claim, _)) = ends.first()
            {
                let &ClaimKey { run, at, lease, .. } = claim;
                let ended = EndedAttempt { run, at, lease };
                self.runs.reports.given_up.add(&self.node, ended, &error);
            }
        }
        Ok(())
    }

    /// Fails task runs that nobody claimed in time. If the ends of a run are refused, those of the others are still made, and
    /// the rows of that run are set aside (`runs/inbox/aside.rs`).
    async fn time_out(self: &Arc<Self>, waiting: Vec<Unclaimed>) -> Result<(), EngineError> {
        let aside = &self.runs.pending.aside;
        let mut halves = Halves::of(by_run(waiting.into_iter().map(|waiting| (waiting.0, waiting))));
        while let Some(batch) = halves.take().filter(|batch| !batch.is_empty()) {
            let waiting: Vec<Unclaimed> = batch.iter().flat_map(|(_, waiting)| waiting.iter().cloned()).collect();
            let result = self.end_unclaimed(&waiting).await;
            if let Some(((run, _), error)) = halves.done(batch, result)? {
                aside.add(&self.node, Kind::Unclaimed, run, &error);
            }
        }
        Ok(())
    }

    /// Tries the runs again whose rows were set aside, each in a transaction of its own.
    async fn time_out_again(self: &Arc<Self>) -> Result<(), EngineError> {
        let aside = &self.runs.pending.aside;
        for (run, ()) in aside.of(Kind::Unclaimed).due(self.node.clock.elapsed()) {
            let waiting = self.node.store.overdue_of(run).await?;
            let ended = match waiting.is_empty() {
                true => Ok(()),
                false => self.end_unclaimed(&waiting).await,
            };
            match ended {
                Ok(()) => aside.done(Kind::Unclaimed, run),
                Err(error) if is_passing(&error) => return Err(error),
                // The error was logged when the rows were set aside.
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// One transaction of [`Self::time_out`].
    async fn end_unclaimed(self: &Arc<Self>, waiting: &[Unclaimed]) -> Result<(), EngineError> {
        let contexts = self
            .runs
            .contexts
            .of_all(waiting.iter().map(|waiting| waiting.0))
            .await?;
        let keys: Vec<(RunId, AttemptKey)> = waiting.iter().map(|waiting| (waiting.0, waiting.1)).collect();
        let outcomes = waiting
            .iter()
            .map(|(run, at, queue)| {
                let message = format!("no worker of queue `{queue}` claimed the task run within its queue_timeout");
                applied(*run, *at, 0, &Ending::failed(ErrorKind::Timeout, message))
            })
            .collect();
        let mut completion = self.node.completion("end_overdue").await?;
        let locked = completion.lock_overdue(&keys).await?;
        self.finish_claims(completion, &contexts, outcomes, locked)
            .await
            .map(drop)
    }
}

/// Rows by their runs. Whether a row can be handled depends on the progress of its run, which many rows may share: those of
/// the items of a mapped task. So they are handled together.
fn by_run<T>(rows: impl Iterator<Item = (RunId, T)>) -> Vec<(RunId, Vec<T>)> {
    let mut runs: BTreeMap<RunId, Vec<T>> = BTreeMap::new();
    for (run, row) in rows {
        runs.entry(run).or_default().push(row);
    }
    runs.into_iter().collect()
}
