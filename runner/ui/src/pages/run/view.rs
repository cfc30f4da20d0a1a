//! A run as its pages need it: the answer of the API, and more. Both are kept for an ended run, because a viewer of one
//! of its pages soon looks at another.

use std::sync::Arc;

use heddle_api::{AuditEntry, List, Run, RunState};
use heddle_domain::id::RunId;
use heddle_engine::{Ended, Revision};
use heddle_store::run::{AttemptView, Outputs, RunDetail, RunRow};
use serde::Deserialize;
use tokio::sync::OnceCell;
use uuid::Uuid;

use crate::{Ctx, Trouble};

/// A run with its task runs.
pub(in crate::pages) async fn read(ctx: &Ctx, id: Uuid) -> Result<Run, Trouble> {
    ctx.get(&format!("/v1/runs/{id}")).await
}

/// Ended runs, as their pages need them.
pub(crate) type EndedRuns = Ended<Whole>;

/// How many task runs of these are kept, with their attempts.
pub(in crate::pages) const TASK_RUNS_KEPT: usize = 10_000;

/// How many of the newest actions of people on a run are read.
const DEEDS_MAX: usize = 20;
/// How many running runs that its tasks have started are read.
const SUB_RUNS_MAX: i64 = 200;

/// A run that a task of another has started.
#[derive(Clone, Debug)]
pub(in crate::pages) struct SubRun {
    pub(in crate::pages) id: Uuid,
    pub(in crate::pages) group: String,
    pub(in crate::pages) task: String,
    pub(in crate::pages) item: Option<u32>,
    /// The attempt that started it.
    pub(in crate::pages) attempt: u32,
    pub(in crate::pages) state: RunState,
}

/// A run, and data that some of its pages need in addition to the answer of the API.
pub(crate) struct Whole {
    pub(in crate::pages) run: Run,
    row: OnceCell<RunRow>,
    detail: OnceCell<RunDetail>,
    deeds: OnceCell<Vec<AuditEntry>>,
    sub_runs: OnceCell<Vec<SubRun>>,
}

impl Whole {
    pub(in crate::pages) async fn read(ctx: &Ctx, id: Uuid) -> Result<Arc<Self>, Trouble> {
        let mark = ctx.store().ended_mark(RunId(id)).await?;
        if let Some(mark) = &mark
            && let Some(kept) = ctx.ui.ended.find(RunId(id), mark)
        {
            return Ok(kept);
        }
        let whole = Arc::new(Self {
            run: read(ctx, id).await?,
            row: OnceCell::new(),
            detail: OnceCell::new(),
            deeds: OnceCell::new(),
            sub_runs: OnceCell::new(),
        });
        if let Some(mark) = mark {
            let weight = whole.run.task_runs().len();
            ctx.ui.ended.keep(RunId(id), mark, weight, whole.clone());
        }
        Ok(whole)
    }

    /// The run with its attempts, read from the database. Of their outputs, pages need the ids of sub-runs.
    pub(in crate::pages) async fn detail(&self, ctx: &Ctx) -> Result<&RunDetail, Trouble> {
        let read = async || {
            let detail = ctx.store().run_detail(RunId(self.run.id), Outputs::Short).await?;
            detail.ok_or_else(Trouble::not_found)
        };
        self.detail.get_or_try_init(read).await
    }

    /// What the API does not say of it.
    pub(in crate::pages) async fn row(&self, ctx: &Ctx) -> Result<&RunRow, Trouble> {
        let read = async || {
            let row = ctx.store().run(RunId(self.run.id)).await?;
            row.ok_or_else(Trouble::not_found)
        };
        self.row.get_or_try_init(read).await
    }

    /// What its group was when it was made.
    pub(in crate::pages) async fn revision(&self, ctx: &Ctx) -> Result<Arc<Revision>, Trouble> {
        let id = self.row(ctx).await?.revision_id;
        Ok(ctx.ui.engine.catalog().revision(id).await?)
    }

    /// The actions of people on the run, newest first; empty if the audit cannot be read.
    pub(in crate::pages) async fn deeds(&self, ctx: &Ctx) -> &[AuditEntry] {
        let read = async || {
            let target = format!("/v1/audit?kind=run&name={}&limit={DEEDS_MAX}", self.run.id);
            let found: Option<List<AuditEntry>> = ctx.get(&target).await.ok();
            found.map(|found| found.items).unwrap_or_default()
        };
        self.deeds.get_or_init(read).await
    }

    /// The runs that its tasks have started, the newest of each task last.
    pub(in crate::pages) async fn sub_runs(&self, ctx: &Ctx) -> Result<&[SubRun], Trouble> {
        let found = self.sub_runs.get_or_try_init(async || self.read_sub_runs(ctx).await);
        found.await.map(Vec::as_slice)
    }

    async fn read_sub_runs(&self, ctx: &Ctx) -> Result<Vec<SubRun>, Trouble> {
        let revision = self.revision(ctx).await?;
        let tasks = &revision.plan.tasks;
        if tasks.iter().all(|task| task.spec.group.is_none()) {
            return Ok(Vec::new());
        }
        let made = |task: usize, item: Option<u32>, attempt: u32, (id, state): (Uuid, RunState)| {
            let task = tasks.get(task)?;
            Some(SubRun {
                id,
                group: task.spec.group.as_ref()?.to_string(),
                task: task.name.to_string(),
                item,
                attempt,
                state,
            })
        };
        let attempts = &self.detail(ctx).await?.attempts;
        let mut found: Vec<SubRun> = attempts
            .iter()
            .filter_map(|one| made(one.key.task.into(), one.key.item, one.attempt, sub_run_of(one)?))
            .collect();
        if self.run.finished_at.is_none() {
            let live = ctx.store().page_sub_runs(self.run.id, SUB_RUNS_MAX).await?;
            found.extend(live.into_iter().filter_map(|one| {
                let item = u32::try_from(one.item).ok();
                made(one.task as usize, item, one.attempt as u32, (one.id, one.state))
            }));
        }
        found.sort_by_key(|one| one.attempt);
        Ok(found)
    }
}

/// The run that an attempt had started, and its final state. The engine writes both into the error of the attempt.
fn sub_run_of(attempt: &AttemptView) -> Option<(Uuid, RunState)> {
    #[derive(Deserialize)]
    struct Output {
        run: Uuid,
        state: RunState,
    }
    if let Some(output) = &attempt.output {
        let output: Output = serde_json::from_str(output).ok()?;
        return Some((output.run, output.state));
    }
    let said = attempt.error_message.as_deref()?.strip_prefix("sub-run ")?;
    let (id, rest) = said.split_once(' ')?;
    let state = rest.split([' ', ':']).next()?;
    Some((id.parse().ok()?, state.parse().ok()?))
}

/// For tests: the first attempt of the first task, which has failed.
#[cfg(test)]
pub(super) fn failed_attempt() -> AttemptView {
    AttemptView {
        key: heddle_domain::run::TaskKey::whole(0),
        attempt: 1,
        state: heddle_api::AttemptState::Failed,
        skipped: false,
        started_at: heddle_domain::Time::UNIX_EPOCH,
        finished_at: None,
        node: None,
        output: None,
        output_bytes: None,
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_attempt_tells_of_the_run_that_it_had_started() {
        let id: Uuid = "01a212fe-2a81-7000-8002-1154d649980d".parse().unwrap();
        let attempt = |output: Option<String>, error_message: Option<String>| AttemptView {
            output,
            error_message,
            ..failed_attempt()
        };
        let output = json!({"run": id, "state": "succeeded"}).to_string();
        assert_eq!(
            sub_run_of(&attempt(Some(output), None)),
            Some((id, RunState::Succeeded))
        );
        let end = |text: &str| sub_run_of(&attempt(None, Some(text.to_owned())));
        let failed = format!("sub-run {id} failed: task boom: trap");
        assert_eq!(end(&failed), Some((id, RunState::Failed)));
        assert_eq!(end(&format!("sub-run {id} cancelled")), Some((id, RunState::Cancelled)));
        let late = format!("sub-run {id} cancelled: it took longer than the task's timeout");
        assert_eq!(end(&late), Some((id, RunState::Cancelled)));
        assert_eq!(end("the sub-run took longer than the task's timeout"), None);
    }
}
