//! A group's graph: layers, with the states of its newest run, and the groups around it.

use std::collections::BTreeMap;

use heddle_api::{Graph, GraphLink, TaskState};
use heddle_domain::plan::{Plan, TaskIndex};
use heddle_domain::run::Progress;
use maud::{Markup, html};

use super::{Here, framed};
use crate::ctx::segment;
use crate::elements::{Shown, glyph, group_link, legend, state_word, time};
use crate::layout::layered;
use crate::pages::Answer;
use crate::words::t;
use crate::{Ctx, Trouble};

pub(in crate::pages) const HEIGHT: f64 = 34.0;
/// A box is as wide as the longest name needs, next to its state.
const WIDTH_MIN: f64 = 88.0;
const STATE_ROOM: f64 = 44.0;
/// The maximum of tasks that are drawn: a larger picture would not help anybody.
const NODES_MAX: usize = 2_000;
/// The room that a name has in its box, and what its letters take of it, about.
const NAME_ROOM: f64 = 134.0;
const LETTER: f64 = 7.0;
const WIDE_LETTER: f64 = 12.5;

pub(super) async fn page(ctx: &Ctx, here: &Here) -> Result<Answer, Trouble> {
    let newest = ctx
        .store()
        .page_group_runs(here.group.id, None, 1)
        .await?
        .into_iter()
        .next();
    let around: Graph = ctx.get(&here.api("/graph")).await?;
    let names = |links: Vec<GraphLink>| -> Vec<String> { links.into_iter().map(|link| link.group).collect() };
    let (upstream, downstream) = (names(around.upstream), names(around.downstream));
    let plan = &here.group.revision.plan;
    let mut states = BTreeMap::new();
    if let Some(run) = &newest {
        let revision = ctx.ui.engine.catalog().revision(run.revision_id).await?;
        if let Ok(progress) = Progress::from_bytes(&run.progress) {
            for (index, task) in revision.plan.tasks.iter().enumerate() {
                states.insert(task.name.to_string(), progress.task(index as TaskIndex));
            }
        }
    }
    let picture = html! {
        @if let Some(run) = &newest {
            p.muted { (t!(ctx, "as-of-run")) " " a href={ "/runs/" (run.id) } { (time(ctx, run.logical_time)) } }
        }
        (draw(ctx, plan, &states, &[], newest.as_ref().map(|run| format!("/runs/{}/log", run.id)).as_deref()))
    };
    let inside = html! {
        section.panel aria-label=(t!(ctx, "tab-graph")) {
            div.row {
                @if !upstream.is_empty() { p { span.muted { (t!(ctx, "waits-for")) } " " @for (index, name) in upstream.iter().enumerate() { @if index > 0 { ", " } (group_link(name)) } } }
                @if !downstream.is_empty() { p { span.muted { (t!(ctx, "followed-by")) } " " @for (index, name) in downstream.iter().enumerate() { @if index > 0 { ", " } (group_link(name)) } } }
                span.grow {}
                @if is_drawn(plan) { (legend(ctx, &[TaskState::Succeeded, TaskState::Running, TaskState::Failed, TaskState::UpstreamFailed, TaskState::Skipped])) (zoom_buttons(ctx)) }
            }
            (ctx.live("graph", picture))
        }
    };
    Answer::page(framed(ctx, here, "graph", inside))
}

pub(in crate::pages) fn zoom_buttons(ctx: &Ctx) -> Markup {
    html! {
        span.row {
            button.small type="button" data-zoom="0.625" hidden aria-label=(t!(ctx, "zoom-out")) { "−" }
            button.small type="button" data-zoom="1.6" hidden aria-label=(t!(ctx, "zoom-in")) { "+" }
            button.small type="button" data-zoom="fit" hidden { (t!(ctx, "zoom-fit")) }
        }
    }
}

/// Whether a plan's picture is small enough to be useful.
pub(in crate::pages) fn is_drawn(plan: &Plan) -> bool {
    plan.tasks.len() <= NODES_MAX
}

fn room_of(letter: char) -> f64 {
    // From there on, scripts have letters as wide as they are high.
    if letter < '\u{1100}' { LETTER } else { WIDE_LETTER }
}

fn short(name: &str) -> String {
    if name.chars().map(room_of).sum::<f64>() <= NAME_ROOM {
        return name.to_owned();
    }
    let mut left = NAME_ROOM - WIDE_LETTER;
    let fits = name.chars().take_while(|letter| {
        left -= room_of(*letter);
        left >= 0.0
    });
    fits.chain(['…']).collect()
}

/// How wide the boxes of these names are.
pub(in crate::pages) fn width_of<'n>(names: impl Iterator<Item = &'n str>) -> f64 {
    let rooms = names.map(|name| name.chars().map(room_of).sum::<f64>().min(NAME_ROOM));
    (rooms.fold(0.0, f64::max) + STATE_ROOM).max(WIDTH_MIN).round()
}

/// The picture of a plan with the states of its tasks, and the chain that made a run so long; a node leads to its log, where there is one.
pub(in crate::pages) fn draw(
    ctx: &Ctx,
    plan: &Plan,
    states: &BTreeMap<String, TaskState>,
    critical: &[String],
    log: Option<&str>,
) -> Markup {
    if !is_drawn(plan) {
        return html! { p.empty { (t!(ctx, "graph-too-large", n = crate::span::number(plan.tasks.len() as i64))) } };
    }
    // In topological order, so that equal tasks are in the order in which they begin.
    let order = plan.topological();
    let mut index_of = vec![0; plan.tasks.len()];
    for (index, task) in order.iter().enumerate() {
        index_of[*task as usize] = index;
    }
    let edges: Vec<(usize, usize)> = order
        .iter()
        .flat_map(|task| {
            plan.tasks[*task as usize]
                .depends_on
                .iter()
                .map(|needed| (*needed, *task))
        })
        .map(|(from, to)| (index_of[from as usize], index_of[to as usize]))
        .collect();
    let wide = width_of(plan.tasks.iter().map(|task| task.name.as_str()));
    let layout = layered(order.len(), &edges, wide, HEIGHT);
    let state_of = |index: usize| states.get(plan.tasks[order[index] as usize].name.as_str()).copied();
    let name_of = |index: usize| plan.tasks[order[index] as usize].name.as_str();
    // The chain is written from its end.
    let follows = |from: usize, to: usize| {
        critical
            .windows(2)
            .any(|pair| pair[1] == name_of(from) && pair[0] == name_of(to))
    };
    let bad = |state: Option<TaskState>| matches!(state, Some(TaskState::Failed | TaskState::UpstreamFailed));
    let (width, height) = (layout.width + 4.0, layout.height + 4.0);
    html! {
        div.zoom tabindex="0" role="group" aria-label=(t!(ctx, "tab-graph")) {
            svg.picture width=(format!("{width:.0}")) height=(format!("{height:.0}")) viewBox=(format!("-2 -2 {width:.0} {height:.0}")) role="group" aria-label=(t!(ctx, "graph-label", tasks = order.len(), edges = edges.len())) {
                @for (from, to) in &edges {
                    @let (a, b) = (layout.positions[*from], layout.positions[*to]);
                    @let (x1, x2) = (a.x + wide / 2.0, b.x - wide / 2.0);
                    @let bend = ((x2 - x1) / 2.0).min(60.0);
                    path class=(if follows(*from, *to) { "edge critical" } else if bad(state_of(*from)) && bad(state_of(*to)) { "edge bad" } else { "edge" })
                        d=(format!("M{x1:.0} {:.0}C{:.0} {:.0} {:.0} {:.0} {x2:.0} {:.0}", a.y, x1 + bend, a.y, x2 - bend, b.y, b.y)) {}
                }
                @for (index, at) in layout.positions.iter().enumerate() {
                    @let task = &plan.tasks[order[index] as usize];
                    @let name = task.name.to_string();
                    @let now = state_of(index);
                    @let word = now.map(|now| state_word(ctx, now)).unwrap_or_default();
                    @let (x, y) = (at.x - wide / 2.0, at.y - HEIGHT / 2.0);
                    @let inside = node(&name, now, (x, y), wide);
                    @match log {
                        Some(log) => a.node #{ "task-" (segment(&name)) } href={ (log) "?task=" (segment(&name)) } aria-label=(format!("{name}: {word}")) { (inside) },
                        None => g.node #{ "task-" (segment(&name)) } role="img" aria-label=(name) { (inside) },
                    }
                }
            }
        }
    }
}

/// A box with a name and, at its edges, a state; from far away, the box is the state's.
pub(in crate::pages) fn node(name: &str, now: Option<impl Shown>, (x, y): (f64, f64), wide: f64) -> Markup {
    let fill = now.as_ref().map(crate::chart::fill).unwrap_or_default();
    html! {
        title { (name) }
        rect class={ "box " (fill) } x=(format!("{x:.0}")) y=(format!("{y:.0}")) width=(format!("{wide:.0}")) height=(HEIGHT) rx="6" {}
        @if let Some(now) = now {
            rect class={ "edge-mark " (fill) } x=(format!("{x:.0}")) y=(format!("{:.0}", y + 5.0)) width="4" height=(HEIGHT - 10.0) rx="2" {}
            g class={ "mark s-" (now.glyph()) } transform=(format!("translate({:.0} {:.0})", x + wide - 26.0, y + 9.0)) { (glyph(now.glyph())) }
        }
        text.name x=(format!("{:.0}", x + 14.0)) y=(format!("{:.0}", y + 21.0)) { (short(name)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_into_their_boxes() {
        assert_eq!(short("extract"), "extract");
        let long = short("a-task-with-a-name-that-is-far-too-long");
        assert!(long.ends_with('…') && long.chars().count() <= 19, "{long}");
        // Ten wide letters take the room of eighteen narrow ones.
        let wide = short("每天早上读取仓库日报并汇总结果");
        assert!(wide.ends_with('…') && wide.chars().count() <= 11, "{wide}");
        assert_eq!(width_of(["a"].into_iter()), WIDTH_MIN);
        assert_eq!(
            width_of(["x".repeat(60).as_str(), "a"].into_iter()),
            NAME_ROOM + STATE_ROOM
        );
    }
}
