//! The table of figures, and how they are written.

use std::collections::BTreeMap;

use heddle_tests::bench::percentile;

/// The figures: rows by their titles, in the order in which they were first put, with a column for each language.
#[derive(Default)]
pub(crate) struct Table {
    columns: Vec<&'static str>,
    rows: Vec<(&'static str, BTreeMap<&'static str, String>)>,
}

impl Table {
    pub(crate) fn put(&mut self, row: &'static str, column: &'static str, figure: String) {
        if !self.columns.contains(&column) {
            self.columns.push(column);
        }
        let at = self.rows.iter().position(|(title, _)| *title == row);
        let at = at.unwrap_or_else(|| {
            self.rows.push((row, BTreeMap::new()));
            self.rows.len() - 1
        });
        self.rows[at].1.insert(column, figure);
    }

    pub(crate) fn print(&self) {
        println!("| | {} |", self.columns.join(" | "));
        println!("|---|{}", "---|".repeat(self.columns.len()));
        for (title, figures) in &self.rows {
            let figures = self
                .columns
                .iter()
                .map(|column| figures.get(column).map_or("", String::as_str));
            println!("| {title} | {} |", figures.collect::<Vec<_>>().join(" | "));
        }
    }
}

pub(crate) fn ms(seconds: f64) -> String {
    match seconds * 1e3 {
        ms if ms < 10.0 => format!("{ms:.2} ms"),
        ms if ms < 10_000.0 => format!("{ms:.0} ms"),
        ms => format!("{:.1} s", ms / 1e3),
    }
}

pub(crate) fn bytes(count: u64) -> String {
    match count {
        0..10_000 => format!("{count} bytes"),
        10_000..10_000_000 => format!("{} kB", count / 1_000),
        _ => format!("{} MB", count / 1_000_000),
    }
}

pub(crate) fn both(samples: &mut [f64]) -> String {
    format!("{} / {}", ms(percentile(samples, 0.5)), ms(percentile(samples, 0.99)))
}
