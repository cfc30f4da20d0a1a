//! What nobody asks for: holds that have lasted too long, stock that came back, and offers of tasks that are over.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use heddle_domain::Chain;
use heddle_domain::state::TaskState;
use heddle_store::assignment::BATCH_MAX;

use crate::apply::progress_of;
use crate::node::signals::Signal;
use crate::{EngineError, Inner};

/// The period.
const EVERY: Duration = Duration::from_millis(200);

/// Every so many periods offers without a run are withdrawn.
const WITHDRAW_TICKS: u64 = 5;

/// Every so many periods, a multiple of those, offers are looked at whose completion nobody has noticed.
const SWEEP_TICKS: u64 = 25;

pub(crate) async fn run(inner: Arc<Inner>) {
    let mut tick = 0;
    loop {
        if !inner.node.is_fenced()
            && let Err(error) = inner.reap_dispatch(tick).await
        {
            tracing::warn!(error = %Chain(&error), "the dispatcher's reaper failed; trying again");
        }
        tokio::select! {
            () = inner.node.stop.cancelled() => return,
            () = tokio::time::sleep(EVERY) => tick += 1,
            () = inner.node.signals.raised(Signal::Holds) => {}
        }
    }
}

impl Inner {
    /// One round.
    async fn reap_dispatch(self: &Arc<Self>, tick: u64) -> Result<(), EngineError> {
        let mut news = self.node.store.dispatch_news().await?;
        if news.of_tasks && tick.is_multiple_of(WITHDRAW_TICKS) {
            self.sweep_tasks(tick).await?;
            news = self.node.store.dispatch_news().await?;
        }
        if news.overdue {
            self.expire_holds().await?;
            news = self.node.store.dispatch_news().await?;
        }
        if news.returns {
            self.node.store.announce_returns(self.now()).await?;
        }
        while news.settlements && self.settle_offers().await? > 0 {
            news = self.node.store.dispatch_news().await?;
        }
        Ok(())
    }

    /// What nobody says of offers of task runs: that their runs have gone on without them, that their time is over, that
    /// they are completed although nobody has noticed.
    async fn sweep_tasks(&self, tick: u64) -> Result<(), EngineError> {
        for audience in self.node.store.withdraw_offers(self.now()).await? {
            self.dispatch.cache.changed(&audience);
        }
        self.revoke_idle().await?;
        self.node.store.settle_overdue_offers().await?;
        if tick.is_multiple_of(SWEEP_TICKS) {
            self.node.store.settle_completed_offers().await?;
        }
        Ok(())
    }

    /// Takes from users what nothing comes of any more: their task run has failed for good while its run goes on. Before
    /// a next attempt they keep it.
    async fn revoke_idle(&self) -> Result<(), EngineError> {
        for held in self.node.store.held_without_attempt().await? {
            let progress = match progress_of(held.run, &held.progress) {
                Ok(progress) => progress,
                Err(error) => {
                    // The others of this look are not to wait for it.
                    tracing::error!(error = %Chain(&error), offer = held.id, "a hold cannot be judged");
                    continue;
                }
            };
            if progress.state(held.key).is_none_or(TaskState::is_settled) {
                self.node.store.revoke_held(held.id, self.now()).await?;
            }
        }
        Ok(())
    }

    async fn expire_holds(&self) -> Result<(), EngineError> {
        loop {
            let expired = self.node.store.expire_holds(self.now(), BATCH_MAX as i64).await?;
            for one in &expired {
                self.dispatch.cache.changed(&one.offered_to);
            }
            if expired.len() < BATCH_MAX {
                return Ok(());
            }
        }
    }
}
