//! Texts of guests: bounded, and checked to be JSON.

use crate::journal::cut;

/// The longest error message that is kept.
const MAX_MESSAGE_BYTES: usize = 8 << 10;

/// A text for the database: bounded, without zero characters.
pub(crate) fn message(text: &str) -> String {
    cut(text, MAX_MESSAGE_BYTES).replace('\0', "\u{fffd}")
}

/// Whether a text is JSON.
pub(crate) fn check_json(text: &str) -> Result<(), serde_json::Error> {
    // Read as a value: what cannot be read (numbers out of range, lone surrogates, endless nesting) is no JSON that a
    // reader could use.
    serde_json::from_str::<serde_json::Value>(text).map(drop)
}
