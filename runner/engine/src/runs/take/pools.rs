//! The admitter: gives free slots of pools to task runs that wait for them; `heddle_store::live` describes how (pools).
//!
//! It ticks when a run that uses pools changes, when a pool is changed, and periodically.

use std::sync::Arc;
use std::time::Duration;

use heddle_domain::Time;

use crate::node::Node;
use crate::node::news::News;
use crate::node::service::{Needs, Service};
use crate::node::signals::Signal;
use crate::{EngineError, Runs};

/// How often to check without a signal.
const POLL_EVERY: Duration = Duration::from_millis(500);

/// Gives out slots of pools.
pub(crate) struct Admitter(pub(crate) Arc<Runs>);

impl Service for Admitter {
    const FAILED: &'static str = "cannot assign slots of pools; trying again";
    const NEEDS: Needs = Needs::Lease;
    const AGAIN_AFTER: Duration = POLL_EVERY;
    const WOKEN_BY: Option<Signal> = Some(Signal::Pools);

    fn node(&self) -> &Arc<Node> {
        &self.0.node
    }

    fn first_after(&self) -> Duration {
        POLL_EVERY
    }

    async fn tick(&mut self, _now: Time) -> Result<Duration, EngineError> {
        let node = &self.0.node;
        if node.store.admit_pooled().await? > 0 {
            node.signals.raise(Signal::Work);
            node.outbox.tell(News::Work);
        }
        Ok(POLL_EVERY)
    }
}
