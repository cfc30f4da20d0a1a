//! The engine moves runs forward.
//!
//! [`Engine`] is the handle; it puts a node together and starts its loops. What it can do with runs and scripts is in
//! `use_cases/`. All services use the `Node`, which knows none of them (`node/mod.rs` says who may use whom). Each
//! service has its own struct, state and folder. A service is a `tick` that gets the time, and one loop drives all of
//! them (`node/service.rs`). Two things do not tick, because time does not start them: group commits
//! (`node/group_commit.rs`), which begin as soon as there is something to commit, and the drainers of messages
//! (`messages/drainer.rs`), which the drain starts, and which end when there is nothing left to send. Everything else
//! of the engine is driven by a clock that a test sets, in `simulation/`. ARCHITECTURE.md names the two loops of a
//! node that are not the engine's.
//!
//! | loop | file | what wakes it | what it does |
//! |---|---|---|---|
//! | submitter | `runs/create/submit.rs` | a submission | creates runs, many in one transaction |
//! | recorder | `runs/record/recorder.rs` | an outcome | records outcomes, many in one transaction |
//! | claimer | `runs/take/claimer.rs` | work, a free slot | claims ready task runs |
//! | inbox | `runs/inbox/mod.rs` | a timer, a notification, every 250 ms | retries, deadlines, sub-runs, SQL submissions, gates |
//! | reaper | `runs/inbox/mod.rs` | every second | takes over attempts of dead nodes |
//! | abandoner | `runs/record/given_up.rs` | an outcome that cannot be recorded, every second | ends runs that were given up |
//! | admitter | `runs/take/pools.rs` | a change of a run that uses pools, every 500 ms | gives free slots to task runs that wait |
//! | queuer | `attempts/queue_task.rs` | a prepared task run | puts prepared task runs into queues |
//! | log writer | `runs/record/logs.rs` | an attempt with a long log, every 200 ms | writes lines of running attempts, and of ended ones with many |
//! | warmer | `scripts/mod.rs` | a new script | loads scripts before a run needs them |
//! | preparer | `scripts/mod.rs` | every second, until it is done | prepares Python on an idle node |
//! | rechecker | `scripts/runtimes.rs` | once | reports which scripts use kept runtimes, and what its own would change |
//! | keeper | `node/lease.rs` | every two seconds | extends the node's lease; fences the node when it is lost |
//! | follower | `node/changes.rs` | a change, every second | forgets what was changed on other nodes |
//! | news listener | `node/changes.rs` | notifications | receives news of other nodes |
//! | news sender | `node/news.rs` | news for other nodes | sends it |
//! | scheduler | `schedules/scheduler.rs` | a due schedule | creates the runs that schedules call for |
//! | schedule releaser | `schedules/scheduler.rs` | every minute | makes schedules due that wait for a run that has ended without them |
//! | schedule look-ahead | `schedules/scheduler.rs` | every 250 ms | reads what the scheduler will need a second later |
//! | links | `schedules/links/mod.rs` | a success, a change | starts or creates runs of groups that follow others |
//! | backfiller | `schedules/backfill/mod.rs` | the end of a backfill's run, every 500 ms | creates a backfill's next runs |
//! | notifier | `notify/mod.rs` | a notice, a due notification, every second | sends notifications |
//! | stalled queues | `notify/mod.rs` | every ten seconds | finds queues from which nobody claims |
//! | settler | `queues/settle.rs` | a worker's outcome | ends claims of queues |
//! | claim reaper | `queues/reaper.rs` | every second, a lease that expires soon | takes back expired claims |
//! | queue minutes | `queues/minutes.rs` | every 15 s | writes how many task runs ended, and how many wait |
//! | queue check | `queues/mod.rs` | every 500 ms | wakes polls whose wake-up was lost |
//! | dispatcher | `dispatch/batch.rs` | polls, completions | look-ups, takes and ends of many users in one statement |
//! | dispatch reaper | `dispatch/reaper.rs` | every 200 ms | ends holds that last too long, and offers of tasks |
//! | drain | `messages/mod.rs` | something due, every 200 ms | starts drainers, which send scheduled messages |
//! | days | `messages/tend.rs` | every two seconds | maintains partitions, drained days and retention of messages |
//! | pruner | `retention/mod.rs` | every 20 s; a round per 10 minutes | removes what was kept for long enough; creates partitions |
//!
//! `docs/data-plane.md` describes the whole; `heddle_store::live` has the order of locks.

mod attempts;
mod counters;
mod dispatch;
mod ended;
mod messages;
mod node;
mod notify;
pub mod put_group;
mod queues;
mod retention;
mod retry_after;
mod runs;
mod schedules;
pub mod scripts;
#[cfg(test)]
mod simulation;
mod use_cases;

use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use heddle_domain::Chain;
use heddle_domain::backfill::BackfillSpec;
use heddle_domain::fault::Faults;
use heddle_domain::id::RunId;
use heddle_domain::retention::{Pruned, Retention};
use heddle_domain::run::{FormatError, Refused};
use heddle_domain::template::Templates;
use heddle_domain::{Chance, Time};
use heddle_sandbox::Sandbox;
use heddle_store::backfill::BackfillAction;
use heddle_store::change::Change;
use heddle_store::live::ClaimKey;
use heddle_store::secret::SecretKeys;
use heddle_store::{Store, StoreError};
use tokio::sync::mpsc;
use uuid::Uuid;

pub use counters::Counters;
pub use dispatch::{Considered, DispatchConfig, DispatchError, Dispatcher, Next, PEEKED_MAX, Peek};
pub use ended::Ended;
pub use messages::{INGEST_IDS_MAX, IngestError, IngestReport, Ingestion, MessageCounters};
pub use node::catalog::{Catalog, Group, Resolution, Revision, ScriptFacts, split_version};
pub use node::clock::{NodeClock, SystemChance};
pub use node::seldom::line_due;
pub use node::short_ways::{ShortWay, ShortWays};
pub use notify::{NotificationCount, NotifyConfig, RunObject, check_ca};
pub use queues::{Beat, CLAIM_BYTES_MAX, ClaimEnd, ClaimRefused, ClaimRequest, QueueClaim};
pub use runs::bulk::{BulkControl, Matched};
pub use runs::control::{BulkAction, ControlError};
pub use runs::create::batch_run::topic_group;
pub use runs::create::submit::{Submission, SubmitError, Submitted};
pub use runs::rerun::Rerun;
pub use runs::task_control::Clear;
pub use runs::trace;
pub use runs::waiters::watch::RunWatch;
pub use schedules::Started;
pub use scripts::runtimes::{Recheck, Retirement};

// The API reaches the sandbox only through this crate. These are not about scripts: who gets a scarce resource, and which
// addresses a node may call. The rest is in `scripts`.
pub use heddle_sandbox::{FairSlot, FairSlots, outbound};

use attempts::Attempts;
use attempts::queue_task::Enqueues;
use node::part::{Part, Parts};
use node::service::drive;
use node::signals::Signal;
use node::{Identity, Node, changes, lease, news};
use runs::take::held::Report;
use runs::{RunContext, Runs};
use scripts::Scripts;

/// Errors of the engine that the caller did not cause. A copy, for another request that fails with the same error,
/// contains as much as the original.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The database contains something that cannot be used.
    #[error("stored data cannot be read")]
    Unreadable(#[source] Arc<dyn Error + Send + Sync>),
    /// The format of a run's progress is unknown to this build.
    #[error("the progress of run {run} cannot be read or written")]
    Progress {
        run: RunId,
        #[source]
        error: FormatError,
    },
    /// The database cannot be reached.
    #[error("the database is not available")]
    Unavailable,
    #[error("this node is shutting down")]
    Stopping,
    /// Another transaction holds a lock that is needed.
    #[error("another change happened at the same time")]
    Contended,
    /// More requests wait than this node accepts.
    #[error("this node is overloaded")]
    Overloaded,
    /// No child process could check a schema or render a template.
    #[error(transparent)]
    NotComputed(#[from] heddle_domain::bounded::Stopped),
}

impl EngineError {
    /// The database contains something that cannot be used, for this reason.
    pub fn unreadable(why: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unreadable(why.into().into())
    }

    /// The same error for something that has a name: `revision 7`.
    pub(crate) fn unreadable_in(what: impl fmt::Display, why: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        #[derive(Debug, thiserror::Error)]
        #[error("{what}")]
        struct In {
            what: String,
            #[source]
            why: Box<dyn Error + Send + Sync>,
        }
        let (what, why) = (what.to_string(), why.into());
        Self::unreadable(In { what, why })
    }
}

/// How a node is set up.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The identity of the node. It stays the same after a restart, so that the node takes over its former work at
    /// once.
    pub node: Uuid,
    /// Shown to people; nothing is decided by it.
    pub name: String,
    /// The address at which it listens, for other nodes and people.
    pub address: String,
    /// The version of the program.
    pub version: String,
    /// How long a lease holds without a heartbeat.
    pub lease_for: Duration,
    /// How many attempts the node may hold at once.
    pub slots: usize,
    /// How many threads run guests.
    pub threads: usize,
    /// Where the node keeps files.
    pub data_dir: PathBuf,
    /// How long a stopping node waits for its attempts.
    pub drain_for: Duration,
    /// How offers are given out.
    pub dispatch: DispatchConfig,
    /// The settings for notifications.
    pub notify: NotifyConfig,
    /// Which short ways are used: all of them, except in tests that compare them with the general ways.
    pub short_ways: ShortWays,
    /// Whether [`Engine::warm`] will be called: until it has loaded the scripts, the node leaves task runs to other nodes
    /// that can do them. If it is never called, that would be five minutes.
    pub warms: bool,
}

/// How long the return of attempts and of the lease may take at the end of a drain.
const HAND_BACK_MAX: Duration = Duration::from_secs(4);

/// How long the node's loops may take to end after that.
const LOOPS_END_MAX: Duration = Duration::from_secs(1);

/// The future of a use case, which is compiled once, with this crate. An `async fn` would be compiled again with each
/// crate that calls it. Submissions, claims and polls are called too often for the allocation, and stay `async fn`.
pub type UseCase<'a, T> = BoxFuture<'a, T>;

/// A node's engine. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    scripts: Arc<Scripts>,
    runs: Arc<Runs>,
    services: Arc<Services>,
}

/// The parts of a node other than its scripts and runs, by subject.
struct Services {
    drain_for: Duration,
    ready: AtomicBool,
    attempts: Arc<Attempts>,
    retention: Arc<retention::Pruner>,
    notify: Arc<notify::Notifier>,
    schedules: Arc<schedules::Schedules>,
    queues: Arc<queues::Queues>,
    dispatch: Arc<dispatch::Dispatch>,
    messages: Arc<messages::Messages>,
    /// The services that the node informs.
    parts: Parts,
}

impl Services {
    /// Starts all services that tick. `long_logs` are attempts that have ended, and whose logs come before their outcomes.
    fn start_loops(&self, scripts: &Arc<Scripts>, runs: &Arc<Runs>, long_logs: mpsc::Receiver<Report>) {
        let node = &runs.node;
        let loops = &node.tracker;
        loops.spawn(drive(runs::take::claimer::Claimer::of(runs.clone())));
        loops.spawn(drive(runs::inbox::Inbox(runs.clone())));
        loops.spawn(drive(runs::inbox::Reaper::of(runs.clone())));
        loops.spawn(drive(runs::record::given_up::Abandoner(runs.clone())));
        loops.spawn(drive(schedules::Scheduler(self.schedules.clone())));
        loops.spawn(drive(schedules::ScheduleReleaser::of(&self.schedules)));
        loops.spawn(drive(schedules::LookAhead::of(&self.schedules)));
        loops.spawn(drive(schedules::Links::of(self.schedules.clone())));
        loops.spawn(drive(schedules::Backfiller::of(self.schedules.clone())));
        loops.spawn(drive(runs::take::pools::Admitter(runs.clone())));
        loops.spawn(drive(self.notify.clone()));
        loops.spawn(drive(notify::StalledQueues(self.notify.clone())));
        loops.spawn(drive(lease::Keeper::of(node.clone(), self.parts.clone())));
        loops.spawn(drive(changes::Follower::of(node.clone(), self.parts.clone())));
        loops.spawn(drive(changes::NewsListener::of(node.clone(), self.parts.clone())));
        loops.spawn(drive(news::NewsSender::of(node.clone())));
        loops.spawn(drive(queues::Reaper::of(self.queues.clone())));
        loops.spawn(drive(queues::LostWakeups(self.queues.clone())));
        loops.spawn(drive(queues::Minutes(self.queues.clone())));
        loops.spawn(drive(retention::Rounds::of(self.retention.clone())));
        loops.spawn(drive(dispatch::Reaper::of(self.dispatch.clone())));
        loops.spawn(drive(messages::Drain::of(self.messages.clone())));
        loops.spawn(drive(messages::Days::of(node.clone())));
        loops.spawn(drive(runs::record::logs::LogWriter::of(runs.clone(), long_logs)));
        loops.spawn(drive(scripts::Warmer::of(scripts.clone())));
        loops.spawn(drive(scripts::Preparer::of(scripts.clone())));
        loops.spawn(drive(scripts::runtimes::Rechecker(scripts.clone())));
    }
}

impl Engine {
    /// Registers the node and starts its loops.
    pub fn start(
        config: EngineConfig,
        store: Store,
        sandbox: Sandbox,
        keys: Arc<SecretKeys>,
        clock: Arc<NodeClock>,
        chance: Arc<dyn Chance>,
    ) -> UseCase<'static, Result<Self, EngineError>> {
        Box::pin(Self::started(config, store, sandbox, keys, clock, chance))
    }

    async fn started(
        config: EngineConfig,
        store: Store,
        sandbox: Sandbox,
        keys: Arc<SecretKeys>,
        clock: Arc<NodeClock>,
        chance: Arc<dyn Chance>,
    ) -> Result<Self, EngineError> {
        let identity = Identity {
            id: config.node,
            name: config.name,
            address: config.address,
            version: config.version,
            slots: config.slots,
            lease_for: config.lease_for,
        };
        let node = Arc::new(Node::new(identity, store, clock, chance, config.short_ways));
        if config.warms {
            node.state.begin_warming();
        }
        let offers = Arc::new(dispatch::Cache::default());
        let scripts = Arc::new(Scripts::new(node.clone(), sandbox, keys.clone()));
        let (runs, gathering_runs) = Runs::new(node.clone(), scripts.clone(), config.slots, config.threads);
        let (attempts, gathering_enqueues) = Attempts::new(node.clone(), runs.clone(), offers.clone())?;
        let notify = Arc::new(notify::Notifier::new(
            node.clone(),
            keys,
            config.notify,
            scripts.sandbox.outbound(),
        )?);
        let retention = Arc::new(retention::Pruner::new(node.clone()));
        let schedules = Arc::new(schedules::Schedules::new(node.clone(), runs.clone()));
        let (queues, gathering_claims) = queues::Queues::new(node.clone(), runs.clone());
        let (dispatch, gathering_users) = dispatch::Dispatch::new(node.clone(), runs.clone(), config.dispatch, offers);
        let messages = Arc::new(messages::Messages::new(node.clone(), runs.clone()));
        let parts = Parts::new([
            schedules.clone() as Arc<dyn Part>,
            queues.clone(),
            dispatch.clone(),
            messages.clone(),
            notify.clone(),
            runs.clone(),
            scripts.clone(),
        ]);
        node.register().await?;
        runs.queue.has_come_to(node.store.first_position().await?);
        // Before anything is written: if the node slept for long, there may be no partition for the present day.
        retention.make_partitions().await;
        let long_logs = gathering_runs.start(&runs);
        gathering_enqueues.start(Enqueues(attempts.clone()));
        gathering_claims.start(&queues);
        gathering_users.start(&dispatch);
        let services = Services {
            drain_for: config.drain_for,
            ready: AtomicBool::new(false),
            attempts,
            retention,
            notify,
            schedules,
            queues,
            dispatch,
            messages,
            parts,
        };
        services.start_loops(&scripts, &runs, long_logs);
        Ok(Self {
            scripts,
            runs,
            services: Arc::new(services),
        })
    }

    pub fn clock(&self) -> Arc<NodeClock> {
        self.runs.node.clock.clone()
    }

    pub fn chance(&self) -> Arc<dyn Chance> {
        self.runs.node.chance.source()
    }

    pub fn store(&self) -> &Store {
        &self.runs.node.store
    }

    pub fn sandbox(&self) -> &Sandbox {
        &self.scripts.sandbox
    }

    /// The keys that secrets are sealed with.
    pub fn keys(&self) -> &Arc<SecretKeys> {
        &self.scripts.keys
    }

    /// What this node knows of groups and scripts.
    pub fn catalog(&self) -> &Catalog {
        &self.runs.node.catalog
    }

    /// Templates, as they are rendered.
    pub fn templates(&self) -> &Templates {
        &self.services.attempts.templates
    }

    /// The client that outbound requests are made with: it follows the outbound policy.
    pub fn outbound(&self) -> &reqwest::Client {
        &self.services.attempts.outbound
    }

    /// The id of this node, which is the same after a restart.
    pub fn node(&self) -> Uuid {
        self.runs.node.identity.id
    }

    /// Reads the log of changes up to what is committed: called after a change on this node, before its answer. If the log
    /// cannot be read, this node forgets the meaning of all names: the next call asks the database.
    pub async fn follow_changes(&self) -> Result<(), EngineError> {
        changes::follow_own_change(&self.runs.node, &self.services.parts).await
    }

    /// When ([`Engine::elapsed`]) the last complete look at the log of changes began: all changes that were committed
    /// before that moment are known to the listeners. If the process was stopped, this is long ago.
    pub fn changes_looked(&self) -> Duration {
        self.runs.node.changes.looked()
    }

    /// The time since a fixed moment, by a clock that is never corrected and that goes on while the process is stopped.
    pub fn elapsed(&self) -> Duration {
        self.runs.node.clock.elapsed()
    }

    /// Calls `listener` with each change, whichever node made it. `None`: anything may be different, because the server may be
    /// another one, which lacks the last commits of the former one.
    pub fn on_change(&self, listener: impl Fn(Option<&Change>) + Send + Sync + 'static) {
        self.runs.node.changes.listen(listener);
    }

    /// Whether the node accepts requests; see [`Engine::set_ready`].
    pub fn is_ready(&self) -> bool {
        self.services.ready.load(Ordering::Acquire) && self.is_healthy()
    }

    /// Says that the node has all that it needs to accept requests, or that it accepts no more.
    pub fn set_ready(&self, ready: bool) {
        self.services.ready.store(ready, Ordering::Release);
    }

    /// The progress of an attempt of this node: a fraction and a note.
    pub fn progress_of(&self, run: RunId, key: heddle_domain::run::TaskKey) -> Option<(f64, String)> {
        self.runs.held.get(run, key)?.progress.lock().clone()
    }

    /// Whether the node holds its lease.
    pub fn is_healthy(&self) -> bool {
        !self.runs.node.is_fenced()
    }

    /// How long before the end of its lease a node stops its work.
    pub fn lease_margin(&self) -> Duration {
        self.runs.node.lease_margin()
    }

    /// Whether the node has been asked to stop.
    pub fn is_leaving(&self) -> bool {
        self.runs.node.is_leaving()
    }

    /// Removes what is due under the current retention, or, with `dry_run`, says what `retention` (or the current one)
    /// would remove.
    pub fn prune(&self, retention: Option<Retention>, dry_run: bool) -> UseCase<'_, Result<Pruned, EngineError>> {
        Box::pin(self.services.retention.prune(retention, dry_run))
    }

    /// Starts a backfill, or lists the runs that it would create.
    pub fn start_backfill<'a>(
        &'a self,
        name: &'a str,
        spec: BackfillSpec,
        asked: &'a serde_json::Value,
        actor: &'a str,
    ) -> UseCase<'a, Result<Started, SubmitError>> {
        Box::pin(self.services.schedules.start_backfill(name, spec, asked, actor))
    }

    /// Pauses, resumes or cancels a backfill; returns after the commit.
    pub fn change_backfill<'a>(
        &'a self,
        id: Uuid,
        action: BackfillAction,
        actor: &'a str,
    ) -> UseCase<'a, Result<(), ControlError>> {
        Box::pin(self.services.schedules.change_backfill(id, action, actor))
    }

    /// Claims task runs, and waits for the first one. An empty list is no error.
    pub async fn claim(&self, request: &ClaimRequest) -> Result<Vec<QueueClaim>, EngineError> {
        self.services.queues.claim(request).await
    }

    /// Ends claims; returns after the commits, with answers in the order of the claims.
    pub async fn end_claims(&self, ends: Vec<(ClaimKey, ClaimEnd)>) -> Vec<Result<(), ClaimRefused>> {
        self.services.queues.end_claims(ends).await
    }

    /// Extends claims, each by the given time or by the time given before, and stores what workers report. Returns when
    /// each claim expires now.
    pub async fn heartbeat(&self, beats: Vec<Beat>) -> Result<Vec<Result<Time, ClaimRefused>>, EngineError> {
        self.services.queues.heartbeat(beats).await
    }

    pub fn dispatcher(&self) -> Dispatcher {
        self.services.dispatch.dispatcher()
    }

    /// Begins to take messages of a topic.
    pub async fn ingest(&self, topic: &str) -> Result<Ingestion, IngestError> {
        self.services.messages.ingest(topic).await
    }

    pub fn message_counters(&self) -> MessageCounters {
        self.services.messages.counters()
    }

    /// Sets how runs are shown in callbacks.
    pub fn show_runs_with(&self, runs: RunObject) {
        self.services.notify.show_runs_with(runs);
    }

    /// Wakes the notifier: there is something to send.
    pub fn wake_notifier(&self) {
        self.runs.node.signals.raise(Signal::Notices);
    }

    /// The payload of a callback that is sent again: its run, as the API shows it. `None`: the run does not exist any more,
    /// or has not ended.
    pub fn callback_payload(&self, run: RunId) -> UseCase<'_, Result<Option<String>, EngineError>> {
        Box::pin(self.services.notify.payload_again(run))
    }

    /// Sends a test message through a channel, once, and waits for the result. Returns the id of the notification;
    /// `None`: there is no such channel.
    pub fn test_channel<'a>(&'a self, name: &'a str) -> UseCase<'a, Result<Option<Uuid>, EngineError>> {
        Box::pin(self.services.notify.test_channel(name))
    }

    /// Notifications that this node has tried to send.
    pub fn notification_counts(&self) -> Vec<NotificationCount> {
        self.services.notify.counts()
    }

    /// Stops claiming. Waits for current attempts, for outcomes that are not recorded yet, and for notifications, all for the
    /// configured time. Then gives back the rest, and releases the lease. It takes at most 5 s longer than that, whether the
    /// database answers or not. What could not be returned is taken over when the lease has expired.
    pub fn drain(&self) -> UseCase<'_, ()> {
        Box::pin(self.leave())
    }

    async fn leave(&self) {
        let node = &self.runs.node;
        node.state.drain();
        self.services.parts.leaves();
        let until = tokio::time::Instant::now() + self.services.drain_for;
        // If the node has no lease, its attempts are stopped already, and cannot be recorded.
        while self.services.parts.in_hand() > 0 && tokio::time::Instant::now() < until && !node.is_fenced() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let left = async {
            if let Err(error) = self.runs.hand_back().await {
                tracing::warn!(error = %Chain(&error), "cannot release the running attempts; other nodes take them \
                    over as lost");
            }
            node.store.release_node(node.identity.id, node.lease()).await
        };
        match tokio::time::timeout(HAND_BACK_MAX, left).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(error = %Chain(&error), "cannot release the lease of this node; it \
                expires by itself"),
            Err(_) => tracing::warn!(
                "the database does not answer during shutdown; other nodes take over the remaining work when the \
                lease of this node has expired"
            ),
        }
        node.state.give_up_lease();
        self.services.parts.stop_in_hand();
        node.stop.cancel();
        node.tracker.close();
        let _ = tokio::time::timeout(LOOPS_END_MAX, node.tracker.wait()).await;
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
