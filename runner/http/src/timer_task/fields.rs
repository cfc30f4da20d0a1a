//! The fields of a node, or of a timer.

use heddle_domain::Fault;
use serde_json::{Map, Value};

use crate::problem::Problem;

/// What `status` says of something that is switched off.
pub(crate) const DISABLED: i64 = -1;
/// What `status` says of something that is switched on.
const ENABLED: i64 = 1;

pub(super) fn invalid(field: &str, detail: String) -> Problem {
    Problem::invalid(Fault::at(format!("/{field}"), detail))
}

/// A whole number, also as text; null and empty text are none.
pub(crate) fn number(value: &Value, field: &str) -> Result<Option<i64>, Problem> {
    let found = match value {
        Value::Null => return Ok(None),
        Value::String(text) if text.trim().is_empty() => return Ok(None),
        Value::String(text) => text.trim().parse().ok(),
        Value::Number(number) => number.as_i64(),
        _ => None,
    };
    found
        .map(Some)
        .ok_or_else(|| invalid(field, format!("expected a whole number, not {value}")))
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

/// A span in milliseconds; negative ones are none.
pub(super) fn millis(fields: &Map<String, Value>, field: &str) -> Result<Option<String>, Problem> {
    Ok(count(fields, field)?
        .filter(|millis| *millis >= 0)
        .map(|millis| format!("{millis}ms")))
}

/// Whether a node, or a timer, is switched on: `status` is 1 or -1, and 1 if it is left out.
pub(crate) fn is_enabled(fields: &Map<String, Value>) -> Result<bool, Problem> {
    match count(fields, "status")? {
        None | Some(ENABLED) => Ok(true),
        Some(DISABLED) => Ok(false),
        Some(other) => Err(invalid(
            "status",
            format!("`status` must be {ENABLED} or {DISABLED}, not {other}"),
        )),
    }
}
