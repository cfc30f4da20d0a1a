//! Texts of guests: bounded, and checked to be JSON.

use heddle_domain::spec::NESTING_MAX;
use heddle_domain::{ERROR_MESSAGE_BYTES_MAX, storable_text};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// The key with which serde_json marks JSON that is not to be read. It does so too with what a script wrote itself.
const RAW_KEY: &str = "$serde_json::private::RawValue";
/// How long an escape with four digits is, such as `\ud83d`.
const ESCAPE_BYTES: usize = 6;

/// A text for the database: bounded, without zero characters.
pub(crate) fn message(text: &str) -> String {
    storable_text(text, ERROR_MESSAGE_BYTES_MAX)
}

/// How many bytes all of a text has in the database: there, U+FFFD stands for each U+0000, and is three times as long.
pub(crate) fn stored_bytes(text: &str) -> usize {
    let zeros = text.bytes().filter(|byte| *byte == 0).count();
    text.len() + zeros * ("\u{fffd}".len() - 1)
}

/// Whether a text is JSON. The error is for the author of a script.
pub(crate) fn check_json(text: &str) -> Result<(), String> {
    read(text).map(drop)
}

/// The same; returns whether a text or a key in it has the character U+0000.
pub(crate) fn json_has_nul(text: &str) -> Result<bool, String> {
    Ok(read(text)?.has_nul)
}

/// Whether a text is an object as JSON.
pub(crate) fn is_json_object(text: &str) -> bool {
    text.trim_start().starts_with('{') && check_json(text).is_ok()
}

fn read(text: &str) -> Result<Checked, String> {
    serde_json::from_str(text).map_err(|error: serde_json::Error| in_words(&error.to_string()))
}

/// What is known of JSON that was read as a [`serde_json::Value`] is read, and not kept: as a value, it would have up to
/// eighty times the size of its text. All that a value refuses (numbers out of range, halves of surrogate pairs, endless
/// nesting) is refused, because no reader could use it. [`serde::de::IgnoredAny`] refuses less.
#[derive(Default)]
struct Checked {
    has_nul: bool,
}

impl<'de> Deserialize<'de> for Checked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Checker)
    }
}

struct Checker;

impl<'de> Visitor<'de> for Checker {
    type Value = Checked;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("any valid JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Checked, E> {
        Ok(Checked::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Checked, E> {
        Ok(Checked::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<Checked, E> {
        Ok(Checked::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Checked, E> {
        Ok(Checked::default())
    }

    fn visit_unit<E>(self) -> Result<Checked, E> {
        Ok(Checked::default())
    }

    fn visit_str<E>(self, text: &str) -> Result<Checked, E> {
        Ok(Checked {
            has_nul: text.contains('\0'),
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Checked, A::Error> {
        let mut all = Checked::default();
        while let Some(item) = items.next_element::<Checked>()? {
            all.has_nul |= item.has_nul;
        }
        Ok(all)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Checked, A::Error> {
        let mut all = Checked::default();
        let mut is_first = true;
        while let Some(key) = fields.next_key::<Key>()? {
            // The value of this key is JSON as a text: a value that is read contains what that text says.
            if is_first && key.is_raw {
                let raw: String = fields.next_value()?;
                return serde_json::from_str(&raw).map_err(A::Error::custom);
            }
            is_first = false;
            let value = fields.next_value::<Checked>()?;
            all.has_nul |= key.has_nul || value.has_nul;
        }
        Ok(all)
    }
}

/// What is known of a key of an object.
struct Key {
    has_nul: bool,
    /// It is serde_json's own, for [`serde_json::value::RawValue`].
    is_raw: bool,
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(KeyReader)
    }
}

struct KeyReader;

impl Visitor<'_> for KeyReader {
    type Value = Key;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a string key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Key, E> {
        Ok(Key {
            has_nul: key.contains('\0'),
            is_raw: key == RAW_KEY,
        })
    }
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

    /// Texts that are JSON, and texts that are almost JSON.
    const ODD: &[&str] = &[
        "",
        " ",
        "1",
        " 1\n",
        "1 2",
        "-0",
        "01",
        "-",
        "+1",
        ".5",
        "1.",
        "1e",
        "1e5",
        "1e999",
        "-1e999",
        "1e-999",
        "18446744073709551615",
        "-9223372036854775808",
        "123456789012345678901234567890",
        "NaN",
        "Infinity",
        "true",
        "tru",
        "nul",
        "null",
        "truefalse",
        "[",
        "[1",
        "[1,]",
        "[,1]",
        "[1 2]",
        "[1}",
        "[]",
        "{}",
        "{",
        "{,}",
        "{1:2}",
        "{a:1}",
        "{'a':1}",
        r#"{"a"}"#,
        r#"{"a":}"#,
        r#"{"a":1,}"#,
        r#"{"a":1 "b":2}"#,
        r#"{"a":1,"a":2}"#,
        r#"{"a":1,"a":}"#,
        r#"{"a":1e999}"#,
        r#""a""#,
        r#""a"#,
        r#""\x""#,
        r#""\u12""#,
        r#""\u12g4""#,
        r#""\n\/""#,
        r#""\ud83d""#,
        r#""\ude00""#,
        r#""\ud83d\u0041""#,
        r#""\ud83d\ude00""#,
        r#""\ude00\ud83d""#,
        r#""\ud83d\n""#,
        r#"{"\ud83d":1}"#,
        r#"{"\ude00":1}"#,
        r#"{"\u0000":"\u0000"}"#,
        "\"\n\"",
        "\"\0\"",
        "\"\u{7f}\"",
        "\u{feff}1",
        "/* */1",
        "1//",
        r#"{"$serde_json::private::RawValue":"[1]"}"#,
        r#"{"$serde_json::private::RawValue":"[1"}"#,
        r#"{"$serde_json::private::RawValue":"1","a":1}"#,
        r#"{"a":1,"$serde_json::private::RawValue":"[1"}"#,
        r#"[{"\u0024serde_json::private::RawValue":"1e999"}]"#,
    ];

    /// What is checked is refused like what is read as a value, and with the same words.
    #[test]
    fn the_check_refuses_what_a_value_refuses() {
        let nested =
            |open: &str, close: &str, levels: usize| format!("{}1{}", open.repeat(levels), close.repeat(levels));
        let deep = [126, 127, 128, 129]
            .into_iter()
            .flat_map(|levels| [nested("[", "]", levels), nested(r#"{"a":"#, "}", levels)]);
        for text in ODD.iter().map(|text| (*text).to_owned()).chain(deep) {
            let as_value = serde_json::from_str::<serde_json::Value>(&text);
            let expect = as_value.map(drop).map_err(|error| in_words(&error.to_string()));
            assert_eq!(check_json(&text), expect, "{text}");
        }
        // Only the words differ.
        let no_text = r#"{"$serde_json::private::RawValue":1}"#;
        assert!(serde_json::from_str::<serde_json::Value>(no_text).is_err());
        assert!(check_json(no_text).is_err());
    }

    #[test]
    fn zero_characters_are_found() {
        for (json, expect) in [
            (r#"{"a":["b",{"c":"d\u0000"}]}"#, true),
            (r#"{"a":{"\u0000":1}}"#, true),
            (r#"{"a":"\\u0000","b":[1,null,true,1.5,-1]}"#, false),
        ] {
            assert_eq!(json_has_nul(json), Ok(expect), "{json}");
        }
        assert!(json_has_nul("[").is_err());
    }
}
