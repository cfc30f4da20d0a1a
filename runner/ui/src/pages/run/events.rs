//! What happened to a run, and by whom: begun, ended, what operators did.

use maud::{Markup, html};

use super::view::Run;
use crate::elements::{empty, line, parse, state, time_exact};
use crate::words::t;
use crate::{Ctx, Trouble};
use heddle_domain::Time;

/// Events that are listed.
const LISTED: usize = 500;

struct Event {
    at: Time,
    what: String,
    state: String,
    text: String,
}

/// How the run and its task runs moved.
fn moves(ctx: &Ctx, run: &Run) -> Vec<Event> {
    let mut events = vec![Event {
        at: run.created_at,
        what: t!(ctx, "run"),
        state: String::new(),
        text: format!(
            "{} · {}",
            t!(ctx, "created"),
            t!(ctx, &format!("trigger-{}", run.trigger))
        ),
    }];
    if let Some(at) = run.started_at {
        events.push(Event {
            at,
            what: t!(ctx, "run"),
            state: "running".into(),
            text: String::new(),
        });
    }
    if let Some(at) = run.finished_at {
        let text = run.raw["error"]["message"].as_str().unwrap_or_default().to_owned();
        events.push(Event {
            at,
            what: t!(ctx, "run"),
            state: run.state.clone(),
            text,
        });
    }
    for task in &run.tasks {
        let name = match task.item {
            Some(item) => format!("{}[{item}]", task.name),
            None => task.name.clone(),
        };
        if let Some(at) = task.started_at {
            events.push(Event {
                at,
                what: name.clone(),
                state: "running".into(),
                text: task.node.clone().map(|_| String::new()).unwrap_or_default(),
            });
        }
        if let Some(at) = task.finished_at {
            let text = task
                .error
                .as_ref()
                .map(|(kind, message)| format!("{kind}: {message}"))
                .unwrap_or_default();
            events.push(Event {
                at,
                what: name,
                state: task.state.clone(),
                text,
            });
        }
    }
    events
}

pub(super) async fn inside(ctx: &Ctx, run: &Run) -> Result<Markup, Trouble> {
    let mut events = moves(ctx, run);
    let audit = ctx
        .get(&format!("/v1/audit?name={}&limit=100", run.id))
        .await
        .unwrap_or_default();
    for entry in audit["items"].as_array().into_iter().flatten() {
        let Some(at) = entry["at"].as_str().and_then(parse) else {
            continue;
        };
        let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
        events.push(Event {
            at,
            what: text("actor"),
            state: String::new(),
            text: text("action"),
        });
    }
    // Of what happened at the same moment, the last first, too.
    events.reverse();
    events.sort_by_key(|event| std::cmp::Reverse(event.at));
    let all = events.len();
    let listed = html! {
        section.panel {
            @if events.is_empty() { (empty(&t!(ctx, "none"))) }
            table.cards.events { tbody {
                @for event in events.iter().take(LISTED) {
                    tr {
                        td.tight.muted { (time_exact(ctx, event.at)) }
                        td.tight.side { bdi { (event.what) } }
                        td.tight { @if !event.state.is_empty() { (state(ctx, &event.state)) } }
                        td.wide { (line(&event.text)) }
                    }
                }
            } }
            @if all > LISTED { p.muted { (t!(ctx, "and-more", n = all - LISTED)) } }
        }
    };
    Ok(ctx.live("events", listed))
}
