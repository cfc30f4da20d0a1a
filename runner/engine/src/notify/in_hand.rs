//! What a node is sending, and in which lane.
//!
//! What is in hand takes a place in its lane and among all that a node sends, and is left alone by the node itself. So
//! it leaves again whatever becomes of the task that sends it: what stayed would keep the place for ever.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use uuid::Uuid;

/// Notifications that are being sent, with their lanes.
#[derive(Default)]
pub(super) struct InHand(Mutex<BTreeMap<Uuid, String>>);

/// One of them, until it is dropped.
pub(super) struct Held {
    all: Arc<InHand>,
    id: Uuid,
}

impl InHand {
    pub(super) fn take(self: &Arc<Self>, id: Uuid, lane: &str) -> Held {
        self.0.lock().insert(id, lane.to_owned());
        Held { all: self.clone(), id }
    }

    /// How many there are of each lane, and their ids.
    pub(super) fn now(&self) -> (BTreeMap<String, i64>, Vec<Uuid>) {
        let all = self.0.lock();
        let mut lanes: BTreeMap<String, i64> = BTreeMap::new();
        for lane in all.values() {
            *lanes.entry(lane.clone()).or_default() += 1;
        }
        (lanes, all.keys().copied().collect())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_in_hand_leaves_with_its_task() {
        let all = Arc::new(InHand::default());
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let held = all.take(one, "hook");
        let cut = tokio::spawn({
            let held = all.take(other, "hook");
            async move {
                let _held = held;
                std::future::pending::<()>().await;
            }
        });
        assert_eq!(all.now(), (BTreeMap::from([("hook".to_owned(), 2)]), vec![one, other]));
        cut.abort();
        assert!(cut.await.is_err());
        assert_eq!(all.now().1, [one]);
        drop(held);
        assert_eq!(all.now(), Default::default());
    }
}
