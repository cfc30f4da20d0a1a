//! A group's schedules: each with its next instants, its window, on and off.

use maud::{Markup, html};
use serde_json::Value;

use super::{Here, framed};
use crate::ctx::segment;
use crate::elements::{ago, empty, state, time_exact};
use crate::pages::Answer;
use crate::words::t;
use crate::{Ctx, Trouble};

/// Instants that are shown of each.
const NEXT: usize = 10;

pub(super) async fn page(ctx: &Ctx, here: &Here) -> Result<Answer, Trouble> {
    let schedules = &here.group.revision.schedules;
    let spec = serde_json::to_value(&here.group.revision.plan.spec.schedules).unwrap_or_default();
    let inside = html! {
        div.stack {
            @if schedules.is_empty() { section.panel { (empty(&t!(ctx, "no-schedules"))) } }
            @for (name, schedule) in schedules {
                @let written = &spec[name.as_str()];
                @let enabled = schedule.enabled();
                section.panel {
                    div.row {
                        h2.grow { bdi { (name) } }
                        @if !enabled { (state(ctx, "disabled")) }
                        @if ctx.viewer.operates() { (switch(ctx, here, name, enabled)) }
                    }
                    div.two {
                        dl.facts {
                            (facts(ctx, written))
                            dt { (t!(ctx, "time-zone")) } dd { (schedule.zone().name()) }
                            @if let (Some(from), _) = schedule.window() { dt { (t!(ctx, "starts")) } dd { (time_exact(ctx, from)) } }
                            @if let (_, Some(to)) = schedule.window() { dt { (t!(ctx, "ends")) } dd { (time_exact(ctx, to)) } }
                            dt { (t!(ctx, "missed-instants")) } dd { (t!(ctx, &format!("misfire-{}", written["misfire"].as_str().unwrap_or("once")))) }
                        }
                        (instants(ctx, here, schedule))
                    }
                }
            }
        }
    };
    Answer::page(framed(ctx, here, "schedules", inside))
}

/// What kind of schedule it is, as it was written.
fn facts(ctx: &Ctx, written: &Value) -> Markup {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    html! {
        @for kind in ["cron", "every", "after", "once", "daily"] {
            @if !written[kind].is_null() { dt { (t!(ctx, &format!("schedule-{kind}"))) } dd { code { (text(&written[kind])) } } }
        }
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
