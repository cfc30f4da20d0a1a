//! What a round of the pruner removed, or would remove: counted by the engine, and shown by the API as it is.

use std::collections::BTreeMap;

use chrono::NaiveDate;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::EndState;
use crate::state::RunState;

fn dates(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "items": {"type": "string", "format": "date"}})
}

/// How much was removed, or with `dry_run` would be removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pruned {
    /// Whether this was a dry run.
    pub dry_run: bool,
    /// The number of runs.
    pub runs: u64,
    /// The number of runs by state.
    pub by_state: BTreeMap<EndState, u64>,
    /// Days of which all runs were removed.
    #[schemars(schema_with = "dates")]
    pub days: Vec<NaiveDate>,
    /// Days of which all logs were removed.
    #[schemars(schema_with = "dates")]
    pub log_days: Vec<NaiveDate>,
    /// The number of runs whose logs were removed before the run itself.
    pub logs: u64,
    /// The number of entries of the audit.
    pub audit: u64,
    /// The number of events.
    pub events: u64,
    /// The number of assignments.
    pub assignments: u64,
    /// The number of notifications.
    pub notifications: u64,
    /// The number of occurrences of offers.
    pub occurrences: u64,
    /// The number of deleted offers.
    pub offers: u64,
    /// The number of backfills.
    pub backfills: u64,
    /// The number of revoked and expired tokens.
    pub tokens: u64,
    /// Whether more data is due to be removed: call again.
    pub more: bool,
}

impl Default for Pruned {
    /// Nothing yet: zero of each, for each state in which runs end.
    fn default() -> Self {
        Self {
            dry_run: false,
            runs: 0,
            by_state: EndState::ALL.into_iter().map(|state| (state, 0)).collect(),
            days: Vec::new(),
            log_days: Vec::new(),
            logs: 0,
            audit: 0,
            events: 0,
            assignments: 0,
            notifications: 0,
            occurrences: 0,
            offers: 0,
            backfills: 0,
            tokens: 0,
            more: false,
        }
    }
}

impl Pruned {
    /// Counts runs by the state in which they ended; returns how many.
    pub fn count_runs(&mut self, states: impl IntoIterator<Item = (RunState, u64)>) -> u64 {
        let mut all = 0;
        for (state, count) in states {
            all += count;
            if let Some(ended) = EndState::of(state) {
                *self.by_state.entry(ended).or_default() += count;
            }
        }
        self.runs += all;
        all
    }

    /// Counts runs that were removed one by one; returns how many.
    pub fn count_each(&mut self, states: Vec<RunState>) -> u64 {
        self.count_runs(states.into_iter().map(|state| (state, 1)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn runs_are_counted_by_their_states() {
        let mut pruned = Pruned::default();
        assert_eq!(pruned.count_each(vec![RunState::Failed, RunState::Failed]), 2);
        assert_eq!(
            pruned.count_runs([(RunState::Succeeded, 3), (RunState::Cancelled, 0)]),
            3
        );
        assert_eq!(pruned.runs, 5);
        let shown = serde_json::to_value(&pruned).unwrap();
        assert_eq!(shown["by_state"], json!({"succeeded": 3, "failed": 2, "cancelled": 0}));
        assert_eq!(pruned.by_state.values().sum::<u64>(), pruned.runs, "each has a state");
    }

    #[test]
    fn each_state_is_shown_though_nothing_was_removed() {
        let mut pruned = Pruned::default();
        assert_eq!(pruned.count_runs([(RunState::Succeeded, 0)]), 0);
        assert_eq!(pruned, Pruned::default(), "zero runs are nothing");
        let text = serde_json::to_string(&pruned).unwrap();
        let begin = r#"{"dry_run":false,"runs":0,"by_state":{"succeeded":0,"failed":0,"cancelled":0},"days":[],"#;
        assert!(text.starts_with(begin), "{text}");
    }
}
