//! Running a run anew: with the same params, or with others.

use axum::http::Method;
use heddle_api::Run;
use heddle_domain::run::Control;
use maud::{Markup, html};
use serde_json::{Value, json};
use uuid::Uuid;

use super::view;
use crate::ctx::segment;
use crate::form::{field, object, sent};
use crate::pages::answer::Answer;
use crate::words::t;
use crate::{Ctx, Trouble, once};

/// A new run like this one; with other params it is a new submission of its group.
pub(super) async fn rerun(ctx: &Ctx, id: Uuid) -> Result<Answer, Trouble> {
    let form = ctx.form();
    let force = field(&form, "force").is_some();
    let key = once::of(&form);
    let answer: Result<Run, Trouble> = if sent(&form, "params").is_some() {
        let run = view::read(ctx, id).await?;
        let body = with_other_params(&run, &form, force, key)?;
        ctx.ask(Method::POST, &format!("/v1/groups/{}/runs", segment(&run.group)), &body)
            .await
    } else {
        let scripts = field(&form, "scripts").unwrap_or("pinned");
        ctx.ask(
            Method::POST,
            &format!("/v1/runs/{id}/rerun"),
            &json!({ "scripts": scripts, "force": force, "key": key }),
        )
        .await
    };
    once::started(ctx, &form, answer).await
}

/// A submission like a run, with the params of the form: none, if somebody has emptied their field.
fn with_other_params(run: &Run, form: &[(String, String)], force: bool, key: Option<&str>) -> Result<Value, Trouble> {
    let params = object(form, "params")?;
    Ok(json!({
        "params": params, "task_params": run.task_params, "logical_time": run.logical_time, "priority": run.priority,
        "labels": run.labels, "force": force, "key": key,
    }))
}

/// The two ways to run it anew; `disabled`: its group is.
pub(super) fn inside(ctx: &Ctx, run: &Run, disabled: bool) -> Result<Markup, Trouble> {
    let id = run.id;
    if !ctx.viewer.operates() {
        return Err(Trouble::new(403, ""));
    }
    if let Some(why) = super::refused(ctx, Control::Rerun, &run.group, run.state) {
        return Ok(html! { section.panel { p.empty { (why) } } });
    }
    let form = ctx.form();
    let params = match sent(&form, "params") {
        Some(written) => written.to_owned(),
        None => serde_json::to_string_pretty(&run.params).unwrap_or_default(),
    };
    let forced = html! {
        @if disabled {
            p.why { (t!(ctx, "group-disabled")) }
            label { input type="checkbox" name="force" value="true" required checked[field(&form, "force").is_some()]; (t!(ctx, "force-disabled")) }
        }
    };
    // The form that was refused keeps its key. Each of the two has its own: they start different runs.
    let (of_same, of_changed) = match sent(&form, "params") {
        None => (form.as_slice(), once::NEW),
        Some(_) => (once::NEW, form.as_slice()),
    };
    Ok(html! {
        div.two {
            section.panel {
                h2 { (t!(ctx, "rerun-same")) }
                form.fields method="post" action={ "/runs/" (id) "/rerun" } {
                    (once::field(ctx, of_same))
                    label { input type="radio" name="scripts" value="pinned" checked; (t!(ctx, "scripts-pinned")) }
                    label { input type="radio" name="scripts" value="active"; (t!(ctx, "scripts-active")) }
                    (forced)
                    div { button.primary type="submit" { (t!(ctx, "start-run")) } }
                }
            }
            section.panel {
                h2 { (t!(ctx, "rerun-changed")) }
                @if let Some(why) = &run.params_error { p.why { (t!(ctx, "params-unread", why = why)) } }
                form.fields method="post" action={ "/runs/" (id) "/rerun" } {
                    (once::field(ctx, of_changed))
                    label.field { span { (t!(ctx, "params-json")) } textarea name="params" rows=(params.lines().count().clamp(3, 20)) spellcheck="false" { (params) } }
                    (forced)
                    div { button type="submit" { (t!(ctx, "start-run")) } }
                }
            }
        }
    })
}
