//! How often: unknown tokens by address, requests by caller.
//!
//! Buckets in memory, per node, as virtual schedules (GCRA): one instant per key, no timers. A table is bounded; when it
//! is full, buckets that have filled up again are forgotten, since they say nothing.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use axum::http::request::Parts;
use heddle_domain::Time;
use parking_lot::Mutex;

use crate::connection::Connection;
use crate::problem::Problem;

/// How many unknown tokens of one address are looked up at once, and then per second.
const UNKNOWN_BURST: u32 = 60;
const UNKNOWN_PER_SECOND: u32 = 10;

/// The same for a whole node, whatever the addresses.
const UNKNOWN_NODE_BURST: u32 = 400;
const UNKNOWN_NODE_PER_SECOND: u32 = 100;

/// Keys that a table remembers.
const KEYS_MAX: usize = 50_000;

/// Where a request's connection comes from. A proxy's address stands for all who come through it: what it says of them
/// (`X-Forwarded-For`) could be anybody's invention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer(IpAddr);

impl Peer {
    /// By which it stands among others.
    pub(crate) fn address(self) -> IpAddr {
        self.0
    }

    /// Of an address; one IPv6 network of 64 bits, which is what one customer has, counts as one.
    pub fn new(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(v6) => {
                let s = v6.segments();
                IpAddr::V6(Ipv6Addr::new(s[0], s[1], s[2], s[3], 0, 0, 0, 0))
            }
            v4 => v4,
        })
    }

    /// As the server noted it; a request without a connection (in tests) comes from nowhere.
    pub(crate) fn of(request: &Parts) -> Self {
        request
            .extensions
            .get::<Arc<Connection>>()
            .map_or(Self(IpAddr::V6(Ipv6Addr::UNSPECIFIED)), |connection| connection.peer)
    }
}

/// Buckets that hold `burst` and gain `per_second`.
#[derive(Debug)]
struct Buckets<K> {
    burst: u32,
    per_second: u32,
    /// When a key's bucket will be full again.
    full_at: Mutex<HashMap<K, Time>>,
}

impl<K: Eq + Hash + Clone> Buckets<K> {
    fn new(burst: u32, per_second: u32) -> Self {
        Self {
            burst: burst.max(1),
            per_second: per_second.max(1),
            full_at: Mutex::default(),
        }
    }

    fn step(&self) -> Duration {
        Duration::from_secs(1) / self.per_second
    }

    /// Takes one; an error says after how long there is one.
    fn take(&self, key: &K, now: Time) -> Result<(), Duration> {
        let mut table = self.full_at.lock();
        let full_at = table.get(key).copied().unwrap_or(now).max(now);
        let after = full_at + self.step();
        let room = self.step() * self.burst;
        let ahead = (after - now).to_std().unwrap_or_default();
        if ahead > room {
            return Err(ahead - room);
        }
        if table.len() >= KEYS_MAX && !table.contains_key(key) {
            table.retain(|_, full_at| *full_at > now);
            if table.len() >= KEYS_MAX {
                // More keys at once than anybody keeps books of: the node's own bucket is left.
                return Ok(());
            }
        }
        table.insert(key.clone(), after);
        Ok(())
    }

    /// Puts one back.
    fn put_back(&self, key: &K) {
        if let Some(full_at) = self.full_at.lock().get_mut(key) {
            *full_at -= self.step();
        }
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
    pub(crate) fn new(per_caller: Option<u32>) -> Self {
        Self {
            by_peer: Buckets::new(UNKNOWN_BURST, UNKNOWN_PER_SECOND),
            of_node: Buckets::new(UNKNOWN_NODE_BURST, UNKNOWN_NODE_PER_SECOND),
            by_caller: per_caller.map(|rate| Buckets::new(rate, rate)),
        }
    }

    /// Before a token that nobody knows is looked up: 429 when this address, or all together, have shown too many.
    pub(crate) fn of_unknown(&self, peer: Peer, now: Time) -> Result<(), Problem> {
        self.by_peer
            .take(&peer, now)
            .and_then(|()| self.of_node.take(&(), now))
            .map_err(|wait| too_many("too many unknown tokens", wait))
    }

    /// It was one that is in force after all.
    pub(crate) fn was_known(&self, peer: Peer) {
        self.by_peer.put_back(&peer);
        self.of_node.put_back(&());
    }

    /// 429 when a caller asks more often than is configured.
    pub(crate) fn of_callers(&self, actor: &str, now: Time) -> Result<(), Problem> {
        match &self.by_caller {
            None => Ok(()),
            Some(buckets) => buckets
                .take(&actor.to_owned(), now)
                .map_err(|wait| too_many("this token makes more requests than this node takes of one", wait)),
        }
    }
}

fn too_many(what: &str, wait: Duration) -> Problem {
    Problem::overloaded(what, wait.as_secs() + u64::from(wait.subsec_nanos() > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Time {
        Time::from_timestamp_millis(1_700_000_000_000 + millis).unwrap()
    }

    #[test]
    fn a_bucket_empties_and_fills() {
        let buckets = Buckets::new(3, 2);
        for _ in 0..3 {
            assert_eq!(buckets.take(&"a", at(0)), Ok(()));
        }
        assert_eq!(buckets.take(&"a", at(0)), Err(Duration::from_millis(500)));
        assert_eq!(buckets.take(&"b", at(0)), Ok(()), "another's is its own");
        assert_eq!(buckets.take(&"a", at(500)), Ok(()));
        assert!(buckets.take(&"a", at(500)).is_err());
        buckets.put_back(&"a");
        assert_eq!(buckets.take(&"a", at(500)), Ok(()));
        for _ in 0..3 {
            assert_eq!(buckets.take(&"a", at(60_000)), Ok(()));
        }
        assert!(buckets.take(&"a", at(60_000)).is_err());
    }

    #[test]
    fn a_table_is_bounded() {
        let buckets = Buckets::new(1, 1);
        for key in 0..KEYS_MAX + 10 {
            assert_eq!(buckets.take(&key, at(0)), Ok(()));
        }
        assert!(buckets.full_at.lock().len() <= KEYS_MAX);
        assert!(buckets.take(&0, at(0)).is_err());
        assert_eq!(buckets.take(&(KEYS_MAX + 1), at(2_000)), Ok(()));
        assert_eq!(buckets.full_at.lock().len(), 1);
    }

    #[test]
    fn neighbours_in_a_network_are_one() {
        let peer = |text: &str| Peer::new(text.parse().unwrap());
        assert_eq!(peer("2001:db8:1:2::1"), peer("2001:db8:1:2:ffff::9"));
        assert_ne!(peer("2001:db8:1:2::1"), peer("2001:db8:1:3::1"));
        assert_eq!(peer("::ffff:1.2.3.4"), peer("1.2.3.4"));
        assert_ne!(peer("1.2.3.4"), peer("1.2.3.5"));
    }

    #[test]
    fn refusals_say_when_to_come_back() {
        let rates = Rates::new(Some(1));
        assert!(rates.of_callers("a", at(0)).is_ok());
        let problem = rates.of_callers("a", at(0)).unwrap_err();
        assert_eq!((problem.status.as_u16(), problem.retry_after), (429, Some(1)));
        assert!(Rates::new(None).of_callers("a", at(0)).is_ok());
        let peer = Peer::new("1.2.3.4".parse().unwrap());
        let taken = (0..10 * UNKNOWN_BURST).filter(|_| rates.of_unknown(peer, at(0)).is_ok());
        assert_eq!(taken.count(), UNKNOWN_BURST as usize);
    }
}
