//! JSON into template values and back, and the values that only templates have: instants and upstream outputs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use chrono::{DateTime, Datelike, SecondsFormat, Timelike, Utc};
use chrono_tz::Tz;
use minijinja::value::{DynObject, Enumerator, Object, ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use serde_json::{Map, Number, Value as Json};

use crate::schedule::local::{parse_moment, wall_clock};
use crate::{Name, Time};

/// JSON as a template value.
pub(super) fn from_json(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(bool) => Value::from(*bool),
        Json::Number(number) => {
            if let Some(integer) = number.as_i64() {
                Value::from(integer)
            } else if let Some(integer) = number.as_u64() {
                Value::from(integer)
            } else {
                Value::from(number.as_f64().unwrap_or(f64::NAN))
            }
        }
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::from(items.iter().map(from_json).collect::<Vec<_>>()),
        Json::Object(fields) => Value::from_pairs(fields.iter().map(|(key, value)| (key.as_str(), from_json(value)))),
    }
}

/// A template value as JSON. Its approximate size as text, in bytes, is subtracted from `budget`.
pub(super) fn to_json(value: &Value, budget: &mut usize, depth: usize) -> Result<Json, Error> {
    /// The memory of a small map is many times its text.
    const MAP_BYTES: usize = 24;
    let size = match value.kind() {
        ValueKind::Map => MAP_BYTES,
        _ => value.as_str().map_or(2, |text| text.len() + 2),
    };
    *budget = budget.checked_sub(size).ok_or_else(too_large)?;
    let deeper = depth
        .checked_sub(1)
        .ok_or_else(|| invalid("the result is nested too deeply"))?;
    Ok(match value.kind() {
        ValueKind::None => Json::Null,
        ValueKind::Undefined => return Err(Error::new(ErrorKind::UndefinedError, "the result is not defined")),
        ValueKind::Bool => Json::Bool(value.is_true()),
        ValueKind::Number => number(value)?,
        ValueKind::String => Json::String(value.as_str().unwrap_or_default().to_owned()),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?.map(|item| to_json(&item, budget, deeper));
            Json::Array(items.collect::<Result<_, _>>()?)
        }
        ValueKind::Map => {
            let mut fields = Map::new();
            for key in value.try_iter()? {
                let name = key.to_string();
                *budget = budget.checked_sub(name.len() + 3).ok_or_else(too_large)?;
                fields.insert(name, to_json(&value.get_item(&key)?, budget, deeper)?);
            }
            Json::Object(fields)
        }
        ValueKind::Plain => Json::String(value.to_string()),
        other => return Err(invalid(format!("a value of type {other} cannot be converted to JSON"))),
    })
}

fn number(value: &Value) -> Result<Json, Error> {
    if value.is_integer() {
        if let Ok(integer) = i64::try_from(value.clone()) {
            return Ok(integer.into());
        }
        return u64::try_from(value.clone())
            .map(Json::from)
            .map_err(|_| invalid(format!("{value} is too large for a JSON integer of 64 bits")));
    }
    let float = f64::try_from(value.clone())?;
    Number::from_f64(float)
        .map(Json::Number)
        .ok_or_else(|| invalid(format!("{float} is not a number that JSON allows")))
}

pub(super) fn invalid(detail: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail)
}

pub(super) fn too_large() -> Error {
    invalid(format!("the result is larger than {} bytes", super::OUTPUT_MAX_BYTES))
}

/// An instant, which prints as RFC 3339 with microseconds in UTC, compares by time, and has `year`, `month`, `day`,
/// `hour`, `minute`, `second`, `weekday` (1 = Monday) in the group's zone, and `timestamp` (seconds).
#[derive(Clone, Copy, Debug)]
pub(super) struct Instant {
    pub(super) at: Time,
    pub(super) zone: Tz,
}

impl Object for Instant {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let local = wall_clock(self.zone, self.at);
        Some(match key.as_str()? {
            "year" => Value::from(local.year()),
            "month" => Value::from(local.month()),
            "day" => Value::from(local.day()),
            "hour" => Value::from(local.hour()),
            "minute" => Value::from(local.minute()),
            "second" => Value::from(local.second()),
            "weekday" => Value::from(local.weekday().number_from_monday()),
            "timestamp" => Value::from(self.at.timestamp()),
            _ => return None,
        })
    }

    fn custom_cmp(self: &Arc<Self>, other: &DynObject) -> Option<std::cmp::Ordering> {
        other.downcast_ref::<Self>().map(|other| self.at.cmp(&other.at))
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.at.to_rfc3339_opts(SecondsFormat::Micros, true))
    }
}

/// An instant from what a template holds: one of ours, seconds since 1970, or text as specs write it.
pub(super) fn instant_of(value: &Value, zone: Tz) -> Result<Time, Error> {
    if let Some(instant) = value.downcast_object_ref::<Instant>() {
        return Ok(instant.at);
    }
    if let Some(seconds) = value.as_i64() {
        return DateTime::<Utc>::from_timestamp(seconds, 0).ok_or_else(|| {
            invalid(format!(
                "{seconds} is not a valid \
            time"
            ))
        });
    }
    match value.as_str() {
        Some(text) => parse_moment(text, zone).map_err(invalid),
        None => Err(invalid(format!("a value of type {} is not a time", value.kind()))),
    }
}

/// The instant that a comparison with one of ours means: as [`instant_of`], and the beginning of a year `2026` or of a
/// month `2026-11`.
pub(super) fn moment_of(value: &Value, zone: Tz) -> Result<Time, Error> {
    let Some(text) = value.as_str() else {
        return match value.kind() {
            ValueKind::Number | ValueKind::Plain => instant_of(value, zone),
            kind => Err(invalid(format!(
                "a time cannot be compared with a value of type {kind}"
            ))),
        };
    };
    let text = text.trim();
    let digits = |part: &str, length| part.len() == length && part.bytes().all(|byte| byte.is_ascii_digit());
    let whole = match text.split_once('-') {
        None if digits(text, 4) => format!("{text}-01-01"),
        Some((year, month)) if digits(year, 4) && digits(month, 2) => format!("{text}-01"),
        _ => text.to_owned(),
    };
    parse_moment(&whole, zone).map_err(invalid)
}

/// Formats a wall clock time by strftime's letters; an unknown letter is an error rather than a panic.
pub(super) fn format_local(zone: Tz, at: Time, format: &str) -> Result<String, Error> {
    use chrono::format::{Item, StrftimeItems};
    /// Padding is at most a few characters for each letter.
    const FORMAT_MAX_BYTES: usize = 256;
    if format.len() > FORMAT_MAX_BYTES {
        return Err(invalid(format!(
            "a date format must have at most {FORMAT_MAX_BYTES} bytes"
        )));
    }
    let items: Vec<_> = StrftimeItems::new(format).collect();
    if items.iter().any(|item| matches!(item, Item::Error)) {
        return Err(invalid(format!(
            "`{format}` is not a valid date format; write for example `%Y-%m-%d`"
        )));
    }
    Ok(at.with_timezone(&zone).format_with_items(items.iter()).to_string())
}

/// The outputs of other tasks, made into template values when they are asked for, each once.
pub(super) struct Upstream {
    outputs: BTreeMap<Name, (Arc<Json>, OnceLock<Value>)>,
}

impl Upstream {
    pub(super) fn new(outputs: BTreeMap<Name, Arc<Json>>) -> Self {
        Self {
            outputs: outputs
                .into_iter()
                .map(|(name, output)| (name, (output, OnceLock::new())))
                .collect(),
        }
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.outputs.keys()).finish()
    }
}

impl Object for Upstream {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let key = key.as_str()?;
        let (output, made) = match self.outputs.get(key) {
            Some(found) => found,
            None => self.outputs.get(Name::new(key).ok()?.as_str())?,
        };
        Some(made.get_or_init(|| from_json(output)).clone())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.outputs.keys().map(|name| Value::from(name.as_str())).collect())
    }
}
