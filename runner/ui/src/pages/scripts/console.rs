//! The console: trying a script without a run.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::Method;
use heddle_api::{Invocation, Script, ScriptVersion};
use maud::{Markup, html};
use serde_json::{Map, json};

use super::needs::lacks_grants;
use crate::ctx::segment;
use crate::elements::{millis, prose, state};
use crate::form::{self, Asked, field, fields, object_field, whole};
use crate::words::t;
use crate::{Ctx, Trouble, span, yaml};

/// The world of scripts that handle messages of a topic.
const CONSUMER: &str = "heddle:task/consumer";

/// Trying a script without a run.
pub(super) async fn console(ctx: &Ctx, name: &str, script: &Script, api: &str) -> Result<Markup, Trouble> {
    if !ctx.viewer.tries() {
        return Err(Trouble::new(403, ""));
    }
    let none = Map::new();
    let version = &script.version;
    // Its input is batches of messages, and only a topic has these.
    if version.world == CONSUMER {
        return Ok(html! {
            section.panel {
                h2 { (t!(ctx, "console-title")) }
                p { (prose(&t!(ctx, "console-consumer"))) }
                p.under { a.button href="/topics" { (t!(ctx, "nav-topics")) } }
            }
        });
    }
    // Only the answer about a single version has them.
    let one: Option<ScriptVersion> = ctx.get(&format!("{api}/versions/{}", version.version)).await.ok();
    let imports = one.and_then(|one| one.imports);
    let schema = version.params_schema.as_ref();
    let properties = schema.map(form::properties).unwrap_or_default();
    let defaults = version.defaults.as_object().unwrap_or(&none);
    let required: BTreeSet<String> = schema
        .into_iter()
        .flat_map(form::required)
        .filter(|name| !defaults.contains_key(*name))
        .map(str::to_owned)
        .collect();
    let asked = Asked {
        properties: &properties,
        values: defaults,
        required: &required,
        notes: &BTreeMap::new(),
    };
    let form = ctx.form();
    let mut done: Option<Result<Invocation, Trouble>> = None;
    if ctx.posts() {
        done = Some(invoke(ctx, &asked, &form, api).await);
    }
    let wrong = done.as_ref().and_then(|done| done.as_ref().err());
    let wrong_json = wrong.and_then(|trouble| asked.wrong_elsewhere(trouble));
    let written = |name: &str| field(&form, name).map(str::to_owned);
    Ok(html! {
        div.two {
            section.panel {
                h2 { (t!(ctx, "console-title")) }
                @if lacks_grants(&version.world, imports.as_deref()) { p.muted { (prose(&t!(ctx, "console-no-grants"))) } }
                form.fields method="post" action={ "/scripts/" (segment(name)) "/console" } data-keep={ "console/" (name) } {
                    (fields(ctx, &asked, &form, wrong))
                    (object_field(&form, "params", &t!(ctx, "params-json"), wrong_json.as_deref(), Some(&t!(ctx, "console-json-hint"))))
                    div.field-row {
                        label.field { span { (t!(ctx, "version")) } input type="number" name="version" min="1" value=[written("version")] placeholder=[script.active_version]; }
                        label.field { span { (t!(ctx, "timeout")) } input type="text" name="timeout" value=[written("timeout")] placeholder="30s"; }
                    }
                    div.row { button.primary type="submit" { (t!(ctx, "console-run")) } span.muted data-hint hidden { (t!(ctx, "console-kept")) } }
                }
            }
            section.panel aria-live="polite" {
                h2 { (t!(ctx, "result")) }
                @match &done {
                    None => p.empty { (t!(ctx, "console-empty")) },
                    Some(Err(trouble)) => pre.error { (trouble.said(ctx.lang)) },
                    Some(Ok(done)) => (result(ctx, done)),
                }
            }
        }
    })
}

async fn invoke(ctx: &Ctx, asked: &Asked<'_>, form: &[(String, String)], api: &str) -> Result<Invocation, Trouble> {
    let mut faults = Vec::new();
    let params = asked.read(form, &mut faults);
    if !faults.is_empty() {
        return Err(Trouble::of_faults(faults));
    }
    let mut body = json!({ "params": params });
    if let Some(version) = whole(ctx.lang, form, "version")? {
        body["version"] = json!(version);
    }
    if let Some(timeout) = field(form, "timeout") {
        body["timeout"] = json!(timeout.trim());
    }
    let done = ctx.ask(Method::POST, &format!("{api}/invoke"), &body).await;
    done.map_err(|trouble| asked.placed(trouble))
}

fn result(ctx: &Ctx, done: &Invocation) -> Markup {
    html! {
        p.row {
            (state(ctx, done.state))
            span.muted { (millis(ctx, done.duration_ms.ceil() as i64)) " · " (span::bytes(done.memory_bytes as i64)) }
        }
        @if let Some(error) = &done.error { pre.error { (error.kind) ": " (error.message) @if let Some(trace) = &error.trace { "\n\n" (trace) } } }
        @if let Some(output) = &done.output { h3 { (t!(ctx, "outputs")) } (yaml::highlighted(&serde_json::to_string_pretty(output).unwrap_or_default())) }
        @if !done.logs.is_empty() { h3 { (t!(ctx, "tab-log")) } ol.log { @for one in &done.logs { li { span.level { (one.level) } span.message { (one.message) } } } } }
    }
}
