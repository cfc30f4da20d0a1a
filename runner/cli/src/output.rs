//! What commands print: JSON or YAML as the server gave it, or a table for people.

use std::io::Write;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde_json::Value;
use unicode_width::UnicodeWidthStr;

use crate::terminal::{self, coloured, tell};

/// How answers are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table for people.
    #[default]
    Table,
    /// The server's answer as JSON.
    Json,
    /// The server's answer as YAML.
    Yaml,
}

impl Format {
    /// Prints a value, or what `table` makes of it.
    pub(crate) fn print(self, value: &Value, table: impl FnOnce(&Value) -> String) -> Result<()> {
        let text = match self {
            Self::Json => serde_json::to_string_pretty(value).context("cannot write JSON")?,
            Self::Yaml => yaml(value)?,
            Self::Table => table(value),
        };
        print(&text)
    }

    /// Prints a list: in JSON the whole page. A list that was read to its end says so as the server does, by a
    /// `next_cursor` that is null.
    pub(crate) fn print_list(self, page: &Value, columns: &[(&str, &str)]) -> Result<()> {
        self.print_rows(page, columns, false)
    }

    /// The same for things whose first column is an id that a narrow terminal may shorten.
    pub(crate) fn print_list_of_ids(self, page: &Value, columns: &[(&str, &str)]) -> Result<()> {
        self.print_rows(page, columns, true)
    }

    fn print_rows(self, page: &Value, columns: &[(&str, &str)], ids: bool) -> Result<()> {
        let mut page = page.clone();
        if !page.get("items").unwrap_or(&page).is_array() {
            bail!("the server did not answer as a Heddle server: the answer is no list");
        }
        if let Some(fields) = page.as_object_mut().filter(|fields| fields.contains_key("items")) {
            fields.entry("next_cursor").or_insert(Value::Null);
        }
        self.print(&page, |page| {
            let mut rows = Rows::new(columns.iter().map(|(title, _)| *title));
            rows.ids = ids;
            for item in items(page) {
                rows.add(columns.iter().map(|(_, pointer)| cell(item, pointer)));
            }
            rows.to_string()
        })?;
        more(self, &page);
        Ok(())
    }

    /// One thing as it is printed. JSON and YAML have its kind, so that `apply` knows what it reads.
    pub(crate) fn with_kind(self, kind: &str, mut value: Value) -> Value {
        if self != Self::Table
            && let Value::Object(fields) = &mut value
        {
            fields.entry("kind").or_insert_with(|| kind.into());
        }
        value
    }

    /// Prints one thing: as a table, one line per field.
    pub(crate) fn print_thing(self, value: &Value) -> Result<()> {
        self.print(value, fields)
    }
}

/// Tells people how to get the next page. This is printed on stderr, because a program that reads a table wants only
/// rows.
pub(crate) fn more(format: Format, page: &Value) {
    if let (Format::Table, Some(cursor)) = (format, page.get("next_cursor").and_then(Value::as_str)) {
        tell!("there are more; continue with --cursor {cursor}");
    }
}

/// A list that is printed while it is read, as JSON or YAML: the same document as of a list that was read before.
#[derive(Debug)]
pub(crate) struct Printed {
    format: Format,
    /// The text of the last item, which a comma may have to follow.
    last: Option<String>,
}

impl Printed {
    pub(crate) fn new(format: Format) -> Self {
        Self { format, last: None }
    }

    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// The next part of the document, up to this item.
    pub(crate) fn item(&mut self, item: &Value) -> Result<String> {
        let text = match self.format {
            Format::Yaml => yaml(&Value::Array(vec![item.clone()]))?,
            Format::Json | Format::Table => {
                let text = serde_json::to_string_pretty(item).context("cannot write JSON")?;
                format!("    {}", text.replace('\n', "\n    "))
            }
        };
        let before = self.last.replace(text);
        Ok(match (self.format, before) {
            (Format::Yaml, None) => "items:\n".to_owned(),
            (Format::Yaml, Some(before)) => before,
            (_, None) => "{\n  \"items\": [\n".to_owned(),
            (_, Some(before)) => format!("{before},\n"),
        })
    }

    /// The rest of the document: it was read to its end.
    pub(crate) fn end(self) -> String {
        match (self.format, self.last) {
            (Format::Yaml, None) => "items: []\nnext_cursor: null\n".to_owned(),
            (Format::Yaml, Some(last)) => format!("{last}next_cursor: null\n"),
            (_, None) => "{\n  \"items\": [],\n  \"next_cursor\": null\n}\n".to_owned(),
            (_, Some(last)) => format!("{last}\n  ],\n  \"next_cursor\": null\n}}\n"),
        }
    }
}

/// Further fields of an answer, in brackets: numbers other than 0, texts and lists.
pub(crate) fn details(answer: &Value) -> String {
    let shown: Vec<String> = answer
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(_, value)| !value.is_object() && !value.is_null() && **value != 0)
        .map(|(name, value)| format!("{}: {}", name.replace('_', " "), plain(value)))
        .collect();
    if shown.is_empty() {
        String::new()
    } else {
        format!(" ({})", shown.join(", "))
    }
}

/// A list's items; a bare array is a list as well.
pub(crate) fn items(page: &Value) -> impl Iterator<Item = &Value> {
    page.get("items").unwrap_or(page).as_array().into_iter().flatten()
}

/// Writes text and a line's end to stdout; a closed pipe is an error, not a panic.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if text.ends_with('\n') || text.is_empty() {
        write!(out, "{text}")?
    } else {
        writeln!(out, "{text}")?
    }
    Ok(out.flush()?)
}

/// A value as YAML.
pub(crate) fn yaml(value: &Value) -> Result<String> {
    serde_saphyr::to_string(value).context("cannot write YAML")
}

/// The value at a JSON pointer as a table shows it. Several pointers, separated by `|`, are tried one after the other.
pub(crate) fn cell(value: &Value, pointers: &str) -> String {
    pointers
        .split('|')
        .filter_map(|pointer| value.pointer(pointer))
        .find(|found| !found.is_null())
        .map(plain)
        .unwrap_or_else(|| "-".into())
}

/// A value in one line.
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) => moment(text).unwrap_or_else(|| text.clone()),
        Value::Array(list) if list.iter().all(|item| !item.is_object() && !item.is_array()) => {
            if list.is_empty() {
                "-".into()
            } else {
                list.iter().map(plain).collect::<Vec<_>>().join(", ")
            }
        }
        other => other.to_string(),
    }
}

/// An instant of the API, cut to seconds.
fn moment(text: &str) -> Option<String> {
    let at = chrono::DateTime::parse_from_rfc3339(text)
        .ok()
        .filter(|_| text.ends_with('Z'))?;
    Some(at.format("%Y-%m-%d %H:%M:%SZ").to_string())
}

fn fields(value: &Value) -> String {
    let Value::Object(map) = value else { return plain(value) };
    let width = map.keys().map(|key| key.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (key, value) in map {
        let nested = match value {
            Value::Object(inner) => !inner.is_empty(),
            Value::Array(list) => list.iter().any(|item| item.is_object() || item.is_array()),
            _ => false,
        };
        let shown = match yaml(value) {
            Ok(yaml) if nested => format!("\n{}", indent(&yaml, 2)),
            _ => format!(" {}", plain(value)),
        };
        let padding = if nested { 0 } else { width - key.chars().count() };
        text.push_str(&format!("{key}:{}{}\n", " ".repeat(padding), shown.trim_end()));
    }
    text
}

fn indent(text: &str, by: usize) -> String {
    text.lines().map(|line| format!("{}{line}\n", " ".repeat(by))).collect()
}

/// A table for people: columns without lines between them. On a terminal that is too narrow, ids are shortened, long
/// cells are cut, and then the last columns are left out, so that each row is one line. Elsewhere, everything is
/// printed.
pub(crate) struct Rows {
    titles: Vec<String>,
    rows: Vec<Vec<String>>,
    /// The first column has ids of objects that commands also find by the beginning of the id.
    ids: bool,
    /// The last column is text of any length: where it has no room, it stands beneath its row.
    text_last: bool,
}

/// How many characters of an id a narrow terminal shows: its time, which is hardly ever the same for two runs.
const ID_CHARS: usize = 13;
/// The minimum length of a cut cell: an id, a name of this length and a state fit into forty columns.
const CELL_MIN: usize = 12;

/// Spaces between two columns.
const GAP: usize = 2;
/// How many lines beneath a row its text takes at most.
const TEXT_LINES_MAX: usize = 4;

impl Rows {
    pub(crate) fn new(titles: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            titles: titles.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
            ids: false,
            text_last: false,
        }
    }

    /// The last column is text of any length, which one looks for: a terminal that is too narrow shows it beneath its
    /// row.
    pub(crate) fn of_text(mut self) -> Self {
        self.text_last = true;
        self
    }

    /// The first column has ids of runs or backfills: commands take their beginnings, so a narrow terminal may show
    /// those.
    pub(crate) fn of_ids(mut self) -> Self {
        self.ids = true;
        self
    }

    pub(crate) fn add(&mut self, cells: impl IntoIterator<Item = String>) {
        // A control character in a name must not reach the terminal, and a row is a line.
        self.rows.push(
            cells
                .into_iter()
                .map(|cell| cell.replace(char::is_control, "\u{fffd}"))
                .collect(),
        );
    }

    /// Whether the shortened ids of the rows differ.
    fn beginnings_differ(&self) -> bool {
        let ids: std::collections::BTreeSet<&str> = self
            .rows
            .iter()
            .filter_map(|row| row.first())
            .map(|id| beginning(id))
            .collect();
        ids.len() == self.rows.len()
    }

    /// The table for a terminal with this number of columns (`None`: unlimited), with states in colour or not.
    fn draw(&self, room: Option<usize>, colours: bool) -> String {
        let widths_of = |rows: &[Vec<String>]| -> Vec<usize> {
            let width_of = |column: usize| {
                let cells = rows.iter().filter_map(|row| row.get(column));
                cells.chain([&self.titles[column]]).map(|cell| cell.width()).max()
            };
            (0..self.titles.len())
                .map(|column| width_of(column).unwrap_or(0))
                .collect()
        };
        let too_wide =
            |widths: &[usize]| room.is_some_and(|room| widths.iter().sum::<usize>() + GAP * widths.len() > room + GAP);
        let mut rows = std::borrow::Cow::Borrowed(&self.rows);
        let mut widths = widths_of(&rows);
        if let Some(room) = room.filter(|_| self.text_last && too_wide(&widths)) {
            return self.draw_text_beneath(room, colours);
        }
        if self.ids && too_wide(&widths) && self.beginnings_differ() {
            for id in rows.to_mut().iter_mut().filter_map(|row| row.first_mut()) {
                *id = beginning(id).to_owned();
            }
            widths = widths_of(&rows);
        }
        if let Some(room) = room.filter(|_| too_wide(&widths)) {
            let most = (room / 3).max(CELL_MIN);
            for row in rows.to_mut() {
                for (column, cell) in row.iter_mut().enumerate() {
                    match column {
                        // A cut id or name is useless for commands, so these cells may be wider than others.
                        0 if self.ids => {}
                        0 => *cell = terminal::cut(cell, (room / 2).max(CELL_MIN)),
                        _ => *cell = terminal::cut(cell, most),
                    }
                }
            }
            widths = widths_of(&rows);
        }
        let shown = room.map_or(widths.len(), |room| {
            let mut used = 0;
            let fit = widths.iter().take_while(|width| {
                used += **width + if used > 0 { GAP } else { 0 };
                used <= room
            });
            fit.count().max(1)
        });
        let line = |cells: &[String], of: &dyn Fn(usize, &str) -> String| {
            let mut text = String::new();
            for (column, cell) in cells.iter().take(shown).enumerate() {
                text.push_str(&of(column, cell));
                if column + 1 < shown {
                    text.push_str(&" ".repeat(widths[column] - cell.width() + GAP));
                }
            }
            text.trim_end().to_owned()
        };
        let state = self.titles.iter().position(|title| title == "STATE");
        let mut lines = vec![line(&self.titles, &|_, title| coloured(title, "1", colours))];
        for row in rows.iter() {
            lines.push(line(row, &|column, cell| match state_colour(cell) {
                Some(colour) if state == Some(column) => coloured(cell, colour, colours),
                _ => cell.to_owned(),
            }));
        }
        if shown < self.titles.len() {
            let left_out = format!("(too narrow for {}; -o json has all)", self.titles[shown..].join(", "));
            let count = self.titles.len() - shown;
            lines.push(match room {
                Some(room) if left_out.width() > room => format!("(too narrow for {count} more: see -o json)"),
                _ => left_out,
            });
        }
        lines.join("\n")
    }
}

impl Rows {
    /// The table without its last column, which stands beneath each row that has something there.
    fn draw_text_beneath(&self, room: usize, colours: bool) -> String {
        let split = |row: &Vec<String>| row.split_last().map(|(text, rest)| (text.clone(), rest.to_vec()));
        let (texts, rows): (Vec<String>, Vec<Vec<String>>) = self.rows.iter().filter_map(split).unzip();
        let (_, titles) = split(&self.titles).unwrap_or_default();
        let table = Self {
            titles,
            rows,
            ids: self.ids,
            text_last: false,
        };
        let drawn = table.draw(Some(room), colours);
        let mut lines = Vec::new();
        for (index, line) in drawn.lines().enumerate() {
            lines.push(line.to_owned());
            // The first line has the titles, one after the last row may say what is left out.
            let text = index.checked_sub(1).and_then(|row| texts.get(row));
            for part in text.into_iter().filter(|text| *text != "-").flat_map(|text| {
                let width = room.saturating_sub(GAP).max(CELL_MIN);
                terminal::wrapped(text, width, TEXT_LINES_MAX)
            }) {
                lines.push(format!("{}{part}", " ".repeat(GAP)));
            }
        }
        lines.join("\n")
    }
}

/// The beginning of a run's id.
fn beginning(id: &str) -> &str {
    id.get(..ID_CHARS).unwrap_or(id)
}

/// The ANSI colour of a state, as the live tree has it.
fn state_colour(state: &str) -> Option<&'static str> {
    Some(match state {
        "succeeded" | "active" | "sent" | "delivered" => "32",
        "failed" | "upstream_failed" | "lost" | "fenced" => "31",
        "running" | "draining" => "36",
        "waiting" | "paused" | "retrying" => "33",
        "cancelled" => "35",
        "pending" | "ready" | "skipped" => "90",
        _ => return None,
    })
}

impl std::fmt::Display for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.rows.is_empty() {
            return f.write_str("(none)");
        }
        let room = terminal::is_interactive().then(|| terminal::size().0);
        f.write_str(&self.draw(room, terminal::has_colours()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_list_that_is_printed_piece_by_piece_is_the_same_document() {
        let items = [
            json!({"message": "a\nb", "fields": {"n": [1, {"k": null}]}}),
            json!({}),
            json!({"message": "- x: y"}),
        ];
        for count in 0..=items.len() {
            let whole = json!({"items": &items[..count], "next_cursor": null});
            let text = |format: Format| {
                let mut printed = Printed::new(format);
                let parts: Vec<String> = items[..count].iter().map(|item| printed.item(item).unwrap()).collect();
                parts.concat() + &printed.end()
            };
            let pretty = serde_json::to_string_pretty(&whole).unwrap() + "\n";
            assert_eq!(text(Format::Json), pretty);
            let read = heddle_domain::spec::parse_yaml_strict(&text(Format::Yaml));
            assert_eq!(read.expect("YAML"), whole, "{}", text(Format::Yaml));
        }
    }

    #[test]
    fn cells_are_short() {
        let run = json!({"a": null, "b": {"c": "2026-11-20T01:02:03.000000Z"}, "d": ["x", 1], "e": {"f": 1}});
        assert_eq!(cell(&run, "/a|/b/c"), "2026-11-20 01:02:03Z");
        assert_eq!(cell(&run, "/d"), "x, 1");
        assert_eq!(cell(&run, "/none"), "-");
        assert_eq!(cell(&run, "/e"), "{\"f\":1}");
    }

    #[test]
    fn tables_have_columns_and_no_lines() {
        let mut rows = Rows::new(["NAME", "STATE"]);
        assert_eq!(rows.to_string(), "(none)");
        rows.add(["a".to_owned(), "running".to_owned()]);
        assert_eq!(rows.draw(None, false), "NAME  STATE\na     running");
    }

    #[test]
    fn rows_stay_lines() {
        let mut rows = Rows::new(["NAME", "STATE", "KEY"]);
        rows.add(["\u{5929}\u{6c14}", "failed", "a\nb"].map(str::to_owned));
        assert_eq!(
            rows.draw(None, false),
            "NAME  STATE   KEY\n\u{5929}\u{6c14}  failed  a\u{fffd}b"
        );
        assert_eq!(
            rows.draw(Some(14), false),
            "NAME  STATE\n\u{5929}\u{6c14}  failed\n(too narrow for 1 more: see -o json)"
        );
        assert!(
            rows.draw(Some(1), false).starts_with("NAME\n"),
            "the first column always is there"
        );
        assert!(rows.draw(None, true).contains("\u{1b}[31mfailed\u{1b}[0m"));
    }

    #[test]
    fn a_narrow_terminal_shows_beginnings() {
        let mut rows = Rows::new(["ID", "GROUP", "STATE"]).of_ids();
        rows.add(["0199f5a0-0000-7000-8000-00000000000a", "nightly", "failed"].map(str::to_owned));
        rows.add(["0199f5a0-0001-7000-8000-00000000000b", &"long ".repeat(9), "failed"].map(str::to_owned));
        let narrow = rows.draw(Some(44), false);
        assert_eq!(
            narrow,
            "ID             GROUP           STATE\n0199f5a0-0000  nightly         failed\n\
             0199f5a0-0001  long long lon…  failed"
        );
        assert!(
            rows.draw(None, false).contains("-00000000000b") && rows.draw(Some(200), false).contains("-00000000000b")
        );
        // Forty columns are enough for the most important columns.
        let narrow = rows.draw(Some(40), false);
        assert!(narrow.starts_with("ID             GROUP          STATE\n"), "{narrow}");
        // Shortened ids are not used if they are equal, or if the column has no ids of runs or backfills.
        rows.add(["0199f5a0-0001-7000-8000-00000000000c", "x", "failed"].map(str::to_owned));
        assert!(rows.draw(Some(44), false).contains("-00000000000c"));
    }

    #[test]
    fn text_without_room_stands_beneath_its_row() {
        let mut rows = Rows::new(["TASK", "STATE", "RESULT"]).of_text();
        rows.add(["a", "succeeded", "-"].map(str::to_owned));
        rows.add(["b", "failed", "the file has no header, and no line is a number"].map(str::to_owned));
        assert_eq!(rows.draw(None, false).lines().count(), 3);
        assert!(rows.draw(None, false).ends_with("no line is a number"));
        assert_eq!(rows.draw(Some(80), false), rows.draw(None, false));
        assert_eq!(
            rows.draw(Some(30), false),
            "TASK  STATE\na     succeeded\nb     failed\n  the file has no header, and\n  no line is a number"
        );
    }

    #[test]
    fn details_are_what_is_worth_a_word() {
        assert_eq!(
            details(&json!({"runs": 0, "cancelled_runs": 2, "a": null})),
            " (cancelled runs: 2)"
        );
        assert_eq!(details(&json!({"runs": 0})), "");
    }
}
