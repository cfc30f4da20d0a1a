//! A year of a group, day by day: how its runs went, and where instants are still to come. The preview of a backfill is
//! drawn the same way.

use std::collections::BTreeMap;

use chrono::{DateTime, Datelike, Days, Months, NaiveDate, TimeZone};
use chrono_tz::Tz;
use heddle_domain::Time;
use heddle_domain::schedule::Calendar;
use heddle_domain::state::RunState;
use maud::{Markup, html};

use super::here::{Here, framed};
use crate::elements::{Shown, state_word, with_query};
use crate::pages::answer::Answer;
use crate::words::{Lang, t};
use crate::{Ctx, Trouble};

/// How many runs of instants are read, and how many of the others. If a group has more in a year, the newest are shown.
/// A schedule with an instant each hour has 8,760 in a year.
const RUNS_MAX: (i64, i64) = (10_000, 5_000);
/// How many future instants are counted. For later days, the page only says that there are instants.
const INSTANTS_MAX: usize = 3_000;
/// A day's side, and the step to the next.
const SIDE: u32 = 20;
const STEP: u32 = 22;

/// How a day went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Day {
    /// Runs that a backfill would make.
    pub(super) planned: usize,
    runs: usize,
    failed: usize,
    cancelled: usize,
    open: usize,
    to_come: usize,
    /// There are more future instants than were counted.
    more_to_come: bool,
}

impl Day {
    fn add(&mut self, state: RunState, count: usize) {
        self.runs += count;
        match state {
            RunState::Failed => self.failed += count,
            RunState::Cancelled => self.cancelled += count,
            RunState::Succeeded => {}
            RunState::Waiting | RunState::Running | RunState::Paused => self.open += count,
        }
    }

    /// Whether some of its runs failed, and not the most of them.
    fn failed_few(&self) -> bool {
        self.failed > 0 && self.failed * 2 < self.runs
    }

    /// The state in whose colour most of its area is drawn: of a day with few failures that of the other runs.
    fn drawn_as(&self) -> Option<RunState> {
        if !self.failed_few() {
            return self.state();
        }
        let others = Self {
            runs: self.runs - self.failed,
            failed: 0,
            ..*self
        };
        others.state()
    }

    fn comes(&self) -> bool {
        self.to_come > 0 || self.more_to_come
    }

    /// The state in whose colour the day is drawn, if it has runs. Failed goes first, because people look for failures.
    fn state(&self) -> Option<RunState> {
        match self {
            Self { runs: 0, .. } => None,
            Self { failed: 1.., .. } => Some(RunState::Failed),
            Self { open: 1.., .. } => Some(RunState::Running),
            Self { runs, cancelled, .. } if runs == cancelled => Some(RunState::Cancelled),
            _ => Some(RunState::Succeeded),
        }
    }
}

/// How the days of a zone that follow one another went, up to an end, and whether there were more runs than are read.
pub(super) async fn days_of(
    ctx: &Ctx,
    here: &Here,
    zone: Tz,
    dates: &[NaiveDate],
    to: Time,
) -> Result<(BTreeMap<NaiveDate, Day>, bool), Trouble> {
    let mut instants: Vec<Time> = dates.iter().map(|day| begins(zone, *day)).collect();
    instants.push(to);
    let ends = ctx.store().page_group_ends(here.group.id, &instants, RUNS_MAX).await?;
    let mut days: BTreeMap<NaiveDate, Day> = BTreeMap::new();
    for (stretch, state, count) in ends.counts {
        let date = usize::try_from(stretch - 1).ok().and_then(|index| dates.get(index));
        if let (Some(date), Ok(count)) = (date, usize::try_from(count)) {
            days.entry(*date).or_default().add(state, count);
        }
    }
    Ok((days, ends.cut))
}

/// Midnight of a day; where a clock change has none, the first instant after it.
pub(super) fn begins(zone: Tz, day: NaiveDate) -> Time {
    let midnight = day.and_time(chrono::NaiveTime::MIN);
    let found = zone.from_local_datetime(&midnight).earliest();
    let later = || {
        let behind = midnight + chrono::TimeDelta::hours(1);
        zone.from_local_datetime(&behind).earliest()
    };
    found
        .or_else(later)
        .map_or_else(|| midnight.and_utc(), |at: DateTime<Tz>| at.to_utc())
}

fn first_of(year: i32) -> Option<NaiveDate> {
    NaiveDate::from_ymd_opt(year, 1, 1)
}

pub(super) async fn page(ctx: &Ctx, here: &Here) -> Result<Answer, Trouble> {
    let today = ctx.now.with_timezone(&ctx.zone).date_naive();
    let asked = ctx.q("year").and_then(|year| year.parse::<i32>().ok());
    let year = asked
        .filter(|year| (1970..=9_998).contains(year))
        .unwrap_or(today.year());
    let (Some(first), Some(behind)) = (first_of(year), first_of(year + 1)) else {
        return Err(Trouble::not_found());
    };
    let to = begins(ctx.zone, behind);
    let dates: Vec<NaiveDate> = first.iter_days().take_while(|day| *day < behind).collect();
    let (mut days, cut) = days_of(ctx, here, ctx.zone, &dates, to).await?;
    let calendar = &here.group.revision.calendar;
    if here.group.enabled && to > ctx.now && calendar.has_grid() {
        let spans = dates.iter().enumerate().map(|(index, day)| {
            let next = dates.get(index + 1).map_or(to, |next| begins(ctx.zone, *next));
            (*day, begins(ctx.zone, *day).max(ctx.now), next)
        });
        to_come(calendar, spans.filter(|(_, from, to)| from < to), &mut days);
    }
    let inside = html! {
        section.panel aria-label=(t!(ctx, "tab-calendar")) {
            div.row {
                nav.choice aria-label=(t!(ctx, "year")) {
                    a href=(with_query(ctx, &[("year", Some(&(year - 1).to_string()))])) { (year - 1) }
                    a href=(with_query(ctx, &[("year", Some(&year.to_string()))])) aria-current="true" { (year) }
                    a href=(with_query(ctx, &[("year", Some(&(year + 1).to_string()))])) { (year + 1) }
                }
                span.grow {}
                (legend_of_days(ctx))
                span.legend { span.state.s-ready { svg.key.picture width="16" height="12" aria-hidden="true" { rect.to-come x="2" y="1" width="10" height="10" rx="2" {} } span { (t!(ctx, "to-come")) } } }
            }
            (ctx.live("calendar", html! {
                div.calendar {
                    @for month in 0..12 {
                        @if let Some(start) = first.checked_add_months(Months::new(month)) { (month_of(ctx, here, ctx.zone, start, &month_name(ctx.lang, start), &days)) }
                    }
                }
                p.muted {
                    (t!(ctx, "calendar-by", zone = ctx.zone.name()))
                    @if cut { " " (t!(ctx, "calendar-cut", n = RUNS_MAX.0, m = RUNS_MAX.1)) }
                }
            }))
        }
    };
    Answer::page(framed(ctx, here, "calendar", inside))
}

/// How days look, each with the word for it.
pub(super) fn legend_of_days(ctx: &Ctx) -> Markup {
    html! {
        ul.legend aria-label=(t!(ctx, "legend")) {
            @for state in [RunState::Succeeded, RunState::Failed, RunState::Running, RunState::Cancelled] {
                li { span class={ "state s-" (state.glyph()) } {
                    svg.key.picture width="16" height="12" aria-hidden="true" {
                        rect class=(crate::chart::fill(state)) x="2" y="1" width="10" height="10" rx="2" {}
                        @if state == RunState::Failed { path.cell-mark.day-mark d="M5 4l4 4m0 -4l-4 4" {} }
                    }
                    span { (state_word(ctx, state)) }
                } }
            }
        }
    }
}

/// Counts what is to come, day by day: a day behind as many as are counted costs one look.
fn to_come(
    calendar: &Calendar,
    spans: impl Iterator<Item = (NaiveDate, Time, Time)>,
    days: &mut BTreeMap<NaiveDate, Day>,
) {
    let mut left = INSTANTS_MAX;
    for (day, from, to) in spans {
        let last = to - chrono::TimeDelta::microseconds(1);
        let found = calendar.instants(from, last).take(left + 1).count();
        if found > 0 {
            let day = days.entry(day).or_default();
            (day.to_come, day.more_to_come) = (found.min(left), found > left);
        }
        left -= found.min(left);
    }
}

fn month_name(lang: Lang, day: NaiveDate) -> String {
    match lang {
        Lang::En => day.format("%B").to_string(),
        Lang::Zh => format!("{}月", day.month()),
    }
}

/// The name of a month, with its year if months of several years are shown.
pub(super) fn month_and_year(lang: Lang, day: NaiveDate) -> String {
    match lang {
        Lang::En => day.format("%B %Y").to_string(),
        Lang::Zh => format!("{}年{}月", day.year(), day.month()),
    }
}

/// A month of a zone, weeks below one another, Mondays first.
pub(super) fn month_of(
    ctx: &Ctx,
    here: &Here,
    zone: Tz,
    start: NaiveDate,
    name: &str,
    days: &BTreeMap<NaiveDate, Day>,
) -> Markup {
    let today = ctx.now.with_timezone(&zone).date_naive();
    let lead = start.weekday().num_days_from_monday();
    let all: Vec<NaiveDate> = start
        .iter_days()
        .take_while(|day| day.month() == start.month())
        .collect();
    let weeks = (lead + all.len() as u32).div_ceil(7);
    html! {
        div.month {
            h2 { (name) }
            svg.picture width=(7 * STEP) height=(weeks * STEP) viewBox=(format!("0 0 {} {}", 7 * STEP, weeks * STEP)) role="group" aria-label=(name) {
                @for (index, day) in all.iter().enumerate() {
                    @let cell = lead + index as u32;
                    @let how = days.get(day).copied().unwrap_or_default();
                    @let drawn = drawn(*day, *day == today, how, (cell % 7 * STEP, cell / 7 * STEP));
                    (one(ctx, here, zone, *day, how, &drawn))
                }
            }
        }
    }
}

/// The picture of a day at a place.
fn drawn(day: NaiveDate, is_today: bool, how: Day, (x, y): (u32, u32)) -> Markup {
    let drawn_as = how.drawn_as();
    html! {
        @if how.runs == 0 && how.comes() { rect.day.to-come x=(f64::from(x) + 0.75) y=(f64::from(y) + 0.75) width=(f64::from(SIDE) - 1.5) height=(f64::from(SIDE) - 1.5) rx="4" {} }
        @else if let Some(state) = drawn_as { rect class=(crate::chart::fill(state)) x=(x) y=(y) width=(SIDE) height=(SIDE) rx="4" {} }
        @else { rect.day x=(x) y=(y) width=(SIDE) height=(SIDE) rx="4" {} }
        // Where few of a day's runs failed its foot is red; where most did, all of it is.
        @if how.failed_few() { path.f-failed d=(format!("M{x} {}h{SIDE}v4a4 4 0 0 1 -4 4h-{}a4 4 0 0 1 -4 -4z", y + 12, SIDE - 8)) {} }
        @if how.planned > 0 { rect.planned x=(f64::from(x) + 1.0) y=(f64::from(y) + 1.0) width=(f64::from(SIDE) - 2.0) height=(f64::from(SIDE) - 2.0) rx="4" {} }
        @if is_today { rect.here x=(f64::from(x) + 0.75) y=(f64::from(y) + 0.75) width=(f64::from(SIDE) - 1.5) height=(f64::from(SIDE) - 1.5) rx="4" {} }
        // A day keeps its number; the sign of a failure stands below it.
        @let foot = how.failed > 0;
        text class=(format!("date on-{}", drawn_as.map_or("none", RunState::as_str))) x=(x + SIDE / 2) y=(y + if foot { 10 } else { 14 }) text-anchor="middle" { (day.day()) }
        @if foot { path.cell-mark.day-mark d=(format!("M{} {}l4 4m0 -4l-4 4", x + 8, y + 14)) {} }
    }
}

fn one(ctx: &Ctx, here: &Here, zone: Tz, day: NaiveDate, how: Day, drawn: &Markup) -> Markup {
    if how.runs == 0 && !how.comes() && how.planned == 0 {
        return html! { g { title { (said(ctx, day, how)) } (drawn) } };
    }
    if how.runs == 0 {
        return html! { g role="img" aria-label=(said(ctx, day, how)) { title { (said(ctx, day, how)) } (drawn) } };
    }
    html! { a href=(address(here, zone, day)) { title { (said(ctx, day, how)) } (drawn) } }
}

/// `March 3: 24 runs, 2 failed`.
fn said(ctx: &Ctx, day: NaiveDate, how: Day) -> String {
    let date = match ctx.lang {
        Lang::En => day.format("%B %-d").to_string(),
        Lang::Zh => format!("{}月{}日", day.month(), day.day()),
    };
    let mut parts = Vec::new();
    if how.runs > 0 {
        parts.push(t!(ctx, "runs-count", n = how.runs));
    }
    if how.failed > 0 {
        parts.push(t!(ctx, "failed-count", n = how.failed));
    }
    if how.planned > 0 {
        parts.push(t!(ctx, "planned-count", n = how.planned));
    }
    if how.more_to_come {
        parts.push(t!(ctx, "to-come"));
    } else if how.to_come > 0 {
        parts.push(t!(ctx, "to-come-count", n = how.to_come));
    }
    if parts.is_empty() {
        return date;
    }
    format!("{date}{}{}", ctx.lang.colon(), parts.join(ctx.lang.comma()))
}

/// The runs of a day.
fn address(here: &Here, zone: Tz, day: NaiveDate) -> String {
    let next = day.checked_add_days(Days::new(1)).unwrap_or(day);
    let last = begins(zone, next) - chrono::TimeDelta::milliseconds(1);
    let written = |at: Time| at.to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
    let query = url::form_urlencoded::Serializer::new(String::new())
        .append_pair("group", &here.name)
        .append_pair("logical_from", &written(begins(zone, day)))
        .append_pair("logical_to", &written(last))
        .finish();
    format!("/runs?{query}")
}

#[cfg(test)]
mod tests {
    use heddle_domain::schedule::Schedule;

    use super::*;

    #[test]
    fn a_day_is_what_one_looks_for_in_it() {
        let mut day = Day::default();
        assert_eq!(day.state(), None);
        for (state, shown) in [
            (RunState::Cancelled, RunState::Cancelled),
            (RunState::Succeeded, RunState::Succeeded),
            (RunState::Running, RunState::Running),
            (RunState::Failed, RunState::Failed),
        ] {
            day.add(state, 1);
            assert_eq!(day.state(), Some(shown));
        }
        assert_eq!((day.runs, day.failed), (4, 1));
        // One of four is few, and half of them is not.
        assert!(day.failed_few());
        assert_eq!(day.drawn_as(), Some(RunState::Running), "one of the others goes on");
        day.add(RunState::Failed, 2);
        assert!(!day.failed_few() && !Day::default().failed_few());
    }

    #[test]
    fn what_is_to_come_is_shown_to_the_end_of_the_year() {
        let spec = serde_json::from_value(serde_json::json!({"cron": "*/10 * * * *"})).unwrap();
        let calendar = Calendar::new([Schedule::compile(&spec, Tz::UTC, Time::UNIX_EPOCH).unwrap()]);
        let first = NaiveDate::from_ymd_opt(2027, 1, 1).unwrap();
        let spans: Vec<_> = first
            .iter_days()
            .take(365)
            .map(|day| (day, begins(Tz::UTC, day), begins(Tz::UTC, day + Days::new(1))))
            .collect();
        let mut days = BTreeMap::new();
        to_come(&calendar, spans.into_iter(), &mut days);
        assert_eq!(days.len(), 365);
        assert_eq!((days[&first].to_come, days[&first].more_to_come), (144, false));
        let last = NaiveDate::from_ymd_opt(2027, 12, 31).unwrap();
        assert!(days[&last].more_to_come && days[&last].comes());
    }

    #[test]
    fn a_day_without_a_midnight_begins_all_the_same() {
        // Clocks in Cairo went from 00:00 to 01:00 on that day.
        let day = NaiveDate::from_ymd_opt(2024, 4, 26).unwrap();
        assert_eq!(
            begins(chrono_tz::Africa::Cairo, day).to_rfc3339(),
            "2024-04-25T22:00:00+00:00"
        );
        assert_eq!(begins(Tz::UTC, day).to_rfc3339(), "2024-04-26T00:00:00+00:00");
    }
}
