//! The state of queues, recorded minute by minute: `heddle_store::queue::minutes`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use heddle_domain::Time;
use heddle_store::queue::minutes::QUEUES_MAX;
use parking_lot::Mutex;

use super::Queues;
use crate::EngineError;
use crate::node::Node;
use crate::node::service::{Needs, Service};

/// How often a node records its counts, and checks whether it is the node that reads depths.
const NOTE_EVERY: Duration = Duration::from_secs(15);

/// How often one node of the cluster reads depths.
const POLL_EVERY: TimeDelta = TimeDelta::minutes(1);

/// Task runs that workers have ended, by queue, since the last recording.
#[derive(Default)]
pub(super) struct Ends(Mutex<HashMap<Arc<str>, i64>>);

impl Ends {
    /// If there are more than [`QUEUES_MAX`] queues at once, the others are not counted.
    pub(super) fn count(&self, queue: &Arc<str>) {
        let mut counted = self.0.lock();
        if let Some(count) = counted.get_mut(queue) {
            *count += 1;
        } else if counted.len() < QUEUES_MAX {
            counted.insert(queue.clone(), 1);
        }
    }

    fn take(&self) -> (Vec<String>, Vec<i64>) {
        let counted = std::mem::take(&mut *self.0.lock());
        counted
            .into_iter()
            .map(|(queue, count)| (queue.to_string(), count))
            .unzip()
    }
}

/// Records the state of queues.
pub(crate) struct Minutes(pub(crate) Arc<Queues>);

impl Service for Minutes {
    const FAILED: &'static str = "cannot write the statistics of queues; trying again";
    const NEEDS: Needs = Needs::Lease;
    const AGAIN_AFTER: Duration = NOTE_EVERY;

    fn node(&self) -> &Arc<Node> {
        &self.0.node
    }

    async fn tick(&mut self, now: Time) -> Result<Duration, EngineError> {
        let store = &self.0.node.store;
        let (queues, ended) = self.0.ended.take();
        if !queues.is_empty() {
            store.add_queue_ends(now, &queues, &ended).await?;
        }
        if store.take_upkeep("queue_minutes", now, POLL_EVERY, false).await? {
            store.note_queue_depths(now).await?;
            store.forget_queue_minutes(now).await?;
        }
        Ok(NOTE_EVERY)
    }
}
