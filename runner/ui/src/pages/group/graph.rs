//! A group's graph: layers, with the states of its newest run, and the groups around it.

use heddle_api::{Graph, GraphLink};
use maud::html;

use super::here::{Here, framed};
use crate::elements::{TASK_STATES, group_link, legend, time};
use crate::pages::answer::Answer;
use crate::pages::drawing::{Shown, draw, is_drawn, zoom_buttons};
use crate::pages::run;
use crate::words::t;
use crate::{Ctx, Trouble};

pub(super) async fn page(ctx: &Ctx, here: &Here) -> Result<Answer, Trouble> {
    let around: Graph = ctx.get(&here.api("/graph")).await?;
    let linked = |links: &[GraphLink], kind: &str| -> Vec<String> {
        let those = links.iter().filter(|link| link.kind == kind);
        those.map(|link| link.group.clone()).collect()
    };
    let upstream = linked(&around.upstream, "depends_on");
    let lines = [
        ("waits-for", upstream.clone()),
        ("starts-runs-of", linked(&around.upstream, "sub_run")),
        ("followed-by", linked(&around.downstream, "depends_on")),
        ("started-by", linked(&around.downstream, "sub_run")),
    ];
    let plan = &here.group.revision.plan;
    let mut shown = match &here.newest {
        Some(newest) => {
            let whole = run::view::Whole::read(ctx, newest.id).await?;
            run::graph::shown(ctx, &whole).await?
        }
        None => Shown::default(),
    };
    shown.upstream = upstream;
    let picture = html! {
        @if let Some(run) = &here.newest {
            p.muted { (t!(ctx, "as-of-run")) " " a href={ "/runs/" (run.id) } { (time(ctx, run.logical_time)) } @if !shown.critical.is_empty() { " · " (t!(ctx, "graph-critical")) } }
        }
        (draw(ctx, plan, &shown))
    };
    let inside = html! {
        section.panel aria-label=(t!(ctx, "tab-graph")) {
            div.row {
                @for (word, names) in lines.iter().filter(|line| !line.1.is_empty()) {
                    p { span.muted { (t!(ctx, word)) } " " @for (index, name) in names.iter().enumerate() { @if index > 0 { ", " } (group_link(name)) } }
                }
                span.grow {}
                @if is_drawn(plan) { (legend(ctx, &TASK_STATES)) (zoom_buttons(ctx)) }
            }
            (ctx.live("graph", picture))
        }
    };
    Answer::page(framed(ctx, here, "graph", inside))
}
