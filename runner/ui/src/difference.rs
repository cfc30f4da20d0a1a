//! The differences between two texts, line by line.

use std::fmt;
use std::ops::Range;

use imara_diff::{Algorithm, Diff, InternedInput};

/// Lines that are the same, shown before and after a change.
const CONTEXT: usize = 3;

/// A line with its end, and in which of the two texts it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'t> {
    Both(&'t str),
    Before(&'t str),
    After(&'t str),
}

/// Changes that are near each other, with the lines around them.
#[derive(Debug)]
pub struct Hunk<'t> {
    /// Which lines of the first text it shows, counted from 0.
    before: Range<usize>,
    /// The same of the second.
    after: Range<usize>,
    pub lines: Vec<Line<'t>>,
}

impl<'t> Hunk<'t> {
    fn push(&mut self, line: Line<'t>) {
        self.before.end += usize::from(!matches!(line, Line::After(_)));
        self.after.end += usize::from(!matches!(line, Line::Before(_)));
        self.lines.push(line);
    }

    /// Shows lines of the first text up to this one, which are in both.
    fn extend_to(&mut self, end: usize, before: &[&'t str]) {
        for line in &before[self.before.end..end] {
            self.push(Line::Both(line));
        }
    }
}

/// The changes that make the second text of the first, in their order. Equal texts have none.
pub fn hunks<'t>(before: &'t str, after: &'t str) -> Vec<Hunk<'t>> {
    let input = InternedInput::new(before, after);
    let mut diff = Diff::compute(Algorithm::Histogram, &input);
    diff.postprocess_lines(&input);
    let lines: Vec<&str> = before.split_inclusive('\n').collect();
    let new_lines: Vec<&str> = after.split_inclusive('\n').collect();
    let mut hunks: Vec<Hunk<'t>> = Vec::new();
    let mut hunk: Option<Hunk<'t>> = None;
    for change in diff.hunks() {
        let (start, new_start) = (change.before.start as usize, change.after.start as usize);
        let mut near = match hunk.take() {
            Some(last) if start <= last.before.end + 2 * CONTEXT => last,
            last => {
                hunks.extend(last);
                let context = start.min(CONTEXT);
                let (from, new_from) = (start - context, new_start - context);
                Hunk {
                    before: from..from,
                    after: new_from..new_from,
                    lines: Vec::new(),
                }
            }
        };
        near.extend_to(start, &lines);
        for line in &lines[start..change.before.end as usize] {
            near.push(Line::Before(line));
        }
        for line in &new_lines[new_start..change.after.end as usize] {
            near.push(Line::After(line));
        }
        hunk = Some(near);
    }
    hunks.extend(hunk);
    for hunk in &mut hunks {
        hunk.extend_to((hunk.before.end + CONTEXT).min(lines.len()), &lines);
    }
    hunks
}

/// The changes as a patch: `---` and `+++` with these names, and hunks. Equal texts give an empty one.
pub fn patch(names: [&str; 2], before: &str, after: &str) -> String {
    let hunks = hunks(before, after);
    if hunks.is_empty() {
        return String::new();
    }
    let hunks: String = hunks.iter().map(Hunk::to_string).collect();
    format!("--- {}\n+++ {}\n{hunks}", names[0], names[1])
}

impl fmt::Display for Hunk<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The first line is counted from 1; of no line, it is the one before.
        let [before, after] = [&self.before, &self.after].map(|lines| match lines.len() {
            0 => format!("{},0", lines.start),
            1 => format!("{}", lines.end),
            count => format!("{},{count}", lines.start + 1),
        });
        writeln!(f, "@@ -{before} +{after} @@")?;
        for line in &self.lines {
            let (mark, text) = match line {
                Line::Both(text) => (' ', text),
                Line::Before(text) => ('-', text),
                Line::After(text) => ('+', text),
            };
            write!(f, "{mark}{text}")?;
            if !text.ends_with('\n') {
                writeln!(f, "\n\\ No newline at end of file")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines 1 to 20, some of them changed.
    fn numbers(changed: &[usize]) -> String {
        (1..=20)
            .map(|line| format!("{line}{}\n", if changed.contains(&line) { " changed" } else { "" }))
            .collect()
    }

    #[test]
    fn equal_texts_have_no_patch() {
        assert_eq!(patch(["a", "b"], "x\n", "x\n"), "");
    }

    #[test]
    fn what_is_near_is_one_hunk() {
        let patch = patch(["a", "b"], &numbers(&[]), &numbers(&[5, 12, 20]));
        let expected = "--- a\n+++ b\n@@ -2,14 +2,14 @@\n 2\n 3\n 4\n-5\n+5 changed\n 6\n 7\n 8\n 9\n 10\n 11\n-12\n\
                        +12 changed\n 13\n 14\n 15\n@@ -17,4 +17,4 @@\n 17\n 18\n 19\n-20\n+20 changed\n";
        assert_eq!(patch, expected);
    }

    #[test]
    fn nothing_before_and_an_end_without_a_line_break() {
        assert_eq!(
            patch(["a", "b"], "", "x\ny"),
            "--- a\n+++ b\n@@ -0,0 +1,2 @@\n+x\n+y\n\\ No newline at end of file\n"
        );
        assert_eq!(patch(["a", "b"], "x\n", ""), "--- a\n+++ b\n@@ -1 +0,0 @@\n-x\n");
    }
}
