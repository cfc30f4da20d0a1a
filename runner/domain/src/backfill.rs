//! Backfills: what may be asked for, which instants that means, and what happens with an instant that has a run.
//!
//! All is computed from the spec, the calendar and the present instant, so a node that takes a backfill over continues
//! exactly where the last one stopped: it only needs the last decided instant.

use std::collections::BTreeMap;

use chrono::TimeDelta;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::schedule::Calendar;
use crate::schedule::local::parse_moment;
use crate::spec::bounds::{PRIORITY, check_priority};
use crate::state::RunState;
use crate::{Fault, Faults, Span, Time};

/// How many instants one backfill may have.
pub const INSTANTS_MAX: u64 = 1_000_000;

/// The maximum number of its runs that are active at the same time, 1 to 10,000. Default: 1.
pub const ACTIVE_MAX: u32 = 10_000;

/// How much lower a backfill's priority is than that of its group's other runs, by default.
pub const PRIORITY_BELOW: i16 = 10;

/// Where the priority of a run comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// The priority of its group.
    Usual,
    /// The priority of its group, [lowered](PRIORITY_BELOW): it belongs to a backfill, so the group's other runs go first.
    Historic,
    /// It was given this priority.
    Given(i16),
}

impl Urgency {
    /// The priority of a run whose group has this one.
    pub fn priority(self, group: Option<i16>) -> i16 {
        let usual = group.unwrap_or(0);
        match self {
            Self::Usual => usual,
            Self::Historic => usual.saturating_sub(PRIORITY_BELOW).max(*PRIORITY.start()),
            Self::Given(priority) => priority,
        }
    }

    /// The urgency of a sub-run with this `priority`, in a group whose own priority is `group`: its own sub-runs get
    /// the same urgency in their groups. The sub-run may belong to a backfill or not.
    pub fn of(priority: i16, group: Option<i16>) -> Self {
        match Self::Usual.priority(group) == priority {
            true => Self::Usual,
            false => Self::of_historic(priority, group),
        }
    }

    /// The same for a run that a backfill has created, in its own group or in a dependant. It is as urgent as the other
    /// runs of its group only if it was given their priority.
    pub fn of_historic(priority: i16, group: Option<i16>) -> Self {
        match Self::Historic.priority(group) == priority {
            true => Self::Historic,
            false => Self::Given(priority),
        }
    }
}

/// The order of the runs. Default: `asc`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "BackfillOrder")]
pub enum Order {
    /// The oldest instant first.
    #[default]
    Asc,
    /// The newest instant first.
    Desc,
}

/// What happens with instants that already have a run. Default: `skip`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnExisting {
    /// They are skipped: only missing runs are created.
    #[default]
    Skip,
    /// Instants whose last run failed or was cancelled get a new run.
    Failed,
    /// All instants get a new run.
    All,
}

impl OnExisting {
    /// The number that the database keeps.
    pub fn number(self) -> i16 {
        match self {
            Self::Skip => 0,
            Self::Failed => 1,
            Self::All => 2,
        }
    }

    /// The value of a number in the database.
    pub fn from_number(number: i16) -> Option<Self> {
        [Self::Skip, Self::Failed, Self::All]
            .into_iter()
            .find(|one| one.number() == number)
    }
}

/// The script versions of the runs. Default: `active`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "BackfillScripts")]
pub enum Scripts {
    /// The versions that are active when a run is created.
    #[default]
    Active,
    /// The versions of the run that is replaced.
    Pinned,
}

/// The request to start a backfill: the body of `POST /v1/groups/{name}/backfills`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "BackfillRequest")]
pub struct BackfillSpec {
    /// The first instant, included: RFC 3339, or a date or local time in the group's time zone.
    pub from: String,
    /// The last instant, included. It must not be in the future. Default: now, plus instants that become due in the
    /// meantime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The duration between two instants. Default: the instants of the group's `cron`, `every` and `daily` schedules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Span>,
    /// The order of the runs. Default: `asc`.
    #[serde(default)]
    pub order: Order,
    /// The maximum number of its runs that are active at the same time, 1 to 10,000. Default: 1.
    #[serde(default = "one", deserialize_with = "active")]
    #[schemars(range(min = 1, max = ACTIVE_MAX))]
    pub max_active: u32,
    /// What happens with instants that already have a run. Default: `skip`.
    #[serde(default)]
    pub on_existing: OnExisting,
    /// Whether the groups that depend on this group also run, for each instant. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub include_downstream: bool,
    /// The script versions of the runs. Default: `active`.
    #[serde(default)]
    pub scripts: Scripts,
    /// The priority of the runs, and of those that they cause in other groups, -1000 to 1000; higher starts first.
    /// Default: 10 below the priority of each group.
    #[serde(
        default,
        deserialize_with = "crate::spec::priority",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(range(min = -1000, max = 1000))]
    pub priority: Option<i16>,
    /// The params of each run.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub params: Map<String, Value>,
    /// Only list the instants, and store nothing. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// Create runs even if the group is disabled. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

fn one() -> u32 {
    1
}

fn active<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    crate::spec::whole(deserializer, 1..=ACTIVE_MAX)
}

/// The instants between two, however they are defined.
#[derive(Clone, Debug)]
pub enum Grid {
    /// The instants of the group's schedules.
    Calendar(Calendar),
    /// Every so often from `from`.
    Step {
        from: Time,
        /// The duration between two instants.
        step: Span,
    },
}

impl Grid {
    /// The instants from `from` to `to`, both included, in an order.
    pub fn instants(&self, from: Time, to: Time, order: Order) -> Box<dyn Iterator<Item = Time> + '_> {
        match (self, order) {
            (Self::Calendar(calendar), Order::Asc) => Box::new(calendar.instants(from, to)),
            (Self::Calendar(calendar), Order::Desc) => Box::new(calendar.instants_descending(from, to)),
            (Self::Step { from: base, step }, order) => {
                let (Some(first), Some(last)) = (steps_up(*base, *step, from), steps_down(*base, *step, to)) else {
                    return Box::new(std::iter::empty());
                };
                let at = |n: i64| *base + TimeDelta::microseconds(n * step.micros() as i64);
                match order {
                    Order::Asc => Box::new((first..=last).map(at)),
                    Order::Desc => Box::new((first..=last).rev().map(at)),
                }
            }
        }
    }

    /// The instants that follow `position` (all, if there is none) between `from` and `to`, in an order.
    pub fn after(
        &self,
        position: Option<Time>,
        from: Time,
        to: Time,
        order: Order,
    ) -> Box<dyn Iterator<Item = Time> + '_> {
        const MICRO: TimeDelta = TimeDelta::microseconds(1);
        match (position, order) {
            (None, _) => self.instants(from, to, order),
            (Some(position), Order::Asc) => self.instants(from.max(position + MICRO), to, order),
            (Some(position), Order::Desc) => self.instants(from, to.min(position - MICRO), order),
        }
    }

    /// The data interval of one of its instants.
    pub fn data_interval(&self, instant: Time) -> (Time, Time) {
        match self {
            Self::Calendar(calendar) => calendar.data_interval(instant),
            Self::Step { step, .. } => (instant.checked_sub_signed(step.chrono()).unwrap_or(instant), instant),
        }
    }

    /// How many instants there are between two, both included; `Err`: more than [`INSTANTS_MAX`], and how many at least.
    pub fn count(&self, from: Time, to: Time) -> Result<u64, u64> {
        match self {
            Self::Calendar(calendar) => calendar.count(from, to, INSTANTS_MAX),
            Self::Step { from: base, step } => {
                let count = match (steps_up(*base, *step, from), steps_down(*base, *step, to)) {
                    (Some(first), Some(last)) if last >= first => (last - first) as u64 + 1,
                    _ => 0,
                };
                if count > INSTANTS_MAX { Err(count) } else { Ok(count) }
            }
        }
    }

    /// Whether it names this instant.
    pub fn names(&self, at: Time) -> bool {
        match self {
            Self::Calendar(calendar) => calendar.names(at),
            Self::Step { from: base, step } => steps_up(*base, *step, at) == steps_down(*base, *step, at),
        }
    }

    /// Whether [`Grid::count`] returns the exact number even if it is too large, and not only a lower bound.
    fn counts_exactly(&self) -> bool {
        match self {
            Self::Calendar(calendar) => calendar.schedules_with_grid() == 1,
            Self::Step { .. } => true,
        }
    }
}

/// The first step at or after an instant, none before the base.
fn steps_up(base: Time, step: Span, at: Time) -> Option<i64> {
    let micros = at.signed_duration_since(base).num_microseconds()?.max(0);
    let step = i64::try_from(step.micros()).ok()?.max(1);
    Some(micros / step + i64::from(micros % step != 0))
}

/// The last step at or before an instant.
fn steps_down(base: Time, step: Span, at: Time) -> Option<i64> {
    let micros = at.signed_duration_since(base).num_microseconds()?;
    Some(micros.div_euclid(i64::try_from(step.micros()).ok()?.max(1)))
}

/// A backfill that has been checked.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The first instant, included.
    pub from: Time,
    /// The last, included; none: up to now.
    pub to: Option<Time>,
    pub grid: Grid,
    /// The priority of its runs.
    pub priority: i16,
}

impl Checked {
    /// Returns itself, unless it has more instants than a backfill may have.
    fn bounded(self, now: Time) -> Result<Self, Faults> {
        let Err(count) = self.grid.count(self.from, self.to.unwrap_or(now)) else {
            return Ok(self);
        };
        let many = match self.grid.counts_exactly() {
            true => format!("{count}"),
            false => format!("at least {count}"),
        };
        let detail = format!(
            "this range has {many} instants, but a backfill may have at most {INSTANTS_MAX}; shorten the \
                range, or start several backfills"
        );
        Err(Fault::at("/from", detail).into())
    }
}

impl BackfillSpec {
    /// Checks it against the group's calendar, zone and priority.
    pub fn check(
        &self,
        calendar: Calendar,
        zone: chrono_tz::Tz,
        group_priority: Option<i16>,
        now: Time,
    ) -> Result<Checked, Faults> {
        let mut faults = Faults::default();
        let mut moment = |field: &str, text: &str| match parse_moment(text, zone) {
            Ok(at) => Some(crate::clock::to_micros(at)),
            Err(detail) => {
                faults.add(field, detail);
                None
            }
        };
        let from = moment("/from", &self.from);
        let to = self.to.as_deref().map(|text| moment("/to", text));
        if let Some(Some(to)) = to
            && to > now
        {
            faults.add(
                "/to",
                "`to` must not be in the future; without it, instants that become due in the meantime are included",
            );
        }
        if let Some(from) = from
            && from > to.flatten().unwrap_or(now)
        {
            let than = if self.to.is_some() { "`to`" } else { "now" };
            faults.add("/from", format!("`from` must not be after {than}"));
        }
        if self.step.is_some_and(Span::is_zero) {
            faults.add("/step", "`step` must be longer than zero");
        }
        if self.step.is_none() && !calendar.has_grid() {
            faults.add(
                "/step",
                "`step` is required, because the group has no `cron`, `every` or `daily` schedule",
            );
        }
        if self.max_active == 0 || self.max_active > ACTIVE_MAX {
            faults.add("/max_active", format!("`max_active` must be from 1 to {ACTIVE_MAX}"));
        }
        if let Some(Err(detail)) = self.priority.map(check_priority) {
            faults.add("/priority", detail);
        }
        let (true, Some(from)) = (faults.is_empty(), from) else {
            return Err(faults);
        };
        let grid = match self.step {
            Some(step) => Grid::Step { from, step },
            None => Grid::Calendar(calendar),
        };
        let urgency = self.priority.map_or(Urgency::Historic, Urgency::Given);
        let checked = Checked {
            from,
            to: to.flatten(),
            grid,
            priority: urgency.priority(group_priority),
        };
        checked.bounded(now)
    }
}

/// The last run that was made for an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Existing<R> {
    pub run: R,
    pub state: RunState,
    /// Whether it is older than the backfill.
    pub earlier: bool,
}

/// What happens with an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<R> {
    /// It gets a run; there is none.
    Fill,
    /// It gets a run instead of this one.
    Replace(R),
    /// It is left alone.
    Skip,
}

/// Decides about an instant. A live run is never replaced: the instant is being handled already. Nor is a run that was
/// created after the backfill: a schedule, or another backfill, was faster.
pub fn decide<R>(on_existing: OnExisting, existing: Option<Existing<R>>) -> Verdict<R> {
    let Some(existing) = existing else { return Verdict::Fill };
    let wanted = match on_existing {
        OnExisting::Skip => false,
        OnExisting::Failed => matches!(existing.state, RunState::Failed | RunState::Cancelled),
        OnExisting::All => existing.state.is_final(),
    };
    if wanted && existing.earlier {
        Verdict::Replace(existing.run)
    } else {
        Verdict::Skip
    }
}

/// How a backfill ends, or has ended: it has succeeded if all of its runs have. As long as one that somebody has restarted
/// goes on, it has not.
pub fn ended(counts: &BTreeMap<RunState, i64>) -> RunState {
    let is_good = |(state, count): (&RunState, &i64)| *state == RunState::Succeeded || *count == 0;
    match counts.iter().all(is_good) {
        true => RunState::Succeeded,
        false => RunState::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Schedule;
    use crate::spec::ScheduleSpec;
    use chrono_tz::Tz;

    fn time(text: &str) -> Time {
        text.parse().expect("a time")
    }

    #[test]
    fn a_backfill_has_succeeded_when_all_of_its_runs_have() {
        let of = |counts: &[(RunState, i64)]| ended(&counts.iter().copied().collect());
        assert_eq!(of(&[]), RunState::Succeeded);
        assert_eq!(
            of(&[(RunState::Succeeded, 3), (RunState::Failed, 0)]),
            RunState::Succeeded
        );
        for state in [
            RunState::Waiting,
            RunState::Running,
            RunState::Paused,
            RunState::Failed,
            RunState::Cancelled,
        ] {
            assert_eq!(of(&[(RunState::Succeeded, 3), (state, 1)]), RunState::Failed, "{state}");
        }
    }

    fn calendar(crons: &[&str]) -> Calendar {
        Calendar::new(crons.iter().map(|cron| {
            let spec = ScheduleSpec {
                cron: Some((*cron).into()),
                ..ScheduleSpec::default()
            };
            Schedule::compile(&spec, Tz::UTC, time("2026-01-01T00:00:00Z")).expect("a schedule")
        }))
    }

    fn spec(value: serde_json::Value) -> BackfillSpec {
        serde_json::from_value(value).expect("a spec")
    }

    const NOW: &str = "2026-02-01T12:00:00Z";

    #[test]
    fn a_run_is_as_urgent_as_what_caused_it() {
        for (urgency, group, priority) in [
            (Urgency::Usual, None, 0),
            (Urgency::Usual, Some(7), 7),
            (Urgency::Historic, None, -10),
            (Urgency::Historic, Some(50), 40),
            (Urgency::Historic, Some(-995), -1000),
            (Urgency::Given(3), Some(50), 3),
        ] {
            assert_eq!(urgency.priority(group), priority, "{urgency:?} {group:?}");
            assert_eq!(Urgency::of(priority, group), urgency, "{priority} {group:?}");
        }
        for (urgency, priority, group) in [
            (Urgency::Given(0), 0, None),
            (Urgency::Given(7), 7, Some(7)),
            (Urgency::Historic, -10, None),
            (Urgency::Historic, -1000, Some(-1000)),
        ] {
            assert_eq!(Urgency::of_historic(priority, group), urgency, "{priority} {group:?}");
        }
    }

    fn check(value: serde_json::Value, crons: &[&str], expect: Result<u64, &str>) {
        let found = spec(value.clone()).check(calendar(crons), Tz::UTC, None, time(NOW));
        match (found, expect) {
            (Ok(checked), Ok(count)) => {
                let to = checked.to.unwrap_or(time(NOW));
                assert_eq!(checked.grid.count(checked.from, to), Ok(count), "{value}");
                for order in [Order::Asc, Order::Desc] {
                    assert_eq!(
                        checked.grid.instants(checked.from, to, order).count() as u64,
                        count,
                        "{value}"
                    );
                }
            }
            (Err(faults), Err(pointer)) => assert_eq!(faults.0[0].pointer, pointer, "{value}: {faults}"),
            (found, expect) => panic!("{value}: {found:?}, not {expect:?}"),
        }
    }

    #[test]
    fn ranges_are_checked_and_counted() {
        use serde_json::json;
        let daily = &["0 0 * * *"][..];
        check(json!({"from": "2026-01-01", "to": "2026-01-31"}), daily, Ok(31));
        check(
            json!({"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T00:00:00Z"}),
            daily,
            Ok(1),
        );
        check(json!({"from": "2026-01-01T00:00:01Z"}), daily, Ok(31));
        check(json!({"from": "2026-01-02", "to": "2026-01-01"}), daily, Err("/from"));
        check(json!({"from": "2026-03-01"}), daily, Err("/from"));
        check(json!({"from": "2026-01-01", "to": "2026-02-02"}), daily, Err("/to"));
        check(json!({"from": "yesterday"}), daily, Err("/from"));
        check(
            json!({"from": "2026-01-01", "max_active": 0}),
            daily,
            Err("/max_active"),
        );
        check(json!({"from": "2026-01-01", "step": "0s"}), daily, Err("/step"));
        check(json!({"from": "2026-01-01"}), &[], Err("/step"));
        check(
            json!({"from": "2026-01-01", "to": "2026-01-02", "step": "6h"}),
            &[],
            Ok(5),
        );
        check(
            json!({"from": "2026-01-01", "to": "2026-01-02", "step": "7h"}),
            daily,
            Ok(4),
        );
        check(json!({"from": "2012-01-01", "to": "2015-12-31"}), daily, Ok(1_461));
    }

    #[test]
    fn too_many_are_refused_with_their_number() {
        let value = serde_json::json!({"from": "2025-01-01T00:00:00Z", "to": "2026-01-01T00:00:00Z", "step": "1s"});
        let faults = spec(value)
            .check(Calendar::default(), Tz::UTC, None, time(NOW))
            .unwrap_err();
        assert!(faults.0[0].detail.contains("31536001 instants"), "{faults}");
    }

    #[test]
    fn a_position_is_gone_on_from() {
        for crons in [&["0 */5 * * *", "0 3 * * *"][..], &[]] {
            let step = crons.is_empty().then_some("5h");
            let value = serde_json::json!({"from": "2026-01-01", "to": "2026-01-09", "step": step});
            let checked = spec(value).check(calendar(crons), Tz::UTC, None, time(NOW)).unwrap();
            let (from, to) = (checked.from, checked.to.unwrap());
            for order in [Order::Asc, Order::Desc] {
                let all: Vec<Time> = checked.grid.instants(from, to, order).collect();
                for (index, position) in all.iter().enumerate() {
                    let rest: Vec<Time> = checked.grid.after(Some(*position), from, to, order).collect();
                    assert_eq!(rest, all[index + 1..]);
                }
            }
        }
    }

    #[test]
    fn existing_runs() {
        let at = |state, earlier| Some(Existing { run: 7, state, earlier });
        use RunState::*;
        assert_eq!(decide::<i32>(OnExisting::Skip, None), Verdict::Fill);
        for (on_existing, existing, expect) in [
            (OnExisting::Skip, at(Failed, true), Verdict::Skip),
            (OnExisting::Failed, at(Failed, true), Verdict::Replace(7)),
            (OnExisting::Failed, at(Cancelled, true), Verdict::Replace(7)),
            (OnExisting::Failed, at(Succeeded, true), Verdict::Skip),
            (OnExisting::Failed, at(Running, true), Verdict::Skip),
            (OnExisting::All, at(Succeeded, true), Verdict::Replace(7)),
            (OnExisting::All, at(Running, true), Verdict::Skip),
            (OnExisting::All, at(Succeeded, false), Verdict::Skip),
        ] {
            assert_eq!(decide(on_existing, existing), expect, "{on_existing:?} {existing:?}");
        }
    }
}
