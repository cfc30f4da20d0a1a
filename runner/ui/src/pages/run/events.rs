//! The events of a run, and who caused them: starts, ends, and actions of operators.

use std::collections::HashMap;

use heddle_api::{AuditEntry, List, Run, RunState, TaskRun, TaskState};
use heddle_store::run::AttemptView;
use maud::{Markup, html};

use super::view::Whole;
use crate::elements::{Shown, audit_action, empty, line, state, time_to_the_milli};
use crate::words::t;
use crate::{Ctx, Trouble};
use heddle_domain::Time;

/// How many events are listed.
const LISTED: usize = 500;

struct Event<'r> {
    at: Time,
    what: String,
    state: Option<&'r dyn Shown>,
    text: String,
}

/// How the run and its task runs moved.
fn moves<'r>(ctx: &Ctx, run: &'r Run) -> Vec<Event<'r>> {
    let mut events = vec![Event {
        at: run.created_at.0,
        what: t!(ctx, "run"),
        state: None,
        text: t!(ctx, &format!("created-{}", run.trigger)),
    }];
    if let Some(at) = run.started_at {
        events.push(Event {
            at: at.0,
            what: t!(ctx, "run"),
            state: Some(&RunState::Running),
            text: String::new(),
        });
    }
    if let Some(at) = run.finished_at {
        let text = run
            .error
            .as_ref()
            .map(|error| error.message.clone())
            .unwrap_or_default();
        events.push(Event {
            at: at.0,
            what: t!(ctx, "run"),
            state: Some(&run.state),
            text,
        });
    }
    for task in run.task_runs() {
        let name = named(&task.task, task.item);
        if let Some(at) = task.started_at {
            events.push(Event {
                at: at.0,
                what: name.clone(),
                state: Some(&TaskState::Running),
                text: String::new(),
            });
        }
        if let Some(at) = task.finished_at {
            let text = task
                .error
                .as_ref()
                .map(|error| format!("{}: {}", error.kind, error.message))
                .unwrap_or_default();
            events.push(Event {
                at: at.0,
                what: name,
                state: Some(&task.state),
                text,
            });
        }
    }
    events
}

fn named(task: &str, item: Option<u32>) -> String {
    match item {
        Some(item) => format!("{task}[{item}]"),
        None => task.to_owned(),
    }
}

/// Whether an attempt's end is listed beside that of its task run: of all that another followed, or may follow, and of one
/// after which somebody set the state of the task run.
fn is_listed(attempt: &AttemptView, task: Option<&TaskRun>) -> bool {
    let said = |task: &TaskRun| {
        task.attempt == attempt.attempt && task.finished_at.is_some_and(|at| Some(at.0) <= attempt.finished_at)
    };
    attempt.finished_at.is_some() && !task.is_some_and(said)
}

/// The attempts after the first, and the ends of those that were not the last; with the name of the task of each.
fn tries<'r>(ctx: &Ctx, run: &'r Run, attempts: impl Iterator<Item = (&'r str, &'r AttemptView)>) -> Vec<Event<'r>> {
    let of = |task: &'r TaskRun| ((task.task.as_str(), task.item), task);
    let tasks: HashMap<(&str, Option<u32>), &TaskRun> = run.task_runs().iter().map(of).collect();
    let mut events = Vec::new();
    for (task, attempt) in attempts {
        let item = attempt.key.item;
        let number = t!(ctx, "attempt-n", n = i64::from(attempt.attempt));
        if attempt.attempt > 1 {
            events.push(Event {
                at: attempt.started_at,
                what: named(task, item),
                state: Some(&TaskState::Running),
                text: number.clone(),
            });
        }
        let listed = is_listed(attempt, tasks.get(&(task, item)).copied());
        if let Some(at) = attempt.finished_at.filter(|_| listed) {
            let message = attempt.error_message.as_deref().unwrap_or_default();
            let kind = attempt.error_kind.map(|kind| format!("{kind}: ")).unwrap_or_default();
            let message = message.strip_prefix(&kind).unwrap_or(message);
            events.push(Event {
                at,
                what: named(task, item),
                state: Some(&attempt.state),
                text: if message.is_empty() {
                    number
                } else {
                    format!("{number} · {kind}{message}")
                },
            });
        }
    }
    events
}

pub(super) async fn inside(ctx: &Ctx, whole: &Whole) -> Result<Markup, Trouble> {
    let run = &whole.run;
    let (revision, detail) = (whole.revision(ctx).await?, whole.detail(ctx).await?);
    let mut events = moves(ctx, run);
    let attempts = detail.attempts.iter();
    let attempts =
        attempts.filter_map(|one| Some((revision.plan.tasks.get(one.key.task as usize)?.name.as_str(), one)));
    events.extend(tries(ctx, run, attempts));
    // Without it, what the run itself tells is shown.
    let audit: Option<List<AuditEntry>> = ctx.get(&format!("/v1/audit?name={}&limit=100", run.id)).await.ok();
    for entry in audit.into_iter().flat_map(|audit| audit.items) {
        events.push(Event {
            at: entry.at.0,
            what: entry.actor,
            state: None,
            text: audit_action(ctx, &entry.action),
        });
    }
    // Events of the same moment are in reverse order too.
    events.reverse();
    events.sort_by_key(|event| std::cmp::Reverse(event.at));
    let all = events.len();
    let listed = html! {
        section.panel {
            @if events.is_empty() { (empty(&t!(ctx, "none"))) }
            table.cards.events { tbody {
                @for event in events.iter().take(LISTED) {
                    tr {
                        td.tight.muted { (time_to_the_milli(ctx, event.at)) }
                        td.tight.side { bdi { (event.what) } }
                        td.tight { @if let Some(now) = event.state { (state(ctx, now)) } }
                        td.wide { (line(&event.text)) }
                    }
                }
            } }
            @if all > LISTED { p.muted { (t!(ctx, "and-more", n = all - LISTED)) } }
        }
    };
    Ok(ctx.live("events", listed))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::view::failed_attempt;
    use super::*;

    #[test]
    fn an_end_is_listed_once() {
        let attempt = |attempt: u32, finished_at: Option<Time>| AttemptView {
            attempt,
            finished_at,
            ..failed_attempt()
        };
        let task = |state: &str, ended: bool| -> TaskRun {
            let at = ended.then_some("1970-01-01T00:00:00Z");
            serde_json::from_value(json!({"task": "a", "item": null, "state": state, "attempt": 2, "finished_at": at}))
                .unwrap()
        };
        let end = Some(Time::UNIX_EPOCH);
        let ended = task("failed", true);
        assert!(is_listed(&attempt(1, end), Some(&ended)), "another followed");
        assert!(!is_listed(&attempt(2, end), Some(&ended)), "its task run says so");
        assert!(
            !is_listed(&attempt(2, None), Some(&task("running", false))),
            "it goes on"
        );
        assert!(
            is_listed(&attempt(2, end), Some(&task("retrying", false))),
            "another will follow"
        );
        let mut set = task("succeeded", true);
        set.finished_at = Some((Time::UNIX_EPOCH + chrono::TimeDelta::hours(6)).into());
        assert!(
            is_listed(&attempt(2, end), Some(&set)),
            "somebody set another state later"
        );
    }
}
