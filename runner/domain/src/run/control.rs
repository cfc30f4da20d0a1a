//! Controls of operators: cancel, override, retry now, clear, restart.
//!
//! Each undoes the consequences of the states that it changes, and applies the rules again. States that come from the
//! outcome of a task run, or from an operator, stay.

use super::format::BY_HAND;
use super::machine::Machine;
use super::{Control, Refused, SkipCause, TaskKey};
use crate::plan::TaskIndex;
use crate::spec::OnFailure;
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

    pub(super) fn override_state(
        &mut self,
        key: TaskKey,
        state: TaskState,
        bytes_before: u64,
        bytes_after: u64,
    ) -> Result<(), Refused> {
        let before = self.get(key).ok_or(Refused::Unknown)?;
        if !TaskState::OVERRIDES.contains(&state) {
            return Err(Refused::TaskState(state));
        }
        if key.item.is_none() && state == TaskState::Skipped {
            self.detail(key).skip = SkipCause::Override;
        }
        let made_by_items = self.progress.is_made_by_items(key.task);
        let part = |of: TaskState, bytes: u64| if of == TaskState::Succeeded { bytes } else { 0 };
        let (bytes_before, bytes_after) = (part(before, bytes_before), part(state, bytes_after));
        let resized = key.item.is_some() && bytes_before != bytes_after;
        if resized && let Some(map) = self.progress.maps.get_mut(&key.task) {
            map.replace_output(bytes_before, bytes_after);
        }
        if before == state && !resized {
            if self.state.is_final() && *self.state != RunState::Cancelled && self.is_settled() {
                // If an operator has set the state of the run, it goes by its task runs again, as after any other override.
                *self.state = self.reopened();
            }
            self.actions.finished = Some(*self.state).filter(|state| state.is_final());
            return Ok(());
        }
        let is_cancelled = *self.state == RunState::Cancelled;
        if !is_cancelled {
            self.reopen_run(key.task);
        }
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
        if is_cancelled {
            // It stays so. What would start now is cancelled: a restart continues it, and uses the state that is set here.
            if key.item.is_none() || made_by_items && self.set_by_items(key.task) {
                self.reopen_dependants(key.task, false);
            }
            self.actions.finished = Some(RunState::Cancelled);
            return Ok(());
        }
        match key.item {
            None => {
                self.touched.extend(&self.task(key.task).dependants);
                self.reopen_dependants(key.task, false);
                if state == TaskState::Failed {
                    self.note_failure(key, ErrorKind::Failed, BY_HAND);
                }
            }
            Some(_) => self.item_overridden(key, state, made_by_items),
        }
        Ok(())
    }

    fn item_overridden(&mut self, key: TaskKey, state: TaskState, made_by_items: bool) {
        if state == TaskState::Failed {
            self.note_failure(key, ErrorKind::Failed, BY_HAND);
        }
        let task = self.progress.task(key.task);
        // An override stays, whatever the items do.
        if made_by_items || !task.is_settled() {
            self.reopen_map(key.task, task, false);
        }
    }

    /// Gives a mapped task of a cancelled run the state to which its items lead. Returns whether it is another one.
    fn set_by_items(&mut self, task: TaskIndex) -> bool {
        let made = self.progress.made_by_items(task);
        let Some(state) = made.filter(|&state| state != self.progress.task(task)) else {
            return false;
        };
        self.set(TaskKey::whole(task), state);
        self.actions.settled.push((task, state));
        true
    }

    /// An item of a mapped task was overridden.
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
        let has_failed_items = self.progress.maps.get(&key.task).is_some_and(|map| map.failed > 0);
        match before {
            TaskState::Retrying => {
                self.actions.drop_timers.push(key);
                self.due(key);
                return Ok(());
            }
            TaskState::Failed => {}
            // Other items still run.
            TaskState::Ready if key.item.is_none() && has_failed_items => {}
            // By `fail_fast`.
            TaskState::Cancelled
                if key.item.is_some() && task == TaskState::Failed && self.task(key.task).fail_fast => {}
            _ => return Err(Refused::TaskState(before)),
        }
        if key.item.is_some() && !matches!(task, TaskState::Ready | TaskState::Failed | TaskState::Cancelled) {
            // It was overridden.
            return Err(Refused::TaskState(task));
        }
        self.reopen_run(key.task);
        self.progress.stopping = false;
        if key.item.is_none() {
            // Forgets the items of a mapped task that failed as a whole.
            self.reset_map(key.task, false);
        }
        match (self.progress.maps.get_mut(&key.task), key.item) {
            (Some(map), Some(item)) => {
                if let Some(detail) = map.details.get_mut(&item) {
                    detail.reset();
                }
                map.enqueue(item);
                self.reopen_map(key.task, task, true);
            }
            (Some(_), None) => self.reopen_map(key.task, task, true),
            (None, _) => {
                self.reset(key.task, false);
                self.make_ready(key);
                self.reopen_dependants(key.task, true);
            }
        }
        Ok(())
    }

    /// Runs a task run of an ended run again, and with `downstream` all that depends on it, whatever their states. Task
    /// runs that never ran because of it are decided again in any case: only the rules had decided that.
    pub(super) fn clear(&mut self, key: TaskKey, downstream: bool, output_bytes: u64) -> Result<(), Refused> {
        let before = self.get(key).ok_or(Refused::Unknown)?;
        Control::Clear.check(*self.state)?;
        let task = self.progress.task(key.task);
        if key.item.is_some() && !self.progress.is_made_by_items(key.task) {
            // It was overridden: the items do not determine it any more.
            return Err(Refused::AsWhole(task));
        }
        let cleared = self.plan.cleared(key.task, downstream);
        let was_cancelled = *self.state == RunState::Cancelled;
        let reported = self.progress.failure(self.plan);
        self.reopen_run(key.task);
        self.progress.stopping = false;
        // If the run was cancelled as a whole, only what is named continues: the rest is for `restart`.
        self.lift_due = !was_cancelled;
        if reported.is_some_and(|failure| cleared.contains(&failure.task)) {
            self.progress.take_back_error();
        }
        for &next in &cleared {
            match key.item {
                Some(item) if next == key.task => self.clear_item(next, item, before, output_bytes),
                _ => self.clear_task(next),
            }
        }
        if !downstream {
            self.reopen_dependants(key.task, false);
        }
        Ok(())
    }

    fn clear_task(&mut self, task: TaskIndex) {
        let key = TaskKey::whole(task);
        let mut used = self.progress.details.remove(&task).map_or(0, |detail| detail.used);
        if let Some(map) = self.progress.maps.remove(&task) {
            used = used.max(map.attempts_used());
        } else if self.progress.task(task) == TaskState::Succeeded {
            used = used.saturating_add(1);
        }
        if used > 0 {
            self.detail(key).used = used;
        }
        self.set(key, TaskState::Pending);
        self.touched.push(task);
    }

    fn clear_item(&mut self, task: TaskIndex, item: u32, before: TaskState, output_bytes: u64) {
        let key = TaskKey { task, item: Some(item) };
        if before == TaskState::Succeeded {
            self.detail(key).used = self.progress.attempt(key);
        }
        if let Some(map) = self.progress.maps.get_mut(&task) {
            if before == TaskState::Succeeded {
                map.replace_output(output_bytes, 0);
            }
            if let Some(detail) = map.details.get_mut(&item) {
                detail.reset();
            }
            map.enqueue(item);
        }
        self.set(TaskKey::whole(task), TaskState::Ready);
        self.moved.insert(task);
    }

    pub(super) fn restart(&mut self) -> Result<(), Refused> {
        Control::Restart.check(*self.state)?;
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

    /// A task's failure is being repaired: the run continues, and its error about that failure is removed. Called before the
    /// repair. A stop remains in force until [`Self::lift`] finds no failure, unless the operator names what starts.
    fn reopen_run(&mut self, task: TaskIndex) {
        if self.state.is_final() {
            *self.state = self.reopened();
        }
        self.lift_due = true;
        self.was_stopped = self.is_stopped();
        let map = self.progress.maps.get(&task).filter(|_| self.task(task).fail_fast);
        self.failed_fast = map.filter(|map| map.failed > 0).map(|_| task);
        if self
            .progress
            .failure(self.plan)
            .is_some_and(|failure| failure.task == task)
        {
            self.progress.take_back_error();
        }
    }

    /// Whether there is a failure that stops the run.
    fn is_stopped(&self) -> bool {
        let count = self.plan.tasks.len() as TaskIndex;
        self.plan.on_failure == OnFailure::Stop && (0..count).any(|task| self.is_failure(task))
    }

    /// If the failures that caused `on_failure: stop` or `fail_fast` are gone, the task runs that were cancelled for
    /// them continue. If there was no such failure before either, tasks and items were cancelled together with their
    /// run, or by an override: only `restart` continues these.
    pub(super) fn lift(&mut self) {
        if self.is_stopped() {
            return;
        }
        self.progress.stopping = false;
        for task in 0..self.plan.tasks.len() as TaskIndex {
            match self.progress.task(task) {
                TaskState::Cancelled if self.was_stopped => {
                    self.reset(task, false);
                    self.touched.push(task);
                    // What the rules had decided by its cancellation is decided again.
                    self.reopen_dependants(task, true);
                }
                TaskState::Ready
                    if (self.was_stopped || self.failed_fast == Some(task))
                        && self.progress.maps.get(&task).is_some_and(|map| map.failed == 0) =>
                {
                    self.reset_items(task, false);
                    self.moved.insert(task);
                }
                _ => {}
            }
        }
    }

    /// Whether a task's state follows from the states of its dependencies. `fresh`: these get new outputs, so that a
    /// skip by the task itself (`when`, its script) is decided again too.
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
                SkipCause::Override => false,
            },
            _ => false,
        }
    }

    /// Sets all tasks to pending whose states follow from the state of this task.
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

    /// Sets a task to pending, and keeps the numbers of its attempts. `above`: tasks that it depends on run again.
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
