//! The engine's handle behind the routes: [`EngineApi`] for [`Engine`].

mod backfills;
mod claims;
mod next;
mod queues;
mod runs;
mod scripts;
mod streams;
mod views;

use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use heddle_api::{
    Backfill, BackfillRequest, BackfillStarted, BulkReport, Claim, Invocation, List, LogLine, Node, QueueTask, Run,
    RunEvent, Submission, TaskDetail,
};
use heddle_domain::Chain;
use heddle_domain::Name;
use heddle_domain::id::RunId;
use heddle_domain::retention::Retention;
use heddle_domain::state::TaskState;
use heddle_engine::heddle_sandbox::Language;
use heddle_engine::{ControlError, Engine, EngineError, Pruned, SubmitError};
use heddle_store::backfill::BackfillAction;
use heddle_store::group::GroupRow;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::engine_api::{
    Answer, ClaimSpec, ClaimWord, CompiledScript, Control, EngineApi, InvokeSpec, LogQuery, NextInstants, Refusal,
    RunFilter, TaskRef,
};

impl From<EngineError> for Refusal {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Store(error) => Self::Store(error),
            error @ (EngineError::Unreadable(_) | EngineError::Progress { .. }) => Self::Internal(error.into()),
            EngineError::Unavailable => Self::Unavailable {
                detail: "the database is not available".into(),
                retry_after_seconds: 1,
            },
            EngineError::ReadOnly => Self::Unavailable {
                detail: "the database is read-only at the moment; try again".into(),
                retry_after_seconds: 5,
            },
            EngineError::Stopping => Self::Unavailable {
                detail: "this node is shutting down".into(),
                retry_after_seconds: 1,
            },
            EngineError::Contended => Self::Unavailable {
                detail: "another change was in the way; try again".into(),
                retry_after_seconds: 1,
            },
            EngineError::NotComputed(stopped) => Self::Unavailable {
                detail: stopped.to_string(),
                retry_after_seconds: 1,
            },
            EngineError::Overloaded => Self::Overloaded {
                detail: "this node has as many submissions as it takes".into(),
                retry_after_seconds: 1,
            },
        }
    }
}

impl From<SubmitError> for Refusal {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::UnknownGroup(name) => Self::NotFound { what: "group", name },
            SubmitError::Disabled(_) | SubmitError::Refused(_) | SubmitError::Fenced => Self::Conflict {
                detail: error.to_string(),
                existing: None,
            },
            SubmitError::Invalid(faults) => Self::Invalid(faults),
            SubmitError::Exists(run) => Self::Conflict {
                detail: error.to_string(),
                existing: Some(run.to_string()),
            },
            SubmitError::Engine(error) => error.into(),
        }
    }
}

impl From<ControlError> for Refusal {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::NotFound(what) => Self::NotFound {
                what,
                name: String::new(),
            },
            ControlError::Refused(detail) => Self::Conflict { detail, existing: None },
            ControlError::Invalid(faults) => Self::Invalid(faults),
            ControlError::Engine(error) => error.into(),
        }
    }
}

/// How runs are shown to those who are called back: as the API shows them.
pub fn shown_runs(engine: &Engine) -> heddle_engine::RunObject {
    let engine = engine.clone();
    std::sync::Arc::new(
        move |id: RunId| -> BoxFuture<'static, Result<Option<String>, EngineError>> {
            let engine = engine.clone();
            Box::pin(async move {
                match runs::get(&engine, id, Duration::ZERO).await {
                    Ok(run) => serde_json::to_string(&run)
                        .map(Some)
                        .map_err(|error| EngineError::Unreadable(error.to_string())),
                    Err(Refusal::NotFound { .. }) => Ok(None),
                    Err(Refusal::Store(error)) => Err(error.into()),
                    Err(refused) => Err(EngineError::Unreadable(format!("run {id}: {refused:?}"))),
                }
            })
        },
    )
}

impl EngineApi for Engine {
    fn compile_script(&self, bytes: Bytes, language: Option<Language>, actor: String) -> Answer<'_, CompiledScript> {
        Box::pin(scripts::compile(self, bytes, language, actor))
    }

    fn consumes(&self, script: String, version: i32) -> Answer<'_, bool> {
        Box::pin(async move { scripts::consumes(self, &script, version).await })
    }

    fn fetch_script(&self, url: String, sha256: String) -> Answer<'_, Bytes> {
        Box::pin(scripts::fetch(self, url, sha256))
    }

    fn invoke(&self, spec: InvokeSpec) -> Answer<'_, Invocation> {
        Box::pin(scripts::invoke(self, spec))
    }

    fn test_channel(&self, name: String) -> Answer<'_, Uuid> {
        Box::pin(async move {
            let id = Engine::test_channel(self, &name).await?;
            id.ok_or(Refusal::NotFound { what: "channel", name })
        })
    }

    fn ring_notifier(&self) {
        Engine::ring_notifier(self);
    }

    fn next(&self, group: GroupRow, count: usize) -> Answer<'_, NextInstants> {
        Box::pin(next::next(self, group, count))
    }

    fn submit(&self, group: Name, submission: Submission, _actor: String) -> Answer<'_, Run> {
        Box::pin(runs::submit(self, group, submission))
    }

    fn submit_batch(
        &self,
        group: Name,
        submissions: Vec<Submission>,
        _actor: String,
    ) -> Answer<'_, Vec<Result<Uuid, Refusal>>> {
        Box::pin(runs::submit_batch(self, group, submissions))
    }

    fn run(&self, id: Uuid, wait: Duration) -> Answer<'_, Run> {
        Box::pin(runs::get(self, RunId(id), wait))
    }

    fn runs(&self, filter: RunFilter, cursor: Option<String>, limit: i64) -> Answer<'_, List<Run>> {
        Box::pin(runs::list(self, filter, cursor, limit))
    }

    fn queue_tasks(&self, queue: Name, cursor: Option<String>, limit: i64) -> Answer<'_, List<QueueTask>> {
        Box::pin(async move { queues::tasks(self, queue.as_str(), cursor.as_deref(), limit).await })
    }

    fn control(&self, id: Uuid, control: Control, actor: String) -> Answer<'_, Run> {
        Box::pin(runs::control(self, RunId(id), control, actor))
    }

    fn bulk(&self, filter: RunFilter, control: Control, dry_run: bool, actor: String) -> Answer<'_, BulkReport> {
        Box::pin(runs::bulk(self, filter, control, dry_run, actor))
    }

    fn cancel_group(&self, group_id: i64, actor: String) -> Answer<'_, u64> {
        Box::pin(runs::cancel_group(self, group_id, actor))
    }

    fn task(&self, task: TaskRef) -> Answer<'_, TaskDetail> {
        Box::pin(runs::task(self, task))
    }

    fn set_task_state(
        &self,
        task: TaskRef,
        state: TaskState,
        output: Option<Value>,
        reason: String,
        actor: String,
    ) -> Answer<'_, TaskDetail> {
        Box::pin(runs::set_task_state(self, task, state, output, reason, actor))
    }

    fn prune(&self, retention: Option<Retention>, dry_run: bool) -> Answer<'_, Pruned> {
        Box::pin(async move { Ok(Self::prune(self, retention, dry_run).await?) })
    }

    fn clear_task(&self, run: Uuid, clear: heddle_engine::Clear, actor: String) -> Answer<'_, TaskDetail> {
        Box::pin(runs::clear_task(self, run, clear, actor))
    }

    fn retry_task(&self, task: TaskRef, actor: String) -> Answer<'_, TaskDetail> {
        Box::pin(runs::retry_task(self, task, actor))
    }

    fn logs(&self, run: Uuid, query: LogQuery) -> Answer<'_, List<LogLine>> {
        Box::pin(streams::logs(self, RunId(run), query))
    }

    fn follow_logs(&self, run: Uuid, query: LogQuery) -> Answer<'_, BoxStream<'static, LogLine>> {
        Box::pin(streams::follow_logs(self.clone(), RunId(run), query))
    }

    fn events(&self, run: Uuid, cursor: Option<String>) -> Answer<'_, BoxStream<'static, RunEvent>> {
        Box::pin(streams::events(self.clone(), RunId(run), cursor))
    }

    fn start_backfill(
        &self,
        group: Name,
        request: BackfillRequest,
        asked: Value,
        actor: String,
    ) -> Answer<'_, BackfillStarted> {
        Box::pin(backfills::start(self, group, request, asked, actor))
    }

    fn backfill(&self, id: Uuid) -> Answer<'_, Backfill> {
        Box::pin(backfills::get(self, id))
    }

    fn backfills(&self, groups: Vec<String>, cursor: Option<Uuid>, limit: i64) -> Answer<'_, List<Backfill>> {
        Box::pin(backfills::list(self, groups, cursor, limit))
    }

    fn change_backfill(&self, id: Uuid, action: BackfillAction, actor: String) -> Answer<'_, Backfill> {
        Box::pin(backfills::change(self, id, action, actor))
    }

    fn nodes(&self) -> Answer<'_, Vec<Node>> {
        Box::pin(nodes(self))
    }

    fn claim(&self, spec: ClaimSpec) -> Answer<'_, Vec<Claim<Box<RawValue>>>> {
        Box::pin(claims::claim(self, spec))
    }

    fn on_claims(
        &self,
        words: Vec<ClaimWord>,
        queues: Vec<String>,
    ) -> Answer<'_, Vec<Result<Option<heddle_domain::Time>, Refusal>>> {
        Box::pin(claims::on_claims(self, words, queues))
    }

    fn stats(&self) -> Answer<'_, Value> {
        Box::pin(stats(self))
    }

    fn dispatcher(&self) -> Option<heddle_engine::Dispatcher> {
        Some(Self::dispatcher(self))
    }

    fn messenger(&self) -> Option<Engine> {
        Some(self.clone())
    }

    fn follow(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Err(error) = self.follow_changes().await {
                tracing::warn!(error = %Chain(&error), "cannot follow a change at once");
            }
        })
    }

    fn leaving(&self) -> bool {
        self.is_leaving()
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            if !self.is_ready() && self.is_healthy() {
                return Err("this node is still starting, or is stopping".into());
            }
            if !self.is_healthy() {
                let look = tokio::time::timeout(ANSWER_MAX, self.store().takes_writes());
                return Err(match look.await {
                    Ok(Ok(false) | Err(heddle_store::StoreError::ReadOnly(_))) => {
                        "this node has lost its lease: the database is read-only".into()
                    }
                    _ => "this node has lost its lease, and asks for a new one".into(),
                });
            }
            let stalled = self.store().stalled_for();
            if stalled > STALLED_MAX {
                let seconds = stalled.as_secs();
                return Err(format!(
                    "the database has answered none of this node's work for {seconds} s"
                ));
            }
            match tokio::time::timeout(ANSWER_MAX, self.store().takes_writes()).await {
                Ok(Ok(true)) => Ok(()),
                Ok(Ok(false)) => Err("the database is read-only".into()),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err("the database does not answer".into()),
            }
        })
    }
}

/// A node is not ready when its data plane has had no answer for so long, although its heartbeat may have.
const STALLED_MAX: Duration = Duration::from_secs(5);

/// How long a look at the database may take for `/readyz`.
const ANSWER_MAX: Duration = Duration::from_secs(2);

async fn nodes(engine: &Engine) -> Result<Vec<Node>, Refusal> {
    let newest = engine.store().changes_position().await?;
    let margin = chrono::TimeDelta::from_std(engine.lease_margin()).unwrap_or_default();
    let rows = engine.store().nodes(margin).await?;
    let (own, fenced) = (engine.node(), !engine.is_healthy() && !engine.is_leaving());
    let nodes = rows.into_iter().map(|row| Node {
        id: row.id.to_string(),
        name: row.name,
        address: Some(row.address),
        state: match (row.state, row.alive) {
            (2, _) => "stopped",
            (_, false) => "lost",
            (0 | 1, true) if row.fenced || fenced && row.id == own => "fenced",
            (1, true) => "draining",
            (_, true) => "active",
        }
        .to_owned(),
        version: row.version,
        started_at: row.started_at.into(),
        heartbeat_at: row.heartbeat_at.into(),
        position: row.position,
        position_newest: newest,
        slots: row.slots,
        running: row.in_hand,
    });
    Ok(nodes.collect())
}

async fn stats(engine: &Engine) -> Result<Value, Refusal> {
    let mut runs = serde_json::Map::new();
    for (state, count) in engine.store().live_counts().await? {
        if let Some(state) = heddle_domain::state::RunState::from_number(state) {
            runs.insert(state.as_str().to_owned(), json!(count));
        }
    }
    let depths = engine.store().depths().await?;
    let (waiting, notices) = engine.store().waiting_to_be_told().await?;
    let waiting: serde_json::Map<String, Value> =
        waiting.into_iter().map(|(kind, count)| (kind, json!(count))).collect();
    let counters = engine.counters();
    Ok(json!({
        "runs": runs,
        "ready": depths.ready,
        "queued": depths.queued,
        "claimed": depths.claimed,
        "running": depths.running,
        "retrying": depths.timers,
        "notifications": {"waiting": waiting, "notices": notices},
        "node": {
            "id": engine.node(),
            "in_hand": counters.in_hand,
            "runs_ended": counters.runs_ended,
            "attempts_ended": counters.attempts_ended,
        },
    }))
}

/// What is gone is not found; everything else of the store is the store's.
pub(crate) fn not_found(what: &'static str, name: impl ToString) -> Refusal {
    Refusal::NotFound {
        what,
        name: name.to_string(),
    }
}
