//! Which errors are read with a run: an answer has a bound, however many attempts of the run have failed.
//!
//! If the errors of all attempts are few bytes together, all of them are read. Otherwise the messages come first, then
//! the traces: of each task run those of its last attempt, which it shows; then those of earlier attempts, the newest
//! first. What does not fit is left out.

use std::cmp::Reverse;

use heddle_domain::id::RunId;

use super::outputs_asked::ERROR_BYTES_MAX;
use super::{AttemptView, Outputs, RunDetail};
use crate::{Store, StoreError};

/// The positions of the attempts whose messages are within the bound, and for each whether its trace is, too. `attempts`
/// have the order that a [`RunDetail`] has.
fn within_bound(attempts: &[AttemptView], asked: Outputs, bytes_max: u64) -> Vec<(usize, bool)> {
    let is_last = |index: usize| {
        attempts
            .get(index + 1)
            .is_none_or(|next| next.key != attempts[index].key)
    };
    let has_error = |one: &AttemptView| one.error_message_bytes.is_some() || one.error_trace_bytes.is_some();
    let mut wanted: Vec<usize> = (0..attempts.len())
        .filter(|&index| asked.is_about(attempts[index].key) && has_error(&attempts[index]))
        .collect();
    // `None` comes first.
    wanted.sort_by_key(|&index| (!is_last(index)).then(|| Reverse(attempts[index].finished_at)));
    let mut rest = bytes_max;
    let mut takes = |bytes: Option<i32>| {
        let left = rest.checked_sub(bytes.unwrap_or(0) as u64);
        rest = left.unwrap_or(rest);
        left.is_some()
    };
    wanted.retain(|&index| takes(attempts[index].error_message_bytes));
    let with_trace = wanted
        .into_iter()
        .map(|index| (index, takes(attempts[index].error_trace_bytes)));
    with_trace.collect()
}

impl Store {
    /// Reads the errors that are asked for of a run whose errors are many bytes. An attempt that has ended does not
    /// change, so these belong to what was read before.
    pub(super) async fn read_errors(&self, detail: &mut RunDetail, asked: Outputs) -> Result<(), StoreError> {
        let within = within_bound(&detail.attempts, asked, ERROR_BYTES_MAX);
        let run = RunId(detail.run.id);
        let of = |one: &(usize, bool)| &detail.attempts[one.0];
        let rows = sqlx::query!(
            r#"SELECT w.place AS "place!", a.error_message, CASE WHEN w.traced THEN a.error_trace END AS error_trace
                 FROM UNNEST($2::smallint[], $3::integer[], $4::integer[], $5::boolean[], $6::bigint[])
                      AS w (task, item, attempt, traced, place)
                 JOIN heddle.attempts a
                   ON a.run = $1 AND a.task = w.task AND a.item = w.item AND a.attempt = w.attempt"#,
            run.0,
            &within.iter().map(|one| of(one).key.task as i16).collect::<Vec<_>>(),
            &within.iter().map(|one| of(one).key.item_number()).collect::<Vec<_>>(),
            &within.iter().map(|one| of(one).attempt as i32).collect::<Vec<_>>(),
            &within.iter().map(|one| one.1).collect::<Vec<_>>(),
            &within.iter().map(|one| one.0 as i64).collect::<Vec<_>>()
        )
        .fetch_all(&self.pool)
        .await?;
        for row in rows {
            let attempt = &mut detail.attempts[row.place as usize];
            attempt.error_message = row.error_message;
            attempt.error_trace = row.error_trace;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use heddle_domain::Time;
    use heddle_domain::run::TaskKey;
    use heddle_domain::state::{AttemptState, ErrorKind};

    use super::*;

    /// A failed attempt of an item of the first task, with the bytes of its message and of its trace.
    fn failed(item: u32, attempt: u32, second: i64, (message, trace): (i32, i32)) -> AttemptView {
        AttemptView {
            key: TaskKey {
                task: 0,
                item: Some(item),
            },
            attempt,
            state: AttemptState::Failed,
            skipped: false,
            started_at: Time::UNIX_EPOCH,
            finished_at: Some(Time::UNIX_EPOCH + TimeDelta::seconds(second)),
            node: None,
            output: None,
            output_bytes: None,
            error_kind: Some(ErrorKind::Failed),
            error_message: None,
            error_trace: None,
            error_message_bytes: Some(message),
            error_trace_bytes: (trace > 0).then_some(trace),
            memory_bytes: None,
            cpu_micros: None,
            worker: None,
            progress: None,
            note: None,
        }
    }

    #[test]
    fn messages_come_before_traces_and_last_attempts_before_others() {
        let attempts = [
            failed(0, 1, 1, (10, 50)),
            failed(0, 2, 5, (10, 50)),
            failed(0, 3, 2, (10, 50)),
            failed(1, 1, 1, (10, 50)),
        ];
        let within = |bytes_max| within_bound(&attempts, Outputs::All, bytes_max);
        let all = [(2, true), (3, true), (1, true), (0, true)];
        assert_eq!(within(240), all, "the last of each item, then the newest");
        assert_eq!(within(190), [(2, true), (3, true), (1, true), (0, false)]);
        assert_eq!(within(89), [(2, false), (3, false), (1, false), (0, false)]);
        assert_eq!(within(29), [(2, false), (3, false)]);
        assert!(within(0).is_empty());
    }

    #[test]
    fn what_still_fits_is_taken() {
        let mut attempts = vec![
            failed(0, 1, 1, (10, 80)),
            failed(1, 1, 1, (60, 0)),
            failed(2, 1, 1, (10, 20)),
        ];
        let within = |attempts: &[AttemptView]| within_bound(attempts, Outputs::All, 50);
        assert_eq!(within(&attempts), [(0, false), (2, true)]);
        // One that succeeded has nothing to read.
        attempts[0].error_message_bytes = None;
        attempts[0].error_trace_bytes = None;
        assert_eq!(within(&attempts), [(2, true)]);
    }

    #[test]
    fn only_those_that_are_asked_for() {
        let attempts = [failed(0, 1, 1, (10, 10)), failed(1, 1, 1, (10, 10))];
        let asked = Outputs::Of(attempts[1].key);
        assert_eq!(within_bound(&attempts, asked, 20), [(1, true)]);
    }
}
