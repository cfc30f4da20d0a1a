//! The times of a run: a row for the run, one for each task, with attempts as pieces and pauses between them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use heddle_api::{Run, RunState, TaskRun, TaskState};
use heddle_domain::Time;
use heddle_store::run::AttemptView;
use maud::{Markup, html};

use super::course::Course;
use super::tasks::{List, ROWS_MAX, failed_items, folded_text, is_folded, waits_for};
use super::view::Whole;
use crate::chart::{Axis, fill};
use crate::ctx::segment;
use crate::elements;
use crate::words::t;
use crate::{Ctx, Trouble};

/// How many attempts are drawn in one row.
const PIECES_MAX: usize = 400;
/// In how many intervals of the axis the running items of a map are counted.
const STRETCHES: usize = 180;
/// Positions on the axis are in hundredths of its length, so that letters and lines have the same size on each screen.
const LENGTH: f64 = 100.0;
/// The minimum length of a piece, so that it can be seen.
const PIECE_MIN: f64 = 0.4;
/// The minimum length of a piece that has room for the sign of its end.
const SIGN_MIN: f64 = 2.2;
const ROW: f64 = 24.0;
/// How often the picture of a run that goes on is drawn again, though nothing has happened.
const PACE_MIN: Duration = Duration::from_secs(1);
const PACE_MAX: Duration = Duration::from_secs(60);

pub(super) async fn inside(ctx: &Ctx, whole: &Whole) -> Result<Markup, Trouble> {
    let (run, detail) = (&whole.run, whole.detail(ctx).await?);
    let revision = ctx.ui.engine.catalog().revision(detail.run.revision_id).await?;
    let plan = &revision.plan;
    let mut pieces: BTreeMap<String, Vec<&AttemptView>> = BTreeMap::new();
    for attempt in &detail.attempts {
        if let Some(task) = plan.tasks.get(attempt.key.task as usize) {
            pieces.entry(task.name.to_string()).or_default().push(attempt);
        }
    }
    if run.finished_at.is_none() {
        ctx.goes_on_each(pace(begins(run), ctx.now));
    }
    let course = Course::of(run, plan);
    let list = List {
        ctx,
        run,
        course: &course,
        failed: failed_items(run),
        sub_runs: whole.sub_runs(ctx).await?,
    };
    Ok(html! {
        (ctx.live("timeline", picture(ctx, run, &pieces, &course)))
        (ctx.live("tasks", list.shown(&pieces)))
    })
}

/// Where the axis begins.
fn begins(run: &Run) -> Time {
    run.started_at.unwrap_or(run.created_at).0
}

/// How often the picture of a run that goes on is drawn again, though nothing has happened: its end is never further behind
/// than a hundredth of its length, which nobody sees, or than a second, or, for a long run, a minute.
fn pace(from: Time, now: Time) -> Duration {
    let length = (now - from).to_std().unwrap_or_default();
    (length / 100).clamp(PACE_MIN, PACE_MAX)
}

/// A round step of an axis: five or so on it.
fn step(millis: i64) -> i64 {
    const STEPS: [i64; 24] = [
        1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 30_000, 60_000, 120_000, 300_000,
        600_000, 1_800_000, 3_600_000, 10_800_000, 43_200_000, 86_400_000,
    ];
    STEPS.into_iter().find(|step| millis / step <= 7).unwrap_or(millis / 6)
}

/// A position or a length on the axis, as SVG writes it.
fn part(hundredths: f64) -> String {
    format!("{hundredths:.2}%")
}

/// The anchor of the words at a position of the axis: at both ends they stay inside, on a phone too.
fn anchor(position: f64) -> &'static str {
    const EDGE: f64 = 6.0;
    if position < EDGE {
        "start"
    } else if position > LENGTH - EDGE {
        "end"
    } else {
        "middle"
    }
}

/// How what was under way looks, in the order of the legend; each is called like its state.
const LOOKS: [&str; 7] = [
    "f-succeeded",
    "f-running",
    "f-failed",
    "f-skipped",
    "f-cancelled",
    "f-paused",
    "f-waiting",
];

/// Of these, those that a run and its attempts have.
fn looks(run: RunState, pieces: &BTreeMap<String, Vec<&AttemptView>>) -> Vec<&'static str> {
    let mut found: BTreeSet<String> = pieces.values().flatten().map(|attempt| fill_of(attempt)).collect();
    found.insert(fill(run));
    LOOKS.into_iter().filter(|look| found.contains(*look)).collect()
}

/// What all rows of a timeline are drawn with.
struct Rows<'a> {
    ctx: &'a Ctx,
    run: &'a Run,
    course: &'a Course<'a>,
    critical: Vec<String>,
    axis: Axis,
}

fn picture(ctx: &Ctx, run: &Run, pieces: &BTreeMap<String, Vec<&AttemptView>>, course: &Course<'_>) -> Markup {
    let from = begins(run);
    // Rounded to a second, so that the picture of a running run does not change with each millisecond.
    let now = Time::from_timestamp(ctx.now.timestamp() + 1, 0).unwrap_or(ctx.now);
    let to = run
        .finished_at
        .map_or(now, |at| at.0)
        .max(from + chrono::TimeDelta::milliseconds(1));
    let rows = Rows {
        ctx,
        run,
        course,
        critical: course.critical(),
        axis: Axis {
            from,
            to,
            width: LENGTH,
        },
    };
    let wholes: Vec<&TaskRun> = run.wholes().collect();
    let length = (to - from).num_milliseconds();
    let each = step(length);
    html! {
        section.panel aria-label=(t!(ctx, "tab-timeline")) {
            div.timeline role="group" aria-label=(t!(ctx, "timeline-label", tasks = wholes.len())) {
                svg.picture.ruler aria-hidden="true" {
                    @for tick in 0..=(length / each) {
                        @let position = (tick * each) as f64 / length as f64 * LENGTH;
                        @let x = part(position);
                        line.axis x1=(x) x2=(x) y1="18" y2="100%" {}
                        text x=(x) y="12" text-anchor=(anchor(position)) { (elements::millis(ctx, tick * each)) }
                    }
                }
                div.gantt {
                    strong { (t!(ctx, "run")) }
                    svg.picture aria-hidden="true" { rect class={ (fill(run.state)) " whole" } x="0" y="6" width="100%" height="12" rx="3" {} }
                    span.told { @if let Some(end) = run.finished_at { (elements::millis(ctx, (end.0 - run.at_work_since().map_or(from, |at| at.0)).num_milliseconds())) } }
                }
                @for task in wholes.iter().take(ROWS_MAX) {
                    (rows.row(task, pieces.get(&task.task).map(Vec::as_slice).unwrap_or_default()))
                }
            }
            @if wholes.len() > ROWS_MAX { p.muted { (t!(ctx, "more-rows", n = wholes.len() - ROWS_MAX)) } }
            ul.legend.timeline-legend {
                li { svg.key width="16" height="10" aria-hidden="true" { rect class="f-ready" x="0" y="3" width="16" height="4" {} } " " (t!(ctx, "legend-waits")) }
                @for look in looks(run.state, pieces) {
                    li { svg.key.picture width="16" height="10" aria-hidden="true" { rect class=(look) x="0" y="0" width="16" height="10" rx="2" {} } " " (t!(ctx, &look.replace("f-", "state-"))) }
                }
                li { svg.key.picture width="16" height="10" aria-hidden="true" { line.pause x1="0" x2="16" y1="5" y2="5" {} } " " (t!(ctx, "legend-pause")) }
                li { svg.key.picture width="16" height="10" aria-hidden="true" { rect.critical-bar x="1" y="1" width="14" height="8" rx="2" {} } " " (t!(ctx, "legend-critical")) }
            }
        }
    }
}

impl Rows<'_> {
    /// The row of a task: its name, its attempts on the axis, and its state in words.
    fn row(&self, task: &TaskRun, attempts: &[&AttemptView]) -> Markup {
        let mut own: Vec<&&AttemptView> = attempts.iter().collect();
        own.sort_by_key(|attempt| attempt.started_at);
        let said = self.said(task, !own.is_empty());
        html! {
            div.gantt {
                a href={ "/runs/" (self.run.id) "/log?task=" (segment(&task.task)) } title=(task.task) { bdi { (task.task) } }
                svg.picture aria-hidden="true" { (self.bars(task, &own)) }
                span.told title=(said) { (said) }
            }
        }
    }

    /// The duration of a task; or why it has not begun.
    fn said(&self, task: &TaskRun, begun: bool) -> String {
        let ctx = self.ctx;
        let mut words = Vec::new();
        if begun {
            if let (Some(from), Some(to)) = (task.started_at, task.finished_at) {
                words.push(elements::millis(ctx, (to.0 - from.0).num_milliseconds()));
            }
            if is_folded(task) {
                words.push(folded_text(task));
            } else if task.attempt > 1 {
                words.push(t!(ctx, "attempts-count", n = i64::from(task.attempt)));
            }
        } else {
            match waits_for(self.course, task) {
                // There is little room: what it waits for says that it does.
                Some(needs) => words.push(format!("{} {}", t!(ctx, "waits-for"), elements::named(&needs))),
                None => words.push(elements::state_word(ctx, task.state)),
            }
        }
        words.join(" · ")
    }

    /// Waiting, attempts and the pauses between them, earliest first.
    fn bars(&self, task: &TaskRun, own: &[&&AttemptView]) -> Markup {
        let axis = &self.axis;
        let folded = is_folded(task);
        let waited = axis.x(self.course.ready_at(task).unwrap_or(axis.from));
        let Some(first) = own.first().map(|attempt| axis.x(attempt.started_at)) else {
            let waits = task.state == TaskState::Ready && self.run.finished_at.is_none();
            return html! { @if waits { rect.wait x=(part(waited)) y="10" width=(part((LENGTH - waited).max(PIECE_MIN))) height="4" {} } };
        };
        let end = own.iter().map(|attempt| attempt.finished_at.unwrap_or(axis.to)).max();
        let end = end.map_or(LENGTH, |end| axis.x(end));
        html! {
            @if first - waited > PIECE_MIN { rect.wait x=(part(waited)) y="10" width=(part(first - waited)) height="4" {} }
            @if folded {
                (distribution(own, axis))
            } @else {
                @for pair in own.windows(2) {
                    @if let Some(ended) = pair[0].finished_at { line.pause x1=(part(axis.x(ended))) x2=(part(axis.x(pair[1].started_at))) y1="12" y2="12" {} }
                }
                @for attempt in own.iter().take(PIECES_MAX) { (piece(attempt, axis)) }
            }
            @if task.state == TaskState::Retrying { line.pause x1=(part(end)) x2="100%" y1="12" y2="12" {} }
            @if self.critical.contains(&task.task) {
                rect.critical-bar x=(part(first)) y="3.5" width=(part((end - first).max(PIECE_MIN))) height="17" rx="3" {}
            }
        }
    }
}

/// The class of an attempt's area. An attempt that had nothing to do is drawn as skipped.
fn fill_of(attempt: &AttemptView) -> String {
    if attempt.skipped {
        fill(TaskState::Skipped)
    } else {
        fill(attempt.state)
    }
}

/// An attempt on the axis.
fn piece(attempt: &AttemptView, axis: &Axis) -> Markup {
    let x = axis.x(attempt.started_at);
    let width = (axis.x(attempt.finished_at.unwrap_or(axis.to)) - x).max(PIECE_MIN);
    // So an attempt that began at the very end can be seen too.
    let x = x.min(LENGTH - PIECE_MIN);
    let class = fill_of(attempt);
    html! {
        rect class=(class) x=(part(x)) y="5" width=(part(width)) height="14" rx="2" {}
        @if width > SIGN_MIN && class == "f-failed" {
            svg x=(part(x + width / 2.0)) overflow="visible" { path.cell-mark d="M-2.5 9.5l5 5m0 -5l-5 5" {} }
        }
    }
}

/// How many of the wanted attempts of a mapped task were running in each interval of the axis.
fn under_way(attempts: &[&&AttemptView], axis: &Axis, wanted: impl Fn(&AttemptView) -> bool) -> Vec<i64> {
    let stretch = |at: Time| ((axis.x(at) / axis.width * STRETCHES as f64) as usize).min(STRETCHES - 1);
    let mut changes = vec![0_i64; STRETCHES + 1];
    for attempt in attempts.iter().filter(|attempt| wanted(attempt)) {
        changes[stretch(attempt.started_at)] += 1;
        changes[stretch(attempt.finished_at.unwrap_or(axis.to)) + 1] -= 1;
    }
    let mut open = 0;
    changes
        .into_iter()
        .take(STRETCHES)
        .map(|change| {
            open += change;
            open
        })
        .collect()
}

/// In which order the attempts of a mapped task are stacked, from the bottom: failed ones are seen first.
const STACK: [&str; 5] = ["f-failed", "f-running", "f-cancelled", "f-skipped", "f-succeeded"];

/// The bands in the row of a mapped task, the highest first, because each covers what is below it.
fn bands(attempts: &[&&AttemptView], axis: &Axis) -> Vec<(&'static str, Vec<i64>)> {
    let mut below = vec![0; STRETCHES];
    let mut bands = Vec::with_capacity(STACK.len());
    for class in STACK {
        let own = under_way(attempts, axis, |attempt| fill_of(attempt) == class);
        if own.iter().any(|count| *count > 0) {
            below.iter_mut().zip(own).for_each(|(below, own)| *below += own);
            bands.push((class, below.clone()));
        }
    }
    bands.reverse();
    bands
}

/// The items of a mapped task in one row: how many were running at each time, by how they ended.
fn distribution(attempts: &[&&AttemptView], axis: &Axis) -> Markup {
    const HEIGHT: f64 = 14.0;
    let bands = bands(attempts, axis);
    let most = bands
        .first()
        .and_then(|band| band.1.iter().copied().max())
        .unwrap_or(1)
        .max(1) as f64;
    let path = |counts: &[i64]| {
        let stretches = counts.iter().enumerate().filter(|(_, count)| **count > 0);
        stretches.fold(String::new(), |path, (x, count)| {
            let height = (*count as f64 / most * HEIGHT).max(2.0);
            path + &format!("M{x} 19v-{height:.1}h1v{height:.1}z")
        })
    };
    html! {
        svg width="100%" height=(ROW) viewBox=(format!("0 0 {STRETCHES} {ROW}")) preserveAspectRatio="none" {
            @for (class, counts) in &bands { path class=(class) d=(path(counts)) {} }
        }
    }
}

#[cfg(test)]
mod tests {
    use heddle_api::AttemptState;

    use super::super::view::failed_attempt;
    use super::*;

    fn attempt(state: AttemptState, skipped: bool, from: i64, to: Option<i64>) -> AttemptView {
        let at = |second: i64| Time::from_timestamp(second, 0).unwrap();
        AttemptView {
            state,
            skipped,
            started_at: at(from),
            finished_at: to.map(at),
            ..failed_attempt()
        }
    }

    #[test]
    fn a_run_that_goes_on_is_drawn_again_from_time_to_time() {
        let at = |second: i64| Time::from_timestamp(second, 0).unwrap();
        for (length, seconds) in [(0, 1), (15, 1), (600, 6), (3_600, 36), (86_400, 60)] {
            assert_eq!(pace(at(0), at(length)), Duration::from_secs(seconds), "{length} s");
        }
        assert_eq!(pace(at(9), at(0)), PACE_MIN, "another node's clock");
    }

    #[test]
    fn only_what_succeeded_is_green() {
        assert_eq!(
            fill_of(&attempt(AttemptState::Succeeded, false, 0, Some(1))),
            "f-succeeded"
        );
        assert_eq!(
            fill_of(&attempt(AttemptState::Succeeded, true, 0, Some(1))),
            "f-skipped"
        );
        assert_eq!(fill_of(&attempt(AttemptState::Lost, false, 0, Some(1))), "f-failed");
        assert_eq!(fill_of(&attempt(AttemptState::Running, false, 0, None)), "f-running");
    }

    #[test]
    fn the_legend_tells_of_what_is_there() {
        let all = [
            attempt(AttemptState::Lost, false, 0, Some(1)),
            attempt(AttemptState::Succeeded, true, 1, Some(2)),
        ];
        let pieces = BTreeMap::from([("a".to_owned(), all.iter().collect())]);
        assert_eq!(looks(RunState::Paused, &pieces), ["f-failed", "f-skipped", "f-paused"]);
        for look in LOOKS {
            assert!(
                look.strip_prefix("f-")
                    .is_some_and(|state| state.parse::<TaskState>().is_ok() || state == "waiting")
            );
        }
    }

    #[test]
    fn words_stay_within_the_axis() {
        assert_eq!([0.0, 50.0, 99.0].map(anchor), ["start", "middle", "end"]);
    }

    #[test]
    fn the_bands_of_a_map_are_stacked() {
        let axis = Axis {
            from: Time::from_timestamp(0, 0).unwrap(),
            to: Time::from_timestamp(180, 0).unwrap(),
            width: LENGTH,
        };
        let all = [
            attempt(AttemptState::Running, false, 0, None),
            attempt(AttemptState::Running, false, 0, None),
            attempt(AttemptState::Lost, false, 0, Some(10)),
        ];
        let views: Vec<&AttemptView> = all.iter().collect();
        let views: Vec<&&AttemptView> = views.iter().collect();
        let found = bands(&views, &axis);
        let at_first: Vec<(&str, i64)> = found.iter().map(|(class, counts)| (*class, counts[0])).collect();
        // Nothing of it has succeeded; what was lost is below what goes on.
        assert_eq!(at_first, [("f-running", 3), ("f-failed", 1)]);
        assert_eq!(found[0].1[100], 2);
    }

    #[test]
    fn an_axis_has_few_round_steps() {
        for millis in [1, 7, 99, 12_345, 240_000, 90_000_000, 10_000_000_000] {
            let each = step(millis);
            assert!(millis / each <= 8, "{millis} by {each}");
        }
    }
}
