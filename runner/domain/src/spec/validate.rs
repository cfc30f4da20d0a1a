//! Whether a spec makes sense: by itself, and with the existing objects (scripts, other groups, channels and so on),
//! which a [`Catalog`] knows. All errors are reported at once, each with a JSON pointer.

mod catalog;
mod fields;
mod graph;
mod params;
pub mod task;

pub use graph::circle;

use chrono_tz::Tz;
use serde_json::Value;

use super::bounds::{check_labels, check_priority};
use super::{Enabled, GroupSpec, NotifyRules, ScheduleSpec};
use crate::fault::pointer_token;
use crate::notify::channel::{RECIPIENTS_MAX, is_address};
use crate::plan::TASKS_MAX;
use crate::schedule::Schedule;
use crate::schedule::local::parse_zone;
use crate::template::Templates;
use crate::{Fault, Faults, Name, Time};

pub use catalog::{Catalog, Grant, GroupLinks, ScriptFacts, ScriptLookup};

/// How many characters a description may have.
pub const DESCRIPTION_MAX_CHARS: usize = 10_000;
/// How many schedules a group may have.
pub const SCHEDULES_MAX: usize = 100;

/// Judges a group's spec. `now` is the moment new schedules count from.
pub fn validate(name: &Name, spec: &GroupSpec, catalog: &dyn Catalog, now: Time) -> Result<(), Faults> {
    let mut faults = Faults::default();
    check_group(spec, catalog, now, &mut faults);
    if let Some(retention) = &spec.retention {
        retention.check("/retention", &mut faults);
    }
    if spec.tasks.is_empty() || spec.tasks.len() > TASKS_MAX {
        faults.add(
            "/tasks",
            format!("a group must have 1 to {TASKS_MAX} tasks, not {}", spec.tasks.len()),
        );
        return Err(faults);
    }
    let templates = Templates::new();
    let ancestry = graph::Ancestry::new(spec);
    // The group's params are rendered for each of its tasks. A param that one task needs may be a default of another.
    let known = |upstream: &Name| ancestry.check_known(upstream);
    templates.check_value(&Value::Object(spec.params.clone()), "/params", &known, &mut faults);
    for (task_name, task) in &spec.tasks {
        let pointer = format!("/tasks/{}", pointer_token(task_name));
        let tasks = |upstream: &Name| ancestry.check(task_name, upstream);
        let checker = task::Checker {
            templates: &templates,
            tasks: &tasks,
        };
        fields::check(&pointer, (name, spec), task, catalog, &checker, &mut faults);
    }
    graph::check_tasks(spec, &mut faults);
    graph::check_groups(name, spec, catalog, &mut faults);
    params::check_group(spec, catalog, &mut faults);
    faults.or(())
}

fn check_group(spec: &GroupSpec, catalog: &dyn Catalog, now: Time, faults: &mut Faults) {
    check_description(spec.description.as_deref(), "", faults);
    if let Some(category) = &spec.category
        && !catalog.category(category)
    {
        faults.add("/category", format!("there is no category `{category}`"));
    }
    let zone = match spec.timezone.as_deref().map(parse_zone) {
        Some(Ok(zone)) => zone,
        Some(Err(detail)) => {
            faults.add("/timezone", detail);
            chrono_tz::Tz::UTC
        }
        None => chrono_tz::Tz::UTC,
    };
    if spec.max_waiting.is_some_and(|max| max > super::MAX_WAITING_MAX) {
        let max = super::MAX_WAITING_MAX;
        faults.add(
            "/max_waiting",
            format!("`max_waiting` must be from 0 to {max}; with 0 no run waits"),
        );
    }
    if spec.max_active_runs == Some(0) {
        faults.add(
            "/max_active_runs",
            "`max_active_runs` must be at least 1; to stop the group, disable it",
        );
    }
    if spec.deadline.is_some_and(|deadline| deadline.is_zero()) {
        faults.add("/deadline", "`deadline` must be longer than zero");
    }
    if let Some(Err(detail)) = spec.priority.map(check_priority) {
        faults.add("/priority", detail);
    }
    check_labels(&spec.labels, "/labels", faults);
    if let Some(template) = &spec.template
        && catalog.template(template).is_none()
    {
        faults.add("/template", format!("there is no template `{template}`"));
    }
    if let Some(notify) = &spec.notify {
        check_notify(notify, "/notify", catalog, faults);
    }
    if spec.schedules.len() > SCHEDULES_MAX {
        faults.add(
            "/schedules",
            format!("a group must have at most {SCHEDULES_MAX} schedules"),
        );
    }
    for (name, schedule) in &spec.schedules {
        let pointer = format!("/schedules/{}", pointer_token(name));
        match Schedule::compile(schedule, zone, now) {
            Err(fault) => faults.push(fault.below(&pointer)),
            // A backfill may use a schedule that is over, and a schedule that has fired for the last time may be put
            // again.
            Ok(compiled) if compiled.enabled() && !catalog.has_schedule(name, schedule) => {
                if let Some(fault) = is_over(schedule, &compiled, spec.history) {
                    faults.push(fault.below(&pointer));
                }
            }
            Ok(_) => {}
        }
    }
}

/// Why a stored schedule cannot be enabled now, with a pointer into the schedule; `None`: it can. `zone` is that of the group,
/// and `history` whether the group keeps one.
pub fn cannot_be_enabled(schedule: &ScheduleSpec, zone: Tz, history: bool, now: Time) -> Option<Fault> {
    let enabled = ScheduleSpec {
        enabled: Enabled(true),
        ..schedule.clone()
    };
    match Schedule::compile_stored(&enabled, zone, now) {
        Ok(compiled) => is_over(&enabled, &compiled, history),
        Err(fault) => Some(fault),
    }
}

/// Whether a schedule has had its last instant, and no backfill can use it either.
fn is_over(schedule: &ScheduleSpec, compiled: &Schedule, history: bool) -> Option<Fault> {
    let made_up_later = history && compiled.has_grid();
    (!compiled.fires() && !made_up_later).then(|| {
        let detail = "the schedule never fires: its last instant is in the past";
        Fault::at(never_fires_by(schedule), detail)
    })
}

/// The field whose value lies in the past.
fn never_fires_by(schedule: &ScheduleSpec) -> &'static str {
    match schedule {
        ScheduleSpec { ends_at: Some(_), .. } => "/ends_at",
        ScheduleSpec { cron: Some(_), .. } => "/cron",
        ScheduleSpec { once: Some(_), .. } => "/once/at",
        _ => "",
    }
}

fn check_description(description: Option<&str>, pointer: &str, faults: &mut Faults) {
    if description.is_some_and(|text| text.chars().nth(DESCRIPTION_MAX_CHARS).is_some()) {
        faults.add(
            format!("{pointer}/description"),
            format!("`description` must have at most {DESCRIPTION_MAX_CHARS} characters"),
        );
    }
}

fn check_notify(rules: &NotifyRules, pointer: &str, catalog: &dyn Catalog, faults: &mut Faults) {
    if rules.on.is_empty() {
        faults.add(format!("{pointer}/on"), "give at least one event, for example `failed`");
    }
    if rules.channels.is_empty() && rules.to.is_empty() {
        faults.add(pointer, "give at least one of `channels` and `to`");
    }
    if rules.channels.len() + rules.to.len() > RECIPIENTS_MAX {
        faults.add(
            pointer,
            format!("there must be at most {RECIPIENTS_MAX} channels and addresses"),
        );
    }
    for (index, channel) in rules.channels.iter().enumerate() {
        if !catalog.channel(channel) {
            faults.add(
                format!("{pointer}/channels/{index}"),
                format!("there is no channel `{channel}`"),
            );
        }
    }
    for (index, address) in rules.to.iter().enumerate() {
        if !is_address(address) {
            let shown: String = address.chars().filter(|c| !c.is_control()).take(100).collect();
            faults.add(
                format!("{pointer}/to/{index}"),
                format!("`{shown}` is not a valid e-mail address"),
            );
        }
    }
}

#[cfg(test)]
#[path = "validate/tests.rs"]
mod tests;
