//! Runs: submitting, reading, controlling.

use std::sync::Arc;
use std::time::Duration;

use heddle_api::{BulkRefusal, BulkReport, List, RerunOptions, Run, Scripts, Submission, TaskDetail};
use heddle_domain::id::RunId;
use heddle_domain::run::TaskKey;
use heddle_domain::state::{RunState, TaskState};
use heddle_domain::{Chain, Clock, Name};
use heddle_engine::{BulkAction, BulkControl, Clear, ControlError, Engine, EngineError, Rerun, Revision, line_due};
use heddle_store::run::{Outputs, RunDetail, RunFilter, RunRow};
use serde_json::Value;
use uuid::Uuid;

use super::Refusal;
use super::cursor::before;
use super::params::Wanted;
use super::{not_found, not_of_topic, views};

/// What people do to a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// Ends it and what runs in it.
    Cancel,
    Pause,
    Resume,
    /// Goes on where it failed.
    Restart(Scripts),
    /// Makes a new run like it.
    Rerun(RerunOptions),
    Override {
        /// The new state: `succeeded` or `failed`, no other.
        state: RunState,
        reason: String,
    },
    /// Runs a task run of it again, once it has ended.
    Clear(Clear),
    /// Forgets it, once it has ended.
    Delete,
}

impl Control {
    /// The same in the words of the engine.
    fn of_engine(self) -> BulkControl {
        BulkControl::Change(match self {
            Self::Cancel => BulkAction::Cancel,
            Self::Pause => BulkAction::Pause,
            Self::Resume => BulkAction::Resume,
            Self::Restart(scripts) => BulkAction::Restart(scripts == Scripts::Active),
            Self::Override { state, reason } => BulkAction::Override(state, reason),
            Self::Clear(clear) => BulkAction::Clear(clear),
            Self::Rerun(RerunOptions { scripts, force, key }) => {
                let active_scripts = scripts == Scripts::Active;
                return BulkControl::Rerun(Rerun {
                    active_scripts,
                    force,
                    key,
                });
            }
            Self::Delete => return BulkControl::Delete,
        })
    }
}

/// A task run, or an item of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TaskRef {
    pub(crate) run: Uuid,
    pub(crate) task: Name,
    pub(crate) item: Option<u32>,
}

/// How many runs one bulk control touches at most; more are left for the next call, and the report says so.
const BULK_MAX: i64 = 100_000;

fn manual_submission(group: &Name, submission: Submission, actor: &str) -> heddle_engine::Submission {
    heddle_engine::Submission::manual(group.as_str(), submission, Some(actor))
}

pub(crate) async fn submit(engine: &Engine, group: Name, given: Submission, actor: &str) -> Result<Run, Refusal> {
    not_of_topic(engine, &group).await?;
    let submitted = engine.submit(manual_submission(&group, given, actor)).await?;
    views::new(engine, submitted)
}

pub(crate) async fn submit_batch(
    engine: &Engine,
    group: Name,
    given: Vec<Submission>,
    actor: &str,
) -> Result<Vec<Result<Uuid, Refusal>>, Refusal> {
    not_of_topic(engine, &group).await?;
    let submissions = given
        .into_iter()
        .map(|given| manual_submission(&group, given, actor))
        .collect();
    let answers = engine.submit_all(submissions).await;
    Ok(answers
        .into_iter()
        .map(|answer| answer.map(|id| id.0).map_err(Refusal::from))
        .collect())
}

async fn row(engine: &Engine, id: RunId) -> Result<RunRow, Refusal> {
    engine.store().run(id).await?.ok_or_else(|| not_found("run", id))
}

async fn detail(engine: &Engine, id: RunId, outputs: Outputs) -> Result<RunDetail, Refusal> {
    let detail = engine.store().run_detail(id, outputs).await?;
    detail.ok_or_else(|| not_found("run", id))
}

pub(crate) async fn get(engine: &Engine, id: RunId, wait: Duration) -> Result<Run, Refusal> {
    Ok(get_marked(engine, id, wait).await?.0)
}

/// The same with the mark of one that has ended.
pub(crate) async fn get_marked(engine: &Engine, id: RunId, wait: Duration) -> Result<(Run, Option<String>), Refusal> {
    if !wait.is_zero() && engine.wait(id, wait).await?.is_none() {
        return Err(not_found("run", id));
    }
    let detail = detail(engine, id, Outputs::All).await?;
    let mark = detail.mark.clone();
    Ok((views::full(engine, detail).await?, mark))
}

/// Leaves out the runs that ended longer ago than what the retention calls hot.
pub(crate) async fn only_hot(engine: &Engine, filter: &mut RunFilter) -> Result<(), Refusal> {
    let retention = engine.store().retention().await?;
    filter.ended_since = Some(engine.clock().now() - retention.hot.chrono());
    Ok(())
}

/// The runs of a filter that have these params, after the cursor.
pub(crate) async fn list(
    engine: &Engine,
    mut filter: RunFilter,
    params: &Wanted,
    cursor: Option<&str>,
    limit: i64,
) -> Result<List<Run>, Refusal> {
    filter.before = cursor.map(before).transpose()?;
    let (rows, next_cursor) = if params.is_empty() {
        let page = engine.store().runs(&filter, limit).await?;
        (page.items, page.next)
    } else {
        super::params::runs(engine, params, &mut filter, limit.max(1) as usize).await?
    };
    let mut items = Vec::with_capacity(rows.len());
    for row in rows {
        let (revision, resolution) = views::plan_of(engine, &row).await?;
        items.push(views::run_of(row, resolution.as_deref(), Some(&revision))?);
    }
    Ok(List { items, next_cursor })
}

pub(crate) async fn control(engine: &Engine, id: RunId, control: Control, actor: String) -> Result<Run, Refusal> {
    match control.of_engine() {
        BulkControl::Change(action) => {
            let done = engine.control(id, &action, &actor).await;
            done.map_err(|error| named(error, id, &action))?;
            get(engine, id, Duration::ZERO).await
        }
        BulkControl::Rerun(rerun) => {
            let row = row(engine, id).await?;
            let new = engine.rerun(&row, &rerun, &actor).await?;
            get(engine, new, Duration::ZERO).await
        }
        BulkControl::Delete => {
            let row = row(engine, id).await?;
            let deleted = engine.delete_run(id, &actor).await;
            deleted.map_err(|error| named_run(error, id))?;
            Ok(views::run_of(row, None, None)?)
        }
    }
}

fn named(error: ControlError, id: RunId, action: &BulkAction) -> Refusal {
    match action {
        BulkAction::Clear(clear) => named_task(error, &cleared(id, clear)),
        _ => named_run(error, id),
    }
}

fn named_run(error: ControlError, id: RunId) -> Refusal {
    match error.into() {
        Refusal::NotFound { what, .. } => not_found(what, id),
        other => other,
    }
}

pub(crate) async fn bulk(
    engine: &Engine,
    filter: RunFilter,
    control: Control,
    dry_run: bool,
    actor: String,
) -> Result<BulkReport, Refusal> {
    let control = control.of_engine();
    if let BulkControl::Rerun(rerun) = &control {
        rerun.check(true).map_err(Refusal::Invalid)?;
    }
    let found = engine.store().run_states(&filter, BULK_MAX).await?;
    let runs: Vec<RunId> = found.iter().map(|(id, ..)| *id).collect();
    let mut report = BulkReport {
        matched: runs.len() as u64,
        changed: 0,
        ids: runs.iter().take(BulkReport::IDS_MAX).map(|id| id.0).collect(),
        refused: Vec::new(),
        refused_total: 0,
        dry_run,
    };
    let done = if dry_run {
        engine.bulk_dry_run(&found, &control).await?
    } else {
        let (own, runs, control, by) = (engine.clone(), runs.clone(), control.clone(), actor.clone());
        let all = async move { own.bulk(&runs, &control, &by).await };
        engine.to_the_end(&actor, all).await??
    };
    for (id, done) in runs.into_iter().zip(done) {
        let Err(error) = done else {
            report.changed += u64::from(!dry_run);
            continue;
        };
        let Some(refusal) = left_out(error, id, &control)? else {
            continue;
        };
        report.refused_total += 1;
        if report.refused.len() < BulkReport::IDS_MAX {
            report.refused.push(refusal);
        }
    }
    Ok(report)
}

/// What people read about a run that a bulk control cannot read or write; the log has all causes.
fn unreadable(error: &EngineError, id: RunId) -> String {
    const LINE: &str = "a bulk control leaves out a run that cannot be read or written";
    let causes = Chain(error);
    match line_due(LINE) {
        Some(omitted) => tracing::error!(run = %id, error = %causes, omitted, "{LINE}"),
        None => tracing::debug!(run = %id, error = %causes, "{LINE}"),
    }
    format!("Heddle cannot read or change this run: {error}; the log of the node has the causes")
}

/// Why one of many runs is not changed; `None`: it is gone. `Err`: what stops the control of all.
fn left_out(error: ControlError, id: RunId, control: &BulkControl) -> Result<Option<BulkRefusal>, Refusal> {
    let of = |detail: String, existing: Option<RunId>| BulkRefusal {
        id: id.0,
        detail,
        existing: existing.map(|run| run.0),
    };
    let existing = match &error {
        ControlError::Engine(error) => return Ok(Some(of(unreadable(error, id), None))),
        ControlError::Exists(run) | ControlError::Made(run) => Some(*run),
        _ => None,
    };
    let refusal = match control {
        BulkControl::Change(action) => named(error, id, action),
        BulkControl::Rerun(_) | BulkControl::Delete => named_run(error, id),
    };
    let detail = match refusal {
        Refusal::Conflict { detail, .. } => detail,
        Refusal::NotFound { what: "run", .. } => return Ok(None),
        Refusal::NotFound { what: "task", name } => format!("the run's revision has no task `{name}`"),
        Refusal::NotFound { what, name } => format!("there is no {what} `{name}`"),
        other => return Err(other),
    };
    Ok(Some(of(detail, existing)))
}

/// Cancels the live runs of a group, even if nobody waits for it.
pub(crate) async fn cancel_group(engine: &Engine, group_id: i64, actor: String) -> Result<u64, Refusal> {
    let (own, by) = (engine.clone(), actor.clone());
    engine
        .to_the_end(&actor, async move {
            let runs = own.store().live_runs_of(group_id).await?;
            let cancel = BulkControl::Change(BulkAction::Cancel);
            let mut cancelled = 0;
            for done in own.bulk(&runs, &cancel, &by).await? {
                match done {
                    Ok(()) => cancelled += 1,
                    // It stays active: whoever stops the group must know that. All others have been cancelled.
                    Err(ControlError::Engine(error)) => return Err(Refusal::from(error)),
                    // It has ended meanwhile.
                    Err(_) => {}
                }
            }
            Ok::<u64, Refusal>(cancelled)
        })
        .await?
}

/// The key of a task run, and the plan that has its task.
async fn located(engine: &Engine, task: &TaskRef) -> Result<(Arc<Revision>, TaskKey), Refusal> {
    let row = row(engine, RunId(task.run)).await?;
    let revision = engine.catalog().revision(row.revision_id).await?;
    let index = revision
        .plan
        .index(task.task.as_str())
        .ok_or_else(|| not_found("task", &task.task))?;
    let key = TaskKey {
        task: index,
        item: task.item,
    };
    Ok((revision, key))
}

pub(crate) async fn task(engine: &Engine, task: TaskRef) -> Result<TaskDetail, Refusal> {
    let (revision, key) = located(engine, &task).await?;
    let detail = detail(engine, RunId(task.run), Outputs::Of(key)).await?;
    views::task_detail(engine, &revision.plan, &detail, key.task, key.item)?
        .ok_or_else(|| not_found("item", task.item.map_or_else(String::new, |item| item.to_string())))
}

fn named_task(error: ControlError, task: &TaskRef) -> Refusal {
    match (error.into(), task.item) {
        (Refusal::NotFound { what: "run", .. }, _) => not_found("run", task.run),
        (Refusal::NotFound { what, .. }, Some(item)) => not_found(what, format!("{} item {item}", task.task)),
        (Refusal::NotFound { what, .. }, None) => not_found(what, &task.task),
        (other, _) => other,
    }
}

pub(crate) async fn set_task_state(
    engine: &Engine,
    task: TaskRef,
    state: TaskState,
    output: Option<Value>,
    reason: String,
    actor: String,
) -> Result<TaskDetail, Refusal> {
    let (_, key) = located(engine, &task).await?;
    let output = output.map(|output| output.to_string());
    engine
        .set_task_state(RunId(task.run), key, state, output, &reason, &actor)
        .await
        .map_err(|error| named_task(error, &task))?;
    self::task(engine, task).await
}

pub(crate) async fn retry_task(engine: &Engine, task: TaskRef, actor: String) -> Result<TaskDetail, Refusal> {
    let (_, key) = located(engine, &task).await?;
    engine
        .retry_task(RunId(task.run), key, &actor)
        .await
        .map_err(|error| named_task(error, &task))?;
    self::task(engine, task).await
}

fn cleared(run: RunId, clear: &Clear) -> TaskRef {
    TaskRef {
        run: run.0,
        task: clear.task.clone(),
        item: clear.item,
    }
}

pub(crate) async fn clear_task(engine: &Engine, run: Uuid, clear: Clear, actor: String) -> Result<TaskDetail, Refusal> {
    let task = cleared(RunId(run), &clear);
    engine
        .control(RunId(run), &BulkAction::Clear(clear), &actor)
        .await
        .map_err(|error| named_task(error, &task))?;
    self::task(engine, task).await
}
