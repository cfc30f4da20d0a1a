//! What a node is sending, and to which destinations.
//!
//! A notification that is being sent counts for its destination and for the node, and the node does not take it again.
//! So it leaves this map whatever happens to the task that sends it: otherwise it would keep its slot for ever.
//!
//! A stopping node waits for it as long as for attempts, and then cancels it. If a node loses its lease, it cancels
//! everything that it is sending: other nodes are about to send it.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Notifications that are being sent, each with its destination and the token that cancels it.
#[derive(Default)]
pub(super) struct InHand(Mutex<BTreeMap<Uuid, (String, CancellationToken)>>);

/// One of them, until it is dropped.
pub(super) struct Held {
    all: Arc<InHand>,
    id: Uuid,
    cut: CancellationToken,
}

impl InHand {
    pub(super) fn take(self: &Arc<Self>, id: Uuid, destination: &str) -> Held {
        let cut = CancellationToken::new();
        self.0.lock().insert(id, (destination.to_owned(), cut.clone()));
        let all = self.clone();
        Held { all, id, cut }
    }

    /// How many there are of each destination, and their ids.
    pub(super) fn now(&self) -> (BTreeMap<String, i64>, Vec<Uuid>) {
        let all = self.0.lock();
        let mut destinations: BTreeMap<String, i64> = BTreeMap::new();
        for (destination, _) in all.values() {
            *destinations.entry(destination.clone()).or_default() += 1;
        }
        (destinations, all.keys().copied().collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// Cancels all that are being sent now.
    pub(super) fn cut(&self) {
        for (_, cut) in self.0.lock().values() {
            cut.cancel();
        }
    }
}

impl Held {
    /// Waits for the result of sending; `None`: it was cancelled.
    pub(super) async fn until_cut<T>(&self, sending: impl Future<Output = T>) -> Option<T> {
        self.cut.run_until_cancelled(sending).await
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

    #[tokio::test]
    async fn what_is_cut_ends_and_what_comes_later_does_not() {
        let all = Arc::new(InHand::default());
        let held = all.take(Uuid::from_u128(1), "hook");
        assert_eq!((all.len(), held.until_cut(async { 1 }).await), (1, Some(1)));
        let ((), cut) = tokio::join!(async { all.cut() }, held.until_cut(std::future::pending::<()>()));
        assert_eq!(cut, None);
        let later = all.take(Uuid::from_u128(2), "hook");
        assert_eq!(later.until_cut(async { 2 }).await, Some(2));
    }
}
