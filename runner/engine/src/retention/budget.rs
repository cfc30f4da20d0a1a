//! How much a round of the pruner may do.

use heddle_domain::retention::Pruned;

/// How many full statements (that removed as many rows as they could) a round has.
const STATEMENTS_MAX: usize = 300;

/// How many statements a round has that look at rows and remove none, because others need them.
const PASSES_MAX: usize = 100;

/// How many statements a round may still execute.
pub(crate) struct Budget(usize);

impl Budget {
    pub(crate) fn full() -> Self {
        Self(STATEMENTS_MAX)
    }

    /// That of the statements that remove nothing.
    pub(super) fn of_passes() -> Self {
        Self(PASSES_MAX)
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
}
