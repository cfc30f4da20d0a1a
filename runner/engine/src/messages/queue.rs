//! Batches that workers of a queue send.
//!
//! A batch becomes a run of the topic's own group ([`crate::runs::create::batch_run`]), whose only task goes to the
//! queue. So leases, heartbeats, tokens and the loss of workers work as for any task run. In addition, the end of the run
//! ends the batch.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use heddle_domain::Chain;
use heddle_domain::backfill::Urgency;
use heddle_domain::id::RunId;
use heddle_domain::message::{address_of, queued_bytes};
use heddle_domain::spec::SubmissionSpec;
use heddle_domain::spec::bounds::PARAMS_BYTES_MAX;
use heddle_domain::state::{RunState, Trigger};
use heddle_domain::topic::{Topic, group_name};
use heddle_store::message::{EndedQueueBatch, Finish, MessageBatch};
use heddle_store::topic::TopicRow;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::outcome::{Handled, MessageEnd, finish_of};
use super::params::params_of;
use super::{Messages, POLL_EVERY};
use crate::node::group_commit::Met;
use crate::node::seldom;
use crate::node::signals::Signal;
use crate::runs::create::batch_run::failed_of;
use crate::{EngineError, Submission, SubmitError};

/// The maximum size of a batch for a queue: its messages as JSON, with the topic's name, must fit into the params of a
/// run.
pub(super) const BATCH_BYTES_MAX: usize = PARAMS_BYTES_MAX - 512;

/// The longest time until the next try to put a batch into its queue.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Why a topic's batches do not get into its queue, and when the next one is tried. All times are those of
/// `NodeClock::elapsed`.
pub(super) struct Stuck {
    problem: String,
    pause: Duration,
    until: Duration,
}

impl Stuck {
    /// After a batch did not get into the queue. If it was refused, the pause is longer than the one `before`.
    fn next(before: Option<&Self>, problem: String, is_refused: bool, now: Duration) -> Self {
        let pause = match before {
            // Several drainers of the topic fail at once.
            Some(before) if before.is_put_off(now) => before.pause,
            Some(before) if is_refused => (before.pause * 2).min(PAUSE_MAX),
            _ => POLL_EVERY,
        };
        Self {
            problem,
            pause,
            until: now + pause,
        }
    }

    /// Whether it is too early for the next try.
    fn is_put_off(&self, now: Duration) -> bool {
        now < self.until
    }
}

/// For how long a batch is passed over that could not be recorded.
const PASSED_OVER_FOR: Duration = Duration::from_secs(10);

/// How many batches are passed over at most. Further ones are tried with each look, and may hide others.
const PASSED_OVER_MAX: usize = 1_000;

/// Batches that could not be recorded for a reason of their own. One look finds up to a hundred, so without this, a hundred
/// of them would hide all others of their topic. Each has the time until which it is passed over (`NodeClock::elapsed`).
#[derive(Default)]
pub(super) struct Unsettled(Mutex<HashMap<Uuid, Duration>>);

impl Unsettled {
    fn note(&self, batch: Uuid, now: Duration) {
        let mut all = self.0.lock();
        if all.len() < PASSED_OVER_MAX || all.contains_key(&batch) {
            all.insert(batch, now + PASSED_OVER_FOR);
        }
    }

    fn passed_over(&self, now: Duration) -> Vec<Uuid> {
        let mut all = self.0.lock();
        all.retain(|_, until| *until > now);
        all.keys().copied().collect()
    }
}

/// Creates a run for a batch. If that fails, the batch is given back, and its drainer ends; a message that is too large
/// for any run fails for good.
pub(super) async fn enqueue(
    messages: &Messages,
    row: &TopicRow,
    topic: &Topic,
    batch: &MessageBatch,
    lease: i64,
) -> ControlFlow<(), Option<Finish>> {
    if let [message] = batch.messages.as_slice()
        && let bytes = queued_bytes(&message.payload)
        && bytes > BATCH_BYTES_MAX
    {
        // It is alone in its batch because it does not fit into any.
        let end = MessageEnd::Failed {
            message: format!("the message has {bytes} bytes as JSON for its queue; the maximum is {BATCH_BYTES_MAX}"),
            fatal: true,
            retry_after: None,
        };
        let finish = finish_of(&messages.node, topic, Handled::of(batch, lease), vec![end]);
        return ControlFlow::Continue(Some(finish));
    }
    let run = match submit(messages, row, batch).await {
        Ok(run) => run,
        Err(error) => {
            messages.put_off(row, &error).await;
            if let Err(error) = messages.node.store.give_batch_back(batch.id, lease).await {
                tracing::warn!(error = %Chain(&error), "cannot release a batch of messages; it is taken over when the \
                    lease of this node has expired");
            }
            return ControlFlow::Break(());
        }
    };
    messages.stuck.lock().remove(&row.id);
    // If this fails, the next owner of the batch finds the run by its key.
    if let Err(error) = messages.node.store.hand_batch_to_run(batch.id, lease, run.0).await {
        tracing::warn!(error = %Chain(&error), batch = %batch.id, "cannot record which run has a batch of messages");
    }
    ControlFlow::Continue(None)
}

async fn submit(messages: &Messages, row: &TopicRow, batch: &MessageBatch) -> Result<RunId, SubmitError> {
    let unreadable = |error| EngineError::unreadable_in(format!("batch {}", batch.id), error);
    let params: Map<String, Value> =
        serde_json::from_str(&params_of(&row.name, batch).map_err(unreadable)?).map_err(unreadable)?;
    let submission = Submission {
        group: group_name(row.id),
        spec: SubmissionSpec {
            params,
            key: Some(batch.id.to_string()),
            ..SubmissionSpec::default()
        },
        trigger: Trigger::Task,
        urgency: Urgency::Usual,
        source: None,
        by: None,
        parent: None,
    };
    match messages.runs.submit(submission).await {
        Err(SubmitError::Exists(run)) => Ok(run),
        other => other,
    }
}

/// What a worker reported for a batch.
fn ends_of(ended: &EndedQueueBatch) -> Vec<MessageEnd> {
    if ended.state != Some(RunState::Succeeded) {
        let why = match (ended.state, &ended.error) {
            (None, _) => "its run was deleted",
            (Some(_), Some(error)) => error,
            (Some(_), None) => "it ended without success",
        };
        let end = MessageEnd::Failed {
            message: format!("the batch of this message failed: {why}"),
            fatal: ended.fatal,
            retry_after: None,
        };
        return vec![end; ended.ids.len()];
    }
    let named = match &ended.output {
        Some(output) => serde_json::from_str(output)
            .ok()
            .and_then(|output| failed_of(&output).ok()),
        None => Some(Vec::new()),
    };
    // Workers' outputs were checked when they arrived. This one did not come from a worker.
    let Some(failed) = named else {
        let end = MessageEnd::failed("the output of the worker does not say which messages of the batch failed");
        return vec![end; ended.ids.len()];
    };
    let failed: HashSet<Uuid> = failed.into_iter().collect();
    ended
        .ids
        .iter()
        .map(|id| match failed.contains(id) {
            true => MessageEnd::failed("the worker reported this message as failed"),
            false => MessageEnd::Sent,
        })
        .collect()
}

impl Messages {
    /// Whether it is too early to try the next batch of a topic.
    pub(super) fn is_put_off(&self, topic: i32) -> bool {
        let now = self.node.clock.elapsed();
        let stuck = self.stuck.lock();
        stuck.get(&topic).is_some_and(|stuck| stuck.is_put_off(now))
    }

    /// Tries the next batches now; a problem that stays is not logged again.
    pub(super) fn try_stuck_again(&self) {
        let now = self.node.clock.elapsed();
        self.stuck.lock().values_mut().for_each(|stuck| stuck.until = now);
    }

    /// Notes that a batch cannot be put into its queue, and delays the next try. If the batch was refused, each delay
    /// is longer than the one before. Each problem is logged once for as long as it stays.
    async fn put_off(&self, row: &TopicRow, error: &SubmitError) {
        let problem = error.to_string();
        let is_refused = !matches!(error, SubmitError::Engine(_));
        let now = self.node.clock.elapsed();
        let is_new = {
            let mut all = self.stuck.lock();
            let before = all.get(&row.id);
            let is_new = before.is_none_or(|before| before.problem != problem);
            let stuck = Stuck::next(before, problem.clone(), is_refused, now);
            all.insert(row.id, stuck);
            is_new
        };
        if is_new {
            tracing::warn!(error = %Chain(error), topic = row.name, "cannot put a batch of messages into its queue; \
                trying again");
        }
        if is_refused && let Err(error) = self.node.store.note_problem(row.id, &problem).await {
            tracing::debug!(error = %Chain(&error), topic = row.name, "cannot note the problem of a topic");
        }
    }

    /// Records batches whose runs have ended. One that cannot be recorded is tried again after some seconds, and keeps none of
    /// the others waiting. Returns only an error that the others would meet as well.
    pub(super) async fn settle_queue(self: &Arc<Self>, row: &TopicRow, topic: &Topic) -> Result<(), EngineError> {
        let passed_over = self.unsettled.passed_over(self.node.clock.elapsed());
        for (batch, ended) in self.node.store.ended_queue_batches(row.id, &passed_over).await? {
            let settled = match ended {
                Ok(ended) => self.settle_batch(row, topic, &ended).await,
                Err(error) => Err(error.into()),
            };
            if let Err(error) = settled {
                match Met::of(&error) {
                    Met::NoDatabase => return Err(error),
                    Met::Others => {}
                    Met::Itself => self.unsettled.note(batch, self.node.clock.elapsed()),
                }
                log_unsettled(row, &error);
            }
        }
        Ok(())
    }

    async fn settle_batch(
        self: &Arc<Self>,
        row: &TopicRow,
        topic: &Topic,
        ended: &EndedQueueBatch,
    ) -> Result<(), EngineError> {
        let ends = ends_of(ended);
        let ids = ended.ids.iter();
        let handled = Handled {
            batch: ended.id,
            day: ended.day,
            lease: 0,
            messages: ids
                .map(|id| (*id, address_of(*id).map_or(0, |address| address.1)))
                .collect(),
            tried: &ended.tried,
        };
        let finish = finish_of(&self.node, topic, handled, ends);
        let _permit = self.claims.enter().await;
        self.node.store.next_batch(row.id, Some(&finish), None).await?;
        self.node.signals.raise(Signal::Messages);
        Ok(())
    }
}

/// Batches of a topic are not recorded as ended. They are looked for several times a second.
pub(super) fn log_unsettled(row: &TopicRow, error: &EngineError) {
    const WHAT: &str = "cannot record batches of messages whose runs have ended; trying again";
    let error_chain = Chain(error);
    let due = match Met::of(error) {
        // Another transaction has what this one needs.
        Met::Others => None,
        Met::Itself | Met::NoDatabase => seldom::line_due(WHAT),
    };
    match due {
        Some(0) => tracing::warn!(error = %error_chain, topic = row.name, "{WHAT}"),
        Some(omitted) => tracing::warn!(error = %error_chain, topic = row.name, omitted, "{WHAT}"),
        None => tracing::debug!(error = %error_chain, topic = row.name, "{WHAT}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::clock::NodeClock;

    #[test]
    fn a_topic_that_is_stuck_waits_longer_each_time_by_the_nodes_clock() {
        let start: heddle_domain::Time = "2026-03-01T00:00:00Z".parse().expect("an instant");
        let clock = NodeClock::manual(start);
        let mut now = start;
        let mut pass = |time: Duration| {
            now += chrono::TimeDelta::from_std(time).expect("a span");
            clock.set(now);
            clock.elapsed()
        };
        let moment = Duration::from_micros(1);
        let refused = |before: Option<&Stuck>, now| Stuck::next(before, "disabled".into(), true, now);
        let mut stuck = refused(None, pass(Duration::ZERO));
        for pause in [200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000] {
            let pause = Duration::from_millis(pause);
            assert_eq!(stuck.pause, pause);
            let before = pass(pause - moment);
            assert!(stuck.is_put_off(before), "a moment before {pause:?}");
            // Another drainer fails meanwhile: the pause is not longer for that.
            assert_eq!(refused(Some(&stuck), before).pause, pause);
            let after = pass(moment);
            assert!(!stuck.is_put_off(after), "after {pause:?}");
            stuck = refused(Some(&stuck), after);
        }
        // A database that does not answer is no reason to wait longer.
        let after = pass(PAUSE_MAX);
        assert_eq!(Stuck::next(Some(&stuck), "away".into(), false, after).pause, POLL_EVERY);
    }

    #[test]
    fn batches_that_cannot_be_recorded_are_passed_over_for_a_while() {
        let (unsettled, second) = (Unsettled::default(), Duration::from_secs(1));
        let id = |number: usize| Uuid::from_u128(number as u128);
        unsettled.note(id(0), second);
        unsettled.note(id(1), 2 * second);
        assert_eq!(unsettled.passed_over(2 * second).len(), 2);
        assert_eq!(unsettled.passed_over(second + PASSED_OVER_FOR), [id(1)]);
        unsettled.note(id(1), 3 * second);
        assert_eq!(
            unsettled.passed_over(2 * second + PASSED_OVER_FOR),
            [id(1)],
            "it has failed again"
        );
        (0..2 * PASSED_OVER_MAX).for_each(|number| unsettled.note(id(number), 4 * second));
        assert_eq!(unsettled.passed_over(4 * second).len(), PASSED_OVER_MAX);
    }

    #[test]
    fn what_is_not_known_to_be_sent_has_failed() {
        let id = Uuid::from_u128(7);
        let ended = |state, output: Option<&str>| EndedQueueBatch {
            id: Uuid::nil(),
            day: chrono::NaiveDate::MIN,
            ids: vec![id],
            tried: Vec::new(),
            state,
            output: output.map(str::to_owned),
            error: None,
            fatal: false,
        };
        let succeeded = Some(RunState::Succeeded);
        let names_it = format!("{{\"failed\": [\"{id}\"]}}");
        for output in [None, Some("null"), Some("{}")] {
            assert_eq!(ends_of(&ended(succeeded, output)), [MessageEnd::Sent], "{output:?}");
        }
        let failures = [
            (succeeded, Some(names_it.as_str()), "reported this message as failed"),
            (succeeded, Some("{\"failed\": ["), "does not say which messages"),
            (Some(RunState::Failed), None, "it ended without success"),
            (None, None, "its run was deleted"),
        ];
        for (state, output, why) in failures {
            let ends = ends_of(&ended(state, output));
            let [
                MessageEnd::Failed {
                    message, fatal: false, ..
                },
            ] = &ends[..]
            else {
                panic!("{state:?}, {output:?}: {ends:?}");
            };
            assert!(message.contains(why), "{message}");
        }
    }
}
