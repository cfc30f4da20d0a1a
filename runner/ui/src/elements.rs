//! The elements of pages: states, times, spans, buttons that say why they are disabled.

use chrono::SecondsFormat;
use heddle_api::{AssignmentState, AttemptState, ErrorKind, NotificationState, RunState, TaskState, Trigger};
use heddle_domain::Time;
use maud::{Markup, html};

use crate::ctx::segment;
use crate::words::t;
use crate::{Ctx, span};

/// Longer texts are cut where only a line is shown.
const LINE_CHARS_MAX: usize = 240;

/// The first line of a text, not too long.
pub(crate) fn line(text: &str) -> String {
    let first = text.lines().next().unwrap_or_default();
    if first.chars().count() <= LINE_CHARS_MAX {
        return first.to_owned();
    }
    let mut cut: String = first.chars().take(LINE_CHARS_MAX).collect();
    cut.push('…');
    cut
}

/// The words with which the engine names a run that a task has started. The id of the run follows.
const SUB_RUN: &str = "sub-run ";
/// The length of an id as text.
const ID_CHARS: usize = 36;

/// A text in which each named sub-run is a link to that run.
pub(crate) fn linked(text: &str) -> Markup {
    let mut rest = text;
    let mut pieces: Vec<(&str, Option<uuid::Uuid>)> = Vec::new();
    while let Some(at) = rest.find(SUB_RUN) {
        let (before, after) = rest.split_at(at + SUB_RUN.len());
        let id = after.get(..ID_CHARS).and_then(|id| id.parse().ok());
        pieces.push((before, id));
        rest = if id.is_some() { &after[ID_CHARS..] } else { after };
    }
    html! { @for (before, id) in &pieces { (before) @if let Some(id) = id { a href={ "/runs/" (id) } { (id) } } } (rest) }
}

/// The first line of an error: its kind, and the message. A message that begins with the kind does not repeat it.
pub(crate) fn failure(kind: Option<ErrorKind>, message: &str) -> Markup {
    let kind = kind.map(|kind| format!("{kind}: ")).unwrap_or_default();
    let message = message.strip_prefix(&kind).unwrap_or(message);
    html! { span.error { (kind) (linked(&line(message))) } }
}

/// A glyph of the sheet that each page carries.
pub(crate) fn glyph(name: &str) -> Markup {
    html! { svg.glyph width="16" height="16" aria-hidden="true" { use href={ "#g-" (name) } {} } }
}

/// A type whose states pages show by colour, glyph and word.
pub(crate) trait Shown: Sync {
    /// The word of the API, and the end of the key of ours.
    fn word(&self) -> &str;
    /// The glyph of the state.
    fn glyph(&self) -> &'static str;
}

impl Shown for RunState {
    fn word(&self) -> &str {
        self.as_str()
    }

    fn glyph(&self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl Shown for TaskState {
    fn word(&self) -> &str {
        self.as_str()
    }

    fn glyph(&self) -> &'static str {
        match self {
            Self::Pending | Self::Ready => "ready",
            Self::Running => "running",
            Self::Retrying => "retrying",
            Self::Paused => "paused",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
            Self::UpstreamFailed => "upstream_failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl Shown for AttemptState {
    fn word(&self) -> &str {
        self.as_str()
    }

    fn glyph(&self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed | Self::TimedOut | Self::Lost => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl Shown for AssignmentState {
    fn word(&self) -> &str {
        self.as_str()
    }

    fn glyph(&self) -> &'static str {
        match self {
            Self::Assigned => "running",
            Self::Completed => "succeeded",
            Self::Failed => "failed",
            Self::Expired => "skipped",
            Self::Revoked => "cancelled",
        }
    }
}

impl Shown for NotificationState {
    fn word(&self) -> &str {
        self.as_str()
    }

    fn glyph(&self) -> &'static str {
        match self {
            Self::Pending => "ready",
            Self::Sent => "succeeded",
            Self::Failed => "failed",
        }
    }
}

/// States that are words and no enumeration: those of nodes, messages and backfills, counts by state, and what pages
/// say about things that are on, off or late.
impl Shown for str {
    fn word(&self) -> &str {
        self
    }

    fn glyph(&self) -> &'static str {
        match self {
            "succeeded" | "sent" | "completed" | "drained" | "active" | "enabled" => "succeeded",
            "running" | "assigned" | "sending" => "running",
            "ready" | "pending" | "scheduled" => "ready",
            "waiting" => "waiting",
            "retrying" => "retrying",
            "paused" | "draining" | "disabled" => "paused",
            "failed" | "timed_out" | "lost" | "fenced" => "failed",
            "upstream_failed" => "upstream_failed",
            "skipped" | "expired" => "skipped",
            _ => "cancelled",
        }
    }
}

impl<S: Shown + ?Sized> Shown for &S {
    fn word(&self) -> &str {
        (**self).word()
    }

    fn glyph(&self) -> &'static str {
        (**self).glyph()
    }
}

/// A state: hue, glyph and word.
pub(crate) fn state(ctx: &Ctx, state: impl Shown) -> Markup {
    state_called(&state, &state_word(ctx, &state))
}

/// The state of a `notification`, a `message` or a `backfill`. Some of these states have words of their own, because
/// these things wait for something else than task runs do.
pub(crate) fn state_of(ctx: &Ctx, thing: &str, state: impl Shown) -> Markup {
    let key = format!("state-{thing}-{}", state.word());
    let word = t!(ctx, &key);
    let word = if word == key { state_word(ctx, &state) } else { word };
    state_called(&state, &word)
}

/// A state under the word that is given.
pub(crate) fn state_called(state: impl Shown, word: &str) -> Markup {
    let glyph_name = state.glyph();
    html! { span class={ "state s-" (glyph_name) } { (glyph(glyph_name)) span { (word) } } }
}

/// The word for a state.
pub(crate) fn state_word(ctx: &Ctx, state: impl Shown) -> String {
    t!(ctx, &format!("state-{}", state.word()))
}

/// The word for why a run was made.
pub(crate) fn trigger_word(ctx: &Ctx, trigger: Trigger) -> String {
    t!(ctx, &format!("trigger-{trigger}"))
}

/// What somebody did, by the audit: its word, if there is one for it.
pub(crate) fn audit_action(ctx: &Ctx, action: &str) -> String {
    or_raw(ctx, "action", action)
}

/// The kind of thing that it was done to.
pub(crate) fn audit_kind(ctx: &Ctx, kind: &str) -> String {
    or_raw(ctx, "kind", kind)
}

fn or_raw(ctx: &Ctx, what: &str, word: &str) -> String {
    let key = format!("audit-{what}-{word}");
    let found = t!(ctx, &key);
    if found == key { word.to_owned() } else { found }
}

fn iso(at: Time) -> String {
    at.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// A moment in the viewer's zone, in that of the group that the page is about, and in UTC.
fn zones(ctx: &Ctx, at: Time) -> String {
    let said = |zone: chrono_tz::Tz| {
        format!(
            "{}{} {}",
            at.with_timezone(&zone).format("%Y-%m-%d %H:%M:%S"),
            span::offset(zone, at),
            zone.name()
        )
    };
    let mut zones = vec![ctx.zone];
    for zone in ctx.group_zone().into_iter().chain([chrono_tz::Tz::UTC]) {
        if !zones.contains(&zone) {
            zones.push(zone);
        }
    }
    zones.into_iter().map(said).collect::<Vec<_>>().join(" · ")
}

/// A moment in the viewer's zone; the others on hover.
pub(crate) fn time(ctx: &Ctx, at: impl Into<Time>) -> Markup {
    let at = at.into();
    html! { time datetime=(iso(at)) title=(zones(ctx, at)) data-at { (span::moment(ctx.lang, ctx.zone, at, ctx.now, false)) } }
}

/// A moment in another zone than the viewer's, which the page names; the others on hover.
pub(crate) fn time_in(ctx: &Ctx, zone: chrono_tz::Tz, at: Time) -> Markup {
    html! { time datetime=(iso(at)) title=(zones(ctx, at)) { (span::moment(ctx.lang, zone, at, ctx.now, false)) } }
}

/// A moment with its seconds.
pub(crate) fn time_exact(ctx: &Ctx, at: impl Into<Time>) -> Markup {
    let at = at.into();
    html! { time datetime=(iso(at)) title=(zones(ctx, at)) data-at="s" { (span::moment(ctx.lang, ctx.zone, at, ctx.now, true)) } }
}

/// A moment with its milliseconds: the order of what happened within a second is shown.
pub(crate) fn time_to_the_milli(ctx: &Ctx, at: impl Into<Time>) -> Markup {
    let at = at.into();
    html! { time datetime=(iso(at)) title=(zones(ctx, at)) data-at="ms" { (span::to_the_milli(ctx.lang, ctx.zone, at, ctx.now)) } }
}

/// How long ago a time was, or how long until it comes. The script of the page keeps that up to date; without a script,
/// the time itself is shown.
pub(crate) fn ago(ctx: &Ctx, at: impl Into<Time>) -> Markup {
    let at = at.into();
    html! { time.ago datetime=(iso(at)) title=(zones(ctx, at)) data-ago { (span::moment(ctx.lang, ctx.zone, at, ctx.now, false)) } }
}

/// A field for a time to filter by, in the viewer's zone.
pub(crate) fn when(ctx: &Ctx, name: &str) -> Markup {
    let given = ctx
        .q(name)
        .map(|text| match parse(text).or_else(|| span::in_zone(ctx.zone, text)) {
            Some(at) => span::for_form(ctx.zone, at),
            None => text.to_owned(),
        });
    html! { label.when title=(ctx.zone.name()) { span { (t!(ctx, name)) } input type="datetime-local" name=(name) value=[given]; } }
}

/// Why a field of the form was refused, beneath the field. A field says `aria-describedby` with the id of this.
pub(crate) fn fault(ctx: &Ctx, name: &str) -> Markup {
    html! { @if let Some(why) = ctx.fault(name) { small.wrong id={ (name) "-fault" } { (why) } } }
}

/// For a field's `aria-describedby`: where it is said why the field was refused.
pub(crate) fn fault_id(ctx: &Ctx, name: &str) -> Option<String> {
    ctx.fault(name).map(|_| format!("{name}-fault"))
}

/// A time as it is written into an address or a form.
pub(crate) fn parse(text: &str) -> Option<Time> {
    text.parse().ok()
}

/// How long something took. `None`: it still goes on, and the page's script counts the time since it began.
pub(crate) fn took(ctx: &Ctx, from: impl Into<Time>, to: Option<impl Into<Time>>) -> Markup {
    let (from, to): (Time, Option<Time>) = (from.into(), to.map(Into::into));
    match to {
        Some(to) => html! { span.took { (span::span(ctx.lang, (to - from).num_milliseconds())) } },
        None => {
            let since = t!(
                ctx,
                "since-at",
                at = span::moment(ctx.lang, ctx.zone, from, ctx.now, false)
            );
            html! { span.took data-since=(iso(from)) { "… " noscript { (since) } } }
        }
    }
}

pub(crate) fn millis(ctx: &Ctx, millis: i64) -> String {
    span::span(ctx.lang, millis)
}

/// A number with its thousands.
pub(crate) fn number(n: impl Into<i64>) -> String {
    span::number(n.into())
}

/// A link to a group.
pub(crate) fn group_link(name: &str) -> Markup {
    html! { a href={ "/groups/" (segment(name)) } { bdi { (name) } } }
}

/// A link to a group; from one that Heddle keeps for a topic, to that topic, if its name is known ([`Ctx::know_topics`]).
pub(crate) fn group_or_topic(ctx: &Ctx, name: &str) -> Markup {
    match ctx.topic_of(name) {
        Some(topic) => {
            html! { a href={ "/topics/" (segment(&topic)) } title=(name) { bdi { (t!(ctx, "topic-named", name = topic)) } } }
        }
        None => group_link(name),
    }
}

/// A script with its version.
pub(crate) fn script_link(name: &str) -> Markup {
    let bare = name.split('@').next().unwrap_or(name);
    html! { a href={ "/scripts/" (segment(bare)) } { bdi { (name) } } }
}

/// Names in a row, of which a sentence has room for so many.
pub(crate) const NAMED: usize = 5;

pub(crate) fn named(names: &[&str]) -> String {
    let few = &names[..names.len().min(NAMED)];
    let more = if names.len() > NAMED { ", …" } else { "" };
    format!("{}{more}", few.join(", "))
}

/// A button that does something: a separate form, so that it works without a script.
pub(crate) struct Button<'a> {
    pub(crate) action: String,
    pub(crate) label: String,
    pub(crate) glyph: &'a str,
    /// Its effect, in a sentence.
    pub(crate) title: String,
    /// Why it cannot be done now. The button is then disabled.
    pub(crate) refused: Option<String>,
    pub(crate) kind: &'a str,
    pub(crate) fields: Vec<(&'a str, String)>,
    /// The question that the viewer must confirm first.
    pub(crate) confirm: Option<String>,
}

impl Button<'_> {
    pub(crate) fn new(action: impl Into<String>, label: String, title: String) -> Self {
        Self {
            action: action.into(),
            label,
            glyph: "",
            title,
            refused: None,
            kind: "",
            fields: Vec::new(),
            confirm: None,
        }
    }
}

pub(crate) fn button(button: Button<'_>) -> Markup {
    let inside = html! {
        @if !button.glyph.is_empty() { (glyph(button.glyph)) }
        (button.label)
    };
    // A disabled button can still be reached by keyboard and finger, and then says why it is disabled.
    if let Some(why) = &button.refused {
        return html! {
            span.act { button type="button" class={ "refused " (button.kind) } aria-disabled="true" aria-label=(format!("{}: {why}", button.label)) data-why=(why) { (inside) } }
        };
    }
    html! {
        form.act method="post" action=(button.action) data-confirm=[button.confirm.as_deref()] {
            @for (name, value) in &button.fields { input type="hidden" name=(name) value=(value); }
            button type="submit" class=(button.kind) title=(button.title) { (inside) }
        }
    }
}

/// A text of ours or of an author. Its parts between backquotes are shown as code.
pub(crate) fn prose(text: &str) -> Markup {
    let parts: Vec<&str> = text.split('`').collect();
    // A single backquote is shown as it is.
    let whole = parts.len() % 2 == 1;
    html! {
        @if whole { @for (index, part) in parts.iter().enumerate() { @if index % 2 == 1 { code { (part) } } @else { (part) } } }
        @else { (text) }
    }
}

/// The text of an empty list: that it is empty, and what that means.
pub(crate) fn empty(text: &str) -> Markup {
    html! { p.empty { (prose(text)) } }
}

/// A link to the next page of a list, keeping the rest of the query.
fn more(ctx: &Ctx, cursor: Option<&str>) -> Markup {
    let Some(cursor) = cursor else { return html! {} };
    html! { p.more { a.button href=(with_query(ctx, &[("cursor", Some(cursor))])) { (t!(ctx, "next-page")) } } }
}

/// A list that is kept up to date, with the link to its next page. The link is a part of it: while the page is open, the
/// list may grow beyond one page, and the next page may begin elsewhere.
pub(crate) fn listed(ctx: &Ctx, name: &'static str, list: Markup, cursor: Option<&str>) -> Markup {
    ctx.live(name, html! { div.stack { (list) (more(ctx, cursor)) } })
}

/// Says that a list without further pages shows only so many rows, if the API has more of them: a `cursor`.
pub(crate) fn first_only(ctx: &Ctx, rows: usize, cursor: Option<&str>) -> Markup {
    html! { @if cursor.is_some() { p.muted { (t!(ctx, "first-only", n = rows)) } } }
}

/// This page's address with some parameters changed (`None`: left out).
pub(crate) fn with_query(ctx: &Ctx, changes: &[(&str, Option<&str>)]) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    for (key, value) in &ctx.query {
        if !value.is_empty() && !changes.iter().any(|(name, _)| name == key) {
            query.append_pair(key, value);
        }
    }
    for (name, value) in changes {
        if let Some(value) = value {
            query.append_pair(name, value);
        }
    }
    let query = query.finish();
    if query.is_empty() {
        ctx.path.clone()
    } else {
        format!("{}?{query}", ctx.path)
    }
}

/// A choice of one of several; each has its address.
pub(crate) fn choice(ctx: &Ctx, label: &str, name: &str, chosen: &str, among: &[(&str, String)]) -> Markup {
    html! {
        nav.choice aria-label=(label) {
            @for (value, word) in among {
                a href=(with_query(ctx, &[(name, Some(value)), ("cursor", None)])) aria-current=[(*value == chosen).then_some("true")] { (word) }
            }
        }
    }
}

/// Tabs of a page.
pub(crate) fn tabs(label: &str, here: &str, tabs: &[(String, String, String)]) -> Markup {
    html! {
        nav.tabs aria-label=(label) {
            @for (name, address, word) in tabs {
                a href=(address) aria-current=[(name == here).then_some("page")] { (word) }
            }
        }
    }
}

/// The states that the legend of a picture of task runs tells of.
pub(crate) const TASK_STATES: [TaskState; 10] = [
    TaskState::Succeeded,
    TaskState::Running,
    TaskState::Retrying,
    TaskState::Failed,
    TaskState::UpstreamFailed,
    TaskState::Skipped,
    TaskState::Cancelled,
    TaskState::Paused,
    TaskState::Pending,
    TaskState::Ready,
];

/// A legend of states.
pub(crate) fn legend(ctx: &Ctx, states: &[impl Shown]) -> Markup {
    html! {
        ul.legend aria-label=(t!(ctx, "legend")) {
            @for name in states { li { (state(ctx, name)) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_types_is_distinguished_from_words() {
        let shown = |text: &str| prose(text).into_string();
        assert_eq!(
            shown("try `a <b>`, then `c`"),
            "try <code>a &lt;b&gt;</code>, then <code>c</code>"
        );
        assert_eq!(shown("5` long"), "5` long");
        assert_eq!(shown(""), "");
    }

    #[test]
    fn a_failure_says_its_kind_once_and_leads_to_the_run_that_failed() {
        let shown = |kind, message: &str| failure(kind, message).into_string();
        assert_eq!(
            shown(Some(ErrorKind::Trap), "trap: wasm `unreachable`\nat a"),
            "<span class=\"error\">trap: wasm `unreachable`</span>"
        );
        assert_eq!(shown(None, "<b>"), "<span class=\"error\">&lt;b&gt;</span>");
        let id = "01a212fe-2a81-7000-8002-1154d649980d";
        assert_eq!(
            shown(Some(ErrorKind::Failed), &format!("sub-run {id} failed: sub-run é")),
            format!("<span class=\"error\">failed: sub-run <a href=\"/runs/{id}\">{id}</a> failed: sub-run é</span>")
        );
    }

    #[test]
    fn one_line_of_whatever_somebody_wrote() {
        assert_eq!(line("a\nb"), "a");
        assert_eq!(line(""), "");
        let long = "é".repeat(500);
        assert_eq!(line(&long).chars().count(), LINE_CHARS_MAX + 1);
        let shown = html! { (line("<script>alert(1)</script>")) }.into_string();
        assert_eq!(shown, "&lt;script&gt;alert(1)&lt;/script&gt;");
    }
}
