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
use heddle_domain::{Chain, Time};
use heddle_store::StoreError;

use super::Node;
use super::part::Parts;
use super::service::{Needs, Service};
use super::signals::Signal;
use crate::EngineError;

/// How often the lease is extended.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(2);

/// How long to wait after a heartbeat, or the wish for a new lease, that failed. The first heartbeat that fails is
/// followed by the next at once: its connection was dead, and another is opened while the lease still holds.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Why a node fences itself that reaches no database.
const NO_HEARTBEAT: &str = "no heartbeat succeeded in time";

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
    async fn take_lease(&self, former: Option<i64>) -> Result<Option<(i64, Duration)>, StoreError> {
        self.store.reach_lease().await?;
        let identity = &self.identity;
        let sent_at = self.clock.elapsed();
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
    async fn renew(&self) -> Result<Option<Duration>, StoreError> {
        let mut former = Some(self.lease());
        for _ in 0..TRIES_MAX {
            if let Some((lease, sent_at)) = self.take_lease(former).await? {
                tracing::info!(lease, former = self.lease(), "the node has a new lease and continues");
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
                "the node has lost its lease; it stops its running attempts, and other nodes take them over"
            );
        }
        // Each time: a claim that was under way when the lease was lost may have been answered since.
        parts.stop_in_hand();
    }

    /// One heartbeat; answers when it was sent. `None`: the lease is lost.
    async fn beat(&self, parts: &Parts) -> Result<Option<Duration>, StoreError> {
        self.store.reach_lease().await?;
        let sent_at = self.clock.elapsed();
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
    async fn watching<T>(&self, parts: &Parts, fence_at: Duration, something: impl Future<Output = T>) -> Option<T> {
        let mut something = std::pin::pin!(something);
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return None,
                done = &mut something => return Some(done),
                () = tokio::time::sleep(fence_at.saturating_sub(self.clock.elapsed())), if !self.is_fenced() => {
                    self.fence(parts, NO_HEARTBEAT);
                }
            }
        }
    }
}

/// Keeps the lease. When the last heartbeat was sent that came through it counts by a clock that is never corrected: by the
/// node's own, which may be set back, a fence could come too late.
pub(crate) struct Keeper {
    node: Arc<Node>,
    parts: Parts,
    /// When the last heartbeat was sent that came through.
    extended: Duration,
    /// The last tick came to nothing.
    failed: bool,
}

impl Keeper {
    pub(crate) fn of(node: Arc<Node>, parts: Parts) -> Self {
        Self {
            extended: node.clock.elapsed(),
            failed: false,
            node,
            parts,
        }
    }

    fn every(&self) -> Duration {
        HEARTBEAT_EVERY.min(self.node.identity.lease_for / 4)
    }

    /// When the node stops unless another heartbeat comes through.
    fn fence_at(&self) -> Duration {
        self.extended + (self.node.identity.lease_for - self.node.lease_margin())
    }

    /// How long to wait after a try that came to nothing: not beyond the fence.
    fn wait(&self) -> Duration {
        match self.node.is_fenced() {
            true => AGAIN_AFTER,
            false => AGAIN_AFTER.min(self.fence_at().saturating_sub(self.node.clock.elapsed())),
        }
    }

    /// A heartbeat; whether the lease is extended. `None`: the node stops.
    async fn extend(&mut self) -> Option<bool> {
        let (node, parts) = (&self.node, &self.parts);
        match node.watching(parts, self.fence_at(), node.beat(parts)).await? {
            // Unless it came through too late: what was in hand has been stopped, so that lease has to end.
            Ok(Some(sent_at)) if !node.is_fenced() => {
                self.extended = sent_at;
                return Some(true);
            }
            Ok(Some(_)) => {}
            Ok(None) => node.fence(parts, "it has expired, or another process uses the same node id"),
            Err(error) => tracing::warn!(error = %Chain(&error), "no heartbeat"),
        }
        Some(false)
    }

    /// Asks for a new lease; whether there is one. `None`: the node stops.
    async fn renew(&mut self) -> Option<bool> {
        let (node, parts) = (&self.node, &self.parts);
        node.fence(parts, "");
        match node.watching(parts, self.fence_at(), node.renew()).await? {
            Ok(Some(sent_at)) => {
                self.extended = sent_at;
                return Some(true);
            }
            Ok(None) => {
                tracing::warn!(
                    "another process takes over the lease of this node; check that no other node has the \
                    same --node-id"
                );
            }
            Err(error) => tracing::warn!(error = %Chain(&error), "cannot get a new lease; trying again"),
        }
        Some(false)
    }
}

impl Service for Keeper {
    const FAILED: &'static str = "cannot renew the lease of this node; trying again";
    const NEEDS: Needs = Needs::Nothing;
    const AGAIN_AFTER: Duration = AGAIN_AFTER;

    fn node(&self) -> &Arc<Node> {
        &self.node
    }

    fn first_after(&self) -> Duration {
        self.every()
    }

    async fn tick(&mut self, _now: Time) -> Result<Duration, EngineError> {
        if !self.node.is_fenced() && self.node.clock.elapsed() >= self.fence_at() {
            self.node.fence(&self.parts, NO_HEARTBEAT);
        }
        let mut kept = false;
        if !self.node.is_fenced() {
            kept = self.extend().await.unwrap_or_default();
        }
        // A node that leaves needs no new one: what it had has been stopped.
        if self.node.is_fenced() && !self.node.is_leaving() {
            kept = self.renew().await.unwrap_or_default();
        }
        let failed_before = std::mem::replace(&mut self.failed, !kept);
        Ok(match kept {
            true => self.every(),
            // Its connection was dead: the next one opens another.
            false if !failed_before && !self.node.is_fenced() => Duration::ZERO,
            false => self.wait(),
        })
    }
}
