//! A run's log: all tasks merged or one, by level, searched, followed while it grows.

use maud::{Markup, html};
use serde_json::Value;

use super::view::Run;
use crate::ctx::segment;
use crate::elements::{empty, parse, with_query};
use crate::words::t;
use crate::{Ctx, Trouble};

/// Lines on a page, the most that the API gives at once.
const LINES: usize = 500;
/// Pages of the log that a search goes through.
const SEARCHED_PAGES: usize = 40;
const LEVELS: [&str; 5] = ["trace", "debug", "info", "warn", "error"];

pub(super) async fn inside(ctx: &Ctx, run: &Run) -> Result<Markup, Trouble> {
    let wanted = ctx
        .q("level")
        .and_then(|level| LEVELS.iter().position(|one| *one == level))
        .unwrap_or(0);
    let text = ctx.q("find").map(str::to_lowercase);
    let mut cursor = ctx.q("cursor").map(str::to_owned);
    let mut lines: Vec<Value> = Vec::new();
    let base = match ctx.q("task") {
        Some(task) => format!("/v1/runs/{}/tasks/{}/logs?limit={LINES}", run.id, segment(task)),
        None => format!("/v1/runs/{}/logs?limit={LINES}", run.id),
    };
    // What is filtered away is read over, so that a page is as full as it can be.
    for _ in 0..SEARCHED_PAGES {
        let target = match &cursor {
            Some(cursor) => format!("{base}&cursor={}", segment(cursor)),
            None => base.clone(),
        };
        let page = ctx.get(&target).await?;
        cursor = page["next_cursor"].as_str().map(str::to_owned);
        let found = page["items"]
            .as_array()
            .cloned()
            .unwrap_or_default()
            .into_iter()
            .filter(|line| {
                let level = line["level"]
                    .as_str()
                    .and_then(|level| LEVELS.iter().position(|one| *one == level))
                    .unwrap_or(2);
                let says = line["message"].as_str().unwrap_or_default();
                level >= wanted && text.as_ref().is_none_or(|text| says.to_lowercase().contains(text))
            });
        lines.extend(found);
        if cursor.is_none() || lines.len() >= LINES {
            break;
        }
    }
    let shown = html! {
        @if lines.is_empty() { (empty(&t!(ctx, "no-lines"))) }
        @else { div.log-box tabindex="0" role="group" aria-label=(t!(ctx, "tab-log")) { ol.log { @for line in &lines { (one(ctx, line, text.as_deref())) } } } }
        @if let Some(cursor) = &cursor { p.more { a.button href=(with_query(ctx, &[("cursor", Some(cursor))])) { (t!(ctx, "next-page")) } } }
    };
    Ok(html! {
        section.panel {
            form.filters method="get" role="search" data-at-once {
                label.hidden for="log-task" { (t!(ctx, "task")) }
                select #log-task name="task" {
                    option value="" { (t!(ctx, "all-tasks")) }
                    @for task in run.wholes() { option value=(task.name) selected[ctx.q("task") == Some(&task.name)] { (task.name) } }
                }
                label.hidden for="log-level" { (t!(ctx, "level")) }
                select #log-level name="level" { @for (place, level) in LEVELS.iter().enumerate() { option value=(level) selected[place == wanted] { (t!(ctx, "level-from", level = *level)) } } }
                label.hidden for="log-find" { (t!(ctx, "search-log")) }
                input #log-find type="search" name="find" value=[ctx.q("find")] placeholder=(t!(ctx, "search-log"));
                button type="submit" { (t!(ctx, "filter")) }
                span.grow {}
                a.button href={ "/v1/runs/" (run.id) "/logs?limit=500" } download={ "run-" (run.id) ".json" } { (t!(ctx, "download")) }
            }
            (ctx.live("log", shown))
        }
    })
}

fn one(ctx: &Ctx, line: &Value, find: Option<&str>) -> Markup {
    let text = |name: &str| line[name].as_str().unwrap_or_default();
    let level = text("level");
    let class = match level {
        "warn" => "warn",
        "error" => "error-line",
        _ => "",
    };
    let id = format!("l-{}", text("cursor"));
    let at = parse(text("at"));
    html! {
        li #(id) class=(class) {
            a href={ "#" (id) } { @if let Some(at) = at { (at.with_timezone(&ctx.zone).format("%H:%M:%S%.3f")) } }
            span.task { (text("task")) @if let Some(item) = line["item"].as_i64() { "[" (item) "]" } }
            span.level { (level) }
            span.message { (marked(text("message"), find)) @if let Some(fields) = line["fields"].as_object().filter(|fields| !fields.is_empty()) { " " span.muted { (Value::Object(fields.clone()).to_string()) } } }
        }
    }
}

/// A message without escape sequences, what was searched for marked.
fn marked(message: &str, find: Option<&str>) -> Markup {
    let message = plain(message);
    let Some(find) = find.filter(|find| !find.is_empty()) else {
        return html! { (message) };
    };
    let lower = message.to_lowercase();
    // Lower case may have another length: then nothing is marked.
    if lower.len() != message.len() {
        return html! { (message) };
    }
    let mut pieces = Vec::new();
    let mut from = 0;
    while let Some(found) = lower[from..].find(find) {
        let (start, end) = (from + found, from + found + find.len());
        if !message.is_char_boundary(start) || !message.is_char_boundary(end) {
            break;
        }
        pieces.push((&message[from..start], &message[start..end]));
        from = end;
    }
    html! { @for (before, hit) in &pieces { (before) mark { (hit) } } (message[from..]) }
}

/// Without ANSI escape sequences and other control characters.
fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            if chars.peek() == Some(&'[') {
                chars.next();
                for c in chars.by_ref() {
                    if ('@'..='~').contains(&c) {
                        break;
                    }
                }
            }
        } else if c == '\n' || c == '\t' || !c.is_control() {
            shown.push(c);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_searched_is_marked_and_nothing_is_html() {
        assert_eq!(
            marked("a <b> A", Some("a")).into_string(),
            "<mark>a</mark> &lt;b&gt; <mark>A</mark>"
        );
        assert_eq!(marked("é", Some("x")).into_string(), "é");
    }

    #[test]
    fn escape_sequences_are_taken_out() {
        assert_eq!(plain("\u{1b}[31mred\u{1b}[0m\u{7} ok"), "red ok");
    }
}
