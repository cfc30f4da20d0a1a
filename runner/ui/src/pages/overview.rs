//! The overview: what needs a person, one day back and one day ahead, and what is running now.

use std::collections::BTreeMap;
use std::fmt::Write;

use chrono::{TimeDelta, Timelike};
use heddle_api::{AttemptState, List, Node, NotificationState, RunState, Trigger};
use heddle_domain::Time;
use heddle_domain::schedule::Calendar;
use heddle_store::pages::overview::{BarRow, FailureRow, MinuteRow, NowRow, StalledRow, TimedOutRow};
use maud::{Markup, html};

use super::{Answer, queues};
use crate::chart::{Axis, fill, hours};
use crate::ctx::{Beat, segment};
use crate::elements::{self, Button, ago, button, empty, group_link, group_or_topic, line, linked, number, state};
use crate::frame::Page;
use crate::span;
use crate::words::t;
use crate::{Ctx, Trouble};

/// How many groups the timeline draws, each on a line of its own.
const TIMELINE_ROWS_MAX: i64 = 40;
/// How many runs are read for each group of the timeline.
const BARS_EACH: i64 = 150;
/// How many future instants are drawn for each group of the timeline; if there are more, one line is drawn.
const INSTANTS_EACH: usize = 60;
/// How many failed runs are read.
const FAILURES_MAX: i64 = 300;
/// Up to this number things are counted.
const COUNT_MAX: i64 = 10_000;
/// How many runs are counted for each minute.
const MINUTE_MAX: i64 = 500;
/// How many attempts that timed out are read, and how many of their scripts are named.
const TIMED_OUT_MAX: i64 = 200;
const SLOW_MAX: usize = 5;
/// How many groups whose newest run failed are listed; the page says how many more there are.
const FAILING_LISTED: usize = 50;
/// A bar that is shorter than this and did not fail is drawn together with others of its state and has no link: nobody
/// could hit it, and there may be thousands.
const LINK_WIDTH_MIN: f64 = 6.0;
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
    since: Time,
    /// How its newest run ended, if it did not fail: then the group goes on by itself, but the results of the failed
    /// runs are still missing.
    since_then: Option<RunState>,
}

struct DrawnRow {
    name: String,
    bars: Vec<BarRow>,
    instants: Vec<Time>,
    more: bool,
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
    rows: Vec<DrawnRow>,
    more_rows: bool,
    minutes: Vec<MinuteRow>,
    now: NowRow,
    nodes: Vec<Node>,
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
        let drawn = async {
            let mut rows = store.page_timeline(from, to, TIMELINE_ROWS_MAX + 1).await?;
            let more = rows.len() as i64 > TIMELINE_ROWS_MAX;
            rows.truncate(TIMELINE_ROWS_MAX as usize);
            Ok::<_, Trouble>((with_bars(ctx, rows, from, to).await?, more))
        };
        let counted = async {
            let minutes = store.page_minutes(now, 60, MINUTE_MAX).await?;
            let counts = store.page_now(COUNT_MAX).await?;
            let late = store.page_late(now - LATE_AFTER, 10).await?;
            let stalled = store.page_stalled(now - STALLED_AFTER, 1_000).await?;
            let unsent = store.page_unsent(now - TimeDelta::hours(24), 500).await?;
            let timed_out = store.page_timed_out(now - TimeDelta::hours(24), TIMED_OUT_MAX).await?;
            let nodes: List<Node> = ctx.get("/v1/nodes?limit=100").await?;
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
        })
    }
}

/// Groups with failed runs: first those whose newest run failed, then those that go on by themselves. Of the latter,
/// the failures of a day are shown: a later success does not replace the failed run, but it needs nobody at once.
async fn failing(ctx: &Ctx, failures: Vec<FailureRow>) -> Result<Vec<Failing>, Trouble> {
    let mut groups: Vec<i64> = failures.iter().map(|row| row.group_id).collect();
    groups.sort_unstable();
    groups.dedup();
    let ends: BTreeMap<i64, RunState> = ctx.store().page_last_ends(&groups).await?.into_iter().collect();
    let mut found: Vec<Failing> = Vec::new();
    let mut indexes: BTreeMap<i64, usize> = BTreeMap::new();
    for row in failures {
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
                    since: row.finished_at,
                    newest: row,
                    since_then,
                });
            }
        }
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

async fn with_bars(
    ctx: &Ctx,
    rows: Vec<heddle_store::pages::overview::TimelineRow>,
    from: Time,
    to: Time,
) -> Result<Vec<DrawnRow>, Trouble> {
    let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
    let mut bars: BTreeMap<i64, Vec<BarRow>> = BTreeMap::new();
    for bar in ctx.store().page_bars(&ids, from, BARS_EACH).await? {
        bars.entry(bar.group_id).or_default().push(bar);
    }
    let mut shown = Vec::with_capacity(rows.len());
    for row in rows {
        let mut instants = Vec::new();
        if let Some(group) = ctx.ui.engine.catalog().group(&row.name).await?
            && group.enabled
        {
            instants = next_instants(&group.revision.calendar, ctx.now, to);
        }
        let bars = bars.remove(&row.id).unwrap_or_default();
        if bars.is_empty() && instants.is_empty() {
            continue;
        }
        shown.push(DrawnRow {
            name: row.name,
            more: instants.len() > INSTANTS_EACH,
            bars,
            instants,
        });
    }
    Ok(shown)
}

fn next_instants(calendar: &Calendar, now: Time, to: Time) -> Vec<Time> {
    if !calendar.has_grid() {
        return calendar.next_after(now).filter(|at| *at <= to).into_iter().collect();
    }
    calendar.instants(now, to).take(INSTANTS_EACH + 1).collect()
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
        (ctx.live("attention", if nothing { welcome(ctx) } else { attention(ctx, &view) }))
        (ctx.live("day", html! { @if !nothing { (day(ctx, &view)) } }))
        div.two {
            (ctx.live("pace", html! { @if !nothing { (pace(ctx, &view)) } }))
            (ctx.live("nodes", html! { @if !nothing { (nodes(ctx, &view)) } }))
        }
    };
    Answer::page(Page::new("overview", title, body))
}

/// The first steps: a script that is one file needs no compiler.
const STEPS: [(&str, &str); 3] = [
    (
        "welcome-script",
        "heddle script new hello --lang javascript\nheddle script push hello hello/hello.js",
    ),
    (
        "welcome-group",
        "cat > hello.yaml <<'END'\nkind: group\nname: hello\ntasks:\n  greet: { script: hello }\nEND\nheddle apply -f hello.yaml",
    ),
    ("welcome-run", "heddle run start hello --watch"),
];

/// The node that commands use by default.
const USUAL_HOST: &str = "127.0.0.1:8080";

/// What a shell needs before the commands reach this node: its address, unless it is the usual one, and a token.
fn reaching(ctx: &Ctx) -> String {
    let plain = |host: &&str| {
        host.chars()
            .all(|letter| letter.is_ascii_alphanumeric() || ".-:[]".contains(letter))
    };
    let host = ctx.header("host").filter(plain).unwrap_or(USUAL_HOST);
    let scheme = match ctx.header("x-forwarded-proto") {
        Some("https") => "https",
        _ => "http",
    };
    let mut lines = String::new();
    if host != USUAL_HOST || scheme == "https" {
        lines.push_str(&format!("export HEDDLE_URL={scheme}://{host}\n"));
    }
    if !ctx.viewer.dev {
        lines.push_str("export HEDDLE_TOKEN=...\n");
    }
    lines
}

/// The greeting of an empty database, with the first steps.
fn welcome(ctx: &Ctx) -> Markup {
    let reaching = reaching(ctx);
    html! {
        section.panel {
            h2 { (t!(ctx, "welcome")) }
            ol.steps {
                @for (index, (word, commands)) in STEPS.into_iter().enumerate() {
                    @let commands = if index == 0 { format!("{reaching}{commands}") } else { commands.to_owned() };
                    li {
                        div.row { h3.grow { (t!(ctx, word)) } button.small type="button" data-copy=(commands) { (t!(ctx, "copy")) } }
                        pre { (commands) }
                    }
                }
            }
        }
    }
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
                            td.wide.why { (queues::stalled(ctx, one.waiting, one.paused, one.claimed)) }
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
                            td.tight.why { (t!(ctx, "given-up", n = one.count)) }
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
    html! {
        tr {
            td.tight { (group_or_topic(ctx, &one.group)) }
            td.tight { a href={ "/runs/" (run) } data-main { (state(ctx, RunState::Failed)) } }
            td.wide {
                span.error { (linked(&line(one.newest.error.as_deref().unwrap_or_default()))) }
                @if let Some(newest) = one.since_then { span.why { " " (t!(ctx, "newest-run")) " " (state(ctx, newest)) } }
            }
            td.tight.why { a href={ "/runs?group=" (segment(&one.group)) "&state=failed" } { (t!(ctx, "runs-count", n = one.count)) } br; (ago(ctx, one.since)) }
            td.tight.side {
                @if ctx.viewer.operates() {
                    (button(Button { glyph: "restart", ..Button::new(format!("/runs/{run}/restart"), t!(ctx, restart), t!(ctx, will)) }))
                }
            }
        }
    }
}

fn day(ctx: &Ctx, view: &View) -> Markup {
    // The time is rounded to the minute, so that the picture only changes when something in it does.
    let now = ctx.now
        - TimeDelta::seconds(i64::from(ctx.now.second()))
        - TimeDelta::nanoseconds(i64::from(ctx.now.nanosecond()));
    let axis = Axis {
        from: now - TimeDelta::hours(24),
        to: now + TimeDelta::hours(24),
        width: 1_000.0,
    };
    let ticks: Vec<Time> = hours(ctx.zone, axis.from, axis.to, 6);
    html! {
        section.panel aria-labelledby="day-title" {
            div.row {
                h2.grow #day-title { (t!(ctx, "day-title")) }
                (elements::legend(ctx, &[RunState::Succeeded, RunState::Failed, RunState::Running, RunState::Waiting]))
                span.state.key-scheduled { svg.key.picture width="3" height="8" aria-hidden="true" { rect.dot x="0" y="1" width="3" height="6" rx="1" {} } span { (t!(ctx, "to-come")) } }
            }
            @if view.rows.is_empty() { (empty(&t!(ctx, "day-empty"))) }
            @else {
                div.lanes {
                    div.head {}
                    svg.head.picture viewBox="0 0 1000 20" preserveAspectRatio="none" aria-hidden="true" {
                        line.axis x1="500" x2="500" y1="14" y2="20" {}
                    }
                    @for row in &view.rows {
                        div.lane.lane-name { (group_or_topic(ctx, &row.name)) }
                        (row_picture(ctx, row, &axis, &ticks))
                    }
                }
                (scale(ctx, &axis, &ticks))
                @if view.more_rows { p.muted { (t!(ctx, "more-lanes", n = TIMELINE_ROWS_MAX)) } }
            }
        }
    }
}

/// How much of the scale the word for *now* takes to either side, together with half the name of an hour. The second is
/// for a phone, where the scale has a third of the pixels.
const NOW_ROOM: f64 = 45.0;
const NOW_ROOM_PHONE: f64 = 115.0;

/// The hours under the timeline. They are HTML, because the picture is stretched, and text in it would be too.
fn scale(ctx: &Ctx, axis: &Axis, ticks: &[Time]) -> Markup {
    html! {
        div.lanes aria-hidden="true" {
            div {}
            // Without a view box, so that words have the same size at each width of the picture.
            svg.picture.scale {
                @for tick in ticks {
                    @let x = axis.x(*tick);
                    @let off = (x - 500.0).abs();
                    @if off > NOW_ROOM && x > 30.0 && x < 970.0 {
                        text.near[off < NOW_ROOM_PHONE] x=(format!("{:.2}%", x / 10.0)) y="14" text-anchor="middle" { (tick.with_timezone(&ctx.zone).format("%H:%M")) }
                    }
                }
                text.ink x="50%" y="14" text-anchor="middle" { (t!(ctx, "now")) }
            }
        }
    }
}

/// The position of a run on the axis: when it ran; or, if a backfill made it for the shown day, its logical time, where
/// the run was missing.
fn extent(bar: &BarRow, from: Time, now: Time) -> (Time, Time) {
    let begins = bar.at_work_since();
    let ends = bar.finished_at.unwrap_or(now);
    if bar.trigger == Trigger::Backfill && bar.logical_time >= from && bar.logical_time < begins {
        (bar.logical_time, bar.logical_time + (ends - begins))
    } else {
        (begins, ends)
    }
}

/// The width of a bar, at least so much that it can be seen.
const BAR_WIDTH_MIN: f64 = 2.2;

/// Whether a bar is no link.
fn is_narrow(bar: &BarRow, width: f64) -> bool {
    let ended_well = matches!(bar.state, RunState::Succeeded | RunState::Cancelled);
    ended_well && width < LINK_WIDTH_MIN
}

/// The bars of a group that are no links: one path for each state.
fn narrow(ctx: &Ctx, row: &DrawnRow, axis: &Axis) -> BTreeMap<String, String> {
    let mut paths: BTreeMap<String, String> = BTreeMap::new();
    for bar in row.bars.iter().rev() {
        let (begins, ends) = extent(bar, axis.from, ctx.now);
        let (x, width) = (axis.x(begins), (axis.x(ends) - axis.x(begins)).max(BAR_WIDTH_MIN));
        if ends >= axis.from && is_narrow(bar, width) {
            let path = paths.entry(fill(bar.state)).or_default();
            // Writing into a string does not fail.
            let _ = write!(path, "M{x:.1} 6h{width:.1}v14h-{width:.1}z");
        }
    }
    paths
}

fn row_picture(ctx: &Ctx, row: &DrawnRow, axis: &Axis, ticks: &[Time]) -> Markup {
    let label = t!(
        ctx,
        "lane-label",
        name = &row.name,
        runs = row.bars.len(),
        instants = row.instants.len().min(INSTANTS_EACH)
    );
    html! {
        svg.lane.picture viewBox="0 0 1000 26" preserveAspectRatio="none" role="group" aria-label=(label) {
            path.axis vector-effect="non-scaling-stroke" d=(ticks.iter().fold(String::new(), |path, tick| path + &format!("M{:.1} 0v26", axis.x(*tick)))) {}
            @for (class, path) in narrow(ctx, row, axis) { path class=(class) d=(path) {} }
            @for bar in row.bars.iter().rev() {
                @let failed = bar.state == RunState::Failed;
                @let (begins, ends) = extent(bar, axis.from, ctx.now);
                @let (x, width) = (axis.x(begins), (axis.x(ends) - axis.x(begins)).max(BAR_WIDTH_MIN));
                @if ends >= axis.from && !is_narrow(bar, width) {
                    a href={ "/runs/" (bar.id) } tabindex="-1" aria-hidden="true" {
                        // Failed runs can be clicked however short they were, because people look for them.
                        @if failed {
                            title { (row.name) " · " (elements::state_word(ctx, bar.state)) " · " (span::moment(ctx.lang, ctx.zone, begins, ctx.now, false)) }
                            rect.hit x=(format!("{:.1}", x - 3.0)) y="0" width=(format!("{:.1}", width + 6.0)) height="26" {}
                        }
                        rect class=(fill(bar.state)) x=(format!("{x:.1}")) y=(if failed { "4" } else { "6" }) width=(format!("{width:.1}")) height=(if failed { "18" } else { "14" }) rx="1" {}
                    }
                }
            }
            @if row.more {
                @let first = row.instants.first().map_or(500.0, |at| axis.x(*at));
                rect.density x=(format!("{first:.1}")) y="12" width=(format!("{:.1}", 1_000.0 - first)) height="2" {}
            } @else {
                @for at in &row.instants { rect.dot x=(format!("{:.1}", axis.x(*at) - 1.5)) y="10" width="3" height="6" rx="1" {} }
            }
            line.now vector-effect="non-scaling-stroke" x1="500" x2="500" y1="0" y2="26" {}
        }
    }
}

fn pace(ctx: &Ctx, view: &View) -> Markup {
    let peak = view.minutes.iter().map(|minute| minute.ended).max().unwrap_or(0);
    let most = peak.max(1) as f64;
    let total: i64 = view.minutes.iter().map(|minute| minute.ended).sum();
    let failed: i64 = view.minutes.iter().map(|minute| minute.failed).sum();
    let capped = |n: i64| {
        if n >= COUNT_MAX {
            format!("{}+", span::number(COUNT_MAX))
        } else {
            span::number(n)
        }
    };
    html! {
        section.panel aria-labelledby="pace-title" {
            div.row { h2.grow #pace-title { (t!(ctx, "pace-title")) } span.muted { (t!(ctx, "pace-most", n = peak)) } }
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
                    @for node in view.nodes.iter().take(8) {
                        tr {
                            td { bdi { (node.name) } }
                            td.tight { (state(ctx, node.state.as_str())) }
                            td.num { (t!(ctx, "of", n = number(node.running), all = number(node.slots))) }
                        }
                    }
                }
            }
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
        };
        assert_eq!(view.troubles(), (2, 2));
        view.failing.clear();
        assert_eq!(view.troubles(), (1, 0));
    }

    #[test]
    fn a_backfill_of_the_day_fills_it() {
        let at = |text: &str| -> Time { text.parse().unwrap() };
        let (from, now) = (at("2026-11-21T12:00:00Z"), at("2026-11-22T12:00:00Z"));
        let bar = |trigger: Trigger, logical: &str| BarRow {
            group_id: 1,
            id: uuid::Uuid::nil(),
            state: RunState::Succeeded,
            trigger,
            created_at: at("2026-11-22T11:00:00Z"),
            started_at: Some(at("2026-11-22T11:00:01Z")),
            reopened_at: None,
            finished_at: Some(at("2026-11-22T11:00:03Z")),
            logical_time: at(logical),
        };
        let ran = (at("2026-11-22T11:00:01Z"), at("2026-11-22T11:00:03Z"));
        let extent = |bar: BarRow| extent(&bar, from, now);
        assert_eq!(
            extent(bar(Trigger::Backfill, "2026-11-22T02:00:00Z")),
            (at("2026-11-22T02:00:00Z"), at("2026-11-22T02:00:02Z"))
        );
        // A backfilled run for a logical time years ago is at the time at which it ran. So is a run by a schedule.
        assert_eq!(extent(bar(Trigger::Backfill, "2012-01-01T00:00:00Z")), ran);
        assert_eq!(extent(bar(Trigger::Schedule, "2026-11-22T02:00:00Z")), ran);
    }
}
