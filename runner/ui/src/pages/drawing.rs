//! The picture of a group's tasks, for the group and for its runs; the boxes and buttons of other pictures.

use std::collections::BTreeMap;

use heddle_api::{RunState, TaskState};
use heddle_domain::plan::{Plan, TaskIndex};
use maud::{Markup, html};

use crate::Ctx;
use crate::ctx::segment;
use crate::elements::{self, glyph, state_word};
use crate::layout::{Layout, layered};
use crate::words::t;

pub(super) const HEIGHT: f64 = 34.0;
/// A box is as wide as the longest name needs, next to its state.
const WIDTH_MIN: f64 = 88.0;
const STATE_ROOM: f64 = 44.0;
/// The maximum of tasks that are drawn: a larger picture would not help anybody.
const NODES_MAX: usize = 2_000;
/// The width of a name in its box, and the approximate width of a letter.
const NAME_ROOM: f64 = 134.0;
const LETTER: f64 = 7.0;
const WIDE_LETTER: f64 = 12.5;
/// What a box has beside its name when it is seen from far away: its margins and its sign.
const BRIEF_REST: f64 = 38.0;

/// What a graph shows in addition to the tasks of a plan.
#[derive(Default)]
pub(super) struct Shown {
    /// The states of the tasks of a run.
    pub(super) states: BTreeMap<String, TaskState>,
    /// The chain of tasks that determined the length of the run, the last task first.
    pub(super) critical: Vec<String>,
    /// The address of the logs of the tasks, if there is a run.
    pub(super) log: Option<String>,
    /// The run that each task has started.
    pub(super) started: BTreeMap<String, Edge>,
    /// Groups that the whole group waits for.
    pub(super) upstream: Vec<String>,
}

/// A box at the edge of the picture: another group, or a run of it.
#[derive(Clone)]
pub(super) struct Edge {
    pub(super) name: String,
    pub(super) address: String,
    pub(super) state: Option<RunState>,
}

impl Edge {
    fn of_group(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            address: format!("/groups/{}", segment(name)),
            state: None,
        }
    }
}

/// The maximum of lines between the tasks and other groups. If there would be more, these groups are only named in
/// words.
const AROUND_MAX: usize = 40;

/// The boxes around the tasks of a plan, each with the numbers of the tasks before or after which it comes.
fn around(plan: &Plan, shown: &Shown) -> Vec<(Edge, Vec<usize>, bool)> {
    let tasks = || plan.tasks.iter().enumerate();
    let first: Vec<usize> = tasks()
        .filter(|(_, task)| task.depends_on.is_empty())
        .map(|(index, _)| index)
        .collect();
    let mut boxes = Vec::new();
    if shown.upstream.len() * first.len() <= AROUND_MAX {
        boxes.extend(
            shown
                .upstream
                .iter()
                .map(|name| (Edge::of_group(name), first.clone(), true)),
        );
    }
    for (index, task) in tasks() {
        if let Some(group) = &task.spec.group {
            let edge = shown.started.get(task.name.as_str()).cloned();
            boxes.push((
                edge.unwrap_or_else(|| Edge::of_group(group.as_str())),
                vec![index],
                false,
            ));
        }
    }
    boxes
}

pub(super) fn zoom_buttons(ctx: &Ctx) -> Markup {
    html! {
        span.row {
            button.small type="button" data-zoom="0.625" hidden aria-label=(t!(ctx, "zoom-out")) { "−" }
            button.small type="button" data-zoom="1.6" hidden aria-label=(t!(ctx, "zoom-in")) { "+" }
            button.small type="button" data-zoom="fit" hidden { (t!(ctx, "zoom-fit")) }
        }
    }
}

/// Whether a plan's picture is small enough to be useful.
pub(super) fn is_drawn(plan: &Plan) -> bool {
    plan.tasks.len() <= NODES_MAX
}

fn room_of(letter: char) -> f64 {
    // From here on, characters are as wide as they are high.
    if letter < '\u{1100}' { LETTER } else { WIDE_LETTER }
}

/// As much of a name as there is room for.
fn short(name: &str, room: f64) -> String {
    if name.chars().map(room_of).sum::<f64>() <= room {
        return name.to_owned();
    }
    let mut left = room - WIDE_LETTER;
    let fits = name.chars().take_while(|letter| {
        left -= room_of(*letter);
        left >= 0.0
    });
    fits.chain(['…']).collect()
}

/// How wide the boxes of these names are.
pub(super) fn width_of<'n>(names: impl Iterator<Item = &'n str>) -> f64 {
    let rooms = names.map(|name| name.chars().map(room_of).sum::<f64>().min(NAME_ROOM));
    (rooms.fold(0.0, f64::max) + STATE_ROOM).max(WIDTH_MIN).round()
}

/// A plan's tasks and what is around them, laid out. Both are nodes with a number: the tasks in topological order, so that
/// what is equal stands in the order in which it begins; what is around, last.
struct Picture<'a> {
    plan: &'a Plan,
    shown: &'a Shown,
    order: Vec<TaskIndex>,
    around: Vec<(Edge, Vec<usize>, bool)>,
    /// Between tasks, and then those from and to what is around.
    edges: Vec<(usize, usize)>,
    /// How many edges are between tasks.
    inner: usize,
    /// How wide each box is.
    wide: f64,
    layout: Layout,
}

impl<'a> Picture<'a> {
    fn of(plan: &'a Plan, shown: &'a Shown) -> Self {
        let order = plan.topological();
        let mut index_of = vec![0; plan.tasks.len()];
        for (index, task) in order.iter().enumerate() {
            index_of[*task as usize] = index;
        }
        let around = around(plan, shown);
        let mut edges = Vec::new();
        for task in &order {
            let needed = &plan.tasks[*task as usize].depends_on;
            edges.extend(
                needed
                    .iter()
                    .map(|from| (index_of[*from as usize], index_of[*task as usize])),
            );
        }
        let inner = edges.len();
        for (number, (_, tasks, before)) in around.iter().enumerate() {
            let own = order.len() + number;
            let tasks = tasks.iter().map(|task| index_of[*task]);
            edges.extend(tasks.map(|task| if *before { (own, task) } else { (task, own) }));
        }
        let names = plan.tasks.iter().map(|task| task.name.as_str());
        let wide = width_of(names.chain(around.iter().map(|(edge, ..)| edge.name.as_str())));
        Self {
            layout: layered(order.len() + around.len(), &edges, wide, HEIGHT),
            plan,
            shown,
            order,
            around,
            edges,
            inner,
            wide,
        }
    }

    fn name_of(&self, index: usize) -> &str {
        let task = self.order.get(index);
        task.map_or("", |task| self.plan.tasks[*task as usize].name.as_str())
    }

    fn state_of(&self, index: usize) -> Option<TaskState> {
        self.shown.states.get(self.name_of(index)).copied()
    }

    /// How an edge looks.
    fn class(&self, from: usize, to: usize) -> &'static str {
        // The chain is written from its end.
        let follows = |pair: &[String]| pair[1] == self.name_of(from) && pair[0] == self.name_of(to);
        let bad = |index| {
            matches!(
                self.state_of(index),
                Some(TaskState::Failed | TaskState::UpstreamFailed)
            )
        };
        if from.max(to) >= self.order.len() {
            "edge starts"
        } else if self.shown.critical.windows(2).any(follows) {
            "edge critical"
        } else if bad(from) && bad(to) {
            "edge bad"
        } else {
            "edge"
        }
    }

    /// The box of a node.
    fn node(&self, ctx: &Ctx, index: usize, name: &str, now: Option<impl elements::Shown>) -> Markup {
        let at = self.layout.positions[index];
        let word = now.as_ref().map(|now| state_word(ctx, now));
        let at = (at.x - self.wide / 2.0, at.y - HEIGHT / 2.0);
        node(name, word.as_deref(), now, at, self.wide)
    }
}

/// The picture of a plan: its tasks, which lead to their logs, and around them other groups and runs.
pub(super) fn draw(ctx: &Ctx, plan: &Plan, shown: &Shown) -> Markup {
    if !is_drawn(plan) {
        return html! { p.empty { (t!(ctx, "graph-too-large", n = crate::span::number(plan.tasks.len() as i64))) } };
    }
    let picture = Picture::of(plan, shown);
    let Picture { order, layout, .. } = &picture;
    let (width, height) = (layout.width + 4.0, layout.height + 4.0);
    html! {
        div.zoom tabindex="0" role="group" aria-label=(t!(ctx, "tab-graph")) {
            svg.picture width=(format!("{width:.0}")) height=(format!("{height:.0}")) viewBox=(format!("-2 -2 {width:.0} {height:.0}")) role="group" aria-label=(t!(ctx, "graph-label", tasks = order.len(), edges = picture.inner)) {
                @for (from, to) in &picture.edges {
                    @let (a, b) = (layout.positions[*from], layout.positions[*to]);
                    @let (x1, x2) = (a.x + picture.wide / 2.0, b.x - picture.wide / 2.0);
                    @let bend = ((x2 - x1) / 2.0).min(60.0);
                    path class=(picture.class(*from, *to))
                        d=(format!("M{x1:.0} {:.0}C{:.0} {:.0} {:.0} {:.0} {x2:.0} {:.0}", a.y, x1 + bend, a.y, x2 - bend, b.y, b.y)) {}
                }
                @for index in 0..order.len() {
                    @let name = picture.name_of(index);
                    @let inside = picture.node(ctx, index, name, picture.state_of(index));
                    @match &shown.log {
                        Some(log) => a.node #{ "task-" (segment(name)) } href={ (log) "?task=" (segment(name)) } { (inside) },
                        None => g.node #{ "task-" (segment(name)) } role="img" aria-label=(name) { (inside) },
                    }
                }
                @for (number, (edge, ..)) in picture.around.iter().enumerate() {
                    a class="node around" href=(edge.address) { (picture.node(ctx, order.len() + number, &edge.name, edge.state)) }
                }
            }
        }
    }
}

/// A box with a name, and a state at its edges. In a small picture, the whole box has the colour of the state. Its title is
/// what it is called where nothing is seen: its name, and the word for its state.
pub(super) fn node(
    name: &str,
    word: Option<&str>,
    now: Option<impl elements::Shown>,
    (x, y): (f64, f64),
    wide: f64,
) -> Markup {
    let fill = now.as_ref().map(crate::chart::fill).unwrap_or_default();
    let on = now.as_ref().map_or("none", elements::Shown::glyph);
    html! {
        title { (name) @if let Some(word) = word { ": " (word) } }
        rect class={ "box " (fill) } x=(format!("{x:.0}")) y=(format!("{y:.0}")) width=(format!("{wide:.0}")) height=(HEIGHT) rx="6" {}
        @if let Some(now) = now {
            rect class={ "edge-mark " (fill) } x=(format!("{x:.0}")) y=(format!("{:.0}", y + 5.0)) width="4" height=(HEIGHT - 10.0) rx="2" {}
            g class={ "mark s-" (now.glyph()) } transform=(format!("translate({:.0} {:.0})", x + wide - 26.0, y + 9.0)) { (glyph(now.glyph())) }
        }
        text.name x=(format!("{:.0}", x + 14.0)) y=(format!("{:.0}", y + 21.0)) { (short(name, NAME_ROOM)) }
        // From far away, in letters half as large again, beside the sign.
        text class={ "brief on-" (on) } x=(format!("{:.0}", x + 6.0)) y=(format!("{:.0}", y + 23.0)) { (short(name, (wide - BRIEF_REST) / 1.5)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_into_their_boxes() {
        assert_eq!(short("extract", NAME_ROOM), "extract");
        let long = short("a-task-with-a-name-that-is-far-too-long", NAME_ROOM);
        assert!(long.ends_with('…') && long.chars().count() <= 19, "{long}");
        // Ten wide letters take the room of eighteen narrow ones.
        let wide = short("每天早上读取仓库日报并汇总结果", NAME_ROOM);
        assert!(wide.ends_with('…') && wide.chars().count() <= 11, "{wide}");
        assert_eq!(width_of(["a"].into_iter()), WIDTH_MIN);
        assert_eq!(
            width_of(["x".repeat(60).as_str(), "a"].into_iter()),
            NAME_ROOM + STATE_ROOM
        );
        // From far away there is room for less.
        assert_eq!(short("t001", (WIDTH_MIN - BRIEF_REST) / 1.5), "t001");
        assert_eq!(short("extract", (WIDTH_MIN - BRIEF_REST) / 1.5), "ex…");
    }
}
