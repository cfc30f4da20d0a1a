//! All runs: by group, state, trigger, label, key and time; and what may be done to many of them at once.

use axum::http::Method;
use heddle_api::{BulkReport, List, Run, RunState, Trigger};
use maud::{Markup, html};
use serde_json::json;

use super::Answer;
use crate::ctx::Beat;
use crate::elements::{
    ago, empty, group_link, line, more, parse, state, state_word, time, took, trigger_word, when, with_query,
};
use crate::form::field;
use crate::frame::Page;
use crate::words::t;
use crate::{Ctx, Trouble};

/// What may be asked of the list.
const FILTERS: [&str; 11] = [
    "group",
    "state",
    "trigger",
    "label",
    "key",
    "param",
    "from",
    "to",
    "logical_from",
    "logical_to",
    "cursor",
];
const ACTIONS: [&str; 5] = ["cancel", "pause", "resume", "restart", "rerun"];

pub(super) async fn page(ctx: &Ctx) -> Result<Answer, Trouble> {
    ctx.beats_with(Beat::Cluster);
    let runs: List<Run> = ctx.get(&format!("/v1/runs?{}", ctx.asks(50, &FILTERS))).await?;
    let title = t!(ctx, "nav-runs");
    let by_param = ctx.q("param").is_some();
    let none = runs.items.is_empty() && runs.next_cursor.is_none();
    let body = html! {
        div.heading { div.grow { h1 { (title) } } }
        (filters(ctx, None))
        (ctx.live("runs", list(ctx, &runs.items)))
        @if by_param && runs.next_cursor.is_some() { p.muted { (t!(ctx, "param-looked")) } }
        (more(ctx, runs.next_cursor.as_deref()))
        // What is looked for a part at a time is not all that there is to be done something to.
        @if ctx.viewer.operates() && !by_param && !none { (bulk_form(ctx)) }
    };
    Answer::page(Page::new("runs", title, body))
}

fn at(ctx: &Ctx, name: &str) -> Option<heddle_domain::Time> {
    ctx.q(name).and_then(parse)
}

/// What is to be listed; `of`: of this group, from its own page, whose list stays as it is.
pub(super) fn filters(ctx: &Ctx, of: Option<&str>) -> Markup {
    let select = |name: &'static str, all: String, among: Vec<(&'static str, String)>| -> Markup {
        html! {
            label.hidden for=(name) { (all) }
            select id=(name) name=(name) {
                option value="" { (all) }
                @for (value, word) in among { option value=(value) selected[ctx.q(name) == Some(value)] { (word) } }
            }
        }
    };
    let states = RunState::ALL
        .iter()
        .map(|one| (one.as_str(), state_word(ctx, one)))
        .collect();
    let triggers = Trigger::ALL
        .iter()
        .map(|one| (one.as_str(), trigger_word(ctx, *one)))
        .collect();
    html! {
        section.panel {
            form.filters.many method="get" action="/runs" role="search" {
                @if let Some(group) = of { input type="hidden" name="group" value=(group); }
                @else {
                    label.hidden for="group" { (t!(ctx, "group")) }
                    input #group type="search" name="group" value=[ctx.q("group")] placeholder=(t!(ctx, "group"));
                }
                (select("state", t!(ctx, "all-states"), states))
                (select("trigger", t!(ctx, "all-triggers"), triggers))
                label.hidden for="label" { (t!(ctx, "label")) }
                input #label type="search" name="label" value=[ctx.q("label")] placeholder=(t!(ctx, "label-hint"));
                label.hidden for="key" { (t!(ctx, "key")) }
                input #key type="search" name="key" value=[ctx.q("key")] placeholder=(t!(ctx, "key"));
                label.hidden for="param" { (t!(ctx, "params")) }
                input #param type="search" name="param" value=[ctx.q("param")] placeholder=(t!(ctx, "param-hint"));
                (when(ctx, "from")) (when(ctx, "to"))
                // A day of a calendar, or what was marked in a picture.
                @if let (Some(from), Some(to)) = (at(ctx, "logical_from"), at(ctx, "logical_to")) {
                    span.tag { (t!(ctx, "logical-time")) ": " (time(ctx, from)) " – " (time(ctx, to)) " " a href=(with_query(ctx, &[("logical_from", None), ("logical_to", None)])) aria-label=(t!(ctx, "remove-filter")) { "×" } }
                    input type="hidden" name="logical_from" value=[ctx.q("logical_from")];
                    input type="hidden" name="logical_to" value=[ctx.q("logical_to")];
                }
                button type="submit" { (t!(ctx, "filter")) }
            }
        }
    }
}

pub(super) fn list(ctx: &Ctx, runs: &[Run]) -> Markup {
    html! {
        section.panel {
            @if runs.is_empty() { (empty(&t!(ctx, if ctx.filters() { "no-runs" } else { "no-runs-at-all" }))) }
            @else {
                table.cards.steady {
                    colgroup { col.of-group; col.of-time; col.of-state; col.of-trigger; col.of-span; col.of-ago; col; }
                    thead { tr { th { (t!(ctx, "group")) } th { (t!(ctx, "logical-time")) } th { (t!(ctx, "state")) } th.trigger { (t!(ctx, "trigger")) } th.num { (t!(ctx, "took")) } th { (t!(ctx, "created")) } th { (t!(ctx, "what-it-says")) } } }
                    tbody { @for run in runs { (row(ctx, run)) } }
                }
            }
        }
    }
}

fn row(ctx: &Ctx, run: &Run) -> Markup {
    html! {
        tr {
            td { (group_link(&run.group)) }
            td.tight.side { a href={ "/runs/" (run.id) } { (time(ctx, run.logical_time)) } }
            td.tight { (state(ctx, run.state)) }
            td.tight.muted.side.trigger { (trigger_word(ctx, run.trigger)) }
            td.num data-label=(t!(ctx, "took")) { @if let Some(from) = run.started_at { (took(ctx, from, run.finished_at)) } }
            td.tight.muted.side { (ago(ctx, run.created_at)) }
            td.wide {
                @if let Some(error) = &run.error { span.error title=(error.message) { (line(&error.message)) } }
                @if let Some(key) = &run.key { " " span.tag { (key) } }
                @for (name, value) in &run.labels { " " span.tag { (name) "=" (value) } }
            }
        }
    }
}

/// Does something to all runs that the filter above finds: first says to how many.
fn bulk_form(ctx: &Ctx) -> Markup {
    html! {
        section.panel {
            h2 { (t!(ctx, "bulk-title")) }
            form.filters method="post" action="/runs/bulk" {
                @for name in FILTERS.into_iter().filter(|name| *name != "cursor") { @if let Some(value) = ctx.q(name) { input type="hidden" name=(name) value=(value); } }
                label.hidden for="action" { (t!(ctx, "action")) }
                select #action name="action" { @for action in ACTIONS { option value=(action) { (t!(ctx, action)) } } }
                button type="submit" name="do" value="preview" { (t!(ctx, "preview")) }
                span.muted { (t!(ctx, "bulk-hint")) }
            }
        }
    }
}

pub(super) async fn bulk(ctx: &Ctx) -> Result<Answer, Trouble> {
    let form = ctx.form();
    let mut filter = json!({});
    for name in FILTERS.into_iter().filter(|name| *name != "cursor") {
        if let Some(value) = field(&form, name) {
            filter[name] = json!(ctx.said_for_api(name, value));
        }
    }
    let action = field(&form, "action").unwrap_or_default();
    let starts = field(&form, "do") == Some("start");
    let body = json!({ "filter": filter, "action": action, "dry_run": !starts });
    let report: BulkReport = ctx.ask(Method::POST, "/v1/runs/bulk", &body).await?;
    let (changed, matched) = (report.changed as i64, report.matched as i64);
    if starts {
        let said = t!(ctx, "said-bulk", changed = changed, matched = matched);
        return Ok(Answer::Go {
            to: "/runs".into(),
            said: Some(said),
        });
    }
    let refused = &report.refused;
    let title = t!(ctx, "bulk-title");
    let body = html! {
        div.heading { h1 { (title) } }
        section.panel.stack {
            p { (t!(ctx, "bulk-would", action = t!(ctx, action), matched = matched, refused = refused.len())) }
            @if !refused.is_empty() { table { tbody { @for one in refused.iter().take(20) { tr { td.tight { a href={ "/runs/" (one.id) } { code { (one.id) } } } td { (one.detail) } } } } } }
            form.row method="post" action="/runs/bulk" {
                @for (name, value) in form.iter().filter(|(name, _)| name != "do") { input type="hidden" name=(name) value=(value); }
                button.primary type="submit" name="do" value="start" disabled[matched == 0] { (t!(ctx, action)) }
                a.button href="/runs" { (t!(ctx, "cancel-form")) }
            }
        }
    };
    Answer::page(
        Page::new("runs", title.clone(), body).crumbs(vec![(t!(ctx, "nav-runs"), Some("/runs".into())), (title, None)]),
    )
}
