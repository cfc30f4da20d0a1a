//! The output of an attempt's log: bounded, and a line says so if it is cut.

use crate::services::{HostServices, LogLine};
use crate::texts::{is_json_object, stored_bytes};
use heddle_domain::plan::{LOG_LINE_BYTES_MAX, log_lines_max};
use heddle_domain::state::LogLevel;
use heddle_domain::{Clock, storable_text};
use parking_lot::Mutex;
use std::sync::Arc;

/// The field that stands in place of fields that are too long.
const TRUNCATED: &str = "heddle_truncated";

/// Receives all of an attempt's log: `heddle:task/log`, stdout and stderr.
#[derive(Clone)]
pub(crate) struct Journal {
    inner: Arc<Inner>,
}

struct Inner {
    host: Arc<dyn HostServices>,
    clock: Arc<dyn Clock>,
    limit_bytes: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    used_bytes: usize,
    used_lines: u64,
    truncated: bool,
    /// What stderr wrote after its last line break, up to the length of a line.
    partial: Vec<u8>,
    /// How many bytes that was.
    partial_bytes: usize,
    last_line: String,
}

impl Journal {
    pub fn new(host: Arc<dyn HostServices>, clock: Arc<dyn Clock>, limit_bytes: usize) -> Self {
        Self {
            inner: Arc::new(Inner {
                host,
                clock,
                limit_bytes,
                state: Mutex::default(),
            }),
        }
    }

    pub fn write(&self, level: LogLevel, message: &str, fields: Option<String>) {
        let mut state = self.inner.state.lock();
        self.write_locked(&mut state, level, message, message.len(), fields);
    }

    /// Takes what a guest writes to a stream, line by line.
    pub fn write_stream(&self, bytes: &[u8]) {
        let mut state = self.inner.state.lock();
        if state.truncated {
            // The message of a failing exit code still needs the last line.
            if let Some(line) = bytes.split(|b| *b == b'\n').rfind(|line| !line.is_empty()) {
                state.last_line = text_of(line);
            }
            return;
        }
        for piece in bytes.split_inclusive(|b| *b == b'\n') {
            let line = piece.strip_suffix(b"\n").unwrap_or(piece);
            let room = LOG_LINE_BYTES_MAX.saturating_sub(state.partial.len());
            state.partial.extend_from_slice(&line[..line.len().min(room)]);
            state.partial_bytes = state.partial_bytes.saturating_add(line.len());
            if line.len() < piece.len() {
                self.end_line(&mut state);
            }
        }
    }

    /// Writes a last line without a line break.
    pub fn flush(&self) {
        let mut state = self.inner.state.lock();
        if !state.partial.is_empty() {
            self.end_line(&mut state);
        }
    }

    /// The last line that a stream wrote.
    pub fn last_line(&self) -> String {
        self.inner.state.lock().last_line.clone()
    }

    /// Whether anything was cut.
    pub fn truncated(&self) -> bool {
        self.inner.state.lock().truncated
    }

    fn end_line(&self, state: &mut State) {
        let partial = std::mem::take(&mut state.partial);
        let whole_bytes = std::mem::take(&mut state.partial_bytes);
        let line = text_of(&partial);
        if !line.is_empty() {
            self.write_locked(state, LogLevel::Info, &line, whole_bytes, None);
            state.last_line = line;
        }
    }

    /// `whole_bytes` is the length of the line before any of it was left out.
    fn write_locked(
        &self,
        state: &mut State,
        level: LogLevel,
        message: &str,
        whole_bytes: usize,
        fields: Option<String>,
    ) {
        if state.truncated {
            return;
        }
        // Replacing what is not UTF-8 makes the line longer; so does replacing zero characters, which Postgres does not
        // accept.
        let whole_bytes = whole_bytes.max(stored_bytes(message));
        let mut message = storable_text(message, LOG_LINE_BYTES_MAX);
        if whole_bytes > LOG_LINE_BYTES_MAX {
            // A part of a character at the end became U+FFFD.
            message.truncate(message.trim_end_matches('\u{fffd}').len());
            message = self.inner.host.cut(message);
            message.push_str(&format!(
                " … (truncated: the line had {whole_bytes} bytes, the maximum is {LOG_LINE_BYTES_MAX})"
            ));
        }
        // Less than all of an object is no JSON, so what is too long is left out as a whole.
        let fields = fields.map(|fields| match fields.len() {
            bytes if bytes > LOG_LINE_BYTES_MAX => {
                format!(r#"{{"{TRUNCATED}":"the fields had {bytes} bytes, the maximum is {LOG_LINE_BYTES_MAX}"}}"#)
            }
            _ => fields,
        });
        let bytes = message.len() + fields.as_ref().map_or(0, String::len);
        let at = self.inner.clock.now();
        let (bytes_max, lines_max) = (self.inner.limit_bytes, log_lines_max(self.inner.limit_bytes as u64));
        let limit = match (state.used_bytes + bytes > bytes_max, state.used_lines >= lines_max) {
            (true, _) => Some(format!("{bytes_max} bytes")),
            (false, true) => Some(format!("{lines_max} lines")),
            (false, false) => None,
        };
        if let Some(limit) = limit {
            state.truncated = true;
            message = format!("log truncated: it reached its limit of {limit}");
            self.inner.host.log(LogLine {
                at,
                level: LogLevel::Warn,
                message,
                fields: None,
            });
            return;
        }
        state.used_bytes += bytes;
        state.used_lines += 1;
        self.inner.host.log(LogLine {
            at,
            level,
            message,
            fields,
        });
    }
}

fn text_of(line: &[u8]) -> String {
    String::from_utf8_lossy(line).trim_end_matches(['\n', '\r']).to_owned()
}

/// Whether a line can have these fields: an object as JSON. What is too long is not read, because a mark is written in
/// its place, whatever it is.
pub(crate) fn are_fields(fields: &str) -> bool {
    fields.len() > LOG_LINE_BYTES_MAX || is_json_object(fields)
}

/// The first `max` bytes, cut between characters.
pub(crate) fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rehearsal::StageClock;

    #[derive(Default)]
    struct Lines(Mutex<Vec<LogLine>>);

    impl HostServices for Lines {
        fn cut(&self, beginning: String) -> String {
            format!("{beginning}|")
        }

        fn log(&self, line: LogLine) {
            self.0.lock().push(line);
        }
    }

    #[test]
    fn fields_that_are_too_long_leave_a_mark() {
        let lines = Arc::new(Lines::default());
        let clock = Arc::new(StageClock::new(heddle_domain::Time::UNIX_EPOCH, false, None));
        let journal = Journal::new(Arc::clone(&lines) as Arc<dyn HostServices>, clock, 1 << 20);
        let fields = |bytes: usize| format!(r#"{{"a":"{}"}}"#, "x".repeat(bytes - 8));
        for bytes in [LOG_LINE_BYTES_MAX, LOG_LINE_BYTES_MAX + 1] {
            journal.write(LogLevel::Info, "text", Some(fields(bytes)));
        }
        let found: Vec<Option<String>> = lines.0.lock().iter().map(|line| line.fields.clone()).collect();
        assert_eq!(found[0], Some(fields(LOG_LINE_BYTES_MAX)));
        let mark = r#"{"heddle_truncated":"the fields had 65537 bytes, the maximum is 65536"}"#;
        assert_eq!(found[1].as_deref(), Some(mark));
    }

    #[test]
    fn fields_that_are_too_long_are_not_read() {
        for (fields, expect) in [
            (r#"{"a":1}"#.to_owned(), true),
            (" {}".to_owned(), true),
            ("[1]".to_owned(), false),
            (String::new(), false),
            ("{".repeat(LOG_LINE_BYTES_MAX), false),
            ("{".repeat(LOG_LINE_BYTES_MAX + 1), true),
        ] {
            assert_eq!(are_fields(&fields), expect, "{fields:.20}");
        }
    }

    /// U+FFFD, which stands for U+0000, is three times as long.
    #[test]
    fn zero_characters_do_not_make_lines_too_long() {
        let lines = Arc::new(Lines::default());
        let clock = Arc::new(StageClock::new(heddle_domain::Time::UNIX_EPOCH, false, None));
        let journal = Journal::new(Arc::clone(&lines) as Arc<dyn HostServices>, clock, 1 << 20);
        let last = LOG_LINE_BYTES_MAX - 3;
        journal.write(LogLevel::Info, &format!("{}\0", "x".repeat(last)), None);
        journal.write(LogLevel::Info, &format!("{}\0y", "x".repeat(last)), None);
        journal.write_stream(format!("x{}\n", "\0x".repeat(LOG_LINE_BYTES_MAX / 2 - 1)).as_bytes());
        let found: Vec<String> = lines.0.lock().iter().map(|line| line.message.clone()).collect();
        assert_eq!(found[0], format!("{}\u{fffd}", "x".repeat(last)));
        for (line, bytes) in found[1..].iter().zip([65_537, 131_069]) {
            let (beginning, rest) = line.split_once('|').unwrap();
            assert!(beginning.len() <= LOG_LINE_BYTES_MAX && beginning.len() >= LOG_LINE_BYTES_MAX - 4);
            assert!(rest.contains(&format!("the line had {bytes} bytes")), "{rest}");
        }
        assert_eq!(found.len(), 3);
    }

    /// The end of a cut text is checked for a part of a secret, without what was a part of a character.
    #[test]
    fn the_host_sees_where_a_line_is_cut() {
        let lines = Arc::new(Lines::default());
        let clock = Arc::new(StageClock::new(heddle_domain::Time::UNIX_EPOCH, false, None));
        let journal = Journal::new(Arc::clone(&lines) as Arc<dyn HostServices>, clock, 1 << 20);
        let whole = "x".repeat(LOG_LINE_BYTES_MAX);
        journal.write(LogLevel::Info, &whole, None);
        journal.write(LogLevel::Info, &format!("{whole}y"), None);
        for character in ["\u{e4}", "\u{20ac}", "\u{1f600}"] {
            for before in LOG_LINE_BYTES_MAX + 1 - character.len()..LOG_LINE_BYTES_MAX {
                journal.write_stream(format!("{}{character}\n", &whole[..before]).as_bytes());
            }
        }
        let found: Vec<String> = lines.0.lock().iter().map(|line| line.message.clone()).collect();
        assert_eq!(found[0], whole);
        assert_eq!(found.len(), 8);
        for line in &found[1..] {
            let (beginning, rest) = line.split_once('|').unwrap();
            assert!(beginning.len() > LOG_LINE_BYTES_MAX - 4 && beginning.bytes().all(|byte| byte == b'x'));
            assert!(rest.starts_with(" \u{2026} (truncated: the line had"), "{rest}");
        }
    }
}
