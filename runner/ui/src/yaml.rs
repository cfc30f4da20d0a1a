//! A spec as people write it, with highlighted words; and the differences between two.

use maud::{Markup, html};
use serde_json::Value;

use crate::difference::{Line, hunks};

/// A JSON value as YAML.
pub(crate) fn text(value: &Value) -> String {
    serde_saphyr::to_string(value).unwrap_or_else(|_| value.to_string())
}

/// How many lines are highlighted; a spec of ten thousand tasks has more, and a browser would be busy with its words for
/// seconds.
const HIGHLIGHTED_MAX: usize = 5_000;

/// YAML with highlighted keys, strings, numbers and comments. Each line is read separately: enough for display.
pub(crate) fn highlighted(text: &str) -> Markup {
    let mut ends = text.match_indices('\n').map(|(at, _)| at + 1);
    let (first, rest) = text.split_at(ends.nth(HIGHLIGHTED_MAX - 1).unwrap_or(text.len()));
    html! {
        pre.code {
            @for line in first.lines() { (highlighted_line(line)) "\n" }
            (rest)
        }
    }
}

fn highlighted_line(line: &str) -> Markup {
    let trimmed = line.trim_start();
    if trimmed.starts_with('#') {
        return html! { span.comment { (line) } };
    }
    let is_key = |key: &str| {
        let key = key.trim_start().trim_start_matches("- ").trim();
        match key.strip_prefix('"') {
            Some(rest) => rest.ends_with('"'),
            None => !key.is_empty() && !key.contains(' '),
        }
    };
    match line.split_once(':') {
        Some((key, rest)) if is_key(key) && (rest.is_empty() || rest.starts_with(' ')) => {
            html! { span.key { (key) } ":" (value(rest)) }
        }
        _ => value(line),
    }
}

fn value(text: &str) -> Markup {
    let bare = text.trim().trim_start_matches("- ");
    if bare.is_empty() {
        return html! { (text) };
    }
    let class = if bare.parse::<f64>().is_ok() || matches!(bare, "true" | "false" | "null") {
        "number"
    } else {
        "string"
    };
    html! { span class=(class) { (text) } }
}

/// The line (counted from 1) to which a pointer leads, in a YAML text in block style. If nothing is there, the line of
/// the nearest parent.
pub(crate) fn line_of(text: &str, pointer: &str) -> Option<i64> {
    let lines: Vec<&str> = text.lines().collect();
    let (mut from, mut until, mut found) = (0, lines.len(), None);
    for part in pointer.split('/').skip(1) {
        let part = part.replace("~1", "/").replace("~0", "~");
        let Some(line) = child(&lines, from, until, &part) else {
            break;
        };
        let depth = depth(lines[line]);
        from = line + 1;
        // It ends where a line is not indented deeper. Lists may be indented like their key.
        until = (from..until)
            .find(|n| !is_blank(lines[*n]) && self::depth(lines[*n]) <= depth && !is_item(lines[*n], depth))
            .unwrap_or(until);
        found = Some(line as i64 + 1);
    }
    found
}

fn is_blank(line: &str) -> bool {
    let line = line.trim_start();
    line.is_empty() || line.starts_with('#')
}

fn depth(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

fn is_item(line: &str, at: usize) -> bool {
    depth(line) == at && line.trim_start().starts_with("- ")
}

/// The line of a key, or of an item by its number, among the least indented lines between two lines.
fn child(lines: &[&str], from: usize, until: usize, part: &str) -> Option<usize> {
    let inside = || (from..until).filter(move |n| !is_blank(lines[*n]));
    let least = inside().map(|n| depth(lines[n])).min()?;
    let mut own = inside().filter(|n| depth(lines[*n]) == least);
    let first = own.clone().next()?;
    match part.parse::<usize>() {
        Ok(number) if is_item(lines[first], least) => own.nth(number),
        _ => own.find(|n| {
            let key = lines[*n].trim_start().split_once(':').map_or("", |(key, _)| key);
            key.trim_matches(|quote| matches!(quote, '"' | '\'' | ' ')) == part
        }),
    }
}

/// The difference of two texts, line by line.
pub(crate) fn difference(before: &str, after: &str) -> Markup {
    html! {
        div.diff {
            @for (index, hunk) in hunks(before, after).iter().enumerate() {
                @if index > 0 { span.same { "⋯" } }
                @for line in &hunk.lines {
                    @match line {
                        Line::Before(text) => span.removed { "- " (text.trim_end_matches('\n')) },
                        Line::After(text) => span.added { "+ " (text.trim_end_matches('\n')) },
                        Line::Both(text) => span.same { "  " (text.trim_end_matches('\n')) },
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_and_values_are_distinguished_and_nothing_is_html() {
        let shown = highlighted("a: 1\nb: <script>\n# c\n  - d: x").into_string();
        assert!(
            shown.contains(r#"<span class="key">a</span>:<span class="number"> 1</span>"#),
            "{shown}"
        );
        let long = highlighted(&"a: 1\n".repeat(HIGHLIGHTED_MAX + 2)).into_string();
        assert_eq!(long.matches("class=\"key\"").count(), HIGHLIGHTED_MAX);
        assert!(long.ends_with("\na: 1\na: 1\n</pre>"), "the rest is there");
        let quoted = highlighted("\"on\": x\n- \"on: x\"").into_string();
        assert!(
            quoted.contains(r#"<span class="key">&quot;on&quot;</span>:"#),
            "{quoted}"
        );
        assert!(
            quoted.contains(r#"<span class="string">- &quot;on: x&quot;</span>"#),
            "{quoted}"
        );
        assert!(
            shown.contains("&lt;script&gt;") && shown.contains(r#"<span class="comment"># c</span>"#),
            "{shown}"
        );
    }

    #[test]
    fn a_pointer_has_a_line() {
        let text = "# a group\ndescription: x\n\ntasks:\n  a:\n    script: x\n  \"b/c\":\n    depends_on:\n    - a\n    - z\n    pools: {x: 1}\n";
        for (pointer, line) in [
            ("", None),
            ("/none", None),
            ("/tasks", Some(4)),
            ("/tasks/a/script", Some(6)),
            ("/tasks/b~1c", Some(7)),
            ("/tasks/b~1c/depends_on/1", Some(10)),
            ("/tasks/b~1c/pools/x", Some(11)),
            ("/tasks/a/queue", Some(5)),
        ] {
            assert_eq!(line_of(text, pointer), line, "{pointer}");
        }
        assert_eq!(line_of("{\"tasks\": {}}", "/tasks/a"), None);
    }

    #[test]
    fn a_difference_has_both_sides() {
        let shown = difference(&text(&json!({"a": 1})), &text(&json!({"a": 2}))).into_string();
        assert!(
            shown.contains(r#"class="removed">- a: 1"#) && shown.contains(r#"class="added">+ a: 2"#),
            "{shown}"
        );
    }
}
