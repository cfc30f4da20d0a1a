//! The progress of a run that is given up: nothing can be recorded of it any more, or its own progress cannot be read.
//!
//! It is made from the history. A task whose last attempt succeeded has succeeded; the task because of which the run is
//! given up has failed; all else that is not certain is cancelled. So the run shows what it has done, and a restart
//! continues from there: it runs the rest again, under numbers that no attempt has had.

use super::{AttemptKey, Detail, Failure, Progress, SkipCause};
use crate::plan::Plan;
use crate::state::{ErrorKind, TaskState};

/// An attempt in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Past {
    pub at: AttemptKey,
    /// The state of the task run after it, if that is certain.
    pub left: Option<TaskState>,
}

impl Progress {
    /// For a run that is given up because of an attempt; `past` is its history, in any order.
    pub fn abandoned(plan: &Plan, past: &[Past], failed: AttemptKey, why: &str) -> Self {
        let mut progress = Self::new(plan);
        for state in &mut progress.states {
            *state = TaskState::Cancelled.number() as u8;
        }
        let mut past = past.to_vec();
        past.sort_by_key(|past| past.at);
        for past in past {
            let task = past.at.key.task;
            let Some(spec) = plan.task(task) else { continue };
            let whole = past.at.key.item.is_none() && !spec.mapped;
            let left = past.left.filter(|_| whole).unwrap_or(TaskState::Cancelled);
            let detail = progress.details.entry(task).or_default();
            // A success is not counted until somebody overrides it.
            let used = past.at.attempt - u32::from(left == TaskState::Succeeded);
            detail.used = detail.used.max(used);
            if whole {
                progress.states[task as usize] = left.number() as u8;
            }
            if left == TaskState::Skipped {
                detail.skip = SkipCause::Own;
            }
        }
        if let Some(task) = plan.task(failed.key.task) {
            progress.states[failed.key.task as usize] = TaskState::Failed.number() as u8;
            let detail = progress.details.entry(failed.key.task).or_default();
            detail.used = detail.used.max(failed.attempt);
            let item = failed.key.item.map(|item| format!(" item {item}")).unwrap_or_default();
            progress.error = Some(format!("task {}{item}: {}: {why}", task.name, ErrorKind::Invalid));
            progress.failure = Some(Failure {
                task: failed.key.task,
                item: failed.key.item,
                kind: ErrorKind::Invalid,
            });
        }
        progress.details.retain(|_, detail| *detail != Detail::default());
        progress
    }
}
