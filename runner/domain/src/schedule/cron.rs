//! Cron expressions: which moments of a wall clock they match.
//!
//! An expression is read ([`text`]) into one set of numbers per field and the rules of its days; the days of a month
//! are worked out a month at a time. What clock changes do to local times is [`super::recurrence`]'s business.
//!
//! This is our own, because no library accepts the expressions of other schedulers (`L-3`, `L-5W`, Quartz' weekdays).
//! Tests compare it with croner where that accepts them.

mod text;

use chrono::{Datelike, NaiveDate, NaiveDateTime, Timelike};

use super::local::YEARS;
pub(crate) use text::Reading;
pub use text::with_legal_starts;

/// How many words of 64 bits the years take.
const YEAR_WORDS: usize = 18;
const FIRST_YEAR: i32 = *YEARS.start();

#[derive(Clone, Debug, Default)]
pub(crate) struct Cron {
    seconds: u64,
    minutes: u64,
    hours: u64,
    days: MonthDays,
    months: u64,
    weekdays: Weekdays,
    years: Years,
    every_time: bool,
}

/// The field of days of the month; bit n is day n.
#[derive(Clone, Debug, Default)]
struct MonthDays {
    /// Nothing is asked of it.
    any: bool,
    days: u64,
    /// `15W`: the weekday nearest to it.
    nearest: u64,
    /// `L-3`: so many days before the last one.
    before_last: u64,
    /// `L-3W`: the weekday nearest to that.
    nearest_before_last: u64,
}

/// The field of weekdays; bit 0 is Sunday.
#[derive(Clone, Debug, Default)]
struct Weekdays {
    /// Nothing is asked of it.
    any: bool,
    days: u8,
    /// `5L`: the last one of a month.
    last: u8,
    /// `5#3`: the third one of a month, by number.
    nth: [u8; 5],
}

/// Bit n is the year [`FIRST_YEAR`] + n.
#[derive(Clone, Debug, Default)]
enum Years {
    #[default]
    All,
    Some(Box<[u64; YEAR_WORDS]>),
}

impl Years {
    fn contains(&self, year: i32) -> bool {
        match self {
            Self::All => YEARS.contains(&year),
            Self::Some(words) => usize::try_from(year - FIRST_YEAR)
                .ok()
                .and_then(|bit| Some(words.get(bit / 64)? >> (bit % 64) & 1 == 1))
                .unwrap_or(false),
        }
    }
}

/// The lowest bit that is set from `from` on.
fn at_or_above(bits: u64, from: u32) -> Option<u32> {
    let left = bits.checked_shr(from)?.checked_shl(from)?;
    (left != 0).then(|| left.trailing_zeros())
}

/// The highest bit that is set up to `to`.
fn at_or_below(bits: u64, to: u32) -> Option<u32> {
    let left = bits & (u64::MAX >> (63 - to.min(63)));
    (left != 0).then(|| 63 - left.leading_zeros())
}

/// The days of a month, as bits 1 to 31.
#[derive(Clone, Copy)]
struct Month {
    /// How many days it has.
    length: u32,
    /// On which weekday its first day falls, 0 being Sunday.
    first: u32,
}

impl Month {
    fn of(year: i32, month: u32) -> Option<Self> {
        let first = NaiveDate::from_ymd_opt(year, month, 1)?;
        Some(Self {
            length: u32::from(first.num_days_in_month()),
            first: first.weekday().num_days_from_sunday(),
        })
    }

    fn weekday(self, day: u32) -> u32 {
        (self.first + day - 1) % 7
    }

    /// The day from Monday to Friday that is nearest to a day of this month, within it.
    fn nearest_weekday(self, day: u32) -> u32 {
        match self.weekday(day) {
            6 if day == 1 => 3,
            6 => day - 1,
            0 if day == self.length => day - 2,
            0 => day + 1,
            _ => day,
        }
    }
}

/// The numbers of the bits that are set.
fn each(mut bits: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let next = (bits != 0).then(|| bits.trailing_zeros())?;
        bits &= bits - 1;
        Some(next)
    })
}

impl MonthDays {
    fn within(&self, month: Month) -> u64 {
        let mut found = self.days;
        for day in each(self.nearest).filter(|day| *day <= month.length) {
            found |= 1 << month.nearest_weekday(day);
        }
        for before in each(self.before_last).filter(|before| *before < month.length) {
            found |= 1 << (month.length - before);
        }
        for before in each(self.nearest_before_last).filter(|before| *before < month.length) {
            found |= 1 << month.nearest_weekday(month.length - before);
        }
        found
    }
}

impl Weekdays {
    fn within(&self, month: Month) -> u64 {
        (1..=month.length)
            .filter(|day| {
                let weekday = 1 << month.weekday(*day);
                let nth = self.nth[(*day as usize - 1) / 7];
                let last = if day + 7 > month.length { self.last } else { 0 };
                (self.days | nth | last) & weekday != 0
            })
            .fold(0, |found, day| found | 1 << day)
    }
}

impl Cron {
    /// Reads an expression: of 5 fields, 6 (seconds first) or 7 (year last); in Quartz' dialect of 6 or 7.
    pub(crate) fn parse(text: &str, reading: Reading) -> Result<Self, String> {
        let cron = text::read(text, reading)?;
        let beginning = NaiveDate::from_ymd_opt(FIRST_YEAR, 1, 1).unwrap_or_default().into();
        if cron.next(beginning).is_none() {
            let why = match (FIRST_YEAR..=*YEARS.end()).any(|year| cron.years.contains(year)) {
                true => "no such day exists".to_owned(),
                false => format!("years run from {FIRST_YEAR} to {}", YEARS.end()),
            };
            let text = text::cut(text);
            return Err(format!("invalid cron expression: `{text}` never fires, because {why}"));
        }
        Ok(cron)
    }

    /// Whether an hour that the clock repeats counts twice: some field of the time of day has a wildcard or a step.
    pub(crate) fn every_time(&self) -> bool {
        self.every_time
    }

    /// The days of a month that match. If both day fields are restricted, one of them must match. (In Vixie's cron, `*/2`
    /// does not count as a restriction.)
    fn days_of(&self, year: i32, month: u32) -> u64 {
        let Some(month) = Month::of(year, month) else { return 0 };
        let whole = (1 << (month.length + 1)) - 2;
        let found = match (self.days.any, self.weekdays.any) {
            (true, true) => whole,
            (false, true) => self.days.within(month),
            (true, false) => self.weekdays.within(month),
            (false, false) => self.days.within(month) | self.weekdays.within(month),
        };
        found & whole
    }

    /// The first match after a local time.
    pub(crate) fn next(&self, after: NaiveDateTime) -> Option<NaiveDateTime> {
        let from = after
            .with_nanosecond(0)?
            .checked_add_signed(chrono::TimeDelta::seconds(1))?;
        let begin = from.date();
        let (mut month, mut day) = (begin.month(), begin.day());
        for year in begin.year().max(FIRST_YEAR)..=*YEARS.end() {
            if year != begin.year() {
                (month, day) = (1, 1);
            }
            if !self.years.contains(year) {
                continue;
            }
            while let Some(found) = at_or_above(self.months, month).filter(|found| *found <= 12) {
                if found != month {
                    (month, day) = (found, 1);
                }
                let mut days = self.days_of(year, month);
                while let Some(found) = at_or_above(days, day) {
                    let date = NaiveDate::from_ymd_opt(year, month, found)?;
                    let time = if date == begin { from.time() } else { Default::default() };
                    if let Some((hour, minute, second)) = self.time_from(time.hour(), time.minute(), time.second()) {
                        return date.and_hms_opt(hour, minute, second);
                    }
                    days &= !(1 << found);
                }
                (month, day) = (month + 1, 1);
            }
        }
        None
    }

    /// The first time of day at or after one.
    fn time_from(&self, hour: u32, minute: u32, second: u32) -> Option<(u32, u32, u32)> {
        let first = |bits| at_or_above(bits, 0);
        if at_or_above(self.hours, hour)? == hour {
            if at_or_above(self.minutes, minute) == Some(minute)
                && let Some(second) = at_or_above(self.seconds, second)
            {
                return Some((hour, minute, second));
            }
            if let Some(minute) = at_or_above(self.minutes, minute + 1) {
                return Some((hour, minute, first(self.seconds)?));
            }
            let hour = at_or_above(self.hours, hour + 1)?;
            return Some((hour, first(self.minutes)?, first(self.seconds)?));
        }
        Some((
            at_or_above(self.hours, hour)?,
            first(self.minutes)?,
            first(self.seconds)?,
        ))
    }

    /// The last match at or before a local time.
    pub(crate) fn previous(&self, at_or_before: NaiveDateTime) -> Option<NaiveDateTime> {
        let end = at_or_before.date();
        let (mut month, mut day) = (end.month(), end.day());
        for year in (FIRST_YEAR..=end.year().min(*YEARS.end())).rev() {
            if year != end.year() {
                (month, day) = (12, 31);
            }
            if !self.years.contains(year) {
                continue;
            }
            while let Some(found) = at_or_below(self.months, month).filter(|found| *found >= 1) {
                if found != month {
                    (month, day) = (found, 31);
                }
                let mut days = self.days_of(year, month);
                while let Some(found) = at_or_below(days, day) {
                    let date = NaiveDate::from_ymd_opt(year, month, found)?;
                    let time = at_or_before.time();
                    let (hour, minute, second) = if date == end {
                        (time.hour(), time.minute(), time.second())
                    } else {
                        (23, 59, 59)
                    };
                    if let Some((hour, minute, second)) = self.time_to(hour, minute, second) {
                        return date.and_hms_opt(hour, minute, second);
                    }
                    days &= !(1 << found);
                }
                (month, day) = (month - 1, 31);
            }
        }
        None
    }

    /// The last time of day at or before one.
    fn time_to(&self, hour: u32, minute: u32, second: u32) -> Option<(u32, u32, u32)> {
        let last = |bits| at_or_below(bits, 59);
        let below = |bits, number: u32| at_or_below(bits, number.checked_sub(1)?);
        if at_or_below(self.hours, hour)? == hour {
            if at_or_below(self.minutes, minute) == Some(minute)
                && let Some(second) = at_or_below(self.seconds, second)
            {
                return Some((hour, minute, second));
            }
            if let Some(minute) = below(self.minutes, minute) {
                return Some((hour, minute, last(self.seconds)?));
            }
            return Some((below(self.hours, hour)?, last(self.minutes)?, last(self.seconds)?));
        }
        Some((at_or_below(self.hours, hour)?, last(self.minutes)?, last(self.seconds)?))
    }
}

#[cfg(test)]
mod quartz;
#[cfg(test)]
mod tests;
