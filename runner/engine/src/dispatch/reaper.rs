//! Holds that have lasted too long, stock that came back, and offers whose tasks have ended: no poll handles these.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use heddle_domain::state::TaskState;
use heddle_domain::{Chain, Time};
use heddle_store::assignment::BATCH_MAX;

use super::Dispatch;
use crate::EngineError;
use crate::node::Node;
use crate::node::service::{Every, Needs, Service};
use crate::node::signals::Signal;
use crate::runs::change::transition::progress_of;

/// How often holds are checked.
const EVERY: Duration = Duration::from_millis(200);

/// How often offers without a run are withdrawn; and how often completed offers that nobody has noticed are settled, and
/// holds are revoked that were taken during a withdrawal.
const WITHDRAW_EVERY: TimeDelta = TimeDelta::seconds(1);
const SWEEP_EVERY: TimeDelta = TimeDelta::seconds(5);

/// Ends holds and offers that no other service ends.
pub(crate) struct Reaper {
    dispatch: Arc<Dispatch>,
    withdraw: Every,
    sweep: Every,
}

impl Reaper {
    pub(crate) fn of(dispatch: Arc<Dispatch>) -> Self {
        Self {
            withdraw: Every::at_once(WITHDRAW_EVERY, &dispatch.node.clock),
            sweep: Every::at_once(SWEEP_EVERY, &dispatch.node.clock),
            dispatch,
        }
    }
}

impl Service for Reaper {
    const FAILED: &'static str = "cannot end expired assignments; trying again";
    const NEEDS: Needs = Needs::Lease;
    const AGAIN_AFTER: Duration = EVERY;
    const WOKEN_BY: Option<Signal> = Some(Signal::Holds);

    fn node(&self) -> &Arc<Node> {
        &self.dispatch.node
    }

    async fn tick(&mut self, now: Time) -> Result<Duration, EngineError> {
        let store = &self.dispatch.node.store;
        let mut news = store.dispatch_news().await?;
        if news.of_tasks && self.withdraw.is_due(now) {
            self.withdraw.done(now);
            let sweeps = self.sweep.is_due(now);
            if sweeps {
                self.sweep.done(now);
            }
            self.dispatch.sweep_tasks(sweeps).await?;
            news = store.dispatch_news().await?;
        }
        if news.overdue {
            self.dispatch.expire_holds().await?;
            news = store.dispatch_news().await?;
        }
        if news.returns {
            store.announce_returns(self.dispatch.node.now()).await?;
        }
        while news.settlements && self.dispatch.settle_offers().await? > 0 {
            news = store.dispatch_news().await?;
        }
        Ok(EVERY)
    }
}

impl Dispatch {
    /// Ends offers of task runs of which nobody reports the end: the run has continued without the offer, the time of
    /// the offer is over, or it is completed and this was not recorded.
    async fn sweep_tasks(&self, sweeps: bool) -> Result<(), EngineError> {
        for audience in self.node.store.withdraw_offers(self.node.now()).await? {
            self.cache.changed(&audience);
        }
        self.revoke_idle().await?;
        self.node.store.settle_overdue_offers().await?;
        if sweeps {
            self.node.store.settle_completed_offers().await?;
            self.node.store.revoke_late_holds(self.node.now()).await?;
        }
        Ok(())
    }

    /// Revokes holds that can have no effect any more: the task run has failed for good, while its run goes on. Before
    /// a next attempt, users keep them.
    async fn revoke_idle(&self) -> Result<(), EngineError> {
        for held in self.node.store.held_without_attempt().await? {
            let progress = match progress_of(held.run, &held.progress) {
                Ok(progress) => progress,
                Err(error) => {
                    // The other holds of this tick must not wait for this one.
                    tracing::error!(error = %Chain(&error), offer = held.id, "cannot decide whether an assignment has \
                        expired; it stays");
                    continue;
                }
            };
            if progress.state(held.key).is_none_or(TaskState::is_settled) {
                let now = self.node.now();
                self.node.store.revoke_held(held.id, held.version, now).await?;
            }
        }
        Ok(())
    }

    async fn expire_holds(&self) -> Result<(), EngineError> {
        loop {
            let expired = self.node.store.expire_holds(self.node.now(), BATCH_MAX as i64).await?;
            for one in &expired {
                self.cache.changed(&one.offered_to);
            }
            if expired.len() < BATCH_MAX {
                return Ok(());
            }
        }
    }
}
