//! Schedule arithmetic: from what people write to the instants at which runs are due.
//!
//! [`Schedule::compile`] checks a [`ScheduleSpec`]; the result answers which instants come after one, which came
//! before, and which are due ([`Schedule::due`] holds the misfire rules). [`Calendar`] is all schedules of a group.
//!
//! Three views of the same instants:
//! - *live*, what the scheduler makes runs for: after the schedule's creation (and its `initial_delay`), within its
//!   window: [`Schedule::next_after`], [`Schedule::latest`], [`Schedule::due`];
//! - *history*, what a backfill makes runs for: within the window, whenever the schedule was created:
//!   [`Calendar::instants`], [`Schedule::latest_ever`];
//! - *grid*, what data intervals are cut by: without the window: [`Schedule::preceding`].
//!
//! The window includes `starts_at` and excludes `ends_at`.

mod calendar;
mod count;
mod cron;
pub mod local;
mod recurrence;

use std::borrow::Cow;

use chrono::{Days, NaiveDate, NaiveDateTime, NaiveTime, TimeDelta};
use chrono_tz::Tz;

pub use calendar::Calendar;
pub use cron::with_legal_starts as with_legal_cron_starts;
use cron::{Cron, Reading};
use local::{YEARS, parse_moment, parse_time_of_day, parse_zone, wall_clock};
use recurrence::Recurrence;

use crate::spec::{CronDialect, Misfire, ScheduleSpec};
use crate::{Fault, Span, Time};

/// How late an instant may be before `misfire` decides about it, where the schedule does not say.
pub const GRACE_DEFAULT: Span = Span::from_secs(60);
pub const EVERY_MIN: Span = Span::from_millis(100);
/// The most days between two instants of `daily`.
pub const EVERY_DAYS_MAX: u32 = 3_660;

const MICRO: TimeDelta = TimeDelta::microseconds(1);

/// The microsecond before an instant; at the beginning of all time, the instant itself.
fn just_before(at: Time) -> Time {
    at.checked_sub_signed(MICRO).unwrap_or(at)
}

/// The microsecond after an instant; at the end of all time, the instant itself.
fn just_after(at: Time) -> Time {
    at.checked_add_signed(MICRO).unwrap_or(at)
}

/// A schedule, checked and complete.
#[derive(Clone, Debug)]
pub struct Schedule {
    rule: Rule,
    zone: Tz,
    starts: Option<Time>,
    ends: Option<Time>,
    /// The first instant that may be due while the scheduler runs.
    live_from: Time,
    misfire: Misfire,
    grace: Span,
    enabled: bool,
}

/// The kind of schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Cron,
    Every,
    /// A fixed delay after the previous run ended.
    After,
    Once,
    /// Every n days at a time of day.
    Daily,
}

#[derive(Clone, Debug)]
enum Rule {
    Cron(Box<Cron>),
    /// `from_anchor`: the anchor was given, and nothing is due before it.
    Every {
        anchor: Time,
        period: Span,
        from_anchor: bool,
    },
    After {
        first: Time,
        delay: Span,
    },
    Once(Time),
    Daily(Daily),
}

impl Recurrence for Cron {
    fn next(&self, after: NaiveDateTime) -> Option<NaiveDateTime> {
        self.next(after)
    }
    fn previous(&self, at_or_before: NaiveDateTime) -> Option<NaiveDateTime> {
        self.previous(at_or_before)
    }
    fn every_time(&self) -> bool {
        self.every_time()
    }
}

#[derive(Clone, Debug)]
struct Daily {
    /// A date on which it is due; the others lie a multiple of `every_days` before and after.
    base: NaiveDate,
    every_days: u32,
    at: NaiveTime,
}

impl Daily {
    /// The last due date at or before one.
    fn date_at_or_before(&self, date: NaiveDate) -> Option<NaiveDate> {
        let past = date
            .signed_duration_since(self.base)
            .num_days()
            .rem_euclid(i64::from(self.every_days));
        date.checked_sub_days(Days::new(past.unsigned_abs()))
    }

    fn known(local: NaiveDateTime) -> Option<NaiveDateTime> {
        YEARS.contains(&chrono::Datelike::year(&local)).then_some(local)
    }
}

impl Recurrence for Daily {
    fn next(&self, after: NaiveDateTime) -> Option<NaiveDateTime> {
        let date = self.date_at_or_before(after.date())?;
        let found = date.and_time(self.at);
        if found > after {
            return Self::known(found);
        }
        Self::known(
            date.checked_add_days(Days::new(self.every_days.into()))?
                .and_time(self.at),
        )
    }

    fn previous(&self, at_or_before: NaiveDateTime) -> Option<NaiveDateTime> {
        let date = self.date_at_or_before(at_or_before.date())?;
        let found = date.and_time(self.at);
        if found <= at_or_before {
            return Self::known(found);
        }
        Self::known(
            date.checked_sub_days(Days::new(self.every_days.into()))?
                .and_time(self.at),
        )
    }

    fn every_time(&self) -> bool {
        false
    }
}

impl Rule {
    fn next_after(&self, zone: Tz, after: Time) -> Option<Time> {
        match self {
            Self::Cron(cron) => recurrence::next_after(cron.as_ref(), zone, after),
            Self::Daily(daily) => recurrence::next_after(daily, zone, after),
            Self::Every {
                anchor,
                period,
                from_anchor,
            } => {
                if *from_anchor && after < *anchor {
                    return Some(*anchor);
                }
                let steps = steps_between(*anchor, *period, after)?.checked_add(1)?;
                step_from(*anchor, *period, steps)
            }
            Self::After { first: at, .. } | Self::Once(at) => (*at > after).then_some(*at),
        }
    }

    fn at_or_before(&self, zone: Tz, at: Time) -> Option<Time> {
        match self {
            Self::Cron(cron) => recurrence::at_or_before(cron.as_ref(), zone, at),
            Self::Daily(daily) => recurrence::at_or_before(daily, zone, at),
            Self::Every {
                anchor,
                period,
                from_anchor,
            } => {
                let steps = steps_between(*anchor, *period, at)?;
                if *from_anchor && steps < 0 {
                    return None;
                }
                step_from(*anchor, *period, steps)
            }
            Self::After { first, .. } => (*first <= at).then_some(*first),
            Self::Once(instant) => (*instant <= at).then_some(*instant),
        }
    }
}

/// How many whole periods lie from the anchor to an instant, rounded towards the past.
fn steps_between(anchor: Time, period: Span, at: Time) -> Option<i64> {
    let micros = at.signed_duration_since(anchor).num_microseconds()?;
    Some(micros.div_euclid(i64::try_from(period.micros()).ok()?.max(1)))
}

fn step_from(anchor: Time, period: Span, steps: i64) -> Option<Time> {
    let micros = i64::try_from(period.micros()).ok()?.checked_mul(steps)?;
    anchor
        .checked_add_signed(TimeDelta::microseconds(micros))
        .filter(|instant| YEARS.contains(&chrono::Datelike::year(instant)))
}

/// The instants that are due now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// The instants to make runs for, in order.
    pub instants: Vec<Time>,
    /// Whether some instant was late by more than the grace (whatever `misfire` made of it).
    pub missed: bool,
    /// Up to where everything has been decided: ask again from here. It is `now` unless there were too many.
    pub until: Time,
}

impl Schedule {
    /// Checks a spec against the group's zone and the moment the schedule was created. A fault's pointer is relative
    /// to the spec.
    pub fn compile(spec: &ScheduleSpec, group_zone: Tz, created_at: Time) -> Result<Self, Fault> {
        Self::read(spec, group_zone, created_at, false)
    }

    /// The same for a schedule that was accepted before: what is refused today, and was not then, continues as before.
    pub fn compile_stored(spec: &ScheduleSpec, group_zone: Tz, created_at: Time) -> Result<Self, Fault> {
        Self::read(spec, group_zone, created_at, true)
    }

    fn read(spec: &ScheduleSpec, group_zone: Tz, created_at: Time, stored: bool) -> Result<Self, Fault> {
        let zone = match &spec.timezone {
            Some(name) => parse_zone(name).map_err(|detail| Fault::at("/timezone", detail))?,
            None => group_zone,
        };
        let moment = |field: &str, text: &Option<String>| match text {
            Some(text) => parse_moment(text, zone)
                .map(Some)
                .map_err(|detail| Fault::at(format!("/{field}"), detail)),
            None => Ok(None),
        };
        let starts = moment("starts_at", &spec.starts_at)?;
        let ends = moment("ends_at", &spec.ends_at)?;
        // An expired window may be kept with a disabled schedule: it does not fire in any case.
        let is_kept = !spec.enabled.0 && ends.is_some_and(|ends| ends <= created_at);
        if let (Some(starts), Some(ends)) = (starts, ends)
            && ends <= starts
            && !is_kept
        {
            return Err(Fault::at(
                "/ends_at",
                "`ends_at` must be after `starts_at`; the schedule never fires",
            ));
        }
        let grace = spec.grace.unwrap_or(GRACE_DEFAULT);
        if spec.cron_dialect != CronDialect::default() && spec.cron.is_none() {
            return Err(Fault::at(
                "/cron_dialect",
                "only a schedule with `cron` can have `cron_dialect`",
            ));
        }
        let anchor = moment("anchor", &spec.anchor)?;
        if anchor.is_some() && spec.every.is_none() {
            return Err(Fault::at("/anchor", "only a schedule with `every` can have `anchor`"));
        }
        let after_delay = created_at + spec.initial_delay.unwrap_or(Span::ZERO).chrono();
        let reading = Reading {
            dialect: spec.cron_dialect,
            stored,
        };
        let rule = compile_rule(spec, reading, zone, created_at, after_delay, anchor, starts)?;
        let live_from = match (&rule, spec.initial_delay) {
            (Rule::Once(_), None) => created_at - grace.chrono(),
            (_, None) => just_after(created_at),
            (_, Some(_)) => after_delay,
        };
        let schedule = Self {
            rule,
            zone,
            starts,
            ends,
            live_from,
            misfire: spec.misfire,
            grace,
            enabled: spec.enabled.0,
        };
        let bounded = schedule.starts.is_some() || schedule.ends.is_some();
        let from = schedule
            .starts
            .unwrap_or_else(|| "1900-01-01T00:00:00Z".parse().unwrap_or(created_at));
        let may_fire = !bounded || schedule.kind() == Kind::After || schedule.within(from, None).is_some();
        if !may_fire && !is_kept {
            return Err(Fault::at(
                "",
                "the schedule never fires between `starts_at` and `ends_at`",
            ));
        }
        Ok(schedule)
    }

    /// Whether another zone of the group changes the instants of a schedule: always for cron and daily, and for dates
    /// and local times of the others. Durations and RFC 3339 times are the same in every zone.
    pub fn is_moved(spec: &ScheduleSpec, from: Tz, to: Tz) -> bool {
        let once = spec.once.as_ref().and_then(|once| once.at.as_ref());
        let moments = [
            spec.anchor.as_ref(),
            spec.starts_at.as_ref(),
            spec.ends_at.as_ref(),
            once,
        ];
        let moves = |text: &String| parse_moment(text, from) != parse_moment(text, to);
        spec.timezone.is_none()
            && from != to
            && (spec.cron.is_some() || spec.daily.is_some() || moments.into_iter().flatten().any(moves))
    }

    pub fn kind(&self) -> Kind {
        match self.rule {
            Rule::Cron(_) => Kind::Cron,
            Rule::Every { .. } => Kind::Every,
            Rule::After { .. } => Kind::After,
            Rule::Once(_) => Kind::Once,
            Rule::Daily(_) => Kind::Daily,
        }
    }

    /// Whether its instants can be computed for any time, so that a backfill can use them: cron, every, daily.
    pub fn has_grid(&self) -> bool {
        matches!(self.kind(), Kind::Cron | Kind::Every | Kind::Daily)
    }

    /// Whether it is enabled. (The arithmetic does not use this.)
    pub fn enabled(&self) -> bool {
        self.enabled
    }

    /// The time zone in which its fields and dates are read.
    pub fn zone(&self) -> Tz {
        self.zone
    }

    /// Whether it has any live instant. (One that is written down may have had its last.)
    pub fn fires(&self) -> bool {
        self.within(self.live_from, None).is_some()
    }

    /// What happens with missed instants.
    pub fn misfire(&self) -> Misfire {
        self.misfire
    }

    /// The first instant that may be due live.
    pub fn live_from(&self) -> Time {
        self.live_from
    }

    /// `after`: from the end of a run to the next one.
    pub fn delay(&self) -> Option<Span> {
        match self.rule {
            Rule::After { delay, .. } => Some(delay),
            _ => None,
        }
    }

    /// The window: from here, inclusive, to there, exclusive.
    pub fn window(&self) -> (Option<Time>, Option<Time>) {
        (self.starts, self.ends)
    }

    /// How late an instant may be before `misfire` decides about it.
    pub fn grace(&self) -> Span {
        self.grace
    }

    /// The first live instant strictly after `after`. For `after`, only its first run's.
    pub fn next_after(&self, after: Time) -> Option<Time> {
        self.within(just_after(after).max(self.live_from), None)
    }

    /// The last live instant at or before `at`.
    pub fn latest(&self, at: Time) -> Option<Time> {
        self.latest_ever(at).filter(|instant| *instant >= self.live_from)
    }

    /// The last instant within the window at or before `at`, whenever the schedule was created.
    pub fn latest_ever(&self, at: Time) -> Option<Time> {
        let at = self.ends.map_or(at, |ends| at.min(just_before(ends)));
        self.rule
            .at_or_before(self.zone, at)
            .filter(|instant| self.starts.is_none_or(|starts| *instant >= starts))
    }

    /// Whether it names this instant, within its window, whenever it was created. For `after`, only its first run's.
    pub fn names(&self, at: Time) -> bool {
        self.within(at, Some(at)) == Some(at)
    }

    /// The instant before `at` on the grid of cron, every and daily, window or not: where a data interval that ends
    /// at `at` begins.
    pub fn preceding(&self, at: Time) -> Option<Time> {
        self.grid()?.at_or_before(self.zone, just_before(at))
    }

    /// The instant at or after `at` on the same grid.
    pub(crate) fn following(&self, at: Time) -> Option<Time> {
        self.grid()?.next_after(self.zone, just_before(at))
    }

    /// The rule of cron, every and daily as a grid without a beginning.
    fn grid(&self) -> Option<Cow<'_, Rule>> {
        match &self.rule {
            Rule::After { .. } | Rule::Once(_) => None,
            Rule::Every { anchor, period, .. } => Some(Cow::Owned(Rule::Every {
                anchor: *anchor,
                period: *period,
                from_anchor: false,
            })),
            rule => Some(Cow::Borrowed(rule)),
        }
    }

    /// When the next run of an `after` schedule is due, the previous one having ended; `None` for other kinds, and
    /// once the window is over.
    pub fn after_run(&self, ended_at: Time) -> Option<Time> {
        let Rule::After { delay, .. } = self.rule else {
            return None;
        };
        let due = ended_at.checked_add_signed(delay.chrono())?;
        let due = self.starts.map_or(due, |starts| due.max(starts));
        self.ends.is_none_or(|ends| due < ends).then_some(due)
    }

    /// The first instant at or after `from`, before or at `to`, within the window.
    fn within(&self, from: Time, to: Option<Time>) -> Option<Time> {
        let from = self.starts.map_or(from, |starts| from.max(starts));
        let found = self.rule.next_after(self.zone, just_before(from))?;
        (self.ends.is_none_or(|ends| found < ends) && to.is_none_or(|to| found <= to)).then_some(found)
    }

    /// The instants that are due now; all up to `last` have been decided.
    ///
    /// An instant at most the grace late is run. Of those that are later than that, *missed*, `misfire: once` runs
    /// the latest, `all` runs all, `skip` none. At most `limit` instants (at least one) come at a time; then `until`
    /// tells from where to ask again.
    pub fn due(&self, last: Time, now: Time, limit: usize) -> Due {
        let mut due = Due {
            instants: Vec::new(),
            missed: false,
            until: now,
        };
        let on_time_from = now - self.grace.chrono();
        let latest_missed = self.latest(just_before(on_time_from)).filter(|instant| *instant > last);
        due.missed = latest_missed.is_some();
        let mut cursor = last;
        if due.missed && self.misfire != Misfire::All {
            if self.misfire == Misfire::Once {
                due.instants.extend(latest_missed);
            }
            cursor = just_before(on_time_from);
        }
        while let Some(instant) = self.next_after(cursor).filter(|instant| *instant <= now) {
            if due.instants.len() >= limit.max(1) {
                due.until = cursor;
                break;
            }
            due.instants.push(instant);
            cursor = instant;
        }
        due
    }
}

fn compile_rule(
    spec: &ScheduleSpec,
    reading: Reading,
    zone: Tz,
    created_at: Time,
    after_delay: Time,
    anchor: Option<Time>,
    starts: Option<Time>,
) -> Result<Rule, Fault> {
    match (&spec.cron, spec.every, spec.after, &spec.once, &spec.daily) {
        (Some(text), None, None, None, None) => Cron::parse(text, reading)
            .map(|cron| Rule::Cron(Box::new(cron)))
            .map_err(|detail| Fault::at("/cron", detail)),
        (None, Some(period), None, None, None) => {
            if period < EVERY_MIN {
                return Err(Fault::at("/every", format!("`every` must be at least {EVERY_MIN}")));
            }
            Ok(Rule::Every {
                anchor: anchor.unwrap_or(after_delay),
                period,
                from_anchor: anchor.is_some(),
            })
        }
        (None, None, Some(delay), None, None) => {
            if delay.is_zero() {
                return Err(Fault::at("/after", "`after` must be longer than zero"));
            }
            let first = if spec.initial_delay.is_some() {
                after_delay
            } else {
                created_at + delay.chrono()
            };
            Ok(Rule::After {
                first: starts.map_or(first, |starts| first.max(starts)),
                delay,
            })
        }
        (None, None, None, Some(once), None) => match (&once.at, once.delay) {
            (Some(text), None) => parse_moment(text, zone)
                .map(Rule::Once)
                .map_err(|detail| Fault::at("/once/at", detail)),
            (None, Some(delay)) => {
                let at = after_delay + delay.chrono();
                Ok(Rule::Once(starts.map_or(at, |starts| at.max(starts))))
            }
            _ => Err(Fault::at("/once", "`once` must have exactly one of `at` and `delay`")),
        },
        (None, None, None, None, Some(daily)) => {
            if daily.every_days == 0 || daily.every_days > EVERY_DAYS_MAX {
                return Err(Fault::at(
                    "/daily/every_days",
                    format!("`every_days` must be from 1 to {EVERY_DAYS_MAX}"),
                ));
            }
            let at = parse_time_of_day(&daily.at).map_err(|detail| Fault::at("/daily/at", detail))?;
            let base = wall_clock(zone, starts.unwrap_or(created_at)).date();
            Ok(Rule::Daily(Daily {
                base,
                every_days: daily.every_days,
                at,
            }))
        }
        _ => Err(Fault::at(
            "",
            "a schedule must have exactly one of `cron`, `every`, `after`, `once` and `daily`",
        )),
    }
}

#[cfg(test)]
#[path = "schedule/tests.rs"]
mod tests;
