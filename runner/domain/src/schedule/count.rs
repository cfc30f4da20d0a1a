//! Counts the instants of a schedule in a period, without enumerating them.
//!
//! A day on which the clock does not change has as many instants of a cron expression as any other day that the
//! expression names, because its fields for days do not depend on those for times. So only days are enumerated, and the
//! instants of one day are counted. Instants are enumerated on days with a clock change, on the days after these (to
//! which a skipped time may move), and at both ends of the period. (If there are very many, only up to [`EXACT_MAX`].)

use chrono::{Days, NaiveDate, NaiveDateTime, NaiveTime, TimeDelta};

use super::cron::Cron;
use super::local::{resolve, wall_clock};
use super::recurrence::Recurrence;
use super::{Rule, Schedule, just_after, just_before, steps_between};
use crate::Time;

const DAY: TimeDelta = TimeDelta::days(1);

/// How many instants of a day are enumerated. If a day with a clock change has more, and the total is too large anyway,
/// the count of the day is computed from its length: such a frequent schedule is spread evenly.
const EXACT_MAX: u64 = 3_600;

impl Schedule {
    /// How many instants lie from `from` to `to`, both included, and within its window; as [`super::Calendar::instants`]
    /// would list them; up to `max` it is exactly as many. Kinds without a grid have none.
    pub fn count(&self, from: Time, to: Time, max: u64) -> u64 {
        let from = self.starts.map_or(from, |starts| from.max(starts));
        let to = self.ends.map_or(to, |ends| to.min(just_before(ends)));
        if from > to {
            return 0;
        }
        match &self.rule {
            Rule::After { .. } | Rule::Once(_) => 0,
            Rule::Every {
                anchor,
                period,
                from_anchor,
            } => {
                let from = if *from_anchor { from.max(*anchor) } else { from };
                let (before, last) = (
                    steps_between(*anchor, *period, just_before(from)),
                    steps_between(*anchor, *period, to),
                );
                match (before, last) {
                    (Some(before), Some(last)) => (last - before).max(0).unsigned_abs(),
                    _ => 0,
                }
            }
            Rule::Cron(cron) => self.count_days(from, to, max, Some(cron)),
            Rule::Daily(_) => self.count_days(from, to, max, None),
        }
    }

    fn count_days(&self, from: Time, to: Time, max: u64, cron: Option<&Cron>) -> u64 {
        let begins = |date: NaiveDate| resolve(self.zone, date.and_time(NaiveTime::MIN));
        let (first, last) = (wall_clock(self.zone, from).date(), wall_clock(self.zone, to).date());
        let mut each: Option<u64> = None;
        let mut count = 0;
        let mut was_even = false;
        let (mut date, mut begin) = (first, begins(first));
        // At most so many days as there are in the years that schedules know.
        while date <= last {
            let Some(next) = date.checked_add_days(Days::new(1)) else {
                break;
            };
            let end = begins(next);
            let is_even = end - begin == DAY;
            let is_whole = date > first && date < last;
            count += match (cron, each) {
                (Some(cron), _) if is_whole && is_even && was_even => count_day(cron, date, &mut each),
                (Some(cron), Some(many)) if is_whole && many > EXACT_MAX && count > max => {
                    let seconds = (end - begin).num_seconds().unsigned_abs();
                    count_day(cron, date, &mut each) * seconds / DAY.num_seconds().unsigned_abs()
                }
                _ => self.walk(begin.max(from), just_before(end).min(to)),
            };
            was_even = is_even;
            (date, begin) = (next, end);
        }
        count
    }

    fn walk(&self, from: Time, to: Time) -> u64 {
        let mut count = 0;
        let mut next = self.within(from, Some(to));
        while let Some(at) = next {
            count += 1;
            next = self.within(just_after(at), Some(to));
        }
        count
    }
}

/// How many matches a day has that is like any other; `each` remembers it.
fn count_day(cron: &Cron, date: NaiveDate, each: &mut Option<u64>) -> u64 {
    let midnight: NaiveDateTime = date.and_time(NaiveTime::MIN);
    let on_day = |after: NaiveDateTime| Recurrence::next(cron, after).filter(|found| found.date() == date);
    let Some(first) = on_day(midnight - TimeDelta::seconds(1)) else {
        return 0;
    };
    *each.get_or_insert_with(|| std::iter::successors(Some(first), |at| on_day(*at)).count() as u64)
}
