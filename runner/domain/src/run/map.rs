//! Mapped tasks: an item is a task run like any other, except for its slot in the map.
//!
//! # The story
//!
//! The task becomes ready and is claimed like any other; that attempt only computes the items ([`Event::Expanded`]).
//! From then on the task itself has no row: it is `ready` as long as its items are not settled. At most `concurrency`
//! items are ready at once. An item that waits for a retry gives its slot up, and takes the next free one when it is
//! due. The task is settled with its last item.
//!
//! [`Event::Expanded`]: super::Event::Expanded

use super::machine::Machine;
use super::{Detail, JOINED_OUTPUT_BYTES_MAX, MapProgress, TaskKey};
use crate::plan::{ITEMS_MAX, Plan, TaskIndex};
use crate::state::{ErrorKind, TaskState};

/// `null`, for an item without output.
const NULL_BYTES: u64 = 4;

/// The end of a map whose items are all settled.
pub(super) enum End {
    Succeeded,
    Cancelled,
    Failed(ErrorKind, String),
}

impl MapProgress {
    fn new(count: u32, base: u32) -> Self {
        let states = vec![TaskState::Pending.number() as u8; count as usize];
        Self {
            states,
            unsettled: count,
            base,
            ..Self::default()
        }
    }

    fn len(&self) -> u32 {
        self.states.len() as u32
    }

    fn state(&self, item: u32) -> Option<TaskState> {
        self.states
            .get(item as usize)
            .and_then(|&byte| TaskState::from_number(byte as i16))
    }

    fn count(&self, wanted: TaskState) -> u64 {
        self.states
            .iter()
            .filter(|&&byte| byte as i16 == wanted.number())
            .count() as u64
    }

    /// The only function that sets an item's state, because it also keeps the counters.
    pub(super) fn set(&mut self, item: u32, state: TaskState) {
        let Some(before) = self.state(item) else { return };
        let holds = |state| matches!(state, TaskState::Ready | TaskState::Paused);
        let shift = |counter: &mut u32, was: bool, is: bool| match (was, is) {
            (true, false) => *counter = counter.saturating_sub(1),
            (false, true) => *counter += 1,
            _ => {}
        };
        shift(&mut self.open, holds(before), holds(state));
        shift(&mut self.unsettled, !before.is_settled(), !state.is_settled());
        shift(
            &mut self.failed,
            before == TaskState::Failed,
            state == TaskState::Failed,
        );
        self.states[item as usize] = state.number() as u8;
    }

    /// An item is to be started (again) when there is room.
    pub(super) fn enqueue(&mut self, item: u32) {
        self.set(item, TaskState::Pending);
        if item < self.next {
            self.again.insert(item);
        }
    }

    /// The next item to be started.
    fn dequeue(&mut self) -> Option<u32> {
        while let Some(item) = self.again.pop_first() {
            if self.state(item) == Some(TaskState::Pending) {
                return Some(item);
            }
        }
        while self.next < self.len() {
            let item = self.next;
            self.next += 1;
            if self.state(item) == Some(TaskState::Pending) {
                return Some(item);
            }
        }
        None
    }

    /// The length of the array of outputs, as JSON text.
    pub(super) fn joined_bytes(&self) -> u64 {
        let count = u64::from(self.len());
        let nulls = count - self.count(TaskState::Succeeded);
        let brackets_and_commas = 2 + count.saturating_sub(1);
        self.output_bytes
            .saturating_add(nulls * NULL_BYTES + brackets_and_commas)
    }

    /// How the map ends, all items settled.
    pub(super) fn end(&self) -> End {
        if self.failed == 0 && self.count(TaskState::Cancelled) > 0 {
            End::Cancelled
        } else if self.joined_bytes() > JOINED_OUTPUT_BYTES_MAX {
            let message = format!(
                "the joined outputs of the items have more than the limit of \
                {JOINED_OUTPUT_BYTES_MAX} bytes"
            );
            End::Failed(ErrorKind::Output, message)
        } else if self.failed > 0 {
            End::Failed(
                ErrorKind::Failed,
                format!("{} of {} items failed", self.failed, self.len()),
            )
        } else {
            End::Succeeded
        }
    }

    /// The highest attempt number that any item may have carried.
    pub(super) fn attempts_used(&self) -> u32 {
        let of_items = self.details.iter().map(|(&item, detail)| {
            detail
                .used
                .saturating_add(u32::from(self.state(item) == Some(TaskState::Succeeded)))
        });
        of_items.max().unwrap_or(0).max(self.base.saturating_add(1))
    }

    /// An item's part of the joined output changes: from so many bytes to so many.
    pub(super) fn replace_output(&mut self, before: u64, after: u64) {
        self.output_bytes = self.output_bytes.saturating_sub(before).saturating_add(after);
    }
}

impl Machine<'_> {
    pub(super) fn expand(&mut self, task: TaskIndex, count: u32) {
        let key = TaskKey::whole(task);
        if count > ITEMS_MAX {
            self.detail(key).used = self.progress.attempt(key);
            self.fail(
                key,
                ErrorKind::Invalid,
                &format!("there are {count} items; a mapped task can have at most {ITEMS_MAX}"),
            );
            return;
        }
        let base = self.progress.details.get(&task).map_or(0, |detail| detail.used);
        self.progress.maps.insert(task, MapProgress::new(count, base));
        if self.progress.stopping && count > 0 {
            self.settle(key, TaskState::Cancelled);
        }
        self.moved.insert(task);
    }

    /// Settles a mapped task if all its items are settled; otherwise starts the next items.
    pub(super) fn map_moved(&mut self, task: TaskIndex) {
        let key = TaskKey::whole(task);
        let Some(map) = self.progress.maps.get(&task) else {
            return;
        };
        if self.progress.task(task) != TaskState::Ready {
            return;
        }
        if map.unsettled > 0 {
            self.feed(task);
            return;
        }
        match map.end() {
            End::Succeeded => self.settle(key, TaskState::Succeeded),
            End::Cancelled => self.settle(key, TaskState::Cancelled),
            End::Failed(kind, message) => self.fail(key, kind, &message),
        }
    }

    /// Starts items as far as the task's `concurrency` allows.
    fn feed(&mut self, task: TaskIndex) {
        let bound = self.task(task).concurrency;
        while self.starts_new() {
            let Some(map) = self.progress.maps.get_mut(&task).filter(|map| map.open < bound) else {
                return;
            };
            let Some(item) = map.dequeue() else { return };
            self.make_ready(TaskKey { task, item: Some(item) });
        }
    }

    /// An item is due again: it starts at once if there is a free slot, otherwise with the next free one.
    pub(super) fn item_again(&mut self, task: TaskIndex, item: u32) {
        let bound = self.task(task).concurrency;
        let Some(map) = self.progress.maps.get_mut(&task) else {
            return;
        };
        if map.open < bound {
            self.make_ready(TaskKey { task, item: Some(item) });
        } else {
            map.enqueue(item);
            self.moved.insert(task);
        }
    }

    /// Cancels all items that are not settled, running ones too.
    pub(super) fn cancel_items(&mut self, task: TaskIndex) {
        let Some(map) = self.progress.maps.get(&task).filter(|map| map.unsettled > 0) else {
            return;
        };
        let open: Vec<(u32, TaskState)> = (0..map.len())
            .filter_map(|item| Some((item, map.state(item).filter(|state| !state.is_settled())?)))
            .collect();
        for (item, state) in open {
            let key = TaskKey { task, item: Some(item) };
            self.forget(key, state);
            self.set(key, TaskState::Cancelled);
        }
        if let Some(map) = self.progress.maps.get_mut(&task) {
            map.again.clear();
        }
    }

    /// Cancels the items that have not been started.
    pub(super) fn cancel_unstarted_items(&mut self, task: TaskIndex) {
        let Some(map) = self.progress.maps.get_mut(&task) else {
            return;
        };
        for item in 0..map.len() {
            if map.state(item) == Some(TaskState::Pending) {
                map.set(item, TaskState::Cancelled);
            }
        }
        map.again.clear();
        self.moved.insert(task);
    }

    /// Makes items that failed or were cancelled pending again, the cancelled ones only if `failed` is false.
    pub(super) fn reset_items(&mut self, task: TaskIndex, failed: bool) {
        let Some(map) = self.progress.maps.get_mut(&task) else {
            return;
        };
        for item in 0..map.len() {
            match map.state(item) {
                Some(TaskState::Failed) if failed => {}
                Some(TaskState::Cancelled) => {}
                _ => continue,
            }
            if let Some(detail) = map.details.get_mut(&item) {
                detail.reset();
            }
            map.enqueue(item);
        }
    }

    /// Makes the items of a mapped task that failed or were cancelled pending again. Forgets all items if they may be
    /// different the next time: they came from outputs, and one of the dependencies runs again. Also forgets them if
    /// the task failed as a whole, and none of its items did: an operator set its state, or its joined output is too
    /// large.
    pub(super) fn reset_map(&mut self, task: TaskIndex, above: bool) {
        let Some(map) = self.progress.maps.get(&task) else {
            return;
        };
        let as_whole =
            self.progress.task(task) == TaskState::Failed && map.failed == 0 && map.count(TaskState::Cancelled) == 0;
        if as_whole || above && Plan::constant_items(self.task(task)).is_none() {
            let used = map.attempts_used();
            let detail = self.detail(TaskKey::whole(task));
            detail.used = detail.used.max(used);
            self.progress.maps.remove(&task);
        } else {
            self.reset_items(task, true);
        }
    }
}

impl Detail {
    /// Forgets all but the numbers that were used.
    pub(super) fn reset(&mut self) {
        *self = Self {
            used: self.used,
            ..Self::default()
        };
    }
}
