//! Controls of task runs by operators: their states are set, and they run again, with all that depends on them if asked.

use std::sync::Arc;

use heddle_domain::executor::Executor;
use heddle_domain::id::RunId;
use heddle_domain::plan::PlanTask;
use heddle_domain::run::{Event, JOINED_OUTPUT_BYTES_MAX, TaskKey};
use heddle_domain::spec::ByteSize;
use heddle_domain::state::{RunState, TaskState};
use heddle_domain::{Fault, Name};
use heddle_store::live::{Completion, NewOverride};
use serde_json::{Value, json};

use crate::runs::change::transition::progress_of;
use crate::runs::controlled::{Act, Answers, ControlError, ControlledRun, Planned, Step};
use crate::runs::create::batch_run::{check_again, check_set_by_hand};
use crate::{EngineError, Runs};

/// A task run that is to run again within a run that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clear {
    pub task: Name,
    /// An item of a mapped task; `None`: all of it.
    pub item: Option<u32>,
    /// Whether all tasks that depend on it run again too.
    pub downstream: bool,
    /// Why; may be empty.
    pub reason: String,
}

/// A state that an operator sets, and why.
struct Set<'a> {
    state: TaskState,
    /// The output of the task run from now on, as JSON text.
    output: Option<String>,
    reason: &'a str,
}

impl Runs {
    /// Sets the state of a task run, with a reason.
    pub(crate) async fn set_task_state(
        self: &Arc<Self>,
        run: RunId,
        key: TaskKey,
        state: TaskState,
        output: Option<String>,
        reason: &str,
        actor: &str,
    ) -> Result<(), ControlError> {
        let set = Set { state, output, reason };
        self.control_task(run, key, Some(set), actor).await
    }

    /// Retries a failed or retrying task run at once.
    pub(crate) async fn retry_task(
        self: &Arc<Self>,
        run: RunId,
        key: TaskKey,
        actor: &str,
    ) -> Result<(), ControlError> {
        self.control_task(run, key, None, actor).await
    }

    async fn control_task(
        self: &Arc<Self>,
        run: RunId,
        key: TaskKey,
        set: Option<Set<'_>>,
        actor: &str,
    ) -> Result<(), ControlError> {
        self.retried(|| self.task_event(run, key, set.as_ref(), actor)).await
    }

    async fn task_event(
        self: &Arc<Self>,
        run: RunId,
        key: TaskKey,
        set: Option<&Set<'_>>,
        actor: &str,
    ) -> Result<(), ControlError> {
        let (mut completion, locked) = self.lock("control_task", run).await?;
        let progress = progress_of(run, &locked.live.progress)?;
        let Some(before) = progress.state(key) else {
            return Err(ControlError::NotFound("task run"));
        };
        let plan = &locked.context.revision.plan;
        let event = match set {
            None => {
                check_again(&locked.context.revision.group_name).map_err(ControlError::Refused)?;
                Event::RetryNow(key)
            }
            Some(set) => {
                check_set_by_hand(&locked.context.revision.group_name).map_err(ControlError::Refused)?;
                check_output(plan.task(key.task), key, set.output.as_deref())?;
                let joined: Vec<(RunId, TaskKey)> = is_joined(key, before).then_some((run, key)).into_iter().collect();
                let bytes = completion.output_bytes(&joined).await?;
                Event::Override {
                    key,
                    state: set.state,
                    bytes_before: bytes.get(&run).copied().unwrap_or_default(),
                    bytes_after: set.output.as_deref().unwrap_or("null").len() as u64,
                }
            }
        };
        let named = |state: TaskState| {
            let name = plan.task(key.task).map(|task| task.name.as_str());
            json!({"name": name, "item": key.item, "state": state})
        };
        let task = (named(before), named(set.map_or(TaskState::Ready, |set| set.state)));
        let act = Act {
            actor,
            word: Some(if set.is_some() { "override" } else { "retry" }),
            reason: set.map_or("", |set| set.reason),
            why: None,
            leaves_out: false,
        };
        let sets = set.map(|set| NewOverride {
            key,
            state: set.state,
            output: set.output.clone(),
        });
        let planned = Planned {
            task: Some(task),
            sets: sets.into_iter().collect(),
            ..Planned::of(locked, Step::Event(event))
        };
        self.commit_control(completion, &act, planned).await
    }

    /// What a clear does to locked runs that have ended. Those without the task run get their answers.
    pub(super) async fn plan_clear(
        &self,
        completion: &mut Completion,
        locked: Vec<ControlledRun>,
        clear: &Clear,
        answers: &mut Answers,
    ) -> Result<Vec<Planned>, EngineError> {
        let mut found = Vec::with_capacity(locked.len());
        for one in locked {
            match key_of(&one, clear) {
                Ok((key, before)) => found.push((one, key, before)),
                Err(ControlError::Engine(error)) => return Err(error),
                Err(refused) => drop(answers.insert(one.run, Err(refused))),
            }
        }
        let joined: Vec<(RunId, TaskKey)> = found
            .iter()
            .filter(|(_, key, before)| is_joined(*key, *before))
            .map(|(one, key, _)| (one.run, *key))
            .collect();
        let bytes = completion.output_bytes(&joined).await?;
        let mut planned = Vec::with_capacity(found.len());
        for (locked, key, before) in found {
            let cleared = locked.context.revision.plan.cleared(key.task, clear.downstream);
            let sets: Vec<NewOverride> = cleared
                .into_iter()
                .map(|next| NewOverride {
                    key: if next == key.task { key } else { TaskKey::whole(next) },
                    state: TaskState::Pending,
                    output: None,
                })
                .collect();
            let event = Event::Clear {
                key,
                downstream: clear.downstream,
                output_bytes: bytes.get(&locked.run).copied().unwrap_or_default(),
            };
            planned.push(Planned {
                task: Some(noted(clear, before, sets.len())),
                sets,
                ..Planned::of(locked, Step::Event(event))
            });
        }
        Ok(planned)
    }
}

/// The task run of a locked run that is to be cleared, and its state.
fn key_of(locked: &ControlledRun, clear: &Clear) -> Result<(TaskKey, TaskState), ControlError> {
    let task = locked.context.revision.plan.index(clear.task.as_str());
    let task = task.ok_or(ControlError::NotFound("task"))?;
    let key = TaskKey { task, item: clear.item };
    let progress = progress_of(locked.run, &locked.live.progress)?;
    let before = progress.state(key).ok_or(ControlError::NotFound("task run"))?;
    Ok((key, before))
}

/// A cleared task run before and after, for the audit. `cleared`: how many tasks run again.
fn noted(clear: &Clear, before: TaskState, cleared: usize) -> (Value, Value) {
    let named = |state: TaskState| json!({"name": clear.task, "item": clear.item, "state": state});
    let mut after = named(TaskState::Pending);
    after["downstream"] = json!(clear.downstream);
    after["cleared"] = json!(cleared);
    (named(before), after)
}

/// Refuses an output that is too large for its task run: it is bound like one that an attempt gives. As for attempts, a mapped
/// task as a whole and an `audience` task, whose outputs are arrays of many outputs, have a bound of their own.
fn check_output(task: Option<&PlanTask>, key: TaskKey, output: Option<&str>) -> Result<(), ControlError> {
    let (Some(task), Some(output)) = (task, output) else {
        return Ok(());
    };
    let is_array = (task.mapped && key.item.is_none()) || matches!(task.executor, Executor::Audience(_));
    let bytes_max = match (is_array, task.spec.max_output) {
        (true, _) => JOINED_OUTPUT_BYTES_MAX,
        (false, Some(ByteSize(own))) => own,
        (false, None) => heddle_sandbox::Limits::default().output_bytes as u64,
    };
    let bytes = output.len() as u64;
    if bytes <= bytes_max {
        return Ok(());
    }
    let bound = match is_array {
        true => "",
        false => " (`max_output` of the task)",
    };
    let detail = format!("the output has {bytes} bytes; it must have at most {bytes_max} bytes{bound}");
    Err(ControlError::Invalid(Fault::at("/output", detail).into()))
}

/// Whether the output of a task run is part of the joined output of a mapped task.
fn is_joined(key: TaskKey, state: TaskState) -> bool {
    key.item.is_some() && state == TaskState::Succeeded
}

/// Why a run in this state cannot be cleared, and what to do instead.
pub(crate) fn not_cleared(state: RunState) -> String {
    format!(
        "the run is {state}; a task run can be cleared only after its run has ended. Cancel the run first, or retry \
        the task run or override its state"
    )
}
