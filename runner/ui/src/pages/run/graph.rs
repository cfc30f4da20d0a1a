//! A run's graph, with the states of its tasks and the runs that they have started.

use std::collections::BTreeMap;

use heddle_api::TaskState;
use maud::{Markup, html};

use super::course::Course;
use super::view::Whole;
use crate::elements::{TASK_STATES, legend};
use crate::pages::drawing::{Edge, Shown, draw, is_drawn, zoom_buttons};
use crate::words::t;
use crate::{Ctx, Trouble};

pub(super) async fn inside(ctx: &Ctx, whole: &Whole) -> Result<Markup, Trouble> {
    let revision = whole.revision(ctx).await?;
    let shown = shown(ctx, whole).await?;
    let picture = draw(ctx, &revision.plan, &shown);
    Ok(html! {
        section.panel aria-label=(t!(ctx, "tab-graph")) {
            @if is_drawn(&revision.plan) { div.row { span.grow {} (legend(ctx, &TASK_STATES)) (zoom_buttons(ctx)) } }
            @if !shown.critical.is_empty() { p.muted { (t!(ctx, "graph-critical")) } }
            (ctx.live("graph", picture))
        }
    })
}

/// What a graph shows about a run: its own graph, or that of its group if the run is the newest.
pub(in crate::pages) async fn shown(ctx: &Ctx, whole: &Whole) -> Result<Shown, Trouble> {
    let run = &whole.run;
    let revision = whole.revision(ctx).await?;
    let states: BTreeMap<String, TaskState> = run.wholes().map(|task| (task.task.clone(), task.state)).collect();
    // Only for an ended run: before that, another chain may become the longest. And not where nothing is drawn.
    let critical = if run.finished_at.is_some() && is_drawn(&revision.plan) {
        Course::of(run, &revision.plan).critical()
    } else {
        Vec::new()
    };
    // The newest run that each task has started. For a mapped task, no single one represents all.
    let subs = whole.sub_runs(ctx).await?.iter().filter(|sub| sub.item.is_none());
    let started = subs.map(|sub| {
        let edge = Edge {
            name: sub.group.clone(),
            address: format!("/runs/{}", sub.id),
            state: Some(sub.state),
        };
        (sub.task.clone(), edge)
    });
    let depends_on = revision.plan.spec.depends_on.iter();
    Ok(Shown {
        states,
        critical,
        log: Some(format!("/runs/{}/log", run.id)),
        started: started.collect(),
        upstream: depends_on.map(|one| one.group().to_string()).collect(),
    })
}
