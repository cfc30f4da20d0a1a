//! Properties of the terminal, and drawing on it.

use std::io::{IsTerminal, Write};

use anyhow::Result;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The assumed size of a terminal, if it cannot be determined.
const DEFAULT_SIZE: (usize, usize) = (80, 24);

/// Whether stdout is a terminal.
pub(crate) fn is_interactive() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Whether to use colours (https://no-color.org).
pub(crate) fn has_colours() -> bool {
    is_interactive() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The terminal's columns and rows, in characters.
pub(crate) fn size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => DEFAULT_SIZE,
    }
}

/// A block of lines at the end of the output that is drawn again and again.
#[derive(Debug, Default)]
pub(crate) struct Canvas {
    drawn: usize,
}

impl Canvas {
    pub(crate) fn draw(&mut self, lines: &[String]) -> Result<()> {
        let (_, rows) = size();
        let mut text = String::new();
        if self.drawn > 0 {
            text.push_str(&format!("\x1b[{}A", self.drawn));
        }
        text.push_str("\r\x1b[J");
        let shown = &lines[..lines.len().min(rows.saturating_sub(1))];
        for line in shown {
            text.push_str(line);
            text.push('\n');
        }
        self.drawn = shown.len();
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())?;
        Ok(out.flush()?)
    }
}

/// Text in an ANSI colour, if colours are used.
pub(crate) fn coloured(text: &str, colour: &str, on: bool) -> String {
    if on {
        format!("\x1b[{colour}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

/// Cuts text to a number of columns; most characters of East Asia take two.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut used = 1;
    let mut short: String = text
        .chars()
        .take_while(|letter| {
            used += letter.width().unwrap_or(0);
            used <= width
        })
        .collect();
    short.push('\u{2026}');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_by_columns() {
        assert_eq!(cut("weather", 7), "weather");
        assert_eq!(cut("weather", 6), "weath\u{2026}");
        assert_eq!(cut("\u{5929}\u{6c14}\u{9884}\u{62a5}", 6), "\u{5929}\u{6c14}\u{2026}");
    }
}
