//! What kind of terminal there is, drawing on it, and asking whoever sits there.

use std::io::{IsTerminal, Write};

use anyhow::Result;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The assumed size of a terminal, if it cannot be determined.
const DEFAULT_SIZE: (usize, usize) = (80, 24);

/// Writes a line for people to stderr, as `eprintln!` does. If nobody can read it (a closed pipe, a full disk), it is lost:
/// it must not change how the command ends.
macro_rules! tell {
    ($($text:tt)*) => {
        $crate::terminal::write_line(format_args!($($text)*))
    };
}
pub(crate) use tell;

/// Writes the line of `tell!`, without a buffer. An error is ignored.
pub(crate) fn write_line(text: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Whether stdout is a terminal.
pub(crate) fn is_interactive() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Whether somebody sits there who can be asked. Scripts cannot.
pub(crate) fn can_ask() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Asks on stderr, since stdout is for results. Any answer but yes is a no.
pub(crate) fn asks(question: &str) -> Result<bool> {
    let mut stderr = std::io::stderr();
    write!(stderr, "{question} [y/N] ")?;
    stderr.flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Whether something may be deleted: without a terminal, or with `--yes`, nobody is asked.
pub(crate) fn may_delete(what: &str, yes: bool) -> Result<bool> {
    if yes || !can_ask() || asks(&format!("This deletes {what}. Continue?"))? {
        return Ok(true);
    }
    tell!("nothing was deleted");
    Ok(false)
}

/// Says that a command waits for what is typed: it would look as if it hung.
pub(crate) fn says_that_stdin_is_read() {
    if can_ask() {
        tell!("reading from standard input; end with Ctrl-D");
    }
}

/// While this lives, the terminal does not show what is typed.
pub(crate) struct Unseen(Termios);

impl Unseen {
    /// `None`: stdin is no terminal.
    pub(crate) fn begin() -> Option<Self> {
        let before = tcgetattr(std::io::stdin()).ok()?;
        let mut unseen = before.clone();
        unseen.local_modes.remove(LocalModes::ECHO);
        tcsetattr(std::io::stdin(), OptionalActions::Now, &unseen).ok()?;
        Some(Self(before))
    }
}

impl Drop for Unseen {
    fn drop(&mut self) {
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
    }
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

/// Breaks text into lines of a number of columns, at most so many; the last one says whether there is more.
pub(crate) fn wrapped(text: &str, width: usize, lines_max: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        if lines.len() + 1 == lines_max {
            lines.push(cut(rest, width));
            break;
        }
        let mut used = 0;
        let fits = rest.char_indices().find(|(_, letter)| {
            used += letter.width().unwrap_or(0);
            used > width
        });
        // A line ends between two words if it contains a space. It has at least one character.
        let end = match fits {
            None => rest.len(),
            Some((end, ' ')) => end,
            Some((end, _)) => match rest[..end].rfind(' ').filter(|space| *space > 0) {
                Some(space) => space,
                None => end.max(rest.chars().next().map_or(0, char::len_utf8)),
            },
        };
        lines.push(rest[..end].to_owned());
        rest = rest[end..].trim_start();
    }
    lines
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
        assert_eq!(wrapped("the weather in Seattle", 12, 3), ["the weather", "in Seattle"]);
        assert_eq!(wrapped("unbreakable", 4, 9), ["unbr", "eaka", "ble"]);
        assert_eq!(wrapped("one two three four", 9, 2), ["one two", "three fo\u{2026}"]);
        assert_eq!(wrapped("\u{5929}\u{6c14}", 1, 9), ["\u{5929}", "\u{6c14}"]);
        assert_eq!(wrapped("ab cdef gh", 7, 9), ["ab cdef", "gh"]);
        assert!(wrapped("  ", 9, 2).is_empty());
        assert_eq!(cut("\u{5929}\u{6c14}\u{9884}\u{62a5}", 6), "\u{5929}\u{6c14}\u{2026}");
    }
}
