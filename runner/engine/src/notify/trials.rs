//! How many test messages a node sends at the same time. Further requests wait.
//!
//! Tests of a channel that hangs must not delay those of others. So a request first waits for its channel, and only then
//! for the node.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::slots::PER_DESTINATION_MAX;

/// Test messages that a node sends at once.
const TRIALS_MAX: usize = 16;

/// The places for test messages: those of the node, and those of each channel that is being tested.
pub(super) struct Trials {
    all: Arc<Semaphore>,
    of_channels: Mutex<BTreeMap<String, Weak<Semaphore>>>,
}

/// The places of one test message, until it is dropped.
pub(super) struct Trial {
    _of_channel: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Default for Trials {
    fn default() -> Self {
        Self {
            all: Arc::new(Semaphore::new(TRIALS_MAX)),
            of_channels: Mutex::default(),
        }
    }
}

impl Trials {
    /// Waits for a place. `None`: the node stops.
    pub(super) async fn begin(&self, channel: &str) -> Option<Trial> {
        let of_channel = self.of_channel(channel).acquire_owned().await.ok()?;
        let of_all = self.all.clone().acquire_owned().await.ok()?;
        Some(Trial {
            _of_channel: of_channel,
            _of_all: of_all,
        })
    }

    /// The places of a channel. They exist as long as somebody has or awaits one.
    fn of_channel(&self, channel: &str) -> Arc<Semaphore> {
        let mut of_channels = self.of_channels.lock();
        of_channels.retain(|_, places| places.strong_count() > 0);
        if let Some(places) = of_channels.get(channel).and_then(Weak::upgrade) {
            return places;
        }
        let places = Arc::new(Semaphore::new(PER_DESTINATION_MAX));
        of_channels.insert(channel.to_owned(), Arc::downgrade(&places));
        places
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn tests_of_one_channel_leave_places_to_others() {
        let trials = Trials::default();
        let begin = |channel: &str| trials.begin(channel).now_or_never().flatten();
        let mut held: Vec<Trial> = (0..PER_DESTINATION_MAX).filter_map(|_| begin("hangs")).collect();
        assert_eq!(held.len(), PER_DESTINATION_MAX);
        assert!(begin("hangs").is_none());
        assert!(begin("good").is_some());
        held.pop();
        assert!(begin("hangs").is_some());
        held.clear();
        drop(begin("good"));
        assert_eq!(trials.of_channels.lock().len(), 1, "of the last one that was asked for");
    }
}
