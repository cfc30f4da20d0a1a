//! A run: its state and why, its controls, and what it did.

mod again;
mod attempts;
mod course;
pub(super) mod data;
mod events;
pub(super) mod graph;
mod log;
mod overrides;
mod tasks;
mod timeline;
pub(super) mod view;
mod why;

use axum::http::Method;
use heddle_api::{Run, RunState, Trigger};
use heddle_domain::run::{Control, runs_again};
use heddle_domain::schedule::Schedule;
use maud::{Markup, html};
use serde_json::json;
use uuid::Uuid;

use super::answer::Answer;
use crate::ctx::{Beat, segment};
use crate::elements::{self, Button, ago, button, state, tabs, time, took, trigger_word};
use crate::form::field;
use crate::frame::Page;
use crate::words::t;
use crate::{Ctx, Trouble, once, span};
use view::Whole;

pub(super) use overrides::address as override_address;
pub(super) use why::waits_for_what;

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
        ["state"] if ctx.posts() => shown_if_wrong(ctx, id, "override", overrides::set(ctx, id, None).await).await,
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
            shown_if_wrong(ctx, id, "override", overrides::set(ctx, id, Some(task)).await).await
        }
        _ => Err(Trouble::not_found()),
    }
}

/// A refused form is shown again with its values and its errors.
async fn shown_if_wrong(ctx: &Ctx, id: Uuid, tab: &str, done: Result<Answer, Trouble>) -> Result<Answer, Trouble> {
    match done {
        Err(trouble) if matches!(trouble.status, 400 | 404 | 409 | 422) => {
            with_trouble(ctx, id, tab, Some(trouble)).await
        }
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
    let group = ctx.ui.engine.catalog().group(&run.group).await?;
    let disabled = group.as_ref().is_some_and(|group| !group.enabled);
    let typical = match group {
        Some(group) => {
            ctx.in_zone_of(group.revision.plan.zone);
            super::group::times::median(&ctx.store().page_group_runs(group.id, None, 30).await?)
        }
        None => None,
    };
    let head = ctx.live("run-head", head(ctx, &whole, typical).await?);
    let inside = match tab {
        "graph" => graph::inside(ctx, &whole).await?,
        "log" => log::inside(ctx, run).await?,
        "data" => data::inside(ctx, &whole).await?,
        "attempts" => attempts::inside(ctx, &whole).await?,
        "events" => events::inside(ctx, &whole).await?,
        "rerun" => again::inside(ctx, run, disabled)?,
        "override" => overrides::inside(ctx, run)?,
        _ => timeline::inside(ctx, &whole).await?,
    };
    let base = format!("/runs/{id}");
    let address = |tab: &str| format!("{base}/{tab}");
    let moment = span::moment(ctx.lang, ctx.zone, run.logical_time.0, ctx.now, false);
    // No script corrects the title, as it does with the times of the page. So if the viewer's zone is not known, the
    // title names the zone.
    let zone = if ctx.knows_zone() { "" } else { ctx.zone.name() };
    let title = format!("{} · {moment} {zone}", run.group);
    let title = title.trim_end();
    let body = html! {
        (head)
        (tabs(title, tab, &[
            (String::new(), base.clone(), t!(ctx, "tab-timeline")),
            ("graph".into(), address("graph"), t!(ctx, "tab-graph")),
            ("log".into(), address("log"), t!(ctx, "tab-log")),
            ("data".into(), address("data"), t!(ctx, "tab-data")),
            ("attempts".into(), address("attempts"), t!(ctx, "tab-attempts")),
            ("events".into(), address("events"), t!(ctx, "tab-events")),
        ]))
        @if let Some(trouble) = &wrong { div.said.wrong role="alert" { (elements::glyph("failed")) p { (trouble.said(ctx.lang)) } } }
        (inside)
    };
    let crumbs = vec![
        (t!(ctx, "nav-groups"), Some("/groups".to_owned())),
        (run.group.clone(), Some(format!("/groups/{}", segment(&run.group)))),
    ];
    let status = wrong.map_or(200, |trouble| trouble.status);
    let page = Page::new("runs", title, body)
        .crumbs(crumbs)
        .of_time(run.logical_time.0);
    Answer::page(Page { status, ..page })
}

async fn head(ctx: &Ctx, whole: &Whole, typical: Option<i64>) -> Result<Markup, Trouble> {
    let run = &whole.run;
    let (why, maker) = (why::sentences(ctx, whole).await?, maker(ctx, whole).await?);
    let since = run.at_work_since();
    let interval = run.data_interval;
    Ok(html! {
        div.heading {
            div.grow { h1 { span { bdi { (run.group) } " · " (time(ctx, run.logical_time)) } (state(ctx, run.state)) } }
            @if ctx.viewer.operates() { (buttons(ctx, run)) } @else { div.actions { (compare(ctx, run.id)) } }
            div.whole {
                p {
                    (maker)
                    " · " a href={ "/groups/" (segment(&run.group)) "/spec?revision=" (run.revision) } { (t!(ctx, "revision-n", n = i64::from(run.revision))) }
                    @if interval.start < interval.end { " · " (t!(ctx, "interval")) " " (time(ctx, interval.start)) " – " (time(ctx, interval.end)) }
                    @if let Some(key) = run.key.as_deref().filter(|key| !once::is_ours(key)) { " · " (t!(ctx, "key-is")) " " code { bdi { (key) } } }
                    @for (name, value) in &run.labels { " " span.tag { (name) "=" (value) } }
                    // These are last, because their length changes as time passes.
                    @if let Some(from) = since { " · " (took(ctx, from, run.finished_at)) @if let Some(typical) = typical { " " (t!(ctx, "median-is", span = elements::millis(ctx, typical))) } }
                    @else { " · " (t!(ctx, "created")) " " (ago(ctx, run.created_at)) }
                    @if let Some(at) = run.finished_at { " · " (t!(ctx, "ended")) " " (ago(ctx, at)) }
                }
                (why)
                @if let Some(by) = &run.r#override { p.why { (overrides::said(ctx, by)) } }
            }
        }
    })
}

/// Why a run was made, and by whom or what: a schedule, a backfill, another run, a person.
async fn maker(ctx: &Ctx, whole: &Whole) -> Result<Markup, Trouble> {
    let run = &whole.run;
    let word = trigger_word(ctx, run.trigger);
    let source = run.source.as_ref();
    let of = match run.trigger {
        Trigger::Backfill => source.map(|id| format!("/backfills/{id}")),
        Trigger::Task => whole.row(ctx).await?.parent_run.map(|id| format!("/runs/{id}")),
        _ => source.map(|id| format!("/runs/{id}")),
    };
    let schedule = match run.trigger {
        Trigger::Schedule => schedule_of(ctx, whole).await?,
        _ => None,
    };
    Ok(html! {
        @match of {
            Some(of) => a href=(of) title=(t!(ctx, "source")) { (word) },
            None => (word),
        }
        @if let Some(schedule) = schedule { " " a href={ "/groups/" (segment(&run.group)) "/schedules" } { bdi { (schedule) } } }
        @if let Some(by) = &run.created_by { " " (t!(ctx, "made-by", name = by)) }
    })
}

/// The schedule that created a run. If several schedules have this instant, that is not known.
async fn schedule_of(ctx: &Ctx, whole: &Whole) -> Result<Option<String>, Trouble> {
    let (revision, at) = (whole.revision(ctx).await?, whole.run.logical_time.0);
    let names = |schedule: &Schedule| schedule.enabled() && schedule.latest(at) == Some(at);
    let mut found = revision.schedules.iter().filter(|(_, schedule)| names(schedule));
    Ok(match (found.next(), found.next()) {
        (Some((name, _)), None) => Some(name.clone()),
        _ => None,
    })
}

/// The button that compares the run with another one. It is for everybody: it changes nothing.
fn compare(ctx: &Ctx, id: Uuid) -> Markup {
    html! { a.button href={ "/runs/compare?run=" (id) } title=(t!(ctx, "compare-will")) { (t!(ctx, "compare")) } }
}

/// Why a run of this group in this state refuses a control, as the API would; `None`: it does not.
pub(in crate::pages) fn refused(ctx: &Ctx, control: Control, group: &str, state: RunState) -> Option<String> {
    let key = match control {
        _ if control.is_allowed_of(group, state) => return None,
        _ if control.is_again() && !runs_again(group) => "refused-batch",
        Control::Restart => "refused-restart",
        _ => "refused-ended",
    };
    Some(t!(ctx, key))
}

/// A link to the form of a control; if the control is refused, a button that says why.
fn form_of(address: String, label: String, will: String, refused: Option<String>) -> Markup {
    if refused.is_none() {
        return html! { a.button href=(address) title=(will) { (label) } };
    }
    button(Button {
        refused,
        ..Button::new(address, label, will)
    })
}

fn buttons(ctx: &Ctx, run: &Run) -> Markup {
    let id = run.id;
    let refused = |control: Control| refused(ctx, control, &run.group, run.state);
    let paused = run.state == RunState::Paused;
    let restarts = refused(Control::Restart);
    let pause = if paused {
        Button::new(format!("/runs/{id}/resume"), t!(ctx, "resume"), t!(ctx, "resume-will"))
    } else {
        Button {
            refused: refused(Control::Pause),
            ..Button::new(format!("/runs/{id}/pause"), t!(ctx, "pause"), t!(ctx, "pause-will"))
        }
    };
    html! {
        div.actions {
            (button(pause))
            (button(Button { kind: "danger", refused: refused(Control::Cancel), confirm: Some(t!(ctx, "cancel-sure")), ..Button::new(format!("/runs/{id}/cancel"), t!(ctx, "cancel"), t!(ctx, "cancel-will")) }))
            (button(Button { glyph: "restart", kind: if restarts.is_none() { "primary" } else { "" }, refused: restarts, ..Button::new(format!("/runs/{id}/restart"), t!(ctx, "restart"), t!(ctx, "restart-will")) }))
            (compare(ctx, id))
            (form_of(format!("/runs/{id}/rerun"), t!(ctx, "rerun"), t!(ctx, "rerun-will"), refused(Control::Rerun)))
            (form_of(format!("/runs/{id}/override"), t!(ctx, "override-open"), t!(ctx, "override-run-will"), refused(Control::Override)))
        }
    }
}
