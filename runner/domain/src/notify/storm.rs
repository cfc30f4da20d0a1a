//! Keeping a storm of events from becoming a storm of messages.
//!
//! For each group, event, channel and set of recipients there is a window. The first [`Pace::burst`] events of a window
//! are sent one by one; later ones are gathered into one digest, which is sent when the window ends. A window with a
//! digest is directly followed by one in which all events are gathered, so a group that continues to fail causes one
//! message per [`Pace::every`]. A window without a digest ends the storm.
//!
//! Nothing is lost: a digest counts all its events.

use std::time::Duration;

use crate::Time;

/// How many events are sent one by one before a digest, unless the channel says otherwise.
pub const BURST_DEFAULT: u32 = 5;
/// The same for what scripts send themselves. It is higher, because each of their messages says something different.
pub const SCRIPT_BURST_DEFAULT: u32 = 100;
/// The most that a channel may ask for.
pub const BURST_MAX: u32 = 1_000_000;
/// How often a digest is sent, unless the channel says otherwise.
pub const EVERY_DEFAULT: Duration = Duration::from_secs(300);
/// The bounds of what a channel may ask for.
pub const EVERY: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(86_400);
/// How many of its events a digest lists.
pub const LISTED_MAX: usize = 50;

/// How many messages a channel accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// How many events of a window are sent one by one.
    pub burst: u32,
    /// How long a window is.
    pub every: Duration,
}

/// How far a window has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window<D> {
    pub opened_at: Time,
    /// How many of its events were sent one by one.
    pub told: u32,
    /// The digest that gathers the others, if there are any.
    pub digest: Option<D>,
}

/// What happens with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<D> {
    /// It is sent by itself.
    Tell,
    /// It joins this digest, if that is still open; otherwise a new one that is sent then.
    Gather(Option<D>, Time),
}

/// Decides about an event at `now`, and moves the window on. After [`Verdict::Gather`] the caller notes the digest.
pub fn judge<D: Copy>(window: &mut Option<Window<D>>, pace: Pace, now: Time) -> Verdict<D> {
    let every = chrono::TimeDelta::from_std(pace.every).unwrap_or(chrono::TimeDelta::MAX);
    let fresh = |told| Window {
        opened_at: now,
        told,
        digest: None,
    };
    let current = match *window {
        None => fresh(0),
        Some(open) if now - open.opened_at < every => open,
        Some(over) if over.digest.is_some() && now - over.opened_at < every * 2 => Window {
            opened_at: over.opened_at + every,
            told: pace.burst,
            digest: None,
        },
        Some(_) => fresh(0),
    };
    let current = window.insert(current);
    if current.told < pace.burst {
        current.told += 1;
        return Verdict::Tell;
    }
    Verdict::Gather(current.digest, current.opened_at + every)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace {
        burst: 2,
        every: Duration::from_secs(60),
    };

    fn at(seconds: i64) -> Time {
        Time::from_timestamp(seconds, 0).unwrap()
    }

    /// What happens with events at these seconds: `.` is sent by itself, a number names the digest.
    fn check(seconds: &[i64], expect: &str) {
        let mut window = None;
        let mut digests = 0;
        let mut said = Vec::new();
        for &second in seconds {
            said.push(match judge(&mut window, PACE, at(second)) {
                Verdict::Tell => ".".to_owned(),
                Verdict::Gather(Some(digest), _) => format!("{digest}"),
                Verdict::Gather(None, due) => {
                    assert!(due > at(second));
                    digests += 1;
                    window.as_mut().unwrap().digest = Some(digests);
                    format!("{digests}")
                }
            });
        }
        assert_eq!(said.join(" "), expect);
    }

    #[test]
    fn rare_events_are_told_one_by_one() {
        check(&[0, 100, 200, 300], ". . . .");
        check(&[0, 30, 70, 100], ". . . .");
    }

    #[test]
    fn a_storm_makes_one_digest_per_window() {
        check(&[0, 1, 2, 59, 60, 61, 119, 120], ". . 1 1 2 2 2 3");
    }

    #[test]
    fn a_storm_is_over_after_a_quiet_window() {
        check(&[0, 1, 2, 130, 131, 132], ". . 1 . . 2");
        // A window that followed a digest and gathered nothing ends it as well.
        check(&[0, 1, 2, 61, 185, 186], ". . 1 2 . .");
    }

    /// A group that fails every second for an hour.
    #[test]
    fn an_hour_of_failures_makes_some_sixty_messages() {
        let mut window: Option<Window<u32>> = None;
        let (mut told, mut digests, mut gathered) = (0, 0, 0);
        for second in 0..3_600 {
            match judge(&mut window, PACE, at(second)) {
                Verdict::Tell => told += 1,
                Verdict::Gather(digest, _) => {
                    gathered += 1;
                    if digest.is_none() {
                        digests += 1;
                        window.as_mut().unwrap().digest = Some(digests);
                    }
                }
            }
        }
        assert_eq!((told, digests, told + gathered), (2, 60, 3_600));
    }
}
