//! Which outputs are read with a run: an answer has a bound, however much the attempts of the run have returned.

use std::collections::BTreeMap;

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::run::{JOINED_OUTPUT_BYTES_MAX, Progress, TaskKey};
use heddle_domain::state::TaskState;

use super::{AttemptView, Outputs, OverrideView, RunDetail};
use crate::{Store, StoreError};

/// How many bytes of outputs are read with a run.
const RUN_OUTPUT_BYTES_MAX: u64 = 4 * JOINED_OUTPUT_BYTES_MAX;

/// Whose output it is that a task run shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutputOf {
    /// It belongs to the attempt at this position in the list of attempts.
    Attempt(usize),
    /// It belongs to the override at this position in the list of overrides.
    Override(usize),
}

/// The output that each task run shows, with its bytes: that of the last attempt, or of a later override. `attempts` and
/// `overrides` have the order that a [`RunDetail`] has.
fn shown(
    attempts: &[AttemptView],
    overrides: &[OverrideView],
    is_succeeded: impl Fn(TaskKey) -> bool,
) -> Vec<(TaskKey, OutputOf, i32)> {
    let mut ends: BTreeMap<TaskKey, (Option<Time>, OutputOf, Option<i32>)> = BTreeMap::new();
    for (index, one) in attempts.iter().enumerate() {
        ends.insert(one.key, (one.finished_at, OutputOf::Attempt(index), one.output_bytes));
    }
    let last: BTreeMap<TaskKey, usize> = overrides
        .iter()
        .enumerate()
        .map(|(index, one)| (one.key, index))
        .collect();
    for (key, index) in last {
        let one = &overrides[index];
        let is_later = ends.get(&key).is_none_or(|(end, ..)| *end <= Some(one.at));
        if one.state == TaskState::Succeeded && is_later {
            ends.insert(key, (Some(one.at), OutputOf::Override(index), one.output_bytes));
        }
    }
    let succeeded = ends.into_iter().filter(|(key, _)| is_succeeded(*key));
    succeeded
        .filter_map(|(key, (_, whose, bytes))| Some((key, whose, bytes?)))
        .collect()
}

/// Those within the bounds. The items of a task are taken all together, or none of them.
fn within_bounds(shown: &[(TaskKey, OutputOf, i32)]) -> Vec<OutputOf> {
    let mut fitting = Vec::new();
    let mut of_run = 0;
    for together in
        shown.chunk_by(|(one, ..), (next, ..)| one.task == next.task && one.item.is_some() == next.item.is_some())
    {
        let bytes: u64 = together.iter().map(|(.., bytes)| *bytes as u64).sum();
        if bytes <= JOINED_OUTPUT_BYTES_MAX && of_run + bytes <= RUN_OUTPUT_BYTES_MAX {
            of_run += bytes;
            fitting.extend(together.iter().map(|(_, whose, _)| *whose));
        }
    }
    fitting
}

impl Store {
    /// Reads the outputs that are asked for of a run whose outputs are many bytes. An attempt that has ended does not
    /// change, so these belong to what was read before.
    pub(super) async fn read_outputs(&self, detail: &mut RunDetail, asked: Outputs) -> Result<(), StoreError> {
        // If the progress cannot be read, no task run is shown.
        let Ok(progress) = Progress::from_bytes(&detail.run.progress) else {
            return Ok(());
        };
        let is_succeeded = |key| progress.state(key) == Some(TaskState::Succeeded);
        let mut wanted = shown(&detail.attempts, &detail.overrides, is_succeeded);
        wanted.retain(|(key, _, bytes)| asked.has(*key, *bytes));
        let (mut attempts, mut overrides) = (Vec::new(), Vec::new());
        for whose in within_bounds(&wanted) {
            match whose {
                OutputOf::Attempt(index) => attempts.push(index),
                OutputOf::Override(index) => overrides.push(index),
            }
        }
        self.read_outputs_of_attempts(detail, &attempts).await?;
        self.read_outputs_of_overrides(detail, &overrides).await
    }

    async fn read_outputs_of_attempts(&self, detail: &mut RunDetail, positions: &[usize]) -> Result<(), StoreError> {
        let run = RunId(detail.run.id);
        let of = |position: &usize| &detail.attempts[*position];
        let rows = sqlx::query!(
            r#"SELECT w.place AS "place!", a.output
                 FROM UNNEST($2::smallint[], $3::integer[], $4::integer[], $5::bigint[]) AS w (task, item, attempt, place)
                 JOIN heddle.attempts a
                   ON a.run = $1 AND a.task = w.task AND a.item = w.item AND a.attempt = w.attempt"#,
            run.0,
            &positions.iter().map(|position| of(position).key.task as i16).collect::<Vec<_>>(),
            &positions.iter().map(|position| of(position).key.item_number()).collect::<Vec<_>>(),
            &positions.iter().map(|position| of(position).attempt as i32).collect::<Vec<_>>(),
            &positions.iter().map(|position| *position as i64).collect::<Vec<_>>()
        )
        .fetch_all(&self.pool)
        .await?;
        for row in rows {
            detail.attempts[row.place as usize].output = row.output;
        }
        Ok(())
    }

    async fn read_outputs_of_overrides(&self, detail: &mut RunDetail, positions: &[usize]) -> Result<(), StoreError> {
        if positions.is_empty() {
            return Ok(());
        }
        let run = RunId(detail.run.id);
        let of = |position: &usize| &detail.overrides[*position];
        let rows = sqlx::query!(
            r#"SELECT w.place AS "place!", o.output
                 FROM UNNEST($2::smallint[], $3::integer[], $4::timestamptz[], $5::bigint[]) AS w (task, item, at, place)
                 JOIN heddle.overrides o
                   ON o.run = $1 AND o.task = w.task AND o.item = w.item AND o.at = w.at AND o.output IS NOT NULL"#,
            run.0,
            &positions.iter().map(|position| of(position).key.task as i16).collect::<Vec<_>>(),
            &positions.iter().map(|position| of(position).key.item_number()).collect::<Vec<_>>(),
            &positions.iter().map(|position| of(position).at).collect::<Vec<_>>(),
            &positions.iter().map(|position| *position as i64).collect::<Vec<_>>()
        )
        .fetch_all(&self.pool)
        .await?;
        for row in rows {
            detail.overrides[row.place as usize].output = row.output;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use heddle_domain::state::AttemptState;

    use super::*;

    const MIB: i32 = 1 << 20;

    fn key(task: u16, item: Option<u32>) -> TaskKey {
        TaskKey { task, item }
    }

    fn at(second: i64) -> Time {
        Time::UNIX_EPOCH + TimeDelta::seconds(second)
    }

    fn attempt(key: TaskKey, attempt: u32, end: i64, output_bytes: Option<i32>) -> AttemptView {
        AttemptView {
            key,
            attempt,
            state: AttemptState::Succeeded,
            skipped: false,
            started_at: Time::UNIX_EPOCH,
            finished_at: Some(at(end)),
            node: None,
            output: None,
            output_bytes,
            error_kind: None,
            error_message: None,
            error_trace: None,
            error_message_bytes: None,
            error_trace_bytes: None,
            memory_bytes: None,
            cpu_micros: None,
            worker: None,
            progress: None,
            note: None,
        }
    }

    fn set(key: TaskKey, state: TaskState, second: i64, output_bytes: Option<i32>) -> OverrideView {
        OverrideView {
            key,
            at: at(second),
            state,
            reason: String::new(),
            actor: String::new(),
            output: None,
            output_bytes,
        }
    }

    #[test]
    fn the_last_output_of_a_task_run_is_shown() {
        let keys = [0, 1, 2, 3].map(|task| key(task, None));
        let attempts = [
            attempt(keys[0], 1, 1, Some(10)),
            attempt(keys[0], 2, 5, Some(20)),
            attempt(keys[1], 1, 1, Some(30)),
            attempt(keys[2], 1, 3, Some(40)),
            attempt(keys[3], 1, 1, Some(50)),
        ];
        let overrides = [
            set(keys[0], TaskState::Succeeded, 3, Some(11)),
            set(keys[1], TaskState::Succeeded, 3, Some(31)),
            set(keys[2], TaskState::Pending, 4, None),
            set(keys[3], TaskState::Succeeded, 4, None),
        ];
        let found = shown(&attempts, &overrides, |key| key.task != 2);
        let wanted = [
            (keys[0], OutputOf::Attempt(1), 20),
            (keys[1], OutputOf::Override(1), 31),
        ];
        assert_eq!(found, wanted, "one was cleared, and one was set without an output");
    }

    #[test]
    fn the_items_of_a_task_have_the_bound_of_a_joined_output() {
        let item = |index: usize, bytes: i32| (key(1, Some(index as u32)), OutputOf::Attempt(index), bytes);
        let alone = (key(2, None), OutputOf::Attempt(9), 8 * MIB);
        let fitting = |shown: &[(TaskKey, OutputOf, i32)]| within_bounds(shown).len();
        assert_eq!(fitting(&[item(0, 4 * MIB), item(1, 4 * MIB), alone]), 3);
        assert_eq!(fitting(&[item(0, 4 * MIB), item(1, 4 * MIB + 1), alone]), 1);
        // An override of the task as a whole belongs to no item.
        let whole = (key(1, None), OutputOf::Override(0), MIB);
        assert_eq!(fitting(&[whole, item(0, 4 * MIB), item(1, 4 * MIB + 1)]), 1);
    }

    #[test]
    fn a_run_has_a_bound() {
        let mut shown: Vec<_> = (0..5)
            .map(|task| (key(task, None), OutputOf::Attempt(task.into()), 7 * MIB))
            .collect();
        assert_eq!(within_bounds(&shown).len(), 4);
        shown.push((key(5, None), OutputOf::Attempt(5), MIB));
        assert_eq!(within_bounds(&shown).len(), 5, "what still fits is read");
    }

    #[test]
    fn what_is_asked_for() {
        let (one, other) = (key(3, Some(7)), key(3, None));
        assert!(Outputs::All.has(one, i32::MAX) && !Outputs::None.has(one, 0));
        assert!(Outputs::Of(other).has(one, MIB) && Outputs::Of(one).has(one, MIB) && !Outputs::Of(one).has(other, 1));
        assert!(Outputs::Short.has(one, 100) && !Outputs::Short.has(one, MIB));
        assert!(Outputs::Of(other).is_about(one) && !Outputs::Of(one).is_about(other) && Outputs::None.is_about(one));
    }
}
