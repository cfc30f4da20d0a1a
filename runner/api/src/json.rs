//! JSON that is passed on as it is stored.

use heddle_domain::framed;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

/// Any JSON, kept as text: it is checked, but not taken apart. A run may have ten thousand outputs, and building each
/// of them as a value takes longer than all the rest of the answer.
///
/// serde_json reads it everywhere but inside a flattened structure (see [`RawValue`]).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Json(Box<RawValue>);

impl Json {
    /// An array of these; null for each that is missing.
    pub fn array<'a>(items: impl Iterator<Item = Option<&'a Self>>) -> Self {
        Self(to_raw_value(&items.collect::<Vec<_>>()).expect("each item is JSON"))
    }

    /// The text, without spaces around it.
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// The value that the text stands for.
    pub fn value(&self) -> Value {
        framed::read(self.as_str()).unwrap_or_default()
    }
}

impl std::str::FromStr for Json {
    type Err = serde_json::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        serde_json::from_str(text).map(Self)
    }
}

impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl JsonSchema for Json {
    fn inline_schema() -> bool {
        Value::inline_schema()
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        Value::schema_name()
    }

    fn schema_id() -> std::borrow::Cow<'static, str> {
        Value::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Value::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_stays_as_it_is() {
        let json: Json = r#" {"b": 1, "a": 12345678901234567890123} "#.parse().unwrap();
        assert_eq!(json.as_str(), r#"{"b": 1, "a": 12345678901234567890123}"#);
        assert_eq!(serde_json::to_string(&json).unwrap(), json.as_str());
        assert_eq!(json.value()["b"], 1);
        for wrong in ["", "{", "1 2", "\u{0}", "nul"] {
            assert!(wrong.parse::<Json>().is_err(), "{wrong}");
        }
        let all = Json::array([Some(&json), None].into_iter());
        assert_eq!(all.as_str(), format!("[{},null]", json.as_str()));
        assert_eq!(Json::array(std::iter::empty()).as_str(), "[]");
    }
}
