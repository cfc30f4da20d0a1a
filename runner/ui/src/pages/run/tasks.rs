//! The tasks of a run in words, with what people can do about each.

use std::collections::BTreeMap;

use heddle_api::{AttemptState, Moment, Run, RunState, TaskRun, TaskState};
use heddle_domain::run::{Control, runs_again};
use heddle_store::run::AttemptView;
use maud::{Markup, html};

use super::course::Course;
use super::view::SubRun;
use super::{overrides, why};
use crate::Ctx;
use crate::ctx::segment;
use crate::elements::{self, Button, button, failure, line, state};
use crate::words::t;

/// How many tasks have a row.
pub(super) const ROWS_MAX: usize = 400;

/// What a task that has not begun waits for: not what is settled already.
pub(super) fn waits_for<'a>(course: &Course<'a>, task: &TaskRun) -> Option<Vec<&'a str>> {
    let needs = (task.state == TaskState::Pending).then(|| course.open_needs(task));
    needs.filter(|needs| !needs.is_empty())
}

/// Whether an attempt did what it was to do.
fn succeeded(attempt: &AttemptView) -> bool {
    attempt.state == AttemptState::Succeeded && !attempt.skipped
}

/// Whether a task has items, which share a row.
pub(super) fn is_folded(task: &TaskRun) -> bool {
    task.items.as_ref().is_some_and(|items| !items.is_empty())
}

/// `9,998 of 10,000`: how many items of a map have succeeded.
pub(super) fn folded_text(task: &TaskRun) -> String {
    let counts = task.items.iter().flatten();
    let all: u64 = counts.clone().map(|(_, count)| count).sum();
    let good = counts.filter(|(state, _)| *state == TaskState::Succeeded.as_str());
    let good: u64 = good.map(|(_, count)| count).sum();
    format!(
        "{}/{}",
        crate::span::number(good as i64),
        crate::span::number(all as i64)
    )
}

/// How long the items of a map took that succeeded: half of them no longer than the first, none longer than the second.
fn spread(ctx: &Ctx, attempts: &[&AttemptView]) -> String {
    let mut spans: Vec<i64> = attempts
        .iter()
        .filter(|attempt| succeeded(attempt))
        .filter_map(|attempt| Some((attempt.finished_at? - attempt.started_at).num_milliseconds()))
        .collect();
    spans.sort_unstable();
    let (Some(middle), Some(longest)) = (spans.get(spans.len() / 2), spans.last()) else {
        return String::new();
    };
    t!(
        ctx,
        "items-spread",
        median = elements::millis(ctx, *middle),
        longest = elements::millis(ctx, *longest)
    )
}

/// How many failed items are named under their task.
const ITEMS_NAMED: usize = 20;

/// The failed items of each task.
pub(super) fn failed_items(run: &Run) -> BTreeMap<&str, Vec<&TaskRun>> {
    let mut found: BTreeMap<&str, Vec<&TaskRun>> = BTreeMap::new();
    let failed = |task: &&TaskRun| task.item.is_some() && task.state == TaskState::Failed;
    for task in run.task_runs().iter().filter(failed) {
        found.entry(task.task.as_str()).or_default().push(task);
    }
    found
}

/// The tasks as words.
pub(super) struct List<'a> {
    pub(super) ctx: &'a Ctx,
    pub(super) run: &'a Run,
    pub(super) course: &'a Course<'a>,
    pub(super) failed: BTreeMap<&'a str, Vec<&'a TaskRun>>,
    pub(super) sub_runs: &'a [SubRun],
}

impl List<'_> {
    /// The picture in words, with the buttons of each task.
    pub(super) fn shown(&self, pieces: &BTreeMap<String, Vec<&AttemptView>>) -> Markup {
        let (ctx, may) = (self.ctx, self.ctx.viewer.operates());
        let took_of = |task: &TaskRun| match pieces.get(&task.task) {
            Some(attempts) if is_folded(task) => spread(ctx, attempts),
            _ => String::new(),
        };
        let stood_of = |task: &TaskRun| {
            let ends = pieces.get(&task.task)?.iter().map(|attempt| attempt.finished_at);
            let paused = (task.state == TaskState::Paused).then(|| ends.flatten().max())?;
            paused.map(Moment::from)
        };
        html! {
            section.panel {
                h2 { (t!(ctx, "tasks")) }
                table.cards {
                    thead { tr { th { (t!(ctx, "task")) } th { (t!(ctx, "state")) } th.num { (t!(ctx, "took")) } th { (t!(ctx, "what-it-says")) } @if may { th { span.hidden { (t!(ctx, "action")) } } } } }
                    tbody { @for task in self.run.wholes().take(ROWS_MAX) { (self.row(task, stood_of(task), &took_of(task), may)) } }
                }
            }
        }
    }

    /// Whether parts of the run may run again, because it has ended.
    fn clears(&self) -> bool {
        Control::Clear.is_allowed_of(&self.run.group, self.run.state)
    }

    /// Whether the next attempt of a task may start now, while the run goes on.
    fn retries(&self, task: &TaskRun) -> bool {
        let waits = matches!(task.state, TaskState::Retrying | TaskState::Failed);
        waits && !self.run.state.is_final() && runs_again(&self.run.group)
    }

    /// Whether the state of a task run may be set by hand.
    fn sets(&self) -> bool {
        Control::Override.is_allowed_of(&self.run.group, self.run.state)
    }

    /// Where a button of a task, or of one of its items, leads.
    fn action(&self, task: &TaskRun, verb: &str) -> String {
        let item = task.item.map(|item| format!("?item={item}")).unwrap_or_default();
        format!("/runs/{}/tasks/{}/{verb}{item}", self.run.id, segment(&task.task))
    }

    /// `stood`: since when nothing of it goes on, though it has not ended.
    fn row(&self, task: &TaskRun, stood: Option<Moment>, items_took: &str, may: bool) -> Markup {
        let (ctx, run) = (self.ctx, self.run);
        let id = run.id;
        let failed = self
            .failed
            .get(task.task.as_str())
            .map(Vec::as_slice)
            .unwrap_or_default();
        // What failed is what one acts on; the rest may be, and does not ask for it.
        let kind = if task.state == TaskState::Failed {
            "small"
        } else {
            "small plain"
        };
        html! {
            tr {
                td.tight { a href={ "/runs/" (id) "/log?task=" (segment(&task.task)) } { bdi { (task.task) } } }
                td.tight.side { (state(ctx, task.state)) }
                td.num { @if let Some(from) = task.started_at { (elements::took(ctx, from, task.finished_at.or(run.finished_at).or(stood))) } }
                td.wide {
                    (why::of_task(ctx, task))
                    (self.sub_runs_of(task))
                    @if let Some(part) = task.progress.filter(|_| task.state == TaskState::Running) { progress max="1" value=(format!("{part:.3}")) aria-label=(t!(ctx, "progress-of", name = &task.task)) {} " " }
                    @if let Some(by) = &task.r#override { span.why { (overrides::said(ctx, by)) } }
                    @if let Some(note) = &task.note { span.muted { (line(note)) } }
                    @if is_folded(task) { span.row { @for (name, count) in task.items.iter().flatten() { span.row { (elements::state_of(ctx, "item", name.as_str())) (crate::span::number(*count as i64)) } } @if !items_took.is_empty() { span.muted { (items_took) } } } }
                    @if !failed.is_empty() { (self.items(failed, may)) }
                    @if let Some(needs) = waits_for(self.course, task) { span.why { (t!(ctx, "waits-for")) " " (elements::named(&needs)) } }
                }
                @if may {
                    td.tight.side.acts {
                        @if self.clears() { (button(Button { kind, confirm: Some(t!(ctx, "clear-sure")), ..Button::new(self.action(task, "clear"), t!(ctx, "clear"), t!(ctx, "clear-will")) })) " " }
                        @if self.retries(task) { (button(Button { kind: "small", ..Button::new(self.action(task, "retry"), t!(ctx, "retry-now"), t!(ctx, "retry-will")) })) }
                        @if self.sets() && !matches!(task.state, TaskState::Succeeded | TaskState::Skipped) { " " a class={ "button " (kind) } href=(overrides::address(&id.to_string(), &task.task, None)) title=(t!(ctx, "override-task-will")) { (t!(ctx, "override-open")) } }
                    }
                }
            }
        }
    }

    /// The runs that a task has started: one for each attempt. For a mapped task, only those that are running or
    /// failed.
    fn sub_runs_of(&self, task: &TaskRun) -> Markup {
        let ctx = self.ctx;
        let own = self.sub_runs.iter().filter(|sub| sub.task == task.task);
        let own: Vec<&SubRun> = own
            .filter(|sub| sub.item.is_none() || sub.state != RunState::Succeeded)
            .collect();
        html! {
            @if !own.is_empty() {
                ul.items {
                    @for sub in own.iter().rev().take(ITEMS_NAMED) {
                        li {
                            span.muted { (t!(ctx, "sub-run")) " " }
                            a href={ "/runs/" (sub.id) } { bdi { (sub.group) } @if let Some(item) = sub.item { "[" (item) "]" } @if sub.attempt > 1 { " · " (t!(ctx, "attempt-n", n = i64::from(sub.attempt))) } }
                            " " (state(ctx, sub.state))
                        }
                    }
                }
                @if own.len() > ITEMS_NAMED { p.muted { (t!(ctx, "and-more", n = own.len() - ITEMS_NAMED)) } }
            }
        }
    }

    /// Some failed items of a mapped task, with their errors, logs and buttons.
    fn items(&self, failed: &[&TaskRun], may: bool) -> Markup {
        let (ctx, id) = (self.ctx, self.run.id);
        let again = |task: &TaskRun| {
            button(Button {
                kind: "small plain",
                fields: vec![("downstream", "true".into())],
                confirm: Some(t!(ctx, "clear-item-sure")),
                ..Button::new(
                    self.action(task, "clear"),
                    t!(ctx, "clear-item"),
                    t!(ctx, "clear-item-will"),
                )
            })
        };
        html! {
            details #{ "items-" (segment(&failed[0].task)) } {
                summary { (t!(ctx, "failed-items", n = failed.len())) }
                ul.items { @for task in failed.iter().take(ITEMS_NAMED) {
                    @let index = task.item.unwrap_or_default();
                    li {
                        a href={ "/runs/" (id) "/log?task=" (segment(&task.task)) "&item=" (index) } { code { "[" (index) "]" } } " "
                        @if let Some(error) = &task.error { (failure(Some(error.kind), &error.message)) }
                        " " a href={ "/runs/" (id) "/attempts?task=" (segment(&task.task)) "&item=" (index) } { (t!(ctx, "attempts-count", n = i64::from(task.attempt))) }
                        @if may && self.clears() { " " (again(task)) }
                        @if may && self.sets() { " " a href=(overrides::address(&id.to_string(), &task.task, task.item)) title=(t!(ctx, "override-task-will")) { (t!(ctx, "override-open")) } }
                    }
                } }
                @if failed.len() > ITEMS_NAMED { p.muted { (t!(ctx, "and-more", n = failed.len() - ITEMS_NAMED)) } }
            }
        }
    }
}
