//! Lines of one attempt's log that wait for the database.
//!
//! A script may write faster than Postgres can store, and a thousand scripts may do so at once. So the waiting lines
//! are bounded, in number and in bytes, per attempt and per node, and so is the number of lines that an attempt may
//! write per second. Further lines are dropped at once: a line in their place says how many, and the last one is kept.
//! An attempt with few waiting lines never loses any because of others.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::run::AttemptKey;
use heddle_domain::state::LogLevel;
use heddle_store::live::LogRow;
use parking_lot::Mutex;

/// How many lines of one attempt may wait: a full log at its default limit, if a line has some thirty bytes.
const LINES_MAX: usize = 32_768;
const BYTES_MAX: usize = 8 << 20;

/// How many lines of all attempts of a node may wait together.
const NODE_LINES_MAX: usize = 131_072;
const NODE_BYTES_MAX: usize = 64 << 20;

/// This many lines of an attempt may wait, however many of others wait.
const ALWAYS_LINES: usize = 64;
const ALWAYS_BYTES: usize = 32 << 10;

/// How many lines an attempt may write at once, and then per second.
const BURST: i64 = 32_768;
const PER_SECOND: i64 = 2_000;
const STEP_MICROS: i64 = 1_000_000 / PER_SECOND;

/// The memory of a line besides its text, approximately.
const LINE_OVERHEAD_BYTES: usize = 128;

/// The waiting lines of all attempts of a node.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    lines: AtomicUsize,
    bytes: AtomicUsize,
}

/// Lines of one attempt's log that are not written yet.
#[derive(Debug, Default)]
pub(crate) struct LogBuffer {
    node: Arc<Backlog>,
    lines: Mutex<Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    unwritten: VecDeque<LogRow>,
    /// The bytes of these.
    bytes: usize,
    next: i32,
    /// The lines and bytes that the log writer has taken and not committed.
    under_way: (usize, usize),
    /// When the rate allows the next line, in microseconds since 1970.
    paid_until: i64,
    dropped: Option<Dropped>,
}

/// The lines that were dropped after the last kept line.
#[derive(Debug)]
struct Dropped {
    lines: usize,
    bytes: usize,
    last: LogRow,
}

fn bytes_of(row: &LogRow) -> usize {
    LINE_OVERHEAD_BYTES + row.message.len() + row.fields.as_ref().map_or(0, String::len)
}

impl Lines {
    /// How much is waiting or being written.
    fn waiting(&self) -> (usize, usize) {
        (self.unwritten.len() + self.under_way.0, self.bytes + self.under_way.1)
    }

    fn keep(&mut self, node: &Backlog, mut row: LogRow) {
        row.line = self.next;
        self.next += 1;
        let bytes = bytes_of(&row);
        self.bytes += bytes;
        node.lines.fetch_add(1, Ordering::Relaxed);
        node.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.unwritten.push_back(row);
    }

    /// Whether there is no room for another line. After a drop, lines are accepted again when half of the room is free.
    fn must_drop(&self, node: &Backlog, at_micros: i64) -> bool {
        let part = 1 + usize::from(self.dropped.is_some());
        let (lines, bytes) = self.waiting();
        let ahead = self.paid_until.saturating_sub(at_micros);
        let is_often = ahead > BURST * STEP_MICROS / part as i64;
        let is_much = lines >= LINES_MAX / part || bytes >= BYTES_MAX / part;
        let is_modest = lines < ALWAYS_LINES / part && bytes < ALWAYS_BYTES / part;
        let node_is_full = node.lines.load(Ordering::Relaxed) >= NODE_LINES_MAX / part
            || node.bytes.load(Ordering::Relaxed) >= NODE_BYTES_MAX / part;
        is_often || is_much || (node_is_full && !is_modest)
    }

    fn drop_line(&mut self, row: LogRow) {
        let before = self
            .dropped
            .take()
            .map_or((0, 0), |dropped| (dropped.lines, dropped.bytes));
        self.dropped = Some(Dropped {
            lines: before.0 + 1,
            bytes: before.1 + row.message.len(),
            last: row,
        });
    }

    /// If lines were dropped, adds a line that says so, and keeps the last of them.
    fn tell_dropped(&mut self, node: &Backlog) {
        let Some(Dropped { lines, bytes, last }) = self.dropped.take() else {
            return;
        };
        let lines = lines - 1;
        if lines > 0 {
            let bytes = bytes - last.message.len();
            let gap = LogRow {
                level: LogLevel::Warn,
                message: format!(
                    "{lines} lines ({bytes} bytes) are omitted here, because they came faster than they could be \
                    written"
                ),
                fields: None,
                ..last.clone()
            };
            self.keep(node, gap);
        }
        self.keep(node, last);
    }
}

impl LogBuffer {
    /// An empty buffer for one attempt. `node` counts the waiting lines of all attempts of the node.
    pub(crate) fn new(node: Arc<Backlog>) -> Self {
        Self {
            node,
            lines: Mutex::default(),
        }
    }

    /// Adds a line with the next number, unless there are too many.
    pub(crate) fn push(&self, row: LogRow) {
        let mut lines = self.lines.lock();
        let at = row.time.timestamp_micros();
        if lines.must_drop(&self.node, at) {
            lines.drop_line(row);
            return;
        }
        lines.paid_until = lines.paid_until.max(at) + STEP_MICROS;
        lines.tell_dropped(&self.node);
        lines.keep(&self.node, row);
    }

    /// Adds a line of Heddle's own.
    pub(crate) fn say(&self, run: RunId, at: AttemptKey, time: Time, message: String) {
        self.push(LogRow {
            run,
            at,
            line: 0,
            time,
            level: LogLevel::Info,
            // Postgres keeps no zero bytes in text.
            message: message.replace('\0', "\u{fffd}"),
            fields: None,
        });
    }

    /// The attempt has ended: returns the lines to be written with its outcome. `None` if there are more than `max`, or
    /// earlier lines are not committed: then the log writer comes first.
    pub(crate) fn rest(&self, max: usize) -> Option<Vec<LogRow>> {
        let mut lines = self.lines.lock();
        lines.tell_dropped(&self.node);
        if lines.under_way.0 > 0 || lines.unwritten.len() > max {
            return None;
        }
        let rest = std::mem::take(&mut lines.unwritten);
        let bytes = std::mem::take(&mut lines.bytes);
        self.node.take(rest.len(), bytes);
        Some(rest.into())
    }

    /// Takes up to `max` lines to write them; [`LogBuffer::written`] confirms them.
    pub(crate) fn take(&self, max: usize) -> Vec<LogRow> {
        let mut lines = self.lines.lock();
        let count = lines.unwritten.len().min(max);
        let taken: Vec<LogRow> = lines.unwritten.drain(..count).collect();
        let bytes = taken.iter().map(bytes_of).sum();
        lines.bytes -= bytes;
        lines.under_way = (count, bytes);
        taken
    }

    pub(crate) fn written(&self) {
        let (lines, bytes) = std::mem::take(&mut self.lines.lock().under_way);
        self.node.take(lines, bytes);
    }

    pub(crate) fn is_written(&self) -> bool {
        let lines = self.lines.lock();
        lines.unwritten.is_empty() && lines.under_way.0 == 0
    }

    /// Drops the waiting lines except the last, because the outcome has waited too long for them.
    pub(crate) fn cut(&self) {
        let mut lines = self.lines.lock();
        let rows = std::mem::take(&mut lines.unwritten);
        let bytes = std::mem::take(&mut lines.bytes);
        self.node.take(rows.len(), bytes);
        if let Some(first) = rows.front() {
            // Numbers have no gaps: readers take a gap for lines that are still to come.
            lines.next = first.line;
        }
        for row in rows {
            lines.drop_line(row);
        }
        lines.tell_dropped(&self.node);
    }
}

impl Backlog {
    fn take(&self, lines: usize, bytes: usize) {
        self.lines.fetch_sub(lines, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for LogBuffer {
    fn drop(&mut self) {
        let (lines, bytes) = self.lines.get_mut().waiting();
        self.node.take(lines, bytes);
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn at() -> AttemptKey {
        AttemptKey::from_numbers(0, -1, 1)
    }

    fn say(log: &LogBuffer, time: Time, message: &str) {
        log.say(RunId(uuid::Uuid::nil()), at(), time, message.to_owned());
    }

    fn log_of(lines: usize) -> LogBuffer {
        let log = LogBuffer::default();
        for number in 0..lines {
            say(&log, Time::default(), &number.to_string());
        }
        log
    }

    fn messages(rows: &[LogRow]) -> Vec<&str> {
        rows.iter().map(|row| row.message.as_str()).collect()
    }

    /// All lines that are written of an attempt that has ended.
    fn all_of(log: &LogBuffer) -> Vec<LogRow> {
        let mut all = Vec::new();
        loop {
            if let Some(rest) = log.rest(100) {
                all.extend(rest);
                return all;
            }
            all.extend(log.take(1_000));
            log.written();
        }
    }

    #[test]
    fn few_lines_go_with_the_outcome() {
        let log = log_of(3);
        let numbers: Vec<i32> = log.rest(3).into_iter().flatten().map(|row| row.line).collect();
        assert_eq!(numbers, [0, 1, 2]);
        assert!(log.is_written());
        assert_eq!(log.rest(0).map(|rest| rest.len()), Some(0));
    }

    #[test]
    fn many_lines_are_written_first() {
        let log = log_of(5);
        assert!(log.rest(4).is_none());
        assert_eq!(log.take(3).len(), 3);
        // The rest would fit, but must not be written before the lines that are being written.
        assert!(log.rest(4).is_none());
        assert!(!log.is_written());
        log.written();
        let numbers: Vec<i32> = log.rest(4).into_iter().flatten().map(|row| row.line).collect();
        assert_eq!(numbers, [3, 4]);
    }

    #[test]
    fn nothing_to_take_holds_nothing_up() {
        let log = log_of(0);
        assert!(log.take(3).is_empty());
        assert!(log.is_written());
        assert!(log.rest(0).is_some());
    }

    /// Many more lines at once than may wait: they are bounded, the drop is told, and the last line is there.
    #[test]
    fn a_flood_is_cut_and_says_so() {
        const WRITTEN: usize = 200_000;
        let log = log_of(WRITTEN);
        let all = all_of(&log);
        assert!(all.len() <= LINES_MAX + 2, "{}", all.len());
        let shown = messages(&all);
        assert_eq!(shown[shown.len() - 1], (WRITTEN - 1).to_string());
        let left_out = WRITTEN - LINES_MAX - 1;
        assert!(
            shown[shown.len() - 2].starts_with(&format!("{left_out} lines (")),
            "{}",
            shown[shown.len() - 2]
        );
        assert_eq!(all[all.len() - 2].level, LogLevel::Warn);
        assert!(all.iter().enumerate().all(|(number, row)| row.line == number as i32));
        let node = &log.node;
        assert_eq!(
            (node.lines.load(Ordering::Relaxed), node.bytes.load(Ordering::Relaxed)),
            (0, 0)
        );
    }

    /// Lines of 64 KiB, the rest of lines of megabytes.
    #[test]
    fn large_lines_are_bounded_by_their_bytes() {
        let log = LogBuffer::default();
        let line = "x".repeat(64 << 10);
        for _ in 0..1_000 {
            say(&log, Time::default(), &line);
        }
        assert!(log.node.bytes.load(Ordering::Relaxed) < BYTES_MAX + (128 << 10));
        assert!(all_of(&log).len() < BYTES_MAX / line.len() + 6);
    }

    /// However fast lines can be stored, an attempt has its rate; and after a drop, lines are accepted again in time.
    #[test]
    fn lines_have_a_rate() {
        const SECONDS: i64 = 20;
        let log = LogBuffer::default();
        let mut time = Time::default();
        let mut kept = 0;
        for _ in 0..SECONDS {
            for line in 0..20_000 {
                say(&log, time, &line.to_string());
                if line % 1_000 == 0 {
                    kept += log.take(usize::MAX).len();
                    log.written();
                }
            }
            time += chrono::TimeDelta::seconds(1);
        }
        kept += all_of(&log).len();
        let allowed = BURST + SECONDS * PER_SECOND;
        assert!(kept as i64 <= allowed + allowed / 100, "{kept}");
        assert!(kept as i64 >= allowed / 2, "{kept}");
        // A modest writer never loses any.
        let modest = LogBuffer::default();
        for _ in 0..30_000 {
            say(&modest, time, "x");
            modest.take(usize::MAX);
            modest.written();
            time += chrono::TimeDelta::milliseconds(1);
        }
        assert_eq!(modest.lines.lock().next, 30_000);
        assert!(modest.lines.lock().dropped.is_none());
    }

    /// A thousand attempts with floods have one common bound; an attempt with few lines next to them loses none.
    #[test]
    fn a_node_has_a_bound_for_all() {
        let node = Arc::new(Backlog::default());
        let floods: Vec<LogBuffer> = (0..1_000).map(|_| LogBuffer::new(node.clone())).collect();
        for log in &floods {
            for line in 0..1_000 {
                say(log, Time::default(), &line.to_string());
            }
        }
        let waiting = node.lines.load(Ordering::Relaxed);
        assert!(waiting <= NODE_LINES_MAX + 1_000 * ALWAYS_LINES, "{waiting}");
        let modest = LogBuffer::new(node.clone());
        for line in 0..ALWAYS_LINES {
            say(&modest, Time::default(), &line.to_string());
        }
        assert_eq!(all_of(&modest).len(), ALWAYS_LINES);
        drop(floods);
        assert_eq!(
            (node.lines.load(Ordering::Relaxed), node.bytes.load(Ordering::Relaxed)),
            (0, 0)
        );
    }

    /// After long enough, an outcome is written with the last line, and with how many are left out.
    #[test]
    fn what_takes_too_long_is_left_out() {
        let log = log_of(1_000);
        assert_eq!(log.take(10).len(), 10);
        log.cut();
        log.written();
        let rest = log.rest(2).expect("two lines");
        assert_eq!(
            messages(&rest),
            [
                "989 lines (2877 bytes) are omitted here, because they came faster than they could be written",
                "999"
            ]
        );
        assert_eq!((rest[0].line, rest[1].line), (10, 11));
        log.cut();
        assert!(log.is_written());
    }
}
