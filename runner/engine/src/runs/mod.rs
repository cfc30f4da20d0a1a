//! Runs: from their creation to their end.
//!
//! Every change of a run goes through here, whether it is caused by a submission, an outcome, a timer, an operator or a
//! service. Each is a transaction that locks the run, decides (`transition.rs`), writes, and does what follows after
//! its commit (`apply.rs`). The part that carries out attempts is known here only as a [`Worker`], and the part that
//! gives out offers only as [`Audiences`].
//!
//! | folder | what happens there |
//! |---|---|
//! | `create/` | runs are laid out and created |
//! | `change/` | what follows from events is decided and written |
//! | `take/` | this node takes attempts, and has them in hand |
//! | `record/` | outcomes and log lines are recorded |
//! | `inbox/` | what timers, other transactions and dead nodes left is handled; waiting runs begin |
//! | `waiters/` | callers that wait are woken |
//!
//! The controls of operators are next to these folders, and what several of them use: the facts about a run, its params,
//! the ends of attempts.

pub(crate) mod bulk;
pub(crate) mod change;
pub(crate) mod contexts;
pub(crate) mod control;
pub(crate) mod controlled;
pub(crate) mod counts;
pub(crate) mod create;
pub(crate) mod ending;
pub(crate) mod heard;
pub(crate) mod inbox;
pub(crate) mod later;
pub(crate) mod params;
pub(crate) mod record;
pub(crate) mod rerun;
pub(crate) mod take;
pub(crate) mod task_control;
pub mod trace;
pub(crate) mod waiters;

use std::collections::HashMap;
use std::sync::Arc;

use heddle_domain::Time;
use heddle_domain::run::AttemptKey;
use heddle_store::live::RunFacts;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::node::Node;
use crate::node::catalog::{Resolution, Revision};
use crate::node::group_commit::{Gathering, GroupCommit};
use crate::scripts::Scripts;
use contexts::KnownRuns;
use create::submit;
use record::{given_up, recorder};
use take::claimer;
use take::held::{self, HeldAttempt, HeldAttempts, Report};
use waiters::Waiters;

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
    pub(crate) scripts: Arc<Scripts>,
    pub(crate) contexts: KnownRuns,
    pub(crate) held: HeldAttempts,
    pub(crate) queue: claimer::Queue,
    pub(crate) pending: inbox::Pending,
    pub(crate) reports: recorder::Reports,
    pub(crate) requests: submit::Requests,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) traces: trace::Traces,
    pub(crate) counts: counts::Counts,
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
        scripts: Arc<Scripts>,
        slots: usize,
        threads: usize,
    ) -> (Arc<Self>, GatheringRuns) {
        let (outcomes, gathering_outcomes) = GroupCommit::sized(held::reports_max(slots));
        let (log_writer, reports) = mpsc::channel(held::reports_max(slots));
        let (submissions, gathering_submissions) = GroupCommit::new();
        let runs = Self {
            contexts: KnownRuns::new(node.clone()),
            waiters: Arc::new(Waiters::of(node.clone())),
            node,
            scripts,
            held: HeldAttempts::new(slots, threads),
            queue: claimer::Queue::default(),
            pending: inbox::Pending::default(),
            reports: recorder::Reports {
                outcomes,
                log_writer,
                given_up: given_up::GivenUp::default(),
            },
            requests: submit::Requests::new(submissions),
            traces: trace::Traces::default(),
            counts: counts::Counts::default(),
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
