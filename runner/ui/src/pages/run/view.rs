//! A run as its pages need it: the answer of the API, and more. Both are kept for an ended run, because a viewer of one
//! of its pages soon looks at another.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use heddle_api::{AuditEntry, List, Run, RunState};
use heddle_domain::id::RunId;
use heddle_domain::plan::PlanTask;
use heddle_domain::run::TaskKey;
use heddle_engine::{Ended, Resolution, Revision};
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
/// How many runs that its tasks have started are read: live ones, and as many that failed or were cancelled.
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
        // The sub-runs of a run that was cancelled, or whose task took too long, are cancelled after its end.
        if let Some(mark) = mark
            && ctx.store().page_sub_runs(id, 1).await?.is_empty()
        {
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

    /// The script versions of its tasks; `None`: they are not chosen yet.
    pub(in crate::pages) async fn resolution(&self, ctx: &Ctx) -> Result<Option<Arc<Resolution>>, Trouble> {
        let Some(id) = self.row(ctx).await?.resolution_id else {
            return Ok(None);
        };
        let revision = self.revision(ctx).await?;
        Ok(Some(ctx.ui.engine.catalog().resolution(id, &revision).await?))
    }

    /// The actions of people on the run, newest first; empty if the audit cannot be read: it is then read again for the next
    /// page.
    pub(in crate::pages) async fn deeds(&self, ctx: &Ctx) -> &[AuditEntry] {
        let read = async || {
            let target = format!("/v1/audit?kind=run&name={}&limit={DEEDS_MAX}", self.run.id);
            let found: Result<List<AuditEntry>, Trouble> = ctx.get(&target).await;
            found.map(|found| found.items)
        };
        let found = self.deeds.get_or_try_init(read).await;
        found.map(Vec::as_slice).unwrap_or_default()
    }

    /// The runs that its tasks have started, the newest of each task last.
    pub(in crate::pages) async fn sub_runs(&self, ctx: &Ctx) -> Result<&[SubRun], Trouble> {
        let found = self.sub_runs.get_or_try_init(async || self.read_sub_runs(ctx).await);
        found.await.map(Vec::as_slice)
    }

    async fn read_sub_runs(&self, ctx: &Ctx) -> Result<Vec<SubRun>, Trouble> {
        let revision = self.revision(ctx).await?;
        let tasks = &revision.plan.tasks;
        let groups: BTreeSet<String> = tasks.iter().filter_map(group_of).collect();
        if groups.is_empty() {
            return Ok(Vec::new());
        }
        let groups = Vec::from_iter(groups);
        let attempts = &self.detail(ctx).await?.attempts;
        let succeeded = attempts.iter().filter_map(|one| {
            let (id, state) = sub_run_of(one)?;
            Some((one.key, one.attempt, id, state))
        });
        let until = self.run.finished_at.map(|at| at.0);
        let (store, id) = (ctx.store(), self.run.id);
        // In this order: of a run that ends meanwhile, the end is read last.
        let mut rows = store.page_sub_runs(id, SUB_RUNS_MAX).await?;
        rows.extend(store.page_ended_sub_runs(id, &groups, until, SUB_RUNS_MAX).await?);
        let others = rows.into_iter().map(|one| {
            let key = TaskKey::from_numbers(one.task, one.item);
            (key, one.attempt as u32, one.id, one.state)
        });
        let mut found = BTreeMap::new();
        for (key, attempt, id, state) in succeeded.chain(others) {
            let Some(task) = tasks.get(usize::from(key.task)) else {
                continue;
            };
            let Some(group) = group_of(task) else { continue };
            let sub = SubRun {
                id,
                group,
                task: task.name.to_string(),
                item: key.item,
                attempt,
                state,
            };
            found.insert(id, sub);
        }
        let mut found = Vec::from_iter(found.into_values());
        found.sort_by_key(|one| one.attempt);
        Ok(found)
    }
}

/// The group whose runs a task starts.
fn group_of(task: &PlanTask) -> Option<String> {
    task.spec.group.as_ref().map(ToString::to_string)
}

/// The run that an attempt had started, and its final state, if that succeeded: they are the attempt's output.
fn sub_run_of(attempt: &AttemptView) -> Option<(Uuid, RunState)> {
    #[derive(Deserialize)]
    struct Output {
        run: Uuid,
        state: RunState,
    }
    let output: Output = serde_json::from_str(attempt.output.as_deref()?).ok()?;
    Some((output.run, output.state))
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
        assert_eq!(sub_run_of(&attempt(Some("1".into()), None)), None);
        // Its own row tells of a run that failed, and no text.
        let failed = format!("sub-run {id} failed: task boom: trap");
        assert_eq!(sub_run_of(&attempt(None, Some(failed))), None);
    }
}
