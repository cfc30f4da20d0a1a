//! Runs: from their creation to their end.
//!
//! Every change of a run goes through here, whether it is caused by a submission, an outcome, a timer, an operator or a
//! service. Each is a transaction that locks the run, decides (`transition.rs`), writes, and does what follows after
//! its commit (`apply.rs`). The part that carries out attempts is known here only as a [`Worker`], and the part that
//! gives out offers only as [`Audiences`].

pub(crate) mod apply;
pub(crate) mod aside;
pub(crate) mod batch_run;
pub(crate) mod bulk;
pub(crate) mod check;
pub(crate) mod claimer;
pub(crate) mod contexts;
pub(crate) mod control;
pub(crate) mod controlled;
pub(crate) mod created;
pub(crate) mod ended;
pub(crate) mod ending;
pub(crate) mod given_up;
pub(crate) mod grants;
pub(crate) mod heard;
pub(crate) mod held;
pub(crate) mod inbox;
pub(crate) mod into_queues;
pub(crate) mod later;
pub(crate) mod log_buffer;
pub(crate) mod logs;
pub(crate) mod notices;
pub(crate) mod overlap;
pub(crate) mod params;
pub(crate) mod patience;
pub(crate) mod pools;
pub(crate) mod queued;
pub(crate) mod recorder;
pub(crate) mod redact;
pub(crate) mod rerun;
pub(crate) mod retry_after;
pub(crate) mod room;
pub(crate) mod runtimes;
pub(crate) mod scripts;
pub(crate) mod single_task;
pub(crate) mod starts;
pub(crate) mod submit;
pub(crate) mod task_control;
pub mod trace;
pub(crate) mod transition;
pub(crate) mod unclaimed;
pub(crate) mod watch;

use std::collections::HashMap;
use std::sync::Arc;

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::run::AttemptKey;
use heddle_sandbox::Sandbox;
use heddle_store::live::RunFacts;
use heddle_store::secret::SecretKeys;
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use tokio::sync::mpsc;

use crate::node::Node;
use crate::node::catalog::{Resolution, Revision};
use crate::node::group_commit::{Gathering, GroupCommit};
use held::{HeldAttempt, HeldAttempts, Report};

/// A run as this node works on it.
#[derive(Debug)]
pub(crate) struct RunContext {
    pub(crate) facts: RunFacts,
    pub(crate) revision: Arc<Revision>,
    pub(crate) resolution: Arc<Resolution>,
    /// The items of mapped tasks, parsed, with the highest attempt for which they were read.
    pub(crate) maps: Mutex<HashMap<u16, (u32, Items)>>,
}

/// The items of a mapped task.
type Items = Arc<Vec<Box<serde_json::value::RawValue>>>;

/// Carries out attempts, as far as runs know it.
pub(crate) trait Worker: Send + Sync {
    /// An attempt belongs to this node now.
    fn begin(self: Arc<Self>, context: Arc<RunContext>, at: AttemptKey, held: HeldAttempt);
}

/// Gives out offers, as far as runs know it.
pub(crate) trait Audiences: Send + Sync {
    /// The offers of an audience have changed.
    fn changed(&self, audience: &str);
}

/// The runs of a node; each part keeps its own state.
pub(crate) struct Runs {
    pub(crate) node: Arc<Node>,
    pub(crate) scripts: scripts::Scripts,
    pub(crate) contexts: Cache<RunId, Arc<RunContext>>,
    pub(crate) held: HeldAttempts,
    pub(crate) queue: claimer::Queue,
    pub(crate) pending: inbox::Pending,
    pub(crate) reports: recorder::Reports,
    pub(crate) requests: submit::Requests,
    pub(crate) waiters: watch::Waiters,
    pub(crate) seen: trace::Seen,
}

/// Queues of requests for transactions; not started yet.
pub(crate) struct GatheringRuns {
    outcomes: Gathering<recorder::Outcomes>,
    submissions: Gathering<submit::Submissions>,
    reports: mpsc::Receiver<Report>,
}

impl GatheringRuns {
    /// Returns what comes for the log writer.
    pub(crate) fn start(self, runs: &Arc<Runs>) -> mpsc::Receiver<Report> {
        self.outcomes.start(recorder::Outcomes(runs.clone()));
        self.submissions.start(submit::Submissions(runs.clone()));
        self.reports
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
        let (outcomes, gathering_outcomes) = GroupCommit::sized(held::reports_max(slots));
        let (log_writer, reports) = mpsc::channel(held::reports_max(slots));
        let (submissions, gathering_submissions) = GroupCommit::new();
        let runs = Self {
            node,
            scripts: scripts::Scripts { sandbox, keys },
            contexts: Cache::new(contexts::CONTEXTS_MAX),
            held: HeldAttempts::new(slots, threads),
            queue: claimer::Queue::default(),
            pending: inbox::Pending::default(),
            reports: recorder::Reports {
                outcomes,
                log_writer,
                given_up: given_up::GivenUp::default(),
            },
            requests: submit::Requests::new(submissions),
            waiters: watch::Waiters::default(),
            seen: trace::Seen::default(),
        };
        let gathering = GatheringRuns {
            outcomes: gathering_outcomes,
            submissions: gathering_submissions,
            reports,
        };
        (Arc::new(runs), gathering)
    }

    pub(crate) fn now(&self) -> Time {
        self.node.now()
    }

    pub(crate) fn lease(&self) -> i64 {
        self.node.lease()
    }
}
