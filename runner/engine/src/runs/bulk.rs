//! One control of many runs: in batches, a few at once, with one answer per run.
//!
//! | control | a batch is |
//! |---|---|
//! | what changes runs ([`BulkAction`]) | one transaction: runs locked, planned, decided about and written together (`controlled.rs`) |
//! | delete | one transaction |
//! | rerun | submissions, which share transactions with all others that are on their way (`rerun.rs`) |
//! | a dry run | a few statements that only read |
//!
//! A run that refuses the control gets its answer, and does not affect the others of its batch. If ended runs may go on,
//! their groups are held first (`Completion::hold_groups`). Then live runs are locked, then ended ones, each in the order of
//! their ids. Only a run that moves between the two tables at that moment is not among them: it would be locked out of
//! order. It is controlled alone, as one control of one run.
//!
//! A batch that fails as a whole is repeated run by run, so that an error of one run does not affect the others. If such a
//! run cannot be read, or the database refuses its values, the error is its answer (`controlled::is_of_the_run`): each
//! repetition would meet it again, and would never come to the runs behind it. Any other error ends the whole control, because
//! it would meet the other runs too. So do two kinds of errors of a batch. If the database was lost, the batch may have been
//! committed, and a second override, restart or clear of the same runs would not be what the caller asked for. And reruns are
//! never repeated here: those of the batch that were created would be created twice, or, if they have keys, would seem to be
//! refused. The caller repeats reruns with a key.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures::{StreamExt, stream};
use heddle_domain::Chain;
use heddle_domain::id::RunId;
use heddle_domain::run::{Control, TaskKey};
use heddle_domain::state::RunState;
use heddle_store::StoreError;
use heddle_store::change::By;
use heddle_store::live::{Completion, LiveRun};
use heddle_store::run::{RunFilter, StateOfRun};

use crate::node::catalog::Revision;
use crate::node::group_commit::Met;
use crate::runs::change::transition::progress_of;
use crate::runs::control::BulkAction;
use crate::runs::controlled::{Answers, ControlError, ControlledRun, group_deleted, is_of_the_run};
use crate::runs::create::batch_run::check_again;
use crate::runs::rerun::Rerun;
use crate::{EngineError, Runs};

/// How many runs one transaction controls.
const BATCH_MAX: usize = 100;

/// How many of these transactions one request has open at once: the rest of the node needs connections too.
const AT_ONCE: usize = 4;

/// How often one run is deleted again that ends and goes on meanwhile.
const DELETES_MAX: usize = 3;

/// What is done to many runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BulkControl {
    /// Each of them is changed.
    Change(BulkAction),
    /// For each, another run like it is created.
    Rerun(Rerun),
    /// Each is removed with all its data, if it has ended.
    Delete,
}

impl BulkControl {
    /// The kind of control, for the check whether the state of a run allows it.
    fn control(&self) -> Control {
        match self {
            Self::Change(action) => action.control(),
            Self::Rerun(_) => Control::Rerun,
            Self::Delete => Control::Delete,
        }
    }

    /// The refusal, if a run in this state does not allow it.
    fn check(&self, state: RunState) -> Result<(), ControlError> {
        match self {
            Self::Change(action) => action.check(state),
            Self::Delete if !Control::Delete.is_allowed(state) => Err(ControlError::Refused(not_deleted(state))),
            Self::Rerun(_) | Self::Delete => Ok(()),
        }
    }

    /// Whether this error of a batch ends the whole control: its runs must not be controlled once more.
    fn is_ended_by(&self, error: &EngineError) -> bool {
        match self {
            Self::Rerun(_) => true,
            Self::Change(_) | Self::Delete => self.control().is_again() && Met::of(error) == Met::NoDatabase,
        }
    }
}

/// The result for one run of many. [`ControlError::Engine`]: the run cannot be read or written; this concerns only it.
type Controlled = Result<(), ControlError>;

/// A run that a control may concern: its state, if it can be read, and the id of its revision.
pub type Matched = StateOfRun;

fn not_deleted(state: RunState) -> String {
    format!("the run is {state}; only a run that has ended can be deleted")
}

impl Runs {
    /// Finishes work on many objects even if its caller goes away; only a stopping node ends it sooner. `REQUESTS_MAX`
    /// bounds such work, and `actor` gets at most half of the slots. The callers that wait are bounded by whoever calls:
    /// by the API's bound on requests, of one caller and of all.
    pub(crate) async fn to_the_end<T, F>(&self, actor: &str, work: F) -> Result<T, EngineError>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let slot = self.requests.bulk.take(actor, usize::MAX).await;
        let slot = slot.ok_or(EngineError::Stopping)?;
        let stop = self.node.stop.clone();
        let ended = self.node.tracker.spawn(async move {
            let _held = slot;
            stop.run_until_cancelled(work).await
        });
        match ended.await {
            Ok(Some(done)) => Ok(done),
            Ok(None) => Err(EngineError::Stopping),
            Err(error) => Err(EngineError::unreadable(format!(
                "the bulk control ended early: {error}"
            ))),
        }
    }
}

impl Runs {
    /// Controls many runs; returns one answer per run, in their order, after its commit. `Err` says what stopped it: what
    /// was done until then stays done. A run that cannot be read stops nothing: the error is its answer.
    pub(crate) async fn bulk(
        self: &Arc<Self>,
        runs: &[RunId],
        control: &BulkControl,
        actor: &str,
    ) -> Result<Vec<Controlled>, EngineError> {
        let mut done = Vec::with_capacity(runs.len());
        let batches: Vec<Vec<RunId>> = runs.chunks(BATCH_MAX).map(<[RunId]>::to_vec).collect();
        let (control, actor): (Arc<BulkControl>, Arc<str>) = (Arc::new(control.clone()), actor.into());
        let mut batches = stream::iter(batches)
            .map(|batch| self.clone().bulk_batch(batch, control.clone(), actor.clone()))
            .buffered(AT_ONCE);
        while let Some(batch) = batches.next().await {
            done.extend(batch?);
        }
        Ok(done)
    }

    async fn bulk_batch(
        self: Arc<Self>,
        runs: Vec<RunId>,
        control: Arc<BulkControl>,
        actor: Arc<str>,
    ) -> Result<Vec<Controlled>, EngineError> {
        let mut known = match self.together(&runs, &control, &actor).await {
            Ok(answers) => answers,
            Err(error) if control.is_ended_by(&error) => return Err(error),
            Err(error) => {
                tracing::debug!(error = %Chain(&error), runs = runs.len(), "a batch of a bulk control failed; its runs \
                    are controlled one by one");
                Answers::new()
            }
        };
        let mut done = Vec::with_capacity(runs.len());
        for run in runs {
            let controlled = match known.remove(&run) {
                Some(controlled) => controlled,
                None => self.alone(run, &control, &actor).await,
            };
            match controlled {
                Err(ControlError::Engine(error)) if !is_of_the_run(&error) => return Err(error),
                controlled => done.push(controlled),
            }
        }
        Ok(done)
    }

    /// The control of a batch. A run without an answer must be handled alone.
    async fn together(
        self: &Arc<Self>,
        runs: &[RunId],
        control: &BulkControl,
        actor: &str,
    ) -> Result<Answers, EngineError> {
        let mut answers = match control {
            BulkControl::Change(action) => self.change_all(runs, action, actor).await?,
            BulkControl::Rerun(rerun) => self.rerun_all(runs, rerun, actor).await?,
            BulkControl::Delete => self.delete_all(runs, actor).await?,
        };
        self.answer_others(runs, control, &mut answers).await?;
        Ok(answers)
    }

    /// The control of one run of a batch.
    async fn alone(self: &Arc<Self>, run: RunId, control: &BulkControl, actor: &str) -> Controlled {
        match control {
            BulkControl::Change(action) => self.control(run, action, actor).await,
            BulkControl::Rerun(rerun) => {
                let mut answers = self.rerun_all(&[run], rerun, actor).await?;
                answers.remove(&run).unwrap_or(Ok(()))
            }
            BulkControl::Delete => self.delete_alone(run, actor).await,
        }
    }

    /// One transaction over those of the runs that allow the action.
    async fn change_all(
        self: &Arc<Self>,
        runs: &[RunId],
        action: &BulkAction,
        actor: &str,
    ) -> Result<Answers, EngineError> {
        let mut completion = self.node.completion("control_together").await?;
        let locked = self.lock_all(&mut completion, runs, action.control()).await?;
        let mut answers = Answers::with_capacity(runs.len());
        let planned = self.plan(&mut completion, locked, action, &mut answers).await?;
        self.commit_controls(completion, &action.act(actor), planned, &mut answers)
            .await?;
        Ok(answers)
    }

    /// Locks the runs of the tables in which a control may find runs that allow it; returns them in the order of `runs`.
    async fn lock_all(
        &self,
        completion: &mut Completion,
        runs: &[RunId],
        control: Control,
    ) -> Result<Vec<ControlledRun>, EngineError> {
        let may_be = |ended: bool| {
            let mut states = RunState::ALL.iter().filter(|state| state.is_final() == ended);
            states.any(|state| control.is_allowed(*state))
        };
        let mut locked = HashMap::with_capacity(runs.len());
        // Before all runs. Other controls of many runs let no ended run go on: an override of a run as a whole only sets its
        // state.
        let groups = match control {
            Control::Restart | Control::Clear => Some(completion.hold_groups(runs).await?),
            _ => None,
        };
        if may_be(false) {
            let found = completion.lock_runs(runs).await?;
            let live: Vec<(RunId, LiveRun)> = found.into_iter().map(|(run, found)| (run, found.into())).collect();
            let live = self.with_contexts(completion, live).await?;
            locked.extend(live.into_iter().map(|one| (one.run, one)));
        }
        if may_be(true) {
            let left: Vec<RunId> = runs.iter().copied().filter(|run| !locked.contains_key(run)).collect();
            for (mut live, facts) in completion.lock_ended(&left).await? {
                let run = facts.id;
                if let Some(groups) = &groups {
                    // The group of a run that has ended since is not held: the run is controlled alone.
                    let Some(deleted) = groups.get(&facts.group_id) else {
                        continue;
                    };
                    live.group_deleted = *deleted;
                }
                let context = self.context_of_ended(facts).await?;
                locked.insert(run, ControlledRun { run, live, context });
            }
        }
        Ok(runs.iter().filter_map(|run| locked.remove(run)).collect())
    }

    /// Answers for those of the runs that the batch has not found: their state does not allow the control, or they do not
    /// exist. One whose state allows it now gets no answer.
    async fn answer_others(
        &self,
        runs: &[RunId],
        control: &BulkControl,
        answers: &mut Answers,
    ) -> Result<(), EngineError> {
        let left: HashSet<RunId> = runs.iter().copied().filter(|run| !answers.contains_key(run)).collect();
        if left.is_empty() {
            return Ok(());
        }
        let filter = RunFilter {
            ids: left.iter().map(|run| run.0).collect(),
            ..RunFilter::default()
        };
        // One statement that reads both tables misses no run that moves.
        let states = self.node.store.run_states(&filter, left.len() as i64).await?;
        let mut states: HashMap<RunId, Result<RunState, StoreError>> =
            states.into_iter().map(|(run, state, _)| (run, state)).collect();
        for run in left {
            let refused = match states.remove(&run) {
                Some(Ok(state)) => control.check(state).err(),
                Some(Err(unreadable)) => Some(unreadable.into()),
                None => Some(ControlError::NotFound("run")),
            };
            if let Some(refused) = refused {
                answers.insert(run, Err(refused));
            }
        }
        Ok(())
    }

    /// Removes those of the runs that have ended; these get answers.
    async fn delete_all(&self, runs: &[RunId], actor: &str) -> Result<Answers, EngineError> {
        let by = By { actor, at: self.now() };
        let deleted = self.node.store.delete_runs(by, runs).await?;
        Ok(deleted.into_iter().map(|run| (run, Ok(()))).collect())
    }

    /// Removes a run that has ended, with all its data.
    pub(crate) async fn delete_alone(&self, run: RunId, actor: &str) -> Controlled {
        for _ in 0..DELETES_MAX {
            let mut answers = self.delete_all(&[run], actor).await?;
            self.answer_others(&[run], &BulkControl::Delete, &mut answers).await?;
            if let Some(answer) = answers.remove(&run) {
                return answer;
            }
            // It has ended since.
        }
        Err(EngineError::Contended.into())
    }

    /// What the same control would answer, as far as that is known before; changes nothing.
    pub(crate) async fn bulk_dry_run(
        &self,
        runs: &[Matched],
        control: &BulkControl,
    ) -> Result<Vec<Controlled>, EngineError> {
        let mut tried = Vec::with_capacity(runs.len());
        for batch in runs.chunks(BATCH_MAX) {
            tried.extend(self.try_all(batch, control).await?);
        }
        Ok(tried)
    }

    /// The checks of a batch: by the states that are known, by the revisions, and by the progress of the runs of which an
    /// item is named.
    async fn try_all(&self, runs: &[Matched], control: &BulkControl) -> Result<Vec<Controlled>, EngineError> {
        let mut tried: Vec<Controlled> = runs.iter().map(|(_, state, _)| control.check(state.clone()?)).collect();
        if !control.control().is_again() {
            return Ok(tried);
        }
        let fit = runs.iter().zip(&tried).filter(|(_, tried)| tried.is_ok());
        let mut revisions: Vec<i64> = fit.map(|((.., revision), _)| *revision).collect();
        revisions.sort_unstable();
        revisions.dedup();
        let known = self.node.catalog.revisions(&revisions).await?;
        let mut found = HashMap::with_capacity(revisions.len());
        for id in revisions {
            let revision = match known.get(&id) {
                Some(revision) => Ok(revision.clone()),
                None => self.node.catalog.revision(id).await,
            };
            let tried = match revision {
                Ok(revision) => self.try_revision(&revision, control).await,
                Err(error) => Err(error.into()),
            };
            found.insert(id, tried);
        }
        let mut items: Vec<(usize, RunId, TaskKey)> = Vec::new();
        for (index, (run, _, revision)) in runs.iter().enumerate() {
            match found.get(revision) {
                Some(Ok(Some(key))) if tried[index].is_ok() => items.push((index, *run, *key)),
                Some(Err(ControlError::Engine(error))) if !is_of_the_run(error) => return Err(error.clone()),
                Some(Err(refused)) if tried[index].is_ok() => tried[index] = Err(refused.clone()),
                _ => {}
            }
        }
        let asked: Vec<RunId> = items.iter().map(|(_, run, _)| *run).collect();
        let progress = self.progress_of_ended(&asked).await?;
        for (index, run, key) in items {
            let Some(bytes) = progress.get(&run) else {
                tried[index] = Err(ControlError::NotFound("run"));
                continue;
            };
            match progress_of(run, bytes) {
                Ok(progress) if progress.state(key).is_some() => {}
                Ok(_) => tried[index] = Err(ControlError::NotFound("task run")),
                Err(unreadable) => tried[index] = Err(unreadable.into()),
            }
        }
        Ok(tried)
    }

    async fn progress_of_ended(&self, runs: &[RunId]) -> Result<HashMap<RunId, Vec<u8>>, EngineError> {
        if runs.is_empty() {
            return Ok(HashMap::new());
        }
        Ok(self.node.store.ended_progress(runs).await?.into_iter().collect())
    }

    /// Whether runs of a revision allow a control that makes them end a second time, or makes others like them. Returns
    /// the item that each of them must have, if one is named.
    async fn try_revision(&self, revision: &Revision, control: &BulkControl) -> Result<Option<TaskKey>, ControlError> {
        if let BulkControl::Rerun(rerun) = control {
            return self.try_rerun(revision, rerun).await.map(|()| None);
        }
        check_again(&revision.group_name).map_err(ControlError::Refused)?;
        if matches!(control.control(), Control::Restart | Control::Clear) {
            let group = self.node.store.group_by_id(revision.group_id).await?;
            if group.is_none_or(|group| group.deleted_at.is_some()) {
                return Err(group_deleted(&revision.group_name));
            }
        }
        let BulkControl::Change(BulkAction::Clear(clear)) = control else {
            return Ok(None);
        };
        let task = revision.plan.index(clear.task.as_str());
        let task = task.ok_or(ControlError::NotFound("task"))?;
        Ok(clear.item.map(|item| TaskKey { task, item: Some(item) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_is_refused_by_the_state_of_a_run() {
        let rerun = Rerun {
            active_scripts: false,
            force: false,
            key: None,
        };
        for state in RunState::ALL {
            let deleted = BulkControl::Delete.check(*state).map_err(|refused| refused.to_string());
            match state.is_final() {
                true => assert_eq!(deleted, Ok(())),
                false => assert_eq!(deleted, Err(not_deleted(*state))),
            }
            assert!(BulkControl::Rerun(rerun.clone()).check(*state).is_ok());
        }
        let restart = BulkControl::Change(BulkAction::Restart(false));
        assert!(restart.check(RunState::Failed).is_ok() && restart.check(RunState::Succeeded).is_err());
    }

    #[test]
    fn what_may_have_been_committed_is_repeated_only_if_that_does_no_harm() {
        let rerun = Rerun {
            active_scripts: false,
            force: false,
            key: None,
        };
        let (lost, other) = (EngineError::Unavailable, EngineError::Contended);
        for (control, of_lost, of_other) in [
            (BulkControl::Change(BulkAction::Cancel), false, false),
            (BulkControl::Change(BulkAction::Restart(true)), true, false),
            (BulkControl::Delete, false, false),
            (BulkControl::Rerun(rerun), true, true),
        ] {
            assert_eq!(control.is_ended_by(&lost), of_lost, "{control:?}");
            assert_eq!(control.is_ended_by(&other), of_other, "{control:?}");
        }
    }

    #[test]
    fn only_what_is_wrong_with_the_run_itself_is_its_answer() {
        let unreadable = StoreError::unreadable("runs_done", "state", RunId(uuid::Uuid::max()), 99);
        for of_the_run in [EngineError::unreadable("a revision"), unreadable.into()] {
            assert!(is_of_the_run(&of_the_run), "{of_the_run}");
        }
        for of_all in [
            EngineError::Unavailable,
            EngineError::Stopping,
            EngineError::Contended,
            EngineError::Overloaded,
            StoreError::Outdated.into(),
        ] {
            assert!(!is_of_the_run(&of_all), "{of_all}");
        }
    }
}
