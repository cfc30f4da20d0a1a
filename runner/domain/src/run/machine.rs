//! The transitions themselves.

use super::{
    Actions, AttemptKey, Detail, Event, JOINED_OUTPUT_BYTES_MAX, MapProgress, Outcome, Progress, Refused, TaskKey,
};
use crate::Time;
use crate::plan::{Plan, PlanTask, TaskIndex};
use crate::retry;
use crate::spec::{OnFailure, TriggerRule};
use crate::state::{ErrorKind, RunState, TaskState};

/// How much of a message a run keeps as its error.
const ERROR_CHARS_MAX: usize = 500;

pub(super) struct Machine<'a> {
    plan: &'a Plan,
    state: &'a mut RunState,
    progress: &'a mut Progress,
    now: Time,
    bits: &'a mut dyn FnMut() -> u128,
    actions: Actions,
    /// Tasks whose dependencies have moved.
    touched: Vec<TaskIndex>,
    /// Something was decided that may end the run.
    cancelled: bool,
}

/// What a dependency's state means to its dependants.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Open,
    Success,
    Skipped,
    Failed,
}

impl<'a> Machine<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        state: &'a mut RunState,
        progress: &'a mut Progress,
        now: Time,
        bits: &'a mut dyn FnMut() -> u128,
    ) -> Self {
        progress.states.resize(plan.tasks.len(), TaskState::Pending.number() as u8);
        Self { plan, state, progress, now, bits, actions: Actions::default(), touched: Vec::new(), cancelled: false }
    }

    pub(super) fn apply(&mut self, event: &Event) -> Result<(), Refused> {
        match event {
            Event::Start => self.start(),
            Event::Expanded { at, count } => {
                let accepted = self.is_current(*at);
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
                    self.make_ready(at.key);
                }
                Ok(())
            }
            Event::Pause { withdrawn } => {
                self.require(&[RunState::Running])?;
                *self.state = RunState::Paused;
                for &key in withdrawn {
                    if self.get(key) == Some(TaskState::Ready) {
                        self.set(key, TaskState::Paused);
                    }
                }
                Ok(())
            }
            Event::Resume => {
                self.require(&[RunState::Paused])?;
                *self.state = RunState::Running;
                for key in self.progress.in_state(TaskState::Paused) {
                    self.make_ready(key);
                }
                self.feed_all();
                Ok(())
            }
            Event::Cancel { withdrawn } => {
                self.require(&[RunState::Waiting, RunState::Running, RunState::Paused])?;
                self.cancel(withdrawn);
                Ok(())
            }
            Event::Withdrawn(keys) => {
                for &key in keys {
                    if matches!(self.get(key), Some(TaskState::Ready | TaskState::Retrying | TaskState::Paused)) {
                        self.settle(key, TaskState::Cancelled);
                    }
                }
                Ok(())
            }
            Event::Override { key, state } => self.override_state(*key, *state),
            Event::RetryNow(key) => self.retry_now(*key),
            Event::Restart => self.restart(),
        }
    }

    /// Works off what has been touched and says whether the run has ended.
    pub(super) fn finish(mut self) -> Actions {
        self.propagate();
        let open = |byte: &u8| !TaskState::from_number(*byte as i16).is_some_and(TaskState::is_settled);
        if matches!(*self.state, RunState::Running | RunState::Paused)
            && !self.actions.withdraw
            && !self.progress.states.iter().any(open)
        {
            let failed = |(index, byte): (usize, &u8)| {
                *byte as i16 == TaskState::Failed.number() && !self.plan.tasks[index].allow_failure
            };
            let ended = if self.cancelled {
                RunState::Cancelled
            } else if self.progress.states.iter().enumerate().any(failed) {
                RunState::Failed
            } else {
                self.progress.error = None;
                RunState::Succeeded
            };
            *self.state = ended;
            self.actions.finished = Some(ended);
        }
        self.actions
    }

    fn require(&self, allowed: &[RunState]) -> Result<(), Refused> {
        if allowed.contains(self.state) { Ok(()) } else { Err(Refused::RunState(*self.state)) }
    }

    fn get(&self, key: TaskKey) -> Option<TaskState> {
        self.progress.state(key)
    }

    fn task(&self, task: TaskIndex) -> &'a PlanTask {
        &self.plan.tasks[task as usize]
    }

    fn set(&mut self, key: TaskKey, state: TaskState) {
        let byte = match key.item {
            None => self.progress.states.get_mut(key.task as usize),
            Some(item) => self.progress.maps.get_mut(&key.task).and_then(|map| map.states.get_mut(item as usize)),
        };
        if let Some(byte) = byte {
            *byte = state.number() as u8;
        }
    }

    fn detail(&mut self, key: TaskKey) -> &mut Detail {
        match key.item {
            None => self.progress.details.entry(key.task).or_default(),
            Some(item) => {
                let map = self.progress.maps.entry(key.task).or_default();
                let base = map.base;
                map.details.entry(item).or_insert_with(|| Detail { used: base, ..Detail::default() })
            }
        }
    }

    fn is_current(&self, at: AttemptKey) -> bool {
        !self.state.is_final()
            && self.get(at.key) == Some(TaskState::Ready)
            && self.progress.attempt(at.key) == at.attempt
            && (at.key.item.is_some() || !self.progress.maps.contains_key(&at.key.task))
    }

    fn start(&mut self) -> Result<(), Refused> {
        self.require(&[RunState::Waiting, RunState::Running])?;
        *self.state = RunState::Running;
        self.touched.extend(0..self.plan.tasks.len() as TaskIndex);
        Ok(())
    }

    /// A task run may be worked on, unless the run is paused or stopping.
    fn make_ready(&mut self, key: TaskKey) {
        if self.progress.stopping {
            self.settle(key, TaskState::Cancelled);
        } else if *self.state == RunState::Paused {
            self.set(key, TaskState::Paused);
        } else {
            self.set(key, TaskState::Ready);
            self.actions.ready.push(AttemptKey { key, attempt: self.progress.attempt(key) });
        }
    }

    fn expand(&mut self, task: TaskIndex, count: u32) {
        let base = self.progress.details.get(&task).map_or(0, |detail| detail.used);
        let map = MapProgress {
            states: vec![TaskState::Pending.number() as u8; count as usize],
            unsettled: count,
            base,
            ..MapProgress::default()
        };
        self.progress.maps.insert(task, map);
        if count == 0 {
            self.settle(TaskKey::whole(task), TaskState::Succeeded);
        } else {
            self.feed(task);
        }
    }

    /// Starts items as far as the task's `concurrency` allows.
    fn feed(&mut self, task: TaskIndex) {
        let bound = self.task(task).concurrency;
        loop {
            if *self.state == RunState::Paused || self.progress.task(task) != TaskState::Ready {
                return;
            }
            let Some(map) = self.progress.maps.get_mut(&task) else { return };
            if map.open >= bound || map.next as usize >= map.states.len() {
                return;
            }
            let item = map.next;
            map.next += 1;
            if map.states[item as usize] as i16 == TaskState::Pending.number() {
                map.open += 1;
                self.make_ready(TaskKey { task, item: Some(item) });
            }
        }
    }

    fn feed_all(&mut self) {
        for task in self.progress.maps.keys().copied().collect::<Vec<_>>() {
            self.feed(task);
        }
    }

    fn ended(&mut self, at: AttemptKey, outcome: &Outcome) {
        let key = at.key;
        match outcome {
            Outcome::Succeeded { output_bytes } => {
                if key.item.is_some()
                    && let Some(map) = self.progress.maps.get_mut(&key.task)
                {
                    // Two for the brackets, one for each comma: what the joined array will take.
                    map.output_bytes = map.output_bytes.saturating_add(*output_bytes).saturating_add(1);
                }
                self.settle(key, TaskState::Succeeded);
            }
            Outcome::Skipped => self.settle(key, TaskState::Skipped),
            Outcome::Lost => {
                let lost_max = self.task(key.task).lost_max;
                let detail = self.detail(key);
                detail.used = at.attempt;
                detail.lost = detail.lost.saturating_add(1);
                if u32::from(detail.lost) > lost_max {
                    let message = format!("lost with its node {lost_max} times over; max_lost is {lost_max}");
                    self.fail(key, ErrorKind::Lost, &message);
                } else {
                    self.make_ready(key);
                }
            }
            Outcome::Failed { kind, message, retry_after, fatal } => {
                let (now, zone, bits) = (self.now, self.plan.zone, (self.bits)());
                let may_retry =
                    !fatal && !matches!(kind, ErrorKind::Fatal | ErrorKind::Invalid) && !self.progress.stopping;
                let policy = self.task(key.task).retry.as_ref().filter(|_| may_retry);
                let detail = self.detail(key);
                detail.used = at.attempt;
                let due = policy.and_then(|policy| retry::next(policy, &mut detail.retry, now, zone, *retry_after, bits));
                match due {
                    Some(due) if due <= now => self.make_ready(key),
                    Some(due) => {
                        self.set(key, TaskState::Retrying);
                        self.actions.timers.push((due, AttemptKey { key, attempt: self.progress.attempt(key) }));
                    }
                    None => self.fail(key, *kind, message),
                }
            }
        }
    }

    fn fail(&mut self, key: TaskKey, kind: ErrorKind, message: &str) {
        if !self.task(key.task).allow_failure && self.progress.error.is_none() {
            let name = &self.task(key.task).name;
            let place = key.item.map(|item| format!(" item {item}")).unwrap_or_default();
            let text = format!("task {name}{place}: {kind}: {message}");
            self.progress.error = Some(text.chars().take(ERROR_CHARS_MAX).collect());
        }
        self.settle(key, TaskState::Failed);
    }

    /// The one door to a settled state.
    fn settle(&mut self, key: TaskKey, state: TaskState) {
        debug_assert!(state.is_settled());
        let before = self.get(key);
        if before.is_some_and(TaskState::is_settled) {
            return;
        }
        self.set(key, state);
        if key.item.is_some() {
            self.item_settled(key.task, before, state);
            return;
        }
        self.actions.settled.push((key.task, state));
        self.touched.extend(&self.task(key.task).dependants);
        let stop = state == TaskState::Failed
            && !self.task(key.task).allow_failure
            && self.plan.on_failure == OnFailure::Stop
            && !self.progress.stopping
            && !self.cancelled;
        if stop {
            self.stop();
        }
    }

    fn item_settled(&mut self, task: TaskIndex, before: Option<TaskState>, state: TaskState) {
        let fail_fast = self.task(task).fail_fast;
        let Some(map) = self.progress.maps.get_mut(&task) else { return };
        map.unsettled = map.unsettled.saturating_sub(1);
        if before != Some(TaskState::Pending) {
            map.open = map.open.saturating_sub(1);
        }
        if state == TaskState::Failed {
            map.failed += 1;
            if fail_fast {
                self.cancel_items(task);
            }
        }
        self.map_moved(task);
    }

    /// Settles a mapped task all of whose items are settled, else starts the next items.
    fn map_moved(&mut self, task: TaskIndex) {
        let key = TaskKey::whole(task);
        let Some(map) = self.progress.maps.get(&task) else { return };
        if map.unsettled > 0 {
            self.feed(task);
            return;
        }
        if self.progress.task(task).is_settled() {
            return;
        }
        let cancelled = map.states.iter().any(|&byte| byte as i16 == TaskState::Cancelled.number());
        if map.output_bytes + 2 > JOINED_OUTPUT_BYTES_MAX {
            let message = format!("the items' outputs joined have more than {JOINED_OUTPUT_BYTES_MAX} bytes");
            self.fail(key, ErrorKind::Output, &message);
        } else if map.failed > 0 {
            let message = format!("{} of {} items failed", map.failed, map.states.len());
            self.fail(key, ErrorKind::Failed, &message);
        } else if cancelled {
            self.settle(key, TaskState::Cancelled);
        } else {
            self.settle(key, TaskState::Succeeded);
        }
    }

    /// Cancels all items that are not settled, running ones too.
    fn cancel_items(&mut self, task: TaskIndex) {
        let Some(map) = self.progress.maps.get_mut(&task) else { return };
        let mut interrupt = Vec::new();
        for (item, byte) in map.states.iter_mut().enumerate() {
            let Some(state) = TaskState::from_number(*byte as i16).filter(|state| !state.is_settled()) else { continue };
            if state != TaskState::Pending {
                map.open = map.open.saturating_sub(1);
                interrupt.push((item as u32, state));
            }
            *byte = TaskState::Cancelled.number() as u8;
            map.unsettled = map.unsettled.saturating_sub(1);
        }
        for (item, state) in interrupt {
            let key = TaskKey { task, item: Some(item) };
            self.forget(key, state);
        }
    }

    /// Takes back whatever stands for an unsettled task run: a ready row, a running attempt, a timer.
    fn forget(&mut self, key: TaskKey, state: TaskState) {
        self.actions.ready.retain(|ready| ready.key != key);
        match state {
            TaskState::Ready => {
                self.actions.interrupt.push(key);
                let attempt = self.progress.attempt(key);
                self.detail(key).used = attempt;
            }
            TaskState::Retrying => {
                self.actions.timers.retain(|(_, at)| at.key != key);
                self.actions.drop_timers.push(key);
            }
            _ => {}
        }
    }

    /// `on_failure: stop`: what has not started never will; what runs goes on.
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
        self.cancel_unstarted();
    }

    fn cancel_unstarted(&mut self) {
        for task in 0..self.plan.tasks.len() as TaskIndex {
            if self.progress.task(task) == TaskState::Pending {
                self.settle(TaskKey::whole(task), TaskState::Cancelled);
            }
        }
        for task in self.progress.maps.keys().copied().collect::<Vec<_>>() {
            let Some(map) = self.progress.maps.get_mut(&task) else { continue };
            let mut moved = false;
            map.next = map.states.len() as u32;
            for byte in &mut map.states {
                if *byte as i16 == TaskState::Pending.number() {
                    *byte = TaskState::Cancelled.number() as u8;
                    map.unsettled = map.unsettled.saturating_sub(1);
                    moved = true;
                }
            }
            if moved {
                self.map_moved(task);
            }
        }
    }

    fn cancel(&mut self, withdrawn: &[TaskKey]) {
        self.cancelled = true;
        *self.state = RunState::Running;
        for &key in withdrawn {
            if self.get(key) == Some(TaskState::Ready) {
                // It never started: its attempt number is free to be used by a restart.
                self.set(key, TaskState::Paused);
            }
        }
        for task in 0..self.plan.tasks.len() as TaskIndex {
            if self.progress.task(task).is_settled() {
                continue;
            }
            if self.progress.maps.contains_key(&task) {
                self.cancel_items(task);
            } else {
                let key = TaskKey::whole(task);
                self.forget(key, self.progress.task(task));
            }
            self.set(TaskKey::whole(task), TaskState::Cancelled);
            self.actions.settled.push((task, TaskState::Cancelled));
        }
        self.actions.ready.clear();
        self.touched.clear();
    }

    fn meaning(&self, task: TaskIndex) -> Meaning {
        match self.progress.task(task) {
            TaskState::Succeeded => Meaning::Success,
            TaskState::Failed if self.task(task).allow_failure => Meaning::Success,
            TaskState::Failed | TaskState::UpstreamFailed | TaskState::Cancelled => Meaning::Failed,
            TaskState::Skipped => Meaning::Skipped,
            _ => Meaning::Open,
        }
    }

    /// What the dependencies' states make of a pending task; `None` while it still depends.
    fn verdict(&self, task: TaskIndex) -> Option<TaskState> {
        let plan = self.task(task);
        let (mut open, mut success, mut skipped, mut failed) = (0usize, 0usize, 0usize, 0usize);
        for &dependency in &plan.depends_on {
            match self.meaning(dependency) {
                Meaning::Open => open += 1,
                Meaning::Success => success += 1,
                Meaning::Skipped => skipped += 1,
                Meaning::Failed => failed += 1,
            }
        }
        match plan.rule {
            TriggerRule::AllSuccess if failed > 0 => Some(TaskState::UpstreamFailed),
            TriggerRule::AnySuccess if success > 0 => Some(TaskState::Ready),
            TriggerRule::AnyFailed if failed > 0 => Some(TaskState::Ready),
            _ if open > 0 => None,
            TriggerRule::AllSuccess if skipped > 0 => Some(TaskState::Skipped),
            TriggerRule::AllSuccess | TriggerRule::AllDone => Some(TaskState::Ready),
            TriggerRule::AnySuccess | TriggerRule::AnyFailed => Some(TaskState::Skipped),
        }
    }

    fn propagate(&mut self) {
        while !self.touched.is_empty() {
            let mut batch = std::mem::take(&mut self.touched);
            batch.sort_unstable();
            batch.dedup();
            for task in batch {
                if self.progress.task(task) != TaskState::Pending {
                    continue;
                }
                let key = TaskKey::whole(task);
                match self.verdict(task) {
                    Some(TaskState::Ready) => self.make_ready(key),
                    Some(state) => self.settle(key, state),
                    None => {}
                }
            }
        }
    }

    /// Opens a settled task again, and with it all that followed from its state.
    fn reopen(&mut self, task: TaskIndex) {
        let mut stack = vec![task];
        let mut first = true;
        while let Some(next) = stack.pop() {
            let state = self.progress.task(next);
            let follows = matches!(state, TaskState::UpstreamFailed | TaskState::Cancelled)
                || (state == TaskState::Skipped && !self.task(next).depends_on.is_empty());
            if !(first || follows) {
                continue;
            }
            if !first {
                self.set(TaskKey::whole(next), TaskState::Pending);
                self.touched.push(next);
            }
            first = false;
            stack.extend(&self.task(next).dependants);
        }
    }

    fn override_state(&mut self, key: TaskKey, state: TaskState) -> Result<(), Refused> {
        let before = self.get(key).ok_or(Refused::Unknown)?;
        if before == state {
            return Ok(());
        }
        if *self.state == RunState::Waiting {
            return Err(Refused::RunState(*self.state));
        }
        if self.state.is_final() {
            *self.state = RunState::Running;
        }
        self.progress.stopping = false;
        self.progress.error = None;
        if key.item.is_none() && self.progress.maps.contains_key(&key.task) {
            self.cancel_items(key.task);
        } else {
            self.forget(key, before);
        }
        match key.item {
            Some(_) => self.override_item(key, before, state),
            None => {
                self.set(key, state);
                self.actions.settled.push((key.task, state));
            }
        }
        self.reopen(key.task);
        self.touched.extend(&self.task(key.task).dependants);
        Ok(())
    }

    fn override_item(&mut self, key: TaskKey, before: TaskState, state: TaskState) {
        self.set(key, state);
        if let Some(map) = self.progress.maps.get_mut(&key.task) {
            if !before.is_settled() {
                map.unsettled = map.unsettled.saturating_sub(1);
                if before != TaskState::Pending {
                    map.open = map.open.saturating_sub(1);
                }
            }
            if before == TaskState::Failed {
                map.failed = map.failed.saturating_sub(1);
            }
            if state == TaskState::Failed {
                map.failed += 1;
            }
        }
        if self.progress.task(key.task).is_settled() {
            self.set(TaskKey::whole(key.task), TaskState::Ready);
        }
        self.map_moved(key.task);
    }

    /// Sets one settled task run back to pending, its attempts' numbers kept.
    fn reset(&mut self, key: TaskKey) {
        let detail = self.detail(key);
        detail.retry = Default::default();
        detail.lost = 0;
        self.set(key, TaskState::Pending);
    }

    fn reset_items(&mut self, task: TaskIndex) {
        let Some(map) = self.progress.maps.get(&task) else { return };
        let items: Vec<u32> = (0..map.states.len() as u32)
            .filter(|&item| {
                let state = TaskState::from_number(map.states[item as usize] as i16);
                matches!(state, Some(TaskState::Failed | TaskState::Cancelled))
            })
            .collect();
        for &item in &items {
            self.reset(TaskKey { task, item: Some(item) });
        }
        if let Some(map) = self.progress.maps.get_mut(&task) {
            map.failed = 0;
            map.unsettled += items.len() as u32;
            map.next = items.first().copied().unwrap_or(map.next).min(map.next);
        }
    }

    fn retry_now(&mut self, key: TaskKey) -> Result<(), Refused> {
        let before = self.get(key).ok_or(Refused::Unknown)?;
        if *self.state == RunState::Paused || *self.state == RunState::Waiting {
            return Err(Refused::RunState(*self.state));
        }
        if before == TaskState::Retrying {
            self.actions.drop_timers.push(key);
            self.make_ready(key);
            return Ok(());
        }
        if !matches!(before, TaskState::Failed | TaskState::Cancelled) {
            return Err(Refused::TaskState(before));
        }
        *self.state = RunState::Running;
        self.progress.stopping = false;
        self.progress.error = None;
        self.reopen(key.task);
        if key.item.is_none() && self.progress.maps.contains_key(&key.task) {
            self.reset_items(key.task);
            self.set(key, TaskState::Ready);
            self.map_moved(key.task);
            return Ok(());
        }
        self.reset(key);
        if let Some(map) = key.item.and_then(|_| self.progress.maps.get_mut(&key.task)) {
            if before == TaskState::Failed {
                map.failed = map.failed.saturating_sub(1);
            }
            map.unsettled += 1;
            map.open += 1;
            self.set(TaskKey::whole(key.task), TaskState::Ready);
        }
        self.make_ready(key);
        Ok(())
    }

    fn restart(&mut self) -> Result<(), Refused> {
        self.require(&[RunState::Failed, RunState::Cancelled])?;
        *self.state = RunState::Running;
        self.progress.stopping = false;
        self.progress.error = None;
        let count = self.plan.tasks.len() as TaskIndex;
        let again = |state| matches!(state, TaskState::Failed | TaskState::UpstreamFailed | TaskState::Cancelled);
        let reset: Vec<TaskIndex> = (0..count).filter(|&task| again(self.progress.task(task))).collect();
        for &task in &reset {
            // What was skipped because of it may come out otherwise now.
            self.reopen(task);
        }
        for &task in &reset {
            let opened_above = self.task(task).depends_on.iter().any(|dependency| reset.contains(dependency));
            self.reset(TaskKey::whole(task));
            match self.progress.maps.get(&task) {
                Some(map) if opened_above => {
                    // Its items came from outputs that will be made anew: so will the items be.
                    let used = map.details.values().map(|detail| detail.used).max().unwrap_or(0).max(map.base + 1);
                    self.detail(TaskKey::whole(task)).used = used;
                    self.progress.maps.remove(&task);
                }
                Some(_) => {
                    self.reset_items(task);
                    self.set(TaskKey::whole(task), TaskState::Ready);
                    self.map_moved(task);
                }
                None => {}
            }
        }
        self.touched.extend(0..count);
        Ok(())
    }
}
