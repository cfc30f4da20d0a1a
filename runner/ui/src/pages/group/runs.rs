//! A group's runs: how long each took, by logical time, and the list.

use heddle_api::RunState;
use heddle_store::pages::group::GroupRunRow;
use maud::{Markup, html};
use uuid::Uuid;

use super::here::{Here, framed};
use super::times::{begun, median, millis};
use crate::chart::fill;
use crate::elements::{self, choice, empty, line, listed, state, time, time_exact, took, trigger_word};
use crate::pages::answer::Answer;
use crate::pages::run::waits_for_what;
use crate::words::t;
use crate::{Ctx, Trouble};

const RUNS: i64 = 100;

pub(super) async fn page(ctx: &Ctx, here: &Here) -> Result<Answer, Trouble> {
    let before: Option<Uuid> = ctx.q("cursor").and_then(|id| id.parse().ok());
    let mut runs = ctx.store().page_group_runs(here.group.id, before, RUNS + 1).await?;
    let next = (runs.len() as i64 > RUNS).then(|| runs[RUNS as usize - 1].id.to_string());
    runs.truncate(RUNS as usize);
    let shown = html! {
        @if runs.len() > 1 && runs.iter().any(|run| millis(run).is_some()) { (scatter(ctx, &here.name, &runs, ctx.q("by") == Some("start"))) }
        (list(ctx, &runs))
    };
    let inside = listed(ctx, "runs", shown, next.as_deref());
    Answer::page(framed(
        ctx,
        here,
        "runs",
        html! { (crate::pages::runs::filters(ctx, Some(&here.name))) (inside) },
    ))
}

/// The position of a run in the picture: by its logical time, or by its creation.
fn time_of(run: &GroupRunRow, by_start: bool) -> heddle_domain::Time {
    if by_start { run.created_at } else { run.logical_time }
}

fn scatter(ctx: &Ctx, name: &str, runs: &[GroupRunRow], by_start: bool) -> Markup {
    let among = [("", t!(ctx, "logical-time")), ("start", t!(ctx, "start-time"))];
    let longest = runs.iter().filter_map(millis).max().unwrap_or(1).max(1) as f64;
    let (first, last) = (
        runs.iter().map(|run| time_of(run, by_start)).min().unwrap_or(ctx.now),
        runs.iter().map(|run| time_of(run, by_start)).max().unwrap_or(ctx.now),
    );
    let axis = crate::chart::Axis {
        from: first,
        to: last,
        // Positions are in hundredths of the picture: it is as wide as the screen allows, and its letters keep their
        // size.
        width: 98.0,
    };
    let middle = median(runs);
    let near = last - first < chrono::TimeDelta::days(2);
    let nearer = last - first < chrono::TimeDelta::hours(1);
    let end = |at| {
        if near {
            crate::span::moment(ctx.lang, ctx.zone, at, ctx.now, nearer)
        } else {
            crate::span::day(ctx.lang, ctx.zone, at, ctx.now)
        }
    };
    let y = |millis: i64| 110.0 - 96.0 * (millis as f64 / longest).sqrt();
    html! {
        section.panel {
            div.row { h2.grow { (t!(ctx, "durations")) } (choice(ctx, &t!(ctx, "view"), "by", if by_start { "start" } else { "" }, &among)) span.muted data-hint hidden { (t!(ctx, "drag-hint")) } @if let Some(middle) = middle { span.muted { (t!(ctx, "median")) " " (elements::millis(ctx, middle)) } } }
            svg.picture.scatter role="group"
                data-group=(name) data-by=[by_start.then_some("start")] data-left="1" data-span="98" data-from=(first.timestamp_millis()) data-to=(last.timestamp_millis() + 1) aria-label=(t!(ctx, "durations-label", n = runs.len())) {
                rect.marked x="0" y="4" width="0" height="106" {}
                line.axis x1="0" x2="100%" y1="110.5" y2="110.5" {}
                @if let Some(middle) = middle { line.now x1="0" x2="100%" y1=(format!("{:.1}", y(middle))) y2=(format!("{:.1}", y(middle))) {} }
                text x="0" y="10" { (elements::millis(ctx, longest as i64)) }
                text x="0" y="126" { (end(first)) }
                text x="100%" y="126" text-anchor="end" { (end(last)) }
                @for run in runs {
                    @if let Some(took) = millis(run) {
                        @let (x, height) = (format!("{:.2}%", axis.x(time_of(run, by_start)) + 1.0), y(took));
                        a href={ "/runs/" (run.id) } tabindex="-1" aria-hidden="true" {
                            @if run.state == RunState::Failed { svg x=(x) overflow="visible" { rect class=(fill(run.state)) x="-4" y=(format!("{:.1}", height - 4.0)) width="8" height="8" {} } }
                            @else { circle class=(fill(run.state)) cx=(x) cy=(format!("{height:.1}")) r="4" {} }
                        }
                    }
                }
            }
        }
    }
}

fn list(ctx: &Ctx, runs: &[GroupRunRow]) -> Markup {
    html! {
        section.panel {
            @if runs.is_empty() { (empty(&t!(ctx, "no-runs-yet"))) }
            @else {
                form method="get" action="/runs/compare" {
                table.cards.compared {
                    thead { tr { th { span.hidden { (t!(ctx, "compare")) } } th { (t!(ctx, "logical-time")) } th { (t!(ctx, "state")) } th { (t!(ctx, "trigger")) } th.num { (t!(ctx, "took")) } th { (t!(ctx, "created")) } th { (t!(ctx, "what-it-says")) } } }
                    @let exact = is_crowded(runs);
                    tbody { @for run in runs { (row(ctx, run, exact)) } }
                }
                @if runs.len() > 1 { p.row.under.of-picks { button type="submit" { (t!(ctx, "compare")) } span.muted { (t!(ctx, "compare-hint")) } } }
                }
            }
        }
    }
}

/// Whether minutes do not tell all runs apart.
fn is_crowded(runs: &[GroupRunRow]) -> bool {
    let mut minutes: Vec<i64> = runs
        .iter()
        .map(|run| run.logical_time.timestamp().div_euclid(60))
        .collect();
    minutes.sort_unstable();
    minutes.windows(2).any(|pair| pair[0] == pair[1])
}

fn row(ctx: &Ctx, run: &GroupRunRow, exact: bool) -> Markup {
    html! {
        tr {
            td.pick { input type="checkbox" name="run" value=(run.id) data-pick aria-label=(t!(ctx, "compare-this", at = crate::span::moment(ctx.lang, ctx.zone, run.logical_time, ctx.now, true))); }
            td.tight { a href={ "/runs/" (run.id) } data-main { @if exact { (time_exact(ctx, run.logical_time)) } @else { (time(ctx, run.logical_time)) } } }
            td.tight.side { (state(ctx, run.state)) }
            td.tight.muted { (trigger_word(ctx, run.trigger)) }
            td.num.side { @if let Some(from) = begun(run) { (took(ctx, from, run.finished_at)) } }
            td.tight.muted.drop { (time(ctx, run.created_at)) }
            td.wide {
                @if let Some(error) = &run.error { span.error { (line(error)) } }
                @if run.state == RunState::Waiting { (waits_for_what(ctx, &run.waiting_for)) }
            }
        }
    }
}
