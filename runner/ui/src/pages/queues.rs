//! Queues: how deep, how old, who works on them, paused or not.

use axum::http::Method;
use chrono::TimeDelta;
use heddle_api::{AuditEntry, List, Queue, QueueMinute, QueueTask};
use heddle_domain::Time;
use maud::{Markup, html};
use serde_json::{Value, json};

use super::answer::Answer;
use crate::ctx::{Beat, segment};
use crate::elements::{Button, ago, button, empty, listed, number, state};
use crate::frame::Page;
use crate::words::{Arg, t};
use crate::{Ctx, Trouble, span};

/// How many task runs of a queue are listed.
const TASKS: usize = 50;
/// How many minutes the picture of a queue shows, and from how many its rate is computed.
const MINUTES: i64 = 60;
const RATE_MINUTES: i64 = 10;

/// A minute of a queue's picture: how many waited, how many ended.
type Minute = (i64, i64);

/// The minutes up to now, oldest first. Between two measurements, the depth is that of the earlier one; before the
/// first, it is taken as 0.
fn minutes(items: &[QueueMinute], depth_now: i64, now: Time) -> Vec<Minute> {
    let mut minutes: Vec<(Option<i64>, i64)> = vec![(None, 0); MINUTES as usize];
    let this = now.timestamp().div_euclid(60);
    for one in items {
        let index = MINUTES - 1 - (this - one.at.timestamp().div_euclid(60));
        if let Some(minute) = usize::try_from(index).ok().and_then(|index| minutes.get_mut(index)) {
            *minute = (one.depth, one.ended);
        }
    }
    if let Some(last) = minutes.last_mut() {
        last.0 = Some(depth_now);
    }
    let mut known = 0;
    minutes
        .into_iter()
        .map(|(depth, ended)| {
            known = depth.unwrap_or(known);
            (known, ended)
        })
        .collect()
}

/// The number for each minute, from a sum over some minutes: `0.4`, `12`.
fn each_minute(ended: i64) -> String {
    let tenths = ended * 10 / RATE_MINUTES;
    match tenths {
        0..100 if tenths % 10 != 0 => format!("{}.{}", tenths / 10, tenths % 10),
        _ => span::number(tenths / 10),
    }
}

/// How many task runs of a queue ended in the last minutes, including the current one.
fn ended_lately(minutes: &[Minute]) -> i64 {
    let last = minutes.iter().rev().take(RATE_MINUTES as usize);
    last.map(|minute| minute.1).sum()
}

/// What waited, and what ended, minute by minute.
fn history(ctx: &Ctx, minutes: &[Minute]) -> Markup {
    let bars = |title: String,
                class: &str,
                label: &dyn Fn(i64, i64) -> String,
                of: &dyn Fn(&Minute) -> i64|
     -> Markup {
        let most = minutes.iter().map(of).max().unwrap_or_default();
        let total = minutes.iter().map(of).sum();
        let scale = 76.0 / most.max(1) as f64;
        html! {
            section.panel {
                div.row { h2.grow { (title) } span.muted { (t!(ctx, "at-most", n = span::number(most))) } }
                svg.picture.pace viewBox="0 0 600 80" preserveAspectRatio="none" role="img" aria-label=(label(most, total)) {
                    line.axis x1="0" x2="600" y1="79.5" y2="79.5" vector-effect="non-scaling-stroke" {}
                    @for (index, minute) in minutes.iter().enumerate() {
                        @let height = of(minute) as f64 * scale;
                        @if height > 0.0 { rect class=(class) x=(index * 10 + 1) y=(format!("{:.1}", 79.0 - height.max(1.0))) width="8" height=(format!("{:.1}", height.max(1.0))) {} }
                    }
                }
                p.row.muted { span.grow { (t!(ctx, "hour-ago")) } span { (t!(ctx, "now")) } }
            }
        }
    };
    html! {
        div.two.even {
            (bars(t!(ctx, "queue-depth-hour"), "f-waiting", &|most, _| t!(ctx, "queue-depth-label", n = most), &|minute| minute.0))
            (bars(t!(ctx, "queue-ended-hour"), "bar-succeeded", &|_, total| t!(ctx, "queue-ended-label", n = total), &|minute| minute.1))
        }
    }
}

pub(super) async fn list(ctx: &Ctx) -> Result<Answer, Trouble> {
    ctx.beats_with(Beat::Cluster);
    let cursor = ctx
        .q("cursor")
        .map(|cursor| format!("&cursor={}", segment(cursor)))
        .unwrap_or_default();
    let found: List<Queue> = ctx.get(&format!("/v1/queues?limit=100{cursor}")).await?;
    let names: Vec<String> = found.items.iter().map(|one| one.name.clone()).collect();
    let since = ctx.now - TimeDelta::minutes(RATE_MINUTES - 1);
    let ends: std::collections::HashMap<String, i64> =
        ctx.store().queue_ends(&names, since).await?.into_iter().collect();
    let deeds = deeds(ctx, &found.items, None).await;
    let title = t!(ctx, "nav-queues");
    let shown = html! {
        section.panel {
            @if found.items.is_empty() { (empty(&t!(ctx, "no-queues"))) }
            @else {
                table.cards {
                    thead { tr { th { (t!(ctx, "queue")) } th { (t!(ctx, "state")) } th.num { (t!(ctx, "waiting")) } th { (t!(ctx, "oldest")) } th.num { (t!(ctx, "claimed")) } th.num { (t!(ctx, "per-minute")) } th.num { (t!(ctx, "workers")) } th { span.hidden { (t!(ctx, "action")) } } } }
                    tbody { @for one in &found.items { (row(ctx, one, ends.get(&one.name).copied().unwrap_or_default(), &deeds)) } }
                }
            }
        }
    };
    let body = html! { div.heading { h1 { (title) } } (listed(ctx, "queues", shown, found.next_cursor.as_deref())) };
    Answer::page(Page::new("queues", title, body))
}

/// Whether nobody can claim the task runs that wait in a queue.
fn is_stuck(one: &Queue) -> bool {
    one.depth > 0 && (one.paused || one.workers == 0)
}

fn queue_state(ctx: &Ctx, one: &Queue) -> Markup {
    state(
        ctx,
        if one.paused {
            "paused"
        } else if is_stuck(one) {
            "waiting"
        } else {
            "active"
        },
    )
}

/// Why nothing of a queue is claimed.
pub(super) fn stalled(ctx: &Ctx, waiting: Arg, paused: bool, held: Option<Arg>) -> String {
    match (paused, held) {
        (true, _) => t!(ctx, "stalled-paused", n = waiting),
        (false, None) => t!(ctx, "stalled", n = waiting),
        (false, Some(held)) => t!(ctx, "stalled-held", n = waiting, held = held),
    }
}

/// Why nobody can claim the task runs that wait in a queue, if so.
pub(super) fn reason(ctx: &Ctx, one: &Queue) -> Option<String> {
    let waiting: Arg = match one.depth_exact {
        true => one.depth.into(),
        false => depth(one).into(),
    };
    let held: Option<Arg> = (one.claimed > 0).then(|| one.claimed.into());
    is_stuck(one).then(|| stalled(ctx, waiting, one.paused, held))
}

/// Entries of the audit that are read to find out who paused queues.
const DEEDS_MAX: usize = 100;

/// What was done to queues, newest first, to one of them or to all; nothing if none is paused. Without the audit, nothing
/// is known of it.
async fn deeds(ctx: &Ctx, queues: &[Queue], name: Option<&str>) -> Vec<AuditEntry> {
    if queues.iter().all(|one| !one.paused) {
        return Vec::new();
    }
    let name = name.map(|name| format!("&name={}", segment(name))).unwrap_or_default();
    let target = format!("/v1/audit?kind=queue&limit={DEEDS_MAX}{name}");
    let found: Option<List<AuditEntry>> = ctx.get(&target).await.ok();
    found.map(|found| found.items).unwrap_or_default()
}

/// What paused a queue that is paused.
fn paused_by<'a>(deeds: &'a [AuditEntry], one: &Queue) -> Option<&'a AuditEntry> {
    let paused = |value: &Option<Value>| value.as_ref().is_some_and(|value| value["paused"] == true);
    let did = |deed: &&AuditEntry| deed.name == one.name && paused(&deed.after) && !paused(&deed.before);
    deeds.iter().find(did).filter(|_| one.paused)
}

/// Why a queue is in its state: what its task runs wait for, and who paused it.
fn why(ctx: &Ctx, one: &Queue, deeds: &[AuditEntry]) -> Markup {
    html! {
        @if let Some(reason) = reason(ctx, one) { p.why { (reason) } }
        @if let Some(deed) = paused_by(deeds, one) { p.why { (t!(ctx, "done-pause")) " " bdi { (deed.actor) } " · " (ago(ctx, deed.at)) } }
    }
}

fn depth(one: &Queue) -> String {
    format!("{}{}", number(one.depth), if one.depth_exact { "" } else { "+" })
}

fn pause(ctx: &Ctx, one: &Queue, kind: &str) -> Markup {
    let (verb, will) = if one.paused {
        ("resume", "queue-resume-will")
    } else {
        ("pause", "queue-pause-will")
    };
    button(Button {
        kind,
        ..Button::new(
            format!("/queues/{}/{verb}", segment(&one.name)),
            t!(ctx, verb),
            t!(ctx, will),
        )
    })
}

fn row(ctx: &Ctx, one: &Queue, ended: i64, deeds: &[AuditEntry]) -> Markup {
    html! {
        tr {
            td { strong { a href={ "/queues/" (segment(&one.name)) } { bdi { (one.name) } } } (why(ctx, one, deeds)) }
            td.tight.side { (queue_state(ctx, one)) }
            td.num data-label=(t!(ctx, "waiting")) { (depth(one)) }
            td.tight.side data-label=(t!(ctx, "oldest")) { @if let Some(at) = one.oldest { (ago(ctx, at)) } @else { span.muted { "–" } } }
            td.num data-label=(t!(ctx, "claimed")) { (number(one.claimed)) }
            td.num.side data-label=(t!(ctx, "per-minute")) { (each_minute(ended)) }
            td.num data-label=(t!(ctx, "workers")) { (number(one.workers)) }
            td.tight.side { @if ctx.viewer.operates() { (pause(ctx, one, "small")) } }
        }
    }
}

pub(super) async fn page(ctx: &Ctx, queue: &str, rest: &[&str]) -> Result<Answer, Trouble> {
    let api = format!("/v1/queues/{}", segment(queue));
    if let ([verb @ ("pause" | "resume")], true) = (rest, ctx.posts()) {
        ctx.send(Method::POST, &format!("{api}/{verb}"), &json!({})).await?;
        return Answer::back(ctx, Some(t!(ctx, &format!("said-{verb}"))));
    }
    if !rest.is_empty() {
        return Err(Trouble::not_found());
    }
    ctx.beats_with(Beat::Cluster);
    let one: Queue = ctx.get(&api).await?;
    let (tasks, passed) = (format!("{api}/tasks?limit={TASKS}"), format!("{api}/minutes"));
    let (tasks, passed): (List<QueueTask>, List<QueueMinute>) = futures::try_join!(ctx.get(&tasks), ctx.get(&passed))?;
    let groups: Vec<&str> = tasks.items.iter().map(|task| task.group.as_str()).collect();
    ctx.know_topics(&groups).await?;
    let minutes = minutes(&passed.items, one.depth, ctx.now);
    let deeds = deeds(ctx, std::slice::from_ref(&one), Some(queue)).await;
    let workers = one.connected.as_deref().unwrap_or_default();
    let shown = html! {
        div.stack {
            div.heading {
                div.grow { h1 { bdi { (queue) } (queue_state(ctx, &one)) } @if let Some(at) = one.oldest { p { (t!(ctx, "oldest")) " " (ago(ctx, at)) } } (why(ctx, &one, &deeds)) }
                @if ctx.viewer.operates() { div.actions { (pause(ctx, &one, "")) } }
            }
            section.panel {
                dl.stats {
                    div { dd { b { (depth(&one)) } } dt { span { (t!(ctx, "waiting")) } } }
                    div { dd { b { (number(one.claimed)) } } dt { span { (t!(ctx, "claimed")) } } }
                    div { dd { b { (number(one.workers)) } } dt { span { (t!(ctx, "workers")) } } }
                    div { dd { b { (each_minute(ended_lately(&minutes))) } } dt { span { (t!(ctx, "ended-per-minute")) } } }
                    @if let Some(rate) = one.rate { div { dd { b { (rate.count) } } dt { span { (t!(ctx, "rate-per", span = span::set(ctx.lang, rate.per))) } } } }
                }
            }
            (history(ctx, &minutes))
            section.panel {
                h2 { (t!(ctx, "workers")) }
                @if workers.is_empty() { (empty(&t!(ctx, "no-workers"))) }
                @else {
                    table.cards {
                        thead { tr { th { (t!(ctx, "worker")) } th { (t!(ctx, "tags")) } th.num { (t!(ctx, "claimed")) } th { (t!(ctx, "seen")) } } }
                        tbody { @for worker in workers {
                            tr {
                                td { bdi { (worker.worker) } }
                                td { @for tag in &worker.tags { span.tag { (tag) } " " } }
                                td.num.side data-label=(t!(ctx, "claimed")) { (number(worker.claimed)) }
                                td.tight data-label=(t!(ctx, "seen")) { @if let Some(at) = worker.seen_at { (ago(ctx, at)) } }
                            }
                        } }
                    }
                }
            }
        }
    };
    let shown = html! { div.stack { (shown) (task_runs(ctx, &tasks.items, tasks.next_cursor.is_some())) } };
    let body = ctx.live("queue", shown);
    Answer::page(Page::new("queues", queue, body).crumbs(vec![
        (t!(ctx, "nav-queues"), Some("/queues".into())),
        (queue.to_owned(), None),
    ]))
}

/// What workers hold, then what waits, in the order in which they get it.
fn task_runs(ctx: &Ctx, tasks: &[QueueTask], more_wait: bool) -> Markup {
    html! {
        section.panel {
            h2 { (t!(ctx, "queue-tasks")) }
            @if tasks.is_empty() { (empty(&t!(ctx, "queue-empty"))) }
            @else {
                table.cards {
                    thead { tr { th { (t!(ctx, "task")) } th { (t!(ctx, "state")) } th { (t!(ctx, "since")) } th.num { (t!(ctx, "priority")) } th { (t!(ctx, "tags")) } th { (t!(ctx, "worker")) } } }
                    tbody { @for one in tasks {
                        tr {
                            td { a href={ "/runs/" (one.run) } { bdi { @match ctx.topic_of(&one.group) { Some(topic) => (t!(ctx, "topic-named", name = topic)), None => (one.group) } } " · " bdi { (one.task) } @if let Some(item) = one.item { "[" (item) "]" } } }
                            td.tight.side { (state(ctx, one.state)) }
                            td.tight.muted { (ago(ctx, one.since)) }
                            td.num.side data-label=(t!(ctx, "priority")) { (number(one.priority)) }
                            td { @for tag in &one.tags { span.tag { (tag) } " " } }
                            td { bdi { (one.worker.as_deref().unwrap_or_default()) } @if let Some(at) = one.lease_expires_at { " " span.muted { (t!(ctx, "lease-until")) " " (ago(ctx, at)) } } }
                        }
                    } }
                }
                @if more_wait { p.muted { (t!(ctx, "queue-more", n = tasks.len())) } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(name: &str, depth: i64, workers: i64, paused: bool) -> Queue {
        Queue {
            name: name.into(),
            depth,
            depth_exact: true,
            oldest: None,
            claimed: 0,
            workers,
            paused,
            rate: None,
            connected: None,
        }
    }

    #[test]
    fn a_queue_is_stuck_without_workers_or_when_it_is_paused() {
        let stuck = |depth, workers, paused| is_stuck(&queue("q", depth, workers, paused));
        assert!(stuck(3, 0, false) && stuck(3, 2, true));
        assert!(!stuck(3, 2, false) && !stuck(0, 0, false) && !stuck(0, 0, true));
    }

    #[test]
    fn who_paused_a_queue_is_who_did_it_last() {
        let deed = |actor: &str, name: &str, before: Value, after: Value| -> AuditEntry {
            serde_json::from_value(json!({
                "id": uuid::Uuid::nil(), "at": "2026-11-25T10:00:00Z", "actor": actor, "action": "update", "kind": "queue",
                "name": name, "before": before, "after": after,
            }))
            .unwrap()
        };
        let (on, off) = (json!({"paused": false}), json!({"paused": true}));
        let deeds = [
            deed(
                "rate",
                "q",
                off.clone(),
                json!({"paused": true, "rate": {"count": 1, "per": "1s"}}),
            ),
            deed("other", "r", on.clone(), off.clone()),
            deed("ann", "q", on.clone(), off.clone()),
            deed("bob", "q", Value::Null, off),
        ];
        let by = |one: &Queue| paused_by(&deeds, one).map(|deed| deed.actor.clone());
        assert_eq!(by(&queue("q", 1, 0, true)).as_deref(), Some("ann"));
        assert_eq!(by(&queue("q", 1, 0, false)), None);
        assert_eq!(by(&queue("s", 1, 0, true)), None);
    }

    #[test]
    fn minutes_that_nobody_looked_at_are_as_deep_as_the_last_one() {
        let now: Time = "2026-11-22T10:00:30Z".parse().unwrap();
        let items = [
            (70, Some(900), 9),
            (10, Some(7), 0),
            (9, None, 20),
            (2, Some(1), 5),
            (0, Some(1), 3),
        ]
        .map(|(ago, depth, ended)| QueueMinute {
            at: (now - TimeDelta::seconds(30) - TimeDelta::minutes(ago)).into(),
            depth,
            ended,
        });
        let minutes = minutes(&items, 4, now);
        assert_eq!(minutes.len(), 60);
        assert_eq!(minutes[..49], [(0, 0); 49], "what is older is not shown");
        assert_eq!(minutes[49..52], [(7, 0), (7, 20), (7, 0)]);
        assert_eq!(minutes[57..], [(1, 5), (1, 0), (4, 3)]);
        assert_eq!(each_minute(ended_lately(&minutes)), "2.8");
        let rates: Vec<String> = [0, 4, 10, 99, 1_000, 12_345].map(each_minute).into();
        assert_eq!(rates, ["0", "0.4", "1", "9.9", "100", "1,234"]);
    }
}
