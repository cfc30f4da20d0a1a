//! How often: unknown tokens by address, requests by caller.
//!
//! `governor` does the arithmetic (GCRA: one instant per key, no timers). Two things that it cannot do are here:
//!
//! * Its tables grow with each new key (its issue 171), and strangers choose the keys. So the instants are in a cache
//!   of [`KEYS_MAX`], which forgets the least used key; a key that keeps coming stays known, however many others come.
//! * It cannot give anything back. An unknown token is counted before it is looked up: otherwise a crowd that arrives
//!   at once would all be looked up. If it turns out to be valid, it was no guess, and its count is taken back.

use std::hash::Hash;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::StateStore;
use governor::{Quota, RateLimiter};
use heddle_domain::Clock;
use quick_cache::sync::{Cache, EntryAction, EntryResult};

use super::Peer;
use crate::problem::Problem;

/// How many unknown tokens of one address are looked up at once, and then per second.
const UNKNOWN_BURST: u32 = 60;
const UNKNOWN_PER_SECOND: u32 = 10;

/// The same for a whole node, whatever the addresses.
const UNKNOWN_NODE_BURST: u32 = 400;
const UNKNOWN_NODE_PER_SECOND: u32 = 100;

/// Keys that a table remembers.
const KEYS_MAX: usize = 50_000;

/// The node's clock as `governor` reads it: nanoseconds since 1970.
#[derive(Clone, Debug)]
struct NodeClock(Arc<dyn Clock>);

impl governor::clock::Clock for NodeClock {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        let nanos = self.0.now().timestamp_nanos_opt().unwrap_or_default();
        u64::try_from(nanos).unwrap_or_default().into()
    }
}

/// When each key's bucket will be full again, of as many keys as are remembered.
#[derive(Clone, Debug)]
struct Table<K: Eq + Hash>(Arc<Cache<K, Nanos>>);

impl<K: Eq + Hash + Clone> StateStore for Table<K> {
    type Key = K;

    fn measure_and_replace<T, F, E>(&self, key: &K, measure: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let known = self.0.entry(key, None, |_, full_at| {
            EntryAction::Retain(measure(Some(*full_at)).map(|(answer, next)| {
                *full_at = next;
                answer
            }))
        });
        match known {
            EntryResult::Retained(answer) => answer,
            EntryResult::Vacant(entry) => {
                let (answer, full_at) = measure(None)?;
                // It fails if the key was removed meanwhile, which nobody does.
                let _ = entry.insert(full_at);
                Ok(answer)
            }
            // Entries are never removed there, and it does not wait.
            _ => measure(None).map(|(answer, _)| answer),
        }
    }
}

/// One bucket for each key. It holds `burst` and gains `per_second`.
#[derive(Debug)]
struct Buckets<K: Eq + Hash + Clone> {
    limiter: RateLimiter<K, Table<K>, NodeClock, NoOpMiddleware<Nanos>>,
    table: Table<K>,
    /// After how long a bucket gains one.
    step: Nanos,
}

impl<K: Eq + Hash + Clone> Buckets<K> {
    fn new(burst: u32, per_second: u32, clock: &NodeClock) -> Self {
        let at_least_one = |count: u32| NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN);
        let quota = Quota::per_second(at_least_one(per_second)).allow_burst(at_least_one(burst));
        let table = Table(Arc::new(Cache::new(KEYS_MAX)));
        Self {
            limiter: RateLimiter::new(quota, table.clone(), clock.clone()),
            table,
            step: quota.replenish_interval().into(),
        }
    }

    /// Takes one from a bucket. The error is the time until there is one.
    fn take(&self, key: &K) -> Result<(), Duration> {
        let clock = self.limiter.clock();
        self.limiter
            .check_key(key)
            .map_err(|until| until.wait_time_from(governor::clock::Clock::now(clock)))
    }

    fn put_back(&self, key: &K) {
        self.table.0.entry(key, None, |_, full_at| {
            *full_at = full_at.saturating_sub(self.step);
            EntryAction::Retain(())
        });
    }
}

/// All buckets of a node.
#[derive(Debug)]
pub(crate) struct Rates {
    by_peer: Buckets<Peer>,
    of_node: Buckets<()>,
    by_caller: Option<Buckets<String>>,
}

impl Rates {
    /// `per_caller`: how many requests a second one token may make; `None`: any number.
    pub(crate) fn new(per_caller: Option<u32>, clock: Arc<dyn Clock>) -> Self {
        let clock = NodeClock(clock);
        Self {
            by_peer: Buckets::new(UNKNOWN_BURST, UNKNOWN_PER_SECOND, &clock),
            of_node: Buckets::new(UNKNOWN_NODE_BURST, UNKNOWN_NODE_PER_SECOND, &clock),
            by_caller: per_caller.map(|rate| Buckets::new(rate, rate, &clock)),
        }
    }

    /// Called before an unknown token is looked up: 429 when this address, or all together, have shown too many.
    pub(crate) fn of_unknown(&self, peer: Peer) -> Result<(), Problem> {
        self.by_peer
            .take(&peer)
            .and_then(|()| self.of_node.take(&()))
            .map_err(|wait| too_many("too many requests with unknown tokens; try again later", wait))
    }

    /// The token was valid after all, so its count is taken back.
    pub(crate) fn was_known(&self, peer: Peer) {
        self.by_peer.put_back(&peer);
        self.of_node.put_back(&());
    }

    /// 429 when a caller asks more often than is configured.
    pub(crate) fn of_callers(&self, actor: &str) -> Result<(), Problem> {
        match &self.by_caller {
            None => Ok(()),
            Some(buckets) => buckets
                .take(&actor.to_owned())
                .map_err(|wait| too_many("this token exceeds the rate limit of this node; try again later", wait)),
        }
    }
}

fn too_many(what: &str, wait: Duration) -> Problem {
    Problem::overloaded(what, wait.as_secs() + u64::from(wait.subsec_nanos() > 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_domain::Time;
    use parking_lot::Mutex;

    /// A clock that the test sets, in milliseconds after some instant.
    #[derive(Debug)]
    struct ManualClock(Mutex<i64>);

    impl Clock for ManualClock {
        fn now(&self) -> Time {
            Time::from_timestamp_millis(1_700_000_000_000 + *self.0.lock()).unwrap()
        }
    }

    fn manual_clock() -> (Arc<ManualClock>, NodeClock) {
        let clock = Arc::new(ManualClock(Mutex::new(0)));
        (clock.clone(), NodeClock(clock))
    }

    #[test]
    fn a_bucket_empties_and_fills() {
        let (time, clock) = manual_clock();
        let buckets = Buckets::new(3, 2, &clock);
        for _ in 0..3 {
            assert_eq!(buckets.take(&"a"), Ok(()));
        }
        assert_eq!(buckets.take(&"a"), Err(Duration::from_millis(500)));
        assert_eq!(buckets.take(&"b"), Ok(()), "another's is its own");
        *time.0.lock() = 200;
        assert_eq!(buckets.take(&"a"), Err(Duration::from_millis(300)));
        *time.0.lock() = 500;
        assert_eq!(buckets.take(&"a"), Ok(()));
        assert!(buckets.take(&"a").is_err());
        buckets.put_back(&"a");
        assert_eq!(buckets.take(&"a"), Ok(()));
        *time.0.lock() = 60_000;
        for _ in 0..3 {
            assert_eq!(buckets.take(&"a"), Ok(()));
        }
        assert!(buckets.take(&"a").is_err());
    }

    /// A crowd of others neither grows the table nor makes it forget who is over his rate and keeps asking.
    #[test]
    fn a_table_is_bounded() {
        let (_, clock) = manual_clock();
        let buckets = Buckets::new(1, 1, &clock);
        let asks_on = usize::MAX;
        assert_eq!(buckets.take(&asks_on), Ok(()));
        for key in 0..4 * KEYS_MAX {
            assert_eq!(buckets.take(&key), Ok(()));
            if key % 100 == 0 {
                assert!(buckets.take(&asks_on).is_err(), "forgotten after {key} others");
            }
        }
        assert!(buckets.table.0.len() <= KEYS_MAX);
        buckets.put_back(&usize::MIN);
        assert!(buckets.table.0.len() <= KEYS_MAX);
    }

    #[test]
    fn refusals_say_when_to_come_back() {
        let (time, _) = manual_clock();
        let rates = Rates::new(Some(1), time.clone());
        assert!(rates.of_callers("a").is_ok());
        let problem = rates.of_callers("a").unwrap_err();
        assert_eq!((problem.status.as_u16(), problem.retry_after), (429, Some(1)));
        assert!(Rates::new(None, time.clone()).of_callers("a").is_ok());
        let peer = Peer::new("1.2.3.4".parse().unwrap());
        let allowed = |rates: &Rates| {
            (0..10 * UNKNOWN_BURST)
                .filter(|_| rates.of_unknown(peer).is_ok())
                .count()
        };
        assert_eq!(allowed(&rates), UNKNOWN_BURST as usize);
        assert_eq!(allowed(&rates), 0);
        rates.was_known(peer);
        assert_eq!(allowed(&rates), 1, "a token in force is no guess");
        *time.0.lock() = 1_000;
        assert_eq!(allowed(&rates), UNKNOWN_PER_SECOND as usize);
    }
}
