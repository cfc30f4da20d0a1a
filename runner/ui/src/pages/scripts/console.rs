//! The console: trying a script without a run.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::Method;
use heddle_api::{Invocation, InvokeRequest, Script, ScriptVersion};
use maud::{Markup, html};
use serde_json::{Map, Value};

use super::needs::lacks_grants;
use crate::ctx::segment;
use crate::elements::{millis, prose, state};
use crate::form::{self, Asked, field, fields, object_field, whole, with_typed};
use crate::words::{Lang, t};
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

/// What the API is asked for. It says itself what is wrong with the version and the timeout.
fn request(lang: Lang, asked: &Asked<'_>, form: &[(String, String)]) -> Result<Value, Trouble> {
    let mut faults = Vec::new();
    let params = asked.read(form, &mut faults);
    if !faults.is_empty() {
        return Err(Trouble::of_faults(faults));
    }
    let request = InvokeRequest {
        params,
        ..InvokeRequest::default()
    };
    let mut body = with_typed(&request, form, &["timeout"])?;
    if let Some(version) = whole(lang, form, "version")? {
        body["version"] = version.into();
    }
    Ok(body)
}

async fn invoke(ctx: &Ctx, asked: &Asked<'_>, form: &[(String, String)], api: &str) -> Result<Invocation, Trouble> {
    let body = request(ctx.lang, asked, form)?;
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

#[cfg(test)]
mod tests {
    use heddle_domain::Span;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_filled_form_is_a_request() {
        let asked = Asked {
            properties: &Map::new(),
            values: &Map::new(),
            required: &BTreeSet::new(),
            notes: &BTreeMap::new(),
        };
        let form = [("params", r#"{"a": 1}"#), ("version", "3"), ("timeout", " 5s ")]
            .map(|(name, text)| (name.to_owned(), text.to_owned()));
        let read: InvokeRequest = serde_json::from_value(request(Lang::En, &asked, &form).unwrap()).unwrap();
        assert_eq!(read.params, *json!({"a": 1}).as_object().unwrap());
        assert_eq!((read.version, read.timeout), (Some(3), Some(Span::from_secs(5))));
    }
}
