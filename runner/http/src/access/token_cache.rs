//! What a node remembers of the tokens of the table. Invalid ones are remembered separately, so that a flood of wrong
//! tokens evicts no valid one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use heddle_domain::Time;
use heddle_store::token::TokenRow;
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use tokio::sync::{OnceCell, Semaphore, watch};
use uuid::Uuid;

use super::Caller;
use crate::problem::Problem;

/// How many valid tokens a node remembers, and how many invalid ones; beyond that it forgets the least used of each kind.
const TOKENS_MAX: usize = 10_000;

/// How old the node's last look at the log of changes may be, for answers of the table from before it. A node looks
/// every second. A node that was stopped, or that cannot read the log, does not know what was revoked meanwhile.
const LOOKED_WITHIN: Duration = Duration::from_secs(2);

/// How often the use of one token is written at most.
const USED_EVERY: TimeDelta = TimeDelta::seconds(60);

/// How many uses one statement writes.
pub(super) const USES_MAX: usize = 1_000;

/// How many requests of a node check their tokens at once after a change: all others continue meanwhile. Requests with
/// the same token share one check.
const RECHECKS_MAX: usize = 4;

/// The source of a hash: each counts only for its own header, remembered or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Shown {
    Token,
    /// The cookie of a session.
    Session,
}

/// A token of the table, and its owner.
#[derive(Debug)]
pub(crate) struct Token {
    pub(super) row: TokenRow,
    /// `None`: this program does not know its role.
    pub(super) caller: Option<Arc<Caller>>,
}

/// What a caller has shown: whether it is a token or a session, and its hash.
pub(super) type Key = (Shown, [u8; 32]);

/// An answer of the table, and when it was asked for.
#[derive(Clone, Debug)]
pub(super) struct Known<T> {
    pub(super) answer: T,
    pub(super) until: Time,
    /// The cache's age then: an older answer is not used.
    pub(super) age: u64,
    /// When it was asked for, by the clock that is never corrected ([`heddle_engine::Engine::elapsed`]).
    pub(super) asked: Duration,
}

impl<T> Known<T> {
    pub(super) fn is_valid(&self, age: u64, now: Time) -> bool {
        self.counts_for(TimeDelta::zero(), age, now)
    }

    /// Whether a revocation until [`LOOKED_WITHIN`] before `at` would be known: the table was read since, or the log of
    /// changes was (`looked`). The caller reads `looked` before the cache's age.
    pub(super) fn is_followed(&self, looked: Duration, at: Duration) -> bool {
        self.asked.max(looked) + LOOKED_WITHIN > at
    }

    /// The same as [`Known::is_valid`] for somebody who uses answers for so much longer.
    pub(super) fn counts_for(&self, longer: TimeDelta, age: u64, now: Time) -> bool {
        self.age == age && self.until + longer > now
    }
}

/// The table's answer for all who show the same token meanwhile.
type Answer = Arc<OnceCell<Result<Arc<Token>, Problem>>>;

/// Recent answers of the table, by hash; and which tokens were used and not yet noted.
#[derive(Debug)]
pub(crate) struct TokenCache {
    pub(super) good: Cache<Key, Known<Arc<Token>>>,
    pub(super) bad: Cache<Key, Known<()>>,
    /// The cache's age: how often a token has changed.
    changes: watch::Sender<u64>,
    pub(super) rechecks: Semaphore,
    /// The open look-ups, by hash and age; one entry for each token for which a request waits.
    asked: Mutex<HashMap<(Key, u64), Answer>>,
    /// Uses to be written, and those that were written last.
    uses: Mutex<HashMap<Uuid, Time>>,
    written: Cache<Uuid, Time>,
}

impl Default for TokenCache {
    fn default() -> Self {
        Self {
            good: Cache::new(TOKENS_MAX),
            bad: Cache::new(TOKENS_MAX),
            changes: watch::Sender::default(),
            rechecks: Semaphore::new(RECHECKS_MAX),
            asked: Mutex::default(),
            uses: Mutex::default(),
            written: Cache::new(TOKENS_MAX),
        }
    }
}

impl TokenCache {
    /// Reads the table again for each token, also for those of open requests.
    pub(crate) fn clear(&self) {
        self.changes.send_modify(|age| *age += 1);
    }

    /// How often the answers were forgotten.
    pub(crate) fn age(&self) -> u64 {
        *self.changes.borrow()
    }

    /// Announces when they are forgotten again.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Notes that a token was used; it is written later, with others.
    pub(super) fn used(&self, id: Uuid, now: Time) {
        // A person's session is no token's.
        if id.is_nil() {
            return;
        }
        if self.written.get(&id).is_some_and(|at| now - at < USED_EVERY) {
            return;
        }
        let mut uses = self.uses.lock();
        if uses.len() < TOKENS_MAX || uses.contains_key(&id) {
            uses.insert(id, now);
        }
    }

    /// Takes up to [`USES_MAX`] uses that are to be written.
    pub(super) fn take_uses(&self) -> Vec<(Uuid, Time)> {
        let mut uses = self.uses.lock();
        let ids: Vec<Uuid> = uses.keys().copied().take(USES_MAX).collect();
        let taken: Vec<(Uuid, Time)> = ids.into_iter().filter_map(|id| uses.remove_entry(&id)).collect();
        for (id, at) in &taken {
            self.written.insert(*id, *at);
        }
        taken
    }
}

/// A request's part in a look-up. A node that has just started gets the same token from all of its pollers at once: one
/// of them looks it up, as an unknown one, and all get the answer.
pub(super) struct Flight<'a> {
    cache: &'a TokenCache,
    key: (Key, u64),
    pub(super) answer: Answer,
}

impl<'a> Flight<'a> {
    pub(super) fn join(cache: &'a TokenCache, key: (Key, u64)) -> Self {
        let answer = cache.asked.lock().entry(key).or_default().clone();
        Self { cache, key, answer }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut asked = self.cache.asked.lock();
        // A request that comes after the answer looks up again; the last one that waits removes the entry.
        let ours = asked
            .get(&self.key)
            .is_some_and(|answer| Arc::ptr_eq(answer, &self.answer));
        if ours && (self.answer.initialized() || Arc::strong_count(&self.answer) == 2) {
            asked.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_until_a_token_changes_or_it_is_too_old() {
        let until = Time::UNIX_EPOCH;
        let known = Known {
            answer: (),
            until,
            age: 1,
            asked: Duration::ZERO,
        };
        let second = TimeDelta::seconds(1);
        let hour = TimeDelta::seconds(3_600);
        assert!(known.is_valid(1, until - second) && !known.is_valid(1, until));
        assert!(known.counts_for(hour, 1, until + hour - second) && !known.counts_for(hour, 1, until + hour));
        assert!(!known.counts_for(hour, 2, until), "a token has changed");
    }

    /// A process that was stopped, or that cannot read the log of changes, does not know what was revoked meanwhile.
    #[test]
    fn an_answer_counts_while_the_log_of_changes_is_followed() {
        let at = Duration::from_millis;
        let known = Known {
            answer: (),
            until: Time::UNIX_EPOCH,
            age: 1,
            asked: at(10_000),
        };
        // The answer itself is new enough.
        assert!(known.is_followed(at(0), at(11_999)) && !known.is_followed(at(0), at(12_000)));
        // The log was read after it.
        assert!(known.is_followed(at(13_500), at(15_499)) && !known.is_followed(at(13_500), at(15_500)));
        // Another thread has read the log since this one looked at the clock.
        assert!(known.is_followed(at(15_600), at(15_500)));
    }
}
