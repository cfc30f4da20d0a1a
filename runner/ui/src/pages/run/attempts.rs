//! All attempts of a run: their nodes, durations, resources and ends.

use std::collections::BTreeMap;

use heddle_api::{List, Node, Run, TaskState};
use heddle_store::run::AttemptView;
use maud::{Markup, html};

use super::view::{SubRun, Whole};
use crate::ctx::segment;
use crate::elements::{self, empty, failure, linked, state, time_exact, took, with_query};
use crate::words::t;
use crate::{Ctx, Trouble, span};

/// How many attempts are listed.
const LISTED: usize = 500;

pub(super) async fn inside(ctx: &Ctx, whole: &Whole) -> Result<Markup, Trouble> {
    let (run, detail) = (&whole.run, whole.detail(ctx).await?);
    let revision = ctx.ui.engine.catalog().revision(detail.run.revision_id).await?;
    let nodes: List<Node> = ctx.get("/v1/nodes?limit=500").await?;
    let names = nodes.items.into_iter().map(|node| (node.id, node.name)).collect();
    let sub_runs = whole.sub_runs(ctx).await?;
    let name_of = |attempt: &AttemptView| {
        let task = revision.plan.tasks.get(attempt.key.task as usize);
        task.map(|task| task.name.to_string()).unwrap_or_default()
    };
    // Only those of one task, or of one of its items, if the address names it.
    let chosen = (ctx.q("task"), ctx.q("item").and_then(|item| item.parse().ok()));
    let is_chosen = |attempt: &AttemptView| {
        chosen.0.is_none_or(|task| name_of(attempt) == task)
            && chosen.1.is_none_or(|item| attempt.key.item == Some(item))
    };
    let mut attempts: Vec<&AttemptView> = detail.attempts.iter().filter(|one| is_chosen(one)).collect();
    attempts.sort_by_key(|attempt| std::cmp::Reverse(attempt.started_at));
    let all = attempts.len();
    let listed = html! {
        section.panel {
            @if let Some(task) = chosen.0 {
                p.row { span { (t!(ctx, "task")) " " bdi { (task) } @if let Some(item) = chosen.1 { "[" (item) "]" } } a href=(with_query(ctx, &[("task", None), ("item", None)])) { (t!(ctx, "all-tasks")) } }
            }
            @if all == 0 { (empty(&t!(ctx, "no-attempts"))) }
            @else {
                table.cards {
                    thead { tr { th { (t!(ctx, "task")) } th { (t!(ctx, "attempt")) } th { (t!(ctx, "state")) } th.num { (t!(ctx, "took")) } th.num.spare { (t!(ctx, "memory")) } th.num.spare { (t!(ctx, "processor")) } th { (t!(ctx, "node")) } th { (t!(ctx, "started")) } th { (t!(ctx, "error")) } } }
                    tbody {
                        @for attempt in attempts.iter().take(LISTED) {
                            @let name = name_of(attempt);
                            @let made = |sub: &&SubRun| (&sub.task, sub.item, sub.attempt) == (&name, attempt.key.item, attempt.attempt);
                            (row(ctx, run, attempt, (&name, sub_runs.iter().find(made)), &names))
                        }
                    }
                }
                @if all > LISTED { p.muted { (t!(ctx, "and-more", n = all - LISTED)) } }
            }
        }
    };
    Ok(ctx.live("attempts", listed))
}

fn row(
    ctx: &Ctx,
    run: &Run,
    attempt: &AttemptView,
    (name, sub_run): (&str, Option<&SubRun>),
    nodes: &BTreeMap<String, String>,
) -> Markup {
    let node = attempt.node.map(|node| node.to_string());
    let kind = attempt.error_kind;
    html! {
        tr {
            td.tight { a href={ "/runs/" (run.id) "/log?task=" (segment(name)) @if let Some(item) = attempt.key.item { "&item=" (item) } } { bdi { (name) } @if let Some(item) = attempt.key.item { "[" (item) "]" } } }
            td.tight.side data-label=(t!(ctx, "attempt")) { (attempt.attempt) }
            td.tight { @if attempt.skipped { (state(ctx, TaskState::Skipped)) } @else { (state(ctx, attempt.state)) } }
            td.num.side { (took(ctx, attempt.started_at, attempt.finished_at)) }
            td.num.spare data-label=(t!(ctx, "memory")) { @if let Some(bytes) = attempt.memory_bytes { (span::bytes(bytes)) } }
            td.num.side.spare data-label=(t!(ctx, "processor")) { @if let Some(micros) = attempt.cpu_micros { (elements::millis(ctx, (micros + 999) / 1_000)) } }
            td.tight.muted { @if let Some(node) = &node { bdi { (nodes.get(node).unwrap_or(node)) } } }
            td.tight.muted.side { (time_exact(ctx, attempt.started_at)) }
            td.wide {
                @if let Some(sub) = sub_run.filter(|_| attempt.error_message.is_none()) { span.muted { (t!(ctx, "sub-run")) " " } a href={ "/runs/" (sub.id) } { bdi { (sub.group) } } " " (state(ctx, sub.state)) }
                @if let Some(message) = &attempt.error_message {
                    (failure(kind, message))
                    @if message.lines().count() > 1 || attempt.error_trace.is_some() {
                        details { summary { (t!(ctx, "details")) } pre.error { (linked(message)) @if let Some(trace) = &attempt.error_trace { "\n\n" (trace) } } }
                    }
                } @else if let Some(kind) = kind.filter(|_| attempt.error_message_bytes.is_some()) {
                    (failure(Some(kind), ""))
                }
                @if attempt.is_error_omitted() { p.muted { (t!(ctx, "error-omitted")) } }
            }
        }
    }
}
