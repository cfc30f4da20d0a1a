//! The timers of a tree's root, and the schedules that they mean.

use chrono_tz::Tz;
use heddle_domain::Time;
use heddle_domain::schedule::local::{parse_moment, parse_zone};
use heddle_domain::schedule::{Schedule, with_legal_cron_starts};
use heddle_domain::spec::ScheduleSpec;
use serde_json::{Map, Value, json};

use super::fields::{count, invalid, is_enabled, millis, text};
use crate::problem::Problem;

/// How many timers a root may have.
const TIMERS_MAX: usize = 100;

/// The timers of a node.
pub(super) fn list(fields: &Map<String, Value>) -> Result<Vec<&Map<String, Value>>, Problem> {
    let list = match fields.get("taskScheduleConf") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Object(conf)) => conf.get("timerList"),
        Some(_) => return Err(invalid("taskScheduleConf", "expected an object".to_owned())),
    };
    match list {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(timers)) if timers.len() <= TIMERS_MAX => timers
            .iter()
            .map(|timer| {
                timer
                    .as_object()
                    .ok_or_else(|| invalid("taskScheduleConf/timerList", "a timer must be an object".to_owned()))
            })
            .collect(),
        Some(_) => Err(invalid(
            "taskScheduleConf/timerList",
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
/// A timer whose window is over, or that has had its last instant, is kept, switched off.
pub(super) fn schedule(timer: &Map<String, Value>, zone: Tz, now: Time) -> Result<Read, Problem> {
    let mut schedule = written(timer)?;
    // What cannot be read here is refused, with its place, where the group's spec is.
    let is_over = serde_json::from_value::<ScheduleSpec>(Value::Object(schedule.clone()))
        .is_ok_and(|spec| is_over(&spec, zone, now));
    if is_over {
        schedule.insert("enabled".into(), json!(false));
    }
    Ok(Read {
        schedule: Value::Object(schedule),
        is_over,
    })
}

fn is_over(spec: &ScheduleSpec, zone: Tz, now: Time) -> bool {
    let zone = spec.timezone.as_deref().map_or(Ok(zone), parse_zone).unwrap_or(zone);
    let ends = spec.ends_at.as_deref().and_then(|text| parse_moment(text, zone).ok());
    ends.is_some_and(|ends| ends <= now) || Schedule::compile(spec, zone, now).is_ok_and(|compiled| !compiled.fires())
}

fn written(timer: &Map<String, Value>) -> Result<Map<String, Value>, Problem> {
    let missing = |field: &str, kind: i64| invalid(field, format!("a timer of type {kind} needs `{field}`"));
    let kind = count(timer, "timerType")?.or(count(timer, "type")?);
    let mut schedule = Map::new();
    let initial = millis(timer, "initDelay")?;
    match kind {
        Some(1) => {
            let cron = text(timer, "cron").ok_or_else(|| missing("cron", 1))?;
            schedule.insert("cron".into(), json!(with_legal_cron_starts(cron)));
        }
        Some(2) => {
            let period = millis(timer, "period")?.ok_or_else(|| missing("period", 2))?;
            schedule.insert("every".into(), json!(period));
        }
        Some(3) => {
            let delay = millis(timer, "delay")?
                .or(millis(timer, "period")?)
                .ok_or_else(|| missing("delay", 3))?;
            schedule.insert("after".into(), json!(delay));
        }
        Some(4) => {
            let delay = millis(timer, "delay")?
                .or(initial.clone())
                .ok_or_else(|| missing("delay", 4))?;
            schedule.insert("once".into(), json!({"delay": delay}));
        }
        _ => {
            return Err(invalid(
                "timerType",
                "`timerType` must be 1 (cron), 2 (fixed rate), 3 (fixed delay) or 4 (one-shot delay)".to_owned(),
            ));
        }
    }
    if matches!(kind, Some(2 | 3))
        && let Some(initial) = initial
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
        Some(Value::Number(millis)) => millis
            .as_i64()
            .and_then(chrono::DateTime::from_timestamp_millis)
            .map(|at| Some(at.to_rfc3339()))
            .ok_or_else(|| invalid(field, "the time does not exist".to_owned())),
        Some(other) => Err(invalid(field, format!("expected a time, not {other}"))),
    }
}
