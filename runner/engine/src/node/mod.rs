//! The node: all services use it, and it knows none of them.
//!
//! # The house
//!
//! ```text
//! lib.rs, use_cases/   Engine, the handle: puts everything together, starts the loops
//!   │
//!   ├─▶ attempts/  schedules/  queues/  dispatch/  messages/  notify/   retention/    services: none knows another
//!   │        └──────────┴─────────┴─────────┴──────────┴────────┘            │
//!   │                             ▼                                          │
//!   ├─────────────────────────▶ runs/                                        │
//!   │                             ▼                                          │
//!   ├─────────────────────────▶ scripts/                                     │
//!   │                             ▼                                          ▼
//!   └─────────────────────────▶ node/ ◀──────────────────────────────────────┘
//! ```
//!
//! A service uses the node, the scripts and the runs, and no other service. The runs use the scripts and the node; the
//! scripts use only the node. None of them knows the handle, through which every service can be reached: the parts of a node
//! are called by the handle's methods (`lib.rs`, `use_cases/`, `counters.rs`), never the other way round. Services
//! communicate in one of these ways:
//!
//! * a [`signals::Signal`]: there may be something to do, check. If it is lost, that costs time, nothing else;
//! * a row: what must be known for certain is in the database, where the other service finds it;
//! * [`part::Part`]: the node calls all of its services when something concerns the whole node, and each service
//!   handles what it needs: something was changed, here or elsewhere ([`changes`]); another node has sent news
//!   ([`news`]); the lease is lost, so all attempts have to stop ([`lease`]); the node stops;
//! * what runs must know of a service's subject is in the modules of the runs (`runs/waiters/queued.rs`,
//!   `runs/create/batch_run.rs`, `runs/heard.rs`), or is asked through a trait of theirs that the service implements and
//!   that is set at the start (`runs/mod.rs`: who carries out attempts, who gives out offers).
//!
//! A test (`runner/cli/tests/architecture/services.rs`) reads the imports and checks these rules.
//!
//! # Whose is what
//!
//! | module | content |
//! |---|---|
//! | [`state`] | the node's state: its lease, whether that is lost, whether the node is to stop, whether there are others and which of them can do its work |
//! | [`lease`] | the loop that keeps the lease |
//! | [`signals`] | wake-ups within the node |
//! | [`news`] | wake-ups between nodes |
//! | [`changes`] | the log of changes, and its listeners |
//! | [`service`] | what a service is, and the loop that drives it |
//! | [`part`] | what a node tells its services |
//! | [`seldom`] | lines of the log about what passes by itself |
//! | [`short_ways`] | the names of the short ways, which of them this node takes, and how often it took each |
//! | [`group_commit`] | requests that come during one transaction go into the next |
//! | [`catalog`], [`revision`], [`templates`] | cached groups, revisions, scripts; what is computed from a revision; the templates of a task |
//! | [`clock`] | time and chance |
//!
//! Of the scripts, the runs and the services:
//!
//! | folder | struct | its state |
//! |---|---|---|
//! | `retention/` | `Pruner`, driven by `Rounds` | none: the tables contain what is due. `Rounds` knows when to create partitions |
//! | `notify/` | `Notifier` | notifications that are being sent, by destination; counts; clients |
//! | `schedules/` | `Schedules` | the sources of the instants of backfills |
//! | `queues/` | `Queues` | recently noted workers; claims that end |
//! | `dispatch/` | `Dispatch` | offers by audience, users for whom there is nothing; look-ups, takes and ends that gather |
//! | `messages/` | `Messages` | drainers by topic, batches in hand, prepared days |
//! | `scripts/` | `Scripts` | the sandbox with its loaded scripts; the keys of secrets |
//! | `runs/` | `Runs` | contexts of runs, attempts in hand, submissions and outcomes that gather, waiting polls |
//! | `attempts/` | `Attempts` | permits for long preparations, clients, task runs that go into queues |

pub(crate) mod catalog;
pub(crate) mod changes;
pub(crate) mod clock;
pub(crate) mod group_commit;
pub(crate) mod lease;
pub(crate) mod news;
pub(crate) mod part;
pub(crate) mod revision;
pub(crate) mod seldom;
pub(crate) mod service;
pub(crate) mod short_ways;
pub(crate) mod signals;
pub(crate) mod state;
pub(crate) mod templates;

use std::sync::Arc;
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
use clock::{NodeChance, NodeClock};
use news::Outbox;
use short_ways::{Counted, ShortWays};
use signals::Signals;
use state::State;

/// Who a node is, for the others and for people.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// The same after a restart.
    pub(crate) id: Uuid,
    /// Shown to people; nothing is decided by it.
    pub(crate) name: String,
    /// The address at which it listens, for other nodes and people.
    pub(crate) address: String,
    /// The version of the program.
    pub(crate) version: String,
    /// How many attempts it may hold at once.
    pub(crate) slots: usize,
    /// For how long its lease holds without a heartbeat.
    pub(crate) lease_for: Duration,
}

/// What every service gets.
pub(crate) struct Node {
    pub(crate) identity: Identity,
    pub(crate) store: Store,
    pub(crate) clock: Arc<NodeClock>,
    pub(crate) chance: NodeChance,
    /// Which short ways are used, and how often each was.
    pub(crate) short_ways: Counted,
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
            chance: NodeChance::from(chance),
            short_ways: Counted::of(short_ways),
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

    /// An id that begins with the current time.
    pub(crate) fn new_id(&self, now: Time) -> Uuid {
        uuid_v7(now, self.chance.bits())
    }

    /// An id of a run. Ids of one instant are in the order of the calls: nodes claim in this order, and lists show it
    /// for runs that were created together.
    pub(crate) fn new_run_id(&self, now: Time) -> RunId {
        RunId(uuid_v7_nth(now, self.chance.next_number(), self.chance.bits()))
    }

    /// The current or last lease of the node.
    pub(crate) fn lease(&self) -> i64 {
        self.state.now().lease
    }

    /// Whether the lease is lost and there is no new one yet.
    pub(crate) fn is_fenced(&self) -> bool {
        self.state.now().fenced
    }

    /// Whether the node has been asked to stop.
    pub(crate) fn is_draining(&self) -> bool {
        self.state.now().draining
    }

    /// Whether other nodes are alive.
    pub(crate) fn has_others(&self) -> bool {
        self.state.now().others
    }

    /// Whether nothing new may begin here any more.
    pub(crate) fn is_leaving(&self) -> bool {
        self.is_draining() || self.stop.is_cancelled()
    }

    /// Whether something new may begin here.
    pub(crate) fn is_active(&self) -> bool {
        self.state.now().is_active() && !self.stop.is_cancelled()
    }
}
