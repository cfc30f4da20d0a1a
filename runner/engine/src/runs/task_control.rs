//! Controls of task runs by operators: their states are set, and they run again, with all that depends on them if asked.

use std::sync::Arc;

use heddle_domain::Name;
use heddle_domain::id::RunId;
use heddle_domain::run::{Control, Event, TaskKey};
use heddle_domain::state::{RunState, TaskState};
use heddle_store::StoreError;
use heddle_store::live::{Completion, NewOverride};
use serde_json::json;

use crate::runs::change::transition::progress_of;
use crate::runs::control::{ControlError, Decided, Noted};
use crate::runs::create::batch_run::{check_again, check_set_by_hand};
use crate::{Engine, Runs, UseCase};

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

impl Engine {
    /// Sets the state of a task run, with a reason.
    pub fn set_task_state<'a>(
        &'a self,
        run: RunId,
        key: TaskKey,
        state: TaskState,
        output: Option<String>,
        reason: &'a str,
        actor: &'a str,
    ) -> UseCase<'a, Result<(), ControlError>> {
        let set = NewOverride {
            key,
            state,
            output,
            reason,
            actor,
        };
        Box::pin(self.runs.control_task(run, key, Some(set), actor))
    }

    /// Retries a failed or retrying task run at once.
    pub fn retry_task<'a>(&'a self, run: RunId, key: TaskKey, actor: &'a str) -> UseCase<'a, Result<(), ControlError>> {
        Box::pin(self.runs.control_task(run, key, None, actor))
    }

    /// Runs a task run of an ended run again; with `downstream`, also all that depend on it.
    pub fn clear_task<'a>(
        &'a self,
        run: RunId,
        clear: &'a Clear,
        actor: &'a str,
    ) -> UseCase<'a, Result<(), ControlError>> {
        Box::pin(self.runs.retried(move || self.runs.clear_once(run, clear, actor)))
    }
}

impl Runs {
    async fn control_task(
        self: &Arc<Self>,
        run: RunId,
        key: TaskKey,
        set: Option<NewOverride<'_>>,
        actor: &str,
    ) -> Result<(), ControlError> {
        self.retried(|| self.task_event(run, key, set.as_ref(), actor)).await
    }

    async fn task_event(
        self: &Arc<Self>,
        run: RunId,
        key: TaskKey,
        set: Option<&NewOverride<'_>>,
        actor: &str,
    ) -> Result<(), ControlError> {
        let mut locked = self.lock("control_task", run, true).await?;
        let progress = progress_of(run, &locked.live.progress)?;
        let Some(before) = progress.state(key) else {
            return Err(ControlError::NotFound("task run"));
        };
        let event = match set {
            None => {
                check_again(&locked.context.revision.group_name).map_err(ControlError::Refused)?;
                Event::RetryNow(key)
            }
            Some(set) => {
                check_set_by_hand(&locked.context.revision.group_name).map_err(ControlError::Refused)?;
                Event::Override {
                    key,
                    state: set.state,
                    bytes_before: joined_bytes(&mut locked.completion, run, key, before).await?,
                    bytes_after: set.output.as_deref().unwrap_or("null").len() as u64,
                }
            }
        };
        let plan = &locked.context.revision.plan;
        let named = |state: TaskState| {
            let name = plan.task(key.task).map(|task| task.name.as_str());
            json!({"name": name, "item": key.item, "state": state})
        };
        let noted = Noted {
            actor,
            action: if set.is_some() { "override" } else { "retry" },
            task: Some((named(before), named(set.map_or(TaskState::Ready, |set| set.state)))),
            reason: set.map(|set| set.reason),
        };
        let decided = Decided {
            event,
            why: None,
            noted: Some(noted),
            set,
        };
        self.finish_control(locked, decided).await
    }

    async fn clear_once(self: &Arc<Self>, run: RunId, clear: &Clear, actor: &str) -> Result<(), ControlError> {
        let mut locked = self.lock("clear", run, true).await?;
        if !Control::Clear.is_allowed(locked.live.state) {
            return Err(ControlError::Refused(not_cleared(locked.live.state)));
        }
        check_again(&locked.context.revision.group_name).map_err(ControlError::Refused)?;
        let plan = &locked.context.revision.plan;
        let task = plan.index(clear.task.as_str()).ok_or(ControlError::NotFound("task"))?;
        let key = TaskKey { task, item: clear.item };
        let progress = progress_of(run, &locked.live.progress)?;
        let Some(before) = progress.state(key) else {
            return Err(ControlError::NotFound("task run"));
        };
        let output_bytes = joined_bytes(&mut locked.completion, run, key, before).await?;
        let cleared: Vec<TaskKey> = plan
            .cleared(task, clear.downstream)
            .into_iter()
            .map(|next| if next == task { key } else { TaskKey::whole(next) })
            .collect();
        let now = locked.completion.now();
        locked
            .completion
            .insert_clears(run, &cleared, &clear.reason, actor, now)
            .await?;
        let named = |state: TaskState| json!({"name": clear.task, "item": clear.item, "state": state});
        let mut after = named(TaskState::Pending);
        after["downstream"] = json!(clear.downstream);
        after["cleared"] = json!(cleared.len());
        let noted = Noted {
            actor,
            action: "clear",
            task: Some((named(before), after)),
            reason: Some(clear.reason.as_str()).filter(|reason| !reason.is_empty()),
        };
        let event = Event::Clear {
            key,
            downstream: clear.downstream,
            output_bytes,
        };
        let decided = Decided {
            event,
            why: None,
            noted: Some(noted),
            set: None,
        };
        self.finish_control(locked, decided).await
    }
}

/// The length in bytes of the output of a task run, if it is part of the joined output of a mapped task; otherwise 0.
async fn joined_bytes(
    completion: &mut Completion,
    run: RunId,
    key: TaskKey,
    state: TaskState,
) -> Result<u64, StoreError> {
    match (key.item, state) {
        (Some(_), TaskState::Succeeded) => completion.output_bytes(run, key).await,
        _ => Ok(0),
    }
}

/// Why a run in this state cannot be cleared, and what to do instead.
pub fn not_cleared(state: RunState) -> String {
    format!(
        "the run is {state}; a task run can be cleared only after its run has ended. Cancel the run first, or retry \
        the task run or override its state"
    )
}
