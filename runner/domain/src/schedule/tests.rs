use proptest::prelude::*;
use serde_json::{Value, json};

use super::local::Instants;
use super::*;

fn at(text: &str) -> Time {
    text.parse().unwrap()
}

fn shown(instant: Time) -> String {
    instant.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true)
}

fn schedule(spec: Value) -> Result<Schedule, String> {
    let spec: ScheduleSpec = serde_json::from_value(spec).map_err(|error| error.to_string())?;
    Schedule::compile(&spec, Tz::UTC, at("2026-11-20T10:00:00Z")).map_err(|fault| fault.to_string())
}

/// The live instants after one.
fn check(spec: Value, after: &str, expect: &[&str]) {
    let schedule = schedule(spec.clone()).unwrap();
    let mut cursor = at(after);
    let mut found = Vec::new();
    while found.len() < expect.len() {
        let Some(next) = schedule.next_after(cursor) else { break };
        assert!(next > cursor);
        assert_eq!(schedule.latest(next), Some(next), "{spec}");
        cursor = next;
        found.push(shown(next));
    }
    assert_eq!(found, expect, "{spec} after {after}");
}

const CREATED: &str = "2026-11-20T10:00:00Z";

#[test]
fn each_kind_live() {
    check(
        json!({"cron": "0 2 * * *"}),
        CREATED,
        &["2026-11-21T02:00:00Z", "2026-11-22T02:00:00Z"],
    );
    check(
        json!({"cron": "0 0 2 * * *", "timezone": "Asia/Shanghai"}),
        CREATED,
        &["2026-11-20T18:00:00Z", "2026-11-21T18:00:00Z"],
    );
    check(
        json!({"every": "90m"}),
        CREATED,
        &["2026-11-20T11:30:00Z", "2026-11-20T13:00:00Z"],
    );
    check(
        json!({"every": "1h", "anchor": "2026-01-01T00:20:00Z"}),
        CREATED,
        &["2026-11-20T10:20:00Z"],
    );
    check(
        json!({"every": "1h", "anchor": "2027-01-01"}),
        CREATED,
        &["2027-01-01T00:00:00Z", "2027-01-01T01:00:00Z"],
    );
    check(
        json!({"every": "1h", "initial_delay": "5s"}),
        CREATED,
        &["2026-11-20T10:00:05Z", "2026-11-20T11:00:05Z"],
    );
    check(
        json!({"every": "1h", "initial_delay": "0s"}),
        "2026-11-20T09:59:59Z",
        &["2026-11-20T10:00:00Z"],
    );
    check(json!({"after": "10m"}), CREATED, &["2026-11-20T10:10:00Z"]);
    check(
        json!({"after": "10m", "initial_delay": "1s"}),
        CREATED,
        &["2026-11-20T10:00:01Z"],
    );
    check(
        json!({"once": {"at": "2026-12-01"}}),
        CREATED,
        &["2026-12-01T00:00:00Z"],
    );
    check(json!({"once": {"delay": "30s"}}), CREATED, &["2026-11-20T10:00:30Z"]);
    // Not before the window begins, as `after`.
    check(
        json!({"once": {"delay": "30s"}, "starts_at": "2026-11-21"}),
        CREATED,
        &["2026-11-21T00:00:00Z"],
    );
    check(
        json!({"daily": {"every_days": 3, "at": "08:00"}}),
        CREATED,
        &["2026-11-23T08:00:00Z", "2026-11-26T08:00:00Z"],
    );
    check(
        json!({"daily": {"at": "12:00"}}),
        CREATED,
        &["2026-11-20T12:00:00Z", "2026-11-21T12:00:00Z"],
    );
    check(
        json!({"daily": {"every_days": 2, "at": "08:00"}, "starts_at": "2026-12-01", "timezone": "Asia/Shanghai"}),
        CREATED,
        &["2026-12-01T00:00:00Z", "2026-12-03T00:00:00Z"],
    );
}

#[test]
fn windows_and_delays() {
    check(
        json!({"cron": "0 0 * * *", "starts_at": "2026-12-01", "ends_at": "2026-12-03"}),
        CREATED,
        &["2026-12-01T00:00:00Z", "2026-12-02T00:00:00Z"],
    );
    let windowed = schedule(json!({"cron": "0 0 * * *", "starts_at": "2026-12-01", "ends_at": "2026-12-03"})).unwrap();
    assert_eq!(windowed.next_after(at("2026-12-02T00:00:00Z")), None);
    assert_eq!(
        windowed.latest(at("2027-01-01T00:00:00Z")),
        Some(at("2026-12-02T00:00:00Z"))
    );
    assert_eq!(windowed.latest(at("2026-11-30T12:00:00Z")), None);
    assert_eq!(
        windowed.preceding(at("2026-12-01T00:00:00Z")),
        Some(at("2026-11-30T00:00:00Z"))
    );
    check(
        json!({"cron": "* * * * *", "initial_delay": "90s"}),
        CREATED,
        &["2026-11-20T10:02:00Z"],
    );
    let live = schedule(json!({"cron": "0 * * * *"})).unwrap();
    assert_eq!(
        live.latest(at("2026-11-20T10:30:00Z")),
        None,
        "10:00 is not after the creation"
    );
    assert_eq!(live.latest_ever(at("2026-11-20T10:30:00Z")), Some(at(CREATED)));
}

#[test]
fn a_delay_after_a_run() {
    let after = schedule(json!({"after": "10m", "ends_at": "2026-11-21"})).unwrap();
    assert_eq!(
        after.after_run(at("2026-11-20T12:00:00Z")),
        Some(at("2026-11-20T12:10:00Z"))
    );
    assert_eq!(after.after_run(at("2026-11-20T23:55:00Z")), None);
    assert_eq!(schedule(json!({"every": "1h"})).unwrap().after_run(at(CREATED)), None);
}

#[test]
fn refuses_and_says_where() {
    for (spec, expect) in [
        (json!({}), "a schedule must have exactly one of"),
        (
            json!({"cron": "* * * * *", "every": "1h"}),
            "a schedule must have exactly one of",
        ),
        (json!({"cron": "bad"}), "/cron: invalid cron expression"),
        (
            json!({"cron": "* * * * *", "timezone": "Nowhere"}),
            "/timezone: `Nowhere` is not a valid IANA time zone",
        ),
        (
            json!({"cron": "* * * * *", "anchor": "2026-01-01"}),
            "/anchor: only a schedule with `every`",
        ),
        (json!({"every": "0s"}), "/every: `every` must be at least 100ms"),
        (
            json!({"every": "1h", "anchor": "x"}),
            "/anchor: `x` is not a valid time",
        ),
        (json!({"after": "0s"}), "/after: `after` must be longer than zero"),
        (json!({"once": {}}), "/once: `once` must have exactly one of"),
        (
            json!({"once": {"at": "2026-12-01", "delay": "1s"}}),
            "/once: `once` must have exactly one of",
        ),
        (json!({"once": {"at": "soon"}}), "/once/at: `soon` is not a valid time"),
        (
            json!({"daily": {"at": "25:00"}}),
            "/daily/at: `25:00` is not a valid time of day",
        ),
        (json!({"daily": {"every_days": 0, "at": "05:00"}}), "/daily/every_days"),
        (
            json!({"cron": "* * * * *", "starts_at": "x"}),
            "/starts_at: `x` is not a valid time",
        ),
        (
            json!({"cron": "* * * * *", "starts_at": "2026-12-02", "ends_at": "2026-12-02"}),
            "/ends_at: `ends_at` must be after",
        ),
        (
            json!({"cron": "0 0 1 * *", "starts_at": "2026-12-02", "ends_at": "2026-12-31"}),
            "the schedule never fires",
        ),
        (
            json!({"once": {"at": "2026-12-02"}, "ends_at": "2026-12-01"}),
            "the schedule never fires",
        ),
        (
            json!({"cron": "0 0 1 1 ? 2020", "starts_at": "2026-12-02"}),
            "invalid cron",
        ),
        (
            json!({"cron": "0 0 0 1 1 ? 2020", "starts_at": "2026-12-02"}),
            "the schedule never fires",
        ),
    ] {
        let got = schedule(spec.clone()).unwrap_err();
        assert!(got.contains(expect), "{spec}: {got}");
    }
}

#[test]
fn clock_changes() {
    let ny = |cron: &str| json!({"cron": cron, "timezone": "America/New_York"});
    let live = |spec: Value, after: &str, expect: &[&str]| {
        let spec: ScheduleSpec = serde_json::from_value(spec).unwrap();
        let schedule = Schedule::compile(&spec, Tz::UTC, at("2025-01-01T00:00:00Z")).unwrap();
        let calendar = Calendar::new([schedule]);
        let to = at(expect.last().unwrap());
        let from = at(after) + MICRO;
        let found: Vec<_> = calendar.instants(from, to).map(shown).collect();
        assert_eq!(found, expect, "{spec:?}");
        let mut back: Vec<_> = calendar.instants_descending(from, to).map(shown).collect();
        back.reverse();
        assert_eq!(back, expect, "{spec:?} backwards");
    };
    // Forward on 2026-03-08: 02:00 EST (07:00Z) becomes 03:00 EDT.
    live(
        ny("0 30 2 * * *"),
        "2026-03-07T00:00:00Z",
        &["2026-03-07T07:30:00Z", "2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"],
    );
    live(
        ny("0 */15 * * * *"),
        "2026-03-08T06:30:00Z",
        &["2026-03-08T06:45:00Z", "2026-03-08T07:00:00Z", "2026-03-08T07:15:00Z"],
    );
    live(
        json!({"daily": {"at": "02:15"}, "timezone": "America/New_York"}),
        "2026-03-07T08:00:00Z",
        &["2026-03-08T07:00:00Z", "2026-03-09T06:15:00Z"],
    );
    // Back on 2026-11-01: 02:00 EDT (06:00Z) becomes 01:00 EST.
    live(
        ny("0 30 1 * * *"),
        "2026-10-31T06:00:00Z",
        &["2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"],
    );
    live(
        ny("0 30 1,13 * * *"),
        "2026-11-01T05:00:00Z",
        &["2026-11-01T05:30:00Z", "2026-11-01T18:30:00Z"],
    );
    live(
        ny("0 */30 * * * *"),
        "2026-11-01T04:30:00Z",
        &[
            "2026-11-01T05:00:00Z",
            "2026-11-01T05:30:00Z",
            "2026-11-01T06:00:00Z",
            "2026-11-01T06:30:00Z",
            "2026-11-01T07:00:00Z",
        ],
    );
    live(
        ny("0 30 * * * *"),
        "2026-11-01T04:00:00Z",
        &[
            "2026-11-01T04:30:00Z",
            "2026-11-01T05:30:00Z",
            "2026-11-01T06:30:00Z",
            "2026-11-01T07:30:00Z",
        ],
    );
    live(
        json!({"daily": {"at": "01:30"}, "timezone": "America/New_York"}),
        "2026-10-31T06:00:00Z",
        &["2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"],
    );
    // A midnight that does not exist (Havana, 2026-03-08), half an hour of change, a day that was left out.
    live(
        json!({"cron": "0 0 * * *", "timezone": "America/Havana"}),
        "2026-03-07T06:00:00Z",
        &["2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z"],
    );
    live(
        json!({"cron": "45 1 * * *", "timezone": "Australia/Lord_Howe"}),
        "2026-04-03T16:00:00Z",
        &["2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"],
    );
    live(
        json!({"cron": "0 12 * * *", "timezone": "Pacific/Apia"}),
        "2011-12-29T00:00:00Z",
        &["2011-12-29T22:00:00Z", "2011-12-30T10:00:00Z", "2011-12-30T22:00:00Z"],
    );
}

#[test]
fn several_schedules_are_one_calendar() {
    let calendar = Calendar::new([
        schedule(json!({"cron": "0 */6 * * *"})).unwrap(),
        schedule(json!({"every": "4h", "anchor": "2026-01-01"})).unwrap(),
        schedule(json!({"once": {"at": "2026-11-20T13:00:00Z"}})).unwrap(),
    ]);
    let (from, to) = (at("2026-11-18T00:00:00Z"), at("2026-11-18T12:00:00Z"));
    let hours = |instants: Vec<Time>| -> Vec<u32> { instants.iter().map(chrono::Timelike::hour).collect() };
    assert_eq!(hours(calendar.instants(from, to).collect()), [0, 4, 6, 8, 12]);
    assert_eq!(
        hours(calendar.instants_descending(from, to).collect()),
        [12, 8, 6, 4, 0]
    );
    assert_eq!(
        calendar.next_after(at("2026-11-20T12:00:00Z")),
        Some(at("2026-11-20T13:00:00Z"))
    );
    assert_eq!(
        calendar.data_interval(at("2026-11-20T13:00:00Z")).0,
        at("2026-11-20T12:00:00Z")
    );
    assert_eq!(
        calendar.data_interval(at("2026-11-18T08:00:00Z")).0,
        at("2026-11-18T06:00:00Z")
    );
    assert!(calendar.has_grid());
    let empty = Calendar::default();
    assert_eq!(empty.data_interval(from), (from, from));
}

/// An instant before the logical time that no grid has, of `after`: the last one of all counts.
#[test]
fn a_data_interval_from_an_instant_that_no_schedule_tells() {
    let steady = || schedule(json!({"after": "10m"})).unwrap();
    let (before, now) = (at("2026-11-20T12:50:00Z"), at("2026-11-20T13:00:05Z"));
    let alone = Calendar::new([steady()]);
    assert_eq!(alone.data_interval_from(Some(before), now), (before, now));
    assert_eq!(alone.data_interval_from(None, now), (now, now));
    let hourly = Calendar::new([steady(), schedule(json!({"cron": "0 * * * *"})).unwrap()]);
    let hour = at("2026-11-20T13:00:00Z");
    assert_eq!(hourly.data_interval_from(Some(before), now), (hour, now));
    assert_eq!(hourly.data_interval_from(Some(before), hour), (before, hour));
}

#[test]
fn misfires() {
    let check = |misfire: &str, last: &str, now: &str, expect: &[&str], missed: bool| {
        let schedule = schedule(json!({"cron": "*/10 * * * *", "misfire": misfire})).unwrap();
        let due = schedule.due(at(last), at(now), 100);
        let found: Vec<_> = due.instants.into_iter().map(shown).collect();
        assert_eq!(found, expect, "{misfire} at {now}");
        assert_eq!((due.missed, due.until), (missed, at(now)));
    };
    for misfire in ["once", "skip", "all"] {
        check(misfire, "2026-11-20T11:00:00Z", "2026-11-20T11:09:59Z", &[], false);
        check(
            misfire,
            "2026-11-20T11:00:00Z",
            "2026-11-20T11:10:00Z",
            &["2026-11-20T11:10:00Z"],
            false,
        );
        check(
            misfire,
            "2026-11-20T11:00:00Z",
            "2026-11-20T11:11:00Z",
            &["2026-11-20T11:10:00Z"],
            false,
        );
    }
    check(
        "once",
        "2026-11-20T11:00:00Z",
        "2026-11-20T11:11:01Z",
        &["2026-11-20T11:10:00Z"],
        true,
    );
    check("skip", "2026-11-20T11:00:00Z", "2026-11-20T11:11:01Z", &[], true);
    check(
        "once",
        "2026-11-20T11:00:00Z",
        "2026-11-20T11:45:00Z",
        &["2026-11-20T11:40:00Z"],
        true,
    );
    check(
        "once",
        "2026-11-20T11:00:00Z",
        "2026-11-20T11:40:30Z",
        &["2026-11-20T11:30:00Z", "2026-11-20T11:40:00Z"],
        true,
    );
    check(
        "skip",
        "2026-11-20T11:00:00Z",
        "2026-11-20T11:40:30Z",
        &["2026-11-20T11:40:00Z"],
        true,
    );
    check(
        "all",
        "2026-11-20T11:00:00Z",
        "2026-11-20T11:45:00Z",
        &[
            "2026-11-20T11:10:00Z",
            "2026-11-20T11:20:00Z",
            "2026-11-20T11:30:00Z",
            "2026-11-20T11:40:00Z",
        ],
        true,
    );
    // More than come at a time: ask again from `until`.
    let all = schedule(json!({"every": "1s", "misfire": "all"})).unwrap();
    let (mut last, now) = (at(CREATED), at("2026-11-20T11:00:00Z"));
    let mut found = Vec::new();
    while last < now {
        let due = all.due(last, now, 1000);
        assert!(due.instants.len() <= 1000);
        found.extend(due.instants);
        last = due.until;
    }
    assert_eq!(found.len(), 3600);
    assert!(found.is_sorted());
    // `once` at an instant just past when it was created still comes.
    let once = schedule(json!({"once": {"at": "2026-11-20T09:59:58Z"}})).unwrap();
    assert_eq!(
        once.due(at(CREATED) - TimeDelta::seconds(60), at(CREATED), 10)
            .instants
            .len(),
        1
    );
}

#[test]
fn the_ends_of_time_are_no_trouble() {
    for spec in [
        json!({"cron": "0 2 * * *", "timezone": "Asia/Shanghai"}),
        json!({"cron": "* * * * * *", "timezone": "America/New_York"}),
        json!({"every": "7s"}),
        json!({"daily": {"every_days": 7, "at": "23:59"}, "timezone": "Pacific/Kiritimati"}),
        json!({"after": "1m"}),
        json!({"once": {"delay": "36500d"}}),
    ] {
        let schedule = schedule(spec).unwrap();
        for edge in [
            Time::MIN_UTC,
            at("0001-01-01T00:00:00Z"),
            at("2999-12-31T23:59:59Z"),
            at("9999-12-31T23:59:59Z"),
            Time::MAX_UTC,
        ] {
            schedule.next_after(edge);
            schedule.latest(edge);
            schedule.preceding(edge);
            schedule.after_run(edge);
            let calendar = Calendar::new([schedule.clone()]);
            assert!(calendar.instants(Time::MIN_UTC, edge).take(3).count() <= 3);
            assert!(calendar.instants_descending(edge, Time::MAX_UTC).take(3).count() <= 3);
        }
    }
}

/// Zones with changes of an hour, half an hour, a day, at midnight, at half past, in the middle of the day's work.
const ZONES: [(&str, &str); 9] = [
    ("America/New_York", "2026-03-07T00:00:00Z"),
    ("America/New_York", "2026-10-31T00:00:00Z"),
    ("Europe/Berlin", "2026-10-24T00:00:00Z"),
    ("Australia/Lord_Howe", "2026-04-03T12:00:00Z"),
    ("Australia/Lord_Howe", "2026-10-02T12:00:00Z"),
    ("Pacific/Apia", "2011-12-29T00:00:00Z"),
    ("America/Havana", "2026-10-31T00:00:00Z"),
    ("Africa/Cairo", "2026-04-23T00:00:00Z"),
    ("Asia/Shanghai", "2026-11-20T00:00:00Z"),
];
const CRONS: [&str; 10] = [
    "* * * * *",
    "*/15 * * * *",
    "30 * * * *",
    "0 0 * * *",
    "30 1 * * *",
    "15,45 0-3 * * *",
    "30 2 * * *",
    "0 */5 * * *",
    "59 23 * * *",
    "7/20 1-2 * * *",
];
const ORACLE_MINUTES: i64 = 3 * 24 * 60;

/// The minutes from `from` on that are instants, by the definition of the rule, checking each minute alone.
fn oracle(cron: &Cron, zone: Tz, from: Time) -> Vec<Time> {
    let matches = |local: NaiveDateTime| cron.previous(local) == Some(local);
    let mut found = Vec::new();
    for minute in 0..ORACLE_MINUTES {
        let instant = from + TimeDelta::minutes(minute);
        let local = wall_clock(zone, instant);
        let before = wall_clock(zone, instant - TimeDelta::minutes(1));
        let skipped = (local - before).num_minutes() - 1;
        let in_gap = (1..=skipped).any(|past| matches(before + TimeDelta::minutes(past)));
        let first_time = Instants::of(zone, local).first() == instant;
        if in_gap || (matches(local) && (first_time || cron.every_time())) {
            found.push(instant);
        }
    }
    found
}

#[test]
fn agrees_with_looking_at_every_minute() {
    for (zone, from) in ZONES {
        for text in CRONS {
            let (zone_, from_) = (parse_zone(zone).unwrap(), at(from));
            let cron = Cron::parse(
                text,
                Reading {
                    dialect: CronDialect::Unix,
                    stored: false,
                },
            )
            .unwrap();
            let expect = oracle(&cron, zone_, from_);
            let to = from_ + TimeDelta::minutes(ORACLE_MINUTES - 1);
            let spec = ScheduleSpec {
                cron: Some(text.into()),
                timezone: Some(zone.into()),
                ..Default::default()
            };
            let calendar = Calendar::new([Schedule::compile(&spec, Tz::UTC, at(CREATED)).unwrap()]);
            let found: Vec<_> = calendar.instants(from_, to).collect();
            assert_eq!(found, expect, "{zone} {text}");
            let mut back: Vec<_> = calendar.instants_descending(from_, to).collect();
            back.reverse();
            assert_eq!(back, expect, "{zone} {text} backwards");
        }
    }
}

/// Counting says what listing does, over clock changes and with windows.
#[test]
fn counts_without_listing() {
    for (zone, from) in ZONES {
        let (from, to) = (at(from) - TimeDelta::days(4), at(from) + TimeDelta::days(7));
        let crons = CRONS.iter().map(|cron| json!({"cron": cron}));
        let others = [
            json!({"cron": "0 0 */3 * MON"}),
            json!({"cron": "15 30 2 L * ?"}),
            json!({"every": "7m"}),
            json!({"every": "7m", "anchor": from + TimeDelta::days(3)}),
            json!({"daily": {"every_days": 3, "at": "02:30"}}),
            json!({"daily": {"at": "00:00"}}),
            json!({"after": "1h"}),
        ];
        for mut spec in crons.chain(others) {
            spec["timezone"] = json!(zone);
            let whole = schedule(spec.clone()).unwrap();
            spec["starts_at"] = json!(from + TimeDelta::hours(30));
            spec["ends_at"] = json!(from + TimeDelta::hours(200));
            // (Some never fire within that window, which is refused.)
            for schedule in [Ok(whole), schedule(spec.clone())].into_iter().flatten() {
                let calendar = Calendar::new([schedule]);
                for (from, to) in [
                    (from, to),
                    (from + TimeDelta::seconds(4_321), to - TimeDelta::minutes(77)),
                    (to, from),
                ] {
                    let listed: Vec<Time> = calendar.instants(from, to).collect();
                    assert_eq!(
                        calendar.count(from, to, 1_000_000),
                        Ok(listed.len() as u64),
                        "{spec} {from} {to}"
                    );
                    assert!(listed.iter().all(|at| calendar.names(*at)), "{spec}");
                    assert!(!calendar.names(from + TimeDelta::microseconds(1)), "{spec}");
                }
            }
        }
    }
    // However many there are: a leap year's seconds, and those of a hundred years.
    let seconds = Calendar::new([schedule(json!({"cron": "* * * * * *", "timezone": "Europe/Berlin"})).unwrap()]);
    assert_eq!(
        seconds.count(at("2012-01-01T00:00:00Z"), at("2012-12-31T23:59:59Z"), 10),
        Err(31_622_400)
    );
    assert_eq!(
        seconds.count(at("1950-01-01T00:00:00Z"), at("2049-12-31T23:59:59Z"), 10),
        Err(3_155_760_000)
    );
}

/// The calendar's memory of data intervals changes none of them.
#[test]
fn data_intervals_do_not_depend_on_what_was_asked_before() {
    for (zone, from) in ZONES {
        let schedules = || {
            CRONS
                .iter()
                .take(6)
                .map(|cron| schedule(json!({"cron": cron, "timezone": zone})).unwrap())
                .chain([
                    schedule(json!({"every": "50m"})).unwrap(),
                    schedule(json!({"once": {"delay": "1s"}})).unwrap(),
                ])
        };
        let calendar = Calendar::new(schedules());
        let minutes: Vec<i64> = (0..ORACLE_MINUTES).step_by(7).collect();
        let here_and_there = minutes.iter().map(|minute| minute * 997 % ORACLE_MINUTES);
        let all = minutes
            .iter()
            .copied()
            .chain(minutes.iter().rev().copied())
            .chain(here_and_there);
        for minute in all {
            let at = at(from) + TimeDelta::minutes(minute);
            assert_eq!(
                calendar.data_interval(at),
                Calendar::new(schedules()).data_interval(at),
                "{zone} {at}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Nothing lies between an instant and the next, forwards and backwards, from wherever one asks.
    #[test]
    fn next_and_latest_are_each_others_inverse(
        zone_index in 0..ZONES.len(), which in 0..CRONS.len() + 2, micros in 0..ORACLE_MINUTES * 60_000_000,
    ) {
        let (zone, from) = ZONES[zone_index];
        let mut spec = ScheduleSpec { timezone: Some(zone.into()), ..Default::default() };
        match which.checked_sub(CRONS.len()) {
            None => spec.cron = Some(CRONS[which].into()),
            Some(0) => spec.every = Some(Span::from_secs(1_234)),
            Some(_) => {
                spec.daily = Some(crate::spec::DailySpec { every_days: 1, at: "02:30".into() });
            }
        }
        let schedule = Schedule::compile(&spec, Tz::UTC, at("2000-01-01T00:00:00Z")).unwrap();
        let t = at(from) + TimeDelta::microseconds(micros);
        let next = schedule.next_after(t).unwrap();
        prop_assert!(next > t);
        let latest = schedule.latest(t).unwrap();
        prop_assert!(latest <= t);
        prop_assert_eq!(schedule.next_after(latest), Some(next));
        prop_assert_eq!(schedule.latest(next), Some(next));
        prop_assert_eq!(schedule.latest(next - MICRO), Some(latest));
        prop_assert_eq!(schedule.preceding(next), Some(latest));
    }
}

#[test]
fn quartz_in_a_zone_with_clock_changes() {
    let quartz = |cron: &str| json!({"cron": cron, "cron_dialect": "quartz", "timezone": "America/New_York"});
    // Sundays, 1; on the 14th of March 2027 the clock skips 02:30, on the 7th of November it shows 01:30 twice.
    check(
        quartz("0 30 2 ? * 1"),
        "2027-03-08T00:00:00Z",
        &["2027-03-14T07:00:00Z", "2027-03-21T06:30:00Z"],
    );
    check(
        quartz("0 30 1 ? * 1"),
        "2027-11-01T00:00:00Z",
        &["2027-11-07T05:30:00Z", "2027-11-14T06:30:00Z"],
    );
    check(
        quartz("0 0/30 1 L-23 11 ?"),
        "2027-11-01T00:00:00Z",
        &[
            "2027-11-07T05:00:00Z",
            "2027-11-07T05:30:00Z",
            "2027-11-07T06:00:00Z",
            "2027-11-07T06:30:00Z",
        ],
    );
    let fault = |spec: serde_json::Value| {
        let spec: ScheduleSpec = serde_json::from_value(spec).unwrap();
        Schedule::compile(&spec, Tz::UTC, "2026-01-01T00:00:00Z".parse().unwrap()).unwrap_err()
    };
    assert_eq!(
        fault(json!({"every": "1m", "cron_dialect": "quartz"})).pointer,
        "/cron_dialect"
    );
    assert_eq!(fault(quartz("0 0 12 * * *")).pointer, "/cron");
}
