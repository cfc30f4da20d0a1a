//! A spec as people write it, with highlighted words; and the differences between two.

use maud::{Markup, html};
use serde_json::Value;

use crate::difference::{Line, hunks};

/// A JSON value as YAML.
pub(crate) fn text(value: &Value) -> String {
    serde_saphyr::to_string(value).unwrap_or_else(|_| value.to_string())
}

/// YAML with highlighted keys, strings, numbers and comments. Each line is read separately: enough for display.
pub(crate) fn highlighted(text: &str) -> Markup {
    html! {
        pre.code {
            @for line in text.lines() { (highlighted_line(line)) "\n" }
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
        !key.is_empty() && !key.contains(' ') && !key.starts_with('"')
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
    fn keys_and_values_are_told_apart_and_nothing_is_html() {
        let shown = highlighted("a: 1\nb: <script>\n# c\n  - d: x").into_string();
        assert!(
            shown.contains(r#"<span class="key">a</span>:<span class="number"> 1</span>"#),
            "{shown}"
        );
        assert!(
            shown.contains("&lt;script&gt;") && shown.contains(r#"<span class="comment"># c</span>"#),
            "{shown}"
        );
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
