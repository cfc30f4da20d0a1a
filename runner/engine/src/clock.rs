//! Time and chance as a running node has them: the one place where the ambient ones are asked.

use std::sync::atomic::{AtomicI64, Ordering};

use chrono::TimeDelta;
use heddle_domain::clock::to_micros;
use heddle_domain::{Chance, Clock, Time};

/// A clock that follows the database's: its own, moved by what the last heartbeat measured. Nodes whose own clocks
/// differ agree to within half a round trip.
#[derive(Debug, Default)]
pub struct NodeClock {
    offset_micros: AtomicI64,
    /// The latest instant given out: a correction backwards lets time stand still, never run back.
    latest_micros: AtomicI64,
}

impl NodeClock {
    /// The database said `database` between `sent` and `received` of [`NodeClock::own`].
    pub fn follow(&self, sent: Time, received: Time, database: Time) {
        let middle = sent + (received - sent) / 2;
        let offset = (database - middle).num_microseconds().unwrap_or(0);
        self.offset_micros.store(offset, Ordering::Relaxed);
    }

    /// The machine's own clock.
    #[allow(clippy::disallowed_methods, reason = "the one door")]
    pub fn own() -> Time {
        chrono::Utc::now()
    }
}

impl Clock for NodeClock {
    fn now(&self) -> Time {
        let now = to_micros(Self::own() + TimeDelta::microseconds(self.offset_micros.load(Ordering::Relaxed)));
        let latest = self.latest_micros.fetch_max(now.timestamp_micros(), Ordering::Relaxed);
        if latest > now.timestamp_micros() {
            return chrono::DateTime::from_timestamp_micros(latest).unwrap_or(now);
        }
        now
    }
}

/// The operating system's randomness.
#[derive(Debug, Default)]
pub struct SystemChance;

impl Chance for SystemChance {
    #[allow(clippy::disallowed_methods, reason = "the one door")]
    fn bits(&self) -> u128 {
        rand::random()
    }
}
