//! Outcomes that cannot be recorded.
//!
//! The database refuses an outcome for a reason that no waiting mends: a value that it does not take, a trigger of
//! somebody's, a page that cannot be read, a progress that nobody can decode. Whoever has such an outcome has to come to
//! an end with it that people can see: dropped silently its row would stay in *running* under a lease that holds, and
//! the attempt would be taken for one whose hand-over was not heard of and run again, without end and uncounted.
//!
//! 1. The outcome is tried alone, so that nobody else's waits for it.
//! 2. In its place a failure of kind `invalid` is recorded, which says so.
//! 3. If that is refused too, the run is *given up*: it ends as failed by statements that read neither its progress nor
//!    its history, with a progress that is made anew ([`Progress::abandoned`]), and people are told. What of it runs
//!    elsewhere is stopped. Once more without history and without telling anybody, if it was these that were refused.
//! 4. If even that is refused, the attempt is *set aside*: it is never run again by this node, an error in the log and
//!    the metric `heddle_outcomes_set_aside` tell of it, and step 3 is tried again every so often, so that the run ends
//!    once somebody has mended the database.
//!
//! A lost attempt that the reaper takes over goes the same way, whichever node it was of.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use heddle_domain::Chain;
use heddle_domain::id::RunId;
use heddle_domain::run::{Actions, AttemptKey, FormatError, Past, Progress};
use heddle_domain::state::{AttemptState, ErrorKind, RunState, TaskState};
use heddle_store::live::{AttemptRow, EndedAttempt, Grant, Interrupted, RunWrite};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::node::group_commit::is_passing;
use crate::runs::apply::After;
use crate::runs::transition::Transition;
use crate::{EngineError, Runs};

/// What people read as the error of the run.
const WHY: &str = "the outcome could not be recorded; the log of the node has the cause";

/// How many attempts are set aside at most. With more, this node takes up nothing that it does not know.
const SET_ASIDE_MAX: usize = 10_000;

/// How often those that are set aside are tried again, and how many of them at once.
const AGAIN_EVERY: Duration = Duration::from_secs(30);
const AGAIN_MAX: usize = 20;

/// How often a try that met passing trouble is repeated, with what pause.
const TRIES_MAX: usize = 100;
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Runs that were given up, and attempts that are set aside.
#[derive(Default)]
pub(crate) struct GivenUp {
    aside: Mutex<HashMap<(RunId, AttemptKey), Aside>>,
    runs: AtomicU64,
}

struct Aside {
    ended: EndedAttempt,
    tried: Instant,
}

impl GivenUp {
    /// Whether an attempt must not be run (again) by this node.
    pub(crate) fn knows(&self, run: RunId, at: AttemptKey) -> bool {
        let aside = self.aside.lock();
        aside.len() >= SET_ASIDE_MAX || aside.contains_key(&(run, at))
    }

    /// Runs that this node has given up.
    pub(crate) fn runs(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }

    /// Attempts that are set aside.
    pub(crate) fn set_aside(&self) -> usize {
        self.aside.lock().len()
    }

    fn put(&self, ended: EndedAttempt) {
        let mut aside = self.aside.lock();
        if aside.len() < SET_ASIDE_MAX {
            let tried = Instant::now();
            aside.insert((ended.run, ended.at), Aside { ended, tried });
        }
    }

    fn remove(&self, ended: EndedAttempt) {
        self.aside.lock().remove(&(ended.run, ended.at));
    }

    fn due(&self) -> Vec<EndedAttempt> {
        let mut aside = self.aside.lock();
        let due = aside.values_mut().filter(|aside| aside.tried.elapsed() > AGAIN_EVERY);
        due.take(AGAIN_MAX)
            .map(|aside| {
                aside.tried = Instant::now();
                aside.ended
            })
            .collect()
    }
}

/// What a try came to.
enum Tried {
    /// The run has ended, by this or by somebody else.
    Ended,
    /// It cannot be ended now.
    Aside,
}

impl Runs {
    /// The outcome of an attempt cannot be recorded: ends its run, or sets the attempt aside.
    pub(crate) async fn give_up(self: &Arc<Self>, ended: EndedAttempt, error: &EngineError) {
        let EndedAttempt { run, at, .. } = ended;
        let task = at.key.task;
        tracing::error!(error = %Chain(error), %run, task, attempt = at.attempt, "cannot record the outcome of an \
            attempt; its run is set to failed");
        // A newer node knows what to make of it.
        let newer = matches!(
            error,
            EngineError::Progress {
                error: FormatError::Unknown(_),
                ..
            }
        );
        // Before anything else: while this is under way nobody may take the attempt up.
        self.reports.given_up.put(ended);
        if newer {
            return;
        }
        match self.try_to_end(ended).await {
            Tried::Ended => self.reports.given_up.remove(ended),
            Tried::Aside => {
                tracing::error!(%run, task, attempt = at.attempt, "cannot set a run to failed; its attempt is set \
                    aside and retried every 30 s");
            }
        }
    }

    /// Tries again what is set aside.
    pub(crate) async fn give_up_again(self: &Arc<Self>) {
        for ended in self.reports.given_up.due() {
            if let Tried::Ended = self.try_to_end(ended).await {
                self.reports.given_up.remove(ended);
            }
        }
    }

    async fn try_to_end(self: &Arc<Self>, ended: EndedAttempt) -> Tried {
        let run = ended.run;
        for in_full in [true, false] {
            for _ in 0..TRIES_MAX {
                if self.node.is_fenced() || self.node.stop.is_cancelled() {
                    // Whoever takes the attempt over as lost comes to the same point.
                    return Tried::Aside;
                }
                let error = match self.end_by_force(ended, in_full).await {
                    Ok(true) => {
                        tracing::error!(%run, "set a run to failed, because the outcome of an attempt could not be \
                            recorded");
                        self.reports.given_up.runs.fetch_add(1, Ordering::Relaxed);
                        return Tried::Ended;
                    }
                    Ok(false) => return Tried::Ended,
                    Err(error) => error,
                };
                if !is_passing(&error) {
                    tracing::error!(error = %Chain(&error), %run, in_full, "cannot set a run to failed");
                    break;
                }
                tokio::time::sleep(AGAIN_AFTER).await;
            }
        }
        Tried::Aside
    }

    /// Ends a run as failed whatever stands in its way; `false`: the attempt, or the run, is over already.
    async fn end_by_force(self: &Arc<Self>, ended: EndedAttempt, in_full: bool) -> Result<bool, EngineError> {
        let EndedAttempt { run, at, .. } = ended;
        let Some(context) = self.contexts_of(&[run]).await?.remove(&run) else {
            return Ok(false);
        };
        let past = match self.node.store.run_detail(run).await {
            Ok(detail) => detail.map(|detail| past_of(&detail.attempts)).unwrap_or_default(),
            Err(error) if error.is_passing() => return Err(error.into()),
            // Then it is made without.
            Err(_) => Vec::new(),
        };
        let progress = Progress::abandoned(&context.revision.plan, &past, at, WHY);
        let mut completion = self.node.completion("end_by_force").await?;
        let Some(stopped) = completion.abandon(ended).await? else {
            return Ok(false);
        };
        let mut actions = Actions::default();
        let state = RunState::Failed;
        if in_full {
            completion.insert_attempts(&history(&stopped, at)).await?;
            actions.finished = Some(state);
        }
        let mut after = After::default();
        let transition = Transition {
            actions,
            state,
            progress,
        };
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

/// What is recorded of the attempts that a given up run still had.
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
