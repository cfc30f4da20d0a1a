//! The log writer writes lines of running attempts, so that they can be followed on every node, and of ended attempts
//! that have too many lines to be written together with their outcome.
//!
//! ```text
//! guest --> LogBuffer --take--> a round: all who have lines, the modest first --> INSERT, 1,000 lines a tick, rests
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

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use heddle_domain::{Chain, Time};
use heddle_store::live::LogRow;
use tokio::sync::mpsc;

use crate::node::Node;
use crate::node::service::{Needs, Service};
use crate::runs::record::log_buffer::LogBuffer;
use crate::runs::record::recorder::Reports;
use crate::runs::take::held::Report;
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

impl Reports {
    /// An attempt has ended, but its log must be written before its outcome.
    pub(crate) fn log_first(&self, node: &Node, report: Report) {
        // The channel has room for each attempt that the node may have in hand. Should it be full, the report waits.
        if let Err(mpsc::error::TrySendError::Full(report)) = self.log_writer.try_send(report) {
            tracing::warn!(run = %report.run, "too many attempts with long logs have ended at the same time");
            let log_writer = self.log_writer.clone();
            node.tracker.spawn(async move { drop(log_writer.send(report).await) });
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

/// Writes one statement in each tick. The pause after it is the time until the next tick.
pub(crate) struct LogWriter {
    runs: Arc<Runs>,
    reports: mpsc::Receiver<Report>,
    ended: Vec<Ended>,
    /// The rest of a round: the lines that were taken of each log, those with few lines first.
    round: VecDeque<(Arc<LogBuffer>, Vec<LogRow>)>,
    /// What the next statement writes.
    statement: Statement,
    /// It has written, and pauses: no signal ends the pause.
    rests: bool,
}

/// Lines that are written together.
#[derive(Default)]
struct Statement {
    lines: Vec<LogRow>,
    /// The logs that they are from.
    whose: Vec<Arc<LogBuffer>>,
    /// How many tries have failed.
    tries: u32,
}

impl LogWriter {
    pub(crate) fn of(runs: Arc<Runs>, reports: mpsc::Receiver<Report>) -> Self {
        Self {
            runs,
            reports,
            ended: Vec::new(),
            round: VecDeque::new(),
            statement: Statement::default(),
            rests: false,
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
        if self.rests {
            return std::future::pending().await;
        }
        match self.reports.recv().await {
            Some(report) => self.ended.push(report.into()),
            None => std::future::pending().await,
        }
    }

    async fn tick(&mut self, _now: Time) -> Result<Duration, EngineError> {
        while let Ok(report) = self.reports.try_recv() {
            self.ended.push(report.into());
        }
        let has_rested = std::mem::take(&mut self.rests);
        if self.is_round_over() {
            if has_rested && self.ended.is_empty() {
                return Ok(FLUSH_EVERY);
            }
            self.begin_round();
        }
        let took = self.write().await?;
        if self.is_round_over() {
            self.report_ended().await;
        }
        self.rests = took.is_some();
        Ok(took.unwrap_or(FLUSH_EVERY))
    }

    /// The lines of the round are already taken out of the buffers.
    async fn finish(&mut self) {
        while !self.is_round_over() {
            if let Err(error) = self.write().await {
                tracing::error!(error = %Chain(&error), "log lines are lost, because the node stops");
                return;
            }
        }
    }
}

impl LogWriter {
    fn is_round_over(&self) -> bool {
        self.round.is_empty() && self.statement.lines.is_empty()
    }

    /// Takes some lines of each attempt.
    fn begin_round(&mut self) {
        // Usually the attempts that have ended are still among the current ones.
        let mut logs = self.runs.held.logs();
        logs.extend(self.ended.iter().map(|ended| ended.report.held.log.clone()));
        logs.retain(|log| !log.is_written());
        logs.sort_by_key(Arc::as_ptr);
        logs.dedup_by(|one, other| Arc::ptr_eq(one, other));
        let share = (ROUND_MAX / logs.len().max(1)).clamp(SHARE_MIN, SHARE);
        let taken = logs.into_iter().map(|log| {
            let lines = log.take(share);
            (log, lines)
        });
        self.round = taken.collect();
        self.round.make_contiguous().sort_by_key(|(_, lines)| lines.len());
    }

    /// Takes the next lines of the round, unless a statement is to be tried again.
    fn next_statement(&mut self) {
        let Statement { lines, whose, .. } = &mut self.statement;
        let mut bytes: usize = lines.iter().map(bytes_of).sum();
        while lines.len() < LINES_MAX
            && bytes < BYTES_MAX
            && let Some((log, more)) = self.round.pop_front()
        {
            bytes += more.iter().map(bytes_of).sum::<usize>();
            lines.extend(more);
            whose.push(log);
        }
    }

    /// Writes the next lines of the round, and confirms them to their buffers. Returns for how long to pause; `None`:
    /// there was nothing to write.
    async fn write(&mut self) -> Result<Option<Duration>, EngineError> {
        self.next_statement();
        let Statement { lines, whose, tries } = &mut self.statement;
        if lines.is_empty() {
            return Ok(None);
        }
        let node = &self.runs.node;
        let began = node.clock.elapsed();
        let mut took = Duration::ZERO;
        match node.store.insert_logs(lines).await {
            Ok(()) => took = node.clock.elapsed().saturating_sub(began),
            Err(error) => {
                *tries += 1;
                if *tries < TRIES_MAX {
                    return Err(error.into());
                }
                tracing::error!(error = %Chain(&error), lines = lines.len(), "log lines are lost, because the \
                    database did not accept them");
            }
        }
        *tries = 0;
        lines.clear();
        whose.drain(..).for_each(|log| log.written());
        for ended in &mut self.ended {
            // The write, and the pause after it, which is as long.
            ended.lag += 2 * took;
        }
        Ok(Some(took))
    }

    /// Gives those outcomes to the recorder whose lines are written, or that have waited for long enough.
    async fn report_ended(&mut self) {
        let is_done = |ended: &mut Ended| {
            if ended.lag >= LAG_MAX {
                ended.report.held.log.cut();
            }
            ended.lag >= LAG_MAX || ended.report.held.log.is_written()
        };
        let runs = &self.runs;
        for Ended { report, .. } in self.ended.extract_if(.., is_done) {
            runs.held.unpark();
            let _ = runs.reports.outcomes.send_patiently(report.into()).await;
        }
    }
}

fn bytes_of(row: &LogRow) -> usize {
    row.message.len() + row.fields.as_ref().map_or(0, String::len)
}
