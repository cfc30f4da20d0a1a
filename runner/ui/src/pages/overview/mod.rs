//! The overview: what needs a person, one day back and one day ahead, and what is running now.

mod day;
mod welcome;

use std::collections::BTreeMap;

use chrono::TimeDelta;
use heddle_api::{AttemptState, List, Node, NotificationState, RunState};
use heddle_domain::Time;
use heddle_domain::run::Control;
use heddle_store::pages::failures::{FailureRow, Failures, FailuresMax};
use heddle_store::pages::overview::{MinuteRow, NowRow, StalledRow, TimedOutRow};
use maud::{Markup, html};

use super::answer::Answer;
use super::queues;
use super::run::refused;
use crate::ctx::{Beat, segment};
use crate::elements::{self, Button, ago, button, group_link, group_or_topic, line, linked, number, state};
use crate::frame::Page;
use crate::span;
use crate::words::{Arg, t};
use crate::{Ctx, Trouble};

/// How many failed runs are read.
const FAILURES_MAX: FailuresMax = FailuresMax {
    newest: 300,
    groups: 300,
    each: 20,
};
/// Up to this number things are counted.
const COUNT_MAX: i64 = 10_000;
/// How many runs are counted for each minute.
const MINUTE_MAX: i64 = 500;
/// How many notifications are read; those of a day that were given up are among them.
const UNSENT_MAX: i64 = 10_000;
/// How many task runs are counted for each queue.
const STALLED_MAX: i64 = 1_000;
/// How many attempts that timed out are read, and how many of their scripts are named.
const TIMED_OUT_MAX: i64 = 200;
const SLOW_MAX: usize = 5;
/// How many nodes are shown; the page of the system shows the others.
const NODES_SHOWN: usize = 8;
/// How many groups whose newest run failed are listed; the page says how many more there are.
const FAILING_LISTED: usize = 50;
/// For how long a failure needs a person.
const FAILURES_FOR: TimeDelta = TimeDelta::days(7);
/// For how long failures are shown of groups that have run again since.
const RECOVERED_FOR: TimeDelta = TimeDelta::hours(24);
/// How late a schedule or queued work may be before it needs a person.
const LATE_AFTER: TimeDelta = TimeDelta::seconds(90);
const STALLED_AFTER: TimeDelta = TimeDelta::minutes(10);

/// Failed runs of a group.
struct Failing {
    group: String,
    newest: FailureRow,
    count: usize,
    /// There may be more.
    more: bool,
    since: Time,
    /// How its newest run ended, if it did not fail: then the group goes on by itself, but the results of the failed
    /// runs are still missing.
    since_then: Option<RunState>,
}

/// A script with attempts that timed out lately.
struct Slow {
    script: String,
    group: String,
    count: usize,
    newest: TimedOutRow,
}

struct View {
    failing: Vec<Failing>,
    late: Vec<heddle_store::pages::overview::LateRow>,
    stalled: Vec<StalledRow>,
    unsent: Vec<heddle_store::pages::overview::UnsentRow>,
    lost: Vec<(String, Time)>,
    slow: Vec<Slow>,
    rows: Vec<day::DrawnRow>,
    more_rows: bool,
    minutes: Vec<MinuteRow>,
    now: NowRow,
    nodes: Vec<Node>,
    /// The API has more nodes than were read.
    more_nodes: bool,
}

impl View {
    /// What needs somebody, and the groups that have gone on by themselves.
    fn troubles(&self) -> (usize, usize) {
        let recovered = self.failing.iter().filter(|one| one.since_then.is_some()).count();
        let need = self.failing.len() - recovered
            + self.late.len()
            + self.stalled.len()
            + self.unsent.len()
            + self.lost.len()
            + self.slow.len();
        (need, recovered)
    }

    async fn read(ctx: &Ctx) -> Result<Self, Trouble> {
        let store = ctx.store();
        let now = ctx.now;
        let (from, to) = (now - TimeDelta::hours(24), now + TimeDelta::hours(24));
        // Three statements at a time, on three sessions. These soon have the plans of all statements of the pages; with
        // one session for each statement, many sessions would plan the same statements again.
        let failed = async { failing(ctx, store.page_failures(now - FAILURES_FOR, FAILURES_MAX).await?).await };
        let drawn = day::read(ctx, from, to);
        let counted = async {
            let minutes = store.page_minutes(now, 60, MINUTE_MAX).await?;
            let counts = store.page_now(COUNT_MAX).await?;
            let late = store.page_late(now - LATE_AFTER, 10).await?;
            let stalled = store.page_stalled(now - STALLED_AFTER, STALLED_MAX).await?;
            let unsent = store.page_unsent(now - TimeDelta::hours(24), UNSENT_MAX).await?;
            let timed_out = store.page_timed_out(now - TimeDelta::hours(24), TIMED_OUT_MAX).await?;
            let nodes: List<Node> = ctx.get("/v1/nodes?limit=500").await?;
            Ok::<_, Trouble>((
                minutes,
                counts,
                late,
                stalled,
                unsent,
                slow(ctx, timed_out).await?,
                nodes,
            ))
        };
        let (failing, (rows, more_rows), (minutes, counts, late, stalled, unsent, slow, nodes)) =
            futures::try_join!(failed, drawn, counted)?;
        let more_nodes = nodes.next_cursor.is_some();
        let nodes = nodes.items;
        // A node that has been gone for days is left out.
        let is_lost = |node: &&Node| node.state == "lost" && node.heartbeat_at.0 > from;
        let lost = nodes
            .iter()
            .filter(is_lost)
            .map(|node| (node.name.clone(), node.heartbeat_at.0))
            .collect();
        Ok(Self {
            failing,
            late,
            stalled,
            unsent,
            lost,
            slow,
            rows,
            more_rows,
            minutes,
            now: counts,
            nodes: nodes
                .into_iter()
                .filter(|node| matches!(node.state.as_str(), "active" | "draining"))
                .collect(),
            more_nodes,
        })
    }
}

/// Groups with failed runs: first those whose newest run failed, then those that go on by themselves. Of the latter,
/// the failures of a day are shown: a later success does not replace the failed run, but it needs nobody at once.
async fn failing(ctx: &Ctx, failures: Failures) -> Result<Vec<Failing>, Trouble> {
    let mut groups: Vec<i64> = failures.rows.iter().map(|row| row.group_id).collect();
    groups.sort_unstable();
    groups.dedup();
    let ends: BTreeMap<i64, RunState> = ctx.store().page_last_ends(&groups).await?.into_iter().collect();
    let mut found: Vec<Failing> = Vec::new();
    let mut indexes: BTreeMap<i64, usize> = BTreeMap::new();
    for row in failures.rows {
        let since_then = ends
            .get(&row.group_id)
            .copied()
            .filter(|state| *state != RunState::Failed);
        if since_then.is_some() && row.finished_at < ctx.now - RECOVERED_FOR {
            continue;
        }
        match indexes.get(&row.group_id) {
            Some(index) => {
                found[*index].count += 1;
                found[*index].since = row.finished_at;
            }
            None => {
                indexes.insert(row.group_id, found.len());
                found.push(Failing {
                    group: row.group_name.clone(),
                    count: 1,
                    more: false,
                    since: row.finished_at,
                    newest: row,
                    since_then,
                });
            }
        }
    }
    for one in &mut found {
        // With fewer, all of the group were read.
        one.more = failures.more && one.count as i64 >= FAILURES_MAX.each;
    }
    found.sort_by_key(|one| one.since_then.is_some());
    Ok(found)
}

/// Which scripts time out, those that do so most first.
async fn slow(ctx: &Ctx, rows: Vec<TimedOutRow>) -> Result<Vec<Slow>, Trouble> {
    let mut found: BTreeMap<String, Slow> = BTreeMap::new();
    for row in rows {
        let revision = ctx.ui.engine.catalog().revision(row.revision_id).await?;
        let Some(task) = revision.plan.tasks.get(row.task as usize) else {
            continue;
        };
        // Workers and people who took too long are shown with their queue.
        let Some(script) = task.spec.script.as_deref() else {
            continue;
        };
        let script = script.split('@').next().unwrap_or(script).to_owned();
        let group = revision.group_name.clone();
        let one = found.entry(script.clone()).or_insert_with(|| Slow {
            script,
            group,
            count: 0,
            newest: row.clone(),
        });
        one.count += 1;
    }
    let mut found: Vec<Slow> = found.into_values().collect();
    found.sort_by_key(|one| std::cmp::Reverse(one.count));
    found.truncate(SLOW_MAX);
    Ok(found)
}

pub(super) async fn page(ctx: &Ctx) -> Result<Answer, Trouble> {
    ctx.beats_with(Beat::Cluster);
    let view = View::read(ctx).await?;
    let failing = view.failing.iter().map(|one| one.group.as_str());
    let groups: Vec<&str> = failing.chain(view.rows.iter().map(|row| row.name.as_str())).collect();
    ctx.know_topics(&groups).await?;
    let title = t!(ctx, "nav-overview");
    let nothing = view.now.groups == 0;
    let body = html! {
        div.heading { div.grow { h1 { (title) } } }
        // The page has the same parts whether there are groups or not, so the first group replaces the greeting without
        // a reload.
        (ctx.live("attention", if nothing { welcome::inside(ctx) } else { attention(ctx, &view) }))
        (ctx.live("day", html! { @if !nothing { (day::inside(ctx, &view.rows, view.more_rows)) } }))
        div.two {
            (ctx.live("pace", html! { @if !nothing { (pace(ctx, &view)) } }))
            (ctx.live("nodes", html! { @if !nothing { (nodes(ctx, &view)) } }))
        }
    };
    Answer::page(Page::new("overview", title, body))
}

fn attention(ctx: &Ctx, view: &View) -> Markup {
    let (count, recovered) = view.troubles();
    html! {
        section.panel aria-labelledby="attention-title" {
            div.row { h2.grow #attention-title { (t!(ctx, "needs-attention")) } span.muted { (t!(ctx, "things-need", n = count)) @if recovered > 0 { " · " (t!(ctx, "things-recovered", n = recovered)) } } }
            @if count == 0 { p.state.s-succeeded { (elements::glyph("succeeded")) span { (t!(ctx, "all-well")) } } }
            @if count > 0 || !view.failing.is_empty() {
                table.cards.steady { colgroup { col.of-group; col.of-state; col; col.of-count; col.of-action; } tbody {
                    @for one in view.failing.iter().take(FAILING_LISTED).filter(|one| one.since_then.is_none()) { (failing_row(ctx, one)) }
                    @for one in &view.stalled {
                        tr {
                            td.tight { a href={ "/queues/" (segment(&one.queue)) } { (t!(ctx, "queue-named", name = &one.queue)) } }
                            td.tight { (state(ctx, if one.paused { "paused" } else { "waiting" })) }
                            td.wide.why { (queues::stalled(ctx, Arg::capped(one.waiting, STALLED_MAX), one.paused, (one.claimed > 0).then(|| Arg::capped(one.claimed, STALLED_MAX)))) }
                            td.tight.why { (ago(ctx, one.paused_at.unwrap_or(one.since))) }
                            td.tight.side {}
                        }
                    }
                    @for one in &view.late {
                        tr {
                            td.tight { (group_link(&one.group_name)) }
                            td.tight { (state(ctx, "late")) }
                            td.wide.why { (t!(ctx, "schedule-late", name = &one.name)) }
                            td.tight.why { (ago(ctx, one.due_at)) }
                            td.tight.side {}
                        }
                    }
                    @for (name, at) in &view.lost {
                        tr {
                            td.tight { a href="/system" { (t!(ctx, "node-named", name = name)) } }
                            td.tight { (state(ctx, "lost")) }
                            td.wide.why { (t!(ctx, "node-lost")) }
                            td.tight.why { (ago(ctx, *at)) }
                            td.tight.side {}
                        }
                    }
                    @for one in &view.slow {
                        tr {
                            td.tight { a href={ "/scripts/" (segment(&one.script)) } { (t!(ctx, "script-named", name = &one.script)) } }
                            td.tight { (state(ctx, AttemptState::TimedOut)) }
                            td.wide.why { (t!(ctx, "timed-out-times", n = one.count)) " " (group_link(&one.group)) }
                            td.tight.why { a href={ "/runs/" (one.newest.run) } { (ago(ctx, one.newest.finished_at)) } }
                            td.tight.side {}
                        }
                    }
                    @for one in &view.unsent {
                        tr {
                            td.tight { a href="/notifications" { (t!(ctx, "channel-named", name = &one.channel)) } }
                            td.tight { (state(ctx, NotificationState::Failed)) }
                            td.wide { span.error { (line(one.last_error.as_deref().unwrap_or_default())) } }
                            td.tight.why { (t!(ctx, "given-up", n = Arg::capped(one.count, UNSENT_MAX))) }
                            td.tight.side {}
                        }
                    }
                    @let mut recovered = view.failing.iter().take(FAILING_LISTED).filter(|one| one.since_then.is_some()).peekable();
                    @if recovered.peek().is_some() { tr { td.sub-heading colspan="5" { (t!(ctx, "recovered")) } } }
                    @for one in recovered { (failing_row(ctx, one)) }
                } }
                @if view.failing.len() > FAILING_LISTED { p.muted.under { (t!(ctx, "and-more", n = view.failing.len() - FAILING_LISTED)) " · " a href="/runs?state=failed" { (t!(ctx, "all")) } } }
            }
        }
    }
}

fn failing_row(ctx: &Ctx, one: &Failing) -> Markup {
    let run = one.newest.id;
    // The button restarts one run. If several failed, it says that it is the newest.
    let (restart, will) = if one.count > 1 {
        ("restart-newest", "restart-newest-will")
    } else {
        ("restart", "restart-will")
    };
    let refused = refused(ctx, Control::Restart, &one.group, RunState::Failed);
    let read = one.count as i64;
    let count = Arg::capped(read, if one.more { read } else { i64::MAX });
    html! {
        tr {
            td.tight { (group_or_topic(ctx, &one.group)) }
            td.tight { a href={ "/runs/" (run) } data-main { (state(ctx, RunState::Failed)) } }
            td.wide {
                span.error { (linked(&line(one.newest.error.as_deref().unwrap_or_default()))) }
                @if let Some(newest) = one.since_then { span.why { " " (t!(ctx, "newest-run")) " " (state(ctx, newest)) } }
            }
            td.tight.why { a href={ "/runs?group=" (segment(&one.group)) "&state=failed" } { (t!(ctx, "runs-count", n = count)) } br; (ago(ctx, one.since)) }
            td.tight.side {
                @if ctx.viewer.operates() {
                    (button(Button { glyph: "restart", refused, ..Button::new(format!("/runs/{run}/restart"), t!(ctx, restart), t!(ctx, will)) }))
                }
            }
        }
    }
}

fn pace(ctx: &Ctx, view: &View) -> Markup {
    let peak = view.minutes.iter().map(|minute| minute.ended).max().unwrap_or(0);
    let most = peak.max(1) as f64;
    let total: i64 = view.minutes.iter().map(|minute| minute.ended).sum();
    let failed: i64 = view.minutes.iter().map(|minute| minute.failed).sum();
    let capped = |n: i64| span::capped(n, COUNT_MAX);
    html! {
        section.panel aria-labelledby="pace-title" {
            div.row { h2.grow #pace-title { (t!(ctx, "pace-title")) } span.muted { (t!(ctx, "pace-most", n = Arg::capped(peak, MINUTE_MAX))) } }
            svg.picture.pace viewBox="0 0 600 80" preserveAspectRatio="none" role="img" aria-label=(t!(ctx, "pace-label", runs = total, failed = failed)) {
                line.axis x1="0" x2="600" y1="79.5" y2="79.5" vector-effect="non-scaling-stroke" {}
                @for (index, minute) in view.minutes.iter().enumerate() {
                    @let height = minute.ended as f64 / most * 76.0;
                    @let bad = minute.failed as f64 / most * 76.0;
                    rect.bar-succeeded x=(index * 10 + 1) y=(format!("{:.1}", 79.0 - height)) width="8" height=(format!("{:.1}", (height - bad).max(0.0))) {}
                    rect.bar-failed x=(index * 10 + 1) y=(format!("{:.1}", 79.0 - bad)) width="8" height=(format!("{bad:.1}")) {}
                }
            }
            dl.stats {
                div { dd { b { (capped(view.now.running)) } } dt { span { (t!(ctx, "now-running")) } } }
                div { dd { b { (capped(view.now.ready)) } } dt { span { (t!(ctx, "now-ready")) } } }
                div { dd { b { (capped(view.now.queued)) } } dt { span { (t!(ctx, "now-queued")) } } }
                div { dd { b { (capped(view.now.retrying)) } } dt { span { (t!(ctx, "now-retrying")) } } }
                div { dd { b { (capped(view.now.live)) } } dt { span { (t!(ctx, "now-live")) } } }
            }
        }
    }
}

fn nodes(ctx: &Ctx, view: &View) -> Markup {
    html! {
        section.panel aria-labelledby="nodes-title" {
            div.row { h2.grow #nodes-title { (t!(ctx, "nodes")) } a href="/system" { (t!(ctx, "all")) } }
            table {
                thead { tr { th { (t!(ctx, "node")) } th { (t!(ctx, "state")) } th.num { (t!(ctx, "in-hand")) } } }
                tbody {
                    @for node in view.nodes.iter().take(NODES_SHOWN) {
                        tr {
                            td { bdi { (node.name) } }
                            td.tight { (state(ctx, node.state.as_str())) }
                            td.num { (t!(ctx, "of", n = number(node.running), all = number(node.slots))) }
                        }
                    }
                }
            }
            @if view.more_nodes || view.nodes.len() > NODES_SHOWN { p.muted { (t!(ctx, "first-only", n = NODES_SHOWN.min(view.nodes.len()))) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_recovered_is_counted_apart() {
        let failing = |since_then: Option<RunState>| Failing {
            group: "g".into(),
            newest: FailureRow {
                id: uuid::Uuid::nil(),
                group_id: 1,
                group_name: "g".into(),
                finished_at: Time::UNIX_EPOCH,
                error: None,
            },
            count: 1,
            more: false,
            since: Time::UNIX_EPOCH,
            since_then,
        };
        let mut view = View {
            failing: vec![
                failing(None),
                failing(Some(RunState::Succeeded)),
                failing(Some(RunState::Cancelled)),
            ],
            late: Vec::new(),
            stalled: Vec::new(),
            unsent: Vec::new(),
            lost: vec![("n".into(), Time::UNIX_EPOCH)],
            slow: Vec::new(),
            rows: Vec::new(),
            more_rows: false,
            minutes: Vec::new(),
            now: NowRow {
                running: 0,
                ready: 0,
                queued: 0,
                live: 0,
                retrying: 0,
                groups: 1,
            },
            nodes: Vec::new(),
            more_nodes: false,
        };
        assert_eq!(view.troubles(), (2, 2));
        view.failing.clear();
        assert_eq!(view.troubles(), (1, 0));
    }
}
