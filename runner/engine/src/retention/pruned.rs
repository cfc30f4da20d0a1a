//! What a round of the pruner removes, and its bounds.

use std::collections::BTreeMap;

use chrono::NaiveDate;
use heddle_domain::state::RunState;

/// How many full statements (that removed as many rows as they could) a round has.
const STATEMENTS_MAX: usize = 300;

/// What a round removed, or (`dry_run`) what one would remove now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Whether nothing was removed, only counted.
    pub dry_run: bool,
    /// Runs, those of whole days among them.
    pub runs: u64,
    /// The same by state; states without any may be missing.
    pub by_state: BTreeMap<RunState, u64>,
    /// Days whose runs went as a whole.
    pub days: Vec<NaiveDate>,
    /// Days whose logs were removed before their runs.
    pub log_days: Vec<NaiveDate>,
    /// Runs whose logs were removed before them, one by one.
    pub logs: u64,
    /// Rows of the audit.
    pub audit: u64,
    /// Events, except those of days that were dropped as a whole.
    pub events: u64,
    pub assignments: u64,
    /// Notifications that were sent or given up.
    pub notifications: u64,
    pub occurrences: u64,
    /// Deleted offers of which nothing is left.
    pub offers: u64,
    /// Ended backfills none of whose runs is kept.
    pub backfills: u64,
    /// Tokens that were revoked or expired.
    pub tokens: u64,
    /// There is more to remove; the next round continues.
    pub more: bool,
}

impl Pruned {
    /// Counts runs by their state; returns how many.
    pub(super) fn count_runs(&mut self, states: impl IntoIterator<Item = (RunState, u64)>) -> u64 {
        let mut all = 0;
        for (state, count) in states {
            all += count;
            *self.by_state.entry(state).or_default() += count;
        }
        self.runs += all;
        all
    }

    /// Counts runs that were removed one by one; returns how many.
    pub(super) fn count_each(&mut self, states: Vec<RunState>) -> u64 {
        self.count_runs(states.into_iter().map(|state| (state, 1)))
    }
}

/// How many statements a round may still execute.
pub(super) struct Budget(usize);

impl Budget {
    pub(super) fn full() -> Self {
        Self(STATEMENTS_MAX)
    }

    /// Whether one more statement may be executed; if not, `pruned` says that there is more.
    pub(super) fn spend(&mut self, pruned: &mut Pruned) -> bool {
        if self.0 == 0 {
            pruned.more = true;
            return false;
        }
        self.0 -= 1;
        true
    }

    /// Whether another statement may follow one that removed `count` of at most `limit` rows.
    pub(super) fn goes_on(&mut self, count: u64, limit: i64, pruned: &mut Pruned) -> bool {
        count >= limit as u64 && self.spend(pruned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_ends_and_says_that_there_is_more() {
        let (mut budget, mut pruned) = (Budget::full(), Pruned::default());
        assert!(!budget.goes_on(9, 10, &mut pruned), "there is no more");
        for _ in 0..STATEMENTS_MAX {
            assert!(budget.goes_on(10, 10, &mut pruned));
        }
        assert!(!pruned.more);
        assert!(!budget.goes_on(10, 10, &mut pruned));
        assert!(pruned.more);
    }

    #[test]
    fn runs_are_counted_by_their_states() {
        let mut pruned = Pruned::default();
        assert_eq!(pruned.count_each(vec![RunState::Failed, RunState::Failed]), 2);
        assert_eq!(pruned.count_runs([(RunState::Succeeded, 3)]), 3);
        assert_eq!(pruned.runs, 5);
        assert_eq!(pruned.by_state[&RunState::Failed], 2);
        assert_eq!(pruned.by_state.values().sum::<u64>(), pruned.runs, "each has a state");
    }
}
