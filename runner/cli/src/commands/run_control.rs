//! Controls of a run, of its task runs, and of many runs.

use std::process::ExitCode;

use anyhow::Result;
use heddle_client::{Bulk, ClearTask, RunFilter, TaskState};
use serde_json::{Value, json};
use uuid::Uuid;

use super::run::{BulkOptions, name};
use super::{done, watch};
use crate::exit::usage;
use crate::output::cell;
use crate::session::Session;

/// Cancels, pauses or resumes a run.
pub(super) async fn control(session: &Session, id: Uuid, action: &str) -> Result<ExitCode> {
    let answer: Value = session
        .client
        .post(&["v1", "runs", &id.to_string(), action])
        .json(&json!({}))
        .send()
        .await?;
    session
        .output
        .print(&answer, |run| format!("run {id} is {}", cell(run, "/state")))?;
    done()
}

/// Sets the state of a run by hand.
pub(super) async fn set_state(session: &Session, id: Uuid, state: &str, reason: &str) -> Result<ExitCode> {
    let body = json!({ "state": state, "reason": reason });
    let answer: Value = session
        .client
        .put(&["v1", "runs", &id.to_string(), "state"])
        .json(&body)
        .send()
        .await?;
    session
        .output
        .print(&answer, |run| format!("run {id} is {}", cell(run, "/state")))?;
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
    session.output.print(&serde_json::to_value(&answer)?, |_| {
        format!("task {task} of run {id} is {state}")
    })?;
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
        .print(&serde_json::to_value(&answer)?, |_| match clear.downstream {
            true => format!("task {task} of run {id} runs again, with all tasks that depend on it"),
            false => format!("task {task} of run {id} runs again"),
        })?;
    done()
}

/// Tries a task run again now.
pub(super) async fn retry_task(session: &Session, id: Uuid, (task, item): (&str, Option<u32>)) -> Result<ExitCode> {
    let answer = session.client.retry_task(id, task, item).await?;
    session.output.print(&serde_json::to_value(&answer)?, |_| {
        format!("task {task} of run {id} is retried")
    })?;
    done()
}

/// Controls all runs that a filter finds.
pub(super) async fn bulk(session: &Session, options: BulkOptions) -> Result<ExitCode> {
    let filter = RunFilter::from(options.filter);
    let action = serde_json::from_value(json!(options.action)).map_err(|error| usage(error.to_string()))?;
    if filter == RunFilter::default() {
        return Err(usage("give at least one filter, for example --group or --state"));
    }
    let bulk = Bulk {
        dry_run: options.dry_run,
        state: options.to_state.map(|state| state.parse().map_err(usage)).transpose()?,
        reason: options.reason.unwrap_or_default(),
        task: options.task.map(|task| name(&task, "--task")).transpose()?,
        item: options.item,
        downstream: options.downstream,
        ..Bulk::new(filter, action)
    };
    let answer = serde_json::to_value(session.client.control_runs(&bulk).await?)?;
    session.output.print_thing(&answer)?;
    done()
}
