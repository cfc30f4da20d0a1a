//! Slots of a scarce resource, so that nobody can take all of them.
//!
//! There is a maximum for all, and a smaller one for each owner. A caller that waits because of its owner's maximum is
//! not in the queue for all: however many one owner has, others can pass it.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Slots that many owners share.
#[derive(Debug)]
pub struct FairSlots {
    all: Arc<Semaphore>,
    all_max: usize,
    each_max: usize,
    owners: Mutex<HashMap<Arc<str>, Owner>>,
}

#[derive(Debug)]
struct Owner {
    slots: Arc<Semaphore>,
    /// How many callers hold a slot or wait for one.
    present: usize,
}

/// A slot, until it is dropped.
#[derive(Debug)]
pub struct FairSlot {
    // Returned before the owner is forgotten.
    _held: (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>),
    _present: Option<Present>,
}

/// An owner; it is known as long as somebody holds or waits for one of its slots.
#[derive(Debug)]
struct Present {
    slots: Arc<FairSlots>,
    owner: Arc<str>,
    own: Arc<Semaphore>,
}

impl Drop for Present {
    fn drop(&mut self) {
        let mut owners = self.slots.owners.lock();
        if let Some(owner) = owners.get_mut(&self.owner) {
            owner.present -= 1;
            if owner.present == 0 {
                owners.remove(&self.owner);
            }
        }
    }
}

impl FairSlots {
    /// `all_max` slots for all, `each_max` for each owner; at least one of both.
    pub fn new(all_max: usize, each_max: usize) -> Arc<Self> {
        Arc::new(Self {
            all: Arc::new(Semaphore::new(all_max.max(1))),
            all_max: all_max.max(1),
            each_max: each_max.max(1),
            owners: Mutex::default(),
        })
    }

    /// How many slots a new owner could take now.
    pub fn free(&self) -> usize {
        self.all.available_permits()
    }

    /// Whether nobody holds a slot.
    pub fn is_idle(&self) -> bool {
        self.free() == self.all_max
    }

    /// A slot if there is one now.
    pub fn try_take(self: &Arc<Self>, owner: &str) -> Option<FairSlot> {
        let present = self.enter(owner, usize::MAX)?;
        let own = Arc::clone(&present.own).try_acquire_owned().ok()?;
        let all = Arc::clone(&self.all).try_acquire_owned().ok()?;
        Some(FairSlot {
            _held: (all, Some(own)),
            _present: Some(present),
        })
    }

    /// Waits for a slot. `None`: too many of this owner's callers hold or wait for one already.
    pub async fn take(self: &Arc<Self>, owner: &str, present_max: usize) -> Option<FairSlot> {
        let present = self.enter(owner, present_max)?;
        // Neither is ever closed.
        let own = Arc::clone(&present.own).acquire_owned().await.ok()?;
        let all = Arc::clone(&self.all).acquire_owned().await.ok()?;
        Some(FairSlot {
            _held: (all, Some(own)),
            _present: Some(present),
        })
    }

    /// Waits for a slot without an owner: for what everybody needs.
    pub async fn take_for_all(self: &Arc<Self>) -> Option<FairSlot> {
        let all = Arc::clone(&self.all).acquire_owned().await.ok()?;
        Some(FairSlot {
            _held: (all, None),
            _present: None,
        })
    }

    fn enter(self: &Arc<Self>, owner: &str, present_max: usize) -> Option<Present> {
        let mut owners = self.owners.lock();
        let (owner, own) = match owners.get_key_value(owner) {
            Some((_, known)) if known.present >= present_max => return None,
            Some((name, known)) => (Arc::clone(name), Arc::clone(&known.slots)),
            None => (Arc::from(owner), Arc::new(Semaphore::new(self.each_max))),
        };
        let known = owners.entry(Arc::clone(&owner)).or_insert_with(|| Owner {
            slots: Arc::clone(&own),
            present: 0,
        });
        known.present += 1;
        Some(Present {
            slots: Arc::clone(self),
            owner,
            own,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_owner_leaves_room_for_others() {
        let slots = FairSlots::new(4, 2);
        let first = slots.try_take("a").expect("a slot");
        let _second = slots.try_take("a").expect("a slot");
        assert!(slots.try_take("a").is_none());
        let _third = slots.try_take("b").expect("a slot");
        assert_eq!(slots.free(), 1);
        drop(first);
        let _fourth = slots.try_take("a").expect("a slot");
        let _fifth = slots.try_take("c").expect("a slot");
        assert!(slots.try_take("d").is_none());
    }

    /// Many callers of one owner wait; another owner comes last, and is next.
    #[tokio::test]
    async fn whoever_waits_for_itself_is_passed() {
        let slots = FairSlots::new(1, 1);
        let held = slots.take("a", usize::MAX).await.expect("a slot");
        let (ended, mut ends) = tokio::sync::mpsc::channel(6);
        let waiting = |owner: &'static str| {
            let (slots, ended) = (Arc::clone(&slots), ended.clone());
            tokio::spawn(async move {
                let _slot = slots.take(owner, usize::MAX).await.expect("a slot");
                let _ = ended.send(owner).await;
            })
        };
        for _ in 0..5 {
            waiting("a");
        }
        waiting("b");
        // There is one thread, so all have come as far as they can by now.
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        drop(held);
        let mut order = Vec::new();
        while order.len() < 6 {
            order.extend(ends.recv().await);
        }
        assert_eq!(order[0], "b", "{order:?}");
    }

    #[tokio::test]
    async fn an_owner_waits_for_so_many_and_is_forgotten() {
        let slots = FairSlots::new(2, 1);
        let held = slots.take("a", 2).await.expect("a slot");
        let second = tokio::spawn({
            let slots = Arc::clone(&slots);
            async move { slots.take("a", 2).await.is_some() }
        });
        while slots.owners.lock()["a"].present < 2 {
            tokio::task::yield_now().await;
        }
        assert!(slots.take("a", 2).await.is_none());
        drop(held);
        assert!(second.await.expect("no panic"));
        assert!(slots.owners.lock().is_empty());
        assert_eq!(slots.free(), 2);
    }
}
