//! Runs: submitting, reading, controlling.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use heddle_api::{BulkRefusal, BulkReport, List, RerunOptions, Run, Scripts, Submission, TaskDetail};
use heddle_domain::id::RunId;
use heddle_domain::run::{self, Progress, TaskKey};
use heddle_domain::state::{RunState, TaskState};
use heddle_domain::{Clock, Name};
use heddle_engine::{BulkAction, Clear, ControlError, Engine, EngineError, Revision};
use heddle_store::change::By;
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
    Clear(heddle_engine::Clear),
    /// Forgets it, once it has ended.
    Delete,
}

impl Control {
    /// The control of which the run's state decides.
    fn of_state(&self) -> run::Control {
        match self {
            Self::Cancel => run::Control::Cancel,
            Self::Pause => run::Control::Pause,
            Self::Resume => run::Control::Resume,
            Self::Restart(_) => run::Control::Restart,
            Self::Rerun(_) => run::Control::Rerun,
            Self::Override { .. } => run::Control::Override,
            Self::Clear(_) => run::Control::Clear,
            Self::Delete => run::Control::Delete,
        }
    }
}

/// A task run, or an item of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TaskRef {
    pub(crate) run: Uuid,
    pub(crate) task: Name,
    pub(crate) item: Option<u32>,
}

/// How many runs a bulk control reruns or deletes at once.
const BULK_AT_ONCE: usize = 8;

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

/// The engine's word for a control; `None` for those that are no change of a run.
fn action(control: &Control) -> Option<BulkAction> {
    Some(match control {
        Control::Cancel => BulkAction::Cancel,
        Control::Pause => BulkAction::Pause,
        Control::Resume => BulkAction::Resume,
        Control::Restart(scripts) => BulkAction::Restart(*scripts == Scripts::Active),
        Control::Override { state, reason } => BulkAction::Override(*state, reason.clone()),
        Control::Rerun(_) | Control::Clear(_) | Control::Delete => return None,
    })
}

pub(crate) async fn control(engine: &Engine, id: RunId, control: Control, actor: String) -> Result<Run, Refusal> {
    if let Some(action) = action(&control) {
        engine
            .control(id, &action, &actor)
            .await
            .map_err(|error| named(error, id))?;
        return get(engine, id, Duration::ZERO).await;
    }
    if let Control::Clear(clear) = control {
        engine
            .clear_task(id, &clear, &actor)
            .await
            .map_err(|error| named_task(error, &cleared(id, &clear)))?;
        return get(engine, id, Duration::ZERO).await;
    }
    let row = row(engine, id).await?;
    if let Control::Rerun(options) = control {
        let new = rerun(engine, &row, options, &actor).await?;
        return get(engine, new, Duration::ZERO).await;
    }
    forget(engine, id, &actor).await?;
    Ok(views::run_of(row, None, None)?)
}

fn named(error: heddle_engine::ControlError, id: RunId) -> Refusal {
    match error.into() {
        Refusal::NotFound { what, .. } => not_found(what, id),
        other => other,
    }
}

/// Why a run in this state would not be changed by a control, in the words of the refusal itself; `None`: it would be.
fn refusal(control: &Control, state: RunState) -> Option<String> {
    let refused = control.of_state().check(state).err()?;
    Some(match control {
        Control::Clear(_) => heddle_engine::not_cleared(state),
        Control::Delete => not_deleted(state),
        _ => refused.to_string(),
    })
}

fn no_task(task: &dyn std::fmt::Display) -> String {
    format!("the run's revision has no task `{task}`")
}

fn not_deleted(state: RunState) -> String {
    format!("the run is {state}; only a run that has ended can be deleted")
}

pub(crate) async fn bulk(
    engine: &Engine,
    filter: RunFilter,
    control: Control,
    dry_run: bool,
    actor: String,
) -> Result<BulkReport, Refusal> {
    let found = engine.store().run_states(&filter, BULK_MAX).await?;
    let named = found.iter().take(BulkReport::IDS_MAX).map(|(id, ..)| id.0).collect();
    let mut report = BulkReport {
        matched: found.len() as u64,
        changed: 0,
        ids: named,
        refused: Vec::new(),
        dry_run,
    };
    let tried: Vec<(RunId, Result<(), Refusal>)> = if dry_run {
        let mut tried = Vec::with_capacity(found.len());
        for (id, state, revision_id) in found {
            tried.push((id, try_control(engine, &control, id, state, revision_id).await));
        }
        tried
    } else {
        let runs: Vec<RunId> = found.into_iter().map(|(id, ..)| id).collect();
        let own = engine.clone();
        engine
            .to_the_end(async move {
                let done = control_all(&own, &runs, control, &actor).await?;
                Ok::<_, Refusal>(runs.into_iter().zip(done).collect::<Vec<_>>())
            })
            .await??
    };
    for (id, controlled) in tried {
        match controlled.map_err(left_out) {
            Ok(()) => report.changed += u64::from(!dry_run),
            Err(Ok(Some(detail))) if report.refused.len() < BulkReport::IDS_MAX => {
                report.refused.push(BulkRefusal { id: id.0, detail });
            }
            Err(Ok(_)) => {}
            Err(Err(other)) => return Err(other),
        }
    }
    Ok(report)
}

/// Why one of many runs is not changed; `None`: it is gone. `Err`: what stops the control of all.
fn left_out(refusal: Refusal) -> Result<Option<String>, Refusal> {
    Ok(match refusal {
        Refusal::Conflict { detail, .. } => Some(detail),
        Refusal::NotFound { what: "run", .. } => None,
        Refusal::NotFound { what: "task", name } => Some(no_task(&name)),
        Refusal::NotFound { what, name } => Some(format!("there is no {what} `{name}`")),
        other => return Err(other),
    })
}

/// Whether a control would change a run, as far as that is known before; changes nothing.
async fn try_control(
    engine: &Engine,
    control: &Control,
    id: RunId,
    state: RunState,
    revision_id: i64,
) -> Result<(), Refusal> {
    if let Some(detail) = refusal(control, state) {
        return Err(Refusal::Conflict { detail, existing: None });
    }
    match control {
        Control::Clear(clear) => {
            let revision = engine.catalog().revision(revision_id).await?;
            again(&revision.group_name)?;
            let task = revision.plan.index(clear.task.as_str());
            let task = task.ok_or_else(|| not_found("task", &clear.task))?;
            if clear.item.is_some() {
                let row = row(engine, id).await?;
                let progress =
                    Progress::from_bytes(&row.progress).map_err(|error| EngineError::Progress { run: id, error })?;
                if progress.state(TaskKey { task, item: clear.item }).is_none() {
                    return Err(named_task(ControlError::NotFound("task run"), &cleared(id, clear)));
                }
            }
            Ok(())
        }
        Control::Rerun(options) => {
            let revision = engine.catalog().revision(revision_id).await?;
            let (group, name) = (revision.group_id, &revision.group_name);
            Ok(engine.check_rerun(group, name, options.force).await?)
        }
        other if other.of_state().is_again() => again(&engine.catalog().revision(revision_id).await?.group_name),
        _ => Ok(()),
    }
}

fn again(group: &str) -> Result<(), Refusal> {
    heddle_engine::check_again(group).map_err(|detail| Refusal::Conflict { detail, existing: None })
}

/// The result for each run; `Err` says what stopped it.
async fn control_all(
    engine: &Engine,
    runs: &[RunId],
    control: Control,
    actor: &str,
) -> Result<Vec<Result<(), Refusal>>, Refusal> {
    if let Some(action) = action(&control) {
        let done = engine.control_all(runs, &action, actor).await?;
        return Ok(done.into_iter().map(|done| done.map_err(Refusal::from)).collect());
    }
    // Of these, only success or failure is returned.
    let mut all = stream::iter(runs.to_vec())
        .map(|id| {
            let (engine, actor, control) = (engine.clone(), actor.to_owned(), control.clone());
            async move {
                match control {
                    Control::Rerun(options) => {
                        let row = row(&engine, id).await?;
                        rerun(&engine, &row, options, &actor).await.map(drop)
                    }
                    Control::Clear(clear) => engine
                        .clear_task(id, &clear, &actor)
                        .await
                        .map_err(|error| named_task(error, &cleared(id, &clear))),
                    _ => forget(&engine, id, &actor).await,
                }
            }
        })
        .buffered(BULK_AT_ONCE);
    let mut done = Vec::with_capacity(runs.len());
    while let Some(controlled) = all.next().await {
        match controlled {
            Ok(()) | Err(Refusal::Conflict { .. } | Refusal::NotFound { .. }) => done.push(controlled),
            Err(other) => return Err(other),
        }
    }
    Ok(done)
}

async fn rerun(engine: &Engine, row: &RunRow, options: RerunOptions, actor: &str) -> Result<RunId, Refusal> {
    let RerunOptions { scripts, force } = options;
    Ok(engine.rerun(row, scripts == Scripts::Active, force, actor).await?)
}

/// Removes an ended run.
async fn forget(engine: &Engine, id: RunId, actor: &str) -> Result<(), Refusal> {
    let by = By {
        actor,
        at: engine.clock().now(),
    };
    if engine.store().delete_run(by, id).await? {
        return Ok(());
    }
    Err(Refusal::Conflict {
        detail: not_deleted(row(engine, id).await?.state),
        existing: None,
    })
}

/// Cancels the live runs of a group, even if nobody waits for it.
pub(crate) async fn cancel_group(engine: &Engine, group_id: i64, actor: String) -> Result<u64, Refusal> {
    let own = engine.clone();
    engine
        .to_the_end(async move {
            let runs = own.store().live_runs_of(group_id).await?;
            let done = control_all(&own, &runs, Control::Cancel, &actor).await?;
            Ok::<_, Refusal>(done.iter().filter(|done| done.is_ok()).count() as u64)
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

fn named_task(error: heddle_engine::ControlError, task: &TaskRef) -> Refusal {
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
        .clear_task(RunId(run), &clear, &actor)
        .await
        .map_err(|error| named_task(error, &task))?;
    self::task(engine, task).await
}
