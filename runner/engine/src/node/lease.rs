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
use std::time::Duration;

use chrono::TimeDelta;
use heddle_domain::Chain;
use heddle_store::StoreError;
use tokio::time::Instant;

use super::Node;
use super::part::Parts;
use super::signals::Signal;
use crate::EngineError;

/// How often the lease is extended.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(2);

/// How long to wait after a heartbeat, or the wish for a new lease, that failed. The first heartbeat that fails is
/// followed by the next at once: its connection was dead, and another is opened while the lease still holds.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// How often a lease is asked for that somebody else has taken meanwhile, before the node waits a while.
const TRIES_MAX: usize = 3;

impl Node {
    fn lease_for(&self) -> TimeDelta {
        TimeDelta::from_std(self.identity.lease_for).unwrap_or(TimeDelta::seconds(8))
    }

    /// By this much a node stops before its lease ends.
    pub(crate) fn lease_margin(&self) -> Duration {
        self.identity.lease_for / 4
    }

    /// Takes a lease; `former` is the one that this process has had. Answers when it was asked for. `None`: another one
    /// has come between.
    async fn take_lease(&self, former: Option<i64>) -> Result<Option<(i64, Instant)>, StoreError> {
        self.store.reach_lease().await?;
        let identity = &self.identity;
        let sent_at = Instant::now();
        let sent = self.clock.own();
        let taken = self
            .store
            .register_node(
                identity.id,
                &identity.name,
                &identity.address,
                &identity.version,
                identity.slots as i32,
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
            self.state.hold(lease);
        }
        Ok(())
    }

    /// Takes a new lease after a fence. Answers when it asked.
    async fn renew(&self) -> Result<Option<Instant>, StoreError> {
        let mut former = Some(self.lease());
        for _ in 0..TRIES_MAX {
            if let Some((lease, sent_at)) = self.take_lease(former).await? {
                tracing::info!(lease, former = self.lease(), "the node has a new lease, and goes on");
                self.state.hold(lease);
                self.signals.raise(Signal::Work);
                return Ok(Some(sent_at));
            }
            // Given without our hearing of it, or to another process with our identity; or the row has been removed.
            former = self.store.lease_of(self.identity.id).await?;
        }
        Ok(None)
    }

    /// Stops everything in hand: the lease is lost.
    fn fence(&self, parts: &Parts, why: &str) {
        if self.state.fence() {
            tracing::error!(
                lease = self.lease(),
                stopped = parts.in_hand(),
                why,
                "the node has lost its lease, and stops what it has in hand"
            );
        }
        // Each time: a claim that was under way when the lease was lost may have been answered since.
        parts.stop_in_hand();
    }

    /// One heartbeat; answers when it was sent. `None`: the lease is lost.
    async fn beat(&self, parts: &Parts) -> Result<Option<Instant>, StoreError> {
        self.store.reach_lease().await?;
        let sent_at = Instant::now();
        let sent = self.clock.own();
        let beat = self
            .store
            .heartbeat(
                self.lease(),
                i16::from(self.is_draining()),
                self.changes.position(),
                parts.attempts_in_hand() as i32,
                self.lease_for(),
                TimeDelta::from_std(self.lease_margin()).unwrap_or_default(),
            )
            .await?;
        let Some(beat) = beat else { return Ok(None) };
        self.clock.follow(sent, self.clock.own(), beat.now);
        self.state.set_others(beat.others > 0);
        Ok(Some(sent_at))
    }

    /// Waits for something, and fences the node meanwhile when it is time. `None`: the node stops.
    async fn watching<T>(&self, parts: &Parts, fence_at: Instant, something: impl Future<Output = T>) -> Option<T> {
        let mut something = std::pin::pin!(something);
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return None,
                done = &mut something => return Some(done),
                () = tokio::time::sleep_until(fence_at), if !self.is_fenced() => {
                    self.fence(parts, "no heartbeat came through in time");
                }
            }
        }
    }
}

/// Keeps the lease until the node stops.
pub(crate) async fn keep(node: Arc<Node>, parts: Parts) {
    let stops_after = node.identity.lease_for - node.lease_margin();
    let every = HEARTBEAT_EVERY.min(node.identity.lease_for / 4);
    // When the last heartbeat was sent that came through.
    let mut extended = Instant::now();
    let mut wait = every;
    loop {
        let fence_at = extended + stops_after;
        if node
            .watching(&parts, fence_at, tokio::time::sleep(wait))
            .await
            .is_none()
        {
            return;
        }
        let failed_before = wait != every;
        wait = AGAIN_AFTER;
        if !node.is_fenced() {
            let Some(beat) = node.watching(&parts, fence_at, node.beat(&parts)).await else {
                return;
            };
            match beat {
                // Unless it came through too late: what was in hand has been stopped, so that lease has to end.
                Ok(Some(sent_at)) if !node.is_fenced() => {
                    extended = sent_at;
                    wait = every;
                }
                Ok(Some(_)) => {}
                Ok(None) => node.fence(&parts, "it has run out, or another process has this node's identity"),
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), "no heartbeat");
                    if !failed_before {
                        wait = Duration::ZERO;
                    }
                }
            }
        }
        // A node that leaves needs no new one: what it had has been stopped.
        if node.is_fenced() && !node.is_draining() {
            node.fence(&parts, "");
            let Some(renewed) = node.watching(&parts, fence_at, node.renew()).await else {
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
