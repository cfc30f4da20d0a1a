//! JSON values in a form that postcard can write.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};

/// A JSON value in a form that postcard can write: it says itself what it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Plain {
    Null,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(String),
    List(Vec<Plain>),
    Map(Vec<(String, Plain)>),
}

impl From<&Value> for Plain {
    fn from(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(bool) => Self::Bool(*bool),
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(number), _) => Self::Unsigned(number),
                (None, Some(number)) => Self::Signed(number),
                (None, None) => Self::Float(number.as_f64().unwrap_or_default()),
            },
            Value::String(text) => Self::Text(text.clone()),
            Value::Array(items) => Self::List(items.iter().map(Self::from).collect()),
            Value::Object(fields) => Self::Map(
                fields
                    .iter()
                    .map(|(key, value)| (key.clone(), Self::from(value)))
                    .collect(),
            ),
        }
    }
}

impl From<Plain> for Value {
    fn from(plain: Plain) -> Self {
        match plain {
            Plain::Null => Self::Null,
            Plain::Bool(bool) => Self::Bool(bool),
            Plain::Unsigned(number) => Self::from(number),
            Plain::Signed(number) => Self::from(number),
            Plain::Float(number) => Number::from_f64(number).map_or(Self::Null, Self::Number),
            Plain::Text(text) => Self::String(text),
            Plain::List(items) => Self::Array(items.into_iter().map(Self::from).collect()),
            Plain::Map(fields) => Self::Object(
                fields
                    .into_iter()
                    .map(|(key, value)| (key, Self::from(value)))
                    .collect::<Map<_, _>>(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_go_there_and_back() {
        let value = json!({"a": [1, -1, 0.1, 1e300, u64::MAX, i64::MIN, 5.0, "x", null, true, {}], "": {"b": []}});
        let bytes = postcard::to_stdvec(&Plain::from(&value)).unwrap();
        let back: Plain = postcard::from_bytes(&bytes).unwrap();
        let back = Value::from(back);
        assert_eq!(back, value);
        assert_eq!(back.to_string(), value.to_string());
    }
}
