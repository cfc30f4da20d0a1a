//! The log writer: lines of attempts that are under way, so that they can be followed on every node, and of attempts
//! that ended with more of them than their outcome should carry.
//!
//! ```text
//! guest --> LogBuffer --take--> a round: all who have lines, the modest first --> INSERT, 1,000 lines each, rests
//! ended, many lines left --> waits here, keeps its slot --all written--> to the recorder, outcome recorded
//! ```
//!
//! # Invariants
//!
//! * An outcome is recorded when all lines before it are committed: [`LogBuffer::rest`] gives nothing while lines are
//!   under way, and the recorder then hands the report to this loop.
//! * The lines of one attempt are written in their order.
//! * A script that floods its log slows nobody: it takes [`SHARE`] lines of a round, its outcome waits alone, and the
//!   writer rests for as long as Postgres worked for it, so that half of a core at most goes into lines.
//! * What waits is bounded: an attempt's log by its limit, attempts by the node's slots, which they keep meanwhile.

use std::sync::Arc;
use std::time::Duration;

use heddle_domain::Chain;
use heddle_store::live::LogRow;
use tokio::sync::mpsc;

use crate::Inner;
use crate::hands::LogBuffer;
use crate::work::Report;

/// How long a line may wait before others can see it, unless somebody floods.
const FLUSH_EVERY: Duration = Duration::from_millis(200);

/// How many lines one statement writes.
const LINES_MAX: usize = 1_000;

/// How many bytes of text one statement writes, near enough: a line has 64 KiB at most.
const BYTES_MAX: usize = 1 << 20;

/// How many lines of one attempt a round takes.
const SHARE: usize = 500;

/// How often a statement is tried before its lines are given up: logs must not hold up outcomes for ever.
const TRIES_MAX: u32 = 20;

impl Inner {
    /// An attempt has ended, but its log has to be written before that can be recorded.
    pub(crate) fn log_first(&self, report: Report) {
        // It keeps its slot, so that what waits here is bounded, but takes no turn from others.
        self.hands.park();
        // There is a place for each attempt that the node may have in hand; should there be none, the report waits for one.
        if let Err(mpsc::error::TrySendError::Full(report)) = self.log_writer.try_send(report) {
            tracing::warn!(run = %report.run, "more attempts with long logs have ended than the node has places for");
            let log_writer = self.log_writer.clone();
            self.tracker.spawn(async move { drop(log_writer.send(report).await) });
        }
    }
}

pub(crate) async fn write(inner: Arc<Inner>, mut reports: mpsc::Receiver<Report>) {
    let mut ended: Vec<Report> = Vec::new();
    loop {
        tokio::select! {
            () = inner.stop.cancelled() => return,
            // What has ended goes first: somebody waits for its outcome.
            Some(report) = reports.recv() => ended.push(report),
            () = tokio::time::sleep(FLUSH_EVERY), if ended.is_empty() => {}
        }
        loop {
            while let Ok(report) = reports.try_recv() {
                ended.push(report);
            }
            round(&inner, &ended).await;
            for report in ended.extract_if(.., |report| report.hand.log.is_written()) {
                inner.hands.unpark();
                let _ = inner.outcomes.send_patiently(report.into()).await;
            }
            if ended.is_empty() || inner.stop.is_cancelled() {
                break;
            }
        }
    }
}

/// Writes a share of everybody's lines.
async fn round(inner: &Inner, ended: &[Report]) {
    let mut shares: Vec<(Arc<LogBuffer>, Vec<LogRow>)> = Vec::new();
    let logs = ended.iter().map(|report| report.hand.log.clone());
    for log in logs.chain(inner.hands.logs()) {
        // Those that have ended are in hand too.
        if shares.iter().any(|(taken, _)| Arc::ptr_eq(taken, &log)) {
            continue;
        }
        let lines = log.take(SHARE);
        if !lines.is_empty() {
            shares.push((log, lines));
        }
    }
    shares.sort_by_key(|(_, lines)| lines.len());
    let mut chunk = Vec::new();
    let mut bytes = 0;
    let mut whose = Vec::new();
    for (log, lines) in shares {
        bytes += lines.iter().map(bytes_of).sum::<usize>();
        chunk.extend(lines);
        whose.push(log);
        if chunk.len() >= LINES_MAX || bytes >= BYTES_MAX {
            flush(inner, &mut chunk, &mut whose).await;
            bytes = 0;
        }
    }
    flush(inner, &mut chunk, &mut whose).await;
}

fn bytes_of(row: &LogRow) -> usize {
    row.message.len() + row.fields.as_ref().map_or(0, String::len)
}

/// Writes these lines, says so to those whose lines they are, and rests.
async fn flush(inner: &Inner, lines: &mut Vec<LogRow>, whose: &mut Vec<Arc<LogBuffer>>) {
    if lines.is_empty() {
        return;
    }
    let took = insert(inner, lines).await;
    lines.clear();
    for log in whose.drain(..) {
        log.written();
    }
    tokio::time::sleep(took).await;
}

/// For how long the last try took.
async fn insert(inner: &Inner, lines: &[LogRow]) -> Duration {
    for attempt in 1..=TRIES_MAX {
        let began = tokio::time::Instant::now();
        match inner.store.insert_logs(lines).await {
            Ok(()) => return began.elapsed(),
            Err(error) if attempt == TRIES_MAX || inner.stop.is_cancelled() => {
                tracing::error!(error = %Chain(&error), lines = lines.len(), "log lines are lost");
            }
            Err(error) => {
                tracing::warn!(error = %Chain(&error), lines = lines.len(), "cannot write log lines; trying again");
                tokio::time::sleep(FLUSH_EVERY).await;
            }
        }
        if inner.stop.is_cancelled() {
            break;
        }
    }
    Duration::ZERO
}
