//! Strict JSON and YAML: an object with a duplicate key is refused, and nesting is bounded.

use std::fmt;

use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Number, Value};

use crate::Fault;
use crate::fault::pointer_token;

/// How deeply arrays and objects may be nested: `serde_json` reads no more, and what was stored is read again.
pub const NESTING_MAX: usize = 127;

/// Why a document was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum StrictError {
    /// It is not valid JSON (or YAML), or nested too deeply.
    #[error("{0}")]
    Malformed(String),
    /// An object has a key twice; the pointer is the second one's.
    #[error("{0}")]
    Duplicate(Fault),
    /// An array has more entries than it may have.
    #[error("{0}")]
    TooMany(Fault),
}

/// How many entries the arrays in some fields of a document may have.
pub type EntriesMax = &'static [(&'static str, usize)];

/// Reads JSON, and refuses keys that occur twice, numbers that JSON does not have and too deep nesting. It stops where an
/// array in a field of the document has too many entries: an entry of three bytes becomes a value of 32, and whoever counts
/// them only afterwards has all of them in memory.
pub fn parse_json_strict(bytes: &[u8], entries_max: EntriesMax) -> Result<Value, StrictError> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let mut position = Position {
        entries_max,
        ..Position::default()
    };
    let malformed = |error: serde_json::Error| {
        let too_deep = format!("nested more than {NESTING_MAX} levels deep");
        StrictError::Malformed(error.to_string().replace("recursion limit exceeded", &too_deep))
    };
    let read = Strict(&mut position).deserialize(&mut deserializer);
    let value = read.map_err(|error| match (position.duplicate, position.too_many) {
        (Some(fault), _) => StrictError::Duplicate(fault),
        (None, Some(fault)) => StrictError::TooMany(fault),
        (None, None) => malformed(error),
    })?;
    deserializer.end().map_err(malformed)?;
    Ok(value)
}

/// The current position in the document that is read.
#[derive(Default)]
pub(super) struct Position {
    keys: Vec<String>,
    /// The fault of the key that ended the reading, because it occurs a second time.
    pub(super) duplicate: Option<Fault>,
    /// The bounds of arrays, and the fault of the one that ended the reading.
    entries_max: EntriesMax,
    too_many: Option<Fault>,
}

impl Position {
    pub(super) fn pointer(&self) -> String {
        self.keys.iter().map(|key| format!("/{}", pointer_token(key))).collect()
    }

    /// How many entries an array that begins here may have.
    fn entries_max(&self) -> usize {
        let [field] = self.keys.as_slice() else {
            return usize::MAX;
        };
        let bound = self.entries_max.iter().find(|(name, _)| *name == field.as_str());
        bound.map_or(usize::MAX, |(_, most)| *most)
    }

    /// The fault of a key that occurs a second time in the object that is being read.
    pub(super) fn twice(&self, key: &str) -> Fault {
        let shown: String = key.chars().take(100).collect();
        Fault::at(
            format!("{}/{}", self.pointer(), pointer_token(key)),
            format!("duplicate: the key `{shown}` occurs twice in one object"),
        )
    }
}

/// Reads a value from any format, whose own reader bounds the nesting.
pub(super) struct Strict<'p>(pub(super) &'p mut Position);

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_bool<E: Error>(self, bool: bool) -> Result<Value, E> {
        Ok(Value::Bool(bool))
    }
    fn visit_i64<E: Error>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }
    fn visit_u64<E: Error>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }
    fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
        Number::from_f64(number)
            .map(Value::Number)
            .ok_or_else(|| E::custom("not a number that JSON allows"))
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }
    fn visit_string<E: Error>(self, text: String) -> Result<Value, E> {
        Ok(Value::String(text))
    }
    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_none<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        let most = self.0.entries_max();
        loop {
            if items.len() == most {
                if seq.next_element::<IgnoredAny>()?.is_none() {
                    return Ok(Value::Array(items));
                }
                let fault = Fault::at(self.0.pointer(), format!("must have at most {most} entries"));
                let error = A::Error::custom(&fault);
                self.0.too_many = Some(fault);
                return Err(error);
            }
            self.0.keys.push(items.len().to_string());
            match seq.next_element_seed(Strict(self.0))? {
                Some(item) => items.push(item),
                None => break,
            }
            self.0.keys.pop();
        }
        self.0.keys.pop();
        Ok(Value::Array(items))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if fields.contains_key(&key) {
                let fault = self.0.twice(&key);
                let error = A::Error::custom(&fault);
                self.0.duplicate = Some(fault);
                return Err(error);
            }
            self.0.keys.push(key.clone());
            let value = map.next_value_seed(Strict(self.0))?;
            fields.insert(key, value);
            self.0.keys.pop();
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expect: Result<&str, &str>) {
        let got = parse_json_strict(text.as_bytes(), &[])
            .map(|value| value.to_string())
            .map_err(|error| error.to_string());
        match (&got, expect) {
            (Ok(got), Ok(expect)) => assert_eq!(got, expect),
            (Err(got), Err(expect)) => assert!(got.contains(expect), "{got}"),
            _ => panic!("{text}: {got:?}, not {expect:?}"),
        }
    }

    #[test]
    fn reads_strictly() {
        let all = r#"{"a":[1,-2,2.5,"x",null,true,{"b":{}}],"u":18446744073709551615}"#;
        check(all, Ok(all));
        check("", Err("EOF"));
        check("{} x", Err("trailing characters"));
        check("{\"a\": }", Err("line 1 column"));
        check(
            r#"{"a":1,"a":2}"#,
            Err("/a: duplicate: the key `a` occurs twice in one object"),
        );
        check(
            r#"{"tasks":{"x/y":{"k":[0,{"d":1,"d":1}]}}}"#,
            Err("/tasks/x~1y/k/1/d: duplicate"),
        );
        check(
            &format!("{}{}", "[".repeat(200), "]".repeat(200)),
            Err("nested more than 127 levels deep at line 1"),
        );
        let deep = format!("{}{}", "[".repeat(NESTING_MAX), "]".repeat(NESTING_MAX));
        check(&deep, Ok(&deep));
    }

    #[test]
    fn arrays_are_read_up_to_their_bounds() {
        let within = |text: &str| parse_json_strict(text.as_bytes(), &[("items", 2), ("more", 0)]);
        let all = r#"{"items":[[1,2,3],{"items":[1,2,3]}],"more":[],"other":[1,2,3]}"#;
        assert_eq!(within(all).map(|value| value.to_string()), Ok(all.to_owned()));
        for (text, expect) in [
            (r#"{"items":[[],[],[]]}"#, "/items: must have at most 2 entries"),
            // What follows is not read: it need not even be JSON.
            (r#"{"items":[1,2,3, x"#, "/items: must have at most 2 entries"),
            (r#"{"items":[],"more":[[]]}"#, "/more: must have at most 0 entries"),
        ] {
            let refused = within(text).expect_err(text);
            assert!(matches!(refused, StrictError::TooMany(_)), "{text}: {refused}");
            assert_eq!(refused.to_string(), expect, "{text}");
        }
        assert!(matches!(within(r#"{"items":[1,2"#), Err(StrictError::Malformed(_))));
        let after = within(r#"{"items":[1,2],"a":{"b":1,"b":2}}"#).expect_err("a key twice");
        assert!(after.to_string().starts_with("/a/b: duplicate"), "{after}");
    }
}
