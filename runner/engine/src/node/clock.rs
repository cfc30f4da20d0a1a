//! Time and chance of a running node: the only module that uses the ambient ones.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use chrono::TimeDelta;
use heddle_domain::clock::to_micros;
use heddle_domain::{Chance, Clock, Time};
use parking_lot::Mutex;
use tokio::time::Instant;

/// A clock that follows the database's: its own, moved by what heartbeats measure. Nodes whose own clocks differ agree
/// to within half a round trip.
///
/// A measurement is uncertain by half its round trip, and one that was made while the machine was busy says little. It
/// is used only if it is more certain than the last accepted measurement, or contradicts it (Cristian's algorithm,
/// Distributed Computing 3, 1989).
#[derive(Debug, Default)]
pub struct NodeClock {
    machine: Machine,
    offset_micros: AtomicI64,
    /// The latest instant that was returned. After a backward correction, the clock returns this instant again until
    /// the corrected time has passed it.
    latest_micros: AtomicI64,
    known: Mutex<Option<Known>>,
}

/// Where time comes from.
#[derive(Debug)]
enum Machine {
    /// The machine's own clock, wrong by this much.
    Skewed(TimeDelta),
    /// Set by tests: microseconds since 1970.
    #[cfg(test)]
    Manual(AtomicI64),
}

impl Default for Machine {
    fn default() -> Self {
        Self::Skewed(TimeDelta::zero())
    }
}

/// The last accepted measurement.
#[derive(Clone, Copy, Debug)]
struct Known {
    uncertain_micros: i64,
    at: Time,
}

/// The maximum drift of two clocks in one second, in microseconds; quartz is better than that.
const DRIFT_MICROS_PER_SECOND: i64 = 50;

impl NodeClock {
    /// The database reported the time `database`, at some moment between `sent` and `received` (both of
    /// [`NodeClock::own`]).
    pub fn follow(&self, sent: Time, received: Time, database: Time) {
        let round = (received - sent).num_microseconds().unwrap_or(0).max(0);
        let offset = (database - (sent + (received - sent) / 2))
            .num_microseconds()
            .unwrap_or(0);
        let uncertain = round / 2;
        let mut known = self.known.lock();
        if let Some(before) = *known {
            let aged = before.uncertain_micros + DRIFT_MICROS_PER_SECOND * (received - before.at).num_seconds().max(0);
            let contradicts = (offset - self.offset_micros.load(Ordering::Relaxed)).abs() > uncertain + aged;
            if uncertain >= aged && !contradicts {
                return;
            }
        }
        *known = Some(Known {
            uncertain_micros: uncertain,
            at: received,
        });
        self.offset_micros.store(offset, Ordering::Relaxed);
    }

    /// For a machine whose own clock is wrong by this much: to test that this has no effect.
    pub fn skewed(skew: TimeDelta) -> Self {
        Self {
            machine: Machine::Skewed(skew),
            ..Self::default()
        }
    }

    /// A clock that does not advance until a test sets it ([`NodeClock::set`]).
    #[cfg(test)]
    pub(crate) fn manual(at: Time) -> Self {
        Self {
            machine: Machine::Manual(AtomicI64::new(at.timestamp_micros())),
            ..Self::default()
        }
    }

    #[cfg(test)]
    pub(crate) fn set(&self, to: Time) {
        if let Machine::Manual(at) = &self.machine {
            at.store(to.timestamp_micros(), Ordering::Relaxed);
        }
    }

    /// The time since a fixed moment, by a clock that is never corrected: for intervals that must be right whatever
    /// happens to the machine's time.
    pub(crate) fn elapsed(&self) -> Duration {
        static SINCE: LazyLock<Instant> = LazyLock::new(Instant::now);
        match &self.machine {
            Machine::Skewed(_) => SINCE.elapsed(),
            #[cfg(test)]
            Machine::Manual(at) => Duration::from_micros(at.load(Ordering::Relaxed).unsigned_abs()),
        }
    }

    /// The machine's own clock.
    #[allow(clippy::disallowed_methods, reason = "the only place that reads it")]
    pub fn own(&self) -> Time {
        match &self.machine {
            Machine::Skewed(skew) => chrono::Utc::now() + *skew,
            #[cfg(test)]
            Machine::Manual(at) => {
                chrono::DateTime::from_timestamp_micros(at.load(Ordering::Relaxed)).unwrap_or_default()
            }
        }
    }
}

impl Clock for NodeClock {
    fn now(&self) -> Time {
        let now = to_micros(self.own() + TimeDelta::microseconds(self.offset_micros.load(Ordering::Relaxed)));
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
    #[allow(clippy::disallowed_methods, reason = "the only place that reads it")]
    fn bits(&self) -> u128 {
        rand::random()
    }
}

/// A node's chance, and the numbers that order what it creates at one instant.
#[derive(Debug)]
pub(crate) struct NodeChance {
    source: Arc<dyn Chance>,
    numbered: AtomicU32,
}

impl NodeChance {
    pub(crate) fn source(&self) -> Arc<dyn Chance> {
        self.source.clone()
    }

    /// 128 bits of chance, new ones with each call.
    pub(crate) fn bits(&self) -> u128 {
        self.source.bits()
    }

    /// A different number with each call, in order; after 2^32 calls they begin again.
    pub(super) fn next_number(&self) -> u32 {
        self.numbered.fetch_add(1, Ordering::Relaxed)
    }
}

impl From<Arc<dyn Chance>> for NodeChance {
    fn from(source: Arc<dyn Chance>) -> Self {
        Self {
            source,
            numbered: AtomicU32::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_answer_does_not_move_the_clock_but_a_contradiction_does() {
        let clock = NodeClock::default();
        let at =
            |micros: i64| chrono::DateTime::from_timestamp_micros(1_700_000_000_000_000 + micros).unwrap_or_default();
        let offset = |clock: &NodeClock| clock.offset_micros.load(Ordering::Relaxed);
        clock.follow(at(0), at(200), at(1_100));
        assert_eq!(offset(&clock), 1_000);
        // The round trip took 100 ms: it says 49,000 +- 50,000, which is less certain and contradicts nothing.
        clock.follow(at(2_000_000), at(2_100_000), at(2_099_000));
        assert_eq!(offset(&clock), 1_000);
        // The machine's own clock was set back by an hour.
        clock.follow(at(-3_600_000_000), at(-3_599_999_800), at(5_000_000));
        assert_eq!(offset(&clock), 3_604_999_900);
    }
}
