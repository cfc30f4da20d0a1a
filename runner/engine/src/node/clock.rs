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
/// The machine's time is read once, when the program starts. From then on, only the time that has passed is counted, by
/// a clock that nobody sets. So if somebody sets the machine's time, this clock does not move. But it does not count
/// while the machine is suspended: after that, the clock is behind until the next heartbeat corrects it.
///
/// A measurement is uncertain by half its round trip, and one that was made while the machine was busy says little. It
/// is used only if it is more certain than the last accepted measurement, or contradicts it (Cristian's algorithm,
/// Distributed Computing 3, 1989).
#[derive(Debug, Default)]
pub struct NodeClock {
    machine: Machine,
    offset_micros: AtomicI64,
    /// The latest instant that was returned. After a small backward correction, the clock returns this instant again
    /// until the corrected time has passed it. If it is more than [`AHEAD_MICROS_MAX`] ahead, it was wrong, and the
    /// clock goes back: otherwise it would stand still for as long as it was ahead.
    latest_micros: AtomicI64,
    known: Mutex<Option<Known>>,
}

/// Where time comes from.
#[derive(Debug)]
enum Machine {
    /// The machine's time at the start, wrong by this much, and the time that has passed since then.
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

/// How far the latest instant may be ahead of the corrected time, in microseconds; see [`NodeClock`]. Corrections between
/// two heartbeats that both measured well are far smaller.
const AHEAD_MICROS_MAX: i64 = 1_000_000;

/// The machine's time when the program started to use it, and a moment to count from.
struct Started {
    wall: Time,
    at: Instant,
}

impl Started {
    /// The only reading of the machine's time in this process.
    #[allow(clippy::disallowed_methods, reason = "the only place that reads it")]
    fn known() -> &'static Self {
        static STARTED: LazyLock<Started> = LazyLock::new(|| Started {
            wall: chrono::Utc::now(),
            at: Instant::now(),
        });
        &STARTED
    }

    /// The time when so much has passed since the start.
    fn after(&self, elapsed: Duration) -> Time {
        self.wall + TimeDelta::from_std(elapsed).unwrap_or_default()
    }
}

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
        match &self.machine {
            Machine::Skewed(_) => Started::known().at.elapsed(),
            #[cfg(test)]
            Machine::Manual(at) => Duration::from_micros(at.load(Ordering::Relaxed).unsigned_abs()),
        }
    }

    /// The node's own time, before it is corrected.
    pub fn own(&self) -> Time {
        match &self.machine {
            Machine::Skewed(skew) => {
                let started = Started::known();
                started.after(started.at.elapsed()) + *skew
            }
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
        let micros = now.timestamp_micros();
        let latest = self.latest_micros.fetch_max(micros, Ordering::Relaxed);
        if latest <= micros {
            return now;
        }
        if latest - micros > AHEAD_MICROS_MAX {
            // If this fails, another caller has just done it, or has found a later time.
            let _ = self
                .latest_micros
                .compare_exchange(latest, micros, Ordering::Relaxed, Ordering::Relaxed);
            return now;
        }
        chrono::DateTime::from_timestamp_micros(latest).unwrap_or(now)
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

    #[test]
    fn own_time_is_the_start_and_what_has_passed() {
        let wall = chrono::DateTime::from_timestamp_micros(1_700_000_000_000_000).unwrap_or_default();
        let started = Started {
            wall,
            at: Instant::now(),
        };
        assert_eq!(started.after(Duration::ZERO), wall);
        assert_eq!(
            started.after(Duration::from_secs(3_600)),
            wall + TimeDelta::seconds(3_600)
        );
        // Whatever the machine's time is meanwhile, all clocks of the process count from the one reading.
        let started = Started::known();
        let clock = NodeClock::skewed(TimeDelta::hours(1));
        let (before, own, after) = (clock.elapsed(), clock.own() - TimeDelta::hours(1), clock.elapsed());
        assert!(started.after(before) <= own && own <= started.after(after), "{own}");
    }

    #[test]
    fn a_wrong_instant_is_not_kept_until_it_has_come() {
        let at =
            |micros: i64| chrono::DateTime::from_timestamp_micros(1_700_000_000_000_000 + micros).unwrap_or_default();
        let hour = 3_600_000_000;
        let clock = NodeClock::manual(at(0));
        assert_eq!(clock.now(), at(0));
        // The own time is an hour ahead, and is read before a heartbeat says so.
        clock.set(at(hour));
        assert_eq!(clock.now(), at(hour));
        clock.follow(at(hour), at(hour + 200), at(100));
        assert_eq!(clock.now(), at(0));
        clock.set(at(hour + 5_000_000));
        assert_eq!(clock.now(), at(5_000_000));
    }

    #[test]
    fn a_small_correction_does_not_turn_the_time_back() {
        let at =
            |micros: i64| chrono::DateTime::from_timestamp_micros(1_700_000_000_000_000 + micros).unwrap_or_default();
        let clock = NodeClock::manual(at(0));
        assert_eq!(clock.now(), at(0));
        clock.follow(at(0), at(200), at(100 - 400_000));
        assert_eq!(clock.now(), at(0), "it stands still");
        clock.set(at(300_000));
        assert_eq!(clock.now(), at(0));
        clock.set(at(500_000));
        assert_eq!(clock.now(), at(100_000), "it goes on");
    }
}
