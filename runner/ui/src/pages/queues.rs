//! Queues: how deep, how old, who works on them, paused or not.

use axum::http::Method;
use maud::{Markup, html};
use serde_json::{Value, json};

use super::Answer;
use crate::ctx::{Beat, segment};
use crate::elements::{Button, ago, button, empty, more, number, parse, state};
use crate::frame::Page;
use crate::words::t;
use crate::{Ctx, Trouble};

/// Task runs of a queue that are listed.
const TASKS: usize = 50;

pub(super) async fn list(ctx: &Ctx) -> Result<Answer, Trouble> {
    ctx.beats_with(Beat::Cluster);
    let cursor = ctx
        .q("cursor")
        .map(|cursor| format!("&cursor={}", segment(cursor)))
        .unwrap_or_default();
    let found = ctx.get(&format!("/v1/queues?limit=100{cursor}")).await?;
    let items = found["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let title = t!(ctx, "nav-queues");
    let shown = html! {
        section.panel {
            @if items.is_empty() { (empty(&t!(ctx, "no-queues"))) }
            @else {
                table.cards {
                    thead { tr { th { (t!(ctx, "queue")) } th { (t!(ctx, "state")) } th.num { (t!(ctx, "waiting")) } th { (t!(ctx, "oldest")) } th.num { (t!(ctx, "claimed")) } th.num { (t!(ctx, "workers")) } th { span.hidden { (t!(ctx, "action")) } } } }
                    tbody { @for one in items { (row(ctx, one)) } }
                }
            }
        }
    };
    let body =
        html! { div.heading { h1 { (title) } } (ctx.live("queues", shown)) (more(ctx, found["next_cursor"].as_str())) };
    Answer::page(Page::new("queues", title, body))
}

fn name(one: &Value) -> &str {
    one["name"].as_str().unwrap_or_default()
}

fn standing(ctx: &Ctx, one: &Value) -> Markup {
    let paused = one["paused"].as_bool().unwrap_or_default();
    let stuck = one["depth"].as_i64().unwrap_or_default() > 0 && one["workers"].as_i64().unwrap_or_default() == 0;
    state(
        ctx,
        if paused {
            "paused"
        } else if stuck {
            "waiting"
        } else {
            "active"
        },
    )
}

fn depth(one: &Value) -> String {
    let exact = one["depth_exact"].as_bool().unwrap_or(true);
    format!("{}{}", number(&one["depth"]), if exact { "" } else { "+" })
}

fn pause(ctx: &Ctx, one: &Value) -> Markup {
    let paused = one["paused"].as_bool().unwrap_or_default();
    let (verb, will) = if paused {
        ("resume", "queue-resume-will")
    } else {
        ("pause", "queue-pause-will")
    };
    button(Button {
        kind: "small",
        ..Button::new(
            format!("/queues/{}/{verb}", segment(name(one))),
            t!(ctx, verb),
            t!(ctx, will),
        )
    })
}

fn row(ctx: &Ctx, one: &Value) -> Markup {
    html! {
        tr {
            td { strong { a href={ "/queues/" (segment(name(one))) } { bdi { (name(one)) } } } }
            td.tight.side { (standing(ctx, one)) }
            td.num data-label=(t!(ctx, "waiting")) { (depth(one)) }
            td.tight.side { @if let Some(at) = one["oldest"].as_str().and_then(parse) { (ago(ctx, at)) } @else { span.muted { "–" } } }
            td.num data-label=(t!(ctx, "claimed")) { (number(&one["claimed"])) }
            td.num data-label=(t!(ctx, "workers")) { (number(&one["workers"])) }
            td.tight.side { @if ctx.viewer.operates() { (pause(ctx, one)) } }
        }
    }
}

pub(super) async fn page(ctx: &Ctx, queue: &str, rest: &[&str]) -> Result<Answer, Trouble> {
    let api = format!("/v1/queues/{}", segment(queue));
    if let ([verb @ ("pause" | "resume")], true) = (rest, ctx.posts()) {
        ctx.send(Method::POST, &format!("{api}/{verb}"), &json!({})).await?;
        return Answer::back(ctx, Some(t!(ctx, &format!("said-{verb}"))));
    }
    if !rest.is_empty() {
        return Err(Trouble::not_found());
    }
    ctx.beats_with(Beat::Cluster);
    let one = ctx.get(&api).await?;
    let tasks = ctx.get(&format!("{api}/tasks?limit={TASKS}")).await?;
    let workers = one["connected"].as_array().map(Vec::as_slice).unwrap_or_default();
    let shown = html! {
        div.stack {
            div.heading {
                div.grow { h1 { bdi { (queue) } (standing(ctx, &one)) } @if let Some(at) = one["oldest"].as_str().and_then(parse) { p { (t!(ctx, "oldest")) " " (ago(ctx, at)) } } }
                @if ctx.viewer.operates() { div.actions { (pause(ctx, &one)) } }
            }
            section.panel {
                dl.stats {
                    div { dd { b { (depth(&one)) } } dt { span { (t!(ctx, "waiting")) } } }
                    div { dd { b { (number(&one["claimed"])) } } dt { span { (t!(ctx, "claimed")) } } }
                    div { dd { b { (number(&one["workers"])) } } dt { span { (t!(ctx, "workers")) } } }
                    @if let Some(count) = one["rate"]["count"].as_i64() { div { dd { b { (count) } } dt { span { (t!(ctx, "rate-per", span = one["rate"]["per"].as_str().unwrap_or_default())) } } } }
                }
            }
            section.panel {
                h2 { (t!(ctx, "workers")) }
                @if workers.is_empty() { (empty(&t!(ctx, "no-workers"))) }
                @else {
                    table.cards {
                        thead { tr { th { (t!(ctx, "worker")) } th { (t!(ctx, "tags")) } th.num { (t!(ctx, "claimed")) } th { (t!(ctx, "seen")) } } }
                        tbody { @for worker in workers {
                            tr {
                                td { bdi { (worker["worker"].as_str().unwrap_or_default()) } }
                                td { @for tag in worker["tags"].as_array().into_iter().flatten() { span.tag { (tag.as_str().unwrap_or_default()) } " " } }
                                td.num.side { (number(&worker["claimed"])) }
                                td.tight { @if let Some(at) = worker["seen_at"].as_str().and_then(parse) { (ago(ctx, at)) } }
                            }
                        } }
                    }
                }
            }
        }
    };
    let more_wait = tasks["next_cursor"].is_string();
    let tasks = tasks["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let shown = html! { div.stack { (shown) (task_runs(ctx, tasks, more_wait)) } };
    let body = ctx.live("queue", shown);
    Answer::page(Page::new("queues", queue, body).crumbs(vec![
        (t!(ctx, "nav-queues"), Some("/queues".into())),
        (queue.to_owned(), None),
    ]))
}

/// What workers hold, then what waits, in the order in which they get it.
fn task_runs(ctx: &Ctx, tasks: &[Value], more_wait: bool) -> Markup {
    let text = |one: &Value, name: &str| one[name].as_str().unwrap_or_default().to_owned();
    let at = |one: &Value, name: &str| one[name].as_str().and_then(parse);
    html! {
        section.panel {
            h2 { (t!(ctx, "queue-tasks")) }
            @if tasks.is_empty() { (empty(&t!(ctx, "queue-empty"))) }
            @else {
                table.cards {
                    thead { tr { th { (t!(ctx, "task")) } th { (t!(ctx, "state")) } th { (t!(ctx, "since")) } th.num { (t!(ctx, "priority")) } th { (t!(ctx, "tags")) } th { (t!(ctx, "worker")) } } }
                    tbody { @for one in tasks {
                        tr {
                            td { a href={ "/runs/" (text(one, "run")) } { bdi { (text(one, "group")) } " · " bdi { (text(one, "task")) } @if let Some(item) = one["item"].as_i64() { "[" (item) "]" } } }
                            td.tight.side { (state(ctx, &text(one, "state"))) }
                            td.tight.muted { @if let Some(at) = at(one, "since") { (ago(ctx, at)) } }
                            td.num.side data-label=(t!(ctx, "priority")) { (number(&one["priority"])) }
                            td { @for tag in one["tags"].as_array().into_iter().flatten() { span.tag { (tag.as_str().unwrap_or_default()) } " " } }
                            td { bdi { (text(one, "worker")) } @if let Some(at) = at(one, "lease_expires_at") { " " span.muted { (t!(ctx, "lease-until")) " " (ago(ctx, at)) } } }
                        }
                    } }
                }
                @if more_wait { p.muted { (t!(ctx, "queue-more", n = tasks.len())) } }
            }
        }
    }
}
