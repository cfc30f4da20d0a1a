//! The log writer writes lines of running attempts, so that they can be followed on every node, and of ended attempts
//! with more lines than their outcome should take along.
//!
//! ```text
//! guest --> LogBuffer --take--> a round: all who have lines, the modest first --> INSERT, 1,000 lines each, rests
//! ended, many lines left --> waits here, keeps its slot --all written--> to the recorder, outcome recorded
//! ```
//!
//! # Invariants
//!
//! * An outcome is recorded when all lines before it are committed: [`LogBuffer::rest`] returns nothing while lines are
//!   being written, and the recorder then gives the report to the log writer.
//! * The lines of one attempt are written in their order.
//! * A script that floods its log slows down nobody: it gets [`SHARE`] lines of a round, its outcome waits alone, and
//!   the writer pauses for as long as Postgres worked for it, so that lines cost half a core at most.
//! * All that waits is bounded: lines by [`LogBuffer`], attempts by the node's slots, which they keep meanwhile.
//! * No outcome waits longer than [`LAG_MAX`] of writing for its lines: the others are left out, and a line says so.

use std::sync::Arc;
use std::time::Duration;

use heddle_domain::{Chain, Time};
use heddle_store::live::LogRow;
use tokio::sync::mpsc;

use crate::node::Node;
use crate::node::service::{Needs, Service};
use crate::runs::held::Report;
use crate::runs::log_buffer::LogBuffer;
use crate::{EngineError, Runs};

/// How long a line may wait before others can see it, unless there is a flood.
const FLUSH_EVERY: Duration = Duration::from_millis(200);

/// How many lines one statement writes.
const LINES_MAX: usize = 1_000;

/// How many bytes of text one statement writes, approximately: a line has at most 64 KiB.
const BYTES_MAX: usize = 1 << 20;

/// How many lines of one attempt a round takes. Fewer if many attempts have lines, so that a round takes some ten
/// thousand, and new lines do not wait longer.
const SHARE: usize = 500;
const SHARE_MIN: usize = 20;
const ROUND_MAX: usize = 10_000;

/// How long (in time spent on writing, not on a database that does not answer) an outcome waits for its lines.
const LAG_MAX: Duration = Duration::from_secs(5);

/// How often a statement is tried before its lines are dropped: logs must not hold up outcomes for ever.
const TRIES_MAX: u32 = 20;

impl Runs {
    /// An attempt has ended, but its log must be written before its outcome.
    pub(crate) fn log_first(&self, report: Report) {
        // It keeps its slot, so that the waiting reports are bounded, but takes no processor time from others.
        self.held.park();
        // The channel has room for each attempt that the node may have in hand. Should it be full, the report waits.
        if let Err(mpsc::error::TrySendError::Full(report)) = self.reports.log_writer.try_send(report) {
            tracing::warn!(run = %report.run, "too many attempts with long logs have ended at the same time");
            let log_writer = self.reports.log_writer.clone();
            self.node
                .tracker
                .spawn(async move { drop(log_writer.send(report).await) });
        }
    }
}

/// An attempt that has ended, and how long lines have been written since then.
struct Ended {
    report: Report,
    lag: Duration,
}

impl From<Report> for Ended {
    fn from(report: Report) -> Self {
        Self {
            report,
            lag: Duration::ZERO,
        }
    }
}

pub(crate) struct LogWriter {
    runs: Arc<Runs>,
    reports: mpsc::Receiver<Report>,
    ended: Vec<Ended>,
}

impl LogWriter {
    pub(crate) fn of(runs: Arc<Runs>, reports: mpsc::Receiver<Report>) -> Self {
        Self {
            runs,
            reports,
            ended: Vec::new(),
        }
    }
}

impl Service for LogWriter {
    const FAILED: &'static str = "cannot write log lines; trying again";
    const NEEDS: Needs = Needs::Nothing;
    const AGAIN_AFTER: Duration = FLUSH_EVERY;

    fn node(&self) -> &Arc<Node> {
        &self.runs.node
    }

    fn first_after(&self) -> Duration {
        FLUSH_EVERY
    }

    /// Woken by an attempt that has ended: its outcome waits.
    async fn woken(&mut self) {
        match self.reports.recv().await {
            Some(report) => self.ended.push(report.into()),
            None => std::future::pending().await,
        }
    }

    async fn tick(&mut self, _now: Time) -> Result<Duration, EngineError> {
        let runs = &self.runs;
        while let Ok(report) = self.reports.try_recv() {
            self.ended.push(report.into());
        }
        let took = round(runs, &self.ended).await;
        let is_done = |ended: &mut Ended| {
            ended.lag += took;
            if ended.lag >= LAG_MAX {
                ended.report.held.log.cut();
            }
            ended.lag >= LAG_MAX || ended.report.held.log.is_written()
        };
        for Ended { report, .. } in self.ended.extract_if(.., is_done) {
            runs.held.unpark();
            let _ = runs.reports.outcomes.send_patiently(report.into()).await;
        }
        Ok(match self.ended.is_empty() {
            true => FLUSH_EVERY,
            false => Duration::ZERO,
        })
    }
}

/// Writes some lines of each attempt; returns how long that took, with the pauses.
async fn round(runs: &Runs, ended: &[Ended]) -> Duration {
    // Usually those that have ended are in hand too.
    let mut logs = runs.held.logs();
    logs.extend(ended.iter().map(|ended| ended.report.held.log.clone()));
    logs.retain(|log| !log.is_written());
    logs.sort_by_key(Arc::as_ptr);
    logs.dedup_by(|one, other| Arc::ptr_eq(one, other));
    let share = (ROUND_MAX / logs.len().max(1)).clamp(SHARE_MIN, SHARE);
    let mut shares: Vec<(Arc<LogBuffer>, Vec<LogRow>)> = Vec::with_capacity(logs.len());
    for log in logs {
        let lines = log.take(share);
        shares.push((log, lines));
    }
    shares.sort_by_key(|(_, lines)| lines.len());
    let mut chunk = Vec::new();
    let mut bytes = 0;
    let mut whose = Vec::new();
    let mut took = Duration::ZERO;
    for (log, lines) in shares {
        bytes += lines.iter().map(bytes_of).sum::<usize>();
        chunk.extend(lines);
        whose.push(log);
        if chunk.len() >= LINES_MAX || bytes >= BYTES_MAX {
            took += flush(runs, &mut chunk, &mut whose).await;
            bytes = 0;
        }
    }
    took + flush(runs, &mut chunk, &mut whose).await
}

fn bytes_of(row: &LogRow) -> usize {
    row.message.len() + row.fields.as_ref().map_or(0, String::len)
}

/// Writes these lines, confirms them to their buffers, and pauses.
async fn flush(runs: &Runs, lines: &mut Vec<LogRow>, whose: &mut Vec<Arc<LogBuffer>>) -> Duration {
    if lines.is_empty() {
        return Duration::ZERO;
    }
    let took = insert(runs, lines).await;
    lines.clear();
    for log in whose.drain(..) {
        log.written();
    }
    tokio::time::sleep(took).await;
    2 * took
}

/// Returns how long the last try took.
async fn insert(runs: &Runs, lines: &[LogRow]) -> Duration {
    for attempt in 1..=TRIES_MAX {
        let began = tokio::time::Instant::now();
        match runs.node.store.insert_logs(lines).await {
            Ok(()) => return began.elapsed(),
            Err(error) if attempt == TRIES_MAX || runs.node.stop.is_cancelled() => {
                tracing::error!(error = %Chain(&error), lines = lines.len(), "log lines are lost, because the \
                    database did not accept them");
            }
            Err(error) => {
                tracing::warn!(error = %Chain(&error), lines = lines.len(), "cannot write log lines; trying again");
                tokio::time::sleep(FLUSH_EVERY).await;
            }
        }
        if runs.node.stop.is_cancelled() {
            break;
        }
    }
    Duration::ZERO
}
