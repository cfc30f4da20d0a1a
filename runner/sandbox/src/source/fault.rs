//! An error in a text, and the trace of one.

use serde::{Deserialize, Serialize};

/// An error in a text, and its position.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFault {
    pub message: String,
    /// The line, from 1, if the error has one.
    pub line: Option<u32>,
    /// The character in that line, from 1.
    pub column: Option<u32>,
    pub text: Option<String>,
}

/// The longest line that a fault shows.
const MAX_SHOWN_CHARS: usize = 300;

impl SourceFault {
    /// A fault of the whole text.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            ..Self::default()
        }
    }

    /// A fault at a byte.
    pub fn at(source: &str, offset: usize, message: impl Into<String>) -> Self {
        let before = &source[..source.floor_char_boundary(offset)];
        let line = before.matches('\n').count() + 1;
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        let column = before[start..].chars().count() + 1;
        Self::on(source, message, line as u32, column as u32)
    }

    /// A fault at a line and a character.
    pub fn on(source: &str, message: impl Into<String>, line: u32, column: u32) -> Self {
        let text = source.split('\n').nth(line.saturating_sub(1) as usize);
        let text = text.map(|text| text.trim_end_matches('\r').chars().take(MAX_SHOWN_CHARS).collect());
        Self {
            message: message.into(),
            line: Some(line),
            column: Some(column),
            text,
        }
    }
}

impl std::fmt::Display for SourceFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.line, self.column, &self.text) {
            (Some(line), Some(column), Some(text)) => {
                write!(f, "line {line}, column {column}: {}: {}", self.message, text.trim())
            }
            _ => f.write_str(&self.message),
        }
    }
}

/// A trace in which a text's module has another name: JavaScript writes `script.js:1:2`, Python `File "script.py", line
/// 1`.
pub fn trace_of_file(trace: &str, module: &str, shown: &str) -> String {
    trace
        .replace(&format!("{module}:"), &format!("{shown}:"))
        .replace(&format!("File \"{module}\""), &format!("File \"{shown}\""))
}

/// The same in a message of a log, in which an error may stand with its trace. Other lines stay as the script wrote them.
pub fn log_of_file(message: &str, module: &str, shown: &str) -> String {
    let is_of_trace = |line: &str| {
        ["at ", "File \""]
            .iter()
            .any(|begin| line.trim_start().starts_with(begin))
    };
    let lines = message.split('\n').map(|line| match is_of_trace(line) {
        true => trace_of_file(line, module, shown),
        false => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_names_the_file() {
        let trace = "at run (script.ts:1:2)\n  File \"script.py\", line 3, in run\n    open(\"script.py\")";
        assert_eq!(
            trace_of_file(&trace_of_file(trace, "script.ts", "a.ts"), "script.py", "b.py"),
            "at run (a.ts:1:2)\n  File \"b.py\", line 3, in run\n    open(\"script.py\")"
        );
    }

    #[test]
    fn a_log_names_the_file_in_traces_only() {
        let message = "script.js: Error: no\n    at run (script.js:1:2)\n";
        assert_eq!(
            log_of_file(message, "script.js", "a.js"),
            "script.js: Error: no\n    at run (a.js:1:2)\n"
        );
    }

    #[test]
    fn a_fault_shows_its_line() {
        let fault = SourceFault::at("one\n  zwö lf\r\nthree", 11, "odd");
        assert_eq!((fault.line, fault.column), (Some(2), Some(7)));
        assert_eq!(fault.to_string(), "line 2, column 7: odd: zwö lf");
    }
}
