//! Controls of runs by operators. Each is one transaction over one run: [`Runs::lock`] begins it, the control decides,
//! and [`Runs::finish_control`] writes and commits. Controls of task runs (`task_control.rs`) use the same two functions.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use heddle_domain::id::RunId;
use heddle_domain::run::{Control, Event, Refused, TaskKey};
use heddle_domain::spec::SubmissionSpec;
use heddle_domain::state::{RunState, TaskState, Trigger};
use heddle_domain::{Faults, Time};
use heddle_store::StoreError;
use heddle_store::change::By;
use heddle_store::live::{Audited, Completion, Grant, LiveRun, NewOverride, RunFacts, RunWrite};
use heddle_store::run::{RunRow, RunTerms};
use heddle_store::transaction::again_after;
use serde_json::{Value, json};

use crate::node::signals::Signal;
use crate::runs::apply::After;
use crate::runs::batch_run::check_again;
use crate::runs::starts::complete;
use crate::runs::submit::Layout;
use crate::runs::transition::{NoTransition, Snapshot, Transition};
use crate::{Engine, EngineError, RunContext, Runs, SubmitError, UseCase};

/// Why a control did nothing.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// There is no such run or task run.
    #[error("the {0} does not exist")]
    NotFound(&'static str),
    /// The state of the run or task run does not allow it.
    #[error("{0}")]
    Refused(String),
    /// The run would be a second unfinished one with the same deduplicated params: this is the first.
    #[error("run {0} has the same params and has not ended (`dedupe`)")]
    Exists(RunId),
    /// The request is invalid.
    #[error("{0}")]
    Invalid(Faults),
    /// An error that the caller did not cause.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// A control of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BulkAction {
    /// Ends the run, and cancels its attempts.
    Cancel,
    /// As `Cancel`, but Heddle itself cancels the run, for this reason.
    CancelFor(String),
    /// The run starts nothing new.
    Pause,
    /// All that was paused continues.
    Resume,
    /// Continues where it failed; `true`: with the scripts that are active now.
    Restart(bool),
    /// Sets the state of an ended run, for this reason.
    Override(RunState, String),
}

/// A run that is locked for a control, and the transaction that locks it.
pub(super) struct ControlledRun {
    pub(super) completion: Completion,
    pub(super) run: RunId,
    pub(super) live: LiveRun,
    pub(super) context: Arc<RunContext>,
}

/// What a control does to the run that it has locked.
pub(super) struct Decided<'a> {
    pub(super) event: Event,
    /// The error of the run, instead of the error of its tasks.
    pub(super) why: Option<String>,
    /// `None`: the audit gets no entry.
    pub(super) noted: Option<Noted<'a>>,
    /// The state of a task run that the operator sets.
    pub(super) set: Option<&'a NewOverride<'a>>,
}

/// The audit entry of a control.
pub(super) struct Noted<'a> {
    pub(super) actor: &'a str,
    pub(super) action: &'static str,
    /// If it is about a task run: its state before and after.
    pub(super) task: Option<(Value, Value)>,
    pub(super) reason: Option<&'a str>,
}

/// The state of a run, for the audit.
pub(crate) fn shown(state: RunState, task: Option<&Value>) -> Value {
    let mut shown = json!({"state": state});
    if let Some(task) = task {
        shown["task"] = task.clone();
    }
    shown
}

impl Noted<'_> {
    async fn write(
        &self,
        completion: &mut Completion,
        run: RunId,
        at: Time,
        before: RunState,
        after: RunState,
    ) -> Result<(), StoreError> {
        let by = By { actor: self.actor, at };
        let was = shown(before, self.task.as_ref().map(|task| &task.0));
        let mut is = shown(after, self.task.as_ref().map(|task| &task.1));
        if let Some(reason) = self.reason {
            is["reason"] = json!(reason);
        }
        completion.audit(by, self.action, run, &was, &is).await
    }
}

impl BulkAction {
    /// The kind of control, for the check whether the state of the run allows it.
    fn control(&self) -> Control {
        match self {
            Self::Cancel | Self::CancelFor(_) => Control::Cancel,
            Self::Pause => Control::Pause,
            Self::Resume => Control::Resume,
            Self::Restart(_) => Control::Restart,
            Self::Override(..) => Control::Override,
        }
    }

    /// The refusal, if a run in this state does not allow it, or if it sets a state that cannot be set.
    pub(crate) fn check(&self, state: RunState) -> Result<(), Refused> {
        self.control().check(state)?;
        match self {
            Self::Override(to, _) => Control::check_override_to(*to),
            _ => Ok(()),
        }
    }

    /// The event of a control that withdraws the unclaimed task runs of a run. Only such a control is applied to many live
    /// runs in one transaction.
    pub(crate) fn withdrawing(&self) -> Option<fn(Vec<TaskKey>) -> Event> {
        match self {
            Self::Cancel | Self::CancelFor(_) => Some(|withdrawn| Event::Cancel { withdrawn }),
            Self::Pause => Some(|withdrawn| Event::Pause { withdrawn }),
            Self::Resume | Self::Restart(_) | Self::Override(..) => None,
        }
    }

    /// The action's name in the audit; `None` for what Heddle does by itself.
    pub(crate) fn word(&self) -> Option<&'static str> {
        match self {
            Self::Cancel => Some("cancel"),
            Self::CancelFor(_) => None,
            Self::Pause => Some("pause"),
            Self::Resume => Some("resume"),
            Self::Restart(_) => Some("restart"),
            Self::Override(..) => Some("override"),
        }
    }

    /// The reason with which the run ends.
    pub(crate) fn why(&self) -> Option<String> {
        match self {
            Self::CancelFor(why) => Some(why.clone()),
            _ => None,
        }
    }
}

/// The override of a run as a whole, in the form of one of a task run.
fn override_of_run<'a>(state: RunState, reason: &'a str, actor: &'a str) -> NewOverride<'a> {
    NewOverride {
        // This number means the run itself.
        key: TaskKey::whole(u16::MAX),
        state: match state {
            RunState::Succeeded => TaskState::Succeeded,
            RunState::Failed => TaskState::Failed,
            _ => TaskState::Cancelled,
        },
        output: None,
        reason,
        actor,
    }
}

impl From<StoreError> for ControlError {
    fn from(error: StoreError) -> Self {
        Self::Engine(EngineError::Store(error))
    }
}

/// A refused event is an error of the caller: an operator may ask for a control that is not possible.
impl From<NoTransition> for ControlError {
    fn from(none: NoTransition) -> Self {
        match none {
            NoTransition::Refused(refused) => refused.into(),
            NoTransition::Engine(error) => error.into(),
        }
    }
}

impl Engine {
    /// Controls a run; returns after the commit.
    pub fn control<'a>(
        &'a self,
        run: RunId,
        action: &'a BulkAction,
        actor: &'a str,
    ) -> UseCase<'a, Result<(), ControlError>> {
        Box::pin(self.runs.control(run, action, actor))
    }

    /// Whether runs of a group can be repeated: they carry no batches of messages, and the group has not been deleted,
    /// and is enabled unless `force` is given.
    pub async fn check_rerun(&self, group_id: i64, name: &str, force: bool) -> Result<(), SubmitError> {
        check_again(name).map_err(SubmitError::Refused)?;
        self.runs.open_group(name, Some(group_id), force).await.map(drop)
    }

    /// Creates a run like an ended or live one; the audit entry is in the same commit. `force`: also while its group is
    /// disabled.
    pub async fn rerun(
        &self,
        row: &RunRow,
        active_scripts: bool,
        force: bool,
        actor: &str,
    ) -> Result<RunId, SubmitError> {
        self.check_rerun(row.group_id, &row.group_name, force).await?;
        let revision = self.runs.node.catalog.revision(row.revision_id).await?;
        let resolution = match row.resolution_id {
            Some(id) if !active_scripts => self.runs.node.catalog.resolution(id, &revision).await?,
            _ => self.runs.node.catalog.resolve(&revision).await?,
        };
        let terms = RunTerms {
            trigger: Trigger::Rerun,
            key: None,
            source: Some(row.id),
            created_by: Some(actor.to_owned()),
            ..row.terms.clone()
        };
        let layout = Layout::of_terms(terms);
        let now = self.runs.now();
        let (mut run, context) = self.runs.lay_out(&revision, &resolution, layout, now);
        let id = run.id;
        run.audited = Some(Audited {
            action: "rerun",
            after: json!({"rerun_of": row.id}),
        });
        self.runs
            .requests
            .submissions
            .ask(crate::runs::submit::Request { run, context })
            .await?;
        Ok(id)
    }

    /// Whether a submission would be accepted; creates no run.
    pub async fn check(&self, group: &str, spec: SubmissionSpec) -> Result<(), SubmitError> {
        self.runs
            .layout(crate::Submission::manual(group, spec, None))
            .await
            .map(drop)
    }
}

impl Runs {
    /// The same as [`Engine::control`], without the handle.
    pub(crate) async fn control(
        self: &Arc<Self>,
        run: RunId,
        action: &BulkAction,
        actor: &str,
    ) -> Result<(), ControlError> {
        self.retried(|| self.control_once(run, action, actor)).await
    }

    /// Tries a control again after conflicts with other transactions, as the store does with its own ones. Each try locks
    /// the run and decides anew.
    pub(super) async fn retried<F, Fut>(&self, once: F) -> Result<(), ControlError>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<(), ControlError>>,
    {
        let mut tried = 1;
        loop {
            let pause = match once().await {
                Err(ControlError::Engine(EngineError::Store(error))) => match again_after(&error, tried) {
                    Some(pause) => pause,
                    None => return Err(error.into()),
                },
                other => return other,
            };
            tokio::time::sleep(pause).await;
            tried += 1;
        }
    }

    /// Opens a transaction of this name and locks a run in it, for a control. A run that was submitted in SQL is completed,
    /// if no node has done that yet (`starts.rs`). `reopen`: a run that has ended becomes live again.
    pub(super) async fn lock(
        &self,
        transaction: &'static str,
        run: RunId,
        reopen: bool,
    ) -> Result<ControlledRun, ControlError> {
        let mut completion = self.node.completion(transaction).await?;
        let mut live = completion
            .lock_one(run, reopen)
            .await?
            .ok_or(ControlError::NotFound("run"))?;
        let mut contexts = self.contexts_of(&[run]).await?;
        if let Entry::Vacant(missing) = contexts.entry(run) {
            missing.insert(self.context_of_ended(run, &live).await?);
        }
        let at_gate = complete(&mut completion, &mut contexts, |_| live.state).await?;
        live.waits |= at_gate.contains(&run);
        let context = self.known(&contexts, run).await?;
        Ok(ControlledRun {
            completion,
            run,
            live,
            context,
        })
    }

    /// The context of a run that had ended, and is live again only within the caller's transaction. Other connections
    /// still see it as ended, so its facts are read from there.
    async fn context_of_ended(&self, run: RunId, live: &LiveRun) -> Result<Arc<RunContext>, EngineError> {
        let row = self
            .node
            .store
            .run(run)
            .await?
            .ok_or_else(|| EngineError::unreadable(format!("run {run} does not exist any more")))?;
        let revision = self.node.catalog.revision(live.revision_id).await?;
        let resolution = match row.resolution_id {
            Some(id) => self.node.catalog.resolution(id, &revision).await?,
            None => self.node.catalog.resolve(&revision).await?,
        };
        Ok(Arc::new(RunContext {
            facts: RunFacts::of_row(&row),
            revision,
            resolution,
            maps: Default::default(),
        }))
    }

    async fn control_once(self: &Arc<Self>, run: RunId, action: &BulkAction, actor: &str) -> Result<(), ControlError> {
        let reopen = matches!(action, BulkAction::Restart(_) | BulkAction::Override(..));
        let mut locked = self.lock("control", run, reopen).await?;
        action.check(locked.live.state)?;
        if action.control().is_again() {
            check_again(&locked.context.revision.group_name).map_err(ControlError::Refused)?;
        }
        match action {
            BulkAction::Restart(true) => {
                let resolution = self.node.catalog.resolve(&locked.context.revision).await?;
                locked.completion.set_resolution(run, resolution.id).await?;
                self.contexts.remove(&run);
            }
            BulkAction::Override(state, reason) => {
                return self.override_run(locked, *state, reason, actor).await;
            }
            _ => {}
        }
        let event = match action.withdrawing() {
            Some(event) => event(locked.completion.withdraw_of(run).await?),
            None if reopen => Event::Restart,
            None => Event::Resume {
                waits: locked.live.waits,
            },
        };
        let noted = action.word().map(|action| Noted {
            actor,
            action,
            task: None,
            reason: None,
        });
        let decided = Decided {
            event,
            why: action.why(),
            noted,
            set: None,
        };
        self.finish_control(locked, decided).await
    }

    /// Writes what a control has decided, commits it, and does what follows from it.
    pub(super) async fn finish_control(
        self: &Arc<Self>,
        locked: ControlledRun,
        decided: Decided<'_>,
    ) -> Result<(), ControlError> {
        let ControlledRun {
            mut completion,
            run,
            live,
            context,
        } = locked;
        let Decided { event, why, noted, set } = decided;
        // The run's own revision says whether it has to wait, as when it was created: runs whose revision has a bound
        // wake the gate when they end.
        let awaits_turn = live.state.is_final() && context.revision.is_bounded(context.facts.trigger);
        let wait = awaits_turn.then_some(Event::AwaitTurn);
        let events: Vec<Event> = wait.into_iter().chain([event]).collect();
        let now = completion.now();
        let snapshot = Snapshot::of_live(run, &live)?;
        let failure = snapshot.progress.error().map(str::to_owned);
        let transition = self
            .transition(&context, snapshot, &events, &mut completion, now)
            .await?;
        let state = transition.state();
        let has_same_error = transition.progress().error() == failure.as_deref();
        if live.state.is_final()
            && !state.is_final()
            && let Some(hash) = &live.dedupe
            && let Some(other) = completion.take_params_again(run, live.group_id, hash).await?
        {
            return Err(ControlError::Exists(other));
        }
        if live.state.is_final() {
            completion.goes_on(run).await?;
        }
        if let Some(noted) = noted {
            noted.write(&mut completion, run, now, live.state, state).await?;
        }
        let mut after = After::default();
        let mut write = self.write_of(&context, transition, &mut self.grant(), &mut after)?;
        write.error = why.or(write.error);
        if write.told {
            // The run remains as it ended. Its tasks alone do not say why it ended so, so the stored reasons are kept.
            write.skipped = live.skipped;
            if has_same_error {
                write.error.clone_from(&live.error);
            }
        }
        self.write(&mut completion, std::slice::from_ref(&write), &mut after)
            .await?;
        if let Some(set) = set {
            // Dated after the end of the attempt that it stops: an override that is older than an end has no effect any
            // more.
            let at = completion.now();
            completion.insert_override(run, set, at).await?;
        }
        if awaits_turn && state == RunState::Waiting {
            completion.wait_for_turn(run, live.group_id).await?;
            after.signals.add(Signal::Inbox);
        }
        if live.state == RunState::Paused && state == RunState::Waiting {
            completion.wait_again(run, live.group_id).await?;
            after.signals.add(Signal::Inbox);
            after.signals.add(Signal::Links);
        }
        if live.state.is_final() {
            completion
                .notify(
                    crate::node::news::CHANNEL,
                    &crate::node::news::encode(&[crate::node::news::News::Reopened(run)]),
                )
                .await?;
        }
        completion.commit().await?;
        // A restart may change the scripts: the facts are read again, here and on other nodes that worked on the run.
        self.contexts.remove(&run);
        self.acted(after);
        Ok(())
    }

    /// Sets the state of a run. A live run is cancelled first. An ended run ends again, in the given state; if that is
    /// another state, people and programs are notified as after any end.
    async fn override_run(
        self: &Arc<Self>,
        locked: ControlledRun,
        state: RunState,
        reason: &str,
        actor: &str,
    ) -> Result<(), ControlError> {
        let ControlledRun {
            mut completion,
            run,
            live,
            context,
        } = locked;
        let noted = Noted {
            actor,
            action: "override",
            task: None,
            reason: Some(reason),
        };
        let error = (state == RunState::Failed).then(|| format!("set to failed by {actor}: {reason}"));
        let snapshot = Snapshot::of_live(run, &live)?;
        let transition = if live.state.is_final() {
            // The run has no active attempts: it ends again, without any work.
            completion.goes_on(run).await?;
            Transition::set_by_hand(snapshot, state)
        } else {
            let withdrawn = completion.withdraw_of(run).await?;
            let event = Event::Cancel { withdrawn };
            let now = completion.now();
            self.transition(&context, snapshot, &[event], &mut completion, now)
                .await?
                .then_set_by_hand(state)
        };
        let mut after = After::default();
        let write = self.write_of(&context, transition, &mut Grant::none(), &mut after)?;
        let (error, skipped) = match write.told {
            // The run remains as it ended, with its error and its reason for being skipped.
            true => (live.error.clone(), live.skipped),
            false => (error, None),
        };
        let write = RunWrite {
            error,
            skipped,
            ..write
        };
        self.write(&mut completion, &[write], &mut after).await?;
        // Dated after the ends that it causes: an override that is older than an end has no effect any more.
        let now = completion.now();
        completion
            .insert_override(run, &override_of_run(state, reason, actor), now)
            .await?;
        noted.write(&mut completion, run, now, live.state, state).await?;
        completion.commit().await?;
        self.contexts.remove(&run);
        self.acted(after);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_override_is_refused_for_a_state_that_no_operator_sets() {
        let set = |to: RunState| BulkAction::Override(to, "why".to_owned()).check(RunState::Failed);
        assert_eq!(set(RunState::Succeeded), Ok(()));
        for to in [RunState::Running, RunState::Cancelled] {
            assert_eq!(set(to), Err(Refused::Target(to)));
        }
        assert_eq!(BulkAction::Pause.check(RunState::Running), Ok(()));
    }
}
