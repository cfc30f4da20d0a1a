//! The pump: records what has ended and claims what is next, over and over, side by side.
//!
//! Outcomes gather while a transaction is under way; the next one records them all. A run of one task run takes the
//! short way (`complete_sole`, one statement), everything else the long one (lock, decide, write). What became ready is
//! handed to this node in the same transaction where it has room; only what waits for room is claimed, by a loop of its
//! own, so that one batch is claimed while the guests of another run and the outcomes of a third are recorded.
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
use std::sync::atomic::Ordering;
use std::time::Duration;

use heddle_domain::Chain;
use heddle_domain::id::RunId;
use heddle_domain::state::ErrorKind;
use heddle_store::live::{EndedAttempt, LogRow, SoleRow};
use tokio::sync::mpsc;

use crate::apply::{After, Applied};
use crate::group_commit::is_passing;
use crate::signals::Signal;
use crate::trace::Span;
use crate::work::{Contexts, End, Ending, Report};
use crate::{EngineError, Inner, sole};

/// How many outcomes one transaction records.
const BATCH_MAX: usize = 1_000;

/// How many lines of its log an outcome may take along, and how many all of a transaction: others wait for them.
const LINES_PER_OUTCOME: usize = 200;
const LINES_PER_BATCH: usize = 4_000;

/// So few lines go along whatever the others bring.
const LINES_ALWAYS: usize = 8;

/// How often a node looks for work that nobody told it of; when it has had none for a while, less often.
const POLL_BUSY: Duration = Duration::from_millis(100);
const POLL_IDLE: Duration = Duration::from_millis(1_000);

/// How long to wait before a transaction that failed is tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// While there is a backlog, so much room has to come free before the next claim: small claims cost as much as large.
const ROOM_MIN: usize = crate::hands::SHORT_TARGET / 4;

/// How long to wait for that much room.
const ROOM_WAIT: Duration = Duration::from_millis(5);

/// Records what has ended.
pub(crate) async fn record_loop(inner: Arc<Inner>, mut reports: mpsc::Receiver<Report>) {
    let mut batch: Vec<Report> = Vec::with_capacity(BATCH_MAX);
    loop {
        tokio::select! {
            biased;
            count = reports.recv_many(&mut batch, BATCH_MAX) => if count == 0 { return },
            () = inner.stop.cancelled() => return,
        }
        record(&inner, std::mem::take(&mut batch)).await;
    }
}

/// Claims what is ready, as far as there is room. A loop of its own, so that one batch is claimed while another is
/// being recorded.
pub(crate) async fn claim_loop(inner: Arc<Inner>) {
    let mut idle: u32 = 0;
    loop {
        let backlog = inner.backlog.load(Ordering::Relaxed);
        let poll = match (backlog, idle > 20) {
            (true, _) => ROOM_WAIT,
            (false, true) => POLL_IDLE,
            (false, false) => POLL_BUSY,
        };
        tokio::select! {
            () = inner.signals.raised(Signal::Work) => {}
            () = inner.signals.raised(Signal::Freed), if backlog => if inner.room().free < ROOM_MIN { continue },
            () = inner.stop.cancelled() => return,
            () = tokio::time::sleep(poll) => idle = idle.saturating_add(1),
        }
        claim(&inner, &mut idle).await;
    }
}

/// Claims as much as there is room for.
async fn claim(inner: &Arc<Inner>, idle: &mut u32) {
    let room = inner.room();
    if room.claimable() == 0 {
        // Whatever frees a slot brings the claimer around again.
        inner.backlog.store(true, Ordering::Relaxed);
        return;
    }
    match inner.store.claim(inner.lease(), room, inner.now()).await {
        Ok(claimed) => {
            if !claimed.is_empty() {
                *idle = 0;
            }
            inner
                .backlog
                .store(claimed.len() >= room.claimable(), Ordering::Relaxed);
            if let Some(last) = claimed.iter().map(|claimed| claimed.turn).max() {
                inner.turn.fetch_max(last, Ordering::Relaxed);
            }
            inner.take(claimed.into_iter().map(|claimed| (claimed.run, claimed.at)).collect());
        }
        Err(error) => {
            tracing::warn!(error = %Chain(&error), "cannot claim");
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }
}

/// Records outcomes until they are recorded, or are not ours any more.
async fn record(inner: &Arc<Inner>, reports: Vec<Report>) {
    let mut known = Vec::with_capacity(reports.len());
    let mut batch = Vec::with_capacity(reports.len());
    let mut carried = 0;
    for mut report in reports {
        let room = match report.end {
            // Nothing is recorded that could take lines along.
            End::Dropped => 0,
            _ => LINES_PER_BATCH
                .saturating_sub(carried)
                .clamp(LINES_ALWAYS, LINES_PER_OUTCOME),
        };
        let Some(lines) = report.hand.log.rest(room) else {
            inner.log_first(report);
            continue;
        };
        carried += lines.len();
        report.lines = lines;
        inner.hands.release(report.run, report.at);
        known.push((report.run, report.at));
        batch.push(report);
    }
    inner.signals.raise(Signal::Freed);
    record_all(inner, batch).await;
    for (run, at) in known {
        inner.hands.forget(run, at);
    }
}

async fn record_all(inner: &Arc<Inner>, reports: Vec<Report>) {
    let reports = reports.into_iter().filter(|report| !matches!(report.end, End::Dropped));
    let (sole, general): (Vec<Report>, Vec<Report>) = reports.partition(|report| is_sole(inner, report));
    let mut batches = Vec::new();
    if !sole.is_empty() {
        batches.push((true, sole));
    }
    if !general.is_empty() {
        batches.push((false, general));
    }
    while let Some((sole, mut batch)) = batches.pop() {
        if inner.fenced.load(Ordering::Acquire) {
            // Without the lease nothing can be recorded: other nodes run these again.
            continue;
        }
        let result = if sole {
            record_sole(inner, &batch).await
        } else {
            record_general(inner, &batch).await
        };
        let error = match result {
            Ok(()) => continue,
            Err(error) => error,
        };
        if is_passing(&error) {
            tracing::warn!(error = %Chain(&error), outcomes = batch.len(), "cannot record outcomes; trying again");
            tokio::time::sleep(AGAIN_AFTER).await;
            batches.push((sole, batch));
        } else if batch.len() > 1 {
            let second = batch.split_off(batch.len() / 2);
            batches.push((sole, batch));
            batches.push((sole, second));
        } else if let Some(report) = batch.pop() {
            if is_unrecordable(&report.end) {
                let ended = EndedAttempt {
                    run: report.run,
                    at: report.at,
                    lease: inner.lease(),
                };
                inner.give_up(ended, &error).await;
                continue;
            }
            tracing::error!(error = %Chain(&error), run = %report.run, "an outcome cannot be recorded; a failure takes its place");
            let ending = Ending::fatal(
                ErrorKind::Invalid,
                "the outcome could not be recorded; see the node's log",
            );
            // Its log may be what was refused.
            let failure = Report {
                end: End::plain(ending),
                lines: Vec::new(),
                ..report
            };
            batches.push((is_sole(inner, &failure), vec![failure]));
        }
    }
}

/// Whether it stands in the place of an outcome that was refused, or is refused as what it was.
fn is_unrecordable(end: &End) -> bool {
    matches!(end, End::Done(done) if matches!(&done.result, Ending::Failed { kind: ErrorKind::Invalid, .. }))
}

/// Whether a report's outcome is all that there is to know of its run.
fn is_sole(inner: &Inner, report: &Report) -> bool {
    sole::end_of(inner, &report.context, report.at, &report.end, report.finished_at).is_some()
}

async fn record_sole(inner: &Arc<Inner>, reports: &[Report]) -> Result<(), EngineError> {
    let lease = inner.lease();
    let node = Some(inner.config.node);
    let mut rows = Vec::with_capacity(reports.len());
    for report in reports {
        let ended = EndedAttempt {
            run: report.run,
            at: report.at,
            lease,
        };
        let row = sole::row(inner, &report.context, ended, &report.end, report.finished_at, node);
        rows.extend(row.transpose()?);
    }
    let lines = lines_of(reports);
    let (owned, followed) = inner
        .store
        .complete_sole(&rows, &lines, lease, inner.config.node)
        .await?;
    if owned.len() < rows.len() {
        tracing::info!(
            refused = rows.len() - owned.len(),
            "outcomes were refused: the attempts had been taken away"
        );
    }
    let spans = spans_of(inner, reports, &rows, &owned);
    let after = sole::after(owned, followed, reports.iter().map(|report| &*report.context));
    inner.acted(After { spans, ..after });
    Ok(())
}

/// What a tracer hears of runs of one task that have ended.
fn spans_of(inner: &Inner, reports: &[Report], rows: &[SoleRow], owned: &[RunId]) -> Vec<Span> {
    if inner.tracer.get().is_none() {
        return Vec::new();
    }
    let owned: HashSet<RunId> = owned.iter().copied().collect();
    let reports: HashMap<RunId, &Report> = reports.iter().map(|report| (report.run, report)).collect();
    let mut spans = Vec::with_capacity(rows.len() * 2);
    for row in rows.iter().filter(|row| owned.contains(&row.attempt.run)) {
        let Some(report) = reports.get(&row.attempt.run) else {
            continue;
        };
        // When it was taken the database knows; here it is near enough by this node's own watch.
        let took = chrono::TimeDelta::from_std(report.hand.since.elapsed()).unwrap_or_default();
        let started_at = inner.now() - took;
        let context = &report.context;
        spans.extend(inner.attempt_span(context, &row.attempt, started_at));
        spans.extend(inner.run_span(context, row.state, row.error.as_deref(), report.finished_at));
    }
    spans
}

async fn record_general(inner: &Arc<Inner>, reports: &[Report]) -> Result<(), EngineError> {
    let now = inner.now();
    let lease = inner.lease();
    let mut contexts = Contexts::with_capacity(reports.len());
    for report in reports {
        let context = inner.contexts.get(&report.run).unwrap_or_else(|| {
            inner.contexts.insert(report.run, report.context.clone());
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
            finished_at: report.finished_at,
            node: Some(inner.config.node),
        })
        .collect();
    let mut grant = inner.grant();
    let mut completion = inner.store.completion(lease, now).await?;
    completion.insert_logs(&lines_of(reports)).await?;
    let after = inner
        .apply(&mut completion, &contexts, outcomes, &mut grant, now)
        .await?;
    completion.commit().await?;
    inner.acted(after);
    Ok(())
}

fn lines_of(reports: &[Report]) -> Vec<LogRow> {
    reports.iter().flat_map(|report| report.lines.iter().cloned()).collect()
}
