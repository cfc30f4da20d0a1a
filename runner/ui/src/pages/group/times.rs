//! How long runs of a group took.

use heddle_domain::Time;
use heddle_domain::state::RunState;
use heddle_store::pages::group::GroupRunRow;

/// Since when a run has been running: since its start, or since an ended run went on. The time in between was no work, and
/// a run that waits does none.
pub(super) fn begun(run: &GroupRunRow) -> Option<Time> {
    let since = run.started_at.max(run.reopened_at);
    since.filter(|_| run.state != RunState::Waiting)
}

/// How long a run took, if it has ended.
pub(super) fn millis(run: &GroupRunRow) -> Option<i64> {
    Some((run.finished_at? - begun(run).unwrap_or(run.created_at)).num_milliseconds())
}

/// The median duration of runs that succeeded without being continued after an end.
pub(in crate::pages) fn median(runs: &[GroupRunRow]) -> Option<i64> {
    let whole = |run: &&GroupRunRow| run.state == RunState::Succeeded && run.reopened_at.is_none();
    let mut spans: Vec<i64> = runs.iter().filter(whole).filter_map(millis).collect();
    spans.sort_unstable();
    spans.get(spans.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use heddle_domain::state::Trigger;

    use super::*;

    #[test]
    fn a_run_that_stood_still_for_days_did_not_take_days() {
        let at = |second: i64| Time::from_timestamp(second, 0).unwrap();
        let run = |reopened: Option<i64>, to: i64| GroupRunRow {
            id: uuid::Uuid::nil(),
            revision_id: 1,
            state: RunState::Succeeded,
            trigger: Trigger::Manual,
            logical_time: at(0),
            created_at: at(0),
            started_at: Some(at(0)),
            finished_at: Some(at(to)),
            error: None,
            progress: Vec::new(),
            reopened_at: reopened.map(at),
            waiting_for: Vec::new(),
        };
        assert_eq!(millis(&run(None, 10)), Some(10_000));
        assert_eq!(millis(&run(Some(872), 874)), Some(2_000));
        assert_eq!(median(&[run(Some(872), 874), run(None, 10)]), Some(10_000));
    }
}
