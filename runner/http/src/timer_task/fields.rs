//! The fields of a node, or of a timer.

use heddle_domain::Fault;
use heddle_domain::spec::whole_number;
use serde_json::{Map, Value};

use crate::problem::Problem;

/// What `status` says of something that is switched off.
pub(crate) const DISABLED: i64 = -1;
/// What `status` says of something that is switched on.
pub(super) const ENABLED: i64 = 1;

pub(super) fn invalid(field: &str, detail: String) -> Problem {
    Problem::invalid(Fault::at(format!("/{field}"), detail))
}

/// A whole number, also as text; null and empty text are none. The error is a sentence about the value.
pub(crate) fn whole(value: &Value) -> Result<Option<i64>, String> {
    let found = match value {
        Value::Null => return Ok(None),
        Value::String(text) if text.trim().is_empty() => return Ok(None),
        Value::String(text) => text.trim().parse().ok(),
        Value::Number(number) => whole_number(number),
        _ => None,
    };
    found
        .map(Some)
        .ok_or_else(|| format!("expected a whole number, not {value}"))
}

/// The same for the value of a field.
pub(super) fn number(value: &Value, field: &str) -> Result<Option<i64>, Problem> {
    whole(value).map_err(|detail| invalid(field, detail))
}

pub(super) fn text<'a>(fields: &'a Map<String, Value>, field: &str) -> Option<&'a str> {
    fields
        .get(field)
        .and_then(Value::as_str)
        .map(str::trim)
        .filter(|text| !text.is_empty())
}

pub(super) fn count(fields: &Map<String, Value>, field: &str) -> Result<Option<i64>, Problem> {
    fields.get(field).map_or(Ok(None), |value| number(value, field))
}

/// A duration of a timer, in milliseconds. What is `stored` may be negative, which was no duration when it was accepted.
pub(super) fn span(fields: &Map<String, Value>, field: &str, stored: bool) -> Result<Option<String>, Problem> {
    match count(fields, field)? {
        Some(millis) if millis >= 0 => Ok(Some(format!("{millis}ms"))),
        Some(millis) if !stored => Err(invalid(
            field,
            format!("`{field}` must be at least 0 milliseconds, not {millis}"),
        )),
        _ => Ok(None),
    }
}

/// The timeout of a node; -1 and 0 are none. What is `stored` may be any negative number, which was none when it was
/// accepted.
pub(super) fn timeout(fields: &Map<String, Value>, stored: bool) -> Result<Option<String>, Problem> {
    match count(fields, "timeout")? {
        None | Some(-1 | 0) => Ok(None),
        Some(millis) if millis > 0 => Ok(Some(format!("{millis}ms"))),
        Some(_) if stored => Ok(None),
        Some(millis) => Err(invalid(
            "timeout",
            format!("`timeout` must be a number of milliseconds, or -1 or 0 for no timeout, not {millis}"),
        )),
    }
}

/// Whether a node, or a timer, is switched on: `status` is 1 or -1. `None`: it is left out.
pub(super) fn status(fields: &Map<String, Value>) -> Result<Option<bool>, Problem> {
    match count(fields, "status")? {
        None => Ok(None),
        Some(ENABLED) => Ok(Some(true)),
        Some(DISABLED) => Ok(Some(false)),
        Some(other) => Err(invalid(
            "status",
            format!("`status` must be {ENABLED} or {DISABLED}, not {other}"),
        )),
    }
}

/// The same, where what is left out means 1.
pub(super) fn is_enabled(fields: &Map<String, Value>) -> Result<bool, Problem> {
    Ok(status(fields)?.unwrap_or(true))
}
