//! The claimer: takes task runs from *ready*, as far as this node has free slots. It is its own service, so that a
//! batch is claimed while guests run and other outcomes are recorded.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use heddle_domain::Time;

use crate::node::Node;
use crate::node::service::{Needs, Service};
use crate::node::signals::Signal;
use crate::{EngineError, Runs};

/// How often a node polls for work without a signal; less often after it has had none for a while.
const POLL_BUSY: Duration = Duration::from_millis(100);
const POLL_IDLE: Duration = Duration::from_millis(1_000);

/// After this many polls without a result, it polls less often.
const IDLE_AFTER: u32 = 20;

/// The pause before a failed claim is tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// While there is a backlog, this many slots must become free before the next claim: a small claim costs as much as a
/// large one.
const ROOM_MIN: usize = crate::runs::take::held::SHORT_TARGET / 4;

/// How long to wait for these slots.
const ROOM_WAIT: Duration = Duration::from_millis(5);

/// What a node knows of the queue of ready task runs.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// The highest position in the queue that was claimed, by this node or, as of the last heartbeat, by another.
    last_claimed: AtomicI64,
    /// The last claim was full: there is more.
    backlog: AtomicBool,
}

impl Queue {
    pub(crate) fn last_claimed(&self) -> i64 {
        self.last_claimed.load(Ordering::Relaxed)
    }

    /// A row at this position was claimed.
    pub(crate) fn has_come_to(&self, position: i64) {
        self.last_claimed.fetch_max(position, Ordering::Relaxed);
    }

    pub(crate) fn has_backlog(&self) -> bool {
        self.backlog.load(Ordering::Relaxed)
    }

    fn note_backlog(&self, backlog: bool) {
        self.backlog.store(backlog, Ordering::Relaxed);
    }
}

/// Claims what is ready.
pub(crate) struct Claimer {
    runs: Arc<Runs>,
    /// How many polls in a row found nothing.
    idle: u32,
    woken_by: Option<Signal>,
}

impl Claimer {
    pub(crate) fn of(runs: Arc<Runs>) -> Self {
        Self {
            runs,
            idle: 0,
            woken_by: None,
        }
    }

    /// The time until the next poll without a signal.
    fn poll(&self) -> Duration {
        if !self.runs.node.state.now().takes_work() {
            // It is told when it may take something again.
            return POLL_BUSY;
        }
        match (self.runs.queue.has_backlog(), self.idle > IDLE_AFTER) {
            (true, _) => ROOM_WAIT,
            (false, true) => POLL_IDLE,
            (false, false) => POLL_BUSY,
        }
    }

    /// Claims as much as there are slots for.
    async fn claim(&mut self) -> Result<(), EngineError> {
        let runs = &self.runs;
        let room = runs.room();
        if room.claimable() == 0 {
            // Each freed slot signals the claimer.
            runs.queue.note_backlog(true);
            return Ok(());
        }
        let claimed = runs.node.store.claim(runs.lease(), room, &*runs.node.clock).await?;
        if !claimed.is_empty() {
            self.idle = 0;
            runs.counts.claimed.observe(claimed.len() as f64);
        }
        runs.queue.note_backlog(claimed.len() >= room.claimable());
        if let Some(last) = claimed.iter().map(|claimed| claimed.position).max() {
            runs.queue.has_come_to(last);
        }
        runs.take(claimed.into_iter().map(|claimed| (claimed.run, claimed.at)).collect());
        Ok(())
    }
}

impl Service for Claimer {
    const FAILED: &'static str = "cannot claim task runs; trying again";
    // A node that may not work has no slots, and notes that there is more to claim.
    const NEEDS: Needs = Needs::Nothing;
    const AGAIN_AFTER: Duration = AGAIN_AFTER;

    fn node(&self) -> &Arc<Node> {
        &self.runs.node
    }

    fn first_after(&self) -> Duration {
        POLL_BUSY
    }

    /// Woken by work; and, while there is a backlog, by attempts that have ended.
    async fn woken(&mut self) {
        let signals = &self.runs.node.signals;
        let backlog = self.runs.queue.has_backlog();
        self.woken_by = Some(tokio::select! {
            () = signals.raised(Signal::Work) => Signal::Work,
            () = signals.raised(Signal::Freed), if backlog => Signal::Freed,
        });
    }

    async fn tick(&mut self, _now: Time) -> Result<Duration, EngineError> {
        match self.woken_by.take() {
            Some(Signal::Freed) if self.runs.room().free < ROOM_MIN => return Ok(ROOM_WAIT),
            Some(_) => {}
            None => self.idle = self.idle.saturating_add(1),
        }
        self.claim().await?;
        Ok(self.poll())
    }
}
