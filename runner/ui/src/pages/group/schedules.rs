//! A group's schedules: each with its next instants, its window, on and off.

use heddle_domain::spec::{Misfire, ScheduleSpec};
use maud::{Markup, html};
use serde::Serialize;

use super::here::{Here, framed};
use super::recurrence;
use crate::ctx::segment;
use crate::elements::{ago, empty, state, time_exact};
use crate::pages::answer::Answer;
use crate::words::t;
use crate::{Ctx, Trouble};

/// How many next instants of each schedule are shown.
const NEXT: usize = 10;

pub(super) async fn page(ctx: &Ctx, here: &Here) -> Result<Answer, Trouble> {
    let schedules = &here.group.revision.schedules;
    let written = &here.group.revision.plan.spec.schedules;
    let inside = html! {
        div.stack {
            @if schedules.is_empty() { section.panel { (empty(&t!(ctx, "no-schedules"))) } }
            @for (name, schedule) in schedules {
                @let written = written.get(name.as_str());
                @let enabled = schedule.enabled();
                section.panel {
                    div.row {
                        h2.grow { bdi { (name) } }
                        @if !enabled { (state(ctx, "disabled")) }
                        @if ctx.viewer.operates() { (switch(ctx, here, name, enabled)) }
                    }
                    div.two {
                        dl.facts {
                            @if let Some(written) = written { (facts(ctx, written)) }
                            dt { (t!(ctx, "time-zone")) } dd { (schedule.zone().name()) }
                            @if let (Some(from), _) = schedule.window() { dt { (t!(ctx, "starts")) } dd { (time_exact(ctx, from)) } }
                            @if let (_, Some(to)) = schedule.window() { dt { (t!(ctx, "ends")) } dd { (time_exact(ctx, to)) } }
                            dt { (t!(ctx, "missed-instants")) } dd { (t!(ctx, misfire(written.map(|written| written.misfire).unwrap_or_default()))) }
                        }
                        (instants(ctx, here, schedule))
                    }
                }
            }
        }
    };
    Answer::page(framed(ctx, here, "schedules", ctx.live("schedules", inside)))
}

/// What kind of schedule it is, as it was written, and in words.
fn facts(ctx: &Ctx, written: &ScheduleSpec) -> Markup {
    let kinds = [
        (t!(ctx, "schedule-cron"), written.cron.clone()),
        (t!(ctx, "schedule-every"), written.every.map(|span| span.to_string())),
        (t!(ctx, "schedule-after"), written.after.map(|span| span.to_string())),
        (t!(ctx, "schedule-once"), written.once.as_ref().map(json)),
        (t!(ctx, "schedule-daily"), written.daily.as_ref().map(json)),
    ];
    let words = recurrence::said(ctx.lang, written);
    html! {
        @for (word, text) in kinds { @if let Some(text) = text { dt { (word) } dd { code { (text) } @if let Some(words) = &words { " · " (words) } } } }
    }
}

fn json(part: &impl Serialize) -> String {
    serde_json::to_value(part).unwrap_or_default().to_string()
}

/// The key of the text about what happens with missed instants.
fn misfire(what: Misfire) -> &'static str {
    match what {
        Misfire::Once => "misfire-once",
        Misfire::Skip => "misfire-skip",
        Misfire::All => "misfire-all",
    }
}

fn instants(ctx: &Ctx, here: &Here, schedule: &heddle_domain::schedule::Schedule) -> Markup {
    let mut next = Vec::new();
    let mut at = ctx.now;
    while let (true, Some(instant)) = (next.len() < NEXT, schedule.next_after(at)) {
        next.push(instant);
        at = instant;
    }
    html! {
        div {
            h3 { (t!(ctx, "next-instants")) }
            @if !here.group.enabled { p.muted { (t!(ctx, "group-disabled")) } }
            @if next.is_empty() { p.muted { (t!(ctx, "no-next")) } }
            ol { @for instant in &next { li.row { (time_exact(ctx, *instant)) span.muted { (ago(ctx, *instant)) } } } }
        }
    }
}

fn switch(ctx: &Ctx, here: &Here, name: &str, enabled: bool) -> Markup {
    let verb = if enabled { "disable" } else { "enable" };
    html! {
        form.switch method="post" action=(here.address(&format!("schedules/{}/{verb}", segment(name)))) {
            button type="submit" role="switch" aria-checked=(if enabled { "true" } else { "false" }) aria-label=(t!(ctx, "enabled-named", name = name)) {}
        }
    }
}
