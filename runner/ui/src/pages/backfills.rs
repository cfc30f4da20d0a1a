//! Backfills: how far each is, and pausing, resuming and cancelling them.

use axum::http::Method;
use heddle_api::{Backfill, BulkReport, List, Run, RunState};
use heddle_domain::backfill::{OnExisting, Order};
use maud::{Markup, html};
use serde_json::json;

use super::answer::Answer;
use crate::chart::fill;
use crate::ctx::{Beat, segment};
use crate::elements::{Button, ago, button, empty, group_link, listed, number, state, state_of, state_word, time};
use crate::frame::Page;
use crate::words::t;
use crate::{Ctx, Trouble};

pub(super) async fn list(ctx: &Ctx) -> Result<Answer, Trouble> {
    ctx.beats_with(Beat::Cluster);
    let cursor = ctx
        .q("cursor")
        .map(|cursor| format!("&cursor={}", segment(cursor)))
        .unwrap_or_default();
    let found: List<Backfill> = ctx.get(&format!("/v1/backfills?limit=50{cursor}")).await?;
    let title = t!(ctx, "nav-backfills");
    let shown = html! {
        section.panel {
            @if found.items.is_empty() { (empty(&t!(ctx, "no-backfills"))) }
            @else {
                table.cards {
                    thead { tr { th { (t!(ctx, "group")) } th { (t!(ctx, "state")) } th { (t!(ctx, "progress")) } th { (t!(ctx, "from")) } th { (t!(ctx, "to")) } th { (t!(ctx, "created")) } } }
                    tbody { @for one in &found.items { (row(ctx, one)) } }
                }
            }
        }
    };
    let body = html! { div.heading { h1 { (title) } } (listed(ctx, "backfills", shown, found.next_cursor.as_deref())) };
    Answer::page(Page::new("backfills", title, body))
}

fn row(ctx: &Ctx, one: &Backfill) -> Markup {
    html! {
        tr {
            td { a href={ "/backfills/" (one.id) } { bdi { (one.group) } } }
            td.tight.side { (state(ctx, one.state.as_str())) }
            td.wide { (bar(ctx, one, true)) }
            td.tight data-label=(t!(ctx, "from")) { (time(ctx, one.from)) }
            td.tight.side data-label=(t!(ctx, "to")) { @match one.to { Some(at) => (time(ctx, at)), None => (t!(ctx, "now")) } }
            td.tight.muted { (ago(ctx, one.created_at)) }
        }
    }
}

/// The progress of a backfill in words: also the number of runs that did not succeed, which the bar shows only by
/// colour.
fn progress_text(ctx: &Ctx, one: &Backfill, total: i64) -> String {
    let ended =
        ["succeeded", "failed", "cancelled"].map(|name| (name, one.counts.get(name).copied().unwrap_or_default()));
    let ill = ended[1..].iter().any(|(_, count)| *count > 0);
    let mut parts = Vec::new();
    if !ill || one.done() < total {
        parts.push(t!(ctx, "of", n = number(one.done()), all = number(total)));
    }
    if ill {
        let some = ended.iter().filter(|(_, count)| *count > 0);
        parts.extend(
            some.map(|(name, count)| t!(ctx, "n-in-state", n = number(*count), state = state_word(ctx, *name))),
        );
    }
    parts.join(" · ")
}

/// Whether it created no run, because all its instants had one: its bar says so in words.
fn had_nothing_to_do(one: &Backfill) -> bool {
    one.total == 0 && one.skipped > 0
}

/// How many runs there are in each state, as one bar, and in words where nothing else says so.
fn bar(ctx: &Ctx, one: &Backfill, words: bool) -> Markup {
    const ORDER: [&str; 7] = [
        "succeeded",
        "failed",
        "cancelled",
        "running",
        "waiting",
        "paused",
        "pending",
    ];
    let count = |name: &str| one.counts.get(name).copied().unwrap_or_default();
    let total = one.total.max(ORDER.iter().map(|name| count(name)).sum()).max(1);
    if had_nothing_to_do(one) {
        return html! { span.muted { (t!(ctx, "left-alone", n = one.skipped)) } };
    }
    let mut x = 0.0;
    let pieces: Vec<(String, f64, f64)> = ORDER
        .iter()
        .map(|name| {
            let width = count(name) as f64 / total as f64 * 400.0;
            let from = x;
            x += width;
            (fill(*name), from, width)
        })
        .collect();
    let label = progress_text(ctx, one, total);
    html! {
        svg.stack-bar viewBox="0 0 400 8" preserveAspectRatio="none" role="img" aria-label=(label) {
            @for (class, x, width) in pieces { @if width > 0.0 { rect class=(class) x=(format!("{x:.1}")) y="0" width=(format!("{width:.1}")) height="8" {} } }
        }
        @if words { span.muted { (label) } }
    }
}

/// The runs of a backfill that are in a state: those that are made already.
fn runs_in(id: uuid::Uuid, state: &str) -> Option<String> {
    let known = state.parse::<RunState>().is_ok();
    known.then(|| format!("/runs?backfill={id}&state={state}"))
}

pub(super) async fn page(ctx: &Ctx, id: &str, rest: &[&str]) -> Result<Answer, Trouble> {
    let id: uuid::Uuid = id.parse().map_err(|_| Trouble::not_found())?;
    if let (["restart"], true) = (rest, ctx.posts()) {
        let body = json!({ "filter": { "backfill": id, "state": "failed" }, "action": "restart" });
        let report: BulkReport = ctx.ask(Method::POST, "/v1/runs/bulk", &body).await?;
        return Answer::back(ctx, Some(super::runs::said_bulk(ctx.lang, &report)));
    }
    if let ([verb @ ("pause" | "resume" | "cancel")], true) = (rest, ctx.posts()) {
        ctx.send(Method::POST, &format!("/v1/backfills/{id}/{verb}"), &json!({}))
            .await?;
        return Answer::back(ctx, Some(t!(ctx, &format!("said-{verb}"))));
    }
    if !rest.is_empty() {
        return Err(Trouble::not_found());
    }
    ctx.beats_with(Beat::Cluster);
    let one: Backfill = ctx.get(&format!("/v1/backfills/{id}")).await?;
    let open = !one.is_final();
    let failed = one.counts.get("failed").copied().unwrap_or_default();
    let head = html! {
        div.stack {
            div.heading {
                div.grow {
                    h1 { span { (t!(ctx, "backfill")) " · " (group_link(&one.group)) } (state(ctx, one.state.as_str())) }
                    p { (time(ctx, one.from)) " – " @match one.to { Some(at) => (time(ctx, at)), None => (t!(ctx, "now")) } " · " bdi { (one.created_by) } " · " (ago(ctx, one.created_at)) }
                    @if let Some(note) = &one.note { p.why { (note) } }
                }
                @if ctx.viewer.operates() { div.actions { (actions(ctx, id, &one, open, failed)) } }
            }
            section.panel {
                h2 { (t!(ctx, "progress")) }
                (bar(ctx, &one, false))
                dl.stats { @for (name, count) in &one.counts {
                    div.s-failed[name == "failed" && *count > 0] {
                        dd { b { (number(*count)) } }
                        dt { @match runs_in(id, name) { Some(address) => a href=(address) { (state_of(ctx, "backfill", name.as_str())) }, None => (state_of(ctx, "backfill", name.as_str())) } }
                    }
                } }
                @if one.skipped > 0 && !had_nothing_to_do(&one) { p.muted { (t!(ctx, "left-alone", n = one.skipped)) } }
            }
            section.panel { h2 { (t!(ctx, "backfill-asked")) } (asked(ctx, &one)) }
        }
    };
    let runs: List<Run> = ctx
        .get(&format!("/v1/runs?{}&backfill={id}", ctx.asks(50, &["cursor"])))
        .await?;
    let body = html! {
        (ctx.live("backfill", head))
        (listed(ctx, "runs", super::runs::list(ctx, &runs.items), runs.next_cursor.as_deref()))
    };
    let group = one.group;
    let title = format!("{} · {group}", t!(ctx, "backfill"));
    Answer::page(Page::new("backfills", title, body).crumbs(vec![
        (t!(ctx, "nav-backfills"), Some("/backfills".into())),
        (group, None),
    ]))
}

/// The buttons of a backfill, each with a sentence about its effect.
fn actions(ctx: &Ctx, id: uuid::Uuid, one: &Backfill, open: bool, failed: i64) -> Markup {
    let refused = || (!open).then(|| t!(ctx, "refused-ended"));
    let verb = |name: &str, word: &str| {
        let will = t!(ctx, &format!("backfill-{name}-will"));
        Button::new(format!("/backfills/{id}/{name}"), t!(ctx, word), will)
    };
    html! {
        @if failed > 0 { (button(verb("restart", "backfill-restart"))) }
        @if one.state == "paused" { (button(verb("resume", "resume"))) }
        @else { (button(Button { refused: refused(), ..verb("pause", "pause") })) }
        (button(Button { kind: "danger", refused: refused(), confirm: Some(t!(ctx, "backfill-cancel-sure")), ..verb("cancel", "cancel") }))
    }
}

/// The options with which it was started.
fn asked(ctx: &Ctx, one: &Backfill) -> Markup {
    let order = match one.order {
        Order::Asc => t!(ctx, "backfill-order-asc"),
        Order::Desc => t!(ctx, "backfill-order-desc"),
    };
    let existing = match one.on_existing {
        OnExisting::Skip => t!(ctx, "backfill-on_existing-skip"),
        OnExisting::Failed => t!(ctx, "backfill-on_existing-failed"),
        OnExisting::All => t!(ctx, "backfill-on_existing-all"),
    };
    let has_params = one.params.as_object().is_some_and(|params| !params.is_empty());
    html! {
        dl.facts {
            @if let Some(step) = &one.step { dt { (t!(ctx, "step")) } dd { (step) } }
            dt { (t!(ctx, "order")) } dd { (order) }
            dt { (t!(ctx, "max-active")) } dd { (number(i64::from(one.max_active))) }
            dt { (t!(ctx, "existing-runs")) } dd { (existing) }
            dt { (t!(ctx, "backfill-dependants")) } dd { @if one.include_downstream { (t!(ctx, "backfill-dependants-run")) } @else { (t!(ctx, "backfill-dependants-none")) } }
            dt { (t!(ctx, "priority")) } dd { (one.priority) }
            dt { (t!(ctx, "params")) } dd { @if has_params { (crate::yaml::highlighted(&crate::yaml::text(&one.params))) } @else { span.muted { (t!(ctx, "none")) } } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runs_of_a_state_have_an_address_once_they_are_made() {
        let id = uuid::Uuid::nil();
        assert_eq!(
            runs_in(id, "failed").as_deref(),
            Some("/runs?backfill=00000000-0000-0000-0000-000000000000&state=failed")
        );
        assert_eq!(runs_in(id, "pending"), None);
    }
}
