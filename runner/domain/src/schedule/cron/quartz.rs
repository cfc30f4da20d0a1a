//! Quartz' dialect, held against Quartz.
//!
//! The expressions and what Quartz says of each are those of `CronExpressionTest` and `CronTriggerTest` of Quartz 2.5
//! (github.com/quartz-scheduler/quartz, Apache License 2.0), with a few of the test of 2.3 that the later one dropped;
//! the tables are written anew. Instants are those that these tests assert, or the class's documentation tells.

use super::*;
use crate::spec::CronDialect;

const QUARTZ: Reading = Reading {
    dialect: CronDialect::Quartz,
    stored: false,
};

/// An expression, whether Quartz takes it, and whether our own dialect does. Ours takes `*` in both day fields, and has
/// weekdays from 0; it takes no `L` in lists.
const TABLE: &[(&str, bool, bool)] = &[
    // Taken by Quartz.
    ("0 15 10 * * ? 2005", true, true),
    ("0 15 10 12 * ? 2005", true, true),
    ("0 15 10 L * ? 2005", true, true),
    ("0 15 10 L 2 ? 2005", true, true),
    ("0 15 10 L 2 ? 2004", true, true),
    ("0 15 10 L-2 * ? 2005", true, true),
    ("0 15 10 L-1 * ? 2005", true, true),
    ("0 15 10 L-3 2 ? 2005", true, true),
    ("0 15 10 L-3 2 ? 2000", true, true),
    ("0 15 10 L-2 * ? 2010", true, true),
    ("0 15 10 L-5W * ? 2010", true, true),
    ("0 15 10 L-1 * ? 2010", true, true),
    ("0 15 10 L-1W * ? 2010", true, true),
    ("0 15 10 1,L * ? 2010", true, false),
    ("0 15 10 L-1W,L-1 * ? 2010", true, false),
    ("0 15 10 2W,16 * ? 2010", true, true),
    ("19 15 10 4 Apr ? ", true, true),
    ("0 0 0 L-2 * ? *", true, true),
    ("0 0 0 LW * ? *", true, true),
    ("0 43 9 ? * 5L", true, true),
    ("* * * * * ? *", true, true),
    ("0 * * * * ? *", true, true),
    ("0/15 * * * * ? *", true, true),
    ("0 0 5 * * ? *", true, true),
    ("0 0 0 * * ? *", true, true),
    ("0/30 1 2 * * ? *", true, true),
    ("* * * * * ?", true, true),
    ("0 * 5 * * ?", true, true),
    ("0 0 0 1W * ?", true, true),
    ("59 59 23 L * ?", true, true),
    // From the class's documentation.
    ("0 0 12 * * ?", true, true),
    ("0 15 10 ? * *", true, true),
    ("0 15 10 * * ? *", true, true),
    ("0 * 14 * * ?", true, true),
    ("0 0/5 14 * * ?", true, true),
    ("0 0/5 14,18 * * ?", true, true),
    ("0 0-5 14 * * ?", true, true),
    ("0 10,44 14 ? 3 WED", true, true),
    ("0 15 10 ? * MON-FRI", true, true),
    ("0 15 10 15 * ?", true, true),
    ("0 15 10 L * ?", true, true),
    ("0 15 10 ? * 6L", true, true),
    ("0 15 10 ? * 6L 2002-2005", true, true),
    ("0 15 10 ? * 6#3", true, true),
    ("0 0 12 1/5 * ?", true, true),
    ("0 11 11 11 11 ?", true, true),
    ("0 0 14-6 ? * FRI-MON", true, true),
    ("0 0 22-2 ? NOV-FEB MON", true, true),
    // Refused by Quartz.
    ("0 15 10 * * ? 2005 *", false, false),
    ("* * * * Foo ? ", false, false),
    ("* * * * Jan-Foo ? ", false, false),
    ("0 0 * * * *", false, true),
    ("0 0 * 4 * *", false, true),
    ("0 0 * * * 4", false, true),
    ("0 43 9 ? * SAT,SUN,L", false, false),
    ("0 43 9 ? * 6,7,L", false, false),
    ("0/5 * * 32W 1 ?", false, false),
    ("/120 0 8-18 ? * 2-6", false, false),
    ("0/120 0 8-18 ? * 2-6", false, false),
    ("/ 0 8-18 ? * 2-6", false, false),
    ("0/ 0 8-18 ? * 2-6", false, false),
    ("/60 0 8-18 ? * 2-6", false, false),
    ("0 /120 8-18 ? * 2-6", false, false),
    ("0 0/120 8-18 ? * 2-6", false, false),
    ("0 / 8-18 ? * 2-6", false, false),
    ("0 0/ 8-18 ? * 2-6", false, false),
    ("0 /60 8-18 ? * 2-6", false, false),
    ("0 0 /120 ? * 2-6", false, false),
    ("0 0 0/120 ? * 2-6", false, false),
    ("0 0 / ? * 2-6", false, false),
    ("0 0 0/ ? * 2-6", false, false),
    ("0 0 /24 ? * 2-6", false, false),
    ("0 0 0 /120 * 2-6", false, false),
    ("0 0 0 0/120 * 2-6", false, false),
    ("0 0 0 / * 2-6", false, false),
    ("0 0 0 0/ * 2-6", false, false),
    ("0 0 0 ? /120 2-6", false, false),
    ("0 0 0 ? 0/120 2-6", false, false),
    ("0 0 0 ? / 2-6", false, false),
    ("0 0 0 ? 0/ 2-6", false, false),
    ("0 0 0 ? /13 2-6", false, false),
    ("0 0 0 ? * /120", false, false),
    ("0 0 0 ? * 0/120", false, false),
    ("0 0 0 ? * /", false, false),
    ("0 0 0 ? * 0/", false, false),
    ("Ralf 30 * * * ?", false, false),
    ("0 30 Ralf * * ?", false, false),
    ("kilroy was here", false, false),
    ("L 30 * * * ?", false, false),
    // From the documentation, and where the dialects differ.
    ("0 0 12 ? * 3#1,6#3", false, true),
    ("0 0 12 ? * 0", false, true),
    ("0 0 12 ? * ?", false, true),
    ("0 12 * * ?", false, true),
    ("? 0 12 * * ?", false, true),
    ("0 0 12 L-31 * ?", false, false),
];

#[test]
fn what_is_taken() {
    for &(text, quartz, unix) in TABLE {
        // Past years never fire; `never fires` is not tested here.
        let taken = |dialect| text::read(text, Reading { dialect, ..QUARTZ }).map(drop);
        assert_eq!(
            taken(CronDialect::Quartz).is_ok(),
            quartz,
            "{text}: {:?}",
            taken(CronDialect::Quartz)
        );
        assert_eq!(
            taken(CronDialect::Unix).is_ok(),
            unix,
            "{text}: {:?}",
            taken(CronDialect::Unix)
        );
    }
}

/// Quartz takes a step after a name and ignores it.
#[test]
fn steps_after_names_are_refused() {
    for text in [
        "0 0 0 ? * MON/2",
        "0 0 0 ? * MON-FRI/2",
        "0 0 0 1 JUN/3 ?",
        "0 0 0 1 JAN-JUN/2 ?",
    ] {
        let refused = text::read(text, QUARTZ).expect_err(text);
        assert!(refused.contains("Quartz ignores a step"), "{text}: {refused}");
        let stored = Reading { stored: true, ..QUARTZ };
        let unix = Reading {
            dialect: CronDialect::Unix,
            ..QUARTZ
        };
        for reading in [stored, unix] {
            assert!(text::read(text, reading).is_ok(), "{text} {reading:?}");
        }
    }
}

#[test]
fn when_it_fires() {
    let check = |text: &str, after: &str, expect: &[&str]| {
        let cron = Cron::parse(text, QUARTZ).expect(text);
        let mut at: NaiveDateTime = after.parse().unwrap();
        for expect in expect {
            let next = cron.next(at).expect(text);
            assert_eq!(next.to_string(), *expect, "{text}");
            assert_eq!(cron.previous(next), Some(next), "{text}");
            at = next;
        }
    };
    check(
        "0 15 10 L-2 * ? 2010",
        "2010-02-01T00:00:00",
        &["2010-02-26 10:15:00", "2010-03-29 10:15:00"],
    );
    check("0 15 10 L-2 * ? 2010", "2010-10-01T00:00:00", &["2010-10-29 10:15:00"]);
    check(
        "0 15 10 L-5W * ? 2010",
        "2010-09-01T00:00:00",
        &["2010-09-24 10:15:00", "2010-10-26 10:15:00"],
    );
    check("0 15 10 L-1W * ? 2010", "2010-10-01T00:00:00", &["2010-10-29 10:15:00"]);
    check(
        "0 15 10 L-1W,L-1 * ? 2010",
        "2010-10-01T00:00:00",
        &["2010-10-29 10:15:00", "2010-10-30 10:15:00", "2010-11-29 10:15:00"],
    );
    check(
        "0 15 10 L-1W,L-1 * ? 2010",
        "2010-02-01T00:00:00",
        &["2010-02-26 10:15:00", "2010-02-27 10:15:00"],
    );
    check(
        "0 15 10 1,L * ? 2010",
        "2010-01-31T12:00:00",
        &["2010-02-01 10:15:00", "2010-02-28 10:15:00", "2010-03-01 10:15:00"],
    );
    check(
        "0 15 10 2W,16 * ? 2010",
        "2010-09-30T00:00:00",
        &[
            "2010-10-01 10:15:00",
            "2010-10-16 10:15:00",
            "2010-11-02 10:15:00",
            "2010-11-16 10:15:00",
        ],
    );
    check(
        "0 15 10 L-3 2 ?",
        "2000-01-01T00:00:00",
        &["2000-02-26 10:15:00", "2001-02-25 10:15:00"],
    );
    check(
        "0 0 0 1W * ?",
        "2025-11-30T00:00:00",
        &[
            "2025-12-01 00:00:00",
            "2026-01-01 00:00:00",
            "2026-02-02 00:00:00",
            "2026-03-02 00:00:00",
            "2026-04-01 00:00:00",
            "2026-05-01 00:00:00",
        ],
    );
    // 6 is Friday: the last, the third; 1 is Sunday, 7 and `L` are Saturday.
    check(
        "0 15 10 ? * 6L",
        "2026-11-01T00:00:00",
        &["2026-11-27 10:15:00", "2026-12-25 10:15:00"],
    );
    check(
        "0 15 10 ? * 6#3",
        "2026-11-01T00:00:00",
        &["2026-11-20 10:15:00", "2026-12-18 10:15:00"],
    );
    check(
        "0 0 12 ? * 1",
        "2026-11-20T00:00:00",
        &["2026-11-22 12:00:00", "2026-11-29 12:00:00"],
    );
    check(
        "0 0 12 ? * L",
        "2026-11-20T00:00:00",
        &["2026-11-21 12:00:00", "2026-11-28 12:00:00"],
    );
    check(
        "0 0 12 ? * 2-6",
        "2026-11-20T13:00:00",
        &["2026-11-23 12:00:00", "2026-11-24 12:00:00"],
    );
    check(
        "0 0 12 ? * 1/2",
        "2026-11-22T13:00:00",
        &["2026-11-24 12:00:00", "2026-11-26 12:00:00", "2026-11-28 12:00:00"],
    );
    check(
        "0 0 12 ? * FRI-MON",
        "2026-11-20T13:00:00",
        &[
            "2026-11-21 12:00:00",
            "2026-11-22 12:00:00",
            "2026-11-23 12:00:00",
            "2026-11-27 12:00:00",
        ],
    );
    // Steps of all years are counted from 1970.
    for years in ["*/4", "/4"] {
        check(
            &format!("0 0 0 1 1 ? {years}"),
            "2026-11-26T00:00:00",
            &["2030-01-01 00:00:00", "2034-01-01 00:00:00"],
        );
    }
    // `7/6` of the months means only July.
    check(
        "0 0 0 1 7/6 ?",
        "2026-01-01T00:00:00",
        &["2026-07-01 00:00:00", "2027-07-01 00:00:00"],
    );
}
