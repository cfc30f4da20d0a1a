//! Why a run is in its state, in sentences: what it and its task runs wait for, what holds them up, and who stopped it.

use std::collections::BTreeMap;

use heddle_api::{
    AuditEntry, Failure, List, Pool, Run, RunState, RunWait, TaskRun, TaskState, TaskWait, TaskWaitReason,
};
use heddle_domain::Time;
use heddle_store::pages::pool::PoolLine;
use maud::{Markup, html};

use super::view::Whole;
use crate::ctx::segment;
use crate::elements::{self, NAMED, ago, failure, group_link, named, number, time};
use crate::pages::pools;
use crate::words::{Arg, t};
use crate::{Ctx, Trouble};

/// Runs, holders and instants that a sentence names.
const FEW: usize = 3;
/// How many active runs of a group are counted.
const ACTIVE_MAX: usize = 100;

/// All sentences, and the last action of a person on the run.
pub(super) async fn sentences(ctx: &Ctx, whole: &Whole) -> Result<Markup, Trouble> {
    let run = &whole.run;
    let deed = deed(run.state, whole.deeds(ctx).await);
    let why = match run.state {
        RunState::Waiting => waits(ctx, whole).await?,
        RunState::Running => why_stalled(ctx, whole).await?,
        RunState::Paused => html! { p.why { (t!(ctx, "why-paused")) } },
        RunState::Failed => failed(ctx, run),
        RunState::Cancelled => {
            html! { @if let Some(Failure { message, .. }) = &run.error { p.why { (elements::linked(message)) } } }
        }
        RunState::Succeeded => html! {},
    };
    Ok(html! { (why) @if let Some(deed) = deed { (done(ctx, deed)) } })
}

/// The action of a person that brought the run into its state. The actions come newest first.
fn deed(state: RunState, deeds: &[AuditEntry]) -> Option<&AuditEntry> {
    let sought: &[&str] = match state {
        RunState::Cancelled => &["cancel"],
        RunState::Paused => &["pause"],
        _ => &["restart", "clear", "retry"],
    };
    deeds.iter().find(|one| sought.contains(&one.action.as_str()))
}

/// Who did it and when, and the reason if one was given.
fn done(ctx: &Ctx, deed: &AuditEntry) -> Markup {
    let after = deed.after.as_ref();
    let reason = after.and_then(|after| after["reason"].as_str()).unwrap_or_default();
    html! {
        p.why {
            (t!(ctx, &format!("done-{}", deed.action))) " " bdi { (deed.actor) } " · " (ago(ctx, deed.at))
            @if !reason.is_empty() { " · " bdi { (reason) } }
        }
    }
}

fn failed(ctx: &Ctx, run: &Run) -> Markup {
    let in_state = |state: TaskState| run.wholes().filter(move |task| task.state == state);
    let failed: Vec<&str> = in_state(TaskState::Failed).map(|task| task.task.as_str()).collect();
    let broken = in_state(TaskState::UpstreamFailed).count();
    let is_in_error = is_told(run.error.as_ref(), &failed);
    html! {
        @if let Some(Failure { message, .. }) = &run.error { p.error { (elements::linked(&elements::line(message))) } }
        @if is_in_error {
            @if broken > 0 { p.why { (t!(ctx, "why-broken", broken = broken)) } }
        } @else if !failed.is_empty() { p.why { (t!(ctx, "why-failed", tasks = named(&failed), broken = broken)) } }
    }
}

/// Whether the error of a run names the only task that failed: the task, or one of its items.
fn is_told(error: Option<&Failure>, failed: &[&str]) -> bool {
    let named = error.and_then(|error| error.task.as_deref());
    matches!(failed, [one] if named == Some(*one))
}

/// What a run waits for that has not begun: other groups, or its turn.
async fn waits(ctx: &Ctx, whole: &Whole) -> Result<Markup, Trouble> {
    let run = &whole.run;
    let waits = Waits::of(&run.waiting_for);
    let before = match waits.gate {
        true => before_it(ctx, whole).await?,
        false => html! {},
    };
    Ok(html! {
        @for (group, times) in &waits.upstreams { p.why { (upstream(ctx, group, times)) } }
        (before)
        @if waits.unknown { p.why { (t!(ctx, "waits-unknown")) } }
    })
}

/// The same where there is room for a line, without who is before it.
pub(in crate::pages) fn waits_for_what(ctx: &Ctx, waits: &[RunWait]) -> Markup {
    let waits = Waits::of(waits);
    html! {
        span.why {
            @for (index, (group, times)) in waits.upstreams.iter().enumerate() {
                @if index > 0 { " · " }
                (upstream(ctx, group, times))
            }
            @if waits.gate { (t!(ctx, "waits-turn")) }
            @if waits.unknown { (t!(ctx, "waits-unknown")) }
        }
    }
}

/// What a run waits for, one sentence for each group and each other kind.
#[derive(Debug, Default, PartialEq)]
struct Waits<'r> {
    /// By group: the instants that have not succeeded, in their order.
    upstreams: BTreeMap<&'r str, Vec<Time>>,
    /// It waits at the gate of its group.
    gate: bool,
    /// A node of a newer version says more.
    unknown: bool,
}

impl<'r> Waits<'r> {
    fn of(waits: &'r [RunWait]) -> Self {
        let mut found = Self::default();
        for wait in waits {
            match wait {
                RunWait::Gate => found.gate = true,
                RunWait::Upstream { group, instant, .. } => {
                    found.upstreams.entry(group).or_default().push(*instant);
                }
                RunWait::Unknown(_) => found.unknown = true,
            }
        }
        for times in found.upstreams.values_mut() {
            times.sort_unstable();
        }
        found
    }
}

/// Another group, and its instants that have not succeeded.
fn upstream(ctx: &Ctx, group: &str, times: &[Time]) -> Markup {
    html! {
        (t!(ctx, "waits-for")) " " (group_link(group))
        @match times {
            [] => {},
            [one] => { " · " (time(ctx, *one)) },
            [first, .., last] => { " · " (t!(ctx, "instants-count", n = times.len())) " · " (time(ctx, *first)) " – " (time(ctx, *last)) },
        }
    }
}

/// The runs that come before it.
async fn before_it(ctx: &Ctx, whole: &Whole) -> Result<Markup, Trouble> {
    let run = &whole.run;
    let target = format!(
        "/v1/runs?group={}&state=running&state=paused&limit={}",
        segment(&run.group),
        ACTIVE_MAX + 1
    );
    let active: List<Run> = ctx.get(&target).await?;
    // A run that was paused while it waited has not begun.
    let active: Vec<&Run> = active.items.iter().filter(|one| one.waiting_for.is_empty()).collect();
    let bound = whole.revision(ctx).await?.plan.spec.max_active_runs;
    let more = active.len().saturating_sub(FEW);
    Ok(html! {
        p.why {
            @if active.is_empty() { (t!(ctx, "waits-turn")) }
            @else if let Some(bound) = bound { (t!(ctx, "waits-turn-of", n = active.len(), all = i64::from(bound))) }
            @else { (t!(ctx, "waits-turn-behind", n = active.len())) }
            @for (index, one) in active.iter().take(FEW).enumerate() {
                @if index == 0 { (ctx.lang.colon()) } @else { (ctx.lang.comma()) }
                a href={ "/runs/" (one.id) } { (time(ctx, one.logical_time)) }
            }
            @if more > 0 { " " (t!(ctx, "and-more", n = more)) }
        }
    })
}

/// Why task runs of one task are held up: all of them that wait for the same.
#[derive(Debug, PartialEq)]
struct Stall<'r> {
    task: &'r str,
    reason: Reason<'r>,
    /// How many of its items; none: the task is not mapped.
    items: usize,
    /// The earliest time at which one of them may go on.
    until: Option<Time>,
}

#[derive(Debug, PartialEq)]
enum Reason<'r> {
    /// It waits for room on a node.
    Node,
    /// An item waits, because the task runs only some of its items at a time.
    Concurrency,
    /// The instant of its next attempt, after a failure.
    Retry,
    /// It waits for a worker, a queue or slots.
    Wait(&'r TaskWait),
}

impl Reason<'_> {
    fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Wait(one), Self::Wait(other)) => {
                (one.reason, &one.queue, &one.slots) == (other.reason, &other.queue, &other.slots)
            }
            _ => self == other,
        }
    }
}

/// What holds a task run up, and until when.
fn reason(task: &TaskRun) -> Option<(Reason<'_>, Option<Time>)> {
    match (task.state, &task.waiting_for) {
        (TaskState::Ready, Some(wait)) => Some((Reason::Wait(wait), wait.until.map(|at| at.0))),
        (TaskState::Ready, None) => Some((Reason::Node, None)),
        (TaskState::Retrying, _) => Some((Reason::Retry, task.next_attempt_at.map(|at| at.0))),
        // The items of a mapped task are created when its dependencies have ended.
        (TaskState::Pending, _) if task.item.is_some() => Some((Reason::Concurrency, None)),
        _ => None,
    }
}

/// Why task runs are held up, in the order of the graph. For a mapped task, its items say why.
fn stalls(tasks: &[TaskRun]) -> Vec<Stall<'_>> {
    let mut found: Vec<Stall<'_>> = Vec::new();
    let single = |task: &&TaskRun| task.items.as_ref().is_none_or(BTreeMap::is_empty);
    for task in tasks.iter().filter(single) {
        let Some((reason, until)) = reason(task) else { continue };
        let items = usize::from(task.item.is_some());
        let mut own = found.iter_mut().rev().take_while(|stall| stall.task == task.task);
        match own.find(|stall| stall.reason.is_like(&reason)) {
            Some(stall) => {
                stall.items += items;
                stall.until = stall.until.into_iter().chain(until).min();
            }
            None => found.push(Stall {
                task: &task.task,
                reason,
                items,
                until,
            }),
        }
    }
    found
}

/// The tasks that are held up for a reason.
fn of<'r>(stalls: &[Stall<'r>], wanted: &Reason<'_>) -> Vec<&'r str> {
    let those = stalls.iter().filter(|stall| stall.reason == *wanted);
    those.map(|stall| stall.task).collect()
}

/// What holds up a run that has begun.
async fn why_stalled(ctx: &Ctx, whole: &Whole) -> Result<Markup, Trouble> {
    let stalls = stalls(whole.run.task_runs());
    let (retrying, queued) = (of(&stalls, &Reason::Retry), of(&stalls, &Reason::Node));
    let next = stalls.iter().filter(|stall| stall.reason == Reason::Retry);
    let next = next.filter_map(|stall| stall.until).min();
    let held = held(ctx, &stalls).await?;
    let mut said = Vec::new();
    for stall in &stalls {
        said.extend(match stall.reason {
            Reason::Wait(wait) => Some(html! { (who(ctx, stall)) (waits_for(ctx, wait, stall.until, &held)) }),
            Reason::Concurrency => {
                let at_a_time = concurrency(ctx, whole, stall.task).await?;
                Some(
                    html! { (who(ctx, stall)) (t!(ctx, "waits-items", n = number(stall.items as i64), at_a_time = at_a_time)) },
                )
            }
            Reason::Node | Reason::Retry => None,
        });
    }
    let subs = whole.sub_runs(ctx).await?;
    let subs: Vec<_> = subs.iter().filter(|sub| !sub.state.is_final()).collect();
    Ok(html! {
        @if !retrying.is_empty() {
            p.why { (t!(ctx, "why-retrying", tasks = named(&retrying))) @if let Some(at) = next { " · " (t!(ctx, "next-try")) " " (ago(ctx, at)) } }
        }
        @for sub in subs.iter().take(NAMED) {
            p.why { bdi { (sub.task) } @if let Some(item) = sub.item { "[" (item) "]" } " " (t!(ctx, "waits-sub-run")) " " a href={ "/runs/" (sub.id) } { bdi { (sub.group) } } }
        }
        @for sentence in said.iter().take(NAMED) { p.why { (sentence) } }
        @if said.len() > NAMED { p.why { (t!(ctx, "and-more", n = said.len() - NAMED)) } }
        @if !queued.is_empty() { p.why { (t!(ctx, "why-ready", tasks = named(&queued))) } }
    })
}

/// The task that a sentence is about, and how many items of it.
fn who(ctx: &Ctx, stall: &Stall<'_>) -> Markup {
    html! {
        bdi { (stall.task) }
        @if stall.reason == Reason::Concurrency { (ctx.lang.colon()) }
        @else { @if stall.items > 0 { " (" (t!(ctx, "items-count", n = stall.items)) ")" } " " }
    }
}

/// How many items of a mapped task may run at the same time.
async fn concurrency(ctx: &Ctx, whole: &Whole, task: &str) -> Result<i64, Trouble> {
    let revision = whole.revision(ctx).await?;
    let task = revision.plan.tasks.iter().find(|one| one.name.as_str() == task);
    Ok(task.map_or(0, |task| i64::from(task.concurrency)))
}

/// How many slots of a pool a task run needs.
fn needs(wait: &TaskWait, pool: &str) -> u32 {
    let slots = wait.slots.as_ref().and_then(|slots| slots.get(pool));
    slots.copied().unwrap_or(1)
}

fn waits_for(ctx: &Ctx, wait: &TaskWait, until: Option<Time>, held: &BTreeMap<String, Held>) -> Markup {
    let queue =
        html! { @if let Some(queue) = &wait.queue { a href={ "/queues/" (segment(queue)) } { bdi { (queue) } } } };
    let until = html! { @if let Some(at) = until { " · " (ago(ctx, at)) } };
    let pools = wait.pools.as_deref().unwrap_or_default();
    html! {
        @match wait.reason {
            TaskWaitReason::Worker => { (t!(ctx, "waits-worker")) " " (queue) },
            TaskWaitReason::QueuePaused => { (t!(ctx, "waits-queue-paused")) " " (queue) },
            TaskWaitReason::RateLimit => { (t!(ctx, "waits-rate-limit")) " " (queue) (until) },
            TaskWaitReason::Pool => {
                @for (index, pool) in pools.iter().enumerate() {
                    @if index > 0 { " · " }
                    (t!(ctx, "waits-slots", n = i64::from(needs(wait, pool)))) " " a href="/system/pools" { bdi { (pool) } }
                    @if let Some(held) = held.get(pool).filter(|held| !held.by.is_empty()) {
                        " (" (t!(ctx, "slots-held", n = Arg::at_least(held.held, held.is_cut), all = held.slots)) " "
                        @for (index, one) in held.by.iter().enumerate() { @if index > 0 { ", " } (one) }
                        @if held.more { ", …" }
                        ")"
                    }
                }
            }
        }
    }
}

/// Who holds the slots of a pool, as far as that is known: holders are read up to a maximum, of all pools together.
#[derive(Default)]
struct Held {
    slots: i64,
    held: i64,
    by: Vec<Markup>,
    more: bool,
    /// Not all of its holders were read.
    is_cut: bool,
}

impl Held {
    /// Takes note of the last pool of which holders were read, if there may be more: it and those behind it may have more.
    fn cut_at(&mut self, name: &str, last: Option<&str>) {
        self.is_cut = last.is_some_and(|last| name >= last);
        self.more |= self.is_cut;
    }
}

/// The task runs that hold the needed slots.
async fn held(ctx: &Ctx, stalls: &[Stall<'_>]) -> Result<BTreeMap<String, Held>, Trouble> {
    let pools = stalls.iter().filter_map(|stall| match stall.reason {
        Reason::Wait(wait) => wait.pools.as_ref(),
        _ => None,
    });
    let mut all: BTreeMap<String, Held> = pools.flatten().map(|pool| (pool.clone(), Held::default())).collect();
    if all.is_empty() {
        return Ok(all);
    }
    for (name, held) in &mut all {
        // A deleted pool has no slots.
        let pool: Option<Pool> = ctx.get(&format!("/v1/pools/{}", segment(name))).await.ok();
        held.slots = pool.map_or(0, |pool| i64::from(pool.slots));
    }
    let lines = ctx.store().page_pool_holds(pools::HOLDS_MAX).await?;
    for line in &lines {
        let Some(held) = all.get_mut(&line.pool) else { continue };
        held.held += line.slots;
        if held.by.len() < FEW {
            held.by.push(holder(ctx, line).await?);
        } else {
            held.more = true;
        }
    }
    let last = pools::cut(&lines);
    for (name, held) in &mut all {
        held.cut_at(name, last);
    }
    Ok(all)
}

/// A task run that holds slots, and its run. The logical time distinguishes two runs of a group.
async fn holder(ctx: &Ctx, one: &PoolLine) -> Result<Markup, Trouble> {
    let revision = ctx.ui.engine.catalog().revision(one.revision_id).await?;
    let task = revision.plan.tasks.get(one.task as usize);
    let name = task.map(|task| task.name.to_string()).unwrap_or_default();
    Ok(html! {
        a href={ "/runs/" (one.run) } { bdi { (one.group_name) } " · " bdi { (name) } @if one.item >= 0 { "[" (one.item) "]" } " · " (time(ctx, one.logical_time)) }
    })
}

/// What a task waits for, or its error, in one line of a list.
pub(super) fn of_task(ctx: &Ctx, task: &TaskRun) -> Markup {
    html! {
        @if let Some(error) = &task.error { (failure(Some(error.kind), &error.message)) }
        @if task.state == TaskState::Retrying { @if let Some(at) = task.next_attempt_at { " " span.why { (t!(ctx, "next-try")) " " (ago(ctx, at)) } } }
        @if let Some(wait) = &task.waiting_for { " " span.why { (waits_for(ctx, wait, wait.until.map(|at| at.0), &BTreeMap::new())) } }
    }
}

#[cfg(test)]
mod tests {
    use heddle_domain::spec::Need;
    use serde_json::{Value, json};

    use super::*;

    fn task(task: &str, item: Option<u32>, state: &str, wait: Value) -> TaskRun {
        let value = json!({"task": task, "item": item, "state": state, "attempt": 1, "waiting_for": wait});
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn items_that_wait_for_the_same_have_one_sentence() {
        let pool = json!({"reason": "pool", "pools": ["db"]});
        let mut each = task("each", None, "running", Value::Null);
        each.items = Some(BTreeMap::from([("ready".into(), 3)]));
        let tasks = [
            task("first", None, "succeeded", Value::Null),
            each,
            task("each", Some(0), "ready", pool.clone()),
            task("each", Some(1), "ready", pool.clone()),
            task("each", Some(2), "pending", Value::Null),
            task("each", Some(3), "pending", Value::Null),
            task("each", Some(4), "running", Value::Null),
            task("stamp", None, "ready", json!({"reason": "worker", "queue": "people"})),
            task("plain", None, "ready", Value::Null),
            // It waits for its dependencies; its row says that already.
            task("last", None, "pending", Value::Null),
        ];
        let said: Vec<(&str, usize)> = stalls(&tasks).iter().map(|stall| (stall.task, stall.items)).collect();
        assert_eq!(said, [("each", 2), ("each", 2), ("stamp", 0), ("plain", 0)]);
        assert_eq!(stalls(&tasks)[1].reason, Reason::Concurrency);
        assert_eq!(stalls(&tasks)[3].reason, Reason::Node);
    }

    #[test]
    fn what_the_error_says_is_not_said_again() {
        let error = |message: &str, task: Option<&str>, item: Option<u32>| -> Failure {
            serde_json::from_value(json!({
                "kind": "failed", "message": message, "trace": null, "task": task, "item": item,
            }))
            .unwrap()
        };
        let whole = error("task parse: failed: no", Some("parse"), None);
        assert!(is_told(Some(&whole), &["parse"]));
        assert!(!is_told(Some(&whole), &["parse-all"]) && !is_told(Some(&whole), &["parse", "load"]));
        assert!(!is_told(Some(&whole), &[]) && !is_told(None, &["parse"]));
        let item = error("task each item 3: trap: no", Some("each"), Some(3));
        assert!(is_told(Some(&item), &["each"]));
        // The text decides nothing.
        let late = error("task parse: the deadline passed", None, None);
        assert!(!is_told(Some(&late), &["parse"]));
    }

    /// Holders are read in the order of their pools, which is bytewise.
    #[test]
    fn slots_whose_holders_were_not_read_are_not_free() {
        for (name, last, is_cut) in [
            ("b", None, false),
            ("a", Some("b"), false),
            ("b", Some("b"), true),
            ("c", Some("b"), true),
        ] {
            let mut held = Held::default();
            held.cut_at(name, last);
            assert_eq!((held.is_cut, held.more), (is_cut, is_cut), "{name} {last:?}");
        }
    }

    #[test]
    fn a_task_says_how_many_slots_it_needs() {
        let wait: TaskWait = serde_json::from_value(
            json!({"reason": "pool", "pools": ["db", "gpu"], "slots": {"db": 2, "gpu": 1}, "until": null}),
        )
        .unwrap();
        assert_eq!(["db", "gpu"].map(|pool| needs(&wait, pool)), [2, 1]);
    }

    #[test]
    fn the_next_try_is_the_earliest_of_the_items() {
        let retry = |item: u32, at: &str| TaskRun {
            next_attempt_at: Some(serde_json::from_value(json!(at)).unwrap()),
            ..task("each", Some(item), "retrying", Value::Null)
        };
        let tasks = [retry(0, "2026-11-25T10:05:00Z"), retry(1, "2026-11-25T10:01:00Z")];
        let stalls = stalls(&tasks);
        let earliest: Time = "2026-11-25T10:01:00Z".parse().unwrap();
        assert_eq!((stalls.len(), stalls[0].until), (1, Some(earliest)));
    }

    #[test]
    fn instants_are_shown_by_group() {
        let lacks: [Time; 2] = ["2014-05-01T00:00:00Z", "2014-03-01T00:00:00Z"].map(|at| at.parse().unwrap());
        let upstream = |instant: Time| RunWait::Upstream {
            group: "import".into(),
            instant,
            need: Need::Interval,
        };
        let expect = Waits {
            upstreams: BTreeMap::from([("import", vec![lacks[1], lacks[0]])]),
            ..Waits::default()
        };
        assert_eq!(Waits::of(&lacks.map(upstream)), expect);
    }

    #[test]
    fn each_kind_of_wait_has_its_sentence() {
        let gate = Waits {
            gate: true,
            ..Waits::default()
        };
        assert_eq!(Waits::of(&[RunWait::Gate]), gate);
        let newer = [RunWait::Gate, RunWait::Unknown(json!({"moon": "full"}))];
        assert_eq!(Waits::of(&newer), Waits { unknown: true, ..gate });
    }

    #[test]
    fn who_did_what_is_shown_with_what_it_explains() {
        let deed = |action: &str| -> AuditEntry {
            serde_json::from_value(json!({
                "id": uuid::Uuid::nil(), "at": "2026-11-25T10:00:00Z", "actor": "ann", "action": action, "kind": "run",
                "name": "x", "before": null, "after": null,
            }))
            .unwrap()
        };
        let deeds = [deed("restart"), deed("cancel"), deed("pause")];
        let found = |state: RunState| super::deed(state, &deeds).map(|one| one.action.as_str());
        assert_eq!(found(RunState::Cancelled), Some("cancel"));
        assert_eq!(found(RunState::Paused), Some("pause"));
        assert_eq!(found(RunState::Succeeded), Some("restart"));
        assert_eq!(super::deed(RunState::Paused, &deeds[..1]), None);
    }
}
