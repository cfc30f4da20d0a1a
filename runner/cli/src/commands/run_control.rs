//! Controls of a run, of its task runs, and of many runs.

use std::process::ExitCode;

use anyhow::Result;
use heddle_client::{Bulk, BulkAction, BulkReport, ClearTask, RunFilter, StateOverride, TaskState};
use heddle_domain::framed;
use serde_json::{Value, json};
use uuid::Uuid;

use super::run_options::{BulkOptions, name};
use super::watch;
use crate::exit::{NO, done, usage};
use crate::output::{Format, cell};
use crate::session::Session;
use crate::terminal::{self, tell};

/// Cancels, pauses or resumes a run.
pub(super) async fn control(session: &Session, id: Uuid, action: &str) -> Result<ExitCode> {
    let answer: Value = session.client.control_run(id, action).await?;
    session
        .output
        .print(&answer, |run| format!("run {id} is {}", cell(run, "/state")))?;
    session.tell_page(&["runs", &id.to_string()]);
    done()
}

/// Sets the state of a run by hand.
pub(super) async fn set_state(session: &Session, id: Uuid, state: &str, reason: &str) -> Result<ExitCode> {
    let set = StateOverride {
        state: state.parse().map_err(usage)?,
        reason: reason.to_owned(),
    };
    let answer: Value = session.client.set_run_state(id, &set).await?;
    session
        .output
        .print(&answer, |run| format!("run {id} is {}", cell(run, "/state")))?;
    session.tell_page(&["runs", &id.to_string()]);
    done()
}

/// Sets the state of a task run by hand.
pub(super) async fn override_task(
    session: &Session,
    id: Uuid,
    (task, item): (&str, Option<u32>),
    state: &str,
    reason: &str,
) -> Result<ExitCode> {
    let state: TaskState = state.parse().map_err(usage)?;
    let answer = session.client.override_task(id, task, item, state, reason).await?;
    session.output.print(&framed::to_value(&answer)?, |_| {
        format!("task {task} of run {id} is {state}")
    })?;
    session.tell_page(&["runs", &id.to_string()]);
    done()
}

/// Runs a task of an ended run again, and follows the run if requested.
pub(super) async fn clear_task(
    session: &Session,
    id: Uuid,
    (task, item): (&str, Option<u32>),
    clear: &ClearTask,
    follow: bool,
) -> Result<ExitCode> {
    let answer = session.client.clear_task(id, task, item, clear).await?;
    if follow {
        return watch::run(session, id).await;
    }
    session
        .output
        .print(&framed::to_value(&answer)?, |_| match clear.downstream {
            true => format!("task {task} of run {id} runs again, with all tasks that depend on it"),
            false => format!("task {task} of run {id} runs again"),
        })?;
    session.tell_page(&["runs", &id.to_string()]);
    done()
}

/// Tries a task run again now.
pub(super) async fn retry_task(session: &Session, id: Uuid, (task, item): (&str, Option<u32>)) -> Result<ExitCode> {
    let answer = session.client.retry_task(id, task, item).await?;
    session.output.print(&framed::to_value(&answer)?, |_| {
        format!("task {task} of run {id} is retried")
    })?;
    session.tell_page(&["runs", &id.to_string()]);
    done()
}

/// Controls all runs that a filter finds.
pub(super) async fn bulk(session: &Session, options: BulkOptions) -> Result<ExitCode> {
    let group = options.filter.group.clone();
    let filter = RunFilter::from(options.filter);
    let action = serde_json::from_value(json!(options.action)).map_err(|error| usage(error.to_string()))?;
    if filter == RunFilter::default() {
        return Err(usage("give at least one filter, for example --group or --state"));
    }
    let mut bulk = Bulk {
        dry_run: options.dry_run,
        key: options.key,
        state: options.to_state.map(|state| state.parse().map_err(usage)).transpose()?,
        reason: options.reason.unwrap_or_default(),
        task: options.task.map(|task| name(&task, "--task")).transpose()?,
        item: options.item,
        downstream: options.downstream,
        ..Bulk::new(filter, action)
    };
    if action == BulkAction::Delete && !bulk.dry_run && !options.yes && terminal::can_ask() {
        bulk.dry_run = true;
        let matched = session.client.control_runs(&bulk).await?.matched;
        if matched > 0 && !terminal::may_delete(&format!("{matched} runs, with their logs"), false)? {
            return Ok(ExitCode::from(NO));
        }
        bulk.dry_run = false;
    }
    let report = session.client.control_runs(&bulk).await?;
    if let (Some(group), 0) = (group, report.matched) {
        session.client.group(&group).await?;
    }
    session.output.print(&serde_json::to_value(&report)?, |_| {
        let done = match options.action.as_str() {
            "cancel" => "cancelled",
            "pause" => "paused",
            "resume" => "resumed",
            "restart" => "restarted",
            "rerun" => "started again",
            "clear" => "cleared",
            "delete" => "deleted",
            _ => "changed",
        };
        in_words(&report, done)
    })?;
    if session.output == Format::Table {
        for line in refusals(&report) {
            tell!("{line}");
        }
    }
    done()
}

/// How many runs match and how many were changed, in a sentence; for a dry run, how many would be.
fn in_words(report: &BulkReport, done: &str) -> String {
    let runs = match report.matched {
        1 => "1 run matches".to_owned(),
        matched => format!("{matched} runs match"),
    };
    match report.dry_run {
        true if report.refusals() == 0 => format!("{runs}, and would be {done}"),
        true => format!("{runs}; those that are not refused would be {done}"),
        false => format!("{runs}, {} {done}", report.changed),
    }
}

/// Why runs are left as they are: each reason once, with the first of its runs; and how many more there are that the server does
/// not name.
fn refusals(report: &BulkReport) -> Vec<String> {
    let mut reasons: Vec<(&str, Uuid, u64)> = Vec::new();
    for refused in &report.refused {
        match reasons.iter_mut().find(|(detail, ..)| *detail == refused.detail) {
            Some((_, _, count)) => *count += 1,
            None => reasons.push((&refused.detail, refused.id, 1)),
        }
    }
    let lines = reasons.iter().map(|(detail, first, count)| match count {
        1 => format!("run {first}: {detail}"),
        _ => format!("run {first} and {} more: {detail}", count - 1),
    });
    let mut lines: Vec<String> = lines.collect();
    let unnamed = report.refusals() - report.refused.len() as u64;
    if unnamed > 0 {
        lines.push(format!("{unnamed} more runs are left as they are"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_became_of_many_runs_is_a_sentence() {
        let report = |matched: u64, changed: u64, refused: &[&str], dry_run: bool| -> BulkReport {
            let refused = refused
                .iter()
                .map(|detail| json!({"id": Uuid::nil(), "detail": detail}));
            let refused: Vec<Value> = refused.collect();
            let value =
                json!({"matched": matched, "changed": changed, "ids": [], "refused": refused, "dry_run": dry_run});
            serde_json::from_value(value).unwrap()
        };
        assert_eq!(in_words(&report(1, 1, &[], false), "paused"), "1 run matches, 1 paused");
        let some = report(3, 1, &["it has ended", "it has ended"], false);
        assert_eq!(in_words(&some, "cancelled"), "3 runs match, 1 cancelled");
        assert_eq!(
            refusals(&some),
            [format!("run {} and 1 more: it has ended", Uuid::nil())]
        );
        let many = BulkReport {
            refused_total: 1_200,
            ..some
        };
        assert_eq!(refusals(&many)[1], "1198 more runs are left as they are");
        let dry = report(2, 0, &[], true);
        assert_eq!(in_words(&dry, "deleted"), "2 runs match, and would be deleted");
    }
}
