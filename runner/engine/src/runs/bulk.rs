//! One control of many runs: in batches, a few at once, with one answer per run.
//!
//! Controls that go through `decide` and leave a run live, or end it (cancel, pause, resume), are applied to a batch of
//! runs in one transaction. Controls that move a run between tables, or resolve scripts (restart, override), are
//! applied run by run. A batch that fails as a whole is repeated run by run, so that an error of one run does not
//! affect the others. Only an error of the database itself ends the whole control.

use std::collections::HashMap;
use std::sync::Arc;

use futures::{StreamExt, stream};
use heddle_domain::Chain;
use heddle_domain::id::RunId;
use heddle_domain::run::{Event, Refused, TaskKey};
use heddle_domain::state::RunState;
use heddle_store::StoreError;
use heddle_store::live::RunWrite;
use heddle_store::run::RunFilter;

use crate::runs::change::apply::After;
use crate::runs::change::transition::Snapshot;
use crate::runs::control::{BulkAction, ControlError, shown};
use crate::runs::create::starts::complete;
use crate::{Engine, EngineError, Runs, UseCase};

/// How many runs one transaction controls.
const BATCH_MAX: usize = 100;

/// How many of these transactions one request has open at once: the rest of the node needs connections too.
const AT_ONCE: usize = 4;

/// The result for one run of many.
type Controlled = Result<(), ControlError>;

impl Engine {
    /// Controls many runs; returns one answer per run, in their order, after its commit. `Err` says what stopped it:
    /// what was done until then stays done.
    pub fn control_all<'a>(
        &'a self,
        runs: &'a [RunId],
        action: &'a BulkAction,
        actor: &'a str,
    ) -> UseCase<'a, Result<Vec<Controlled>, EngineError>> {
        Box::pin(self.runs.control_all(runs, action, actor))
    }

    /// Finishes work on many objects even if its caller goes away; only a stopping node ends it sooner. `REQUESTS_MAX`
    /// bounds such work.
    pub async fn to_the_end<T, F>(&self, work: F) -> Result<T, EngineError>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let permit = self.runs.requests.bulk.clone().acquire_owned().await;
        let permit = permit.map_err(|_| EngineError::Stopping)?;
        let stop = self.runs.node.stop.clone();
        let ended = self.runs.node.tracker.spawn(async move {
            let _permit = permit;
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
    /// The same as [`Engine::control_all`], without the handle.
    pub(crate) async fn control_all(
        self: &Arc<Self>,
        runs: &[RunId],
        action: &BulkAction,
        actor: &str,
    ) -> Result<Vec<Controlled>, EngineError> {
        let mut done = Vec::with_capacity(runs.len());
        let batches: Vec<Vec<RunId>> = runs.chunks(BATCH_MAX).map(<[RunId]>::to_vec).collect();
        let (action, actor): (Arc<BulkAction>, Arc<str>) = (Arc::new(action.clone()), actor.into());
        let mut batches = stream::iter(batches)
            .map(|batch| self.clone().control_batch(batch, action.clone(), actor.clone()))
            .buffered(AT_ONCE);
        while let Some(batch) = batches.next().await {
            done.extend(batch?);
        }
        Ok(done)
    }

    async fn control_batch(
        self: Arc<Self>,
        runs: Vec<RunId>,
        action: Arc<BulkAction>,
        actor: Arc<str>,
    ) -> Result<Vec<Controlled>, EngineError> {
        let mut known = HashMap::new();
        // A resumed run may have to wait again, which depends on the run. So runs are resumed one by one.
        if let Some(event) = action.withdrawing()
            && runs.len() > 1
        {
            match self.control_together(&runs, &action, event, &actor).await {
                Ok(done) => known = done,
                Err(error) => {
                    tracing::debug!(error = %Chain(&error), runs = runs.len(), "a batch of a bulk control failed; its \
                        runs are controlled one by one")
                }
            }
        }
        let mut done = Vec::with_capacity(runs.len());
        for run in runs {
            let controlled = match known.remove(&run) {
                Some(controlled) => controlled,
                None => self.control(run, &action, &actor).await,
            };
            match controlled {
                Err(ControlError::Engine(error)) => return Err(error),
                controlled => done.push(controlled),
            }
        }
        Ok(done)
    }

    /// One transaction over the live ones of these runs, locked in the order of their ids, as everywhere. A run without
    /// an answer must be handled alone.
    async fn control_together(
        self: &Arc<Self>,
        runs: &[RunId],
        action: &BulkAction,
        event: fn(Vec<TaskKey>) -> Event,
        actor: &str,
    ) -> Result<HashMap<RunId, Controlled>, EngineError> {
        let mut runs = runs.to_vec();
        runs.sort_unstable();
        runs.dedup();
        let mut completion = self.node.completion("control_together").await?;
        let locked = completion.lock_runs(&runs).await?;
        let live: Vec<RunId> = runs.iter().copied().filter(|run| locked.contains_key(run)).collect();
        let mut contexts = self.contexts.of(&live).await?;
        complete(&mut completion, &mut contexts, |run| locked[&run].state).await?;
        let takes = |run: &&RunId| action.check(locked[*run].state).is_ok();
        let concerned: Vec<RunId> = live.iter().filter(takes).copied().collect();
        let mut withdrawn: HashMap<RunId, Vec<TaskKey>> = HashMap::new();
        if !concerned.is_empty() {
            for (run, key) in completion.withdraw(&concerned).await? {
                withdrawn.entry(run).or_default().push(key);
            }
        }
        let now = completion.now();
        let mut done = HashMap::with_capacity(runs.len());
        let (mut after, mut grant) = (After::default(), self.grant());
        let (mut writes, mut audits) = (Vec::with_capacity(live.len()), Vec::with_capacity(live.len()));
        for run in live {
            let context = self.contexts.known(&contexts, run).await?;
            let found = &locked[&run];
            let snapshot = Snapshot::of(run, found)?;
            let before = snapshot.state;
            if let Err(refused) = action.check(before) {
                done.insert(run, Err(refused.into()));
                continue;
            }
            let event = event(withdrawn.remove(&run).unwrap_or_default());
            // The withdrawn task runs of this run must not be lost: without a transition, nothing is committed.
            let transition = self
                .transition(&context, snapshot, &[event], &mut completion, now)
                .await?;
            audits.push((run, shown(before, None), shown(transition.state(), None)));
            let write = self.write_of(&context, transition, &mut grant, &mut after)?;
            let error = action.why().or(write.error);
            writes.push(RunWrite { error, ..write });
            done.insert(run, Ok(()));
        }
        if let Some(word) = action.word() {
            let by = heddle_store::change::By { actor, at: now };
            completion.audit_all(by, word, &audits).await?;
        }
        self.write(&mut completion, &writes, &mut after).await?;
        completion.commit().await?;
        for write in &writes {
            self.contexts.remove(&write.run);
        }
        self.acted(after);
        let ended: Vec<RunId> = runs.into_iter().filter(|run| !locked.contains_key(run)).collect();
        for (run, state) in self.states_of(&ended).await? {
            if state.is_final() {
                done.insert(run, Err(Refused::RunState(state).into()));
            }
        }
        Ok(done)
    }

    async fn states_of(&self, runs: &[RunId]) -> Result<Vec<(RunId, RunState)>, StoreError> {
        if runs.is_empty() {
            return Ok(Vec::new());
        }
        let filter = RunFilter {
            ids: runs.iter().map(|run| run.0).collect(),
            ..RunFilter::default()
        };
        let found = self.node.store.run_states(&filter, runs.len() as i64).await?;
        Ok(found.into_iter().map(|(run, state, _)| (run, state)).collect())
    }
}
