//! What a node is sending, and to which destinations.
//!
//! A notification that is being sent has a slot (`slots.rs`), and the node does not take it again. So it leaves this map
//! whatever happens to the task that sends it: otherwise it would keep its slot for ever.
//!
//! A stopping node waits for it as long as for attempts, and then cancels it. If a node loses its lease, it cancels
//! everything that it is sending: other nodes are about to send it.
//!
//! What a node cannot read, it gives back, and passes over for a while: a newer node may have written it, and can send it. It
//! does the same with notices (`fan_out.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use heddle_store::outbox::Room;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::slots::{self, Side, Slow};

/// For how long a node passes over a notification, or a notice, that it cannot read.
const PASSED_FOR: Duration = Duration::from_secs(60);
/// How many such notifications a node passes over.
const PASSED_MAX: usize = 1_000;

/// What this node cannot read, and until when it passes over it, by `NodeClock::elapsed`.
#[derive(Default)]
pub(super) struct PassedOver<Id>(Mutex<BTreeMap<Id, Duration>>);

impl<Id: Ord + Copy> PassedOver<Id> {
    /// Passes over it for a while; `false`: there are `max` of them already.
    pub(super) fn add(&self, id: Id, now: Duration, max: usize) -> bool {
        let mut passed = self.0.lock();
        let has_room = passed.len() < max;
        if has_room {
            passed.insert(id, now + PASSED_FOR);
        }
        has_room
    }

    /// What is passed over now.
    pub(super) fn ids(&self, now: Duration) -> Vec<Id> {
        let mut passed = self.0.lock();
        passed.retain(|_, until| now < *until);
        passed.keys().copied().collect()
    }
}

/// Notifications that are being sent, each with its destination and the token that cancels it, and slow destinations.
#[derive(Default)]
pub(super) struct InHand {
    sending: Mutex<BTreeMap<Uuid, (String, CancellationToken)>>,
    slow: Mutex<Slow>,
    /// Notifications that this node cannot read.
    unreadable: PassedOver<Uuid>,
}

/// One of them, until it is dropped.
pub(super) struct Held {
    all: Arc<InHand>,
    id: Uuid,
    destination: String,
    cut: CancellationToken,
}

impl InHand {
    pub(super) fn take(self: &Arc<Self>, id: Uuid, destination: &str) -> Held {
        let cut = CancellationToken::new();
        let destination = destination.to_owned();
        self.sending.lock().insert(id, (destination.clone(), cut.clone()));
        let all = self.clone();
        Held {
            all,
            id,
            destination,
            cut,
        }
    }

    /// How many more the node may take, and the ids of those that it must not take: it is sending them, or passes over
    /// them.
    pub(super) fn room(&self, side: Side, now: Duration) -> (Room, Vec<Uuid>) {
        let sending = self.sending.lock();
        let destinations = sending.values().map(|(destination, _)| destination.as_str());
        let room = slots::room(side, destinations, &self.slow.lock());
        let unreadable = self.unreadable.ids(now);
        (room, sending.keys().copied().chain(unreadable).collect())
    }

    /// Passes over a notification that the node cannot read, for a while; `false`: there are too many of them already.
    pub(super) fn pass_over(&self, id: Uuid, now: Duration) -> bool {
        self.unreadable.add(id, now, PASSED_MAX)
    }

    pub(super) fn len(&self) -> usize {
        self.sending.lock().len()
    }

    /// Cancels all that are being sent now.
    pub(super) fn cut(&self) {
        for (_, cut) in self.sending.lock().values() {
            cut.cancel();
        }
    }
}

impl Held {
    /// Waits for the result of sending; `None`: it was cancelled.
    pub(super) async fn until_cut<T>(&self, sending: impl Future<Output = T>) -> Option<T> {
        self.cut.run_until_cancelled(sending).await
    }

    /// Notes whether its try took long.
    pub(super) fn was(&self, slow: bool) {
        self.all.slow.lock().note(&self.destination, slow);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.sending.lock().remove(&self.id);
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
        let now = || {
            let (room, ids) = all.room(Side::Channels, Duration::ZERO);
            (room.limit, room.destinations.get("hook").map(|hook| hook.free), ids)
        };
        assert_eq!(now(), (62, Some(2), vec![one, other]));
        cut.abort();
        assert!(cut.await.is_err());
        assert_eq!(now(), (63, Some(3), vec![one]));
        held.was(true);
        assert_eq!(now(), (63, Some(0), vec![one]));
        drop(held);
        assert_eq!(now(), (64, Some(1), vec![]));
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
    #[test]
    fn what_cannot_be_read_is_passed_over_for_a_while_without_a_slot() {
        let all = Arc::new(InHand::default());
        let not = |now| {
            let (room, ids) = all.room(Side::Channels, now);
            (room.limit, ids.len())
        };
        let held = all.take(Uuid::from_u128(1), "hook");
        let begin = Duration::from_secs(5);
        assert!((0..1_000).all(|n| all.pass_over(Uuid::from_u128(10 + n), begin)));
        assert!(!all.pass_over(Uuid::from_u128(9), begin));
        let last = begin + PASSED_FOR - Duration::from_micros(1);
        assert_eq!((not(begin), not(last), all.len()), ((63, 1_001), (63, 1_001), 1));
        assert_eq!(not(begin + PASSED_FOR), (63, 1));
        assert!(all.pass_over(Uuid::from_u128(9), begin + PASSED_FOR));
        drop(held);
    }
}
