//! `heddle run logs`: the log of a run or of a task, whole, its end, or as it grows.

use std::collections::{BTreeMap, HashSet};
use std::process::ExitCode;

use anyhow::Result;
use heddle_client::Request;
use heddle_domain::framed;
use serde_json::Value;
use uuid::Uuid;

use super::patience::Patience;
use crate::exit::{BrokenOff, done};
use crate::output::{self, Format, Printed, cell, items};
use crate::session::Session;

/// How many printed lines are remembered, so that none is printed twice after a break.
const HEARD_MAX: usize = 10_000;

pub(super) async fn logs(
    session: &Session,
    id: Uuid,
    task: Option<String>,
    item: Option<u32>,
    (follow, last): (bool, Option<u16>),
) -> Result<ExitCode> {
    let id = id.to_string();
    let path = match &task {
        Some(task) => vec!["v1", "runs", &id, "tasks", task, "logs"],
        None => vec!["v1", "runs", &id, "logs"],
    };
    let request = || session.client.get(&path).query_if("item", item);
    let several = task.is_none();
    let mut heard: Option<Heard> = None;
    if let Some(last) = last {
        let page: Value = request()
            .query("last", true)
            .query("limit", last)
            .send_for_list()
            .await?;
        if !follow {
            print_log(session, several, &page)?;
            return done();
        }
        for line in items(&page) {
            print_new_line(session, several, line)?;
            // What becomes visible later and lies between these lines is still to come.
            let first = || line["cursor"].as_str().map(str::to_owned);
            heard
                .get_or_insert_with(|| Heard::after(first(), HEARD_MAX))
                .is_new(line);
        }
    }
    if follow {
        let mut heard = heard.unwrap_or_else(|| Heard::after(None, HEARD_MAX));
        let mut patience = Patience::default();
        loop {
            let request = request().query("follow", true).query_if("cursor", heard.cursor());
            match listen(session, several, request, &mut heard, &mut patience).await {
                Ok(()) => return done(),
                Err(error) => patience.wait(error).await?,
            }
        }
    }
    let mut pages = request().query("limit", 500).pages(&session.client);
    let mut log = Log::new(session, several);
    while let Some(page) = pages.next::<Value>().await? {
        page.items.iter().try_for_each(|line| log.print(line))?;
    }
    log.end()?;
    done()
}

/// A log that is printed page by page while it is read, so that its length does not matter: for people each line, for
/// programs one document.
pub(super) struct Log {
    lines: Printed,
    several: bool,
}

impl Log {
    /// `several`: it is of several tasks, so each line names its own.
    pub(super) fn new(session: &Session, several: bool) -> Self {
        Self {
            lines: Printed::new(session.output),
            several,
        }
    }

    pub(super) fn print(&mut self, line: &Value) -> Result<()> {
        match self.lines.format() {
            Format::Table => print_line(self.several, line),
            Format::Json | Format::Yaml => output::print(&self.lines.item(line)?),
        }
    }

    /// Prints what follows the last line.
    pub(super) fn end(self) -> Result<()> {
        match self.lines.format() {
            Format::Table => Ok(()),
            Format::Json | Format::Yaml => output::print(&self.lines.end()),
        }
    }
}

/// Prints the lines of one answer until the server says that the log is complete. Any other end is an error.
async fn listen(
    session: &Session,
    several: bool,
    request: Request,
    heard: &mut Heard,
    patience: &mut Patience,
) -> Result<()> {
    let mut events = request.send_for_events().await?;
    patience.opened();
    while let Some(event) = events.next().await? {
        match event.event.as_str() {
            "end" => return Ok(()),
            "log" | "message" => {
                let line: Value = framed::read(&event.data)?;
                patience.answered();
                if heard.is_new(&line) {
                    print_new_line(session, several, &line)?;
                }
            }
            // A kind that this version does not know.
            _ => {}
        }
    }
    Err(BrokenOff.into())
}

/// Which lines were printed, so that a log that breaks off goes on without a gap and without a repetition.
///
/// Attempts that run side by side write their lines together every now and then, so a line can become visible after lines
/// with a later time. What is missing is therefore not simply what comes behind the last printed line. The latest lines are
/// remembered, and the log is continued before the earliest of them: the server sends them again, they are passed over,
/// and what is new between them is printed.
#[derive(Debug)]
struct Heard {
    /// Behind which line the output began; `None`: with the first line.
    begin: Option<String>,
    /// The cursors of the latest lines, by the time of the line; lines of the same time in the order in which they came.
    lines: BTreeMap<(String, u64), String>,
    /// The same cursors, to be looked up.
    known: HashSet<String>,
    /// How many lines there have been.
    count: u64,
    /// Whether earlier lines than the remembered ones were printed.
    has_forgotten: bool,
    /// How many lines are remembered at most.
    max: usize,
}

impl Heard {
    fn after(begin: Option<String>, max: usize) -> Self {
        Self {
            begin,
            lines: BTreeMap::new(),
            known: HashSet::new(),
            count: 0,
            has_forgotten: false,
            max,
        }
    }

    /// Behind which line the server shall continue.
    fn cursor(&self) -> Option<&str> {
        match self.lines.first_key_value() {
            Some((_, earliest)) if self.has_forgotten => Some(earliest),
            _ => self.begin.as_deref(),
        }
    }

    /// Whether a line has not been printed yet. Then it counts as printed from now on.
    fn is_new(&mut self, line: &Value) -> bool {
        let (Some(at), Some(cursor)) = (line["at"].as_str(), line["cursor"].as_str()) else {
            return true;
        };
        if self.known.contains(cursor) {
            return false;
        }
        let earliest = self.lines.first_key_value().map(|((at, _), _)| at.as_str());
        // It lies before the place where the log would be continued, so it cannot come again.
        if self.has_forgotten && earliest.is_some_and(|earliest| at < earliest) {
            return true;
        }
        self.lines.insert((at.to_owned(), self.count), cursor.to_owned());
        self.known.insert(cursor.to_owned());
        self.count += 1;
        if self.lines.len() > self.max
            && let Some((_, forgotten)) = self.lines.pop_first()
        {
            self.known.remove(&forgotten);
            self.has_forgotten = true;
        }
        true
    }
}

/// Prints a log that was read to its end: one document for programs.
fn print_log(session: &Session, several: bool, page: &Value) -> Result<()> {
    match session.output {
        Format::Table => items(page).try_for_each(|line| print_line(several, line)),
        Format::Json | Format::Yaml => session.output.print_list(page, &[]),
    }
}

/// Prints a line while the log grows. There is no document before the end, so programs get each line as JSON.
fn print_new_line(session: &Session, several: bool, line: &Value) -> Result<()> {
    match session.output {
        Format::Table => print_line(several, line),
        Format::Json | Format::Yaml => output::print(&line.to_string()),
    }
}

/// Prints a line for people, with its task if there are several.
fn print_line(several: bool, line: &Value) -> Result<()> {
    let level = cell(line, "/level");
    let fields = line["fields"].as_object().filter(|fields| !fields.is_empty());
    let fields = fields
        .map(|fields| format!(" {}", Value::Object(fields.clone())))
        .unwrap_or_default();
    let label = match cell(line, "/item") {
        _ if !several => String::new(),
        none if none == "-" => format!("{} ", cell(line, "/task")),
        item => format!("{}[{item}] ", cell(line, "/task")),
    };
    // Text from scripts must not control the terminal.
    let message = cell(line, "/message").replace(|c: char| c.is_control() && c != '\t' && c != '\n', "\u{fffd}");
    output::print(&format!(
        "{} {label}{level:<5} {message}{fields}",
        cell(line, "/at|/time|/ts")
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A line of the second `at`.
    fn line(at: u32, cursor: &str) -> Value {
        json!({"at": format!("2026-11-20T08:00:{at:02}.000000Z"), "cursor": cursor, "message": "m"})
    }

    #[test]
    fn a_line_that_comes_again_is_passed_over() {
        let mut heard = Heard::after(Some("begin".into()), 10);
        assert_eq!(heard.cursor(), Some("begin"));
        assert!(heard.is_new(&line(1, "a")) && heard.is_new(&line(3, "c")));
        assert_eq!(heard.cursor(), Some("begin"));
        // After the break, with a line that became visible late.
        assert!(!heard.is_new(&line(1, "a")) && heard.is_new(&line(2, "b")) && !heard.is_new(&line(3, "c")));
        // A line without a cursor cannot be told from others.
        assert!(heard.is_new(&json!({"message": "m"})) && heard.is_new(&json!({"message": "m"})));
    }

    #[test]
    fn a_long_log_is_continued_at_the_earliest_remembered_line() {
        let mut heard = Heard::after(None, 3);
        for (at, cursor) in [(1, "a"), (2, "b"), (2, "c"), (3, "d"), (4, "e")] {
            assert!(heard.is_new(&line(at, cursor)));
        }
        assert_eq!(heard.cursor(), Some("c"));
        // A late line before that one is printed, and the place does not go back: the server would send `b` again.
        assert!(heard.is_new(&line(1, "late")));
        assert_eq!(
            (heard.cursor(), heard.lines.len(), heard.known.len()),
            (Some("c"), 3, 3)
        );
        assert!(!heard.is_new(&line(3, "d")) && heard.is_new(&line(5, "f")));
        assert_eq!(heard.cursor(), Some("d"));
    }
}
