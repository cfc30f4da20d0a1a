//! Texts of guests: bounded, and checked to be JSON.

use heddle_domain::spec::NESTING_MAX;
use heddle_domain::{ERROR_MESSAGE_BYTES_MAX, storable_text};
use serde_json::Value;
use std::borrow::Cow;

/// How long an escape with four digits is, such as `\ud83d`.
const ESCAPE_BYTES: usize = 6;

/// A text for the database: bounded, without zero characters.
pub(crate) fn message(text: &str) -> String {
    storable_text(text, ERROR_MESSAGE_BYTES_MAX)
}

/// Whether a text is JSON. The error is for the author of a script.
pub(crate) fn check_json(text: &str) -> Result<(), String> {
    // Read as a value: what cannot be read (numbers out of range, lone surrogates, endless nesting) is no JSON that a
    // reader could use.
    serde_json::from_str::<Value>(text)
        .map(drop)
        .map_err(|error| in_words(&error.to_string()))
}

/// An error of the parser. Some of its words are replaced: they are about itself.
fn in_words(error: &str) -> String {
    let half = "a text has half of a surrogate pair (a part of a character)";
    error
        .replace(
            "recursion limit exceeded",
            &format!("nested more than {NESTING_MAX} levels deep"),
        )
        .replace("unexpected end of hex escape", half)
        .replace("lone leading surrogate in hex escape", half)
}

/// The same JSON, in which each half of a surrogate pair is U+FFFD, as JavaScript's `toWellFormed` makes it. Texts of
/// JavaScript and Python may have such halves; no other JSON does.
pub(crate) fn well_formed(json: &str) -> Cow<'_, str> {
    if !json.contains("\\ud") && !json.contains("\\uD") {
        return Cow::Borrowed(json);
    }
    let mut text = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        text.push_str(before);
        let next = escape.get(ESCAPE_BYTES..).unwrap_or_default();
        let (kept, length) = match (unit(escape), unit(next)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => (true, 2 * ESCAPE_BYTES),
            (Some(0xd800..=0xdfff), _) => (false, ESCAPE_BYTES),
            (Some(_), _) => (true, ESCAPE_BYTES),
            (None, _) if escape.starts_with("\\\\") => (true, 2),
            (None, _) => (true, 1),
        };
        let (escape, after) = escape.split_at(length);
        text.push_str(if kept { escape } else { "\\ufffd" });
        rest = after;
    }
    text.push_str(rest);
    Cow::Owned(text)
}

/// The number of an escape with four digits with which the text begins.
fn unit(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    u16::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_characters_are_replaced() {
        for (json, expect) in [
            (r#""plain""#, r#""plain""#),
            (r#""\ud83d\ude00 \uD83D\uDE00""#, r#""\ud83d\ude00 \uD83D\uDE00""#),
            (r#""\ud83d""#, r#""\ufffd""#),
            (r#""\ude00\ud83d\ud83d\ude00""#, r#""\ufffd\ufffd\ud83d\ude00""#),
            (
                r#""\\ud83d \\\ud83d \u00e9 \"\ud8""#,
                r#""\\ud83d \\\ufffd \u00e9 \"\ud8""#,
            ),
            (r#"{"ä\ud800ä": "\n\ud800"}"#, r#"{"ä\ufffdä": "\n\ufffd"}"#),
        ] {
            assert_eq!(well_formed(json), expect, "{json}");
        }
    }

    #[test]
    fn errors_are_written_for_authors() {
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        for (json, expect) in [
            (deep.as_str(), "nested more than 127 levels deep at line 1"),
            (r#"["\ud83d"]"#, "a text has half of a surrogate pair"),
            (r#"["\ud83d\u0041"]"#, "a text has half of a surrogate pair"),
            ("[1", "EOF while parsing"),
        ] {
            let said = check_json(json).unwrap_err();
            assert!(said.starts_with(expect), "{said}");
        }
        assert_eq!(check_json("[1]"), Ok(()));
    }
}
