//! The pump: records what has ended and claims what is next, over and over.
//!
//! Outcomes gather while a transaction is under way; the next one records them all. A run of one task run takes the
//! short way (`complete_sole`), everything else the long one (lock, decide, write). The claim rides in the same
//! transaction, so a busy node commits once for all of it.
//!
//! # Invariants
//!
//! * An outcome leaves memory only when it is committed, or when the database says that it is not ours to report.
//! * One poisonous outcome (which Postgres refuses) does not keep others from being recorded: batches are halved until
//!   it stands alone, then it is recorded as a failure.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use heddle_domain::plan::Plan;
use heddle_domain::run::{Progress, decide};
use heddle_domain::state::{ErrorKind, RunState};
use heddle_store::live::{Claimed, EndedAttempt, LogRow, SoleRow};
use tokio::sync::mpsc;

use crate::apply::{After, Applied, attempt_row, event_of, is_passing};
use crate::work::{End, Ending, Report};
use crate::{EngineError, Inner};

/// How many outcomes one transaction records.
const BATCH_MAX: usize = 1_000;

/// How often a node looks for work that nobody told it of; when it has had none for a while, less often.
const POLL_BUSY: Duration = Duration::from_millis(100);
const POLL_IDLE: Duration = Duration::from_millis(1_000);

/// How long to wait before a transaction that failed is tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

pub(crate) async fn run(inner: Arc<Inner>, mut reports: mpsc::UnboundedReceiver<Report>) {
    let mut batch: Vec<Report> = Vec::with_capacity(BATCH_MAX);
    let mut idle: u32 = 0;
    loop {
        let poll = if idle > 20 { POLL_IDLE } else { POLL_BUSY };
        let mut look = false;
        tokio::select! {
            biased;
            count = reports.recv_many(&mut batch, BATCH_MAX) => if count == 0 { return },
            () = inner.work.notified() => look = true,
            () = inner.stop.cancelled() => return,
            () = tokio::time::sleep(poll) => { look = true; idle = idle.saturating_add(1); }
        }
        if !batch.is_empty() {
            idle = 0;
            record(&inner, std::mem::take(&mut batch)).await;
        }
        if look || inner.backlog.load(Ordering::Relaxed) {
            claim(&inner, &mut idle).await;
        }
    }
}

/// Claims as much as there is room for.
async fn claim(inner: &Arc<Inner>, idle: &mut u32) {
    let room = inner.room();
    if room == 0 {
        // Whatever frees a slot brings the pump around again.
        return;
    }
    match inner.store.claim(inner.lease(), room, inner.now()).await {
        Ok(claimed) => {
            if !claimed.is_empty() {
                *idle = 0;
            }
            taken(inner, claimed, room);
        }
        Err(error) => {
            tracing::warn!(%error, "cannot claim");
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }
}

fn taken(inner: &Arc<Inner>, claimed: Vec<Claimed>, limit: usize) {
    inner.backlog.store(claimed.len() >= limit, Ordering::Relaxed);
    if let Some(last) = claimed.iter().map(|claimed| claimed.turn).max() {
        inner.turn.fetch_max(last, Ordering::Relaxed);
    }
    inner.take(claimed.into_iter().map(|claimed| (claimed.run, claimed.at)).collect());
}

/// Records outcomes until they are recorded, or are not ours any more.
async fn record(inner: &Arc<Inner>, reports: Vec<Report>) {
    for report in &reports {
        inner.hands.remove(report.run, report.at);
    }
    let reports: Vec<Report> = reports
        .into_iter()
        .filter(|report| !matches!(report.end, End::Dropped))
        .collect();
    let lines: Vec<LogRow> = reports.iter().flat_map(|report| report.hand.log.drain()).collect();
    crate::logs::flush(inner, lines).await;
    let (sole, general): (Vec<Report>, Vec<Report>) = reports.into_iter().partition(is_sole);
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
            tracing::warn!(%error, outcomes = batch.len(), "cannot record outcomes; trying again");
            tokio::time::sleep(AGAIN_AFTER).await;
            batches.push((sole, batch));
        } else if batch.len() > 1 {
            let second = batch.split_off(batch.len() / 2);
            batches.push((sole, batch));
            batches.push((sole, second));
        } else if let Some(report) = batch.pop() {
            tracing::error!(%error, source = ?std::error::Error::source(&error), run = %report.run, "an outcome cannot be recorded");
            let ending = Ending::fatal(
                ErrorKind::Invalid,
                "the outcome could not be recorded; see the node's log",
            );
            if !matches!(&report.end, End::Done(done) if matches!(&done.result, Ending::Failed { kind: ErrorKind::Invalid, .. }))
            {
                batches.push((
                    sole,
                    vec![Report {
                        end: End::plain(ending),
                        ..report
                    }],
                ));
            }
        }
    }
}

/// Whether a report's outcome is all that there is to know of its run.
fn is_sole(report: &Report) -> bool {
    let context = &report.context;
    let plan = &context.revision.plan;
    let End::Done(done) = &report.end else { return false };
    plan.tasks.len() == 1
        && !plan.tasks[0].mapped
        && report.at.attempt == 1
        && done.effects.is_empty()
        && !context.facts.has_parent
        && context.facts.deadline_at.is_none()
        && !context.revision.is_gated(context.facts.trigger)
        && ends_run(plan, report).is_some()
}

/// How a fresh run of one task ends with this outcome, if it does.
fn ends_run(plan: &Plan, report: &Report) -> Option<(RunState, Progress)> {
    let mut progress = report.context.revision.start.1.clone();
    let mut state = RunState::Running;
    let events = [event_of(report.at, &report.end)];
    let actions = decide(plan, &mut state, &mut progress, &events, report.finished_at, &mut || 0).ok()?;
    actions.finished.map(|finished| (finished, progress))
}

async fn record_sole(inner: &Arc<Inner>, reports: &[Report]) -> Result<(), EngineError> {
    let lease = inner.lease();
    let mut rows = Vec::with_capacity(reports.len());
    for report in reports {
        let End::Done(done) = &report.end else { continue };
        let Some((state, progress)) = ends_run(&report.context.revision.plan, report) else {
            continue;
        };
        let ended = EndedAttempt {
            run: report.run,
            at: report.at,
            lease,
        };
        let attempt = attempt_row(
            ended,
            done.clone(),
            report.finished_at,
            report.finished_at,
            Some(inner.config.node),
        );
        let error = (state == RunState::Failed)
            .then(|| progress.error().map(str::to_owned))
            .flatten();
        rows.push(SoleRow {
            attempt,
            state,
            progress: progress.to_bytes(),
            error,
        });
    }
    let owned = inner.store.complete_sole(&rows, lease, inner.config.node).await?;
    if owned.len() < rows.len() {
        tracing::info!(
            refused = rows.len() - owned.len(),
            "outcomes were refused: the attempts had been taken away"
        );
    }
    let after = After {
        moved: owned.clone(),
        recorded: owned.len() as u64,
        finished: owned,
        ..After::default()
    };
    inner.acted(after);
    Ok(())
}

async fn record_general(inner: &Arc<Inner>, reports: &[Report]) -> Result<(), EngineError> {
    let now = inner.now();
    let lease = inner.lease();
    for report in reports {
        if inner.contexts.get(&report.run).is_none() {
            inner.contexts.insert(report.run, report.context.clone());
        }
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
        })
        .collect();
    let backlog = inner.backlog.load(Ordering::Relaxed);
    let room = inner.room();
    let mut completion = inner.store.completion(lease, now).await?;
    // With a backlog everything queues: what became ready must not overtake what has waited.
    let after = inner
        .apply(&mut completion, outcomes, if backlog { 0 } else { room }, now)
        .await?;
    let claimed = if backlog && room > 0 {
        completion.claim(room).await?
    } else {
        Vec::new()
    };
    completion.commit().await?;
    inner.acted(after);
    if backlog && room > 0 {
        taken(inner, claimed, room);
    }
    Ok(())
}
