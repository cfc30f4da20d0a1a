//! One batch of events, applied to its runs within one transaction. Used by the recorder (outcomes of this node), the
//! inbox (timers, sub-runs, starts), the reaper (lost attempts) and controls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use heddle_domain::Time;
use heddle_domain::backfill::Urgency;
use heddle_domain::id::RunId;
use heddle_domain::run::{AttemptKey, Event, Outcome};
use heddle_domain::state::{AttemptState, ErrorKind, RunState, Skip, Trigger};
use heddle_sandbox::Effect as ScriptEffect;
use heddle_store::StoreError;
use heddle_store::live::{
    AttemptRow, Completion, Created, Effect, EndedAttempt, Grant, GroupNeed, Interrupted, Locked, NewRun, ReadyRow,
    RunWrite,
};

use crate::node::Node;
use crate::node::news::News;
use crate::node::signals::{Signal, SignalSet};
use crate::runs::change::notices::notices_of;
use crate::runs::change::transition::{Parts, Snapshot, Transition, bytes_of};
use crate::runs::contexts::Contexts;
use crate::runs::ending::{Applied, Done, End, Ending, message_kept, trace_kept};
use crate::runs::params::enqueued;
use crate::runs::trace::Span;
use crate::runs::waiters::queued::{FilledQueues, target_at_once};
use crate::{EngineError, RunContext, Runs, Submission, SubmitError};

/// The results of a transaction that are handled after its commit.
#[derive(Default)]
pub(crate) struct After {
    /// Runs that have ended.
    pub(crate) finished: Vec<RunId>,
    /// Of these, runs that never began, and why.
    pub(crate) skipped: Vec<Skip>,
    /// Runs whose state or tasks have changed.
    pub(crate) moved: Vec<RunId>,
    /// Attempts that are this node's now.
    pub(crate) own_attempts: Vec<(RunId, AttemptKey)>,
    /// Attempts that were stopped.
    pub(crate) interrupted: Vec<Interrupted>,
    /// The parts of the node that have something to do now.
    pub(crate) signals: SignalSet,
    /// Backfills of which a run has ended: they may start the next one.
    pub(crate) backfilled: Vec<uuid::Uuid>,
    /// The earliest timer that was written.
    pub(crate) due: Option<Time>,
    /// How long each attempt took whose outcome was recorded, from the moment when it was taken.
    pub(crate) lasted: Vec<Duration>,
    /// Outcomes that were accepted.
    pub(crate) accepted: Vec<(RunId, AttemptKey)>,
    /// What workers may claim now.
    pub(crate) filled: FilledQueues,
    /// Spans for a tracer.
    pub(crate) spans: Vec<Span>,
}

/// Whether a run may have timers, which are deleted when it ends.
fn has_timers(context: &RunContext) -> bool {
    let mut tasks = context.revision.plan.tasks.iter();
    context.facts.deadline_at.is_some() || tasks.any(|task| task.retry.is_some() || task.spec.queue_timeout.is_some())
}

impl Runs {
    /// Applies outcomes to their runs, which it locks. `contexts` contains all of the runs that are live.
    pub(crate) async fn apply(
        &self,
        completion: &mut Completion,
        contexts: &Contexts,
        outcomes: Vec<Applied>,
        grant: &mut Grant,
    ) -> Result<After, EngineError> {
        let keys: Vec<EndedAttempt> = outcomes.iter().map(|outcome| outcome.ended).collect();
        let locked = completion.lock(&keys).await?;
        self.apply_locked(completion, contexts, outcomes, locked, grant).await
    }

    /// The same, when the runs are locked and the attempts taken.
    pub(crate) async fn apply_locked(
        &self,
        completion: &mut Completion,
        contexts: &Contexts,
        outcomes: Vec<Applied>,
        locked: Locked,
        grant: &mut Grant,
    ) -> Result<After, EngineError> {
        let now = completion.now();
        let count = outcomes.len();
        let mut by_run: BTreeMap<RunId, Vec<(Applied, Time)>> = BTreeMap::new();
        for outcome in outcomes {
            let key = (outcome.ended.run, outcome.ended.at);
            if let Some(&started_at) = locked.owned.get(&key) {
                by_run.entry(outcome.ended.run).or_default().push((outcome, started_at));
            }
        }
        let mut after = After::default();
        let mut writes = Vec::with_capacity(by_run.len());
        let mut rows = Vec::with_capacity(count);
        for (run, mut outcomes) in by_run {
            let Some(found) = locked.runs.get(&run) else { continue };
            let context = self.contexts.known(contexts, run).await?;
            let mut events = Vec::with_capacity(outcomes.len());
            let mut maps = Vec::new();
            for (outcome, _) in &mut outcomes {
                if let End::Done(done) = &mut outcome.end {
                    self.commit_effects(completion, &context, outcome.ended.at, done, &mut after)
                        .await?;
                }
                events.push(event_of(outcome.ended.at, &outcome.end));
            }
            let transition = self
                .transition(&context, Snapshot::of(run, found)?, &events, completion, now)
                .await?;
            for (accepted, (outcome, started_at)) in transition.accepted().iter().zip(outcomes) {
                if !accepted {
                    continue;
                }
                after.accepted.push((run, outcome.ended.at));
                let worker = locked.workers.get(&(run, outcome.ended.at)).cloned();
                let row = match outcome.end {
                    End::Done(done) => {
                        let finished_at = outcome.finished_at.unwrap_or(now).max(started_at);
                        attempt_row(outcome.ended, done, started_at, finished_at, outcome.node)
                    }
                    End::Expanded { items, .. } => {
                        maps.push((outcome.ended.at.key.task as i16, items));
                        continue;
                    }
                    // Given back: the next attempt has the next number, so this one is recorded as stopped.
                    End::Dropped => released_row(outcome.ended, started_at, now, self.node.identity.id),
                };
                let row = AttemptRow { worker, ..row };
                after.spans.extend(self.traces.attempt_span(&context, &row, started_at));
                rows.push(row);
            }
            let write = self.write_of(&context, transition, grant, &mut after)?;
            writes.push(RunWrite { maps, ..write });
        }
        let lasted = |row: &AttemptRow| (row.finished_at - row.started_at).to_std().unwrap_or_default();
        after.lasted = rows.iter().map(lasted).collect();
        completion.insert_attempts(&rows).await?;
        self.write(completion, &writes, &mut after).await?;
        Ok(after)
    }

    /// A decision as rows.
    pub(crate) fn write_of(
        &self,
        context: &RunContext,
        transition: Transition,
        grant: &mut Grant,
        after: &mut After,
    ) -> Result<RunWrite, EngineError> {
        let Parts {
            actions,
            state,
            progress,
            begins,
            told,
            silent,
        } = transition.into_parts();
        let run = context.facts.id;
        let last = self.queue.last_claimed();
        let finished = state.is_final();
        let ends = (finished && !told).then_some(state);
        let announced = || notices_of(context, &actions, begins, ends, &progress);
        let notices = (!silent).then(announced).flatten();
        after.signals.add_if(notices.is_some(), Signal::Notices);
        let mut ready = Vec::with_capacity(actions.ready.len());
        let mut queued = Vec::new();
        for (ordinal, at) in actions.ready.into_iter().enumerate() {
            if let Some(target) = target_at_once(&self.node, &context.revision, at) {
                after.filled.add(&target);
                queued.push(self.waiters.queues.row(at, queued.len(), target, None));
                continue;
            }
            let mut row = ReadyRow::new(at, last + 1 + ordinal as i64, context.revision.need_of(at))
                .within(context.revision.claim_within(at));
            row.hand(grant);
            if row.is_handed() {
                after.own_attempts.push((run, at));
            } else {
                after.signals.add(Signal::Work);
            }
            ready.push(row);
        }
        for (due, _) in &actions.timers {
            after.due = Some(after.due.map_or(*due, |earliest| earliest.min(*due)));
        }
        let error = (state == RunState::Failed)
            .then(|| progress.error().map(str::to_owned))
            .flatten();
        if finished {
            after.finished.push(run);
        }
        if let Some(end) = ends {
            let span = self.traces.run_span(context, end, error.as_deref(), self.now());
            after.spans.extend(span);
        }
        after.moved.push(run);
        after.signals.add_if(context.revision.pooled, Signal::Pools);
        if finished && context.facts.trigger == Trigger::Backfill {
            after.backfilled.extend(context.facts.source);
        }
        let gated = context
            .revision
            .is_gated(context.facts.trigger, context.facts.source.is_some());
        after
            .signals
            .add_if(finished && (gated || context.facts.has_parent), Signal::Inbox);
        Ok(RunWrite {
            run,
            state,
            progress: bytes_of(run, &progress)?,
            priority: context.facts.priority,
            ready,
            queued,
            timers: actions.timers,
            drop_timers: actions.drop_timers,
            interrupt: actions.interrupt,
            maps: Vec::new(),
            error,
            skipped: None,
            told,
            gated,
            timed: has_timers(context),
            notices,
        })
    }

    /// Writes decisions and notes what follows from it.
    pub(crate) async fn write(
        &self,
        completion: &mut Completion,
        writes: &[RunWrite],
        after: &mut After,
    ) -> Result<(), EngineError> {
        if writes.is_empty() {
            return Ok(());
        }
        let written = completion.write(writes).await?;
        if !written.handed {
            // The lease has expired: the attempts for this node went into the queue for all nodes.
            after.own_attempts.clear();
            after.signals.add(Signal::Work);
        }
        after.signals.add_if(written.parents_notified, Signal::Inbox);
        after.signals.add_if(written.followed, Signal::Links);
        if self.traces.are_wanted() {
            for stopped in &written.interrupted {
                let context = self.contexts.get(&stopped.run);
                let span = context.and_then(|context| self.traces.interrupted_span(&context, stopped));
                after.spans.extend(span);
            }
        }
        after.interrupted.extend(written.interrupted);
        Ok(())
    }

    /// Does what has to be done after a commit.
    pub(crate) fn acted(self: &Arc<Self>, after: After) {
        use std::sync::atomic::Ordering::Relaxed;
        self.counts.ended.fetch_add(after.finished.len() as u64, Relaxed);
        for why in &after.skipped {
            self.counts.skipped[*why as usize - 1].fetch_add(1, Relaxed);
        }
        // Both count the same attempts: neither what only expanded a mapped task, nor what a queue or a sub-run holds now.
        self.counts.attempts_ended.fetch_add(after.lasted.len() as u64, Relaxed);
        for lasted in &after.lasted {
            self.counts.attempt_seconds.observe(lasted.as_secs_f64());
        }
        let lease = self.lease();
        let mut elsewhere = false;
        for stopped in &after.interrupted {
            if stopped.lease == lease {
                self.held.cancel(stopped.run, stopped.at);
            } else {
                elsewhere = true;
            }
        }
        if !after.interrupted.is_empty() {
            // Sub-runs of stopped attempts must be cancelled too: the reaper finds them.
            self.node.signals.raise(Signal::Orphans);
            self.node.signals.raise(Signal::Inbox);
        }
        if elsewhere {
            self.node.outbox.tell(News::Stopped);
        }
        let now = self.now();
        for run in &after.finished {
            if let Some(context) = self.contexts.remove(run) {
                let lasted = (now - context.facts.created_at).to_std().unwrap_or_default();
                self.counts.run_seconds.observe(lasted.as_secs_f64());
            }
        }
        self.waiters.moved(&after.moved, &after.finished);
        self.take(after.own_attempts);
        self.waiters.wake_claimers(&after.filled);
        if let Some(due) = after.due
            && self.pending.note_due(due)
        {
            self.node.signals.raise(Signal::Inbox);
        }
        self.node.signals.raise_backfills(after.backfilled);
        if after.signals.has(Signal::Work) {
            self.node.outbox.tell(News::Work);
        }
        self.node.signals.raise_all(after.signals);
        self.traces.report(after.spans);
    }

    /// Applies the effects of a script that succeeded. A lost compare-and-set turns its success into a failure.
    async fn commit_effects(
        &self,
        completion: &mut Completion,
        context: &RunContext,
        at: AttemptKey,
        done: &mut Done,
        after: &mut After,
    ) -> Result<(), EngineError> {
        if done.effects.is_empty() || !matches!(done.result, Ending::Succeeded(_)) {
            return Ok(());
        }
        let (mut runs, mut contexts): (Vec<NewRun>, Vec<Arc<RunContext>>) = Default::default();
        let mut writes = Vec::new();
        for effect in std::mem::take(&mut done.effects) {
            match effect {
                ScriptEffect::StateSet { key, value } => writes.push(Effect::Set { key, value }),
                ScriptEffect::StateCompareAndSet { key, expected, value } => {
                    writes.push(Effect::CompareAndSet { key, expected, value });
                }
                ScriptEffect::StateDelete { key } => writes.push(Effect::Delete { key }),
                ScriptEffect::Notify { channel, subject, body } => {
                    after.signals.add(Signal::Notices);
                    writes.push(Effect::Notify { channel, subject, body });
                }
                ScriptEffect::Enqueue { group, params, key } => {
                    let params = match enqueued(&group, &params) {
                        Ok(params) => params,
                        Err(detail) => {
                            done.result = Ending::fatal(ErrorKind::Fatal, detail);
                            return Ok(());
                        }
                    };
                    let spec = heddle_domain::spec::SubmissionSpec {
                        params,
                        key,
                        ..Default::default()
                    };
                    let submission = Submission {
                        group: group.clone(),
                        spec,
                        trigger: Trigger::Task,
                        urgency: Urgency::Usual,
                        source: Some(context.facts.id.0),
                        by: None,
                        parent: None,
                    };
                    match self.layout(&submission).await {
                        Ok((run, context)) => {
                            runs.push(run);
                            contexts.push(context);
                        }
                        Err(SubmitError::Engine(error)) => return Err(error),
                        Err(error) => {
                            done.result = Ending::fatal(ErrorKind::Fatal, format!("enqueue of `{group}`: {error}"));
                            return Ok(());
                        }
                    }
                }
            }
        }
        if let Some(refused) = ask_groups(completion, &mut runs, &contexts).await? {
            done.result = refused;
            return Ok(());
        }
        if !completion
            .apply_effects(context.facts.id, at.key.task, context.facts.group_id, &writes)
            .await?
        {
            done.result = Ending::failed(
                ErrorKind::Failed,
                "a compare-and-set failed, because another attempt \
                changed the value",
            );
            return Ok(());
        }
        if !runs.is_empty() {
            let created = completion.create(&runs).await;
            let created = created.map_err(|error| again_if_outdated(&self.node, error))?;
            for ((run, context), created) in runs.iter().zip(contexts).zip(&created) {
                self.note_created(run, context, created, after);
            }
        }
        Ok(())
    }
}

/// The error of a transaction that creates enqueued runs. If this node has laid them out from what the database does not have,
/// the whole transaction is repeated, which lays them out again.
fn again_if_outdated(node: &Node, error: StoreError) -> EngineError {
    match node.catalog.heed(error) {
        StoreError::Outdated => EngineError::Contended,
        error => error.into(),
    }
}

/// Asks whether the groups of enqueued runs take runs now, and until the end of this transaction; if one does not, this is
/// the end of the attempt.
async fn ask_groups(
    completion: &mut Completion,
    runs: &mut [NewRun],
    contexts: &[Arc<RunContext>],
) -> Result<Option<Ending>, EngineError> {
    if runs.is_empty() {
        return Ok(None);
    }
    let refused = completion.closed(runs).await?;
    let Some((index, refused)) = refused.into_iter().min_by_key(|(index, _)| *index) else {
        runs.iter_mut().for_each(|run| run.needs = GroupNeed::NotAsked);
        return Ok(None);
    };
    let group = contexts[index].revision.group_name.clone();
    let message = match refused {
        Created::Disabled => SubmitError::Disabled(group.clone()),
        _ => SubmitError::UnknownGroup(group.clone()),
    };
    let message = format!("enqueue of `{group}`: {message}");
    Ok(Some(Ending::fatal(ErrorKind::Fatal, message)))
}

/// An outcome as an event for the decision about its run.
pub(crate) fn event_of(at: AttemptKey, end: &End) -> Event {
    let outcome = match end {
        End::Expanded { count, .. } => return Event::Expanded { at, count: *count },
        End::Dropped => Outcome::Released,
        End::Done(done) => match &done.result {
            Ending::Succeeded(output) => Outcome::Succeeded {
                output_bytes: output.len() as u64,
            },
            Ending::Skipped(_) => Outcome::Skipped,
            Ending::Lost => Outcome::Lost,
            Ending::Released | Ending::Ours { counted: false, .. } => Outcome::Released,
            Ending::Ours { counted: true, .. } => Outcome::Lost,
            Ending::Failed {
                kind,
                message,
                retry_after,
                fatal,
                ..
            } => Outcome::Failed {
                kind: *kind,
                message: message_kept(message),
                retry_after: *retry_after,
                fatal: *fatal,
            },
        },
    };
    Event::Ended { at, outcome }
}

/// An outcome as a row of the history.
pub(crate) fn attempt_row(
    ended: EndedAttempt,
    done: Done,
    started_at: Time,
    finished_at: Time,
    node: Option<uuid::Uuid>,
) -> AttemptRow {
    let (state, skipped, output, error) = match done.result {
        Ending::Succeeded(output) => (AttemptState::Succeeded, false, Some(output), None),
        Ending::Skipped(_) => (AttemptState::Succeeded, true, None, None),
        Ending::Released => (AttemptState::Cancelled, false, None, None),
        Ending::Ours { message, .. } => {
            let error = (ErrorKind::Lost, message_kept(&message), None);
            (AttemptState::Lost, false, None, Some(error))
        }
        Ending::Lost => {
            let error = (ErrorKind::Lost, "its node or worker was lost".to_owned(), None);
            (AttemptState::Lost, false, None, Some(error))
        }
        Ending::Failed {
            kind, message, trace, ..
        } => {
            let state = if kind == ErrorKind::Timeout {
                AttemptState::TimedOut
            } else {
                AttemptState::Failed
            };
            (
                state,
                false,
                None,
                Some((kind, message_kept(&message), trace.as_deref().map(trace_kept))),
            )
        }
    };
    AttemptRow {
        run: ended.run,
        at: ended.at,
        state,
        skipped,
        started_at,
        finished_at,
        node,
        worker: None,
        output,
        error,
        memory_bytes: done.memory_bytes.map(|bytes| bytes as i64),
        cpu_micros: done.cpu.map(|cpu| cpu.as_micros() as i64),
    }
}

/// An attempt that a stopping node gave back.
fn released_row(ended: EndedAttempt, started_at: Time, now: Time, node: uuid::Uuid) -> AttemptRow {
    AttemptRow {
        run: ended.run,
        at: ended.at,
        state: AttemptState::Cancelled,
        skipped: false,
        started_at,
        finished_at: now,
        node: Some(node),
        worker: None,
        output: None,
        error: Some((ErrorKind::Lost, "released, because its node stopped".to_owned(), None)),
        memory_bytes: None,
        cpu_micros: None,
    }
}

#[cfg(test)]
mod tests {
    use heddle_domain::run::TaskKey;
    use heddle_domain::{ERROR_MESSAGE_BYTES_MAX, ERROR_TRACE_BYTES_MAX};

    use super::*;

    #[test]
    fn what_is_kept_of_an_error_is_bounded_for_every_executor() {
        let long = "é\0".repeat(1_000_000);
        let ended = EndedAttempt {
            run: RunId(uuid::Uuid::nil()),
            at: AttemptKey {
                key: TaskKey::whole(0),
                attempt: 1,
            },
            lease: 1,
        };
        let failed = Ending::Failed {
            kind: ErrorKind::Fatal,
            message: long.clone(),
            trace: Some(long.clone()),
            retry_after: None,
            fatal: true,
        };
        let by_task = [failed, Ending::fatal(ErrorKind::Http, long.clone())];
        for ending in by_task.map(End::plain) {
            let Event::Ended {
                outcome: Outcome::Failed { message, .. },
                ..
            } = event_of(ended.at, &ending)
            else {
                panic!("it failed");
            };
            let End::Done(done) = ending else {
                panic!("it is done");
            };
            let now = Time::UNIX_EPOCH;
            let row = attempt_row(ended, done, now, now, None);
            let (_, kept, trace) = row.error.expect("an error");
            assert_eq!(message, kept);
            assert!(kept.starts_with("é\u{fffd}é"), "{kept}");
            // As much as fits: a character has at most four bytes.
            let fits = |text: &str, most: usize| (most - 3..=most).contains(&text.len());
            assert!(fits(&kept, ERROR_MESSAGE_BYTES_MAX), "{}", kept.len());
            assert!(trace.is_none_or(|trace| fits(&trace, ERROR_TRACE_BYTES_MAX)));
        }
    }
}
