//! Wake-ups within a node: one part signals another that there may be work for it.
//!
//! There is one wakeup for each part. It keeps one signal for a part that is not listening at the moment, so a part
//! that registers before it checks misses nothing. No part depends on signals: each also polls, only less often. A
//! caller that waits for one thing among many (a run, a queue, an audience) listens to a wakeup of that thing instead.
//! Other nodes get [`super::news::News`].

use std::collections::BTreeSet;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use uuid::Uuid;

/// Which part may have something to do, and what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Signal {
    /// The claimer: something is ready that no node was given.
    Work,
    /// The claimer: an attempt in hand has ended.
    Freed,
    /// The inbox: a timer, the end of a sub-run, a gate.
    Inbox,
    /// The reaper: sub-runs may have lost their parents.
    Orphans,
    /// The abandoner: a run was given up.
    GivenUp,
    /// The scheduler: a schedule was changed.
    Schedules,
    /// The links: a run succeeded whose group others follow, or waits for others.
    Links,
    /// The backfiller: a run of a backfill has ended.
    Backfills,
    /// The admitter: slots of pools may be free, or wanted.
    Pools,
    /// The notifier: a notice was written.
    Notices,
    /// The drain: messages may be due.
    Messages,
    /// The claim reaper: a new lease expires soon.
    Claims,
    /// The dispatch reaper: a user's hold has come or gone.
    Holds,
    /// The warmer: there are scripts that this node has not loaded.
    Scripts,
    /// The follower: the log of changes has grown.
    Changes,
}

/// How many there are.
const KINDS: usize = Signal::Changes as usize + 1;

/// The wakeups of a node.
#[derive(Default)]
pub(crate) struct Signals {
    wakeups: [Notify; KINDS],
    backfills: Mutex<Which>,
}

/// How many backfills are named. If there are more, there may be something to do for any of them.
const BACKFILLS_NAMED_MAX: usize = 1_000;

/// Which of many may have something to do.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Which {
    pub(crate) named: BTreeSet<Uuid>,
    /// There are others, which are not named.
    pub(crate) others: bool,
}

impl Which {
    fn add(&mut self, id: Uuid) {
        if self.named.len() < BACKFILLS_NAMED_MAX || self.named.contains(&id) {
            self.named.insert(id);
        } else {
            self.others = true;
        }
    }
}

impl Signals {
    pub(crate) fn raise(&self, signal: Signal) {
        self.wakeups[signal as usize].notify_one();
    }

    /// Raises [`Signal::Backfills`] for these.
    pub(crate) fn raise_backfills(&self, ids: impl IntoIterator<Item = Uuid>) {
        let mut ids = ids.into_iter().peekable();
        if ids.peek().is_some() {
            let mut backfills = self.backfills.lock();
            ids.for_each(|id| backfills.add(id));
            drop(backfills);
            self.raise(Signal::Backfills);
        }
    }

    /// The backfills for which it was raised since the last call.
    pub(crate) fn take_backfills(&self) -> Which {
        std::mem::take(&mut *self.backfills.lock())
    }

    pub(crate) fn raise_all(&self, signals: SignalSet) {
        for (bit, wakeup) in self.wakeups.iter().enumerate() {
            if signals.0 & (1 << bit) != 0 {
                wakeup.notify_one();
            }
        }
    }

    /// Waits for the next signal, or takes one that was raised while nobody waited.
    pub(crate) fn raised(&self, signal: Signal) -> Notified<'_> {
        self.wakeups[signal as usize].notified()
    }
}

/// Several of them, to be raised after a commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SignalSet(u16);

const _: () = assert!(KINDS <= u16::BITS as usize);

impl SignalSet {
    pub(crate) fn add(&mut self, signal: Signal) {
        self.0 |= 1 << signal as u8;
    }

    pub(crate) fn add_if(&mut self, wanted: bool, signal: Signal) {
        if wanted {
            self.add(signal);
        }
    }

    pub(crate) fn has(self, signal: Signal) -> bool {
        self.0 & (1 << signal as u8) != 0
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn backfills_are_named_as_far_as_there_is_room() {
        let signals = Signals::default();
        signals.raise_backfills([]);
        assert!(signals.raised(Signal::Backfills).now_or_never().is_none(), "for none");
        let ids = |count: usize| (0..count as u128).map(Uuid::from_u128);
        signals.raise_backfills(ids(BACKFILLS_NAMED_MAX));
        signals.raise_backfills(ids(2));
        assert!(signals.raised(Signal::Backfills).now_or_never().is_some());
        let which = signals.take_backfills();
        assert_eq!((which.named.len(), which.others), (BACKFILLS_NAMED_MAX, false));
        assert_eq!(signals.take_backfills(), Which::default());
        signals.raise_backfills(ids(BACKFILLS_NAMED_MAX + 1));
        let which = signals.take_backfills();
        assert_eq!((which.named.len(), which.others), (BACKFILLS_NAMED_MAX, true));
    }

    #[test]
    fn each_is_heard_by_whom_it_is_for_even_if_nobody_listened() {
        let signals = Signals::default();
        let mut set = SignalSet::default();
        set.add(Signal::Inbox);
        set.add_if(true, Signal::Scripts);
        set.add_if(false, Signal::Work);
        signals.raise_all(set);
        signals.raise(Signal::Pools);
        signals.raise(Signal::Pools);
        for signal in [Signal::Inbox, Signal::Scripts, Signal::Pools] {
            assert!(signals.raised(signal).now_or_never().is_some(), "{signal:?}");
            assert!(
                signals.raised(signal).now_or_never().is_none(),
                "{signal:?} is heard once"
            );
        }
        assert!(signals.raised(Signal::Work).now_or_never().is_none());
        assert!(set.has(Signal::Inbox) && !set.has(Signal::Work));
    }
}
