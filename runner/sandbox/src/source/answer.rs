//! The answer to a call of a script, as it gets it.

use serde::Serialize;
use serde_json::Value;

/// The answer to a call.
#[derive(Serialize)]
pub(super) struct Answer {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    pub error: Option<String>,
    pub ok: Value,
}

impl Answer {
    pub fn of(result: Result<Value, String>) -> String {
        Self::new(None, result).text()
    }

    pub fn new(id: Option<u64>, result: Result<Value, String>) -> Self {
        let (error, ok) = match result {
            Ok(ok) => (None, ok),
            Err(error) => (Some(error), Value::Null),
        };
        Self { id, error, ok }
    }

    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|error| format!(r#"{{"error":"{error}","ok":null}}"#))
    }
}
