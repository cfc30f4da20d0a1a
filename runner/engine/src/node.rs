//! The node's lease: taken at the start, extended by a heartbeat, given back at the end.
//!
//! A node that cannot extend its lease in time fences itself: it stops what it has in hand before anybody else may run
//! it again (the local limit is shorter than the lease), and reports nothing more. When the database is back it takes
//! a new lease and goes on; what it had is run again by whoever claims it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use chrono::TimeDelta;
use heddle_domain::Chain;

use heddle_store::live::{EndedAttempt, Grant};

use crate::apply::Applied;
use crate::work::End;
use crate::{EngineError, Inner};

/// How often the lease is extended.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(2);

impl Inner {
    /// Takes a lease.
    pub(crate) async fn register(&self) -> Result<(), EngineError> {
        let config = &self.config;
        let sent = self.clock.own();
        let (lease, now) = self
            .store
            .register_node(
                config.node,
                &config.name,
                &config.address,
                &config.version,
                config.slots as i32,
                TimeDelta::from_std(config.lease_for).unwrap_or(TimeDelta::seconds(8)),
            )
            .await?;
        self.clock.follow(sent, self.clock.own(), now);
        self.lease.store(lease, Ordering::Release);
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

    /// Takes a new lease after a fence; the former one ends with it, and what it held is run again.
    async fn renew(&self) -> bool {
        match self.register().await {
            Ok(()) => {
                tracing::info!("the node has a new lease");
                self.work.notify_one();
                true
            }
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "cannot take a new lease");
                false
            }
        }
    }

    /// Stops everything in hand: the lease is lost.
    fn fence(&self) {
        if !self.fenced.swap(true, Ordering::AcqRel) {
            tracing::error!("the node has lost its lease: it stops what it has in hand");
            self.hands.cancel_all();
            self.messages.cancel_all();
        }
    }
}

pub(crate) async fn keep(inner: Arc<Inner>) {
    let lease_for = TimeDelta::from_std(inner.config.lease_for).unwrap_or(TimeDelta::seconds(8));
    // By this much the node stops before its lease ends.
    let margin = inner.config.lease_for / 4;
    let mut extended = tokio::time::Instant::now();
    let mut wait = HEARTBEAT_EVERY.min(inner.config.lease_for / 4);
    loop {
        tokio::select! {
            () = inner.stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
        wait = HEARTBEAT_EVERY.min(inner.config.lease_for / 4);
        let sent_at = tokio::time::Instant::now();
        let sent = inner.clock.own();
        let state = i16::from(inner.draining.load(Ordering::Acquire));
        let position = inner.position.load(Ordering::Acquire);
        let left = (extended + inner.config.lease_for - margin).saturating_duration_since(sent_at);
        let beat = inner
            .store
            .heartbeat(inner.lease(), state, position, inner.hands.len() as i32, lease_for);
        match tokio::time::timeout(left.max(Duration::from_millis(100)), beat).await {
            // It fenced itself while the database was away, and the lease held out: what it had in hand is stopped, so
            // that lease has to end for others to take it.
            Ok(Ok(Some(_))) if inner.fenced.load(Ordering::Acquire) => {
                if inner.renew().await {
                    extended = tokio::time::Instant::now();
                } else {
                    wait = Duration::from_millis(500);
                }
            }
            Ok(Ok(Some(beat))) => {
                extended = sent_at;
                inner.clock.follow(sent, inner.clock.own(), beat.now);
                inner.others.store(beat.others > 0, Ordering::Release);
            }
            Ok(Ok(None)) => {
                inner.fence();
                if inner.renew().await {
                    extended = tokio::time::Instant::now();
                } else {
                    wait = Duration::from_millis(500);
                }
            }
            Ok(Err(error)) => {
                tracing::warn!(error = %Chain(&error), "no heartbeat");
                wait = Duration::from_millis(500);
            }
            Err(_) => wait = Duration::from_millis(100),
        }
        if extended.elapsed() > inner.config.lease_for - margin {
            inner.fence();
        }
    }
}
