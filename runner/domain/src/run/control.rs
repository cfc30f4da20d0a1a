//! What operators do: cancel, override, retry-now, restart.
//!
//! Each takes back what followed from the states that it changes, and lets the rules speak again. What was decided by
//! a task run itself, or by hand, stands.

use super::machine::Machine;
use super::{Refused, SkipCause, TaskKey};
use crate::plan::TaskIndex;
use crate::spec::{OnFailure, may_override_to};
use crate::state::{ErrorKind, RunState, TaskState};

impl Machine<'_> {
    pub(super) fn cancel(&mut self, withdrawn: &[TaskKey]) {
        self.cancelled = true;
        *self.state = RunState::Running;
        for &key in withdrawn {
            if self.get(key) == Some(TaskState::Ready) {
                // It never started: its attempt number is free to be used by a restart.
                self.set(key, TaskState::Paused);
            }
        }
        for task in 0..self.plan.tasks.len() as TaskIndex {
            let state = self.progress.task(task);
            if state.is_settled() {
                continue;
            }
            if self.progress.maps.contains_key(&task) {
                self.cancel_items(task);
            } else {
                self.forget(TaskKey::whole(task), state);
            }
            self.set(TaskKey::whole(task), TaskState::Cancelled);
            self.actions.settled.push((task, TaskState::Cancelled));
        }
        self.touched.clear();
    }

    pub(super) fn override_state(&mut self, key: TaskKey, state: TaskState) -> Result<(), Refused> {
        let before = self.get(key).ok_or(Refused::Unknown)?;
        if !may_override_to(state) {
            return Err(Refused::TaskState(state));
        }
        if self.is_new() {
            return Err(Refused::RunState(*self.state));
        }
        if key.item.is_none() && state == TaskState::Skipped {
            self.detail(key).skip = SkipCause::ByHand;
        }
        if before == state {
            self.actions.finished = Some(*self.state).filter(|state| state.is_final());
            return Ok(());
        }
        let made_by_items = self.progress.is_made_by_items(key.task);
        if key.item.is_none() && self.progress.maps.contains_key(&key.task) {
            self.cancel_items(key.task);
        } else {
            self.forget(key, before);
        }
        if before == TaskState::Succeeded {
            self.detail(key).used = self.progress.attempt(key);
        }
        self.set(key, state);
        if key.item.is_none() {
            self.actions.settled.push((key.task, state));
        }
        if state == TaskState::Succeeded
            && key.item.is_some()
            && let Some(map) = self.progress.maps.get_mut(&key.task)
        {
            map.add_null();
        }
        if *self.state == RunState::Cancelled {
            // It comes back by restart only, which will find what was set here.
            self.actions.finished = Some(RunState::Cancelled);
            return Ok(());
        }
        self.reopen_run(key.task);
        match key.item {
            None => {
                self.touched.extend(&self.task(key.task).dependants);
                self.reopen_dependants(key.task, false);
                if state == TaskState::Failed {
                    self.note_failure(key, ErrorKind::Failed, "set to failed by hand");
                }
            }
            Some(_) => self.item_overridden(key, state, made_by_items),
        }
        Ok(())
    }

    fn item_overridden(&mut self, key: TaskKey, state: TaskState, made_by_items: bool) {
        if state == TaskState::Failed {
            self.note_failure(key, ErrorKind::Failed, "set to failed by hand");
        }
        let task = self.progress.task(key.task);
        // What was set by hand stands, whatever the items say.
        if made_by_items || !task.is_settled() {
            self.reopen_map(key.task, task, false);
        }
    }

    /// An item of a mapped task has changed by hand.
    fn reopen_map(&mut self, task: TaskIndex, state: TaskState, fresh: bool) {
        if state.is_settled() {
            self.set(TaskKey::whole(task), TaskState::Ready);
            self.reopen_dependants(task, fresh);
        }
        self.moved.insert(task);
    }

    pub(super) fn retry_now(&mut self, key: TaskKey) -> Result<(), Refused> {
        let before = self.get(key).ok_or(Refused::Unknown)?;
        if self.is_new() || matches!(*self.state, RunState::Paused | RunState::Cancelled) {
            return Err(Refused::RunState(*self.state));
        }
        let task = self.progress.task(key.task);
        match before {
            TaskState::Retrying => {
                self.actions.drop_timers.push(key);
                self.due(key);
                return Ok(());
            }
            TaskState::Failed => {}
            // By `fail_fast`.
            TaskState::Cancelled if key.item.is_some() && task == TaskState::Failed => {}
            _ => return Err(Refused::TaskState(before)),
        }
        if key.item.is_some() && !matches!(task, TaskState::Ready | TaskState::Failed) {
            // Set by hand.
            return Err(Refused::TaskState(task));
        }
        self.reopen_run(key.task);
        if let Some(map) = self.progress.maps.get_mut(&key.task) {
            match key.item {
                Some(item) => {
                    if let Some(detail) = map.details.get_mut(&item) {
                        detail.reset();
                    }
                    map.enqueue(item);
                }
                None => self.reset_items(key.task, true),
            }
            self.reopen_map(key.task, task, true);
        } else {
            self.reset(key.task, false);
            self.make_ready(key);
            self.reopen_dependants(key.task, true);
        }
        Ok(())
    }

    pub(super) fn restart(&mut self) -> Result<(), Refused> {
        self.require(&[RunState::Failed, RunState::Cancelled])?;
        *self.state = self.reopened();
        self.progress.stopping = false;
        self.progress.take_back_error();
        let count = self.plan.tasks.len();
        let mut reopened = vec![false; count];
        let mut stack: Vec<TaskIndex> = (0..count as TaskIndex)
            .filter(|&task| {
                let state = self.progress.task(task);
                matches!(
                    state,
                    TaskState::Failed | TaskState::UpstreamFailed | TaskState::Cancelled
                )
            })
            .collect();
        while let Some(task) = stack.pop() {
            if !std::mem::replace(&mut reopened[task as usize], true) {
                let follows = self
                    .task(task)
                    .dependants
                    .iter()
                    .filter(|&&next| self.follows(next, true));
                stack.extend(follows);
            }
        }
        for task in (0..count as TaskIndex).filter(|&task| reopened[task as usize]) {
            let above = self
                .task(task)
                .depends_on
                .iter()
                .any(|&dependency| reopened[dependency as usize]);
            self.reset(task, above);
            self.touched.push(task);
        }
        Ok(())
    }

    /// A task's failure is being dealt with: the run goes on, and what was said of that failure is taken back.
    fn reopen_run(&mut self, task: TaskIndex) {
        if self.state.is_final() {
            *self.state = self.reopened();
        }
        self.progress.stopping = false;
        self.lift_due = true;
        if self
            .progress
            .failure(self.plan)
            .is_some_and(|failure| failure.task == task)
        {
            self.progress.take_back_error();
        }
    }

    /// What `on_failure: stop` or `fail_fast` cancelled goes on where no failure is left that it was cancelled for.
    pub(super) fn lift(&mut self) {
        let count = self.plan.tasks.len() as TaskIndex;
        if self.plan.on_failure == OnFailure::Stop && (0..count).any(|task| self.is_failure(task)) {
            return;
        }
        for task in 0..count {
            match self.progress.task(task) {
                TaskState::Cancelled => {
                    self.reset(task, false);
                    self.touched.push(task);
                }
                TaskState::Ready if self.progress.maps.get(&task).is_some_and(|map| map.failed == 0) => {
                    self.reset_items(task, false);
                    self.moved.insert(task);
                }
                _ => {}
            }
        }
    }

    /// Whether a task's state is what its dependencies' states led to. With `fresh` outputs above it, what it decided
    /// by itself is asked again as well.
    fn follows(&self, task: TaskIndex, fresh: bool) -> bool {
        match self.progress.task(task) {
            TaskState::UpstreamFailed => true,
            TaskState::Skipped => match self
                .progress
                .details
                .get(&task)
                .map_or(SkipCause::Derived, |it| it.skip)
            {
                SkipCause::Derived => true,
                SkipCause::Own => fresh,
                SkipCause::ByHand => false,
            },
            _ => false,
        }
    }

    /// Opens again what followed from a task's state.
    fn reopen_dependants(&mut self, task: TaskIndex, fresh: bool) {
        let mut stack = self.task(task).dependants.clone();
        while let Some(next) = stack.pop() {
            if self.follows(next, fresh) {
                self.reset(next, fresh);
                self.touched.push(next);
                stack.extend(&self.task(next).dependants);
            }
        }
    }

    /// Sets a task back to pending, its attempts' numbers kept. `above`: tasks that it depends on go again.
    fn reset(&mut self, task: TaskIndex, above: bool) {
        self.reset_map(task, above);
        if let Some(detail) = self.progress.details.get_mut(&task) {
            detail.reset();
            if detail.used == 0 {
                self.progress.details.remove(&task);
            }
        }
        self.set(TaskKey::whole(task), TaskState::Pending);
    }
}
