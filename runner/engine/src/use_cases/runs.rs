//! Runs: submissions, controls, and waiting for their ends.

use std::sync::Arc;
use std::time::Duration;

use heddle_domain::id::RunId;
use heddle_domain::run::TaskKey;
use heddle_domain::state::TaskState;
use heddle_store::run::RunRow;

use crate::runs::bulk::{BulkControl, Matched};
use crate::runs::control::{BulkAction, ControlError};
use crate::runs::create::submit::{Submission, SubmitError, Submitted};
use crate::runs::rerun::Rerun;
use crate::runs::trace::Tracer;
use crate::runs::waiters::watch::RunWatch;
use crate::{Engine, EngineError, UseCase};

impl Engine {
    /// Creates a run; returns it as of the commit.
    pub async fn submit(&self, submission: Submission) -> Result<Submitted, SubmitError> {
        self.runs.create(submission).await
    }

    /// Creates many runs; the answers are in the order of the submissions.
    pub async fn submit_all(&self, submissions: Vec<Submission>) -> Vec<Result<RunId, SubmitError>> {
        self.runs.create_all(submissions).await
    }

    /// Creates a run like an ended or live one; the audit entry is in the same commit.
    pub async fn rerun(&self, row: &RunRow, rerun: &Rerun, actor: &str) -> Result<RunId, SubmitError> {
        self.runs.rerun(row, rerun, actor).await
    }

    /// Controls a run; returns after the commit.
    pub fn control<'a>(
        &'a self,
        run: RunId,
        action: &'a BulkAction,
        actor: &'a str,
    ) -> UseCase<'a, Result<(), ControlError>> {
        Box::pin(self.runs.control(run, action, actor))
    }

    /// Sets the state of a task run, with a reason.
    pub fn set_task_state<'a>(
        &'a self,
        run: RunId,
        key: TaskKey,
        state: TaskState,
        output: Option<String>,
        reason: &'a str,
        actor: &'a str,
    ) -> UseCase<'a, Result<(), ControlError>> {
        Box::pin(self.runs.set_task_state(run, key, state, output, reason, actor))
    }

    /// Retries a failed or retrying task run at once.
    pub fn retry_task<'a>(&'a self, run: RunId, key: TaskKey, actor: &'a str) -> UseCase<'a, Result<(), ControlError>> {
        Box::pin(self.runs.retry_task(run, key, actor))
    }

    /// Controls many runs; returns one answer per run, in their order, after its commit. `Err` says what stopped it:
    /// what was done until then stays done. A run that cannot be read or written stops nothing: the error is its answer.
    pub fn bulk<'a>(
        &'a self,
        runs: &'a [RunId],
        control: &'a BulkControl,
        actor: &'a str,
    ) -> UseCase<'a, Result<Vec<Result<(), ControlError>>, EngineError>> {
        Box::pin(self.runs.bulk(runs, control, actor))
    }

    /// What the same control would answer, as far as that is known before; changes nothing.
    pub fn bulk_dry_run<'a>(
        &'a self,
        runs: &'a [Matched],
        control: &'a BulkControl,
    ) -> UseCase<'a, Result<Vec<Result<(), ControlError>>, EngineError>> {
        Box::pin(self.runs.bulk_dry_run(runs, control))
    }

    /// Removes a run that has ended, with all its data.
    pub fn delete_run<'a>(&'a self, run: RunId, actor: &'a str) -> UseCase<'a, Result<(), ControlError>> {
        Box::pin(self.runs.delete_alone(run, actor))
    }

    /// Finishes work on many objects even if its caller goes away; only a stopping node ends it sooner. A few of these may be
    /// at work at once on a node; others wait.
    pub async fn to_the_end<T, F>(&self, actor: &str, work: F) -> Result<T, EngineError>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        self.runs.to_the_end(actor, work).await
    }

    /// Begins to listen for a run's changes: call it before reading the run, so that none is missed.
    pub fn watch(&self, run: RunId) -> RunWatch {
        self.runs.waiters.watch(run)
    }

    /// Waits until a run has ended, for at most `at_most`; `None`: there is no such run.
    pub async fn wait(&self, run: RunId, at_most: Duration) -> Result<Option<bool>, EngineError> {
        self.runs.waiters.wait(run, at_most).await
    }

    /// Sets the tracer; called once, when the node is put together.
    pub fn trace_with(&self, tracer: Arc<dyn Tracer>) {
        self.runs.traces.set_tracer(tracer);
    }
}
