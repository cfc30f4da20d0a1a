//! Work that this node cannot do now and tries again periodically: rows of the inbox (`aside.rs`), ends of runs that were
//! given up (`given_up.rs`). It uses the node's clock, and is bounded.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;

/// How many are tried again at once.
const AT_ONCE_MAX: usize = 20;

/// Work by its key. All times are those of `NodeClock::elapsed`.
pub(crate) struct Later<K, T> {
    most: usize,
    again_every: Duration,
    /// The work, each with the time of its next try.
    entries: Mutex<HashMap<K, (T, Duration)>>,
}

impl<K: Copy + Eq + Hash, T: Copy> Later<K, T> {
    /// It has at most `most` entries. Each is tried again every `again_every`.
    pub(crate) fn new(most: usize, again_every: Duration) -> Self {
        Self {
            most,
            again_every,
            entries: Mutex::default(),
        }
    }

    /// Adds work that is due at `due`, or changes when it is due. `false`: there is no room for more.
    pub(crate) fn put(&self, key: K, what: T, due: Duration) -> bool {
        let mut entries = self.entries.lock();
        let fits = entries.len() < self.most || entries.contains_key(&key);
        if fits {
            entries.insert(key, (what, due));
        }
        fits
    }

    pub(crate) fn remove(&self, key: &K) {
        self.entries.lock().remove(key);
    }

    pub(crate) fn contains(&self, key: &K) -> bool {
        self.entries.lock().contains_key(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.lock().len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.most
    }

    pub(crate) fn keys(&self) -> Vec<K> {
        self.entries.lock().keys().copied().collect()
    }

    /// Whether any work is due.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        self.entries.lock().values().any(|(_, due)| *due <= now)
    }

    /// The work that is due, in the order of its due times. It stays here, and is due again after a period.
    pub(crate) fn due(&self, now: Duration) -> Vec<(K, T)> {
        let mut entries = self.entries.lock();
        let mut due: Vec<_> = entries.iter_mut().filter(|(_, (_, due))| *due <= now).collect();
        due.sort_by_key(|(_, (_, due))| *due);
        due.truncate(AT_ONCE_MAX);
        due.into_iter()
            .map(|(key, (what, due))| {
                *due = now + self.again_every;
                (*key, *what)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn each_comes_again_after_its_period_and_none_keeps_another_waiting() {
        let later = Later::new(AT_ONCE_MAX + 1, 10 * SECOND);
        for key in 0..=AT_ONCE_MAX {
            assert!(later.put(key, (), SECOND));
        }
        assert!(
            later.is_full() && !later.put(AT_ONCE_MAX + 1, (), SECOND),
            "there is no room"
        );
        assert!(later.put(0, (), SECOND), "it is there already");
        assert!(!later.is_due(SECOND / 2) && later.due(SECOND / 2).is_empty());
        let first = later.due(SECOND);
        assert_eq!(first.len(), AT_ONCE_MAX);
        let rest = later.due(SECOND);
        assert_eq!(rest.len(), 1);
        assert!(!first.contains(&rest[0]), "the one that has not been tried");
        assert!(!later.is_due(2 * SECOND));
        later.put(7, (), 3 * SECOND);
        assert_eq!(later.due(3 * SECOND), [(7, ())]);
        later.remove(&7);
        assert!(!later.contains(&7));
        assert_eq!(later.due(11 * SECOND).len(), AT_ONCE_MAX);
    }
}
