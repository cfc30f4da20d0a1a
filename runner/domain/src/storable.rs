//! The character U+0000, which Postgres cannot store in a text.

use serde_json::Value;

/// Whether a text or a key somewhere in a JSON value contains U+0000.
pub fn has_nul(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(items) => items.iter().any(has_nul),
        Value::Object(fields) => fields.iter().any(|(key, value)| key.contains('\0') || has_nul(value)),
        _ => false,
    }
}
