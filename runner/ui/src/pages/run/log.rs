//! A run's log: all tasks merged or one, by level, searched, followed while it grows.

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use futures::StreamExt;
use heddle_api::{List, LogLevel, LogLine, Run};
use maud::{Markup, html};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::ctx::segment;
use crate::elements::{empty, with_query};
use crate::pages::answer::Answer;
use crate::words::t;
use crate::{Ctx, Trouble};

/// How many lines a page shows: the maximum of one answer of the API.
const LINES: usize = 500;
/// How many pages of the log a search reads.
const SEARCHED_PAGES: usize = 40;
/// How many lines are shown before the one that a link names.
const BEFORE: usize = 20;

pub(super) async fn inside(ctx: &Ctx, run: &Run) -> Result<Markup, Trouble> {
    let wanted = ctx
        .q("level")
        .and_then(|level| level.parse().ok())
        .unwrap_or(LogLevel::Trace);
    let text = ctx.q("find").map(str::to_lowercase);
    let mut cursor = ctx.q("cursor").map(str::to_owned);
    let mut lines: Vec<LogLine> = Vec::new();
    let last = from_its_end(ctx, run);
    let base = base(ctx, run.id, last);
    // Lines that do not match are skipped, so that a page is as full as it can be.
    for _ in 0..SEARCHED_PAGES {
        let target = match &cursor {
            Some(cursor) => format!("{base}&cursor={}", segment(cursor)),
            None => base.clone(),
        };
        let page: List<LogLine> = ctx.get(&target).await?;
        cursor = page.next_cursor;
        let found = page.items.into_iter().filter(|line| {
            // An unknown word comes from a newer server.
            let level = line.level.parse().unwrap_or(LogLevel::Info);
            let says = |text: &String| line.message.to_lowercase().contains(text);
            level >= wanted && text.as_ref().is_none_or(says)
        });
        match last {
            true => drop(lines.splice(..0, found)),
            false => lines.extend(found),
        }
        if cursor.is_none() || lines.len() >= LINES {
            break;
        }
    }
    let goes_on = run.finished_at.is_none();
    let shown = html! {
        @if lines.is_empty() { (empty(&t!(ctx, "no-lines"))) }
        @else {
            div.log-box.end[last] tabindex="0" role="group" aria-label=(t!(ctx, "tab-log")) {
                ol class={ "log " (names_class(&lines)) } { @for (index, line) in lines.iter().enumerate() { (one(ctx, line, &link_to(ctx, &lines, index), text.as_deref())) } }
            }
        }
        p.more {
            @if let Some(cursor) = &cursor { a.button href=(with_query(ctx, &[("cursor", Some(cursor)), ("last", last.then_some("true"))])) { @if last { (t!(ctx, "log-before")) } @else { (t!(ctx, "next-page")) } } }
            @if last { a.button href=(with_query(ctx, &[("cursor", None), ("last", Some("false"))])) { (t!(ctx, "log-from-start")) } }
            @else if cursor.is_some() || goes_on { a.button href=(with_query(ctx, &[("cursor", None), ("last", Some("true"))])) { @if goes_on { (t!(ctx, "log-follow")) } @else { (t!(ctx, "log-last")) } } }
            @if last && goes_on && ctx.q("cursor").is_none() { span.muted { (t!(ctx, "log-following")) } }
        }
    };
    Ok(html! {
        section.panel {
            form.filters method="get" role="search" aria-label=(t!(ctx, "filter")) data-at-once {
                label.hidden for="log-task" { (t!(ctx, "task")) }
                select #log-task name="task" {
                    option value="" { (t!(ctx, "all-tasks")) }
                    @for task in run.wholes() { option value=(task.task) selected[ctx.q("task") == Some(&task.task)] { (task.task) } }
                }
                label.hidden for="log-level" { (t!(ctx, "level")) }
                select #log-level name="level" { @for level in LogLevel::ALL { option value=(level.as_str()) selected[*level == wanted] { (t!(ctx, "level-from", level = level.as_str())) } } }
                label.hidden for="log-find" { (t!(ctx, "search-log")) }
                @if let Some(last) = ctx.q("last") { input type="hidden" name="last" value=(last); }
                input #log-find type="search" name="find" value=[ctx.q("find")] placeholder=(t!(ctx, "search-log"));
                button type="submit" { (t!(ctx, "filter")) }
                // If the viewer chooses another task, the item is dropped.
                @if let Some(item) = item(ctx) { a.tag href=(with_query(ctx, &[("item", None), ("cursor", None)])) title=(t!(ctx, "remove-filter")) { "[" (item) "] ×" } }
                span.grow {}
                a.button href={ "/runs/" (run.id) "/log/download" @if let Some(task) = ctx.q("task") { "?task=" (segment(task)) @if let Some(item) = item(ctx) { "&item=" (item) } } } download { (t!(ctx, "download")) }
            }
            (ctx.live("log", shown))
        }
    })
}

/// Whether the last lines are shown: on request, and for a live run, whose log is followed.
fn from_its_end(ctx: &Ctx, run: &Run) -> bool {
    match ctx.q("last") {
        Some(asked) => asked != "false",
        None => run.finished_at.is_none() && ctx.q("cursor").is_none() && ctx.q("find").is_none(),
    }
}

/// The address of a line, which shows it also when the log has grown: a page that begins a little before it.
fn link_to(ctx: &Ctx, lines: &[LogLine], index: usize) -> String {
    let cursor = |index: usize| lines[index].cursor.as_str();
    let begins = match index.checked_sub(BEFORE) {
        Some(before) => Some(cursor(before)),
        None => ctx.q("cursor").filter(|_| ctx.q("last").is_none()),
    };
    let page = with_query(
        ctx,
        &[("cursor", begins), ("last", begins.is_none().then_some("false"))],
    );
    format!("{page}#l-{}", cursor(index))
}

/// The chosen item of a mapped task.
fn item(ctx: &Ctx) -> Option<u32> {
    ctx.q("task")?;
    ctx.q("item")?.parse().ok()
}

/// The path of the API for the lines: of the chosen task, of one of its items, or of all tasks.
fn base(ctx: &Ctx, run: Uuid, last: bool) -> String {
    let last = if last { "&last=true" } else { "" };
    let item = item(ctx).map(|item| format!("&item={item}")).unwrap_or_default();
    match ctx.q("task") {
        Some(task) => format!("/v1/runs/{run}/tasks/{}/logs?limit={LINES}{last}{item}", segment(task)),
        None => format!("/v1/runs/{run}/logs?limit={LINES}{last}"),
    }
}

/// How much room the names before the lines have, so that all messages begin at the same place: longer names are broken.
fn names_class(lines: &[LogLine]) -> &'static str {
    // Letters of some scripts are twice as wide.
    let wide = |name: &str| {
        name.chars()
            .map(|letter| if letter < '\u{1100}' { 1 } else { 2 })
            .sum::<usize>()
    };
    let item = |line: &LogLine| line.item.map_or(0, |item| item.to_string().len() + 2);
    match lines
        .iter()
        .map(|line| wide(&line.task) + item(line))
        .max()
        .unwrap_or(0)
    {
        ..=8 => "names-8",
        9..=16 => "names-16",
        17..=24 => "names-24",
        _ => "names-32",
    }
}

/// What a line says beside its message, if anything.
fn fields(line: &LogLine) -> Option<&Value> {
    let is_empty = |fields: &Value| fields.as_object().is_some_and(Map::is_empty);
    line.fields.as_ref().filter(|fields| !is_empty(fields))
}

fn one(ctx: &Ctx, line: &LogLine, link: &str, find: Option<&str>) -> Markup {
    let class = match line.level.parse::<LogLevel>() {
        Ok(LogLevel::Warn) => "warn",
        Ok(LogLevel::Error) => "error-line",
        _ => "",
    };
    let id = format!("l-{}", line.cursor);
    html! {
        li #(id) class=(class) {
            a href=(link) { (line.at.with_timezone(&ctx.zone).format("%H:%M:%S%.3f")) }
            span.task { (line.task) @if let Some(item) = line.item { "[" (item) "]" } }
            span.level { (line.level) }
            span.message { (marked(&line.message, find)) @if let Some(fields) = fields(line) { " " span.muted { (fields.to_string()) } } }
        }
    }
}

/// A message in its colours, with the searched text marked.
fn marked(message: &str, find: Option<&str>) -> Markup {
    let find = find.filter(|find| !find.is_empty());
    html! {
        @for (colour, text) in coloured(message) {
            @match colour {
                Some(colour) => span class=(colour) { (with_marks(&text, find)) },
                None => (with_marks(&text, find)),
            }
        }
    }
}

fn with_marks(message: &str, find: Option<&str>) -> Markup {
    let Some(find) = find else {
        return html! { (message) };
    };
    let lower = message.to_lowercase();
    // If the text in lower case has another length, nothing is marked.
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

/// What ANSI escape sequences call black, red, green, yellow, blue, magenta, cyan and white, in the hues of the pages.
const COLOURS: [&str; 8] = [
    "c-dim", "c-red", "c-green", "c-yellow", "c-blue", "c-violet", "c-blue", "c-dim",
];

/// How long what a program tells a terminal may be, in characters, to be left out.
const TOLD_MAX: usize = 4_096;

/// The colour after a sequence of codes (`ESC [ codes m`); those that mean no colour leave it as it is.
fn colour_after(before: Option<&'static str>, codes: &str) -> Option<&'static str> {
    let mut codes = codes.split(';').map(|code| code.parse::<usize>().unwrap_or_default());
    let mut colour = before;
    while let Some(code) = codes.next() {
        match code {
            0 | 39 => colour = None,
            30..=37 | 90..=97 => colour = Some(COLOURS[code % 10]),
            // One of 256 colours, or one of 16 million: what follows is no code.
            38 | 48 => {
                let more = if codes.next() == Some(5) { 1 } else { 3 };
                codes.by_ref().take(more).for_each(drop);
            }
            _ => {}
        }
    }
    colour
}

/// How many characters belong to what a program tells a terminal, with its end: `BEL`, or `ESC \`. `None`: it does not end
/// within [`TOLD_MAX`], or before the next sequence, so what follows may be text, and stays visible.
fn told_length(rest: impl Iterator<Item = char>) -> Option<usize> {
    let mut escaped = false;
    for (index, c) in rest.take(TOLD_MAX).enumerate() {
        match c {
            '\u{7}' | '\u{9c}' => return Some(index + 1),
            '\\' if escaped => return Some(index + 1),
            _ if escaped => return None,
            _ => escaped = c == '\u{1b}',
        }
    }
    None
}

/// A text in pieces of one colour each, without escape sequences and other control characters.
fn coloured(text: &str) -> Vec<(Option<&'static str>, String)> {
    let mut pieces: Vec<(Option<&'static str>, String)> = Vec::new();
    let mut colour = None;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            match chars.peek() {
                Some('[') => {
                    chars.next();
                    let mut codes = String::new();
                    for c in chars.by_ref() {
                        if ('@'..='~').contains(&c) {
                            if c == 'm' {
                                colour = colour_after(colour, &codes);
                            }
                            break;
                        }
                        codes.push(c);
                    }
                }
                // What programs tell a terminal (ECMA-48, 5.6): the target of a link, a title, an image.
                Some(']' | 'P' | 'X' | '^' | '_') => {
                    if let Some(length) = told_length(chars.clone()) {
                        chars.by_ref().take(length).for_each(drop);
                    }
                }
                // The choice of a character set: one letter or more, and its end.
                Some(' '..='/') => while chars.next().is_some_and(|c| (' '..='/').contains(&c)) {},
                _ => {}
            }
        } else if c == '\n' || c == '\t' || !c.is_control() {
            match pieces.last_mut().filter(|(of, _)| *of == colour) {
                Some((_, shown)) => shown.push(c),
                None => pieces.push((colour, c.to_string())),
            }
        }
    }
    pieces
}

/// A line of the file: time, level, task, message.
fn plain_line(line: &LogLine) -> String {
    let message: String = coloured(&line.message).into_iter().map(|(_, text)| text).collect();
    let item = line.item.map(|item| format!("[{item}]")).unwrap_or_default();
    let fields = fields(line).map(|fields| format!(" {fields}")).unwrap_or_default();
    format!("{} {:<5} {}{item} {message}{fields}\n", line.at, line.level, line.task)
}

/// A page of lines as text, and where the next begins.
async fn lines(ctx: &Ctx, base: &str, cursor: Option<&str>) -> Result<(String, Option<String>), Trouble> {
    let target = match cursor {
        Some(cursor) => format!("{base}&cursor={}", segment(cursor)),
        None => base.to_owned(),
    };
    let page: List<LogLine> = ctx.get(&target).await?;
    Ok((page.items.iter().map(plain_line).collect(), page.next_cursor))
}

/// The whole log as a file, page by page as the browser takes it.
pub(super) async fn download(ctx: &Ctx, id: Uuid) -> Result<Answer, Trouble> {
    let base = base(ctx, id, false);
    let (first, next) = lines(ctx, &base, None).await?;
    let own = Ctx::new(ctx.ui.clone(), ctx.viewer.clone(), ctx.head().clone(), Bytes::new());
    let rest = futures::stream::unfold((own, base, next), |(own, base, next)| async move {
        let cursor = next?;
        match lines(&own, &base, Some(&cursor)).await {
            Ok((text, next)) => Some((Ok(Bytes::from(text)), (own, base, next))),
            // The browser notices that the file is incomplete.
            Err(trouble) => Some((Err(std::io::Error::other(trouble.sentence())), (own, base, None))),
        }
    });
    let whole = futures::stream::once(async move { Ok(Bytes::from(first)) }).chain(rest);
    let mut response = Response::new(Body::from_stream(whole));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Ok(name) = HeaderValue::from_str(&format!("attachment; filename=\"run-{id}.log\"")) {
        headers.insert(header::CONTENT_DISPOSITION, name);
    }
    Ok(Answer::Raw(Box::new(response)))
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
    fn escape_sequences_are_colours_or_nothing() {
        let shown = |text: &str| marked(text, None).into_string();
        assert_eq!(
            shown("\u{1b}[31m<red>\u{1b}[0m\u{7} ok"),
            "<span class=\"c-red\">&lt;red&gt;</span> ok"
        );
        assert_eq!(
            shown("\u{1b}[1;92mgreen\u{1b}[1m still\u{1b}[39m not"),
            "<span class=\"c-green\">green still</span> not"
        );
        assert_eq!(
            shown("\u{1b}[38;5;31mno\u{1b}[48;2;31;32;33m colour\u{1b}[2J\u{1b}"),
            "no colour"
        );
        assert_eq!(
            marked("\u{1b}[33mwarning\u{1b}[m: warn", Some("warn")).into_string(),
            "<span class=\"c-yellow\"><mark>warn</mark>ing</span>: <mark>warn</mark>"
        );
    }

    #[test]
    fn what_a_terminal_is_told_is_not_shown() {
        let shown = |text: &str| marked(text, None).into_string();
        // A link, ended by BEL and by ESC \: its text stays.
        let link = |end: &str| format!("a \u{1b}]8;;javascript:alert(1){end}link\u{1b}]8;;{end} b");
        assert_eq!(shown(&link("\u{7}")), "a link b");
        assert_eq!(shown(&link("\u{1b}\\")), "a link b");
        // A title, an image, a character set.
        assert_eq!(shown("\u{1b}]0;title\u{7}x\u{1b}Pq#0\u{1b}\\y\u{1b}(B\u{1b}[mz"), "xyz");
        // One that does not end hides nothing.
        assert_eq!(shown("\u{1b}]8;;the rest"), "]8;;the rest");
        assert_eq!(
            shown("\u{1b}]8;;\u{1b}[31mred\u{7}"),
            "]8;;<span class=\"c-red\">red</span>"
        );
        let long = "x".repeat(TOLD_MAX);
        assert_eq!(shown(&format!("\u{1b}]{long}\u{7}")), format!("]{long}"));
    }

    fn line(task: &str, item: Option<u32>) -> LogLine {
        LogLine {
            cursor: "1".into(),
            at: heddle_domain::Time::UNIX_EPOCH.into(),
            task: task.into(),
            item,
            attempt: 1,
            level: "info".into(),
            message: "\u{1b}[31mhi".into(),
            fields: Some(serde_json::json!({"n": 1})),
        }
    }

    #[test]
    fn the_longest_name_says_where_messages_begin() {
        assert_eq!(names_class(&[]), "names-8");
        assert_eq!(names_class(&[line("extract", None), line("a", None)]), "names-8");
        assert_eq!(names_class(&[line("extract", Some(12)), line("a", None)]), "names-16");
        assert_eq!(names_class(&[line("每天早上读取仓", None)]), "names-16");
        assert_eq!(names_class(&[line(&"x".repeat(200), None)]), "names-32");
    }

    #[test]
    fn a_file_has_a_line_for_each() {
        let line = line("a", Some(3));
        let written = "1970-01-01T00:00:00.000000Z info  a[3] hi {\"n\":1}\n";
        assert_eq!(plain_line(&line), written);
    }
}
