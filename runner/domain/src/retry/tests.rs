use super::*;
use serde_json::json;

fn policy(spec: Value) -> Result<Policy, String> {
    let spec: RetrySpec = serde_json::from_value(spec).map_err(|error| error.to_string())?;
    Policy::compile(&spec).map_err(|fault| fault.to_string())
}

/// Fails each time as soon as a retry is due; returns the seconds between, at most `most` of them.
fn intervals(spec: Value, most: usize) -> (Vec<f64>, bool) {
    let policy = policy(spec).unwrap();
    let mut state = RetryState::default();
    let mut at: Time = "2026-11-20T10:00:00Z".parse().unwrap();
    let mut found = Vec::new();
    while found.len() < most {
        let Some(due) = next(&policy, &mut state, at, Tz::UTC, None, 0) else {
            return (found, true);
        };
        found.push((due - at).num_milliseconds() as f64 / 1000.0);
        at = due;
    }
    (found, false)
}

fn check(spec: Value, expect: &[f64], ends: bool) {
    assert_eq!(
        intervals(spec.clone(), if ends { 100 } else { expect.len() }),
        (expect.to_vec(), ends),
        "{spec}"
    );
}

#[test]
fn n_retries_are_n_plus_one_attempts() {
    check(
        json!({"strategy": "fixed", "retries": 3, "interval": "10s"}),
        &[10.0; 3],
        true,
    );
    check(json!({"strategy": "fixed", "retries": 0}), &[], true);
    check(json!({"strategy": "fixed", "retries": 2}), &[10.0; 2], true);
}

#[test]
fn doubles() {
    check(
        json!({"strategy": "exponential", "retries": 5, "interval": "10s"}),
        &[10., 20., 40., 80., 160.],
        true,
    );
    check(
        json!({"strategy": "exponential", "retries": 5, "interval": "10s", "max_interval": "35s"}),
        &[10., 20., 35., 35., 35.],
        true,
    );
    check(
        json!({"strategy": "fixed_then_exponential", "retries": 5, "interval": "10s"}),
        &[10., 10., 10., 20., 40.],
        true,
    );
    check(
        json!({"strategy": "fixed_then_exponential", "retries": 5, "interval": "10s", "fixed": 1, "max_interval": "30s"}),
        &[10., 20., 30., 30., 30.],
        true,
    );
    check(
        json!({"strategy": "fixed_then_exponential", "retries": 3, "interval": "10s", "fixed": 0}),
        &[20., 40., 80.],
        true,
    );
}

#[test]
fn forever_has_no_end() {
    check(json!({"strategy": "forever", "interval": "1s"}), &[1.0; 1000], false);
    check(
        json!({"strategy": "forever", "interval": "1s", "max_interval": "4s"}),
        &[1., 2., 4., 4.],
        false,
    );
    let (many, _) = intervals(
        json!({"strategy": "forever", "interval": "1h", "max_interval": "36500d"}),
        100,
    );
    assert!(
        many.iter()
            .all(|seconds| *seconds > 0.0 && *seconds <= Span::MAX.std().as_secs_f64())
    );
}

/// Each failure follows its retry after `lasts`; the instants at which retries are due.
fn dues(spec: Value, zone: Tz, failed_at: &str, lasts: Span) -> Vec<String> {
    let policy = policy(spec).unwrap();
    let mut state = RetryState::default();
    let mut at: Time = failed_at.parse().unwrap();
    let mut found = Vec::new();
    while let Some(due) = next(&policy, &mut state, at, zone, None, 0) {
        found.push(due.to_rfc3339_opts(chrono::SecondsFormat::Secs, true));
        at = due + lasts.chrono();
    }
    found
}

#[test]
fn counts_by_day_in_the_zone() {
    let spec = |more: Value| {
        let mut spec = json!({"strategy": "daily", "per_day": 2, "interval": "10m"});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    let none = Span::ZERO;
    assert_eq!(
        dues(spec(json!({})), Tz::UTC, "2026-11-20T10:00:00Z", none),
        [
            "2026-11-20T10:10:00Z",
            "2026-11-20T10:20:00Z",
            "2026-11-21T00:00:00Z",
            "2026-11-21T00:10:00Z"
        ]
    );
    assert_eq!(
        dues(
            spec(json!({"next_day_at": "08:30", "days": 3})),
            Tz::UTC,
            "2026-11-20T10:00:00Z",
            none
        ),
        [
            "2026-11-20T10:10:00Z",
            "2026-11-20T10:20:00Z",
            "2026-11-21T08:30:00Z",
            "2026-11-21T08:40:00Z",
            "2026-11-22T08:30:00Z",
            "2026-11-22T08:40:00Z"
        ]
    );
    // In Shanghai the day ends at 16:00 UTC.
    assert_eq!(
        dues(spec(json!({})), Tz::Asia__Shanghai, "2026-11-20T10:00:00Z", none),
        [
            "2026-11-20T10:10:00Z",
            "2026-11-20T10:20:00Z",
            "2026-11-20T16:00:00Z",
            "2026-11-20T16:10:00Z"
        ]
    );
    // A retry that would be due after midnight becomes the first one of the next day, at the time of that one.
    assert_eq!(
        dues(spec(json!({})), Tz::UTC, "2026-11-20T23:45:00Z", none),
        ["2026-11-20T23:55:00Z", "2026-11-21T00:00:00Z", "2026-11-21T00:10:00Z"]
    );
    assert_eq!(
        dues(
            spec(json!({"next_day_at": "06:00"})),
            Tz::UTC,
            "2026-11-20T23:55:00Z",
            none
        ),
        ["2026-11-21T06:00:00Z", "2026-11-21T06:10:00Z"]
    );
    let long = json!({"next_day_at": "06:00", "interval": "14h"});
    assert_eq!(
        dues(spec(long), Tz::UTC, "2026-11-20T08:00:00Z", none),
        ["2026-11-20T22:00:00Z", "2026-11-21T06:00:00Z", "2026-11-21T20:00:00Z"]
    );
    // An attempt that lasts into the next day.
    assert_eq!(
        dues(
            spec(json!({"next_day_at": "06:00"})),
            Tz::UTC,
            "2026-11-20T10:00:00Z",
            Span::from_secs(15 * 3600)
        ),
        ["2026-11-20T10:10:00Z", "2026-11-21T06:00:00Z", "2026-11-21T21:10:00Z"]
    );
    // The retry ends at 01:10 of the next day: after the time of that day's first retry, or before it.
    for (next_day_at, second) in [("00:30", "2026-11-21T01:20:00Z"), ("06:00", "2026-11-21T06:00:00Z")] {
        let spec = spec(json!({"next_day_at": next_day_at, "days": 3}));
        assert_eq!(
            dues(spec, Tz::UTC, "2026-11-20T10:00:00Z", Span::from_secs(15 * 3600))[1],
            second
        );
    }
    // The retry ends at 23:00 of the next day, so the interval leads to the day after.
    let day = Span::from_secs(24 * 3600);
    assert_eq!(
        dues(
            spec(json!({"per_day": 1, "interval": "20h"})),
            Tz::UTC,
            "2026-11-20T03:00:00Z",
            day
        ),
        ["2026-11-20T23:00:00Z", "2026-11-22T00:00:00Z"]
    );
    assert_eq!(
        dues(spec(json!({"days": 1})), Tz::UTC, "2026-11-20T10:00:00Z", none).len(),
        2
    );
    // New York's clock goes forward on 2026-03-08; 02:30 does not exist.
    assert_eq!(
        dues(
            spec(json!({"next_day_at": "02:30"})),
            Tz::America__New_York,
            "2026-03-07T17:00:00Z",
            none
        )[2..],
        ["2026-03-08T07:00:00Z", "2026-03-08T07:10:00Z"]
    );
}

#[test]
fn retry_after_and_jitter() {
    let at: Time = "2026-11-20T10:00:00Z".parse().unwrap();
    let due = |spec: Value, wait: Option<u64>, bits: u128| {
        let mut state = RetryState::default();
        let wait = wait.map(|seconds| Wait::Instead(Duration::from_secs(seconds)));
        let due = next(&policy(spec).unwrap(), &mut state, at, Tz::UTC, wait, bits).unwrap();
        assert_eq!(state.retries, 1);
        (due - at).num_milliseconds()
    };
    let fixed = json!({"strategy": "fixed", "retries": 1, "interval": "10s"});
    assert_eq!(due(fixed.clone(), Some(60), 0), 60_000);
    assert_eq!(due(fixed.clone(), Some(1), 0), 1_000);
    assert_eq!(due(fixed, Some(u64::MAX), 0), Span::MAX.millis() as i64);
    let half = 1u128 << 127;
    let share = json!({"strategy": "fixed", "retries": 1, "interval": "10s", "jitter": 0.5});
    assert_eq!(due(share.clone(), None, half), 12_500);
    assert_eq!(due(share, None, 0), 10_000);
    let up_to = json!({"strategy": "fixed", "retries": 1, "interval": "10s", "jitter": "4s"});
    assert_eq!(due(up_to.clone(), None, half), 12_000);
    assert!(due(up_to, None, u128::MAX) < 14_000);
}

/// The seconds until the first retry of a failure that asks for a wait.
fn waits(spec: Value, wait: Wait) -> f64 {
    let at: Time = "2026-11-20T10:00:00Z".parse().unwrap();
    let mut state = RetryState::default();
    let due = next(&policy(spec).unwrap(), &mut state, at, Tz::UTC, Some(wait), 0).unwrap();
    assert_eq!(state.retries, 1);
    (due - at).num_milliseconds() as f64 / 1000.0
}

#[test]
fn a_server_delays_retries_and_never_hastens_them() {
    let asks = |seconds: u64| Wait::AtLeast(Duration::from_secs(seconds));
    for strategy in [
        json!({"strategy": "forever", "interval": "30s"}),
        json!({"strategy": "fixed", "retries": 3, "interval": "30s"}),
        json!({"strategy": "exponential", "retries": 3, "interval": "30s"}),
        json!({"strategy": "daily", "per_day": 3, "interval": "30s"}),
    ] {
        for (asked, waited) in [(0, 30.0), (29, 30.0), (31, 31.0), (3_600, 3_600.0), (u64::MAX, 3_600.0)] {
            assert_eq!(waits(strategy.clone(), asks(asked)), waited, "{strategy} {asked}");
        }
    }
    // The interval of the policy may be longer than what a server can ask for.
    let long = json!({"strategy": "fixed", "retries": 1, "interval": "2h"});
    assert_eq!(waits(long, asks(u64::MAX)), 7_200.0);
    assert_eq!(
        Wait::of(ErrorKind::Http, Some(Duration::ZERO)),
        Some(Wait::AtLeast(Duration::ZERO))
    );
    assert_eq!(
        Wait::of(ErrorKind::Failed, Some(Duration::ZERO)),
        Some(Wait::Instead(Duration::ZERO))
    );
    assert_eq!(Wait::of(ErrorKind::Http, None), None);
}

/// A wait that a failure asks for, and jitter, may lead past midnight: the retry is then the first one of the next day.
#[test]
fn a_daily_retry_that_is_delayed_past_midnight_is_of_the_next_day() {
    let at = |text: &str| text.parse::<Time>().unwrap();
    let daily = |days: u32, next_day_at: &str, jitter: &str| {
        let spec = json!({"strategy": "daily", "per_day": 2, "interval": "1m", "days": days, "next_day_at": next_day_at,
                          "jitter": jitter});
        policy(spec).unwrap()
    };
    let late = at("2026-11-20T23:50:00Z");
    let asks = |seconds: u64| Some(Wait::Instead(Duration::from_secs(seconds)));
    let half = 1u128 << 127;
    for (next_day_at, jitter, wait, due, last) in [
        (
            "00:00",
            "0s",
            asks(1_800),
            "2026-11-21T00:20:00Z",
            "2026-11-21T00:21:00Z",
        ),
        (
            "06:00",
            "0s",
            asks(1_800),
            "2026-11-21T06:00:00Z",
            "2026-11-21T06:01:00Z",
        ),
        ("00:00", "1h", None, "2026-11-21T00:21:00Z", "2026-11-21T00:52:00Z"),
    ] {
        let (policy, mut state) = (daily(2, next_day_at, jitter), RetryState::default());
        let first = next(&policy, &mut state, late, Tz::UTC, wait, half);
        assert_eq!(first, Some(at(due)));
        let second = next(&policy, &mut state, at(due), Tz::UTC, None, half);
        assert_eq!(second, Some(at(last)));
        let third = next(&policy, &mut state, at(last), Tz::UTC, None, half);
        assert_eq!(third, None, "two on that day, and it is the last one");
    }
    let none_is_left = next(
        &daily(1, "00:00", "0s"),
        &mut RetryState::default(),
        late,
        Tz::UTC,
        asks(1_800),
        0,
    );
    assert_eq!(none_is_left, None);
}

#[test]
fn retries_without_end_have_a_pause() {
    let asks = |millis: u64| Wait::Instead(Duration::from_millis(millis));
    let forever = |interval: &str| json!({"strategy": "forever", "interval": interval});
    for (interval, asked, waited) in [
        ("30s", 0, 1.0),
        ("30s", 999, 1.0),
        ("30s", 2_000, 2.0),
        ("30s", 60_000, 60.0),
        ("50ms", 0, 0.05),
        ("50ms", 10, 0.05),
        ("50ms", 100, 0.1),
    ] {
        assert_eq!(waits(forever(interval), asks(asked)), waited, "{interval} {asked}");
    }
    // Those that end may follow at once.
    for strategy in [
        json!({"strategy": "fixed", "retries": 3, "interval": "30s"}),
        json!({"strategy": "daily", "per_day": 3, "interval": "30s"}),
    ] {
        assert_eq!(waits(strategy, asks(0)), 0.0);
    }
}

#[test]
fn refuses() {
    for (spec, expect) in [
        (json!({"strategy": "fixed"}), "the strategy `fixed` needs `retries`"),
        (json!({"strategy": "daily"}), "the strategy `daily` needs `per_day`"),
        (
            json!({"strategy": "forever", "retries": 3}),
            "/retries: the strategy `forever` cannot have `retries`",
        ),
        (
            json!({"strategy": "fixed", "retries": 3, "per_day": 1}),
            "/per_day: the strategy `fixed` cannot have `per_day`",
        ),
        (
            json!({"strategy": "fixed", "retries": 9_000_000}),
            "/retries: `retries` must be at most 1000000",
        ),
        (
            json!({"strategy": "forever", "interval": "0s"}),
            "/interval: the strategy `forever` needs an `interval` longer than zero",
        ),
        (
            json!({"strategy": "exponential", "retries": 1, "interval": "1m", "max_interval": "1s"}),
            "/max_interval: `max_interval` must not be shorter than `interval`",
        ),
        (
            json!({"strategy": "daily", "per_day": 1, "days": 0}),
            "/days: `days` must be at least 1",
        ),
        (
            json!({"strategy": "daily", "per_day": 1, "next_day_at": "25:00"}),
            "/next_day_at: `25:00` is not a valid time of day; write `HH:MM` or `HH:MM:SS`",
        ),
        (
            json!({"strategy": "fixed", "retries": 1, "jitter": 2}),
            "/jitter: `jitter` must be a fraction of the interval from 0 to 1, or a duration such as `5s`",
        ),
    ] {
        assert_eq!(policy(spec.clone()), Err(expect.to_owned()), "{spec}");
    }
}
