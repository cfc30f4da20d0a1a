//! The transitions: every event in one match, then the consequences, until nothing changes any more.

use std::collections::{BTreeSet, HashSet};

use super::{
    ATTEMPTS_MAX, Actions, AttemptKey, Control, Detail, Event, Failure, Outcome, Progress, Refused, SkipCause, TaskKey,
};
use crate::Time;
use crate::plan::{Plan, PlanTask, TaskIndex};
use crate::retry;
use crate::spec::OnFailure;
use crate::state::{ErrorKind, RunState, TaskState};

/// How many characters of a message a run keeps as its error.
const ERROR_CHARS_MAX: usize = 500;

pub(super) struct Machine<'a> {
    pub(super) plan: &'a Plan,
    pub(super) state: &'a mut RunState,
    pub(super) progress: &'a mut Progress,
    now: Time,
    bits: &'a mut dyn FnMut() -> u128,
    pub(super) actions: Actions,
    /// Tasks whose dependencies have changed.
    pub(super) touched: Vec<TaskIndex>,
    /// Mapped tasks whose items have changed.
    pub(super) moved: BTreeSet<TaskIndex>,
    /// Mapped tasks of which an item has failed that cancels the rest.
    failing: BTreeSet<TaskIndex>,
    /// A task has failed that stops the run.
    stop_due: bool,
    /// An operator is repairing a failure.
    pub(super) lift_due: bool,
    /// Before that repair, there was a failure that stops the run.
    pub(super) was_stopped: bool,
    /// The mapped task that is being repaired, if failed items of it had cancelled the rest.
    pub(super) failed_fast: Option<TaskIndex>,
    /// The run is being cancelled.
    pub(super) cancelled: bool,
    /// A reopened run waits at its group's gate.
    waits_at_gate: bool,
}

impl<'a> Machine<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        state: &'a mut RunState,
        progress: &'a mut Progress,
        now: Time,
        bits: &'a mut dyn FnMut() -> u128,
    ) -> Self {
        progress
            .states
            .resize(plan.tasks.len(), TaskState::Pending.number() as u8);
        Self {
            plan,
            state,
            progress,
            now,
            bits,
            actions: Actions::default(),
            touched: Vec::new(),
            moved: BTreeSet::new(),
            failing: BTreeSet::new(),
            stop_due: false,
            lift_due: false,
            was_stopped: false,
            failed_fast: None,
            cancelled: false,
            waits_at_gate: false,
        }
    }

    /// Applies one event to the run. `Err`: the event is a control that does not fit the state of the run.
    #[expect(clippy::too_many_lines, reason = "a table: an entry for each event")]
    pub(super) fn apply(&mut self, event: &Event) -> Result<(), Refused> {
        if !matches!(event, Event::Expanded { .. } | Event::Ended { .. } | Event::Due(_)) {
            // A control sees the consequences of the outcomes before it.
            self.follow();
        }
        match event {
            Event::Start => {
                if !matches!(*self.state, RunState::Waiting | RunState::Running) {
                    return Err(Refused::RunState(*self.state));
                }
                self.go();
                Ok(())
            }
            Event::Expanded { at, count } => {
                let accepted = self.is_current(*at) && at.key.item.is_none() && self.task(at.key.task).mapped;
                if accepted {
                    self.expand(at.key.task, *count);
                }
                self.actions.accepted.push(accepted);
                Ok(())
            }
            Event::Ended { at, outcome } => {
                let accepted = self.is_current(*at);
                if accepted {
                    self.ended(*at, outcome);
                }
                self.actions.accepted.push(accepted);
                Ok(())
            }
            Event::Due(at) => {
                if self.progress.attempt(at.key) == at.attempt && self.get(at.key) == Some(TaskState::Retrying) {
                    self.due(at.key);
                }
                Ok(())
            }
            Event::Pause { withdrawn } => {
                Control::Pause.check(*self.state)?;
                *self.state = RunState::Paused;
                for &key in withdrawn {
                    if self.get(key) == Some(TaskState::Ready) {
                        self.set(key, TaskState::Paused);
                    }
                }
                Ok(())
            }
            Event::Resume { waits } => {
                Control::Resume.check(*self.state)?;
                if *waits {
                    *self.state = RunState::Waiting;
                } else {
                    self.go();
                }
                Ok(())
            }
            Event::Cancel { withdrawn } => {
                Control::Cancel.check(*self.state)?;
                self.cancel(withdrawn);
                Ok(())
            }
            Event::Withdrawn(keys) => {
                for &key in keys {
                    if self.get(key) == Some(TaskState::Ready) {
                        self.settle(key, TaskState::Cancelled);
                    }
                }
                Ok(())
            }
            Event::Override {
                key,
                state,
                bytes_before,
                bytes_after,
            } => self.override_state(*key, *state, *bytes_before, *bytes_after),
            Event::RetryNow(key) => self.retry_now(*key),
            Event::Clear {
                key,
                downstream,
                output_bytes,
            } => self.clear(*key, *downstream, *output_bytes),
            Event::Restart => self.restart(),
            Event::WaitAtGate => {
                self.waits_at_gate = true;
                Ok(())
            }
        }
    }

    /// The run begins or continues: makes task runs ready that wait for nothing else, and those that were held back
    /// while the run was paused or waited at the gate again.
    fn go(&mut self) {
        *self.state = RunState::Running;
        self.touched.extend(0..self.plan.tasks.len() as TaskIndex);
        for key in self.progress.in_state(TaskState::Paused) {
            self.make_ready(key);
        }
        self.moved.extend(self.progress.maps.keys());
    }

    /// The state of a run that is reopened.
    pub(super) fn reopened(&self) -> RunState {
        match self.waits_at_gate {
            true => RunState::Waiting,
            false => RunState::Running,
        }
    }

    /// Whether anything of the run has ever been started or settled.
    fn has_begun(&self) -> bool {
        let open = [TaskState::Pending, TaskState::Paused].map(|state| state.number() as u8);
        let progress = &*self.progress;
        !(progress.details.is_empty()
            && progress.maps.is_empty()
            && progress.states.iter().all(|byte| open.contains(byte)))
    }

    /// Whether the run waits to begin, and not to continue.
    pub(super) fn is_new(&self) -> bool {
        *self.state == RunState::Waiting && !self.has_begun()
    }

    /// Applies the rules to all changed tasks, and finds out whether the run has ended.
    pub(super) fn finish(mut self) -> Actions {
        self.follow();
        let progress = &*self.progress;
        // Within one decision, a task run may become ready or settled and then change again. Only the last state
        // counts.
        let still =
            |at: &AttemptKey, state| progress.state(at.key) == Some(state) && progress.attempt(at.key) == at.attempt;
        self.actions.ready.retain(|at| still(at, TaskState::Ready));
        self.actions.timers.retain(|(_, at)| still(at, TaskState::Retrying));
        let mut seen = HashSet::new();
        self.actions
            .settled
            .retain(|&(task, state)| progress.task(task) == state && seen.insert(task));
        self.actions.withdraw &= progress.stopping && self.has_ready();
        if !self.state.is_final() && self.is_settled() {
            *self.state = self.end();
            self.actions.finished = Some(*self.state);
        }
        self.actions
    }

    /// The final state of a run whose tasks are all settled.
    fn end(&mut self) -> RunState {
        let count = self.plan.tasks.len() as TaskIndex;
        if self.cancelled {
            return RunState::Cancelled;
        }
        if let Some(task) = (0..count).find(|&task| self.is_failure(task)) {
            // The failure in the run's error may have been repaired, and this one remains.
            self.note_failure(TaskKey::whole(task), ErrorKind::Failed, "failed");
            return RunState::Failed;
        }
        self.progress.take_back_error();
        match (0..count).any(|task| self.progress.task(task) == TaskState::Cancelled) {
            true => RunState::Cancelled,
            false => RunState::Succeeded,
        }
    }

    pub(super) fn is_settled(&self) -> bool {
        let settled = |byte: &u8| TaskState::from_number(*byte as i16).is_some_and(TaskState::is_settled);
        self.progress.states.iter().all(settled)
    }

    /// Whether something is ready or running.
    fn has_ready(&self) -> bool {
        let ready = TaskState::Ready.number() as u8;
        self.progress.states.iter().enumerate().any(|(task, &byte)| {
            byte == ready
                && self
                    .progress
                    .maps
                    .get(&(task as TaskIndex))
                    .is_none_or(|map| map.open > 0)
        })
    }

    /// Applies the consequences until nothing changes. Failures come first, so that nothing starts after them.
    fn follow(&mut self) {
        loop {
            if std::mem::take(&mut self.stop_due) {
                self.stop();
            } else if let Some(task) = self.failing.pop_first() {
                self.cancel_items(task);
                self.moved.insert(task);
            } else if std::mem::take(&mut self.lift_due) {
                self.lift();
            } else if let Some(task) = self.moved.pop_first() {
                self.map_moved(task);
            } else if !self.touched.is_empty() {
                self.ask_rules();
            } else {
                return;
            }
        }
    }

    pub(super) fn get(&self, key: TaskKey) -> Option<TaskState> {
        self.progress.state(key)
    }

    pub(super) fn task(&self, task: TaskIndex) -> &'a PlanTask {
        &self.plan.tasks[task as usize]
    }

    pub(super) fn set(&mut self, key: TaskKey, state: TaskState) {
        match key.item {
            None => {
                if let Some(byte) = self.progress.states.get_mut(key.task as usize) {
                    *byte = state.number() as u8;
                }
            }
            Some(item) => {
                if let Some(map) = self.progress.maps.get_mut(&key.task) {
                    map.set(item, state);
                }
            }
        }
    }

    pub(super) fn detail(&mut self, key: TaskKey) -> &mut Detail {
        match key.item {
            None => self.progress.details.entry(key.task).or_default(),
            Some(item) => {
                let map = self.progress.maps.entry(key.task).or_default();
                let base = map.base;
                map.details.entry(item).or_insert_with(|| Detail {
                    used: base,
                    ..Detail::default()
                })
            }
        }
    }

    /// Whether an outcome is that of the current attempt.
    fn is_current(&self, at: AttemptKey) -> bool {
        !self.state.is_final()
            && self.get(at.key) == Some(TaskState::Ready)
            && self.progress.attempt(at.key) == at.attempt
            && (at.key.item.is_some() || !self.progress.maps.contains_key(&at.key.task))
    }

    /// Whether anything new may start.
    pub(super) fn starts_new(&self) -> bool {
        *self.state == RunState::Running && !self.progress.stopping
    }

    /// A task's rule is met: the task becomes ready, or its items if they are known.
    pub(super) fn begin(&mut self, task: TaskIndex) {
        let key = TaskKey::whole(task);
        if self.progress.stopping || *self.state == RunState::Cancelled {
            self.settle(key, TaskState::Cancelled);
        } else if self.progress.maps.contains_key(&task) {
            self.set(key, TaskState::Ready);
            self.moved.insert(task);
        } else {
            self.make_ready(key);
        }
    }

    /// A retry is due.
    pub(super) fn due(&mut self, key: TaskKey) {
        match key.item {
            Some(item) => self.item_again(key.task, item),
            None => self.make_ready(key),
        }
    }

    /// Makes a task run ready, unless the run is paused, waits at the gate, or is stopping.
    pub(super) fn make_ready(&mut self, key: TaskKey) {
        let attempt = self.progress.attempt(key);
        if self.progress.stopping {
            self.settle(key, TaskState::Cancelled);
        } else if attempt == ATTEMPTS_MAX {
            self.fail(
                key,
                ErrorKind::Failed,
                &format!("tried {} times, which is the maximum", ATTEMPTS_MAX - 1),
            );
        } else if matches!(*self.state, RunState::Paused | RunState::Waiting) {
            self.set(key, TaskState::Paused);
        } else {
            self.set(key, TaskState::Ready);
            self.actions.ready.push(AttemptKey { key, attempt });
        }
    }

    fn ended(&mut self, at: AttemptKey, outcome: &Outcome) {
        let key = at.key;
        match outcome {
            Outcome::Succeeded { output_bytes } => {
                if key.item.is_some()
                    && let Some(map) = self.progress.maps.get_mut(&key.task)
                {
                    map.output_bytes = map.output_bytes.saturating_add(*output_bytes);
                }
                self.settle(key, TaskState::Succeeded);
            }
            Outcome::Skipped => {
                let detail = self.detail(key);
                detail.used = at.attempt;
                detail.skip = SkipCause::Own;
                self.settle(key, TaskState::Skipped);
            }
            Outcome::Lost => {
                let lost_max = self.task(key.task).lost_max;
                let detail = self.detail(key);
                detail.used = at.attempt;
                detail.lost = detail.lost.saturating_add(1);
                let lost = detail.lost;
                if lost > lost_max {
                    let times = if lost == 1 {
                        "once".to_owned()
                    } else {
                        format!("{lost} times")
                    };
                    let message = format!("lost with its node or worker {times}; `max_lost` is {lost_max}");
                    self.fail(key, ErrorKind::Lost, &message);
                } else {
                    self.make_ready(key);
                }
            }
            Outcome::Released => {
                self.detail(key).used = at.attempt;
                self.make_ready(key);
            }
            Outcome::Failed {
                kind,
                message,
                retry_after,
                fatal,
            } => {
                let (now, zone, bits) = (self.now, self.plan.zone, (self.bits)());
                let may_retry =
                    !fatal && !matches!(kind, ErrorKind::Fatal | ErrorKind::Invalid) && !self.progress.stopping;
                let policy = self.task(key.task).retry.as_ref().filter(|_| may_retry);
                let detail = self.detail(key);
                detail.used = at.attempt;
                let wait = retry::Wait::of(*kind, *retry_after);
                let due = policy.and_then(|policy| retry::next(policy, &mut detail.retry, now, zone, wait, bits));
                match due {
                    Some(due) if due <= now => self.make_ready(key),
                    Some(due) => {
                        self.set(key, TaskState::Retrying);
                        self.actions.timers.push((
                            due,
                            AttemptKey {
                                key,
                                attempt: self.progress.attempt(key),
                            },
                        ));
                        if key.item.is_some() {
                            self.moved.insert(key.task);
                        }
                    }
                    None => self.fail(key, *kind, message),
                }
            }
        }
    }

    pub(super) fn fail(&mut self, key: TaskKey, kind: ErrorKind, message: &str) {
        let word = kind.to_string();
        let says_kind = message.strip_prefix(&word).is_some_and(|rest| rest.starts_with(':'));
        match says_kind {
            true => self.note_failure(key, kind, message),
            false => self.note_failure(key, kind, &format!("{word}: {message}")),
        }
        self.settle(key, TaskState::Failed);
    }

    /// A task run's state has become `failed`: notes it for people, and what it stops.
    pub(super) fn note_failure(&mut self, key: TaskKey, kind: ErrorKind, what: &str) {
        let task = self.task(key.task);
        if key.item.is_some() && task.fail_fast {
            self.failing.insert(key.task);
        }
        if task.allow_failure {
            return;
        }
        if self.progress.error.is_none() {
            let item = key.item.map(|item| format!(" item {item}")).unwrap_or_default();
            let text = format!("task {}{item}: {what}", task.name);
            self.progress.error = Some(text.chars().take(ERROR_CHARS_MAX).collect());
            self.progress.failure = Some(Failure {
                task: key.task,
                item: key.item,
                kind,
            });
        }
        if key.item.is_none() && self.plan.on_failure == OnFailure::Stop && !self.progress.stopping {
            self.stop_due = true;
        }
    }

    /// The only function that settles a task run, apart from cancel and override.
    pub(super) fn settle(&mut self, key: TaskKey, state: TaskState) {
        debug_assert!(state.is_settled());
        if self.get(key).is_none_or(TaskState::is_settled) {
            return;
        }
        self.set(key, state);
        if key.item.is_some() {
            self.moved.insert(key.task);
        } else {
            self.cancel_items(key.task);
            self.actions.settled.push((key.task, state));
            self.touched.extend(&self.task(key.task).dependants);
        }
    }

    /// Takes back all that an unsettled task run has: a ready row, a running attempt, a timer.
    pub(super) fn forget(&mut self, key: TaskKey, state: TaskState) {
        match state {
            TaskState::Ready => {
                self.actions.interrupt.push(key);
                // It may have begun.
                self.detail(key).used = self.progress.attempt(key);
            }
            TaskState::Retrying => self.actions.drop_timers.push(key),
            _ => {}
        }
    }

    /// `on_failure: stop`: what has not started never starts; what is running continues.
    fn stop(&mut self) {
        self.progress.stopping = true;
        self.actions.withdraw = true;
        for at in std::mem::take(&mut self.actions.ready) {
            self.settle(at.key, TaskState::Cancelled);
        }
        for state in [TaskState::Retrying, TaskState::Paused] {
            for key in self.progress.in_state(state) {
                self.forget(key, state);
                self.settle(key, TaskState::Cancelled);
            }
        }
        for task in 0..self.plan.tasks.len() as TaskIndex {
            match self.progress.task(task) {
                TaskState::Pending => self.settle(TaskKey::whole(task), TaskState::Cancelled),
                TaskState::Ready => self.cancel_unstarted_items(task),
                _ => {}
            }
        }
    }

    /// Whether a task's state makes the run fail.
    pub(super) fn is_failure(&self, task: TaskIndex) -> bool {
        self.progress.task(task) == TaskState::Failed && !self.task(task).allow_failure
    }
}
