//! Memory for large bodies and large answers, so that nobody fills all of it.
//!
//! There is a maximum for all, and a smaller one for each owner, as for slots ([`heddle_engine::FairSlots`]). But nobody
//! knows in advance how long a body becomes, and a body that is only announced must not keep others out. So an owner
//! takes bytes in parts, when they are needed. Whoever has no room waits until something is given back, and tries again,
//! for a limited time: two bodies that wait for each other both end.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Bytes that many owners share.
#[derive(Debug)]
pub(crate) struct FairBytes {
    all_max: usize,
    each_max: usize,
    taken: Mutex<Taken>,
    given_back: Notify,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// Only those who have some.
    owners: HashMap<Arc<str>, usize>,
}

impl Taken {
    fn of(&self, owner: &str) -> usize {
        self.owners.get(owner).copied().unwrap_or_default()
    }

    fn add(&mut self, owner: &Arc<str>, bytes: usize) {
        self.all += bytes;
        *self.owners.entry(Arc::clone(owner)).or_default() += bytes;
    }
}

/// Bytes that count for an owner, until this is dropped.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    budget: Arc<FairBytes>,
    owner: Arc<str>,
    bytes: usize,
}

impl FairBytes {
    /// `all_max` bytes for all, `each_max` for each owner.
    pub(crate) fn new(all_max: usize, each_max: usize) -> Arc<Self> {
        Arc::new(Self {
            all_max,
            each_max,
            taken: Mutex::default(),
            given_back: Notify::new(),
        })
    }

    /// The maximum of one owner. What needs more counts as this much: it is alone then.
    pub(crate) fn each_max(&self) -> usize {
        self.each_max
    }

    /// No bytes yet, of an owner.
    pub(crate) fn of(self: &Arc<Self>, owner: &str) -> HeldBytes {
        HeldBytes {
            budget: Arc::clone(self),
            owner: owner.into(),
            bytes: 0,
        }
    }

    /// Whether the owner could take anything, as far as its own maximum goes.
    pub(crate) fn has_room(&self, owner: &str) -> bool {
        let taken = self.taken.lock();
        taken.all == 0 || taken.of(owner) < self.each_max
    }
}

impl HeldBytes {
    /// How many these are.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes so many more, if there is room now.
    pub(crate) fn try_grow(&mut self, more: usize) -> bool {
        let mut taken = self.budget.taken.lock();
        let fits = |already: usize, most: usize| already.saturating_add(more) <= most;
        if !fits(taken.of(&self.owner), self.budget.each_max) || !fits(taken.all, self.budget.all_max) {
            return false;
        }
        taken.add(&self.owner, more);
        self.bytes += more;
        true
    }

    /// Takes so many more, whether there is room or not: for what can no longer be refused.
    pub(crate) fn grow_anyway(&mut self, more: usize) {
        self.budget.taken.lock().add(&self.owner, more);
        self.bytes += more;
    }

    /// Takes so many more, as soon as there is room. `false`: there was none for `most`.
    pub(crate) async fn grow(&mut self, more: usize, most: Duration) -> bool {
        if self.try_grow(more) {
            return true;
        }
        let budget = Arc::clone(&self.budget);
        let grown = async {
            loop {
                let mut given_back = std::pin::pin!(budget.given_back.notified());
                // From here on, nothing that is given back goes unnoticed.
                given_back.as_mut().enable();
                if self.try_grow(more) {
                    return;
                }
                given_back.await;
            }
        };
        tokio::time::timeout(most, grown).await.is_ok()
    }

    /// Makes these so many, whether there is room or not: for what is in memory already. The same number costs nothing.
    pub(crate) fn become_anyway(&mut self, bytes: usize) {
        match bytes.checked_sub(self.bytes) {
            None => self.give_back(self.bytes - bytes),
            Some(0) => {}
            Some(more) => self.grow_anyway(more),
        }
    }

    /// No bytes yet, of the same owner.
    pub(crate) fn another(&self) -> Self {
        Self {
            budget: Arc::clone(&self.budget),
            owner: Arc::clone(&self.owner),
            bytes: 0,
        }
    }

    /// The maximum of the owner.
    pub(crate) fn each_max(&self) -> usize {
        self.budget.each_max
    }

    fn give_back(&mut self, less: usize) {
        if less == 0 {
            return;
        }
        let mut taken = self.budget.taken.lock();
        taken.all -= less;
        if let Some(own) = taken.owners.get_mut(&self.owner) {
            *own -= less;
            if *own == 0 {
                taken.owners.remove(&self.owner);
            }
        }
        drop(taken);
        self.bytes -= less;
        self.budget.given_back.notify_waiters();
    }

    /// The same bytes, which count until the last part of them is dropped.
    pub(crate) fn keep(self, bytes: Bytes) -> Bytes {
        if self.bytes == 0 {
            return bytes;
        }
        Bytes::from_owner(Counted { bytes, _held: self })
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.give_back(self.bytes);
    }
}

struct Counted {
    bytes: Bytes,
    _held: HeldBytes,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_owner_leaves_room_for_others() {
        let budget = FairBytes::new(100, 75);
        let (mut first, mut second) = (budget.of("a"), budget.of("a"));
        assert!(first.try_grow(50) && !second.try_grow(26) && second.try_grow(25));
        assert!(!budget.has_room("a") && budget.has_room("b"));
        let mut other = budget.of("b");
        assert!(!other.try_grow(26) && other.try_grow(25));
        drop(first);
        assert!(other.try_grow(50) && !budget.has_room("b"));
        // What cannot be refused counts all the same.
        second.grow_anyway(100);
        assert_eq!((budget.taken.lock().all, second.bytes()), (200, 125));
        drop(other);
        drop(second);
        let taken = budget.taken.lock();
        assert!(taken.all == 0 && taken.owners.is_empty());
    }

    #[test]
    fn bytes_become_more_and_fewer() {
        let budget = FairBytes::new(100, 75);
        let mut held = budget.of("a");
        for (bytes, has_room) in [(80, false), (80, false), (10, true), (75, false), (0, true)] {
            held.become_anyway(bytes);
            assert_eq!((held.bytes(), budget.has_room("a")), (bytes, has_room));
        }
        let mut other = held.another();
        other.become_anyway(75);
        assert!(!budget.has_room("a") && budget.taken.lock().owners.len() == 1);
        drop((held, other));
        assert!(budget.taken.lock().owners.is_empty());
    }

    #[tokio::test]
    async fn whoever_finds_no_room_waits_for_it() {
        let budget = FairBytes::new(100, 75);
        let mut held = budget.of("a");
        assert!(held.try_grow(75));
        assert!(!budget.of("b").grow(26, Duration::from_millis(1)).await);
        let waits = tokio::spawn({
            let mut other = budget.of("b");
            async move { other.grow(75, Duration::from_secs(3_600)).await }
        });
        tokio::task::yield_now().await;
        drop(held);
        assert!(waits.await.expect("no panic"));
    }

    #[test]
    fn bytes_count_until_their_last_part_is_dropped() {
        let budget = FairBytes::new(100, 75);
        let mut held = budget.of("a");
        assert!(held.try_grow(4));
        let mut bytes = held.keep(Bytes::from_static(b"body"));
        let part = bytes.split_to(1);
        drop(bytes);
        assert_eq!(budget.taken.lock().all, 4);
        drop(part);
        assert_eq!(budget.taken.lock().all, 0);
    }
}
