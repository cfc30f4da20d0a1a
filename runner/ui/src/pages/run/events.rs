//! The events of a run, and who caused them: starts, ends, and actions of operators.

use heddle_api::{AuditEntry, List, Run, RunState, TaskState};
use maud::{Markup, html};

use crate::elements::{Shown, audit_action, empty, line, state, time_to_the_milli, trigger_word};
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
        text: format!("{} · {}", t!(ctx, "created"), trigger_word(ctx, run.trigger)),
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
        let name = match task.item {
            Some(item) => format!("{}[{item}]", task.task),
            None => task.task.clone(),
        };
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

pub(super) async fn inside(ctx: &Ctx, run: &Run) -> Result<Markup, Trouble> {
    let mut events = moves(ctx, run);
    // If the audit cannot be read, only the data of the run is shown.
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
