//! A run as its pages need it: what the API answers, and what it does not. Of one that has ended both are kept: whoever
//! looks at one of its pages soon looks at another.

use std::sync::Arc;

use heddle_api::{Run, TaskWait, TaskWaitReason};
use heddle_domain::id::RunId;
use heddle_engine::Ended;
use heddle_store::run::RunDetail;
use tokio::sync::OnceCell;
use uuid::Uuid;

use crate::{Ctx, Trouble};

/// A run with its task runs.
pub(in crate::pages) async fn read(ctx: &Ctx, id: Uuid) -> Result<Run, Trouble> {
    ctx.get(&format!("/v1/runs/{id}")).await
}

/// Runs that have ended, as their pages have them.
pub(crate) type EndedRuns = Ended<Whole>;

/// So many task runs of them are kept, with their attempts.
pub(in crate::pages) const TASK_RUNS_KEPT: usize = 10_000;

/// A run, and what some of its pages need beside what the API says.
pub(crate) struct Whole {
    pub(in crate::pages) run: Run,
    detail: OnceCell<RunDetail>,
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
            detail: OnceCell::new(),
        });
        if let Some(mark) = mark {
            let weight = whole.run.task_runs().len();
            ctx.ui.ended.keep(RunId(id), mark, weight, whole.clone());
        }
        Ok(whole)
    }

    /// Its attempts, among others.
    pub(in crate::pages) async fn detail(&self, ctx: &Ctx) -> Result<&RunDetail, Trouble> {
        let read = async || {
            let detail = ctx.store().run_detail(RunId(self.run.id)).await?;
            detail.ok_or_else(Trouble::not_found)
        };
        self.detail.get_or_try_init(read).await
    }
}

/// What a ready task run waits for: the key of the words for it, and the pools or the queue.
pub(in crate::pages) fn waits(wait: &TaskWait) -> (&'static str, String) {
    let key = match wait.reason {
        TaskWaitReason::Pool => "waits-pool",
        TaskWaitReason::RateLimit => "waits-rate-limit",
        TaskWaitReason::QueuePaused => "waits-queue-paused",
        TaskWaitReason::Worker => "waits-worker",
    };
    let pools = wait.pools.as_deref().unwrap_or_default();
    (key, wait.queue.clone().unwrap_or_else(|| pools.join(", ")))
}
