//! Reads JSON strictly: refuses an object that contains a key twice, with its position, and the character U+0000, which
//! Postgres cannot store.

use heddle_domain::bounded::Stopped;
use heddle_domain::fault::pointer_token;
use heddle_domain::spec::{EntriesMax, StrictError, YamlError, parse_json_strict, parse_yaml_strict};
use heddle_domain::{Fault, has_nul};
use serde_json::Value;

use crate::problem::Problem;

/// About how many bytes of memory an entry of an array or an object takes while it is read: the vectors that they are in
/// are twice as long as they need to be.
const ENTRY_BYTES: usize = 64;

/// The same of an object: even one entry makes a node with room for eleven.
const OBJECT_BYTES: usize = 640;

/// The characters of a JSON text that are not in strings.
fn outside_strings(text: &[u8]) -> impl Iterator<Item = u8> {
    let (mut in_string, mut escaped) = (false, false);
    text.iter().copied().filter(move |byte| {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ => return !in_string,
        }
        false
    })
}

/// About how many bytes of memory the values in a JSON text take when it has been read, without its strings: a few bytes of
/// text become hundreds in memory.
pub(crate) fn weight(text: &[u8]) -> usize {
    let weights = outside_strings(text).map(|sign| match sign {
        b'[' | b',' => ENTRY_BYTES,
        b'{' => OBJECT_BYTES,
        _ => 0,
    });
    weights.sum()
}

/// The same of the entries of the outermost array alone, if what is in them is read later, some of it at a time.
pub(crate) fn outer_weight(text: &[u8]) -> usize {
    let mut depth = 0_usize;
    let mut entries = 0;
    for sign in outside_strings(text) {
        match sign {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' if depth == 1 => entries += 1,
            _ => {}
        }
    }
    entries * ENTRY_BYTES
}

/// Reads one JSON document. Not JSON: 400 with line and column. A key twice, U+0000, an array in one of the given fields with
/// too many entries: 422 with a pointer.
pub fn parse(bytes: &[u8], entries_max: EntriesMax) -> Result<Value, Problem> {
    if bytes.trim_ascii().is_empty() {
        return Err(Problem::malformed("the body is empty; JSON was expected"));
    }
    let value = parse_json_strict(bytes, entries_max).map_err(|error| match error {
        StrictError::Malformed(detail) => Problem::malformed(format!("the body is not JSON: {detail}")),
        StrictError::Duplicate(fault) | StrictError::TooMany(fault) => Problem::invalid(fault),
    })?;
    check(&value)?;
    Ok(value)
}

/// Reads one YAML document. Not YAML: 400 with line and column. A key twice, U+0000: 422 with a pointer. One that takes
/// too much to be read: 422; when it is our own trouble, 503.
pub fn parse_yaml(text: &str) -> Result<Value, Problem> {
    let value = parse_yaml_strict(text).map_err(|error| match error {
        YamlError::Refused(StrictError::Malformed(detail)) => {
            Problem::malformed(format!("the body is not YAML: {detail}"))
        }
        YamlError::Refused(StrictError::Duplicate(fault) | StrictError::TooMany(fault)) => Problem::invalid(fault),
        YamlError::Stopped(Stopped::Trouble(_)) => Problem::unavailable(error.to_string(), 1),
        YamlError::Stopped(_) => Problem::invalid_at("", error.to_string()),
    })?;
    check(&value)?;
    Ok(value)
}

/// Refuses the character U+0000, which Postgres cannot store.
pub fn check(value: &Value) -> Result<(), Problem> {
    // The position is searched for only if there is an error: documents of megabytes are read here.
    fn find(value: &Value, pointer: &str) -> Option<String> {
        match value {
            Value::String(text) => text.contains('\0').then(|| pointer.to_owned()),
            Value::Array(items) => items
                .iter()
                .enumerate()
                .find_map(|(index, item)| find(item, &format!("{pointer}/{index}"))),
            Value::Object(entries) => entries.iter().find_map(|(key, item)| {
                let pointer = format!("{pointer}/{}", pointer_token(key));
                if key.contains('\0') {
                    Some(pointer)
                } else {
                    find(item, &pointer)
                }
            }),
            _ => None,
        }
    }
    if !has_nul(value) {
        return Ok(());
    }
    let pointer = find(value, "").unwrap_or_default();
    Err(Problem::invalid(Fault::at(
        pointer,
        "the character U+0000 is not allowed",
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check_parse(input: &str, expect: Result<Value, (u16, &str)>) {
        match (parse(input.as_bytes(), &[]), expect) {
            (Ok(value), Ok(expect)) => assert_eq!(value, expect),
            (Err(problem), Err((status, pointer))) => {
                assert_eq!(problem.status.as_u16(), status, "{input}: {}", problem.detail);
                assert_eq!(
                    problem.errors.first().map_or("", |fault| &fault.pointer),
                    pointer,
                    "{input}"
                );
            }
            (got, expect) => panic!("{input}: {got:?} instead of {expect:?}"),
        }
    }

    #[test]
    fn keys_stand_once_and_places_are_named() {
        check_parse(
            r#"{"a": [1, -2, 0.5, "x", null, true]}"#,
            Ok(json!({"a": [1, -2, 0.5, "x", null, true]})),
        );
        check_parse(r#"{"a": {"b/c": 1, "b/c": 2}}"#, Err((422, "/a/b~1c")));
        check_parse(r#"{"a": "x\u0000"}"#, Err((422, "/a")));
        check_parse(r#"{"a": [{"b\u0000": 1}]}"#, Err((422, "/a/0/b\0")));
        check_parse(r#"{"a": 1"#, Err((400, "")));
        check_parse("{} {}", Err((400, "")));
        check_parse("", Err((400, "")));
        check_parse(&"[".repeat(100_000), Err((400, "")));
        assert!(
            parse(b"{\n  \"a\": x}", &[])
                .unwrap_err()
                .detail
                .contains("line 2 column 8")
        );
        assert_eq!(parse(b"\"\xff\"", &[]).unwrap_err().status.as_u16(), 400);
    }

    #[test]
    fn values_weigh_what_they_take_in_memory() {
        for (text, expect) in [
            ("", 0),
            (r#"{"items":[[],[],[]]}"#, OBJECT_BYTES + 6 * ENTRY_BYTES),
            (r#"{"a":"[,{\",[{\\","b":"\\"}"#, OBJECT_BYTES + ENTRY_BYTES),
            (r#"["a","b"]"#, 2 * ENTRY_BYTES),
        ] {
            assert_eq!(weight(text.as_bytes()), expect, "{text}");
        }
        assert_eq!(outer_weight(br#"[{"a":[1,2],"b":","},{},[[],[]]]"#), 2 * ENTRY_BYTES);
    }

    #[test]
    fn yaml_keys_stand_once() {
        let check = |text: &str, expect: Result<Value, (u16, &str)>| match (parse_yaml(text), expect) {
            (Ok(value), Ok(expect)) => assert_eq!(value, expect, "{text}"),
            (Err(problem), Err((status, pointer))) => {
                let found = problem.errors.first().map_or("", |fault| &fault.pointer);
                assert_eq!(
                    (problem.status.as_u16(), found),
                    (status, pointer),
                    "{text}: {}",
                    problem.detail
                );
            }
            (got, expect) => panic!("{text}: {got:?} instead of {expect:?}"),
        };
        check("tasks:\n  a: {x: 1}\n  a: {x: 2}\n", Err((422, "/tasks/a")));
        check("{tasks: {a: [{b: 1, 'b': 1}]}}", Err((422, "/tasks/a/0/b")));
        check(
            "base: &base {x: 1}\nother: {<<: *base, x: 2}\n",
            Ok(json!({"base": {"x": 1}, "other": {"x": 2}})),
        );
        check("a: [", Err((400, "")));
        check("a: \"x\\0\"\n", Err((422, "/a")));
    }
}
