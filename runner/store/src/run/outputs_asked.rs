//! Which outputs are asked for with a run.

use heddle_domain::run::TaskKey;

/// The maximum bytes of an output that is short.
const SHORT_BYTES_MAX: i32 = 256;

/// How many bytes of errors are read with a run.
pub(super) const ERROR_BYTES_MAX: u64 = 16 << 20;

/// The outputs that are asked for.
///
/// If they are few bytes together, all of them are read, also those of earlier attempts. Otherwise only what task runs
/// show, and this within bounds: of the items of one task, the bytes of a joined output; of the run, four times as many.
///
/// The errors of attempts have a bound of their own (`errors.rs`), whatever outputs are asked for. Only for
/// [`Outputs::Of`], errors of other task runs are not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outputs {
    None,
    /// Outputs of a few bytes. A task that starts a run has such an output: the id of that run.
    Short,
    /// Those of a task run; for a task as a whole, also those of its items.
    Of(TaskKey),
    All,
}

impl Outputs {
    /// The number of the task, the item, and the maximum bytes of one output, as the statement takes them.
    pub(super) fn asked(self) -> (Option<i16>, Option<i32>, i32) {
        match self {
            Self::None => (None, None, -1),
            Self::Short => (None, None, SHORT_BYTES_MAX),
            Self::Of(key) => (Some(key.task as i16), key.item.map(|item| item as i32), i32::MAX),
            Self::All => (None, None, i32::MAX),
        }
    }

    /// Whether it asks for this task run: for its output, if that is not too long, and for its errors.
    pub(super) fn is_about(self, key: TaskKey) -> bool {
        let (task, item, _) = self.asked();
        task.is_none_or(|task| key.task as i16 == task) && item.is_none_or(|item| key.item_number() == item)
    }

    pub(super) fn has(self, key: TaskKey, bytes: i32) -> bool {
        let (.., bytes_max) = self.asked();
        self.is_about(key) && bytes <= bytes_max
    }
}
