//! The loops that make runs move. Each is a `tick` that can be called with a time, and a thin loop around it.
//!
//! | loop | file | what wakes it | what it does |
//! |---|---|---|---|
//! | submitter | `submit.rs` | a submission | creates runs, many in one transaction |
//! | recorder | `recorder.rs` | an outcome | records outcomes, many in one transaction |
//! | claimer | `claimer.rs` | work, room | claims what is ready |
//! | inbox | `inbox.rs` | a timer, a notification, a poll | retries, deadlines, sub-runs, SQL submissions, gates |
//! | scheduler | `scheduler.rs` | a schedule that is due | makes the runs that schedules call for |
//! | schedule look-ahead | `scheduler.rs` | every 250 ms | reads what the scheduler will need to know a second later |
//! | links | `upstream.rs` | a success, a change | lets runs begin, or makes them, that follow other groups |
//! | reaper | `inbox.rs` | every second | takes over what dead nodes held |
//! | backfiller | `backfill.rs` | the end of a backfill's run, every 500 ms | makes a backfill's next runs |
//! | admitter | `pools.rs` | a move of a run that uses pools, every 500 ms | gives free slots to those that wait |
//! | notifier | `notify/mod.rs` | a notice, a notification that is due, every second | tells people |
//! | keeper | `node.rs` | every two seconds | the node's lease; fences the node when it is lost |
//! | follower | `wake.rs` | notifications, every second | changes made on other nodes |
//! | settlers | `queue/settle.rs` | a worker's outcome | ends claims of queues, hands on what was prepared for them |
//! | claim reaper | `queue/reaper.rs` | every second, a lease that runs out | takes back what workers did not finish |
//! | queue look-out | `queue/mod.rs` | every 500 ms | wakes polls whose wake-up was lost |
//! | dispatcher | `dispatch/batch.rs` | polls, completions | looks, takes and ends of many users in one statement |
//! | dispatch reaper | `dispatch/reaper.rs` | every 200 ms | holds that last too long, offers of tasks |
//! | drain | `messages/mod.rs` | something due, every 200 ms | starts lanes that send scheduled messages |
//! | days | `messages/tend.rs` | every two seconds | partitions, drained days and retention of messages |
//! | pruner | `pruner.rs` | every 20 s; a round in 10 minutes | removes what was kept for long enough; makes partitions |
//! | log writer | `logs.rs` | every 200 ms, an attempt with a long log | lines of attempts that are under way, or that wrote many |
//!
//! `docs/data-plane.md` tells the whole story; `heddle_store::live` has the order of locks.

mod apply;
mod aside;
mod backfill;
mod bulk;
mod catalog;
mod claimer;
mod clock;
mod control;
mod created;
mod dispatch;
mod given_up;
mod group_commit;
mod hands;
mod host;
mod http_task;
mod inbox;
mod log_buffer;
mod logs;
mod messages;
mod node;
mod notify;
mod overlap;
mod patience;
mod pools;
mod prepare;
mod pruner;
pub mod put_group;
mod query_task;
mod queue;
mod recorder;
mod redact;
mod retry_after;
mod room;
mod scheduler;
mod signals;
mod sole;
mod submit;
pub mod trace;
mod transition;
mod upstream;
mod wake;
mod work;

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use heddle_domain::Chain;
use heddle_domain::fault::Faults;
use heddle_domain::id::{RunId, uuid_v7};
use heddle_domain::run::{FormatError, Refused};
use heddle_domain::template::Templates;
use heddle_domain::{Chance, Clock, Time};
use heddle_sandbox::{OutboundPolicy, Sandbox};
use heddle_store::live::RunFacts;
use heddle_store::secret::SecretKeys;
use heddle_store::{Store, StoreError};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

pub use backfill::Started;
pub use catalog::{Catalog, Group, Resolution, Revision, ScriptFacts, split_version};
pub use clock::{NodeClock, SystemChance};
pub use control::{BulkAction, Clear, ControlError, not_cleared};
pub use dispatch::{DispatchConfig, DispatchError, Dispatcher, Next};
pub use heddle_sandbox;
pub use messages::{INGEST_IDS_MAX, IngestError, IngestReport, Ingestion, MessageCounters, topic_group_name};
pub use notify::{NotificationCount, NotifyConfig, RunObject};
pub use pruner::Pruned;
pub use queue::{Beat, CLAIM_BYTES_MAX, ClaimEnd, ClaimRefused, ClaimRequest, QueueClaim};
pub use submit::{Submission, SubmitError, Submitted};
pub use wake::RunWatch;

use catalog::Cache;
use group_commit::GroupCommit;
use hands::Hands;

/// What can go wrong in the engine that is not the caller's fault.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The database.
    #[error(transparent)]
    Store(StoreError),
    /// What stands in the database cannot be used.
    #[error("unreadable: {0}")]
    Unreadable(String),
    /// A run's progress is of no form that is known here.
    #[error("the progress of run {run} cannot be read or written")]
    Progress {
        /// Of which run.
        run: RunId,
        /// Why.
        #[source]
        error: FormatError,
    },
    /// The database cannot be reached.
    #[error("the database is not available")]
    Unavailable,
    /// The database takes no writes at the moment.
    #[error("the database is read-only")]
    ReadOnly,
    /// The node stops.
    #[error("this node is shutting down")]
    Stopping,
    /// Another transaction holds what is wanted.
    #[error("another change is in the way")]
    Contended,
    /// There is more waiting than this node takes.
    #[error("this node is overloaded")]
    Overloaded,
}

impl EngineError {
    /// The same, for somebody else who suffers it.
    pub(crate) fn again(&self) -> Self {
        match self {
            Self::Store(StoreError::Conflict(_)) | Self::Contended => Self::Contended,
            Self::Store(StoreError::Unavailable(_)) | Self::Unavailable => Self::Unavailable,
            Self::Store(StoreError::ReadOnly(_)) | Self::ReadOnly => Self::ReadOnly,
            Self::Stopping => Self::Stopping,
            Self::Overloaded => Self::Overloaded,
            Self::Store(_) | Self::Unreadable(_) => Self::Unreadable(self.to_string()),
            Self::Progress { run, error } => Self::Progress {
                run: *run,
                error: error.clone(),
            },
        }
    }
}

/// How a node is set up.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Who it is; the same after a restart, so that it takes its former self's work over at once.
    pub node: Uuid,
    /// For people.
    pub name: String,
    /// Where it listens.
    pub address: String,
    /// Of the program.
    pub version: String,
    /// For how long a lease holds without a heartbeat.
    pub lease_for: Duration,
    /// How many attempts it may have in hand.
    pub slots: usize,
    /// How many threads run guests.
    pub threads: usize,
    /// Where the node keeps files.
    pub data_dir: PathBuf,
    /// How long attempts in hand may take to end when the node is told to stop.
    pub drain_for: Duration,
    /// How offers are given out.
    pub dispatch: DispatchConfig,
    /// How people are told.
    pub notify: NotifyConfig,
}

/// How long giving back attempts and the lease may take at the end of a drain.
const HAND_BACK_MAX: Duration = Duration::from_secs(4);

/// How long the node's loops may take to end after that.
const LOOPS_END_MAX: Duration = Duration::from_secs(1);

/// A node's engine. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

/// A run as this node works on it.
#[derive(Debug)]
pub(crate) struct RunContext {
    pub(crate) facts: RunFacts,
    pub(crate) revision: Arc<Revision>,
    pub(crate) resolution: Arc<Resolution>,
    /// Arrays of mapped tasks, parsed, with the highest attempt that they were read for.
    pub(crate) maps: Mutex<HashMap<u16, (u32, Items)>>,
}

/// The items of a mapped task.
type Items = Arc<Vec<Box<serde_json::value::RawValue>>>;

pub(crate) struct Inner {
    pub(crate) config: EngineConfig,
    pub(crate) store: Store,
    pub(crate) sandbox: Sandbox,
    pub(crate) keys: Arc<SecretKeys>,
    pub(crate) clock: Arc<NodeClock>,
    pub(crate) chance: Arc<dyn Chance>,
    pub(crate) templates: Templates,
    /// Who prepares attempts that may take long to prepare.
    pub(crate) turns: tokio::sync::Semaphore,
    pub(crate) catalog: Catalog,
    pub(crate) hands: Hands,
    pub(crate) dispatch: dispatch::Dispatch,
    pub(crate) messages: messages::Messages,
    pub(crate) contexts: Cache<RunId, Arc<RunContext>>,
    pub(crate) outbound: reqwest::Client,
    pub(crate) policy: OutboundPolicy,
    pub(crate) lease: AtomicI64,
    /// The turn that was claimed last: where new rows stand in the queue.
    pub(crate) turn: AtomicI64,
    /// The last claim came back full: there is more where it came from.
    pub(crate) backlog: AtomicBool,
    /// Other nodes are alive: they have to be woken.
    pub(crate) others: AtomicBool,
    pub(crate) fenced: AtomicBool,
    /// How often it has been.
    pub(crate) fences: AtomicU64,
    pub(crate) draining: AtomicBool,
    pub(crate) position: AtomicI64,
    pub(crate) signals: signals::Signals,
    /// Those of which a run has ended since the backfiller looked last.
    pub(crate) backfills_moved: Mutex<BTreeSet<uuid::Uuid>>,
    pub(crate) notifier: notify::Notifier,
    /// Who hears of what has ended; nobody unless configured.
    pub(crate) tracer: std::sync::OnceLock<Arc<dyn trace::Tracer>>,
    pub(crate) sources: Cache<Uuid, Arc<backfill::Source>>,
    pub(crate) next_due: Mutex<Option<Time>>,
    /// See [`work::reports_max`].
    pub(crate) outcomes: GroupCommit<recorder::Outcomes>,
    /// Attempts that have ended, but whose log has to be written before their outcome.
    pub(crate) log_writer: mpsc::Sender<work::Report>,
    pub(crate) submissions: GroupCommit<submit::Submissions>,
    pub(crate) wakes: wake::Wakes,
    pub(crate) queues: queue::Queues,
    pub(crate) ready: AtomicBool,
    pub(crate) on_change: Mutex<Vec<ChangeListener>>,
    /// Who may control many runs at once.
    pub(crate) bulk: Arc<tokio::sync::Semaphore>,
    pub(crate) stop: CancellationToken,
    pub(crate) tracker: TaskTracker,
    pub(crate) given_up: given_up::GivenUp,
    pub(crate) aside: aside::Aside,
    pub(crate) runs_ended: AtomicU64,
    /// Of these, runs that were never begun, by [`Skip`] from 1.
    pub(crate) runs_skipped: [AtomicU64; 2],
    pub(crate) attempts_ended: AtomicU64,
}

impl Inner {
    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    pub(crate) fn lease(&self) -> i64 {
        self.lease.load(Ordering::Acquire)
    }

    pub(crate) fn new_run_id(&self, now: Time) -> RunId {
        RunId(uuid_v7(now, self.chance.bits()))
    }
}

/// Hears of changes.
type ChangeListener = Box<dyn Fn(&str, &str) + Send + Sync>;

/// What a node counts, for metrics.
#[derive(Clone, Copy, Debug)]
pub struct Counters {
    /// Runs that this node has ended.
    pub runs_ended: u64,
    /// Of these, runs that were never begun: for the overlap, for too many that waited.
    pub runs_skipped: [u64; 2],
    /// Attempts that this node has ended.
    pub attempts_ended: u64,
    /// Attempts in hand.
    pub in_hand: usize,
    /// Runs that this node has failed because an outcome of theirs could not be recorded.
    pub given_up: u64,
    /// Attempts whose outcome cannot be recorded and whose run cannot be ended.
    pub set_aside: usize,
    /// Runs of which rows that the engine picks up cannot be handled, by the table that they stand in.
    pub rows_set_aside: [(&'static str, usize); 3],
    /// Whether the node holds its lease.
    pub lease_held: bool,
    /// How often it has lost one.
    pub leases_lost: u64,
    /// For how long the database has left the data plane without an answer.
    pub stalled_for: Duration,
}

impl Engine {
    /// Registers the node and starts its loops.
    pub async fn start(
        config: EngineConfig,
        store: Store,
        sandbox: Sandbox,
        keys: Arc<SecretKeys>,
        clock: Arc<NodeClock>,
        chance: Arc<dyn Chance>,
    ) -> Result<Self, EngineError> {
        let policy = sandbox.outbound().clone();
        let outbound = policy
            .redirecting_client()
            .map_err(|error| EngineError::Unreadable(error.to_string()))?;
        let (outcomes, gathering_outcomes) = GroupCommit::sized(work::reports_max(config.slots));
        let (log_writer, log_writer_receiver) = mpsc::channel(work::reports_max(config.slots));
        let (submissions, gathering_submissions) = GroupCommit::new();
        let (dispatch, gathering_users) = dispatch::Dispatch::new(config.dispatch);
        let (queues, gathering_claims) = queue::Queues::new();
        let inner = Arc::new(Inner {
            catalog: Catalog::new(store.clone()),
            templates: Templates::new(),
            turns: tokio::sync::Semaphore::new(prepare::TURNS_MAX),
            hands: Hands::default(),
            dispatch,
            messages: messages::Messages::default(),
            contexts: Cache::new(work::CONTEXTS_MAX),
            lease: AtomicI64::new(0),
            turn: AtomicI64::new(0),
            backlog: AtomicBool::new(false),
            // Until the first heartbeat tells.
            others: AtomicBool::new(true),
            fenced: AtomicBool::new(false),
            fences: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            position: AtomicI64::new(0),
            signals: signals::Signals::default(),
            backfills_moved: Mutex::default(),
            notifier: notify::Notifier::new(&policy)?,
            tracer: std::sync::OnceLock::new(),
            sources: Cache::new(backfill::SOURCES_MAX),
            next_due: Mutex::new(None),
            outcomes,
            log_writer,
            submissions,
            wakes: wake::Wakes::default(),
            queues,
            ready: AtomicBool::new(false),
            on_change: Mutex::default(),
            bulk: Arc::new(tokio::sync::Semaphore::new(bulk::REQUESTS_MAX)),
            stop: CancellationToken::new(),
            tracker: TaskTracker::new(),
            given_up: given_up::GivenUp::default(),
            aside: aside::Aside::default(),
            runs_ended: AtomicU64::new(0),
            runs_skipped: Default::default(),
            attempts_ended: AtomicU64::new(0),
            config,
            store,
            sandbox,
            keys,
            outbound,
            policy,
            clock,
            chance,
        });
        inner.register().await?;
        inner.turn.store(inner.store.first_turn().await?, Ordering::Release);
        // Before anything is written: of a node that slept for long, no partition stands ready.
        pruner::make_partitions(&inner).await;
        let engine = Self { inner: inner.clone() };
        gathering_outcomes.start(recorder::Outcomes(inner.clone()));
        inner.tracker.spawn(claimer::run(inner.clone()));
        gathering_submissions.start(submit::Submissions(inner.clone()));
        inner.tracker.spawn(inbox::run(inner.clone()));
        inner.tracker.spawn(inbox::reap(inner.clone()));
        inner.tracker.spawn(scheduler::run(inner.clone()));
        inner.tracker.spawn(scheduler::look_ahead(inner.clone()));
        inner.tracker.spawn(upstream::run(inner.clone()));
        inner.tracker.spawn(backfill::run(inner.clone()));
        inner.tracker.spawn(pools::run(inner.clone()));
        inner.tracker.spawn(notify::run(inner.clone()));
        inner.tracker.spawn(notify::keep(inner.clone()));
        inner.tracker.spawn(node::keep(inner.clone()));
        inner.tracker.spawn(wake::follow(inner.clone()));
        inner.tracker.spawn(wake::send(inner.clone()));
        gathering_claims.start(&inner);
        inner.tracker.spawn(queue::reap(inner.clone()));
        inner.tracker.spawn(queue::look(inner.clone()));
        inner.tracker.spawn(logs::write(inner.clone(), log_writer_receiver));
        inner.tracker.spawn(pruner::run(inner.clone()));
        gathering_users.start(&inner);
        inner.tracker.spawn(dispatch::reap(inner.clone()));
        inner.tracker.spawn(messages::run(inner.clone()));
        inner.tracker.spawn(messages::tend(inner.clone()));
        inner.tracker.spawn(wake::warm(inner.clone()));
        Ok(engine)
    }

    /// The node's clock.
    pub fn clock(&self) -> Arc<NodeClock> {
        self.inner.clock.clone()
    }

    /// The node's randomness.
    pub fn chance(&self) -> Arc<dyn Chance> {
        self.inner.chance.clone()
    }

    /// The database.
    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    /// Where scripts run.
    pub fn sandbox(&self) -> &Sandbox {
        &self.inner.sandbox
    }

    /// The keys that secrets are sealed with.
    pub fn keys(&self) -> &Arc<SecretKeys> {
        &self.inner.keys
    }

    /// What this node knows of groups and scripts.
    pub fn catalog(&self) -> &Catalog {
        &self.inner.catalog
    }

    /// Templates, as they are rendered.
    pub fn templates(&self) -> &Templates {
        &self.inner.templates
    }

    /// The client that outbound requests are made with: it follows the outbound policy.
    pub fn outbound(&self) -> &reqwest::Client {
        &self.inner.outbound
    }

    /// Who this node is.
    pub fn node(&self) -> Uuid {
        self.inner.config.node
    }

    /// Follows what has been committed so far: after a change on this node, before its answer.
    pub async fn follow_changes(&self) -> Result<(), EngineError> {
        self.inner.follow_changes().await
    }

    /// Calls `listener` with kind and name of each change, whichever node took it.
    pub fn on_change(&self, listener: impl Fn(&str, &str) + Send + Sync + 'static) {
        self.inner.on_change.lock().push(Box::new(listener));
    }

    /// Whether the node takes requests; see [`Engine::set_ready`].
    pub fn is_ready(&self) -> bool {
        self.inner.ready.load(Ordering::Acquire) && self.is_healthy()
    }

    /// Says that everything is in that the node needs, or that it takes nothing more.
    pub fn set_ready(&self, ready: bool) {
        self.inner.ready.store(ready, Ordering::Release);
    }

    /// Loads the scripts that enabled groups use, so that no run waits for a compiler here.
    pub async fn warm(&self) {
        match self.inner.warm().await {
            Ok(0) => {}
            Ok(scripts) => tracing::info!(scripts, "scripts are loaded"),
            Err(error) => tracing::warn!(error = %Chain(&error), "scripts could not be loaded in advance"),
        }
    }

    /// How far an attempt that this node has in hand has come: a fraction and a note.
    pub fn progress_of(&self, run: RunId, key: heddle_domain::run::TaskKey) -> Option<(f64, String)> {
        self.inner.hands.get(run, key)?.progress.lock().clone()
    }

    /// Whether the node holds its lease.
    pub fn is_healthy(&self) -> bool {
        !self.inner.is_fenced()
    }

    /// By how much nodes stop before their leases end.
    pub fn lease_margin(&self) -> Duration {
        self.inner.lease_margin()
    }

    /// Whether the node has been told to stop.
    pub fn is_leaving(&self) -> bool {
        self.inner.is_leaving()
    }

    /// Counters for metrics.
    pub fn counters(&self) -> Counters {
        Counters {
            runs_ended: self.inner.runs_ended.load(Ordering::Relaxed),
            runs_skipped: [0, 1].map(|why: usize| self.inner.runs_skipped[why].load(Ordering::Relaxed)),
            attempts_ended: self.inner.attempts_ended.load(Ordering::Relaxed),
            in_hand: self.inner.hands.len(),
            given_up: self.inner.given_up.runs(),
            set_aside: self.inner.given_up.set_aside(),
            rows_set_aside: aside::Kind::ALL.map(|kind| (kind.name(), self.inner.aside.count(kind))),
            lease_held: self.is_healthy(),
            leases_lost: self.inner.fences.load(Ordering::Relaxed),
            stalled_for: self.inner.store.stalled_for(),
        }
    }

    /// Stops claiming, lets attempts in hand end within the configured time, hands back the rest, releases the lease.
    /// Takes 5 s more than that at most, whether the database answers or not: what could not be handed back is taken over
    /// when the lease has run out.
    pub async fn drain(&self) {
        let inner = &self.inner;
        inner.draining.store(true, Ordering::Release);
        inner.queues.close();
        let until = tokio::time::Instant::now() + inner.config.drain_for;
        // What a node without a lease has in hand is stopped already, and cannot be recorded.
        while inner.hands.len() + inner.messages.in_hand() > 0
            && tokio::time::Instant::now() < until
            && !inner.is_fenced()
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let left = async {
            if let Err(error) = inner.hand_back().await {
                tracing::warn!(error = %Chain(&error), "attempts could not be given back; other nodes take them over as lost");
            }
            inner.store.release_node(inner.lease()).await
        };
        match tokio::time::timeout(HAND_BACK_MAX, left).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(error = %Chain(&error), "the lease could not be given back; it runs out"),
            Err(_) => tracing::warn!(
                "the database does not answer; what is left here is taken over when the lease has run out"
            ),
        }
        inner.fenced.store(true, Ordering::Release);
        inner.hands.cancel_all();
        inner.messages.cancel_all();
        inner.stop.cancel();
        inner.tracker.close();
        let _ = tokio::time::timeout(LOOPS_END_MAX, inner.tracker.wait()).await;
    }
}

impl From<Refused> for ControlError {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused.to_string())
    }
}

impl From<Faults> for SubmitError {
    fn from(faults: Faults) -> Self {
        Self::Invalid(faults)
    }
}
