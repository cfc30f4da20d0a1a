//! Claims: long polls, and what a worker is given.

use std::sync::Arc;
use std::time::Duration;

use heddle_domain::Time;
use heddle_sandbox::MapItem;
use heddle_store::live::{ClaimKey, ClaimTerms, QueueClaimed};
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::Instant;
use uuid::Uuid;

use super::Queues;
use crate::node::group_commit::is_passing;
use crate::node::signals::Signal;
use crate::runs::ending::{Ending, Step, apart};
use crate::runs::params::constant_params;
use crate::runs::queued::millis;
use crate::{EngineError, RunContext};

/// A poll that hears nothing looks by itself this often.
const BACKSTOP: Duration = Duration::from_secs(10);

/// A poll to which the database was busy asks again after this.
const BUSY_FOR: Duration = Duration::from_millis(500);

/// The reaper is told of leases that run out within this; it looks that often anyway.
const REAPED_AFTER: chrono::TimeDelta = chrono::TimeDelta::seconds(1);

/// How many bytes of params and items one answer carries; more wait for the next. The first is given however large it is.
pub const CLAIM_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What a worker asks for.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    pub queue: String,
    pub worker: String,
    pub tags: Vec<String>,
    /// How many task runs at most.
    pub max: usize,
    /// For how long, unless extended.
    pub lease: Duration,
    /// How long to wait for the first.
    pub wait: Duration,
}

/// A task run that a worker holds.
#[derive(Clone, Debug)]
pub struct QueueClaim {
    /// What its token is made of.
    pub claim: ClaimKey,
    pub group: String,
    pub task: String,
    /// What to do it with: a JSON object.
    pub params: Box<RawValue>,
    /// What a script would learn of itself, as JSON.
    pub context: Box<RawValue>,
    /// When the token becomes old.
    pub lease_expires_at: Time,
}

/// What a look came to.
struct Found {
    claims: Vec<QueueClaim>,
    limited: Option<Duration>,
}

impl Queues {
    /// Claims task runs; waits for the first of them. None are no error.
    pub(crate) async fn claim(self: &Arc<Self>, request: &ClaimRequest) -> Result<Vec<QueueClaim>, EngineError> {
        let until = Instant::now() + request.wait;
        if self.node.is_leaving() {
            return Err(EngineError::Stopping);
        }
        let listening = self.runs.waiters.queues.listen(&request.queue);
        loop {
            let wakeup = listening.wakeup.notify.notified();
            tokio::pin!(wakeup);
            wakeup.as_mut().enable();
            let looked = self.poll_as(request).await;
            let left = until.saturating_duration_since(Instant::now());
            let pause = match looked {
                Ok(found) if !found.claims.is_empty() || left.is_zero() || self.node.is_leaving() => {
                    return Ok(found.claims);
                }
                Ok(found) => found.limited.unwrap_or(BACKSTOP),
                // Who has time left waits for the database as for work: a thousand polls at once may find it busy.
                Err(error) if is_passing(&error) && !left.is_zero() && !self.node.is_leaving() => BUSY_FOR,
                Err(error) => return Err(error),
            };
            let pause = pause.min(left);
            tokio::select! {
                () = wakeup => {}
                () = tokio::time::sleep(pause) => {}
                () = self.node.stop.cancelled() => return Ok(Vec::new()),
            }
            if self.node.is_leaving() {
                return Ok(Vec::new());
            }
        }
    }
}

impl Queues {
    /// Looks once, and notes that the worker does.
    async fn poll_as(self: &Arc<Self>, request: &ClaimRequest) -> Result<Found, EngineError> {
        if self.is_news(&request.queue, &request.worker, &request.tags) {
            let seen = self
                .node
                .store
                .worker_seen(&request.queue, &request.worker, &request.tags);
            if let Err(error) = seen.await {
                self.forget(&request.queue, &request.worker);
                return Err(error.into());
            }
        }
        self.poll(request).await
    }

    /// Looks once. The look goes on when the caller vanishes, and gives back what it found then.
    async fn poll(self: &Arc<Self>, request: &ClaimRequest) -> Result<Found, EngineError> {
        let (answer, answered) = oneshot::channel();
        let (queues, request) = (self.clone(), request.clone());
        self.node.tracker.spawn(async move {
            let found = queues.claim_once(&request).await;
            if let Err(Ok(found)) = answer.send(found)
                && !found.claims.is_empty()
            {
                let claims = found
                    .claims
                    .into_iter()
                    .map(|claim| (claim.claim, Ending::Released))
                    .collect();
                queues.give_back(claims, Some(&request.queue)).await;
            }
        });
        answered.await.unwrap_or(Err(EngineError::Stopping))
    }

    async fn claim_once(self: &Arc<Self>, request: &ClaimRequest) -> Result<Found, EngineError> {
        let now = self.node.now();
        let fresh: Vec<(Uuid, i64)> = (0..request.max)
            .map(|_| (self.node.new_id(now), !((self.node.chance.bits() as u64 >> 1) as i64)))
            .collect();
        let terms = ClaimTerms {
            queue: &request.queue,
            worker: &request.worker,
            tags: &request.tags,
            lease_ms: millis(request.lease),
            fresh: &fresh,
            bytes_max: CLAIM_BYTES_MAX as i64,
        };
        let answer = self.node.store.claim_queued(&terms).await?;
        let limited = answer.limited_ms.map(Duration::from_millis);
        let Some(last) = answer.claimed.iter().map(|claimed| claimed.turn).max() else {
            return Ok(Found {
                claims: Vec::new(),
                limited,
            });
        };
        self.runs.waiters.queues.claimed(&request.queue, last);
        for claimed in &answer.claimed {
            let waited = (claimed.claimed_at - claimed.ready_at).to_std().unwrap_or_default();
            self.runs.seen.counts.queue_wait_seconds.observe(waited.as_secs_f64());
        }
        let soon = now + REAPED_AFTER;
        if answer.claimed.iter().any(|claimed| claimed.lease_expires_at < soon) {
            self.node.signals.raise(Signal::Claims);
        }
        if answer.cut || answer.claimed.len() == request.max {
            // There may be more where these came from.
            self.runs.waiters.queues.wake(&request.queue, 1);
        }
        let keys: Vec<ClaimKey> = answer.claimed.iter().map(|claimed| claimed.claim).collect();
        match self.claims_of(request, answer.claimed).await {
            Ok(claims) => Ok(Found { claims, limited }),
            Err(error) => {
                let claims = keys.into_iter().map(|key| (key, Ending::Released)).collect();
                self.give_back(claims, Some(&request.queue)).await;
                Err(error)
            }
        }
    }

    /// What the worker is told of what it has claimed. What would make the answer too large goes back into the queue.
    async fn claims_of(
        self: &Arc<Self>,
        request: &ClaimRequest,
        claimed: Vec<QueueClaimed>,
    ) -> Result<Vec<QueueClaim>, EngineError> {
        let contexts = self
            .runs
            .contexts_for(claimed.iter().map(|claimed| claimed.claim.run))
            .await?;
        let mut claims: Vec<QueueClaim> = Vec::with_capacity(claimed.len());
        let mut refused = Vec::new();
        let mut bytes = 0;
        let mut left = claimed.into_iter();
        let mut untold = Vec::new();
        while let Some(claimed) = left.next() {
            let key = claimed.claim;
            // Without a run it has been cancelled meanwhile, and the claim with it.
            let Some(context) = contexts.get(&key.run) else {
                continue;
            };
            let claim = match apart(self.tell(context, &claimed).await)? {
                Ok(claim) => claim,
                Err(ending) => {
                    refused.push((key, ending));
                    continue;
                }
            };
            bytes += claim.params.get().len() + claim.context.get().len();
            if bytes > CLAIM_BYTES_MAX && !claims.is_empty() {
                untold.push(claimed);
                untold.extend(left);
                break;
            }
            if crate::runs::notices::tells_start(context, key.at) {
                self.runs.tell_started(context, key.at).await?;
            }
            claims.push(claim);
        }
        if !untold.is_empty() {
            self.unclaim(&request.queue, untold).await?;
        }
        if !refused.is_empty() {
            self.give_back(refused, None).await;
        }
        Ok(claims)
    }

    async fn tell(&self, context: &RunContext, claimed: &QueueClaimed) -> Step<QueueClaim> {
        let at = claimed.claim.at;
        let params = match &claimed.params {
            Some(params) => params.clone(),
            None => constant_params(context, at.key.task)?,
        };
        let Some(params) = self.runs.cut_batch(context, params).await? else {
            // Of a batch of messages that were all cancelled meanwhile there is nothing to be done.
            return Err(Ending::Succeeded("null".to_owned()).into());
        };
        let item = match at.key.item {
            Some(index) => {
                let (item, count) = self.runs.item(context, at, index).await?;
                Some(MapItem { item, index, count })
            }
            None => None,
        };
        let mut told = self.runs.context_of(context, at, item);
        told.deadline = claimed.deadline_at;
        let raw =
            |text: String| RawValue::from_string(text).map_err(|error| EngineError::Unreadable(error.to_string()));
        let context_text = serde_json::to_string(&told).map_err(|error| EngineError::Unreadable(error.to_string()))?;
        Ok(QueueClaim {
            claim: claimed.claim,
            group: told.group,
            task: told.task,
            params: raw(params)?,
            context: raw(context_text)?,
            lease_expires_at: claimed.lease_expires_at,
        })
    }
}
