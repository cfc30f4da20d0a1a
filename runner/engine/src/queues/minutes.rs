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
    pub(super) fn count(&self, queue: &Arc<str>) {
        self.add(queue, 1);
    }

    /// If there are more than [`QUEUES_MAX`] queues at once, the others are not counted.
    fn add(&self, queue: &Arc<str>, ended: i64) {
        let mut counted = self.0.lock();
        if let Some(count) = counted.get_mut(queue) {
            *count += ended;
        } else if counted.len() < QUEUES_MAX {
            counted.insert(queue.clone(), ended);
        }
    }

    /// Writes the counts; if this fails, they stay here.
    async fn write<E>(&self, write: impl AsyncFnOnce(&[String], &[i64]) -> Result<(), E>) -> Result<(), E> {
        let counted = std::mem::take(&mut *self.0.lock());
        if counted.is_empty() {
            return Ok(());
        }
        let queues: Vec<String> = counted.keys().map(|queue| queue.to_string()).collect();
        let ended: Vec<i64> = counted.values().copied().collect();
        let written = write(&queues, &ended).await;
        if written.is_err() {
            counted.iter().for_each(|(queue, ended)| self.add(queue, *ended));
        }
        written
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
        let write = async |queues: &[String], ended: &[i64]| store.add_queue_ends(now, queues, ended).await;
        self.0.ended.write(write).await?;
        if store.take_upkeep("queue_minutes", now, POLL_EVERY, false).await? {
            store.note_queue_depths(now).await?;
            store.forget_queue_minutes(now).await?;
        }
        Ok(NOTE_EVERY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_cannot_be_written_stays_counted() {
        let (ends, queue) = (Ends::default(), Arc::from("q"));
        ends.count(&queue);
        let refused = ends.write(async |_: &[String], _: &[i64]| {
            ends.count(&queue);
            Err(())
        });
        assert_eq!(refused.await, Err(()));
        let mut written = Vec::new();
        let write = async |queues: &[String], ended: &[i64]| {
            written.push((queues.to_vec(), ended.to_vec()));
            Ok::<_, ()>(())
        };
        assert_eq!(ends.write(write).await, Ok(()));
        assert_eq!(written, [(vec!["q".to_owned()], vec![2])]);
        let nothing = ends.write(async |_: &[String], _: &[i64]| Err(()));
        assert_eq!(nothing.await, Ok(()), "nothing is left");
    }
}
