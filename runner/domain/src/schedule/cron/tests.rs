use super::*;
use crate::spec::CronDialect;

const UNIX: Reading = Reading {
    dialect: CronDialect::Unix,
    stored: false,
};

fn check(text: &str, expect: Result<&[&str], &str>) {
    let got = Cron::parse(text, UNIX).map(|cron| {
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
    // Both day fields: either, also where one begins with a star.
    check(
        "0 0 25 * SUN",
        Ok(&["2026-11-22 00:00:00", "2026-11-25 00:00:00", "2026-11-29 00:00:00"]),
    );
    check(
        "0 0 */20 * SUN",
        Ok(&["2026-11-21 00:00:00", "2026-11-22 00:00:00", "2026-11-29 00:00:00"]),
    );
    // Without an end, a step ends with Saturday.
    check("0 0 * * 4/3", Ok(&["2026-11-26 00:00:00", "2026-12-03 00:00:00"]));
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
    check("1,,2 * * * *", Err("an item of the list is empty"));
    check("x * * * *", Err("minutes `X`"));
    check("0 0 30 2 *", Err("never fires"));
    check("0 0 31 4,6,9,11 ?", Err("never fires"));
    check(&"*".repeat(1000), Err("longer than"));
    check("@reboot", Err("`@reboot` does not exist; there are `@hourly`"));
    check("@Every 1h5m", Err("write `every: 1h5m`"));
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
        assert_eq!(Cron::parse(text, UNIX).unwrap().every_time(), expect, "{text}");
    }
}

#[test]
fn last_days_and_their_neighbours() {
    // November 2026 has 30 days and ends on a Monday; December ends on a Thursday, January on a Sunday.
    check(
        "0 0 L-3 * ?",
        Ok(&[
            "2026-11-27 00:00:00",
            "2026-12-28 00:00:00",
            "2027-01-28 00:00:00",
            "2027-02-25 00:00:00",
        ]),
    );
    check(
        "0 0 L-3W * ?",
        Ok(&["2026-11-27 00:00:00", "2026-12-28 00:00:00", "2027-01-28 00:00:00"]),
    );
    // 2026-11-25 is a Wednesday, 2026-12-26 a Saturday, 2027-01-26 a Tuesday.
    check(
        "0 0 L-5W * ?",
        Ok(&["2026-11-25 00:00:00", "2026-12-25 00:00:00", "2027-01-26 00:00:00"]),
    );
    // Only months of 31 days have so early a day.
    check(
        "0 0 L-30 * ?",
        Ok(&["2026-12-01 00:00:00", "2027-01-01 00:00:00", "2027-03-01 00:00:00"]),
    );
    // The 1st of May 2027 is a Saturday: forward, never into the month before.
    check("0 0 L-30W 5 ?", Ok(&["2027-05-03 00:00:00"]));
    check("0 0 L-31 * ?", Err("must be at most 30"));
    for last in ["L3", "29-L", "1-L/8", "WL"] {
        check(&format!("0 0 {last} * ?"), Err("write the last day as"));
    }
    check("0 0 W * ?", Err("day of month `W`"));
    check("0 0 32W * ?", Err("the day must be from 1 to 31"));
    check("0 0 1-5W * ?", Err("day of month `1-5W`"));
}

#[test]
fn the_last_stands_alone() {
    check(
        "0 43 9 1,5,29,L * ?",
        Err("day of month `L`: `L` must be the whole field"),
    );
    check("0 43 9 L,LW * ?", Err("`L` must be the whole field"));
    check(
        "0 43 9 ? * SAT,SUN,L",
        Err("day of week `L`: `L` must be the whole field"),
    );
    check("0 43 9 ? * 1L,5L", Err("`L` must be the whole field"));
    check("0 0 ? * 1#1,5#3", Ok(&["2026-12-07 00:00:00", "2026-12-18 00:00:00"]));
}

#[test]
fn steps_stay_within_their_field() {
    for (text, field) in [
        ("0 */90 * * * *", "minutes `*/90`"),
        ("*/60 * * * * *", "seconds `*/60`"),
        ("0 0 */24 * * *", "hours `*/24`"),
        ("0 0 0 */32 * *", "day of month `*/32`"),
        ("0 0 0 * 1/13 *", "month `1/13`"),
        ("0 0 0 * * */8", "day of week `*/8`"),
        ("0 10-20/60 * * * *", "minutes `10-20/60`"),
        ("0 0/ * * * *", "minutes `0/`"),
        ("0 / * * * *", "minutes `/`"),
    ] {
        check(text, Err(field));
    }
    check("0 */59 * * * *", Ok(&["2026-11-20 10:59:00", "2026-11-20 11:00:00"]));
}

#[test]
fn years() {
    check(
        "0 0 0 1 1 ? 2028,2030-2032/2",
        Ok(&["2028-01-01 00:00:00", "2030-01-01 00:00:00", "2032-01-01 00:00:00"]),
    );
    check("0 0 0 1 1 ? *,2028", Ok(&["2027-01-01 00:00:00"]));
    check("0 0 0 1 1 ? */4", Ok(&["2029-01-01 00:00:00", "2033-01-01 00:00:00"]));
    check("0 0 0 1 1 ? 2030-2028", Err("year `2030-2028`"));
    for never in ["1800", "3000-3010"] {
        check(&format!("0 0 0 1 1 ? {never}"), Err("years run from 1900 to 2999"));
    }
}

#[test]
fn starts_below_the_range_are_raised() {
    for (text, expect) in [
        ("12 12 12 0/2 * *", "12 12 12 1/2 * *"),
        ("0 0 0/2 0-10/3,20 0/3 0/2 ?", "0 0 0/2 1-10/3,20 1/3 0/2 ?"),
        ("0/5 * 0/2 0/2 *", "0/5 * 1/2 1/2 *"),
        ("0 0 0 0 * *", "0 0 0 0 * *"),
        ("not a cron", "not a cron"),
    ] {
        assert_eq!(with_legal_starts(text), expect);
    }
}

/// Expressions that croner accepts match at the same moments.
#[test]
fn agrees_with_croner() {
    use croner::parser::{CronParser, Seconds, Year};
    let parser = CronParser::builder()
        .seconds(Seconds::Required)
        .year(Year::Required)
        .build();
    for text in [
        "*/7 * * * * * *",
        "5-55/10 3,17,59 */5 * * * *",
        "0 0 0 31 * * *",
        "0 0 0 29 2 * *",
        "0 0 12 15W * * *",
        "0 0 12 31W * * *",
        "0 0 12 1W * * *",
        "0 0 12 LW * * *",
        "0 0 12 L * * *",
        "0 0 12 13 * 5 *",
        "0 0 12 */10 2-11/3 1-5 *",
        "0 30 6 * * 1#1 *",
        "0 30 6 * * 3#5 *",
        "0 30 6 * * 5L *",
        "0 30 6 1,15 * 0 *",
        "59 59 23 * 12 * 2027-2040/3",
    ] {
        let ours = Cron::parse(text, UNIX).unwrap();
        let theirs = parser.parse(text).unwrap();
        let mut at: NaiveDateTime = "2026-11-20T10:00:00".parse().unwrap();
        for _ in 0..200 {
            let expect = theirs
                .find_next_occurrence(&at.and_utc(), false)
                .ok()
                .map(|found| found.naive_utc());
            let expect = expect.filter(|found| YEARS.contains(&found.year()));
            assert_eq!(ours.next(at), expect, "{text} after {at}");
            let Some(next) = expect else { break };
            assert_eq!(ours.previous(next), Some(next), "{text}");
            assert!(
                ours.previous(next - chrono::TimeDelta::seconds(1))
                    .is_none_or(|before| before <= at),
                "{text}"
            );
            at = next;
        }
    }
}

#[test]
fn what_was_accepted_once_goes_on() {
    let stored = Reading { stored: true, ..UNIX };
    let after: NaiveDateTime = "2026-11-20T10:00:00".parse().unwrap();
    for (text, expect) in [
        ("0 */90 * * * *", "2026-11-20 11:00:00"),
        ("0 0 0 1,L * ?", "2026-11-30 00:00:00"),
    ] {
        assert!(Cron::parse(text, UNIX).is_err());
        assert_eq!(
            Cron::parse(text, stored).unwrap().next(after).unwrap().to_string(),
            expect,
            "{text}"
        );
    }
}
