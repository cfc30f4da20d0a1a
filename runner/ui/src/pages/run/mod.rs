//! A run: its state and why, its controls, and what it did.

mod again;
mod attempts;
mod by_hand;
pub(super) mod data;
mod events;
mod graph;
mod log;
mod timeline;
pub(super) mod view;

use std::collections::BTreeMap;

use axum::http::Method;
use heddle_api::{Failure, Pool, Run, RunState, TaskRun, TaskState};
use heddle_domain::run::Control;
use maud::{Markup, html};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Answer, system};
use crate::ctx::{Beat, segment};
use crate::elements::{self, Button, ago, button, group_link, state, tabs, time, took, trigger_word};
use crate::form::field;
use crate::frame::Page;
use crate::span;
use crate::words::t;
use crate::{Ctx, Trouble};
use view::Whole;

pub(super) use by_hand::address as override_address;

pub(super) async fn page(ctx: &Ctx, id: &str, rest: &[&str]) -> Result<Answer, Trouble> {
    let id: Uuid = id.parse().map_err(|_| Trouble::not_found())?;
    match rest {
        [] => shown(ctx, id, "").await,
        [tab @ ("graph" | "log" | "data" | "attempts" | "events" | "rerun" | "override")] if !ctx.posts() => {
            shown(ctx, id, tab).await
        }
        ["log", "download"] if !ctx.posts() => log::download(ctx, id).await,
        [verb @ ("cancel" | "pause" | "resume")] if ctx.posts() => {
            ctx.send(Method::POST, &format!("/v1/runs/{id}/{verb}"), &json!({}))
                .await?;
            Answer::back(ctx, Some(t!(ctx, &format!("said-{verb}"))))
        }
        ["restart"] if ctx.posts() => {
            let form = ctx.form();
            let scripts = field(&form, "scripts").unwrap_or("pinned");
            ctx.send(
                Method::POST,
                &format!("/v1/runs/{id}/restart"),
                &json!({ "scripts": scripts }),
            )
            .await?;
            Ok(Answer::Go {
                to: format!("/runs/{id}"),
                said: Some(t!(ctx, "said-restart")),
            })
        }
        ["rerun"] if ctx.posts() => shown_if_wrong(ctx, id, "rerun", again::rerun(ctx, id).await).await,
        ["state"] if ctx.posts() => shown_if_wrong(ctx, id, "override", by_hand::set(ctx, id, None).await).await,
        ["tasks", task, "clear"] if ctx.posts() => {
            let form = ctx.form();
            let body = json!({ "downstream": field(&form, "downstream") != Some("false"), "reason": field(&form, "reason").unwrap_or_default() });
            let target = format!("/v1/runs/{id}/tasks/{}/clear{}", segment(task), item(ctx));
            ctx.send(Method::POST, &target, &body).await?;
            Answer::back(ctx, Some(t!(ctx, "said-clear")))
        }
        ["tasks", task, "retry"] if ctx.posts() => {
            let target = format!("/v1/runs/{id}/tasks/{}/retry{}", segment(task), item(ctx));
            ctx.send(Method::POST, &target, &json!({})).await?;
            Answer::back(ctx, Some(t!(ctx, "said-retry")))
        }
        ["tasks", task, "state"] if ctx.posts() => {
            shown_if_wrong(ctx, id, "override", by_hand::set(ctx, id, Some(task)).await).await
        }
        _ => Err(Trouble::not_found()),
    }
}

/// A form that is wrong is shown again, as it was filled in, with what is wrong about it.
async fn shown_if_wrong(ctx: &Ctx, id: Uuid, tab: &str, done: Result<Answer, Trouble>) -> Result<Answer, Trouble> {
    match done {
        Err(trouble) if matches!(trouble.status, 400 | 409 | 422) => with_trouble(ctx, id, tab, Some(trouble)).await,
        done => done,
    }
}

fn item(ctx: &Ctx) -> String {
    ctx.q("item")
        .map(|item| format!("?item={}", segment(item)))
        .unwrap_or_default()
}

async fn shown(ctx: &Ctx, id: Uuid, tab: &str) -> Result<Answer, Trouble> {
    with_trouble(ctx, id, tab, None).await
}

async fn with_trouble(ctx: &Ctx, id: Uuid, tab: &str, wrong: Option<Trouble>) -> Result<Answer, Trouble> {
    let whole = Whole::read(ctx, id).await?;
    let run = &whole.run;
    ctx.beats_with(Beat::Run(id));
    let typical = match ctx.ui.engine.catalog().group(&run.group).await? {
        Some(group) => {
            ctx.in_zone_of(group.revision.plan.zone);
            super::group::median(&ctx.store().page_group_runs(group.id, None, 30).await?)
        }
        None => None,
    };
    let needs = needs(ctx, run).await?;
    let held = held(ctx, run, &needs).await?;
    let head = ctx.live("run-head", head(ctx, run, typical, &needs, &held));
    let inside = match tab {
        "graph" => graph::inside(ctx, run).await?,
        "log" => log::inside(ctx, run).await?,
        "data" => data::inside(ctx, run).await?,
        "attempts" => attempts::inside(ctx, &whole).await?,
        "events" => events::inside(ctx, run).await?,
        "rerun" => again::inside(ctx, run),
        "override" => by_hand::inside(ctx, run)?,
        _ => timeline::inside(ctx, &whole).await?,
    };
    let base = format!("/runs/{id}");
    let address = |tab: &str| format!("{base}/{tab}");
    let title = format!(
        "{} · {}",
        run.group,
        span::moment(ctx.lang, ctx.zone, run.logical_time.0, ctx.now, false)
    );
    let body = html! {
        (head)
        (tabs(&title, tab, &[
            (String::new(), base.clone(), t!(ctx, "tab-timeline")),
            ("graph".into(), address("graph"), t!(ctx, "tab-graph")),
            ("log".into(), address("log"), t!(ctx, "tab-log")),
            ("data".into(), address("data"), t!(ctx, "tab-data")),
            ("attempts".into(), address("attempts"), t!(ctx, "tab-attempts")),
            ("events".into(), address("events"), t!(ctx, "tab-events")),
        ]))
        @if let Some(trouble) = &wrong { div.said.wrong role="alert" { (elements::glyph("failed")) p { (trouble.sentence()) } } }
        (inside)
    };
    let moment = span::moment(ctx.lang, ctx.zone, run.logical_time.0, ctx.now, false);
    let crumbs = vec![
        (t!(ctx, "nav-groups"), Some("/groups".to_owned())),
        (run.group.clone(), Some(format!("/groups/{}", segment(&run.group)))),
        (moment, None),
    ];
    let status = wrong.map_or(200, |trouble| trouble.status);
    let page = Page::new("runs", title, body).crumbs(crumbs);
    Answer::page(Page { status, ..page })
}

fn head(
    ctx: &Ctx,
    run: &Run,
    typical: Option<i64>,
    needs: &BTreeMap<String, Needs>,
    held: &BTreeMap<String, Held>,
) -> Markup {
    html! {
        div.heading {
            div.grow { h1 { span { bdi { (run.group) } " · " (time(ctx, run.logical_time)) } (state(ctx, run.state)) } }
            @if ctx.viewer.operates() { (buttons(ctx, run)) } @else { div.actions { (compare(ctx, run.id)) } }
            div.whole {
                p {
                    (trigger_word(ctx, run.trigger))
                    " · " a href={ "/groups/" (segment(&run.group)) "/spec?revision=" (run.revision) } { (t!(ctx, "revision-n", n = i64::from(run.revision))) }
                    @if let Some(key) = &run.key { " · " (t!(ctx, "key-is")) " " code { bdi { (key) } } }
                    @for (name, value) in &run.labels { " " span.tag { (name) "=" (value) } }
                    // Last, since these go on.
                    @if let Some(from) = run.started_at { " · " (took(ctx, from, run.finished_at)) @if let Some(typical) = typical { " " (t!(ctx, "median-is", span = elements::millis(ctx, typical))) } }
                    @else { " · " (t!(ctx, "created")) " " (ago(ctx, run.created_at)) }
                    @if let Some(at) = run.finished_at { " · " (t!(ctx, "ended")) " " (ago(ctx, at)) }
                }
                (why(ctx, run, needs, held))
                @if let Some(by_hand) = &run.r#override { p.why { (by_hand::said(ctx, by_hand)) } }
            }
        }
    }
}

/// Why it is in its state, in a sentence.
fn why(ctx: &Ctx, run: &Run, needs: &BTreeMap<String, Needs>, slots: &BTreeMap<String, Held>) -> Markup {
    let in_state = |state: TaskState| run.wholes().filter(move |task| task.state == state);
    let failed: Vec<&TaskRun> = in_state(TaskState::Failed).collect();
    let retrying: Vec<&TaskRun> = in_state(TaskState::Retrying).collect();
    let (held, queued): (Vec<&TaskRun>, Vec<&TaskRun>) =
        in_state(TaskState::Ready).partition(|task| needs.contains_key(&task.task));
    let named = |tasks: &[&TaskRun]| {
        let names: Vec<&str> = tasks.iter().take(5).map(|task| task.task.as_str()).collect();
        names.join(", ")
    };
    html! {
        @match run.state {
            RunState::Waiting => { p.why { @for reason in &run.waiting_for { (waiting(ctx, reason)) br; } } }
            RunState::Paused => { p.why { (t!(ctx, "why-paused")) } }
            RunState::Failed => {
                @if let Some(Failure { message, .. }) = &run.error { p.error { (elements::line(message)) } }
                @let broken = in_state(TaskState::UpstreamFailed).count();
                @if !failed.is_empty() { p.why { (t!(ctx, "why-failed", tasks = named(&failed), broken = broken)) } }
            }
            RunState::Cancelled => { @if let Some(Failure { message, .. }) = &run.error { p.why { (message) } } }
            RunState::Running => {
                @if !retrying.is_empty() { p.why { (t!(ctx, "why-retrying", tasks = named(&retrying))) } }
                @for task in held.iter().take(5) { (waits_for(ctx, &task.task, &needs[&task.task], slots)) }
                @if !queued.is_empty() { p.why { (t!(ctx, "why-ready", tasks = named(&queued))) } }
            }
            RunState::Succeeded => {}
        }
    }
}

/// What a task needs in addition to a slot on a node.
struct Needs {
    queue: Option<String>,
    pools: Vec<String>,
}

/// The holders of the slots of a pool.
#[derive(Default)]
struct Held {
    slots: i64,
    held: i64,
    by: Vec<Markup>,
}

/// Holders that a sentence names.
const HOLDERS_MAX: usize = 3;

/// The holders of the slots for which tasks of this run wait.
async fn held(ctx: &Ctx, run: &Run, needs: &BTreeMap<String, Needs>) -> Result<BTreeMap<String, Held>, Trouble> {
    let waiting = run.wholes().filter(|task| task.state == TaskState::Ready);
    let pools = waiting
        .filter_map(|task| needs.get(&task.task))
        .flat_map(|needs| &needs.pools);
    let mut all: BTreeMap<String, Held> = pools.map(|pool| (pool.clone(), Held::default())).collect();
    if all.is_empty() {
        return Ok(all);
    }
    for (name, held) in &mut all {
        // One that was deleted has none.
        let pool: Option<Pool> = ctx.get(&format!("/v1/pools/{}", segment(name))).await.ok();
        held.slots = pool.map_or(0, |pool| i64::from(pool.slots));
    }
    for line in ctx.store().page_pool_holds(system::HOLDS_MAX).await? {
        let Some(held) = all.get_mut(&line.pool) else { continue };
        held.held += line.slots;
        if held.by.len() < HOLDERS_MAX {
            held.by.push(system::pool_line(ctx, &line).await?);
        } else if held.by.len() == HOLDERS_MAX {
            held.by.push(html! { "…" });
        }
    }
    Ok(all)
}

/// Of each task that needs a worker or slots, what that is.
async fn needs(ctx: &Ctx, run: &Run) -> Result<BTreeMap<String, Needs>, Trouble> {
    if run.state != RunState::Running || run.wholes().all(|task| task.state != TaskState::Ready) {
        return Ok(BTreeMap::new());
    }
    let row = ctx.store().run(heddle_domain::id::RunId(run.id)).await?;
    let row = row.ok_or_else(Trouble::not_found)?;
    let revision = ctx.ui.engine.catalog().revision(row.revision_id).await?;
    let tasks = revision.plan.tasks.iter();
    Ok(tasks
        .filter(|task| task.spec.queue.is_some() || !task.spec.pools.is_empty())
        .map(|task| {
            let needs = Needs {
                queue: task.spec.queue.as_ref().map(ToString::to_string),
                pools: task.spec.pools.keys().map(ToString::to_string).collect(),
            };
            (task.name.to_string(), needs)
        })
        .collect())
}

fn waits_for(ctx: &Ctx, task: &str, needs: &Needs, slots: &BTreeMap<String, Held>) -> Markup {
    html! {
        p.why {
            bdi { (task) } " "
            @if let Some(queue) = &needs.queue { (t!(ctx, "waits-worker")) " " a href={ "/queues/" (segment(queue)) } { bdi { (queue) } } }
            @if needs.queue.is_some() && !needs.pools.is_empty() { " · " }
            @if !needs.pools.is_empty() { (t!(ctx, "waits-slots")) " " a href="/system/pools" { bdi { (needs.pools.join(", ")) } } }
            @for held in needs.pools.iter().filter_map(|pool| slots.get(pool)).filter(|held| !held.by.is_empty()) {
                " (" (t!(ctx, "slots-held", n = held.held, all = held.slots)) " "
                @for (index, one) in held.by.iter().enumerate() { @if index > 0 { ", " } (one) }
                ")"
            }
        }
    }
}

/// What a waiting run waits for: what the API says of it, as a sentence.
fn waiting(ctx: &Ctx, reason: &Value) -> Markup {
    let text = |name: &str| reason[name].as_str().unwrap_or_default().to_owned();
    if let Some(group) = reason["group"].as_str() {
        let times: Vec<Markup> = ["from", "to", "logical_time"]
            .iter()
            .filter_map(|name| reason[*name].as_str().and_then(elements::parse))
            .map(|at| time(ctx, at))
            .collect();
        return html! { (t!(ctx, "waits-for")) " " (group_link(group)) @for at in times { " · " (at) } };
    }
    if !text("run").is_empty() {
        return html! { (t!(ctx, "waits-turn")) " " a href={ "/runs/" (text("run")) } { (t!(ctx, "run")) } };
    }
    match reason.as_str() {
        Some(said) => html! { (t!(ctx, "waits-for")) " " (said) },
        None => html! { (t!(ctx, "waits-turn")) " " code { (reason.to_string()) } },
    }
}

/// What everybody may.
fn compare(ctx: &Ctx, id: Uuid) -> Markup {
    html! { a.button href={ "/runs/compare?run=" (id) } title=(t!(ctx, "compare-will")) { (t!(ctx, "compare")) } }
}

fn buttons(ctx: &Ctx, run: &Run) -> Markup {
    let id = run.id;
    let refused = |may: bool, key: &str| (!may).then(|| t!(ctx, key));
    let paused = run.state == RunState::Paused;
    let restarts = Control::Restart.is_allowed(run.state);
    let pause = if paused {
        Button::new(format!("/runs/{id}/resume"), t!(ctx, "resume"), t!(ctx, "resume-will"))
    } else {
        Button {
            refused: refused(Control::Pause.is_allowed(run.state), "refused-ended"),
            ..Button::new(format!("/runs/{id}/pause"), t!(ctx, "pause"), t!(ctx, "pause-will"))
        }
    };
    html! {
        div.actions {
            (button(pause))
            (button(Button { kind: "danger", refused: refused(Control::Cancel.is_allowed(run.state), "refused-ended"), confirm: Some(t!(ctx, "cancel-sure")), ..Button::new(format!("/runs/{id}/cancel"), t!(ctx, "cancel"), t!(ctx, "cancel-will")) }))
            (button(Button { glyph: "restart", kind: if restarts { "primary" } else { "" }, refused: refused(restarts, "refused-restart"), ..Button::new(format!("/runs/{id}/restart"), t!(ctx, "restart"), t!(ctx, "restart-will")) }))
            (compare(ctx, id))
            a.button href={ "/runs/" (id) "/rerun" } title=(t!(ctx, "rerun-will")) { (t!(ctx, "rerun")) }
            a.button href={ "/runs/" (id) "/override" } title=(t!(ctx, "override-run-will")) { (t!(ctx, "override-open")) }
        }
    }
}
