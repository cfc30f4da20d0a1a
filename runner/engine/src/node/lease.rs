//! The node's lease: taken at the start, extended by a heartbeat, given back at the end.
//!
//! # What a lease is
//!
//! A lease is a number. Every row of work that a node holds has this number, and only a transaction that deletes a row
//! with it records an outcome. The lease is valid for 8 s from the last heartbeat, by Postgres' clock. Rows with a
//! number that no node has any more are taken over by the reapers of all nodes.
//!
//! # The fence
//!
//! A node counts from before it *sent* the last successful heartbeat. If none succeeds for 6 s, it fences itself: it
//! stops all of its attempts and reports nothing more, 2 s (the *margin*) before another node may run them again. From
//! then on it has given up this lease. No heartbeat extends it any more, not even one that was sent before and is
//! executed late: a heartbeat changes nothing if no more than the margin is left.
//!
//! # Coming back
//!
//! A fenced node asks for a *new* lease, and continues as soon as it has one. The same statement ends the old number,
//! so what it held is taken over at once, by the first node that checks. Only one statement runs at a time, on a
//! connection that nothing else uses. It gets the time that a slow commit takes
//! ([`heddle_store::database::LEASE_STATEMENT_MAX`]), however little is left of the lease: if a node abandons a
//! statement sooner, the server may still execute it, and it conflicts with the next one. If a new lease was given and
//! the answer got lost, the node reads its number and takes the next one from it.
//!
//! Meanwhile `/readyz`, `/v1/nodes` (state `fenced`), `/metrics` and the log say so. Other nodes see it by the rest of
//! the lease.
//!
//! # Warming
//!
//! A node that starts with an empty directory may compile for a minute. A script that it took up meanwhile would wait, while
//! other nodes have it compiled and are idle. So the node says in its row that it is *warming*, and the answers to its
//! registration and to its heartbeats tell whether another node can do its work. As long as that is so, it takes no task
//! runs for itself ([`super::state::NodeState::takes_work`]). If there is no such node, because it is alone or all nodes
//! start at once, it takes them. When it has compiled its scripts, or after [`WARMING_MAX`], it is warm, and says so with a
//! heartbeat at once.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use heddle_domain::state::ReportedState;
use heddle_domain::{Chain, Time};
use heddle_store::StoreError;
use heddle_store::node::{NewNode, NodeReport};

use super::Node;
use super::part::Parts;
use super::service::{Needs, Service};
use super::signals::Signal;
use crate::EngineError;

/// How often the lease is extended.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(2);

/// The pause after a failed heartbeat, or a failed request for a new lease. After the first failed heartbeat the next
/// follows at once: its connection was dead, and another is opened while the lease still holds.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// How long after its start a node may leave task runs to others because it compiles. A script that takes longer than
/// this would otherwise keep it from all other work.
const WARMING_MAX: Duration = Duration::from_secs(300);

/// The reason of a fence when the database cannot be reached.
const NO_HEARTBEAT: &str = "no heartbeat succeeded in time";

/// How often a node asks for a lease that somebody else has taken meanwhile, before it pauses.
const TRIES_MAX: usize = 3;

impl Node {
    fn lease_for(&self) -> TimeDelta {
        TimeDelta::from_std(self.identity.lease_for).unwrap_or(TimeDelta::seconds(8))
    }

    /// How long before the end of its lease a node stops its work.
    pub(crate) fn lease_margin(&self) -> Duration {
        self.identity.lease_for / 4
    }

    /// The scripts are loaded, or have taken too long: this node takes task runs, whatever the others do. The keeper tells
    /// them.
    pub(crate) fn end_warming(&self) {
        if self.state.end_warming() {
            self.signals.raise(Signal::Work);
        }
    }

    /// Whether another node can do the work of this one. If that is not so any more, the claimer looks at once.
    fn note_relief(&self, warm: i64) {
        if self.state.set_relieved(warm > 0) {
            tracing::info!("no other node can run scripts at once; this one takes task runs while it still compiles");
            self.signals.raise(Signal::Work);
        }
    }

    /// Connects for the lease. If the connection is a new one, the log of changes is read at once, and before that the caches
    /// are cleared: the server may be another one ([`super::changes`]).
    async fn reach_lease(&self) -> Result<(), StoreError> {
        self.store.reach_lease().await?;
        if self.changes.connection() != self.store.lease_connections() {
            self.signals.raise(Signal::Changes);
        }
        Ok(())
    }

    /// Takes a lease; `former` is the previous one of this process. Returns when it was asked for. `None`: another
    /// process has taken it in between.
    async fn take_lease(&self, former: Option<i64>) -> Result<Option<(i64, Duration)>, StoreError> {
        self.reach_lease().await?;
        let identity = &self.identity;
        let sent_at = self.clock.elapsed();
        let sent = self.clock.own();
        let node = NewNode {
            id: identity.id,
            name: &identity.name,
            address: &identity.address,
            version: &identity.version,
            slots: identity.slots as i32,
            lease_for: self.lease_for(),
            warming: self.state.now().warming,
        };
        let Some(registered) = self.store.register_node(node, former).await? else {
            return Ok(None);
        };
        self.clock.follow(sent, self.clock.own(), registered.now);
        // Before the node has the lease: it must not take anything in between.
        self.note_relief(registered.warm);
        Ok(Some((registered.lease, sent_at)))
    }

    /// Takes the first lease.
    pub(crate) async fn register(&self) -> Result<(), EngineError> {
        if let Some((lease, _)) = self.take_lease(None).await? {
            self.state.hold(lease);
        }
        Ok(())
    }

    /// Takes a new lease after a fence. Returns when it asked.
    async fn renew(&self) -> Result<Option<Duration>, StoreError> {
        let mut former = Some(self.lease());
        for _ in 0..TRIES_MAX {
            if let Some((lease, sent_at)) = self.take_lease(former).await? {
                tracing::info!(lease, former = self.lease(), "the node has a new lease and continues");
                self.state.hold(lease);
                self.signals.raise(Signal::Work);
                return Ok(Some(sent_at));
            }
            // A lease was given and its answer lost, or another process has our identity, or the row was removed.
            former = self.store.lease_of(self.identity.id).await?;
        }
        Ok(None)
    }

    /// Stops all attempts of this node: the lease is lost.
    fn fence(&self, parts: &Parts, why: &str) {
        if self.state.fence() {
            tracing::error!(
                lease = self.lease(),
                stopped = parts.in_hand(),
                why,
                "the node has lost its lease; it stops its running attempts, and other nodes take them over"
            );
        }
        // Also at a second call: a claim that was under way when the lease was lost may have brought attempts since.
        parts.stop_in_hand();
    }

    /// One heartbeat; returns when it was sent. `None`: the lease is lost.
    async fn beat(&self, parts: &Parts) -> Result<Option<Duration>, StoreError> {
        self.reach_lease().await?;
        let sent_at = self.clock.elapsed();
        let sent = self.clock.own();
        let report = NodeReport {
            state: match self.is_draining() {
                true => ReportedState::Draining,
                false => ReportedState::Active,
            },
            warming: self.state.now().warming,
            position: self.changes.position(),
            claimed_to: parts.claimed_to(),
            in_hand: parts.attempts_in_hand() as i32,
            lease_for: self.lease_for(),
            margin: TimeDelta::from_std(self.lease_margin()).unwrap_or_default(),
        };
        let beat = self.store.heartbeat(self.identity.id, self.lease(), report).await?;
        let Some(beat) = beat else { return Ok(None) };
        self.clock.follow(sent, self.clock.own(), beat.now);
        self.state.set_others(beat.others > 0);
        self.note_relief(beat.warm);
        parts.others_claimed_to(beat.claimed_to);
        Ok(Some(sent_at))
    }

    /// Waits for a future, and fences the node when it is time. `None`: the node stops.
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

/// Keeps the lease. The last successful heartbeat is dated by a clock that is never corrected: the node's own clock may
/// be set back, and then a fence would come too late.
pub(crate) struct Keeper {
    node: Arc<Node>,
    parts: Parts,
    /// When the last successful heartbeat was sent.
    extended: Duration,
    /// The last tick failed.
    failed: bool,
    /// When the node started.
    started: Duration,
    /// The last heartbeat said that the node is warming.
    said_warming: bool,
}

impl Keeper {
    pub(crate) fn of(node: Arc<Node>, parts: Parts) -> Self {
        Self {
            extended: node.clock.elapsed(),
            failed: false,
            started: node.clock.elapsed(),
            said_warming: node.state.now().warming,
            node,
            parts,
        }
    }

    fn every(&self) -> Duration {
        HEARTBEAT_EVERY.min(self.node.identity.lease_for / 4)
    }

    /// When the node fences itself unless another heartbeat succeeds.
    fn fence_at(&self) -> Duration {
        self.extended + (self.node.identity.lease_for - self.node.lease_margin())
    }

    /// The pause after a failed try; it ends at the fence.
    fn wait(&self) -> Duration {
        match self.node.is_fenced() {
            true => AGAIN_AFTER,
            false => AGAIN_AFTER.min(self.fence_at().saturating_sub(self.node.clock.elapsed())),
        }
    }

    /// A node that has been warming for too long takes its part of the work.
    fn check_warming(&mut self) {
        let node = &self.node;
        if node.state.now().warming && node.clock.elapsed() >= self.started + WARMING_MAX {
            tracing::warn!("some scripts are still compiling; this node takes task runs now, and theirs wait");
            node.end_warming();
        }
        self.said_warming = node.state.now().warming;
    }

    /// Sends a heartbeat; returns whether the lease is extended. `None`: the node stops.
    async fn extend(&mut self) -> Option<bool> {
        let (node, parts) = (&self.node, &self.parts);
        match node.watching(parts, self.fence_at(), node.beat(parts)).await? {
            // The heartbeat may have succeeded too late. Then all attempts have been stopped already, so the lease has
            // to end too.
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

    /// Asks for a new lease; returns whether it got one. `None`: the node stops.
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

    /// Woken when the node is warm: the others are told at once.
    async fn woken(&mut self) {
        match self.said_warming {
            true => self.node.state.wait_for(|state| !state.warming).await,
            false => std::future::pending().await,
        }
    }

    async fn tick(&mut self, _now: Time) -> Result<Duration, EngineError> {
        self.check_warming();
        if !self.node.is_fenced() && self.node.clock.elapsed() >= self.fence_at() {
            self.node.fence(&self.parts, NO_HEARTBEAT);
        }
        let mut kept = false;
        if !self.node.is_fenced() {
            kept = self.extend().await.unwrap_or_default();
        }
        // A node that leaves needs no new lease: its work has been stopped.
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
