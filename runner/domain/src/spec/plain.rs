//! A JSON value as Serde reads it, with errors that use the terms of JSON and of the documentation: the author of a
//! spec knows objects and arrays, but not Rust's structs, variants and `u32`.
//!
//! Also refuses what `serde_json` would accept: an array instead of an object, with its items as the fields in order.

use std::fmt::{self, Display};

use serde::de::value::{MapAccessDeserializer, MapDeserializer, SeqDeserializer, StrDeserializer};
use serde::de::{self, DeserializeSeed, EnumAccess, Expected, IntoDeserializer, Unexpected, Visitor};
use serde::{Deserializer, forward_to_deserialize_any};
use serde_json::{Number, Value};

use crate::shortened;

/// How many characters of a given text an error repeats.
const SHOWN_CHARS_MAX: usize = 100;

/// Up to here, a number with a decimal point stands for one whole number.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

/// The whole number that is written with a decimal point (`1.0`) or an exponent.
pub(crate) fn whole_of(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() <= WHOLE_MAX).then_some(number as i64)
}

/// A whole number of JSON, however it is written: as `1`, with a decimal point (`1.0`) or with an exponent (`1e0`).
pub fn whole_number(number: &Number) -> Option<i64> {
    number.as_i64().or_else(|| whole_of(number.as_f64()?))
}

/// Gives numbers the form in which a `jsonb` of Postgres returns them, so that a value can be compared with a stored one.
/// It writes all digits of a number: `1e16` comes back as an integer.
pub fn write_as_jsonb(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if number.is_f64()
                && number.to_string().contains('e')
                // The digits of a float, without an exponent.
                && let Some(digits) = number.as_f64().map(|float| float.to_string())
            {
                let positive = digits.parse::<u64>().map(Number::from);
                if let Ok(whole) = positive.or_else(|_| digits.parse::<i64>().map(Number::from)) {
                    *number = whole;
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(write_as_jsonb),
        Value::Object(fields) => fields.values_mut().for_each(write_as_jsonb),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// What a visitor that takes other kinds of values too makes of a number with a decimal point: a whole one is read as it is
/// without the point.
pub(crate) fn visit_whole<'de, V: Visitor<'de>, E: de::Error>(visitor: V, number: f64) -> Result<V::Value, E> {
    match whole_of(number) {
        Some(whole) => match u64::try_from(whole) {
            Ok(whole) => visitor.visit_u64(whole),
            Err(_) => visitor.visit_i64(whole),
        },
        None => Err(E::invalid_type(Unexpected::Float(number), &visitor)),
    }
}

/// A value to be read.
pub(super) struct Plain<'de>(pub(super) &'de Value);

/// Why a value cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mistake {
    pub(super) kind: MistakeKind,
    /// The text of the error, for people; programs use `kind`.
    words: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MistakeKind {
    /// This field is unknown.
    Unknown(String),
    /// This field is missing.
    Missing(String),
    Other,
}

impl Mistake {
    fn other(words: String) -> Self {
        Self {
            kind: MistakeKind::Other,
            words,
        }
    }
}

impl Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl std::error::Error for Mistake {}

impl de::Error for Mistake {
    fn custom<T: Display>(text: T) -> Self {
        Self::other(text.to_string())
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::other(format!(
            "invalid type: {}, expected {}",
            found_in_words(found),
            expected_in_words(&expected.to_string())
        ))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::other(format!(
            "invalid value: {}, expected {}",
            found_in_words(found),
            expected_in_words(&expected.to_string())
        ))
    }

    fn unknown_variant(given: &str, allowed: &'static [&'static str]) -> Self {
        Self::other(format!(
            "unknown value `{}`, expected {}",
            shortened(given, SHOWN_CHARS_MAX),
            one_of(allowed)
        ))
    }

    fn unknown_field(given: &str, allowed: &'static [&'static str]) -> Self {
        let expected = match allowed {
            [] => "none".to_owned(),
            _ => one_of(allowed),
        };
        Self {
            kind: MistakeKind::Unknown(given.to_owned()),
            words: format!("unknown field `{given}`, expected {expected}"),
        }
    }

    fn missing_field(field: &'static str) -> Self {
        Self {
            kind: MistakeKind::Missing(field.to_owned()),
            words: format!("missing field `{field}`"),
        }
    }
}

fn one_of(allowed: &[&str]) -> String {
    match allowed {
        [] => "nothing".into(),
        [one] => format!("`{one}`"),
        [one, other] => format!("`{one}` or `{other}`"),
        _ => format!("one of `{}`", allowed.join("`, `")),
    }
}

fn found_in_words(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(value) => format!("`{value}`"),
        Unexpected::Unsigned(number) => format!("number `{number}`"),
        Unexpected::Signed(number) => format!("number `{number}`"),
        // Printed with its decimal point.
        Unexpected::Float(number) => format!("number `{number:?}`"),
        Unexpected::Str(text) => format!("string \"{}\"", shortened(text, SHOWN_CHARS_MAX)),
        Unexpected::Unit | Unexpected::Option => "null".into(),
        Unexpected::Seq => "array".into(),
        Unexpected::Map | Unexpected::NewtypeStruct => "object".into(),
        other => other.to_string(),
    }
}

/// What a type of Serde's or of ours expects, in terms of JSON; ours mostly use these already.
fn expected_in_words(expected: &str) -> String {
    let whole = |from: &dyn Display, to: &dyn Display| format!("a whole number from {from} to {to}");
    match expected {
        "a map" | "map" => "an object".into(),
        "a sequence" | "sequence" => "an array".into(),
        "a boolean" => "`true` or `false`".into(),
        "unit" => "null".into(),
        "string" | "str" | "a borrowed string" => "a string".into(),
        "u8" => whole(&u8::MIN, &u8::MAX),
        "u16" => whole(&u16::MIN, &u16::MAX),
        "u32" => whole(&u32::MIN, &u32::MAX),
        "u64" | "usize" => "a whole number that is not negative".into(),
        "i8" => whole(&i8::MIN, &i8::MAX),
        "i16" => whole(&i16::MIN, &i16::MAX),
        "i32" => whole(&i32::MIN, &i32::MAX),
        "i64" | "isize" => "a whole number".into(),
        "f32" | "f64" => "a number".into(),
        "a UUID string" | "a formatted UUID string" => "an id such as `01a1fd7e-b87e-74f9-98c4-5d41382fa10c`".into(),
        "an RFC 3339 formatted date and time string" => "an RFC 3339 time such as `2026-11-20T08:00:00Z`".into(),
        text if text.starts_with("struct ") || text.starts_with("internally tagged") => "an object".into(),
        text => text.to_owned(),
    }
}

/// The kind of a value, in the terms of Serde.
fn unexpected(value: &Value) -> Unexpected<'_> {
    match value {
        Value::Null => Unexpected::Unit,
        Value::Bool(value) => Unexpected::Bool(*value),
        Value::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
            (Some(number), _, _) => Unexpected::Unsigned(number),
            (_, Some(number), _) => Unexpected::Signed(number),
            (_, _, number) => Unexpected::Float(number.unwrap_or_default()),
        },
        Value::String(text) => Unexpected::Str(text),
        Value::Array(_) => Unexpected::Seq,
        Value::Object(_) => Unexpected::Map,
    }
}

impl<'de> IntoDeserializer<'de, Mistake> for Plain<'de> {
    type Deserializer = Self;
    fn into_deserializer(self) -> Self {
        self
    }
}

/// Reads whole numbers: for JSON Schema, `1.0` is one as well as `1`.
macro_rules! whole {
    ($($read:ident)*) => {$(
        fn $read<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
            match self.0.as_f64().filter(|_| self.0.is_f64()).and_then(whole_of) {
                Some(number) => visitor.visit_i64(number),
                None => self.deserialize_any(visitor),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for Plain<'de> {
    type Error = Mistake;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
                (Some(number), _, _) => visitor.visit_u64(number),
                (_, Some(number), _) => visitor.visit_i64(number),
                (_, _, number) => visitor.visit_f64(number.unwrap_or_default()),
            },
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Array(items) => visitor.visit_seq(SeqDeserializer::new(items.iter().map(Plain))),
            Value::Object(fields) => visitor.visit_map(MapDeserializer::new(
                fields.iter().map(|(key, value)| (key.as_str(), Plain(value))),
            )),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Mistake> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mistake> {
        match self.0 {
            Value::Object(_) => self.deserialize_any(visitor),
            other => Err(de::Error::invalid_type(unexpected(other), &visitor)),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        allowed: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mistake> {
        match self.0 {
            Value::String(text) => visitor.visit_enum(StrDeserializer::new(text)),
            Value::Object(fields) if fields.len() == 1 => visitor.visit_enum(Tagged(MapAccessDeserializer::new(
                MapDeserializer::new(fields.iter().map(|(key, value)| (key.as_str(), Plain(value)))),
            ))),
            other => Err(de::Error::invalid_type(unexpected(other), &one_of(allowed).as_str())),
        }
    }

    whole! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64
    }

    forward_to_deserialize_any! {
        bool i128 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

/// An object of one field, whose key says which of several shapes its value has.
struct Tagged<A>(MapAccessDeserializer<A>);

impl<'de, A: de::MapAccess<'de, Error = Mistake>> EnumAccess<'de> for Tagged<A> {
    type Error = Mistake;
    type Variant = <MapAccessDeserializer<A> as EnumAccess<'de>>::Variant;
    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self::Variant), Mistake> {
        self.0.variant_seed(seed)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::spec::{GroupSpec, SubmissionSpec, read};

    fn check<T: serde::de::DeserializeOwned>(value: Value, pointer: &str, detail: &str) {
        let Err(faults) = read::<T>(&value) else {
            panic!("{value} was read")
        };
        assert_eq!(
            (faults.0[0].pointer.as_str(), faults.0[0].detail.as_str()),
            (pointer, detail),
            "{value}"
        );
    }

    #[test]
    fn whole_numbers_may_have_a_decimal_point() {
        let spec: GroupSpec = read(&json!({"max_active_runs": 1.0, "max_waiting": -0.0, "priority": -5.0})).unwrap();
        assert_eq!(
            (spec.max_active_runs, spec.max_waiting, spec.priority),
            (Some(1), Some(0), Some(-5))
        );
        let spec: GroupSpec = read(&json!({"priority": null})).unwrap();
        assert_eq!(spec.priority, None);
        check::<GroupSpec>(
            json!({"max_active_runs": -1.0}),
            "/max_active_runs",
            "invalid value: number `-1`, expected a whole number from 1 to 4294967295",
        );
        check::<GroupSpec>(
            json!({"max_waiting": 5_000_000_000_u64}),
            "/max_waiting",
            "invalid value: number `5000000000`, expected a whole number from 0 to 10000",
        );
    }

    #[test]
    fn large_numbers_are_written_as_jsonb_writes_them() {
        for (given, stored) in [
            (json!(1e16), "10000000000000000"),
            (json!(-1.5e16), "-15000000000000000"),
            (json!(1.2345678901234566e17), "123456789012345660"),
            // These come back as they are: with a decimal point, as a fraction, or as a float that has more digits.
            (json!(100.0), "100.0"),
            (json!(1e15), "1000000000000000.0"),
            (json!(1e-7), "1e-7"),
            (json!(1e20), "1e20"),
            (json!(7), "7"),
        ] {
            let mut value = json!({"a": [given]});
            write_as_jsonb(&mut value);
            assert_eq!(value["a"][0].to_string(), json_text(stored));
        }
    }

    /// The text of a number as this program writes it.
    fn json_text(number: &str) -> String {
        serde_json::from_str::<Value>(number).unwrap().to_string()
    }

    /// Also the fields that take a text instead.
    #[test]
    fn whole_numbers_among_other_kinds_may_have_a_decimal_point() {
        let task = |fields: Value| json!({"tasks": {"t": fields}});
        let sizes = json!({
            "memory": 1_048_576.0, "max_output": 10.0, "max_log": 1e3, "shards": 2.0,
            "retry": {"strategy": "fixed", "interval": 0.0},
        });
        let whole = json!({
            "memory": 1_048_576, "max_output": 10, "max_log": 1000, "shards": 2,
            "retry": {"strategy": "fixed", "interval": 0},
        });
        let read_task = |fields: &Value| read::<GroupSpec>(&task(fields.clone())).unwrap();
        assert_eq!(read_task(&sizes), read_task(&whole));
        for (fields, field, words) in [
            (json!({"shards": -2.0}), "shards", "`-2`"),
            (json!({"shards": 2.5}), "shards", "`2.5`"),
            (json!({"memory": 1.5}), "memory", "`1.5`"),
            (json!({"max_log": -1.0}), "max_log", "`-1`"),
            (json!({"timeout": 90.0}), "timeout", "`90` has no unit"),
            (json!({"queue_timeout": 90.0}), "queue_timeout", "`90` has no unit"),
            (
                json!({"queue_timeout": 1.5}),
                "queue_timeout",
                "`1.5` is not a valid duration",
            ),
        ] {
            let Err(faults) = read::<GroupSpec>(&task(fields.clone())) else {
                panic!("{fields} was read")
            };
            assert_eq!(faults.0[0].pointer, format!("/tasks/t/{field}"), "{fields}");
            assert!(faults.0[0].detail.contains(words), "{}", faults.0[0].detail);
        }
    }

    #[test]
    fn mistakes_are_described_in_words_of_json() {
        let task = |task: Value| json!({"tasks": {"t": task}});
        check::<GroupSpec>(
            json!({"schedules": {"nightly": 5}}),
            "/schedules/nightly",
            "invalid type: number `5`, expected an object",
        );
        check::<GroupSpec>(
            task(json!(["x"])),
            "/tasks/t",
            "invalid type: array, expected an object",
        );
        check::<GroupSpec>(
            task(json!({"retry": ["fixed", 3]})),
            "/tasks/t/retry",
            "invalid type: array, expected an object",
        );
        check::<GroupSpec>(
            task(json!({"http": ["GET", "https://example.com", {}, null]})),
            "/tasks/t/http",
            "invalid type: array, expected an object",
        );
        check::<GroupSpec>(
            task(json!({"depends_on": "a"})),
            "/tasks/t/depends_on",
            "invalid type: string \"a\", expected an array",
        );
        check::<GroupSpec>(
            json!({"max_active_runs": -1}),
            "/max_active_runs",
            "invalid value: number `-1`, expected a whole number from 1 to 4294967295",
        );
        check::<GroupSpec>(
            json!({"max_active_runs": 1.5}),
            "/max_active_runs",
            "invalid type: number `1.5`, expected a whole number from 1 to 4294967295",
        );
        for (given, words) in [
            (json!(40_000), "invalid value: number `40000`"),
            (json!(-32_769), "invalid value: number `-32769`"),
            (json!(u64::MAX), "invalid value: number `18446744073709551615`"),
            (json!(0.5), "invalid type: number `0.5`"),
            (json!(1e300), "invalid type: number `1e300`"),
            (json!("5"), "invalid type: string \"5\""),
        ] {
            let detail = format!("{words}, expected a whole number from -1000 to 1000");
            check::<GroupSpec>(json!({"priority": given}), "/priority", &detail);
            check::<SubmissionSpec>(json!({"priority": given}), "/priority", &detail);
        }
        check::<GroupSpec>(
            json!({"overlap": "never"}),
            "/overlap",
            "unknown value `never`, expected one of `queue`, `skip`, `allow`, `cancel_previous`",
        );
        for odd in [json!(5), json!({}), json!([]), json!(null)] {
            let Err(faults) = read::<GroupSpec>(&json!({"on_failure": odd})) else {
                panic!("{odd} was read")
            };
            let detail = &faults.0[0].detail;
            assert!(detail.ends_with("expected `continue` or `stop`"), "{detail}");
        }
        check::<GroupSpec>(
            json!({"history": "yes"}),
            "/history",
            "invalid type: string \"yes\", expected `true` or `false`",
        );
        check::<SubmissionSpec>(
            json!({"params": [1]}),
            "/params",
            "invalid type: array, expected an object",
        );
        check::<GroupSpec>(task(json!({"http": {}})), "/tasks/t/http/url", "missing field `url`");
        check::<GroupSpec>(
            json!({"depends_on": [{}]}),
            "/depends_on/0/group",
            "missing field `group`",
        );
        let long = "x".repeat(1000);
        let Err(faults) = read::<GroupSpec>(&json!({"overlap": long})) else {
            panic!("it was read")
        };
        assert!(faults.0[0].detail.len() < 250);
    }
}
