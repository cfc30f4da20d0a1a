//! Claims: long polls, and what a worker gets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use heddle_domain::id::RunId;
use heddle_domain::{Chain, Time};
use heddle_sandbox::MapItem;
use heddle_store::StoreError;
use heddle_store::live::{ClaimKey, ClaimTerms, QueueClaimed};
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::Instant;
use uuid::Uuid;

use super::Queues;
use crate::node::group_commit::{Met, is_passing};
use crate::node::signals::Signal;
use crate::runs::change::notices::{tell_started, tells_start};
use crate::runs::contexts::{Contexts, context_of, item_of};
use crate::runs::create::batch_run::cut_batch;
use crate::runs::ending::{Ending, Step, Stop, apart};
use crate::runs::params::constant_params;
use crate::runs::waiters::queued::millis;
use crate::{EngineError, RunContext};

/// How often a poll that gets no wake-up checks by itself.
const BACKSTOP: Duration = Duration::from_secs(10);

/// The pause of a poll after the database was busy.
const BUSY_FOR: Duration = Duration::from_millis(500);

/// Leases that expire within this time are signalled to the reaper; others it finds by polling as often.
const REAPED_AFTER: chrono::TimeDelta = chrono::TimeDelta::seconds(1);

/// The maximum bytes of params and items in one answer; further task runs wait for the next. The first is given however
/// large it is.
pub const CLAIM_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The request of a worker.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    pub queue: String,
    pub worker: String,
    pub tags: Vec<String>,
    /// How many task runs at most.
    pub max: usize,
    /// How long the lease holds, unless extended.
    pub lease: Duration,
    /// How long to wait for the first.
    pub wait: Duration,
}

/// A task run that a worker holds.
#[derive(Clone, Debug)]
pub struct QueueClaim {
    /// The key of which its token is made.
    pub claim: ClaimKey,
    pub group: String,
    pub task: String,
    /// The params: a JSON object.
    pub params: Box<RawValue>,
    /// The context, as a script gets it, as JSON.
    pub context: Box<RawValue>,
    /// When the token expires.
    pub lease_expires_at: Time,
}

/// The result of a look.
struct Found {
    claims: Vec<QueueClaim>,
    limited: Option<Duration>,
}

impl Queues {
    /// Claims task runs, and waits for the first one. An empty list is no error.
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
                // A poll with time left waits for the database as it waits for work: a thousand concurrent polls may
                // find it busy.
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
    /// Tries one claim, and notes that the worker polls.
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

    /// Tries one claim. If the caller goes away, the claim continues in the background, and then gives back its task
    /// runs.
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
        let answer = match self.node.store.claim_queued(&terms).await.map_err(EngineError::from) {
            Ok(answer) => answer,
            Err(error) => {
                if Met::of(&error) == Met::NoDatabase {
                    // Perhaps only the answer was lost. The next try has other ids.
                    let ids = fresh.iter().map(|fresh| fresh.0);
                    self.unheld.note(ids, self.node.clock.elapsed());
                }
                return Err(error);
            }
        };
        let limited = answer.limited_ms.map(Duration::from_millis);
        let Some(last) = answer.claimed.iter().map(|claimed| claimed.position).max() else {
            return Ok(Found {
                claims: Vec::new(),
                limited,
            });
        };
        self.runs.waiters.queues.claimed(&request.queue, last);
        for claimed in &answer.claimed {
            let waited = (claimed.claimed_at - claimed.ready_at).to_std().unwrap_or_default();
            self.runs.counts.queue_wait_seconds.observe(waited.as_secs_f64());
        }
        let soon = now + REAPED_AFTER;
        if answer.claimed.iter().any(|claimed| claimed.lease_expires_at < soon) {
            self.node.signals.raise(Signal::Claims);
        }
        if answer.cut || answer.claimed.len() == request.max {
            // There may be more.
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

    /// The answer for claimed task runs. Those that would make it too large go back into the queue.
    async fn claims_of(
        self: &Arc<Self>,
        request: &ClaimRequest,
        claimed: Vec<QueueClaimed>,
    ) -> Result<Vec<QueueClaim>, EngineError> {
        let contexts = self.contexts_of(&request.queue, &claimed).await?;
        let mut claims: Vec<QueueClaim> = Vec::with_capacity(claimed.len());
        let mut refused = Vec::new();
        let mut bytes = 0;
        let mut left = claimed.into_iter();
        let mut unsent = Vec::new();
        while let Some(claimed) = left.next() {
            let key = claimed.claim;
            // The run is gone: it was cancelled meanwhile, and the claim with it. Or its facts cannot be read.
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
                unsent.push(claimed);
                unsent.extend(left);
                break;
            }
            if tells_start(context, key.at) {
                tell_started(&self.node, context, key.at).await?;
            }
            claims.push(claim);
        }
        if !unsent.is_empty() {
            self.unclaim(&request.queue, unsent).await?;
        }
        if !refused.is_empty() {
            self.give_back(refused, None).await;
        }
        Ok(claims)
    }

    /// The facts of the runs of claimed task runs. If those of one run cannot be read, only its claims go back.
    async fn contexts_of(self: &Arc<Self>, queue: &str, claimed: &[QueueClaimed]) -> Result<Contexts, EngineError> {
        let known = &self.runs.contexts;
        match known.of_all(claimed.iter().map(|claimed| claimed.claim.run)).await {
            Err(error) if !is_passing(&error) => {}
            found => return found,
        }
        let mut claims: BTreeMap<RunId, Vec<(ClaimKey, Ending)>> = BTreeMap::new();
        for claim in claimed.iter().map(|claimed| claimed.claim) {
            claims.entry(claim.run).or_default().push((claim, Ending::Released));
        }
        let mut contexts = Contexts::new();
        for (run, claims) in claims {
            match known.of(&[run]).await {
                Ok(found) => contexts.extend(found),
                Err(error) if is_passing(&error) => return Err(error),
                Err(error) => {
                    tracing::error!(error = %Chain(&error), %run, queue, "cannot read the facts of a run in a queue; its \
                        task runs are not given to workers");
                    self.give_back(claims, Some(queue)).await;
                }
            }
        }
        Ok(contexts)
    }

    /// What a worker is told of a task run. If something cannot be read, only this run fails: as an error of the whole claim,
    /// it would hold up everything behind it in the queue.
    async fn tell(&self, context: &RunContext, claimed: &QueueClaimed) -> Step<QueueClaim> {
        match self.told(context, claimed).await {
            Err(Stop::Engine(
                error @ (EngineError::Unreadable(_) | EngineError::Store(StoreError::Unreadable { .. })),
            )) => Err(Ending::invalid(Chain(&error).to_string()).into()),
            told => told,
        }
    }

    async fn told(&self, context: &RunContext, claimed: &QueueClaimed) -> Step<QueueClaim> {
        let at = claimed.claim.at;
        let params = match &claimed.params {
            Some(params) => params.clone(),
            None => constant_params(context, at.key.task)?,
        };
        let Some(params) = cut_batch(&self.node, context, params).await? else {
            // All messages of the batch were cancelled meanwhile: nothing is left to do.
            return Err(Ending::Succeeded("null".to_owned()).into());
        };
        let item = match at.key.item {
            Some(index) => {
                let (item, count) = item_of(&self.node, context, at, index).await?;
                Some(MapItem { item, index, count })
            }
            None => None,
        };
        let mut attempt = context_of(self.node.now(), context, at, item);
        attempt.deadline = claimed.deadline_at;
        let unreadable = |error| EngineError::unreadable_in(format!("run {}", context.facts.id), error);
        let raw = |text: String| RawValue::from_string(text).map_err(unreadable);
        let context_text = serde_json::to_string(&attempt).map_err(unreadable)?;
        Ok(QueueClaim {
            claim: claimed.claim,
            group: attempt.group,
            task: attempt.task,
            params: raw(params)?,
            context: raw(context_text)?,
            lease_expires_at: claimed.lease_expires_at,
        })
    }
}
