//! When a failed attempt is tried again.
//!
//! A [`Policy`] is compiled from what people write ([`RetrySpec`]); a [`RetryState`] is what a task run remembers
//! between attempts; [`next`] is the decision. `n` retries are `n + 1` attempts. Attempts that are lost with their
//! nodes do not count as retries, and are not handled here.

use std::time::Duration;

use chrono::{Datelike, NaiveDate, NaiveTime};
use chrono_tz::Tz;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::chance::fraction;
use crate::schedule::local::{parse_time_of_day, resolve, wall_clock};
use crate::spec::{RetrySpec, RetryStrategy};
use crate::state::ErrorKind;
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

/// The longest that the `Retry-After` of a server delays a retry; a server that asks for more is asked again by then.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(3_600);
/// The shortest wait between the retries of `forever` that a script or a worker can ask for, if the interval of the
/// policy is not shorter: retries that never end must not follow each other without a pause.
const ENDLESS_WAIT_MIN: Span = Span::from_secs(1);

/// The wait that came with a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// A script or a worker knows when the next try is useful: in place of the policy's interval.
    Instead(Duration),
    /// The `Retry-After` of a server, which is a stranger: the policy's interval, and not before this has passed, up to
    /// [`RETRY_AFTER_MAX`].
    AtLeast(Duration),
}

impl Wait {
    /// What a failure of this kind means by its wait: those of HTTP come from the called server.
    pub fn of(kind: ErrorKind, asked: Option<Duration>) -> Option<Self> {
        asked.map(|wait| match kind {
            ErrorKind::Http => Self::AtLeast(wait),
            _ => Self::Instead(wait),
        })
    }
}

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
    /// The shortest wait that may replace its interval.
    fn wait_min(&self) -> Span {
        match self.strategy {
            Strategy::Counted { retries: None, .. } => self.interval.min(ENDLESS_WAIT_MIN),
            Strategy::Counted { .. } | Strategy::Daily { .. } => Span::ZERO,
        }
    }

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
/// A retry is counted in `state` each time, also if the failure asked for a `wait`. Jitter is added to either. A daily retry
/// that is delayed past midnight by one of these is counted on the day on which it is due.
pub fn next(
    policy: &Policy,
    state: &mut RetryState,
    failed_at: Time,
    zone: Tz,
    wait: Option<Wait>,
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
    let after = |wait: Span| later(failed_at, wait);
    let due = match wait {
        None => due,
        Some(Wait::Instead(wait)) => after(Span::from_std(wait).max(policy.wait_min())),
        Some(Wait::AtLeast(wait)) => due.max(after(Span::from_std(wait.min(RETRY_AFTER_MAX)))),
    };
    let spread = match policy.jitter {
        Jitter::Share(share) => Span::between(failed_at, due).micros() as f64 * share,
        Jitter::UpTo(most) => most.micros() as f64,
    };
    let due = later(due, Span::from_micros((spread * fraction(random_bits)) as u64));
    match &policy.strategy {
        Strategy::Counted { .. } => Some(due),
        Strategy::Daily { days, next_day_at, .. } => on_its_day(state, *days, *next_day_at, due, zone),
    }
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

/// The number of the day of an instant.
fn day_of(zone: Tz, at: Time) -> i32 {
    wall_clock(zone, at).date().num_days_from_ce()
}

/// The instant of the first retry of a day.
fn first_of(zone: Tz, day: i32, next_day_at: NaiveTime) -> Option<Time> {
    NaiveDate::from_num_days_from_ce_opt(day).map(|date| resolve(zone, date.and_time(next_day_at)))
}

/// When a daily retry is tried that was counted, and then delayed until `due`. If that is on a later day, it is the first one
/// of that day, and not before the time of that. `None`: no day is left.
fn on_its_day(state: &mut RetryState, days: u32, next_day_at: NaiveTime, due: Time, zone: Tz) -> Option<Time> {
    let day = day_of(zone, due);
    if state.day.is_none_or(|counted| day <= counted) {
        return Some(due);
    }
    if state.days >= days {
        return None;
    }
    state.days += 1;
    state.day = Some(day);
    state.today = 1;
    Some(first_of(zone, day, next_day_at).map_or(due, |first| first.max(due)))
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
    let day_of = |at: Time| day_of(zone, at);
    let first_of = |day: i32| first_of(zone, day, next_day_at);
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
mod tests;
