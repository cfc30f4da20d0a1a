//! The recorder: what has ended is recorded, many outcomes in one transaction.
//!
//! Outcomes gather while a transaction is under way; the next one records them all (`group_commit.rs`). A run of one task
//! run takes the short way (`complete_single_task`, one statement), everything else the long one (lock, decide, write). What
//! became ready is handed to this node in the same transaction where it has room; only what waits for room is claimed
//! (`claimer.rs`).
//!
//! # Invariants
//!
//! * An outcome leaves memory only when it is committed, or when the database says that it is not ours to report.
//! * The lines of an attempt's log are there when its outcome is. Few of them go with it; those of an attempt that
//!   wrote many go before it, by the log writer (`logs.rs`), so that nobody else's outcome waits for them.
//! * One poisonous outcome (which Postgres refuses) does not keep others from being recorded: batches are halved until
//!   it stands alone, then it is recorded as a failure, or its run is given up (`given_up.rs`).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use heddle_domain::Chain;
use heddle_domain::id::RunId;
use heddle_domain::run::AttemptKey;
use heddle_domain::state::ErrorKind;
use heddle_store::live::{EndedAttempt, LogRow, SingleTaskEnd};
use tokio::sync::mpsc;

use crate::node::Node;
use crate::node::group_commit::{Asked, Commits, Committed, GroupCommit, Policy, chunks};
use crate::node::short_ways::ShortWay;
use crate::node::signals::Signal;
use crate::runs::apply::{After, Applied};
use crate::runs::contexts::Contexts;
use crate::runs::ending::{End, Ending, Report};
use crate::runs::given_up::GivenUp;
use crate::runs::single_task;
use crate::runs::trace::Span;
use crate::{EngineError, Runs};

/// How many lines of its log an outcome may take along, and how many all of a transaction: others wait for them.
const LINES_PER_OUTCOME: usize = 200;
const LINES_PER_BATCH: usize = 4_000;

/// An outcome takes up to this many lines along even when the others of its batch have used up theirs.
const LINES_ALWAYS: usize = 8;

/// How long to wait before a transaction that failed is tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Attempts that have ended, on their way into the database.
pub(crate) struct Reports {
    /// Outcomes to record, bounded by [`crate::runs::ending::reports_max`].
    pub(crate) outcomes: GroupCommit<Outcomes>,
    /// Those whose log has to be written before their outcome.
    pub(crate) log_writer: mpsc::Sender<Report>,
    pub(crate) given_up: GivenUp,
}

/// An outcome on its way into the database.
pub(crate) struct Outcome {
    report: Report,
    /// The end of its run, if it is all that there is to know of that: the short way is enough.
    single_task: Option<SingleTaskEnd>,
    /// Once it is being recorded: its attempt's place among those that are in hand.
    known: Option<Known>,
}

impl From<Report> for Outcome {
    fn from(report: Report) -> Self {
        Self {
            report,
            single_task: None,
            known: None,
        }
    }
}

/// Keeps an attempt known to this node until its outcome is recorded, or is not its to record any more: what is dropped is
/// forgotten.
struct Known {
    runs: Arc<Runs>,
    run: RunId,
    at: AttemptKey,
}

impl Drop for Known {
    fn drop(&mut self) {
        self.runs.held.forget(self.run, self.at);
    }
}

/// Records outcomes until they are recorded, or are not ours any more.
pub(crate) struct Outcomes(pub(crate) Arc<Runs>);

impl Commits for Outcomes {
    type Request = Outcome;
    type Answer = ();
    type Then = After;
    const POLICY: Policy = Policy {
        what: "outcomes",
        // A node has its own: `ending::reports_max`.
        queue_max: 0,
        batch_max: 1_000,
        workers: 1,
        tries_max: None,
        again_after: AGAIN_AFTER,
        // What has been recorded is not in *running* any more: the second time it is refused as somebody else's.
        repeatable: true,
    };

    fn node(&self) -> &Node {
        &self.0.node
    }

    /// Those that take the short way, and the others.
    fn batches(&self, gathered: Vec<Asked<Self>>) -> Vec<Vec<Asked<Self>>> {
        let runs = &self.0;
        let (mut single_task, mut general) = (Vec::new(), Vec::new());
        let mut carried = 0;
        for mut asked in gathered {
            let report = &mut asked.request.report;
            let room = match report.end {
                // Nothing is recorded that could take lines along.
                End::Dropped => 0,
                // The log writer writes them all.
                _ if !runs.node.short_ways.take(ShortWay::LinesWithOutcome) => 0,
                _ => LINES_PER_BATCH
                    .saturating_sub(carried)
                    .clamp(LINES_ALWAYS, LINES_PER_OUTCOME),
            };
            let Some(lines) = report.held.log.rest(room) else {
                runs.log_first(asked.request.report);
                continue;
            };
            carried += lines.len();
            report.lines = lines;
            let (run, at) = (report.run, report.at);
            runs.held.release(run, at);
            let is_dropped = matches!(report.end, End::Dropped);
            asked.request.single_task = single_task_end(runs, &asked.request.report);
            let runs = runs.clone();
            asked.request.known = Some(Known { runs, run, at });
            match (is_dropped, &asked.request.single_task) {
                (true, _) => {}
                (false, Some(_)) => single_task.push(asked),
                (false, None) => general.push(asked),
            }
        }
        runs.node.signals.raise(Signal::Freed);
        let mut batches = chunks(general, Self::POLICY.batch_max);
        batches.extend(chunks(single_task, Self::POLICY.batch_max));
        batches
    }

    async fn commit(&self, batch: &mut [Outcome]) -> Committed<Self> {
        let runs = &self.0;
        if runs.node.is_fenced() {
            // Without the lease nothing can be recorded: other nodes run these again.
            return Err(EngineError::Unavailable);
        }
        let single_task: Option<Vec<&SingleTaskEnd>> =
            batch.iter().map(|outcome| outcome.single_task.as_ref()).collect();
        let reports: Vec<&Report> = batch.iter().map(|outcome| &outcome.report).collect();
        let after = match single_task {
            Some(ends) => record_single_task(runs, &reports, &ends).await?,
            None => record_general(runs, &reports).await?,
        };
        Ok((vec![(); batch.len()], after))
    }

    fn follow(&self, batch: Vec<Outcome>, after: After) {
        self.0.acted(after);
        // Attempts are forgotten when it is known what comes after them.
        drop(batch);
    }

    /// A failure takes its place; if that is refused too, its run is given up.
    async fn refused(&self, outcome: Outcome, error: &EngineError) -> Option<Outcome> {
        let runs = &self.0;
        let Outcome { report, known, .. } = outcome;
        if is_unrecordable(&report.end) {
            let ended = EndedAttempt {
                run: report.run,
                at: report.at,
                lease: runs.lease(),
            };
            runs.give_up(ended, error).await;
            return None;
        }
        tracing::error!(error = %Chain(error), run = %report.run, "cannot record the outcome of an attempt; the \
            attempt is recorded as failed");
        let ending = Ending::fatal(
            ErrorKind::Invalid,
            "the outcome could not be recorded; the log of the node has the cause",
        );
        // Its log may be what was refused.
        let report = Report {
            end: End::plain(ending),
            lines: Vec::new(),
            ..report
        };
        let single_task = single_task_end(runs, &report);
        Some(Outcome {
            report,
            single_task,
            known,
        })
    }
}

impl Runs {
    /// Hands an attempt's outcome to the recorder. There is a place for each attempt that the node may have in hand; should
    /// there be none, the report waits for one: what has been done is never thrown away.
    pub(crate) fn record(&self, report: Report) {
        // The recorder lives as long as the node; without it the lease runs out and the attempt is run again.
        if let Err(outcome) = self.reports.outcomes.put(report.into()) {
            tracing::warn!(run = %outcome.report.run, "too many attempts have ended at the same time");
            let outcomes = self.reports.outcomes.clone();
            self.node
                .tracker
                .spawn(async move { drop(outcomes.send_patiently(outcome).await) });
        }
    }
}

/// Whether it stands in the place of an outcome that was refused, or is refused as what it was.
fn is_unrecordable(end: &End) -> bool {
    matches!(end, End::Done(done) if matches!(&done.result, Ending::Failed { kind: ErrorKind::Invalid, .. }))
}

/// The end of a report's run, if its outcome is all that there is to know of that.
fn single_task_end(runs: &Runs, report: &Report) -> Option<SingleTaskEnd> {
    if !runs.node.short_ways.take(ShortWay::SingleTaskEnd) {
        return None;
    }
    let ended = EndedAttempt {
        run: report.run,
        at: report.at,
        lease: runs.lease(),
    };
    single_task::end_of(
        runs,
        &report.context,
        ended,
        &report.end,
        report.finished_at,
        runs.node.identity.id,
    )
}

async fn record_single_task(
    runs: &Arc<Runs>,
    reports: &[&Report],
    rows: &[&SingleTaskEnd],
) -> Result<After, EngineError> {
    let lines = lines_of(reports);
    let (owned, followed) = runs
        .node
        .store
        .complete_single_task(rows, &lines, runs.lease(), runs.node.identity.id)
        .await?;
    if owned.len() < rows.len() {
        tracing::info!(
            refused = rows.len() - owned.len(),
            "outcomes were refused, because other nodes had taken over the attempts"
        );
    }
    let spans = spans_of(runs, reports, rows, &owned);
    let after = single_task::after(owned, followed, reports.iter().map(|report| &*report.context));
    Ok(After { spans, ..after })
}

/// What a tracer hears of runs of one task that have ended.
fn spans_of(runs: &Runs, reports: &[&Report], rows: &[&SingleTaskEnd], owned: &[RunId]) -> Vec<Span> {
    if runs.seen.tracer.get().is_none() {
        return Vec::new();
    }
    let owned: HashSet<RunId> = owned.iter().copied().collect();
    let reports: HashMap<RunId, &Report> = reports.iter().map(|&report| (report.run, report)).collect();
    let mut spans = Vec::with_capacity(rows.len() * 2);
    for row in rows.iter().filter(|row| owned.contains(&row.attempt.run)) {
        let Some(report) = reports.get(&row.attempt.run) else {
            continue;
        };
        // When it was taken the database knows; here it is near enough by this node's own watch.
        let took = chrono::TimeDelta::from_std(report.held.since.elapsed()).unwrap_or_default();
        let started_at = runs.now() - took;
        let context = &report.context;
        spans.extend(runs.attempt_span(context, &row.attempt, started_at));
        spans.extend(runs.run_span(context, row.state, row.error.as_deref(), report.finished_at));
    }
    spans
}

async fn record_general(runs: &Arc<Runs>, reports: &[&Report]) -> Result<After, EngineError> {
    let lease = runs.lease();
    let mut contexts = Contexts::with_capacity(reports.len());
    for report in reports {
        let context = runs.contexts.get(&report.run).unwrap_or_else(|| {
            runs.contexts.insert(report.run, report.context.clone());
            report.context.clone()
        });
        contexts.insert(report.run, context);
    }
    let outcomes = reports
        .iter()
        .map(|report| Applied {
            ended: EndedAttempt {
                run: report.run,
                at: report.at,
                lease,
            },
            end: report.end.clone(),
            finished_at: Some(report.finished_at),
            node: Some(runs.node.identity.id),
        })
        .collect();
    let mut grant = runs.grant();
    let mut completion = runs.node.completion("record").await?;
    completion.insert_logs(&lines_of(reports)).await?;
    let after = runs.apply(&mut completion, &contexts, outcomes, &mut grant).await?;
    completion.commit().await?;
    Ok(after)
}

fn lines_of(reports: &[&Report]) -> Vec<LogRow> {
    reports.iter().flat_map(|report| report.lines.iter().cloned()).collect()
}
