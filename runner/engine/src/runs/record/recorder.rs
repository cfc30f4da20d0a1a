//! The recorder records many outcomes in one transaction.
//!
//! Outcomes gather during a transaction; the next one records all of them (`group_commit.rs`). A single-task run takes
//! the short way (`complete_single_task`, one statement), all others the general way (lock, decide, write). Task runs
//! that become ready are given to this node in the same transaction if it has slots; only the others have to be claimed
//! (`claimer.rs`).
//!
//! # Invariants
//!
//! * An outcome leaves memory only when it is committed, or when the database says that it is not ours to report.
//! * The log lines of an attempt are stored no later than its outcome. A few lines are written with it. If there are
//!   many, the log writer (`logs.rs`) writes them before it, so that no other outcome waits for them.
//! * The effects of scripts are committed with their outcomes, and those of one transaction are bounded. Outcomes whose
//!   effects have no room in it go back into the queue, behind all others: so no other outcome waits for more than that.
//! * An outcome that Postgres refuses does not keep others from being recorded: batches are halved until it is alone.
//!   Then it is recorded as a failure, or its run is given up (`given_up.rs`).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use heddle_domain::Chain;
use heddle_domain::id::RunId;
use heddle_domain::run::AttemptKey;
use heddle_domain::state::ErrorKind;
use heddle_sandbox::Effect;
use heddle_store::live::{EndedAttempt, LogRow, SingleTaskEnd};
use tokio::sync::mpsc;

use crate::node::Node;
use crate::node::group_commit::{Asked, Commits, Committed, GroupCommit, Policy, chunks};
use crate::node::short_ways::ShortWay;
use crate::node::signals::Signal;
use crate::runs::change::apply::After;
use crate::runs::contexts::Contexts;
use crate::runs::ending::{Applied, End, Ending};
use crate::runs::record::given_up::{GivenUp, is_newer};
use crate::runs::record::single_task;
use crate::runs::take::held::Report;
use crate::runs::trace::Span;
use crate::{EngineError, Runs};

/// How many log lines are written together with one outcome at most, and with all outcomes of a transaction: other
/// outcomes wait for them.
const LINES_PER_OUTCOME: usize = 200;
const LINES_PER_BATCH: usize = 4_000;

/// This many lines are written with an outcome even when the maximum of the transaction is reached.
const LINES_ALWAYS: usize = 8;

/// How many effects of scripts all outcomes of a transaction have together, and of how many bytes: other outcomes wait for
/// them. An attempt has a thousand at most, of 8 MiB (`runner/sandbox/src/effects.rs`).
const EFFECTS_PER_BATCH: usize = 2_000;
const EFFECT_BYTES_PER_BATCH: usize = 8 << 20;

/// The pause before a failed transaction is tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Ended attempts that wait to be recorded.
pub(crate) struct Reports {
    /// Outcomes to record, bounded by [`crate::runs::take::held::reports_max`].
    pub(crate) outcomes: GroupCommit<Outcomes>,
    /// Reports of attempts whose log must be written before their outcome is recorded.
    pub(crate) log_writer: mpsc::Sender<Report>,
    pub(crate) given_up: GivenUp,
}

/// An outcome that waits to be recorded.
pub(crate) struct Outcome {
    report: Report,
    /// The end of its run, if this outcome alone decides it. Such outcomes are recorded by the short way.
    single_task: Option<SingleTaskEnd>,
    /// While it is being recorded: keeps its attempt among the current ones.
    known: Option<Known>,
    /// A transaction had no room for its effects of so many bytes, so its attempt counts as parked.
    put_off: Option<usize>,
}

impl Outcome {
    /// What is committed with it.
    fn load(&self) -> Load {
        match &self.report.end {
            End::Done(done) => Load {
                effects: done.effects.len(),
                bytes: done.effects.iter().map(Effect::bytes).sum(),
            },
            End::Expanded { .. } | End::Dropped => Load::default(),
        }
    }
}

/// The effects of an outcome, or of a transaction.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    effects: usize,
    bytes: usize,
}

impl Load {
    /// With another outcome; `None`: it has no room in the same transaction.
    fn with(self, other: Self) -> Option<Self> {
        let sum = Self {
            effects: self.effects + other.effects,
            bytes: self.bytes + other.bytes,
        };
        let has_room = sum.effects <= EFFECTS_PER_BATCH && sum.bytes <= EFFECT_BYTES_PER_BATCH;
        // Alone it always has, and without effects it needs none.
        (has_room || self.effects == 0 || other.effects == 0).then_some(sum)
    }
}

impl From<Report> for Outcome {
    fn from(report: Report) -> Self {
        Self {
            report,
            single_task: None,
            known: None,
            put_off: None,
        }
    }
}

/// Keeps an attempt known to this node until its outcome is recorded, or is no longer this node's: on drop, the attempt
/// is forgotten.
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

/// Records outcomes; tries until they are recorded, or are no longer ours.
pub(crate) struct Outcomes(pub(crate) Arc<Runs>);

impl Commits for Outcomes {
    type Request = Outcome;
    type Answer = ();
    type Then = After;
    const POLICY: Policy = Policy {
        what: "outcomes",
        // The bound depends on the node's slots: `held::reports_max`. It is given when the queue is made.
        queue_max: 0,
        batch_max: 1_000,
        workers: 1,
        tries_max: None,
        again_after: AGAIN_AFTER,
        // A recorded attempt is not in *running* any more: the second try is refused as somebody else's.
        repeatable: true,
    };

    fn node(&self) -> &Node {
        &self.0.node
    }

    /// Two batches: the outcomes that are recorded by the short way, and the others. What has too many effects for one
    /// transaction waits for the next one.
    fn batches(&self, gathered: Vec<Asked<Self>>) -> Vec<Vec<Asked<Self>>> {
        let runs = &self.0;
        let (mut single_task, mut general) = (Vec::new(), Vec::new());
        let mut carried = 0;
        let (now, later) = within_effects(gathered, |asked| asked.request.load());
        for asked in later {
            runs.reports.put_off(runs, asked.request);
        }
        for mut asked in now {
            if let Some(bytes) = asked.request.put_off.take() {
                runs.held.unpark_effects(bytes);
            }
            let report = &mut asked.request.report;
            let room = match report.end {
                // Nothing is recorded, so no lines can be written with it.
                End::Dropped => 0,
                // The log writer writes them all.
                _ if !runs.node.short_ways.take(ShortWay::LinesWithOutcome) => 0,
                _ => LINES_PER_BATCH
                    .saturating_sub(carried)
                    .clamp(LINES_ALWAYS, LINES_PER_OUTCOME),
            };
            let Some(lines) = report.held.log.rest(room) else {
                // It keeps its slot, so that the waiting reports are bounded, but takes no processor time from others.
                runs.held.park();
                runs.reports.log_first(&runs.node, asked.request.report);
                continue;
            };
            carried += lines.len();
            if !lines.is_empty() {
                runs.node.short_ways.took(ShortWay::LinesWithOutcome);
            }
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
        // Attempts are forgotten only when their successors are known.
        drop(batch);
    }

    /// A failure replaces the outcome; if that is refused too, its run is given up.
    async fn refused(&self, outcome: Outcome, error: &EngineError) -> Option<Outcome> {
        let runs = &self.0;
        let Outcome {
            report, known, put_off, ..
        } = outcome;
        if is_unrecordable(&report.end) || is_newer(error) {
            let ended = EndedAttempt {
                run: report.run,
                at: report.at,
                lease: runs.lease(),
            };
            runs.reports.given_up.add(&runs.node, ended, error);
            return None;
        }
        tracing::error!(error = %Chain(error), run = %report.run, "cannot record the outcome of an attempt; the \
            attempt is recorded as failed");
        let ending = Ending::fatal(
            ErrorKind::Invalid,
            "the outcome could not be recorded; the log of the node has the cause",
        );
        // Perhaps the database has refused the log lines, and not the outcome.
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
            put_off,
        })
    }
}

impl Reports {
    /// Gives an attempt's outcome to the recorder. Its queue has room for each attempt that the node may hold. Should
    /// it be full, the report waits: a result is never thrown away.
    pub(crate) fn record(&self, node: &Node, report: Report) {
        self.put(node, report.into());
    }

    /// Puts an outcome behind all others that wait. Its attempt keeps its slot, so that the waiting reports are bounded. It
    /// takes no processor time from others, but memory: while few bytes wait so, the node takes others instead of it.
    fn put_off(&self, runs: &Runs, mut outcome: Outcome) {
        if outcome.put_off.is_none() {
            let bytes = outcome.load().bytes;
            outcome.put_off = runs.held.park_effects(bytes).then_some(bytes);
        }
        self.put(&runs.node, outcome);
    }

    fn put(&self, node: &Node, outcome: Outcome) {
        // The recorder runs as long as the node. If it is gone, the lease expires and another node runs the attempt
        // again.
        if let Err(outcome) = self.outcomes.put(outcome) {
            tracing::warn!(run = %outcome.report.run, "too many attempts have ended at the same time");
            let outcomes = self.outcomes.clone();
            node.tracker
                .spawn(async move { drop(outcomes.send_patiently(outcome).await) });
        }
    }
}

/// Divides outcomes into those of the next transaction, and those for whose effects it has no room. The first one always
/// has room.
fn within_effects<T>(outcomes: Vec<T>, load_of: impl Fn(&T) -> Load) -> (Vec<T>, Vec<T>) {
    let mut carried = Load::default();
    outcomes.into_iter().partition(|outcome| {
        let sum = carried.with(load_of(outcome));
        carried = sum.unwrap_or(carried);
        sum.is_some()
    })
}

/// Whether it replaces an outcome that was refused, or was itself refused.
fn is_unrecordable(end: &End) -> bool {
    matches!(end, End::Done(done) if matches!(&done.result, Ending::Failed { kind: ErrorKind::Invalid, .. }))
}

/// The end of a report's run, if the outcome alone decides it.
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
    runs.node.short_ways.took(ShortWay::SingleTaskEnd);
    if owned.len() < rows.len() {
        tracing::info!(
            refused = rows.len() - owned.len(),
            "outcomes were refused, because other nodes had taken over the attempts"
        );
    }
    let spans = spans_of(runs, reports, rows, &owned);
    let known: HashMap<RunId, Duration> = reports.iter().map(|report| (report.run, report.lasted)).collect();
    let lasted = owned.iter().filter_map(|run| known.get(run).copied()).collect();
    let after = single_task::after(owned, followed, reports.iter().map(|report| &*report.context));
    Ok(After { spans, lasted, ..after })
}

/// The spans of single-task runs that have ended.
fn spans_of(runs: &Runs, reports: &[&Report], rows: &[&SingleTaskEnd], owned: &[RunId]) -> Vec<Span> {
    if !runs.traces.are_wanted() {
        return Vec::new();
    }
    let owned: HashSet<RunId> = owned.iter().copied().collect();
    let reports: HashMap<RunId, &Report> = reports.iter().map(|&report| (report.run, report)).collect();
    let mut spans = Vec::with_capacity(rows.len() * 2);
    for row in rows.iter().filter(|row| owned.contains(&row.attempt.run)) {
        let Some(report) = reports.get(&row.attempt.run) else {
            continue;
        };
        // The database knows when the attempt was taken; here the node's own monotonic clock is accurate enough.
        let took = runs.node.clock.elapsed().saturating_sub(report.held.since);
        let took = chrono::TimeDelta::from_std(took).unwrap_or_default();
        let started_at = runs.now() - took;
        let context = &report.context;
        spans.extend(runs.traces.attempt_span(context, &row.attempt, started_at));
        let run_span = runs
            .traces
            .run_span(context, row.state, row.error.as_deref(), report.finished_at);
        spans.extend(run_span);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Three hundred items with as many effects each come into many transactions; each outcome without effects is in the
    /// first one.
    #[test]
    fn outcomes_without_effects_wait_for_no_more_than_a_transaction_of_effects() {
        let load_of = |outcome: &usize| Load {
            effects: *outcome,
            bytes: *outcome,
        };
        let gathered = [300, 0].repeat(300);
        let (mut now, mut later) = within_effects(gathered, load_of);
        assert_eq!(now.iter().filter(|outcome| **outcome == 0).count(), 300);
        let mut transactions = 0;
        while !now.is_empty() {
            assert!(now.iter().sum::<usize>() <= EFFECTS_PER_BATCH);
            transactions += 1;
            // What comes meanwhile is recorded next, although it came later.
            if !later.is_empty() {
                later.push(0);
            }
            (now, later) = within_effects(later, load_of);
            assert!(!later.contains(&0));
        }
        assert_eq!(transactions, 50);
        // Whatever an attempt has, it is recorded.
        let (now, later) = within_effects(vec![EFFECTS_PER_BATCH + 1, 0, 1], load_of);
        assert_eq!((now, later), (vec![EFFECTS_PER_BATCH + 1, 0], vec![1]));
    }

    /// A few large effects fill a transaction as many small ones do.
    #[test]
    fn the_bytes_of_effects_are_bounded_too() {
        const MIB: usize = 1 << 20;
        let load_of = |bytes: &usize| Load {
            effects: usize::from(*bytes > 0),
            bytes: *bytes,
        };
        let gathered = vec![3 * MIB, 0, 5 * MIB, 1, 0, 8 * MIB];
        let (now, later) = within_effects(gathered, load_of);
        assert_eq!(
            (now, later.as_slice()),
            (vec![3 * MIB, 0, 5 * MIB, 0], &[1, 8 * MIB][..])
        );
        // What came first goes first, and the largest that an attempt may have is recorded too.
        let (now, later) = within_effects(later, load_of);
        assert_eq!((now, later.as_slice()), (vec![1], &[8 * MIB][..]));
        let (now, later) = within_effects(vec![EFFECT_BYTES_PER_BATCH + 1, 1], load_of);
        assert_eq!((now, later), (vec![EFFECT_BYTES_PER_BATCH + 1], vec![1]));
    }
}
