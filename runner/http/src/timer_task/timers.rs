//! The timers of a tree's root, and the schedules that they mean.

use chrono_tz::Tz;
use heddle_domain::Time;
use heddle_domain::schedule::local::{parse_moment, parse_zone};
use heddle_domain::schedule::{Schedule, with_legal_cron_starts};
use heddle_domain::spec::{ScheduleSpec, whole_number};
use serde_json::{Map, Value, json};

use super::fields::{count, invalid, is_enabled, span, text};
use super::{TIMER_LIST, TIMERS};
use crate::problem::Problem;

/// How many timers a root may have.
const TIMERS_MAX: usize = 100;

/// The timers of a node.
pub(super) fn list(fields: &Map<String, Value>) -> Result<Vec<&Map<String, Value>>, Problem> {
    let list = match fields.get(TIMERS) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Object(conf)) => conf.get(TIMER_LIST),
        Some(_) => return Err(invalid(TIMERS, "expected an object".to_owned())),
    };
    let place = format!("{TIMERS}/{TIMER_LIST}");
    match list {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(timers)) if timers.len() <= TIMERS_MAX => timers
            .iter()
            .enumerate()
            .map(|(index, timer)| {
                timer
                    .as_object()
                    .ok_or_else(|| invalid(&format!("{place}/{index}"), "a timer must be an object".to_owned()))
            })
            .collect(),
        Some(_) => Err(invalid(
            &place,
            format!("expected a list of at most {TIMERS_MAX} timers"),
        )),
    }
}

/// A timer as it is understood.
pub(super) struct Read {
    /// The schedule that it means.
    pub(super) schedule: Value,
    /// It never fires any more.
    pub(super) is_over: bool,
}

/// The schedule that a timer means. Its spans are milliseconds; its times are those of `zone` unless they say otherwise.
/// A timer whose window is over, or that has had its last instant, is kept, switched off. A `stored` timer may have what
/// is refused today.
pub(super) fn schedule(timer: &Map<String, Value>, zone: Tz, now: Time, stored: bool) -> Result<Read, Problem> {
    let mut schedule = written(timer, stored)?;
    // What cannot be read here is refused, with its place, where the group's spec is.
    let spec = serde_json::from_value::<ScheduleSpec>(Value::Object(schedule.clone())).ok();
    if let (Some(spec), false) = (&spec, stored) {
        check_window(spec, zone)?;
    }
    let is_over = spec.is_some_and(|spec| is_over(&spec, zone, now));
    if is_over {
        schedule.insert("enabled".into(), json!(false));
    }
    Ok(Read {
        schedule: Value::Object(schedule),
        is_over,
    })
}

fn is_over(spec: &ScheduleSpec, zone: Tz, now: Time) -> bool {
    let (_, ends) = window(spec, zone);
    ends.is_some_and(|ends| ends <= now) || Schedule::compile(spec, zone, now).is_ok_and(|compiled| !compiled.fires())
}

/// The start and the end of a schedule's window, as far as they can be read.
fn window(spec: &ScheduleSpec, zone: Tz) -> (Option<Time>, Option<Time>) {
    let zone = spec.timezone.as_deref().map_or(Ok(zone), parse_zone).unwrap_or(zone);
    let at = |text: &Option<String>| text.as_deref().and_then(|text| parse_moment(text, zone).ok());
    (at(&spec.starts_at), at(&spec.ends_at))
}

/// Refuses a window that ends before it starts. If it is in the past, the schedule would be kept, switched off.
fn check_window(spec: &ScheduleSpec, zone: Tz) -> Result<(), Problem> {
    match window(spec, zone) {
        (Some(starts), Some(ends)) if ends <= starts => Err(invalid(
            "endDateTime",
            "`endDateTime` must be after `startDateTime`; the timer never fires".to_owned(),
        )),
        _ => Ok(()),
    }
}

/// The first of two durations that is given.
fn first_span(timer: &Map<String, Value>, fields: [&str; 2], stored: bool) -> Result<Option<String>, Problem> {
    match span(timer, fields[0], stored)? {
        None => span(timer, fields[1], stored),
        found => Ok(found),
    }
}

fn written(timer: &Map<String, Value>, stored: bool) -> Result<Map<String, Value>, Problem> {
    let missing = |field: &str, kind: i64| invalid(field, format!("a timer of type {kind} needs `{field}`"));
    let (kind_field, kind) = match (count(timer, "timerType")?, count(timer, "type")?) {
        (None, Some(kind)) => ("type", Some(kind)),
        (kind, _) => ("timerType", kind),
    };
    let mut schedule = Map::new();
    match kind {
        Some(1) => {
            let cron = text(timer, "cron").ok_or_else(|| missing("cron", 1))?;
            schedule.insert("cron".into(), json!(with_legal_cron_starts(cron)));
        }
        Some(2) => {
            let period = span(timer, "period", stored)?.ok_or_else(|| missing("period", 2))?;
            schedule.insert("every".into(), json!(period));
        }
        Some(3) => {
            let delay = first_span(timer, ["delay", "period"], stored)?.ok_or_else(|| missing("delay", 3))?;
            schedule.insert("after".into(), json!(delay));
        }
        Some(4) => {
            let delay = first_span(timer, ["delay", "initDelay"], stored)?.ok_or_else(|| missing("delay", 4))?;
            schedule.insert("once".into(), json!({"delay": delay}));
        }
        _ => {
            return Err(invalid(
                kind_field,
                format!("`{kind_field}` must be 1 (cron), 2 (fixed rate), 3 (fixed delay) or 4 (one-shot delay)"),
            ));
        }
    }
    if matches!(kind, Some(2 | 3))
        && let Some(initial) = span(timer, "initDelay", stored)?
    {
        schedule.insert("initial_delay".into(), json!(initial));
    }
    for (field, ours) in [("startDateTime", "starts_at"), ("endDateTime", "ends_at")] {
        if let Some(at) = moment(timer, field)? {
            schedule.insert(ours.into(), json!(at));
        }
    }
    if let Some(zone) = text(timer, "timezone").or_else(|| text(timer, "timeZone")) {
        schedule.insert("timezone".into(), json!(zone));
    }
    if !is_enabled(timer)? {
        schedule.insert("enabled".into(), json!(false));
    }
    Ok(schedule)
}

/// A time as text, or as milliseconds since 1970.
fn moment(timer: &Map<String, Value>, field: &str) -> Result<Option<String>, Problem> {
    match timer.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(at)) => Ok(Some(at.trim().to_owned()).filter(|at| !at.is_empty())),
        Some(Value::Number(millis)) => whole_number(millis)
            .and_then(chrono::DateTime::from_timestamp_millis)
            .map(|at| Some(at.to_rfc3339()))
            .ok_or_else(|| invalid(field, "the time does not exist".to_owned())),
        Some(other) => Err(invalid(field, format!("expected a time, not {other}"))),
    }
}
