//! What commands print: JSON or YAML as the server gave it, or a table for people.

use std::io::Write;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde_json::Value;

/// How answers are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// As the server gave it.
    Json,
    /// The same as YAML.
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

    /// Prints a list: in JSON the whole page.
    pub(crate) fn print_list(self, page: &Value, columns: &[(&str, &str)]) -> Result<()> {
        self.print(page, |page| {
            let mut rows = Rows::new(columns.iter().map(|(title, _)| *title));
            for item in items(page) {
                rows.add(columns.iter().map(|(_, pointer)| cell(item, pointer)));
            }
            let mut text = rows.to_string();
            if let Some(cursor) = page.get("next_cursor").and_then(Value::as_str) {
                text.push_str(&format!("\n(more: --cursor {cursor})"));
            }
            text
        })
    }

    /// Prints one thing: as a table, one line per field.
    pub(crate) fn print_thing(self, value: &Value) -> Result<()> {
        self.print(value, fields)
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

/// The value at a JSON pointer as a table shows it; several pointers, divided by `|`, are tried in turn.
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

/// A table for people: columns, no lines between them.
pub(crate) struct Rows {
    table: comfy_table::Table,
    empty: bool,
}

impl Rows {
    pub(crate) fn new(titles: impl IntoIterator<Item = impl Into<comfy_table::Cell>>) -> Self {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::NOTHING).set_header(titles);
        Self { table, empty: true }
    }

    pub(crate) fn add(&mut self, cells: impl IntoIterator<Item = String>) {
        self.empty = false;
        // A control character in a name must not reach the terminal.
        self.table.add_row(
            cells
                .into_iter()
                .map(|cell| cell.replace(|c: char| c.is_control() && c != '\n', "\u{fffd}")),
        );
    }
}

impl std::fmt::Display for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.empty {
            return f.write_str("(none)");
        }
        let lines: Vec<String> = self.table.lines().map(|line| line.trim_end().to_owned()).collect();
        f.write_str(&lines.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
        assert_eq!(rows.to_string(), " NAME  STATE\n a     running");
    }
}
