//! Texts that Postgres stores: without the character U+0000, which it cannot store, and within a bound.

use serde_json::Value;

/// The longest error message of an attempt that is kept, in bytes. What is longer is cut.
pub const ERROR_MESSAGE_BYTES_MAX: usize = 8 << 10;
/// The longest trace of an attempt that is kept, in bytes. What is longer is cut.
pub const ERROR_TRACE_BYTES_MAX: usize = 16 << 10;

/// Whether a text or a key somewhere in a JSON value contains U+0000.
pub fn has_nul(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(items) => items.iter().any(has_nul),
        Value::Object(fields) => fields.iter().any(|(key, value)| key.contains('\0') || has_nul(value)),
        _ => false,
    }
}

/// The beginning of a text, of at most `bytes_max` bytes, cut between characters. Each U+0000 is replaced by U+FFFD.
/// Only this beginning is copied, however long the text is.
pub fn storable_text(text: &str, bytes_max: usize) -> String {
    let beginning = &text[..text.floor_char_boundary(bytes_max)];
    let mut kept = beginning.replace('\0', "\u{fffd}");
    // U+FFFD is longer than what it replaces.
    kept.truncate(kept.floor_char_boundary(bytes_max));
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters() {
        for (text, bytes_max, expect) in [
            ("", 4, ""),
            ("abcd", 4, "abcd"),
            ("abcde", 4, "abcd"),
            ("abcé", 4, "abc"),
            ("a\0b", 8, "a\u{fffd}b"),
            ("\0\0", 4, "\u{fffd}"),
            ("abc", 0, ""),
        ] {
            assert_eq!(storable_text(text, bytes_max), expect, "{text:?} {bytes_max}");
        }
    }
}
