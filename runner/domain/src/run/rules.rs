//! The rules of dependencies: what the states of a task's dependencies mean for it.

use super::TaskKey;
use super::machine::Machine;
use crate::plan::TaskIndex;
use crate::spec::TriggerRule;
use crate::state::TaskState;

/// The meaning of a dependency's state for its dependants.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Open,
    Success,
    Skipped,
    Failed,
}

impl Machine<'_> {
    fn meaning(&self, task: TaskIndex) -> Meaning {
        match self.progress.task(task) {
            TaskState::Succeeded => Meaning::Success,
            TaskState::Failed if self.task(task).allow_failure => Meaning::Success,
            TaskState::Failed | TaskState::UpstreamFailed | TaskState::Cancelled => Meaning::Failed,
            TaskState::Skipped => Meaning::Skipped,
            TaskState::Pending | TaskState::Ready | TaskState::Running | TaskState::Retrying | TaskState::Paused => {
                Meaning::Open
            }
        }
    }

    /// The state that the dependencies give to a pending task; `None` while it is still open.
    fn verdict(&self, task: TaskIndex) -> Option<TaskState> {
        let plan = self.task(task);
        if plan.depends_on.is_empty() {
            return Some(TaskState::Ready);
        }
        let (mut open, mut success, mut skipped, mut failed) = (0usize, 0usize, 0usize, 0usize);
        for &dependency in &plan.depends_on {
            match self.meaning(dependency) {
                Meaning::Open => open += 1,
                Meaning::Success => success += 1,
                Meaning::Skipped => skipped += 1,
                Meaning::Failed => failed += 1,
            }
        }
        // Rules that can be decided early come first, then `open`, then those that need all dependencies settled.
        match plan.rule {
            TriggerRule::Always => Some(TaskState::Ready),
            TriggerRule::AllSuccess | TriggerRule::NoneFailed | TriggerRule::NoneFailedMinOneSuccess if failed > 0 => {
                Some(TaskState::UpstreamFailed)
            }
            TriggerRule::AllFailed if success + skipped > 0 => Some(TaskState::Skipped),
            TriggerRule::AllSkipped if success + failed > 0 => Some(TaskState::Skipped),
            TriggerRule::AnySuccess if success > 0 => Some(TaskState::Ready),
            TriggerRule::AnyFailed if failed > 0 => Some(TaskState::Ready),
            // A skipped dependency decides nothing yet, because a dependency that fails later counts more.
            _ if open > 0 => None,
            TriggerRule::AllSuccess if skipped > 0 => Some(TaskState::Skipped),
            TriggerRule::NoneFailedMinOneSuccess if success == 0 => Some(TaskState::Skipped),
            TriggerRule::AnySuccess | TriggerRule::AnyFailed => Some(TaskState::Skipped),
            TriggerRule::AllSuccess
            | TriggerRule::AllDone
            | TriggerRule::NoneFailed
            | TriggerRule::AllFailed
            | TriggerRule::NoneFailedMinOneSuccess
            | TriggerRule::AllSkipped => Some(TaskState::Ready),
        }
    }

    /// Applies the rules of all pending tasks whose dependencies have changed.
    pub(super) fn ask_rules(&mut self) {
        let mut batch = std::mem::take(&mut self.touched);
        batch.sort_unstable();
        batch.dedup();
        for task in batch {
            if self.progress.task(task) != TaskState::Pending {
                continue;
            }
            match self.verdict(task) {
                Some(TaskState::Ready) => self.begin(task),
                Some(state) => self.settle(TaskKey::whole(task), state),
                None => {}
            }
        }
    }
}
