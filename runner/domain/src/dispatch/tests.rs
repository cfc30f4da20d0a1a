use serde_json::json;

use super::*;
use crate::spec::bounds::check_priority;

fn time(text: &str) -> Time {
    text.parse().unwrap()
}

fn offer(spec: Value) -> Result<Offer, String> {
    let spec: OfferSpec = crate::spec::read(&spec).map_err(|faults| faults.to_string())?;
    Offer::compile(spec, time("2026-11-20T08:00:00Z")).map_err(|faults| {
        faults
            .0
            .iter()
            .map(|fault| fault.pointer.clone())
            .collect::<Vec<_>>()
            .join(" ")
    })
}

fn check_first(spec: Value, from: &str, expect: Option<&str>) {
    let offer = offer(spec.clone()).unwrap();
    assert_eq!(offer.first_from(time(from)), expect.map(time), "{spec} from {from}");
}

#[test]
fn a_group_is_no_user() {
    for (given, uid) in [
        ("eve", Some("eve")),
        ("uid_eve", Some("eve")),
        ("my_gid_", Some("my_gid_")),
    ] {
        assert_eq!(bare_uid(given).ok(), uid);
    }
    for wrong in ["gid_x", "gid_", "uid_gid_x", "", "uid_", "a\nb"] {
        assert!(bare_uid(wrong).is_err(), "{wrong:?}");
    }
    for (audience, polls) in [
        ("uid_eve", true),
        ("gid_x", true),
        ("uid_gid_x", false),
        ("uid_uid_x", false),
    ] {
        assert_eq!(check_user(audience).is_ok(), polls, "{audience}");
    }
}

/// The bounds of runs' priorities; a stored offer beyond them is still given out.
#[test]
fn a_priority_has_bounds() {
    for (priority, is_new) in [(-1_001, false), (-1_000, true), (1_000, true), (1_001, false)] {
        assert_eq!(check_priority(priority).is_ok(), is_new, "{priority}");
        let stored = offer(json!({"audience": "gid_a", "priority": priority}));
        assert_eq!(stored.map(|offer| offer.priority), Ok(priority));
    }
}

/// The bound of a run's params; a stored offer beyond it is still given out.
#[test]
fn params_have_a_bound() {
    let frame = r#"{"a":""}"#.len();
    for (bytes, is_new) in [(PARAMS_BYTES_MAX, true), (PARAMS_BYTES_MAX + 1, false)] {
        let params = json!({"a": "x".repeat(bytes - frame)});
        assert_eq!(check_params(params.as_object().unwrap()).is_ok(), is_new, "{bytes}");
        let stored = offer(json!({"audience": "gid_a", "params": params.clone()}));
        assert_eq!(stored.map(|offer| Value::Object(offer.params)), Ok(params));
    }
}

#[test]
fn occurrences_are_reckoned() {
    let once = json!({"kind": "once", "audience": "gid_a", "starts_at": "2026-11-20T09:00:00Z"});
    check_first(once.clone(), "2026-11-20T09:00:00Z", Some("2026-11-20T09:00:00Z"));
    check_first(once, "2026-11-20T09:00:01Z", None);
    let every = json!({"audience": "gid_a", "anchor": "2026-11-20T09:00:00Z", "every": "5m"});
    for (from, expect) in [
        ("2020-01-01T00:00:00Z", "2026-11-20T09:00:00Z"),
        ("2026-11-20T09:00:00Z", "2026-11-20T09:00:00Z"),
        ("2026-11-20T09:00:00.000001Z", "2026-11-20T09:05:00Z"),
        ("2026-11-20T09:05:00Z", "2026-11-20T09:05:00Z"),
        ("2026-12-20T09:07:00Z", "2026-12-20T09:10:00Z"),
    ] {
        check_first(every.clone(), from, Some(expect));
    }
    let ends = json!({"audience": "gid_a", "anchor": "2026-11-20T09:00:00Z", "every": "5m",
                          "ends_at": "2026-11-20T09:05:00Z"});
    check_first(ends, "2026-11-20T09:01:00Z", None);
}

#[test]
fn days_follow_the_clock_of_their_zone() {
    let daily = json!({"audience": "gid_a", "at": "02:30", "timezone": "America/New_York",
                           "starts_at": "2026-03-07T00:00:00Z"});
    // 02:30 on 8 March 2026 does not exist there: the first instant after the gap is 03:00 EDT.
    check_first(daily.clone(), "2026-03-08T00:00:00Z", Some("2026-03-08T07:00:00Z"));
    check_first(daily, "2026-03-08T07:00:00.000001Z", Some("2026-03-09T06:30:00Z"));
    let twice = json!({"audience": "gid_a", "at": "01:30", "every_days": 2, "timezone": "America/New_York",
                           "starts_at": "2026-10-30"});
    // 01:30 on 1 November 2026 is shown twice: once, the first time. Every second day from 30 October.
    check_first(twice.clone(), "2026-10-31T00:00:00Z", Some("2026-11-01T05:30:00Z"));
    check_first(twice, "2026-11-01T05:30:00.000001Z", Some("2026-11-03T06:30:00Z"));
}

#[test]
fn a_stock_is_a_whole_number_however_it_is_written() {
    for (given, stock) in [
        (json!(2), Ok(Some(2))),
        (json!(2.0), Ok(Some(2))),
        (json!(1e3), Ok(Some(1_000))),
        (json!("each"), Ok(None)),
    ] {
        assert_eq!(parse_stock(Some(&given)), stock, "{given}");
    }
    for wrong in [
        json!(0.0),
        json!(1.5),
        json!(-1.0),
        json!(1e300),
        json!(u64::MAX),
        json!("2"),
    ] {
        let said = parse_stock(Some(&wrong)).unwrap_err();
        assert!(said.contains("a whole number from 1 to"), "{wrong}: {said}");
    }
}

#[test]
fn what_is_wrong_is_named() {
    for (spec, pointers) in [
        (json!({"audience": "team"}), "/audience"),
        (json!({"audience": "gid_"}), "/audience"),
        (json!({"audience": "gid_a", "dispatch_times": 0}), "/dispatch_times"),
        (json!({"audience": "gid_a", "dispatch_times": -3}), "/dispatch_times"),
        (json!({"audience": "gid_a", "dispatch_times": 1.5}), "/dispatch_times"),
        (json!({"audience": "gid_a", "dispatch_times": "all"}), "/dispatch_times"),
        (json!({"audience": "gid_a", "kind": "interval"}), "/every"),
        (json!({"audience": "gid_a", "kind": "interval", "every": "0"}), "/every"),
        (json!({"audience": "gid_a", "kind": "daily"}), "/at"),
        (json!({"audience": "gid_a", "kind": "daily", "at": "25:00"}), "/at"),
        (
            json!({"audience": "gid_a", "kind": "daily", "at": "08:00", "every_days": 0}),
            "/every_days",
        ),
        (
            json!({"audience": "gid_a", "kind": "daily", "at": "08:00", "timezone": "Mars"}),
            "/timezone",
        ),
        (json!({"audience": "gid_a", "kind": "once", "every": "5m"}), "/every"),
        (json!({"audience": "gid_a", "starts_at": "soon"}), "/starts_at"),
        (
            json!({"audience": "gid_a", "dispatch_times": "each", "mode": "repeat"}),
            "/mode",
        ),
        (json!({"audience": "gid_a", "max_hold": "0"}), "/max_hold"),
        (
            json!({"audience": "gid_a", "starts_at": "2026-01-02", "ends_at": "2026-01-01"}),
            "/ends_at",
        ),
    ] {
        assert_eq!(offer(spec.clone()).unwrap_err(), pointers, "{spec}");
    }
    assert!(
        offer(json!({"audience": "gid_a", "every": 0}))
            .unwrap_err()
            .starts_with("/every")
    );
    assert!(
        offer(json!({"audience": "gid_a", "stok": 1}))
            .unwrap_err()
            .starts_with("/stok")
    );
}

#[test]
fn windows_begin_with_what_was_finished_last() {
    let now = time("2026-11-20T12:00:00Z");
    let horizon = Span::from_secs(3_600);
    for (last, from) in [
        (None, "2026-11-20T11:00:00Z"),
        (Some("2026-11-20T11:30:00Z"), "2026-11-20T11:30:00Z"),
        (Some("2026-11-10T11:30:00Z"), "2026-11-20T11:00:00Z"),
    ] {
        assert_eq!(
            Window::new(last.map(time), now, horizon),
            Window {
                from: time(from),
                to: now
            }
        );
    }
}

#[test]
fn a_hold_ends_once() {
    use AssignmentState::*;
    for before in AssignmentState::ALL {
        for after in AssignmentState::ALL {
            assert_eq!(
                after.follows(before),
                before == Assigned && after != Assigned,
                "{before:?} {after:?}"
            );
        }
    }
    for state in AssignmentState::ALL {
        assert_eq!(AssignmentState::from_number(state.number()), Some(state));
        assert_eq!(state.as_str().parse(), Ok(state));
    }
}
