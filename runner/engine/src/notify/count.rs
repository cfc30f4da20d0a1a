//! What a node counts of notifications, by the kind of their target.

use std::sync::atomic::{AtomicU64, Ordering};

use heddle_domain::notify::channel::ChannelKind;

use super::Notifier;

/// The target of a notification as it is counted: a kind of channel, a URL of a callback, or a channel that does not
/// exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Channel(ChannelKind),
    Callback,
    Nowhere,
}

impl Way {
    /// In the order of their positions.
    const ALL: [Self; ChannelKind::ALL.len() + 2] = {
        let mut all = [Self::Nowhere; ChannelKind::ALL.len() + 2];
        let mut index = 0;
        while index < ChannelKind::ALL.len() {
            all[index] = Self::Channel(ChannelKind::ALL[index]);
            index += 1;
        }
        all[index] = Self::Callback;
        all
    };

    fn as_str(self) -> &'static str {
        match self {
            Self::Channel(kind) => kind.as_str(),
            Self::Callback => "callback",
            Self::Nowhere => "none",
        }
    }

    fn index(self) -> usize {
        Self::ALL
            .iter()
            .position(|way| *way == self)
            .unwrap_or(Self::ALL.len() - 1)
    }
}

/// The counters of a node.
#[derive(Debug, Default)]
pub(super) struct Counts([Count; Way::ALL.len()]);

#[derive(Debug, Default)]
struct Count {
    sent: AtomicU64,
    failed: AtomicU64,
    tries_failed: AtomicU64,
}

impl Counts {
    pub(super) fn sent(&self, way: Way) {
        self.0[way.index()].sent.fetch_add(1, Ordering::Relaxed);
    }

    /// A notification is given up.
    pub(super) fn failed(&self, way: Way) {
        self.0[way.index()].failed.fetch_add(1, Ordering::Relaxed);
    }

    /// A try has failed, whether another follows or not.
    pub(super) fn try_failed(&self, way: Way) {
        self.0[way.index()].tries_failed.fetch_add(1, Ordering::Relaxed);
    }
}

/// What a node has counted of one kind of channel since its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotificationCount {
    /// The kind of channel; `callback`: URLs; `none`: channels that do not exist.
    pub kind: &'static str,
    pub sent: u64,
    /// Notifications that were given up.
    pub failed: u64,
    pub tries_failed: u64,
}

impl Notifier {
    /// Notifications that this node has tried to send.
    pub(crate) fn counts(&self) -> Vec<NotificationCount> {
        let counts = &self.counts.0;
        Way::ALL
            .iter()
            .zip(counts)
            .map(|(way, count)| NotificationCount {
                kind: way.as_str(),
                sent: count.sent.load(Ordering::Relaxed),
                failed: count.failed.load(Ordering::Relaxed),
                tries_failed: count.tries_failed.load(Ordering::Relaxed),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_has_an_index_of_its_own() {
        let mut words: Vec<&str> = Way::ALL.iter().map(|way| way.as_str()).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), Way::ALL.len());
        for (index, way) in Way::ALL.iter().enumerate() {
            assert_eq!(way.index(), index);
        }
    }
}
