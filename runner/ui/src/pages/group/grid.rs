//! Tasks by runs: which task of which run failed, at a glance, for a thousand tasks and a hundred runs.
//!
//! A cell is not a separate element: each row is a path per state, so that a hundred thousand cells are some thousand
//! paths. Neighbours with the same state are one bar in it, and the gaps between columns are drawn over all rows at
//! once: a thousand tasks that succeeded a hundred times are a thousand bars. Every state has a shape in addition to
//! its hue. `picture.js` computes the cell under the pointer or the keyboard; without a script, names lead to the graph
//! and bars to the runs.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;

use heddle_api::{TaskDetail, TaskState};
use heddle_domain::Time;
use heddle_domain::plan::TaskIndex;
use heddle_domain::run::{Control, Progress, TaskKey};
use heddle_domain::state::RunState;
use heddle_store::pages::group::GroupRunRow;
use maud::{Markup, html};
use uuid::Uuid;

use super::here::{Here, framed};
use super::times::millis;
use crate::chart::fill;
use crate::ctx::segment;
use crate::elements::{
    Button, Shown, TASK_STATES, ago, button, choice, empty, failure, glyph, number, state, state_word, time, took,
};
use crate::pages::answer::Answer;
use crate::words::{Lang, t};
use crate::{Ctx, Trouble, span};

/// How many runs the grid may have.
const COLUMNS: [i64; 4] = [25, 50, 100, 250];
const COLUMNS_DEFAULT: i64 = 25;
/// How many rows are drawn. The page says how many more there are.
const ROWS_MAX: usize = 1_500;
/// The side of a cell, in CSS pixels: a finger hits 24 (WCAG 2.2, 2.5.8). The names beside the cells have the same height
/// (`.grid-names` in `heddle.css`).
const SIZE: usize = 24;
/// What a cell leaves free around its square, and the side of the square.
const MARGIN: usize = 4;
const SIDE: usize = SIZE - 2 * MARGIN;
/// The height of the bars of runs above the cells.
const TOP: usize = 84;
/// Where the bars begin, below the times. The whole column from here to the cells leads to the run, however short its bar is.
const BARS: usize = 16;
/// How many running attempts are looked up.
const RUNNING_MAX: i64 = 20_000;

/// What the grid shows.
struct Grid {
    /// The runs of the columns, newest last.
    runs: Vec<GroupRunRow>,
    tasks: Vec<String>,
    /// The states, by row and then by column.
    cells: Vec<Vec<Option<TaskState>>>,
    more_rows: usize,
}

impl Grid {
    async fn read(ctx: &Ctx, here: &Here, columns: i64) -> Result<Self, Trouble> {
        let mut runs = ctx.store().page_group_runs(here.group.id, None, columns).await?;
        runs.reverse();
        let live: Vec<Uuid> = runs
            .iter()
            .filter(|run| run.finished_at.is_none())
            .map(|run| run.id)
            .collect();
        let running: BTreeSet<(Uuid, i16)> = ctx
            .store()
            .page_running(&live, RUNNING_MAX)
            .await?
            .into_iter()
            .collect();
        let plan = &here.group.revision.plan;
        let mut tasks: Vec<String> = plan
            .topological()
            .into_iter()
            .map(|task| plan.tasks[task as usize].name.to_string())
            .collect();
        let mut rows: HashMap<String, usize> = tasks.iter().cloned().zip(0..).collect();
        let mut cells = vec![vec![None; runs.len()]; tasks.len()];
        // In which row each task of a revision stands.
        let mut indexes: HashMap<i64, Vec<usize>> = HashMap::new();
        for (column, run) in runs.iter().enumerate() {
            let Ok(progress) = Progress::from_bytes(&run.progress) else {
                continue;
            };
            if let Entry::Vacant(vacant) = indexes.entry(run.revision_id) {
                let revision = ctx.ui.engine.catalog().revision(run.revision_id).await?;
                let of_tasks = revision.plan.tasks.iter().map(|task| {
                    // A task that only an older revision has.
                    *rows.entry(task.name.to_string()).or_insert_with_key(|name| {
                        tasks.push(name.clone());
                        tasks.len() - 1
                    })
                });
                vacant.insert(of_tasks.collect());
                cells.resize_with(tasks.len(), || vec![None; runs.len()]);
            }
            for (index, row) in indexes[&run.revision_id].iter().enumerate() {
                let index = index as TaskIndex;
                let under_way = running.contains(&(run.id, index as i16));
                cells[*row][column] = progress.shown_state(TaskKey::whole(index), run.state, under_way);
            }
        }
        let more_rows = tasks.len().saturating_sub(ROWS_MAX);
        tasks.truncate(ROWS_MAX);
        cells.truncate(ROWS_MAX);
        Ok(Self {
            runs,
            tasks,
            cells,
            more_rows,
        })
    }
}

pub(super) async fn page(ctx: &Ctx, here: &Here) -> Result<Answer, Trouble> {
    let asked = ctx.q("n").and_then(|n| n.parse().ok()).filter(|n| COLUMNS.contains(n));
    let columns = asked.unwrap_or(COLUMNS_DEFAULT);
    let grid = Grid::read(ctx, here, columns).await?;
    let chosen = match (ctx.q("run"), ctx.q("task")) {
        (Some(run), Some(task)) => detail(ctx, here, run, task).await.ok(),
        _ => None,
    };
    let among: Vec<(String, String)> = COLUMNS.iter().map(|n| (n.to_string(), n.to_string())).collect();
    let among: Vec<(&str, String)> = among
        .iter()
        .map(|(value, word)| (value.as_str(), word.clone()))
        .collect();
    let inside = html! {
        // Shows the details of the cell under the pointer.
        div #tip.tip role="status" hidden { p { b {} } div {} }
        div #grid-view class=(if chosen.is_some() { "grid-view has-detail" } else { "grid-view" }) {
            section.panel aria-label=(t!(ctx, "tab-grid")) {
                div.row {
                    span { (t!(ctx, "runs")) " " (choice(ctx, &t!(ctx, "runs-shown"), "n", &columns.to_string(), &among)) }
                }
                (ctx.live("grid", picture(ctx, here, &grid)))
                // Below, where it may take two lines without moving a cell when the details take their room.
                div.under-grid { (legend(ctx)) }
            }
            aside #detail.detail aria-live="polite" { @if let Some(chosen) = chosen { (chosen) } }
        }
    };
    Answer::page(framed(ctx, here, "", inside))
}

/// Whether a state is drawn as a filled square, which can be part of a bar.
fn is_solid(state: TaskState) -> bool {
    matches!(state, TaskState::Succeeded | TaskState::Failed)
}

/// The shape of a state that is not a filled square, in the cell with its corner at (x, y).
fn shape(path: &mut String, state: TaskState, x: usize, y: usize) {
    let (x, y) = (x + 5, y + 5);
    // Writing into a string does not fail.
    let _ = match state {
        TaskState::Running => write!(path, "M{} {y}v14l12 -7z", x + 2),
        TaskState::Retrying => write!(path, "M{} {y}l7 7l-7 7l-7 -7z", x + 7),
        TaskState::Ready | TaskState::Pending => write!(path, "M{} {}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z", x + 4, y + 7),
        TaskState::Paused => write!(path, "M{} {}v10h3v-10zM{} {}v10h3v-10z", x + 3, y + 2, x + 8, y + 2),
        TaskState::Cancelled => write!(path, "M{} {}h8v8h-8z", x + 3, y + 3),
        // A hollow square with a stroke through it.
        TaskState::UpstreamFailed => write!(path, "M{} {}h{SIDE}v{SIDE}h-{SIDE}zl{SIDE} {SIDE}", x - 1, y - 1),
        _ => write!(path, "M{} {}h{SIDE}v{SIDE}h-{SIDE}z", x - 1, y - 1),
    };
}

/// The mark on a cell, so that the hue is not the only sign.
fn mark(path: &mut String, state: TaskState, x: usize, y: usize) {
    if state == TaskState::Failed {
        let _ = write!(path, "M{} {}l6 6m0 -6l-6 6", x + 9, y + 9);
    }
}

/// What the cells look like, each with the word for it.
fn legend(ctx: &Ctx) -> Markup {
    let key = |state: TaskState| {
        let (mut area, mut sign) = (String::new(), String::new());
        shape(&mut area, state, 0, 0);
        mark(&mut sign, state, 0, 0);
        html! {
            svg.key.picture width="16" height="16" viewBox="3 3 18 18" aria-hidden="true" {
                path class=(fill(state)) d=(area) {}
                @if !sign.is_empty() { path.cell-mark d=(sign) {} }
            }
        }
    };
    html! {
        ul.legend aria-label=(t!(ctx, "legend")) {
            @for state in TASK_STATES { li { span class={ "state s-" (state.glyph()) } { (key(state)) span { (state_word(ctx, state)) } } } }
            // Of the runs, whose bars stand above: no task waits for other groups.
            li { (state(ctx, "waiting")) }
        }
    }
}

/// What stands above some of the columns: where it begins or ends, which of both, and the day; the time as well where days
/// would be the same, and where there is only one.
fn headings(lang: Lang, zone: chrono_tz::Tz, now: Time, times: &[Time]) -> Vec<(usize, &'static str, String)> {
    const DAY_ROOM: usize = 48;
    const MOMENT_ROOM: usize = 100;
    let each = (times.len() / 8).max(6);
    let marked: Vec<usize> = (0..times.len()).rev().step_by(each).collect();
    let day = |column: usize| span::day(lang, zone, times[column], now);
    let dense = marked.len() == 1 || marked.windows(2).any(|pair| day(pair[0]) == day(pair[1]));
    let heading = |column: usize| {
        let text = if dense {
            span::moment(lang, zone, times[column], now, false)
        } else {
            day(column)
        };
        let end = column * SIZE + SIZE - MARGIN;
        let room = if dense { MOMENT_ROOM } else { DAY_ROOM };
        if end >= room {
            return Some((end, "end", text));
        }
        // There is always room behind the newest.
        (column + 1 == times.len()).then(|| (column * SIZE + MARGIN, "start", text))
    };
    marked.into_iter().filter_map(heading).collect()
}

fn picture(ctx: &Ctx, here: &Here, grid: &Grid) -> Markup {
    if grid.runs.is_empty() {
        return empty(&t!(ctx, "no-runs-yet"));
    }
    let (columns, rows) = (grid.runs.len(), grid.tasks.len());
    let (width, height) = (columns * SIZE, TOP + rows * SIZE);
    let longest = grid.runs.iter().filter_map(millis).max().unwrap_or(1).max(1) as f64;
    let labels: Vec<String> = grid
        .runs
        .iter()
        .map(|run| span::moment(ctx.lang, ctx.zone, run.logical_time, ctx.now, false))
        .collect();
    let ids: Vec<String> = grid.runs.iter().map(|run| run.id.to_string()).collect();
    let names: Vec<String> = grid.tasks.iter().map(|name| segment(name)).collect();
    let times: Vec<Time> = grid.runs.iter().map(|run| run.logical_time).collect();
    html! {
        div.grid-scroll role="group" aria-label=(t!(ctx, "tab-grid")) {
            div.grid-names {
                div.grid-top {}
                @for name in &grid.tasks { div title=(name) { a href={ (here.address("graph")) "#task-" (segment(name)) } { (name) } } }
            }
            svg.picture width=(width) height=(height) viewBox=(format!("0 0 {width} {height}")) tabindex="0" role="application"
                aria-label=(t!(ctx, "grid-label", tasks = rows, runs = columns))
                data-columns=(columns) data-rows=(rows) data-size=(SIZE) data-top=(TOP) data-runs=(ids.join(" ")) data-tasks=(names.join("/"))
                data-labels=(labels.join("|")) data-detail=(here.address("cell"))
            {
                @for (x, anchor, text) in headings(ctx.lang, ctx.zone, ctx.now, &times) { text x=(x) y="12" text-anchor=(anchor) { (text) } }
                @for (column, run) in grid.runs.iter().enumerate() {
                    @let bar = millis(run).map_or(10.0, |millis| 4.0 + 40.0 * (millis as f64 / longest).sqrt());
                    @let x = column * SIZE;
                    a href={ "/runs/" (run.id) } {
                        title { (labels[column]) " · " (state_word(ctx, run.state)) }
                        rect.hit x=(x) y=(BARS) width=(SIZE) height=(TOP - BARS) {}
                        rect class=(fill(run.state)) x=(x + MARGIN) y=(format!("{:.1}", 78.0 - bar)) width=(SIDE) height=(format!("{bar:.1}")) rx="2" {}
                        // The glyph of every other state stands on its bar.
                        @if run.state != RunState::Succeeded {
                            use class={ "bar-mark s-" (run.state.glyph()) } href={ "#g-" (run.state.glyph()) } x=(x + 6) y=(format!("{:.1}", 78.0 - bar - 14.0)) width="12" height="12" {}
                        }
                    }
                }
                @for (row, cells) in grid.cells.iter().enumerate() {
                    @for (class, path) in bars(cells, TOP + row * SIZE) { path class=(class) d=(path) {} }
                }
                path.gap d=(gaps(columns, TOP, rows * SIZE)) {}
                @for (row, cells) in grid.cells.iter().enumerate() {
                    @let y = TOP + row * SIZE;
                    @for (class, path) in shapes(cells, y) { path class=(class) d=(path) {} }
                    @let marks = marks(cells, y);
                    @if !marks.is_empty() { path.cell-mark d=(marks) {} }
                }
                rect.here visibility="hidden" rx="3" {}
            }
        }
        @if grid.more_rows > 0 { p.muted { (t!(ctx, "more-rows", n = grid.more_rows)) } }
    }
}

/// A row's squares: a bar for each stretch of columns that ended alike.
fn bars(cells: &[Option<TaskState>], y: usize) -> BTreeMap<String, String> {
    let mut paths: BTreeMap<String, String> = BTreeMap::new();
    let mut first = 0;
    for alike in cells.chunk_by(|left, right| left == right) {
        if let Some(state) = alike[0].filter(|state| is_solid(*state)) {
            let path = paths.entry(fill(state)).or_default();
            let (x, y, width) = (first * SIZE + MARGIN, y + MARGIN, alike.len() * SIZE - 2 * MARGIN);
            let _ = write!(path, "M{x} {y}h{width}v{SIDE}h-{width}z");
        }
        first += alike.len();
    }
    paths
}

/// Divides bars into squares by a gap between each two columns, over all rows.
fn gaps(columns: usize, top: usize, height: usize) -> String {
    const GAP: usize = 2 * MARGIN;
    let mut path = String::new();
    for column in 1..columns {
        let _ = write!(path, "M{} {top}h{GAP}v{height}h-{GAP}z", column * SIZE - MARGIN);
    }
    path
}

/// A row's other cells.
fn shapes(cells: &[Option<TaskState>], y: usize) -> BTreeMap<String, String> {
    let mut paths: BTreeMap<String, String> = BTreeMap::new();
    for (column, cell) in cells.iter().enumerate() {
        if let Some(state) = cell.filter(|state| !is_solid(*state)) {
            let path = paths.entry(fill(state)).or_default();
            shape(path, state, column * SIZE, y);
        }
    }
    paths
}

fn marks(cells: &[Option<TaskState>], y: usize) -> String {
    let mut path = String::new();
    for (column, cell) in cells.iter().enumerate() {
        if let Some(state) = cell {
            mark(&mut path, *state, column * SIZE, y);
        }
    }
    path
}

/// The details of a cell, shown next to the grid.
pub(super) async fn cell(ctx: &Ctx, here: &Here) -> Result<Answer, Trouble> {
    let (Some(run), Some(task)) = (ctx.q("run"), ctx.q("task")) else {
        return Err(Trouble::not_found());
    };
    if !ctx.is_piece() {
        return Ok(Answer::Go {
            to: format!("/runs/{}", segment(run)),
            said: None,
        });
    }
    if ctx.q("brief").is_some() {
        return Ok(Answer::Piece(brief(ctx, run, task).await?));
    }
    Ok(Answer::Piece(detail(ctx, here, run, task).await?))
}

/// A short text for the cell under the pointer: state, duration, attempts, the error's first line.
async fn brief(ctx: &Ctx, run: &str, task: &str) -> Result<Markup, Trouble> {
    let run: Uuid = run.parse().map_err(|_| Trouble::not_found())?;
    Ok(summary(ctx, &task_of(ctx, run, task).await?))
}

async fn task_of(ctx: &Ctx, run: Uuid, task: &str) -> Result<TaskDetail, Trouble> {
    ctx.get(&format!("/v1/runs/{run}/tasks/{}", segment(task))).await
}

/// The state of a task, its duration, the number of its attempts, and its error.
fn summary(ctx: &Ctx, one: &TaskDetail) -> Markup {
    let (task, attempts) = (&one.task, one.attempts.len());
    html! {
        p.row {
            (state(ctx, task.state))
            @if let Some(from) = task.started_at { span.muted { (took(ctx, from, task.finished_at)) } }
            @if attempts > 1 { span.muted { (t!(ctx, "attempts-count", n = attempts)) } }
        }
        @if let Some(error) = &task.error { p { (failure(Some(error.kind), &error.message)) } }
    }
}

async fn detail(ctx: &Ctx, here: &Here, run: &str, task: &str) -> Result<Markup, Trouble> {
    let run: Uuid = run.parse().map_err(|_| Trouble::not_found())?;
    let one = task_of(ctx, run, task).await?;
    let whole = ctx.store().run(heddle_domain::id::RunId(run)).await?;
    let may = ctx.viewer.operates();
    let allows = |control: Control| {
        let run = whole.as_ref().filter(|_| may);
        run.is_some_and(|run| control.is_allowed_of(&run.group_name, run.state))
    };
    let failed_items = one
        .task
        .items
        .as_ref()
        .and_then(|items| items.get(TaskState::Failed.as_str()).copied());
    let items = one.task.items.iter().flatten().map(|(_, count)| *count).sum::<u64>();
    let failed = matches!(one.task.state, TaskState::Failed | TaskState::UpstreamFailed);
    Ok(html! {
        section.panel aria-label=(task) {
            div.row {
                h2.grow { bdi { (task) } }
                a.button.plain.small href=(here.address("")) data-close title={ (t!(ctx, "close")) " (Esc)" } aria-label=(t!(ctx, "close")) { (glyph("close")) }
            }
            p { (t!(ctx, "run")) " " a href={ "/runs/" (run) } title=(t!(ctx, "open-run")) { @if let Some(whole) = &whole { (time(ctx, whole.terms.logical_time)) } @else { (t!(ctx, "open-run")) } } }
            (summary(ctx, &one))
            @if let Some(failed) = failed_items.filter(|failed| *failed > 0) {
                p { a href={ "/runs/" (run) "#items-" (segment(task)) } { (t!(ctx, "items-failed", n = number(failed as i64), all = number(items as i64))) } }
            }
            @if !one.attempts.is_empty() {
                table { tbody { @for attempt in one.attempts.iter().rev().take(8) {
                    tr {
                        td.tight.muted { (t!(ctx, "attempt-n", n = i64::from(attempt.attempt))) }
                        td.tight { (state(ctx, attempt.state)) }
                        td.num { (took(ctx, attempt.started_at, attempt.finished_at)) }
                        td.muted { (time(ctx, attempt.started_at)) }
                    }
                } } }
            }
            div.actions {
                a.button href={ "/runs/" (run) "/log?task=" (segment(task)) } { (t!(ctx, "tab-log")) }
                @if allows(Control::Clear) {
                    (button(Button { confirm: Some(t!(ctx, "clear-sure")), ..Button::new(format!("/runs/{run}/tasks/{}/clear", segment(task)), t!(ctx, "clear"), t!(ctx, "clear-will")) }))
                    (button(Button { fields: vec![("downstream", "false".into())], confirm: Some(t!(ctx, "clear-one-sure")), ..Button::new(format!("/runs/{run}/tasks/{}/clear", segment(task)), t!(ctx, "clear-one"), t!(ctx, "clear-one-will")) }))
                }
                @if failed && allows(Control::Restart) {
                    (button(Button { glyph: "restart", kind: "primary", ..Button::new(format!("/runs/{run}/restart"), t!(ctx, "restart"), t!(ctx, "restart-will")) }))
                }
                @if failed && allows(Control::Override) {
                    a.button href=(crate::pages::run::override_address(&run.to_string(), task, None)) title=(t!(ctx, "override-task-will")) { (t!(ctx, "override-open")) }
                }
            }
            @if let Some(at) = one.task.finished_at { p.muted.under { (t!(ctx, "ended")) " " (ago(ctx, at)) } }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_a_path_for_each_state() {
        let cells = vec![Some(TaskState::Succeeded); 100];
        let drawn = bars(&cells, 84);
        assert_eq!(
            drawn.into_iter().collect::<Vec<_>>(),
            [("f-succeeded".into(), "M4 88h2392v16h-2392z".into())]
        );
        assert!(shapes(&cells, 84).is_empty() && marks(&cells, 84).is_empty());
        let cells = [
            Some(TaskState::Succeeded),
            None,
            Some(TaskState::Failed),
            Some(TaskState::Failed),
            Some(TaskState::Running),
            Some(TaskState::Succeeded),
        ];
        let drawn = bars(&cells, 84);
        assert_eq!(drawn["f-failed"], "M52 88h40v16h-40z");
        assert_eq!(drawn["f-succeeded"], "M4 88h16v16h-16zM124 88h16v16h-16z");
        assert_eq!(shapes(&cells, 84)["f-running"], "M103 89v14l12 -7z");
        assert_eq!(marks(&cells, 84), "M57 93l6 6m0 -6l-6 6M81 93l6 6m0 -6l-6 6");
        assert_eq!(gaps(3, 84, 24), "M20 84h8v24h-8zM44 84h8v24h-8z");
    }

    #[test]
    fn every_state_has_a_look_of_its_own() {
        let look = |state: TaskState| {
            let (mut area, mut sign) = (String::new(), String::new());
            shape(&mut area, state, 0, 0);
            mark(&mut sign, state, 0, 0);
            (fill(state), area, sign)
        };
        let mut looks: Vec<_> = TASK_STATES.into_iter().map(look).collect();
        looks.sort();
        looks.dedup();
        // Both that wait for something before them are drawn alike.
        assert_eq!(looks.len(), TASK_STATES.len() - 1);
        assert_eq!(look(TaskState::Pending), look(TaskState::Ready));
        // Without its hue, too, except that what is skipped is hatched.
        let mut shapes: Vec<_> = looks.into_iter().map(|(_, area, sign)| (area, sign)).collect();
        shapes.sort();
        shapes.dedup();
        assert_eq!(shapes.len(), TASK_STATES.len() - 2);
    }

    #[test]
    fn columns_say_when_they_were() {
        let at = |text: &str| text.parse::<Time>().unwrap();
        let now = at("2026-11-25T12:00:00Z");
        let shown = |times: &[Time]| headings(Lang::En, chrono_tz::Tz::UTC, now, times);
        assert!(shown(&[]).is_empty());
        let one = at("2026-11-24T02:00:00Z");
        assert_eq!(shown(&[one]), [(4, "start", "Nov 24 02:00".to_owned())]);
        let daily: Vec<Time> = (0..13)
            .map(|day| at("2026-11-01T02:00:00Z") + chrono::TimeDelta::days(day))
            .collect();
        let days = [(308, "end", "Nov 13".to_owned()), (164, "end", "Nov 7".to_owned())];
        assert_eq!(shown(&daily), days);
        let dense: Vec<Time> = (0..13).map(|run| one + chrono::TimeDelta::minutes(10 * run)).collect();
        let moments = [
            (308, "end", "Nov 24 04:00".to_owned()),
            (164, "end", "Nov 24 03:00".to_owned()),
        ];
        assert_eq!(shown(&dense), moments);
    }
}
