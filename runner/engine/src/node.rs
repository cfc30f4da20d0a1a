//! The node's lease: taken at the start, extended by a heartbeat, given back at the end.
//!
//! # What a lease is
//!
//! A number. Whatever a node holds carries it, and outcomes are recorded only by whoever deletes a row under it. It holds
//! for 8 s from the last heartbeat, by Postgres' clock. What stands under a number that no node has any more is taken
//! over by the reapers of all nodes.
//!
//! # The fence
//!
//! A node counts from before it *sent* the last heartbeat that came through. After 6 s without another it fences itself:
//! it stops what it has in hand and reports nothing more, 2 s (the *margin*) before anybody else may run it again. From
//! then on the lease is given up. No heartbeat extends it any more, not even one that was sent before and is carried out
//! late: a heartbeat that finds no more than the margin left changes nothing.
//!
//! # Coming back
//!
//! What a fenced node asks for is a *new* lease, and it goes on as soon as it has one. The old number ends with the same
//! statement, so what it held is taken over at once, by whoever looks first. There is one statement under way at a time,
//! on a connection that nothing else uses, and it is given the time that a slow commit takes
//! ([`heddle_store::database::LEASE_STATEMENT_MAX`]), whatever is left of the lease: one that is abandoned sooner may be
//! carried out all the same, and the next one meets it there. If a new lease was given and the answer got lost, the node
//! learns the number and takes the next one from it.
//!
//! `/readyz`, `/v1/nodes` (state `fenced`), `/metrics` and the log say so meanwhile. Other nodes see it by what is left of
//! the lease.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use chrono::TimeDelta;
use heddle_domain::Chain;
use heddle_store::StoreError;
use heddle_store::live::{EndedAttempt, Grant};
use tokio::time::Instant;

use crate::apply::Applied;
use crate::signals::Signal;
use crate::work::End;
use crate::{EngineError, Inner};

/// How often the lease is extended.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(2);

/// How long to wait after a heartbeat, or the wish for a new lease, that failed.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// How often a lease is asked for that somebody else has taken meanwhile, before the node waits a while.
const TRIES_MAX: usize = 3;

impl Inner {
    fn lease_for(&self) -> TimeDelta {
        TimeDelta::from_std(self.config.lease_for).unwrap_or(TimeDelta::seconds(8))
    }

    /// By this much a node stops before its lease ends.
    pub(crate) fn lease_margin(&self) -> Duration {
        self.config.lease_for / 4
    }

    /// Whether the lease is lost, and no new one is there yet.
    pub(crate) fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Acquire)
    }

    /// Takes a lease; `former` is the one that this process has had. Answers when it was asked for. `None`: another one
    /// has come between.
    async fn take_lease(&self, former: Option<i64>) -> Result<Option<(i64, Instant)>, StoreError> {
        self.store.reach_lease().await?;
        let config = &self.config;
        let sent_at = Instant::now();
        let sent = self.clock.own();
        let taken = self
            .store
            .register_node(
                config.node,
                &config.name,
                &config.address,
                &config.version,
                config.slots as i32,
                self.lease_for(),
                former,
            )
            .await?;
        let Some((lease, now)) = taken else { return Ok(None) };
        self.clock.follow(sent, self.clock.own(), now);
        Ok(Some((lease, sent_at)))
    }

    /// Takes the first lease.
    pub(crate) async fn register(&self) -> Result<(), EngineError> {
        if let Some((lease, _)) = self.take_lease(None).await? {
            self.lease.store(lease, Ordering::Release);
        }
        self.fenced.store(false, Ordering::Release);
        Ok(())
    }

    /// Stops what is still in hand and puts it back into the queue, at the end of a drain: not lost, so not counted
    /// against `max_lost`.
    pub(crate) async fn hand_back(self: &Arc<Self>) -> Result<(), EngineError> {
        let left = self.hands.older_than(Duration::ZERO);
        if left.is_empty() {
            return Ok(());
        }
        tracing::info!(attempts = left.len(), "giving back attempts that did not end in time");
        let now = self.now();
        let mut runs: Vec<_> = left.iter().map(|entry| entry.0).collect();
        runs.sort_unstable();
        runs.dedup();
        let contexts = self.contexts_of(&runs).await?;
        let lease = self.lease();
        let outcomes = left
            .into_iter()
            .map(|(run, at)| Applied {
                ended: EndedAttempt { run, at, lease },
                end: End::Dropped,
                finished_at: now,
                node: Some(self.config.node),
            })
            .collect();
        let mut completion = self.store.completion(lease, now).await?;
        let after = self
            .apply(&mut completion, &contexts, outcomes, &mut Grant::none(), now)
            .await?;
        completion.commit().await?;
        self.hands.cancel_all();
        self.acted(after);
        Ok(())
    }

    /// Takes a new lease after a fence. Answers when it asked.
    async fn renew(&self) -> Result<Option<Instant>, StoreError> {
        let mut former = Some(self.lease());
        for _ in 0..TRIES_MAX {
            if let Some((lease, sent_at)) = self.take_lease(former).await? {
                tracing::info!(lease, former = self.lease(), "the node has a new lease, and goes on");
                self.lease.store(lease, Ordering::Release);
                self.fenced.store(false, Ordering::Release);
                self.signals.raise(Signal::Work);
                return Ok(Some(sent_at));
            }
            // Given without our hearing of it, or to another process with our identity; or the row has been removed.
            former = self.store.lease_of(self.config.node).await?;
        }
        Ok(None)
    }

    /// Stops everything in hand: the lease is lost.
    fn fence(&self, why: &str) {
        if !self.fenced.swap(true, Ordering::AcqRel) {
            self.fences.fetch_add(1, Ordering::Relaxed);
            let stopped = self.hands.len() + self.messages.in_hand();
            tracing::error!(
                lease = self.lease(),
                stopped,
                why,
                "the node has lost its lease, and stops what it has in hand"
            );
        }
        // Each time: a claim that was under way when the lease was lost may have been answered since.
        self.hands.cancel_all();
        self.messages.cancel_all();
    }

    /// One heartbeat; answers when it was sent. `None`: the lease is lost.
    async fn beat(&self) -> Result<Option<Instant>, StoreError> {
        self.store.reach_lease().await?;
        let sent_at = Instant::now();
        let sent = self.clock.own();
        let beat = self
            .store
            .heartbeat(
                self.lease(),
                i16::from(self.draining.load(Ordering::Acquire)),
                self.position.load(Ordering::Acquire),
                self.hands.len() as i32,
                self.lease_for(),
                TimeDelta::from_std(self.lease_margin()).unwrap_or_default(),
            )
            .await?;
        let Some(beat) = beat else { return Ok(None) };
        self.clock.follow(sent, self.clock.own(), beat.now);
        self.others.store(beat.others > 0, Ordering::Release);
        Ok(Some(sent_at))
    }

    /// Waits for something, and fences the node meanwhile when it is time. `None`: the node stops.
    async fn watching<T>(&self, fence_at: Instant, something: impl Future<Output = T>) -> Option<T> {
        let mut something = std::pin::pin!(something);
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return None,
                done = &mut something => return Some(done),
                () = tokio::time::sleep_until(fence_at), if !self.is_fenced() => {
                    self.fence("no heartbeat came through in time");
                }
            }
        }
    }
}

/// Keeps the lease until the node stops.
pub(crate) async fn keep(inner: Arc<Inner>) {
    let stops_after = inner.config.lease_for - inner.lease_margin();
    let every = HEARTBEAT_EVERY.min(inner.config.lease_for / 4);
    // When the last heartbeat was sent that came through.
    let mut extended = Instant::now();
    let mut wait = every;
    loop {
        let fence_at = extended + stops_after;
        if inner.watching(fence_at, tokio::time::sleep(wait)).await.is_none() {
            return;
        }
        wait = AGAIN_AFTER;
        if !inner.is_fenced() {
            let Some(beat) = inner.watching(fence_at, inner.beat()).await else {
                return;
            };
            match beat {
                // Unless it came through too late: what was in hand has been stopped, so that lease has to end.
                Ok(Some(sent_at)) if !inner.is_fenced() => {
                    extended = sent_at;
                    wait = every;
                }
                Ok(Some(_)) => {}
                Ok(None) => inner.fence("it has run out, or another process has this node's identity"),
                Err(error) => tracing::warn!(error = %Chain(&error), "no heartbeat"),
            }
        }
        // A node that leaves needs no new one: what it had has been stopped.
        if inner.is_fenced() && !inner.draining.load(Ordering::Acquire) {
            inner.fence("");
            let Some(renewed) = inner.watching(fence_at, inner.renew()).await else {
                return;
            };
            match renewed {
                Ok(Some(sent_at)) => {
                    extended = sent_at;
                    wait = every;
                }
                Ok(None) => {
                    tracing::warn!("another process takes this node's leases away: is its --node-id given twice?")
                }
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), "cannot take a new lease");
                }
            }
        }
    }
}
