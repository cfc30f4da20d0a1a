//! Backfills: how far each is, and pausing, resuming and cancelling them.

use axum::http::Method;
use heddle_api::{Backfill, List, Run};
use maud::{Markup, html};
use serde_json::json;

use super::Answer;
use crate::chart::fill;
use crate::ctx::{Beat, segment};
use crate::elements::{Button, ago, button, empty, group_link, more, number, state, state_of, time};
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
    let body = html! { div.heading { h1 { (title) } } (ctx.live("backfills", shown)) (more(ctx, found.next_cursor.as_deref())) };
    Answer::page(Page::new("backfills", title, body))
}

fn row(ctx: &Ctx, one: &Backfill) -> Markup {
    html! {
        tr {
            td { a href={ "/backfills/" (one.id) } { bdi { (one.group) } } }
            td.tight.side { (state(ctx, one.state.as_str())) }
            td.wide { (bar(ctx, one)) }
            td.tight data-label=(t!(ctx, "from")) { (time(ctx, one.from)) }
            td.tight.side data-label=(t!(ctx, "to")) { @match one.to { Some(at) => (time(ctx, at)), None => (t!(ctx, "now")) } }
            td.tight.muted { (ago(ctx, one.created_at)) }
        }
    }
}

/// How many runs there are in each state, as one bar.
fn bar(ctx: &Ctx, one: &Backfill) -> Markup {
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
    // All of its instants had runs.
    if one.total == 0 && one.skipped > 0 {
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
    let label = t!(ctx, "of", n = number(one.done()), all = number(total));
    html! {
        svg.stack-bar viewBox="0 0 400 8" preserveAspectRatio="none" role="img" aria-label=(label) {
            @for (class, x, width) in pieces { @if width > 0.0 { rect class=(class) x=(format!("{x:.1}")) y="0" width=(format!("{width:.1}")) height="8" {} } }
        }
        span.muted { (label) }
    }
}

pub(super) async fn page(ctx: &Ctx, id: &str, rest: &[&str]) -> Result<Answer, Trouble> {
    let id: uuid::Uuid = id.parse().map_err(|_| Trouble::not_found())?;
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
    let refused = |may: bool| (!may).then(|| t!(ctx, "refused-ended"));
    let head = html! {
        div.heading {
            div.grow {
                h1 { span { (t!(ctx, "backfill")) " · " (group_link(&one.group)) } (state(ctx, one.state.as_str())) }
                p { (time(ctx, one.from)) " – " @match one.to { Some(at) => (time(ctx, at)), None => (t!(ctx, "now")) } " · " bdi { (one.created_by) } " · " (ago(ctx, one.created_at)) }
                @if let Some(note) = &one.note { p.why { (note) } }
            }
            @if ctx.viewer.operates() {
                div.actions {
                    @if one.state == "paused" { (button(Button::new(format!("/backfills/{id}/resume"), t!(ctx, "resume"), t!(ctx, "resume-will")))) }
                    @else { (button(Button { refused: refused(open), ..Button::new(format!("/backfills/{id}/pause"), t!(ctx, "pause"), t!(ctx, "pause-will")) })) }
                    (button(Button { kind: "danger", refused: refused(open), confirm: Some(t!(ctx, "cancel-sure")), ..Button::new(format!("/backfills/{id}/cancel"), t!(ctx, "cancel"), t!(ctx, "cancel-will")) }))
                }
            }
        }
        section.panel {
            h2 { (t!(ctx, "progress")) }
            (bar(ctx, &one))
            dl.stats { @for (name, count) in &one.counts { div { dd { b { (number(*count)) } } dt { (state_of(ctx, "backfill", name.as_str())) } } } }
            @if one.skipped > 0 { p.muted { (t!(ctx, "left-alone", n = one.skipped)) } }
        }
    };
    let group = one.group;
    let runs: List<Run> = ctx
        .get(&format!("/v1/runs?group={}&trigger=backfill&limit=50", segment(&group)))
        .await?;
    let mut own = runs.items;
    let source = id.to_string();
    own.retain(|run| run.source.as_ref() == Some(&source));
    let body = html! { (ctx.live("backfill", head)) (ctx.live("runs", super::runs::list(ctx, &own))) };
    let title = format!("{} · {group}", t!(ctx, "backfill"));
    Answer::page(Page::new("backfills", title, body).crumbs(vec![
        (t!(ctx, "nav-backfills"), Some("/backfills".into())),
        (group, None),
    ]))
}
