//! From rows to what the API shows of runs.

use std::collections::{BTreeMap, BTreeSet};

use heddle_api::{Attempt, DataInterval, Failure, Json, Override, Run, TaskDetail, TaskRun, TaskWait, TaskWaitReason};
use heddle_domain::Time;
use heddle_domain::framed;
use heddle_domain::id::RunId;
use heddle_domain::plan::{Plan, PlanTask, TaskIndex};
use heddle_domain::run::{Progress, TaskKey};
use heddle_domain::state::{AttemptState, ErrorKind, TaskState};
use heddle_engine::{Engine, EngineError, Resolution, Revision, Submitted, line_due};
use heddle_store::StoreError;
use heddle_store::run::{AttemptView, OverrideView, RunDetail, RunRow, WaitView};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::Refusal;

/// A run without its tasks.
pub(crate) fn run_of(
    row: RunRow,
    resolution: Option<&Resolution>,
    revision: Option<&Revision>,
) -> Result<Run, StoreError> {
    let failure = row
        .error
        .as_deref()
        .and_then(|error| failure_behind(&row, error, revision?));
    let terms = row.terms;
    let labels = match terms.labels {
        Some(Value::Object(labels)) => labels
            .into_iter()
            .map(|(key, value)| (key, value.as_str().map_or_else(|| value.to_string(), str::to_owned)))
            .collect(),
        _ => BTreeMap::new(),
    };
    let mut scripts = BTreeMap::new();
    if let (Some(resolution), Some(revision)) = (resolution, revision) {
        for (task, script) in revision.plan.tasks.iter().zip(&resolution.scripts) {
            if let Some(script) = script {
                scripts.insert(task.name.to_string(), format!("{}@{}", script.name, script.version));
            }
        }
    }
    let error = row.error.map(|message| Failure {
        kind: failure.map_or(ErrorKind::Failed, |failure| failure.kind),
        message,
        trace: None,
        omitted: None,
        task: failure.and_then(|failure| Some(revision?.plan.task(failure.task)?.name.to_string())),
        item: failure.and_then(|failure| failure.item),
    });
    let (params, params_error) = shown_params(row.id, &terms.params);
    let task_params = terms.task_params.as_deref();
    Ok(Run {
        id: row.id,
        group: row.group_name,
        revision: row.revision,
        logical_time: terms.logical_time.into(),
        data_interval: DataInterval {
            start: terms.interval.0.into(),
            end: terms.interval.1.into(),
        },
        trigger: terms.trigger,
        state: row.state,
        params,
        params_error,
        task_params: StoreError::json_in(task_params.unwrap_or("{}"), ("runs", "task_params"), row.id)?,
        key: terms.key,
        priority: terms.priority,
        created_at: row.created_at.into(),
        started_at: row.started_at.map(Into::into),
        finished_at: row.finished_at.map(Into::into),
        error,
        skipped: row.skipped,
        labels,
        waiting_for: row.waiting_for,
        source: terms.source.map(|source| source.to_string()),
        created_by: terms.created_by,
        reopened_at: row.reopened_at.map(Into::into),
        r#override: None,
        scripts,
        tasks: None,
    })
}

/// The params of a run, or why they cannot be shown. Heddle's own formats have to be readable, but params are the text of
/// somebody else: those of one run must not make a list fail, nor a control that has already taken effect.
fn shown_params(run: Uuid, text: &str) -> (Value, Option<String>) {
    const LINE: &str = "the params of a run cannot be read";
    let error = match framed::read_params(text) {
        Ok(params) => return (Value::Object(params), None),
        Err(error) => error,
    };
    match line_due(LINE) {
        Some(omitted) => tracing::warn!(%run, %error, omitted, "{LINE}"),
        None => tracing::debug!(%run, %error, "{LINE}"),
    }
    (Value::Object(Map::new()), Some(error.to_string()))
}

/// The failure in a run's error; `None` if the error comes from a deadline, an operator or a gate.
fn failure_behind(row: &RunRow, error: &str, revision: &Revision) -> Option<heddle_domain::run::Failure> {
    // An unreadable run is reported where its tasks are shown; it must not make a list fail.
    let progress = Progress::from_bytes(&row.progress).ok()?;
    (progress.error() == Some(error))
        .then(|| progress.failure(&revision.plan))
        .flatten()
}

/// What the engine knows of a run's revision and scripts.
pub(crate) async fn plan_of(
    engine: &Engine,
    row: &RunRow,
) -> Result<(std::sync::Arc<Revision>, Option<std::sync::Arc<Resolution>>), Refusal> {
    let revision = engine.catalog().revision(row.revision_id).await?;
    let resolution = match row.resolution_id {
        Some(id) => Some(engine.catalog().resolution(id, &revision).await?),
        None => None,
    };
    Ok((revision, resolution))
}

/// A run with its tasks.
pub(crate) async fn full(engine: &Engine, detail: RunDetail) -> Result<Run, Refusal> {
    let (revision, resolution) = plan_of(engine, &detail.run).await?;
    let tasks = task_runs(engine, &revision.plan, &detail)?;
    let last_override = detail
        .overrides
        .iter()
        .rfind(|last_override| last_override.key.task == OverrideView::RUN)
        .filter(|last_override| detail.run.finished_at.is_some_and(|ended| ended <= last_override.at))
        .map(override_of);
    let mut run = run_of(detail.run, resolution.as_deref(), Some(&revision))?;
    run.r#override = last_override;
    run.tasks = Some(tasks);
    Ok(run)
}

fn override_of(last_override: &OverrideView) -> Override {
    Override {
        state: last_override.state,
        reason: last_override.reason.clone(),
        actor: last_override.actor.clone(),
        at: last_override.at.into(),
    }
}

/// A run that was just made: nothing of it has been looked up again.
pub(crate) fn new(engine: &Engine, submitted: Submitted) -> Result<Run, Refusal> {
    let Submitted {
        row,
        revision,
        resolution,
    } = submitted;
    let detail = RunDetail {
        run: row,
        attempts: Vec::new(),
        overrides: Vec::new(),
        due: BTreeMap::new(),
        waits: BTreeMap::new(),
        mark: None,
    };
    let tasks = task_runs(engine, &revision.plan, &detail)?;
    let mut run = run_of(detail.run, Some(&resolution), Some(&revision))?;
    run.tasks = Some(tasks);
    Ok(run)
}

/// All task runs, in the order of the DAG; a mapped task as a whole before its items.
fn task_runs(engine: &Engine, plan: &Plan, detail: &RunDetail) -> Result<Vec<TaskRun>, Refusal> {
    let run = RunId(detail.run.id);
    let progress = Progress::from_bytes(&detail.run.progress)
        .map_err(|error| Refusal::from(EngineError::Progress { run, error }))?;
    // They are in the order of their keys.
    let attempts: BTreeMap<TaskKey, &[AttemptView]> = (detail.attempts)
        .chunk_by(|one, next| one.key == next.key)
        .map(|some| (some[0].key, some))
        .collect();
    let open = detail.attempts.iter().filter(|attempt| attempt.finished_at.is_none());
    let under_way: BTreeSet<TaskIndex> = open.map(|attempt| attempt.key.task).collect();
    let mut overrides: BTreeMap<TaskKey, &OverrideView> = BTreeMap::new();
    let mut cleared: BTreeMap<TaskKey, Time> = BTreeMap::new();
    for last_override in &detail.overrides {
        overrides.insert(last_override.key, last_override);
        if last_override.state == TaskState::Pending {
            cleared.insert(last_override.key, last_override.at);
        }
    }
    let shown = |key: TaskKey| {
        let found = Found {
            attempts: attempts.get(&key).copied().unwrap_or_default(),
            last_override: overrides.get(&key).copied(),
            cleared: [key, TaskKey::whole(key.task)]
                .iter()
                .filter_map(|key| cleared.get(key).copied())
                .max(),
            due: detail.due.get(&key).copied(),
            waits: detail.waits.get(&key),
        };
        let under_way = match key.item {
            Some(_) => found
                .attempts
                .last()
                .is_some_and(|attempt| attempt.finished_at.is_none()),
            None => under_way.contains(&key.task),
        };
        let state = progress.shown_state(key, detail.run.state, under_way);
        task_run(engine, plan, run, key, state.unwrap_or(TaskState::Pending), &found)
    };
    let mut tasks = Vec::with_capacity(plan.tasks.len());
    for index in plan.topological() {
        let key = TaskKey::whole(index);
        let whole = shown(key)?;
        match progress.items(index) {
            None => tasks.push(whole),
            Some(count) => {
                let mut items = Vec::with_capacity(count as usize);
                for item in 0..count {
                    let key = TaskKey {
                        task: index,
                        item: Some(item),
                    };
                    items.push(shown(key)?);
                }
                let said = overrides.get(&key).copied();
                tasks.push(mapped(whole, &items, progress.map_failure(index), said));
                tasks.extend(items);
            }
        }
    }
    Ok(tasks)
}

/// What is known of a task run besides its state.
struct Found<'a> {
    attempts: &'a [AttemptView],
    /// The last override of an operator.
    last_override: Option<&'a OverrideView>,
    /// When it was last cleared: earlier ends say nothing about its state.
    cleared: Option<Time>,
    due: Option<Time>,
    waits: Option<&'a WaitView>,
}

fn wait_of(waits: &WaitView, task: &PlanTask) -> TaskWait {
    match waits {
        WaitView::Pools(pools) => TaskWait {
            reason: TaskWaitReason::Pool,
            pools: Some(pools.clone()),
            slots: Some(
                task.spec
                    .pools
                    .iter()
                    .map(|(pool, slots)| (pool.to_string(), *slots))
                    .collect(),
            ),
            queue: None,
            until: None,
        },
        WaitView::Queue {
            queue,
            paused,
            limited_until,
        } => {
            let (reason, until) = match (paused, limited_until) {
                // When that ends nobody knows.
                (true, _) => (TaskWaitReason::QueuePaused, None),
                (false, Some(until)) => (TaskWaitReason::RateLimit, Some((*until).into())),
                (false, None) => (TaskWaitReason::Worker, None),
            };
            TaskWait {
                reason,
                pools: None,
                slots: None,
                queue: Some(queue.clone()),
                until,
            }
        }
    }
}

fn task_run(
    engine: &Engine,
    plan: &Plan,
    run: RunId,
    key: TaskKey,
    state: TaskState,
    found: &Found<'_>,
) -> Result<TaskRun, StoreError> {
    let newest = found.attempts.last();
    let last = newest.filter(|attempt| {
        let ended_before = |cleared| attempt.finished_at.is_some_and(|ended| ended <= cleared);
        !found.cleared.is_some_and(ended_before)
    });
    let last_override = found.last_override.filter(|last_override| {
        last_override.state == state
            && last
                .and_then(|last| last.finished_at)
                .is_none_or(|at| at <= last_override.at)
    });
    let running = last.is_some_and(|attempt| attempt.finished_at.is_none());
    let reported = match newest.filter(|_| running) {
        Some(AttemptView {
            worker: Some(_),
            progress,
            note,
            ..
        }) => (*progress, note.clone()),
        Some(_) => engine
            .progress_of(run, key)
            .map_or((None, None), |(progress, note)| (Some(progress), Some(note))),
        None => (None, None),
    };
    let finished: Option<Time> = if state.is_settled() {
        last_override
            .map(|last_override| last_override.at)
            .into_iter()
            .chain(last.and_then(|attempt| attempt.finished_at))
            .max()
    } else {
        None
    };
    let (output, is_omitted) = output_of(state, last, last_override, (run, key))?;
    let task = &plan.tasks[key.task as usize];
    Ok(TaskRun {
        task: task.name.to_string(),
        item: key.item,
        state,
        attempt: newest.map_or(0, |attempt| attempt.attempt),
        next_attempt_at: found.due.filter(|_| state == TaskState::Retrying).map(Into::into),
        waiting_for: found
            .waits
            .filter(|_| state == TaskState::Ready)
            .map(|waits| wait_of(waits, task)),
        started_at: found.attempts.first().map(|attempt| attempt.started_at.into()),
        finished_at: finished.map(Into::into),
        output,
        output_omitted: is_omitted.then_some(true),
        error: match last_override {
            Some(last_override) if state == TaskState::Failed => {
                let message = format!("set to failed by {}: {}", last_override.actor, last_override.reason);
                Some(Failure {
                    kind: ErrorKind::Failed,
                    message,
                    trace: None,
                    omitted: None,
                    task: None,
                    item: None,
                })
            }
            Some(_) => None,
            None => last.filter(|_| state != TaskState::Succeeded).and_then(failure_of),
        },
        node: newest.and_then(|last| last.node).map(|node| node.to_string()),
        worker: newest.and_then(|last| last.worker.clone()),
        r#override: last_override.map(override_of),
        progress: reported.0,
        note: reported.1.filter(|note| !note.is_empty()),
        items: None,
    })
}

/// The output of a task run, which an attempt or an operator gave: the later one counts. Also whether there is one that the
/// store left out because of its size.
fn output_of(
    state: TaskState,
    last: Option<&AttemptView>,
    last_override: Option<&OverrideView>,
    (run, key): (RunId, TaskKey),
) -> Result<(Option<Json>, bool), StoreError> {
    let (table, output, bytes) = match (last_override, last) {
        _ if state != TaskState::Succeeded => ("attempts", None, None),
        (Some(set), _) => ("overrides", set.output.as_deref(), set.output_bytes),
        (None, Some(last)) => ("attempts", last.output.as_deref(), last.output_bytes),
        (None, None) => ("attempts", None, None),
    };
    let read = output.map(|output| {
        let row = format_args!("{run}/{}/{}", key.task, key.item_number());
        StoreError::json_in(output, (table, "output"), row)
    });
    Ok((read.transpose()?, output.is_none() && bytes.is_some()))
}

/// A mapped task as a whole: when its items ran, their outputs joined. An override of the whole holds until an item
/// ends later.
fn mapped(
    mut whole: TaskRun,
    items: &[TaskRun],
    failure: Option<(ErrorKind, String)>,
    last_override: Option<&OverrideView>,
) -> TaskRun {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for item in items {
        *counts.entry(item.state.to_string()).or_default() += 1;
    }
    whole.started_at = items
        .iter()
        .filter_map(|item| item.started_at)
        .min()
        .or(whole.started_at);
    whole.attempt = items.iter().map(|item| item.attempt).max().unwrap_or(whole.attempt);
    let last = items.iter().filter_map(|item| item.finished_at).max();
    if whole.state.is_settled() {
        whole.finished_at = last.or(whole.finished_at);
    }
    let in_effect = last_override.is_some_and(|last_override| last.is_none_or(|last| last <= last_override.at.into()));
    let has_output = whole.output.is_some() || whole.output_omitted.is_some();
    let said = in_effect && whole.state == TaskState::Succeeded && has_output;
    if matches!(whole.state, TaskState::Succeeded | TaskState::Failed) && !said {
        // Without the outputs of some items, it would not be the task's.
        whole.output_omitted = items.iter().find_map(|item| item.output_omitted);
        whole.output = match whole.output_omitted {
            Some(_) => None,
            None => Some(Json::array(items.iter().map(|item| item.output.as_ref()))),
        };
    }
    if whole.state == TaskState::Failed
        && let Some((kind, message)) = failure
    {
        whole.error = Some(Failure {
            kind,
            message,
            trace: None,
            omitted: None,
            task: None,
            item: None,
        });
    }
    whole.items = Some(counts);
    whole
}

/// The message of an error that the store left out because of its size.
const MESSAGE_OMITTED: &str = "the message is left out: the errors of the run are too large for one answer";

fn failure_of(attempt: &AttemptView) -> Option<Failure> {
    let message = match (&attempt.error_message, attempt.error_message_bytes) {
        (Some(message), _) => message.clone(),
        (None, Some(_)) => MESSAGE_OMITTED.to_owned(),
        (None, None) => String::new(),
    };
    Some(Failure {
        kind: attempt.error_kind?,
        message,
        trace: attempt.error_trace.clone(),
        omitted: attempt.is_error_omitted().then_some(true),
        task: None,
        item: None,
    })
}

/// An item that a mapped task had before it was expanded again: it is as its last attempt left it.
fn former_item(
    engine: &Engine,
    plan: &Plan,
    run: RunId,
    key: TaskKey,
    attempts: &[AttemptView],
) -> Result<Option<TaskRun>, StoreError> {
    let Some(last) = attempts.last() else {
        return Ok(None);
    };
    let state = match last.state {
        AttemptState::Running => TaskState::Running,
        AttemptState::Succeeded if last.skipped => TaskState::Skipped,
        AttemptState::Succeeded => TaskState::Succeeded,
        AttemptState::Failed | AttemptState::TimedOut | AttemptState::Lost => TaskState::Failed,
        AttemptState::Cancelled => TaskState::Cancelled,
    };
    let found = Found {
        attempts,
        last_override: None,
        cleared: None,
        due: None,
        waits: None,
    };
    task_run(engine, plan, run, key, state, &found).map(Some)
}

/// One task run with its attempts.
pub(crate) fn task_detail(
    engine: &Engine,
    plan: &Plan,
    detail: &RunDetail,
    index: TaskIndex,
    item: Option<u32>,
) -> Result<Option<TaskDetail>, Refusal> {
    let tasks = task_runs(engine, plan, detail)?;
    let name = plan.tasks[index as usize].name.as_str();
    let key = TaskKey { task: index, item };
    let mut by_key = detail.attempts.chunk_by(|one, next| one.key == next.key);
    let attempts = by_key.find(|some| some[0].key == key).unwrap_or_default();
    let task = match tasks.into_iter().find(|task| task.task == name && task.item == item) {
        None => former_item(engine, plan, RunId(detail.run.id), key, attempts)?,
        known => known,
    };
    let attempts = attempts
        .iter()
        .map(|attempt| Attempt {
            attempt: attempt.attempt,
            state: attempt.state,
            node: attempt.node.map(|node| node.to_string()),
            worker: attempt.worker.clone(),
            started_at: attempt.started_at.into(),
            finished_at: attempt.finished_at.map(Into::into),
            error: failure_of(attempt),
            memory_bytes: attempt.memory_bytes.map(|bytes| bytes as u64),
            cpu_ms: attempt.cpu_micros.map(|micros| (micros as u64).div_ceil(1_000)),
        })
        .collect();
    Ok(task.map(|task| TaskDetail { task, attempts }))
}
