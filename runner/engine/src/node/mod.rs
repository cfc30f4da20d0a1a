//! The node: what every service of it gets, and which knows none of them.
//!
//! # The house
//!
//! ```text
//! lib.rs   Engine, the handle: puts everything together, starts the loops
//!   │
//!   ├─▶ attempts/  schedules/  queues/  dispatch/  messages/   retention/  notify/    services: none knows another
//!   │        └──────────┴─────────┴─────────┴──────────┘            │         │
//!   │                             ▼                                 │         │
//!   ├─────────────────────────▶ runs/                               │         │
//!   │                             ▼                                 ▼         ▼
//!   └─────────────────────────▶ node/ ◀─────────────────────────────┴─────────┘
//! ```
//!
//! A service uses the node and the runs, and no other service. What one has to say to another goes one of these ways:
//!
//! * a [`signals::Signal`]: there may be something to do, go and look. Losing it costs time, nothing else;
//! * a row: what has to be known for sure is in the database, where the other finds it;
//! * [`part::Part`]: the node tells all of its services what concerns the whole of it, and each listens for its own:
//!   something was changed, here or elsewhere ([`changes`]); another node has told something ([`news`]); the lease is lost,
//!   so that what is in hand has to stop ([`lease`]); the node leaves;
//! * what runs have to know of a service's matter stands with the runs (`runs/queued.rs`, `runs/batch_run.rs`,
//!   `runs/told.rs`), or is asked through a trait of theirs, behind which the service is put at the start (`runs/mod.rs`: who
//!   carries attempts out, who gives out offers).
//!
//! A test (`runner/cli/tests/architecture.rs`) reads the imports and keeps these rules.
//!
//! # Whose is what
//!
//! | here | what |
//! |---|---|
//! | [`state`] | where the node stands: its lease, whether that is lost, whether the node is to stop, whether there are others |
//! | [`lease`] | the loop that keeps the lease |
//! | [`signals`] | wake-ups within the node |
//! | [`news`] | wake-ups between nodes |
//! | [`changes`] | the log of changes, and who hears of them |
//! | [`service`] | what a service is, and the loop that drives it |
//! | [`part`] | what a node tells its services |
//! | [`group_commit`] | what gathers during one transaction goes into the next |
//! | [`catalog`], [`templates`] | groups, revisions, scripts, as they were read last; where a task has templates |
//! | [`clock`] | time and chance |
//!
//! Of the services:
//!
//! | folder | struct | its state |
//! |---|---|---|
//! | `retention/` | `Pruner` | none: what is due is in the tables |
//! | `notify/` | `Notifier` | notifications that are being sent, by destination; counts; clients |
//! | `schedules/` | `Schedules` | where the instants of open backfills come from |
//! | `queues/` | `Queues` | which workers were noted lately; claims that end |
//! | `dispatch/` | `Dispatch` | offers by audience, users for whom there is nothing; looks, takes and ends that gather |
//! | `messages/` | `Messages` | drainers by topic, batches in hand, days that are prepared |
//! | `runs/` | `Runs` | contexts of runs, attempts in hand, submissions and outcomes that gather, polls that hang |
//! | `attempts/` | `Attempts` | what carries attempts out: turns at templates that may take long, clients, the queue of tasks for workers |

pub(crate) mod catalog;
pub(crate) mod changes;
pub(crate) mod clock;
pub(crate) mod group_commit;
pub(crate) mod lease;
pub(crate) mod news;
pub(crate) mod part;
pub(crate) mod service;
pub(crate) mod short_ways;
pub(crate) mod signals;
pub(crate) mod state;
pub(crate) mod templates;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use heddle_domain::id::{RunId, uuid_v7, uuid_v7_nth};
use heddle_domain::{Chance, Clock, Time};
use heddle_store::live::Completion;
use heddle_store::{Store, StoreError};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use catalog::Catalog;
use changes::Changes;
use clock::NodeClock;
use news::Outbox;
use short_ways::ShortWays;
use signals::Signals;
use state::State;

/// Who a node is, for the others and for people.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// The same after a restart.
    pub(crate) id: Uuid,
    /// Text that only people read.
    pub(crate) name: String,
    /// The address at which it listens, for other nodes and people.
    pub(crate) address: String,
    /// The version of the program.
    pub(crate) version: String,
    /// How many attempts it may have in hand.
    pub(crate) slots: usize,
    /// For how long its lease holds without a heartbeat.
    pub(crate) lease_for: Duration,
}

/// What every service gets.
pub(crate) struct Node {
    pub(crate) identity: Identity,
    pub(crate) store: Store,
    pub(crate) clock: Arc<NodeClock>,
    pub(crate) chance: Arc<dyn Chance>,
    /// How many ids of runs it has made, for their order; see [`Node::new_run_id`].
    runs_numbered: AtomicU32,
    /// Which short ways are taken beside the general ones.
    pub(crate) short_ways: ShortWays,
    pub(crate) state: State,
    pub(crate) catalog: Catalog,
    pub(crate) signals: Signals,
    pub(crate) outbox: Outbox,
    pub(crate) changes: Changes,
    pub(crate) stop: CancellationToken,
    pub(crate) tracker: TaskTracker,
}

impl Node {
    pub(crate) fn new(
        identity: Identity,
        store: Store,
        clock: Arc<NodeClock>,
        chance: Arc<dyn Chance>,
        short_ways: ShortWays,
    ) -> Self {
        Self {
            identity,
            catalog: Catalog::new(store.clone()),
            store,
            clock,
            chance,
            runs_numbered: AtomicU32::default(),
            short_ways,
            state: State::default(),
            signals: Signals::default(),
            outbox: Outbox::default(),
            changes: Changes::default(),
            stop: CancellationToken::new(),
            tracker: TaskTracker::new(),
        }
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Begins a transaction that records outcomes, under this node's lease and by its clock. Each caller has a name of its
    /// own for it.
    pub(crate) async fn completion(&self, name: &'static str) -> Result<Completion, StoreError> {
        self.store.completion(name, self.lease(), self.clock.clone()).await
    }

    /// A number that begins with the present.
    pub(crate) fn new_id(&self, now: Time) -> Uuid {
        uuid_v7(now, self.chance.bits())
    }

    /// The same for a run. Those of one instant are in the order in which they are asked for, and so are what nodes claim and
    /// what lists show of runs that were made together.
    pub(crate) fn new_run_id(&self, now: Time) -> RunId {
        let nth = self.runs_numbered.fetch_add(1, Ordering::Relaxed);
        RunId(uuid_v7_nth(now, nth, self.chance.bits()))
    }

    /// The lease that the node holds, or has held last.
    pub(crate) fn lease(&self) -> i64 {
        self.state.now().lease
    }

    /// Whether the lease is lost, and no new one is there yet.
    pub(crate) fn is_fenced(&self) -> bool {
        self.state.now().fenced
    }

    /// Whether the node has been told to stop.
    pub(crate) fn is_draining(&self) -> bool {
        self.state.now().draining
    }

    /// Whether other nodes are alive.
    pub(crate) fn has_others(&self) -> bool {
        self.state.now().others
    }

    /// Whether nothing new is to begin here any more.
    pub(crate) fn is_leaving(&self) -> bool {
        self.is_draining() || self.stop.is_cancelled()
    }

    /// Whether something new may begin here.
    pub(crate) fn is_active(&self) -> bool {
        self.state.now().is_active() && !self.stop.is_cancelled()
    }
}
