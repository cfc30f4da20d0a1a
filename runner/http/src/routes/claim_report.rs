//! The contents of a heartbeat besides the extension: progress, a note, lines for the log.

use heddle_api::moment::parse_moment;
use heddle_domain::plan::LOG_LINE_BYTES_MAX;
use heddle_domain::state::LogLevel;
use heddle_domain::{Faults, Time};
use heddle_store::live::{ClaimReport, ReportLine};
use serde_json::Value;

/// How many lines one heartbeat carries.
const LINES_MAX: usize = 1_000;

const NOTE_CHARS_MAX: usize = 1_000;

fn read_line(given: heddle_api::ReportLine, pointer: &str, now: Time, faults: &mut Faults) -> ReportLine {
    let level = match given.level.as_deref() {
        None => LogLevel::Info,
        Some(word) => word.parse().unwrap_or_else(|_| {
            let words: Vec<&str> = LogLevel::ALL.iter().map(|level| level.as_str()).collect();
            faults.add(
                format!("{pointer}/level"),
                format!("must be one of {}", words.join(", ")),
            );
            LogLevel::Info
        }),
    };
    let at = match given.at.as_deref().map(parse_moment) {
        None => now,
        Some(Ok(at)) => at,
        Some(Err(error)) => {
            faults.add(format!("{pointer}/at"), error);
            now
        }
    };
    if given.message.len() > LOG_LINE_BYTES_MAX {
        faults.add(
            format!("{pointer}/message"),
            format!("must have at most {LOG_LINE_BYTES_MAX} bytes"),
        );
    }
    let fields = given.fields.filter(|fields| !fields.is_empty());
    let fields = fields.map(|fields| Value::Object(fields).to_string().replace("\\u0000", "\\ufffd"));
    if fields.as_ref().is_some_and(|fields| fields.len() > LOG_LINE_BYTES_MAX) {
        faults.add(
            format!("{pointer}/fields"),
            format!("must have at most {LOG_LINE_BYTES_MAX} bytes"),
        );
    }
    ReportLine {
        at,
        level,
        // Postgres takes no zero characters.
        message: given.message.replace('\0', "\u{fffd}"),
        fields,
    }
}

/// Reads what a heartbeat carries.
pub(super) fn read(
    progress: Option<f64>,
    note: Option<String>,
    log: Vec<heddle_api::ReportLine>,
    now: Time,
    faults: &mut Faults,
) -> ClaimReport {
    if progress.is_some_and(|progress| !(0.0..=1.0).contains(&progress)) {
        faults.add("/progress", "must be from 0 to 1");
    }
    if note.as_ref().is_some_and(|note| note.chars().count() > NOTE_CHARS_MAX) {
        faults.add("/note", format!("must have at most {NOTE_CHARS_MAX} characters"));
    }
    if log.len() > LINES_MAX {
        faults.add("/log", format!("must have at most {LINES_MAX} lines"));
        return ClaimReport::default();
    }
    let lines = log
        .into_iter()
        .enumerate()
        .map(|(index, line)| read_line(line, &format!("/log/{index}"), now, faults))
        .collect();
    ClaimReport {
        progress,
        note: note.map(|note| note.replace('\0', "\u{fffd}")),
        lines,
        log_bytes_max: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_cannot_be_read_is_said_with_its_place() {
        let now: Time = "2026-11-20T10:00:00Z".parse().unwrap();
        let log = |value: Value| serde_json::from_value::<Vec<heddle_api::ReportLine>>(value).unwrap();
        let mut faults = Faults::default();
        let lines = log(json!([
            {"message": "a"},
            {"message": "b", "level": "warn", "fields": {"n": 1}, "at": "2026-11-20T09:00:00Z"},
        ]));
        let report = read(Some(0.5), Some("half".into()), lines, now, &mut faults);
        assert!(faults.is_empty());
        assert_eq!((report.lines[0].level, report.lines[0].at), (LogLevel::Info, now));
        assert_eq!(
            (report.lines[1].level, report.lines[1].fields.as_deref()),
            (LogLevel::Warn, Some(r#"{"n":1}"#))
        );
        let wrong = log(json!([{"message": "a", "level": "loud"}, {"message": "b", "at": "now"}]));
        read(Some(1.5), Some("n".repeat(2_000)), wrong, now, &mut faults);
        let pointers: Vec<&str> = faults.0.iter().map(|fault| fault.pointer.as_str()).collect();
        assert_eq!(pointers, ["/progress", "/note", "/log/0/level", "/log/1/at"]);
    }
}
