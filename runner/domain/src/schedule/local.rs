//! Local time and instants: zones, dates, times of day, and what becomes of a local time that a clock change skips
//! or repeats.

use chrono::{DateTime, LocalResult, NaiveDate, NaiveDateTime, NaiveTime, Offset, TimeDelta, TimeZone, Utc};
use chrono_tz::{GapInfo, Tz};

use crate::Time;

/// The years that schedules know, so that arithmetic on their edges cannot overflow.
pub(crate) const YEARS: std::ops::RangeInclusive<i32> = 1900..=2999;

/// A zone by its IANA name, such as `Asia/Shanghai`.
pub fn parse_zone(name: &str) -> Result<Tz, String> {
    name.parse().map_err(|_| {
        let shown: String = name.chars().take(60).collect();
        format!("`{shown}` is not a valid IANA time zone; write for example `Asia/Shanghai` or `UTC`")
    })
}

/// A time of day, `HH:MM` or `HH:MM:SS`.
pub fn parse_time_of_day(text: &str) -> Result<NaiveTime, String> {
    NaiveTime::parse_from_str(text, "%H:%M:%S")
        .or_else(|_| NaiveTime::parse_from_str(text, "%H:%M"))
        .ok()
        .filter(|time| !is_leap_second(time))
        .ok_or_else(|| {
            let shown: String = text.chars().take(40).collect();
            format!("`{shown}` is not a valid time of day; write `HH:MM` or `HH:MM:SS`")
        })
}

fn is_leap_second(time: &NaiveTime) -> bool {
    chrono::Timelike::nanosecond(time) >= 1_000_000_000
}

/// An instant from a date (its midnight in the zone), a local date and time (in the zone), or RFC 3339.
pub fn parse_moment(text: &str, zone: Tz) -> Result<Time, String> {
    parse_within(text, zone, YEARS)
}

/// The same, with any year of four digits: for times that are only compared with the clock, and never used for calendar
/// arithmetic. People write `9999-12-31` for never.
pub fn parse_far_moment(text: &str, zone: Tz) -> Result<Time, String> {
    parse_within(text, zone, 1..=9_999)
}

fn parse_within(text: &str, zone: Tz, years: std::ops::RangeInclusive<i32>) -> Result<Time, String> {
    let text = text.trim();
    let in_range = |instant: Time| {
        if years.contains(&chrono::Datelike::year(&instant)) {
            Ok(crate::clock::to_micros(instant))
        } else {
            let shown: String = text.chars().take(40).collect();
            let (first, last) = (years.start(), years.end());
            Err(format!(
                "`{shown}` is out of range; the year must be from {first} to {last}"
            ))
        }
    };
    if let Ok(instant) = DateTime::parse_from_rfc3339(text) {
        return in_range(instant.with_timezone(&Utc));
    }
    if let Ok(date) = NaiveDate::parse_from_str(text, "%Y-%m-%d") {
        return in_range(resolve(zone, date.and_time(NaiveTime::MIN)));
    }
    [
        "%Y-%m-%dT%H:%M:%S%.f",
        "%Y-%m-%d %H:%M:%S%.f",
        "%Y-%m-%dT%H:%M",
        "%Y-%m-%d %H:%M",
    ]
    .iter()
    .find_map(|format| NaiveDateTime::parse_from_str(text, format).ok())
    .map_or_else(|| Err(no_moment(text)), |local| in_range(resolve(zone, local)))
}

fn no_moment(text: &str) -> String {
    let shown: String = text.chars().take(40).collect();
    format!(
        "`{shown}` is not a valid time; write a date such as `2026-11-20`, a local time such as \
        `2026-11-20T08:00:00`, or an RFC 3339 time"
    )
}

/// An instant's local time.
pub fn wall_clock(zone: Tz, instant: Time) -> NaiveDateTime {
    let offset = zone.offset_from_utc_datetime(&instant.naive_utc()).fix();
    instant
        .naive_utc()
        .checked_add_offset(offset)
        .unwrap_or(instant.naive_utc())
}

/// The instants at which a wall clock shows a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instants {
    One(Time),
    /// The clock went back: both.
    Two(Time, Time),
    /// The clock went forward over it: the first instant after the gap.
    Gap(Time),
}

impl Instants {
    pub(crate) fn of(zone: Tz, local: NaiveDateTime) -> Self {
        match zone.from_local_datetime(&local) {
            LocalResult::Single(instant) => Self::One(instant.with_timezone(&Utc)),
            LocalResult::Ambiguous(first, second) => Self::Two(first.with_timezone(&Utc), second.with_timezone(&Utc)),
            LocalResult::None => Self::Gap(
                GapInfo::new(&local, &zone)
                    .and_then(|gap| gap.end)
                    .map_or_else(|| local.and_utc(), |end| end.with_timezone(&Utc)),
            ),
        }
    }

    /// The instant of something that happens once at that time.
    pub(crate) fn first(self) -> Time {
        match self {
            Self::One(instant) | Self::Two(instant, _) | Self::Gap(instant) => instant,
        }
    }
}

/// The instant of a local time: the first of two in an overlap, the first after the gap in a gap.
pub fn resolve(zone: Tz, local: NaiveDateTime) -> Time {
    Instants::of(zone, local).first()
}

/// The stretch of wall clock time that is shown twice around `local`, if it is: from (inclusive), to (exclusive).
pub(crate) fn overlap_around(zone: Tz, local: NaiveDateTime) -> Option<(NaiveDateTime, NaiveDateTime)> {
    let Instants::Two(first, second) = Instants::of(zone, local) else {
        return None;
    };
    let offset_at = |instant: Time| {
        i64::from(
            zone.offset_from_utc_datetime(&instant.naive_utc())
                .fix()
                .local_minus_utc(),
        )
    };
    let (before, after) = (offset_at(first), offset_at(second));
    // The clock goes back between the two instants; halve the stretch until its second is found.
    let (mut low, mut high) = (first.timestamp(), second.timestamp());
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        let instant = DateTime::from_timestamp(middle, 0)?;
        if offset_at(instant) == before {
            low = middle;
        } else {
            high = middle;
        }
    }
    let change = DateTime::from_timestamp(high, 0)?.naive_utc();
    Some((change + TimeDelta::seconds(after), change + TimeDelta::seconds(before)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(zone: &str, text: &str, expect: Result<&str, &str>) {
        let got = parse_moment(text, parse_zone(zone).unwrap())
            .map(|at| at.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true));
        assert_eq!(
            got.as_deref().map_err(|e| &e[..expect.err().map_or(0, str::len)]),
            expect,
            "{zone} {text}"
        );
    }

    #[test]
    fn reads_moments() {
        check("UTC", "2026-11-20", Ok("2026-11-20T00:00:00Z"));
        check("Asia/Shanghai", "2026-11-20", Ok("2026-11-19T16:00:00Z"));
        check("Asia/Shanghai", "2026-11-20T08:30:00", Ok("2026-11-20T00:30:00Z"));
        check("Asia/Shanghai", "2026-11-20 08:30", Ok("2026-11-20T00:30:00Z"));
        check("Asia/Shanghai", "2026-11-20T08:30:00Z", Ok("2026-11-20T08:30:00Z"));
        check(
            "Asia/Shanghai",
            "2026-11-20T08:30:00.25-05:00",
            Ok("2026-11-20T13:30:00.250Z"),
        );
        check("UTC", "2026-02-30", Err("`2026-02-30` is not a valid time"));
        check(
            "UTC",
            "99999-01-01T00:00:00",
            Err("`99999-01-01T00:00:00` is not a valid time"),
        );
        check("UTC", "tomorrow", Err("`tomorrow` is not a valid time"));
        // Midnight that the clock skipped (São Paulo, 2017) is the first instant after it.
        check("America/Sao_Paulo", "2017-10-15", Ok("2017-10-15T03:00:00Z"));
        // A whole day that the calendar skipped (Samoa, 2011).
        check("Pacific/Apia", "2011-12-30T12:00:00", Ok("2011-12-30T10:00:00Z"));
        // 01:30 twice: the first.
        check("America/New_York", "2026-11-01T01:30:00", Ok("2026-11-01T05:30:00Z"));
    }

    #[test]
    fn finds_overlaps() {
        let around = |zone: &str, local: &str| {
            overlap_around(parse_zone(zone).unwrap(), local.parse().unwrap())
                .map(|(from, to)| (from.to_string(), to.to_string()))
        };
        let expect = Some(("2026-11-01 01:00:00".to_owned(), "2026-11-01 02:00:00".to_owned()));
        for local in ["2026-11-01T01:00:00", "2026-11-01T01:30:00", "2026-11-01T01:59:59"] {
            assert_eq!(around("America/New_York", local), expect);
        }
        assert_eq!(around("America/New_York", "2026-11-01T00:59:59"), None);
        assert_eq!(around("America/New_York", "2026-11-01T02:00:00"), None);
        // Half an hour, at Lord Howe Island.
        assert_eq!(
            around("Australia/Lord_Howe", "2026-04-05T01:45:00"),
            Some(("2026-04-05 01:30:00".to_owned(), "2026-04-05 02:00:00".to_owned()))
        );
    }

    #[test]
    fn reads_times_of_day() {
        assert_eq!(parse_time_of_day("08:30").unwrap().to_string(), "08:30:00");
        assert_eq!(parse_time_of_day("23:59:59").unwrap().to_string(), "23:59:59");
        for wrong in ["24:00", "8", "08:60", "23:59:60", "noon", ""] {
            assert!(parse_time_of_day(wrong).is_err(), "{wrong}");
        }
        assert!(
            parse_zone("Mars/Olympus")
                .unwrap_err()
                .contains("`Mars/Olympus` is not a valid IANA time zone")
        );
    }
}
