//! From wall clock times that recur to instants: what clock changes do.
//!
//! A local time that the clock skips happens at the first instant after the gap. One that the clock shows twice happens
//! once (the first time) if it is a fixed time of day, and both times if it comes from a wildcard. So a schedule of
//! every 15 minutes continues through the repeated hour, and one of 01:30 does not run twice.

use chrono::{DateTime, NaiveDateTime, TimeDelta};
use chrono_tz::Tz;

use super::local::{Instants, overlap_around, wall_clock};
use crate::Time;

/// Local times, to the second, that recur.
pub(crate) trait Recurrence {
    /// The first after a local time.
    fn next(&self, after: NaiveDateTime) -> Option<NaiveDateTime>;
    /// The last at or before a local time.
    fn previous(&self, at_or_before: NaiveDateTime) -> Option<NaiveDateTime>;
    /// Whether it happens each time that the clock shows it.
    fn every_time(&self) -> bool;
}

const SECOND: TimeDelta = TimeDelta::seconds(1);

/// The position of an instant in an interval that the clock shows twice.
struct Fold {
    second_time: bool,
    from: NaiveDateTime,
    to: NaiveDateTime,
}

fn fold_at(zone: Tz, instant: Time, local: NaiveDateTime) -> Option<Fold> {
    let Instants::Two(first, _) = Instants::of(zone, local) else {
        return None;
    };
    let (from, to) = overlap_around(zone, local)?;
    Some(Fold {
        second_time: instant > first,
        from,
        to,
    })
}

fn whole_second(instant: Time) -> Time {
    DateTime::from_timestamp(instant.timestamp(), 0).unwrap_or(instant)
}

/// The first instant after `after`.
pub(crate) fn next_after(what: &impl Recurrence, zone: Tz, after: Time) -> Option<Time> {
    let after = whole_second(after);
    let local = wall_clock(zone, after);
    let Some(fold) = fold_at(zone, after, local) else {
        return what.next(local).map(|found| Instants::of(zone, found).first());
    };
    if fold.second_time {
        let from = if what.every_time() { local } else { fold.to - SECOND };
        return what.next(from).map(|found| match Instants::of(zone, found) {
            Instants::Two(_, second) if found < fold.to => second,
            other => other.first(),
        });
    }
    let found = what.next(local)?;
    if found >= fold.to && what.every_time() {
        // Nothing more the first time around; the second begins before `found`.
        if let Some(again) = what.next(fold.from - SECOND).filter(|again| *again < fold.to)
            && let Instants::Two(_, second) = Instants::of(zone, again)
        {
            return Some(second);
        }
    }
    Some(Instants::of(zone, found).first())
}

/// The last instant at or before `at`.
pub(crate) fn at_or_before(what: &impl Recurrence, zone: Tz, at: Time) -> Option<Time> {
    let at = whole_second(at);
    let local = wall_clock(zone, at);
    let Some(fold) = fold_at(zone, at, local) else {
        return what.previous(local).map(|found| match Instants::of(zone, found) {
            Instants::Two(_, second) if what.every_time() => second,
            other => other.first(),
        });
    };
    if !fold.second_time || !what.every_time() {
        let from = if fold.second_time { fold.to - SECOND } else { local };
        return what.previous(from).map(|found| match Instants::of(zone, found) {
            Instants::Two(_, second) if what.every_time() && found < fold.from => second,
            other => other.first(),
        });
    }
    let found = what.previous(local);
    if let Some(found) = found
        && found >= fold.from
        && let Instants::Two(_, second) = Instants::of(zone, found)
    {
        return Some(second);
    }
    let first_time = what.previous(fold.to - SECOND).filter(|found| *found >= fold.from);
    first_time.or(found).map(|found| Instants::of(zone, found).first())
}
