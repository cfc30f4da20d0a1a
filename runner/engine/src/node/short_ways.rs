//! Short ways next to general ways. ARCHITECTURE.md lists them, with the gain of each. Each short way checks here,
//! where it begins, whether it may be used. A node uses all of them, except in tests that compare the results of both
//! ways, and in the benchmark that measures what each is worth.

use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

/// A way to do a common thing with fewer statements or fewer checks than the general way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShortWay {
    /// The end of a single-task run in one statement.
    SingleTaskEnd,
    /// Runs created by one statement, without a transaction around it.
    PlainRuns,
    /// A backfill's next run in one statement.
    BackfillStep,
    /// An attempt that begins at once, and is not prepared in a separate async task.
    BeginAtOnce,
    /// A row in a queue that is written with the transition that makes the task run ready.
    QueuedAtOnce,
    /// A batch of messages recorded by one statement.
    PlainMessages,
    /// A poll for offers answered from memory.
    QuietPoll,
    /// Log lines that are written with the outcome.
    LinesWithOutcome,
    /// A run of a follower that begins in the transaction that creates it.
    FollowerAtOnce,
}

impl ShortWay {
    pub const ALL: [Self; 9] = [
        Self::SingleTaskEnd,
        Self::PlainRuns,
        Self::BackfillStep,
        Self::BeginAtOnce,
        Self::QueuedAtOnce,
        Self::PlainMessages,
        Self::QuietPoll,
        Self::LinesWithOutcome,
        Self::FollowerAtOnce,
    ];

    /// Its name in settings.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SingleTaskEnd => "single_task_end",
            Self::PlainRuns => "plain_runs",
            Self::BackfillStep => "backfill_step",
            Self::BeginAtOnce => "begin_at_once",
            Self::QueuedAtOnce => "queued_at_once",
            Self::PlainMessages => "plain_messages",
            Self::QuietPoll => "quiet_poll",
            Self::LinesWithOutcome => "lines_with_outcome",
            Self::FollowerAtOnce => "follower_at_once",
        }
    }
}

/// Which short ways a node takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortWays {
    left_out: u16,
}

impl ShortWays {
    pub const ALL: Self = Self { left_out: 0 };

    /// All of these except one.
    #[must_use]
    pub fn without(self, way: ShortWay) -> Self {
        Self {
            left_out: self.left_out | (1 << way as u16),
        }
    }

    /// Whether this one is used.
    pub fn take(self, way: ShortWay) -> bool {
        self.left_out & (1 << way as u16) == 0
    }
}

/// How many short ways there are.
const WAYS: usize = ShortWay::ALL.len();

/// The short ways of a running node, and how often it has taken each.
#[derive(Debug)]
pub(crate) struct Counted {
    ways: ShortWays,
    taken: [AtomicU64; WAYS],
}

impl Counted {
    pub(crate) fn of(ways: ShortWays) -> Self {
        Self {
            ways,
            taken: Default::default(),
        }
    }

    /// Whether this one is used.
    pub(crate) fn take(&self, way: ShortWay) -> bool {
        self.ways.take(way)
    }

    /// Counts that this short way was used: it was allowed, and the case was suitable for it.
    pub(crate) fn took(&self, way: ShortWay) {
        self.taken[way as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How often each was taken, by its name.
    pub(crate) fn counts(&self) -> [(&'static str, u64); WAYS] {
        ShortWay::ALL.map(|way| (way.as_str(), self.taken[way as usize].load(Ordering::Relaxed)))
    }
}

/// Reads the short ways that are left out: `all`, or their names, separated by commas.
impl FromStr for ShortWays {
    type Err = String;

    fn from_str(left_out: &str) -> Result<Self, String> {
        let all = left_out == "all";
        let names: Vec<&str> = match all {
            true => ShortWay::ALL.map(ShortWay::as_str).to_vec(),
            false => left_out.split(',').filter(|name| !name.is_empty()).collect(),
        };
        names.into_iter().try_fold(Self::ALL, |ways, name| {
            let way = ShortWay::ALL.into_iter().find(|way| way.as_str() == name);
            way.map(|way| ways.without(way))
                .ok_or_else(|| format!("`{name}` is not the name of a short way"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_left_out_by_name() {
        let none: ShortWays = "all".parse().unwrap();
        assert!(ShortWay::ALL.iter().all(|way| !none.take(*way)));
        assert_eq!("".parse(), Ok(ShortWays::ALL));
        let some: ShortWays = "plain_runs,quiet_poll".parse().unwrap();
        let left_out = |way: &ShortWay| !some.take(*way);
        let names: Vec<_> = ShortWay::ALL.iter().filter(|way| left_out(way)).collect();
        assert_eq!(names, [&ShortWay::PlainRuns, &ShortWay::QuietPoll]);
        assert!("quick".parse::<ShortWays>().is_err());
    }

    #[test]
    fn what_was_taken_is_counted_by_name() {
        let counted = Counted::of(ShortWays::ALL);
        counted.took(ShortWay::QuietPoll);
        counted.took(ShortWay::QuietPoll);
        for (name, count) in counted.counts() {
            assert_eq!(count, if name == "quiet_poll" { 2 } else { 0 }, "{name}");
        }
    }
}
