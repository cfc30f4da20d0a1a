//! Starting a run: fields made of the schemas of the group's scripts.

use axum::http::Method;
use heddle_api::{Run, ScriptVersion};
use maud::html;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::{Here, framed};
use crate::ctx::segment;
use crate::elements::prose;
use crate::form::{self, field, fields, object, read};
use crate::pages::Answer;
use crate::words::t;
use crate::{Ctx, Trouble};

/// Scripts whose schemas are asked for.
const SCRIPTS_MAX: usize = 30;

/// What the group's scripts take, joined by name, and what a run gets if nothing is said.
async fn takes(ctx: &Ctx, here: &Here) -> (Map<String, Value>, Map<String, Value>) {
    let mut properties = Map::new();
    let mut values = Map::new();
    let mut seen = std::collections::BTreeSet::new();
    for script in here.group.resolution.scripts.iter().flatten() {
        if seen.len() >= SCRIPTS_MAX || !seen.insert((script.name.clone(), script.version)) {
            continue;
        }
        values.extend(script.defaults.clone());
        let target = format!("/v1/scripts/{}/versions/{}", segment(&script.name), script.version);
        // A form without this script's fields is better than none.
        let Ok(version) = ctx.get::<ScriptVersion>(&target).await else {
            continue;
        };
        for (name, schema) in form::properties(&version.params_schema.unwrap_or_default()) {
            properties.entry(name).or_insert(schema);
        }
    }
    let spec = &here.group.revision.plan.spec;
    for (name, value) in &spec.params {
        properties.entry(name.clone()).or_insert_with(|| typed_as(value));
        values.insert(name.clone(), value.clone());
    }
    (properties, values)
}

/// What a param without a schema takes: the like of what the group gives it.
fn typed_as(value: &Value) -> Value {
    match value {
        Value::String(_) => json!({"type": "string"}),
        Value::Number(_) => json!({"type": "number"}),
        Value::Bool(_) => json!({"type": "boolean"}),
        _ => json!({}),
    }
}

pub(super) async fn page(ctx: &Ctx, here: &Here) -> Result<Answer, Trouble> {
    if !ctx.viewer.operates() {
        return Err(Trouble::new(403, ""));
    }
    let (properties, values) = takes(ctx, here).await;
    let form = ctx.form();
    let mut wrong = None;
    if ctx.posts() {
        match submit(ctx, here, &properties, &form).await {
            Ok(id) => {
                return Ok(Answer::Go {
                    to: format!("/runs/{id}"),
                    said: Some(t!(ctx, "said-started")),
                });
            }
            Err(trouble) => wrong = Some(trouble),
        }
    }
    let written = |name: &str| field(&form, name).map(str::to_owned);
    let inside = html! {
        section.panel {
            h2 { (t!(ctx, "run-title")) }
            @if let Some(trouble) = &wrong {
                div.said.wrong role="alert" { p { (prose(&trouble.said(ctx))) @if let Some(id) = &trouble.existing { " " a href={ "/runs/" (id) } { (t!(ctx, "open-run")) } } } }
            }
            form.fields method="post" action=(here.address("run")) {
                @if properties.is_empty() { p.muted { (t!(ctx, "no-params")) } }
                (fields(ctx, &properties, &values, &form))
                details open[written("params").is_some()] {
                    summary { (t!(ctx, "more-params")) }
                    label.field { span { (t!(ctx, "params-json")) } textarea name="params" rows="4" spellcheck="false" placeholder="{}" { (written("params").unwrap_or_default()) } small { (t!(ctx, "params-json-hint")) } }
                    br;
                    label.field { span { (t!(ctx, "task-params-json")) } textarea name="task_params" rows="3" spellcheck="false" placeholder="{}" { (written("task_params").unwrap_or_default()) } }
                }
                details open[written("logical_time").is_some() || written("key").is_some()] {
                    summary { (t!(ctx, "more-options")) }
                    div.fields {
                        label.field { span { (t!(ctx, "logical-time")) } input type="text" name="logical_time" value=[written("logical_time")] placeholder="2026-01-31T00:00:00Z"; small { (t!(ctx, "logical-time-hint")) } }
                        label.field { span { (t!(ctx, "key")) } input type="text" name="key" value=[written("key")] autocomplete="off"; small { (t!(ctx, "key-hint")) } }
                        label.field { span { (t!(ctx, "priority")) } input type="number" name="priority" min="-1000" max="1000" value=[written("priority")]; }
                    }
                }
                @if !here.group.enabled {
                    p.why { (t!(ctx, "group-disabled")) }
                    label { input type="checkbox" name="force" value="true" required checked[written("force").is_some()]; (t!(ctx, "force-disabled")) }
                }
                div { button.primary type="submit" { (t!(ctx, "start-run")) } " " a.button href=(here.address("")) { (t!(ctx, "cancel-form")) } }
            }
        }
    };
    let mut page = framed(ctx, here, "run", inside);
    if let Some(trouble) = wrong {
        page.status = trouble.status;
    }
    ctx.beats_with(crate::ctx::Beat::Still);
    Answer::page(page)
}

async fn submit(
    ctx: &Ctx,
    here: &Here,
    properties: &Map<String, Value>,
    form: &[(String, String)],
) -> Result<Uuid, Trouble> {
    let mut params = read(properties, form)?;
    params.extend(object(form, "params")?);
    let mut body = json!({ "params": params });
    let task_params = object(form, "task_params")?;
    if !task_params.is_empty() {
        body["task_params"] = Value::Object(task_params);
    }
    for name in ["logical_time", "key"] {
        if let Some(text) = field(form, name) {
            body[name] = json!(text.trim());
        }
    }
    if let Some(text) = field(form, "priority") {
        let priority: i64 = text
            .trim()
            .parse()
            .map_err(|_| Trouble::new(422, t!(ctx, "no-number", text = text)))?;
        body["priority"] = json!(priority);
    }
    if field(form, "force").is_some() {
        body["force"] = json!(true);
    }
    let run: Run = ctx.ask(Method::POST, &here.api("/runs"), &body).await?;
    Ok(run.id)
}
