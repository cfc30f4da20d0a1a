//! Runs for past times: a form, and what it would do, on a calendar, before it does it.

use std::collections::BTreeMap;

use axum::http::Method;
use chrono::{Datelike, Months, NaiveDate};
use chrono_tz::Tz;
use heddle_api::{BackfillPlan, BackfillRequest, BackfillStarted};
use heddle_domain::Time;
use heddle_domain::backfill::ACTIVE_MAX;
use heddle_domain::schedule::local::parse_moment;
use maud::{Markup, html};
use serde_json::Value;

use super::calendar::{Day, begins, days_of, legend_of_days, month_and_year, month_of};
use super::here::{Here, framed};
use super::times::median;
use crate::elements::{self, prose, time_in};
use crate::form::{field, object, whole, with_typed};
use crate::pages::answer::Answer;
use crate::words::{Lang, t};
use crate::{Ctx, Trouble, span};

/// How many instants are listed; the others are only counted.
const LISTED: usize = 200;
/// How many months are drawn: two years.
const MONTHS: u32 = 24;

pub(super) async fn page(ctx: &Ctx, here: &Here) -> Result<Answer, Trouble> {
    if !ctx.viewer.operates() {
        return Err(Trouble::new(403, ""));
    }
    if !here.group.revision.plan.spec.history {
        let inside = html! {
            section.panel {
                h2 { (t!(ctx, "backfill-title")) }
                p.params { (prose(&t!(ctx, "backfill-no-history"))) }
                a.button href={ (here.address("spec")) "?edit=1" } { (t!(ctx, "backfill-edit-spec")) }
            }
        };
        return Answer::page(framed(ctx, here, "backfill", inside));
    }
    let form = ctx.form();
    let mut wrong = None;
    let mut planned = None;
    if ctx.posts() {
        let preview = field(&form, "do") != Some("start");
        match send(ctx, here, &form, preview).await {
            Ok(BackfillStarted::Planned(plan)) => planned = Some(plan),
            Ok(BackfillStarted::Made(made)) => {
                return Ok(Answer::Go {
                    to: format!("/backfills/{}", made.id),
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
    let grid = here.group.revision.past.has_grid();
    let inside = html! {
        section.panel {
            h2 { (t!(ctx, "backfill-title")) }
            @if let Some(trouble) = &wrong { div.said.wrong role="alert" { p { (trouble.said(ctx.lang)) } } }
            // Nothing refuses a second backfill of the same times, as the key of a run does.
            form.fields method="post" action=(here.address("backfill")) data-unkeyed {
                div.field-row {
                    label.field { span { (t!(ctx, "from")) } input type="text" name="from" required value=[written("from")] placeholder="2026-01-01"; }
                    label.field { span { (t!(ctx, "to")) } input type="text" name="to" value=[written("to")] placeholder=(t!(ctx, "now")); }
                    @if !grid { label.field { span { (t!(ctx, "step")) } input type="text" name="step" value=[written("step")] placeholder="1d"; } }
                    label.field { span { (t!(ctx, "max-active")) } input type="number" name="max_active" min="1" max=(ACTIVE_MAX) value=(written("max_active").unwrap_or_else(|| "1".into())); }
                }
                p.muted { (prose(&t!(ctx, "backfill-zone", zone = zone(here).name()))) }
                div.field-row {
                    label.field { span { (t!(ctx, "existing-runs")) } (select("on_existing", &["skip", "failed", "all"])) }
                    label.field { span { (t!(ctx, "order")) } (select("order", &["asc", "desc"])) }
                }
                label { input type="checkbox" name="include_downstream" value="true" checked[written("include_downstream").is_some()]; (t!(ctx, "include-downstream")) }
                details open[written("params").is_some()] { summary { (t!(ctx, "more-params")) } label.field { span { (t!(ctx, "params-json")) } textarea name="params" rows="3" spellcheck="false" placeholder="{}" { (written("params").unwrap_or_default()) } } }
                // Not required: a preview needs none, and the API says what a start needs.
                @if !here.group.enabled {
                    p.why { (t!(ctx, "group-disabled")) }
                    label { input type="checkbox" name="force" value="true" checked[written("force").is_some()]; (t!(ctx, "force-disabled")) }
                }
                div {
                    button type="submit" name="do" value="preview" class=(if planned.is_none() { "primary" } else { "" }) { (t!(ctx, "preview")) }
                    " "
                    button type="submit" name="do" value="start" class=(if planned.is_some() { "primary" } else { "" }) { (t!(ctx, "start-backfill")) }
                }
            }
        }
        @if let Some(planned) = &planned { (preview(ctx, here, &form, planned, took).await?) }
    };
    let mut page = framed(ctx, here, "backfill", inside);
    if let Some(trouble) = wrong {
        page.status = trouble.status;
    }
    Answer::page(page)
}

/// The preview of a backfill: how many runs it creates, how long it takes, and which days already have a run.
async fn preview(
    ctx: &Ctx,
    here: &Here,
    form: &[(String, String)],
    planned: &BackfillPlan,
    took: Option<i64>,
) -> Result<Markup, Trouble> {
    let instants: Vec<Time> = planned.instants.iter().map(|at| at.0).collect();
    let at_once = whole(ctx.lang, form, "max_active")?;
    let at_once = usize::try_from(at_once.unwrap_or(1)).unwrap_or(1).max(1);
    let rounds = instants.len().div_ceil(at_once) as i64;
    Ok(html! {
        section.panel role="status" {
            div.row {
                h2.grow { (t!(ctx, "backfill-would", n = instants.len())) }
                @if let Some(took) = took.filter(|_| !instants.is_empty()) { span.muted { (t!(ctx, "estimate", span = span::span(ctx.lang, took.saturating_mul(rounds)), each = elements::millis(ctx, took))) } }
            }
            @if instants.is_empty() { p.empty { (t!(ctx, "backfill-nothing")) } }
            (on_calendar(ctx, here, form, &instants).await?)
            @if !instants.is_empty() {
                details {
                    summary { (t!(ctx, "backfill-times")) }
                    ul.row { @for instant in instants.iter().take(LISTED) { li { span.tag { (time_in(ctx, zone(here), *instant)) } } } }
                    @if instants.len() > LISTED { p.muted { (t!(ctx, "and-more", n = instants.len() - LISTED)) } }
                }
            }
        }
    })
}

/// The days of the requested span: those that have runs, and those that would get one.
async fn on_calendar(ctx: &Ctx, here: &Here, form: &[(String, String)], instants: &[Time]) -> Result<Markup, Trouble> {
    let zone = zone(here);
    let written = |name: &str| field(form, name).and_then(|text| parse_moment(text, zone).ok());
    let first = instants.iter().min().copied().into_iter().chain(written("from")).min();
    let until = written("to").unwrap_or(ctx.now);
    let last = instants.iter().max().copied().into_iter().chain([until]).max();
    let (Some(first), Some(last)) = (first, last) else {
        return Ok(html! {});
    };
    let day = |at: Time| at.with_timezone(&zone).date_naive();
    let Some(start) = day(first).with_day(1) else {
        return Ok(html! {});
    };
    let all: Vec<NaiveDate> = (0..)
        .map_while(|n| start.checked_add_months(Months::new(n)))
        .take_while(|month| *month <= day(last))
        .take(MONTHS as usize + 1)
        .collect();
    let more = all.len() > MONTHS as usize;
    let shown = &all[..all.len().min(MONTHS as usize)];
    let Some(behind) = start.checked_add_months(Months::new(shown.len() as u32)) else {
        return Ok(html! {});
    };
    let dates: Vec<NaiveDate> = start.iter_days().take_while(|day| *day < behind).collect();
    let (mut days, _) = days_of(ctx, here, zone, &dates, begins(zone, behind)).await?;
    for instant in instants {
        days.entry(day(*instant)).or_insert_with(Day::default).planned += 1;
    }
    Ok(drawn(ctx, here, shown, &days, more))
}

fn drawn(ctx: &Ctx, here: &Here, months: &[NaiveDate], days: &BTreeMap<NaiveDate, Day>, more: bool) -> Markup {
    html! {
        div.row {
            span.legend { span.state.s-ready { svg.key.picture width="16" height="12" aria-hidden="true" { rect.planned x="2" y="1" width="10" height="10" rx="2" {} } span { (t!(ctx, "planned")) } } }
            (legend_of_days(ctx))
        }
        div.calendar { @for month in months { (month_of(ctx, here, zone(here), *month, &month_and_year(ctx.lang, *month), days)) } }
        p.muted { (t!(ctx, "backfill-days", zone = zone(here).name())) }
        @if more { p.muted { (t!(ctx, "backfill-months", n = MONTHS as usize)) } }
    }
}

/// What the API is asked for. It says itself what is wrong with the step, the choices and the number of runs.
fn request(lang: Lang, form: &[(String, String)], dry_run: bool) -> Result<Value, Trouble> {
    let written = |name: &str| field(form, name).map(|text| text.trim().to_owned());
    let request = BackfillRequest {
        from: written("from").unwrap_or_default(),
        to: written("to"),
        step: None,
        order: Default::default(),
        max_active: 1,
        on_existing: Default::default(),
        include_downstream: field(form, "include_downstream").is_some(),
        scripts: Default::default(),
        priority: None,
        params: object(form, "params")?,
        dry_run,
        force: field(form, "force").is_some(),
    };
    let mut body = with_typed(&request, form, &["step", "on_existing", "order"])?;
    if let Some(n) = whole(lang, form, "max_active")? {
        body["max_active"] = n.into();
    }
    Ok(body)
}

async fn send(ctx: &Ctx, here: &Here, form: &[(String, String)], dry_run: bool) -> Result<BackfillStarted, Trouble> {
    let body = request(ctx.lang, form, dry_run)?;
    ctx.ask(Method::POST, &here.api("/backfills"), &body).await
}

/// The zone of the group, in which the API reads dates and times without a zone. The page shows its days and times in it too,
/// so that they are those that somebody typed.
fn zone(here: &Here) -> Tz {
    here.group.revision.plan.zone
}

#[cfg(test)]
mod tests {
    use heddle_domain::Span;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_filled_form_is_a_request() {
        let form = [
            ("from", " 2026-01-01 "),
            ("to", "2026-02-01"),
            ("step", "1d"),
            ("on_existing", "failed"),
            ("order", "desc"),
            ("max_active", "7"),
            ("include_downstream", "true"),
            ("force", "true"),
            ("params", r#"{"a": 1}"#),
        ]
        .map(|(name, text)| (name.to_owned(), text.to_owned()));
        let body = request(Lang::En, &form, true).unwrap();
        assert_eq!(
            (&body["order"], &body["on_existing"]),
            (&json!("desc"), &json!("failed"))
        );
        let read: BackfillRequest = serde_json::from_value(body).unwrap();
        assert_eq!(
            (read.from.as_str(), read.to.as_deref()),
            ("2026-01-01", Some("2026-02-01"))
        );
        assert_eq!(read.step, Some(Span::from_secs(86_400)));
        assert_eq!(
            (read.max_active, read.include_downstream, read.dry_run),
            (7, true, true)
        );
        assert_eq!(read.params, *json!({"a": 1}).as_object().unwrap());
        assert!(read.force && !request(Lang::En, &[], true).unwrap()["force"].is_boolean());
    }
}
