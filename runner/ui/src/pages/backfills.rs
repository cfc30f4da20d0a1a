//! Backfills: how far each is, and pausing, resuming and cancelling them.

use axum::http::Method;
use maud::{Markup, html};
use serde_json::{Value, json};

use super::Answer;
use crate::chart::fill;
use crate::ctx::{Beat, segment};
use crate::elements::{Button, ago, button, empty, group_link, more, number, parse, state, time};
use crate::frame::Page;
use crate::words::t;
use crate::{Ctx, Trouble};

pub(super) async fn list(ctx: &Ctx) -> Result<Answer, Trouble> {
    ctx.beats_with(Beat::Cluster);
    let cursor = ctx
        .q("cursor")
        .map(|cursor| format!("&cursor={}", segment(cursor)))
        .unwrap_or_default();
    let found = ctx.get(&format!("/v1/backfills?limit=50{cursor}")).await?;
    let items = found["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let title = t!(ctx, "nav-backfills");
    let shown = html! {
        section.panel {
            @if items.is_empty() { (empty(&t!(ctx, "no-backfills"))) }
            @else {
                table.cards {
                    thead { tr { th { (t!(ctx, "group")) } th { (t!(ctx, "state")) } th { (t!(ctx, "progress")) } th { (t!(ctx, "from")) } th { (t!(ctx, "to")) } th { (t!(ctx, "created")) } } }
                    tbody { @for one in items { (row(ctx, one)) } }
                }
            }
        }
    };
    let body = html! { div.heading { h1 { (title) } } (ctx.live("backfills", shown)) (more(ctx, found["next_cursor"].as_str())) };
    Answer::page(Page::new("backfills", title, body))
}

fn row(ctx: &Ctx, one: &Value) -> Markup {
    let text = |name: &str| one[name].as_str().unwrap_or_default();
    let at = |name: &str| one[name].as_str().and_then(parse);
    html! {
        tr {
            td { a href={ "/backfills/" (text("id")) } { bdi { (text("group")) } } }
            td.tight.side { (state(ctx, text("state"))) }
            td.wide { (bar(ctx, one)) }
            td.tight data-label=(t!(ctx, "from")) { @if let Some(at) = at("from") { (time(ctx, at)) } }
            td.tight.side data-label=(t!(ctx, "to")) { @match at("to") { Some(at) => (time(ctx, at)), None => (t!(ctx, "now")) } }
            td.tight.muted { @if let Some(at) = at("created_at") { (ago(ctx, at)) } }
        }
    }
}

/// How many runs there are in each state, as one bar.
fn bar(ctx: &Ctx, one: &Value) -> Markup {
    const ORDER: [&str; 7] = [
        "succeeded",
        "failed",
        "cancelled",
        "running",
        "waiting",
        "paused",
        "pending",
    ];
    let count = |name: &str| one["counts"][name].as_i64().unwrap_or_default();
    let total = one["total"]
        .as_i64()
        .unwrap_or_default()
        .max(ORDER.iter().map(|name| count(name)).sum())
        .max(1);
    let done = count("succeeded") + count("failed") + count("cancelled");
    let left_alone = one["skipped"].as_i64().unwrap_or_default();
    // All of its instants had runs.
    if one["total"] == 0 && left_alone > 0 {
        return html! { span.muted { (t!(ctx, "left-alone", n = left_alone)) } };
    }
    let mut x = 0.0;
    let pieces: Vec<(String, f64, f64)> = ORDER
        .iter()
        .map(|name| {
            let width = count(name) as f64 / total as f64 * 400.0;
            let from = x;
            x += width;
            (fill(name), from, width)
        })
        .collect();
    let label = t!(
        ctx,
        "of",
        n = crate::span::number(done),
        all = crate::span::number(total)
    );
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
    let one = ctx.get(&format!("/v1/backfills/{id}")).await?;
    let text = |name: &str| one[name].as_str().unwrap_or_default();
    let at = |name: &str| one[name].as_str().and_then(parse);
    let group = text("group").to_owned();
    let open = matches!(text("state"), "running" | "paused");
    let refused = |may: bool| (!may).then(|| t!(ctx, "refused-ended"));
    let head = html! {
        div.heading {
            div.grow {
                h1 { span { (t!(ctx, "backfill")) " · " (group_link(&group)) } (state(ctx, text("state"))) }
                p { @if let Some(at) = at("from") { (time(ctx, at)) } " – " @match at("to") { Some(at) => (time(ctx, at)), None => (t!(ctx, "now")) } " · " bdi { (text("created_by")) } @if let Some(at) = at("created_at") { " · " (ago(ctx, at)) } }
                @if let Some(note) = one["note"].as_str() { p.why { (note) } }
            }
            @if ctx.viewer.operates() {
                div.actions {
                    @if text("state") == "paused" { (button(Button::new(format!("/backfills/{id}/resume"), t!(ctx, "resume"), t!(ctx, "resume-will")))) }
                    @else { (button(Button { refused: refused(open), ..Button::new(format!("/backfills/{id}/pause"), t!(ctx, "pause"), t!(ctx, "pause-will")) })) }
                    (button(Button { kind: "danger", refused: refused(open), confirm: Some(t!(ctx, "cancel-sure")), ..Button::new(format!("/backfills/{id}/cancel"), t!(ctx, "cancel"), t!(ctx, "cancel-will")) }))
                }
            }
        }
        section.panel {
            h2 { (t!(ctx, "progress")) }
            (bar(ctx, &one))
            dl.stats { @for (name, count) in one["counts"].as_object().into_iter().flatten() { div { dd { b { (number(count)) } } dt { (state(ctx, name)) } } } }
            @if one["skipped"].as_i64().is_some_and(|n| n > 0) { p.muted { (t!(ctx, "left-alone", n = one["skipped"].as_i64().unwrap_or_default())) } }
        }
    };
    let runs = ctx
        .get(&format!("/v1/runs?group={}&trigger=backfill&limit=50", segment(&group)))
        .await?;
    let own: Vec<Value> = runs["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|run| run["source"].as_str() == Some(&id.to_string()))
        .cloned()
        .collect();
    let body = html! { (ctx.live("backfill", head)) (ctx.live("runs", super::runs::list(ctx, &own))) };
    let title = format!("{} · {group}", t!(ctx, "backfill"));
    Answer::page(Page::new("backfills", title, body).crumbs(vec![
        (t!(ctx, "nav-backfills"), Some("/backfills".into())),
        (group, None),
    ]))
}
