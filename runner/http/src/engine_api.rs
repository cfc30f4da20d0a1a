//! What the routes need of the engine. The engine's handle implements it; tests put something small in its place.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use heddle_api::{
    Backfill, BackfillRequest, BackfillStarted, BulkReport, Claim, Invocation, List, LogLine, Node, QueueTask, Run,
    RunEvent, Scripts, Submission, TaskDetail,
};
use heddle_domain::retention::Retention;
use heddle_domain::state::{RunState, TaskState, Trigger};
use heddle_domain::{Faults, Name, Time};
use heddle_engine::Pruned;
use heddle_engine::heddle_sandbox::{Language, SourceFault};
use heddle_store::StoreError;
use heddle_store::backfill::BackfillAction;
use heddle_store::group::GroupRow;
use serde_json::Value;
use serde_json::value::RawValue;
use uuid::Uuid;

/// What the engine answers, later.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, Refusal>>;

/// Why the engine does not do what was asked of it.
#[derive(Debug)]
pub enum Refusal {
    /// 404.
    NotFound {
        /// `run`, `task`, ...
        what: &'static str,
        /// Which.
        name: String,
    },
    /// 409: it does not go with how things stand.
    Conflict {
        /// In a sentence.
        detail: String,
        /// The id of what is there already.
        existing: Option<String>,
    },
    /// 422, with a place for each.
    Invalid(Faults),
    /// 422: a script that is text has a fault.
    Source(SourceFault),
    /// 403: the outbound policy does not let it through.
    Forbidden(String),
    /// 413.
    TooLarge {
        /// What was too large: `body`, `output`.
        what: &'static str,
        /// How many bytes would have been taken.
        bytes_max: usize,
    },
    /// 429.
    Overloaded {
        /// In a sentence.
        detail: String,
        /// When to try again.
        retry_after_seconds: u64,
    },
    /// 503.
    Unavailable {
        /// In a sentence.
        detail: String,
        /// When to try again.
        retry_after_seconds: u64,
    },
    /// The database.
    Store(StoreError),
    /// 500: our fault.
    Internal(Box<dyn std::error::Error + Send + Sync + 'static>),
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// What the compiler says of uploaded bytes.
#[derive(Clone, Debug)]
pub struct CompiledScript {
    /// SHA-256 of the bytes as they were sent, lower-case hex.
    pub digest: String,
    /// `heddle:task/task`, `source/javascript`, …
    pub world: String,
    /// The interpreter that a text was checked with.
    pub runtime: Option<String>,
    /// What it takes, if it says so.
    pub params_schema: Option<Value>,
    /// An object.
    pub defaults: Value,
    /// What it says of itself.
    pub description: String,
}

/// A script to be run once, without a run.
#[derive(Clone, Debug)]
pub struct InvokeSpec {
    /// The script's name.
    pub script: String,
    /// Its version.
    pub version: i32,
    /// Its digest.
    pub digest: String,
    /// Script defaults below these.
    pub params: Value,
    /// How long it may take.
    pub timeout: Duration,
}

/// What people do to a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// Ends it and what runs in it.
    Cancel,
    /// Starts nothing new.
    Pause,
    /// Goes on.
    Resume,
    /// Goes on where it failed.
    Restart(Scripts),
    /// Makes a new run like it.
    Rerun(Scripts),
    /// Sets its state.
    Override {
        /// A final state.
        state: RunState,
        /// Why.
        reason: String,
    },
    /// Runs a task run of it again, once it has ended.
    Clear(heddle_engine::Clear),
    /// Forgets it, once it has ended.
    Delete,
}

/// Which runs are wanted; `None` and empty mean all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunFilter {
    /// Of these groups.
    pub groups: Vec<String>,
    /// In these states.
    pub states: Vec<RunState>,
    /// Made for these reasons.
    pub triggers: Vec<Trigger>,
    /// With all of these labels; a value of `None` means any.
    pub labels: BTreeMap<String, Option<String>>,
    /// With this key.
    pub key: Option<String>,
    /// Created at or after.
    pub from: Option<Time>,
    /// Created at or before.
    pub to: Option<Time>,
    /// With a logical time at or after.
    pub logical_from: Option<Time>,
    /// With a logical time at or before.
    pub logical_to: Option<Time>,
    /// Of these runs.
    pub ids: Vec<Uuid>,
    /// Whose ids lie between these, both included: those that begin alike.
    pub id_range: Option<(Uuid, Uuid)>,
    /// Of revisions with a task for one of these queues.
    pub queues: Vec<String>,
    /// Of revisions with a task for one of these scripts: `name`, or `name@version` as the run resolved it.
    pub scripts: Vec<String>,
    /// Of those that have ended, only what the retention still calls hot.
    pub hot: bool,
}

/// A task run, or an item of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskRef {
    /// Of which run.
    pub run: Uuid,
    /// Which task.
    pub task: Name,
    /// Which item.
    pub item: Option<u32>,
}

/// Which lines of a log are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// Of which task; `None`: of all.
    pub task: Option<Name>,
    /// Of which item.
    pub item: Option<u32>,
    /// Of which attempt.
    pub attempt: Option<u32>,
    /// Behind which line.
    pub cursor: Option<String>,
    /// How many at most.
    pub limit: i64,
}

/// When a group's schedules are due next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NextInstants {
    /// The next instants of all of them together, at most as many as were asked for.
    pub instants: Vec<(Time, Vec<String>)>,
    /// The next instant of each.
    pub by_schedule: BTreeMap<String, Option<Time>>,
    /// Those that have fired for the only time (`once`), and when.
    pub fired: BTreeMap<String, Time>,
}

/// What a worker asks for.
#[derive(Clone, Debug)]
pub struct ClaimSpec {
    /// From which queue.
    pub queue: Name,
    /// The worker's name.
    pub worker: String,
    /// What it carries.
    pub tags: Vec<String>,
    /// How many task runs at most.
    pub max: usize,
    /// For how long, unless extended.
    pub lease: Duration,
    /// How long to wait for the first.
    pub wait: Duration,
}

/// What a worker does with a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum ClaimAction {
    /// Extends it, by what it says or by what the claim said, with a report.
    Heartbeat {
        /// What to extend it by.
        lease: Option<Duration>,
        /// How far the worker has come, and lines for the log.
        report: heddle_store::live::ClaimReport,
    },
    /// It is done, with an output.
    Complete(Value),
    /// It failed.
    Fail {
        /// For people.
        message: String,
        /// Never tried again.
        fatal: bool,
        /// Not before.
        retry_after: Option<Duration>,
    },
    /// Somebody else shall do it.
    Release,
}

/// A claim that a worker speaks of.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimWord {
    /// Which.
    pub id: Uuid,
    /// The proof.
    pub token: String,
    /// What.
    pub action: ClaimAction,
}

/// The engine, as the routes see it. `actor` is who asks, for the audit.
pub trait EngineApi: Send + Sync + 'static {
    /// Compiles what `actor` uploads within bounds of size, time and memory; what is no script is [`Refusal::Invalid`].
    fn compile_script(&self, bytes: Bytes, language: Option<Language>, actor: String) -> Answer<'_, CompiledScript>;
    /// Whether a script takes batches of messages, which a text does that exports `handle`.
    fn consumes(&self, script: String, version: i32) -> Answer<'_, bool>;
    /// Gets a script from an address, through the outbound policy; another digest is [`Refusal::Invalid`].
    fn fetch_script(&self, url: String, sha256: String) -> Answer<'_, Bytes>;
    /// Runs a script once, without a run.
    fn invoke(&self, spec: InvokeSpec) -> Answer<'_, Invocation>;
    /// When a group's schedules are due next.
    fn next(&self, group: GroupRow, count: usize) -> Answer<'_, NextInstants>;
    /// Creates a run by hand; returns once it is committed.
    fn submit(&self, group: Name, submission: Submission, actor: String) -> Answer<'_, Run>;
    /// Creates runs by hand; one answer for each, in order.
    fn submit_batch(
        &self,
        group: Name,
        submissions: Vec<Submission>,
        actor: String,
    ) -> Answer<'_, Vec<Result<Uuid, Refusal>>>;
    /// A run with its task runs; with `wait`, once it has ended or the time is over.
    fn run(&self, id: Uuid, wait: Duration) -> Answer<'_, Run>;
    /// Runs, newest first, without their task runs.
    fn runs(&self, filter: RunFilter, cursor: Option<String>, limit: i64) -> Answer<'_, List<Run>>;
    /// What workers hold of a queue, then what waits.
    fn queue_tasks(&self, queue: Name, cursor: Option<String>, limit: i64) -> Answer<'_, List<QueueTask>>;
    /// Does something to a run; answers how it stands then (for [`Control::Rerun`] the new one).
    fn control(&self, id: Uuid, control: Control, actor: String) -> Answer<'_, Run>;
    /// Does something to all runs of a filter.
    fn bulk(&self, filter: RunFilter, control: Control, dry_run: bool, actor: String) -> Answer<'_, BulkReport>;
    /// Cancels all active runs of a group; answers how many there were.
    fn cancel_group(&self, group_id: i64, actor: String) -> Answer<'_, u64>;
    /// A task run with its attempts.
    fn task(&self, task: TaskRef) -> Answer<'_, TaskDetail>;
    /// Sets a task run's state.
    fn set_task_state(
        &self,
        task: TaskRef,
        state: TaskState,
        output: Option<Value>,
        reason: String,
        actor: String,
    ) -> Answer<'_, TaskDetail>;
    /// Removes what was kept for long enough, or, with `dry_run`, says what `retention` (or the one that stands) would.
    fn prune(&self, retention: Option<Retention>, dry_run: bool) -> Answer<'_, Pruned>;
    /// Tries a task run again, now.
    fn retry_task(&self, task: TaskRef, actor: String) -> Answer<'_, TaskDetail>;
    /// Runs a task run of an ended run again, and what depends on it.
    fn clear_task(&self, run: Uuid, clear: heddle_engine::Clear, actor: String) -> Answer<'_, TaskDetail>;
    /// A page of a log.
    fn logs(&self, run: Uuid, query: LogQuery) -> Answer<'_, List<LogLine>>;
    /// A log as it grows, until the run or the task has ended.
    fn follow_logs(&self, run: Uuid, query: LogQuery) -> Answer<'_, BoxStream<'static, LogLine>>;
    /// How a run stands and what happens to it, until it has ended; the beginning is left out if it still stands as at
    /// `cursor`.
    fn events(&self, run: Uuid, cursor: Option<String>) -> Answer<'_, BoxStream<'static, RunEvent>>;
    /// Starts a backfill, or lists what it would do; `asked` is what was sent, for the audit.
    fn start_backfill(
        &self,
        group: Name,
        request: BackfillRequest,
        asked: Value,
        actor: String,
    ) -> Answer<'_, BackfillStarted>;
    /// A backfill.
    fn backfill(&self, id: Uuid) -> Answer<'_, Backfill>;
    /// Backfills, newest first.
    fn backfills(&self, groups: Vec<String>, cursor: Option<Uuid>, limit: i64) -> Answer<'_, List<Backfill>>;
    /// Pauses, resumes or cancels a backfill; answers how it stands then.
    fn change_backfill(&self, id: Uuid, action: BackfillAction, actor: String) -> Answer<'_, Backfill>;
    /// The nodes of the cluster.
    fn nodes(&self) -> Answer<'_, Vec<Node>>;
    /// Claims task runs of a queue; none is no error.
    fn claim(&self, spec: ClaimSpec) -> Answer<'_, Vec<Claim<Box<RawValue>>>>;
    /// Does something to claims; one answer for each, in order, with the end of a lease that was extended. `queues`
    /// are those that the caller is bound to.
    fn on_claims(&self, words: Vec<ClaimWord>, queues: Vec<String>) -> Answer<'_, Vec<Result<Option<Time>, Refusal>>>;
    /// Counts for the overview: runs by state, attempts under way, depth of what is ready.
    fn stats(&self) -> Answer<'_, Value>;
    /// Sends a test message through a channel; the answer is the notification's id.
    fn test_channel(&self, name: String) -> Answer<'_, Uuid> {
        Box::pin(async move { Err(Refusal::NotFound { what: "channel", name }) })
    }
    /// There is something to be sent.
    fn ring_notifier(&self) {}
    /// What gives out offers; `None`: this engine does not.
    fn dispatcher(&self) -> Option<heddle_engine::Dispatcher> {
        None
    }
    /// What takes messages in; `None`: this engine does not.
    fn messenger(&self) -> Option<heddle_engine::Engine> {
        None
    }
    /// Follows what has been changed so far: called after each change, so that the next request on this node sees it.
    fn follow(&self) -> BoxFuture<'_, ()>;
    /// Whether this node is stopping: whoever follows something here shall go on elsewhere.
    fn leaving(&self) -> bool {
        false
    }
    /// Whether this node takes work: `Err` says what is missing.
    fn ready(&self) -> BoxFuture<'_, Result<(), String>>;
}
