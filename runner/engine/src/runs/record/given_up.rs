//! Outcomes that cannot be recorded.
//!
//! The database may refuse an outcome for a reason that does not pass: a value that it does not accept, somebody's
//! trigger, a page that cannot be read, a progress that cannot be decoded. Such an outcome must come to an end that
//! people can see. If it were silently dropped, its row would stay in *running* under a valid lease. The node would
//! take the attempt for one that it does not know yet, and would run it again and again, without counting it.
//!
//! 1. The outcome is tried alone, so that no other outcome waits for it.
//! 2. Instead of it, a failure of kind `invalid` is recorded, which says so.
//! 3. If that is refused too, the run is *given up*: statements that read neither its progress nor its history end it
//!    as failed, with a new progress ([`Progress::abandoned`]), and people are told. Its attempts elsewhere are
//!    stopped. If the history or the notices were the reason, it is repeated without them.
//! 4. If even that is refused, the attempt is *set aside*: this node never runs it again, an error in the log and the
//!    metric `heddle_outcomes_set_aside` report it, and step 3 is repeated every [`AGAIN_EVERY`], so that the run ends
//!    when somebody has repaired the database.
//!
//! The [`Abandoner`] does the steps 3 and 4, so that neither the recorder nor the reaper waits for them. A lost attempt that
//! the reaper takes over is handled in the same way, whichever node held it, and so is an expired claim of a worker
//! (`queues/reaper.rs`).
//!
//! A progress in a format, or with a state or an error kind, that only newer builds know is no reason to end a run: a newer
//! node can read it. Such an attempt is set aside at once. Nothing of its run is written, and this node only checks whether
//! the attempt still exists.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use heddle_domain::id::RunId;
use heddle_domain::run::{AttemptKey, Past, Progress};
use heddle_domain::state::{AttemptState, ErrorKind, TaskState};
use heddle_domain::{Chain, Time};
use heddle_store::live::{AttemptRow, EndedAttempt, Grant, Interrupted, RunWrite};
use heddle_store::run::Outputs;

use crate::node::Node;
use crate::node::group_commit::is_passing;
use crate::node::service::{Needs, Service};
use crate::node::signals::Signal;
use crate::runs::change::apply::After;
use crate::runs::change::transition::{Transition, progress_of};
use crate::runs::later::Later;
use crate::{EngineError, Runs};

/// The error of the run.
const WHY: &str = "the outcome could not be recorded; the log of the node has the cause";

/// How many attempts are set aside at most. When there are more, this node adopts no attempt that it does not know.
const SET_ASIDE_MAX: usize = 10_000;

/// How often those that were set aside are tried again.
const AGAIN_EVERY: Duration = Duration::from_secs(30);

/// When a try is repeated after an error that may pass, and how often the abandoner looks for due attempts.
const AGAIN_SOON: Duration = Duration::from_secs(1);

/// Runs that were given up, and attempts that are set aside.
pub(crate) struct GivenUp {
    aside: Later<(RunId, AttemptKey), Attempt>,
    runs: AtomicU64,
}

/// An attempt whose outcome cannot be recorded.
#[derive(Clone, Copy)]
struct Attempt {
    /// The lease under which it was held.
    lease: i64,
    /// The progress of its run has a newer format: only a newer node may end it.
    newer: bool,
}

impl Default for GivenUp {
    fn default() -> Self {
        Self {
            aside: Later::new(SET_ASIDE_MAX, AGAIN_EVERY),
            runs: AtomicU64::new(0),
        }
    }
}

impl GivenUp {
    /// Handles an outcome that cannot be recorded: from now on, nobody adopts the attempt here, and the abandoner ends
    /// its run.
    pub(crate) fn add(&self, node: &Node, ended: EndedAttempt, error: &EngineError) {
        let EndedAttempt { run, at, lease } = ended;
        let (task, newer, error) = (at.key.task, is_newer(error), Chain(error));
        let mut due = node.clock.elapsed();
        match newer {
            true => {
                due += AGAIN_EVERY;
                tracing::error!(%error, %run, task, attempt = at.attempt, "only a newer node can record the outcome of \
                    an attempt; the attempt is set aside");
            }
            false => tracing::error!(%error, %run, task, attempt = at.attempt, "cannot record the outcome of an \
                attempt; its run is set to failed"),
        }
        self.aside.put((run, at), Attempt { lease, newer }, due);
        node.signals.raise(Signal::GivenUp);
    }

    /// Whether this node must not run an attempt (again).
    pub(crate) fn knows(&self, run: RunId, at: AttemptKey) -> bool {
        self.aside.is_full() || self.aside.contains(&(run, at))
    }

    /// The runs of these attempts; one with several attempts is named several times.
    pub(crate) fn runs_aside(&self) -> Vec<RunId> {
        self.aside.keys().into_iter().map(|(run, _)| run).collect()
    }

    /// Runs that this node has given up.
    pub(crate) fn runs(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }

    /// Attempts that are set aside.
    pub(crate) fn set_aside(&self) -> usize {
        self.aside.len()
    }
}

/// Ends runs that were given up. If one cannot be ended, tries it again later.
pub(crate) struct Abandoner(pub(crate) Arc<Runs>);

impl Service for Abandoner {
    const FAILED: &'static str = "cannot end runs that were given up; trying again";
    // Without a lease, this node stops trying: the node that takes the attempts over will give up the same runs.
    const NEEDS: Needs = Needs::Lease;
    const AGAIN_AFTER: Duration = AGAIN_SOON;
    const WOKEN_BY: Option<Signal> = Some(Signal::GivenUp);

    fn node(&self) -> &Arc<Node> {
        &self.0.node
    }

    async fn tick(&mut self, _now: Time) -> Result<Duration, EngineError> {
        let (runs, node) = (&self.0, &self.0.node);
        loop {
            let due = runs.reports.given_up.aside.due(node.clock.elapsed());
            if due.is_empty() {
                return Ok(AGAIN_SOON);
            }
            for (key, attempt) in due {
                if node.is_fenced() || node.stop.is_cancelled() {
                    return Ok(AGAIN_SOON);
                }
                runs.try_to_end(key, attempt).await;
            }
        }
    }
}

impl Runs {
    async fn try_to_end(self: &Arc<Self>, (run, at): (RunId, AttemptKey), attempt: Attempt) {
        let Attempt { lease, newer } = attempt;
        let ended = EndedAttempt { run, at, lease };
        let aside = &self.reports.given_up.aside;
        let tried = match newer {
            true => is_over(&self.node, ended).await,
            false => self.end(ended).await,
        };
        match tried {
            Ok(true) => aside.remove(&(run, at)),
            Ok(false) => {}
            Err(error) if is_passing(&error) => {
                aside.put((run, at), attempt, self.node.clock.elapsed() + AGAIN_SOON);
            }
            Err(error) => tracing::error!(error = %Chain(&error), %run, task = at.key.task, attempt = at.attempt,
                "cannot set a run to failed; its attempt is set aside and retried every 30 s"),
        }
    }

    /// Ends a run as failed, with its history if possible. `true`: the run has ended, by this or otherwise.
    async fn end(self: &Arc<Self>, ended: EndedAttempt) -> Result<bool, EngineError> {
        let run = ended.run;
        let forced = match self.end_by_force(ended, true).await {
            Err(error) if !is_passing(&error) => {
                tracing::error!(error = %Chain(&error), %run, "cannot set a run to failed; trying without its history");
                self.end_by_force(ended, false).await?
            }
            other => other?,
        };
        if forced {
            tracing::error!(%run, "set a run to failed, because the outcome of an attempt could not be recorded");
            self.reports.given_up.runs.fetch_add(1, Ordering::Relaxed);
        }
        Ok(true)
    }

    /// Ends a run as failed, whatever is wrong with it. `false`: the attempt, or the run, has ended already.
    async fn end_by_force(self: &Arc<Self>, ended: EndedAttempt, in_full: bool) -> Result<bool, EngineError> {
        let EndedAttempt { run, at, .. } = ended;
        let Some(context) = self.contexts.of(&[run]).await?.remove(&run) else {
            return Ok(false);
        };
        let past = match self.node.store.run_detail(run, Outputs::None).await {
            Ok(detail) => detail.map(|detail| past_of(&detail.attempts)).unwrap_or_default(),
            Err(error) if error.is_passing() => return Err(error.into()),
            Err(error) => {
                tracing::error!(error = %Chain(&error), %run, "cannot read the history of a run that is set to failed; \
                    its progress is made without it");
                Vec::new()
            }
        };
        let progress = Progress::abandoned(&context.revision.plan, &past, at, WHY);
        let mut completion = self.node.completion("end_by_force").await?;
        let Some(stopped) = completion.abandon(ended).await? else {
            return Ok(false);
        };
        if in_full {
            completion.insert_attempts(&history(&stopped, at)).await?;
        }
        let mut after = After::default();
        let transition = Transition::given_up(progress, in_full);
        let write = self.write_of(&context, transition, &mut Grant::none(), &mut after)?;
        let write = RunWrite { timed: true, ..write };
        self.write(&mut completion, &[write], &mut after).await?;
        completion.commit().await?;
        after
            .interrupted
            .extend(stopped.into_iter().filter(|stopped| stopped.at != at));
        self.acted(after);
        Ok(true)
    }
}

/// Whether a newer node has ended the attempt, or this node can read the run's progress now.
async fn is_over(node: &Node, ended: EndedAttempt) -> Result<bool, EngineError> {
    let EndedAttempt { run, at, .. } = ended;
    let mut completion = node.completion("look_at_set_aside").await?;
    // This transaction only reads: it is rolled back.
    let locked = completion.lock(&[ended]).await?;
    let (true, Some(found)) = (locked.owned.contains_key(&(run, at)), locked.runs.get(&run)) else {
        return Ok(true);
    };
    Ok(!progress_of(run, &found.progress).is_err_and(|error| is_newer(&error)))
}

/// Whether the error is that only newer builds know the format of a run's progress, or something in it.
pub(crate) fn is_newer(error: &EngineError) -> bool {
    matches!(error, EngineError::Progress { error, .. } if error.is_newer())
}

fn past_of(attempts: &[heddle_store::run::AttemptView]) -> Vec<Past> {
    let left = |attempt: &heddle_store::run::AttemptView| match (attempt.state, attempt.skipped) {
        (AttemptState::Succeeded, false) => Some(TaskState::Succeeded),
        (AttemptState::Succeeded, true) => Some(TaskState::Skipped),
        _ => None,
    };
    attempts
        .iter()
        .map(|attempt| Past {
            at: AttemptKey {
                key: attempt.key,
                attempt: attempt.attempt,
            },
            left: left(attempt),
        })
        .collect()
}

/// The history of the attempts that the run still had.
fn history(stopped: &[Interrupted], failed: AttemptKey) -> Vec<AttemptRow> {
    stopped
        .iter()
        .map(|stopped| {
            let is_failed = stopped.at == failed;
            AttemptRow {
                run: stopped.run,
                at: stopped.at,
                state: match is_failed {
                    true => AttemptState::Failed,
                    false => AttemptState::Cancelled,
                },
                skipped: false,
                started_at: stopped.started_at,
                finished_at: stopped.finished_at,
                node: stopped.node,
                worker: None,
                output: None,
                error: is_failed.then(|| (ErrorKind::Invalid, WHY.to_owned(), None)),
                memory_bytes: None,
                cpu_micros: None,
            }
        })
        .collect()
}
