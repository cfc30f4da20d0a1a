//! What is wrong with a text, and where.

use serde::Serialize;

/// A fault. The one who asked knows the text, and shows the line.
#[derive(Clone, Debug, Serialize)]
pub struct Fault {
    pub message: String,
    /// The first one is 1.
    pub line: Option<u32>,
    /// The character in the line, from 1.
    pub column: Option<u32>,
}

impl Fault {
    /// A fault of the whole text.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            line: None,
            column: None,
        }
    }

    /// A fault at a byte.
    pub fn at(source: &str, offset: usize, message: impl Into<String>) -> Self {
        let before = &source[..source.floor_char_boundary(offset)];
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        Self {
            message: message.into(),
            line: Some(before.matches('\n').count() as u32 + 1),
            column: Some(before[start..].chars().count() as u32 + 1),
        }
    }
}
