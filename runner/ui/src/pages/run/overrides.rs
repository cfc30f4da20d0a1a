//! Setting the state of a run or of one of its task runs by hand, with a reason that the audit keeps.

use axum::http::Method;
use heddle_api::{Override, REASON_CHARS_MAX, Run, RunState, TaskState};
use heddle_domain::run::Control;
use maud::{Markup, html};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::ctx::segment;
use crate::elements::{Shown, state};
use crate::form::field;
use crate::pages::answer::Answer;
use crate::words::t;
use crate::{Ctx, Trouble};

/// What a task run may be set to, and what a run.
const OF_TASKS: [TaskState; 3] = [TaskState::Succeeded, TaskState::Skipped, TaskState::Failed];
const OF_RUNS: [RunState; 2] = [RunState::Succeeded, RunState::Failed];

/// The address of the form for a task run.
pub(in crate::pages) fn address(run: &str, task: &str, item: Option<u32>) -> String {
    let item = item.map(|item| format!("&item={item}")).unwrap_or_default();
    format!("/runs/{run}/override?task={}{item}", segment(task))
}

/// The form for the task run that the address names; for the run, if it names none.
pub(super) fn inside(ctx: &Ctx, run: &Run) -> Result<Markup, Trouble> {
    if !ctx.viewer.operates() {
        return Err(Trouble::new(403, ""));
    }
    let item = ctx.q("item");
    let is_item = item.is_some();
    // A form that was wrong is shown at the address that it was sent to.
    let posted = ctx.path.split('/').skip_while(|part| *part != "tasks").nth(1);
    let posted = posted.and_then(|task| percent_encoding::percent_decode_str(task).decode_utf8().ok());
    let task = ctx.q("task").or(posted.as_deref());
    if let Some(why) = super::refused(ctx, Control::Override, &run.group, run.state) {
        return Ok(html! { section.panel { p.empty { (why) } } });
    }
    let form = ctx.form();
    let (now, action, among): (&dyn Shown, String, Vec<&dyn Shown>) = match task {
        Some(name) => {
            let task = run.wholes().find(|task| task.task == name);
            let task = task.ok_or_else(Trouble::not_found)?;
            let item = item.map(|item| format!("?item={}", segment(item))).unwrap_or_default();
            let action = format!("/runs/{}/tasks/{}/state{item}", run.id, segment(name));
            let others = OF_TASKS.iter().filter(|one| is_item || **one != task.state);
            let among = others.map(|one| one as &dyn Shown).collect();
            (&task.state, action, among)
        }
        None => {
            let action = format!("/runs/{}/state", run.id);
            let others = OF_RUNS.iter().filter(|one| **one != run.state);
            let among = others.map(|one| one as &dyn Shown).collect();
            (&run.state, action, among)
        }
    };
    Ok(html! {
        section.panel {
            h2 {
                @match task {
                    Some(name) => { (t!(ctx, "override-task-title")) " " bdi { (name) } @if let Some(item) = item { "[" (item) "]" } },
                    None => (t!(ctx, "override-title")),
                }
            }
            form.fields method="post" action=(action) {
                p.row { span.muted { (t!(ctx, "override-now")) } @if item.is_none() { (state(ctx, now)) } }
                fieldset.field {
                    legend { (t!(ctx, "override-to")) }
                    @for one in &among {
                        label.option {
                            input type="radio" name="state" value=(one.word()) required checked[field(&form, "state") == Some(one.word())];
                            span { (state(ctx, one)) br; small { (t!(ctx, &format!("override-{}-{}", if task.is_some() { "task" } else { "run" }, one.word()))) } }
                        }
                    }
                }
                label.field {
                    span { (t!(ctx, "reason")) }
                    input type="text" name="reason" required value=[field(&form, "reason")] maxlength=(REASON_CHARS_MAX) autocomplete="off";
                    small { (t!(ctx, "override-reason")) }
                }
                @if task.is_some() {
                    details open[field(&form, "output").is_some()] { summary { (t!(ctx, "override-output")) } label.field { span { (t!(ctx, "override-output-json")) } textarea name="output" rows="3" spellcheck="false" placeholder="{}" { (field(&form, "output").unwrap_or_default()) } } }
                }
                div { button.primary type="submit" { (t!(ctx, "override")) } " " a.button href={ "/runs/" (run.id) } { (t!(ctx, "cancel-form")) } }
            }
        }
    })
}

pub(super) async fn set(ctx: &Ctx, id: Uuid, task: Option<&str>) -> Result<Answer, Trouble> {
    let form = ctx.form();
    let mut body = json!({
        "state": field(&form, "state").unwrap_or_default(),
        "reason": field(&form, "reason").unwrap_or_default(),
    });
    if let Some(text) = field(&form, "output") {
        let output: Value = serde_json::from_str(text).map_err(|error| Trouble::at("/output", error.to_string()))?;
        body["output"] = output;
    }
    let target = match task {
        Some(task) => format!("/v1/runs/{id}/tasks/{}/state{}", segment(task), super::item(ctx)),
        None => format!("/v1/runs/{id}/state"),
    };
    ctx.send(Method::PUT, &target, &body).await?;
    Ok(Answer::Go {
        to: format!("/runs/{id}"),
        said: Some(t!(ctx, "said-override")),
    })
}

/// Who set a state by hand, and why.
pub(super) fn said(ctx: &Ctx, of: &Override) -> Markup {
    html! { (t!(ctx, "set-by-hand", name = &of.actor)) (ctx.lang.colon()) bdi { (of.reason) } }
}
