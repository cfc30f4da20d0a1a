//! Times and durations in the form that people use.

use chrono::{DateTime, Datelike, LocalResult, NaiveDate, NaiveDateTime, NaiveTime, TimeDelta, TimeZone};
use chrono_tz::Tz;
use heddle_domain::{Span, Time};

pub(crate) use crate::digits::{capped, number};
use crate::words::Lang;

/// Seconds from which on nobody counts hours.
const LONG: i64 = 30 * 86_400;

/// `1.2 s`, `3 min 4 s`, `2 h 5 min`, `3 d 4 h`, `45 d`, `2 y 40 d`.
pub(crate) fn span(lang: Lang, millis: i64) -> String {
    let (ms, s, min, h, d, y) = match lang {
        Lang::En => ("ms", "s", "min", "h", "d", "y"),
        Lang::Zh => ("毫秒", "秒", "分", "小时", "天", "年"),
    };
    let millis = millis.max(0);
    let seconds = (millis + 500) / 1_000;
    let two = |big: i64, big_unit: &str, small: i64, small_unit: &str| match small {
        0 => format!("{big} {big_unit}"),
        small => format!("{big} {big_unit} {small} {small_unit}"),
    };
    if millis < 1_000 {
        format!("{millis} {ms}")
    } else if millis < 10_000 {
        format!("{}.{} {s}", millis / 1_000, millis % 1_000 / 100)
    } else if seconds < 60 {
        format!("{seconds} {s}")
    } else if seconds < 3_600 {
        two(seconds / 60, min, seconds % 60, s)
    } else if seconds < 86_400 {
        two(seconds / 3_600, h, seconds % 3_600 / 60, min)
    } else if seconds < LONG {
        two(seconds / 86_400, d, seconds % 86_400 / 3_600, h)
    } else {
        let days = seconds / 86_400;
        match days / 365 {
            0 => format!("{days} {d}"),
            years => two(years, y, days % 365, d),
        }
    }
}

/// A span that somebody has set, which is exact: `1 s`, `2.5 s`, `1 min`.
pub(crate) fn set(lang: Lang, set: Span) -> String {
    let millis = set.millis() as i64;
    let said = span(lang, millis);
    match millis % 1_000 {
        0 => said.replacen(".0 ", " ", 1),
        _ => said,
    }
}

/// A time without a zone, as forms have it, in a zone: `2026-11-24T10:00`, or a date, which is its beginning. `None`: it is
/// none of these.
pub(crate) fn in_zone(zone: Tz, text: &str) -> Option<Time> {
    let at = ["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"]
        .iter()
        .find_map(|form| NaiveDateTime::parse_from_str(text, form).ok())
        .or_else(|| Some(text.parse::<NaiveDate>().ok()?.and_time(NaiveTime::MIN)))?;
    // A time in the hour that a change of clocks skips means the first instant after it.
    let known = zone.from_local_datetime(&at).earliest();
    let later = || zone.from_local_datetime(&(at + TimeDelta::hours(1))).earliest();
    known.or_else(later).map(|at| at.to_utc())
}

/// A time as a form has it.
pub(crate) fn for_form(zone: Tz, at: Time) -> String {
    at.with_timezone(&zone).format("%Y-%m-%dT%H:%M").to_string()
}

/// `12.3 k`, `4.5 M`: where there is little room.
pub(crate) fn short(n: i64) -> String {
    match n {
        ..10_000 => number(n),
        10_000..1_000_000 => round(n as f64 / 1e3, "k"),
        1_000_000..1_000_000_000 => round(n as f64 / 1e6, "M"),
        _ => round(n as f64 / 1e9, "G"),
    }
}

/// With a decimal, unless it is nought.
fn round(n: f64, unit: &str) -> String {
    let text = format!("{n:.1}");
    format!("{} {unit}", text.strip_suffix(".0").unwrap_or(&text))
}

/// With a decimal unit: `12.3 MB`.
pub(crate) fn bytes(n: i64) -> String {
    match n {
        0..1_000 => format!("{n} B"),
        1_000..1_000_000 => format!("{:.1} kB", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", n as f64 / 1e6),
        _ => format!("{:.1} GB", n as f64 / 1e9),
    }
}

fn month_day(lang: Lang, at: &DateTime<Tz>) -> String {
    match lang {
        Lang::En => at.format("%b %-d").to_string(),
        Lang::Zh => format!("{}月{}日", at.month(), at.day()),
    }
}

/// A day and a time in a zone; the year only when it is another than now's.
pub(crate) fn moment(lang: Lang, zone: Tz, at: Time, now: Time, seconds: bool) -> String {
    as_clock(lang, zone, at, now, if seconds { "%H:%M:%S" } else { "%H:%M" })
}

fn as_clock(lang: Lang, zone: Tz, at: Time, now: Time, form: &str) -> String {
    let day = day(lang, zone, at, now);
    let clock = at.with_timezone(&zone).format(form);
    format!("{day} {clock}{}", offset(zone, at))
}

/// The offset of a time that the clocks of its zone show twice, with a space before it: ` +02:00`. Nothing for others.
pub(crate) fn offset(zone: Tz, at: Time) -> String {
    let local = at.with_timezone(&zone);
    match zone.from_local_datetime(&local.naive_local()) {
        LocalResult::Ambiguous(..) => local.format(" %:z").to_string(),
        _ => String::new(),
    }
}

/// The same with milliseconds, where seconds do not tell moments apart.
pub(crate) fn to_the_milli(lang: Lang, zone: Tz, at: Time, now: Time) -> String {
    as_clock(lang, zone, at, now, "%H:%M:%S%.3f")
}

/// A day in a zone.
pub(crate) fn day(lang: Lang, zone: Tz, at: Time, now: Time) -> String {
    let at = at.with_timezone(&zone);
    let day = month_day(lang, &at);
    if at.year() == now.with_timezone(&zone).year() {
        return day;
    }
    match lang {
        Lang::En => format!("{day}, {}", at.year()),
        Lang::Zh => format!("{}年{day}", at.year()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_said_as_people_say_them() {
        for (millis, said) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_234, "1.2 s"),
            (59_400, "59 s"),
            (184_000, "3 min 4 s"),
            (7_500_000, "2 h 5 min"),
            (3_600_000, "1 h"),
            (273_600_000, "3 d 4 h"),
            (45 * 86_400_000 + 7_200_000, "45 d"),
            (3_323 * 86_400_000, "9 y 38 d"),
            (-5, "0 ms"),
        ] {
            assert_eq!(span(Lang::En, millis), said);
        }
        assert_eq!(span(Lang::Zh, 184_000), "3 分 4 秒");
        for (written, said) in [("1s", "1 s"), ("2500ms", "2.5 s"), ("60s", "1 min"), ("5ms", "5 ms")] {
            assert_eq!(set(Lang::En, written.parse().unwrap()), said);
        }
    }

    #[test]
    fn a_time_of_a_form_is_meant_in_the_viewers_zone() {
        let zone: Tz = "Europe/Berlin".parse().unwrap();
        let at = |text: &str| in_zone(zone, text).map(|at| at.to_rfc3339());
        assert_eq!(at("2026-11-24T10:00").as_deref(), Some("2026-11-24T09:00:00+00:00"));
        assert_eq!(at("2026-07-01").as_deref(), Some("2026-06-30T22:00:00+00:00"));
        assert_eq!(at("2026-07-01T00:00:30").as_deref(), Some("2026-06-30T22:00:30+00:00"));
        // Clocks go from two to three.
        assert_eq!(at("2026-03-29T02:30").as_deref(), Some("2026-03-29T01:30:00+00:00"));
        for other in ["2026-11-24T10:00:00Z", "yesterday", "", "2026-02-30"] {
            assert_eq!(at(other), None, "{other}");
        }
        let shown = for_form(zone, "2026-11-24T09:00:59Z".parse().unwrap());
        assert_eq!(shown, "2026-11-24T10:00");
    }

    #[test]
    fn the_two_hours_of_a_change_of_clocks_are_told_apart() {
        let now: Time = "2026-10-20T00:00:00Z".parse().unwrap();
        let shown = |at: &str| moment(Lang::En, chrono_tz::Europe::Berlin, at.parse().unwrap(), now, false);
        assert_eq!(shown("2026-10-24T23:59:00Z"), "Oct 25 01:59");
        assert_eq!(shown("2026-10-25T00:30:00Z"), "Oct 25 02:30 +02:00");
        assert_eq!(shown("2026-10-25T01:30:00Z"), "Oct 25 02:30 +01:00");
        assert_eq!(shown("2026-10-25T02:00:00Z"), "Oct 25 03:00");
        let at: Time = "2026-10-25T01:30:00.250Z".parse().unwrap();
        assert_eq!(
            to_the_milli(Lang::En, chrono_tz::Europe::Berlin, at, now),
            "Oct 25 02:30:00.250 +01:00"
        );
    }

    #[test]
    fn numbers_have_their_thousands() {
        for (n, said) in [(0, "0"), (999, "999"), (1_000, "1,000"), (-1_234_567, "-1,234,567")] {
            assert_eq!(number(n), said);
        }
        assert_eq!(bytes(12_345_678), "12.3 MB");
        let said = [9_999, 20_000, 20_500, 3_000_000].map(short);
        assert_eq!(said, ["9,999", "20 k", "20.5 k", "3 M"]);
    }

    #[test]
    fn the_year_is_said_when_it_is_another() {
        let at = |text: &str| text.parse::<Time>().unwrap();
        let now = at("2026-11-22T06:00:00Z");
        let zone = chrono_tz::Asia::Shanghai;
        assert_eq!(
            moment(Lang::En, zone, at("2026-11-21T18:00:00Z"), now, false),
            "Nov 22 02:00"
        );
        assert_eq!(
            moment(Lang::En, Tz::UTC, at("2014-03-01T00:00:00Z"), now, false),
            "Mar 1, 2014 00:00"
        );
        assert_eq!(
            moment(Lang::Zh, Tz::UTC, at("2014-03-01T00:00:00Z"), now, false),
            "2014年3月1日 00:00"
        );
    }
}
