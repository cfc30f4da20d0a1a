//! Rows of the inbox that this node cannot handle: they must not block the rows of other runs.
//!
//! Many timers, ends of sub-runs and runs submitted in SQL are taken in one transaction. If one row among them cannot
//! be handled (it is unreadable, or its run's progress or revision is, or Postgres refuses what follows from it), the
//! whole transaction would fail, and the next one in the same way, for ever.
//!
//! 1. A transaction that fails because of its own rows is divided by runs, until the rows that cannot be handled are
//!    alone. All others are handled.
//! 2. The rows of that run and kind are *set aside*: this node skips them. An error in its log names the run and the
//!    row, and the metric `heddle_rows_set_aside` counts them. They stay in their table: another node, perhaps a newer
//!    one, may be able to handle them.
//! 3. Every [`AGAIN_EVERY`] they are tried again, alone. When somebody has repaired the cause, they are handled again.
//!
//! A gate is decided as a whole (`gate.rs`): which runs may begin follows from all that wait at it and all that are
//! active. So none of its runs is handled alone. Instead, each is started for a test, in a transaction that is rolled
//! back. A run that cannot begin is set aside, and the next tick decides about the others.
//!
//! Two other services set rows aside in the same way, and count them here: those of task runs whose `queue_timeout` has
//! passed (`queues/reaper.rs`), and the ends of offers (`dispatch/settle.rs`).
//!
//! Errors that may pass (another transaction holds a lock, no database) set nothing aside: the next tick tries again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use heddle_domain::Chain;
use heddle_domain::id::RunId;
use heddle_store::live::{PassedOver, Take};

use crate::node::Node;
use crate::node::group_commit::{Halves, is_passing};
use crate::node::signals::Signal;
use crate::runs::later::Later;
use crate::{EngineError, Runs};

/// How many runs' rows of one kind are set aside at most. When there are more, bad rows are searched for again each
/// time: the others are still handled, but slowly.
const SET_ASIDE_MAX: usize = 1_000;

/// How often rows that were set aside are tried again.
const AGAIN_EVERY: Duration = Duration::from_secs(10);

/// The kinds of rows that are set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Timers,
    /// Ends of sub-runs, by their parents.
    Settlements,
    /// Runs that were submitted in SQL.
    Starts,
    /// Runs that wait at a gate.
    Gates,
    /// Task runs that nobody has claimed from their queue in time.
    Unclaimed,
    /// Ends of offers, by the runs that made them.
    Offers,
}

impl Kind {
    pub(crate) const ALL: [Self; 6] = [
        Self::Timers,
        Self::Settlements,
        Self::Starts,
        Self::Gates,
        Self::Unclaimed,
        Self::Offers,
    ];

    /// Those that the inbox works off.
    pub(crate) const OF_INBOX: [Self; 4] = [Self::Timers, Self::Settlements, Self::Starts, Self::Gates];

    /// The table, and its label in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Timers => "timers",
            Self::Settlements => "settlements",
            Self::Starts => "starts",
            Self::Gates => "waits",
            Self::Unclaimed => "queue_ready",
            Self::Offers => "offer_settlements",
        }
    }
}

/// Rows that are set aside, by kind and run.
pub(crate) struct RowsAside([Later<RunId, ()>; Kind::ALL.len()]);

impl Default for RowsAside {
    fn default() -> Self {
        Self(Kind::ALL.map(|_| Later::new(SET_ASIDE_MAX, AGAIN_EVERY)))
    }
}

impl RowsAside {
    /// The runs that a tick skips.
    pub(crate) fn passed_over(&self) -> PassedOver {
        PassedOver {
            timers: self.of(Kind::Timers).keys(),
            settlements: self.of(Kind::Settlements).keys(),
            starts: self.of(Kind::Starts).keys(),
        }
    }

    /// The rows of a run that were set aside are handled.
    pub(crate) fn done(&self, kind: Kind, run: RunId) {
        self.of(kind).remove(&run);
        tracing::info!(table = kind.name(), %run, "work of a run that was set aside is done");
    }

    /// The runs of a kind.
    pub(crate) fn of(&self, kind: Kind) -> &Later<RunId, ()> {
        &self.0[kind as usize]
    }

    /// Sets the rows of a run aside; returns whether there was room for it.
    pub(crate) fn add(&self, node: &Node, kind: Kind, run: RunId, error: &EngineError) -> bool {
        let table = kind.name();
        let error = Chain(error);
        let due = node.clock.elapsed() + AGAIN_EVERY;
        let fits = self.of(kind).put(run, (), due);
        match fits {
            true => tracing::error!(
                %error, table, %run,
                "this node cannot process a row of this table for this run; the row is set aside and retried every 10 \
                s"
            ),
            false => tracing::error!(
                %error, table, %run,
                "this node cannot process a row of this table for this run, and too many rows are already set aside"
            ),
        }
        fits
    }
}

impl Runs {
    /// Handles all rows of a kind of the inbox, except those that cannot be handled. It returns only errors that may pass,
    /// or that no row causes.
    pub(crate) async fn work_off(self: &Arc<Self>, kind: Kind) -> Result<(), EngineError> {
        let aside = self.pending.aside.of(kind);
        for (run, ()) in aside.due(self.node.clock.elapsed()) {
            match self.handle(kind, Take::Only(&[run]), &mut BTreeSet::new()).await {
                Ok(()) => self.pending.aside.done(kind, run),
                Err(error) if is_passing(&error) => return Err(error),
                // The error was logged when the row was set aside.
                Err(_) => {}
            }
        }
        let mut taken = BTreeSet::new();
        let passed_over = aside.keys();
        let error = match self.handle(kind, Take::AllBut(&passed_over), &mut taken).await {
            Err(error) if !is_passing(&error) && !taken.is_empty() => error,
            other => return other,
        };
        let mut whole = Some(error.clone());
        let mut found = false;
        let mut halves = Halves::of(Vec::from_iter(taken));
        while let Some(runs) = halves.take() {
            let result = match whole.take() {
                Some(error) => Err(error),
                None => self.handle(kind, Take::Only(&runs), &mut BTreeSet::new()).await,
            };
            if let Some((run, error)) = halves.done(runs, result)? {
                found |= self.pending.aside.add(&self.node, kind, run, &error);
            }
        }
        match (kind, found) {
            // The test was rolled back; the inbox decides about the others.
            (Kind::Gates, true) => self.node.signals.raise(Signal::Inbox),
            (Kind::Gates, false) => return Err(error),
            (Kind::Timers | Kind::Settlements | Kind::Starts | Kind::Unclaimed | Kind::Offers, _) => {}
        }
        Ok(())
    }

    /// One transaction; `taken` gets the runs whose rows it took.
    async fn handle(
        self: &Arc<Self>,
        kind: Kind,
        take: Take<'_>,
        taken: &mut BTreeSet<RunId>,
    ) -> Result<(), EngineError> {
        match kind {
            Kind::Timers => self.timers(take, taken).await,
            Kind::Settlements => self.settlements(take, taken).await,
            Kind::Starts => self.starts(take, taken).await,
            Kind::Gates => match take {
                Take::AllBut(passed_over) => self.gates(passed_over, taken).await,
                Take::Only(runs) => self.try_start(runs).await,
            },
            // Their own services handle them.
            Kind::Unclaimed | Kind::Offers => Ok(()),
        }
    }
}
