//! Working off the past: a form, and what it would do before it does it.

use axum::http::Method;
use maud::{Markup, html};
use serde_json::{Value, json};

use super::{Here, framed, median};
use crate::elements::{self, parse, time};
use crate::form::{field, object};
use crate::pages::Answer;
use crate::words::t;
use crate::{Ctx, Trouble, span};

/// Instants that are listed; the rest is counted.
const LISTED: usize = 60;

pub(super) async fn page(ctx: &Ctx, here: &Here) -> Result<Answer, Trouble> {
    if !ctx.viewer.operates() {
        return Err(Trouble::new(403, ""));
    }
    let form = ctx.form();
    let mut wrong = None;
    let mut planned = None;
    if ctx.posts() {
        let preview = field(&form, "do") != Some("start");
        match send(ctx, here, &form, preview).await {
            Ok(answer) if preview => planned = Some(answer),
            Ok(answer) => {
                let id = answer["id"].as_str().unwrap_or_default();
                return Ok(Answer::Go {
                    to: format!("/backfills/{id}"),
                    said: Some(t!(ctx, "said-backfill")),
                });
            }
            Err(trouble) => wrong = Some(trouble),
        }
    }
    let written = |name: &str| field(&form, name).map(str::to_owned);
    let select = |name: &'static str, among: &[&str]| -> Markup {
        let chosen = written(name).unwrap_or_else(|| among[0].to_owned());
        html! { select name=(name) { @for one in among { option value=(one) selected[*one == chosen] { (t!(ctx, &format!("backfill-{name}-{one}"))) } } } }
    };
    let took = median(&ctx.store().page_group_runs(here.group.id, None, 30).await?);
    let grid = here.group.revision.calendar.has_grid();
    let inside = html! {
        section.panel {
            h2 { (t!(ctx, "backfill-title")) }
            @if let Some(trouble) = &wrong { div.said.wrong role="alert" { p { (trouble.sentence()) } } }
            form.fields method="post" action=(here.address("backfill")) {
                div.field-row {
                    label.field { span { (t!(ctx, "from")) } input type="text" name="from" required value=[written("from")] placeholder="2026-01-01"; }
                    label.field { span { (t!(ctx, "to")) } input type="text" name="to" value=[written("to")] placeholder=(t!(ctx, "now")); }
                    @if !grid { label.field { span { (t!(ctx, "step")) } input type="text" name="step" value=[written("step")] placeholder="1d"; } }
                    label.field { span { (t!(ctx, "max-active")) } input type="number" name="max_active" min="1" max="1000" value=(written("max_active").unwrap_or_else(|| "1".into())); }
                }
                div.field-row {
                    label.field { span { (t!(ctx, "existing-runs")) } (select("on_existing", &["skip", "failed", "all"])) }
                    label.field { span { (t!(ctx, "order")) } (select("order", &["asc", "desc"])) }
                }
                label { input type="checkbox" name="include_downstream" value="true" checked[written("include_downstream").is_some()]; (t!(ctx, "include-downstream")) }
                details open[written("params").is_some()] { summary { (t!(ctx, "more-params")) } label.field { span { (t!(ctx, "params-json")) } textarea name="params" rows="3" spellcheck="false" placeholder="{}" { (written("params").unwrap_or_default()) } } }
                div {
                    button type="submit" name="do" value="preview" class=(if planned.is_none() { "primary" } else { "" }) { (t!(ctx, "preview")) }
                    " "
                    button type="submit" name="do" value="start" class=(if planned.is_some() { "primary" } else { "" }) { (t!(ctx, "start-backfill")) }
                }
            }
        }
        @if let Some(planned) = &planned { (preview(ctx, planned, took)) }
    };
    let mut page = framed(ctx, here, "backfill", inside);
    if let Some(trouble) = wrong {
        page.status = trouble.status;
    }
    ctx.beats_with(crate::ctx::Beat::Still);
    Answer::page(page)
}

fn preview(ctx: &Ctx, planned: &Value, took: Option<i64>) -> Markup {
    let instants = planned["instants"].as_array().map(Vec::as_slice).unwrap_or_default();
    html! {
        section.panel role="status" {
            div.row {
                h2.grow { (t!(ctx, "backfill-would", n = instants.len())) }
                @if let Some(took) = took { span.muted { (t!(ctx, "estimate", span = span::span(ctx.lang, took.saturating_mul(instants.len() as i64)), each = elements::millis(ctx, took))) } }
            }
            @if instants.is_empty() { p.empty { (t!(ctx, "backfill-nothing")) } }
            ul.row { @for instant in instants.iter().take(LISTED).filter_map(Value::as_str).filter_map(parse) { li { span.tag { (time(ctx, instant)) } } } }
            @if instants.len() > LISTED { p.muted { (t!(ctx, "and-more", n = instants.len() - LISTED)) } }
        }
    }
}

async fn send(ctx: &Ctx, here: &Here, form: &[(String, String)], dry_run: bool) -> Result<Value, Trouble> {
    let mut body = json!({ "dry_run": dry_run });
    for name in ["from", "to", "step", "on_existing", "order"] {
        if let Some(text) = field(form, name) {
            body[name] = json!(moment(ctx, name, text.trim()));
        }
    }
    if let Some(n) = field(form, "max_active").and_then(|text| text.trim().parse::<i64>().ok()) {
        body["max_active"] = json!(n);
    }
    if field(form, "include_downstream").is_some() {
        body["include_downstream"] = json!(true);
    }
    let params = object(form, "params")?;
    if !params.is_empty() {
        body["params"] = Value::Object(params);
    }
    ctx.send(Method::POST, &here.api("/backfills"), &body).await
}

/// A day that was written without a time means its midnight in UTC.
fn moment(_ctx: &Ctx, name: &str, text: &str) -> String {
    let is_day = matches!(name, "from" | "to") && text.len() == 10 && text.parse::<chrono::NaiveDate>().is_ok();
    if is_day {
        format!("{text}T00:00:00Z")
    } else {
        text.to_owned()
    }
}
