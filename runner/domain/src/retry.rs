//! When a failed attempt is tried again.
//!
//! A [`Policy`] is compiled from what people write ([`RetrySpec`]); a [`RetryState`] is what a task run remembers
//! between attempts; [`next`] is the decision. `n` retries are `n + 1` attempts. Attempts that are lost with their
//! nodes do not count as retries, and are not handled here.

use chrono::{Datelike, NaiveDate, NaiveTime};
use chrono_tz::Tz;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::chance::fraction;
use crate::schedule::local::{parse_time_of_day, resolve, wall_clock};
use crate::spec::{RetrySpec, RetryStrategy};
use crate::{Fault, Span, Time};

/// The interval of a policy that names none.
pub const INTERVAL_DEFAULT: Span = Span::from_secs(10);
/// The longest interval that doubling leads to, where the policy names none.
pub const MAX_INTERVAL_DEFAULT: Span = Span::from_secs(86_400);
/// The retries at the interval before it doubles, where `fixed_then_exponential` names none.
pub const FIXED_DEFAULT: u32 = 3;
/// For how many days `daily` retries, where it does not say.
pub const DAYS_DEFAULT: u32 = 2;
/// The most retries (in all, or a day) and the most days.
pub const RETRIES_MAX: u32 = 1_000_000;

/// A retry policy, checked and complete.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    strategy: Strategy,
    interval: Span,
    jitter: Jitter,
}

#[derive(Clone, Debug, PartialEq)]
enum Strategy {
    /// Retry `k` (from 0) comes after the interval, doubled once for each retry from `fixed - 1` on, up to `max`.
    Counted {
        retries: Option<u32>,
        growth: Option<Growth>,
    },
    Daily {
        per_day: u32,
        days: u32,
        next_day_at: NaiveTime,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Growth {
    /// How many retries come at the plain interval.
    fixed: u32,
    max: Span,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Jitter {
    Share(f64),
    UpTo(Span),
}

/// The state of a task run's retries. It is a part of the stored progress of runs, in postcard: never add, remove, reorder
/// or change a field (`runner/domain/src/run/format.rs`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RetryState {
    pub retries: u32,
    /// `daily`: the day that retries are counted on, as days since the common era began.
    pub day: Option<i32>,
    /// `daily`: which day of retries it is, from 1.
    pub days: u32,
    /// `daily`: how many retries that day has had.
    pub today: u32,
}

impl Policy {
    /// Checks a spec. A fault's pointer is relative to the spec.
    #[expect(clippy::too_many_lines, reason = "a list: the fields of each strategy")]
    pub fn compile(spec: &RetrySpec) -> Result<Self, Fault> {
        use RetryStrategy::*;
        let allowed: &[&str] = match spec.strategy {
            Fixed => &["retries"],
            Exponential => &["retries", "max_interval"],
            FixedThenExponential => &["retries", "max_interval", "fixed"],
            Forever => &["max_interval"],
            Daily => &["per_day", "days", "next_day_at"],
        };
        let given = [
            ("retries", spec.retries.is_some()),
            ("max_interval", spec.max_interval.is_some()),
            ("fixed", spec.fixed.is_some()),
            ("per_day", spec.per_day.is_some()),
            ("days", spec.days.is_some()),
            ("next_day_at", spec.next_day_at.is_some()),
        ];
        let word = strategy_word(spec.strategy);
        for (field, is_given) in given {
            if is_given && !allowed.contains(&field) {
                return Err(Fault::at(
                    format!("/{field}"),
                    format!("the strategy `{word}` cannot have `{field}`"),
                ));
            }
        }
        let interval = spec.interval.unwrap_or(INTERVAL_DEFAULT);
        if interval.is_zero() && spec.strategy == Forever {
            return Err(Fault::at(
                "/interval",
                "the strategy `forever` needs an `interval` longer than zero",
            ));
        }
        if spec.max_interval.is_some_and(|max| max < interval) {
            return Err(Fault::at(
                "/max_interval",
                "`max_interval` must not be shorter than `interval`",
            ));
        }
        let max = spec.max_interval.unwrap_or(MAX_INTERVAL_DEFAULT.max(interval));
        let required = |field: &str, value: Option<u32>| {
            let value = value.ok_or_else(|| Fault::at("", format!("the strategy `{word}` needs `{field}`")))?;
            at_most(field, value)
        };
        let strategy = match spec.strategy {
            Fixed => Strategy::Counted {
                retries: Some(required("retries", spec.retries)?),
                growth: None,
            },
            Exponential => Strategy::Counted {
                retries: Some(required("retries", spec.retries)?),
                growth: Some(Growth { fixed: 1, max }),
            },
            FixedThenExponential => Strategy::Counted {
                retries: Some(required("retries", spec.retries)?),
                growth: Some(Growth {
                    fixed: at_most("fixed", spec.fixed.unwrap_or(FIXED_DEFAULT))?,
                    max,
                }),
            },
            Forever => Strategy::Counted {
                retries: None,
                growth: spec.max_interval.map(|max| Growth { fixed: 1, max }),
            },
            Daily => {
                let days = at_most("days", spec.days.unwrap_or(DAYS_DEFAULT))?;
                if days == 0 {
                    return Err(Fault::at("/days", "`days` must be at least 1"));
                }
                let next_day_at = match spec.next_day_at.as_deref() {
                    Some(text) => parse_time_of_day(text).map_err(|detail| Fault::at("/next_day_at", detail))?,
                    None => NaiveTime::MIN,
                };
                Strategy::Daily {
                    per_day: required("per_day", spec.per_day)?,
                    days,
                    next_day_at,
                }
            }
        };
        Ok(Self {
            strategy,
            interval,
            jitter: compile_jitter(spec.jitter.as_ref())?,
        })
    }
}

fn at_most(field: &str, value: u32) -> Result<u32, Fault> {
    if value > RETRIES_MAX {
        return Err(Fault::at(
            format!("/{field}"),
            format!("`{field}` must be at most {RETRIES_MAX}"),
        ));
    }
    Ok(value)
}

fn strategy_word(strategy: RetryStrategy) -> &'static str {
    match strategy {
        RetryStrategy::Fixed => "fixed",
        RetryStrategy::Exponential => "exponential",
        RetryStrategy::FixedThenExponential => "fixed_then_exponential",
        RetryStrategy::Forever => "forever",
        RetryStrategy::Daily => "daily",
    }
}

fn compile_jitter(jitter: Option<&Value>) -> Result<Jitter, Fault> {
    let wrong = || {
        Fault::at(
            "/jitter",
            "`jitter` must be a fraction of the interval from 0 to 1, or a duration such as `5s`",
        )
    };
    match jitter {
        None | Some(Value::Null) => Ok(Jitter::Share(0.0)),
        Some(Value::Number(number)) => match number.as_f64() {
            Some(share) if (0.0..=1.0).contains(&share) => Ok(Jitter::Share(share)),
            _ => Err(wrong()),
        },
        Some(Value::String(text)) => text
            .parse()
            .map(Jitter::UpTo)
            .map_err(|error| Fault::at("/jitter", error.to_string())),
        Some(_) => Err(wrong()),
    }
}

/// When an attempt that failed at `failed_at` is tried again; `None` if its retries are exhausted.
///
/// A retry is counted in `state` each time. `retry_after`, which the script or the other side asked for, replaces the
/// policy's interval but still uses up a retry. Jitter is added to either.
pub fn next(
    policy: &Policy,
    state: &mut RetryState,
    failed_at: Time,
    zone: Tz,
    retry_after: Option<std::time::Duration>,
    random_bits: u128,
) -> Option<Time> {
    let due = match &policy.strategy {
        Strategy::Counted { retries, growth } => {
            if retries.is_some_and(|retries| state.retries >= retries) {
                return None;
            }
            later(failed_at, interval_of_retry(policy.interval, *growth, state.retries))
        }
        Strategy::Daily {
            per_day,
            days,
            next_day_at,
        } => next_daily(state, policy.interval, *per_day, *days, *next_day_at, failed_at, zone)?,
    };
    state.retries = state.retries.saturating_add(1);
    let due = retry_after.map_or(due, |wait| later(failed_at, Span::from_std(wait)));
    let spread = match policy.jitter {
        Jitter::Share(share) => Span::between(failed_at, due).micros() as f64 * share,
        Jitter::UpTo(most) => most.micros() as f64,
    };
    Some(later(due, Span::from_micros((spread * fraction(random_bits)) as u64)))
}

fn interval_of_retry(interval: Span, growth: Option<Growth>, retry: u32) -> Span {
    let Some(Growth { fixed, max }) = growth else {
        return interval;
    };
    // `fixed` retries at the interval, then 2, 4, 8 times; past 2^62 only the bound counts.
    let doublings = (u64::from(retry) + 1).saturating_sub(u64::from(fixed)).min(62);
    interval.times(1 << doublings).min(max)
}

fn later(at: Time, span: Span) -> Time {
    at.checked_add_signed(span.chrono()).unwrap_or(at)
}

fn next_daily(
    state: &mut RetryState,
    interval: Span,
    per_day: u32,
    days: u32,
    next_day_at: NaiveTime,
    failed_at: Time,
    zone: Tz,
) -> Option<Time> {
    let day_of = |at: Time| wall_clock(zone, at).date().num_days_from_ce();
    let first_of =
        |day: i32| NaiveDate::from_num_days_from_ce_opt(day).map(|date| resolve(zone, date.and_time(next_day_at)));
    if per_day == 0 {
        return None;
    }
    let today = day_of(failed_at);
    let mut day = *state.day.get_or_insert(today);
    if state.days == 0 {
        state.days = 1;
    }
    let after_interval = later(failed_at, interval);
    let due;
    if today <= day && state.today < per_day && day_of(after_interval) <= day {
        due = after_interval;
    } else {
        // The day's retries are exhausted, or the day is over now or will be before the next retry: that one is on the next
        // day, if any day is left.
        if state.days >= days {
            return None;
        }
        day = today.max(day + 1);
        due = match first_of(day)? {
            first if first > failed_at => first,
            // The attempt ended after the time of that day's first retry.
            _ if day_of(after_interval) == day => after_interval,
            _ => {
                day += 1;
                first_of(day)?
            }
        };
        state.days += 1;
        state.today = 0;
    }
    state.day = Some(day);
    state.today += 1;
    Some(due)
}

#[cfg(test)]
mod tests {
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
            let wait = wait.map(std::time::Duration::from_secs);
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
}
