//! JSON of Heddle with a value of somebody else in it.
//!
//! What people and scripts give is nested at most [`NESTING_MAX`] levels deep, and `serde_json` reads no more. But Heddle
//! puts such a value into something of its own: a spec into a page of a list, outputs of items into an array, outputs
//! of other tasks into params. The whole is then nested deeper than its part, and has to be read all the same.

use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use serde_json::{Error, Map, Value};

use crate::spec::NESTING_MAX;

/// How deeply what Heddle has framed may be nested. It is bounded because a reader takes some of its stack for each level.
pub const FRAMED_NESTING_MAX: usize = 256;

/// How deeply params and items may be nested that Heddle makes of templates. What answers put around them has the rest.
pub const RENDERED_NESTING_MAX: usize = 192;

/// Reads JSON that is nested at most [`FRAMED_NESTING_MAX`] levels deep.
pub fn read<'a, T: Deserialize<'a>>(text: &'a (impl AsRef<[u8]> + ?Sized)) -> Result<T, Error> {
    let text = text.as_ref();
    match serde_json::from_slice(text) {
        // Only then are the levels counted. Most texts can be read, and those that Serde does not take apart have no bound.
        Err(error) if error.is_syntax() && opens(text, NESTING_MAX) => read_deep(text),
        read => read,
    }
}

fn read_deep<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T, Error> {
    if opens(text, FRAMED_NESTING_MAX) {
        return Err(too_deep(FRAMED_NESTING_MAX));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    deserializer.disable_recursion_limit();
    let value = T::deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// Reads the params of a run as they are stored. They are a text of somebody else: SQL may have stored a number that no
/// double can hold, or nesting that leaves no room for what answers put around it.
pub fn read_params(text: &str) -> Result<Map<String, Value>, Error> {
    let params: Map<String, Value> = read(text)?;
    // Each level has two brackets, so most texts are too short.
    if text.len() > 2 * RENDERED_NESTING_MAX && is_deeper(&params, RENDERED_NESTING_MAX) {
        return Err(too_deep(RENDERED_NESTING_MAX));
    }
    Ok(params)
}

fn too_deep(levels: usize) -> Error {
    Error::custom(format_args!("nested more than {levels} levels deep"))
}

/// A thing as a value. `serde_json` does the same, but reads JSON in it that is kept as text only up to its own bound.
pub fn to_value(thing: &(impl Serialize + ?Sized)) -> Result<Value, Error> {
    read(&serde_json::to_vec(thing)?)
}

/// Whether some part of a JSON text is nested deeper than that. If the text is no JSON, what follows its first error counts
/// too.
fn opens(text: &[u8], levels: usize) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' if depth == levels => return true,
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// Whether params are nested deeper than so many levels, of which their own is one.
pub fn is_deeper(params: &Map<String, Value>, levels: usize) -> bool {
    params.values().any(|value| exceeds(value, levels - 1))
}

/// Whether a value is nested deeper than that: a number has no level, an empty array has one.
pub fn exceeds(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => levels == 0 || items.iter().any(|item| exceeds(item, levels - 1)),
        Value::Object(fields) => levels == 0 || fields.values().any(|field| exceeds(field, levels - 1)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;
    use serde_json::value::RawValue;

    use super::*;

    fn nested(levels: usize) -> String {
        format!("{}{}", "[".repeat(levels), "]".repeat(levels))
    }

    #[test]
    fn the_nesting_is_bounded() {
        for levels in [1, NESTING_MAX, NESTING_MAX + 1, FRAMED_NESTING_MAX] {
            let text = nested(levels);
            assert_eq!(read::<Value>(&text).unwrap().to_string(), text, "{levels}");
            let text = format!("{}1{}", r#"{"a\"[":"#.repeat(levels), "}".repeat(levels));
            assert_eq!(read::<Value>(&text).unwrap().to_string(), text, "{levels}");
        }
        for levels in [FRAMED_NESTING_MAX + 1, 100_000] {
            let error = read::<Value>(&nested(levels)).unwrap_err();
            assert_eq!(error.to_string(), "nested more than 256 levels deep");
            let error = read::<Value>(&"[{".repeat(levels)).unwrap_err();
            assert!(error.to_string().starts_with("nested more than"), "{error}");
        }
        // Brackets in texts are none.
        let text = json!("[\"".repeat(1_000)).to_string();
        assert_eq!(read::<String>(&text).unwrap().len(), 2_000);
        assert!(!opens(text.as_bytes(), 0) && opens(format!("[{text}]").as_bytes(), 0));
    }

    #[test]
    fn errors_stay_as_they_are() {
        let end = format!("{} 1", nested(200));
        let half = "[".repeat(200);
        for (text, expect) in [
            ("", "EOF while parsing a value at line 1 column 0"),
            ("[1", "EOF while parsing a list at line 1 column 2"),
            ("{} x", "trailing characters at line 1 column 4"),
            (end.as_str(), "trailing characters at line 1 column 402"),
            (half.as_str(), "EOF while parsing a list at line 1 column 200"),
        ] {
            let error = read::<Value>(text).unwrap_err();
            assert!(
                error.to_string().starts_with(expect.split(" at ").next().unwrap()),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn texts_within_are_read_and_become_values() {
        let deep = nested(1_000);
        let text = format!(r#"{{"a": {deep}}}"#);
        let kept: BTreeMap<String, &RawValue> = read(&text).unwrap();
        assert_eq!(kept["a"].get(), deep);
        assert!(to_value(&kept).is_err());
        let text = format!(r#"{{"a":{}}}"#, nested(NESTING_MAX + 1));
        let kept: BTreeMap<String, &RawValue> = read(&text).unwrap();
        assert_eq!(to_value(&kept).unwrap().to_string(), text);
    }

    #[test]
    fn params_are_read_or_it_is_said_why_not() {
        let of = |levels: usize| format!(r#"{{"a":{}}}"#, nested(levels - 1));
        for text in [
            "{}",
            r#"{"a": 1e308}"#,
            of(2).as_str(),
            of(NESTING_MAX + 1).as_str(),
            of(RENDERED_NESTING_MAX).as_str(),
        ] {
            let written = Value::Object(read_params(text).unwrap()).to_string();
            assert_eq!(read::<Value>(&written).unwrap(), read::<Value>(text).unwrap(), "{text}");
        }
        let many_digits = format!(r#"{{"a": 1{}}}"#, "0".repeat(400));
        for (text, expect) in [
            (r#"{"a": 1e400}"#, "number out of range"),
            (many_digits.as_str(), "number out of range"),
            (
                of(RENDERED_NESTING_MAX + 1).as_str(),
                "nested more than 192 levels deep",
            ),
            (of(FRAMED_NESTING_MAX).as_str(), "nested more than 192 levels deep"),
            (of(FRAMED_NESTING_MAX + 1).as_str(), "nested more than 256 levels deep"),
            ("[]", "invalid type: sequence"),
            ("", "EOF while parsing"),
        ] {
            let error = read_params(text).unwrap_err().to_string();
            assert!(error.starts_with(expect), "{text}: {error}");
        }
    }

    #[test]
    fn levels_of_values_are_counted() {
        assert!(!exceeds(&json!(1), 0) && exceeds(&json!([]), 0) && exceeds(&json!({}), 0));
        let value = json!({"a": 1, "b": [[1], {"c": 2}]});
        assert!(!exceeds(&value, 3) && exceeds(&value, 2));
        let of = |levels: usize| Map::from_iter([("a".to_owned(), read::<Value>(&nested(levels)).unwrap())]);
        assert!(!is_deeper(&of(9), 10) && is_deeper(&of(10), 10));
    }
}
