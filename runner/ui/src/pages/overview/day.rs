//! One day back and one day ahead: a line for each group, with its runs and its future instants.

use std::collections::BTreeMap;
use std::fmt::Write;

use chrono::{TimeDelta, Timelike};
use heddle_api::{RunState, Trigger};
use heddle_domain::Time;
use heddle_domain::schedule::Calendar;
use heddle_store::pages::overview::BarRow;
use heddle_store::pages::timeline::TimelineRow;
use maud::{Markup, html};

use crate::chart::{Axis, fill, hours};
use crate::elements::{self, empty, group_or_topic};
use crate::span;
use crate::words::t;
use crate::{Ctx, Trouble};

/// How many groups the timeline draws, each on a line of its own.
const TIMELINE_ROWS_MAX: i64 = 40;
/// How many runs are read for each group of the timeline.
const BARS_EACH: i64 = 150;
/// Of a group that has more, how many runs are drawn of each hour, and how many that failed.
const BARS_HOUR: i64 = 5;
/// How many future instants are drawn for each group of the timeline; if there are more, one line is drawn.
const INSTANTS_EACH: usize = 60;
/// A bar that is shorter than this and did not fail is drawn together with others of its state and has no link: nobody
/// could hit it, and there may be thousands.
const LINK_WIDTH_MIN: f64 = 6.0;

/// A group with its runs and its future instants.
pub(super) struct DrawnRow {
    pub(super) name: String,
    bars: Vec<BarRow>,
    instants: Vec<Time>,
    more: bool,
    /// It has more runs than are drawn: a few of each hour are.
    thinned: bool,
}

/// The groups that have something to draw between these times, and whether there are more of them.
pub(super) async fn read(ctx: &Ctx, from: Time, to: Time) -> Result<(Vec<DrawnRow>, bool), Trouble> {
    let mut rows = ctx.store().page_timeline(from, to, TIMELINE_ROWS_MAX + 1).await?;
    let more = rows.len() as i64 > TIMELINE_ROWS_MAX;
    rows.truncate(TIMELINE_ROWS_MAX as usize);
    // By name, so that lines stay where they are when a run begins or fails.
    rows.sort_unstable_by(|left, right| left.name.cmp(&right.name));
    Ok((with_bars(ctx, rows, from, to).await?, more))
}

async fn with_bars(ctx: &Ctx, rows: Vec<TimelineRow>, from: Time, to: Time) -> Result<Vec<DrawnRow>, Trouble> {
    let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
    let mut bars: BTreeMap<i64, Vec<BarRow>> = BTreeMap::new();
    for bar in ctx.store().page_bars(&ids, from, BARS_EACH).await? {
        bars.entry(bar.group_id).or_default().push(bar);
    }
    let has_ended = |bar: &BarRow| bar.finished_at.is_some();
    let busy: Vec<i64> = bars
        .iter()
        .filter(|(_, bars)| bars.iter().filter(|bar| has_ended(bar)).count() as i64 >= BARS_EACH)
        .map(|(group, _)| *group)
        .collect();
    if !busy.is_empty() {
        for group in &busy {
            bars.entry(*group).or_default().retain(|bar| !has_ended(bar));
        }
        for bar in ctx.store().page_spread_bars(&busy, from, BARS_HOUR).await? {
            bars.entry(bar.group_id).or_default().push(bar);
        }
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
            thinned: busy.contains(&row.id),
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

pub(super) fn inside(ctx: &Ctx, rows: &[DrawnRow], more: bool) -> Markup {
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
            @if rows.is_empty() { (empty(&t!(ctx, "day-empty"))) }
            @else {
                div.lanes {
                    div.head {}
                    svg.head.picture viewBox="0 0 1000 20" preserveAspectRatio="none" aria-hidden="true" {
                        line.axis x1="500" x2="500" y1="14" y2="20" {}
                    }
                    @for row in rows {
                        div.lane.lane-name { (group_or_topic(ctx, &row.name)) }
                        (row_picture(ctx, row, &axis, &ticks))
                    }
                }
                (scale(ctx, &axis, &ticks))
                @if rows.iter().any(|row| row.thinned) { p.muted { (t!(ctx, "day-thinned", n = BARS_EACH, each = BARS_HOUR)) } }
                @if more { p.muted { (t!(ctx, "more-lanes", n = TIMELINE_ROWS_MAX)) } }
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
    let label = if row.thinned {
        "lane-label-thinned"
    } else {
        "lane-label"
    };
    let label = t!(
        ctx,
        label,
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

#[cfg(test)]
mod tests {
    use super::*;

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
