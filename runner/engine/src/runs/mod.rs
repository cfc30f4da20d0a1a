//! Runs: what becomes of them, from their creation to their end.
//!
//! Everything that changes a run goes through here, whoever causes it: a submission, an outcome, a timer, an operator, a
//! service. Each is a transaction that locks the run, decides (`transition.rs`), writes, and acts upon it after its commit
//! (`apply.rs`). Who carries attempts out is not known here but as a [`Worker`], nor who gives out offers, but as
//! [`Audiences`].

pub(crate) mod apply;
pub(crate) mod aside;
pub(crate) mod batch_run;
pub(crate) mod bulk;
pub(crate) mod claimer;
pub(crate) mod contexts;
pub(crate) mod control;
pub(crate) mod created;
pub(crate) mod ending;
pub(crate) mod given_up;
pub(crate) mod grants;
pub(crate) mod hands;
pub(crate) mod heard;
pub(crate) mod inbox;
pub(crate) mod log_buffer;
pub(crate) mod logs;
pub(crate) mod overlap;
pub(crate) mod params;
pub(crate) mod patience;
pub(crate) mod pools;
pub(crate) mod queued;
pub(crate) mod recorder;
pub(crate) mod redact;
pub(crate) mod retry_after;
pub(crate) mod room;
pub(crate) mod scripts;
pub(crate) mod sole;
pub(crate) mod submit;
pub(crate) mod told;
pub mod trace;
pub(crate) mod transition;
pub(crate) mod watch;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::sync::{Arc, OnceLock, Weak};

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::run::AttemptKey;
use heddle_sandbox::Sandbox;
use heddle_store::live::RunFacts;
use heddle_store::secret::SecretKeys;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::node::Node;
use crate::node::catalog::{Cache, Resolution, Revision};
use crate::node::group_commit::{Gathering, GroupCommit};
use crate::node::service::drive;
use ending::Report;
use hands::{Hand, Hands};

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

/// Who carries attempts out, as far as runs know it.
pub(crate) trait Worker: Send + Sync {
    /// An attempt is this node's now, and in hand.
    fn begin(self: Arc<Self>, context: Arc<RunContext>, at: AttemptKey, hand: Hand);
}

/// Who gives out offers, as far as those who make them know it.
pub(crate) trait Audiences: Send + Sync {
    /// An audience has other offers than it had.
    fn changed(&self, audience: &str);
}

/// Runs of a node.
pub(crate) struct Runs {
    pub(crate) node: Arc<Node>,
    pub(crate) sandbox: Sandbox,
    pub(crate) keys: Arc<SecretKeys>,
    /// How many attempts may be in hand, and how many threads run guests.
    slots: usize,
    threads: usize,
    worker: OnceLock<Weak<dyn Worker>>,
    pub(crate) hands: Hands,
    pub(crate) contexts: Cache<RunId, Arc<RunContext>>,
    /// The turn that was claimed last: where new rows stand in the queue.
    pub(crate) turn: AtomicI64,
    /// The last claim came back full: there is more where it came from.
    pub(crate) backlog: AtomicBool,
    /// Who hears of what has ended; nobody unless configured.
    pub(crate) tracer: OnceLock<Arc<dyn trace::Tracer>>,
    pub(crate) next_due: Mutex<Option<Time>>,
    /// See [`ending::reports_max`].
    pub(crate) outcomes: GroupCommit<recorder::Outcomes>,
    /// Attempts that have ended, but whose log has to be written before their outcome.
    pub(crate) log_writer: mpsc::Sender<Report>,
    pub(crate) submissions: GroupCommit<submit::Submissions>,
    pub(crate) watches: watch::Watches,
    pub(crate) queued: queued::Queued,
    /// Who may control many runs at once.
    pub(crate) bulk: Arc<tokio::sync::Semaphore>,
    pub(crate) given_up: given_up::GivenUp,
    pub(crate) aside: aside::Aside,
    pub(crate) counts: Counts,
}

/// What is counted of runs.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) ended: AtomicU64,
    /// Of these, runs that were never begun, by `Skip` from 1.
    pub(crate) skipped: [AtomicU64; 2],
    pub(crate) attempts_ended: AtomicU64,
}

/// What gathers while transactions are under way: nothing is done with it yet.
pub(crate) struct GatheringRuns {
    outcomes: Gathering<recorder::Outcomes>,
    submissions: Gathering<submit::Submissions>,
    reports: mpsc::Receiver<Report>,
}

impl GatheringRuns {
    pub(crate) fn start(self, runs: &Arc<Runs>) {
        self.outcomes.start(recorder::Outcomes(runs.clone()));
        self.submissions.start(submit::Submissions(runs.clone()));
        runs.node
            .tracker
            .spawn(drive(logs::LogWriter::of(runs.clone(), self.reports)));
    }
}

impl Runs {
    pub(crate) fn new(
        node: Arc<Node>,
        sandbox: Sandbox,
        keys: Arc<SecretKeys>,
        slots: usize,
        threads: usize,
    ) -> (Arc<Self>, GatheringRuns) {
        let (outcomes, gathering_outcomes) = GroupCommit::sized(ending::reports_max(slots));
        let (log_writer, reports) = mpsc::channel(ending::reports_max(slots));
        let (submissions, gathering_submissions) = GroupCommit::new();
        let runs = Self {
            node,
            sandbox,
            keys,
            slots,
            threads,
            worker: OnceLock::new(),
            hands: Hands::default(),
            contexts: Cache::new(contexts::CONTEXTS_MAX),
            turn: AtomicI64::new(0),
            backlog: AtomicBool::new(false),
            tracer: OnceLock::new(),
            next_due: Mutex::new(None),
            outcomes,
            log_writer,
            submissions,
            watches: watch::Watches::default(),
            queued: queued::Queued::default(),
            bulk: Arc::new(tokio::sync::Semaphore::new(bulk::REQUESTS_MAX)),
            given_up: given_up::GivenUp::default(),
            aside: aside::Aside::default(),
            counts: Counts::default(),
        };
        let gathering = GatheringRuns {
            outcomes: gathering_outcomes,
            submissions: gathering_submissions,
            reports,
        };
        (Arc::new(runs), gathering)
    }

    /// Has attempts carried out by this one; said once, when the node is put together. It knows the runs, so that these
    /// do not keep it.
    pub(crate) fn work_with(&self, worker: &Arc<dyn Worker>) {
        let _ = self.worker.set(Arc::downgrade(worker));
    }

    pub(crate) fn now(&self) -> Time {
        self.node.now()
    }

    pub(crate) fn lease(&self) -> i64 {
        self.node.lease()
    }
}
