//! How a run progresses: [`decide`] takes what is known of a run and what has happened, and returns what follows.
//!
//! # Data flow
//!
//! The store locks the run's row, reads its [`Progress`], gives it here with the [`Event`]s that were gathered
//! meanwhile, and writes in the same transaction what [`Actions`] says: rows for tasks that became ready, timers for
//! retries, the new progress, the run's end. Nothing is decided anywhere else.
//!
//! # Invariants
//!
//! * `Ready` in the progress means "there is a row in *ready* or in *running*"; only those tables know which, so that a
//!   claim need not write the run.
//! * An attempt's number is `used + 1`; an outcome with any other number is stale and changes nothing.
//! * A task is settled once; only restart, override, clear and retry-now open it again. A number that an attempt may have
//!   carried is never given out again, so an outcome from before cannot settle what was opened after.
//! * All outcomes of a batch are applied before any of them has consequences: whether an item's success counts does not
//!   depend on its position relative to the failure that cancels the rest.
//! * Every decision is a function of its arguments: the same events in the same order give the same actions.
//! * When a decision ends with no task unsettled, it says that the run has ended, with its state.
//!
//! `docs/state-machine.md` shows the states and the rules.

mod abandoned;
mod allowed;
mod control;
mod format;
mod machine;
mod map;
pub mod offer_name;
mod rules;
#[cfg(test)]
mod tests;

pub use abandoned::Past;
pub use allowed::{Control, runs_again};
pub use format::FormatError;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Time;
use crate::plan::{Plan, TaskIndex};
use crate::retry::RetryState;
use crate::state::{ErrorKind, RunState, TaskState};

/// A task run: a task, or one item of a mapped task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskKey {
    /// The task's number in the plan.
    pub task: TaskIndex,
    /// The item's index; `None` for a task that is not mapped, and for the expansion of one that is.
    pub item: Option<u32>,
}

impl TaskKey {
    /// The task run of a task that is not mapped.
    pub fn whole(task: TaskIndex) -> Self {
        Self { task, item: None }
    }

    /// The item as the database keeps it: -1 for none.
    pub fn item_number(self) -> i32 {
        self.item.map_or(-1, |item| item as i32)
    }

    /// From what the database keeps.
    pub fn from_numbers(task: i16, item: i32) -> Self {
        Self {
            task: task as TaskIndex,
            item: u32::try_from(item).ok(),
        }
    }
}

/// One attempt of a task run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttemptKey {
    pub key: TaskKey,
    /// The number of the attempt within its task run, counted from 1.
    pub attempt: u32,
}

impl AttemptKey {
    /// From what the database keeps; `item` is -1 for a task as a whole.
    pub fn from_numbers(task: i16, item: i32, attempt: i32) -> Self {
        Self {
            key: TaskKey::from_numbers(task, item),
            attempt: attempt as u32,
        }
    }
}

/// The progress of a run; stored with it as one value, in the formats of [`format`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// A state per task, in the plan's order.
    states: Vec<TaskStateByte>,
    /// Details besides the state, for the few tasks that have them.
    details: BTreeMap<TaskIndex, Detail>,
    /// Mapped tasks that have been expanded.
    maps: BTreeMap<TaskIndex, MapProgress>,
    /// `on_failure: stop` has struck: nothing new starts.
    stopping: bool,
    /// The first failure, for people.
    error: Option<String>,
    /// The failure in `error`, if it is known. It is not if a node of the first build wrote it.
    failure: Option<Failure>,
}

/// The failure in a run's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    pub task: TaskIndex,
    /// The item that failed.
    pub item: Option<u32>,
    pub kind: ErrorKind,
}

type TaskStateByte = u8;

/// What is kept of a task or an item besides its state. It is stored in postcard: never add, remove, reorder or change a
/// field (see [`format`]).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Detail {
    /// How many attempts have ended, or may have begun and are not needed any more. (A success is not counted until
    /// somebody overrides it: most tasks succeed at once, and need no detail.)
    used: u32,
    /// Of these, lost with their nodes since the task run was last opened.
    lost: u32,
    retry: RetryState,
    skip: SkipCause,
}

/// Why a task is skipped. It is stored in postcard, by the position of the variant: never add, remove or reorder one (see
/// [`format`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum SkipCause {
    /// Its dependencies led to it.
    #[default]
    Derived,
    /// Its script or its `when` said so.
    Own,
    /// Somebody set its state.
    Override,
}

/// A mapped task's items; see [`map`]. It is stored in postcard: never add, remove, reorder or change a field (see
/// [`format`]).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct MapProgress {
    states: Vec<TaskStateByte>,
    details: BTreeMap<u32, Detail>,
    /// No item from here on has been started.
    next: u32,
    /// Items before `next` that are to be started again as soon as there is room.
    again: BTreeSet<u32>,
    /// Items that hold one of the task's `concurrency` slots: ready or paused.
    open: u32,
    unsettled: u32,
    failed: u32,
    /// The items' outputs, without what joins them.
    output_bytes: u64,
    /// Attempt numbers that earlier expansions may have used.
    base: u32,
}

/// Something that changes a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The run may begin.
    Start,
    /// A mapped task's items are known.
    Expanded {
        /// The attempt that expanded the task.
        at: AttemptKey,
        /// The number of items, 0 to [`ITEMS_MAX`](crate::plan::ITEMS_MAX).
        count: u32,
    },
    /// An attempt ended. (The attempt that expands a mapped task may end so as well: skipped, failed or lost.)
    Ended { at: AttemptKey, outcome: Outcome },
    /// A retry is due.
    Due(AttemptKey),
    /// Start nothing new. `withdrawn` was ready and has been taken back.
    Pause { withdrawn: Vec<TaskKey> },
    /// Resume. `waits`: the run still waits for upstreams or at the gate. One that was paused before it began begins.
    Resume {
        /// As the store knows.
        waits: bool,
    },
    /// End it. `withdrawn` was ready and never started; all else that is open may be running and is interrupted.
    Cancel { withdrawn: Vec<TaskKey> },
    /// The answer to [`Actions::withdraw`].
    Withdrawn(Vec<TaskKey>),
    /// An operator sets a task run's state: succeeded, failed or skipped.
    Override {
        key: TaskKey,
        state: TaskState,
        /// Length of the JSON text that an item which had succeeded gave to the joined output.
        bytes_before: u64,
        /// Length of the JSON text that an item which is set to succeeded gives to it now.
        bytes_after: u64,
    },
    /// An operator wants a failed or retrying task run to be tried at once.
    RetryNow(TaskKey),
    /// An operator wants a task run of an ended run to run again, whatever its state.
    Clear {
        key: TaskKey,
        /// Whether everything that depends on it, directly or indirectly, runs again as well.
        downstream: bool,
        /// Length of the JSON text that an item which had succeeded gave to the joined output.
        output_bytes: u64,
    },
    /// An operator wants an ended run to continue from where it failed.
    Restart,
    /// If the events after this one reopen the run, it waits at its group's gate first: nothing of it starts before
    /// [`Event::Start`].
    WaitAtGate,
}

/// How an attempt ended, as far as the run depends on it.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// With an output of so many bytes.
    Succeeded {
        /// Length of the JSON text.
        output_bytes: u64,
    },
    /// The script or `when` said that there is nothing to do.
    Skipped,
    Failed {
        /// The kind; `fatal` and `invalid` are never retried.
        kind: ErrorKind,
        /// The error message that people read.
        message: String,
        /// When the next attempt is to start: [`crate::retry::Wait`] says what it means.
        retry_after: Option<Duration>,
        /// It is never retried, whatever the kind.
        fatal: bool,
    },
    /// Its node or worker is gone: tried again, `max_lost` times at most.
    Lost,
    /// Its node or worker gave it back: tried again, and neither a retry nor a loss is counted.
    Released,
}

/// The consequences. To be carried out in this order: `drop_timers` before `timers`, `interrupt` before `ready` (one
/// task run may be in both).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Actions {
    /// Task runs to be worked on now.
    pub ready: Vec<AttemptKey>,
    /// Retries, and when each is due.
    pub timers: Vec<(Time, AttemptKey)>,
    /// Timers that are not needed any more.
    pub drop_timers: Vec<TaskKey>,
    /// Attempts (or ready rows, or sub-runs) to be stopped: their outcome is no longer wanted.
    pub interrupt: Vec<TaskKey>,
    /// Everything of the run that has not been claimed is to be taken back and reported as [`Event::Withdrawn`].
    pub withdraw: bool,
    /// Task runs (not items) that were settled now, with the states; each at most once.
    pub settled: Vec<(TaskIndex, TaskState)>,
    /// Outcomes that were accepted, in the order of the events (`false` for stale ones); one per `Expanded`/`Ended`.
    pub accepted: Vec<bool>,
    /// The run has ended.
    pub finished: Option<RunState>,
}

impl Actions {
    /// Adds the consequences of a second decision on the same run within one transaction: both are carried out as one.
    /// Where only one value is possible (how the run ended, whether more is to be withdrawn), the later one counts.
    pub fn and_then(&mut self, later: Self) {
        // The fields are named one by one, so that the compiler reports a new field that is missing here.
        let Self {
            ready,
            timers,
            drop_timers,
            interrupt,
            withdraw,
            settled,
            accepted,
            finished,
        } = later;
        self.ready.extend(ready);
        self.timers.extend(timers);
        self.drop_timers.extend(drop_timers);
        self.interrupt.extend(interrupt);
        self.withdraw = withdraw;
        self.settled.extend(settled);
        self.accepted.extend(accepted);
        self.finished = finished;
    }
}

/// Why a control was refused (409).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The run is in a state that does not allow it.
    #[error("the run is {0}")]
    RunState(RunState),
    /// The task run is in a state that does not allow it.
    #[error("the task run is {0}")]
    TaskState(TaskState),
    /// The state of the mapped task run does not follow from its items any more.
    #[error("the mapped task run is {0} as a whole, not because of its items: clear the task run instead of an item")]
    AsWhole(TaskState),
    /// An operator cannot set a run to this state.
    #[error("the state of a run cannot be set to {0}")]
    Target(RunState),
    /// The plan has no such task or item.
    #[error("the task run does not exist")]
    Unknown,
}

/// How many bytes the joined output of a mapped task may have.
pub const JOINED_OUTPUT_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// How many attempts a task run may have: the range of an attempt's number.
pub const ATTEMPTS_MAX: u32 = i32::MAX as u32;

/// Decides on events of a run. `bits` returns random bits for jitter.
///
/// When an event is refused, `state` and `progress` may hold what came before it in `events`: drop them.
pub fn decide(
    plan: &Plan,
    state: &mut RunState,
    progress: &mut Progress,
    events: &[Event],
    now: Time,
    bits: &mut dyn FnMut() -> u128,
) -> Result<Actions, Refused> {
    let mut machine = machine::Machine::new(plan, state, progress, now, bits);
    for event in events {
        machine.apply(event)?;
    }
    Ok(machine.finish())
}

impl Progress {
    /// Nothing has happened yet.
    pub fn new(plan: &Plan) -> Self {
        Self {
            states: vec![TaskState::Pending.number() as u8; plan.tasks.len()],
            ..Self::default()
        }
    }

    /// A task's state. [`TaskState::Ready`] includes running. A run that `heddle.submit` created has no states before it
    /// begins. (Bytes of unknown states are not read: [`FormatError::UnknownState`].)
    pub fn task(&self, task: TaskIndex) -> TaskState {
        let byte = self.states.get(task as usize);
        byte.and_then(|&byte| TaskState::from_number(byte.into()))
            .unwrap_or(TaskState::Pending)
    }

    /// The number of items of a mapped task; `None` before it was expanded.
    pub fn items(&self, task: TaskIndex) -> Option<u32> {
        self.maps.get(&task).map(|map| map.states.len() as u32)
    }

    /// The length of the array of outputs of a mapped task's items, as JSON text; `None` before it was expanded. It can be
    /// more than [`JOINED_OUTPUT_BYTES_MAX`]: then the task fails, but somebody may set its state, and tasks that depend on
    /// it may run although it failed.
    pub fn joined_bytes(&self, task: TaskIndex) -> Option<u64> {
        self.maps.get(&task).map(MapProgress::joined_bytes)
    }

    /// A task run's state; `None` where there is no such task or item. (Without any states, every task is pending.)
    pub fn state(&self, key: TaskKey) -> Option<TaskState> {
        match key.item {
            None => (self.states.is_empty() || (key.task as usize) < self.states.len()).then(|| self.task(key.task)),
            Some(item) => {
                let byte = *self.maps.get(&key.task)?.states.get(item as usize)?;
                TaskState::from_number(byte as i16)
            }
        }
    }

    /// The state of a task run as people see it, in a run in the state `run`; `None` if there is no such item.
    /// `under_way`: an attempt of it, or of one of its items, has not ended. A mapped task is shown as running as soon as it
    /// has items; in a paused run, as paused when none of its attempts is under way any more; in a waiting one, as pending.
    pub fn shown_state(&self, key: TaskKey, run: RunState, under_way: bool) -> Option<TaskState> {
        let has_items = key.item.is_none() && self.items(key.task).is_some();
        Some(match (self.state(key)?, run) {
            (TaskState::Ready, _) if under_way => TaskState::Running,
            (TaskState::Ready, RunState::Paused) if has_items => TaskState::Paused,
            // In a reopened run that waits at the gate, nothing has started, and nobody has paused anything.
            (TaskState::Ready, RunState::Waiting) if has_items => TaskState::Pending,
            (TaskState::Paused, RunState::Waiting) => TaskState::Pending,
            (TaskState::Ready, _) if has_items => TaskState::Running,
            (state, _) => state,
        })
    }

    /// The number that the task run's current or next attempt has.
    pub fn attempt(&self, key: TaskKey) -> u32 {
        let used = match key.item {
            None => self.details.get(&key.task).map_or(0, |detail| detail.used),
            Some(item) => self
                .maps
                .get(&key.task)
                .map_or(0, |map| map.details.get(&item).map_or(map.base, |detail| detail.used)),
        };
        used.saturating_add(1)
    }

    /// Why a mapped task failed, if that is not the error of an attempt: failed items, or a too large output.
    pub fn map_failure(&self, task: TaskIndex) -> Option<(ErrorKind, String)> {
        match self.maps.get(&task)?.end() {
            map::End::Failed(kind, message) if self.task(task) == TaskState::Failed => Some((kind, message)),
            _ => None,
        }
    }

    /// The state to which a mapped task's items lead, all of which are settled.
    fn made_by_items(&self, task: TaskIndex) -> Option<TaskState> {
        let map = self.maps.get(&task).filter(|map| map.unsettled == 0)?;
        Some(match map.end() {
            map::End::Succeeded => TaskState::Succeeded,
            map::End::Cancelled => TaskState::Cancelled,
            map::End::Failed(..) => TaskState::Failed,
        })
    }

    /// Whether a mapped task's state comes from its items, and not from an override: no override cancels it.
    fn is_made_by_items(&self, task: TaskIndex) -> bool {
        let state = self.task(task);
        self.made_by_items(task)
            .is_some_and(|made| made == state || state == TaskState::Cancelled)
    }

    /// Whether `on_failure: stop` has taken effect: nothing new starts.
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// The first failure, for people.
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// The failure in [`Progress::error`].
    pub fn failure(&self, plan: &Plan) -> Option<Failure> {
        self.failure.or_else(|| {
            let (name, kind) = format::failure_in_text(self.error()?)?;
            let task = plan.index(name)?;
            Some(Failure { task, item: None, kind })
        })
    }

    fn take_back_error(&mut self) {
        self.error = None;
        self.failure = None;
    }

    /// Task runs in a state, mapped tasks by their items; bounded by the sizes of plan and maps.
    pub fn in_state(&self, wanted: TaskState) -> Vec<TaskKey> {
        let mut found = Vec::new();
        for (index, &byte) in self.states.iter().enumerate() {
            let task = index as TaskIndex;
            match self.maps.get(&task) {
                Some(map) => {
                    let items = map
                        .states
                        .iter()
                        .enumerate()
                        .filter(|(_, state)| **state as i16 == wanted.number());
                    found.extend(items.map(|(item, _)| TaskKey {
                        task,
                        item: Some(item as u32),
                    }));
                }
                None if byte as i16 == wanted.number() => found.push(TaskKey::whole(task)),
                None => {}
            }
        }
        found
    }
}
