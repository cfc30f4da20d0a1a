//! Two runs side by side: which task took longer, ended differently, got other params, returned another output.

use std::collections::BTreeMap;

use heddle_api::{Moment, Run, TaskRun};
use heddle_store::pages::group::GroupRunRow;
use maud::{Markup, html};
use serde_json::Value;
use uuid::Uuid;

use super::answer::Answer;
use super::run::{data, view};
use crate::ctx::segment;
use crate::elements::{group_link, millis, state, state_word, time_exact, took, trigger_word};
use crate::frame::Page;
use crate::span;
use crate::words::t;
use crate::{Ctx, Trouble, yaml};

/// How many rows are shown at most.
const ROWS_MAX: usize = 1_500;
/// How many runs are offered to choose from.
const CHOICES: i64 = 60;
/// Up to how many bytes params and outputs are compared line by line.
const COMPARED_BYTES_MAX: usize = 100_000;

/// Compares the two runs that the query names. If it names one, compares it with the previous run of its group.
pub(super) async fn page(ctx: &Ctx) -> Result<Answer, Trouble> {
    let mut asked: Vec<Uuid> = ctx
        .query
        .iter()
        .filter(|(name, value)| name == "run" && !value.is_empty())
        .map(|(_, value)| value.parse().map_err(|_| Trouble::not_found()))
        .collect::<Result<_, _>>()?;
    // An id begins with the time at which its run was made: whichever is chosen where, the older one is before.
    asked.sort_unstable();
    let title = t!(ctx, "compare-title");
    let Some(last) = asked.last().copied() else {
        let body = html! { div.heading { h1 { (title) } } section.panel { p.empty { (t!(ctx, "compare-none")) } } };
        return Answer::page(Page::new("runs", title, body));
    };
    let after = view::read(ctx, last).await?;
    let group = ctx.ui.engine.catalog().group(&after.group).await?;
    let others = match &group {
        Some(group) => ctx.store().page_group_runs(group.id, None, CHOICES).await?,
        None => Vec::new(),
    };
    let before = match asked.first().filter(|_| asked.len() > 1) {
        Some(id) => Some(*id),
        None => others.iter().map(|run| run.id).find(|id| *id < last),
    };
    let before = match before.filter(|id| *id != last) {
        Some(id) => Some(view::read(ctx, id).await?),
        None => None,
    };
    let alone = others.iter().all(|run| run.id == after.id);
    let body = html! {
        div.heading { div.grow { h1 { (title) } p { (group_link(&after.group)) } } }
        @if !alone { section.panel {
            form.filters method="get" action="/runs/compare" data-at-once {
                label.hidden for="before" { (t!(ctx, "compare-before")) }
                (chooser(ctx, "before", &others, before.as_ref().map(|run| run.id)))
                span.muted { (t!(ctx, "compare-with")) }
                label.hidden for="after" { (t!(ctx, "compare-after")) }
                (chooser(ctx, "after", &others, Some(after.id)))
                button type="submit" { (t!(ctx, "compare")) }
            }
        } }
        @match &before {
            Some(before) => (both(ctx, before, &after)),
            None => section.panel {
                p.empty { (t!(ctx, if alone { "compare-only" } else { "compare-oldest" }, name = &after.group)) }
                p.row { a.button href={ "/runs/" (after.id) } { (t!(ctx, "open-run")) } (group_link(&after.group)) }
            },
        }
    };
    let crumbs = vec![
        (t!(ctx, "nav-runs"), Some("/runs".to_owned())),
        (after.group.clone(), Some(format!("/groups/{}", segment(&after.group)))),
        (title.clone(), None),
    ];
    Answer::page(Page::new("runs", title, body).crumbs(crumbs))
}

fn chooser(ctx: &Ctx, name: &str, others: &[GroupRunRow], chosen: Option<Uuid>) -> Markup {
    let known = others.iter().any(|run| Some(run.id) == chosen);
    html! {
        select id=(name) name="run" {
            @if let Some(id) = chosen.filter(|_| !known) { option value=(id) selected { (id) } }
            @for run in others {
                option value=(run.id) selected[Some(run.id) == chosen] {
                    (span::moment(ctx.lang, ctx.zone, run.logical_time, ctx.now, true)) " · " (state_word(ctx, run.state))
                    @if is_twin(run, others) { " · " (t!(ctx, "created")) " " (span::to_the_milli(ctx.lang, ctx.zone, run.created_at, ctx.now)) }
                }
            }
        }
    }
}

/// Whether another run is called the same: for the same second, with the same end.
fn is_twin(run: &GroupRunRow, among: &[GroupRunRow]) -> bool {
    let called = |one: &GroupRunRow| (one.logical_time.timestamp(), one.state);
    among.iter().any(|one| one.id != run.id && called(one) == called(run))
}

fn length(from: Option<Moment>, to: Option<Moment>) -> Option<i64> {
    Some((to?.0 - from?.0).num_milliseconds())
}

/// How long a run took, if it has ended.
fn whole(run: &Run) -> Option<i64> {
    length(run.at_work_since(), run.finished_at)
}

/// The difference of two durations, as `+3 s` or `−1.2 s`; empty if one of them is missing.
fn change(ctx: &Ctx, before: Option<i64>, after: Option<i64>) -> Option<String> {
    let by = after? - before?;
    let sign = match by {
        0 => "±",
        1.. => "+",
        _ => "−",
    };
    Some(format!("{sign}{}", millis(ctx, by.abs())))
}

fn both(ctx: &Ctx, before: &Run, after: &Run) -> Markup {
    let pairs = pairs(before, after);
    html! {
        section.panel {
            table.cards {
                thead { tr { th { span.hidden { (t!(ctx, "compare")) } } th { (t!(ctx, "run")) } th { (t!(ctx, "state")) } th.num { (t!(ctx, "took")) } th.num { (t!(ctx, "difference")) } th { (t!(ctx, "trigger")) } th { (t!(ctx, "revision")) } } }
                tbody { @for (run, word, by) in [(before, t!(ctx, "compare-before"), None), (after, t!(ctx, "compare-after"), change(ctx, whole(before), whole(after)))] { tr {
                    td.tight { strong { (word) } }
                    td.tight.side { a href={ "/runs/" (run.id) } { (time_exact(ctx, run.logical_time)) } }
                    td.tight { (state(ctx, run.state)) }
                    td.num.side { @if let Some(from) = run.at_work_since() { (took(ctx, from, run.finished_at)) } }
                    td.num.wide data-label=(t!(ctx, "difference")) { (by.unwrap_or_else(|| "–".into())) }
                    td.tight.muted { (trigger_word(ctx, run.trigger)) }
                    td.side { a href={ "/groups/" (segment(&run.group)) "/spec?revision=" (run.revision) } { (t!(ctx, "revision-n", n = i64::from(run.revision))) } }
                } } }
            }
            @if before.group == after.group && before.revision != after.revision {
                p { a href={ "/groups/" (segment(&after.group)) "/spec?revision=" (after.revision) "&against=" (before.revision) } { (t!(ctx, "compare-specs")) } }
            }
        }
        section.panel {
            h2 { (t!(ctx, "tasks")) }
            table.cards {
                thead { tr { th { (t!(ctx, "task")) } th { (t!(ctx, "compare-before")) } th.num { (t!(ctx, "took")) } th { (t!(ctx, "compare-after")) } th.num { (t!(ctx, "took")) } th.num { (t!(ctx, "difference")) } } }
                tbody { @for (name, one, other) in pairs.iter().take(ROWS_MAX) { (row(ctx, name, *one, *other)) } }
            }
            @if pairs.len() > ROWS_MAX { p.muted { (t!(ctx, "and-more", n = pairs.len() - ROWS_MAX)) } }
        }
        div.two.even {
            section.panel { h2 { (t!(ctx, "params")) } (differs(ctx, &before.params, &after.params)) }
            section.panel { h2 { (t!(ctx, "outputs")) } (differs(ctx, &outputs(before), &outputs(after))) }
        }
    }
}

/// The tasks of both runs: first those of the newer run in its order, then those that only the older one has.
fn pairs<'a>(before: &'a Run, after: &'a Run) -> Vec<(&'a str, Option<&'a TaskRun>, Option<&'a TaskRun>)> {
    let mut left: BTreeMap<&str, &TaskRun> = before.wholes().map(|task| (task.task.as_str(), task)).collect();
    let mut pairs: Vec<_> = after
        .wholes()
        .map(|task| (task.task.as_str(), left.remove(task.task.as_str()), Some(task)))
        .collect();
    pairs.extend(left.into_iter().map(|(name, task)| (name, Some(task), None)));
    pairs
}

fn row(ctx: &Ctx, name: &str, before: Option<&TaskRun>, after: Option<&TaskRun>) -> Markup {
    let spans = |task: Option<&TaskRun>| task.and_then(|task| length(task.started_at, task.finished_at));
    let differs = before.map(|task| task.state) != after.map(|task| task.state);
    html! {
        tr aria-selected=[differs.then_some("true")] {
            td.wide { strong { bdi { (name) } } }
            @for (task, word) in [(before, t!(ctx, "compare-before")), (after, t!(ctx, "compare-after"))] {
                td.tight data-label=(word) { @if let Some(task) = task { (state(ctx, task.state)) } @else { span.muted { (t!(ctx, "compare-absent")) } } }
                td.num.side { @if let Some(millis) = spans(task) { (self::millis(ctx, millis)) } @else { span.muted { "–" } } }
            }
            td.num.wide data-label=(t!(ctx, "difference")) { @if let Some(text) = change(ctx, spans(before), spans(after)) { (text) } @else { span.muted { "–" } } }
        }
    }
}

fn outputs(run: &Run) -> Value {
    let given = data::outputs(run).into_iter();
    Value::Object(given.map(|(task, output)| (task.to_owned(), output)).collect())
}

fn differs(ctx: &Ctx, before: &Value, after: &Value) -> Markup {
    if before == after {
        return html! { p.muted { (t!(ctx, "compare-same")) } };
    }
    let (before, after) = (yaml::text(before), yaml::text(after));
    if before.len().max(after.len()) > COMPARED_BYTES_MAX {
        return html! { p.muted { (t!(ctx, "compare-long")) } };
    }
    yaml::difference(&before, &after)
}
