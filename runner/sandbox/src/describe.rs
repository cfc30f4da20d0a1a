//! A script's description of itself, when it is uploaded.

use crate::attempt::{AttemptRequest, Grants, Limits};
use crate::context::{Context, Interval};
use crate::services::HostServices;
use heddle_domain::schema::Schema;
use heddle_domain::state::Trigger;
use heddle_domain::{Time, has_nul};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// The maximum bytes of a description (text, schema of the params and defaults together), as JSON. It is the same for a
/// component and for a text.
pub(crate) const MAX_BYTES: usize = 64 << 10;
/// The limits of `describe`. Python needs most of the memory before its first line; the timeout is for a busy node.
const LIMITS: Limits = Limits {
    memory_bytes: 128 << 20,
    output_bytes: MAX_BYTES,
    log_bytes: 64 << 10,
    timeout: Some(Duration::from_secs(60)),
    cpu: Some(Duration::from_secs(5)),
};

#[derive(Default, Deserialize)]
pub(crate) struct Description {
    pub description: Option<String>,
    /// The JSON Schema of its params.
    pub params: Option<Map<String, Value>>,
    pub defaults: Option<Map<String, Value>>,
}

impl Description {
    pub fn parse(text: &str) -> Result<Self, String> {
        let value: Value =
            serde_json::from_str(text).map_err(|error| format!("`describe` must return JSON: {error}"))?;
        match value {
            Value::Null => Ok(Self::default()),
            Value::Object(_) => {
                if has_nul(&value) {
                    return Err("`describe` returned the character U+0000, which is not allowed".into());
                }
                let description: Self = serde_json::from_value(value)
                    .map_err(|error| format!("`describe` returned a value that is not valid: {error}"))?;
                if let Some(params) = &description.params {
                    Schema::compile(&Value::Object(params.clone())).map_err(|error| {
                        format!("`describe` returned a schema for params that is not valid: {error}")
                    })?;
                }
                Ok(description)
            }
            _ => Err("`describe` must return a JSON object".into()),
        }
    }
}

/// The attempt that calls `describe`: it may reach nothing.
pub(crate) fn request(now: Time) -> AttemptRequest {
    AttemptRequest {
        context: Context {
            run: Uuid::nil(),
            group: String::new(),
            task: String::new(),
            attempt: 1,
            trigger: Trigger::Manual,
            logical_time: now,
            data_interval: Interval { start: now, end: now },
            deadline: None,
            item: None,
            idempotency_key: String::new(),
        },
        params: String::new(),
        batch: None,
        limits: LIMITS,
        grants: Grants::default(),
        host: Arc::new(Nothing),
    }
}

/// An attempt without anything.
struct Nothing;

impl HostServices for Nothing {
    fn refusal(&self, _: &str) -> String {
        "not available in `describe`".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_kept_or_used_is_refused() {
        for (text, expect) in [
            (
                r#"{"params":{"$ref":"https://example.com/schema.json"}}"#,
                "schema for params",
            ),
            (r#"{"params":{"type":"nope"}}"#, "schema for params"),
            (
                r#"{"params":{"properties":{"a":{"pattern":"("}}}}"#,
                "schema for params",
            ),
            (r#"{"defaults":{"x":["\u0000"]}}"#, "U+0000"),
            (r#"{"description":"a\u0000b"}"#, "U+0000"),
            (r#"{"params":{"title\u0000":1}}"#, "U+0000"),
            ("[]", "a JSON object"),
            ("{", "must return JSON"),
        ] {
            let said = Description::parse(text).err().unwrap_or_default();
            assert!(said.contains(expect), "{text}: {said}");
        }
        let fine = Description::parse(r##"{"params":{"$defs":{"n":{"type":"integer"}},"$ref":"#/$defs/n"}}"##);
        assert!(fine.is_ok_and(|described| described.params.is_some()));
        assert!(Description::parse("null").is_ok());
    }
}
