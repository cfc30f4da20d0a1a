//! Cron expressions: what is written, made into what croner reads.
//!
//! Croner walks the wall clock only (it is given local times as if they were UTC); what clock changes do to them is
//! [`super::recurrence`]'s business. Three things are mended on the way in: forms that other crons take (`?` in any
//! field, `5/15`, `/15`, `22-2`, `FRI-MON`, `@midnight`, full names, a lone `L` for Saturday) are rewritten to ones
//! that croner takes; an error names the field; and an expression that matches no day of the calendar is refused.

use chrono::{DateTime, Datelike, NaiveDate, NaiveDateTime, Utc};

use super::local::YEARS;

/// The longest expression that is looked at.
const TEXT_MAX_BYTES: usize = 256;

/// A parsed expression.
#[derive(Clone, Debug)]
pub(crate) struct Cron {
    inner: croner::Cron,
    every_time: bool,
}

struct Field {
    name: &'static str,
    min: u32,
    max: u32,
    /// Whether `22-2` can mean "over the end and on from the beginning".
    wraps: bool,
}

const FIELDS: [Field; 7] = [
    Field {
        name: "seconds",
        min: 0,
        max: 59,
        wraps: true,
    },
    Field {
        name: "minutes",
        min: 0,
        max: 59,
        wraps: true,
    },
    Field {
        name: "hours",
        min: 0,
        max: 23,
        wraps: true,
    },
    Field {
        name: "day of month",
        min: 1,
        max: 31,
        wraps: true,
    },
    Field {
        name: "month",
        min: 1,
        max: 12,
        wraps: true,
    },
    Field {
        name: "day of week",
        min: 0,
        max: 6,
        wraps: true,
    },
    Field {
        name: "year",
        min: 1,
        max: 5000,
        wraps: false,
    },
];
const MONTH: usize = 4;
const DAY_OF_WEEK: usize = 5;

const MONTHS: [&str; 12] = [
    "JANUARY",
    "FEBRUARY",
    "MARCH",
    "APRIL",
    "MAY",
    "JUNE",
    "JULY",
    "AUGUST",
    "SEPTEMBER",
    "OCTOBER",
    "NOVEMBER",
    "DECEMBER",
];
const WEEKDAYS: [&str; 7] = [
    "SUNDAY",
    "MONDAY",
    "TUESDAY",
    "WEDNESDAY",
    "THURSDAY",
    "FRIDAY",
    "SATURDAY",
];

impl Cron {
    /// Reads an expression of 5 fields, 6 (seconds first) or 7 (year last).
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let fields = normal_fields(text)?;
        let every_time = fields[..3].iter().any(|field| field.contains(['*', '/']));
        let inner = read(&fields.join(" ")).map_err(|error| {
            // Croner does not say which field it means; try them one by one.
            let mut wrong = None;
            for (index, field) in fields.iter().enumerate() {
                let mut alone = ["*"; 7];
                alone[index] = field;
                if let Err(error) = read(&alone.join(" ")) {
                    wrong = Some(format!("{} `{}`: {error}", FIELDS[index].name, cut(field)));
                    break;
                }
            }
            format!("bad cron expression: {}", wrong.unwrap_or(error))
        })?;
        let cron = Self { inner, every_time };
        let beginning = NaiveDate::from_ymd_opt(*YEARS.start(), 1, 1).unwrap_or_default().into();
        if cron.next(beginning).is_none() {
            return Err(format!(
                "bad cron expression: `{}` never fires, no such day exists",
                cut(text)
            ));
        }
        Ok(cron)
    }

    /// Whether an hour that the clock repeats counts twice: some field of the time of day has a wildcard or a step.
    pub(crate) fn every_time(&self) -> bool {
        self.every_time
    }

    /// The first match after a local time.
    pub(crate) fn next(&self, after: NaiveDateTime) -> Option<NaiveDateTime> {
        let found: DateTime<Utc> = self.inner.find_next_occurrence(&after.and_utc(), false).ok()?;
        Some(found.naive_utc()).filter(|found| YEARS.contains(&found.year()))
    }

    /// The last match at or before a local time.
    pub(crate) fn previous(&self, at_or_before: NaiveDateTime) -> Option<NaiveDateTime> {
        let found: DateTime<Utc> = self
            .inner
            .find_previous_occurrence(&at_or_before.and_utc(), true)
            .ok()?;
        Some(found.naive_utc()).filter(|found| YEARS.contains(&found.year()))
    }
}

fn read(text: &str) -> Result<croner::Cron, String> {
    use croner::parser::{CronParser, Seconds, Year};
    CronParser::builder()
        .seconds(Seconds::Required)
        .year(Year::Required)
        .build()
        .parse(text)
        .map_err(|error| error.to_string())
}

fn cut(text: &str) -> String {
    text.chars().take(60).collect()
}

fn normal_fields(text: &str) -> Result<Vec<String>, String> {
    if text.len() > TEXT_MAX_BYTES {
        return Err(format!("bad cron expression: longer than {TEXT_MAX_BYTES} bytes"));
    }
    let text = text.trim().to_uppercase();
    let text = match text.as_str() {
        "@YEARLY" | "@ANNUALLY" => "0 0 1 1 *",
        "@MONTHLY" => "0 0 1 * *",
        "@WEEKLY" => "0 0 * * 0",
        "@DAILY" | "@MIDNIGHT" => "0 0 * * *",
        "@HOURLY" => "0 * * * *",
        other => other,
    };
    let mut fields: Vec<&str> = text.split_whitespace().collect();
    let count = fields.len();
    if !(5..=7).contains(&count) {
        return Err(format!(
            "bad cron expression: `{}` has {count} fields; write 5 (minutes, hours, day of month, month, day of week), \
             6 (seconds first) or 7 (year last)",
            cut(text)
        ));
    }
    if count == 5 {
        fields.insert(0, "0");
    }
    if fields.len() == 6 {
        fields.push("*");
    }
    let normal = fields
        .iter()
        .enumerate()
        .map(|(index, field)| normal_field(index, field))
        .collect::<Result<_, _>>()?;
    Ok(normal)
}

fn normal_field(index: usize, text: &str) -> Result<String, String> {
    let place = &FIELDS[index];
    let text = text.replace('?', "*");
    let text = match index {
        MONTH => numbers_for_names(&text, &MONTHS, 1),
        DAY_OF_WEEK => numbers_for_names(&text, &WEEKDAYS, 0),
        _ => text,
    };
    let mut items = Vec::new();
    for item in text.split(',') {
        if item.is_empty() {
            return Err(format!(
                "bad cron expression: {} `{}`: an empty item",
                place.name,
                cut(&text)
            ));
        }
        items.push(normal_item(index, place, item));
    }
    // One item that says all says all; croner treats a day field specially only when it is exactly `*`.
    if items.iter().any(|item| item == "*") {
        return Ok("*".into());
    }
    Ok(items.join(","))
}

fn normal_item(index: usize, place: &Field, item: &str) -> String {
    if index == DAY_OF_WEEK && item == "L" {
        return "6".into();
    }
    let (range, step) = match item.split_once('/') {
        Some((range, step)) => (range, Some(step)),
        None => (item, None),
    };
    if step == Some("1") && matches!(range, "*" | "") {
        return "*".into();
    }
    let Some(step) = step else {
        return over_the_end(index, place, range, 1).unwrap_or_else(|| item.to_owned());
    };
    if range.is_empty() {
        return format!("*/{step}");
    }
    if range.bytes().all(|byte| byte.is_ascii_digit()) {
        return format!("{range}-{}/{step}", place.max);
    }
    let wrapped = step
        .parse()
        .ok()
        .and_then(|step| over_the_end(index, place, range, step));
    wrapped.unwrap_or_else(|| item.to_owned())
}

/// `22-2` as a list of the numbers that it means; `None` if it does not go over the end.
fn over_the_end(index: usize, place: &Field, range: &str, step: u32) -> Option<String> {
    let (from, to) = range.split_once('-')?;
    let (from, to): (u32, u32) = (from.parse().ok()?, to.parse().ok()?);
    let last = if index == DAY_OF_WEEK { 7 } else { place.max };
    let in_range = |number: u32| (place.min..=last).contains(&number);
    if from <= to || !place.wraps || !in_range(from) || !in_range(to) || !(1..=place.max).contains(&step) {
        return None;
    }
    let size = place.max - place.min + 1;
    let length = (to + size - from) % size;
    let numbers = (0..=length).step_by(step as usize).map(|offset| {
        let number = (from - place.min + offset) % size + place.min;
        number.to_string()
    });
    Some(numbers.collect::<Vec<_>>().join(","))
}

fn numbers_for_names(text: &str, names: &[&str], first: usize) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let word = &rest[..letters];
        // `FRIL` is the last Friday.
        let (bare, last) = match word.strip_suffix('L') {
            Some(bare) if bare.len() >= 3 => (bare, "L"),
            _ => (word, ""),
        };
        let found = |word: &str| {
            (word.len() >= 3)
                .then(|| names.iter().position(|name| *name == word || name[..3] == *word))
                .flatten()
        };
        if let Some(number) = found(word) {
            out.push_str(&(number + first).to_string());
        } else if let Some(number) = found(bare) {
            out.push_str(&format!("{}{last}", number + first));
        } else if letters > 0 {
            out.push_str(word);
        } else {
            out.push(character);
        }
        rest = &rest[letters.max(if letters == 0 { character.len_utf8() } else { letters })..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expect: Result<&[&str], &str>) {
        let got = Cron::parse(text).map(|cron| {
            let mut at: NaiveDateTime = "2026-11-20T10:00:00".parse().unwrap();
            let mut found = Vec::new();
            while found.len() < expect.map_or(0, <[&str]>::len) {
                let next = cron.next(at).expect("a match");
                assert_eq!(cron.previous(next), Some(next), "{text}");
                assert!(
                    cron.previous(next - chrono::TimeDelta::seconds(1))
                        .is_none_or(|before| before <= at),
                    "{text}"
                );
                at = next;
                found.push(next.to_string());
            }
            found
        });
        match (got, expect) {
            (Ok(got), Ok(expect)) => assert_eq!(got, expect, "{text}"),
            (Err(got), Err(expect)) => assert!(got.contains(expect), "{text}: {got}"),
            (got, expect) => panic!("{text}: {got:?}, not {expect:?}"),
        }
    }

    #[test]
    fn five_six_and_seven_fields() {
        check("* * * * *", Ok(&["2026-11-20 10:01:00", "2026-11-20 10:02:00"]));
        check("0 0 2 * * *", Ok(&["2026-11-21 02:00:00", "2026-11-22 02:00:00"]));
        check("*/20 * * * * *", Ok(&["2026-11-20 10:00:20", "2026-11-20 10:00:40"]));
        check("0 0 0 1 1 ? 2028", Ok(&["2028-01-01 00:00:00"]));
        check(
            "0 0 0 1 1 ? 2028-2030",
            Ok(&["2028-01-01 00:00:00", "2029-01-01 00:00:00", "2030-01-01 00:00:00"]),
        );
        check("  0   2\t* * * ", Ok(&["2026-11-21 02:00:00"]));
        check("@daily", Ok(&["2026-11-21 00:00:00"]));
        check("@midnight", Ok(&["2026-11-21 00:00:00"]));
    }

    #[test]
    fn almost_legal_fields_are_mended() {
        check("0/5 * * * * * ?", Ok(&["2026-11-20 10:00:05", "2026-11-20 10:00:10"]));
        check(
            "0 10/25 * * * ?",
            Ok(&["2026-11-20 10:10:00", "2026-11-20 10:35:00", "2026-11-20 11:10:00"]),
        );
        check("0 /30 * * * ?", Ok(&["2026-11-20 10:30:00", "2026-11-20 11:00:00"]));
        check("0 0 12 ? * ? ?", Ok(&["2026-11-20 12:00:00", "2026-11-21 12:00:00"]));
        check(
            "0 0 22-2 * * ?",
            Ok(&["2026-11-20 22:00:00", "2026-11-20 23:00:00", "2026-11-21 00:00:00"]),
        );
        check(
            "0 22-2/2 * * *",
            Ok(&["2026-11-20 22:00:00", "2026-11-21 00:00:00", "2026-11-21 02:00:00"]),
        );
        check("0 0 ? NOV-FEB ?", Ok(&["2026-11-21 00:00:00"]));
        check("0 0 */1 * mon", Ok(&["2026-11-23 00:00:00", "2026-11-30 00:00:00"]));
    }

    #[test]
    fn weekdays() {
        // 2026-11-20 is a Friday.
        for sunday in ["0", "7", "sun", "SUN", "Sunday"] {
            check(
                &format!("0 0 * * {sunday}"),
                Ok(&["2026-11-22 00:00:00", "2026-11-29 00:00:00"]),
            );
        }
        check("0 0 * * MON-FRI", Ok(&["2026-11-23 00:00:00", "2026-11-24 00:00:00"]));
        check(
            "0 0 * * FRI-SUN",
            Ok(&["2026-11-21 00:00:00", "2026-11-22 00:00:00", "2026-11-27 00:00:00"]),
        );
        check(
            "0 0 * * 5-7",
            Ok(&["2026-11-21 00:00:00", "2026-11-22 00:00:00", "2026-11-27 00:00:00"]),
        );
        check(
            "0 0 * * SAT-MON",
            Ok(&["2026-11-21 00:00:00", "2026-11-22 00:00:00", "2026-11-23 00:00:00"]),
        );
        check("0 0 ? * L", Ok(&["2026-11-21 00:00:00", "2026-11-28 00:00:00"]));
        check("0 0 ? * FRIL", Ok(&["2026-11-27 00:00:00", "2026-12-25 00:00:00"]));
        check("0 0 ? * 5L", Ok(&["2026-11-27 00:00:00", "2026-12-25 00:00:00"]));
        check("0 0 ? * TUE#2", Ok(&["2026-12-08 00:00:00", "2027-01-12 00:00:00"]));
        check("0 0 ? * 7#1", Ok(&["2026-12-06 00:00:00", "2027-01-03 00:00:00"]));
        // Both day fields: either, as in every cron.
        check(
            "0 0 25 * SUN",
            Ok(&["2026-11-22 00:00:00", "2026-11-25 00:00:00", "2026-11-29 00:00:00"]),
        );
    }

    #[test]
    fn days_of_the_month() {
        check(
            "0 0 L * ?",
            Ok(&["2026-11-30 00:00:00", "2026-12-31 00:00:00", "2027-01-31 00:00:00"]),
        );
        check("0 0 L FEB ?", Ok(&["2027-02-28 00:00:00", "2028-02-29 00:00:00"]));
        check(
            "0 0 LW * ?",
            Ok(&["2026-11-30 00:00:00", "2026-12-31 00:00:00", "2027-01-29 00:00:00"]),
        );
        check(
            "0 0 15W * ?",
            Ok(&["2026-12-15 00:00:00", "2027-01-15 00:00:00", "2027-02-15 00:00:00"]),
        );
        // 2026-11-21 is a Saturday, 2026-11-22 a Sunday, 2027-05-01 a Saturday, 2027-01-31 a Sunday.
        check("0 12 21W 11 ?", Ok(&["2026-11-20 12:00:00"]));
        check("0 0 22W 11 ?", Ok(&["2026-11-23 00:00:00"]));
        check("0 0 1W 5 ?", Ok(&["2027-05-03 00:00:00"]));
        check("0 0 31W 1 ?", Ok(&["2027-01-29 00:00:00"]));
        check("0 0 29 2 *", Ok(&["2028-02-29 00:00:00", "2032-02-29 00:00:00"]));
    }

    #[test]
    fn refuses_and_says_where() {
        check("", Err("has 0 fields"));
        check("* * * *", Err("has 4 fields"));
        check("* * * * * * * *", Err("has 8 fields"));
        check("61 * * * *", Err("minutes `61`"));
        check("* 24 * * *", Err("hours `24`"));
        check("* * 32 * *", Err("day of month `32`"));
        check("* * * 13 *", Err("month `13`"));
        check("* * * * 8", Err("day of week `8`"));
        check("* * * FOO *", Err("month `FOO`"));
        check("*/0 * * * *", Err("minutes `*/0`"));
        check("1,,2 * * * *", Err("an empty item"));
        check("x * * * *", Err("minutes `X`"));
        check("0 0 30 2 *", Err("never fires"));
        check("0 0 31 4,6,9,11 ?", Err("never fires"));
        check(&"*".repeat(1000), Err("longer than"));
        check("@reboot", Err("has 1 fields"));
        check("0 0 * * ÄÖÜ", Err("day of week"));
    }

    #[test]
    fn wildcards_count_repeated_hours() {
        for (text, expect) in [
            ("30 1 * * *", false),
            ("0,30 1,13 * * *", false),
            ("*/30 1 * * *", true),
            ("0/30 1 * * *", true),
            ("30 * * * *", true),
            ("* 30 1 * * *", true),
        ] {
            assert_eq!(Cron::parse(text).unwrap().every_time(), expect, "{text}");
        }
    }
}
