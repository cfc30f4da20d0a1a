//! What no worker ends: claims whose leases have run out, task runs that nobody has claimed in time.

use std::sync::Arc;
use std::time::Duration;

use heddle_domain::Chain;
use heddle_domain::id::RunId;
use heddle_domain::run::AttemptKey;
use heddle_domain::state::ErrorKind;
use heddle_store::live::ClaimKey;
use tokio::time::Instant;

use super::settle::applied;
use crate::node::signals::Signal;
use crate::work::Ending;
use crate::{EngineError, Inner};

/// The reaper's period, when nothing is known to be due earlier, and the shortest one.
const REAP_EVERY: Duration = Duration::from_secs(1);
const REAP_PAUSE: Duration = Duration::from_millis(50);

/// How often workers that are gone are forgotten, and how many at once.
const PRUNE_EVERY: Duration = Duration::from_secs(600);
const PRUNE_MAX: i64 = 10_000;

impl Inner {
    /// Takes back what workers did not finish, and fails what nobody claimed in time; answers when to look again.
    async fn reap_queues(self: &Arc<Self>) -> Result<Duration, EngineError> {
        let overdue = self.node.store.overdue().await?;
        if !overdue.claims.is_empty() {
            tracing::info!(
                claims = overdue.claims.len(),
                "taking back what workers have not finished in time"
            );
            let ends: Vec<(ClaimKey, Ending)> = overdue
                .claims
                .into_iter()
                .map(|expired| {
                    let ending = match expired.timed_out {
                        true => {
                            let message = format!("worker `{}` did not finish it within its timeout", expired.worker);
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
            let now = self.now();
            let contexts = self
                .contexts_for(overdue.waiting.iter().map(|waiting| waiting.0))
                .await?;
            let keys: Vec<(RunId, AttemptKey)> = overdue.waiting.iter().map(|waiting| (waiting.0, waiting.1)).collect();
            let outcomes = overdue
                .waiting
                .iter()
                .map(|(run, at, queue)| {
                    let message = format!("no worker of queue `{queue}` claimed it within its queue_timeout");
                    applied(*run, *at, 0, &Ending::failed(ErrorKind::Timeout, message), now)
                })
                .collect();
            let mut completion = self.node.store.completion(self.lease(), now).await?;
            let locked = completion.lock_overdue(&keys).await?;
            self.finish_claims(completion, &contexts, outcomes, locked, now).await?;
        }
        let next = overdue
            .next_ms
            .map_or(REAP_EVERY, |next| Duration::from_millis(next.max(0) as u64 + 1));
        Ok(next.clamp(REAP_PAUSE, REAP_EVERY))
    }
}

/// The reaper of claims.
pub(crate) async fn reap(inner: Arc<Inner>) {
    let mut pruned = Instant::now();
    loop {
        let pause = match inner.reap_queues().await {
            Ok(pause) => pause,
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "cannot take back what workers hold");
                REAP_EVERY
            }
        };
        if pruned.elapsed() > PRUNE_EVERY {
            pruned = Instant::now();
            if let Err(error) = inner.node.store.prune_workers(PRUNE_MAX).await {
                tracing::warn!(error = %Chain(&error), "cannot forget workers that are gone");
            }
        }
        tokio::select! {
            () = inner.node.stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
            () = inner.node.signals.raised(Signal::Claims) => tokio::time::sleep(REAP_PAUSE).await,
        }
    }
}
